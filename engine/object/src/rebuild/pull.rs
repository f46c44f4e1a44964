//! What a target does that lacks data.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::history::{
    ChangeNames, HistoryBegin, HistoryBegun, HistoryEvent, HistoryPage, HistoryRequest, HistoryStep,
    NamesRequest,
};
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::pool::PoolTarget;
use weir_proto::replica::ChangeId;
use weir_proto::{ContainerId, Der, opcode};
use weir_runtime::join_all;
use weir_runtime::sync::Semaphore;
use weir_store::Data;

use super::Rebuild;
use crate::admission::refusal::ErrorSite;
use crate::operations::within_quota;
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

/// Longest wait for what a leader has in memory.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Names of changes that are asked for at once: 1 MiB.
pub(super) const NAMES_MAX: usize = 32 << 10;

/// A target that has data, and the containers of which it has some.
struct Source {
    place: Place,
    begun: HistoryBegun,
}

impl Rebuild {
    /// Gets all that the own target is to have by this version of the map, and lacks.
    pub(super) async fn pull(
        &self,
        pool: &Rc<TargetPool>,
        target: &PoolTarget,
        version: u32,
    ) -> Result<(), String> {
        let sources = self.begin(pool, version).await?;
        let since = sources.iter().map(|source| source.begun.now).max();
        let since = since.ok_or("no target serves the pool")?;
        // From here on it is known from which epoch on all changes come.
        pool.shard().fill(since);
        let all: BTreeSet<ContainerId> =
            sources.iter().flat_map(|source| source.begun.containers.iter().copied()).collect();
        let known = self.learn(pool, &all).await?;
        let of = |source: &Source, container: &ContainerId| source.begun.containers.contains(container);
        let parts: Vec<(Place, ContainerId)> = sources
            .iter()
            .flat_map(|source| {
                known
                    .iter()
                    .filter(|container| of(source, container))
                    .map(|container| (source.place, *container))
            })
            .collect();
        self.note(pool, |progress| (progress.parts, progress.done) = (parts.len() as u64, 0));
        let turns = Semaphore::new(PAGES_MAX);
        let pulled = join_all(parts.into_iter().map(async |part| {
            let _turn = turns.acquire().await;
            self.pull_part(pool, target, version, part).await?;
            self.note(pool, |progress| progress.done += 1);
            Ok::<(), String>(())
        }));
        pulled.await.into_iter().collect::<Result<(), String>>()?;
        // Behind the history: each change that came with it has its name at the source by then.
        for source in &sources {
            self.take_names(pool, source.place, version).await?;
        }
        let now = self.up(pool).map(|(target, version)| (target.since, version));
        if now == Some((target.since, version)) {
            return Ok(());
        }
        Err("the map has changed meanwhile".to_owned())
    }

    /// Asks all targets that serve what there is.
    async fn begin(&self, pool: &TargetPool, map_version: u32) -> Result<Vec<Source>, String> {
        let serving: Vec<Place> = pool.with_map(|map| {
            let serving = map.targets.iter().filter(|target| target.state.serves());
            serving.map(|target| (target.rank, target.index)).collect()
        });
        let engines = self.admission.pools.engines();
        let request = HistoryBegin { pool: pool.id(), map_version };
        let asked = serving.iter().map(|(rank, index)| {
            engines.ask::<_, HistoryBegun>(*rank, *index, opcode::TARGET_HISTORY_BEGIN, &request, LOOK_LIMIT)
        });
        let mut sources = Vec::new();
        for (place, begun) in serving.iter().zip(join_all(asked).await) {
            let begun = begun.map_err(|error| error.to_string())?;
            let wall = self.admission.rt.wall_ns();
            self.admission.pools.clock().observe(begun.now, wall).map_err(|skew| skew.to_string())?;
            sources.push(Source { place: *place, begun });
        }
        Ok(sources)
    }

    /// The containers that are still there, with the snapshots that they have now.
    async fn learn(
        &self,
        pool: &TargetPool,
        all: &BTreeSet<ContainerId>,
    ) -> Result<Vec<ContainerId>, String> {
        let mut known = Vec::new();
        for container in all {
            match pool.learn_again(*container).await {
                Ok(()) => known.push(*container),
                Err(error) if matches!(error.der(), Der::NONEXIST | Der::CONT_NONEXIST) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(known)
    }

    /// Takes over the names of changes, so that a client that sends one again is answered as by the target that made it.
    async fn take_names(
        &self,
        pool: &TargetPool,
        (rank, index): Place,
        map_version: u32,
    ) -> Result<(), String> {
        let engines = self.admission.pools.engines();
        let mut from = Some(ChangeId { client: 0, number: 0 });
        while let Some(begin) = from {
            let request = NamesRequest { pool: pool.id(), map_version, from: begin };
            let (opcode, room) =
                (opcode::TARGET_CHANGE_NAMES, usize::try_from(PAGE).map_err(|error| error.to_string())?);
            let asked = engines.ask_long((rank, index), opcode, &request, room + PAGE_EXTRA, PAGE_LIMIT);
            let ChangeNames { names, next } = asked.await.map_err(|error| error.to_string())?;
            if next.is_some_and(|next| (next.client, next.number) <= (begin.client, begin.number)) {
                return Err("a list of names doesn't go on".to_owned());
            }
            self.repeats.take_over(pool, &names).await.map_err(|error| error.to_string())?;
            from = next;
        }
        Ok(())
    }

    /// Gets what one target leads of a container.
    async fn pull_part(
        &self,
        pool: &Rc<TargetPool>,
        target: &PoolTarget,
        map_version: u32,
        (place, container): (Place, ContainerId),
    ) -> Result<(), String> {
        let (mut from, mut most) = (Vec::new(), PAGE);
        loop {
            let request = HistoryRequest {
                index: target.index,
                pool: pool.id(),
                map_version,
                container,
                from: from.clone().into(),
                most,
            };
            let room = usize::try_from(most).map_err(|error| error.to_string())? + PAGE_EXTRA;
            let asked = self.admission.pools.engines().ask_long::<_, HistoryPage>(
                place,
                opcode::TARGET_HISTORY,
                &request,
                room,
                PAGE_LIMIT,
            );
            let page = asked.await.map_err(|error| error.to_string())?;
            if page.needed > 0 {
                if page.needed <= most || page.needed > PAGE_MAX {
                    return Err(format!("a page of history is said to need {} bytes", page.needed));
                }
                most = page.needed;
                continue;
            }
            let next = page.next.clone();
            self.take_in(pool, container, page).await?;
            match next {
                Some(next) if next > from => (from, most) = (next, PAGE),
                Some(_) => return Err("history doesn't go on".to_owned()),
                None => return Ok(()),
            }
        }
    }

    async fn take_in(
        &self,
        pool: &Rc<TargetPool>,
        container: ContainerId,
        page: HistoryPage,
    ) -> Result<(), String> {
        let known = pool.container(container).await.map_err(|error| error.to_string())?;
        let label = known.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let HistoryPage { mut steps, data, .. } = page;
        if self.unsettled.has_planted(PlantedBug::ResurrectedDeletion) {
            let is_punch =
                |step: &HistoryStep| matches!(step, HistoryStep::Event { event: HistoryEvent::Punch, .. });
            steps.retain(|step| !is_punch(step));
        }
        let attempt = async || pool.shard().import_history(container, &steps, &Data::Borrowed(&data)).await;
        let taken = within_quota((pool, &known), data.len() as u64, &place, attempt).await;
        let taken = taken.map_err(|status| status.message)?;
        self.note(pool, |progress| {
            progress.entries += taken.entries;
            progress.bytes += taken.bytes;
        });
        Ok(())
    }

    fn note(&self, pool: &TargetPool, change: impl FnOnce(&mut super::RebuildProgress)) {
        if let Some(progress) = self.running.borrow_mut().get_mut(&pool.id()) {
            change(progress);
        }
    }
}
