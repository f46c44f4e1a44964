//! Pending timers, soonest first; equal times fire in the order they were set.
//!
//! Nearly every timer is a deadline that is cleared long before it is due. So a timer is a slot with a waker, and its
//! time stands in a heap from which cleared ones are swept when they are the larger part: setting and clearing one
//! allocates nothing once the lists have grown, and costs a few comparisons.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

/// Names a pending timer: its slot and the slot's generation.
pub(crate) type TimerId = (u32, u32);

/// Cleared timers that may stand in the heap, beside as many as there are pending ones.
const CLEARED_MAX: usize = 64;

#[derive(Default)]
struct Slot {
    generation: u32,
    waker: Option<Waker>,
}

/// Time, serial number, slot and its generation.
type Entry = (u64, u64, u32, u32);

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    pending: usize,
    serial: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, at: u64, waker: Waker) -> TimerId {
        self.serial += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let slot = &mut self.slots[index as usize];
        slot.waker = Some(waker);
        self.pending += 1;
        self.heap.push(Reverse((at, self.serial, index, slot.generation)));
        (index, slot.generation)
    }

    pub(crate) fn clear(&mut self, id: TimerId) -> Option<Waker> {
        let waker = self.take(id)?;
        if self.heap.len() > 2 * self.pending + CLEARED_MAX {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, _, index, generation))| is_live(slots, *index, *generation));
        } else {
            self.sweep();
        }
        Some(waker)
    }

    fn take(&mut self, (index, generation): TimerId) -> Option<Waker> {
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let waker = slot.waker.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.pending -= 1;
        Some(waker)
    }

    /// Takes cleared timers off the top.
    fn sweep(&mut self) {
        while let Some(Reverse((_, _, index, generation))) = self.heap.peek() {
            if is_live(&self.slots, *index, *generation) {
                return;
            }
            self.heap.pop();
        }
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes one timer that is due.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Waker> {
        let Reverse((at, _, index, generation)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        let waker = self.take((index, generation));
        self.sweep();
        waker
    }

    /// Takes all wakers out.
    pub(crate) fn drain(&mut self) -> Vec<Waker> {
        self.heap.clear();
        self.free.clear();
        self.pending = 0;
        core::mem::take(&mut self.slots).into_iter().filter_map(|slot| slot.waker).collect()
    }
}

fn is_live(slots: &[Slot], index: u32, generation: u32) -> bool {
    slots.get(index as usize).is_some_and(|slot| slot.generation == generation && slot.waker.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    /// Remembers that it was woken.
    struct Flag(AtomicU32);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn timers_fire_in_order_and_cleared_ones_never() {
        let mut timers = Timers::default();
        let flags: Vec<Arc<Flag>> = (0..5).map(|_| Arc::new(Flag(AtomicU32::new(0)))).collect();
        let ids: Vec<TimerId> = flags
            .iter()
            .zip([30, 10, 20, 10, 40])
            .map(|(flag, at)| timers.set(at, Waker::from(Arc::clone(flag))))
            .collect();
        assert_eq!(timers.next(), Some(10));
        assert!(timers.clear(ids[1]).is_some());
        assert!(timers.clear(ids[1]).is_none(), "only once");
        assert_eq!(timers.next(), Some(10), "the other one of the same time");
        assert!(timers.pop_due(9).is_none());
        let mut order = Vec::new();
        while let Some(waker) = timers.pop_due(35) {
            waker.wake();
            order.push(flags.iter().map(|flag| flag.0.load(Ordering::Relaxed)).collect::<Vec<_>>());
        }
        assert_eq!(order, [[0, 0, 0, 1, 0], [0, 0, 1, 1, 0], [1, 0, 1, 1, 0]]);
        assert_eq!(timers.next(), Some(40));
        assert_eq!(timers.drain().len(), 1);
        assert_eq!((timers.next(), timers.clear(ids[4]).is_none()), (None, true));
    }

    #[test]
    fn deadlines_that_are_set_and_cleared_for_ever_take_no_room() {
        let mut timers = Timers::default();
        let far = timers.set(u64::MAX, Waker::noop().clone());
        for at in 0..10_000 {
            let id = timers.set(1_000_000 + at, Waker::noop().clone());
            assert!(timers.clear(id).is_some());
        }
        assert!(timers.heap.len() <= CLEARED_MAX + 4 && timers.slots.len() == 2);
        assert!(timers.clear(far).is_some());
        assert_eq!(timers.next(), None);
    }
}
