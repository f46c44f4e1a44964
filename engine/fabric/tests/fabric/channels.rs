//! Channels between endpoints of one node: they come about, carry what is small, and are done without.

use crate::inbox;

use core::cell::RefCell;
use core::time::Duration;
use inbox::{Inbox, listen};
use std::rc::Rc;
use weir_fabric::libfabric::probe;
use weir_fabric::{
    Ability, Access, Address, Buffer, Endpoint, FabricError, Message, Options, PeerId, Sink, Source, open,
};
use weir_runtime::Handle;
use weir_runtime::real::Executor;

/// More messages than a peer is sent before it is offered a channel.
const MANY: usize = 100;

const WAIT: Duration = Duration::from_secs(10);

/// An endpoint with its inbox.
struct Post {
    endpoint: Rc<dyn Endpoint>,
    inbox: Rc<Inbox>,
}

impl Post {
    fn open(rt: &Handle, without: &[Ability]) -> Self {
        let options = Options { without: without.to_vec(), ..Options::near("shm", "127.0.0.1", 1) };
        let endpoint = open(rt, &options).expect("an endpoint");
        Self { inbox: listen(&endpoint), endpoint }
    }

    fn address(&self) -> Address {
        self.endpoint.address()
    }

    fn insert(&self, other: &Self) -> PeerId {
        self.endpoint.insert(&other.address()).expect("an address")
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.endpoint.counters().all();
        all.into_iter().find(|(known, _)| *known == name).expect("a counter").1
    }

    /// Waits until so many messages have come in all.
    async fn has(&self, rt: &Handle, messages: usize) {
        while self.inbox.messages.borrow().len() < messages {
            rt.timeout(WAIT, self.inbox.notify.notified()).await.expect("a message");
        }
    }
}

/// What drives the endpoints; `None` where those of one process can't talk to each other, which these tests need.
fn possible() -> Option<Executor> {
    probe("shm").expect("built in").within_process().then(|| Executor::new().expect("an executor"))
}

/// Sends messages of these lengths one after another, each when the one before has come.
async fn talk(rt: &Handle, from: &Post, to: &Post, lengths: impl IntoIterator<Item = usize>) {
    let peer = from.insert(to);
    for len in lengths {
        let before = to.inbox.messages.borrow().len();
        let message: Vec<u8> = (0..len).map(|at| (at * 7 + len).to_le_bytes()[0]).collect();
        let (begin, end) = message.split_at(len / 3);
        from.endpoint.send(peer, 0, &[begin, end]).expect("accepted");
        to.has(rt, before + 1).await;
        assert_eq!(to.inbox.messages.borrow()[before][..], message[..]);
    }
}

#[test]
fn two_that_talk_get_a_channel_for_what_is_small_and_the_rest_goes_through_the_provider() {
    let Some(executor) = possible() else { return };
    let rt = executor.handle();
    let (one, other) = (Post::open(&rt, &[]), Post::open(&rt, &[]));
    executor.block_on(async {
        let from = other.insert(&one);
        talk(&rt, &one, &other, [64; MANY]).await;
        let sent = one.count("channel_sent");
        assert!(sent > 0 && sent < MANY as u64, "{sent}");
        assert_eq!(other.count("channels_accepted"), 1);
        // What is sent back takes the same channel from the first message on.
        talk(&rt, &other, &one, [0, 1, 7, 8, 9, 119, 120, 121, 240, 1000, 4080, 4081, 16_000]).await;
        assert_eq!((other.count("channel_sent"), one.count("channels_accepted")), (11, 0));
        assert_eq!(one.count("channel_received"), 11);
        assert_eq!((one.count("messages_sent"), other.count("messages_received")), (100, 100));
        let named = |message: &weir_fabric::Message| *message.source() == Source::Peer(from);
        assert!(other.inbox.messages.borrow().iter().all(named));
    });
}

#[test]
fn many_messages_at_once_all_come_also_those_that_find_no_room_in_the_ring() {
    let Some(executor) = possible() else { return };
    let rt = executor.handle();
    let (one, other) = (Post::open(&rt, &[]), Post::open(&rt, &[]));
    executor.block_on(async {
        other.insert(&one);
        talk(&rt, &one, &other, [64; MANY]).await;
        let (peer, before) = (one.insert(&other), one.count("channel_sent"));
        for number in 0..200u32 {
            one.endpoint.send(peer, 0, &[&number.to_le_bytes()]).expect("accepted");
        }
        assert!((100..200).contains(&(one.count("channel_sent") - before)));
        other.has(&rt, MANY + 200).await;
        let messages = other.inbox.messages.borrow();
        let mut numbers: Vec<u32> = messages[MANY..]
            .iter()
            .map(|message| u32::from_le_bytes(message[..].try_into().expect("four bytes")))
            .collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..200));
    });
}

#[test]
fn whoever_does_without_channels_is_reached_through_the_provider() {
    let Some(executor) = possible() else { return };
    let rt = executor.handle();
    for abilities in [[&[Ability::Channels][..], &[]], [&[], &[Ability::Channels]], [&[Ability::Source], &[]]]
    {
        let [one, other] = abilities.map(|without| Post::open(&rt, without));
        assert_eq!(one.endpoint.capabilities().channels, abilities[0].is_empty());
        executor.block_on(async {
            other.insert(&one);
            talk(&rt, &one, &other, [64; MANY]).await;
            talk(&rt, &other, &one, [64; MANY]).await;
        });
        for post in [&one, &other] {
            let counts =
                ["channel_sent", "channels_accepted", "channels_refused"].map(|name| post.count(name));
            assert_eq!(counts, [0; 3]);
        }
    }
}

#[test]
fn a_peer_that_was_given_up_or_has_ended_is_sent_nothing_through_its_channel_and_gets_another_one() {
    let Some(executor) = possible() else { return };
    let rt = executor.handle();
    let (one, other) = (Post::open(&rt, &[]), Post::open(&rt, &[]));
    executor.block_on(async {
        let from = other.insert(&one);
        talk(&rt, &one, &other, [64; MANY]).await;
        assert!(one.count("channel_sent") > 0);
        other.endpoint.forget(from);
        let before = one.count("channel_sent");
        // Of somebody that isn't known any more.
        talk(&rt, &one, &other, [64]).await;
        assert_eq!(one.count("channel_sent"), before);
        assert_eq!(*other.inbox.messages.borrow().last().expect("one").source(), Source::Unknown);
        other.insert(&one);
        talk(&rt, &one, &other, [64; 2 * MANY]).await;
        assert_eq!(other.count("channels_accepted"), 2);
        assert!(one.count("channel_sent") > before);
    });
    let peer = one.insert(&other);
    drop(other);
    assert!(one.endpoint.send(peer, 0, &[b"to nobody"]).is_err());
}

#[test]
fn a_server_with_more_peers_than_channels_answers_all_of_them() {
    let Some(executor) = possible() else { return };
    let rt = executor.handle();
    let server = Post::open(&rt, &[]);
    let clients: Vec<Post> = (0..67).map(|_| Post::open(&rt, &[])).collect();
    executor.block_on(async {
        for client in &clients {
            server.insert(client);
            talk(&rt, client, &server, [64; 40]).await;
        }
        for client in &clients {
            talk(&rt, &server, client, [64]).await;
        }
    });
    assert_eq!((server.count("channels_accepted"), server.count("channels_refused")), (64, 3));
    assert_eq!(server.count("messages_received"), 67 * 40);
}

/// Compares its memory with the first byte of what it is told.
#[derive(Default)]
struct Witness {
    memory: RefCell<Option<Buffer>>,
    agreed: RefCell<Vec<bool>>,
}

impl Sink for Witness {
    fn message(&self, message: Message) {
        let memory = self.memory.borrow();
        let agrees = |memory: &Buffer| memory.iter().all(|byte| *byte == message[0]);
        self.agreed.borrow_mut().push(memory.as_ref().is_none_or(agrees));
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

#[test]
fn a_message_does_not_overtake_a_write_that_has_ended() {
    let Some(executor) = possible() else { return };
    let rt = executor.handle();
    let one = Post::open(&rt, &[]);
    let options = Options::near("shm", "127.0.0.1", 1);
    let other = open(&rt, &options).expect("an endpoint");
    let witness = Rc::new(Witness::default());
    let weak = Rc::downgrade(&witness);
    other.set_sink(weak);
    executor.block_on(async {
        other.insert(&one.address()).expect("an address");
        let to = one.endpoint.insert(&other.address()).expect("an address");
        for _ in 0..MANY {
            one.endpoint.send(to, 0, &[&[0]]).expect("accepted");
            rt.sleep(Duration::from_micros(100)).await;
        }
        assert!(one.count("channel_sent") > 0);
        for len in [8, 100, 1000, 4096, 4097, 20_000, 200_000] {
            let memory = other.buffers().alloc(len).expect("memory");
            let exposure = other.expose(&memory, 0..len, Access::Write).expect("exposed");
            witness.memory.replace(Some(memory));
            let mut source = one.endpoint.buffers().alloc(len).expect("memory");
            for number in 1..=20 {
                source.fill(number);
                let write = one.endpoint.write(to, &source, 0..len, exposure.region());
                // Whoever waits learns of the end before the executor looks at the other side.
                one.endpoint.look_at_once();
                assert_eq!(rt.timeout(WAIT, write).await, Ok(Ok(())));
                let before = witness.agreed.borrow().len();
                one.endpoint.send(to, 0, &[&[number]]).expect("accepted");
                while witness.agreed.borrow().len() == before {
                    rt.sleep(Duration::from_micros(100)).await;
                }
                assert_eq!(witness.agreed.borrow().last(), Some(&true), "{len} bytes, number {number}");
            }
            witness.memory.replace(None);
        }
    });
}
