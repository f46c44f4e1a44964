//! What the log says of keys, a range of them at a time: a log names many long keys in few bytes, so that all of them may take
//! a thousand times its length. It is read once more for each range.

use super::Inspector;
use super::finding::Findings;
use super::log::Found;
use super::report::LogReport;
use std::collections::BTreeMap;
use weir_format::key;
use weir_format::record::Change;

/// Most bytes of memory for changes: all of an ordinary log are in one range.
pub(super) const BYTES_MAX: usize = 256 << 20;

/// Bytes that a change takes beside key and value.
const CHANGE_BYTES: usize = 128;

/// A key and its new value; `None`: it is gone.
pub(super) type Changed = (Vec<u8>, Option<Vec<u8>>);

/// The last changes of a range of keys.
struct Part {
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// First key of the range.
    from: Vec<u8>,
    /// First key behind it; `None`: it has no end.
    end: Option<Vec<u8>>,
    bytes: usize,
    /// Most bytes of memory.
    limit: usize,
}

fn bytes_of(key: &[u8], value: Option<&Vec<u8>>) -> usize {
    key.len() + value.map_or(0, Vec::len) + CHANGE_BYTES
}

impl Part {
    fn new(from: &[u8], limit: usize) -> Self {
        Self { changes: BTreeMap::new(), from: from.to_vec(), end: None, bytes: 0, limit }
    }

    fn has(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }

    /// Takes in a change of a key of the range, which ends earlier where there is no room for all of it.
    fn add(&mut self, change: Change) {
        let (key, value) = match change {
            Change::Put { key, value } => (key, Some(value)),
            Change::Remove { key } => (key, None),
        };
        if !self.has(&key) {
            return;
        }
        let (key_len, added) = (key.len(), bytes_of(&key, value.as_ref()));
        if let Some(before) = self.changes.insert(key, value) {
            self.bytes -= key_len + before.map_or(0, |value| value.len()) + CHANGE_BYTES;
        }
        self.bytes += added;
        // The first stays in any case, so that each range has one.
        while self.bytes > self.limit && self.changes.len() > 1 {
            let Some((key, value)) = self.changes.pop_last() else { return };
            self.bytes -= bytes_of(&key, value.as_ref());
            self.end = Some(key);
        }
    }
}

/// The last change of each key that the log has.
pub(crate) struct Overlay<'a> {
    inspector: &'a Inspector,
    part: Part,
    /// Whether some change is one of a transaction.
    pub(super) has_transactions: bool,
}

impl<'a> Overlay<'a> {
    pub(super) fn new(inspector: &'a Inspector) -> Self {
        Self { inspector, part: Part::new(&[], inspector.overlay_bytes), has_transactions: false }
    }

    /// Takes in a change, the next one of the log.
    pub(super) fn add(&mut self, change: Change) {
        self.has_transactions |= change.key().first() == Some(&key::TRANSACTION);
        self.part.add(change);
    }

    /// Has the part ready that a key is in.
    async fn turn_to(&mut self, key: &[u8]) {
        if self.part.has(key) {
            return;
        }
        self.part = Part::new(key, self.part.limit);
        let part = &mut self.part;
        // What is wrong with the log was told when it was read first.
        let mut take = |_: &Inspector, _: &Found, change: Change, _: &mut Findings| part.add(change);
        let _: LogReport = self.inspector.read_changes(&mut Findings::default(), &mut take).await;
    }

    /// Whether the log says something of a key.
    pub(super) async fn has(&mut self, key: &[u8]) -> bool {
        self.turn_to(key).await;
        self.part.changes.contains_key(key)
    }

    /// The first change of a key from one on.
    async fn first(&mut self, from: &[u8]) -> Option<Changed> {
        let mut from = from.to_vec();
        loop {
            self.turn_to(&from).await;
            if let Some((key, value)) = self.part.changes.range(from..).next() {
                return Some((key.clone(), value.clone()));
            }
            from = self.part.end.clone()?;
        }
    }
}

/// Goes along the changes of a range of keys.
pub(super) struct Along<'a, 'b> {
    overlay: &'b mut Overlay<'a>,
    /// Where it goes on; `None`: it has come to its end.
    from: Option<Vec<u8>>,
    below: Option<&'b [u8]>,
    next: Option<Changed>,
}

impl<'a, 'b> Along<'a, 'b> {
    pub(super) fn new(overlay: &'b mut Overlay<'a>, from: &[u8], below: Option<&'b [u8]>) -> Self {
        Self { overlay, from: Some(from.to_vec()), below, next: None }
    }

    /// The next change if its key is what is wanted.
    pub(super) async fn next_if(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Changed> {
        if self.next.is_none() {
            let found = self.overlay.first(&self.from.take()?).await;
            let below = self.below;
            self.next = found.filter(|(key, _)| below.is_none_or(|below| key.as_slice() < below));
        }
        let next = self.next.take_if(|(key, _)| is_wanted(key))?;
        self.from = Some([&next.0[..], &[0]].concat());
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::{CONTAINER, fill, on_a_disk};
    use crate::inspect::{Depth, Field, Filter, Line, Part as Dump, Report};
    use core::ops::ControlFlow;
    use weir_format::node::ENTRY_MAX;

    #[test]
    fn many_long_keys_take_no_more_than_their_part_may() {
        let mut part = Part::new(&[], 1 << 20);
        for number in (0..5000u32).rev() {
            let key = [&[9; ENTRY_MAX - 4][..], &number.to_be_bytes()].concat();
            part.add(Change::Remove { key });
            assert!(part.bytes <= part.limit);
        }
        let fits = u32::try_from(part.changes.len()).expect("few");
        assert!(fits > 100 && part.end.as_ref().is_some_and(|end| end.ends_with(&fits.to_be_bytes())));
        // The first ones are there, as they were changed last.
        let first = [&[9; ENTRY_MAX - 4][..], &[0; 4]].concat();
        part.add(Change::Put { key: first.clone(), value: vec![1] });
        assert_eq!(part.changes.first_key_value(), Some((&first, &Some(vec![1]))));
    }

    async fn look(inspector: &Inspector) -> (Vec<Line>, Report) {
        let (mut lines, filter) = (Vec::new(), Filter { limit: usize::MAX, ..Filter::default() });
        let mut keep = |line| {
            lines.push(line);
            ControlFlow::Continue(())
        };
        inspector.dump(Dump::Entries, &filter, &mut keep).await.expect("dumped");
        (lines, inspector.report(Depth::Everything).await)
    }

    #[test]
    fn what_is_found_does_not_depend_on_how_much_is_remembered_at_once() {
        on_a_disk(async |rt, disk, store, shard| {
            fill(&shard, 0).await;
            store.checkpoint().await.expect("written");
            fill(&shard, 1).await;
            let scope = weir_proto::object::PunchScope::Dkeys(vec![weir_proto::Key::from_u64(3)]);
            let object = weir_proto::ObjectId { hi: 0, lo: 1 };
            let none = weir_proto::object::Conditions::NONE;
            let epoch = weir_proto::Epoch(1 << 20);
            shard.punch(CONTAINER, object, &scope, epoch, none).await.expect("punched");
            shard.aggregate(CONTAINER, epoch).await.expect("aggregated");
            // What is on the device stays as it is.
            drop((shard, store));
            let mut inspector = Inspector::open(disk.attach(&rt)).await.expect("a store");
            let (lines, report) = look(&inspector).await;
            let of_log = lines.iter().filter(|line| line[0].1 == Field::Text("log".to_owned())).count();
            assert!(report.findings.is_empty() && lines.len() > of_log, "{:?}", report.findings);
            assert!(report.log.changes > 100, "{:?}", report.log);
            for bytes in [0, 5000] {
                inspector.overlay_bytes = bytes;
                assert_eq!(look(&inspector).await, (lines.clone(), report.clone()), "{bytes} bytes");
            }
        });
    }
}
