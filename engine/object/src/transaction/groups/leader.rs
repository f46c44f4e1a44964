//! Committing: what the target does that leads a transaction of groups.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use weir_pool::{Operation as Kind, TargetPool};
use weir_proto::object::UpdateReply;
use weir_proto::replica_transaction::{
    CHANGES_INLINE_MAX, GroupName, PreparedChange, ReplicaCommitRequest, ReplicaDecideRequest,
    ReplicaDecision, ReplicaPrepareRequest,
};
use weir_proto::transaction::{Change, Declined, Outcome};
use weir_proto::{Der, Epoch, Rights, codec, opcode};
use weir_rpc::{Body, Request, Status};
use weir_runtime::sync::Gate;
use weir_runtime::{Instant, join_all};
use weir_store::Decision;

use super::plan::Plan;
use super::{PAUSE, Taking, arrived, failed};
use crate::admission::{Access, refusal};
use crate::groups::{leads, leads_not, serving};
use crate::transaction::leader::{TELLING, given_up, late, restarted};
use crate::transaction::{ASK_LIMIT, AlreadyClaimed, Claim, Name, Transactions, may_succeed_anew};
use crate::unsettled::Place;

/// Longest wait for a member of the own group to store a decision before it is asked again.
const DECIDE_LIMIT: Duration = Duration::from_secs(1);

/// A transaction that this target leads.
pub(super) struct Led {
    pub(super) pool: Rc<TargetPool>,
    pub(super) name: Name,
    pub(super) epoch: Epoch,
    pub(super) plan: Plan,
    pub(super) deadline: Instant,
}

impl Led {
    /// What a member is asked to prepare, without the changes.
    pub(super) fn request(&self) -> ReplicaPrepareRequest {
        let (pool, container, transaction) = self.name;
        ReplicaPrepareRequest {
            pool,
            container,
            map_version: self.plan.version,
            transaction,
            epoch: self.epoch,
            groups: self.plan.groups.clone(),
            changes: Vec::new().into(),
        }
    }
}

/// What a member says of a decision, in time.
type Answer<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Status>> + 'a>>;

/// What came of having the own group store a decision.
pub(super) enum Stored {
    /// All members have it.
    Everywhere,
    /// One has another one.
    Other(Outcome),
    /// Another target leads the group now, and decides.
    NotLeading,
    /// A member has not answered, or not now.
    NotYet,
}

impl Transactions {
    pub(crate) async fn commit_of_groups(self: &Rc<Self>, request: &Request) -> Result<Body, Status> {
        let (commit, inline) =
            codec::decode_prefix::<ReplicaCommitRequest>(request.body()).map_err(refusal::malformed)?;
        let id = commit.transaction;
        if !id.is_of_groups() {
            return Err(refusal::invalid("a transaction of groups has an id without a target"));
        }
        self.observe_client(commit.epoch)?;
        let admission = &self.admission;
        let access = admission.access(request, &commit.capability, Rights::WRITE, commit.map_version).await?;
        let encoded = arrived(request, inline, commit.len).await?;
        let changes: Vec<Change> = codec::decode(encoded.bytes()).map_err(refusal::malformed)?;
        let plan = Plan::of(&access.pool, changes)?;
        if !leads(&access.pool, self.own(), plan.groups[0]) {
            return Err(leads_not(&access.pool, self.own()));
        }
        let counted = admission.counted(Kind::Commit, &access, async |_| {
            let name = (access.pool.id(), access.container.id, id);
            let again = || Status::new(Der::INPROGRESS, "the transaction is being committed or given up");
            let epoch = match self.claimed.take(name) {
                Err(AlreadyClaimed { is_committed: true }) => commit.epoch,
                Err(_) => return Err(again()),
                Ok(claim) => {
                    let (pool, deadline) = (Rc::clone(&access.pool), request.deadline());
                    let led = Led { pool, name, epoch: commit.epoch, plan, deadline };
                    self.lead_in_background(&access, claim, led).await?
                }
            };
            Ok((codec::encode(&UpdateReply { epoch }), 0))
        });
        counted.await
    }

    /// Leads it, to the end also when the client's request is dropped.
    async fn lead_in_background(
        self: &Rc<Self>,
        access: &Access,
        claim: Claim,
        led: Led,
    ) -> Result<Epoch, Status> {
        let before = self.outcome_of_repeat(access, &claim, &led).await?;
        if let Some(epoch) = before {
            return Ok(epoch);
        }
        // Learning of the container, and of what became of it, may have taken that long.
        if self.admission.rt.now() >= led.deadline {
            return Err(restarted(late(led.name.2)));
        }
        let service = Rc::clone(self);
        let task = self.admission.rt.spawn(async move { service.lead_groups(claim, led).await });
        task.await.unwrap_or_else(|_| Err(Status::new(Der::SHUTDOWN, "the engine is stopping")))
    }

    /// What became of a transaction that was sent again, perhaps to another leader before. Epoch of the commit.
    async fn outcome_of_repeat(
        self: &Rc<Self>,
        access: &Access,
        claim: &Claim,
        led: &Led,
    ) -> Result<Option<Epoch>, Status> {
        let (pool, name) = (&access.pool, led.name);
        let (_, container, id) = name;
        let is_prepared = pool.shard().is_undecided(container, id).await.map_err(|error| failed(&error))?;
        let known = Taking::of(pool, container, id);
        if !is_prepared && known.is_none() {
            return match pool.shard().decision(container, id).await.map_err(|error| failed(&error))? {
                Some(Decision::Committed(epoch)) => Ok(Some(epoch)),
                Some(Decision::Aborted) => Err(given_up("it was given up before")),
                None if pool.shard().may_have_forgotten(led.epoch) => {
                    let message = format!("transaction {id} began so long ago that its end may be forgotten");
                    Err(Status::new(Der::TX_UNCERTAIN, message))
                }
                None => Ok(None),
            };
        }
        match self.resolve(claim, pool, led.plan.groups[0]).await {
            Some(Outcome::Committed) => Ok(Some(led.epoch)),
            Some(Outcome::Aborted) => Err(given_up("it was given up before")),
            None => Err(Status::new(Der::INPROGRESS, "the transaction is being decided")),
        }
    }

    async fn lead_groups(self: &Rc<Self>, claim: Claim, led: Led) -> Result<Epoch, Status> {
        if let Some(other) = led.plan.other_of_pair(&led.pool, self.own()) {
            return self.lead_pair(claim, led, other).await;
        }
        self.lead_all(claim, led).await
    }

    /// Leads one of several groups, or of more members than two.
    pub(super) async fn lead_all(self: &Rc<Self>, claim: Claim, led: Led) -> Result<Epoch, Status> {
        let (group, id) = (led.plan.groups[0], led.name.2);
        let mut prepared = self.prepare_members(&led).await;
        if self.admission.rt.now() >= led.deadline {
            prepared = prepared.and(Err(late(id)));
        }
        let all: Vec<Place> = led.plan.parts.keys().copied().collect();
        if let Err(status) = prepared {
            self.admission.rt.spawn(Rc::clone(self).give_up(claim, all));
            return Err(restarted(status));
        }
        loop {
            let decided = (Outcome::Committed, led.epoch, led.plan.groups.as_slice());
            match self.store_in_group(&led.pool, led.name, group, decided).await {
                Stored::Everywhere => break,
                Stored::Other(decided) => {
                    tracing::debug!(transaction = %id, ?decided, "another target has decided");
                    self.admission.rt.spawn(Rc::clone(self).give_up(claim, all));
                    return Err(given_up("another target that led its group has given it up"));
                }
                Stored::NotLeading => return Err(leads_not(&led.pool, self.own())),
                Stored::NotYet if led.pool.shard().failure().is_some() => {
                    let message = "the device of the target that leads the transaction can't be used";
                    return Err(Status::new(Der::AGAIN, message));
                }
                Stored::NotYet => self.admission.rt.sleep(PAUSE).await,
            }
        }
        let told = self.admission.rt.spawn(super::settle::finish(
            Rc::downgrade(self),
            self.admission.rt.clone(),
            claim,
            led.plan.groups.clone(),
        ));
        // Targets that are away hear of it later.
        let _ = self.admission.rt.timeout(TELLING, told).await;
        Ok(led.epoch)
    }

    /// Has every member prepare its part, this target as the others, until the client's deadline.
    async fn prepare_members(self: &Rc<Self>, led: &Led) -> Result<(), Status> {
        let limit = ASK_LIMIT.min(led.deadline.saturating_duration_since(self.admission.rt.now()));
        let prepared = led
            .plan
            .parts
            .iter()
            .map(|(place, changes)| self.have_prepared(*place, led.request(), changes, limit));
        let refused = join_all(prepared).await.into_iter().filter_map(Result::err);
        // What won't pass is what the client has to hear of.
        refused.min_by_key(|status| may_succeed_anew(status.der)).map_or(Ok(()), Err)
    }

    async fn have_prepared(
        self: &Rc<Self>,
        place: Place,
        request: ReplicaPrepareRequest,
        changes: &[PreparedChange],
        limit: Duration,
    ) -> Result<(), Status> {
        if place == self.own() {
            let prepared = self.prepare_of_groups(request, changes.to_vec(), Gate::new());
            let late = || Status::new(Der::TIMEDOUT, format!("it is not prepared within {limit:?}"));
            return self.admission.rt.timeout(limit, prepared).await.unwrap_or_else(|_| Err(late()));
        }
        match self.have_done(place, opcode::TARGET_REPLICA_PREPARE, request, changes, limit).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Declined { der, message })) => Err(Status::new(der, message)),
            Err(status) => Err(status),
        }
    }

    /// Asks another target to do something with changes. The outer error: what became of it is not known.
    pub(super) async fn have_done(
        &self,
        (rank, index): Place,
        opcode: u16,
        mut request: ReplicaPrepareRequest,
        changes: &[PreparedChange],
        limit: Duration,
    ) -> Result<Result<(), Declined>, Status> {
        let engines = self.admission.pools.engines();
        let encoded = codec::encode(&changes);
        let memory = if encoded.len() > CHANGES_INLINE_MAX {
            Some(engines.lend(&[&encoded]).map_err(|error| Status::new(error.der(), error.to_string()))?)
        } else {
            request.changes = encoded.into();
            None
        };
        let asked = engines.ask_lending(rank, index, opcode, &request, memory.as_ref(), limit).await;
        asked.map_err(|error| Status::new(error.der(), error.to_string()))
    }

    /// Has all members of the own group store a decision, by the newest map. Those who come back need its epoch and its groups, too. One after the next leader: where that
    /// one has another decision, none of those behind it has this one.
    pub(super) async fn store_in_group(
        &self,
        pool: &TargetPool,
        name: Name,
        lead: GroupName,
        (outcome, epoch, groups): (Outcome, Epoch, &[GroupName]),
    ) -> Stored {
        let Some(group) = serving(pool, lead) else { return Stored::NotYet };
        let [own, others @ ..] = group.members.as_slice() else { return Stored::NotLeading };
        if *own != self.own() {
            return Stored::NotLeading;
        }
        // By a map that isn't leased there may be members that are not known here.
        if !self.admission.may_serve(pool) {
            return Stored::NotYet;
        }
        let (next, rest) = others.split_at(others.len().min(1));
        let tell = |place: &Place| self.have_decided(*place, name, group.version, (outcome, epoch, groups));
        let here: Answer<'_> = Box::pin(self.record(pool, name, outcome));
        let first = next.iter().map(|place| -> Answer<'_> { Box::pin(tell(place)) });
        let is_agreed = |answers: &[Result<Outcome, Status>]| {
            answers.iter().all(|answer| matches!(answer, Ok(decided) if *decided == outcome))
        };
        // A member of a pair may be about to commit: what is given up here has to be given up there before.
        let mut answers = match outcome {
            Outcome::Committed => join_all(core::iter::once(here).chain(first)).await,
            Outcome::Aborted => {
                let mut told = join_all(first).await;
                if is_agreed(&told) {
                    told.push(here.await);
                }
                told
            }
        };
        if is_agreed(&answers) {
            answers.extend(join_all(rest.iter().map(tell)).await);
        }
        let mut is_everywhere = true;
        for answer in answers {
            match answer {
                Ok(decided) if decided == outcome => {}
                Ok(decided) => return Stored::Other(decided),
                Err(status) => {
                    tracing::debug!(transaction = %name.2, %status, "a member has not stored a decision");
                    is_everywhere = false;
                }
            }
        }
        if is_everywhere { Stored::Everywhere } else { Stored::NotYet }
    }

    pub(super) async fn have_decided(
        &self,
        (rank, index): Place,
        (pool, container, transaction): Name,
        map_version: u32,
        (outcome, epoch, groups): (Outcome, Epoch, &[GroupName]),
    ) -> Result<Outcome, Status> {
        let request = ReplicaDecideRequest { pool, container, map_version, transaction, outcome };
        let request = ReplicaDecision { request, epoch, groups: groups.to_vec() };
        let opcode = opcode::TARGET_REPLICA_DECIDE;
        let asked = self.admission.pools.engines().ask(rank, index, opcode, &request, DECIDE_LIMIT).await;
        asked.map_err(|error| Status::new(error.der(), error.to_string()))
    }
}
