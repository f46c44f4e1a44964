//! Whether a pool is possible, and where it goes.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;
use weir_group::AskError;
use weir_layout::{ObjectClass, domains_with, served_factors};
use weir_proto::group::EngineInfo;
use weir_proto::pool::{EngineReport, PoolEngine, PoolMap, PoolTarget};
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
    /// Where engines are. One that isn't named is a fault domain of its own.
    pub places: Vec<PoolEngine>,
}

/// Most names of fault domains above an engine: one for each of what datacentres are divided into, and some more. The map has all of
/// them, for each engine.
const PATH_MAX: usize = 8;

/// Longest name of a fault domain: that of a host.
const DOMAIN_NAME_MAX: usize = 253;

impl PoolSpec {
    /// Name of its default object class.
    fn class(&self) -> String {
        if !self.object_class.is_empty() {
            return self.object_class.clone();
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
        check_places(&spec.places).map_err(|reason| Failed::Invalid { object: object.clone(), reason })?;
        let object_class = spec.class();
        let class = crate::service::check_class(&object_class, &object)?;
        crate::service::check_survives(class, spec.redundancy)
            .map_err(|reason| Failed::Invalid { object: object.clone(), reason })?;
        self.check_identity(&spec, &object)?;
        let ranks = self.choose_ranks(&spec, &object).await?;
        let infos: Vec<EngineInfo> = ranks.iter().filter_map(|rank| self.engines.get(*rank)).collect();
        let map = map_of(&infos, &spec.places);
        check_domains(&map, spec.redundancy)
            .map_err(|reason| Failed::Invalid { object: object.clone(), reason })?;
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
        let served = served_factors();
        if served.contains(&spec.redundancy) {
            return Ok(());
        }
        let served: Vec<_> = served.map(|factor| factor.to_string()).collect();
        let reason = format!(
            "a redundancy factor of {} is not supported yet; use {}",
            spec.redundancy,
            served.join(" or ")
        );
        Err(Failed::NotSupported { object, reason })
    }

    async fn choose_ranks(&self, spec: &PoolSpec, object: &str) -> Result<Vec<Rank>, Failed> {
        let wanted = self.known_ranks(&spec.ranks, object)?;
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        let up = self.up().await;
        if up.is_empty() {
            let reason = "no engine is up".to_owned();
            return Err(Failed::NoSpace { object: object.to_owned(), reason });
        }
        Ok(up)
    }

    /// Ranks that were named, ascending and each once, all of which exist.
    pub(super) fn known_ranks(&self, named: &[Rank], object: &str) -> Result<Vec<Rank>, Failed> {
        let named: BTreeSet<Rank> = named.iter().copied().collect();
        let known: Vec<Rank> = self.engines.all().iter().map(|info| info.rank).collect();
        if let Some(missing) = named.iter().find(|rank| !known.contains(rank)) {
            let known: Vec<_> = known.iter().map(ToString::to_string).collect();
            let reason = format!("rank {missing} does not exist; the system has ranks {}", known.join(", "));
            return Err(Failed::Invalid { object: object.to_owned(), reason });
        }
        Ok(named.into_iter().collect())
    }

    /// Every engine that answers.
    pub(super) async fn up(&self) -> Vec<Rank> {
        let known: Vec<Rank> = self.engines.all().iter().map(|info| info.rank).collect();
        let reports = join_all(known.iter().map(|rank| self.report(*rank))).await;
        known.into_iter().zip(reports).filter(|(_, report)| report.is_ok()).map(|(rank, _)| rank).collect()
    }

    pub(super) async fn report(&self, rank: Rank) -> Result<EngineReport, AskError> {
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

/// Checks what a creator says of where engines are.
pub(super) fn check_places(places: &[PoolEngine]) -> Result<(), String> {
    let mut ranks: Vec<_> = places.iter().map(|place| place.rank).collect();
    ranks.sort_unstable();
    if let Some([twice, _]) = ranks.windows(2).find(|pair| pair.first() == pair.last()) {
        return Err(format!("the place of rank {twice} is said twice"));
    }
    let is_good = |name: &String| (1..=DOMAIN_NAME_MAX).contains(&name.len());
    match places.iter().find(|place| place.path.len() > PATH_MAX || !place.path.iter().all(is_good)) {
        None => Ok(()),
        Some(place) => Err(format!(
            "the place of rank {} has more than {PATH_MAX} names, or one that isn't of 1 to {DOMAIN_NAME_MAX} bytes",
            place.rank
        )),
    }
}

/// Checks that each copy has a fault domain of its own.
fn check_domains(map: &PoolMap, redundancy: u32) -> Result<(), String> {
    let (domains, needed) = (domains_with(map, |_| true), u64::from(redundancy) + 1);
    if redundancy == 0 || domains as u64 >= needed {
        return Ok(());
    }
    Err(format!(
        "a redundancy factor of {redundancy} needs at least {needed} fault domains, the {} engines are in {domains}",
        map.ranks().len()
    ))
}

fn map_of(infos: &[EngineInfo], places: &[PoolEngine]) -> PoolMap {
    let every = infos.iter().flat_map(|info| (0..info.targets).map(|index| (info.rank, TargetIndex(index))));
    let targets = (0..).zip(every).map(|(id, (rank, index))| PoolTarget::serving(id, rank, index));
    let mut map = PoolMap::new(1, targets.collect());
    let holds = |place: &&PoolEngine| infos.iter().any(|info| info.rank == place.rank);
    map.engines = places.iter().filter(holds).filter(|place| !place.path.is_empty()).cloned().collect();
    map.engines.sort_unstable_by_key(|engine| engine.rank);
    map
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
    fn copies_need_as_many_places_as_engines_are_in() {
        let info = |rank| EngineInfo {
            rank: Rank(rank),
            host: String::new(),
            fabric_port: 0,
            targets: 2,
            management: String::new(),
        };
        let place = |rank, path: &[&str]| PoolEngine {
            rank: Rank(rank),
            path: path.iter().map(|name| (*name).to_owned()).collect(),
        };
        let infos: Vec<_> = (0..3).map(info).collect();
        let needs = |places: &[PoolEngine], redundancy| check_domains(&map_of(&infos, places), redundancy);
        assert_eq!(needs(&[], 2), Ok(()), "each engine is a place of its own");
        let places = [place(7, &["z"]), place(2, &["z", "a"]), place(0, &["z", "a"]), place(1, &[])];
        assert_eq!(needs(&places, 1), Ok(()));
        let map = map_of(&infos, &places);
        assert_eq!(map.path_of(Rank(0)), ["z", "a"]);
        assert_eq!(map.engines.len(), 2, "others hold nothing of the pool, or are nowhere");
        let reason = needs(&places, 2).expect_err("two places");
        assert!(reason.contains("needs at least 3 fault domains, the 3 engines are in 2"), "{reason}");
    }

    #[test]
    fn places_that_are_no_places_are_refused() {
        let place = |rank, name: String| PoolEngine { rank: Rank(rank), path: vec![name] };
        let good = [place(0, "a".into()), place(1, "x".repeat(DOMAIN_NAME_MAX))];
        assert_eq!(check_places(&good), Ok(()));
        for bad in [String::new(), "x".repeat(DOMAIN_NAME_MAX + 1)] {
            assert!(check_places(&[place(0, bad)]).is_err());
        }
        let deep = PoolEngine { rank: Rank(0), path: vec!["a".into(); PATH_MAX + 1] };
        assert!(check_places(&[deep]).is_err());
        let twice = check_places(&[place(3, "a".into()), place(3, "b".into())]);
        assert_eq!(twice, Err("the place of rank 3 is said twice".to_owned()));
    }

    #[test]
    fn shares_are_whole_blocks_whatever_is_asked_for() {
        assert_eq!(share_of(10 << 20, 3), 3_497_984);
        assert_eq!(share_of(4096, 0), 4096);
        assert_eq!(share_of(u64::MAX, 1), u64::MAX - 4095);
    }
}
