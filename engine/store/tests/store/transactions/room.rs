//! What prepared transactions will take when they are committed is theirs from the prepare on.

use super::*;
use weir_runtime::join_all;

/// A dkey and an akey that the index spells with two bytes for each of theirs.
fn zeros() -> weir_proto::Key {
    weir_proto::Key::new(&[0; 1024]).expect("a key")
}

/// Extents whose entries are far larger in their place than as those of a transaction.
fn scattered(number: u64, data: &[u8]) -> Operation<'_> {
    let extents: Vec<(u64, u64)> = (0..data.len() as u64).map(|at| (2 * at, 1)).collect();
    let mut akey = array("a", 1, &extents);
    akey.akey = zeros();
    Operation::Update {
        object: object(number),
        dkey: zeros(),
        conditions: Conditions::NONE,
        akeys: vec![akey],
        data: Data::Borrowed(data),
    }
}

/// Fills what is left with plain values.
async fn fill(shard: &Shard, t: u64) {
    for len in [60_000, 3000, 100] {
        for number in 0..100_000 {
            match plain(shard, 1_000_000 + number, "x", t + number, &pattern(number, len)).await {
                Ok(_) => {}
                Err(UpdateError::NoSpace { .. } | UpdateError::Fragmented(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_pool_has_room_for_what_was_prepared_and_an_abort_or_restart_changes_nothing_of_it() {
    let (machine, store, shard, t) = start(31);
    let (user, opened) = (shard.clone(), Rc::clone(&store));
    let before = shard.space().free;
    machine.run(async move {
        opened.resize_pool(POOL, user.space().total.min(24 << 20)).await.expect("smaller");
        let (data, begin) = (vec![7; 1000], user.space().free);
        for number in 1..=2 {
            user.prepare(CONTAINER, id(number), Epoch(t + 1), &[scattered(number as u64, &data)])
                .await
                .expect("prepared");
        }
        let prepared = begin - user.space().free;
        assert!(prepared > 8 << 20, "{prepared} bytes for 2000 entries of 4 KiB");
        assert!(opened.resize_pool(POOL, begin - prepared).await.is_err(), "what is prepared is in use");
        user.abort_transaction(CONTAINER, id(2)).await.expect("aborted");
        let left = user.space().free;
        assert!(begin - left < prepared * 51 / 100, "{left} of {begin} are free");
    });
    let free = shard.space().free;
    drop((store, shard));
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    assert_eq!(shard.space().free, free, "of {before}");
    let (user, handle) = (shard.clone(), machine.handle());
    machine.run(async move {
        fill(&user, t).await;
        let data = vec![7; 1000];
        let late = user.prepare(CONTAINER, id(3), Epoch(handle.wall_ns()), &[scattered(3, &data)]).await;
        assert!(matches!(late, Err(UpdateError::NoSpace { .. })), "{late:?}");
        user.commit_transaction(CONTAINER, id(1)).await.expect("committed");
        let space = user.space();
        assert!(space.data + space.metadata <= space.total, "{space:?}");
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn a_quota_has_room_for_what_was_prepared() {
    let (machine, _store, shard, t) = start(32);
    machine.run(async move {
        shard.set_quota(CONTAINER, 9 << 20).await.expect("set");
        let data = vec![7; 1000];
        shard.prepare(CONTAINER, id(1), Epoch(t + 1), &[scattered(1, &data)]).await.expect("prepared");
        let second = shard.prepare(CONTAINER, id(2), Epoch(t + 1), &[scattered(2, &data)]).await;
        assert!(matches!(second, Err(UpdateError::Quota { .. })), "{second:?}");
        let plainly = plain(&shard, 5, "x", t + 2, &pattern(1, 4 << 20)).await;
        assert!(matches!(plainly, Err(UpdateError::Quota { .. })), "{plainly:?}");
        shard.commit_transaction(CONTAINER, id(1)).await.expect("committed");
    });
}

#[test]
fn two_requests_that_prepare_the_same_need_room_for_one() {
    let (machine, _store, shard, t) = start(35);
    machine.run(async move {
        shard.set_quota(CONTAINER, 300_000).await.expect("set");
        let data = pattern(1, 200_000);
        let operations = [store_value(1, "x", &data)];
        let prepare = || shard.prepare(CONTAINER, id(1), Epoch(t + 1), &operations);
        let both = join_all([prepare(), prepare()]).await;
        assert!(both.iter().all(Result::is_ok), "{both:?}");
        shard.commit_transaction(CONTAINER, id(1)).await.expect("committed");
        assert_eq!(look(&shard, 1, "x", MAX).await.expect("read"), Some(data));
    });
}

#[test]
fn all_that_was_prepared_can_be_committed_on_a_device_that_was_filled_meanwhile() {
    for restarts in [false, true] {
        let machine = Machine::new(33, 24 << 20);
        machine.format();
        let mut store = machine.open(quiet());
        let (opened, handle) = (Rc::clone(&store), machine.handle());
        let count = machine.run(async move {
            let shard = opened.create_pool(POOL, opened.space().capacity).await.expect("space");
            shard.create_container(CONTAINER).await.expect("a container");
            let t = handle.wall_ns();
            let mut count = 0u64;
            // Each in a part of the index of its own.
            for number in 0..100_000 {
                let data = pattern(number, 3000);
                let dkeys: Vec<String> = (0..8).map(|dkey| format!("{dkey}")).collect();
                let operations: Vec<_> = dkeys.iter().map(|dkey| store_value(number, dkey, &data)).collect();
                match shard
                    .prepare(CONTAINER, id(u128::from(number) + 1), Epoch(t + number), &operations)
                    .await
                {
                    Ok(()) => count += 1,
                    Err(UpdateError::NoSpace { .. } | UpdateError::Crowded { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            fill(&shard, t).await;
            count
        });
        assert!(count > 20, "only {count} were prepared");
        if restarts {
            drop(store);
            machine.crash(CrashKeeps::Nothing);
            store = machine.open(quiet());
        }
        let (opened, shard) = (Rc::clone(&store), store.pool(POOL).expect("the pool"));
        machine.run(async move {
            for number in 1..=count {
                let id = id(u128::from(number));
                shard.commit_transaction(CONTAINER, id).await.expect("committed");
                if number % 16 == 0 {
                    opened.checkpoint().await.expect("a checkpoint");
                }
            }
            opened.checkpoint().await.expect("a checkpoint");
        });
        assert_eq!(machine.audit(&store).problems, [""; 0]);
    }
}

#[test]
fn prepared_transactions_take_a_part_of_the_memory_and_no_more() {
    let machine = Machine::new(34, 256 << 20);
    let (_store, shard) = machine.start(cramped());
    let t = machine.handle().wall_ns();
    machine.run(async move {
        let data = pattern(1, 1000 * 1000);
        let extents: Vec<(u64, u64)> = (0..1000).map(|at| (2000 * at, 1000)).collect();
        let mut refused = None;
        for number in 1..=12 {
            let operations: Vec<_> = (0..4usize)
                .map(|part| Operation::Update {
                    object: object(number),
                    dkey: key(&format!("{part}")),
                    conditions: Conditions::NONE,
                    akeys: vec![array("a", 1, &extents[part * 250..][..250])],
                    data: Data::Borrowed(&data[part * 250_000..][..250_000]),
                })
                .collect();
            let id = id(u128::from(number));
            if let Err(error) = shard.prepare(CONTAINER, id, Epoch(t + number), &operations).await {
                refused.get_or_insert((number, error));
            }
        }
        let (first, error) = refused.expect("they are too many");
        assert!(
            matches!(error, UpdateError::Crowded { .. }) && (6..=10).contains(&first),
            "{first}: {error}"
        );
        assert_eq!(error.der(), Der::INPROGRESS);
        shard.abort_transaction(CONTAINER, id(1)).await.expect("aborted");
        shard
            .prepare(CONTAINER, id(99), Epoch(t + 99), &[store_value(99, "x", b"v")])
            .await
            .expect("room again");
    });
}

/// An extent of 1 MiB, of which a byte in every 2 KiB was overwritten: more parts than one merge takes, so that the extent goes
/// only with the second one.
async fn patched(shard: &Shard, number: u64, t: u64) {
    let store = async |epoch: u64, extents: &[(u64, u64)]| {
        let data = vec![7; extents.iter().map(|(_, count)| *count as usize).sum()];
        let (update, none) = ([array("a", 1, extents)], Conditions::NONE);
        let object = object(number);
        let data = Data::Borrowed(&data);
        shard.update(CONTAINER, object, &key("d"), Epoch(epoch), none, &update, data).await.expect("room");
    };
    store(t, &[(0, 1 << 20)]).await;
    let patches: Vec<(u64, u64)> = (0..512).map(|at| (at * 2048, 1)).collect();
    store(t + 1, &patches).await;
}

/// Panics when the pool has given away more than it has.
fn check_share(shard: &Shard) {
    let space = shard.space();
    let used = space.data + space.metadata;
    assert!(used + space.prepared <= space.total, "{used} used, {} prepared: {space:?}", space.prepared);
}

#[test]
fn merges_take_nothing_that_was_promised_to_prepared_transactions() {
    let (machine, store, shard, t) = start(35);
    let handle = machine.handle();
    machine.run(async move {
        store.resize_pool(POOL, 24 << 20).await.expect("smaller");
        patched(&shard, 1, t).await;
        for number in 1..=2 {
            let operation = [scattered(10 + number as u64, &[7; 1000])];
            shard.prepare(CONTAINER, id(number), Epoch(t + 1000), &operation).await.expect("prepared");
        }
        fill(&shard, t + 2000).await;
        let (before, other) = (shard.space(), shard.clone());
        assert!(before.prepared > 8 << 20 && before.free < 1 << 20, "{before:?}");
        let merging = handle.clone().spawn(async move { other.aggregate(CONTAINER, Epoch(t + 500)).await });
        while !merging.is_finished() {
            check_share(&shard);
            handle.sleep(Duration::from_micros(10)).await;
        }
        check_share(&shard);
        for number in 1..=2 {
            shard.commit_transaction(CONTAINER, id(number)).await.expect("committed");
            check_share(&shard);
        }
    });
}

#[test]
fn updates_take_nothing_that_a_merge_is_writing_to() {
    let (machine, store, shard, t) = start(36);
    let handle = machine.handle();
    machine.run(async move {
        store.resize_pool(POOL, 24 << 20).await.expect("smaller");
        patched(&shard, 1, t).await;
        let data = pattern(1, 60_000);
        let mut number = 1_000_000;
        // One merge takes 256 KiB.
        while shard.space().free > 330 << 10 {
            number += 1;
            plain(&shard, number, "x", t + 2000, &data).await.expect("room");
        }
        assert!(shard.space().free > 264 << 10, "{:?}", shard.space());
        let (before, other) = (store.space().free, shard.clone());
        let merging = handle.clone().spawn(async move { other.aggregate(CONTAINER, Epoch(t + 500)).await });
        while store.space().free >= before && !merging.is_finished() {
            handle.sleep(Duration::from_micros(10)).await;
        }
        assert!(!merging.is_finished(), "it has blocks to write to");
        while !merging.is_finished() {
            number += 1;
            match plain(&shard, number, "x", t + 2000, &data).await {
                Ok(_) => {}
                Err(UpdateError::NoSpace { .. }) => handle.sleep(Duration::from_micros(10)).await,
                Err(error) => panic!("{error}"),
            }
            check_share(&shard);
        }
    });
}

#[test]
fn one_pool_does_not_take_all_the_memory_of_prepared_transactions() {
    let machine = Machine::new(37, 256 << 20);
    let (store, shard) = machine.start(cramped());
    let t = machine.handle().wall_ns();
    machine.run(async move {
        store.resize_pool(POOL, 64 << 20).await.expect("smaller");
        let other = weir_proto::PoolId(Uuid::from_u128(99));
        let other = store.create_pool(other, 64 << 20).await.expect("space");
        other.create_container(CONTAINER).await.expect("a container");
        let data = pattern(1, 250_000);
        let extents: Vec<(u64, u64)> = (0..250).map(|at| (2000 * at, 1000)).collect();
        let prepare = async |shard: &Shard, number: u64| {
            let operation = Operation::Update {
                object: object(number),
                dkey: key("d"),
                conditions: Conditions::NONE,
                akeys: vec![array("a", 1, &extents)],
                data: Data::Borrowed(&data),
            };
            shard.prepare(CONTAINER, id(u128::from(number)), Epoch(t + number), &[operation]).await
        };
        let count = async |shard: &Shard| {
            for number in 1..100 {
                match prepare(shard, number).await {
                    Ok(()) => {}
                    Err(UpdateError::Crowded { .. }) => return number - 1,
                    Err(error) => panic!("{error}"),
                }
            }
            panic!("there is memory for all")
        };
        let (first, second) = (count(&shard).await, count(&other).await);
        assert!(first > 3 * second && second > 3, "{first} and {second}");
        // Who has much gets no more until others have less, and who has little does.
        shard.abort_transaction(CONTAINER, id(1)).await.expect("aborted");
        assert!(matches!(prepare(&shard, 200).await, Err(UpdateError::Crowded { .. })));
        prepare(&other, 200).await.expect("its share has grown");
    });
}

#[test]
fn transactions_that_only_remove_go_on_in_a_full_pool_and_beyond_the_quota() {
    for by_quota in [false, true] {
        let (machine, store, shard, t) = start(34);
        machine.run(async move {
            if by_quota {
                shard.set_quota(CONTAINER, 4 << 20).await.expect("set");
            } else {
                store.resize_pool(POOL, 8 << 20).await.expect("smaller");
            }
            for dkey in ["x", "y", "z"] {
                plain(&shard, 1, dkey, t, b"there").await.expect("stored");
            }
            for len in [60_000, 3000, 100, 1] {
                for number in 0..100_000 {
                    if plain(&shard, 1_000_000 + number, "x", t + number, &pattern(number, len))
                        .await
                        .is_err()
                    {
                        break;
                    }
                }
            }
            let at = |number: u128| Epoch(t + 1_000_000 + number as u64);
            let value = [store_value(2, "x", b"no room")];
            assert!(shard.transact(CONTAINER, id(1), at(1), &value).await.is_err());
            assert!(shard.prepare(CONTAINER, id(2), at(2), &value).await.is_err());
            let gone = [remove(1, PunchScope::DkeyWith(key("x"), vec![key("a")]))];
            shard.transact(CONTAINER, id(3), at(3), &gone).await.expect("a delete works when full");
            let gone = [remove(1, PunchScope::Dkeys(vec![key("y")]))];
            shard.prepare(CONTAINER, id(4), at(4), &gone).await.expect("a delete works when full");
            shard.commit_transaction(CONTAINER, id(4)).await.expect("committed");
            assert_eq!(dkeys(&shard, 1, MAX).await, Ok(1));
        });
    }
}
