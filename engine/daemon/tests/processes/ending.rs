//! Engines that are asked to end before they serve.

use std::fs;
use std::time::{Duration, Instant};

use crate::system::System;

/// Targets of an engine: enough that making them takes longer than it takes to send a signal.
const TARGETS: u16 = 8;

/// How often an engine is asked to end, each time a little later than before.
const TIMES: u32 = 8;

/// Longest wait for an engine's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Starts engine 0 and waits until it gives this answer; it answers before it makes and opens targets.
fn start(system: &mut System, path: &str, answer: &str) {
    system.spawn(0);
    let until = Instant::now() + ANSWER_LIMIT;
    while !system.get(0, path).contains(answer) {
        assert!(Instant::now() < until, "the engine does not answer: {}", system.log(0));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends engine 0, which is to be as good as any end.
fn end(system: &mut System) {
    let status = system.terminate(0);
    let log = system.log(0);
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("engine has stopped"), "{log}");
}

#[test]
fn an_engine_that_is_asked_to_end_while_it_makes_targets_ends_well_and_makes_them_later() {
    let mut system = System::prepare(1, TARGETS);
    for time in 0..TIMES {
        start(&mut system, "/healthz", "ok");
        std::thread::sleep(Duration::from_millis(15) * time);
        end(&mut system);
    }
    system.spawn(0);
    system.wait_ready();
    end(&mut system);
}

#[test]
fn an_engine_that_is_asked_to_end_while_it_opens_targets_ends_well() {
    let mut system = System::start(1, 2);
    end(&mut system);
    // Another process has a target's file, for which the engine waits some seconds.
    let path = system.engines[0].data.join("target-1.weir");
    let held = fs::File::open(path).expect("the file");
    held.lock().expect("nobody has it");
    start(&mut system, "/readyz", "[Serving, Starting]");
    end(&mut system);
    drop(held);
    system.spawn(0);
    system.wait_ready();
    end(&mut system);
}
