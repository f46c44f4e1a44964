//! How many transfers may be under way with one client.

use core::cell::Cell;
use weir_fabric::Access;
use weir_runtime::sync::{Permit, Semaphore};

/// What moves at once with a client in one direction, in pages of [`PAGE`]: 2 MiB are on their way at 100 Gb/s when an answer
/// takes 160 µs, and stand before a small message for 1.7 ms at 10 Gb/s.
const ROOM_PAGES: usize = 32;

/// What a transfer counts for at least, in bytes: smaller ones are as many as credits allow.
const PAGE: usize = 64 << 10;

/// How transfers are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// All at once.
    Free,
    /// One after another.
    ByTurns,
    /// Some at once, in each direction.
    ByRoom(Access),
}

/// Leave to start a transfer. What that takes comes back when this is dropped.
pub(crate) struct Leave(#[expect(dead_code, reason = "it is only held")] pub(crate) Option<Permit>);

/// What paces the transfers with one client.
pub(crate) struct Paces {
    turn: Semaphore,
    /// Transfers that have begun by turns.
    begun: Cell<u64>,
    reads: Semaphore,
    writes: Semaphore,
}

impl Default for Paces {
    fn default() -> Self {
        let [reads, writes] = [0, 1].map(|_| Semaphore::new(ROOM_PAGES));
        Self { turn: Semaphore::new(1), begun: Cell::new(0), reads, writes }
    }
}

impl Paces {
    /// A transfer begins.
    pub(crate) fn note(&self, pace: Pace) {
        self.begun.set(self.begun.get() + u64::from(pace == Pace::ByTurns));
    }

    /// What the next transfer, of so many bytes, has to have, and how much of it.
    pub(crate) fn of(&self, pace: Pace, bytes: usize) -> Option<(&Semaphore, usize)> {
        match pace {
            Pace::Free => None,
            Pace::ByTurns => Some((&self.turn, 1)),
            Pace::ByRoom(access) => {
                let room = if access == Access::Read { &self.reads } else { &self.writes };
                Some((room, bytes.div_ceil(PAGE).clamp(1, ROOM_PAGES)))
            }
        }
    }

    /// Transfers that have begun by turns.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }
}
