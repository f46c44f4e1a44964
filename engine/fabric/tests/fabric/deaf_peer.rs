//! A peer that takes nothing of what it is sent.

use crate::inbox;

use core::time::Duration;
use inbox::{listen, providers_within};
use weir_fabric::{FabricError, Options, open};
use weir_runtime::real::Executor;

#[test]
fn a_peer_that_takes_nothing_leaves_room_for_what_others_are_sent() {
    for provider in providers_within() {
        let (here, there) = (Executor::new().expect("an executor"), Executor::new().expect("an executor"));
        let own = |executor: &Executor| open(&executor.handle(), &Options::near(provider, "127.0.0.1", 1));
        let [server, friend] = [0, 1].map(|_| own(&here).expect("an endpoint"));
        let deaf = own(&there).expect("an endpoint");
        let _inboxes = [&server, &friend, &deaf].map(listen);
        let [to_deaf, to_friend] =
            [&deaf, &friend].map(|peer| server.insert(&peer.address()).expect("an address"));
        let pause =
            |executor: &Executor| executor.block_on(executor.handle().sleep(Duration::from_millis(20)));
        for to in [to_deaf, to_friend] {
            server.send(to, 0, &[b"hello"]).expect("accepted");
        }
        for _ in 0..10 {
            pause(&here);
            pause(&there);
        }
        // From here on it is not driven any more.
        let message = vec![7; 16 << 10];
        let refused = (0..100_000).find_map(|sent| {
            if sent % 100 == 0 {
                pause(&here);
            }
            server.send(to_deaf, 0, &[&message]).err()
        });
        assert!(matches!(refused, Some(FabricError::NoBuffers { .. })), "{provider}: {refused:?}");
        assert_eq!(server.send(to_friend, 0, &[&message]), Ok(()), "{provider}");
        assert_eq!(server.send(to_friend, 0, &[&message[..3000]]), Ok(()), "{provider}");
    }
}
