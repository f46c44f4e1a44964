use super::*;
use crate::sync::mpsc;

/// A small program with timers, randomness, channels, a crash and a restart.
fn scenario(seed: u64) -> (u64, Vec<u64>) {
    let world = World::new(seed);
    let (sender, mut receiver) = mpsc::unbounded();
    for name in ["a", "b", "c"] {
        let rt = world.node(name).handle();
        let sender = sender.clone();
        let inner = rt.clone();
        rt.spawn(async move {
            for _ in 0..20 {
                let wait = inner.random_u64() % 1_000_000;
                inner.sleep(Duration::from_nanos(wait)).await;
                sender.send(wait).await.expect("the collector lives");
            }
        });
    }
    drop(sender);
    let victim = world.node("b");
    let inside = world.clone();
    world.schedule(Duration::from_millis(5), move || {
        inside.crash(&victim);
        inside.restart(&victim);
    });
    let collector = world.node("collector");
    let wakes = world.block_on(&collector, async move {
        let mut values = Vec::new();
        while let Some(value) = receiver.recv().await {
            values.push(value);
        }
        values
    });
    (world.trace_hash(), wakes)
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    for seed in 0..50 {
        assert_eq!(scenario(seed), scenario(seed), "seed {seed}");
    }
    assert_ne!(scenario(1).0, scenario(2).0);
}

#[test]
fn virtual_time_passes_without_waiting() {
    let world = World::new(1);
    let node = world.node("n");
    let rt = node.handle();
    let real = std::time::Instant::now();
    world.block_on(&node, async move { rt.sleep(Duration::from_hours(1)).await });
    assert!(world.now() >= Instant::from_nanos(3_600_000_000_000));
    assert!(real.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_crash_drops_the_nodes_tasks_and_kills_its_handles() {
    let world = World::new(3);
    let node = world.node("engine-0");
    let rt = node.handle();
    let held = Rc::new(());
    let inside = Rc::clone(&held);
    let inner = rt.clone();
    rt.spawn(async move {
        inner.sleep(Duration::from_secs(1)).await;
        drop(inside);
    });
    world.run_for(Duration::from_millis(1));
    let crashed = Rc::new(Cell::new(0));
    let count = Rc::clone(&crashed);
    world.on_crash(move |_| count.set(count.get() + 1));
    world.crash(&node);
    assert_eq!((Rc::strong_count(&held), crashed.get()), (1, 1));
    assert!(rt.spawn(async {}).is_finished());
    world.restart(&node);
    assert!(rt.spawn(async {}).is_finished(), "a handle from before the crash stays dead");
    assert!(!node.handle().spawn(async {}).is_finished());
}

#[test]
fn the_world_ends_with_its_original_whatever_holds_clones() {
    let world = World::new(7);
    let held = Rc::new(());
    let (inside, clone, rt) = (Rc::clone(&held), world.clone(), world.node("n").handle());
    let inner = rt.clone();
    rt.spawn(async move {
        let _clone = clone;
        inner.sleep(Duration::from_secs(1)).await;
        drop(inside);
    });
    let (inside, clone) = (Rc::clone(&held), world.clone());
    world.schedule(Duration::from_secs(1), move || {
        let _clone = clone;
        drop(inside);
    });
    let ended = Rc::new(Cell::new(0));
    let count = Rc::clone(&ended);
    world.on_crash(move |_| count.set(count.get() + 1));
    world.run_for(Duration::from_millis(1));
    let clone = world.clone();
    drop(world);
    assert_eq!((Rc::strong_count(&held), ended.get()), (1, 1));
    assert!(rt.spawn(async {}).is_finished());
    clone.schedule(Duration::ZERO, || panic!("nothing happens after the end"));
    clone.run_for(Duration::from_secs(1));
}

#[test]
fn a_future_that_can_never_finish_is_reported_as_deadlock() {
    let world = World::new(4);
    let node = world.node("n");
    let stuck = world.try_block_on(&node, Duration::from_secs(1), core::future::pending::<()>());
    assert!(matches!(stuck, Err(SimError::Deadlock { seed: 4, .. })));
    let rt = node.handle();
    let late = world.try_block_on(&node, Duration::from_secs(1), rt.sleep(Duration::from_secs(2)));
    assert!(matches!(late, Err(SimError::TimeLimit { .. })));
}

#[test]
fn waiting_for_time_by_yielding_ends() {
    let world = World::new(5);
    let node = world.node("n");
    let rt = node.handle();
    world.block_on(&node, async move {
        let until = rt.now() + Duration::from_micros(10);
        while rt.now() < until {
            rt.yield_now().await;
        }
    });
}

#[test]
fn clock_skew_shifts_only_the_wall_clock() {
    let world = World::new(6);
    let node = world.node("n");
    node.set_clock_skew(-500);
    assert_eq!(node.handle().wall_ns(), WALL_START_NS - 500);
    assert_eq!(node.handle().now(), world.node("m").handle().now());
}

#[test]
fn clocks_run_apart_and_timers_go_by_their_nodes_clock() {
    let world = World::new(7);
    let (fast, slow) = (world.node("fast"), world.node("slow"));
    world.run_for(Duration::from_secs(1));
    fast.set_clock_rate(50_000);
    slow.set_clock_rate(-40_000);
    for node in [&fast, &slow] {
        let rt = node.handle();
        let began = world.now();
        world.block_on(node, async move {
            let until = rt.now() + Duration::from_secs(1);
            rt.sleep_until(until).await;
            assert!(rt.now() >= until, "a timer is never early");
        });
        let took = (world.now() - began).as_millis();
        assert_eq!(took, if node.name() == "fast" { 952 } else { 1041 });
    }
    let before = fast.handle().now();
    fast.set_clock_rate(0);
    assert_eq!(fast.handle().now(), before, "a clock doesn't jump");
}
