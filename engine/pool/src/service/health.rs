//! How a pool with replicas is doing: what it may still lose, and how far data is that moves.

use std::time::Duration;

use weir_layout::domains_with;
use weir_proto::lease::{FillProgress, HINDRANCE_MAX, HindranceNotice, ProgressNotice};
use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
use weir_proto::{Rank, TargetIndex};
use weir_runtime::Instant;

use super::PoolService;
use super::membership::is_missing;
use crate::error::Failed;

/// How old what a target said of its progress may be: it says it every second.
const AGE_MAX: Duration = Duration::from_secs(10);

/// The same of what it said that it can't go on: it says it every second, and nothing once it does.
const HINDERED_AGE_MAX: Duration = Duration::from_secs(4);

/// From when on a rate is told: before, it depends on what came first.
const RATE_FROM_MS: u64 = 1000;

/// How a pool is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// All data has all its copies.
    Healthy,
    /// Copies are missing, and none is being made.
    Degraded,
    /// Copies are being made.
    Rebuilding,
    /// More is away than the redundancy allows: what needs it waits.
    Unavailable,
}

/// What is known of the health of a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Health {
    /// How it is doing.
    pub condition: Condition,
    /// How many more fault domains may fail while all data stays available and the pool's service goes on.
    pub survives: u32,
    /// The data that moves, if any does.
    pub filling: Option<Filling>,
}

/// How far data is that moves.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filling {
    /// Targets that get data.
    pub targets: usize,
    /// Events and versions that have come.
    pub entries: u64,
    /// Bytes that have come.
    pub bytes: u64,
    /// Parts that are done, and all of them; `None` while some target doesn't know.
    pub parts: Option<(u64, u64)>,
    /// Bytes in a second; `None`: too little has come.
    pub rate: Option<u64>,
    /// Time until the last target is done, if it goes on as until now; `None`: it isn't known.
    pub left: Option<Duration>,
    /// Why some target can't go on, if so.
    pub hindrance: Option<String>,
}

impl Filling {
    /// Sums up what targets say; `None`: one hasn't said anything.
    fn of(said: &[Option<FillProgress>]) -> Self {
        let known = || said.iter().flatten();
        let parts = said.iter().map(|one| one.filter(|one| one.parts > 0).map(|one| (one.done, one.parts)));
        let add = |(done, all): (u64, u64), (more, of): (u64, u64)| {
            (done.saturating_add(more), all.saturating_add(of))
        };
        let parts: Option<(u64, u64)> =
            parts.collect::<Option<Vec<_>>>().map(|all| all.into_iter().fold((0, 0), add));
        let rate = |one: &FillProgress| {
            (one.running_ms >= RATE_FROM_MS).then(|| one.bytes.saturating_mul(1000) / one.running_ms)
        };
        let left = |one: &FillProgress| {
            let ms = u128::from(one.running_ms) * u128::from(one.parts.saturating_sub(one.done));
            let ms = ms.checked_div(u128::from(one.done))?;
            u64::try_from(ms).ok().filter(|_| one.parts > 0).map(Duration::from_millis)
        };
        Self {
            targets: said.len(),
            entries: known().map(|one| one.entries).fold(0, u64::saturating_add),
            bytes: known().map(|one| one.bytes).fold(0, u64::saturating_add),
            parts,
            rate: known().filter_map(rate).reduce(u64::saturating_add),
            left: said
                .iter()
                .map(|one| left(one.as_ref()?))
                .collect::<Option<Vec<_>>>()
                .and_then(|all| all.into_iter().max()),
            hindrance: None,
        }
    }
}

/// How a pool is doing by its map; `gets` says which targets get data.
fn condition(map: &PoolMap, is_stuck: bool, gets: impl Fn(&PoolTarget) -> bool) -> Condition {
    let is_whole = |target: &PoolTarget| !is_missing(target) && !target.in_doubt && target.leaving == 0;
    if is_stuck {
        Condition::Unavailable
    } else if map.targets.iter().any(gets) {
        Condition::Rebuilding
    } else if map.targets.iter().all(is_whole) {
        Condition::Healthy
    } else {
        Condition::Degraded
    }
}

/// How many more fault domains may fail: of those that hold data, and of those that hold the pool's service. Of the service's `members` those
/// work that are `current`, unless their engines are out.
fn survives(map: &PoolMap, redundancy: u32, (members, current): (&[Rank], &[Rank])) -> u32 {
    let missing = domains_with(map, |target| is_missing(target) || target.in_doubt);
    let data = (redundancy as usize).saturating_sub(missing);
    let is_out = |rank: &Rank| {
        let mut own = map.targets.iter().filter(|target| target.rank == *rank);
        own.all(|target| target.state.is_lost())
    };
    let working = current.iter().filter(|rank| !is_out(rank)).count();
    let service = working.saturating_sub(members.len() / 2 + 1);
    u32::try_from(data.min(service)).expect("no more than the redundancy factor")
}

impl PoolService {
    /// Takes note of how far a target is.
    pub(crate) fn note_progress(&self, rank: Rank, notice: &ProgressNotice) {
        let now = self.engines.runtime().now();
        self.progress.borrow_mut().insert((rank, notice.index), (now, notice.progress));
    }

    /// Takes note of why a target can't go on.
    pub(crate) fn note_hindrance(&self, rank: Rank, notice: HindranceNotice) {
        let now = self.engines.runtime().now();
        let mut reason = notice.reason;
        reason.truncate(reason.floor_char_boundary(HINDRANCE_MAX));
        self.hindered.borrow_mut().insert((rank, notice.index), (now, reason));
    }

    /// Why one of some targets can't go on, if so.
    fn hindrance(&self, targets: &[(Rank, TargetIndex)]) -> Option<String> {
        let now = self.engines.runtime().now();
        let hindered = self.hindered.borrow();
        targets.iter().find_map(|place| {
            let is_fresh = |at: Instant| now.saturating_duration_since(at) <= HINDERED_AGE_MAX;
            let (_, reason) = hindered.get(place).filter(|(at, _)| is_fresh(*at))?;
            Some(format!("target {} of rank {}: {reason}", place.1, place.0))
        })
    }

    /// Whether a target gets data, by the map.
    fn gets(&self, map: &PoolMap, target: &PoolTarget) -> bool {
        if target.state == TargetState::Up {
            return true;
        }
        let may_gain = !target.state.is_lost() && target.leaving == 0;
        map.moves_since().is_some_and(|since| may_gain && !self.has_filled(target, since))
    }

    /// How the pool is doing; `None`: it has no redundancy.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub fn health(&self) -> Result<Option<Health>, Failed> {
        let record = self.pool()?;
        if record.redundancy == 0 {
            return Ok(None);
        }
        let (map, is_stuck) = (&record.map, self.is_beyond_redundancy());
        let condition = condition(map, is_stuck, |target| self.gets(map, target));
        let now = self.engines.runtime().now();
        let (progress, is_fresh) =
            (self.progress.borrow(), |at: Instant| now.saturating_duration_since(at) <= AGE_MAX);
        let said = |place: (Rank, TargetIndex)| {
            progress.get(&place).filter(|(at, _)| is_fresh(*at)).map(|(_, progress)| *progress)
        };
        let getting = map.targets.iter().filter(|target| self.gets(map, target));
        let getting: Vec<_> = getting.map(|target| (target.rank, target.index)).collect();
        let filling: Vec<_> = getting.iter().map(|place| said(*place)).collect();
        let replica = self.led.get().map(|led| &led.replica);
        let (members, current) = (
            replica.map_or_else(Vec::new, |replica| replica.members()),
            replica.map_or_else(Vec::new, |replica| replica.current_members()),
        );
        let survives = if is_stuck { 0 } else { survives(map, record.redundancy, (&members, &current)) };
        let filling = (!filling.is_empty())
            .then(|| Filling { hindrance: self.hindrance(&getting), ..Filling::of(&filling) });
        Ok(Some(Health { condition, survives, filling }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::moves::tests::map;

    #[test]
    fn a_pool_is_as_it_is_by_its_map() {
        let of =
            |engines, is_stuck| condition(&map(engines), is_stuck, |target| target.state == TargetState::Up);
        assert_eq!(of("...", false), Condition::Healthy);
        assert_eq!(of("..o", false), Condition::Healthy, "others have its places");
        assert_eq!(of("..-", false), Condition::Degraded);
        assert_eq!(of("..?", false), Condition::Degraded);
        assert_eq!(of("..+", false), Condition::Rebuilding);
        assert_eq!(of("..-", true), Condition::Unavailable);
    }

    #[test]
    fn what_may_fail_is_what_the_data_and_the_service_survive() {
        let some = |engines, redundancy, members: &[u32], current: &[u32]| {
            let ranks = |some: &[u32]| some.iter().copied().map(Rank).collect::<Vec<_>>();
            survives(&map(engines), redundancy, (&ranks(members), &ranks(current)))
        };
        let of = |engines, redundancy, members: &[u32]| some(engines, redundancy, members, members);
        assert_eq!(of("...", 1, &[0, 1, 2]), 1);
        assert_eq!(of("..-", 1, &[0, 1, 2]), 0);
        assert_eq!(of("..+", 1, &[0, 1, 2]), 0);
        assert_eq!(of("..o", 1, &[0, 1, 2]), 0, "the service has two replicas left");
        assert_eq!(of("...o", 1, &[0, 1, 2]), 1);
        assert_eq!(of(".....", 2, &[0, 1, 2, 3, 4]), 2);
        assert_eq!(of("....-", 2, &[0, 1, 2, 3, 4]), 1);
        assert_eq!(of("..", 1, &[0]), 0, "one replica of the service can't fail");
        assert_eq!(some("...", 1, &[0, 1, 2], &[0, 2]), 0, "a replica has not got all yet");
        assert_eq!(some("....", 1, &[0, 2], &[0, 2]), 0, "one is about to take the place of a lost one");
        assert_eq!(some("....", 1, &[], &[]), 0, "one engine runs the service");
    }

    #[test]
    fn nothing_is_told_of_progress_that_is_not_known() {
        let one = FillProgress { running_ms: 4000, entries: 7, bytes: 8000, parts: 4, done: 1 };
        let begun = FillProgress { running_ms: 10, ..FillProgress::default() };
        let all = Filling::of(&[Some(one), Some(FillProgress { done: 2, bytes: 4000, ..one })]);
        assert_eq!((all.targets, all.entries, all.bytes, all.parts), (2, 14, 12_000, Some((3, 8))));
        assert_eq!((all.rate, all.left), (Some(3000), Some(Duration::from_secs(12))));
        let some = Filling::of(&[Some(one), Some(begun)]);
        assert_eq!((some.bytes, some.parts, some.rate, some.left), (8000, None, Some(2000), None));
        let silent = Filling::of(&[None]);
        assert_eq!(silent, Filling { targets: 1, ..Filling::default() });
        let nothing_done = Filling::of(&[Some(FillProgress { done: 0, ..one })]);
        assert_eq!((nothing_done.parts, nothing_done.left), (Some((0, 4)), None));
    }
}
