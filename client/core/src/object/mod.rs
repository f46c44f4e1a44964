//! Objects: dkeys and akeys, single values and arrays of records. The room computes the placement and the checksums, and sends its
//! requests by `operation` to the targets of an object. Programs call it, and so do transactions, key-value objects and arrays.

mod fetch;
mod key;
mod large;
mod list;
mod placement;
mod replicas;
mod reserve;
pub(crate) mod update;
mod verify;

pub use fetch::AkeyRead;
pub use key::ExtremeKey;
pub(crate) use key::Measured;
pub use list::{Anchor, Page};
pub use placement::{PlacedTarget, Placement};
pub(crate) use replicas::{LOOK_PAUSE, may_be_answered_elsewhere};
pub(crate) use reserve::{DkeyRuns, Reserved};
pub use update::AkeyWrite;
pub use verify::{Mismatch, MismatchKind, Verified};

use core::fmt;
use std::rc::Rc;

use weir_layout::Layout;
use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
use weir_proto::{Der, Epoch, Key, ObjectId, Rank, ReaderId, TargetIndex};
use weir_runtime::Instant;

use crate::error::Error;
use crate::handles::{Container, LOOK_INTERVAL, Pool};
use crate::operation::{Exchange, Reach, Refusal, RequestInfo};
use crate::session::Context;
use crate::{ObjectClass, Result};

/// An object of a container. Plain data: cheap to clone, usable from any context of the system.
#[derive(Clone, Debug)]
pub struct Object {
    container: Container,
    oid: ObjectId,
    epoch: Epoch,
    /// The transaction whose epoch that is. What it reads is noted.
    reader: Option<ReaderId>,
    replica: ReplicaChoice,
}

/// Which replica of a group is asked that may be any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReplicaChoice {
    /// One at random.
    Any,
    /// This one, and others if it can't answer.
    First((Rank, TargetIndex)),
    /// This one and no other, also what only the leader is asked otherwise.
    Only((Rank, TargetIndex)),
}

/// Where a request about an object goes.
#[derive(Clone, Copy)]
enum ShardChoice<'a> {
    /// The shard that holds this dkey.
    Dkey(&'a Key),
    /// The shard of this number.
    Shard(usize),
}

impl Object {
    /// Opens an object: checks its class, sends nothing.
    ///
    /// # Errors
    /// `INVAL` when the id carries a class that is unknown or not supported.
    pub fn open(container: &Container, oid: ObjectId) -> Result<Self> {
        ObjectClass::of(oid)
            .and_then(ObjectClass::ensure_supported)
            .map_err(|error| Error::invalid("open object", error))?;
        Ok(Self::open_unchecked(container, oid))
    }

    /// The same object as it was at a snapshot's epoch; reads see that state.
    #[must_use]
    pub fn at(&self, epoch: Epoch) -> Self {
        Self { epoch, reader: None, ..self.clone() }
    }

    /// The same object as the [`crate::Transaction`] of this epoch and name reads it.
    #[must_use]
    pub fn in_transaction(&self, (epoch, reader): (Epoch, ReaderId)) -> Self {
        Self { epoch, reader: Some(reader), ..self.clone() }
    }

    /// The same object as one replica of its groups has it: reads and lists ask this target and no other.
    #[must_use]
    pub fn at_replica(&self, rank: Rank, index: TargetIndex) -> Self {
        Self { replica: ReplicaChoice::Only((rank, index)), reader: None, ..self.clone() }
    }

    /// Whether reads see the newest state, not one of an epoch.
    pub(crate) fn is_newest(&self) -> bool {
        self.epoch == Epoch::MAX
    }

    /// The object's id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.oid
    }

    /// The container it is in.
    #[must_use]
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// The same without asking whether its class is served yet.
    #[doc(hidden)]
    #[must_use]
    pub fn open_unchecked(container: &Container, oid: ObjectId) -> Self {
        let (epoch, replica) = (Epoch::MAX, ReplicaChoice::Any);
        Self { container: container.clone(), oid, epoch, reader: None, replica }
    }

    /// Whether groups of replicas hold it.
    pub(crate) fn is_replicated(&self) -> bool {
        ObjectClass::of(self.oid).is_ok_and(|class| class.replicas() > 1)
    }

    /// Number of shards, or of groups of replicas, with the pool map that `context` knows.
    ///
    /// # Errors
    /// When the object can't be placed.
    pub fn shard_count(&self, context: &Context) -> Result<usize> {
        let map = context.map_of(self.container.pool());
        Ok(self.layout(context, &map)?.group_count())
    }

    pub(crate) fn layout(&self, context: &Context, map: &PoolMap) -> Result<Rc<Layout>> {
        let layout = context.layout(self.container.pool().id(), self.oid, map);
        layout.map_err(|error| Error::invalid("place object", error))
    }

    /// Finds the target and runs one exchange with it, again after a change of the pool map. `build` makes the
    /// request for a map version.
    async fn exchange(
        &self,
        context: &Context,
        info: &RequestInfo<'_>,
        place: ShardChoice<'_>,
        payload: &crate::operation::Payload<'_>,
        build: &dyn Fn(u32) -> Vec<u8>,
    ) -> core::result::Result<Exchange, Refusal> {
        self.exchange_until(context, context.until(), info, place, payload, build).await
    }

    /// The same for a caller that has a deadline already.
    async fn exchange_until(
        &self,
        context: &Context,
        deadline: Instant,
        info: &RequestInfo<'_>,
        place: ShardChoice<'_>,
        payload: &crate::operation::Payload<'_>,
        build: &dyn Fn(u32) -> Vec<u8>,
    ) -> core::result::Result<Exchange, Refusal> {
        if self.is_replicated() {
            // Boxed, so that the future of the others is small.
            let replicas = self.exchange_with_replicas(context, deadline, info, place, payload, build);
            return Box::pin(replicas).await;
        }
        let pool = self.container.pool();
        loop {
            let map = context.map_of(self.container.pool());
            let layout = self.layout(context, &map)?;
            let id = match place {
                ShardChoice::Dkey(dkey) => layout.target_of(dkey),
                ShardChoice::Shard(shard) => match layout.shards.get(shard) {
                    Some(id) => *id,
                    None => return Err(no_shard(info, shard).into()),
                },
            };
            let target = target_of(&map, id).ok_or_else(|| no_shard(info, id as usize))?;
            if target.state == TargetState::Down {
                // It may have come back: a client that uses only this target would never hear of it.
                if context.look_for_map(pool, map.version, LOOK_INTERVAL).await {
                    continue;
                }
                return Err(out_of_service(info, pool, target).into());
            }
            let reach = Reach::Target(target.rank, target.index);
            let body = build(map.version);
            match context.exchange(reach, info, &body, payload, deadline).await {
                Err(refusal) if is_stale(refusal.error.der()) && context.runtime().now() < deadline => {
                    context.refresh_map(pool, map.version, target.rank, deadline).await?;
                }
                // The map may say by now that the target is out of service.
                Err(refusal) if refusal.error.is(Der::NVME_IO) => {
                    context.look_for_map(pool, map.version, LOOK_INTERVAL).await;
                    let newest = context.map_of(pool);
                    let down = target_of(&newest, id).filter(|target| target.state == TargetState::Down);
                    let error = down.map_or(refusal.error, |target| out_of_service(info, pool, target));
                    return Err(error.into());
                }
                answered => return answered,
            }
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {:?} of {}", self.oid, self.container)
    }
}

pub(crate) fn target_of(map: &PoolMap, id: u32) -> Option<&PoolTarget> {
    let index = map.targets.binary_search_by_key(&id, |target| target.id).ok()?;
    map.targets.get(index)
}

pub(crate) fn no_shard(info: &RequestInfo<'_>, shard: usize) -> Error {
    Error::invalid(info.operation, format!("{} has no shard {shard} in the pool map", info.subject))
}

/// What is said of a target that the pool map calls down.
pub(crate) fn out_of_service(info: &RequestInfo<'_>, pool: &Pool, target: &PoolTarget) -> Error {
    let PoolTarget { rank, index, .. } = target;
    let message = format!(
        "target {index} of rank {rank} is out of service in {pool}, because its device is faulty; data on it is unavailable. `weir system query` says what is wrong: repair or replace the device, then say so with `weir system clear-device {rank} {index}` and restart the engine"
    );
    Error::refused(info.operation, info.subject.to_string(), Der::NVME_IO, message)
}

/// What is said of a group of replicas that nobody serves: a member of it may be getting what it lacks.
pub(crate) fn unserved(
    info: &RequestInfo<'_>,
    pool: &Pool,
    map: &PoolMap,
    (layout, group): (&Layout, usize),
) -> Error {
    let mut members = layout.group(group).iter().filter_map(|id| map.target(*id));
    let Some(first) = members.clone().next() else { return no_shard(info, group) };
    let Some(PoolTarget { rank, index, .. }) = members.find(|one| one.state == TargetState::Up) else {
        return out_of_service(info, pool, first);
    };
    let message = format!(
        "no replica of it is in service in {pool}: target {index} of rank {rank} is getting what it lacks. `weir pool query` says how far it is; try again then"
    );
    Error::refused(info.operation, info.subject.to_string(), Der::AGAIN, message)
}

/// Whether an engine says that the client's pool map is not the engine's.
pub(crate) fn is_stale(der: Der) -> bool {
    matches!(der, Der::STALE | Der::GRPVER)
}
