//! Where the list of pools begins: with what the only keeper has, on the lowest rank of a new system, and from what the engines
//! know of their pools where the only keeper has lost it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_group::AskError;
use weir_proto::pool::TargetPoolCreate;
use weir_proto::system::SystemState;
use weir_proto::{Der, PoolId, Rank, TargetIndex, opcode};
use weir_runtime::join_all;
use weir_store::Shard;

use super::keeper::{Keeper, SYSTEM_POOL_SIZE};
use crate::error::Failed;
use crate::record::{
    self, DirectoryEntry, EntryState, PoolRecord, SCOPE_DIRECTORY, SCOPE_REMNANT, SYSTEM_POOL,
};

/// Longest wait for an engine to say what it has.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Scope of what an engine notes of the list itself.
const SCOPE_LIST: &[u8] = b"list";

/// Name of the mark of a list that is being put together: what is there is a part.
const NAME_PARTIAL: &[u8] = b"partial";

/// Name of the mark of a list that was begun and has all, even if that is no pool.
const NAME_WHOLE: &[u8] = b"whole";

/// Whether a shard without a replica has a list that this engine keeps alone. One without pools and mark may be that of a replica that was
/// not begun; lists of earlier releases have no mark.
pub(super) fn is_list(shard: &Shard) -> bool {
    let has_some = |scope: &&[u8]| !shard.attributes(scope, &[], 1).is_empty();
    let is_partial = shard.attribute(SCOPE_LIST, NAME_PARTIAL).is_some();
    let is_whole = shard.attribute(SCOPE_LIST, NAME_WHOLE).is_some();
    is_whole || (!is_partial && [SCOPE_DIRECTORY, SCOPE_REMNANT].iter().any(has_some))
}

/// Makes the shard of a list that this engine keeps alone, where nobody has any. `None`: another engine has it or is to make it, or it
/// isn't known yet whether one has.
pub(super) async fn make(keeper: &Keeper) -> Result<Option<Shard>, Failed> {
    let (own, infos) = (keeper.engines.own_rank(), keeper.engines.all());
    if own != keeper.engines.lowest_rank() || keeper.pools.out_of_service().is_some() {
        return Ok(None);
    }
    let others: Vec<Rank> = infos.iter().map(|info| info.rank).filter(|rank| *rank != own).collect();
    let states = join_all(others.iter().map(|rank| ask(keeper, *rank))).await;
    let holds_nothing = |state: &Result<SystemState, AskError>| match state {
        Ok(state) => !state.holds,
        // One of an earlier release has no replicas.
        Err(error) => error.der() == Der::NOSYS,
    };
    if !states.iter().all(holds_nothing) {
        return Ok(None);
    }
    let Some(entries) = known_entries(keeper, &others).await? else { return Ok(None) };
    fill(keeper, entries).await.map(Some)
}

async fn ask(keeper: &Keeper, rank: Rank) -> Result<SystemState, AskError> {
    keeper.engines.ask(rank, TargetIndex(0), opcode::SYSTEM_STATE, &(), ASK_LIMIT).await
}

/// The list as it follows from the pools of which engines have parts. `None`: not all of them say.
async fn known_entries(keeper: &Keeper, others: &[Rank]) -> Result<Option<Vec<DirectoryEntry>>, Failed> {
    let asked = others.iter().map(|rank| {
        keeper.engines.ask::<_, Vec<TargetPoolCreate>>(
            *rank,
            TargetIndex(0),
            opcode::SYSTEM_POOLS,
            &(),
            ASK_LIMIT,
        )
    });
    let mut records: BTreeMap<PoolId, PoolRecord> = BTreeMap::new();
    let mut every = keeper.known_pools()?;
    for answer in join_all(asked).await {
        match answer {
            Ok(pools) => every.extend(pools),
            Err(error) if error.der() == Der::NOSYS => {}
            Err(_) => return Ok(None),
        }
    }
    for record in every.into_iter().map(PoolRecord::from) {
        let newest = records.entry(record.pool).or_insert_with(|| record.clone());
        if record.map.version > newest.map.version {
            *newest = record;
        }
    }
    Ok(Some(entries_of(records.into_values())))
}

/// Pools as the list has them. Of pools of one label, one of which was being destroyed, the first is taken.
fn entries_of(records: impl Iterator<Item = PoolRecord>) -> Vec<DirectoryEntry> {
    let mut labels = BTreeSet::new();
    let named = records.filter(|record| {
        let is_first = labels.insert(record.label.clone());
        if !is_first {
            tracing::error!(pool = %record.pool, label = record.label, "two pools have one label: this one is left out of the list");
        }
        is_first
    });
    let entry = |pool: PoolRecord| {
        let size = pool.size.saturating_mul(pool.map.targets.len() as u64);
        let ranks = pool.map.ranks();
        DirectoryEntry { size, ranks, state: EntryState::Ready, pool }
    };
    named.map(entry).collect()
}

/// Makes the shard of the list. Until all is in it, it counts as none.
async fn fill(keeper: &Keeper, entries: Vec<DirectoryEntry>) -> Result<Shard, Failed> {
    let shard = match keeper.shard() {
        Some(shard) => shard,
        None => keeper.pools.store().create_pool(SYSTEM_POOL, SYSTEM_POOL_SIZE).await?,
    };
    shard.change_attributes(&[record::change(SCOPE_LIST, NAME_PARTIAL, Some(vec![1]))]).await?;
    for entry in &entries {
        tracing::warn!(pool = %entry.pool.pool, label = entry.pool.label, "the list of pools is lost: this pool is known from its engines");
        let stored = record::encode(entry);
        let name = entry.pool.pool.0.as_bytes();
        shard.change_attributes(&[record::change(SCOPE_DIRECTORY, name, Some(stored))]).await?;
    }
    let whole = [
        record::change(SCOPE_LIST, NAME_PARTIAL, None),
        record::change(SCOPE_LIST, NAME_WHOLE, Some(vec![1])),
    ];
    shard.change_attributes(&whole).await?;
    tracing::info!(pools = entries.len(), "this engine begins the list of pools");
    Ok(shard)
}
