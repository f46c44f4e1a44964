//! Attempts at connections that no peer answers.
//!
//! An address may name a host where no process listens, and the host may not even refuse. The kernel tries for two
//! minutes, and the provider keeps the socket as long, even after the operations were given up. So an attempt is closed
//! when the operations that wait for it are given up. While very many peers wait, operations without a waiting caller
//! don't wait for a connection at all.
#![expect(unsafe_code, reason = "descriptors that belong to the provider are borrowed")]

use super::hang_up::{connections, end};
use super::sys::{self, Dialled};
use core::cell::{Cell, RefCell};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use weir_runtime::Handle;

/// Shortest time between two searches of the open files for attempts, however many peers are given up.
const SWEPT_EVERY: Duration = Duration::from_secs(1);

/// Given-up peers at which a search begins at once.
const SWEPT_AT: usize = 256;

/// The remote address of a socket whose connection attempt is unanswered, if it is one.
fn unanswered(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    let mut dialled = Dialled::default();
    // SAFETY: the kernel fills in the structure; a descriptor that is no TCP connection gives 0.
    let is_one = unsafe { sys::weir_tcp_dialled(fd.as_raw_fd(), &raw mut dialled) } == 1;
    let Dialled { address, port, is_v6 } = dialled;
    let [a, b, c, d, ..] = address;
    let v4 = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    let ip = if is_v6 == 0 { v4 } else { IpAddr::V6(Ipv6Addr::from(address)) };
    is_one.then(|| SocketAddr::new(ip, port))
}

/// Peers that were given up before they answered.
#[derive(Default)]
pub(super) struct ConnectAttempts {
    given_up: RefCell<Vec<SocketAddr>>,
    is_due: Cell<bool>,
}

impl ConnectAttempts {
    /// The operations for this address, where no process may listen, were given up. Attempts of other threads end, too;
    /// they begin new ones.
    pub(super) fn give_up(self: &Rc<Self>, rt: &Handle, to: SocketAddr) {
        self.given_up.borrow_mut().push(to);
        if self.given_up.borrow().len() >= SWEPT_AT {
            self.sweep();
        }
        if !self.is_due.replace(true) {
            let (later, connect_attempts) = (rt.clone(), Rc::clone(self));
            rt.spawn(async move {
                later.sleep(SWEPT_EVERY).await;
                connect_attempts.is_due.set(false);
                connect_attempts.sweep();
            });
        }
    }

    /// Closes all these attempts.
    fn sweep(&self) {
        let mut given_up = self.given_up.take();
        if given_up.is_empty() {
            return;
        }
        given_up.sort_unstable();
        let is_one = |to: SocketAddr| given_up.binary_search(&to).is_ok();
        let attempts = connections(|fd| unanswered(fd).is_some_and(is_one));
        // A number may be another connection's by now.
        let is_still = |fd: &BorrowedFd<'_>| unanswered(*fd).is_some_and(is_one);
        let ended = attempts.into_iter().filter(|fd| is_still(fd) && end(*fd)).count();
        tracing::debug!(connections = ended, "attempts at connections that nobody answers were ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libfabric::retry_queue::CROWD_MAX;
    use crate::{Address, Endpoint, FabricError, Message, Options, PeerId, Sink, open};
    use std::net::{TcpListener, TcpStream};
    use weir_runtime::real::Executor;

    /// A port of this host at which the kernel ignores attempts, because its backlog is full.
    struct Hole {
        port: u16,
        _listener: TcpListener,
        _before: Vec<TcpStream>,
    }

    impl Hole {
        fn new() -> Self {
            let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
            rustix::net::listen(&listener, 0).expect("a socket");
            let port = listener.local_addr().expect("bound").port();
            let place = SocketAddr::from(([127, 0, 0, 1], port));
            let connect = || TcpStream::connect_timeout(&place, Duration::from_millis(300)).ok();
            let before = std::iter::from_fn(connect).collect();
            Self { port, _listener: listener, _before: before }
        }

        /// One of many addresses of this port.
        fn place(&self, number: u32) -> SocketAddr {
            SocketAddr::from((Ipv4Addr::from(0x7f4d_0000 + number), self.port))
        }

        /// Attempts at these addresses.
        fn attempts(&self) -> usize {
            let is_one = |to: SocketAddr| to.port() == self.port && to.ip() != Ipv4Addr::LOCALHOST;
            connections(|fd| unanswered(fd).is_some_and(is_one)).len()
        }
    }

    #[derive(Default)]
    struct Inbox {
        messages: Cell<usize>,
        failed: Cell<usize>,
    }

    impl Sink for Inbox {
        fn message(&self, _message: Message) {
            self.messages.set(self.messages.get() + 1);
        }

        fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {
            self.failed.set(self.failed.get() + 1);
        }
    }

    fn endpoint(executor: &Executor) -> (Rc<dyn Endpoint>, Rc<Inbox>) {
        let endpoint = open(&executor.handle(), &Options::near("tcp", "127.0.0.1", 1)).expect("an endpoint");
        let inbox = Rc::new(Inbox::default());
        let weak = Rc::downgrade(&inbox);
        endpoint.set_sink(weak);
        (endpoint, inbox)
    }

    #[test]
    fn attempts_at_connections_end_when_what_waits_for_them_is_given_up() {
        let (executor, hole) = (Executor::new().expect("an executor"), Hole::new());
        let (one, inbox) = endpoint(&executor);
        let all = 100;
        for number in 0..all {
            let to = one.insert(&Address::from_socket(hole.place(number))).expect("an address");
            one.send(to, 7, &[b"is anybody there"]).expect("accepted");
        }
        assert_eq!(hole.attempts(), 100);
        let rt = executor.handle();
        let until = rt.now() + Duration::from_secs(15);
        while inbox.failed.get() < 100 && rt.now() < until {
            executor.block_on(rt.sleep(Duration::from_millis(50)));
        }
        executor.block_on(rt.sleep(SWEPT_EVERY + Duration::from_millis(200)));
        assert_eq!((inbox.failed.get(), hole.attempts()), (100, 0));
    }

    #[test]
    fn attempts_at_peers_that_are_forgotten_end() {
        let (executor, hole) = (Executor::new().expect("an executor"), Hole::new());
        let (one, inbox) = endpoint(&executor);
        for number in 0..100 {
            let to = one.insert(&Address::from_socket(hole.place(number))).expect("an address");
            one.send(to, 7, &[b"is anybody there"]).expect("accepted");
            one.forget(to);
        }
        assert_eq!((hole.attempts(), inbox.failed.get()), (100, 100));
        executor.block_on(executor.handle().sleep(SWEPT_EVERY + Duration::from_millis(200)));
        assert_eq!(hole.attempts(), 0);
    }

    #[test]
    fn answers_to_addresses_where_nobody_is_take_no_more_than_so_many_descriptors_and_others_get_theirs() {
        let (executor, hole) = (Executor::new().expect("an executor"), Hole::new());
        let ((server, asked), (client, answered)) = (endpoint(&executor), endpoint(&executor));
        let rt = executor.handle();
        let to = client.insert(&server.address()).expect("an address");
        client.send(to, 7, &[b"a question"]).expect("accepted");
        while asked.messages.get() == 0 {
            executor.block_on(rt.sleep(Duration::from_millis(5)));
        }
        let mut refused = 0;
        for number in 0..1200 {
            let to = server.insert(&Address::from_socket(hole.place(number))).expect("an address");
            refused += usize::from(server.send(to, 0, &[b"an answer"]).is_err());
            assert!(hole.attempts() <= CROWD_MAX + SWEPT_AT);
        }
        assert!(refused > 0);
        let to = server.insert(&Address::from_socket(hole.place(2000))).expect("an address");
        server.send(to, 7, &[b"whoever asks for something waits"]).expect("accepted");
        let to = server.insert(&client.address()).expect("an address");
        server.send(to, 0, &[b"an answer"]).expect("there is a connection");
        executor.block_on(rt.sleep(SWEPT_EVERY));
        assert_eq!(answered.messages.get(), 1);
    }
}
