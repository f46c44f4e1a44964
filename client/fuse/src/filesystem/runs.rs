//! Written bytes of one file that the engines don't have yet.

use std::collections::BTreeMap;
use std::ops::Range;

/// Runs of bytes by offset. No two overlap or touch.
#[derive(Debug, Default)]
pub struct Runs {
    runs: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

/// Distances here lie within memory that exists.
fn distance(from: u64, to: u64) -> usize {
    usize::try_from(to - from).unwrap_or(usize::MAX)
}

impl Runs {
    /// Bytes in all runs.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Enters a write; newer bytes replace older ones.
    pub fn insert(&mut self, offset: u64, data: &[u8]) {
        let end = offset + length(data);
        if let Some((start, run)) = self.runs.range_mut(..=offset).next_back()
            && *start + length(run) >= end
        {
            let at = distance(*start, offset);
            run[at..at + data.len()].copy_from_slice(data);
            return;
        }
        let meets = |(start, run): &(&u64, &Vec<u8>)| **start + length(run) >= offset;
        let met: Vec<u64> =
            self.runs.range(..=end).rev().take_while(meets).map(|(start, _)| *start).collect();
        let (mut start, mut whole, mut tail) = (offset, Vec::new(), Vec::new());
        for old in met {
            let Some(mut run) = self.runs.remove(&old) else { continue };
            self.bytes -= run.len();
            if old + length(&run) > end {
                tail = run[distance(old, end)..].to_vec();
            }
            if old < offset {
                run.truncate(distance(old, offset));
                (start, whole) = (old, run);
            }
        }
        whole.extend_from_slice(data);
        whole.append(&mut tail);
        self.bytes += whole.len();
        self.runs.insert(start, whole);
    }

    /// The first byte from `offset` on that is held.
    pub fn first_from(&self, offset: u64) -> Option<u64> {
        let before = self.runs.range(..offset).next_back();
        if before.is_some_and(|(start, run)| start + length(run) > offset) {
            return Some(offset);
        }
        self.runs.range(offset..).next().map(|(start, _)| *start)
    }

    /// The byte behind the last one held; 0 when there is none.
    pub fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(start, run)| start + length(run))
    }

    /// Whether a whole aligned unit of this many bytes is held that a range has a part of.
    pub fn completes(&self, unit: u64, range: &Range<u64>) -> bool {
        let Some((start, run)) = self.runs.range(..=range.start).next_back() else { return false };
        let first = (*start).max(range.start / unit * unit).next_multiple_of(unit);
        first < range.end && first.saturating_add(unit) <= start + length(run)
    }

    /// Whether a whole aligned unit of this many bytes is held, which ends behind `offset`.
    pub fn has_whole(&self, unit: u64, offset: u64) -> bool {
        let covers = |(start, run): (&u64, &Vec<u8>)| {
            let end = (start + length(run)) / unit * unit;
            end > offset && start.next_multiple_of(unit) < end
        };
        self.runs.iter().rev().take_while(|(start, run)| *start + length(run) > offset).any(covers)
    }

    /// Takes out the whole aligned units of this many bytes that end at or before `offset`.
    pub fn take_whole(&mut self, unit: u64, offset: u64) -> Vec<(u64, Vec<u8>)> {
        let inner = |(start, run): (&u64, &Vec<u8>)| -> Range<u64> {
            start.next_multiple_of(unit)..(start + length(run)).min(offset) / unit * unit
        };
        let ranges: Vec<Range<u64>> =
            self.runs.range(..offset).map(inner).filter(|range| !range.is_empty()).collect();
        ranges.into_iter().flat_map(|range| self.take(range)).collect()
    }

    /// Takes out what is held of a range, ascending.
    pub fn take(&mut self, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        if range.is_empty() {
            return Vec::new();
        }
        let first = self.runs.range(..range.start).next_back().map_or(range.start, |(start, _)| *start);
        let met = |(start, run): (&u64, &Vec<u8>)| (start + length(run) > range.start).then_some(*start);
        let starts: Vec<u64> = self.runs.range(first..range.end).filter_map(met).collect();
        let mut taken = Vec::new();
        for start in starts {
            let Some(mut run) = self.runs.remove(&start) else { continue };
            if start + length(&run) > range.end {
                self.runs.insert(range.end, run.split_off(distance(start, range.end)));
            }
            let from = start.max(range.start);
            let part = run.split_off(distance(start, from));
            if !run.is_empty() {
                self.runs.insert(start, run);
            }
            self.bytes -= part.len();
            taken.push((from, part));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Contents by position, `None` where nothing was written.
    fn image(runs: &[(u64, Vec<u8>)]) -> Vec<Option<u8>> {
        let mut image = vec![None; 256];
        for (offset, bytes) in runs {
            for (at, byte) in bytes.iter().enumerate() {
                let place = &mut image[usize::try_from(*offset).expect("small") + at];
                assert!(place.is_none(), "two runs hold byte {at}");
                *place = Some(*byte);
            }
        }
        image
    }

    fn held(runs: &Runs) -> Vec<(u64, Vec<u8>)> {
        runs.runs.iter().map(|(start, run)| (*start, run.clone())).collect()
    }

    proptest! {
        #[test]
        fn runs_hold_what_was_written_last(
            writes in proptest::collection::vec((0_u64..200, 1_usize..40), 1..30),
            chunk in 8_u64..32, limit in 0_u64..256,
        ) {
            let mut runs = Runs::default();
            let mut expected = vec![None; 256];
            for (number, (offset, len)) in writes.iter().enumerate() {
                let byte = u8::try_from(number).expect("few");
                runs.insert(*offset, &vec![byte; *len]);
                let at = usize::try_from(*offset).expect("small");
                expected[at..at + len].fill(Some(byte));
                prop_assert_eq!(image(&held(&runs)), expected.clone());
                let bytes: usize = expected.iter().flatten().count();
                prop_assert_eq!(runs.bytes(), bytes);
            }
            let list = held(&runs);
            prop_assert!(list.windows(2).all(|pair| pair[0].0 + pair[0].1.len() as u64 <= pair[1].0));
            prop_assert_eq!(runs.end(), expected.iter().rposition(Option::is_some).map_or(0, |at| at as u64 + 1));
            let held_from = |from: usize| expected[from..].iter().position(Option::is_some).map(|at| (from + at) as u64);
            for from in 0..256 {
                prop_assert_eq!(runs.first_from(from as u64), held_from(from));
            }
            let has_whole = runs.has_whole(chunk, limit);
            let mut parts = runs.take_whole(chunk, limit);
            let is_whole = |(offset, run): &(u64, Vec<u8>)| {
                !run.is_empty()
                    && offset % chunk == 0
                    && length(run).is_multiple_of(chunk)
                    && offset + length(run) <= limit
            };
            prop_assert!(parts.iter().all(is_whole));
            let left: usize = held(&runs).iter().map(|(_, run)| run.len()).sum();
            prop_assert_eq!(runs.bytes(), left);
            prop_assert!(runs.take_whole(chunk, limit).is_empty());
            let behind = runs.take_whole(chunk, u64::MAX);
            prop_assert_eq!(!behind.is_empty(), has_whole);
            parts.extend(behind);
            parts.extend(runs.take(limit..limit + 30));
            prop_assert!(runs.first_from(limit).is_none_or(|first| first >= limit + 30));
            parts.extend(runs.take(0..u64::MAX));
            prop_assert_eq!(image(&parts), expected);
            prop_assert!(held(&runs).is_empty() && runs.bytes() == 0);
        }
    }

    #[test]
    fn sequential_writes_become_one_run() {
        let mut runs = Runs::default();
        for block in 0..10_u64 {
            runs.insert(block * 10, &[7; 10]);
        }
        assert_eq!(held(&runs), [(0, vec![7; 100])]);
    }
}
