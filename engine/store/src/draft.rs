//! Entries that an update is about to set.

use crate::record::{Change, Edit};
use smallvec::SmallVec;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
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
    }
}
