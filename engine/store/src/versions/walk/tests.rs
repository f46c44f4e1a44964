//! Answers of walks beside those that are defined.

use super::*;
use crate::format::key::ObjectKey;
use crate::format::key::Path;
use crate::format::value::{Payload, Version};
use crate::index::existence::existence;
use crate::index::extents::{newest_versions, paint};
use crate::index::fault::Fault;
use crate::operations::fetch::newest_single;
use crate::state::existence_cache::ExistenceCache;
use crate::versions::timestamps::{hash_key, hash_object};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use weir_proto::ObjectId;

const OBJECT: ObjectKey = (1, 1, ObjectId { hi: 0, lo: 1 });

fn name(number: u8) -> Key {
    Key::new(&[b'k', number, 0, 1][..usize::from(2 + number % 3)]).expect("a key")
}

/// An entry of an object: which dkey and akey it is of, its epoch, and what it is.
type Entry = (Option<u8>, Option<u8>, u64, u8, Extent);

fn entry() -> impl Strategy<Value = Entry> {
    let extent = (0u64..40, prop_oneof![3 => Just(6u64), 1 => 1u64..70]);
    let extent = extent.prop_map(|(index, count)| Extent { index, count });
    let number = || prop_oneof![1 => Just(None), 30 => (0u8..6).prop_map(Some)];
    (number(), number(), 1u64..12, 0u8..24, extent)
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    proptest::collection::vec(entry(), 0..200)
}

/// The tree of a history, most of which makes sense. Long values make it several leaves.
fn tree(entries: &[Entry]) -> Tree {
    let mut tree = Tree::default();
    let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
    tree.put(&object.event(1), &Event::Object { newest: 12 }.encode()).expect("in memory");
    for entry in entries {
        set(&mut tree, entry);
    }
    tree
}

/// Adds an entry with those above it.
fn set(tree: &mut Tree, (dkey, akey, epoch, what, extent): &Entry) {
    let mut put = |key: &[u8], value: Vec<u8>| drop(tree.put(key, &value).expect("in memory"));
    let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
    let Some(dkey) = dkey else {
        let event = if what % 4 == 0 { Event::Punch } else { Event::Object { newest: *epoch } };
        return put(&object.event(*epoch), event.encode());
    };
    let dkey_path = object.dkey(&name(*dkey));
    put(&dkey_path.event(1), Event::Dkey.encode());
    let Some(akey) = akey else {
        let event = if what % 2 == 0 { Event::Punch } else { Event::Dkey };
        return put(&dkey_path.event(*epoch), event.encode());
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
        0 => put(&path.event(*epoch), Event::Punch.encode()),
        1 => put(&path.event(*epoch), akey_event.encode()),
        _ => {
            let len = usize::try_from(extent.count).expect("small");
            let payload = match what {
                2 => Payload::Hole,
                _ => Version::into_payload([&[0, 1][..], &vec![*what; 10 * len]].concat()).expect("sound"),
            };
            let value = Version { record_size: 1, payload }.encode();
            let key = if is_single { path.single(*epoch) } else { path.extent(*extent, *epoch) };
            put(&key, value);
        }
    }
}

/// A tree and what is remembered of it.
struct Known {
    tree: Tree,
    existences: ExistenceCache,
    hints: Hints,
    /// How many hashes there are.
    hashes: u64,
}

/// The records of an answer, and its data.
type Answer = Option<(Option<Extent>, Payload)>;

impl Known {
    fn new(tree: Tree, hashes: u64) -> Self {
        Self { tree, existences: ExistenceCache::default(), hints: Hints::new(1 << 20), hashes }
    }

    /// What leads to an answer.
    fn lead(&self, (dkey, akey): (&Key, &Key), wanted: Wanted) -> Lead<'_> {
        let akey = hash_key(hash_key(hash_object(&OBJECT), dkey), akey);
        let number = wanted.hash(akey) % self.hashes;
        self.hints.lead(&self.tree, number << 48 | number)
    }

    /// What is found below an object that exists as `above` says.
    fn ask_below(&self, above: Existence, (dkey, akey): (&Key, &Key), epoch: u64, wanted: Wanted) -> Answer {
        let mut place = StackKeyBuilder::object(&OBJECT);
        place.dkey(dkey).expect("short");
        let lead = self.lead((dkey, akey), wanted);
        covering(&self.tree, &lead, above, (&mut place, akey), epoch, wanted, |found| {
            let value = found.value().expect("an entry");
            let payload = Version::decode(value).expect("sound").payload;
            Some((found.extent, payload))
        })
    }

    fn ask(&self, keys: (&Key, &Key), epoch: u64, wanted: Wanted) -> Answer {
        self.ask_below(
            self.existences.newest_at(&self.tree, &OBJECT, hash_object(&OBJECT), epoch)?,
            keys,
            epoch,
            wanted,
        )
    }

    /// Asks until it is known where the answer is.
    fn ask_often(&self, keys: (&Key, &Key), wanted: Wanted) -> Answer {
        (0..9).map(|_| self.ask(keys, u64::MAX, wanted)).last().flatten()
    }

    fn leads(&self, keys: (&Key, &Key), wanted: Wanted) -> bool {
        self.lead(keys, wanted).end.is_some()
    }

    /// Compares what is found with what is defined.
    fn check(&self, (dkey, akey): (u8, u8), epoch: u64, range: Extent) -> Result<(), TestCaseError> {
        let wanted = if akey % 2 == 0 { Wanted::Single(9) } else { Wanted::Records(range, 1) };
        let keys = (&name(dkey), &name(akey));
        let answer = self.ask(keys, epoch, wanted);
        match defined(&self.tree, keys, epoch, wanted) {
            Ok(defined) => {
                prop_assert!(answer.is_none() || answer == defined, "{:?}, not {:?}", answer, defined);
            }
            Err(_) => prop_assert!(answer.is_none(), "{:?} of something damaged", answer),
        }
        Ok(())
    }
}

/// What those say who define what is right, in the form of an answer that covers all that is wanted.
fn defined(tree: &Tree, (dkey, akey): (&Key, &Key), epoch: u64, wanted: Wanted) -> Result<Answer, Fault> {
    let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
    let (dkey, above) = (object.dkey(dkey), existence(tree, &object, Existence::ALWAYS, epoch)?);
    let (akey, above) = (dkey.akey(akey), existence(tree, &dkey, above, epoch)?);
    let existence = existence(tree, &akey, above, epoch)?;
    let Some((kind, record_size, classes)) = existence.array_or_single() else { return Ok(None) };
    match (wanted, kind) {
        (Wanted::Single(_), Kind::Single) => {
            Ok(newest_single(tree, &akey, existence, epoch)?.map(|(_, payload)| (None, payload)))
        }
        (Wanted::Records(range, size), Kind::Array) if size == record_size => {
            let stored = newest_versions(tree, &akey, existence, epoch, range, classes)?;
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
        let known = Known::new(tree(&entries), u64::MAX);
        for (dkey, akey, epoch, index, count) in questions {
            if let Some(above) = known.existences.newest_at(&known.tree, &OBJECT, hash_object(&OBJECT), epoch) {
                let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
                prop_assert_eq!(above, existence(&known.tree, &object, Existence::ALWAYS, epoch).expect("sound"));
            }
            known.check((dkey, akey), epoch, Extent { index, count })?;
        }
    }

    #[test]
    fn a_hint_leads_to_the_defined_answer_whatever_has_changed(
        entries in entries(),
        changes in proptest::collection::vec((entry(), any::<bool>(), 1u64..13), 1..6),
        hashes in prop_oneof![Just(1 << 16), 1u64..4],
    ) {
        let mut known = Known::new(tree(&entries), hashes);
        for (change, goes, early) in changes {
            // So often that leaves get names.
            for epoch in [u64::MAX, u64::MAX, u64::MAX, early] {
                for (dkey, akey, .., extent) in &entries {
                    let (Some(dkey), Some(akey)) = (dkey, akey) else { continue };
                    known.check((*dkey, *akey), epoch, *extent)?;
                    known.check((*dkey, *akey), epoch, Extent { count: 1, ..*extent })?;
                }
            }
            match change {
                (Some(dkey), Some(akey), epoch, _, extent) if goes => {
                    let path = Path::object(OBJECT.0, OBJECT.1, OBJECT.2).dkey(&name(dkey)).akey(&name(akey));
                    known.tree.remove(&path.extent(extent, epoch)).expect("in memory");
                    known.tree.remove(&path.single(epoch)).expect("in memory");
                }
                change => set(&mut known.tree, &change),
            }
        }
    }
}

const FIRST: Extent = Extent { index: 0, count: 6 };

fn last_byte(answer: Answer) -> Option<u8> {
    match answer?.1 {
        Payload::Inline(inline) => inline.bytes.last().copied(),
        _ => None,
    }
}

#[test]
fn simple_histories_are_answered_and_a_change_is_seen_at_once() {
    let mut known = Known::new(
        tree(&[
            (Some(0), Some(1), 2, 5, FIRST),
            (Some(0), Some(1), 4, 6, FIRST),
            (Some(0), Some(2), 3, 7, FIRST),
            (Some(1), Some(1), 2, 8, FIRST),
        ]),
        u64::MAX,
    );
    let answers = |known: &Known, akey: u8, epoch: u64| {
        let wanted =
            if akey == 2 { Wanted::Single(9) } else { Wanted::Records(Extent { index: 1, count: 2 }, 1) };
        last_byte(known.ask((&name(0), &name(akey)), epoch, wanted))
    };
    assert_eq!(answers(&known, 1, u64::MAX), Some(6));
    assert_eq!(answers(&known, 1, 3), Some(5));
    assert_eq!(answers(&known, 2, 9), Some(7));
    let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
    known.tree.put(&object.event(20), &Event::Punch.encode()).expect("in memory");
    assert_eq!(answers(&known, 1, u64::MAX), None, "the object was punched");
    assert_eq!(answers(&known, 1, 3), None, "a past before its newest event is left to others");
}

#[test]
fn a_hint_leads_to_an_answer_until_its_leaf_changes() {
    let mut known =
        Known::new(tree(&[(Some(0), Some(1), 4, 5, FIRST), (Some(1), Some(2), 4, 6, FIRST)]), u64::MAX);
    let (array, single) = (Wanted::Records(FIRST, 1), Wanted::Single(9));
    let (in_array, in_single) = ((&name(0), &name(1)), (&name(1), &name(2)));
    assert_eq!(last_byte(known.ask(in_array, u64::MAX, array)), Some(5));
    assert!(!known.leads(in_array, array), "it may change again soon");
    assert_eq!(last_byte(known.ask_often(in_array, array)), Some(5));
    assert_eq!(last_byte(known.ask_often(in_single, single)), Some(6));
    assert!(known.leads(in_array, array) && known.leads(in_single, single));
    assert_eq!(last_byte(known.ask(in_array, 4, array)), Some(5));
    assert_eq!(known.ask(in_array, 3, array), None, "it was stored later");
    let reborn = Existence {
        low: 2,
        ..known.existences.newest_at(&known.tree, &OBJECT, hash_object(&OBJECT), u64::MAX).expect("an object")
    };
    assert_eq!(known.ask_below(reborn, in_array, u64::MAX, array), None, "the dkey is of a former existence");
    set(&mut known.tree, &(Some(0), Some(1), 7, 8, FIRST));
    assert!(!known.leads(in_single, single), "a neighbour was changed");
    assert_eq!(last_byte(known.ask(in_array, u64::MAX, array)), Some(8));
}

#[test]
fn hints_are_forgotten_when_names_begin_anew_and_take_no_room_where_there_is_none() {
    let entries: Vec<Entry> = (0..4).map(|dkey| (Some(dkey), Some(1), 4, 3 + dkey, FIRST)).collect();
    let wanted = Wanted::Records(FIRST, 1);
    let (first, other) = ((&name(0), &name(1)), (&name(2), &name(1)));
    let hints = Hints::new(1 << 20).named_from(u64::from(u32::MAX));
    let mut known = Known { hints, ..Known::new(tree(&entries), u64::MAX) };
    assert_eq!(last_byte(known.ask_often(first, wanted)), Some(3));
    assert!(known.leads(first, wanted));
    set(&mut known.tree, &(Some(1), Some(1), 7, 8, FIRST));
    assert_eq!(last_byte(known.ask_often(other, wanted)), Some(5));
    assert!(known.leads(other, wanted) && !known.leads(first, wanted));
    assert_eq!(last_byte(known.ask_often(first, wanted)), Some(3));
    assert!(known.leads(other, wanted) && known.leads(first, wanted), "the first new name is given once");
    known.hints = Hints::new(1);
    assert_eq!(last_byte(known.ask_often(first, wanted)), Some(3));
    assert!(!known.leads(first, wanted));
}

#[test]
fn a_name_whose_half_was_given_before_leads_to_no_older_version() {
    let entries: Vec<Entry> = (0..4).map(|dkey| (Some(dkey), Some(1), 4, 3 + dkey, FIRST)).collect();
    let wanted = Wanted::Records(FIRST, 1);
    let (first, other) = ((&name(0), &name(1)), (&name(2), &name(1)));
    let named_from = |known: Known, stamp| Known { hints: known.hints.named_from(stamp), ..known };
    let begin = 1 << 40;
    let mut known = named_from(Known::new(tree(&entries), u64::MAX), begin + 9);
    assert_eq!(last_byte(known.ask_often(first, wanted)), Some(3));
    set(&mut known.tree, &(Some(0), Some(1), 7, 8, FIRST));
    let anew = begin + (1 << 32);
    for stamp in [anew + 1, anew + 9] {
        known = named_from(known, stamp);
        set(&mut known.tree, &(Some(1), Some(1), 7, 8, FIRST));
        assert_eq!(last_byte(known.ask_often(other, wanted)), Some(5));
    }
    assert_eq!(last_byte(known.ask(first, u64::MAX, wanted)), Some(8));
}

#[test]
fn nothing_is_remembered_of_a_walk_that_went_on_in_another_leaf() {
    let extent = |index| Extent { index, count: 6 };
    let mut known = Known::new(tree(&[(Some(0), Some(1), 2, 5, extent(0xfe))]), u64::MAX);
    let path = Path::object(OBJECT.0, OBJECT.1, OBJECT.2).dkey(&name(0)).akey(&name(1));
    for index in [0, 6, 0x105] {
        known.tree.put(&path.extent(extent(index), 2), &[7; 5900]).expect("in memory");
    }
    let key = |index| path.extent(extent(index), 2);
    let leaf = |known: &Known, index| known.tree.leaf(&key(index)).expect("in memory");
    assert!(!Rc::ptr_eq(&leaf(&known, 0xfe), &leaf(&known, 0x101)), "the last of a leaf");
    let (keys, wanted) = ((&name(0), &name(1)), Wanted::Records(extent(0xfe), 1));
    assert_eq!(last_byte(known.ask_often(keys, wanted)), Some(5));
    assert!(!known.leads(keys, wanted));
    known.tree.put(&path.extent(extent(0x101), 9), &[7; 9]).expect("in memory");
    assert_eq!(known.ask(keys, u64::MAX, wanted), None, "another one reaches into it");
}
