//! What the leader of a group does: it judges a change, stores it, and has the other members store it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use weir_pool::{Operation, TargetPool};
use weir_proto::object::{PunchRequest, UpdateReply, UpdateRequest};
use weir_proto::replica::{ByLeader, ChangeId, FORWARD_INLINE_MAX, ForwardedChange, ReplicaForward};
use weir_proto::{Der, Epoch, Key, ObjectId, Rights, codec, opcode};
use weir_rpc::{Body, Request, Status};
use weir_runtime::{Instant, join_all};

use super::room::{self, Taken};
use super::{Claim, OwnData, Replication};
use crate::admission::refusal::{self, ErrorSite};
use crate::admission::{Access, Permit};
use crate::operations::{check_punch, check_update, pull, within_quota};
use crate::repeats::{Executed, Identity, Marks};
use crate::unsettled::{Pending, Place, PlantedBug, dkeys_of};

/// Longest wait for a member's answer before it is asked again: it pulls and flushes some MiB.
const FORWARD_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait until what former leaders have left is settled: behind it the client is told, and comes again.
const READY_LIMIT: Duration = Duration::from_secs(1);

/// Pause before a member that has refused, or not answered, is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// A change that this target leads.
struct Led {
    access: Access,
    object: ObjectId,
    group: usize,
    marks: Marks,
    change: LedChange,
    /// Room for it at the other members, as long as it isn't stored there.
    _room: Taken,
}

enum LedChange {
    Update(UpdateRequest, OwnData),
    Punch(PunchRequest),
}

impl LedChange {
    /// What the other members carry out.
    fn forwarded(&self) -> (ForwardedChange, &[u8]) {
        match self {
            Self::Update(update, data) => {
                let (dkey, akeys) = (update.dkey.clone(), update.akeys.clone());
                (ForwardedChange::Update { dkey, akeys }, data.bytes())
            }
            Self::Punch(punch) => (ForwardedChange::Punch { scope: punch.scope.clone() }, &[]),
        }
    }

    /// Whether it removes, and the dkeys that it concerns; `None`: the whole object.
    fn touched(&self) -> (bool, Option<Vec<Key>>) {
        match self {
            Self::Update(update, _) => (false, Some(vec![update.dkey.clone()])),
            Self::Punch(punch) => (true, dkeys_of(&punch.scope)),
        }
    }
}

fn stopping<E>(_: E) -> Status {
    Status::new(Der::SHUTDOWN, "the engine is stopping")
}

impl Replication {
    pub(crate) async fn update(self: &Rc<Self>, request: Request) -> Result<Body, Status> {
        let (asked, inline) =
            codec::decode_prefix::<ByLeader<UpdateRequest>>(request.body()).map_err(refusal::malformed)?;
        let ByLeader { id, acked, wanted: update } = asked;
        let len = check_update(&update)?;
        let permit = self.admission.permit(&request, &update.capability, Rights::WRITE).await?;
        let identity = (id.client, id.number);
        let claim = self.claim(permit.pool.id(), identity, request.deadline()).await?;
        let dkeys = Some(vec![update.dkey.clone()]);
        self.when_ready(&permit, (update.object, dkeys.as_deref()), request.deadline()).await?;
        if let Some(executed) = self.executed(&permit.pool, identity) {
            return self.answer_again(&permit, executed, (update.object, dkeys), request.deadline()).await;
        }
        let access = self.admission.reach(permit, update.map_version, request.deadline()).await?;
        let group = self.led_group(&access, update.object, dkeys.as_deref())?;
        let counted = self.admission.counted(Operation::Update, &access, async |place| {
            if access.container.is_short_of_room() {
                let check = async || access.pool.shard().check_room_for(access.container.id, len);
                within_quota((&access.pool, &access.container), len, place, check).await?;
            }
            let (shard, container) = (access.pool.shard(), access.container.id);
            // Where room is kept for its records, it is at all members.
            let is_kept = shard.keeps_room_for(container, update.object, &update.dkey, &update.akeys);
            let needed = if is_kept { 0 } else { room::needed(&update.dkey, &update.akeys) };
            let room = self.find_room(&access, (update.object, group), needed, place).await?;
            // Asking may have taken as long as it takes to lose the lead, and the lease.
            self.admission.check_placed(&access.pool, update.map_version)?;
            self.led_group(&access, update.object, dkeys.as_deref())?;
            let data = if inline.len() as u64 == len {
                OwnData::Inline(inline.into())
            } else {
                OwnData::Pulled(pull(&request, inline, len).await?)
            };
            let marks = self.marks(&access.pool, (identity, acked), request.deadline());
            let object = update.object;
            let change = LedChange::Update(update, data);
            let led = Led { access: access.clone(), object, group, marks, change, _room: room };
            let epoch = self.run(led, claim).await?;
            access.container.has_found_room(len);
            Ok((codec::encode(&UpdateReply { epoch }), len))
        });
        counted.await
    }

    pub(crate) async fn punch(self: &Rc<Self>, request: &Request) -> Result<Body, Status> {
        let asked: ByLeader<PunchRequest> =
            codec::decode_message(request.body()).map_err(refusal::malformed)?;
        let ByLeader { id, acked, wanted: punch } = asked;
        check_punch(&punch)?;
        let permit = self.admission.permit(request, &punch.capability, Rights::WRITE).await?;
        let identity = (id.client, id.number);
        let claim = self.claim(permit.pool.id(), identity, request.deadline()).await?;
        let dkeys = dkeys_of(&punch.scope);
        self.when_ready(&permit, (punch.object, dkeys.as_deref()), request.deadline()).await?;
        if let Some(executed) = self.executed(&permit.pool, identity) {
            return self.answer_again(&permit, executed, (punch.object, dkeys), request.deadline()).await;
        }
        let access = self.admission.reach(permit, punch.map_version, request.deadline()).await?;
        let group = self.led_group(&access, punch.object, dkeys.as_deref())?;
        let counted = self.admission.counted(Operation::Punch, &access, async |_| {
            let marks = self.marks(&access.pool, (identity, acked), request.deadline());
            let object = punch.object;
            let change = LedChange::Punch(punch);
            // What removes needs none.
            let room = Taken::default();
            let led = Led { access: access.clone(), object, group, marks, change, _room: room };
            let epoch = self.run(led, claim).await?;
            Ok((codec::encode(&UpdateReply { epoch }), 0))
        });
        counted.await
    }

    fn marks(&self, pool: &TargetPool, named: (Identity, u64), deadline: Instant) -> Marks {
        self.repeats.marks_as(&self.admission.rt, pool, named, deadline)
    }

    /// What is known of a change that was made before.
    fn executed(&self, pool: &TargetPool, identity: Identity) -> Option<Executed> {
        let known = self.repeats.executed_as(pool, identity);
        known.filter(|_| !self.unsettled.has_planted(PlantedBug::DoubleAnswer))
    }

    /// The answer to a change that was made before, perhaps by another leader: it is settled first. Who doesn't lead any more may have
    /// made it alone.
    async fn answer_again(
        &self,
        permit: &Permit,
        executed: Executed,
        (object, dkeys): (ObjectId, Option<Vec<Key>>),
        deadline: Instant,
    ) -> Result<Body, Status> {
        let name = (permit.pool.id(), permit.container, object);
        self.settle_all(&permit.pool, &name, dkeys.as_deref(), deadline).await?;
        let group = Self::group_of(&permit.pool, object, dkeys.as_deref(), self.own())?;
        if self.members(&permit.pool, object, group).is_none() {
            return Err(self.leads_not(&permit.pool));
        }
        let epoch = executed.epoch.unwrap_or_else(|| self.admission.epoch());
        Ok(codec::encode(&UpdateReply { epoch }))
    }

    /// Waits until nothing is unsettled of some dkeys, or of the whole object.
    async fn settle_all(
        &self,
        pool: &TargetPool,
        object: &crate::unsettled::ObjectName,
        dkeys: Option<&[Key]>,
        until: Instant,
    ) -> Result<(), Status> {
        let dkey = match dkeys {
            Some([dkey]) => Some(dkey),
            _ => None,
        };
        let (rt, here) = (&self.admission.rt, (pool, self.own()));
        if self.unsettled.wait(rt, here, object, (dkey, Epoch::MAX), until).await {
            return Ok(());
        }
        Err(Status::new(Der::INPROGRESS, "changes of it are not stored at all replicas yet"))
    }

    /// The group that holds some dkeys of an object. Of all of an object it is the group that a target leads, where that is one
    /// and each of its members has one place in the object: what it holds of the object is the group's then.
    pub(super) fn group_of(
        pool: &TargetPool,
        object: ObjectId,
        dkeys: Option<&[Key]>,
        leader: Place,
    ) -> Result<usize, Status> {
        let found = pool.with_layout(object, |layout, map| {
            if layout.replicas < 2 {
                return Err(refusal::invalid("an object without replicas has no group with a leader"));
            }
            let several = || refusal::invalid("the change concerns several groups of replicas");
            if let Some(dkeys) = dkeys {
                let mut groups = dkeys.iter().map(|dkey| layout.group_index(dkey.hash()));
                return match groups.next() {
                    Some(group) if groups.all(|other| other == group) => Ok(group),
                    _ => Err(several()),
                };
            }
            let is_leader =
                |id: u32| map.target(id).is_some_and(|target| (target.rank, target.index) == leader);
            let is_led = |group: &usize| layout.leader(*group, map).is_some_and(is_leader);
            let led: Vec<usize> = (0..layout.group_count()).filter(is_led).collect();
            let places = |id: &u32| layout.shards.iter().filter(|shard| *shard == id).count();
            match led[..] {
                [group] if layout.group(group).iter().all(|id| places(id) == 1) => Ok(group),
                [] => Err(crate::groups::leads_not(pool, leader)),
                _ => Err(several()),
            }
        });
        found.map_err(refusal::invalid)?
    }

    /// Waits until this target may go by what it has, where it leads a group: what former leaders have left may be the change that comes
    /// again, or decide its conditions.
    async fn when_ready(
        &self,
        permit: &Permit,
        (object, dkeys): (ObjectId, Option<&[Key]>),
        deadline: Instant,
    ) -> Result<(), Status> {
        let rt = &self.admission.rt;
        let name = (permit.pool.id(), permit.container, object);
        let until = deadline.min(rt.now() + READY_LIMIT);
        let here = (&*permit.pool, self.own());
        self.succession.ready(rt, &self.unsettled, here, (&name, dkeys), until).await
    }

    /// The same, where this target leads it.
    fn led_group(&self, access: &Access, object: ObjectId, dkeys: Option<&[Key]>) -> Result<usize, Status> {
        let pool = &access.pool;
        let name = (pool.id(), access.container.id, object);
        // It may lead since it was ready.
        if !self.succession.is_ready(&self.unsettled, (pool, self.own()), (&name, dkeys)) {
            return Err(crate::succession::not_yet(pool));
        }
        let group = Self::group_of(pool, object, dkeys, self.own())?;
        if self.members(pool, object, group).is_none() {
            return Err(self.leads_not(pool));
        }
        crate::groups::check_kept(pool, object, group)?;
        // Behind what transactions may have read by another leader.
        self.floors.check(pool, self.admission.epoch(), self.admission.rt.wall_ns())?;
        Ok(group)
    }

    pub(super) fn leads_not(&self, pool: &TargetPool) -> Status {
        crate::groups::leads_not(pool, self.own())
    }

    /// Makes the change, which goes on when the client's request is dropped.
    async fn run(self: &Rc<Self>, led: Led, claim: Claim) -> Result<Epoch, Status> {
        let replication = Rc::clone(self);
        let task = self.admission.rt.spawn(async move {
            let _claim = claim;
            replication.make(&Rc::new(led)).await
        });
        task.await.unwrap_or_else(|ended| Err(stopping(ended)))
    }

    async fn make(self: &Rc<Self>, led: &Rc<Led>) -> Result<Epoch, Status> {
        let Led { access, object, .. } = &**led;
        let begun = RefCell::new(None);
        let made = self.store(led, &begun).await;
        let Some(pending) = begun.take().filter(|_| made.is_ok()) else {
            // What was found may be what isn't stored at all members.
            let name = (access.pool.id(), access.container.id, *object);
            let (_, dkeys) = led.change.touched();
            let until = self.admission.rt.now() + FORWARD_LIMIT;
            self.settle_all(&access.pool, &name, dkeys.as_deref(), until).await?;
            return made;
        };
        pending.stored.wait().await;
        if pending.is_withdrawn() {
            return Err(self.leads_not(&access.pool));
        }
        self.unsettled.settle(&pending);
        if let Some(members) = self.members(&access.pool, *object, led.group) {
            let (pool, epoch) = (access.pool.id(), pending.epoch);
            let change = (self.own(), epoch);
            members.others.into_iter().for_each(|member| self.tell((pool, *object), change, member));
        }
        made
    }

    /// Stores it here, where its epoch is chosen and its conditions are judged. From the moment at which it is in the index on it
    /// is unsettled, and forwarded.
    async fn store(
        self: &Rc<Self>,
        led: &Rc<Led>,
        begun: &RefCell<Option<Rc<Pending>>>,
    ) -> Result<Epoch, Status> {
        let Led { access, object, marks, change, .. } = &**led;
        let label = access.container.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: access.pool.id(), container: &label };
        let (shard, container) = (access.pool.shard(), access.container.id);
        let clock = || self.admission.epoch();
        let along = |epoch| {
            begun.replace(Some(self.begin(led, epoch)));
            marks.along(epoch)
        };
        let attempt = async || {
            let done = match change {
                LedChange::Update(update, data) => {
                    let UpdateRequest { dkey, conditions, akeys, .. } = update;
                    let data = data.data();
                    shard
                        .update_by_clock(container, *object, dkey, &clock, *conditions, akeys, data, &along)
                        .await
                }
                LedChange::Punch(PunchRequest { scope, conditions, .. }) => {
                    shard.punch_by_clock(container, *object, scope, &clock, *conditions, &along).await
                }
            };
            if done.is_err()
                && let Some(pending) = begun.take()
            {
                self.unsettled.withdraw(&pending);
            }
            done
        };
        let len = match change {
            LedChange::Update(_, data) => data.bytes().len() as u64,
            LedChange::Punch(_) => 0,
        };
        within_quota((&access.pool, &access.container), len, &place, attempt).await
    }

    /// The change is about to be in the index.
    fn begin(self: &Rc<Self>, led: &Rc<Led>, epoch: Epoch) -> Rc<Pending> {
        let name = (led.access.pool.id(), led.access.container.id, led.object);
        let version = led.access.pool.with_map(|map| map.version);
        let pending = Pending::new(name, epoch, (self.own(), version, led.group), led.change.touched());
        self.unsettled.add(&pending);
        let (replication, led, forwarded) = (Rc::clone(self), Rc::clone(led), Rc::clone(&pending));
        // It begins when this task lets others run: by then the change is in the index, or withdrawn.
        self.admission.rt.spawn(async move {
            if !forwarded.is_withdrawn() {
                // Who takes it in as history takes its name, too, whether or not it is settled by then.
                replication.repeats.committed(&led.access.pool, &led.marks, forwarded.epoch);
                replication.forward(&led, &forwarded).await;
            }
        });
        pending
    }

    /// Has all other members store it. Goes on until they have, or are out of the map.
    async fn forward(&self, led: &Led, pending: &Pending) {
        if self.unsettled.has_planted(PlantedBug::LostForward) {
            return pending.stored.open();
        }
        for ahead in self.unsettled.ahead_of(pending) {
            ahead.stored.wait().await;
        }
        let (change, data) = led.change.forwarded();
        let encoded = codec::encode(&change);
        let is_long = encoded.len() + data.len() > FORWARD_INLINE_MAX;
        loop {
            // It is gone when this target was out of the map meanwhile, and has caught up.
            if pending.is_withdrawn() {
                return;
            }
            // By a map that isn't leased there may be members that are not known here.
            if !self.admission.may_serve(&led.access.pool) {
                self.admission.rt.sleep(PAUSE).await;
                continue;
            }
            let Some(members) = self.members(&led.access.pool, led.object, led.group) else {
                tracing::warn!(epoch = %pending.epoch, "a change is not acknowledged, since another target leads now");
                self.unsettled.withdraw(pending);
                return;
            };
            let mut left = members.others;
            left.retain(|one| !pending.stored_at.borrow().contains(one));
            if left.is_empty() {
                break;
            }
            let inline = if is_long { Vec::new() } else { [&encoded, data].concat() };
            let request = self.forward_request(led, pending, members.version, inline);
            let parts: &[&[u8]] = &[&encoded, data];
            let asked = left.iter().map(|member| self.ask(*member, &request, is_long.then_some(parts)));
            for (member, stored) in left.iter().zip(join_all(asked).await) {
                match stored {
                    Ok(()) => pending.stored_at.borrow_mut().push(*member),
                    Err(error) => {
                        tracing::debug!(rank = %member.0, target = %member.1, error, "a replica has not stored a change");
                    }
                }
            }
            if left.iter().any(|member| !pending.stored_at.borrow().contains(member)) {
                self.admission.rt.sleep(PAUSE).await;
            }
        }
        pending.stored.open();
    }

    fn forward_request(&self, led: &Led, pending: &Pending, version: u32, inline: Vec<u8>) -> ReplicaForward {
        let (client, number) = led.marks.identity;
        ReplicaForward {
            leader: self.own().1,
            pool: led.access.pool.id(),
            container: led.access.container.id,
            map_version: version,
            object: led.object,
            epoch: pending.epoch,
            id: ChangeId { client, number },
            until: led.marks.until,
            forgotten: led.marks.forgotten.clone(),
            change: inline.into(),
        }
    }

    async fn ask(
        &self,
        (rank, index): Place,
        request: &ReplicaForward,
        parts: Option<&[&[u8]]>,
    ) -> Result<(), String> {
        let engines = self.admission.pools.engines();
        let memory = parts.map(|parts| engines.lend(parts)).transpose().map_err(|error| error.to_string())?;
        let opcode = opcode::TARGET_REPLICA_FORWARD;
        let asked =
            engines.ask_lending::<_, ()>(rank, index, opcode, request, memory.as_ref(), FORWARD_LIMIT);
        asked.await.map_err(|error| error.to_string())
    }
}
