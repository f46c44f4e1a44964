//! What comes late, at an epoch that others have been at or beyond: it is refused where it would change what they have seen, and
//! what it hides goes all the same.

use super::*;

/// Whether something is refused because others were there at its epoch or later.
fn is_late<T>(done: &Result<T, UpdateError>) -> bool {
    matches!(done, Err(UpdateError::Restart { .. }))
}

#[test]
fn what_a_punch_has_not_found_no_older_transaction_brings() {
    let (machine, _store, shard, t) = start(71);
    machine.run(async move {
        let akeys = PunchScope::Akeys(key("akeys"), vec![key("a")]);
        let scopes =
            [(PunchScope::Object, "any"), (PunchScope::Dkeys(vec![key("d")]), "d"), (akeys, "akeys")];
        for (number, (scope, dkey)) in (1..).zip(scopes) {
            punch(&shard, object(number), scope, t + 10).await.expect("nothing is there");
            let old = [store_value(number, dkey, b"old")];
            let refused = shard.prepare(CONTAINER, id(99), Epoch(t + 5), &old).await;
            assert!(is_late(&refused), "{dkey}: {refused:?}");
            let refused = shard.transact(CONTAINER, id(99), Epoch(t + 10), &old).await;
            assert!(is_late(&refused), "{dkey}: {refused:?}");
            assert_eq!(look(&shard, number, dkey, t + 20).await, Ok(None));
            shard.transact(CONTAINER, id(number.into()), Epoch(t + 11), &old).await.expect("it comes later");
        }
    });
}

#[test]
fn at_the_epoch_at_which_a_transaction_has_read_nobody_else_writes() {
    let (machine, _store, shard, t) = start(72);
    machine.run(async move {
        plain(&shard, 1, "d", t - 500, b"old").await.expect("stored");
        // A read outside of transactions holds up no write outside of them.
        assert_eq!(look(&shard, 1, "d", t).await, Ok(Some(b"old".to_vec())));
        plain(&shard, 1, "d", t, b"older").await.expect("nobody has read in a transaction");
        let view = shard.view(CONTAINER, Epoch(t + 10), ReaderId(7)).expect("a view");
        assert_eq!(read_in(&view, 1, "d").await, Ok(Some(b"older".to_vec())));
        let refused = plain(&shard, 1, "d", t + 10, b"new").await;
        assert!(is_late(&refused), "{refused:?}");
        let scope = PunchScope::Dkeys(vec![key("d")]);
        let refused = punch(&shard, object(1), scope, t + 10).await;
        assert!(is_late(&refused), "{refused:?}");
        assert_eq!(read_in(&view, 1, "d").await, Ok(Some(b"older".to_vec())));
        plain(&shard, 1, "other", t + 10, b"new").await.expect("that wasn't read");
        view.list(object(1), &ListScope::Dkeys, b"", 99, None).await.expect("listed");
        let refused = plain(&shard, 1, "third", t + 10, b"new").await;
        assert!(is_late(&refused), "{refused:?}");
        plain(&shard, 1, "d", t + 11, b"new").await.expect("it comes later");
        assert_eq!(read_in(&view, 1, "d").await, Ok(Some(b"older".to_vec())));
    });
}

/// Bytes of data before a transaction is committed that was prepared before a snapshot, and long afterwards. What it hides is
/// beside something that is overwritten all the time until it is committed, or not.
fn hide_late(is_busy: bool) -> (u64, u64) {
    let machine = Machine::new(73, 64 << 20);
    let (retention, background_interval) = (Duration::from_millis(200), Duration::from_millis(50));
    let (_store, shard) =
        machine.start(StoreConfig { retention, background_interval, ..StoreConfig::default() });
    let handle = machine.handle();
    machine.run(async move {
        let now = || handle.wall_ns();
        plain(&shard, 1, "d", now(), &pattern(1, 1 << 20)).await.expect("stored");
        handle.sleep(Duration::from_millis(1)).await;
        let new = pattern(2, 5000);
        shard.prepare(CONTAINER, id(1), Epoch(now()), &[store_value(1, "d", &new)]).await.expect("prepared");
        handle.sleep(Duration::from_millis(1)).await;
        shard.set_snapshots(CONTAINER, &[Epoch(now())]).await.expect("kept");
        for round in 0..200 {
            if is_busy || round < 2 {
                plain(&shard, 1, "busy", now(), b"busy").await.expect("stored");
            }
            handle.sleep(Duration::from_millis(20)).await;
        }
        let before = shard.space().data;
        shard.commit_transaction(CONTAINER, id(1)).await.expect("committed");
        handle.sleep(Duration::from_secs(10)).await;
        (before, shard.space().data)
    })
}

#[test]
fn what_a_late_commit_hides_before_a_snapshot_goes() {
    let after = [false, true].map(hide_late);
    assert!(after.iter().all(|(before, after)| *before > 1 << 20 && *after < 1 << 20), "{after:?}");
    assert_eq!(after[0].1, after[1].1, "busy or not");
}

/// Who is told to come again, since a transaction is undecided, has been told nothing that others would have to heed.
#[test]
fn who_is_told_to_come_again_holds_up_nobody() {
    let (machine, _store, shard, t) = start(74);
    machine.run(async move {
        plain(&shard, 9, "d", t + 100, b"newest").await.expect("stored");
        let operations = [store_value(1, "d", b"one"), store_value(2, "new", b"object")];
        shard.prepare(CONTAINER, id(1), Epoch(t + 10), &operations).await.expect("prepared");
        let refused = plain(&shard, 1, "d", t + 200, b"no").await;
        assert!(matches!(refused, Err(UpdateError::Undecided { .. })), "{refused:?}");
        let refused = punch(&shard, object(1), PunchScope::Dkeys(vec![key("d")]), t + 200).await;
        assert!(matches!(refused, Err(UpdateError::Undecided { .. })), "{refused:?}");
        // Nor has a transaction whose object may be about to be created.
        let mut below = store_value(2, "other", b"no");
        if let Operation::Update { conditions, .. } = &mut below {
            *conditions = Conditions::OBJECT_EXISTS;
        }
        let refused = shard.transact(CONTAINER, id(2), Epoch(t + 60), &[below]).await;
        assert!(matches!(refused, Err(UpdateError::Undecided { .. })), "{refused:?}");
        shard.abort_transaction(CONTAINER, id(1)).await.expect("aborted");
        let late = [store_value(1, "d", b"late")];
        shard.transact(CONTAINER, id(3), Epoch(t + 50), &late).await.expect("nobody was told anything of it");
        plain(&shard, 2, "other", t + 30, b"late").await.expect("nor of this");
    });
}
