//! Log records: changes of the index that become durable together.
//!
//! A record is self-contained and absolute (set this key to that value, remove that key), so that replaying records
//! in order from any earlier point gives the same end.

use crate::codec::{Decoder, Encode, Malformed};
use crate::tree::ENTRY_MAX;
use std::collections::BTreeMap;

/// A change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put { key: Vec<u8>, value: Vec<u8> },
    Remove { key: Vec<u8> },
}

impl Change {
    /// Sets a key.
    pub(crate) fn put(key: &[u8], value: Vec<u8>) -> Self {
        Self::Put { key: key.to_vec(), value }
    }

    /// Removes a key.
    pub(crate) fn remove(key: &[u8]) -> Self {
        Self::Remove { key: key.to_vec() }
    }

    /// Bytes that it takes in a record at most, but for its tag and lengths.
    fn len(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Remove { key } => key.len(),
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Remove { key } => key,
        }
    }
}

/// The values that records leave behind: of each key what its last change sets. Blocks of a value that a later change
/// of the same batch replaces or removes belong to somebody else as soon as the batch is durable.
pub(crate) fn values_left(records: &[Vec<Change>]) -> BTreeMap<&[u8], &[u8]> {
    let mut values = BTreeMap::new();
    for change in records.iter().flatten() {
        match change {
            Change::Put { key, value } => drop(values.insert(key.as_slice(), value.as_slice())),
            Change::Remove { key } => drop(values.remove(key.as_slice())),
        }
    }
    values
}

const REMOVE: u8 = 0;
const PUT: u8 = 1;

/// Bytes of a change beside key and value: its tag and three lengths below 2^14.
const CHANGE_OVERHEAD: usize = 8;

/// Appends a record. Keys are stored as the difference to the key before.
pub(crate) fn encode_record(changes: &[Change], out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(changes.iter().map(|change| change.len() + CHANGE_OVERHEAD).sum());
    body.put_varint(changes.len() as u64);
    let mut previous: &[u8] = &[];
    for change in changes {
        let key = change.key();
        let shared = previous.iter().zip(key).take_while(|(a, b)| a == b).count();
        body.put_u8(if matches!(change, Change::Put { .. }) { PUT } else { REMOVE });
        body.put_varint(shared as u64);
        body.put_varint((key.len() - shared) as u64);
        body.extend_from_slice(&key[shared..]);
        if let Change::Put { value, .. } = change {
            body.put_varint(value.len() as u64);
            body.extend_from_slice(value);
        }
        previous = key;
    }
    out.put_varint(body.len() as u64);
    out.extend_from_slice(&body);
}

/// Reads all records of a batch.
pub(crate) fn decode_records(bytes: &[u8]) -> Result<Vec<Vec<Change>>, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let mut records = Vec::new();
    while !decoder.is_empty() {
        let len = decoder.count(bytes.len())?;
        records.push(decode_changes(decoder.bytes(len)?)?);
    }
    Ok(records)
}

fn decode_changes(bytes: &[u8]) -> Result<Vec<Change>, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let count = decoder.count(bytes.len())?;
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..count {
        let tag = decoder.u8()?;
        let previous = changes.last().map_or(&[][..], Change::key);
        let shared = decoder.count(previous.len())?;
        let mut key = previous[..shared].to_vec();
        let suffix = decoder.count(ENTRY_MAX)?;
        key.extend_from_slice(decoder.bytes(suffix)?);
        let value_len = if tag == PUT { decoder.count(ENTRY_MAX)? } else { 0 };
        if key.len() + value_len > ENTRY_MAX {
            return Err(Malformed("an entry is too large"));
        }
        changes.push(match tag {
            PUT => Change::Put { key, value: decoder.bytes(value_len)?.to_vec() },
            REMOVE => Change::Remove { key },
            _ => return Err(Malformed("a change is of unknown kind")),
        });
    }
    if decoder.is_empty() { Ok(changes) } else { Err(Malformed("a record has bytes behind its end")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change() -> impl Strategy<Value = Change> {
        let bytes = || proptest::collection::vec(0u8..3, 0..30);
        prop_oneof![
            (bytes(), bytes()).prop_map(|(key, value)| Change::Put { key, value }),
            bytes().prop_map(|key| Change::Remove { key }),
        ]
    }

    #[test]
    fn of_each_key_the_last_change_counts() {
        let put = |key: &[u8], value: &[u8]| Change::Put { key: key.to_vec(), value: value.to_vec() };
        let records = [
            vec![put(b"a", b"1"), put(b"b", b"1"), put(b"c", b"1")],
            vec![Change::Remove { key: b"b".to_vec() }, put(b"a", b"2")],
            vec![put(b"b", b"3"), Change::Remove { key: b"c".to_vec() }],
        ];
        let left: Vec<(&[u8], &[u8])> = values_left(&records).into_iter().collect();
        assert_eq!(left, [(b"a".as_slice(), b"2".as_slice()), (b"b", b"3")]);
    }

    proptest! {
        #[test]
        fn records_survive_encoding(records in proptest::collection::vec(proptest::collection::vec(change(), 0..8), 0..6)) {
            let mut bytes = Vec::new();
            for record in &records {
                encode_record(record, &mut bytes);
            }
            prop_assert_eq!(decode_records(&bytes), Ok(records));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_records(&bytes);
        }
    }
}
