//! Transactions of several dkeys, of which several stay prepared over many steps, until they are decided in any order.

use super::model::{Change, Refusal};
use super::observe::Container;
use super::trial::{Outcome, Trial};
use core::fmt::Debug;
use std::collections::BTreeSet;
use uuid::Uuid;
use weir_proto::object::PunchScope;
use weir_proto::{Epoch, Key, ObjectId};
use weir_store::{Decision, TransactionId, UpdateError};

/// Most transactions of a container that are undecided at once.
const PENDING_MAX: usize = 4;

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

    /// Whether it stands against a change, whatever its epoch is.
    fn is_against(&self, change: &Change) -> bool {
        let holds = |object, dkey: &Key| self.holds(object, dkey, u64::MAX);
        match change {
            Change::Update { object, dkey, .. } => holds(*object, dkey),
            Change::Punch { object, scope, .. } => match scope {
                PunchScope::Object => self.places.iter().any(|(held, _)| held == object),
                PunchScope::Dkeys(dkeys) => dkeys.iter().any(|dkey| holds(*object, dkey)),
                PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => holds(*object, dkey),
            },
        }
    }

    /// Whether it may create the object that a change needs, if it isn't there.
    fn may_create_for(&self, change: &Change) -> bool {
        change.needs_object() && self.places.iter().any(|(held, _)| *held == change.object())
    }
}

impl Trial {
    /// Whether a change may have to wait for a prepared transaction that doesn't stand against it.
    pub fn may_wait(&self, change: &Change) -> bool {
        self.here.pending.iter().any(|pending| pending.may_create_for(change))
    }

    /// Whether a prepared transaction stands against a change.
    pub fn is_held(&self, change: &Change) -> bool {
        self.here.pending.iter().any(|pending| pending.is_against(change))
    }

    /// Prepares some transactions, whether they get in each other's way or not, and decides on some at once, perhaps after a
    /// power failure. The others stay undecided. One in three is prepared and committed in one step.
    pub fn transact(&mut self) {
        for _ in 0..=self.random.below(3) {
            if self.draw().one_in(3) {
                self.prepare(true);
            } else if self.here.pending.len() < PENDING_MAX {
                self.prepare(false);
            }
        }
        if self.draw().one_in(4) {
            self.recover();
        }
        for _ in 0..self.random.below(3) {
            self.decide_one();
        }
    }

    /// Changes of several dkeys, each named once.
    fn draw_transaction(&self, epoch: u64) -> Pending {
        let (mut changes, mut places) = (Vec::new(), BTreeSet::new());
        for _ in 0..=self.random.below(4) {
            let (draw, object) = (self.draw(), self.draw().object());
            let dkey = draw.dkey(object);
            let punches = draw.one_in(4);
            let change = if punches {
                draw.punch_of(object, dkey.clone())
            } else {
                draw.update(object, dkey.clone(), epoch)
            };
            // Its conditions are about what was there before the transaction.
            let is_first = changes.iter().all(|other: &Change| other.object() != object);
            if (is_first || !change.needs_object()) && places.insert((object, dkey)) {
                changes.push(change);
            }
        }
        Pending { id: TransactionId(Uuid::from_u128(self.transactions)), epoch, changes, places }
    }

    /// Prepares a transaction, now and then at an epoch behind which others have changed and read something, and perhaps
    /// commits it in the same step.
    fn prepare(&mut self, at_once: bool) {
        let late = if self.draw().one_in(6) { self.late_epoch() } else { None };
        let epoch = late.unwrap_or_else(|| self.next_epoch());
        self.transactions += 1;
        let pending = self.draw_transaction(epoch);
        let planned = self.here.versions.plan(&pending.changes, epoch).err();
        if planned == Some(Refusal::Unfit) {
            return;
        }
        let against: Vec<TransactionId> = (self.here.pending.iter())
            .filter(|other| pending.changes.iter().any(|change| other.is_against(change)))
            .map(|other| other.id)
            .collect();
        self.unsure = (!at_once).then_some(pending.id);
        match self.judge(self.send_prepared(&pending, at_once)) {
            outcome @ Outcome::Done => {
                assert_eq!(planned, None, "a transaction isn't refused");
                assert_eq!(against, [], "two transactions hold the same");
                if at_once {
                    self.settle(outcome, &pending.changes, epoch);
                    let decision = self.insist(async move |container| {
                        container.shard.decision(container.id, pending.id).await
                    });
                    assert_eq!(decision, Some(Decision::Committed(Epoch(epoch))));
                } else {
                    self.here.pending.push(pending);
                }
            }
            Outcome::Held(UpdateError::Undecided { transaction, .. }) => {
                let waits = pending.changes.iter().any(|change| self.may_wait(change));
                assert!(
                    against.contains(&transaction) || waits,
                    "{transaction:?} isn't against it, but {against:?}"
                );
            }
            Outcome::Held(error) => assert!(late.is_some(), "{error}"),
            outcome @ Outcome::Refused(_) => self.settle(outcome, &pending.changes, epoch),
            outcome @ Outcome::Doubtful if at_once => self.settle(outcome, &pending.changes, epoch),
            Outcome::Doubtful => {
                self.recover();
                let undecided = self.undecided(self.here.id);
                if undecided.iter().any(|(found, _)| *found == pending.id) {
                    self.here.pending.push(pending);
                }
            }
        }
        self.unsure = None;
    }

    /// Sends a transaction, now and then twice.
    fn send_prepared(&self, pending: &Pending, at_once: bool) -> Option<Result<(), UpdateError>> {
        let (container, sent) = (self.container(), pending.changes.clone());
        let (id, epoch, again) = (pending.id, Epoch(pending.epoch), self.draw().one_in(6));
        self.run(async move {
            let operations: Vec<_> = sent.iter().map(Change::operation).collect();
            for _ in 0..=u32::from(again) {
                if at_once {
                    let committed = container.shard.transact(container.id, id, epoch, &operations).await?;
                    assert_eq!(committed, epoch);
                } else {
                    container.shard.prepare(container.id, id, epoch, &operations).await?;
                }
            }
            Ok(())
        })
    }

    /// Asks for something, again after each failure.
    fn insist<T: Debug + 'static, E: Debug + 'static>(
        &mut self,
        ask: impl AsyncFn(Container) -> Result<T, E> + Copy + 'static,
    ) -> T {
        loop {
            let container = self.container();
            match self.run(async move { ask(container).await }) {
                Some(Ok(answer)) => return answer,
                other => assert!(self.faulty, "{other:?}"),
            }
            self.recover();
        }
    }

    /// Decides on all transactions, in any order.
    pub fn conclude(&mut self) {
        while !self.here.pending.is_empty() {
            self.decide_one();
        }
    }

    /// Commits or aborts a prepared transaction, again after each failure.
    pub fn decide_one(&mut self) {
        if self.here.pending.is_empty() {
            return;
        }
        let at = self.random.below(self.here.pending.len() as u64) as usize;
        let Pending { id, epoch, changes, .. } = self.here.pending.remove(at);
        let commits = self.draw().one_in(2);
        self.unsure = Some(id);
        self.insist(async move |container| {
            if commits {
                container.shard.commit_transaction(container.id, id).await.map(drop)
            } else {
                container.shard.abort_transaction(container.id, id).await
            }
        });
        self.unsure = None;
        let decision = self.insist(async move |container| container.shard.decision(container.id, id).await);
        let expected = if commits { Decision::Committed(Epoch(epoch)) } else { Decision::Aborted };
        assert_eq!(decision, Some(expected));
        if commits {
            let plan = (self.here.versions.plan(&changes, epoch))
                .expect("it was prepared, and nobody could come between");
            self.changes += 1;
            self.here.versions.take(plan);
        }
    }
}
