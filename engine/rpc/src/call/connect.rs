//! Contact with servers: resolve the name, exchange hellos, agree on a version.

use crate::contact::{Peer, PeerState, Session, common_version};
use crate::context::{Context, KeyRing};
use crate::error::RpcError;
use crate::metrics::add;
use crate::reply::{NoAnswer, Outcome, ReplyAuth};
use crate::wire::seal::{Nonce, SealKey};
use crate::wire::{self, ClientId, Header, Kind};
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::{Found, PeerId};
use weir_proto::Der;
use weir_runtime::{Instant, nanos, race};

/// Why there is no contact when one side refuses the other's clock.
pub(crate) const CLOCKS_APART: &str =
    "its clock and the one here are more than a second apart; synchronise the clocks of both hosts";

/// A hello whose answer is expected. Dropping it ends the expectation.
struct Expected<'a> {
    context: &'a Context,
    request: u64,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.context.pending.forget(self.request);
    }
}

impl Context {
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
            state.set_session(None);
            self.give_up_peer(session.id);
            add(&self.metrics.disconnects, 1);
        }
    }

    /// The session with a server, opened now if there is none.
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
            // The error of an earlier try says more than that this one ran out of time.
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
        let outcome = self.exchange_hellos(state, id, until).await.and_then(|made| {
            // The address was published by its owner at that time. Another server may have it now.
            let is_meant = expected.is_none_or(|expected| expected == made.1.bits());
            is_meant
                .then_some(made)
                .ok_or_else(|| unreachable("another server answers at its address by now"))
        });
        match outcome {
            Ok((version, server, key)) => {
                let session = Rc::new(Session { id, version, server, key, is_told: expected.is_some() });
                state.set_session(Some(Rc::clone(&session)));
                state.heard.set(self.rt.now());
                add(&self.metrics.connects, 1);
                Ok(session)
            }
            Err(error) => {
                self.servers.borrow_mut().leave(state);
                // Contact by another name of the same address may stand.
                if !self.servers.borrow().is_heard(id, began) {
                    self.give_up_peer(id);
                }
                Err(error)
            }
        }
    }

    /// A server whose address was published is silent. If it publishes another address now, or another id at the
    /// same address, contact is given up, because nothing sent to the old address reaches it. One caller asks;
    /// the others wait for the outcome.
    pub(crate) fn check_whether_moved(
        &self,
        state: &Rc<PeerState>,
        session: &Rc<Session>,
    ) -> impl Future<Output = ()> + 'static {
        let (weak, rt, state, session) = (self.weak(), self.rt.clone(), Rc::clone(state), Rc::clone(session));
        let came = rt.now();
        let until = came + self.config.hello_timeout;
        async move {
            let Ok(Ok(_turn)) = rt.timeout_at(until, state.connecting.acquire()).await else { return };
            if !state.stands(&session) || state.looked.get() > came {
                return;
            }
            // The context may end meanwhile.
            let resolving =
                weak.upgrade().map(|context| context.endpoint.resolve(state.peer.host(), state.peer.port()));
            let Some(resolving) = resolving else { return };
            let found = rt.timeout_at(until, resolving).await;
            state.looked.set(rt.now());
            if let (Ok(Ok(found)), Some(context)) = (found, weak.upgrade())
                && found.server != Some(session.server.bits())
            {
                context.disconnect(&state, &session);
            }
        }
    }

    /// The hello to send. A hello that waits for its answer is sent again, so that the answer of a server counts
    /// that takes longer than one try.
    fn hello_of(&self, state: &PeerState) -> (u64, Nonce) {
        let hello = state.hello.get().unwrap_or_else(|| (self.take_request(), self.fresh_nonce()));
        state.hello.set(Some(hello));
        hello
    }

    /// Sends a hello and takes its answer: the version to speak, the server's id, and the key that seals messages.
    async fn exchange_hellos(
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
        header.set_body(body);
        header.tenant = self.ring.as_ref().map_or(0, |ring| ring.tenant().0);
        self.expect(request, id, state, || ReplyAuth::Hello(nonce), until, None);
        let _expected = Expected { context: self, request };
        let address = self.endpoint.address();
        let key = self.ring.as_ref().map(KeyRing::own_hello);
        let sent = self.transmit(id, request, &mut header, address.as_bytes(), &[], body, key, 1);
        let outcome = match sent {
            Ok(()) => self.pending.wait(&self.rt, request).await.map(|_| self.pending.take(request)),
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
                let tenant = self.ring.as_ref().map(KeyRing::tenant).unwrap_or_default();
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
        let body = &answer.message[answer.body.clone()];
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

    /// Waits for between half and all of this time, but not past the deadline.
    pub(crate) async fn pause(&self, time: Duration, deadline: Instant) {
        // Jitter: clients that lost the same server don't return at once.
        let half = nanos(time) / 2;
        let time = Duration::from_nanos(half + self.rt.random_u64() % (half + 1));
        race(self.rt.sleep(time), self.rt.sleep_until(deadline)).await;
    }

    /// Waits for as long as a server asked and up to a sixteenth longer, but not past the deadline.
    pub(crate) async fn pause_as_told(&self, time: Duration, deadline: Instant) {
        let some = nanos(time) / 16;
        let time = time + Duration::from_nanos(self.rt.random_u64() % (some + 1));
        race(self.rt.sleep(time), self.rt.sleep_until(deadline)).await;
    }
}
