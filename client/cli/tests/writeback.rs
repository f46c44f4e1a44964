//! What others see of a file that is being written, what is left when a client dies, and what the writer is told: on real
//! mounts of real engines.

mod harness;

use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use harness::DevSystem;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

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
        file.write_all_at(&vec![7; 300_000], 0).expect("written");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, 0, 200_000).expect("a hole");
    });
    change("cut", &|file| {
        file.write_all_at(&vec![7; 300_000], 0).expect("written");
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

/// The processes of engines. Asked for before one is stopped, since that takes an answer of each.
fn engines(system: &DevSystem, count: u64) -> Vec<Pid> {
    let pids = (0..count).map(|rank| i32::try_from(system.engine_pid(rank)).expect("small"));
    pids.map(|pid| Pid::from_raw(pid).expect("a process")).collect()
}

/// Stops an engine and lets it go on, again and again, until this is dropped.
struct Stutter {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stutter {
    fn of(system: &DevSystem, ranks: u64) -> Self {
        let pids = engines(system, ranks);
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            for pid in pids.iter().cycle() {
                if seen.load(Ordering::Relaxed) {
                    return;
                }
                kill_process(*pid, Signal::STOP).expect("stopped");
                std::thread::sleep(Duration::from_millis(400));
                kill_process(*pid, Signal::CONT).expect("continued");
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Stutter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The byte at an offset of a stream: never 0.
fn streamed(offset: u64) -> u8 {
    u8::try_from(offset / 1000 % 251 + 1).expect("small")
}

/// Writes the next part of a stream.
fn stream(file: &mut File, at: &mut u64) {
    let part: Vec<u8> = (*at..*at + 300_000).map(streamed).collect();
    file.write_all(&part).expect("written");
    *at += part.len() as u64;
}

/// Finds something else than the stream in what another mount shows of it.
fn look(path: &Path) -> (u64, Option<u64>) {
    let Ok(file) = File::open(path) else { return (0, None) };
    let size = file.metadata().expect("stat").len();
    let from = size.saturating_sub(6 << 20);
    let mut seen = vec![0; usize::try_from(size - from).expect("small")];
    file.read_exact_at(&mut seen, from).expect("no shorter than it was");
    (size, (from..).zip(&seen).find(|(at, byte)| **byte != streamed(*at)).map(|(at, _)| at))
}

#[test]
fn another_client_sees_a_stream_without_holes_while_engines_stop_and_go_on() {
    const LOOKS: usize = 40;
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    let (mount, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let ended = AtomicBool::new(false);
    let (mut sizes, mut holes) = (BTreeSet::new(), Vec::new());
    std::thread::scope(|scope| {
        let stutter = Stutter::of(&system, 2);
        let (mount, ended) = (&mount, &ended);
        scope.spawn(move || {
            let (mut file, mut at) = (File::create(mount.path("log")).expect("created"), 0);
            while !ended.load(Ordering::Relaxed) && at < 200 << 20 {
                stream(&mut file, &mut at);
            }
            ended.store(true, Ordering::Relaxed);
        });
        while sizes.len() < LOOKS && !ended.load(Ordering::Relaxed) {
            let (size, hole) = look(&other.path("log"));
            sizes.insert(size);
            holes.extend(hole.map(|at| (at, size)));
        }
        ended.store(true, Ordering::Relaxed);
        drop(stutter);
    });
    assert!(holes.is_empty(), "{} holes in {} looks: {holes:?}", holes.len(), sizes.len());
    assert!(sizes.len() > LOOKS / 10, "it was seen to grow {} times only", sizes.len());
}

#[test]
fn a_mount_that_is_killed_leaves_the_beginning_of_a_stream() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    let engines = engines(&system, 2);
    for round in 0..4 {
        let name = format!("log{round}");
        let mount = system.mount("home", &[]);
        let (mut file, mut at) = (File::create(mount.path(&name)).expect("created"), 0);
        let stopped = engines[round % 2];
        while at < 20 << 20 {
            stream(&mut file, &mut at);
        }
        file.sync_data().expect("synced");
        kill_process(stopped, Signal::STOP).expect("stopped");
        // What the mount takes while pieces for the engine wait.
        for _ in 0..30 {
            stream(&mut file, &mut at);
        }
        std::thread::sleep(Duration::from_millis(300));
        kill_process(mount_pid(&system, mount.directory()), Signal::KILL).expect("killed");
        kill_process(stopped, Signal::CONT).expect("continued");
        drop(file);
        drop(mount);
        let fresh = system.mount("home", &[]);
        let content = fs::read(fresh.path(&name)).expect("read");
        assert!(content.len() as u64 <= at);
        let other = (0..).zip(&content).find(|(at, byte)| **byte != streamed(*at));
        assert_eq!(other, None, "round {round}, of {} bytes", content.len());
        assert!(content.len() > 1 << 20, "some of it has arrived");
    }
}

/// The process that serves a mount.
fn mount_pid(system: &DevSystem, directory: &Path) -> Pid {
    let directory = directory.to_str().expect("plain");
    let processes = fs::read_dir("/proc").expect("listed").flatten();
    let serves = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("weir") && line.contains(directory)
    };
    let names = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let pid = names.into_iter().find(serves).unwrap_or_else(|| panic!("{}", system.logs()));
    Pid::from_raw(pid).expect("a process")
}

#[test]
fn files_on_live_engines_go_on_while_an_engine_is_away() {
    const FILES: usize = 24;
    const PIECES: u64 = 20;
    let system = DevSystem::start(&["--engines", "3", "--size", "1GiB"]);
    let engine = engines(&system, 3)[1];
    system.run(&["container", "create", "tank", "single", "--oclass", "S1", "--chunk-size", "1MiB"]);
    let mount = system.mount("single", &["--engine-wait", "300", "--threads", "32"]);
    let files: Vec<File> =
        (0..FILES).map(|number| File::create(mount.path(&number.to_string())).expect("created")).collect();
    for file in &files {
        file.write_all_at(b"begun", 0).expect("written");
        file.sync_all().expect("synced");
    }
    kill_process(engine, Signal::STOP).expect("stopped");
    // One writer for each file: those whose engine is away wait, the others end.
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for file in &files {
            let ended = &ended;
            scope.spawn(move || {
                for piece in 0..PIECES {
                    file.write_all_at(&vec![7; 1 << 20], piece << 20).expect("written, sooner or later");
                }
                file.sync_all().expect("synced, sooner or later");
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        // About two thirds of them can; none of the others.
        let begun = Instant::now();
        while ended.load(Ordering::Relaxed) < FILES / 4 && begun.elapsed() < Duration::from_mins(2) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let count = ended.load(Ordering::Relaxed);
        kill_process(engine, Signal::CONT).expect("continued");
        assert!(count >= FILES / 4, "{count} of {FILES} writers have ended while an engine was away");
        assert!(count < FILES, "the engine was not away");
    });
    for file in &files {
        assert_eq!(file.metadata().expect("stat").len(), PIECES << 20);
    }
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
