//! One pool on one target: containers, space. The operations on objects and attributes are in files of their own.

use crate::format::key::NUMBER_END;
use crate::format::key::{self, ContainerNumber, PoolNumber};
use crate::format::record::Change;
use crate::index::fault::{Halt, PageError};
use crate::state::catalog::{Catalog, Container};
use crate::state::core::Core;
use crate::state::error::{FetchError, PoolError, TransactionError, UpdateError};
use crate::state::stats::{ContainerSummary, PoolSpace};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_proto::{ContainerId, Epoch, PoolId};

/// Most epochs that one record adds or removes: with their pool and container they take some 25 bytes each, a small part of
/// [`crate::format::record::RECORD_MAX`], beyond which an open doesn't read on.
const SNAPSHOT_CHANGES_MAX: usize = 4096;

/// One pool on one target. Cheap to clone; operations on a destroyed pool fail.
#[derive(Clone)]
pub struct Shard {
    pub(crate) core: Rc<Core>,
    pub(crate) number: PoolNumber,
    id: PoolId,
}

impl core::fmt::Debug for Shard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shard").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a container can't be used.
#[derive(Clone, Debug)]
pub(crate) enum Absent {
    Pool(PoolId),
    Container(ContainerId),
    Destroying(ContainerId),
    /// It is there, and shut ([`crate::log::lost`]).
    Shut(ContainerId, Rc<PageError>),
}

impl From<Absent> for PoolError {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::Pool(pool) => Self::Missing(pool),
            Absent::Container(container) => Self::ContainerMissing(container),
            Absent::Destroying(container) => Self::ContainerDestroying(container),
            Absent::Shut(container, why) => Self::Index(format!(
                "container {container} is shut, since its snapshots or transactions may be lost: {why}"
            )),
        }
    }
}

impl From<Absent> for UpdateError {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::Pool(pool) => Self::PoolMissing(pool),
            Absent::Container(container) => Self::ContainerMissing(container),
            Absent::Destroying(container) => Self::ContainerDestroying(container),
            Absent::Shut(_, why) => PageError::clone(&why).into(),
        }
    }
}

impl From<Absent> for TransactionError {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::Pool(pool) => Self::PoolMissing(pool),
            Absent::Container(container) => Self::ContainerMissing(container),
            Absent::Destroying(container) => Self::ContainerDestroying(container),
            Absent::Shut(_, why) => PageError::clone(&why).into(),
        }
    }
}

impl From<Absent> for FetchError {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::Pool(pool) => Self::PoolMissing(pool),
            Absent::Container(container) => Self::ContainerMissing(container),
            Absent::Destroying(container) => Self::ContainerDestroying(container),
            Absent::Shut(_, why) => PageError::clone(&why).into(),
        }
    }
}

/// Where the quota of a container is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QuotaCheck {
    /// At this shard.
    Here,
    /// At the leader of the group of replicas, which has stored the change: the copy counts, and no quota refuses it.
    AtLeader,
    /// The same of a copy for which the leader has asked for room before ([`Shard::set_promised`]): the pool's share doesn't refuse
    /// it, either. What was promised before this store was opened may exceed it.
    Promised,
}

impl Shard {
    pub(crate) fn new(core: Rc<Core>, number: PoolNumber, id: PoolId) -> Self {
        Self { core, number, id }
    }

    /// The pool.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Why no change can be kept any more, if so: the store has failed, or its device is out of use. One that is being closed, or
    /// was, is as good as it has been.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.core.is_stopped() {
            return None;
        }
        self.core.device.fault().or_else(|| self.core.failure())
    }

    pub(crate) fn check_pool(&self) -> Result<(), Absent> {
        let catalog = self.core.catalog.borrow();
        let live = catalog.pools.get(&self.number).is_some_and(|pool| !pool.destroying);
        if live { Ok(()) } else { Err(Absent::Pool(self.id)) }
    }

    /// Number of a container that can be used.
    #[inline]
    pub(crate) fn locate(&self, container: ContainerId) -> Result<ContainerNumber, Absent> {
        let catalog = self.core.catalog.borrow();
        catalog.locate(self.number, container).ok_or_else(|| self.why_absent(&catalog, container))
    }

    /// Why a container can't be located.
    #[cold]
    fn why_absent(&self, catalog: &Catalog, container: ContainerId) -> Absent {
        let pool = catalog.pools.get(&self.number).filter(|pool| !pool.destroying);
        let Some(pool) = pool else { return Absent::Pool(self.id) };
        if let Some((_, why)) = catalog.find_shut(self.number, container) {
            return Absent::Shut(container, why);
        }
        let destroying = pool.containers.values().any(|found| found.id == container);
        if destroying { Absent::Destroying(container) } else { Absent::Container(container) }
    }

    /// Creates a container. Creating it again succeeds.
    ///
    /// # Errors
    /// When the pool is gone, the device has no room for more, or the store has failed.
    pub async fn create_container(&self, container: ContainerId) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        self.check_pool()?;
        match self.locate(container) {
            // The one who created it may not have been told yet.
            Ok(_) => {
                return self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed);
            }
            Err(shut @ Absent::Shut(..)) => return Err(shut.into()),
            Err(_) => {}
        }
        self.core.check_room_for_entry(self.id)?;
        let changes = {
            let catalog = self.core.catalog.borrow();
            let pool = catalog.pools.get(&self.number).ok_or(PoolError::Missing(self.id))?;
            let number = pool.next_container;
            let mut pool = crate::state::catalog::Pool::new(pool.id, pool.size);
            pool.next_container = number + 1;
            if pool.next_container == NUMBER_END {
                return Err(PoolError::Failed("no number is left for another container".to_owned()));
            }
            [pool.change(self.number), Container::new(container).change(self.number, number)]
        };
        self.core.change_catalog(&changes).await.map_err(PoolError::Failed)
    }

    /// Destroys a container at once; its space returns in the background. Destroying a missing one succeeds.
    ///
    /// # Errors
    /// When the pool is gone or the store has failed.
    pub async fn destroy_container(&self, container: ContainerId) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        self.check_pool()?;
        let shut = || self.core.catalog.borrow().find_shut(self.number, container).map(|(number, _)| number);
        let Some(number) = self.locate(container).ok().or_else(shut) else {
            return self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed);
        };
        let change = {
            let mut state = Container::new(container);
            state.destroying = true;
            state.change(self.number, number)
        };
        self.core.change_catalog(&[change]).await.map_err(PoolError::Failed)?;
        self.core.chores.notify_one();
        Ok(())
    }

    /// Containers with their use, those being destroyed included.
    #[must_use]
    pub fn containers(&self) -> Vec<ContainerSummary> {
        let catalog = self.core.catalog.borrow();
        let Some(pool) = catalog.pools.get(&self.number) else { return Vec::new() };
        let summary = |container: &Container| ContainerSummary {
            container: container.id,
            used: container.usage.total(),
            counted: container.counted(),
            quota: container.quota,
            destroying: container.destroying,
        };
        pool.containers.values().map(summary).collect()
    }

    /// Whether the container exists and isn't being destroyed.
    #[must_use]
    pub fn has_container(&self, container: ContainerId) -> bool {
        matches!(self.locate(container), Ok(_) | Err(Absent::Shut(..)))
    }

    /// Limits what a container may use on this target; 0 lifts the limit.
    ///
    /// # Errors
    /// When the container is missing.
    pub async fn set_quota(&self, container: ContainerId, bytes: u64) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        let number = self.locate(container)?;
        let mut state = Container::new(container);
        state.quota = bytes;
        self.core.change_catalog(&[state.change(self.number, number)]).await.map_err(PoolError::Failed)
    }

    /// Replaces the list of epochs whose state aggregation keeps. Where a crash or another call comes between the parts of a
    /// long one, epochs of both lists may be kept.
    ///
    /// # Errors
    /// When the container is missing, or the device has no room for more.
    pub async fn set_snapshots(&self, container: ContainerId, epochs: &[Epoch]) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        let number = self.locate(container)?;
        let wanted: BTreeSet<u64> = epochs.iter().map(|epoch| epoch.0).collect();
        let key = |epoch: &u64| key::snapshot(self.number, number, *epoch);
        let present = self.snapshot_set(number);
        let gone = present.difference(&wanted).map(|epoch| Change::Remove { key: key(epoch) });
        let new = wanted.difference(&present);
        let new = new.map(|epoch| Change::Put { key: key(epoch), value: Vec::new() });
        // What is new comes first: where an epoch has gone, all of the wanted ones are there.
        let changes: Vec<Change> = new.chain(gone).collect();
        if changes.is_empty() {
            // The one who set them may not have been told yet.
            self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed)?;
        }
        for part in changes.chunks(SNAPSHOT_CHANGES_MAX) {
            self.change_snapshots(container, number, part).await?;
        }
        if present.difference(&wanted).next().is_some() {
            self.core.aggregation.borrow_mut().add_container(self.number, number);
            self.core.chores.notify_one();
        }
        Ok(())
    }

    /// Adds one epoch to those whose state aggregation keeps, however many there are.
    ///
    /// # Errors
    /// When the container is missing, or the device has no room for more.
    pub async fn add_snapshot(&self, container: ContainerId, epoch: Epoch) -> Result<(), PoolError> {
        let number = self.locate(container)?;
        let key = key::snapshot(self.number, number, epoch.0);
        self.change_snapshots(container, number, &[Change::Put { key, value: Vec::new() }]).await
    }

    /// Adds and removes epochs that a container keeps.
    async fn change_snapshots(
        &self,
        container: ContainerId,
        number: ContainerNumber,
        changes: &[Change],
    ) -> Result<(), PoolError> {
        self.core.admit().await.map_err(PoolError::Failed)?;
        let reached =
            self.core.ask(|tree| Ok::<_, Halt<String>>(tree.reach(changes.iter().map(Change::key))?));
        reached.await.map_err(PoolError::Index)?;
        // The container may have gone while index nodes were read: nobody would take these away.
        if self.locate(container)? != number {
            return Err(PoolError::ContainerMissing(container));
        }
        if changes.iter().any(|change| matches!(change, Change::Put { .. })) {
            self.core.check_room_for_entry(self.id)?;
        }
        let record = self.core.commit(changes, None).map_err(|error| PoolError::Failed(error.to_string()))?;
        self.core.make_durable(record).await.map_err(PoolError::Failed)
    }

    /// The snapshots of a container; none of one that is gone.
    pub(crate) fn snapshot_set(&self, number: ContainerNumber) -> Rc<BTreeSet<u64>> {
        let catalog = self.core.catalog.borrow();
        let container = catalog.pools.get(&self.number).and_then(|pool| pool.containers.get(&number));
        container.map(|container| Rc::clone(&container.snapshots)).unwrap_or_default()
    }

    /// The epochs whose state aggregation keeps, ascending.
    ///
    /// # Errors
    /// When the container is missing.
    pub fn snapshots(&self, container: ContainerId) -> Result<Vec<Epoch>, PoolError> {
        let number = self.locate(container)?;
        Ok(self.snapshot_set(number).iter().copied().map(Epoch).collect())
    }

    /// Space of the pool on this target.
    #[must_use]
    pub fn space(&self) -> PoolSpace {
        let containers = self.containers();
        let catalog = self.core.catalog.borrow();
        let Some(pool) = catalog.pools.get(&self.number) else { return PoolSpace::default() };
        let used = pool.used();
        PoolSpace {
            total: pool.size,
            data: used.data(),
            metadata: used.metadata(),
            reserved: used.reserved,
            prepared: self.prepared(),
            free: pool.free().saturating_sub(self.prepared()),
            containers,
        }
    }

    /// Bytes of the pool's share that its prepared transactions take when they are committed.
    fn prepared(&self) -> u64 {
        self.core.prepared_bytes_of(self.number)
    }

    /// Checks that an update fits the container's quota where `quota` says so, the pool's share and the device: so many bytes, bytes
    /// `reserved` of the pool's share, and blocks. Of the quota it takes what is reserved, too: what others have stored meanwhile
    /// counts. Returns whether the container is near its quota.
    pub(crate) fn check_space(
        &self,
        (id, number): (ContainerId, ContainerNumber),
        quota: QuotaCheck,
        (bytes, reserved, blocks): (u64, u64, u64),
    ) -> Result<bool, UpdateError> {
        let catalog = self.core.catalog.borrow();
        let pool = catalog.pools.get(&self.number).ok_or_else(|| UpdateError::PoolMissing(self.id()))?;
        let container = pool.containers.get(&number).ok_or_else(|| UpdateError::ContainerMissing(id))?;
        let (of_container, of_pool) = {
            let prepared_spaces = &self.core.transactions.borrow().prepared_spaces;
            (prepared_spaces.of_container(self.number, number), prepared_spaces.of_pool(self.number))
        };
        let taken = bytes.saturating_add(reserved).saturating_add(of_container);
        // What takes nothing fits however much others have.
        if quota == QuotaCheck::Here && (bytes > 0 || reserved > 0) {
            container.check_quota(taken).map_err(|quota| UpdateError::Quota { container: id, quota })?;
        }
        let free = pool.unpromised().saturating_sub(of_pool);
        let (is_copy, exceeds) = (quota == QuotaCheck::Promised, bytes > free);
        let fits = if is_copy {
            self.core.has_blocks_for_copy(blocks)
        } else {
            !exceeds && self.core.has_blocks(blocks)
        };
        if !fits {
            // Deleted data may be waiting for aggregation.
            self.core.chores.notify_one();
            let free = if exceeds { free } else { 0 };
            return Err(UpdateError::NoSpace { pool: self.id(), needed: bytes, free, size: pool.size });
        }
        Ok(container.is_near_quota())
    }

    /// Bytes of the pool's share, and of the device, for which room may be promised beside what is promised already.
    #[must_use]
    pub fn promisable(&self) -> u64 {
        let prepared = self.prepared();
        let catalog = self.core.catalog.borrow();
        let of_share =
            catalog.pools.get(&self.number).map_or(0, |pool| pool.unpromised().saturating_sub(prepared));
        drop(catalog);
        of_share.min(self.core.promisable_bytes())
    }

    /// From now on so many bytes of the pool's share are kept for copies that leaders of groups of replicas were promised room for.
    /// Nothing else gets them. Not durable.
    pub fn set_promised(&self, bytes: u64) {
        self.core.catalog.borrow_mut().promise(self.number, bytes);
    }
}
