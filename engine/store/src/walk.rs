//! The quick answer to most fetches: one walk over neighbouring entries of one leaf.
//!
//! The entries of a dkey, of an akey below it and of that one's versions stand side by side in the index. A walk goes
//! down to the first of them once and reads on from there, without keys or copies of its own. It answers what is simple:
//! all lies in one leaf in memory, the dkey and the akey were created once, one version covers all that is asked for.
//! Anything else it leaves, as it does what looks odd, to [`life`], `newest_versions` and `newest_single`, which alone
//! say what is right: where a walk has an answer, it is theirs.

use crate::extents::STEPS_MAX;
use crate::incarnation::{Life, life};
use crate::journal::ObjectKey;
use crate::key::{self, BELOW, EVENT, EXTENT, Path};
use crate::spelling::Spelling;
use crate::timestamps::hash_object;
use crate::tree::{Packed, Tree};
use crate::value::{Event, Kind};
use core::cell::Cell;
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
    /// The life of an object at an epoch that isn't before its newest event; `None` before that, and where the index has
    /// to be read or is damaged.
    pub(crate) fn newest(&self, tree: &Tree, place: &ObjectKey, epoch: u64) -> Option<Life> {
        let slot = &self.0[usize::try_from(hash_object(place) >> 32).unwrap_or(0) % LIVES];
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
            Value::Single { size } => Some(Self::Single(*size)),
            Value::Array { record_size, extents } => {
                let [range] = extents.as_slice() else { return None };
                let bytes = range.count.checked_mul(u64::from(*record_size))?;
                let end = range.index.checked_add(range.count).filter(|end| *end <= SIMPLE_END);
                let is_allowed = range.count > 0 && bytes <= PAYLOAD_MAX && end.is_some();
                is_allowed.then_some(Self::Records(*range, *record_size))
            }
        }
    }
}

/// A version that covers what is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Covering<'a> {
    /// Its records, for an array.
    pub(crate) extent: Option<Extent>,
    /// As it is stored.
    pub(crate) value: &'a [u8],
}

/// Walks in the leaf of a dkey, below an object that exists as `above` says, to the version that covers what is
/// wanted of an akey, and passes it on. Returns what that says of it; `false`, too, where the answer isn't simple, and is
/// to be found another way.
pub(crate) fn covering(
    tree: &Tree,
    above: Life,
    (place, akey): (&mut Spelling, &Key),
    epoch: u64,
    wanted: Wanted,
    found: impl FnOnce(Covering<'_>) -> bool,
) -> bool {
    let Ok(leaf) = tree.leaf(place.event(epoch)) else { return false };
    let Some(entries) = leaf.entries().filter(|_| above.exists) else { return false };
    let covering = Walk::below_dkey(entries, above.low, place, epoch)
        .and_then(|(walk, low)| walk.covering((place, akey), (low, epoch), wanted));
    covering.is_some_and(found)
}

/// A version of an extent, with its epoch, as it is stored.
type Version<'a> = (Extent, u64, &'a [u8]);

/// The leaf ends here, where what is asked for needn't, or the entry is damaged.
struct Unclear;

/// Neighbouring entries of a leaf.
struct Walk<'a> {
    entries: &'a Packed,
    at: usize,
    /// Bytes that the keys of all entries share.
    shared: usize,
}

impl<'a> Walk<'a> {
    /// A walk that stands behind the event that created a dkey at most `epoch`, and the epoch of that. There is one only
    /// if nothing else ever happened to it up to then.
    fn below_dkey(entries: &'a Packed, low: u64, place: &mut Spelling, epoch: u64) -> Option<(Self, u64)> {
        let from = place.event(epoch).strip_prefix(entries.prefix())?;
        let mut walk = Self { entries, at: entries.first_from(from), shared: entries.prefix().len() };
        let (created, value) = walk.version(place, EVENT, epoch)?;
        let is_creation = created >= low && Event::decode(value) == Ok(Event::Dkey);
        walk.at += 1;
        (is_creation && walk.is_behind_events(place)).then_some((walk, created))
    }

    /// What follows the path in the key of the present entry, and its value; `None` where that doesn't begin with it.
    fn below(&self, place: &Spelling) -> Option<(&'a [u8], &'a [u8])> {
        let (suffix, value) = self.entries.entry(self.at)?;
        Some((suffix.strip_prefix(place.path().get(self.shared..)?)?, value))
    }

    /// Whether the present entry is something of the path but no event of it: an older one may have a say.
    fn is_behind_events(&self, place: &Spelling) -> bool {
        self.below(place).is_some_and(|(rest, _)| rest.first() != Some(&EVENT))
    }

    /// Epoch and value of the present entry if it is of this kind, of nothing but an epoch, and not newer than `epoch`.
    fn version(&self, place: &Spelling, kind: u8, epoch: u64) -> Option<(u64, &'a [u8])> {
        let (rest, value) = self.below(place)?;
        let (_, at) = rest.split_first().filter(|(first, _)| **first == kind)?;
        Some((key::epoch_from(at).ok()?.0, value)).filter(|(at, _)| *at <= epoch)
    }

    /// Goes to the first entry that isn't below a key, which is that of an entry behind the first one.
    fn seek(&mut self, key: &[u8]) -> Option<()> {
        self.at = self.entries.first_from(key.get(self.shared..)?);
        Some(())
    }

    /// The version that covers what is wanted of an akey below a dkey that exists since `low`.
    fn covering(
        mut self,
        (place, akey): (&mut Spelling, &Key),
        (low, epoch): (u64, u64),
        wanted: Wanted,
    ) -> Option<Covering<'a>> {
        place.descend(akey)?;
        let (low, event) = self.akey(place, (low, epoch))?;
        let Event::Akey { kind, record_size, classes } = event else { return None };
        match (wanted, kind) {
            (Wanted::Single(_), Kind::Single) => {
                let value = self.single(place, (low, epoch))?;
                Some(Covering { extent: None, value })
            }
            (Wanted::Records(range, size), Kind::Array) if size == record_size && size > 0 => {
                let (extent, value) = self.records(place, (low, epoch), range, classes)?;
                Some(Covering { extent: Some(extent), value })
            }
            _ => None,
        }
    }

    /// Goes behind the event that created an akey. As [`Walk::below_dkey`].
    fn akey(&mut self, place: &mut Spelling, (low, epoch): (u64, u64)) -> Option<(u64, Event)> {
        // Most dkeys have one akey, or the first is asked for.
        if self.version(place, EVENT, epoch).is_none() {
            self.seek(place.event(epoch))?;
        }
        let (created, value) = self.version(place, EVENT, epoch)?;
        let event = Event::decode(value).ok()?;
        self.at += 1;
        (created >= low && self.is_behind_events(place)).then_some((created, event))
    }

    /// The newest single value up to an epoch.
    fn single(&mut self, place: &mut Spelling, (low, epoch): (u64, u64)) -> Option<&'a [u8]> {
        if self.version(place, BELOW, epoch).is_none() {
            self.seek(place.single(epoch))?;
        }
        let (at, value) = self.version(place, BELOW, epoch)?;
        (at >= low).then_some(value)
    }

    /// The version of an extent that covers a range, when no other one reaches into it.
    fn records(
        &mut self,
        place: &mut Spelling,
        (low, epoch): (u64, u64),
        range: Extent,
        classes: u32,
    ) -> Option<(Extent, &'a [u8])> {
        let class = u8::try_from(classes.trailing_zeros()).ok().filter(|_| classes.is_power_of_two())?;
        let first = range.index.saturating_sub(key::class_length_max(class));
        // Extents begin behind the event, all of one class.
        if self.extent(place, class).ok()??.0.index < first {
            self.seek(place.extents_from(class, first))?;
        }
        let (mut done, mut steps, mut covering) = (None, 0, None);
        while let Some((extent, at, value)) = self.extent(place, class).ok()? {
            self.at += 1;
            if extent.index >= range.end() {
                break;
            }
            let reaches = extent.end() > range.index;
            if done == Some(extent) || (at > epoch && reaches) {
                steps += 1;
                if steps > STEPS_MAX {
                    return None;
                }
                continue;
            }
            (done, steps) = (Some(extent), 0);
            if reaches && at >= low && at <= epoch && covering.replace((extent, value)).is_some() {
                return None;
            }
        }
        covering.filter(|(extent, _)| extent.index <= range.index && extent.end() >= range.end())
    }

    /// The present entry as a version of an extent of a class, with its epoch; `None` when it is something else.
    fn extent(&self, place: &Spelling, class: u8) -> Result<Option<Version<'a>>, Unclear> {
        let (suffix, value) = self.entries.entry(self.at).ok_or(Unclear)?;
        let path = place.path().get(self.shared..).ok_or(Unclear)?;
        match suffix.strip_prefix(path) {
            Some([EXTENT, found, rest @ ..]) if *found == class => {
                let (extent, at) = key::extent_tail(class, rest).map_err(|_| Unclear)?;
                Ok(Some((extent, at, value)))
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
                let mut place = Spelling::dkey(&OBJECT, &dkey).expect("short");
                let mut answer = None;
                covering(&tree, above, (&mut place, &akey), epoch, wanted, |found| {
                    answer = Some((found.extent, Version::decode(found.value).expect("sound").payload));
                    true
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
            let mut place = Spelling::dkey(&OBJECT, &name(0)).expect("short");
            let mut seen = None;
            let above = lives.newest(tree, &OBJECT, epoch)?;
            covering(tree, above, (&mut place, &name(akey)), epoch, wanted, |found| {
                seen = found.value.last().copied();
                true
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
