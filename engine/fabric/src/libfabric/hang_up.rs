//! Ending connections that the provider still believes in.
//!
//! When a host vanishes without a word, TCP goes on retransmitting for a quarter of an hour, and the provider keeps the
//! connection as long, whatever is removed from its address vector. So when a peer is given up, this process's
//! connections to it are shut down; the provider notices and makes a new one with the next message.
#![expect(unsafe_code, reason = "descriptors that belong to the provider are borrowed")]

use rustix::net::{Shutdown, getpeername, shutdown};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Shuts down all connections of this process to an address. Those of other threads are made anew like our own.
/// Returns how many there were.
pub(super) fn hang_up(peer: SocketAddr) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let mut found = 0;
    for number in numbers {
        // SAFETY: used only for two system calls that a descriptor closed or replaced meanwhile survives: the first
        // one makes sure that it is a connection to this peer.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let name = getpeername(fd).ok().flatten();
        let connected = name.and_then(|address| SocketAddr::try_from(address).ok());
        if connected == Some(peer) && shutdown(fd, Shutdown::Both).is_ok() {
            found += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_connections_to_that_peer_end() {
        let [one, other] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [to_one, to_other] = [&one, &other].map(|listener| listener.local_addr().expect("bound"));
        let mut ended = TcpStream::connect(to_one).expect("it listens");
        let mut lives = TcpStream::connect(to_other).expect("it listens");
        assert_eq!(hang_up(to_one), 1);
        assert_eq!(ended.read(&mut [0u8; 1]).expect("end of stream"), 0);
        lives.set_nonblocking(true).expect("a socket");
        let waiting = lives.read(&mut [0u8; 1]).expect_err("nothing was sent");
        assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock);
    }
}
