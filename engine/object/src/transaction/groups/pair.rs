//! Transactions of one group that has two members. The leader judges and prepares them, the other member stores them at once, by one
//! log record, and then the leader commits.
//!
//! Nobody has to be told of the decision: the other member has decided by storing it. Until the leader has committed, it is unsettled
//! there, and told to nobody. So it never happened where the leader has forgotten it, and what the other member has of it goes, as
//! that of any change that is unsettled.

use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_pool::TargetPool;
use weir_proto::replica_transaction::{GroupName, PreparedChange, ReplicaPrepareRequest};
use weir_proto::transaction::{Change, Declined, Outcome};
use weir_proto::{Der, Epoch, Key, Rank, opcode};
use weir_rpc::{Request, Status};
use weir_runtime::sync::Gate;

use super::leader::Led;
use super::member::{BEHIND_MAX, LOOK, arrived_changes, stopping};
use super::plan::{dkey_of, object_of};
use super::{PAUSE, failed, kept};
use crate::admission::refusal;
use crate::groups::{leads_not, serving};
use crate::transaction::leader::{given_up, late, restarted};
use crate::transaction::{Claim, Transactions};
use crate::unsettled::{Pending, Place};

/// Longest wait for the other member to store a transaction before it is asked what became of it: it fetches and flushes some MiB.
const STORE_LIMIT: Duration = Duration::from_secs(2);

impl Transactions {
    /// Stores what leaders have prepared from now on.
    pub(super) fn follow_in_pairs(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        let store = move |rank: Rank, asked: ReplicaPrepareRequest, request: Rc<Request>| {
            let service = weak.upgrade();
            async move {
                let stored = match service {
                    Some(service) => service.store_arrived(rank, asked, &request).await,
                    None => Err(stopping()),
                };
                Ok::<_, Refusal>(stored.map_err(|Status { der, message }| Declined { der, message }))
            }
        };
        self.admission.pools.engines().serve_lent(opcode::TARGET_REPLICA_TRANSACT, store);
    }

    /// Leads a transaction to its end.
    pub(super) async fn lead_pair(
        self: &Rc<Self>,
        claim: Claim,
        led: Led,
        other: Place,
    ) -> Result<Epoch, Status> {
        let (own, id) = (self.own(), led.name.2);
        if let Err(status) = self.prepare_first(&led).await {
            self.admission.rt.spawn(Rc::clone(self).give_up(claim, vec![own]));
            return Err(restarted(status));
        }
        let changes = &led.plan.parts[&other];
        let opcode = opcode::TARGET_REPLICA_TRANSACT;
        match self.have_done(other, opcode, led.request(), changes, STORE_LIMIT).await {
            Ok(Ok(())) => {}
            Ok(Err(Declined { der, message })) if is_known(der) => {
                self.admission.rt.spawn(Rc::clone(self).give_up(claim, vec![own]));
                return Err(restarted(Status::new(der, message)));
            }
            // An engine of an earlier release.
            Err(Status { der: Der::NOSYS, .. }) => return self.lead_all(claim, led).await,
            failed => {
                tracing::debug!(transaction = %id, ?failed, "the other member has not said whether it has stored it");
                if self.ask_other(&led, other).await? == Outcome::Aborted {
                    self.admission.rt.spawn(Rc::clone(self).give_up(claim, vec![own]));
                    return Err(given_up("the other member of its group has not stored it in time"));
                }
            }
        }
        let (pool, container, _) = led.name;
        let done = led.pool.shard().commit_transaction_with(container, id, &[kept(led.name, None)]).await;
        done.map_err(|error| failed(&error))?;
        let object = led.plan.groups[0].object;
        self.replication.tell((pool, object), (own, led.epoch), other);
        drop(claim);
        Ok(led.epoch)
    }

    /// Prepares a transaction here. Returns before that is durable: the other member tells nobody of it before the commit is.
    async fn prepare_first(self: &Rc<Self>, led: &Led) -> Result<(), Status> {
        let (_, container, id) = led.name;
        let changes = led.plan.parts[&self.own()].clone();
        let (service, request, begun) = (Rc::clone(self), led.request(), Gate::new());
        let (prepared, gate) = (changes.clone(), begun.clone());
        let preparing = async move { service.prepare_of_groups(request, prepared, gate).await };
        let preparing = self.admission.rt.spawn(preparing);
        let late = || late(id);
        let in_time = self.admission.rt.timeout_at(led.deadline, begun.wait()).await;
        in_time.map_err(|_| late())?;
        if led.pool.shard().epoch_of_transaction(container, id).is_none() {
            let refused = || Err(Status::new(Der::AGAIN, format!("transaction {id} is not prepared")));
            return preparing.await.unwrap_or_else(|_| Err(stopping())).and_then(|()| refused());
        }
        self.settle_found(&led.pool, led.name, changes.iter().map(|prepared| &prepared.change)).await?;
        if self.admission.rt.now() >= led.deadline { Err(late()) } else { Ok(()) }
    }

    /// What becomes of a transaction of which it isn't known whether the other member has stored it. It doesn't from then on, if it
    /// hasn't.
    ///
    /// # Errors
    /// When another target decides.
    async fn ask_other(&self, led: &Led, other: Place) -> Result<Outcome, Status> {
        loop {
            // By a map that isn't leased there may be a leader that is not known here.
            let group =
                serving(&led.pool, led.plan.groups[0]).filter(|_| self.admission.may_serve(&led.pool));
            if let Some(group) = group {
                if group.members.first() != Some(&self.own()) {
                    return Err(leads_not(&led.pool, self.own()));
                }
                if !group.members.contains(&other) {
                    // It has told nobody of it, and gets what it lacks before it serves again.
                    return Ok(Outcome::Committed);
                }
                let aborted = (Outcome::Aborted, led.epoch, led.plan.groups.as_slice());
                match self.have_decided(other, led.name, group.version, aborted).await {
                    Ok(outcome) => return Ok(outcome),
                    Err(status) => {
                        tracing::debug!(transaction = %led.name.2, %status, "the other member doesn't say what it has stored");
                    }
                }
            }
            if led.pool.shard().failure().is_some() {
                let message = "the device of the target that leads the transaction can't be used";
                return Err(Status::new(Der::AGAIN, message));
            }
            self.admission.rt.sleep(PAUSE).await;
        }
    }

    async fn store_arrived(
        self: &Rc<Self>,
        rank: Rank,
        mut asked: ReplicaPrepareRequest,
        request: &Request,
    ) -> Result<(), Status> {
        let changes = arrived_changes(&mut asked, request).await?;
        let service = Rc::clone(self);
        // What has begun ends when the leader's request is dropped.
        let task = self.admission.rt.spawn(async move { service.store_judged(rank, asked, changes).await });
        task.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Stores what the leader of the group has prepared. Nobody is told of it before the leader says that it is settled.
    async fn store_judged(
        &self,
        rank: Rank,
        asked: ReplicaPrepareRequest,
        changes: Vec<PreparedChange>,
    ) -> Result<(), Status> {
        let ReplicaPrepareRequest { pool: id, container, map_version, transaction, epoch, groups, .. } =
            asked;
        let changes: Vec<Change> = changes.into_iter().map(|prepared| prepared.change).collect();
        let [group] = groups[..] else {
            return Err(refusal::invalid(format!("transaction {transaction} is not one of a single group")));
        };
        if !transaction.is_of_groups() || changes.iter().any(|change| object_of(change) != group.object) {
            return Err(refusal::invalid(format!("transaction {transaction} is not one of its group")));
        }
        self.observe(epoch)?;
        let pool = self.pool_of_member(id)?;
        self.admission.check_storable(&pool, map_version)?;
        Self::check_rolled_back(&pool)?;
        let leader = leader_by(&pool, group, map_version, rank)?;
        if self.unsettled.find(id, leader, epoch).is_some() {
            let message = format!("another change of epoch {epoch} is unsettled in the pool");
            return Err(Status::new(Der::TX_RESTART, message));
        }
        let number = usize::try_from(group.number).map_err(refusal::invalid)?;
        let led = (leader, map_version, number);
        let pending = Pending::new((id, container, group.object), epoch, led, touched(&changes));
        self.unsettled.add(&pending);
        let holds = || pool.check_map(map_version).is_ok() && pool.has_rolled_back();
        let until = self.admission.rt.now() + BEHIND_MAX;
        let stored = loop {
            let stored = self.attempt(&pool, container, &changes, async |operations| {
                pool.shard().transact_as_member(container, transaction, epoch, operations, &holds).await
            });
            let stored = stored.await;
            // What the leader has decided already is about to be decided here, too.
            let is_behind = matches!(&stored, Err(status) if status.der == Der::INPROGRESS);
            if !is_behind || self.admission.rt.now() >= until {
                break stored;
            }
            self.admission.rt.sleep(LOOK).await;
        };
        match stored {
            Ok(_) => {
                pending.stored.open();
                Ok(())
            }
            Err(status) => {
                self.unsettled.withdraw(&pending);
                Err(status)
            }
        }
    }
}

/// Whether a refusal says that nothing is stored. A store that fails or ends may have it, which is known after the next start.
const fn is_known(der: Der) -> bool {
    !matches!(der, Der::IO | Der::NVME_IO | Der::SHUTDOWN)
}

/// The target that leads a group by a version of the map, which is one of an engine.
fn leader_by(pool: &TargetPool, group: GroupName, version: u32, rank: Rank) -> Result<Place, Status> {
    let found = serving(pool, group).filter(|serving| serving.version == version);
    let leader = found.and_then(|serving| serving.members.first().copied());
    leader.filter(|(of, _)| *of == rank).ok_or_else(|| {
        let message = format!("by the map of pool {} here rank {rank} doesn't lead the group", pool.label());
        Status::new(Der::AGAIN, message)
    })
}

/// Whether changes remove something, and the dkeys that they concern; `None`: the whole object.
fn touched(changes: &[Change]) -> (bool, Option<Vec<Key>>) {
    let is_punch = changes.iter().any(|change| matches!(change, Change::Punch { .. }));
    (is_punch, changes.iter().map(|change| dkey_of(change).cloned()).collect())
}
