//! Transactions of several dkeys, which stay prepared over many steps before they are decided.

use super::model::Change;
use super::trial::{Outcome, Trial};
use crate::setup::*;
use std::collections::BTreeSet;
use uuid::Uuid;
use weir_proto::object::PunchScope;
use weir_proto::{Epoch, Key, ObjectId};
use weir_store::{Decision, TransactionId};

/// A transaction that is prepared and not decided.
pub struct Pending {
    pub id: TransactionId,
    pub epoch: u64,
    changes: Vec<Change>,
    places: BTreeSet<(ObjectId, Key)>,
}

impl Pending {
    /// Whether what a dkey holds at an epoch depends on the decision.
    pub fn holds(&self, object: ObjectId, dkey: &Key, epoch: u64) -> bool {
        self.epoch <= epoch && self.places.contains(&(object, dkey.clone()))
    }
}

impl Trial {
    /// Whether a prepared transaction stands against a change, whatever its epoch is.
    pub fn is_held(&self, change: &Change) -> bool {
        let Some(pending) = &self.pending else { return false };
        let holds = |object, dkey: &Key| pending.holds(object, dkey, u64::MAX);
        match change {
            Change::Update { object, dkey, .. } => holds(*object, dkey),
            Change::Punch { object, scope, .. } => match scope {
                PunchScope::Object => pending.places.iter().any(|(held, _)| held == object),
                PunchScope::Dkeys(dkeys) => dkeys.iter().any(|dkey| holds(*object, dkey)),
                PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => holds(*object, dkey),
            },
        }
    }

    /// Prepares changes of several dkeys together and decides on them at once, perhaps after a power failure, or leaves
    /// them undecided.
    pub fn transact(&mut self) {
        if self.pending.is_some() {
            return self.conclude();
        }
        let epoch = self.next_epoch();
        let mut changes: Vec<Change> = Vec::new();
        let mut places = BTreeSet::new();
        for _ in 0..=self.random.below(4) {
            let (draw, object) = (self.draw(), self.draw().object());
            let dkey = draw.dkey(object);
            if places.insert((object, dkey.clone())) {
                let punches = draw.one_in(4);
                changes.push(if punches {
                    draw.punch_of(object, dkey)
                } else {
                    draw.update(object, dkey, epoch)
                });
            }
        }
        self.transactions += 1;
        let id = TransactionId(Uuid::from_u128(self.transactions));
        let (shard, sent) = (self.shard.clone(), changes.clone());
        let prepared = self.run(async move {
            let operations: Vec<_> = sent.iter().map(Change::operation).collect();
            shard.prepare(CONTAINER, id, Epoch(epoch), &operations).await
        });
        let pending = Pending { id, epoch, changes, places };
        match self.judge(prepared) {
            Outcome::Done => {
                let planned = self.versions.plan(&pending.changes, epoch);
                assert!(planned.is_ok(), "a transaction isn't refused as {:?}", planned.err());
                self.pending = Some(pending);
            }
            Outcome::Held(error) => panic!("{error}"),
            outcome @ Outcome::Refused(_) => return self.settle(outcome, &pending.changes, epoch),
            Outcome::Doubtful => {
                self.recover();
                let undecided = self.shard.undecided(CONTAINER).expect("the container");
                self.pending = undecided.iter().any(|(found, _)| *found == id).then_some(pending);
            }
        }
        if self.draw().one_in(4) {
            self.recover();
        }
        if self.draw().one_in(2) {
            self.conclude();
        }
    }

    /// Commits or aborts what is prepared, again after each failure.
    pub fn conclude(&mut self) {
        let Some(Pending { id, epoch, changes, .. }) = self.pending.take() else { return };
        let commits = self.draw().one_in(2);
        loop {
            let shard = self.shard.clone();
            let done = self.run(async move {
                if commits {
                    shard.commit_transaction(CONTAINER, id).await.map(drop)
                } else {
                    shard.abort_transaction(CONTAINER, id).await
                }
            });
            match done {
                Some(Ok(())) => break,
                other => assert!(self.faulty, "{other:?}"),
            }
            self.recover();
        }
        let decision = self.shard.decision(CONTAINER, id).expect("the container");
        let expected = if commits { Decision::Committed(Epoch(epoch)) } else { Decision::Aborted };
        assert_eq!(decision, Some(expected));
        if commits {
            let plan =
                self.versions.plan(&changes, epoch).expect("it was prepared, and nobody could come between");
            self.changes += 1;
            self.versions.take(plan);
        }
    }
}
