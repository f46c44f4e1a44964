//! Inodes whose last name is gone.

use std::fs;
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
