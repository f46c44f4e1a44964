//! File content: opening, reading, writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use fuser::{FopenFlags, WriteFlags};
use weir_client::{Context, Epoch};
use weir_dfs::{Error, Node, SetAttributes, Stat};
use weir_runtime::nanos;

use super::attributes::{now_ns, stamp, without_privilege};
use super::handles::{Handle, KEPT_DIRECT, OpenFile, OpenRequest};
use super::inodes::{ContentStamp, Inode, Moment};
use super::reads::Reading;
use super::repeats::Turn;
use super::worker::{Fault, Served, Shared};
use crate::spec::Cache;

/// For how long what another client has cut off is read here as it was: longer than the kernel goes by a size that it was told,
/// shorter than engines keep history.
const KEPT: Duration = Duration::from_secs(2);

/// An open file as the kernel is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Number of the handle.
    pub handle: u64,
    /// What the kernel may do with it.
    pub flags: FopenFlags,
}

impl Shared {
    /// Opens a file: asks whether it is still the one that the kernel means and whether its content has changed since the
    /// page cache was filled. A file that is not is `ESTALE`, which makes the kernel look its name up again; if that has been
    /// done, and it had its name then, it is opened as it is.
    pub(crate) fn open(
        &self,
        context: &Context,
        number: u64,
        request: (u64, i32),
        had_name: bool,
    ) -> Served<Opened> {
        let inode = self.inode(number)?;
        inode.lock().opens += 1;
        let opened = self.open_counted(context, &inode, request, had_name);
        if opened.is_err() {
            self.close(context, &inode);
        }
        opened
    }

    fn open_counted(
        &self,
        context: &Context,
        inode: &Arc<Inode>,
        request: (u64, i32),
        had_name: bool,
    ) -> Served<Opened> {
        // First: what comes while the engines get the rest isn't in their answer.
        let asked = self.inodes.moment();
        self.settle(context, inode);
        // What is written must not go to a file that is gone. A read finds out: what is gone ends at its begin.
        let is_for_reading = request.1 & libc::O_ACCMODE == libc::O_RDONLY;
        if let Cache::Cached(life) = self.cache
            && is_for_reading
            && !inode.gathering.is_direct()
        {
            let told = inode.lock().trusted(life);
            if let Some(told) = told {
                return self.opened_again(inode, told, request);
            }
        }
        let (node, removed) = {
            let known = inode.lock();
            (known.node.clone(), known.removed.is_some())
        };
        let stat = if removed {
            // Through /proc/self/fd a file without a name can be opened again.
            context.block_on(self.dfs.stat_listed(context, &node))?
        } else {
            match context.block_on(self.dfs.stat(context, &node)) {
                Ok((node, stat)) => {
                    inode.lock().learn_record(&node, asked);
                    stat
                }
                Err(error @ Error::Stale(_)) if had_name => self.stat_orphan(context, &node, error)?,
                Err(error) => return Err(error.into()),
            }
        };
        self.opened(inode, stamp(&stat), request, asked)
    }

    /// Enters the handle of a file without asking the engines, whose content was this lately.
    fn opened_again(
        &self,
        inode: &Arc<Inode>,
        told: ContentStamp,
        (request, flags): (u64, i32),
    ) -> Served<Opened> {
        let (node, kept) = {
            let mut known = inode.lock();
            let kept = known.cached.replace(told) == Some(told);
            if !kept {
                known.pages.note_dropped(Instant::now());
            }
            (known.node.clone(), kept)
        };
        let file = self.open_content(inode, &node, flags)?;
        let handle = self.handles.insert(file, OpenRequest { number: request, flags: Some(flags) });
        Ok(Opened { handle, flags: self.kernel_flags(flags, kept) })
    }

    /// Attributes of a file that another client has removed, or replaced, since it was looked up: an open gets the file
    /// as it was, if all of its content is there and stays. An empty one may be one whose content is gone.
    fn stat_orphan(&self, context: &Context, node: &Node, stale: Error) -> Served<Stat> {
        if !self.may_open_nameless(node.oid()) {
            return Err(stale.into());
        }
        let stat = context.block_on(self.dfs.stat_listed(context, node))?;
        if stat.size == 0 { Err(stale.into()) } else { Ok(stat) }
    }

    /// Enters the handle of a file whose attributes were these when the engines were asked, for a request with its number
    /// and flags. The file's open count has been raised.
    pub(crate) fn opened(
        &self,
        inode: &Arc<Inode>,
        fresh: ContentStamp,
        (request, flags): (u64, i32),
        asked: Moment,
    ) -> Served<Opened> {
        let (node, kept, told) = {
            let mut known = inode.lock();
            let kept = known.cached == Some(fresh);
            let told = known.told;
            // Written to from here meanwhile: what the page cache holds then has no stamp yet.
            let is_newest = known.is_newest(asked);
            known.cached = is_newest.then_some(fresh);
            if !kept {
                known.pages.note_dropped(Instant::now());
            }
            if is_newest {
                known.tell(fresh, asked, inode.gathering.newest());
                inode.gathering.learn_end(fresh.size);
            }
            (known.node.clone(), kept, told)
        };
        let file = self.open_content(inode, &node, flags)?;
        if told != Some(fresh) {
            // Without this the kernel would go on with an old size until its attributes expire.
            self.expire_attributes(inode.number);
        }
        let handle = self.handles.insert(file, OpenRequest { number: request, flags: Some(flags) });
        Ok(Opened { handle, flags: self.kernel_flags(flags, kept) })
    }

    /// A new handle of a file.
    pub(super) fn open_content(&self, inode: &Arc<Inode>, node: &Node, flags: i32) -> Served<Handle> {
        let append = flags & libc::O_APPEND != 0;
        let is_cached = self.cache.holds_data();
        let may_write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let file = self.dfs.file(node)?;
        // With it the process before this one has left the handle.
        let is_direct = flags & KEPT_DIRECT != 0 && inode.gathering.begin_direct();
        if may_write {
            inode.lock().pages.begin_writer();
        }
        Ok(Handle::File(Arc::new(OpenFile {
            inode: Arc::clone(inode),
            file,
            may_write,
            append,
            gathers: is_cached && !append && flags & libc::O_DIRECT == 0,
            is_direct: AtomicBool::new(is_direct),
            is_mapped: AtomicBool::new(false),
            reported: AtomicU64::new(inode.gathering.failures()),
            refused: AtomicU64::new(inode.gathering.failures()),
        })))
    }

    /// What the kernel may do with a file that is opened with these flags. `kept`: its page cache has the content.
    pub(crate) fn kernel_flags(&self, open_flags: i32, kept: bool) -> FopenFlags {
        let mut flags = match self.cache {
            Cache::None => FopenFlags::FOPEN_DIRECT_IO,
            Cache::CloseToOpen | Cache::Cached(_) if kept => FopenFlags::FOPEN_KEEP_CACHE,
            Cache::CloseToOpen | Cache::Cached(_) => FopenFlags::empty(),
        };
        let access = open_flags & libc::O_ACCMODE;
        if access == libc::O_RDONLY {
            flags |= FopenFlags::FOPEN_NOFLUSH;
        }
        if open_flags & libc::O_APPEND != 0 && access == libc::O_WRONLY {
            // The kernel would put the data in the page cache where it believes the end to be.
            flags |= FopenFlags::FOPEN_DIRECT_IO;
        }
        flags
    }

    /// Creates and opens a file.
    pub(crate) fn create(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (parent, name): (u64, &[u8]),
        mode: u32,
        (request, flags): (u64, i32),
        owner: (u32, u32),
    ) -> Served<(Stat, Opened)> {
        let exclusive = flags & libc::O_EXCL != 0;
        let (node, stat) = self.create_new(context, turn, (parent, name), (mode, exclusive), owner)?;
        let inode = self.inode(node.inode_number())?;
        inode.lock().opens += 1;
        if self.cache.holds_data() {
            inode.gathering.begin_fresh();
        }
        let opened = self.opened(&inode, stamp(&stat), (request, flags), self.inodes.moment());
        if opened.is_err() {
            self.close(context, &inode);
            self.inodes.forget(inode.number, 1);
        }
        opened.map(|opened| (stat, opened))
    }

    /// One handle of an inode less.
    fn close(&self, context: &Context, inode: &Inode) {
        if let Some(removed) = self.inodes.closed(inode) {
            self.reclaim(context, removed);
        }
    }

    /// The last user of a handle is gone.
    pub(crate) fn release(&self, context: &Context, handle: u64) {
        if let Some(Handle::File(file)) = self.handles.remove(handle) {
            // First, so that no change is gathered behind the back of this call.
            file.inode.gathering.end_fresh();
            self.leave_direct(&file);
            // Pages of a mapping may have come after the last close.
            self.settle(context, &file.inode);
            if file.may_write {
                file.inode.lock().pages.end_writer();
            }
            self.close(context, &file.inode);
        }
    }

    /// Attributes of an open file.
    pub(crate) fn stat_open(&self, context: &Context, handle: u64) -> Served<Stat> {
        let open = self.file(handle)?;
        self.getattr(context, open.inode.number)
    }

    fn file(&self, handle: u64) -> Served<Arc<OpenFile>> {
        let open = self.handles.file(handle).ok_or(Fault::Errno(libc::EBADF))?;
        if open.inode.lock().lost { Err(Fault::Errno(libc::ESTALE)) } else { Ok(open) }
    }

    /// Notes a read that has come. `None`: its answer says nothing of the file's end to the kernel, because it bypasses the
    /// page cache.
    pub(crate) fn begin_read(&self, number: u64, offset: u64, flags: i32) -> Option<Reading> {
        let is_direct = self.cache == Cache::None || flags & libc::O_DIRECT != 0;
        let inode = if is_direct { None } else { self.inodes.get(number) };
        inode.map(|inode| Reading::begin(inode, offset))
    }

    /// Reads into a buffer and returns how many bytes there were.
    pub(crate) fn read(
        &self,
        context: &Context,
        handle: u64,
        offset: u64,
        into: &mut [u8],
        reading: Option<&Reading>,
    ) -> Served<usize> {
        let open = self.file(handle)?;
        // First: what comes while the engines get the rest isn't in their answer.
        let known = open.inode.lock().told.map(|told| told.size);
        self.settle(context, &open.inode);
        // A hole may be what another client has cut off, or all that is left of a file.
        let read = context.block_on(open.file.read(context, offset, into, None))?;
        let end = offset.saturating_add(read as u64);
        if read < into.len() && known.is_none_or(|size| end < size) {
            self.ensure_there(context, &open.inode)?;
        }
        if read < into.len()
            && let Some(whole) =
                reading.and_then(|_| Self::read_before_cut(context, &open, offset, read, into))
        {
            self.metrics.read(whole as u64);
            return Ok(whole);
        }
        if read < into.len() && known.is_none_or(|size| end < size) {
            // Another client has truncated it.
            open.inode.lock().told = None;
        }
        // The kernel may learn this end from the answer.
        if let Some(reading) = reading.filter(|_| read < into.len() && known != Some(end)) {
            reading.wait_for_lower();
        }
        self.metrics.read(read as u64);
        Ok(read)
    }

    /// Completes a read that comes out short with what stood behind the new end before another client cut the file off. Returns how
    /// many bytes there are then. `None` where that isn't needed or not known any more: the kernel takes the end from the answer.
    ///
    /// The kernel heeds a short answer only if it has learned nothing else of the file since it sent the request. With several
    /// handles it may have, and would show zeros up to the size that it believes in: old content is right until it learns the new
    /// one.
    fn read_before_cut(
        context: &Context,
        open: &OpenFile,
        offset: u64,
        read: usize,
        into: &mut [u8],
    ) -> Option<usize> {
        let end = offset + read as u64;
        let before = {
            let known = open.inode.lock();
            (known.opens > 1).then(|| known.believed_longer(end, KEPT))??
        };
        let kept = nanos(KEPT);
        let since = Epoch(context.latest_epoch().wall_ns().checked_sub(kept)?);
        let mut old = vec![0; into.len()];
        // A failure leaves the short answer.
        let file = open.file.at(since.max(before.newest?));
        let whole = context
            .block_on(file.read(context, offset, &mut old, None))
            .ok()
            .filter(|whole| *whole > read)?;
        into[read..whole].copy_from_slice(&old[read..whole]);
        Some(whole)
    }

    /// Where from `offset` on the file has data, or a hole (lseek with `SEEK_DATA` or `SEEK_HOLE`).
    pub(crate) fn seek(&self, context: &Context, handle: u64, offset: i64, whence: i32) -> Served<i64> {
        let open = self.file(handle)?;
        let nowhere = || Fault::Errno(libc::ENXIO);
        let offset = u64::try_from(offset).map_err(|_| nowhere())?;
        // What is gathered is data; the engines know of holes once they have it.
        self.settle(context, &open.inode);
        let found = match whence {
            libc::SEEK_DATA => context.block_on(open.file.next_data(context, offset))?,
            libc::SEEK_HOLE => context.block_on(open.file.next_hole(context, offset))?,
            _ => return Err(Fault::Errno(libc::EINVAL)),
        };
        found.and_then(|found| i64::try_from(found).ok()).ok_or_else(nowhere)
    }

    /// `close` of one of the descriptors of a handle, or `fsync`: everything written before is on stable media when
    /// this returns, and a failure of any of it that was not told before is told.
    pub(crate) fn flush(&self, context: &Context, handle: u64, closing: bool) -> Served<()> {
        let open = self.file(handle)?;
        self.settle_open(context, &open, closing)
    }

    /// Takes all of the data.
    pub(crate) fn write(
        &self,
        context: &Context,
        handle: u64,
        offset: u64,
        data: &[u8],
        (flags, now): (WriteFlags, i32),
    ) -> Served<()> {
        let open = self.file(handle)?;
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.settle(context, &open.inode);
            self.drop_privilege(context, &open.inode)?;
        }
        let mapped = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = if open.gathers {
            self.gather(context, &open, offset, data, mapped)
                .inspect(|()| self.note_written(&open, offset, data, now_ns(), None))
        } else {
            // A program may have taken `O_APPEND` back.
            self.write_through(context, &open, (offset, data), open.append && now & libc::O_APPEND != 0)
        };
        match &written {
            Ok(()) => self.metrics.written(data.len() as u64),
            Err(fault) if mapped => open.inode.gathering.note_lost_pages(fault),
            Err(_) => {}
        }
        written
    }

    /// Writes without gathering.
    fn write_through(
        &self,
        context: &Context,
        open: &OpenFile,
        (offset, data): (u64, &[u8]),
        appends: bool,
    ) -> Served<()> {
        self.settle(context, &open.inode);
        // The kernel places appended data behind the end that it knows; another client may have moved it.
        let written = if appends {
            let appended = context.block_on(open.file.append(context, data)).map_err(Fault::from);
            open.inode.gathering.note_changed(context.latest_epoch());
            appended
        } else {
            Self::write_in_order(context, open, offset, data).map(|epoch| (offset, epoch))
        };
        if written.is_err() {
            open.inode.lock().cached = None;
        }
        let (offset, epoch) = written?;
        let mtime_ns = i64::try_from(epoch.wall_ns()).unwrap_or(i64::MAX);
        self.note_written(open, offset, data, mtime_ns, Some(epoch));
        Ok(())
    }

    /// Takes note of what the kernel knows after a write.
    fn note_written(&self, open: &OpenFile, offset: u64, data: &[u8], mtime_ns: i64, newest: Option<Epoch>) {
        let mut known = open.inode.lock();
        self.inodes.note_write(&mut known);
        known.cached = None;
        let is_first = if open.gathers {
            known.pages.note_written(Instant::now())
        } else {
            // Not by way of the page cache, or to another place than there.
            known.pages.note_bypassed();
            false
        };
        let end = offset.saturating_add(data.len() as u64);
        // What isn't known, after a failure, the end of one write can't tell.
        if let Some(ContentStamp { size, stored, ctime_ns, .. }) = known.told {
            let size = size.max(end);
            // What replaces stored bytes counts twice until the engines are asked.
            let stored = stored.saturating_add(data.len() as u64).min(size);
            known.told = Some(ContentStamp { size, stored, mtime_ns, ctime_ns, newest });
        }
        drop(known);
        if is_first {
            // Attributes that are on their way to the kernel.
            self.expire_attributes(open.inode.number);
        }
    }

    /// Clears set-user-id and set-group-id of a file that an unprivileged user writes to.
    fn drop_privilege(&self, context: &Context, inode: &Inode) -> Served<()> {
        let node = inode.node();
        let cleared = without_privilege(node.record.mode);
        if cleared == node.record.mode {
            return Ok(());
        }
        let change = SetAttributes { mode: Some(cleared), ..SetAttributes::default() };
        match context.block_on(self.dfs.set_attributes(context, &node, &change)) {
            Ok((node, _)) => self.inodes.note_record(&mut inode.lock(), &node),
            // It has no name any more, so it can't be executed.
            Err(Error::Stale(_)) => {
                let mut known = inode.lock();
                known.node.record.mode = cleared;
                self.inodes.keep_again(&mut known);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Has room kept for a range, and the file as long as asked for; or makes a hole.
    pub(crate) fn fallocate(
        &self,
        context: &Context,
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Served<()> {
        let open = self.file(handle)?;
        self.settle(context, &open.inode);
        open.inode.lock().cached = None;
        offset.checked_add(length).ok_or(Fault::Errno(libc::EFBIG))?;
        match mode {
            0 | libc::FALLOC_FL_KEEP_SIZE => {
                let keeps_size = mode == libc::FALLOC_FL_KEEP_SIZE;
                let allocation = self.dfs.allocate(context, &open.file, (offset, length), keeps_size);
                let allocated = context.block_on(allocation);
                open.inode.gathering.note_changed(context.latest_epoch());
                if let Some(size) = allocated? {
                    open.inode.gathering.learn_end(size);
                    // The kernel takes the file to be as long from now on, and asks again after the next write.
                    let mut known = open.inode.lock();
                    self.inodes.note_write(&mut known);
                    if let Some(told) = known.told.as_mut() {
                        told.size = size;
                    }
                }
                Ok(())
            }
            mode if mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE => {
                let punched = context.block_on(open.file.punch_hole(context, offset, length));
                open.inode.gathering.note_changed(context.latest_epoch());
                Ok(punched?)
            }
            _ => Err(Fault::Errno(libc::EOPNOTSUPP)),
        }
    }
}
