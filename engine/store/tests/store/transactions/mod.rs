//! Transactions: what is prepared is invisible until it is committed, and survives; histories are serializable in the
//! order of the epochs.

mod forgotten;
mod histories;
mod late;
mod members;
mod room;
mod transfers;

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::CrashKeeps;
use weir_proto::object::{AkeyFetch, Conditions, ListScope, PunchScope, Value};
use weir_proto::{Der, Epoch, ObjectId, ReaderId};
use weir_store::{
    Data, Decision, FetchError, Operation, Shard, Store, StoreConfig, TransactionError, TransactionId,
    UpdateError, View,
};

fn id(number: u128) -> TransactionId {
    TransactionId(Uuid::from_u128(number))
}

/// Who reads where nobody else has the same epoch.
const READER: ReaderId = ReaderId(1);

fn object(number: u64) -> ObjectId {
    ObjectId { hi: 0, lo: 100 + number }
}

fn store_value<'a>(number: u64, dkey: &str, value: &'a [u8]) -> Operation<'a> {
    Operation::Update {
        object: object(number),
        dkey: key(dkey),
        conditions: Conditions::NONE,
        akeys: vec![single("a", value)],
        data: Data::Borrowed(value),
    }
}

fn remove(number: u64, scope: PunchScope) -> Operation<'static> {
    Operation::Punch { object: object(number), scope, conditions: Conditions::NONE }
}

fn wanted() -> [AkeyFetch; 1] {
    [AkeyFetch { akey: key("a"), value: Value::Single { size: u64::MAX }, conditions: Conditions::NONE }]
}

async fn value_of(fetch: weir_store::Fetch) -> Result<Option<Vec<u8>>, FetchError> {
    let found = fetch.akeys()[0].fetched.size > 0;
    Ok(if found { Some(data_of(fetch).await?) } else { None })
}

async fn look(shard: &Shard, number: u64, dkey: &str, epoch: u64) -> Result<Option<Vec<u8>>, FetchError> {
    let none = Conditions::NONE;
    let fetch = shard.fetch(CONTAINER, object(number), &key(dkey), Epoch(epoch), none, &wanted()).await?;
    value_of(fetch).await
}

async fn read_in(view: &View, number: u64, dkey: &str) -> Result<Option<Vec<u8>>, FetchError> {
    value_of(view.fetch(object(number), &key(dkey), Conditions::NONE, &wanted()).await?).await
}

async fn plain(
    shard: &Shard,
    number: u64,
    dkey: &str,
    epoch: u64,
    value: &[u8],
) -> Result<Epoch, UpdateError> {
    let (update, none) = ([single("a", value)], Conditions::NONE);
    shard
        .update(CONTAINER, object(number), &key(dkey), Epoch(epoch), none, &update, Data::Borrowed(value))
        .await
}

async fn dkeys(shard: &Shard, number: u64, epoch: u64) -> Result<usize, FetchError> {
    let page = shard.list(CONTAINER, object(number), &ListScope::Dkeys, Epoch(epoch), b"", 99, None).await?;
    Ok(page.entries.len())
}

const MAX: u64 = u64::MAX;

/// A store whose clock is far behind the epochs given here, but not too far.
fn start(seed: u64) -> (Machine, Rc<Store>, Shard, u64) {
    let machine = Machine::new(seed, 64 << 20);
    let (store, shard) = machine.start(quiet());
    let now = machine.handle().wall_ns();
    (machine, store, shard, now + 1000)
}

#[test]
fn a_transaction_of_very_many_extents_is_refused() {
    let (machine, _store, shard, t) = start(14);
    machine.run(async move {
        let (extents, data): (Vec<_>, _) = ((0..1024).map(|at| (at * 2, 1)).collect(), [7; 1024]);
        let operation = |dkey: &str| Operation::Update {
            object: object(1),
            dkey: key(dkey),
            conditions: Conditions::NONE,
            akeys: vec![array("a", 1, &extents)],
            data: Data::Borrowed(&data),
        };
        let operations = ["x", "y", "z"].map(operation);
        let refused = shard.prepare(CONTAINER, id(7), Epoch(t), &operations).await;
        assert!(matches!(refused, Err(UpdateError::Invalid(_))), "{refused:?}");
        shard.prepare(CONTAINER, id(7), Epoch(t), &operations[..2]).await.expect("prepared");
        assert_eq!(shard.commit_transaction(CONTAINER, id(7)).await, Ok(Epoch(t)));
    });
}

#[test]
fn a_snapshot_keeps_transactions_of_epochs_before_it_from_changing_what_it_shows() {
    let (machine, _store, shard, t) = start(15);
    machine.run(async move {
        plain(&shard, 1, "d", t, b"old").await.expect("stored");
        shard
            .prepare(CONTAINER, id(1), Epoch(t + 1), &[store_value(2, "d", b"new")])
            .await
            .expect("prepared");
        shard.add_snapshot(CONTAINER, Epoch(t + 9)).await.expect("taken");
        assert_eq!(look(&shard, 1, "d", t + 9).await, Ok(Some(b"old".to_vec())));
        let late = [store_value(1, "d", b"new")];
        for at in [t + 5, t + 9] {
            let refused = shard.prepare(CONTAINER, id(2), Epoch(at), &late).await;
            assert!(matches!(refused, Err(UpdateError::Restart { .. })), "{refused:?}");
            let refused = shard.transact(CONTAINER, id(3), Epoch(at), &late).await;
            assert!(matches!(refused, Err(UpdateError::Restart { .. })), "{refused:?}");
        }
        // What was prepared before may be there already for others: who reads the snapshot has waited for it.
        assert_eq!(shard.commit_transaction(CONTAINER, id(1)).await, Ok(Epoch(t + 1)));
        shard.transact(CONTAINER, id(4), Epoch(t + 10), &late).await.expect("it is behind the snapshot");
        assert_eq!(look(&shard, 1, "d", t + 9).await, Ok(Some(b"old".to_vec())));
    });
}

#[test]
fn what_is_prepared_shows_all_at_once_when_it_is_committed() {
    let (machine, _store, shard, t) = start(1);
    let user = shard.clone();
    let large = pattern(5, 200_000);
    machine.run(async move {
        plain(&user, 1, "old", t, b"there").await.expect("stored");
        let operations = [
            store_value(1, "x", b"one"),
            store_value(2, "y", &large),
            remove(1, PunchScope::Dkeys(vec![key("old")])),
        ];
        user.prepare(CONTAINER, id(7), Epoch(t + 10), &operations).await.expect("prepared");
        user.prepare(CONTAINER, id(7), Epoch(t + 10), &operations).await.expect("the same again");
        // Earlier epochs go on as if nothing were there; later ones can't know.
        assert_eq!(look(&user, 1, "x", t + 9).await, Ok(None));
        assert_eq!(look(&user, 1, "old", t + 9).await, Ok(Some(b"there".to_vec())));
        let error = look(&user, 1, "x", MAX).await.expect_err("undecided");
        assert_eq!(error, FetchError::Undecided { transaction: id(7), epoch: Epoch(t + 10) });
        assert_eq!(error.der(), Der::INPROGRESS);
        assert!(matches!(dkeys(&user, 1, MAX).await, Err(FetchError::Undecided { .. })));
        assert_eq!(dkeys(&user, 1, t + 9).await, Ok(1));
        // Whatever it doesn't write can be read and written.
        plain(&user, 1, "other", t + 20, b"free").await.expect("stored");
        assert_eq!(look(&user, 1, "other", MAX).await, Ok(Some(b"free".to_vec())));
        let error = plain(&user, 1, "x", t + 30, b"no").await.expect_err("it is held");
        assert!(matches!(error, UpdateError::Undecided { transaction, .. } if transaction == id(7)));
        let whole = user.punch(CONTAINER, object(1), &PunchScope::Object, Epoch(t + 30), Conditions::NONE);
        assert!(matches!(whole.await, Err(UpdateError::Undecided { .. })));
        assert_eq!(user.undecided(CONTAINER).await, Ok(vec![(id(7), Epoch(t + 10))]));
        assert_eq!(user.commit_transaction(CONTAINER, id(7)).await, Ok(Epoch(t + 10)));
        assert_eq!(user.commit_transaction(CONTAINER, id(7)).await, Ok(Epoch(t + 10)));
        assert_eq!(look(&user, 1, "x", MAX).await, Ok(Some(b"one".to_vec())));
        assert_eq!(look(&user, 1, "x", t + 9).await, Ok(None));
        assert!(look(&user, 2, "y", t + 10).await == Ok(Some(large.clone())));
        assert_eq!(look(&user, 1, "old", MAX).await, Ok(None));
        assert_eq!(look(&user, 1, "old", t + 9).await, Ok(Some(b"there".to_vec())));
        let again = user.prepare(CONTAINER, id(7), Epoch(t + 10), &operations).await.expect_err("decided");
        assert!(matches!(again, UpdateError::Decided { decision: Decision::Committed(_), .. }));
        let late = user.abort_transaction(CONTAINER, id(7)).await.expect_err("committed");
        assert_eq!(late, TransactionError::Committed { transaction: id(7), epoch: Epoch(t + 10) });
    });
}

#[test]
fn an_aborted_transaction_leaves_nothing_behind() {
    let (machine, store, shard, t) = start(2);
    let (user, data) = (shard.clone(), pattern(1, 300_000));
    let before = store.stats().entries;
    machine.run(async move {
        let operations = [store_value(1, "x", &data), store_value(1, "y", b"small")];
        user.prepare(CONTAINER, id(1), Epoch(t), &operations).await.expect("prepared");
        assert!(user.space().data >= 300_000);
        user.abort_transaction(CONTAINER, id(1)).await.expect("aborted");
        user.abort_transaction(CONTAINER, id(1)).await.expect("again");
        assert_eq!(user.decision(CONTAINER, id(1)).await, Ok(Some(Decision::Aborted)));
        assert_eq!(user.commit_transaction(CONTAINER, id(1)).await, Err(TransactionError::Aborted(id(1))));
        assert_eq!(look(&user, 1, "x", MAX).await, Ok(None));
        assert_eq!(dkeys(&user, 1, MAX).await, Ok(0));
        // One that comes after its abort is refused; one that was never heard of is unknown.
        user.abort_transaction(CONTAINER, id(2)).await.expect("a decision before its question");
        let late = user.prepare(CONTAINER, id(2), Epoch(t + 1), &operations).await;
        assert!(matches!(late, Err(UpdateError::Decided { decision: Decision::Aborted, .. })));
        assert_eq!(user.commit_transaction(CONTAINER, id(3)).await, Err(TransactionError::Unknown(id(3))));
    });
    assert_eq!(shard.space().data, 0);
    assert_eq!(store.stats().entries, before + 2, "two decisions");
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn what_an_abort_makes_true_is_told_when_the_abort_is_durable() {
    let (machine, store, shard, t) = start(9);
    let user = shard.clone();
    machine.run(async move {
        plain(&user, 1, "x", t, b"before").await.expect("stored");
        user.prepare(CONTAINER, id(1), Epoch(t + 1), &[store_value(1, "x", b"after")])
            .await
            .expect("prepared");
    });
    machine.disk.halt_at(machine.disk.operations());
    let (handle, aborting) = (machine.handle(), shard.clone());
    let told = machine.world.try_block_on(&machine.node, Duration::from_secs(1), async move {
        let _abort = handle.spawn({
            let aborting = aborting.clone();
            async move { aborting.abort_transaction(CONTAINER, id(1)).await }
        });
        handle.sleep(Duration::from_micros(1)).await;
        look(&aborting, 1, "x", MAX).await
    });
    assert!(told.is_err(), "{told:?}");
    drop((store, shard));
    machine.crash(CrashKeeps::Nothing);
    let shard = machine.open(quiet()).pool(POOL).expect("the pool");
    let undecided = machine.run(async move { shard.undecided(CONTAINER).await });
    assert_eq!(undecided, Ok(vec![(id(1), Epoch(t + 1))]), "it may be committed yet");
}

#[test]
fn an_earlier_decision_is_told_when_it_is_durable() {
    let asked = ["prepare", "commit", "decision", "undecided"].map(|asks| (true, asks));
    let asked =
        asked.into_iter().chain(["prepare", "abort", "decision", "undecided"].map(|asks| (false, asks)));
    for (aborts, asks) in asked {
        let (machine, store, shard, t) = start(10);
        let user = shard.clone();
        let prepare = async move |shard: &Shard| {
            shard.prepare(CONTAINER, id(1), Epoch(t), &[store_value(1, "x", b"value")]).await
        };
        machine.run(async move { prepare(&user).await.expect("prepared") });
        machine.disk.halt_at(machine.disk.operations());
        let (handle, user) = (machine.handle(), shard.clone());
        let told = machine.world.try_block_on(&machine.node, Duration::from_secs(1), async move {
            let deciding = user.clone();
            let _decision = handle.spawn(async move {
                if aborts {
                    let _ = deciding.abort_transaction(CONTAINER, id(1)).await;
                } else {
                    let _ = deciding.commit_transaction(CONTAINER, id(1)).await;
                }
            });
            handle.sleep(Duration::from_micros(1)).await;
            match asks {
                "prepare" => format!("{:?}", prepare(&user).await),
                "commit" => format!("{:?}", user.commit_transaction(CONTAINER, id(1)).await),
                "decision" => format!("{:?}", user.decision(CONTAINER, id(1)).await),
                "undecided" => format!("{:?}", user.undecided(CONTAINER).await),
                _ => format!("{:?}", user.abort_transaction(CONTAINER, id(1)).await),
            }
        });
        assert!(told.is_err(), "{asks}: {told:?}");
        drop((store, shard));
        machine.crash(CrashKeeps::Nothing);
        let shard = machine.open(quiet()).pool(POOL).expect("the pool");
        let undecided = machine.run(async move { shard.undecided(CONTAINER).await });
        assert_eq!(undecided, Ok(vec![(id(1), Epoch(t))]), "it may be decided otherwise yet");
    }
}

#[test]
fn prepared_state_and_decisions_survive_crashes_and_checkpoints() {
    for checkpointed in [false, true] {
        let (machine, store, shard, t) = start(3);
        let large = pattern(9, 100_000);
        let (user, opened, data) = (shard.clone(), Rc::clone(&store), large.clone());
        machine.run(async move {
            let first = [store_value(1, "x", &data), remove(2, PunchScope::Object)];
            plain(&user, 2, "gone", t, b"soon").await.expect("stored");
            user.prepare(CONTAINER, id(1), Epoch(t + 10), &first).await.expect("prepared");
            let second = [store_value(3, "y", &data)];
            user.prepare(CONTAINER, id(2), Epoch(t + 11), &second).await.expect("prepared");
            user.abort_transaction(CONTAINER, id(3)).await.expect("aborted");
            if checkpointed {
                opened.checkpoint().await.expect("a checkpoint");
            }
        });
        drop((store, shard));
        machine.crash(CrashKeeps::Nothing);
        let store = machine.open(quiet());
        assert_eq!(machine.audit(&store).problems, [""; 0]);
        let shard = store.pool(POOL).expect("the pool");
        let (user, data) = (shard.clone(), large.clone());
        machine.run(async move {
            assert_eq!(
                user.undecided(CONTAINER).await,
                Ok(vec![(id(1), Epoch(t + 10)), (id(2), Epoch(t + 11))])
            );
            assert!(matches!(look(&user, 1, "x", MAX).await, Err(FetchError::Undecided { .. })));
            assert!(matches!(look(&user, 2, "gone", MAX).await, Err(FetchError::Undecided { .. })));
            assert_eq!(user.decision(CONTAINER, id(3)).await, Ok(Some(Decision::Aborted)));
            user.commit_transaction(CONTAINER, id(1)).await.expect("committed");
            user.abort_transaction(CONTAINER, id(2)).await.expect("aborted");
            assert!(look(&user, 1, "x", MAX).await == Ok(Some(data)));
            assert_eq!(look(&user, 2, "gone", MAX).await, Ok(None));
            // What may have been read before the crash can't be changed behind the reader's back.
            let late = user.prepare(CONTAINER, id(9), Epoch(t - 500), &[store_value(4, "z", b"late")]).await;
            assert!(matches!(late, Err(UpdateError::Restart { .. })), "{late:?}");
        });
        drop((store, shard));
        machine.crash(CrashKeeps::Any);
        let store = machine.open(quiet());
        assert_eq!(machine.audit(&store).problems, [""; 0]);
        let shard = store.pool(POOL).expect("the pool");
        let data = large;
        machine.run(async move {
            assert!(look(&shard, 1, "x", MAX).await == Ok(Some(data)));
            assert_eq!(look(&shard, 3, "y", MAX).await, Ok(None));
            assert_eq!(shard.decision(CONTAINER, id(1)).await, Ok(Some(Decision::Committed(Epoch(t + 10)))));
            assert_eq!(shard.decision(CONTAINER, id(2)).await, Ok(Some(Decision::Aborted)));
        });
    }
}

#[test]
fn who_comes_too_late_has_to_start_again_and_readers_hold_up_nobody() {
    let (machine, _store, shard, t) = start(4);
    machine.run(async move {
        let prepare = async |number, epoch, operation| {
            shard.prepare(CONTAINER, id(number), Epoch(epoch), &[operation]).await
        };
        let restarts = |result: &Result<(), UpdateError>| matches!(result, Err(UpdateError::Restart { .. }));
        plain(&shard, 1, "x", t, b"first").await.expect("stored");
        let view = shard.view(CONTAINER, Epoch(t + 100), READER).expect("a view");
        assert_eq!(read_in(&view, 1, "x").await, Ok(Some(b"first".to_vec())));
        // Behind the reader's back: refused. After it: at once, and the reader still sees what it saw.
        assert!(restarts(&prepare(1, t + 50, store_value(1, "x", b"late")).await));
        let error = plain(&shard, 1, "x", t + 60, b"late").await.expect_err("too late");
        assert_eq!(error.der(), Der::TX_RESTART);
        prepare(2, t + 150, store_value(1, "x", b"second")).await.expect("prepared");
        assert_eq!(read_in(&view, 1, "x").await, Ok(Some(b"first".to_vec())));
        shard.commit_transaction(CONTAINER, id(2)).await.expect("committed");
        assert_eq!(read_in(&view, 1, "x").await, Ok(Some(b"first".to_vec())));
        // Nobody writes between what was committed and an earlier epoch.
        assert!(restarts(&prepare(3, t + 120, store_value(1, "x", b"between")).await));
        assert!(restarts(&prepare(3, t + 120, remove(1, PunchScope::Object)).await));
        // A list protects what isn't there; a missing key does, too.
        let listed = view.list(object(1), &ListScope::Dkeys, b"", 10, None).await.expect("a page");
        assert_eq!(listed.entries.len(), 1);
        assert!(restarts(&prepare(4, t + 90, store_value(1, "new", b"phantom")).await));
        assert_eq!(read_in(&view, 5, "nothing").await, Ok(None));
        assert!(restarts(&prepare(5, t + 90, store_value(5, "nothing", b"phantom")).await));
        prepare(5, t + 90, store_value(5, "elsewhere", b"free")).await.expect("prepared");
        // A refusal is a look at the state, too.
        let insert = Operation::Update {
            object: object(1),
            dkey: key("x"),
            conditions: Conditions::DKEY_INSERT,
            akeys: vec![single("a", b"v")],
            data: Data::Borrowed(b"v"),
        };
        let refused = prepare(6, t + 300, insert).await;
        assert!(matches!(refused, Err(UpdateError::Exists { .. })));
        let dkey = remove(1, PunchScope::Dkeys(vec![key("x")]));
        assert!(restarts(&prepare(7, t + 250, dkey).await));
    });
}

#[test]
fn an_object_that_somebody_was_told_to_be_missing_was_missing_whichever_dkey_creates_it() {
    let (machine, _store, shard, t) = start(16);
    machine.run(async move {
        let (needed, value) = (Conditions::OBJECT_EXISTS, b"v");
        let needing = |number| Operation::Update {
            object: object(number),
            dkey: key("x"),
            conditions: needed,
            akeys: vec![single("a", value)],
            data: Data::Borrowed(value),
        };
        let prepare = async |number, epoch, operation| {
            shard.prepare(CONTAINER, id(number), Epoch(epoch), &[operation]).await
        };
        let update = async |number, epoch| {
            let (update, data) = ([single("a", value)], Data::Borrowed(value));
            shard.update(CONTAINER, object(number), &key("x"), Epoch(epoch), needed, &update, data).await
        };
        let refused = prepare(1, t + 100, needing(1)).await;
        assert!(matches!(refused, Err(UpdateError::Missing(_))), "{refused:?}");
        let late = prepare(2, t + 50, store_value(1, "y", value)).await;
        assert!(matches!(late, Err(UpdateError::Restart { .. })), "{late:?}");
        plain(&shard, 9, "other", t + 200, value).await.expect("stored");
        let refused = update(2, t + 210).await;
        assert!(matches!(refused, Err(UpdateError::Missing(_))), "{refused:?}");
        let late = prepare(3, t + 150, store_value(2, "y", value)).await;
        assert!(matches!(late, Err(UpdateError::Restart { .. })), "{late:?}");
        // It depends on a decision whether it is there.
        prepare(4, t + 300, store_value(3, "y", value)).await.expect("prepared");
        let undecided = prepare(5, t + 310, needing(3)).await;
        assert!(matches!(undecided, Err(UpdateError::Undecided { .. })), "{undecided:?}");
        let undecided = update(3, t + 311).await;
        assert!(matches!(undecided, Err(UpdateError::Undecided { .. })), "{undecided:?}");
        shard.commit_transaction(CONTAINER, id(4)).await.expect("committed");
        update(3, t + 320).await.expect("it is there");
        // Where it is there in any case nobody has to wait.
        prepare(6, t + 330, store_value(3, "z", value)).await.expect("prepared");
        update(3, t + 340).await.expect("it is there");
    });
}

#[test]
fn transactions_that_make_no_sense_are_refused() {
    let (machine, _store, shard, t) = start(5);
    machine.run(async move {
        let refused = async |epoch, operations: &[Operation<'_>]| {
            let result = shard.prepare(CONTAINER, id(1), Epoch(epoch), operations).await;
            assert!(matches!(result, Err(UpdateError::Invalid(_))), "{result:?}");
        };
        refused(t, &[]).await;
        refused(0, &[store_value(1, "x", b"v")]).await;
        refused(t + 1_000_000_000_000, &[store_value(1, "x", b"v")]).await;
        refused(t, &[store_value(1, "x", b"v"), store_value(1, "x", b"w")]).await;
        refused(t, &[store_value(1, "x", b"v"), remove(1, PunchScope::Object)]).await;
        refused(t, &[store_value(1, "x", b"v"), remove(1, PunchScope::Dkeys(vec![key("x")]))]).await;
        let akeys: Vec<_> = (0..256).map(|number| key(&number.to_string())).collect();
        let punch = |dkey: u64| remove(1, PunchScope::DkeyWith(key(&dkey.to_string()), akeys.clone()));
        let many: Vec<Operation<'_>> = (0..9).map(punch).collect();
        refused(t, &many).await;
        let names: Vec<String> = (0..300).map(|number| format!("{number:0>400}")).collect();
        let many: Vec<Operation<'_>> = names.iter().map(|name| store_value(1, name, b"v")).collect();
        refused(t, &many).await;
        let bulk = vec![1; 3000];
        let many: Vec<Operation<'_>> = names.iter().map(|name| store_value(1, &name[390..], &bulk)).collect();
        shard.prepare(CONTAINER, id(2), Epoch(t), &many).await.expect("large but possible");
        shard.commit_transaction(CONTAINER, id(2)).await.expect("committed");
        assert_eq!(look(&shard, 1, &names[299][390..], MAX).await, Ok(Some(bulk)));
        assert!(shard.view(CONTAINER, Epoch(t + 1_000_000_000_000), READER).is_err());
    });
}

#[test]
fn akeys_of_one_dkey_are_written_and_removed_together() {
    let (machine, store, shard, t) = start(15);
    machine.run(async move {
        let update = |akey: &str, conditions| Operation::Update {
            object: object(1),
            dkey: key("x"),
            conditions,
            akeys: vec![single(akey, b"v")],
            data: Data::Borrowed(b"v"),
        };
        let punch = |akey: &str| Operation::Punch {
            object: object(1),
            scope: PunchScope::Akeys(key("x"), vec![key(akey)]),
            conditions: Conditions::PUNCH,
        };
        let akeys = async || {
            let scope = ListScope::Akeys(key("x"));
            let page =
                shard.list(CONTAINER, object(1), &scope, Epoch(MAX), b"", 99, None).await.expect("listed");
            page.entries.iter().map(|entry| entry.key[0]).collect::<Vec<u8>>()
        };
        let insert = Conditions::AKEY_INSERT;
        let first = [update("a", insert), update("b", insert)];
        shard.transact(CONTAINER, id(1), Epoch(t), &first).await.expect("stored");
        shard
            .transact(CONTAINER, id(2), Epoch(t + 1), &[update("c", insert), punch("a")])
            .await
            .expect("stored");
        assert_eq!(akeys().await, b"bc");
        let next = [punch("c"), update("a", insert), punch("b")];
        let waiting = || (store.stats().undecided, store.stats().undecided_oldest);
        assert_eq!(waiting(), (0, Epoch::ZERO));
        shard.prepare(CONTAINER, id(3), Epoch(t + 2), &next).await.expect("prepared");
        assert_eq!(waiting(), (1, Epoch(t + 2)));
        shard.commit_transaction(CONTAINER, id(3)).await.expect("committed");
        assert_eq!(waiting(), (0, Epoch::ZERO));
        assert_eq!(akeys().await, b"a");
        let missing =
            shard.transact(CONTAINER, id(4), Epoch(t + 3), &[update("d", insert), punch("b")]).await;
        assert!(matches!(missing, Err(UpdateError::Missing(_))), "{missing:?}");
        let same = shard
            .transact(CONTAINER, id(5), Epoch(t + 4), &[update("a", Conditions::NONE), punch("a")])
            .await;
        assert!(matches!(same, Err(UpdateError::Invalid(_))), "{same:?}");
        assert_eq!(akeys().await, b"a");
    });
}

#[test]
fn of_two_transactions_of_the_same_epoch_one_writes() {
    let (machine, _store, shard, t) = start(16);
    machine.run(async move {
        let at = Epoch(t + 10);
        for number in 1..=2 {
            let view = shard.view(CONTAINER, at, id(number).reader()).expect("a view");
            let _ = read_in(&view, 1, "x").await.expect("read");
            let done = shard.transact(CONTAINER, id(number), at, &[store_value(1, "x", b"v")]).await;
            assert_eq!(done.is_ok(), number == 1, "{done:?}");
        }
        let prepared = shard.prepare(CONTAINER, id(3), at, &[store_value(1, "x", b"v")]).await;
        assert!(matches!(prepared, Err(UpdateError::Restart { .. })), "{prepared:?}");
    });
}

#[test]
fn nobody_else_writes_at_the_epoch_of_a_reader_what_it_has_read() {
    let (machine, _store, shard, t) = start(17);
    machine.run(async move {
        let restarts =
            |result: &Result<Epoch, UpdateError>| matches!(result, Err(UpdateError::Restart { .. }));
        for dkey in ["x", "y"] {
            plain(&shard, 1, dkey, t, b"first").await.expect("stored");
        }
        let transact = async |number, at, operations: &[Operation<'_>]| {
            shard.transact(CONTAINER, id(number), at, operations).await
        };
        let view = |number, at| shard.view(CONTAINER, at, id(number).reader()).expect("a view");
        // Half of another transaction: it would be before and behind the reader.
        let at = Epoch(t + 10);
        let half = view(1, at);
        assert_eq!(read_in(&half, 1, "x").await, Ok(Some(b"first".to_vec())));
        let both = [store_value(1, "x", b"other"), store_value(1, "y", b"other")];
        assert!(restarts(&transact(2, at, &both).await));
        assert_eq!(read_in(&half, 1, "y").await, Ok(Some(b"first".to_vec())));
        // Each writes what the other has read: neither would be the first.
        let at = Epoch(t + 20);
        for (number, dkey) in [(3, "x"), (4, "y")] {
            read_in(&view(number, at), 1, dkey).await.expect("read");
        }
        assert!(restarts(&transact(3, at, &[store_value(1, "y", b"skew")]).await));
        assert!(restarts(&transact(4, at, &[store_value(1, "x", b"skew")]).await));
        // Its own reads hinder nobody, and who comes later reads what was written.
        transact(3, at, &[store_value(1, "x", b"own")]).await.expect("nobody else has read it");
        assert_eq!(read_in(&view(4, at), 1, "x").await, Ok(Some(b"own".to_vec())));
        // What both have read neither can write; a list is a read of all of it.
        let at = Epoch(t + 30);
        for number in [5, 6] {
            let page = view(number, at).list(object(1), &ListScope::Dkeys, b"", 10, None).await;
            assert_eq!(page.expect("a page").entries.len(), 2);
        }
        for number in [5, 6, 7] {
            assert!(restarts(&transact(number, at, &[store_value(1, "new", b"phantom")]).await));
        }
    });
}

#[test]
fn who_reads_what_aggregation_has_removed_since_has_to_start_again() {
    let (machine, store, shard, t) = start(7);
    machine.run(async move {
        for (number, dkey) in [(1, "x"), (1, "gone"), (2, "x")] {
            plain(&shard, number, dkey, t, b"first").await.expect("stored");
        }
        plain(&shard, 1, "x", t + 100, b"second").await.expect("stored");
        punch(&shard, object(1), PunchScope::Dkeys(vec![key("gone")]), t + 110).await.expect("punched");
        let [view, of_snapshot, later] =
            [50, 40, 200].map(|behind| shard.view(CONTAINER, Epoch(t + behind), READER).expect("a view"));
        assert_eq!(read_in(&view, 1, "x").await, Ok(Some(b"first".to_vec())));
        shard.add_snapshot(CONTAINER, Epoch(t + 40)).await.expect("a snapshot");
        shard.aggregate(CONTAINER, Epoch(t + 150)).await.expect("aggregated");
        assert_eq!(read_in(&view, 1, "x").await, Ok(Some(b"first".to_vec())), "the snapshot keeps it");
        shard.set_snapshots(CONTAINER, &[]).await.expect("given up");
        shard.aggregate(CONTAINER, Epoch(t + 150)).await.expect("aggregated");
        for view in [&view, &of_snapshot] {
            for dkey in ["x", "gone", "never"] {
                let error = read_in(view, 1, dkey).await.expect_err("its state is gone");
                assert_eq!(error.der(), Der::TX_RESTART, "{error}");
            }
            let error = view.list(object(1), &ListScope::Dkeys, b"", 10, None).await.expect_err("gone");
            assert_eq!(error.der(), Der::TX_RESTART, "{error}");
            // Nothing of this was removed.
            assert_eq!(read_in(view, 2, "x").await, Ok(Some(b"first".to_vec())));
        }
        assert_eq!(read_in(&later, 1, "x").await, Ok(Some(b"second".to_vec())));
        assert_eq!(read_in(&later, 1, "gone").await, Ok(None));
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn nothing_is_told_of_an_epoch_that_the_clock_has_not_passed() {
    // After a restart nobody remembers what was told, but that it was of epochs before the restart.
    let (machine, _store, shard, _) = start(7);
    let handle = machine.handle();
    machine.run(async move {
        let ahead = || handle.wall_ns() + 900_000_000;
        let missing = |conditions| {
            let mut update = store_value(1, "x", b"1");
            if let Operation::Update { conditions: own, .. } = &mut update {
                *own = conditions;
            }
            [update]
        };
        for (number, conditions) in [(1, Conditions::DKEY_UPDATE), (2, Conditions::NONE)] {
            let epoch = ahead();
            let told = shard.prepare(CONTAINER, id(number), Epoch(epoch), &missing(conditions)).await;
            assert_eq!(told.is_ok(), number == 2, "{told:?}");
            assert!(handle.wall_ns() >= epoch);
            shard.abort_transaction(CONTAINER, id(number)).await.expect("aborted");
            let epoch = ahead();
            let told = shard.transact(CONTAINER, id(10 + number), Epoch(epoch), &missing(conditions)).await;
            assert_eq!(told.is_ok(), number == 2, "{told:?}");
            assert!(handle.wall_ns() >= epoch);
        }
    });
}

#[test]
fn decisions_are_forgotten_after_a_while_and_destroyed_containers_forget_everything() {
    let machine = Machine::new(6, 64 << 20);
    let (store, shard) = machine.start(StoreConfig::default());
    let t = machine.handle().wall_ns() + 1000;
    let user = shard.clone();
    machine.run(async move {
        for number in 0..50 {
            user.abort_transaction(CONTAINER, id(number)).await.expect("aborted");
        }
    });
    assert!(!shard.may_have_forgotten(Epoch(t)));
    machine.sleep(std::time::Duration::from_mins(6));
    assert!(
        shard.may_have_forgotten(Epoch(t)) && !shard.may_have_forgotten(Epoch(machine.handle().wall_ns()))
    );
    let user = shard.clone();
    let handle = machine.handle();
    machine.run(async move {
        // Something to do wakes background work.
        let now = handle.wall_ns();
        plain(&user, 1, "x", now, b"1").await.expect("stored");
        plain(&user, 1, "x", now + 1, b"2").await.expect("stored");
    });
    machine.sleep(std::time::Duration::from_secs(20));
    let user = shard.clone();
    assert_eq!(machine.run(async move { user.decision(CONTAINER, id(3)).await }), Ok(None));
    let user = shard.clone();
    let handle = machine.handle();
    machine.run(async move {
        let data = pattern(1, 100_000);
        let now = handle.wall_ns();
        assert!(now > t);
        user.prepare(CONTAINER, id(99), Epoch(now), &[store_value(1, "y", &data)]).await.expect("prepared");
        user.destroy_container(CONTAINER).await.expect("destroyed");
    });
    machine.sleep(std::time::Duration::from_secs(20));
    assert_eq!(shard.space().used(), 0);
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn a_store_whose_tasks_are_gone_holds_no_memory() {
    for turn in 0..60 {
        let (machine, store, shard, t) = start(turn);
        for number in 0..3 {
            let shard = shard.clone();
            machine.handle().spawn(async move {
                // It waits for its data, which is gathered with that of others.
                let data = pattern(turn, 9000);
                let value = [store_value(number, "x", &data)];
                let _ = shard.prepare(CONTAINER, id(u128::from(number)), Epoch(t), &value).await;
            });
        }
        // A turn of a task takes ten nanoseconds: the power fails between any two of them.
        machine.sleep(Duration::from_nanos(10 * turn));
        machine.world.crash(&machine.node);
        drop((store, shard));
        assert_eq!(machine.stores(), 0, "after {turn} turns");
        machine.end();
    }
}
