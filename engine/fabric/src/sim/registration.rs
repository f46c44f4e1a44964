//! Registered memory as a simulated NIC keeps it: keys, accesses that match and complete, and what ends them.
//!
//! An access matches a region when it arrives, moves its bytes while it lasts, and completes with the last byte. The
//! [`MrMethod`]s differ in what happens to accesses in between when the owner ends the region.

use super::endpoint::EndpointState;
use super::network::Job;
use crate::endpoint::{Completer, Ending, MrMethod, Registered, Transfer};
use crate::memory::{Access, Memory};
use crate::{AuthKey, RemoteRegion};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// Keys that hardware resolves without a search: 0 to 99.
pub const OPTIMIZED_KEYS: u64 = 100;

/// Keys that a cache keeps; older ones end for real.
const CACHED_MAX: usize = 4096;

/// What registering takes of the thread that does it. Without costs unless set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MrCosts {
    /// Linking a standard key into the match list: no call into the kernel.
    pub link: Duration,
    /// Unlinking one when nothing has to be awaited: no call into the kernel.
    pub unlink: Duration,
    /// A call into the kernel that makes or invalidates a key.
    pub kernel: Duration,
    /// Finding a key in the cache, and putting it back.
    pub cached: Duration,
    /// Taking note of an access's beginning and end, for both together.
    pub events: Duration,
    /// What an access to a standard key takes longer than one to an optimized key: the search.
    pub search: Duration,
    /// What writes to a standard key take longer for each mebibyte.
    pub write_per_mebibyte: Duration,
}

impl MrCosts {
    /// Times that lie where the paper's figure 9 has them: kernel calls some tens of microseconds, match events about
    /// 2 µs for each side, the key cache an order of magnitude less; the searches are fitted to figures 8 and 10.
    pub const SLINGSHOT: Self = Self {
        link: Duration::from_nanos(1500),
        unlink: Duration::from_nanos(1500),
        kernel: Duration::from_micros(20),
        cached: Duration::from_nanos(200),
        events: Duration::from_nanos(500),
        search: Duration::from_nanos(150),
        write_per_mebibyte: Duration::from_nanos(1900),
    };
}

/// How simulated NICs register memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrModel {
    /// The method.
    pub method: MrMethod,
    /// Whether ending an uncached registration aborts accesses under way, as the kernel does on Slingshot. Otherwise
    /// they go on, and no side reports it: `tcp` and `shm` are like that.
    pub revokes: bool,
    /// What it takes.
    pub costs: MrCosts,
}

impl Default for MrModel {
    /// A provider that doesn't tell, at no cost.
    fn default() -> Self {
        Self { method: MrMethod::Uncached, revokes: false, costs: MrCosts::default() }
    }
}

/// A region that peers can reach, or could.
pub(super) struct Region {
    /// The network that it can be reached through: the endpoint's first.
    auth_key: Option<AuthKey>,
    memory: Weak<Memory>,
    at: usize,
    len: u64,
    access: Access,
    /// Its owner has ended it.
    ended: Cell<bool>,
    /// Accesses that have matched move no more bytes.
    revoked: Cell<bool>,
    matched: Cell<u64>,
    completed: Cell<u64>,
    /// Told when as many have completed as have matched.
    waiting: RefCell<Option<Completer>>,
}

impl Region {
    fn is_quiet(&self) -> bool {
        self.matched.get() == self.completed.get()
    }

    /// An access that matched has moved its bytes, or could not.
    fn complete(&self) {
        self.completed.set(self.completed.get() + 1);
        if self.is_quiet()
            && let Some(waiting) = self.waiting.borrow_mut().take()
        {
            waiting.complete(Ok(()));
        }
    }

    /// Moves the bytes of an access that matched. Returns whether that was late: the owner had ended the region.
    pub(super) fn land(&self, job: &Job) -> Result<bool, &'static str> {
        let moved = self.copy(job);
        self.complete();
        moved
    }

    fn copy(&self, job: &Job) -> Result<bool, &'static str> {
        if self.revoked.get() {
            return Err("the region was invalidated");
        }
        let Some(memory) = self.memory.upgrade() else { return Err("the memory was freed") };
        let at = self.at + usize::try_from(job.remote.addr).unwrap_or(usize::MAX);
        let moved = match job.access {
            Access::Read => job.memory.copy(job.at, &memory, at, job.len),
            Access::Write => memory.copy(at, &job.memory, job.at, job.len),
        };
        if moved { Ok(self.ended.get()) } else { Err("the range is outside the memory") }
    }
}

type CacheKey = (usize, usize, u64, Access);

/// All regions of an endpoint.
#[derive(Default)]
pub(super) struct Regions {
    by_key: RefCell<BTreeMap<u64, Rc<Region>>>,
    cached: RefCell<BTreeMap<CacheKey, u64>>,
    /// What is cached, oldest first.
    order: RefCell<VecDeque<CacheKey>>,
}

impl Regions {
    /// How many peers can reach.
    pub(super) fn len(&self) -> usize {
        self.by_key.borrow().len()
    }

    /// The endpoint is gone, and with it every access.
    pub(super) fn close(&self) {
        for region in core::mem::take(&mut *self.by_key.borrow_mut()).into_values() {
            region.revoked.set(true);
        }
    }

    /// An access arrives: the region that it matches.
    pub(super) fn find(&self, job: &Job) -> Result<(Rc<Region>, bool), &'static str> {
        let regions = self.by_key.borrow();
        let Some(region) = regions.get(&job.remote.key) else { return Err("no region has this key") };
        if region.auth_key.map(|key| key.vni) != job.network.map(|key| key.vni) {
            return Err("the region is exposed to another virtual network");
        }
        if region.access != job.access {
            return Err("the region is exposed for the other direction");
        }
        let end = job.remote.addr.checked_add(job.len as u64);
        if end.is_none_or(|end| end > region.len) {
            return Err("the range is outside the region");
        }
        region.matched.set(region.matched.get() + 1);
        Ok((Rc::clone(region), job.remote.key < OPTIMIZED_KEYS))
    }

    /// Makes a region, or takes the cached one. `draw` makes a key that can't be guessed. Returns the key, and whether
    /// it was cached.
    fn open(
        &self,
        method: MrMethod,
        memory: &Rc<Memory>,
        (at, len, access): (usize, u64, Access),
        auth_key: Option<AuthKey>,
        draw: impl FnOnce() -> u64,
    ) -> (u64, bool) {
        let place = (memory.as_ptr() as usize, at, len, access);
        let mut regions = self.by_key.borrow_mut();
        if method.leaves_exposed()
            && let Some(key) = self.cached.borrow().get(&place)
            && let Some(region) = regions.get(key)
            && core::ptr::eq(region.memory.as_ptr(), Rc::as_ptr(memory))
        {
            region.ended.set(false);
            return (*key, true);
        }
        let low = if method.is_optimized() {
            (0..OPTIMIZED_KEYS).find(|key| !regions.contains_key(key))
        } else {
            None
        };
        let key = low.unwrap_or_else(draw);
        let region = Region {
            auth_key,
            memory: Rc::downgrade(memory),
            at,
            len,
            access,
            ended: Cell::new(false),
            revoked: Cell::new(false),
            matched: Cell::new(0),
            completed: Cell::new(0),
            waiting: RefCell::default(),
        };
        regions.insert(key, Rc::new(region));
        if method.leaves_exposed() {
            let mut order = self.order.borrow_mut();
            order.push_back(place);
            let before = self.cached.borrow_mut().insert(place, key);
            let oldest = if order.len() > CACHED_MAX { order.pop_front() } else { None };
            let oldest = oldest.and_then(|oldest| self.cached.borrow_mut().remove(&oldest));
            for gone in [before, oldest].into_iter().flatten().filter(|gone| *gone != key) {
                regions.remove(&gone);
            }
        }
        (key, false)
    }
}

/// A region from its owner's side.
pub(super) struct Registration {
    state: Weak<EndpointState>,
    model: MrModel,
    key: u64,
}

impl Registration {
    /// Registers memory of an endpoint.
    pub(super) fn new(
        state: &Rc<EndpointState>,
        model: MrModel,
        memory: &Rc<Memory>,
        part: (usize, u64, Access),
        draw: impl FnOnce() -> u64,
    ) -> (RemoteRegion, Self) {
        let auth_key = state.auth_keys.first().copied();
        let (key, cached) = state.regions.open(model.method, memory, part, auth_key, draw);
        let costs = model.costs;
        state.spend(match model.method {
            _ if cached => costs.cached,
            MrMethod::Optimized | MrMethod::Persistent => costs.kernel,
            MrMethod::Uncached | MrMethod::KeyCache | MrMethod::MatchEvents => costs.link,
        });
        let region = RemoteRegion { addr: 0, key, len: part.1 };
        (region, Self { state: Rc::downgrade(state), model, key })
    }

    fn end(&self) -> Ending {
        let Some(state) = self.state.upgrade() else { return Ending::Certain };
        let costs = self.model.costs;
        let mut regions = state.regions.by_key.borrow_mut();
        if self.model.method.leaves_exposed() {
            if let Some(region) = regions.get(&self.key) {
                region.ended.set(true);
            }
            state.spend(costs.cached);
            return Ending::Exposed;
        }
        let Some(region) = regions.remove(&self.key) else { return Ending::Certain };
        region.ended.set(true);
        if self.model.method == MrMethod::MatchEvents {
            let accesses = u32::try_from(region.matched.get()).unwrap_or(u32::MAX);
            state.spend(costs.unlink + costs.events * accesses);
            if region.is_quiet() {
                return Ending::Certain;
            }
            let (transfer, completer) = Transfer::new();
            *region.waiting.borrow_mut() = Some(completer);
            return Ending::Pending(transfer);
        }
        state.spend(costs.kernel);
        if !self.model.revokes {
            return Ending::Untold;
        }
        region.revoked.set(true);
        Ending::Certain
    }
}

impl Registered for Registration {
    fn settle(self: Box<Self>) {
        let _ending = self.end();
    }

    fn is_untold(&self) -> bool {
        let MrModel { method, revokes, .. } = self.model;
        matches!(method, MrMethod::Uncached | MrMethod::Optimized) && !revokes
    }

    fn close(self: Box<Self>) -> Ending {
        self.end()
    }
}
