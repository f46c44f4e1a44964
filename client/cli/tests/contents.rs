//! Holes, space and the ends of files, on real mounts of real engines.

mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::DevSystem;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

/// A system for one test: one engine is enough where no engine is lost.
fn system() -> DevSystem {
    DevSystem::start(&["--engines", "1", "--size", "1GiB"])
}

fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("sh").arg("-euc").arg(script).current_dir(directory).output().expect("sh runs");
    assert!(output.status.success(), "{script}: {}", harness::text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Bytes that a file takes.
fn stored(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").blocks() * 512
}

#[test]
fn a_sparse_file_takes_what_is_stored_and_copies_keep_its_holes() {
    const SIZE: u64 = 300 << 20;
    let system = system();
    let mount = system.mount("home", &[]);
    shell(mount.directory(), "truncate -s 300M s; cp s t");
    for name in ["s", "t"] {
        assert_eq!(fs::metadata(mount.path(name)).expect("stat").len(), SIZE);
        assert!(stored(&mount.path(name)) <= 4096, "{name} takes {} bytes", stored(&mount.path(name)));
    }
    let file = OpenOptions::new().read(true).write(true).open(mount.path("s")).expect("opened");
    file.write_all_at(&[7; 9000], 100 << 20).expect("written");
    // Gathered data is data.
    assert!((9000..16_384).contains(&stored(&mount.path("s"))), "{} bytes", stored(&mount.path("s")));
    let at = |from| seek(&file, from).expect("found");
    assert_eq!(at(SeekFrom::Data(0)), 100 << 20);
    assert_eq!(at(SeekFrom::Hole(0)), 0);
    assert_eq!(at(SeekFrom::Hole((100 << 20) + 3)), (100 << 20) + 9000);
    assert_eq!(at(SeekFrom::Data((100 << 20) + 9000)), SIZE - 1, "the last byte makes it as long");
    assert_eq!(at(SeekFrom::Hole(SIZE - 1)), SIZE);
    assert_eq!(seek(&file, SeekFrom::Data(SIZE)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(SIZE)), Err(Errno::NXIO));
    drop(file);
    shell(mount.directory(), "cp s u; tar cSf s.tar s; mkdir x; tar xSf s.tar -C x; cmp s u; cmp s x/s");
    for name in ["s", "u", "x/s", "s.tar"] {
        assert!(stored(&mount.path(name)) <= 32 << 10, "{name} takes {} bytes", stored(&mount.path(name)));
    }
    let dense = vec![5; 3 << 20];
    fs::write(mount.path("dense"), &dense).expect("written");
    assert_eq!(stored(&mount.path("dense")), 3 << 20);
    let dense = File::open(mount.path("dense")).expect("opened");
    assert_eq!(seek(&dense, SeekFrom::Hole(5)), Ok(3 << 20));
    drop(dense);
    mount.unmount();
}

#[test]
fn lines_that_two_clients_append_at_once_are_all_there() {
    const LINES: usize = 150;
    let system = system();
    let mounts = [system.mount("home", &[]), system.mount("home", &[])];
    std::thread::scope(|scope| {
        for (client, mount) in mounts.iter().enumerate() {
            let path = mount.path("log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
                for line in 0..LINES {
                    // The last ones are more than a commit carries.
                    let rest = "x".repeat(if line + 10 > LINES { 100_000 } else { line });
                    file.write_all(format!("{client} {line} {rest}\n").as_bytes()).expect("appended");
                }
            });
        }
    });
    for mount in &mounts {
        let text = fs::read_to_string(mount.path("log")).expect("read");
        for client in 0..2 {
            let own = text.lines().filter(|line| line.starts_with(&format!("{client} ")));
            let numbers: Vec<usize> = own
                .map(|line| line.split(' ').nth(1).expect("a number").parse().expect("a number"))
                .collect();
            assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "lines of client {client}");
        }
        assert_eq!(text.lines().count(), 2 * LINES);
    }
}

#[test]
fn space_that_there_is_not_is_refused_when_it_is_asked_for() {
    let system = system();
    system.run(&["container", "create", "tank", "small", "--quota", "16MiB"]);
    let mount = system.mount("small", &[]);
    let file = File::create(mount.path("f")).expect("created");
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        assert_eq!(fallocate(&file, flags, 0, 40 << 30), Err(Errno::NOSPC));
    }
    assert_eq!(file.metadata().expect("stat").len(), 0);
    fallocate(&file, FallocateFlags::empty(), 0, 12 << 20).expect("there is room");
    assert_eq!(file.metadata().expect("stat").len(), 12 << 20);
    file.write_all_at(&vec![7; 12 << 20], 0).expect("written");
    file.sync_all().expect("synced");
    let used = || system.json(&["fs", "df", "tank", "small"])["used_bytes"].as_u64().expect("a number");
    harness::eventually("the space is seen", Duration::from_secs(20), || used() >= 12 << 20);
    fallocate(&file, FallocateFlags::empty(), 0, 12 << 20).expect("all of it is stored");
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 24 << 20), Err(Errno::NOSPC));
    assert_eq!(file.metadata().expect("stat").len(), 12 << 20);
    drop(file);
    mount.unmount();
}
