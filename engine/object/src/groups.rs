//! Groups of replicas as a target sees them by its map of a pool: who serves, who leads, and from when on a leader may order
//! changes. Operations, replication and transactions ask it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use weir_layout::{Layout, ObjectClass, Receivers};
use weir_pool::TargetPool;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_proto::pool::PoolMap;
use weir_proto::replica_transaction::GroupName;
use weir_proto::{Der, Epoch, Key, ObjectId, PoolId};
use weir_rpc::Status;

use crate::unsettled::Place;

/// The targets that take writes of a group.
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
        Some(Serving { version: map.version, members: members(group.object, layout, number, map) })
    });
    found.ok().flatten()
}

/// The members of a group of a layout, and behind them those who fill places that they are to have; see [`Serving::members`].
pub(crate) fn members(object: ObjectId, layout: &Layout, number: usize, map: &PoolMap) -> Vec<Place> {
    let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
    if layout.replicas == 1 {
        return layout.group(number).iter().copied().filter_map(place).collect();
    }
    if layout.leader(number, map).is_none() {
        return Vec::new();
    }
    let gaining = gaining(object, number, map);
    layout.writing(number, map).chain(gaining).filter_map(place).collect()
}

/// Ids of the targets that have no place in a group, and fill one.
pub(crate) fn gaining(object: ObjectId, number: usize, map: &PoolMap) -> Vec<u32> {
    if map.moves_since().is_none() {
        return Vec::new();
    }
    let receivers = Receivers::of(object, map);
    receivers.map_or_else(|_| Vec::new(), |receivers| receivers.gaining(number, map).collect())
}

/// Refuses changes of a group that is about to get other members: what is unsettled there has to be settled before.
///
/// # Errors
/// As long as the map hands its places over.
pub(crate) fn check_kept(pool: &TargetPool, object: ObjectId, group: usize) -> Result<(), Status> {
    let is_handed_over = pool.with_map(|map| {
        map.handing > 0
            && is_replicated(object)
            && Receivers::of(object, map).is_ok_and(|receivers| receivers.changes(group))
    });
    if !is_handed_over {
        return Ok(());
    }
    let label = pool.label();
    let message =
        format!("pool {label}: a group of replicas is about to get other members, and takes changes then");
    Err(Status::new(Der::INPROGRESS, message))
}

/// Refuses reads of what this target gives away, from the moment on at which others may take changes without it. Without a dkey
/// any group of the object counts.
///
/// # Errors
/// As long as the map hands places over that this target has, and once it has none any more.
pub(crate) fn check_read(
    pool: &TargetPool,
    own: Place,
    (object, dkey): (ObjectId, Option<&Key>),
) -> Result<(), Status> {
    let is_given = pool.with_map(|map| {
        let receivers = (map.handing > 0).then(|| Receivers::of(object, map).ok()).flatten()?;
        let id = map.targets.iter().find(|target| (target.rank, target.index) == own)?.id;
        let mut groups = match dkey {
            Some(dkey) => receivers.now.group_index(dkey.hash())..receivers.now.group_index(dkey.hash()) + 1,
            None => 0..receivers.now.group_count(),
        };
        groups.any(|group| receivers.leaves(group, id)).then_some(())
    });
    if is_given.is_none() {
        return Ok(());
    }
    let label = pool.label();
    Err(Status::new(
        Der::AGAIN,
        format!("pool {label}: another target is about to serve in place of this one"),
    ))
}

/// Refuses what was read by an earlier map if this target has given it away meanwhile: its data may be gone.
///
/// # Errors
/// When this target has no place any more in the group, or, without a dkey, in the object.
pub(crate) fn check_still_read(
    pool: &TargetPool,
    own: Place,
    (object, dkey): (ObjectId, Option<&Key>),
) -> Result<(), Status> {
    let has_place = pool.with_layout(object, |layout, map| {
        let mut members = match dkey {
            Some(dkey) => layout.group(layout.group_index(dkey.hash())),
            None => &layout.shards,
        }
        .iter();
        members.any(|id| map.target(*id).is_some_and(|target| (target.rank, target.index) == own))
    });
    if has_place.unwrap_or(true) { Ok(()) } else { Err(leads_not(pool, own)) }
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
