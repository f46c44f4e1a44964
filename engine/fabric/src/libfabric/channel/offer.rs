//! Offering a channel: memory that goes from one process to another through the socket of a bell.

use super::VERSION;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// First byte of an offer; a ring of the bell is another one.
const OFFER: u8 = b'c';

/// Longest offer: its first byte, the version, and a name.
const OFFER_MAX: usize = 128;

/// What somebody has offered.
pub(in crate::libfabric) struct Offer {
    /// Who it says it is.
    pub(super) name: String,
    /// The process that it comes from, as this one's namespace counts it.
    pub(super) process: u32,
    /// The channel's memory.
    pub(super) memory: OwnedFd,
}

/// Offers a channel to the endpoint whose socket this is, in the name of another one.
pub(in crate::libfabric) fn send(
    socket: &UnixDatagram,
    to: &Path,
    name: &str,
    memory: &OwnedFd,
) -> io::Result<()> {
    let version = VERSION.to_le_bytes();
    let parts = [IoSlice::new(&[OFFER]), IoSlice::new(&version), IoSlice::new(name.as_bytes())];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let memory = [memory.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&memory)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg_addr(socket, &SocketAddrUnix::new(to)?, &parts, &mut control, flags)?;
    Ok(())
}

/// What stands in a bell's socket.
#[derive(Default)]
pub(in crate::libfabric) struct Received {
    /// An offer was among it.
    pub(in crate::libfabric) offer: Option<Offer>,
    /// There may be more.
    pub(in crate::libfabric) more: bool,
}

/// Takes one datagram from a bell's socket.
pub(in crate::libfabric) fn receive(socket: &UnixDatagram) -> Received {
    let mut bytes = [0; OFFER_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let len = match received {
        Ok(received) => received.bytes,
        Err(Errno::INTR) => return Received { offer: None, more: true },
        Err(_) => return Received::default(),
    };
    // What isn't wanted of it is closed here.
    let (mut memory, mut process) = (None, None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(files) => memory = files.last(),
            RecvAncillaryMessage::ScmCredentials(sender) => process = Some(sender.pid.as_raw_pid()),
            _ => {}
        }
    }
    let process = process.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    let name = bytes[..len]
        .strip_prefix(&[OFFER])
        .and_then(|rest| rest.strip_prefix(&VERSION.to_le_bytes()))
        .and_then(|name| str::from_utf8(name).ok());
    let offer = name.zip(memory).map(|(name, memory)| Offer { name: name.to_owned(), process, memory });
    Received { offer, more: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn memory(name: &str) -> OwnedFd {
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("memory")
    }

    /// The socket of a bell, and another one.
    struct Sockets {
        _folder: tempfile::TempDir,
        path: PathBuf,
        to: UnixDatagram,
        from: UnixDatagram,
    }

    impl Sockets {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("socket");
            let to = UnixDatagram::bind(&path).expect("bound");
            Self { _folder: folder, path, to, from: UnixDatagram::unbound().expect("a socket") }
        }
    }

    #[test]
    fn an_offer_arrives_with_its_memory_and_a_ring_is_none() {
        let Sockets { path, to, from, .. } = &Sockets::new();
        from.send_to(&[1], path).expect("rung");
        send(from, path, "weir-1-2-3", &memory("weir-test")).expect("sent");
        from.send_to(b"c\x02\0\0\0weir-1-2-3", path).expect("sent");
        let received: Vec<_> = std::iter::repeat_with(|| receive(to)).take(4).collect();
        let names: Vec<_> =
            received.iter().map(|one| one.offer.as_ref().map(|offer| offer.name.as_str())).collect();
        assert_eq!(names, [None, Some("weir-1-2-3"), None, None]);
        assert_eq!(received.iter().map(|one| one.more).collect::<Vec<_>>(), [true, true, true, false]);
    }

    #[test]
    fn files_that_come_with_anything_else_are_closed() {
        let Sockets { path, to, from, .. } = &Sockets::new();
        // Other tests of this process open files of other names.
        let stray = || memory("weir-stray");
        let open = || {
            let files = std::fs::read_dir("/proc/self/fd").expect("listed").flatten();
            let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
            links.filter(|link| link.to_string_lossy().contains("weir-stray")).count()
        };
        for _ in 0..5 {
            // A name that is no text.
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [stray(), stray(), stray()];
            let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
            let address = SocketAddrUnix::new(path).expect("an address");
            let bytes = [IoSlice::new(b"c\x01\0\0\0\xff")];
            rustix::net::sendmsg_addr(from, &address, &bytes, &mut control, SendFlags::empty())
                .expect("sent");
        }
        assert_eq!(open(), 0, "what is in a socket has no number");
        let received: Vec<Received> = std::iter::repeat_with(|| receive(to)).take(6).collect();
        assert_eq!((received[4].more, received[5].more, open()), (true, false, 0));
    }
}
