//! Transactions over objects with replicas: serializable in the order of their epochs, whoever is lost at whatever moment, and
//! what was acknowledged is there.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use weir_client::{
    AkeyRead, AkeyWrite, Conditions, Container, Context, Der, Epoch, Error, Key, Object, ObjectClass,
    Transaction, kind,
};

use weir_object::PlantedBug;

use crate::cluster::{Cluster, Shape};
use crate::replicas;
use crate::snapshots::service_rank;
use crate::workload::make_container;

pub const SHAPE: Shape = Shape { engines: 3, targets: 2, clients: 3 };

/// Keys that all clients share, some in each of the objects.
const KEYS: u64 = 8;

/// The first keys are written by transactions alone.
const PLAIN_FROM: u64 = 6;

/// Transactions and other changes of one client.
const OPERATIONS: u64 = 30;

/// Longest pause between two of them.
const PAUSE_MAX_US: u64 = 6_000;

/// Longest time until the snapshot is taken.
const SNAPSHOT_MAX_US: u64 = 62_500;

/// How long a client tries: longer than an engine is missed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Something that was done, at one epoch.
#[derive(Clone, Debug)]
struct Done {
    /// `None`: a change outside of transactions whose answer is unknown.
    epoch: Option<Epoch>,
    /// What it read before its own changes.
    reads: Vec<(u64, Option<u64>)>,
    /// Values are unique.
    writes: Vec<(u64, Option<u64>)>,
    is_answered: bool,
}

/// All that was done.
#[derive(Default, Debug)]
pub struct Ledger(Vec<Done>);

impl Ledger {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What contradicts the order of the epochs, if anything.
    pub fn contradiction(&self) -> Option<String> {
        let seen: BTreeSet<u64> =
            self.0.iter().flat_map(|done| &done.reads).filter_map(|(_, value)| *value).collect();
        let is_seen = |done: &Done| {
            done.writes.iter().filter_map(|(_, value)| *value).any(|value| seen.contains(&value))
        };
        let mut open: BTreeMap<u64, u64> = BTreeMap::new();
        for done in self.0.iter().filter(|done| done.epoch.is_none()) {
            open.extend(done.writes.iter().filter_map(|(key, value)| Some(((*value)?, *key))));
        }
        let mut all: Vec<&Done> = self
            .0
            .iter()
            .filter(|done| done.epoch.is_some() && (done.is_answered || is_seen(done)))
            .collect();
        all.sort_by_key(|done| (done.epoch, !done.writes.is_empty()));
        let mut state: BTreeMap<u64, u64> = BTreeMap::new();
        for done in all {
            for (key, value) in &done.reads {
                // One without an answer may have happened at any time before it was seen.
                if let Some(value) = value.filter(|value| open.get(value) == Some(key)) {
                    open.remove(&value);
                    state.insert(*key, value);
                }
                if state.get(key) != value.as_ref() {
                    return Some(format!(
                        "key {key} held {:?}, and {done:x?} has read {value:?}",
                        state.get(key)
                    ));
                }
            }
            for (key, value) in &done.writes {
                match value {
                    Some(value) => state.insert(*key, *value),
                    None => state.remove(key),
                };
            }
        }
        None
    }

    pub fn check(&self, seed: u64) {
        if let Some(contradiction) = self.contradiction() {
            panic!("seed {seed}: {contradiction}; all: {:#x?}", self.0);
        }
    }
}

/// The objects, and where a key is.
#[derive(Clone)]
struct Keys {
    container: Container,
    objects: Vec<Object>,
}

fn akey() -> Key {
    Key::new(b"v").expect("short")
}

impl Keys {
    async fn make(context: &Context, classes: &[&str]) -> Self {
        let container = make_container(context, "tank", "box", 0).await.expect("no faults yet");
        let mut objects = Vec::new();
        for class in classes {
            let class: ObjectClass = class.parse().expect("a registered name");
            let oid = container.new_object_id(context, kind::MULTI_HASHED, None).await;
            let oid = class.encode(oid.expect("no faults yet"), kind::MULTI_HASHED);
            objects.push(Object::open_unchecked(&container, oid));
        }
        Self { container, objects }
    }

    fn of(&self, key: u64) -> (&Object, Key) {
        let number = usize::try_from(key).expect("small") % self.objects.len();
        (&self.objects[number], Key::from_u64(key))
    }

    async fn read(
        &self,
        context: &Context,
        key: u64,
        view: &dyn Fn(&Object) -> Object,
    ) -> Result<Option<u64>, Error> {
        let (object, dkey) = self.of(key);
        let mut bytes = [0; 8];
        let mut reads = [AkeyRead::single(akey(), &mut bytes)];
        let found = view(object).fetch(context, &dkey, Conditions::NONE, &mut reads).await?;
        Ok((found[0].size == 8).then(|| u64::from_le_bytes(bytes)))
    }

    /// Reads some keys in a transaction, and writes some of them.
    async fn transact(
        &self,
        context: &Context,
        (read, written): (&[u64], usize),
        value: u64,
    ) -> Option<Done> {
        let mut transaction = Transaction::begin(context, &self.container);
        let epoch = Some(transaction.epoch());
        let mut reads = Vec::new();
        for key in read {
            match self.read(context, *key, &|object| transaction.view(object)).await {
                Ok(found) => reads.push((*key, found)),
                Err(error) => {
                    assert_passing(&error);
                    return None;
                }
            }
        }
        let mut writes = Vec::new();
        for (at, key) in read[..written].iter().enumerate() {
            let ((object, dkey), is_first) = (self.of(*key), at == 0);
            let value = value << 8 | at as u64;
            // The first one is always written, so that whoever reads it next tells whether all of it has happened.
            if !is_first && value.is_multiple_of(5) {
                transaction.punch_dkeys(object, Conditions::NONE, &[dkey]).expect("well formed");
                writes.push((*key, None));
            } else {
                let conditions = match reads[at].1 {
                    Some(_) => Conditions::DKEY_UPDATE,
                    None => Conditions::DKEY_INSERT,
                };
                let bytes = value.to_le_bytes();
                let akeys = [AkeyWrite::single(akey(), &bytes)];
                transaction.update(object, &dkey, conditions, &akeys).expect("well formed");
                writes.push((*key, Some(value)));
            }
        }
        let is_answered = match transaction.commit(context).await {
            Ok(_) => true,
            // What it had read has changed; nothing of it has happened.
            Err(error) if [Der::TX_RESTART, Der::EXIST, Der::NONEXIST].contains(&error.der()) => return None,
            Err(error) => {
                assert_passing(&error);
                false
            }
        };
        Some(Done { epoch, reads, writes, is_answered })
    }

    async fn put(&self, context: &Context, key: u64, value: u64) -> Done {
        let ((object, dkey), value) = (self.of(key), value << 8);
        let bytes = value.to_le_bytes();
        let akeys = [AkeyWrite::single(akey(), &bytes)];
        let epoch = match object.update(context, &dkey, Conditions::NONE, &akeys).await {
            Ok(epoch) => Some(epoch),
            Err(error) => {
                assert_passing(&error);
                None
            }
        };
        Done { epoch, reads: Vec::new(), writes: vec![(key, Some(value))], is_answered: epoch.is_some() }
    }
}

fn assert_passing(error: &Error) {
    let passing = [
        Der::TX_RESTART,
        Der::TIMEDOUT,
        Der::UNREACH,
        Der::AGAIN,
        Der::HLC_SYNC,
        Der::TX_UNCERTAIN,
        Der::INPROGRESS,
    ];
    assert!(passing.contains(&error.der()), "an unexpected error: {error} {error:?}");
}

/// Clients at work.
pub struct Run {
    keys: Keys,
    ledger: Rc<RefCell<Ledger>>,
    left: Rc<Cell<usize>>,
}

/// Has every client work on objects of these classes.
pub fn start(cluster: &Cluster, classes: &'static [&'static str]) -> Run {
    start_with_pauses(cluster, classes, PAUSE_MAX_US)
}

/// The same with pauses of up to so long between two transactions of a client.
pub fn start_with_pauses(cluster: &Cluster, classes: &'static [&'static str], pause_max_us: u64) -> Run {
    let context = cluster.context(cluster.admin(), Duration::from_secs(10));
    let keys = cluster.world.block_on(cluster.admin(), async move { Keys::make(&context, classes).await });
    let run = Run { keys, ledger: Rc::default(), left: Rc::new(Cell::new(cluster.clients.len() + 1)) };
    for (client, node) in (0..).zip(cluster.clients.iter()) {
        let context = cluster.context(node, PATIENCE);
        let (keys, ledger, left) = (run.keys.clone(), Rc::clone(&run.ledger), Rc::clone(&run.left));
        node.handle().spawn(async move {
            work(&context, &keys, (client, pause_max_us), &ledger).await;
            left.set(left.get() - 1);
        });
    }
    let context = cluster.context(cluster.admin(), PATIENCE);
    let (keys, ledger, left) = (run.keys.clone(), Rc::clone(&run.ledger), Rc::clone(&run.left));
    cluster.admin().handle().spawn(async move {
        look_back(&context, &keys, &ledger).await;
        left.set(left.get() - 1);
    });
    run
}

async fn work(context: &Context, keys: &Keys, (client, pause_max_us): (u64, u64), ledger: &RefCell<Ledger>) {
    let rt = context.runtime();
    for number in 0..OPERATIONS {
        rt.sleep(Duration::from_micros(rt.random_u64() % pause_max_us)).await;
        let value = (client + 1) << 16 | number;
        let mut chosen: Vec<u64> = (0..KEYS).collect();
        for at in 0..chosen.len() {
            let left = (chosen.len() - at) as u64;
            let other = at + usize::try_from(rt.random_u64() % left).expect("small");
            chosen.swap(at, other);
        }
        let done = match rt.random_u64() % 8 {
            0 => keys.transact(context, (&chosen, 0), value).await,
            1 => Some(keys.put(context, PLAIN_FROM + value % (KEYS - PLAIN_FROM), value).await),
            2..=3 => keys.transact(context, (&chosen[..1], 1), value).await,
            _ => keys.transact(context, (&chosen[..3], 2), value).await,
        };
        ledger.borrow_mut().0.extend(done);
    }
}

/// Takes a snapshot while others work, and reads it again and again.
async fn look_back(context: &Context, keys: &Keys, ledger: &RefCell<Ledger>) {
    let rt = context.runtime();
    rt.sleep(Duration::from_micros(rt.random_u64() % SNAPSHOT_MAX_US)).await;
    let Ok(epoch) = keys.container.create_snapshot(context).await else { return };
    for _ in 0..40 {
        let mut reads = Vec::new();
        for key in 0..PLAIN_FROM {
            match keys.read(context, key, &|object| object.at(epoch)).await {
                Ok(found) => reads.push((key, found)),
                Err(error) => assert_passing(&error),
            }
        }
        let done = Done { epoch: Some(epoch), reads, writes: Vec::new(), is_answered: true };
        ledger.borrow_mut().0.push(done);
        rt.sleep(Duration::from_micros(rt.random_u64() % PAUSE_MAX_US)).await;
    }
}

impl Run {
    /// Waits for the clients, reads every key once more, and returns what was done.
    pub fn finish(self, cluster: &Cluster) -> Ledger {
        let seed = cluster.world.seed();
        for _ in 0..1_000 {
            if self.left.get() == 0 {
                break;
            }
            cluster.world.run_for(Duration::from_millis(500));
        }
        assert_eq!(self.left.get(), 0, "seed {seed}: clients hang");
        let context = cluster.context(cluster.admin(), PATIENCE);
        let (keys, ledger) = (self.keys, Rc::clone(&self.ledger));
        cluster.world.block_on(cluster.admin(), async move {
            // Longer than clocks differ: the last transaction comes behind all others.
            context.runtime().sleep(Duration::from_secs(2)).await;
            let all: Vec<u64> = (0..KEYS).collect();
            let mut last = None;
            for _ in 0..50 {
                last = keys.transact(&context, (&all, 0), 0).await;
                if last.is_some() {
                    break;
                }
                context.runtime().sleep(Duration::from_millis(200)).await;
            }
            let last = last.unwrap_or_else(|| panic!("seed {seed}: nobody can read any more"));
            for (key, value) in &last.reads {
                let found = keys.read(&context, *key, &Object::clone).await.expect("engines serve");
                assert_eq!(found, *value, "seed {seed}: key {key} outside of transactions");
            }
            ledger.borrow_mut().0.push(last);
        });
        self.ledger.take()
    }
}

/// An engine other than the service's is lost for good, at any moment.
pub fn lose_an_engine(cluster: &Cluster) -> Ledger {
    let service = service_rank(cluster, "tank");
    replicas::disturb(cluster, 4);
    let run = start(cluster, &["RP_2G1", "RP_2G2", "RP_2G1"]);
    replicas::lose_while_running(cluster, service);
    run.finish(cluster)
}

/// Whether the order of the epochs shows that each target has a fault.
pub fn shows(cluster: &Cluster, bug: PlantedBug) -> bool {
    replicas::plant(cluster, bug);
    let run = start(cluster, &["RP_2G1", "RP_2G2", "RP_2G1"]);
    run.finish(cluster).contradiction().is_some()
}

/// Objects without replicas take part with others.
pub fn mix_classes(cluster: &Cluster) -> Ledger {
    let run = start(cluster, &["RP_2G1", "S1", "RP_2G2", "S2"]);
    run.finish(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(
        epoch: u64,
        reads: &[(u64, Option<u64>)],
        writes: &[(u64, Option<u64>)],
        is_answered: bool,
    ) -> Done {
        Done { epoch: Some(Epoch(epoch)), reads: reads.to_vec(), writes: writes.to_vec(), is_answered }
    }

    #[test]
    fn what_is_lost_or_half_done_is_noticed() {
        let write = done(1, &[], &[(0, Some(5)), (1, Some(6))], true);
        let unknown = Done { is_answered: false, ..write.clone() };
        let whole = done(2, &[(0, Some(5)), (1, Some(6))], &[], true);
        let half = done(2, &[(0, Some(5)), (1, None)], &[], true);
        let none = done(2, &[(0, None), (1, None)], &[], true);
        let is_sound = |all: &[&Done]| {
            Ledger(all.iter().map(|done| (*done).clone()).collect()).contradiction().is_none()
        };
        assert!(is_sound(&[&write, &whole]) && is_sound(&[&unknown, &whole]) && is_sound(&[&unknown, &none]));
        assert!(!is_sound(&[&write, &half]) && !is_sound(&[&write, &none]) && !is_sound(&[&unknown, &half]));
    }

    #[test]
    fn who_writes_what_was_read_at_a_later_epoch_is_noticed() {
        let early = done(1, &[(0, None)], &[(0, Some(5))], true);
        let late = done(3, &[(0, None)], &[(1, Some(6))], true);
        assert!(Ledger(vec![early.clone(), late]).contradiction().is_some());
        let open = Done { epoch: None, is_answered: false, ..done(0, &[], &[(0, Some(9))], false) };
        let sees = done(4, &[(0, Some(9))], &[], true);
        assert!(Ledger(vec![early.clone(), open.clone(), sees.clone()]).contradiction().is_none());
        let again = done(5, &[(0, Some(5))], &[], true);
        assert!(Ledger(vec![early, open, sees, again]).contradiction().is_some());
    }
}
