//! How the cores of a client and its server are to each other: what a round trip within a node takes is theirs before it is
//! anybody's program.
//!
//! A hypervisor may place the two wherever it likes, and again elsewhere a minute later: within one cluster of cores, far
//! apart, or as two threads of one core, which then do each other's work slower.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::pin::{Seats, count, pin};
use crate::report::Report;

/// Round trips of a cache line.
const ROUNDS: u64 = 20_000;
/// Longest time for them: somebody else may have one of the cores.
const PATIENCE: Duration = Duration::from_millis(200);
/// Steps of the work that is timed, some milliseconds.
const STEPS: u64 = 4_000_000;
/// Times that it is done; the fastest counts, because whatever else runs only slows it down.
const TRIES: usize = 5;

/// A word that shares its cache line, and the one that is fetched with it, with nothing.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Nanoseconds that a cache line takes to the other core and back.
fn line() -> f64 {
    let (there, back) = (Line::default(), Line::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(Seats::USUAL.server);
            let mut seen = 0;
            while seen != u64::MAX {
                seen = there.0.load(Ordering::Acquire);
                back.0.store(seen, Ordering::Release);
            }
        });
        let (mut done, mut began) = (0, Instant::now());
        while done < ROUNDS && began.elapsed() < PATIENCE {
            done += 1;
            there.0.store(done, Ordering::Release);
            while back.0.load(Ordering::Acquire) != done {}
            if done == 1 {
                // The other thread is there.
                began = Instant::now();
            }
        }
        let took = began.elapsed();
        there.0.store(u64::MAX, Ordering::Release);
        // As many as fit a double exactly.
        took.as_secs_f64() * 1e9 / f64::from(u32::try_from(done.max(2) - 1).unwrap_or(u32::MAX))
    })
}

/// Work that fills a core's units.
fn work() {
    let mut sums = [1u64, 2, 3, 4, 5, 6];
    for step in 0..STEPS {
        for (sum, odd) in sums.iter_mut().zip([1, 3, 5, 7, 9, 11]) {
            *sum = black_box(sum.wrapping_add(step ^ odd));
        }
    }
    black_box(sums);
}

/// The fastest of some times that the work takes.
fn fastest() -> f64 {
    let timed = |_| {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    (0..TRIES).map(timed).fold(f64::INFINITY, f64::min)
}

/// What part of its speed a core keeps while the other one works as hard: one, or little more than half of that where they
/// are threads of the same core.
fn kept() -> f64 {
    let alone = fastest();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(Seats::USUAL.server);
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        let beside = fastest();
        stop.store(true, Ordering::Relaxed);
        alone / beside
    })
}

/// Adds what the rows of a provider have to be read with. Nothing, where there is one core only.
pub(super) fn measure(report: &mut Report, provider: &str) {
    if count() < 2 {
        return;
    }
    let name = |what: &str| format!("fabric {provider}: {what}");
    report.figure(&name("a cache line to the other core and back"), line() / 1e3, "us", None);
    report.figure(&name("speed of a core beside the other one's work"), kept(), "", None);
}
