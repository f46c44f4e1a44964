//! Packed entries against sorted maps.

use super::*;
use crate::format::edit_buffer::EditBuffer;
use crate::format::record::Change;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn a_common_prefix_is_stored_once_and_given_up_when_a_key_differs() {
    let mut packed = Packed::default();
    for key in [b"weir/a", b"weir/b", b"weir/c"] {
        packed.push(key, b"1");
    }
    let mut tight = packed.range(0..3);
    assert_eq!(tight.prefix(), b"weir/");
    assert!(tight.size() < packed.size());
    let at = tight.search(b"wax").expect_err("not there");
    assert_eq!(at, 0);
    tight.insert(at, b"wax", b"2");
    assert_eq!(tight.prefix(), b"w");
    assert_eq!(tight.search(b"weir/b"), Ok(2));
    assert_eq!(tight.search(b"x"), Err(4));
}

proptest! {
    #[test]
    fn alike_keys_are_found_as_in_a_sorted_map(
        keys in proptest::collection::btree_set(proptest::collection::vec(0u8..2, 0..16), 1..200),
        asked in proptest::collection::vec(proptest::collection::vec(0u8..2, 0..16), 40),
        start in prop_oneof![Just(&b"alike"[..]), Just(&b"ab"[..]), Just(&b""[..])],
        lead in any::<bool>(),
    ) {
        let whole = |key: &Vec<u8>| [start, key].concat();
        let mut keys: Vec<_> = keys.iter().map(whole).collect();
        let mut packed = Packed::default();
        if lead && !keys[0].is_empty() {
            // A branch has it, so that its keys have no prefix.
            keys.insert(0, Vec::new());
        }
        for key in &keys {
            packed.push(key, b"");
        }
        // Given a prefix, and losing it again to keys that have less of it.
        let (mut grown, mut all) = (packed.range(0..packed.len()), keys.clone());
        for key in asked.iter().take(8).cloned().chain([Vec::new()]) {
            prop_assert_eq!(grown.search(&key), all.binary_search(&key));
            if let Err(at) = grown.search(&key) {
                grown.insert(at, &key, b"");
                all.insert(at, key);
            }
        }
        for key in all.iter().chain(&asked) {
            prop_assert_eq!(grown.search(key), all.binary_search(key), "{:?}", key);
            let first = all.partition_point(|known| known < key);
            prop_assert_eq!(grown.first_at(key), key.starts_with(grown.prefix()).then_some(first));
        }
        for packed in [&packed, &packed.range(0..packed.len())] {
            for key in asked.iter().map(whole).chain(asked.iter().cloned()).chain(keys.iter().cloned()) {
                let place = keys.binary_search(&key);
                prop_assert_eq!(packed.search(&key), place, "{:?}", key);
                let covering = place.unwrap_or_else(|at| at.saturating_sub(1));
                for near in [[0, 0], [covering, 0], [packed.len(), covering + 1]] {
                    prop_assert_eq!(packed.covering(near, &key), covering, "{:?} near {:?}", key, near);
                }
                let first = place.unwrap_or_else(|at| at);
                for len in 0..=key.len() {
                    let begins = keys.get(first).is_some_and(|found| found.starts_with(&key[..len]));
                    prop_assert_eq!(packed.first_with(&key, len), (first, begins), "{:?}, {}", key, len);
                }
                for len in (0..=key.len()).filter(|_| place != Err(0)) {
                    let is_last = keys.get(covering + 1).map(|next| !next.starts_with(&key[..len]));
                    prop_assert_eq!(packed.covering_with(&key, len), (covering, is_last), "{:?}, {}", key, len);
                }
            }
        }
    }

    #[test]
    fn entries_are_inserted_together_only_where_they_belong(
        keys in proptest::collection::btree_set(proptest::collection::vec(0u8..3, 0..9), 0..40),
        new in proptest::collection::btree_set(proptest::collection::vec(0u8..3, 0..9), 1..4),
        start in prop_oneof![Just(&b"alike"[..]), Just(&b"a"[..]), Just(&b""[..])],
        (lead, spare) in (any::<bool>(), 0usize..40),
    ) {
        let whole = |key: &Vec<u8>| [start, key].concat();
        let mut keys: Vec<_> = keys.iter().map(whole).collect();
        if lead && keys.first().is_none_or(|first| !first.is_empty()) {
            keys.insert(0, Vec::new());
        }
        let new: Vec<_> = new.iter().map(whole).collect();
        let mut packed = Packed::default();
        for key in &keys {
            packed.push(key, b"old");
        }
        for packed in [&packed, &packed.range(0..packed.len())] {
            for index in 0..=keys.len() {
                let (mut changed, mut one_by_one) = (packed.clone(), packed.clone());
                let mut buffer = EditBuffer::default();
                buffer.extend(&new.iter().map(|key| Change::put(key, b"new".to_vec())).collect::<Vec<_>>());
                let limit = packed.size() + spare;
                let is_done = changed.insert_between(index, buffer.sorted(0..new.len()), limit);
                let is_inside = index > 0 && index < keys.len();
                let belongs = is_inside && keys[index - 1] < new[0] && keys[index] > new[new.len() - 1];
                let mut wanted = keys.clone();
                if belongs {
                    wanted.splice(index..index, new.iter().cloned());
                    new.iter().rev().for_each(|key| one_by_one.insert(index, key, b"new"));
                }
                // Behind a first key that is the prefix alone, not all keys begin as the others do.
                let is_sure = index != 1 || packed.entry(0).is_some_and(|(first, _)| !first.is_empty());
                let fits = belongs && one_by_one.size() <= limit;
                prop_assert!(is_done == fits || !is_sure && !is_done);
                let (found, wanted) = (changed, if is_done { wanted } else { keys.clone() });
                let found: Vec<_> = (0..found.len()).map(|at| found.key(at)).collect();
                prop_assert_eq!(found, wanted);
            }
        }
    }

    #[test]
    fn behaves_like_a_sorted_map(steps in proptest::collection::vec(
        (proptest::collection::vec(0u8..3, 0..6), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))), 0..200)) {
        let mut packed = Packed::default();
        let mut model = BTreeMap::new();
        for (key, value) in steps {
            match (packed.search(&key), value) {
                (Ok(at), Some(value)) => { packed.replace(at, &value); model.insert(key, value); }
                (Err(at), Some(value)) => { packed.insert(at, &key, &value); model.insert(key, value); }
                (Ok(at), None) => { packed.remove(at); model.remove(&key); }
                (Err(_), None) => prop_assert!(!model.contains_key(&key)),
            }
            let entries: Vec<_> = (0..packed.len()).map(|at| (packed.key(at), packed.value(at).to_vec())).collect();
            prop_assert_eq!(entries, model.clone().into_iter().collect::<Vec<_>>());
        }
        for (key, hint) in model.keys().flat_map(|key| [(key, 0), (key, 1), (key, packed.len())]) {
            prop_assert_eq!(packed.locate(key), Position::Inside(packed.search(key)));
            let found = |key: &[u8]| packed.seek(key).map(|at| packed.key(at));
            prop_assert_eq!(found(key), Some(key.clone()));
            let behind = [key.as_slice(), &[0]].concat();
            prop_assert_eq!(found(&behind), model.range(behind.clone()..).next().map(|(key, _)| key.clone()));
            let next = model.range(behind.clone()..).next();
            let located = if next.is_some() { Position::Inside(packed.search(&behind)) } else { Position::Behind };
            prop_assert_eq!(packed.locate(&behind), located);
            prop_assert_eq!(packed.locate(&[]) == Position::Before, !model.contains_key(&[][..]));
            if let Ok(at) = packed.search(key) {
                prop_assert!(!packed.is_above(at, key) && !packed.is_above(at, &behind));
                prop_assert!(at == 0 || packed.is_above(at, &packed.key(at - 1)));
                for start in [&key[..], &behind, &key[..key.len() / 2], &[1], &[]] {
                    if let Some(start) = start.strip_prefix(packed.prefix()) {
                        prop_assert!(packed.may_begin(at, start) || !packed.suffix(at).starts_with(start));
                    }
                }
                if let Some((next, _)) = next {
                    prop_assert_eq!(packed.is_above(at + 1, &behind), behind < *next);
                }
                for from in [&key[..], &behind].into_iter().filter_map(|from| from.strip_prefix(packed.prefix())) {
                    prop_assert_eq!(packed.first_near(from, hint), packed.first_from(from));
                }
            }
            let at = packed.search(key).expect("it is there");
            let rest = |start: &[u8]| packed.rest(at, start, &mut Vec::new()).map(<[u8]>::to_vec);
            for len in 0..=key.len() {
                prop_assert_eq!(rest(&key[..len]), Some(key[len..].to_vec()));
            }
            prop_assert_eq!(rest(&behind), None);
        }
        if packed.len() > 1 {
            let (middle, before) = packed.middle();
            prop_assert!(middle > 0 && middle < packed.len());
            prop_assert_eq!(before, (0..middle).map(|at| packed.data_len(at)).sum::<usize>());
            let halves = |at: usize| {
                let entry = |index| ENTRY_OVERHEAD + packed.data_len(index);
                let left = packed.prefix().len() + (0..at).map(entry).sum::<usize>();
                left.abs_diff(packed.size() - left)
            };
            prop_assert!((1..packed.len()).all(|at| halves(middle) <= halves(at) + 4), "it isn't in the middle");
            let (left, right) = (packed.range(0..middle), packed.range(middle..packed.len()));
            let mut half = packed.clone();
            let other = half.split_off_half();
            for (part, split) in [(&left, &half), (&right, &other)] {
                prop_assert_eq!((part.prefix(), part.size(), part.heap.len()), (split.prefix(), split.size(), split.heap.len()));
            }
            prop_assert_eq!(left.len() + right.len(), packed.len());
            prop_assert_eq!(left.key(0), packed.key(0));
            prop_assert_eq!(right.key(0), packed.key(middle));
        }
    }
}
