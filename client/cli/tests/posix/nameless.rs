//! Inodes whose last name is gone.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::{errno, harness, shell, system};

/// What calls on a directory and a file without a name say, for comparison with a local file system.
const NAMELESS: &str = r"
import os, sys
base = sys.argv[1]
def say(what, call):
    try: print(what, call())
    except OSError as error: print(what, 'errno', error.errno)
os.mkdir(base + '/c'); os.setxattr(base + '/c', 'user.kept', b'1'); d = os.open(base + '/c', os.O_RDONLY); os.rmdir(base + '/c')
say('create', lambda: os.open('n', os.O_CREAT | os.O_WRONLY, dir_fd=d))
say('mkdir', lambda: os.mkdir('m', dir_fd=d))
say('links', lambda: os.fstat(d).st_nlink)
say('list', lambda: os.listdir(d))
say('stat', lambda: os.stat('x', dir_fd=d))
say('chmod', lambda: (os.fchmod(d, 0o700), oct(os.fstat(d).st_mode)))
say('fsync', lambda: os.fsync(d))
say('utime', lambda: (os.utime(d, ns=(5, 7)), os.fstat(d).st_mtime_ns))
say('kept', lambda: os.getxattr(d, 'user.kept'))
f = os.open(base + '/f', os.O_CREAT | os.O_RDWR); os.write(f, b'content'); os.setxattr(f, 'user.kept', b'1'); os.unlink(base + '/f')
say('links', lambda: os.fstat(f).st_nlink)
say('set', lambda: os.setxattr(f, 'user.a', b'2'))
say('again', lambda: os.setxattr(f, 'user.a', b'2', os.XATTR_CREATE))
say('xattrs', lambda: [(name, os.getxattr(f, name)) for name in sorted(os.listxattr(f)) if name.startswith('user.')])
say('remove', lambda: os.removexattr(f, 'user.kept'))
say('removed', lambda: os.getxattr(f, 'user.kept'))
say('utime', lambda: (os.utime(f, ns=(5, 7)), os.fstat(f).st_mtime_ns))
say('chmod', lambda: (os.fchmod(f, 0o600), oct(os.fstat(f).st_mode)))
say('chown', lambda: (os.fchown(f, 1, 1), os.fstat(f).st_uid, os.fstat(f).st_gid))
say('truncate', lambda: (os.ftruncate(f, 77), os.fstat(f).st_size))
say('reopen', lambda: os.close(os.open(f'/proc/self/fd/{f}', os.O_RDWR)))
say('fsync', lambda: os.fsync(f))
os.write(f, b'x')
say('utime after a write', lambda: (os.utime(f, ns=(5, 7)), os.fstat(f).st_mtime_ns))
say('read', lambda: os.pread(f, 9, 0))
";

#[test]
fn inodes_without_a_name_are_served_as_a_local_file_system_does() {
    let system = system();
    let mount = system.mount("home", &[]);
    let local = tempfile::Builder::new().prefix("weir-local-").tempdir_in("/tmp").expect("a folder");
    let said = |directory: &Path| {
        let output =
            Command::new("python3").args(["-c", NAMELESS]).arg(directory).output().expect("python3 runs");
        assert!(output.status.success(), "{}", harness::text(&output));
        harness::text(&output)
    };
    assert_eq!(said(mount.directory()), said(local.path()));
}

/// What a client does with files through their descriptors, one call right after the other, when another one has removed their
/// names; it says what goes wrong.
const REMOVED_ELSEWHERE: &str = r"
import itertools, os, stat, sys, time
here, there = sys.argv[1:]
def attribute(f): os.setxattr(f, 'user.a', b'1'); assert os.getxattr(f, 'user.a') == b'1'
def mode(f): os.fchmod(f, 0o600); assert stat.S_IMODE(os.fstat(f).st_mode) == 0o600
def owner(f): os.fchown(f, 1, 2); assert (os.fstat(f).st_uid, os.fstat(f).st_gid) == (1, 2)
def times(f): os.utime(f, ns=(5, 7)); assert (os.fstat(f).st_atime_ns, os.fstat(f).st_mtime_ns) == (5, 7)
def write(f): assert os.pwrite(f, b'written', 0) == 7
def read(f): assert os.pread(f, 9, 0) == b'written'
def cut(f): os.ftruncate(f, 3); assert os.fstat(f).st_size == 3
def empty(f): os.ftruncate(f, 0); assert os.pread(f, 9, 0) == b'' and os.fstat(f).st_size == 0
def missing(f):
    try: os.removexattr(f, 'user.none')
    except OSError as error: assert error.errno == 61
SEQUENCES = [
    [cut], [empty, write, os.fsync, read], [attribute], [missing], [owner],
    [mode, write, os.fsync, read], [times, write, os.fsync, read], [times, mode, os.fsync],
    [os.fstat, mode, times, attribute, write, os.fsync, read, cut],
]
WAYS = [('create', os.O_CREAT | os.O_EXCL), ('write', os.O_CREAT | os.O_EXCL), ('cut off', os.O_CREAT | os.O_TRUNC), ('open', 0), ('open on both', 0)]
held = []
for (number, ((way, flags), removes, calls)) in enumerate(itertools.product(WAYS, [True, False], SEQUENCES)):
    name = f'/f{number}'
    what = (way, removes, [call.__name__ for call in calls])
    if not flags & os.O_EXCL:
        with open(here + name, 'w') as file: file.write('before')
    f = os.open(here + name, os.O_RDWR | flags)
    if way == 'write': os.write(f, b'before')
    remover = os.open(there + name, os.O_RDONLY) if way == 'open on both' else None
    if removes:
        os.unlink(there + name)
    else:
        with open(there + '/t', 'w') as file: file.write('another')
        os.rename(there + '/t', there + name)
    try:
        for call in calls: call(f)
    except (OSError, AssertionError) as error: print(what, call.__name__, repr(error))
    held.append((what, f))
    if remover is not None: held.append((what, remover))
    if not removes:
        with open(here + name) as file: assert file.read() == 'another', what
for (what, f) in held:
    for _ in range(200):
        if os.fstat(f).st_nlink == 0: break
        time.sleep(.1)
    else: print(what, 'link count', os.fstat(f).st_nlink)
    try: os.close(f)
    except OSError as error: print(what, 'close', repr(error))
";

#[test]
fn a_file_that_another_client_removes_is_served_on_from_the_next_call() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let mut python = Command::new("python3");
    let output = python.args(["-c", REMOVED_ELSEWHERE]).arg(one.directory()).arg(other.directory()).output();
    let output = output.expect("python3 runs");
    assert!(output.status.success(), "{}", harness::text(&output));
    assert_eq!(harness::text(&output), "");
}

#[test]
fn a_file_that_another_client_has_renamed_takes_no_attributes_here_before_it_is_found() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    fs::write(one.path("f"), "").expect("created");
    let open = fs::OpenOptions::new().write(true).open(one.path("f")).expect("opened");
    fs::rename(other.path("f"), other.path("g")).expect("renamed");
    let hide = || open.set_permissions(fs::Permissions::from_mode(0o600));
    assert_eq!(errno(hide()), libc::ESTALE, "kept here, nobody else would see it");
    open.write_at(b"content", 0).expect("written");
    open.sync_all().expect("synced");
    assert_eq!(fs::read(one.path("g")).expect("found"), b"content");
    hide().expect("changed");
    let seen = fs::metadata(other.path("g")).expect("there").permissions().mode();
    assert_eq!(seen & 0o777, 0o600);
}

#[test]
fn two_clients_remove_one_tree_without_stale_handles() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    for _ in 0..3 {
        let script =
            "for d in $(seq 20); do mkdir -p tree/$d/in; touch tree/$d/a tree/$d/b tree/$d/in/c; done";
        shell(one.directory(), script);
        let remove = |directory: &Path| {
            let mut command = Command::new("rm");
            command.args(["-rf", "tree"]).current_dir(directory).stderr(std::process::Stdio::piped());
            command.spawn().expect("rm runs")
        };
        let both = [remove(one.directory()), remove(other.directory())];
        for rm in both {
            let output = rm.wait_with_output().expect("it ends");
            assert!(!harness::text(&output).contains("Stale"), "{}", harness::text(&output));
        }
        assert_eq!(errno(fs::read_dir(one.path("tree"))), libc::ENOENT);
    }
}
