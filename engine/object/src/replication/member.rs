//! What a member of a group does that doesn't lead: it stores what the leader has stored.

use std::rc::Rc;

use weir_media::Slice;
use weir_pool::{TargetContainer, TargetPool};
use weir_proto::object::PunchScope;
use weir_proto::replica::{ForwardedChange, ReplicaForward};
use weir_proto::{Der, Epoch, Rank, codec, opcode};
use weir_rpc::{Request, Status};

use super::{OwnData, Replication};
use crate::admission::refusal::{self, ErrorSite};
use crate::operations::within_quota;
use crate::repeats::{Identity, Marks};
use crate::unsettled::{Kept, Pending, Place, PlantedBug, dkeys_of, has_many_members};

/// A change as it came.
struct Forwarded {
    pool: Rc<TargetPool>,
    container: Rc<TargetContainer>,
    request: ReplicaForward,
    change: ForwardedChange,
    data: OwnData,
    pending: Rc<Pending>,
}

/// Who has made a change that comes.
#[derive(Clone, Copy)]
pub(super) struct Maker {
    /// The target that has chosen the epoch.
    pub(super) origin: Place,
    /// The target that leads the group now.
    pub(super) leader: Place,
    /// Number of the group, where a former leader has made it.
    pub(super) group: Option<u32>,
}

impl Maker {
    /// Version of the map by which the one that has chosen the epoch led, as far as that matters: see [`Pending::new`].
    fn version(self, map_version: u32) -> u32 {
        if self.group.is_none() { map_version } else { 0 }
    }
}

impl Replication {
    /// Stores what leaders forward from now on.
    pub(super) fn serve_members(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        let handler = move |rank: Rank, forward: ReplicaForward, request: Rc<Request>| {
            let replication = weak.upgrade();
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let refused =
                    |Status { der, message }| weir_group::Refusal { der, object: String::new(), message };
                let replication = replication.ok_or_else(stopping).map_err(refused)?;
                replication.follow(rank, forward, &request).await.map_err(refused)
            }
        };
        self.admission.pools.engines().serve_lent(opcode::TARGET_REPLICA_FORWARD, handler);
    }

    async fn follow(
        self: &Rc<Self>,
        rank: Rank,
        forward: ReplicaForward,
        request: &Rc<Request>,
    ) -> Result<(), Status> {
        let leader = (rank, forward.leader);
        self.follow_maker(Maker { origin: leader, leader, group: None }, forward, request).await
    }

    /// Stores a change, unless it is here.
    pub(super) async fn follow_maker(
        self: &Rc<Self>,
        maker: Maker,
        forward: ReplicaForward,
        request: &Rc<Request>,
    ) -> Result<(), Status> {
        let observed = self.admission.pools.clock().observe(forward.epoch, self.admission.rt.wall_ns());
        observed.map_err(|skew| Status::new(Der::HLC_SYNC, skew.to_string()))?;
        let pool = self.admission.pool(forward.pool)?;
        let container = pool.container(forward.container).await?;
        self.admission.check_storable(&pool, forward.map_version)?;
        let id = (forward.id.client, forward.id.number);
        if self.is_here(&pool, maker.origin, (forward.epoch, id)).await? {
            return Ok(());
        }
        let bytes = Self::fetch_change(&forward, request).await?;
        self.store_change(maker, (pool, container), forward, bytes).await
    }

    /// Whether a change is here, also when it is about to be.
    ///
    /// # Errors
    /// When it was about to be, and could not be stored.
    pub(super) async fn is_here(
        &self,
        pool: &TargetPool,
        origin: Place,
        (epoch, identity): (Epoch, Identity),
    ) -> Result<bool, Status> {
        if self.came_as_history(pool, origin, epoch) || self.unsettled.is_told(pool.id(), origin, epoch) {
            return Ok(true);
        }
        if let Some(known) = self.unsettled.find(pool.id(), origin, epoch) {
            known.stored.wait().await;
            let failed = || Status::new(Der::AGAIN, "it could not be stored; it is to be sent again");
            return if known.is_withdrawn() { Err(failed()) } else { Ok(true) };
        }
        Ok(self.repeats.executed_as(pool, identity).is_some_and(|known| known.epoch == Some(epoch)))
    }

    /// Stores a change that isn't here.
    pub(super) async fn store_change(
        self: &Rc<Self>,
        maker: Maker,
        (pool, container): (Rc<TargetPool>, Rc<TargetContainer>),
        forward: ReplicaForward,
        bytes: OwnData,
    ) -> Result<(), Status> {
        let epoch = forward.epoch;
        let (change, data) =
            codec::decode_prefix::<ForwardedChange>(bytes.bytes()).map_err(refusal::malformed)?;
        let start = bytes.bytes().len() - data.len();
        let data = bytes.part(start)?;
        let (is_punch, dkeys) = match &change {
            ForwardedChange::Update { dkey, .. } => (false, Some(vec![dkey.clone()])),
            ForwardedChange::Punch { scope } => (true, dkeys_of(scope)),
        };
        let is_filling = is_punch && pool.shard().is_filling();
        if is_filling && self.unsettled.has_planted(PlantedBug::PunchBeforeItsHistory) {
            return Ok(());
        }
        // Another request may have come with the same meanwhile.
        if self.unsettled.find(forward.pool, maker.origin, epoch).is_some() {
            return Err(Status::new(Der::AGAIN, "it is being stored; it is to be sent again"));
        }
        let object = (forward.pool, forward.container, forward.object);
        let group = match maker.group {
            Some(group) => usize::try_from(group).map_err(refusal::invalid)?,
            None => Self::group_of(&pool, forward.object, dkeys.as_deref(), maker.leader)?,
        };
        let led = (maker.origin, maker.version(forward.map_version), group);
        let kept = if has_many_members(forward.object) {
            Some(Kept::new(forward.id, forward.until, bytes.whole()?))
        } else {
            None
        };
        let pending = Pending::keeping(object, epoch, led, (is_punch, dkeys), kept);
        self.unsettled.add(&pending);
        let forwarded = Forwarded { pool, container, request: forward, change, data, pending };
        // The request may be dropped in the middle: what has begun ends all the same.
        let task = self.admission.rt.spawn(Rc::clone(self).store_forwarded(forwarded));
        task.await.unwrap_or_else(|_| Err(Status::new(Der::SHUTDOWN, "the engine is stopping")))
    }

    /// The change and its data: in the message, or in the memory of the leader.
    async fn fetch_change(forward: &ReplicaForward, request: &Request) -> Result<OwnData, Status> {
        if !forward.change.is_empty() {
            return Ok(OwnData::Inline(forward.change.as_slice().into()));
        }
        let len = usize::try_from(request.bulk_len()).map_err(refusal::invalid)?;
        let mut payload = request.payload(len).await?;
        request.pull(0, &mut payload, len).await?;
        let outside = || refusal::invalid("a change was pulled short");
        Slice::new(Rc::new(payload), 0..len).map(OwnData::Pulled).ok_or_else(outside)
    }

    async fn store_forwarded(self: Rc<Self>, forwarded: Forwarded) -> Result<(), Status> {
        let Forwarded { pool, container, request, change, data, pending } = forwarded;
        let label = container.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let ReplicaForward { id, until, forgotten, object, epoch, map_version, .. } = request;
        let marks = Marks { identity: (id.client, id.number), until, forgotten, is_replicated: true };
        let (shard, along) = (pool.shard(), |epoch| marks.along(epoch));
        // What came with history before it is stored is refused, and found to be here when it is sent again.
        let came = || self.came_as_history(&pool, pending.leader, epoch);
        let holds = || pool.check_map(map_version).is_ok() && !came();
        let attempt = async || match &change {
            ForwardedChange::Update { dkey, akeys } => {
                let chosen = (epoch, &holds as &dyn Fn() -> bool);
                shard.update_as_replica(container.id, object, dkey, chosen, akeys, data.data(), &along).await
            }
            ForwardedChange::Punch { scope } => {
                shard.punch_as_replica(container.id, object, &judged(scope), (epoch, &holds), &along).await
            }
        };
        let len = data.bytes().len() as u64;
        match within_quota((&pool, &container), len, &place, attempt).await {
            Ok(_) => {
                self.repeats.committed(&pool, &marks, epoch);
                self.keep_promise(&pool, pending.leader, &change);
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

/// A punch whose conditions have been judged.
fn judged(scope: &PunchScope) -> PunchScope {
    match scope {
        PunchScope::DkeyWith(dkey, _) => PunchScope::Dkeys(vec![dkey.clone()]),
        scope => scope.clone(),
    }
}

impl OwnData {
    /// All of it.
    fn whole(&self) -> Result<Slice, Status> {
        match self {
            Self::Inline(bytes) => {
                let (len, owner) = (bytes.len(), Rc::new(Rc::clone(bytes)));
                Slice::new(owner, 0..len).ok_or_else(|| refusal::invalid("a change has no such data"))
            }
            Self::Pulled(slice) => Ok(slice.clone()),
        }
    }

    /// What is behind the first bytes.
    fn part(&self, start: usize) -> Result<Self, Status> {
        let outside = || refusal::invalid("a change has no such data");
        match self {
            Self::Inline(bytes) => {
                bytes.get(start..).map(|rest| Self::Inline(rest.into())).ok_or_else(outside)
            }
            Self::Pulled(slice) => slice.part(start..slice.len()).map(Self::Pulled).ok_or_else(outside),
        }
    }
}
