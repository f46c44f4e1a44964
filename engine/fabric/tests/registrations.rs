//! What becomes of accesses that are under way when an exposure ends, method by method in the simulator and as far as
//! possible on real providers; and registrations that serve again.

mod inbox;

use core::time::Duration;
use inbox::{listen, providers_with_keys, providers_within};
use std::rc::Rc;
use weir_fabric::libfabric::open;
use weir_fabric::sim::{Config, Fabric, MrCosts, MrModel, OPTIMIZED_KEYS};
use weir_fabric::{Access, Buffer, Closed, Ending, Endpoint, FabricError, MrMethod, Options, PeerId};
use weir_runtime::real::Executor;
use weir_runtime::sim::{Node, World};

/// Bytes of a transfer that takes 10 ms in the simulator.
const LARGE: usize = 1 << 20;

struct Stage {
    world: World,
    fabric: Fabric,
    node: Node,
    owner: Rc<dyn Endpoint>,
    writer: Rc<dyn Endpoint>,
    to_owner: PeerId,
}

fn stage(method: MrMethod, revokes: bool, costs: MrCosts) -> Stage {
    let world = World::new(5);
    let config = Config {
        per_mebibyte: Duration::from_millis(10),
        mr: MrModel { method, revokes, costs },
        ..Config::default()
    };
    let fabric = Fabric::with_config(&world, config);
    let node = world.node("owner");
    let owner = fabric.endpoint(&node, None);
    let writer = fabric.endpoint(&world.node("writer"), None);
    let to_owner = writer.insert(&owner.address()).expect("an address");
    Stage { world, fabric, node, owner, writer, to_owner }
}

/// What an owner saw who ended an exposure in the middle of a write, was told that all is over, and used the memory.
struct Seen {
    ending: String,
    /// How long the owner had to wait until it was certain.
    waited: Duration,
    intact: bool,
    written: Result<(), FabricError>,
    late: u64,
}

fn end_during_a_write(method: MrMethod, revokes: bool) -> Seen {
    let Stage { world, fabric, node, owner, writer, to_owner } = stage(method, revokes, MrCosts::default());
    let rt = node.handle();
    let inner = fabric.clone();
    world.block_on(&node, async move {
        let mut target = owner.buffers().alloc(LARGE).expect("memory");
        let exposure = owner.expose(&target, 0..LARGE, Access::Write).expect("exposed");
        let mut source = writer.buffers().alloc(LARGE).expect("memory");
        source.fill(9);
        let write = writer.write(to_owner, &source, 0..LARGE, exposure.region());
        rt.sleep(Duration::from_millis(5)).await;
        let Closed { hold, ending } = exposure.close();
        let name = format!("{ending:?}");
        let began = rt.now();
        if let Ending::Pending(last) = ending {
            assert_eq!(last.await, Ok(()));
        }
        drop(hold);
        let waited = rt.now() - began;
        target.fill(7);
        let written = write.await;
        rt.sleep(Duration::from_millis(50)).await;
        let intact = target.iter().all(|byte| *byte == 7);
        Seen { ending: name, waited, intact, written, late: inner.stats().late_accesses }
    })
}

#[test]
fn no_late_write_gets_at_memory_in_the_safe_methods_and_one_does_where_keys_stay_exposed() {
    for method in [MrMethod::Uncached, MrMethod::Optimized] {
        let seen = end_during_a_write(method, true);
        assert_eq!((&seen.ending[..], seen.intact, seen.late), ("Certain", true, 0), "{method}");
        assert!(
            matches!(seen.written, Err(FabricError::AccessDenied { .. })),
            "{method}: cut off by the kernel"
        );
    }
    let seen = end_during_a_write(MrMethod::MatchEvents, false);
    assert_eq!((&seen.ending[..], seen.intact), ("Pending", true));
    assert!(seen.waited > Duration::from_millis(3), "the end of the write was awaited: {:?}", seen.waited);
    assert_eq!(seen.written, Ok(()), "what had begun was let finish");
    for method in [MrMethod::KeyCache, MrMethod::Persistent] {
        let seen = end_during_a_write(method, true);
        assert_eq!((&seen.ending[..], seen.intact, seen.late), ("Exposed", false, 1), "{method}");
    }
    // A provider that doesn't tell says so: this is what the layer above has to make up for.
    let seen = end_during_a_write(MrMethod::Uncached, false);
    assert_eq!((&seen.ending[..], seen.intact, seen.late), ("Untold", false, 1));
}

#[test]
fn a_write_that_begins_after_the_end_is_refused_unless_the_key_is_cached() {
    for method in MrMethod::ALL {
        let Stage { world, node, owner, writer, to_owner, .. } = stage(method, true, MrCosts::default());
        let denied = world.block_on(&node, async move {
            let target = owner.buffers().alloc(4096).expect("memory");
            let exposure = owner.expose(&target, 0..4096, Access::Write).expect("exposed");
            let region = exposure.region();
            drop(exposure.close());
            let source = writer.buffers().alloc(4096).expect("memory");
            writer.write(to_owner, &source, 0..4096, region).await.is_err()
        });
        assert_eq!(denied, !method.leaves_exposed(), "{method}");
    }
}

#[test]
fn an_optimized_key_is_used_again_so_that_a_late_write_meets_another_exposure() {
    for (method, met) in
        [(MrMethod::Optimized, true), (MrMethod::Uncached, false), (MrMethod::MatchEvents, false)]
    {
        let Stage { world, node, owner, writer, to_owner, .. } = stage(method, true, MrCosts::default());
        let harmed = world.block_on(&node, async move {
            let [one, mut other] = [0, 1].map(|_| owner.buffers().alloc(4096).expect("memory"));
            other.fill(7);
            let first = owner.expose(&one, 0..4096, Access::Write).expect("exposed");
            let late = first.region();
            drop(first);
            let _second = owner.expose(&other, 0..4096, Access::Write).expect("exposed");
            let mut source = writer.buffers().alloc(4096).expect("memory");
            source.fill(9);
            let _refused = writer.write(to_owner, &source, 0..4096, late).await;
            other[0] == 9
        });
        assert_eq!(harmed, met, "{method}");
    }
}

#[test]
fn optimized_keys_are_few_and_the_rest_are_standard_ones() {
    let Stage { owner, .. } = stage(MrMethod::Optimized, true, MrCosts::default());
    let memory = Buffer::from_vec(vec![0; 64]);
    let exposed: Vec<_> = (0..OPTIMIZED_KEYS + 20)
        .map(|_| owner.expose(&memory, 0..64, Access::Read).expect("exposed"))
        .collect();
    let low = exposed.iter().filter(|exposure| exposure.region().key < OPTIMIZED_KEYS).count();
    assert_eq!(low as u64, OPTIMIZED_KEYS);
}

#[test]
fn a_cached_key_is_found_again_for_the_same_memory_alone() {
    let Stage { owner, fabric, .. } = stage(MrMethod::KeyCache, true, MrCosts::default());
    let memory = owner.buffers().alloc(8192).expect("memory");
    let key = |range, access| owner.expose(&memory, range, access).expect("exposed").region().key;
    let first = key(0..4096, Access::Read);
    assert_eq!(key(0..4096, Access::Read), first);
    assert_ne!(key(0..4096, Access::Write), first);
    assert_ne!(key(0..8192, Access::Read), first);
    assert_eq!(fabric.exposed(), 3, "all of them stay exposed");
}

#[test]
fn what_registering_costs_delays_the_thread_that_does_it() {
    let cost = |method| {
        let Stage { world, node, owner, writer, .. } = stage(method, true, MrCosts::SLINGSHOT);
        let from_owner = owner.insert(&writer.address()).expect("an address");
        let memory = writer.buffers().alloc(64).expect("memory");
        let exposed = writer.expose(&memory, 0..64, Access::Read).expect("exposed");
        let region = exposed.region();
        let began = world.now();
        world.block_on(&node, async move {
            let mut local = owner.buffers().alloc(64).expect("memory");
            for _ in 0..100 {
                drop(owner.expose(&local, 0..64, Access::Write).expect("exposed"));
                owner.read(from_owner, &mut local, 0..64, region).await.expect("read");
            }
        });
        (world.now() - began).as_micros() / 100
    };
    let [uncached, optimized, persistent, cache, events] = MrMethod::ALL.map(cost);
    assert!(
        uncached > events + 15 && optimized > uncached,
        "{uncached} {optimized} {events}: the kernel is called"
    );
    assert!(persistent <= cache && cache < events, "{persistent} {cache} {events}");
}

#[test]
fn tcp_goes_on_with_a_write_whose_registration_has_ended_and_says_that_it_does_not_know() {
    const LEN: usize = 32 << 20;
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let options = Options::near("tcp", "127.0.0.1", 1);
    let [one, other] = [open(&rt, &options), open(&rt, &options)].map(|made| made.expect("an endpoint"));
    let (_one_inbox, _other_inbox) = (listen(&one), listen(&other));
    executor.block_on(async {
        let to_other = one.insert(&other.address()).expect("an address");
        let source = Buffer::from_vec(vec![9; LEN]);
        let target = Buffer::from_vec(vec![0; LEN]);
        let exposure = other.expose(&target, 0..LEN, Access::Write).expect("exposed");
        let write = one.write(to_other, &source, 0..LEN, exposure.region());
        let arrived = || target.iter().take_while(|byte| **byte == 9).count();
        let begun = core::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if target.first() == Some(&9) { core::task::Poll::Ready(()) } else { core::task::Poll::Pending }
        });
        rt.timeout(Duration::from_secs(10), begun).await.expect("the first bytes");
        let Closed { ending, hold: _hold } = exposure.close();
        let before = arrived();
        assert!(before < LEN, "it ended in the middle of the write");
        assert!(matches!(ending, Ending::Untold), "{ending:?}");
        let written = rt.timeout(Duration::from_secs(10), write).await;
        println!(
            "tcp: {before} of {LEN} bytes at the end of the registration, {} afterwards: {written:?}",
            arrived()
        );
        assert!(
            arrived() > before,
            "this provider goes on; were it not so, `Ending::Certain` would be right"
        );
    });
}

#[test]
fn registrations_of_pooled_memory_serve_again_and_end_with_their_memory_or_when_withdrawn() {
    for provider in providers_within() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let options = Options { mr_cache: 64, ..Options::near(provider, "127.0.0.1", 1) };
        let [one, other] = [open(&rt, &options), open(&rt, &options)].map(|made| made.expect("an endpoint"));
        let (_one_inbox, _other_inbox) = (listen(&one), listen(&other));
        executor.block_on(async {
            let to_other = one.insert(&other.address()).expect("an address");
            let mut secret = other.buffers().alloc(4096).expect("memory");
            let mut local = one.buffers().alloc(4096).expect("memory");
            for round in 1..=10u8 {
                secret.fill(round);
                let exposure = other.expose(&secret, 0..4096, Access::Read).expect("exposed");
                let read = one.read(to_other, &mut local, 0..4096, exposure.region());
                rt.timeout(Duration::from_secs(10), read).await.expect("in time").expect("read");
                assert!(local.iter().all(|byte| *byte == round), "{provider}");
                exposure.settle();
            }
            let counters = other.counters();
            assert_eq!((counters.registrations.get(), counters.mr_hits.get()), (1, 9), "{provider}");
            let exposure = other.expose(&secret, 0..4096, Access::Read).expect("exposed");
            let region = exposure.region();
            let Closed { ending, .. } = exposure.close();
            assert!(matches!(ending, Ending::Untold), "{provider}: {ending:?}");
            if providers_with_keys().contains(&provider) {
                let late = rt
                    .timeout(Duration::from_secs(10), one.read(to_other, &mut local, 0..4096, region))
                    .await;
                assert!(matches!(late, Ok(Err(_))), "what was withdrawn is not kept: {late:?}");
            }
            drop(other.expose(&secret, 0..4096, Access::Read));
            assert_eq!(counters.registrations.get(), 2, "{provider}");
        });
    }
}
