//! How evenly wide objects load the targets of a large pool, and what moves when it grows and when an engine is lost. Counted on
//! 64 engines with 16 targets each, or on as many engines as [`ENGINES_VARIABLE`] says.

use std::collections::HashSet;

use weir_proto::pool::{PoolEngine, PoolMap, PoolTarget, TargetState};
use weir_proto::{Key, ObjectId, Rank, TargetIndex};

use crate::{Layout, ObjectClass};

/// Environment variable with the number of engines.
const ENGINES_VARIABLE: &str = "WEIR_LAYOUT_ENGINES";

const TARGETS: u32 = 16;

/// Engines of one node, which is a fault domain.
const ENGINES_PER_NODE: u32 = 2;

/// Most that the load of a target may differ from the even one.
const LOAD_TOLERANCE: f64 = 0.03;

/// Most that what moves may differ from the least that has to move.
const MOVE_TOLERANCE: f64 = 0.05;

fn engines() -> u32 {
    let given = std::env::var(ENGINES_VARIABLE).ok();
    given.map_or(64, |given| given.parse().expect("a number of engines"))
}

/// Objects that are laid out: so many that what chance adds to the load of a target stays below the tolerance.
fn objects() -> u64 {
    u64::from(51_200 / engines()).max(256)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn float(count: usize) -> f64 {
    count as f64
}

fn target(id: u32) -> PoolTarget {
    PoolTarget::serving(id, Rank(id / TARGETS), TargetIndex(id % TARGETS))
}

/// A pool of so many engines.
fn pool(engines: u32) -> PoolMap {
    let mut map = PoolMap::new(1, (0..engines * TARGETS).map(target).collect());
    let path = |rank: u32| vec![format!("rack{}", rank / 16), format!("node{}", rank / ENGINES_PER_NODE)];
    map.engines = (0..engines).map(|rank| PoolEngine { rank: Rank(rank), path: path(rank) }).collect();
    map
}

/// The same with one more engine, on a node of its own.
fn grown(engines: u32) -> PoolMap {
    PoolMap { version: 2, ..pool(engines + 1) }
}

/// The same without an engine, whose places others have.
fn lost(engines: u32, rank: Rank) -> PoolMap {
    let mut map = PoolMap { version: 2, ..pool(engines) };
    for target in map.targets.iter_mut().filter(|target| target.rank == rank) {
        target.enter(TargetState::DownOut, 2);
    }
    map
}

/// The same with an engine that is down, whose places others fill.
fn leaving(engines: u32, rank: Rank) -> PoolMap {
    let mut map = PoolMap { version: 2, ..pool(engines) };
    for target in map.targets.iter_mut().filter(|target| target.rank == rank) {
        assert!(target.enter(TargetState::Down, 2) && target.leave(2));
    }
    map
}

/// Objects that were created in the pool before anything changed.
fn wide(class: &str, map: &PoolMap) -> impl Iterator<Item = ObjectId> + use<> {
    let class = class.parse::<ObjectClass>().expect("a registered name").around(map);
    (0..objects()).map(move |lo| class.encode(ObjectId { hi: 0, lo }, 0))
}

fn layouts(class: &str, created: &PoolMap, map: &PoolMap) -> Vec<Layout> {
    wide(class, created).map(|object| Layout::of(object, map).expect("there are domains enough")).collect()
}

/// Asserts that each target in service has an even share of the groups of all objects. Dkeys fall on groups evenly.
fn assert_even(what: &str, layouts: &[Layout], map: &PoolMap) {
    let mut loads = vec![0_u32; map.targets.len()];
    for id in layouts.iter().flat_map(|layout| &*layout.shards) {
        loads[*id as usize] += 1;
    }
    let serving: Vec<u32> =
        map.targets.iter().filter(|target| target.state.serves()).map(|target| target.id).collect();
    let all: u32 = loads.iter().sum();
    let even = f64::from(all) / float(serving.len());
    for id in &serving {
        let load = f64::from(loads[*id as usize]);
        assert!(
            (load / even - 1.0).abs() <= LOAD_TOLERANCE,
            "{what}: target {id} has {load} places of an even {even}"
        );
    }
    let on_serving: u32 = serving.iter().map(|id| loads[*id as usize]).sum();
    assert_eq!(on_serving, all, "{what}: something is on a target that is out");
}

fn assert_domains(what: &str, layouts: &[Layout], map: &PoolMap) {
    let domain = |id: &u32| map.target(*id).expect("a target of the pool").rank.0 / ENGINES_PER_NODE;
    for layout in layouts {
        for index in 0..layout.group_count() {
            let group = layout.group(index);
            let domains: HashSet<u32> = group.iter().map(domain).collect();
            assert_eq!(domains.len(), layout.replicas, "{what}: replicas of {group:?} share a domain");
        }
    }
}

/// The places that have another target, as it was and as it is.
fn moves(before: &[Layout], after: &[Layout]) -> Vec<(u32, u32)> {
    let shards =
        |layouts: &[Layout]| layouts.iter().flat_map(|layout| layout.shards.to_vec()).collect::<Vec<u32>>();
    let (before, after) = (shards(before), shards(after));
    assert_eq!(before.len(), after.len(), "objects keep their width");
    before.into_iter().zip(after).filter(|(old, new)| old != new).collect()
}

fn assert_least(what: &str, moved: usize, least: f64) {
    let ratio = float(moved) / least;
    assert!((ratio - 1.0).abs() <= MOVE_TOLERANCE, "{what}: {moved} move, at least {least} have to");
}

fn check(class: &str) {
    let map = pool(engines());
    let before = layouts(class, &map, &map);
    assert_even(class, &before, &map);
    assert_domains(class, &before, &map);

    let what = format!("{class}, grown");
    let larger = grown(engines());
    let after = layouts(class, &map, &larger);
    assert_even(&what, &after, &larger);
    assert_domains(&what, &after, &larger);
    let moved = moves(&before, &after);
    let first_new = map.targets.len();
    assert!(moved.iter().all(|(_, to)| *to as usize >= first_new), "{what}: something moves elsewhere");
    let places: usize = before.iter().map(|layout| layout.shards.len()).sum();
    let new = float(larger.targets.len() - first_new);
    assert_least(&what, moved.len(), float(places) * new / float(larger.targets.len()));

    let what = format!("{class}, an engine lost");
    let gone = Rank(engines() / 3);
    let smaller = lost(engines(), gone);
    let after = layouts(class, &map, &smaller);
    assert_even(&what, &after, &smaller);
    assert_domains(&what, &after, &smaller);
    let is_gone = |id: &u32| *id / TARGETS == gone.0;
    let on_gone = before.iter().flat_map(|layout| &*layout.shards).filter(|id| is_gone(id)).count();
    let moved = moves(&before, &after);
    assert!(moved.iter().all(|(from, _)| is_gone(from)), "{what}: something moves from elsewhere");
    assert_eq!(moved.len(), on_gone, "{what}: all that is lost moves, and nothing else");

    let leaving = leaving(engines(), gone);
    for (object, after) in wide(class, &map).zip(&after) {
        let (now, next) = (Layout::of(object, &leaving), Layout::next(object, &leaving));
        assert_eq!(now, Layout::of(object, &map), "{what}: nothing has moved yet");
        assert_eq!(next.map(|next| next.shards), Ok(after.shards.clone()), "{what}: heirs are others");
    }
}

#[test]
fn pairs_load_all_targets_evenly_and_move_no_more_than_they_must() {
    check("RP_2GX");
}

#[test]
fn triples_load_all_targets_evenly_and_move_no_more_than_they_must() {
    check("RP_3GX");
}

#[test]
fn dkeys_of_an_object_on_all_targets_spread_evenly_and_move_only_to_what_is_new() {
    let (map, larger) = (pool(engines()), grown(engines()));
    let object = ObjectClass::SX.encode(ObjectId { hi: 0, lo: 7 }, 0);
    let [before, after] = [&map, &larger].map(|map| Layout::of(object, map).expect("placed"));
    let dkeys = 400 * engines() * TARGETS;
    let (mut counts, mut moved) = (vec![0_u32; map.targets.len()], 0);
    for dkey in (0..u64::from(dkeys)).map(Key::from_u64) {
        let (old, new) = (before.target_of(&dkey), after.target_of(&dkey));
        counts[old as usize] += 1;
        moved += usize::from(old != new);
        assert!(old == new || new as usize >= map.targets.len(), "it moves elsewhere");
    }
    let (targets, all) = (float(map.targets.len()), float(larger.targets.len()));
    assert_least("SX, grown", moved, f64::from(dkeys) * (all - targets) / all);
    // Chance alone has a chi-square of as many as there are targets, give or take their root.
    let even = f64::from(dkeys) / targets;
    let squares: f64 = counts.iter().map(|count| (f64::from(*count) - even).powi(2) / even).sum();
    assert!(
        (squares - targets).abs() < 6.0 * (2.0 * targets).sqrt(),
        "chi-square {squares} of {targets} targets"
    );
}
