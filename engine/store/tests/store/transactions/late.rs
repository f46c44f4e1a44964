//! What comes late, at an epoch that others have been at or beyond: it is refused where it would change what they have seen.

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
