//! The quick answer to most fetches: one walk over neighbouring entries.
//!
//! The entries of a dkey, of an akey below it and of that one's versions stand side by side in the index. A walk goes
//! down to the first of them once and reads on from there, without keys or copies of its own. It answers what is simple:
//! all lies in one leaf in memory, or two, the dkey and the akey were created once, one version covers all that is asked for.
//! Anything else it leaves, as it does what looks odd, to [`life`], `versions_within` and `newest_single`, which alone
//! say what is right: where a walk has an answer, it is theirs.

use crate::extents::STEPS_MAX;
use crate::incarnation::{Life, life};
use crate::journal::ObjectKey;
use crate::key::{self, BELOW, EVENT, EXTENT, Path};
use crate::spelling::Spelling;
use crate::timestamps::hash_object;
use crate::tree::{Node, Packed, Tree};
use crate::value::{Event, Kind};
use core::cell::{Cell, OnceCell};
use std::rc::Rc;
use weir_proto::Key;
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::object::{Extent, Value};

/// Objects whose life is remembered: requests come from a few clients, each busy with an object or two.
const LIVES: usize = 16;

/// Records behind this one are asked for by nobody but those who look for the end of what may be.
const SIMPLE_END: u64 = 1 << 62;

/// The life of an object as of its newest event.
#[derive(Clone, Copy, Debug)]
struct Known {
    place: ObjectKey,
    /// The version of the tree that it was found in.
    version: u64,
    life: Life,
}

/// Lives of the objects asked for last. Each counts only as long as no entry of the index has changed.
#[derive(Debug, Default)]
pub(crate) struct Lives([Cell<Option<Known>>; LIVES]);

impl Lives {
    fn slot(&self, hash: u64) -> &Cell<Option<Known>> {
        &self.0[usize::try_from(hash >> 32).unwrap_or(0) % LIVES]
    }

    /// The life of an object at an epoch that isn't before its newest event; `None` before that, and where the index has
    /// to be read or is damaged.
    pub(crate) fn newest(&self, tree: &Tree, place: &ObjectKey, epoch: u64) -> Option<Life> {
        self.newest_at(tree, place, hash_object(place), epoch)
    }

    /// As [`Lives::newest`], of an object whose hash is known.
    pub(crate) fn newest_at(&self, tree: &Tree, place: &ObjectKey, hash: u64, epoch: u64) -> Option<Life> {
        let slot = self.slot(hash);
        let known = slot.get().filter(|known| known.version == tree.version() && known.place == *place);
        let found = if let Some(known) = known {
            known.life
        } else {
            let path = Path::object(place.0, place.1, place.2);
            let life = life(tree, &path, Life::ALWAYS, u64::MAX).ok()?;
            slot.set(Some(Known { place: *place, version: tree.version(), life }));
            life
        };
        // From the newest event on all epochs see the same.
        found.event.is_none_or(|(at, _)| at <= epoch).then_some(found)
    }
}

impl Lives {
    /// Goes on knowing an object that was updated at an epoch, which took the index from version `before` to the present
    /// one with no other change.
    pub(crate) fn renew(&self, tree: &Tree, place: &ObjectKey, before: u64, epoch: u64) {
        let slot = self.slot(hash_object(place));
        let Some(mut known) = slot.get().filter(|known| known.version == before && known.place == *place)
        else {
            return;
        };
        // Anything but an update of the newest incarnation is looked up again.
        if let Some((at, Event::Object { newest })) = known.life.event.filter(|(at, _)| *at <= epoch)
            && known.life.exists
        {
            known.life.event = Some((at, Event::Object { newest: newest.max(epoch) }));
            known.version = tree.version();
            slot.set(Some(known));
        }
    }
}

/// What is asked of an akey.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// Up to so many bytes of the single value.
    Single(u64),
    /// Records of an array, of a size that has to be the stored one.
    Records(Extent, u32),
}

impl Wanted {
    /// What a fetch asks for, if it is simple and sure to be allowed.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            // Who asks for sizes alone is answered by what lists all that is there.
            Value::Single { size } => (*size > 0).then_some(Self::Single(*size)),
            Value::Array { record_size, extents } => {
                let [range] = extents.as_slice() else { return None };
                let bytes = range.count.checked_mul(u64::from(*record_size))?;
                let end = range.index.checked_add(range.count).filter(|end| *end <= SIMPLE_END);
                let is_allowed = bytes > 0 && bytes <= PAYLOAD_MAX && end.is_some();
                is_allowed.then_some(Self::Records(*range, *record_size))
            }
        }
    }
}

/// A version that covers what is asked for.
#[derive(Debug)]
pub(crate) struct Covering<'a> {
    /// Its records, for an array.
    pub(crate) extent: Option<Extent>,
    /// Where it is stored.
    pub(crate) leaf: &'a Rc<Node>,
    pub(crate) entry: usize,
}

impl<'a> Covering<'a> {
    /// As it is stored.
    pub(crate) fn value(&self) -> Option<&'a [u8]> {
        Some(self.leaf.entries()?.entry(self.entry)?.1)
    }
}

/// Walks from the first entry of a dkey, below an object that exists as `above` says, to the version that covers what is
/// wanted of an akey, and passes it on. Returns what that makes of it; `None`, too, where the answer isn't simple, and is
/// to be found another way.
pub(crate) fn covering<T>(
    tree: &Tree,
    above: Life,
    (place, akey): (&mut Spelling, &Key),
    epoch: u64,
    wanted: Wanted,
    found: impl FnOnce(Covering<'_>) -> Option<T>,
) -> Option<T> {
    let (first, second) = (tree.leaf(place.event(epoch)).ok()?, OnceCell::new());
    let entries = first.entries().filter(|_| above.exists)?;
    let shared = entries.prefix().len();
    let mut walk = Walk { tree, leaf: &first, entries, shared, at: 0, second: &second, is_beyond: false };
    let low = walk.go_below_dkey(above.low, place, epoch)?;
    found(walk.covering((place, akey), (low, epoch), wanted)?)
}

/// The entry is damaged, or there is none where what is asked for needn't end.
struct Unclear;

/// A part of an entry's key, and its value.
type Part<'a> = (&'a [u8], &'a [u8]);

/// Neighbouring entries of a leaf, and of the one behind it where they go on there.
struct Walk<'a> {
    tree: &'a Tree,
    leaf: &'a Rc<Node>,
    entries: &'a Packed,
    /// Bytes that the keys of all these entries share.
    shared: usize,
    at: usize,
    /// The leaf behind the first one, once it was needed.
    second: &'a OnceCell<Option<Rc<Node>>>,
    /// The second leaf has nothing of the path.
    is_beyond: bool,
}

impl<'a> Walk<'a> {
    /// Goes behind the event that created a dkey at most `epoch`, and returns the epoch of that. Whether anything else
    /// ever happened to the dkey up to then is left to [`Walk::akey`].
    fn go_below_dkey(&mut self, low: u64, place: &mut Spelling, epoch: u64) -> Option<u64> {
        self.at = self.entries.first_at(place.event(epoch))?;
        self.entries.expect(self.at);
        let (created, value) = self.version(place, EVENT, epoch)?;
        let is_creation = created >= low && Event::is_dkey(value);
        self.step(place);
        is_creation.then_some(created)
    }

    /// Goes to the next entry.
    #[inline]
    fn step(&mut self, place: &Spelling) {
        self.at += 1;
        if self.at == self.entries.len() {
            self.turn_over(place.path());
        }
    }

    /// Goes on to the leaf behind the first one, if that is in memory.
    #[cold]
    fn turn_over(&mut self, path: &[u8]) {
        if self.second.get().is_some() {
            return;
        }
        let behind = || {
            let last = self.entries.key(self.entries.len().checked_sub(1)?);
            self.tree.leaf_behind(&last)
        };
        let second: &'a OnceCell<_> = self.second;
        let Some((leaf, entries)) =
            second.get_or_init(behind).as_ref().and_then(|leaf| Some((leaf, leaf.entries()?)))
        else {
            return;
        };
        let prefix = entries.prefix();
        if path.starts_with(prefix) {
            (self.leaf, self.entries, self.shared, self.at) = (leaf, entries, prefix.len(), 0);
        } else if !prefix.starts_with(path) {
            self.is_beyond = true;
        }
    }

    /// What follows the path in the key of the present entry, and its value; `None` where that doesn't begin with it.
    #[inline]
    fn below(&self, path: &[u8]) -> Result<Option<Part<'a>>, Unclear> {
        if self.is_beyond {
            return Ok(None);
        }
        let (suffix, value) = self.entries.entry(self.at).ok_or(Unclear)?;
        let path = path.get(self.shared..).ok_or(Unclear)?;
        Ok(suffix.strip_prefix(path).map(|rest| (rest, value)))
    }

    /// Whether the present entry is something of the path but no event of it: an older one may have a say.
    fn is_behind_events(&self, path: &[u8]) -> bool {
        matches!(self.below(path), Ok(Some((rest, _))) if rest.first() != Some(&EVENT))
    }

    /// Epoch and value of the present entry if it is of this kind, of nothing but an epoch, and not newer than `epoch`.
    #[inline]
    fn version(&self, place: &Spelling, kind: u8, epoch: u64) -> Option<(u64, &'a [u8])> {
        let (rest, value) = self.below(place.path()).ok()??;
        let (_, at) = rest.split_first().filter(|(first, _)| **first == kind)?;
        Some((key::epoch_from(at).ok()?.0, value)).filter(|(at, _)| *at <= epoch)
    }

    /// Goes to the first entry that isn't below a key, which is that of an entry behind the first one. It begins with a
    /// path of this length.
    fn seek(&mut self, key: &[u8], path: usize) -> Option<()> {
        self.at = self.entries.first_from(key.get(self.shared..)?);
        if self.at == self.entries.len() {
            self.turn_over(&key[..path]);
            self.at = self.entries.first_from(key.get(self.shared..)?);
        }
        Some(())
    }

    /// The version that covers what is wanted of an akey below a dkey that exists since `low`.
    fn covering(
        mut self,
        (place, akey): (&mut Spelling, &Key),
        (low, epoch): (u64, u64),
        wanted: Wanted,
    ) -> Option<Covering<'a>> {
        let dkey = place.path().len();
        place.akey(akey)?;
        let (low, event) = self.akey(place, dkey, (low, epoch))?;
        let Event::Akey { kind, record_size, classes } = event else { return None };
        match (wanted, kind) {
            (Wanted::Single(_), Kind::Single) => self.single(place, (low, epoch)),
            (Wanted::Records(range, size), Kind::Array) if size == record_size && size > 0 => {
                self.records(place, (low, epoch), range, classes)
            }
            _ => None,
        }
    }

    /// Goes behind the event that created an akey. As [`Walk::go_below_dkey`]. `dkey` is how much of the path is that of the
    /// dkey.
    fn akey(&mut self, place: &mut Spelling, dkey: usize, (low, epoch): (u64, u64)) -> Option<(u64, Event)> {
        let mut found = self.version(place, EVENT, epoch);
        // Most dkeys have one akey, or the first is asked for. It is certainly behind the events of the dkey then.
        if found.is_none() {
            self.is_behind_events(&place.path()[..dkey]).then_some(())?;
            let path = place.path().len();
            self.seek(place.event(epoch), path)?;
            found = self.version(place, EVENT, epoch);
        }
        let (created, value) = found?;
        let event = Event::decode(value).ok()?;
        self.step(place);
        (created >= low).then_some((created, event))
    }

    /// The newest single value up to an epoch.
    fn single(&mut self, place: &mut Spelling, (low, epoch): (u64, u64)) -> Option<Covering<'a>> {
        let mut found = self.version(place, BELOW, epoch);
        if found.is_none() {
            self.is_behind_events(place.path()).then_some(())?;
            let path = place.path().len();
            self.seek(place.single(epoch), path)?;
            found = self.version(place, BELOW, epoch);
        }
        let (at, _) = found?;
        (at >= low).then_some(Covering { extent: None, leaf: self.leaf, entry: self.at })
    }

    /// The version of an extent that covers a range, when no other one reaches into it.
    fn records(
        &mut self,
        place: &mut Spelling,
        (low, epoch): (u64, u64),
        range: Extent,
        classes: u32,
    ) -> Option<Covering<'a>> {
        let class = u8::try_from(classes.trailing_zeros()).ok().filter(|_| classes.is_power_of_two())?;
        let first = range.index.saturating_sub(key::class_length_max(class));
        let mut next = self.extent(place, class).ok()?;
        // Extents begin behind the event, all of one class. Where there is another event, there is none.
        if next?.0.index < first {
            let path = place.path().len();
            self.seek(place.extents_from(class, first), path)?;
            next = self.extent(place, class).ok()?;
        }
        let (mut done, mut steps, mut covering) = (None, 0, None);
        while let Some((extent, at)) = next {
            if extent.index >= range.end() {
                break;
            }
            let reaches = extent.end() > range.index;
            if done == Some(extent) || (at > epoch && reaches) {
                steps += 1;
                if steps > STEPS_MAX {
                    return None;
                }
            } else {
                (done, steps) = (Some(extent), 0);
                let found = Covering { extent: Some(extent), leaf: self.leaf, entry: self.at };
                if reaches && at >= low && at <= epoch && covering.replace(found).is_some() {
                    return None;
                }
            }
            self.step(place);
            next = self.extent(place, class).ok()?;
        }
        let covers = |extent: Extent| extent.index <= range.index && extent.end() >= range.end();
        covering.filter(|found| found.extent.is_some_and(covers))
    }

    /// The present entry as a version of an extent of a class, with its epoch; `None` when it is something else.
    #[inline]
    fn extent(&self, place: &Spelling, class: u8) -> Result<Option<(Extent, u64)>, Unclear> {
        match self.below(place.path())? {
            Some(([EXTENT, found, rest @ ..], _)) if *found == class => {
                key::extent_tail(class, rest).map(Some).map_err(|_| Unclear)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::{newest_versions, paint};
    use crate::fetch::newest_single;
    use crate::paging::Fault;
    use crate::value::{Payload, Version};
    use proptest::prelude::*;
    use weir_proto::ObjectId;

    const OBJECT: ObjectKey = (1, 1, ObjectId { hi: 0, lo: 1 });

    fn name(number: u8) -> Key {
        Key::new(&[b'k', number, 0, 1][..usize::from(2 + number % 3)]).expect("a key")
    }

    /// An entry of an object: which dkey and akey it is of, its epoch, and what it is.
    type Entry = (Option<u8>, Option<u8>, u64, u8, Extent);

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let extent = (0u64..40, prop_oneof![3 => Just(6u64), 1 => 1u64..70]);
        let extent = extent.prop_map(|(index, count)| Extent { index, count });
        let number = || prop_oneof![1 => Just(None), 30 => (0u8..6).prop_map(Some)];
        proptest::collection::vec((number(), number(), 1u64..12, 0u8..24, extent), 0..200)
    }

    /// The tree of a history, most of which makes sense. Long values make it several leaves.
    fn tree(entries: &[Entry]) -> Tree {
        let mut tree = Tree::default();
        let mut put = |key: &[u8], value: Vec<u8>| tree.put(key, &value).expect("in memory");
        let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
        put(&object.event(1), Event::Object { newest: 12 }.encode());
        for (dkey, akey, epoch, what, extent) in entries {
            let Some(dkey) = dkey else {
                let event = if what % 4 == 0 { Event::Punch } else { Event::Object { newest: *epoch } };
                put(&object.event(*epoch), event.encode());
                continue;
            };
            let dkey_path = object.dkey(&name(*dkey));
            put(&dkey_path.event(1), Event::Dkey.encode());
            let Some(akey) = akey else {
                put(
                    &dkey_path.event(*epoch),
                    if what % 2 == 0 { Event::Punch } else { Event::Dkey }.encode(),
                );
                continue;
            };
            let path = dkey_path.akey(&name(*akey));
            let is_single = akey % 2 == 0;
            let kind = if is_single { Kind::Single } else { Kind::Array };
            let classes = if *what == 20 { 7 } else { 1 << key::length_class(6) };
            let akey_event = Event::Akey { kind, record_size: u32::from(!is_single), classes };
            put(&path.event(1), akey_event.encode());
            match what {
                // An extent whose key says that it is shorter than it is.
                23 if extent.count > 8 => {
                    let mut key = path.extent(Extent { count: 6, ..*extent }, *epoch);
                    let end = key.len() - size_of::<u64>();
                    key[end - 1] = 70;
                    put(&key, vec![0, 0]);
                }
                0 => drop(put(&path.event(*epoch), Event::Punch.encode())),
                1 => drop(put(&path.event(*epoch), akey_event.encode())),
                _ => {
                    let len = usize::try_from(extent.count).expect("small");
                    let payload = match what {
                        2 => Payload::Hole,
                        _ => Version::into_payload([&[0, 1][..], &vec![*what; 10 * len]].concat())
                            .expect("sound"),
                    };
                    let value = Version { record_size: 1, payload }.encode();
                    let key = if is_single { path.single(*epoch) } else { path.extent(*extent, *epoch) };
                    put(&key, value);
                }
            }
        }
        tree
    }

    /// What those say who define what is right, in the form of an answer that covers all that is wanted.
    fn defined(
        tree: &Tree,
        (dkey, akey): (&Key, &Key),
        epoch: u64,
        wanted: Wanted,
    ) -> Result<Option<(Option<Extent>, Payload)>, Fault> {
        let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
        let (dkey, above) = (object.dkey(dkey), life(tree, &object, Life::ALWAYS, epoch)?);
        let (akey, above) = (dkey.akey(akey), life(tree, &dkey, above, epoch)?);
        let life = life(tree, &akey, above, epoch)?;
        let Some((kind, record_size, classes)) = life.array_or_single() else { return Ok(None) };
        match (wanted, kind) {
            (Wanted::Single(_), Kind::Single) => {
                Ok(newest_single(tree, &akey, life, epoch)?.map(|(_, payload)| (None, payload)))
            }
            (Wanted::Records(range, size), Kind::Array) if size == record_size => {
                let stored = newest_versions(tree, &akey, life, epoch, range, classes)?;
                let parts = paint(&stored, range);
                let [only] = parts.as_slice() else { return Ok(None) };
                let version = &stored[only.stored];
                let payload = Version::decode(&version.value)?.payload;
                Ok((only.extent == range).then_some((Some(version.extent), payload)))
            }
            _ => Ok(None),
        }
    }

    proptest! {
        #[test]
        fn a_walk_that_has_an_answer_has_the_defined_one(
            entries in entries(),
            questions in proptest::collection::vec((0u8..7, 0u8..7, prop_oneof![1u64..13, Just(u64::MAX)], 0u64..40, 1u64..8), 40),
        ) {
            let tree = tree(&entries);
            let lives = Lives::default();
            for (dkey, akey, epoch, index, count) in questions {
                let range = Extent { index, count };
                let wanted = if akey % 2 == 0 { Wanted::Single(9) } else { Wanted::Records(range, 1) };
                let (dkey, akey) = (name(dkey), name(akey));
                let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
                let Some(above) = lives.newest(&tree, &OBJECT, epoch) else { continue };
                prop_assert_eq!(above, life(&tree, &object, Life::ALWAYS, epoch).expect("sound"));
                let mut place = Spelling::object(&OBJECT);
                place.dkey(&dkey).expect("short");
                let mut answer = None;
                covering(&tree, above, (&mut place, &akey), epoch, wanted, |found| {
                    let value = found.value().expect("an entry");
                    answer = Some((found.extent, Version::decode(value).expect("sound").payload));
                    Some(())
                });
                match defined(&tree, (&dkey, &akey), epoch, wanted) {
                    Ok(defined) => prop_assert!(answer.is_none() || answer == defined, "{:?}, not {:?}", answer, defined),
                    Err(_) => prop_assert!(answer.is_none(), "{:?} of something damaged", answer),
                }
            }
        }
    }

    #[test]
    fn simple_histories_are_answered_and_a_change_is_seen_at_once() {
        let first = Extent { index: 0, count: 6 };
        let mut tree = tree(&[
            (Some(0), Some(1), 2, 5, first),
            (Some(0), Some(1), 4, 6, first),
            (Some(0), Some(2), 3, 7, first),
            (Some(1), Some(1), 2, 8, first),
        ]);
        let lives = Lives::default();
        let answers = |tree: &Tree, akey: u8, epoch: u64| {
            let wanted =
                if akey == 2 { Wanted::Single(9) } else { Wanted::Records(Extent { index: 1, count: 2 }, 1) };
            let mut place = Spelling::object(&OBJECT);
            place.dkey(&name(0)).expect("short");
            let mut seen = None;
            let above = lives.newest(tree, &OBJECT, epoch)?;
            covering(tree, above, (&mut place, &name(akey)), epoch, wanted, |found| {
                seen = found.value().and_then(|value| value.last().copied());
                Some(())
            });
            seen
        };
        assert_eq!(answers(&tree, 1, u64::MAX), Some(6));
        assert_eq!(answers(&tree, 1, 3), Some(5));
        assert_eq!(answers(&tree, 2, 9), Some(7));
        let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
        tree.put(&object.event(20), &Event::Punch.encode()).expect("in memory");
        assert_eq!(answers(&tree, 1, u64::MAX), None, "the object was punched");
        assert_eq!(answers(&tree, 1, 3), None, "a past before its newest event is left to others");
    }
}
