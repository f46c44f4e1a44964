//! What a client has open while another one removes, replaces or cuts it off.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::harness::eventually;
use super::{shell, system};

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
    let used = || statfs_used(one.directory()).expect("space");
    let before = used();
    for script in ["rm f", "echo new > t; mv t f"] {
        fs::write(one.path("f"), whole()).expect("written");
        let (direct, cached) = (open_direct(&other.path("f")), File::open(other.path("f")).expect("opened"));
        shell(one.directory(), script);
        for _ in 0..20 {
            assert!(read(&direct).expect("read") == whole(), "{script}");
            assert_eq!(direct.metadata().expect("stat").len(), whole().len() as u64);
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(read(&cached).expect("read") == whole(), "{script}");
    }
    eventually("the space is free", Duration::from_mins(2), || used() < before + MIB as u64);
}

/// Bytes that a file system holds.
fn statfs_used(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok((found.f_blocks - found.f_bfree) * found.f_frsize)
}

#[test]
fn what_a_killed_client_had_open_goes_when_it_comes_again() {
    let system = system();
    let one = system.mount("home", &[]);
    let before = statfs_used(one.directory()).expect("space");
    fs::write(one.path("f"), whole()).expect("written");
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
    let used = || statfs_used(one.directory()).expect("space");
    eventually("the space is free", Duration::from_mins(2), || used() < before + MIB as u64);
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
