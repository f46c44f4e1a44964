//! A device whose free space lies in single blocks between values: there is room for index nodes all the same, so that
//! checkpoints are written, deletes work, and all of the space comes back.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_proto::Epoch;
use weir_proto::object::PunchScope;
use weir_runtime::Handle;
use weir_runtime::random::Random;
use weir_store::{Shard, Store, StoreConfig, UpdateError};

/// Far longer than anything takes.
const LONG: Duration = Duration::from_mins(1);

const ROUNDS: u64 = 50;

/// Overwrites values of a block, and such as stand in the index, at random; what has no room is deleted instead. Returns how
/// many were stored and how many refused.
async fn overwrite(handle: &Handle, store: &Store, shard: &Shard, seed: u64) -> (u64, u64) {
    let random = Random::new(seed);
    let (mut epoch, mut stored, mut refused) = (1, 0, 0);
    for round in 0..ROUNDS {
        for _ in 0..400 {
            epoch += 2;
            let (name, len) = match random.below(2) {
                0 => (format!("s{}", random.below(2500)), 2500),
                _ => (format!("b{}", random.below(6000)), 4096),
            };
            let hangs = |what: &str| format!("seed {seed}, round {round}: {what}, {:?}", store.space());
            let value = pattern(epoch, len);
            let update = handle.timeout(LONG, put(shard, &name, "a", epoch, &value)).await;
            match update.unwrap_or_else(|_| panic!("{}", hangs("an update hangs"))) {
                Ok(_) => stored += 1,
                Err(UpdateError::NoSpace { .. } | UpdateError::Fragmented(_)) => {
                    refused += 1;
                    let scope = PunchScope::Dkeys(vec![key(&name)]);
                    let punch = handle.timeout(LONG, punch(shard, OBJECT, scope, epoch + 1)).await;
                    punch.unwrap_or_else(|_| panic!("{}", hangs("a delete hangs"))).expect("deleted");
                }
                Err(error) => panic!("{error}"),
            }
        }
        let aggregated = Box::pin(handle.timeout(LONG, shard.aggregate(CONTAINER, Epoch(epoch + 1)))).await;
        aggregated.expect("aggregation doesn't hang").expect("aggregated");
        store.checkpoint().await.expect("there is room for index nodes");
    }
    (stored, refused)
}

fn live(seed: u64, config: StoreConfig) {
    let machine = Machine::new(seed, 32 << 20);
    machine.format();
    let store = machine.open(config);
    let (opened, handle) = (Rc::clone(&store), machine.handle());
    machine.run(async move {
        let shard = opened.create_pool(POOL, opened.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        let (stored, refused) = Box::pin(overwrite(&handle, &opened, &shard, seed)).await;
        assert!(stored > 3 * refused, "{refused} refused, {stored} stored");
        punch(&shard, OBJECT, PunchScope::Object, 1 << 40).await.expect("a delete works when full");
        shard.aggregate(CONTAINER, Epoch(1 << 41)).await.expect("aggregated");
        for _ in 0..2 {
            opened.checkpoint().await.expect("written");
        }
        assert!(opened.space().used < 1 << 20, "{:?}", opened.space());
        put(&shard, "large", "a", 1 << 42, &pattern(1, 8 << 20)).await.expect("all of it is free");
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn index_nodes_find_room_however_scattered_it_is() {
    for seed in 0..3 {
        live(seed, quiet());
    }
    live(3, cramped());
    live(4, StoreConfig { retention: Duration::from_millis(1), ..StoreConfig::default() });
}
