//! What peers can do to exposed memory, on the real providers that check keys.

mod inbox;

use core::time::Duration;
use inbox::{Inbox, listen, providers_with_keys, providers_within};
use std::rc::Rc;
use weir_fabric::{
    Ability, Access, Buffer, Endpoint, Message, Options, ReceiveMode, RemoteRegion, Source, open,
};
use weir_runtime::Handle;
use weir_runtime::real::Executor;

#[test]
fn forged_keys_ranges_and_directions_move_no_byte_and_the_peers_go_on_talking() {
    for provider in providers_with_keys() {
        forge(provider);
    }
}

fn forge(provider: &str) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let options = Options::near(provider, "127.0.0.1", 1);
    let [one, other] =
        [open(&rt, &options), open(&rt, &options)].map(|endpoint| endpoint.expect("an endpoint"));
    let (_one_inbox, other_inbox) = (listen(&one), listen(&other));
    executor.block_on(async {
        let to_other = one.insert(&other.address()).expect("an address");
        let mut secret = other.buffers().alloc(4096).expect("memory");
        secret.fill(7);
        let exposure = other.expose(&secret, 1024..2048, Access::Read).expect("exposed");
        let region = exposure.region();
        let mut local = one.buffers().alloc(4096).expect("memory");
        local.fill(1);
        let limit = Duration::from_secs(10);
        let whole = rt.timeout(limit, one.read(to_other, &mut local, 0..1024, region)).await;
        assert_eq!(whole, Ok(Ok(())));
        assert!(local[..1024].iter().all(|byte| *byte == 7));
        local.fill(1);
        let forged = [
            RemoteRegion { key: region.key ^ 1, ..region },
            RemoteRegion { len: 4096, ..region },
            RemoteRegion { addr: region.addr + 1, ..region },
        ];
        for (at, region) in forged.into_iter().enumerate() {
            let len = usize::try_from(region.len).expect("small");
            let stolen = rt.timeout(limit, one.read(to_other, &mut local, 0..len, region)).await;
            assert!(matches!(stolen, Ok(Err(_))), "forgery {at}: {stolen:?}");
            assert!(local.iter().all(|byte| *byte == 1), "forgery {at} moved bytes");
        }
        let written = rt.timeout(limit, one.write(to_other, &local, 0..1024, region)).await;
        // A write may count as sent before the other side refuses it; what matters is that nothing changes.
        assert!(written.is_ok());
        rt.sleep(Duration::from_millis(50)).await;
        assert!(secret.iter().all(|byte| *byte == 7));
        drop(exposure);
        let late = rt.timeout(limit, one.read(to_other, &mut local, 0..1024, region)).await;
        assert!(matches!(late, Ok(Err(_))), "after the exposure has ended: {late:?}");
        for n in 0..20u8 {
            // Refusals cost the connection; messages that were under way on it are lost.
            one.send(to_other, 0, &[&[n]]).expect("accepted");
            if rt.timeout(Duration::from_millis(200), other_inbox.notify.notified()).await.is_ok() {
                break;
            }
        }
        assert!(!other_inbox.messages.borrow().is_empty(), "messages get through again");
    });
}

#[test]
fn memory_is_moved_to_by_one_endpoint_and_then_by_another() {
    for provider in providers_within() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let endpoints = [0, 1, 2].map(|_| {
            let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", 1)).expect("an endpoint");
            (listen(&endpoint), endpoint)
        });
        let [(_, owner), readers @ ..] = &endpoints;
        executor.block_on(async {
            let mut secret = owner.buffers().alloc(4096).expect("memory");
            // Memory that outlives each of them.
            let mut local = Buffer::from_vec(vec![0; 4096]);
            for (value, (_, reader)) in (1..).zip(readers) {
                secret.fill(value);
                let exposure = owner.expose(&secret, 0..4096, Access::Read).expect("exposed");
                let to = reader.insert(&owner.address()).expect("an address");
                let read = reader.read(to, &mut local, 0..4096, exposure.region());
                assert_eq!(rt.timeout(Duration::from_secs(10), read).await, Ok(Ok(())), "{provider}");
                assert!(local.iter().all(|byte| *byte == value), "{provider}");
            }
        });
    }
}

#[test]
fn a_slab_that_is_held_does_not_stop_reception_and_is_posted_again_when_released() {
    for provider in providers_within() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let small = |provider: &str| Options {
            receive: ReceiveMode::Multi { slabs: 3, slab_bytes: 64 << 10 },
            without: vec![Ability::Channels],
            ..Options::near(provider, "127.0.0.1", 1)
        };
        let [one, other] = [open(&rt, &small(provider)), open(&rt, &small(provider))]
            .map(|endpoint| endpoint.expect("an endpoint"));
        let (_sender, inbox) = (listen(&one), listen(&other));
        executor.block_on(async {
            let to = one.insert(&other.address()).expect("an address");
            let from = other.insert(&one.address()).expect("an address");
            // Every tenth message is held all the time: far more slabs than there are would be pinned.
            let mut held = Vec::new();
            let mut expected = 0u32;
            for n in 0..2000u32 {
                let mut body = vec![n.to_le_bytes()[0]; 1000];
                body[..4].copy_from_slice(&n.to_le_bytes());
                one.send(to, 0, &[&body]).expect("accepted");
                if n % 20 == 19 {
                    while inbox.messages.borrow().len() < 20 {
                        let arrived = rt.timeout(Duration::from_secs(10), inbox.notify.notified()).await;
                        arrived.expect("messages keep coming");
                    }
                    for (at, message) in inbox.messages.borrow_mut().drain(..).enumerate() {
                        assert_eq!(message[..4], expected.to_le_bytes(), "{provider}: in order and whole");
                        assert_eq!(*message.source(), Source::Peer(from));
                        expected += 1;
                        if at % 10 == 0 {
                            held.push(message);
                        }
                    }
                }
            }
            assert_eq!(expected, 2000);
            assert!(other.counters().slab_copies.get() > 100, "{provider}: the fallback was used");
            let posts = other.counters().slab_posts.get();
            assert!(posts > 20, "{provider}: slabs were posted again: {posts}");
            assert!(held.iter().all(|message| message[4] == message[0]));
        });
    }
}

/// Two endpoints, of which the second has so many receives of one message each.
fn standard_pair(rt: &Handle, provider: &str, buffers: usize) -> [Rc<dyn Endpoint>; 2] {
    let near = Options::near(provider, "127.0.0.1", 1);
    let receive = ReceiveMode::Standard { buffers };
    let standard = Options { receive, without: vec![Ability::Channels], ..near.clone() };
    [near, standard].map(|options| open(rt, &options).expect("an endpoint"))
}

async fn next(rt: &Handle, inbox: &Inbox) -> Message {
    while inbox.messages.borrow().is_empty() {
        let arrived = rt.timeout(Duration::from_secs(10), inbox.notify.notified()).await;
        arrived.expect("messages keep coming");
    }
    inbox.messages.borrow_mut().remove(0)
}

#[test]
fn standard_receives_take_one_message_each_and_are_posted_again_when_it_is_dropped() {
    for provider in providers_within() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let [one, other] = standard_pair(&rt, provider, 4);
        let (_sender, inbox) = (listen(&one), listen(&other));
        executor.block_on(async {
            let to = one.insert(&other.address()).expect("an address");
            let from = other.insert(&one.address()).expect("an address");
            for n in 0..300u32 {
                // From small ones to such as don't fit beside another.
                let mut body = vec![n.to_le_bytes()[0]; 4 + 60 * usize::try_from(n).expect("small")];
                body[..4].copy_from_slice(&n.to_le_bytes());
                one.send(to, 0, &[&body]).expect("accepted");
                let message = next(&rt, &inbox).await;
                assert_eq!(message[..], body, "{provider}: whole");
                assert_eq!(*message.source(), Source::Peer(from));
            }
        });
        let counters = other.counters();
        assert_eq!(counters.slab_copies.get(), 0);
        let posts = counters.slab_posts.get();
        assert!((300..=304).contains(&posts), "{provider}: a buffer for each message: {posts}");
    }
}

#[test]
fn a_receiver_that_has_run_out_of_receive_memory_is_counted() {
    for (provider, buffers) in providers_within().into_iter().flat_map(|name| [(name, 1), (name, 4)]) {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let [one, other] = standard_pair(&rt, provider, buffers);
        let (_sender, inbox) = (listen(&one), listen(&other));
        executor.block_on(async {
            let to = one.insert(&other.address()).expect("an address");
            for _ in 0..10 {
                one.send(to, 0, &[b"message"]).expect("accepted");
                drop(next(&rt, &inbox).await);
            }
        });
        let expected = if buffers == 1 { 10 } else { 0 };
        assert_eq!(other.counters().slabs_run_out.get(), expected, "{provider}: of {buffers} buffers");
    }
}
