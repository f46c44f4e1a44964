//! Everything at once: pools come, go and change their size while clients change what is in them, by transactions too and
//! with requests that are given up, beside snapshots, aggregation, defragmentation, checkpoints and the scrubber, on a disk
//! that stalls and fails; the power fails at any time, while a store is opened, too. What was acknowledged is there, nobody
//! hangs, nothing sound is called rotten, and no space is lost.

use crate::setup::*;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{Epoch, Key, PoolId};
use weir_runtime::random::Random;
use weir_runtime::{Handle, join_all};
use weir_store::{
    Data, Operation, PoolError, ScrubConfig, Shard, Store, StoreConfig, TransactionError, TransactionId,
    UpdateError,
};

const DISK: u64 = 40 << 20;
const POOL_BYTES: u64 = 8 << 20;
const POOLS: usize = 3;
/// Pairs of dkeys in a pool. A transaction changes both.
const PAIRS: usize = 4;
/// Power cycles of a disk.
const CYCLES: u64 = 5;
/// Longest time that anything takes on a disk without faults.
const LONG: Duration = Duration::from_mins(1);

/// The epochs of the values that a pair has.
type Both = [Option<u64>; 2];

struct Pair {
    /// What it held since it was last looked at, the newest change last.
    history: Vec<Both>,
    /// Which of that was acknowledged last.
    acknowledged: usize,
    /// A transaction that may be undecided, and whether its preparation was acknowledged.
    pending: Option<(TransactionId, bool)>,
}

impl Pair {
    fn new() -> Self {
        Self { history: vec![[None; 2]], acknowledged: 0, pending: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    There,
    /// It is being destroyed.
    Going,
    /// It was destroyed, and may be being created again.
    Gone,
}

struct Slot {
    life: Life,
    /// Counts the pools of this name.
    generation: u64,
    pairs: Vec<Pair>,
}

impl Slot {
    fn clear(&mut self) {
        self.life = Life::Gone;
        self.generation += 1;
        self.pairs = (0..PAIRS).map(|_| Pair::new()).collect();
    }
}

/// What is known of the disk.
struct Known {
    slots: Vec<Slot>,
    epoch: u64,
    stored: u64,
    transactions: u64,
}

/// One power cycle.
struct Cycle {
    place: String,
    random: Random,
    handle: Handle,
    store: Rc<Store>,
    known: Rc<RefCell<Known>>,
    healthy: bool,
    stop: Cell<bool>,
}

/// A pair in a pool of one generation.
#[derive(Clone)]
struct Place {
    shard: Shard,
    slot: usize,
    generation: u64,
    pair: usize,
}

fn pool(slot: usize) -> PoolId {
    PoolId(Uuid::from_u128(0x700 + slot as u128))
}

impl Place {
    fn dkey(&self, half: usize) -> String {
        format!("p{}-{half}", self.pair)
    }
}

fn value(epoch: u64) -> Vec<u8> {
    let len = [100, 3000, 4096, 9000, 70_000][(epoch / 64) as usize % 5];
    pattern(epoch, len - epoch as usize % 60)
}

fn is_value(found: Option<&[u8]>, epoch: Option<u64>) -> bool {
    found.is_none() == epoch.is_none() && epoch.is_none_or(|epoch| Some(&value(epoch)[..]) == found)
}

impl Cycle {
    fn with<T>(&self, place: &Place, look: impl FnOnce(&mut Pair) -> T) -> Option<T> {
        let slot = &mut self.known.borrow_mut().slots[place.slot];
        (slot.generation == place.generation).then(|| look(&mut slot.pairs[place.pair]))
    }

    fn next_epoch(&self) -> u64 {
        let known = &mut *self.known.borrow_mut();
        known.epoch = self.handle.wall_ns().max(known.epoch + 1);
        known.epoch
    }

    /// Waits for what must not hang. `None`: it was given up.
    async fn bounded<T>(&self, what: &str, task: impl Future<Output = T>) -> Option<T> {
        let is_given_up = self.random.below(12) == 0;
        let limit = if is_given_up { Duration::from_micros(self.random.below(3000)) } else { LONG };
        let done = self.handle.timeout(limit, task).await.ok();
        assert!(done.is_some() || is_given_up || !self.healthy, "{}: {what} hangs", self.place);
        done
    }

    /// Whether a change was made. What else may come of it on a healthy disk is known.
    fn is_done<T>(&self, place: &Place, ended: Option<&Result<T, UpdateError>>) -> bool {
        let Some(Err(error)) = ended else { return ended.is_some() };
        let slot = &self.known.borrow().slots[place.slot];
        let has_gone = slot.generation != place.generation || slot.life != Life::There;
        let is_usual = match error {
            UpdateError::NoSpace { .. }
            | UpdateError::Fragmented(_)
            | UpdateError::Restart { .. }
            | UpdateError::Aggregated { .. } => true,
            UpdateError::PoolMissing(_)
            | UpdateError::ContainerMissing(_)
            | UpdateError::ContainerDestroying(_) => has_gone,
            _ => false,
        };
        assert!(is_usual || !self.healthy, "{}: {error}", self.place);
        false
    }

    /// Reads both dkeys, and finds what they have in the history. `None`: they can't be read.
    async fn look(&self, place: &Place) -> Option<Both> {
        let from = self.with(place, |pair| pair.acknowledged)?;
        let mut found = Vec::new();
        for half in 0..2 {
            found.push(get(&place.shard, &place.dkey(half), "a", u64::MAX).await.ok()?);
        }
        let matches = |both: &Both| (0..2).all(|half| is_value(found[half].as_deref(), both[half]));
        let seen = self.with(place, |pair| {
            let at = (from..pair.history.len()).find(|at| matches(&pair.history[*at]));
            at.inspect(|at| pair.acknowledged = pair.acknowledged.max(*at)).map(|at| pair.history[at])
        })?;
        let (slot, pair) = (place.slot, place.pair);
        assert!(seen.is_some(), "{}: pool {slot}, pair {pair} isn't what was stored", self.place);
        seen
    }

    fn note(&self, place: &Place, next: Both) -> Option<usize> {
        self.with(place, |pair| {
            pair.history.push(next);
            pair.history.len() - 1
        })
    }

    fn acknowledge(&self, place: &Place, at: usize) {
        self.known.borrow_mut().stored += 1;
        let _ = self.with(place, |pair| pair.acknowledged = at);
    }

    async fn change(&self, place: &Place, now: Both) -> Option<()> {
        let (epoch, half) = (self.next_epoch(), self.random.below(2) as usize);
        let (dkey, mut next) = (place.dkey(half), now);
        next[half] = (self.random.below(4) > 0).then_some(epoch);
        let at = self.note(place, next)?;
        let ended = if next[half].is_some() {
            let value = value(epoch);
            self.bounded("an update", put(&place.shard, &dkey, "a", epoch, &value)).await
        } else {
            let scope = PunchScope::Dkeys(vec![key(&dkey)]);
            self.bounded("a punch", punch(&place.shard, OBJECT, scope, epoch)).await
        };
        if self.is_done(place, ended.as_ref()) {
            self.acknowledge(place, at);
        }
        Some(())
    }

    async fn transact(&self, place: &Place) -> Option<()> {
        let epoch = self.next_epoch();
        let at = self.note(place, [Some(epoch); 2])?;
        let id = TransactionId(Uuid::from_u128(epoch.into()));
        // One that was there before is decided for good: else the dkeys couldn't have been read.
        self.with(place, |pair| pair.pending = Some((id, false)))?;
        let (data, dkeys) = (value(epoch), [0, 1].map(|half| key(&place.dkey(half))));
        let operation = |dkey: &Key| Operation::Update {
            object: OBJECT,
            dkey: dkey.clone(),
            conditions: Conditions::NONE,
            akeys: vec![single("a", &data)],
            data: Data::Borrowed(&data),
        };
        let operations = dkeys.iter().map(operation).collect::<Vec<_>>();
        let prepare = place.shard.prepare(CONTAINER, id, Epoch(epoch), &operations);
        let ended = self.bounded("a preparation", prepare).await;
        if !self.is_done(place, ended.as_ref()) {
            return Some(());
        }
        self.with(place, |pair| pair.pending = Some((id, true)))?;
        self.handle.sleep(Duration::from_micros(self.random.below(4000))).await;
        if self.random.below(3) == 0 {
            return Some(());
        }
        let commit = place.shard.commit_transaction(CONTAINER, id);
        // From here on it may be decided, whatever is heard of it.
        self.with(place, |pair| pair.pending = Some((id, false)))?;
        if let Some(Ok(_)) = self.bounded("a commit", commit).await {
            self.with(place, |pair| pair.pending = None)?;
            self.known.borrow_mut().transactions += 1;
            self.acknowledge(place, at);
        }
        Some(())
    }

    /// Decides on a transaction that may be undecided.
    async fn conclude(&self, place: &Place) -> Option<()> {
        let Some((id, is_prepared)) = self.with(place, |pair| pair.pending)? else { return Some(()) };
        let undecided = place.shard.undecided(CONTAINER).await.ok()?;
        let is_undecided = undecided.iter().any(|(found, _)| *found == id);
        let has_gone = || {
            let slot = &self.known.borrow().slots[place.slot];
            slot.generation != place.generation || slot.life != Life::There
        };
        assert!(is_undecided || !is_prepared || has_gone(), "{}: {id} isn't prepared any more", self.place);
        self.with(place, |pair| pair.pending = Some((id, false)))?;
        // That it isn't undecided any more may be lost in a power failure: only an answer is durable.
        let ended = if is_undecided && self.random.below(2) == 0 {
            let commit = place.shard.commit_transaction(CONTAINER, id);
            self.bounded("a commit", commit).await?.map(drop)
        } else {
            let abort = place.shard.abort_transaction(CONTAINER, id);
            self.bounded("an abort", abort).await?
        };
        match ended {
            Ok(()) | Err(TransactionError::Aborted(_) | TransactionError::Committed { .. }) => {
                self.with(place, |pair| pair.pending = None)
            }
            Err(error) => {
                assert!(has_gone() || !self.healthy, "{}: {error}", self.place);
                None
            }
        }
    }

    fn place(&self, slot: usize, pair: usize) -> Option<Place> {
        let known = self.known.borrow();
        let of = known.slots.get(slot).filter(|of| of.life == Life::There)?;
        Some(Place { shard: self.store.pool(pool(slot))?, slot, generation: of.generation, pair })
    }

    async fn work(&self, slot: usize, pair: usize) {
        while !self.stop.get() {
            if self.random.below(4) == 0 {
                self.handle.sleep(Duration::from_micros(self.random.below(2000))).await;
            }
            let Some(place) = self.place(slot, pair) else {
                self.handle.sleep(Duration::from_millis(1)).await;
                continue;
            };
            // Whatever isn't known after it is found out the next time.
            let _ = self.conclude(&place).await;
            match self.look(&place).await {
                Some(_) if self.random.below(4) == 0 => drop(self.transact(&place).await),
                Some(now) => drop(self.change(&place, now).await),
                None => self.handle.sleep(Duration::from_micros(100)).await,
            }
        }
    }

    async fn begin_anew(&self, slot: usize) -> Option<()> {
        self.known.borrow_mut().slots[slot].life = Life::Going;
        self.store.destroy_pool(pool(slot)).await.ok()?;
        self.known.borrow_mut().slots[slot].clear();
        self.create(slot).await
    }

    async fn create(&self, slot: usize) -> Option<()> {
        let shard = loop {
            match self.store.create_pool(pool(slot), POOL_BYTES).await {
                Ok(shard) => break shard,
                Err(PoolError::Exists { .. }) => break self.store.pool(pool(slot))?,
                Err(PoolError::NoSpace { .. }) => self.handle.sleep(Duration::from_millis(1)).await,
                Err(error) => {
                    assert!(!self.healthy, "{}: {error}", self.place);
                    return None;
                }
            }
        };
        shard.create_container(CONTAINER).await.ok()?;
        self.known.borrow_mut().slots[slot].life = Life::There;
        Some(())
    }

    async fn keep_house(&self) {
        while !self.stop.get() {
            self.handle.sleep(Duration::from_micros(self.random.below(3000))).await;
            let slot = self.random.below(POOLS as u64) as usize;
            let what = self.random.below(12);
            if what == 0 {
                let done = self.handle.timeout(LONG, self.begin_anew(slot)).await;
                assert!(done.is_ok() || !self.healthy, "{}: a pool hangs", self.place);
                continue;
            }
            let Some(Place { shard, .. }) = self.place(slot, 0) else { continue };
            let (epoch, store) = (Epoch(self.next_epoch()), &self.store);
            let task: Pin<Box<dyn Future<Output = ()>>> = match what {
                1 | 2 => Box::pin(async { drop(store.checkpoint().await) }),
                3 => Box::pin(async { drop(store.defragment().await) }),
                4 => {
                    let size = self.random.between(2 << 20, 10 << 20);
                    Box::pin(async move { drop(store.resize_pool(pool(slot), size).await) })
                }
                5 => Box::pin(async move { drop(shard.add_snapshot(CONTAINER, epoch).await) }),
                6 => Box::pin(async move { drop(shard.set_snapshots(CONTAINER, &[]).await) }),
                _ => Box::pin(async move { drop(shard.aggregate(CONTAINER, epoch).await) }),
            };
            let done = self.handle.timeout(LONG, task).await;
            assert!(done.is_ok() || !self.healthy, "{}: work {what} hangs", self.place);
        }
    }

    /// Does all of it until it is told to stop, or the power fails.
    async fn live(&self) {
        let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![Box::pin(self.keep_house())];
        for slot in 0..POOLS {
            all.extend((0..PAIRS).map(|pair| Box::pin(self.work(slot, pair)) as Pin<Box<_>>));
        }
        let end = async {
            self.handle.sleep(Duration::from_micros(self.random.between(2000, 80_000))).await;
            self.stop.set(true);
        };
        all.push(Box::pin(end));
        join_all(all).await;
    }

    /// Looks at everything after an open, and makes what is missing.
    async fn find(&self) {
        for slot in 0..POOLS {
            let life = self.known.borrow().slots[slot].life;
            let is_there = self.store.pool(pool(slot)).is_some();
            assert!(is_there || life != Life::There, "{}: pool {slot} is lost", self.place);
            if life == Life::Going && !is_there {
                self.known.borrow_mut().slots[slot].clear();
            }
            self.create(slot).await.expect("a healthy disk");
            for pair in 0..PAIRS {
                let place = self.place(slot, pair).expect("it is there");
                while self.with(&place, |pair| pair.pending.is_some()) == Some(true) {
                    let _ = self.conclude(&place).await;
                }
                self.look(&place).await.unwrap_or_else(|| panic!("{}: {slot} {pair}", self.place));
            }
        }
    }
}

fn config(random: &Random) -> StoreConfig {
    let scrub = ScrubConfig { bytes_per_second: 256 << 20, interval: Duration::from_millis(3) };
    let base = if random.below(2) == 0 { cramped() } else { quiet() };
    StoreConfig {
        background: true,
        retention: Duration::from_millis(random.below(8)),
        background_interval: Duration::from_millis(2),
        checkpoint_interval: Duration::from_millis(random.between(3, 400)),
        cache_bytes: if random.below(2) == 0 { 1 << 20 } else { 0 },
        scrub: Some(scrub),
        ..base
    }
}

/// Opens the store, now and then after power failures and failed transfers while it is being opened.
fn open(machine: &Machine, random: &Random) -> Rc<Store> {
    for _ in 0..random.below(3) {
        let halts = random.below(2) == 0;
        if halts {
            machine.disk.halt_at(random.below(6));
        } else {
            machine.disk.set_options(SimDiskOptions { error_probability: 0.05, ..Default::default() });
        }
        let (handle, device, config) = (machine.handle(), machine.device(), config(random));
        let opened = machine.world.try_block_on(&machine.node, LONG, async move {
            Store::open(&handle, device, &owner(), config).await
        });
        machine.sleep(Duration::from_millis(random.below(20)));
        drop(opened);
        machine.disk.set_options(SimDiskOptions::default());
        machine.crash(CrashKeeps::Any);
    }
    machine.open(config(random))
}

/// Checks that all space is accounted for when nothing is under way.
fn count_space(machine: &Machine, store: &Rc<Store>, place: &str) {
    machine.sleep(Duration::from_secs(2));
    let opened = Rc::clone(store);
    machine.run(async move {
        for _ in 0..2 {
            opened.checkpoint().await.expect("written");
        }
    });
    let audit = machine.audit(store);
    assert_eq!(audit.problems, [""; 0], "{place}");
    assert_eq!(store.space().used, (audit.data_blocks + audit.index_blocks) * 4096, "{place}");
    for summary in store.pools() {
        let space = store.pool(summary.pool).expect("it is there").space();
        assert_eq!(space.free, space.total.saturating_sub(space.used() + space.prepared), "{place}");
    }
}

fn trial(seed: u64) -> (u64, u64) {
    let machine = Machine::new(seed, DISK);
    machine.format();
    let random = Random::new(seed ^ 0x7042);
    let slot = || Slot { life: Life::Gone, generation: 0, pairs: (0..PAIRS).map(|_| Pair::new()).collect() };
    let slots = (0..POOLS).map(|_| slot()).collect();
    let known = Rc::new(RefCell::new(Known { slots, epoch: 0, stored: 0, transactions: 0 }));
    for cycle in 0..CYCLES {
        let place = format!("seed {seed}, cycle {cycle}");
        let store = open(&machine, &random);
        assert_eq!(machine.audit(&store).problems, [""; 0], "{place}");
        let error_probability = if random.below(3) == 0 { 0.005 } else { 0.0 };
        let start = |healthy| Cycle {
            place: place.clone(),
            random: Random::new(random.next_u64()),
            handle: machine.handle(),
            store: Rc::clone(&store),
            known: Rc::clone(&known),
            healthy,
            stop: Cell::new(false),
        };
        let found = start(true);
        machine.run(async move { found.find().await });
        let (stall_probability, stall) = (0.02, Duration::from_millis(random.between(1, 30)));
        let options = SimDiskOptions { stall_probability, stall, error_probability, ..Default::default() };
        machine.disk.set_options(options);
        let live = start(error_probability == 0.0);
        let limit = if random.below(2) == 0 { Duration::from_micros(random.below(60_000)) } else { 3 * LONG };
        let ended = machine.world.try_block_on(&machine.node, limit, async move { live.live().await });
        if error_probability == 0.0 {
            let report = store.scrub();
            assert!(report.rotten.is_empty(), "{place}: {report:?}");
            machine.disk.set_options(SimDiskOptions::default());
            if ended.is_ok() {
                count_space(&machine, &store, &place);
            }
        }
        drop(store);
        machine.disk.set_options(SimDiskOptions::default());
        machine.crash(CrashKeeps::Any);
    }
    let known = known.borrow();
    (known.stored, known.transactions)
}

#[test]
fn what_was_acknowledged_is_there_whatever_else_goes_on() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (first, seeds) =
        (number("WEIR_STORE_SEED").unwrap_or(0), number("WEIR_STORE_TURMOIL_SEEDS").unwrap_or(40));
    let (mut stored, mut transactions) = (0, 0);
    for seed in first..first + seeds {
        let (changes, committed) = trial(seed);
        (stored, transactions) = (stored + changes, transactions + committed);
    }
    println!("{seeds} seeds, {stored} changes stored, {transactions} transactions committed");
    assert!(stored > seeds * 50 && transactions > seeds, "{stored} stored, {transactions} transactions");
}
