//! What only Slingshot has, on a test double of its provider: several keys of one endpoint, and senders that are told by their
//! addresses.

mod inbox;
mod provider;

use core::time::Duration;
use inbox::{Inbox, listen};
use provider::is_loaded;
use std::rc::Rc;
use weir_fabric::libfabric::probe;
use weir_fabric::{
    Ability, Access, Address, Addressing, AuthKey, Ending, Endpoint, FabricError, Found, Launch,
    MrAccounting, MrMethod, MrMode, Options, Protocol, Source, Wait, configured_client_key,
    configured_device, open, providers,
};
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

/// Messages of one client before and after the server knows it, on endpoints that do without these abilities. Returns what the
/// server was told of the senders of the first three, and of the last one.
fn told(vnis: &[u16], without: &[Ability]) -> (Vec<Source>, Source, Rc<dyn Endpoint>) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let opened = |vnis: &[u16]| {
        let auth_keys = vnis.iter().copied().map(key).collect();
        let near = Options::near("cxi", "127.0.0.1", 1);
        let endpoint = open(&rt, &Options { auth_keys, without: without.to_vec(), ..near });
        let endpoint = endpoint.expect("an endpoint");
        let inbox = listen(&endpoint);
        (endpoint, inbox)
    };
    let (server, requests) = opened(vnis);
    // So that numbers of the two sides differ.
    let (other, _) = opened(&vnis[..1]);
    let (client, _replies) = opened(&vnis[..1]);
    executor.block_on(async {
        let to = client.insert(&server.address()).expect("an address");
        server.insert(&other.address()).expect("an address");
        for size in [100, 1000, 16_000] {
            client.send(to, 0, &[&vec![5; size]]).expect("accepted");
        }
        arrived(&executor, &requests, 3).await;
        let first: Vec<Source> =
            requests.messages.borrow_mut().drain(..).map(|message| message.source().clone()).collect();
        let known = match &first[0] {
            Source::Address(address) => server.insert(address),
            // As a hello tells it.
            _ => server.insert(&client.address()),
        };
        let known = known.expect("an address");
        client.send(to, 0, &[b"again"]).expect("accepted");
        arrived(&executor, &requests, 1).await;
        let last = requests.messages.borrow_mut().pop().expect("it has come");
        if server.capabilities().source {
            assert_eq!(*last.source(), Source::Peer(known));
        }
        assert_eq!(server.address_of(known).expect("known").as_bytes(), client.address().as_bytes());
        (first, last.source().clone(), Rc::clone(&server))
    })
}

#[test]
fn strangers_are_told_by_their_addresses_until_they_are_known() {
    if !is_loaded("strangers_are_told_by_their_addresses_until_they_are_known", &[]) {
        return;
    }
    for vnis in [&[100][..], &[100, 101]] {
        for without in [&[][..], &[Ability::AvUserId], &[Ability::MultiRecv], &[Ability::Inject]] {
            let (first, _, server) = told(vnis, without);
            assert_eq!(
                server.capabilities().av_user_id,
                vnis.len() == 1 && !without.contains(&Ability::AvUserId)
            );
            let is_told = |source: &Source| match source {
                Source::Address(address) => address.auth_key() == (vnis.len() > 1).then_some(key(100)),
                _ => false,
            };
            assert!(first.len() == 3 && first.iter().all(is_told), "{vnis:?} {without:?}: {first:?}");
            assert_eq!(server.counters().unknown_sources.get(), 3);
        }
        let (first, ..) = told(vnis, &[Ability::SourceErr]);
        assert!(first.iter().all(|source| *source == Source::Unknown), "{first:?}");
        let (first, last, _) = told(vnis, &[Ability::Source]);
        assert!(first.iter().chain([&last]).all(|source| *source == Source::Unknown), "{first:?}");
    }
}

#[test]
fn a_server_is_found_by_its_name_and_called_by_the_address_that_is_told() {
    if !is_loaded("a_server_is_found_by_its_name_and_called_by_the_address_that_is_told", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = free.expect("a port").port();
    let auth_keys = vec![key(100), key(101)];
    let options = Options { auth_keys, ..Options::listen("cxi", "127.0.0.1", port) };
    let server = open(&rt, &options).expect("an endpoint");
    assert!(server.spelled().starts_with("fi_addr_cxi://0x"), "{}", server.spelled());
    let requests = listen(&server);
    server.introduce(7, None);
    let (client, _replies) = with_keys(&executor, &[101]);
    client.introduce(8, None);
    executor.block_on(async {
        let found = client.resolve("127.0.0.1", port).await.expect("it is told");
        assert_eq!(found, Found { address: server.address(), server: Some(7) });
        let to = client.insert(&found.address).expect("an address");
        client.send(to, 0, &[b"request"]).expect("accepted");
        arrived(&executor, &requests, 1).await;
        let socket = Address::from_socket(([127, 0, 0, 1], 9).into());
        assert!(matches!(client.insert(&socket), Err(FabricError::BadAddress { .. })));
    });
    let ports = Options { addressing: Addressing::Ports, ..options };
    assert!(matches!(open(&rt, &ports), Err(FabricError::ForeignAddresses { .. })));
}

#[test]
fn memory_is_registered_by_the_method_that_is_configured() {
    if !is_loaded("memory_is_registered_by_the_method_that_is_configured", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    for mr_method in MrMethod::ALL {
        let options = Options { mr_method, ..Options::near("cxi", "127.0.0.1", 1) };
        let endpoint = open(&executor.handle(), &options).expect("an endpoint");
        let buffer = endpoint.buffers().alloc(100).expect("memory");
        let exposure = endpoint.expose(&buffer, 0..100, Access::Read).expect("exposed");
        let has = |bit: u32| exposure.region().key >> bit & 1 == 1;
        let (events, optimized, cached) = (has(60), has(61), has(62));
        assert_eq!(events, mr_method == MrMethod::MatchEvents, "{mr_method}");
        assert_eq!(optimized, mr_method.is_optimized(), "{mr_method}");
        assert_eq!(cached, mr_method.leaves_exposed(), "{mr_method}");
        let is_certain = matches!(exposure.close().ending, Ending::Certain);
        assert_eq!(is_certain, !mr_method.leaves_exposed(), "{mr_method}");
    }
}

#[test]
fn messages_that_find_no_room_are_turned_away_where_that_is_asked_for() {
    if !is_loaded("messages_that_find_no_room_are_turned_away_where_that_is_asked_for", &[]) {
        return;
    }
    let protocols = [(Protocol::ReceiverNotReady, true), (Protocol::Usual, false)];
    let all_keys: [&[u16]; 3] = [&[], &[100], &[100, 101]];
    for ((protocol, is_turned_away), vnis) in
        protocols.into_iter().flat_map(|one| all_keys.map(|vnis| (one, vnis)))
    {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let [sender, receiver] = [&vnis[..vnis.len().min(1)], vnis].map(|vnis| {
            let auth_keys = vnis.iter().copied().map(key).collect();
            let options = Options { protocol, auth_keys, ..Options::near("cxi", "127.0.0.1", 1) };
            open(&rt, &options).expect("an endpoint")
        });
        let _sender_inbox = listen(&sender);
        assert_eq!(sender.capabilities().inject, if is_turned_away { 0 } else { 192 });
        executor.block_on(async {
            let to = sender.insert(&receiver.address()).expect("an address");
            // Nobody has posted memory yet.
            sender.send(to, 0, &[b"early"]).expect("accepted");
            rt.sleep(Duration::from_millis(50)).await;
            assert_eq!(sender.counters().sends_failed.get(), u64::from(is_turned_away));
            let inbox = listen(&receiver);
            arrived(&executor, &inbox, usize::from(!is_turned_away)).await;
            for size in [0, 1, 192, 193, 16_000] {
                sender.send(to, 0, &[&vec![1; size]]).expect("accepted");
            }
            arrived(&executor, &inbox, 5 + usize::from(!is_turned_away)).await;
        });
        assert_eq!(sender.counters().sends_failed.get(), u64::from(is_turned_away));
    }
}

#[test]
fn what_the_launcher_gave_decides_on_nic_service_and_network() {
    let given = [
        ("SLINGSHOT_VNIS", "1042,1043"),
        ("SLINGSHOT_DEVICES", "cxi1,cxi0"),
        ("SLINGSHOT_SVC_IDS", "6,5"),
        ("WEIR_TEST_CXI_NO_DEFAULT_SERVICE", "1"),
    ];
    if !is_loaded("what_the_launcher_gave_decides_on_nic_service_and_network", &given) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let launch = Launch::from_environment();
    let opened = |named: Option<&str>| {
        let device = configured_device(named, "cxi", &launch);
        let key = configured_client_key(None, "cxi", device.as_deref(), &launch).expect("given");
        let options = Options { device, ..Options::near("cxi", "127.0.0.1", 1) };
        let options = Options { auth_keys: Vec::from_iter(key), ..options };
        let endpoint = open(&executor.handle(), &options).expect("an endpoint");
        let inbox = listen(&endpoint);
        (endpoint, inbox)
    };
    let (one, _one_inbox) = opened(None);
    let (other, inbox) = opened(Some("cxi0"));
    assert_eq!(one.spelled(), "fi_addr_cxi://0x0000a400", "the first device");
    assert_eq!(other.spelled(), "fi_addr_cxi://0x0000a200");
    executor.block_on(async {
        let to = one.insert(&other.address()).expect("an address");
        one.send(to, 0, &[b"the same network"]).expect("accepted");
        arrived(&executor, &inbox, 1).await;
    });
    // A service that is another NIC's.
    let wrong = AuthKey { service: 5, vni: 1042 };
    let options = Options { device: Some("cxi1".to_owned()), ..Options::near("cxi", "127.0.0.1", 1) };
    let refused = open(&executor.handle(), &Options { auth_keys: vec![wrong], ..options }).err();
    assert!(matches!(refused, Some(FabricError::Provider { call: "fi_getinfo", .. })), "{refused:?}");
}

#[test]
fn without_a_key_the_advice_is_to_name_one_where_no_service_is_for_everybody() {
    let name = "without_a_key_the_advice_is_to_name_one_where_no_service_is_for_everybody";
    if !is_loaded(name, &[("WEIR_TEST_CXI_NO_DEFAULT_SERVICE", "1")]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let refused = open(&executor.handle(), &Options::near("cxi", "127.0.0.1", 1)).err().expect("no key");
    let text = refused.to_string();
    assert!(text.contains("fi_domain") && text.contains("fabric_auth_key"), "{text}");
    let offers = providers().expect("the library answers");
    let offer = offers.iter().find(|offer| offer.provider == "cxi").expect("it is offered");
    assert_eq!((&offer.capabilities, &offer.missing[..]), (&None, &["a domain that opens"][..]));
}

#[test]
fn more_keys_than_the_provider_takes_are_refused_with_how_many_it_takes() {
    if !is_loaded("more_keys_than_the_provider_takes_are_refused_with_how_many_it_takes", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let auth_keys = (100..105).map(key).collect();
    let options = Options { auth_keys, ..Options::near("cxi", "127.0.0.1", 1) };
    let refused = open(&executor.handle(), &options).err();
    assert_eq!(refused, Some(FabricError::TooManyKeys { provider: "cxi".to_owned(), given: 5, max: 4 }));
}

#[test]
fn strangers_use_up_receive_memory_which_is_posted_again() {
    if !is_loaded("strangers_use_up_receive_memory_which_is_posted_again", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let (server, requests) = with_keys(&executor, &[100, 101]);
    let (client, _replies) = with_keys(&executor, &[101]);
    executor.block_on(async {
        let to = client.insert(&server.address()).expect("an address");
        // Six times what is posted: each of the last messages of a slab is told of as a stranger's, too.
        for round in 1..=24 {
            for _ in 0..64 {
                client.send(to, 0, &[&[3; 16_000]]).expect("accepted");
            }
            arrived(&executor, &requests, 64).await;
            for message in requests.messages.borrow_mut().drain(..) {
                assert!(
                    matches!(message.source(), Source::Address(_)) && message.iter().all(|byte| *byte == 3)
                );
            }
            assert_eq!(server.counters().unknown_sources.get(), 64 * round);
        }
        assert_eq!(server.counters().peers_inserted.get(), 0);
    });
}

#[test]
fn who_was_forgotten_is_told_by_its_address_again() {
    if !is_loaded("who_was_forgotten_is_told_by_its_address_again", &[]) {
        return;
    }
    for vnis in [&[100][..], &[100, 101]] {
        let executor = Executor::new().expect("an executor");
        let (server, requests) = with_keys(&executor, vnis);
        let (client, replies) = with_keys(&executor, &[100]);
        let mut before = None;
        executor.block_on(async {
            let to = client.insert(&server.address()).expect("an address");
            for round in 1..=3 {
                client.send(to, 0, &[b"request"]).expect("accepted");
                arrived(&executor, &requests, 1).await;
                let request = requests.messages.borrow_mut().pop().expect("it has come");
                let Source::Address(address) = request.source() else { panic!("{:?}", request.source()) };
                let peer = server.insert(address).expect("told by the provider");
                assert_ne!(before.replace(peer), Some(peer));
                server.send(peer, 0, &[b"reply"]).expect("accepted");
                arrived(&executor, &replies, round).await;
                server.forget(peer);
                assert_eq!(server.send(peer, 0, &[b"late"]), Err(FabricError::UnknownPeer));
            }
        });
    }
}

#[test]
fn what_the_provider_refuses_leaves_nothing_open() {
    if !is_loaded("what_the_provider_refuses_leaves_nothing_open", &[]) {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let opened = |vnis: &[u16]| {
        let auth_keys = vnis.iter().copied().map(key).collect();
        open(&executor.handle(), &Options { auth_keys, ..Options::near("cxi", "127.0.0.1", 1) }).err()
    };
    // No network has this number. The double aborts at the end where something is still open.
    let refused = opened(&[100, 0]);
    assert!(
        matches!(refused, Some(FabricError::Provider { call: "fi_av_insert_auth_key", .. })),
        "{refused:?}"
    );
    let refused = opened(&[0]);
    assert!(refused.is_some(), "one key");
    assert_eq!(opened(&[100, 101]), None);
}
