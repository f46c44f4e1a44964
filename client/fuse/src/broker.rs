//! Asks the mount broker (`csi/internal/broker`, whose package comment is the protocol) to mount and unmount.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::handover::{Descriptors, receive, send};

/// Version of the protocol.
const VERSION: &str = "1";

/// Longest packet: two paths and some short fields.
const PACKET_MAX: usize = 3 * 4096;

/// How long an answer may take: an unmount waits for the process of the mount to take what is dirty.
const PATIENCE: Duration = Duration::from_secs(100);

/// A broker, by its socket.
#[derive(Clone, Debug)]
pub struct Broker {
    socket: PathBuf,
}

/// A mount that the broker lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Where.
    pub target: PathBuf,
    /// Whether the broker has its descriptors.
    pub is_held: bool,
}

fn malformed(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("mount broker: {what}"))
}

/// An answer with its descriptors.
struct Answer {
    fields: Vec<Vec<u8>>,
    descriptors: Vec<OwnedFd>,
}

impl Answer {
    fn receive(socket: &OwnedFd) -> io::Result<Self> {
        let (bytes, descriptors) = receive(socket, PACKET_MAX)?;
        if bytes.is_empty() {
            return Err(malformed("it has closed the connection"));
        }
        let fields = bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        Ok(Self { fields, descriptors })
    }

    /// The fields behind "ok".
    fn into_result(self) -> io::Result<Self> {
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        match self.fields.as_slice() {
            [ok, ..] if ok == b"ok" => {
                Ok(Self { fields: self.fields[1..].to_vec(), descriptors: self.descriptors })
            }
            [error, errno, message] if error == b"error" => {
                let errno = text(errno).parse().map_err(|_| malformed("an errno that is no number"))?;
                Err(io::Error::new(io::Error::from_raw_os_error(errno).kind(), text(message)))
            }
            _ => Err(malformed("an answer that is none")),
        }
    }
}

impl Broker {
    /// The broker at a socket.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("mount broker at {}: {error}", self.socket.display()))
        };
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        let address = SocketAddrUnix::new(self.socket.as_path()).map_err(|error| failed(error.into()))?;
        rustix::net::connect(&socket, &address).map_err(|error| failed(error.into()))?;
        Ok(socket)
    }

    /// Sends a request on a connection of its own, and returns that with the first answer. Blocks.
    fn ask(&self, fields: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<(OwnedFd, Answer)> {
        if fields.iter().any(|field| field.contains(&0)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a NUL in a path or name"));
        }
        let socket = self.connect()?;
        let request = [&[VERSION.as_bytes()], fields].concat().join(&0);
        send(&socket, &request, descriptors)?;
        let answer = Answer::receive(&socket)?.into_result()?;
        Ok((socket, answer))
    }

    /// Mounts a FUSE file system. Blocks, as all of these do.
    ///
    /// # Errors
    /// When the broker refuses or is not there.
    pub fn mount(&self, target: &Path, source: &str, options: &str) -> io::Result<Descriptors> {
        let fields = [b"mount", target.as_os_str().as_bytes(), source.as_bytes(), options.as_bytes()];
        Descriptors::of(self.ask(&fields, &[])?.1.descriptors)
    }

    /// Tells that a mount answers.
    ///
    /// # Errors
    /// As [`Broker::mount`].
    pub fn ready(&self, target: &Path) -> io::Result<()> {
        self.ask(&[b"ready", target.as_os_str().as_bytes()], &[]).map(drop)
    }

    /// The descriptors of a mount that the broker keeps.
    ///
    /// # Errors
    /// As [`Broker::mount`].
    pub fn take(&self, target: &Path) -> io::Result<Descriptors> {
        Descriptors::of(self.ask(&[b"take", target.as_os_str().as_bytes()], &[])?.1.descriptors)
    }

    /// Has the broker give up the descriptors of a mount. One that it doesn't have is fine.
    ///
    /// # Errors
    /// As [`Broker::mount`].
    pub fn release(&self, target: &Path) -> io::Result<()> {
        self.ask(&[b"release", target.as_os_str().as_bytes()], &[]).map(drop)
    }

    /// Gives the broker what it lacks since it was restarted.
    ///
    /// # Errors
    /// As [`Broker::mount`].
    pub fn give(&self, target: &Path, mount: &Descriptors) -> io::Result<()> {
        self.ask(&[b"give", target.as_os_str().as_bytes()], &mount.borrowed()).map(drop)
    }

    /// Removes the mount on top at a path. One that is not there is fine.
    ///
    /// # Errors
    /// As [`Broker::mount`]; [`io::ErrorKind::ResourceBusy`] when it is in use and not to be detached.
    pub fn unmount(&self, target: &Path, detach: bool) -> io::Result<()> {
        let mode: &[u8] = if detach { b"detach" } else { b"clean" };
        match self.ask(&[b"unmount", target.as_os_str().as_bytes(), mode], &[]) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound)
                    && self.socket.exists() =>
            {
                Ok(())
            }
            unmounted => unmounted.map(drop),
        }
    }

    /// All mounts of Weir's at the places that the broker serves.
    ///
    /// # Errors
    /// As [`Broker::mount`].
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let (socket, head) = self.ask(&[b"list"], &[])?;
        let count = head.fields.first().and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
        let count: usize = count.ok_or_else(|| malformed("a list without a length"))?;
        let mut list = Vec::new();
        for _ in 0..count {
            let fields = Answer::receive(&socket)?.fields;
            let [target, _, state] = fields.as_slice() else {
                return Err(malformed("an entry that is none"));
            };
            let target = std::ffi::OsStr::from_bytes(target).into();
            list.push(Listed { target, is_held: state == b"held" });
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::pair;

    fn answer(text: &[u8]) -> io::Result<Answer> {
        let (ours, theirs) = pair().expect("made");
        send(&ours, text, &[]).expect("sent");
        Answer::receive(&theirs)?.into_result()
    }

    #[test]
    fn an_answer_is_understood_and_what_is_none_is_an_error() {
        assert_eq!(answer(b"ok\x000:5").expect("fine").fields, [b"0:5".to_vec()]);
        let refused = answer(b"error\x0016\0it is in use").err().expect("refused");
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (io::ErrorKind::ResourceBusy, "it is in use")
        );
        for bad in [&b"error\0x\0y"[..], b"error", b"yes", b"\0", b""] {
            assert!(answer(bad).is_err(), "{bad:?}");
        }
        let broker = Broker::new("/nowhere/broker.sock".into());
        assert!(broker.ready(Path::new("/a\0b")).is_err());
        assert!(broker.unmount(Path::new("/a"), true).is_err(), "nobody was asked");
    }
}
