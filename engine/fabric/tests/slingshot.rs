//! What only Slingshot has, on a test double of its provider: several keys of one endpoint, and senders that are told by their
//! addresses.

mod inbox;
mod provider;

use core::time::Duration;
use inbox::{Inbox, listen};
use provider::is_loaded;
use std::rc::Rc;
use weir_fabric::libfabric::probe;
use weir_fabric::{Access, AuthKey, Endpoint, MrAccounting, MrMode, Options, Source, Wait, open, providers};
use weir_runtime::real::Executor;

/// Length of what is moved in one piece.
const LEN: usize = 100_000;

const WAIT: Duration = Duration::from_secs(10);

fn key(vni: u16) -> AuthKey {
    AuthKey { service: 1, vni }
}

/// An endpoint with these keys.
fn with_keys(executor: &Executor, vnis: &[u16]) -> (Rc<dyn Endpoint>, Rc<Inbox>) {
    let auth_keys = vnis.iter().copied().map(key).collect();
    let options = Options { auth_keys, ..Options::near("cxi", "127.0.0.1", 1) };
    let endpoint = open(&executor.handle(), &options).expect("an endpoint");
    let inbox = listen(&endpoint);
    (endpoint, inbox)
}

/// Waits until so many messages have come.
async fn arrived(executor: &Executor, inbox: &Inbox, count: usize) {
    let until = executor.handle().now() + WAIT;
    while inbox.messages.borrow().len() < count {
        assert!(executor.handle().now() < until, "{} of {count} have come", inbox.messages.borrow().len());
        let _ = executor.handle().timeout(Duration::from_millis(20), inbox.notify.notified()).await;
    }
}

#[test]
fn the_providers_abilities_are_found() {
    if !is_loaded("the_providers_abilities_are_found", &[]) {
        return;
    }
    let cxi = probe("cxi").expect("the double is loaded");
    assert!(cxi.multi_recv && cxi.rma && cxi.delivery && cxi.source && cxi.source_err, "{cxi}");
    assert!(cxi.av_user_id && cxi.auth_keys && !cxi.serves_auth_keys && cxi.receiver_not_ready, "{cxi}");
    assert!(!cxi.ordered_writes && !cxi.shared_queue && !cxi.channels && cxi.inject == 192, "{cxi}");
    assert_eq!((cxi.wait, cxi.mr_accounting), (Wait::Fd, MrAccounting::Provider));
    let mr = MrMode { local: false, virt_addr: false, prov_key: true, endpoint: true, allocated: true };
    assert_eq!((cxi.mr, cxi.mr_key_bytes), (mr, 8));
    let offers = providers().expect("the library answers");
    let offer = offers.iter().find(|offer| offer.provider == "cxi").expect("it is offered");
    assert_eq!(offer.capabilities, Some(cxi));
}

#[test]
fn a_server_of_several_keys_answers_each_client_under_its_own() {
    if !is_loaded("a_server_of_several_keys_answers_each_client_under_its_own", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let vnis = [100, 101, 102, 103];
    let (server, requests) = with_keys(&executor, &vnis);
    assert!(server.capabilities().serves_auth_keys && server.capabilities().source_err);
    let clients = vnis.map(|vni| with_keys(&executor, &[vni]));
    // Each network counts its processes anew.
    assert!(clients.iter().all(|(client, _)| client.address() == clients[0].0.address()));
    executor.block_on(async {
        for round in 0..3 {
            for (vni, (client, replies)) in vnis.iter().zip(&clients) {
                let to = client.insert(&server.address()).expect("an address");
                client.send(to, 0, &[&vni.to_le_bytes()]).expect("accepted");
                arrived(&executor, &requests, 1).await;
                let request = requests.messages.borrow_mut().pop().expect("it has come");
                assert_eq!(request[..], vni.to_le_bytes());
                let from = match request.source() {
                    Source::Address(address) if round == 0 => {
                        assert_eq!(address.auth_key(), Some(key(*vni)));
                        server.insert(address).expect("told by the provider")
                    }
                    Source::Peer(peer) if round > 0 => *peer,
                    other => panic!("round {round}: {other:?}"),
                };
                assert_eq!(server.auth_key(from), Some(key(*vni)));
                server.send(from, 0, &[b"reply"]).expect("accepted");
                arrived(&executor, replies, round + 1).await;
            }
        }
    });
    assert_eq!(server.counters().unknown_sources.get(), 4, "the first of each");
    assert_eq!(server.counters().peers_inserted.get(), 4);
    assert!(clients.iter().all(|(_, replies)| replies.messages.borrow().len() == 3), "nobody else's");
}

#[test]
fn who_comes_back_under_another_key_from_the_same_address_is_somebody_else() {
    if !is_loaded("who_comes_back_under_another_key_from_the_same_address_is_somebody_else", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let (server, requests) = with_keys(&executor, &[100, 101]);
    let mut met = Vec::new();
    for vni in [100, 101] {
        let (client, replies) = with_keys(&executor, &[vni]);
        let peer = executor.block_on(async {
            let to = client.insert(&server.address()).expect("an address");
            client.send(to, 0, &[b"request"]).expect("accepted");
            arrived(&executor, &requests, 1).await;
            let request = requests.messages.borrow_mut().pop().expect("it has come");
            let Source::Address(address) = request.source() else { panic!("{:?}", request.source()) };
            let peer = server.insert(address).expect("told by the provider");
            server.send(peer, 0, &[b"reply"]).expect("accepted");
            arrived(&executor, &replies, 1).await;
            peer
        });
        assert_eq!(server.auth_key(peer), Some(key(vni)));
        met.push((client.address(), peer));
    }
    assert_eq!(met[0].0, met[1].0, "the same address");
    assert_ne!(met[0].1, met[1].1);
}

#[test]
fn memory_moves_under_the_key_of_its_owner() {
    if !is_loaded("memory_moves_under_the_key_of_its_owner", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let (server, requests) = with_keys(&executor, &[100, 101]);
    let (client, _replies) = with_keys(&executor, &[101]);
    let mut memory = client.buffers().alloc(LEN).expect("memory");
    memory.fill(1);
    let readable = client.expose(&memory, 0..LEN, Access::Read).expect("exposed");
    executor.block_on(async {
        let to = client.insert(&server.address()).expect("an address");
        client.send(to, 0, &[b"request"]).expect("accepted");
        arrived(&executor, &requests, 1).await;
        let request = requests.messages.borrow_mut().pop().expect("it has come");
        let Source::Address(address) = request.source() else { panic!("{:?}", request.source()) };
        let from = server.insert(address).expect("told by the provider");
        let mut local = server.buffers().alloc(LEN).expect("memory");
        let read = server.read(from, &mut local, 0..LEN, readable.region());
        assert_eq!(executor.handle().timeout(WAIT, read).await, Ok(Ok(())));
        assert!(local.iter().all(|byte| *byte == 1));
        let denied = server.write(from, &local, 0..LEN, readable.region());
        assert!(matches!(executor.handle().timeout(WAIT, denied).await, Ok(Err(_))), "to read alone");
        drop(readable.close());
        let region = {
            let writable = client.expose(&memory, 0..LEN, Access::Write).expect("exposed");
            local.fill(2);
            let write = server.write(from, &local, 0..LEN, writable.region());
            assert_eq!(executor.handle().timeout(WAIT, write).await, Ok(Ok(())));
            writable.region()
        };
        assert!(memory.iter().all(|byte| *byte == 2));
        let late = server.write(from, &local, 0..LEN, region);
        assert!(matches!(executor.handle().timeout(WAIT, late).await, Ok(Err(_))), "it has ended");
    });
}

#[test]
fn an_endpoint_that_is_closed_lets_go_of_its_memory_also_where_some_is_exposed() {
    if !is_loaded("an_endpoint_that_is_closed_lets_go_of_its_memory_also_where_some_is_exposed", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let (endpoint, _inbox) = with_keys(&executor, &[100]);
    let buffer = endpoint.buffers().alloc(100).expect("memory");
    let exposure = endpoint.expose(&buffer, 0..100, Access::Write).expect("exposed");
    drop(endpoint);
    drop(exposure);
}

#[test]
fn who_has_a_foreign_key_reaches_nothing_and_is_told() {
    if !is_loaded("who_has_a_foreign_key_reaches_nothing_and_is_told", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    // So that nobody in the stranger's network has the server's address, as this one has in its own.
    let _first = with_keys(&executor, &[100]);
    let (server, requests) = with_keys(&executor, &[100, 101]);
    let (stranger, _inbox) = with_keys(&executor, &[99]);
    assert_ne!(stranger.address(), server.address());
    let mut secret = server.buffers().alloc(100).expect("memory");
    secret.fill(7);
    let exposure = server.expose(&secret, 0..100, Access::Read).expect("exposed");
    executor.block_on(async {
        let to = stranger.insert(&server.address()).expect("an address");
        stranger.send(to, 0, &[b"small"]).expect("accepted");
        stranger.send(to, 0, &[&[1; 4000]]).expect("accepted");
        let mut local = stranger.buffers().alloc(100).expect("memory");
        let stolen = stranger.read(to, &mut local, 0..100, exposure.region());
        assert!(matches!(executor.handle().timeout(WAIT, stolen).await, Ok(Err(_))));
        assert!(local.iter().all(|byte| *byte == 0));
    });
    assert!(requests.messages.borrow().is_empty());
    assert_eq!(server.counters().messages_received.get(), 0);
    assert_eq!(stranger.counters().sends_failed.get(), 2);
    assert_eq!(stranger.counters().transfers_failed.get(), 1);
}
