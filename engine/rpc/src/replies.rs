//! What a server remembers of its clients: where they are, and the replies they may ask for again.

use crate::entries::{Entries, Entry, Finished};
use crate::id_map::IdMap;
use crate::load::PAUSE_MAX;
use crate::register::Register;
use crate::seal::{Nonce, SealKey};
use crate::wire::ClientId;
use core::time::Duration;
use std::collections::BTreeSet;
use weir_fabric::{Address, PeerId};
use weir_proto::TenantId;
use weir_runtime::Instant;
use weir_runtime::sync::Semaphore;

/// Silence after which a client is forgotten. Its next request says again who it is, so this costs nothing.
const CLIENT_IDLE_MAX: Duration = Duration::from_mins(5);

/// Most clients remembered: the paper's largest run (53,248) and some. More are refused until others fall silent.
const CLIENTS_MAX: usize = 65_536;

/// How many clients a tenant may have remembered for each place that is still free. One tenant alone then gets sixteen of
/// seventeen places, which are more than the paper's largest run, and however many the others have, there is room for
/// another one.
const TENANT_SHARE: usize = 16;

/// How often idle clients are looked for, at most.
const PRUNE_EVERY: Duration = Duration::from_mins(1);

/// Time that an answer to a message which brings about nothing uses up of a client's allowance: a repeat, a request that has
/// expired or that nobody serves. A client with all its credits asks a hundred times a second in this way, after half a
/// second of silence; twenty thousand cost a server some hundredths of its time.
const ANSWER_GAP: Duration = Duration::from_micros(50);

/// How far a client may be ahead of its allowance.
const ANSWER_AHEAD: Duration = Duration::from_secs(1);

/// How far from both ends of a client's requests one may stand that comes late: whoever keeps to its credits has acknowledged
/// nearly all below the oldest that it still asks for. Room for it has to be made by moving what is behind.
const DEPTH_MAX: usize = 1024;

/// Part of the limit that is free after replies had to be forgotten: looking at half a million takes some hundredths of a
/// second, and then some ten thousand more fit.
const SPARED: usize = 8;

/// What a server has agreed on with a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedSession {
    /// Whose client it is.
    pub(crate) tenant: TenantId,
    /// What its messages, and those to it, are sealed with.
    pub(crate) seal: SealKey,
    /// Number of the hello that opened it.
    pub(crate) hello: u64,
    /// The client's part of the key.
    pub(crate) theirs: Nonce,
    /// This side's part of it.
    pub(crate) ours: Nonce,
}

struct Client {
    peer: PeerId,
    /// Whose client it is.
    tenant: TenantId,
    session: Option<ServedSession>,
    /// Requests below this that are not in `entries` were executed and their replies forgotten, or never came.
    floor: u64,
    /// What it said its address is. A context keeps its address for life, so whoever comes with the same id from
    /// elsewhere is somebody else.
    address: Option<Address>,
    /// The provider has named it as a sender. It doesn't when the client's packets come from another address than the
    /// one it listens at.
    named: bool,
    heard: Instant,
    acked: u64,
    /// Who of its requests may start the next transfer; see [`crate::pace`].
    pace: Semaphore,
    /// When its next request that is sent away may come.
    slot: Instant,
    /// Until when its allowance of answers that bring about nothing is used up.
    answered: Instant,
    /// Entries that are running.
    running: usize,
    /// Bytes of the others.
    bytes: usize,
    entries: Entries,
}

impl Client {
    /// A request of it runs no more. Returns whether it was the last, as a number.
    fn ended(&mut self) -> usize {
        self.running = self.running.saturating_sub(1);
        usize::from(self.running == 0)
    }

    /// Forgets what it has finished with. Returns how many bytes went.
    #[inline]
    fn forget_acked(&mut self) -> usize {
        let before = self.bytes;
        while let Some(entry) = self.entries.take_finished(self.acked) {
            self.bytes -= entry.weight();
        }
        before - self.bytes
    }

    /// Forgets its oldest replies until no more than `share` bytes of them are left. Returns how many bytes went.
    fn forget_replies(&mut self, share: usize) -> usize {
        let finished = |(request, entry): &(u64, Entry)| match entry {
            Entry::Finished(_, serial) => Some((*serial, *request, entry.weight())),
            Entry::Running => None,
        };
        let mut all: Vec<_> = self.entries.0.iter().filter_map(finished).collect();
        all.sort_unstable();
        let (before, mut last) = (self.bytes, None);
        for (serial, request, weight) in all {
            if self.bytes <= share {
                break;
            }
            self.bytes -= weight;
            // It must not be executed again, whoever asks.
            self.floor = self.floor.max(request.saturating_add(1));
            last = Some(serial);
        }
        self.entries.0.retain(|(_, entry)| match entry {
            Entry::Finished(_, serial) => Some(*serial) > last,
            Entry::Running => true,
        });
        before - self.bytes
    }
}

/// What to do with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Execute it.
    New,
    /// It is being executed already.
    Running,
    /// It was executed: send its reply again.
    Finished,
    /// The client has finished with it.
    Stale,
    /// It was executed, or it comes later than half a million others, or far out of its turn; its reply is not remembered.
    Forgotten,
}

/// Why a message is not taken as its client's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stranger {
    /// Another context has this id.
    Impostor,
    /// No more clients can be remembered.
    NoRoom,
    /// The hello was seen before, or an older one than the last.
    Replay,
}

pub(crate) struct Clients {
    known: Register<ClientId, Client>,
    /// The same by where they are.
    places: BTreeSet<(PeerId, ClientId)>,
    /// How many of them each tenant has.
    tenants: IdMap<TenantId, usize>,
    /// Clients with a running request.
    busy: usize,
    /// Requests that finished so far.
    serial: u64,
    bytes: usize,
    limit: usize,
    pruned: Instant,
}

impl Clients {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            known: Register::new(seed),
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
    pub(crate) fn peer(&self, client: ClientId) -> Option<PeerId> {
        self.known.get(client).map(|client| client.peer)
    }

    /// What paces transfers with a client.
    pub(crate) fn pace(&self, client: ClientId) -> Option<Semaphore> {
        self.known.get(client).map(|client| client.pace.clone())
    }

    /// Whose client this is, and what its messages are sealed with.
    pub(crate) fn seal(&self, id: ClientId) -> Option<(TenantId, SealKey)> {
        self.known.get(id)?.session.map(|session| (session.tenant, session.seal))
    }

    /// Asks `next` for a client's place in its queue of those that are sent away, with the number of clients that share the
    /// server.
    pub(crate) fn stay_away(
        &mut self,
        id: ClientId,
        next: impl FnOnce(&mut Instant, usize) -> Duration,
    ) -> Duration {
        let busy = self.busy;
        self.known.get_mut(id).map_or(PAUSE_MAX, |client| next(&mut client.slot, busy))
    }

    /// Whether a client may have one more answer to a message that brings about nothing.
    pub(crate) fn may_answer(&mut self, id: ClientId, now: Instant) -> bool {
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

    /// A reply that is remembered.
    pub(crate) fn finished(&self, id: ClientId, request: u64) -> Option<&Finished> {
        match self.known.get(id)?.entries.get(request)? {
            Entry::Finished(finished, _) => Some(finished),
            Entry::Running => None,
        }
    }

    /// Opens a session with a client that was met. Returns this side's part of the key: the one of the session that
    /// stands, when the hello is merely a repeat.
    pub(crate) fn open(&mut self, id: ClientId, session: ServedSession) -> Result<Nonce, Stranger> {
        let Some(client) = self.known.get_mut(id) else { return Err(Stranger::NoRoom) };
        match &client.session {
            Some(known) if known.tenant != session.tenant => return Err(Stranger::Impostor),
            Some(known) if known.hello == session.hello && known.theirs == session.theirs => {
                return Ok(known.ours);
            }
            Some(known) if known.hello >= session.hello => return Err(Stranger::Replay),
            _ => client.session = Some(session),
        }
        Ok(session.ours)
    }

    /// The provider named this client as a message's sender.
    pub(crate) fn name(&mut self, id: ClientId) {
        if let Some(client) = self.known.get_mut(id) {
            client.named = true;
        }
    }

    /// Where a client is that the provider can't name.
    pub(crate) fn unnamed(&self, id: ClientId) -> Option<PeerId> {
        self.known.get(id).filter(|client| !client.named).map(|client| client.peer)
    }

    /// Notes that a client was heard which the provider names, and named before, as this peer.
    pub(crate) fn comes_again(&mut self, id: ClientId, peer: PeerId, now: Instant) -> bool {
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
        id: ClientId,
        peer: PeerId,
        address: Option<&Address>,
        now: Instant,
        tenant: TenantId,
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
        let free = CLIENTS_MAX.saturating_sub(self.known.len());
        let others = self.tenants.entry(tenant).or_default();
        if *others >= TENANT_SHARE * free {
            return Err(Stranger::NoRoom);
        }
        *others += 1;
        self.places.insert((peer, id));
        let address = address.cloned();
        self.known.insert(
            id,
            Client {
                peer,
                tenant,
                session: None,
                floor: 0,
                address,
                named: false,
                heard: now,
                acked: 0,
                pace: Semaphore::new(1),
                slot: Instant::default(),
                answered: Instant::default(),
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
        let idle = |client: &Client| now - client.heard > CLIENT_IDLE_MAX && client.running == 0;
        let gone: Vec<ClientId> =
            self.known.iter().filter(|(_, client)| idle(client)).map(|(id, _)| id).collect();
        let mut peers = Vec::new();
        for id in gone {
            let Some(client) = self.known.remove(id) else { continue };
            self.bytes -= client.bytes;
            self.places.remove(&(client.peer, id));
            if let Some(count) = self.tenants.get_mut(&client.tenant) {
                *count = count.saturating_sub(1);
            }
            peers.push(client.peer);
        }
        self.tenants.retain(|_, count| *count > 0);
        peers.retain(|peer| !self.has(*peer));
        peers
    }

    /// Those that are at a peer.
    fn at(&self, peer: PeerId) -> impl Iterator<Item = ClientId> {
        let (first, last) = (ClientId::new(0), ClientId::new(u64::MAX));
        self.places.range((peer, first)..=(peer, last)).map(|(_, id)| *id)
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
        let moved: Vec<ClientId> = self.at(before).collect();
        for id in moved {
            self.places.remove(&(before, id));
            self.places.insert((now, id));
            if let Some(client) = self.known.get_mut(id) {
                client.peer = now;
            }
        }
    }

    /// Decides on a request of a client that was met. `acked`: the client has finished with all lower ids.
    pub(crate) fn begin(&mut self, id: ClientId, request: u64, acked: u64) -> Admission {
        self.begin_among(id, request, acked).0
    }

    /// The same, with how many others of the client run. What the client has finished with is forgotten when a request ends,
    /// behind its reply, where nobody waits for that; before one that is not the newest, whose place depends on it.
    pub(crate) fn begin_among(&mut self, id: ClientId, request: u64, acked: u64) -> (Admission, usize) {
        let Some(client) = self.known.get_mut(id) else { return (Admission::Stale, 0) };
        client.acked = client.acked.max(acked);
        let others = client.running;
        if request < client.acked {
            return (Admission::Stale, others);
        }
        if !client.entries.is_newest(request) {
            self.bytes -= client.forget_acked();
        }
        let at = match client.entries.at(request) {
            Ok(at) => {
                let is_running = matches!(client.entries.0[at].1, Entry::Running);
                return (if is_running { Admission::Running } else { Admission::Finished }, others);
            }
            Err(_) if request < client.floor => return (Admission::Forgotten, others),
            Err(at) if at > DEPTH_MAX && client.entries.0.len() - at > DEPTH_MAX => {
                return (Admission::Forgotten, others);
            }
            Err(at) => at,
        };
        client.entries.insert(at, request);
        client.running += 1;
        self.busy += usize::from(others == 0);
        (Admission::New, others)
    }

    /// Whether a request is being executed.
    pub(crate) fn is_running(&self, id: ClientId, request: u64) -> bool {
        let entry = self.known.get(id).and_then(|client| client.entries.get(request));
        matches!(entry, Some(Entry::Running))
    }

    /// The client has given a request up: a copy of it that is still on its way is not executed.
    pub(crate) fn bar(&mut self, id: ClientId, request: u64) {
        if self.begin(id, request, 0) == Admission::New {
            let status = weir_proto::Der::CANCELED.0;
            self.finish(id, request, Finished { status, body: Vec::new() });
        }
    }

    /// Remembers the outcome of a request.
    pub(crate) fn finish(&mut self, id: ClientId, request: u64, finished: Finished) {
        let Some(client) = self.known.get_mut(id) else { return };
        self.bytes -= client.forget_acked();
        if request < client.acked {
            if let Some(Entry::Running) = client.entries.remove(request) {
                self.busy = self.busy.saturating_sub(client.ended());
            }
            return;
        }
        self.serial += 1;
        let (entry, there) = client.entries.entry(request);
        let before = core::mem::replace(entry, Entry::Finished(finished, self.serial));
        let (more, less) = (entry.weight(), before.weight());
        client.bytes = client.bytes + more - less;
        self.bytes = self.bytes + more - less;
        if there && matches!(before, Entry::Running) {
            self.busy = self.busy.saturating_sub(client.ended());
        }
        if self.bytes > self.limit {
            self.shrink();
        }
    }

    /// A request was not executed after all; it may come again.
    pub(crate) fn forget(&mut self, id: ClientId, request: u64) {
        let Some(client) = self.known.get_mut(id) else { return };
        let entry = client.entries.remove(request);
        if matches!(entry, Some(Entry::Running)) {
            self.busy = self.busy.saturating_sub(client.ended());
        }
        let weight = entry.map_or(0, |entry| entry.weight());
        client.bytes -= weight;
        self.bytes -= weight;
    }

    /// Keeps within the limit, with some room to spare, because it looks at everything: hardly any server ever comes to this.
    /// Replies of those go who have most, so that who has everything remembered costs nobody else a reply.
    fn shrink(&mut self) {
        self.bytes -= self.known.values_mut().map(Client::forget_acked).sum::<usize>();
        let sizes = self.known.iter().map(|(_, client)| client.bytes).filter(|bytes| *bytes > 0).collect();
        let share = share_of(self.limit - self.limit / SPARED, sizes);
        for client in self.known.values_mut().filter(|client| client.bytes > share) {
            self.bytes -= client.forget_replies(share);
        }
    }
}

/// What each may have at most, for all together to have no more than `total`: those that want less leave more to the others.
fn share_of(total: usize, mut sizes: Vec<usize>) -> usize {
    sizes.sort_unstable();
    let (mut left, mut others) = (total, sizes.len());
    for size in sizes {
        let share = left / others;
        if size > share {
            return share;
        }
        (left, others) = (left - size, others - 1);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::REPLY_OVERHEAD;
    use proptest::prelude::*;

    fn finished(len: usize) -> Finished {
        Finished { status: 0, body: vec![0; len] }
    }

    const OWNER: TenantId = TenantId(3);

    fn met(limit: usize) -> (Clients, ClientId) {
        let (mut clients, id) = (Clients::new(limit, 7), ClientId::new(5));
        clients.meet(id, PeerId(1), None, Instant::default(), OWNER).expect("room");
        (clients, id)
    }

    #[test]
    fn a_request_is_executed_once_and_its_reply_is_kept_until_the_client_has_it() {
        let (mut clients, id) = met(10_000);
        assert_eq!(clients.begin(id, 1, 1), Admission::New);
        assert_eq!(clients.begin(id, 1, 1), Admission::Running);
        clients.finish(id, 1, finished(3));
        assert_eq!(clients.begin(id, 1, 1), Admission::Finished);
        assert_eq!(clients.finished(id, 1), Some(&finished(3)));
        assert_eq!(clients.begin(id, 2, 2), Admission::New);
        assert_eq!(clients.begin(id, 1, 1), Admission::Stale);
        clients.finish(id, 2, finished(0));
        assert_eq!(clients.bytes, REPLY_OVERHEAD, "the first one is forgotten");
    }

    #[test]
    fn what_a_client_has_finished_with_is_forgotten_before_anybody_loses_a_reply() {
        let (mut clients, done) = met(10 * REPLY_OVERHEAD);
        let other = ClientId::new(6);
        clients.meet(other, PeerId(2), None, Instant::default(), OWNER).expect("room");
        for request in 1..=5 {
            assert_eq!(clients.begin(done, request, 1), Admission::New);
            clients.finish(done, request, finished(0));
        }
        // It takes its time with the next one.
        assert_eq!(clients.begin_among(done, 6, 6), (Admission::New, 0));
        for request in 1..=7 {
            assert_eq!(clients.begin(other, request, 1), Admission::New);
            clients.finish(other, request, finished(0));
        }
        assert!((1..=7).all(|request| clients.begin(other, request, 1) == Admission::Finished));
        assert_eq!(clients.bytes, 7 * REPLY_OVERHEAD);
    }

    #[test]
    fn a_late_request_is_placed_among_those_that_its_client_has_not_finished_with() {
        let (mut clients, id) = met(usize::MAX);
        let newest = 8 * DEPTH_MAX as u64;
        for request in (2..=newest).step_by(2) {
            assert_eq!(clients.begin(id, request, 1), Admission::New);
            clients.finish(id, request, finished(0));
        }
        let middle = newest / 2 + 1;
        assert_eq!(clients.begin(id, middle, 1), Admission::Forgotten);
        assert_eq!(clients.begin(id, middle, middle - 8), Admission::New, "one of the oldest now");
    }

    #[test]
    fn a_request_that_was_given_up_is_not_executed_when_it_comes_and_goes_on_where_it_runs() {
        let (mut clients, id) = met(10_000);
        clients.bar(id, 5);
        assert_eq!(clients.begin(id, 5, 1), Admission::Finished);
        assert_eq!(clients.begin(id, 6, 1), Admission::New);
        clients.bar(id, 6);
        assert!(clients.is_running(id, 6) && !clients.is_running(id, 5));
        assert_eq!(clients.begin_among(id, 7, 1), (Admission::New, 1));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_replies_go_first() {
        let (mut clients, id) = met(10 * (100 + REPLY_OVERHEAD));
        for request in 1..=1000 {
            assert_eq!(clients.begin(id, request, 1), Admission::New);
            clients.finish(id, request, finished(100));
            assert!(clients.bytes <= clients.limit);
        }
        assert_eq!(clients.begin(id, 1000, 1), Admission::Finished);
        assert_eq!(clients.begin(id, 1, 1), Admission::Forgotten, "executed once, long ago");
        assert_eq!(clients.begin(id, 1001, 1), Admission::New);
    }

    #[test]
    fn a_tenant_with_more_clients_than_there_is_room_for_keeps_none_of_anothers_out() {
        let mut clients = Clients::new(1, 7);
        let now = Instant::default() + PRUNE_EVERY;
        let mut meet = |id: u64, tenant: u64, now: Instant| {
            clients.meet(ClientId::new(id), PeerId(id), None, now, TenantId(tenant)).is_ok()
        };
        let flood = (1..=70_000).filter(|id| meet(*id, 1, now)).count();
        assert!((53_248..CLIENTS_MAX).contains(&flood), "{flood}");
        let others = (100_000..104_000).filter(|id| meet(*id, 2, now)).count();
        assert!(others > 3_000, "{others}");
        assert!(meet(200_000, 3, now) && !meet(200_001, 1, now) && !meet(200_002, 2, now));
        let late = now + CLIENT_IDLE_MAX * 2;
        assert!(meet(200_003, 1, late), "those that fell silent are forgotten");
        assert_eq!(clients.tenants.values().sum::<usize>(), clients.known.len());
    }

    #[test]
    fn who_has_everything_remembered_costs_nobody_else_a_reply() {
        let (mut clients, greedy) = met(100 * (100 + REPLY_OVERHEAD));
        let modest: Vec<ClientId> = (10..15).map(ClientId::new).collect();
        for id in &modest {
            clients.meet(*id, PeerId(id.bits()), None, Instant::default(), OWNER).expect("room");
            for request in 1..=10 {
                assert_eq!(clients.begin(*id, request, 1), Admission::New);
                clients.finish(*id, request, finished(100));
            }
        }
        for request in 1..=1000 {
            assert_eq!(clients.begin(greedy, request, 1), Admission::New);
            clients.finish(greedy, request, finished(100));
            assert!(clients.bytes <= clients.limit);
        }
        for id in modest {
            assert!((1..=10).all(|request| clients.begin(id, request, 1) == Admission::Finished));
        }
        assert_eq!(clients.begin(greedy, 1000, 1), Admission::Finished);
        assert_eq!(clients.begin(greedy, 900, 1), Admission::Forgotten);
        let sum: usize = clients.known.iter().map(|(_, client)| client.bytes).sum();
        assert_eq!(clients.bytes, sum);
    }

    #[test]
    fn a_request_that_comes_far_out_of_its_turn_is_not_taken_in() {
        let (mut clients, id) = met(1 << 30);
        for request in (2..).step_by(2).take(2 * DEPTH_MAX + 2) {
            assert_eq!(clients.begin(id, request, 1), Admission::New);
            clients.finish(id, request, finished(0));
        }
        let middle = 2 * DEPTH_MAX as u64 + 3;
        assert_eq!(clients.begin(id, middle, 1), Admission::Forgotten);
        assert_eq!(clients.begin(id, middle - 1, 1), Admission::Finished);
        assert_eq!(clients.begin(id, 1, 1), Admission::New, "the oldest that it asks for");
        assert_eq!(clients.begin(id, 4 * DEPTH_MAX as u64, 1), Admission::Finished);
        assert_eq!(clients.begin(id, 4 * DEPTH_MAX as u64 - 1, 1), Admission::New, "one of the newest");
    }

    proptest! {
        #[test]
        fn shares_fill_the_whole_and_those_that_want_little_have_it(
            total in 0..10_000usize, sizes in prop::collection::vec(1..3000usize, 1..20)
        ) {
            let share = share_of(total, sizes.clone());
            let kept: usize = sizes.iter().map(|size| (*size).min(share)).sum();
            prop_assert!(kept <= total);
            let all: usize = sizes.iter().sum();
            prop_assert!(kept == all || kept + sizes.len() > total, "{} of {}", kept, total);
        }
    }

    #[test]
    fn the_last_number_there_is_may_be_forgotten_too() {
        let (mut clients, id) = met(0);
        assert_eq!(clients.begin(id, u64::MAX, 1), Admission::New);
        clients.finish(id, u64::MAX, finished(1));
        assert_eq!(clients.begin(id, u64::MAX - 1, 1), Admission::Forgotten);
    }

    #[test]
    fn a_client_keeps_its_address_and_may_change_its_entry() {
        let (mut clients, id) = (Clients::new(1, 7), ClientId::new(5));
        let [own, other] = [&b"own"[..], b"other"].map(|bytes| Address::from_bytes(bytes).expect("short"));
        let now = Instant::default();
        clients.meet(id, PeerId(1), Some(&own), now, OWNER).expect("room");
        assert_eq!(clients.meet(id, PeerId(2), None, now, OWNER), Err(Stranger::Impostor));
        assert_eq!(clients.meet(id, PeerId(2), Some(&other), now, OWNER), Err(Stranger::Impostor));
        assert_eq!(clients.peer(id), Some(PeerId(1)));
        assert_eq!(clients.meet(id, PeerId(2), Some(&own), now, OWNER), Ok(Vec::new()));
        assert_eq!(clients.meet(id, PeerId(2), None, now, OWNER), Ok(Vec::new()));
        assert_eq!(clients.peer(id), Some(PeerId(2)));
    }

    #[test]
    fn silent_clients_are_forgotten_but_not_while_a_request_of_theirs_runs() {
        let (mut clients, id) = met(10_000);
        clients.begin(id, 1, 1);
        let late = Instant::default() + CLIENT_IDLE_MAX * 2;
        assert_eq!(clients.meet(ClientId::new(6), PeerId(2), None, late, OWNER), Ok(Vec::new()));
        clients.finish(id, 1, finished(1));
        let later = late + PRUNE_EVERY;
        assert_eq!(clients.meet(ClientId::new(7), PeerId(3), None, later, OWNER), Ok(vec![PeerId(1)]));
        assert_eq!((clients.peer(id), clients.bytes), (None, 0));
    }

    #[test]
    fn a_peer_is_given_up_only_when_nobody_is_there_any_more() {
        let (mut clients, _) = met(10_000);
        let now = Instant::default();
        for (id, peer) in [(6, 1), (7, 2), (8, 2), (9, 3)] {
            clients.meet(ClientId::new(id), PeerId(peer), None, now, OWNER).expect("room");
        }
        let late = now + CLIENT_IDLE_MAX * 2;
        clients.meet(ClientId::new(6), PeerId(1), None, late, OWNER).expect("known");
        let mut gone = clients.meet(ClientId::new(10), PeerId(4), None, late, OWNER).expect("room");
        gone.sort_unstable();
        gone.dedup();
        assert_eq!(gone, [PeerId(2), PeerId(3)]);
        assert_eq!(clients.size().0, 2);
    }

    #[test]
    fn clients_go_on_where_another_peer_stands_for_their_address() {
        let (mut clients, id) = (Clients::new(1, 7), ClientId::new(5));
        let own = Address::from_bytes(b"own").expect("short");
        clients.meet(id, PeerId(1), Some(&own), Instant::default(), OWNER).expect("room");
        assert_eq!((clients.address_at(PeerId(1)), clients.address_at(PeerId(2))), (Some(own), None));
        clients.move_all(PeerId(1), PeerId(2));
        assert_eq!(clients.peer(id), Some(PeerId(2)));
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
                    0 | 1 => drop(clients.meet(ClientId::new(id), PeerId(place), address.as_ref(), now, OWNER)),
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
