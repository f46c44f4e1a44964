//! What only Mercury's endpoints have to take care of: pieces, transfers to themselves, addresses that lie.
#![cfg(feature = "mercury")]

mod inbox;

use core::time::Duration;
use inbox::listen;
use weir_fabric::{
    Access, Address, AuthKey, FabricError, LOOPBACK, Options, RemoteRegion, Source, Wait, open, providers,
};
use weir_runtime::real::Executor;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(10);

fn protocols() -> impl Iterator<Item = &'static str> {
    LOOPBACK.iter().copied().filter(|provider| provider.starts_with("mercury/"))
}

#[test]
fn messages_of_every_size_arrive_whole() {
    for provider in protocols() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let options = Options::near(provider, "127.0.0.1", 1);
        let [one, other] = [(); 2].map(|()| open(&rt, &options).expect("an endpoint"));
        assert_eq!((one.capabilities().provider.as_str(), one.capabilities().wait), (provider, Wait::Fd));
        assert!(!one.capabilities().multi_recv, "{provider}: messages are copied, whatever takes them in");
        let (_sender, inbox) = (listen(&one), listen(&other));
        executor.block_on(async {
            let to = one.insert(&other.address()).expect("an address");
            let max = one.capabilities().max_message;
            for size in [0usize, 1, 64, 3900, 4000, 4048, 4096, 4097, 8192, 12_345, max - 1, max] {
                let body: Vec<u8> = (0..size).map(|n| (n * 7 + size).to_le_bytes()[0]).collect();
                let (head, rest) = body.split_at(size / 3);
                one.send(to, 0, &[head, rest]).expect("accepted");
                rt.timeout(LIMIT, inbox.notify.notified()).await.expect("a message");
                let message = inbox.messages.borrow_mut().pop().expect("one");
                assert!(message[..] == body[..], "{provider}: {size} bytes");
                assert_eq!(*message.source(), Source::Unknown, "{provider}: not inserted");
            }
            let long = one.send(to, 0, &[&vec![0; max + 1]]);
            assert_eq!(long, Err(FabricError::TooLarge { len: max + 1, max }));
        });
        let counters = other.counters();
        assert_eq!((counters.messages_received.get(), one.counters().messages_sent.get()), (12, 12));
    }
}

#[test]
fn an_endpoint_that_names_itself_reaches_only_memory_that_it_exposes() {
    for provider in protocols() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let one = open(&rt, &Options::near(provider, "127.0.0.1", 1)).expect("an endpoint");
        let inbox = listen(&one);
        executor.block_on(async {
            // A client that gives the server's address for its own would have the server read its own memory.
            let own = one.insert(&one.address()).expect("an address");
            one.send(own, 0, &[b"hello"]).expect("accepted");
            rt.timeout(LIMIT, inbox.notify.notified()).await.expect("a message to oneself");
            let mut secret = one.buffers().alloc(8192).expect("memory");
            secret.fill(7);
            let exposure = one.expose(&secret, 1024..2048, Access::Read).expect("exposed");
            let region = exposure.region();
            let mut local = one.buffers().alloc(8192).expect("memory");
            local.fill(1);
            let hidden = secret.as_ptr() as u64;
            let forged = [
                RemoteRegion { addr: hidden, key: 0, len: 64 },
                RemoteRegion { addr: hidden, len: 64, ..region },
                RemoteRegion { key: region.key ^ 1, ..region },
                RemoteRegion { addr: region.addr + 1000, ..region },
                RemoteRegion { addr: u64::MAX, ..region },
                RemoteRegion { addr: 0, key: 0, len: 64 },
            ];
            for (at, region) in forged.into_iter().enumerate() {
                let read = one.read(own, &mut local, 0..64, region);
                let got = rt.timeout(LIMIT, read).await.expect("an end");
                assert!(
                    matches!(got, Err(FabricError::AccessDenied { .. })),
                    "{provider}, forgery {at}: {got:?}"
                );
            }
            assert!(rt.timeout(LIMIT, one.write(own, &local, 0..64, region)).await.expect("an end").is_err());
            assert!(local.iter().all(|byte| *byte == 1) && secret.iter().all(|byte| *byte == 7));
            let part = region.part(512, 512).expect("within");
            assert_eq!(rt.timeout(LIMIT, one.read(own, &mut local, 0..512, part)).await, Ok(Ok(())));
            assert!(local[..512].iter().all(|byte| *byte == 7) && local[512] == 1);
            drop(exposure);
            assert!(
                rt.timeout(LIMIT, one.read(own, &mut local, 0..64, region)).await.expect("an end").is_err()
            );
        });
    }
}

#[test]
fn parts_of_regions_are_read_and_written_where_they_are() {
    for provider in protocols() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let options = Options::near(provider, "127.0.0.1", 1);
        let [one, other] = [(); 2].map(|()| open(&rt, &options).expect("an endpoint"));
        let _inboxes = (listen(&one), listen(&other));
        executor.block_on(async {
            let to = one.insert(&other.address()).expect("an address");
            let mut theirs = other.buffers().alloc(100_000).expect("memory");
            for (at, byte) in theirs.iter_mut().enumerate() {
                *byte = at.to_le_bytes()[0];
            }
            let exposure = other.expose(&theirs, 100..90_100, Access::Read).expect("exposed");
            let part = exposure.region().part(5_000, 3_000).expect("within");
            // Memory of the pool, and memory that isn't.
            let mut pooled = one.buffers().alloc(4_000).expect("memory");
            let mut foreign = weir_fabric::Buffer::from_vec(vec![0; 4_000]);
            for local in [&mut pooled, &mut foreign] {
                let read = one.read(to, local, 500..3_500, part);
                assert_eq!(rt.timeout(LIMIT, read).await, Ok(Ok(())), "{provider}");
                assert!(local[500..3_500] == theirs[5_100..8_100], "{provider}");
            }
            drop(exposure);
            let exposure = other.expose(&theirs, 0..100_000, Access::Write).expect("exposed");
            let part = exposure.region().part(77_777, 3_000).expect("within");
            let written = one.write(to, &pooled, 500..3_500, part);
            assert_eq!(rt.timeout(LIMIT, written).await, Ok(Ok(())), "{provider}");
            assert!(theirs[77_777..80_777] == pooled[500..3_500], "{provider}");
            assert_eq!(theirs[77_776], 77_776usize.to_le_bytes()[0], "{provider}: nothing before it");
            // What isn't there is refused, whatever the plugin makes of it.
            let nowhere = RemoteRegion { addr: 16, key: u64::MAX, len: 64 };
            let read = rt.timeout(LIMIT, one.read(to, &mut pooled, 0..64, nowhere)).await.expect("an end");
            assert!(read.is_err(), "{provider}");
        });
        assert_eq!((one.counters().reads.get(), one.counters().writes.get()), (2, 1), "{provider}");
    }
}

#[test]
fn addresses_of_other_kinds_and_auth_keys_are_refused() {
    for provider in protocols() {
        let executor = Executor::new().expect("an executor");
        let options = Options::near(provider, "127.0.0.1", 1);
        let one = open(&executor.handle(), &options).expect("an endpoint");
        for text in ["127.0.0.1:9", "ofi+verbs://127.0.0.1:9", "na+sm://x", "ofi+tcp://127.0.0.1:0", "%s%n"] {
            let address = Address::from_bytes(text.as_bytes()).expect("short");
            let refused = one.insert(&address);
            assert!(
                matches!(refused, Err(FabricError::BadAddress { .. })),
                "{provider}: {text}: {refused:?}"
            );
        }
        let keyed = Options { auth_keys: vec![AuthKey { service: 1, vni: 10 }], ..options };
        let refused = open(&executor.handle(), &keyed).err();
        assert_eq!(refused, Some(FabricError::NoAuthKeys { provider: provider.to_owned() }));
    }
    let executor = Executor::new().expect("an executor");
    let unknown = open(&executor.handle(), &Options::near("mercury/na+none", "127.0.0.1", 1)).err();
    let text = unknown.expect("there is no such plugin").to_string();
    assert!(text.contains("mercury/na+none") && text.contains("no such plugin"), "{text}");
}

#[test]
fn protocols_are_listed_with_what_they_can() {
    let offers = providers().expect("the library answers");
    for provider in protocols() {
        let offer = offers.iter().find(|offer| offer.provider == provider).expect("listed");
        let found = offer.capabilities.as_ref().expect("usable");
        assert!(found.source && found.rma && !found.auth_keys, "{found}");
    }
}
