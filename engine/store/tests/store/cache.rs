//! The cache of small values gives none that stood in a block before, not even one with the same checksum.

use crate::setup::*;
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{Epoch, Key};
use weir_runtime::random::Random;
use weir_store::{Data, Shard, StoreConfig};

const BLOCK: u64 = 4096;
/// Extents of a block each that make an update a large one.
const EXTENTS: u64 = 16;
/// The generator of CRC-32C, lowest bit first: added to data anywhere, it changes nothing of the checksum.
const GENERATOR: u64 = 1 | 0x82f6_3b78 << 1;

/// A block in two forms of the same checksum.
fn form(number: u64) -> Vec<u8> {
    let mut block = pattern(1, BLOCK as usize);
    if number == 1 {
        block.iter_mut().zip(GENERATOR.to_le_bytes()).for_each(|(byte, add)| *byte ^= add);
    }
    block
}

/// Stores the block in all extents at once.
async fn write_all(shard: &Shard, epoch: u64, block: &[u8]) {
    let extents: Vec<_> = (0..EXTENTS).map(|number| (2 * number * BLOCK, BLOCK)).collect();
    let (update, data) = ([array("data", 1, &extents)], block.repeat(EXTENTS as usize));
    let (dkey, data) = (Key::from_u64(1), Data::Borrowed(&data));
    let stored = shard.update(CONTAINER, ARRAY, &dkey, Epoch(epoch), Conditions::NONE, &update, data);
    stored.await.expect("stored");
}

#[test]
fn a_block_that_is_written_in_a_large_update_is_not_taken_for_what_it_held() {
    assert!(crc(&form(0)) == crc(&form(1)) && form(0) != form(1));
    let machine = Machine::new(1, 16 << 20);
    let (store, shard) = machine.start(StoreConfig { cache_bytes: 16 << 20, ..quiet() });
    let random = Random::new(1);
    machine.run(async move {
        for round in 1..200 {
            let block = form(random.below(2));
            write_all(&shard, 10 * round, &block).await;
            for number in 0..EXTENTS {
                let (found, _) = read(&shard, 1, u64::MAX, 2 * number * BLOCK, BLOCK).await.expect("read");
                assert!(found == block, "extent {number} in round {round}");
            }
            punch(&shard, ARRAY, PunchScope::Object, 10 * round + 1).await.expect("punched");
            shard.aggregate(CONTAINER, Epoch(10 * round + 2)).await.expect("aggregated");
        }
    });
    assert!(store.stats().cache.bytes > 0);
}
