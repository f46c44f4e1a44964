//! What the short cut of most fetches answers, beside what the general way does.

use super::*;
use crate::operations::tests::history::{Change, KEYS, LATEST, OBJECT, history, name};
use crate::upkeep::merge::tests::{CONTAINER, on_a_shard};
use proptest::prelude::*;

/// How often everything is asked at the end: so often that hints are made and followed.
const ROUNDS: usize = 12;

/// What is asked of an akey: all of a single value or a part of it, or a range of an array.
fn asked(akey: u8, range: Extent) -> AkeyFetch {
    let value = match akey % 2 {
        0 => Value::Single { size: range.count },
        _ => Value::Array { record_size: 1, extents: vec![range] },
    };
    AkeyFetch { akey: name(akey), value, conditions: Conditions::NONE }
}

/// What was found, the data, and its checksums.
async fn answer(fetch: Fetch, asked: &[AkeyFetch]) -> (Vec<FetchedAkey>, Vec<u8>, AkeySums) {
    let (found, mut data) = (fetch.akeys().to_vec(), vec![7; in_memory(fetch.data_len())]);
    let sums = fetch.read_summed(asked, &mut data).await.expect("it can be read");
    let mut plain = vec![9; data.len()];
    fetch.read(&mut plain).await.expect("it can be read");
    assert!(plain == data, "with and without checksums it is the same");
    (found, data, sums)
}

/// Asks both ways, and compares. Returns whether the short one had an answer.
async fn compare(shard: &Shard, (dkey, akey): (u8, u8), epoch: u64, range: Extent) -> bool {
    let place = (shard.number, shard.locate(CONTAINER).expect("there"), OBJECT);
    let (dkey, asked) = (name(dkey), [asked(akey, range)]);
    let walked = shard.walk_to(Reader::Plain, &place, &dkey, epoch, Conditions::NONE, &asked);
    let Some(walked) = walked.expect("nothing is damaged") else { return false };
    let looked = shard.look_up(Reader::Plain, &place, &dkey, Epoch(epoch), Conditions::NONE, &asked).await;
    let (short, general) = (answer(walked, &asked).await, answer(looked.expect("sound"), &asked).await);
    assert!(short == general, "{dkey} {asked:?} at {epoch:#x}: {:?}, not {:?}", short.0, general.0);
    true
}

/// Makes the changes, and asks for some of what is there after each of them.
async fn run(shard: &Shard, history: Vec<(u64, Change)>, ranges: Vec<(u64, Extent)>) -> (usize, usize) {
    let (mut made, mut short) = (0, 0);
    let mut next = ranges.iter().copied().cycle();
    for (epoch, change) in history {
        made += usize::from(change.make(shard, epoch).await.is_ok());
        for dkey in 0..KEYS {
            for akey in 0..KEYS {
                let (early, range) = next.next().expect("there are ranges");
                for epoch in [u64::MAX, early] {
                    short += usize::from(compare(shard, (dkey, akey), epoch, range).await);
                }
            }
        }
    }
    for _ in 0..ROUNDS {
        for (early, range) in &ranges {
            for number in 0..KEYS * KEYS {
                let keys = (number / KEYS, number % KEYS);
                short += usize::from(compare(shard, keys, u64::MAX, *range).await);
                short += usize::from(compare(shard, keys, *early, *range).await);
            }
        }
    }
    (made, short)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_short_way_answers_what_the_general_one_does(
        history in history(),
        ranges in proptest::collection::vec(
            (1..LATEST + 2, (0u64..60, prop_oneof![1u64..90, 1u64..10_000])), 3..5),
    ) {
        let extent = |(epoch, (index, count))| (epoch, Extent { index, count });
        let ranges = ranges.into_iter().map(extent).collect();
        on_a_shard(async move |shard| {
            let (made, _) = run(&shard, history, ranges).await;
            assert!(made > 0, "nothing stands against the first change");
        });
    }
}

#[test]
fn both_ways_are_taken() {
    let update = |akey, len| Change::Update { dkey: 0, akeys: vec![akey], index: 0, len };
    on_a_shard(async move |shard| {
        let history =
            vec![(1, update(0, 20)), (2, update(1, 20)), (3, update(3, 5000)), (4, update(2, 9000))];
        let range = Extent { index: 0, count: 20 };
        let (made, short) = run(&shard, history, vec![(4, range)]).await;
        assert_eq!(made, 4);
        // Of eight questions about what is there in each round, the most.
        assert!(short > ROUNDS * 6, "only {short} answers");
        assert!(!compare(&shard, (1, 0), u64::MAX, range).await, "nothing is there");
    });
}
