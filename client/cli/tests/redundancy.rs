//! Pools that survive the loss of an engine: applications see no error, and nothing is lost.

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{DevSystem, Mounted};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Longest time for anything: nothing takes that long unless it hangs.
const LIMIT: Duration = Duration::from_mins(2);

/// Programs that write and read.
const WRITERS: u64 = 3;
const READERS: u64 = 2;

/// A file that is longer is a device of an engine.
const DEVICE_MIN: u64 = 32 << 20;

/// Names that each writer uses in turn.
const NAMES: u64 = 16;

/// A system whose pool survives the loss of one of three engines.
fn start() -> DevSystem {
    DevSystem::start(&["--engines", "3", "--size", "512MiB", "--redundancy", "1"])
}

/// The content of a file, which says what it is.
fn content(writer: u64, number: u64) -> Vec<u8> {
    let len = [100, 5000, 20_000, 70_000][usize::try_from(number % 4).expect("small")];
    let line = format!("file {number} of writer {writer}\n");
    line.bytes().cycle().take(len).collect()
}

fn name(writer: u64, number: u64) -> String {
    format!("w{writer}-{}", number % NAMES)
}

/// Programs that write files through one mount and read them through another.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    written: AtomicU64,
    read: AtomicU64,
    /// The newest file of each name, as it was made durable. It is locked while a file gets its name.
    durable: Mutex<BTreeMap<String, (u64, u64)>>,
    longest: Mutex<(Duration, &'static str)>,
}

impl Load {
    /// Runs them while something happens. Whatever they do succeeds, and all that they made durable is there in the end.
    fn run(&self, mounts: (&Mounted<'_>, &Mounted<'_>), happens: impl FnOnce()) {
        let (one, other) = mounts;
        std::thread::scope(|scope| {
            let writers = (0..WRITERS).map(|writer| scope.spawn(move || self.write(one, writer)));
            let writers: Vec<_> = writers.collect();
            let readers = (0..READERS).map(|_| scope.spawn(move || self.read(other)));
            let programs: Vec<_> = writers.into_iter().chain(readers.collect::<Vec<_>>()).collect();
            let ends = Ends(&self.stop);
            self.go_on();
            happens();
            self.go_on();
            drop(ends);
            for program in programs {
                program.join().expect("no error");
            }
        });
        let (longest, what) = *self.longest.lock().expect("nobody has panicked");
        println!("the longest stall was {:.2} s, in {what}", longest.as_secs_f64());
        self.verify(other.directory());
    }

    /// Waits until all of them have come further.
    fn go_on(&self) {
        for (what, count, more) in [("writers go on", &self.written, 20), ("readers go on", &self.read, 20)] {
            let before = count.load(Ordering::Relaxed);
            harness::eventually(what, LIMIT, || count.load(Ordering::Relaxed) > before + more);
        }
    }

    fn timed<T>(&self, what: &'static str, work: impl FnOnce() -> std::io::Result<T>) -> T {
        let begun = Instant::now();
        let done = work().unwrap_or_else(|error| panic!("{what} after {:?}: {error}", begun.elapsed()));
        let mut longest = self.longest.lock().expect("nobody has panicked");
        *longest = (*longest).max((begun.elapsed(), what));
        done
    }

    fn write(&self, mount: &Mounted<'_>, writer: u64) {
        let _ends = Ends(&self.stop);
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let name = name(writer, number);
            let new = mount.path(&format!("{name}.new"));
            self.timed("a write", || {
                let mut file = File::create(&new)?;
                content(writer, number).chunks(100_000).try_for_each(|part| file.write_all(part))?;
                file.sync_all()
            });
            let mut durable = self.durable.lock().expect("nobody has panicked");
            self.timed("a rename", || fs::rename(&new, mount.path(&name)));
            durable.insert(name, (writer, number));
            drop(durable);
            self.written.fetch_add(1, Ordering::Relaxed);
            number += 1;
        }
    }

    fn read(&self, mount: &Mounted<'_>) {
        let _ends = Ends(&self.stop);
        let mut turn = 0;
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            turn += 1;
            let newest = || {
                let durable = self.durable.lock().expect("nobody has panicked");
                let at = turn % durable.len().max(1);
                durable.iter().nth(at).map(|(name, file)| (name.clone(), *file))
            };
            let Some((name, (writer, number))) = newest() else { continue };
            let found = self.timed("a read", || fs::read(mount.path(&name)));
            let is_replaced = self.durable.lock().expect("nobody has panicked")[&name] != (writer, number);
            assert!(found == content(writer, number) || is_replaced, "{name} differs");
            self.read.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn verify(&self, directory: &Path) {
        let durable = self.durable.lock().expect("nobody has panicked");
        for (name, (writer, number)) in &*durable {
            let found = fs::read(directory.join(name)).expect("read");
            assert!(found == content(*writer, *number), "{name} differs");
        }
    }
}

/// Ends all programs when one has ended.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The ranks of targets that have something of an object that is on all of them, and serve. `None`: some of them don't.
fn serving(system: &DevSystem) -> Option<BTreeSet<u64>> {
    let layout = system.json(&["object", "layout", "tank", "home", "1"]);
    let groups = layout["groups"].as_array().expect("groups").iter();
    let targets: Vec<_> = groups.flat_map(|group| group.as_array().expect("targets").clone()).collect();
    let is_whole = targets.iter().all(|target| target["state"] == "UPIN");
    let ranks = targets.iter().filter(|target| target["state"] == "UPIN");
    let ranks: BTreeSet<u64> = ranks.map(|target| target["rank"].as_u64().expect("a rank")).collect();
    is_whole.then_some(ranks)
}

fn is_whole(system: &DevSystem) -> bool {
    serving(system).is_some_and(|ranks| ranks == BTreeSet::from([0, 1, 2]))
}

/// Waits until others have the places of an engine.
fn wait_without(system: &DevSystem, rank: u64) {
    let others: BTreeSet<u64> = (0..3).filter(|other| *other != rank).collect();
    harness::eventually("others have its places", LIMIT, || serving(system).as_ref() == Some(&others));
}

fn wait_whole(system: &DevSystem) {
    harness::eventually("all targets have all data", LIMIT, || is_whole(system));
}

fn process(system: &DevSystem, rank: u64) -> Pid {
    let pid = i32::try_from(system.engine_pid(rank)).expect("small");
    Pid::from_raw(pid).expect("a process")
}

fn signal(system: &DevSystem, rank: u64, signal: Signal) {
    kill_process(process(system, rank), signal).expect("signalled");
}

/// Ranks that run the pool's service, the leader first.
fn service(system: &DevSystem) -> Vec<u64> {
    let ranks = system.json(&["pool", "query", "tank"])["svc_reps"].clone();
    ranks.as_array().expect("ranks").iter().map(|rank| rank.as_u64().expect("a rank")).collect()
}

fn wait_degraded(system: &DevSystem) {
    harness::eventually("the pool is degraded", LIMIT, || {
        system.json(&["pool", "query", "tank"])["state"] == "Degraded"
    });
}

#[test]
fn an_engine_is_lost_for_good_and_another_one_after_it_has_returned() {
    let system = start();
    let mounts = (&system.mount("home", &[]), &system.mount("home", &[]));
    let load = Load::default();
    load.run(mounts, || {
        for rank in ["1", "2"] {
            system.run(&["dev", "lose", rank]);
            load.go_on();
            wait_degraded(&system);
            load.go_on();
            system.run(&["dev", "return", rank]);
            // What the next one takes away is there once more by then.
            wait_whole(&system);
            harness::eventually("the pool is ready", LIMIT, || {
                system.json(&["pool", "query", "tank"])["state"] == "Ready"
            });
        }
    });
    // Each engine alone has all that the two others have.
    let fresh = system.mount("home", &[]);
    load.verify(fresh.directory());
}

#[test]
fn two_engines_of_five_are_lost_for_good_at_once_and_return_empty() {
    let system = DevSystem::start(&["--engines", "5", "--size", "512MiB", "--redundancy", "2"]);
    let mounts = (&system.mount("home", &[]), &system.mount("home", &[]));
    let load = Load::default();
    load.run(mounts, || {
        for rank in ["1", "3"] {
            system.run(&["dev", "lose", rank]);
        }
        load.go_on();
        wait_degraded(&system);
        load.go_on();
        for rank in ["1", "3"] {
            system.run(&["dev", "return", rank]);
        }
        harness::eventually("all targets have all data", LIMIT, || {
            serving(&system).is_some_and(|ranks| ranks == (0..5).collect())
        });
    });
    let fresh = system.mount("home", &[]);
    load.verify(fresh.directory());
}

#[test]
fn engines_are_killed_and_restarted_one_by_one() {
    let system = start();
    let mounts = (&system.mount("home", &[]), &system.mount("home", &[]));
    let load = Load::default();
    load.run(mounts, || {
        for rank in 0..3 {
            for name in [Signal::KILL, Signal::TERM] {
                let before = system.engine_pid(rank);
                signal(&system, rank, name);
                load.go_on();
                harness::eventually("it is started again", LIMIT, || system.engine_pid(rank) != before);
                wait_whole(&system);
            }
        }
    });
}

/// Where a value begins in the device files of a system, which has it in whole blocks.
fn places_of(system: &DevSystem, value: &[u8]) -> Vec<(PathBuf, u64)> {
    let (mut found, mut ahead) = (Vec::new(), vec![system.folder().to_owned()]);
    while let Some(folder) = ahead.pop() {
        for entry in fs::read_dir(folder).expect("listed").flatten() {
            let (path, about) = (entry.path(), entry.metadata().expect("there"));
            if about.is_dir() {
                ahead.push(path);
            } else if about.is_file() && about.len() > DEVICE_MIN {
                let (file, mut block) = (File::open(&path).expect("opened"), [0; 64]);
                let mut has = |at: &u64| file.read_exact_at(&mut block, *at).is_ok() && block == value[..64];
                let places = (0..about.len()).step_by(4096).filter(|at| has(at));
                found.extend(places.map(|at| (path.clone(), at)).collect::<Vec<_>>());
            }
        }
    }
    found
}

#[test]
fn a_copy_that_has_rotted_on_its_device_is_found_and_repaired() {
    let system = start();
    system.run(&["container", "create", "tank", "objects", "--type", "object"]);
    let lines: Vec<String> = (0..6000).map(|line| format!("line {line}\n")).collect();
    let value = lines.concat();
    system.run(&["kv", "put", "tank", "objects", "1", "key", &value]);
    let verify = ["object", "verify", "tank", "objects", "1"];
    let verified = system.json(&verify);
    assert_eq!((&verified["dkeys"], verified["mismatches"].as_array().map(Vec::len)), (&json!(1), Some(0)));
    let places = places_of(&system, value.as_bytes());
    let [(one, at), (other, _)] = &places[..] else { panic!("{places:?}") };
    assert_ne!(one, other, "each copy is on a device of its own");
    let device = File::options().write(true).open(one).expect("opened");
    device.write_all_at(b"x", at + 1000).expect("written");
    let (code, error) = system.fails(&verify);
    assert!(code == 9 && error.contains("not in service: 1;"), "{error}");
    harness::eventually("it is repaired", LIMIT, || {
        let ended = system.weir().args(verify).output().expect("it runs");
        ended.status.success()
    });
    assert_eq!(system.run(&["kv", "get", "tank", "objects", "1", "key"]).trim_end(), value.trim_end());
}

#[test]
fn an_engine_that_is_stopped_holds_up_nobody_for_long() {
    let system = start();
    let mounts = (&system.mount("home", &[]), &system.mount("home", &[]));
    let load = Load::default();
    load.run(mounts, || {
        for rank in 0..3 {
            // `weir dev` lists pools, and the engine of rank 0 has their list.
            let engine = process(&system, rank);
            kill_process(engine, Signal::STOP).expect("stopped");
            load.go_on();
            harness::eventually("it is out of the map", LIMIT, || !is_whole(&system));
            load.go_on();
            kill_process(engine, Signal::CONT).expect("it goes on");
            wait_whole(&system);
        }
    });
}

#[test]
fn a_pool_without_its_services_leader_takes_and_makes_all() {
    let system = start();
    let mut engines = service(&system);
    engines.sort_unstable();
    assert_eq!(engines, [0, 1, 2], "each engine runs a replica");
    let mount = system.mount("home", &[]);
    for round in 0..3 {
        let leader = service(&system)[0];
        let before = system.engine_pid(leader);
        signal(&system, leader, Signal::KILL);
        let label = format!("made-{round}");
        system.run(&["container", "create", "tank", &label]);
        fs::write(mount.path(&label), &label).expect("written");
        system.run(&["kv", "put", "tank", &label, "1", "key", "value"]);
        harness::eventually("it is started again", LIMIT, || system.engine_pid(leader) != before);
        wait_whole(&system);
    }
    assert_eq!(system.json(&["pool", "query", "tank"])["containers"], 4);
}

#[test]
fn an_engine_is_drained_and_one_that_others_stood_in_for_gets_its_places_back() {
    let system = start();
    let mounts = (&system.mount("home", &[]), &system.mount("home", &[]));
    let load = Load::default();
    load.run(mounts, || {
        system.run(&["pool", "drain", "tank", "--rank", "1"]);
        wait_without(&system, 1);
        load.go_on();
        // Nothing of it counts any more.
        system.run(&["dev", "lose", "1"]);
        load.go_on();
        system.run(&["dev", "return", "1"]);
        load.go_on();
        wait_without(&system, 1);
        system.run(&["pool", "reintegrate", "tank", "--rank", "1"]);
        load.go_on();
        wait_whole(&system);
        load.go_on();
        // This one comes back with what it had, and lacks what was changed meanwhile.
        system.run(&["pool", "exclude", "tank", "--rank", "2"]);
        wait_without(&system, 2);
        load.go_on();
        system.run(&["pool", "reintegrate", "tank", "--rank", "2"]);
        load.go_on();
        wait_whole(&system);
    });
    let (_, error) = system.fails(&["pool", "drain", "tank", "--rank", "7"]);
    assert!(error.contains("the pool has nothing on it"), "{error}");
    system.run(&["dev", "lose", "2"]);
    harness::eventually("it is out of the map", LIMIT, || !is_whole(&system));
    let (_, error) = system.fails(&["pool", "drain", "tank", "--rank", "1"]);
    assert!(error.contains("no other engine can take its places"), "{error}");
    load.verify(mounts.1.directory());
}

/// An engine is started and has its share of the pool in the end, while mounts that know nothing of it write and read. Then the pool
/// outlasts the loss of another one.
#[test]
fn an_engine_joins_a_pool_while_programs_write_and_read() {
    let system = start();
    let query = || system.json(&["pool", "query", "tank"]);
    let size = || query()["size_bytes"].as_u64().expect("a number");
    let before = size();
    let mounts = (&system.mount("home", &[]), &system.mount("home", &[]));
    let load = Load::default();
    load.run(mounts, || {
        let added = system.json(&["dev", "add"]);
        assert_eq!(added, json!({"rank": 3}));
        load.go_on();
        let extended = system.json(&["pool", "extend", "tank", "--ranks", "3"]);
        assert_eq!(extended["tgt_ranks"], json!([0, 1, 2, 3]));
        load.go_on();
        harness::eventually("it has its share", LIMIT, || {
            let pool = query();
            pool["new_ranks"] == json!([]) && pool["health"]["condition"] == "Healthy"
        });
        load.go_on();
        system.run(&["dev", "lose", "1"]);
        load.go_on();
    });
    assert_eq!(size(), before / 3 * 4);
    let text = system.run(&["pool", "extend", "tank", "--ranks", "3"]);
    assert!(text.contains("Ranks"), "a repeat changes nothing: {text}");
    let (_, error) = system.fails(&["pool", "extend", "tank", "--ranks", "1"]);
    assert!(error.contains("rank 1 holds it already"), "{error}");
    let (_, error) = system.fails(&["pool", "extend", "tank", "--ranks", "9"]);
    assert!(error.contains("rank 9 does not exist; the system has ranks 0, 1, 2, 3"), "{error}");
    // One that starts with the new list finds the new engine there, too.
    let fresh = system.mount("home", &[]);
    load.verify(fresh.directory());
}

/// Writes files until one is refused for want of room; how many there are then.
fn fill(mount: &Mounted<'_>, len: usize) -> u32 {
    let block = vec![1; len];
    for number in 0.. {
        let begun = Instant::now();
        let written = fs::write(mount.path(&format!("{len}-{number}")), &block);
        assert!(begun.elapsed() < LIMIT, "a write took {:?}: {written:?}", begun.elapsed());
        if let Err(error) = written {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "after {number} files of {len} bytes");
            return number;
        }
    }
    unreachable!("the pool is finite")
}

#[test]
fn a_full_pool_is_enospc_and_deleting_makes_room_again() {
    let system = DevSystem::start(&["--engines", "3", "--size", "512MiB", "--redundancy", "1", "--bare"]);
    system.run(&["pool", "create", "tank", "--size", "192MiB", "--redundancy-factor", "1"]);
    system.run(&["container", "create", "tank", "home"]);
    let mount = system.mount("home", &[]);
    fs::create_dir_all(mount.path("a/b")).expect("made");
    for round in 0..2 {
        let large = fill(&mount, 1 << 20);
        assert!((40..96).contains(&large), "{large} MiB with a copy each fit 192 MiB");
        fill(&mount, 20_000);
        let first = fs::read(mount.path(&format!("{}-0", 1 << 20))).expect("read");
        assert_eq!(first, vec![1; 1 << 20], "what fitted is there");
        if round == 0 {
            fs::remove_dir_all(mount.path("a")).expect("directories can be removed when the pool is full");
        }
        for entry in fs::read_dir(mount.directory()).expect("listed") {
            fs::remove_file(entry.expect("an entry").path())
                .expect("files can be removed when the pool is full");
        }
        harness::eventually("there is room again", LIMIT, || {
            fs::write(mount.path("again"), vec![2; 20 << 20]).is_ok()
        });
        assert_eq!(fs::read(mount.path("again")).expect("read"), vec![2; 20 << 20]);
        fs::remove_file(mount.path("again")).expect("removed");
    }
}

#[test]
fn what_is_allocated_with_copies_can_be_written_when_all_else_is_full() {
    const MIB: u64 = 1 << 20;
    let system = DevSystem::start(&["--engines", "3", "--size", "512MiB", "--redundancy", "1", "--bare"]);
    system.run(&["pool", "create", "tank", "--size", "192MiB", "--redundancy-factor", "1"]);
    system.run(&["container", "create", "tank", "home"]);
    let mount = system.mount("home", &[]);
    let create = |name: &str| File::create_new(mount.path(name)).expect("created");
    let (kept, refused) = (create("kept"), create("refused"));
    fallocate(&kept, FallocateFlags::empty(), 0, 20 * MIB).expect("there is room");
    assert_eq!(kept.metadata().expect("stat").len(), 20 * MIB);
    for _ in 0..3 {
        // Each attempt gives up what it has reserved: the next one would find less.
        assert_eq!(fallocate(&refused, FallocateFlags::empty(), 0, 90 * MIB), Err(Errno::NOSPC));
        fallocate(&refused, FallocateFlags::KEEP_SIZE, 0, 40 * MIB).expect("there is room for less");
        refused.set_len(1).expect("lengthened");
        refused.set_len(0).expect("cut off");
    }
    fill(&mount, 1 << 20);
    let content: Vec<u8> = (0..20 * MIB).map(|at| (at / 4096 + at % 251).to_le_bytes()[0]).collect();
    kept.write_all_at(&content, 0).expect("gathered");
    kept.sync_all().expect("there is room for it");
    let other = system.mount("home", &[]);
    assert!(fs::read(other.path("kept")).expect("read") == content);
    // Both copies are there.
    for rank in 0..3 {
        let before = system.engine_pid(rank);
        signal(&system, rank, Signal::KILL);
        assert!(fs::read(other.path("kept")).expect("read") == content);
        harness::eventually("it is started again", LIMIT, || system.engine_pid(rank) != before);
        wait_whole(&system);
    }
}

/// Starts a system as people do.
fn up(system: &DevSystem, arguments: &[&str]) -> Result<(), String> {
    let engine: PathBuf = harness::program("weir-engine", "weir-daemon");
    let mut command = system.weir();
    command.args(["dev", "up", "--detach", "--targets", "1", "--size", "256MiB", "--engine"]).arg(engine);
    let output = command.args(arguments).output().expect("weir runs");
    if output.status.success() { Ok(()) } else { Err(harness::text(&output)) }
}

#[test]
fn a_pool_has_the_redundancy_that_its_engines_allow() {
    let system = DevSystem::absent();
    let class =
        |container: &str| system.json(&["container", "query", "tank", container])["object_class"].clone();
    let refused =
        up(&system, &["--redundancy", "6", "--engines", "7"]).expect_err("six losses are not served");
    assert!(refused.contains("serves redundancy factors up to 5"), "{refused}");
    up(&system, &["--redundancy", "2", "--engines", "3"]).expect("three engines");
    assert_eq!(class("home"), json!("RP_3GX"));
    system.run(&["dev", "down", "--wipe"]);
    fs::create_dir_all(system.folder()).expect("made");
    up(&system, &["--engines", "1"]).expect("one engine");
    assert_eq!(class("home"), json!("SX"));
    system.run(&["dev", "down", "--wipe"]);
    fs::create_dir_all(system.folder()).expect("made");
    up(&system, &["--engines", "2"]).expect("two engines");
    assert_eq!(class("home"), json!("RP_2GX"));
    system.run(&["container", "create", "tank", "narrow", "--oclass", "RP_2G1"]);
    assert_eq!(class("narrow"), json!("RP_2G1"));
    system.run(&["container", "create", "tank", "wide", "--redundancy-factor", "1"]);
    assert_eq!(class("wide"), json!("RP_2GX"));
    let (_, error) = system.fails(&["container", "create", "tank", "none", "--redundancy-factor", "0"]);
    assert!(error.contains("the pool has redundancy factor 1; name a class with more replicas"), "{error}");
    let (_, error) = system.fails(&["container", "create", "tank", "more", "--redundancy-factor", "6"]);
    assert!(error.contains("this release serves redundancy factors up to 5"), "{error}");
    let (_, error) = system.fails(&["container", "create", "tank", "single", "--oclass", "S1"]);
    assert!(error.contains("the pool has redundancy factor 1; name a class with more replicas"), "{error}");
    let (_, error) = system.fails(&["container", "create", "tank", "eight", "--oclass", "RP_8GX"]);
    assert!(error.contains("RP_8GX stores data with 8 replicas, which is not supported yet"), "{error}");
    let (_, error) = system.fails(&["container", "create", "tank", "three", "--oclass", "RP_3GX"]);
    assert!(error.contains("RP_3GX needs 3 fault domains, the pool has 2"), "{error}");
    system.run(&["dev", "down"]);
    let refused = up(&system, &["--redundancy", "0"]).expect_err("the system has another factor");
    assert!(refused.contains("redundancy 1"), "{refused}");
    up(&system, &[]).expect("the same system");
    assert_eq!(class("home"), json!("RP_2GX"));
    // A pool without a factor keeps one copy, and no object in it has replicas.
    system.run(&["pool", "create", "plain", "--size", "128MiB"]);
    let (_, error) = system.fails(&["container", "create", "plain", "copies", "--oclass", "RP_2GX"]);
    assert!(error.contains("only pools with a redundancy factor keep equal"), "{error}");
    system.run(&["container", "create", "plain", "box", "--oclass", "SX"]);
    system.run(&["dev", "down", "--wipe"]);
    fs::create_dir_all(system.folder()).expect("made");
    // What a program asks for stays as it was made.
    for arguments in [&["--redundancy", "0"][..], &[]] {
        up(&system, arguments).expect("three engines");
        assert_eq!(class("home"), json!("SX"));
        system.run(&["dev", "down"]);
    }
}
