//! Random histories: every read is what the transactions that committed, in the order of their epochs, say.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Objects and dkeys of the histories are few, so that transactions meet.
const OBJECTS: u64 = 2;
const DKEYS: u64 = 3;

type Place = (u64, u64);

#[derive(Clone, Debug)]
enum Step {
    /// A transaction begins at an epoch this far behind or ahead of the newest.
    Begin(i64),
    /// A transaction begins at the epoch of another one.
    Join(usize),
    Read(usize, Place),
    List(usize, u64),
    /// Prepares writes of these places: with values, or none to punch.
    Prepare(usize, Vec<(Place, Option<usize>)>),
    PunchObject(usize, u64),
    /// Stores writes of these places, prepared and committed in one step.
    Transact(usize, Vec<(Place, Option<usize>)>),
    Commit(usize),
    Abort(usize),
    Write(Place),
    Look(Place),
    Checkpoint,
    Crash,
    Aggregate,
    Snapshot,
}

fn place() -> impl Strategy<Value = Place> {
    (0..OBJECTS, 0..DKEYS)
}

fn step() -> impl Strategy<Value = Step> {
    let writes = || proptest::collection::vec((place(), proptest::option::weighted(0.8, 1usize..6000)), 1..4);
    prop_oneof![
        6 => (-40i64..40).prop_map(Step::Begin),
        6 => (0usize..8).prop_map(Step::Join),
        10 => (0usize..8, place()).prop_map(|(at, place)| Step::Read(at, place)),
        2 => (0usize..8, 0..OBJECTS).prop_map(|(at, object)| Step::List(at, object)),
        8 => (0usize..8, writes()).prop_map(|(at, writes)| Step::Prepare(at, writes)),
        4 => (0usize..8, writes()).prop_map(|(at, writes)| Step::Transact(at, writes)),
        1 => (0usize..8, 0..OBJECTS).prop_map(|(at, object)| Step::PunchObject(at, object)),
        6 => (0usize..8).prop_map(Step::Commit),
        2 => (0usize..8).prop_map(Step::Abort),
        3 => place().prop_map(Step::Write),
        3 => place().prop_map(Step::Look),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Crash),
        1 => Just(Step::Aggregate),
        1 => Just(Step::Snapshot),
    ]
}

/// What is written at an epoch: values, or `None` where something was punched.
type Writes = BTreeMap<Place, Option<Vec<u8>>>;

fn operations_of(writes: &Writes) -> Vec<Operation<'_>> {
    let mut operations = Vec::new();
    for ((number, dkey), value) in writes {
        operations.push(match value {
            Some(value) => store_value(*number, &dkey_name(*dkey), value),
            None => remove(*number, PunchScope::Dkeys(vec![key(&dkey_name(*dkey))])),
        });
    }
    operations
}

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
    /// All versions: what was written at each epoch, by which transaction; by none under 0.
    committed: BTreeMap<(u64, u128), Writes>,
    /// What was read through views, by epoch and transaction.
    seen: BTreeMap<(u64, u128), Vec<Seen>>,
    epoch: u64,
    /// History before this is gone.
    horizon: u64,
    /// Newest snapshot.
    snapshot: u64,
    /// What was removed before the last restart isn't known any more: views of earlier epochs are refused.
    restarted: u64,
    ids: u128,
    commits: u64,
    refusals: u64,
}

/// Every other history has memory for a few index nodes only.
fn config_of(seed: u64) -> StoreConfig {
    if seed.is_multiple_of(2) { quiet() } else { cramped() }
}

fn dkey_name(dkey: u64) -> String {
    format!("d{dkey}")
}

impl History {
    fn new(seed: u64) -> Self {
        let machine = Machine::new(seed, 32 << 20);
        let (store, shard) = machine.start(config_of(seed));
        let epoch = machine.handle().wall_ns() + 1_000_000;
        Self {
            machine,
            store,
            shard,
            open: Vec::new(),
            committed: BTreeMap::new(),
            seen: BTreeMap::new(),
            epoch,
            horizon: 0,
            snapshot: 0,
            restarted: 0,
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
        let newest =
            self.committed.range(..=(epoch, u128::MAX)).rev().find_map(|(_, writes)| writes.get(&place));
        newest.cloned().flatten()
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
                let taken = self.committed.range((epoch, 0)..=(epoch, u128::MAX)).next().is_some()
                    || epoch <= self.horizon
                    || self.open.iter().any(|open| open.epoch == epoch);
                if self.open.len() < 8 && !taken {
                    self.open.push(Open { id: self.ids, epoch, prepared: None });
                }
            }
            Step::Join(at) => {
                let epoch = self.pick(at).map(|at| self.open[at].epoch);
                let alike = self.open.iter().filter(|open| Some(open.epoch) == epoch).count();
                if let Some(epoch) = epoch.filter(|_| self.open.len() < 8 && alike < 4) {
                    self.ids += 1;
                    self.open.push(Open { id: self.ids, epoch, prepared: None });
                }
            }
            Step::Read(at, place) => self.read(at, place)?,
            Step::List(at, object) => self.list(at, object)?,
            Step::Prepare(at, writes) => {
                let writes = self.values(writes);
                self.prepare(at, writes, None)?;
            }
            Step::Transact(at, writes) => {
                let writes = self.values(writes);
                self.transact(at, writes)?;
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
                let aggregated = self.machine.run(async move { shard.aggregate(CONTAINER, horizon).await });
                aggregated.expect("aggregated");
            }
            Step::Snapshot => {
                self.snapshot = self.next();
                let (shard, epoch) = (self.shard.clone(), Epoch(self.snapshot));
                self.machine.run(async move { shard.add_snapshot(CONTAINER, epoch).await }).expect("taken");
            }
        }
        Ok(())
    }

    fn read(&mut self, at: usize, place: Place) -> Result<(), String> {
        let Some(at) = self.pick(at) else { return Ok(()) };
        if self.open[at].prepared.is_some() {
            return Ok(());
        }
        let (shard, &Open { id: number, epoch, .. }) = (self.shard.clone(), &self.open[at]);
        let found = self.machine.run(async move {
            let view = shard.view(CONTAINER, Epoch(epoch), id(number).reader())?;
            read_in(&view, place.0, &dkey_name(place.1)).await
        });
        match found {
            Ok(value) => self.saw((epoch, number), Seen::Value(place, value)),
            Err(FetchError::Undecided { .. }) if self.held(place) => self.refusals += 1,
            Err(FetchError::Restart { .. }) if epoch < self.restarted => self.refusals += 1,
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn saw(&mut self, by: (u64, u128), seen: Seen) {
        self.seen.entry(by).or_default().push(seen);
    }

    fn list(&mut self, at: usize, number: u64) -> Result<(), String> {
        let Some(at) = self.pick(at) else { return Ok(()) };
        if self.open[at].prepared.is_some() {
            return Ok(());
        }
        let (shard, &Open { id: reader, epoch, .. }) = (self.shard.clone(), &self.open[at]);
        let found = self.machine.run(async move {
            let view = shard.view(CONTAINER, Epoch(epoch), id(reader).reader())?;
            view.list(object(number), &ListScope::Dkeys, b"", 99, None).await
        });
        match found {
            Ok(page) => self.saw((epoch, reader), Seen::Count(number, page.entries.len())),
            Err(FetchError::Undecided { .. }) => self.refusals += 1,
            Err(FetchError::Restart { .. }) if epoch < self.restarted => self.refusals += 1,
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn values(&self, writes: Vec<(Place, Option<usize>)>) -> Writes {
        let value = |place: Place, len| pattern(self.epoch ^ (place.0 << 8) ^ place.1, len);
        writes.into_iter().map(|(place, len)| (place, len.map(|len| value(place, len)))).collect()
    }

    fn transact(&mut self, at: usize, writes: Writes) -> Result<(), String> {
        let Some(at) = self.pick(at) else { return Ok(()) };
        if self.open[at].prepared.is_some() {
            return Ok(());
        }
        let Open { id: number, epoch, .. } = self.open.remove(at);
        let (shard, mine) = (self.shard.clone(), writes.clone());
        let done = self.machine.run(async move {
            let operations = operations_of(&mine);
            let done = shard.transact(CONTAINER, id(number), Epoch(epoch), &operations).await?;
            // A client whose answer was lost asks again.
            let again = shard.transact(CONTAINER, id(number), Epoch(epoch), &operations).await?;
            assert_eq!(done, again);
            Ok::<_, UpdateError>(done)
        });
        match done {
            Ok(_) if epoch <= self.snapshot => return Err(format!("{epoch} changes a snapshot")),
            Ok(_) => {
                self.commits += 1;
                self.committed.insert((epoch, number), writes);
            }
            Err(UpdateError::Restart { .. } | UpdateError::Undecided { .. }) => self.refusals += 1,
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
                None => operations_of(&mine),
            };
            shard.prepare(CONTAINER, id(id_of), Epoch(epoch), &operations).await
        });
        match prepared {
            Ok(()) if epoch <= self.snapshot => return Err(format!("{epoch} changes a snapshot")),
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
            self.committed.insert((epoch, number), writes);
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
            Ok(_) => drop(self.committed.insert((epoch, 0), Writes::from([(place, Some(value))]))),
            Err(UpdateError::Restart { .. } | UpdateError::Undecided { .. }) => self.refusals += 1,
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn crash(&mut self) {
        self.machine.crash(CrashKeeps::Any);
        self.store = self.machine.open(config_of(self.machine.world.seed()));
        self.shard = self.store.pool(POOL).expect("the pool");
        let newest = self.committed.keys().next_back().map_or(0, |(epoch, _)| *epoch);
        self.restarted = newest.max(self.machine.handle().wall_ns()) + 1;
        // Coordinators of transactions that weren't prepared have lost them.
        self.open.retain(|open| open.prepared.is_some());
        let mut expected: Vec<_> = self.open.iter().map(|open| (id(open.id), Epoch(open.epoch))).collect();
        expected.sort_by_key(|(id, epoch)| (*epoch, *id));
        let shard = self.shard.clone();
        let undecided = self.machine.run(async move { shard.undecided(CONTAINER).await });
        assert_eq!(undecided, Ok(expected));
    }

    /// The transactions of an epoch that have read or written.
    fn of_epoch(&self, epoch: u64) -> BTreeSet<u128> {
        let all = (epoch, 0)..=(epoch, u128::MAX);
        let (wrote, read) = (self.committed.range(all.clone()), self.seen.range(all));
        wrote.map(|((_, id), _)| *id).chain(read.map(|((_, id), _)| *id)).collect()
    }

    /// How many epochs several transactions had that read or wrote something.
    fn shared(&self) -> usize {
        let epochs: BTreeSet<u64> = self.seen.keys().map(|(epoch, _)| *epoch).collect();
        epochs.into_iter().filter(|epoch| self.of_epoch(*epoch).len() > 1).count()
    }

    /// Whether these transactions of one epoch have an order in which each reads what those before it have written, on top of
    /// `state`.
    fn is_serial(&self, epoch: u64, left: &BTreeSet<u128>, state: &Writes) -> bool {
        let fits = |id: &u128| {
            self.seen.get(&(epoch, *id)).into_iter().flatten().all(|seen| match seen {
                Seen::Value(place, value) => state.get(place).cloned().flatten() == *value,
                Seen::Count(object, count) => {
                    let is_there = |dkey| state.get(&(*object, dkey)).is_some_and(Option::is_some);
                    (0..DKEYS).filter(|dkey| is_there(*dkey)).count() == *count
                }
            })
        };
        left.is_empty()
            || left.iter().filter(|id| fits(id)).any(|id| {
                let (mut left, mut state) = (left.clone(), state.clone());
                left.remove(id);
                state.extend(self.committed.get(&(epoch, *id)).cloned().unwrap_or_default());
                self.is_serial(epoch, &left, &state)
            })
    }

    /// Every read is what the history of those who committed says, in the order of their epochs, and of some order where they
    /// have the same one.
    fn check(&self) -> Result<(), String> {
        let epochs: BTreeSet<u64> = self.seen.keys().map(|(epoch, _)| *epoch).collect();
        for epoch in epochs {
            let places = (0..OBJECTS).flat_map(|object| (0..DKEYS).map(move |dkey| (object, dkey)));
            let before = places.map(|place| (place, self.model(place, epoch - 1))).collect();
            if !self.is_serial(epoch, &self.of_epoch(epoch), &before) {
                return Err(format!("at {epoch}: not what the history says"));
            }
        }
        let epochs = self.committed.keys().flat_map(|(epoch, _)| [epoch - 1, *epoch]).chain([MAX]);
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
        let mut history = History::new(seed);
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
    let steps = proptest::collection::vec(step(), 2000).new_tree(&mut runner).expect("steps").current();
    let mut history = History::new(2);
    for (number, step) in steps.into_iter().enumerate() {
        let done = history.step(step);
        assert!(done.is_ok(), "step {number}: {done:?}");
    }
    history.check().expect("a serializable history");
    assert!(history.commits > 40 && history.refusals > 30, "{} {}", history.commits, history.refusals);
    assert!(history.seen.values().map(Vec::len).sum::<usize>() > 100);
    assert!(history.shared() > 10, "{} epochs of several transactions", history.shared());
}
