//! The servers that a context calls, each by its name.
//!
//! A server may have several names. Each name has a client id, a session and request numbers of its own, as if
//! several clients called, so that one session doesn't end another. Names of one address share its entry in the
//! address vector.
//!
//! A context may meet thousands of servers. It forgets those that it has not heard for long.

use super::peer::Peer;
use super::session::PeerState;
use crate::maps::SPREAD;
use crate::wire::ClientId;
use core::time::Duration;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use weir_fabric::PeerId;
use weir_runtime::Instant;

/// Names at which idle ones are first looked for: more than most contexts ever call.
const SWEPT_MIN: usize = 256;

/// Silence of a server after which an unused name is forgotten. Making contact anew takes one message more.
const IDLE_MAX: Duration = Duration::from_mins(5);

pub(crate) struct Servers {
    by_name: HashMap<Peer, Rc<PeerState>>,
    /// By the entry of the address vector with which contact stands or is being made.
    by_entry: HashMap<PeerId, Vec<Weak<PeerState>>>,
    /// Names added so far.
    met: u64,
    /// Number of names at which idle ones are looked for.
    swept_at: usize,
}

impl Default for Servers {
    fn default() -> Self {
        Self { by_name: HashMap::new(), by_entry: HashMap::new(), met: 0, swept_at: SWEPT_MIN }
    }
}

impl Servers {
    pub(crate) fn get(&self, peer: &Peer) -> Option<Rc<PeerState>> {
        self.by_name.get(peer).map(Rc::clone)
    }

    /// The client id for the next server: the context's own for the first name.
    pub(crate) fn next_id(&self, context: ClientId) -> ClientId {
        ClientId::new(context.bits().wrapping_add(self.met.wrapping_mul(SPREAD)))
    }

    /// Adds a new name. Returns the entries of names that were forgotten meanwhile.
    pub(crate) fn add(&mut self, state: &Rc<PeerState>, now: Instant) -> Vec<PeerId> {
        let gone = if self.by_name.len() < self.swept_at { Vec::new() } else { self.sweep(now) };
        self.met += 1;
        self.by_name.insert(state.peer.clone(), Rc::clone(state));
        gone
    }

    /// Looks at all names once as many were added as there were, so that the cost of each addition is constant.
    fn sweep(&mut self, now: Instant) -> Vec<PeerId> {
        let mut gone = Vec::new();
        self.by_name.retain(|_, state| {
            let idle = Rc::strong_count(state) == 1 && now > state.heard.get() + IDLE_MAX;
            if idle {
                gone.push(Rc::clone(state));
            }
            !idle
        });
        self.swept_at = SWEPT_MIN.max(2 * self.by_name.len());
        gone.into_iter().filter_map(|state| self.leave(&state)).collect()
    }

    /// Contact with a server stands or is being made with this entry. Returns the entry that it leaves.
    pub(crate) fn enter(&mut self, state: &Rc<PeerState>, entry: PeerId) -> Option<PeerId> {
        let before = self.leave(state);
        state.entry.set(Some(entry));
        self.by_entry.entry(entry).or_default().push(Rc::downgrade(state));
        before.filter(|before| *before != entry)
    }

    /// Contact with a server has ended. Returns the entry that it leaves.
    pub(crate) fn leave(&mut self, state: &PeerState) -> Option<PeerId> {
        let entry = state.entry.take()?;
        if let Some(names) = self.by_entry.get_mut(&entry) {
            names.retain(|name| !core::ptr::eq(name.as_ptr(), state));
            if names.is_empty() {
                self.by_entry.remove(&entry);
            }
        }
        Some(entry)
    }

    /// An entry is of no use any more. Returns the names that had contact by it.
    pub(crate) fn leave_all(&mut self, entry: PeerId) -> Vec<Rc<PeerState>> {
        let names = self.by_entry.remove(&entry).unwrap_or_default();
        let names: Vec<_> = names.iter().filter_map(Weak::upgrade).collect();
        for state in &names {
            state.entry.set(None);
        }
        names
    }

    /// Whether there is contact by an entry.
    pub(crate) fn has(&self, entry: PeerId) -> bool {
        self.by_entry.contains_key(&entry)
    }

    /// Whether a server was heard by any of its names after this time.
    pub(crate) fn is_heard(&self, entry: PeerId, after: Instant) -> bool {
        let names = self.by_entry.get(&entry).into_iter().flatten();
        names.filter_map(Weak::upgrade).any(|state| state.heard.get() > after)
    }

    /// Known names, and entries with contact.
    #[cfg(test)]
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.by_name.len(), self.by_entry.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Quota;

    fn context() -> ClientId {
        ClientId::new(5)
    }

    fn meet(servers: &mut Servers, quota: &Quota, name: &str, now: Instant) -> (Rc<PeerState>, Vec<PeerId>) {
        let id = servers.next_id(context());
        let state = Rc::new(PeerState::new(&Peer::new(name, 1), id, quota.place(), quota.place()));
        state.heard.set(now);
        let gone = servers.add(&state, now);
        (state, gone)
    }

    #[test]
    fn servers_that_fell_silent_go_with_their_entries_and_lanes_and_those_in_use_stay() {
        let (mut servers, quota) = (Servers::default(), Quota::new(1, 1));
        let start = Instant::default();
        let (used, _) = meet(&mut servers, &quota, "used", start);
        servers.enter(&used, PeerId(0));
        let (mut most, mut gone) = (0, 0);
        for n in 1..=100_000u64 {
            let now = start + Duration::from_secs(n);
            let (state, left) = meet(&mut servers, &quota, &format!("server {n}"), now);
            servers.enter(&state, PeerId(n));
            assert!(!left.contains(&PeerId(0)));
            gone += left.len();
            most = most.max(servers.len().0);
        }
        // Twice as many as are heard within the time after which one is idle.
        assert!(most <= 2 * 302, "{most}");
        assert_eq!((servers.len().1, servers.len().0), (100_001 - gone, 100_001 - gone));
        assert!(quota.lanes() <= 4 * most, "{} lanes", quota.lanes());
        assert!(servers.get(&used.peer).is_some());
    }

    #[test]
    fn names_of_one_address_share_its_entry_until_it_is_given_up() {
        let (mut servers, quota) = (Servers::default(), Quota::new(1, 1));
        let now = Instant::default() + Duration::from_secs(1);
        let [one, other, third] =
            ["one", "other", "third"].map(|name| meet(&mut servers, &quota, name, now).0);
        assert!(one.client != other.client && other.client != third.client);
        for state in [&one, &other] {
            assert_eq!(servers.enter(state, PeerId(7)), None);
        }
        assert_eq!(servers.enter(&third, PeerId(8)), None);
        assert_eq!(servers.enter(&third, PeerId(9)), Some(PeerId(8)));
        assert!(!servers.has(PeerId(8)) && servers.has(PeerId(9)));
        assert_eq!(servers.leave(&one), Some(PeerId(7)));
        assert!(servers.has(PeerId(7)) && servers.is_heard(PeerId(7), Instant::default()));
        assert!(!servers.is_heard(PeerId(7), now));
        let names = servers.leave_all(PeerId(7));
        assert!(names.len() == 1 && Rc::ptr_eq(&names[0], &other) && !servers.has(PeerId(7)));
        assert_eq!(servers.leave(&other), None);
    }
}
