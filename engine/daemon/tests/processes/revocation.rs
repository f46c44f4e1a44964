//! A tenant whose access is revoked is turned away, also while it writes, and also by engines that were away meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_client::{Attach, Conditions, Context, ContextOptions, Der, Kv, Pool, Rights, kind};
use weir_management::v1;
use weir_management::v1::tenants_client::TenantsClient;
use weir_proto::TenantId;

use crate::kill::create_container;
use crate::system::{KEY, System};

const TENANT: u64 = 70_007;

/// Clients that write at once.
const WRITERS: u64 = 8;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn client(system: &System, tenant: u64) -> Context {
    let attach = Attach { key: KEY.tenant(TenantId(tenant)), ..system.attach() };
    let options = ContextOptions { deadline: Duration::from_secs(20), uid: 0, gid: 0, node: None };
    Context::real_with(&attach, options).expect("a client")
}

fn create_pool(system: &System, label: &str, tenant: u64) {
    let label = label.to_owned();
    let request = v1::PoolCreateRequest { label, tenant, size_bytes: 128 << 20, ..Default::default() };
    runtime().block_on(async { system.pools(0).create(request).await }).expect("room for a pool");
}

/// Revokes at one engine, and returns which engines turn the tenant away.
fn revoke(system: &System, at: usize, tenant: u64) -> Vec<u32> {
    runtime().block_on(async {
        let mut tenants = TenantsClient::new(system.channel_as("tls", at));
        let answer = tenants.revoke(v1::TenantRevokeRequest { tenant }).await.expect("revoked").into_inner();
        answer.engines.iter().filter(|engine| engine.revoked).map(|engine| engine.rank).collect()
    })
}

fn admit(system: &System, at: usize, tenant: u64) {
    runtime().block_on(async {
        let mut tenants = TenantsClient::new(system.channel_as("tls", at));
        tenants.admit(v1::TenantAdmitRequest { tenant }).await.expect("admitted");
    });
}

/// Writes until it is refused, and returns why.
fn write_on(system: &System, written: &AtomicU64, stop: &AtomicBool) -> Option<Der> {
    let context = client(system, TENANT);
    context.block_on(async {
        let pool =
            Pool::connect(&context, "theirs", Rights::READ.union(Rights::WRITE)).await.expect("its own");
        let container =
            weir_client::Container::open(&context, &pool, "box", Rights::READ.union(Rights::WRITE));
        let container = container.await.expect("its own");
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        let mut number = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            let key = (number % 512).to_le_bytes();
            if let Err(error) = kv.put(&context, &key, &[7; 4096], Conditions::NONE).await {
                return Some(error.der());
            }
            written.fetch_add(1, Ordering::Relaxed);
        }
        None
    })
}

#[test]
fn nothing_that_a_tenant_begins_after_its_revocation_succeeds() {
    let system = Arc::new(System::start(2, 2));
    create_pool(&system, "theirs", TENANT);
    create_pool(&system, "ours", 0);
    let context = system.context(Duration::from_secs(20));
    context.block_on(async { drop(create_container(&context, "theirs", "box").await) });
    let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (system, written, stop) = (Arc::clone(&system), Arc::clone(&written), Arc::clone(&stop));
            std::thread::spawn(move || write_on(&system, &written, &stop))
        })
        .collect();
    while written.load(Ordering::Relaxed) < 2000 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(revoke(&system, 1, TENANT), [0, 1]);
    let until_then = written.load(Ordering::Relaxed);
    for writer in writers {
        let refused = writer.join().expect("it ends");
        assert_eq!(refused, Some(Der::NO_PERM), "a writer goes on");
    }
    // Each may have had one write under way.
    let late = written.load(Ordering::Relaxed) - until_then;
    assert!(late <= WRITERS, "{late} writes succeeded after the revocation");
    stop.store(true, Ordering::Relaxed);
    let series = (0..2_usize).flat_map(|rank| (0..2).map(move |target| (rank, target)));
    let counted: f64 = series
        .map(|(rank, target)| {
            let name = format!("weir_engine_rpc_revoked_total{{rank=\"{rank}\",target=\"{target}\"}}");
            system.metric(rank, &name).expect("it is counted")
        })
        .sum();
    assert!(counted > 0.0, "nobody was turned away");
    // Nobody else is.
    context.block_on(async { drop(create_container(&context, "ours", "box").await) });
    let error = client(&system, TENANT);
    let error =
        error.block_on(async { Pool::connect(&error, "theirs", Rights::READ).await.expect_err("revoked") });
    assert_eq!(error.der(), Der::NO_PERM, "{error}");
    admit(&system, 0, TENANT);
    let again = client(&system, TENANT);
    again.block_on(async { drop(Pool::connect(&again, "theirs", Rights::READ).await.expect("admitted")) });
}

#[test]
fn engines_remember_whom_they_turn_away_and_learn_what_they_missed() {
    let mut system = System::start(2, 1);
    create_pool(&system, "theirs", TENANT);
    let connects = |system: &System| {
        let context = client(system, TENANT);
        context.block_on(async { Pool::connect(&context, "theirs", Rights::READ).await.map(drop) })
    };
    connects(&system).expect("its own");
    system.kill(1);
    assert_eq!(revoke(&system, 0, TENANT), [0]);
    system.kill(0);
    system.spawn(0);
    system.spawn(1);
    system.wait_ready();
    assert_eq!(connects(&system).expect_err("engine 0 remembers").der(), Der::NO_PERM);
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let engines = runtime().block_on(async {
            let mut tenants = TenantsClient::new(system.channel_as("metrics", 1));
            tenants
                .query(v1::TenantQueryRequest { tenant: TENANT })
                .await
                .expect("figures")
                .into_inner()
                .engines
        });
        if engines.iter().all(|engine| engine.answered && engine.revoked) {
            break;
        }
        assert!(Instant::now() < deadline, "engine 1 has not learnt it: {engines:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
