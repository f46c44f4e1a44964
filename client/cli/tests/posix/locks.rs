//! Locks of two clients: never granted to both.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;

use super::harness::{Mounted, eventually, text};
use super::{shell, system};

fn open(mount: &Mounted<'_>) -> File {
    OpenOptions::new().read(true).write(true).open(mount.path("f")).expect("opened")
}

/// Both kinds of locks of a whole file.
fn lock(file: &File) -> [Result<(), Errno>; 2] {
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    [flock(file, exclusive), fcntl_lock(file, exclusive)]
}

const GRANTED: [Result<(), Errno>; 2] = [Ok(()); 2];
const REFUSED: [Result<(), Errno>; 2] = [Err(Errno::OPNOTSUPP); 2];

#[test]
fn one_client_grants_locks_and_the_others_refuse_them() {
    let system = system();
    let one = system.mount("home", &[]);
    fs::write(one.path("f"), "").expect("written");
    let (other, reader) = (system.mount("home", &[]), system.mount("home", &["--read-only"]));
    let locked = open(&one);
    assert_eq!(lock(&locked), GRANTED);
    assert_eq!(flock(open(&one), FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    let refused = open(&other);
    assert_eq!(lock(&refused), REFUSED);
    flock(&refused, FlockOperation::Unlock).expect("nothing to unlock");
    assert_eq!(
        flock(File::open(reader.path("f")).expect("opened"), FlockOperation::LockShared),
        Err(Errno::OPNOTSUPP)
    );
    drop((locked, refused));
    one.unmount();
    other.unmount();
    assert_eq!(lock(&open(&system.mount("home", &[]))), GRANTED, "nobody else is there");
}

#[test]
fn a_mount_that_is_made_again_after_it_was_killed_grants_locks() {
    let system = system();
    let directory = system.folder().join("killed");
    fs::create_dir(&directory).expect("a directory");
    let mut mount = system.weir();
    mount.args(["mount", "--foreground", "tank", "home"]).arg(&directory);
    let mut process = mount.stderr(Stdio::null()).spawn().expect("weir runs");
    eventually("mounted", Duration::from_mins(1), || {
        shell(Path::new("/"), "cat /proc/mounts").contains("killed")
    });
    let file = File::create(directory.join("f")).expect("created");
    assert_eq!(lock(&file), GRANTED);
    process.kill().expect("killed");
    process.wait().expect("ended");
    shell(Path::new("/"), &format!("umount --lazy {}", directory.display()));
    drop(file);
    let again = system.mount("home", &[]);
    fs::write(again.path("f"), "").expect("written");
    assert_eq!(lock(&open(&again)), GRANTED);
}

/// Adds a row to a table.
const INSERT: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], timeout=1)
base.execute('create table if not exists t(x)'); base.execute('insert into t values (1)'); base.commit()
print(base.execute('pragma integrity_check').fetchone()[0], base.execute('select count(*) from t').fetchone()[0])
";

#[test]
fn a_database_that_two_clients_open_is_not_damaged() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let insert = |mount: &Mounted<'_>| {
        let mut command = Command::new("python3");
        command.args(["-c", INSERT]).arg(mount.path("base")).output().expect("python3 runs")
    };
    for rows in 1..=3 {
        let done = insert(&one);
        assert_eq!(text(&done), format!("ok {rows}\n"));
        let refused = insert(&other);
        assert!(
            !refused.status.success() && text(&refused).contains("sqlite3.OperationalError"),
            "{}",
            text(&refused)
        );
    }
    // What takes names for locks goes on on both.
    for mount in [&one, &other] {
        shell(
            mount.directory(),
            "git init -q r 2>/dev/null; cd r; date > f; git add f; git -c user.name=n -c user.email=e commit -qm c --allow-empty",
        );
    }
}
