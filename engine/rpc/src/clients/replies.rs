//! Replies that clients may ask for again, and the decision whether a request is executed.

use super::entries::{Entry, Finished};
use super::{Client, Clients};
use crate::wire::Caller;
use weir_runtime::Instant;

/// How many requests of a client may be both above and below one that comes late. A client within its credits
/// has acknowledged nearly all requests below the oldest that it still repeats. To insert an entry, those above
/// it are moved.
const DEPTH_MAX: usize = 1024;

/// One part in this many of the limit is free after replies had to be forgotten. To look at half a million takes
/// some hundredths of a second, and some ten thousand more fit then.
const SPARED: usize = 8;

impl Client {
    /// A request runs from now on; `at`: its place among the entries. Returns 1 if it is the only running
    /// request, else 0.
    #[inline(always)]
    fn start(&mut self, at: usize, request: u64) -> usize {
        self.entries.insert(at, request);
        self.running += 1;
        self.tenant.running.set(self.tenant.running.get() + 1);
        usize::from(self.running == 1)
    }

    /// A request has ended. Returns 1 if it was the last running request, else 0.
    fn ended(&mut self) -> usize {
        let of_tenant = self.tenant.running.get();
        assert!(self.running > 0 && of_tenant >= self.running, "a request ends that was not counted");
        self.running -= 1;
        self.tenant.running.set(of_tenant - 1);
        usize::from(self.running == 0)
    }

    /// Forgets replies that the client has acknowledged. Returns their bytes.
    #[inline(always)]
    fn forget_acked(&mut self) -> usize {
        let before = self.bytes;
        while let Some(entry) = self.entries.take_finished(self.acked) {
            self.bytes -= entry.weight();
        }
        self.entries.trim();
        before - self.bytes
    }

    /// Forgets the oldest replies until at most `share` bytes are left. Returns the bytes of those forgotten.
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
            // The request must never be executed again.
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
    /// It is being executed.
    Running,
    /// It was executed; send its reply again.
    Finished,
    /// The client has acknowledged it.
    Stale,
    /// It was executed, or comes later than half a million others. Its reply is not remembered.
    Forgotten,
    /// It comes far out of order, and its outcome is not remembered.
    Misplaced,
}

/// Requests that run when another one comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RunningCounts {
    /// Of its client.
    pub(crate) client: usize,
    /// Of its tenant.
    pub(crate) tenant: usize,
}

impl Clients {
    /// A reply that is remembered.
    pub(crate) fn finished(&self, id: Caller, request: u64) -> Option<&Finished> {
        match self.known.get(id)?.entries.get(request)? {
            Entry::Finished(finished, _) => Some(finished),
            Entry::Running => None,
        }
    }

    /// Decides on a request of a known client. `acked`: the client has finished with all lower ids.
    pub(crate) fn begin(&mut self, id: Caller, request: u64, acked: u64) -> Admission {
        self.begin_among(id, request, acked, Instant::default()).0
    }

    /// The same for a request that may be repeated until `until`. Returns also how many others run. Acknowledged
    /// replies are forgotten when a request ends, after its reply was sent, and before a request that is not the
    /// newest, because its place depends on them.
    #[inline(always)]
    pub(crate) fn begin_among(
        &mut self,
        id: Caller,
        request: u64,
        acked: u64,
        until: Instant,
    ) -> (Admission, RunningCounts) {
        let Some(client) = self.known.get_mut(id) else {
            return (Admission::Stale, RunningCounts::default());
        };
        client.acked = client.acked.max(acked);
        let others = RunningCounts { client: client.running, tenant: client.tenant.running.get() };
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
                return (Admission::Misplaced, others);
            }
            Err(at) => at,
        };
        client.owed = client.owed.max(until);
        self.busy += client.start(at, request);
        (Admission::New, others)
    }

    /// Admits a request whose reply is not remembered, for a handler that recognizes repeats by itself.
    #[cold]
    pub(crate) fn begin_again(&mut self, id: Caller, request: u64) -> Admission {
        let Some(client) = self.known.get_mut(id) else { return Admission::Stale };
        if let Err(at) = client.entries.at(request) {
            self.busy += client.start(at, request);
        }
        Admission::New
    }

    /// Whether a request is being executed.
    pub(crate) fn is_running(&self, id: Caller, request: u64) -> bool {
        let entry = self.known.get(id).and_then(|client| client.entries.get(request));
        matches!(entry, Some(Entry::Running))
    }

    /// The client has given a request up. A copy that arrives later is not executed.
    pub(crate) fn bar(&mut self, id: Caller, request: u64) {
        if self.begin(id, request, 0) == Admission::New {
            let status = weir_proto::Der::CANCELED.0;
            self.finish(id, request, Finished { status, body: Vec::new() });
        }
    }

    /// Remembers the outcome of a request.
    #[inline(always)]
    pub(crate) fn finish(&mut self, id: Caller, request: u64, finished: Finished) {
        let Some(client) = self.known.get_mut(id) else { return };
        self.bytes -= client.forget_acked();
        if request < client.acked {
            if let Some(Entry::Running) = client.entries.remove(request) {
                self.busy -= client.ended();
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
            self.busy -= client.ended();
        }
        if self.bytes > self.limit {
            self.shrink();
        }
    }

    /// A request was not executed after all. It may come again.
    pub(crate) fn forget(&mut self, id: Caller, request: u64) {
        let Some(client) = self.known.get_mut(id) else { return };
        let entry = client.entries.remove(request);
        if matches!(entry, Some(Entry::Running)) {
            self.busy -= client.ended();
        }
        let weight = entry.map_or(0, |entry| entry.weight());
        client.bytes -= weight;
        self.bytes -= weight;
    }

    /// Forgets replies until the limit is kept, with some room to spare because it looks at all entries. Clients
    /// with the most bytes lose replies first, so that they cost no other client a reply.
    fn shrink(&mut self) {
        self.bytes -= self.known.values_mut().map(Client::forget_acked).sum::<usize>();
        let sizes = self.known.iter().map(|(_, client)| client.bytes).filter(|bytes| *bytes > 0).collect();
        let share = share_of(self.limit - self.limit / SPARED, sizes);
        for client in self.known.values_mut().filter(|client| client.bytes > share) {
            self.bytes -= client.forget_replies(share);
        }
    }
}

/// The largest share of each for which all together take at most `total`. Those that need less leave the rest to
/// the others.
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
    use super::super::entries::REPLY_OVERHEAD;
    use super::super::tests::{caller, met};
    use super::*;
    use proptest::prelude::*;
    use weir_fabric::PeerId;

    fn finished(len: usize) -> Finished {
        Finished { status: 0, body: vec![0; len] }
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
        let other = caller(6);
        clients.meet(other, PeerId(2), None, Instant::default()).expect("room");
        for request in 1..=5 {
            assert_eq!(clients.begin(done, request, 1), Admission::New);
            clients.finish(done, request, finished(0));
        }
        // The client takes its time with the next request.
        let now = Instant::default();
        assert_eq!(clients.begin_among(done, 6, 6, now), (Admission::New, RunningCounts::default()));
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
        assert_eq!(clients.begin(id, middle, 1), Admission::Misplaced);
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
        let others = RunningCounts { client: 1, tenant: 1 };
        assert_eq!(clients.begin_among(id, 7, 1, Instant::default()), (Admission::New, others));
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
    fn replies_that_are_forgotten_leave_no_room_behind() {
        let (mut clients, id) = met(40_000 * REPLY_OVERHEAD);
        let room = |clients: &Clients| clients.known.get(id).map_or(0, |client| client.entries.0.capacity());
        for begin in [0, 100_000] {
            // More than fit, so that the oldest have to go.
            for request in begin + 1..=begin + 50_000 {
                assert_eq!(clients.begin(id, request, begin + 1), Admission::New);
                clients.finish(id, request, finished(0));
            }
            assert!(room(&clients) > 30_000);
            assert_eq!(clients.begin(id, begin + 60_000, begin + 60_000), Admission::New);
            clients.finish(id, begin + 60_000, finished(0));
            assert!(clients.bytes == REPLY_OVERHEAD && room(&clients) <= 1024, "{}", room(&clients));
        }
        // Replies that are forgotten for lack of memory give back capacity, too.
        for request in 200_000..240_000 {
            assert_eq!(clients.begin(id, request, 200_000), Admission::New);
            clients.finish(id, request, finished(0));
        }
        assert!(room(&clients) > 30_000);
        for other in (10..18).map(caller) {
            clients.meet(other, PeerId(2), None, Instant::default()).expect("room");
            for request in 1..=10 {
                assert_eq!(clients.begin(other, request, 1), Admission::New);
                clients.finish(other, request, finished(999 * REPLY_OVERHEAD));
            }
        }
        assert!(room(&clients) < 20_000, "{}", room(&clients));
    }

    #[test]
    fn clients_that_have_had_many_replies_remembered_keep_little_room_for_more() {
        let (mut clients, id) = met(usize::MAX);
        for request in 1..=1024 {
            assert_eq!(clients.begin(id, request, 1), Admission::New);
            clients.finish(id, request, finished(0));
        }
        assert_eq!(clients.begin(id, 1025, 1025), Admission::New);
        clients.finish(id, 1025, finished(0));
        let room = clients.known.get(id).map_or(0, |client| client.entries.0.capacity());
        let kept = room * size_of::<(u64, Entry)>();
        assert!(kept <= 16 << 10, "{kept} bytes, of each of 65,536 clients");
    }

    #[test]
    fn who_has_everything_remembered_costs_nobody_else_a_reply() {
        let (mut clients, greedy) = met(100 * (100 + REPLY_OVERHEAD));
        let modest: Vec<_> = (10..15).map(caller).collect();
        for id in &modest {
            clients.meet(*id, PeerId(id.id.bits()), None, Instant::default()).expect("room");
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
        assert_eq!(clients.begin(id, middle, 1), Admission::Misplaced);
        assert_eq!(clients.begin(id, middle - 1, 1), Admission::Finished);
        assert_eq!(clients.begin(id, 1, 1), Admission::New, "the oldest that it asks for");
        assert_eq!(clients.begin(id, 4 * DEPTH_MAX as u64, 1), Admission::Finished);
        assert_eq!(clients.begin(id, 4 * DEPTH_MAX as u64 - 1, 1), Admission::New, "one of the newest");
    }

    #[test]
    fn the_last_number_there_is_may_be_forgotten_too() {
        let (mut clients, id) = met(0);
        assert_eq!(clients.begin(id, u64::MAX, 1), Admission::New);
        clients.finish(id, u64::MAX, finished(1));
        assert_eq!(clients.begin(id, u64::MAX - 1, 1), Admission::Forgotten);
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
}
