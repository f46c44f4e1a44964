//! Targets whose data is gone, damaged or another's: they are lost and say so, and everything else serves.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_client::{Conditions, Context, Der, Kv, ObjectClass, kind};
use weir_management::v1;

use crate::devices::pool_info;
use crate::kill::{create_container, create_pool};
use crate::system::System;

/// Keys, enough that each target has some.
const KEYS: u64 = 64;

/// Longest time until pool service and status say it.
const NOTICED: Duration = Duration::from_secs(30);

/// A running system with values on all targets of its pool.
fn fill(engines: u32, targets: u16) -> (System, Context, Kv) {
    let system = System::start(engines, targets);
    create_pool(&system, "tank", u64::from(engines) * u64::from(targets) * 64);
    let context = system.context(Duration::from_secs(20));
    let kv = context.block_on(async {
        let container = create_container(&context, "tank", "box").await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, Some(ObjectClass::SX)).await;
        let kv = Kv::open(&container, oid.expect("an id")).expect("a class without redundancy");
        for key in 0..KEYS {
            kv.put(&context, &key.to_le_bytes(), &[7; 100], Conditions::NONE).await.expect("all is well");
        }
        kv
    });
    (system, context, kv)
}

/// How many keys are there, and why others can't be read; none is simply absent.
fn read(context: &Context, kv: &Kv) -> (u64, Vec<weir_client::Error>) {
    context.block_on(async {
        let (mut found, mut errors) = (0, Vec::new());
        for key in 0..KEYS {
            match kv.get(context, &key.to_le_bytes()).await {
                Ok(value) => {
                    assert_eq!(value.as_deref(), Some([7; 100].as_slice()), "key {key} is absent or wrong");
                    found += 1;
                }
                Err(error) => errors.push(error),
            }
        }
        (found, errors)
    })
}

/// What a system says of an engine.
pub fn message(system: &System, rank: u32) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reply = runtime.block_on(async { system.system(0).query(v1::SystemQueryRequest {}).await });
    let engines = reply.expect("the engine answers").into_inner().engines;
    engines.into_iter().find(|engine| engine.rank == rank).expect("every engine is listed").message
}

fn start(system: &mut System, rank: usize) {
    system.spawn(rank);
    system.wait_ready();
}

fn give_up(system: &System, rank: u32, target: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cleared = runtime.block_on(async {
        let request = v1::ClearDeviceRequest { rank, target };
        system.system(0).clear_device(request).await.expect("the engine answers").into_inner()
    });
    assert!(cleared.was_faulty);
}

fn wait_for_down(system: &System, down: &[(u32, u32)]) {
    let until = Instant::now() + NOTICED;
    loop {
        let info = pool_info(system);
        let named: Vec<_> = info.down_targets.iter().map(|target| (target.rank, target.target)).collect();
        if named == down {
            return;
        }
        assert!(Instant::now() < until, "{info:?}: {}", system.log(0));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that a target of an engine is lost, and that all others serve.
fn check_lost(system: &System, (context, kv): (&Context, &Kv), target: u32, words: &str) {
    wait_for_down(system, &[(0, target)]);
    let (found, errors) = read(context, kv);
    assert!(found > 0 && !errors.is_empty(), "{found} keys are found");
    for error in errors {
        assert!(error.is(Der::NVME_IO), "{error}");
    }
    let said = message(system, 0);
    assert!(said.contains(&format!("target {target}: lost: ")) && said.contains(words), "{said}");
    let series = format!("weir_engine_target_lost{{rank=\"0\",target=\"{target}\"");
    assert_eq!(system.metric(0, &series), Some(1.0), "{}", system.get(0, "/metrics"));
    assert!(system.log(0).contains("the target is lost"), "{}", system.log(0));
}

fn check_whole(system: &System, context: &Context, kv: &Kv) {
    wait_for_down(system, &[]);
    let (found, errors) = read(context, kv);
    assert_eq!((found, errors.len()), (KEYS, 0), "{errors:?}");
    assert_eq!(message(system, 0), "");
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("the file");
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).expect("written");
}

#[test]
fn a_target_whose_file_is_missing_older_or_damaged_is_lost_and_the_others_serve() {
    let (mut system, context, kv) = fill(1, 3);
    let path = system.engines[0].data.join("target-2.weir");
    let (aside, older) = (path.with_extension("aside"), path.with_extension("older"));
    let aside = system.folder.path().join(aside.file_name().expect("a name"));
    let older = system.folder.path().join(older.file_name().expect("a name"));
    assert!(system.terminate(0).success());
    fs::copy(&path, &older).expect("room for a copy");
    start(&mut system, 0);
    check_whole(&system, &context, &kv);
    assert!(system.terminate(0).success());
    // Missing.
    fs::rename(&path, &aside).expect("moved away");
    start(&mut system, 0);
    check_lost(&system, (&context, &kv), 2, "target-2.weir");
    assert!(system.terminate(0).success());
    assert!(!path.exists(), "no empty one is put in its place");
    // An older state.
    fs::rename(&older, &path).expect("restored from long ago");
    start(&mut system, 0);
    check_lost(&system, (&context, &kv), 2, "older state");
    assert!(system.terminate(0).success());
    // Damaged.
    fs::copy(&aside, &path).expect("room for a copy");
    overwrite(&path, 0, &vec![0x5a; 64 << 10]);
    start(&mut system, 0);
    check_lost(&system, (&context, &kv), 2, "was overwritten");
    assert!(system.terminate(0).success());
    // Blank.
    let file = fs::File::create(&path).expect("a file");
    file.set_len(192 << 20).expect("a sparse file");
    start(&mut system, 0);
    check_lost(&system, (&context, &kv), 2, "its superblocks are zero");
    assert!(system.terminate(0).success());
    // The right one.
    fs::rename(&aside, &path).expect("moved back");
    start(&mut system, 0);
    check_whole(&system, &context, &kv);
    // Given up, it comes up empty; to the pool it stays lost.
    assert!(system.terminate(0).success());
    fs::remove_file(&path).expect("it is not needed");
    start(&mut system, 0);
    wait_for_down(&system, &[(0, 2)]);
    give_up(&system, 0, 2);
    assert!(system.terminate(0).success());
    start(&mut system, 0);
    assert_eq!(message(&system, 0), "", "{}", system.log(0));
    wait_for_down(&system, &[(0, 2)]);
    assert!(read(&context, &kv).1.iter().all(|error| error.is(Der::NVME_IO)));
    create_pool(&system, "other", 3 * 32);
}

#[test]
fn an_only_target_whose_file_is_moved_away_is_lost_and_makes_no_empty_pool() {
    let (mut system, context, kv) = fill(1, 1);
    let path = system.engines[0].data.join("target-0.weir");
    let aside = system.folder.path().join("aside");
    assert!(system.terminate(0).success());
    fs::rename(&path, &aside).expect("moved away");
    start(&mut system, 0);
    let (found, errors) = read(&context, &kv);
    assert_eq!((found, errors.len() as u64), (0, KEYS));
    for error in errors {
        assert!(error.is(Der::NVME_IO) && error.to_string().contains("is lost"), "{error}");
    }
    assert!(message(&system, 0).contains("lost: "), "{}", message(&system, 0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let refused = runtime.block_on(async {
        let create =
            v1::PoolCreateRequest { label: "new".to_owned(), size_bytes: 64 << 20, ..Default::default() };
        let created = system.pools(0).create(create).await.map(drop);
        let listed = system.pools(0).list(v1::PoolListRequest {}).await.map(drop);
        let request = v1::PoolQueryRequest { pool: "tank".to_owned() };
        [created, listed, system.pools(0).query(request).await.map(drop)]
    });
    for refused in refused {
        let said = refused.expect_err("nothing is known of pools").message().to_owned();
        assert!(said.contains("target 0 of rank 0 is lost"), "{said}");
    }
    assert!(system.terminate(0).success() && !path.exists());
    fs::rename(&aside, &path).expect("moved back");
    start(&mut system, 0);
    check_whole(&system, &context, &kv);
}

#[test]
fn an_engine_whose_data_directory_is_lost_is_missed_by_the_pools_that_count_on_it() {
    let (mut system, context, kv) = fill(3, 1);
    wait_for_down(&system, &[]);
    let service = usize::try_from(pool_info(&system).service_ranks[0]).expect("small");
    // Neither the one with the service nor the one with the list of pools.
    let other = if service == 1 { 2 } else { 1 };
    assert!(system.terminate(other).success());
    fs::remove_dir_all(&system.engines[other].data).expect("it is ours");
    start(&mut system, other);
    let (found, errors) = read(&context, &kv);
    assert!(found > 0 && !errors.is_empty(), "{found} keys are found");
    for error in errors {
        assert!(error.is(Der::NVME_IO), "{error}");
    }
    wait_for_down(&system, &[(u32::try_from(other).expect("small"), 0)]);
    let log = system.log(service);
    assert!(log.contains("it has nothing of the pool, its data is lost"), "{log}");
}
