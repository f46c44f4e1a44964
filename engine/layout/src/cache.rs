//! Layouts that have been computed, for those who need one for each request.

use core::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use weir_proto::ObjectId;
use weir_proto::pool::PoolMap;

use crate::placement::{Layout, LayoutError, Placement};

/// Most memory of the layouts of one cache, in bytes. A layout has four for each shard: there is room for those of 64 objects
/// with groups of replicas on 16,384 targets, or of 25,000 objects on a few targets. Objects without replicas on all targets
/// of a pool share theirs.
const BYTES_MAX: usize = 4 << 20;

/// Bytes that a layout takes beside its shards: itself, its counts, and twice its place in a table.
const ENTRY_BYTES: usize = 160;

/// The layouts of the objects that were asked for last, by one version of one pool's map. Whoever has several pools has a cache
/// for each.
#[derive(Debug, Default)]
pub struct LayoutCache(RefCell<Known>);

/// Layouts in two generations: when the younger one has grown to its limit, it becomes the older one, which is forgotten.
#[derive(Debug, Default)]
struct Known {
    /// What the layouts were computed from, with the version of the map.
    placement: Option<(u32, Placement)>,
    young: HashMap<ObjectId, Rc<Layout>>,
    old: HashMap<ObjectId, Rc<Layout>>,
    /// Bytes of the younger generation.
    bytes: usize,
    /// Layouts that were computed.
    computed: u64,
}

impl LayoutCache {
    /// [`Layout::of`] the object in the map, computed if it isn't known by this version of the map.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn layout(&self, object: ObjectId, map: &PoolMap) -> Result<Rc<Layout>, LayoutError> {
        let known = &mut *self.0.borrow_mut();
        match &known.placement {
            // Somebody still has an older map: what is known is for those who have the newer one.
            Some((version, _)) if *version > map.version => return Layout::of(object, map).map(Rc::new),
            Some((version, _)) if *version == map.version => {}
            _ => known.begin(map),
        }
        if let Some(layout) = known.young.get(&object) {
            return Ok(Rc::clone(layout));
        }
        let layout = known.old.remove(&object).map_or_else(|| known.compute(object, map), Ok)?;
        known.keep(object, &layout);
        Ok(layout)
    }

    /// How many layouts have been computed for want of a known one.
    #[must_use]
    pub fn computed(&self) -> u64 {
        self.0.borrow().computed
    }
}

impl Known {
    /// Forgets the layouts of another version of the map.
    fn begin(&mut self, map: &PoolMap) {
        let placement = Some((map.version, Placement::default()));
        *self = Self { placement, computed: self.computed, ..Self::default() };
    }

    fn compute(&mut self, object: ObjectId, map: &PoolMap) -> Result<Rc<Layout>, LayoutError> {
        let (_, placement) = self.placement.as_ref().expect("invariant: a version of the map has begun");
        self.computed += 1;
        placement.layout(object, map).map(Rc::new)
    }

    fn keep(&mut self, object: ObjectId, layout: &Rc<Layout>) {
        let shared = self.placement.as_ref().is_some_and(|(_, placement)| placement.has_shards_of(layout));
        let bytes = ENTRY_BYTES + if shared { 0 } else { layout.bytes() };
        if self.bytes + bytes > BYTES_MAX / 2 {
            self.old = core::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.young.insert(object, Rc::clone(layout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectClass;
    use proptest::prelude::*;
    use weir_proto::pool::{PoolTarget, TargetState};
    use weir_proto::{Rank, TargetIndex};

    fn pool(engines: u32, targets: u32) -> PoolMap {
        let target = |id| PoolTarget::serving(id, Rank(id / targets), TargetIndex(id % targets));
        PoolMap::new(1, (0..engines * targets).map(target).collect())
    }

    fn object(class: &str, number: u64) -> ObjectId {
        let class: ObjectClass = class.parse().expect("a registered name");
        class.encode(ObjectId { hi: 0, lo: number }, 0)
    }

    const CLASSES: [&str; 8] = ["S1", "S4", "SX", "RP_2G1", "RP_3G2", "RP_2GX", "RP_6GX", "EC_2P1G1"];

    proptest! {
        #[test]
        fn what_is_known_is_what_would_be_computed(
            engines in 1_u32..7,
            targets in 1_u32..5,
            steps in proptest::collection::vec((0_usize..8, 0_u64..6, 0_usize..60, 0_usize..8), 1..80),
        ) {
            let (mut map, cache) = (pool(engines, targets), LayoutCache::default());
            let mut earlier = map.clone();
            for (class, number, target, state) in steps {
                let object = object(CLASSES[class], number);
                prop_assert_eq!(cache.layout(object, &map).map(|layout| (*layout).clone()), Layout::of(object, &map));
                prop_assert_eq!(cache.layout(object, &earlier).map(|layout| (*layout).clone()), Layout::of(object, &earlier));
                let states = [TargetState::Down, TargetState::DownOut, TargetState::Up, TargetState::UpIn, TargetState::New];
                if let Some(state) = states.get(state) {
                    earlier = map.clone();
                    let target = target % map.targets.len();
                    map.version += 1;
                    map.targets[target].enter(*state, map.version);
                }
            }
        }
    }

    #[test]
    fn a_layout_is_computed_once_for_each_version_of_the_map() {
        let (mut map, cache) = (pool(1024, 16), LayoutCache::default());
        let objects = || ["S1", "SX", "RP_2G8", "RP_2GX", "RP_3GX"].map(|class| object(class, 7));
        let ask = |map: &PoolMap| objects().map(|object| cache.layout(object, map).expect("placed"));
        let first = ask(&map);
        for _ in 0..1000 {
            assert!(ask(&map).iter().zip(&first).all(|(again, first)| Rc::ptr_eq(again, first)));
        }
        assert_eq!(cache.computed(), 5);
        map.version += 1;
        map.targets[3].enter(TargetState::DownOut, map.version);
        assert_ne!(ask(&map)[3], first[3], "another target has the place");
        ask(&map);
        assert_eq!(cache.computed(), 10);
    }

    #[test]
    fn memory_is_bounded_and_what_is_asked_for_often_stays() {
        let (map, cache) = (pool(128, 16), LayoutCache::default());
        // On most targets, but not on all.
        let wide = ObjectClass::from_id(ObjectClass::S1.id() + 1999).expect("any group count");
        let object = |lo| wide.encode(ObjectId { hi: 0, lo }, 0);
        let (often, shards) = (object(0), 2000 * size_of::<u32>());
        for number in 1..3000 {
            cache.layout(object(number), &map).expect("placed");
            cache.layout(often, &map).expect("placed");
            let known = cache.0.borrow();
            let entries = known.young.len() + known.old.len();
            assert!(entries * shards <= BYTES_MAX, "{entries} layouts");
        }
        assert_eq!(cache.computed(), 3000, "the one asked for often was computed once");
    }

    #[test]
    fn objects_on_all_targets_share_their_shards() {
        let (map, cache) = (pool(64, 16), LayoutCache::default());
        let layouts = [1, 2, 3].map(|number| cache.layout(object("SX", number), &map).expect("placed"));
        assert!(layouts.iter().all(|layout| Rc::ptr_eq(&layout.shards, &layouts[0].shards)));
        assert_eq!(cache.0.borrow().bytes, 3 * ENTRY_BYTES);
    }
}
