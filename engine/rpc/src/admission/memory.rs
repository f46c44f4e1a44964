//! Bounds the memory of payloads, which move between clients' memory and this server. Tenants and clients share
//! it, and a request waits for it until its deadline.
//!
//! A client that has stopped holds its memory until its transfers end. That takes at least half a minute, and longer
//! while no other client waits for memory. So a client or tenant that holds memory must leave a part of the rest to
//! others. Short payloads have memory of their own, which no long payload takes.

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

/// Unit of the bound in bytes: the smallest block that the fabric's pool hands out.
const UNIT: usize = 4096;

/// Part of the fabric's pool that payloads may take. The rest is for messages.
const SHARE: (usize, usize) = (3, 4);

/// Payloads of up to this many units (256 KiB) are short.
const SHORT_MAX: usize = 64;

/// Part of the bound that only short payloads use.
const SHORT_DIVISOR: usize = 6;

/// A client that holds memory may hold up to this part of what it leaves free: two of the longest payloads in
/// the largest pool.
const CLIENT_SHARE: (usize, usize) = (3, 4);

/// Where tenants are told apart, a tenant that holds memory may hold up to this many times what it leaves free.
const TENANT_FACTOR: usize = 3;

/// Bounds the memory of payloads in flight.
pub(crate) struct PayloadMemory {
    short: Rc<MemoryClass>,
    long: Rc<MemoryClass>,
}

impl PayloadMemory {
    /// For a pool of `pool` bytes. `tells_tenants`: this server tells tenants apart. `seed` is secret.
    pub(crate) fn new(pool: usize, tells_tenants: bool, seed: u64) -> Self {
        let all = pool / UNIT * SHARE.0 / SHARE.1;
        let short = all / SHORT_DIVISOR;
        Self {
            short: MemoryClass::new(short, tells_tenants, seed),
            long: MemoryClass::new(all - short, tells_tenants, seed),
        }
    }

    /// Whether another client waits for memory of a class that this client holds.
    pub(crate) fn others_wait(&self, caller: Caller) -> bool {
        [&self.short, &self.long].iter().any(|class| class.others_wait(caller))
    }

    /// Waits for the memory of a payload of `len` bytes.
    ///
    /// # Errors
    /// When none was granted before the deadline.
    pub(crate) async fn share(
        &self,
        rt: &Handle,
        caller: Caller,
        (len, deadline): (usize, Instant),
    ) -> Result<MemoryShare, Elapsed> {
        // The pool hands out powers of two.
        let units = len.max(UNIT).next_power_of_two() / UNIT;
        let class = if units <= SHORT_MAX.min(self.short.limits.all) { &self.short } else { &self.long };
        let units = units.min(class.limits.all);
        if let Some(share) = class.try_take(caller, units) {
            return Ok(share);
        }
        rt.timeout_at(deadline, class.wait(caller, units)).await
    }
}

/// Memory of one class. Requests get it in order of arrival; a request whose client or tenant holds too much is
/// passed over.
struct MemoryClass {
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

/// A request that waits for memory.
struct Waiter {
    caller: Caller,
    units: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Why a request gets no memory now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// Its client would leave too little to others.
    Client,
    /// Its tenant would leave too little to others.
    Tenant,
    /// Not enough is free.
    Full,
}

/// The memory that one request holds. It is given back when this is dropped.
pub(crate) struct MemoryShare {
    class: Rc<MemoryClass>,
    caller: Caller,
    units: usize,
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let state = &mut *self.class.state.borrow_mut();
        state.give_back(self.caller, self.units);
        state.serve(self.class.limits);
    }
}

impl MemoryClass {
    fn new(all: usize, tells_tenants: bool, seed: u64) -> Rc<Self> {
        Rc::new(Self { limits: Limits { all, tells_tenants }, state: RefCell::new(State::new(seed)) })
    }

    fn others_wait(&self, caller: Caller) -> bool {
        let state = self.state.borrow();
        state.clients.contains_key(&caller) && state.queue.iter().any(|waiter| waiter.caller != caller)
    }

    fn share(self: &Rc<Self>, caller: Caller, units: usize) -> MemoryShare {
        MemoryShare { class: Rc::clone(self), caller, units }
    }

    /// Takes this many units if no request waits and the limits allow it.
    fn try_take(self: &Rc<Self>, caller: Caller, units: usize) -> Option<MemoryShare> {
        let mut state = self.state.borrow_mut();
        if !state.queue.is_empty() || state.judge(caller, units, self.limits).is_err() {
            return None;
        }
        state.take(caller, units);
        Some(self.share(caller, units))
    }

    /// Waits for this many units.
    fn wait(self: &Rc<Self>, caller: Caller, units: usize) -> WaitForMemory {
        let waiter = Rc::new(Waiter { caller, units, granted: Cell::new(false), waker: RefCell::default() });
        let state = &mut *self.state.borrow_mut();
        state.queue.push_back(Rc::clone(&waiter));
        state.serve(self.limits);
        WaitForMemory { class: Rc::clone(self), waiter: Some(waiter) }
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

    /// Grants memory to waiting requests. Order is first come, first served within a tenant, and among all
    /// tenants while memory is short. A client that holds too much delays only itself.
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

/// Waits for memory. Dropping it leaves the queue.
struct WaitForMemory {
    class: Rc<MemoryClass>,
    /// `None`: the memory was handed over.
    waiter: Option<Rc<Waiter>>,
}

impl Future for WaitForMemory {
    type Output = MemoryShare;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MemoryShare> {
        if let Some(waiter) = self.waiter.take_if(|waiter| waiter.granted.get()) {
            return Poll::Ready(self.class.share(waiter.caller, waiter.units));
        }
        if let Some(waiter) = &self.waiter {
            waiter.waker.replace(Some(cx.waker().clone()));
        }
        Poll::Pending
    }
}

impl Drop for WaitForMemory {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.granted.get() {
            // The grant was never taken up.
            return drop(self.class.share(waiter.caller, waiter.units));
        }
        let state = &mut *self.class.state.borrow_mut();
        state.queue.retain(|other| !Rc::ptr_eq(other, &waiter));
        // The requests behind may have waited for this one.
        state.serve(self.class.limits);
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

    fn taken(class: &MemoryClass) -> usize {
        class.state.borrow().taken
    }

    /// Polls a wait once.
    fn look(wait: &mut WaitForMemory) -> Option<MemoryShare> {
        match Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => Some(share),
            Poll::Pending => None,
        }
    }

    #[test]
    fn clients_that_give_nothing_back_leave_room_for_others() {
        let class = MemoryClass::new(1000, false, 7);
        let mut stuck = Vec::new();
        for client in 1..=3 {
            let before = stuck.len();
            stuck.extend(core::iter::from_fn(|| class.try_take(caller(0, client), 10)));
            assert!(stuck.len() > before, "a client that has none may have some");
        }
        assert!((500..900).contains(&taken(&class)), "{} are taken", taken(&class));
        let late = caller(0, 5);
        let first = class.try_take(late, 10).expect("it has none");
        let second = class.try_take(late, 10).expect("there is more");
        drop((stuck, first, second));
        assert!(taken(&class) == 0 && class.state.borrow().clients.is_empty());
        let alone = core::iter::from_fn(|| class.try_take(late, 10)).collect::<Vec<_>>();
        assert_eq!(alone.len(), 42, "three sevenths, as long as nobody else has any");
    }

    #[test]
    fn a_tenant_whose_clients_all_stop_leaves_room_for_other_tenants() {
        let class = MemoryClass::new(1000, true, 7);
        let stuck: Vec<_> = (0..).map_while(|id| class.try_take(caller(1, id), 10)).collect();
        assert_eq!(stuck.len(), 75);
        let mut lined_up = class.wait(caller(1, 5000), 10);
        assert!(look(&mut lined_up).is_none());
        let mut other = class.wait(caller(2, 1), 10);
        assert!(look(&mut other).is_some(), "who waits for its own tenant holds up no other");
        let long = MemoryClass::new(1000, true, 7);
        let _all = long.try_take(caller(1, 1), 1000).expect("the first one may be as long as can be");
    }

    #[test]
    fn who_wants_more_than_is_free_is_not_overtaken_by_who_wants_less() {
        let class = MemoryClass::new(100, false, 7);
        let first = class.try_take(caller(0, 1), 50).expect("it is free");
        let mut long = class.wait(caller(0, 2), 80);
        let mut short = class.wait(caller(0, 3), 1);
        assert!(look(&mut long).is_none() && look(&mut short).is_none());
        assert!(class.try_take(caller(0, 4), 1).is_none(), "it stands behind them");
        drop(first);
        let long = look(&mut long).expect("its turn");
        assert!(look(&mut short).is_some());
        // A request that gives up lets those behind it go on.
        let mut again = class.wait(caller(0, 5), 100);
        let mut behind = class.wait(caller(0, 6), 1);
        assert!(look(&mut again).is_none() && look(&mut behind).is_none());
        drop(again);
        assert!(look(&mut behind).is_some());
        drop((long, behind));
        assert_eq!(taken(&class), 0);
    }

    #[test]
    fn a_client_that_has_too_much_holds_up_itself_alone() {
        let class = MemoryClass::new(100, false, 7);
        let much = class.try_take(caller(0, 1), 40).expect("it is free");
        let mut more = class.wait(caller(0, 1), 20);
        let mut other = class.wait(caller(0, 2), 20);
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
            let class = MemoryClass::new(100, tells, 7);
            let (mut waits, mut shares) = (VecDeque::new(), VecDeque::new());
            for (tenant, id, units, what) in steps {
                match what {
                    0 => drop(shares.pop_front()),
                    1 => drop(waits.pop_front()),
                    _ => waits.push_back(class.wait(caller(tenant, id), units)),
                }
                waits.retain_mut(|wait| look(wait).map(|share| shares.push_back(share)).is_none());
                prop_assert!(taken(&class) <= 100);
                prop_assert_eq!(taken(&class), shares.iter().map(|share| share.units).sum::<usize>());
            }
            while !waits.is_empty() {
                prop_assert!(shares.pop_front().is_some(), "somebody waits for nothing");
                waits.retain_mut(|wait| look(wait).map(|share| shares.push_back(share)).is_none());
            }
            shares.clear();
            let state = class.state.borrow();
            prop_assert!(state.taken == 0 && state.clients.is_empty() && state.tenants.is_empty());
        }
    }
}
