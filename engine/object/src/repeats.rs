//! Changes that a client sends again after this target was restarted.
//!
//! While a target runs, its RPC layer executes each request once, however often it comes. To keep that promise over a
//! restart, a change stores the identity of its request, with the epoch that it had, in the same log record. A later
//! change of the client removes the identity once the client says that it has finished with the request. Identities of
//! silent clients are swept when the request's deadline has passed.
//!
//! The room calls attributes of the store's shard. The operations call it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU64;
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::history::ChangeNames;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_proto::replica::ChangeId;
use weir_proto::{Epoch, PoolId};
use weir_rpc::Request;
use weir_runtime::{Handle, Instant};
use weir_store::{AttributeChange, AttributeError, Shard};

/// Scope of the attributes that hold identities.
const SCOPE: &[u8] = b"request";

/// Most identities that one change forgets: bounds its log record. Each change adds one, so this catches up.
const FORGET_MAX: usize = 8;

/// Most identities of a pool that a sweep forgets in one record.
const SWEEP_MAX: usize = 1024;

/// Most identities that a sweep looks at before others have the thread again: some 100 µs.
const LOOK_MAX: usize = 8192;

/// Identities of a pool beyond which less is kept: 110 MB of memory. A client that changes 15,000 things a second while it waits a
/// minute for one is below.
const KEPT_MAX: usize = 1 << 20;

/// Identities that each client keeps then: those of the highest numbers, a hundred times as many as it has credits.
const KEPT_FEW: usize = 4096;

/// How long an identity is kept then: twice as long as what most clients wait.
const KEPT_BRIEFLY: Duration = Duration::from_mins(2);

/// How long the name of a change is kept at least that its client may send to one leader after another: each of its requests has a
/// deadline of its own, and the change has a later one. Longer than mounts wait for an engine.
const KEPT_FOR_LEADERS: Duration = Duration::from_mins(10);

/// How long after a request's deadline its identity is kept: the clocks of client and target may differ.
const GRACE: Duration = Duration::from_nanos(2 * SKEW_MAX_NS);

/// A request of a client: incarnation of the client, and its number.
pub type Identity = (u64, u64);

/// What is known of an executed change.
#[derive(Clone, Copy)]
struct ExecutedChange {
    /// Wall time, in nanoseconds, until which its identity is kept.
    until: u64,
    /// Its epoch. `None`: a version that did not store it has executed it.
    epoch: Option<NonZeroU64>,
    /// Whether other targets have it, too.
    is_replicated: bool,
}

/// Stands behind an epoch that other targets have, too.
const REPLICATED: u8 = 1;

impl ExecutedChange {
    /// As it is stored.
    fn encode(self) -> Vec<u8> {
        let mut epoch = self.epoch.map_or(Vec::new(), |epoch| epoch.get().to_be_bytes().to_vec());
        if self.is_replicated && !epoch.is_empty() {
            epoch.push(REPLICATED);
        }
        [self.until.to_be_bytes().to_vec(), epoch].concat()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (until, epoch) = value.split_first_chunk()?;
        let (epoch, is_replicated) = match epoch {
            [epoch @ .., REPLICATED] if epoch.len() == size_of::<u64>() => (epoch, true),
            epoch => (epoch, false),
        };
        let epoch = match epoch {
            [] => None,
            epoch => NonZeroU64::new(u64::from_be_bytes(epoch.try_into().ok()?)),
        };
        Some(Self { until: u64::from_be_bytes(*until), epoch, is_replicated })
    }
}

#[derive(Default)]
struct PoolRepeats {
    /// What is stored of executed changes, by client and number.
    stored: BTreeMap<u64, BTreeMap<u64, ExecutedChange>>,
    /// How many are stored.
    count: usize,
}

impl PoolRepeats {
    /// What a client that has finished with all requests below `acked` forgets with its next change.
    fn superfluous(&self, client: u64, acked: u64) -> Vec<u64> {
        let Some(numbers) = self.stored.get(&client) else { return Vec::new() };
        let surplus = if self.count > KEPT_MAX { numbers.len().saturating_sub(KEPT_FEW) } else { 0 };
        let old = numbers.keys().enumerate().take_while(|(at, number)| **number < acked || *at < surplus);
        old.map(|(_, number)| *number).take(FORGET_MAX).collect()
    }

    /// Looks for identities, from one on, that are kept no longer. Returns some, and where to go on if that isn't the end.
    fn outdated(&self, from: Identity, now: u64) -> (Vec<Identity>, Option<Identity>) {
        let numbers = self.stored.range(from.0..).flat_map(|(client, numbers)| {
            let first = if *client == from.0 { from.1 } else { 0 };
            numbers.range(first..).map(|(number, kept)| ((*client, *number), kept.until))
        });
        let mut old = Vec::new();
        for (looked, (identity, until)) in numbers.enumerate() {
            if looked == LOOK_MAX || old.len() == SWEEP_MAX {
                return (old, Some(identity));
            }
            if until < now {
                old.push(identity);
            }
        }
        (old, None)
    }

    fn get(&self, (client, number): Identity) -> Option<ExecutedChange> {
        self.stored.get(&client)?.get(&number).copied()
    }

    /// Until when to keep the identity of a request that may come again until `until`.
    fn kept_until(&self, now: u64, until: u64) -> u64 {
        let briefly = u64::try_from(KEPT_BRIEFLY.as_nanos()).unwrap_or(u64::MAX);
        if self.count > KEPT_MAX { until.min(now.saturating_add(briefly)) } else { until }
    }

    fn add(&mut self, (client, number): Identity, kept: ExecutedChange) {
        let before = self.stored.entry(client).or_default().insert(number, kept);
        self.count += usize::from(before.is_none());
    }

    fn forget(&mut self, identity: Identity) {
        let Some(numbers) = self.stored.get_mut(&identity.0) else { return };
        self.count -= usize::from(numbers.remove(&identity.1).is_some());
        if numbers.is_empty() {
            self.stored.remove(&identity.0);
        }
    }
}

/// Identities of executed changes, by pool.
#[derive(Default)]
pub struct Repeats {
    pools: RefCell<HashMap<PoolId, PoolRepeats>>,
}

/// What a change stores and forgets beside its own effect.
pub struct Marks {
    pub identity: Identity,
    /// Wall time, in nanoseconds, until which the identity is kept.
    pub until: u64,
    /// Numbers of the same client that go.
    pub forgotten: Vec<u64>,
    /// Whether other targets make the change, too.
    pub is_replicated: bool,
}

impl Marks {
    /// To be committed with the change, at its epoch.
    pub fn along(&self, epoch: Epoch) -> Vec<AttributeChange> {
        let forgotten = self.forgotten.iter().map(|number| change((self.identity.0, *number), None));
        core::iter::once(change(self.identity, Some(self.kept(epoch)))).chain(forgotten).collect()
    }

    fn kept(&self, epoch: Epoch) -> ExecutedChange {
        let (until, is_replicated) = (self.until, self.is_replicated);
        ExecutedChange { until, epoch: NonZeroU64::new(epoch.0), is_replicated }
    }
}

/// A change that was executed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The epoch that it had. `None`: that was not stored.
    pub epoch: Option<Epoch>,
}

impl Repeats {
    /// The result of a change that was executed before the target was restarted, or before its client was silent for so
    /// long that the RPC layer has forgotten it. `None`: it was not executed, or no client may send it again.
    pub fn executed(&self, pool: &TargetPool, request: &Request) -> Option<Executed> {
        self.executed_as(pool, identity(request))
    }

    /// The same of a change that has an identity of its own.
    pub fn executed_as(&self, pool: &TargetPool, identity: Identity) -> Option<Executed> {
        let kept = self.with(pool, |repeats| repeats.get(identity))?;
        Some(Executed { epoch: kept.epoch.map(|epoch| Epoch(epoch.get())) })
    }

    /// What to store with the change that `request` asks for.
    pub fn marks(&self, rt: &Handle, pool: &TargetPool, request: &Request) -> Marks {
        let named = (identity(request), request.acked());
        let left = request.deadline().saturating_duration_since(rt.now());
        Marks { is_replicated: false, ..self.marks_for(rt, pool, named, left) }
    }

    /// The same of a change that has an identity of its own, and that other targets make, too. Its client is done with all numbers
    /// below `acked`.
    pub fn marks_as(
        &self,
        rt: &Handle,
        pool: &TargetPool,
        named: (Identity, u64),
        deadline: Instant,
    ) -> Marks {
        let left = deadline.saturating_duration_since(rt.now()).max(KEPT_FOR_LEADERS);
        self.marks_for(rt, pool, named, left)
    }

    fn marks_for(
        &self,
        rt: &Handle,
        pool: &TargetPool,
        (identity, acked): (Identity, u64),
        left: Duration,
    ) -> Marks {
        let (left, now) = (left + GRACE, rt.wall_ns());
        let until = now.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let (until, forgotten) = self
            .with(pool, |repeats| (repeats.kept_until(now, until), repeats.superfluous(identity.0, acked)));
        Marks { identity, until, forgotten, is_replicated: true }
    }

    /// The change was committed at this epoch.
    pub fn committed(&self, pool: &TargetPool, marks: &Marks, epoch: Epoch) {
        self.with(pool, |repeats| {
            repeats.add(marks.identity, marks.kept(epoch));
            for number in &marks.forgotten {
                repeats.forget((marks.identity.0, *number));
            }
        });
    }

    /// Names of executed changes that other targets have made, too, some at a time, from one on.
    pub fn names(&self, pool: &TargetPool, from: ChangeId, most: usize) -> ChangeNames {
        self.with(pool, |repeats| {
            let mut all = repeats.stored.range(from.client..).flat_map(|(client, numbers)| {
                let first = if *client == from.client { from.number } else { 0 };
                let replicated = numbers.range(first..).filter(|(_, kept)| kept.is_replicated);
                replicated.map(|(number, kept)| {
                    let id = ChangeId { client: *client, number: *number };
                    (id, kept.until, kept.epoch.map_or(0, NonZeroU64::get))
                })
            });
            let names = all.by_ref().take(most).collect();
            ChangeNames { names, next: all.next().map(|(id, ..)| id) }
        })
    }

    /// Takes over names of changes that another target has executed, with the epochs that they have there.
    ///
    /// # Errors
    /// When they can't be stored.
    pub async fn take_over(
        &self,
        pool: &TargetPool,
        names: &[(ChangeId, u64, u64)],
    ) -> Result<(), AttributeError> {
        for some in names.chunks(SWEEP_MAX) {
            let kept = some.iter().map(|(id, until, epoch)| {
                let (until, epoch) = (*until, NonZeroU64::new(*epoch));
                let kept = ExecutedChange { until, epoch, is_replicated: true };
                ((id.client, id.number), kept)
            });
            let new: Vec<(Identity, ExecutedChange)> = self.with(pool, |repeats| {
                let known = |identity| repeats.get(identity).map(|kept: ExecutedChange| kept.epoch);
                kept.filter(|(identity, kept)| known(*identity) != Some(kept.epoch)).collect()
            });
            let changes: Vec<_> = new.iter().map(|(identity, kept)| change(*identity, Some(*kept))).collect();
            pool.shard().change_attributes(&changes).await?;
            self.with(pool, |repeats| new.iter().for_each(|(identity, kept)| repeats.add(*identity, *kept)));
        }
        Ok(())
    }

    /// Forgets names of changes that other targets should have made, too, up to an epoch, and of which none has told: they never
    /// happened.
    ///
    /// # Errors
    /// When that can't be stored.
    pub async fn roll_back(
        &self,
        pool: &TargetPool,
        up_to: Epoch,
        told: &HashSet<Identity>,
    ) -> Result<(), AttributeError> {
        let is_rogue = |identity: &Identity, kept: &ExecutedChange| {
            let is_old = kept.epoch.is_some_and(|epoch| epoch.get() <= up_to.0);
            kept.is_replicated && is_old && !told.contains(identity)
        };
        let rogue: Vec<Identity> = self.with(pool, |repeats| {
            let all = repeats.stored.iter().flat_map(|(client, numbers)| {
                numbers.iter().map(|(number, kept)| ((*client, *number), kept))
            });
            all.filter(|(identity, kept)| is_rogue(identity, kept)).map(|(identity, _)| identity).collect()
        });
        for some in rogue.chunks(SWEEP_MAX) {
            let changes: Vec<_> = some.iter().map(|identity| change(*identity, None)).collect();
            pool.shard().change_attributes(&changes).await?;
            self.with(pool, |repeats| some.iter().for_each(|identity| repeats.forget(*identity)));
        }
        Ok(())
    }

    fn with<T>(&self, pool: &TargetPool, work: impl FnOnce(&mut PoolRepeats) -> T) -> T {
        let mut pools = self.pools.borrow_mut();
        work(pools.entry(pool.id()).or_insert_with(|| load(pool.shard())))
    }

    /// Forgets identities whose requests can't come again, and pools that are gone.
    pub async fn sweep(&self, rt: &Handle, pools: &[std::rc::Rc<TargetPool>]) {
        self.pools.borrow_mut().retain(|id, _| pools.iter().any(|pool| pool.id() == *id));
        for pool in pools {
            let mut next = Some((0, 0));
            while let Some(from) = next {
                next = self.sweep_some(rt, pool, from).await;
                rt.yield_now().await;
            }
        }
    }

    /// Forgets some of a pool's old identities, from one on. Returns where to go on.
    async fn sweep_some(&self, rt: &Handle, pool: &TargetPool, from: Identity) -> Option<Identity> {
        let (old, next) = self.with(pool, |repeats| repeats.outdated(from, rt.wall_ns()));
        if old.is_empty() {
            return next;
        }
        let changes: Vec<_> = old.iter().map(|identity| change(*identity, None)).collect();
        if let Err(error) = pool.shard().change_attributes(&changes).await {
            tracing::debug!(pool = %pool.id(), %error, "identities of old requests stay until the next sweep");
            return None;
        }
        self.with(pool, |repeats| old.iter().for_each(|identity| repeats.forget(*identity)));
        next
    }
}

fn identity(request: &Request) -> Identity {
    (request.client().id.bits(), request.id())
}

fn change(identity: Identity, kept: Option<ExecutedChange>) -> AttributeChange {
    let name = [identity.0.to_be_bytes(), identity.1.to_be_bytes()].concat();
    AttributeChange { scope: SCOPE.to_vec(), name, value: kept.map(ExecutedChange::encode) }
}

/// What was stored before the target was started.
fn load(shard: &Shard) -> PoolRepeats {
    let mut repeats = PoolRepeats::default();
    let mut from = Vec::new();
    loop {
        let page = shard.attributes(SCOPE, &from, SWEEP_MAX);
        let Some((last, _)) = page.last() else { return repeats };
        // The least name greater than the last one.
        from = [last.as_slice(), &[0]].concat();
        for (name, value) in page {
            let (Some(identity), Some(kept)) = (split(&name), ExecutedChange::decode(&value)) else {
                continue;
            };
            repeats.add(identity, kept);
        }
    }
}

fn split(name: &[u8]) -> Option<Identity> {
    let (client, number) = name.split_at_checked(8)?;
    Some((u64::from_be_bytes(client.try_into().ok()?), u64::from_be_bytes(number.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(until: u64) -> ExecutedChange {
        ExecutedChange { until, epoch: NonZeroU64::new(7), is_replicated: false }
    }

    #[test]
    fn what_is_stored_of_a_change_is_read_again_whoever_stored_it() {
        let read = |value: &[u8]| {
            ExecutedChange::decode(value).map(|kept| (kept.until, kept.epoch.map(NonZeroU64::get)))
        };
        assert_eq!(read(&until(5).encode()), Some((5, Some(7))));
        assert_eq!(read(&5_u64.to_be_bytes()), Some((5, None)), "by a version that stored no epoch");
        for damaged in [0, 7, 9, 15, 17, 18] {
            assert_eq!(read(&vec![2; damaged]), None, "{damaged} bytes");
        }
        for is_replicated in [false, true] {
            let kept = ExecutedChange { is_replicated, ..until(5) };
            let again = ExecutedChange::decode(&kept.encode()).map(|kept| kept.is_replicated);
            assert_eq!(again, Some(is_replicated));
        }
    }

    /// A client makes a change.
    fn change_of(repeats: &mut PoolRepeats, client: u64, number: u64, acked: u64) {
        let old = repeats.superfluous(client, acked);
        repeats.add((client, number), until(1));
        for number in old {
            repeats.forget((client, number));
        }
    }

    #[test]
    fn what_a_client_has_finished_with_goes_a_few_at_a_time() {
        let mut repeats = PoolRepeats::default();
        for number in 1..=100 {
            change_of(&mut repeats, 7, number, 1);
        }
        assert_eq!(repeats.count, 100, "all may come again");
        let knows = |identity| repeats.get(identity).is_some();
        assert!(knows((7, 100)) && !knows((7, 101)) && !knows((8, 1)));
        assert_eq!(repeats.kept_until(5, u64::MAX), u64::MAX);
        for number in 101..=120 {
            change_of(&mut repeats, 7, number, 99);
        }
        let kept: Vec<u64> = repeats.stored[&7].keys().copied().collect();
        assert_eq!(kept, (99..=120).collect::<Vec<_>>());
        for number in kept {
            repeats.forget((7, number));
        }
        assert!(repeats.count == 0 && repeats.stored.is_empty());
    }

    #[test]
    fn a_sweep_finds_what_is_outdated_in_steps_that_are_short() {
        let mut repeats = PoolRepeats::default();
        for client in 1..=3 {
            for number in 1..=10_000 {
                repeats.add((client, number), until(if number % 3 == 0 { 10 } else { 20 }));
            }
        }
        let (mut next, mut found, mut steps) = (Some((0, 0)), 0, 0);
        while let Some(from) = next {
            let (old, then) = repeats.outdated(from, 15);
            assert!(old.len() <= SWEEP_MAX && old.iter().all(|(_, number)| number % 3 == 0));
            (found, steps, next) = (found + old.len(), steps + 1, then);
            for identity in old {
                repeats.forget(identity);
            }
        }
        assert_eq!((found, repeats.count, repeats.outdated((0, 0), 15).0.len()), (9_999, 20_001, 0));
        assert!((10..=11).contains(&steps), "{steps}");
        let all_kept = repeats.outdated((0, 0), 5);
        assert_eq!((all_kept.0.len(), all_kept.1.is_some()), (0, true), "not all are looked at at once");
    }

    #[test]
    fn who_finishes_with_nothing_takes_no_more_than_there_is_room_for() {
        let mut repeats = PoolRepeats::default();
        change_of(&mut repeats, 8, 1, 1);
        for number in 1..=KEPT_MAX as u64 + 1000 {
            change_of(&mut repeats, 7, number, 1);
            assert!(repeats.count <= KEPT_MAX + 1, "{}", repeats.count);
        }
        change_of(&mut repeats, 8, 2, 1);
        assert_eq!(repeats.stored[&8].len(), 2, "others keep what they need");
        assert_eq!(repeats.kept_until(5, u64::MAX), 5 + 120_000_000_000, "for a while");
        assert_eq!(repeats.kept_until(5, 60_000_000_000), 60_000_000_000);
        assert!(repeats.stored[&7].contains_key(&(KEPT_MAX as u64 + 1000)), "the newest");
        let count: usize = repeats.stored.values().map(BTreeMap::len).sum();
        assert_eq!(repeats.count, count);
    }
}
