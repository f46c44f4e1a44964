//! Transactions: what is prepared is invisible until it is committed, and survives; histories are serializable in the
//! order of the epochs.

use crate::setup::*;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::sim::CrashKeeps;
use weir_proto::object::{AkeyFetch, Conditions, ListScope, PunchScope, Value};
use weir_proto::{Der, Epoch, ObjectId};
use weir_store::{
    Data, Decision, FetchError, Operation, Shard, Store, StoreConfig, TransactionError, TransactionId,
    UpdateError, View,
};

fn id(number: u128) -> TransactionId {
    TransactionId(Uuid::from_u128(number))
}

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
        assert_eq!(user.undecided(CONTAINER), Ok(vec![(id(7), Epoch(t + 10))]));
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
        assert_eq!(user.decision(CONTAINER, id(1)), Ok(Some(Decision::Aborted)));
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
            assert_eq!(user.undecided(CONTAINER), Ok(vec![(id(1), Epoch(t + 10)), (id(2), Epoch(t + 11))]));
            assert!(matches!(look(&user, 1, "x", MAX).await, Err(FetchError::Undecided { .. })));
            assert!(matches!(look(&user, 2, "gone", MAX).await, Err(FetchError::Undecided { .. })));
            assert_eq!(user.decision(CONTAINER, id(3)), Ok(Some(Decision::Aborted)));
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
            assert_eq!(shard.decision(CONTAINER, id(1)), Ok(Some(Decision::Committed(Epoch(t + 10)))));
            assert_eq!(shard.decision(CONTAINER, id(2)), Ok(Some(Decision::Aborted)));
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
        let view = shard.view(CONTAINER, Epoch(t + 100)).expect("a view");
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
        let names: Vec<String> = (0..300).map(|number| format!("{number:0>400}")).collect();
        let many: Vec<Operation<'_>> = names.iter().map(|name| store_value(1, name, b"v")).collect();
        refused(t, &many).await;
        let bulk = vec![1; 3000];
        let many: Vec<Operation<'_>> = names.iter().map(|name| store_value(1, &name[390..], &bulk)).collect();
        shard.prepare(CONTAINER, id(2), Epoch(t), &many).await.expect("large but possible");
        shard.commit_transaction(CONTAINER, id(2)).await.expect("committed");
        assert_eq!(look(&shard, 1, &names[299][390..], MAX).await, Ok(Some(bulk)));
        assert!(shard.view(CONTAINER, Epoch(t + 1_000_000_000_000)).is_err());
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
    machine.sleep(std::time::Duration::from_mins(6));
    let user = shard.clone();
    let handle = machine.handle();
    machine.run(async move {
        // Something to do wakes background work.
        let now = handle.wall_ns();
        plain(&user, 1, "x", now, b"1").await.expect("stored");
        plain(&user, 1, "x", now + 1, b"2").await.expect("stored");
    });
    machine.sleep(std::time::Duration::from_secs(20));
    assert_eq!(shard.decision(CONTAINER, id(3)), Ok(None));
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

mod histories {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Objects and dkeys of the histories are few, so that transactions meet.
    const OBJECTS: u64 = 2;
    const DKEYS: u64 = 3;

    type Place = (u64, u64);

    #[derive(Clone, Debug)]
    enum Step {
        /// A transaction begins at an epoch this far behind or ahead of the newest.
        Begin(i64),
        Read(usize, Place),
        List(usize, u64),
        /// Prepares writes of these places: with values, or none to punch.
        Prepare(usize, Vec<(Place, Option<usize>)>),
        PunchObject(usize, u64),
        Commit(usize),
        Abort(usize),
        Write(Place),
        Look(Place),
        Checkpoint,
        Crash,
        Aggregate,
    }

    fn place() -> impl Strategy<Value = Place> {
        (0..OBJECTS, 0..DKEYS)
    }

    fn step() -> impl Strategy<Value = Step> {
        let writes =
            proptest::collection::vec((place(), proptest::option::weighted(0.8, 1usize..6000)), 1..4);
        prop_oneof![
            6 => (-40i64..40).prop_map(Step::Begin),
            10 => (0usize..8, place()).prop_map(|(at, place)| Step::Read(at, place)),
            2 => (0usize..8, 0..OBJECTS).prop_map(|(at, object)| Step::List(at, object)),
            8 => (0usize..8, writes).prop_map(|(at, writes)| Step::Prepare(at, writes)),
            1 => (0usize..8, 0..OBJECTS).prop_map(|(at, object)| Step::PunchObject(at, object)),
            6 => (0usize..8).prop_map(Step::Commit),
            2 => (0usize..8).prop_map(Step::Abort),
            3 => place().prop_map(Step::Write),
            3 => place().prop_map(Step::Look),
            1 => Just(Step::Checkpoint),
            1 => Just(Step::Crash),
            1 => Just(Step::Aggregate),
        ]
    }

    /// What is written at an epoch: values, or `None` where something was punched.
    type Writes = BTreeMap<Place, Option<Vec<u8>>>;

    #[derive(Debug)]
    struct Open {
        id: u128,
        epoch: u64,
        prepared: Option<Writes>,
    }

    /// What was seen: a value of a place, or how many dkeys an object has.
    #[derive(Debug)]
    enum Seen {
        Value(Place, Option<Vec<u8>>),
        Count(u64, usize),
    }

    struct History {
        machine: Machine,
        store: Rc<Store>,
        shard: Shard,
        open: Vec<Open>,
        /// All versions: what each epoch wrote.
        committed: BTreeMap<u64, Writes>,
        /// What was read through views, by epoch.
        seen: Vec<(u64, Seen)>,
        epoch: u64,
        /// History before this is gone.
        horizon: u64,
        ids: u128,
        commits: u64,
        refusals: u64,
    }

    fn dkey_name(dkey: u64) -> String {
        format!("d{dkey}")
    }

    impl History {
        fn new(seed: u64, config: StoreConfig) -> Self {
            let machine = Machine::new(seed, 32 << 20);
            let (store, shard) = machine.start(config);
            let epoch = machine.handle().wall_ns() + 1_000_000;
            Self {
                machine,
                store,
                shard,
                open: Vec::new(),
                committed: BTreeMap::new(),
                seen: Vec::new(),
                epoch,
                horizon: 0,
                ids: 0,
                commits: 0,
                refusals: 0,
            }
        }

        /// An epoch that nobody else has.
        fn next(&mut self) -> u64 {
            self.epoch = (self.epoch + 100).max(self.machine.handle().wall_ns() / 100 * 100 + 100);
            self.epoch
        }

        /// The value of a place as the committed history has it at an epoch.
        fn model(&self, place: Place, epoch: u64) -> Option<Vec<u8>> {
            let newest = self.committed.range(..=epoch).rev().find_map(|(_, writes)| writes.get(&place));
            newest.cloned().flatten()
        }

        fn model_count(&self, object: u64, epoch: u64) -> usize {
            (0..DKEYS).filter(|dkey| self.model((object, *dkey), epoch).is_some()).count()
        }

        fn held(&self, place: Place) -> bool {
            let of = |open: &Open| open.prepared.as_ref().is_some_and(|writes| writes.contains_key(&place));
            self.open.iter().any(of)
        }

        fn pick(&self, at: usize) -> Option<usize> {
            (!self.open.is_empty()).then(|| at % self.open.len())
        }

        fn step(&mut self, step: Step) -> Result<(), String> {
            match step {
                Step::Begin(offset) => {
                    self.ids += 1;
                    let base = self.next();
                    // Distinct: the last two digits name the transaction.
                    let epoch =
                        (base.saturating_add_signed(offset * 100) / 100 * 100) + 1 + (self.ids % 97) as u64;
                    let taken = self.committed.contains_key(&epoch)
                        || epoch <= self.horizon
                        || self.open.iter().any(|open| open.epoch == epoch);
                    if self.open.len() < 8 && !taken {
                        self.open.push(Open { id: self.ids, epoch, prepared: None });
                    }
                }
                Step::Read(at, place) => self.read(at, place)?,
                Step::List(at, object) => self.list(at, object)?,
                Step::Prepare(at, writes) => {
                    let mut unique = BTreeMap::new();
                    for (place, len) in writes {
                        let value = len.map(|len| pattern(self.epoch ^ (place.0 << 8) ^ place.1, len));
                        unique.insert(place, value);
                    }
                    self.prepare(at, unique, None)?;
                }
                Step::PunchObject(at, object) => {
                    let all = (0..DKEYS).map(|dkey| ((object, dkey), None)).collect();
                    self.prepare(at, all, Some(object))?;
                }
                Step::Commit(at) => self.decide(at, true)?,
                Step::Abort(at) => self.decide(at, false)?,
                Step::Write(place) => self.write(place)?,
                Step::Look(place) => {
                    let shard = self.shard.clone();
                    let (number, dkey) = (place.0, dkey_name(place.1));
                    let found = self.machine.run(async move { look(&shard, number, &dkey, MAX).await });
                    match found {
                        Err(FetchError::Undecided { .. }) if self.held(place) => {}
                        Ok(found) if !self.held(place) && found == self.model(place, MAX) => {}
                        other => return Err(format!("{place:?}: {}", short(&other))),
                    }
                }
                Step::Checkpoint => {
                    let store = Rc::clone(&self.store);
                    self.machine.run(async move { store.checkpoint().await }).expect("a checkpoint");
                }
                Step::Crash => self.crash(),
                Step::Aggregate => {
                    // Views of open transactions go on reading.
                    let oldest = self.open.iter().map(|open| open.epoch).min().unwrap_or(self.epoch);
                    self.horizon = self.horizon.max(oldest.min(self.epoch).saturating_sub(1));
                    let (shard, horizon) = (self.shard.clone(), Epoch(self.horizon));
                    let aggregated =
                        self.machine.run(async move { shard.aggregate(CONTAINER, horizon).await });
                    aggregated.expect("aggregated");
                }
            }
            Ok(())
        }

        fn read(&mut self, at: usize, place: Place) -> Result<(), String> {
            let Some(at) = self.pick(at) else { return Ok(()) };
            if self.open[at].prepared.is_some() {
                return Ok(());
            }
            let (shard, epoch) = (self.shard.clone(), self.open[at].epoch);
            let found = self.machine.run(async move {
                let view = shard.view(CONTAINER, Epoch(epoch))?;
                read_in(&view, place.0, &dkey_name(place.1)).await
            });
            match found {
                Ok(value) => self.seen.push((epoch, Seen::Value(place, value))),
                Err(FetchError::Undecided { .. }) if self.held(place) => self.refusals += 1,
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        }

        fn list(&mut self, at: usize, number: u64) -> Result<(), String> {
            let Some(at) = self.pick(at) else { return Ok(()) };
            let (shard, epoch) = (self.shard.clone(), self.open[at].epoch);
            let found = self.machine.run(async move {
                let view = shard.view(CONTAINER, Epoch(epoch))?;
                view.list(object(number), &ListScope::Dkeys, b"", 99, None).await
            });
            match found {
                Ok(page) => self.seen.push((epoch, Seen::Count(number, page.entries.len()))),
                Err(FetchError::Undecided { .. }) => self.refusals += 1,
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        }

        fn prepare(&mut self, at: usize, writes: Writes, whole: Option<u64>) -> Result<(), String> {
            let Some(at) = self.pick(at) else { return Ok(()) };
            if self.open[at].prepared.is_some() {
                return Ok(());
            }
            let (id_of, epoch, shard) = (self.open[at].id, self.open[at].epoch, self.shard.clone());
            let mine = writes.clone();
            let prepared = self.machine.run(async move {
                let operations: Vec<Operation<'_>> = match whole {
                    Some(number) => vec![remove(number, PunchScope::Object)],
                    None => mine
                        .iter()
                        .map(|((number, dkey), value)| match value {
                            Some(value) => store_value(*number, &dkey_name(*dkey), value),
                            None => remove(*number, PunchScope::Dkeys(vec![key(&dkey_name(*dkey))])),
                        })
                        .collect(),
                };
                shard.prepare(CONTAINER, id(id_of), Epoch(epoch), &operations).await
            });
            match prepared {
                Ok(()) => self.open[at].prepared = Some(writes),
                Err(UpdateError::Restart { .. } | UpdateError::Undecided { .. }) => {
                    self.refusals += 1;
                    self.open.remove(at);
                }
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        }

        fn decide(&mut self, at: usize, commit: bool) -> Result<(), String> {
            let Some(at) = self.pick(at) else { return Ok(()) };
            let Open { id: number, epoch, prepared } = self.open.remove(at);
            let Some(writes) = prepared else { return Ok(()) };
            let shard = self.shard.clone();
            let decided = self.machine.run(async move {
                if commit {
                    shard.commit_transaction(CONTAINER, id(number)).await.map(|_| ())
                } else {
                    shard.abort_transaction(CONTAINER, id(number)).await
                }
            });
            decided.map_err(|error| error.to_string())?;
            if commit {
                self.commits += 1;
                self.committed.insert(epoch, writes);
            }
            Ok(())
        }

        fn write(&mut self, place: Place) -> Result<(), String> {
            let epoch = self.next() + 99;
            let value = pattern(epoch, 40);
            let (shard, data) = (self.shard.clone(), value.clone());
            let dkey = dkey_name(place.1);
            let written = self.machine.run(async move { plain(&shard, place.0, &dkey, epoch, &data).await });
            match written {
                Ok(_) => drop(self.committed.insert(epoch, Writes::from([(place, Some(value))]))),
                Err(UpdateError::Restart { .. } | UpdateError::Undecided { .. }) => self.refusals += 1,
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        }

        fn crash(&mut self) {
            self.machine.crash(CrashKeeps::Any);
            self.store = self.machine.open(self.config());
            self.shard = self.store.pool(POOL).expect("the pool");
            // Coordinators of transactions that weren't prepared have lost them.
            self.open.retain(|open| open.prepared.is_some());
            let mut expected: Vec<_> =
                self.open.iter().map(|open| (id(open.id), Epoch(open.epoch))).collect();
            expected.sort_by_key(|(id, epoch)| (*epoch, *id));
            assert_eq!(self.shard.undecided(CONTAINER), Ok(expected));
        }

        fn config(&self) -> StoreConfig {
            if self.machine.world.seed().is_multiple_of(2) { quiet() } else { cramped() }
        }

        /// Every read is what the history of those who committed says, in the order of their epochs.
        fn check(&self) -> Result<(), String> {
            for (epoch, seen) in &self.seen {
                match seen {
                    Seen::Value(place, value) => {
                        // A transaction reads before it writes.
                        let expected = self.model(*place, epoch - 1);
                        if *value != expected {
                            return Err(format!("{place:?} at {epoch}: not what the history says"));
                        }
                    }
                    Seen::Count(object, count) => {
                        let expected = self.model_count(*object, epoch - 1);
                        if *count != expected {
                            return Err(format!("object {object} at {epoch}: {count} dkeys, not {expected}"));
                        }
                    }
                }
            }
            let epochs = self.committed.keys().flat_map(|epoch| [epoch - 1, *epoch]).chain([MAX]);
            for epoch in epochs.filter(|epoch| *epoch >= self.horizon) {
                for place in (0..OBJECTS).flat_map(|object| (0..DKEYS).map(move |dkey| (object, dkey))) {
                    let (shard, dkey) = (self.shard.clone(), dkey_name(place.1));
                    let found = self.machine.run(async move { look(&shard, place.0, &dkey, epoch).await });
                    match found {
                        Ok(found) if found == self.model(place, epoch) => {}
                        Err(FetchError::Undecided { .. }) if self.held(place) => {}
                        other => return Err(format!("{place:?} at {epoch}: {}", short(&other))),
                    }
                }
            }
            let audit = self.machine.audit(&self.store);
            audit.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))
        }
    }

    fn short(found: &Result<Option<Vec<u8>>, FetchError>) -> String {
        match found {
            Ok(Some(value)) => format!("{} bytes", value.len()),
            Ok(None) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Cases of the property; `WEIR_HISTORIES` sets more.
    fn cases() -> u32 {
        std::env::var("WEIR_HISTORIES").map_or(48, |count| count.parse().expect("a number"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, ..ProptestConfig::default() })]

        #[test]
        fn are_serializable_in_the_order_of_epochs(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..150)) {
            let config = if seed.is_multiple_of(2) { quiet() } else { cramped() };
            let mut history = History::new(seed, config);
            for (number, step) in steps.into_iter().enumerate() {
                let done = history.step(step);
                prop_assert!(done.is_ok(), "step {}: {:?}", number, done);
            }
            let checked = history.check();
            prop_assert!(checked.is_ok(), "{:?}", checked);
            history.crash();
            let checked = history.check();
            prop_assert!(checked.is_ok(), "after a crash: {:?}", checked);
        }
    }

    #[test]
    fn of_a_long_run_have_commits_and_refusals() {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        let steps = proptest::collection::vec(step(), 1500).new_tree(&mut runner).expect("steps").current();
        let mut history = History::new(2, quiet());
        for (number, step) in steps.into_iter().enumerate() {
            let done = history.step(step);
            assert!(done.is_ok(), "step {number}: {done:?}");
        }
        history.check().expect("a serializable history");
        assert!(history.commits > 40 && history.refusals > 30, "{} {}", history.commits, history.refusals);
        assert!(history.seen.len() > 100);
    }
}

/// Money moves between accounts, several transfers and audits at once.
mod transfers {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;
    use weir_runtime::join_all;
    use weir_runtime::random::Random;

    const ACCOUNTS: u64 = 40;
    const START: u64 = 1000;

    fn account(number: u64) -> (u64, String) {
        (number % 4, format!("account {number}"))
    }

    fn amount(value: Option<Vec<u8>>) -> u64 {
        value.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("an amount")))
    }

    /// The bytes of an amount: long enough that the accounts fill several index nodes.
    fn bytes(amount: u64) -> Vec<u8> {
        let mut bytes = vec![7; 2000];
        bytes[..8].copy_from_slice(&amount.to_le_bytes());
        bytes
    }

    /// An epoch that no other transaction of this test has.
    struct Epochs(Cell<u64>);

    impl Epochs {
        fn next(&self, wall_ns: u64) -> Epoch {
            self.0.set((self.0.get() + 1).max(wall_ns));
            Epoch(self.0.get())
        }
    }

    /// Moves some money; `Ok(false)`: it has to be tried again.
    async fn transfer(
        shard: &Shard,
        number: u128,
        epoch: Epoch,
        (from, to): (u64, u64),
    ) -> Result<bool, String> {
        let view = shard.view(CONTAINER, epoch).map_err(|error| error.to_string())?;
        let mut amounts = Vec::new();
        for number in [from, to] {
            let (object, dkey) = account(number);
            match read_in(&view, object, &dkey).await {
                Ok(value) => amounts.push(amount(value)),
                Err(FetchError::Undecided { .. }) => return Ok(false),
                Err(error) => return Err(error.to_string()),
            }
        }
        let moved = amounts[0] / 3;
        let values = [bytes(amounts[0] - moved), bytes(amounts[1] + moved)];
        let names = [account(from), account(to)];
        let operations: Vec<Operation<'_>> = names
            .iter()
            .zip(&values)
            .map(|((object, dkey), value)| store_value(*object, dkey, value))
            .collect();
        match shard.prepare(CONTAINER, id(number), epoch, &operations).await {
            Ok(()) => {}
            Err(UpdateError::Undecided { .. } | UpdateError::Restart { .. }) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
        let decided = if number.is_multiple_of(5) {
            shard.abort_transaction(CONTAINER, id(number)).await
        } else {
            shard.commit_transaction(CONTAINER, id(number)).await.map(|_| ())
        };
        decided.map(|()| true).map_err(|error| error.to_string())
    }

    /// The sum of all accounts at an epoch; `None` while something is undecided.
    async fn sum(shard: &Shard, epoch: Epoch) -> Result<Option<u64>, String> {
        let view = shard.view(CONTAINER, epoch).map_err(|error| error.to_string())?;
        let mut sum = 0;
        for number in 0..ACCOUNTS {
            let (object, dkey) = account(number);
            match read_in(&view, object, &dkey).await {
                Ok(value) => sum += amount(value),
                Err(FetchError::Undecided { .. }) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(Some(sum))
    }

    fn run(seed: u64, config: StoreConfig) {
        let machine = Machine::new(seed, 96 << 20);
        let (store, shard) = machine.start(config.clone());
        let handle = machine.handle();
        let epochs = Rc::new(Epochs(Cell::new(handle.wall_ns() + 1_000_000)));
        let user = shard.clone();
        let (clock, first) = (handle.clone(), Rc::clone(&epochs));
        machine.run(async move {
            for number in 0..ACCOUNTS {
                let (object, dkey) = account(number);
                let epoch = first.next(clock.wall_ns());
                plain(&user, object, &dkey, epoch.0, &bytes(START)).await.expect("stored");
            }
        });
        let (done, sums) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
        let workers = (0..6u64).map(|worker| {
            let (shard, handle, epochs) = (shard.clone(), handle.clone(), Rc::clone(&epochs));
            let (done, sums) = (Rc::clone(&done), Rc::clone(&sums));
            async move {
                let random = Random::new(seed ^ (worker << 20));
                for step in 0..40u64 {
                    let epoch = epochs.next(handle.wall_ns());
                    handle.sleep(Duration::from_micros(random.below(300))).await;
                    if worker == 0 {
                        let found = sum(&shard, epoch).await.expect("a healthy store");
                        assert!(found.is_none_or(|sum| sum == ACCOUNTS * START), "{found:?} at {epoch}");
                        sums.set(sums.get() + u64::from(found.is_some()));
                    } else {
                        let from = random.below(ACCOUNTS);
                        let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
                        let number = u128::from(worker * 1000 + step);
                        let moved = transfer(&shard, number, epoch, (from, to)).await;
                        done.set(done.get() + u64::from(moved.expect("a healthy store")));
                    }
                }
            }
        });
        let all: Vec<_> = workers.collect();
        let cut = Duration::from_millis(Random::new(seed).between(5, 400));
        // The power fails somewhere in the middle, or after the end.
        let ended = machine.world.try_block_on(&machine.node, cut, async move {
            join_all(all).await;
        });
        drop((store, shard));
        machine.crash(CrashKeeps::Any);
        let store = machine.open(config);
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}");
        let shard = store.pool(POOL).expect("the pool");
        machine.run(async move {
            for (transaction, _) in shard.undecided(CONTAINER).expect("the container") {
                if transaction.0.as_u128().is_multiple_of(2) {
                    shard.commit_transaction(CONTAINER, transaction).await.expect("committed");
                } else {
                    shard.abort_transaction(CONTAINER, transaction).await.expect("aborted");
                }
            }
            let found = sum(&shard, epochs.next(handle.wall_ns())).await;
            assert_eq!(found, Ok(Some(ACCOUNTS * START)), "seed {seed}");
        });
        if ended.is_ok() {
            assert!(done.get() > 40 && sums.get() > 5, "seed {seed}: {} and {}", done.get(), sums.get());
        }
    }

    #[test]
    fn keep_their_sum_whatever_meets_and_wherever_the_power_fails() {
        for seed in 0..12 {
            run(seed, quiet());
            run(seed, cramped());
        }
    }
}
