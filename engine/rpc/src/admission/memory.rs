//! Memory for what moves between clients' memory and this server: bounded, shared between tenants and clients, and waited for
//! within a request's deadline.
//!
//! A client that has stopped holds its memory until its transfers end, which takes half a minute at least, and longer where nobody
//! else waits for memory. So whoever has some leaves more to others, tenants as well as clients, and what is short has memory of its own, which nothing long takes up.

use crate::maps::IdMap;
use crate::wire::Caller;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::rc::Rc;
use weir_proto::TenantId;
use weir_runtime::{Elapsed, Handle, Instant};

/// Unit of the bound in bytes: the smallest piece that the fabric's pool hands out.
const UNIT: usize = 4096;

/// Part of the fabric's pool that payloads may take; the rest is for messages.
const SHARE: (usize, usize) = (3, 4);

/// Payloads up to this many units are short, 256 KiB.
const SHORT_MAX: usize = 64;

/// Part of the bound that is for short payloads alone.
const SHORT_DIVISOR: usize = 6;

/// A client that has some may have as much as this part of what it leaves free: two of the longest payloads, of the longest pool.
const CLIENT_SHARE: (usize, usize) = (3, 4);

/// A tenant that has some may have so many times what it leaves free, where tenants are told apart.
const TENANT_FACTOR: usize = 3;

/// Bounds the memory of payloads in flight.
pub(crate) struct Payloads {
    short: Rc<Line>,
    long: Rc<Line>,
}

impl Payloads {
    /// For a pool of so many bytes, of a server that does or doesn't tell tenants apart; `seed` is secret.
    pub(crate) fn new(pool: usize, tells_tenants: bool, seed: u64) -> Self {
        let all = pool / UNIT * SHARE.0 / SHARE.1;
        let short = all / SHORT_DIVISOR;
        Self {
            short: Line::new(short, tells_tenants, seed),
            long: Line::new(all - short, tells_tenants, seed),
        }
    }

    /// Whether anybody else waits for memory of a kind that this client has.
    pub(crate) fn others_wait(&self, caller: Caller) -> bool {
        [&self.short, &self.long].iter().any(|line| line.others_wait(caller))
    }

    /// A share for a payload of `len` bytes, once it is its turn.
    ///
    /// # Errors
    /// When that was not so before the deadline.
    pub(crate) async fn share(
        &self,
        rt: &Handle,
        caller: Caller,
        (len, deadline): (usize, Instant),
    ) -> Result<Share, Elapsed> {
        // The pool hands out powers of two.
        let units = len.max(UNIT).next_power_of_two() / UNIT;
        let line = if units <= SHORT_MAX.min(self.short.limits.all) { &self.short } else { &self.long };
        let units = units.min(line.limits.all);
        if let Some(share) = line.try_take(caller, units) {
            return Ok(share);
        }
        rt.timeout_at(deadline, line.wait(caller, units)).await
    }
}

/// Memory that is handed out in the order in which it was asked for, but for those who have too much of it already.
struct Line {
    limits: Limits,
    state: RefCell<State>,
}

#[derive(Clone, Copy)]
struct Limits {
    all: usize,
    tells_tenants: bool,
}

struct State {
    taken: usize,
    clients: IdMap<Caller, usize>,
    tenants: IdMap<TenantId, usize>,
    queue: VecDeque<Rc<Waiter>>,
}

/// Who waits.
struct Waiter {
    caller: Caller,
    units: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Why somebody gets nothing now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// The client would leave too little to others.
    Client,
    /// Its tenant would.
    Tenant,
    /// So much isn't free.
    Full,
}

/// What one request has. Returns when dropped.
pub(crate) struct Share {
    line: Rc<Line>,
    caller: Caller,
    units: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let state = &mut *self.line.state.borrow_mut();
        state.give_back(self.caller, self.units);
        state.serve(self.line.limits);
    }
}

impl Line {
    fn new(all: usize, tells_tenants: bool, seed: u64) -> Rc<Self> {
        Rc::new(Self { limits: Limits { all, tells_tenants }, state: RefCell::new(State::new(seed)) })
    }

    fn others_wait(&self, caller: Caller) -> bool {
        let state = self.state.borrow();
        state.clients.contains_key(&caller) && state.queue.iter().any(|waiter| waiter.caller != caller)
    }

    fn share(self: &Rc<Self>, caller: Caller, units: usize) -> Share {
        Share { line: Rc::clone(self), caller, units }
    }

    /// Takes so many units, if nobody waits and the rules allow it.
    fn try_take(self: &Rc<Self>, caller: Caller, units: usize) -> Option<Share> {
        let mut state = self.state.borrow_mut();
        if !state.queue.is_empty() || state.judge(caller, units, self.limits).is_err() {
            return None;
        }
        state.take(caller, units);
        Some(self.share(caller, units))
    }

    /// Waits for so many units.
    fn wait(self: &Rc<Self>, caller: Caller, units: usize) -> Wait {
        let waiter = Rc::new(Waiter { caller, units, granted: Cell::new(false), waker: RefCell::default() });
        let state = &mut *self.state.borrow_mut();
        state.queue.push_back(Rc::clone(&waiter));
        state.serve(self.limits);
        Wait { line: Rc::clone(self), waiter: Some(waiter) }
    }
}

impl State {
    fn new(seed: u64) -> Self {
        let clients = IdMap::with_hasher(seed.into());
        Self { taken: 0, clients, tenants: IdMap::with_hasher(seed.into()), queue: VecDeque::new() }
    }

    fn judge(&self, caller: Caller, units: usize, limits: Limits) -> Result<(), Refusal> {
        let free = limits.all.saturating_sub(self.taken);
        let left = free.saturating_sub(units);
        let client = self.clients.get(&caller).copied().unwrap_or(0);
        let tenant = self.tenants.get(&caller.tenant).copied().unwrap_or(0);
        if client > 0 && client + units > left * CLIENT_SHARE.0 / CLIENT_SHARE.1 {
            return Err(Refusal::Client);
        }
        if limits.tells_tenants && tenant > 0 && tenant + units > left * TENANT_FACTOR {
            return Err(Refusal::Tenant);
        }
        if units > free { Err(Refusal::Full) } else { Ok(()) }
    }

    fn take(&mut self, caller: Caller, units: usize) {
        self.taken += units;
        *self.clients.entry(caller).or_default() += units;
        *self.tenants.entry(caller.tenant).or_default() += units;
    }

    fn give_back(&mut self, caller: Caller, units: usize) {
        self.taken -= units;
        subtract(&mut self.clients, caller, units);
        subtract(&mut self.tenants, caller.tenant, units);
    }

    /// Gives those who wait what they may have, first come, first served within each tenant, and among all where memory is
    /// short. A client that has too much holds up itself alone.
    fn serve(&mut self, limits: Limits) {
        let (mut at, mut held_up) = (0, Vec::new());
        while let Some(waiter) = self.queue.get(at) {
            let (caller, units) = (waiter.caller, waiter.units);
            if held_up.contains(&caller.tenant) {
                at += 1;
                continue;
            }
            match self.judge(caller, units, limits) {
                Ok(()) => {
                    self.take(caller, units);
                    if let Some(waiter) = self.queue.remove(at) {
                        waiter.granted.set(true);
                        waiter.waker.take().into_iter().for_each(Waker::wake);
                    }
                    continue;
                }
                Err(Refusal::Client) => {}
                Err(Refusal::Tenant) => held_up.push(caller.tenant),
                Err(Refusal::Full) => return,
            }
            at += 1;
        }
    }
}

fn subtract<K: Eq + Hash>(held: &mut IdMap<K, usize>, of: K, units: usize) {
    if let Entry::Occupied(mut entry) = held.entry(of) {
        *entry.get_mut() -= units;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

/// Waits in a line. Dropped, it leaves it.
struct Wait {
    line: Rc<Line>,
    /// `None`: its turn has come.
    waiter: Option<Rc<Waiter>>,
}

impl Future for Wait {
    type Output = Share;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Share> {
        if let Some(waiter) = self.waiter.take_if(|waiter| waiter.granted.get()) {
            return Poll::Ready(self.line.share(waiter.caller, waiter.units));
        }
        if let Some(waiter) = &self.waiter {
            waiter.waker.replace(Some(cx.waker().clone()));
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.granted.get() {
            // Nobody has taken it up.
            return drop(self.line.share(waiter.caller, waiter.units));
        }
        let state = &mut *self.line.state.borrow_mut();
        state.queue.retain(|other| !Rc::ptr_eq(other, &waiter));
        // Others may have waited for this one's turn.
        state.serve(self.line.limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ClientId;
    use proptest::prelude::*;

    fn caller(tenant: u64, id: u64) -> Caller {
        Caller { tenant: TenantId(tenant), id: ClientId::new(id) }
    }

    fn taken(line: &Line) -> usize {
        line.state.borrow().taken
    }

    /// What a wait gets now.
    fn look(wait: &mut Wait) -> Option<Share> {
        match Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => Some(share),
            Poll::Pending => None,
        }
    }

    #[test]
    fn clients_that_give_nothing_back_leave_room_for_others() {
        let line = Line::new(1000, false, 7);
        let mut stuck = Vec::new();
        for client in 1..=3 {
            let before = stuck.len();
            stuck.extend(core::iter::from_fn(|| line.try_take(caller(0, client), 10)));
            assert!(stuck.len() > before, "a client that has none may have some");
        }
        assert!((500..900).contains(&taken(&line)), "{} are taken", taken(&line));
        let late = caller(0, 5);
        let first = line.try_take(late, 10).expect("it has none");
        let second = line.try_take(late, 10).expect("there is more");
        drop((stuck, first, second));
        assert!(taken(&line) == 0 && line.state.borrow().clients.is_empty());
        let alone = core::iter::from_fn(|| line.try_take(late, 10)).collect::<Vec<_>>();
        assert_eq!(alone.len(), 42, "three sevenths, as long as nobody else has any");
    }

    #[test]
    fn a_tenant_whose_clients_all_stop_leaves_room_for_other_tenants() {
        let line = Line::new(1000, true, 7);
        let stuck: Vec<_> = (0..).map_while(|id| line.try_take(caller(1, id), 10)).collect();
        assert_eq!(stuck.len(), 75);
        let mut lined_up = line.wait(caller(1, 5000), 10);
        assert!(look(&mut lined_up).is_none());
        let mut other = line.wait(caller(2, 1), 10);
        assert!(look(&mut other).is_some(), "who waits for its own tenant holds up no other");
        let long = Line::new(1000, true, 7);
        let _all = long.try_take(caller(1, 1), 1000).expect("the first one may be as long as can be");
    }

    #[test]
    fn who_wants_more_than_is_free_is_not_overtaken_by_who_wants_less() {
        let line = Line::new(100, false, 7);
        let first = line.try_take(caller(0, 1), 50).expect("it is free");
        let mut long = line.wait(caller(0, 2), 80);
        let mut short = line.wait(caller(0, 3), 1);
        assert!(look(&mut long).is_none() && look(&mut short).is_none());
        assert!(line.try_take(caller(0, 4), 1).is_none(), "it stands behind them");
        drop(first);
        let long = look(&mut long).expect("its turn");
        assert!(look(&mut short).is_some());
        // One that gives up lets those behind it go on.
        let mut again = line.wait(caller(0, 5), 100);
        let mut behind = line.wait(caller(0, 6), 1);
        assert!(look(&mut again).is_none() && look(&mut behind).is_none());
        drop(again);
        assert!(look(&mut behind).is_some());
        drop((long, behind));
        assert_eq!(taken(&line), 0);
    }

    #[test]
    fn a_client_that_has_too_much_holds_up_itself_alone() {
        let line = Line::new(100, false, 7);
        let much = line.try_take(caller(0, 1), 40).expect("it is free");
        let mut more = line.wait(caller(0, 1), 20);
        let mut other = line.wait(caller(0, 2), 20);
        assert!(look(&mut more).is_none());
        assert!(look(&mut other).is_some());
        drop(much);
        assert!(look(&mut more).is_some());
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_the_bound_holds_and_nobody_is_forgotten(
            tells in any::<bool>(),
            steps in prop::collection::vec((0u64..3, 0u64..4, 1usize..90, 0u8..4), 1..200),
        ) {
            let line = Line::new(100, tells, 7);
            let (mut waits, mut shares) = (VecDeque::new(), VecDeque::new());
            for (tenant, id, units, what) in steps {
                match what {
                    0 => drop(shares.pop_front()),
                    1 => drop(waits.pop_front()),
                    _ => waits.push_back(line.wait(caller(tenant, id), units)),
                }
                waits.retain_mut(|wait| look(wait).map(|share| shares.push_back(share)).is_none());
                prop_assert!(taken(&line) <= 100);
                prop_assert_eq!(taken(&line), shares.iter().map(|share| share.units).sum::<usize>());
            }
            while !waits.is_empty() {
                prop_assert!(shares.pop_front().is_some(), "somebody waits for nothing");
                waits.retain_mut(|wait| look(wait).map(|share| shares.push_back(share)).is_none());
            }
            shares.clear();
            let state = line.state.borrow();
            prop_assert!(state.taken == 0 && state.clients.is_empty() && state.tenants.is_empty());
        }
    }
}
