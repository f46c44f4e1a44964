//! Layouts of objects with replicas.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;
use weir_proto::pool::{PoolEngine, PoolMap, PoolTarget, TargetState};
use weir_proto::{ObjectId, Rank, TargetIndex};

use crate::{Layout, ObjectClass};

/// A pool of so many engines with so many targets each.
fn pool(engines: u32, targets: u32) -> PoolMap {
    let target = |id| PoolTarget::serving(id, Rank(id / targets), TargetIndex(id % targets));
    PoolMap::new(1, (0..engines * targets).map(target).collect())
}

fn object(class: &str, number: u64) -> ObjectId {
    let class: ObjectClass = class.parse().expect("a registered name");
    class.encode(ObjectId { hi: 0, lo: number }, 0)
}

fn layout(class: &str, number: u64, map: &PoolMap) -> Layout {
    Layout::of(object(class, number), map).expect("there are domains enough")
}

/// The class of new objects in a map, by name.
fn fixed(class: &str, map: &PoolMap) -> ObjectClass {
    class.parse::<ObjectClass>().expect("a registered name").around(map)
}

/// Puts all targets of an engine into a state in a new version of the map.
fn turn(map: &mut PoolMap, rank: u32, state: TargetState) {
    map.version += 1;
    let version = map.version;
    for target in map.targets.iter_mut().filter(|target| target.rank == Rank(rank)) {
        target.enter(state, version);
    }
}

fn domains_are_distinct(layout: &Layout, map: &PoolMap) -> bool {
    let rank = |id: &u32| map.target(*id).expect("a target of the pool").rank;
    let domain = |id: &u32| match map.path_of(rank(id)) {
        [] => vec![rank(id).to_string()],
        path => path.to_vec(),
    };
    (0..layout.group_count()).all(|index| {
        let group = layout.group(index);
        group.iter().map(domain).collect::<HashSet<_>>().len() == group.len()
    })
}

#[test]
fn placement_of_replicas_never_changes_between_versions() {
    let map = pool(4, 4);
    let found = ["RP_2G1", "RP_3G2", "RP_2GX"].map(|class| layout(class, 42, &map).shards.to_vec());
    let expected =
        [vec![10, 12], vec![0, 7, 13, 3, 6, 8], vec![3, 10, 7, 9, 5, 14, 6, 11, 0, 8, 1, 12, 4, 13, 2, 15]];
    assert_eq!(found, expected);
}

#[test]
fn a_wide_object_has_every_target_once() {
    for (class, engines, targets, groups) in [
        ("RP_2GX", 2, 4, 4),
        ("RP_2GX", 3, 4, 6),
        ("RP_3GX", 3, 16, 16),
        ("RP_3GX", 7, 4, 9),
        ("RP_6GX", 6, 1, 1),
    ] {
        let map = pool(engines, targets);
        for number in 0..50 {
            let layout = layout(class, number, &map);
            assert_eq!(layout.group_count(), groups, "{class} on {engines} × {targets}");
            assert_eq!(layout.shards.iter().collect::<HashSet<_>>().len(), layout.shards.len());
            assert!(domains_are_distinct(&layout, &map), "{layout:?}");
        }
    }
}

#[test]
fn engines_of_one_node_are_never_in_one_group() {
    let mut map = pool(8, 4);
    let place = |rank| PoolEngine { rank: Rank(rank), path: vec!["z".into(), format!("node{}", rank % 4)] };
    map.engines = (0..8).map(place).collect();
    for number in 0..200 {
        let wide = layout("RP_2GX", number, &map);
        assert_eq!(wide.group_count(), 16);
        assert!(domains_are_distinct(&wide, &map), "{wide:?}");
        assert_eq!(wide.shards.iter().collect::<HashSet<_>>().len(), 32);
        assert!(domains_are_distinct(&layout("RP_4G2", number, &map), &map));
    }
    assert!(Layout::of(object("RP_5G1", 1), &map).is_err(), "there are four nodes");
}

#[test]
fn leaders_spread_and_pass_over_what_does_not_serve() {
    let mut map = pool(3, 4);
    let mut leads = BTreeMap::new();
    for number in 0..3000 {
        *leads.entry(layout("RP_2G1", number, &map).leader(0, &map)).or_insert(0) += 1;
    }
    assert_eq!(leads.len(), 12);
    assert!(leads.values().all(|count| (170..330).contains(count)), "{leads:?}");
    turn(&mut map, 1, TargetState::Down);
    for number in 0..200 {
        let layout = layout("RP_2GX", number, &map);
        for index in 0..layout.group_count() {
            let leader = layout.leader(index, &map).expect("one engine of three is down");
            assert!(layout.group(index).contains(&leader) && map.serves(leader));
            let serving: Vec<u32> = layout.serving(index, &map).collect();
            assert_eq!(serving.first(), Some(&leader));
            let lost = layout.group(index).iter().filter(|id| !map.serves(**id)).count();
            assert_eq!(serving.len() + lost, 2);
        }
        assert!(layout.is_served(&map));
    }
    turn(&mut map, 1, TargetState::Up);
    let layout = layout("RP_2GX", 1, &map);
    assert!((0..layout.group_count()).all(|index| layout.writing(index, &map).count() == 2));
}

#[test]
fn what_goes_out_is_replaced_and_gets_its_places_back() {
    let whole = pool(5, 4);
    for number in 0..200 {
        for class in ["RP_2G1", "RP_3G2", "RP_2GX"] {
            let object = fixed(class, &whole).encode(ObjectId { hi: 0, lo: number }, 0);
            let before = Layout::of(object, &whole).expect("placed");
            let mut map = whole.clone();
            turn(&mut map, 2, TargetState::Down);
            assert_eq!(Layout::of(object, &map), Ok(before.clone()), "nobody has taken over yet");
            let next = Layout::after(object, &map).expect("placed");
            turn(&mut map, 2, TargetState::DownOut);
            let out = Layout::of(object, &map).expect("placed");
            assert_eq!(out, next);
            assert!(domains_are_distinct(&out, &map));
            let lost = |id: u32| map.target(id).is_some_and(|target| target.rank == Rank(2));
            for (old, new) in before.shards.iter().zip(&*out.shards) {
                assert_eq!(old != new, lost(*old), "exactly what is lost moves");
            }
            turn(&mut map, 2, TargetState::Up);
            assert_eq!(Layout::of(object, &map), Ok(out));
            assert_eq!(Layout::after(object, &map), Ok(before.clone()));
            turn(&mut map, 2, TargetState::UpIn);
            assert_eq!(Layout::of(object, &map), Ok(before));
        }
    }
}

proptest! {
    #[test]
    fn groups_have_distinct_domains_and_targets_while_there_are_enough(
        number: u64, engines in 1_u32..12, targets in 1_u32..9, replicas in 2_usize..6, width in 0_usize..4,
    ) {
        let map = pool(engines, targets);
        let class = format!("RP_{replicas}G{}", ["1", "2", "8", "X"][width]);
        let Ok(layout) = Layout::of(object(&class, number), &map) else {
            prop_assert!((engines as usize) < replicas);
            return Ok(());
        };
        prop_assert!(domains_are_distinct(&layout, &map));
        prop_assert_eq!(layout.shards.iter().collect::<HashSet<_>>().len(), layout.shards.len());
        prop_assert_eq!(layout.shards.len(), layout.group_count() * replicas);
    }

    #[test]
    fn a_new_target_takes_over_at_most_one_place(
        number: u64, engines in 3_u32..12, targets in 1_u32..9, width in 0_usize..4,
    ) {
        let before = pool(engines, targets);
        let class = fixed(["RP_2G1", "RP_3G1", "RP_2G8", "RP_3GX"][width], &before);
        let object = class.encode(ObjectId { hi: 0, lo: number }, 0);
        let mut after = before.clone();
        let new = engines * targets;
        after.targets.push(PoolTarget::serving(new, Rank(engines), TargetIndex(0)));
        let old = Layout::of(object, &before).expect("placed").shards;
        let grown = Layout::of(object, &after).expect("placed").shards;
        let moved: Vec<_> = old.iter().zip(&*grown).filter(|(old, new)| old != new).collect();
        prop_assert!(moved.len() <= 1);
        prop_assert!(moved.iter().all(|(_, to)| **to == new));
        after.targets[new as usize].state = TargetState::New;
        prop_assert_eq!(Layout::of(object, &after).expect("placed").shards, old);
        prop_assert_eq!(Layout::after(object, &after).expect("placed").shards, grown);
    }

    #[test]
    fn losses_move_only_what_is_lost_in_any_order(
        number: u64, first in 0_u32..6, second in 0_u32..6, width in 0_usize..3,
    ) {
        let whole = pool(6, 3);
        let class = fixed(["RP_2G1", "RP_3G2", "RP_2GX"][width], &whole);
        let object = class.encode(ObjectId { hi: 0, lo: number }, 0);
        let mut map = whole;
        let mut before = Layout::of(object, &map).expect("placed");
        for rank in [first, second] {
            turn(&mut map, rank, TargetState::DownOut);
            let after = Layout::of(object, &map).expect("placed");
            for (old, new) in before.shards.iter().zip(&*after.shards) {
                let is_lost = map.target(*old).is_some_and(|target| target.rank == Rank(rank));
                prop_assert_eq!(old != new, is_lost);
            }
            prop_assert!(domains_are_distinct(&after, &map));
            prop_assert!((0..after.group_count()).all(|index| after.serving(index, &map).count() == after.replicas));
            before = after;
        }
    }
}
