//! The short form of `make fuzz`: each fuzzer on inputs that once failed, and on as many blind ones as are said here, the same in
//! each run.

use std::path::PathBuf;
use std::time::Duration;

use weir_fuzz::driver::{Options, fuzz, inputs_of, run_input};
use weir_fuzz::targets::{ALL, Target, find};

/// Longest time for one fuzzer: a hundred times what it takes on a machine that has other things to do. That all inputs were run is
/// asserted, so that this is no way to pass.
const TIME: Duration = Duration::from_mins(10);

fn check(name: &str, runs: u64) {
    let target: &Target = find(name).expect("a fuzzer");
    let options = Options { time: TIME, runs, seed: 7, corpus: None, failures: None };
    let outcome = fuzz(target, &options).expect("nothing is kept");
    if let Some(failure) = outcome.failure {
        let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.input"));
        std::fs::write(&kept, &failure.input).expect("kept");
        panic!("{}\nthe input is in {}", failure.message, kept.display());
    }
    assert_eq!(outcome.runs, runs, "not all inputs were run");
}

#[test]
fn inputs_that_failed_once_hold() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for target in &ALL {
        for (number, input) in inputs_of(&folder.join(target.name)).iter().enumerate() {
            if let Err(message) = run_input(target, input) {
                panic!("{} input {number}: {message}", target.name);
            }
        }
    }
}

#[test]
fn superblocks() {
    check("superblock", 600);
}

#[test]
fn checkpoint_headers_and_the_space_map() {
    check("checkpoint", 500);
}

#[test]
fn logs() {
    check("log", 1000);
}

#[test]
fn indexes() {
    check("index", 2000);
}

#[test]
fn flipped_bits() {
    check("flips", 120);
}

#[test]
fn operations() {
    check("operations", 500);
}

#[test]
fn messages() {
    check("wire", 50_000);
}

#[test]
fn requests() {
    check("requests", 50_000);
}

#[test]
fn published_addresses() {
    check("address", 50_000);
}

#[test]
fn channels() {
    check("channel", 10_000);
}

#[test]
fn pieces_of_messages_and_addresses() {
    check("pieces", 20_000);
}

#[test]
fn files_of_other_processes() {
    check("files", 10_000);
}

#[test]
fn pages_of_drives() {
    check("drive", 50_000);
}

#[test]
fn every_fuzzer_has_a_test_here() {
    let text = include_str!("short.rs");
    for Target { name, .. } in &ALL {
        assert!(text.contains(&format!("check(\"{name}\",")), "{name}");
    }
}

#[test]
fn a_target_that_fails_is_reported_with_its_input() {
    let target = Target { name: "failing", run: |input| assert!(input.len() < 40, "too long for me") };
    let options = Options { time: TIME, runs: 1000, seed: 1, corpus: None, failures: None };
    let failure = fuzz(&target, &options).expect("nothing is kept").failure.expect("it fails");
    assert!(failure.input.len() >= 40 && failure.message.contains("too long for me"), "{}", failure.message);
}
