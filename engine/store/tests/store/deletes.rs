//! Deletes on a device that is full for updates: each takes an entry of the index until aggregation. As long as there is
//! room they work; then they are refused, nothing hangs, and space comes back.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_proto::object::PunchScope;
use weir_proto::{Epoch, Key};
use weir_runtime::Handle;
use weir_runtime::random::Random;
use weir_store::{Shard, Store, StoreConfig, UpdateError};

/// Far longer than anything takes.
const LONG: Duration = Duration::from_mins(1);

/// Deletes and aggregation in turns until all is gone, at most.
const ROUNDS: u32 = 100;

/// A dkey of nearly the largest length that has no beginning in common with others.
fn long_key(number: u64) -> Key {
    Key::new(&pattern(number + 1, 1000)).expect("a long key")
}

/// Stores small values under long dkeys until there is no room for another one. Returns the dkeys, in any order.
async fn fill(shard: &Shard, seed: u64) -> Vec<Key> {
    let mut dkeys = Vec::new();
    for number in 0.. {
        let (dkey, akeys) = (long_key(number), [single("a", b"weir")]);
        let (epoch, none) = (Epoch(number + 1), weir_proto::object::Conditions::NONE);
        let data = weir_store::Data::Borrowed(b"weir");
        match shard.update(CONTAINER, OBJECT, &dkey, epoch, none, &akeys, data).await {
            Ok(_) => dkeys.push(dkey),
            Err(UpdateError::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let random = Random::new(seed);
    for at in (1..dkeys.len()).rev() {
        dkeys.swap(at, random.below(at as u64 + 1) as usize);
    }
    dkeys
}

/// Deletes dkeys, so many at a time. Returns those for which there was no room.
async fn delete(
    (handle, store, shard): (&Handle, &Store, &Shard),
    dkeys: &[Key],
    epoch: &mut u64,
    together: usize,
) -> Vec<Key> {
    let mut refused = Vec::new();
    for part in dkeys.chunks(together) {
        *epoch += 1;
        let deleted =
            handle.timeout(LONG, punch(shard, OBJECT, PunchScope::Dkeys(part.to_vec()), *epoch)).await;
        match deleted.unwrap_or_else(|_| panic!("a delete hangs: {:?}", store.stats())) {
            Ok(_) => {}
            Err(error @ UpdateError::NoSpace { .. }) => {
                assert!(error.to_string().contains("full"), "{error}");
                refused.extend_from_slice(part);
            }
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// Fills a device and deletes all of it, so many dkeys at a time. Returns how many there were, and how many of the deletes
/// had no room at first.
fn empty(seed: u64, config: StoreConfig, together: usize) -> (usize, usize) {
    let machine = Machine::new(seed, 32 << 20);
    machine.format();
    let store = machine.open(config);
    let (opened, handle) = (Rc::clone(&store), machine.handle());
    let counts = machine.run(async move {
        let shard = opened.create_pool(POOL, opened.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        let dkeys = fill(&shard, seed).await;
        let (mut left, mut epoch, mut first) = (dkeys.clone(), 1 << 20, None);
        for _ in 0..ROUNDS {
            // Many at a time may have no room where fewer have.
            let mut refused = delete((&handle, &opened, &shard), &left, &mut epoch, together).await;
            first.get_or_insert(refused.len());
            if together > 1 {
                refused = delete((&handle, &opened, &shard), &refused, &mut epoch, 1).await;
            }
            assert!(refused.len() < left.len(), "no delete has room: {:?}", opened.stats());
            left = refused;
            let aggregated = Box::pin(handle.timeout(LONG, shard.aggregate(CONTAINER, Epoch(epoch)))).await;
            let hangs = || format!("aggregation hangs: {:?}", opened.stats());
            aggregated.unwrap_or_else(|_| panic!("{}", hangs())).expect("aggregated");
            for _ in 0..2 {
                opened.checkpoint().await.expect("there is room for index nodes");
            }
            if left.is_empty() {
                break;
            }
        }
        assert_eq!(left.len(), 0, "some can never be deleted");
        assert!(opened.space().used < 1 << 20, "{:?}", opened.space());
        put(&shard, "large", "a", 1 << 42, &pattern(1, 8 << 20)).await.expect("all of it is free");
        (dkeys.len(), first.unwrap_or(0))
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    counts
}

#[test]
fn deletes_go_on_on_a_full_device_until_their_room_is_used_up_and_again_after_aggregation() {
    for (seed, config) in [(0, quiet()), (1, cramped())] {
        let (all, refused) = empty(seed, config, 1);
        assert!(refused > 0, "all {all} deletes have room: nothing is shown");
    }
}

#[test]
fn a_delete_of_many_dkeys_that_changes_more_nodes_than_there_is_room_for_is_refused() {
    let (all, refused) = empty(2, quiet(), 256);
    assert!(refused > 0, "all {all} deletes have room: nothing is shown");
}

#[test]
fn background_aggregation_gives_deletes_their_room_back() {
    empty(3, StoreConfig { retention: Duration::from_millis(1), ..StoreConfig::default() }, 1);
}
