//! Updates and punches of an epoch that aggregation has already gone over: what is hidden stays so, and nothing is acknowledged
//! that nobody will see.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_proto::object::PunchScope;
use weir_proto::{Der, Epoch};
use weir_store::UpdateError;

const DISK: u64 = 64 << 20;

fn is_too_old<T>(done: &Result<T, UpdateError>) -> bool {
    matches!(done, Err(error) if error.der() == Der::EP_OLD)
}

#[test]
fn a_punch_that_aggregation_has_removed_still_hides_what_was_before_it() {
    let machine = Machine::new(1, DISK);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        put(&shard, "d", "a", 10, b"first").await.expect("stored");
        let scope = PunchScope::Dkeys(vec![key("d")]);
        punch(&shard, OBJECT, scope.clone(), 20).await.expect("punched");
        put(&shard, "d", "a", 15, b"late").await.expect("history is all there");
        write(&shard, 1, 25, 0, b"other").await.expect("stored");
        shard.aggregate(CONTAINER, Epoch(30)).await.expect("aggregated");
        let late = put(&shard, "d", "a", 15, b"late").await;
        assert!(is_too_old(&late), "{late:?}");
        let late = punch(&shard, OBJECT, scope, 19).await;
        assert!(is_too_old(&late), "{late:?}");
        assert_eq!(get(&shard, "d", "a", u64::MAX).await, Ok(None));
        // Of this object nothing is gone: whoever brings its history may go on, in whatever order.
        write(&shard, 1, 5, 0, b"older").await.expect("stored");
        assert_eq!(read(&shard, 1, 9, 0, 5).await.expect("read").0, b"older");
        assert_eq!(read(&shard, 1, 30, 0, 5).await.expect("read").0, b"other");
        put(&shard, "d", "a", 31, b"new").await.expect("it comes later");
        assert_eq!(get(&shard, "d", "a", u64::MAX).await, Ok(Some(b"new".to_vec())));
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn what_a_merge_would_hide_is_refused() {
    let machine = Machine::new(2, DISK);
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        for index in 0..8 {
            write(&shard, 1, 10 * (1 + index), 100 * index, &[1; 100]).await.expect("stored");
        }
        shard.aggregate(CONTAINER, Epoch(100)).await.expect("merged");
        let late = write(&shard, 1, 15, 0, &[2; 100]).await;
        let now = read(&shard, 1, u64::MAX, 0, 100).await.expect("read").0;
        assert!(is_too_old(&late) && now == [1; 100], "it is stored, and nobody sees it: {late:?}");
    });
}

/// While aggregation goes through an object, it has seen some of it already.
#[test]
fn what_comes_amid_a_visit_of_its_object_is_refused_or_stays_hidden() {
    const DKEYS: u64 = 300;
    let (mut refused, mut stored) = (0, 0);
    for seed in 10..14 {
        let machine = Machine::new(seed, DISK);
        let (_store, shard) = machine.start(quiet());
        let handle = machine.handle();
        let late = machine.run(async move {
            let name = |number: u64| format!("d{number}");
            for number in 0..DKEYS {
                put(&shard, &name(number), "a", 10 + number, b"old").await.expect("stored");
                let scope = PunchScope::Dkeys(vec![key(&name(number))]);
                punch(&shard, OBJECT, scope, 2000 + number).await.expect("punched");
            }
            let is_over = Rc::new(core::cell::Cell::new(false));
            let (user, noted) = (shard.clone(), Rc::clone(&is_over));
            let visit = handle.clone().spawn(async move {
                user.aggregate(CONTAINER, Epoch(3000)).await.expect("aggregated");
                noted.set(true);
            });
            let mut late = (0, 0);
            let mut number = seed;
            while !is_over.get() {
                let done = put(&shard, &name(number % DKEYS), "a", 1000 + number % DKEYS, b"late").await;
                assert!(done.is_ok() || is_too_old(&done), "{done:?}");
                late = if done.is_ok() { (late.0, late.1 + 1) } else { (late.0 + 1, late.1) };
                number += 7;
                handle.sleep(Duration::from_micros(10)).await;
            }
            visit.await.expect("it ends");
            for number in 0..DKEYS {
                assert_eq!(
                    get(&shard, &name(number), "a", u64::MAX).await,
                    Ok(None),
                    "seed {seed}: {number}"
                );
            }
            late
        });
        (refused, stored) = (refused + late.0, stored + late.1);
    }
    assert!(refused > 0, "{stored} were stored, none refused");
}
