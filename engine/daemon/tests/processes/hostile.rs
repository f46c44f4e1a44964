//! What no well-behaved peer sends. The engine says no, counts it, and goes on serving.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use weir_client::{Conditions, Kv, kind};
use weir_fabric::{FabricError, Message, Options, PeerId, Sink, libfabric};
use weir_group::{AskError, EngineKeys, Engines};
use weir_proto::capability::{Capability, Credential, EngineKey, PoolSecret, SystemKey};
use weir_proto::group::EngineInfo;
use weir_proto::object::{AkeyUpdate, UpdateRequest, Value};
use weir_proto::pool::{ConnectRequest, EngineSeal, PoolRequest, SealedRequest, TargetPoolDestroy};
use weir_proto::{Der, Key, ObjectId, PoolId, Rank, Rights, TargetIndex, TenantId, codec, opcode};
use weir_rpc::{CallOptions, Keys, Peer, Rpc, RpcConfig, RpcError};
use weir_runtime::real::Executor;

use crate::kill::{create_container, create_pool};
use crate::system::{ENGINE_KEY, KEY, System};

/// Takes messages and remembers nothing.
struct Deaf(RefCell<u64>);

impl Sink for Deaf {
    fn message(&self, _: Message) {
        *self.0.borrow_mut() += 1;
    }

    fn send_failed(&self, _: PeerId, _: u64, _: FabricError) {}
}

/// A client still gets its work done.
fn assert_serves(system: &System, label: &str) {
    let context = system.context(Duration::from_secs(30));
    context.block_on(async {
        let container = create_container(&context, "tank", label).await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        kv.put(&context, b"key", b"value", Conditions::NONE).await.expect("it serves");
        assert_eq!(kv.get(&context, b"key").await.expect("it serves").as_deref(), Some(b"value".as_slice()));
    });
}

fn call(system: &System, opcode: u16, body: &[u8], config: RpcConfig) -> Result<Vec<u8>, RpcError> {
    let executor = Executor::new().expect("an executor");
    let port = system.engines[0].fabric_port;
    let endpoint =
        libfabric::open(&executor.handle(), &Options::near("tcp", "127.0.0.1", port)).expect("an endpoint");
    let rpc = Rpc::new(executor.handle(), endpoint, config);
    let peer = Peer::new("127.0.0.1", port);
    let options = CallOptions::within(&executor.handle(), Duration::from_secs(10));
    executor
        .block_on(async { rpc.call(&peer, opcode, body, None, options).await.map(|reply| reply.to_vec()) })
}

fn keyed() -> RpcConfig {
    RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() }
}

fn refused(system: &System, opcode: u16, body: &[u8]) -> Der {
    // A client of the system that asks for what it may not have.
    match call(system, opcode, body, keyed()) {
        Err(RpcError::Remote(status)) => status.der,
        other => panic!("operation {opcode:#06x} is not refused: {other:?}"),
    }
}

#[test]
fn garbage_on_the_fabric_port_is_dropped_and_counted() {
    let system = System::start(1, 1);
    create_pool(&system, "tank", 64);
    let port = system.engines[0].fabric_port;
    // Bytes that aren't even libfabric's.
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
        stream.write_all(&[0xde; 4096]).expect("it is read");
    }
    // Messages that aren't the protocol's.
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let endpoint = libfabric::open(&rt, &Options::near("tcp", "127.0.0.1", port)).expect("an endpoint");
    let sink: Rc<dyn Sink> = Rc::new(Deaf(RefCell::new(0)));
    endpoint.set_sink(Rc::downgrade(&sink));
    executor.block_on(async {
        let address = endpoint.resolve("127.0.0.1", port).await.expect("an address").address;
        let peer = endpoint.insert(&address).expect("a peer");
        for garbage in [vec![0; 1], vec![0xff; 72], b"WEIR".repeat(100), vec![7; 16_000]] {
            endpoint.send(peer, 1, &[&garbage]).expect("it is sent");
            rt.sleep(Duration::from_millis(100)).await;
        }
    });
    let counted = system.metric(0, "weir_engine_rpc_malformed_total{rank=\"0\",target=\"0\"}");
    assert!(counted.is_some_and(|count| count >= 3.0), "{counted:?} malformed messages were counted");
    assert_serves(&system, "after-garbage");
}

/// What the engines answer to somebody who speaks for the engine of rank 1 with these keys.
fn destroy_shard(system: &System, pool: PoolId, keys: EngineKeys) -> Result<(), AskError> {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let port = system.engines[0].fabric_port;
    let endpoint = libfabric::open(&rt, &Options::near("tcp", "127.0.0.1", port)).expect("an endpoint");
    let rpc = Rpc::new(rt.clone(), endpoint, keyed());
    let infos = system.engines.iter().map(|engine| EngineInfo {
        rank: Rank(engine.rank),
        host: "127.0.0.1".to_owned(),
        fabric_port: engine.fabric_port,
        targets: 1,
        management: engine.management.clone(),
    });
    let list = infos.collect::<Vec<_>>().into();
    let engines = Engines::new(rt, rpc, keys, (Rank(1), TargetIndex(0)), list).expect("a good list");
    let request = TargetPoolDestroy { pool, only_if_empty: false };
    let (opcode, limit) = (opcode::TARGET_POOL_DESTROY, Duration::from_secs(10));
    executor.block_on(engines.ask(Rank(0), TargetIndex(0), opcode, &request, limit))
}

#[test]
fn a_client_of_the_system_can_not_speak_for_an_engine() {
    let system = System::start(2, 1);
    create_pool(&system, "tank", 64);
    let context = system.context(Duration::from_secs(10));
    let pool = context.block_on(async { create_container(&context, "tank", "box").await.pool().id() });
    let counted = || system.metric(0, "weir_engine_rpc_unauthenticated_total{rank=\"0\",target=\"0\"}");
    let before = counted().expect("it is counted");
    let forger = EngineKeys { system: KEY, engines: EngineKey(KEY.0) };
    let refused = destroy_shard(&system, pool, forger).expect_err("it has no engine's key");
    assert_eq!(refused.der(), Der::NO_PERM, "{refused}");
    assert!(counted().expect("it is counted") > before, "the forgery was counted");
    assert_serves(&system, "after-a-forgery");
    // What was refused would have destroyed the pool's shard.
    let engine = EngineKeys { system: KEY, engines: ENGINE_KEY };
    destroy_shard(&system, pool, engine).expect("an engine may");
}

#[test]
fn hostile_requests_get_errors() {
    let system = System::start(1, 1);
    create_pool(&system, "tank", 64);
    assert_eq!(refused(&system, 0x7777, b""), Der::NOSYS, "no such operation");
    let opcodes = [
        opcode::OBJECT_UPDATE,
        opcode::OBJECT_FETCH,
        opcode::OBJECT_FETCH_TO_COMPARE,
        opcode::TRANSACTION_FETCH_TO_COMPARE,
        opcode::OBJECT_LIST,
        opcode::OBJECT_SEARCH_KEY,
        opcode::OBJECT_MEASURE,
        opcode::OBJECT_RUNS,
        opcode::OBJECT_RESERVE,
        opcode::POOL_CONNECT,
        opcode::POOL_MAP,
        opcode::TARGET_POOL_DESTROY,
    ];
    for opcode in opcodes {
        for body in [b"".as_slice(), &[0xff; 300], &[0; 16_000]] {
            assert!(
                [Der::PROTO, Der::NO_PERM, Der::INVAL, Der::NONEXIST]
                    .contains(&refused(&system, opcode, body))
            );
        }
    }
    let credential = Credential::issue(&SystemKey([1; 32]).tenant(TenantId::SYSTEM), "tank", 0, 0, 1);
    let connect = ConnectRequest { pool: "tank".to_owned(), rights: Rights::READ, credential };
    assert_eq!(refused(&system, opcode::POOL_CONNECT, &codec::encode(&connect)), Der::NO_PERM, "a wrong key");
    let seal = EngineSeal { rank: Rank(0), group: 0, issued_ns: 1, seal: [0; 16] };
    let sealed = codec::encode(&SealedRequest { seal, payload: Vec::new() });
    assert_eq!(refused(&system, opcode::TARGET_POOL_DESTROY, &sealed), Der::NO_PERM, "not an engine");

    let context = system.context(Duration::from_secs(10));
    let pool = context.block_on(async { create_container(&context, "tank", "box").await.pool().id() });
    let forged = |pool: PoolId| UpdateRequest {
        capability: Capability::issue(&PoolSecret([9; 32]), TenantId::SYSTEM, pool, None, Rights::WRITE, 1),
        object: ObjectId { hi: 0x0001_0001_0000_0000, lo: 1 },
        dkey: Key::from_u64(1),
        map_version: 1,
        conditions: Conditions::NONE,
        akeys: vec![AkeyUpdate {
            akey: Key::from_u64(1),
            value: Value::Single { size: 1 << 40 },
            conditions: Conditions::NONE,
            checksums: Vec::new(),
        }],
    };
    let mut update = forged(pool);
    assert_eq!(refused(&system, opcode::OBJECT_UPDATE, &codec::encode(&update)), Der::INVAL, "too large");
    update.akeys[0].value = Value::Single { size: 1 };
    let body = [codec::encode(&update), vec![1]].concat();
    assert_eq!(refused(&system, opcode::OBJECT_UPDATE, &body), Der::NO_HDL, "a forged handle");
    for tenant in [TenantId::SYSTEM, TenantId(5)] {
        let capability = Capability::issue(&PoolSecret([9; 32]), tenant, pool, None, Rights::READ, 1);
        let body = codec::encode(&PoolRequest { capability });
        assert_eq!(refused(&system, opcode::POOL_MAP, &body), Der::NO_HDL, "a forged handle of {tenant:?}");
    }
    let counted = system.metric(0, "weir_engine_rpc_unauthenticated_total{rank=\"0\",target=\"0\"}");
    assert!(counted.is_some_and(|count| count >= 3.0), "{counted:?} forgeries were counted");
    assert_serves(&system, "after-forgeries");
}

#[test]
fn a_client_of_another_protocol_version_is_told_so() {
    let system = System::start(1, 1);
    create_pool(&system, "tank", 64);
    let future = RpcConfig { versions: 900..=901, ..keyed() };
    let error = call(&system, opcode::PING, b"", future).expect_err("no common version");
    assert!(matches!(error, RpcError::Version { .. }), "{error}");
    assert!(error.to_string().contains("upgrade the older one"), "{error}");
    let counted = system.metric(0, "weir_engine_rpc_version_refused_total");
    assert!(counted.is_some_and(|count| count >= 1.0), "{counted:?}");
    assert_serves(&system, "after-versions");
}

#[test]
fn nonsense_on_the_management_and_metrics_ports_harms_nothing() {
    let system = System::start(1, 1);
    create_pool(&system, "tank", 64);
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0x16, 3, 1, 0xff, 0xff, 1], vec![0; 70_000]] {
        let mut stream = TcpStream::connect(&system.engines[0].management).expect("the port is open");
        stream.set_read_timeout(Some(Duration::from_secs(15))).expect("a timeout");
        // The engine may close the connection before everything is written.
        drop(stream.write_all(&garbage));
        drop(stream.shutdown(std::net::Shutdown::Write));
        drop(stream.read_to_end(&mut Vec::new()));
    }
    assert!(system.get(0, "/nothing").starts_with("HTTP/1.1 404"));
    let mut stream = TcpStream::connect(&system.engines[0].metrics).expect("the port is open");
    stream.write_all(&vec![0xff; 20_000]).expect("it is read");
    assert!(system.get(0, "/readyz").starts_with("HTTP/1.1 200"));
    assert_serves(&system, "after-nonsense");
}
