//! Programs that run from a mount.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};

use super::{errno, system};

#[test]
fn a_program_that_runs_can_neither_be_written_to_nor_cut_off() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = mount.path("cat");
    fs::copy("/bin/cat", &path).expect("copied");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("set");
    let length = fs::metadata(&path).expect("stat").len();
    let mut running =
        Command::new(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut into = running.stdin.take().expect("a pipe");
    let mut from = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut echo = |line: &str| {
        into.write_all(line.as_bytes()).expect("it reads");
        let mut answer = String::new();
        from.read_line(&mut answer).expect("it writes");
        assert_eq!(answer, line);
    };
    echo("before\n");
    for (writes, flags) in [(true, 0), (true, libc::O_TRUNC), (false, libc::O_TRUNC)] {
        let opened = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(&path);
        assert_eq!(errno(opened), libc::ETXTBSY, "writes: {writes}, flags: {flags}");
    }
    // Its pages are there still.
    echo("behind\n");
    assert_eq!(fs::metadata(&path).expect("stat").len(), length);
    drop(into);
    assert!(running.wait().expect("it is ours").success());
    // Nothing keeps its file any more. Linux cuts off what is opened for reading only, too.
    OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&path).expect("opened");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 0);
}
