//! Several contexts in one process, as the targets of an engine are: each on its own thread with its own endpoint.

use crate::port;

use core::time::Duration;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use weir_fabric::{Options, open};
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig, Status};
use weir_runtime::Handle;
use weir_runtime::real::{Executor, Remote};
use weir_runtime::sync::Gate;

const ECHO: u16 = 0x7001;
const FILL: u16 = 0x7002;
/// Asks the server to call another one.
const FORWARD: u16 = 0x7003;

/// A server on a thread.
struct Target {
    host: String,
    port: u16,
    remote: Remote,
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

fn context(provider: &str, port: Option<u16>) -> (Executor, Handle, Rc<Rpc>) {
    context_at(provider, "127.0.0.1", port)
}

fn context_at(provider: &str, host: &str, port: Option<u16>) -> (Executor, Handle, Rc<Rpc>) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let options = match port {
        Some(port) => Options::listen(provider, host, port),
        None => Options::near(provider, "127.0.0.1", 1),
    };
    let endpoint = open(&rt, &options).expect("an endpoint");
    let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
    (executor, rt, rpc)
}

fn serve(rt: &Handle, rpc: &Rc<Rpc>) {
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    rpc.serve(
        FILL,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_room()).expect("fits");
            let mut buffer = request.payload(len).await?;
            buffer.fill(request.body()[0]);
            request.push(0, &buffer, len).await?;
            Ok(Vec::new())
        }),
    );
    let (rt, weak) = (rt.clone(), Rc::downgrade(rpc));
    rpc.serve(
        FORWARD,
        Rc::new(move |request: Request| {
            let (rt, rpc) = (rt.clone(), weak.upgrade());
            async move {
                let rpc = rpc.expect("it serves");
                let port = u16::from_le_bytes([request.body()[0], request.body()[1]]);
                // Targets of one engine share its host.
                let own = rpc.endpoint().address().socket();
                let host = own.map_or("127.0.0.1".to_owned(), |socket| socket.ip().to_string());
                let to = Peer::new(&host, port);
                let options = CallOptions::within(&rt, Duration::from_secs(10));
                let reply = rpc.call(&to, ECHO, &request.body()[2..], None, options).await;
                let reply = reply.map_err(|error| Status::new(error.der(), error.to_string()))?;
                Ok(reply.to_vec())
            }
        }),
    );
}

fn target(provider: &'static str) -> Target {
    target_at(provider, "127.0.0.1")
}

fn target_at(provider: &'static str, host: &'static str) -> Target {
    let port = port::free();
    let (ready, started) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let (executor, rt, rpc) = context_at(provider, host, Some(port));
        serve(&rt, &rpc);
        let own = rpc.endpoint().address().socket().map_or(host.to_owned(), |socket| socket.ip().to_string());
        ready.send((executor.remote(), own)).expect("the test waits");
        executor.block_on(async {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                rt.sleep(Duration::from_millis(5)).await;
            }
        });
    });
    let (remote, host) = started.recv().expect("it starts");
    Target { host, port, remote, stop, thread }
}

fn targets_and_clients(provider: &'static str, host: &'static str) {
    let targets = [target_at(provider, host), target_at(provider, host)];
    let ports = [targets[0].port, targets[1].port];
    let clients: Vec<_> = (0..2u8)
        .map(|n| {
            let host = targets[0].host.clone();
            std::thread::spawn(move || {
                let (executor, rt, rpc) = context(provider, None);
                executor.block_on(async {
                    for round in 0..50u8 {
                        let options = CallOptions::within(&rt, Duration::from_secs(20));
                        let at = usize::from((round + n) % 2);
                        let to = Peer::new(&host, ports[at]);
                        let reply = rpc.call(&to, ECHO, &[round; 300], None, options).await.expect("a reply");
                        assert_eq!(reply[..], [round; 300]);
                        let mut buffer = rpc.alloc(100_000).expect("memory");
                        let bulk = Bulk::write(&mut buffer);
                        rpc.call(&to, FILL, &[round], Some(bulk), options).await.expect("a reply");
                        assert!(buffer.iter().all(|byte| *byte == round));
                        // Through one target to the other, and from a target to itself.
                        for next in ports {
                            let body = [&next.to_le_bytes()[..], b"onward"].concat();
                            let reply = rpc.call(&to, FORWARD, &body, None, options).await.expect("a reply");
                            assert_eq!(&reply[..], b"onward");
                        }
                    }
                });
            })
        })
        .collect();
    for client in clients {
        client.join().expect("no client failed");
    }
    for Target { stop, thread, remote, .. } in targets {
        stop.send(()).expect("it runs");
        thread.join().expect("no target failed");
        assert!(remote.spawn(Box::new(|_| {})).is_err(), "its executor has ended");
    }
}

#[test]
fn targets_in_one_process_serve_clients_and_each_other_and_themselves_over_tcp() {
    targets_and_clients("tcp", "127.0.0.1");
}

#[test]
fn targets_in_one_process_serve_clients_and_each_other_and_themselves_over_shm() {
    targets_and_clients("shm", "127.0.0.1");
}

#[test]
fn targets_in_one_process_serve_clients_and_each_other_and_themselves_over_what_else_is_tested() {
    let known =
        |provider: &&str| *provider == "tcp" || *provider == "shm" || provider.starts_with("mercury/");
    for provider in weir_fabric::tested().into_iter().filter(|provider| !known(provider)) {
        targets_and_clients(provider, "127.0.0.1");
    }
}

#[cfg(feature = "mercury")]
#[test]
fn targets_in_one_process_serve_clients_and_each_other_and_themselves_over_mercury() {
    targets_and_clients("mercury/na+sm", "127.0.0.1");
    targets_and_clients("mercury/ofi+tcp", "127.0.0.1");
}

#[test]
fn targets_that_listen_at_no_particular_address_are_reached_by_that_of_the_default_route() {
    targets_and_clients("tcp", "0.0.0.0");
}

#[test]
fn a_port_that_is_taken_is_refused_with_its_name() {
    for provider in weir_fabric::tested() {
        let first = target(provider);
        let executor = Executor::new().expect("an executor");
        let options = Options::listen(provider, "127.0.0.1", first.port);
        let Err(error) = open(&executor.handle(), &options) else {
            panic!("{provider}: two listen on one port")
        };
        assert!(error.to_string().contains(&first.port.to_string()), "{error}");
        first.stop.send(()).expect("it runs");
        first.thread.join().expect("it ended well");
    }
}

#[test]
fn names_are_resolved_without_blocking_the_context() {
    let first = target("tcp");
    let (executor, rt, rpc) = context("tcp", None);
    executor.block_on(async {
        let options = CallOptions::within(&rt, Duration::from_secs(10));
        let to = Peer::new("localhost", first.port);
        let reply = rpc.call(&to, ECHO, b"by name", None, options).await.expect("a reply");
        assert_eq!(&reply[..], b"by name");
        let gate = Gate::new();
        let (inner, opened) = (rt.clone(), gate.clone());
        rt.spawn(async move {
            inner.sleep(Duration::from_millis(50)).await;
            opened.open();
        });
        let nowhere = Peer::new("no-such-host.invalid", 1);
        let options = CallOptions::within(&rt, Duration::from_millis(300));
        let error = rpc.call(&nowhere, ECHO, b"", None, options).await.expect_err("no such name");
        assert!(gate.is_open(), "other tasks went on");
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    });
    first.stop.send(()).expect("it runs");
    first.thread.join().expect("it ended well");
}
