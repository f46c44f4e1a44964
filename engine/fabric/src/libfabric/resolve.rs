//! Names to addresses. The system's resolver blocks, so it runs on a thread of its own.

use crate::{Address, FabricError};
use core::task::{Poll, Waker};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Does something about a name that blocks, without blocking this thread.
pub(crate) async fn elsewhere<T: Send + 'static>(
    host: String,
    port: u16,
    work: impl FnOnce() -> Result<T, FabricError> + Send + 'static,
) -> Result<T, FabricError> {
    let shared = Arc::new(Mutex::new(Shared { result: None, waker: None }));
    let theirs = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let result = work();
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
