//! The store of one target.

use crate::format::key::PoolNumber;
use crate::format::owner::Owner;
use crate::format::record::Change;
use crate::format::unfinished_format;
use crate::log::checkpoint;
use crate::log::formatting::Formatting;
use crate::log::recover::Opening;
use crate::state::catalog::Pool;
use crate::state::config::{FormatOptions, StoreConfig};
use crate::state::core::{Core, reserve_blocks};
use crate::state::error::{FormatError, OpenError, PoolError};
use crate::state::journal;
use crate::state::mark::Mark;
use crate::state::rot::{self, RottenVersion};
use crate::state::shard::Shard;
use crate::state::stats::{
    CacheStats, CommitStats, DmaStats, IndexStats, PoolSummary, StoreSpace, StoreStats,
};
use core::cell::RefCell;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::health::{DeviceHealth, Stall};
use weir_media::{BLOCK, Device};
use weir_proto::{Epoch, PoolId};
use weir_runtime::{Handle, JoinHandle};

/// How often a checkpoint that finds no room is tried before the caller is told: space that readers hold comes back
/// within milliseconds.
const CHECKPOINT_TRIES: u64 = 20;

/// The store of one target. Dropping it stops its background work; everything acknowledged is durable.
pub struct Store {
    core: Rc<Core>,
    /// Those that bring changes to the device.
    tasks: RefCell<Vec<JoinHandle<()>>>,
    /// Those that make changes, look for damage, or note what was stable.
    background: RefCell<Vec<JoinHandle<()>>>,
}

impl core::fmt::Debug for Store {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Store")
            .field("id", &self.core.id)
            .field("device", &self.core.device.name())
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.core.stop();
        self.tasks.get_mut().iter().for_each(JoinHandle::abort);
        self.background.get_mut().iter().for_each(JoinHandle::abort);
        // Whoever waits for what nobody brings to the device any more is told.
        self.core.fail("it was closed");
    }
}

impl Store {
    /// Writes an empty store to an empty device and returns the identity it was given.
    ///
    /// # Errors
    /// When the device holds any non-zero byte, is too small, or fails.
    pub async fn format(
        rt: &Handle,
        device: &Rc<dyn Device>,
        options: &FormatOptions,
    ) -> Result<Uuid, FormatError> {
        let formatting = Formatting::plan(device, options)?;
        formatting.check_empty().await?;
        let superblock = formatting.begin(rt, &unfinished_format(device.size())).await?;
        formatting.finish(&superblock).await?;
        Ok(superblock.id)
    }

    /// Opens a store and recovers everything that was acknowledged.
    ///
    /// # Errors
    /// See [`OpenError`]; the device is left as it was.
    pub async fn open(
        rt: &Handle,
        device: Rc<dyn Device>,
        owner: &Owner,
        config: StoreConfig,
    ) -> Result<Rc<Self>, OpenError> {
        let opening = Opening::new(&device, owner).await?;
        Self::recover(rt, opening, config).await
    }

    /// Opens the store of a superblock.
    pub(crate) async fn recover(
        rt: &Handle,
        opening: Opening<'_>,
        config: StoreConfig,
    ) -> Result<Rc<Self>, OpenError> {
        let begin = rt.now();
        let core = opening.recover(rt, config).await?;
        core.counters.recovery.set(rt.now() - begin);
        if let Some(limit) = core.config.stall_limit {
            core.device.bear_stalls(limit);
        }
        let tasks =
            vec![rt.spawn(journal::run(Rc::clone(&core))), rt.spawn(checkpoint::run(Rc::clone(&core)))];
        let mut background = vec![rt.spawn(journal::mark(Rc::clone(&core)))];
        if core.config.background {
            background.push(rt.spawn(crate::upkeep::chores::run(Rc::clone(&core))));
        }
        if let Some(scrub) = core.config.scrub {
            background.push(rt.spawn(crate::upkeep::scrub::run(Rc::clone(&core), scrub)));
        }
        core.request_checkpoint_if_due();
        let (tasks, background) = (RefCell::new(tasks), RefCell::new(background));
        Ok(Rc::new(Self { core, tasks, background }))
    }

    /// Identity given at format.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.core.id
    }

    /// How far the store is: what an open of its device must find ([`StoreConfig::mark`]).
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark::of(&self.core)
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn core_rc(&self) -> &Rc<Core> {
        &self.core
    }

    fn shard(&self, number: PoolNumber, id: PoolId) -> Shard {
        Shard::new(Rc::clone(&self.core), number, id)
    }

    /// Bytes that can be given to pools.
    fn capacity(&self) -> u64 {
        let blocks = self.core.layout.data_blocks;
        (blocks - reserve_blocks(blocks).min(blocks)) * BLOCK as u64
    }

    /// Bytes given to pools: the shares of live ones, and what destroyed ones still hold.
    fn assigned(&self) -> u64 {
        let share = |pool: &Pool| if pool.destroying { pool.used().total() } else { pool.size };
        self.core.catalog.borrow().pools.values().map(share).fold(0, u64::saturating_add)
    }

    /// Newest epoch of any update or punch that the store has taken, and of transactions that are prepared; [`Epoch::ZERO`]
    /// before the first. A clock that goes on from here gives no epoch twice, and none before what may be committed already.
    #[must_use]
    pub fn newest_epoch(&self) -> Epoch {
        let prepared = self.core.transactions.borrow().newest().unwrap_or(Epoch::ZERO);
        Epoch(self.core.newest_epoch()).max(prepared)
    }

    /// Creates a pool shard of `size` bytes. Creating it again with the same size succeeds.
    ///
    /// # Errors
    /// When it exists with another size or the target lacks the space.
    pub async fn create_pool(&self, pool: PoolId, size: u64) -> Result<Shard, PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        let found = self.core.catalog.borrow().find(pool).map(|(number, pool)| (number, pool.size));
        match found {
            Some((number, existing)) if existing == size => {
                self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed)?;
                return Ok(self.shard(number, pool));
            }
            Some((_, size)) => return Err(PoolError::Exists { pool, size }),
            None => {}
        }
        let free = self.capacity().saturating_sub(self.assigned());
        if size > free {
            return Err(PoolError::NoSpace { pool, asked: size, free });
        }
        self.core.check_room_for_entry(pool)?;
        let number = self.core.catalog.borrow().next_pool();
        let number =
            number.ok_or_else(|| PoolError::Failed("no number is left for another pool".to_owned()))?;
        let change = Pool::new(pool, size).change(number);
        self.core.change_catalog(&[change]).await.map_err(PoolError::Failed)?;
        Ok(self.shard(number, pool))
    }

    fn find(&self, pool: PoolId) -> Result<(PoolNumber, Pool), PoolError> {
        let catalog = self.core.catalog.borrow();
        catalog.find(pool).map(|(number, pool)| (number, pool.clone())).ok_or(PoolError::Missing(pool))
    }

    /// Grows or shrinks a pool's share, down to what it uses.
    ///
    /// # Errors
    /// When the pool is missing, holds more, or the target lacks the space.
    pub async fn resize_pool(&self, pool: PoolId, size: u64) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        let (number, mut state) = self.find(pool)?;
        let of_prepared = self.core.transactions.borrow().prepared_spaces.of_pool(number);
        let used = state.used().total().saturating_add(state.reserved).saturating_add(of_prepared);
        if size < used {
            return Err(PoolError::InUse { pool, asked: size, used });
        }
        let free = self.capacity().saturating_add(state.size).saturating_sub(self.assigned());
        if size > free {
            return Err(PoolError::NoSpace { pool, asked: size, free });
        }
        state.size = size;
        let change: Change = state.change(number);
        self.core.change_catalog(&[change]).await.map_err(PoolError::Failed)
    }

    /// Destroys a pool shard. Its space returns in the background. Destroying a missing pool succeeds.
    ///
    /// # Errors
    /// When the store has failed.
    pub async fn destroy_pool(&self, pool: PoolId) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        let Ok((number, mut state)) = self.find(pool) else {
            return self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed);
        };
        state.destroying = true;
        self.core.change_catalog(&[state.change(number)]).await.map_err(PoolError::Failed)?;
        self.core.chores.notify_one();
        Ok(())
    }

    /// The pools, in the order of their creation.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolSummary> {
        let catalog = self.core.catalog.borrow();
        let summary = |pool: &Pool| PoolSummary {
            pool: pool.id,
            size: pool.size,
            used: pool.used().total(),
            containers: pool.containers.values().filter(|container| !container.destroying).count() as u64,
        };
        catalog.pools.values().filter(|pool| !pool.destroying).map(summary).collect()
    }

    /// The shard of a pool.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> Option<Shard> {
        let number = self.core.catalog.borrow().find(pool)?.0;
        Some(self.shard(number, pool))
    }

    /// Space of the whole target.
    #[must_use]
    pub fn space(&self) -> StoreSpace {
        let block = BLOCK as u64;
        let space = self.core.space.borrow();
        let total = self.core.layout.data_blocks * block;
        let free = (space.free() + space.held()) * block;
        StoreSpace {
            device: self.core.layout.size,
            capacity: self.capacity(),
            assigned: self.assigned(),
            used: total - free,
            free,
        }
    }

    /// Figures for metrics.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let core = &self.core;
        let ring = *core.journal.ring.borrow();
        let (undecided, undecided_oldest) = core.transactions.borrow().waiting();
        StoreStats {
            commit: CommitStats {
                log_capacity: ring.len,
                log_used: ring.used(),
                log_written: core.journal.written.get(),
                records: core.journal.records.get(),
                batches: core.journal.batches.get(),
                latency: *core.journal.latency.borrow(),
            },
            checkpoints: core.checkpoints.count.get(),
            checkpoint_time: core.checkpoints.time.get(),
            checkpoint_latency: *core.checkpoints.latency.borrow(),
            checkpoint_failures: core.checkpoints.failures.get(),
            checkpoint_last_ns: core.checkpoints.last_ns.get(),
            replayed_records: core.counters.replayed.get(),
            recovery_time: core.counters.recovery.get(),
            checkpoint_bytes: core.checkpoints.bytes.get(),
            dirty_nodes: core.tree.borrow().dirty_nodes() as u64,
            entries: core.tree.borrow().len(),
            index: IndexStats {
                memory: core.resident_bytes() as u64,
                memory_limit: core.config.index_bytes as u64,
                faults: core.paging.faults.get(),
                visits: core.tree.borrow().visits(),
                evictions: core.paging.evictions.get(),
                errors: core.paging.errors.get(),
            },
            cache: CacheStats {
                bytes: core.cache.bytes() as u64,
                limit: core.config.cache_bytes as u64,
                hits: core.cache.hits.get(),
                misses: core.cache.misses.get(),
            },
            dma: DmaStats {
                used: core.dma.used() as u64,
                held: core.dma.held() as u64,
                limit: core.dma.limit() as u64,
                waits: core.dma.waits(),
            },
            queue_depth: core.journal.depth(),
            space: self.space(),
            undecided,
            undecided_oldest: undecided_oldest.unwrap_or(Epoch::ZERO),
            aggregated: core.counters.aggregated.get(),
            relocated: core.counters.relocated.get(),
            reclaimed: core.counters.reclaimed.get(),
            checksum_errors: core.counters.checksum_errors.get(),
            device: core.device.stats(),
        }
    }

    /// How the device is doing; `None` when nobody watches it.
    #[must_use]
    pub fn device_health(&self) -> Option<DeviceHealth> {
        self.core.device.health()
    }

    /// Why the device is faulty and no longer used, if so: for good, or until a transfer ends that takes very long.
    #[must_use]
    pub fn device_fault(&self) -> Option<String> {
        let stalled = || self.device_stall().filter(|stall| stall.is_faulty).map(|stall| stall.reason);
        self.core.device.fault().or_else(stalled)
    }

    /// The transfer that everything waits for at this moment, if one takes long.
    #[must_use]
    pub fn device_stall(&self) -> Option<Stall> {
        self.core.device.stall()
    }

    /// Takes the device out of use for this reason; see [`weir_media::Device::condemn`].
    pub fn condemn_device(&self, reason: &str) {
        self.core.device.condemn(reason);
    }

    /// What the scrubber did and found.
    #[must_use]
    pub fn scrub(&self) -> crate::state::rot::ScrubReport {
        self.core.scrub.report.borrow().clone()
    }

    /// The next version with data that the scrubber has found damaged. From the first call on it leaves these to the caller, who
    /// repairs them ([`Shard::repair_version`]) or says that they stay as they are ([`Store::report_rotten`]).
    #[must_use]
    pub fn take_rotten(&self) -> Option<RottenVersion> {
        self.core.scrub.take_rotten()
    }

    /// Counts a version as rotten that nobody can repair.
    pub fn report_rotten(&self, found: RottenVersion) {
        for place in found.places {
            rot::report(&self.core, place);
        }
    }

    /// Memory of the index in bytes: of nodes in memory, and of those that a checkpoint being written keeps.
    #[must_use]
    pub fn index_memory(&self) -> usize {
        self.core.resident_bytes()
    }

    /// Writes a checkpoint, so that an open after it has no log to replay.
    ///
    /// # Errors
    /// When the store has failed.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        let core = &self.core;
        let before = core.checkpoints.count.get();
        // One that is being written began earlier: the next one counts.
        let wanted = before + 1 + u64::from(core.checkpoints.is_running());
        let failures = core.checkpoints.failures.get();
        while core.checkpoints.count.get() < wanted {
            if let Some(reason) = core.failure() {
                return Err(PoolError::Failed(reason));
            }
            if core.checkpoints.failures.get() >= failures + CHECKPOINT_TRIES {
                return Err(PoolError::Failed("there is no room for index nodes; delete data".to_owned()));
            }
            let done = core.checkpoints.done.notified();
            core.checkpoints.request.notify_one();
            done.await;
        }
        Ok(())
    }

    /// Takes no more changes, waits until those that were made are durable and nothing is on its way to the device, writes
    /// a checkpoint and stops. A change that meets this is acknowledged, or fails and leaves nothing; later ones fail. What
    /// is being read may be.
    ///
    /// # Errors
    /// When the device fails, or has no room for a checkpoint; acknowledged state is safe in the log all the same. The
    /// store takes no changes then, either.
    pub async fn close(&self) -> Result<(), PoolError> {
        let core = &self.core;
        core.stop();
        let background = core::mem::take(&mut *self.background.borrow_mut());
        background.iter().for_each(JoinHandle::abort);
        core.space.borrow_mut().release_held();
        // What is written for changes that are refused now goes to blocks that the next open gives to others.
        core.writer.rest().await;
        core.pace.rest().await;
        core.make_durable(core.journal.last()).await.map_err(PoolError::Failed)?;
        self.checkpoint().await?;
        core.fail("it was closed");
        // What these have begun meanwhile comes to its end, too.
        core.journal.end();
        core.checkpoints.request.notify_one();
        let tasks = core::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            // It has ended, however.
            let _ = task.await;
        }
        journal::await_preparation(core, 0..u64::MAX).await;
        Ok(())
    }

    /// Moves values together until no more is gained by it, however much room there is. Background work does the same
    /// by itself when room for long extents runs short. Returns the number of values moved.
    ///
    /// # Errors
    /// When the store has failed, or a part of the index is damaged.
    pub async fn defragment(&self) -> Result<u64, PoolError> {
        crate::upkeep::defragment::run(self.core_rc()).await
    }
}
