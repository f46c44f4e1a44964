//! History goes from one store to another, which takes changes of the present meanwhile: it has all of it in the end, as if it had
//! been there all the time.

use crate::model::properties::change;
use crate::model::{Change, Model};
use crate::setup::*;
use proptest::prelude::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::memory::MemoryDevice;
use weir_proto::history::{HistoryDifference, HistoryEvent, HistoryPage, HistoryStep, HistoryVersion};
use weir_proto::object::Extent;
use weir_proto::{Der, Epoch, ObjectId};
use weir_runtime::Handle;
use weir_store::{HeldHistory, Imported, Replacement, Shard, Store, UpdateError};

const DEVICE: u64 = 64 << 20;

#[derive(Clone, Debug)]
enum Step {
    /// The leader makes a change, and forwards it.
    Change(Change),
    /// What was forwarded last, or first, arrives.
    Arrive(bool),
    /// A page of so many bytes is taken in.
    Page(u64),
    /// It turns out that all changes come from here on.
    Known,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => change().prop_map(Step::Change),
        2 => any::<bool>().prop_map(Step::Arrive),
        4 => prop_oneof![200u64..2000, 2000u64..40_000].prop_map(Step::Page),
        1 => Just(Step::Known),
    ]
}

/// Somebody who has all, and somebody who lacks it.
struct Pair {
    leader: (Rc<Store>, Shard),
    other: (Rc<Store>, Shard),
    model: Model,
    epoch: u64,
    /// Forwarded, and not arrived.
    forwarded: Vec<(u64, Change)>,
    /// Where the next page begins; `None`: all is there.
    from: Option<Vec<u8>>,
    /// All changes behind it are forwarded.
    bound: u64,
}

/// All objects and keys.
fn all(_: ObjectId, _: Option<&weir_proto::Key>) -> bool {
    true
}

/// A page of what isn't in `held`.
async fn page(shard: &Shard, from: &[u8], most: u64, held: &HeldHistory) -> HistoryDifference {
    let (range, here) = ((from, held.until()), held.fingerprints());
    let told = shard.history(CONTAINER, range, most, &all, &here).await.expect("sound");
    if told.page.needed == 0 {
        return told;
    }
    assert!(told.page.steps.is_empty());
    shard.history(CONTAINER, range, told.page.needed, &all, &here).await.expect("sound")
}

async fn import(shard: &Shard, page: &HistoryDifference) -> Result<Imported, UpdateError> {
    shard.import_history(CONTAINER, page, &|| true).await
}

/// Puts a page of the history of one shard in place of what is in another one. Returns where to go on, and what came.
async fn replace(
    (from, to): (&Shard, &Shard),
    begin: &[u8],
    (most, bound): (u64, u64),
) -> (Option<Vec<u8>>, Imported) {
    let held = to.held_history(CONTAINER, begin, &all).await.expect("sound");
    let page = page(from, begin, most, &held).await;
    let replacement = Replacement { bound: Epoch(bound), holds: &|| true, is_shared: &|_| false };
    let came = to.replace_history(CONTAINER, &held, &page, &replacement).await.expect("replaced");
    let end = page.page.next.or_else(|| Some(held.until().to_vec()).filter(|until| !until.is_empty()));
    (end, came)
}

impl Pair {
    async fn new(handle: &Handle) -> Self {
        let leader = start_on(handle, &MemoryDevice::new(DEVICE)).await;
        let other = start_on(handle, &MemoryDevice::new(DEVICE)).await;
        let (model, forwarded) = (Model::default(), Vec::new());
        Self { leader, other, model, epoch: 10, forwarded, from: Some(Vec::new()), bound: 0 }
    }

    async fn change(&mut self, change: Change) -> u64 {
        self.epoch += 1;
        change.apply(&self.leader.1, self.epoch).await.expect("stored");
        self.model.add(self.epoch, change);
        self.epoch
    }

    async fn arrive(&mut self, at: usize) {
        let (epoch, change) = self.forwarded.remove(at);
        change.follow(&self.other.1, epoch).await.expect("stored");
    }

    async fn settle(&mut self) {
        while !self.forwarded.is_empty() {
            self.arrive(0).await;
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Change(change) => {
                // A punch waits for what is before it, and what is behind it for the punch.
                let is_punch = change.is_punch();
                if is_punch {
                    self.settle().await;
                }
                let epoch = self.change(change.clone()).await;
                self.forwarded.push((epoch, change));
                if is_punch {
                    self.settle().await;
                }
            }
            Step::Arrive(is_first) if !self.forwarded.is_empty() => {
                let at = if is_first { 0 } else { self.forwarded.len() - 1 };
                self.arrive(at).await;
            }
            Step::Page(most) => {
                let Some(from) = self.from.take() else { return };
                let shards = (&self.leader.1, &self.other.1);
                (self.from, _) = replace(shards, &from, (most, self.bound)).await;
            }
            Step::Known => self.other.1.fill(Epoch(self.bound)),
            Step::Arrive(_) => {}
        }
    }

    async fn check(&self, from: u64) -> Result<(), String> {
        for (name, (store, shard)) in [("the leader", &self.leader), ("the other", &self.other)] {
            for epoch in (from..=self.epoch + 1).chain([u64::MAX]) {
                let checked = self.model.check(shard, epoch).await;
                checked.map_err(|problem| format!("{name}: {problem}"))?;
            }
            if let Some(problem) = store.audit().await.problems.first() {
                return Err(format!("{name}: {problem}"));
            }
        }
        Ok(())
    }
}

/// What each has before one lacks something, what happens while it is away, while it gets what it lacks, and then.
async fn comes_back(
    handle: &Handle,
    (common, missed): (Vec<Change>, Vec<Change>),
    rogue: Vec<Change>,
    (steps, later): (Vec<Step>, Vec<Change>),
    aggregated: bool,
) -> Result<(), String> {
    let mut pair = Pair::new(handle).await;
    for change in common {
        let epoch = pair.change(change.clone()).await;
        change.follow(&pair.other.1, epoch).await.expect("stored");
    }
    // Nobody else has seen these.
    let mut epoch = pair.epoch;
    for change in rogue {
        epoch += 1;
        change.apply(&pair.other.1, epoch).await.expect("stored");
    }
    for change in missed {
        pair.change(change).await;
    }
    pair.epoch = pair.epoch.max(epoch);
    let horizon = if aggregated { pair.epoch } else { 1 };
    if aggregated {
        pair.leader.1.aggregate(CONTAINER, Epoch(horizon)).await.expect("aggregated");
    }
    pair.other.1.fill(Epoch::MAX);
    pair.leader.1.hold_history(Duration::from_hours(1));
    pair.bound = pair.epoch;
    for step in steps {
        pair.step(step).await;
    }
    while pair.from.is_some() {
        pair.step(Step::Page(5000)).await;
    }
    pair.settle().await;
    // What is the same doesn't come again, unless each has its own way of putting it.
    let mut from = Some(Vec::new());
    pair.bound = pair.epoch;
    while let Some(begin) = from.take() {
        let (end, came) = replace((&pair.leader.1, &pair.other.1), &begin, (5000, pair.bound)).await;
        if came.bytes > 0 {
            return Err(format!("{} bytes come again", came.bytes));
        }
        from = end;
    }
    pair.other.1.end_fill();
    pair.check(horizon).await?;
    for change in later {
        let epoch = pair.change(change.clone()).await;
        change.follow(&pair.other.1, epoch).await.expect("stored");
    }
    let horizon = pair.epoch.saturating_sub(3).max(horizon);
    pair.other.1.aggregate(CONTAINER, Epoch(horizon)).await.expect("aggregated");
    pair.check(horizon).await
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn who_comes_back_has_all_that_the_leader_has_at_all_epochs(
        seed in any::<u64>(),
        before in (proptest::collection::vec(change(), 0..15), proptest::collection::vec(change(), 0..30)),
        rogue in proptest::collection::vec(change(), 0..5),
        after in (proptest::collection::vec(step(), 0..60), proptest::collection::vec(change(), 0..8)),
        aggregated in any::<bool>(),
    ) {
        let came = run(seed, async move |handle| comes_back(&handle, before, rogue, after, aggregated).await);
        prop_assert!(came.is_ok(), "{:?}", came);
    }
}

#[test]
fn aggregation_stands_still_while_history_comes_or_goes() {
    run(1, async |handle| {
        let pair = Pair::new(&handle).await;
        let (store, shard) = (&pair.leader.0, &pair.leader.1);
        for (epoch, byte) in [(11, 1), (12, 2)] {
            write(shard, 1, epoch, 0, &[byte; 8192]).await.expect("stored");
        }
        let dropped = async || {
            shard.aggregate(CONTAINER, Epoch(20)).await.expect("aggregated");
            store.stats().aggregated
        };
        shard.hold_history(Duration::from_mins(1));
        assert_eq!(dropped().await, 0, "it is being read out");
        handle.sleep(Duration::from_secs(61)).await;
        shard.fill(Epoch::MAX);
        assert_eq!(dropped().await, 0, "it is being taken in");
        shard.end_fill();
        assert_eq!(dropped().await, 1);
    });
}

#[test]
fn large_values_keep_their_bytes_and_checksums() {
    run(1, async |handle| {
        let pair = Pair::new(&handle).await;
        let (leader, other) = (&pair.leader.1, &pair.other.1);
        let large = pattern(3, 3 << 20);
        for (dkey, at, len) in [(1, 11, 3 << 20), (1, 12, 100_000), (2, 13, 5000), (2, 14, 100)] {
            write(leader, dkey, at, 777 * at, &large[..len]).await.expect("stored");
        }
        other.fill(Epoch::MAX);
        let (mut from, mut pages, mut bytes) = (Some(Vec::new()), 0, 0);
        while let Some(begin) = from {
            let page = page(leader, &begin, 64 << 10, &HeldHistory::default()).await;
            bytes += import(other, &page).await.expect("taken in").bytes;
            // Each part may come again.
            assert_eq!(import(other, &page).await, Ok(Imported::default()));
            (from, pages) = (page.page.next, pages + 1);
        }
        other.end_fill();
        assert_eq!(bytes, (3 << 20) + 105_100);
        assert!(pages > 4, "{pages} pages");
        for shard in [leader, other] {
            for (dkey, at, len) in [(1, 11, 3 << 20), (1, 12, 100_000), (2, 13, 5000), (2, 14, 100)] {
                let found = read(shard, dkey, at, 777 * at, len as u64).await.expect("read");
                assert_eq!(found.1, [Extent { index: 777 * at, count: len as u64 }]);
                assert!(found.0 == large[..len], "{len} bytes");
            }
        }
        let problems = pair.other.0.audit().await.problems;
        assert_eq!(problems, [""; 0]);
    });
}

#[test]
fn what_is_damaged_comes_as_such_and_only_where_it_is_not_there() {
    run(4, async |handle| {
        let device = MemoryDevice::new(DEVICE);
        let (_leading, leader) = start_on(&handle, &device).await;
        let (_store, other) = start_on(&handle, &MemoryDevice::new(DEVICE)).await;
        let value = pattern(5, 300_000);
        write(&leader, 1, 11, 0, &value).await.expect("stored");
        write(&leader, 2, 12, 0, b"small").await.expect("stored");
        let all = device.bytes(0, DEVICE as usize);
        let block = all.chunks(4096).position(|found| *found == value[..4096]).expect("on the device");
        device.flip_bit(block as u64 * 4096 + 100, 3);
        other.fill(Epoch::MAX);
        let damaged = page(&leader, &[], 1 << 20, &HeldHistory::default()).await;
        assert_eq!((damaged.unread.len(), damaged.page.data.len()), (1, 300_005));
        assert_eq!(import(&other, &damaged).await.expect("taken in").bytes, 300_005);
        for shard in [&leader, &other] {
            let refused = read(shard, 1, u64::MAX, 0, 5000).await.map_err(|error| error.der());
            assert_eq!(refused.err(), Some(Der::CSUM));
            let sound = read(shard, 1, u64::MAX, 200_000, 100_000).await.expect("other chunks are sound");
            assert!(sound.0 == value[200_000..]);
            assert_eq!(read(shard, 2, u64::MAX, 0, 5).await.expect("read").0, b"small");
        }
        // Whoever has it sound keeps it.
        let (_third, third) = start_on(&handle, &MemoryDevice::new(DEVICE)).await;
        write(&third, 1, 11, 0, &value).await.expect("stored");
        third.fill(Epoch::MAX);
        let (end, came) = replace((&leader, &third), &[], (1 << 20, 20)).await;
        assert_eq!((end, came.bytes), (None, 5));
        assert!(read(&third, 1, u64::MAX, 0, 300_000).await.expect("sound").0 == value);
    });
}

#[test]
fn nothing_goes_and_nothing_comes_that_counts_no_more() {
    run(5, async |handle| {
        let pair = Pair::new(&handle).await;
        let (leader, other) = (&pair.leader.1, &pair.other.1);
        put(leader, "d", "a", 11, b"theirs").await.expect("stored");
        put(other, "d", "a", 12, b"own").await.expect("stored");
        other.fill(Epoch::MAX);
        let held = other.held_history(CONTAINER, &[], &all).await.expect("sound");
        let told = page(leader, &[], 1 << 20, &held).await;
        let late = Replacement { bound: Epoch(20), holds: &|| false, is_shared: &|_| false };
        let refused = other.replace_history(CONTAINER, &held, &told, &late).await;
        assert_eq!(refused.map_err(|error| error.der()), Err(Der::TX_RESTART));
        assert_eq!(get(other, "d", "a", u64::MAX).await, Ok(Some(b"own".to_vec())));
        assert_eq!(get(other, "d", "a", 11).await, Ok(None));
        let replacement = Replacement { bound: Epoch(20), holds: &|| true, is_shared: &|_| false };
        other.replace_history(CONTAINER, &held, &told, &replacement).await.expect("replaced");
        assert_eq!(get(other, "d", "a", u64::MAX).await, Ok(Some(b"theirs".to_vec())));
        assert_eq!(import(other, &told).await, Ok(Imported::default()), "it is there");
    });
}

#[test]
fn only_what_is_wanted_comes_and_only_what_is_doomed_goes() {
    run(2, async |handle| {
        let pair = Pair::new(&handle).await;
        let (leader, other) = (&pair.leader.1, &pair.other.1);
        for number in 0..200 {
            write(leader, number, 10 + number, 0, b"array").await.expect("stored");
            put(leader, &format!("d{number}"), "a", 10 + number, b"value").await.expect("stored");
        }
        other.fill(Epoch::MAX);
        let wanted = |object: ObjectId, dkey: Option<&weir_proto::Key>| {
            object == OBJECT && dkey.is_none_or(|dkey| dkey.as_bytes().ends_with(b"7"))
        };
        let page = leader.history(CONTAINER, (&[], &[]), 1 << 20, &wanted, &[]).await.expect("read");
        assert!(page.page.next.is_none());
        import(other, &page).await.expect("taken in");
        assert_eq!(read(other, 7, u64::MAX, 0, 5).await.expect("read").1, []);
        for (dkey, is_there) in [(7, true), (147, true), (148, false), (157, true)] {
            let found = get(other, &format!("d{dkey}"), "a", u64::MAX).await.expect("read");
            assert_eq!(found.is_some(), is_there, "d{dkey}");
        }
        write(other, 1, 900, 0, b"array").await.expect("stored");
        let refused = other.erase_objects(CONTAINER, &|object| object == OBJECT, &|| false).await;
        assert_eq!(refused.map_err(|error| error.der()), Err(Der::TX_RESTART));
        assert!(get(other, "d157", "a", u64::MAX).await.expect("read").is_some(), "it isn't to go any more");
        other.erase_objects(CONTAINER, &|object| object == OBJECT, &|| true).await.expect("erased");
        assert_eq!(get(other, "d157", "a", u64::MAX).await, Ok(None));
        assert_eq!(read(other, 1, u64::MAX, 0, 5).await.expect("read").0, b"array");
    });
}

#[test]
fn what_makes_no_sense_or_is_altered_is_refused() {
    let version = |len: u64, checksums: &[u32]| HistoryVersion {
        epoch: Epoch(5),
        extent: None,
        record_size: 0,
        len,
        chunks: (len, len),
        checksums: checksums.to_vec(),
    };
    run(3, async move |handle| {
        let pair = Pair::new(&handle).await;
        let other = &pair.other.1;
        let places = [HistoryStep::Object(OBJECT), HistoryStep::Dkey(key("d")), HistoryStep::Akey(key("a"))];
        let event = |event| HistoryStep::Event { epoch: Epoch(5), event };
        let import = async |steps: &[HistoryStep], data: &[u8]| {
            let page = HistoryPage { steps: steps.to_vec(), data: data.to_vec(), ..HistoryPage::default() };
            let told = HistoryDifference { page, ..HistoryDifference::default() };
            super::history::import(other, &told).await.map_err(|error| error.der())
        };
        let good = HistoryStep::Version(version(4, &[crc(b"data")]));
        let of = |last: HistoryStep, depth: usize| [&places[..depth], &[last]].concat();
        assert_eq!(import(&of(good.clone(), 3), b"data").await, Err(Der::INVAL), "nobody fills it");
        other.fill(Epoch::MAX);
        let bad = [
            (of(good.clone(), 2), &b"data"[..], Der::INVAL),
            (of(good.clone(), 3), b"dat", Der::INVAL),
            (of(good.clone(), 3), b"data!", Der::INVAL),
            (of(good.clone(), 3), b"dada", Der::CSUM),
            (of(HistoryStep::Version(version(0, &[1])), 3), b"", Der::INVAL),
            (of(HistoryStep::Version(version(4, &[1, 2])), 3), b"data", Der::INVAL),
            (of(HistoryStep::Version(version(1 << 40, &[])), 3), b"data", Der::INVAL),
            (
                of(HistoryStep::Version(HistoryVersion { chunks: (0, 0), ..version(4, &[1]) }), 3),
                b"data",
                Der::INVAL,
            ),
            (
                of(HistoryStep::Version(HistoryVersion { record_size: 4, ..version(4, &[1]) }), 3),
                b"data",
                Der::INVAL,
            ),
            (
                of(HistoryStep::Version(HistoryVersion { epoch: Epoch::MAX, ..version(4, &[]) }), 3),
                b"data",
                Der::INVAL,
            ),
            (of(event(HistoryEvent::Dkey), 3), b"", Der::INVAL),
            (of(event(HistoryEvent::Single), 2), b"", Der::INVAL),
            (vec![event(HistoryEvent::Punch)], b"", Der::INVAL),
            (vec![HistoryStep::Dkey(key("d"))], b"", Der::INVAL),
            (vec![HistoryStep::Object(ARRAY), HistoryStep::Dkey(key("no integer"))], b"", Der::INVAL),
        ];
        for (steps, data, expected) in bad {
            assert_eq!(import(&steps, data).await, Err(expected), "{steps:?}");
        }
        let single = event(HistoryEvent::Single);
        assert!(import(&of(single, 3), b"").await.is_ok());
        let array = event(HistoryEvent::Array { record_size: 1, classes: 1 });
        assert_eq!(import(&of(array, 3), b"").await, Err(Der::INVAL), "it was a single value");
    });
}
