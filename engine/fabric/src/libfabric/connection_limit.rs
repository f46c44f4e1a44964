//! Bounds the connections that others make to a server's endpoints.
//!
//! The provider accepts every connection and keeps it until its peer ends it, even if nothing ever comes over
//! it. So a thread looks twice a second at those that this process has accepted. It closes silent ones, and
//! those idle for longest where a host, or all hosts together, have too many. A peer whose connection was closed
//! makes a new one with its next message.
#![expect(unsafe_code, reason = "descriptors that belong to the provider are borrowed")]

use super::hang_up::{end, peer_of, progress, socket};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::net::getsockname;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is allowed.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How long a new connection may be silent, in milliseconds: some round trips of the slowest network, and lost packets.
    /// A peer introduces itself at once.
    silence_ms: u32,
    /// Silent connections of a host to one endpoint.
    silent: usize,
    /// Connections of a host to one endpoint. Each thread that uses a container there has one.
    host: usize,
    /// Connections to all endpoints.
    all: usize,
}

impl Limits {
    /// Connections take at most half of the files that this process may have open.
    fn of_process() -> Self {
        let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
        let all = files.map_or(ALL_MAX, |files| (files / 2).min(ALL_MAX));
        Self { silence_ms: 5000, silent: 256, host: 2048, all }
    }
}

/// Most connections to all endpoints. Each takes 20 KiB of the provider's memory, together 1.3 GB.
const ALL_MAX: usize = 1 << 16;

/// An accepted connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct IncomingConnection {
    fd: i32,
    /// The endpoint's address.
    own: SocketAddr,
    peer: SocketAddr,
    /// Milliseconds since something came last, or since it was accepted.
    quiet_ms: u32,
    /// Whether anything has come.
    heard: bool,
}

/// Connections to close.
fn surplus(mut callers: Vec<IncomingConnection>, limits: Limits) -> Vec<IncomingConnection> {
    callers.sort_by_key(|caller| caller.quiet_ms);
    let (mut silent, mut hosts): (HashMap<_, usize>, HashMap<_, usize>) = <_>::default();
    let count = |counts: &mut HashMap<(SocketAddr, IpAddr), usize>, caller: &IncomingConnection| {
        let count = counts.entry((caller.own, caller.peer.ip())).or_default();
        *count += 1;
        *count
    };
    // The quietest come last, and are what is too much.
    let (mut kept, mut gone): (Vec<_>, Vec<_>) = callers.into_iter().partition(|caller| {
        let is_late = !caller.heard && caller.quiet_ms >= limits.silence_ms;
        !is_late
            && (caller.heard || count(&mut silent, caller) <= limits.silent)
            && count(&mut hosts, caller) <= limits.host
    });
    while kept.len() > limits.all {
        let most = hosts.values().copied().max().unwrap_or_default();
        let of_most = |caller: &IncomingConnection| hosts.get(&(caller.own, caller.peer.ip())) == Some(&most);
        let Some(at) = kept.iter().rposition(of_most) else { break };
        let caller = kept.remove(at);
        if let Some(count) = hosts.get_mut(&(caller.own, caller.peer.ip())) {
            *count -= 1;
        }
        gone.push(caller);
    }
    gone
}

/// Bounds the connections to an endpoint until it is dropped.
pub(super) struct ConnectionLimit(
    #[expect(dead_code, reason = "the thread looks whether it is there")] Arc<SocketAddr>,
);

#[derive(Default)]
struct LimitedEndpoints {
    own: Vec<Weak<SocketAddr>>,
    runs: bool,
}

static LIMITED: Mutex<LimitedEndpoints> = Mutex::new(LimitedEndpoints { own: Vec::new(), runs: false });

impl ConnectionLimit {
    /// Bounds the connections to this address.
    pub(super) fn new(own: SocketAddr) -> Self {
        let own = Arc::new(own);
        let mut limited = LIMITED.lock().unwrap_or_else(PoisonError::into_inner);
        limited.own.push(Arc::downgrade(&own));
        if !limited.runs {
            let thread = std::thread::Builder::new().name("fabric-door".to_owned()).spawn(run);
            limited.runs = thread.is_ok();
            if let Err(error) = thread {
                tracing::warn!(%error, "no thread to look after connections: their number is not bounded");
            }
        }
        Self(own)
    }
}

/// Looks at all connections until there is no endpoint.
fn run() {
    // Opened once: a process that has no descriptor left is one that has to close some.
    let mut files = None;
    loop {
        std::thread::sleep(LOOK_EVERY);
        let own: Vec<SocketAddr> = {
            let mut limited = LIMITED.lock().unwrap_or_else(PoisonError::into_inner);
            limited.own.retain(|own| own.strong_count() > 0);
            limited.runs = !limited.own.is_empty();
            if !limited.runs {
                return;
            }
            limited.own.iter().filter_map(|own| own.upgrade().map(|own| *own)).collect()
        };
        files = files.or_else(open_files);
        let Some(files) = &mut files else { continue };
        let gone = surplus(callers(files, &own), Limits::of_process());
        let ended = gone.iter().filter(|caller| hang_up(caller)).count();
        if let Some(caller) = gone.first().filter(|_| ended > 0) {
            tracing::info!(peer = %caller.peer, connections = ended, "connections that say nothing, or are too many, were shut down");
        }
    }
}

fn open_files() -> Option<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/proc/thread-self/fd", flags, Mode::empty()).and_then(Dir::new).ok()
}

fn callers(files: &mut Dir, own: &[SocketAddr]) -> Vec<IncomingConnection> {
    files.rewind();
    let numbers = files.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
    numbers.filter_map(|number: i32| caller(number, own)).collect()
}

/// A descriptor as such a connection, if it is one.
fn caller(number: i32, own: &[SocketAddr]) -> Option<IncomingConnection> {
    // SAFETY: used only for system calls that a descriptor closed or replaced meanwhile survives.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let at = getsockname(fd).ok().and_then(socket).filter(|at| own.contains(at))?;
    let (peer, progress) = (peer_of(fd)?, progress(fd)?);
    Some(IncomingConnection {
        fd: number,
        own: at,
        peer,
        quiet_ms: progress.quiet_ms,
        heard: progress.heard != 0,
    })
}

/// Shuts down a connection. Returns whether it was still there.
fn hang_up(gone: &IncomingConnection) -> bool {
    // SAFETY: as in `caller`; and it is looked at again right before.
    let fd = unsafe { BorrowedFd::borrow_raw(gone.fd) };
    let is_same = caller(gone.fd, &[gone.own]).is_some_and(|caller| caller.peer == gone.peer);
    is_same && end(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { silence_ms: 5000, silent: 3, host: 5, all: 8 };

    fn caller(fd: i32, host: u8, quiet_ms: u32, heard: bool) -> IncomingConnection {
        let (own, peer) = (([10, 0, 0, 100], 10_100), ([10, 0, 0, host], 4000));
        IncomingConnection { fd, own: own.into(), peer: peer.into(), quiet_ms, heard }
    }

    fn gone(callers: Vec<IncomingConnection>) -> Vec<i32> {
        let mut gone: Vec<i32> = surplus(callers, LIMITS).iter().map(|caller| caller.fd).collect();
        gone.sort_unstable();
        gone
    }

    #[test]
    fn who_has_said_nothing_for_long_goes_and_who_is_idle_stays() {
        assert_eq!(
            gone(vec![caller(1, 1, 4999, false), caller(2, 1, 5000, false), caller(3, 1, 3_600_000, true)]),
            [2]
        );
    }

    #[test]
    fn of_a_hosts_silent_ones_the_newest_stay() {
        let silent = (1..=6).map(|fd| caller(fd, 1, 100 * fd.unsigned_abs(), false));
        assert_eq!(
            gone(silent.chain([caller(9, 2, 4000, false), caller(10, 1, 4000, true)]).collect()),
            [4, 5, 6]
        );
    }

    #[test]
    fn of_a_hosts_connections_those_go_that_have_been_quiet_for_longest() {
        let talking = (1..=7).map(|fd| caller(fd, 1, 1000 * fd.unsigned_abs(), true));
        assert_eq!(gone(talking.chain([caller(9, 2, 90_000, true)]).collect()), [6, 7]);
    }

    #[test]
    fn when_all_are_too_many_those_go_of_who_has_most() {
        let of = |host: u8, from: i32, count: i32| {
            (from..from + count).map(move |fd| caller(fd, host, 1000 * fd.unsigned_abs(), true))
        };
        assert_eq!(gone(of(1, 10, 5).chain(of(2, 20, 4)).chain(of(3, 90, 1)).collect()), [14, 23]);
    }
}
