//! Pools and containers of a store, in DRAM beside the index that holds them durably.

use crate::format::codec::{Decoder, Encode, Malformed};
use crate::format::key::NUMBER_END;
use crate::format::key::ObjectKey;
use crate::format::key::{self, ContainerNumber, PoolNumber};
use crate::format::record::Change;
use crate::format::usage::Usage;
use crate::index::fault::PageError;
use crate::state::core::Core;
use crate::state::reclaimable::Reclaimable;
use core::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use uuid::Uuid;
use weir_proto::{ContainerId, PoolId};

/// Part of its quota from which on a container counts what updates hide: less than this is soon written twice.
const NEAR_DIVISOR: u64 = 2;

/// Bytes of an object's key that say whose it is: kind, pool and container.
const OWNER_BYTES: usize = 1 + 2 * size_of::<u32>();

/// What entries of one container gained and lost that are changed together, until it is counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// What the keys of the container's objects begin with; zeros before there is one.
    owner: [u8; OWNER_BYTES],
    old: Usage,
    new: Usage,
}

impl Tally {
    /// Adds the entry of an object. `false`: it is another container's, and what is here has to be counted first.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], old: Usage, new: Usage) -> bool {
        let Some(owner) = key.first_chunk().filter(|owner| owner[0] == key::OBJECT) else { return false };
        if self.owner != *owner {
            if self.owner[0] == key::OBJECT {
                return false;
            }
            self.owner = *owner;
        }
        self.old += old;
        self.new += new;
        true
    }
}

/// A container.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its identity.
    pub id: ContainerId,
    /// Its quota on this target, in bytes; 0: none.
    pub quota: u64,
    /// Whether it is being destroyed.
    pub destroying: bool,
    /// Epochs whose state it keeps. Shared with aggregation while that looks at an object.
    pub snapshots: Rc<BTreeSet<u64>>,
    /// What it uses.
    pub usage: Usage,
    /// What of that is hidden and about to go.
    pub(crate) reclaimable: Reclaimable,
    /// Why nothing can be said of what it holds, if so ([`crate::log::lost`]).
    pub(crate) shut: Option<Rc<PageError>>,
    /// The usage differs from the stored one.
    dirty: bool,
}

impl Container {
    pub(crate) fn new(id: ContainerId) -> Self {
        Self {
            id,
            quota: 0,
            destroying: false,
            snapshots: Rc::default(),
            usage: Usage::default(),
            reclaimable: Reclaimable::default(),
            shut: None,
            dirty: false,
        }
    }

    /// Whether so much more stays within the quota. `Err`: the quota.
    pub(crate) fn check_quota(&self, bytes: u64) -> Result<(), u64> {
        let is_within = self.quota == 0 || self.counted().saturating_add(bytes) <= self.quota;
        if is_within { Ok(()) } else { Err(self.quota) }
    }

    /// Bytes that count towards the quota.
    pub(crate) fn counted(&self) -> u64 {
        self.usage.total().saturating_sub(self.reclaimable.total())
    }

    /// Whether it uses so much of its quota that it may need what is about to go.
    pub(crate) fn is_near_quota(&self) -> bool {
        self.quota > 0 && self.usage.total() > self.quota / NEAR_DIVISOR
    }

    /// The change that stores the container.
    pub(crate) fn change(&self, pool: PoolNumber, number: ContainerNumber) -> Change {
        let mut value = self.id.0.as_bytes().to_vec();
        value.put_u64(self.quota);
        value.put_u8(u8::from(self.destroying));
        Change::Put { key: key::container(key::CONTAINER, pool, number), value }
    }
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its identity.
    pub id: PoolId,
    /// Its share of the target, in bytes.
    pub size: u64,
    /// Whether it is being destroyed.
    pub destroying: bool,
    /// Number of the next container.
    pub(crate) next_container: ContainerNumber,
    /// Its containers.
    pub containers: BTreeMap<ContainerNumber, Container>,
    numbers: BTreeMap<ContainerId, ContainerNumber>,
    /// Attributes.
    own: Usage,
    own_dirty: bool,
    total: Usage,
    /// Bytes of updates that are writing their data.
    pub(crate) reserved: u64,
    /// Bytes that others were told they can still store here, as copies.
    pub(crate) promised: u64,
}

impl Pool {
    pub(crate) fn new(id: PoolId, size: u64) -> Self {
        Self {
            id,
            size,
            destroying: false,
            next_container: 1,
            containers: BTreeMap::new(),
            numbers: BTreeMap::new(),
            own: Usage::default(),
            own_dirty: false,
            total: Usage::default(),
            reserved: 0,
            promised: 0,
        }
    }

    /// What it uses.
    #[must_use]
    pub fn used(&self) -> Usage {
        self.total
    }

    /// Bytes that updates can still take.
    pub(crate) fn free(&self) -> u64 {
        self.size.saturating_sub(self.total.total().saturating_add(self.reserved))
    }

    /// The same beside what is promised to others.
    pub(crate) fn unpromised(&self) -> u64 {
        self.free().saturating_sub(self.promised)
    }

    /// The change that stores the pool.
    pub(crate) fn change(&self, number: PoolNumber) -> Change {
        let mut value = self.id.0.as_bytes().to_vec();
        value.put_u64(self.size);
        value.put_u32(self.next_container);
        value.put_u8(u8::from(self.destroying));
        Change::Put { key: key::pool(number), value }
    }
}

/// A container that can be used.
#[derive(Clone, Copy, Debug)]
struct Located {
    pool: PoolNumber,
    id: ContainerId,
    number: ContainerNumber,
}

/// All pools.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// By their numbers.
    pub pools: BTreeMap<PoolNumber, Pool>,
    /// Highest number that a pool has had since the open. Requests that are under way may still name one that has gone.
    newest: PoolNumber,
    /// What is promised of all pools.
    promised: u64,
    /// The container that was asked for last, most likely the next one, too. Forgotten when any pool or container changes.
    located: Cell<Option<Located>>,
}

fn numbers(key: &[u8]) -> Result<(u8, PoolNumber, ContainerNumber), Malformed> {
    let mut decoder = Decoder::new(key);
    let kind = decoder.u8()?;
    let pool = u32::from_be_bytes(decoder.array()?);
    let container = if decoder.is_empty() { 0 } else { u32::from_be_bytes(decoder.array()?) };
    Ok((kind, pool, container))
}

impl Catalog {
    /// The pool that isn't being destroyed.
    pub(crate) fn find(&self, id: PoolId) -> Option<(PoolNumber, &Pool)> {
        let (number, pool) = self.pools.iter().find(|(_, pool)| pool.id == id && !pool.destroying)?;
        Some((*number, pool))
    }

    /// Number of a container if neither it nor its pool is being destroyed.
    pub(crate) fn locate(&self, pool: PoolNumber, id: ContainerId) -> Option<ContainerNumber> {
        if let Some(last) = self.located.get().filter(|last| last.pool == pool && last.id == id) {
            return Some(last.number);
        }
        let number = self.pools.get(&pool).filter(|pool| !pool.destroying)?.numbers.get(&id).copied()?;
        self.located.set(Some(Located { pool, id, number }));
        Some(number)
    }

    pub(crate) fn container_mut(
        &mut self,
        (pool, number): (PoolNumber, ContainerNumber),
    ) -> Option<&mut Container> {
        self.pools.get_mut(&pool)?.containers.get_mut(&number)
    }

    /// Has a container not be located any more. Returns its identity, if it is there.
    pub(crate) fn shut(
        &mut self,
        (pool, number): (PoolNumber, ContainerNumber),
        why: PageError,
    ) -> Option<ContainerId> {
        self.located.set(None);
        let pool = self.pools.get_mut(&pool)?;
        let container = pool.containers.get_mut(&number)?;
        container.shut = Some(Rc::new(why));
        if pool.numbers.get(&container.id) == Some(&number) {
            pool.numbers.remove(&container.id);
        }
        Some(container.id)
    }

    /// All containers that are shut.
    pub(crate) fn all_shut(&self) -> BTreeSet<(PoolNumber, ContainerNumber)> {
        let of = |(number, pool): (&PoolNumber, &'_ Pool)| {
            let shut = pool.containers.iter().filter(|(_, container)| container.shut.is_some());
            let number = *number;
            shut.map(|(container, _)| (number, *container)).collect::<Vec<_>>()
        };
        self.pools.iter().flat_map(of).collect()
    }

    /// A container that is shut and not being destroyed: its number, and why.
    pub(crate) fn find_shut(
        &self,
        pool: PoolNumber,
        id: ContainerId,
    ) -> Option<(ContainerNumber, Rc<PageError>)> {
        let pool = self.pools.get(&pool).filter(|pool| !pool.destroying)?;
        pool.containers.iter().find_map(|(number, container)| {
            let why = container.shut.as_ref().filter(|_| container.id == id && !container.destroying)?;
            Some((*number, Rc::clone(why)))
        })
    }

    /// Whether any pool or container was destroyed and isn't gone yet.
    pub(crate) fn has_destroyed(&self) -> bool {
        self.pools
            .values()
            .any(|pool| pool.destroying || pool.containers.values().any(|container| container.destroying))
    }

    /// Bytes that are promised to others, of all pools.
    pub(crate) const fn promised(&self) -> u64 {
        self.promised
    }

    /// From now on so many bytes of a pool are promised.
    pub(crate) fn promise(&mut self, pool: PoolNumber, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            self.promised = self.promised - pool.promised + bytes;
            pool.promised = bytes;
        }
    }

    /// Number of the next pool; `None` when there is none left.
    pub(crate) fn next_pool(&self) -> Option<PoolNumber> {
        self.newest.checked_add(1).filter(|number| *number < NUMBER_END)
    }

    /// Follows a change of the index, if it concerns pools or containers.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn follow(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Malformed> {
        match key.first() {
            Some(&key::POOL) => self.follow_pool(numbers(key)?.1, value),
            Some(&key::CONTAINER) => {
                let (_, pool, container) = numbers(key)?;
                self.follow_container(pool, container, value)
            }
            Some(&key::SNAPSHOT) => {
                let (_, pool, container) = numbers(&key[..key.len().min(9)])?;
                let epoch = key.last_chunk().map(|epoch| u64::from_be_bytes(*epoch));
                let epoch = epoch.ok_or(Malformed("a snapshot's key is too short"))?;
                let found = self.container_mut((pool, container));
                match (found, value) {
                    (Some(container), Some(_)) => {
                        container.reclaimable.keep(epoch);
                        Rc::make_mut(&mut container.snapshots).insert(epoch);
                    }
                    (Some(container), None) => drop(Rc::make_mut(&mut container.snapshots).remove(&epoch)),
                    (None, _) => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether there is what an entry belongs to ([`key::belongs_to`]).
    #[must_use]
    pub fn has(&self, (pool, container): (PoolNumber, Option<ContainerNumber>)) -> bool {
        let found = self.pools.get(&pool);
        found.is_some_and(|pool| container.is_none_or(|container| pool.containers.contains_key(&container)))
    }

    /// Whether a container is being destroyed, or gone.
    #[must_use]
    pub fn is_going(&self, pool: PoolNumber, container: ContainerNumber) -> bool {
        self.pools.get(&pool).is_none_or(|pool| {
            pool.destroying || pool.containers.get(&container).is_none_or(|container| container.destroying)
        })
    }

    fn follow_pool(&mut self, number: PoolNumber, value: Option<&[u8]>) -> Result<(), Malformed> {
        self.located.set(None);
        let Some(value) = value else {
            self.promise(number, 0);
            self.pools.remove(&number);
            return Ok(());
        };
        let mut decoder = Decoder::new(value);
        let id = PoolId(Uuid::from_bytes(decoder.array()?));
        let (size, next_container, destroying) = (decoder.u64()?, decoder.u32()?, decoder.u8()? != 0);
        if [number, next_container].iter().any(|number| [0, NUMBER_END].contains(number)) {
            return Err(Malformed("a pool's number or that of its next container is impossible"));
        }
        self.newest = self.newest.max(number);
        let pool = self.pools.entry(number).or_insert_with(|| Pool::new(id, 0));
        (pool.size, pool.next_container, pool.destroying) = (size, next_container, destroying);
        Ok(())
    }

    fn follow_container(
        &mut self,
        pool: PoolNumber,
        number: ContainerNumber,
        value: Option<&[u8]>,
    ) -> Result<(), Malformed> {
        self.located.set(None);
        let Some(pool) = self.pools.get_mut(&pool) else { return Ok(()) };
        let Some(value) = value else {
            if let Some(container) = pool.containers.remove(&number) {
                pool.total -= container.usage;
                if pool.numbers.get(&container.id) == Some(&number) {
                    pool.numbers.remove(&container.id);
                }
            }
            return Ok(());
        };
        let mut decoder = Decoder::new(value);
        let id = ContainerId(Uuid::from_bytes(decoder.array()?));
        if [0, NUMBER_END].contains(&number) {
            return Err(Malformed("a container's number is impossible"));
        }
        let container = pool.containers.entry(number).or_insert_with(|| Container::new(id));
        container.quota = decoder.u64()?;
        container.destroying = decoder.u8()? != 0;
        if !container.destroying && container.shut.is_none() {
            pool.numbers.insert(id, number);
        } else if pool.numbers.get(&id) == Some(&number) {
            pool.numbers.remove(&id);
        }
        Ok(())
    }

    /// Counts what an entry gained or lost. Counters never go below zero: during recovery a record may be replayed
    /// over a state that is ahead of it, and later records bring the sum right again.
    pub fn count(&mut self, key: &[u8], old: Usage, new: Usage) {
        let Some((pool, container)) = key::owner(key) else { return };
        let Some(pool) = self.pools.get_mut(&pool) else { return };
        let change = |usage: &mut Usage| {
            *usage += new;
            *usage -= old;
        };
        if container == 0 {
            change(&mut pool.own);
            pool.own_dirty = true;
        } else {
            let Some(container) = pool.containers.get_mut(&container) else { return };
            change(&mut container.usage);
            container.dirty = true;
        }
        change(&mut pool.total);
    }

    /// Counts what is in a tally, and empties it.
    #[inline]
    pub(crate) fn count_tally(&mut self, tally: &mut Tally) {
        if tally.owner[0] == key::OBJECT {
            let Tally { owner, old, new } = core::mem::take(tally);
            self.count(&owner, old, new);
        }
    }

    /// Entries of usage that differ from the stored ones.
    pub(crate) fn take_dirty_usage(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut entries = Vec::new();
        for (pool_number, pool) in &mut self.pools {
            if core::mem::take(&mut pool.own_dirty) {
                entries.push((key::container(key::USAGE, *pool_number, 0), pool.own.encode()));
            }
            for (number, container) in &mut pool.containers {
                if core::mem::take(&mut container.dirty) {
                    entries
                        .push((key::container(key::USAGE, *pool_number, *number), container.usage.encode()));
                }
            }
        }
        entries
    }

    /// Takes in a stored usage.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn load_usage(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let (_, pool, container) = numbers(key)?;
        let usage = Usage::decode(value)?;
        let Some(pool) = self.pools.get_mut(&pool) else { return Ok(()) };
        if container == 0 {
            pool.own = usage;
        } else if let Some(container) = pool.containers.get_mut(&container) {
            container.usage = usage;
        } else {
            return Ok(());
        }
        pool.total += usage;
        Ok(())
    }
}

/// The snapshots of an object's container; `None`: it is gone.
pub(crate) fn snapshots_of(core: &Core, object: ObjectKey) -> Option<Rc<BTreeSet<u64>>> {
    let catalog = core.catalog.borrow();
    let pool = catalog.pools.get(&object.0).filter(|pool| !pool.destroying)?;
    let container = pool.containers.get(&object.1).filter(|container| !container.destroying)?;
    Some(Rc::clone(&container.snapshots))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::PoolId;

    /// Has a catalog follow a change of pool 1 or of a container of it.
    fn follow(catalog: &mut Catalog, change: &Change) {
        let value = match change {
            Change::Put { value, .. } => Some(value.as_slice()),
            Change::Remove { .. } => None,
        };
        catalog.follow(change.key(), value).expect("sound");
    }

    #[test]
    fn a_container_is_located_until_it_or_its_pool_goes_and_again_when_it_is_new() {
        let [one, other] = [1, 2].map(|id| ContainerId(Uuid::from_u128(id)));
        let (mut catalog, mut pool) = (Catalog::default(), Pool::new(PoolId(Uuid::nil()), 0));
        follow(&mut catalog, &pool.change(1));
        assert_eq!(catalog.locate(1, one), None);
        for (number, id) in [(1, one), (2, other)] {
            follow(&mut catalog, &Container::new(id).change(1, number));
            assert_eq!([catalog.locate(1, id), catalog.locate(1, id)], [Some(number); 2]);
        }
        assert_eq!([catalog.locate(1, one), catalog.locate(2, one)], [Some(1), None]);
        follow(&mut catalog, &Container { destroying: true, ..Container::new(one) }.change(1, 1));
        assert_eq!([catalog.locate(1, one), catalog.locate(1, other)], [None, Some(2)]);
        follow(&mut catalog, &Container::new(one).change(1, 3));
        assert_eq!(catalog.locate(1, one), Some(3));
        pool.destroying = true;
        follow(&mut catalog, &pool.change(1));
        assert_eq!(catalog.locate(1, one), None);
    }
}
