use super::*;
use crate::endpoint::Bind;
use crate::{AuthKey, Endpoint, FabricError, Message, Options, PeerId, Sink, open};
use core::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_proto::capability::SystemKey;
use weir_proto::{Keys, TenantId, TenantKey};
use weir_runtime::real::Executor;

const HOST: &str = "127.0.0.1";
const KEY: SystemKey = SystemKey([6; 32]);

/// What libfabric calls the form of IPv4 addresses.
const FI_SOCKADDR_IN: u32 = 2;

fn tenant(tenant: u64) -> TenantKey {
    KEY.tenant(TenantId(tenant))
}

/// A port that nobody has.
fn free_port() -> u16 {
    let listener = TcpListener::bind((HOST, 0)).expect("a port");
    listener.local_addr().expect("it has one").port()
}

#[derive(Default)]
struct Inbox(RefCell<Vec<Vec<u8>>>);

impl Sink for Inbox {
    fn message(&self, message: Message) {
        self.0.borrow_mut().push(message.to_vec());
    }

    fn send_failed(&self, _: PeerId, _: u64, _: FabricError) {}
}

fn listen(executor: &Executor, provider: &str, port: u16, server: u64) -> Rc<dyn Endpoint> {
    let options = Options { addressing: Addressing::Published, ..Options::listen(provider, HOST, port) };
    let endpoint = open(&executor.handle(), &options).expect("a free port");
    endpoint.introduce(server, Some(&Keys::System(KEY)));
    endpoint
}

fn client(executor: &Executor, provider: &str, key: TenantKey) -> Rc<dyn Endpoint> {
    let options = Options { addressing: Addressing::Published, ..Options::near(provider, HOST, 1) };
    let endpoint = open(&executor.handle(), &options).expect("an endpoint");
    endpoint.introduce(5, Some(&Keys::Tenant(key)));
    endpoint
}

#[test]
fn an_endpoint_is_found_where_its_address_is_told_and_again_after_it_got_another() {
    for provider in ["tcp", "shm"] {
        let executor = Executor::new().expect("an executor");
        let (rt, port) = (executor.handle(), free_port());
        let client = client(&executor, provider, tenant(4));
        let mut addresses = Vec::new();
        for server in [77, 78] {
            let endpoint = listen(&executor, provider, port, server);
            let inbox = Rc::new(Inbox::default());
            let weak = Rc::downgrade(&inbox);
            endpoint.set_sink(weak);
            if !endpoint.capabilities().within_process() {
                continue;
            }
            let found = executor.block_on(client.resolve(HOST, port)).expect("it is told");
            assert_eq!(found, Found { address: endpoint.address(), server: Some(server) });
            let is_elsewhere = found.address.socket().is_none_or(|socket| socket.port() != port);
            assert!(
                is_elsewhere && !addresses.contains(&found.address),
                "the provider chose {}",
                found.address
            );
            let to = client.insert(&found.address).expect("an address of this provider");
            client.send(to, 1, &[b"found"]).expect("accepted");
            let until = rt.now() + Duration::from_secs(10);
            executor.block_on(async {
                while inbox.0.borrow().is_empty() && rt.now() < until {
                    rt.sleep(Duration::from_millis(1)).await;
                }
            });
            assert_eq!(inbox.0.take(), [b"found"]);
            assert_eq!(endpoint.counters().addresses_told.get(), 1);
            addresses.push(found.address);
        }
        let gone = executor.block_on(client.resolve(HOST, port)).expect_err("nobody is there any more");
        assert!(
            gone.to_string().starts_with(&format!("{HOST}:{port} tells no fabric address: nobody")),
            "{gone}"
        );
    }
}

#[test]
fn an_address_is_told_to_tenants_of_the_system_alone_and_one_of_another_system_is_not_believed() {
    let executor = Executor::new().expect("an executor");
    let port = free_port();
    let endpoint = listen(&executor, "tcp", port, 77);
    let stranger = client(&executor, "tcp", SystemKey([1; 32]).tenant(TenantId(4)));
    let error = executor.block_on(stranger.resolve(HOST, port)).expect_err("another key").to_string();
    assert!(error.contains("not sealed with the key of this system"), "{error}");
    // A client that listens knows its own tenant only.
    let port = free_port();
    let options = Options { addressing: Addressing::Published, ..Options::listen("tcp", HOST, port) };
    let theirs = open(&executor.handle(), &options).expect("a free port");
    theirs.introduce(1, Some(&Keys::Tenant(tenant(9))));
    let error = executor.block_on(endpoint.resolve(HOST, port)).expect_err("another tenant").to_string();
    assert!(error.contains("no such tenant"), "{error}");
    assert_eq!(theirs.counters().addresses_refused.get(), 1);
}

#[test]
fn a_named_nic_gives_a_published_endpoint_its_own_address() {
    let executor = Executor::new().expect("an executor");
    let options = Options {
        addressing: Addressing::Published,
        device: Some("lo".to_owned()),
        ..Options::listen("tcp", "0.0.0.0", free_port())
    };
    let endpoint = open(&executor.handle(), &options).expect("loopback has a NIC");
    let socket = endpoint.address().socket().expect("a host and a port");
    assert!(socket.ip().is_loopback() && socket.port() != 0, "{socket}");
    let absent = Options { device: Some("absent0".to_owned()), ..options };
    assert!(matches!(open(&executor.handle(), &absent), Err(FabricError::NoDevice { .. })));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let executor = Executor::new().expect("an executor");
    let taken = TcpListener::bind((HOST, 0)).expect("a port");
    let port = taken.local_addr().expect("it has one").port();
    let options = Options { addressing: Addressing::Published, ..Options::listen("tcp", HOST, port) };
    let error = open(&executor.handle(), &options).err().expect("in use").to_string();
    assert!(error.contains(&format!("can't be published at {HOST}:{port}")), "{error}");
}

/// Says this to the port where an address is told; what comes back.
fn say(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect((HOST, port)).expect("it listens");
    stream.write_all(bytes).expect("there is room");
    stream.shutdown(Shutdown::Write).expect("connected");
    let mut answer = Vec::new();
    // A connection that is reset had its answer before, or none.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn nonsense_and_silence_keep_nobody_from_being_told() {
    let executor = Executor::new().expect("an executor");
    let port = free_port();
    let endpoint = listen(&executor, "tcp", port, 77);
    let client = client(&executor, "tcp", tenant(4));
    // More than may wait at a time, none of whom says anything.
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect((HOST, port)).expect("it listens")).collect();
    let question = Query { tenant: 4, nonce: [1; 16] };
    for wrong in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; QUERY_LEN], &question.encode()[..39]] {
        assert_eq!(say(port, wrong), b"");
    }
    let later = {
        let mut bytes = question.encode();
        bytes[8] = 2;
        bytes
    };
    for right in [question.encode(), later] {
        let answer = say(port, &right);
        let told =
            PublishedAddress::decode(&answer, &question, port, Some(&tenant(4))).expect("a sealed answer");
        assert_eq!((told.server, &told.address), (77, &endpoint.address()));
    }
    let found = executor.block_on(client.resolve(HOST, port)).expect("it is told");
    assert_eq!(found.address, endpoint.address());
    let counters = endpoint.counters();
    assert_eq!(counters.addresses_told.get(), 3);
    assert!(counters.addresses_refused.get() >= 4 + 36, "{}", counters.addresses_refused.get());
    // Those that are left go when they have had their time.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(say(port, b""), b"");
    assert!(endpoint.counters().addresses_refused.get() >= 105);
    drop(silent);
    let began = Instant::now();
    drop(endpoint);
    assert!(began.elapsed() < Duration::from_secs(5), "its thread ends");
    TcpListener::bind((HOST, port)).expect("the port is free again");
}

/// Somebody who takes one question and says this.
fn liar(answer: impl FnOnce(Query) -> Vec<u8> + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((HOST, 0)).expect("a port");
    let socket = listener.local_addr().expect("it has one");
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("an asker");
        let mut bytes = [0; QUERY_LEN];
        stream.read_exact(&mut bytes).expect("a question");
        let answer = answer(Query::decode(&bytes).expect("a question"));
        // Whoever has heard enough hangs up.
        let _ = stream.write_all(&answer);
    });
    (socket, thread)
}

fn querier() -> Querier {
    Querier { provider: "tcp".to_owned(), format: FI_SOCKADDR_IN, key: Some(tenant(4)) }
}

fn told(provider: &str, format: u32) -> PublishedAddress {
    let address = Address::from_socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)));
    PublishedAddress { server: 77, provider: provider.to_owned(), format, address }
}

#[test]
fn what_liars_tell_is_not_believed_and_said_to_be_what_it_is() {
    let refused = |answer: Box<dyn FnOnce(Query, u16) -> Vec<u8> + Send>| {
        let (port_is, port) = std::sync::mpsc::channel();
        let (socket, thread) = liar(move |question| answer(question, port.recv().expect("told")));
        port_is.send(socket.port()).expect("it waits");
        let outcome = querier().query(socket, socket.port(), [3; 16]);
        thread.join().expect("it ends");
        outcome.expect_err("a liar")
    };
    let sealed = |told: PublishedAddress, key: TenantKey| {
        move |question: Query, port| told.encode(&question, port, Some(&key)).expect("short names")
    };
    let honest = sealed(told("tcp", FI_SOCKADDR_IN), tenant(4));
    let (socket, thread) = liar(|_| Vec::new());
    assert!(
        querier().query(socket, socket.port(), [3; 16]).expect_err("nothing").contains("without an answer")
    );
    thread.join().expect("it ends");
    let other_key = refused(Box::new(sealed(told("tcp", FI_SOCKADDR_IN), tenant(5))));
    assert!(other_key.contains("not sealed"), "{other_key}");
    let open = refused(Box::new(|question, port| {
        told("tcp", FI_SOCKADDR_IN).encode(&question, port, None).expect("short names")
    }));
    assert!(open.contains("not sealed"), "{open}");
    let recorded =
        refused(Box::new(move |question, port| honest(Query { nonce: [0; 16], ..question }, port)));
    assert!(recorded.contains("not sealed"), "{recorded}");
    for (provider, format) in [("verbs;ofi_rxm", FI_SOCKADDR_IN), ("tcp", FI_SOCKADDR_IN + 1)] {
        let other = refused(Box::new(sealed(told(provider, format), tenant(4))));
        assert!(other.contains("both sides need the same provider"), "{other}");
    }
    let long = refused(Box::new(|_, _| vec![b'W'; 1 << 20]));
    assert!(long.contains("more than"), "{long}");
    let garbage = refused(Box::new(|_, _| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    assert!(garbage.contains("fabric_addresses"), "{garbage}");
}

#[test]
fn who_says_nothing_is_given_up_in_time_for_others() {
    let silent = TcpListener::bind((HOST, 0)).expect("a port");
    let socket = silent.local_addr().expect("it has one");
    let began = Instant::now();
    let error = querier().query(socket, socket.port(), [3; 16]).expect_err("it never answers");
    assert!(error.contains("no answer within 700 ms"), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(690), "{:?}", began.elapsed());
}

#[test]
fn an_address_of_another_form_than_the_endpoints_own_is_no_peer() {
    let executor = Executor::new().expect("an executor");
    let client = client(&executor, "tcp", tenant(4));
    for foreign in [&[1u8, 2, 3, 4, 5, 6, 0, 0][..], b"fi_shm://7", &[0; 16], &[0xff; Address::MAX]] {
        let address = Address::from_bytes(foreign).expect("short enough");
        let refused = client.insert(&address);
        assert!(matches!(refused, Err(FabricError::BadAddress { .. })), "{refused:?}");
    }
}

#[test]
fn a_client_needs_no_port_and_no_key() {
    let executor = Executor::new().expect("an executor");
    let options = Options { addressing: Addressing::Published, ..Options::default() };
    assert_eq!(options.bind, Bind::Any);
    let endpoint = open(&executor.handle(), &options).expect("an endpoint");
    endpoint.introduce(1, None);
    assert_eq!(
        (endpoint.counters().addresses_told.get(), endpoint.auth_key(PeerId(0))),
        (0, None::<AuthKey>)
    );
}
