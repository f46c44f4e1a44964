//! Every operation once, with its rules.

use crate::setup::*;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_media::{DmaBuf, Slice};
use weir_proto::object::{AkeyFetch, Conditions, Extent, KeyQuery, ListScope, PunchScope, Value};
use weir_proto::{Epoch, Key};
use weir_store::{AttributeChange, Data, FetchError, Shard, StoreConfig, UpdateError};

const MAX: u64 = u64::MAX;

fn machine() -> Machine {
    Machine::new(1, 64 << 20)
}

#[test]
fn values_of_all_sizes_come_back_after_a_crash_at_once() {
    let machine = machine();
    let (store, shard) = machine.start(quiet());
    let sizes = [1, 100, 4095, 4096, 4097, 65_536, 65_537, 1 << 20, 3_000_001, 8 << 20];
    machine.run(async move {
        for (epoch, size) in (1..).zip(sizes) {
            put(&shard, &format!("d{size}"), "a", epoch, &pattern(size as u64, size)).await.expect("stored");
        }
    });
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for size in sizes {
            let found = get(&shard, &format!("d{size}"), "a", MAX).await.expect("read");
            assert!(found.as_deref() == Some(&pattern(size as u64, size)), "size {size}");
        }
        assert_eq!(get(&shard, "d2", "a", MAX).await, Ok(None));
    });
}

#[test]
fn values_without_bytes_take_no_blocks_even_where_all_others_do() {
    let machine = machine();
    let (_store, shard) = machine.start(StoreConfig { inline_limit: 0, ..quiet() });
    machine.run(async move {
        put(&shard, "d", "alone", 1, b"").await.expect("stored");
        assert_eq!(get(&shard, "d", "alone", MAX).await, Ok(None));
        let akeys = [single("none", b""), single("some", b"weir")];
        let (dkey, data) = (key("d"), Data::Borrowed(b"weir"));
        let update = shard.update(CONTAINER, OBJECT, &dkey, Epoch(2), Conditions::NONE, &akeys, data);
        assert_eq!(update.await, Ok(Epoch(2)));
        assert_eq!(get(&shard, "d", "none", MAX).await, Ok(None));
        assert_eq!(get(&shard, "d", "some", MAX).await, Ok(Some(b"weir".to_vec())));
    });
}

#[test]
fn history_is_read_by_epoch_and_survives_checkpoints() {
    let machine = machine();
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        for epoch in 1..=50 {
            put(&shard, "d", "a", epoch * 10, format!("v{epoch}").as_bytes()).await.expect("stored");
        }
        store.checkpoint().await.expect("a checkpoint");
        put(&shard, "d", "a", 505, b"late").await.expect("stored");
        store.close().await.expect("closed");
        assert!(matches!(put(&shard, "d", "a", 600, b"x").await, Err(UpdateError::Failed(_))));
    });
    let store = machine.open(quiet());
    assert_eq!(store.stats().replayed_records, 0, "a closed store has nothing to replay");
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        assert_eq!(get(&shard, "d", "a", 9).await, Ok(None));
        for epoch in 1..=50 {
            let expected = Some(format!("v{epoch}").into_bytes());
            assert_eq!(get(&shard, "d", "a", epoch * 10).await, Ok(expected.clone()));
            assert_eq!(get(&shard, "d", "a", epoch * 10 + 4).await, Ok(expected));
        }
        assert_eq!(get(&shard, "d", "a", MAX).await, Ok(Some(b"late".to_vec())));
    });
}

#[test]
fn extents_overlap_across_epochs_and_leave_holes() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        write(&shard, 1, 10, 0, &[1; 100]).await.expect("stored");
        write(&shard, 1, 20, 50, &[2; 10_000]).await.expect("stored");
        write(&shard, 1, 30, 20_000, &[3; 10]).await.expect("stored");
        // A hole over the end of the first and the start of the second.
        let hole = [array("data", 0, &[(40, 20)])];
        let dkey = Key::from_u64(1);
        let (epoch, none) = (Epoch(40), Conditions::NONE);
        shard.update(CONTAINER, ARRAY, &dkey, epoch, none, &hole, Data::Borrowed(b"")).await.expect("stored");
        let (data, present) = read(&shard, 1, MAX, 0, 30_000).await.expect("read");
        let mut expected = vec![0; 30_000];
        expected[..40].fill(1);
        expected[60..10_050].fill(2);
        expected[20_000..20_010].fill(3);
        assert!(data == expected);
        let extent = |index, count| Extent { index, count };
        assert_eq!(present, [extent(0, 40), extent(60, 9990), extent(20_000, 10)]);
        let (data, present) = read(&shard, 1, 15, 90, 20).await.expect("read");
        assert_eq!((data, present), ([[1; 10], [0; 10]].concat(), vec![extent(90, 10)]));
    });
}

#[test]
fn shared_memory_goes_to_the_device_without_a_copy_where_it_is_aligned() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        let bytes = pattern(3, 100_000);
        let slice = Slice::from(DmaBuf::copy_of(&bytes)).part(0..bytes.len()).expect("inside");
        let odd = Slice::from(DmaBuf::copy_of(&[b"1", bytes.as_slice()].concat()))
            .part(1..100_001)
            .expect("inside");
        for (epoch, slice) in [(1, slice), (2, odd)] {
            let update = [single("a", &bytes)];
            let (dkey, none) = (key("d"), Conditions::NONE);
            shard
                .update(CONTAINER, OBJECT, &dkey, Epoch(epoch), none, &update, Data::Shared(slice))
                .await
                .expect("stored");
            assert!(get(&shard, "d", "a", epoch).await == Ok(Some(bytes.clone())));
        }
    });
}

#[test]
fn several_akeys_are_stored_and_fetched_together() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        let updates = [single("s", b"one"), array("r", 4, &[(2, 2), (9, 1)]), single("big", &[7; 5000])];
        let data = [b"one".as_slice(), b"aaaabbbbcccc", &[7; 5000]].concat();
        let (dkey, none) = (key("d"), Conditions::NONE);
        shard
            .update(CONTAINER, OBJECT, &dkey, Epoch(5), none, &updates, Data::Borrowed(&data))
            .await
            .expect("stored");
        let fetch = |akey: &str, value| AkeyFetch { akey: key(akey), value, conditions: Conditions::NONE };
        let extents = vec![Extent { index: 3, count: 2 }, Extent { index: 9, count: 1 }];
        let wanted = [
            fetch("big", Value::Single { size: 3 }),
            fetch("none", Value::Single { size: 10 }),
            fetch("r", Value::Array { record_size: 4, extents: extents.clone() }),
            fetch("s", Value::Single { size: 0 }),
        ];
        let found = shard.fetch(CONTAINER, OBJECT, &dkey, Epoch::MAX, none, &wanted).await.expect("found");
        let sizes: Vec<(u64, u64)> = found.akeys().iter().map(|akey| (akey.fetched.size, akey.len)).collect();
        assert_eq!(sizes, [(5000, 3), (0, 0), (4, 12), (3, 0)]);
        assert_eq!(
            found.akeys()[2].fetched.present,
            [Extent { index: 3, count: 1 }, Extent { index: 9, count: 1 }]
        );
        assert!(matches!(found.read(&mut [0; 14]).await, Err(FetchError::Buffer { needed: 15, given: 14 })));
        assert_eq!(data_of(found).await, Ok(b"\x07\x07\x07bbbb\0\0\0\0cccc".to_vec()));
        let other = [fetch("r", Value::Array { record_size: 8, extents })];
        let error =
            shard.fetch(CONTAINER, OBJECT, &dkey, Epoch::MAX, none, &other).await.expect_err("another size");
        assert!(matches!(error, FetchError::RecordSize { stored: 4, given: 8, .. }));
    });
}

async fn conditional(
    shard: &Shard,
    dkey: &str,
    epoch: u64,
    conditions: Conditions,
) -> Result<Epoch, UpdateError> {
    let update = [single("a", b"v")];
    shard.update(CONTAINER, OBJECT, &key(dkey), Epoch(epoch), conditions, &update, Data::Borrowed(b"v")).await
}

#[test]
fn conditions_are_checked_against_what_exists() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        use Conditions as C;
        assert!(matches!(conditional(&shard, "d", 1, C::DKEY_UPDATE).await, Err(UpdateError::Missing(_))));
        assert!(matches!(conditional(&shard, "d", 1, C::AKEY_UPDATE).await, Err(UpdateError::Missing(_))));
        conditional(&shard, "d", 1, C::DKEY_INSERT.union(C::AKEY_INSERT)).await.expect("new");
        assert!(matches!(
            conditional(&shard, "d", 2, C::DKEY_INSERT).await,
            Err(UpdateError::Exists { level: "dkey", .. })
        ));
        assert!(matches!(
            conditional(&shard, "d", 2, C::AKEY_INSERT).await,
            Err(UpdateError::Exists { level: "akey", .. })
        ));
        // Both levels count (an akey condition must not be lost beside one on the dkey).
        let both = C::DKEY_UPDATE.union(C::AKEY_INSERT);
        assert!(matches!(
            conditional(&shard, "d", 2, both).await,
            Err(UpdateError::Exists { level: "akey", .. })
        ));
        conditional(&shard, "d", 2, C::DKEY_UPDATE.union(C::AKEY_UPDATE)).await.expect("it exists");
        for wrong in
            [C::PUNCH, C::DKEY_FETCH, C::DKEY_INSERT.union(C::DKEY_UPDATE), C::PER_AKEY.union(C::AKEY_INSERT)]
        {
            assert!(matches!(conditional(&shard, "d", 3, wrong).await, Err(UpdateError::Invalid(_))));
        }
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("d")]), 4).await.expect("punched");
        conditional(&shard, "d", 5, C::DKEY_INSERT).await.expect("it was punched");
        let missing = PunchScope::Akeys(key("d"), vec![key("z")]);
        let error = shard.punch(CONTAINER, OBJECT, &missing, Epoch(6), C::PUNCH).await;
        assert!(matches!(error, Err(UpdateError::Missing(_))));
        shard.punch(CONTAINER, OBJECT, &missing, Epoch(6), C::NONE).await.expect("nothing to do");
        let fetch = [AkeyFetch { akey: key("z"), value: Value::Single { size: 1 }, conditions: C::NONE }];
        let found = shard.fetch(CONTAINER, OBJECT, &key("d"), Epoch::MAX, C::AKEY_FETCH, &fetch).await;
        assert!(matches!(found, Err(FetchError::Missing(_))));
        let found = shard.fetch(CONTAINER, OBJECT, &key("no"), Epoch::MAX, C::DKEY_FETCH, &fetch).await;
        assert!(matches!(found, Err(FetchError::Missing(_))));
    });
}

#[test]
fn kinds_and_record_sizes_are_fixed_until_a_punch() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        let (dkey, none) = (key("d"), Conditions::NONE);
        let store = async |epoch, update, data: &[u8]| {
            shard.update(CONTAINER, OBJECT, &dkey, Epoch(epoch), none, &[update], Data::Borrowed(data)).await
        };
        store(1, array("a", 2, &[(0, 1)]), b"xx").await.expect("stored");
        let error = store(2, array("a", 4, &[(0, 1)]), b"xxxx").await.expect_err("another size");
        assert!(matches!(error, UpdateError::RecordSize { stored: 2, given: 4, .. }));
        let error = store(2, single("a", b"x"), b"x").await.expect_err("another kind");
        assert!(matches!(error, UpdateError::Kind { .. }));
        punch(&shard, OBJECT, PunchScope::Akeys(key("d"), vec![key("a")]), 3).await.expect("punched");
        store(4, single("a", b"x"), b"x").await.expect("a new life");
        assert_eq!(get(&shard, "d", "a", MAX).await, Ok(Some(b"x".to_vec())));
        let mut bad = single("c", b"xyz");
        bad.checksums = vec![1];
        assert!(matches!(store(5, bad, b"xyz").await, Err(UpdateError::Checksum { .. })));
        assert!(matches!(store(5, single("c", b"xyz"), b"xy").await, Err(UpdateError::Invalid(_))));
        assert!(matches!(store(0, single("c", b"x"), b"x").await, Err(UpdateError::Invalid(_))));
    });
}

async fn names(shard: &Shard, scope: ListScope, epoch: u64, limit: u32) -> Vec<String> {
    let (mut found, mut anchor) = (Vec::new(), Vec::new());
    loop {
        let page =
            shard.list(CONTAINER, OBJECT, &scope, Epoch(epoch), &anchor, limit, None).await.expect("a page");
        assert!(page.entries.len() <= limit as usize);
        found.extend(page.entries.into_iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()));
        match page.next {
            Some(next) => anchor = next,
            None => return found,
        }
    }
}

#[test]
fn space_of_what_was_punched_or_overwritten_returns_by_itself() {
    let machine = machine();
    let (_store, shard) = machine.start(StoreConfig::default());
    // Background work has found nothing to do, and sleeps.
    machine.sleep(Duration::from_secs(30));
    let handle = machine.handle();
    let (writer, clock) = (shard.clone(), handle.clone());
    machine.run(async move {
        put(&writer, "d", "a", clock.wall_ns(), &pattern(1, 4 << 20)).await.expect("stored");
        put(&writer, "d", "a", clock.wall_ns() + 1, b"short").await.expect("overwritten");
        write(&writer, 1, clock.wall_ns() + 2, 0, &pattern(2, 4 << 20)).await.expect("stored");
    });
    assert!(shard.space().data >= 8 << 20, "what was written counts");
    let writer = shard.clone();
    machine.run(async move {
        punch(&writer, ARRAY, PunchScope::Object, handle.wall_ns() + 3).await.expect("punched");
    });
    machine.sleep(Duration::from_secs(30));
    assert_eq!(shard.space().data, 0);
}

#[test]
fn lists_show_what_exists_in_order_page_by_page() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        for number in 0..40u64 {
            put(&shard, &format!("d{number:02}"), "a", 10 + number, b"v").await.expect("stored");
        }
        for (epoch, akey) in (100..).zip(["x", "y", "z"]) {
            put(&shard, "d05", akey, epoch, b"v").await.expect("stored");
        }
        punch(&shard, OBJECT, PunchScope::Dkeys((10..30).map(|n| key(&format!("d{n}"))).collect()), 200)
            .await
            .expect("ok");
        punch(&shard, OBJECT, PunchScope::Akeys(key("d05"), vec![key("y")]), 201).await.expect("ok");
        let all: Vec<String> = (0..40).map(|number| format!("d{number:02}")).collect();
        assert_eq!(names(&shard, ListScope::Dkeys, 150, 7).await, all);
        let left: Vec<String> = (0..10).chain(30..40).map(|number| format!("d{number:02}")).collect();
        assert_eq!(names(&shard, ListScope::Dkeys, MAX, 1000).await, left);
        assert_eq!(names(&shard, ListScope::Dkeys, 12, 2).await, all[..3]);
        assert_eq!(names(&shard, ListScope::Akeys(key("d05")), MAX, 2).await, ["a", "x", "z"]);
        assert_eq!(names(&shard, ListScope::Akeys(key("d15")), MAX, 2).await, [""; 0]);
        let values = key("a");
        let (scope, epoch) = (ListScope::Dkeys, Epoch::MAX);
        let page = shard.list(CONTAINER, OBJECT, &scope, epoch, b"", 3, Some(&values)).await.expect("a page");
        assert!(
            page.entries.iter().all(|entry| entry.value.as_deref().map(|value| &value[..]) == Some(b"v"))
        );
        let objects =
            shard.list(CONTAINER, OBJECT, &ListScope::Objects, epoch, b"", 9, None).await.expect("a page");
        assert_eq!(
            objects.entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(),
            [OBJECT.to_bytes()]
        );
        punch(&shard, OBJECT, PunchScope::Object, 300).await.expect("punched");
        assert_eq!(names(&shard, ListScope::Objects, MAX, 5).await, [""; 0]);
        assert_eq!(names(&shard, ListScope::Dkeys, MAX, 5).await, [""; 0]);
        assert_eq!(names(&shard, ListScope::Dkeys, 250, 5).await, left);
        let wrong = shard.list(CONTAINER, OBJECT, &ListScope::Objects, epoch, b"x", 9, None).await;
        assert!(matches!(wrong, Err(FetchError::Invalid(_))));
    });
}

#[test]
fn extents_are_listed_as_they_are_visible() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        write(&shard, 3, 10, 0, &[1; 100]).await.expect("stored");
        write(&shard, 3, 20, 40, &[2; 20]).await.expect("stored");
        let scope = ListScope::Extents(Key::from_u64(3), key("data"));
        let (mut found, mut anchor) = (Vec::new(), Vec::new());
        loop {
            let page =
                shard.list(CONTAINER, ARRAY, &scope, Epoch::MAX, &anchor, 2, None).await.expect("a page");
            found.extend(page.entries.into_iter().filter_map(|entry| entry.extent));
            match page.next {
                Some(next) => anchor = next,
                None => break,
            }
        }
        let extent = |index, count, epoch| (Extent { index, count }, 1, Epoch(epoch));
        assert_eq!(found, [extent(0, 40, 10), extent(40, 20, 20), extent(60, 40, 10)]);
    });
}

#[test]
fn queries_find_the_ends_of_keys_and_records() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        for (epoch, dkey) in (10..).zip([7u64, 300, 2, 65_536]) {
            write(&shard, dkey, epoch, dkey, &[1; 30]).await.expect("stored");
        }
        let search = |max, dkey, extent| KeyQuery::Search { max, dkey, akey: Some(key("data")), extent };
        let ask = async |query, epoch| {
            shard.query_key(CONTAINER, ARRAY, Epoch(epoch), &query, &[]).await.expect("an answer").found
        };
        let found = ask(search(true, None, true), MAX).await;
        assert_eq!(found.dkey, Some(Key::from_u64(65_536)));
        assert_eq!(found.extent, Some((Extent { index: 65_536, count: 30 }, 1)));
        assert_eq!(found.max_epoch, Epoch(13));
        assert_eq!(ask(search(false, None, false), MAX).await.dkey, Some(Key::from_u64(2)));
        assert_eq!(ask(search(true, None, false), 11).await.dkey, Some(Key::from_u64(300)));
        // Without records the greatest dkey is passed over.
        let hole = [array("data", 0, &[(0, 1 << 40)])];
        let (dkey, none) = (Key::from_u64(65_536), Conditions::NONE);
        shard
            .update(CONTAINER, ARRAY, &dkey, Epoch(20), none, &hole, Data::Borrowed(b""))
            .await
            .expect("stored");
        let found = ask(search(true, None, true), MAX).await;
        assert_eq!(
            (found.dkey, found.extent),
            (Some(Key::from_u64(300)), Some((Extent { index: 300, count: 30 }, 1)))
        );
        assert_eq!(shard.max_epoch(CONTAINER, ARRAY).await, Ok(Epoch(20)));
        assert_eq!(shard.max_epoch(CONTAINER, OBJECT).await, Ok(Epoch::ZERO));
        let lexical = shard.query_key(CONTAINER, OBJECT, Epoch::MAX, &search(true, None, false), &[]).await;
        assert!(matches!(lexical, Err(FetchError::Invalid(_))));
    });
}

#[test]
fn attributes_change_in_batches_and_survive() {
    let machine = machine();
    let (_store, shard) = machine.start(quiet());
    let change = |name: &str, value: Option<Vec<u8>>| AttributeChange {
        scope: b"svc".to_vec(),
        name: name.as_bytes().to_vec(),
        value,
    };
    let large = pattern(5, 100_000);
    let batch = vec![
        change("a", Some(b"1".to_vec())),
        change("b", Some(large.clone())),
        change("e", Some(Vec::new())),
    ];
    machine.run(async move {
        shard.change_attributes(&batch).await.expect("stored");
        shard
            .change_attributes(&[change("a", None), change("b", Some(b"short".to_vec()))])
            .await
            .expect("stored");
        shard.change_attributes(&[change("c", Some(large))]).await.expect("stored");
        let twice = [change("d", Some(vec![1; 9000])), change("d", Some(b"d".to_vec()))];
        shard.change_attributes(&twice).await.expect("stored");
        assert!(shard.change_attributes(&[change("", None)]).await.is_err());
    });
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    assert_eq!(shard.attribute(b"svc", b"a"), None);
    assert_eq!(shard.attribute(b"svc", b"b"), Some(b"short".to_vec()));
    assert_eq!(shard.attribute(b"svc", b"c"), Some(pattern(5, 100_000)));
    assert_eq!(shard.attribute(b"svc", b"d"), Some(b"d".to_vec()));
    assert_eq!(shard.attribute(b"svc", b"e"), Some(Vec::new()));
    let names = |found: Vec<(Vec<u8>, Vec<u8>)>| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(shard.attributes(b"svc", b"", 10)), [b"b", b"c", b"d", b"e"]);
    assert_eq!(names(shard.attributes(b"svc", b"c", 2)), [b"c", b"d"]);
    assert!(shard.attributes(b"other", b"", 10).is_empty());
}

#[test]
fn an_update_can_ask_for_an_object_that_is_there() {
    let machine = Machine::new(77, 32 << 20);
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        let store = async |epoch: u64, conditions: Conditions| {
            let (dkey, akeys) = (key("x"), [single("a", b"v")]);
            let data = Data::Borrowed(b"v");
            shard.update(CONTAINER, OBJECT, &dkey, Epoch(epoch), conditions, &akeys, data).await
        };
        let missing = |stored| matches!(stored, Err(UpdateError::Missing(_)));
        assert!(missing(store(10, Conditions::OBJECT_EXISTS).await));
        store(20, Conditions::NONE).await.expect("stored");
        let both = Conditions::OBJECT_EXISTS.union(Conditions::AKEY_UPDATE);
        store(30, both).await.expect("it is there");
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("x")]), 40).await.expect("punched");
        store(50, Conditions::OBJECT_EXISTS).await.expect("an object without dkeys is there");
        punch(&shard, OBJECT, PunchScope::Object, 60).await.expect("punched");
        assert!(missing(store(70, Conditions::OBJECT_EXISTS).await));
    });
}
