//! How much a context has under way: credits for each peer, and a quota over all of them.
//!
//! What goes beyond waits here, not at the server. Peers take turns, so that a long queue for one doesn't hold up a
//! single request to another; urgent requests go first, then those that are tried again, then the rest. Urgent ones may
//! also use a small reserve, because membership has to be known just when everything else is stuck.

use crate::config::Priority;
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;

/// Credits of a peer, and of the whole quota, that only urgent requests may use: a ping, an answer to one on behalf of
/// somebody else, and a suspicion.
const URGENT_RESERVE: usize = 4;

/// Waiters that gave up before the queue is cleared of them.
const DEAD_MAX: usize = 32;

/// Whose turn it is first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Membership.
    Urgent = 0,
    /// Requests that were sent before, or end what was begun before.
    Retry = 1,
    /// The rest.
    Normal = 2,
}

impl Class {
    /// Of a call's first try.
    pub(crate) const fn of(priority: Priority) -> Self {
        match priority {
            Priority::Urgent => Self::Urgent,
            Priority::Early => Self::Retry,
            Priority::Normal => Self::Normal,
        }
    }

    /// Of the same request when it is sent again.
    pub(crate) const fn again(self) -> Self {
        match self {
            Self::Urgent => Self::Urgent,
            Self::Retry | Self::Normal => Self::Retry,
        }
    }

    /// What it may use beyond the limits.
    const fn reserve(self) -> usize {
        match self {
            Self::Urgent => URGENT_RESERVE,
            Self::Retry | Self::Normal => 0,
        }
    }
}

const CLASSES: [Class; 3] = [Class::Urgent, Class::Retry, Class::Normal];

/// How somebody stands who waits for a turn.
enum Standing {
    Waiting(Option<Waker>),
    /// It is its turn, which it hasn't noticed yet.
    Granted,
    /// It is still in its queue.
    GaveUp,
}

/// Those that wait, in places that serve later ones: in steady state, waiting allocates nothing.
#[derive(Default)]
struct Waiters {
    all: Vec<Standing>,
    free: Vec<usize>,
}

impl Waiters {
    fn add(&mut self) -> usize {
        let standing = Standing::Waiting(None);
        if let Some(at) = self.free.pop() {
            self.all[at] = standing;
            return at;
        }
        self.all.push(standing);
        self.all.len() - 1
    }

    fn has_given_up(&self, waiter: usize) -> bool {
        matches!(self.all[waiter], Standing::GaveUp)
    }
}

#[derive(Default)]
struct Lane {
    /// In flight.
    used: usize,
    waiting: [VecDeque<usize>; CLASSES.len()],
    /// Waiters that gave up and are still in a queue, at most.
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

    /// Those that wait, with those that gave up and were not cleared away.
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }
}

struct State {
    /// In flight to a single peer, at most.
    credits: usize,
    /// In flight to all, at most.
    total: usize,
    used: usize,
    /// No peer has more than what it leaves to others.
    leaves_room: bool,
    lanes: Vec<Lane>,
    waiters: Waiters,
    /// Lanes that nobody has.
    free: Vec<usize>,
    /// Requests that wait, those that gave up among them until they are cleared away: when there is none, there is nobody
    /// to have a turn.
    queued: usize,
    /// For each class the peers whose turn it can be, next one first: those with a waiter and a credit.
    rings: [VecDeque<usize>; CLASSES.len()],
}

/// Credits for each peer (a lane) and a quota over all. Cheap to clone: clones are the same quota.
#[derive(Clone)]
pub(crate) struct Quota(Rc<RefCell<State>>);

/// Names a peer's lane.
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

    /// The same, where a peer has no more than what it leaves to all others. Peers that give nothing back then leave room to the
    /// next one: a half, a quarter, … as long as there is any.
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

    /// A place for one more peer.
    pub(crate) fn place(&self) -> Place {
        Place { quota: self.clone(), lane: self.lane() }
    }

    /// The peer is gone. What it still had under way, or waiting, counts against whoever gets its lane until it ends.
    fn vacate(&self, lane: LaneId) {
        self.clear(lane);
        self.0.borrow_mut().free.push(lane.0);
    }

    /// Takes those out of a lane's queues who gave up.
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

    /// The lane's turn, when there is nothing to wait for.
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

    /// Waits for the lane's turn.
    pub(crate) fn acquire(&self, lane: LaneId, class: Class) -> Turn {
        if let Some(permit) = self.try_acquire(lane, class) {
            return Turn { permit: Some(permit), waiting: None };
        }
        let waiter = self.0.borrow_mut().enqueue(lane.0, class);
        // An urgent one need not wait for those before it.
        self.grant();
        Turn { permit: None, waiting: Some((self.clone(), lane, waiter)) }
    }

    /// Requests in flight.
    pub(crate) fn used(&self) -> usize {
        self.0.borrow().used
    }

    /// Requests that wait; some may have given up.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.0.borrow();
        state.lanes.iter().map(Lane::len).sum()
    }

    /// Lanes that there are.
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

    /// Hands out turns as far as they go.
    fn grant(&self) {
        loop {
            let granted = {
                let mut state = self.0.borrow_mut();
                let Some(next) = state.next() else { return };
                core::mem::replace(&mut state.waiters.all[next], Standing::Granted)
            };
            if let Standing::Waiting(Some(waker)) = granted {
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

    /// Whether a peer with so many in flight leaves enough to others with one more.
    fn may_grow(&self, used: usize, class: Class) -> bool {
        !self.leaves_room
            || class == Class::Urgent
            || used == 0
            || used < self.total.saturating_sub(self.used)
    }

    fn take(&mut self, lane: usize) {
        self.used += 1;
        if let Some(entry) = self.lanes.get_mut(lane) {
            entry.used += 1;
        }
    }

    fn give_back(&mut self, lane: usize) {
        self.used = self.used.saturating_sub(1);
        if let Some(entry) = self.lanes.get_mut(lane) {
            entry.used = entry.used.saturating_sub(1);
        }
    }

    /// Lets somebody wait for a lane's turn.
    fn enqueue(&mut self, lane: usize, class: Class) -> usize {
        let waiter = self.waiters.add();
        if let Some(entry) = self.lanes.get_mut(lane) {
            entry.waiting[class as usize].push_back(waiter);
            self.queued += 1;
        }
        self.list(lane);
        waiter
    }

    /// Puts a lane into the rings where it can have a turn and isn't in yet.
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

    /// Whose turn it is, if there is room. The turn is taken.
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

/// A peer's place in a quota. Another peer gets its lane when this is dropped.
pub(crate) struct Place {
    quota: Quota,
    lane: LaneId,
}

impl Place {
    pub(crate) fn lane(&self) -> LaneId {
        self.lane
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.quota.vacate(self.lane);
    }
}

/// A request in flight; the credit returns when it is dropped.
pub(crate) struct Permit {
    quota: Quota,
    lane: LaneId,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.release(self.lane);
    }
}

/// Waits for a turn; dropping it leaves the queue.
pub(crate) struct Turn {
    permit: Option<Permit>,
    waiting: Option<(Quota, LaneId, usize)>,
}

impl Turn {
    /// The turn, when there was nothing to wait for.
    pub(crate) fn ready(&mut self) -> Option<Permit> {
        self.permit.take()
    }
}

impl Future for Turn {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if let Some(permit) = self.permit.take() {
            return Poll::Ready(permit);
        }
        let Some((quota, lane, waiter)) = &self.waiting else { return Poll::Pending };
        if let Standing::Waiting(waker) = &mut quota.0.borrow_mut().waiters.all[*waiter] {
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

impl Drop for Turn {
    fn drop(&mut self) {
        let Some((quota, lane, waiter)) = self.waiting.take() else { return };
        let granted = {
            let waiters = &mut quota.0.borrow_mut().waiters;
            let before = core::mem::replace(&mut waiters.all[waiter], Standing::GaveUp);
            let granted = matches!(before, Standing::Granted);
            if granted {
                waiters.free.push(waiter);
            }
            granted
        };
        if granted {
            // It was this one's turn, unnoticed.
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

    fn poll(turn: Pin<&mut Turn>) -> Option<Permit> {
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
        let mut queue: Vec<Turn> = (0..5).map(|_| quota.acquire(busy, Class::Normal)).collect();
        let other = quota.acquire(idle, Class::Normal).ready().expect("the other peer's credit is free");
        let mut late = pin!(quota.acquire(idle, Class::Normal));
        assert!(poll(late.as_mut()).is_none(), "the quota is used up");
        first.pop();
        // Five wait for the busy peer, longer than the one for the idle peer; but that one's turn is next.
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
        let mut queue: Vec<Turn> = (0..4).map(|_| quota.acquire(lanes[1], Class::Normal)).collect();
        let mut came = || queue.iter_mut().filter_map(|turn| poll(Pin::new(turn))).collect::<Vec<_>>();
        assert!(came().is_empty());
        let mut late = pin!(quota.acquire(lanes[4], Class::Normal));
        assert!(poll(late.as_mut()).is_none());
        // Two more, of which the one that has least may have one.
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
        let mut turns: Vec<Turn> = (0..=URGENT_RESERVE).map(|_| quota.acquire(lane, Class::Urgent)).collect();
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
