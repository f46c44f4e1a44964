//! What members of groups store that others have judged.

use super::*;
use weir_store::AttributeChange;

/// A change of an attribute that goes with a transaction.
fn noted(value: Option<&[u8]>) -> AttributeChange {
    AttributeChange { scope: b"scope".to_vec(), name: b"name".to_vec(), value: value.map(<[u8]>::to_vec) }
}

#[test]
fn what_others_have_judged_is_stored_whatever_it_finds_while_they_lead() {
    let (machine, _store, shard, t) = start(31);
    machine.run(async move {
        let conditional = |dkey: &str| Operation::Update {
            object: object(1),
            dkey: key(dkey),
            conditions: Conditions::DKEY_UPDATE,
            akeys: vec![single("a", b"new")],
            data: Data::Borrowed(b"new"),
        };
        let refused = shard.transact(CONTAINER, id(1), Epoch(t), &[conditional("x")]).await;
        assert!(matches!(refused, Err(UpdateError::Missing(_))), "{refused:?}");
        let operations = [conditional("y"), remove(1, PunchScope::Dkeys(vec![key("z")]))];
        let stored = async |id, at: u64, leads: bool| {
            shard.transact_as_member(CONTAINER, id, Epoch(at), &operations, &|| leads).await
        };
        let deposed = stored(id(2), t, false).await;
        assert!(matches!(deposed, Err(UpdateError::Restart { .. })), "{deposed:?}");
        let view = shard.view(CONTAINER, Epoch(t + 5), ReaderId(7)).expect("a view");
        assert_eq!(read_in(&view, 1, "y").await, Ok(None), "nothing of it");
        let late = stored(id(2), t + 4, true).await;
        assert!(matches!(late, Err(UpdateError::Restart { .. })), "what was read stays so: {late:?}");
        assert_eq!(stored(id(3), t + 6, true).await, Ok(Epoch(t + 6)));
        assert_eq!(stored(id(3), t + 6, true).await, Ok(Epoch(t + 6)), "it is known");
        assert_eq!(look(&shard, 1, "y", MAX).await, Ok(Some(b"new".to_vec())));
        assert_eq!(shard.decision(CONTAINER, id(3)).await, Ok(Some(Decision::Committed(Epoch(t + 6)))));
        shard.abort_transaction(CONTAINER, id(4)).await.expect("nobody has stored it");
        let given_up = stored(id(4), t + 9, true).await;
        assert!(matches!(given_up, Err(UpdateError::Decided { .. })), "{given_up:?}");
    });
}

#[test]
fn an_attribute_that_goes_with_a_commit_takes_no_record_of_its_own() {
    let (machine, store, shard, t) = start(32);
    machine.run(async move {
        let (operations, notes) = ([store_value(1, "x", b"one")], [noted(Some(b"value"))]);
        let begun = std::cell::Cell::new(0);
        let (leads, begins) = (|| true, || begun.set(begun.get() + 1));
        let along: (&[AttributeChange], &dyn Fn() -> bool, &dyn Fn()) = (&notes, &leads, &begins);
        let records = || store.stats().commit.records;
        let before = records();
        shard
            .prepare_as_member(CONTAINER, id(1), Epoch(t), (&operations, &|_| true), along)
            .await
            .expect("prepared");
        assert_eq!((records() - before, begun.get()), (1, 1));
        assert_eq!(shard.attribute(b"scope", b"name"), Some(b"value".to_vec()));
        let committed = shard.commit_transaction_with(CONTAINER, id(1), &[noted(None)]).await;
        assert_eq!((committed, records() - before), (Ok(Epoch(t)), 2));
        assert_eq!(shard.attribute(b"scope", b"name"), None);
    });
}
