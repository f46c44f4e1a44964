//! Random histories of one object, against which short cuts are tested: updates and punches at epochs in any order.

use crate::format::codec::crc32c;
use crate::operations::update::Data;
use crate::state::error::UpdateError;
use crate::state::shard::Shard;
use crate::upkeep::merge::tests::CONTAINER;
use proptest::prelude::*;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::{AkeyUpdate, Conditions, Extent, PunchScope, Value};
use weir_proto::{Epoch, Key, ObjectId};

pub(in crate::operations) const OBJECT: ObjectId = ObjectId { hi: 0, lo: 1 };

/// Dkeys and akeys are few, so that changes meet each other. Akeys of even numbers hold single values, the others arrays of
/// bytes.
pub(in crate::operations) const KEYS: u8 = 4;

pub(in crate::operations) fn name(number: u8) -> Key {
    Key::new(&[b'k', number, 0, 1][..usize::from(2 + number % 3)]).expect("a key")
}

/// A change of the object.
#[derive(Clone, Debug)]
pub(in crate::operations) enum Change {
    /// Stores so many bytes under some akeys of a dkey, in an array from a record on.
    Update {
        dkey: u8,
        akeys: Vec<u8>,
        index: u64,
        len: usize,
    },
    PunchAkey {
        dkey: u8,
        akey: u8,
    },
    PunchDkey {
        dkey: u8,
    },
    PunchObject,
}

fn change() -> impl Strategy<Value = Change> {
    let number = || 0..KEYS;
    // In the index, in one block, in several.
    let len = prop_oneof![4 => 1usize..90, 1 => 4000usize..4200, 1 => 8000usize..9500];
    let akeys = proptest::collection::btree_set(number(), 1..3).prop_map(|akeys| akeys.into_iter().collect());
    let index = prop_oneof![3 => 0u64..4, 1 => 0u64..200];
    prop_oneof![
        16 => (number(), akeys, index, len).prop_map(|(dkey, akeys, index, len)| Change::Update { dkey, akeys, index, len }),
        1 => (number(), number()).prop_map(|(dkey, akey)| Change::PunchAkey { dkey, akey }),
        1 => number().prop_map(|dkey| Change::PunchDkey { dkey }),
        1 => Just(Change::PunchObject),
    ]
}

/// The latest epoch of a history.
pub(in crate::operations) const LATEST: u64 = 40;

/// Changes, each with an epoch of its own.
pub(in crate::operations) fn history() -> impl Strategy<Value = Vec<(u64, Change)>> {
    let epochs = Just((1..=LATEST).collect::<Vec<u64>>());
    // Most come in order, as by a clock.
    let epochs = prop_oneof![epochs.clone(), epochs.prop_shuffle()];
    (epochs, proptest::collection::vec(change(), 1..30))
        .prop_map(|(epochs, changes)| epochs.into_iter().zip(changes).collect())
}

/// What is stored of an akey, with checksums at even epochs, and its data.
pub(in crate::operations) fn update(epoch: u64, akey: u8, index: u64, len: usize) -> (AkeyUpdate, Vec<u8>) {
    let size = u64::try_from(len).expect("small");
    let value = match akey % 2 {
        0 => Value::Single { size },
        _ => Value::Array { record_size: 1, extents: vec![Extent { index, count: size }] },
    };
    let data: Vec<u8> = (0u8..=250).cycle().skip(usize::from(akey) + 7 * len).take(len).collect();
    let sum = |range: core::ops::Range<u64>| {
        let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).expect("small"));
        crc32c(&data[start..end])
    };
    let sums = || chunk::chunks(&value, Grain::of([&value])).flat_map(Chunks::ranges).map(sum).collect();
    let checksums = if epoch.is_multiple_of(2) { sums() } else { Vec::new() };
    (AkeyUpdate { akey: name(akey), value, conditions: Conditions::NONE, checksums }, data)
}

impl Change {
    /// Makes it. Some are refused, such as an update at the epoch of a punch.
    pub(in crate::operations) async fn make(&self, shard: &Shard, epoch: u64) -> Result<Epoch, UpdateError> {
        let scope = match self {
            Self::Update { dkey, akeys, index, len } => {
                let parts = akeys.iter().map(|akey| update(epoch, *akey, *index, *len));
                let (updates, data): (Vec<_>, Vec<_>) = parts.unzip();
                let (data, none) = (data.concat(), Conditions::NONE);
                let (dkey, data) = (name(*dkey), Data::Borrowed(&data));
                return shard.update(CONTAINER, OBJECT, &dkey, Epoch(epoch), none, &updates, data).await;
            }
            Self::PunchAkey { dkey, akey } => PunchScope::Akeys(name(*dkey), vec![name(*akey)]),
            Self::PunchDkey { dkey } => PunchScope::Dkeys(vec![name(*dkey)]),
            Self::PunchObject => PunchScope::Object,
        };
        shard.punch(CONTAINER, OBJECT, &scope, Epoch(epoch), Conditions::NONE).await
    }
}
