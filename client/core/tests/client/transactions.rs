//! Transactions over several targets on a simulated system, and what is left of them when engines and clients die.

use crate::cluster;

use core::cell::Cell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{
    AkeyRead, AkeyWrite, Conditions, Container, ContainerType, Context, Der, Error, Key, Object, ObjectClass,
    Restarts, Transaction, kind,
};
use weir_layout::Layout;
use weir_runtime::random::Random;
use weir_runtime::sim::Node;

const MINUTE: Duration = Duration::from_mins(1);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a short key")
}

/// Objects that each live on one target, most of them on different ones.
async fn objects(context: &Context, container: &Container, count: usize) -> Vec<Object> {
    let mut made = Vec::new();
    for _ in 0..count {
        let oid = container.new_object_id(context, kind::MULTI_HASHED, Some(ObjectClass::S1)).await;
        made.push(Object::open(container, oid.expect("an id")).expect("opens"));
    }
    made
}

async fn read(context: &Context, object: &Object) -> Result<Option<u64>, Error> {
    let mut bytes = [0; 8];
    let mut reads = [AkeyRead::single(key("v"), &mut bytes)];
    let found = object.fetch(context, &key("d"), Conditions::NONE, &mut reads).await?;
    Ok((found[0].size == 8).then(|| u64::from_le_bytes(bytes)))
}

fn write(transaction: &mut Transaction, object: &Object, value: u64, conditions: Conditions) {
    let bytes = value.to_le_bytes();
    let writes = [AkeyWrite::single(key("v"), &bytes)];
    transaction.update(object, &key("d"), conditions, &writes).expect("well formed");
}

/// What stands under the keys of some objects.
type State = BTreeMap<(usize, &'static str, &'static str), u64>;

/// Whether a change of a dkey and akey removes what stands at a place.
type Gone = fn(&str, &str, (&str, &str)) -> bool;

const DKEYS: [&str; 2] = ["d", "e"];
const AKEYS: [&str; 3] = ["v", "w", "x"];

/// Has a transaction make one random change, and `state` too unless the transaction refuses it.
fn change(transaction: &mut Transaction, objects: &[Object], state: &mut State, random: &Random) {
    let any = |count: usize| usize::try_from(random.below(count as u64)).expect("small");
    let (number, dkey, akey) = (any(objects.len()), DKEYS[any(2)], AKEYS[any(3)]);
    let (object, bytes) = (&objects[number], random.next_u64().to_le_bytes());
    let (done, gone): (_, Gone) = match any(8) {
        0 => (transaction.punch(object), |_, _, _| true),
        1 => {
            let done = transaction.punch_dkeys(object, Conditions::NONE, &[key(dkey)]);
            (done, |dkey, _, place| dkey == place.0)
        }
        2 => {
            let done = transaction.punch_akeys(object, Conditions::NONE, &key(dkey), &[key(akey)]);
            (done, |dkey, akey, place| (dkey, akey) == place)
        }
        more => {
            let akeys = if more == 3 { &AKEYS[..] } else { &[akey] };
            let writes: Vec<_> = akeys.iter().map(|akey| AkeyWrite::single(key(akey), &bytes)).collect();
            let done = transaction.update(object, &key(dkey), Conditions::NONE, &writes);
            if done.is_ok() {
                let value = u64::from_le_bytes(bytes);
                state.extend(akeys.iter().map(|akey| ((number, dkey, *akey), value)));
            }
            (done, |_, _, _| false)
        }
    };
    match done {
        Ok(()) => state.retain(|at, _| at.0 != number || !gone(dkey, akey, (at.1, at.2))),
        Err(error) => assert!(error.is(Der::NOTSUPPORTED), "{error}"),
    }
}

#[test]
fn changes_that_a_transaction_takes_are_as_if_made_one_behind_the_other() {
    let cluster = Cluster::start(7, 3, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let (all, random) = (objects(&context, &container, 2).await, Random::new(7));
        let mut state = State::new();
        for number in 0..300 {
            let mut transaction = Transaction::begin(&context, &container);
            for _ in 0..=random.below(6) {
                change(&mut transaction, &all, &mut state, &random);
            }
            transaction.commit(&context).await.expect("commits");
            for (at, object) in all.iter().enumerate() {
                for dkey in DKEYS {
                    let mut bytes = [[0; 8]; 3];
                    let reads = AKEYS.iter().zip(&mut bytes);
                    let mut reads: Vec<_> =
                        reads.map(|(akey, bytes)| AkeyRead::single(key(akey), bytes)).collect();
                    let found = object.fetch(&context, &key(dkey), Conditions::NONE, &mut reads).await;
                    for ((akey, found), bytes) in AKEYS.iter().zip(found.expect("answers")).zip(bytes) {
                        let value = (found.size == 8).then(|| u64::from_le_bytes(bytes));
                        assert_eq!(
                            value,
                            state.get(&(at, dkey, *akey)).copied(),
                            "{number}: {at} {dkey} {akey}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn a_transaction_that_becomes_too_large_says_so_at_once() {
    let cluster = Cluster::start(8, 1, 1);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let object = objects(&context, &container, 1).await.remove(0);
        let (mut transaction, large) = (Transaction::begin(&context, &container), vec![1; 4000]);
        for number in 0..4_u64 {
            let writes = [AkeyWrite::single(key("v"), &large)];
            let done = transaction.update(&object, &Key::from_u64(number), Conditions::NONE, &writes);
            match done {
                Ok(()) => assert!(number < 3, "15 KiB are all that fits"),
                Err(error) => assert!(number == 3 && error.is(Der::REC2BIG), "{number}: {error}"),
            }
        }
        // What can't take the place of another change leaves that one.
        let larger = vec![2; 8000];
        let writes = [AkeyWrite::single(key("v"), &larger)];
        transaction.update(&object, &Key::from_u64(0), Conditions::NONE, &writes).expect_err("too large");
        transaction.commit(&context).await.expect("what was taken fits");
        let mut found = vec![0; 8000];
        let mut reads = [AkeyRead::single(key("v"), &mut found)];
        let sizes = object.fetch(&context, &Key::from_u64(0), Conditions::NONE, &mut reads).await;
        assert_eq!(sizes.expect("answers")[0].size, 4000);
        assert_eq!(found[..4000], large);
    });
}

#[test]
fn changes_of_several_targets_happen_all_or_not_at_all() {
    let cluster = Cluster::start(1, 3, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let all = objects(&context, &container, 8).await;
        let mut transaction = Transaction::begin(&context, &container);
        for (number, object) in (0..).zip(&all) {
            write(&mut transaction, object, number, Conditions::DKEY_INSERT);
        }
        assert_eq!(read(&context, &all[0]).await.expect("answers"), None, "what isn't committed isn't there");
        transaction.commit(&context).await.expect("commits");
        for (number, object) in (0..).zip(&all) {
            assert_eq!(read(&context, object).await.expect("answers"), Some(number));
        }
        // One condition that doesn't hold, on another target than the leader's, and nothing of it happens.
        let mut transaction = Transaction::begin(&context, &container);
        for object in &all[..7] {
            write(&mut transaction, object, 99, Conditions::NONE);
        }
        write(&mut transaction, &all[7], 99, Conditions::DKEY_INSERT);
        let refused = transaction.commit(&context).await.expect_err("there is one already");
        assert!(refused.is(Der::EXIST), "{refused}");
        for (number, object) in (0..).zip(&all) {
            assert_eq!(read(&context, object).await.expect("answers"), Some(number));
        }
        let mut transaction = Transaction::begin(&context, &container);
        transaction.punch(&all[0]).expect("well formed");
        transaction.punch_dkey_with(&all[1], &key("d"), &[key("v")]).expect("well formed");
        transaction.commit(&context).await.expect("commits");
        assert_eq!(read(&context, &all[0]).await.expect("answers"), None);
        assert_eq!(read(&context, &all[1]).await.expect("answers"), None);
        let none = Transaction::begin(&context, &container);
        none.commit(&context).await.expect("there is nothing to do");
    });
}

#[test]
fn who_has_read_what_others_change_has_to_start_again() {
    let cluster = Cluster::start(2, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let all = objects(&context, &container, 3).await;
        let late = Transaction::begin(&context, &container);
        let mut first = Transaction::begin(&context, &container);
        write(&mut first, &all[0], 1, Conditions::NONE);
        first.commit(&context).await.expect("commits");
        // It reads the state before; what it would make of that comes too late.
        assert_eq!(read(&context, &late.view(&all[0])).await.expect("answers"), None);
        let mut late = late;
        write(&mut late, &all[0], 2, Conditions::NONE);
        write(&mut late, &all[1], 2, Conditions::NONE);
        let refused = late.commit(&context).await.expect_err("somebody was faster");
        assert!(refused.is(Der::TX_RESTART), "{refused}");
        Restarts::new(&context).again(&context, refused.clone()).await.expect("there is time");
        context.set_limit(Some(Duration::ZERO));
        let over = Restarts::new(&context).again(&context, refused).await.expect_err("there is none");
        assert!(matches!(over, Error::Restarted { .. }), "{over}");
        context.set_limit(None);
        assert_eq!(read(&context, &all[1]).await.expect("answers"), None);
        // Whoever writes what it has read is put off, or behind it.
        let mut early = Transaction::begin(&context, &container);
        assert_eq!(read(&context, &early.view(&all[2])).await.expect("answers"), None);
        let plain = [AkeyWrite::single(key("v"), b"12345678")];
        let at = all[2].update(&context, &key("d"), Conditions::NONE, &plain).await.expect("stored");
        assert!(at > early.epoch());
        write(&mut early, &all[1], 3, Conditions::NONE);
        early.commit(&context).await.expect("it comes before what was written since");
    });
}

#[test]
fn what_a_transaction_was_told_of_keys_stays_so() {
    let cluster = Cluster::start(2, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::MULTI_UINT64, Some(ObjectClass::S1)).await;
        let object = Object::open(&container, oid.expect("an id")).expect("opens");
        let put = |transaction: &mut Transaction, number| {
            let writes = [AkeyWrite::single(Key::from_u64(0), b"v")];
            transaction.update(&object, &Key::from_u64(number), Conditions::NONE, &writes).expect("fits");
        };
        let mut first = Transaction::begin(&context, &container);
        put(&mut first, 5);
        first.commit(&context).await.expect("commits");
        // Two that would append: the older one comes behind the other's look at what is last.
        let mut older = Transaction::begin(&context, &container);
        let newer = Transaction::begin(&context, &container);
        let last = newer.view(&object).extreme_key(&context, true, None, None, false).await.expect("a key");
        assert_eq!(last.dkey, Some(Key::from_u64(5)));
        put(&mut older, 6);
        let refused = older.commit(&context).await.expect_err("it comes too late");
        assert!(refused.is(Der::TX_RESTART), "{refused}");
        let mut newer = newer;
        put(&mut newer, 6);
        newer.commit(&context).await.expect("its own look doesn't hinder it");
    });
}

#[test]
fn what_does_not_fit_or_makes_no_sense_is_refused() {
    let cluster = Cluster::start(3, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let all = objects(&context, &container, 2).await;
        let mut large = Transaction::begin(&context, &container);
        // What is sent with them doesn't fit beside keys and data that do.
        let bytes = vec![7; (15 << 10) - 8];
        let writes = [AkeyWrite::single(key("v"), &bytes)];
        large.update(&all[0], &key("d"), Conditions::NONE, &writes).expect("well formed");
        let refused = large.commit(&context).await.expect_err("too large");
        assert!(refused.is(Der::REC2BIG), "{refused}");
        let mut twice = Transaction::begin(&context, &container);
        write(&mut twice, &all[0], 1, Conditions::DKEY_INSERT);
        let bytes = [2; 8];
        let again = [AkeyWrite::single(key("v"), &bytes)];
        let refused = twice.update(&all[0], &key("d"), Conditions::NONE, &again).expect_err("the same twice");
        assert!(refused.is(Der::NOTSUPPORTED), "{refused}");
        twice.punch_dkeys(&all[0], Conditions::NONE, &[key("d")]).expect_err("what it writes on a condition");
        let other = [AkeyWrite::single(key("w"), &bytes)];
        twice.update(&all[0], &key("d"), Conditions::NONE, &other).expect("another akey");
        twice.commit(&context).await.expect("what was taken is done");
        let mut wrong = Transaction::begin(&context, &container);
        let refused =
            wrong.update(&all[0], &key("d"), Conditions::PUNCH, &[]).expect_err("no update's condition");
        assert!(refused.is(Der::INVAL), "{refused}");
    });
}

#[test]
fn a_target_that_was_away_for_longer_than_decisions_are_remembered_hears_what_became_of_it() {
    let (mut done, mut not_done) = (0, 0);
    for seed in 0..120 {
        let cluster = Rc::new(Cluster::start(seed, 2, 1));
        let context = cluster.context(MINUTE);
        let setup = context.clone();
        let (container, all) = cluster.run(async move {
            let container = open_container(&setup, properties("box", ContainerType::Object)).await;
            let all = objects(&setup, &container, 12).await;
            for object in &all {
                write_alone(&setup, &container, object, 1).await;
            }
            (container, all)
        });
        let random = Random::new(seed);
        let after = Duration::from_micros(200 + random.below(1700));
        // Engine 1 leads: its target has the first object. The other one is away for long, and at times the leader for a while.
        cluster.schedule_crash(0, after, Duration::from_secs(400));
        if seed % 2 == 0 {
            let soon = after + Duration::from_micros(random.below(800));
            cluster.schedule_crash(1, soon, Duration::from_secs(2));
        }
        let outcome = cluster.run(async move {
            let mut transaction = Transaction::begin(&context, &container);
            for object in &all {
                write(&mut transaction, object, 2, Conditions::NONE);
            }
            let outcome = transaction.commit(&context).await;
            context.runtime().sleep(Duration::from_secs(460)).await;
            let mut found = Vec::new();
            for object in &all {
                found.push(
                    read(&context, object).await.expect("nothing is undecided any more").expect("there"),
                );
            }
            assert!(found.iter().all(|value| *value == found[0]), "seed {seed}: {found:?}");
            assert!(outcome.is_err() || found[0] == 2, "seed {seed}: {outcome:?} {found:?}");
            found[0]
        });
        if outcome == 2 { done += 1 } else { not_done += 1 }
    }
    assert!(done > 3 && not_done > 3, "{done} {not_done}");
}

async fn increment(context: &Context, container: &Container, all: &[Object]) -> Result<(), Error> {
    let mut transaction = Transaction::begin(context, container);
    for object in all {
        let value = read(context, &transaction.view(object)).await?.unwrap_or(0);
        write(&mut transaction, object, value + 1, Conditions::NONE);
    }
    transaction.commit(context).await.map(|_| ())
}

#[test]
fn who_commits_long_after_the_begin_starts_again() {
    let cluster = Cluster::start(9, 2, 1);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        for count in [1, 6] {
            let all = objects(&context, &container, count).await;
            let mut transaction = Transaction::begin(&context, &container);
            for object in &all {
                write(&mut transaction, object, 1, Conditions::NONE);
            }
            context.runtime().sleep(5 * MINUTE).await;
            let refused = transaction.commit(&context).await.expect_err("nobody knows about that time");
            assert!(refused.is(Der::TX_RESTART), "{refused}");
            assert_eq!(read(&context, &all[0]).await.expect("answers"), None);
            increment(&context, &container, &all).await.expect("commits");
        }
    });
}

#[test]
fn what_was_committed_is_not_done_again_by_who_waits_longer_than_that_is_remembered() {
    let mut unknown = 0;
    for (count, seed) in [1, 6].into_iter().flat_map(|count| (0..40).map(move |seed| (count, seed))) {
        let cluster = Rc::new(Cluster::start(seed, 2, 1));
        let context = cluster.context(Duration::from_mins(10));
        let setup = context.clone();
        let (container, all) = cluster.run(async move {
            let container = open_container(&setup, properties("box", ContainerType::Object)).await;
            let all = objects(&setup, &container, count).await;
            increment(&setup, &container, &all).await.expect("commits");
            (container, all)
        });
        for rank in 0..2 {
            let after = Duration::from_micros(100 + seed * 50);
            cluster.schedule_crash(rank, after, Duration::from_secs(400));
        }
        unknown += cluster.run(async move {
            let mut restarts = Restarts::new(&context);
            let end = loop {
                match increment(&context, &container, &all).await {
                    Ok(()) => break Ok(()),
                    Err(error) => {
                        if let Err(error) = restarts.again(&context, error).await {
                            break Err(error);
                        }
                    }
                }
            };
            context.runtime().sleep(Duration::from_secs(100)).await;
            for object in &all {
                let value = read(&context, object).await.expect("answers").expect("there");
                assert!(value == 2 || end.is_err() && value == 1, "seed {seed}: {value} {end:?}");
            }
            assert!(matches!(end, Ok(()) | Err(Error::Unavailable { .. })), "seed {seed}: {end:?}");
            u32::from(end.is_err())
        });
    }
    assert!(unknown > 3, "{unknown}");
}

async fn write_alone(context: &Context, container: &Container, object: &Object, value: u64) {
    let mut transaction = Transaction::begin(context, container);
    write(&mut transaction, object, value, Conditions::NONE);
    transaction.commit(context).await.expect("commits");
}

#[test]
fn a_snapshot_stays_as_it_is_whatever_began_before_it() {
    for count in [1, 6] {
        let cluster = Cluster::start(10, 3, 2);
        let context = cluster.context(MINUTE);
        cluster.run(async move {
            let container = open_container(&context, properties("box", ContainerType::Object)).await;
            let all = objects(&context, &container, count).await;
            for object in &all {
                write_alone(&context, &container, object, 1).await;
            }
            let mut early = Transaction::begin(&context, &container);
            let snapshot = container.create_snapshot(&context).await.expect("taken");
            let first = read(&context, &all[0].at(snapshot)).await.expect("answers");
            assert_eq!(first, Some(1));
            for object in &all {
                write(&mut early, object, 2, Conditions::NONE);
            }
            let refused = early.commit(&context).await.expect_err("it would change the snapshot");
            assert!(refused.is(Der::TX_RESTART), "{refused}");
            for object in &all {
                assert_eq!(read(&context, &object.at(snapshot)).await.expect("answers"), Some(1));
            }
            increment(&context, &container, &all).await.expect("commits");
            for object in &all {
                assert_eq!(read(&context, object).await.expect("answers"), Some(2));
                assert_eq!(read(&context, &object.at(snapshot)).await.expect("answers"), Some(1));
            }
        });
    }
}

#[test]
fn one_context_commits_what_another_one_has_begun() {
    let cluster = Rc::new(Cluster::start(3, 2, 1));
    let (first, second) = (cluster.context(MINUTE), cluster.context(MINUTE));
    let rt = cluster.world.node("client").handle();
    cluster.run(async move {
        let container = open_container(&first, properties("box", ContainerType::Object)).await;
        let all = objects(&first, &container, 4).await;
        for value in 1..50 {
            // Its clock is behind the first one's at any place of a tick.
            rt.sleep(Duration::from_micros(5_000 + value * 7)).await;
            let mut transaction = Transaction::begin(&first, &container);
            for object in &all {
                write(&mut transaction, object, value, Conditions::NONE);
            }
            transaction.commit(&second).await.expect("commits");
            assert_eq!(read(&first, &all[0]).await.expect("readable"), Some(value));
        }
    });
}

/// The rank of the only target that an object is on.
fn rank_of(object: &Object) -> u32 {
    let map = object.container().pool().map();
    let layout = Layout::of(object.id(), map).expect("placed");
    map.targets.iter().find(|target| target.id == layout.shards[0]).expect("there").rank.0
}

#[test]
fn what_a_client_was_told_is_seen_by_others_whatever_clocks_say_and_engines_forget() {
    let mut undecided = 0;
    for seed in 0..90 {
        let cluster = Rc::new(Cluster::start(seed, 3, 1));
        let setup = cluster.context(MINUTE);
        let (container, all) = cluster.run(async move {
            let container = open_container(&setup, properties("box", ContainerType::Object)).await;
            let all = objects(&setup, &container, 12).await;
            let on = |rank| all.iter().find(|object| rank_of(object) == rank).expect("spread").clone();
            let all = [on(0), on(1)];
            for object in &all {
                write_alone(&setup, &container, object, 1).await;
            }
            (container, all)
        });
        let ahead = cluster.world.node("ahead");
        let skew = Duration::from_millis(900);
        ahead.set_clock_skew(900_000_000);
        let (writer, reader) = (cluster.context_on(&ahead, MINUTE), cluster.context(MINUTE));
        // Targets say nothing before their clocks have come to the transaction's epoch.
        let after = skew + Duration::from_micros(seed * 15);
        for rank in 0..2 {
            cluster.schedule_crash(rank, after, Duration::from_millis(5));
        }
        // The one that leads can't tell the other one for a while.
        let apart = Rc::clone(&cluster);
        cluster.world.schedule(after, move || apart.fabric.partition(&[apart.engine(0)], &[apart.engine(1)]));
        let together = Rc::clone(&cluster);
        cluster.world.schedule(after + Duration::from_millis(700), move || together.fabric.heal());
        let (changed, within) = (all.clone(), container.clone());
        let committed = ahead.handle().spawn(async move {
            let mut transaction = Transaction::begin(&writer, &within);
            for object in &changed {
                write(&mut transaction, object, 2, Conditions::NONE);
            }
            transaction.commit(&writer).await
        });
        let engines = Rc::clone(&cluster);
        undecided += cluster.run(async move {
            committed.await.expect("it ends").expect("commits");
            let mut waiting = 0;
            for target in engines.targets(1) {
                let shard = target.store().pool(container.pool().id()).expect("it has a shard");
                waiting += shard.undecided(container.id()).await.expect("answers").len();
            }
            // The other one first, so that no clock hears of the leader's.
            for object in all.iter().rev() {
                assert_eq!(read(&reader, object).await.expect("answers"), Some(2), "seed {seed}");
                assert_eq!(read_within(&reader, &container, object).await, Some(2), "seed {seed}");
            }
            waiting
        });
    }
    assert!(undecided > 3, "{undecided}");
}

#[test]
fn what_a_client_has_given_up_is_not_committed_later() {
    // One target can't be reached for longer than the client waits, and for less than engines wait for each other otherwise.
    let (patience, apart) = (Duration::from_secs(2), Duration::from_secs(3));
    for seed in 0..20 {
        let cluster = Rc::new(Cluster::start(seed, 2, 1));
        let (context, hasty, of_run) =
            (cluster.context(MINUTE), cluster.context(patience), Rc::clone(&cluster));
        cluster.run(async move {
            let container = open_container(&context, properties("box", ContainerType::Object)).await;
            let all = objects(&context, &container, 12).await;
            let changed =
                [0, 1].map(|rank| all.iter().find(|object| rank_of(object) == rank).expect("spread"));
            for object in changed {
                write_alone(&context, &container, object, 1).await;
            }
            let within = open_container(&hasty, properties("box", ContainerType::Object)).await;
            of_run.fabric.partition(&[of_run.engine(0)], &[of_run.engine(1)]);
            let together = Rc::clone(&of_run);
            of_run.world.schedule(apart, move || together.fabric.heal());
            let mut transaction = Transaction::begin(&hasty, &within);
            for object in changed {
                write(&mut transaction, object, 2, Conditions::NONE);
            }
            transaction.commit(&hasty).await.expect_err("one of the targets can't be asked");
            context.runtime().sleep(Duration::from_secs(20)).await;
            for object in changed {
                assert_eq!(read(&context, object).await.expect("answers"), Some(1), "seed {seed}");
            }
        });
    }
}

/// What a transaction of its own reads, that begins now.
async fn read_within(context: &Context, container: &Container, object: &Object) -> Option<u64> {
    let transaction = Transaction::begin(context, container);
    read(context, &transaction.view(object)).await.expect("answers")
}

/// What each account holds at first.
const START: u64 = 1000;

/// What the clients of a run have seen.
#[derive(Default)]
struct Tally {
    committed: Cell<u64>,
    /// Whether they happened is not known: their clients heard nothing in time.
    unknown: Cell<u64>,
    restarts: Cell<u64>,
    checked: Cell<u64>,
}

fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Account, and how many transfers it has seen.
fn split(value: u64) -> (u64, u64) {
    (value >> 32, value & 0xffff_ffff)
}

fn joined((balance, count): (u64, u64)) -> u64 {
    (balance << 32) | count
}

async fn transfer(context: &Context, container: &Container, from: &Object, to: &Object) -> Result<(), Error> {
    let mut transaction = Transaction::begin(context, container);
    let (one, other) = (transaction.view(from), transaction.view(to));
    let one = split(read(context, &one).await?.expect("an account"));
    let other = split(read(context, &other).await?.expect("an account"));
    let amount = one.0 / 7;
    write(&mut transaction, from, joined((one.0 - amount, one.1 + 1)), Conditions::NONE);
    write(&mut transaction, to, joined((other.0 + amount, other.1 + 1)), Conditions::NONE);
    transaction.commit(context).await.map(|_| ())
}

/// Sums of all accounts at one epoch.
async fn audit(context: &Context, container: &Container, all: &[Object]) -> Result<(u64, u64), Error> {
    let transaction = Transaction::begin(context, container);
    let mut sums = (0, 0);
    for object in all {
        let (balance, count) = split(read(context, &transaction.view(object)).await?.expect("an account"));
        sums = (sums.0 + balance, sums.1 + count);
    }
    Ok(sums)
}

async fn client(context: Context, container: Container, all: Vec<Object>, seed: u64, tally: Rc<Tally>) {
    let random = Random::new(seed);
    for _ in 0..30 {
        let from = usize::try_from(random.below(all.len() as u64)).expect("few");
        let to = (from + 1 + usize::try_from(random.below(all.len() as u64 - 1)).expect("few")) % all.len();
        let mut restarts = Restarts::new(&context);
        loop {
            match transfer(&context, &container, &all[from], &all[to]).await {
                Ok(()) => break bump(&tally.committed),
                Err(Error::Unavailable { .. }) => break bump(&tally.unknown),
                Err(error) => {
                    restarts.again(&context, error).await.unwrap_or_else(|error| panic!("{error}"));
                    bump(&tally.restarts);
                }
            }
        }
        if let Ok((sum, _)) = audit(&context, &container, &all).await {
            assert_eq!(sum, START * all.len() as u64, "money was made or lost");
            bump(&tally.checked);
        }
    }
}

fn run(seed: u64) -> Rc<Tally> {
    let cluster = Rc::new(Cluster::start(seed, 3, 2));
    let context = cluster.context(MINUTE);
    let tally = Rc::new(Tally::default());
    let setup = context.clone();
    let (container, all) = cluster.run(async move {
        let container = open_container(&setup, properties("bank", ContainerType::Object)).await;
        let all = objects(&setup, &container, 6).await;
        let mut transaction = Transaction::begin(&setup, &container);
        for object in &all {
            write(&mut transaction, object, joined((START, 0)), Conditions::DKEY_INSERT);
        }
        transaction.commit(&setup).await.expect("commits");
        (container, all)
    });
    let start = |node: &Node, number: u64| {
        let context = cluster.context_on(node, MINUTE);
        let work = client(context, container.clone(), all.clone(), seed ^ (number + 1), Rc::clone(&tally));
        node.handle().spawn(work)
    };
    let random = Random::new(seed);
    for rank in 0..3 {
        // A client and an engine die together, so that nobody asks anew for what both were doing.
        let node = cluster.world.node(&format!("doomed-{rank}"));
        drop(start(&node, 10 + u64::from(rank)));
        let after = Duration::from_micros(random.below(60_000));
        let soon = after + Duration::from_micros(random.below(600));
        let world = cluster.world.clone();
        cluster.world.schedule(after, move || world.crash(&node));
        cluster.schedule_crash(rank, soon, Duration::from_millis(10 + random.below(300)));
    }
    let clients: Vec<_> =
        (0..4).map(|number| start(&cluster.world.node(&format!("client-{number}")), number)).collect();
    let tally_at_end = Rc::clone(&tally);
    cluster.run(async move {
        for client in clients {
            client.await.expect("it finishes");
        }
        // Whoever was away has come back by now.
        context.runtime().sleep(Duration::from_secs(90)).await;
        let (sum, count) = audit(&context, &container, &all).await.expect("nothing is undecided any more");
        assert_eq!(sum, START * all.len() as u64, "money was made or lost");
        let (done, told) = (count / 2, tally_at_end.committed.get());
        assert!(count.is_multiple_of(2) && done >= told, "{done} of {told}");
        // The dead may have been told nothing of their last one.
        assert!(done <= told + tally_at_end.unknown.get() + 3, "a transfer happened twice");
    });
    tally
}

#[test]
fn transfers_keep_their_sum_whatever_meets_and_whoever_dies() {
    let count = std::env::var("WEIR_SIM_SEEDS").map_or(24, |seeds| seeds.parse().expect("a number"));
    let (mut committed, mut restarts, mut checked) = (0, 0, 0);
    for seed in 0..count {
        let tally = run(seed);
        committed += tally.committed.get();
        restarts += tally.restarts.get();
        checked += tally.checked.get();
    }
    assert!(
        committed > 40 * count && restarts > count && checked > 20 * count,
        "{committed} {restarts} {checked}"
    );
}
