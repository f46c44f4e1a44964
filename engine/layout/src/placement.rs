//! Placement: which targets hold an object, and which of them holds a dkey.
//!
//! An object of `g` groups occupies `g` slots. Targets are considered in the order of their ids, which is the order
//! in which they joined the pool: the first `g` take the slots, and each further one takes over the slot of the
//! occupant with the smallest weight if its own weight for this object is greater. Weights are pseudo-random, so
//! the occupants are a uniform sample (weighted rendezvous), and a target that joins moves at most one slot of an
//! object: exactly the one it takes. An object on all targets has a slot for each, and dkeys are dealt to slots by
//! jump consistent hashing (Lamping and Veach, 2014), so that a target that joins takes over only its own share of dkeys.
//! Objects with replicas have groups in place of slots, which the room `groups` fills. Targets that have joined a pool later take
//! places in groups alone: only data with replicas moves. The width of objects is that of the targets with which the pool was made.

use core::cell::OnceCell;
use std::rc::Rc;

use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
use weir_proto::{Key, ObjectId};

use crate::class::{ClassError, ObjectClass};
use crate::domains::{self, Seat};
use crate::groups;

/// Why an object has no layout.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The class in the object id.
    #[error("object {object} can't be placed: {source}")]
    Class {
        /// The object.
        object: ObjectId,
        /// What is wrong with its class.
        source: ClassError,
    },
    /// A pool map without targets.
    #[error("object {0} can't be placed: the pool map has no targets; connect to the pool again")]
    NoTargets(ObjectId),
    /// A group has more replicas than the pool has fault domains.
    #[error(
        "object {object} can't be placed: class {class} needs {} fault domains, the pool has {domains}; use a class with fewer replicas",
        class.replicas()
    )]
    Domains {
        /// The object.
        object: ObjectId,
        /// Its class.
        class: ObjectClass,
        /// Fault domains of the pool.
        domains: usize,
    },
}

/// The targets that hold an object: groups, each with the same number of replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Ids of the targets, group by group: as many as there are replicas for each. A target's place in its group is the
    /// same as long as it holds it.
    pub shards: Rc<[u32]>,
    /// Number of replicas in each group; 1 without redundancy.
    pub replicas: usize,
    /// Indexes in [`Layout::shards`] of the places that others have taken over, ascending, each with the version of the map since
    /// which its target has it.
    taken: Rc<[(usize, u32)]>,
    /// Mixed into dkey hashes, so that objects with equal dkeys load different shards.
    salt: u64,
}

impl Layout {
    /// Computes where an object lives. Targets that others have replaced ([`weir_proto::pool::PoolTarget::out`]) have no
    /// place in an object with replicas, and new ones have none in any.
    ///
    /// # Errors
    /// When the object's class is unknown or can't be placed, the map is empty, or the pool has too few fault domains.
    pub fn of(object: ObjectId, map: &PoolMap) -> Result<Self, LayoutError> {
        Placement::default().layout(object, map)
    }

    /// Where an object lives when all moves of data that are under way have ended ([`PoolMap::moves_since`]): who leaves is out, who
    /// joins or comes back is in. The data of each place that has another target then goes there, and leaders send changes there, too.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn next(object: ObjectId, map: &PoolMap) -> Result<Self, LayoutError> {
        Placement { view: View::Next, ..Placement::default() }.layout(object, map)
    }

    /// Bytes that its places take.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.shards) + size_of_val(&*self.taken)
    }

    /// Whether each group has a member in service.
    #[must_use]
    pub fn is_served(&self, map: &PoolMap) -> bool {
        (0..self.group_count()).all(|index| self.leader(index, map).is_some())
    }

    /// Number of groups.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.shards.len() / self.replicas
    }

    /// Number of the group that holds a dkey of this hash ([`Key::hash`]).
    #[must_use]
    pub fn group_index(&self, dkey_hash: u64) -> usize {
        jump(mix(dkey_hash ^ self.salt), self.group_count())
    }

    /// Ids of the targets of a group, each at its place.
    ///
    /// # Panics
    /// When `index` is not less than [`Layout::group_count`].
    #[must_use]
    pub fn group(&self, index: usize) -> &[u32] {
        &self.shards[index * self.replicas..(index + 1) * self.replicas]
    }

    /// The member of a group that orders its changes: of those that serve the one that has served for longest. So nobody
    /// takes the lead over from a member that goes on serving, and may have changes that others don't have. Of those that have
    /// served equally long it is the first, counted from a place that object and group pick, so that leaders spread. A function of
    /// group and map; `None` while no member serves.
    #[must_use]
    pub fn leader(&self, index: usize, map: &PoolMap) -> Option<u32> {
        self.serving(index, map).next()
    }

    /// The members of a group that serve reads and writes, the leader first. Those in doubt do only where no other one does, and then
    /// one of them alone: of the engine with the greatest rank, since engines in doubt catch up in the order of their ranks.
    pub fn serving(&self, index: usize, map: &PoolMap) -> impl Iterator<Item = u32> {
        let is_sure = |id: &u32| map.target(*id).is_some_and(|one| one.state.serves() && !one.in_doubt);
        let serving = self.members(index).filter_map(|id| map.target(id)).filter(|one| one.state.serves());
        let last = serving.max_by_key(|one| (one.rank, one.index));
        let alone = last.filter(|_| !self.members(index).any(|id| is_sure(&id))).map(|one| one.id);
        let mut sure: Vec<(u32, u32)> = self
            .places(index)
            .filter_map(|place| {
                let target = map.target(self.shards[place])?;
                let served_since = target.since.max(self.taken_since(place));
                is_sure(&target.id).then_some((served_since, target.id))
            })
            .collect();
        // Stable: equal ones stay in the order of their places.
        sure.sort_by_key(|(since, _)| *since);
        sure.into_iter().map(|(_, id)| id).chain(alone)
    }

    /// Version of the map since which the target at a place has it in the place of others; 0: it has had it since it joined.
    fn taken_since(&self, place: usize) -> u32 {
        let found = self.taken.binary_search_by_key(&place, |(place, _)| *place);
        found.map_or(0, |index| self.taken[index].1)
    }

    /// The members of a group that take writes, the leader first while there is one. Of those that serve no reads
    /// yet they get what they miss on another way.
    pub fn writing(&self, index: usize, map: &PoolMap) -> impl Iterator<Item = u32> {
        let serving: Vec<u32> = self.serving(index, map).collect();
        let takes = |id: &u32| map.target(*id).is_some_and(|one| one.state.takes_writes());
        let behind = self.members(index).filter(takes).filter(|id| !serving.contains(id));
        let behind: Vec<u32> = behind.collect();
        serving.into_iter().chain(behind)
    }

    /// The members of a group from the place on that object and group pick.
    fn members(&self, index: usize) -> impl Iterator<Item = u32> {
        self.places(index).map(|place| self.shards[place])
    }

    /// Indexes of the places of a group, in the same order.
    fn places(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let first = index * self.replicas;
        let start = first + groups::reduce(mix(self.salt ^ mix(!(index as u64))), self.replicas);
        (start..first + self.replicas).chain(first..start)
    }

    /// Index in [`Layout::shards`] of the first shard that holds a dkey of this hash ([`Key::hash`]).
    #[must_use]
    pub fn shard_index(&self, dkey_hash: u64) -> usize {
        self.group_index(dkey_hash) * self.replicas
    }

    /// Id of the first target that holds a dkey of this hash.
    #[must_use]
    pub fn shard_for(&self, dkey_hash: u64) -> u32 {
        self.shards[self.shard_index(dkey_hash)]
    }

    /// Id of the first target that holds a dkey.
    #[must_use]
    pub fn target_of(&self, dkey: &Key) -> u32 {
        if self.shards.len() == 1 { self.shards[0] } else { self.shard_for(dkey.hash()) }
    }
}

/// What layouts of all objects in one version of a map have in common, found when the first one needs it.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    view: View,
    /// The targets that objects without replicas are laid out on, ascending: those with which the pool was made.
    ids: OnceCell<Rc<[u32]>>,
    seating: OnceCell<Seating>,
}

/// What objects with replicas are laid out on.
#[derive(Debug)]
struct Seating {
    seats: Vec<Seat>,
    /// Those whose places go to others, the first one first, each with the version of the map in which it went out.
    out: Vec<(usize, u32)>,
    /// How many seats each fault domain has, without those that have joined later.
    sizes: Vec<usize>,
}

impl Placement {
    /// Computes where an object lives. The map has to be the same each time.
    pub(crate) fn layout(&self, object: ObjectId, map: &PoolMap) -> Result<Layout, LayoutError> {
        let class = ObjectClass::of(object)
            .and_then(ObjectClass::ensure_placed)
            .map_err(|source| LayoutError::Class { object, source })?;
        if map.targets.is_empty() {
            return Err(LayoutError::NoTargets(object));
        }
        let salt = mix(object.hi ^ mix(object.lo));
        let replicas = class.replicas();
        if replicas == 1 {
            let ids = self.ids.get_or_init(|| self.view.ids(map));
            let count = usize::from(class.groups()).min(ids.len());
            let shards = occupants(salt, count, ids);
            return Ok(Layout { shards, replicas, taken: Rc::default(), salt });
        }
        let Seating { seats, out, sizes } = self.seating.get_or_init(|| self.view.seating(map));
        let count = usize::from(class.groups()).min(domains::most_groups(sizes, replicas));
        let places = (count > 0).then(|| groups::occupants(salt, count, replicas, seats)).flatten();
        let mut places = places.ok_or(LayoutError::Domains { object, class, domains: sizes.len() })?;
        let taken = groups::replace(salt, replicas, seats, out, &mut places).into();
        let shards = places.into_iter().map(|seat| seats[seat].id).collect();
        Ok(Layout { shards, replicas, taken, salt })
    }

    /// Whether a layout takes no memory of its own for its shards, since they are all targets.
    pub(crate) fn has_shards_of(&self, layout: &Layout) -> bool {
        self.ids.get().is_some_and(|ids| Rc::ptr_eq(ids, &layout.shards))
    }
}

/// Which places of a map count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum View {
    /// Those that targets have.
    #[default]
    Now,
    /// Those that targets have once all moves that are under way have ended.
    Next,
}

impl View {
    /// Whether objects are laid out on a target.
    fn is_seat(self, target: &PoolTarget) -> bool {
        target.state != TargetState::New || (self == Self::Next && target.gains_all())
    }

    /// Ids of the targets that objects are laid out on.
    fn ids(self, map: &PoolMap) -> Rc<[u32]> {
        let original = map.targets.iter().filter(|target| self.is_seat(target) && target.joined == 0);
        original.map(|target| target.id).collect()
    }

    fn seating(self, map: &PoolMap) -> Seating {
        let is_seat = |target: &PoolTarget| self.is_seat(target);
        let seats = domains::seats(map, |position| is_seat(&map.targets[position]));
        let seated = map.targets.iter().filter(|target| is_seat(target)).enumerate();
        // Who leaves comes behind all that is out, in the order in which they go out.
        let order = |target: &PoolTarget| match (self, target.state) {
            (Self::Next, TargetState::Up) => None,
            (Self::Next, _) if target.out == 0 && target.leaving != 0 => Some((true, target.leaving)),
            _ => (target.out != 0).then_some((false, target.out)),
        };
        let mut out: Vec<_> =
            seated.filter_map(|(seat, target)| Some((order(target)?, target.id, seat))).collect();
        out.sort_unstable();
        let original = |position: usize| is_seat(&map.targets[position]) && map.targets[position].joined == 0;
        let sizes = domains::sizes(&domains::seats(map, original));
        let out = out.into_iter().map(|((_, version), _, seat)| (seat, version)).collect();
        Seating { seats, out, sizes }
    }
}

/// Occupants of the slots, see the module's description. `targets` is not empty and ascends.
fn occupants(salt: u64, count: usize, targets: &Rc<[u32]>) -> Rc<[u32]> {
    if count == targets.len() {
        return Rc::clone(targets);
    }
    let mut slots: Vec<(u64, u32)> = targets[..count].iter().map(|id| (weight(salt, *id), *id)).collect();
    for id in &targets[count..] {
        let challenger = (weight(salt, *id), *id);
        if let Some(weakest) = slots.iter_mut().min()
            && *weakest < challenger
        {
            *weakest = challenger;
        }
    }
    slots.into_iter().map(|(_, id)| id).collect()
}

pub(crate) fn weight(salt: u64, target: u32) -> u64 {
    mix(salt ^ mix(u64::from(target)))
}

/// A bijection of 64 bits in which every input bit affects every output bit: multiply and fold, twice. The odd
/// multipliers are the fractional parts of the golden ratio and of the square root of 3.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 32)).wrapping_mul(0xbb67_ae85_84ca_a73b);
    value ^ (value >> 29)
}

/// Jump consistent hash: deals keys to `buckets` buckets evenly; with one bucket more, only keys for the new bucket
/// change place. Bucket `b` keeps a key with probability `(b + 1) / (b + 2)` as buckets are added one by one.
fn jump(key: u64, buckets: usize) -> usize {
    let mut state = key;
    let mut bucket = 0_u64;
    let mut next = 0_u64;
    while next < buckets as u64 {
        bucket = next;
        state = mix(state);
        // The next jump lands at floor((bucket + 1) / r), r uniform in (0, 1], in fixed point with 32 bits.
        let uniform = (state >> 32) + 1;
        next = ((bucket + 1) << 32) / uniform;
    }
    usize::try_from(bucket).expect("invariant: a bucket is below a usize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashSet};
    use weir_proto::{Rank, TargetIndex};

    const TARGETS_PER_ENGINE: u32 = 4;

    fn pool_of(count: u32) -> PoolMap {
        let target =
            |id| PoolTarget::serving(id, Rank(id / TARGETS_PER_ENGINE), TargetIndex(id % TARGETS_PER_ENGINE));
        PoolMap::new(1, (0..count).map(target).collect())
    }

    fn object(class: &str, number: u64) -> ObjectId {
        let class: ObjectClass = class.parse().expect("a registered name");
        class.encode(ObjectId { hi: 0, lo: number }, 0)
    }

    fn layout(class: &str, number: u64, targets: u32) -> Layout {
        Layout::of(object(class, number), &pool_of(targets)).expect("a supported class")
    }

    fn share_is_fair(counts: &BTreeMap<u32, u32>, targets: u32, total: u32) {
        let fair = f64::from(total) / f64::from(targets);
        for target in 0..targets {
            let got = f64::from(*counts.get(&target).unwrap_or(&0));
            assert!((got / fair - 1.0).abs() < 0.15, "target {target} has {got} of a fair {fair}");
        }
    }

    #[test]
    fn objects_on_one_target_spread_evenly() {
        let mut counts = BTreeMap::new();
        for number in 0..24_000 {
            *counts.entry(layout("S1", number, 12).shards[0]).or_default() += 1;
        }
        share_is_fair(&counts, 12, 24_000);
    }

    #[test]
    fn dkeys_of_one_object_spread_evenly() {
        let layout = layout("SX", 7, 12);
        let mut counts = BTreeMap::new();
        for dkey in 0..24_000 {
            *counts.entry(layout.target_of(&Key::from_u64(dkey))).or_default() += 1;
        }
        share_is_fair(&counts, 12, 24_000);
    }

    #[test]
    fn classes_that_cant_be_placed_and_empty_maps_are_refused() {
        let error = Layout::of(object("EC_2P1G1", 1), &pool_of(12)).expect_err("erasure coding");
        assert!(matches!(error, LayoutError::Class { .. }));
        let error = Layout::of(object("RP_2G1", 1), &pool_of(4)).expect_err("one engine");
        assert!(error.to_string().contains("class RP_2G1 needs 2 fault domains, the pool has 1"), "{error}");
        let error = Layout::of(object("S1", 1), &pool_of(0)).expect_err("no targets");
        assert!(matches!(error, LayoutError::NoTargets(_)));
        assert!(Layout::of(ObjectId { hi: 0, lo: 1 }, &pool_of(4)).is_err(), "an id without a class");
    }

    #[test]
    fn placement_never_changes_between_versions() {
        assert_eq!(*layout("S2", 42, 10).shards, [6, 2]);
        let wide = layout("SX", 42, 10);
        let dealt: Vec<u32> = (0..8).map(|dkey| wide.target_of(&Key::from_u64(dkey))).collect();
        assert_eq!(dealt, [5, 0, 1, 2, 1, 4, 0, 6]);
    }

    #[test]
    fn around_targets_that_are_down_there_is_a_layout_within_a_few_tries() {
        for (targets, down) in [(2, 1), (4, 1), (12, 1), (12, 2), (64, 1), (64, 5)] {
            let mut map = pool_of(targets);
            for target in map.targets.iter_mut().take(down) {
                target.state = TargetState::Down;
            }
            for class in [ObjectClass::SX, ObjectClass::S1] {
                let class = class.around(&map);
                let tries = |first: u64| {
                    let served = |number: &u64| {
                        let object = class.encode(ObjectId { hi: 0, lo: first + number }, 0);
                        Layout::of(object, &map).expect("a supported class").is_served(&map)
                    };
                    (0..1000).find(served).expect("one of them") + 1
                };
                let worst = (0..200).map(|round| tries(round * 1000)).max().expect("some");
                assert!(worst <= 40, "{targets} targets, {down} down, class {class}: {worst} tries");
            }
        }
        let whole = pool_of(12);
        assert_eq!(ObjectClass::SX.around(&whole), ObjectClass::SX, "nothing is down");
    }

    proptest! {
        #[test]
        fn shards_are_distinct_targets_of_the_pool(number: u64, targets in 1_u32..100, class in 0_usize..8) {
            let class = PREDEFINED[class];
            let shards = layout(class.0, number, targets).shards;
            prop_assert_eq!(shards.len(), class.1.min(targets as usize));
            prop_assert_eq!(shards.iter().collect::<HashSet<_>>().len(), shards.len());
            prop_assert!(shards.iter().all(|shard| *shard < targets));
        }

        #[test]
        fn a_new_target_takes_over_at_most_one_slot(number: u64, targets in 1_u32..100, class in 0_usize..8) {
            let before = layout(PREDEFINED[class].0, number, targets).shards;
            let after = layout(PREDEFINED[class].0, number, targets + 1).shards;
            let moved: Vec<_> = before.iter().zip(&*after).filter(|(old, new)| old != new).collect();
            prop_assert!(moved.len() <= 1);
            prop_assert!(moved.iter().all(|(_, new)| **new == targets));
        }

        #[test]
        fn a_new_target_takes_over_only_its_own_dkeys(number: u64, targets in 1_u32..100, dkey: u64) {
            let dkey = Key::from_u64(dkey);
            let before = layout("SX", number, targets).target_of(&dkey);
            let after = layout("SX", number, targets + 1).target_of(&dkey);
            prop_assert!(after == before || after == targets);
        }
    }

    const PREDEFINED: [(&str, usize); 8] =
        [("S1", 1), ("S2", 2), ("S4", 4), ("S6", 6), ("S8", 8), ("S12", 12), ("S32", 32), ("SX", 100)];
}
