//! Lists, queries and merges that look at very much of the index and find little: others run in between.

use crate::long::beside;
use crate::setup::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_proto::limits::{AKEYS_MAX, LIST_KEYS_MAX};
use weir_proto::object::{AkeyFetch, Conditions, Extent, KeyQuery, ListScope, PunchScope, Value};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::Handle;
use weir_store::{Data, FetchError, ListPage, Shard, Store, StoreConfig};

const DISK: u64 = 256 << 20;

/// Most keys that are looked at in one turn.
pub const KEYS: u64 = 32;

/// Most entries that are looked at in one turn.
const LOOKS: u64 = 256;

/// Most turns of one page.
pub const PAGE_TURNS: u64 = 210;

/// Epoch behind everything that a test begins with.
pub const LATE: u64 = 1_000_000;

/// Updates that are under way together.
const CROWD: u64 = 64;

/// Does something for each number up to `count`, many at a time.
async fn crowd<F>(rt: &Handle, count: u64, work: impl Fn(u64) -> F)
where
    F: Future<Output = ()> + 'static,
{
    for first in (0..count).step_by(CROWD as usize) {
        let tasks: Vec<_> = (first..count.min(first + CROWD)).map(|at| rt.spawn(work(at))).collect();
        for task in tasks {
            task.await.expect("not aborted");
        }
    }
}

/// Stores a byte below each of so many dkeys, and punches all of them.
pub async fn dkeys_that_were_punched(rt: &Handle, shard: &Shard, count: u64) {
    let shard = shard.clone();
    crowd(rt, count, |at| {
        let shard = shard.clone();
        async move {
            write(&shard, at, 1 + at, 0, b"x").await.expect("stored");
        }
    })
    .await;
    for first in (0..count).step_by(AKEYS_MAX) {
        let dkeys = (first..count.min(first + AKEYS_MAX as u64)).map(Key::from_u64).collect();
        punch(&shard, ARRAY, PunchScope::Dkeys(dkeys), LATE + first).await.expect("punched");
    }
}

/// All pages of a list, with the most turns that one has left to others.
async fn pages(rt: &Handle, shard: &Shard, object: ObjectId, scope: &ListScope) -> (Vec<ListPage>, u64) {
    let (mut pages, mut anchor, mut most) = (Vec::<ListPage>::new(), Vec::new(), 0);
    loop {
        let page = shard.list(CONTAINER, object, scope, Epoch::MAX, &anchor, LIST_KEYS_MAX, None);
        let (page, turns) = beside(rt, page, async |_| {}).await;
        let page = page.expect("listed");
        most = most.max(turns);
        let next = page.next.clone();
        pages.push(page);
        let Some(next) = next else { return (pages, most) };
        assert_ne!(next, anchor, "it doesn't go on");
        anchor = next;
    }
}

/// Runs something on a new store.
pub fn on_a_store(
    seed: u64,
    config: StoreConfig,
    test: impl AsyncFnOnce(Handle, Rc<Store>, Shard) + 'static,
) {
    let machine = Machine::new(seed, DISK);
    let (store, shard) = machine.start(config);
    let rt = machine.handle();
    machine.run(async move { test(rt, store, shard).await });
}

#[test]
fn a_list_of_keys_that_were_punched_lets_others_run_and_ends_its_pages_early() {
    const COUNT: u64 = 20_000;
    on_a_store(71, quiet(), async move |rt, _store, shard| {
        dkeys_that_were_punched(&rt, &shard, COUNT).await;
        write(&shard, COUNT, 2 * LATE, 0, b"!").await.expect("stored");
        let (found, turns) = pages(&rt, &shard, ARRAY, &ListScope::Dkeys).await;
        assert!(found.len() as u64 >= COUNT / KEYS / PAGE_TURNS, "only {} pages", found.len());
        assert!(turns <= PAGE_TURNS, "{turns} turns for a page");
        assert!(turns >= PAGE_TURNS / 2, "only {turns} turns were left to others");
        let keys: Vec<Vec<u8>> =
            found.into_iter().flat_map(|page| page.entries).map(|found| found.key).collect();
        assert_eq!(keys, [Key::from_u64(COUNT).as_bytes()]);
    });
}

#[test]
fn a_list_of_akeys_and_one_of_objects_let_others_run() {
    const AKEYS: u64 = 2048;
    on_a_store(72, cramped(), async move |rt, _store, shard| {
        let (dkey, name) = (key("d"), |at: u64| key(&format!("akey {at:06}")));
        for first in (0..AKEYS).step_by(AKEYS_MAX) {
            let names: Vec<Key> = (first..first + AKEYS_MAX as u64).map(name).collect();
            let mut updates: Vec<_> = names.iter().map(|_| single("x", b"x")).collect();
            updates.iter_mut().zip(&names).for_each(|(update, name)| update.akey = name.clone());
            let (data, epoch) = (vec![b'x'; updates.len()], Epoch(1 + first));
            let data = Data::Borrowed(&data);
            let stored = shard.update(CONTAINER, OBJECT, &dkey, epoch, Conditions::NONE, &updates, data);
            stored.await.expect("stored");
            let scope = PunchScope::Akeys(key("d"), names);
            punch(&shard, OBJECT, scope, LATE + first).await.expect("punched");
        }
        put(&shard, "d", "last", 2 * LATE, b"!").await.expect("stored");
        let (found, turns) = pages(&rt, &shard, OBJECT, &ListScope::Akeys(key("d"))).await;
        assert!(turns >= AKEYS / KEYS, "only {turns} turns were left to others");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].entries[0].key, b"last");

        let objects = shard.clone();
        crowd(&rt, 2000, |at| {
            let (shard, object) = (objects.clone(), ObjectId { hi: 0, lo: 1000 + at });
            async move {
                let (dkey, update, data) = (key("d"), [single("a", b"x")], Data::Borrowed(b"x"));
                let stored =
                    shard.update(CONTAINER, object, &dkey, Epoch(5), Conditions::NONE, &update, data);
                stored.await.expect("stored");
                punch(&shard, object, PunchScope::Object, LATE).await.expect("punched");
            }
        })
        .await;
        let (found, turns) = pages(&rt, &shard, OBJECT, &ListScope::Objects).await;
        assert!(turns >= 2000 / KEYS, "only {turns} turns were left to others");
        assert_eq!((found.len(), found[0].entries.len()), (1, 1));
    });
}

#[test]
fn a_page_shows_the_moment_of_its_begin() {
    const COUNT: u64 = 5000;
    on_a_store(73, quiet(), async move |rt, _store, shard| {
        dkeys_that_were_punched(&rt, &shard, COUNT).await;
        write(&shard, COUNT, 2 * LATE, 0, b"!").await.expect("stored");
        let list = shard.list(CONTAINER, ARRAY, &ListScope::Dkeys, Epoch::MAX, &[], LIST_KEYS_MAX, None);
        let tasks = RefCell::new(Vec::new());
        let (page, turns) = beside(&rt, list, async |turn| {
            if turn >= CROWD {
                return;
            }
            // What it shall find goes, and something else comes to be.
            let (shard, dkey) = (shard.clone(), (turn * 7919) % COUNT);
            tasks.borrow_mut().push(rt.spawn(async move {
                write(&shard, dkey, 3 * LATE + turn, 0, b"?").await.expect("stored");
                let greatest = PunchScope::Dkeys(vec![Key::from_u64(COUNT)]);
                punch(&shard, ARRAY, greatest, 4 * LATE + turn).await.expect("punched");
            }));
        })
        .await;
        assert!(turns >= COUNT / KEYS, "only {turns} turns were left to others");
        let page = page.expect("listed");
        let keys: Vec<Vec<u8>> = page.entries.into_iter().map(|found| found.key).collect();
        assert_eq!(keys, [Key::from_u64(COUNT).as_bytes()]);
        for task in tasks.into_inner() {
            task.await.expect("not aborted");
        }
    });
}

pub fn extreme(max: bool, dkey: Option<u64>, extent: bool) -> KeyQuery {
    let akey = extent.then(|| key("data"));
    KeyQuery::Search { max, dkey: dkey.map(Key::from_u64), akey, extent }
}

#[test]
fn a_query_of_keys_that_were_punched_lets_others_run_and_shows_the_moment_of_its_begin() {
    const COUNT: u64 = 5000;
    for (seed, config) in [(74, quiet()), (75, StoreConfig { index_bytes: 1 << 20, ..quiet() })] {
        on_a_store(seed, config, async move |rt, _store, shard| {
            write(&shard, 0, 1, 0, b"low").await.expect("stored");
            dkeys_that_were_punched(&rt, &shard, COUNT).await;
            write(&shard, COUNT / 2, 2 * LATE, 5, b"!").await.expect("stored");
            for (max, extent) in [(true, false), (false, false), (true, true), (false, true)] {
                let question = extreme(max, None, extent);
                let query = shard.query_key(CONTAINER, ARRAY, Epoch::MAX, &question, &[]);
                let (found, turns) = beside(&rt, query, async |_| {}).await;
                let found = found.expect("found").found;
                assert!(turns >= COUNT / 2 / KEYS, "only {turns} turns were left to others");
                assert_eq!(found.dkey, Some(Key::from_u64(COUNT / 2)));
                assert_eq!(
                    found.extent.map(|(extent, _)| extent),
                    extent.then_some(Extent { index: 5, count: 1 })
                );
            }
            let question = extreme(true, None, false);
            let query = shard.query_key(CONTAINER, ARRAY, Epoch::MAX, &question, &[]);
            let tasks = RefCell::new(Vec::new());
            let (found, _) = beside(&rt, query, async |turn| {
                if turn >= CROWD {
                    return;
                }
                let shard = shard.clone();
                tasks.borrow_mut().push(rt.spawn(async move {
                    // A greater key that was passed comes to be, and then the greatest goes.
                    write(&shard, COUNT - 1, 3 * LATE + turn, 0, b"?").await.expect("stored");
                    let dkeys = PunchScope::Dkeys(vec![Key::from_u64(COUNT / 2)]);
                    punch(&shard, ARRAY, dkeys, 4 * LATE + turn).await.expect("punched");
                }));
            })
            .await;
            assert_eq!(found.expect("found").found.dkey, Some(Key::from_u64(COUNT / 2)));
            for task in tasks.into_inner() {
                task.await.expect("not aborted");
            }
        });
    }
}

#[test]
fn a_search_ends_when_its_container_goes_and_when_the_store_is_closed() {
    const COUNT: u64 = 5000;
    const MEANWHILE: u64 = 5;
    for closes in [false, true] {
        on_a_store(80, quiet(), async move |rt, store, shard| {
            dkeys_that_were_punched(&rt, &shard, COUNT).await;
            let (begun, store) = (Cell::new(false), RefCell::new(Some(store)));
            let question = extreme(true, None, false);
            let query = shard.query_key(CONTAINER, ARRAY, Epoch::MAX, &question, &[]);
            let (found, turns) = beside(&rt, query, async |turn| {
                if turn < MEANWHILE || begun.replace(true) {
                    return;
                }
                if closes {
                    drop(store.take());
                } else {
                    shard.destroy_container(CONTAINER).await.expect("destroyed");
                }
            })
            .await;
            if closes {
                assert!(matches!(found, Err(FetchError::Failed(_))), "{found:?}");
            } else {
                assert!(matches!(found, Err(FetchError::ContainerDestroying(_))), "{found:?}");
            }
            assert!(turns < COUNT / KEYS / 2, "it went on for {turns} turns");
        });
    }
}

/// Stores extents that all begin at the first record, each shorter and newer than the one before: all show a record.
async fn stack(rt: &Handle, shard: &Shard, count: u64) {
    let shard = shard.clone();
    crowd(rt, count, |at| {
        let shard = shard.clone();
        async move {
            write(&shard, 0, 1 + at, 0, &pattern(at, (count - at) as usize)).await.expect("stored");
        }
    })
    .await;
}

/// What [`stack`] leaves to be read.
fn top(count: u64) -> Vec<u8> {
    (0..count).map(|index| pattern(count - 1 - index, index as usize + 1)[index as usize]).collect()
}

#[test]
fn many_extents_over_one_record_are_listed_and_searched_in_turns() {
    const COUNT: u64 = 3000;
    on_a_store(76, quiet(), async move |rt, _store, shard| {
        stack(&rt, &shard, COUNT).await;
        for (max, index) in [(true, COUNT - 1), (false, 0)] {
            let question = extreme(max, Some(0), true);
            let query = shard.query_key(CONTAINER, ARRAY, Epoch::MAX, &question, &[]);
            let (found, turns) = beside(&rt, query, async |_| {}).await;
            assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
            assert_eq!(found.expect("found").found.extent, Some((Extent { index, count: 1 }, 1)));
        }
        let scope = ListScope::Extents(Key::from_u64(0), key("data"));
        let (found, turns) = pages(&rt, &shard, ARRAY, &scope).await;
        assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
        let listed = found.iter().flat_map(|page| &page.entries).filter_map(|found| found.extent);
        let listed: Vec<_> = listed.map(|(extent, _, epoch)| (extent, epoch.0)).collect();
        let expected: Vec<_> = (0..COUNT).map(|index| (Extent { index, count: 1 }, COUNT - index)).collect();
        assert_eq!(listed, expected);
    });
}

#[test]
fn a_list_of_extents_that_are_hidden_ends_its_pages_early() {
    const COUNT: u64 = 60_000;
    on_a_store(77, quiet(), async move |rt, _store, shard| {
        for batch in 0..COUNT / 1000 {
            let extents: Vec<(u64, u64)> = (0..1000).map(|at| (2 * (batch * 1000 + at), 1)).collect();
            let update = [array("data", 1, &extents)];
            let (dkey, epoch, data) = (Key::from_u64(0), Epoch(1 + batch), [b'x'; 1000]);
            let data = Data::Borrowed(&data);
            let stored = shard.update(CONTAINER, ARRAY, &dkey, epoch, Conditions::NONE, &update, data);
            stored.await.expect("stored");
        }
        let hole = [array("data", 0, &[(0, 2 * COUNT)])];
        let (dkey, data) = (Key::from_u64(0), Data::Borrowed(&[]));
        let stored = shard.update(CONTAINER, ARRAY, &dkey, Epoch(LATE), Conditions::NONE, &hole, data);
        stored.await.expect("stored");
        write(&shard, 0, 2 * LATE, 2 * COUNT - 1, b"!").await.expect("stored");
        let scope = ListScope::Extents(Key::from_u64(0), key("data"));
        let (found, turns) = pages(&rt, &shard, ARRAY, &scope).await;
        assert!(found.len() > 1 && turns <= PAGE_TURNS, "{} pages, {turns} turns", found.len());
        let listed: Vec<_> =
            found.iter().flat_map(|page| &page.entries).filter_map(|found| found.extent).collect();
        assert_eq!(listed, [(Extent { index: 2 * COUNT - 1, count: 1 }, 1, Epoch(2 * LATE))]);
    });
}

#[test]
fn a_stack_of_extents_over_one_record_is_merged_in_turns() {
    const COUNT: u64 = 3000;
    on_a_store(78, quiet(), async move |rt, store, shard| {
        stack(&rt, &shard, COUNT).await;
        let before = store.stats().aggregated;
        for round in 0..2 {
            let aggregation = beside(&rt, shard.aggregate(CONTAINER, Epoch(LATE)), async |_| {});
            let (done, turns) = Box::pin(aggregation).await;
            done.expect("aggregated");
            assert!(round > 0 || turns >= COUNT / LOOKS, "only {turns} turns were left to others");
            let (found, present) = read(&shard, 0, u64::MAX, 0, COUNT).await.expect("read");
            assert!(found == top(COUNT), "round {round} has changed what is shown");
            assert_eq!(present, [Extent { index: 0, count: COUNT }]);
        }
        // All that the merges have hidden goes with the visit that makes them.
        let gone = store.stats().aggregated - before;
        assert!(gone >= COUNT - 300, "only {gone} of {COUNT} entries went, beside those that were merged");
        assert_eq!(store.audit().await.problems, Vec::<String>::new());
    });
}

#[test]
fn a_fetch_of_many_places_that_have_nothing_lets_others_run() {
    const CLASSES: u64 = 30;
    const PLACES: u64 = 1024;
    on_a_store(81, quiet(), async move |rt, _store, shard| {
        let dkey = Key::from_u64(0);
        // Each class of lengths has to be looked at, wherever its only extent is.
        for class in 0..CLASSES {
            let hole = [array("data", 0, &[(1 << 61, 1 << (2 * class))])];
            let (epoch, data) = (Epoch(1 + class), Data::Borrowed(&[]));
            let stored = shard.update(CONTAINER, ARRAY, &dkey, epoch, Conditions::NONE, &hole, data);
            stored.await.expect("stored");
        }
        write(&shard, 0, 100, 3, b"!").await.expect("stored");
        let extents = (0..PLACES).map(|at| Extent { index: 2 * at + 1, count: 1 }).collect();
        let value = Value::Array { record_size: 1, extents };
        let asked = [AkeyFetch { akey: key("data"), value, conditions: Conditions::NONE }];
        let fetch = shard.fetch(CONTAINER, ARRAY, &dkey, Epoch::MAX, Conditions::NONE, &asked);
        let (fetch, turns) = beside(&rt, fetch, async |_| {}).await;
        let fetch = fetch.expect("found");
        assert_eq!(fetch.akeys()[0].fetched.present, [Extent { index: 3, count: 1 }]);
        assert!(turns >= CLASSES * PLACES / 1024, "only {turns} turns were left to others");
        assert!(turns <= 4 * CLASSES * PLACES / 1024, "it took {turns} turns");
        let mut data = vec![0; PLACES as usize];
        fetch.read(&mut data).await.expect("read");
        assert_eq!(data.iter().position(|byte| *byte == b'!'), Some(1));
    });
}

#[test]
fn what_is_merged_of_many_parts_goes_in_several_records() {
    const PARTS: u64 = 256;
    const PART: u64 = 4096;
    on_a_store(79, quiet(), async move |rt, store, shard| {
        let data = pattern(3, (PARTS * PART) as usize);
        let (source, target) = (data.clone(), shard.clone());
        crowd(&rt, PARTS, |at| {
            let (shard, start) = (target.clone(), (at * PART) as usize);
            let part = source[start..start + PART as usize].to_vec();
            async move {
                write(&shard, 0, 1 + at, at * PART, &part).await.expect("stored");
            }
        })
        .await;
        shard.aggregate(CONTAINER, Epoch(LATE)).await.expect("aggregated");
        let scope = ListScope::Extents(Key::from_u64(0), key("data"));
        let (found, _) = pages(&rt, &shard, ARRAY, &scope).await;
        let listed: Vec<_> =
            found.iter().flat_map(|page| &page.entries).filter_map(|found| found.extent).collect();
        assert_eq!(listed, [(Extent { index: 0, count: PARTS * PART }, 1, Epoch(PARTS))]);
        let (found, _) = read(&shard, 0, u64::MAX, 0, PARTS * PART).await.expect("read");
        assert!(found == data);
        assert_eq!(store.stats().aggregated, 0, "the pass had nothing to remove");
        assert_eq!(store.audit().await.problems, Vec::<String>::new());
    });
}
