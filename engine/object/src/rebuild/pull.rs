//! What a target does that lacks data.

use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::history::{
    ChangeNames, EndedRequest, EndedTransactions, HistoryBegin, HistoryBegun, HistoryComparison,
    HistoryDifference, HistoryEvent, HistoryRequest, HistoryStep, HistoryVersion, NamesRequest, VersionName,
};
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::pool::PoolMap;
use weir_proto::replica::ChangeId;
use weir_proto::{ContainerId, Der, Epoch, Key, ObjectId, opcode};
use weir_runtime::join_all;
use weir_runtime::sync::Semaphore;
use weir_store::{HeldHistory, Replacement};

use super::shares::Shares;
use super::source::HOLD;
use super::{Obstacle, Rebuild};
use crate::admission::refusal::ErrorSite;
use crate::operations::within_quota;
use crate::repeats::Identity;
use crate::unsettled::{Place, PlantedBug};

/// Bytes of a page: with it a transfer gets near the rate of the network, and the leader reads for some milliseconds.
const PAGE: u64 = 1 << 20;

/// Bytes that a page takes beyond what it is counted for, at most.
const PAGE_EXTRA: usize = 64 << 10;

/// Most bytes of a page with one version: its data, and as much again for the rest.
pub(super) const PAGE_MAX: u64 = 2 * PAYLOAD_MAX;

/// Pages that are asked for at once: one is read and one on its way while two are stored.
const PAGES_MAX: usize = 4;

/// Longest wait for a page: what it takes the leader to read it, behind what clients ask for.
const PAGE_LIMIT: Duration = Duration::from_secs(10);

/// Longest time between the beginnings of two pages of a part. The sender keeps aggregation from its history for longer than that.
const PAGES_APART_MAX: Duration = Duration::from_secs(HOLD.as_secs() - 2 * PAGE_LIMIT.as_secs());

/// Longest wait until a leader can begin: it waits for transactions.
const BEGIN_LIMIT: Duration = Duration::from_secs(2);

/// How long a rebuild lasts in which a fault is planted: as long as one of much data, so that changes come meanwhile.
const PLANTED_PAUSE: Duration = Duration::from_secs(2);

/// How long before now a change was made at most whose name may still be known, in nanoseconds: names are kept for ten minutes.
const NAMED_NS: u64 = 11 * 60 * 1_000_000_000;

/// Names of changes that are asked for at once: 1 MiB.
pub(super) const NAMES_MAX: usize = 32 << 10;

/// What a target gets by one version of the map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    /// Version of the map since which it is up, or since which data moves.
    pub(super) since: u32,
    pub(super) version: u32,
    /// Whether it serves what it has, and gets only what places have that it is to have.
    pub(super) serves: bool,
    /// Version of the map that has called it up, or new, if it is.
    pub(super) up: Option<u32>,
    /// Version since which places are handed over; 0: they aren't.
    pub(super) handing: u32,
}

impl Round {
    /// What is to be done, whatever else changes in the map meanwhile.
    pub(super) const fn work(self) -> (u32, bool) {
        (self.since, self.serves)
    }
}

/// A target that has data, and the containers of which it has some.
struct Source {
    place: Place,
    begun: HistoryBegun,
}

/// What comes of one container from one target.
struct Part<'a> {
    source: &'a Source,
    container: ContainerId,
    shares: Shares,
    round: Round,
}

/// The epochs of the changes that have made what is in a page of history.
fn epochs_of(steps: &[HistoryStep]) -> impl Iterator<Item = u64> {
    steps.iter().filter_map(|step| match step {
        HistoryStep::Event { epoch, .. } | HistoryStep::Version(HistoryVersion { epoch, .. }) => {
            Some(epoch.0)
        }
        HistoryStep::Object(_) | HistoryStep::Dkey(_) | HistoryStep::Akey(_) => None,
    })
}

/// The versions among those of a page whose data is damaged where they come from.
fn unread_versions(container: ContainerId, told: &HistoryDifference) -> Vec<VersionName> {
    let (mut object, mut dkey, mut akey) = (None, None, None);
    let (mut found, mut number) = (Vec::new(), 0);
    for step in &told.page.steps {
        match step {
            HistoryStep::Object(one) => object = Some(*one),
            HistoryStep::Dkey(one) => dkey = Some(one),
            HistoryStep::Akey(one) => akey = Some(one),
            HistoryStep::Event { .. } => {}
            HistoryStep::Version(HistoryVersion { epoch, extent, .. }) => {
                if let (Ok(_), Some(object), Some(dkey), Some(akey)) =
                    (told.unread.binary_search(&number), object, dkey, akey)
                {
                    let (dkey, akey, extent, epoch) = (dkey.clone(), akey.clone(), *extent, *epoch);
                    found.push(VersionName { container, object, dkey, akey, extent, epoch });
                }
                number += 1;
            }
        }
    }
    found
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

impl Rebuild {
    /// Makes the own target equal to those that serve by this version of the map, in all that it is to have.
    pub(super) async fn pull(&self, pool: &Rc<TargetPool>, round: Round) -> Result<(), Obstacle> {
        // Which changes come from where isn't known before all have begun.
        pool.shard().fill(Epoch::MAX);
        // What came before, by another map, says nothing of how long this takes.
        let now = self.admission.rt.now();
        self.note(pool, |progress| *progress = super::RebuildProgress::begun(now));
        let sources = self.begin(pool, round.version).await?;
        let newest = sources.iter().map(|source| source.begun.now).max();
        let oldest = sources.iter().map(|source| source.begun.now).min();
        let (newest, oldest) = newest.zip(oldest).ok_or_else(|| "no target serves the pool".to_owned())?;
        // From here on it is known from which epoch on all changes come.
        pool.shard().fill(newest);
        let known = self.learn(pool, &sources).await?;
        self.pull_history(pool, round, (&sources, &known)).await?;
        if self.unsettled.has_planted(PlantedBug::PunchBeforeItsHistory) {
            // What comes in this time has no other way here.
            self.admission.rt.sleep(PLANTED_PAUSE).await;
        }
        let mut told = HashSet::new();
        for source in &sources {
            // Behind the history: each change that came with it has its name at the source by then.
            self.take_names(pool, source.place, round, &mut told).await?;
        }
        self.check_round(pool, round)?;
        if round.serves {
            // What it knows of its own places counts.
            return Ok(());
        }
        // Where a name is known that nobody has told of, its change is gone, too.
        self.repeats.roll_back(pool, oldest, &told).await.map_err(text)?;
        // All that was made before is at all members that serve, or gone.
        let serving: Vec<Place> = sources.iter().map(|source| source.place).collect();
        self.unsettled.forget(self.own(), pool.id(), (&serving, oldest));
        let with = sources.iter().map(|source| (source.place, source.begun.now));
        self.replication.note_caught_up(pool.id(), with);
        Ok(self.check_round(pool, round)?)
    }

    /// Whether what the targets tell by the map of a round counts at this moment.
    fn holds(&self, pool: &TargetPool, round: Round) -> bool {
        self.round(pool) == Some(round)
    }

    pub(super) fn check_round(&self, pool: &TargetPool, round: Round) -> Result<(), String> {
        if self.holds(pool, round) { Ok(()) } else { Err("the map has changed meanwhile".to_owned()) }
    }

    /// Asks all targets that serve what there is.
    async fn begin(&self, pool: &TargetPool, map_version: u32) -> Result<Vec<Source>, String> {
        let serving: Vec<Place> = pool.with_map(|map| {
            let serving = map.targets.iter().filter(|target| target.state.serves());
            serving.map(|target| (target.rank, target.index)).filter(|place| *place != self.own()).collect()
        });
        let (engines, clock) = (self.admission.pools.engines(), self.admission.pools.clock());
        let request = HistoryBegin { pool: pool.id(), map_version };
        let asked = serving.iter().map(|(rank, index)| {
            engines.ask::<_, HistoryBegun>(*rank, *index, opcode::TARGET_HISTORY_BEGIN, &request, BEGIN_LIMIT)
        });
        // All that is here by now has an epoch up to this one, and the question takes it along.
        let before = clock.latest();
        let mut sources = Vec::new();
        for (place, begun) in serving.iter().zip(join_all(asked).await) {
            let begun = begun.map_err(text)?;
            clock.observe(begun.now, self.admission.rt.wall_ns()).map_err(text)?;
            if begun.now <= before {
                return Err(format!("the clock of target {} of rank {} is behind", place.1, place.0));
            }
            sources.push(Source { place: *place, begun });
        }
        Ok(sources)
    }

    /// The containers that are still there, with the snapshots that they have now.
    async fn learn(&self, pool: &TargetPool, sources: &[Source]) -> Result<Vec<ContainerId>, String> {
        let own = pool.shard().containers().into_iter().filter(|one| !one.destroying);
        let all: BTreeSet<ContainerId> = sources
            .iter()
            .flat_map(|source| source.begun.containers.iter().copied())
            .chain(own.map(|one| one.container))
            .collect();
        let mut known = Vec::new();
        for container in all {
            match pool.learn_again(container).await {
                Ok(()) => known.push(container),
                Err(error) if matches!(error.der(), Der::NONEXIST | Der::CONT_NONEXIST) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(known)
    }

    async fn pull_history(
        &self,
        pool: &Rc<TargetPool>,
        round: Round,
        (sources, known): (&[Source], &[ContainerId]),
    ) -> Result<(), Obstacle> {
        let map = pool.with_map(PoolMap::clone);
        let mut parts = Vec::new();
        for source in sources {
            for container in known {
                let shares = Shares::new(map.clone(), source.place, self.own());
                let shares = shares.ok_or_else(|| "the map has lost a target".to_owned())?;
                parts.push(Part { source, container: *container, shares, round });
            }
        }
        self.note(pool, |progress| (progress.parts, progress.done) = (parts.len() as u64, 0));
        let turns = Semaphore::new(PAGES_MAX);
        let pulled = join_all(parts.into_iter().map(async |part| {
            let _turn = turns.acquire().await;
            self.pull_part(pool, &part).await?;
            if part.source.begun.containers.contains(&part.container) {
                self.take_ended(pool, &part).await?;
            }
            self.note(pool, |progress| progress.done += 1);
            Ok::<(), Obstacle>(())
        }));
        pulled.await.into_iter().collect()
    }

    /// Gets what one target leads of a container, and is not here; what is here and not there goes.
    async fn pull_part(&self, pool: &Rc<TargetPool>, part: &Part<'_>) -> Result<(), Obstacle> {
        let (mut from, mut most, mut full) = (Vec::new(), PAGE, None);
        let wanted = |object: ObjectId, dkey: Option<&Key>| part.shares.has(object, dkey);
        let mut asked = self.admission.rt.now();
        loop {
            self.check_round(pool, part.round)?;
            if self.admission.rt.now().saturating_duration_since(asked) > PAGES_APART_MAX {
                return Err("the last page is so long ago that its sender may have aggregated since"
                    .to_owned()
                    .into());
            }
            asked = self.admission.rt.now();
            let held = pool.shard().held_history(part.container, &from, &wanted).await.map_err(text)?;
            let told = self.ask_for_page(pool, part, (&from, most), &held).await?;
            let HistoryDifference { page, .. } = &told;
            if page.needed > 0 {
                if page.needed <= most || page.needed > PAGE_MAX {
                    return Err(format!("a page of history is said to need {} bytes", page.needed).into());
                }
                most = page.needed;
                continue;
            }
            let until = Some(held.until()).filter(|until| !until.is_empty());
            let next = page.next.clone().or_else(|| until.map(<[u8]>::to_vec));
            if until.is_some_and(|until| next.as_deref().is_some_and(|next| next > until)) {
                return Err("a page of history goes on behind its end".to_owned().into());
            }
            match self.take_in(pool, part, (held, told)).await {
                // What goes further on makes room.
                Err(obstacle) if obstacle.is_full => full = Some(obstacle),
                taken => taken?,
            }
            match next {
                Some(next) if next > from => (from, most) = (next, PAGE),
                Some(_) => return Err("history doesn't go on".to_owned().into()),
                None => return full.map_or(Ok(()), Err),
            }
        }
    }

    /// What a target has from a place on, and is not here.
    async fn ask_for_page(
        &self,
        pool: &TargetPool,
        part: &Part<'_>,
        (from, most): (&[u8], u64),
        held: &HeldHistory,
    ) -> Result<HistoryDifference, String> {
        let (source, container) = (part.source, part.container);
        let here = held.fingerprints();
        if !source.begun.containers.contains(&container) {
            // Nothing is there.
            let kept = vec![0; held.len().div_ceil(8)];
            return Ok(HistoryDifference { kept: kept.into(), ..HistoryDifference::default() });
        }
        let request = HistoryRequest {
            index: self.own().1,
            pool: pool.id(),
            map_version: part.round.version,
            container,
            from: from.to_vec().into(),
            most,
        };
        let request = HistoryComparison { request, until: held.until().to_vec().into(), here: here.into() };
        let room = usize::try_from(most).map_err(text)? + PAGE_EXTRA;
        let opcode = opcode::TARGET_HISTORY;
        let asked = self.admission.pools.engines().ask_long(source.place, opcode, &request, room, PAGE_LIMIT);
        asked.await.map_err(text)
    }

    async fn take_in(
        &self,
        pool: &Rc<TargetPool>,
        part: &Part<'_>,
        (held, mut told): (HeldHistory, HistoryDifference),
    ) -> Result<(), Obstacle> {
        let container = part.container;
        let known = pool.container(container).await.map_err(text)?;
        let label = known.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let mut bound = part.source.begun.now;
        if self.unsettled.has_planted(PlantedBug::ResurrectedDeletion) {
            let is_punch =
                |step: &HistoryStep| matches!(step, HistoryStep::Event { event: HistoryEvent::Punch, .. });
            told.page.steps.retain(|step| !is_punch(step));
            bound = Epoch::ZERO;
        }
        if !told.unread.is_empty() {
            let (count, (rank, index)) = (told.unread.len(), part.source.place);
            tracing::warn!(
                pool = pool.label(), container = label, %rank, target = %index, count,
                "versions are damaged where they come from: they are repaired here if another target has them"
            );
        }
        let holds = || self.holds(pool, part.round);
        let is_shared = |object| part.shares.is_shared(object);
        let replacement = Replacement { bound, holds: &holds, is_shared: &is_shared };
        let bytes = told.page.data.len() as u64;
        let _turn = self.pace.turn().await;
        let attempt = async || pool.shard().replace_history(container, &held, &told, &replacement).await;
        let taken = within_quota((pool, &known), bytes, &place, attempt).await;
        let taken = taken.map_err(|status| {
            let is_full = matches!(status.der, Der::NOSPACE | Der::UPDATE_AGAIN);
            Obstacle { reason: status.message, is_full }
        })?;
        for version in unread_versions(container, &told) {
            self.repair.note(pool.id(), version);
        }
        if part.round.serves {
            let oldest = part.source.begun.now.0.saturating_sub(NAMED_NS);
            let mut gained = self.gained.borrow_mut();
            let epochs = epochs_of(&told.page.steps).filter(|epoch| *epoch >= oldest);
            gained.entry(pool.id()).or_default().extend(epochs);
        }
        self.bytes.set(self.bytes.get() + taken.bytes);
        if taken.entries > 0 {
            self.set_hindrance(pool, None);
        }
        self.note(pool, |progress| {
            progress.entries += taken.entries;
            progress.bytes += taken.bytes;
        });
        Ok(())
    }

    /// Takes over how transactions ended, so that a client which repeats one is answered as by the target that led it.
    async fn take_ended(&self, pool: &TargetPool, part: &Part<'_>) -> Result<(), String> {
        let Part { source, container, round, .. } = part;
        let (engines, opcode) = (self.admission.pools.engines(), opcode::TARGET_ENDED_TRANSACTIONS);
        let mut from = None;
        loop {
            let (index, pool_id, map_version) = (self.own().1, pool.id(), round.version);
            let request = EndedRequest { index, pool: pool_id, map_version, container: *container, from };
            let room = usize::try_from(PAGE).map_err(text)? + PAGE_EXTRA;
            let asked = engines.ask_long(source.place, opcode, &request, room, PAGE_LIMIT);
            let EndedTransactions { ended, next } = asked.await.map_err(text)?;
            if next.is_some() && next <= from {
                return Err("a list of transactions doesn't go on".to_owned());
            }
            self.check_round(pool, *round)?;
            self.transactions.take_over(pool, *container, ended).await?;
            match next {
                Some(_) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Takes over the names of changes, so that a client that sends one again is answered as by the target that made it.
    async fn take_names(
        &self,
        pool: &TargetPool,
        (rank, index): Place,
        round: Round,
        told: &mut HashSet<Identity>,
    ) -> Result<(), String> {
        let engines = self.admission.pools.engines();
        let mut from = Some(ChangeId { client: 0, number: 0 });
        while let Some(begin) = from {
            let request = NamesRequest { pool: pool.id(), map_version: round.version, from: begin };
            let (opcode, room) = (opcode::TARGET_CHANGE_NAMES, usize::try_from(PAGE).map_err(text)?);
            let asked = engines.ask_long((rank, index), opcode, &request, room + PAGE_EXTRA, PAGE_LIMIT);
            let ChangeNames { mut names, next } = asked.await.map_err(text)?;
            if next.is_some_and(|next| (next.client, next.number) <= (begin.client, begin.number)) {
                return Err("a list of names doesn't go on".to_owned());
            }
            if round.serves {
                // The target may lack a change of its own places that the leader is still sending. With its name here, the target
                // would say that it has stored it.
                let gained = self.gained.borrow();
                names.retain(|(.., epoch)| gained.get(&pool.id()).is_some_and(|all| all.contains(epoch)));
            }
            self.repeats.take_over(pool, &names).await.map_err(text)?;
            told.extend(names.iter().map(|(id, ..)| (id.client, id.number)));
            from = next;
        }
        Ok(())
    }

    fn note(&self, pool: &TargetPool, change: impl FnOnce(&mut super::RebuildProgress)) {
        if let Some(progress) = self.running.borrow_mut().get_mut(&pool.id()) {
            change(progress);
        }
    }
}
