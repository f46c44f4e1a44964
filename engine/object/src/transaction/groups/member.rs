//! The part of every member in a transaction of groups, the leader included.

use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_pool::TargetPool;
use weir_proto::replica_transaction::{
    GroupName, Known, PreparedChange, ReplicaDecideRequest, ReplicaDecision, ReplicaForgetRequest,
    ReplicaKnownRequest, ReplicaOutcomeRequest, ReplicaPrepareRequest,
};
use weir_proto::transaction::{Change, Declined, Outcome};
use weir_proto::{ContainerId, Der, Epoch, PoolId, Rank, codec, opcode};
use weir_rpc::{Request, Status};
use weir_runtime::Instant;
use weir_runtime::sync::Gate;

use super::plan::{dkey_of, object_of};
use super::{Taking, arrived, kept};
use crate::admission::refusal::{self, between_engines};
use crate::groups::{leads, leads_not, serving};
use crate::transaction::{ASK_LIMIT, AlreadyClaimed, Name, Transactions, may_succeed_anew};

/// How long a member waits with its part for an earlier transaction that its leader has decided already.
pub(super) const BEHIND_MAX: Duration = Duration::from_millis(500);

/// How long it waits until what former leaders have left is settled: other members may refuse that as long as they have the transaction
/// prepared.
const READY_MAX: Duration = Duration::from_millis(100);

/// Pause between two looks at that.
pub(super) const LOOK: Duration = Duration::from_millis(2);

pub(super) fn stopping() -> Status {
    Status::new(Der::SHUTDOWN, "the engine is stopping")
}

/// Takes the changes out of a request, or gets them from its sender.
pub(super) async fn arrived_changes(
    asked: &mut ReplicaPrepareRequest,
    request: &Request,
) -> Result<Vec<PreparedChange>, Status> {
    let inline = core::mem::take(&mut asked.changes).into_vec();
    let len = if inline.is_empty() { request.bulk_len() } else { inline.len() as u64 };
    let encoded = arrived(request, &inline, len).await?;
    codec::decode(encoded.bytes()).map_err(refusal::malformed)
}

impl Transactions {
    /// Answers the leaders of transactions of groups from now on, and those who have prepared.
    pub(in crate::transaction) fn take_part_in_groups(self: &Rc<Self>) {
        let engines = Rc::clone(self.admission.pools.engines());
        let weak = Rc::downgrade(self);
        let prepare = move |_: Rank, asked: ReplicaPrepareRequest, request: Rc<Request>| {
            let service = weak.upgrade();
            async move {
                let prepared = match service {
                    Some(service) => service.prepare_arrived(asked, &request).await,
                    None => Err(stopping()),
                };
                Ok::<_, Refusal>(prepared.map_err(|Status { der, message }| Declined { der, message }))
            }
        };
        engines.serve_lent(opcode::TARGET_REPLICA_PREPARE, prepare);
        self.follow_in_pairs();
        let weak = Rc::downgrade(self);
        engines.serve(opcode::TARGET_REPLICA_DECIDE, move |_, request: ReplicaDecision| {
            let service = weak.upgrade();
            async move {
                let service = service.ok_or_else(|| between_engines(stopping()))?;
                // The leader's request may be dropped in the middle: the claim is held until it is stored.
                let rt = service.admission.rt.clone();
                let stored = rt.spawn(async move { service.store_decision(request).await });
                stored.await.unwrap_or_else(|_| Err(stopping())).map_err(between_engines)
            }
        });
        let weak = Rc::downgrade(self);
        engines.serve(opcode::TARGET_REPLICA_KNOWN, move |_, request: ReplicaKnownRequest| {
            let service = weak.upgrade();
            async move {
                let service = service.ok_or_else(|| between_engines(stopping()))?;
                service.say_what_is_known(request).await.map_err(between_engines)
            }
        });
        let weak = Rc::downgrade(self);
        engines.serve(opcode::TARGET_REPLICA_OUTCOME, move |_, request: ReplicaOutcomeRequest| {
            let service = weak.upgrade();
            async move {
                let service = service.ok_or_else(|| between_engines(stopping()))?;
                let rt = service.admission.rt.clone();
                let found = rt.spawn(async move { service.say_outcome(request).await });
                found.await.unwrap_or_else(|_| Err(stopping())).map_err(between_engines)
            }
        });
        let weak = Rc::downgrade(self);
        engines.serve(opcode::TARGET_REPLICA_FORGET, move |_, request: ReplicaForgetRequest| {
            let service = weak.upgrade();
            async move {
                let ReplicaForgetRequest { pool, container, transaction } = request;
                let service = service.ok_or_else(|| between_engines(stopping()))?;
                let shard = service.admission.pool(pool).map_err(between_engines)?;
                service.forget_here(&shard, (pool, container, transaction)).await;
                Ok::<_, Refusal>(())
            }
        });
    }

    async fn prepare_arrived(
        self: &Rc<Self>,
        mut asked: ReplicaPrepareRequest,
        request: &Request,
    ) -> Result<(), Status> {
        let changes = arrived_changes(&mut asked, request).await?;
        self.prepare_of_groups(asked, changes, Gate::new()).await
    }

    /// Prepares this target's part of a transaction, which goes on when its leader's request is dropped. The gate opens when it is
    /// prepared, before that is durable, and when it can't be.
    pub(super) async fn prepare_of_groups(
        self: &Rc<Self>,
        asked: ReplicaPrepareRequest,
        changes: Vec<PreparedChange>,
        begun: Gate,
    ) -> Result<(), Status> {
        let service = Rc::clone(self);
        let task = self.admission.rt.spawn(async move {
            let prepared = service.prepare_part(asked, changes, &begun).await;
            begun.open();
            prepared
        });
        task.await.unwrap_or_else(|_| Err(stopping()))
    }

    async fn prepare_part(
        self: &Rc<Self>,
        asked: ReplicaPrepareRequest,
        changes: Vec<PreparedChange>,
        begun: &Gate,
    ) -> Result<(), Status> {
        let ReplicaPrepareRequest { pool: id, container, map_version, transaction, epoch, groups, .. } =
            asked;
        let taking = Taking { is_committed: false, groups };
        if !transaction.is_of_groups() || Taking::decode(&taking.encode()).is_none() {
            return Err(refusal::invalid(format!("no group leads transaction {transaction}")));
        }
        self.observe(epoch)?;
        let pool = self.pool_of_member(id)?;
        // That the client may write there is what the leader has checked; this is what it can't know.
        self.admission.check_storable(&pool, map_version)?;
        Self::check_rolled_back(&pool)?;
        let judged: Vec<bool> = changes.iter().map(|prepared| prepared.is_judged).collect();
        let changes: Vec<Change> = changes.into_iter().map(|prepared| prepared.change).collect();
        self.check_judge((&pool, container), &changes, &judged, epoch).await?;
        let name = (id, container, transaction);
        let along = [kept(name, Some(&taking))];
        let holds = || pool.check_map(map_version).is_ok() && pool.has_rolled_back();
        let until = self.admission.rt.now() + BEHIND_MAX;
        let prepared = loop {
            let prepared = self.attempt(&pool, container, &changes, async |operations| {
                let operations = (operations, &(|at: usize| judged[at]) as &dyn Fn(usize) -> bool);
                let along = (&along[..], &holds as &dyn Fn() -> bool, &(|| begun.open()) as &dyn Fn());
                pool.shard().prepare_as_member(container, transaction, epoch, operations, along).await
            });
            let prepared = prepared.await;
            let is_behind = matches!(&prepared, Err(status) if status.der == Der::INPROGRESS);
            // What the leader of the group has decided already is about to be decided here, too.
            if !is_behind || judged.contains(&true) || self.admission.rt.now() >= until {
                break prepared;
            }
            self.admission.rt.sleep(LOOK).await;
        };
        if prepared.is_ok() {
            self.watch_of_groups(name);
        }
        if matches!(&prepared, Err(status) if may_succeed_anew(status.der)) {
            // It tells nothing, and what isn't settled may wait for this transaction to be given up.
            return prepared;
        }
        // What was judged may have been found in changes that not all members have.
        let found = changes.iter().zip(&judged).filter(|(_, is_judged)| **is_judged);
        self.settle_found(&pool, name, found.map(|(change, _)| change)).await?;
        prepared
    }

    /// Refuses to judge changes of groups that this target doesn't lead, or may not order yet.
    async fn check_judge(
        &self,
        (pool, container): (&TargetPool, ContainerId),
        changes: &[Change],
        judged: &[bool],
        epoch: Epoch,
    ) -> Result<(), Status> {
        if judged.contains(&true) {
            self.admission.check_placed(pool, pool.with_map(|map| map.version))?;
        }
        for (change, _) in changes.iter().zip(judged).filter(|(_, is_judged)| **is_judged) {
            let object = object_of(change);
            if !crate::groups::is_replicated(object) {
                continue;
            }
            crate::groups::check_reader(pool, self.own(), (object, dkey_of(change)))?;
            let name = (pool.id(), container, object);
            let (until, here) = (self.admission.rt.now() + READY_MAX, (pool, self.own()));
            let what = (&name, dkey_of(change).map(core::slice::from_ref));
            self.succession.ready(&self.admission.rt, &self.unsettled, here, what, until).await?;
            self.floors.check(pool, epoch, self.admission.rt.wall_ns()).map_err(|status| {
                // The same epoch will never do.
                Status::new(Der::TX_RESTART, status.message)
            })?;
        }
        Ok(())
    }

    /// Waits until what changes may have found is settled.
    pub(super) async fn settle_found(
        &self,
        pool: &TargetPool,
        name: Name,
        changes: impl Iterator<Item = &Change>,
    ) -> Result<(), Status> {
        let until = self.admission.rt.now() + ASK_LIMIT;
        for change in changes {
            self.settle(pool, name, change, until).await?;
        }
        Ok(())
    }

    /// Waits until what a change may have found is settled.
    async fn settle(
        &self,
        pool: &TargetPool,
        (id, container, transaction): Name,
        change: &Change,
        until: Instant,
    ) -> Result<(), Status> {
        let object = (id, container, object_of(change));
        if !self.unsettled.has(&object) {
            return Ok(());
        }
        let (rt, here) = (&self.admission.rt, (pool, self.own()));
        if self.unsettled.wait(rt, here, &object, (dkey_of(change), Epoch::MAX), until).await {
            return Ok(());
        }
        let message = format!("what transaction {transaction} has found is not stored at all replicas yet");
        Err(Status::new(Der::INPROGRESS, message))
    }

    /// Stores a decision of the leader of the group.
    async fn store_decision(&self, decision: ReplicaDecision) -> Result<Outcome, Status> {
        let ReplicaDecision { request, epoch, groups } = decision;
        let ReplicaDecideRequest { pool: id, container, map_version, transaction, outcome } = request;
        let pool = self.admission.pool(id)?;
        let name = (id, container, transaction);
        // Whoever leads here by a newer map decides, and nobody else from then on.
        let claim = self.claimed.take(name).map_err(|_| Self::is_claimed(name))?;
        self.admission.check_storable(&pool, map_version)?;
        Self::check_rolled_back(&pool)?;
        let mut stored = self.record(&pool, name, outcome).await;
        if stored.is_err() && pool.shard().is_filling() && outcome == Outcome::Committed {
            // Prepared before this target was up: what it has to have of it comes as history.
            stored = self.note_elsewhere(&pool, name, (epoch, groups)).await;
        }
        drop(claim);
        stored
    }

    /// The pool, of which this target is one by the leader's map. One that has just started, or joined, is about to have it.
    pub(super) fn pool_of_member(&self, id: PoolId) -> Result<Rc<TargetPool>, Status> {
        self.admission.pool(id).map_err(|status| match status.der {
            // To a client this would say that its handle is void.
            Der::NO_HDL => Status::new(Der::AGAIN, status.message),
            _ => status,
        })
    }

    /// Refuses to say or store anything of transactions as long as the target may know what nobody else does.
    pub(super) fn check_rolled_back(pool: &TargetPool) -> Result<(), Status> {
        if pool.has_rolled_back() {
            return Ok(());
        }
        let label = pool.label();
        Err(Status::new(
            Der::AGAIN,
            format!("a target of pool {label} has just come back, and takes part soon"),
        ))
    }

    fn is_claimed((_, _, transaction): Name) -> Status {
        Status::new(Der::AGAIN, format!("transaction {transaction} is being decided here"))
    }

    async fn say_what_is_known(&self, request: ReplicaKnownRequest) -> Result<Known, Status> {
        let ReplicaKnownRequest { pool: id, container, map_version, transaction } = request;
        let pool = self.admission.pool(id)?;
        self.admission.check_storable(&pool, map_version)?;
        Self::check_rolled_back(&pool)?;
        let known = pool.with_map(|map| map.version);
        if known != map_version {
            // With the older map it may still take decisions of the former leader.
            let message =
                format!("version {map_version} of the map of pool {} has not arrived here", pool.label());
            return Err(Status::new(Der::AGAIN, message));
        }
        let name = (id, container, transaction);
        let claim = match self.claimed.take(name) {
            Ok(claim) => claim,
            Err(AlreadyClaimed { is_committed: true }) => return Ok(Known::Decided(Outcome::Committed)),
            Err(_) => return Ok(Known::Led),
        };
        let decided = self.decided_here(&pool, name).await?;
        drop(claim);
        Ok(decided.map_or(Known::Nothing, Known::Decided))
    }

    /// Answers who has prepared a transaction, and doesn't know what became of it.
    async fn say_outcome(self: &Rc<Self>, request: ReplicaOutcomeRequest) -> Result<Option<Outcome>, Status> {
        let ReplicaOutcomeRequest { pool: id, container, transaction, lead } = request;
        let pool = self.admission.pool(id)?;
        if !leads(&pool, self.own(), lead) {
            return Err(leads_not(&pool, self.own()));
        }
        let name = (id, container, transaction);
        let claim = match self.claimed.take(name) {
            Ok(claim) => claim,
            Err(AlreadyClaimed { is_committed }) => return Ok(is_committed.then_some(Outcome::Committed)),
        };
        Ok(self.resolve(&claim, &pool, lead).await)
    }

    /// A decision has been carried out here: what is kept for others who ask goes where nobody will.
    pub(in crate::transaction) async fn forget_decided(&self, name: Name, outcome: Outcome) {
        let Ok(pool) = self.admission.pools.get(name.0) else { return };
        let Some(taking) = Taking::of(&pool, name.1, name.2) else { return };
        let is_asked = |lead: GroupName| {
            serving(&pool, lead).is_some_and(|serving| serving.members.contains(&self.own()))
        };
        if outcome == Outcome::Aborted || !is_asked(taking.lead()) {
            self.forget_here(&pool, name).await;
        }
    }
}
