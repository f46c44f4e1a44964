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
            let mut entries = match self.entries(context, &directory, at) {
                Err(_) if at > first => return Ok(()),
                entries => entries?,
            };
            if entries.is_empty() {
                return Ok(());
            }
            for batch in entries.chunks_mut(STATS_AT_ONCE) {
                let stats = self.stats(context, &directory, batch);
                for (entry, stat) in batch.iter().zip(stats) {
                    at = entry.cookie + DOTS;
                    let (life, shown) = match stat {
                        Some(stat) => (life, stat),
                        None => (Duration::ZERO, self.last_known(&entry.node)),
                    };
                    let attributes = to_kernel(&shown);
                    if reply.add(attributes.ino, at, os(&entry.node.name), &life, &attributes, GENERATION) {
                        return Ok(());
                    }
                    let inode = self.inodes.found(&entry.node);
                    if let Some(stat) = stat {
                        inode.lock().told = Some(stamp(&stat));
                    }
                }
            }
        }
    }

    /// Attributes of listed entries, asked for at the same time; `None` for those that can't be read now.
    fn stats(
        &self,
        context: &Context,
        directory: &OpenDirectory,
        batch: &mut [DirEntry],
    ) -> Vec<Option<Stat>> {
        if directory.names_only.load(Ordering::Relaxed) {
            return vec![None; batch.len()];
        }
        for entry in &mut *batch {
            if let Some(settled) = self.settle_known(context, &entry.node) {
                entry.node.record = settled.record;
            }
        }
        let rt = context.runtime();
        let asked =
            batch.iter().map(|entry| rt.timeout(STATS_LIMIT, self.dfs.stat_listed(context, &entry.node)));
        let answers = context.block_on(weir_runtime::join_all(asked));
        let stats: Vec<_> = answers.into_iter().map(|answer| answer.ok()?.ok()).collect();
        if stats.contains(&None) {
            directory.names_only.store(true, Ordering::Relaxed);
            tracing::warn!(
                "a directory is listed without the attributes of some entries: an engine with them is away"
            );
        }
        stats
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
