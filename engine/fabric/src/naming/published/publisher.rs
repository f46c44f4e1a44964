//! Publishes an endpoint's address at a TCP port, on a thread that sleeps until a query comes.
//!
//! Queriers are unauthenticated. Each has a second for its forty bytes, and their number is bounded. A querier
//! that takes longer or sends anything else is dropped, and delays no other.

use super::record::{PublishedAddress, QUERY_LEN, Query, refusal};
use crate::error::FabricError;
use crate::naming::resolve;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_proto::{Keys, TenantId};

/// Time that a querier has for its query: some round trips of the slowest network, and a lost packet.
const QUERY_TIME: Duration = Duration::from_secs(1);

/// Most queriers at a time. A further one replaces the oldest, which has had the most time.
const QUERIERS_MAX: usize = 64;

/// Pause after the system could not accept a connection, for instance for lack of descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What is published, and the keys of the tenants that may read it.
struct Publication {
    told: PublishedAddress,
    keys: Option<Keys>,
}

struct Shared {
    port: u16,
    listener: TcpListener,
    publication: OnceLock<Publication>,
    stopped: AtomicBool,
    told: AtomicU64,
    refused: AtomicU64,
}

/// A port at which an endpoint's address is published until this is dropped.
pub(crate) struct Publisher {
    shared: Arc<Shared>,
    thread: Cell<Option<JoinHandle<()>>>,
}

impl Publisher {
    /// Takes the port. Queries before [`Self::begin`] wait for it.
    ///
    /// # Errors
    /// When the host is not known or not this node's, or the port is in use.
    pub(crate) fn start(host: &str, port: u16, provider: &str) -> Result<Self, FabricError> {
        let failed = |error: io::Error| FabricError::Provider {
            call: "listen",
            code: error.raw_os_error().map_or(0, |code| -i64::from(code)),
            reason: format!("the address can't be published at {host}:{port}: {error}"),
            provider: provider.to_owned(),
        };
        let listener = TcpListener::bind(resolve::blocking(host, port)?).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let shared = Arc::new(Shared {
            port,
            listener,
            publication: OnceLock::new(),
            stopped: AtomicBool::new(false),
            told: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        Ok(Self { shared, thread: Cell::default() })
    }

    /// Publishes this from now on.
    pub(crate) fn begin(&self, told: PublishedAddress, keys: Option<Keys>) {
        // The first call counts: an endpoint has one owner for its life.
        if self.shared.publication.set(Publication { told, keys }).is_err() {
            return;
        }
        let (theirs, port) = (Arc::clone(&self.shared), self.shared.port);
        let thread = std::thread::Builder::new().name(format!("address-{port}"));
        match thread.spawn(move || run(&theirs)) {
            Ok(thread) => self.thread.set(Some(thread)),
            Err(error) => {
                tracing::error!(port, %error, "no thread to tell the fabric address: nobody finds it");
            }
        }
    }

    /// How often the address was sent, and how many queries got none.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shared.told.load(Ordering::Relaxed), self.shared.refused.load(Ordering::Relaxed))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the thread. The port is free when it has ended.
        let woken = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            // It doesn't panic, and there is no one to tell.
            let _ = thread.join();
        }
    }
}

/// A querier.
struct QuerierConnection {
    stream: TcpStream,
    question: [u8; QUERY_LEN],
    len: usize,
    until: Instant,
}

/// What to do with a querier.
#[derive(PartialEq, Eq)]
enum NextStep {
    Waits,
    PublishedAddress,
    Refused,
}

fn run(shared: &Shared) {
    let mut queriers = VecDeque::new();
    while !shared.stopped.load(Ordering::Acquire) {
        if wait(shared, &queriers).and_then(|()| accept(shared, &mut queriers)).is_err() {
            if shared.stopped.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(REFUSED_PAUSE);
        }
        let now = Instant::now();
        queriers.retain_mut(|querier: &mut QuerierConnection| {
            let turn = querier.advance(shared, now);
            let counter = if turn == NextStep::PublishedAddress { &shared.told } else { &shared.refused };
            if turn != NextStep::Waits {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            turn == NextStep::Waits
        });
    }
}

/// Sleeps until a querier comes, sends something, or has used up its time.
fn wait(shared: &Shared, queriers: &VecDeque<QuerierConnection>) -> io::Result<()> {
    let first = queriers.iter().map(|querier| querier.until).min();
    // A little later, so that its time is over on waking.
    let left = first.map(|until| until.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = vec![PollFd::new(&shared.listener, PollFlags::IN)];
    fds.extend(queriers.iter().map(|querier| PollFd::new(&querier.stream, PollFlags::IN)));
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Accepts new queriers.
fn accept(shared: &Shared, queriers: &mut VecDeque<QuerierConnection>) -> io::Result<()> {
    for _ in 0..QUERIERS_MAX {
        let stream = match shared.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // It was gone before it was accepted.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        if queriers.len() == QUERIERS_MAX && queriers.pop_front().is_some() {
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        let until = Instant::now() + QUERY_TIME;
        queriers.push_back(QuerierConnection { stream, question: [0; QUERY_LEN], len: 0, until });
    }
    Ok(())
}

impl QuerierConnection {
    /// Takes what has come of a query, and answers it when it is complete.
    fn advance(&mut self, shared: &Shared, now: Instant) -> NextStep {
        while self.len < QUERY_LEN {
            match self.stream.read(&mut self.question[self.len..]) {
                Ok(0) => return NextStep::Refused,
                Ok(len) => self.len += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return if now < self.until { NextStep::Waits } else { NextStep::Refused };
                }
                Err(_) => return NextStep::Refused,
            }
        }
        let Some((answer, turn)) = shared.answer(&self.question) else { return NextStep::Refused };
        // A new connection has room for so few bytes. Otherwise the querier asks again.
        match self.stream.write(&answer) {
            Ok(len) if len == answer.len() => turn,
            _ => NextStep::Refused,
        }
    }
}

impl Shared {
    /// The answer; `None`: none.
    fn answer(&self, question: &[u8; QUERY_LEN]) -> Option<(Vec<u8>, NextStep)> {
        let question = Query::decode(question)?;
        let Publication { told, keys } = self.publication.get()?;
        let key = keys.as_ref().map(|keys| keys.of(TenantId(question.tenant)));
        match key {
            Some(None) => Some((refusal(), NextStep::Refused)),
            key => {
                Some((told.encode(&question, self.port, key.flatten().as_ref())?, NextStep::PublishedAddress))
            }
        }
    }
}
