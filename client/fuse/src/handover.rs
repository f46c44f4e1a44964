//! A mount's descriptors, as they pass between processes: packets of a unix socket with descriptors beside them.
//!
//! A process that serves a mount which the mount broker has made gets its descriptors through its standard input, from the
//! daemon that starts it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Descriptors beside a packet, at most.
pub const DESCRIPTORS_MAX: usize = 2;

/// Sends a packet.
///
/// # Errors
/// When the peer is gone.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let has_too_many = descriptors.len() > DESCRIPTORS_MAX;
    if has_too_many || !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a packet of at most so many bytes. An empty one is the end of the conversation.
///
/// # Errors
/// When it doesn't come, or is longer.
pub fn receive(socket: impl AsFd, most: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet is too long"));
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

/// Two ends of a conversation in packets.
///
/// # Errors
/// When the system has no descriptor left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// What the mount broker keeps of a mount.
#[derive(Debug)]
pub struct Descriptors {
    /// The mount's `/dev/fuse`.
    pub device: OwnedFd,
    /// Its memory file.
    pub memory: OwnedFd,
}

impl Descriptors {
    /// Those that came beside a packet.
    ///
    /// # Errors
    /// When they are not two.
    pub fn of(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [device, memory] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|other| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{} descriptors came, not two", other.len()))
        })?;
        Ok(Self { device, memory })
    }

    /// In the order in which they travel.
    #[must_use]
    pub fn borrowed(&self) -> [BorrowedFd<'_>; 2] {
        [self.device.as_fd(), self.memory.as_fd()]
    }
}

/// The packet for a process that begins to serve a mount, and for one that takes it from another.
const BEGINS: &[u8] = b"begin";
const SUCCEEDS: &[u8] = b"succeed";

/// Hands a mount over to the process at the other end.
///
/// # Errors
/// When it is gone.
pub fn hand_over(socket: impl AsFd, mount: &Descriptors, succeeds: bool) -> io::Result<()> {
    send(socket, if succeeds { SUCCEEDS } else { BEGINS }, &mount.borrowed())
}

/// A mount as the process gets it that is to serve it.
#[derive(Debug)]
pub struct Handed {
    /// The mount's `/dev/fuse`.
    pub device: OwnedFd,
    /// The mount's memory file.
    pub memory: File,
    /// For a process that takes the mount from another.
    pub seat: Option<Seat>,
}

/// Descriptor number 0 of this process, which a FUSE session is to have.
///
/// The library begins a session by reading the kernel's first request from the session's descriptor. The kernel sends that
/// once, and the process before has had it. So the session begins on a socket, with a request of our own; then the mount's
/// device takes the socket's number. Standard input is the one number that safe code may replace while it is in use.
#[derive(Debug)]
pub struct Seat {
    /// The end that the session gets; its number is 0.
    pub session: OwnedFd,
    /// The end that plays the kernel.
    pub kernel: OwnedFd,
}

impl Seat {
    /// Takes number 0. No other thread may run yet: it could get the number.
    fn take() -> io::Result<Self> {
        let (session, kernel) = pair()?;
        nix::unistd::close(0)?;
        // The lowest number that is free.
        let session = rustix::io::dup(session)?;
        if session.as_raw_fd() != 0 {
            return Err(io::Error::other("descriptor 0 is in use"));
        }
        Ok(Self { session, kernel })
    }
}

/// Receives the mount that this process is to serve. Called first of all, while the process has one thread.
///
/// # Errors
/// When none comes.
pub fn take_over() -> io::Result<Handed> {
    let (bytes, descriptors) = receive(rustix::stdio::stdin(), SUCCEEDS.len())?;
    let Descriptors { device, memory } = Descriptors::of(descriptors)?;
    let seat = match bytes.as_slice() {
        BEGINS => None,
        SUCCEEDS => Some(Seat::take()?),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no mount came")),
    };
    Ok(Handed { device, memory: memory.into(), seat })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_with_their_packet_and_a_long_packet_is_refused() {
        let (ours, theirs) = pair().expect("made");
        let file = tempfile::tempfile().expect("made");
        let mount = Descriptors {
            device: file.try_clone().expect("cloned").into(),
            memory: file.try_clone().expect("cloned").into(),
        };
        hand_over(&ours, &mount, true).expect("sent");
        let (bytes, descriptors) = receive(&theirs, 16).expect("received");
        assert_eq!((bytes.as_slice(), descriptors.len()), (SUCCEEDS, 2));
        assert!(Descriptors::of(descriptors).is_ok());
        send(&ours, &[1; 17], &[]).expect("sent");
        assert!(receive(&theirs, 16).is_err());
        send(&ours, b"x", &[file.as_fd()]).expect("sent");
        let (_, one) = receive(&theirs, 16).expect("received");
        assert!(Descriptors::of(one).is_err());
        assert!(send(&ours, b"x", &[file.as_fd(); 3]).is_err());
        drop(ours);
        assert!(receive(&theirs, 16).expect("the end").0.is_empty());
    }
}
