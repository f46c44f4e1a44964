//! Engines that join a pool: their targets get shards, and then they are in the map as new ones, which get their share of the data like
//! those that come back after others had their places. The rules are in docs/explanation/replication.md.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_proto::pool::{
    PoolEngine, PoolExtension, PoolMap, PoolTarget, TargetPoolCreate, TargetPoolMap, TargetState,
};
use weir_proto::{Rank, TargetIndex, opcode};

use super::PoolService;
use crate::error::Failed;
use crate::record::PoolRecord;

/// Longest wait for the shards of engines that join: a few writes to the log of each target.
const CREATE_LIMIT: Duration = Duration::from_secs(5);

/// Puts the targets of engines that aren't in a map behind those that are. Returns how many there are.
fn append(map: &mut PoolMap, version: u32, extension: &PoolExtension) -> usize {
    let known: BTreeSet<Rank> = map.ranks().into_iter().collect();
    let joining = || extension.engines.iter().filter(|(rank, _)| !known.contains(rank));
    let places = joining().flat_map(|(rank, targets)| (0..*targets).map(|index| (*rank, TargetIndex(index))));
    let first = map.targets.last().map_or(0, |last| last.id + 1);
    let targets: Vec<_> =
        (first..).zip(places).map(|(id, place)| PoolTarget::joining(id, place, version)).collect();
    let is_said =
        |place: &&PoolEngine| !place.path.is_empty() && joining().any(|(rank, _)| *rank == place.rank);
    map.engines.extend(extension.places.iter().filter(is_said).cloned());
    map.engines.sort_unstable_by_key(|engine| engine.rank);
    let count = targets.len();
    map.targets.extend(targets);
    count
}

/// An engine of an extension that was in the pool, and which an administrator has taken out.
fn taken_out(map: &PoolMap, extension: &PoolExtension) -> Option<Rank> {
    let is_named = |target: &PoolTarget| extension.engines.iter().any(|(rank, _)| *rank == target.rank);
    let mut out = map.targets.iter().filter(|target| target.excluded && target.state != TargetState::New);
    out.find(|target| is_named(target)).map(|target| target.rank)
}

/// Refuses to have places taken from an engine that has joined and has none yet.
pub(super) fn check_has_places(record: &PoolRecord, rank: Rank, object: &str) -> Result<(), Failed> {
    let mut own = record.map.targets.iter().filter(|target| target.rank == rank);
    if own.any(|target| target.state == TargetState::New) {
        let reason = "has joined the pool and has no data yet that counts: wait until `weir pool query` shows that nothing moves, or until it is there";
        return Err(Failed::Busy { object: object.to_owned(), reason: reason.to_owned() });
    }
    Ok(())
}

impl PoolService {
    /// Has engines join the pool, all or none of them. Those that have joined stay as they are. Returns the map with all of them.
    ///
    /// # Errors
    /// When the pool has no redundancy, an engine can't make its shards, or the map can't be stored.
    pub(crate) async fn extend(&self, extension: &PoolExtension) -> Result<TargetPoolMap, Failed> {
        let record = self.pool()?;
        if record.redundancy == 0 {
            let object = format!("pool {}", record.label);
            return Err(Failed::NotSupported { object, reason: crate::record::STAYS_AS_IT_IS.to_owned() });
        }
        if let Some(out) = taken_out(&record.map, extension) {
            let object = format!("rank {out} of pool {}", record.label);
            let reason =
                "has been taken out of the pool: `weir pool reintegrate` has it come back".to_owned();
            return Err(Failed::Busy { object, reason });
        }
        let known: BTreeSet<Rank> = record.map.ranks().into_iter().collect();
        let ranks: Vec<Rank> = extension.engines.iter().map(|(rank, _)| *rank).collect();
        let joining: Vec<Rank> = ranks.iter().copied().filter(|rank| !known.contains(rank)).collect();
        if !joining.is_empty() {
            self.make_shards(&joining, PoolRecord { size: extension.size, ..record }).await?;
            self.let_join(extension, &joining).await?;
        }
        let record = self.pool()?;
        Ok(TargetPoolMap { pool: record.pool, map: record.map })
    }

    /// Shards are made before any map tells of them: a target that is in a map and has nothing of the pool is lost.
    async fn make_shards(&self, ranks: &[Rank], record: PoolRecord) -> Result<(), Failed> {
        let object = format!("pool {}", record.label);
        let request = TargetPoolCreate::from(record);
        let failed = self.spread.tell(ranks, opcode::TARGET_POOL_CREATE, &request, CREATE_LIMIT).await;
        let failed = failed.into_iter().next();
        failed.map_or(Ok(()), |error| Err(Failed::asking(object, "extending it", error)))
    }

    async fn let_join(&self, extension: &PoolExtension, ranks: &[Rank]) -> Result<(), Failed> {
        let pool = self.label();
        let now = self.engines.runtime().now();
        // They could hold no lease before they are in the map.
        for rank in ranks {
            self.leases.excuse(*rank, now);
        }
        let change = |map: &mut PoolMap, version| {
            let targets = append(map, version, extension);
            (targets > 0).then(|| {
                tracing::info!(
                    pool,
                    ?ranks,
                    targets,
                    version,
                    "engines have joined the pool, data moves onto them"
                );
            })
        };
        self.change_map(change).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::moves::tests::map;
    use weir_proto::PoolId;

    fn extension(engines: &[(u32, u32)]) -> PoolExtension {
        let place = |rank: u32, name: &str| PoolEngine { rank: Rank(rank), path: vec![name.to_owned()] };
        PoolExtension {
            pool: PoolId(uuid::Uuid::nil()),
            size: 0,
            engines: engines.iter().map(|(rank, targets)| (Rank(*rank), *targets)).collect(),
            places: vec![place(9, "nowhere"), place(1, "elsewhere"), place(5, "node-5")],
        }
    }

    #[test]
    fn targets_join_behind_those_that_are_there_once() {
        let mut map = map("..o.");
        assert_eq!(append(&mut map, 10, &extension(&[(1, 1), (5, 2), (7, 1)])), 3);
        let joined: Vec<_> =
            map.targets.iter().skip(4).map(|one| (one.id, one.rank.0, one.index.0, one.joined)).collect();
        assert_eq!(joined, [(4, 5, 0, 10), (5, 5, 1, 10), (6, 7, 0, 10)]);
        assert_eq!(map.engines, [PoolEngine { rank: Rank(5), path: vec!["node-5".to_owned()] }]);
        assert_eq!(map.moves_since(), Some(10));
        let before = map.clone();
        assert_eq!(append(&mut map, 11, &extension(&[(5, 2), (7, 1)])), 0);
        assert_eq!(map, before, "a repeat");
        let again = extension(&[(5, 2)]);
        assert_eq!(taken_out(&map, &again), None);
        assert!(map.targets[4].enter(TargetState::Down, 12) && map.targets[4].excluded);
        assert_eq!(taken_out(&map, &again), None, "it is new, and away");
        assert!(map.targets[4].enter(TargetState::Up, 13) && map.targets[4].enter(TargetState::UpIn, 14));
        assert!(map.targets[4].enter(TargetState::Down, 15));
        map.targets[4].excluded = true;
        assert_eq!(taken_out(&map, &again), Some(Rank(5)));
    }
}
