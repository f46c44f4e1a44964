//! One store in a world of its own, what it should hold, and the steps that are taken with it.

use super::draw::{Draw, OBJECTS};
use super::model::{Change, Refusal, Versions};
use super::observe::{
    Container, Trouble, check_fetch, check_list, check_object, check_search, refusal_of_update,
};
use super::pending::Pending;
use crate::setup::*;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::{CrashKeeps, SimDisk, SimDiskOptions};
use weir_proto::{ContainerId, Epoch};
use weir_runtime::random::Random;
use weir_runtime::sim::SimError;
use weir_store::{FetchError, OpenError, ScrubConfig, Shard, Store, StoreConfig, TransactionId, UpdateError};

/// Longest virtual time of a step: far longer than any takes whose disk hasn't stopped.
const STEP_MAX: Duration = Duration::from_mins(2);

/// How long history stays for readers where background work goes on.
const RETENTION: Duration = Duration::from_millis(400);

/// Epochs that old are no longer read there: background work may come to them meanwhile.
const READABLE: Duration = Duration::from_millis(200);

/// Bytes of the cache of small values: none, two sets whose values push each other out, and room for all.
const CACHES: [usize; 3] = [0, 40 << 10, 1 << 20];

/// The second container, which is used less often and destroyed more often.
const SECOND: ContainerId = ContainerId(Uuid::from_u128(0x5ec));

/// What may go wrong in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Nothing but crashes between steps.
    None,
    /// Power failures in the middle of steps, transfers that fail, disks that stall and are too small, and at the end
    /// rot.
    All,
}

/// Says which seed and step a panic came from.
struct Blame {
    seed: u64,
    step: u64,
}

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, step {}", self.seed, self.step);
        }
    }
}

pub struct Trial {
    blame: Blame,
    pub(super) random: Random,
    faults: Faults,
    /// The disk is too small for what is stored.
    pub(super) tight: bool,
    config: StoreConfig,
    machine: Machine,
    pub(super) store: Rc<Store>,
    pub(super) shard: Shard,
    /// The container that the present step is about, and the other one.
    pub(super) here: Content,
    pub(super) there: Content,
    pub(super) epoch: u64,
    pub(super) transactions: u128,
    /// A transaction that is being prepared or decided: after a failure nobody knows whether it is undecided.
    pub(super) unsure: Option<TransactionId>,
    /// Transfers fail, or the disk stops at some operation.
    pub(super) faulty: bool,
    /// Changes that were stored.
    pub changes: u64,
    /// Changes that were refused for want of space.
    pub refused: u64,
}

/// What a container should hold.
pub(super) struct Content {
    pub(super) id: ContainerId,
    pub(super) versions: Versions,
    pub(super) snapshots: BTreeSet<u64>,
    /// History before this may be gone, but for the snapshots.
    pub(super) horizon: u64,
    /// Transactions that are prepared and not decided.
    pub(super) pending: Vec<Pending>,
}

impl Content {
    /// Of a container that was just created.
    pub(super) fn new(id: ContainerId) -> Self {
        let (versions, snapshots) = (Versions::default(), BTreeSet::new());
        Self { id, versions, snapshots, horizon: 0, pending: Vec::new() }
    }
}

/// How a change of the store ended.
pub(super) enum Outcome {
    Done,
    Refused(UpdateError),
    /// A transaction stands against it.
    Held(UpdateError),
    /// The store or the disk has stopped: it may be there or not.
    Doubtful,
}

impl Trial {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let random = Random::new(seed ^ 0x5eed);
        let draw = Draw(&random);
        let mut config = if draw.one_in(3) { cramped() } else { quiet() };
        // Half of all trials take nearly every fetch of an array in many turns.
        if seed % 2 == 1 {
            config.fetch_looks = 1 + (seed / 2 % 13) as usize;
        }
        // And half of them end pages of lists and parts of searches after a few looks.
        if seed / 2 % 2 == 1 {
            config.request_looks = 1 + (seed / 4 % 60) as usize;
        }
        config.cache_bytes = CACHES[(seed % CACHES.len() as u64) as usize];
        if draw.one_in(2) {
            let scrub = ScrubConfig { bytes_per_second: 64 << 20, interval: Duration::from_millis(300) };
            let interval = Duration::from_millis(random.between(5, 500));
            config = StoreConfig {
                background: true,
                retention: RETENTION,
                background_interval: Duration::from_millis(5),
                checkpoint_interval: interval,
                scrub: Some(scrub),
                ..config
            };
        }
        let tight = faults == Faults::All && draw.one_in(4);
        let machine = Machine::new(seed, if tight { 20 << 20 } else { 96 << 20 });
        let (store, shard) = machine.start(config.clone());
        let mut trial = Self {
            blame: Blame { seed, step: 0 },
            random,
            faults,
            tight,
            config,
            machine,
            store,
            shard,
            here: Content::new(CONTAINER),
            there: Content::new(SECOND),
            epoch: 0,
            transactions: 0,
            unsure: None,
            faulty: false,
            changes: 0,
            refused: 0,
        };
        trial.calm();
        let container = trial.container();
        trial.run(async move { container.shard.create_container(SECOND).await.expect("a container") });
        trial
    }

    /// Gives the store back, of which nothing may be left then.
    pub fn end(self) {
        let Self { machine, store, shard, .. } = self;
        drop((store, shard));
        machine.end();
    }

    /// The container that the present step is about.
    pub(super) fn container(&self) -> Container {
        Container { shard: self.shard.clone(), id: self.here.id, in_view: false }
    }

    pub(super) fn draw(&self) -> Draw<'_> {
        Draw(&self.random)
    }

    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch = (self.epoch + 1).max(self.machine.handle().wall_ns());
        self.epoch
    }

    /// Runs something on the node; `None`: it doesn't end, because the disk has stopped.
    pub(super) fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Option<T> {
        match self.machine.world.try_block_on(&self.machine.node, STEP_MAX, future) {
            Ok(done) => Some(done),
            Err(error) => {
                assert!(
                    self.machine.disk.is_halted() || matches!(error, SimError::Crashed { .. }),
                    "{error}"
                );
                None
            }
        }
    }

    /// The disk does what it should, but for a stall now and then.
    fn calm(&mut self) {
        let stalls = self.faults == Faults::All && !self.config.background;
        let stall_probability = if stalls { 0.01 } else { 0.0 };
        self.machine.disk.set_options(SimDiskOptions { stall_probability, ..SimDiskOptions::default() });
        self.faulty = false;
    }

    fn break_something(&mut self) {
        self.faulty = true;
        if self.draw().one_in(2) {
            let soon = self.random.below(40);
            self.machine.disk.halt_at(self.machine.disk.operations() + soon);
        } else {
            let error_probability = self.draw().pick(&[0.3, 0.05, 0.01]);
            self.machine.disk.set_options(SimDiskOptions { error_probability, ..SimDiskOptions::default() });
        }
    }

    pub fn step(&mut self) {
        self.blame.step += 1;
        if self.faults == Faults::All && !self.faulty && self.draw().one_in(60) {
            self.break_something();
        } else if self.faulty && self.draw().one_in(8) {
            self.recover();
        }
        if (self.here.id == SECOND) != self.draw().one_in(4) {
            core::mem::swap(&mut self.here, &mut self.there);
        }
        if self.draw().one_in(12) {
            self.decide_one();
        }
        match self.random.below(100) {
            0..40 => self.change(),
            40..45 => self.change_together(),
            45..50 => self.transact(),
            50..65 => self.look(Self::fetch),
            65..75 => self.look(Self::list),
            75..82 => self.look(Self::search),
            82..85 => self.observe_while_it_changes(),
            85..88 => self.snapshot(),
            88..90 => self.aggregate(),
            90..93 => self.checkpoint(),
            93..95 => self.check_some(),
            95 => self.defragment(),
            96 => self.restart(),
            97 if self.here.id == SECOND || self.draw().one_in(8) => self.begin_anew(),
            _ => self.machine.sleep(Duration::from_micros(self.random.between(1, 3000))),
        }
    }

    /// Sends one change and notes what became of it. Now and then it comes late, behind changes of later epochs.
    fn change(&mut self) {
        let late = if self.draw().one_in(10) { self.late_epoch() } else { None };
        let epoch = late.unwrap_or_else(|| self.next_epoch());
        let (draw, object) = (self.draw(), self.draw().object());
        let punches = late.is_none() && draw.one_in(6);
        let change = if punches { draw.punch(object) } else { draw.update(object, draw.dkey(object), epoch) };
        if self.here.versions.plan(core::slice::from_ref(&change), epoch).err() == Some(Refusal::Unfit) {
            return;
        }
        let (container, sent) = (self.container(), change.clone());
        let outcome = self.judge(self.run(async move { sent.send(&container, epoch).await }));
        let is_held = self.is_held(&change);
        match &outcome {
            Outcome::Done => assert!(!is_held, "a change isn't refused though a transaction holds the place"),
            Outcome::Held(error) => {
                assert!(is_held || self.may_wait(&change) || late.is_some(), "{error}");
            }
            Outcome::Refused(_) | Outcome::Doubtful => {}
        }
        self.settle(outcome, &[change], epoch);
    }

    /// An epoch of the past at which nothing has changed and whose history is still there.
    pub(super) fn late_epoch(&self) -> Option<u64> {
        let from = self.oldest_readable();
        let epoch = (from + 1 < self.epoch).then(|| self.random.between(from + 1, self.epoch - 1))?;
        let is_taken =
            self.here.versions.has(epoch) || self.here.pending.iter().any(|pending| pending.epoch == epoch);
        (!is_taken).then_some(epoch)
    }

    pub(super) fn judge(&self, sent: Option<Result<(), UpdateError>>) -> Outcome {
        match sent {
            Some(Ok(())) => Outcome::Done,
            None => Outcome::Doubtful,
            Some(Err(error)) if refusal_of_update(&error).is_some() => Outcome::Refused(error),
            Some(Err(error @ (UpdateError::Undecided { .. } | UpdateError::Restart { .. }))) => {
                Outcome::Held(error)
            }
            Some(Err(error @ (UpdateError::NoSpace { .. } | UpdateError::Fragmented(_)))) => {
                assert!(self.tight, "{error}");
                Outcome::Refused(error)
            }
            Some(Err(error)) => {
                assert!(self.faulty, "{error}");
                Outcome::Doubtful
            }
        }
    }

    /// Compares the outcome of changes of one epoch with what was to come of them, and takes it over.
    pub(super) fn settle(&mut self, outcome: Outcome, changes: &[Change], epoch: u64) {
        let planned = self.here.versions.plan(changes, epoch);
        match (outcome, planned) {
            (Outcome::Done, Ok(plan)) => {
                self.changes += 1;
                self.here.versions.take(plan);
            }
            (Outcome::Done, Err(refusal)) => panic!("a change isn't refused as {refusal:?}"),
            (Outcome::Refused(error), planned) => match refusal_of_update(&error) {
                // Of a late change that meets several refusals, the store may name one that only what follows makes.
                Some(refusal) => match planned.err() {
                    Some(_) if epoch < self.epoch => {}
                    planned => assert_eq!(Some(refusal), planned, "{error}"),
                },
                None => self.refused += 1,
            },
            (Outcome::Held(_), _) => {}
            (Outcome::Doubtful, _) => {
                self.recover();
                self.conclude();
                self.resolve(&changes.iter().map(|change| (change.clone(), epoch)).collect::<Vec<_>>());
            }
        }
    }

    /// Finds out which of the changes in doubt are there: each as a whole or not at all.
    pub(super) fn resolve(&mut self, doubtful: &[(Change, u64)]) {
        let mut epochs: Vec<u64> = doubtful.iter().map(|(_, epoch)| *epoch).collect();
        epochs.dedup();
        let objects: BTreeSet<_> = doubtful.iter().map(|(change, _)| change.object()).collect();
        // One that came late may show at its own epoch only, or at that of a snapshot.
        let oldest = self.oldest_readable();
        let readable = epochs.iter().map(|epoch| (*epoch).max(oldest + 1));
        let shown: Vec<u64> = readable.chain(self.here.snapshots.iter().copied()).chain([u64::MAX]).collect();
        for there in 0..1_u32 << epochs.len() {
            let mut versions = self.here.versions.clone();
            for (at, epoch) in epochs.iter().enumerate().filter(|(at, _)| there >> at & 1 == 1) {
                let own = doubtful.iter().filter(|(_, of)| of == epoch).map(|(change, _)| change.clone());
                if let Ok(plan) = versions.plan(&own.collect::<Vec<_>>(), epochs[at]) {
                    versions.take(plan);
                }
            }
            let fits = |object, epoch: &u64| self.fits(&versions, object, self.still_readable(*epoch));
            if objects.iter().all(|object| shown.iter().all(|epoch| fits(*object, epoch))) {
                self.here.versions = versions;
                return;
            }
        }
        for object in objects {
            self.check(object, u64::MAX);
        }
        panic!("changes in doubt are there by half: {doubtful:?}");
    }

    /// Whether an object is as these versions say.
    fn fits(&self, versions: &Versions, object: weir_proto::ObjectId, epoch: u64) -> bool {
        let (container, versions) = (self.container(), versions.clone());
        let checked = self.run(async move { check_object(&container, &versions, object, epoch).await });
        match checked.expect("a healthy disk") {
            Ok(()) => true,
            Err(Trouble::Wrong(_)) => false,
            Err(Trouble::Failed(error)) => panic!("{error}"),
        }
    }

    fn check(&self, object: weir_proto::ObjectId, epoch: u64) {
        let (container, versions) = (self.container(), self.here.versions.clone());
        self.accept(self.run(async move { check_object(&container, &versions, object, epoch).await }), epoch);
    }

    /// What was read at an epoch is right, or couldn't be read because something fails or isn't decided.
    pub(super) fn accept(&self, checked: Option<Result<(), Trouble>>, epoch: u64) {
        match checked {
            Some(Ok(())) => {}
            Some(Err(Trouble::Wrong(what))) => panic!("{what}"),
            Some(Err(Trouble::Failed(FetchError::Undecided { epoch: at, .. }))) => {
                let mut pending = self.here.pending.iter().map(|pending| pending.epoch);
                assert!(pending.any(|of| of == at.0) && at.0 <= epoch, "undecided: {at} at {epoch}");
            }
            Some(Err(Trouble::Failed(error))) => {
                let damage = matches!(error, FetchError::Corrupt { .. });
                assert!(self.faulty && !damage, "{error}");
            }
            None => assert!(self.faulty),
        }
    }

    /// What is undecided, right after an open.
    pub(super) fn undecided(&self, container: ContainerId) -> Vec<(TransactionId, Epoch)> {
        let shard = self.shard.clone();
        let undecided = self.run(async move { shard.undecided(container).await });
        undecided.expect("a healthy disk").expect("the container")
    }

    /// Power failure, restart, and a look at what is there.
    pub(super) fn recover(&mut self) {
        self.machine.crash(CrashKeeps::Any);
        self.calm();
        self.reopen();
    }

    fn reopen(&mut self) {
        self.store = self.machine.open(self.config.clone());
        self.shard = self.store.pool(POOL).expect("the pool");
        let audit = self.machine.audit(&self.store);
        assert_eq!(audit.problems, [""; 0]);
        for content in [&self.here, &self.there] {
            let found = self.shard.snapshots(content.id).expect("the container");
            assert_eq!(found.iter().map(|epoch| epoch.0).collect::<BTreeSet<_>>(), content.snapshots);
            let mut undecided = self.undecided(content.id);
            undecided.retain(|(id, _)| Some(*id) != self.unsure);
            undecided.sort_unstable_by_key(|(_, epoch)| *epoch);
            let mut pending: Vec<_> = content.pending.iter().map(|of| (of.id, Epoch(of.epoch))).collect();
            pending.sort_unstable_by_key(|(_, epoch)| *epoch);
            assert_eq!(undecided, pending);
        }
    }

    fn restart(&mut self) {
        if self.faulty || self.draw().one_in(2) {
            return self.recover();
        }
        let store = Rc::clone(&self.store);
        self.run(async move { store.close().await }).expect("a healthy disk").expect("closed");
        self.reopen();
    }

    /// Goes on with the disk that `copy` makes of the present one, on which the store was closed, or has crashed.
    pub fn go_on_with(&mut self, copy: impl FnOnce(&Machine) -> SimDisk) {
        if self.faulty || self.draw().one_in(2) {
            self.machine.crash(CrashKeeps::Any);
        } else {
            let store = Rc::clone(&self.store);
            self.run(async move { store.close().await }).expect("a healthy disk").expect("closed");
        }
        self.machine.disk = copy(&self.machine);
        self.calm();
        self.reopen();
    }

    /// From here on all history is there.
    fn oldest_readable(&self) -> u64 {
        if !self.config.background {
            return self.here.horizon;
        }
        let now = self.machine.handle().wall_ns();
        self.here.horizon.max(now.saturating_sub(READABLE.as_nanos() as u64))
    }

    /// An epoch that was drawn a while ago, or the oldest whose history is there if that is gone by now.
    fn still_readable(&self, epoch: u64) -> u64 {
        if self.here.snapshots.contains(&epoch) { epoch } else { epoch.max(self.oldest_readable()) }
    }

    /// An epoch whose state is still there.
    pub(super) fn epoch_to_read(&self) -> u64 {
        let from = self.oldest_readable();
        let snapshots: Vec<u64> = self.here.snapshots.iter().copied().collect();
        match self.random.below(4) {
            0 if !snapshots.is_empty() => self.draw().pick(&snapshots),
            1 | 2 if from < self.epoch => self.random.between(from, self.epoch),
            _ => u64::MAX,
        }
    }

    /// Reads something, one time in four as a transaction of now does: what comes later has later epochs.
    fn look(&mut self, look: impl Fn(&Self, Container, u64) -> Option<Result<(), Trouble>>) {
        let in_view = self.draw().one_in(4);
        let epoch = if in_view { self.next_epoch() } else { self.epoch_to_read() };
        let checked = look(self, Container { in_view, ..self.container() }, epoch);
        self.accept(checked, epoch);
    }

    fn fetch(&self, container: Container, epoch: u64) -> Option<Result<(), Trouble>> {
        let (draw, object) = (self.draw(), self.draw().object());
        let (dkey, (conditions, akeys)) = (draw.dkey(object), draw.fetch(object));
        let state = self.here.versions.at(object, epoch);
        let is_held = self.here.pending.iter().any(|pending| pending.holds(object, &dkey, epoch));
        let checked = self.run(async move {
            check_fetch(&container, &state, object, &dkey, epoch, conditions, &akeys).await
        });
        assert!(!is_held || !matches!(checked, Some(Ok(()))), "a fetch sees past a prepared transaction");
        checked
    }

    fn list(&self, container: Container, epoch: u64) -> Option<Result<(), Trouble>> {
        let object = self.draw().object();
        let (scope, limit) = (self.draw().scope(object), self.random.between(1, 5) as u32);
        let versions = self.here.versions.clone();
        self.run(async move { check_list(&container, &versions, object, &scope, epoch, limit).await })
    }

    fn search(&self, container: Container, epoch: u64) -> Option<Result<(), Trouble>> {
        let object = self.draw().object();
        let (search, state) = (self.draw().search(object), self.here.versions.at(object, epoch));
        self.run(async move { check_search(&container, &state, object, epoch, &search).await })
    }

    fn snapshot(&mut self) {
        if self.faulty {
            return;
        }
        let Container { shard, id, .. } = self.container();
        if self.draw().one_in(2) || self.here.snapshots.len() > 6 {
            let given_up = self.random.below(self.here.snapshots.len().max(1) as u64) as usize;
            let given_up = self.here.snapshots.iter().nth(given_up).copied();
            given_up.map(|epoch| self.here.snapshots.remove(&epoch));
            let kept: Vec<Epoch> = self.here.snapshots.iter().copied().map(Epoch).collect();
            self.run(async move { shard.set_snapshots(id, &kept).await })
        } else {
            let epoch = self.next_epoch();
            self.here.snapshots.insert(epoch);
            self.run(async move { shard.add_snapshot(id, Epoch(epoch)).await })
        }
        .expect("a healthy disk")
        .expect("stored");
    }

    fn aggregate(&mut self) {
        let back = self.draw().pick(&[0, 1_000_000, 30_000_000]);
        self.here.horizon = self.here.horizon.max(self.epoch.saturating_sub(back));
        let (Container { shard, id, .. }, horizon) = (self.container(), Epoch(self.here.horizon));
        let done = self.run(async move { shard.aggregate(id, horizon).await });
        assert!(self.faulty || matches!(done, Some(Ok(()))), "{done:?}");
    }

    fn checkpoint(&mut self) {
        let store = Rc::clone(&self.store);
        let done = self.run(async move { store.checkpoint().await });
        assert!(self.faulty || matches!(done, Some(Ok(()))), "{done:?}");
    }

    fn defragment(&mut self) {
        let store = Rc::clone(&self.store);
        let done = self.run(async move { store.defragment().await });
        assert!(self.faulty || matches!(done, Some(Ok(_))), "{done:?}");
    }

    fn check_some(&mut self) {
        self.check(self.draw().object(), self.epoch_to_read());
        if !self.faulty {
            assert_eq!(self.machine.audit(&self.store).problems, [""; 0]);
        }
    }

    /// Compares everything at the newest epoch, at all snapshots and at some epochs.
    pub fn check_all(&mut self) {
        if self.faulty {
            self.recover();
        }
        for _ in 0..2 {
            core::mem::swap(&mut self.here, &mut self.there);
            self.conclude();
            let mut epochs: Vec<u64> = self.here.snapshots.iter().copied().collect();
            epochs.extend([u64::MAX, self.epoch_to_read(), self.epoch_to_read()]);
            for object in OBJECTS {
                for epoch in &epochs {
                    // To compare all takes longer than history stays.
                    self.check(object, self.still_readable(*epoch));
                }
            }
        }
        assert_eq!(self.machine.audit(&self.store).problems, [""; 0]);
    }

    /// Destroys the container, with what is undecided in it or without, and creates it again: nothing of the old one is in
    /// it.
    fn begin_anew(&mut self) {
        if self.faulty {
            return;
        }
        if self.draw().one_in(2) {
            self.conclude();
        }
        let container = self.container();
        let done = self.run(async move { container.begin_anew().await });
        done.expect("a healthy disk").expect("done");
        self.here = Content::new(self.here.id);
    }

    /// Flips bits anywhere and reads everything: each answer is right or an error.
    pub fn rot(&mut self) {
        self.check_all();
        let store = Rc::clone(&self.store);
        self.run(async move { store.close().await }).expect("a healthy disk").expect("closed");
        self.machine.crash(CrashKeeps::Nothing);
        let blocks: Vec<u64> = (0..self.machine.device().size() / 4096)
            .filter(|at| self.machine.disk.bytes(at * 4096, 4096).iter().any(|byte| *byte != 0))
            .collect();
        for _ in 0..=self.random.below(12) {
            let offset = self.draw().pick(&blocks) * 4096 + self.random.below(4096);
            self.machine.disk.rot(offset, self.random.below(8) as u8);
        }
        match self.machine.try_open(quiet()) {
            Ok(store) => self.shard = store.pool(POOL).expect("the pool"),
            Err(OpenError::Corrupt { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        for object in OBJECTS.into_iter().chain(OBJECTS) {
            let (container, versions) = (self.container(), self.here.versions.clone());
            let checked =
                self.run(async move { check_object(&container, &versions, object, u64::MAX).await });
            if let Err(Trouble::Wrong(what)) = checked.expect("a healthy disk") {
                panic!("after rot: {what}");
            }
            core::mem::swap(&mut self.here, &mut self.there);
        }
    }
}
