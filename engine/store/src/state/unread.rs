//! What reclaim has passed over because its nodes couldn't be read. What is damaged stays so until the next open; what the device
//! only failed to read is tried again, more and more seldom.

use crate::format::key::{ContainerNumber, PoolNumber};
use core::time::Duration;
use std::collections::BTreeMap;
use weir_runtime::nanos;

/// Pause before the first new attempt: nobody waits for more than the room, and a device that may be ill has other things to do.
const PAUSE: Duration = Duration::from_mins(5);

/// How often the pause doubles at most: to some hours.
const DOUBLINGS_MAX: u32 = 6;

/// A container.
type Owner = (PoolNumber, ContainerNumber);

/// When something is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Retry {
    /// Wall clock in nanoseconds; `None`: it is being tried.
    at: Option<u64>,
    /// How often it was put off.
    failures: u32,
}

impl Retry {
    /// It failed, at this time. What fails more than once in an attempt counts once.
    fn put_off(&mut self, now: u64) {
        let pause = PAUSE * (1 << self.failures.min(DOUBLINGS_MAX));
        if self.at.is_none() {
            self.failures = self.failures.saturating_add(1);
            self.at = Some(now.saturating_add(nanos(pause)));
        }
    }

    fn is_due(&self, now: u64) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

/// What reclaim has to go through of a container.
pub(crate) enum Unreclaimed<'a> {
    All,
    /// What lies behind this index key.
    Behind(&'a [u8]),
    /// Nothing but what can't be read.
    Nothing,
}

/// What was passed over.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Destroyed containers with nodes that can't be read, each with the index key behind those that were met; `None`: nothing
    /// is left behind them.
    containers: BTreeMap<Owner, Option<Vec<u8>>>,
    /// Those of them that may be readable another time.
    again: BTreeMap<Owner, Retry>,
}

impl Unread {
    /// Where reclaim of a container goes on.
    pub(crate) fn rest_of(&self, owner: Owner) -> Unreclaimed<'_> {
        match self.containers.get(&owner) {
            None => Unreclaimed::All,
            Some(Some(behind)) => Unreclaimed::Behind(behind),
            Some(None) => Unreclaimed::Nothing,
        }
    }

    pub(crate) fn has(&self, owner: Owner) -> bool {
        self.containers.contains_key(&owner)
    }

    /// Reclaim of a container goes on there. `may_return`: what couldn't be read may be another time.
    pub(crate) fn pass_over(&mut self, owner: Owner, behind: Option<Vec<u8>>, may_return: bool, now: u64) {
        self.containers.insert(owner, behind);
        if may_return {
            self.again.entry(owner).or_default().put_off(now);
        }
    }

    /// All that could be read is gone.
    pub(crate) fn is_through(&mut self) {
        self.containers.values_mut().for_each(|behind| *behind = None);
    }

    /// Has containers gone through from their begin whose time has come. `is_there`: whether one isn't gone yet.
    pub(crate) fn begin_anew(&mut self, now: u64, is_there: impl Fn(Owner) -> bool) {
        if self.again.is_empty() {
            return;
        }
        self.again.retain(|owner, _| is_there(*owner));
        for (owner, retry) in self.again.iter_mut().filter(|(_, retry)| retry.is_due(now)) {
            retry.at = None;
            self.containers.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_is_tried_more_and_more_seldom() {
        let (owner, minute) = ((1, 2), 60_000_000_000);
        let (mut unread, mut tries) = (Unread::default(), Vec::new());
        unread.pass_over((1, 3), None, false, 0);
        for at in 0..1000 {
            if !unread.has(owner) {
                tries.push(at);
                unread.pass_over(owner, Some(vec![1]), true, at * minute);
                unread.pass_over(owner, None, true, at * minute);
            }
            unread.begin_anew(at * minute, |_| true);
        }
        assert_eq!(tries, [0, 6, 17, 38, 79, 160, 321, 642, 963]);
        assert!(unread.has((1, 3)), "damage stays");
        unread.begin_anew(2000 * minute, |_| false);
        assert_eq!(unread.again, BTreeMap::new(), "what is gone isn't tried again");
    }
}
