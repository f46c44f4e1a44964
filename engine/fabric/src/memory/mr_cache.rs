//! Registrations of the application's memory, kept for reuse.
//!
//! An entry is taken out while it is in use, and put back when the peers are done with it. It is valid only
//! while the [`Monitor`] knows that nothing has happened to its memory. Memory that was unmapped, moved or
//! discarded is registered anew, and its old registration ends. Where memory can't be watched nothing is kept.

use super::Access;
use super::monitor::{EventPosition, Monitor};
use core::ops::Range;
use std::collections::HashMap;

/// Which memory, registered for what.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CacheKey {
    pub(crate) range: Range<usize>,
    pub(crate) access: Access,
}

struct Entry<T> {
    registration: T,
    stamp: EventPosition,
    used: u64,
}

/// What a look-up found.
pub(crate) enum Found<T> {
    /// A valid registration, and when it was made.
    Kept(T, EventPosition),
    /// None. A new one may be kept under this stamp, if there is one.
    Nothing(Option<EventPosition>),
}

/// A bounded cache of registrations.
pub(crate) struct MrCache<T> {
    monitor: &'static Monitor,
    limit: usize,
    entries: HashMap<CacheKey, Entry<T>>,
    used: u64,
    /// Registrations that ended because their memory had changed.
    stale: u64,
}

impl<T> MrCache<T> {
    /// `None` where memory can't be watched.
    pub(crate) fn new(limit: usize) -> Option<Self> {
        let monitor = Monitor::get()?;
        Some(Self { monitor, limit, entries: HashMap::new(), used: 0, stale: 0 })
    }

    /// Takes out the registration of this memory.
    pub(crate) fn take(&mut self, key: &CacheKey) -> Found<T> {
        if let Some(mut entry) = self.entries.remove(key) {
            if self.monitor.is_untouched(&key.range, &mut entry.stamp) {
                return Found::Kept(entry.registration, entry.stamp);
            }
            self.stale += 1;
            self.sweep();
        }
        Found::Nothing(self.monitor.watch(&key.range))
    }

    /// Puts back a registration that was made or taken out under this stamp. Returns one that can't be kept.
    pub(crate) fn put(&mut self, key: CacheKey, registration: T, mut stamp: EventPosition) -> Option<T> {
        if !self.monitor.is_untouched(&key.range, &mut stamp) {
            self.stale += 1;
            self.sweep();
            return Some(registration);
        }
        self.used += 1;
        let entry = Entry { registration, stamp, used: self.used };
        let mut gone = self.entries.insert(key, entry).map(|entry| entry.registration);
        if self.entries.len() > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            gone = gone.or_else(|| self.entries.remove(&oldest?).map(|entry| entry.registration));
        }
        gone
    }

    /// Ends every registration.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Ends every registration whose memory has changed, so that freed memory is not kept from the system.
    fn sweep(&mut self) {
        let monitor = self.monitor;
        let before = self.entries.len();
        self.entries.retain(|key, entry| monitor.is_untouched(&key.range, &mut entry.stamp));
        self.stale += (before - self.entries.len()) as u64;
    }

    /// Registrations that ended because their memory had changed.
    pub(crate) fn stale(&self) -> u64 {
        self.stale
    }
}
