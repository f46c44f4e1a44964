//! What engines have missed while they were away, and are told when they are back: pools that were destroyed, and sizes.
//!
//! A destroyed pool leaves a *remnant* when not all engines could be told: a durable record with the engines that still
//! hold a part of it. Its label is free, and it can't be found any more. Sizes need no record: a directory that starts
//! doesn't know which engine has which size, and tells all of them. A target that has the size already changes nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Weak;

use uuid::Uuid;
use weir_group::AskError;
use weir_proto::pool::TargetPoolDestroy;
use weir_proto::{Der, PoolId, Rank, opcode};
use weir_runtime::{Handle, join_all};
use weir_store::{AttributeChange, Shard};

use super::{Directory, RETRY_PAUSE, STEP_LIMIT};
use crate::error::Failed;
use crate::record::{self, DirectoryEntry, EntryState, PoolRecord, Remnant, SCOPE_REMNANT, SYSTEM_POOL};

/// Pools whose engines are told at the same time: each takes as long as the slowest of its engines.
const PARALLEL: usize = 16;

/// What has been missed, by pool.
pub(crate) struct Absent {
    remnants: RefCell<BTreeMap<PoolId, Remnant>>,
    /// Engines that may go by another size.
    sizes: RefCell<BTreeMap<PoolId, BTreeSet<Rank>>>,
}

impl Absent {
    /// Loads the remnants. For no pool it is known which engines know its size.
    pub(crate) fn load<'a>(
        shard: &Shard,
        pools: impl Iterator<Item = &'a DirectoryEntry>,
    ) -> Result<Self, Failed> {
        let mut remnants = BTreeMap::new();
        for (name, bytes) in record::load_scope(shard, SCOPE_REMNANT) {
            let pool = Uuid::from_slice(&name).map(PoolId).map_err(|error| Failed::Record {
                pool: SYSTEM_POOL,
                what: "the name of what is left of a pool",
                reason: error.to_string(),
            })?;
            remnants.insert(pool, record::decode(pool, &bytes)?);
        }
        let sizes = pools.map(|entry| (entry.pool.pool, entry.ranks.iter().copied().collect())).collect();
        Ok(Self { remnants: RefCell::new(remnants), sizes: RefCell::new(sizes) })
    }

    /// Whether this is a destroyed pool of which some engine may still hold a part.
    pub(crate) fn is_remnant(&self, pool: PoolId) -> bool {
        self.remnants.borrow().contains_key(&pool)
    }

    /// Engines may go by another size of a pool.
    pub(crate) fn note(&self, pool: PoolId, ranks: impl IntoIterator<Item = Rank>) {
        let mut sizes = self.sizes.borrow_mut();
        let known = sizes.entry(pool).or_default();
        known.extend(ranks);
        if known.is_empty() {
            sizes.remove(&pool);
        }
    }
}

impl Directory {
    /// Makes durable which engines still hold parts of a destroyed pool, together with other changes.
    pub(crate) async fn leave_remnant(
        &self,
        pool: &PoolRecord,
        ranks: Vec<Rank>,
        mut changes: Vec<AttributeChange>,
    ) -> Result<(), Failed> {
        if !ranks.is_empty() {
            tracing::warn!(pool = %pool.pool, label = pool.label, ?ranks, "some engines give their parts of a destroyed pool back when they are back");
        }
        let remnant = Remnant { label: pool.label.clone(), ranks };
        changes.push(change(pool.pool, &remnant));
        self.commit(&changes).await?;
        self.absent.sizes.borrow_mut().remove(&pool.pool);
        self.keep(pool.pool, remnant);
        Ok(())
    }

    fn keep(&self, pool: PoolId, remnant: Remnant) {
        let mut remnants = self.absent.remnants.borrow_mut();
        if remnant.ranks.is_empty() {
            remnants.remove(&pool);
        } else {
            remnants.insert(pool, remnant);
        }
    }

    /// Tells the engines that hold parts of a destroyed pool.
    async fn clear_remnant(&self, pool: PoolId) {
        let Some(remnant) = self.absent.remnants.borrow().get(&pool).cloned() else { return };
        let request = TargetPoolDestroy { pool, only_if_empty: false };
        let failed =
            self.spread.tell(&remnant.ranks, opcode::TARGET_POOL_DESTROY, &request, STEP_LIMIT).await;
        for error in &failed {
            tracing::debug!(pool = remnant.label, %error, "a part of a destroyed pool is still there");
        }
        if self.follows_another() {
            // What an earlier leader has sent may still arrive there.
            return;
        }
        let left = Remnant { ranks: failed.iter().map(AskError::rank).collect(), ..remnant.clone() };
        if left == remnant {
            return;
        }
        match self.commit(&[change(pool, &left)]).await {
            Ok(()) => self.keep(pool, left),
            // They are told once more.
            Err(error) => tracing::warn!(pool = remnant.label, %error, "what is left of a pool isn't noted"),
        }
    }

    /// Tells the engines that may not know the size of a pool.
    async fn spread_size(&self, pool: PoolId) {
        let label = self.entries.borrow().get(&pool).map(|entry| entry.pool.label.clone());
        let Some(label) = label else {
            self.absent.sizes.borrow_mut().remove(&pool);
            return;
        };
        let turn = self.turn(&label);
        let _permit = turn.acquire().await;
        let size = {
            let entries = self.entries.borrow();
            entries.get(&pool).filter(|entry| entry.state == EntryState::Ready).map(|entry| entry.pool.size)
        };
        let ranks = self.absent.sizes.borrow_mut().remove(&pool).unwrap_or_default();
        let Some(size) = size else { return };
        let ranks: Vec<Rank> = ranks.into_iter().collect();
        let failed = self.resize_on(&ranks, pool, size).await;
        for error in &failed {
            tracing::debug!(pool = label, %error, "a target's share of a pool has another size");
        }
        // A target that has lost its part has nothing to resize.
        let left = failed.iter().filter(|error| error.der() != Der::NONEXIST);
        self.absent.note(pool, left.map(AskError::rank));
        if self.follows_another() {
            // What an earlier leader has sent may still arrive there.
            self.absent.note(pool, ranks);
        }
    }
}

fn change(pool: PoolId, remnant: &Remnant) -> AttributeChange {
    let stored = (!remnant.ranks.is_empty()).then(|| record::encode(remnant));
    record::change(SCOPE_REMNANT, pool.0.as_bytes(), stored)
}

/// Tells engines what they have missed, for as long as the directory lives.
pub(crate) async fn catch_up(directory: Weak<Directory>, rt: Handle) {
    loop {
        let Some(strong) = directory.upgrade() else { return };
        let remnants: Vec<PoolId> = strong.absent.remnants.borrow().keys().copied().collect();
        for some in remnants.chunks(PARALLEL) {
            join_all(some.iter().map(|pool| strong.clear_remnant(*pool))).await;
        }
        let sizes: Vec<PoolId> = strong.absent.sizes.borrow().keys().copied().collect();
        for some in sizes.chunks(PARALLEL) {
            join_all(some.iter().map(|pool| strong.spread_size(*pool))).await;
        }
        drop(strong);
        rt.sleep(RETRY_PAUSE).await;
    }
}
