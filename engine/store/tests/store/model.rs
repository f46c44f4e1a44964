//! A model of an object: its changes by epoch, replayed onto plain maps for each question.

use crate::setup::*;
use std::collections::BTreeMap;
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, ListScope, PunchScope, Value};
use weir_proto::{Epoch, Key};
use weir_store::{Data, FetchError, Shard, UpdateError};

/// Dkeys and akeys of the model are few, so that changes meet each other. Akeys below [`SINGLES`] hold single
/// values, the others arrays of bytes.
pub const DKEYS: u8 = 4;
pub const AKEYS: u8 = 4;
const SINGLES: u8 = 2;
/// Bytes of arrays that are looked at.
const WINDOW: u64 = 12_000;

#[derive(Clone, Debug)]
pub enum Change {
    Put { dkey: u8, akey: u8, len: usize },
    Write { dkey: u8, akey: u8, index: u64, len: usize },
    Hole { dkey: u8, akey: u8, index: u64, count: u64 },
    PunchAkey { dkey: u8, akey: u8 },
    PunchDkey { dkey: u8 },
    PunchObject,
}

fn dkey_name(dkey: u8) -> String {
    format!("d{dkey}")
}

fn akey_name(akey: u8) -> String {
    format!("a{akey}")
}

impl Change {
    fn data(&self, epoch: u64) -> Vec<u8> {
        match self {
            Self::Put { len, .. } | Self::Write { len, .. } => pattern(epoch, *len),
            _ => Vec::new(),
        }
    }

    /// Does it to a store that is no leader's, as its leader has done it.
    pub async fn follow(&self, shard: &Shard, epoch: u64) -> Result<Epoch, UpdateError> {
        let (data, chosen) = (self.data(epoch), (Epoch(epoch), &(|| true) as &dyn Fn() -> bool));
        let along = |_| Vec::new();
        match self.asked(&data) {
            Asked::Update(dkey, update) => {
                let update = [summed_at(epoch, update, &data)];
                let data = Data::Borrowed(&data);
                shard.update_as_replica(CONTAINER, OBJECT, &dkey, chosen, &update, data, &along).await
            }
            Asked::Punch(scope) => shard.punch_as_replica(CONTAINER, OBJECT, &scope, chosen, &along).await,
        }
    }

    /// Whether it removes.
    pub const fn is_punch(&self) -> bool {
        matches!(self, Self::PunchAkey { .. } | Self::PunchDkey { .. } | Self::PunchObject)
    }

    /// Does it to the store.
    pub async fn apply(&self, shard: &Shard, epoch: u64) -> Result<Epoch, UpdateError> {
        let data = self.data(epoch);
        match self.asked(&data) {
            Asked::Punch(scope) => punch(shard, OBJECT, scope, epoch).await,
            Asked::Update(dkey, update) => {
                let update = [summed_at(epoch, update, &data)];
                let (none, data) = (Conditions::NONE, Data::Borrowed(&data));
                shard.update(CONTAINER, OBJECT, &dkey, Epoch(epoch), none, &update, data).await
            }
        }
    }

    /// What the store is asked for.
    fn asked(&self, data: &[u8]) -> Asked {
        let (dkey, update) = match self {
            Self::Put { dkey, akey, .. } => (dkey, single(&akey_name(*akey), data)),
            Self::Write { dkey, akey, index, len } => {
                (dkey, array(&akey_name(*akey), 1, &[(*index, *len as u64)]))
            }
            Self::Hole { dkey, akey, index, count } => {
                (dkey, array(&akey_name(*akey), 0, &[(*index, *count)]))
            }
            Self::PunchAkey { dkey, akey } => {
                let akeys = vec![key(&akey_name(*akey))];
                return Asked::Punch(PunchScope::Akeys(key(&dkey_name(*dkey)), akeys));
            }
            Self::PunchDkey { dkey } => return Asked::Punch(PunchScope::Dkeys(vec![key(&dkey_name(*dkey))])),
            Self::PunchObject => return Asked::Punch(PunchScope::Object),
        };
        Asked::Update(key(&dkey_name(*dkey)), update)
    }
}

/// What a store is asked for.
enum Asked {
    Update(Key, AkeyUpdate),
    Punch(PunchScope),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Single(Vec<u8>),
    Array(BTreeMap<u64, u8>),
}

/// Dkeys with their akeys.
type State = BTreeMap<u8, BTreeMap<u8, Held>>;

/// All changes by epoch.
#[derive(Clone, Debug, Default)]
pub struct Model {
    changes: BTreeMap<u64, Change>,
}

impl Model {
    pub fn add(&mut self, epoch: u64, change: Change) {
        self.changes.insert(epoch, change);
    }

    pub fn remove(&mut self, epoch: u64) {
        self.changes.remove(&epoch);
    }

    pub fn epochs(&self) -> Vec<u64> {
        self.changes.keys().copied().collect()
    }

    fn at(&self, epoch: u64) -> State {
        let mut state = State::new();
        for (at, change) in self.changes.range(..=epoch) {
            let mut array = |dkey: &u8, akey: &u8, change: &mut dyn FnMut(&mut BTreeMap<u64, u8>)| {
                let held =
                    state.entry(*dkey).or_default().entry(*akey).or_insert(Held::Array(BTreeMap::new()));
                if let Held::Array(bytes) = held {
                    change(bytes);
                }
            };
            match change {
                Change::Put { dkey, akey, .. } => {
                    state.entry(*dkey).or_default().insert(*akey, Held::Single(change.data(*at)));
                }
                Change::Write { dkey, akey, index, .. } => {
                    array(dkey, akey, &mut |bytes| bytes.extend((*index..).zip(change.data(*at))));
                }
                Change::Hole { dkey, akey, index, count } => {
                    array(dkey, akey, &mut |bytes| {
                        bytes.retain(|at, _| *at < *index || *at >= index + count);
                    });
                }
                Change::PunchAkey { dkey, akey } => {
                    state.get_mut(dkey).map(|akeys| akeys.remove(akey));
                }
                Change::PunchDkey { dkey } => drop(state.remove(dkey)),
                Change::PunchObject => state.clear(),
            }
        }
        state
    }

    /// Compares everything the store shows at an epoch. `Err` says what differs.
    pub async fn check(&self, shard: &Shard, epoch: u64) -> Result<(), String> {
        let state = self.at(epoch);
        for dkey in 0..DKEYS {
            for akey in 0..AKEYS {
                let held = state.get(&dkey).and_then(|akeys| akeys.get(&akey));
                let found = observe(shard, dkey, akey, epoch).await.map_err(|error| error.to_string())?;
                let expected = match held {
                    Some(Held::Single(bytes)) => Seen { bytes: bytes.clone(), real: bytes.len() as u64 },
                    Some(Held::Array(bytes)) => Seen::of_array(bytes),
                    None => Seen::default(),
                };
                if found != expected {
                    let (found, expected) = (found.real, expected.real);
                    return Err(format!(
                        "d{dkey} a{akey} at {epoch}: {found} bytes for {expected}, or others"
                    ));
                }
            }
            let akeys: Vec<String> =
                state.get(&dkey).into_iter().flat_map(BTreeMap::keys).map(|akey| akey_name(*akey)).collect();
            let listed = list(shard, ListScope::Akeys(key(&dkey_name(dkey))), epoch).await?;
            if listed != akeys {
                return Err(format!("akeys of d{dkey} at {epoch}: {listed:?}"));
            }
        }
        let listed = list(shard, ListScope::Dkeys, epoch).await?;
        let expected: Vec<String> = state.keys().map(|dkey| dkey_name(*dkey)).collect();
        if listed != expected {
            return Err(format!("dkeys at {epoch}: {listed:?} for {expected:?}"));
        }
        Ok(())
    }
}

/// What a reader sees of an akey: trailing holes don't count.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    real: u64,
}

impl Seen {
    fn of_array(bytes: &BTreeMap<u64, u8>) -> Self {
        let len = bytes.last_key_value().map_or(0, |(last, _)| last + 1);
        let mut all = vec![0; len as usize];
        for (at, byte) in bytes {
            all[*at as usize] = *byte;
        }
        Self { bytes: all, real: bytes.len() as u64 }
    }
}

async fn observe(shard: &Shard, dkey: u8, akey: u8, epoch: u64) -> Result<Seen, FetchError> {
    let value = if akey < SINGLES {
        Value::Single { size: u64::MAX }
    } else {
        Value::Array { record_size: 1, extents: vec![Extent { index: 0, count: WINDOW }] }
    };
    let wanted = [AkeyFetch { akey: key(&akey_name(akey)), value, conditions: Conditions::NONE }];
    let dkey = key(&dkey_name(dkey));
    let fetch = shard.fetch(CONTAINER, OBJECT, &dkey, Epoch(epoch), Conditions::NONE, &wanted).await?;
    let found = fetch.akeys()[0].fetched.clone();
    let mut bytes = data_of(fetch).await?;
    if akey < SINGLES {
        return Ok(Seen { bytes, real: found.size });
    }
    bytes.truncate(found.present.last().map_or(0, |last| last.end()) as usize);
    Ok(Seen { bytes, real: found.present.iter().map(|extent| extent.count).sum() })
}

async fn list(shard: &Shard, scope: ListScope, epoch: u64) -> Result<Vec<String>, String> {
    let (mut found, mut anchor) = (Vec::new(), Vec::new());
    loop {
        let page = shard.list(CONTAINER, OBJECT, &scope, Epoch(epoch), &anchor, 3, None).await;
        let page = page.map_err(|error| error.to_string())?;
        found.extend(page.entries.into_iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()));
        match page.next {
            Some(next) => anchor = next,
            None => return Ok(found),
        }
    }
}

pub mod properties {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::rc::Rc;
    use weir_media::sim::CrashKeeps;
    use weir_proto::ObjectId;
    use weir_store::{Store, StoreConfig};

    #[derive(Clone, Debug)]
    enum Step {
        Change(Change),
        Checkpoint,
        Crash,
        Close,
        /// Keeps the present state.
        Snapshot,
        /// Gives up the oldest snapshot.
        Forget,
        /// Aggregates up to this many changes ago.
        Aggregate(u64),
    }

    /// Any change.
    pub fn change() -> impl Strategy<Value = Change> {
        let (dkey, singles, arrays) = (0..DKEYS, 0..SINGLES, SINGLES..AKEYS);
        let len = prop_oneof![4 => 1usize..200, 1 => 4000usize..9000];
        let index = prop_oneof![0u64..3000, Just(0), Just(1000)];
        let place = (dkey.clone(), arrays.clone(), index);
        prop_oneof![
            4 => (dkey.clone(), singles, len.clone()).prop_map(|(dkey, akey, len)| Change::Put { dkey, akey, len }),
            6 => (place.clone(), len).prop_map(|((dkey, akey, index), len)| Change::Write { dkey, akey, index, len }),
            2 => (place, 1u64..5000).prop_map(|((dkey, akey, index), count)| Change::Hole { dkey, akey, index, count }),
            1 => (dkey.clone(), 0..AKEYS).prop_map(|(dkey, akey)| Change::PunchAkey { dkey, akey }),
            1 => dkey.prop_map(|dkey| Change::PunchDkey { dkey }),
            1 => Just(Change::PunchObject),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            30 => change().prop_map(Step::Change),
            1 => Just(Step::Checkpoint),
            1 => Just(Step::Crash),
            1 => Just(Step::Close),
            2 => Just(Step::Snapshot),
            1 => Just(Step::Forget),
            2 => (0u64..20).prop_map(Step::Aggregate),
        ]
    }

    struct Run {
        config: fn() -> StoreConfig,
        machine: Machine,
        store: Rc<Store>,
        shard: Shard,
        model: Model,
        snapshots: BTreeSet<u64>,
        /// History before this is gone, but for the snapshots.
        horizon: u64,
        epoch: u64,
    }

    impl Run {
        fn reopen(&mut self) {
            self.store = self.machine.open((self.config)());
            self.shard = self.store.pool(POOL).expect("the pool");
        }

        fn set_snapshots(&mut self) {
            let (shard, epochs) =
                (self.shard.clone(), self.snapshots.iter().copied().map(Epoch).collect::<Vec<_>>());
            self.machine.run(async move { shard.set_snapshots(CONTAINER, &epochs).await }).expect("stored");
        }

        fn step(&mut self, step: Step) {
            let (shard, store) = (self.shard.clone(), Rc::clone(&self.store));
            match step {
                Step::Change(change) => {
                    self.epoch += 1;
                    let epoch = self.epoch;
                    self.model.add(epoch, change.clone());
                    self.machine.run(async move { change.apply(&shard, epoch).await }).expect("stored");
                }
                Step::Checkpoint => {
                    self.machine.run(async move { store.checkpoint().await }).expect("a checkpoint");
                }
                Step::Crash => {
                    drop((shard, store));
                    self.machine.crash(CrashKeeps::Any);
                    self.reopen();
                }
                Step::Close => {
                    self.machine.run(async move { store.close().await }).expect("closed");
                    self.reopen();
                }
                Step::Snapshot => {
                    self.snapshots.insert(self.epoch);
                    self.set_snapshots();
                }
                Step::Forget => {
                    self.snapshots.pop_first();
                    self.set_snapshots();
                }
                Step::Aggregate(ago) => {
                    self.horizon = self.horizon.max(self.epoch.saturating_sub(ago));
                    let horizon = Epoch(self.horizon);
                    self.machine
                        .run(async move { shard.aggregate(CONTAINER, horizon).await })
                        .expect("aggregated");
                }
            }
        }

        fn check(&self) -> Result<(), String> {
            if let Some(problem) = self.machine.audit(&self.store).problems.first() {
                return Err(problem.clone());
            }
            let recent = [self.horizon, self.epoch.saturating_sub(3), self.epoch, u64::MAX];
            let epochs = recent.into_iter().filter(|epoch| *epoch >= self.horizon);
            // Snapshots of the time before the horizon were kept only if they were made before it.
            for epoch in epochs.chain(self.snapshots.iter().copied()) {
                let (shard, model) = (self.shard.clone(), self.model.clone());
                self.machine.run(async move { model.check(&shard, epoch).await })?;
            }
            Ok(())
        }
    }

    /// Objects beside the one that changes, so that the index has many nodes.
    async fn surround(shard: &Shard) {
        for (number, lo) in (0..40u64).flat_map(|number| [(number, 6), (number, 9)]) {
            let (object, dkey) = (ObjectId { hi: 0, lo }, Key::from_u64(number));
            let (value, none) = (pattern(number, 2000), Conditions::NONE);
            let update = [single("around", &value)];
            shard
                .update(CONTAINER, object, &dkey, Epoch(1), none, &update, Data::Borrowed(&value))
                .await
                .expect("stored");
        }
    }

    fn behaves_like_the_model(
        seed: u64,
        config: fn() -> StoreConfig,
        steps: Vec<Step>,
    ) -> Result<(), String> {
        let machine = Machine::new(seed, 24 << 20);
        let (store, shard) = machine.start(config());
        if config().index_bytes < StoreConfig::default().index_bytes {
            let around = shard.clone();
            machine.run(async move { surround(&around).await });
        }
        let (model, snapshots) = (Model::default(), BTreeSet::new());
        let mut run = Run { config, machine, store, shard, model, snapshots, horizon: 0, epoch: 1 };
        for (number, step) in steps.into_iter().enumerate() {
            let checks = !matches!(step, Step::Change(_)) || number % 10 == 0;
            run.step(step);
            if checks {
                run.check().map_err(|problem| format!("after step {number}: {problem}"))?;
            }
        }
        run.step(Step::Crash);
        run.check().map_err(|problem| format!("at the end: {problem}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, ..ProptestConfig::default() })]

        #[test]
        fn the_store_behaves_like_the_model(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..120)) {
            let behaves = behaves_like_the_model(seed, quiet, steps);
            prop_assert!(behaves.is_ok(), "{:?}", behaves);
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 500, ..ProptestConfig::default() })]

        #[test]
        fn the_store_behaves_like_the_model_with_memory_for_a_few_nodes(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..120)) {
            let behaves = behaves_like_the_model(seed, cramped, steps);
            prop_assert!(behaves.is_ok(), "{:?}", behaves);
        }
    }
}
