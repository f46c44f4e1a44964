//! Contact with servers: resolve the name, greet, agree on a version.

use crate::error::RpcError;
use crate::metrics::add;
use crate::peer::Peer;
use crate::pending::NoAnswer;
use crate::proof::{Proof, Ring};
use crate::quota::Place;
use crate::seal::{Nonce, SealKey};
use crate::wire::{self, ClientId, Header, Kind};
use crate::{Inner, Outcome};
use core::cell::{Cell, RefCell};
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_fabric::{Found, PeerId};
use weir_proto::Der;
use weir_runtime::sync::Semaphore;
use weir_runtime::{Instant, race};

/// Silence after which a request carries the sender's address again: a server that restarted in between doesn't know
/// us, and starting a process takes longer than this.
const GREETING_AFTER: Duration = Duration::from_millis(5);

/// Silence of a server after which it may be gone without a word: its host may have vanished, or a network in between forgotten the
/// connection. Whoever is at work with a server hears it more often.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// How long the first try waits then: many round trips, and a server that is at the request says so when it is asked again. Twice in
/// vain, with a wait twice as long, and contact is made anew, which a server that is only slow survives.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// Why there is no contact with a server that refuses the time here, or whose time is refused here.
pub(crate) const CLOCKS_APART: &str =
    "its clock and the one here are more than a second apart; synchronise the clocks of both hosts";

/// Requests that have ended and stand behind one that has not, before they are cleared away: some times the credits of a
/// peer.
const ENDED_MAX: usize = 256;

/// Contact with one server.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: PeerId,
    pub(crate) version: u16,
    /// The incarnation of the server that answered the hello.
    pub(crate) server: ClientId,
    /// What messages are sealed with.
    pub(crate) key: Option<SealKey>,
    /// The server's address was told: it has another one after a restart.
    pub(crate) is_told: bool,
}

/// Numbers of the requests to one server that are not finished. They begin in order and end in any.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// Ascending; those marked have ended, the first one hasn't.
    requests: VecDeque<(u64, bool)>,
    ended: usize,
}

impl Outstanding {
    #[inline]
    pub(crate) fn begin(&mut self, request: u64) {
        self.requests.push_back((request, false));
    }

    #[inline]
    pub(crate) fn end(&mut self, request: u64) {
        if self.first() == Some(request) {
            self.requests.pop_front();
        } else if let Ok(at) = self.requests.binary_search_by_key(&request, |(known, _)| *known)
            && !core::mem::replace(&mut self.requests[at].1, true)
        {
            self.ended += 1;
        }
        if self.ended == 0 {
            return;
        }
        while self.requests.front().is_some_and(|(_, ended)| *ended) {
            self.requests.pop_front();
            self.ended -= 1;
        }
        // Behind one that takes its time.
        if self.ended > ENDED_MAX && self.ended > self.len() {
            self.requests.retain(|(_, ended)| !ended);
            self.ended = 0;
        }
    }

    /// The lowest one.
    pub(crate) fn first(&self) -> Option<u64> {
        self.requests.front().map(|(request, _)| *request)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() - self.ended
    }
}

/// What this context knows of one server by one of its names.
pub(crate) struct PeerState {
    pub(crate) peer: Peer,
    /// Whom it takes this context for when it is called by this name.
    pub(crate) client: ClientId,
    /// Its place in the quota of requests.
    pub(crate) place: Place,
    /// Its place in the quota of exposed memory.
    pub(crate) bulk_place: Place,
    /// One at a time makes contact; the others wait for its outcome.
    connecting: Semaphore,
    session: RefCell<Option<Rc<Session>>>,
    /// The entry of the address vector by which contact was made last, or is being made.
    pub(crate) entry: Cell<Option<PeerId>>,
    /// Requests that are not finished.
    pub(crate) outstanding: RefCell<Outstanding>,
    /// When the server was last heard.
    pub(crate) heard: Cell<Instant>,
    /// When it was last asked for while it was silent.
    looked: Cell<Instant>,
    /// Why its name led nowhere, the last time that it led nowhere.
    unresolved: Cell<String>,
    /// The hello that waits for its answer, by number and nonce.
    hello: Cell<Option<(u64, Nonce)>>,
}

impl PeerState {
    pub(crate) fn new(peer: &Peer, client: ClientId, place: Place, bulk_place: Place) -> Self {
        Self {
            peer: peer.clone(),
            client,
            place,
            bulk_place,
            connecting: Semaphore::new(1),
            session: RefCell::default(),
            entry: Cell::default(),
            outstanding: RefCell::default(),
            heard: Cell::new(Instant::default()),
            looked: Cell::default(),
            unresolved: Cell::default(),
            hello: Cell::default(),
        }
    }

    /// The contact that stands.
    pub(crate) fn session(&self) -> Option<Rc<Session>> {
        self.session.borrow().clone()
    }

    /// Whether contact that was made once still stands.
    pub(crate) fn stands(&self, session: &Rc<Session>) -> bool {
        self.session().is_some_and(|standing| Rc::ptr_eq(&standing, session))
    }

    /// Whether the next request should say who we are.
    pub(crate) fn wants_greeting(&self, now: Instant) -> bool {
        now > self.heard.get() + GREETING_AFTER
    }

    /// How long the first try of a request that is sent now waits, which otherwise takes `usual`. A server that was heard a moment
    /// ago is there; of one that was silent for long that has to be found out, and its answer to a repeat shows it.
    pub(crate) fn first_wait(&self, now: Instant, usual: Duration) -> Duration {
        if now > self.heard.get() + IDLE_AFTER { usual.min(IDLE_WAIT) } else { usual }
    }

    /// All requests below this id are finished.
    pub(crate) fn acked(&self, own: u64) -> u64 {
        self.outstanding.borrow().first().unwrap_or(own)
    }
}

/// The highest version that both sides speak.
pub(crate) fn common_version(ours: &RangeInclusive<u16>, theirs: &RangeInclusive<u16>) -> Option<u16> {
    let highest = *ours.end().min(theirs.end());
    (ours.contains(&highest) && theirs.contains(&highest)).then_some(highest)
}

/// An answer that is waited for; when the wait ends, however it ends, it is not expected any more.
struct Expected<'a> {
    inner: &'a Inner,
    request: u64,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.inner.pending.forget(self.request);
    }
}

impl Inner {
    #[inline]
    pub(crate) fn peer_state(&self, peer: &Peer) -> Rc<PeerState> {
        peer.known(self.id).unwrap_or_else(|| self.find_state(peer))
    }

    #[inline(never)]
    fn find_state(&self, peer: &Peer) -> Rc<PeerState> {
        let known = self.servers.borrow().get(peer);
        let state = known.unwrap_or_else(|| self.meet_server(peer));
        peer.learn(self.id, &state);
        state
    }

    fn meet_server(&self, peer: &Peer) -> Rc<PeerState> {
        let client = self.servers.borrow().next_id(self.id);
        let state = Rc::new(PeerState::new(peer, client, self.requests.place(), self.bulks.place()));
        let gone = self.servers.borrow_mut().add(&state, self.rt.now());
        self.forget_unused(&gone);
        state
    }

    /// Gives up contact, unless it was made anew already.
    pub(crate) fn disconnect(&self, state: &PeerState, session: &Rc<Session>) {
        if state.stands(session) {
            state.session.replace(None);
            self.give_up_peer(session.id);
            add(&self.metrics.disconnects, 1);
        }
    }

    /// The contact with a server, made now if there is none.
    pub(crate) async fn connect(
        &self,
        state: &Rc<PeerState>,
        deadline: Instant,
    ) -> Result<Rc<Session>, RpcError> {
        if let Some(session) = state.session() {
            return Ok(session);
        }
        let unreachable =
            |reason: &str| RpcError::Unreachable { peer: state.peer.clone(), reason: reason.to_owned() };
        let turn = self.rt.timeout_at(deadline, state.connecting.acquire()).await;
        let _turn = match turn {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(RpcError::Closed),
            Err(_) => return Err(unreachable("other calls were still trying to make contact")),
        };
        if let Some(session) = state.session() {
            return Ok(session);
        }
        let until = deadline.min(self.rt.now() + self.config.hello_timeout);
        let resolving = self.endpoint.resolve(state.peer.host(), state.peer.port());
        let Found { address, server: expected } = match self.rt.timeout_at(until, resolving).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                state.unresolved.set(error.to_string());
                return Err(unreachable(&error.to_string()));
            }
            // A try that the deadline cut off says less than the one before it.
            Err(_) => {
                let before = Some(state.unresolved.take()).filter(|reason| !reason.is_empty());
                return Err(unreachable(
                    &before.unwrap_or("the name could not be resolved in time".to_owned()),
                ));
            }
        };
        state.unresolved.take();
        let id = self.endpoint.insert(&address).map_err(|error| unreachable(&error.to_string()))?;
        self.strangers.release(id);
        let left = self.servers.borrow_mut().enter(state, id);
        self.forget_unused(left.as_slice());
        let began = self.rt.now();
        let outcome = self.greet(state, id, until).await.and_then(|made| {
            // The address was told by who had it then; whoever has it now serves something else.
            let is_meant = expected.is_none_or(|expected| expected == made.1.bits());
            is_meant
                .then_some(made)
                .ok_or_else(|| unreachable("another server answers at its address by now"))
        });
        match outcome {
            Ok((version, server, key)) => {
                let session = Rc::new(Session { id, version, server, key, is_told: expected.is_some() });
                state.session.replace(Some(Rc::clone(&session)));
                state.heard.set(self.rt.now());
                add(&self.metrics.connects, 1);
                Ok(session)
            }
            Err(error) => {
                self.servers.borrow_mut().leave(state);
                // By another name it may be there.
                if !self.servers.borrow().is_heard(id, began) {
                    self.give_up_peer(id);
                }
                Err(error)
            }
        }
    }

    /// A server is silent whose address was told. If it tells another one by now, or another id at the same, contact with it is
    /// given up: nothing that is sent to where it was reaches it. One caller asks, the others wait for that.
    pub(crate) fn look_for(
        &self,
        state: &Rc<PeerState>,
        session: &Rc<Session>,
    ) -> impl Future<Output = ()> + 'static {
        let (weak, rt, state, session) =
            (self.weak.clone(), self.rt.clone(), Rc::clone(state), Rc::clone(session));
        let came = rt.now();
        let until = came + self.config.hello_timeout;
        async move {
            let Ok(Ok(_turn)) = rt.timeout_at(until, state.connecting.acquire()).await else { return };
            if !state.stands(&session) || state.looked.get() > came {
                return;
            }
            // The context may end meanwhile.
            let resolving =
                weak.upgrade().map(|inner| inner.endpoint.resolve(state.peer.host(), state.peer.port()));
            let Some(resolving) = resolving else { return };
            let found = rt.timeout_at(until, resolving).await;
            state.looked.set(rt.now());
            if let (Ok(Ok(found)), Some(inner)) = (found, weak.upgrade())
                && found.server != Some(session.server.bits())
            {
                inner.disconnect(&state, &session);
            }
        }
    }

    /// Gives up an entry of the address vector by which a server was not reached, and with it connections that are stuck, and
    /// contact by other names of that address. A client that is there goes on being served, by another entry.
    fn give_up_peer(&self, id: PeerId) {
        let names = self.servers.borrow_mut().leave_all(id);
        for state in names {
            state.session.replace(None);
        }
        // A client that was met as the peer of a call, and never by what it said of itself, is where the peer was.
        let clients = self.clients.borrow();
        let address =
            clients.address_at(id).or_else(|| self.endpoint.address_of(id).filter(|_| clients.has(id)));
        drop(clients);
        self.endpoint.remove(id);
        let again = address.and_then(|address| self.endpoint.insert(&address).ok());
        if let Some(again) = again {
            self.clients.borrow_mut().move_all(id, again);
        }
    }

    /// The hello to send: the one that waits for its answer, again, so that the answer of a server that takes longer than one try
    /// counts. Else it would never be reached.
    fn hello_of(&self, state: &PeerState) -> (u64, Nonce) {
        let hello = state.hello.get().unwrap_or_else(|| {
            let request = self.next_request.get();
            self.next_request.set(request + 1);
            (request, self.fresh_nonce())
        });
        state.hello.set(Some(hello));
        hello
    }

    /// Sends a hello and takes its answer: the version to speak, who answered, and the key to seal messages with.
    async fn greet(
        &self,
        state: &Rc<PeerState>,
        id: PeerId,
        until: Instant,
    ) -> Result<(u16, ClientId, Option<SealKey>), RpcError> {
        let unreachable =
            |reason: &str| RpcError::Unreachable { peer: state.peer.clone(), reason: reason.to_owned() };
        let ours = &self.config.versions;
        let (request, nonce) = self.hello_of(state);
        let mut header = Header::new(Kind::Hello, *ours.end(), state.client, request, self.epoch());
        let (whole, bare) = (wire::encode_hello(ours, &nonce), wire::encode_versions(ours));
        let body: &[u8] = if self.ring.is_some() { &whole } else { &bare };
        header.greeting = true;
        header.body_len = body.len().try_into().unwrap_or(0);
        header.tenant = self.ring.as_ref().map_or(0, |ring| ring.tenant().0);
        self.expect(request, id, state, || Proof::Hello(nonce), until, None);
        let _expected = Expected { inner: self, request };
        let address = self.endpoint.address();
        let key = self.ring.as_ref().map(Ring::own_hello);
        let sent = self.transmit(id, request, &mut header, address.as_bytes(), &[], body, key, 1);
        let outcome = match sent {
            Ok(()) => self.pending.wait(self, request).await.map(|_| self.pending.take(request)),
            Err(error) => Ok(Some(Outcome::Failed(error))),
        };
        if !matches!(outcome, Err(NoAnswer::Late)) {
            state.hello.take();
        }
        let answer = match outcome {
            Err(NoAnswer::Late) => return Err(unreachable("no answer to the hello")),
            Err(NoAnswer::Closed) | Ok(None) => return Err(RpcError::Closed),
            Ok(Some(Outcome::Failed(error))) => return Err(unreachable(&error.to_string())),
            Ok(Some(Outcome::Notice(Der::NO_PERM))) => {
                let tenant = self.ring.as_ref().map(Ring::tenant).unwrap_or_default();
                return Err(RpcError::Denied { peer: state.peer.clone(), tenant });
            }
            Ok(Some(Outcome::Early | Outcome::Notice(Der::HLC_SYNC))) => {
                return Err(unreachable(CLOCKS_APART));
            }
            Ok(Some(Outcome::Notice(der))) => {
                return Err(unreachable(&format!("it refused the hello ({der})")));
            }
            Ok(Some(Outcome::Reply(_))) => {
                add(&self.metrics.malformed, 1);
                return Err(unreachable("its answer to the hello is no answer to a hello"));
            }
            Ok(Some(Outcome::Answer(answer))) if Der(answer.status) == Der::HLC_SYNC => {
                return Err(unreachable(CLOCKS_APART));
            }
            Ok(Some(Outcome::Answer(answer))) => answer,
        };
        let body = answer.message.get(answer.body.clone()).unwrap_or_default();
        let key = self.ring.as_ref().zip(wire::decode_nonce(body));
        let key = key.map(|(ring, theirs)| {
            SealKey::of_session(ring.own(), (state.client, nonce), (answer.server, theirs))
        });
        let theirs = wire::decode_versions(body).ok();
        let Some(theirs) = theirs.filter(|_| answer.kind == Kind::HelloReply) else {
            add(&self.metrics.malformed, 1);
            return Err(unreachable("its answer to the hello is malformed"));
        };
        common_version(ours, &theirs).map(|version| (version, answer.server, key)).ok_or_else(|| {
            add(&self.metrics.version_refused, 1);
            RpcError::Version { peer: state.peer.clone(), ours: ours.clone(), theirs }
        })
    }

    /// Waits, but not past the deadline.
    pub(crate) async fn pause(&self, time: Duration, deadline: Instant) {
        // Between half and all of it, so that clients which lost the same server don't come back as one.
        let half = u64::try_from(time.as_nanos() / 2).unwrap_or(u64::MAX / 2);
        let time = Duration::from_nanos(half + self.rt.random_u64() % (half + 1));
        race(self.rt.sleep(time), self.rt.sleep_until(deadline)).await;
    }

    /// Waits for as long as a server asked, and a little longer, but not past the deadline.
    pub(crate) async fn stay_away(&self, time: Duration, deadline: Instant) {
        let some = u64::try_from(time.as_nanos() / 16).unwrap_or(u64::MAX / 16);
        let time = time + Duration::from_nanos(self.rt.random_u64() % (some + 1));
        race(self.rt.sleep(time), self.rt.sleep_until(deadline)).await;
    }

    /// Forgets those of these entries of the address vector that no client has, and no contact with a server.
    pub(crate) fn forget_unused(&self, entries: &[PeerId]) {
        for id in entries {
            if !self.clients.borrow().has(*id) && !self.servers.borrow().has(*id) {
                self.endpoint.forget(*id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_in_any_order_and_the_lowest_one_left_is_known() {
        let mut outstanding = Outstanding::default();
        for request in [3, 5, 6, 9] {
            outstanding.begin(request);
        }
        outstanding.end(5);
        outstanding.end(5);
        outstanding.end(7);
        assert_eq!((outstanding.first(), outstanding.len()), (Some(3), 3));
        outstanding.end(3);
        assert_eq!((outstanding.first(), outstanding.len()), (Some(6), 2));
        outstanding.end(9);
        outstanding.end(6);
        assert_eq!((outstanding.first(), outstanding.len()), (None, 0));
    }

    #[test]
    fn one_request_that_takes_its_time_keeps_no_list_of_all_that_ended_meanwhile() {
        let mut outstanding = Outstanding::default();
        for request in [1, 2] {
            outstanding.begin(request);
        }
        for request in 3..100_000 {
            outstanding.begin(request);
            outstanding.end(request);
            assert!(outstanding.requests.len() <= ENDED_MAX + 3);
        }
        assert_eq!((outstanding.first(), outstanding.len()), (Some(1), 2));
        outstanding.end(50_000);
        outstanding.end(1);
        assert_eq!((outstanding.first(), outstanding.len()), (Some(2), 1));
    }
}
