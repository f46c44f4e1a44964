use super::*;
use crate::format::key::{Path, Tail};
use crate::format::value::{Event, Kind, Payload, Version};
use crate::index::existence::existence;
use crate::index::extents::{ALL_RECORDS, STEP_LOOKS, Stored, is_hole, paint};
use proptest::prelude::*;
use weir_proto::{Key, ObjectId};

fn place() -> AkeyPaths {
    let object = Path::object(1, 1, ObjectId { hi: 0, lo: 1 });
    let dkey = object.dkey(&Key::new(b"d").expect("a key"));
    let akey = dkey.akey(&Key::new(b"a").expect("a key"));
    [object, dkey, akey]
}

fn value(hole: bool) -> Vec<u8> {
    let payload = if hole { Payload::Hole } else { Version::into_payload(vec![1, 1, 7]).expect("sound") };
    Version { record_size: u32::from(!hole), payload }.encode()
}

/// What happens at an epoch.
#[derive(Clone, Debug)]
enum Step {
    Single(bool),
    Extents(Vec<(u64, u64)>, bool),
    Punch(usize),
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let count = prop_oneof![3 => 1u64..6, 1 => 1u64..40];
    let extents = proptest::collection::vec((0u64..60, count), 1..4);
    let step = prop_oneof![
        2 => any::<bool>().prop_map(Step::Single),
        8 => (extents, prop_oneof![3 => Just(false), 1 => Just(true)]).prop_map(|(e, h)| Step::Extents(e, h)),
        1 => (0usize..3).prop_map(Step::Punch),
        2 => Just(Step::Snapshot),
    ];
    proptest::collection::vec(step, 0..80)
}

/// The index after a history, each step of which has an epoch of its own, and its snapshots.
fn history(steps: &[Step]) -> (Tree, BTreeSet<u64>) {
    let (mut tree, mut snapshots, place) = (Tree::default(), BTreeSet::new(), place());
    let put = |tree: &mut Tree, key: &[u8], value: &[u8]| drop(tree.put(key, value).expect("in memory"));
    for (epoch, step) in (10u64..).step_by(10).zip(steps) {
        match step {
            Step::Snapshot => drop(snapshots.insert(epoch)),
            Step::Punch(level) => put(&mut tree, &place[*level].event(epoch), &Event::Punch.encode()),
            Step::Single(_) | Step::Extents(..) => {
                let mut above = Existence::ALWAYS;
                let akey = Event::Akey { kind: Kind::Array, record_size: 1, classes: u32::MAX };
                for (path, event) in place.iter().zip([Event::Object { newest: epoch }, Event::Dkey, akey]) {
                    if !existence(&tree, path, above, epoch).expect("sound").exists {
                        put(&mut tree, &path.event(epoch), &event.encode());
                    }
                    above = existence(&tree, path, above, epoch).expect("sound");
                }
            }
        }
        match step {
            Step::Single(hole) => put(&mut tree, &place[2].single(epoch), &value(*hole)),
            Step::Extents(extents, hole) => {
                let mut taken: Vec<Extent> = Vec::new();
                for (index, count) in extents {
                    let extent = Extent { index: *index, count: *count };
                    if taken.iter().all(|other| other.end() <= *index || extent.end() <= other.index) {
                        taken.push(extent);
                        put(&mut tree, &place[2].extent(extent, epoch), &value(*hole));
                    }
                }
            }
            _ => {}
        }
    }
    (tree, snapshots)
}

/// All versions newer than an epoch, with whether each is a hole.
fn versions(tree: &Tree, floor: u64) -> Vec<(Tail, bool)> {
    let akey = place()[2].clone();
    let mut found = Vec::new();
    tree.scan::<()>(akey.as_bytes(), |key, value| {
        let rest = key.strip_prefix(akey.as_bytes()).expect("nothing else is behind it");
        let tail = key::akey_tail(rest).expect("sound");
        if matches!(tail, Tail::Single(epoch) | Tail::Extent(_, epoch) if epoch > floor) {
            found.push((tail, is_hole(value)));
        }
        ControlFlow::Continue(())
    })
    .expect("in memory");
    found
}

fn key_of(tail: &Tail) -> Vec<u8> {
    match tail {
        Tail::Single(epoch) => place()[2].single(*epoch).to_vec(),
        Tail::Extent(extent, epoch) => place()[2].extent(*extent, *epoch).to_vec(),
        Tail::Event(_) => unreachable!("only versions are asked for"),
    }
}

/// What the definition says: versions up to the horizon that are seen at none of all its pins.
fn unseen(tree: &Tree, pins: Pins<'_>) -> BTreeSet<Vec<u8>> {
    let old: Vec<(Tail, bool)> = versions(tree, pins.floor)
        .into_iter()
        .filter(|(tail, _)| matches!(tail, Tail::Single(at) | Tail::Extent(_, at) if *at <= pins.horizon))
        .collect();
    let mut unseen: BTreeSet<Vec<u8>> = old.iter().map(|(tail, _)| key_of(tail)).collect();
    let all = pins.snapshots.range(pins.floor..=pins.horizon).copied().chain([pins.horizon]);
    for pin in all {
        let place = place();
        let existence =
            place.iter().try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, pin));
        let existence = existence.expect("sound");
        if !existence.exists {
            continue;
        }
        let single = old.iter().find(|(tail, _)| matches!(tail, Tail::Single(at) if *at <= pin));
        if let Some((Tail::Single(at), _)) =
            single.filter(|(tail, _)| matches!(tail, Tail::Single(at) if existence.shows(*at, pin)))
        {
            unseen.remove(&key_of(&Tail::Single(*at)));
        }
        let shown: Vec<Stored> = old
            .iter()
            .filter_map(|(tail, _)| match tail {
                Tail::Extent(extent, epoch) if existence.shows(*epoch, pin) => {
                    Some(Stored { extent: *extent, epoch: *epoch, value: Vec::new() })
                }
                _ => None,
            })
            .collect();
        for part in paint(&shown, ALL_RECORDS) {
            let Stored { extent, epoch, .. } = shown[part.stored];
            unseen.remove(&key_of(&Tail::Extent(extent, epoch)));
        }
    }
    unseen
}

/// Events of a path up to an epoch, newest first.
fn events(tree: &Tree, path: &Path, up_to: u64) -> Vec<(u64, Event)> {
    let (prefix, mut found) = (path.events(), Vec::new());
    tree.scan::<()>(&path.event(up_to), |key, value| {
        let Some(rest) = key.strip_prefix(prefix.as_slice()) else { return ControlFlow::Break(()) };
        found.push((key::epoch_from(rest).expect("sound").0, Event::decode(value).expect("sound")));
        ControlFlow::Continue(())
    })
    .expect("in memory");
    found
}

/// What the definition says: creations that count at no pin, and punches that end nothing that stays.
fn ended(tree: &Tree, level: usize, snapshots: &BTreeSet<u64>, horizon: u64) -> BTreeSet<Vec<u8>> {
    let (place, mut needed) = (place(), BTreeSet::new());
    for pin in snapshots.range(..=horizon).copied().chain([horizon]) {
        let above = place[..level]
            .iter()
            .try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, pin));
        let above = above.expect("sound");
        for (epoch, event) in events(tree, &place[level], pin) {
            if event == Event::Punch || !above.exists || epoch < above.low {
                break;
            }
            needed.insert(epoch);
        }
    }
    let ends = |epoch: u64| needed.first().is_some_and(|oldest| *oldest < epoch);
    let old = events(tree, &place[level], horizon).into_iter();
    let dead = old.filter(|(epoch, event)| match event {
        Event::Punch => !ends(*epoch),
        _ => !needed.contains(epoch),
    });
    dead.map(|(epoch, _)| place[level].event(epoch).to_vec()).collect()
}

/// What all readers at pins see: the epochs of records that aren't holes, and of the single value.
fn seen(tree: &Tree, pins: Pins<'_>) -> Vec<Vec<(u64, u64)>> {
    let all = versions(tree, 0);
    let pins = pins.snapshots.range(..=pins.horizon).copied().chain([pins.horizon, u64::MAX]);
    pins.map(|pin| {
        let place = place();
        let existence =
            place.iter().try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, pin));
        let existence = existence.expect("sound");
        let mut found = Vec::new();
        let shown = |at: u64| existence.exists && existence.shows(at, pin);
        let single = all.iter().find(|(tail, _)| matches!(tail, Tail::Single(at) if *at <= pin));
        if let Some((Tail::Single(at), false)) = single
            && shown(*at)
        {
            found.push((u64::MAX, *at));
        }
        let stored: Vec<Stored> = all
            .iter()
            .filter_map(|(tail, hole)| match tail {
                Tail::Extent(extent, epoch) if shown(*epoch) => {
                    Some(Stored { extent: *extent, epoch: *epoch, value: value(*hole) })
                }
                _ => None,
            })
            .collect();
        for part in paint(&stored, ALL_RECORDS) {
            if !is_hole(&stored[part.stored].value) {
                let epoch = stored[part.stored].epoch;
                found.extend((part.extent.index..part.extent.end()).map(|record| (record, epoch)));
            }
        }
        found
    })
    .collect()
}

/// Holes up to the horizon that nothing older lies under.
fn idle(tree: &Tree, horizon: u64) -> Vec<Tail> {
    let all = versions(tree, 0);
    let hides = |hole: &Tail, other: &(Tail, bool)| match (hole, other) {
        (Tail::Single(at), (Tail::Single(older), _)) => older < at,
        (Tail::Extent(hole, at), (Tail::Extent(other, older), _)) => {
            older < at && other.index < hole.end() && hole.index < other.end()
        }
        _ => false,
    };
    let old = |tail: &Tail| matches!(tail, Tail::Single(at) | Tail::Extent(_, at) if *at <= horizon);
    let holes = all.iter().filter(|(tail, hole)| *hole && old(tail)).map(|(tail, _)| tail.clone());
    holes.filter(|hole| !all.iter().any(|other| hides(hole, other))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]
    #[test]
    fn a_pass_in_steps_finds_what_no_pin_shows(
        steps in steps(), horizon in 0u64..900, since in prop_oneof![1 => Just(0u64), 1 => 0u64..900],
        looks in 1usize..40,
    ) {
        let (tree, snapshots) = history(&steps);
        let floor = snapshots.range(..=since.min(horizon)).next_back().copied().unwrap_or(0);
        let pins = Pins { snapshots: &snapshots, floor, horizon };
        let mut sweep = Sweep::new(place(), pins);
        while !sweep.step(&tree, looks).expect("sound") {}
        let dead: BTreeSet<Vec<u8>> = sweep.dead.iter().cloned().collect();
        prop_assert_eq!(dead.len(), sweep.dead.len(), "nothing dies twice");
        prop_assert_eq!(dead, unseen(&tree, pins));
        let newer = versions(&tree, horizon).iter().map(|(tail, _)| match tail {
            Tail::Single(at) | Tail::Extent(_, at) | Tail::Event(at) => *at,
        }).min();
        prop_assert_eq!(sweep.newer, newer);
    }

    #[test]
    fn events_that_no_pin_needs_are_found_in_steps(
        steps in steps(), horizon in 0u64..900, looks in 1usize..6, level in 0usize..3, removes in any::<bool>(),
    ) {
        let (mut tree, snapshots) = history(&steps);
        let expected = ended(&tree, level, &snapshots, horizon);
        let place = place();
        let pins = Pins { snapshots: &snapshots, floor: horizon / 2, horizon };
        let mut pass = Events::new(&place[..level], place[level].clone(), pins);
        let mut dead = BTreeSet::new();
        loop {
            let has_ended = pass.step(&tree, looks).expect("sound");
            for key in pass.dead().drain(..) {
                if removes {
                    tree.remove(&key).expect("in memory");
                }
                prop_assert!(dead.insert(key), "nothing dies twice");
            }
            if has_ended {
                break;
            }
        }
        prop_assert_eq!(dead, expected);
        let newer = events(&tree, &place[level], u64::MAX).iter().map(|(epoch, _)| *epoch).filter(|at| *at > horizon).min();
        prop_assert_eq!(pass.newer, newer);
    }

    #[test]
    fn removing_between_steps_changes_nothing_that_a_pin_shows(
        steps in steps(), horizon in 0u64..900, looks in 1usize..40,
    ) {
        let (mut tree, snapshots) = history(&steps);
        let pins = Pins { snapshots: &snapshots, floor: 0, horizon };
        let before = seen(&tree, pins);
        let remove = |tree: &mut Tree, dead: Vec<Vec<u8>>| {
            dead.iter().all(|key| tree.remove(key).expect("in memory").is_some())
        };
        let mut sweep = Sweep::new(place(), pins);
        loop {
            let has_ended = sweep.step(&tree, looks).expect("sound");
            prop_assert!(remove(&mut tree, core::mem::take(&mut sweep.dead)));
            if has_ended {
                break;
            }
        }
        prop_assert_eq!(unseen(&tree, pins).len(), 0);
        let mut holes = IdleHoles::new(place()[2].clone(), horizon);
        loop {
            let has_ended = holes.step(&tree, looks).expect("sound");
            prop_assert!(remove(&mut tree, core::mem::take(holes.dead())));
            if has_ended {
                break;
            }
        }
        prop_assert_eq!(seen(&tree, pins), before);
        prop_assert_eq!(idle(&tree, horizon), Vec::new());
    }
}

/// What a surface shows from a record on, found in steps: the epoch of each record, and how many looks that took.
fn surface(
    tree: &Tree,
    epochs: core::ops::RangeInclusive<u64>,
    mut from: u64,
    (step, most): (usize, usize),
) -> (Vec<Shown>, usize) {
    let (mut shown, mut looks) = (Vec::new(), 0);
    let new = |from| Surface::new(place()[2].clone(), epochs.clone(), from).with_most(most);
    let mut surface = new(from);
    loop {
        let mut left = step;
        let next = surface.next(tree, &mut left).expect("sound");
        looks += step - left;
        assert!(surface.held() <= most + 1024, "{} are remembered", surface.held());
        match next {
            Next::Part(part) => shown.push(part),
            Next::Later => {}
            Next::Unknown => {
                assert!(surface.at() > from, "it doesn't go on");
                from = surface.at();
                surface = new(from);
            }
            Next::End => return (shown, looks),
        }
    }
}

proptest! {
    #[test]
    fn a_surface_in_steps_shows_what_is_on_top(
        steps in steps(), low in 1u64..900, horizon in 0u64..900, from in 0u64..80, step in 1usize..40, most in 1usize..6,
    ) {
        let (tree, _) = history(&steps);
        let stored: Vec<Stored> = versions(&tree, low - 1).into_iter().filter_map(|(tail, hole)| match tail {
            Tail::Extent(extent, epoch) if epoch <= horizon => Some(Stored { extent, epoch, value: value(hole) }),
            _ => None,
        }).collect();
        let rest = Extent { index: from, count: ALL_RECORDS.end() - from };
        let mut expected = Vec::new();
        for part in paint(&stored, rest) {
            let Stored { extent, epoch, value } = &stored[part.stored];
            let what = (*extent, *epoch, is_hole(value));
            expected.extend((part.extent.index..part.extent.end()).map(|record| (record, what)));
        }
        let mut found = Vec::new();
        for Shown { part, extent, epoch, is_hole } in surface(&tree, low..=horizon, from, (step, most)).0 {
            found.extend((part.index..part.end()).map(|record| (record, (extent, epoch, is_hole))));
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_deep_stack_is_walked_once() {
    const MANY: u64 = 100_000;
    let akey = place()[2].clone();
    let looks_of = |extent: &dyn Fn(u64) -> Extent, parts: u64| {
        let tree = tree_of((0..MANY).map(|at| akey.extent(extent(at), 2 + at).to_vec()));
        let (shown, looks) = surface(&tree, 1..=u64::MAX, 0, (STEP_LOOKS, ACTIVE_MAX));
        assert!(shown.windows(2).all(|pair| pair[0].part.end() == pair[1].part.index));
        assert!(shown.len() as u64 >= parts, "{} parts", shown.len());
        looks as u64
    };
    // Each hides all of the one before but its first record.
    let looks = looks_of(&|index| Extent { index, count: 1 << 20 }, MANY);
    assert!(looks <= 4 * MANY, "{looks} looks");
    // Each shows its last record.
    let looks = looks_of(&|at| Extent { index: MANY - at, count: 1 << 20 }, MANY);
    assert!(looks <= 16 * MANY, "{looks} looks");
    // Each lies inside the one before and shows its first and its last record.
    let looks = looks_of(&|at| Extent { index: at, count: 2 * (MANY - at) }, 2 * MANY - 1);
    assert!(looks <= 16 * MANY, "{looks} looks");
}

/// Entries of the long akeys that bounds are tested with.
const MANY: u64 = 200_000;

/// Passes over an akey of many versions. Returns how many are dead, the most that died in a step, and the most extents
/// held.
fn pass(tree: &Tree, snapshots: &BTreeSet<u64>) -> (u64, usize, usize) {
    let pins = Pins { snapshots, floor: 0, horizon: u64::MAX - 1 };
    let (mut sweep, mut dead, mut most, mut held, mut steps) = (Sweep::new(place(), pins), 0, 0, 0, 0);
    loop {
        let has_ended = sweep.step(tree, STEP_LOOKS).expect("sound");
        dead += sweep.dead.len() as u64;
        most = most.max(sweep.dead.len());
        held = held.max(sweep.held());
        sweep.dead.clear();
        steps += 1;
        if has_ended {
            break;
        }
    }
    assert!(steps >= MANY / STEP_LOOKS as u64, "{steps} steps");
    (dead, most, held)
}

fn tree_of(entries: impl Iterator<Item = Vec<u8>>) -> Tree {
    let (mut tree, place) = (Tree::default(), place());
    let akey = Event::Akey { kind: Kind::Array, record_size: 1, classes: u32::MAX };
    for (path, event) in place.iter().zip([Event::Object { newest: 1 }, Event::Dkey, akey]) {
        tree.put(&path.event(1), &event.encode()).expect("in memory");
    }
    let value = value(false);
    entries.for_each(|key| drop(tree.put(&key, &value).expect("in memory")));
    tree
}

#[test]
fn a_long_array_is_passed_with_a_few_extents_in_memory() {
    let akey = place()[2].clone();
    let extent = |index| Extent { index: index * 4, count: 4 };
    let tree = tree_of((0..MANY).map(|index| akey.extent(extent(index % (MANY / 2)), 2 + index).to_vec()));
    let (dead, most, held) = pass(&tree, &BTreeSet::new());
    assert_eq!(dead, MANY / 2);
    assert!(most <= STEP_LOOKS && held < 100, "{most} died at once, {held} were held");
}

#[test]
fn a_deep_stack_of_versions_is_passed_with_a_few_in_memory() {
    let akey = place()[2].clone();
    let extent = Extent { index: 7, count: 4 };
    let tree = tree_of((0..MANY).map(|epoch| akey.extent(extent, 2 + epoch).to_vec()));
    let (dead, most, held) = pass(&tree, &BTreeSet::new());
    assert_eq!(dead, MANY - 1);
    assert!(most <= STEP_LOOKS && held < 100, "{most} died at once, {held} were held");
    let tree = tree_of((0..MANY).map(|epoch| akey.single(2 + epoch).to_vec()));
    let (dead, most, _) = pass(&tree, &BTreeSet::new());
    assert_eq!((dead, most <= STEP_LOOKS), (MANY - 1, true));
}

#[test]
fn an_akey_that_was_punched_and_created_again_and_again_is_passed_in_steps() {
    let (mut tree, place) = (tree_of(core::iter::empty()), place());
    let akey = Event::Akey { kind: Kind::Array, record_size: 1, classes: 1 };
    for at in 1..=MANY / 2 {
        tree.put(&place[2].event(at * 2), &Event::Punch.encode()).expect("in memory");
        tree.put(&place[2].event(at * 2 + 1), &akey.encode()).expect("in memory");
    }
    let snapshots = BTreeSet::from([MANY / 2 + 1]);
    let pins = Pins { snapshots: &snapshots, floor: 0, horizon: u64::MAX - 1 };
    let mut pass = Events::new(&place[..2], place[2].clone(), pins);
    let (mut dead, mut steps) = (0, 0);
    while !pass.step(&tree, STEP_LOOKS).expect("sound") {
        assert!(pass.dead().len() <= STEP_LOOKS);
        (dead, steps) = (dead + pass.dead().len() as u64, steps + 1);
        pass.dead().clear();
    }
    assert!(steps >= MANY / STEP_LOOKS as u64, "{steps} steps");
    // All creations but the last and the one of the snapshot, and the punches before that.
    assert_eq!(dead + pass.dead().len() as u64, MANY / 2 + 1 - 2 + MANY / 4);
}

#[test]
fn a_punch_that_comes_behind_a_creation_nobody_has_judged_stays() {
    let (mut tree, place) = (Tree::default(), place());
    let put = |tree: &mut Tree, path: &Path, epoch: u64, event: Event| {
        tree.put(&path.event(epoch), &event.encode()).expect("in memory");
    };
    put(&mut tree, &place[0], 10, Event::Object { newest: 20 });
    put(&mut tree, &place[1], 10, Event::Dkey);
    put(&mut tree, &place[1], 20, Event::Punch);
    let snapshots = BTreeSet::new();
    let mut pass =
        Events::new(&place[..1], place[1].clone(), Pins { snapshots: &snapshots, floor: 0, horizon: 1000 });
    assert!(!pass.step(&tree, 2).expect("sound"), "the creations have been judged");
    // Transactions that are older than the horizon.
    put(&mut tree, &place[1], 30, Event::Dkey);
    put(&mut tree, &place[1], 40, Event::Punch);
    while !pass.step(&tree, 2).expect("sound") {}
    let dead: BTreeSet<Vec<u8>> = pass.dead().drain(..).collect();
    assert_eq!(dead, BTreeSet::from([10, 20].map(|epoch| place[1].event(epoch).to_vec())));
}

#[test]
fn what_has_shown_and_hides_nothing_more_than_others_is_forgotten() {
    let akey = place()[2].clone();
    // Each shows one record before the next, newer one begins, which reaches further.
    let shown = (0..MANY / 2).map(|index| akey.extent(Extent { index, count: 1 << 40 }, 10 + MANY + index));
    // All that is hidden by them is found, however deep it lies.
    let hidden = (0..MANY / 2).map(|index| akey.extent(Extent { index, count: 1 << 39 }, 2 + index));
    let tree = tree_of(shown.chain(hidden).map(|key| key.to_vec()));
    let (dead, most, held) = pass(&tree, &BTreeSet::new());
    assert_eq!(dead, MANY / 2);
    assert!(most <= STEP_LOOKS && held < 200, "{most} died at once, {held} were held");
}

#[test]
fn passes_one_after_another_find_all_that_is_dead_however_deep_it_lies() {
    const DEEP: u64 = 3 * ACTIVE_MAX as u64;
    let akey = place()[2].clone();
    // A heap of which each lies inside the one before, below two that are newer and hide it together.
    let heap = (0..DEEP).map(|at| (Extent { index: at, count: 2 * (DEEP - at) }, 2 + at));
    let top =
        [(Extent { index: 0, count: DEEP }, 10 + DEEP), (Extent { index: DEEP, count: DEEP }, 11 + DEEP)];
    let mut tree = tree_of(heap.chain(top).map(|(extent, epoch)| akey.extent(extent, epoch).to_vec()));
    let snapshots = BTreeSet::new();
    let pins = Pins { snapshots: &snapshots, floor: 0, horizon: u64::MAX - 1 };
    let (mut dead, mut passes, mut is_crowded) = (0, 0, true);
    while is_crowded {
        let mut sweep = Sweep::new(place(), pins);
        while !sweep.step(&tree, STEP_LOOKS).expect("sound") {}
        assert!(!sweep.dead.is_empty(), "it comes to nothing");
        dead += sweep.dead.len() as u64;
        sweep.dead.iter().for_each(|key| drop(tree.remove(key).expect("in memory")));
        (passes, is_crowded) = (passes + 1, sweep.is_crowded());
    }
    assert_eq!(dead, DEEP);
    assert!(passes <= 4, "{passes} passes");
}

#[test]
fn what_lies_on_top_of_each_other_beyond_the_bound_stays_and_takes_no_more_memory() {
    let akey = place()[2].clone();
    // Each shows one record before the next, newer one begins, and all reach to the same end and beyond.
    let extent = |index| Extent { index, count: 1 << 40 };
    let tree = tree_of((0..MANY).map(|index| akey.extent(extent(index), 2 + index).to_vec()));
    let (dead, _, held) = pass(&tree, &BTreeSet::new());
    assert_eq!(dead, 0, "each shows its first record");
    assert!(held <= ACTIVE_MAX + 64, "{held} were held");
    // Older ones that lie below the newest as a whole.
    let tree = tree_of((0..MANY).map(|index| akey.extent(extent(index), 2 + MANY - index).to_vec()));
    let (dead, most, held) = pass(&tree, &BTreeSet::new());
    assert!(most <= STEP_LOOKS && held <= ACTIVE_MAX + 64, "{most}, {held}");
    assert_eq!(dead, 0, "each shows its last record");
}

#[test]
fn what_one_step_finds_dead_is_bounded_however_much_lies_inside_new_extents() {
    const COVERED: u64 = 10_000;
    let akey = place()[2].clone();
    let stack = |above: u64| {
        let from_zero = move |count| Extent { index: 0, count };
        let short = (0..COVERED).map(move |at| (from_zero(COVERED - at), 2 + at));
        short.chain((0..200).map(move |at| (from_zero((1 << 20) + at), above + at)))
    };
    // All show their last record to nobody: longer ones that are newer hide them.
    let tree = tree_of(stack(MANY).map(|(extent, epoch)| akey.extent(extent, epoch).to_vec()));
    let snapshots = BTreeSet::new();
    let pins = Pins { snapshots: &snapshots, floor: 0, horizon: u64::MAX - 1 };
    let (mut sweep, mut dead, mut has_ended) = (Sweep::new(place(), pins), 0, false);
    while !has_ended {
        has_ended = sweep.step(&tree, STEP_LOOKS).expect("sound");
        assert!(sweep.dead.len() <= 2 * STEP_LOOKS, "{} died at once", sweep.dead.len());
        dead += core::mem::take(&mut sweep.dead).len() as u64;
    }
    assert_eq!(dead, COVERED + 199);
}

#[test]
fn holes_upon_one_record_are_judged_in_steps() {
    const HOLES: u64 = 10_000;
    let akey = place()[2].clone();
    let mut tree = tree_of(core::iter::empty());
    let mut put =
        |extent, epoch, hole| drop(tree.put(&akey.extent(extent, epoch), &value(hole)).expect("in memory"));
    for at in 0..HOLES {
        put(Extent { index: at, count: 1 << 40 }, 100 + at, true);
    }
    // Older data that all of them hide comes last.
    put(Extent { index: HOLES, count: 1 << 30 }, 5, false);
    put(Extent { index: 1 << 50, count: 1 }, 6, true);
    let mut holes = IdleHoles::new(akey.clone(), u64::MAX - 1);
    let (mut dead, mut steps) = (Vec::new(), 0);
    while !holes.step(&tree, 64).expect("sound") {
        dead.append(holes.dead());
        steps += 1;
    }
    dead.append(holes.dead());
    assert_eq!(dead, [akey.extent(Extent { index: 1 << 50, count: 1 }, 6).to_vec()]);
    assert!(steps >= 2 * HOLES / 64, "{steps} steps");
}
