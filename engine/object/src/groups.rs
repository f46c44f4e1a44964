//! Groups of replicas as a target sees them by its map of a pool: who serves, who leads, and from when on a leader may order
//! changes. Operations, replication and transactions ask it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use weir_layout::{Layout, ObjectClass};
use weir_pool::TargetPool;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_proto::pool::PoolMap;
use weir_proto::replica_transaction::GroupName;
use weir_proto::{Der, Epoch, Key, ObjectId, PoolId};
use weir_rpc::Status;

use crate::unsettled::Place;

/// The members of a group that take writes.
pub(crate) struct Serving {
    /// Version of the map that says so.
    pub(crate) version: u32,
    /// The leader first. None while no member serves.
    pub(crate) members: Vec<Place>,
}

/// Whether groups of replicas hold an object.
pub(crate) fn is_replicated(object: ObjectId) -> bool {
    ObjectClass::of(object).is_ok_and(|class| class.replicas() > 1)
}

/// Who serves a group, by the newest map here. `None`: there is no such group. Where the object has no replicas: its shard,
/// whatever state it is in.
pub(crate) fn serving(pool: &TargetPool, group: GroupName) -> Option<Serving> {
    let found = pool.with_layout(group.object, |layout, map| {
        let number = usize::try_from(group.number).ok().filter(|number| *number < layout.group_count())?;
        Some(Serving { version: map.version, members: members(layout, number, map) })
    });
    found.ok().flatten()
}

/// The members of a group of a layout; see [`Serving::members`].
pub(crate) fn members(layout: &Layout, number: usize, map: &PoolMap) -> Vec<Place> {
    let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
    if layout.replicas == 1 {
        return layout.group(number).iter().copied().filter_map(place).collect();
    }
    if layout.leader(number, map).is_none() {
        return Vec::new();
    }
    layout.writing(number, map).filter_map(place).collect()
}

/// Whether a target leads a group, by the newest map here.
pub(crate) fn leads(pool: &TargetPool, own: Place, group: GroupName) -> bool {
    serving(pool, group).is_some_and(|serving| serving.members.first() == Some(&own))
}

/// Refuses a transaction's read of an object with replicas where this target doesn't lead: only the leader of a group notes
/// what was read. Without a dkey any group of the object will do.
pub(crate) fn check_reader(
    pool: &TargetPool,
    own: Place,
    (object, dkey): (ObjectId, Option<&Key>),
) -> Result<(), Status> {
    if !is_replicated(object) {
        return Ok(());
    }
    let leads = pool.with_layout(object, |layout, map| {
        let groups = match dkey {
            Some(dkey) => layout.group_index(dkey.hash())..layout.group_index(dkey.hash()) + 1,
            None => 0..layout.group_count(),
        };
        let is_own = |id: u32| map.target(id).is_some_and(|target| (target.rank, target.index) == own);
        groups.into_iter().any(|group| layout.leader(group, map).is_some_and(is_own))
    });
    if leads.is_ok_and(|leads| leads) { Ok(()) } else { Err(leads_not(pool, own)) }
}

/// The answer of a target that doesn't lead the group that a request is about.
pub(crate) fn leads_not(pool: &TargetPool, (rank, index): Place) -> Status {
    let version = pool.with_map(|map| map.version);
    let message = format!(
        "target {index} of rank {rank} does not lead the group of replicas by version {version} of the map of pool {}",
        pool.label()
    );
    Status::new(Der::STALE, message)
}

/// What is remembered of a pool.
struct Seen {
    version: u32,
    serving: BTreeSet<u32>,
    floor: Epoch,
}

/// From when on this target may order changes of groups that it leads.
///
/// Other leaders may have let transactions read by clocks that are ahead of this one, and nobody else knows what was read. So once
/// others lead than before, changes have to be behind all that could have been read until then.
#[derive(Default)]
pub(crate) struct Floors(RefCell<HashMap<PoolId, Seen>>);

impl Floors {
    /// The epoch behind which changes have to be that this target judges as a leader. `wall_ns` is the time.
    pub(crate) fn floor(&self, pool: &TargetPool, wall_ns: u64) -> Epoch {
        let mut pools = self.0.borrow_mut();
        let version = pool.with_map(|map| map.version);
        let before = pools.get(&pool.id());
        if let Some(seen) = before.filter(|seen| seen.version == version) {
            return seen.floor;
        }
        let targets = |serves: bool| {
            pool.with_map(|map| {
                let ids = map.targets.iter().filter(|target| target.state.serves() == serves);
                ids.map(|target| target.id).collect::<BTreeSet<u32>>()
            })
        };
        let serving = targets(true);
        let is_other = match before {
            Some(seen) => seen.serving != serving,
            None => !targets(false).is_empty(),
        };
        let floor = match (is_other, before) {
            (true, _) => Epoch(wall_ns.saturating_add(SKEW_MAX_NS)),
            (false, Some(seen)) => seen.floor,
            (false, None) => Epoch::ZERO,
        };
        pools.insert(pool.id(), Seen { version, serving, floor });
        floor
    }

    /// Refuses a change that another leader's readers may be behind: it is to come again.
    ///
    /// # Errors
    /// When `epoch` isn't behind the floor.
    pub(crate) fn check(&self, pool: &TargetPool, epoch: Epoch, wall_ns: u64) -> Result<(), Status> {
        let floor = self.floor(pool, wall_ns);
        if epoch > floor {
            return Ok(());
        }
        let label = pool.label();
        let message = format!(
            "pool {label}: the target waits for its clock to pass what a former leader may have promised"
        );
        Err(Status::new(Der::INPROGRESS, message))
    }
}
