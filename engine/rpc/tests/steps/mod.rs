//! Counts the instructions of a part of a program, whatever machine it runs on: a child goes through that part one at a time.
#![expect(unsafe_code, reason = "tracing a process")]

use std::process::Command;

/// What became of a child that is waited for.
#[derive(PartialEq, Eq, Debug)]
enum Turn {
    Stopped(i32),
    Exited(i32),
    Killed,
}

/// Runs a program. Instructions of one part of what it does, and the code that it exits with; that code alone where it ends
/// before.
#[expect(
    clippy::zombie_processes,
    reason = "it is waited for by its number, with what it does before it ends"
)]
pub fn count(program: &mut Command) -> (Option<u64>, i32) {
    let child = program.spawn().expect("it starts");
    let pid = libc::pid_t::try_from(child.id()).expect("a process");
    let ended = |turn| if let Turn::Exited(code) = turn { code } else { panic!("{turn:?}") };
    // The child stops itself where the part begins, and where it ends.
    let turn = wait(pid);
    if turn != Turn::Stopped(libc::SIGSTOP) {
        return (None, ended(turn));
    }
    let mut steps = 0;
    loop {
        // SAFETY: it reads and writes no memory of this process.
        let going = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) };
        assert_eq!(going, 0, "{}", std::io::Error::last_os_error());
        match wait(pid) {
            Turn::Stopped(libc::SIGTRAP) => steps += 1,
            Turn::Stopped(libc::SIGSTOP) => break,
            turn => panic!("in the middle: {turn:?}"),
        }
    }
    // SAFETY: as above.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    (Some(steps), ended(wait(pid)))
}

fn wait(pid: libc::pid_t) -> Turn {
    let mut status = 0;
    // SAFETY: the call writes one number.
    let found = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(found, pid, "{}", std::io::Error::last_os_error());
    if libc::WIFSTOPPED(status) {
        Turn::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFEXITED(status) {
        Turn::Exited(libc::WEXITSTATUS(status))
    } else {
        Turn::Killed
    }
}

/// The child's side: `part` is what is counted. Whether it is: it is done in any case, also where the process may not be traced.
pub fn part(part: impl FnOnce()) -> bool {
    // SAFETY: neither call touches memory.
    let stop = || unsafe { libc::raise(libc::SIGSTOP) };
    // SAFETY: as above.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } != 0 {
        part();
        return false;
    }
    stop();
    part();
    stop();
    true
}
