//! Engines whose addresses nobody knows beforehand, as on `cxi`: the provider chooses them, and they are told at the ports of
//! the configuration.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weir_client::{Attach, Conditions, Container, Context, ContextOptions, Kv, ObjectId, Pool, Rights, kind};
use weir_fabric::Addressing;

use crate::kill::{create_container, create_pool, kill_under_load};
use crate::system::System;

/// How often an engine is killed under load.
const KILLS: u32 = 8;

const PUBLISHED: (&str, Addressing) = ("tcp", Addressing::Published);

/// Addresses of an engine's targets, as its log has them since it was started.
fn addresses(system: &System, rank: usize) -> BTreeSet<String> {
    let log = system.log(rank);
    let opened = log.lines().filter(|line| line.contains("fabric endpoint opened"));
    let addresses = opened.filter_map(|line| {
        assert!(line.contains("published=true"), "{line}");
        let (_, rest) = line.split_once("address=\"").or_else(|| line.split_once("address="))?;
        Some(rest.split(['"', ' ']).next().unwrap_or_default().to_owned())
    });
    addresses.collect()
}

fn write_one(context: &Context, container: &Container) -> ObjectId {
    context.block_on(async {
        let oid = container.new_object_id(context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(container, oid).expect("a class without redundancy");
        // Inline, and by RMA.
        for len in [20, 60_000] {
            let key = (len as u64).to_le_bytes();
            kv.put(context, &key, &vec![7; len], Conditions::NONE).await.expect("room");
        }
        oid
    })
}

fn read_one(context: &Context, container: &Container, oid: ObjectId) {
    context.block_on(async {
        let kv = Kv::open(container, oid).expect("a class without redundancy");
        for len in [20, 60_000] {
            let found = kv.get(context, &(len as u64).to_le_bytes()).await.expect("it is there");
            assert_eq!(found, Some(vec![7; len]));
        }
    });
}

#[test]
fn an_engine_that_comes_back_at_another_address_is_found_by_clients_and_engines() {
    let mut system = System::start_by(PUBLISHED, 3, 2);
    create_pool(&system, "tank", 6 * 64);
    let context = system.context(Duration::from_mins(1));
    let container = context.block_on(create_container(&context, "tank", "box"));
    let oid = write_one(&context, &container);
    for rank in 0..3 {
        let before = addresses(&system, rank);
        assert_eq!(before.len(), 2, "{before:?}: an address for each target");
        let ports = (0..2).map(|target| format!("127.0.0.1:{}", system.engines[rank].fabric_port + target));
        assert!(
            ports.into_iter().all(|port| !before.contains(&port)),
            "{before:?} are no ports that were told"
        );
        system.kill(rank);
        system.spawn(rank);
        system.wait_ready();
        assert!(addresses(&system, rank).is_disjoint(&before), "other addresses: {before:?}");
        read_one(&context, &container, oid);
        write_one(&context, &container);
    }
    let told =
        (0..3).map(|rank| system.metric(rank, "weir_engine_fabric_addresses_told_total{").unwrap_or(0.0));
    assert!(told.sum::<f64>() > 0.0, "engines asked each other");
}

#[test]
fn acknowledged_writes_survive_engines_that_come_back_at_other_addresses() {
    // A client notices after half a second: then it has some time to write.
    kill_under_load(System::start_by(PUBLISHED, 3, 2), KILLS, Duration::from_millis(600));
}

#[test]
fn addresses_of_a_provider_within_the_node_can_be_published_too() {
    let system = System::start_by(("shm", Addressing::Published), 1, 1);
    create_pool(&system, "tank", 64);
    let context = system.context(Duration::from_secs(30));
    let container = context.block_on(create_container(&context, "tank", "box"));
    let oid = write_one(&context, &container);
    read_one(&context, &container, oid);
}

/// What a client says that can't connect within a short time.
fn failure(attach: &Attach) -> String {
    let options = ContextOptions { deadline: Duration::from_secs(4), uid: 1000, gid: 1000, node: None };
    let context = Context::real_with(attach, options).expect("a client on loopback");
    let began = Instant::now();
    let failed = context.block_on(Pool::connect(&context, "tank", Rights::READ));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "it took {took:?}");
    failed.expect_err("nobody to connect to").to_string()
}

/// Says this to everybody who connects, until it is dropped with its process.
fn liar(port: u16, says: &'static [u8]) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("nobody is there");
    // Ends with the one connection that ends with nothing said.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut asked = [0; 40];
            if stream.read_exact(&mut asked).is_err() {
                return;
            }
            // Whoever has heard enough hangs up.
            let _ = stream.write_all(says);
        }
    });
}

#[test]
fn who_finds_no_address_says_of_which_engine_and_why() {
    let mut system = System::start_by(PUBLISHED, 1, 1);
    create_pool(&system, "tank", 64);
    let port = system.engines[0].fabric_port;
    let place = format!("127.0.0.1:{port}");
    let attach = system.attach();
    // Who looks for the engine at the port itself meets what tells its address.
    let by_port = failure(&Attach { addressing: Addressing::Ports, ..attach.clone() });
    assert!(by_port.contains("rank 0") || by_port.contains(&place), "{by_port}");
    // Another system's.
    let other = weir_proto::capability::SystemKey([8; 32]).tenant(weir_proto::TenantId::SYSTEM);
    let forged = failure(&Attach { key: other, ..attach.clone() });
    assert!(forged.contains("not sealed with the key of this system"), "{forged}");
    system.kill(0);
    let absent = failure(&attach);
    assert!(absent.contains(&place) && absent.contains("nobody listens there"), "{absent}");
    liar(port, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let garbage = failure(&attach);
    assert!(garbage.contains(&place) && garbage.contains("fabric_addresses"), "{garbage}");
    drop(TcpStream::connect(("127.0.0.1", port)).expect("the liar ends"));
    let until = Instant::now() + Duration::from_secs(10);
    while TcpListener::bind(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "the liar has not ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    system.spawn(0);
    system.wait_ready();
    let context = system.context(Duration::from_secs(30));
    let container = context.block_on(create_container(&context, "tank", "box"));
    let oid = write_one(&context, &container);
    read_one(&context, &container, oid);
}

#[test]
fn nonsense_at_the_port_of_an_address_is_counted_and_harms_nobody() {
    let system = System::start_by(PUBLISHED, 1, 1);
    create_pool(&system, "tank", 64);
    let place = ("127.0.0.1", system.engines[0].fabric_port);
    let silent: Vec<_> = (0..80).map(|_| TcpStream::connect(place).expect("the port is open")).collect();
    for garbage in [&[0xde; 4096][..], b"GET / HTTP/1.1\r\n\r\n", &[0; 40]] {
        let mut stream = TcpStream::connect(place).expect("the port is open");
        // It may be reset before all of it was written.
        let _ = stream.write_all(garbage);
    }
    let context = system.context(Duration::from_secs(30));
    let container = context.block_on(create_container(&context, "tank", "box"));
    let oid = write_one(&context, &container);
    read_one(&context, &container, oid);
    let refused = system.metric(0, "weir_engine_fabric_addresses_refused_total{rank=\"0\",target=\"0\"}");
    assert!(refused.is_some_and(|count| count >= 18.0), "{refused:?}");
    let told = system.metric(0, "weir_engine_fabric_addresses_told_total{rank=\"0\",target=\"0\"}");
    assert!(told.is_some_and(|count| count >= 1.0), "{told:?}");
    drop(silent);
}
