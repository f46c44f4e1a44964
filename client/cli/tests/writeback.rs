//! What others see of a file that is being written, what is left when a client dies, and what the writer is told: on real
//! mounts of real engines.

mod harness;

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use harness::DevSystem;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// A system for one test: one engine is enough where no engine is lost.
fn system() -> DevSystem {
    DevSystem::start(&["--engines", "1", "--size", "1GiB"])
}

#[test]
fn a_time_that_was_set_covers_every_change_before_it() {
    let system = system();
    let mount = system.mount("home", &[]);
    let time = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let change = |name: &str, change: &dyn Fn(&File)| {
        let file = File::create(mount.path(name)).expect("created");
        change(&file);
        file.set_times(FileTimes::new().set_modified(time)).expect("set");
    };
    change("truncated", &|file| file.set_len(10 << 20).expect("lengthened"));
    change("allocated", &|file| {
        fallocate(file, FallocateFlags::empty(), 0, 3 << 20).expect("there is room");
    });
    change("punched", &|file| {
        file.write_all_at(&[7; 300_000], 0).expect("written");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, 0, 200_000).expect("a hole");
    });
    change("cut", &|file| {
        file.write_all_at(&[7; 300_000], 0).expect("written");
        file.set_len(1000).expect("cut");
    });
    let nameless = File::create(mount.path("nameless")).expect("created");
    nameless.write_all_at(b"text", 0).expect("written");
    nameless.set_times(FileTimes::new().set_modified(time)).expect("set");
    fs::remove_file(mount.path("nameless")).expect("removed");
    nameless.sync_all().expect("synced");
    // Beyond what the kernel remembers.
    std::thread::sleep(Duration::from_millis(1500));
    let script = "truncate -s 20M source; touch -d @1000000000 source; cp -p source copy; \
        tar cSf archive source; mkdir x; tar xSf archive -C x";
    let output = Command::new("sh").arg("-euc").arg(script).current_dir(mount.directory()).output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{}", harness::text(&output));
    let fresh = system.mount("home", &[]);
    for mount in [&mount, &fresh] {
        for name in ["truncated", "allocated", "punched", "cut"] {
            let stat = fs::metadata(mount.path(name)).expect("stat");
            assert_eq!(stat.modified().expect("supported"), time, "{name}");
        }
        for name in ["copy", "x/source"] {
            let modified = fs::metadata(mount.path(name)).expect("stat").modified().expect("supported");
            assert_eq!(modified, UNIX_EPOCH + Duration::from_secs(1_000_000_000), "{name}");
        }
    }
    assert_eq!(nameless.metadata().expect("stat").modified().expect("supported"), time);
}

/// Builds a C program of `tests/programs`.
fn program(system: &DevSystem, name: &str) -> PathBuf {
    let program = system.folder().join(name);
    let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).status();
    assert!(built.expect("cc runs").success());
    program
}

#[test]
fn what_is_lost_is_told_once_by_fsync_or_close() {
    let system = system();
    system.run(&["container", "create", "tank", "small", "--quota", "900MiB"]);
    let mount = system.mount("small", &[]);
    let told = program(&system, "told");
    fs::write(mount.path("filling"), vec![1; 20 << 20]).expect("written");
    File::create(mount.path("f")).expect("created").set_len(300_000).expect("a hole");
    // From now on there is no room, and the mount doesn't know.
    system.run(&["container", "set-quota", "tank", "small", "21000000"]);
    let run = |mode: &str| -> Vec<i32> {
        let output = Command::new(&told).arg(mount.path("f")).arg(mode).output().expect("runs");
        assert!(output.status.success(), "{mode}: {}", harness::text(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        text.split_whitespace().map(|errno| errno.parse().expect("a number")).collect()
    };
    // Engines learn of it one after the other.
    let mut first = Vec::new();
    harness::eventually("the quota is full", Duration::from_mins(1), || {
        first = run("fsync");
        first.iter().any(|errno| *errno != 0)
    });
    let lost = [libc::ENOSPC, libc::EDQUOT].into_iter().find(|errno| first.contains(errno));
    let lost = lost.unwrap_or_else(|| panic!("{first:?}"));
    assert_eq!(run("fsync"), [0, lost, 0, 0]);
    assert_eq!(run("late"), [lost, lost, 0, 0], "the write that fails doesn't swallow it");
    assert_eq!(run("msync"), [lost, lost, 0, 0], "msync is told for itself");
}

#[test]
fn no_file_is_larger_than_an_offset() {
    const LAST: u64 = i64::MAX as u64 - 1;
    let system = system();
    let (mount, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let mut log = OpenOptions::new().append(true).create(true).open(mount.path("f")).expect("created");
    let file = OpenOptions::new().write(true).open(other.path("f")).expect("opened");
    let errno = |result: std::io::Result<()>| result.expect_err("must fail").raw_os_error();
    assert_eq!(fallocate(&file, FallocateFlags::empty(), LAST, 2), Err(Errno::FBIG));
    file.write_all_at(b"x", LAST).expect("the last byte");
    file.sync_all().expect("synced");
    assert_eq!(fs::metadata(other.path("f")).expect("stat").len(), LAST + 1);
    // The kernel here takes the file to be empty still.
    assert_eq!(errno(log.write_all(b"y")), Some(libc::EFBIG));
    file.set_len(3).expect("cut");
    log.write_all(b"y").expect("appended");
    assert_eq!(fs::read(other.path("f")).expect("read"), b"\0\0\0y");
}
