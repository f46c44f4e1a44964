//! Space that prepared transactions will take of pools and index when they are committed.
//!
//! It is set aside for them at prepare until they are decided, so that no other request takes it. It follows from the entries
//! alone, so that a restart computes the same. Nodes that a commit changes beyond what is counted here come from the reserve,
//! as those of an update do. The log has room for any record after a checkpoint, which takes room in the index only.

use crate::format::key::{
    ContainerNumber, OBJECT_LEN, PoolNumber, has_integer_akeys, has_integer_dkeys, put_key,
};
use crate::format::node::NODE_BLOCKS;
use crate::format::record::CHANGE_BYTES_MAX;
use crate::format::usage::{Usage, entry_bytes};
use crate::versions::intents::{Intent, Prepared};
use core::ops::{AddAssign, SubAssign};
use std::collections::BTreeMap;
use weir_media::BLOCK;
use weir_proto::object::PunchScope;
use weir_proto::{Key, ObjectId};

/// Bytes of an index key behind those of its object, dkey or akey, at most (`extent_version_tail`), with those of the value
/// of an event.
const TAIL_MAX: usize = 26 + 24;

/// Bytes of a change that removes an entry of the transaction itself: all but the end of the key is as in the one before.
const REMOVAL_MAX: usize = CHANGE_BYTES_MAX + 8;

/// Bytes of the key of the first of them, of the decision, and of a short attribute that goes with it.
pub(crate) const DECISION_MAX: usize = 384;

/// Space that the commit of a prepared transaction takes at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PreparedSpace {
    /// Bytes of the entries that come, as a pool counts them.
    entries: u64,
    /// Dkeys, the parts of the index that change: each may take a node, and split it.
    places: u64,
    /// Bytes of the changes in the log.
    logged: u64,
    /// Bytes that the table of transactions keeps in memory.
    pub(crate) kept: u64,
}

impl AddAssign for PreparedSpace {
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.places += other.places;
        self.logged += other.logged;
        self.kept += other.kept;
    }
}

impl SubAssign for PreparedSpace {
    fn sub_assign(&mut self, other: Self) {
        self.entries -= other.entries;
        self.places -= other.places;
        self.logged -= other.logged;
        self.kept -= other.kept;
    }
}

/// Bytes of a key within an index key.
fn len_of(key: &Key, integer: bool) -> usize {
    let mut len = 0;
    put_key(|piece| len += piece.len(), key, integer);
    len
}

impl PreparedSpace {
    /// Adds a version that has so many bytes as an entry of the transaction, beside its key.
    pub(crate) fn of_version(bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { entries: bytes, places: 0, logged: bytes, kept: bytes }
    }

    /// Adds the operations, which take so many bytes themselves, without the values of versions.
    pub(crate) fn of_operations(prepared: &Prepared, bytes: usize) -> Self {
        let mut needed = Self { logged: DECISION_MAX as u64, kept: bytes as u64, ..Self::default() };
        for intent in &prepared.intents {
            needed += Self::of_intent(intent);
        }
        needed.logged += (bytes / crate::versions::intents::PIECE + 1) as u64 * REMOVAL_MAX as u64;
        needed
    }

    fn of_intent(intent: &Intent) -> Self {
        let object = intent.object();
        // The object's own entry is one of them.
        let mut needed = Self::default();
        needed.add_entry(OBJECT_LEN, OBJECT_LEN);
        match intent {
            Intent::Punch { scope: PunchScope::Object, .. } => {}
            Intent::Punch { scope: PunchScope::Dkeys(dkeys), .. } => {
                for dkey in dkeys {
                    needed.add_dkey(object, dkey);
                }
            }
            Intent::Punch {
                scope: PunchScope::Akeys(dkey, akeys) | PunchScope::DkeyWith(dkey, akeys),
                ..
            } => {
                let above = needed.add_dkey(object, dkey);
                for akey in akeys {
                    let len = len_of(akey, has_integer_akeys(object));
                    needed.add_entry(above + len, len);
                }
            }
            Intent::Update { dkey, akeys, versions, .. } => {
                let above = needed.add_dkey(object, dkey);
                let lens: Vec<usize> =
                    akeys.iter().map(|akey| len_of(&akey.akey, has_integer_akeys(object))).collect();
                for len in &lens {
                    needed.add_entry(above + len, *len);
                }
                for version in versions {
                    needed.add_entry(above + lens[version.akey], 0);
                    needed.logged += REMOVAL_MAX as u64;
                }
            }
        }
        needed
    }

    /// An entry whose key begins with so many bytes, of which so many differ from the one before.
    fn add_entry(&mut self, len: usize, differing: usize) {
        self.entries += entry_bytes(len, TAIL_MAX);
        self.logged += (CHANGE_BYTES_MAX + differing + TAIL_MAX) as u64;
    }

    /// Returns the bytes of what keys below the dkey begin with.
    fn add_dkey(&mut self, object: ObjectId, dkey: &Key) -> usize {
        let len = len_of(dkey, has_integer_dkeys(object));
        self.add_entry(OBJECT_LEN + len, len);
        self.places += 1;
        OBJECT_LEN + len
    }

    /// Bytes of the pool's share.
    pub(crate) fn bytes(&self) -> u64 {
        Usage { entries: self.entries, ..Usage::default() }.total()
    }

    /// Bytes of the entries that come.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Blocks of index nodes: one that changes goes to another place, and may be split.
    pub(crate) fn blocks(&self) -> u64 {
        2 * (self.places * NODE_BLOCKS + self.entries.div_ceil(BLOCK as u64))
    }

    /// Bytes of the commit's record, at most.
    pub(crate) fn record_len(&self) -> u64 {
        self.logged
    }
}

/// The space that is set aside for all prepared transactions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreparedSpaces {
    all: PreparedSpace,
    pools: BTreeMap<PoolNumber, PreparedSpace>,
    containers: BTreeMap<(PoolNumber, ContainerNumber), PreparedSpace>,
}

impl PreparedSpaces {
    pub(crate) fn give(&mut self, (pool, container): (PoolNumber, ContainerNumber), needed: PreparedSpace) {
        self.all += needed;
        *self.pools.entry(pool).or_default() += needed;
        *self.containers.entry((pool, container)).or_default() += needed;
    }

    pub(crate) fn take_back(
        &mut self,
        (pool, container): (PoolNumber, ContainerNumber),
        needed: PreparedSpace,
    ) {
        fn subtract<K: Ord>(from: &mut BTreeMap<K, PreparedSpace>, key: &K, needed: PreparedSpace) {
            if let Some(left) = from.get_mut(key) {
                *left -= needed;
                if *left == PreparedSpace::default() {
                    from.remove(key);
                }
            }
        }
        self.all -= needed;
        subtract(&mut self.pools, &pool, needed);
        subtract(&mut self.containers, &(pool, container), needed);
    }

    /// The sum of the whole store.
    pub(crate) fn all(&self) -> &PreparedSpace {
        &self.all
    }

    /// Bytes of memory that the prepared transactions of a pool take.
    pub(crate) fn kept_of_pool(&self, pool: PoolNumber) -> u64 {
        self.pools.get(&pool).map_or(0, |needed| needed.kept)
    }

    /// Bytes of a pool's share that are set aside.
    pub(crate) fn of_pool(&self, pool: PoolNumber) -> u64 {
        self.pools.get(&pool).map_or(0, PreparedSpace::bytes)
    }

    /// Bytes of a container's quota that are set aside.
    pub(crate) fn of_container(&self, pool: PoolNumber, container: ContainerNumber) -> u64 {
        self.containers.get(&(pool, container)).map_or(0, PreparedSpace::bytes)
    }
}
