//! How fast clients of a tenant go: where the tenant has limits of requests or bytes a second, a target admits requests on its pools at
//! the rate that the keeper of the list of pools allows it. It asks several times a second while clients want something, and says how
//! much. While the keeper doesn't answer, what it said last holds.
//!
//! A request is admitted when what was admitted before has been paid for by the time that has passed, and pays for the bytes that it
//! has moved when it ends. One that has to wait for long is sent away to come again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::{TargetPool, TargetPools};
use weir_proto::quota::Rate;
use weir_proto::{Der, TenantId};
use weir_rpc::Status;
use weir_runtime::sync::{Notify, Semaphore};
use weir_runtime::{Either, Handle, Instant, nanos, race};

/// How often a target asks how fast clients may go that are limited: what they want moves from target to target within twice that.
const ASK_INTERVAL: Duration = Duration::from_millis(250);

/// How often it asks whether others are limited.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Longest wait of a request. It holds a slot of the server meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Most requests of one tenant that wait at a target, and of all tenants: a part of the 4096 that it executes at once, so that those
/// who wait keep nobody out.
const WAITING_MAX: usize = 256;
const ALL_WAITING_MAX: usize = 1024;

/// Time for which clients that were slower than they may be are faster: a few of the intervals in which applications come.
const BURST: Duration = Duration::from_millis(100);

/// What one kind of limit lets through, in time: the next is admitted when what came before is paid for.
#[derive(Default)]
struct Meter {
    /// A second; 0: no limit.
    rate: Cell<u64>,
    paid_at: Cell<Instant>,
}

impl Meter {
    /// When the next is admitted.
    fn free_at(&self) -> Instant {
        if self.rate.get() == 0 { Instant::from_nanos(0) } else { self.paid_at.get() }
    }

    fn charge(&self, count: u64, now: Instant) {
        let rate = self.rate.get();
        if rate == 0 {
            return;
        }
        let earliest = now.as_nanos().saturating_sub(nanos(BURST));
        let begin = self.paid_at.get().as_nanos().max(earliest);
        self.paid_at.set(Instant::from_nanos(begin.saturating_add(scaled(1_000_000_000, count, rate))));
    }

    /// Goes on at another rate: what is not paid for yet takes the same work, in another time.
    fn set_rate(&self, rate: u64, now: Instant) {
        let before = self.rate.replace(rate);
        let debt = self.paid_at.get().nanos_since(now);
        if before > 0 && rate > 0 && before != rate && debt > 0 {
            self.paid_at.set(now.after_nanos(scaled(debt, before, rate)));
        }
        if before == 0 {
            self.paid_at.set(now);
        }
    }
}

/// `value · by / of`, or the largest number where that is more: rates are an administrator's.
#[expect(clippy::cast_possible_truncation, reason = "it is no more than the largest number")]
fn scaled(value: u64, by: u64, of: u64) -> u64 {
    let exact = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    exact.min(u128::from(u64::MAX)) as u64
}

/// The pace of one tenant's clients at this target.
struct Pace {
    operations: Meter,
    bandwidth: Meter,
    /// When the keeper was last asked.
    asked: Cell<Option<Instant>>,
    /// Requests that were admitted since, and bytes that they have moved.
    admitted: Cell<u64>,
    moved: Cell<u64>,
    /// Requests that were sent away since.
    refused: Cell<u64>,
    /// One waits for its turn, others for that one.
    turn: Semaphore,
    /// The rates have changed.
    changed: Notify,
}

impl Pace {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            operations: Meter::default(),
            bandwidth: Meter::default(),
            asked: Cell::new(None),
            admitted: Cell::new(0),
            moved: Cell::new(0),
            refused: Cell::new(0),
            turn: Semaphore::new(1),
            changed: Notify::new(),
        })
    }

    fn is_limited(&self) -> bool {
        self.operations.rate.get() > 0 || self.bandwidth.rate.get() > 0
    }

    fn is_due(&self, now: Instant) -> bool {
        let interval = if self.is_limited() { ASK_INTERVAL } else { LOOK_INTERVAL };
        self.asked.get().is_none_or(|last| now.saturating_duration_since(last) >= interval)
    }

    /// Whether clients have wanted something since the keeper was asked, or it never was.
    fn is_wanted(&self) -> bool {
        let waits = self.turn.available() == 0;
        waits || self.admitted.get() > 0 || self.refused.get() > 0 || self.asked.get().is_none()
    }

    fn free_at(&self) -> Instant {
        self.operations.free_at().max(self.bandwidth.free_at())
    }

    /// How fast clients would have gone since the keeper was asked last, and a new count. Those that wait would have moved as much
    /// each as those that didn't.
    fn take_wanted(&self, now: Instant) -> Rate {
        let since = self.asked.replace(Some(now));
        let passed = since.map_or(nanos(ASK_INTERVAL), |since| now.nanos_since(since)).max(1);
        let admitted = self.admitted.take();
        let waiting = self.turn.waiting() as u64 + u64::from(self.turn.available() == 0);
        let wanted = admitted.saturating_add(waiting).saturating_add(self.refused.take());
        let moved = scaled(self.moved.take(), wanted, admitted.max(1));
        let second = nanos(Duration::from_secs(1));
        Rate { operations: scaled(wanted, second, passed), bandwidth: scaled(moved, second, passed) }
    }

    fn follow(&self, allowed: Rate, now: Instant) {
        self.operations.set_rate(allowed.operations, now);
        self.bandwidth.set_rate(allowed.bandwidth, now);
        self.changed.notify_one();
    }
}

/// The paces of all tenants' clients at this target.
pub(crate) struct Paces {
    rt: Handle,
    known: RefCell<BTreeMap<TenantId, Rc<Pace>>>,
    /// The keeper is to be asked.
    due: Notify,
    /// Requests that wait at this moment.
    waiting: Cell<usize>,
    waited: Cell<u64>,
    sent_away: Cell<u64>,
}

/// Counts a request among those that wait, for as long as it does.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn among(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Paces {
    /// Asks the keeper from now on.
    pub(crate) fn start(rt: &Handle, pools: &Rc<TargetPools>) -> Rc<Self> {
        let paces = Rc::new(Self {
            rt: rt.clone(),
            known: RefCell::default(),
            due: Notify::new(),
            waiting: Cell::new(0),
            waited: Cell::new(0),
            sent_away: Cell::new(0),
        });
        rt.spawn(follow(Rc::downgrade(&paces), Rc::downgrade(pools)));
        paces
    }

    /// Requests that had to wait, and of these those that were sent away, since the start.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.waited.get(), self.sent_away.get())
    }

    fn of(&self, tenant: TenantId) -> Option<Rc<Pace>> {
        if tenant == TenantId::SYSTEM {
            return None;
        }
        let mut known = self.known.borrow_mut();
        Some(Rc::clone(known.entry(tenant).or_insert_with(Pace::new)))
    }

    /// Admits a request on a pool when its tenant's clients may go on.
    ///
    /// # Errors
    /// With `AGAIN` when that is not soon.
    pub(crate) async fn admit(&self, pool: &TargetPool, deadline: Instant) -> Result<(), Status> {
        let Some(pace) = self.of(pool.tenant()) else { return Ok(()) };
        let arrived = self.rt.now();
        if pace.is_due(arrived) {
            self.due.notify_one();
        }
        // Whoever comes first waits for nobody.
        if pace.is_limited() && (pace.turn.available() == 0 || pace.free_at() > arrived) {
            self.waited.set(self.waited.get() + 1);
            let until = deadline.min(arrived + WAIT_MAX);
            if !self.wait(&pace, until).await {
                pace.refused.set(pace.refused.get() + 1);
                self.sent_away.set(self.sent_away.get() + 1);
                let message = format!(
                    "pool {}: clients of tenant {} would go faster than its limits allow; come again, or raise the limits",
                    pool.label(),
                    pool.tenant()
                );
                return Err(Status::new(Der::AGAIN, message));
            }
        }
        pace.admitted.set(pace.admitted.get() + 1);
        pace.operations.charge(1, self.rt.now());
        Ok(())
    }

    /// Waits until the next is admitted. `false`: that is not before `until`.
    async fn wait(&self, pace: &Pace, until: Instant) -> bool {
        if pace.turn.waiting() >= WAITING_MAX || self.waiting.get() >= ALL_WAITING_MAX {
            return false;
        }
        let _counted = Waiting::among(&self.waiting);
        let Either::First(_turn) = race(pace.turn.acquire(), self.rt.sleep_until(until)).await else {
            return false;
        };
        loop {
            let (now, free_at) = (self.rt.now(), pace.free_at());
            if free_at <= now {
                return true;
            }
            if now >= until {
                return false;
            }
            if pace.is_due(now) {
                self.due.notify_one();
            }
            let changed = pace.changed.notified();
            race(self.rt.sleep_until(free_at.min(until).min(now + ASK_INTERVAL)), changed).await;
        }
    }

    /// Has bytes paid for that a request on a pool has moved.
    pub(crate) fn moved(&self, pool: &TargetPool, bytes: u64) {
        let Some(pace) = self.of(pool.tenant()).filter(|_| bytes > 0) else { return };
        pace.moved.set(pace.moved.get().saturating_add(bytes));
        pace.bandwidth.charge(bytes, self.rt.now());
    }

    /// Those whose clients have wanted something and may go at another rate by now.
    fn take_due(&self) -> (Vec<Rc<Pace>>, Vec<(TenantId, Rate)>) {
        let now = self.rt.now();
        let known = self.known.borrow();
        let due = known.iter().filter(|(_, pace)| pace.is_due(now) && pace.is_wanted());
        due.map(|(tenant, pace)| (Rc::clone(pace), (*tenant, pace.take_wanted(now)))).unzip()
    }
}

/// Asks the keeper whenever that is due.
async fn follow(paces: Weak<Paces>, pools: Weak<TargetPools>) {
    loop {
        let (Some(strong), Some(asking)) = (paces.upgrade(), pools.upgrade()) else { return };
        let notified = strong.due.notified();
        let (due, wanted) = strong.take_due();
        if !due.is_empty() {
            match asking.ask_rates(wanted).await {
                Ok(allowed) => {
                    let now = strong.rt.now();
                    due.iter().zip(allowed).for_each(|(pace, allowed)| pace.follow(allowed, now));
                }
                Err(error) => tracing::debug!(%error, "tenants' clients go on as fast as before"),
            }
        }
        drop((strong, asking));
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn what_is_admitted_is_paid_for_by_time() {
        let meter = Meter::default();
        meter.charge(1000, at(0));
        assert!(meter.free_at() <= at(0), "there is no limit");
        meter.set_rate(1000, at(1000));
        for _ in 0..500 {
            meter.charge(1, at(1000));
        }
        assert_eq!(meter.free_at(), at(1500));
        meter.set_rate(500, at(1250));
        assert_eq!(meter.free_at(), at(1750), "250 are left, at half the rate");
        meter.charge(5, at(5000));
        assert_eq!(meter.free_at(), at(4910), "some of what wasn't used is made up for");
    }

    #[test]
    fn who_waits_would_have_gone_as_fast_as_the_others() {
        let pace = Pace::new();
        pace.asked.set(Some(at(0)));
        pace.admitted.set(50);
        pace.moved.set(50 * 4096);
        pace.refused.set(50);
        let wanted = pace.take_wanted(at(500));
        assert_eq!(wanted, Rate { operations: 200, bandwidth: 200 * 4096 });
        assert_eq!(pace.take_wanted(at(1000)), Rate::default(), "it is counted once");
    }
}
