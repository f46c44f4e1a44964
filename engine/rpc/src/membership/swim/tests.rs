use super::*;
use proptest::prelude::*;

const MEMBERS: u32 = 6;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn ranks() -> Vec<Rank> {
    (0..MEMBERS).map(Rank).collect()
}

fn swim(rank: u32) -> Swim {
    Swim::new(Rank(rank), &ranks(), 100 + u64::from(rank), SwimConfig::default(), at(0), 7)
}

fn update(rank: u32, incarnation: u64, state: MemberState, by: u32) -> MemberUpdate {
    MemberUpdate { rank: Rank(rank), incarnation, state, by: Rank(by) }
}

fn ping(from: u32, updates: Vec<MemberUpdate>) -> GroupPing {
    GroupPing { from: Rank(from), incarnation: 100 + u64::from(from), digest: 0, updates }
}

/// Polls until this time, in steps of 10 ms; what was to be sent.
fn run(swim: &mut Swim, from_ms: u64, to_ms: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    for ms in (from_ms..=to_ms).step_by(10) {
        swim.poll(at(ms), ms * 1_000_000, &mut actions);
    }
    actions
}

#[test]
fn a_member_that_does_not_answer_is_tried_directly_then_through_others_then_suspected_then_dead() {
    let mut swim = swim(0);
    for rank in 1..MEMBERS {
        swim.on_ping(at(0), &ping(rank, Vec::new()));
    }
    // Nobody answers anything: the first probe's target is the first suspect.
    let actions = run(&mut swim, 0, 2_000);
    let probed = |action: &Action| match action {
        Action::Ping { probe, to, .. } if *probe != ProbeId::NONE => Some((*probe, *to)),
        _ => None,
    };
    let (first, target) = actions.iter().find_map(probed).expect("a probe");
    let tries = actions.iter().filter(|action| probed(action) == Some((first, target))).count();
    assert_eq!(tries, 3);
    let relayed = actions.iter().filter(|action| {
        matches!(action, Action::Relay { probe, via, relay, .. }
            if *probe == first && relay.target == target && *via != target)
    });
    assert_eq!(relayed.count(), 2 * RELAYS);
    assert_eq!(swim.state(target), MemberState::Suspect);
    assert!(swim.health() > 0, "nobody at all answered: it may be this member's own fault");
    run(&mut swim, 2_000, 40_000);
    assert_eq!(swim.state(target), MemberState::Dead);
}

#[test]
fn a_suspect_hears_of_it_first_and_objects() {
    let (mut judge, mut suspect) = (swim(0), swim(1));
    judge.on_ping(at(0), &ping(1, Vec::new()));
    judge.on_ping(at(1), &ping(2, vec![update(1, 101, MemberState::Suspect, 2)]));
    assert_eq!(judge.state(Rank(1)), MemberState::Suspect);
    let relay = GroupRelay { target: Rank(1), limit_ms: 100, ping: ping(3, Vec::new()) };
    let asked = judge.on_relay(at(2), &relay).expect("rank 1 is listed");
    assert_eq!(asked.updates[0], update(1, 101, MemberState::Suspect, 2));
    let ack = suspect.on_ping(at(3), &asked);
    assert_eq!((ack.incarnation, suspect.incarnation(), suspect.stats().objections), (102, 102, 1));
    judge.on_ack(at(4), ProbeId::NONE, Rank(1), at(2), &ack);
    assert_eq!(judge.state(Rank(1)), MemberState::Alive);
    assert_eq!(judge.stats().suspicions_refuted, 1);
    run(&mut judge, 4, 300);
    assert_eq!(judge.stats().deaths, 0);
}

#[test]
fn a_restarted_member_overrides_its_own_death_even_when_its_clock_went_back() {
    let (mut other, mut reborn) = (swim(0), swim(1));
    other.on_ping(at(0), &ping(2, vec![update(1, 5_000, MemberState::Dead, 2)]));
    assert_eq!(other.state(Rank(1)), MemberState::Dead);
    let hello = GroupPing { from: Rank(1), incarnation: 101, digest: 0, updates: Vec::new() };
    let ack = other.on_ping(at(1), &hello);
    assert_eq!(other.state(Rank(1)), MemberState::Dead, "that may be an old message");
    reborn.on_ack(at(2), ProbeId::NONE, Rank(0), at(1), &ack);
    assert_eq!(reborn.incarnation(), 5_001);
    let hello =
        GroupPing { from: Rank(1), incarnation: reborn.incarnation(), digest: 0, updates: Vec::new() };
    other.on_ping(at(3), &hello);
    assert_eq!(other.state(Rank(1)), MemberState::Alive);
}

#[test]
fn a_member_that_was_restarted_during_a_probe_is_not_blamed_for_its_earlier_life() {
    let ranks = [Rank(0), Rank(1)];
    let mut swim = Swim::new(Rank(0), &ranks, 100, SwimConfig::default(), at(0), 7);
    swim.on_ping(at(0), &ping(1, Vec::new()));
    let mut ms = 0;
    let mut tries = 0;
    // All tries of a probe go unanswered, then the member is back before the probe ends.
    while tries < 3 {
        ms += 10;
        let mut actions = Vec::new();
        swim.poll(at(ms), ms * 1_000_000, &mut actions);
        let probing =
            |action: &&Action| matches!(action, Action::Ping { probe, .. } if *probe != ProbeId::NONE);
        tries += actions.iter().filter(probing).count();
    }
    swim.on_ping(at(ms + 10), &GroupPing { incarnation: 900, ..ping(1, Vec::new()) });
    run(&mut swim, ms + 20, ms + 400);
    assert_eq!((swim.state(Rank(1)), swim.stats().probes_failed), (MemberState::Alive, 1));
    assert_eq!(swim.stats().stalls, 0, "news after a quiet time is no stall");
}

#[test]
fn who_stood_still_blames_nobody() {
    let mut swim = swim(0);
    for rank in 1..MEMBERS {
        swim.on_ping(at(0), &ping(rank, Vec::new()));
    }
    swim.on_ping(at(10), &ping(2, vec![update(3, 103, MemberState::Suspect, 2)]));
    run(&mut swim, 10, 1_000);
    let before = swim.stats();
    // Ten seconds without progress: the suspect's time, and a probe's, are over by the clock.
    let mut actions = Vec::new();
    swim.poll(at(11_000), 11_000_000_000, &mut actions);
    assert_eq!((swim.stats().stalls, swim.stats().deaths), (1, 0));
    assert_eq!(swim.stats().probes_failed, before.probes_failed);
    assert!(swim.health() > 0);
    assert_eq!(swim.state(Rank(3)), MemberState::Suspect);
    // The objection was waiting all the time.
    let objection = GroupPing { from: Rank(3), incarnation: 104, digest: 0, updates: Vec::new() };
    swim.on_ping(at(11_010), &objection);
    assert_eq!(swim.state(Rank(3)), MemberState::Alive);
}

#[test]
fn a_member_that_says_goodbye_is_dead_at_once_and_does_not_object() {
    let (mut leaver, mut other) = (swim(1), swim(0));
    other.on_ping(at(0), &ping(1, Vec::new()));
    let told = leaver.leave(at(1)).into_iter().find_map(|action| match action {
        Action::Ping { ping, .. } => Some(ping),
        _ => None,
    });
    let told = told.expect("some members are told");
    let ack = other.on_ping(at(2), &told);
    assert_eq!(other.state(Rank(1)), MemberState::Dead);
    let incarnation = leaver.incarnation();
    leaver.on_ack(at(3), ProbeId::NONE, Rank(0), at(1), &ack);
    assert_eq!((leaver.incarnation(), leaver.stats().objections), (incarnation, 0));
}

#[test]
fn tables_are_compared_in_pages_until_they_agree() {
    let ranks: Vec<Rank> = (0..1500).map(Rank).collect();
    let make = |rank| Swim::new(Rank(rank), &ranks, 1, SwimConfig::default(), at(0), 1);
    let (mut one, mut other) = (make(0), make(1));
    for rank in 2..1500 {
        one.on_ping(at(0), &GroupPing { from: Rank(rank), incarnation: 9, digest: 0, updates: Vec::new() });
    }
    one.on_ping(at(0), &GroupPing { from: Rank(1), incarnation: 1, digest: 0, updates: Vec::new() });
    let mut start = 0;
    let mut pages = 0;
    loop {
        let reply = one.on_sync(&GroupSync { from: Rank(1), start });
        assert!(reply.updates.len() <= SYNC_PAGE);
        other.on_sync_reply(at(1), Rank(0), &reply);
        pages += 1;
        match reply.next {
            Some(next) => start = next,
            None => break,
        }
    }
    assert_eq!((pages, one.digest()), (3, other.digest()));
    let beyond = one.on_sync(&GroupSync { from: Rank(1), start: u32::MAX });
    assert!(beyond.updates.is_empty() && beyond.next.is_none());
}

#[test]
fn nonsense_is_counted_and_changes_nothing() {
    let mut swim = swim(0);
    let digest = swim.digest();
    let nonsense = vec![
        update(77, 5, MemberState::Dead, 1),
        update(1, 0, MemberState::Dead, 1),
        update(1, 5, MemberState::Unknown, 1),
        update(1, u64::MAX, MemberState::Dead, 1),
    ];
    swim.on_ping(at(0), &GroupPing { from: Rank(99), incarnation: 1, digest: 0, updates: nonsense });
    assert_eq!((swim.digest(), swim.stats().invalid), (digest, 5));
}

#[test]
fn a_living_member_can_object_to_the_highest_incarnation_that_anybody_believes() {
    const WALL: u64 = 1_800_000_000_000_000_000;
    for highest in [INCARNATION_MAX, WALL + AHEAD_MAX] {
        let make = |rank| Swim::new(Rank(rank), &ranks(), WALL, SwimConfig::default(), at(0), 7);
        let (mut other, mut accused) = (make(0), make(1));
        let mut told = vec![update(1, highest, MemberState::Dead, 2)];
        for ms in [10, 20, 30] {
            let ping = GroupPing { from: Rank(2), incarnation: WALL, digest: 0, updates: told.clone() };
            other.on_ping(at(ms), &ping);
            accused.on_ping(at(ms), &ping);
            for swim in [&mut other, &mut accused] {
                swim.poll(at(ms + 1), WALL + (ms + 1) * 1_000_000, &mut Vec::new());
            }
            let incarnation = accused.incarnation();
            let hello = GroupPing { from: Rank(1), incarnation, digest: 0, updates: Vec::new() };
            other.on_ping(at(ms + 2), &hello);
            assert_eq!(other.state(Rank(1)), MemberState::Alive, "{highest}");
            told = vec![update(1, incarnation, MemberState::Dead, 2)];
        }
    }
}

fn any_update() -> impl Strategy<Value = MemberUpdate> {
    (0..MEMBERS + 2, 0..300_u64, 0..4_usize, 0..MEMBERS)
        .prop_map(|(rank, incarnation, state, by)| update(rank, incarnation, MemberState::ALL[state], by))
}

#[derive(Clone, Debug)]
enum Step {
    Ping(u32, Vec<MemberUpdate>),
    Ack(u64, u32, Vec<MemberUpdate>),
    Relay(u32, u32),
    Reply(u64, u32, bool),
    Sync(Vec<MemberUpdate>),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let updates = || prop::collection::vec(any_update(), 0..5);
    prop_oneof![
        (0..MEMBERS + 1, updates()).prop_map(|(from, updates)| Step::Ping(from, updates)),
        (0..9_u64, 0..MEMBERS + 1, updates()).prop_map(|(id, from, updates)| Step::Ack(id, from, updates)),
        (0..MEMBERS + 1, 0..MEMBERS + 1).prop_map(|(from, target)| Step::Relay(from, target)),
        (0..9_u64, 0..MEMBERS + 1, any::<bool>()).prop_map(|(id, via, found)| Step::Reply(id, via, found)),
        updates().prop_map(Step::Sync),
        (0..3_000_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// News may arrive in any order and any number of times: everybody believes the same in the end.
    #[test]
    fn the_order_of_news_does_not_matter(
        updates in prop::collection::vec(any_update(), 0..40),
        order in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let others: Vec<_> = updates.into_iter().filter(|update| update.rank != Rank(0)).collect();
        let (mut one, mut other) = (swim(0), swim(0));
        for update in &others {
            one.apply(at(0), update, true);
        }
        let mut shuffled = others.clone();
        for (at, index) in order.iter().enumerate().take(shuffled.len()) {
            let with = index.index(shuffled.len());
            shuffled.swap(at, with);
        }
        for update in shuffled.iter().chain(&others) {
            other.apply(at(0), update, true);
        }
        prop_assert_eq!(one.digest(), other.digest());
    }

    /// Whatever arrives: nothing panics, this member never counts itself out, its incarnation and what it believes of
    /// others never go back, and it never plans to sleep past a suspect's time.
    #[test]
    fn nothing_that_arrives_breaks_the_rules(steps in prop::collection::vec(any_step(), 0..80)) {
        let mut swim = swim(0);
        let mut ms = 0;
        let mut before: Vec<(u64, MemberState)> =
            swim.members().iter().map(|member| (member.incarnation, member.state)).collect();
        let mut incarnation = swim.incarnation();
        for step in steps {
            match step {
                Step::Ping(from, updates) => drop(swim.on_ping(at(ms), &ping(from, updates))),
                Step::Ack(id, from, updates) => {
                    let GroupPing { from, incarnation, digest, updates } = ping(from, updates);
                    let ack = GroupAck { from, incarnation, digest, updates };
                    swim.on_ack(at(ms), ProbeId::from_number(id), from, at(ms), &ack);
                }
                Step::Relay(from, target) => {
                    let target = Rank(target);
                    let relay = GroupRelay { target, limit_ms: 5, ping: ping(from, Vec::new()) };
                    drop(swim.on_relay(at(ms), &relay));
                    drop(swim.relay_reply(at(ms), &relay, None));
                }
                Step::Reply(id, via, found) => {
                    let GroupPing { from, incarnation, digest, updates } = ping(via, Vec::new());
                    let relay = GroupAck { from, incarnation, digest, updates };
                    let reply = GroupRelayReply { answer: found.then(|| relay.clone()), relay };
                    swim.on_relay_reply(at(ms), ProbeId::from_number(id), from, &reply);
                }
                Step::Sync(updates) => {
                    swim.on_sync_reply(at(ms), Rank(1), &GroupSyncReply { updates, next: None });
                }
                Step::Wait(time) => {
                    ms += time;
                    let mut actions = Vec::new();
                    swim.poll(at(ms), ms * 1_000_000, &mut actions);
                    let to_self = |action: &Action| match action {
                        Action::Ping { to, .. } | Action::Sync { to, .. } => *to == Rank(0),
                        Action::Relay { via, .. } => *via == Rank(0),
                    };
                    prop_assert!(!actions.iter().any(to_self));
                }
            }
            prop_assert_eq!(swim.state(Rank(0)), MemberState::Alive);
            prop_assert!(swim.incarnation() >= incarnation);
            incarnation = swim.incarnation();
            let now: Vec<_> =
                swim.members().iter().map(|member| (member.incarnation, member.state)).collect();
            prop_assert!(now.iter().zip(&before).all(|(now, before)| now >= before));
            before = now;
            let waits = swim.suspicions.iter().map(|suspicion| suspicion.deadline).min();
            prop_assert!(waits.is_none_or(|deadline| swim.next() <= deadline));
            let suspects =
                swim.members().iter().filter(|member| member.state == MemberState::Suspect).count();
            prop_assert_eq!(suspects, swim.suspicions.len());
        }
    }
}

#[test]
fn another_list_keeps_what_is_known_and_watches_the_new_member_instead_of_the_one_that_went() {
    let mut swim = swim(0);
    for rank in 1..MEMBERS {
        swim.on_ping(at(0), &ping(rank, Vec::new()));
    }
    swim.on_ping(
        at(1),
        &ping(1, vec![update(2, 102, MemberState::Suspect, 1), update(3, 103, MemberState::Dead, 1)]),
    );
    // Rank 5 goes, rank 9 comes.
    let listed: Vec<Rank> = [0, 1, 2, 3, 4, 9].map(Rank).to_vec();
    swim.regroup(at(10), &listed);
    let known: Vec<Rank> = swim.members().iter().map(|member| member.rank).collect();
    assert_eq!(known, listed);
    assert_eq!((swim.state(Rank(1)), swim.state(Rank(3))), (MemberState::Alive, MemberState::Dead));
    assert_eq!(swim.state(Rank(2)), MemberState::Alive, "whoever suspects it says so again");
    assert_eq!(swim.state(Rank(9)), MemberState::Unknown);
    assert_eq!(swim.state(Rank(0)), MemberState::Alive);
    let before = swim.stats().invalid;
    swim.on_ping(at(11), &ping(5, Vec::new()));
    assert!(swim.stats().invalid > before, "rank 5 is nobody now");
    swim.on_ping(at(12), &GroupPing { from: Rank(9), incarnation: 7, digest: 0, updates: Vec::new() });
    assert_eq!(swim.state(Rank(9)), MemberState::Alive);
    let actions = run(&mut swim, 20, 10_000);
    let asked = |to: u32| {
        actions.iter().any(|action| matches!(action, Action::Ping { to: rank, .. } if *rank == Rank(to)))
    };
    assert!(asked(9) && !asked(5));
}
