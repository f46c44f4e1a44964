//! Closing connections that the provider still believes in.
//!
//! When a host vanishes, TCP retransmits for a quarter of an hour. The provider keeps the connection as long,
//! whatever is removed from its address vector. So when a peer is given up, this process shuts down its stuck
//! connections to it. The provider notices, and makes new ones with the next message. Connections that the host
//! acknowledges stay: other threads use them, and may have made them just now.
//!
//! A server doesn't give up a client with a transfer in flight, because its memory is in use until the provider
//! ends the transfer. It may ask whether the client's host has vanished, which takes a longer silence.
#![expect(unsafe_code, reason = "descriptors that belong to the provider are borrowed")]

use super::sys::{self, Progress};
use crate::Gone;
use core::time::Duration;
use rustix::net::{Shutdown, SocketAddrAny, getpeername, getsockname, shutdown, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Silence after which a connection with something unacknowledged is stuck: more than two of the kernel's shortest
/// retransmission timeouts (200 ms), and less than a peer is given (two tries of half a second, a hello of a second).
const SILENCE_MS: u32 = 500;

/// Silence after which a host has vanished: a living one acknowledges in milliseconds whatever its processes do, and is asked
/// several times meanwhile, at growing distances (after 0.2, 0.6, 1.4, 3, 6, 13 seconds); and networks are back within seconds
/// when a part of them fails.
const VANISHED: Duration = Duration::from_secs(20);

/// Silence after which a process hangs: nothing has come from it, whatever its host acknowledges.
const HANGS: Duration = Duration::from_secs(30);

/// How long the caller has waited for a peer that makes no progress: twice as long as a silent peer is given.
const NO_PROGRESS: Duration = Duration::from_mins(1);

impl Gone {
    /// How long connections are silent of what is gone.
    pub(crate) const fn silence(self) -> Duration {
        match self {
            Self::Host => VANISHED,
            Self::Process => HANGS,
            Self::Progress => NO_PROGRESS,
        }
    }

    fn is_seen_in(self, progress: Progress, silence: Duration) -> bool {
        match self {
            Self::Host => has_vanished(progress, silence),
            Self::Process => {
                let hangs = Duration::from_millis(progress.quiet_ms.into()) >= silence;
                hangs || Self::Host.is_seen_in(progress, VANISHED)
            }
            // The connection doesn't tell.
            Self::Progress => true,
        }
    }
}

/// Parts of the silence after which a host is asked for a sign of life that is waited for: the first time after half of it.
const ASKED_EACH: u64 = 4;

/// Whether the kernel gets no more answers: it has sent something again, and nothing has been acknowledged for long.
/// A process that hangs on a living host acknowledges; so does every connection that was made just now.
fn is_stuck(progress: Progress) -> bool {
    progress.unacked > 0 && progress.retransmits > 0 && progress.silence_ms >= SILENCE_MS
}

/// The kernel's shortest retransmission timeout; each time that something is sent again it is twice as long.
const RETRANSMIT_MS: u64 = 200;

/// Questions about room without an answer that are no chance: the kernel asks at growing distances, up to two minutes.
const PROBES_MIN: u32 = 2;

/// The same of a host that has not answered for so long, also where it had no room for more. The silence begins with
/// its last answer, which may be long ago because nothing was sent. It counts when the host was probed in vain for half
/// of it.
fn has_vanished(progress: Progress, silence: Duration) -> bool {
    let half = u64::try_from(silence.as_millis() / 2).unwrap_or(u64::MAX);
    let times = (half / RETRANSMIT_MS + 1).ilog2().max(1);
    let asked = progress.unacked > 0 && progress.retransmits >= times || progress.probes >= PROBES_MIN;
    asked && Duration::from_millis(progress.silence_ms.into()) >= silence
}

pub(super) fn progress(fd: BorrowedFd<'_>) -> Option<Progress> {
    let mut progress = Progress::default();
    // SAFETY: the kernel fills in the structure; a descriptor that is no TCP connection gives an error.
    let code = unsafe { sys::weir_tcp_progress(fd.as_raw_fd(), &raw mut progress) };
    (code == 0).then_some(progress)
}

/// The calling thread's connections that are a certain one's; most threads share descriptors with all others of their process.
pub(super) fn connections(wanted: impl Fn(BorrowedFd<'_>) -> bool) -> Vec<BorrowedFd<'static>> {
    let Ok(entries) = std::fs::read_dir("/proc/thread-self/fd") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let numbers: Vec<i32> = numbers.collect();
    // SAFETY: used only for system calls that a descriptor closed or replaced meanwhile survives. A caller that ends a
    // connection has made sure right before that it is one to the peer meant.
    let borrowed = numbers.into_iter().map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    borrowed.filter(|fd| wanted(*fd)).collect()
}

pub(super) fn socket(name: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(name).ok()
}

pub(super) fn peer_of(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    getpeername(fd).ok().flatten().and_then(socket)
}

fn is_connected(fd: BorrowedFd<'_>, peer: SocketAddr) -> bool {
    peer_of(fd) == Some(peer)
}

/// Shuts a connection down; whether there was one. What the system has not sent yet goes when the provider closes it: nothing is to
/// arrive after operations have ended that it belongs to, when the peer comes back.
pub(super) fn end(fd: BorrowedFd<'_>) -> bool {
    // Without it only more is sent.
    let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
    shutdown(fd, Shutdown::Both).is_ok()
}

/// Shuts down the connections of this process to an address that are stuck, also those of other threads. Returns how
/// many there were.
pub(crate) fn hang_up(peer: SocketAddr) -> usize {
    let stuck = connections(|fd| is_connected(fd, peer) && progress(fd).is_some_and(is_stuck));
    stuck.into_iter().filter(|fd| end(*fd)).count()
}

/// Whether a connection is between this endpoint and this peer, made by either side. A connection that the peer has
/// made comes from another port of its host than the peer listens at.
fn is_between(fd: BorrowedFd<'_>, own: SocketAddr, peer: SocketAddr) -> bool {
    let is_ours = || getsockname(fd).ok().and_then(socket) == Some(own);
    peer_of(fd).is_some_and(|theirs| theirs == peer || theirs.ip() == peer.ip() && is_ours())
}

/// Has the kernel end a connection on which nothing comes any more and nothing is on its way, when the host gives no sign of life
/// for so long.
fn ask_for_life(fd: BorrowedFd<'_>, silence: Duration) -> rustix::io::Result<()> {
    if sockopt::socket_keepalive(fd)? {
        return Ok(());
    }
    let each = Duration::from_secs((silence.as_secs() / ASKED_EACH).max(1));
    sockopt::set_tcp_keepidle(fd, each * 2)?;
    sockopt::set_tcp_keepintvl(fd, each)?;
    sockopt::set_tcp_keepcnt(fd, 2)?;
    sockopt::set_socket_keepalive(fd, true)
}

/// Shuts down the connections of this endpoint with a peer whose host, or process, has not answered for so long, and has the host
/// asked where that can't be known; with one that makes no progress, all. Other processes on the peer's host that are as silent lose
/// theirs, too: which port is whose isn't known. They make new ones when they have something to say. Returns how many were shut
/// down.
pub(crate) fn hang_up_if_gone((own, peer): (SocketAddr, SocketAddr), gone: Gone, silence: Duration) -> usize {
    let mut ended = 0;
    for fd in connections(|fd| is_between(fd, own, peer)) {
        match progress(fd) {
            Some(progress) if gone.is_seen_in(progress, silence) => ended += usize::from(end(fd)),
            // It may have ended by itself.
            Some(progress) if progress.unacked == 0 => drop(ask_for_life(fd, silence.min(VANISHED))),
            Some(_) | None => {}
        }
    }
    if ended > 0 {
        let why = match gone {
            Gone::Host | Gone::Process => "gives no sign of life",
            Gone::Progress => "lets nothing end that others wait for",
        };
        tracing::info!(%peer, connections = ended, "a peer {why}; connections to it were shut down");
    }
    ended
}

/// No host is asked any more over the connections of this endpoint with a peer: an idle one outlives a network that fails for a
/// while.
pub(crate) fn stop_asking((own, peer): (SocketAddr, SocketAddr)) {
    for fd in connections(|fd| is_between(fd, own, peer)) {
        // It may have ended by itself.
        let _ = sockopt::set_socket_keepalive(fd, false);
    }
}

/// Shuts down every connection of this process to an address, whatever its state: what a transport has under way there
/// ends, and other threads make theirs anew.
#[cfg(feature = "mercury")]
pub(crate) fn cut_off(peer: SocketAddr) {
    for fd in connections(|fd| is_connected(fd, peer)) {
        // It may have ended by itself.
        let _ = end(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Access, Address, Buffer, Endpoint, Exposure, FabricError, Message, Options, PeerId, Sink, Transfer,
        open,
    };
    use core::cell::RefCell;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::rc::{Rc, Weak};
    use std::time::Instant;
    use weir_runtime::Handle;
    use weir_runtime::real::Executor;

    /// `SOL_SOCKET`, `SO_ATTACH_FILTER`, `SO_DETACH_FILTER`, and the one-word program "return 0" (`BPF_RET | BPF_K`).
    const SOL_SOCKET: i32 = 1;
    const SO_ATTACH_FILTER: i32 = 26;
    const SO_DETACH_FILTER: i32 = 27;
    const DROP_ALL: [u64; 1] = [0x06];

    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const u64,
    }

    unsafe extern "C" {
        fn setsockopt(fd: i32, level: i32, name: i32, value: *const Program, len: u32) -> i32;
    }

    fn filter(fd: BorrowedFd<'_>, option: i32) {
        let program = Program { len: 1, filter: DROP_ALL.as_ptr() };
        let len = u32::try_from(size_of::<Program>()).expect("small");
        // SAFETY: the kernel copies the program, which is a whole one.
        let code = unsafe { setsockopt(fd.as_raw_fd(), SOL_SOCKET, option, &raw const program, len) };
        assert_eq!(code, 0, "a filter is attached, or taken away");
    }

    /// From now on the kernel drops whatever arrives at a socket, unseen: what a vanished host looks like to the other.
    fn vanish(fd: BorrowedFd<'_>) {
        filter(fd, SO_ATTACH_FILTER);
    }

    /// The host is there again.
    fn reappear(fd: BorrowedFd<'_>) {
        filter(fd, SO_DETACH_FILTER);
    }

    fn wait_until_stuck(fd: BorrowedFd<'_>) {
        let until = Instant::now() + Duration::from_secs(20);
        while !progress(fd).is_some_and(is_stuck) {
            assert!(Instant::now() < until, "the connection never got stuck: {:?}", progress(fd));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn stuck_is_what_was_sent_again_and_has_not_been_acknowledged_for_long() {
        let stuck = Progress { retransmits: 1, unacked: 3, silence_ms: 500, ..Progress::default() };
        assert!(is_stuck(stuck));
        for other in [
            Progress { retransmits: 0, ..stuck },
            Progress { unacked: 0, ..stuck },
            Progress { silence_ms: 499, ..stuck },
            Progress::default(),
        ] {
            assert!(!is_stuck(other), "{other:?}");
        }
    }

    #[test]
    fn a_host_has_vanished_that_was_asked_and_has_not_answered_for_long() {
        let silence = Duration::from_millis(700);
        let sent = Progress { retransmits: 1, unacked: 3, silence_ms: 700, ..Progress::default() };
        let full = Progress { probes: 2, silence_ms: 700, ..Progress::default() };
        for vanished in [sent, full] {
            assert!(has_vanished(vanished, silence));
            assert!(!has_vanished(Progress { silence_ms: 699, ..vanished }, silence));
            assert!(!has_vanished(Progress { retransmits: 0, probes: 0, ..vanished }, silence), "not asked");
        }
        assert!(!has_vanished(Progress { retransmits: 1, silence_ms: 9999, ..Progress::default() }, silence));
        // Nothing was sent for minutes, and then something was lost.
        let idle = Progress { silence_ms: 600_000, ..sent };
        assert!(!has_vanished(Progress { retransmits: 4, ..idle }, VANISHED));
        assert!(has_vanished(Progress { retransmits: 5, ..idle }, VANISHED));
        assert!(!has_vanished(Progress { probes: 1, retransmits: 0, ..idle }, VANISHED));
    }

    #[test]
    fn a_host_whose_process_takes_nothing_is_there_until_it_vanishes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = listener.local_addr().expect("bound");
        let mut ours = TcpStream::connect(peer).expect("it listens");
        let (theirs, own) = (listener.accept().expect("a connection").0, ours.local_addr().expect("bound"));
        ours.set_nonblocking(true).expect("a socket");
        while ours.write(&[1; 4096]).is_ok() {}
        let silence = Duration::from_millis(700);
        let hang_up = || hang_up_if_gone((own, peer), Gone::Host, silence);
        std::thread::sleep(silence * 3);
        assert_eq!(hang_up(), 0, "{:?}", progress(ours.as_fd()));
        vanish(ours.as_fd());
        let until = Instant::now() + Duration::from_secs(20);
        while hang_up() == 0 {
            assert!(Instant::now() < until, "{:?}", progress(ours.as_fd()));
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(theirs);
    }

    #[test]
    fn a_process_that_talks_is_hung_up_on_only_when_it_makes_no_progress() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("bound");
        let mut theirs = TcpStream::connect(own).expect("it listens");
        let (mut ours, peer) = listener.accept().expect("a connection");
        let silence = Duration::from_millis(400);
        let hang_up = |gone| hang_up_if_gone((own, peer), gone, silence);
        let until = Instant::now() + 2 * silence;
        while Instant::now() < until {
            theirs.write_all(&[1]).expect("room");
            std::thread::sleep(silence / 8);
            assert_eq!((hang_up(Gone::Host), hang_up(Gone::Process)), (0, 0), "{:?}", progress(ours.as_fd()));
        }
        assert_eq!(hang_up(Gone::Progress), 1);
        while ours.read(&mut [0; 64]).expect("what it has said, then the end") > 0 {}
    }

    #[test]
    fn a_host_that_has_vanished_is_seen_where_a_process_is_looked_for() {
        let sent = Progress {
            retransmits: 5,
            unacked: 3,
            silence_ms: 21_000,
            quiet_ms: 21_000,
            ..Progress::default()
        };
        assert!(Gone::Process.is_seen_in(sent, HANGS) && Gone::Host.is_seen_in(sent, VANISHED));
        assert!(!Gone::Process.is_seen_in(Progress { unacked: 0, ..sent }, HANGS));
    }

    #[test]
    fn of_a_peers_connections_only_the_stuck_one_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = listener.local_addr().expect("bound");
        let connect = || {
            let ours = TcpStream::connect(peer).expect("it listens");
            let (theirs, _) = listener.accept().expect("a connection");
            (ours, theirs)
        };
        let (mut silent, gone) = connect();
        // A process that hangs reads nothing, but its host acknowledges.
        let (mut hanging, _hung) = connect();
        vanish(gone.as_fd());
        for stream in [&mut silent, &mut hanging] {
            stream.write_all(&[1; 100]).expect("room");
        }
        wait_until_stuck(silent.as_fd());
        let (mut fresh, _new) = connect();
        assert_eq!(hang_up(peer), 1);
        assert_eq!(silent.read(&mut [0; 1]).expect("end of stream"), 0);
        for stream in [&mut hanging, &mut fresh] {
            stream.set_nonblocking(true).expect("a socket");
            let waiting = stream.read(&mut [0; 1]).expect_err("nothing was sent");
            assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock);
            stream.write_all(&[1]).expect("it stands");
        }
    }

    #[test]
    fn what_was_on_its_way_over_a_connection_that_was_shut_down_does_not_arrive_later() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut theirs, peer) = (listener.accept().expect("a connection").0, ours.peer_addr());
        vanish(theirs.as_fd());
        ours.write_all(&[1; 100]).expect("room");
        wait_until_stuck(ours.as_fd());
        assert_eq!(hang_up(peer.expect("connected")), 1);
        // As the provider does.
        drop(ours);
        reappear(theirs.as_fd());
        // Some times what the kernel waits before it sends something again for the third time.
        theirs.set_read_timeout(Some(Duration::from_secs(4))).expect("a socket");
        assert!(theirs.read(&mut [0; 100]).is_err());
    }

    #[derive(Default)]
    struct Inbox(RefCell<Vec<Message>>);

    impl Sink for Inbox {
        fn message(&self, message: Message) {
            self.0.borrow_mut().push(message);
        }

        fn send_failed(&self, _: PeerId, _: u64, _: FabricError) {}
    }

    fn listen(endpoint: &Rc<dyn Endpoint>) -> Rc<Inbox> {
        let inbox = Rc::new(Inbox::default());
        endpoint.set_sink(Rc::downgrade(&inbox) as Weak<dyn Sink>);
        inbox
    }

    /// Waits for a message and throws away all others.
    async fn arrives(rt: &Handle, inbox: &Inbox, expected: &[u8], limit: Duration) -> bool {
        let until = rt.now() + limit;
        while rt.now() < until {
            if inbox.0.borrow_mut().drain(..).any(|message| message[..] == *expected) {
                return true;
            }
            rt.sleep(Duration::from_millis(10)).await;
        }
        false
    }

    #[test]
    fn a_peer_that_is_forgotten_keeps_its_connections_and_is_another_one_when_it_comes_back() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let one = open(&rt, &Options::near("tcp", "127.0.0.1", 1)).expect("an endpoint");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("bound");
        let mut ours = TcpStream::connect(place).expect("it listens");
        let (theirs, _) = listener.accept().expect("a connection");
        vanish(theirs.as_fd());
        ours.write_all(&[1; 100]).expect("room");
        wait_until_stuck(ours.as_fd());
        ours.set_nonblocking(true).expect("a socket");
        let address = Address::from_socket(place);
        let first = one.insert(&address).expect("an address");
        one.forget(first);
        let waiting = ours.read(&mut [0; 1]).expect_err("nobody looked at it");
        assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock);
        let second = one.insert(&address).expect("an address");
        assert_ne!(first, second);
        one.remove(second);
        assert_eq!(ours.read(&mut [0; 1]).expect("end of stream"), 0, "it was stuck");
    }

    #[test]
    fn a_peer_whose_host_was_gone_and_came_back_is_reached_over_a_new_connection() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = free.local_addr().expect("bound");
        drop(free);
        let boot = || open(&rt, &Options::listen("tcp", "127.0.0.1", place.port())).expect("an endpoint");
        let one = open(&rt, &Options::near("tcp", "127.0.0.1", 1)).expect("an endpoint");
        let _sender = listen(&one);
        executor.block_on(async {
            let other = boot();
            let inbox = listen(&other);
            let address = other.address();
            let to = one.insert(&address).expect("an address");
            one.send(to, 0, &[b"before"]).expect("accepted");
            assert!(arrives(&rt, &inbox, b"before", Duration::from_secs(10)).await);
            // Neither host hears the other any more, also when the other's processes end.
            let ours = connections(|fd| is_connected(fd, place));
            let of_place = |fd: BorrowedFd<'_>| {
                let name = getsockname(fd).ok().and_then(|name| SocketAddr::try_from(name).ok());
                name == Some(place) && getpeername(fd).is_ok_and(|peer| peer.is_some())
            };
            let theirs = connections(of_place);
            assert_eq!((ours.len(), theirs.len()), (1, 1));
            vanish(theirs[0]);
            vanish(ours[0]);
            one.send(to, 0, &[b"lost"]).expect("accepted");
            assert!(!arrives(&rt, &inbox, b"lost", Duration::from_millis(100)).await);
            drop((other, inbox));
            let other = boot();
            let inbox = listen(&other);
            wait_until_stuck(ours[0]);
            one.remove(to);
            for _ in 0..50 {
                let to = one.insert(&address).expect("an address");
                let sent = one.send(to, 0, &[b"after"]).is_ok();
                if sent && arrives(&rt, &inbox, b"after", Duration::from_millis(200)).await {
                    return;
                }
            }
            panic!("no message gets through any more");
        });
    }

    /// An endpoint that has exposed memory, one that knows it and has contact, and that one's connection with its other end.
    struct Contact {
        one: Rc<dyn Endpoint>,
        to: PeerId,
        memory: Buffer,
        exposure: Exposure,
        connection: [BorrowedFd<'static>; 2],
        _other: (Rc<dyn Endpoint>, [Rc<Inbox>; 2]),
    }

    impl Contact {
        async fn new(rt: &Handle, provider: &str) -> Self {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            let place = free.local_addr().expect("bound");
            drop(free);
            let other = open(rt, &Options::listen(provider, "127.0.0.1", place.port())).expect("an endpoint");
            let one = open(rt, &Options::near(provider, "127.0.0.1", 1)).expect("an endpoint");
            let inboxes = [listen(&one), listen(&other)];
            let to = one.insert(&other.address()).expect("an address");
            one.send(to, 0, &[b"hello"]).expect("accepted");
            assert!(arrives(rt, &inboxes[1], b"hello", Duration::from_secs(10)).await);
            let memory = other.buffers().alloc(LEN).expect("memory");
            let exposure = other.expose(&memory, 0..LEN, Access::Write).expect("exposed");
            let ours = connections(|fd| is_connected(fd, place));
            let name = getsockname(ours[0]).ok().and_then(|name| SocketAddr::try_from(name).ok());
            let theirs = connections(|fd| is_connected(fd, name.expect("bound")));
            assert_eq!((ours.len(), theirs.len()), (1, 1));
            let connection = [ours[0], theirs[0]];
            Self { one, to, memory, exposure, connection, _other: (other, inboxes) }
        }

        /// Begins to write, and loses contact before anything arrives.
        fn write_to_a_vanished_host(&self) -> Transfer {
            self.connection.into_iter().for_each(vanish);
            let mut buffer = self.one.buffers().alloc(LEN).expect("memory");
            buffer.fill(7);
            self.one.write(self.to, &buffer, 0..LEN, self.exposure.region())
        }
    }

    /// Length of a transfer.
    const LEN: usize = 100_000;

    #[test]
    fn a_transfer_goes_on_when_its_peer_is_removed_and_ends_when_the_provider_has_let_go_of_it() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        executor.block_on(async {
            let contact = Contact::new(&rt, "tcp").await;
            let transfer = contact.write_to_a_vanished_host();
            contact.one.remove(contact.to);
            rt.sleep(Duration::from_millis(50)).await;
            assert_eq!(transfer.outcome(), None, "its connection is not stuck yet");
            contact.connection.into_iter().for_each(reappear);
            assert_eq!(rt.timeout(Duration::from_secs(20), transfer).await, Ok(Ok(())));
            assert!(contact.memory.iter().all(|byte| *byte == 7));
        });
    }

    #[test]
    fn a_transfer_over_a_stuck_connection_ends_when_its_peer_is_removed() {
        let mercury: &[&str] = if cfg!(feature = "mercury") { &["mercury/ofi+tcp"] } else { &[] };
        for provider in ["tcp"].iter().chain(mercury) {
            let executor = Executor::new().expect("an executor");
            let rt = executor.handle();
            executor.block_on(async {
                let contact = Contact::new(&rt, provider).await;
                let transfer = contact.write_to_a_vanished_host();
                rt.sleep(Duration::from_millis(50)).await;
                wait_until_stuck(contact.connection[0]);
                contact.one.remove(contact.to);
                assert_eq!(transfer.outcome(), None, "{provider} has it");
                let ended = rt.timeout(Duration::from_secs(20), transfer).await;
                assert!(matches!(ended, Ok(Err(FabricError::Unreachable { .. }))), "{provider}: {ended:?}");
            });
        }
    }

    /// Two endpoints of which each is driven by itself; the second one has made the connection, and its memory can be reached.
    struct Reached {
        executors: [Executor; 2],
        server: Rc<dyn Endpoint>,
        to: PeerId,
        addresses: [SocketAddr; 2],
        exposure: Exposure,
        inboxes: [Rc<Inbox>; 2],
        _client: (Rc<dyn Endpoint>, Buffer),
    }

    impl Reached {
        fn new() -> Self {
            let executors = [0, 1].map(|_| Executor::new().expect("an executor"));
            let own = |executor: &Executor| open(&executor.handle(), &Options::near("tcp", "127.0.0.1", 1));
            let [server, client] = executors.each_ref().map(|executor| own(executor).expect("an endpoint"));
            let inboxes = [listen(&server), listen(&client)];
            let memory = client.buffers().alloc(LEN).expect("memory");
            let exposure = client.expose(&memory, 0..LEN, Access::Read).expect("exposed");
            let to = client.insert(&server.address()).expect("an address");
            client.send(to, 0, &[b"hello"]).expect("accepted");
            let to = server.insert(&client.address()).expect("an address");
            let addresses = [&server, &client].map(|endpoint| endpoint.address().socket().expect("one"));
            let reached =
                Self { executors, server, to, addresses, exposure, inboxes, _client: (client, memory) };
            while reached.inboxes[0].0.borrow().is_empty() {
                reached.drive(0, Duration::from_millis(10));
                reached.drive(1, Duration::from_millis(10));
            }
            reached
        }

        fn drive(&self, which: usize, time: Duration) {
            self.executors[which].block_on(self.executors[which].handle().sleep(time));
        }

        /// Both ends of the connection, the server's first.
        fn connection(&self) -> [BorrowedFd<'static>; 2] {
            let [server, client] = self.addresses;
            let ends = connections(|fd| is_between(fd, server, client) || is_connected(fd, server));
            let (ours, theirs): (Vec<_>, Vec<_>) =
                ends.into_iter().partition(|fd| !is_connected(*fd, server));
            assert_eq!((ours.len(), theirs.len()), (1, 1));
            assert!(!is_connected(ours[0], client), "the client's end has a port of its own");
            [ours[0], theirs[0]]
        }

        fn hang_up(&self, silence: Duration) -> usize {
            let [server, client] = self.addresses;
            hang_up_if_gone((server, client), Gone::Host, silence)
        }

        /// The client's process hangs from here on.
        fn read(&self) -> Transfer {
            let mut buffer = self.server.buffers().alloc(LEN).expect("memory");
            self.server.read(self.to, &mut buffer, 0..LEN, self.exposure.region())
        }

        fn ends(&self, transfer: Transfer) {
            let rt = self.executors[0].handle();
            let ended = self.executors[0].block_on(rt.timeout(Duration::from_secs(20), transfer));
            assert!(matches!(ended, Ok(Err(FabricError::Unreachable { .. }))), "{ended:?}");
        }
    }

    #[test]
    fn a_transfer_with_a_host_that_has_vanished_ends_though_the_connection_was_the_peers() {
        let reached = Reached::new();
        let connection = reached.connection();
        connection.into_iter().for_each(vanish);
        let transfer = reached.read();
        reached.drive(0, Duration::from_millis(50));
        wait_until_stuck(connection[0]);
        assert_eq!(
            hang_up(reached.addresses[1]),
            0,
            "it is not found by the address that the peer listens at"
        );
        reached.server.hang_up_if_gone(reached.to, Gone::Host);
        reached.drive(0, Duration::from_millis(50));
        assert_eq!(transfer.outcome(), None, "that is no long silence");
        assert_eq!(reached.hang_up(Duration::from_millis(SILENCE_MS.into())), 1);
        reached.ends(transfer);
    }

    #[test]
    fn a_host_that_is_waited_for_is_asked_for_a_sign_of_life_which_one_with_a_process_that_hangs_gives() {
        let reached = Reached::new();
        let connection = reached.connection();
        let transfer = reached.read();
        // The shortest that the kernel can ask after: one second, and one for each of two answers.
        let silence = Duration::from_secs(1);
        for _ in 0..5 {
            reached.drive(0, silence);
            assert_eq!(
                (reached.hang_up(silence), transfer.outcome()),
                (0, None),
                "{:?}",
                progress(connection[0])
            );
        }
        let is_asked = || sockopt::socket_keepalive(connection[0]);
        assert_eq!(is_asked(), Ok(true));
        reached.server.stop_asking(reached.to);
        assert_eq!(is_asked(), Ok(false));
        reached.hang_up(silence);
        connection.into_iter().for_each(vanish);
        reached.ends(transfer);
    }

    #[test]
    fn a_process_that_hangs_is_hung_up_on_when_that_is_asked_for_and_reached_again_when_it_goes_on() {
        let reached = Reached::new();
        let [server, client] = reached.addresses;
        let transfer = reached.read();
        let silence = Duration::from_millis(400);
        let hang_up = || hang_up_if_gone((server, client), Gone::Process, silence);
        assert_eq!(hang_up(), 0, "it has just said something");
        reached.drive(0, silence + Duration::from_millis(100));
        // Another one on its host that has something to say.
        let mut neighbour = TcpStream::connect(server).expect("it listens");
        neighbour.write_all(&[1]).expect("room");
        reached.server.hang_up_if_gone(reached.to, Gone::Process);
        reached.drive(0, Duration::from_millis(50));
        assert_eq!(transfer.outcome(), None, "that is no long silence");
        assert_eq!(hang_up(), 1);
        reached.ends(transfer);
        reached.server.send(reached.to, 0, &[b"again"]).expect("accepted");
        let until = Instant::now() + Duration::from_secs(20);
        while !reached.inboxes[1].0.borrow().iter().any(|message| message[..] == *b"again") {
            assert!(Instant::now() < until, "nothing arrives");
            for which in 0..2 {
                reached.drive(which, Duration::from_millis(10));
            }
        }
    }
}
