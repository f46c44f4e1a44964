//! Membership of 1,024 engines: how soon a dead one is known to all, and that no living one is ever declared dead.
//!
//! The state machines run over a light simulated network (`simulated.rs`, which the bench has, too); `stack.rs` runs them over the whole RPC
//! stack, 200 engines or as many as `WEIR_SWIM_STACK` says. `WEIR_SWIM_DAYS=7` makes the quiet run last a simulated
//! week instead of two minutes, `WEIR_SWIM_LOSS` and `WEIR_SWIM_MEMBERS` set its loss rate (0.05) and size; it prints what it found.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "ranks, seconds and counts here are small"
)]

mod simulated;
mod stack;

use core::time::Duration;
use simulated::{Network, SECOND};
use weir_proto::group::MemberState;

/// As many engines as the paper's largest system has server nodes.
const MEMBERS: u32 = 1024;

/// From a failure until every living member knows.
const GOAL: Duration = Duration::from_secs(8);

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn a_dead_engine_is_known_to_all_within_eight_seconds_whatever_is_lost() {
    println!(
        "loss  agreed after, s (mean, max)   false suspicions   false deaths   messages per member and second"
    );
    for loss in [0.0, 0.01, 0.02, 0.05] {
        let mut network = Network::settled(MEMBERS, loss, 1);
        let began = network.now;
        let mut times = Vec::new();
        for round in 0..setting("WEIR_SWIM_CRASHES", 2) {
            let took = network.fail_one(GOAL);
            times.push(took.unwrap_or_else(|| panic!("loss {loss}, round {round}: not within {GOAL:?}")));
        }
        let seconds = (network.now - began) as f64 / SECOND as f64;
        let counts = network.counts;
        println!(
            "{:>4.0}%  {:>10.2} {:>10.2} {:>18} {:>14} {:>16.1}",
            loss * 100.0,
            times.iter().sum::<f64>() / times.len() as f64,
            times.iter().copied().fold(0.0, f64::max),
            counts.false_suspects,
            counts.false_deaths,
            counts.messages as f64 / seconds / f64::from(MEMBERS)
        );
        assert_eq!(counts.false_deaths, 0, "loss {loss}");
    }
}

#[test]
fn no_living_engine_is_declared_dead() {
    let days: u64 = setting("WEIR_SWIM_DAYS", 0);
    let loss: f64 = setting("WEIR_SWIM_LOSS", 0.05);
    // By default two minutes.
    let minutes = if days > 0 { days * 1440 } else { 2 };
    let members = setting("WEIR_SWIM_MEMBERS", MEMBERS);
    let mut network = Network::settled(members, loss, 2);
    for minute in 1..=minutes {
        network.run_for(60 * SECOND);
        let counts = network.counts;
        assert_eq!(counts.false_deaths, 0, "after {minute} minutes: {counts:?}");
        if days > 0 && minute % 60 == 0 {
            println!("{} h, loss {loss}: {counts:?}", minute / 60);
        }
    }
    assert!(network.all_alive());
    println!("{members} engines, {minutes} minutes, loss {loss}: {:?}", network.counts);
}

#[test]
fn an_engine_that_stands_still_for_some_seconds_blames_nobody_and_is_not_buried() {
    let mut network = Network::settled(64, 0.0, 3);
    for _ in 0..200 {
        let victim = network.random.below(64) as usize;
        let span = network.random.between(SECOND / 2, 2 * SECOND);
        network.stall(victim, span);
        network.run_for(span + network.random.below(2 * SECOND));
    }
    assert_eq!(network.counts.false_deaths, 0, "{:?}", network.counts);
    let stalls: u64 = network.nodes.iter().map(|node| node.swim.stats().stalls).sum();
    assert!(stalls >= 100, "they really stood still: {stalls}");
    network.run_for(20 * SECOND);
    assert!(network.all_alive());
}

#[test]
fn an_engine_that_stood_still_for_minutes_comes_back_and_has_blamed_nobody() {
    let mut network = Network::settled(64, 0.0, 4);
    network.stall(7, 120 * SECOND);
    network.run_for(60 * SECOND);
    let others = |network: &Network| network.nodes.iter().map(|node| node.swim.stats().deaths).sum::<u64>();
    assert_eq!(others(&network), 63, "all others gave it up");
    network.run_for(61 * SECOND);
    let back = network.wait(Duration::from_secs(20), Network::all_alive);
    assert!(back.is_some(), "it objects as soon as it goes on");
    assert_eq!(network.nodes[7].swim.stats().deaths, 0);
}

#[test]
fn a_rack_that_dies_at_once_is_known_and_nobody_else_suffers() {
    let mut network = Network::settled(256, 0.01, 5);
    for victim in 0..32 {
        network.crash(victim);
    }
    let took = network.time_until(Duration::from_secs(30), MemberState::Dead, &(0..32).collect::<Vec<_>>());
    println!("32 of 256 dead: agreed after {took:?} s");
    assert!(took.is_some());
    assert_eq!(network.counts.false_deaths, 0);
    assert!(network.agree(MemberState::Alive, &(32..256).collect::<Vec<_>>()));
}

#[test]
fn both_sides_of_a_partition_find_each_other_again() {
    let mut network = Network::settled(64, 0.0, 6);
    network.cut(16);
    network.run_for(60 * SECOND);
    let lost =
        network.nodes[0].swim.members().iter().filter(|member| member.state == MemberState::Dead).count();
    assert_eq!(lost, 48, "the small side has given the other one up");
    network.heal();
    let took = network.wait(Duration::from_mins(2), Network::all_alive);
    println!("64 members agree {took:?} s after a partition of a minute");
    assert!(took.is_some());
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| {
        let mut network = Network::new(64, weir_rpc::membership::swim::SwimConfig::default(), 0.05, seed);
        network.run_for(30 * SECOND);
        network.crash(5);
        network.run_for(10 * SECOND);
        let digests: Vec<u64> = network.nodes.iter().map(|node| node.swim.digest()).collect();
        (network.counts.events, network.counts.messages, digests)
    };
    assert_eq!(run(9), run(9));
    assert_ne!(run(9).0, run(10).0);
}
