//! What the targets of a pool hold, gathered within a bounded time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use weir_proto::limits::GATHER_NS;
use weir_proto::pool::{PoolMap, TargetPoolSpace};
use weir_proto::{ContainerId, PoolId, Rank};

use crate::spread::Spread;

/// Longest wait for the figures of all targets.
const QUERY_LIMIT: Duration = Duration::from_nanos(GATHER_NS);

/// Figures of a pool's targets at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gathered {
    /// Space of each target that answered, by target id.
    pub space: Vec<(u32, TargetPoolSpace)>,
    /// Ranks of which some target did not answer, ascending.
    pub unreachable: Vec<Rank>,
    used: BTreeMap<ContainerId, u64>,
    active: BTreeSet<ContainerId>,
}

impl Gathered {
    /// Asks every target of the map. Takes [`GATHER_NS`] at most.
    pub async fn ask(spread: &Spread, pool: PoolId, map: &PoolMap) -> Self {
        let sum = spread.sum(pool, &map.ranks(), QUERY_LIMIT).await;
        let figures: HashMap<_, _> =
            sum.targets.iter().map(|(rank, index, total, free)| ((*rank, *index), (*total, *free))).collect();
        let mut space = Vec::with_capacity(map.targets.len());
        let mut unreachable = BTreeSet::new();
        for target in &map.targets {
            match figures.get(&(target.rank, target.index)) {
                Some((total, free)) if target.state.takes_writes() => {
                    let found = TargetPoolSpace { total: *total, free: *free, ..TargetPoolSpace::default() };
                    space.push((target.id, found));
                }
                // What it says of a device that isn't used is worth nothing.
                _ if target.state.is_lost() => {}
                _ => {
                    unreachable.insert(target.rank);
                }
            }
        }
        let (used, active) = (sum.used, sum.active);
        Self { space, unreachable: unreachable.into_iter().collect(), used, active }
    }

    /// Bytes that a container holds over the targets that answered.
    #[must_use]
    pub fn used_by(&self, container: ContainerId) -> u64 {
        self.used.get(&container).copied().unwrap_or(0)
    }

    /// Bytes that all containers hold over the targets that answered.
    #[must_use]
    pub fn used_in_all(&self) -> u64 {
        self.used.values().fold(0, |sum, used| sum.saturating_add(*used))
    }

    /// Whether clients have used a container of late on a target that answered.
    #[must_use]
    pub fn is_active(&self, container: ContainerId) -> bool {
        self.active.contains(&container)
    }

    /// Total and free bytes over the targets that answered.
    #[must_use]
    pub fn total_and_free(&self) -> (u64, u64) {
        self.space.iter().fold((0, 0), |(total, free), (_, space)| (total + space.total, free + space.free))
    }
}
