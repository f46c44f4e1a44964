//! A device that fails under a running engine.

use std::fs;
use std::time::{Duration, Instant};

use weir_client::{Conditions, Kv, Pool, Rights, kind};
use weir_management::v1;

use crate::kill::{create_container, create_pool};
use crate::system::System;

/// Longest time until a fault is in the pool map: two looks at the device.
const NOTICED: Duration = Duration::from_secs(30);

/// Values of 128 KiB, which lie in extents and are read from the device.
const VALUES: u64 = 48;

pub fn pool_info(system: &System) -> v1::PoolInfo {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let request = v1::PoolQueryRequest { pool: "tank".to_owned() };
    let reply = runtime.block_on(async { system.pools(0).query(request).await });
    reply.expect("the engine answers").into_inner().pool.expect("an answer")
}

/// Waits until so many targets are out of service.
fn wait_for_down(system: &System, count: usize) -> v1::PoolInfo {
    let until = Instant::now() + NOTICED;
    loop {
        let info = pool_info(system);
        if info.down_targets.len() == count {
            return info;
        }
        assert!(Instant::now() < until, "{info:?}: {}", system.log(0));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn restart(system: &mut System) {
    system.terminate(0);
    system.spawn(0);
    system.wait_ready();
}

/// Says that the device of target 2 is good.
fn clear(system: &System) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cleared = runtime.block_on(async {
        let request = v1::ClearDeviceRequest { rank: 0, target: 2 };
        system.system(0).clear_device(request).await.expect("the engine answers").into_inner()
    });
    assert!(cleared.was_faulty);
}

#[test]
fn a_device_that_fails_is_out_of_the_pool_map_until_it_is_cleared() {
    let mut system = System::start(1, 3);
    create_pool(&system, "tank", 3 * 64);
    let context = system.context(Duration::from_secs(20));
    let (container, kv) = context.block_on(async {
        let container = create_container(&context, "tank", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for key in 0..VALUES {
            let done = kv.put(&context, &key.to_le_bytes(), &vec![7; 128 << 10], Conditions::NONE).await;
            done.expect("all is well");
        }
        (container, kv)
    });
    // The end of the file is gone: whatever was there can't be read any more.
    let path = system.engines[0].data.join("target-2.weir");
    let aside = path.with_extension("aside");
    fs::copy(&path, &aside).expect("room for a copy");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(1 << 20).expect("it can be cut");
    let errors: Vec<String> = context.block_on(async {
        let mut errors = Vec::new();
        for key in 0..VALUES {
            if let Err(error) = kv.get(&context, &key.to_le_bytes()).await {
                errors.push(error.to_string());
            }
        }
        errors
    });
    assert!(!errors.is_empty(), "what is gone can be read");
    let info = wait_for_down(&system, 1);
    assert_eq!((info.down_targets[0].rank, info.down_targets[0].target), (0, 2));
    assert_eq!((info.state(), info.map_version), (v1::PoolState::Degraded, 2));
    assert_eq!(system.metric(0, "weir_pool_down_targets{"), Some(1.0));
    // New objects are laid out on others.
    context.block_on(async {
        // Whoever connects gets the present map.
        Pool::connect(&context, "tank", Rights::READ).await.expect("its service is up");
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for key in 0..VALUES {
            let put = kv.put(&context, &key.to_le_bytes(), b"new", Conditions::NONE).await;
            put.unwrap_or_else(|error| panic!("{error}"));
        }
    });
    // A restart on what is left of the file changes nothing, and doesn't keep the engine from serving.
    restart(&mut system);
    assert_eq!(wait_for_down(&system, 1).map_version, 2);
    system.terminate(0);
    fs::rename(&aside, &path).expect("the repaired device");
    system.spawn(0);
    system.wait_ready();
    assert_eq!(wait_for_down(&system, 1).map_version, 2, "nobody has said that it was repaired");
    clear(&system);
    restart(&mut system);
    let info = wait_for_down(&system, 0);
    assert_eq!((info.state(), info.map_version), (v1::PoolState::Ready, 3));
    context.block_on(async {
        for key in 0..VALUES {
            let found = kv.get(&context, &key.to_le_bytes()).await.expect("it is back");
            assert_eq!(found.map(|value| value.len()), Some(128 << 10));
        }
    });
}
