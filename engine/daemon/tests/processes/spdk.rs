//! An engine on SPDK's device in memory, on SPDK as it is installed. Without huge pages, so that any machine will do.

use std::fs;
use std::time::Duration;

use weir_client::{Conditions, Kv, kind};

use crate::kill::{create_container, create_pool};
use crate::lost::message;
use crate::system::System;

/// A device of 256 MiB, and few of SPDK's own buffers.
const SPDK: &str = r#"{"subsystems": [
  {"subsystem": "iobuf", "config": [{"method": "iobuf_set_options", "params": {
    "small_pool_count": 1024, "large_pool_count": 64, "small_bufsize": 8192, "large_bufsize": 135168}}]},
  {"subsystem": "bdev", "config": [
    {"method": "bdev_set_options", "params": {"bdev_io_pool_size": 1024, "bdev_io_cache_size": 64,
      "bdev_auto_examine": false}},
    {"method": "bdev_malloc_create", "params": {"name": "Malloc0", "num_blocks": 524288, "block_size": 512}},
    {"method": "bdev_wait_for_examine"}]}]}"#;

/// A system of one engine on that device.
fn prepare(device: &str, more: &str) -> System {
    let system = System::prepare(1, 1);
    let engine = &system.engines[0];
    let path = system.folder.path().join("spdk.json");
    fs::write(&path, SPDK).expect("written");
    let text = fs::read_to_string(&engine.config).expect("the configuration");
    let keys = format!(
        "devices = [\"{device}\"]\nspdk_config = \"{}\"\nspdk_memory = \"640MiB\"\n{more}\n[tls]",
        path.display()
    );
    fs::write(&engine.config, text.replacen("[tls]", &keys, 1)).expect("written");
    system
}

#[test]
fn an_engine_serves_a_pool_on_a_device_of_spdk() {
    let mut system = prepare("spdk:Malloc0", "spdk_huge_pages = false");
    system.spawn(0);
    system.wait_ready();
    create_pool(&system, "tank", 128);
    let context = system.context(Duration::from_secs(30));
    let value = |number: u64| {
        let len = usize::try_from(number * 3001 + 1).expect("small");
        number.to_le_bytes().into_iter().cycle().take(len).collect::<Vec<u8>>()
    };
    context.block_on(async {
        let container = create_container(&context, "tank", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for number in 0..100_u64 {
            kv.put(&context, &number.to_le_bytes(), &value(number), Conditions::NONE).await.expect("room");
        }
        for number in 0..100_u64 {
            let found = kv.get(&context, &number.to_le_bytes()).await.expect("the engine serves");
            assert_eq!(found, Some(value(number)), "number {number}");
        }
    });
    assert!(system.log(0).contains("device=\"spdk:Malloc0\""), "{}", system.log(0));
    let status = system.terminate(0);
    assert_eq!(status.code(), Some(0), "{}", system.log(0));
    // Memory is empty after a restart, and an empty target is not put in the place of one that held data.
    system.spawn(0);
    system.wait_ready();
    let said = message(&system, 0);
    assert!(said.contains("lost: ") && said.contains("spdk:Malloc0 holds no store"), "{said}");
}

#[test]
fn a_device_or_memory_that_spdk_has_not_is_named() {
    for (device, more, words) in [
        ("spdk:Malloc7", "spdk_huge_pages = false", "no device of this name"),
        ("spdk:Malloc0", "spdk_memory_of = 1", "unknown field `spdk_memory_of`"),
    ] {
        let mut system = prepare(device, more);
        let (code, said) = system.run_to_end(0);
        assert_ne!(code, Some(0));
        assert!(said.contains(words), "{said}");
    }
}
