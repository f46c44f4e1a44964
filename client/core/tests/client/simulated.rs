//! The client on a simulated system.

use crate::cluster;

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use cluster::{ALL, Cluster, POOL, open_container, properties};
use weir_client::{
    AkeyRead, AkeyWrite, Anchor, Array, ArrayAttributes, Conditions, Container, ContainerType, Context, Der,
    Error, Extent, Key, Kv, Object, ObjectClass, Pool, Range, Rights, kind,
};
use weir_proto::opcode;
use weir_rpc::{Request, Status};
use weir_runtime::random::Random;
use weir_store::StoreConfig;

const MINUTE: Duration = Duration::from_mins(1);

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a short key")
}

async fn object(context: &Context, container: &Container, class: ObjectClass) -> Object {
    let oid = container.new_object_id(context, kind::MULTI_HASHED, Some(class)).await.expect("an id");
    Object::open(container, oid).expect("opens")
}

#[test]
fn pools_and_containers_are_found_queried_and_destroyed() {
    let cluster = Cluster::start(1, 3, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let missing = Pool::connect(&context, "nowhere", Rights::READ).await.expect_err("there is none");
        assert!(missing.is(Der::NONEXIST), "{missing}");
        let pool = Pool::connect(&context, POOL, ALL).await.expect("connects");
        assert_eq!(pool.query(&context).await.expect("answers").space.len(), 6);
        let made = properties("box", ContainerType::Object);
        let first = Container::create(&context, &pool, made.clone(), false).await.expect("creates");
        let second = Container::create(&context, &pool, made.clone(), false).await.expect("is the same");
        assert_eq!(first.container, second.container);
        let taken = Container::create(&context, &pool, made, true).await.expect_err("taken");
        assert!(taken.is(Der::EXIST), "{taken}");
        let container = Container::open(&context, &pool, "box", Rights::READ).await.expect("opens");
        let names = vec![("a".to_owned(), Some(b"1".to_vec().into())), ("b".to_owned(), None)];
        let refused = container.set_attributes(&context, names).await;
        assert!(refused.is_err_and(|error| error.is(Der::NO_PERM)), "the handle allows reading only");
        let shared = Container::from_bytes(&container.to_bytes()).expect("portable");
        assert_eq!(shared.query(&context).await.expect("answers").container, first.container);
        let busy = Container::destroy(&context, &pool, "box", false).await.expect_err("is open");
        assert!(busy.is(Der::BUSY), "{busy}");
        container.close(&context).await.expect("closes");
        Container::destroy(&context, &pool, "box", false).await.expect("destroys");
        let gone = Container::open(&context, &pool, "box", Rights::READ).await.expect_err("is gone");
        assert!(gone.is(Der::NONEXIST) || gone.is(Der::CONT_NONEXIST), "{gone}");
        pool.disconnect(&context).await.expect("disconnects");
    });
}

#[test]
fn attributes_that_are_more_than_a_message_holds_are_set_and_removed_all_or_none() {
    let cluster = Cluster::start(12, 1, 1);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let value = |number: u8| vec![number; 8 << 10];
        let all = (0..20_u8).map(|number| (format!("a{number}"), Some(value(number).into()))).collect();
        container.set_attributes(&context, all).await.expect("each is short enough");
        let found = container.attributes(&context, Vec::new()).await.expect("it answers");
        assert_eq!(found.len(), 20);
        assert!((0..20).all(|number| found[&format!("a{number}")].to_vec() == value(number)));
        let gone = (0..20).map(|number| (format!("a{number}"), None)).collect();
        container.set_attributes(&context, gone).await.expect("they are there");
        assert!(container.attributes(&context, Vec::new()).await.expect("it answers").is_empty());
        let many = (0..20_u8).map(|number| (format!("b{number:02}"), Some(value(number).into())));
        let long = many.chain([("c".to_owned(), Some(vec![1; 9 << 10].into()))]).collect();
        let refused = container.set_attributes(&context, long).await.expect_err("one is too long");
        assert!(refused.is(Der::INVAL), "{refused}");
        let most = (0..120_u8).map(|number| (format!("d{number}"), Some(value(number).into()))).collect();
        let refused = container.set_attributes(&context, most).await.expect_err("too many at once");
        assert!(refused.is(Der::INVAL) && refused.to_string().contains("786432"), "{refused}");
        assert!(container.attributes(&context, Vec::new()).await.expect("it answers").is_empty());
    });
}

#[test]
fn a_container_is_made_with_attributes_that_are_more_than_a_message_holds() {
    let cluster = Cluster::start(23, 2, 1);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let pool = Pool::connect(&context, POOL, ALL).await.expect("connects");
        let value = |number: u8| vec![number; 8 << 10].into();
        let mut made = properties("box", ContainerType::Object);
        made.attributes = (0..20_u8).map(|number| (format!("a{number}"), value(number))).collect();
        Container::create(&context, &pool, made.clone(), true).await.expect("each is short enough");
        let container = Container::open(&context, &pool, "box", Rights::READ).await.expect("opens");
        let found = container.attributes(&context, Vec::new()).await.expect("it answers");
        assert!(found == made.attributes, "{} were found", found.len());
        made.label = "more".into();
        made.attributes = (0..120_u8).map(|number| (format!("a{number}"), value(number))).collect();
        let refused = Container::create(&context, &pool, made, true).await.expect_err("too many at once");
        assert!(refused.is(Der::INVAL) && refused.to_string().contains("container more"), "{refused}");
    });
}

#[test]
fn an_engine_short_of_room_fetches_data_that_it_would_else_get_in_the_message() {
    let cluster = Cluster::start(11, 1, 1);
    let context = cluster.context(MINUTE);
    // Room for two such requests, for a crowd of forty.
    cluster.fabric.configure(|config| config.receive_bytes = 20 << 10);
    let fabric = cluster.fabric.clone();
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let class = Some(ObjectClass::S1);
        let oid = container.new_object_id(&context, kind::KV_HASHED, class).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        let put = async |number: u64| {
            let value = vec![1; 8 << 10];
            let done = kv.put(&context, &number.to_le_bytes(), &value, Conditions::NONE).await;
            done.expect("there is room in the end");
        };
        let start = context.traffic().bulk;
        put(0).await;
        assert_eq!(context.traffic().bulk, start, "it has room");
        weir_runtime::join_all((0..40).map(&put)).await;
        assert!(fabric.stats().receiver_full > 4, "{:?}", fabric.stats());
        let before = context.traffic().bulk;
        put(1).await;
        assert_eq!(context.traffic().bulk, before + 1, "it was short of room a moment ago");
        context.runtime().sleep(Duration::from_secs(20)).await;
        put(2).await;
        assert_eq!(context.traffic().bulk, before + 1, "it has room again");
        for number in 0..40_u64 {
            let found = kv.get(&context, &number.to_le_bytes()).await.expect("it answers");
            assert_eq!(found, Some(vec![1; 8 << 10]));
        }
    });
}

#[test]
fn a_wrong_system_key_is_refused() {
    let cluster = Cluster::start(2, 1, 1);
    let mut attach = cluster.attach();
    attach.key = weir_proto::capability::SystemKey([1; 32]).tenant(weir_proto::TenantId::SYSTEM);
    let endpoint = cluster.fabric.endpoint(&cluster.client, None);
    let context =
        Context::sim(cluster.client.handle(), endpoint, &attach, weir_client::ContextOptions::default());
    cluster.run(async move {
        let refused = Pool::connect(&context, POOL, Rights::READ).await.expect_err("refused");
        assert!(refused.is(Der::NO_PERM), "{refused}");
    });
}

#[test]
fn values_of_every_size_come_back_and_conditions_hold() {
    let cluster = Cluster::start(3, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("values", ContainerType::Object)).await;
        let object = object(&context, &container, ObjectClass::SX).await;
        for size in [1, 100, 5000, 16_000, 20_000, 300_000, 3_000_000] {
            let value: Vec<u8> = (0..size).map(|index| u8::try_from(index % 251).expect("small")).collect();
            let half = size / 2;
            let (dkey, single, array) = (key(&format!("d{size}")), key("single"), key("array"));
            let extents = vec![Extent { index: 7, count: size as u64 }];
            let writes = [
                AkeyWrite::single(single.clone(), &value),
                AkeyWrite::array(array.clone(), 1, extents.clone(), vec![&value[..half], &value[half..]]),
            ];
            object.update(&context, &dkey, Conditions::DKEY_INSERT, &writes).await.expect("stored");
            let again = object.update(&context, &dkey, Conditions::DKEY_INSERT, &writes).await;
            assert!(again.is_err_and(|error| error.is(Der::EXIST)));
            let (mut one, mut two) = (vec![0; size + 10], vec![9; size + 3]);
            let wanted = vec![Extent { index: 5, count: size as u64 + 3 }];
            let mut reads =
                [AkeyRead::single(single, &mut one), AkeyRead::array(array, 1, wanted, vec![&mut two])];
            let found = object.fetch(&context, &dkey, Conditions::NONE, &mut reads).await.expect("found");
            assert_eq!(found[0].size, size as u64);
            assert_eq!(found[1].present, extents);
            assert_eq!(one[..size], value);
            assert_eq!((&two[..2], &two[2..size + 2], two[size + 2]), (&[9, 9][..], &value[..], 9));
        }
        let missing = [AkeyWrite::single(key("a"), b"x")];
        let refused = object.update(&context, &key("none"), Conditions::DKEY_UPDATE, &missing).await;
        assert!(refused.is_err_and(|error| error.is(Der::NONEXIST)));
        let mut nothing = [0; 4];
        let mut reads = [AkeyRead::single(key("a"), &mut nothing)];
        let found =
            object.fetch(&context, &key("none"), Conditions::NONE, &mut reads).await.expect("no error");
        assert_eq!(found[0].size, 0);
        let refused = object.fetch(&context, &key("none"), Conditions::DKEY_FETCH, &mut reads).await;
        assert!(refused.is_err_and(|error| error.is(Der::NONEXIST)));
        let mut listed = Vec::new();
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let page = object.list_dkeys(&context, &anchor, 3, None).await.expect("lists");
            listed.extend(page.entries.into_iter().map(|entry| entry.key));
            anchor = page.next;
        }
        assert_eq!(listed.len(), 7);
        object.punch_dkeys(&context, Conditions::PUNCH, &[key("d1"), key("d100")]).await.expect("removed");
        let refused = object.punch_dkeys(&context, Conditions::PUNCH, &[key("d1")]).await;
        assert!(refused.is_err_and(|error| error.is(Der::NONEXIST)));
        object.punch(&context).await.expect("removed");
        let page = object.list_dkeys(&context, &Anchor::START, 100, None).await.expect("lists");
        assert!(page.entries.is_empty() && page.next.is_end());
    });
}

#[test]
fn a_dkey_is_replaced_and_removed_only_while_it_holds_its_guard() {
    let cluster = Cluster::start(4, 1, 1);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("guards", ContainerType::Object)).await;
        let object = object(&context, &container, ObjectClass::S1).await;
        let (dkey, record, old, new) = (key("entry"), key("i"), key("g1"), key("g2"));
        let insert = [AkeyWrite::single(record.clone(), b"one"), AkeyWrite::single(old.clone(), b"x")];
        object.update(&context, &dkey, Conditions::AKEY_INSERT, &insert).await.expect("inserted");
        let again = object.update(&context, &dkey, Conditions::AKEY_INSERT, &insert).await;
        assert!(again.is_err_and(|error| error.is(Der::EXIST)));
        let replace = [
            AkeyWrite::single(record.clone(), b"two").when(Conditions::AKEY_UPDATE),
            AkeyWrite::single(new.clone(), b"x").when(Conditions::AKEY_INSERT),
            AkeyWrite::single(old.clone(), b"x").when(Conditions::AKEY_UPDATE),
        ];
        object.update(&context, &dkey, Conditions::PER_AKEY, &replace).await.expect("replaced");
        let refused = object.update(&context, &dkey, Conditions::PER_AKEY, &replace).await;
        assert!(refused.is_err_and(|error| error.is(Der::EXIST)), "the new guard is there");
        object
            .punch_akeys(&context, Conditions::PUNCH, &dkey, core::slice::from_ref(&old))
            .await
            .expect("removed");
        let refused = object.punch_dkey_with(&context, &dkey, &[old]).await;
        assert!(refused.is_err_and(|error| error.is(Der::NONEXIST)));
        let page = object.list_akeys(&context, &dkey, &Anchor::START, 10).await.expect("lists");
        let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.clone()).collect();
        assert_eq!(keys, [b"g2".to_vec(), b"i".to_vec()]);
        object.punch_dkey_with(&context, &dkey, &[new]).await.expect("removed");
        let page = object.list_dkeys(&context, &Anchor::START, 10, Some(&record)).await.expect("lists");
        assert!(page.entries.is_empty(), "{:?}", page.entries);
        object.update(&context, &dkey, Conditions::AKEY_INSERT, &insert).await.expect("inserted again");
    });
}

#[test]
fn key_value_objects_put_get_list_and_remove() {
    let cluster = Cluster::start(5, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("kv", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("opens");
        for number in 0..200 {
            let name = format!("key-{number:03}");
            kv.put(&context, name.as_bytes(), &vec![b'v'; number + 1], Conditions::NONE).await.expect("put");
        }
        assert_eq!(kv.get(&context, b"key-007").await.expect("get"), Some(vec![b'v'; 8]));
        assert_eq!(kv.get(&context, b"other").await.expect("get"), None);
        let long = vec![3; 70_000];
        kv.put(&context, b"key-000", &long, Conditions::DKEY_UPDATE).await.expect("updated");
        assert_eq!(kv.get(&context, b"key-000").await.expect("get"), Some(long));
        let refused = kv.put(&context, b"key-000", b"x", Conditions::DKEY_INSERT).await;
        assert!(refused.is_err_and(|error| error.is(Der::EXIST)));
        let mut keys = Vec::new();
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let page = kv.list(&context, &anchor, 17).await.expect("lists");
            keys.extend(page.entries.into_iter().map(|entry| entry.key));
            anchor = page.next;
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 200);
        kv.remove(&context, b"key-007", Conditions::PUNCH).await.expect("removed");
        assert_eq!(kv.get(&context, b"key-007").await.expect("get"), None);
        kv.destroy(&context).await.expect("destroyed");
        assert_eq!(kv.get(&context, b"key-008").await.expect("get"), None);
    });
}

/// One random operation on an array and on a vector of bytes that models it.
async fn array_step(context: &Context, array: &Array, model: &mut Vec<u8>, random: &Random, seed: u64) {
    const CELLS_MAX: u64 = 400;
    let at = random.below(CELLS_MAX);
    let count = 1 + random.below(90);
    match random.below(8) {
        0..=3 => {
            let data: Vec<u8> =
                (0..count).map(|_| u8::try_from(1 + random.below(255)).expect("a byte")).collect();
            let cut = usize::try_from(random.below(count + 1)).expect("small");
            let range = [Range { index: at, count }];
            array.write(context, &range, &[&data[..cut], &data[cut..]]).await.expect("written");
            let (start, end) = (index(at), index(at + count));
            if model.len() < end {
                model.resize(end, 0);
            }
            model[start..end].copy_from_slice(&data);
        }
        4 => {
            let size = random.below(CELLS_MAX);
            array.set_size(context, size).await.expect("resized");
            model.resize(index(size), 0);
        }
        5 => {
            let size = array.size(context).await.expect("a size");
            assert_eq!(size, model.len() as u64, "seed {seed}");
        }
        _ => {
            let ranges = [Range { index: at, count }, Range { index: at / 2, count: 5 }];
            let mut found = vec![77; index(count + 5)];
            let outcome = array.read(context, &ranges, vec![found.as_mut_slice()], None).await.expect("read");
            let cells: Vec<u64> =
                ranges.iter().flat_map(|range| range.index..range.index + range.count).collect();
            let expected: Vec<u8> =
                cells.iter().map(|cell| model.get(index(*cell)).copied().unwrap_or(0)).collect();
            assert_eq!(found, expected, "seed {seed}");
            let before_end = cells.iter().filter(|cell| **cell < model.len() as u64).count() as u64;
            assert_eq!(
                (outcome.cells, outcome.cells + outcome.short),
                (before_end, count + 5),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn arrays_behave_as_a_vector_of_bytes() {
    for seed in 0..40 {
        let cluster = Cluster::start(seed, 2, 2);
        let context = cluster.context(MINUTE);
        cluster.run(async move {
            let container = open_container(&context, properties("arrays", ContainerType::Object)).await;
            let random = Random::new(seed);
            let chunk_cells = 1 + random.below(120);
            let attributes = ArrayAttributes { cell_size: 1, chunk_cells };
            let stored = container.new_object_id(&context, kind::ARRAY, None).await.expect("an id");
            let array = Array::create(&context, &container, stored, attributes).await.expect("creates");
            let twice = Array::create(&context, &container, stored, attributes).await;
            assert!(twice.is_err_and(|error| error.is(Der::EXIST)));
            let opened = Array::open(&context, &container, stored).await.expect("opens");
            assert_eq!(opened.attributes(), attributes);
            let compact = container.new_object_id(&context, kind::ARRAY_BYTE, None).await.expect("an id");
            let compact = Array::compact_bytes(&container, compact, chunk_cells).expect("opens");
            let (mut one, mut two) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                array_step(&context, &array, &mut one, &random, seed).await;
                array_step(&context, &compact, &mut two, &random, seed).await;
            }
            // Somebody who has just opened it sees the same.
            let fresh = Array::compact_bytes(&container, compact.object().id(), chunk_cells).expect("opens");
            assert_eq!(fresh.size(&context).await.expect("a size"), two.len() as u64, "seed {seed}");
            compact.discard(&context).await.expect("discarded");
            assert_eq!(fresh.size(&context).await.expect("a size"), 0, "seed {seed}");
        });
    }
}

#[test]
fn what_is_written_to_the_last_cell_while_an_array_is_lengthened_stays() {
    let cluster = Cluster::start(9, 2, 2);
    let (context, other) = (cluster.context(MINUTE), cluster.context(MINUTE));
    cluster.run(async move {
        let container = open_container(&context, properties("arrays", ContainerType::Object)).await;
        let random = Random::new(9);
        for cells in 1..=300 {
            let oid = container.new_object_id(&context, kind::ARRAY_BYTE, None).await.expect("an id");
            let array = Array::compact_bytes(&container, oid, 1000).expect("opens");
            let (late, theirs, their) = (random.below(60), other.clone(), array.clone());
            let writing = other.runtime().spawn(async move {
                theirs.runtime().sleep(Duration::from_micros(late)).await;
                let last = [Range { index: cells - 1, count: 1 }];
                their.write(&theirs, &last, &[b"x"]).await.expect("written");
            });
            array.lengthen(&context, cells).await.expect("lengthened");
            writing.await.expect("it ended");
            let (last, mut found) = ([Range { index: cells - 1, count: 1 }], [0]);
            array.read(&context, &last, vec![&mut found], None).await.expect("read");
            assert_eq!(&found, b"x", "{cells} cells, {late} µs later");
        }
    });
}

#[test]
fn a_hole_of_any_length_takes_few_requests_and_leaves_what_is_beside_it() {
    let cluster = Cluster::start(7, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("arrays", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::ARRAY_BYTE, None).await.expect("an id");
        let array = Array::compact_bytes(&container, oid, 1 << 10).expect("a byte array");
        let end = 1 << 50;
        for at in [0, 5000, 1 << 40, end - 3] {
            let range = [Range { index: at, count: 3 }];
            array.write(&context, &range, &[b"abc"]).await.expect("written");
        }
        let before = context.traffic().requests;
        let hole = Range { index: 2, count: end - 4 };
        array.punch(&context, &[hole]).await.expect("punched");
        let requests = context.traffic().requests - before;
        assert!(requests < 20, "{requests} requests");
        for (at, expected) in [(0, b"ab\0"), (5000, b"\0\0\0"), (1 << 40, b"\0\0\0"), (end - 3, b"\0bc")] {
            let mut found = [7; 3];
            let range = [Range { index: at, count: 3 }];
            array.read(&context, &range, vec![&mut found], None).await.expect("read");
            assert_eq!(&found, expected, "at {at}");
        }
        assert_eq!(array.size(&context).await.expect("it is asked"), end);
    });
}

#[test]
fn an_array_of_more_pieces_than_a_reply_can_name_is_read_as_a_whole() {
    const CELLS: u64 = 65_536;
    let cluster = Cluster::start(9, 1, 1);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("sparse", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::ARRAY_BYTE, None).await.expect("an id");
        let array = Array::compact_bytes(&container, oid, CELLS).expect("opens");
        // Of every four cells, one is real: some need more bytes in a reply than there are, and all together more pieces.
        let mut model = vec![0; index(CELLS)];
        let ranges: Vec<Range> = (0..CELLS / 4).map(|at| Range { index: at * 4 + 1, count: 1 }).collect();
        for part in ranges.chunks(1000) {
            array.write(&context, part, &[&vec![7; part.len()]]).await.expect("writes");
            for range in part {
                model[index(range.index)] = 7;
            }
        }
        for (start, count) in [(0, CELLS), (3, CELLS / 2), (1, CELLS / 8)] {
            let mut into = vec![0xee; index(count)];
            let (front, back) = into.split_at_mut(index(count / 3));
            let range = [Range { index: start, count }];
            let read = array.read(&context, &range, vec![front, back], None).await.expect("reads");
            assert!(read.cells <= count && read.cells + 3 >= count, "{} of {count} cells", read.cells);
            let end = index(start + count).min(model.len());
            assert!(into[..end - index(start)] == model[index(start)..end], "{count} cells from {start} on");
        }
    });
}

/// Stores a record in each of many dkeys and punches all but the smallest and greatest one.
async fn ends_of_many(context: &Context, container: &Container, count: u64) -> Object {
    let class = Some(ObjectClass::SX);
    let oid = container.new_object_id(context, kind::MULTI_UINT64, class).await.expect("an id");
    let object = Object::open(container, oid).expect("opens");
    let akey = Key::from_u64(3);
    for dkey in 0..count {
        let write = AkeyWrite::array(akey.clone(), 1, vec![Extent { index: dkey, count: 1 }], vec![b"x"]);
        let stored = object.update(context, &Key::from_u64(dkey), Conditions::NONE, &[write]).await;
        stored.expect("stored");
    }
    let dkeys: Vec<Key> = (1..count - 1).map(Key::from_u64).collect();
    object.punch_dkeys(context, Conditions::NONE, &dkeys).await.expect("punched");
    object
}

/// Compares what searches with and without records find with what [`ends_of_many`] has left below the greatest key.
async fn check_ends(context: &Context, object: &Object, count: u64) {
    for (max, dkey) in [(true, count - 1), (false, 0)] {
        for extent in [false, true] {
            let found = object.extreme_key(context, max, None, None, extent).await.expect("found");
            let record = (Extent { index: dkey, count: 1 }, 1);
            assert_eq!((found.dkey, found.akey), (Some(Key::from_u64(dkey)), Some(Key::from_u64(3))));
            assert_eq!(found.extent, extent.then_some(record));
            assert_eq!(found.max_epoch, object.max_epoch(context).await.expect("it answers"));
        }
    }
}

#[test]
fn data_that_takes_long_to_arrive_keeps_no_room_of_the_device() {
    const LEN: u64 = 4 << 20;
    let cluster = Cluster::start(14, 1, 1);
    let (context, fabric) = (cluster.context(MINUTE), cluster.fabric.clone());
    let target = Rc::clone(&cluster.targets(0)[0]);
    cluster.run(async move {
        let container = open_container(&context, properties("slow", ContainerType::Object)).await;
        let object = object(&context, &container, ObjectClass::S1).await;
        let value: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).expect("a byte")).collect();
        let write = [AkeyWrite::single(key("a"), &value)];
        object.update(&context, &key("d"), Conditions::NONE, &write).await.expect("stored");
        let free = target.store().space().free;
        fabric.configure(|config| config.per_mebibyte = Duration::from_secs(20));
        let (rt, reader, of_reader) = (context.runtime().clone(), object.clone(), context.clone());
        let fetch = rt.spawn(async move {
            let mut into = vec![0; index(LEN)];
            let mut read = [AkeyRead::single(key("a"), &mut into)];
            reader.fetch(&of_reader, &key("d"), Conditions::NONE, &mut read).await.expect("it is there");
            into
        });
        rt.sleep(Duration::from_secs(1)).await;
        object.punch(&context).await.expect("punched");
        rt.sleep(Duration::from_secs(12)).await;
        assert!(!fetch.is_finished(), "the data is still on its way");
        let now = target.store().space().free;
        assert!(now > free + LEN / 2, "{} bytes came free", now.saturating_sub(free));
        assert!(fetch.await.expect("not aborted") == value);
    });
}

#[test]
fn a_search_that_takes_longer_than_the_deadline_gets_its_answer_in_parts() {
    const COUNT: u64 = 400;
    let store = StoreConfig { request_looks: 64, ..StoreConfig::default() };
    let cluster = Cluster::start_with(12, 2, 2, store);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("ends", ContainerType::Object)).await;
        let object = ends_of_many(&context, &container, COUNT).await;
        // Four searches: each passes nearly all keys of some shard.
        let begun = context.runtime().now();
        check_ends(&context, &object, COUNT).await;
        let took = context.runtime().now().saturating_duration_since(begun);
        context.set_deadline(took / 16);
        check_ends(&context, &object, COUNT).await;
    });
}

#[test]
fn an_engine_that_knows_nothing_of_parts_is_asked_for_a_whole_search() {
    const COUNT: u64 = 100;
    let store = StoreConfig { request_looks: 64, ..StoreConfig::default() };
    let cluster = Cluster::start_with(13, 1, 2, store);
    let (context, asked) = (cluster.context(MINUTE), Rc::new(Cell::new(0)));
    for target in cluster.targets(0) {
        let asked = Rc::clone(&asked);
        let refuse = move |_: Request| {
            asked.set(asked.get() + 1);
            core::future::ready(Err(Status::new(Der::NOSYS, "there is no such operation")))
        };
        target.rpc().serve(opcode::OBJECT_SEARCH_KEY, Rc::new(refuse));
    }
    cluster.run(async move {
        let container = open_container(&context, properties("old", ContainerType::Object)).await;
        let object = ends_of_many(&context, &container, COUNT).await;
        check_ends(&context, &object, COUNT).await;
        assert!(asked.get() > 0, "nobody was asked for a part");
    });
}

#[test]
fn acknowledged_updates_survive_crashes_and_conditional_ones_happen_once() {
    for seed in 0..60 {
        let cluster = Rc::new(Cluster::start(seed, 2, 2));
        let random = Random::new(seed);
        for crash in 0..3_u64 {
            let after = Duration::from_micros(500 + 40_000 * crash + random.below(40_000));
            let rank = u32::try_from(random.below(2)).expect("small");
            cluster.schedule_crash(rank, after, Duration::from_micros(1000 + random.below(30_000)));
        }
        let context = cluster.context(MINUTE);
        let inserted = cluster.run(async move {
            let container = open_container(&context, properties("crash", ContainerType::Object)).await;
            let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
            let kv = Kv::open(&container, oid).expect("opens");
            for number in 0_u32..120 {
                let name = number.to_be_bytes();
                kv.put(&context, &name, &[7; 33], Conditions::DKEY_INSERT).await.expect("inserted once");
                if number % 3 == 0 {
                    kv.remove(&context, &name, Conditions::PUNCH).await.expect("removed once");
                }
            }
            for number in 0_u32..120 {
                let expected = (number % 3 != 0).then(|| vec![7; 33]);
                let found = kv.get(&context, &number.to_be_bytes()).await.expect("read");
                assert_eq!(found, expected, "seed {seed}, key {number}");
            }
            context.traffic().requests
        });
        assert!(inserted > 280);
    }
}

#[test]
fn an_engine_that_stays_away_is_named_after_the_deadline() {
    let cluster = Cluster::start(7, 2, 1);
    let context = cluster.context(Duration::from_secs(8));
    let opened = {
        let context = context.clone();
        cluster.run(async move {
            let container = open_container(&context, properties("away", ContainerType::Object)).await;
            let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
            let kv = Kv::open(&container, oid).expect("opens");
            for number in 0_u32..8 {
                kv.put(&context, &number.to_be_bytes(), b"x", Conditions::NONE).await.expect("put");
            }
            kv
        })
    };
    cluster.crash(1);
    let started = cluster.world.now();
    let outcomes = cluster.run(async move {
        let mut outcomes = Vec::new();
        for number in 0_u32..8 {
            outcomes.push(opened.put(&context, &number.to_be_bytes(), b"x", Conditions::NONE).await);
        }
        outcomes
    });
    let failed: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(!failed.is_empty() && failed.len() < 8, "keys of one engine of two fail: {failed:?}");
    for error in &failed {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("engine 1 target 0"), "{error}");
    }
    let waited = cluster.world.now() - started;
    assert!(waited >= Duration::from_secs(8) * u32::try_from(failed.len()).expect("few"));
}

/// Whether a wait in virtual time is the expected one and what it takes to send a few messages.
pub fn is_about(waited: Duration, expected: Duration) -> bool {
    (expected..expected + Duration::from_millis(10)).contains(&waited)
}

#[test]
fn who_waits_for_engines_that_are_away_is_told_for_how_long_and_waits_no_longer() {
    let cluster = Cluster::start(21, 3, 1);
    let patience = Duration::from_secs(50);
    let context = cluster.context(patience);
    let kv = {
        let context = context.clone();
        cluster.run(async move {
            let container = open_container(&context, properties("away", ContainerType::Object)).await;
            let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
            Kv::open(&container, oid).expect("opens")
        })
    };
    for rank in 0..3 {
        cluster.crash(rank);
    }
    let begun = cluster.world.now();
    let away = {
        let context = context.clone();
        cluster.run(async move { Pool::connect(&context, POOL, Rights::READ).await.map(|_| ()) })
    };
    let said = away.expect_err("all engines are away").to_string();
    assert!(is_about(cluster.world.now() - begun, patience), "{said}");
    assert!(said.contains(", like 2 others, has not answered for 50.000 s"), "{said}");
    // What is asked together is given up together.
    let begun = cluster.world.now();
    cluster.run(async move {
        context.set_limit(Some(Duration::from_secs(7)));
        for _ in 0..3 {
            kv.get(&context, b"a").await.expect_err("all engines are away");
            kv.object().container().close(&context).await.expect_err("all engines are away");
        }
    });
    assert!(is_about(cluster.world.now() - begun, Duration::from_secs(7)));
}
