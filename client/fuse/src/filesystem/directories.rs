//! Listing directories.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use weir_client::Context;
use weir_dfs::{DirEntry, Kind, Node, Stat};

use super::attributes::{of_new, stamp, to_kernel};
use super::handles::{Handle, OpenDirectory};
use super::worker::{Fault, Served, Shared};
use super::{GENERATION, entry_life};

/// Entries looked at in one step: more than fit the 4 KiB that the kernel asks for at first.
const STEP: usize = 256;

/// Attributes asked for at the same time: enough to hide the round trip, few enough to leave engines to others.
const STATS_AT_ONCE: usize = 32;

/// How long a listing waits for attributes, once: longer than an engine takes to restart. Whoever asks for those of one entry
/// waits as for any operation.
const STATS_LIMIT: Duration = Duration::from_secs(5);

/// Attributes of a listed entry.
enum Listed {
    /// As the engines have them.
    Asked(Stat),
    /// As this mount's applications see them, while the engines lack what they have written.
    Gathered(Stat),
    /// They can't be read now.
    Unknown,
}

/// Offsets of the first real entry: `.` and `..` come before it.
const DOTS: u64 = 2;

impl Shared {
    /// Opens a directory.
    pub(crate) fn opendir(&self, number: u64) -> Served<u64> {
        let node = self.inode(number)?.node();
        let stream = self.dfs.open_directory(&node)?;
        Ok(self.handles.insert(Handle::Directory(Arc::new(OpenDirectory {
            stream: Mutex::new(stream),
            names_only: AtomicBool::new(false),
        }))))
    }

    fn directory(&self, handle: u64) -> Served<Arc<OpenDirectory>> {
        self.handles.directory(handle).ok_or(Fault::Errno(libc::EBADF))
    }

    /// Entries from an offset on; at most [`STEP`].
    fn entries(&self, context: &Context, directory: &OpenDirectory, offset: u64) -> Served<Vec<DirEntry>> {
        let mut stream = directory.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = self.dfs.read_directory(context, &mut stream, offset.saturating_sub(DOTS), STEP);
        Ok(context.block_on(listed)?.to_vec())
    }

    /// Fills a listing with names.
    pub(crate) fn readdir(
        &self,
        context: &Context,
        number: u64,
        handle: u64,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Served<()> {
        let directory = self.directory(handle)?;
        for (index, name) in [(1, "."), (2, "..")] {
            if offset < index && reply.add(INodeNo(number), index, FileType::Directory, name) {
                return Ok(());
            }
        }
        let first = offset.max(DOTS);
        let mut at = first;
        loop {
            let entries = match self.entries(context, &directory, at) {
                // What was found counts; the next request meets the error.
                Err(_) if at > first => return Ok(()),
                entries => entries?,
            };
            if entries.is_empty() {
                return Ok(());
            }
            for entry in &entries {
                at = entry.cookie + DOTS;
                let kind = kind_of(entry.node.record.kind);
                if reply.add(INodeNo(entry.node.inode_number()), at, kind, os(&entry.node.name)) {
                    return Ok(());
                }
            }
        }
    }

    /// Fills a listing with names and attributes. Each entry that is listed is one more reference of the kernel. Where attributes
    /// can't be read, the kernel gets those that are known, and is to ask again before anybody sees them.
    pub(crate) fn readdirplus(
        &self,
        context: &Context,
        number: u64,
        handle: u64,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Served<()> {
        let directory = self.directory(handle)?;
        let life = entry_life(self);
        if offset < DOTS {
            directory.names_only.store(false, Ordering::Relaxed);
            // The kernel takes no reference on these two.
            let own = to_kernel(&super::attributes::of_new(&self.inode(number)?.node()));
            for (index, name) in [(1, "."), (2, "..")] {
                if offset < index
                    && reply.add(INodeNo(number), index, name, &std::time::Duration::ZERO, &own, GENERATION)
                {
                    return Ok(());
                }
            }
        }
        let first = offset.max(DOTS);
        let mut at = first;
        loop {
            let entries = match self.entries(context, &directory, at) {
                Err(_) if at > first => return Ok(()),
                entries => entries?,
            };
            if entries.is_empty() {
                return Ok(());
            }
            for batch in entries.chunks(STATS_AT_ONCE) {
                let stats = self.stats(context, &directory, batch);
                for (entry, stat) in batch.iter().zip(stats) {
                    at = entry.cookie + DOTS;
                    let (life, shown) = match &stat {
                        Listed::Asked(stat) | Listed::Gathered(stat) => (life, *stat),
                        Listed::Unknown => (Duration::ZERO, self.last_known(&entry.node)),
                    };
                    let attributes = to_kernel(&shown);
                    if reply.add(attributes.ino, at, os(&entry.node.name), &life, &attributes, GENERATION) {
                        return Ok(());
                    }
                    let inode = self.inodes.found(&entry.node);
                    // Of a file that is being written, what its writers were told counts.
                    if let Listed::Asked(stat) = stat
                        && inode.gathering.is_settled()
                    {
                        inode.lock().told = Some(stamp(&stat));
                    }
                }
            }
        }
    }

    /// Attributes of listed entries, asked for at the same time. What this mount has not sent yet is not waited for: an engine
    /// that is away would hold up the listing as long as it holds up the writer.
    fn stats(&self, context: &Context, directory: &OpenDirectory, batch: &[DirEntry]) -> Vec<Listed> {
        let gathered = |entry: &DirEntry| {
            Self::stat_gathered(&*self.inodes.get(entry.node.inode_number())?).map(Listed::Gathered)
        };
        let mut stats: Vec<Option<Listed>> = batch.iter().map(gathered).collect();
        if !directory.names_only.load(Ordering::Relaxed) {
            let rt = context.runtime();
            let (places, asked): (Vec<usize>, Vec<_>) = (0..batch.len())
                .filter(|place| stats[*place].is_none())
                .map(|place| {
                    (place, rt.timeout(STATS_LIMIT, self.dfs.stat_listed(context, &batch[place].node)))
                })
                .unzip();
            let answers = context.block_on(weir_runtime::join_all(asked));
            for (place, answer) in places.into_iter().zip(answers) {
                stats[place] = answer.ok().and_then(Result::ok).map(Listed::Asked);
            }
            if stats.iter().any(Option::is_none) {
                directory.names_only.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "a directory is listed without the attributes of some entries: an engine with them is away"
                );
            }
        }
        stats.into_iter().map(|stat| stat.unwrap_or(Listed::Unknown)).collect()
    }

    /// What is known of a listed inode without asking: its record, with the size that the kernel has, so that it drops nothing
    /// that it keeps of an open file.
    fn last_known(&self, node: &Node) -> Stat {
        let told = self.inodes.get(node.inode_number()).and_then(|inode| inode.lock().told);
        let stat = of_new(node);
        match told {
            Some(told) => Stat { size: told.size, mtime_ns: told.mtime_ns, ..stat },
            None => stat,
        }
    }

    /// The last user of a directory handle is gone.
    pub(crate) fn releasedir(&self, handle: u64) {
        self.handles.remove(handle);
    }
}

fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

fn os(name: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}
