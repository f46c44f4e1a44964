//! Engines that join a pool: they get their share of its data, while clients work that know nothing of them.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_client::{Conditions, Container, ObjectClass, Pool, PoolSpace, Rights, kind};
use weir_management::v1;
use weir_media::sim::CrashKeeps;
use weir_object::PlantedBug;
use weir_pool::Condition;
use weir_proto::pool::TargetState;
use weir_proto::{Der, Epoch, ObjectId, Rank};

use crate::cluster::{Cluster, SHARE_BYTES, Shape};
use crate::heirs::{HEALED_MAX, OUT_MAX, RUN_MAX, condition, service, wait_for};
use crate::rebuild;
use crate::replicas::{self, below};
use crate::transactions;
use crate::workload::{self, Mix};

const SHAPE: Shape = Shape { engines: 5, targets: 2, clients: 3 };

/// Engines that the pool is made with.
const ORIGINAL: u32 = 4;

/// The engine that joins it.
const NEW: u32 = 4;

/// Longest time until the engine is added, and until another one is lost from then on.
const MOMENT_MAX_US: u64 = 3_000_000;

/// How long an extension takes, about.
const EXTENDED_US: u64 = 60_000;

/// Longest time until an engine starts again.
const AWAY_MAX_US: u64 = 8_000_000;

/// Until everybody has heard of a new engine: some periods of the membership protocol.
const HEARD: Duration = Duration::from_secs(10);

/// Longest pause of clients between two transactions.
const PAUSE_MAX_US: u64 = 700_000;

/// Objects that are laid out over engines, each with one key.
const OBJECTS: u64 = 300;

fn create(cluster: &Cluster, label: &str, redundancy: u32) {
    let request = v1::PoolCreateRequest {
        label: label.to_owned(),
        size_bytes: u64::from(ORIGINAL * SHAPE.targets) * SHARE_BYTES,
        ranks: (0..ORIGINAL).collect(),
        redundancy_factor: redundancy,
        ..v1::PoolCreateRequest::default()
    };
    let _: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &request).expect("room for a pool");
}

/// A cluster with a pool that outlasts the loss of an engine, and one engine that isn't there yet.
pub fn start(seed: u64) -> Cluster {
    let cluster = Cluster::start_some_drifting(seed, SHAPE, 45_000, ORIGINAL);
    create(&cluster, "tank", 1);
    cluster
}

/// Starts the new engine, of which the others learn.
fn add(cluster: &Cluster) {
    let clients_know = cluster.attach().engines.len();
    assert_eq!(clients_know, ORIGINAL as usize);
    cluster.list(SHAPE.engines);
    cluster.boot(NEW);
    cluster.settle();
}

fn any(cluster: &Cluster) -> u32 {
    u32::try_from(cluster.world.rng().below(u64::from(SHAPE.engines))).expect("few engines")
}

fn extend_by(cluster: &Cluster, asked: u32, ranks: &[u32]) -> Result<v1::PoolInfo, weir_management::Failure> {
    let request =
        v1::PoolExtendRequest { pool: "tank".to_owned(), ranks: ranks.to_vec(), ..Default::default() };
    let answer: Result<v1::PoolExtendResponse, _> = cluster.manage(asked, "Pools/Extend", &request);
    answer.map(|answer| answer.pool.expect("an answer"))
}

/// Has the new engine join the pool, again until that is done, whoever is lost meanwhile.
fn extend(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let mut last = None;
    for _ in 0..60 {
        let asked = (0..SHAPE.engines).find(|rank| cluster.is_up(*rank)).expect("one is lost at a time");
        match extend_by(cluster, asked, &[NEW]) {
            Ok(pool) => {
                assert_eq!(pool.ranks, [0, 1, 2, 3, 4], "seed {seed}");
                return;
            }
            Err(error) => {
                let final_ones = [Der::EXIST, Der::NOSPACE, Der::NOTSUPPORTED];
                assert!(!final_ones.contains(&error.der), "seed {seed}: {error}");
                last = Some(error);
            }
        }
        cluster.world.run_for(Duration::from_secs(1));
        cluster.settle();
    }
    panic!("seed {seed}: the pool is not extended: {last:?}");
}

/// States of all targets, by the pool's service.
fn states(cluster: &Cluster) -> BTreeSet<&'static str> {
    let record = service(cluster).and_then(|(_, service)| service.pool().ok());
    record
        .map_or_else(BTreeSet::new, |record| record.map.targets.iter().map(|one| one.state.name()).collect())
}

/// Waits until all targets serve, the new ones, too, and all of them go by that map.
fn wait_joined(cluster: &Cluster) {
    let serves = |rank: u32| {
        let mut targets = (0..SHAPE.targets as usize).map(|index| cluster.target(rank, index));
        targets.all(|target| {
            let pool = target.pools().find("tank");
            pool.is_some_and(|pool| {
                pool.with_map(|map| {
                    let is_in = |state| state == TargetState::UpIn;
                    map.ranks().contains(&Rank(NEW)) && map.targets.iter().all(|one| is_in(one.state))
                })
            })
        })
    };
    wait_for(cluster, 2 * HEALED_MAX, "it does not get its share", || {
        (0..SHAPE.engines).all(|rank| cluster.is_serving(rank) && serves(rank))
            && condition(cluster) == Some(Condition::Healthy)
    });
}

/// In two of three runs one engine or two start again, the new one, too, which may have lost all. The first may be lost while the pool
/// is extended.
fn lose_some(cluster: &Cluster) {
    for _ in 0..cluster.world.rng().below(3) {
        cluster.world.run_for(below(cluster, MOMENT_MAX_US));
        let rank = any(cluster);
        cluster.crash(rank, CrashKeeps::Any);
        cluster.world.run_for(below(cluster, AWAY_MAX_US));
        if rank == NEW && cluster.world.rng().below(2) == 0 {
            cluster.return_empty(rank);
        } else {
            cluster.restart(rank);
        }
        cluster.settle();
    }
}

/// Adds the engine and extends the pool by it, at any moment of which an engine may be lost.
fn grow(cluster: &Cluster) {
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    add(cluster);
    if cluster.world.rng().below(2) == 0 {
        cluster.world.run_for(HEARD);
    }
    if cluster.world.rng().below(3) == 0 {
        let victim = any(cluster);
        let (other, delay) = (cluster.clone(), below(cluster, EXTENDED_US));
        cluster.world.schedule(delay, move || other.crash(victim, CrashKeeps::Any));
        let back = cluster.clone();
        cluster.world.schedule(delay + below(cluster, AWAY_MAX_US), move || back.restart(victim));
        extend(cluster);
        cluster.world.run_for(Duration::from_micros(EXTENDED_US));
        wait_for(cluster, 2 * Duration::from_micros(AWAY_MAX_US), "it stays away", || cluster.is_up(victim));
        cluster.settle();
    } else {
        extend(cluster);
    }
    lose_some(cluster);
    wait_joined(cluster);
}

/// An engine joins a pool while clients work and engines start again. Then another one is lost: all is there without it.
pub fn join(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let class = ["RP_2G1", "RP_2G2", "RP_2G4"][usize::try_from(cluster.world.rng().below(3)).expect("small")];
    let class: ObjectClass = class.parse().expect("a registered name");
    let run = workload::start_in(cluster, "tank", Mix::Long, Some(class));
    grow(cluster);
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
    cluster.world.run_for(Duration::from_secs(2));
    rebuild::wait_until_whole(cluster);
    rebuild::assert_equal_among(cluster, NEW, Epoch::MAX);
    rebuild::assert_nothing_elsewhere(cluster, NEW);
    let next = any(cluster);
    cluster.crash(next, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "the next one stays in the map", || states(cluster).contains("down"));
    run.finish(cluster).check(seed);
}

/// Transactions go on while an engine joins their pool.
pub fn join_under_transactions(cluster: &Cluster) {
    let seed = cluster.world.seed();
    cluster.world.run_for(Duration::from_secs(2));
    let run = transactions::start_with_pauses(cluster, &["RP_2G1", "RP_2G2", "RP_2G1"], PAUSE_MAX_US);
    grow(cluster);
    let ledger = run.finish(cluster);
    assert!(ledger.len() > 20, "seed {seed}: only {} were answered", ledger.len());
    ledger.check(seed);
    // The service may have heard only now that an engine had started again.
    rebuild::wait_until_whole(cluster);
    rebuild::assert_equal_among(cluster, NEW, Epoch::MAX);
}

/// What comes of it when each target has a fault while an engine joins. Whether the history, or what members have in the end, shows it.
pub fn shows(cluster: &Cluster, bug: PlantedBug) -> bool {
    let class: ObjectClass = "RP_2G4".parse().expect("a registered name");
    let run = workload::start_in(cluster, "tank", Mix::Long, Some(class));
    cluster.world.run_for(below(cluster, 4 * MOMENT_MAX_US));
    add(cluster);
    cluster.world.run_for(HEARD);
    replicas::plant(cluster, bug);
    extend(cluster);
    wait_joined(cluster);
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
    cluster.world.run_for(Duration::from_secs(2));
    rebuild::difference(cluster, NEW, Epoch::MAX).is_some() || !run.finish(cluster).is_linearizable()
}

/// Keys that each engine shows.
fn keys(cluster: &Cluster) -> Vec<usize> {
    let of = |rank| {
        let shown = (0..SHAPE.targets).map(|index| rebuild::shown(cluster, (rank, index), Epoch::MAX).len());
        shown.sum()
    };
    (0..SHAPE.engines).map(of).collect()
}

/// What many objects have is spread over all engines in the end; a client whose attach file has not the new one reads it all, and
/// snapshots show there what they showed. What is as wide as the pool keeps its width.
pub fn get_a_share(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let context = cluster.context(cluster.admin(), Duration::from_secs(30));
    let before = context.clone();
    let object = |class: &str, number: u64| {
        let class: ObjectClass = class.parse().expect("a registered name");
        class.encode(ObjectId { hi: 0, lo: number }, kind::KV_HASHED)
    };
    let (pool, container, snapshot) = cluster.world.block_on(cluster.admin(), async move {
        let container = workload::make_container(&before, "tank", "box", 0).await.expect("room");
        let put = async |class, number: u64, value: u64| {
            let kv = workload::open(&container, object(class, number));
            kv.put(&before, b"key", &value.to_le_bytes(), Conditions::NONE).await.expect("all serve");
        };
        for number in 0..OBJECTS {
            put("RP_2G1", number, number).await;
        }
        let snapshot = container.create_snapshot(&before).await.expect("all serve");
        for number in 0..OBJECTS {
            put("RP_2G1", number, number + 1).await;
            put("RP_2GX", OBJECTS + number % 10, number).await;
        }
        let pool = Pool::connect(&before, "tank", Rights::READ).await.expect("all serve");
        (pool, container, snapshot)
    });
    add(cluster);
    extend(cluster);
    wait_joined(cluster);
    let counts = keys(cluster);
    let fair = counts.iter().sum::<usize>() / counts.len();
    let is_fair = |count: &usize| (fair * 6 / 10..fair * 14 / 10).contains(count);
    assert!(counts.iter().all(is_fair), "seed {seed}: {counts:?}");
    cluster.world.block_on(cluster.admin(), async move {
        for number in 0..OBJECTS {
            let kv = workload::open(&container, object("RP_2G1", number));
            let found = kv.get(&context, b"key").await.expect("all serve");
            assert_eq!(found, Some((number + 1).to_le_bytes().to_vec()), "seed {seed}");
            let old = kv.with_object(kv.object().at(snapshot));
            let found = old.get(&context, b"key").await.expect("all serve");
            assert_eq!(found, Some(number.to_le_bytes().to_vec()), "seed {seed}");
        }
        let wide = workload::open(&container, object("RP_2GX", OBJECTS));
        let groups = wide.object().placement(&context).expect("placed").groups.len();
        assert_eq!(groups, ORIGINAL as usize, "seed {seed}: half of the targets that the pool was made with");
        let space = PoolSpace::of(&pool.query(&context).await.expect("all serve"));
        assert_eq!(space.total, u64::from(SHAPE.engines * SHAPE.targets) * SHARE_BYTES, "seed {seed}");
        let reopened = Container::open(&context, &pool, "box", Rights::READ).await.expect("all serve");
        assert_eq!(reopened.id(), container.id());
    });
}

/// What can't be is refused before anything has changed, and what was done may be asked for again.
pub fn are_refused(cluster: &Cluster) {
    let seed = cluster.world.seed();
    create(cluster, "plain", 0);
    let refused = |ranks: &[u32], der: Der, says: &str| {
        let error = extend_by(cluster, 1, ranks).expect_err("it can't be");
        assert_eq!(error.der, der, "seed {seed}: {error}");
        assert!(error.message.contains(says), "seed {seed}: {error}");
    };
    refused(&[NEW], Der::INVAL, "rank 4 does not exist; the system has ranks 0, 1, 2, 3");
    refused(&[1], Der::EXIST, "pool tank: rank 1 holds it already");
    refused(&[], Der::INVAL, "every engine that is up holds it already");
    add(cluster);
    cluster.world.run_for(HEARD);
    let request = v1::PoolExtendRequest { pool: "plain".to_owned(), ranks: vec![NEW], ..Default::default() };
    let error = cluster.manage::<_, v1::PoolExtendResponse>(1, "Pools/Extend", &request);
    let error = error.expect_err("no redundancy");
    assert_eq!(error.der, Der::NOTSUPPORTED, "seed {seed}: {error}");
    // Another pool has its room, but for half a share on each target.
    let query: v1::SystemQueryResponse =
        cluster.manage(0, "System/Query", &v1::SystemQueryRequest {}).expect("all are up");
    let free = query.engines.iter().find(|engine| engine.rank == NEW).expect("it is known").free_bytes;
    let full = v1::PoolCreateRequest {
        label: "full".to_owned(),
        size_bytes: free - u64::from(SHAPE.targets) * SHARE_BYTES / 2,
        ranks: vec![NEW],
        ..v1::PoolCreateRequest::default()
    };
    let _: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &full).expect("it fits");
    refused(&[NEW], Der::NOSPACE, "pool tank: rank 4 has");
    let full = v1::PoolDestroyRequest { pool: "full".to_owned(), force: true };
    let _: v1::PoolDestroyResponse = cluster.manage(0, "Pools/Destroy", &full).expect("nothing is there");
    cluster.crash(NEW, CrashKeeps::Any);
    refused(&[NEW], Der::UNREACH, "needs rank 4");
    cluster.restart(NEW);
    cluster.settle();
    cluster.world.run_for(HEARD);
    assert_eq!(states(cluster), BTreeSet::from(["up_in"]), "seed {seed}");
    extend(cluster);
    assert_eq!(extend_by(cluster, 2, &[NEW]).expect("a repeat").ranks.len(), 5, "seed {seed}");
    wait_joined(cluster);
    // It goes with the pool.
    let destroy = v1::PoolDestroyRequest { pool: "tank".to_owned(), force: true };
    let _: v1::PoolDestroyResponse = cluster.manage(3, "Pools/Destroy", &destroy).expect("all are up");
    let of_new = |index| cluster.target(NEW, index).pools().find("tank").is_some();
    assert!(!(0..SHAPE.targets as usize).any(of_new), "seed {seed}: a part of the pool is left");
}
