//! Replicated pool services: what was acknowledged is there once, whichever engines die, and another replica leads soon.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use uuid::Uuid;
use weir_client::{Container, ContainerProperties, ContainerType, Context, ObjectClass, Pool, Rights};
use weir_media::sim::CrashKeeps;
use weir_proto::pool::{PoolMap, PoolTarget, TargetPoolCreate};
use weir_proto::{PoolId, PoolSecret, Rank, TargetIndex, TenantId, opcode};

use crate::cluster::{Cluster, SHARE_BYTES, Shape};

const POOL: PoolId = PoolId(Uuid::from_u128(77));

/// How long it takes at most until another replica serves.
const ELECTED: Duration = Duration::from_secs(2);

const STEP: Duration = Duration::from_millis(10);

/// Containers that each client makes.
const CONTAINERS: usize = 12;

fn shape(engines: u32) -> Shape {
    Shape { engines, targets: 1, clients: 3 }
}

/// Has every target make its shard of a pool whose service is replicated, as the keeper of the list of pools does; it refuses such
/// pools to users.
fn create_pool(cluster: &Cluster, redundancy: u32) {
    let ranks = 0..cluster.shape.engines;
    let targets = ranks.clone().map(|rank| PoolTarget::serving(rank, Rank(rank), TargetIndex(0)));
    let create = TargetPoolCreate {
        pool: POOL,
        label: "tank".to_owned(),
        secret: PoolSecret([7; 32]),
        size: SHARE_BYTES,
        service: Rank(0),
        map: PoolMap::new(1, targets.collect()),
        object_class: ObjectClass::for_redundancy(redundancy).expect("a class").to_string(),
        tenant: TenantId::SYSTEM,
        redundancy,
    };
    let engines = Rc::clone(cluster.target(0, 0).pools().engines());
    cluster.world.block_on(&cluster.engines[0].node, async move {
        for rank in ranks.rev() {
            let asked = engines.ask::<_, ()>(
                Rank(rank),
                TargetIndex(0),
                opcode::TARGET_POOL_CREATE,
                &create,
                Duration::from_secs(10),
            );
            asked.await.expect("there is room");
        }
    });
}

/// The engine that runs the service in the latest term, if one does.
fn leader(cluster: &Cluster) -> Option<u32> {
    let up = (0..cluster.shape.engines).filter(|rank| cluster.is_up(*rank) && cluster.is_serving(*rank));
    let leading = up.filter_map(|rank| {
        let service = cluster.target(rank, 0).pools().own_service(POOL)?;
        Some((service.leadership()?.term, rank))
    });
    leading.max().map(|(_, rank)| rank)
}

/// Waits until an engine other than one runs the service. Returns how long that took.
fn await_leader(cluster: &Cluster, but: Option<u32>) -> Duration {
    let began = cluster.world.now();
    loop {
        let waited = cluster.world.now().saturating_duration_since(began);
        if leader(cluster).is_some_and(|rank| Some(rank) != but) {
            return waited;
        }
        assert!(waited < Duration::from_mins(1), "seed {}: no replica leads", cluster.world.seed());
        cluster.world.run_for(STEP);
    }
}

/// What clients were told.
#[derive(Clone, Default)]
struct Told {
    created: Rc<RefCell<BTreeSet<String>>>,
    running: Rc<Cell<usize>>,
}

pub fn properties(label: &str) -> ContainerProperties {
    ContainerProperties {
        label: label.to_owned(),
        kind: ContainerType::Object,
        quota: 0,
        object_class: String::new(),
        chunk_size: 0,
        uid: 0,
        gid: 0,
        mode: 0,
        attributes: std::collections::BTreeMap::new(),
    }
}

/// Makes containers, opens them, and changes them, each as soon as the one before is there. Nothing fails.
async fn make_containers(context: Context, client: usize, told: Told) {
    let rights =
        Rights::READ.union(Rights::WRITE).union(Rights::CREATE_CONTAINER).union(Rights::DESTROY_CONTAINER);
    let pool = Pool::connect(&context, "tank", rights).await.expect("a replica leads");
    for number in 0..CONTAINERS {
        let label = format!("box-{client}-{number}");
        // One that is sent to another replica again finds what it has made itself.
        Container::create(&context, &pool, properties(&label), true).await.expect("room, and a new label");
        told.created.borrow_mut().insert(label.clone());
        let opened = Container::open(&context, &pool, &label, Rights::READ.union(Rights::WRITE)).await;
        let container = opened.expect("it was acknowledged");
        let snapshot = container.create_snapshot(&context).await.expect("no target has anything of it");
        let known = container.snapshots(&context).await.expect("it is open");
        assert_eq!(known, [snapshot], "{label} has one snapshot, however often it was asked for");
        container.destroy_snapshot(&context, snapshot).await.expect("once, whoever answers");
        if number % 3 == 2 {
            container.close(&context).await.expect("it is open");
            Container::destroy(&context, &pool, &label, false).await.expect("it was there");
            told.created.borrow_mut().remove(&label);
        }
        context.runtime().sleep(Duration::from_millis(40)).await;
    }
    told.running.set(told.running.get() - 1);
}

/// What the pool has, by label, as whoever leads says.
fn listed(cluster: &Cluster) -> Vec<String> {
    let context = cluster.context(cluster.admin(), Duration::from_secs(30));
    let mut labels = cluster.world.block_on(cluster.admin(), async move {
        let pool = Pool::connect(&context, "tank", Rights::READ).await.expect("a replica leads");
        let found = pool.containers(&context).await.expect("a replica leads");
        found.into_iter().map(|info| info.properties.label).collect::<Vec<_>>()
    });
    labels.sort();
    labels
}

/// The engine that runs the service is killed again and again, while clients make and open containers.
pub fn outlive_their_engines(seed: u64, engines: u32, redundancy: u32) {
    let cluster = Cluster::start(seed, shape(engines));
    create_pool(&cluster, redundancy);
    await_leader(&cluster, None);
    let told = Told::default();
    for (client, node) in cluster.clients.iter().enumerate() {
        let context = cluster.context(node, Duration::from_mins(1));
        told.running.set(told.running.get() + 1);
        node.handle().spawn(make_containers(context, client, told.clone()));
    }
    for _ in 0..4 {
        cluster.world.run_for(Duration::from_micros(cluster.world.rng().below(900_000)));
        await_leader(&cluster, None);
        let victim = leader(&cluster).expect("one leads");
        cluster.crash(victim, CrashKeeps::Any);
        let without = await_leader(&cluster, Some(victim));
        assert!(without < ELECTED, "seed {seed}: no service for {without:?}");
        cluster.world.run_for(Duration::from_micros(cluster.world.rng().below(900_000)));
        cluster.restart(victim);
        cluster.settle();
    }
    for _ in 0..600 {
        if told.running.get() == 0 {
            break;
        }
        cluster.world.run_for(Duration::from_millis(100));
    }
    assert_eq!(told.running.get(), 0, "seed {seed}: clients don't finish");
    // Whichever replica leads says the same.
    for _ in 0..engines.min(3) {
        let created: Vec<String> = told.created.borrow().iter().cloned().collect();
        assert_eq!(listed(&cluster), created, "seed {seed}");
        let victim = leader(&cluster).expect("one leads");
        cluster.crash(victim, CrashKeeps::Any);
        await_leader(&cluster, Some(victim));
        cluster.restart(victim);
        cluster.settle();
    }
}
