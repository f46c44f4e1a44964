//! Reserved records of an akey as they are stored, and what they count for.

use crate::codec::Decoder;
use crate::codec::Encode;
use crate::codec::Malformed;
use crate::key;
use crate::key::BELOW;
use crate::key::KeyBytes;
use crate::key::OBJECT_LEN;
use crate::key::ObjectKey;
use crate::key::RESERVED;
use crate::key::has_integer_akeys;
use crate::key::object_path;
use crate::key::put_key;
use crate::key::take_key;
use core::ops::Range;
use weir_media::BLOCK;
use weir_proto::{Key, ObjectId};

/// Most runs that an entry has. Beyond it the nearest ones are joined: what is written between them counts as reserved, too.
const RUNS_MAX: usize = 64;

/// Bytes of an index entry of an update beside its path: the rest of the key, a version of one block, and its part of what
/// commits along with it.
const ENTRY_BYTES: u64 = 64;

/// Entries that the first update of a dkey brings along: those of object, dkey and akey.
const ENTRIES_ABOVE: u64 = 3;

/// Blocks of a dkey that are kept beside: what isn't written in whole blocks begins or ends in the midst of one, and needs one more.
const BLOCKS_BESIDE: u64 = 2;

/// What stands behind the keys: an epoch as all entries of objects have, that before all others.
const EPOCH: [u8; 8] = (!0_u64).to_be_bytes();

/// Records of one dkey and akey for which room is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Bytes of a record, at least 1.
    pub record_size: u32,
    /// Bytes of the pool's share, and of the container's quota, that are kept, at least 1.
    pub bytes: u64,
    /// Ascending, with something between them, at least one.
    pub runs: Vec<Range<u64>>,
}

/// What all reservations of an object begin with.
#[must_use]
pub fn prefix(object: &ObjectKey) -> Vec<u8> {
    let mut key = object_path(object).to_vec();
    key.push(RESERVED);
    key
}

/// What those of a dkey begin with, which are behind those of lower ones.
#[must_use]
pub fn dkey_prefix(object: &ObjectKey, dkey: u64) -> Vec<u8> {
    let mut key = prefix(object);
    key.extend_from_slice(&dkey.to_be_bytes());
    key
}

/// Key of the entry of a dkey and an akey.
#[must_use]
pub fn key_of(object: &ObjectKey, dkey: u64, akey: &Key) -> KeyBytes {
    let mut key = KeyBytes::from_slice(&object_path(object));
    key.push(RESERVED);
    key.extend_from_slice(&dkey.to_be_bytes());
    put_key(|piece| key.extend_from_slice(piece), akey, has_integer_akeys(object.2));
    key.extend_from_slice(&EPOCH);
    key
}

/// Dkey and akey of an entry, from what follows the path of the object.
///
/// # Errors
/// When they do not follow the format.
pub fn keys_from(object: ObjectId, rest: &[u8]) -> Result<(u64, Key), Malformed> {
    let mut decoder = Decoder::new(rest);
    if decoder.u8()? != RESERVED || !key::has_integer_dkeys(object) {
        return Err(Malformed("an object's entry is of unknown kind"));
    }
    let dkey = u64::from_be_bytes(decoder.array()?);
    if decoder.u8()? != BELOW {
        return Err(Malformed("a reservation names no akey"));
    }
    let akey = take_key(&mut decoder, has_integer_akeys(object))?;
    if decoder.rest() != EPOCH {
        return Err(Malformed("a reservation has another epoch than 0"));
    }
    Ok((dkey, akey))
}

/// Bytes that the entry of this key keeps: 0 for any other entry.
///
/// # Errors
/// When the value does not follow the format.
pub fn bytes_of(key: &[u8], value: &[u8]) -> Result<u64, Malformed> {
    if !key::is_reserved(key) {
        return Ok(0);
    }
    let mut decoder = Decoder::new(value);
    decoder.varint()?;
    decoder.varint()
}

/// Takes the records of one of the other's runs off runs.
#[must_use]
pub fn without(runs: &[Range<u64>], gone: &Range<u64>) -> Vec<Range<u64>> {
    let parts = runs.iter().flat_map(|run| {
        let before = run.start..run.end.min(gone.start);
        let behind = run.start.max(gone.end)..run.end;
        [before, behind]
    });
    parts.filter(|part| part.start < part.end).collect()
}

/// Sorts runs and joins those that meet.
fn join(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    while joined.len() > RUNS_MAX {
        let gap = |at: &usize| joined[*at].start - joined[*at - 1].end;
        let nearest = (1..joined.len()).min_by_key(gap).expect("there are several");
        let behind = joined.remove(nearest);
        joined[nearest - 1].end = behind.end;
    }
    joined
}

/// Bytes of an entry of the index that an update brings along, as a pool counts them, where the reservation's key has so many.
const fn entry_price(key: usize) -> u64 {
    (key as u64 + ENTRY_BYTES) * 3 / 2
}

impl Reserved {
    /// Nothing of an akey whose records have this size.
    #[must_use]
    pub const fn none(record_size: u32) -> Self {
        Self { record_size, bytes: 0, runs: Vec::new() }
    }

    /// The same with more records.
    #[must_use]
    pub fn with(&self, more: &[Range<u64>]) -> Self {
        Self { runs: join([&self.runs, more].concat()), ..*self }
    }

    /// The same without some records.
    #[must_use]
    pub fn without(&self, gone: &Range<u64>) -> Self {
        Self { runs: join(without(&self.runs, gone)), ..*self }
    }

    /// Bytes that suffice to write the records, block by block of 4 KiB in any order, or in few pieces of any length, where the
    /// entry's key has so many.
    #[must_use]
    pub fn price(&self, key: usize) -> u64 {
        let (block, each) = (BLOCK as u128, u128::from(BLOCK as u64 + entry_price(key)));
        let blocks = |run: &Range<u64>| {
            let size = u128::from(self.record_size);
            (u128::from(run.end) * size).div_ceil(block) - u128::from(run.start) * size / block
        };
        self.sum(key, BLOCKS_BESIDE, self.runs.iter().map(|run| blocks(run) * each))
    }

    /// Bytes that it takes at least to write them, each run at once.
    #[must_use]
    pub fn least(&self, key: usize) -> u64 {
        let bytes = |run: &Range<u64>| u128::from(run.end - run.start) * u128::from(self.record_size);
        let blocks = |run| bytes(run).next_multiple_of(BLOCK as u128) + u128::from(entry_price(key));
        self.sum(key, 0, self.runs.iter().map(blocks))
    }

    fn sum(&self, key: usize, beside: u64, runs: impl Iterator<Item = u128>) -> u64 {
        if self.runs.is_empty() {
            return 0;
        }
        let all = runs.sum::<u128>() + u128::from(ENTRIES_ABOVE * entry_price(key) + beside * BLOCK as u64);
        // A client may name more records than u64 has bytes for. The most that there is is more than any pool has, too.
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Whether it keeps nothing, so that no entry is stored.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.bytes == 0 || self.runs.is_empty()
    }

    /// The value of its entry.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_varint(self.record_size.into());
        out.put_varint(self.bytes);
        let mut at = 0;
        for run in &self.runs {
            out.put_varint(run.start - at);
            out.put_varint(run.end - run.start);
            at = run.end;
        }
        out
    }

    /// Reads the value of an entry.
    ///
    /// # Errors
    /// When it does not follow the format, or keeps nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let record_size = u32::try_from(decoder.varint()?);
        let record_size = record_size.map_err(|_| Malformed("a reservation has impossible records"))?;
        let (bytes, mut runs) = (decoder.varint()?, Vec::new());
        let mut at = 0_u64;
        while !decoder.is_empty() {
            let (gap, count) = (decoder.varint()?, decoder.varint()?);
            let start = at.checked_add(gap).filter(|_| count > 0 && (gap > 0 || runs.is_empty()));
            let end = start.and_then(|start| start.checked_add(count));
            let run = start.zip(end).filter(|_| runs.len() < RUNS_MAX);
            let (start, end) = run.ok_or(Malformed("a reservation has impossible runs of records"))?;
            runs.push(start..end);
            at = end;
        }
        let reserved = Self { record_size, bytes, runs };
        if record_size == 0 || reserved.is_none() {
            return Err(Malformed("a reservation keeps nothing"));
        }
        Ok(reserved)
    }
}

/// The object of an entry, and what follows its path.
#[must_use]
pub fn place_from(key: &[u8]) -> Option<&[u8]> {
    key.get(OBJECT_LEN..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::epoch_of;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const OBJECT: ObjectKey = (1, 2, ObjectId { hi: 13 << 56, lo: 3 });

    fn runs() -> impl Strategy<Value = Vec<Range<u64>>> {
        let run = (0_u64..400, 1_u64..30).prop_map(|(start, count)| start..start + count);
        proptest::collection::vec(run, 0..9)
    }

    fn records(runs: &[Range<u64>]) -> BTreeSet<u64> {
        runs.iter().cloned().flatten().collect()
    }

    proptest! {
        #[test]
        fn runs_are_a_set_of_records(one in runs(), other in runs(), gone in runs()) {
            let reserved = Reserved::none(1).with(&one).with(&other);
            let mut model: BTreeSet<u64> = records(&one).union(&records(&other)).copied().collect();
            prop_assert_eq!(records(&reserved.runs), model.clone());
            prop_assert!(reserved.runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            let left = gone.iter().fold(reserved, |left, gone| left.without(gone));
            model.retain(|record| !records(&gone).contains(record));
            prop_assert_eq!(records(&left.runs), model);
            prop_assert!(left.price(50) >= left.least(50));
        }

        #[test]
        fn reservations_come_back(runs in runs(), bytes in 1_u64.., record_size in 1_u32.., dkey: u64) {
            let reserved = Reserved { bytes, ..Reserved::none(record_size).with(&runs) };
            prop_assert_eq!(Reserved::decode(&reserved.encode()).ok(), (!runs.is_empty()).then_some(reserved.clone()));
            let akey = Key::new(b"a\0b").expect("short");
            let key = key_of(&OBJECT, dkey, &akey);
            prop_assert_eq!(keys_from(OBJECT.2, place_from(&key).expect("longer")), Ok((dkey, akey)));
            prop_assert_eq!(bytes_of(&key, &reserved.encode()), Ok(bytes));
            prop_assert!(key.starts_with(&dkey_prefix(&OBJECT, dkey)) && epoch_of(&key) == Some(0));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(reserved) = Reserved::decode(&bytes) {
                prop_assert_eq!(Reserved::decode(&reserved.encode()), Ok(reserved));
            }
            let _ = keys_from(OBJECT.2, &bytes);
        }
    }

    #[test]
    fn more_runs_than_fit_an_entry_are_joined_where_they_are_nearest() {
        let comb: Vec<Range<u64>> = (0..100).map(|tooth| tooth * 10..tooth * 10 + 1 + tooth % 2).collect();
        let reserved = Reserved::none(1).with(&comb);
        assert_eq!(reserved.runs.len(), RUNS_MAX);
        assert!(records(&reserved.runs).is_superset(&records(&comb)));
    }

    #[test]
    fn huge_runs_have_a_price() {
        let reserved = Reserved::none(u32::MAX).with(&[0..1, 2..u64::MAX]);
        assert_eq!((reserved.price(50), reserved.least(50)), (u64::MAX, u64::MAX));
    }
}
