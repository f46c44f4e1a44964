//! How many transfers may be in flight with one client.

use core::cell::Cell;
use weir_fabric::Access;
use weir_runtime::sync::{Permit, Semaphore};

/// Transfers in flight with a client in one direction, in units of [`PAGE`]. 2 MiB fill a link of 100 Gb/s for a
/// response time of 160 µs, and delay a small message by 1.7 ms at 10 Gb/s.
const ROOM_PAGES: usize = 32;

/// Smallest size that a transfer counts for, in bytes. Credits bound the number of smaller ones.
const PAGE: usize = 64 << 10;

/// Which transfers with a client run at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pacing {
    /// All of them.
    Free,
    /// One after another.
    Serial,
    /// A bounded number of bytes in each direction.
    Windowed(Access),
}

/// Permission to start a transfer. It is given back when this is dropped.
pub(crate) struct TransferPermit(#[expect(dead_code, reason = "it is only held")] pub(crate) Option<Permit>);

/// Paces the transfers with one client.
pub(crate) struct TransferPacing {
    turn: Semaphore,
    /// Serial transfers that have begun.
    begun: Cell<u64>,
    reads: Semaphore,
    writes: Semaphore,
}

impl Default for TransferPacing {
    fn default() -> Self {
        let [reads, writes] = [0, 1].map(|_| Semaphore::new(ROOM_PAGES));
        Self { turn: Semaphore::new(1), begun: Cell::new(0), reads, writes }
    }
}

impl TransferPacing {
    /// A transfer begins.
    pub(crate) fn note(&self, pace: Pacing) {
        self.begun.set(self.begun.get() + u64::from(pace == Pacing::Serial));
    }

    /// The semaphore that the next transfer of this many bytes needs, and how many of its permits.
    pub(crate) fn of(&self, pace: Pacing, bytes: usize) -> Option<(&Semaphore, usize)> {
        match pace {
            Pacing::Free => None,
            Pacing::Serial => Some((&self.turn, 1)),
            Pacing::Windowed(access) => {
                let room = if access == Access::Read { &self.reads } else { &self.writes };
                Some((room, bytes.div_ceil(PAGE).clamp(1, ROOM_PAGES)))
            }
        }
    }

    /// Serial transfers that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }
}
