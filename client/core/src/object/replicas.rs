//! Requests about objects with replicas: changes and transactions' reads go to the leader of a group, other fetches to any member
//! that serves.

use core::time::Duration;

use weir_proto::pool::PoolMap;
use weir_proto::{Der, opcode};
use weir_runtime::Instant;

use super::{Object, ReplicaChoice, ShardChoice, is_stale, no_shard, unserved};
use crate::error::Error;
use crate::operation::{Exchange, PAUSE, Payload, Reach, Refusal, RequestInfo};
use crate::session::Context;

/// First and longest wait for one member: the first passes over a member that has died, and is longer than most fetches take.
const FETCH_TRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often a newer map is asked for while a member doesn't answer: it comes within seconds of the loss of an engine, and until then
/// changes wait.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for the leader before it is asked whether another target leads by now.
const LEADER_TRY: Duration = Duration::from_secs(1);

impl Object {
    /// As `exchange_until`. A change is sent under the same name until it is answered, whoever leads.
    pub(super) async fn exchange_with_replicas(
        &self,
        context: &Context,
        deadline: Instant,
        info: &RequestInfo<'_>,
        place: ShardChoice<'_>,
        payload: &Payload<'_>,
        build: &dyn Fn(u32) -> Vec<u8>,
    ) -> core::result::Result<Exchange, Refusal> {
        let (pool, now) = (self.container.pool(), || context.runtime().now());
        let spreads = matches!(info.opcode, opcode::OBJECT_FETCH | opcode::OBJECT_FETCH_TO_COMPARE);
        let mut wait = if spreads { FETCH_TRY.0 } else { LEADER_TRY };
        let mut passed: Vec<u32> = Vec::new();
        // Members whose own data doesn't match its checksums, and what the last one said of it.
        let (mut damaged, mut told): (Vec<u32>, Option<Refusal>) = (Vec::new(), None);
        loop {
            let map = context.map_of(pool);
            let layout = self.layout(context, &map)?;
            let group = match place {
                ShardChoice::Dkey(dkey) => layout.group_index(dkey.hash()),
                ShardChoice::Shard(group) if group < layout.group_count() => group,
                ShardChoice::Shard(group) => return Err(no_shard(info, group).into()),
            };
            let is_asked = |id: &u32| !passed.contains(id) && !damaged.contains(id);
            let serving: Vec<u32> = layout.serving(group, &map).filter(is_asked).collect();
            let id = self.choose(context, &map, &serving, spreads);
            let Some(target) = id.and_then(|id| map.target(id)) else {
                if let Some(refusal) = told.take_if(|_| passed.is_empty()) {
                    return Err(refusal);
                }
                // All have been asked, or none serves.
                let has_newer = context.look_for_map(pool, map.version, LOOK_PAUSE).await;
                if passed.is_empty() && !has_newer && now() + PAUSE.1 >= deadline {
                    return Err(unserved(info, pool, &map, (&layout, group)).into());
                }
                if passed.is_empty() && !has_newer {
                    context.runtime().sleep(PAUSE.1).await;
                }
                passed.clear();
                continue;
            };
            let until = (now() + wait).min(deadline);
            let reach = Reach::Target(target.rank, target.index);
            match context.exchange(reach, info, &build(map.version), payload, until).await {
                Err(refusal) if is_stale(refusal.error.der()) && now() < deadline => {
                    context.refresh_map(pool, map.version, target.rank, deadline).await?;
                }
                Err(refusal) if spreads && refusal.error.is(Der::CSUM) && now() < deadline => {
                    damaged.push(target.id);
                    told = Some(refusal);
                }
                Err(refusal) if may_be_answered_elsewhere(&refusal) && now() < deadline => {
                    if spreads {
                        passed.push(target.id);
                        wait = (wait * 2).min(FETCH_TRY.1);
                    } else {
                        context.look_for_map(pool, map.version, LOOK_PAUSE).await;
                    }
                }
                answered => return answered,
            }
        }
    }

    /// The member that is asked, of those that may be: the first one leads.
    fn choose(&self, context: &Context, map: &PoolMap, serving: &[u32], spreads: bool) -> Option<u32> {
        let named = |place| {
            let is_named = |id: &&u32| map.target(**id).is_some_and(|one| (one.rank, one.index) == place);
            serving.iter().find(is_named).copied()
        };
        match self.replica {
            ReplicaChoice::Only(place) => return named(place),
            ReplicaChoice::First(place) if named(place).is_some() => return named(place),
            ReplicaChoice::First(_) | ReplicaChoice::Any => {}
        }
        let choice = if spreads { context.runtime().random_u64() } else { 0 };
        let chosen = usize::try_from(choice % serving.len().max(1) as u64);
        chosen.ok().and_then(|chosen| serving.get(chosen)).copied()
    }
}

/// Whether another member may answer, or the same one later.
pub(crate) fn may_be_answered_elsewhere(refusal: &Refusal) -> bool {
    matches!(refusal.error, Error::Unavailable { .. }) || refusal.error.is(Der::NVME_IO)
}
