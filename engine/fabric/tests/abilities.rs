//! Each ability of a provider, used and given up: messages and transfers get through either way.

mod inbox;

use core::time::Duration;
use inbox::{listen, providers_within};
use std::sync::mpsc;
use weir_fabric::libfabric::probe;
use weir_fabric::{
    Ability, Access, AuthKey, Capabilities, FabricError, LOOPBACK, Message, Options, Protocol, Source, Wait,
    open, providers, tested,
};
use weir_runtime::real::Executor;

/// Messages of several sizes and a read between two endpoints that do without these abilities. Returns what the
/// receiver knew of the sender's messages after it had inserted it.
fn exchange(provider: &str, without: &[Ability]) -> Vec<Source> {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let options = Options { without: without.to_vec(), ..Options::near(provider, "127.0.0.1", 1) };
    let [one, other] =
        [open(&rt, &options), open(&rt, &options)].map(|endpoint| endpoint.expect("an endpoint"));
    let (_one_inbox, inbox) = (listen(&one), listen(&other));
    executor.block_on(async {
        // A stranger first, so that numbers of the two sides differ.
        let stranger = open(&rt, &options).expect("an endpoint");
        other.insert(&stranger.address()).expect("an address");
        let to = one.insert(&other.address()).expect("an address");
        let mut sizes = [1usize, 100, 128, 129, 4000, 16_000].into_iter();
        let first = sizes.next().expect("six");
        let wait = Duration::from_secs(10);
        one.send(to, 0, &[&vec![9; first]]).expect("accepted");
        rt.timeout(wait, inbox.notify.notified()).await.expect("the first message");
        assert_eq!(*inbox.messages.borrow()[0].source(), Source::Unknown, "not inserted yet");
        let from = other.insert(&one.address()).expect("an address");
        for size in sizes {
            one.send(to, 0, &[&vec![7; size]]).expect("accepted");
            rt.timeout(wait, inbox.notify.notified()).await.expect("a message");
        }
        let mut secret = one.buffers().alloc(10_000).expect("memory");
        secret.fill(5);
        let exposure = one.expose(&secret, 0..10_000, Access::Read).expect("exposed");
        let mut local = other.buffers().alloc(10_000).expect("memory");
        let read = other.read(from, &mut local, 0..10_000, exposure.region());
        assert_eq!(rt.timeout(wait, read).await, Ok(Ok(())));
        assert!(local.iter().all(|byte| *byte == 5));
        // Given up and made anew: the same address is somebody else from now on, and is recognised.
        other.remove(from);
        let again = other.insert(&one.address()).expect("an address");
        assert_ne!(from, again);
        // On tcp giving up hangs up, and what is sent just then may get lost.
        let mut arrived = false;
        for _ in 0..50 {
            one.send(to, 0, &[b"again"]).expect("accepted");
            arrived = rt.timeout(Duration::from_millis(200), inbox.notify.notified()).await.is_ok();
            if arrived {
                break;
            }
        }
        assert!(arrived, "messages get through again");
        let messages = inbox.messages.borrow();
        let last = messages.last().expect("seven");
        if other.capabilities().source {
            assert_eq!(*last.source(), Source::Peer(again));
            assert!(messages[1..6].iter().all(|message| *message.source() == Source::Peer(from)));
        }
        messages[1..].iter().map(|message| message.source().clone()).collect()
    })
}

#[test]
fn senders_are_named_where_the_provider_can_and_by_nobody_where_it_can_not() {
    // Mercury's protocols are not libfabric's to ask.
    let mercury = LOOPBACK.iter().copied().filter(|provider| provider.starts_with("mercury/"));
    for provider in providers_within().into_iter().chain(mercury) {
        let named = exchange(provider, &[]);
        assert!(named.iter().all(|source| matches!(source, Source::Peer(_))), "{provider}: {named:?}");
        let nameless = exchange(provider, &[Ability::Source]);
        assert!(nameless.iter().all(|source| *source == Source::Unknown), "{provider}: {nameless:?}");
    }
}

#[test]
fn senders_are_found_by_our_number_and_by_the_providers() {
    let shm = probe("shm").expect("built in");
    assert!(shm.av_user_id, "the ability under test is there");
    if shm.within_process() {
        exchange("shm", &[]);
        exchange("shm", &[Ability::AvUserId]);
        return;
    }
    let executor = Executor::new().expect("an executor");
    let options = Options::near("shm", "127.0.0.1", 1);
    let [one, other] = [0, 1].map(|_| open(&executor.handle(), &options).expect("an endpoint"));
    let refused = one.insert(&other.address()).expect_err("it would crash");
    assert!(matches!(refused, FabricError::OwnProcess { .. }), "{refused}");
}

#[test]
fn a_provider_that_is_a_stack_is_opened_by_its_short_name() {
    let [short, stack] = ["tcp_rxm", "tcp;ofi_rxm"].map(|name| probe(name).expect("built in"));
    assert_eq!(short, Capabilities { provider: short.provider.clone(), ..stack }, "one is the other");
    let named = exchange("tcp_rxm", &[]);
    assert!(named.iter().all(|source| matches!(source, Source::Peer(_))), "{named:?}");
    match (probe("verbs"), tested().contains(&"verbs")) {
        (Ok(_), _) => {}
        (Err(error), false) => assert!(error.to_string().contains("verbs"), "{error}"),
        (Err(error), true) => panic!("it is there: {error}"),
    }
}

#[test]
fn an_endpoint_is_on_the_device_that_is_named_and_one_that_is_not_there_is_said() {
    let executor = Executor::new().expect("an executor");
    let on = |provider: &str, device: &str| {
        let near = Options::near(provider, "127.0.0.1", 1);
        open(&executor.handle(), &Options { device: Some(device.to_owned()), ..near })
    };
    for provider in ["tcp", "tcp_rxm"] {
        let endpoint = on(provider, "lo").expect("loopback is always there");
        assert!(endpoint.address().socket().is_some_and(|socket| socket.ip().is_loopback()));
    }
    for provider in ["tcp", "shm", "tcp_rxm"] {
        let refused = on(provider, "cxi7").err();
        let (device, provider) = ("cxi7".to_owned(), provider.to_owned());
        assert_eq!(refused, Some(FabricError::NoDevice { device, provider }));
    }
}

#[test]
fn who_listens_at_loopback_is_found_there() {
    for provider in providers_within() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.expect("a port").port();
        let listener = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
        let sender = open(&rt, &Options::near(provider, "127.0.0.1", port)).expect("an endpoint");
        let (_sender, inbox) = (listen(&sender), listen(&listener));
        executor.block_on(async {
            let address = sender.resolve("127.0.0.1", port).await.expect("it listens").address;
            let to = sender.insert(&address).expect("an address");
            sender.send(to, 0, &[b"found"]).expect("accepted");
            let arrived = rt.timeout(Duration::from_secs(10), inbox.notify.notified()).await;
            assert!(arrived.is_ok(), "{provider}: nothing arrived at {address}");
        });
    }
}

#[test]
fn messages_have_a_buffer_each_where_no_slab_takes_several() {
    for provider in providers_within().into_iter().chain(["tcp_rxm"]) {
        let executor = Executor::new().expect("an executor");
        let open = |without: &[Ability]| {
            let options = Options { without: without.to_vec(), ..Options::near(provider, "127.0.0.1", 1) };
            open(&executor.handle(), &options).expect("an endpoint")
        };
        assert!(open(&[]).capabilities().multi_recv, "{provider}: the ability under test is there");
        assert!(!open(&[Ability::MultiRecv]).capabilities().multi_recv, "{provider}");
        let named = exchange(provider, &[Ability::MultiRecv]);
        assert!(named.iter().all(|source| matches!(source, Source::Peer(_))), "{provider}: {named:?}");
        exchange(provider, &[Ability::MultiRecv, Ability::Source]);
    }
}

#[test]
fn small_messages_get_through_with_and_without_a_completion() {
    for provider in providers_within() {
        for without in [&[][..], &[Ability::Inject], &[Ability::Source, Ability::Inject]] {
            let executor = Executor::new().expect("an executor");
            let rt = executor.handle();
            let options = Options { without: without.to_vec(), ..Options::near(provider, "127.0.0.1", 1) };
            let [one, other] =
                [open(&rt, &options), open(&rt, &options)].map(|endpoint| endpoint.expect("an endpoint"));
            assert_eq!(one.capabilities().inject == 0, without.contains(&Ability::Inject));
            let (_sender, inbox) = (listen(&one), listen(&other));
            executor.block_on(async {
                let to = one.insert(&other.address()).expect("an address");
                for size in [0usize, 1, 64, 128, 129, 512, 513, 5000] {
                    one.send(to, 0, &[&vec![1; size]]).expect("accepted");
                    let arrived = rt.timeout(Duration::from_secs(10), inbox.notify.notified()).await;
                    arrived
                        .unwrap_or_else(|_| panic!("{provider} without {without:?}: {size} bytes got lost"));
                }
                let total: usize = inbox.messages.borrow().iter().map(Message::len).sum();
                assert_eq!(total, 64 + 1 + 128 + 129 + 512 + 513 + 5000);
            });
        }
    }
}

/// Writes to a peer that does nothing until it is told to. Returns whether the write ended before that, and whether the
/// peer had all of it when the write had ended and a message that was sent then was there.
fn written_to_a_busy_peer(provider: &'static str, without: &[Ability]) -> (bool, bool) {
    const LEN: usize = 64 << 10;
    let (tell, told) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let peer = std::thread::spawn(move || {
        let executor = Executor::new().expect("an executor");
        let endpoint =
            open(&executor.handle(), &Options::near(provider, "127.0.0.1", 1)).expect("an endpoint");
        let inbox = listen(&endpoint);
        let mut buffer = endpoint.buffers().alloc(LEN).expect("memory");
        buffer.fill(0);
        let exposure = endpoint.expose(&buffer, 0..LEN, Access::Write).expect("exposed");
        tell.send((endpoint.address(), exposure.region())).expect("the writer waits");
        executor.block_on(async {
            inbox.notify.notified().await;
            // The whole thread stands still.
            goes_on.recv().expect("the writer tells");
            inbox.notify.notified().await;
        });
        buffer.iter().all(|byte| *byte == 5)
    });
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let options = Options { without: without.to_vec(), ..Options::near(provider, "127.0.0.1", 1) };
    let endpoint = open(&rt, &options).expect("an endpoint");
    assert_eq!(endpoint.capabilities().delivery, !without.contains(&Ability::Delivery));
    let _inbox = listen(&endpoint);
    let (address, region) = told.recv().expect("it starts");
    let ended = executor.block_on(async {
        let to = endpoint.insert(&address).expect("an address");
        endpoint.send(to, 0, &[b"stand still"]).expect("accepted");
        // Until the connection is there and the message on it.
        rt.sleep(Duration::from_millis(300)).await;
        let mut buffer = endpoint.buffers().alloc(LEN).expect("memory");
        buffer.fill(5);
        let mut write = endpoint.write(to, &buffer, 0..LEN, region);
        let ended = rt.timeout(Duration::from_millis(500), &mut write).await.is_ok();
        go_on.send(()).expect("it waits");
        assert_eq!(rt.timeout(Duration::from_secs(20), write).await, Ok(Ok(())));
        endpoint.send(to, 0, &[b"written"]).expect("accepted");
        let until = rt.now() + Duration::from_secs(20);
        while !peer.is_finished() {
            assert!(rt.now() < until, "the message got lost");
            rt.sleep(Duration::from_millis(5)).await;
        }
        ended
    });
    (ended, peer.join().expect("no panic"))
}

#[test]
fn a_write_has_ended_when_it_has_arrived_and_else_before_any_message_that_was_sent_then() {
    assert_eq!(written_to_a_busy_peer("tcp", &[]), (false, true), "nobody has taken it in");
    assert_eq!(written_to_a_busy_peer("tcp", &[Ability::Delivery]), (true, true));
    for provider in providers_within().into_iter().filter(|provider| *provider != "tcp") {
        assert!(written_to_a_busy_peer(provider, &[]).1, "{provider}");
    }
}

#[test]
fn the_library_is_the_one_that_was_asked_for() {
    let found = probe("tcp").expect("built in").library;
    let wanted = std::env::var("WEIR_LIBFABRIC_WANTED").unwrap_or_else(|_| found.clone());
    assert_eq!(found, wanted);
    assert!(found.split_once('.').is_some_and(|(major, minor)| major == "2" && minor != "0"), "{found}");
}

#[test]
fn abilities_are_asked_of_the_provider_and_those_without_hardware_are_named_in_errors() {
    let tcp = probe("tcp").expect("built in");
    assert!(tcp.multi_recv && tcp.source && tcp.rma && !tcp.source_err && tcp.wait == Wait::FdSet, "{tcp}");
    assert!(tcp.delivery && tcp.ordered_writes, "one stream: {tcp}");
    assert!(!tcp.auth_keys && !tcp.mr.virt_addr && tcp.mr_key_bytes == 8, "{tcp}");
    let shm = probe("shm").expect("built in");
    assert!(shm.rma && shm.mr.virt_addr && !shm.auth_keys && shm.wait == Wait::Doorbell, "{shm}");
    let executor = Executor::new().expect("an executor");
    let keyed =
        Options { auth_keys: vec![AuthKey { service: 1, vni: 10 }], ..Options::near("tcp", "127.0.0.1", 1) };
    let refused = open(&executor.handle(), &keyed).err();
    assert_eq!(
        refused,
        Some(FabricError::NoAuthKeys { provider: "tcp".to_owned() }),
        "nothing is left open silently"
    );
    let error = probe("cxi").expect_err("no such hardware here");
    assert!(error.to_string().contains("cxi"), "{error}");
    let offers = providers().expect("the library answers");
    for name in ["tcp", "shm", "tcp;ofi_rxm"] {
        let offer = offers.iter().find(|offer| offer.provider == name);
        let offer = offer.unwrap_or_else(|| panic!("{name} is not among {offers:?}"));
        assert!(offer.capabilities.is_some(), "{offer:?}");
    }
    assert!(offers.iter().all(|offer| offer.capabilities.is_none() != offer.missing.is_empty()));
}

#[test]
fn the_receiver_not_ready_protocol_is_refused_where_the_provider_has_none() {
    let executor = Executor::new().expect("an executor");
    for provider in ["tcp", "shm"] {
        let capabilities = probe(provider).expect("it is built in");
        assert!(!capabilities.receiver_not_ready, "{provider}");
        let options =
            Options { protocol: Protocol::ReceiverNotReady, ..Options::near(provider, "127.0.0.1", 1) };
        let refused = open(&executor.handle(), &options).err();
        assert_eq!(refused, Some(FabricError::NoProtocol { provider: provider.to_owned() }));
    }
    assert_eq!(Protocol::from_name("receiver-not-ready"), Some(Protocol::ReceiverNotReady));
    assert_eq!(Protocol::from_name("default"), Some(Protocol::Usual));
    assert_eq!(Protocol::from_name("rnr"), None);
}
