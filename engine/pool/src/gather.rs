//! What the targets of a pool hold, gathered within a bounded time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use weir_proto::pool::{PoolMap, TargetPool, TargetPoolSpace};
use weir_proto::{ContainerId, PoolId, Rank, opcode};
use weir_runtime::join_all;

use crate::engines::Engines;

/// Longest wait for a target's figures. A target that is up answers in under a millisecond; one that isn't must not
/// keep a query waiting.
const QUERY_LIMIT: Duration = Duration::from_secs(2);

/// Figures of a pool's targets at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gathered {
    /// Space of each target that answered, by target id.
    pub space: Vec<(u32, TargetPoolSpace)>,
    /// Ranks of which some target did not answer, ascending.
    pub unreachable: Vec<Rank>,
    used: HashMap<ContainerId, u64>,
    active: HashSet<ContainerId>,
}

impl Gathered {
    /// Asks every target of the map.
    pub(crate) async fn ask(engines: &Engines, pool: PoolId, map: &PoolMap) -> Self {
        let request = TargetPool { pool };
        let asked = join_all(map.targets.iter().map(|target| {
            engines.ask::<_, TargetPoolSpace>(
                target.rank,
                target.index,
                opcode::TARGET_POOL_QUERY,
                &request,
                QUERY_LIMIT,
            )
        }));
        let mut space = Vec::with_capacity(map.targets.len());
        let mut unreachable = BTreeSet::new();
        let mut used = HashMap::new();
        let mut active = HashSet::new();
        for (target, answer) in map.targets.iter().zip(asked.await) {
            match answer {
                Ok(found) => {
                    for (container, bytes) in &found.containers {
                        *used.entry(*container).or_default() += bytes;
                    }
                    active.extend(&found.active);
                    space.push((target.id, found));
                }
                Err(error) => {
                    tracing::debug!(%pool, %error, "a target's space is not known");
                    unreachable.insert(target.rank);
                }
            }
        }
        Self { space, unreachable: unreachable.into_iter().collect(), used, active }
    }

    /// Bytes that a container holds over the targets that answered.
    #[must_use]
    pub fn used_by(&self, container: ContainerId) -> u64 {
        self.used.get(&container).copied().unwrap_or(0)
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
