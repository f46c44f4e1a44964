//! Reclaimable bytes of a container: what updates have hidden and aggregation will remove without anybody's doing.

use std::collections::VecDeque;

/// Nanoseconds of epochs that are counted together.
const SPAN: u64 = 50_000_000;

/// Most spans that are remembered: a few retentions of them, when aggregation doesn't come to the container.
const SPANS_MAX: usize = 256;

/// What updates have hidden in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Epochs of the first and the last of them.
    epochs: (u64, u64),
    bytes: u64,
}

/// Bytes that don't count towards the quota of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaimable {
    /// Ascending.
    spans: VecDeque<Span>,
    total: u64,
}

impl Reclaimable {
    /// Bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// An update of this epoch has hidden so many bytes. Counts only if it is the newest so far.
    pub(crate) fn add(&mut self, epoch: u64, bytes: u64) {
        match self.spans.back_mut() {
            Some(last) if epoch < last.epochs.1 => return,
            Some(last) if epoch - last.epochs.0 < SPAN => {
                last.epochs.1 = epoch;
                last.bytes += bytes;
            }
            _ => self.spans.push_back(Span { epochs: (epoch, epoch), bytes }),
        }
        self.total += bytes;
        if self.spans.len() > SPANS_MAX {
            self.forget_first();
        }
    }

    pub(crate) fn forget_first(&mut self) {
        if let Some(span) = self.spans.pop_front() {
            self.total -= span.bytes;
        }
        debug_assert_eq!(self.total, self.spans.iter().map(|span| span.bytes).sum::<u64>());
    }

    /// Aggregation may remove what was hidden up to this epoch from now on: it isn't counted any more.
    pub(crate) fn expire(&mut self, up_to: u64) {
        while self.spans.front().is_some_and(|span| span.epochs.0 <= up_to) {
            self.forget_first();
        }
    }

    /// So many bytes are not reclaimable any more.
    pub(crate) fn take_off(&mut self, bytes: u64) {
        let mut left = bytes.min(self.total);
        self.total -= left;
        while let Some(first) = self.spans.front_mut().filter(|_| left > 0) {
            let taken = left.min(first.bytes);
            (first.bytes, left) = (first.bytes - taken, left - taken);
            if first.bytes == 0 {
                self.spans.pop_front();
            }
        }
    }

    /// A snapshot keeps what was visible at this epoch, which may be something that was hidden later.
    pub(crate) fn keep(&mut self, epoch: u64) {
        if self.spans.back().is_some_and(|last| epoch < last.epochs.1) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_reclaimable_until_it_is_removed() {
        let mut reclaimable = Reclaimable::default();
        reclaimable.add(100, 7);
        reclaimable.add(100 + SPAN - 1, 5);
        reclaimable.add(100 + SPAN, 3);
        reclaimable.add(99, 1000);
        assert_eq!((reclaimable.total(), reclaimable.spans.len()), (15, 2), "what comes late doesn't count");
        reclaimable.expire(99);
        assert_eq!(reclaimable.total(), 15);
        reclaimable.expire(100);
        assert_eq!(reclaimable.total(), 3, "what is counted together goes with the first");
        reclaimable.add(100 + 2 * SPAN, 4);
        reclaimable.take_off(5);
        assert_eq!((reclaimable.total(), reclaimable.spans.len()), (2, 1));
        reclaimable.take_off(3);
        assert_eq!(reclaimable, Reclaimable::default());
        reclaimable.add(100 + SPAN, 3);
        reclaimable.keep(100 + SPAN);
        assert_eq!(reclaimable.total(), 3, "nothing was hidden behind that");
        reclaimable.keep(99 + SPAN);
        assert_eq!(reclaimable, Reclaimable::default());
        for number in 1..=2 * SPANS_MAX as u64 {
            reclaimable.add(number * SPAN, 1);
        }
        assert_eq!((reclaimable.total(), reclaimable.spans.len()), (SPANS_MAX as u64, SPANS_MAX));
        reclaimable.expire(u64::MAX);
        assert_eq!(reclaimable, Reclaimable::default());
    }
}
