//! Rebuild: a target that the map calls up gets what it lacks of objects with replicas. The protocol is described in
//! docs/explanation/replication.md.
//!
//! The target that lacks data *pulls* it: it asks the leaders of its groups, page by page, for the history of what it is to have.
//! Leaders send it all changes meanwhile, as they do to members that serve. History and changes may arrive in any order
//! ([`weir_store::Shard::fill`]). When all is there the target says so to the pool's service.
//!
//! The room calls the store's shard, the names of executed changes, and other targets; the service starts it.

mod progress;
mod pull;
mod source;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::pool::{PoolTarget, TargetState};
use weir_proto::{Epoch, PoolId};

use crate::admission::Admission;
use crate::groups::is_replicated;
use crate::repeats::Repeats;
use crate::unsettled::{PlantedBug, Unsettled};
pub use progress::RebuildProgress;

/// How often it is looked whether the own target is up in the map of a pool.
const LOOK: Duration = Duration::from_millis(100);

/// Pause before a rebuild that could not go on is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Gets for one target what it lacks, and gives to others what they lack.
pub(crate) struct Rebuild {
    admission: Admission,
    repeats: Rc<Repeats>,
    unsettled: Rc<Unsettled>,
    /// What is under way, by pool.
    running: RefCell<HashMap<PoolId, RebuildProgress>>,
    /// Rebuilds that have ended since the start.
    ended: Cell<u64>,
}

impl Rebuild {
    pub(crate) fn new(admission: Admission, repeats: Rc<Repeats>, unsettled: Rc<Unsettled>) -> Rc<Self> {
        let (running, ended) = (RefCell::default(), Cell::new(0));
        Rc::new(Self { admission, repeats, unsettled, running, ended })
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

    /// Rebuilds that have ended since the start.
    pub(crate) const fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// The own target in the map of a pool, with the version of that, if it is up.
    fn up(&self, pool: &TargetPool) -> Option<(PoolTarget, u32)> {
        let engines = self.admission.pools.engines();
        let own = (engines.own_rank(), engines.own_index());
        pool.with_map(|map| {
            let target = map.targets.iter().find(|target| (target.rank, target.index) == own)?;
            (target.state == TargetState::Up).then(|| (target.clone(), map.version))
        })
    }

    /// Begins what is to be done.
    fn look(self: &Rc<Self>) {
        for pool in self.admission.pools.all() {
            let id = pool.id();
            if self.up(&pool).is_some() && !self.running.borrow().contains_key(&id) {
                self.running.borrow_mut().insert(id, RebuildProgress::begun(self.admission.rt.now()));
                let rebuild = Rc::clone(self);
                self.admission.rt.spawn(async move {
                    rebuild.rebuild(&pool).await;
                    rebuild.running.borrow_mut().remove(&id);
                });
            }
        }
    }

    /// Gets what a pool's shard lacks, as long as the map calls the target up.
    async fn rebuild(&self, pool: &Rc<TargetPool>) {
        let rt = &self.admission.rt;
        let mut prepared = None;
        while let Some((target, version)) = self.up(pool)
            && self.admission.pools.get(pool.id()).is_ok()
        {
            let since = target.since;
            let done = async {
                if prepared != Some(since) {
                    self.prepare(pool).await?;
                    prepared = Some(since);
                }
                self.pull(pool, &target, version).await?;
                self.admission.pools.tell_rebuilt(pool.id(), since).await.map_err(|error| error.to_string())
            };
            match done.await {
                Ok(()) => {
                    self.ended.set(self.ended.get() + 1);
                    tracing::info!(pool = pool.label(), since, "the target has all that it lacked");
                }
                Err(error) => {
                    tracing::debug!(pool = pool.label(), since, error, "the rebuild of a target can't go on");
                    rt.sleep(PAUSE).await;
                }
            }
        }
    }

    /// Forgets all that is here of objects with replicas: what of it the others have comes again, and what they don't has never
    /// happened.
    async fn prepare(&self, pool: &TargetPool) -> Result<(), String> {
        let shard = pool.shard();
        shard.fill(Epoch::MAX);
        self.unsettled.forget(pool.id());
        if self.unsettled.has_planted(PlantedBug::ResurrectedDeletion) {
            return Ok(());
        }
        for container in shard.containers().into_iter().filter(|one| !one.destroying) {
            let erased = shard.erase_objects(container.container, &is_replicated).await;
            erased.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Looks after the own target for as long as the service lives.
async fn watch(rebuild: Weak<Rebuild>) {
    loop {
        let Some(rt) = rebuild.upgrade().map(|rebuild| rebuild.admission.rt.clone()) else { return };
        rt.sleep(LOOK).await;
        let Some(rebuild) = rebuild.upgrade() else { return };
        rebuild.look();
    }
}
