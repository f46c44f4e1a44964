//! Write-behind: writes to an open file are gathered here and sent to the engines in large blocks, and a new file's
//! attributes with them.
//!
//! `close` and `fsync` return when the engines have everything on stable media, and an error since the last such call
//! is theirs to report; other clients see a file's changes once it is closed (close-to-open). What is gathered waits
//! for at most a second, and whole chunks go at once, beside the writer: [`super::pump`] sends them, in the order of
//! [`super::order`]. A file whose engine is away keeps no other one waiting: it may hold a part of what a mount gathers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use weir_client::{Context, Epoch};
use weir_dfs::{Error, Removed, SetAttributes, UnsentData};
use weir_runtime::real::Remote;

use super::attributes::now_ns;
use super::gathering::{Pending, UnsentWrite};
use super::handles::OpenFile;
use super::inodes::Inode;
use super::order::{Batch, SendScope};
use super::pump::{AGE_MAX, Job};
use super::worker::{Fault, Served, Shared};
use crate::kept::{InheritedWrite, KeptChange, KeptWrite, Slot};
use crate::metrics::Operation;

/// The share of one file in the bytes that the engines don't have, beyond which its writers wait.
const FILE_SHARE: u64 = 5;

/// Part of the free space that a mount may write before it asks for it again: others write, too.
const FREE_SHARE: u64 = 8;

/// How long the question for free space may take.
const SPACE_LIMIT: Duration = Duration::from_secs(1);

/// How long an answer that space is short is believed.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Removed inodes that may wait for the sender; a client that dies leaves the space of those to their container.
const RECLAIMS_MAX: usize = 256;

/// How long the end of a mount waits for them.
const RECLAIM_LIMIT: Duration = Duration::from_secs(10);

/// How often it is looked whether what the process before this one has gathered is sent.
const INHERITED_PAUSE: Duration = Duration::from_millis(10);

/// How often it is looked whether a name is still being changed.
const NAME_PAUSE: Duration = Duration::from_millis(2);

/// The gathering of a whole mount.
#[derive(Default)]
pub struct Writeback {
    /// Bytes that the engines don't have, in the whole mount, beyond which writes go straight to the engines.
    limit: u64,
    pub(super) sender: OnceLock<Sender<Job>>,
    /// The door to the sender's thread, once it has a context.
    pub(super) remote: OnceLock<Remote>,
    /// Files with changes, for the sender to look at.
    waiting: Mutex<Vec<Weak<Inode>>>,
    /// Bytes that the engines don't have.
    unsent: AtomicU64,
    /// Those of them whose engines don't answer, as was counted last, and what came since.
    stalled: AtomicU64,
    space: Mutex<Space>,
    /// Removed inodes whose content the sender has yet to free.
    reclaims: Mutex<usize>,
    reclaimed: Condvar,
}

impl std::fmt::Debug for Writeback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback")
            .field("unsent", &self.unsent)
            .field("stalled", &self.stalled)
            .finish_non_exhaustive()
    }
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
    /// Gathering of at most so many bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Bytes of all files whose engines don't answer, beyond which their writers wait: two fifths. The rest is for files whose
    /// engines answer.
    fn stalled_max(&self) -> u64 {
        self.limit / 5 * 2
    }

    /// Bytes that the engines don't have yet.
    pub fn bytes(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Takes note of how much waits for engines that don't answer.
    pub(super) fn note_stalled(&self, bytes: u64) {
        self.stalled.store(bytes, Ordering::Relaxed);
    }

    /// Whether the mount may hold so many bytes more.
    fn has_room(&self, bytes: u64, stalls: bool) -> bool {
        let (unsent, stalled) = (self.bytes() + bytes, self.stalled.load(Ordering::Relaxed));
        unsent <= self.limit && (stalls || unsent.saturating_sub(stalled) <= self.limit - self.stalled_max())
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
    pub(super) fn waiting(&self) -> Vec<Arc<Inode>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = waiting.iter().filter_map(Weak::upgrade);
        let unsettled: Vec<Arc<Inode>> = all.filter(|inode| inode.gathering.stays_listed()).collect();
        *waiting = unsettled.iter().map(Arc::downgrade).collect();
        unsettled
    }
}

/// There is no room to keep a write for a successor of this process, so that it may not be gathered.
#[derive(Debug)]
struct NoRoom;

impl Shared {
    /// Gathers a write to an open file.
    pub(crate) fn gather(
        &self,
        context: &Context,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        mapped: bool,
    ) -> Served<()> {
        let (inode, len) = (&open.inode, data.len() as u64);
        Self::refuse(open)?;
        let may_gather = self.writeback.sender.get().is_some()
            && !inode.gathering.is_direct()
            && self.has_space(context, len);
        let admitted = may_gather.then(|| self.admit(context, inode, len)).flatten();
        let admitted =
            admitted.and_then(|pending| Some((self.keep_write(inode, offset, data).ok()?, pending)));
        let Some((kept, mut pending)) = admitted else {
            self.settle(context, inode);
            Self::refuse(open)?;
            return Self::write_in_order(context, open, offset, data).map(drop);
        };
        let added = pending.order.insert(offset, data) as u64;
        pending.kept.extend(kept.map(|kept| UnsentWrite::new(kept, offset..offset + len)));
        self.writeback.unsent.fetch_add(added, Ordering::Relaxed);
        if pending.is_stalled() {
            self.writeback.stalled.fetch_add(added, Ordering::Relaxed);
        }
        // A write is newer than a modification time that was set before.
        pending.change.mtime = None;
        self.keep_written(&mut pending);
        pending.mapped |= mapped;
        pending.since.get_or_insert_with(Instant::now);
        let file = pending.file.get_or_insert_with(|| open.file.clone());
        let chunk = file.chunk_size();
        let goes = pending.order.completes(&(offset..offset + len), chunk);
        self.writeback.note_waiting(inode, pending);
        if goes {
            // Without a sender it waits for `close` or `fsync`.
            let _ = self.hand_over(Job::Send(Arc::clone(inode)));
        }
        Ok(())
    }

    /// Keeps a write for a successor of this process, if one may come.
    fn keep_write(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Option<KeptWrite>, NoRoom> {
        let Some(kept) = &self.kept else { return Ok(None) };
        kept.put_write(inode.number, offset, data).map(Some).ok_or(NoRoom)
    }

    /// Gathers a write again that a process before this one has gathered.
    pub(super) fn gather_again(&self, inode: &Arc<Inode>, write: InheritedWrite) -> Served<()> {
        let InheritedWrite { kept, offset, data, .. } = write;
        let file = self.dfs.file(&inode.node())?;
        let mut pending = inode.gathering.lock();
        let added = pending.order.insert(offset, &data) as u64;
        self.writeback.unsent.fetch_add(added, Ordering::Relaxed);
        pending.kept.push(UnsentWrite::new(kept, offset..offset + data.len() as u64));
        pending.file.get_or_insert(file);
        self.note_inherited(inode, pending);
        Ok(())
    }

    /// Keeps the attributes that are gathered of a file for a successor of this process, if one may come. Those that are on their way
    /// have arrived.
    fn keep_change(&self, inode: &Inode, pending: &mut Pending) {
        let Some(kept) = &self.kept else { return };
        let change = KeptChange::of(inode.number, &pending.change, pending.changed_ns);
        let slot = kept.put_change(pending.kept_change.map(|(slot, _)| slot), &change);
        pending.kept_change = Some((slot, change));
    }

    /// Notes in what is kept of attributes, also of those on their way, that a write came after them: a successor sends both anew.
    fn keep_written(&self, pending: &mut Pending) {
        let (Some(kept), Some((slot, change))) = (&self.kept, pending.kept_change) else { return };
        let rest = change.before_write();
        match rest {
            Some(rest) if rest != change => {
                kept.put_change(Some(slot), &rest);
            }
            Some(_) => {}
            None => kept.drop_change(slot),
        }
        pending.kept_change = rest.map(|rest| (slot, rest));
    }

    /// Gathers attributes again that a process before this one has gathered.
    pub(super) fn gather_attributes_again(&self, inode: &Arc<Inode>, slot: Slot, kept: KeptChange) {
        let mut pending = inode.gathering.lock();
        (pending.change, pending.changed_ns) = (kept.attributes(), kept.changed_ns);
        pending.kept_change = Some((slot, kept));
        self.note_inherited(inode, pending);
    }

    /// Has the sender send what a process before this one has gathered of a file, as soon as it looks.
    fn note_inherited(&self, inode: &Arc<Inode>, mut pending: MutexGuard<'_, Pending>) {
        pending.is_inherited = true;
        let now = Instant::now();
        pending.since = Some(now.checked_sub(AGE_MAX).unwrap_or(now));
        self.writeback.note_waiting(inode, pending);
    }

    /// Whether an inode has changes of the process before this one that the engines don't have. This process doesn't know the end of
    /// its content, which is to be asked for when they have.
    pub(super) fn is_untold(&self, number: u64) -> bool {
        let inode = self.kept.as_ref().and_then(|_| self.inodes.get(number));
        inode.is_some_and(|inode| inode.gathering.is_unsent_of_another() && inode.lock().told.is_none())
    }

    /// Waits until an inode is no more as [`Shared::is_untold`] says.
    pub(super) async fn until_told(&self, context: &Context, number: u64) {
        while self.is_untold(number) {
            context.runtime().sleep(INHERITED_PAUSE).await;
        }
    }

    /// Waits until a file may hold so many bytes more. `None`: the mount may not.
    fn admit<'a>(&self, context: &Context, inode: &'a Inode, len: u64) -> Option<MutexGuard<'a, Pending>> {
        let gathering = &inode.gathering;
        let mut pending = gathering.lock();
        loop {
            if pending.direct > 0 || self.direct.has_readers() {
                return None;
            }
            let stalls = pending.is_stalled();
            let held = &self.writeback;
            let is_full = pending.order.unsent() + len > held.limit / FILE_SHARE
                || (stalls && held.stalled.load(Ordering::Relaxed) + len > held.stalled_max());
            if !is_full {
                return self.writeback.has_room(len, stalls).then_some(pending);
            }
            if pending.order.is_sending() {
                // It arrives, or its time is over.
                pending = gathering.wait_once(pending);
            } else {
                drop(pending);
                self.settle(context, inode);
                pending = gathering.lock();
            }
        }
    }

    /// Writes to a file of which nothing is gathered: what lengthens it chunk by chunk.
    pub(crate) fn write_in_order(
        context: &Context,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
    ) -> Served<Epoch> {
        let gathering = &open.inode.gathering;
        let end = gathering.lock().order.known_end();
        let written = context.block_on(open.file.write_in_order(context, offset, data, end));
        gathering.note_changed(context.latest_epoch());
        let epoch = written?;
        let mut pending = gathering.lock();
        let end = pending.order.known_end().max(offset + data.len() as u64);
        pending.order.learn_end(end);
        Ok(epoch)
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
        // A full pool fails the write that does not fit: several mounts may hold what they can.
        let is_short = free < 2 * self.writeback.limit;
        space.credit = if is_short { 0 } else { (free / FREE_SHARE).saturating_sub(bytes) };
        space.short = is_short.then(Instant::now);
        !is_short
    }

    /// Gathers a change of a new file's attributes. `None`: the file is not new, the change must go to the engines.
    pub(crate) fn gather_attributes(&self, inode: &Arc<Inode>, change: &SetAttributes) -> Option<()> {
        self.writeback.sender.get()?;
        let mut pending = inode.gathering.lock();
        let may_wait = pending.fresh && !self.direct.has_readers();
        if !may_wait || pending.sent_change.is_some() || change.size.is_some() {
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
        self.keep_change(inode, &mut pending);
        pending.since.get_or_insert_with(Instant::now);
        self.writeback.note_waiting(inode, pending);
        Some(())
    }

    /// Sends everything that is gathered of a file to the engines. A failure is reported to the processes that have it
    /// open.
    pub(crate) fn settle(&self, context: &Context, inode: &Inode) {
        let gathering = &inode.gathering;
        let mut pending = gathering.lock();
        if pending.is_settled() {
            return;
        }
        // What others write behind it from now on isn't waited for.
        let end = pending.order.end();
        while pending.order.holds_below(end) {
            pending = match pending.take(SendScope::Together) {
                Some((batch, file)) => {
                    let change = if pending.has_free_change(true) {
                        pending.take_change()
                    } else {
                        SetAttributes::default()
                    };
                    let newest = pending.newest;
                    drop(pending);
                    let gathered = UnsentData { file: Some(&file), runs: &batch.runs, change, newest };
                    self.settle_part(context, inode, Some(&batch), gathered);
                    gathering.lock()
                }
                // Something has to arrive before.
                None => gathering.wait_once(pending),
            };
        }
        let last = pending.order.last();
        let mut pending =
            gathering.wait(pending, |pending| pending.order.awaits(last) || pending.sent_change.is_some());
        if pending.change.changes_record() {
            let (change, newest) = (pending.take_change(), pending.newest);
            drop(pending);
            self.settle_part(context, inode, None, UnsentData { file: None, runs: &[], change, newest });
        }
    }

    fn settle_part(&self, context: &Context, inode: &Inode, batch: Option<&Batch>, gathered: UnsentData<'_>) {
        let (written, changed) = context.block_on(self.write_back(context, inode, gathered));
        if let Some(batch) = batch {
            self.arrived(inode, batch, &written);
        }
        if gathered.change.changes_record() {
            self.changed(inode, &changed);
        }
    }

    /// Writes content, changes attributes, and tells what became of each.
    pub(super) async fn write_back(
        &self,
        context: &Context,
        inode: &Inode,
        gathered: UnsentData<'_>,
    ) -> (Served<Epoch>, Served<()>) {
        if gathered.change.mtime.is_none() || !inode.gathering.is_inherited() {
            return self.write_back_known(context, inode, gathered).await;
        }
        // The time covers all content that was written before it was set, also by the process before this one.
        let writes = UnsentData { change: SetAttributes::default(), ..gathered };
        let (written, _) = self.write_back_known(context, inode, writes).await;
        let newest = match self.newest(context, inode).await {
            Ok(newest) => newest.max(gathered.newest),
            Err(fault) => return (written, Err(fault)),
        };
        let change = UnsentData { runs: &[], newest, ..gathered };
        let (_, changed) = self.write_back_known(context, inode, change).await;
        (written, changed)
    }

    /// The epoch of the newest change of a file's content.
    async fn newest(&self, context: &Context, inode: &Inode) -> Served<Epoch> {
        let file = self.dfs.file(&inode.node())?;
        Ok(file.size_and_epoch(context).await?.1)
    }

    async fn write_back_known(
        &self,
        context: &Context,
        inode: &Inode,
        gathered: UnsentData<'_>,
    ) -> (Served<Epoch>, Served<()>) {
        let (mut left, mut first) = (gathered, None);
        loop {
            let node = inode.node();
            let nameless = inode.lock().nameless.is_some();
            let change = if nameless { SetAttributes::default() } else { left.change };
            let (written, changed) = self.dfs.write_back(context, &node, UnsentData { change, ..left }).await;
            let newest = written.as_ref().map_or(left.newest, |epoch| *epoch);
            let written = first.take().unwrap_or_else(|| written.map_err(Fault::from));
            if nameless {
                // Without an entry there is nothing to hold attributes; those here are what is left.
                let mut known = inode.lock();
                known.apply(&left.change, newest);
                self.inodes.keep_again(&mut known);
            }
            if !change.changes_record() {
                return (written, Ok(()));
            }
            // A rename from here that is under way may have taken the name away before this change came, or the record as it
            // was before.
            let order = self.name_changes.last();
            while self.name_changes.awaits(order, (node.parent, &node.name)) {
                context.runtime().sleep(NAME_PAUSE).await;
            }
            let is_there = inode.is_named_as(&node);
            match changed {
                Ok(changed) if is_there => {
                    self.inodes.note_record(&mut inode.lock(), &changed);
                    return (written, Ok(()));
                }
                Ok(_) => {}
                Err(Error::Stale(_)) if !is_there => {}
                Err(error @ Error::Stale(_)) => match self.lost_name(context, inode).await {
                    Ok(true) => {}
                    Ok(false) => return (written, Err(error.into())),
                    Err(fault) => return (written, Err(fault)),
                },
                Err(error) => return (written, Err(error.into())),
            }
            left = UnsentData { runs: &[], newest, ..left };
            first = Some(written);
        }
    }

    /// A batch has reached the engines, or won't.
    pub(super) fn arrived(&self, inode: &Inode, batch: &Batch, outcome: &Served<Epoch>) {
        if let Err(fault) = outcome {
            self.lost(inode, fault, Duration::ZERO);
        }
        let mut pending = inode.gathering.lock();
        let dropped = pending.order.arrived(batch.number, outcome.is_ok());
        let gone = pending.let_go(batch);
        pending.moved = Some(Instant::now());
        pending.note(outcome);
        drop(pending);
        if let Some(kept) = &self.kept {
            for write in gone {
                kept.drop_write(write);
            }
        }
        self.writeback.unsent.fetch_sub((batch.bytes() + dropped) as u64, Ordering::Relaxed);
        inode.gathering.progress.notify_all();
    }

    /// Attributes have reached the engines, or won't.
    pub(super) fn changed(&self, inode: &Inode, outcome: &Served<()>) {
        let mut pending = inode.gathering.lock();
        pending.sent_change = None;
        if let (Some(kept), Some((slot, _))) = (&self.kept, pending.kept_change.take()) {
            kept.drop_change(slot);
        }
        if let Err(fault) = outcome {
            pending.note_failure(fault);
        }
        drop(pending);
        if let Err(fault) = outcome {
            self.lost(inode, fault, Duration::ZERO);
        }
        inode.gathering.progress.notify_all();
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

    /// Fails the first write after a failure, so that no program goes on behind lost content unawares. `fsync` and
    /// `close` still have to report it.
    pub(super) fn refuse(open: &OpenFile) -> Served<()> {
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

    /// Frees the content of a removed inode: by the sender, so that the removal need not wait, or at once when the
    /// sender has enough to do.
    pub(crate) fn reclaim(&self, context: &Context, removed: Removed) {
        if !removed.node.record.kind.has_content() {
            return;
        }
        {
            let mut reclaims = self.writeback.reclaims.lock().unwrap_or_else(PoisonError::into_inner);
            if *reclaims >= RECLAIMS_MAX {
                drop(reclaims);
                return self.reclaim_now(context, &removed);
            }
            *reclaims += 1;
        }
        if let Some(Job::Reclaim(removed)) = self.hand_over(Job::Reclaim(removed)) {
            self.reclaim_now(context, &removed);
            self.note_reclaimed(1);
        }
    }

    /// Has other clients find out that a file which is open here was removed: they may have it open, too. The sender
    /// does that, so that the removal need not wait.
    pub(crate) fn announce(&self, context: &Context, inode: Arc<Inode>) {
        if let Some(Job::Announce(inode)) = self.hand_over(Job::Announce(inode)) {
            context.block_on(self.announce_now(context, &[inode]));
        }
    }

    /// As [`Shared::announce`], of several, now.
    pub(super) async fn announce_now(&self, context: &Context, files: &[Arc<Inode>]) {
        // Without a lease, nothing keeps others from freeing an orphan that is open here.
        let Some(own) = self.leased.client() else { return };
        let removed = files.iter().filter_map(|inode| inode.lock().removed.clone());
        let removed: Vec<Removed> = removed.collect();
        match self.dfs.announce(context, &removed, own).await {
            Ok(is_shared) => {
                for inode in files {
                    let mut known = inode.lock();
                    known.shared |= is_shared && known.removed.is_some();
                    self.inodes.keep(&mut known);
                }
            }
            Err(error) => tracing::debug!(%error, "other clients don't find out yet that files were removed"),
        }
    }

    /// Frees the content of a removed inode. A failure costs space, and no caller waits for it.
    fn reclaim_now(&self, context: &Context, removed: &Removed) {
        context.block_on(self.free(context, std::slice::from_ref(removed)));
    }

    /// As [`Shared::reclaim_now`], of several.
    pub(super) async fn free(&self, context: &Context, removed: &[Removed]) {
        if let Err(error) = self.dfs.release(context, removed, self.leased.client()).await {
            for removed in removed {
                tracing::warn!(inode = removed.node.inode_number(), %error,
                    "the space of a removed file comes back only with its container");
            }
        }
    }

    pub(super) fn note_reclaimed(&self, count: usize) {
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
}
