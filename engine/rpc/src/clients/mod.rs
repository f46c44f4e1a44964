//! The clients that a server knows: where they are, their sessions, and which of their requests were executed,
//! with the replies. It calls admission, transfers, the maps and the names of the wire format. The context has
//! one register of clients, which the server asks for each message.

mod entries;
mod record;
mod replies;

pub(crate) use entries::Finished;
pub(crate) use record::{RequestInfo, RequestRecord};
pub(crate) use replies::{Admission, RunningCounts};

use crate::admission::{RetrySlot, TransferPacing};
use crate::maps::{CachedMap, IdMap};
use crate::wire::seal::{Nonce, SealKey};
use crate::wire::{Caller, ClientId};
use core::cell::Cell;
use core::time::Duration;
use entries::Entries;
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_fabric::{Address, Gone, PeerId};
use weir_proto::TenantId;
use weir_runtime::Instant;

/// Silence after which a client is forgotten that can't ask for any reply again. Its next request identifies it again,
/// so that this costs nothing.
const CLIENT_IDLE_MAX: Duration = Duration::from_mins(5);

/// Most clients remembered: more than the paper's largest run (53,248). Further clients are refused until others
/// fall silent.
const CLIENTS_MAX: usize = 65_536;

/// How many clients a tenant may have remembered for each free place. One tenant alone gets sixteen of seventeen
/// places, which is more than the paper's largest run. There is room for one more client however many the others
/// have.
const TENANT_SHARE: usize = 16;

/// A tenant with more clients than this has none remembered for the sake of requests that may be repeated.
const OWED_MAX: usize = CLIENTS_MAX / 2;

/// Most clients of one tenant remembered at one peer. A process has one for each name of a server that it knows.
/// Where addresses are reused, the next process has others. A sender that says hello under ever new ids fills
/// its own tenant's places: an address can be claimed, a tenant can't.
const PEER_IDS_MAX: usize = 256;

/// Silence after which a client counts as ended if its places are needed for others at the same address.
const ENDED_AFTER: Duration = Duration::from_secs(30);

/// Shortest time between two inspections of a client's connections, however many of its transfers are stuck.
const LOOKS_EVERY: Duration = Duration::from_secs(8);

/// Shortest time between two searches for idle clients.
const PRUNE_EVERY: Duration = Duration::from_mins(1);

/// Part of a client's allowance that an answer without effect uses: to a repeat, an expired request, or an
/// operation that is not served. After half a second of silence, a client with all its credits asks a hundred
/// times a second in this way. Twenty thousand such answers cost some hundredths of a server's time.
const ANSWER_GAP: Duration = Duration::from_micros(50);

/// How far a client may exceed its allowance.
const ANSWER_AHEAD: Duration = Duration::from_secs(1);

/// A session as the server has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedSession {
    /// Seals messages in both directions.
    pub(crate) seal: SealKey,
    /// Number of the hello that opened it.
    pub(crate) hello: u64,
    /// The client's nonce.
    pub(crate) theirs: Nonce,
    /// This server's nonce.
    pub(crate) ours: Nonce,
}

pub(crate) struct Client {
    peer: PeerId,
    session: Option<ServedSession>,
    /// Requests below this that are not in `entries` were executed and their replies forgotten, or never came.
    pub(crate) floor: u64,
    /// The address that it said it has. A context keeps its address for life: the same id at another address is
    /// another context.
    address: Option<Address>,
    /// The provider has named it as a sender. It doesn't where the client's packets come from another address
    /// than it listens at.
    named: bool,
    heard: Instant,
    /// When its connections were last inspected for a stuck transfer.
    looked: Instant,
    /// What they were inspected for.
    looked_for: Gone,
    /// Its host is probed for signs of life since then.
    is_asked: bool,
    pub(crate) acked: u64,
    /// Paces its transfers; see [`crate::admission`].
    paces: TransferPacing,
    /// Its next retry time while it has other requests in flight.
    slot: RetrySlot,
    /// Its allowance of answers without effect is used up until then.
    answered: Instant,
    /// It may repeat requests until then, unless it has acknowledged all of them.
    pub(crate) owed: Instant,
    pub(crate) tenant: Rc<Tenant>,
    /// Running entries.
    pub(crate) running: usize,
    /// Bytes of the other entries.
    pub(crate) bytes: usize,
    pub(crate) entries: Entries,
}

impl Client {
    /// When it last gave a sign of life, or was inspected for a stuck transfer: for that it has to be known.
    fn seen(&self) -> Instant {
        self.heard.max(self.looked)
    }

    /// Whether it may repeat a request that was executed.
    fn is_owed(&self, now: Instant) -> bool {
        let newest =
            self.entries.0.back().map_or(0, |(request, _)| request.saturating_add(1)).max(self.floor);
        newest > self.acked && now <= self.owed
    }
}

/// What all clients of a tenant have together.
#[derive(Default)]
pub(crate) struct Tenant {
    clients: Cell<usize>,
    /// Running requests.
    pub(crate) running: Cell<usize>,
}

/// Why a message is not accepted from its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SenderError {
    /// The id belongs to another context of the tenant.
    Impostor,
    /// No more clients can be remembered.
    NoRoom,
    /// The hello was seen before, or is older than the last one.
    Replay,
}

/// All clients, by their ids. [`replies`] has the functions about requests.
pub(crate) struct Clients {
    pub(crate) known: CachedMap<Caller, Client>,
    /// Clients by their peer.
    by_peer: BTreeSet<(PeerId, Caller)>,
    /// Whose they are.
    tenants: IdMap<TenantId, Rc<Tenant>>,
    /// Clients with a running request.
    pub(crate) busy: usize,
    /// Requests that have finished so far.
    pub(crate) serial: u64,
    pub(crate) bytes: usize,
    pub(crate) limit: usize,
    pruned: Instant,
}

impl Clients {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            known: CachedMap::new(seed),
            by_peer: BTreeSet::new(),
            tenants: IdMap::with_hasher(seed.into()),
            busy: 0,
            serial: 0,
            bytes: 0,
            limit,
            pruned: Instant::default(),
        }
    }

    /// The peer by which a client is reached.
    pub(crate) fn peer(&self, client: Caller) -> Option<PeerId> {
        self.known.get(client).map(|client| client.peer)
    }

    /// Whether the provider may name this peer as the client's: it named the client before, or the client is
    /// there.
    pub(crate) fn is_placed(&self, client: Caller, at: PeerId) -> bool {
        self.known.get(client).is_some_and(|client| client.named || client.peer == at)
    }

    /// What paces transfers with a client.
    pub(crate) fn paces(&self, client: Caller) -> Option<&TransferPacing> {
        self.known.get(client).map(|client| &client.paces)
    }

    /// The key that seals a client's messages.
    pub(crate) fn seal(&self, id: Caller) -> Option<SealKey> {
        self.known.get(id)?.session.map(|session| session.seal)
    }

    /// Calls `next` with a client's retry slot and the number of clients that share the server.
    pub(crate) fn stay_away(
        &mut self,
        id: Caller,
        next: impl FnOnce(&mut RetrySlot, usize) -> Option<Duration>,
    ) -> Option<Duration> {
        let busy = self.busy;
        self.known.get_mut(id).and_then(|client| next(&mut client.slot, busy))
    }

    /// Whether a client may have one more answer without effect.
    pub(crate) fn may_answer(&mut self, id: Caller, now: Instant) -> bool {
        let Some(client) = self.known.get_mut(id) else { return false };
        let may = client.answered < now + ANSWER_AHEAD;
        if may {
            client.answered = client.answered.max(now) + ANSWER_GAP;
        }
        may
    }

    /// Clients remembered, and bytes of replies.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.known.len(), self.bytes)
    }

    /// Opens a session with a known client. Returns this server's nonce: that of the open session when the hello
    /// is a repeat.
    pub(crate) fn open(&mut self, id: Caller, session: ServedSession) -> Result<Nonce, SenderError> {
        let Some(client) = self.known.get_mut(id) else { return Err(SenderError::NoRoom) };
        match &client.session {
            Some(known) if known.hello == session.hello && known.theirs == session.theirs => {
                return Ok(known.ours);
            }
            Some(known) if known.hello >= session.hello => return Err(SenderError::Replay),
            _ => client.session = Some(session),
        }
        Ok(session.ours)
    }

    /// The provider has named this client as a sender.
    pub(crate) fn name(&mut self, id: Caller) {
        if let Some(client) = self.known.get_mut(id) {
            client.named = true;
        }
    }

    /// The peer of a client that the provider can't name.
    pub(crate) fn unnamed(&self, id: Caller) -> Option<PeerId> {
        self.known.get(id).filter(|client| !client.named).map(|client| client.peer)
    }

    /// Notes a message of a client that the provider names as this peer, and has named so before. Returns
    /// whether it is such a client.
    #[inline]
    pub(crate) fn comes_again(&mut self, id: Caller, peer: PeerId, now: Instant) -> bool {
        let Some(client) = self.known.get_mut(id) else { return false };
        let same = client.named && client.peer == peer;
        if same {
            client.heard = now;
        }
        same
    }

    /// Notes where a client is. Returns the peers of clients that were forgotten meanwhile.
    pub(crate) fn meet(
        &mut self,
        id: Caller,
        peer: PeerId,
        address: Option<&Address>,
        now: Instant,
    ) -> Result<Vec<PeerId>, SenderError> {
        if let Some(client) = self.known.get_mut(id) {
            if client.peer != peer && (address.is_none() || address != client.address.as_ref()) {
                return Err(SenderError::Impostor);
            }
            if client.peer != peer {
                self.by_peer.remove(&(client.peer, id));
                self.by_peer.insert((peer, id));
            }
            client.peer = peer;
            client.heard = now;
            client.address = client.address.take().or_else(|| address.cloned());
            return Ok(Vec::new());
        }
        let forgotten = self.prune(now);
        let place = (peer, id.tenant);
        if self.at_of(place).take(PEER_IDS_MAX).count() == PEER_IDS_MAX && !self.make_room_at(place, now) {
            return Err(SenderError::NoRoom);
        }
        let free = CLIENTS_MAX.saturating_sub(self.known.len());
        let tenant = Rc::clone(self.tenants.entry(id.tenant).or_default());
        let others = tenant.clients.get();
        if others >= TENANT_SHARE * free {
            return Err(SenderError::NoRoom);
        }
        tenant.clients.set(others + 1);
        self.by_peer.insert((peer, id));
        let address = address.cloned();
        self.known.insert(
            id,
            Client {
                peer,
                session: None,
                floor: 0,
                address,
                named: false,
                heard: now,
                looked: Instant::default(),
                looked_for: Gone::Host,
                is_asked: false,
                acked: 0,
                paces: TransferPacing::default(),
                slot: RetrySlot::default(),
                answered: Instant::default(),
                owed: Instant::default(),
                tenant,
                running: 0,
                bytes: 0,
                entries: Entries::default(),
            },
        );
        Ok(forgotten)
    }

    fn prune(&mut self, now: Instant) -> Vec<PeerId> {
        if now - self.pruned < PRUNE_EVERY {
            return Vec::new();
        }
        self.pruned = now;
        let idle = |client: &Client| {
            let is_silent = now - client.seen() > CLIENT_IDLE_MAX && client.running == 0;
            is_silent && (!client.is_owed(now) || client.tenant.clients.get() > OWED_MAX)
        };
        let gone: Vec<Caller> =
            self.known.iter().filter(|(_, client)| idle(client)).map(|(id, _)| id).collect();
        let mut peers: Vec<PeerId> = gone.into_iter().filter_map(|id| self.leave_out(id)).collect();
        self.tenants.retain(|_, tenant| tenant.clients.get() > 0);
        peers.retain(|peer| !self.has(*peer));
        peers
    }

    /// Forgets a client. Returns its peer.
    fn leave_out(&mut self, id: Caller) -> Option<PeerId> {
        let client = self.known.remove(id)?;
        self.bytes -= client.bytes;
        self.by_peer.remove(&(client.peer, id));
        let of_tenant = client.tenant.clients.get();
        assert!(of_tenant > 0, "a client goes that was not counted");
        client.tenant.clients.set(of_tenant - 1);
        Some(client.peer)
    }

    /// Forgets the client of this tenant and peer that has been silent for longest, if it counts as ended.
    /// Clients that can't repeat any request go first. Returns whether there was one.
    fn make_room_at(&mut self, place: (PeerId, TenantId), now: Instant) -> bool {
        let idle = self.at_of(place).filter_map(|id| Some((id, self.known.get(id)?)));
        let ended = idle.filter(|(_, client)| client.running == 0 && now - client.seen() >= ENDED_AFTER);
        let oldest = ended.min_by_key(|(_, client)| (client.is_owed(now), client.seen())).map(|(id, _)| id);
        oldest.and_then(|id| self.leave_out(id)).is_some()
    }

    /// The peer of a client whose transfer is stuck. `None`: its connections were inspected a moment ago for at
    /// least as much. A younger transfer's inspection must not replace that of one which has been stuck for
    /// longer.
    pub(crate) fn look_for(&mut self, id: Caller, gone: Gone, now: Instant) -> Option<PeerId> {
        let client = self.known.get_mut(id)?;
        let is_due = now - client.looked >= LOOKS_EVERY || gone > client.looked_for;
        is_due.then(|| {
            (client.looked, client.looked_for, client.is_asked) = (now, gone, true);
            client.peer
        })
    }

    /// A transfer with an inspected client has ended. Returns the client's peer once for each inspection.
    pub(crate) fn stop_asking(&mut self, id: Caller) -> Option<PeerId> {
        let client = self.known.get_mut(id)?;
        core::mem::take(&mut client.is_asked).then_some(client.peer)
    }

    /// Clients at a peer.
    fn at(&self, peer: PeerId) -> impl Iterator<Item = Caller> {
        self.by_peer
            .range((peer, Caller::default())..)
            .take_while(move |(at, _)| *at == peer)
            .map(|(_, id)| *id)
    }

    /// Clients of one tenant at a peer.
    fn at_of(&self, (peer, tenant): (PeerId, TenantId)) -> impl Iterator<Item = Caller> {
        let first = (peer, Caller { tenant, id: ClientId::default() });
        let is_there = move |(at, id): &&(PeerId, Caller)| *at == peer && id.tenant == tenant;
        self.by_peer.range(first..).take_while(is_there).map(|(_, id)| *id)
    }

    /// Whether any client is at a peer.
    pub(crate) fn has(&self, peer: PeerId) -> bool {
        self.at(peer).next().is_some()
    }

    /// The address that a client at this peer has said it has.
    pub(crate) fn address_at(&self, peer: PeerId) -> Option<Address> {
        self.at(peer).find_map(|id| self.known.get(id)?.address.clone())
    }

    /// Moves all clients of one peer to another, which stands for the same address.
    pub(crate) fn move_all(&mut self, before: PeerId, now: PeerId) {
        let moved: Vec<Caller> = self.at(before).collect();
        for id in moved {
            self.by_peer.remove(&(before, id));
            self.by_peer.insert((now, id));
            if let Some(client) = self.known.get_mut(id) {
                client.peer = now;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client of one tenant.
    pub(crate) fn caller(id: u64) -> Caller {
        Caller { tenant: TenantId(3), id: ClientId::new(id) }
    }

    /// A server with room for this many bytes of replies, and one client that it knows.
    pub(crate) fn met(limit: usize) -> (Clients, Caller) {
        let (mut clients, id) = (Clients::new(limit, 7), caller(5));
        clients.meet(id, PeerId(1), None, Instant::default()).expect("room");
        (clients, id)
    }

    #[test]
    fn a_tenant_with_more_clients_than_there_is_room_for_keeps_none_of_anothers_out() {
        let mut clients = Clients::new(1, 7);
        let now = Instant::default() + PRUNE_EVERY;
        let mut meet = |id: u64, tenant: u64, now: Instant| {
            let id = Caller { tenant: TenantId(tenant), id: ClientId::new(id) };
            clients.meet(id, PeerId(id.id.bits()), None, now).is_ok()
        };
        let flood = (1..=70_000).filter(|id| meet(*id, 1, now)).count();
        assert!((53_248..CLIENTS_MAX).contains(&flood), "{flood}");
        let others = (100_000..104_000).filter(|id| meet(*id, 2, now)).count();
        assert!(others > 3_000, "{others}");
        assert!(meet(200_000, 3, now) && !meet(200_001, 1, now) && !meet(200_002, 2, now));
        let late = now + CLIENT_IDLE_MAX * 2;
        assert!(meet(200_003, 1, late), "those that fell silent are forgotten");
        let counted = clients.tenants.values().map(|tenant| tenant.clients.get());
        assert_eq!(counted.sum::<usize>(), clients.known.len());
    }

    #[test]
    fn a_peer_that_comes_by_ever_new_names_keeps_out_none_but_itself() {
        let mut clients = Clients::new(1, 7);
        let now = Instant::default() + PRUNE_EVERY;
        let mut meet =
            |id: u64, peer: u64, now: Instant| clients.meet(caller(id), PeerId(peer), None, now).is_ok();
        assert_eq!((1..=70_000).filter(|id| meet(*id, 1, now)).count(), PEER_IDS_MAX);
        assert!(meet(80_000, 2, now), "another one of its tenant");
        assert!(meet(1, 1, now), "those that are known");
        // One process after another has that address.
        let mut later = now;
        for id in 100_000..101_000 {
            later += Duration::from_secs(1);
            assert!(meet(id, 1, later) || later < now + ENDED_AFTER, "process {id}");
        }
        assert!(meet(90_000, 1, later + CLIENT_IDLE_MAX * 2), "those that fell silent are forgotten");
    }

    #[test]
    fn a_client_keeps_its_address_and_may_change_its_entry() {
        let (mut clients, id) = (Clients::new(1, 7), caller(5));
        let [own, other] = [&b"own"[..], b"other"].map(|bytes| Address::from_bytes(bytes).expect("short"));
        let now = Instant::default();
        clients.meet(id, PeerId(1), Some(&own), now).expect("room");
        assert_eq!(clients.meet(id, PeerId(2), None, now), Err(SenderError::Impostor));
        assert_eq!(clients.meet(id, PeerId(2), Some(&other), now), Err(SenderError::Impostor));
        assert_eq!(clients.peer(id), Some(PeerId(1)));
        assert_eq!(clients.meet(id, PeerId(2), Some(&own), now), Ok(Vec::new()));
        assert_eq!(clients.meet(id, PeerId(2), None, now), Ok(Vec::new()));
        assert_eq!(clients.peer(id), Some(PeerId(2)));
    }

    #[test]
    fn silent_clients_are_forgotten_but_not_while_a_request_of_theirs_runs() {
        let (mut clients, id) = met(10_000);
        clients.begin(id, 1, 1);
        let late = Instant::default() + CLIENT_IDLE_MAX * 2;
        assert_eq!(clients.meet(caller(6), PeerId(2), None, late), Ok(Vec::new()));
        clients.finish(id, 1, Finished { status: 0, body: vec![0] });
        let later = late + PRUNE_EVERY;
        assert_eq!(clients.meet(caller(7), PeerId(3), None, later), Ok(vec![PeerId(1)]));
        assert_eq!((clients.peer(id), clients.bytes), (None, 0));
    }

    #[test]
    fn a_client_that_may_ask_again_for_a_reply_is_remembered_as_long_unless_there_are_very_many() {
        let until = Instant::default() + Duration::from_hours(1);
        let done = || Finished { status: 0, body: vec![0] };
        for (acked, limit, remembered) in [(1, 10_000, true), (2, 10_000, false), (1, 0, true)] {
            let (mut clients, id) = met(limit);
            clients.begin_among(id, 1, 1, until);
            clients.finish(id, 1, done());
            // It is acknowledged, or not.
            clients.begin(id, 2, acked);
            clients.forget(id, 2);
            clients.meet(caller(6), PeerId(2), None, until - Duration::from_mins(1)).expect("room");
            assert_eq!(clients.peer(id).is_some(), remembered, "{acked}, {limit}");
            if remembered {
                let known = clients.begin(id, 1, 1);
                assert!(matches!(known, Admission::Finished | Admission::Forgotten), "{known:?}");
            }
            clients.meet(caller(7), PeerId(3), None, until + PRUNE_EVERY).expect("room");
            assert_eq!(clients.peer(id), None);
        }
        let (mut clients, id) = met(10_000);
        clients.begin_among(id, 1, 1, until);
        clients.finish(id, 1, done());
        let late = until - Duration::from_mins(10);
        for other in 0..=OWED_MAX as u64 {
            clients.meet(caller(100 + other), PeerId(100 + other), None, late).expect("room");
        }
        clients.meet(caller(8), PeerId(4), None, late + PRUNE_EVERY).expect("room");
        assert_eq!(clients.peer(id), None);
    }

    #[test]
    fn where_a_peer_has_no_room_the_one_goes_that_can_ask_for_nothing_again() {
        let mut clients = Clients::new(10_000, 7);
        let (now, until) = (Instant::default() + PRUNE_EVERY, Instant::default() + Duration::from_hours(1));
        for id in 1..=PEER_IDS_MAX as u64 {
            clients.meet(caller(id), PeerId(1), None, now).expect("room");
            if id != 77 {
                clients.begin_among(caller(id), 1, 1, until);
                clients.finish(caller(id), 1, Finished { status: 0, body: vec![0] });
            }
        }
        for (new, gone) in [(1000, 77), (1001, 1)] {
            clients.meet(caller(new), PeerId(1), None, now + ENDED_AFTER).expect("room is made");
            assert_eq!(clients.peer(caller(gone)), None);
        }
    }

    #[test]
    fn a_peer_is_given_up_only_when_nobody_is_there_any_more() {
        let (mut clients, _) = met(10_000);
        let now = Instant::default();
        for (id, peer) in [(6, 1), (7, 2), (8, 2), (9, 3)] {
            clients.meet(caller(id), PeerId(peer), None, now).expect("room");
        }
        let late = now + CLIENT_IDLE_MAX * 2;
        clients.meet(caller(6), PeerId(1), None, late).expect("known");
        let mut gone = clients.meet(caller(10), PeerId(4), None, late).expect("room");
        gone.sort_unstable();
        gone.dedup();
        assert_eq!(gone, [PeerId(2), PeerId(3)]);
        assert_eq!(clients.size().0, 2);
    }

    #[test]
    fn clients_go_on_where_another_peer_stands_for_their_address() {
        let (mut clients, id) = (Clients::new(1, 7), caller(5));
        let own = Address::from_bytes(b"own").expect("short");
        clients.meet(id, PeerId(1), Some(&own), Instant::default()).expect("room");
        assert_eq!((clients.address_at(PeerId(1)), clients.address_at(PeerId(2))), (Some(own), None));
        clients.move_all(PeerId(1), PeerId(2));
        assert_eq!(clients.peer(id), Some(PeerId(2)));
    }

    #[test]
    fn looks_for_a_client_that_may_be_gone_keep_off_none_that_ask_for_more() {
        let (mut clients, id) = met(1);
        let at = |secs| Instant::default() + LOOKS_EVERY + Duration::from_secs(secs);
        let looks =
            [(Gone::Host, 0), (Gone::Host, 2), (Gone::Progress, 3), (Gone::Host, 8), (Gone::Host, 11)];
        let looked = looks.map(|(gone, secs)| clients.look_for(id, gone, at(secs)).is_some());
        assert_eq!(looked, [true, false, true, false, true]);
        assert_eq!([0; 2].map(|_| clients.stop_asking(id)), [Some(PeerId(1)), None]);
    }

    proptest! {
        #[test]
        fn clients_are_found_by_where_they_are_wherever_they_came_from(
            steps in prop::collection::vec((0..4u8, 1..12u64, 0..6u64), 0..120)
        ) {
            let (mut clients, mut now) = (Clients::new(1, 7), Instant::default());
            for (what, id, place) in steps {
                let address = Address::from_bytes(&[1, u8::try_from(id).expect("small")]);
                now += Duration::from_secs(place);
                match what {
                    0 | 1 => drop(clients.meet(caller(id), PeerId(place), address.as_ref(), now)),
                    2 => clients.move_all(PeerId(id % 6), PeerId(place)),
                    _ => now += CLIENT_IDLE_MAX,
                }
                for peer in (0..6).map(PeerId) {
                    let there = clients.known.iter().any(|(_, client)| client.peer == peer);
                    prop_assert_eq!((clients.has(peer), clients.address_at(peer).is_some()), (there, there));
                }
                prop_assert_eq!(clients.by_peer.len(), clients.known.len());
            }
        }
    }
}
