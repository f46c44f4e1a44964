//! Telling an endpoint's address, at a TCP port and on a thread that sleeps until somebody asks.
//!
//! Askers are strangers. Each has a second for its forty bytes, their number is bounded, and who takes longer or says
//! anything else is dropped: an address is told to others all the while.

use super::record::{QUESTION_LEN, Question, Told, refusal};
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

/// How long an asker has for its question: some round trips of the slowest network, and a lost packet.
const GUEST_TIME: Duration = Duration::from_secs(1);

/// Most askers at a time. When one more comes the oldest goes: it has had most time.
const GUESTS_MAX: usize = 64;

/// Pause after the system could not accept a connection, as when it has no more descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What is told, to whom.
struct Word {
    told: Told,
    keys: Option<Keys>,
}

struct Shared {
    port: u16,
    listener: TcpListener,
    word: OnceLock<Word>,
    stopped: AtomicBool,
    told: AtomicU64,
    refused: AtomicU64,
}

/// A port at which an endpoint's address is told, until this is dropped.
pub(crate) struct Teller {
    shared: Arc<Shared>,
    thread: Cell<Option<JoinHandle<()>>>,
}

impl Teller {
    /// Takes the port. Who asks before [`Self::begin`] waits for that.
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
            word: OnceLock::new(),
            stopped: AtomicBool::new(false),
            told: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        Ok(Self { shared, thread: Cell::default() })
    }

    /// Tells this from now on.
    pub(crate) fn begin(&self, told: Told, keys: Option<Keys>) {
        // The first word stands: an endpoint has one owner for its whole life.
        if self.shared.word.set(Word { told, keys }).is_err() {
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

    /// How often the address was told, and how many questions got no address.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shared.told.load(Ordering::Relaxed), self.shared.refused.load(Ordering::Relaxed))
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the thread; the port is free when it has ended.
        let woken = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            // It doesn't panic; and there is nobody to tell.
            let _ = thread.join();
        }
    }
}

/// One asker.
struct Guest {
    stream: TcpStream,
    question: [u8; QUESTION_LEN],
    len: usize,
    until: Instant,
}

/// What becomes of an asker.
#[derive(PartialEq, Eq)]
enum Turn {
    Waits,
    Told,
    Refused,
}

fn run(shared: &Shared) {
    let mut guests = VecDeque::new();
    while !shared.stopped.load(Ordering::Acquire) {
        if wait(shared, &guests).and_then(|()| accept(shared, &mut guests)).is_err() {
            if shared.stopped.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(REFUSED_PAUSE);
        }
        let now = Instant::now();
        guests.retain_mut(|guest: &mut Guest| {
            let turn = guest.go_on(shared, now);
            let counter = if turn == Turn::Told { &shared.told } else { &shared.refused };
            if turn != Turn::Waits {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            turn == Turn::Waits
        });
    }
}

/// Sleeps until somebody comes, says something, or has had its time.
fn wait(shared: &Shared, guests: &VecDeque<Guest>) -> io::Result<()> {
    let first = guests.iter().map(|guest| guest.until).min();
    // A little later, so that it has had its time when this wakes.
    let left = first.map(|until| until.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = vec![PollFd::new(&shared.listener, PollFlags::IN)];
    fds.extend(guests.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN)));
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lets in whoever has come.
fn accept(shared: &Shared, guests: &mut VecDeque<Guest>) -> io::Result<()> {
    for _ in 0..GUESTS_MAX {
        let stream = match shared.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // Gone before it was let in.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        if guests.len() == GUESTS_MAX && guests.pop_front().is_some() {
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        let until = Instant::now() + GUEST_TIME;
        guests.push_back(Guest { stream, question: [0; QUESTION_LEN], len: 0, until });
    }
    Ok(())
}

impl Guest {
    /// Takes what has come of the question, and answers it when it is whole.
    fn go_on(&mut self, shared: &Shared, now: Instant) -> Turn {
        while self.len < QUESTION_LEN {
            match self.stream.read(&mut self.question[self.len..]) {
                Ok(0) => return Turn::Refused,
                Ok(len) => self.len += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return if now < self.until { Turn::Waits } else { Turn::Refused };
                }
                Err(_) => return Turn::Refused,
            }
        }
        let Some((answer, turn)) = shared.answer(&self.question) else { return Turn::Refused };
        // A new connection has room for so few bytes; who made it otherwise asks again.
        match self.stream.write(&answer) {
            Ok(len) if len == answer.len() => turn,
            _ => Turn::Refused,
        }
    }
}

impl Shared {
    /// What to answer; `None`: nothing.
    fn answer(&self, question: &[u8; QUESTION_LEN]) -> Option<(Vec<u8>, Turn)> {
        let question = Question::decode(question)?;
        let Word { told, keys } = self.word.get()?;
        let key = keys.as_ref().map(|keys| keys.of(TenantId(question.tenant)));
        match key {
            Some(None) => Some((refusal(), Turn::Refused)),
            key => Some((told.encode(&question, self.port, key.flatten().as_ref())?, Turn::Told)),
        }
    }
}
