//! What the cache of existences says and what updates make of it, beside what the index says.

use super::*;
use crate::format::key::Path;
use crate::format::record::Change as Entry;
use crate::operations::tests::history::{Change, KEYS, LATEST, OBJECT, history, name, update};
use crate::upkeep::merge::tests::{CONTAINER, on_a_shard};
use crate::versions::timestamps::hash_object;
use proptest::prelude::*;

/// What is planned for an update of an akey at an epoch: the entries, and what is known of them.
fn planned(
    shard: &Shard,
    known: Option<&Existence>,
    (dkey, akey): (u8, u8),
    epoch: u64,
) -> Result<(String, Vec<Entry>), String> {
    let (updates, data) = update(epoch, akey, 3, 9);
    let (dkey, updates) = (name(dkey), [updates]);
    let mut request = Request::new(shard.number, OBJECT, &dkey, Conditions::NONE, &updates);
    (request.container, request.epoch) = (shard.locate(CONTAINER).expect("there"), epoch);
    let (mut pieces, mut buffer) = (WritePieces::new(), EditBuffer::default());
    request.cut(shard.core.config.inline_max(), &mut pieces).expect("it is well formed");
    shard.seal_all(&request, &mut pieces, &data).expect("the checksums are right");
    let tree = shard.core.tree.borrow();
    match shard.plan_update(&tree, &request, known, (&pieces, &data), &mut buffer, None) {
        Ok(planned) => Ok((format!("{planned:?}"), buffer.changes().collect())),
        Err(Halt::Failed(refusal)) => Err(refusal.to_string()),
        Err(Halt::Missing(missing)) => panic!("all is in memory, but for {missing:?}"),
    }
}

/// Compares what the cache says of the object at an epoch with what the index says, and an update by either. Returns whether
/// the cache said anything.
fn compare(shard: &Shard, keys: (u8, u8), epoch: u64) -> bool {
    let place = (shard.number, shard.locate(CONTAINER).expect("there"), OBJECT);
    let path = Path::object(place.0, place.1, place.2);
    let (cached, defined, hint) = {
        let tree = shard.core.tree.borrow();
        let (cached, hint) = shard.core.existences.newest(&tree, &place, hash_object(&place), epoch);
        (cached, existence(&tree, &path, Existence::ALWAYS, epoch).expect("sound"), hint)
    };
    let Some(cached) = cached else { return false };
    assert_eq!(cached, defined, "at {epoch}");
    if let (Some(hint), Some((at, _))) = (hint, defined.event.filter(|_| defined.exists)) {
        let (tree, key) = (shard.core.tree.borrow(), path.event(at));
        if let Some(address) = hint.address(&tree, || &key[..]) {
            assert_eq!(tree.address(&key), Some(address), "the object's entry is elsewhere");
        }
    }
    if epoch < u64::MAX {
        assert_eq!(planned(shard, Some(&cached), keys, epoch), planned(shard, None, keys, epoch));
    }
    true
}

proptest! {
    #[test]
    fn an_update_by_the_cached_existence_is_that_by_the_index(
        history in history(),
        epochs in proptest::collection::vec(1..LATEST + 9, 1..4),
    ) {
        on_a_shard(async move |shard| {
            for (at, change) in history {
                // A change at the epoch of another one is refused.
                if let Err(refusal) = change.make(&shard, at).await {
                    assert!(matches!(refusal, UpdateError::Invalid(_) | UpdateError::Missing(_)), "{refusal}");
                }
                for number in 0..KEYS * KEYS {
                    for epoch in [&epochs[..], &[LATEST + 9, u64::MAX]].concat() {
                        compare(&shard, (number / KEYS, number % KEYS), epoch);
                    }
                }
            }
        });
    }
}

#[test]
fn the_cache_says_something_of_what_is_newest_and_nothing_of_what_was_before() {
    on_a_shard(async |shard| {
        let first = Change::Update { dkey: 0, akeys: vec![0], index: 0, len: 9 };
        first.make(&shard, 5).await.expect("made");
        assert!(compare(&shard, (0, 0), 5) && compare(&shard, (0, 1), u64::MAX));
        assert!(!compare(&shard, (0, 0), 4), "the object was created later");
        Change::PunchObject.make(&shard, 8).await.expect("made");
        assert!(!compare(&shard, (0, 0), 7) && compare(&shard, (0, 0), 9));
    });
}
