//! How long registering and ending a registration take in the simulator: figure 9.

use core::time::Duration;

use weir_fabric::sim::{Config, Fabric, MrCosts, MrModel};
use weir_fabric::{Access, MrMethod};
use weir_runtime::sim::World;

/// Registrations that are measured.
const ROUNDS: u32 = 100;

/// Bytes of the memory.
const LEN: usize = 4096;

/// Time of one registration, and of its end after one access, when both have been done before.
pub(super) fn times(method: MrMethod) -> (Duration, Duration) {
    let world = World::new(1);
    let latency = Duration::from_micros(1);
    let mr = MrModel { method, revokes: true, costs: MrCosts::SLINGSHOT };
    let config = Config { latency_min: latency, latency_max: latency, mr, ..Config::default() };
    let fabric = Fabric::with_config(&world, config);
    let node = world.node("client");
    let client = fabric.endpoint(&node, None);
    let server = fabric.endpoint(&world.node("server"), None);
    let outer = world.clone();
    world.block_on(&node, async move {
        let world = outer;
        let (mut registering, mut ending, mut least) = (Duration::ZERO, Duration::ZERO, Duration::MAX);
        let (Ok(to_server), Ok(to_client)) =
            (client.insert(&server.address()), server.insert(&client.address()))
        else {
            return (registering, ending);
        };
        let (Ok(memory), Ok(other), Ok(mut local)) =
            (client.buffers().alloc(LEN), server.buffers().alloc(LEN), client.buffers().alloc(LEN))
        else {
            return (registering, ending);
        };
        let Ok(mark) = server.expose(&other, 0..LEN, Access::Read) else { return (registering, ending) };
        // An operation leaves when the thread is done with what came before; what it takes alone is subtracted.
        for _ in 0..3 {
            let began = world.now();
            let _ = client.read(to_server, &mut local, 0..1, mark.region()).await;
            least = least.min(world.now() - began);
        }
        for round in 0..=ROUNDS {
            let began = world.now();
            let Ok(exposure) = client.expose(&memory, 0..LEN, Access::Read) else { break };
            let _ = client.read(to_server, &mut local, 0..1, mark.region()).await;
            let made = (world.now() - began).saturating_sub(least);
            let Ok(mut into) = server.buffers().alloc(LEN) else { break };
            let _ = server.read(to_client, &mut into, 0..1, exposure.region()).await;
            let began = world.now();
            exposure.settle();
            let _ = client.read(to_server, &mut local, 0..1, mark.region()).await;
            // The first one fills the cache.
            if round > 0 {
                registering += made;
                ending += (world.now() - began).saturating_sub(least);
            }
        }
        (registering / ROUNDS, ending / ROUNDS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registering_takes_what_the_paper_says_of_it() {
        let [uncached, optimized, persistent, cache, events] = MrMethod::ALL.map(times);
        let micros = Duration::from_micros;
        assert!(
            optimized.0 >= micros(15) && optimized.1 >= micros(15),
            "the kernel both times: {optimized:?}"
        );
        assert!(uncached.0 < micros(3) && uncached.1 >= micros(15), "the kernel at the end: {uncached:?}");
        assert!(
            events.0 < micros(3) && events.1 < micros(3) && events.1 > micros(1),
            "about 2 µs: {events:?}"
        );
        assert!(cache.0 * 5 < events.0 && cache.1 * 5 < events.1, "an order of magnitude less: {cache:?}");
        assert_eq!(persistent, cache);
    }
}
