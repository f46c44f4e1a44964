//! The clients that a server knows: where they are, what was agreed on with them, and which of their requests were executed, with
//! the replies. It calls admission, transfers, the maps and the wire's names. The context has one register of clients, which the
//! server asks for each message.

mod entries;
mod parts;
mod replies;

pub(crate) use entries::Finished;
pub(crate) use parts::{Asked, Parts};
pub(crate) use replies::{Admission, Others};

use crate::admission::{Paces, Slot};
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

/// Silence after which a client is forgotten that can't ask for any reply again. Its next request says again who it is, so this
/// costs nothing.
const CLIENT_IDLE_MAX: Duration = Duration::from_mins(5);

/// Most clients remembered: the paper's largest run (53,248) and some. More are refused until others fall silent.
const CLIENTS_MAX: usize = 65_536;

/// How many clients a tenant may have remembered for each place that is still free. One tenant alone then gets sixteen of
/// seventeen places, which are more than the paper's largest run, and however many the others have, there is room for
/// another one.
const TENANT_SHARE: usize = 16;

/// More clients of a tenant than these are not remembered for the sake of requests that may be asked for again.
const OWED_MAX: usize = CLIENTS_MAX / 2;

/// Most clients of one tenant remembered at one peer. A process has one, or one for each name of a server that it knows; where
/// addresses are used again, the next process has others. One that says hello by ever new names fills its own places, and those of
/// no other tenant, whose address it may only claim.
const PEER_IDS_MAX: usize = 256;

/// Silence after which a client may be taken for ended where another one has its address and there is no more room.
const ENDED_AFTER: Duration = Duration::from_secs(30);

/// A client's connections are looked through once in this time at most, however many of its transfers are stuck.
const LOOKS_EVERY: Duration = Duration::from_secs(8);

/// How often idle clients are looked for, at most.
const PRUNE_EVERY: Duration = Duration::from_mins(1);

/// Time that an answer to a message which brings about nothing uses up of a client's allowance: a repeat, a request that has
/// expired or that nobody serves. A client with all its credits asks a hundred times a second in this way, after half a
/// second of silence; twenty thousand cost a server some hundredths of its time.
const ANSWER_GAP: Duration = Duration::from_micros(50);

/// How far a client may be ahead of its allowance.
const ANSWER_AHEAD: Duration = Duration::from_secs(1);

/// What a server has agreed on with a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedSession {
    /// What its messages, and those to it, are sealed with.
    pub(crate) seal: SealKey,
    /// Number of the hello that opened it.
    pub(crate) hello: u64,
    /// The client's part of the key.
    pub(crate) theirs: Nonce,
    /// This side's part of it.
    pub(crate) ours: Nonce,
}

pub(crate) struct Client {
    peer: PeerId,
    session: Option<ServedSession>,
    /// Requests below this that are not in `entries` were executed and their replies forgotten, or never came.
    pub(crate) floor: u64,
    /// What it said its address is. A context keeps its address for life, so whoever comes with the same id from
    /// elsewhere is somebody else.
    address: Option<Address>,
    /// The provider has named it as a sender. It doesn't when the client's packets come from another address than the
    /// one it listens at.
    named: bool,
    heard: Instant,
    /// When its connections were last looked through, because a transfer was stuck.
    looked: Instant,
    /// What they were looked through for.
    looked_for: Gone,
    /// Its host is asked for signs of life since.
    is_asked: bool,
    pub(crate) acked: u64,
    /// Which of its requests may start the next transfer; see [`crate::admission`].
    paces: Paces,
    /// When its next request that is sent away may come.
    slot: Slot,
    /// Until when its allowance of answers that bring about nothing is used up.
    answered: Instant,
    /// Until when it may ask again for what it has asked for, unless it has acknowledged all of it.
    pub(crate) owed: Instant,
    pub(crate) tenant: Rc<Tenant>,
    /// Entries that are running.
    pub(crate) running: usize,
    /// Bytes of the others.
    pub(crate) bytes: usize,
    pub(crate) entries: Entries,
}

impl Client {
    /// When it last gave a sign of life, or was looked for because a transfer is stuck with it: it has to be known for that.
    fn seen(&self) -> Instant {
        self.heard.max(self.looked)
    }

    /// Whether a request of it may come again that was executed.
    fn is_owed(&self, now: Instant) -> bool {
        let newest =
            self.entries.0.back().map_or(0, |(request, _)| request.saturating_add(1)).max(self.floor);
        newest > self.acked && now <= self.owed
    }
}

/// What a tenant's clients have, all together.
#[derive(Default)]
pub(crate) struct Tenant {
    clients: Cell<usize>,
    /// Requests that run.
    pub(crate) running: Cell<usize>,
}

/// Why a message is not taken as its client's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stranger {
    /// Another context of its tenant has this id.
    Impostor,
    /// No more clients can be remembered.
    NoRoom,
    /// The hello was seen before, or an older one than the last.
    Replay,
}

/// Clients by their ids, and what is remembered of them. How their requests are: [`replies`].
pub(crate) struct Clients {
    pub(crate) known: CachedMap<Caller, Client>,
    /// The same by where they are.
    places: BTreeSet<(PeerId, Caller)>,
    /// Whose they are.
    tenants: IdMap<TenantId, Rc<Tenant>>,
    /// Clients with a running request.
    pub(crate) busy: usize,
    /// Requests that finished so far.
    pub(crate) serial: u64,
    pub(crate) bytes: usize,
    pub(crate) limit: usize,
    pruned: Instant,
}

impl Clients {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            known: CachedMap::new(seed),
            places: BTreeSet::new(),
            tenants: IdMap::with_hasher(seed.into()),
            busy: 0,
            serial: 0,
            bytes: 0,
            limit,
            pruned: Instant::default(),
        }
    }

    /// Where a client is.
    pub(crate) fn peer(&self, client: Caller) -> Option<PeerId> {
        self.known.get(client).map(|client| client.peer)
    }

    /// Whether a provider's word counts that a client is at this place: it has named the client before, or the client is there.
    pub(crate) fn is_placed(&self, client: Caller, at: PeerId) -> bool {
        self.known.get(client).is_some_and(|client| client.named || client.peer == at)
    }

    /// What paces transfers with a client.
    pub(crate) fn paces(&self, client: Caller) -> Option<&Paces> {
        self.known.get(client).map(|client| &client.paces)
    }

    /// What a client's messages are sealed with.
    pub(crate) fn seal(&self, id: Caller) -> Option<SealKey> {
        self.known.get(id)?.session.map(|session| session.seal)
    }

    /// Asks `next` for a client's place in its queue of those that are sent away, with the number of clients that share the
    /// server.
    pub(crate) fn stay_away(
        &mut self,
        id: Caller,
        next: impl FnOnce(&mut Slot, usize) -> Option<Duration>,
    ) -> Option<Duration> {
        let busy = self.busy;
        self.known.get_mut(id).and_then(|client| next(&mut client.slot, busy))
    }

    /// Whether a client may have one more answer to a message that brings about nothing.
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

    /// Opens a session with a client that was met. Returns this side's part of the key: the one of the session that
    /// stands, when the hello is merely a repeat.
    pub(crate) fn open(&mut self, id: Caller, session: ServedSession) -> Result<Nonce, Stranger> {
        let Some(client) = self.known.get_mut(id) else { return Err(Stranger::NoRoom) };
        match &client.session {
            Some(known) if known.hello == session.hello && known.theirs == session.theirs => {
                return Ok(known.ours);
            }
            Some(known) if known.hello >= session.hello => return Err(Stranger::Replay),
            _ => client.session = Some(session),
        }
        Ok(session.ours)
    }

    /// The provider named this client as a message's sender.
    pub(crate) fn name(&mut self, id: Caller) {
        if let Some(client) = self.known.get_mut(id) {
            client.named = true;
        }
    }

    /// Where a client is that the provider can't name.
    pub(crate) fn unnamed(&self, id: Caller) -> Option<PeerId> {
        self.known.get(id).filter(|client| !client.named).map(|client| client.peer)
    }

    /// Notes that a client was heard which the provider names, and named before, as this peer.
    #[inline]
    pub(crate) fn comes_again(&mut self, id: Caller, peer: PeerId, now: Instant) -> bool {
        let Some(client) = self.known.get_mut(id) else { return false };
        let same = client.named && client.peer == peer;
        if same {
            client.heard = now;
        }
        same
    }

    /// Notes where a client is. Returns the peers of clients that were forgotten on this occasion.
    pub(crate) fn meet(
        &mut self,
        id: Caller,
        peer: PeerId,
        address: Option<&Address>,
        now: Instant,
    ) -> Result<Vec<PeerId>, Stranger> {
        if let Some(client) = self.known.get_mut(id) {
            if client.peer != peer && (address.is_none() || address != client.address.as_ref()) {
                return Err(Stranger::Impostor);
            }
            if client.peer != peer {
                self.places.remove(&(client.peer, id));
                self.places.insert((peer, id));
            }
            client.peer = peer;
            client.heard = now;
            client.address = client.address.take().or_else(|| address.cloned());
            return Ok(Vec::new());
        }
        let forgotten = self.prune(now);
        let place = (peer, id.tenant);
        if self.at_of(place).take(PEER_IDS_MAX).count() == PEER_IDS_MAX && !self.make_room_at(place, now) {
            return Err(Stranger::NoRoom);
        }
        let free = CLIENTS_MAX.saturating_sub(self.known.len());
        let tenant = Rc::clone(self.tenants.entry(id.tenant).or_default());
        let others = tenant.clients.get();
        if others >= TENANT_SHARE * free {
            return Err(Stranger::NoRoom);
        }
        tenant.clients.set(others + 1);
        self.places.insert((peer, id));
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
                paces: Paces::default(),
                slot: Slot::default(),
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

    /// Forgets a client. Returns where it was.
    fn leave_out(&mut self, id: Caller) -> Option<PeerId> {
        let client = self.known.remove(id)?;
        self.bytes -= client.bytes;
        self.places.remove(&(client.peer, id));
        client.tenant.clients.set(client.tenant.clients.get().saturating_sub(1));
        Some(client.peer)
    }

    /// Forgets the client of a tenant at a peer that has been silent for longest, if that is long enough to take it for one that has
    /// ended; rather one that can't ask for any reply again.
    fn make_room_at(&mut self, place: (PeerId, TenantId), now: Instant) -> bool {
        let idle = self.at_of(place).filter_map(|id| Some((id, self.known.get(id)?)));
        let ended = idle.filter(|(_, client)| client.running == 0 && now - client.seen() >= ENDED_AFTER);
        let oldest = ended.min_by_key(|(_, client)| (client.is_owed(now), client.seen())).map(|(id, _)| id);
        oldest.and_then(|id| self.leave_out(id)).is_some()
    }

    /// Where a client is that a transfer is stuck with, unless it was looked for a moment ago, and for as much: else a new
    /// transfer's look would stand for that of one which has been stuck for long.
    pub(crate) fn look_for(&mut self, id: Caller, gone: Gone, now: Instant) -> Option<PeerId> {
        let client = self.known.get_mut(id)?;
        let is_due = now - client.looked >= LOOKS_EVERY || gone > client.looked_for;
        is_due.then(|| {
            (client.looked, client.looked_for, client.is_asked) = (now, gone, true);
            client.peer
        })
    }

    /// A transfer with a client that was looked for has ended. Where the client is, once for each look.
    pub(crate) fn stop_asking(&mut self, id: Caller) -> Option<PeerId> {
        let client = self.known.get_mut(id)?;
        core::mem::take(&mut client.is_asked).then_some(client.peer)
    }

    /// Those that are at a peer.
    fn at(&self, peer: PeerId) -> impl Iterator<Item = Caller> {
        self.places
            .range((peer, Caller::default())..)
            .take_while(move |(at, _)| *at == peer)
            .map(|(_, id)| *id)
    }

    /// Those of one tenant.
    fn at_of(&self, (peer, tenant): (PeerId, TenantId)) -> impl Iterator<Item = Caller> {
        let first = (peer, Caller { tenant, id: ClientId::default() });
        let is_there = move |(at, id): &&(PeerId, Caller)| *at == peer && id.tenant == tenant;
        self.places.range(first..).take_while(is_there).map(|(_, id)| *id)
    }

    /// Whether any client is at a peer.
    pub(crate) fn has(&self, peer: PeerId) -> bool {
        self.at(peer).next().is_some()
    }

    /// The address that a client at this peer has said it has.
    pub(crate) fn address_at(&self, peer: PeerId) -> Option<Address> {
        self.at(peer).find_map(|id| self.known.get(id)?.address.clone())
    }

    /// Another peer stands for the address of all clients that were at one.
    pub(crate) fn move_all(&mut self, before: PeerId, now: PeerId) {
        let moved: Vec<Caller> = self.at(before).collect();
        for id in moved {
            self.places.remove(&(before, id));
            self.places.insert((now, id));
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

    /// One client, known to a server with room for this many bytes of replies.
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
        assert_eq!(clients.meet(id, PeerId(2), None, now), Err(Stranger::Impostor));
        assert_eq!(clients.meet(id, PeerId(2), Some(&other), now), Err(Stranger::Impostor));
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
            // It has acknowledged this, or not.
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
                prop_assert_eq!(clients.places.len(), clients.known.len());
            }
        }
    }
}
