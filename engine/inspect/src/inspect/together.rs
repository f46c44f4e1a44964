//! What the entries of each transaction mean together: those of the checkpoint and of the log, of which an altered store may have
//! so many that they aren't followed.

use weir_format::codec::Malformed;
use weir_format::key::TransactionKey;
use weir_store::offline::Transactions;

/// Transactions as an open follows them, as long as they take no more memory than they may.
pub(super) struct Together {
    table: Transactions,
    /// Most bytes of memory.
    limit: usize,
    is_full: bool,
}

impl Together {
    pub(super) fn new(limit: usize) -> Self {
        Self { table: Transactions::default(), limit, is_full: false }
    }

    /// Takes in an entry.
    pub(super) fn follow(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Malformed> {
        if self.is_full {
            return Ok(());
        }
        self.table.follow(key, value)?;
        if self.table.bytes() > self.limit {
            (self.table, self.is_full) = (Transactions::default(), true);
        }
        Ok(())
    }

    /// What is wrong with those that await their decision; `None`: there were too many to say.
    pub(super) fn misfits(&self) -> Option<impl Iterator<Item = (TransactionKey, &'static str)>> {
        (!self.is_full).then(|| self.table.misfits())
    }

    /// Bytes of memory up to which they are followed.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::Together;
    use crate::inspect::tests::{CONTAINER, entries, on_a_disk};
    use crate::inspect::{Depth, Inspector, Severity};
    use uuid::Uuid;
    use weir_proto::object::{Conditions, PunchScope};
    use weir_proto::{Epoch, Key, ObjectId, TransactionId};
    use weir_runtime::Handle;
    use weir_store::{Operation, Shard};

    async fn prepare(rt: &Handle, shard: &Shard, number: u128) {
        let dkeys = (0..100).map(Key::from_u64).collect();
        let (object, scope) =
            (ObjectId { hi: 0, lo: 1 + u64::try_from(number).expect("small") }, PunchScope::Dkeys(dkeys));
        let punch = Operation::Punch { object, scope, conditions: Conditions::NONE };
        let (id, epoch) = (TransactionId(Uuid::from_u128(number)), Epoch(rt.wall_ns() + 1000));
        shard.prepare(CONTAINER, id, epoch, &[punch]).await.expect("prepared");
    }

    #[test]
    fn who_has_more_transactions_than_are_followed_is_told_that_the_check_is_incomplete() {
        on_a_disk(async |rt, disk, store, shard| {
            // Some in the checkpoint, some in the log.
            prepare(&rt, &shard, 1).await;
            store.checkpoint().await.expect("written");
            prepare(&rt, &shard, 2).await;
            drop((shard, store));
            let mut inspector = Inspector::open(disk.attach(&rt)).await.expect("a store");
            let whole = inspector.report(Depth::Everything).await;
            assert!(whole.findings.is_empty(), "{:?}", whole.findings);
            let mut all = Together::new(usize::MAX);
            for (key, value) in entries(&inspector).await {
                all.follow(&key, Some(&value)).expect("sound");
            }
            let needed = all.table.bytes();
            assert!(needed > 0);
            for (memory, is_complete) in [(needed, true), (needed - 1, false), (0, false)] {
                inspector.overlay_bytes = memory;
                let report = inspector.report(Depth::Everything).await;
                let told =
                    report.findings.iter().find(|finding| finding.reason.contains("check is incomplete"));
                assert_eq!(told.is_none(), is_complete, "{memory} bytes: {:?}", report.findings);
                assert!(told.is_none_or(|told| told.severity == Severity::Note) && report.damages == 0);
            }
        });
    }
}
