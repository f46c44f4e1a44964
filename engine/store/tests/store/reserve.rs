//! Room that is kept for records: it is there when they are written first, however full all else is, and comes back otherwise.

use crate::setup::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_proto::limits::RESERVED_DKEYS_MAX;
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::random::Random;
use weir_store::{Data, RecordRange, Shard, Store, StoreConfig, UpdateError};

const DISK: u64 = 64 << 20;
/// Records of a dkey, of a byte each.
const CHUNK: u64 = 64 << 10;
const BLOCK: u64 = 4096;

/// Somebody who writes at ever later epochs.
struct User {
    shard: Shard,
    epoch: u64,
}

impl User {
    fn new(shard: &Shard) -> Self {
        Self { shard: shard.clone(), epoch: shard_epoch(shard) }
    }

    fn next(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    async fn write(&mut self, dkey: u64, records: Range<u64>) -> Result<(), UpdateError> {
        let epoch = self.next();
        let data = pattern(epoch, (records.end - records.start) as usize);
        write(&self.shard, dkey, epoch, records.start, &data).await.map(drop)
    }

    async fn punch_records(&mut self, dkey: u64, records: Range<u64>) {
        let update = [array("data", 0, &[(records.start, records.end - records.start)])];
        let (dkey, epoch) = (Key::from_u64(dkey), Epoch(self.next()));
        let hole = Data::Borrowed(b"");
        self.shard
            .update(CONTAINER, ARRAY, &dkey, epoch, Conditions::NONE, &update, hole)
            .await
            .expect("a hole needs no room");
    }

    async fn punch(&mut self, scope: PunchScope) {
        let epoch = self.next();
        punch(&self.shard, ARRAY, scope, epoch).await.expect("punched");
    }

    /// Writes as much as there is room for, elsewhere. Returns why there is no more.
    async fn fill(&mut self) -> UpdateError {
        let mut last = None;
        for (object, len) in [(20, 200_000), (21, 5000), (22, 300), (23, 1)] {
            let object = ObjectId { hi: 0, lo: object };
            loop {
                let (epoch, value) = (self.next(), pattern(self.epoch, len));
                let update = [single("a", &value)];
                let (dkey, data) = (key(&format!("{epoch}")), Data::Borrowed(&value));
                let stored = self.shard.update(
                    CONTAINER,
                    object,
                    &dkey,
                    Epoch(epoch),
                    Conditions::NONE,
                    &update,
                    data,
                );
                if let Err(error) = stored.await {
                    last = Some(error);
                    break;
                }
            }
        }
        last.expect("it is full at some time")
    }
}

fn shard_epoch(shard: &Shard) -> u64 {
    shard.space().used() + 1000
}

/// Keeps room for records of some dkeys, each from `from` on up to `below`.
async fn reserve(
    shard: &Shard,
    dkeys: Range<u64>,
    records: Range<u64>,
) -> Result<Vec<Range<u64>>, UpdateError> {
    let akey = key("data");
    let (from, below) = ((dkeys.start, records.start), (dkeys.end - 1, records.end));
    let range = RecordRange { object: ARRAY, akey: &akey, from, below };
    shard.reserve(CONTAINER, &range, (1, CHUNK), &[dkeys]).await
}

fn only(run: Range<u64>) -> Vec<Range<u64>> {
    vec![run]
}

async fn release(shard: &Shard, from: (u64, u64), below: (u64, u64), dkeys: &[Range<u64>]) {
    let akey = key("data");
    let range = RecordRange { object: ARRAY, akey: &akey, from, below };
    shard.release(CONTAINER, &range, dkeys).await.expect("released");
}

/// All blocks of some dkeys in a random order.
fn shuffled(random: &mut Random, dkeys: Range<u64>) -> Vec<(u64, Range<u64>)> {
    let mut blocks: Vec<(u64, Range<u64>)> = dkeys
        .flat_map(|dkey| (0..CHUNK / BLOCK).map(move |block| (dkey, block * BLOCK..(block + 1) * BLOCK)))
        .collect();
    for at in (1..blocks.len()).rev() {
        blocks.swap(at, random.below(at as u64 + 1) as usize);
    }
    blocks
}

async fn sound(store: &Store) {
    assert_eq!(store.audit().await.problems, Vec::<String>::new());
}

#[test]
fn records_are_written_for_which_room_was_kept_when_all_else_is_full() {
    for (quota, piece) in [(0, 0), (6 << 20, 0), (0, 12_288), (4 << 20, 30_000), (0, CHUNK)] {
        let machine = Machine::new(7, DISK);
        let (store, shard) = machine.start(quiet());
        machine.run(async move {
            let mut user = User::new(&shard);
            shard.set_quota(CONTAINER, quota).await.expect("set");
            assert_eq!(reserve(&shard, 1..21, 0..CHUNK).await.expect("room"), only(1..21));
            let reserved = shard.space().reserved;
            assert!((20 * CHUNK..24 * CHUNK).contains(&reserved), "{reserved} bytes for {}", 20 * CHUNK);
            let full = user.fill().await;
            assert_eq!(matches!(full, UpdateError::Quota { .. }), quota > 0, "{full}");
            user.write(30, 0..10_000).await.expect_err("nothing is left for others");
            let pieces = if piece == 0 {
                shuffled(&mut Random::new(1), 1..21)
            } else {
                let of = |dkey| {
                    let starts = (0..CHUNK).step_by(piece as usize);
                    starts.map(move |start| (dkey, start..(start + piece).min(CHUNK)))
                };
                (1..21).flat_map(of).collect()
            };
            for (dkey, records) in pieces {
                let stored = user.write(dkey, records.clone()).await;
                stored.unwrap_or_else(|error| panic!("quota {quota}: {dkey} {records:?}: {error}"));
            }
            assert_eq!(shard.space().reserved, 0);
            // What was kept and not needed is there for all.
            user.fill().await;
            user.write(1, 0..10_000).await.expect_err("to overwrite takes room");
            sound(&store).await;
        });
    }
}

#[test]
fn updates_at_once_of_one_dkey_all_have_the_room_that_was_kept() {
    let machine = Machine::new(8, DISK);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        let mut user = User::new(&shard);
        reserve(&shard, 1..3, 0..CHUNK).await.expect("room");
        user.fill().await;
        let writes = shuffled(&mut Random::new(2), 1..3).into_iter().map(|(dkey, records)| {
            let (shard, epoch) = (shard.clone(), user.next());
            async move { write(&shard, dkey, epoch, records.start, &pattern(epoch, BLOCK as usize)).await }
        });
        for written in weir_runtime::join_all(writes.collect::<Vec<_>>()).await {
            written.expect("there is room");
        }
        assert_eq!(shard.space().reserved, 0);
        sound(&store).await;
    });
}

#[test]
fn it_is_all_or_nothing_and_counts_once() {
    let machine = Machine::new(9, DISK);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        let mut user = User::new(&shard);
        let size = shard.space().total;
        let too_many = size / CHUNK + 1;
        let refused = reserve(&shard, 1..too_many, 0..CHUNK).await.expect_err("more than there is");
        assert!(matches!(refused, UpdateError::NoSpace { .. }), "{refused}");
        shard.set_quota(CONTAINER, 1 << 20).await.expect("set");
        let refused = reserve(&shard, 1..17, 0..CHUNK).await.expect_err("more than the quota");
        assert!(matches!(refused, UpdateError::Quota { .. }), "{refused}");
        assert_eq!(shard.space().reserved, 0);
        shard.set_quota(CONTAINER, 0).await.expect("set");

        assert_eq!(reserve(&shard, 1..4, 100..200).await.expect("room"), only(1..4));
        let once = shard.space();
        assert_eq!(reserve(&shard, 1..4, 100..200).await.expect("it is there"), []);
        assert_eq!(shard.space(), once);
        // What is written isn't reserved; the rest of it is, and the dkeys that are new are told.
        user.write(6, 0..CHUNK).await.expect("room");
        user.write(7, 0..CHUNK / 2).await.expect("room");
        let before = shard.space().reserved;
        assert_eq!(reserve(&shard, 3..9, 0..CHUNK).await.expect("room"), [4..6, 7..9]);
        let kept = shard.space().reserved - before;
        assert!((9 * CHUNK / 2..11 * CHUNK / 2).contains(&kept), "{kept} bytes");
        sound(&store).await;

        let (text, numbers) = (key("data"), key("more"));
        let range = |object, akey| RecordRange { object, akey, from: (1, 0), below: (2, 0) };
        for (range, record_size, dkeys) in [
            (range(OBJECT, &text), 1, 1..2),
            (range(ARRAY, &numbers), 0, 1..2),
            (range(ARRAY, &numbers), 1, 0..RESERVED_DKEYS_MAX + 1),
            (range(ARRAY, &numbers), 1, 0..u64::MAX),
        ] {
            let refused = shard.reserve(CONTAINER, &range, (record_size, CHUNK), &[dkeys]).await;
            assert!(matches!(refused, Err(UpdateError::Invalid(_))), "{refused:?}");
        }
        let huge = RecordRange { object: ARRAY, akey: &numbers, from: (0, 0), below: (u64::MAX, u64::MAX) };
        let refused = shard.reserve(CONTAINER, &huge, (u32::MAX, u64::MAX), &only(0..9)).await;
        assert!(matches!(refused, Err(UpdateError::NoSpace { .. })), "{refused:?}");
        let refused = shard.reserve(CONTAINER, &range(ARRAY, &text), (2, CHUNK), &only(1..2)).await;
        assert!(matches!(refused, Err(UpdateError::RecordSize { .. })), "{refused:?}");
    });
}

#[test]
fn room_comes_back_with_what_it_was_kept_for() {
    let machine = Machine::new(10, DISK);
    let (store, shard) = machine.start(StoreConfig::default());
    let rt = machine.handle();
    machine.run(async move {
        let mut user = User::new(&shard);
        let kept = || shard.space().reserved;
        // Nothing of the object is stored.
        for scope in [
            PunchScope::Object,
            PunchScope::Dkeys((1..301).map(Key::from_u64).take(256).collect()),
            PunchScope::Akeys(Key::from_u64(1), vec![key("data"), key("other")]),
        ] {
            reserve(&shard, 1..201, 0..CHUNK).await.expect("room");
            let before = kept();
            user.punch(scope.clone()).await;
            let left = if matches!(scope, PunchScope::Akeys(..)) { before * 199 / 200 } else { 0 };
            assert_eq!(kept(), left, "{scope:?}");
        }
        user.punch(PunchScope::Object).await;
        // Parts.
        reserve(&shard, 1..11, 0..CHUNK).await.expect("room");
        let each = kept() / 10;
        release(&shard, (9, 0), (u64::MAX, 0), &[]).await;
        assert_eq!(kept(), 8 * each);
        release(&shard, (1, 0), (8, CHUNK), &[2..4, 7..8]).await;
        assert_eq!(kept(), 5 * each);
        release(&shard, (1, CHUNK / 2), (1, CHUNK), &[]).await;
        assert!((4 * each + each / 2..5 * each).contains(&kept()), "{} of {each} each", kept());
        user.punch_records(4, 0..CHUNK).await;
        user.punch_records(5, CHUNK / 4..CHUNK).await;
        // Two as a whole, the half of one and the quarter of another.
        assert!((2 * each + each / 2..3 * each).contains(&kept()), "{} of {each} each", kept());
        sound(&store).await;
        shard.destroy_container(CONTAINER).await.expect("destroyed");
        rt.sleep(Duration::from_secs(10)).await;
        assert_eq!(kept(), 0);
        sound(&store).await;
    });
}

#[test]
fn what_is_kept_survives_crashes_and_checkpoints() {
    let machine = Machine::new(11, DISK);
    let (store, shard) = machine.start(quiet());
    let kept = machine.run({
        let (store, shard) = (Rc::clone(&store), shard.clone());
        async move {
            let mut user = User::new(&shard);
            reserve(&shard, 1..9, 0..CHUNK).await.expect("room");
            user.write(1, 0..CHUNK).await.expect("room");
            store.checkpoint().await.expect("written");
            user.write(2, 0..CHUNK / 2).await.expect("room");
            reserve(&shard, 12..14, 0..CHUNK).await.expect("room");
            user.punch(PunchScope::Dkeys(vec![Key::from_u64(3)])).await;
            shard.space().reserved
        }
    });
    drop((store, shard));
    for round in 0..3 {
        machine.crash(CrashKeeps::Nothing);
        let store = machine.open(cramped());
        machine.run(async move {
            let shard = store.pool(POOL).expect("the pool");
            assert_eq!(shard.space().reserved, kept, "round {round}");
            sound(&store).await;
            if round == 1 {
                store.checkpoint().await.expect("written");
            }
            if round == 2 {
                let mut user = User { epoch: 1 << 40, shard: shard.clone() };
                user.fill().await;
                user.write(2, CHUNK / 2..CHUNK).await.expect("it is kept");
                for dkey in [4, 5, 6, 7, 8, 12, 13] {
                    user.write(dkey, 0..CHUNK).await.expect("it is kept");
                }
                assert_eq!(shard.space().reserved, 0);
            }
        });
    }
    let report = machine.inspect(weir_inspect::Depth::Everything);
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// Blocks of dkeys that are written, and for which room is kept.
#[derive(Default)]
struct Model {
    written: BTreeSet<(u64, u64)>,
    kept: BTreeSet<(u64, u64)>,
}

impl Model {
    fn each(dkeys: Range<u64>, blocks: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        dkeys.flat_map(move |dkey| blocks.clone().map(move |block| (dkey, block)))
    }
}

/// Whatever happens before: what the model says is kept can be written once all else is full.
#[test]
fn what_was_reserved_and_not_given_up_can_be_written() {
    for seed in 0..30 {
        let machine = Machine::new(seed, DISK);
        let (mut store, mut shard) = machine.start(quiet());
        let (mut random, mut model, mut epoch) = (Random::new(seed), Model::default(), 5000);
        for _ in 0..6 {
            (model, random, epoch) = machine.run({
                let (store, shard) = (Rc::clone(&store), shard.clone());
                async move {
                    let mut user = User { shard, epoch };
                    for _ in 0..12 {
                        step(&mut user, &mut random, &mut model).await;
                    }
                    if random.below(2) == 0 {
                        store.checkpoint().await.expect("written");
                    }
                    sound(&store).await;
                    assert_eq!(user.shard.space().reserved > 0, !model.kept.is_empty(), "seed {seed}");
                    (model, random, user.epoch)
                }
            });
            drop((store, shard));
            machine.crash(CrashKeeps::Nothing);
            store = machine.open(quiet());
            shard = store.pool(POOL).expect("the pool");
        }
        machine.run(async move {
            let mut user = User { shard, epoch };
            user.fill().await;
            let mut left: Vec<(u64, u64)> = model.kept.iter().copied().collect();
            while !left.is_empty() {
                let (dkey, block) = left.swap_remove(random.below(left.len() as u64) as usize);
                let written = user.write(dkey, block * BLOCK..(block + 1) * BLOCK).await;
                written.unwrap_or_else(|error| panic!("seed {seed}: block {block} of {dkey}: {error}"));
            }
            assert_eq!(user.shard.space().reserved, 0, "seed {seed}");
            sound(&store).await;
        });
    }
}

async fn step(user: &mut User, random: &mut Random, model: &mut Model) {
    let dkey = random.between(1, 6);
    let start = random.below(CHUNK / BLOCK);
    let blocks = start..random.between(start + 1, CHUNK / BLOCK);
    let records = blocks.start * BLOCK..blocks.end * BLOCK;
    match random.below(10) {
        0..4 => {
            let dkeys = dkey..random.between(dkey + 1, 8);
            reserve(&user.shard, dkeys.clone(), records.clone()).await.expect("there is room");
            // Behind the first dkey and before the last one all is reserved.
            for dkey in dkeys.clone() {
                let first = if dkey == dkeys.start { blocks.start } else { 0 };
                let end = if dkey + 1 == dkeys.end { blocks.end } else { CHUNK / BLOCK };
                let new = Model::each(dkey..dkey + 1, first..end.max(first));
                model.kept.extend(new.filter(|at| !model.written.contains(at)));
            }
        }
        4..7 => {
            user.write(dkey, records).await.expect("there is room");
            for at in Model::each(dkey..dkey + 1, blocks) {
                model.written.insert(at);
                model.kept.remove(&at);
            }
        }
        7 => {
            user.punch_records(dkey, records).await;
            for at in Model::each(dkey..dkey + 1, blocks) {
                model.written.remove(&at);
                model.kept.remove(&at);
            }
        }
        8 => {
            user.punch(PunchScope::Dkeys(vec![Key::from_u64(dkey)])).await;
            model.written.retain(|(at, _)| *at != dkey);
            model.kept.retain(|(at, _)| *at != dkey);
        }
        _ => {
            release(&user.shard, (dkey, records.start), (dkey, records.end), &[]).await;
            for at in Model::each(dkey..dkey + 1, blocks) {
                model.kept.remove(&at);
            }
        }
    }
}
