//! Engines that are killed under load: what was acknowledged is there, and applications see no error meanwhile.

mod harness;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::DevSystem;

#[test]
fn every_write_that_was_acknowledged_survives_kills_of_engines() {
    let system = DevSystem::start(&["--engines", "3", "--size", "1GiB"]);
    let mount = system.mount("home", &[]);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let lines: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (mount, stop, written) = (&mount, &stop, &written);
                scope.spawn(move || {
                    let mut file = File::create(mount.path(&format!("w{writer}"))).expect("created");
                    let mut line = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        file.write_all(&record(writer, line)).expect("written although engines are killed");
                        file.sync_data().expect("synced");
                        line += 1;
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    line
                })
            })
            .collect();
        for round in 0..6_u64 {
            let before = written.load(Ordering::Relaxed);
            harness::eventually("writers go on", Duration::from_mins(1), || {
                written.load(Ordering::Relaxed) > before + 20
            });
            system.run(&["dev", "kill", &(round % 3).to_string()]);
        }
        let before = written.load(Ordering::Relaxed);
        harness::eventually("writers go on after the last kill", Duration::from_mins(1), || {
            written.load(Ordering::Relaxed) > before + 20
        });
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("no error")).collect()
    });
    let fresh = system.mount("home", &[]);
    for (writer, count) in (0_u64..).zip(lines) {
        let content = fs::read(fresh.path(&format!("w{writer}"))).expect("read");
        let expected: Vec<u8> = (0..count).flat_map(|line| record(writer, line)).collect();
        assert!(content == expected, "writer {writer}: {} bytes of {} differ", content.len(), expected.len());
    }
}

/// A line whose length varies, so that writes cross chunks and blocks.
fn record(writer: u64, line: u64) -> Vec<u8> {
    let filling = usize::try_from((line * 977 + writer * 131) % 9000).expect("small");
    format!("writer {writer} line {line} {}\n", "*".repeat(filling)).into_bytes()
}

/// Sends a signal to an engine's process.
fn signal(system: &DevSystem, rank: u64, signal: rustix::process::Signal) {
    let pid = i32::try_from(system.engine_pid(rank)).expect("small");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, signal).expect("signalled");
}

#[test]
fn no_application_sees_an_engine_that_is_asked_to_end() {
    const ROUNDS: u64 = 6;
    let system = DevSystem::start(&["--engines", "3", "--size", "1GiB"]);
    let mount = system.mount("home", &[]);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (mount, stop, written) = (&mount, &stop, &written);
                scope.spawn(move || {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        use_files(mount, writer, number).expect("engines that end are no error");
                        written.fetch_add(1, Ordering::Relaxed);
                        number += 1;
                    }
                })
            })
            .collect();
        for round in 0..=ROUNDS {
            let before = written.load(Ordering::Relaxed);
            harness::eventually("writers go on", Duration::from_mins(2), || {
                written.load(Ordering::Relaxed) > before + 8
                    || writers.iter().any(std::thread::ScopedJoinHandle::is_finished)
            });
            if round < ROUNDS {
                signal(&system, round % 3, rustix::process::Signal::TERM);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("no error");
        }
    });
}

/// One round of a writer: a file that is written in pieces, made durable, replaced, read, and removed after some rounds.
fn use_files(mount: &harness::Mounted<'_>, writer: u64, number: u64) -> std::io::Result<()> {
    let (new, name) =
        (mount.path(&format!("w{writer}.new")), mount.path(&format!("w{writer}-{}", number % 8)));
    let mut file = File::create(&new)?;
    for line in 0..20 {
        file.write_all(&record(writer, line * number))?;
    }
    file.sync_all()?;
    drop(file);
    fs::rename(&new, &name)?;
    let expected: Vec<u8> = (0..20).flat_map(|line| record(writer, line * number)).collect();
    assert!(fs::read(&name)? == expected, "{} differs", name.display());
    if number % 8 == 7 {
        fs::remove_file(&name)?;
    }
    Ok(())
}

#[test]
fn an_operation_waits_for_an_engine_that_is_stopped_and_then_goes_on() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    let mount = system.mount("home", &[]);
    let file = File::create(mount.path("f")).expect("created");
    file.write_all_at(&vec![1; 8 << 20], 0).expect("written");
    for rank in 0..2 {
        let pid = rustix::process::Pid::from_raw(i32::try_from(system.engine_pid(rank)).expect("a pid"));
        let pid = pid.expect("not zero");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let write = scope.spawn(|| file.write_all_at(&vec![2; 8 << 20], 0));
            std::thread::sleep(Duration::from_millis(1500));
            rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
            write.join().expect("no panic").expect("no error");
        });
        assert!(begun.elapsed() > Duration::from_secs(1), "the write did not wait for engine {rank}");
    }
    drop(file);
    assert_eq!(fs::read(mount.path("f")).expect("read"), vec![2; 8 << 20]);
}

#[test]
fn an_engine_that_stays_away_is_an_io_error_when_the_mount_has_waited_long_enough() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let mount = system.mount("home", &["--engine-wait", "2"]);
    let file = File::create(mount.path("f")).expect("created");
    let pid = rustix::process::Pid::from_raw(i32::try_from(system.engine_pid(0)).expect("a pid"))
        .expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    let begun = Instant::now();
    let told = file.write_all_at(b"x", 0).and_then(|()| file.sync_all());
    let error = told.expect_err("the engine is away");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(begun.elapsed() > Duration::from_millis(1900), "it waited only {:?}", begun.elapsed());
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    harness::eventually("the mount works again", Duration::from_secs(30), || {
        file.write_all_at(b"y", 0).and_then(|()| file.sync_all()).is_ok()
    });
    drop(file);
    assert_eq!(fs::read(mount.path("f")).expect("read"), b"y");
}

#[test]
fn a_system_that_is_stopped_and_started_again_has_everything() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    let mount = system.mount("home", &[]);
    fs::create_dir(mount.path("d")).expect("made");
    for number in 0..50 {
        fs::write(mount.path(&format!("d/{number}")), vec![7; number * 1000]).expect("written");
    }
    mount.unmount();
    system.run(&["dev", "down"]);
    system.up(&[]);
    let mount = system.mount("home", &[]);
    assert_eq!(fs::read_dir(mount.path("d")).expect("listed").count(), 50);
    for number in 0..50 {
        assert_eq!(fs::read(mount.path(&format!("d/{number}"))).expect("read"), vec![7; number * 1000]);
    }
}

#[test]
fn names_are_listed_while_an_engine_with_attributes_is_away() {
    const FILES: usize = 40;
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    let mount = system.mount("home", &["--engine-wait", "2"]);
    let folders: Vec<File> = (0..12)
        .map(|number| {
            let path = mount.path(&format!("d{number}"));
            fs::create_dir(&path).expect("made");
            for file in 0..FILES {
                fs::write(path.join(format!("f{file}")), b"text").expect("written");
            }
            // Whoever has it open needs no path, whose parts may be on the engine that is away.
            File::open(path).expect("open")
        })
        .collect();
    let inside = |folder: &File| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(folder));
    // Nothing is remembered of entries.
    std::thread::sleep(Duration::from_millis(1500));
    let pid = i32::try_from(system.engine_pid(1)).expect("small");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    let begun = Instant::now();
    let mut listed = 0;
    let mut unread = 0;
    for folder in &folders {
        let Ok(entries) = fs::read_dir(inside(folder)) else { continue };
        let names: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
        // A folder whose names are on the engine that is away fails as a whole.
        let Ok(names) = names else { continue };
        assert_eq!(names.len(), FILES, "nothing is left out");
        listed += 1;
        if unread == 0 {
            // About half of them are on the engine that is away.
            let folder = inside(folder);
            let size = |name| fs::metadata(std::path::Path::new(&folder).join(name));
            let error = names.iter().find_map(|name| size(name).err()).expect("some size is not known");
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
            unread += 1;
        }
    }
    let took = begun.elapsed();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    assert!(listed > 0 && unread > 0, "{listed} of {} folders are listed", folders.len());
    assert!(took < Duration::from_mins(3), "each waits for a few seconds: {took:?}");
    harness::eventually("sizes are known again", Duration::from_mins(1), || {
        let sizes = |folder: &File| -> std::io::Result<Vec<u64>> {
            fs::read_dir(inside(folder))?.map(|entry| Ok(entry?.metadata()?.len())).collect()
        };
        folders.iter().all(|folder| sizes(folder).is_ok_and(|sizes| sizes == [4; FILES]))
    });
}

#[test]
fn a_listing_does_not_wait_for_what_the_mount_has_not_sent() {
    const FILES: usize = 8;
    const TEXT: &[u8] = b"text that is not sent";
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    let mount = system.mount("home", &["--engine-wait", "300", "--threads", "16"]);
    let folders: Vec<(File, Vec<File>)> = (0..12)
        .map(|number| {
            let path = mount.path(&format!("d{number}"));
            fs::create_dir(&path).expect("made");
            let file = |file| File::create(path.join(format!("f{file}"))).expect("created");
            (File::open(&path).expect("open"), (0..FILES).map(file).collect())
        })
        .collect();
    for file in folders.iter().flat_map(|(_, files)| files) {
        file.write_all_at(TEXT, 0).expect("gathered");
    }
    let pid = i32::try_from(system.engine_pid(1)).expect("small");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    // Elsewhere: what is on its way isn't written over.
    for file in folders.iter().flat_map(|(_, files)| files) {
        file.write_all_at(TEXT, 1000).expect("gathered");
    }
    let listed = AtomicU64::new(0);
    let in_time = std::thread::scope(|scope| {
        for (folder, _) in &folders {
            let listed = &listed;
            scope.spawn(move || {
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(folder));
                // One whose names are on the engine that is away waits for it.
                let names: Vec<_> = fs::read_dir(path).expect("listed").collect();
                assert_eq!(names.len(), FILES, "nothing is left out");
                listed.fetch_add(1, Ordering::Relaxed);
            });
        }
        let begun = Instant::now();
        while listed.load(Ordering::Relaxed) == 0 && begun.elapsed() < Duration::from_secs(40) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let in_time = listed.load(Ordering::Relaxed);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
        in_time
    });
    assert!(in_time > 0, "no folder was listed while an engine was away");
    for file in folders.iter().flat_map(|(_, files)| files) {
        file.sync_all().expect("written when the engine was back");
        assert_eq!(file.metadata().expect("known").len(), 1000 + TEXT.len() as u64);
    }
}

#[test]
fn a_command_waits_for_engines_as_long_as_it_was_told_and_says_so() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    system.run(&["kv", "put", "tank", "home", "1", "a", "value"]);
    let pids: Vec<_> = (0..2)
        .map(|rank| rustix::process::Pid::from_raw(i32::try_from(system.engine_pid(rank)).expect("a pid")))
        .map(|pid| pid.expect("not zero"))
        .collect();
    let signal = |signal| {
        for pid in &pids {
            rustix::process::kill_process(*pid, signal).expect("signalled");
        }
    };
    signal(rustix::process::Signal::STOP);
    let commands = [
        ["kv", "get", "tank", "home", "1", "a"].as_slice(),
        &["fs", "ls", "tank", "home"],
        &["container", "list-attr", "tank", "home"],
    ];
    let said = commands.map(|command| system.fails(&[&["--timeout", "3"], command].concat()));
    let begun = Instant::now();
    // It asks two questions: whether the pool is there, and that it may go.
    let (code, destroyed) = system.fails(&["--timeout", "8", "pool", "destroy", "tank", "--force"]);
    let waited = begun.elapsed();
    signal(rustix::process::Signal::CONT);
    for (code, error) in said {
        assert_eq!(code, 5, "{error}");
        let says = |time: &str| error.contains(&format!("has not answered for {time}"));
        assert!(error.contains("pool tank") && (says("3.0") || says("2.9")), "{error}");
    }
    assert_eq!(code, 5, "{destroyed}");
    assert!(destroyed.contains("destroy pool tank") && destroyed.contains("within 8 s"), "{destroyed}");
    assert!(waited < Duration::from_secs(14), "it waited for {} s", waited.as_secs());
    assert_eq!(system.run(&["kv", "get", "tank", "home", "1", "a"]), "value");
}
