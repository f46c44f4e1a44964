//! Writes of data extents: extents that are ready together and lie together go to the device in one transfer.
//!
//! Small extents get their blocks one behind the other, so that many updates take few transfers. The device has the first
//! extents while later updates are still computed: a transfer begins as soon as it is large enough, and that of a large extent
//! at once.
//!
//! The blocks that are written to are free, and reserved for the update. What is written has no effect before the record of the
//! update is in the log, and does no harm if the update is refused or given up meanwhile. The blocks stay reserved until the
//! device has finished with them.
//!
//! An update commits while its data is on the way, so that its record is written at the same time as the data. For a small
//! update this is always so; for a large one only if no small update would have to wait for its data. No client gets a reply
//! before one flush after both. A checkpoint with such a record waits for the data, too.

use crate::state::core::Core;
use crate::state::reservation::Reservation;
use core::cell::{Cell, RefCell};
use core::task::{Poll, Waker};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_media::{BLOCK, IoFuture, MediaError, Slice};
use weir_runtime::sync::Notify;

/// Bytes after which a transfer takes no more neighbours: enough for full bandwidth, and large extents stay apart, so
/// that none waits for another one.
const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// Bytes that are worth a transfer of their own: the device takes some 30 µs for them, about what it costs to begin one
/// more, and updates of 4 KiB take longer to compute. So those behind them don't wait for it, nor it for them.
pub(crate) const READY_BYTES: usize = 64 << 10;

/// Batches of the log without a record of anything small, and that no reader has waited for, from which on large values
/// commit while their data is on the way: what is small and comes then waits for that, as readers of what is written to do,
/// but not for the data of large values that follow.
const LARGE_BATCHES_MIN: u32 = 4;

/// How often the transfer of a large value is tried again that fails after its record: without it the store fails.
const TRIES_MORE: u32 = 3;

/// Most pieces of memory in one transfer: as many blocks as make the bytes above. Systems take 1024 (`IOV_MAX`).
const TRANSFER_SLICES_MAX: usize = 256;

/// Memory that lies together on the device: most values are in one piece.
pub(crate) type Slices = SmallVec<[Slice; 1]>;

/// Takes `len` bytes from the front of slices.
pub(crate) fn take_front(slices: &mut Slices, len: usize) -> Slices {
    let mut taken = Slices::new();
    let mut left = len;
    while left > 0 && !slices.is_empty() {
        let first = &slices[0];
        if first.len() <= left {
            left -= first.len();
            taken.push(slices.remove(0));
        } else {
            let (front, rest) = (first.part(0..left), first.part(left..first.len()));
            taken.push(front.expect("invariant: it is longer"));
            slices[0] = rest.expect("invariant: it is longer");
            left = 0;
        }
    }
    taken
}

/// The parts of an update: most have one.
pub(crate) type Parts = SmallVec<[Part; 1]>;

/// Data of an extent, or of a part of one that lies by itself.
pub(crate) struct Part {
    /// On the device, in bytes.
    pub(crate) offset: u64,
    /// Whole blocks.
    pub(crate) slices: Slices,
}

/// Collects the writes that begin in one turn of the executor.
#[derive(Default)]
pub(crate) struct Writer {
    /// Owned by the task that begins it: its members own the store, which must not own itself should that task never run.
    gathering: RefCell<Weak<Group>>,
    /// Records whose data is on the way, in ascending order.
    ahead: RefCell<VecDeque<u64>>,
    /// Groups and transfers that have begun and not ended.
    under_way: Cell<usize>,
    /// The last of them has ended.
    ended: Notify,
    /// Data of a record has come to its end.
    arrived: Notify,
    /// Batches of the log since the last one that somebody waited for but those who store large values.
    large_batches: Cell<u32>,
    /// Why the data of a record will never be there.
    lost: RefCell<Option<MediaError>>,
}

/// Writes that were begun together.
#[derive(Default)]
struct Group {
    members: RefCell<Vec<Member>>,
    /// Bytes of the parts.
    bytes: Cell<usize>,
    /// The parts with the members that they belong to, until they are begun.
    parts: RefCell<Vec<(usize, Part)>>,
}

/// Members that a group of small writes has room for at first: as many blocks as are worth a transfer.
const GROUP_ROOM: usize = READY_BYTES / BLOCK;

impl Group {
    /// A group that gathers small writes.
    fn with_room() -> Self {
        Self {
            members: RefCell::new(Vec::with_capacity(GROUP_ROOM)),
            bytes: Cell::new(0),
            parts: RefCell::new(Vec::with_capacity(GROUP_ROOM)),
        }
    }
}

/// A write of one or several parts.
struct Member {
    /// The blocks aren't given out again before the device is done with them, even when nobody waits any more.
    held: Option<Reservation>,
    /// Transfers that it waits for.
    left: usize,
    error: Option<MediaError>,
    waker: Option<Waker>,
    /// The record that refers to the data already.
    record: Option<u64>,
}

/// A write that has begun. Who gives it up leaves it running.
pub(crate) struct Writing {
    core: Rc<Core>,
    group: Rc<Group>,
    number: usize,
}

/// What goes to the device at once.
struct Transfer {
    offset: u64,
    len: usize,
    slices: Vec<Slice>,
    members: Vec<usize>,
}

fn len_of(slices: &[Slice]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

/// Joins parts that lie one behind the other.
fn join(mut parts: Vec<(usize, Part)>) -> Vec<Transfer> {
    parts.sort_unstable_by_key(|(_, part)| part.offset);
    let mut transfers: Vec<Transfer> = Vec::new();
    let mut left = parts.len();
    for (member, Part { offset, slices }) in parts {
        let len = len_of(&slices);
        let fits = |last: &&mut Transfer| {
            last.offset + last.len as u64 == offset
                && last.len + len <= TRANSFER_BYTES_MAX
                && last.slices.len() + slices.len() <= TRANSFER_SLICES_MAX
        };
        if let Some(last) = transfers.last_mut().filter(fits) {
            last.len += len;
            last.slices.extend(slices);
            last.members.push(member);
        } else {
            // Most likely all that is left lies behind it.
            let room = left.min(GROUP_ROOM);
            let mut all = Vec::with_capacity(slices.len().max(room));
            all.extend(slices);
            let mut members = Vec::with_capacity(room);
            members.push(member);
            transfers.push(Transfer { offset, len, slices: all, members });
        }
        left -= 1;
    }
    transfers
}

impl Writer {
    /// Begins to write parts, which `held` has reserved. What is large has been told to the device when this returns. When
    /// a transfer fails, everything in it does.
    pub(crate) fn begin(&self, core: &Rc<Core>, held: Reservation, parts: Parts) -> Writing {
        let bytes = parts.iter().map(|part| len_of(&part.slices)).sum::<usize>();
        let group = if bytes >= READY_BYTES { Rc::default() } else { self.gathering(core) };
        let number = group.members.borrow().len();
        let member = Member { held: Some(held), left: parts.len(), error: None, waker: None, record: None };
        group.members.borrow_mut().push(member);
        group.parts.borrow_mut().extend(parts.into_iter().map(|part| (number, part)));
        group.bytes.set(group.bytes.get() + bytes);
        if group.bytes.get() >= READY_BYTES {
            if bytes < READY_BYTES {
                self.gathering.take();
            }
            begin(core, &group);
        }
        Writing { core: Rc::clone(core), group, number }
    }

    /// Waits until the device has the data of all records up to this one, not yet stable.
    ///
    /// # Errors
    /// When the device has failed to take data of any record: what the index says isn't there.
    pub(crate) async fn written(&self, record: u64) -> Result<(), MediaError> {
        loop {
            if let Some(error) = &*self.lost.borrow() {
                return Err(error.clone());
            }
            if self.ahead.borrow().front().is_none_or(|first| *first > record) {
                return Ok(());
            }
            self.arrived.notified().await;
        }
    }

    /// Whether a batch up to this record has large values only, and the data of some is on the way.
    pub(crate) fn awaits_large(&self, record: u64) -> bool {
        self.large_batches.get() > 0 && self.ahead.borrow().front().is_some_and(|first| *first <= record)
    }

    /// Takes note of a batch of the log, and whether it has records of anything small.
    pub(crate) fn note_batch(&self, has_small: bool) {
        self.large_batches.set(if has_small { 0 } else { self.large_batches.get().saturating_add(1) });
    }

    /// Takes note of a reader who waits for the log.
    pub(crate) fn note_reader(&self) {
        self.large_batches.set(0);
    }

    /// Whether large values commit while their data is on the way.
    pub(crate) fn hurries(&self) -> bool {
        self.large_batches.get() >= LARGE_BATCHES_MIN
    }

    /// Waits until nothing is on its way to the device.
    pub(crate) async fn rest(&self) {
        while self.under_way.get() > 0 {
            self.ended.notified().await;
        }
    }

    fn end_one(&self) {
        self.under_way.set(self.under_way.get() - 1);
        if self.under_way.get() == 0 {
            self.ended.notify_waiters();
        }
    }

    /// The data of a record has come to its end. Who waits for that is to be told.
    fn arrive(&self, record: u64, error: Option<MediaError>) {
        if let Some(error) = error {
            self.lost.borrow_mut().get_or_insert(error);
        }
        let mut ahead = self.ahead.borrow_mut();
        // Mostly they come in their order.
        if ahead.front() == Some(&record) {
            ahead.pop_front();
        } else if let Ok(at) = ahead.binary_search(&record) {
            ahead.remove(at);
        }
    }

    /// The group that gathers writes; what there is of it is begun when all who were woken together have added theirs.
    fn gathering(&self, core: &Rc<Core>) -> Rc<Group> {
        if let Some(group) = self.gathering.borrow().upgrade() {
            return group;
        }
        let group = Rc::new(Group::with_room());
        *self.gathering.borrow_mut() = Rc::downgrade(&group);
        let (core, later) = (Rc::clone(core), Rc::clone(&group));
        self.under_way.set(self.under_way.get() + 1);
        core.rt.clone().spawn(async move {
            let gathering = &core.writer.gathering;
            if core::ptr::eq(gathering.borrow().as_ptr(), Rc::as_ptr(&later)) {
                gathering.take();
            }
            begin(&core, &later);
            core.writer.end_one();
        });
        group
    }
}

impl Writing {
    /// Waits for the end and gives back the reservation. The data is on the device then, not yet stable.
    ///
    /// # Errors
    /// When the device fails; the blocks are free again once all writes that were begun with these have ended.
    pub(crate) async fn end(self) -> Result<Reservation, MediaError> {
        core::future::poll_fn(|cx| {
            let member = &mut self.group.members.borrow_mut()[self.number];
            if member.left > 0 {
                member.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let closed = || MediaError::Closed { device: self.core.device.name().to_owned() };
            Poll::Ready(match member.error.take() {
                Some(error) => Err(error),
                None => member.held.take().ok_or_else(closed),
            })
        })
        .await
    }

    /// Why it has failed so far.
    pub(crate) fn error(&self) -> Option<MediaError> {
        self.group.members.borrow()[self.number].error.clone()
    }

    /// A record refers to the data: the blocks belong to the index, and the record isn't durable without them.
    pub(crate) fn commit(self, record: u64) {
        let member = &mut self.group.members.borrow_mut()[self.number];
        if let Some(mut held) = member.held.take() {
            held.keep();
        }
        if member.left > 0 {
            member.record = Some(record);
            self.core.writer.ahead.borrow_mut().push_back(record);
        }
    }
}

/// Begins the transfers of a group, if that hasn't been done.
fn begin(core: &Rc<Core>, group: &Rc<Group>) {
    let transfers = join(group.parts.take());
    if transfers.is_empty() {
        return;
    }
    {
        let mut members = group.members.borrow_mut();
        members.iter_mut().for_each(|member| member.left = 0);
        for number in transfers.iter().flat_map(|transfer| &transfer.members) {
            members[*number].left += 1;
        }
    }
    let is_large = group.bytes.get() >= READY_BYTES && group.members.borrow().len() == 1;
    for Transfer { offset, slices, members, .. } in transfers {
        let again = is_large.then(|| (offset, slices.iter().cloned().collect()));
        let write = core.device.write(offset, slices);
        core.writer.under_way.set(core.writer.under_way.get() + 1);
        core.rt.spawn(end(Rc::clone(core), Rc::clone(group), write, again, members));
    }
}

/// Waits for a transfer and tells its members. `again` says how to try it once more.
async fn end(
    core: Rc<Core>,
    group: Rc<Group>,
    write: IoFuture<()>,
    again: Option<(u64, Slices)>,
    members: Vec<usize>,
) {
    let mut result = write.await;
    if let Some((offset, slices)) = again {
        let has_record = || members.iter().any(|number| group.members.borrow()[*number].record.is_some());
        let mut left = TRIES_MORE;
        while result.is_err() && left > 0 && has_record() {
            result = core.device.write(offset, slices.to_vec()).await;
            left -= 1;
        }
    }
    let mut wakers = Vec::with_capacity(members.len());
    for number in members {
        let member = &mut group.members.borrow_mut()[number];
        member.left -= 1;
        if let Err(error) = &result {
            member.error.get_or_insert_with(|| error.clone());
        }
        if member.left == 0 {
            wakers.extend(member.waker.take());
            if let Some(record) = member.record {
                core.writer.arrive(record, member.error.clone());
            }
        }
    }
    core.writer.arrived.notify_waiters();
    wakers.into_iter().for_each(Waker::wake);
    core.writer.end_one();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use weir_media::DmaBuf;

    proptest! {
        #[test]
        fn transfers_put_all_parts_where_they_belong(lens in proptest::collection::vec((1usize..400, 0u64..3), 1..30)) {
            let mut parts = Vec::new();
            let mut wanted = BTreeMap::new();
            let mut offset = 0;
            for (member, (blocks, gap)) in lens.into_iter().enumerate() {
                offset += gap * BLOCK as u64;
                let mut buffer = DmaBuf::new(blocks * BLOCK);
                buffer.fill(u8::try_from(member).expect("few"));
                for block in 0..blocks as u64 {
                    wanted.insert(offset + block * BLOCK as u64, member);
                }
                parts.push((member, Part { offset, slices: Slices::from([buffer.into()]) }));
                offset += (blocks * BLOCK) as u64;
            }
            parts.reverse();
            let mut found = BTreeMap::new();
            for transfer in join(parts) {
                prop_assert_eq!(transfer.len, len_of(&transfer.slices));
                prop_assert!(transfer.len <= TRANSFER_BYTES_MAX || transfer.members.len() == 1);
                let bytes: Vec<u8> = transfer.slices.iter().flat_map(|slice| slice.to_vec()).collect();
                for (at, block) in (transfer.offset..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
                    let member = usize::from(block[0]);
                    prop_assert!(transfer.members.contains(&member));
                    prop_assert!(found.insert(at, member).is_none());
                }
            }
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn neighbours_share_a_transfer_until_it_is_full() {
        let part = |number: u64, blocks: usize| {
            (
                0,
                Part {
                    offset: number * BLOCK as u64,
                    slices: Slices::from([DmaBuf::new(blocks * BLOCK).into()]),
                },
            )
        };
        assert_eq!(join((0..32).map(|number| part(number, 1)).collect()).len(), 1);
        assert_eq!(join(vec![part(0, 256), part(256, 256)]).len(), 2);
        assert_eq!(join(vec![part(0, 1), part(2, 1)]).len(), 2);
        assert_eq!(join((0..300).map(|number| part(number, 1)).collect()).len(), 2);
    }
}
