//! Tenants on a network that can't keep them apart: engines and clients are configured for virtual networks all the same,
//! say that there are none, and authentication does it.

use std::fs;
use std::time::Duration;

use weir_client::{Attach, Context, ContextOptions, Der, Pool, Rights};
use weir_fabric::AuthKey;
use weir_management::v1;
use weir_proto::TenantId;

use crate::system::{KEY, System};

fn create_pool(system: &System, label: &str, tenant: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let label = label.to_owned();
    let request = v1::PoolCreateRequest { label, tenant, size_bytes: 64 << 20, ..Default::default() };
    runtime.block_on(async { system.pools(0).create(request).await }).expect("room for a pool");
}

fn client(system: &System, tenant: u64, vni: u16) -> Context {
    let auth_key = Some(AuthKey { service: 1, vni });
    let attach = Attach { key: KEY.tenant(TenantId(tenant)), auth_key, ..system.attach() };
    let options = ContextOptions { deadline: Duration::from_secs(20), uid: 1000, gid: 1000, node: None };
    Context::real_with(&attach, options).expect("a client without virtual networks")
}

#[test]
fn a_tenant_can_not_connect_to_anothers_pool_where_the_network_has_no_auth_keys() {
    let mut system = System::prepare(1, 1);
    let config = &system.engines[0].config;
    let text = fs::read_to_string(config).expect("written before");
    fs::write(config, format!("fabric_auth_key = \"1:100:103\"\n{text}")).expect("the configuration");
    system.spawn(0);
    system.wait_ready();
    assert!(system.log(0).contains("authentication codes keep tenants apart"), "{}", system.log(0));
    create_pool(&system, "first", 1);
    create_pool(&system, "second", 2);
    // A network that no engine is configured for makes no difference here.
    for (tenant, vni, own, other) in [(1, 100, "first", "second"), (2, 99, "second", "first")] {
        let context = client(&system, tenant, vni);
        context.block_on(async {
            Pool::connect(&context, own, Rights::READ).await.expect("its own pool");
            let error = Pool::connect(&context, other, Rights::READ).await.expect_err("another tenant's");
            assert_eq!(error.der(), Der::NO_PERM, "{error}");
        });
    }
}
