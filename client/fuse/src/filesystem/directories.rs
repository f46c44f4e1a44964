//! Listing directories.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use weir_client::Context;
use weir_dfs::{DirEntry, DirStream, Error, Node, Stat};

use super::GENERATION;
use super::attributes::{BLOCK, file_type, of_new, stamp, to_kernel};
use super::handles::{Handle, OpenDirectory, OpenRequest};
use super::inodes::{ContentStamp, Inode, Moment};
use super::worker::{Fault, Served, Shared};
use crate::spec::CACHE_LIFE;

/// Entries looked at in one step: more than fit the 4 KiB that the kernel asks for at first.
const STEP: usize = 256;

/// Attributes asked for at the same time: enough to hide the round trip, few enough to leave engines to others.
const STATS_AT_ONCE: usize = 32;

/// How long a listing waits for attributes, once, and a look-up: longer than an engine takes to restart. A request for
/// the attributes of one entry waits as any operation does.
pub(super) const STATS_LIMIT: Duration = Duration::from_secs(5);

/// What was listed of a directory so far.
#[derive(Debug)]
pub struct Listing {
    stream: DirStream,
    page: Page,
}

/// The entries that engines were asked for last.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Entries before them.
    before: u64,
    asked: Moment,
    at: Instant,
}

/// A listed entry with attributes.
struct Listed {
    node: Node,
    attributes: Attributes,
    /// When the engines were asked for the entry.
    asked: Moment,
}

/// Attributes of a listed entry.
enum Attributes {
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
    pub(crate) fn opendir(&self, number: u64, request: u64) -> Served<u64> {
        let handle = self.open_listing(self.inode(number)?)?;
        Ok(self.handles.insert(handle, OpenRequest { number: request, flags: None }))
    }

    /// A new handle of a directory. It counts among those that are open.
    pub(super) fn open_listing(&self, inode: Arc<Inode>) -> Served<Handle> {
        let stream = self.dfs.open_directory(&inode.node())?;
        inode.lock().opens += 1;
        let page = Page { before: 0, asked: self.inodes.moment(), at: Instant::now() };
        Ok(Handle::Directory(Arc::new(OpenDirectory {
            inode,
            listing: Mutex::new(Listing { stream, page }),
            names_only: AtomicBool::new(false),
            reads_names: AtomicBool::new(false),
        })))
    }

    fn directory(&self, handle: u64) -> Served<Arc<OpenDirectory>> {
        self.handles.directory(handle).ok_or(Fault::Errno(libc::EBADF))
    }

    /// Entries from an offset on; at most [`STEP`]. And the page that was listed last.
    fn entries(
        &self,
        context: &Context,
        directory: &OpenDirectory,
        offset: u64,
    ) -> Served<(Vec<DirEntry>, Page)> {
        let mut listing = directory.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let Listing { stream, page } = &mut *listing;
        let cookie = offset.saturating_sub(DOTS);
        let before = if cookie == 0 { 0 } else { stream.listed() };
        let (asked, at) = (self.inodes.moment(), Instant::now());
        let entries = context.block_on(self.dfs.read_directory(context, stream, cookie, STEP))?.to_vec();
        if cookie == 0 || stream.listed() != before {
            *page = Page { before, asked, at };
        }
        Ok((entries, *page))
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
                entries => entries?.0,
            };
            if entries.is_empty() {
                return Ok(());
            }
            for entry in &entries {
                at = entry.cookie + DOTS;
                let kind = file_type(entry.node.record.kind);
                if reply.add(INodeNo(entry.node.inode_number()), at, kind, os(&entry.node.name)) {
                    return Ok(());
                }
            }
        }
    }

    /// Fills a listing with names and attributes. Each entry that is listed is one more reference of the kernel. Where
    /// attributes can't be read, the kernel gets those that are known, and is to ask again before any process sees
    /// them.
    pub(crate) fn readdirplus(
        &self,
        context: &Context,
        number: u64,
        handle: u64,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Served<()> {
        let directory = self.directory(handle)?;
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
            let (entries, page) = match self.entries(context, &directory, at) {
                Err(_) if at > first => return Ok(()),
                entries => entries?,
            };
            if entries.is_empty() {
                return Ok(());
            }
            for batch in entries.chunks(STATS_AT_ONCE) {
                let listed = self.listed(context, number, &directory, batch, page);
                for (entry, listed) in batch.iter().zip(listed) {
                    at = entry.cookie + DOTS;
                    let Some(Listed { node, attributes, asked }) = listed else { continue };
                    // Of a file that is being written, what its writers were told counts.
                    let (life, shown, stamp) = match attributes {
                        Attributes::Asked(stat) => {
                            (self.attribute_life(stat.inode), stat, Some(stamp(&stat)))
                        }
                        Attributes::Gathered(stat) => (self.cache_life(), stat, None),
                        Attributes::Unknown => (Duration::ZERO, self.last_known(&node), None),
                    };
                    self.withhold(&shown);
                    let attributes = to_kernel(&shown);
                    if reply.add(attributes.ino, at, os(&node.name), &life, &attributes, GENERATION) {
                        return Ok(());
                    }
                    self.inodes.found(&node, stamp, asked);
                }
            }
        }
    }

    /// Whether what was listed of an entry is too old for the kernel to go by: it was longer ago than the kernel may keep
    /// it, or the entry was changed from here since, or a name of the directory is gone, which may be this one.
    fn is_outdated(&self, directory: u64, entry: &DirEntry, page: Page) -> bool {
        entry.cookie <= page.before
            || page.at.elapsed() >= CACHE_LIFE
            || self.inodes.has_changed(directory, page.asked)
            || self.inodes.has_changed(entry.node.inode_number(), page.asked)
    }

    /// Listed entries with their attributes, asked for at the same time. An entry that was listed too long ago is looked up
    /// again: `None` when it is gone. What this mount has not sent yet is not waited for: an engine that is away would hold
    /// up the listing as long as it holds up the writer.
    fn listed(
        &self,
        context: &Context,
        number: u64,
        directory: &OpenDirectory,
        batch: &[DirEntry],
        page: Page,
    ) -> Vec<Option<Listed>> {
        let now = self.inodes.moment();
        let parent = self.inodes.get(number).map(|inode| inode.node());
        let names_only = directory.names_only.load(Ordering::Relaxed);
        let all = batch.iter().map(|entry| {
            let is_untold = self.is_untold(entry.node.inode_number());
            let is_old = || is_untold || self.is_outdated(number, entry, page);
            let parent = parent.as_ref().filter(|_| !names_only && is_old());
            let asked = if parent.is_some() { now } else { page.asked };
            async move {
                let described = async {
                    if !names_only {
                        self.until_told(context, entry.node.inode_number()).await;
                    }
                    self.describe(context, parent, &entry.node, names_only).await
                };
                let answer = context.runtime().timeout(STATS_LIMIT, described).await;
                let unknown = || (entry.node.clone(), Attributes::Unknown);
                let (node, attributes) = answer.unwrap_or_else(|_| Some(unknown()))?;
                // What was listed may be old by now: it must not replace anything that is known.
                let is_known = !matches!(attributes, Attributes::Unknown);
                Some(Listed { node, attributes, asked: if is_known { asked } else { Moment::default() } })
            }
        });
        let listed = context.block_on(weir_runtime::join_all(all));
        let is_unknown = |listed: &Listed| matches!(listed.attributes, Attributes::Unknown);
        if !names_only && listed.iter().flatten().any(is_unknown) {
            directory.names_only.store(true, Ordering::Relaxed);
            tracing::warn!(
                "a directory is listed without the attributes of some entries: an engine with them is away"
            );
        }
        listed
    }

    /// An entry with its attributes; looked up again in `parent` when that is given. `None` when it is gone. With
    /// `names_only` engines are not asked for attributes.
    async fn describe(
        &self,
        context: &Context,
        parent: Option<&Node>,
        node: &Node,
        names_only: bool,
    ) -> Option<(Node, Attributes)> {
        let node = match parent {
            None => node.clone(),
            Some(parent) => match self.dfs.lookup(context, parent, &node.name).await {
                Ok(found) => found,
                Err(Error::NotFound(_)) => return None,
                Err(_) => return Some((node.clone(), Attributes::Unknown)),
            },
        };
        let inode = self.inodes.get(node.inode_number());
        if let Some(stat) = inode.and_then(|inode| Self::stat_gathered(&inode)) {
            return Some((node, Attributes::Gathered(stat)));
        }
        if names_only {
            return Some((node, Attributes::Unknown));
        }
        let attributes = match self.dfs.stat_listed(context, &node).await {
            Ok(stat) => Attributes::Asked(stat),
            Err(_) => Attributes::Unknown,
        };
        Some((node, attributes))
    }

    /// What is known of an inode that was found without asking: its record, with the size that the kernel has, so that it drops nothing
    /// that it keeps of an open file.
    pub(super) fn last_known(&self, node: &Node) -> Stat {
        let told = self.inodes.get(node.inode_number()).and_then(|inode| inode.lock().told);
        let stat = of_new(node);
        match told {
            Some(ContentStamp { size, stored, mtime_ns, .. }) => {
                Stat { size, blocks: stored.div_ceil(BLOCK), mtime_ns, ..stat }
            }
            None => stat,
        }
    }

    /// The last user of a directory handle is gone.
    pub(crate) fn releasedir(&self, handle: u64) {
        if let Some(Handle::Directory(directory)) = self.handles.remove(handle) {
            self.leave_names(&directory);
            // What a removed directory held was freed with its name.
            let _ = self.inodes.closed(&directory.inode);
        }
    }
}

fn os(name: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}
