//! Connections to a server's endpoint that say nothing, beside a peer that does.

use crate::inbox;

use core::time::Duration;
use inbox::listen;
use std::io::Read;
use std::net::TcpStream;
use weir_fabric::{Options, open};
use weir_runtime::real::Executor;

/// Connections that say nothing.
const SILENT: usize = 600;

/// Longer than anything takes that happens at all.
const NEVER: Duration = Duration::from_mins(1);

#[test]
fn who_connects_and_says_nothing_is_hung_up_on_while_others_are_served() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let server = open(&rt, &Options::listen("tcp", "127.0.0.1", 0)).expect("an endpoint");
    let inbox = listen(&server);
    let port = server.address().socket().expect("a host and a port");
    let client = open(&rt, &Options::near("tcp", "127.0.0.1", port.port())).expect("an endpoint");
    let _own = listen(&client);
    let peer = client.insert(&server.address()).expect("an address of this provider");
    let until = rt.now() + NEVER;
    let ask = |silent: &mut Vec<TcpStream>| {
        assert!(rt.now() < until, "{} connections that say nothing are still there", silent.len());
        inbox.messages.borrow_mut().clear();
        client.send(peer, 0, &[b"hello"]).expect("accepted");
        while inbox.messages.borrow().is_empty() {
            assert!(rt.now() < until, "nothing arrives");
            executor.block_on(rt.sleep(Duration::from_millis(10)));
        }
        silent.retain_mut(|silent| match silent.read(&mut [0; 16]) {
            Ok(len) => len > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        });
    };
    let mut silent: Vec<TcpStream> = (0..SILENT)
        .map(|_| {
            let silent = TcpStream::connect(port).expect("it listens");
            silent.set_nonblocking(true).expect("a socket");
            silent
        })
        .collect();
    while !silent.is_empty() {
        ask(&mut silent);
    }
    // The peer has not been taken for one of them.
    ask(&mut silent);
}
