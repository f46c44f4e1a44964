//! `weir store copy` on files.

mod offline;

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use offline::{code, command, folder, json, text, weir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use uuid::Uuid;
use weir_inspect::{CopyEvents, CopyOptions, CopyProgress, Inspector, Loss};
use weir_media::Device;
use weir_media::file::FileDevice;
use weir_proto::object::{AkeyUpdate, Conditions, Extent, Value as Stored};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::real::Executor;
use weir_store::{Data, FormatOptions, Owner, Store, StoreConfig};

const POOL: PoolId = PoolId(Uuid::from_u128(0xaa));
const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(0xcc));
const OBJECT: ObjectId = ObjectId { hi: 13 << 56, lo: 8 };

/// Bytes of each extent of a store.
const EXTENT: usize = 1 << 20;

fn owner() -> Owner {
    Owner { system: "weir".to_owned(), rank: Rank(1), target: TargetIndex(0) }
}

fn pattern(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(EXTENT).collect()
}

/// A file of a target with so many extents, closed.
fn store(folder: &Path, size: u64, extents: u64) -> PathBuf {
    let path = folder.join("target-0.weir");
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let device: Rc<dyn Device> = Rc::new(FileDevice::create(&rt, &path, size).expect("created"));
    executor.block_on(async {
        let options = FormatOptions { owner: owner(), log_bytes: None };
        Store::format(&rt, &device, &options).await.expect("formatted");
        let store = Store::open(&rt, device, &owner(), StoreConfig::default()).await.expect("opened");
        let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("created");
        for number in 0..extents {
            let data = pattern(number);
            let extents = vec![Extent { index: 0, count: data.len() as u64 }];
            let update = [AkeyUpdate {
                akey: Key::new(b"data").expect("a key"),
                value: Stored::Array { record_size: 1, extents },
                conditions: Conditions::NONE,
                checksums: Vec::new(),
            }];
            let (dkey, epoch, data) = (Key::from_u64(number), Epoch(number + 1), Data::Borrowed(&data));
            let stored = shard.update(CONTAINER, OBJECT, &dkey, epoch, Conditions::NONE, &update, data);
            stored.await.expect("stored");
        }
        store.close().await.expect("closed");
    });
    path
}

#[test]
fn a_copy_takes_the_place_of_the_store() {
    let folder = folder();
    let (from, to) = (store(folder.path(), 64 << 20, 8), folder.path().join("new.weir"));
    let before = std::fs::read(&from).expect("read");
    // As a copy leaves it that was killed before its file had a size.
    std::fs::write(&to, "").expect("created");
    let done = weir(&["copy"], &[&from, &to]);
    let page = text(&done.stdout);
    assert_eq!((code(&done), &*text(&done.stderr)), (0, ""), "{page}");
    assert!(
        page.contains("8.0 MiB of data")
            && page.ends_with("whole: all that an open finds was compared and is there\n"),
        "{page}"
    );
    assert!(std::fs::read(&from).expect("read") == before, "it was written to");
    assert_eq!(std::fs::metadata(&to).expect("there").len(), 64 << 20);
    let checked = weir(&["check", "--json"], &[&to]);
    assert_eq!(code(&checked), 0, "{}", text(&checked.stdout));
    let found = &json(&checked)["response"];
    assert_eq!((&found["rank"], &found["log"]["records"]), (&1.into(), &0.into()));
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let device: Rc<dyn Device> = Rc::new(FileDevice::open(&rt, &to).expect("opened"));
    executor.block_on(async {
        let store =
            Store::open(&rt, device, &owner(), StoreConfig::default()).await.expect("an engine opens it");
        assert!(store.pool(POOL).is_some_and(|shard| shard.has_container(CONTAINER)));
        assert_eq!((store.newest_epoch(), store.stats().replayed_records), (Epoch(8), 0));
        store.close().await.expect("closed");
    });
}

#[test]
fn a_larger_file_and_json_may_be_asked_for() {
    let folder = folder();
    let (from, to) = (store(folder.path(), 64 << 20, 1), folder.path().join("new.weir"));
    let done = weir(&["copy", "--size", "80MiB", "--json"], &[&from, &to]);
    let (found, size) = (json(&done), std::fs::metadata(&to).expect("there").len());
    assert_eq!((code(&done), size), (0, 80 << 20), "{found}");
    let copied = &found["response"]["copied"];
    assert_eq!((&copied["whole"], &copied["data_bytes"]), (&true.into(), &(1 << 20).into()), "{found}");
    assert_eq!((&found["response"]["lines"], &found["error"]), (&Value::Array(Vec::new()), &Value::Null));
    let wrong = weir(&["copy", "--size", "90MiB", "--restart"], &[&from, &to]);
    assert!(code(&wrong) == 2 && text(&wrong.stderr).contains("is there already"), "{}", text(&wrong.stderr));
}

#[test]
fn what_is_lost_is_told_and_said_by_the_exit_code() {
    let folder = folder();
    let (from, to) = (store(folder.path(), 64 << 20, 3), folder.path().join("new.weir"));
    let bytes = std::fs::read(&from).expect("read");
    let wanted = &pattern(2)[..64];
    let at = bytes.chunks(4096).position(|block| block.starts_with(wanted)).expect("the data");
    let file = std::fs::OpenOptions::new().write(true).open(&from).expect("the file");
    file.write_all_at(&[0xff], at as u64 * 4096 + 5).expect("written");
    let done = weir(&["copy", "--json"], &[&from, &to]);
    let found = json(&done);
    assert_eq!((code(&done), &found["status"]), (9, &(-2021).into()), "{found}");
    let [line] = &found["response"]["lines"].as_array().expect("lines")[..] else { panic!("{found}") };
    assert_eq!(
        (&line["kind"], &line["offset"], &line["epoch"]),
        (&"data".into(), &(at * 4096).into(), &3.into())
    );
    assert_eq!(found["response"]["copied"]["damaged_places"], 1);
    let checked = weir(&["check"], &[&to]);
    assert_eq!(code(&checked), 9, "{}", text(&checked.stdout));
    let again = folder.path().join("again.weir");
    let done = weir(&["copy"], &[&from, &again]);
    let (page, said) = (text(&done.stdout), text(&done.stderr));
    assert!(code(&done) == 9 && page.starts_with("damaged: data at byte "), "{page}");
    assert!(
        page.contains("reads of it fail, as before") && said.contains("in 1 places. Restore"),
        "{page}{said}"
    );
}

#[test]
fn what_can_not_be_copied_to_is_left_as_it_is() {
    let folder = folder();
    let from = store(folder.path(), 64 << 20, 1);
    let (link, hard) = (folder.path().join("link"), folder.path().join("hard"));
    std::os::unix::fs::symlink(&from, &link).expect("linked");
    std::fs::hard_link(&from, &hard).expect("linked");
    for to in [&from, &link, &hard] {
        let refused = weir(&["copy", "--restart"], &[&from, to]);
        assert!(
            code(&refused) == 2 && text(&refused.stderr).contains("are the same"),
            "{}",
            text(&refused.stderr)
        );
    }
    let other = folder.path().join("other.weir");
    std::fs::copy(&from, &other).expect("copied");
    let refused = weir(&["copy", "--restart"], &[&from, &other]);
    assert!(
        code(&refused) == 1 && text(&refused.stderr).contains("a Weir store"),
        "{}",
        text(&refused.stderr)
    );
    let small = folder.path().join("small.weir");
    let refused = weir(&["copy", "--size", "32MiB"], &[&from, &small]);
    assert!(code(&refused) == 7 && text(&refused.stderr).contains("too small"), "{}", text(&refused.stderr));
    assert!(!small.exists());
    let missing = weir(&["copy"], &[&folder.path().join("none"), &small]);
    assert_eq!(code(&missing), 3, "{}", text(&missing.stderr));
    let executor = Executor::new().expect("an executor");
    let engine = FileDevice::open(&executor.handle(), &from).expect("as an engine has it");
    let busy = weir(&["copy"], &[&from, &small]);
    assert!(code(&busy) == 8 && !small.exists(), "{}", text(&busy.stderr));
    drop(engine);
}

/// Gives a copy up as soon as something of it is there.
struct GivesUp;

impl CopyEvents for GivesUp {
    fn progress(&mut self, progress: &CopyProgress) -> ControlFlow<()> {
        if progress.bytes > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn loss(&mut self, _: Loss) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

#[test]
fn a_copy_that_was_not_finished_is_begun_again_only_when_that_is_said() {
    let folder = folder();
    let (from, to) = (store(folder.path(), 64 << 20, 12), folder.path().join("new.weir"));
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let source: Rc<dyn Device> = Rc::new(FileDevice::open_read_only(&rt, &from).expect("opened"));
    let device: Rc<dyn Device> = Rc::new(FileDevice::create(&rt, &to, 64 << 20).expect("created"));
    executor.block_on(async {
        let inspector = Inspector::open(source).await.expect("a store");
        let survey = inspector.survey(&mut GivesUp).await.expect("looked at");
        let options = CopyOptions { restart: false, config: StoreConfig::default() };
        inspector.copy(&rt, &survey, &device, &options, &mut GivesUp).await.expect_err("given up");
    });
    drop((device, executor));
    let checked = weir(&["check"], &[&to]);
    assert!(
        code(&checked) == 3 && text(&checked.stderr).contains("not finished"),
        "{}",
        text(&checked.stderr)
    );
    let refused = weir(&["copy"], &[&from, &to]);
    assert!(code(&refused) == 8 && text(&refused.stderr).contains("--restart"), "{}", text(&refused.stderr));
    assert_eq!(code(&weir(&["copy", "--restart"], &[&from, &to])), 0);
    assert_eq!(code(&weir(&["check"], &[&to])), 0);
}

#[test]
fn an_interrupted_copy_ends_and_says_how_to_begin_it_again() {
    let folder = folder();
    let (from, to) = (store(folder.path(), 256 << 20, 150), folder.path().join("new.weir"));
    let mut copying = command(&["copy"], &[&from, &to]);
    let copying = copying.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
    let until = Instant::now() + Duration::from_mins(1);
    // It is created once the signal is waited for.
    while !to.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let process = Pid::from_raw(copying.id().try_into().expect("a number")).expect("a process");
    kill_process(process, Signal::INT).expect("it runs");
    let ended = copying.wait_with_output().expect("ends");
    assert!(
        code(&ended) == 1 && text(&ended.stderr).contains("it was interrupted; repeat it with --restart"),
        "{ended:?}"
    );
    assert_eq!(code(&weir(&["copy", "--restart"], &[&from, &to])), 0);
}
