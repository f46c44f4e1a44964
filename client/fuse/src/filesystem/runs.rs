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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
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

    /// Takes out what covers whole chunks of `chunk` bytes, counted from the start of the file.
    pub fn take_whole(&mut self, chunk: u64) -> Vec<(u64, Vec<u8>)> {
        let inner = |start: u64, run: &[u8]| -> Range<u64> {
            start.next_multiple_of(chunk)..(start + length(run)) / chunk * chunk
        };
        let covering = |(start, run): (&u64, &Vec<u8>)| (!inner(*start, run).is_empty()).then_some(*start);
        let starts: Vec<u64> = self.runs.iter().filter_map(covering).collect();
        let mut taken = Vec::new();
        for start in starts {
            let Some(mut run) = self.runs.remove(&start) else { continue };
            let whole = inner(start, &run);
            let tail = run.split_off(distance(start, whole.end));
            let middle = run.split_off(distance(start, whole.start));
            self.bytes -= middle.len();
            for (offset, rest) in [(start, run), (whole.end, tail)] {
                if !rest.is_empty() {
                    self.runs.insert(offset, rest);
                }
            }
            taken.push((whole.start, middle));
        }
        taken
    }

    /// Takes out everything, ascending.
    pub fn take_all(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.bytes = 0;
        std::mem::take(&mut self.runs).into_iter().collect()
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
            chunk in 8_u64..32,
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
            let mut parts = runs.take_whole(chunk);
            let is_whole = |(offset, run): &(u64, Vec<u8>)| {
                !run.is_empty() && offset % chunk == 0 && length(run).is_multiple_of(chunk)
            };
            prop_assert!(parts.iter().all(is_whole));
            let left: usize = held(&runs).iter().map(|(_, run)| run.len()).sum();
            prop_assert_eq!(runs.bytes(), left);
            prop_assert!(runs.take_whole(chunk).is_empty());
            parts.extend(runs.take_all());
            prop_assert_eq!(image(&parts), expected);
            prop_assert!(runs.is_empty() && runs.bytes() == 0);
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
