//! Maps by numbers that come from the network.
//!
//! A look-up is a good part of the cost of a small request, so that the hash is two multiplications. It depends on a
//! random number of each context, so that a peer that chooses the keys can't choose their buckets.

use core::hash::{BuildHasher, Hasher};
use std::collections::HashMap;

/// A map by numbers.
pub(crate) type IdMap<K, V> = HashMap<K, V, IdHash>;

/// An odd constant whose bits are spread evenly: 2^64 divided by the golden ratio.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes hashers of one map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHash(u64);

impl From<u64> for IdHash {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { seed: self.0, state: self.0 }
    }
}

/// Hashes a number, or a few.
pub(crate) struct IdHasher {
    seed: u64,
    state: u64,
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the product")]
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            self.write_u64(chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.state = fold(self.state ^ number, SPREAD ^ self.seed.rotate_left(32));
    }

    fn finish(&self) -> u64 {
        fold(self.state, self.seed | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, ClientId, Rpc, RpcConfig};
    use core::hash::BuildHasher;
    use weir_proto::TenantId;
    use weir_runtime::sim::World;

    #[test]
    fn where_names_fall_that_clients_choose_follows_from_nothing_that_they_see() {
        let world = World::new(5);
        let node = world.node("server");
        let fabric = weir_fabric::sim::Fabric::new(&world);
        let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default());
        let caller = Caller { tenant: TenantId(3), id: ClientId::new(7) };
        // Every answer shows the context's id.
        let follows = [0, rpc.id().bits()].map(IdHash::from).map(|seen| {
            let queue = rpc.server.hash(caller) == seen.hash_one(caller);
            let accesses = rpc.context.accesses.hash(caller) == seen.hash_one((caller, 1u64));
            (queue, accesses)
        });
        assert_eq!(follows, [(false, false); 2]);
    }

    #[test]
    fn numbers_in_a_row_and_far_apart_fall_everywhere_and_elsewhere_in_another_map() {
        for step in [1u64, 4096, 1 << 32, 1 << 56] {
            let (one, two) = (IdHash::from(3), IdHash::from(0x1234_5678_9abc_def0));
            let mut buckets = [0u32; 64];
            let mut same = 0;
            for n in 0..6400u64 {
                let key = n.wrapping_mul(step);
                buckets[usize::try_from(two.hash_one(key) >> 58).expect("six bits")] += 1;
                same += u32::from(one.hash_one(key) >> 58 == two.hash_one(key) >> 58);
            }
            if step == 1 << 56 {
                continue; // Only 256 different keys.
            }
            assert!(buckets.iter().all(|count| (40..200).contains(count)), "{step}: {buckets:?}");
            assert!(same < 1000, "{step}: {same}");
        }
    }
}
