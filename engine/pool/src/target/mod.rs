//! One pool on one target: what the target stores of it, its containers, and what the pool service says of them. The room calls
//! the store, stored records, and other engines where it asks the pool service. Services, the pools of a target and the I/O
//! service call it.

mod container;
mod containers;
mod leader;
mod lease;
mod map_backup;
#[cfg(test)]
pub(crate) mod tests;

pub use container::{CounterSet, ErrorCounts, OPERATIONS, Operation, TargetContainer};
pub(crate) use leader::{ask_leader, newest_replicas};
pub use map_backup::MapBackup;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::{Engines, Refusal};
use weir_layout::{Layout, LayoutCache, LayoutError};
use weir_proto::limits::HANDLE_LEASE_NS;
use weir_proto::pool::{PoolMap, TargetPoolSpace, TargetState};
use weir_proto::{
    Capability, Clock, ContainerId, Der, Epoch, ObjectId, PoolId, Rank, Rights, TargetIndex, TenantId,
};
use weir_runtime::Instant;
use weir_runtime::sync::Semaphore;
use weir_store::Shard;

use crate::error::{Failed, capability_der};
use crate::record::{self, NAME_POOL, PoolRecord, SCOPE_TARGET};
use containers::Learning;

/// One pool on one target.
pub struct TargetPool {
    pub(crate) record: RefCell<PoolRecord>,
    /// Where objects live by its map.
    layouts: LayoutCache,
    pub(crate) shard: Shard,
    engines: Rc<Engines>,
    clock: Rc<Clock>,
    containers: RefCell<HashMap<ContainerId, Rc<TargetContainer>>>,
    learning: RefCell<HashMap<ContainerId, Rc<Learning>>>,
    /// Whether the list of pools is known to have it. A pool that was here when the engine started may have been
    /// destroyed while the engine was away.
    pub(crate) is_listed: Cell<bool>,
    /// The record is stored whole, by one change at a time, so that none takes another one back.
    recording: Semaphore,
    /// Where the map is kept while the device can't take it, when the pool's service runs here.
    map_backup: Option<Rc<dyn MapBackup>>,
    /// Whether it is known here which changes of objects with replicas are settled: of a shard that was made since the target
    /// started, or that has caught up since. A target that starts again has forgotten it.
    pub(crate) is_whole: Cell<bool>,
    is_leased: bool,
    /// Whether the map has this target in service and not in doubt, or was made before the target started and has others fill places.
    counts_as_sure: Cell<bool>,
    /// Version of the map since which it has this target up, if it does.
    own_up: Cell<Option<u32>>,
    /// Version of the map that the target had when it started.
    loaded: u32,
    /// Version of the map that had called this target up when it last rolled back what only it had of transactions, if it ever did.
    rolled_back: Cell<Option<u32>>,
    /// Version of the map that has called this target up last; 0: none has.
    up_since: Cell<u32>,
    /// Version of the map since which data moves that this target may get some of, though it serves; 0: none does.
    gains_since: Cell<u32>,
    /// When the lease of the map ends, and for which version it was granted.
    lease: Cell<Option<(Instant, u32)>>,
    /// The replica of the pool's service that has answered last, when the service is replicated.
    leader: Cell<Option<Rank>>,
    /// The latest term of a leader that has told something of containers.
    term: Cell<u64>,
}

impl TargetPool {
    /// `map_backup` keeps the map while the device can't, when the pool's service runs here.
    pub(crate) fn new(
        record: PoolRecord,
        shard: Shard,
        engines: Rc<Engines>,
        clock: Rc<Clock>,
        map_backup: Option<Rc<dyn MapBackup>>,
    ) -> Rc<Self> {
        let pool = Rc::new(Self {
            is_leased: record.redundancy > 0,
            counts_as_sure: Cell::new(false),
            own_up: Cell::default(),
            loaded: record.map.version,
            rolled_back: Cell::default(),
            lease: Cell::new(None),
            up_since: Cell::new(0),
            gains_since: Cell::new(0),
            record: RefCell::new(record),
            layouts: LayoutCache::default(),
            shard,
            engines,
            clock,
            containers: RefCell::default(),
            learning: RefCell::default(),
            is_listed: Cell::new(false),
            recording: Semaphore::new(1),
            map_backup,
            is_whole: Cell::new(false),
            leader: Cell::new(None),
            term: Cell::new(0),
        });
        pool.note_own_state();
        pool.follow_map();
        pool
    }

    /// Identity of the pool.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.record.borrow().pool
    }

    /// Label of the pool.
    #[must_use]
    pub fn label(&self) -> String {
        self.record.borrow().label.clone()
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.record.borrow().tenant
    }

    /// Its part of the store.
    #[must_use]
    pub const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Containers that this target knows.
    #[must_use]
    pub fn containers(&self) -> Vec<Rc<TargetContainer>> {
        self.containers.borrow().values().map(Rc::clone).collect()
    }

    /// Checks a container handle. One keyed hash of less than a block (about 100 ns) costs no more than a lookup
    /// in a cache of verified handles would.
    ///
    /// # Errors
    /// When the seal is wrong, a right is missing, or the handle is one of a pool.
    pub fn authorize(&self, capability: &Capability, needed: Rights) -> Result<ContainerId, Refusal> {
        let refuse = |der, message| Refusal { der, object: format!("pool {}", self.label()), message };
        capability
            .check(&self.record.borrow().secret, needed)
            .map_err(|error| refuse(capability_der(&error), error.to_string()))?;
        capability.container.ok_or_else(|| {
            let message =
                "a pool handle does not open objects; open a container and use its handle".to_owned();
            refuse(Der::NO_HDL, message)
        })
    }

    /// The newest map of the pool that this target has, for who has a handle of the pool or of one of its containers.
    ///
    /// # Errors
    /// When the seal is wrong, or the handle doesn't allow reading.
    pub fn map_for(&self, capability: &Capability) -> Result<PoolMap, Failed> {
        let record = self.record.borrow();
        capability.check(&record.secret, Rights::READ)?;
        Ok(record.map.clone())
    }

    /// Refuses requests that were placed with an older pool map.
    ///
    /// # Errors
    /// When the client's map is older than the target's.
    pub fn check_map(&self, version: u32) -> Result<(), Refusal> {
        let record = self.record.borrow();
        let known = record.map.version;
        if version >= known {
            return Ok(());
        }
        let label = &record.label;
        Err(Refusal {
            der: Der::STALE,
            object: format!("pool {label}"),
            message: format!(
                "the client's map of pool {label} has version {version}, now it is {known}; fetch it again"
            ),
        })
    }

    /// Whether a target is one of the pool's. A pool keeps its targets for life: each is in every version of its map since it joined.
    #[must_use]
    pub fn has_target(&self, place: (Rank, TargetIndex)) -> bool {
        let record = self.record.borrow();
        record.map.targets.iter().any(|target| (target.rank, target.index) == place)
    }

    /// Looks at the newest map of the pool that this target has.
    pub fn with_map<T>(&self, look: impl FnOnce(&PoolMap) -> T) -> T {
        look(&self.record.borrow().map)
    }

    /// Looks at where an object lives by the newest map of the pool that this target has, and at the map.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn with_layout<T>(
        &self,
        object: ObjectId,
        look: impl FnOnce(&Layout, &PoolMap) -> T,
    ) -> Result<T, LayoutError> {
        let record = self.record.borrow();
        Ok(look(&*self.layouts.layout(object, &record.map)?, &record.map))
    }

    /// Whether a target takes writes by the newest map here.
    #[must_use]
    pub fn is_written_by(&self, place: (Rank, TargetIndex)) -> bool {
        let record = self.record.borrow();
        let mut writing = record.map.targets.iter().filter(|target| target.state.takes_writes());
        writing.any(|target| (target.rank, target.index) == place)
    }

    /// Has the store take changes as the own target's state in the map asks for: one that is up gets what it lacks, and one that serves
    /// gets what moves.
    fn follow_map(&self) {
        let own = (self.engines.own_rank(), self.engines.own_index());
        let record = self.record.borrow();
        let target = record.map.targets.iter().find(|target| (target.rank, target.index) == own);
        let Some(target) = target else { return };
        if target.state.serves() {
            match record.map.moves_since() {
                Some(since) if self.gains_since.replace(since) != since => self.shard.fill(Epoch::MAX),
                Some(_) => {}
                None => {
                    self.gains_since.set(0);
                    if self.shard.is_filling() {
                        self.shard.end_fill();
                    }
                }
            }
        }
        // What it knew of what comes to it holds for the time since the map called it up.
        if matches!(target.state, TargetState::Up | TargetState::New)
            && self.up_since.replace(target.since) != target.since
        {
            self.shard.fill(Epoch::MAX);
        }
    }

    /// Takes over a newer pool map.
    ///
    /// # Errors
    /// When it can't be stored. On a device that is out of use the pool goes by the map all the same, once the backup
    /// has it when the pool's service runs here: nothing else tells which versions were given out.
    pub(crate) async fn set_map(&self, map: PoolMap) -> Result<(), Failed> {
        let _permit = self.recording.acquire().await;
        let mut record = self.record.borrow().clone();
        if map.version <= record.map.version {
            return Ok(());
        }
        record.map = map;
        let own = (self.engines.own_rank(), self.engines.own_index());
        let is_down = record.map.down().any(|target| (target.rank, target.index) == own);
        match self.store_record(&record).await {
            Err(error) if !is_down => return Err(error),
            Err(error) => {
                tracing::warn!(pool = record.label, %error, "a pool map could not be stored");
                self.take_shelter(&record)?;
            }
            Ok(()) => self.leave_shelter(),
        }
        tracing::info!(pool = record.label, version = record.map.version, "a newer pool map is used");
        self.record.borrow_mut().map = record.map;
        self.note_own_state();
        self.follow_map();
        Ok(())
    }

    fn take_shelter(&self, record: &PoolRecord) -> Result<(), Failed> {
        let Some(map_backup) = &self.map_backup else { return Ok(()) };
        map_backup.keep(record.pool, &record::encode(&record.map)).map_err(|error| Failed::MapBackup {
            pool: record.pool,
            what: "written to",
            reason: error.to_string(),
        })
    }

    fn leave_shelter(&self) {
        let Some(map_backup) = &self.map_backup else { return };
        // What is left there is older than what the device has from now on, and counts no more.
        if let Err(error) = map_backup.forget(self.id()) {
            tracing::warn!(pool = self.label(), %error, "an old pool map can't be removed from the data directory");
        }
    }

    /// Takes note of a new size.
    ///
    /// # Errors
    /// When it can't be stored.
    pub(crate) async fn set_size(&self, size: u64) -> Result<(), Failed> {
        let _permit = self.recording.acquire().await;
        let record = PoolRecord { size, ..self.record.borrow().clone() };
        self.store_record(&record).await?;
        self.record.borrow_mut().size = size;
        Ok(())
    }

    async fn store_record(&self, record: &PoolRecord) -> Result<(), Failed> {
        let change = record::change(SCOPE_TARGET, NAME_POOL, Some(record::encode(record)));
        Ok(self.shard.change_attributes(&[change]).await?)
    }

    /// Space of its part of the store, by container, and the containers in use.
    pub(crate) fn space(&self) -> TargetPoolSpace {
        let space = self.shard.space();
        let live = space.containers.iter().filter(|summary| !summary.destroying);
        TargetPoolSpace {
            total: space.total,
            free: space.free,
            containers: live.map(|summary| (summary.container, summary.counted)).collect(),
            active: self.active(),
        }
    }

    /// Containers that clients have used of late.
    fn active(&self) -> Vec<ContainerId> {
        let now = self.engines.runtime().now();
        let lease = Duration::from_nanos(HANDLE_LEASE_NS);
        let fresh = |at| now.saturating_duration_since(at) < lease;
        let known = self.containers.borrow();
        known.values().filter(|one| one.used_at.get().is_some_and(fresh)).map(|one| one.id).collect()
    }
}
