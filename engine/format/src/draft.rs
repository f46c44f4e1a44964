//! Changes that go to one record, in one piece of memory: an update has several small ones.

use crate::codec::shared_len;
use crate::record::{Change, Edit};
use crate::route::Route;
use crate::usage::entries_bytes;
use core::ops::Range;

/// Changes in their order.
#[derive(Debug)]
pub struct Draft {
    /// Keys and values.
    text: Vec<u8>,
    cuts: Vec<Cut>,
    /// So many changes, the first ones, were put along a route.
    put: usize,
    /// How many changes remove a key, and the bytes of these keys.
    removals: (usize, usize),
    /// Memory for the keys, while none is spelt out.
    pub spelling: Vec<u8>,
}

/// Where a change is in a text.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Where its key begins.
    pub start: usize,
    /// Where its value does, behind the key.
    pub value: usize,
    /// Where it ends.
    pub end: usize,
    /// Whether the key is set to the value; else it is removed.
    is_set: bool,
}

impl Cut {
    /// Its key, in the text that it is of.
    #[inline]
    #[must_use]
    pub fn key(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.value]
    }
}

/// Entries in ascending order of their keys, all of which are set, one behind the other in a text.
#[derive(Clone, Copy, Debug)]
pub struct Bunch<'a> {
    /// Keys and values.
    pub text: &'a [u8],
    /// Where each entry is in it.
    pub cuts: &'a [Cut],
}

impl<'a> Bunch<'a> {
    /// Bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let ends = self.cuts.first().zip(self.cuts.last());
        ends.map_or(0, |(first, last)| last.end - first.start)
    }

    /// The first and the last key.
    #[must_use]
    #[inline]
    pub fn ends(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (first, last) = self.cuts.first().zip(self.cuts.last())?;
        Some((first.key(self.text), last.key(self.text)))
    }
}

/// Bytes that a draft has room for at first: the entries of a small update.
const DRAFT_BYTES: usize = 512;

/// Changes that it has room for at first.
const DRAFT_CHANGES: usize = 8;

/// Most memory of a draft that is kept for another one: that of a few entries of the largest size.
const KEPT_BYTES_MAX: usize = 64 * 1024;

impl Default for Draft {
    fn default() -> Self {
        let (text, cuts) = (Vec::with_capacity(DRAFT_BYTES), Vec::with_capacity(DRAFT_CHANGES));
        Self { text, cuts, put: 0, removals: (0, 0), spelling: Vec::new() }
    }
}

impl Draft {
    /// Forgets all changes.
    pub fn clear(&mut self) {
        self.text.clear();
        self.cuts.clear();
        (self.put, self.removals) = (0, (0, 0));
    }

    /// Whether the next draft is to take over its memory.
    #[must_use]
    pub fn is_worth_keeping(&self) -> bool {
        let cuts = self.cuts.capacity() * size_of::<Cut>();
        self.text.capacity().max(self.spelling.capacity()).max(cuts) <= KEPT_BYTES_MAX
    }

    /// Sets an entry where a route has come to, with what stands behind the path in its key, before other changes are added.
    #[inline]
    pub fn put<const TAIL: usize, const VALUE: usize>(
        &mut self,
        route: &Route,
        tail: [u8; TAIL],
        value: [u8; VALUE],
    ) {
        self.put_with(route, tail, |out| out.extend_from_slice(&value));
    }

    /// As [`Draft::put`], to what `encode` appends. Returns the bytes of key and value.
    #[inline]
    pub fn put_with<const TAIL: usize>(
        &mut self,
        route: &Route,
        tail: [u8; TAIL],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let begun = self.begin(route, tail);
        encode(&mut self.text);
        self.end(begun)
    }

    /// Begins an entry as [`Draft::put_with`]; its value is to be appended to the text.
    #[inline]
    pub fn begin<const TAIL: usize>(&mut self, route: &Route, tail: [u8; TAIL]) -> Cut {
        debug_assert_eq!(self.put, self.cuts.len(), "it comes too late");
        let start = self.text.len();
        self.text.extend_from_slice(route.path());
        self.text.extend_from_slice(&tail);
        let value = self.text.len();
        Cut { start, value, end: value, is_set: true }
    }

    /// Ends an entry that has its value. Returns the bytes of both.
    #[inline]
    pub fn end(&mut self, begun: Cut) -> usize {
        let end = self.text.len();
        self.cuts.push(Cut { end, ..begun });
        self.put += 1;
        end - begun.start
    }

    /// Keys and values, for the value of an entry that has begun.
    #[inline]
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Adds a change.
    pub fn push(&mut self, edit: Edit<'_>) {
        let start = self.text.len();
        self.text.extend_from_slice(edit.key);
        let value = self.text.len();
        self.text.extend_from_slice(edit.value.unwrap_or_default());
        let (end, is_set) = (self.text.len(), edit.value.is_some());
        self.cuts.push(Cut { start, value, end, is_set });
        if edit.value.is_none() {
            self.removals.0 += 1;
            self.removals.1 += edit.key.len();
        }
    }

    /// The first change.
    #[must_use]
    #[inline]
    pub fn first(&self) -> Option<Edit<'_>> {
        self.cuts.first().map(|cut| self.edit(*cut))
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Bytes that the changes may add to what a pool uses.
    #[must_use]
    pub fn growth(&self) -> u64 {
        let (count, bytes) = self.removals;
        entries_bytes(self.cuts.len() - count, self.text.len() - bytes)
    }

    /// Whether all changes are in the order of their keys, each of which comes once.
    #[must_use]
    pub fn is_ascending(&self) -> bool {
        self.cuts.is_sorted_by(|one, next| one.key(&self.text) < next.key(&self.text))
    }

    #[inline]
    fn edit(&self, cut: Cut) -> Edit<'_> {
        let value = &self.text[cut.value..cut.end];
        Edit { key: cut.key(&self.text), value: if cut.is_set { Some(value) } else { None } }
    }

    /// The changes.
    #[must_use]
    pub fn edits(&self) -> impl ExactSizeIterator<Item = Edit<'_>> {
        self.edits_of(0..self.cuts.len())
    }

    /// Some of the changes.
    #[must_use]
    pub fn edits_of(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = Edit<'_>> + Clone {
        self.cuts[range].iter().map(|cut| self.edit(*cut))
    }

    /// Tells `each` of all changes, key, value, and whether that is set, with what their keys share with the ones before. What
    /// is removed has an empty value.
    #[inline]
    pub fn for_each(&self, mut each: impl FnMut((&[u8], &[u8], bool), usize)) {
        let mut before: &[u8] = &[];
        for cut in &self.cuts {
            let (key, value) = (cut.key(&self.text), &self.text[cut.value..cut.end]);
            each((key, value, cut.is_set), shared_len(before, key));
            before = key;
        }
    }

    /// How many entries were put along a route.
    #[must_use]
    pub fn put_len(&self) -> usize {
        self.put
    }

    /// Some of the entries that are set, in ascending order.
    #[must_use]
    pub fn bunch(&self, range: Range<usize>) -> Bunch<'_> {
        Bunch { text: &self.text, cuts: &self.cuts[range] }
    }

    /// The keys that are removed.
    pub fn removed(&self) -> impl Iterator<Item = &[u8]> {
        let some = if self.removals.0 > 0 { self.cuts.as_slice() } else { &[] };
        some.iter().filter(|cut| !cut.is_set).map(|cut| cut.key(&self.text))
    }

    /// The changes with memory of their own.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        self.edits().map(|Edit { key, value }| match value {
            Some(value) => Change::put(key, value.to_vec()),
            None => Change::remove(key),
        })
    }
}

impl<'a> Extend<&'a Change> for Draft {
    fn extend<I: IntoIterator<Item = &'a Change>>(&mut self, changes: I) {
        changes.into_iter().for_each(|change| self.push(change.into()));
    }
}

impl From<&[Change]> for Draft {
    fn from(changes: &[Change]) -> Self {
        let mut draft = Self::default();
        draft.extend(changes);
        draft
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
        fn a_draft_gives_back_what_was_put_and_knows_what_it_is(
            entries in proptest::collection::vec(entry(), 0..9),
            others in proptest::collection::vec(change(), 0..9),
        ) {
            let object = ObjectId { hi: 0, lo: 1 };
            let name = |number: u8| Key::new(&[b'k', number, 0, 1][..usize::from(2 + number % 3)]).expect("a key");
            let (mut draft, mut changes) = (Draft::default(), Vec::new());
            draft.put(&Route::object(&(9, 9, object), Vec::new()), *b"gone", []);
            draft.push(Edit { key: b"so is this", value: None });
            draft.clear();
            let mut route = Route::object(&(1, 2, object), Vec::new());
            let mut place = None;
            for (dkey, akey, what, value) in entries {
                if what == 0 && place.is_none() {
                    draft.put(&route, key::event_tail(3), [4; 2]);
                    changes.push(Change::put(&[route.path(), &key::event_tail(3)].concat(), vec![4; 2]));
                    continue;
                }
                if place.replace(dkey) != Some(dkey) {
                    route.go_to_dkey(&name(dkey));
                }
                if what > 1 {
                    route.go_to_akey(&name(akey));
                }
                let tail = key::single_tail(u64::from(what));
                let len = draft.put_with(&route, tail, |out| out.extend_from_slice(&value));
                prop_assert_eq!(len, route.path().len() + tail.len() + value.len());
                changes.push(Change::put(&[route.path(), &tail].concat(), value));
            }
            let put = changes.len();
            draft.extend(&others);
            changes.extend(others);
            prop_assert_eq!(draft.changes().collect::<Vec<_>>(), changes.clone());
            prop_assert_eq!(Draft::from(&changes[..]).changes().collect::<Vec<_>>(), changes.clone());
            let keys: Vec<&[u8]> = changes.iter().map(Change::key).collect();
            let removed = changes.iter().filter(|change| matches!(change, Change::Remove { .. }));
            prop_assert_eq!(draft.removed().collect::<Vec<_>>(), removed.map(Change::key).collect::<Vec<_>>());
            prop_assert_eq!(draft.is_ascending(), keys.windows(2).all(|pair| pair[0] < pair[1]));
            let shared = |at: usize| keys[at].iter().zip(keys[at - 1]).take_while(|(a, b)| a == b).count();
            let mut all = Vec::new();
            draft.for_each(|(key, ..), shared| all.push((key.to_vec(), shared)));
            let wanted = (0..keys.len()).map(|at| (keys[at].to_vec(), if at > 0 { shared(at) } else { 0 }));
            prop_assert_eq!(all, wanted.collect::<Vec<_>>());
            let sets = draft.edits().filter_map(|edit| Some(edit.key.len() + edit.value?.len()));
            prop_assert_eq!(draft.growth(), sets.map(|bytes| entries_bytes(1, bytes)).sum::<u64>());
            for from in 0..=put {
                let bunch = draft.bunch(from..draft.put_len());
                let edits: Vec<Edit<'_>> = draft.edits_of(from..put).collect();
                let found = bunch.cuts.iter().map(|cut| {
                    Edit { key: cut.key(bunch.text), value: Some(&bunch.text[cut.value..cut.end]) }
                });
                prop_assert_eq!(found.collect::<Vec<_>>(), edits.clone());
                let bytes = edits.iter().map(|edit| edit.key.len() + edit.value.map_or(0, <[u8]>::len));
                prop_assert_eq!(bunch.bytes(), bytes.sum::<usize>());
                prop_assert_eq!(bunch.ends(), (from < put).then(|| (keys[from], keys[put - 1])));
            }
        }
    }
}
