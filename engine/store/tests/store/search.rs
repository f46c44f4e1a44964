//! Searches that take many looks: they go on in parts, whatever comes and goes meanwhile.

use crate::long::beside;
use crate::setup::*;
use crate::turns::{LATE, PAGE_TURNS, dkeys_that_were_punched, extreme, on_a_store};
use weir_proto::limits::AKEYS_MAX;
use weir_proto::object::{Conditions, Extent, KeyQuery, PunchScope, QueryKeyReply};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::Handle;
use weir_store::{Data, FetchError, Shard, StoreConfig};

/// Its akeys are integers (`DAOS_OT_AKEY_UINT64` in the top byte).
const INTEGER_AKEYS: ObjectId = ObjectId { hi: 3 << 56, lo: 9 };

/// All parts of a search, of which there are some, and which let others run.
async fn parts(
    rt: &Handle,
    shard: &Shard,
    object: ObjectId,
    question: &KeyQuery,
    at_least: u64,
) -> QueryKeyReply {
    let all = search(shard, CONTAINER, object, u64::MAX, question, async || {});
    let (found, turns) = beside(rt, all, async |_| {}).await;
    let (found, parts) = found.expect("found");
    assert!(parts >= at_least, "only {parts} parts");
    assert!(turns <= parts * PAGE_TURNS, "{turns} turns for {parts} parts");
    found
}

fn record(index: u64) -> (Extent, u32) {
    (Extent { index, count: 1 }, 1)
}

#[test]
fn a_search_of_keys_that_were_punched_ends_its_parts_early() {
    const COUNT: u64 = 20_000;
    on_a_store(91, quiet(), async move |rt, _store, shard| {
        dkeys_that_were_punched(&rt, &shard, COUNT).await;
        for extent in [false, true] {
            assert_eq!(parts(&rt, &shard, ARRAY, &extreme(true, None, extent), 6).await.dkey, None);
        }
        for (epoch, max, dkey) in [(2 * LATE, true, 0), (3 * LATE, false, COUNT)] {
            write(&shard, dkey, epoch, 7, b"!").await.expect("stored");
            for extent in [false, true] {
                let found = parts(&rt, &shard, ARRAY, &extreme(max, None, extent), 6).await;
                assert_eq!(found.dkey, Some(Key::from_u64(dkey)));
                assert_eq!(found.extent, extent.then(|| record(7)));
            }
            let all = PunchScope::Dkeys(vec![Key::from_u64(dkey)]);
            punch(&shard, ARRAY, all, epoch + 1).await.expect("punched");
        }
    });
}

#[test]
fn a_search_of_akeys_that_were_punched_ends_its_parts_early() {
    const COUNT: u64 = 4096;
    on_a_store(92, quiet(), async move |rt, _store, shard| {
        let dkey = key("d");
        let store = async |akeys: Vec<Key>, epoch| {
            let mut updates: Vec<_> = akeys.iter().map(|_| array("x", 1, &[(7, 1)])).collect();
            updates.iter_mut().zip(akeys).for_each(|(update, akey)| update.akey = akey);
            let (data, none) = (vec![b'x'; updates.len()], Conditions::NONE);
            let data = Data::Borrowed(&data);
            let stored = shard.update(CONTAINER, INTEGER_AKEYS, &dkey, Epoch(epoch), none, &updates, data);
            stored.await.expect("stored");
        };
        for first in (1..=COUNT).step_by(AKEYS_MAX) {
            let akeys: Vec<Key> = (first..first + AKEYS_MAX as u64).map(Key::from_u64).collect();
            store(akeys.clone(), first).await;
            punch(&shard, INTEGER_AKEYS, PunchScope::Akeys(key("d"), akeys), LATE + first)
                .await
                .expect("punched");
        }
        for (epoch, max, akey) in [(2 * LATE, true, 0), (3 * LATE, false, COUNT + 1)] {
            let akey = Key::from_u64(akey);
            store(vec![akey.clone()], epoch).await;
            for extent in [false, true] {
                let question = KeyQuery::Search { max, dkey: Some(key("d")), akey: None, extent };
                let found = parts(&rt, &shard, INTEGER_AKEYS, &question, 2).await;
                assert_eq!(found.akey.as_ref(), Some(&akey));
                assert_eq!(found.extent, extent.then(|| record(7)));
            }
            let only = PunchScope::Akeys(key("d"), vec![akey]);
            punch(&shard, INTEGER_AKEYS, only, epoch + 1).await.expect("punched");
        }
    });
}

#[test]
fn a_search_of_records_that_are_hidden_ends_its_parts_early() {
    const COUNT: u64 = 60_000;
    on_a_store(93, quiet(), async move |rt, _store, shard| {
        let dkey = Key::from_u64(0);
        let store = async |epoch, record_size, extents: &[(u64, u64)], data: &[u8]| {
            let (update, none) = ([array("data", record_size, extents)], Conditions::NONE);
            let data = Data::Borrowed(data);
            let stored = shard.update(CONTAINER, ARRAY, &dkey, Epoch(epoch), none, &update, data);
            stored.await.expect("stored");
        };
        for batch in 0..COUNT / 1000 {
            let extents: Vec<(u64, u64)> = (0..1000).map(|at| (2 * (batch * 1000 + at), 1)).collect();
            store(1 + batch, 1, &extents, &[b'x'; 1000]).await;
        }
        for (epoch, max, index) in [(LATE, false, 2 * COUNT - 1), (2 * LATE, true, 1)] {
            store(epoch, 0, &[(0, 2 * COUNT)], &[]).await;
            write(&shard, 0, epoch + 1, index, b"!").await.expect("stored");
            for dkey in [Some(0), None] {
                let found = parts(&rt, &shard, ARRAY, &extreme(max, dkey, true), 2).await;
                assert_eq!(found.extent, Some(record(index)));
            }
        }
    });
}

#[test]
fn a_search_in_the_smallest_parts_passes_nothing_that_is_there() {
    /// Its dkeys and akeys are integers.
    const OBJECT: ObjectId = ObjectId { hi: 4 << 56, lo: 9 };
    const KEYS: u64 = 3;
    const RECORDS: u64 = 5;
    on_a_store(96, StoreConfig { request_looks: 1, ..quiet() }, async move |_, _store, shard| {
        let mut epoch = 0;
        let mut store = async |dkey, akey, record_size, extents: &[(u64, u64)], data: &[u8]| {
            epoch += 1;
            let mut update = array("x", record_size, extents);
            update.akey = Key::from_u64(akey);
            let updates = [update];
            let (dkey, none) = (Key::from_u64(dkey), Conditions::NONE);
            let data = Data::Borrowed(data);
            let stored = shard.update(CONTAINER, OBJECT, &dkey, Epoch(epoch), none, &updates, data);
            stored.await.expect("stored");
        };
        let places =
            (0..KEYS * KEYS * RECORDS).map(|at| (at / KEYS / RECORDS, at / RECORDS % KEYS, at % RECORDS));
        for (dkey, akey, _) in places.clone().filter(|(.., record)| *record == 0) {
            let each: Vec<(u64, u64)> = (0..RECORDS).map(|index| (index, 1)).collect();
            store(dkey, akey, 1, &each, &[b'x'; RECORDS as usize]).await;
            store(dkey, akey, 0, &[(0, RECORDS)], &[]).await;
        }
        for (dkey, akey, index) in places {
            store(dkey, akey, 1, &[(index, 1)], b"!").await;
            let (key, other) = (Key::from_u64(dkey), Key::from_u64(akey));
            for named in 0..8 {
                let question = KeyQuery::Search {
                    max: named & 4 > 0,
                    dkey: Some(key.clone()).filter(|_| named & 1 > 0),
                    akey: Some(other.clone()).filter(|_| named & 2 > 0),
                    extent: true,
                };
                let (found, _) =
                    search(&shard, CONTAINER, OBJECT, u64::MAX, &question, async || {}).await.expect("found");
                assert_eq!(
                    (found.dkey.as_ref(), found.akey.as_ref()),
                    (Some(&key), Some(&other)),
                    "{question:?}"
                );
                assert_eq!(found.extent, Some(record(index)), "{question:?}");
            }
            store(dkey, akey, 0, &[(0, RECORDS)], &[]).await;
        }
    });
}

/// A few turns of a search end a part.
fn impatient() -> StoreConfig {
    StoreConfig { request_looks: 1024, ..quiet() }
}

#[test]
fn a_search_in_parts_finds_what_is_there_all_the_time_and_shows_the_epoch_asked_for() {
    const COUNT: u64 = 1000;
    on_a_store(94, impatient(), async move |rt, _store, shard| {
        write(&shard, 1, 1, 0, b"low").await.expect("stored");
        dkeys_that_were_punched(&rt, &shard, COUNT).await;
        write(&shard, 2, 2 * LATE, 0, b"!").await.expect("stored");
        write(&shard, 5, 2 * LATE + 1, 0, b"!").await.expect("stored");
        let mut changes = 0;
        let question = extreme(true, None, false);
        // A greater key comes to be, behind the search, and the one that it would have found goes.
        let changing = search(&shard, CONTAINER, ARRAY, u64::MAX, &question, async || {
            changes += 1;
            if changes == 2 {
                write(&shard, COUNT - 1, 3 * LATE, 0, b"?").await.expect("stored");
                let found = PunchScope::Dkeys(vec![Key::from_u64(5)]);
                punch(&shard, ARRAY, found, 3 * LATE + 1).await.expect("punched");
            }
        });
        let (found, parts) = changing.await.expect("found");
        assert!(parts > 3, "only {parts} parts");
        assert_eq!(found.dkey, Some(Key::from_u64(2)));
        let (then, _) =
            search(&shard, CONTAINER, ARRAY, 2 * LATE + 1, &question, async || {}).await.expect("found");
        assert_eq!(then.dkey, Some(Key::from_u64(5)));
        let (now, _) =
            search(&shard, CONTAINER, ARRAY, u64::MAX, &question, async || {}).await.expect("found");
        assert_eq!(now.dkey, Some(Key::from_u64(COUNT - 1)));
        let last = PunchScope::Dkeys(vec![Key::from_u64(COUNT - 1)]);
        punch(&shard, ARRAY, last, 4 * LATE).await.expect("punched");
        let going = search(&shard, CONTAINER, ARRAY, u64::MAX, &question, async || {
            changes += 1;
            punch(&shard, ARRAY, PunchScope::Object, 4 * LATE + changes).await.expect("punched");
        });
        assert_eq!(going.await.expect("found").0.dkey, None);
    });
}

#[test]
fn an_anchor_of_another_search_is_refused() {
    on_a_store(95, impatient(), async move |rt, _store, shard| {
        dkeys_that_were_punched(&rt, &shard, 200).await;
        write(&shard, 200, 2 * LATE, 0, b"!").await.expect("stored");
        let question = extreme(false, None, true);
        let part = shard.query_key(CONTAINER, ARRAY, Epoch::MAX, &question, &[]).await.expect("a part");
        let anchor = part.next.expect("there is more").into_vec();
        for (object, query) in [
            (ARRAY, KeyQuery::Epoch),
            (ARRAY, extreme(false, Some(0), true)),
            (INTEGER_AKEYS, KeyQuery::Search { max: true, dkey: Some(key("d")), akey: None, extent: false }),
        ] {
            let refused = shard.query_key(CONTAINER, object, Epoch::MAX, &query, &anchor).await;
            assert!(matches!(refused, Err(FetchError::Invalid(_))), "{query:?}: {refused:?}");
        }
        for len in 1..anchor.len() {
            let refused = shard.query_key(CONTAINER, ARRAY, Epoch::MAX, &question, &anchor[..len]).await;
            assert!(matches!(refused, Err(FetchError::Invalid(_))), "{len} bytes: {refused:?}");
        }
    });
}

#[test]
fn questions_about_some_dkeys_pass_over_the_others() {
    on_a_store(96, quiet(), async move |_rt, _store, shard| {
        for dkey in 0..10 {
            write(&shard, dkey, LATE + dkey, 3, b"!").await.expect("stored");
        }
        let is_even = |dkey: &Key| dkey.to_u64().is_some_and(|number| number % 2 == 0);
        let is_large = |dkey: &Key| dkey.to_u64().is_some_and(|number| number > 20);
        let (epoch, question) = (Epoch::MAX, extreme(true, None, true));
        let found = shard.query_key_among(CONTAINER, ARRAY, epoch, &question, &[], &is_even).await;
        assert_eq!(found.expect("found").found.dkey, Some(Key::from_u64(8)));
        let none = shard.query_key_among(CONTAINER, ARRAY, epoch, &question, &[], &is_large).await;
        assert_eq!(none.expect("an answer").found.dkey, None);
        let (akey, all) = (key("data"), |_: &Key| true);
        let count = async |wanted: &dyn Fn(&Key) -> bool| {
            let query = KeyQuery::Search { max: true, dkey: None, akey: Some(akey.clone()), extent: true };
            let reply =
                shard.measure(CONTAINER, ARRAY, epoch, &query, &[], 100, wanted).await.expect("counted");
            let runs =
                shard.runs(CONTAINER, ARRAY, epoch, &akey, (0, 0), 100, 100, wanted).await.expect("found");
            assert_eq!(reply.real, runs.runs.len() as u64);
            reply.real
        };
        assert_eq!((count(&all).await, count(&is_even).await, count(&is_large).await), (10, 5, 0));
    });
}
