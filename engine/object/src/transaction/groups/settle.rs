//! The end of transactions of groups whose leader or whose members were away.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::Epoch;
use weir_proto::opcode;
use weir_proto::replica_transaction::{
    GroupName, Known, ReplicaForgetRequest, ReplicaKnownRequest, ReplicaOutcomeRequest,
};
use weir_proto::transaction::Outcome;
use weir_runtime::{Handle, join_all};
use weir_store::TransactionError;

use super::leader::Stored;
use super::{SCOPE, Taking};
use crate::groups::{leads, serving};
use crate::transaction::settle::split;
use crate::transaction::{ASK_LIMIT, Claim, Name, Transactions};
use crate::unsettled::Place;

/// How often who has prepared a transaction looks whether it is decided, and who leads: each time is a round trip at most.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often who has carried out a decision, and keeps it for others, looks whether it leads now.
const KEPT_PATIENCE: Duration = Duration::from_secs(2);

/// Pauses before targets that don't answer are told again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Transactions that are looked at together at the start.
const PAGE: usize = 256;

impl Transactions {
    /// Takes up the transactions of groups in which this target took part before it was started.
    pub(in crate::transaction) fn take_up_groups(self: &Rc<Self>, pool: &TargetPool) {
        let mut from = Vec::new();
        loop {
            let page = pool.shard().attributes(SCOPE, &from, PAGE);
            let Some((last, _)) = page.last() else { return };
            // The least name greater than the last one.
            from = [last.as_slice(), &[0]].concat();
            for (name, _) in page {
                match split(&name) {
                    Some((container, id)) => self.watch_of_groups((pool.id(), container, id)),
                    None => {
                        tracing::warn!(pool = %pool.id(), "the name of a transaction can't be understood");
                    }
                }
            }
        }
    }

    /// Sees to it that a transaction in which this target takes part is decided, and that all hear of it if this target comes to
    /// lead.
    pub(super) fn watch_of_groups(self: &Rc<Self>, name: Name) {
        if !self.watched.begin(name) {
            return;
        }
        let (service, rt) = (Rc::downgrade(self), self.admission.rt.clone());
        self.admission.rt.spawn(async move {
            let mut pause = PATIENCE;
            loop {
                rt.sleep(pause).await;
                let Some(service) = service.upgrade() else { return };
                service.watched.look(name);
                match service.see_to(name).await {
                    Some(next) => pause = next,
                    None if service.watched.end(name) => return,
                    None => {}
                }
            }
        });
    }

    /// Looks after a transaction once. `None`: there is no more to do; otherwise when to look again.
    async fn see_to(self: &Rc<Self>, name: Name) -> Option<Duration> {
        let pool = self.admission.pools.get(name.0).ok()?;
        let taking = Taking::of(&pool, name.1, name.2)?;
        let lead = taking.lead();
        if leads(&pool, self.own(), lead) {
            // Otherwise it is being led, or told of.
            if let Ok(claim) = self.claimed.take(name) {
                self.decide_anew(claim, &pool, taking).await;
            }
            return Some(PATIENCE);
        }
        let is_undecided = match pool.shard().is_undecided(name.1, name.2).await {
            Ok(is_undecided) => is_undecided,
            Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => false,
            // A store that has failed tells no more before the next start.
            Err(_) => return Some(KEPT_PATIENCE),
        };
        if !is_undecided {
            let is_kept = taking.is_committed;
            if !is_kept {
                self.forget_here(&pool, name).await;
            }
            return is_kept.then_some(KEPT_PATIENCE);
        }
        if let Some(outcome) = self.ask_group(&pool, name, lead).await {
            match self.decide(name, outcome).await {
                Ok(()) => self.forget_decided(name, outcome).await,
                Err(error) => {
                    tracing::warn!(transaction = %name.2, %error, "a transaction that was decided is still prepared here");
                }
            }
        }
        Some(PATIENCE)
    }

    /// Decides what a former leader has left undecided, or untold.
    async fn decide_anew(self: &Rc<Self>, claim: Claim, pool: &TargetPool, taking: Taking) {
        let name = claim.name;
        match self.resolve(&claim, pool, taking.lead()).await {
            Some(Outcome::Committed) => {
                finish(Rc::downgrade(self), self.admission.rt.clone(), claim, taking.groups).await;
            }
            Some(Outcome::Aborted) => {
                if let Err(error) = self.decide(name, Outcome::Aborted).await {
                    tracing::warn!(transaction = %name.2, %error, "a transaction can't be given up");
                    return;
                }
                self.forget_here(pool, name).await;
            }
            None => {}
        }
    }

    /// Asks the target that leads a group what became of a transaction.
    async fn ask_group(&self, served: &TargetPool, name: Name, lead: GroupName) -> Option<Outcome> {
        let (pool, container, transaction) = name;
        let group = serving(served, lead)?;
        let (rank, index) = *group.members.first()?;
        let request = ReplicaOutcomeRequest { pool, container, transaction, lead };
        let opcode = opcode::TARGET_REPLICA_OUTCOME;
        let asked = self.admission.pools.engines().ask(rank, index, opcode, &request, ASK_LIMIT).await;
        asked
            .inspect_err(|error| {
                tracing::debug!(%transaction, %error, "what was prepared waits for the group that leads it");
            })
            .ok()
            .flatten()
    }

    /// What became of a transaction that nobody is leading, where this target leads the group; `None` while that can't be
    /// said. What is said is stored at all members of the group.
    ///
    /// Where no member knows of a decision none was told of to anybody: the transaction is given up.
    pub(super) async fn resolve(&self, claim: &Claim, pool: &TargetPool, lead: GroupName) -> Option<Outcome> {
        let name = claim.name;
        let here = self.decided_here(pool, name).await.ok()?;
        let outcome = match here {
            Some(outcome) => outcome,
            None => self.ask_members(pool, name, lead).await?.unwrap_or(Outcome::Aborted),
        };
        // What is known of it here: whoever has carried it out and forgotten the groups knows that all have heard.
        let groups = Taking::of(pool, name.1, name.2).map_or_else(Vec::new, |taking| taking.groups);
        let epoch = pool.shard().epoch_of_transaction(name.1, name.2).unwrap_or(Epoch::ZERO);
        match self.store_in_group(pool, name, lead, (outcome, epoch, &groups)).await {
            Stored::Everywhere => Some(outcome),
            Stored::Other(_) | Stored::NotLeading | Stored::NotYet => None,
        }
    }

    /// The decision that another member of the group has, if any; `None` as long as not all have said.
    async fn ask_members(&self, served: &TargetPool, name: Name, lead: GroupName) -> Option<Option<Outcome>> {
        let (pool, container, transaction) = name;
        let group = serving(served, lead)?;
        let request = ReplicaKnownRequest { pool, container, map_version: group.version, transaction };
        let (engines, opcode) = (self.admission.pools.engines(), opcode::TARGET_REPLICA_KNOWN);
        let others = group.members.iter().filter(|place| **place != self.own());
        let asked = others.map(|(rank, index)| engines.ask(*rank, *index, opcode, &request, ASK_LIMIT));
        let mut found = None;
        for answer in join_all(asked).await {
            match answer {
                Ok(Known::Nothing) => {}
                Ok(Known::Decided(outcome)) => found = Some(outcome),
                Ok(Known::Led) => return None,
                Err(error) => {
                    tracing::debug!(%transaction, %error, "a member has not said what it knows of a transaction");
                    return None;
                }
            }
        }
        Some(found)
    }
}

/// The targets that take part, by the newest map.
fn places(pool: &TargetPool, groups: &[GroupName]) -> BTreeSet<Place> {
    groups.iter().filter_map(|group| serving(pool, *group)).flat_map(|serving| serving.members).collect()
}

/// Has all targets carry out what is committed, and forgets the transaction when all have. Ends before where another target
/// leads the group.
pub(super) async fn finish(service: Weak<Transactions>, rt: Handle, claim: Claim, groups: Vec<GroupName>) {
    claim.set_committed();
    let name = claim.name;
    let (mut told, mut pause) = (BTreeSet::new(), PAUSE.0);
    loop {
        let Some(service) = service.upgrade() else { return };
        let Ok(pool) = service.admission.pools.get(name.0) else { return };
        if !leads(&pool, service.own(), groups[0]) {
            return;
        }
        let untold: Vec<Place> = places(&pool, &groups).difference(&told).copied().collect();
        if untold.is_empty() {
            // Who waits until all have heard needn't wait for that.
            let (service, again) = (Rc::downgrade(&service), rt.clone());
            rt.spawn(forget(service, again, claim, groups[0]));
            return;
        }
        let tell = untold.iter().map(|place| service.tell(name, *place, Outcome::Committed));
        for (place, answer) in untold.iter().zip(join_all(tell).await) {
            match answer {
                Ok(()) => {
                    told.insert(*place);
                }
                Err(error) => {
                    tracing::debug!(transaction = %name.2, %error, "a target hasn't heard of a commit yet");
                }
            }
        }
        if untold.iter().all(|place| told.contains(place)) {
            continue;
        }
        drop((service, pool));
        rt.sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// All have carried it out: no member of the group keeps it any more, this one last.
async fn forget(service: Weak<Transactions>, rt: Handle, claim: Claim, lead: GroupName) {
    let (pool, container, transaction) = claim.name;
    let request = ReplicaForgetRequest { pool, container, transaction };
    let mut told = BTreeSet::new();
    loop {
        let Some(service) = service.upgrade() else { return };
        let Ok(served) = service.admission.pools.get(pool) else { return };
        let Some(group) =
            serving(&served, lead).filter(|group| group.members.first() == Some(&service.own()))
        else {
            return;
        };
        let left: Vec<Place> =
            group.members[1..].iter().filter(|place| !told.contains(*place)).copied().collect();
        if left.is_empty() {
            service.forget_here(&served, claim.name).await;
            return;
        }
        let (engines, opcode) = (service.admission.pools.engines(), opcode::TARGET_REPLICA_FORGET);
        let asked =
            left.iter().map(|place| engines.ask::<_, ()>(place.0, place.1, opcode, &request, ASK_LIMIT));
        for (place, answer) in left.iter().zip(join_all(asked).await) {
            if answer.is_ok() {
                told.insert(*place);
            }
        }
        if left.iter().all(|place| told.contains(place)) {
            continue;
        }
        drop((service, served));
        rt.sleep(PAUSE.0).await;
    }
}
