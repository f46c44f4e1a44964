//! What former leaders of groups with more than two members have left unsettled. The new leader asks the other members that serve what
//! they have of it, gets what it lacks, and has all of them store it, at the same epoch and under the same name. Then it is settled. Until then
//! the new leader orders no changes of these groups, judges nothing, and gives nobody their history. The protocol is described in
//! docs/explanation/replication.md.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::replica::{
    FORWARD_INLINE_MAX, LeftChange, LeftChanges, LeftData, LeftDataRequest, LeftNotice, LeftRequest,
    ReplicaForward, TakenForward,
};
use weir_proto::{Der, Epoch, PoolId, Rank, opcode};
use weir_rpc::{Request, Status};
use weir_runtime::{join_all, race};

use super::member::Maker;
use super::{OwnData, Replication};
use crate::admission::refusal;
use crate::unsettled::{Pending, Place};

/// How often it is looked what former leaders have left, beside when somebody waits for it.
const LOOK: Duration = Duration::from_millis(100);

/// Longest wait for a member to say what is there, and for data of a change, or until it is stored.
const LIMIT: Duration = Duration::from_secs(2);

/// Pause before a member that has refused, or not answered, is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Pause between two looks whether all is settled.
const SETTLED_LOOK: Duration = Duration::from_millis(5);

/// Changes that a member tells of at once.
const PAGE: usize = 1024;

/// Bytes that one of them takes in the answer, at most, and bytes of an answer beside data.
const LEFT_BYTES: usize = 128;
const EXTRA: usize = 4096;

/// What is under way.
#[derive(Default)]
pub(super) struct Takeover {
    /// Members that are being asked what is there.
    asking: RefCell<HashSet<(PoolId, Place)>>,
    /// New leaders that are being told that something is here.
    telling: RefCell<HashSet<(PoolId, Place)>>,
}

/// The other members of a group that serve, by a version of the map.
struct Others {
    version: u32,
    serving: Vec<Place>,
}

impl Replication {
    /// Looks after what former leaders have left, and answers new ones, from now on.
    pub(super) fn serve_takeover(self: &Rc<Self>) {
        macro_rules! serve {
            ($opcode:ident, |$replication:ident, $from:pat_param, $asked:ident: $kind:ty| $body:expr) => {{
                let weak = Rc::downgrade(self);
                let handler = move |$from: Rank, $asked: $kind| {
                    let replication = weak.upgrade();
                    async move {
                        let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                        let $replication =
                            replication.ok_or_else(stopping).map_err(refusal::between_engines)?;
                        $body.map_err(refusal::between_engines)
                    }
                };
                self.admission.pools.engines().serve(opcode::$opcode, handler);
            }};
        }
        serve!(TARGET_REPLICA_LEFT, |replication, rank, asked: LeftRequest| replication
            .tell_left(rank, asked)
            .await);
        serve!(TARGET_REPLICA_LEFT_DATA, |replication, _, asked: LeftDataRequest| replication
            .give_left(&asked));
        serve!(TARGET_REPLICA_LEFT_NOTICE, |replication, rank, notice: LeftNotice| replication
            .hear_of_left(rank, &notice));
        let weak = Rc::downgrade(self);
        let take = move |rank: Rank, taken: TakenForward, request: Rc<Request>| {
            let replication = weak.upgrade();
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let replication = replication.ok_or_else(stopping).map_err(refusal::between_engines)?;
                let TakenForward { origin, group, forward } = taken;
                let maker = Maker { origin, leader: (rank, forward.leader), group: Some(group) };
                replication.follow_maker(maker, forward, &request).await.map_err(refusal::between_engines)
            }
        };
        self.admission.pools.engines().serve_lent(opcode::TARGET_REPLICA_TAKEN, take);
        self.admission.rt.spawn(look_after(Rc::downgrade(self)));
    }

    /// A pool that both sides see by the same map.
    fn pool_by(&self, pool: PoolId, map_version: u32) -> Result<Rc<TargetPool>, Status> {
        let pool = self.admission.pool(pool)?;
        self.admission.check_storable(&pool, map_version)?;
        let known = pool.with_map(|map| map.version);
        if known == map_version {
            return Ok(pool);
        }
        let label = pool.label();
        let message = format!("the map of pool {label} has version {known} here, not {map_version}");
        Err(Status::new(Der::AGAIN, message))
    }

    /// What former leaders have left here of groups that another target leads.
    async fn tell_left(&self, rank: Rank, asked: LeftRequest) -> Result<LeftChanges, Status> {
        let LeftRequest { leader, pool, map_version, from } = asked;
        let pool = self.pool_by(pool, map_version)?;
        let by = Some((rank, leader));
        let left = self.unsettled.left(&pool).into_iter().filter(|(_, leader)| *leader == by);
        let mut left: Vec<Rc<Pending>> = left.map(|(pending, _)| pending).collect();
        // What is on its way into the store by an earlier map is refused there, or stored, in a moment. Nothing comes by one any more.
        let until = self.admission.rt.now() + LIMIT;
        for pending in &left {
            let ended = self.admission.rt.timeout_at(until, pending.stored.wait()).await;
            ended.map_err(|_| Status::new(Der::AGAIN, "changes are still being stored here"))?;
        }
        self.pool_by(pool.id(), map_version)?;
        let key = |pending: &Pending| (pending.epoch, pending.leader.0, pending.leader.1);
        // The transaction of a group of which this target was the only other member is told of by nobody else, and nothing is kept of it.
        left.retain(|pending| !pending.settled.is_open() && pending.kept().is_some());
        left.retain(|pending| from.is_none_or(|from| key(pending) > from));
        left.sort_by_key(|pending| key(pending));
        let goes_on = left.len() > PAGE;
        let changes = left.iter().take(PAGE).filter_map(|pending| {
            let kept = pending.kept()?;
            let (len, group) = (kept.bytes().len() as u64, u32::try_from(pending.group).ok()?);
            let (epoch, origin, (_, container, object)) = (pending.epoch, pending.leader, pending.object);
            Some(LeftChange { epoch, origin, container, object, group, id: kept.id, len })
        });
        Ok(LeftChanges { changes: changes.collect(), goes_on })
    }

    fn give_left(&self, asked: &LeftDataRequest) -> Result<LeftData, Status> {
        let pool = self.pool_by(asked.pool, asked.map_version)?;
        let pending = self.unsettled.find(pool.id(), asked.origin, asked.epoch);
        let gone = || Status::new(Der::AGAIN, "the change is settled here");
        let pending = pending.ok_or_else(gone)?;
        let kept = pending.kept().ok_or_else(gone)?;
        Ok(LeftData { until: kept.until, change: kept.bytes().to_vec().into() })
    }

    /// A member has something that a former leader has left.
    fn hear_of_left(&self, rank: Rank, notice: &LeftNotice) -> Result<(), Status> {
        let pool = self.admission.pool(notice.pool)?;
        self.succession.want(&pool, (rank, notice.member));
        Ok(())
    }

    /// Begins what is to be done.
    fn look_for_left(self: &Rc<Self>) {
        for pool in self.admission.pools.all() {
            self.unsettled.release_memory(pool.id());
            if !self.unsettled.takes_over() || !self.serves(&pool) {
                continue;
            }
            for (pending, leader) in self.unsettled.left(&pool) {
                let Some(leader) = leader else { continue };
                let is_own = leader == self.own();
                if is_own && !pending.is_taken.replace(true) {
                    self.admission.rt.spawn(Rc::clone(self).take(Rc::clone(&pool), pending));
                } else if !is_own && self.takeover.telling.borrow_mut().insert((pool.id(), leader)) {
                    self.admission.rt.spawn(Rc::clone(self).tell_of_left(pool.id(), leader));
                }
            }
            for member in self.succession.wanted(&pool) {
                if self.takeover.asking.borrow_mut().insert((pool.id(), member)) {
                    self.admission.rt.spawn(Rc::clone(self).ask_for_left(Rc::clone(&pool), member));
                }
            }
        }
    }

    /// Whether the map has this target serve.
    fn serves(&self, pool: &TargetPool) -> bool {
        let own = self.own();
        pool.with_map(|map| {
            let mut own = map.targets.iter().filter(|target| (target.rank, target.index) == own);
            own.any(|target| target.state.serves())
        })
    }

    /// Has the new leader ask.
    async fn tell_of_left(self: Rc<Self>, pool: PoolId, leader: Place) {
        let engines = self.admission.pools.engines();
        let notice = LeftNotice { member: engines.own_index(), pool };
        let opcode = opcode::TARGET_REPLICA_LEFT_NOTICE;
        if let Err(error) = engines.ask::<_, ()>(leader.0, leader.1, opcode, &notice, LIMIT).await {
            tracing::debug!(%pool, %error, "the new leader of a group has not heard what is unsettled here");
        }
        self.takeover.telling.borrow_mut().remove(&(pool, leader));
    }

    /// Asks a member what former leaders have left there, and gets what isn't here.
    async fn ask_for_left(self: Rc<Self>, pool: Rc<TargetPool>, member: Place) {
        let is_served = pool.with_map(|map| {
            let mut serving = map.targets.iter().filter(|target| target.state.serves());
            serving.any(|target| (target.rank, target.index) == member)
        });
        if !is_served || member == self.own() {
            self.succession.give_up(&pool, member);
        } else if self.admission.may_serve(&pool) {
            let version = pool.with_map(|map| map.version);
            match self.get_left(&pool, version, member).await {
                Ok(()) => self.succession.note_heard(&pool, member, version),
                Err(status) => {
                    let (rank, target) = member;
                    tracing::debug!(%rank, %target, %status, "a member has not said what a former leader has left");
                }
            }
        }
        self.admission.rt.sleep(PAUSE).await;
        self.takeover.asking.borrow_mut().remove(&(pool.id(), member));
    }

    async fn get_left(
        self: &Rc<Self>,
        pool: &Rc<TargetPool>,
        map_version: u32,
        member: Place,
    ) -> Result<(), Status> {
        let engines = self.admission.pools.engines();
        let mut from = None;
        loop {
            let request = LeftRequest { leader: engines.own_index(), pool: pool.id(), map_version, from };
            let (opcode, room) = (opcode::TARGET_REPLICA_LEFT, PAGE * LEFT_BYTES + EXTRA);
            let asked = engines.ask_long::<_, LeftChanges>(member, opcode, &request, room, LIMIT).await;
            let told = asked.map_err(|error| Status::new(error.der(), error.to_string()))?;
            for left in &told.changes {
                self.get(pool, (map_version, member), left).await?;
            }
            let last = told.changes.last().map(|left| (left.epoch, left.origin.0, left.origin.1));
            match last.filter(|_| told.goes_on) {
                Some(last) if from.is_none_or(|from| last > from) => from = Some(last),
                Some(_) => return Err(refusal::invalid("a list of changes doesn't go on")),
                None if told.goes_on => return Err(refusal::invalid("a list of changes doesn't go on")),
                None => return Ok(()),
            }
        }
    }

    /// Gets a change that a member has, unless it is here.
    async fn get(
        self: &Rc<Self>,
        pool: &Rc<TargetPool>,
        (map_version, member): (u32, Place),
        left: &LeftChange,
    ) -> Result<(), Status> {
        let (origin, epoch) = (left.origin, left.epoch);
        let observed = self.admission.pools.clock().observe(epoch, self.admission.rt.wall_ns());
        observed.map_err(|skew| Status::new(Der::HLC_SYNC, skew.to_string()))?;
        if self.is_here(pool, origin, (epoch, (left.id.client, left.id.number))).await? {
            self.note_teller(pool, left, member);
            return Ok(());
        }
        let engines = self.admission.pools.engines();
        let request = LeftDataRequest { pool: pool.id(), map_version, origin, epoch };
        let room = usize::try_from(left.len).map_err(refusal::invalid)? + EXTRA;
        let opcode = opcode::TARGET_REPLICA_LEFT_DATA;
        let asked = engines.ask_long::<_, LeftData>(member, opcode, &request, room, LIMIT).await;
        let LeftData { until, change } =
            asked.map_err(|error| Status::new(error.der(), error.to_string()))?;
        let container = pool.container(left.container).await?;
        let forward = ReplicaForward {
            leader: engines.own_index(),
            pool: pool.id(),
            container: left.container,
            map_version,
            object: left.object,
            epoch,
            id: left.id,
            until,
            forgotten: Vec::new(),
            change: Vec::new().into(),
        };
        // Another member may have told of it meanwhile.
        if self.is_here(pool, origin, (epoch, (left.id.client, left.id.number))).await? {
            self.note_teller(pool, left, member);
            return Ok(());
        }
        let maker = Maker { origin, leader: self.own(), group: Some(left.group) };
        let data = OwnData::Inline(change.into_vec().into());
        self.store_change(maker, (Rc::clone(pool), container), forward, data).await?;
        self.note_teller(pool, left, member);
        Ok(())
    }

    /// A member waits to hear that a change is settled: at once, where it is.
    fn note_teller(self: &Rc<Self>, pool: &TargetPool, left: &LeftChange, member: Place) {
        match self.unsettled.find(pool.id(), left.origin, left.epoch) {
            Some(pending) => {
                pending.told_by.borrow_mut().insert(member);
            }
            None => self.tell((pool.id(), left.object), (left.origin, left.epoch), member),
        }
    }

    /// The other members of a group that serve; `None`: this target doesn't lead it.
    fn serving_others(&self, pool: &TargetPool, pending: &Pending) -> Option<Others> {
        let own = self.own();
        let found = pool.with_layout(pending.object.2, |layout, map| {
            let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
            if pending.group >= layout.group_count() {
                return None;
            }
            let serving: Vec<Place> = layout.serving(pending.group, map).filter_map(place).collect();
            let (first, others) = serving.split_first()?;
            (*first == own).then(|| Others { version: map.version, serving: others.to_vec() })
        });
        found.ok().flatten()
    }

    /// Has all members that serve store what a former leader has left and this target has. Those that don't serve get it with what
    /// they lack: nothing is given to them before it is settled.
    async fn take(self: Rc<Self>, pool: Rc<TargetPool>, pending: Rc<Pending>) {
        pending.stored.wait().await;
        let mut done: Vec<Place> = Vec::new();
        while !pending.settled.is_open() && self.admission.pools.get(pool.id()).is_ok() {
            // By a map that isn't leased there may be members that are not known here.
            if !self.admission.may_serve(&pool) {
                self.admission.rt.sleep(PAUSE).await;
                continue;
            }
            let Some(others) = self.serving_others(&pool, &pending) else { break };
            let left: Vec<Place> = others.serving.iter().filter(|one| !done.contains(one)).copied().collect();
            if left.is_empty() || pending.kept().is_none() {
                self.unsettled.settle_told(&pending);
                let (of, change) = ((pool.id(), pending.object.2), (pending.leader, pending.epoch));
                let mut waiting = pending.told_by.take();
                waiting.extend(others.serving);
                for member in waiting {
                    self.tell(of, change, member);
                }
                break;
            }
            let sent = left.iter().map(|member| self.send_taken(&pool, &pending, others.version, *member));
            for (member, stored) in left.iter().zip(join_all(sent).await) {
                match stored {
                    Ok(()) => done.push(*member),
                    Err(error) => {
                        tracing::debug!(rank = %member.0, target = %member.1, error, "a replica has not stored what a former leader has left");
                    }
                }
            }
            if left.iter().any(|member| !done.contains(member)) {
                self.admission.rt.sleep(PAUSE).await;
            }
        }
        pending.is_taken.set(false);
    }

    async fn send_taken(
        &self,
        pool: &TargetPool,
        pending: &Pending,
        map_version: u32,
        (rank, index): Place,
    ) -> Result<(), String> {
        let engines = self.admission.pools.engines();
        let kept = pending.kept().ok_or_else(|| "nothing is kept of it".to_owned())?;
        let (bytes, (_, container, object)) = (kept.bytes(), pending.object);
        let is_long = bytes.len() > FORWARD_INLINE_MAX;
        let memory = is_long.then(|| engines.lend(&[&bytes])).transpose();
        let memory = memory.map_err(|error| error.to_string())?;
        let forward = ReplicaForward {
            leader: engines.own_index(),
            pool: pool.id(),
            container,
            map_version,
            object,
            epoch: pending.epoch,
            id: kept.id,
            until: kept.until,
            forgotten: Vec::new(),
            change: if is_long { Vec::new().into() } else { bytes.to_vec().into() },
        };
        let group = u32::try_from(pending.group).map_err(|error| error.to_string())?;
        let request = TakenForward { origin: pending.leader, group, forward };
        let opcode = opcode::TARGET_REPLICA_TAKEN;
        let asked = engines.ask_lending::<_, ()>(rank, index, opcode, &request, memory.as_ref(), LIMIT);
        asked.await.map_err(|error| error.to_string())
    }

    /// Waits until all members that serve have all changes of groups with more than two that this target leads, those among them that
    /// former leaders have left, and have heard of all that are settled. Returns an epoch up to which that is so; `None`: it isn't in
    /// time.
    ///
    /// Who gets history from here then has nothing that others lack, and nothing that a new leader would take for something else.
    pub(crate) async fn when_all_settled(&self, pool: &TargetPool, limit: Duration) -> Option<Epoch> {
        let (rt, own) = (&self.admission.rt, self.own());
        let until = rt.now() + limit;
        while self.unsettled.takes_over() && !self.has_taken_over(pool) {
            if rt.now() >= until {
                return None;
            }
            rt.sleep(SETTLED_LOOK).await;
        }
        let now = self.admission.epoch();
        let is_later = |epoch: Option<Epoch>| epoch.is_none_or(|epoch| epoch > now);
        while !is_later(self.unsettled.oldest_not_at_serving(pool, own))
            || !is_later(self.notices.oldest(pool.id()))
        {
            if rt.now() >= until {
                return None;
            }
            rt.sleep(SETTLED_LOOK).await;
        }
        Some(now)
    }

    /// Whether all that serve have said what former leaders have left, and nothing is unsettled of that which this target leads.
    fn has_taken_over(&self, pool: &TargetPool) -> bool {
        let own = self.own();
        let others: Vec<Place> = pool.with_map(|map| {
            let serving = map.targets.iter().filter(|target| target.state.serves() && !target.in_doubt);
            serving.map(|target| (target.rank, target.index)).filter(|place| *place != own).collect()
        });
        let has_heard = self.succession.have_heard(pool, &others);
        has_heard && !self.unsettled.left(pool).iter().any(|(_, leader)| *leader == Some(own))
    }
}

/// Looks after what former leaders have left for as long as the service lives.
async fn look_after(replication: Weak<Replication>) {
    loop {
        let Some((rt, woken)) = replication
            .upgrade()
            .map(|replication| (replication.admission.rt.clone(), replication.succession.woken()))
        else {
            return;
        };
        race(woken.notified(), rt.sleep(LOOK)).await;
        {
            let Some(replication) = replication.upgrade() else { return };
            replication.look_for_left();
        }
        // Each of many that wait has woken it.
        rt.sleep(SETTLED_LOOK).await;
    }
}
