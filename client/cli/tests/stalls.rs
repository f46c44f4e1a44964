//! An engine that doesn't answer holds up who needs it, and nobody else: on real mounts of real engines.

mod harness;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use harness::{DevSystem, Mounted};
use rustix::process::{Pid, Signal, kill_process};

/// Files of each system: enough for ten or more on each of three engines.
const FILES: usize = 90;

/// Longer than anything takes that doesn't wait for an engine, and far from what a mount waits for one.
const LONG: Duration = Duration::from_mins(2);

/// How long nothing may be answered until what is left waits for an engine.
const QUIET: Duration = Duration::from_secs(6);

const TEXT: &[u8] = b"text at its engine";

/// An engine that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(engine: Pid) -> Self {
        kill_process(engine, Signal::STOP).expect("stopped");
        Self(engine)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).expect("continued");
    }
}

/// A system of three engines, one of which is to be stopped, and where its files are.
struct Stage {
    system: DevSystem,
    engine: Pid,
    /// Names of files that are on other engines.
    live: Vec<String>,
    /// Names of all others.
    held: Vec<String>,
}

impl Stage {
    fn new() -> Self {
        let system = DevSystem::start(&["--engines", "3", "--size", "1GiB"]);
        system.run(&["container", "create", "tank", "single", "--oclass", "S1", "--chunk-size", "1MiB"]);
        let scout = system.mount("single", &["--engine-wait", "300", "--threads", "64"]);
        let names: BTreeSet<String> = (0..FILES).map(|number| format!("f{number}")).collect();
        for name in &names {
            fs::write(scout.path(name), TEXT).expect("written");
        }
        // The names are on one engine, and where the pool's service is, new ones get their numbers.
        let service = system.json(&["pool", "query", "tank"])["svc_ldr"].as_u64().expect("one engine");
        let engines: Vec<Pid> = (0..3)
            .filter(|rank| *rank != service)
            .map(|rank| i32::try_from(system.engine_pid(rank)).expect("small"))
            .map(|pid| Pid::from_raw(pid).expect("a process"))
            .collect();
        let (engine, live) = engines
            .into_iter()
            .map(|engine| (engine, live(&scout, engine, &names)))
            .find(|(_, live)| !live.is_empty())
            .unwrap_or_else(|| panic!("the names are on two engines\n{}", system.logs()));
        let held: Vec<String> = names.difference(&live).cloned().collect();
        assert!(held.len() >= 10 && live.len() >= 10, "{} of {FILES} files are on one engine", held.len());
        drop(scout);
        Self { system, engine, live: live.into_iter().collect(), held }
    }
}

/// Names of files that can be read while an engine is stopped.
fn live(scout: &Mounted<'_>, engine: Pid, names: &BTreeSet<String>) -> BTreeSet<String> {
    let (answer, answers) = channel();
    thread::scope(|scope| {
        let stopped = Stopped::new(engine);
        for name in names {
            let (answer, path) = (answer.clone(), scout.path(name));
            scope.spawn(move || {
                assert_eq!(fs::read(path).expect("read, sooner or later"), TEXT);
                let _ = answer.send(name.clone());
            });
        }
        let mut live = BTreeSet::new();
        while let Ok(name) = answers.recv_timeout(QUIET) {
            live.insert(name);
        }
        drop(stopped);
        live
    })
}

/// What programs do with files on engines that answer.
fn use_live(directory: &Path, live: &[String]) {
    for name in live {
        let path = directory.join(name);
        assert_eq!(fs::read(&path).expect("read"), TEXT);
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&vec![7; 1 << 20], 0).expect("written");
        file.sync_all().expect("synced");
        assert_eq!(fs::metadata(&path).expect("stat").len(), 1 << 20);
        file.set_len(TEXT.len() as u64).expect("cut");
        file.write_all_at(TEXT, 0).expect("written");
    }
    let link = directory.join("link");
    symlink("nowhere", &link).expect("made");
    assert_eq!(fs::read_link(&link).expect("read"), Path::new("nowhere"));
    fs::remove_file(&link).expect("removed");
    assert_eq!(fs::read_dir(directory).expect("listed").count(), FILES);
}

#[test]
fn files_on_live_engines_are_served_while_requests_wait_for_an_engine() {
    let stage = Stage::new();
    let mount = stage.system.mount("single", &["--engine-wait", "300"]);
    let written = &stage.held[0];
    let open: Vec<(File, &String)> = stage.held[..stage.held.len() / 2]
        .iter()
        .map(|name| {
            let file = OpenOptions::new().read(true).write(true).open(mount.path(name)).expect("opened");
            (file, name)
        })
        .collect();
    // Until the kernel knows no attributes any more.
    thread::sleep(Duration::from_millis(1500));
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (mount, answered) = (&mount, &answered);
        let stopped = Stopped::new(stage.engine);
        for (file, name) in &open {
            scope.spawn(move || {
                if *name == written {
                    file.write_all_at(TEXT, 0).expect("gathered");
                    file.sync_all().expect("synced, sooner or later");
                }
                let mut text = [0; TEXT.len()];
                file.read_exact_at(&mut text, 0).expect("read, sooner or later");
                assert_eq!(text, TEXT, "{name}");
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
        for name in &stage.held[open.len()..] {
            scope.spawn(move || {
                let stat = fs::metadata(mount.path(name)).expect("looked up, sooner or later");
                assert_eq!(stat.len(), TEXT.len() as u64, "{name}");
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
        // Again and again, since a request that comes to wait may hold the last thread.
        for round in 0..3 {
            let (end, ended) = channel();
            let live = &stage.live;
            scope.spawn(move || {
                use_live(mount.directory(), live);
                let _ = end.send(());
            });
            let is_served = ended.recv_timeout(LONG).is_ok();
            let held = stage.held.len() - answered.load(Ordering::Relaxed);
            if !is_served || held < 8 {
                drop(stopped);
                panic!("round {round}: served: {is_served}, {held} requests wait");
            }
        }
        drop(stopped);
    });
    assert_eq!(answered.load(Ordering::Relaxed), stage.held.len());
    drop(open);
    mount.unmount();
}

/// The command line of a process; empty when it has ended.
fn command_line(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// The process that serves a mount.
fn server(directory: &Path) -> i32 {
    let directory = directory.to_str().expect("plain");
    let processes = fs::read_dir("/proc").expect("listed").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let serves = |pid: &i32| {
        let line = command_line(*pid);
        line.contains("--foreground") && line.contains(directory)
    };
    pids.find(serves).expect("a process serves the mount")
}

#[test]
fn a_mount_ends_while_requests_wait_for_an_engine() {
    let stage = Stage::new();
    let mount = stage.system.mount("single", &["--engine-wait", "300"]);
    let server = server(mount.directory());
    let is_there = || !command_line(server).is_empty();
    thread::scope(|scope| {
        let mount = &mount;
        let stopped = Stopped::new(stage.engine);
        let readers: Vec<_> =
            stage.held.iter().map(|name| scope.spawn(move || fs::read(mount.path(name)).is_err())).collect();
        use_live(mount.directory(), &stage.live[..2]);
        kill_process(Pid::from_raw(server).expect("a process"), Signal::TERM).expect("asked to end");
        let begun = Instant::now();
        while (is_there() || readers.iter().any(|reader| !reader.is_finished())) && begun.elapsed() < LONG {
            thread::sleep(Duration::from_millis(50));
        }
        let there = is_there();
        drop(stopped);
        assert!(!there, "the mount's process goes on");
        let given_up = readers.into_iter().filter_map(|reader| reader.join().ok()).filter(|fails| *fails);
        assert!(given_up.count() >= 8, "requests were given up");
    });
}

#[test]
fn a_detached_mount_serves_those_that_wait_for_an_engine() {
    let stage = Stage::new();
    let mount = stage.system.mount("single", &["--engine-wait", "300"]);
    let directory = mount.directory().to_owned();
    let server = server(&directory);
    thread::scope(|scope| {
        let stopped = Stopped::new(stage.engine);
        let readers: Vec<_> = stage
            .held
            .iter()
            .map(|name| {
                let path = mount.path(name);
                scope.spawn(move || fs::read(path).expect("read, sooner or later"))
            })
            .collect();
        use_live(&directory, &stage.live[..2]);
        stage.system.run(&["umount", "--lazy", directory.to_str().expect("plain")]);
        drop(stopped);
        for reader in readers {
            assert_eq!(reader.join().expect("no error"), TEXT);
        }
    });
    harness::eventually("the mount's process has ended", LONG, || command_line(server).is_empty());
}
