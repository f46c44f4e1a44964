//! What holders of certificates may ask of engines, by the role in their certificates.

use tonic::{Code, Response, Status};
use weir_management::v1::containers_client::ContainersClient;
use weir_management::v1::pools_client::PoolsClient;
use weir_management::v1::system_client::SystemClient;
use weir_management::v1::tenants_client::TenantsClient;
use weir_management::{failure_of, v1};

use crate::system::{System, TENANT};

const POOL_BYTES: u64 = 64 << 20;

fn pool(label: &str, tenant: u64) -> v1::PoolCreateRequest {
    v1::PoolCreateRequest {
        label: label.to_owned(),
        size_bytes: POOL_BYTES,
        tenant,
        ..v1::PoolCreateRequest::default()
    }
}

fn container(pool: &str, label: &str) -> v1::ContainerCreateRequest {
    let (pool, label) = (pool.to_owned(), label.to_owned());
    let r#type = v1::ContainerType::Object.into();
    v1::ContainerCreateRequest { pool, label, r#type, ..v1::ContainerCreateRequest::default() }
}

fn refused<T: core::fmt::Debug>(answer: Result<Response<T>, Status>, role: &str, call: &str) {
    let status = answer.expect_err("it is not for this role");
    let failure = failure_of(&status);
    assert_eq!(status.code(), Code::PermissionDenied, "{failure}");
    assert!(failure.message.contains(role) && failure.message.contains(call), "{failure}");
}

#[test]
fn a_role_may_make_its_calls_and_no_others() {
    let system = System::start(2, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        system.pools(0).create(pool("own", TENANT.0)).await.expect("the operator makes pools");
        system.pools(1).create(pool("other", TENANT.0 + 1)).await.expect("room");
        provision(&system).await;
        read_as_tenant(&system).await;
        let nobody = system.channel_as("nobody", 0);
        refused(SystemClient::new(nobody).attach(v1::AttachRequest {}).await, "no role", "System/Attach");
    });
    let counted = system.metric(
        0,
        "weir_engine_management_requests_total{rank=\"0\",method=\"Pools/Destroy\",code=\"PermissionDenied\"}",
    );
    assert_eq!(counted, Some(1.0));
    let log = system.log(0);
    let is_audited = |words: &[&str]| {
        let mut lines = log.lines().filter(|line| line.contains("weir_audit"));
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    for words in [
        ["who=\"tls\"", "role=\"operator\"", "call=\"Pools/Create\"", "object=\"own\"", "result=\"OK\""],
        [
            "who=\"provisioner\"",
            "role=\"provisioner\"",
            "call=\"Pools/Destroy\"",
            "object=\"own\"",
            "result=\"PermissionDenied\"",
        ],
        [
            "who=\"nobody\"",
            "role=\"none\"",
            "call=\"System/Attach\"",
            "from=\"127.0.0.1:",
            "PermissionDenied",
        ],
    ] {
        assert!(is_audited(&words), "{words:?} is not in\n{log}");
    }
}

async fn provision(system: &System) {
    let channel = system.channel_as("provisioner", 0);
    let mut containers = ContainersClient::new(channel.clone());
    for of in ["own", "other"] {
        containers.create(container(of, "box")).await.expect("a provisioner makes containers");
    }
    let destroy = v1::PoolDestroyRequest { pool: "own".to_owned(), force: true };
    let mut pools = PoolsClient::new(channel);
    refused(pools.create(pool("third", 0)).await, "provisioner", "Pools/Create");
    refused(pools.destroy(destroy).await, "provisioner", "Pools/Destroy");

    let channel = system.channel_as("metrics", 1);
    SystemClient::new(channel.clone()).query(v1::SystemQueryRequest {}).await.expect("figures");
    let mut tenants = TenantsClient::new(channel.clone());
    let tenant = TENANT.0;
    tenants.query_limits(v1::TenantQueryLimitsRequest { tenant }).await.expect("figures");
    let limits = v1::TenantSetLimitsRequest { tenant, limits: None };
    refused(tenants.set_limits(limits).await, "metrics", "Tenants/SetLimits");
    refused(
        ContainersClient::new(channel).create(container("own", "c")).await,
        "metrics",
        "Containers/Create",
    );
}

/// Of two tenants' pools, the reader of one sees that tenant's, at whichever engine.
async fn read_as_tenant(system: &System) {
    for rank in 0..2 {
        let channel = system.channel_as("tenant-reader", rank);
        let (mut pools, mut containers) =
            (PoolsClient::new(channel.clone()), ContainersClient::new(channel.clone()));
        let listed = pools.list(v1::PoolListRequest {}).await.expect("a list").into_inner().pools;
        assert_eq!(listed.iter().map(|pool| pool.label.as_str()).collect::<Vec<_>>(), ["own"]);
        let list = |pool: &str| v1::ContainerListRequest { pool: pool.to_owned() };
        let found = containers.list(list("own")).await.expect("its own").into_inner().containers;
        assert_eq!(found.len(), 1);
        // What is somebody else's and what is not there can't be told apart.
        for foreign in ["other", "nowhere"] {
            let query = v1::PoolQueryRequest { pool: foreign.to_owned() };
            refused(pools.query(query).await, "tenant-reader of tenant 7", "Pools/Query");
            refused(containers.list(list(foreign)).await, "tenant-reader of tenant 7", "Containers/List");
            let query = v1::ContainerQueryRequest { pool: foreign.to_owned(), container: "box".to_owned() };
            refused(containers.query(query).await, "tenant-reader of tenant 7", "Containers/Query");
        }
        refused(containers.create(container("own", "c")).await, "tenant-reader", "Containers/Create");
        refused(
            SystemClient::new(channel).query(v1::SystemQueryRequest {}).await,
            "tenant-reader",
            "System/Query",
        );
    }
}
