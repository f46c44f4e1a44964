//! Listing directories.

use std::sync::{Arc, Mutex, PoisonError};

use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use weir_client::Context;
use weir_dfs::{DirEntry, Kind, Stat};

use super::attributes::{stamp, to_kernel};
use super::handles::{Handle, OpenDirectory};
use super::worker::{Fault, Served, Shared};
use super::{GENERATION, entry_life};

/// Entries looked at in one step: more than fit the 4 KiB that the kernel asks for at first.
const STEP: usize = 256;

/// Attributes asked for at the same time: enough to hide the round trip, few enough to leave engines to others.
const STATS_AT_ONCE: usize = 32;

/// Offsets of the first real entry: `.` and `..` come before it.
const DOTS: u64 = 2;

impl Shared {
    /// Opens a directory.
    pub(crate) fn opendir(&self, number: u64) -> Served<u64> {
        let node = self.inode(number)?.node();
        let stream = self.dfs.open_directory(&node)?;
        Ok(self.handles.insert(Handle::Directory(Arc::new(OpenDirectory { stream: Mutex::new(stream) }))))
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
        let mut at = offset.max(DOTS);
        loop {
            let entries = self.entries(context, &directory, at)?;
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

    /// Fills a listing with names and attributes. Each entry that is listed is one more reference of the kernel.
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
        let mut at = offset.max(DOTS);
        loop {
            let mut entries = self.entries(context, &directory, at)?;
            if entries.is_empty() {
                return Ok(());
            }
            for batch in entries.chunks_mut(STATS_AT_ONCE) {
                for entry in &mut *batch {
                    if let Some(settled) = self.settle_known(context, &entry.node) {
                        entry.node.record = settled.record;
                    }
                }
                let stats = self.stats(context, batch)?;
                for (entry, stat) in batch.iter().zip(stats) {
                    at = entry.cookie + DOTS;
                    let attributes = to_kernel(&stat);
                    if reply.add(attributes.ino, at, os(&entry.node.name), &life, &attributes, GENERATION) {
                        return Ok(());
                    }
                    let inode = self.inodes.found(&entry.node);
                    inode.lock().told = Some(stamp(&stat));
                }
            }
        }
    }

    /// Attributes of listed entries, asked for at the same time.
    fn stats(&self, context: &Context, batch: &[DirEntry]) -> Served<Vec<Stat>> {
        let asked = batch.iter().map(|entry| self.dfs.stat_listed(context, &entry.node));
        let answers = context.block_on(weir_runtime::join_all(asked));
        Ok(answers.into_iter().collect::<Result<Vec<_>, _>>()?)
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
