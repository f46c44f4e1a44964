//! The latest log record of each object that isn't durable: a reader of the object waits for it.

use crate::format::key::ObjectKey;
use crate::versions::timestamps::ObjectHash;
use std::collections::{HashMap, VecDeque};

/// Objects with records that aren't durable.
#[derive(Default)]
pub(crate) struct LatestRecords {
    /// Their records, the oldest first.
    order: VecDeque<(u64, ObjectKey)>,
    /// The newest of these records of each object.
    newest: HashMap<ObjectKey, u64, ObjectHash>,
}

impl LatestRecords {
    /// A record of an object, newer than all others.
    pub(crate) fn note(&mut self, object: ObjectKey, record: u64) {
        debug_assert!(
            self.order.back().is_none_or(|(last, _)| *last <= record),
            "records have ascending numbers"
        );
        self.newest.insert(object, record);
        self.order.push_back((record, object));
    }

    /// The newest record of an object; 0: all are durable.
    pub(crate) fn newest(&self, object: &ObjectKey) -> u64 {
        self.newest.get(object).copied().unwrap_or(0)
    }

    /// Records up to this one are durable.
    pub(crate) fn forget(&mut self, record: u64) {
        while let Some((number, object)) = self.order.pop_front_if(|(number, _)| *number <= record) {
            if self.newest.get(&object) == Some(&number) {
                self.newest.remove(&object);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_proto::ObjectId;

    proptest! {
        #[test]
        fn the_newest_record_of_an_object_is_known_until_it_is_durable(
            steps in proptest::collection::vec((0u64..4, 0u64..3, proptest::bool::weighted(0.3)), 1..100),
        ) {
            let object = |lo: u64| (1, 1, ObjectId { hi: 0, lo });
            let (mut latest, mut model, mut durable) = (LatestRecords::default(), [0u64; 4], 0);
            for (number, (which, behind, forget)) in (1u64..).zip(steps) {
                latest.note(object(which), number);
                model[usize::try_from(which).expect("small")] = number;
                if forget {
                    durable = durable.max(number.saturating_sub(behind));
                    latest.forget(durable);
                }
                for (lo, newest) in (0u64..).zip(model) {
                    prop_assert_eq!(latest.newest(&object(lo)), if newest > durable { newest } else { 0 });
                }
            }
            latest.forget(u64::MAX);
            prop_assert!(latest.order.is_empty() && latest.newest.is_empty());
        }
    }
}
