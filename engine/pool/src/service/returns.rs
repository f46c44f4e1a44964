//! Targets that were away, or have started again, and get what they missed before they serve reads again: pools with replicas.

use std::time::Duration;

use weir_proto::lease::RebuiltNotice;
use weir_proto::pool::{PoolMap, PoolTarget, TargetPoolCreate, TargetPoolMap, TargetState};
use weir_proto::{Rank, TargetIndex, opcode};

use super::PoolService;
use super::membership::stays_within;
use super::moves::move_anew;
use crate::error::Failed;

/// Longest wait for a target to make a shard anew: a few writes to its log.
const CREATE_LIMIT: Duration = Duration::from_secs(5);

/// A target's place in a map.
fn find(map: &PoolMap, place: (Rank, TargetIndex)) -> Option<usize> {
    map.targets.iter().position(|target| (target.rank, target.index) == place)
}

impl PoolService {
    fn told(&self) -> Result<TargetPoolMap, Failed> {
        let record = self.pool()?;
        Ok(TargetPoolMap { pool: record.pool, map: record.map })
    }

    /// Takes note that a target has caught up, or has filled the places that it gets of others. One that has caught up serves again in a
    /// new version of the map, unless it was taken out of the map since the version that it names: what it has caught up with is
    /// not all then. Returns the map by which that was judged.
    pub(crate) async fn take_in(&self, rank: Rank, notice: &RebuiltNotice) -> Result<TargetPoolMap, Failed> {
        let change = |map: &mut PoolMap, version| {
            let found = find(map, (rank, notice.index))?;
            let target = map.targets.get_mut(found)?;
            // Whose places others have gets them with all others that move.
            if (target.state, target.since) != (TargetState::Up, notice.since) || target.out != 0 {
                return None;
            }
            tracing::info!(%rank, target = %notice.index, version, "a target has caught up and serves again");
            target.enter(TargetState::UpIn, version).then_some(())
        };
        self.change_map(change).await?;
        let told = self.told()?;
        self.note_filled(&told.map, (rank, notice.index), notice.since);
        Ok(told)
    }

    /// Takes note that a target has started again, or is well although the map has it out. It takes writes from the next version of
    /// the map on, and serves when it has caught up. One that the pool can't do without stays, and is in doubt. One that was
    /// catching up is up since the next version: it has caught up with nothing before it started.
    /// `known` is the version of the map that the target goes by: what it says of an earlier state counts no more.
    pub(crate) async fn readmit(
        &self,
        rank: Rank,
        index: TargetIndex,
        known: u32,
    ) -> Result<TargetPoolMap, Failed> {
        let redundancy = self.pool()?.redundancy;
        let change = |map: &mut PoolMap, version| {
            let found = find(map, (rank, index))?;
            let PoolTarget { state, since, in_doubt, .. } = map.targets.get(found)?.clone();
            let can_go = stays_within(map, redundancy, |one| (one.rank, one.index) == (rank, index));
            let is_whole = stays_within(map, redundancy, |_| false);
            if in_doubt && map.moves_since().is_some_and(|since| since <= known) {
                move_anew(map, version);
                return Some(());
            }
            let target = map.targets.get_mut(found)?;
            if target.excluded && state != TargetState::New {
                return None;
            }
            match state {
                TargetState::UpIn | TargetState::Drain if in_doubt || known < since => return None,
                TargetState::UpIn | TargetState::Drain if !can_go => target.in_doubt = true,
                TargetState::UpIn | TargetState::Drain | TargetState::Down => {
                    target.enter(TargetState::Up, version);
                }
                TargetState::Up | TargetState::New if target.takes_part() && known >= since => {
                    // What it said before it started counts no more: it catches up anew.
                    target.enter(TargetState::Down, version);
                    target.enter(TargetState::Up, version);
                }
                // Others have its places: it gets them back when it has what lies there.
                TargetState::DownOut if is_whole => {
                    target.enter(TargetState::Up, version);
                }
                TargetState::New if target.excluded => {
                    target.enter(TargetState::Up, version);
                }
                TargetState::DownOut | TargetState::Up | TargetState::New => return None,
            }
            let state = target.state.name();
            tracing::info!(%rank, target = %index, version, state, "a target is back and may lack changes");
            Some(())
        };
        self.change_map(change).await?;
        self.told()
    }

    /// Makes the shards of targets anew that could not be made before, if the others are complete by now.
    pub(super) async fn replace_shards(&self, map: &PoolMap, redundancy: u32) -> Result<(), Failed> {
        if !stays_within(map, redundancy, |_| false) {
            return Ok(());
        }
        let mut failed = None;
        for (rank, index) in self.blank.take() {
            // One that fails says again that it has nothing when it is back.
            if let Err(error) = self.replace_shard(rank, index).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn take_out_target(&self, rank: Rank, index: TargetIndex) -> Result<(), Failed> {
        let change = |map: &mut PoolMap, version| {
            let found = find(map, (rank, index))?;
            map.targets.get_mut(found)?.enter(TargetState::Down, version).then_some(())
        };
        self.change_map(change).await.map(drop)
    }

    /// Makes the shard of a target anew that has nothing of the pool. It gets its data from others, where they have it: as long
    /// as the pool is within its redundancy. Otherwise it is out of the map. Returns whether the target takes part.
    pub(super) async fn replace_shard(&self, rank: Rank, index: TargetIndex) -> Result<bool, Failed> {
        let redundancy = self.pool()?.redundancy;
        if index == TargetIndex(0)
            && let Err(error) = self.dismiss_replica(rank).await
        {
            self.blank.borrow_mut().insert((rank, index));
            return Err(error);
        }
        let change = |map: &mut PoolMap, version| {
            let found = find(map, (rank, index))?;
            let counts = |one: &PoolTarget| {
                (one.rank, one.index) == (rank, index) && one.out == 0 && one.state != TargetState::New
            };
            let complete = stays_within(map, redundancy, counts);
            let target = map.targets.get_mut(found)?;
            if target.excluded && target.state != TargetState::New {
                return None;
            }
            // Whatever it was, its data is lost.
            let mut changed = target.enter(TargetState::Down, version);
            if complete {
                changed |= target.enter(TargetState::Up, version);
            }
            let state = target.state.name();
            tracing::error!(%rank, target = %index, version, state, "a target has nothing of the pool, its data is lost");
            changed.then_some(())
        };
        self.change_map(change).await?;
        let record = self.pool()?;
        let target = find(&record.map, (rank, index)).and_then(|found| record.map.targets.get(found));
        if !target.is_some_and(|target| target.state == TargetState::Up || target.gains_all()) {
            if target.is_some_and(|target| !target.excluded || target.state == TargetState::New) {
                self.blank.borrow_mut().insert((rank, index));
            }
            return Ok(false);
        }
        // With the map that has it up: it must not serve what it doesn't have.
        let (label, request) = (record.label.clone(), TargetPoolCreate::from(record));
        let opcode = opcode::TARGET_POOL_CREATE;
        let asked = self.engines.ask::<_, ()>(rank, index, opcode, &request, CREATE_LIMIT).await;
        let Err(error) = asked else { return Ok(true) };
        // Changes would wait for it.
        self.take_out_target(rank, index).await?;
        Err(Failed::asking(format!("pool {label}"), "making a shard anew", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::served_by;
    use crate::target::tests::POOL;

    #[test]
    fn a_target_is_taken_in_as_long_as_it_is_up_since_the_version_that_it_names() {
        let targets = (0..2).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0)));
        let (world, node, _store, service, pool) = served_by(targets.collect(), 1);
        world.block_on(&node, async move {
            let enter = async |state| {
                let mut map = service.pool().expect("it lives").map;
                map.version += 1;
                let version = map.version;
                assert!(map.targets[1].enter(state, version));
                pool.set_map(map).await.expect("room");
                version
            };
            let notice = |since| RebuiltNotice { index: TargetIndex(0), pool: POOL, since };
            let state = async |since| {
                let told = service.take_in(Rank(1), &notice(since)).await.expect("it lives");
                assert_eq!(told.map, service.pool().expect("it lives").map);
                (told.map.targets[1].state, told.map.version)
            };
            enter(TargetState::Down).await;
            assert_eq!(state(2).await, (TargetState::Down, 2), "it is down");
            let first = enter(TargetState::Up).await;
            enter(TargetState::Down).await;
            let second = enter(TargetState::Up).await;
            assert_eq!(state(first).await, (TargetState::Up, second), "it was down since");
            assert_eq!(state(second).await, (TargetState::UpIn, second + 1));
            assert_eq!(state(second).await, (TargetState::UpIn, second + 1), "a repeat");
            let strange = service.take_in(Rank(9), &notice(second)).await.expect("it lives");
            assert_eq!(strange.map.version, second + 1, "no target of the pool");
        });
    }

    #[test]
    fn who_starts_again_catches_up_or_is_in_doubt_where_the_pool_can_not_do_without_it() {
        let targets = (0..3).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0)));
        let (world, node, _store, service, _pool) = served_by(targets.collect(), 1);
        world.block_on(&node, async move {
            let back = async |rank, known| {
                let told = service.readmit(Rank(rank), TargetIndex(0), known).await.expect("it lives");
                let state = |target: &PoolTarget| (target.state, target.in_doubt);
                (told.map.version, told.map.targets.iter().map(state).collect::<Vec<_>>())
            };
            let (sure, up) = ((TargetState::UpIn, false), (TargetState::Up, false));
            let doubted = (TargetState::UpIn, true);
            assert_eq!(back(1, 0).await, (1, vec![sure; 3]), "said of an earlier state");
            assert_eq!(back(1, 1).await, (2, vec![sure, up, sure]));
            assert_eq!(back(1, 1).await, (2, vec![sure, up, sure]), "a repeat");
            let since = || service.pool().expect("it lives").map.targets[1].since;
            assert_eq!(
                (since(), back(1, 2).await, since()),
                (2, (3, vec![sure, up, sure]), 3),
                "it starts again"
            );
            assert_eq!(back(2, 1).await, (4, vec![sure, up, doubted]));
            assert_eq!(back(2, 4).await, (4, vec![sure, up, doubted]), "it is in doubt already");
            assert_eq!(back(0, 4).await, (5, vec![doubted, up, doubted]));
            service.resolve_doubt(1).await.expect("it lives");
            assert_eq!(back(9, 5).await, (5, vec![doubted, up, doubted]), "one at a time");
            let notice =
                |rank, since| (Rank(rank), RebuiltNotice { index: TargetIndex(0), pool: POOL, since });
            service.take_in(Rank(1), &notice(1, 2).1).await.expect("it lives");
            assert_eq!(back(9, 5).await.0, 5, "it has caught up before it started again");
            for (rank, since, version) in [(1, 3, 7), (0, 7, 9), (2, 9, 10)] {
                let (rank, notice) = notice(rank, since);
                service.take_in(rank, &notice).await.expect("it lives");
                service.resolve_doubt(1).await.expect("it lives");
                assert_eq!(back(9, 0).await.0, version, "the next in the order of ranks catches up");
            }
            assert_eq!(back(9, 0).await, (10, vec![sure; 3]));
        });
    }
}
