//! A tenant holds no more than it may over all its pools, whose engines are killed meanwhile, and goes no faster.

use std::time::{Duration, Instant};

use weir_client::{Attach, Conditions, Context, ContextOptions, Der, Error, Kv, kind};
use weir_management::v1;
use weir_management::v1::tenants_client::TenantsClient;
use weir_proto::TenantId;

use crate::kill::create_container;
use crate::system::{KEY, System};

const TENANT: u64 = 70_008;

const MIB: usize = 1 << 20;

const QUOTA_MIB: u64 = 20;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn client(system: &System) -> Context {
    let attach = Attach { key: KEY.tenant(TenantId(TENANT)), ..system.attach() };
    let options = ContextOptions { deadline: Duration::from_secs(30), uid: 0, gid: 0, node: None };
    Context::real_with(&attach, options).expect("a client")
}

fn create_pool(system: &System, label: &str, rank: u32) {
    let label = label.to_owned();
    let request = v1::PoolCreateRequest {
        label,
        tenant: TENANT,
        size_bytes: 64 << 20,
        ranks: vec![rank],
        ..Default::default()
    };
    runtime().block_on(async { system.pools(0).create(request).await }).expect("room for a pool");
}

fn limit(system: &System, at: usize, limits: v1::TenantLimits) {
    runtime().block_on(async {
        let mut tenants = TenantsClient::new(system.channel_as("tls", at));
        let request = v1::TenantSetLimitsRequest { tenant: TENANT, limits: Some(limits) };
        let answer = tenants.set_limits(request).await.expect("the engines are up").into_inner();
        assert_eq!(answer.limits, Some(limits));
        assert!(answer.pools.iter().all(|pool| pool.answered), "{answer:?}");
    });
}

/// What the tenant may use, and holds.
fn query(system: &System, at: usize) -> (v1::TenantLimits, u64) {
    runtime().block_on(async {
        let mut tenants = TenantsClient::new(system.channel_as("metrics", at));
        let request = v1::TenantQueryLimitsRequest { tenant: TENANT };
        let answer = tenants.query_limits(request).await.expect("the engines are up").into_inner();
        let used = answer.pools.iter().map(|pool| pool.used_bytes).sum();
        (answer.limits.expect("a tenant with limits"), used)
    })
}

/// Writes pieces of a MiB until it is refused; how many were taken, and why no more.
fn fill(context: &Context, kv: &Kv, first: u64) -> (u64, Error) {
    let piece = vec![7; MIB];
    context.block_on(async {
        for number in first.. {
            if let Err(error) = kv.put(context, &number.to_le_bytes(), &piece, Conditions::NONE).await {
                return (number - first, error);
            }
        }
        unreachable!("pools are finite")
    })
}

#[test]
fn a_tenant_holds_what_it_may_and_no_more_though_engines_are_killed() {
    let mut system = System::start(2, 1);
    for (label, rank) in [("first", 0), ("second", 1)] {
        create_pool(&system, label, rank);
    }
    let limits = v1::TenantLimits { bytes: QUOTA_MIB << 20, ..v1::TenantLimits::default() };
    limit(&system, 1, limits);
    runtime().block_on(async {
        let request = v1::TenantSetLimitsRequest { tenant: TENANT, limits: None };
        let refused = TenantsClient::new(system.channel_as("tls", 1)).set_limits(request).await;
        let status = refused.expect_err("no limits are not all limits lifted");
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    });
    let context = client(&system);
    let [first, second] = ["first", "second"].map(|pool| {
        context.block_on(async {
            let container = create_container(&context, pool, "box").await;
            let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
            Kv::open(&container, oid).expect("a class without redundancy")
        })
    });
    let (taken, error) = fill(&context, &first, 0);
    assert!(error.is(Der::NOSPACE) && error.to_string().contains("quota"), "{taken} MiB: {error}");
    assert!((QUOTA_MIB - 2..=QUOTA_MIB).contains(&taken), "{taken} MiB");
    for rank in [0, 1] {
        system.kill(rank);
    }
    for rank in [0, 1] {
        system.spawn(rank);
    }
    system.wait_ready();
    let (known, used) = query(&system, 1);
    assert_eq!(known, limits);
    assert!(used <= limits.bytes, "{used} bytes");
    let (more, error) = fill(&context, &second, 0);
    assert!(error.is(Der::NOSPACE) && more <= 1, "{more} MiB: {error}");
    let larger = v1::TenantLimits { bytes: (QUOTA_MIB + 8) << 20, ..limits };
    limit(&system, 0, larger);
    // Targets that were refused ask again half a second later.
    std::thread::sleep(Duration::from_secs(1));
    let (more, error) = fill(&context, &second, 10);
    assert!(error.is(Der::NOSPACE) && (6..=9).contains(&more), "{more} MiB more of 8: {error}");
    std::thread::sleep(Duration::from_secs(2));
    let (_, used) = query(&system, 0);
    assert!(used <= larger.bytes && used > larger.bytes / 10 * 9, "{used} bytes");
}

#[test]
fn a_tenants_clients_go_no_faster_than_they_may() {
    // Each takes longer than it would on a busy machine.
    const OPERATIONS: u64 = 20;
    let system = System::start(2, 1);
    create_pool(&system, "first", 1);
    limit(&system, 0, v1::TenantLimits { operations_per_second: OPERATIONS, ..v1::TenantLimits::default() });
    let context = client(&system);
    let (done, passed) = context.block_on(async {
        let container = create_container(&context, "first", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        // The target hears of the limit with its first request.
        for _ in 0..OPERATIONS {
            kv.put(&context, b"key", b"value", Conditions::NONE).await.expect("it waits");
        }
        let began = Instant::now();
        for _ in 0..3 * OPERATIONS {
            kv.put(&context, b"key", b"value", Conditions::NONE).await.expect("it waits");
        }
        (3 * OPERATIONS, began.elapsed())
    });
    // Faster it can't be; how much slower is the machine's matter.
    assert!(passed >= Duration::from_millis(2600), "{done} requests in {passed:?}");
    let paced = system.metric(1, "weir_engine_target_paced_total{rank=\"1\",target=\"0\"}");
    assert!(paced.is_some_and(|paced| paced > 0.0), "{paced:?} had to wait");
}
