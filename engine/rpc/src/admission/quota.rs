//! Bounds the requests that a context has in flight: credits for each peer, and a quota over all peers.
//!
//! Requests beyond that wait here and not at the server. Peers are served round-robin, so that a long queue for
//! one peer doesn't delay a request to another. Urgent requests go first, then retries, then the rest. Urgent
//! requests may also use a small reserve, because membership matters most when everything else is stuck.

use crate::config::Priority;
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;

/// Credits of a peer, and of the quota, that only urgent requests may use: a ping, a relayed ping and a
/// suspicion.
const URGENT_RESERVE: usize = 4;

/// Waiters that gave up before they are removed from a queue.
const DEAD_MAX: usize = 32;

/// Scheduling class of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Membership messages.
    Urgent = 0,
    /// Retries, and requests that complete earlier work.
    Retry = 1,
    /// All others.
    Normal = 2,
}

impl Class {
    /// Class of a call's first try.
    pub(crate) const fn of(priority: Priority) -> Self {
        match priority {
            Priority::Urgent => Self::Urgent,
            Priority::Early => Self::Retry,
            Priority::Normal => Self::Normal,
        }
    }

    /// Class of the same request when it is sent again.
    pub(crate) const fn again(self) -> Self {
        match self {
            Self::Urgent => Self::Urgent,
            Self::Retry | Self::Normal => Self::Retry,
        }
    }

    /// Permits beyond the limits that this class may use.
    const fn reserve(self) -> usize {
        match self {
            Self::Urgent => URGENT_RESERVE,
            Self::Retry | Self::Normal => 0,
        }
    }
}

const CLASSES: [Class; 3] = [Class::Urgent, Class::Retry, Class::Normal];

/// State of a waiter.
enum WaiterState {
    Waiting(Option<Waker>),
    /// It holds a permit that it has not taken up yet.
    Granted,
    /// It gave up, and still stands in its queue.
    GaveUp,
}

/// Waiters, in reused slots: in steady state, waiting allocates nothing.
#[derive(Default)]
struct Waiters {
    all: Vec<WaiterState>,
    free: Vec<usize>,
}

impl Waiters {
    fn add(&mut self) -> usize {
        let standing = WaiterState::Waiting(None);
        if let Some(at) = self.free.pop() {
            self.all[at] = standing;
            return at;
        }
        self.all.push(standing);
        self.all.len() - 1
    }

    fn has_given_up(&self, waiter: usize) -> bool {
        matches!(self.all[waiter], WaiterState::GaveUp)
    }
}

#[derive(Default)]
struct Lane {
    /// Requests in flight.
    used: usize,
    waiting: [VecDeque<usize>; CLASSES.len()],
    /// Upper bound of the waiters that gave up and still stand in a queue.
    dead: usize,
    /// Whether the lane is in the ring of a class.
    listed: [bool; CLASSES.len()],
}

impl Lane {
    fn has_credit(&self, class: Class, credits: usize) -> bool {
        self.used < credits + class.reserve()
    }

    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Waiters, with those that gave up and were not removed yet.
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }
}

struct State {
    /// Most requests in flight to a single peer.
    credits: usize,
    /// Most requests in flight to all peers.
    total: usize,
    used: usize,
    /// No peer may have more in flight than it leaves to all others.
    leaves_room: bool,
    lanes: Vec<Lane>,
    waiters: Waiters,
    /// Lanes without a peer.
    free: Vec<usize>,
    /// Waiters in all queues, with those that gave up and were not removed yet. At 0 there is no waiter to grant a
    /// permit to.
    queued: usize,
    /// For each class the lanes that have a waiter and a credit, in round-robin order.
    rings: [VecDeque<usize>; CLASSES.len()],
}

/// Credits for each peer (a lane) and a quota over all of them. Clones are the same quota.
#[derive(Clone)]
pub(crate) struct Quota(Rc<RefCell<State>>);

/// Identifies a peer's lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaneId(usize);

impl Quota {
    pub(crate) fn new(credits: usize, total: usize) -> Self {
        let rings = core::array::from_fn(|_| VecDeque::new());
        Self(Rc::new(RefCell::new(State {
            credits: credits.max(1),
            total: total.max(1),
            used: 0,
            leaves_room: false,
            lanes: Vec::new(),
            waiters: Waiters::default(),
            free: Vec::new(),
            queued: 0,
            rings,
        })))
    }

    /// The same, where a peer may have no more in flight than it leaves to all others. Peers that return nothing
    /// then leave room to the next peer: a half, a quarter, and so on while any is left.
    pub(crate) fn leaving_room(credits: usize, total: usize) -> Self {
        let quota = Self::new(credits, total);
        quota.0.borrow_mut().leaves_room = true;
        quota
    }

    /// A lane for one more peer, until it is vacated.
    fn lane(&self) -> LaneId {
        let mut state = self.0.borrow_mut();
        if let Some(lane) = state.free.pop() {
            return LaneId(lane);
        }
        state.lanes.push(Lane::default());
        LaneId(state.lanes.len() - 1)
    }

    /// Registers one more peer.
    pub(crate) fn place(&self) -> PeerQuota {
        PeerQuota { quota: self.clone(), lane: self.lane() }
    }

    /// The peer is gone. What it still has in flight or waiting counts against the next peer of its lane until
    /// it ends.
    fn vacate(&self, lane: LaneId) {
        self.clear(lane);
        self.0.borrow_mut().free.push(lane.0);
    }

    /// Removes the waiters of a lane that gave up.
    fn clear(&self, lane: LaneId) {
        let state = &mut *self.0.borrow_mut();
        let (waiters, queued) = (&mut state.waiters, &mut state.queued);
        let Some(entry) = state.lanes.get_mut(lane.0) else { return };
        entry.dead = 0;
        for queue in &mut entry.waiting {
            queue.retain(|waiter| {
                let gone = waiters.has_given_up(*waiter);
                if gone {
                    waiters.free.push(*waiter);
                    *queued -= 1;
                }
                !gone
            });
        }
    }

    /// A permit of this lane, if it need not wait for one.
    #[inline(always)]
    pub(crate) fn try_acquire(&self, lane: LaneId, class: Class) -> Option<Permit> {
        let mut state = self.0.borrow_mut();
        let free = state.lanes.get(lane.0).is_some_and(|entry| {
            entry.has_credit(class, state.credits)
                && state.may_grow(entry.used, class)
                && (state.queued == 0 || entry.is_empty())
        });
        if !free || !state.has_room(class) {
            return None;
        }
        state.take(lane.0);
        drop(state);
        Some(Permit { quota: self.clone(), lane })
    }

    /// Waits for a permit of this lane.
    pub(crate) fn acquire(&self, lane: LaneId, class: Class) -> Acquire {
        if let Some(permit) = self.try_acquire(lane, class) {
            return Acquire { permit: Some(permit), waiting: None };
        }
        let waiter = self.0.borrow_mut().enqueue(lane.0, class);
        // An urgent waiter may use the reserve at once.
        self.grant();
        Acquire { permit: None, waiting: Some((self.clone(), lane, waiter)) }
    }

    /// Requests in flight.
    pub(crate) fn used(&self) -> usize {
        self.0.borrow().used
    }

    /// Waiters; some may have given up.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.0.borrow();
        state.lanes.iter().map(Lane::len).sum()
    }

    /// Number of lanes.
    #[cfg(test)]
    pub(crate) fn lanes(&self) -> usize {
        self.0.borrow().lanes.len()
    }

    fn release(&self, lane: LaneId) {
        {
            let mut state = self.0.borrow_mut();
            state.give_back(lane.0);
            if state.queued == 0 {
                return;
            }
            state.list(lane.0);
        }
        self.grant();
    }

    /// Grants permits to waiters while there are any.
    fn grant(&self) {
        loop {
            let granted = {
                let mut state = self.0.borrow_mut();
                let Some(next) = state.next() else { return };
                core::mem::replace(&mut state.waiters.all[next], WaiterState::Granted)
            };
            if let WaiterState::Waiting(Some(waker)) = granted {
                waker.wake();
            }
        }
    }

    /// A waiter of the lane gave up.
    fn give_up(&self, lane: LaneId) {
        let many = {
            let mut state = self.0.borrow_mut();
            let Some(entry) = state.lanes.get_mut(lane.0) else { return };
            entry.dead += 1;
            entry.dead > DEAD_MAX && entry.dead * 2 >= entry.len()
        };
        if many {
            self.clear(lane);
        }
    }
}

impl State {
    fn has_room(&self, class: Class) -> bool {
        self.used < self.total + class.reserve()
    }

    /// Whether a peer with this many requests in flight leaves enough to others when it has one more.
    fn may_grow(&self, used: usize, class: Class) -> bool {
        !self.leaves_room
            || class == Class::Urgent
            || used == 0
            || used < self.total.saturating_sub(self.used)
    }

    fn take(&mut self, lane: usize) {
        self.used += 1;
        self.lanes[lane].used += 1;
    }

    fn give_back(&mut self, lane: usize) {
        let entry = &mut self.lanes[lane];
        debug_assert!(entry.used > 0 && self.used >= entry.used, "a credit returns that nobody has taken");
        self.used -= 1;
        entry.used -= 1;
    }

    /// Adds a waiter to a lane.
    fn enqueue(&mut self, lane: usize, class: Class) -> usize {
        let waiter = self.waiters.add();
        if let Some(entry) = self.lanes.get_mut(lane) {
            entry.waiting[class as usize].push_back(waiter);
            self.queued += 1;
        }
        self.list(lane);
        waiter
    }

    /// Adds a lane to the rings of the classes for which it has a waiter and a credit.
    fn list(&mut self, lane: usize) {
        let credits = self.credits;
        let Some(entry) = self.lanes.get_mut(lane) else { return };
        for class in CLASSES {
            let at = class as usize;
            if !entry.listed[at] && !entry.waiting[at].is_empty() && entry.has_credit(class, credits) {
                entry.listed[at] = true;
                self.rings[at].push_back(lane);
            }
        }
    }

    /// Takes a permit for the waiter that is next, if there is room.
    fn next(&mut self) -> Option<usize> {
        for class in CLASSES {
            let at = class as usize;
            for _ in 0..self.rings[at].len() {
                if !self.has_room(class) {
                    break;
                }
                let Some(lane) = self.rings[at].pop_front() else { break };
                if !self.may_grow(self.lanes[lane].used, class) {
                    self.rings[at].push_back(lane);
                    continue;
                }
                let credits = self.credits;
                let entry = &mut self.lanes[lane];
                entry.listed[at] = false;
                if !entry.has_credit(class, credits) {
                    continue;
                }
                let waiter = loop {
                    let Some(waiter) = entry.waiting[at].pop_front() else { break None };
                    self.queued -= 1;
                    if !self.waiters.has_given_up(waiter) {
                        break Some(waiter);
                    }
                    entry.dead = entry.dead.saturating_sub(1);
                    self.waiters.free.push(waiter);
                };
                let Some(waiter) = waiter else { continue };
                self.take(lane);
                self.list(lane);
                return Some(waiter);
            }
        }
        None
    }
}

/// A peer's registration in a quota. Another peer gets its lane when this is dropped.
pub(crate) struct PeerQuota {
    quota: Quota,
    lane: LaneId,
}

impl PeerQuota {
    pub(crate) fn lane(&self) -> LaneId {
        self.lane
    }
}

impl Drop for PeerQuota {
    fn drop(&mut self) {
        self.quota.vacate(self.lane);
    }
}

/// A request in flight. The credit returns when this is dropped.
pub(crate) struct Permit {
    quota: Quota,
    lane: LaneId,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.release(self.lane);
    }
}

/// Waits for a permit. Dropping it leaves the queue.
pub(crate) struct Acquire {
    permit: Option<Permit>,
    waiting: Option<(Quota, LaneId, usize)>,
}

impl Acquire {
    /// The permit, if there was nothing to wait for.
    pub(crate) fn ready(&mut self) -> Option<Permit> {
        self.permit.take()
    }
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if let Some(permit) = self.permit.take() {
            return Poll::Ready(permit);
        }
        let Some((quota, lane, waiter)) = &self.waiting else { return Poll::Pending };
        if let WaiterState::Waiting(waker) = &mut quota.0.borrow_mut().waiters.all[*waiter] {
            match waker {
                Some(known) => known.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        quota.0.borrow_mut().waiters.free.push(*waiter);
        let permit = Permit { quota: quota.clone(), lane: *lane };
        self.waiting = None;
        Poll::Ready(permit)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some((quota, lane, waiter)) = self.waiting.take() else { return };
        let granted = {
            let waiters = &mut quota.0.borrow_mut().waiters;
            let before = core::mem::replace(&mut waiters.all[waiter], WaiterState::GaveUp);
            let granted = matches!(before, WaiterState::Granted);
            if granted {
                waiters.free.push(waiter);
            }
            granted
        };
        if granted {
            // The grant was never taken up.
            drop(Permit { quota, lane });
        } else {
            quota.give_up(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;
    use core::task::Waker;

    fn poll(turn: Pin<&mut Acquire>) -> Option<Permit> {
        match turn.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn peers_take_turns_and_a_long_queue_holds_up_nobody_else() {
        let quota = Quota::new(2, 3);
        let [busy, idle] = [quota.lane(), quota.lane()];
        let mut first: Vec<Permit> =
            (0..2).map(|_| quota.acquire(busy, Class::Normal).ready().expect("free")).collect();
        let mut queue: Vec<Acquire> = (0..5).map(|_| quota.acquire(busy, Class::Normal)).collect();
        let other = quota.acquire(idle, Class::Normal).ready().expect("the other peer's credit is free");
        let mut late = pin!(quota.acquire(idle, Class::Normal));
        assert!(poll(late.as_mut()).is_none(), "the quota is used up");
        first.pop();
        // Five waiters of the busy peer are older than the one of the idle peer, whose lane is next all the
        // same.
        let mut waits = || queue.iter_mut().filter_map(|turn| poll(Pin::new(turn))).collect::<Vec<_>>();
        assert_eq!(waits().len(), 0);
        let late = poll(late.as_mut()).expect("the idle peer's turn");
        first.pop();
        let granted = waits();
        assert_eq!(granted.len(), 1, "and then the busy one's");
        drop((other, late, granted));
        assert_eq!(quota.used(), quota.0.borrow().lanes.iter().map(|lane| lane.used).sum::<usize>());
    }

    #[test]
    fn peers_that_give_nothing_back_leave_room_to_the_next_one() {
        let quota = Quota::leaving_room(32, 64);
        let lanes: Vec<LaneId> = (0..5).map(|_| quota.lane()).collect();
        let take = |lane: &LaneId| core::iter::from_fn(|| quota.try_acquire(*lane, Class::Normal)).collect();
        let mut stuck: Vec<Vec<Permit>> = lanes.iter().map(take).collect();
        assert_eq!(stuck.iter().map(Vec::len).collect::<Vec<_>>(), [32, 16, 8, 4, 2]);
        let mut queue: Vec<Acquire> = (0..4).map(|_| quota.acquire(lanes[1], Class::Normal)).collect();
        let mut came = || queue.iter_mut().filter_map(|turn| poll(Pin::new(turn))).collect::<Vec<_>>();
        assert!(came().is_empty());
        let mut late = pin!(quota.acquire(lanes[4], Class::Normal));
        assert!(poll(late.as_mut()).is_none());
        // Two permits are free; the lane with the fewest in flight may have one.
        stuck[0].truncate(30);
        assert!(came().is_empty() && poll(late.as_mut()).is_some());
        stuck[0].truncate(10);
        assert_eq!(came().len(), 4, "as soon as that leaves enough to others");
    }

    #[test]
    fn urgent_requests_go_first_and_have_a_reserve_and_retries_overtake_the_rest() {
        let quota = Quota::new(1, 1);
        let lane = quota.lane();
        let held = quota.acquire(lane, Class::Normal).ready().expect("free");
        let mut normal = pin!(quota.acquire(lane, Class::Normal));
        let mut retry = pin!(quota.acquire(lane, Class::Retry));
        assert!(poll(normal.as_mut()).is_none() && poll(retry.as_mut()).is_none());
        let mut urgent = Vec::new();
        let mut turns: Vec<Acquire> =
            (0..=URGENT_RESERVE).map(|_| quota.acquire(lane, Class::Urgent)).collect();
        urgent.extend(turns.iter_mut().filter_map(|turn| poll(Pin::new(turn))));
        assert_eq!(urgent.len(), URGENT_RESERVE, "as many as the reserve has");
        drop(turns);
        drop(urgent);
        drop(held);
        assert!(poll(normal.as_mut()).is_none(), "the retry is first");
        let retried = poll(retry.as_mut()).expect("its turn");
        drop(retried);
        assert!(poll(normal.as_mut()).is_some());
    }

    #[test]
    fn a_lane_that_was_left_serves_another_peer_as_if_it_were_new() {
        let quota = Quota::new(1, 8);
        let gone = quota.place();
        let held = quota.acquire(gone.lane(), Class::Normal).ready().expect("free");
        drop(quota.acquire(gone.lane(), Class::Normal));
        drop(held);
        drop(gone);
        assert_eq!((quota.used(), quota.waiting(), quota.lanes()), (0, 0, 1));
        let next = quota.place();
        let held = quota.acquire(next.lane(), Class::Normal).ready().expect("free");
        let mut second = pin!(quota.acquire(next.lane(), Class::Normal));
        assert!(poll(second.as_mut()).is_none());
        drop(held);
        assert!(poll(second.as_mut()).is_some() && quota.lanes() == 1);
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let quota = Quota::new(1, 8);
        let lane = quota.lane();
        let held = quota.acquire(lane, Class::Normal).ready().expect("free");
        for _ in 0..1000 {
            drop(quota.acquire(lane, Class::Normal));
        }
        assert!(quota.waiting() <= DEAD_MAX + 1, "{} dead waiters", quota.waiting());
        let unnoticed = quota.acquire(lane, Class::Normal);
        drop(held);
        assert_eq!(quota.used(), 1, "granted");
        drop(unnoticed);
        assert_eq!(quota.used(), 0, "and given back unseen");
        assert!(quota.acquire(lane, Class::Normal).ready().is_some());
    }
}
