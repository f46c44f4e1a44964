//! Reopening an endpoint under its own address when a dead peer has blocked it.
//!
//! Operations in flight are lost, as after a restart of the process: they fail, messages that were not taken are
//! gone, and their senders repeat them. Everything else stays: known peers, exposures, received messages. Peers
//! learn of it from the doorbell, and find the next generation at the same address.

use super::doorbell::Doorbell;
use super::ops::Op;
use super::progress::Core;
use super::raw::Posted;
use super::stale_locks::LockRegion;
use super::watch::{Advice, PostedOps, Signs, Watch};
use crate::FabricError;
use crate::counters::add;
use crate::memory::Memory;
use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;
use weir_runtime::Instant;

/// How long the remains of an endpoint are kept when it is reopened: its shared memory, where other threads of this
/// process may be writing, and messages being sent, which peers may be reading. A thread or peer that has used neither
/// for that long first checks whether the endpoint has moved.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Pause before opening an endpoint anew is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// What an endpoint has left behind, beside the shared memory that the provider keeps.
pub(super) struct RetiredEndpoint {
    since: Instant,
    /// Of what was under way.
    _memory: Vec<Rc<Memory>>,
    /// Other threads of this process may need its lock.
    _region: Option<Arc<LockRegion>>,
}

impl Core {
    /// Whether what is in the endpoint's queue can't be trusted, because a lock was broken.
    #[inline]
    pub(super) fn is_compromised(&self) -> bool {
        self.region.borrow().as_ref().is_some_and(|region| region.is_broken())
    }

    /// Whether a message is the endpoint's question to itself: then it is answered.
    pub(super) fn is_own_question(&self, message: &[u8]) -> bool {
        let Some(watch) = self.watch.as_ref().filter(|watch| watch.question() == message) else {
            return false;
        };
        watch.answered();
        true
    }

    /// Looks whether the endpoint still works, and does what has to be done. Returns whether there may be something to take
    /// now.
    pub(super) fn look_after(&self) -> bool {
        if self.raw.is_stopped() {
            // The receiver of a message has just ended the endpoint.
            return false;
        }
        if self.is_compromised() {
            self.reopen("a process ended with the lock of its queue");
            return true;
        }
        if !self.retired.borrow().is_empty() {
            self.bury();
        }
        let met = self.region.borrow().as_ref().and_then(|region| region.peers(&self.raw));
        if self.peers.borrow().has_many_left(self.ops.under_way() == 0, met) {
            self.reopen(
                "so many of its peers are gone, were opened anew or are nobody's that there is little room for others",
            );
            return true;
        }
        let Some(watch) = &self.watch else { return false };
        if self.posted.get() == 0 || self.receive_queue.borrow().is_full() {
            // Nothing is taken, neither a message nor the answer to a question.
            watch.answered();
            return false;
        }
        // What came through channels says nothing of the queue.
        let counters = &self.counters;
        let arrived = counters.messages_received.get().wrapping_sub(counters.channel_received.get());
        let signs = Signs { arrived, ended: self.ended.get() };
        match watch.look(self.rt.now(), signs, || self.posted_ops()) {
            Advice::Nothing => return false,
            Advice::Ask => return self.ask(watch),
            Advice::Blocked => self.reopen("a peer has blocked its queue"),
            Advice::Unending => self.reopen("a peer has blocked the ends of what it sends"),
        }
        true
    }

    /// What the provider has to do for this side.
    fn posted_ops(&self) -> PostedOps {
        let mut posted = self.ops.posted_to();
        let count = posted.len();
        // Whether a process is there is asked once for each peer.
        posted.sort_unstable();
        posted.dedup();
        let peers = self.peers.borrow();
        let orphans =
            posted.into_iter().any(|(peer, entry)| !peers.get(peer).is_some_and(|peer| peer.is_at(entry)));
        PostedOps { count, orphans }
    }

    /// Sends the endpoint a message of its own. Returns whether the provider has it.
    fn ask(&self, watch: &Watch) -> bool {
        let own = self.insert(&self.address);
        if let Err(error) = &own {
            tracing::debug!(%error, "an endpoint can't reach itself");
        }
        let entry = own.ok().and_then(|own| self.peers.borrow().get(own).map(|peer| peer.fi_addr));
        let sent = entry.is_some_and(|entry| self.raw.inject(watch.question(), entry) == Posted::Yes);
        if sent {
            add(&self.counters.probes, 1);
            watch.asked();
        }
        sent
    }

    /// Tries once more what has failed, when its time has come. Returns whether the endpoint is open again.
    pub(super) fn try_again(&self) -> bool {
        let due = self.down.get().is_some_and(|at| at <= self.rt.now());
        if due {
            self.down.set(None);
            self.reopen("it could not be opened before");
        }
        !self.raw.is_stopped()
    }

    /// Lets go of what was left behind long ago.
    fn bury(&self) {
        let now = self.rt.now();
        let mut retired = self.retired.borrow_mut();
        let old = retired.iter().take_while(|retired| now - retired.since > KEPT_FOR).count();
        if old > 0 {
            self.raw.bury(retired.len() - old);
            let old: Vec<RetiredEndpoint> = retired.drain(..old).collect();
            drop(retired);
            drop(old);
        }
    }

    /// Opens the endpoint's next generation, and has peers find it.
    fn open_next(&self, doorbell: &Doorbell) -> Result<(), FabricError> {
        let generation = doorbell.next_generation();
        let opened =
            self.raw.reopen(&doorbell.provider_name(generation)).and_then(|()| doorbell.advance(generation));
        match &opened {
            Ok(()) => add(&self.counters.reopened, 1),
            Err(error) => {
                tracing::error!(address = %self.address, %error, "the endpoint could not be opened anew; it is tried again");
                self.raw.abandon();
                // A peer that goes on sending to the old one would not learn that it isn't read any more.
                doorbell.retire();
                self.down.set(Some(self.rt.now() + TRY_AGAIN));
            }
        }
        opened
    }

    /// Opens the endpoint anew.
    fn reopen(&self, why: &str) {
        let Some(doorbell) = &self.doorbell else { return };
        tracing::warn!(address = %self.address, "the endpoint is opened anew: {why}");
        let was_open = !self.raw.is_stopped();
        // What was posted to others may still be done by them, and what they have taken ends.
        self.ring_for_transfers();
        let region = self.region.take();
        self.leave_channels();
        let opened = self.open_next(doorbell);
        // The old endpoint does nothing any more, also after an error.
        let (lost, slabs): (Vec<Op>, Vec<Op>) =
            self.ops.drain().into_iter().partition(|op| op.peer().is_some());
        drop(slabs);
        self.posted.set(0);
        if let Some(watch) = &self.watch {
            watch.start_afresh(self.rt.now());
        }
        self.insert_all_again();
        if opened.is_ok() {
            self.region.replace(doorbell.region());
            self.post_slabs();
        }
        // One for each endpoint that the provider keeps.
        if was_open {
            let memory = lost.iter().filter_map(Op::memory).cloned().collect();
            let retired = RetiredEndpoint { since: self.rt.now(), _memory: memory, _region: region };
            self.retired.borrow_mut().push_back(retired);
        }
        // The caller that is told may start something new, or end the endpoint.
        for op in lost {
            let reason = "the endpoint was opened anew".to_owned();
            self.tell_failed(op, FabricError::Unreachable { reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::libfabric::doorbell::{self, PeerDoorbell};
    use crate::libfabric::shared::{PAGE, Shared};
    use crate::{Ability, Access, Endpoint, FabricError, Message, Options, PeerId, Sink, open};
    use core::cell::Cell;
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use rustix::fs::{Mode, OFlags};
    use std::path::{Path, PathBuf};
    use std::rc::Rc;
    use weir_runtime::real::Executor;

    /// How long an endpoint may take that has to be opened anew: some times as long as it takes to notice.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// The format of shared memory that `shm` of libfabric 2.1 has, the one that is built in. Others have another queue,
    /// and don't let two endpoints of a process talk.
    const FORMAT: u32 = 8;
    /// Where a word of that memory is.
    const LOCK: usize = 56 / 4;
    /// How many places have been taken in the queue.
    const TAKEN: usize = 192 / 4;

    #[derive(Default)]
    struct Inbox {
        messages: Cell<usize>,
    }

    impl Sink for Inbox {
        fn message(&self, message: Message) {
            assert_eq!(message.len(), 500, "nobody hears the endpoint's questions to itself");
            self.messages.set(self.messages.get() + 1);
        }

        fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
    }

    /// An endpoint whose shared memory the test knows.
    struct Party {
        endpoint: Rc<dyn Endpoint>,
        inbox: Rc<Inbox>,
        name: String,
    }

    impl Party {
        fn new(executor: &Executor, without: &[Ability]) -> Self {
            let near = Options::near("shm", "127.0.0.1", 1);
            let options = Options { without: without.to_vec(), ..near };
            let endpoint = open(&executor.handle(), &options).expect("an endpoint");
            let inbox = Rc::new(Inbox::default());
            let weak = Rc::downgrade(&inbox);
            endpoint.set_sink(weak);
            let address = endpoint.address();
            let name = str::from_utf8(address.as_bytes()).expect("a name").trim_end_matches('\0').to_owned();
            Self { endpoint, inbox, name }
        }

        /// The head of its shared memory in this generation.
        fn head(&self, generation: u32) -> Shared {
            let path = Path::new(doorbell::DIRECTORY).join(doorbell::provider_name(&self.name, generation));
            let file = rustix::fs::open(path, OFlags::RDWR, Mode::empty()).expect("it is there");
            Shared::map(&file, PAGE).expect("mapped")
        }

        fn reopened(&self) -> u64 {
            self.endpoint.counters().reopened.get()
        }
    }

    /// Two of them; `None` where their memory isn't of the format that the tests know.
    fn parties(executor: &Executor) -> Option<(Party, Party)> {
        // Channels go on when the queue is blocked.
        parties_without(executor, &[Ability::Channels])
    }

    fn parties_without(executor: &Executor, without: &[Ability]) -> Option<(Party, Party)> {
        let parties = (Party::new(executor, without), Party::new(executor, without));
        let format = parties.0.head(0).word(0).load(Ordering::SeqCst) & 0xff;
        (format == FORMAT).then_some(parties)
    }

    /// Sends from one to the other, again and again, until a message arrives.
    fn reach(executor: &Executor, from: &Party, to: &Party) {
        let before = to.inbox.messages.get();
        let rt = executor.handle();
        let address = to.endpoint.address();
        let until = rt.now() + PATIENCE;
        executor.block_on(async {
            while to.inbox.messages.get() == before {
                assert!(rt.now() < until, "nothing arrives");
                // What was sent when the other side was reopened may be lost, and there may be no receiver yet.
                let _ = from.endpoint.insert(&address).and_then(|id| from.endpoint.send(id, 0, &[&[7; 500]]));
                rt.sleep(Duration::from_millis(50)).await;
            }
            // Nothing of this is on its way any more when something is broken next.
            rt.sleep(Duration::from_millis(50)).await;
        });
    }

    /// What a process does that is killed between taking a place in a queue and filling it.
    fn take_a_place(head: &Shared) {
        head.word(TAKEN).fetch_add(1, Ordering::SeqCst);
    }

    /// What a process does that is killed with the lock.
    fn take_the_lock(head: &Shared) {
        let lock = head.word(LOCK);
        let open = lock.load(Ordering::SeqCst);
        // What means "open" differs between processors.
        lock.store(1 - open, Ordering::SeqCst);
    }

    fn survives(harm: fn(&Shared)) {
        let executor = Executor::new().expect("an executor");
        let Some((server, client)) = parties(&executor) else { return };
        reach(&executor, &client, &server);
        reach(&executor, &server, &client);
        let mut memory = client.endpoint.buffers().alloc(4096).expect("memory");
        memory.fill(9);
        let exposure = client.endpoint.expose(&memory, 0..4096, Access::Read).expect("exposed");
        let known = server.endpoint.insert(&client.endpoint.address());
        // More than once; and the client's in the end.
        for (round, party) in [&server, &server, &client].into_iter().enumerate() {
            let generation = u32::try_from(party.reopened()).expect("small");
            harm(&party.head(generation));
            reach(&executor, &client, &server);
            reach(&executor, &server, &client);
            assert_eq!(party.reopened(), u64::from(generation) + 1, "round {round}");
        }
        assert_eq!((server.reopened(), client.reopened()), (2, 1));
        assert_eq!(server.endpoint.insert(&client.endpoint.address()), known, "who somebody is stays");
        let mut copy = server.endpoint.buffers().alloc(4096).expect("memory");
        let peer = known.expect("known");
        let read = server.endpoint.read(peer, &mut copy, 0..4096, exposure.region());
        let read = executor.block_on(executor.handle().timeout(PATIENCE, read));
        assert_eq!((read, copy[..] == memory[..]), (Ok(Ok(())), true), "what was exposed stays so");
    }

    #[test]
    fn an_endpoint_whose_queue_is_blocked_is_opened_anew_and_its_peers_find_it() {
        survives(take_a_place);
    }

    /// Sends so many that a channel is offered.
    fn talk(executor: &Executor, from: &Party, to: &Party) {
        let rt = executor.handle();
        let id = from.endpoint.insert(&to.endpoint.address()).expect("an address");
        executor.block_on(async {
            for _ in 0..40 {
                from.endpoint.send(id, 0, &[&[7; 500]]).expect("accepted");
                rt.sleep(Duration::from_millis(1)).await;
            }
        });
    }

    #[test]
    fn an_endpoint_whose_queue_is_blocked_hears_its_channels_until_it_is_opened_anew_and_gets_others_then() {
        let executor = Executor::new().expect("an executor");
        let Some((server, client)) = parties_without(&executor, &[]) else { return };
        reach(&executor, &server, &client);
        talk(&executor, &client, &server);
        let [accepted, sent] =
            [&server.endpoint.counters().channels_accepted, &client.endpoint.counters().channel_sent];
        assert!(accepted.get() == 1 && sent.get() > 0);
        take_a_place(&server.head(0));
        let rt = executor.handle();
        let until = rt.now() + PATIENCE;
        while server.reopened() == 0 {
            assert!(rt.now() < until, "nobody has noticed");
            let before = server.inbox.messages.get();
            talk(&executor, &client, &server);
            assert!(server.reopened() > 0 || server.inbox.messages.get() == before + 40);
        }
        reach(&executor, &client, &server);
        let before = sent.get();
        talk(&executor, &client, &server);
        talk(&executor, &client, &server);
        assert!(accepted.get() == 2 && sent.get() > before);
    }

    #[test]
    fn an_endpoint_whose_lock_nobody_has_any_more_is_opened_anew_and_its_peers_find_it() {
        survives(take_the_lock);
    }

    #[test]
    fn a_lock_in_what_an_endpoint_has_left_behind_is_looked_after() {
        let executor = Executor::new().expect("an executor");
        let Some((server, client)) = parties(&executor) else { return };
        reach(&executor, &client, &server);
        let old = server.head(0);
        take_a_place(&old);
        reach(&executor, &client, &server);
        let open = old.word(LOCK).load(Ordering::SeqCst);
        take_the_lock(&old);
        let rt = executor.handle();
        let until = rt.now() + PATIENCE;
        executor.block_on(async {
            while old.word(LOCK).load(Ordering::SeqCst) != open {
                assert!(rt.now() < until, "a thread of this process that needs it would spin");
                rt.sleep(Duration::from_millis(50)).await;
            }
        });
        assert_eq!(server.reopened(), 1);
    }

    /// Each of the executor's turns takes `turn_ms`, and there is always a next one.
    fn notices_while_busy(harm: fn(&Shared), turn_ms: u64) {
        let executor = Executor::new().expect("an executor");
        let Some((server, client)) = parties(&executor) else { return };
        reach(&executor, &client, &server);
        let rt = executor.handle();
        let busy = rt.clone();
        drop(rt.spawn(async move {
            loop {
                std::thread::sleep(Duration::from_millis(turn_ms));
                // Once a turn, and each time at once.
                busy.sleep(Duration::from_nanos(1)).await;
            }
        }));
        harm(&server.head(0));
        reach(&executor, &client, &server);
        assert_eq!(server.reopened(), 1);
    }

    #[test]
    fn an_endpoint_that_always_has_something_else_to_do_notices_all_the_same() {
        notices_while_busy(take_a_place, 1);
        notices_while_busy(take_the_lock, 5);
    }

    /// An endpoint of which a peer knows, that is blocked and can't be opened anew until a directory is removed.
    fn one_that_is_down(executor: &Executor) -> Option<(Party, Party, PathBuf)> {
        let (server, client) = parties(executor)?;
        reach(executor, &client, &server);
        let peer_doorbell = PeerDoorbell::new(&server.name).expect("its bell");
        let obstacle = doorbell::draft_path(&server.name);
        std::fs::create_dir(&obstacle).expect("nobody has that name");
        take_a_place(&server.head(0));
        let rt = executor.handle();
        let until = rt.now() + PATIENCE;
        executor.block_on(async {
            while !peer_doorbell.has_moved() {
                assert!(rt.now() < until, "nobody learns that it is down");
                rt.sleep(Duration::from_millis(50)).await;
            }
        });
        Some((server, client, obstacle))
    }

    #[test]
    fn an_endpoint_that_could_not_be_opened_anew_is_tried_again_until_it_can() {
        let executor = Executor::new().expect("an executor");
        let Some((server, client, obstacle)) = one_that_is_down(&executor) else { return };
        let to = client.endpoint.insert(&server.endpoint.address());
        assert!(matches!(to, Err(FabricError::Unreachable { .. })), "{to:?}");
        assert_eq!(server.reopened(), 0, "tried is not done");
        std::fs::remove_dir(&obstacle).expect("it is there");
        reach(&executor, &client, &server);
        reach(&executor, &server, &client);
        assert_eq!(server.reopened(), 1);
        let first_try = Path::new(doorbell::DIRECTORY).join(doorbell::provider_name(&server.name, 1));
        assert!(!first_try.exists(), "the provider has that name for an endpoint that is closed");
    }

    #[test]
    fn an_endpoint_that_is_closed_before_it_could_be_opened_anew_lets_go_of_everything() {
        let executor = Executor::new().expect("an executor");
        let Some((server, client, obstacle)) = one_that_is_down(&executor) else { return };
        let provider_file = Path::new(doorbell::DIRECTORY).join(&server.name);
        assert!(provider_file.exists(), "threads of this process may be writing there");
        let memory = server.endpoint.buffers().alloc(4096).expect("memory");
        drop((memory, server));
        assert!(!provider_file.exists());
        std::fs::remove_dir(&obstacle).expect("it is there");
        drop(client);
    }

    #[test]
    fn a_closed_endpoint_of_the_same_process_is_not_written_to_any_more() {
        let executor = Executor::new().expect("an executor");
        let (server, client) = (Party::new(&executor, &[]), Party::new(&executor, &[]));
        if !client.endpoint.capabilities().within_process() {
            return;
        }
        reach(&executor, &client, &server);
        let to = client.endpoint.insert(&server.endpoint.address()).expect("known");
        drop(server);
        for len in [100, 500, 5000] {
            let refused = client.endpoint.send(to, 0, &[&vec![7; len]]);
            assert!(matches!(refused, Err(FabricError::Unreachable { .. })), "{len}: {refused:?}");
        }
    }

    #[test]
    fn an_endpoint_that_nobody_talks_to_asks_itself_and_stays_as_it_is() {
        let executor = Executor::new().expect("an executor");
        let party = Party::new(&executor, &[]);
        let deaf = open(&executor.handle(), &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
        let rt = executor.handle();
        executor.block_on(async {
            for _ in 0..12 {
                rt.sleep(Duration::from_millis(300)).await;
            }
        });
        let counters = deaf.counters();
        assert_eq!((counters.probes.get(), counters.reopened.get()), (0, 0), "it could not hear the answer");
        let watches = party.endpoint.capabilities().within_process();
        assert_eq!((party.reopened(), party.endpoint.counters().probes.get() > 2), (0, watches));
    }
}
