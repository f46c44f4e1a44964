//! Offering a channel: memory is passed from one process to another through the socket of a doorbell.
#![expect(unsafe_code, reason = "a C function hands over a descriptor")]

use super::super::sys;
use super::VERSION;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// First byte of an offer; a ring of the doorbell is another one.
const OFFER: u8 = b'c';

/// Longest offer: its first byte, the version, and a name.
const OFFER_MAX: usize = 128;

/// An offer.
pub(in crate::libfabric) struct Offer {
    /// The name that the sender claims.
    pub(super) name: String,
    /// The process that it comes from, as this one's namespace counts it; 0: it can't be seen there.
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

/// What stands in a doorbell's socket.
#[derive(Default)]
pub(in crate::libfabric) struct Received {
    /// An offer was among it.
    pub(in crate::libfabric) offer: Option<Offer>,
    /// There may be more.
    pub(in crate::libfabric) more: bool,
}

/// A datagram, apart from its bytes.
struct Datagram {
    len: usize,
    /// What came with it, if that was exactly one.
    file: Option<OwnedFd>,
    /// The sender's process id, as this process's namespace counts; 0: the sender can't be seen there.
    process: u32,
}

/// Takes one datagram without waiting. It is written here because `rustix` has no number for a sender that can't be seen:
/// it takes the kernel's 0 for one that is never 0.
fn receive_datagram(socket: &UnixDatagram, bytes: &mut [u8]) -> Result<Datagram, Errno> {
    let (mut file, mut process) = (-1, 0);
    let start = bytes.as_mut_ptr().cast();
    // SAFETY: the socket is open, and the function writes no more bytes than there are.
    let len = unsafe {
        sys::weir_receive(socket.as_raw_fd(), start, bytes.len() as u64, &raw mut file, &raw mut process)
    };
    let file = (file >= 0).then(|| {
        // SAFETY: the kernel has just made it for this process, and no other code knows of it.
        unsafe { OwnedFd::from_raw_fd(file) }
    });
    let failed = || Errno::from_raw_os_error(i32::try_from(-len).unwrap_or(0));
    Ok(Datagram { len: usize::try_from(len).map_err(|_| failed())?, file, process })
}

/// The sender of an offer in this datagram, if it is an offer.
pub(super) fn name_in(datagram: &[u8]) -> Option<&str> {
    let name = datagram.strip_prefix(&[OFFER])?.strip_prefix(&VERSION.to_le_bytes())?;
    str::from_utf8(name).ok()
}

/// Takes one datagram from a doorbell's socket.
pub(in crate::libfabric) fn receive(socket: &UnixDatagram) -> Received {
    let mut bytes = [0; OFFER_MAX];
    let Datagram { len, file, process } = match receive_datagram(socket, &mut bytes) {
        Ok(datagram) => datagram,
        Err(Errno::INTR) => return Received { offer: None, more: true },
        Err(_) => return Received::default(),
    };
    // What comes with anything else is closed here.
    let offer = name_in(&bytes[..len]).zip(file).map(|(name, memory)| Offer {
        name: name.to_owned(),
        process,
        memory,
    });
    Received { offer, more: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn memory(name: &str) -> OwnedFd {
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("memory")
    }

    /// The socket of a doorbell, and another one.
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

    /// Sends bytes with that many files, whose names others of this process don't have.
    fn send_with(from: &UnixDatagram, path: &Path, bytes: &[u8], name: &str, files: usize) {
        let files: Vec<_> = std::iter::repeat_with(|| memory(name)).take(files).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(50))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let address = SocketAddrUnix::new(path).expect("an address");
        let bytes = [IoSlice::new(bytes)];
        rustix::net::sendmsg_addr(from, &address, &bytes, &mut control, SendFlags::empty()).expect("sent");
    }

    /// How many files of this name are open in this process.
    fn open(name: &str) -> usize {
        let files = std::fs::read_dir("/proc/self/fd").expect("listed").flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.filter(|link| link.to_string_lossy().contains(name)).count()
    }

    #[test]
    fn files_that_come_with_anything_else_are_closed() {
        let Sockets { path, to, from, .. } = &Sockets::new();
        for files in 1..=5 {
            // A name that is no text.
            send_with(from, path, b"c\x01\0\0\0\xff", "weir-stray", files);
        }
        assert_eq!(open("weir-stray"), 0, "what is in a socket has no number");
        let received: Vec<Received> = std::iter::repeat_with(|| receive(to)).take(6).collect();
        assert_eq!((received[4].more, received[5].more, open("weir-stray")), (true, false, 0));
    }

    #[test]
    fn an_offer_has_one_file_and_what_is_more_or_cut_short_is_closed() {
        let Sockets { path, to, from, .. } = &Sockets::new();
        for passes in [false, true] {
            rustix::net::sockopt::set_socket_passcred(to, passes).expect("set");
            from.send_to(b"c\x01\0\0\0weir-1-2-3", path).expect("sent");
            assert!(receive(to).offer.is_none(), "nothing came with it");
            // Some find room where two were not expected, the rest are cut off.
            for files in [2, 3, 10, 11, 50] {
                send_with(from, path, b"c\x01\0\0\0weir-1-2-3", "weir-crowd", files);
                let received = receive(to);
                assert_eq!((received.offer.is_none(), received.more, open("weir-crowd")), (true, true, 0));
            }
            send_with(from, path, b"c\x01\0\0\0weir-1-2-3", "weir-crowd", 1);
            let offer = receive(to).offer.expect("an offer");
            assert_eq!(offer.process, if passes { std::process::id() } else { 0 });
            let flags = rustix::io::fcntl_getfd(&offer.memory).expect("open");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC) && open("weir-crowd") == 1);
            drop(offer);
            assert_eq!(open("weir-crowd"), 0);
        }
    }

    /// Says to this test's own child that it is one.
    const CHILD: &str = "WEIR_TEST_OFFER_CHILD";

    #[test]
    fn a_sender_of_a_pid_namespace_that_cannot_be_seen_has_no_number() {
        if std::env::var_os(CHILD).is_some() {
            let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("the parent's socket");
            let offer = receive(&socket.into()).offer.expect("an offer");
            assert_eq!((offer.process, offer.name.as_str()), (0, "weir-1-2-3"));
            return;
        }
        // A process that isn't root may need a user namespace for it, and not every system allows that.
        let unshare = |program: &Path| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--user", "--pid", "--fork"]).arg(program);
            command
        };
        if !unshare(Path::new("true")).status().is_ok_and(|status| status.success()) {
            return;
        }
        let sockets = Sockets::new();
        rustix::net::sockopt::set_socket_passcred(&sockets.to, true).expect("set");
        send(&sockets.from, &sockets.path, "weir-1-2-3", &memory("weir-test")).expect("sent");
        // The kernel computes the number when it is asked, in the namespace of the asking process.
        let mut child = unshare(&std::env::current_exe().expect("this program"));
        let name = "a_sender_of_a_pid_namespace_that_cannot_be_seen_has_no_number";
        child.arg(format!("libfabric::channel::offer::tests::{name}")).arg("--exact");
        let ran = child.env(CHILD, "1").stdin(OwnedFd::from(sockets.to)).output().expect("runs");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
