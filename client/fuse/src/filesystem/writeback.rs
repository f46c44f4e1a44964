//! Write-behind: what an application has written to an open file is gathered here and brought to the engines in large
//! pieces, and a new file's attributes with it.
//!
//! `close` and `fsync` return when the engines have everything on stable media, and an error since the last such call
//! is theirs to report; other clients see a file's changes once it is closed (close-to-open). What is gathered waits
//! for at most [`AGE_MAX`], and whole chunks go at once, beside the writer.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use weir_client::{Context, Epoch};
use weir_dfs::{Error, File, Gathered, Kind, Removed, SetAttributes};
use weir_runtime::join_all;

use super::attributes::now_ns;
use super::gathering::Pending;
use super::handles::OpenFile;
use super::inodes::Inode;
use super::worker::{Fault, Served, Shared};
use crate::metrics::Operation;

/// A whole aligned piece of this many bytes is sent at once: what one FUSE request carries, and a stored extent.
const CHUNK: u64 = 1 << 20;

/// Bytes on their way to engines beyond which writers wait: covers the round trips of a fast fabric.
const SENDING_MAX: usize = 16 << 20;

/// Bytes gathered and not yet on their way, in the whole mount, beyond which writes go straight to the engines.
const GATHERED_MAX: usize = 64 << 20;

/// Free space of the container below which writes go straight to the engines, so that a full pool fails the write that
/// does not fit: several times what a mount can hold.
const FREE_MIN: u64 = 2 * (GATHERED_MAX + SENDING_MAX) as u64;

/// Part of the free space that a mount may write before it asks for it again: others write, too.
const FREE_SHARE: u64 = 8;

/// How long the question for free space may take.
const SPACE_LIMIT: Duration = Duration::from_secs(1);

/// How long an answer that space is short is believed.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Longest time for which a change waits to be sent.
const AGE_MAX: Duration = Duration::from_secs(1);

/// How often the sender looks for changes that have waited long enough.
const SCAN_PAUSE: Duration = Duration::from_millis(250);

/// Jobs that the sender has under way at the same time.
const JOBS_MAX: usize = 8;

/// Removed inodes that may wait for the sender; a client that dies leaves the space of those to their container.
const RECLAIMS_MAX: usize = 256;

/// How long the end of a mount waits for them.
const RECLAIM_LIMIT: Duration = Duration::from_secs(10);

/// Work of the sender.
enum Job {
    /// Content to be written.
    Send(Piece),
    /// The content of a removed inode, to be freed.
    Reclaim(Removed),
}

/// A piece of content on its way.
struct Piece {
    inode: Arc<Inode>,
    file: File,
    order: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// The gathering of a whole mount.
#[derive(Debug, Default)]
pub struct Writeback {
    sender: OnceLock<Sender<Job>>,
    /// Files with changes, for the sender to look at.
    waiting: Mutex<Vec<Weak<Inode>>>,
    gathered: AtomicUsize,
    sending: Mutex<usize>,
    room: Condvar,
    space: Mutex<Space>,
    /// Removed inodes whose content the sender has yet to free.
    reclaims: Mutex<usize>,
    reclaimed: Condvar,
}

/// What is known of the container's free space.
#[derive(Debug, Default)]
struct Space {
    /// Bytes that may be gathered before it is asked for again.
    credit: u64,
    /// When it was found short.
    short: Option<Instant>,
}

impl Writeback {
    /// Bytes that the engines don't have yet.
    pub fn bytes(&self) -> u64 {
        let sending = *self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        (self.gathered.load(Ordering::Relaxed) + sending) as u64
    }

    /// Waits until little enough is on its way, and adds to it.
    fn admit(&self, bytes: usize) {
        let sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |sending: &mut usize| *sending > 0 && *sending + bytes > SENDING_MAX;
        let mut sending = self.room.wait_while(sending, full).unwrap_or_else(PoisonError::into_inner);
        *sending += bytes;
    }

    fn release(&self, bytes: usize) {
        *self.sending.lock().unwrap_or_else(PoisonError::into_inner) -= bytes;
        self.room.notify_all();
    }

    /// Enters a file with changes, once, and lets go of its lock.
    fn note_waiting(&self, inode: &Arc<Inode>, mut pending: MutexGuard<'_, Pending>) {
        let is_listed = std::mem::replace(&mut pending.listed, true);
        drop(pending);
        if !is_listed {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(inode));
        }
    }

    /// Files with changes. Those that have none any more are forgotten.
    fn waiting(&self) -> Vec<Arc<Inode>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = waiting.iter().filter_map(Weak::upgrade);
        let unsettled: Vec<Arc<Inode>> = all.filter(|inode| inode.gathering.stays_listed()).collect();
        *waiting = unsettled.iter().map(Arc::downgrade).collect();
        unsettled
    }
}

impl Shared {
    /// Starts the thread that sends what writers have gathered. It ends with the mount.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start_writeback(self: &Arc<Self>) -> std::io::Result<()> {
        let (sender, receiver) = channel();
        let shared = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("writeback".into())
            .spawn(move || send_until_gone(&shared, &receiver))?;
        // A second start would be a fault of this program; the first sender goes on.
        let _ = self.writeback.sender.set(sender);
        Ok(())
    }

    /// Gathers a write to an open file.
    pub(crate) fn gather(
        &self,
        context: &Context,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        mapped: bool,
    ) -> Served<()> {
        let inode = &open.inode;
        Self::refuse(open)?;
        let gathered = self.writeback.gathered.load(Ordering::Relaxed) + data.len();
        let may_gather = gathered <= GATHERED_MAX && self.has_space(context, data.len() as u64);
        let (Some(sender), true) = (self.writeback.sender.get(), may_gather) else {
            self.settle(context, inode);
            Self::refuse(open)?;
            let written = context.block_on(open.file.write(context, offset, data));
            inode.gathering.note_changed(context.latest_epoch());
            return Ok(written.map(drop)?);
        };
        let end = offset + data.len() as u64;
        let mut pending = inode.gathering.lock();
        let meets = |range: &Range<u64>| range.start < end && offset < range.end;
        pending =
            inode.gathering.wait(pending, |pending| pending.sending.iter().any(|(_, range)| meets(range)));
        let before = pending.runs.bytes();
        pending.runs.insert(offset, data);
        // A write is newer than a modification time that was set before.
        pending.change.mtime = None;
        pending.mapped |= mapped;
        let pieces: Vec<(u64, u64, Vec<u8>)> = pending
            .runs
            .take_whole(CHUNK)
            .into_iter()
            .map(|(at, bytes)| (pending.take_order(at..at + bytes.len() as u64), at, bytes))
            .collect();
        let after = pending.runs.bytes();
        let waits = after > 0 || pending.change.changes_record();
        pending.since = if waits { pending.since.or_else(|| Some(Instant::now())) } else { None };
        // Under the lock, so that nobody takes away what was not added yet.
        self.writeback.gathered.fetch_add(after, Ordering::Relaxed);
        self.writeback.gathered.fetch_sub(before, Ordering::Relaxed);
        self.writeback.note_waiting(inode, pending);
        for (order, offset, bytes) in pieces {
            self.writeback.admit(bytes.len());
            let piece = Piece { inode: Arc::clone(inode), file: open.file.clone(), order, offset, bytes };
            if let Err(SendError(Job::Send(lost))) = sender.send(Job::Send(piece)) {
                // The sender ends only with the mount.
                self.arrived(&lost, &Err(Fault::Errno(libc::EIO)));
            }
        }
        Ok(())
    }

    /// Whether so many bytes more are sure to find room in the container.
    fn has_space(&self, context: &Context, bytes: u64) -> bool {
        let space = || self.writeback.space.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut space = space();
            if let Some(left) = space.credit.checked_sub(bytes) {
                space.credit = left;
                return true;
            }
            if space.short.is_some_and(|since| since.elapsed() < SHORT_LIFE) {
                return false;
            }
        }
        // The engine that knows may be away while those that take the data are not.
        let patience = context.deadline();
        context.set_deadline(patience.min(SPACE_LIMIT));
        let free = context.block_on(self.dfs.statfs(context)).map_or(0, |statfs| statfs.free);
        context.set_deadline(patience);
        let mut space = space();
        let is_short = free < FREE_MIN;
        space.credit = if is_short { 0 } else { (free / FREE_SHARE).saturating_sub(bytes) };
        space.short = is_short.then(Instant::now);
        !is_short
    }

    /// Gathers a change of a new file's attributes. `None`: the file is not new, the change must go to the engines.
    pub(crate) fn gather_attributes(&self, inode: &Arc<Inode>, change: &SetAttributes) -> Option<()> {
        self.writeback.sender.get()?;
        let mut pending = inode.gathering.lock();
        if !pending.fresh || pending.settling || change.size.is_some() {
            return None;
        }
        let gathered = &mut pending.change;
        *gathered = SetAttributes {
            mode: change.mode.or(gathered.mode),
            uid: change.uid.or(gathered.uid),
            gid: change.gid.or(gathered.gid),
            size: None,
            atime: change.atime.or(gathered.atime),
            mtime: change.mtime.or(gathered.mtime),
        };
        pending.changed_ns = now_ns();
        pending.since.get_or_insert_with(Instant::now);
        self.writeback.note_waiting(inode, pending);
        Some(())
    }

    /// Brings everything that is gathered of a file to the engines. A failure is told to whoever has it open.
    pub(crate) fn settle(&self, context: &Context, inode: &Inode) {
        let gathering = &inode.gathering;
        let pending = gathering.wait(gathering.lock(), |pending| pending.settling);
        if pending.is_settled() {
            return;
        }
        let last = pending.sent;
        let waits = !pending.sending.is_empty();
        self.settle_own(context, inode, pending, waits);
        let late = |pending: &Pending| pending.sending.iter().any(|(order, _)| *order <= last);
        let pending = gathering.wait(gathering.lock(), |pending| pending.settling || late(pending));
        if pending.change.changes_record() {
            self.settle_own(context, inode, pending, false);
        }
    }

    /// Sends what is gathered and not on its way; without attributes, where those wait for content that is.
    fn settle_own(
        &self,
        context: &Context,
        inode: &Inode,
        mut pending: MutexGuard<'_, Pending>,
        attributes_wait: bool,
    ) {
        let runs = pending.runs.take_all();
        let bytes: usize = runs.iter().map(|(_, run)| run.len()).sum();
        let change = if attributes_wait { SetAttributes::default() } else { pending.take_change() };
        let newest = pending.newest;
        pending.settling = true;
        pending.since = pending.change.changes_record().then(Instant::now);
        let orders: Vec<u64> = runs
            .iter()
            .map(|(at, run)| (*at, *at + run.len() as u64))
            .map(|(start, end)| pending.take_order(start..end))
            .collect();
        drop(pending);
        let begun = Instant::now();
        let outcome = self.write_back(context, inode, &Gathered { runs: &runs, change, newest });
        self.writeback.gathered.fetch_sub(bytes, Ordering::Relaxed);
        if let Err(fault) = &outcome {
            self.lost(inode, fault, begun.elapsed());
        }
        let mut pending = inode.gathering.lock();
        for order in orders {
            pending.arrived(order);
        }
        pending.settling = false;
        pending.sent_change = SetAttributes::default();
        pending.note(&outcome);
        drop(pending);
        inode.gathering.progress.notify_all();
    }

    fn write_back(&self, context: &Context, inode: &Inode, gathered: &Gathered<'_>) -> Served<Epoch> {
        let mut left = *gathered;
        loop {
            let node = inode.node();
            let nameless = inode.lock().nameless.is_some();
            let change = if nameless { SetAttributes::default() } else { left.change };
            let outcome = context.block_on(self.dfs.write_back(context, &node, Gathered { change, ..left }));
            if nameless {
                // Without an entry there is nothing to hold attributes; those here are what is left.
                let newest = outcome?.1;
                inode.lock().apply(&left.change, newest);
                return Ok(newest);
            }
            if !left.change.changes_record() {
                return Ok(outcome?.1);
            }
            // A rename from here that is under way may have taken the name away before this change came, or the record as it
            // was before.
            self.name_changes.wait_for((node.parent, &node.name));
            let is_there = inode.is_named_as(&node);
            match outcome {
                Ok((settled, epoch)) if is_there => {
                    self.inodes.note_record(&mut inode.lock(), &settled);
                    return Ok(epoch);
                }
                Ok((_, newest)) => left = Gathered { runs: &[], newest, ..left },
                Err(Error::Stale(_)) if !is_there => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes pieces side by side on the sender's own context.
    fn send(&self, pieces: &[Piece]) {
        let outcomes = self.with_context(|context| {
            let writes = pieces.iter().map(|piece| piece.file.write(context, piece.offset, &piece.bytes));
            Ok(context.block_on(join_all(writes)))
        });
        match outcomes {
            Ok(outcomes) => {
                for (piece, outcome) in pieces.iter().zip(outcomes) {
                    self.arrived(piece, &outcome.map_err(Fault::from));
                }
            }
            Err(fault) => {
                for piece in pieces {
                    self.arrived(piece, &Err(Fault::Errno(fault.errno())));
                }
            }
        }
    }

    /// A piece has reached the engines, or won't.
    fn arrived(&self, piece: &Piece, outcome: &Served<Epoch>) {
        if let Err(fault) = outcome {
            self.lost(&piece.inode, fault, Duration::ZERO);
        }
        let mut pending = piece.inode.gathering.lock();
        pending.arrived(piece.order);
        pending.note(outcome);
        drop(pending);
        piece.inode.gathering.progress.notify_all();
        self.writeback.release(piece.bytes.len());
    }

    /// Content that the kernel believes in did not reach the engines: it has to ask again.
    fn lost(&self, inode: &Inode, fault: &Fault, took: Duration) {
        self.log(Operation::Write, fault, took);
        let mut known = inode.lock();
        self.inodes.note_write(&mut known);
        (known.cached, known.told) = (None, None);
        drop(known);
        self.expire_attributes(inode.number);
    }

    /// Tells `fsync` or `close` of a failure that none of this handle was told before. One with pages of a mapping may be an
    /// `msync`, which the kernel doesn't tell from `fsync`: the next one is told again.
    fn report(open: &OpenFile, closing: bool) -> Served<()> {
        let mut pending = open.inode.gathering.lock();
        let (failures, errno) = pending.failures;
        let may_be_msync = std::mem::take(&mut pending.mapped) && !closing;
        open.refused.store(failures, Ordering::Relaxed);
        let told = if may_be_msync {
            open.reported.load(Ordering::Relaxed)
        } else {
            open.reported.swap(failures, Ordering::Relaxed)
        };
        if told == failures { Ok(()) } else { Err(Fault::Errno(errno)) }
    }

    /// Fails the first write after a failure, so that nobody goes on behind lost content unawares. `fsync` and `close` still
    /// have to tell of it.
    fn refuse(open: &OpenFile) -> Served<()> {
        let (failures, errno) = open.inode.gathering.lock().failures;
        if open.refused.swap(failures, Ordering::Relaxed) == failures {
            return Ok(());
        }
        Err(Fault::Errno(errno))
    }

    /// `close` of one descriptor, or `fsync`.
    pub(crate) fn settle_open(&self, context: &Context, open: &OpenFile, closing: bool) -> Served<()> {
        if closing {
            // First, so that no change is gathered behind the back of this call.
            open.inode.gathering.end_fresh();
        }
        self.settle(context, &open.inode);
        Self::report(open, closing)
    }

    /// Frees the content of a removed inode: by the sender, since whoever removed it need not wait, or at once when that
    /// has enough to do.
    pub(crate) fn reclaim(&self, context: &Context, removed: Removed) {
        if matches!(removed.node.record.kind, Kind::Symlink | Kind::Fifo | Kind::Socket) {
            return;
        }
        let Some(sender) = self.writeback.sender.get() else { return self.reclaim_now(context, &removed) };
        {
            let mut reclaims = self.writeback.reclaims.lock().unwrap_or_else(PoisonError::into_inner);
            if *reclaims >= RECLAIMS_MAX {
                drop(reclaims);
                return self.reclaim_now(context, &removed);
            }
            *reclaims += 1;
        }
        if let Err(SendError(Job::Reclaim(removed))) = sender.send(Job::Reclaim(removed)) {
            self.reclaim_now(context, &removed);
            self.note_reclaimed(1);
        }
    }

    /// Frees the content of a removed inode. A failure costs space, and nobody who could be told waits.
    fn reclaim_now(&self, context: &Context, removed: &Removed) {
        let all = std::slice::from_ref(removed);
        if let Err(error) = context.block_on(self.dfs.release(context, all, self.leased.client())) {
            lost_space(removed, &error);
        }
    }

    fn reclaim_all(&self, all: &[Removed]) {
        let released = self.with_context(|context| {
            Ok(context.block_on(self.dfs.release(context, all, self.leased.client()))?)
        });
        if let Err(fault) = released {
            for removed in all {
                lost_space(removed, &fault);
            }
        }
        self.note_reclaimed(all.len());
    }

    fn note_reclaimed(&self, count: usize) {
        *self.writeback.reclaims.lock().unwrap_or_else(PoisonError::into_inner) -= count;
        self.writeback.reclaimed.notify_all();
    }

    /// Brings everything to the engines before the mount's process ends.
    pub(crate) fn settle_all(&self) {
        let reclaims = self.writeback.reclaims.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.writeback.reclaimed.wait_timeout_while(reclaims, RECLAIM_LIMIT, |left| *left > 0);
        drop(left);
        let waiting = self.writeback.waiting();
        let settled = self.with_context(|context| {
            for inode in &waiting {
                self.settle(context, inode);
            }
            Ok(())
        });
        if let Err(fault) = settled {
            tracing::error!(files = waiting.len(), errno = fault.errno(), "files lack their last changes");
        }
    }

    /// Sends changes that have waited long enough. What is on its way already comes back to this very thread, so it is
    /// not waited for, and attributes that have to come after it stay.
    fn settle_aged(&self) {
        for inode in self.writeback.waiting() {
            let due = |pending: &Pending| {
                !pending.settling && pending.since.is_some_and(|since| since.elapsed() >= AGE_MAX)
            };
            let settled = self.with_context(|context| {
                let pending = inode.gathering.lock();
                if due(&pending) {
                    let attributes_wait = !pending.sending.is_empty();
                    self.settle_own(context, &inode, pending, attributes_wait);
                }
                Ok(())
            });
            if let Err(fault) = settled {
                self.log(Operation::Write, &fault, Duration::ZERO);
            }
        }
    }
}

fn lost_space(removed: &Removed, error: &dyn std::fmt::Debug) {
    tracing::warn!(
        inode = removed.node.inode_number(),
        ?error,
        "the space of a removed file comes back only with its container"
    );
}

/// Does the sender's jobs until the mount is gone.
fn send_until_gone(shared: &Weak<Shared>, receiver: &Receiver<Job>) {
    let mut scanned = Instant::now();
    loop {
        let first = receiver.recv_timeout(SCAN_PAUSE);
        let Some(shared) = shared.upgrade() else { return };
        match first {
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
            Ok(first) => {
                let jobs = std::iter::once(first).chain(receiver.try_iter().take(JOBS_MAX - 1));
                let (mut pieces, mut removed) = (Vec::new(), Vec::new());
                for job in jobs {
                    match job {
                        Job::Send(piece) => pieces.push(piece),
                        Job::Reclaim(inode) => removed.push(inode),
                    }
                }
                // Somebody may wait for content.
                if !pieces.is_empty() {
                    shared.send(&pieces);
                }
                if !removed.is_empty() {
                    shared.reclaim_all(&removed);
                }
            }
        }
        // A stream of jobs must not keep other files waiting.
        if scanned.elapsed() >= SCAN_PAUSE {
            shared.settle_aged();
            scanned = Instant::now();
        }
    }
}
