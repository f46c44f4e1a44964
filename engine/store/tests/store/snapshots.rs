//! Snapshots, many of them: what they show stays, what none shows goes, and a long history slows nobody down. Cost is
//! counted in index nodes passed and device writes, which don't depend on the machine. `WEIR_SNAPSHOT_STEPS` sets how
//! many steps there are; all twenty thousand take three seconds of CPU time.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_proto::Epoch;
use weir_store::{Shard, Store, StoreConfig, StoreStats};

/// Parts of the history: the cost of each is summed up, and an early one is compared with the last.
const WINDOWS: u64 = 8;

/// Steps of the history, which give the index its third level.
const STEPS: u64 = 20_000;

/// Index nodes that a step passes at most, by its two overwrites and with all that goes on beside: on three levels they are
/// 18.4 and 21.9, and a fourth would add a third.
const PASSED_MAX: [u64; 2] = [20, 24];

fn steps() -> u64 {
    std::env::var("WEIR_SNAPSHOT_STEPS").map_or(STEPS, |count| count.parse().expect("a number"))
}

/// What something cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    visits: u64,
    writes: u64,
    bytes: u64,
}

impl Cost {
    fn between(before: &StoreStats, after: &StoreStats) -> Self {
        Self {
            visits: after.index.visits - before.index.visits,
            writes: after.device.writes - before.device.writes,
            bytes: after.device.write_bytes - before.device.write_bytes,
        }
    }

    fn add(self, other: Self) -> Self {
        Self {
            visits: self.visits + other.visits,
            writes: self.writes + other.writes,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Overwrites a value and an extent; returns what that alone cost.
async fn overwrite(store: &Store, shard: &Shard, epoch: u64) -> Cost {
    let before = store.stats();
    put(shard, "d", "a", epoch, &epoch.to_le_bytes()).await.expect("stored");
    write(shard, 1, epoch, 0, &pattern(epoch, 4096)).await.expect("stored");
    Cost::between(&before, &store.stats())
}

/// Compares the last part of a history with an early one, of whose parts these are the costs, and the levels of the index
/// behind each.
fn check_costs(costs: &[Cost], depths: &[u64], passed_max: u64) {
    let (last, steps_each) = (costs.len() - 1, steps() / WINDOWS);
    for (cost, depth) in costs.iter().zip(depths) {
        println!("{cost:?} of {steps_each} steps, {depth} levels");
    }
    // In the first part there is hardly any index.
    let (early, late) = (costs[1], costs[last]);
    assert!(late.writes * 10 <= early.writes * 11, "{early:?} became {late:?}");
    assert!(late.bytes * 10 <= early.bytes * 11, "{early:?} became {late:?}");
    // The first part that had all of the levels all the time.
    let alike = (1..=last).find(|part| depths[part - 1] == depths[last]).map_or(late, |part| costs[part]);
    assert!(late.visits * 10 <= alike.visits * 11, "{alike:?} became {late:?} at {depths:?} levels");
    if steps() <= STEPS {
        assert!(late.visits <= passed_max * steps_each, "{late:?} at {depths:?} levels");
    }
}

#[test]
fn a_history_of_thousands_of_snapshots_slows_neither_writes_nor_background_work() {
    let machine = Machine::new(1, 512 << 20);
    let config = StoreConfig { retention: Duration::from_millis(50), ..StoreConfig::default() };
    let (store, shard) = machine.start(config);
    let none = Cost { visits: 0, writes: 0, bytes: 0 };
    let (mut foreground, mut all, mut depths, mut kept) = (vec![], vec![], vec![], vec![]);
    for _ in 0..WINDOWS {
        let (opened, user, handle) = (Rc::clone(&store), shard.clone(), machine.handle());
        let before = store.stats();
        let (cost, epochs) = machine.run(async move {
            let (mut cost, mut epochs) = (none, Vec::new());
            for step in 0..steps() / WINDOWS {
                let epoch = handle.wall_ns();
                cost = cost.add(overwrite(&opened, &user, epoch).await);
                user.add_snapshot(CONTAINER, Epoch(epoch)).await.expect("a snapshot");
                if step % 100 == 0 {
                    epochs.push(epoch);
                }
                // Background work goes on beside.
                handle.sleep(Duration::from_millis(1)).await;
            }
            (cost, epochs)
        });
        foreground.push(cost);
        all.push(Cost::between(&before, &store.stats()));
        depths.push(machine.audit(&store).depth);
        kept.push(epochs);
    }
    for (costs, passed_max) in [&foreground, &all].into_iter().zip(PASSED_MAX) {
        check_costs(costs, &depths, passed_max);
    }
    assert_eq!(shard.snapshots(CONTAINER).expect("the container").len() as u64, steps() / WINDOWS * WINDOWS);
    machine.run(async move {
        for epoch in kept.into_iter().flatten() {
            let found = get(&shard, "d", "a", epoch).await.expect("read");
            assert_eq!(found, Some(epoch.to_le_bytes().to_vec()), "the value at {epoch}");
            let (data, _) = read(&shard, 1, epoch, 0, 4096).await.expect("read");
            assert!(data == pattern(epoch, 4096), "the extent at {epoch}");
        }
        // Without its snapshots the history goes.
        shard.set_snapshots(CONTAINER, &[]).await.expect("set");
    });
    machine.sleep(Duration::from_secs(30));
    assert!(store.stats().entries < 60, "{} entries are left", store.stats().entries);
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn whole_containers_and_changed_objects_take_turns_in_background_work() {
    let machine = Machine::new(2, 128 << 20);
    let (store, shard) = machine.start(quiet());
    let objects = 3000u64;
    let user = shard.clone();
    machine.run(async move {
        for number in 0..objects {
            let object = weir_proto::ObjectId { hi: 1, lo: number };
            let (update, none) = ([single("a", b"v")], weir_proto::object::Conditions::NONE);
            for epoch in [1, 2] {
                let data = weir_store::Data::Borrowed(b"v");
                let epoch = Epoch(number * 2 + epoch);
                user.update(CONTAINER, object, &key("d"), epoch, none, &update, data).await.expect("stored");
            }
        }
    });
    drop((store, shard));
    machine.crash(weir_media::sim::CrashKeeps::Everything);
    // Whatever lies in the container has to be looked at, while others change.
    let config = StoreConfig { retention: Duration::from_millis(1), ..StoreConfig::default() };
    let store = machine.open(config);
    let shard = store.pool(POOL).expect("the pool");
    let (user, opened, handle) = (shard, Rc::clone(&store), machine.handle());
    machine.run(async move {
        for _ in 0..20 {
            let now = handle.wall_ns();
            put(&user, "d", "a", now, b"first").await.expect("stored");
            put(&user, "d", "a", now + 1, b"second").await.expect("stored");
            handle.sleep(Duration::from_millis(3)).await;
        }
        // The changed object is looked at long before the container is through.
        assert!(opened.stats().aggregated > 15, "{} versions were dropped", opened.stats().aggregated);
    });
    machine.sleep(Duration::from_mins(1));
    assert!(store.stats().entries < 4 * objects + 20, "{} entries are left", store.stats().entries);
    assert!(store.stats().aggregated >= objects, "{} versions were dropped", store.stats().aggregated);
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn more_snapshots_than_one_record_holds_survive_a_crash() {
    let machine = Machine::new(9, 256 << 20);
    let (store, shard) = machine.start(quiet());
    let snapshots: Vec<Epoch> = (1..=400_000).map(|number| Epoch(number * 0x0102_0304_0506)).collect();
    let wanted = snapshots.clone();
    machine.run(async move {
        shard.set_snapshots(CONTAINER, &wanted).await.expect("set");
        put(&shard, "d", "a", 1 << 60, b"acknowledged").await.expect("stored");
    });
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    assert!(shard.snapshots(CONTAINER).expect("the container") == snapshots);
    machine.run(async move {
        assert_eq!(get(&shard, "d", "a", u64::MAX).await, Ok(Some(b"acknowledged".to_vec())));
        shard.set_snapshots(CONTAINER, &[]).await.expect("set");
        assert_eq!(shard.snapshots(CONTAINER), Ok(Vec::new()));
    });
}
