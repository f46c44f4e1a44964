//! Replicas of a group under killed leaders, partitions and power failures: no acknowledged command is lost, none takes effect twice,
//! and there is a leader again within two seconds. `WEIR_SIM_SEED=<n>` runs one seed, `WEIR_SIM_SEEDS=<n>` so many.

mod clients;
mod group;

use std::time::Duration;

use weir_raft::{Command, Lost, Outcome};

use clients::{Clients, command, numbers};
use group::{ELECTED, Group};

/// Numbers of commands that no clients propose.
const OTHERS: u64 = 1 << 40;

fn for_each_seed(default: u64, test: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    match number("WEIR_SIM_SEED") {
        Some(seed) => test(seed),
        None => (1..=number("WEIR_SIM_SEEDS").unwrap_or(default)).for_each(test),
    }
}

fn below(group: &Group, most: Duration) -> Duration {
    Duration::from_nanos(group.world.rng().below(u64::try_from(most.as_nanos()).expect("a short time")))
}

/// Has a command take effect at the leader.
fn propose(group: &Group, number: u64) -> Result<Outcome, Lost> {
    let (_, replica, leadership) = group.leader().expect("there is one");
    let outcome = group.world.try_block_on(&group.clients, Duration::from_secs(10), async move {
        replica.propose(leadership.term, command(number, 0, 100)).await
    });
    outcome.expect("an answer")
}

#[test]
fn every_acknowledged_command_is_there_once_whatever_leaders_die() {
    for members in [3, 5] {
        for_each_seed(20, |seed| {
            let group = Group::start(seed, members);
            assert!(group.await_leader(&[]) < ELECTED, "seed {seed}");
            let clients = Clients::start(&group, 4, 25);
            for _ in 0..5 {
                group.world.run_for(below(&group, Duration::from_millis(600)));
                group.await_leader(&[]);
                let (leader, ..) = group.leader().expect("there is one");
                group.crash(leader);
                let without = group.await_leader(&[leader]);
                assert!(without < ELECTED, "seed {seed}: no leader for {without:?}");
                group.world.run_for(below(&group, Duration::from_millis(600)));
                group.restart(leader);
            }
            clients.finish(&group);
            group.bring_back();
            assert_eq!(clients.acknowledged().len(), 100);
            clients.check(&group);
        });
    }
}

#[test]
fn partitions_losses_and_power_failures_lose_nothing() {
    for_each_seed(20, |seed| {
        let members = if seed % 2 == 0 { 3 } else { 5 };
        let group = Group::start(seed, members);
        group.fabric.configure(|config| {
            config.loss = 0.02;
            config.duplicate = 0.01;
        });
        let clients = Clients::start(&group, 4, 20);
        for _ in 0..8 {
            group.world.run_for(below(&group, Duration::from_millis(800)));
            let random = group.world.rng();
            let rank = usize::try_from(random.below(members as u64)).expect("few engines");
            match random.below(4) {
                0 => {
                    let others: Vec<_> =
                        (0..members).filter(|other| *other != rank).map(|other| group.node(other)).collect();
                    group.fabric.partition(&[group.node(rank)], &others);
                }
                1 => group.fabric.partition_one_way(group.node(rank), group.node((rank + 1) % members)),
                2 => (0..members).for_each(|rank| group.crash(rank)),
                _ if group.is_up(rank) => group.crash(rank),
                _ => {}
            }
            group.world.run_for(below(&group, Duration::from_millis(1500)));
            group.fabric.heal();
            (0..members).for_each(|rank| group.restart(rank));
        }
        clients.finish(&group);
        group.bring_back();
        clients.check(&group);
    });
}

#[test]
fn replicas_that_are_lost_one_after_the_other_begin_again_and_nothing_is_lost() {
    for_each_seed(10, |seed| {
        let group = Group::start(seed, 3);
        let first = usize::try_from(group.world.rng().below(3)).expect("few engines");
        for (round, lost) in (0..4).map(|round| (round, (first + usize::try_from(round).expect("few")) % 3)) {
            group.await_leader(&[]);
            let clients = Clients::start_from(&group, round * 100, (4, 15));
            group.world.run_for(below(&group, Duration::from_millis(400)));
            group.crash(lost);
            group.await_leader(&[lost]);
            group.change_member(lost, false);
            group.world.run_for(below(&group, Duration::from_millis(400)));
            group.return_empty(lost);
            group.world.run_for(below(&group, Duration::from_millis(200)));
            group.change_member(lost, true);
            clients.finish(&group);
            // The next one is lost when this one has what the others have.
            group.bring_back();
            clients.check(&group);
            assert_eq!(propose(&group, OTHERS + round), Ok(Outcome::Applied));
            let members = group.replica(lost).expect("it is up").members();
            assert_eq!(members.len(), 3, "seed {seed}: {members:?}");
        }
    });
}

#[test]
fn a_leader_that_others_can_not_reach_confirms_no_read_and_acknowledges_nothing() {
    for_each_seed(10, |seed| {
        let group = Group::start(seed, 3);
        group.await_leader(&[]);
        assert_eq!(propose(&group, 1), Ok(Outcome::Applied));
        let (old, replica, leadership) = group.leader().expect("there is one");
        let others: Vec<_> = (0..3).filter(|other| *other != old).map(|other| group.node(other)).collect();
        group.fabric.partition(&[group.node(old)], &others);
        let (reader, writer) = (std::rc::Rc::clone(&replica), replica);
        let asked = group.world.try_block_on(&group.clients, Duration::from_secs(10), async move {
            let read = reader.confirm(leadership.term).await;
            (read, writer.propose(leadership.term, command(2, 0, 100)).await)
        });
        let (read, written) = asked.expect("a leader without the others steps down");
        assert!(matches!(read, Err(Lost::NotLeader(_))), "seed {seed}: {read:?}");
        assert!(written.is_err(), "seed {seed}: {written:?}");
        group.await_leader(&[old]);
        assert_eq!(propose(&group, 3), Ok(Outcome::Applied));
        let (_, replica, leadership) = group.leader().expect("there is one");
        let read =
            group.world.block_on(&group.clients, async move { replica.confirm(leadership.term).await });
        assert_eq!(read, Ok(()));
        group.bring_back();
        assert_eq!(numbers(&group.state(old)), [1, 3]);
    });
}

#[test]
fn a_leader_hands_over_and_knows_who_has_all_of_the_log() {
    for_each_seed(10, |seed| {
        let group = Group::start(seed, 3);
        group.await_leader(&[]);
        assert_eq!(propose(&group, 1), Ok(Outcome::Applied));
        group.world.run_for(Duration::from_millis(500));
        let (leader, replica, _) = group.leader().expect("there is one");
        assert_eq!(replica.current_members().len(), 3, "seed {seed}");
        let next = (leader + 1) % 3;
        assert!(
            group.replica(next).expect("it is up").current_members().is_empty(),
            "seed {seed}: it follows"
        );
        replica.hand_over(weir_proto::Rank(u32::try_from(next).expect("few engines")));
        group.world.run_for(Duration::from_millis(500));
        assert_eq!(group.leader().map(|(rank, ..)| rank), Some(next), "seed {seed}");
        assert_eq!(propose(&group, 2), Ok(Outcome::Applied));
        // One that is away counts no more to the next leader.
        drop(replica);
        group.crash(next);
        group.await_leader(&[next]);
        group.world.run_for(Duration::from_millis(500));
        let (_, replica, _) = group.leader().expect("there is one");
        assert_eq!(replica.current_members().len(), 2, "seed {seed}");
        drop(replica);
        group.bring_back();
    });
}

#[test]
fn a_leader_of_an_earlier_term_proposes_nothing() {
    let group = Group::start(1, 3);
    group.await_leader(&[]);
    let (rank, replica, leadership) = group.leader().expect("there is one");
    let earlier = group.world.block_on(&group.clients, async move {
        replica.propose(leadership.term - 1, command(1, 0, 100)).await
    });
    assert_eq!(earlier, Err(Lost::NotLeader(None)));
    assert!(numbers(&group.state(rank)).is_empty());
}

#[test]
fn a_command_that_is_proposed_again_takes_effect_once() {
    let group = Group::start(1, 3);
    group.await_leader(&[]);
    assert_eq!(propose(&group, 1), Ok(Outcome::Applied));
    let (leader, replica, leadership) = group.leader().expect("there is one");
    let again = group
        .world
        .block_on(&group.clients, async move { replica.propose(leadership.term, command(1, 1, 100)).await });
    assert_eq!(again, Ok(Outcome::Repeated(1_u64.to_be_bytes().to_vec())));
    group.crash(leader);
    group.await_leader(&[leader]);
    let (_, replica, leadership) = group.leader().expect("there is one");
    let again = group
        .world
        .block_on(&group.clients, async move { replica.propose(leadership.term, command(1, 2, 100)).await });
    assert_eq!(again, Ok(Outcome::Repeated(1_u64.to_be_bytes().to_vec())), "another leader knows it, too");
    group.bring_back();
    assert_eq!(numbers(&group.state(0)), [1]);
}

#[test]
fn who_is_far_behind_takes_the_state_over_and_a_power_failure_meanwhile_does_no_harm() {
    for_each_seed(6, |seed| {
        let group = Group::start(seed, 3);
        group.await_leader(&[]);
        let (leader, ..) = group.leader().expect("there is one");
        let behind = (leader + 1) % 3;
        group.crash(behind);
        // More than the log keeps, by bytes.
        for number in 0..40 {
            let (_, replica, leadership) = group.leader().expect("there is one");
            let long = Command { id: None, ..command(OTHERS + number % 8, 0, 500_000) };
            let long = group
                .world
                .block_on(&group.clients, async move { replica.propose(leadership.term, long).await });
            assert!(long.is_ok(), "seed {seed}: {long:?}");
        }
        let many = Clients::start(&group, 40, 60);
        many.finish(&group);
        for _ in 0..group.world.rng().below(4) {
            group.restart(behind);
            group.world.run_for(below(&group, Duration::from_millis(400)));
            group.crash(behind);
        }
        group.bring_back();
        many.check(&group);
        assert_eq!(propose(&group, OTHERS + 100), Ok(Outcome::Applied));
    });
}

#[test]
fn a_command_that_is_too_long_is_refused() {
    let group = Group::start(1, 1);
    group.await_leader(&[]);
    let (_, replica, leadership) = group.leader().expect("it leads alone");
    let refused = group.world.block_on(&group.clients, async move {
        replica.propose(leadership.term, command(1, 0, weir_raft::COMMAND_MAX)).await
    });
    assert!(matches!(refused, Err(Lost::TooLong { .. })), "{refused:?}");
    assert_eq!(propose(&group, 2), Ok(Outcome::Applied));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let group = Group::start(seed, 3);
        let clients = Clients::start(&group, 2, 10);
        group.await_leader(&[]);
        let (leader, ..) = group.leader().expect("there is one");
        group.crash(leader);
        clients.finish(&group);
        group.bring_back();
        group.world.trace_hash()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}
