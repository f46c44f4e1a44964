//! Who is alive, as users see it: engines are killed, frozen, asked to end and started again.

use std::time::{Duration, Instant};

use weir_management::v1;

use crate::system::System;

/// Longest wait for a change that the protocol makes within eight seconds, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_mins(1);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn ask(system: &System, viewer: usize) -> v1::SystemQueryResponse {
    system.system(viewer).query(v1::SystemQueryRequest {}).await.expect("the viewer is up").into_inner()
}

/// Waits until an engine sees another in a state; how long that took, and the entry.
async fn wait(
    system: &System,
    viewer: usize,
    rank: usize,
    state: v1::MemberState,
) -> (Duration, v1::EngineState) {
    let began = Instant::now();
    loop {
        let answer = ask(system, viewer).await;
        assert_eq!(answer.viewed_by_rank as usize, viewer);
        let entry = answer.engines[rank].clone();
        if entry.membership() == state {
            return (began.elapsed(), entry);
        }
        assert!(began.elapsed() < LIMIT, "rank {viewer} sees {entry:?}, not {state:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn all_alive(system: &System, viewers: &[usize]) {
    for viewer in viewers {
        for rank in 0..system.engines.len() {
            wait(system, *viewer, rank, v1::MemberState::Alive).await;
        }
    }
}

#[test]
fn a_killed_engine_is_reported_dead_by_all_others_and_alive_again_after_its_restart() {
    let mut system = System::start(4, 1);
    let runtime = runtime();
    let before = runtime.block_on(async {
        all_alive(&system, &[0, 1, 2, 3]).await;
        ask(&system, 0).await.engines[2].incarnation
    });
    system.kill(2);
    runtime.block_on(async {
        for viewer in [0, 1, 3] {
            let (took, entry) = wait(&system, viewer, 2, v1::MemberState::Dead).await;
            println!("rank {viewer} reports rank 2 dead; asked for {took:?}");
            assert_eq!(entry.health(), v1::EngineHealth::Down);
            assert!(!entry.message.is_empty());
        }
        let others = ask(&system, 0).await.engines;
        assert!([0, 1, 3].iter().all(|rank| others[*rank].membership() == v1::MemberState::Alive));
    });
    let count =
        |state: &str| system.metric(0, &format!("weir_engine_members{{rank=\"0\",state=\"{state}\"}}"));
    assert_eq!((count("alive"), count("dead")), (Some(3.0), Some(1.0)));
    assert!(system.metric(0, "weir_engine_member_deaths_total") >= Some(1.0));
    assert!(system.metric(0, "weir_engine_member_probe_seconds_count") >= Some(1.0));
    let log = system.log(0);
    assert!(log.contains("a member is dead") && log.contains("rank=2"), "{log}");

    system.spawn(2);
    system.wait_ready();
    runtime.block_on(async {
        all_alive(&system, &[0, 1, 2, 3]).await;
        let after = ask(&system, 0).await.engines[2].clone();
        assert!(after.incarnation > before, "another life");
        assert_eq!(after.health(), v1::EngineHealth::Up);
    });
}

#[test]
fn an_engine_that_is_asked_to_end_says_goodbye() {
    let mut system = System::start(3, 1);
    let runtime = runtime();
    runtime.block_on(all_alive(&system, &[0, 1, 2]));
    let status = system.terminate(1);
    assert_eq!(status.code(), Some(0), "{}", system.log(1));
    runtime.block_on(async {
        wait(&system, 0, 1, v1::MemberState::Dead).await;
        wait(&system, 2, 1, v1::MemberState::Dead).await;
    });
    assert!(system.log(0).contains("a member has left"), "{}", system.log(0));
}

#[test]
fn an_engine_that_was_frozen_is_alive_again_when_it_goes_on_and_has_buried_nobody() {
    let system = System::start(3, 1);
    let runtime = runtime();
    runtime.block_on(all_alive(&system, &[0, 1, 2]));
    let child = system.engines[2].child.as_ref().expect("it runs");
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    runtime.block_on(wait(&system, 0, 2, v1::MemberState::Dead));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    runtime.block_on(all_alive(&system, &[0, 1, 2]));
    assert_eq!(system.metric(2, "weir_engine_member_deaths_total"), Some(0.0), "{}", system.log(2));
    assert!(system.metric(2, "weir_engine_member_objections_total") >= Some(1.0));
}

/// Requests a second that three idle engines send each other at most: probes, heartbeats of the list of pools and their answers, and
/// looks at who keeps it.
const IDLE_REQUESTS_MAX: f64 = 60.0;

#[test]
fn engines_that_only_watch_each_other_exchange_few_messages() {
    let system = System::start(3, 1);
    runtime().block_on(all_alive(&system, &[0, 1, 2]));
    // What starting left behind is done after some seconds.
    std::thread::sleep(Duration::from_secs(8));
    let accepted = || {
        let of = |rank| system.metric(rank, "weir_engine_rpc_requests_total{").expect("it serves");
        (0..3).map(of).sum::<f64>()
    };
    let watched = || {
        let series = "weir_engine_member_probes_total{rank=\"0\",result=\"direct\"}";
        system.metric(0, series).expect("it probes")
    };
    let (before, probed, since) = (accepted(), watched(), Instant::now());
    std::thread::sleep(Duration::from_secs(6));
    let each_second = (accepted() - before) / since.elapsed().as_secs_f64();
    assert!(each_second < IDLE_REQUESTS_MAX, "they send {each_second:.1} requests a second");
    assert!(watched() >= probed + 2.0, "it goes on watching");
}
