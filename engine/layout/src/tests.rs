//! Layouts of objects with replicas.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;
use weir_proto::pool::{PoolEngine, PoolMap, PoolTarget, TargetState};
use weir_proto::{ObjectId, Rank, TargetIndex};

use crate::{Layout, ObjectClass, Receivers};

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

/// Lets others fill the places of all targets of an engine that is down, in a new version of the map.
fn leave(map: &mut PoolMap, rank: u32) {
    map.version += 1;
    let version = map.version;
    for target in map.targets.iter_mut().filter(|target| target.rank == Rank(rank)) {
        assert!(target.leave(version));
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
            assert_eq!(Layout::next(object, &map), Ok(before.clone()), "nobody takes over yet");
            leave(&mut map, 2);
            assert_eq!(Layout::of(object, &map), Ok(before.clone()), "nobody has taken over yet");
            let next = Layout::next(object, &map).expect("placed");
            turn(&mut map, 2, TargetState::DownOut);
            let out = Layout::of(object, &map).expect("placed");
            assert_eq!(out.shards, next.shards);
            assert!(domains_are_distinct(&out, &map));
            let lost = |id: u32| map.target(id).is_some_and(|target| target.rank == Rank(2));
            for (old, new) in before.shards.iter().zip(&*out.shards) {
                assert_eq!(old != new, lost(*old), "exactly what is lost moves");
            }
            turn(&mut map, 2, TargetState::Up);
            assert_eq!(Layout::of(object, &map), Ok(out));
            assert_eq!(Layout::next(object, &map), Ok(before.clone()));
            turn(&mut map, 2, TargetState::UpIn);
            assert_eq!(Layout::of(object, &map), Ok(before));
        }
    }
}

#[test]
fn targets_that_join_a_pool_take_places_in_groups_and_change_no_width_and_nothing_without_replicas() {
    let before = pool(3, 2);
    let mut after = before.clone();
    for index in 0..2 {
        let id = 6 + index;
        after.targets.push(PoolTarget::joining(id, (Rank(3), TargetIndex(index)), 2));
        assert!(after.targets[id as usize].enter(TargetState::UpIn, 3));
    }
    let mut taken = 0;
    for number in 0..200 {
        for class in ["S1", "S4", "SX"] {
            assert_eq!(layout(class, number, &after).shards, layout(class, number, &before).shards);
        }
        let (old, new) = (layout("RP_2G8", number, &before), layout("RP_2G8", number, &after));
        assert_eq!(old.shards.len(), new.shards.len(), "it keeps its width");
        for (old, new) in old.shards.iter().zip(&*new.shards).filter(|(old, new)| old != new) {
            assert!(*new >= 6, "from {old} to {new}");
            taken += 1;
        }
    }
    assert!(taken > 150, "{taken}");
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
        prop_assert_eq!(Layout::next(object, &after).expect("placed").shards, grown);
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

    #[test]
    fn who_leaves_later_changes_nothing_of_what_is_under_way(
        number: u64, first in 0_u32..6, second in 0_u32..6, width in 0_usize..3,
    ) {
        prop_assume!(first != second);
        let whole = pool(6, 3);
        let class = fixed(["RP_2G1", "RP_3G2", "RP_2GX"][width], &whole);
        let object = class.encode(ObjectId { hi: 0, lo: number }, 0);
        let layouts = |map: &PoolMap| {
            [Layout::of(object, map), Layout::next(object, map)].map(|one| one.expect("placed"))
        };
        let rank = |map: &PoolMap, id: u32| map.target(id).expect("a target of the pool").rank.0;
        let mut map = whole;
        turn(&mut map, first, TargetState::Down);
        leave(&mut map, first);
        let [now, one] = layouts(&map);
        turn(&mut map, second, TargetState::Down);
        prop_assert_eq!(layouts(&map), [now.clone(), one.clone()], "it may come back");
        leave(&mut map, second);
        let [same, both] = layouts(&map);
        prop_assert_eq!(&same, &now);
        for ((old, first_alone), new) in now.shards.iter().zip(&*one.shards).zip(&*both.shards) {
            prop_assert_eq!(new != first_alone, rank(&map, *first_alone) == second);
            prop_assert_eq!(first_alone != old, rank(&map, *old) == first);
            prop_assert!(![first, second].contains(&rank(&map, *new)));
        }
        prop_assert!(domains_are_distinct(&both, &map));
        // They go out in the order in which they began to leave.
        turn(&mut map, first, TargetState::DownOut);
        prop_assert_eq!(layouts(&map).map(|layout| layout.shards), [one.shards, both.shards.clone()]);
        turn(&mut map, second, TargetState::DownOut);
        prop_assert_eq!(layouts(&map).map(|layout| layout.shards), [both.shards.clone(), both.shards]);
    }

    #[test]
    fn only_places_of_who_comes_back_or_is_drained_move_and_leaders_know_whom_to_wait_for(
        number: u64, back in 0_u32..6, drained in 0_u32..6, width in 0_usize..3,
    ) {
        prop_assume!(back != drained);
        let whole = pool(6, 3);
        let class = fixed(["RP_2G1", "RP_3G2", "RP_2GX"][width], &whole);
        let object = class.encode(ObjectId { hi: 0, lo: number }, 0);
        let first = Layout::of(object, &whole).expect("placed");
        let mut map = whole;
        for state in [TargetState::Down, TargetState::DownOut, TargetState::Up] {
            turn(&mut map, back, state);
        }
        turn(&mut map, drained, TargetState::Drain);
        let rank = |id: u32| map.target(id).expect("a target of the pool").rank.0;
        let [now, next] = [Layout::of(object, &map), Layout::next(object, &map)].map(|one| one.expect("placed"));
        for ((base, old), new) in first.shards.iter().zip(&*now.shards).zip(&*next.shards) {
            prop_assert!(old == new || [back, drained].contains(&rank(*base)));
            prop_assert!(rank(*old) != back && rank(*new) != drained);
            prop_assert!(rank(*base) != back || base == new, "it gets back what it had");
        }
        prop_assert!(domains_are_distinct(&next, &map));
        let receivers = Receivers::of(object, &map).expect("placed");
        for group in 0..now.group_count() {
            let gains = receivers.gaining(group, &map).count();
            let leaves = now.group(group).iter().filter(|id| receivers.leaves(group, **id)).count();
            prop_assert_eq!((gains > 0, leaves > 0), (receivers.changes(group), receivers.changes(group)));
        }
        // All at once everything is where it was to be.
        let mut after = map.clone();
        turn(&mut after, drained, TargetState::DownOut);
        turn(&mut after, back, TargetState::UpIn);
        prop_assert_eq!(Layout::of(object, &after).expect("placed").shards, next.shards);
        // The drain is called off: who has served for longest leads on.
        turn(&mut map, drained, TargetState::UpIn);
        let off = Layout::of(object, &map).expect("placed");
        prop_assert_eq!(off.shards, now.shards);
    }

    #[test]
    fn nobody_takes_the_lead_over_from_who_goes_on_serving(
        number: u64, width in 0_usize..3, steps in proptest::collection::vec((0_u32..5, 0_usize..3), 1..20),
    ) {
        let mut map = pool(5, 2);
        let class = fixed(["RP_2G1", "RP_3G2", "RP_2GX"][width], &map);
        let object = class.encode(ObjectId { hi: 0, lo: number }, 0);
        for (rank, step) in steps {
            let before = (map.clone(), Layout::of(object, &map).expect("placed"));
            let state = map.targets.iter().find(|target| target.rank == Rank(rank)).map(|target| target.state);
            match (state.expect("it has targets"), step) {
                (TargetState::Down, 0) | (TargetState::UpIn, 1) => turn(&mut map, rank, TargetState::Up),
                (TargetState::Down, _) => turn(&mut map, rank, TargetState::DownOut),
                (TargetState::Up, 0 | 1) | (TargetState::Drain, 0) => turn(&mut map, rank, TargetState::UpIn),
                (TargetState::UpIn, 0) => turn(&mut map, rank, TargetState::Drain),
                (TargetState::DownOut, _) => {}
                (_, _) => turn(&mut map, rank, TargetState::Down),
            }
            let after = Layout::of(object, &map).expect("placed");
            for group in 0..after.group_count() {
                let Some(leader) = before.1.leader(group, &before.0) else { continue };
                if after.group(group).contains(&leader) && map.serves(leader) {
                    prop_assert_eq!(after.leader(group, &map), Some(leader));
                }
            }
        }
    }
}
