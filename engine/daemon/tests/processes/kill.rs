//! SIGKILL at random under load: what was acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_bytes::ByteBuf;
use weir_client::{
    Conditions, Container, ContainerProperties, ContainerType, Context, Kv, ObjectId, Pool, Rights, kind,
};
use weir_management::v1;

use crate::system::System;

const ALL: Rights =
    Rights::READ.union(Rights::WRITE).union(Rights::CREATE_CONTAINER).union(Rights::DESTROY_CONTAINER);

/// How often an engine is killed; `WEIR_KILLS` sets another number.
const KILLS: u32 = 20;

const WRITERS: u64 = 2;

pub fn create_pool(system: &System, label: &str, mib: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let request = v1::PoolCreateRequest {
        label: label.to_owned(),
        size_bytes: mib << 20,
        ..v1::PoolCreateRequest::default()
    };
    let created = runtime.block_on(async { system.pools(0).create(request).await });
    let pool = created.expect("room for a pool").into_inner().pool.expect("an answer");
    assert_eq!(pool.state(), v1::PoolState::Ready);
}

pub async fn create_container(context: &Context, pool: &str, label: &str) -> Container {
    let pool = Pool::connect(context, pool, ALL).await.expect("the pool is there");
    let properties = ContainerProperties {
        label: label.to_owned(),
        kind: ContainerType::Object,
        quota: 0,
        object_class: String::new(),
        chunk_size: 0,
        uid: 0,
        gid: 0,
        mode: 0,
        attributes: BTreeMap::new(),
    };
    Container::create(context, &pool, properties, false).await.expect("a new container");
    Container::open(context, &pool, label, ALL).await.expect("the container is there")
}

/// What is written under a number: small values inline, some larger ones by RMA.
fn value(number: u64) -> Vec<u8> {
    let len = [24, 700, 9_000, 60_000][usize::try_from(number % 4).expect("small")];
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Writes numbers until told to stop; how many were acknowledged, all of them in order.
fn write(
    system_attach: &weir_client::Attach,
    container: &Container,
    oid: ObjectId,
    writer: u64,
    stop: &AtomicBool,
) -> u64 {
    let context = Context::real(system_attach).expect("a client on loopback");
    let kv = Kv::open(container, oid).expect("a class without redundancy");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = (writer << 32 | number).to_le_bytes();
        let done = context.block_on(kv.put(&context, &key, &value(number), Conditions::NONE));
        done.expect("engines that come back within a minute");
        number += 1;
    }
    number
}

#[test]
fn acknowledged_writes_survive_kill_nine() {
    let kills =
        std::env::var("WEIR_KILLS").map_or(KILLS, |text| text.parse().expect("WEIR_KILLS is a number"));
    kill_under_load(System::start(3, 2), kills, Duration::ZERO);
}

/// Kills engines of a fresh system of three while clients write, with so much more time between two kills, and reads back what
/// was acknowledged.
pub fn kill_under_load(mut system: System, kills: u32, more: Duration) {
    create_pool(&system, "tank", 6 * 128);
    let context = system.context(Duration::from_mins(1));
    let (container, oid) = context.block_on(async {
        let container = create_container(&context, "tank", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        (container, oid)
    });
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (attach, container, stop) = (system.attach(), container.clone(), Arc::clone(&stop));
            std::thread::spawn(move || write(&attach, &container, oid, writer, &stop))
        })
        .collect();
    for round in 0..kills {
        let pause = u64::from(round).wrapping_mul(7919) % 150;
        std::thread::sleep(Duration::from_millis(50 + pause) + more);
        let victim = usize::try_from(round).expect("few") * 7 % 3;
        system.kill(victim);
        system.spawn(victim);
        if round % 3 == 0 {
            system.wait_ready();
        }
    }
    system.wait_ready();
    stop.store(true, Ordering::Relaxed);
    let acknowledged: Vec<u64> =
        writers.into_iter().map(|writer| writer.join().expect("a writer's engines come back")).collect();
    let total: u64 = acknowledged.iter().sum();
    println!("{kills} kills, {total} acknowledged writes");
    assert!(total > u64::from(kills), "{acknowledged:?} writes in {kills} kills are no load");
    context.block_on(async {
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for (writer, count) in (0..).zip(&acknowledged) {
            for number in 0..*count {
                let key = (writer << 32 | number).to_le_bytes();
                let found = kv.get(&context, &key).await.expect("all engines are back");
                assert_eq!(found, Some(value(number)), "number {number} of writer {writer} was acknowledged");
            }
        }
    });
}

#[test]
fn an_engine_that_is_asked_to_end_ends_cleanly_and_starts_again_without_replay() {
    let mut system = System::start(1, 2);
    create_pool(&system, "tank", 128);
    let context = system.context(Duration::from_secs(30));
    let (container, oid) = context.block_on(async {
        let container = create_container(&context, "tank", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for number in 0..50_u64 {
            kv.put(&context, &number.to_le_bytes(), &value(number), Conditions::NONE).await.expect("room");
        }
        (container, oid)
    });
    let status = system.terminate(0);
    assert_eq!(status.code(), Some(0), "{}", system.log(0));
    system.spawn(0);
    system.wait_ready();
    let replayed = system.metric(0, "weir_engine_wal_replayed_records");
    assert_eq!(replayed, Some(0.0), "a clean end leaves nothing to replay");
    context.block_on(async {
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        let found = kv.get(&context, &49_u64.to_le_bytes()).await.expect("the engine is back");
        assert_eq!(found, Some(value(49)));
    });
}

#[test]
fn idle_engines_sleep_and_metrics_tell_what_happened() {
    let system = System::start(1, 4);
    create_pool(&system, "tank", 4 * 64);
    let context = system.context(Duration::from_secs(30));
    context.block_on(async {
        let container = create_container(&context, "tank", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for number in 0..20_u64 {
            kv.put(&context, &number.to_le_bytes(), &value(2), Conditions::NONE).await.expect("room");
            kv.get(&context, &number.to_le_bytes()).await.expect("it is there");
        }
        let claim = [("csi.weir.dev/pvc-namespace", "lab"), ("csi.weir.dev/pvc-name", "home")];
        let attributes = claim.map(|(name, value)| (name.to_owned(), Some(ByteBuf::from(value))));
        container.set_attributes(&context, attributes.into()).await.expect("attributes");
    });
    let sum = |series: &str, label: &str| -> f64 {
        let text = system.get(0, "/metrics");
        let lines = text.lines().filter(|line| line.starts_with(series) && line.contains(label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    assert!((sum("weir_engine_operations_total", "op=\"update\"") - 20.0).abs() < 0.5);
    let written = sum("weir_engine_bytes_total", "direction=\"write\"");
    assert!((written - 20.0 * 9_000.0).abs() < 0.5, "{written} bytes");
    assert!(sum("weir_engine_operation_seconds_count", "op=\"fetch\"") >= 20.0);
    assert!(system.get(0, "/metrics").contains("weir_engine_operation_seconds_bucket{le=\"+Inf\""));
    assert!((sum("weir_pool_containers", "pool=\"tank\"") - 1.0).abs() < 0.5);
    assert!((sum("weir_pool_info", "tenant=\"0\"") - 1.0).abs() < 0.5);
    assert!((sum("weir_container_info", "claim_namespace=\"lab\",claim=\"home\"") - 1.0).abs() < 0.5);
    assert!((sum("weir_container_open_handles", "container=\"box\"") - 1.0).abs() < 0.5);
    // What the load left behind (aggregation, checkpoints) is done after some seconds.
    std::thread::sleep(Duration::from_secs(12));
    let busy = || sum("weir_engine_target_busy_seconds_total", "");
    let (before, since) = (busy(), std::time::Instant::now());
    std::thread::sleep(Duration::from_secs(5));
    let share = (busy() - before) / since.elapsed().as_secs_f64();
    // One that polled would take a core. How much of one a few wakes take depends on what else the machine does.
    assert!(share < 0.1, "four idle targets use {share} of a core");
}
