//! In which order what is gathered of one file goes to the engines.
//!
//! The *known end* is an end of the file that the engines have acknowledged; the file may be longer. Writes below it
//! are sent at once, in parallel. Writes that lengthen the file are sent block by block, the lowest first, and each
//! when the one before is acknowledged. A block is what engines execute as a whole: of one chunk, in one request. So at
//! any moment, also after a crash of this client, the engines have below the file's end at least what its writers had
//! written when they wrote there.

use std::ops::Range;

use weir_proto::limits::{EXTENTS_MAX, PAYLOAD_MAX};

use super::runs::Runs;

/// A whole aligned piece of this many bytes is sent at once: what one FUSE request carries, and a stored extent.
const UNIT: u64 = 1 << 20;

/// What goes now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendScope {
    /// Whole units, and what has to arrive before them.
    Whole,
    /// All, each on its own way.
    All,
    /// All, together.
    Together,
}

/// Runs on their way together.
#[derive(PartialEq, Eq, Debug)]
pub struct Batch {
    /// Its number, in the order of leaving.
    pub number: u64,
    /// Offset and bytes of each run.
    pub runs: Vec<(u64, Vec<u8>)>,
    /// The order of the last write that is kept for a successor of this process and may be a part of it.
    pub kept: u64,
}

impl Batch {
    /// Bytes in all runs.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|(_, run)| run.len()).sum()
    }
}

/// A batch as it is remembered while it is on its way.
#[derive(Debug)]
struct Sent {
    number: u64,
    ranges: Vec<Range<u64>>,
    lengthens: bool,
}

/// Gathered content of one file, and what of it is on its way.
#[derive(Debug, Default)]
pub struct Order {
    runs: Runs,
    known_end: u64,
    sent: Vec<Sent>,
    last: u64,
}

impl Order {
    /// Enters a write. Returns how many bytes are held more.
    pub fn insert(&mut self, offset: u64, data: &[u8]) -> usize {
        let before = self.runs.bytes();
        self.runs.insert(offset, data);
        self.runs.bytes() - before
    }

    /// Whether a whole unit is held that this range has a part of.
    pub fn completes(&self, range: &Range<u64>, chunk: u64) -> bool {
        self.runs.completes(UNIT.min(chunk), range)
    }

    /// Bytes that are not on their way.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
    }

    /// Bytes that are not on their way, and those that are.
    pub fn unsent(&self) -> u64 {
        let length = |range: &Range<u64>| range.end - range.start;
        self.runs.bytes() as u64 + self.sent.iter().flat_map(|sent| &sent.ranges).map(length).sum::<u64>()
    }

    /// Whether the engines have everything.
    pub fn is_empty(&self) -> bool {
        self.runs.bytes() == 0 && self.sent.is_empty()
    }

    /// Whether something is on its way.
    pub fn is_sending(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether one batch is on its way, and nothing else is held.
    pub fn leaves_one(&self) -> bool {
        self.runs.bytes() == 0 && self.sent.len() == 1
    }

    /// The byte behind the last one that is not on its way; 0 when there is none.
    pub fn end(&self) -> u64 {
        self.runs.end()
    }

    /// Whether something before this byte is not on its way.
    pub fn holds_below(&self, end: u64) -> bool {
        self.runs.first_from(0).is_some_and(|first| first < end)
    }

    /// The number of the last batch that has left.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether a batch up to this number is on its way.
    pub fn awaits(&self, last: u64) -> bool {
        self.sent.iter().any(|sent| sent.number <= last)
    }

    /// Where the file ends at the engines, or before.
    pub fn known_end(&self) -> u64 {
        self.known_end
    }

    /// Takes note of where the file ends, as the engines have said.
    pub fn learn_end(&mut self, end: u64) {
        self.known_end = end;
    }

    /// Takes out what may go now, in chunks of so many bytes. `None`: nothing, or nothing before something has arrived.
    pub fn take(&mut self, wanted: SendScope, chunk: u64) -> Option<Batch> {
        let block = self.runs.first_from(self.known_end).map(|first| block_of(first, chunk));
        let below = block.as_ref().map_or(self.known_end, |block| self.known_end.min(block.start));
        let unit = UNIT.min(chunk);
        let mut runs = match wanted {
            SendScope::Whole => self.runs.take_whole(unit, below),
            SendScope::All | SendScope::Together => self.runs.take(0..below),
        };
        runs = self.put_back(runs, 0);
        let mut lengthens = false;
        if let Some(block) = block
            && (runs.is_empty() || wanted == SendScope::Together)
            && (wanted != SendScope::Whole || self.runs.has_whole(unit, self.known_end))
            && !self.sent.iter().any(|sent| sent.lengthens || sent.meets(&block))
        {
            let parts = self.runs.take(block);
            runs.extend(self.put_back(parts, EXTENTS_MAX));
            lengthens = true;
        }
        if runs.is_empty() {
            return None;
        }
        self.last += 1;
        let ranges = runs.iter().map(|(start, run)| *start..*start + run.len() as u64).collect();
        self.sent.push(Sent { number: self.last, ranges, lengthens });
        Some(Batch { number: self.last, runs, kept: 0 })
    }

    /// Puts back what lies where something is on its way, and what is more than `most` runs, if that isn't 0.
    fn put_back(&mut self, runs: Vec<(u64, Vec<u8>)>, most: usize) -> Vec<(u64, Vec<u8>)> {
        let mut goes = Vec::new();
        for (start, run) in runs {
            let range = start..start + run.len() as u64;
            if self.sent.iter().any(|sent| sent.meets(&range)) || (most > 0 && goes.len() == most) {
                self.runs.insert(start, &run);
            } else {
                goes.push((start, run));
            }
        }
        goes
    }

    /// A batch has arrived, or won't. What was to lengthen the file behind one that won't is lost with it: sent as it
    /// is, it would be behind a hole that no program made. Returns how many bytes those are.
    pub fn arrived(&mut self, number: u64, succeeded: bool) -> usize {
        let Some(index) = self.sent.iter().position(|sent| sent.number == number) else { return 0 };
        let sent = self.sent.swap_remove(index);
        if !sent.lengthens {
            return 0;
        }
        if succeeded {
            self.known_end = sent.ranges.iter().fold(self.known_end, |end, range| end.max(range.end));
            return 0;
        }
        self.runs.take(self.known_end..u64::MAX).iter().map(|(_, run)| run.len()).sum()
    }
}

impl Sent {
    fn meets(&self, other: &Range<u64>) -> bool {
        self.ranges.iter().any(|range| range.start < other.end && other.start < range.end)
    }
}

/// What of the file around a byte one request carries.
fn block_of(byte: u64, chunk: u64) -> Range<u64> {
    let start = byte / chunk * chunk;
    let part = (byte - start) / PAYLOAD_MAX * PAYLOAD_MAX;
    start + part..start.saturating_add(chunk.min(part.saturating_add(PAYLOAD_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 8;
    const SPACE: usize = 96;

    /// What applications have written, what engines have, and where a hole may be seen.
    struct Model {
        order: Order,
        written: Vec<Option<u8>>,
        engines: Vec<Option<u8>>,
        may_be_hole: Vec<bool>,
        sent: Vec<Batch>,
        failed: bool,
    }

    fn place(at: u64) -> usize {
        usize::try_from(at).expect("small")
    }

    impl Model {
        fn new() -> Self {
            Self {
                order: Order::default(),
                written: vec![None; SPACE],
                engines: vec![None; SPACE],
                may_be_hole: vec![false; SPACE],
                sent: Vec::new(),
                failed: false,
            }
        }

        fn write(&mut self, offset: u64, len: usize, byte: u8) {
            let start = place(offset);
            for at in 0..start {
                self.may_be_hole[at] |= self.written[at].is_none();
            }
            self.written[start..start + len].fill(Some(byte));
            self.order.insert(offset, &vec![byte; len]);
        }

        fn store(&mut self, runs: &[(u64, Vec<u8>)]) {
            for (offset, run) in runs {
                for (at, byte) in (place(*offset)..).zip(run) {
                    self.engines[at] = Some(*byte);
                }
            }
        }

        fn end(&self) -> usize {
            self.engines.iter().rposition(Option::is_some).map_or(0, |at| at + 1)
        }

        fn check(&self) {
            for at in 0..self.end() {
                assert!(
                    self.engines[at].is_some() || self.may_be_hole[at],
                    "a hole at {at} that nobody made"
                );
            }
        }

        /// One of those on their way arrives: each chunk's part at its moment, and looked at each time.
        fn arrive(&mut self, which: usize, fails: bool) {
            if self.sent.is_empty() {
                return;
            }
            let batch = self.sent.swap_remove(which % self.sent.len());
            if !fails {
                let mut chunks: Vec<u64> = batch.runs.iter().map(|(offset, _)| offset / CHUNK).collect();
                chunks.dedup();
                // Several chunks at once are below the known end, but for one.
                chunks.reverse();
                for chunk in chunks {
                    let mut parts = Runs::default();
                    for (offset, run) in &batch.runs {
                        parts.insert(*offset, run);
                    }
                    let parts = parts.take(chunk * CHUNK..(chunk + 1) * CHUNK);
                    self.store(&parts);
                    self.check();
                }
                self.store(&batch.runs);
            }
            self.order.arrived(batch.number, !fails);
            if fails {
                // The writer gets an error, and goes on behind what the engines or the gathering have.
                self.failed = true;
                let held = |at: usize| {
                    let at = at as u64;
                    self.order.runs.first_from(at) == Some(at)
                        || self
                            .sent
                            .iter()
                            .flat_map(|batch| &batch.runs)
                            .any(|(start, run)| (*start..*start + run.len() as u64).contains(&at))
                };
                let lost: Vec<usize> =
                    (0..SPACE).filter(|at| self.engines[*at].is_none() && !held(*at)).collect();
                for at in lost {
                    self.written[at] = None;
                }
            }
            self.check();
        }
    }

    proptest! {
        #[test]
        fn nobody_sees_a_hole_that_no_application_made(
            steps in proptest::collection::vec((0_u8..12, 0_u64..64, 1_usize..30, any::<bool>()), 1..60),
            stream in any::<bool>(),
        ) {
            let (mut model, mut at) = (Model::new(), 0_u64);
            for (number, (step, offset, len, fails)) in steps.into_iter().enumerate() {
                let byte = u8::try_from(number).expect("few");
                match step {
                    0..5 => {
                        let offset = if stream { at.min(64) } else { offset };
                        model.write(offset, len, byte);
                        at = offset + len as u64;
                    }
                    5..8 => {
                        let wanted = [SendScope::Whole, SendScope::All, SendScope::Together][place(offset) % 3];
                        if let Some(batch) = model.order.take(wanted, CHUNK) {
                            let meets = model.sent.iter().flat_map(|sent| &sent.runs).any(|(start, run)| {
                                batch.runs.iter().any(|(other, part)| {
                                    *start < other + part.len() as u64 && *other < start + run.len() as u64
                                })
                            });
                            prop_assert!(!meets, "two versions of a byte are on their way");
                            model.sent.push(batch);
                        }
                    }
                    _ => model.arrive(len, fails && offset < 8),
                }
            }
            while !model.order.is_empty() {
                if let Some(batch) = model.order.take(SendScope::Together, CHUNK) {
                    model.sent.push(batch);
                }
                model.arrive(0, false);
            }
            prop_assert_eq!(model.order.unsent(), 0);
            if !model.failed {
                prop_assert_eq!(&model.engines, &model.written);
            }
        }
    }

    #[test]
    fn a_growing_file_has_one_block_on_its_way_and_the_rest_goes_side_by_side() {
        let mut order = Order::default();
        let mib = 1 << 20;
        let starts = |batch: Option<Batch>| -> Vec<u64> {
            batch.map(|batch| batch.runs.iter().map(|(start, _)| *start).collect()).unwrap_or_default()
        };
        order.insert(0, &vec![1; 3 * mib]);
        assert_eq!(starts(order.take(SendScope::Whole, 1 << 20)), [0]);
        assert_eq!(order.take(SendScope::Whole, 1 << 20), None, "the first has not arrived");
        order.arrived(1, true);
        assert_eq!(starts(order.take(SendScope::Whole, 1 << 20)), [1 << 20]);
        order.insert(0, &vec![2; mib]);
        assert_eq!(starts(order.take(SendScope::Whole, 1 << 20)), [0], "below the known end");
        order.insert(5, &[3; 10]);
        assert_eq!(order.take(SendScope::All, 1 << 20), None, "an older version of it is on its way");
        assert_eq!(order.arrived(2, false), mib, "what would stand behind a hole");
        order.arrived(3, true);
        assert_eq!(starts(order.take(SendScope::All, 1 << 20)), [5]);
        assert_eq!((order.known_end(), order.end()), (1 << 20, 0));
        order.arrived(4, true);
        assert!(order.is_empty());
    }

    #[test]
    fn a_block_is_what_a_request_carries_of_a_chunk() {
        assert_eq!(block_of(9, 8), 8..16);
        assert_eq!(block_of(PAYLOAD_MAX + 1, 3 * PAYLOAD_MAX / 2), PAYLOAD_MAX..3 * PAYLOAD_MAX / 2);
        assert_eq!(block_of(u64::MAX - 1, u64::MAX), {
            let start = (u64::MAX - 1) / PAYLOAD_MAX * PAYLOAD_MAX;
            start..u64::MAX
        });
    }
}
