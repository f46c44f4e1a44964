//! Exposing memory to peers through libfabric: the registration methods, and the cache of registrations.
#![expect(unsafe_code, reason = "registering memory with libfabric")]

use super::progress::Core;
use super::raw::{Raw, Registration, failure};
use super::sys;
use crate::counters::add;
use crate::endpoint::{Ending, Exposure, MrMethod, Registered};
use crate::memory::{Access, CacheKey, EventPosition, Found, Memory, MrCache, RemoteRegion, address_range};
use crate::{FabricError, MrAccounting};
use core::any::Any;
use core::ptr::NonNull;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use weir_memory::Shelf;

/// Tries to find a registration key that is free; keys are spread over 64 bits.
const KEY_TRIES: usize = 8;

/// How an endpoint registers memory.
pub(super) struct Exposing {
    method: MrMethod,
    accounting: MrAccounting,
    /// Whether pooled memory keeps its registrations.
    keeps_pooled: bool,
    /// Registrations of the application's memory.
    cache: Option<RefCell<MrCache<Box<Live>>>>,
    /// Unused registrations' places, for reuse.
    spares: Shelf<Box<Live>>,
}

impl Exposing {
    pub(super) fn new(method: MrMethod, accounting: MrAccounting, cache_entries: usize) -> Self {
        let cache = if cache_entries > 0 { MrCache::new(cache_entries).map(RefCell::new) } else { None };
        let keeps_pooled = method.leaves_exposed() || cache_entries > 0;
        Self { method, accounting, keeps_pooled, cache, spares: Shelf::default() }
    }

    /// Ends a registration, and keeps its place for reuse.
    fn end(&self, mut live: Box<Live>) {
        (live.registration, live.memory) = (None, None);
        self.spares.put(live);
    }

    /// Ends the registrations in the cache.
    pub(super) fn forget(&self) {
        if let Some(cache) = &self.cache {
            cache.borrow_mut().clear();
        }
    }
}

/// Where an unused registration goes.
enum Reuse {
    /// It ends.
    None,
    /// To its memory, which it can't outlive.
    Pooled,
    /// To the cache of the application's memory.
    Cache(EventPosition),
}

/// A registration, in use or kept for the next use. It stays in one place, so that exposing memory again allocates nothing.
struct Live {
    core: Weak<Core>,
    /// While it is in use. An unused registration doesn't hold its memory.
    memory: Option<Rc<Memory>>,
    part: (usize, usize, Access),
    reuse: Reuse,
    /// `None` after it has ended.
    registration: Option<Registration>,
}

impl Live {
    /// The key that peers use.
    fn key(&self) -> u64 {
        self.registration.as_ref().map_or(0, Registration::key)
    }

    fn keep(mut self: Box<Self>) {
        let Some(core) = self.core.upgrade().filter(|core| !core.raw.is_stopped()) else { return };
        let Some(memory) = self.memory.take() else { return };
        match core::mem::replace(&mut self.reuse, Reuse::None) {
            Reuse::None => core.exposing.end(self),
            Reuse::Pooled => memory.keep(self.part, self),
            Reuse::Cache(stamp) => {
                let Some(cache) = &core.exposing.cache else { return };
                let gone = cache.borrow_mut().put(whereabouts(&memory, self.part), self, stamp);
                core.counters.mr_stale.set(cache.borrow().stale());
                drop(gone);
            }
        }
    }
}

impl Registered for Live {
    fn settle(self: Box<Self>) {
        self.keep();
    }

    fn is_untold(&self) -> bool {
        self.core.upgrade().is_some_and(|core| {
            let left = core.exposing.method.leaves_exposed() && !matches!(self.reuse, Reuse::None);
            !left && !core.raw.is_stopped() && core.exposing.accounting == MrAccounting::Own
        })
    }

    fn close(self: Box<Self>) -> Ending {
        let Some(core) = self.core.upgrade() else { return Ending::Certain };
        if core.exposing.method.leaves_exposed() && !matches!(self.reuse, Reuse::None) {
            self.keep();
            return Ending::Exposed;
        }
        core.exposing.end(self);
        // A closed endpoint keeps nothing.
        if core.raw.is_stopped() || core.exposing.accounting == MrAccounting::Provider {
            Ending::Certain
        } else {
            Ending::Untold
        }
    }
}

fn whereabouts(memory: &Memory, (at, len, access): (usize, usize, Access)) -> CacheKey {
    let start = NonNull::new(memory.as_ptr().wrapping_add(at)).unwrap_or(NonNull::dangling());
    CacheKey { range: address_range(start, len), access }
}

impl Core {
    /// Exposes a part of a memory, which the caller has checked.
    pub(super) fn expose(
        self: &Rc<Self>,
        memory: Rc<Memory>,
        at: usize,
        len: usize,
        access: Access,
    ) -> Result<Exposure, FabricError> {
        let part = (at, len, access);
        let (kept, reuse) = self.kept(&memory, part);
        let mut live = if let Some(live) = kept {
            add(&self.counters.mr_hits, 1);
            live
        } else {
            let registration = Some(self.register(&memory, part)?);
            let mut live = self.exposing.spares.take().unwrap_or_else(|| {
                let core = Rc::downgrade(self);
                Box::new(Live { core, memory: None, part, reuse: Reuse::None, registration: None })
            });
            live.registration = registration;
            live
        };
        (live.part, live.reuse, live.memory) = (part, reuse, Some(Rc::clone(&memory)));
        add(&self.counters.exposures, 1);
        let addr = if self.capabilities.mr.virt_addr { memory.as_ptr() as u64 + at as u64 } else { 0 };
        let region = RemoteRegion { addr, key: live.key(), len: len as u64 };
        Ok(Exposure::new(region, memory, live))
    }

    /// A kept registration, if there is one, and where it goes afterwards.
    fn kept(&self, memory: &Memory, part: (usize, usize, Access)) -> (Option<Box<Live>>, Reuse) {
        if !memory.is_foreign() {
            if !self.exposing.keeps_pooled {
                return (None, Reuse::None);
            }
            let ours = |kept: &dyn Any| {
                let live = kept.downcast_ref::<Live>().and_then(|live| live.registration.as_ref());
                live.is_some_and(|registration| registration.is_of(&self.raw))
            };
            let kept = memory.take_kept(part, ours).and_then(|kept| kept.downcast().ok());
            return (kept, Reuse::Pooled);
        }
        let Some(cache) = &self.exposing.cache else { return (None, Reuse::None) };
        let mut cache = cache.borrow_mut();
        let found = cache.take(&whereabouts(memory, part));
        self.counters.mr_stale.set(cache.stale());
        match found {
            Found::Kept(live, stamp) => (Some(live), Reuse::Cache(stamp)),
            Found::Nothing(Some(stamp)) => (None, Reuse::Cache(stamp)),
            Found::Nothing(None) => (None, Reuse::None),
        }
    }

    fn register(
        &self,
        memory: &Memory,
        (at, len, access): (usize, usize, Access),
    ) -> Result<Registration, FabricError> {
        let raw: &Rc<Raw> = &self.raw;
        let mut last = 0;
        for _ in 0..KEY_TRIES {
            // SAFETY: the exposure, the memory or the cache holds the registration; the first two end it before the
            // memory goes, and what the cache has is not used once the memory is gone.
            match unsafe { raw.register(memory, at, len, access.into(), self.keys.draw()) } {
                Ok(registration) => {
                    add(&self.counters.registrations, 1);
                    return Ok(registration);
                }
                Err(errno) => last = errno,
            }
            if last != -sys::FI_ENOKEY {
                break;
            }
        }
        Err(failure("fi_mr_reg", last, &self.capabilities.provider))
    }
}
