//! Log records: changes of the index that become durable together.
//!
//! A record is self-contained and absolute (set this key to that value, remove that key), so that replaying records
//! in order from any earlier point gives the same end.

use crate::codec::{Decoder, Encode, Malformed};
use crate::edit_buffer::EditBuffer;
use crate::usage::entry_bytes;

use crate::key;
use crate::node::ENTRY_MAX;
use crate::value::{Blocks, Payload, Version};
use core::hash::Hasher as _;
use std::collections::BTreeMap;
use std::hash::DefaultHasher;

/// Most bytes of one record: the inline values of one request with the longest keys.
pub const RECORD_MAX: usize = 2 << 20;

/// A change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key is set.
    Put {
        /// The key.
        key: Vec<u8>,
        /// What it is set to.
        value: Vec<u8>,
    },
    /// A key is removed.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
}

impl Change {
    /// Sets a key.
    #[must_use]
    pub fn put(key: &[u8], value: Vec<u8>) -> Self {
        Self::Put { key: key.to_vec(), value }
    }

    /// Removes a key.
    #[must_use]
    pub fn remove(key: &[u8]) -> Self {
        Self::Remove { key: key.to_vec() }
    }

    /// The key that it sets or removes.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Remove { key } => key,
        }
    }
}

/// A change by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What the key is set to; `None` when it is removed.
    pub value: Option<&'a [u8]>,
}

impl<'a> From<&'a Change> for Edit<'a> {
    fn from(change: &'a Change) -> Self {
        match change {
            Change::Put { key, value } => Self { key, value: Some(value) },
            Change::Remove { key } => Self { key, value: None },
        }
    }
}

/// Bytes that changes may add to what a pool uses.
#[must_use]
pub fn growth(changes: &[Change]) -> u64 {
    let set = changes.iter().filter_map(|change| match change {
        Change::Put { key, value } => Some(entry_bytes(key.len(), value.len())),
        Change::Remove { .. } => None,
    });
    set.sum()
}

const REMOVE: u8 = 0;
const PUT: u8 = 1;

/// Bytes of a record's length in nearly all cases.
const LENGTH_BYTES: usize = 2;

/// Bytes of a change beside key and value, at most: what it is and three lengths of up to [`ENTRY_MAX`].
pub const CHANGE_BYTES_MAX: usize = 7;

/// Bytes of a record beside its changes, at most: its length and how many there are.
const RECORD_HEAD_MAX: usize = 16;

/// Appends a change whose lengths take a byte each, as they nearly always do. `false`: they take more.
#[inline]
fn put_short(tag: u8, shared: usize, rest: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool {
    if shared | rest.len() | value.len() >= 0x80 {
        return false;
    }
    let byte = |len: usize| len.to_le_bytes()[0];
    out.extend_from_slice(&[tag, byte(shared), byte(rest.len())]);
    out.extend_from_slice(rest);
    if tag == PUT {
        out.push(byte(value.len()));
        out.extend_from_slice(value);
    }
    true
}

/// As [`put_short`], whatever the lengths.
#[inline(never)]
fn put_any(tag: u8, shared: usize, rest: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.put_u8(tag);
    out.put_varint(shared as u64);
    out.put_varint(rest.len() as u64);
    out.extend_from_slice(rest);
    if tag == PUT {
        out.put_varint(value.len() as u64);
        out.extend_from_slice(value);
    }
}

/// Appends a record. Keys are stored as the difference to the key before. A function of its own has registers for all that its
/// loop needs.
#[inline(never)]
pub fn encode_record(buffer: &EditBuffer, out: &mut Vec<u8>) {
    // The length comes first and is known last.
    let start = out.len();
    out.reserve(len_max(buffer));
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.put_varint(buffer.len() as u64);
    buffer.for_each(|(key, value, is_set), shared| {
        let (tag, rest) = (if is_set { PUT } else { REMOVE }, &key[shared..]);
        if !put_short(tag, shared, rest, value, out) {
            put_any(tag, shared, rest, value, out);
        }
    });
    let len = out.len() - start - LENGTH_BYTES;
    if (1 << 7..1 << 14).contains(&len) {
        let [low, high] = [len & 0x7f | 0x80, len >> 7];
        out[start] = u8::try_from(low).unwrap_or_default();
        out[start + 1] = u8::try_from(high).unwrap_or_default();
        return;
    }
    let mut length = Vec::new();
    length.put_varint(len as u64);
    out.splice(start..start + LENGTH_BYTES, length);
}

/// Bytes of a number as a record stores it.
fn varint_len(value: usize) -> usize {
    (1 + value.checked_ilog2().unwrap_or(0) as usize / 7).max(1)
}

/// Bytes that [`encode_record`] appends, at most.
fn len_max(buffer: &EditBuffer) -> usize {
    RECORD_HEAD_MAX + buffer.bytes() + buffer.len() * CHANGE_BYTES_MAX
}

/// Bytes that [`encode_record`] appends.
#[must_use]
pub fn record_len(buffer: &EditBuffer) -> usize {
    let mut len = varint_len(buffer.len());
    buffer.for_each(|(key, value, is_set), shared| {
        let rest = key.len() - shared;
        len += 1 + varint_len(shared) + varint_len(rest) + rest;
        len += if is_set { varint_len(value.len()) + value.len() } else { 0 };
    });
    varint_len(len) + len
}

/// The bytes of a record of these changes when they are more than [`RECORD_MAX`].
#[must_use]
pub fn excess_len(buffer: &EditBuffer) -> Option<usize> {
    if len_max(buffer) <= RECORD_MAX {
        return None;
    }
    // Keys may have much in common.
    Some(record_len(buffer)).filter(|len| *len > RECORD_MAX)
}

/// The records of a batch, read one change at a time: what keys have in common stands there once, and all of them spelt out
/// can take a thousand times the bytes of the batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Records {
    bytes: Vec<u8>,
    count: usize,
    changes: usize,
}

impl Records {
    /// Takes all records of a batch after a look at each.
    ///
    /// # Errors
    /// When one of them does not follow the format.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(&bytes);
        let mut changes = 0;
        while cursor.next()?.is_some() {
            changes += 1;
        }
        let count = cursor.count;
        Ok(Self { bytes, count, changes })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The changes of all of them.
    #[must_use]
    pub fn changes_len(&self) -> usize {
        self.changes
    }

    /// The changes in their order, each with the number of its record.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, Change)> {
        let mut cursor = Cursor::new(&self.bytes);
        // All were looked at: none is malformed.
        core::iter::from_fn(move || {
            let (key, value) = cursor.next().ok()??;
            let key = key.to_vec();
            let change = match value {
                Some(value) => Change::Put { key, value: value.to_vec() },
                None => Change::Remove { key },
            };
            Some((cursor.count - 1, change))
        })
    }

    /// The changes in their order, but for those of the first `skipped` records.
    pub fn changes(&self, skipped: usize) -> impl Iterator<Item = Change> {
        let behind = self.numbered().skip_while(move |(number, _)| *number < skipped);
        behind.map(|(_, change)| change)
    }

    /// The versions in blocks that the records leave behind: of each key what its last change sets. Blocks of a value that a
    /// later change of the same batch replaces or removes belong to somebody else as soon as the batch is durable.
    #[must_use]
    pub fn blocks_left(&self) -> Vec<Blocks> {
        // Keys go by their hashes: were two the same, the data of one value more or less would be looked at.
        let mut left = BTreeMap::new();
        for change in self.changes(0).filter(|change| key::is_version(change.key())) {
            let mut hasher = DefaultHasher::new();
            hasher.write(change.key());
            let value = match change {
                Change::Put { value, .. } if Version::has_blocks(&value) => Some(value),
                _ => None,
            };
            match value {
                Some(value) => drop(left.insert(hasher.finish(), value)),
                None => drop(left.remove(&hasher.finish())),
            }
        }
        let blocks = |value: Vec<u8>| match Version::decode(&value).ok()?.payload {
            Payload::Blocks(blocks) => Some(blocks),
            _ => None,
        };
        left.into_values().filter_map(blocks).collect()
    }
}

/// A way through the changes of a batch.
struct Cursor<'a> {
    records: Decoder<'a>,
    /// What is left of the present record.
    record: Decoder<'a>,
    /// How many changes that should be.
    left: usize,
    /// Records that were begun.
    count: usize,
    key: Vec<u8>,
}

impl<'a> Cursor<'a> {
    const fn new(bytes: &'a [u8]) -> Self {
        let (records, record) = (Decoder::new(bytes), Decoder::new(&[]));
        Self { records, record, left: 0, count: 0, key: Vec::new() }
    }

    /// Key and value of the next change; no value of a key that is removed.
    #[expect(clippy::type_complexity, reason = "a change by reference, which lives until the next one")]
    fn next(&mut self) -> Result<Option<(&[u8], Option<&'a [u8]>)>, Malformed> {
        while self.left == 0 {
            if !self.record.is_empty() {
                return Err(Malformed("a record has bytes behind its end"));
            }
            if self.records.is_empty() {
                return Ok(None);
            }
            let len = self.records.count(self.records.rest().len())?;
            self.record = Decoder::new(self.records.bytes(len)?);
            self.left = self.record.count(len)?;
            self.count += 1;
            self.key.clear();
        }
        self.left -= 1;
        let tag = self.record.u8()?;
        let shared = self.record.count(self.key.len())?;
        let suffix = self.record.count(ENTRY_MAX)?;
        self.key.truncate(shared);
        self.key.extend_from_slice(self.record.bytes(suffix)?);
        let value_len = if tag == PUT { self.record.count(ENTRY_MAX)? } else { 0 };
        if self.key.len() + value_len > ENTRY_MAX {
            return Err(Malformed("an entry is too large"));
        }
        let value = match tag {
            PUT => Some(self.record.bytes(value_len)?),
            REMOVE => None,
            _ => return Err(Malformed("a change is of unknown kind")),
        };
        Ok(Some((&self.key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Lone;
    use proptest::prelude::*;

    fn change() -> impl Strategy<Value = Change> {
        let bytes = || proptest::collection::vec(0u8..3, 0..30);
        prop_oneof![
            (bytes(), bytes()).prop_map(|(key, value)| Change::Put { key, value }),
            bytes().prop_map(|key| Change::Remove { key }),
        ]
    }

    /// All records of a batch, each with its changes.
    fn decode_records(bytes: &[u8]) -> Result<Vec<Vec<Change>>, Malformed> {
        let records = Records::decode(bytes.to_vec())?;
        let mut found = vec![Vec::new(); records.len()];
        records.numbered().for_each(|(number, change)| found[number].push(change));
        let changes: Vec<Change> = found.iter().skip(1).flatten().cloned().collect();
        assert_eq!(records.changes(1).collect::<Vec<_>>(), changes);
        assert_eq!(records.changes_len(), records.changes(0).count());
        Ok(found)
    }

    /// The bytes of a batch of these records.
    fn encode_records(records: &[Vec<Change>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            encode_record(&EditBuffer::from(&record[..]), &mut bytes);
        }
        bytes
    }

    #[test]
    fn of_each_key_the_last_change_counts() {
        let path = key::Path::object(1, 2, weir_proto::ObjectId { hi: 0, lo: 3 });
        let path = path.dkey(&weir_proto::Key::from_u64(4)).akey(&weir_proto::Key::from_u64(5));
        let put = |epoch: u64, payload: &Payload| {
            let version = Version { record_size: 0, payload: payload.clone() };
            Change::Put { key: path.single(epoch).to_vec(), value: version.encode() }
        };
        let at = |block| Payload::Blocks(Lone { len: 9, block, checksum: 7 }.into());
        let records = [
            vec![put(1, &at(1)), put(2, &at(2)), put(3, &at(3)), put(4, &at(4))],
            vec![Change::remove(&path.single(2)), put(1, &at(5)), put(4, &Payload::Hole)],
            vec![put(2, &at(6)), Change::remove(&path.single(3))],
        ];
        let records = Records::decode(encode_records(&records)).expect("sound");
        let mut left: Vec<u64> = records.blocks_left().iter().map(|blocks| blocks.runs[0].block).collect();
        left.sort_unstable();
        assert_eq!(left, [5, 6]);
    }

    #[test]
    fn a_batch_is_read_without_all_of_its_keys_in_memory() {
        // A key of the largest size, and then the same without its last byte and with another one, over and over.
        let mut record = Vec::new();
        let count = 100_000;
        record.put_varint(count + 1);
        let put_head = |shared: usize, rest: usize, record: &mut Vec<u8>| {
            record.put_u8(REMOVE);
            record.put_varint(shared as u64);
            record.put_varint(rest as u64);
        };
        put_head(0, ENTRY_MAX, &mut record);
        record.resize(record.len() + ENTRY_MAX, 9);
        for number in 0..count {
            put_head(ENTRY_MAX - 1, 1, &mut record);
            record.push(u8::try_from(number % 200).expect("small"));
        }
        let mut bytes = Vec::new();
        bytes.put_varint(record.len() as u64);
        bytes.extend_from_slice(&record);
        assert!(bytes.len() < RECORD_MAX);
        let records = Records::decode(bytes).expect("sound");
        assert!(records.bytes.capacity() < RECORD_MAX);
        assert_eq!((records.len(), records.changes(0).count() as u64), (1, count + 1));
        assert_eq!(records.blocks_left(), []);
    }

    proptest! {
        #[test]
        fn records_survive_encoding(records in proptest::collection::vec(proptest::collection::vec(change(), 0..8), 0..6)) {
            let mut bytes = Vec::new();
            for record in &records {
                let buffer = EditBuffer::from(&record[..]);
                let before = bytes.len();
                encode_record(&buffer, &mut bytes);
                prop_assert_eq!(bytes.len() - before, record_len(&buffer));
            }
            prop_assert_eq!(decode_records(&bytes), Ok(records));
        }

        #[test]
        fn a_record_of_any_length_survives_encoding(len in 0..3 * ENTRY_MAX, before in 0usize..9) {
            let value = vec![7; len.min(ENTRY_MAX)];
            let rest = vec![8; len - value.len()];
            let record = vec![
                Change::Put { key: Vec::new(), value },
                Change::Put { key: b"k".to_vec(), value: rest[..rest.len().min(ENTRY_MAX - 1)].to_vec() },
            ];
            let buffer = EditBuffer::from(&record[..]);
            let mut bytes = vec![0xff; before];
            encode_record(&buffer, &mut bytes);
            prop_assert_eq!(bytes.len() - before, record_len(&buffer));
            prop_assert_eq!(decode_records(&bytes[before..]), Ok(vec![record]));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_records(&bytes);
        }
    }
}
