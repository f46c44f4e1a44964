//! Room that files keep before they are written, on real mounts of real engines.

mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use harness::DevSystem;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("created")
}

/// Bytes that tell where they are.
fn content(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at / 4096 + at % 251).to_le_bytes()[0]).collect()
}

/// Appends to a file until there is no room.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("created");
    let block = content(MIB);
    for _ in 0..1000 {
        if let Err(error) = file.write_all(&block).and_then(|()| file.sync_all()) {
            assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{error}");
            return;
        }
    }
    panic!("a gigabyte fits");
}

#[test]
fn what_is_allocated_can_be_written_when_all_else_is_full() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    system.run(&["pool", "resize", "tank", "--size", "128MiB"]);
    system.run(&["container", "create", "tank", "narrow", "--quota", "48MiB"]);
    for container in ["home", "narrow"] {
        let mount = system.mount(container, &[]);
        let (long, kept) = (create(&mount.path("long")), create(&mount.path("kept")));
        fallocate(&long, FallocateFlags::empty(), 0, 20 * MIB + 5).expect("there is room");
        fallocate(&kept, FallocateFlags::KEEP_SIZE, 0, 5 * MIB).expect("there is room");
        let lens = [&long, &kept].map(|file| file.metadata().expect("stat").len());
        assert_eq!(lens, [20 * MIB + 5, 0]);
        assert_eq!(seek(&long, SeekFrom::Data(0)), Ok(20 * MIB + 4), "nothing is written but the last byte");
        assert!(long.metadata().expect("stat").blocks() * 512 < MIB);
        fill(&mount.path("rest"));
        system.run(&["dev", "kill", "0"]);
        for (file, len) in [(&long, 20 * MIB + 5), (&kept, 5 * MIB)] {
            file.write_all_at(&content(len), 0).expect("gathered");
            file.sync_all().expect("there is room for it");
        }
        let other = system.mount(container, &[]);
        assert!(fs::read(other.path("long")).expect("read") == content(20 * MIB + 5));
        assert!(fs::read(other.path("kept")).expect("read") == content(5 * MIB));
        other.unmount();
        drop((long, kept));
        for name in ["long", "kept", "rest"] {
            fs::remove_file(mount.path(name)).expect("removed");
        }
        mount.unmount();
    }
}

#[test]
fn allocated_room_comes_back_where_it_is_not_used() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB"]);
    system.run(&["container", "create", "tank", "narrow", "--quota", "48MiB"]);
    let mount = system.mount("narrow", &[]);
    let (one, other) = (create(&mount.path("one")), create(&mount.path("other")));
    let refused = |file: &File| {
        let before = file.metadata().expect("stat").len();
        assert_eq!(fallocate(file, FallocateFlags::empty(), 0, 30 * MIB), Err(Errno::NOSPC));
        assert_eq!(file.metadata().expect("stat").len(), before);
    };
    let accepted = |file: &File| {
        // Data that was written goes some seconds later.
        harness::eventually("there is room", Duration::from_secs(30), || {
            fallocate(file, FallocateFlags::KEEP_SIZE, 0, 30 * MIB).is_ok()
        });
    };
    fallocate(&one, FallocateFlags::empty(), 0, 30 * MIB).expect("there is room");
    // What is there already counts once.
    fallocate(&one, FallocateFlags::empty(), MIB, 29 * MIB).expect("there is room");
    refused(&other);
    one.set_len(MIB).expect("cut off");
    accepted(&other);
    refused(&one);
    // Nothing of it is below the end.
    other.set_len(0).expect("cut off");
    accepted(&one);
    refused(&other);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    one.set_len(30 * MIB).expect("lengthened");
    fallocate(&one, hole, 0, 30 * MIB).expect("punched");
    accepted(&other);
    refused(&one);
    drop(other);
    fs::remove_file(mount.path("other")).expect("removed");
    accepted(&one);
    drop(one);
    mount.unmount();
}
