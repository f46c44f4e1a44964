//! Engines that join a pool.
//!
//! Which engines join is durable in the pool's entry before anything is asked of them: a destruction reaches them from then on. The
//! pool's service makes their shards and has them in its map, all or none. Then the entry has the map, and the extension is done. What
//! was begun goes on after a crash, or where another engine keeps the list. It is taken back only where the service has refused it, and
//! nothing that an earlier keeper has sent can arrive any more.

use std::time::Duration;

use weir_group::AskError;
use weir_proto::group::EngineInfo;
use weir_proto::pool::{EngineReport, PoolEngine, PoolExtension, TargetPoolDestroy, TargetPoolMap};
use weir_proto::{Der, Rank, opcode};
use weir_runtime::join_all;

use super::plan::check_places;
use super::{Directory, STEP_LIMIT};
use crate::error::Failed;
use crate::record::{DirectoryEntry, EntryState, STAYS_AS_IT_IS};
use crate::target::{ask_leader, newest_replicas};

/// Longest wait for the pool's service: it waits for the shards of all that join, and may have to be found first.
const EXTEND_LIMIT: Duration = STEP_LIMIT;

impl Directory {
    /// Has engines join a pool with redundancy: they get their share of its data. Without ranks all engines that are up and aren't the
    /// pool's. Returns when they have joined, and goes on in the background where one doesn't answer.
    ///
    /// # Errors
    /// When there is no such pool, it has no redundancy, an engine can't join it, or doesn't answer.
    pub async fn extend(
        &self,
        name: &str,
        ranks: &[Rank],
        places: Vec<PoolEngine>,
    ) -> Result<DirectoryEntry, Failed> {
        let found = self
            .resolve(name)
            .and_then(|_| self.find(name).ok_or_else(|| Failed::NoPool(name.to_owned())))?;
        let turn = self.turn(&found.pool.label);
        let _permit = turn.acquire().await;
        self.resolve(name)?;
        let Some(entry) = self.find(name) else { return Err(Failed::NoPool(name.to_owned())) };
        let object = format!("pool {}", entry.pool.label);
        if entry.pool.redundancy == 0 {
            return Err(Failed::NotSupported { object, reason: STAYS_AS_IT_IS.to_owned() });
        }
        check_places(&places).map_err(|reason| Failed::Invalid { object: object.clone(), reason })?;
        let mut entry = self.finish_extension(entry).await?;
        let named = self.known_ranks(ranks, &object)?;
        let joining = self.choose_joining(&entry, &named, &object).await?;
        if joining.is_empty() {
            // It is asked for again: the pool's service says whether they still take part.
            self.ask_service(&entry, &named)
                .await
                .map_err(|error| Failed::asking(object, "extending it", error))?;
            return Ok(entry);
        }
        self.check_joining(&entry, &joining, &object).await?;
        entry.pool.map.engines.retain(|place| !joining.contains(&place.rank));
        let is_said = |place: &PoolEngine| joining.contains(&place.rank) && !place.path.is_empty();
        entry.pool.map.engines.extend(places.into_iter().filter(is_said));
        entry.pool.map.engines.sort_unstable_by_key(|place| place.rank);
        entry.ranks.extend(&joining);
        entry.ranks.sort_unstable();
        self.put(&entry).await?;
        self.finish_extension(entry).await
    }

    /// The ranks that are to join. Naming one that has joined since the pool was made changes nothing: a request may be repeated.
    async fn choose_joining(
        &self,
        entry: &DirectoryEntry,
        named: &[Rank],
        object: &str,
    ) -> Result<Vec<Rank>, Failed> {
        let mut original = entry.pool.map.targets.iter().filter(|target| target.joined == 0);
        if let Some(rank) = original.find_map(|target| named.iter().find(|rank| **rank == target.rank)) {
            return Err(Failed::Joined { object: object.to_owned(), rank: *rank });
        }
        let mut joining = if named.is_empty() { self.up().await } else { named.to_vec() };
        joining.retain(|rank| !entry.ranks.contains(rank));
        if joining.is_empty() && named.is_empty() {
            let reason = "every engine that is up holds it already; add engines to the system first, `weir system query` shows them";
            return Err(Failed::Invalid { object: object.to_owned(), reason: reason.to_owned() });
        }
        Ok(joining)
    }

    /// Refuses what can't be before anything is durable: engines without room, and engines of different releases, which may read maps
    /// in different ways.
    async fn check_joining(
        &self,
        entry: &DirectoryEntry,
        joining: &[Rank],
        object: &str,
    ) -> Result<(), Failed> {
        let asked = entry.ranks.iter().chain(joining).copied().collect::<Vec<_>>();
        let reports = join_all(asked.iter().map(|rank| self.report(*rank))).await;
        let own = self.report(self.engines.own_rank()).await;
        let own = own.map_err(|error| Failed::asking(object, "extending it", error))?;
        for (rank, report) in asked.iter().zip(reports) {
            let report = match report {
                Ok(report) => report,
                // Those that hold the pool may be away: they learn the map when they are back.
                Err(_) if !joining.contains(rank) => continue,
                Err(error) => return Err(Failed::asking(object, "extending it", error)),
            };
            if report.version != own.version {
                let reason = format!(
                    "rank {rank} runs release {}, and rank {} release {}; extend the pool when all engines run one release",
                    report.version,
                    self.engines.own_rank(),
                    own.version
                );
                return Err(Failed::Busy { object: object.to_owned(), reason });
            }
            if joining.contains(rank) {
                check_room(*rank, &report, entry.pool.size, object)?;
            }
        }
        Ok(())
    }

    /// Has the engines join that are joining a pool. Where the pool's service refuses, the extension is taken back.
    pub(super) async fn finish_extension(&self, mut entry: DirectoryEntry) -> Result<DirectoryEntry, Failed> {
        let joining = entry.joining();
        if joining.is_empty() || entry.state != EntryState::Ready {
            return Ok(entry);
        }
        let object = format!("pool {}", entry.pool.label);
        let doing = "extending it (which goes on in the background)";
        let TargetPoolMap { map, .. } = match self.ask_service(&entry, &joining).await {
            Ok(told) => told,
            Err(error) if is_final(&error) && !self.follows_another() => {
                self.take_back_extension(entry, &joining).await?;
                return Err(Failed::asking(object, "extending it", error));
            }
            Err(error) => return Err(Failed::asking(object, doing, error)),
        };
        entry.size = entry.pool.size.saturating_mul(map.targets.len() as u64);
        entry.pool.map = map;
        self.put(&entry).await?;
        // What was resized meanwhile they may not have heard.
        self.absent.note(entry.pool.pool, joining.iter().copied());
        tracing::info!(pool = %entry.pool.pool, label = entry.pool.label, ?joining, size = entry.size, "pool extended");
        Ok(entry)
    }

    /// Has the pool's service let engines join that aren't in its map.
    async fn ask_service(&self, entry: &DirectoryEntry, ranks: &[Rank]) -> Result<TargetPoolMap, AskError> {
        let info = |rank: &Rank| self.engines.get(*rank).ok_or(AskError::Unknown { rank: *rank, index: 0 });
        let infos: Vec<EngineInfo> = ranks.iter().map(info).collect::<Result<_, _>>()?;
        let places = entry.pool.map.engines.iter().filter(|place| ranks.contains(&place.rank));
        let extension = PoolExtension {
            pool: entry.pool.pool,
            size: entry.pool.size,
            engines: infos.iter().map(|info| (info.rank, info.targets)).collect(),
            places: places.cloned().collect(),
        };
        let replicas = newest_replicas(&self.engines, &entry.pool, &entry.ranks).await;
        let opcode = opcode::POOL_EXTEND;
        ask_leader(&self.engines, (&replicas, None), opcode, &extension, EXTEND_LIMIT).await.1
    }

    /// Takes back what was begun of an extension that the pool's service has refused: its map has none of these engines.
    async fn take_back_extension(&self, mut entry: DirectoryEntry, joining: &[Rank]) -> Result<(), Failed> {
        let request = TargetPoolDestroy { pool: entry.pool.pool, only_if_empty: false };
        let failed = self.spread.tell(joining, opcode::TARGET_POOL_DESTROY, &request, STEP_LIMIT).await;
        if let Some(error) = failed.into_iter().next() {
            let object = format!("pool {}", entry.pool.label);
            return Err(Failed::asking(object, "taking its extension back (which is tried again)", error));
        }
        entry.ranks.retain(|rank| !joining.contains(rank));
        entry.pool.map.engines.retain(|place| !joining.contains(&place.rank));
        self.put(&entry).await
    }
}

/// Whether no wait removes the reason of a refusal, and nothing was changed.
fn is_final(error: &AskError) -> bool {
    matches!(error.der(), Der::NOSPACE | Der::NOTSUPPORTED | Der::NOSYS)
}

/// Says early what each target would refuse.
fn check_room(rank: Rank, report: &EngineReport, share: u64, object: &str) -> Result<(), Failed> {
    let needed = share.saturating_mul(u64::from(report.targets));
    if report.free >= needed {
        return Ok(());
    }
    let reason = format!(
        "rank {rank} has {} bytes unassigned, {needed} are needed: as much on each target as the pool's other targets have; destroy a pool there, or leave this rank out",
        report.free
    );
    Err(Failed::NoSpace { object: object.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_room_when_each_of_its_targets_has_a_share() {
        let report = EngineReport {
            version: "1".to_owned(),
            targets: 2,
            capacity: 1 << 30,
            free: 64 << 20,
            started: 0,
            message: String::new(),
        };
        assert_eq!(check_room(Rank(3), &report, 32 << 20, "pool tank"), Ok(()));
        let error = check_room(Rank(3), &report, (32 << 20) + 4096, "pool tank").expect_err("8 KiB too much");
        assert_eq!(error.der(), Der::NOSPACE);
        assert!(error.to_string().contains("pool tank: rank 3 has 67108864 bytes unassigned"), "{error}");
    }
}
