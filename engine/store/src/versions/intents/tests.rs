use super::*;
use crate::format::value::Inline;
use proptest::prelude::*;

fn key_of(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a key")
}

fn operations() -> Vec<Intent> {
    let object = ObjectId { hi: 3, lo: 9 };
    let akey = |name: &str, value| AkeyUpdate {
        akey: key_of(name),
        value,
        conditions: Conditions::NONE,
        checksums: Vec::new(),
    };
    let akeys = vec![
        akey("a", Value::Single { size: 0 }),
        akey("b", Value::Array { record_size: 8, extents: Vec::new() }),
    ];
    let extent = Slot::Extent(Extent { index: 1 << 62, count: 3 });
    let versions = vec![
        Intended { akey: 0, slot: Slot::Single, record_size: 0 },
        Intended { akey: 1, slot: extent, record_size: 8 },
    ];
    vec![
        Intent::Update { object, dkey: key_of("d"), akeys, versions },
        Intent::Punch { object, scope: PunchScope::Dkeys(vec![key_of("x"), key_of("y")]) },
        Intent::Punch { object, scope: PunchScope::Akeys(key_of("z"), vec![key_of("q")]) },
        Intent::Punch { object: ObjectId { hi: 4, lo: 1 }, scope: PunchScope::Object },
    ]
}

#[test]
fn operations_survive_encoding_and_are_whole_or_not_there() {
    let bytes = encode_operations(Epoch(77), &operations());
    let expected = Prepared { epoch: Epoch(77), intents: operations(), bytes: bytes.len() - 4 };
    assert_eq!(decode_operations(&bytes), Ok(Some(expected)));
    for len in 0..bytes.len() {
        assert_eq!(decode_operations(&bytes[..len]), Ok(None), "{len} bytes");
    }
}

/// Where the only change of a transaction is this one.
fn decoded(intent: &Intent) -> Result<Option<Prepared>, Malformed> {
    decode_operations(&encode_operations(Epoch(77), core::slice::from_ref(intent)))
}

#[test]
fn operations_that_no_request_makes_are_refused() {
    let sound = operations().swap_remove(0);
    assert!(decoded(&sound).is_ok_and(|prepared| prepared.is_some()));
    let integers = ObjectId { hi: 13 << 56, lo: 1 };
    let changed = |change: fn(&mut ObjectId, &mut Vec<Intended>)| {
        let mut intent = sound.clone();
        if let Intent::Update { object, versions, .. } = &mut intent {
            change(object, versions);
        }
        intent
    };
    let unsound = [
        changed(|object, _| *object = ObjectId { hi: 13 << 56, lo: 1 }),
        changed(|_, versions| versions.reverse()),
        changed(|_, versions| versions[1].slot = Slot::Single),
        changed(|_, versions| versions[0].akey = 1),
        changed(|_, versions| versions[0].record_size = 1),
        Intent::Punch { object: integers, scope: PunchScope::Dkeys(vec![key_of("x")]) },
        Intent::Punch { object: integers, scope: PunchScope::Dkeys(Vec::new()) },
    ];
    for intent in unsound {
        assert!(decoded(&intent).is_err(), "{intent:?}");
    }
}

#[test]
fn versions_fit_the_operations_that_store_them_or_are_told_from_those() {
    let prepared = Prepared { epoch: Epoch(77), intents: operations(), bytes: 0 };
    let version = |record_size, len| {
        let bytes = vec![7; len];
        Version { record_size, payload: Payload::Inline(Inline { bytes, checksum: None }) }
    };
    let hole = Version { record_size: 0, payload: Payload::Hole };
    for (versions, fits) in [
        (vec![version(0, 9), version(8, 24)], true),
        (vec![hole.clone(), hole.clone()], true),
        (vec![version(0, 9), version(8, 25)], false),
        (vec![version(8, 9), version(8, 24)], false),
        (vec![version(0, 9)], false),
        (vec![version(0, 9), version(8, 24), hole], false),
    ] {
        assert_eq!(prepared.fits(&versions), fits, "{versions:?}");
    }
}

#[test]
fn a_transaction_is_prepared_or_decided_and_not_both() {
    let mut table = Transactions::default();
    let place = (1, 2, TransactionId(Uuid::from_u128(5)));
    let punch = Intent::Punch { object: ObjectId { hi: 3, lo: 9 }, scope: PunchScope::Object };
    let operations = key::transaction(place, TransactionTail::Operations(0));
    table.follow(&operations, Some(&encode_operations(Epoch(77), &[punch]))).expect("sound");
    assert_eq!(table.misfits().count(), 0);
    let decision = key::transaction(place, TransactionTail::Decision);
    table.follow(&decision, Some(&Decision::Committed(Epoch(77)).encode(1000))).expect("sound");
    let found: Vec<_> = table.misfits().collect();
    assert_eq!(found, [(place, "it is decided, and prepared as if it weren't")]);
    table.follow(&operations, None).expect("sound");
    assert_eq!(table.misfits().count(), 0);
    let hole = Version { record_size: 0, payload: Payload::Hole }.encode();
    let version = key::transaction(place, TransactionTail::Version(0));
    table.follow(&version, Some(&hole)).expect("sound");
    let found: Vec<_> = table.misfits().map(|(_, misfit)| misfit).collect();
    assert_eq!(found, ["some of its operations are missing, so that nobody can commit it"]);
}

#[test]
fn the_table_follows_entries_that_come_and_go() {
    let mut table = Transactions::default();
    let place = (1, 2, TransactionId(Uuid::from_u128(5)));
    let bytes = encode_operations(Epoch(77), &operations());
    let keys = [0, 1].map(|piece| key::transaction(place, TransactionTail::Operations(piece)));
    let (first, second) = bytes.split_at(20);
    table.follow(&keys[0], Some(first)).expect("sound");
    assert!(table.prepared(place).is_none());
    table.follow(&keys[1], Some(second)).expect("sound");
    assert_eq!(table.undecided(1, 2), [(place.2, Epoch(77))]);
    let of_prepared = table.prepared_spaces.of_pool(1);
    assert!(of_prepared > 0 && table.prepared_spaces.of_container(1, 2) == of_prepared);
    assert_eq!([table.prepared_spaces.of_pool(2), table.prepared_spaces.of_container(1, 1)], [0, 0]);
    let object = (1, 2, ObjectId { hi: 3, lo: 9 });
    let (x, other) = (key_of("x"), key_of("other"));
    assert_eq!(table.meets(&object, Scope::Dkey(&x), 77, None), Some((place.2, Epoch(77))));
    assert_eq!(table.meets(&object, Scope::Dkey(&x), 76, None), None);
    assert_eq!(table.meets(&object, Scope::Dkey(&x), 80, Some(place.2)), None);
    assert_eq!(table.meets(&object, Scope::Dkey(&other), 80, None), None);
    assert!(table.meets(&object, Scope::Object, 80, None).is_some());
    let decision = key::transaction(place, TransactionTail::Decision);
    table.follow(&decision, Some(&Decision::Committed(Epoch(77)).encode(1000))).expect("sound");
    for key in &keys {
        table.follow(key, None).expect("sound");
    }
    assert_eq!(table.meets(&object, Scope::Object, 80, None), None);
    assert_eq!(table.decision(place), Some(Decision::Committed(Epoch(77))));
    assert!(table.old_decisions(1000, 1, 9).is_empty());
    assert_eq!(table.old_decisions(1001, 1, 9), std::slice::from_ref(&decision));
    assert_eq!((table.forgotten_until(500, 2), table.forgotten_until(1500, 2)), (500, 1500));
    // Those that were more than are kept may have been made at the same time as the first that is left.
    assert_eq!((table.forgotten_until(500, 1), table.forgotten_until(1500, 1)), (1000, 1500));
    assert_eq!(table.old_decisions(0, 0, 9), std::slice::from_ref(&decision));
    table.follow(&decision, None).expect("sound");
    assert!(table.entries.is_empty() && table.decided.is_empty() && table.undecided.is_empty());
    assert!(table.objects.is_empty() && table.dkeys.is_empty());
    assert_eq!(
        (*table.prepared_spaces.all(), table.prepared_spaces.of_pool(1), table.bytes()),
        (PreparedSpace::default(), 0, 0)
    );
}

#[test]
fn memory_is_counted_for_all_that_is_remembered_whatever_it_replaces() {
    let mut table = Transactions::default();
    let place = (1, 2, TransactionId(Uuid::from_u128(5)));
    let dkeys = (0..=u8::MAX).map(|dkey| Key::new(&[dkey]).expect("a key")).collect();
    let punch = Intent::Punch { object: ObjectId { hi: 3, lo: 9 }, scope: PunchScope::Dkeys(dkeys) };
    let entry = |tail| key::transaction(place, tail);
    let operations = entry(TransactionTail::Operations(0));
    let stored = encode_operations(Epoch(77), &[punch]);
    table.follow(&operations, Some(&stored)).expect("sound");
    let of_operations = table.bytes();
    // What the two lists take, without their nodes.
    assert!(of_operations > 256 * (size_of::<Key>() + size_of::<(ObjectKey, Option<Key>, Who)>()));
    let hole = Version { record_size: 0, payload: Payload::Hole }.encode();
    let version = entry(TransactionTail::Version(1));
    let decision = entry(TransactionTail::Decision);
    let decided = Decision::Aborted.encode(1000);
    let mut seen = Vec::new();
    for _ in 0..2 {
        for (key, value) in [(&operations, &stored), (&version, &hole), (&decision, &decided)] {
            table.follow(key, Some(value)).expect("sound");
        }
        seen.push(table.bytes());
    }
    assert!(seen[0] == seen[1] && seen[0] > of_operations + 2 * ENTRY_BYTES, "{seen:?}");
    for key in [&operations, &version, &decision] {
        table.follow(key, None).expect("sound");
    }
    assert_eq!(table.bytes(), 0);
}

#[test]
fn operations_without_their_beginning_mean_nothing() {
    let place = (1, 2, TransactionId(Uuid::from_u128(5)));
    let bytes = encode_operations(Epoch(77), &operations());
    let pieces: Vec<&[u8]> = bytes.chunks(bytes.len() / 4).collect();
    for some in 0..1u32 << pieces.len() {
        let mut table = Transactions::default();
        for (number, piece) in (0..).zip(&pieces).filter(|(number, _)| some >> number & 1 != 0) {
            let key = key::transaction(place, TransactionTail::Operations(number));
            table.follow(&key, Some(piece)).expect("a part of a sound transaction");
        }
        let is_whole = some.count_ones() as usize == pieces.len();
        assert_eq!(table.prepared(place).is_some(), is_whole, "pieces {some:b}");
    }
}

#[test]
fn what_was_one_too_many_stays_forgotten_when_others_go_with_their_container() {
    let mut table = Transactions::default();
    let decision = |container, time: u64| {
        let place = (1, container, TransactionId(Uuid::from_u128(time.into())));
        key::transaction(place, TransactionTail::Decision)
    };
    for (container, time) in [(1, 1000), (1, 1001), (2, 1002)] {
        let stored = Decision::Aborted.encode(time);
        table.follow(&decision(container, time), Some(&stored)).expect("sound");
    }
    let old = table.old_decisions(0, 2, 9);
    assert_eq!(old, [decision(1, 1000)]);
    table.note_forgotten(&old, |_| true);
    table.follow(&old[0], None).expect("sound");
    assert_eq!(table.forgotten_until(500, 2), 1001);
    table.follow(&decision(2, 1002), None).expect("sound");
    assert_eq!((table.forgotten_until(500, 2), table.forgotten_until(1500, 2)), (1000, 1500));
}

/// What a transaction writes: objects, and dkeys of them unless it is all of it.
fn punches() -> impl Strategy<Value = Vec<Intent>> {
    let scope = prop_oneof![
        1 => Just(PunchScope::Object),
        4 => (0u8..4).prop_map(|dkey| PunchScope::Dkeys(vec![Key::new(&[dkey]).expect("a key")])),
    ];
    let punch = (0u64..3, scope);
    let punch = punch.prop_map(|(lo, scope)| Intent::Punch { object: ObjectId { hi: 0, lo }, scope });
    proptest::collection::vec(punch, 1..4)
}

proptest! {
    #[test]
    fn who_writes_the_same_is_found(
        transactions in proptest::collection::vec((0u32..2, 1u64..9, punches()), 0..12),
        gone in 0usize..12, asked in (0u32..2, 0u64..3, 0u8..5, 0u64..10), own in 0u128..12,
    ) {
        let mut table = Transactions::default();
        let id = |number: usize| TransactionId(Uuid::from_u128(number as u128));
        for (number, (container, epoch, intents)) in transactions.iter().enumerate() {
            let key = key::transaction((1, *container, id(number)), TransactionTail::Operations(0));
            table.follow(&key, Some(&encode_operations(Epoch(*epoch), intents))).expect("sound");
            if number == gone {
                table.follow(&key, None).expect("sound");
            }
        }
        let (container, lo, dkey, epoch) = asked;
        let dkey = Key::new(&[dkey]).expect("a key");
        let scope = if dkey.as_bytes() == [4] { Scope::Object } else { Scope::Dkey(&dkey) };
        let overlap = |written: Scope<'_>| {
            written == Scope::Object || scope == Scope::Object || written == scope
        };
        let left = transactions.iter().enumerate().filter(|(number, (at, ..))| *number != gone && *at == container);
        let left: Vec<_> = left.collect();
        let meets = |number: usize, intents: &[Intent]| {
            let of_object = intents.iter().filter(|intent| intent.object().lo == lo);
            id(number) != TransactionId(Uuid::from_u128(own))
                && of_object.flat_map(Intent::scopes).any(overlap)
        };
        let early = left.iter().filter(|(_, (_, at, _))| *at <= epoch);
        let expected: Vec<_> = early
            .filter(|(number, (.., intents))| meets(*number, intents))
            .map(|(number, (_, at, _))| (id(*number), Epoch(*at)))
            .collect();
        let object = (1, container, ObjectId { hi: 0, lo });
        match table.meets(&object, scope, epoch, Some(TransactionId(Uuid::from_u128(own)))) {
            Some(found) => prop_assert!(expected.contains(&found)),
            None => prop_assert!(expected.is_empty()),
        }
        let mut all: Vec<_> = left.iter().map(|(number, (_, at, _))| (id(*number), Epoch(*at))).collect();
        all.sort_unstable_by_key(|(id, at)| (*at, *id));
        prop_assert_eq!(table.meets_any(1, container, epoch), all.first().copied().filter(|(_, at)| at.0 <= epoch));
        prop_assert_eq!(table.undecided(1, container), all);
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = decode_operations(&bytes);
        let mut framed = u32::try_from(bytes.len()).expect("short").to_le_bytes().to_vec();
        framed.extend_from_slice(&bytes);
        let _ = decode_operations(&framed);
        let _ = Decision::decode(&bytes);
    }
}

#[test]
fn the_operations_that_are_decoded_are_those_of_the_page() {
    let page = include_str!("../../../../../docs/reference/format.md");
    for tag in 0..=u8::MAX {
        let bytes = [&[tag][..], &[0; 16]].concat();
        let decoded = Intent::decode(&mut Decoder::new(&bytes));
        let is_taken = decoded != Err(Malformed("an operation is of unknown kind"));
        let row = format!("| operation, first byte | `{tag:02x}` |");
        assert_eq!(page.contains(&row), is_taken, "{row}");
    }
}
