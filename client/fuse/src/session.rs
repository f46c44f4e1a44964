//! FUSE sessions on descriptors that the mount broker has made.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fuser::{Config, Session, SessionACL};

use crate::filesystem::WeirFs;
use crate::handover::{Seat, receive, send};

/// The kernel's first request (linux/fuse.h): its opcode, and the protocol version that every kernel has which sends requests again.
const INIT: u32 = 26;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;

/// Bytes of the head of a request, of one's whole, and of the longest answer.
const IN_HEAD: u32 = 40;
const INIT_BYTES: u32 = IN_HEAD + 64;
const ANSWER_MAX: usize = 4096;

/// Bytes of the head of an answer or notice, and the notice that asks for what is unanswered.
const OUT_HEAD: u32 = 16;
const RESEND: i32 = 7;

/// A session on a new mount.
///
/// # Errors
/// When the kernel's first request doesn't come.
pub fn begin(filesystem: WeirFs, device: OwnedFd, config: Config) -> io::Result<Session<WeirFs>> {
    Session::from_fd(filesystem, device, SessionACL::All, config)
}

/// A session on a mount that another process has served. The kernel sends again what that one has not answered.
///
/// # Errors
/// When the kernel can't (before Linux 6.9): then programs would wait for those answers for ever.
pub fn succeed(
    filesystem: WeirFs,
    device: &OwnedFd,
    Seat { session, kernel }: Seat,
    config: Config,
) -> io::Result<Session<WeirFs>> {
    send(&kernel, &first_request(), &[])?;
    let session = Session::from_fd(filesystem, session, SessionACL::All, config)?;
    // The answer says what the kernel has been told already.
    receive(&kernel, ANSWER_MAX)?;
    rustix::stdio::dup2_stdin(device)?;
    resend(device)?;
    Ok(session)
}

/// What the kernel begins with. It offers everything, so that the answer doesn't depend on it.
fn first_request() -> Vec<u8> {
    // Length, opcode, unique (2), node (2), uid, gid, pid, padding; then major, minor, read-ahead, flags (2), reserved (11).
    let mut words = vec![INIT_BYTES, INIT, 2, 0, 0, 0, 0, 0, 0, 0, MAJOR, MINOR, 1 << 20, u32::MAX, u32::MAX];
    words.resize(words.len() + 11, 0);
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Asks the kernel for what is unanswered.
fn resend(device: impl AsFd) -> io::Result<()> {
    let mut notice = Vec::new();
    notice.extend(OUT_HEAD.to_ne_bytes());
    notice.extend(RESEND.to_ne_bytes());
    notice.extend(0_u64.to_ne_bytes());
    rustix::io::write(device, &notice)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_has_the_length_that_it_says() {
        assert_eq!(first_request().len(), INIT_BYTES as usize);
    }
}
