//! How much of a target's time rebuilds get: all of it while no client asks, and as much as doesn't have clients wait for long otherwise.
//!
//! A target works for its own rebuilds when it takes pages of history in, and for those of others when it reads them out. Both go one page
//! after another with pauses in between, as long as a *share* of the time says. While clients ask, the share follows how long they wait: it
//! falls by half when the slowest hundredth of their requests takes more than twice as long as without rebuilds, and grows by half again
//! when it doesn't. How long they wait without rebuilds is found out by a short pause of all pages, every ten seconds. The share never
//! falls below a floor, and no pause is long, so that each rebuild goes on and ends.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use weir_runtime::{Handle, Instant};

use crate::admission::{IoMetrics, LatencyCounts};

/// How often the share is judged. A page takes some milliseconds, and a busy target answers some hundred requests in this time.
const WINDOW: Duration = Duration::from_millis(250);

/// How long pages pause to find out how long clients wait without them.
const LOOK: Duration = Duration::from_millis(250);

/// How long pages have paused before: requests that came meanwhile have waited for the last page.
const SETTLED: Duration = Duration::from_millis(100);

/// How long what was found out then counts: with the two above it costs a thirtieth of the time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Fewer requests in a window are as good as none: they can't wait for each other, and say little of how long others would wait.
const FEW: u64 = 4;

/// Which part of the requests may take longer: the slowest hundredth.
const MAY_BE_SLOW: f64 = 0.01;

/// How many requests may take longer where a hundredth is less: one, which says nothing of the others.
const MAY_BE_SLOW_LEAST: f64 = 1.5;

/// What clients may wait at most beside what they wait without rebuilds: as long again.
const SLOWER_MAX: u32 = 2;

/// Waits up to here are no reason to slow down: a device that answers within it isn't busy.
const UNNOTICED: Duration = Duration::from_micros(200);

/// The least share of the time, unless configured.
pub const FLOOR_DEFAULT: f64 = 0.05;

/// Lowest floor: the pause behind a page is bounded anyway.
const FLOOR_MIN: f64 = 0.01;

/// Longest pause behind one page: far below the time for which the sender of pages keeps its history as it is.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Longest wait for a turn: within the time for which the asker waits for a page.
const TURN_MAX: Duration = Duration::from_secs(4);

/// What is being found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// How long clients wait with rebuilds.
    Work,
    /// Nothing yet: what came with rebuilds under way is answered.
    Settle,
    /// How long they wait without.
    Look,
}

/// How long all but the slowest requests have taken.
#[expect(clippy::cast_precision_loss, reason = "a part of them is what is wanted")]
fn slowest(counts: &LatencyCounts) -> Duration {
    let count = counts.count().max(1) as f64;
    counts.quantile(1.0 - MAY_BE_SLOW.max(MAY_BE_SLOW_LEAST / count))
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// When the window began, and what was counted until then.
    since: Instant,
    counted: LatencyCounts,
    /// How long clients wait without rebuilds, and when that was found out.
    quiet: Option<(Duration, Instant)>,
    share: f64,
    /// No page begins before.
    not_before: Instant,
    /// Pages under way.
    pages: usize,
}

/// Gives turns to work for rebuilds.
pub(crate) struct Pace {
    rt: Handle,
    metrics: Rc<IoMetrics>,
    floor: Cell<f64>,
    state: RefCell<State>,
}

/// A turn, which ends when it is dropped.
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    began: Instant,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pace.end(self.began);
    }
}

impl Pace {
    pub(crate) fn new(rt: Handle, metrics: Rc<IoMetrics>) -> Self {
        let now = rt.now();
        let state = State {
            phase: Phase::Work,
            since: now,
            counted: LatencyCounts::default(),
            quiet: None,
            share: 1.0,
            not_before: now,
            pages: 0,
        };
        Self { rt, metrics, floor: Cell::new(FLOOR_DEFAULT), state: RefCell::new(state) }
    }

    /// The least share from now on, from [`FLOOR_MIN`] to 1: with 1 rebuilds never wait for clients.
    pub(crate) fn set_floor(&self, floor: f64) {
        self.floor.set(floor.clamp(FLOOR_MIN, 1.0));
    }

    /// Which part of its time the target works for rebuilds at most, by what is known now.
    pub(crate) fn share(&self) -> f64 {
        self.state.borrow().share.max(self.floor.get())
    }

    /// Waits until a page may be worked on.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let latest = self.rt.now() + TURN_MAX;
        loop {
            self.judge();
            let (now, next) = (self.rt.now(), self.state.borrow().not_before.min(latest));
            if now >= next {
                break;
            }
            self.rt.sleep_until(next).await;
        }
        self.state.borrow_mut().pages += 1;
        Turn { pace: self, began: self.rt.now() }
    }

    fn end(&self, began: Instant) {
        let now = self.rt.now();
        let took = now.saturating_duration_since(began);
        let pause = took.mul_f64(1.0 / self.share() - 1.0).min(PAUSE_MAX);
        let state = &mut *self.state.borrow_mut();
        state.pages -= 1;
        // Of pages that were worked on at once each has its pause.
        state.not_before = state.not_before.max(now) + pause;
        if state.phase != Phase::Work {
            // What clients have waited for until now was this page.
            self.begin_window(state, Phase::Settle);
            state.not_before = state.not_before.max(now + SETTLED);
        }
        state.not_before = state.not_before.min(now + PAUSE_MAX);
    }

    fn begin_window(&self, state: &mut State, phase: Phase) {
        (state.phase, state.since, state.counted) = (phase, self.rt.now(), self.metrics.all());
    }

    /// Looks at how long clients have waited, when it is time to.
    fn judge(&self) {
        let now = self.rt.now();
        let state = &mut *self.state.borrow_mut();
        let lasts = now.saturating_duration_since(state.since);
        let least = match state.phase {
            Phase::Work => WINDOW,
            Phase::Settle => SETTLED,
            Phase::Look => LOOK,
        };
        if lasts < least || (state.phase != Phase::Work && state.pages > 0) {
            return;
        }
        // Long ago nobody has worked for rebuilds.
        if lasts > LOOK_AGAIN {
            (state.quiet, state.share) = (None, 1.0);
            return self.begin_window(state, Phase::Work);
        }
        let counts = self.metrics.all().since(&state.counted);
        let asked = counts.count();
        let waited = slowest(&counts);
        match (state.phase, state.quiet) {
            (Phase::Settle, _) => {
                self.begin_window(state, Phase::Look);
                state.not_before = state.not_before.max(now + LOOK);
            }
            (Phase::Look, _) => {
                state.quiet = (asked >= FEW).then_some((waited, now));
                self.begin_window(state, Phase::Work);
            }
            (Phase::Work, _) if asked < FEW => {
                (state.share, state.quiet) = ((state.share * 2.0).min(1.0), None);
                self.begin_window(state, Phase::Work);
            }
            (Phase::Work, Some((quiet, at))) if now.saturating_duration_since(at) < LOOK_AGAIN => {
                let limit = (quiet * SLOWER_MAX).max(UNNOTICED);
                let changed = if waited > limit { state.share / 2.0 } else { state.share * 1.5 };
                state.share = changed.clamp(self.floor.get(), 1.0);
                self.begin_window(state, Phase::Work);
            }
            (Phase::Work, _) => {
                self.begin_window(state, Phase::Settle);
                state.not_before = state.not_before.max(now + SETTLED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_pool::Operation;
    use weir_runtime::sim::World;

    /// What a page takes.
    const PAGE: Duration = Duration::from_millis(10);

    /// What was done in a run, and which share of the time was allowed at its end.
    struct Done {
        pages: u32,
        /// The longest time without a page.
        longest: Duration,
        share: f64,
    }

    /// Works on pages for so many seconds, while one request is answered each millisecond for some of them: in `alone`, or in `beside`
    /// where a page is worked on.
    fn run(seconds: u64, clients: u64, alone: Duration, beside: Duration) -> Done {
        let world = World::new(7);
        let node = world.node("target");
        let rt = node.handle();
        let metrics: Rc<IoMetrics> = Rc::default();
        let pace = Rc::new(Pace::new(rt.clone(), Rc::clone(&metrics)));
        let (of, asked) = (rt.clone(), Rc::clone(&pace));
        rt.spawn(async move {
            let until = of.now() + Duration::from_secs(clients);
            while of.now() < until {
                of.sleep(Duration::from_millis(1)).await;
                let waited = if asked.state.borrow().pages > 0 { beside } else { alone };
                metrics.record(Operation::Fetch, waited);
            }
        });
        world.block_on(&node, async move {
            let (mut pages, mut longest, mut last) = (0, Duration::ZERO, rt.now());
            let until = rt.now() + Duration::from_secs(seconds);
            while rt.now() < until {
                let turn = pace.turn().await;
                rt.sleep(PAGE).await;
                drop(turn);
                longest = longest.max(rt.now() - last);
                (pages, last) = (pages + 1, rt.now());
            }
            Done { pages, longest, share: pace.share() }
        })
    }

    const FAST: Duration = Duration::from_micros(300);
    const SLOW: Duration = Duration::from_millis(3);

    #[test]
    fn without_clients_there_are_no_pauses() {
        assert_eq!(run(10, 0, FAST, SLOW).pages, 1000);
    }

    #[test]
    fn clients_that_wait_no_longer_slow_nothing_down() {
        let Done { pages, .. } = run(20, 20, FAST, FAST);
        assert!(pages > 1800, "{pages}: only the looks are missing");
    }

    #[test]
    fn clients_that_wait_longer_slow_rebuilds_down_to_the_floor_and_not_below() {
        let Done { pages, longest, .. } = run(60, 60, FAST, SLOW);
        let least = 6000.0 * FLOOR_DEFAULT;
        assert!(f64::from(pages) > 0.8 * least && pages < 1200, "{pages}: they yield, and go on");
        assert!(longest <= PAUSE_MAX + SETTLED + LOOK + PAGE, "{longest:?}");
    }

    #[test]
    fn rebuilds_are_fast_again_when_clients_are_gone() {
        assert!(run(5, 5, FAST, SLOW).share < 0.3);
        assert!(run(10, 5, FAST, SLOW).share > 0.99);
    }

    #[test]
    fn with_a_floor_of_all_the_time_nothing_waits_but_for_looks() {
        let world = World::new(7);
        let node = world.node("target");
        let pace = Pace::new(node.handle(), Rc::default());
        pace.set_floor(1.0);
        pace.state.borrow_mut().share = 0.1;
        assert!(pace.share() > 0.999);
        pace.set_floor(7.0);
        assert!(pace.share() <= 1.0);
    }
}
