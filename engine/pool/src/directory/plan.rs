//! Whether a pool is possible, and where it goes.

use std::time::Duration;

use uuid::Uuid;
use weir_group::AskError;
use weir_layout::{ObjectClass, serves_replicas};
use weir_proto::group::EngineInfo;
use weir_proto::pool::{EngineReport, PoolMap, PoolTarget};
use weir_proto::{PoolId, PoolSecret, Rank, TargetIndex, TenantId, opcode};
use weir_runtime::join_all;

use super::Directory;
use crate::error::Failed;
use crate::record::{DirectoryEntry, EntryState, PoolRecord, SYSTEM_POOL};

/// Least bytes of a pool on one target: room for the service's records and a few requests of the largest payload.
pub(crate) const SHARE_MIN: u64 = 32 * 1024 * 1024;

/// Shares are whole blocks of the media.
pub(crate) const SHARE_UNIT: u64 = 4096;

/// Share of each of so many targets in a pool of a size. A share beyond all numbers is the largest there is, for which
/// no target has room.
pub(crate) fn share_of(size: u64, targets: usize) -> u64 {
    let share = size.div_ceil(targets.max(1) as u64);
    share.checked_next_multiple_of(SHARE_UNIT).unwrap_or(u64::MAX / SHARE_UNIT * SHARE_UNIT)
}

/// Greatest redundancy factor: groups of two replicas are served.
const REDUNDANCY_MAX: u32 = 1;

/// Longest wait for an engine to say how it is.
const REPORT_LIMIT: Duration = Duration::from_secs(2);

/// The properties of a pool to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSpec {
    /// Its label.
    pub label: String,
    /// Bytes over all engines.
    pub size: u64,
    /// Ranks that hold it; empty: every engine that is up.
    pub ranks: Vec<Rank>,
    /// Copies that must survive.
    pub redundancy: u32,
    /// Default object class; empty: the one of its redundancy.
    pub object_class: String,
    /// Whose clients may connect to it, beside the system's own.
    pub tenant: TenantId,
    /// Its identity, where the creator chose one.
    pub identity: Option<PoolId>,
}

impl PoolSpec {
    /// Name of its default object class.
    fn class(&self) -> String {
        if !self.object_class.is_empty() {
            return self.object_class.clone();
        }
        if !serves_replicas() {
            return ObjectClass::SX.to_string();
        }
        // A factor for which there is no class is refused as one that is not supported.
        ObjectClass::for_redundancy(self.redundancy).map_or_else(String::new, |class| class.to_string())
    }
}

impl Directory {
    /// Checks that a pool is possible, and chooses its ranks, secret and service.
    pub(crate) async fn plan(&self, spec: PoolSpec) -> Result<DirectoryEntry, Failed> {
        let object = format!("pool {}", spec.label);
        self.check_redundancy(&spec, &object)?;
        let object_class = spec.class();
        let class = crate::service::check_class(&object_class, &object)?;
        crate::service::check_survives(class, spec.redundancy)
            .map_err(|reason| Failed::Invalid { object: object.clone(), reason })?;
        self.check_identity(&spec, &object)?;
        let ranks = self.choose_ranks(&spec, &object).await?;
        let infos: Vec<EngineInfo> = ranks.iter().filter_map(|rank| self.engines.get(*rank)).collect();
        let map = map_of(&infos);
        let targets = map.targets.len() as u64;
        let share = share_of(spec.size, map.targets.len());
        if share < SHARE_MIN {
            return Err(Failed::Invalid {
                object,
                reason: format!(
                    "{} bytes over {targets} targets are {share} bytes on each; at least {SHARE_MIN} are needed, so {} in all",
                    spec.size,
                    SHARE_MIN * targets
                ),
            });
        }
        self.check_space(&spec, &infos, share).await?;
        let rt = self.engines.runtime();
        let drawn = || PoolId(Uuid::from_u64_pair(rt.random_u64(), rt.random_u64()));
        let pool = spec.identity.unwrap_or_else(drawn);
        let mut secret = PoolSecret([0; 32]);
        for bytes in secret.0.chunks_mut(8) {
            bytes.copy_from_slice(&rt.random_u64().to_le_bytes());
        }
        let service = self.choose_service(&spec, &ranks);
        let pool = PoolRecord {
            pool,
            label: spec.label,
            secret,
            size: share,
            service,
            map,
            object_class,
            tenant: spec.tenant,
            redundancy: spec.redundancy,
        };
        Ok(DirectoryEntry { pool, size: spec.size, ranks, state: EntryState::Creating })
    }

    /// Where the service first runs: where the creator says first, or anywhere.
    fn choose_service(&self, spec: &PoolSpec, ranks: &[Rank]) -> Rank {
        if spec.redundancy > 0
            && let Some(first) = spec.ranks.first()
        {
            return *first;
        }
        assert!(!ranks.is_empty(), "invariant: a pool has ranks");
        let drawn = self.engines.runtime().random_u64() % (ranks.len() as u64);
        ranks[usize::try_from(drawn).expect("invariant: it is below their number")]
    }

    /// Refuses a chosen identity that something has: what engines that are away hold of a destroyed pool goes by its identity.
    fn check_identity(&self, spec: &PoolSpec, object: &str) -> Result<(), Failed> {
        let Some(chosen) = spec.identity else { return Ok(()) };
        let holder = match self.entries.borrow().get(&chosen) {
            Some(entry) => format!("pool {} has", entry.pool.label),
            None if chosen == SYSTEM_POOL => "the system itself has".to_owned(),
            None if self.absent.is_remnant(chosen) => {
                "a destroyed pool of which an engine still holds a part has".to_owned()
            }
            None => return Ok(()),
        };
        let reason = format!("{holder} the UUID {chosen}; choose another");
        Err(Failed::Invalid { object: object.to_owned(), reason })
    }

    fn check_redundancy(&self, spec: &PoolSpec, object: &str) -> Result<(), Failed> {
        if spec.redundancy == 0 {
            return Ok(());
        }
        let engines = if spec.ranks.is_empty() { self.engines.all().len() } else { spec.ranks.len() };
        let needed = u64::from(spec.redundancy) + 1;
        let object = object.to_owned();
        if needed > engines as u64 {
            let reason = format!(
                "a redundancy factor of {} needs at least {needed} engines, there are {engines}",
                spec.redundancy
            );
            return Err(Failed::Invalid { object, reason });
        }
        if self.allows_redundancy.get() || serves_replicas() && spec.redundancy <= REDUNDANCY_MAX {
            return Ok(());
        }
        let reason = format!("a redundancy factor of {} is not supported yet; use 0", spec.redundancy);
        Err(Failed::NotSupported { object, reason })
    }

    async fn choose_ranks(&self, spec: &PoolSpec, object: &str) -> Result<Vec<Rank>, Failed> {
        let mut wanted = spec.ranks.clone();
        wanted.sort_unstable();
        wanted.dedup();
        let known: Vec<Rank> = self.engines.all().iter().map(|info| info.rank).collect();
        if let Some(missing) = wanted.iter().find(|rank| !known.contains(rank)) {
            let known: Vec<_> = known.iter().map(ToString::to_string).collect();
            let reason = format!("rank {missing} does not exist; the system has ranks {}", known.join(", "));
            return Err(Failed::Invalid { object: object.to_owned(), reason });
        }
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        let reports = join_all(known.iter().map(|rank| self.report(*rank))).await;
        let up = known.into_iter().zip(reports).filter(|(_, report)| report.is_ok()).map(|(rank, _)| rank);
        let up: Vec<_> = up.collect();
        if up.is_empty() {
            let reason = "no engine is up".to_owned();
            return Err(Failed::NoSpace { object: object.to_owned(), reason });
        }
        Ok(up)
    }

    async fn report(&self, rank: Rank) -> Result<EngineReport, AskError> {
        self.engines.ask(rank, TargetIndex(0), opcode::ENGINE_REPORT, &(), REPORT_LIMIT).await
    }

    /// Says early, and for the whole pool, what each target would refuse.
    async fn check_space(&self, spec: &PoolSpec, infos: &[EngineInfo], share: u64) -> Result<(), Failed> {
        let object = format!("pool {}", spec.label);
        let reports = join_all(infos.iter().map(|info| self.report(info.rank))).await;
        let mut short = Vec::new();
        let mut free = 0_u64;
        for (info, report) in infos.iter().zip(reports) {
            let report = report.map_err(|error| Failed::asking(object.clone(), "creating it", error))?;
            free = free.saturating_add(report.free);
            if report.free < share.saturating_mul(u64::from(info.targets)) {
                short.push(format!("rank {} has {}", info.rank, report.free));
            }
        }
        if short.is_empty() {
            return Ok(());
        }
        Err(Failed::NoSpace {
            object,
            reason: format!(
                "{} bytes were asked for, its engines have {free} unassigned ({}); ask for less, add engines or destroy a pool",
                spec.size,
                short.join(", ")
            ),
        })
    }
}

fn map_of(infos: &[EngineInfo]) -> PoolMap {
    let every = infos.iter().flat_map(|info| (0..info.targets).map(|index| (info.rank, TargetIndex(index))));
    let targets = (0..).zip(every).map(|(id, (rank, index))| PoolTarget::serving(id, rank, index));
    PoolMap::new(1, targets.collect())
}

/// Why a pool of the same label is another one.
pub(crate) fn compare(existing: &DirectoryEntry, spec: &PoolSpec) -> Result<(), Failed> {
    let mut differences = Vec::new();
    if existing.size != spec.size {
        differences.push(format!("size {}, not {}", existing.size, spec.size));
    }
    let mut ranks = spec.ranks.clone();
    ranks.sort_unstable();
    ranks.dedup();
    if !ranks.is_empty() && ranks != existing.ranks {
        let text = |ranks: &[Rank]| ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        differences.push(format!("ranks {}, not {}", text(&existing.ranks), text(&ranks)));
    }
    let class = spec.class();
    if existing.pool.object_class != class {
        differences.push(format!("class {}, not {class}", existing.pool.object_class));
    }
    if existing.pool.tenant != spec.tenant {
        differences.push(format!("tenant {}, not {}", existing.pool.tenant, spec.tenant));
    }
    if existing.pool.redundancy != spec.redundancy {
        differences.push(format!("redundancy factor {}, not {}", existing.pool.redundancy, spec.redundancy));
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(Failed::Exists { object: format!("pool {}", spec.label), difference: differences.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_blocks_whatever_is_asked_for() {
        assert_eq!(share_of(10 << 20, 3), 3_497_984);
        assert_eq!(share_of(4096, 0), 4096);
        assert_eq!(share_of(u64::MAX, 1), u64::MAX - 4095);
    }
}
