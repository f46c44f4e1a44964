//! Ports for servers on this host.

/// A port that nobody uses at the moment.
pub fn free() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("bound").port()
}
