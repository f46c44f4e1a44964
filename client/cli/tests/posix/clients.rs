//! What a client has open while another one removes, replaces or cuts it off.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use super::harness::{DevSystem, eventually};
use super::{errno, shell, system};

const MIB: usize = 1 << 20;

/// Content of several chunks.
fn whole() -> Vec<u8> {
    vec![b'x'; 3 * MIB]
}

/// Opens a file so that every read asks the engines.
fn open_direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT).open(path).expect("opened")
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let (mut bytes, mut len) = (vec![0; 3 * MIB + 4096], 0);
    loop {
        match file.read_at(&mut bytes[len..], len as u64)? {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

#[test]
fn a_file_that_another_client_removes_or_replaces_is_there_until_it_is_closed() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let space = Space::of(one.directory());
    for script in ["rm f", "echo new > t; mv t f"] {
        fs::write(one.path("f"), whole()).expect("written");
        let (direct, cached) = (open_direct(&other.path("f")), File::open(other.path("f")).expect("opened"));
        space.is_taken();
        shell(one.directory(), script);
        for _ in 0..20 {
            assert!(read(&direct).expect("read") == whole(), "{script}");
            assert_eq!(direct.metadata().expect("stat").len(), whole().len() as u64);
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(read(&cached).expect("read") == whole(), "{script}");
    }
    space.is_freed();
}

/// What a file system held at first.
struct Space<'a> {
    mount: &'a Path,
    before: u64,
}

impl<'a> Space<'a> {
    fn of(mount: &'a Path) -> Self {
        Self { mount, before: used(mount) }
    }

    /// Waits until the engines have told of what was written.
    fn is_taken(&self) {
        eventually("the space is taken", Duration::from_secs(20), || {
            used(self.mount) > self.before + 2 * MIB as u64
        });
    }

    /// Waits until they have told that it is free again.
    fn is_freed(&self) {
        eventually("the space is free", Duration::from_mins(2), || {
            used(self.mount) < self.before + MIB as u64
        });
    }
}

/// Bytes that a file system holds.
fn used(mount: &Path) -> u64 {
    let found = rustix::fs::statvfs(mount).expect("space");
    (found.f_blocks - found.f_bfree) * found.f_frsize
}

#[test]
fn what_a_killed_client_had_open_goes_when_it_comes_again() {
    let system = system();
    let one = system.mount("home", &[]);
    let space = Space::of(one.directory());
    fs::write(one.path("f"), whole()).expect("written");
    space.is_taken();
    let directory = system.folder().join("killed");
    fs::create_dir(&directory).expect("a directory");
    let mut mount = system.weir();
    mount.args(["mount", "--foreground", "tank", "home"]).arg(&directory);
    let mut process = mount.stderr(Stdio::null()).spawn().expect("weir runs");
    eventually("mounted", Duration::from_mins(1), || directory.join("f").exists());
    let open = open_direct(&directory.join("f"));
    shell(one.directory(), "rm f");
    assert!(read(&open).expect("read") == whole());
    process.kill().expect("killed");
    process.wait().expect("ended");
    shell(Path::new("/"), &format!("umount --lazy {}", directory.display()));
    drop(open);
    let _again = system.mount("home", &[]);
    space.is_freed();
}

#[test]
fn a_file_that_another_client_cuts_off_shows_its_new_size() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    for direct in [true, false] {
        fs::write(one.path("f"), whole()).expect("written");
        let path = other.path("f");
        let open = if direct { open_direct(&path) } else { File::open(&path).expect("opened") };
        let handle = OpenOptions::new().write(true).open(one.path("f")).expect("opened");
        handle.set_len(MIB as u64).expect("cut");
        let mut bytes = [1; 4096];
        assert_eq!(open.read_at(&mut bytes, 2 * MIB as u64).expect("read"), 0, "direct: {direct}");
        assert!(read(&open).expect("read") == whole()[..MIB], "direct: {direct}");
        assert_eq!(open.metadata().expect("stat").size(), MIB as u64);
    }
}

#[test]
fn what_another_client_cuts_off_is_never_read_as_zeros() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    // Nothing, a part of what the reader's kernel has by then, and parts of what it asks for next.
    let whole = whole();
    let long = [0, 5000, 20_000, 100_000, MIB + 1].map(|end| (whole.len(), end));
    // Read-ahead reaches the last page with a request of its own.
    let short = [0, 5000, 20_000].map(|end| (81_920 + 1000, end));
    for (len, end) in [&long[..], &short].concat().repeat(10) {
        fs::write(one.path("f"), &whole[..len]).expect("written");
        let open = File::open(other.path("f")).expect("opened");
        open.read_exact_at(&mut [0; 10], 0).expect("read");
        let handle = OpenOptions::new().write(true).open(one.path("f")).expect("opened");
        handle.set_len(end as u64).expect("cut");
        // Without asking for the size (as `read_to_end` does), which the kernel would ask the engines for.
        let bytes = read(&open).expect("read");
        assert!(bytes.len() >= end, "{} bytes of {end}", bytes.len());
        let zeros = bytes.iter().position(|byte| *byte != b'x');
        assert_eq!(zeros, None, "of {} bytes, the file ends at {end}", bytes.len());
    }
}

/// Zeros in what a file of `x` was read to be.
fn has_zeros(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != b'x')
}

#[test]
fn several_programs_that_read_side_by_side_get_no_zeros_for_what_another_client_cuts_off() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    for end in [0, 5000, 100_000, MIB + 1].repeat(15) {
        fs::write(one.path("f"), whole()).expect("written");
        let cut = OpenOptions::new().write(true).open(one.path("f")).expect("opened");
        let opens: Vec<File> = (0..4).map(|_| File::open(other.path("f")).expect("opened")).collect();
        let (path, start) = (other.path("f"), Barrier::new(opens.len() + 2));
        let zeros = std::thread::scope(|scope| {
            let readers: Vec<_> = opens
                .iter()
                .enumerate()
                .map(|(index, open)| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let mut bytes = vec![1; 64 << 10];
                        // Each begins elsewhere.
                        let offsets = (0..48).map(|block| ((block + 12 * index) % 48) as u64 * (64 << 10));
                        offsets.into_iter().any(|offset| {
                            let read = open.read_at(&mut bytes, offset).expect("read");
                            has_zeros(&bytes[..read])
                        })
                    })
                })
                .collect();
            let opener = scope.spawn(|| {
                start.wait();
                (0..10).any(|_| has_zeros(&fs::read(&path).expect("read")))
            });
            start.wait();
            cut.set_len(end as u64).expect("cut");
            let found = readers.into_iter().map(|reader| reader.join().expect("no panic"));
            found.chain([opener.join().expect("no panic")]).collect::<Vec<_>>()
        });
        assert_eq!(zeros, [false; 5], "the file ends at {end}; the last one opens it again and again");
        assert_eq!(
            fs::read(other.path("f")).expect("read").len(),
            end,
            "who opens it later gets the new end"
        );
    }
}

#[test]
fn a_file_that_is_replaced_all_the_time_is_read_whole() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    fs::write(one.path("conf"), "whole\n").expect("written");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..1500 {
                fs::write(one.path("t"), "whole\n").expect("written");
                fs::rename(one.path("t"), one.path("conf")).expect("renamed");
            }
        });
        while !writer.is_finished() {
            assert_eq!(fs::read_to_string(other.path("conf")).expect("read"), "whole\n");
        }
    });
}

/// A mount in a process of its own whose leases are renewed, and expire, thirty times as fast as usual.
struct Hasty {
    process: Child,
    directory: PathBuf,
}

impl Hasty {
    fn mount(system: &DevSystem, name: &str) -> Self {
        let directory = system.folder().join(name);
        fs::create_dir(&directory).expect("a directory");
        let mut mount = system.weir();
        mount
            .env("WEIR_LEASE_TURN_MS", "100")
            .args(["mount", "--foreground", "tank", "home"])
            .arg(&directory);
        let process = mount.stderr(Stdio::null()).spawn().expect("weir runs");
        let mounted =
            || shell(Path::new("/"), "cat /proc/mounts").contains(directory.to_str().expect("plain"));
        eventually("mounted", Duration::from_mins(1), mounted);
        Self { process, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("signalled");
    }
}

impl Drop for Hasty {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.directory).status();
    }
}

#[test]
fn what_is_gone_because_a_client_was_away_is_never_zeros_or_empty() {
    let system = system();
    let (away, there) = (Hasty::mount(&system, "away"), Hasty::mount(&system, "there"));
    let space = Space::of(&there.directory);
    fs::write(there.path("f"), whole()).expect("written");
    space.is_taken();
    let open = open_direct(&away.path("f"));
    assert!(read(&open).expect("read") == whole());
    let writes = OpenOptions::new().write(true).open(away.path("f")).expect("opened");
    away.signal(Signal::STOP);
    fs::remove_file(there.path("f")).expect("removed");
    // It is given up.
    space.is_freed();
    away.signal(Signal::CONT);
    for _ in 0..10 {
        assert_eq!(errno(read(&open).map(|bytes| bytes.len())), libc::ESTALE);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(errno(writes.set_permissions(Permissions::from_mode(0o600))), libc::ESTALE);
    eventually("writes are refused", Duration::from_secs(20), || writes.write_at(b"new", 0).is_err());
    fs::write(away.path("f"), "anew").expect("the mount itself goes on");
}

#[test]
fn a_mount_whose_locks_another_one_grants_by_now_serves_nothing() {
    let system = system();
    let (away, there) = (Hasty::mount(&system, "away"), Hasty::mount(&system, "there"));
    fs::write(away.path("f"), "content").expect("written");
    let open = File::open(away.path("f")).expect("opened");
    flock(&open, FlockOperation::NonBlockingLockExclusive).expect("granted");
    away.signal(Signal::STOP);
    // Its lease has expired when a mount that comes then is granted locks.
    let mut number = 0;
    eventually("another one grants locks", Duration::from_mins(2), || {
        number += 1;
        let next = Hasty::mount(&system, &format!("next-{number}"));
        let file = File::open(next.path("f")).expect("opened");
        let is_granted = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_granted {
            away.signal(Signal::CONT);
            eventually("the first one stops", Duration::from_secs(30), || fs::read(away.path("f")).is_err());
            assert_eq!(errno(fs::write(away.path("f"), "")), libc::EIO);
            assert_eq!(fs::read_to_string(there.path("f")).expect("read"), "content");
        }
        is_granted
    });
}
