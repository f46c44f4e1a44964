//! What a context knows of a server by one of its names: the contact that stands, and the requests that are not finished.

use super::peer::Peer;
use crate::admission::Place;
use crate::wire::ClientId;
use crate::wire::seal::{Nonce, SealKey};
use core::cell::{Cell, RefCell};
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_fabric::PeerId;
use weir_runtime::Instant;
use weir_runtime::sync::Semaphore;

/// Silence after which a request carries the sender's address again: a server that restarted in between doesn't know
/// us, and starting a process takes longer than this.
const GREETING_AFTER: Duration = Duration::from_millis(5);

/// Silence of a server after which it may be gone without a word: its host may have vanished, or a network in between forgotten the
/// connection. Whoever is at work with a server hears it more often.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// How long the first try waits then: many round trips, and a server that is at the request says so when it is asked again. Twice in
/// vain, with a wait twice as long, and contact is made anew, which a server that is only slow survives.
const IDLE_WAIT: Duration = Duration::from_millis(100);

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
    pub(crate) connecting: Semaphore,
    session: RefCell<Option<Rc<Session>>>,
    /// The entry of the address vector by which contact was made last, or is being made.
    pub(crate) entry: Cell<Option<PeerId>>,
    /// Requests that are not finished.
    pub(crate) outstanding: RefCell<Outstanding>,
    /// When the server was last heard.
    pub(crate) heard: Cell<Instant>,
    /// When it was last asked for while it was silent.
    pub(crate) looked: Cell<Instant>,
    /// Why its name led nowhere, the last time that it led nowhere.
    pub(crate) unresolved: Cell<String>,
    /// The hello that waits for its answer, by number and nonce.
    pub(crate) hello: Cell<Option<(u64, Nonce)>>,
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

    /// Contact stands from now on, or is given up.
    pub(crate) fn set_session(&self, session: Option<Rc<Session>>) {
        self.session.replace(session);
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
