//! The edits that go to one log record, in one piece of memory: an update has several small ones.

use crate::codec::shared_len;
use crate::key_builder::KeyBuilder;
use crate::record::{Change, Edit};
use crate::usage::entries_bytes;
use core::ops::Range;

/// Edits in their order.
#[derive(Debug)]
pub struct EditBuffer {
    /// Keys and values.
    text: Vec<u8>,
    spans: Vec<EditSpan>,
    /// So many edits, the first ones, were put at keys of a builder.
    put: usize,
    /// How many edits remove a key, and the bytes of these keys.
    removals: (usize, usize),
    /// Memory for a key builder, while there is none.
    pub key_memory: Vec<u8>,
}

/// Where an edit is in a text.
#[derive(Clone, Copy, Debug)]
pub struct EditSpan {
    /// Where its key begins.
    pub start: usize,
    /// Where its value does, behind the key.
    pub value: usize,
    /// Where it ends.
    pub end: usize,
    /// Whether the key is set to the value; else it is removed.
    is_set: bool,
}

impl EditSpan {
    /// Its key, in the text that it is of.
    #[inline]
    #[must_use]
    pub fn key(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.value]
    }
}

/// Entries in ascending order of their keys, all of which are set, one behind the other in a text.
#[derive(Clone, Copy, Debug)]
pub struct SortedEntries<'a> {
    /// Keys and values.
    pub text: &'a [u8],
    /// Where each entry is in it.
    pub spans: &'a [EditSpan],
}

impl<'a> SortedEntries<'a> {
    /// Bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let ends = self.spans.first().zip(self.spans.last());
        ends.map_or(0, |(first, last)| last.end - first.start)
    }

    /// The first and the last key.
    #[must_use]
    #[inline]
    pub fn ends(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (first, last) = self.spans.first().zip(self.spans.last())?;
        Some((first.key(self.text), last.key(self.text)))
    }
}

/// Bytes that a buffer has room for at first: the entries of a small update.
const BUFFER_BYTES: usize = 512;

/// Edits that it has room for at first.
const BUFFER_CHANGES: usize = 8;

/// Most memory of a buffer that is kept for another one: that of a few entries of the largest size.
const KEPT_BYTES_MAX: usize = 64 * 1024;

impl Default for EditBuffer {
    fn default() -> Self {
        let (text, spans) = (Vec::with_capacity(BUFFER_BYTES), Vec::with_capacity(BUFFER_CHANGES));
        Self { text, spans, put: 0, removals: (0, 0), key_memory: Vec::new() }
    }
}

impl EditBuffer {
    /// Forgets all edits.
    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
        (self.put, self.removals) = (0, (0, 0));
    }

    /// Whether the next buffer is to take over its memory.
    #[must_use]
    pub fn is_worth_keeping(&self) -> bool {
        let spans = self.spans.capacity() * size_of::<EditSpan>();
        self.text.capacity().max(self.key_memory.capacity()).max(spans) <= KEPT_BYTES_MAX
    }

    /// Sets an entry at the path of a builder, with what stands behind the path in its key, before other edits are added.
    #[inline]
    pub fn put<const TAIL: usize, const VALUE: usize>(
        &mut self,
        builder: &KeyBuilder,
        tail: [u8; TAIL],
        value: [u8; VALUE],
    ) {
        self.put_with(builder, tail, |out| out.extend_from_slice(&value));
    }

    /// As [`EditBuffer::put`], to what `encode` appends. Returns the bytes of key and value.
    #[inline]
    pub fn put_with<const TAIL: usize>(
        &mut self,
        builder: &KeyBuilder,
        tail: [u8; TAIL],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let begun = self.begin(builder, tail);
        encode(&mut self.text);
        self.end(begun)
    }

    /// Begins an entry as [`EditBuffer::put_with`]; its value is to be appended to the text.
    #[inline]
    pub fn begin<const TAIL: usize>(&mut self, builder: &KeyBuilder, tail: [u8; TAIL]) -> EditSpan {
        debug_assert_eq!(self.put, self.spans.len(), "it comes too late");
        let start = self.text.len();
        self.text.extend_from_slice(builder.path());
        self.text.extend_from_slice(&tail);
        let value = self.text.len();
        EditSpan { start, value, end: value, is_set: true }
    }

    /// Ends an entry that has its value. Returns the bytes of both.
    #[inline]
    pub fn end(&mut self, begun: EditSpan) -> usize {
        let end = self.text.len();
        self.spans.push(EditSpan { end, ..begun });
        self.put += 1;
        end - begun.start
    }

    /// Keys and values, for the value of an entry that has begun.
    #[inline]
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Adds an edit.
    pub fn push(&mut self, edit: Edit<'_>) {
        let start = self.text.len();
        self.text.extend_from_slice(edit.key);
        let value = self.text.len();
        self.text.extend_from_slice(edit.value.unwrap_or_default());
        let (end, is_set) = (self.text.len(), edit.value.is_some());
        self.spans.push(EditSpan { start, value, end, is_set });
        if edit.value.is_none() {
            self.removals.0 += 1;
            self.removals.1 += edit.key.len();
        }
    }

    /// The first edit.
    #[must_use]
    #[inline]
    pub fn first(&self) -> Option<Edit<'_>> {
        self.spans.first().map(|span| self.edit(*span))
    }

    /// Number of edits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Bytes that the edits may add to what a pool uses.
    #[must_use]
    pub fn growth(&self) -> u64 {
        let (count, bytes) = self.removals;
        entries_bytes(self.spans.len() - count, self.text.len() - bytes)
    }

    /// Whether all edits are in the order of their keys, each of which comes once.
    #[must_use]
    pub fn is_ascending(&self) -> bool {
        self.spans.is_sorted_by(|one, next| one.key(&self.text) < next.key(&self.text))
    }

    #[inline]
    fn edit(&self, span: EditSpan) -> Edit<'_> {
        let value = &self.text[span.value..span.end];
        Edit { key: span.key(&self.text), value: if span.is_set { Some(value) } else { None } }
    }

    /// The edits.
    #[must_use]
    pub fn edits(&self) -> impl ExactSizeIterator<Item = Edit<'_>> {
        self.edits_of(0..self.spans.len())
    }

    /// Some of the edits.
    #[must_use]
    pub fn edits_of(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = Edit<'_>> + Clone {
        self.spans[range].iter().map(|span| self.edit(*span))
    }

    /// Tells `each` of all edits, key, value, and whether that is set, with what their keys share with the ones before. What
    /// is removed has an empty value.
    #[inline]
    pub fn for_each(&self, mut each: impl FnMut((&[u8], &[u8], bool), usize)) {
        let mut before: &[u8] = &[];
        for span in &self.spans {
            let (key, value) = (span.key(&self.text), &self.text[span.value..span.end]);
            each((key, value, span.is_set), shared_len(before, key));
            before = key;
        }
    }

    /// How many entries were put at keys of a builder.
    #[must_use]
    pub fn put_len(&self) -> usize {
        self.put
    }

    /// Some of the entries that are set, in ascending order.
    #[must_use]
    pub fn sorted(&self, range: Range<usize>) -> SortedEntries<'_> {
        SortedEntries { text: &self.text, spans: &self.spans[range] }
    }

    /// The keys that are removed.
    pub fn removed(&self) -> impl Iterator<Item = &[u8]> {
        let some = if self.removals.0 > 0 { self.spans.as_slice() } else { &[] };
        some.iter().filter(|span| !span.is_set).map(|span| span.key(&self.text))
    }

    /// The edits as changes, which have memory of their own.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        self.edits().map(|Edit { key, value }| match value {
            Some(value) => Change::put(key, value.to_vec()),
            None => Change::remove(key),
        })
    }
}

impl<'a> Extend<&'a Change> for EditBuffer {
    fn extend<I: IntoIterator<Item = &'a Change>>(&mut self, changes: I) {
        changes.into_iter().for_each(|change| self.push(change.into()));
    }
}

impl From<&[Change]> for EditBuffer {
    fn from(changes: &[Change]) -> Self {
        let mut buffer = Self::default();
        buffer.extend(changes);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use proptest::prelude::*;
    use weir_proto::{Key, ObjectId};

    fn change() -> impl Strategy<Value = Change> {
        let bytes = || proptest::collection::vec(0u8..3, 0..20);
        prop_oneof![
            3 => (bytes(), bytes()).prop_map(|(key, value)| Change::Put { key, value }),
            1 => bytes().prop_map(|key| Change::Remove { key }),
        ]
    }

    /// An entry of an object: where it is, and whether it is that of a dkey, an akey, or a version.
    fn entry() -> impl Strategy<Value = (u8, u8, u8, Vec<u8>)> {
        (0u8..3, 0u8..3, 0u8..4, proptest::collection::vec(any::<u8>(), 0..200))
    }

    proptest! {
        #[test]
        fn a_buffer_gives_back_what_was_put_and_knows_what_it_is(
            entries in proptest::collection::vec(entry(), 0..9),
            others in proptest::collection::vec(change(), 0..9),
        ) {
            let object = ObjectId { hi: 0, lo: 1 };
            let name = |number: u8| Key::new(&[b'k', number, 0, 1][..usize::from(2 + number % 3)]).expect("a key");
            let (mut buffer, mut changes) = (EditBuffer::default(), Vec::new());
            buffer.put(&KeyBuilder::object(&(9, 9, object), Vec::new()), *b"gone", []);
            buffer.push(Edit { key: b"so is this", value: None });
            buffer.clear();
            let mut builder = KeyBuilder::object(&(1, 2, object), Vec::new());
            let mut place = None;
            for (dkey, akey, what, value) in entries {
                if what == 0 && place.is_none() {
                    buffer.put(&builder, key::event_tail(3), [4; 2]);
                    changes.push(Change::put(&[builder.path(), &key::event_tail(3)].concat(), vec![4; 2]));
                    continue;
                }
                if place.replace(dkey) != Some(dkey) {
                    builder.go_to_dkey(&name(dkey));
                }
                if what > 1 {
                    builder.go_to_akey(&name(akey));
                }
                let tail = key::single_tail(u64::from(what));
                let len = buffer.put_with(&builder, tail, |out| out.extend_from_slice(&value));
                prop_assert_eq!(len, builder.path().len() + tail.len() + value.len());
                changes.push(Change::put(&[builder.path(), &tail].concat(), value));
            }
            let put = changes.len();
            buffer.extend(&others);
            changes.extend(others);
            prop_assert_eq!(buffer.changes().collect::<Vec<_>>(), changes.clone());
            prop_assert_eq!(EditBuffer::from(&changes[..]).changes().collect::<Vec<_>>(), changes.clone());
            let keys: Vec<&[u8]> = changes.iter().map(Change::key).collect();
            let removed = changes.iter().filter(|change| matches!(change, Change::Remove { .. }));
            prop_assert_eq!(buffer.removed().collect::<Vec<_>>(), removed.map(Change::key).collect::<Vec<_>>());
            prop_assert_eq!(buffer.is_ascending(), keys.windows(2).all(|pair| pair[0] < pair[1]));
            let shared = |at: usize| keys[at].iter().zip(keys[at - 1]).take_while(|(a, b)| a == b).count();
            let mut all = Vec::new();
            buffer.for_each(|(key, ..), shared| all.push((key.to_vec(), shared)));
            let wanted = (0..keys.len()).map(|at| (keys[at].to_vec(), if at > 0 { shared(at) } else { 0 }));
            prop_assert_eq!(all, wanted.collect::<Vec<_>>());
            let sets = buffer.edits().filter_map(|edit| Some(edit.key.len() + edit.value?.len()));
            prop_assert_eq!(buffer.growth(), sets.map(|bytes| entries_bytes(1, bytes)).sum::<u64>());
            for from in 0..=put {
                let sorted = buffer.sorted(from..buffer.put_len());
                let edits: Vec<Edit<'_>> = buffer.edits_of(from..put).collect();
                let found = sorted.spans.iter().map(|span| {
                    Edit { key: span.key(sorted.text), value: Some(&sorted.text[span.value..span.end]) }
                });
                prop_assert_eq!(found.collect::<Vec<_>>(), edits.clone());
                let bytes = edits.iter().map(|edit| edit.key.len() + edit.value.map_or(0, <[u8]>::len));
                prop_assert_eq!(sorted.bytes(), bytes.sum::<usize>());
                prop_assert_eq!(sorted.ends(), (from < put).then(|| (keys[from], keys[put - 1])));
            }
        }
    }
}
