//! Rebuild: a target that the map calls up or new gets what it lacks of objects with replicas, and one that serves gets what the places
//! have that it is to have. Before others get places that it has, all that is unsettled there is settled; then it drops what lies there. The protocol is described in docs/explanation/replication.md.
//!
//! The target that lacks data *pulls* it: it asks the leaders of its groups, page by page, for the history of what it is to have and
//! hasn't. What it has and they haven't goes, part by part. Leaders send it all changes meanwhile, as they do to members that
//! serve. History and changes may arrive in any order ([`weir_store::Shard::fill`]). When all is there the target says so to
//! the pool's service.
//!
//! The room calls the store's shard, transactions, the names of executed changes, and other targets; the service starts it.

mod give;
mod pace;
mod progress;
mod pull;
mod shares;
mod source;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::PoolId;
use weir_proto::pool::TargetState;
use weir_runtime::Instant;

use crate::admission::Admission;
use crate::repair::Repair;
use crate::repeats::Repeats;
use crate::replication::Replication;
use crate::transaction::Transactions;
use crate::unsettled::{Place, PlantedBug, Unsettled};
pub use pace::FLOOR_DEFAULT as REBUILD_FLOOR_DEFAULT;
use pace::Pace;
pub use progress::RebuildProgress;
use pull::Round;

/// How often it is looked whether the own target lacks something by the map of a pool.
const LOOK: Duration = Duration::from_millis(100);

/// How often a target says how far it is, and that it has all, while it goes on serving: a service that starts doesn't know.
const TELL: Duration = Duration::from_secs(1);

/// Pause before a rebuild that could not go on is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Pause before one that finds no room is tried again: deletions, and what aggregation gives back, take seconds.
const PAUSE_WITHOUT_ROOM: Duration = Duration::from_secs(5);

/// From when on it is told that a rebuild can't go on: maps change, and leaders wait for transactions.
const HINDERED_FROM: Duration = Duration::from_secs(3);

/// Why a rebuild can't go on.
struct Obstacle {
    reason: String,
    /// Whether the own target has no room for what comes.
    is_full: bool,
}

impl From<String> for Obstacle {
    fn from(reason: String) -> Self {
        Self { reason, is_full: false }
    }
}

impl core::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Gets for one target what it lacks, and gives to others what they lack.
pub(crate) struct Rebuild {
    admission: Admission,
    repeats: Rc<Repeats>,
    unsettled: Rc<Unsettled>,
    transactions: Rc<Transactions>,
    replication: Rc<Replication>,
    /// Told of versions that are damaged where they come from.
    repair: Rc<Repair>,
    /// How much of the target's time its own rebuilds get, and those of others that it has data for.
    pace: Pace,
    /// What is under way, by pool.
    running: RefCell<HashMap<PoolId, RebuildProgress>>,
    /// Epochs of changes that came with the history of places that a serving target gets, of those that may still be known by a name.
    gained: RefCell<HashMap<PoolId, BTreeSet<u64>>>,
    /// Pools in which places have moved: what lies here may be in places of others.
    moved: RefCell<HashSet<PoolId>>,
    /// Pools in which that is dropped at this moment.
    dropping: RefCell<HashSet<PoolId>>,
    /// Those that can't go on, since when, and why.
    hindered: RefCell<HashMap<PoolId, (Instant, String)>>,
    /// Rebuilds that have ended since the start.
    ended: Cell<u64>,
    /// Bytes of data that were taken in since the start.
    bytes: Cell<u64>,
    /// When it was last told how far those are that are under way.
    told: Cell<Option<Instant>>,
}

impl Rebuild {
    pub(crate) fn new(
        admission: Admission,
        repeats: Rc<Repeats>,
        unsettled: Rc<Unsettled>,
        transactions: Rc<Transactions>,
        replication: Rc<Replication>,
        repair: Rc<Repair>,
    ) -> Rc<Self> {
        let (running, ended, bytes) = (RefCell::default(), Cell::new(0), Cell::new(0));
        let (told, moved, dropping) = (Cell::new(None), RefCell::default(), RefCell::default());
        let hindered = RefCell::default();
        let pace = Pace::new(admission.rt.clone(), Rc::clone(&admission.metrics));
        Rc::new(Self {
            admission,
            repeats,
            unsettled,
            transactions,
            replication,
            repair,
            pace,
            running,
            gained: RefCell::default(),
            moved,
            dropping,
            hindered,
            ended,
            bytes,
            told,
        })
    }

    /// Answers others, and looks after the own target from now on.
    pub(crate) fn start(self: &Rc<Self>) {
        self.serve_sources();
        self.admission.rt.spawn(watch(Rc::downgrade(self)));
    }

    /// The rebuilds that are under way.
    pub(crate) fn progress(&self) -> Vec<(PoolId, RebuildProgress)> {
        self.running.borrow().iter().map(|(pool, progress)| (*pool, *progress)).collect()
    }

    /// How much of the target's time rebuilds get.
    pub(crate) const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Rebuilds that have ended since the start.
    pub(crate) const fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Bytes of data that were taken in since the start.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// What the own target gets by the newest map of a pool here, if anything.
    fn round(&self, pool: &TargetPool) -> Option<Round> {
        let own = self.own();
        pool.with_map(|map| {
            let target = map.targets.iter().find(|target| (target.rank, target.index) == own)?;
            let serves = target.state.serves();
            let gains_all = target.gains_all();
            let up = (gains_all || target.state == TargetState::Up).then_some(target.since);
            let since = match up {
                Some(since) if !gains_all => since,
                _ if serves || gains_all => map.moves_since()?,
                _ => return None,
            };
            Some(Round { since, version: map.version, serves, up, handing: map.handing })
        })
    }

    /// Says how far those are that are under way.
    fn tell_progress(self: &Rc<Self>) {
        let now = self.admission.rt.now();
        if self.told.get().is_some_and(|told| now.saturating_duration_since(told) < TELL) {
            return;
        }
        self.told.set(Some(now));
        for (pool, progress) in self.progress() {
            let rebuild = Rc::clone(self);
            self.admission.rt.spawn(async move {
                let mut told = rebuild.admission.pools.tell_progress(pool, progress.told(now)).await;
                if let Some(reason) = rebuild.hindrance(pool, now) {
                    told = told.and(rebuild.admission.pools.tell_hindrance(pool, reason).await);
                }
                if let Err(error) = told {
                    tracing::debug!(%pool, %error, "the pool's service has not heard how far the target is");
                }
            });
        }
    }

    /// Why the rebuild of a pool hasn't gone on for some time, if so.
    fn hindrance(&self, pool: PoolId, now: Instant) -> Option<String> {
        let hindered = self.hindered.borrow();
        let (since, reason) = hindered.get(&pool)?;
        let lasts = now.saturating_duration_since(*since) >= HINDERED_FROM;
        lasts.then(|| reason.clone())
    }

    /// Begins what is to be done.
    fn look(self: &Rc<Self>) {
        for pool in self.admission.pools.all() {
            let id = pool.id();
            if self.round(&pool).is_some() && !self.running.borrow().contains_key(&id) {
                self.running.borrow_mut().insert(id, RebuildProgress::begun(self.admission.rt.now()));
                let (rebuild, pool) = (Rc::clone(self), Rc::clone(&pool));
                self.admission.rt.spawn(async move {
                    rebuild.rebuild(&pool).await;
                    rebuild.running.borrow_mut().remove(&id);
                    rebuild.gained.borrow_mut().remove(&id);
                    rebuild.moved.borrow_mut().insert(id);
                    rebuild.set_hindrance(&pool, None);
                });
            }
            self.look_for_moved(&pool);
        }
    }

    /// Gets what a pool's shard lacks, as long as the map has it so.
    async fn rebuild(&self, pool: &Rc<TargetPool>) {
        let rt = &self.admission.rt;
        let mut complete = None;
        while let Some(round) = self.round(pool)
            && self.admission.pools.get(pool.id()).is_ok()
        {
            let was_complete = complete == Some(round.work());
            match self.go_round(pool, round, &mut complete).await {
                Ok(()) => {
                    self.set_hindrance(pool, None);
                    if !was_complete {
                        self.ended.set(self.ended.get() + 1);
                        tracing::info!(pool = pool.label(), round.since, "the target has all that it lacked");
                    }
                    self.rest(pool, round).await;
                }
                Err(error) => {
                    let (label, since) = (pool.label(), round.since);
                    tracing::debug!(pool = label, since, %error, "the rebuild of a target can't go on");
                    let pause = if error.is_full { PAUSE_WITHOUT_ROOM } else { PAUSE };
                    self.set_hindrance(pool, Some(error.reason));
                    rt.sleep(pause).await;
                }
            }
        }
    }

    /// Waits until there is something to be said again, or to be done.
    async fn rest(&self, pool: &TargetPool, round: Round) {
        let rt = &self.admission.rt;
        let until = rt.now() + TELL;
        while rt.now() < until && self.round(pool) == Some(round) {
            rt.sleep(LOOK).await;
        }
    }

    /// Makes the target equal to the others by one map, and says so. Once it is, nothing is taken in any more: the service may
    /// have heard, although its answer hasn't come.
    async fn go_round(
        &self,
        pool: &Rc<TargetPool>,
        round: Round,
        complete: &mut Option<(u32, bool)>,
    ) -> Result<(), Obstacle> {
        if *complete != Some(round.work()) {
            if pool.may_have_caught_up() {
                return Err("the pool's service has not called the target up anew yet".to_owned().into());
            }
            if !pool.has_rolled_back() {
                self.transactions.roll_back(pool).await?;
                round.up.into_iter().for_each(|up| pool.set_rolled_back(up));
            }
            if !self.unsettled.has_planted(PlantedBug::SaidBeforeItCame) {
                self.pull(pool, round).await?;
            }
            *complete = Some(round.work());
        }
        let tell = async |since| {
            let told = self.admission.pools.tell_rebuilt(pool.id(), since).await;
            told.map_err(|error| error.to_string())
        };
        tell(round.since).await?;
        if round.handing > 0 && self.round(pool) == Some(round) {
            self.settle_all(pool, round).await?;
            tell(round.handing).await?;
        }
        Ok(())
    }

    /// Takes note of why the rebuild of a pool can't go on, or that it does.
    fn set_hindrance(&self, pool: &TargetPool, reason: Option<String>) {
        let now = self.admission.rt.now();
        let mut hindered = self.hindered.borrow_mut();
        match reason {
            Some(reason) => {
                let since = hindered.get(&pool.id()).map_or(now, |(since, _)| *since);
                hindered.insert(pool.id(), (since, reason));
            }
            None => drop(hindered.remove(&pool.id())),
        }
    }

    /// This target.
    fn own(&self) -> Place {
        let engines = self.admission.pools.engines();
        (engines.own_rank(), engines.own_index())
    }
}

/// Looks after the own target for as long as the service lives.
async fn watch(rebuild: Weak<Rebuild>) {
    loop {
        let Some(rt) = rebuild.upgrade().map(|rebuild| rebuild.admission.rt.clone()) else { return };
        rt.sleep(LOOK).await;
        let Some(rebuild) = rebuild.upgrade() else { return };
        rebuild.look();
        rebuild.tell_progress();
    }
}
