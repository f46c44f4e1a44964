//! Names to addresses. The system's resolver blocks, so that it runs on a thread of its own.

use crate::{Address, FabricError};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

/// Most threads of the process that wait for a name service. A service that doesn't answer holds each for many
/// seconds, and a process that looks for thousands of peers asks again meanwhile.
const THREADS_MAX: usize = 64;

/// Threads that wait now.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A thread that is counted.
struct Counted(&'static AtomicUsize);

impl Counted {
    /// Counts one more, unless there are enough.
    fn among(threads: &'static AtomicUsize) -> Option<Self> {
        let count = |count| (count < THREADS_MAX).then_some(count + 1);
        threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok().map(|_| Self(threads))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn failed(host: &str, port: u16, reason: &str) -> FabricError {
    FabricError::Resolve { host: host.to_owned(), port, reason: reason.to_owned() }
}

/// The first IPv4 address of a name, else its first address.
pub(crate) fn blocking(host: &str, port: u16) -> Result<SocketAddr, FabricError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| failed(host, port, &error.to_string()))?.collect();
    let preferred = found.iter().find(|address| address.is_ipv4()).or(found.first());
    preferred.copied().ok_or_else(|| failed(host, port, "the name has no address"))
}

struct Shared<T> {
    result: Option<Result<T, FabricError>>,
    waker: Option<Waker>,
}

/// Does blocking work about a name on another thread.
pub(crate) async fn elsewhere<T: Send + 'static>(
    host: String,
    port: u16,
    work: impl FnOnce() -> Result<T, FabricError> + Send + 'static,
) -> Result<T, FabricError> {
    let shared = Arc::new(Mutex::new(Shared { result: None, waker: None }));
    let theirs = Arc::clone(&shared);
    let counted = Counted::among(&THREADS).ok_or_else(|| {
        failed(
            &host,
            port,
            &format!("{THREADS_MAX} names are being looked up and none is found; see to the name service"),
        )
    })?;
    let thread = std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let result = work();
        drop(counted);
        let mut shared = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        shared.result = Some(result);
        if let Some(waker) = shared.waker.take() {
            waker.wake();
        }
    });
    thread.map_err(|error| failed(&host, port, &format!("no thread for the resolver: {error}")))?;
    core::future::poll_fn(|cx| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = shared.result.take() {
            return Poll::Ready(result);
        }
        shared.waker = Some(cx.waker().clone());
        Poll::Pending
    })
    .await
}

/// Resolves a name without blocking this thread.
pub(crate) async fn resolve(host: String, port: u16) -> Result<Address, FabricError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Address::from_socket(SocketAddr::new(ip, port)));
    }
    let name = host.clone();
    elsewhere(host, port, move || blocking(&name, port)).await.map(Address::from_socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_service_that_does_not_answer_takes_so_many_threads_and_no_more() {
        static OWN: AtomicUsize = AtomicUsize::new(0);
        let mut stuck: Vec<Counted> = core::iter::from_fn(|| Counted::among(&OWN)).collect();
        assert_eq!(stuck.len(), THREADS_MAX);
        stuck.pop();
        assert!(Counted::among(&OWN).is_some(), "one has ended");
        drop(stuck);
        assert_eq!(OWN.load(Ordering::Relaxed), 0);
    }
}
