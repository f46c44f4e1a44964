//! Mounts that go by what they have learned for some time (`cache=cached`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::harness::eventually;
use super::{errno, system};

#[test]
fn what_is_cached_needs_no_engine() {
    let system = system();
    let mount = system.mount("home", &["-o", "cache=cached"]);
    fs::create_dir(mount.path("d")).expect("made");
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(mount.path("d/f"), &content).expect("written");
    let look = || {
        assert_eq!(fs::metadata(mount.path("d/f")).expect("stat").len(), content.len() as u64);
        assert!(fs::read(mount.path("d/f")).expect("read") == content);
        assert_eq!(errno(File::open(mount.path("d/none"))), libc::ENOENT);
    };
    look();
    look();
    let pid = i32::try_from(system.engine_pid(0)).expect("small");
    let engine = Pid::from_raw(pid).expect("a process");
    kill_process(engine, Signal::STOP).expect("stopped");
    // Each of these would wait for the engine.
    look();
    kill_process(engine, Signal::CONT).expect("it goes on");
    // What is changed from here shows here at once.
    fs::write(mount.path("d/none"), "is there").expect("written");
    assert_eq!(fs::read_to_string(mount.path("d/none")).expect("read"), "is there");
    fs::write(mount.path("d/f"), "short").expect("written");
    assert_eq!(fs::read_to_string(mount.path("d/f")).expect("read"), "short");
    fs::rename(mount.path("d/f"), mount.path("d/none")).expect("renamed");
    assert_eq!(fs::read_to_string(mount.path("d/none")).expect("read"), "short");
    assert_eq!(errno(File::open(mount.path("d/f"))), libc::ENOENT);
    fs::remove_dir_all(mount.path("d")).expect("removed");
    assert_eq!(errno(fs::metadata(mount.path("d"))), libc::ENOENT);
}

#[test]
fn changes_by_others_show_when_the_time_is_over() {
    let system = system();
    let (one, cached) = (system.mount("home", &[]), system.mount("home", &["-o", "cache=cached:2"]));
    fs::write(one.path("f"), "old").expect("written");
    assert_eq!(fs::read_to_string(cached.path("f")).expect("read"), "old");
    assert_eq!(errno(fs::metadata(cached.path("g"))), libc::ENOENT);
    fs::write(one.path("f"), "newer").expect("written");
    fs::write(one.path("g"), "there").expect("written");
    let reads = |name: &str| fs::read_to_string(cached.path(name)).ok();
    eventually("the new content", Duration::from_secs(20), || reads("f").is_some_and(|text| text == "newer"));
    eventually("the new name", Duration::from_secs(20), || reads("g").is_some_and(|text| text == "there"));
}

#[test]
fn a_file_that_others_have_removed_is_old_or_gone_and_never_zeros() {
    let system = system();
    let (one, cached) = (system.mount("home", &[]), system.mount("home", &["-o", "cache=cached"]));
    let content = vec![7; 3 << 20];
    for number in 0..20 {
        let name = format!("f{number}");
        fs::write(one.path(&name), &content).expect("written");
        assert_eq!(fs::metadata(cached.path(&name)).expect("stat").len(), 3 << 20);
        if number % 2 == 0 {
            assert!(fs::read(cached.path(&name)).expect("read") == content);
        }
        fs::remove_file(one.path(&name)).expect("removed");
        let mut read = Vec::new();
        let done = File::open(cached.path(&name)).and_then(|mut file| file.read_to_end(&mut read));
        assert!(read.iter().all(|byte| *byte == 7), "{name}: {done:?}");
        if let Err(error) = done {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)), "{name}: {error}");
        }
        // Nothing is written to what is gone.
        let opened = File::options().append(true).open(cached.path(&name));
        let written = opened.and_then(|mut file| file.write_all(b"more"));
        assert!(matches!(errno(written), libc::ENOENT | libc::ESTALE), "{name}");
    }
}
