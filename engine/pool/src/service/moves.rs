//! Places of targets that stay away go to others: *heirs* fill them, and serve there when all heirs have all. The rules, and why they
//! lose nothing, are in docs/explanation/replication.md.
//!
//! The same way targets that were drained lose their places, those that come back after others have taken their places get them
//! again, and those that join a pool get some. There members go on serving that lose places. So before places are handed over, groups that
//! get other members take no changes until all targets have said that nothing of theirs is unsettled.
//!
//! What is under way is in the map: since which version others fill a target's places, and since which they are handed over. What targets
//! have said is in memory: they say it again to a service that starts.

use std::time::Duration;

use weir_layout::domains_with;
use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
use weir_proto::{Rank, TargetIndex};
use weir_runtime::Instant;

use super::PoolService;
use super::growth::check_has_places;
use super::membership::stays_within;
use crate::error::Failed;
use crate::record::STAYS_AS_IT_IS;

/// Longest wait until an engine that is excluded is out of the map: until its lease has ended, and some more.
const EXPEL_MAX: Duration = Duration::from_secs(15);

/// How long targets have to settle what is under way in groups whose places are handed over. Nothing changes there meanwhile: after that
/// changes go on, and it is tried again later.
const HANDING_MAX: Duration = Duration::from_secs(5);

/// Pause before it is tried again.
const HANDING_PAUSE: Duration = Duration::from_secs(15);

/// How often that is looked at.
const EXPEL_LOOK: Duration = Duration::from_millis(100);

/// What a target has said: that it has filled its places, in the move of data that began with a version of the map; or that nothing is
/// unsettled of what is handed over since a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Filled {
    /// Version since which data moves, or is handed over.
    moves_since: u32,
    /// Version since which the target is in its state.
    since: u32,
}

/// Whether a target keeps its places, or may get others.
fn stays(target: &PoolTarget) -> bool {
    target.takes_part() && target.leaving == 0
}

/// Whether the places of some targets can go to others: as many fault domains are left as an object has replicas, and what
/// the pool misses is there.
fn may_leave(map: &PoolMap, redundancy: u32, leaves: impl Fn(&PoolTarget) -> bool) -> bool {
    let left = domains_with(map, |target| stays(target) && !leaves(target));
    left > redundancy as usize && stays_within(map, redundancy, |_| false)
}

/// Lets the places of targets go to others. Returns how many begin to leave.
fn let_leave(
    map: &mut PoolMap,
    version: u32,
    redundancy: u32,
    leaves: impl Fn(&PoolTarget) -> bool,
) -> usize {
    if !may_leave(map, redundancy, &leaves) {
        return 0;
    }
    let concerned = map.targets.iter_mut().filter(|target| leaves(target));
    concerned.map(|target| usize::from(target.leave(version))).sum()
}

/// All moves begin anew: what was said of places that were filled counts no more.
pub(super) fn move_anew(map: &mut PoolMap, version: u32) {
    map.targets.iter_mut().for_each(|target| target.move_anew(version));
}

/// Has all moves begin anew where targets that fill places may lack something: where a target keeps its places that others were filling,
/// since the places of others may go elsewhere then; where one has come in doubt since it has started again, which may show alone what it
/// has not sent to others; where one serves no more, which may have sent changes to some and not to all; and where one gets no places any more that
/// was to get some, since others get them then. Places that are about to be handed over stay where they are.
pub(super) fn begin_anew(before: &PoolMap, map: &mut PoolMap) {
    let was = |id, is_so: fn(&PoolTarget) -> bool| before.target(id).is_some_and(is_so);
    let keeps = |target: &PoolTarget| {
        let gave = |target: &PoolTarget| target.leaving != 0;
        target.leaving == 0 && target.state != TargetState::DownOut && was(target.id, gave)
    };
    let is_new_doubt = |target: &PoolTarget| target.in_doubt && was(target.id, |target| !target.in_doubt);
    let ceases = |target: &PoolTarget| {
        !target.state.serves() && target.out == 0 && was(target.id, |target| target.state.serves())
    };
    // What was to be its goes elsewhere, to who may have said already that it has all.
    let gives_up = |target: &PoolTarget| {
        !target.state.serves() && !target.gains_all() && was(target.id, PoolTarget::gains_all)
    };
    let lacks =
        |target: &PoolTarget| keeps(target) || is_new_doubt(target) || ceases(target) || gives_up(target);
    if map.targets.iter().any(lacks) {
        let version = map.version;
        move_anew(map, version);
    }
    if map.handing == before.handing {
        map.handing = 0;
    }
}

/// Whether all that data moves to has come: each target that isn't out has said so, and none is away that may have places in the end.
/// One in doubt counts, too: it can't catch up before. Whenever one starts again, all say it anew.
fn is_filled(map: &PoolMap, moves_since: u32, filled: impl Fn(&PoolTarget) -> Option<Filled>) -> bool {
    map.targets.iter().all(|target| {
        if !target.takes_part() {
            return target.state == TargetState::New || target.out != 0 || target.leaving != 0;
        }
        let expected = Filled { moves_since, since: target.since };
        (target.state.serves() || target.gains_all()) && filled(target) == Some(expected)
    })
}

/// Whether places go to others from targets that go on serving, which is so unless only lost ones leave.
fn hands_over(map: &PoolMap) -> bool {
    map.targets.iter().any(|target| target.moves_since().is_some() && target.state != TargetState::Down)
}

/// Has all moves end: who has filled its places serves there. All in one version of the map, since places of the one that goes out later may
/// be those that it gets of one that goes out before it. By the order in which targets began to leave places have heirs, and they are told
/// to be out since versions in that order.
fn hand_over(map: &mut PoolMap, version: u32) -> usize {
    let is_leaving = |target: &PoolTarget| {
        target.leaving > 0 && matches!(target.state, TargetState::Down | TargetState::Drain)
    };
    let mut leaving: Vec<u32> =
        map.targets.iter().filter(|one| is_leaving(one)).map(|one| one.leaving).collect();
    leaving.sort_unstable();
    leaving.dedup();
    let mut last = version;
    let mut changed = 0;
    for (began, out) in leaving.iter().zip(version..) {
        for target in map.targets.iter_mut().filter(|one| is_leaving(one) && one.leaving == *began) {
            changed += usize::from(target.enter(TargetState::DownOut, out));
        }
        last = out;
    }
    for target in map.targets.iter_mut().filter(|target| target.gains_all()) {
        changed += usize::from(target.enter(TargetState::UpIn, last));
    }
    (map.version, map.handing) = (last, 0);
    changed
}

impl PoolService {
    /// Goes on with the moves of places: lets heirs begin where a target has been away for long, and serve where they have all.
    pub(super) async fn look_after_moves(&self, redundancy: u32) -> Result<(), Failed> {
        self.begin_moves(redundancy).await?;
        self.drain_wanted(redundancy).await?;
        self.end_moves().await
    }

    async fn begin_moves(&self, redundancy: u32) -> Result<(), Failed> {
        let lost = self.stay_away(&self.pool()?.map);
        if lost.is_empty() {
            return Ok(());
        }
        self.leave(redundancy, |target| lost.contains(&target.id)).await.map(drop)
    }

    /// Ids of the targets that have been down for so long that others are to have their places.
    fn stay_away(&self, map: &PoolMap) -> Vec<u32> {
        let now = self.engines.runtime().now();
        let is_away = |target: &PoolTarget| target.state == TargetState::Down && target.leaving == 0;
        let mut away = self.away_since.borrow_mut();
        away.retain(|id, _| map.target(*id).is_some_and(is_away));
        for target in map.targets.iter().filter(|target| is_away(target)) {
            away.entry(target.id).or_insert(now);
        }
        let patience = self.settings.get().rebuild_delay();
        let is_over = |since: &Instant| now.saturating_duration_since(*since) >= patience;
        away.iter().filter(|(_, since)| is_over(since)).map(|(id, _)| *id).collect()
    }

    /// Lets others fill the places of targets that are down. Whether any begins to leave.
    async fn leave(&self, redundancy: u32, leaves: impl Fn(&PoolTarget) -> bool) -> Result<bool, Failed> {
        let pool = self.label();
        let change = |map: &mut PoolMap, version| {
            let targets =
                let_leave(map, version, redundancy, |one| one.state == TargetState::Down && leaves(one));
            (targets > 0).then(|| {
                tracing::warn!(pool, targets, version, "others get the places of targets that stay away");
            })
        };
        Ok(self.change_map(change).await?.is_some())
    }

    /// Takes an engine out of the pool for good, as an administrator says: it goes out of the map when its lease has ended, others
    /// get its places at once, and it doesn't come back by itself.
    ///
    /// # Errors
    /// When it isn't the pool's, the pool can't do without it, or the map can't be stored.
    pub async fn expel(&self, rank: Rank) -> Result<(), Failed> {
        let record = self.pool()?;
        let object = format!("rank {rank} of pool {}", record.label);
        if !record.map.ranks().contains(&rank) {
            let reason = "the pool has nothing on it".to_owned();
            return Err(Failed::Invalid { object, reason });
        }
        if record.redundancy == 0 {
            let reason = "the pool has no redundancy: what is there would be lost".to_owned();
            return Err(Failed::Invalid { object, reason });
        }
        check_has_places(&record, rank, &object)?;
        let of_rank = |target: &PoolTarget| target.rank == rank;
        if !stays_within(&record.map, record.redundancy, of_rank) {
            let reason = "can't be done without: `weir pool query` shows what else is missing".to_owned();
            return Err(Failed::Busy { object, reason });
        }
        self.excluding.borrow_mut().insert(rank);
        let ended = self.see_out(rank).await;
        self.excluding.borrow_mut().remove(&rank);
        if ended? {
            return Ok(());
        }
        let reason = "did not go out of the map in time; try again".to_owned();
        Err(Failed::Busy { object, reason })
    }

    /// Waits until an engine that is being excluded is out of the map, and has others get its places. `false`: it isn't in time.
    async fn see_out(&self, rank: Rank) -> Result<bool, Failed> {
        let rt = self.engines.runtime().clone();
        let until = rt.now() + EXPEL_MAX;
        let is_in = |target: &PoolTarget| target.rank == rank && !target.state.is_lost();
        while self.pool()?.map.targets.iter().any(is_in) {
            if rt.now() >= until {
                return Ok(false);
            }
            rt.sleep(EXPEL_LOOK).await;
        }
        let mark = |map: &mut PoolMap, _| {
            let mut marked = 0;
            for target in map.targets.iter_mut().filter(|one| one.rank == rank && one.state.is_lost()) {
                marked += usize::from(!core::mem::replace(&mut target.excluded, true));
            }
            (marked > 0).then_some(())
        };
        self.change_map(mark).await?;
        let redundancy = self.pool()?.redundancy;
        self.leave(redundancy, |target| target.rank == rank).await?;
        Ok(true)
    }

    /// Has the data of an engine moved to others while it goes on serving. When they have it all it is out of the pool, and doesn't come back
    /// by itself.
    ///
    /// # Errors
    /// When it isn't the pool's, others can't take its places, or the map can't be stored.
    pub async fn drain(&self, rank: Rank) -> Result<(), Failed> {
        let record = self.pool()?;
        let object = format!("rank {rank} of pool {}", record.label);
        let of_rank = |target: &PoolTarget| target.rank == rank;
        if !record.map.targets.iter().any(of_rank) {
            return Err(Failed::Invalid { object, reason: "the pool has nothing on it".to_owned() });
        }
        if record.redundancy == 0 {
            return Err(Failed::NotSupported { object, reason: STAYS_AS_IT_IS.to_owned() });
        }
        check_has_places(&record, rank, &object)?;
        if record.map.targets.iter().filter(|target| of_rank(target)).all(|target| target.out != 0) {
            let reason = "others have its places already".to_owned();
            return Err(Failed::Invalid { object, reason });
        }
        if record.map.targets.iter().any(|target| of_rank(target) && target.state.is_lost()) {
            let reason = "is away: `weir pool exclude` has others get its places".to_owned();
            return Err(Failed::Busy { object, reason });
        }
        if !may_leave(&record.map, record.redundancy, of_rank) {
            let reason = format!(
                "no other engine can take its places: {} fault domains have to be left that lack nothing; `weir pool query` shows what is missing",
                record.redundancy.saturating_add(1)
            );
            return Err(Failed::Busy { object, reason });
        }
        let mark = |map: &mut PoolMap, _| {
            let mut changed = 0;
            for target in map.targets.iter_mut().filter(|target| of_rank(target) && target.out == 0) {
                changed += usize::from(!core::mem::replace(&mut target.draining, true));
            }
            (changed > 0).then_some(())
        };
        self.change_map(mark).await?;
        self.drain_wanted(record.redundancy).await
    }

    /// Begins to drain what is to be drained and serves: also what has started again in the middle.
    async fn drain_wanted(&self, redundancy: u32) -> Result<(), Failed> {
        let pool = self.label();
        let begin = |map: &mut PoolMap, version| {
            let begins = |target: &PoolTarget| {
                target.draining && target.state == TargetState::UpIn && !target.in_doubt
            };
            if !may_leave(map, redundancy, begins) {
                return None;
            }
            let concerned = map.targets.iter_mut().filter(|target| begins(target));
            let targets: usize =
                concerned.map(|target| usize::from(target.enter(TargetState::Drain, version))).sum();
            (targets > 0).then(|| {
                tracing::info!(pool, targets, version, "others get the places of targets that are drained");
            })
        };
        self.change_map(begin).await.map(drop)
    }

    /// Lets an engine come back that an administrator has taken out or has drained: it gets its places back when it has what lies there.
    /// One that is being drained keeps its places.
    ///
    /// # Errors
    /// When it isn't the pool's, or the map can't be stored.
    pub async fn reintegrate(&self, rank: Rank) -> Result<(), Failed> {
        let record = self.pool()?;
        let own: Vec<PoolTarget> =
            record.map.targets.iter().filter(|target| target.rank == rank).cloned().collect();
        if own.is_empty() {
            let object = format!("rank {rank} of pool {}", record.label);
            return Err(Failed::Invalid { object, reason: "the pool has nothing on it".to_owned() });
        }
        let change = |map: &mut PoolMap, version| {
            let mut changed = 0;
            // One that is new and away comes back by itself.
            let may_return =
                |target: &&mut PoolTarget| target.rank == rank && target.state != TargetState::New;
            for target in map.targets.iter_mut().filter(may_return) {
                changed += usize::from(core::mem::take(&mut target.excluded));
                changed += usize::from(core::mem::take(&mut target.draining));
                if target.state == TargetState::Drain {
                    changed += usize::from(target.enter(TargetState::UpIn, version));
                }
            }
            (changed > 0).then_some(())
        };
        self.change_map(change).await?;
        // One that has its data says by itself that it is there.
        for target in own.iter().filter(|target| target.state.is_lost()) {
            if self.has_lost(rank, target.index).await {
                self.blank.borrow_mut().insert((rank, target.index));
            }
        }
        Ok(())
    }

    /// Whether a target has said that it has filled the places that it gets, in a move of data.
    pub(super) fn has_filled(&self, target: &PoolTarget, moves_since: u32) -> bool {
        let expected = Filled { moves_since, since: target.since };
        self.filled.borrow().get(&target.id) == Some(&expected)
    }

    /// Takes note that a target has filled the places that it gets, if that is of the move that is under way; or that nothing is unsettled
    /// there of what is handed over.
    pub(super) fn note_filled(&self, map: &PoolMap, place: (Rank, TargetIndex), said: u32) {
        let found = map.targets.iter().find(|target| (target.rank, target.index) == place);
        let takes_part = |target: &&PoolTarget| target.state.serves() || target.gains_all();
        let Some(target) = found.filter(takes_part) else { return };
        let filled = Filled { moves_since: said, since: target.since };
        if map.handing == said {
            self.settled.borrow_mut().insert(target.id, filled);
        } else if map.moves_since() == Some(said) {
            self.filled.borrow_mut().insert(target.id, filled);
        }
    }

    async fn end_moves(&self) -> Result<(), Failed> {
        let map = self.pool()?.map;
        let Some(moves_since) = map.moves_since() else {
            self.filled.borrow_mut().clear();
            self.settled.borrow_mut().clear();
            return Ok(());
        };
        let known = self.filled.borrow().clone();
        if !is_filled(&map, moves_since, |target| known.get(&target.id).copied()) {
            return Ok(());
        }
        if map.handing == 0 && hands_over(&map) {
            return self.begin_to_hand_over(&map).await;
        }
        let settled = self.settled.borrow().clone();
        if map.handing != 0 && !is_filled(&map, map.handing, |target| settled.get(&target.id).copied()) {
            return self.give_up_late(&map).await;
        }
        let (pool, expected) = (self.label(), map.version);
        let change = |map: &mut PoolMap, version| {
            if map.version != expected {
                return None;
            }
            let targets = hand_over(map, version);
            (targets > 0).then(|| {
                tracing::info!(
                    pool,
                    targets,
                    map.version,
                    "targets have taken over the places that they have filled"
                );
            })
        };
        self.change_map(change).await.map(drop)
    }

    /// Has targets settle what is under way in groups that get other members.
    async fn begin_to_hand_over(&self, seen: &PoolMap) -> Result<(), Failed> {
        let now = self.engines.runtime().now();
        if self.handing_from.get().is_some_and(|from| now < from) {
            return Ok(());
        }
        self.settled.borrow_mut().clear();
        self.handing_from.set(Some(now + HANDING_MAX));
        let begin = |map: &mut PoolMap, version| (map.version == seen.version).then(|| map.handing = version);
        self.change_map(begin).await.map(drop)
    }

    /// Lets changes go on where settling takes too long.
    async fn give_up_late(&self, seen: &PoolMap) -> Result<(), Failed> {
        let now = self.engines.runtime().now();
        // A service that has started in the middle waits as long.
        let until = self.handing_from.get().unwrap_or(now + HANDING_MAX);
        self.handing_from.set(Some(until));
        if now < until {
            return Ok(());
        }
        self.handing_from.set(Some(now + HANDING_PAUSE));
        tracing::warn!(
            pool = self.label(),
            "places are handed over later, since changes under way take long"
        );
        let end = |map: &mut PoolMap, _| (map.version == seen.version).then(|| map.handing = 0);
        self.change_map(end).await.map(drop)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A map of engines with one target each: in service, `-` down, `h` with heirs under way, `o` out, `+` up, `?` in doubt.
    pub fn map(engines: &str) -> PoolMap {
        let mut map = PoolMap::new(9, Vec::new());
        for (rank, state) in (0..).zip(engines.chars()) {
            let mut target = PoolTarget::serving(rank, Rank(rank), TargetIndex(0));
            let down = |target: &mut PoolTarget| assert!(target.enter(TargetState::Down, 3));
            match state {
                '?' => target.in_doubt = true,
                '-' => down(&mut target),
                'h' => {
                    down(&mut target);
                    assert!(target.leave(4 + rank));
                }
                'o' => assert!(target.enter(TargetState::DownOut, 4)),
                '+' => assert!(target.enter(TargetState::Up, 6)),
                _ => {}
            }
            map.targets.push(target);
        }
        map
    }

    fn leaves(engines: &str, redundancy: u32) -> usize {
        let is_down = |target: &PoolTarget| target.state == TargetState::Down;
        let mut map = map(engines);
        let count = let_leave(&mut map, 10, redundancy, is_down);
        assert_eq!(map.targets.iter().filter(|target| target.leaving == 10).count(), count);
        count
    }

    #[test]
    fn places_go_to_others_where_fault_domains_are_left_and_nothing_is_missing_beyond_the_redundancy() {
        assert_eq!(leaves("..-", 1), 1);
        assert_eq!(leaves(".-", 1), 0, "two replicas need two domains");
        assert_eq!(leaves("o.-.", 1), 1, "what was lost before is elsewhere");
        assert_eq!(leaves("o.-", 1), 0, "two replicas need two domains");
        assert_eq!(leaves("..-+", 1), 0, "what is to be moved may be missing");
        assert_eq!(leaves("..-..-", 2), 2);
        assert_eq!(leaves("..h", 1), 0, "they go already");
    }

    /// Whether all is there when so many of the first targets have said so, in the move and the state since version 1 that is under way.
    fn filled(engines: &str, said: u32) -> bool {
        let map = map(engines);
        let moves_since = map.moves_since().expect("a move is under way");
        is_filled(&map, moves_since, |target| (target.id < said).then_some(Filled { moves_since, since: 1 }))
    }

    #[test]
    fn heirs_serve_when_all_that_may_get_something_have_all() {
        assert!(filled("..h", 2));
        assert!(!filled("..h", 1), "one has not said so");
        assert!(!filled("..h+", 4), "one catches up");
        assert!(filled("..h?", 4), "one in doubt can't catch up before");
        assert!(!filled("..h-", 4), "one may come back, and has places");
        assert!(filled("..ho", 2));
        assert!(filled("..hh", 2));
    }

    #[test]
    fn who_keeps_its_places_has_the_others_that_leave_begin_anew() {
        let before = map("hh.");
        let mut map = before.clone();
        map.version = 10;
        begin_anew(&before, &mut map);
        assert_eq!(map, PoolMap { version: 10, ..before.clone() }, "nobody has come back");
        assert!(map.targets[0].enter(TargetState::DownOut, 10));
        begin_anew(&before, &mut map);
        assert_eq!(map.targets[1].leaving, 5, "others have its places");
        let mut map = PoolMap { version: 10, ..before.clone() };
        assert!(map.targets[1].enter(TargetState::Up, 10));
        begin_anew(&before, &mut map);
        assert_eq!((map.targets[0].leaving, map.targets[1].leaving), (10, 0));
        let mut map = PoolMap { version: 10, ..before.clone() };
        map.targets[2].in_doubt = true;
        begin_anew(&before, &mut map);
        assert_eq!(
            (map.targets[0].leaving, map.targets[1].leaving),
            (10, 10),
            "what it shows alone they may lack"
        );
        let doubted = PoolMap { version: 11, ..map.clone() };
        let mut map = doubted.clone();
        begin_anew(&doubted, &mut map);
        assert_eq!(map, doubted, "nothing is new");
    }

    #[test]
    fn targets_go_out_in_the_order_in_which_they_began_to_leave_and_all_at_once() {
        let mut map = map("h.h.");
        map.targets[0].leaving = 8;
        assert!(!hands_over(&map), "nobody who serves loses a place");
        assert_eq!(hand_over(&mut map, 10), 2);
        assert_eq!((map.targets[2].out, map.targets[0].out), (10, 11));
        assert_eq!((map.version, map.moves_since()), (11, None));
        assert_eq!(hand_over(&mut map, 12), 0);
    }

    #[test]
    fn who_is_drained_goes_out_and_who_is_back_comes_in_at_once() {
        let mut map = map("..o.");
        map.targets[0].draining = true;
        assert!(map.targets[0].enter(TargetState::Drain, 8));
        assert!(map.targets[2].enter(TargetState::Up, 9));
        map.targets.push(PoolTarget::joining(4, (Rank(4), TargetIndex(0)), 10));
        map.handing = 11;
        assert!(hands_over(&map));
        let known = |target: &PoolTarget| Some(Filled { moves_since: 11, since: target.since });
        assert!(is_filled(&map, 11, known));
        assert!(!is_filled(&map, 11, |target| known(target).filter(|_| target.id != 2)), "it hasn't all");
        assert!(!is_filled(&map, 11, |target| known(target).filter(|_| target.id != 4)), "it hasn't all");
        assert_eq!(hand_over(&mut map, 12), 3);
        let states: Vec<_> = map.targets.iter().map(|target| target.state).collect();
        let (here, out) = (TargetState::UpIn, TargetState::DownOut);
        assert_eq!(states, [out, here, here, here, here]);
        assert!(map.targets[0].excluded && !map.targets[0].draining, "it isn't wanted back");
        assert_eq!((map.handing, map.moves_since()), (0, None));
    }

    #[test]
    fn who_serves_no_more_or_stays_has_all_moves_begin_anew() {
        let mut before = map("o...");
        assert!(before.targets[0].enter(TargetState::Up, 8));
        before.handing = 9;
        let mut map = PoolMap { version: 10, ..before.clone() };
        begin_anew(&before, &mut map);
        assert_eq!(
            (map.moves_since(), map.handing),
            (Some(8), 0),
            "what is handed over isn't with another map"
        );
        let mut map = PoolMap { version: 10, ..before.clone() };
        assert!(map.targets[2].enter(TargetState::Up, 10));
        begin_anew(&before, &mut map);
        assert_eq!(map.targets[0].since, 10, "the other one may have sent changes to some and not to all");
        let mut before = before.clone();
        assert!(before.targets[1].enter(TargetState::Drain, 9));
        let mut map = PoolMap { version: 10, ..before.clone() };
        assert!(map.targets[1].enter(TargetState::UpIn, 10));
        begin_anew(&before, &mut map);
        assert_eq!(
            (map.moves_since(), map.targets[1].since),
            (Some(10), 1),
            "it keeps its places, and the lead"
        );
    }

    #[test]
    fn who_gets_no_places_any_more_has_all_moves_begin_anew() {
        let mut before = map("..ho");
        assert!(before.targets[3].enter(TargetState::Up, 9));
        before.targets.push(PoolTarget::joining(4, (Rank(4), TargetIndex(0)), 10));
        for (id, state) in [(3, TargetState::DownOut), (4, TargetState::New)] {
            let mut map = PoolMap { version: 11, ..before.clone() };
            assert!(map.targets[id].enter(TargetState::Down, 11));
            assert_eq!(map.targets[id].state, state);
            begin_anew(&before, &mut map);
            assert_eq!(
                (map.targets[2].leaving, map.moves_since()),
                (11, Some(11)),
                "others get what it was to get"
            );
        }
        let mut map = PoolMap { version: 11, ..before.clone() };
        hand_over(&mut map, 11);
        let after = map.clone();
        begin_anew(&before, &mut map);
        assert_eq!(map, after, "they have got it");
    }

    #[test]
    fn a_new_target_has_no_places_before_it_serves_whatever_becomes_of_it() {
        let mut target = PoolTarget::joining(4, (Rank(4), TargetIndex(0)), 3);
        assert_eq!((target.moves_since(), target.takes_part()), (Some(3), true));
        assert!(target.enter(TargetState::Down, 4) && !target.enter(TargetState::Down, 5));
        assert_eq!((target.state, target.moves_since()), (TargetState::New, None), "it is away");
        assert!(!target.takes_part());
        assert!(target.enter(TargetState::Up, 6));
        assert_eq!((target.state, target.moves_since()), (TargetState::New, Some(6)));
        assert!(target.enter(TargetState::UpIn, 7) && target.joined == 3);
    }
}
