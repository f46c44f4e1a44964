//! Log records: changes of the index that become durable together.
//!
//! A record is self-contained and absolute (set this key to that value, remove that key), so that replaying records
//! in order from any earlier point gives the same end.

use crate::catalog::entry_bytes;
use crate::codec::{Decoder, Encode, Malformed, shared_len};
use crate::journal::RECORD_MAX;
use crate::tree::ENTRY_MAX;
use smallvec::SmallVec;
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

    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Remove { key } => key,
        }
    }
}

/// A change by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edit<'a> {
    pub(crate) key: &'a [u8],
    /// What the key is set to; `None` when it is removed.
    pub(crate) value: Option<&'a [u8]>,
}

impl<'a> From<&'a Change> for Edit<'a> {
    fn from(change: &'a Change) -> Self {
        match change {
            Change::Put { key, value } => Self { key, value: Some(value) },
            Change::Remove { key } => Self { key, value: None },
        }
    }
}

/// Entries to be set, all in one piece of memory: an update has several small ones.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
    entries: SmallVec<[Cut; 4]>,
    /// Memory for the keys, while none is spelt out.
    pub(crate) spelling: Vec<u8>,
}

/// How long key and value of an entry are, which stand one behind the other.
#[derive(Clone, Copy, Debug)]
struct Cut {
    key: usize,
    value: usize,
}

/// Bytes that a draft has room for at first: the entries of a small update.
const DRAFT_BYTES: usize = 512;

/// Most memory of a draft that is kept for another one: that of a few entries of the largest size.
const KEPT_BYTES_MAX: usize = 64 * 1024;

impl Draft {
    /// Forgets all entries.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Whether the next draft is to take over its memory.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.bytes.capacity().max(self.spelling.capacity()) <= KEPT_BYTES_MAX && !self.entries.spilled()
    }

    /// Sets a key to what `encode` appends. Returns the bytes of key and value.
    pub(crate) fn put(&mut self, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(DRAFT_BYTES);
        }
        self.bytes.extend_from_slice(key);
        let value = self.bytes.len();
        encode(&mut self.bytes);
        let value = self.bytes.len() - value;
        self.entries.push(Cut { key: key.len(), value });
        key.len() + value
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries as changes, in the order in which they came.
    pub(crate) fn edits(&self) -> impl Iterator<Item = Edit<'_>> {
        let mut left = self.bytes.as_slice();
        self.entries.iter().map(move |cut| {
            let (key, behind) = left.split_at(cut.key);
            let (value, behind) = behind.split_at(cut.value);
            left = behind;
            Edit { key, value: Some(value) }
        })
    }

    /// The entries as changes with memory of their own.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change> {
        self.edits().map(|edit| Change::put(edit.key, edit.value.unwrap_or_default().to_vec()))
    }
}

/// Bytes that changes may add to what a pool uses.
pub(crate) fn growth(edits: &[Edit<'_>]) -> u64 {
    edits.iter().filter_map(|edit| Some(entry_bytes(edit.key.len(), edit.value?.len()))).sum()
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

/// Bytes of a record's length in nearly all cases.
const LENGTH_BYTES: usize = 2;

/// Bytes of a change beside key and value, in nearly all cases: what it is and three lengths.
const CHANGE_BYTES: usize = 6;

/// Bytes of a change beside key and value, at most: what it is and three lengths of up to [`ENTRY_MAX`].
pub(crate) const CHANGE_BYTES_MAX: usize = 7;

/// Bytes of a record beside its changes, at most: its length and how many there are.
const RECORD_HEAD_MAX: usize = 16;

/// Appends what a change begins with: two lengths, which nearly always take a byte each.
fn put_head(tag: u8, shared: usize, rest: usize, out: &mut Vec<u8>) {
    if let (Ok(shared @ ..0x80), Ok(rest @ ..0x80)) = (u8::try_from(shared), u8::try_from(rest)) {
        out.extend_from_slice(&[tag, shared, rest]);
    } else {
        out.put_u8(tag);
        out.put_varint(shared as u64);
        out.put_varint(rest as u64);
    }
}

/// Appends a record. Keys are stored as the difference to the key before.
pub(crate) fn encode_record(edits: &[Edit<'_>], out: &mut Vec<u8>) {
    // The length comes first and is known last.
    let start = out.len();
    let bytes = |edit: &Edit<'_>| CHANGE_BYTES + edit.key.len() + edit.value.map_or(0, <[u8]>::len);
    out.reserve(2 * LENGTH_BYTES + edits.iter().map(bytes).sum::<usize>());
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.put_varint(edits.len() as u64);
    let mut previous: &[u8] = &[];
    for Edit { key, value } in edits {
        let shared = shared_len(previous, key);
        put_head(if value.is_some() { PUT } else { REMOVE }, shared, key.len() - shared, out);
        out.extend_from_slice(&key[shared..]);
        if let Some(value) = value {
            out.put_varint(value.len() as u64);
            out.extend_from_slice(value);
        }
        previous = key;
    }
    let mut length = Vec::new();
    let len = out.len() - start - LENGTH_BYTES;
    if (1 << 7..1 << 14).contains(&len) {
        let [low, high] = [len & 0x7f | 0x80, len >> 7];
        out[start] = u8::try_from(low).unwrap_or_default();
        out[start + 1] = u8::try_from(high).unwrap_or_default();
        return;
    }
    length.put_varint(len as u64);
    out.splice(start..start + LENGTH_BYTES, length);
}

/// Bytes of a number as a record stores it.
fn varint_len(value: usize) -> usize {
    (1 + value.checked_ilog2().unwrap_or(0) as usize / 7).max(1)
}

/// Bytes that [`encode_record`] appends.
pub(crate) fn record_len(edits: &[Edit<'_>]) -> usize {
    let mut previous: &[u8] = &[];
    let mut len = varint_len(edits.len());
    for Edit { key, value } in edits {
        let shared = shared_len(previous, key);
        let rest = key.len() - shared;
        len += 1 + varint_len(shared) + varint_len(rest) + rest;
        len += value.map_or(0, |value| varint_len(value.len()) + value.len());
        previous = key;
    }
    varint_len(len) + len
}

/// The bytes of a record of these changes when they are more than [`RECORD_MAX`].
pub(crate) fn excess_len(edits: &[Edit<'_>]) -> Option<usize> {
    let bytes = |edit: &Edit<'_>| CHANGE_BYTES_MAX + edit.key.len() + edit.value.map_or(0, <[u8]>::len);
    if RECORD_HEAD_MAX + edits.iter().map(bytes).sum::<usize>() <= RECORD_MAX {
        return None;
    }
    // Keys may have much in common.
    Some(record_len(edits)).filter(|len| *len > RECORD_MAX)
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
                let edits: Vec<Edit<'_>> = record.iter().map(Edit::from).collect();
                let before = bytes.len();
                encode_record(&edits, &mut bytes);
                prop_assert_eq!(bytes.len() - before, record_len(&edits));
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
            let edits: Vec<Edit<'_>> = record.iter().map(Edit::from).collect();
            let mut bytes = vec![0xff; before];
            encode_record(&edits, &mut bytes);
            prop_assert_eq!(bytes.len() - before, record_len(&edits));
            prop_assert_eq!(decode_records(&bytes[before..]), Ok(vec![record]));
        }

        #[test]
        fn a_draft_gives_back_what_was_put(entries in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..20), proptest::collection::vec(any::<u8>(), 0..20)), 0..9)) {
            let mut draft = Draft::default();
            draft.put(b"gone", |_| {});
            draft.clear();
            for (key, value) in &entries {
                let len = draft.put(key, |out| out.extend_from_slice(value));
                prop_assert_eq!(len, key.len() + value.len());
            }
            let changes: Vec<Change> = draft.changes().collect();
            let wanted: Vec<Change> = entries.into_iter().map(|(key, value)| Change::Put { key, value }).collect();
            prop_assert_eq!(changes, wanted);
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_records(&bytes);
        }
    }
}
