//! What a context knows of a server by one of its names: the session, and the outstanding requests.

use super::peer::Peer;
use crate::admission::PeerQuota;
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

/// Silence after which a request carries the sender's address again. A restarted server doesn't know this
/// client, and starting a process takes longer than this.
const GREETING_AFTER: Duration = Duration::from_millis(5);

/// Silence after which a server may be gone unnoticed: its host may have vanished, or a network device may have
/// dropped the connection. A context with requests in flight hears its server more often.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Wait of the first try after such silence: many round trips. A server that executes the request answers the
/// repeat. After a second vain try, which waits twice as long, contact is made anew; a server that is only slow
/// survives that.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// Requests that have ended above one that has not, before they are removed from the list: several times the
/// credits of a peer.
const ENDED_MAX: usize = 256;

/// A session with one server.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: PeerId,
    pub(crate) version: u16,
    /// The incarnation of the server that answered the hello.
    pub(crate) server: ClientId,
    /// Seals messages in both directions.
    pub(crate) key: Option<SealKey>,
    /// The server's address was published. It has another one after a restart.
    pub(crate) is_told: bool,
}

/// Numbers of the outstanding requests to one server. They begin in order and end in any order.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// Ascending. `true`: it has ended. The first one has not.
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
        // Those above one that takes long.
        if self.ended > ENDED_MAX && self.ended > self.len() {
            self.requests.retain(|(_, ended)| !ended);
            self.ended = 0;
        }
    }

    /// The lowest outstanding request.
    pub(crate) fn first(&self) -> Option<u64> {
        self.requests.front().map(|(request, _)| *request)
    }

    /// Number of outstanding requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() - self.ended
    }
}

/// What this context knows of one server by one of its names.
pub(crate) struct PeerState {
    pub(crate) peer: Peer,
    /// The client id by which this server knows the context.
    pub(crate) client: ClientId,
    /// Its lane in the quota of requests.
    pub(crate) place: PeerQuota,
    /// Its lane in the quota of exposed memory.
    pub(crate) bulk_place: PeerQuota,
    /// One call makes contact; the others wait for its outcome.
    pub(crate) connecting: Semaphore,
    session: RefCell<Option<Rc<Session>>>,
    /// The entry of the address vector with which contact was made last, or is being made.
    pub(crate) entry: Cell<Option<PeerId>>,
    /// Outstanding requests.
    pub(crate) outstanding: RefCell<Outstanding>,
    /// When the server was last heard.
    pub(crate) heard: Cell<Instant>,
    /// When it was last looked for because it was silent.
    pub(crate) looked: Cell<Instant>,
    /// Why its name could not be resolved, the last time that failed.
    pub(crate) unresolved: Cell<String>,
    /// Number and nonce of the hello that waits for its answer.
    pub(crate) hello: Cell<Option<(u64, Nonce)>>,
}

impl PeerState {
    pub(crate) fn new(peer: &Peer, client: ClientId, place: PeerQuota, bulk_place: PeerQuota) -> Self {
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

    /// The open session.
    pub(crate) fn session(&self) -> Option<Rc<Session>> {
        self.session.borrow().clone()
    }

    /// Sets or gives up the session.
    pub(crate) fn set_session(&self, session: Option<Rc<Session>>) {
        self.session.replace(session);
    }

    /// Whether this session is still open.
    pub(crate) fn stands(&self, session: &Rc<Session>) -> bool {
        self.session().is_some_and(|standing| Rc::ptr_eq(&standing, session))
    }

    /// Whether the next request should carry the sender's address.
    pub(crate) fn wants_greeting(&self, now: Instant) -> bool {
        now > self.heard.get() + GREETING_AFTER
    }

    /// Wait of the first try of a request; `usual`: after recent contact. After long silence the wait is short,
    /// because the answer to a repeat shows that the server lives.
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
