//! Background work: reclaim of destroyed pools and containers, aggregation, and when there is nothing else to do,
//! defragmentation.

#[cfg(test)]
mod tests;

use crate::format::key::ObjectKey;
use crate::format::key::{self, ContainerNumber, Path, PoolNumber, TransactionTail};
use crate::format::record::Change;
use crate::index::fault::{Fault, Halt, PageError};
use crate::index::tree::Tree;
use crate::operations::decisions::{DECISIONS_MAX, decisions_from};
use crate::state::aggregation::{Task, Whose};
use crate::state::core::{Core, add};
use crate::state::error::{PoolError, UpdateError};
use crate::state::shard::{QuotaCheck, Shard};
use crate::state::unread::Unreclaimed;
use crate::upkeep::aggregate::{ChoreError, later, visit_akey, visit_object};
use core::ops::ControlFlow;
use core::time::Duration;
use std::rc::Rc;
use weir_media::BLOCK;
use weir_proto::{ContainerId, Epoch, ObjectId};
use weir_runtime::nanos;
use weir_runtime::race;

/// Index entries that one step of reclaim removes: some 100 µs of work.
const RECLAIM_STEP: usize = 32;

/// Works until the store stops. Idle, it sleeps until something is queued, but for a look at the free space now and then.
pub(crate) async fn run(core: Rc<Core>) {
    queue_all_containers(&core);
    loop {
        if core.is_stopped() || core.has_failed() {
            return;
        }
        let worked = match work(&core).await {
            // What is damaged was counted where it was met, and stays as it is; the rest is worked on.
            Ok(worked) => worked,
            Err(ChoreError::Page(_)) => true,
            // A store that is being closed refuses changes, and is well.
            Err(ChoreError::Failed(_)) if core.is_stopped() => return,
            Err(ChoreError::Failed(reason)) => return core.fail(&reason),
        };
        if worked {
            core.yield_slice().await;
        } else if core.aggregation.borrow().is_empty() {
            // Free space may lie scattered all the same.
            race(core.chores.notified(), core.rt.sleep(crate::upkeep::defragment::REST)).await;
        } else {
            race(core.chores.notified(), core.rt.sleep(core.config.background_interval)).await;
            // A request for space must not turn into a loop that never sleeps.
            core.rt.sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Core {
    /// Those of these entries that are decisions are about to be forgotten. Nobody asks for those of containers that are
    /// destroyed.
    pub(crate) fn note_forgotten(&self, keys: &[Vec<u8>]) {
        let catalog = self.catalog.borrow();
        let is_asked_for = |(pool, container): (PoolNumber, ContainerNumber)| {
            let pool = catalog.pools.get(&pool).filter(|pool| !pool.destroying);
            pool.and_then(|pool| pool.containers.get(&container)).is_some_and(|found| !found.destroying)
        };
        self.transactions.borrow_mut().note_forgotten(keys, is_asked_for);
    }

    /// Has an object visited that has versions of this epoch, which may hide others. Wakes background work that has
    /// nothing else to wait for.
    pub(crate) fn queue_for_aggregation(&self, object: ObjectKey, epoch: u64) {
        let mut queue = self.aggregation.borrow_mut();
        if queue.is_empty() {
            self.chores.notify_one();
        }
        queue.add_object(object, epoch);
    }
}

/// After an open it isn't known what was overwritten.
fn queue_all_containers(core: &Core) {
    let catalog = core.catalog.borrow();
    let mut queue = core.aggregation.borrow_mut();
    for (pool_number, pool) in &catalog.pools {
        for (number, container) in &pool.containers {
            if !container.destroying && container.shut.is_none() {
                queue.add_container(*pool_number, *number);
            }
        }
    }
}

/// Does one piece of work. Returns whether there was any.
async fn work(core: &Rc<Core>) -> Result<bool, ChoreError> {
    match reclaim(core).await {
        Ok(true) => return Ok(true),
        // What reclaim can't get at must not keep others from their aggregation.
        Ok(false) | Err(ChoreError::Page(_)) => {}
        Err(error) => return Err(error),
    }
    if forget_decisions(core).await? {
        return Ok(true);
    }
    let horizon = horizon(core);
    let task = core.aggregation.borrow_mut().take(ripe(core, horizon));
    let Some(task) = task else { return crate::upkeep::defragment::work(core).await };
    if !core.fills.may_aggregate(task.pool(), core.rt.now()) {
        core.aggregation.borrow_mut().put_back(task, later(core, 0));
        return Ok(true);
    }
    let visited = visit(core, task.clone(), horizon).await;
    let queue = &mut *core.aggregation.borrow_mut();
    match visited {
        Ok(()) => queue.note_read(&task),
        // It may be readable next time. What is damaged stays so.
        Err(ChoreError::Page(PageError::Media(_))) => {
            let failures = queue.note_unread(&task);
            queue.put_back(task, later(core, failures));
        }
        Err(_) => {}
    }
    visited.map(|()| true)
}

/// Does what the queue has said.
async fn visit(core: &Rc<Core>, task: Task, horizon: u64) -> Result<(), ChoreError> {
    match task {
        Task::Akey(rest) => visit_akey(core, *rest, horizon).await,
        Task::Object(object, since) => visit_object(core, object, since, horizon).await.map(drop),
        Task::Container(pool, container, from) => {
            let prefix = key::objects(pool, container);
            let next = next_object(core, &prefix, &from).await;
            if let Err(ChoreError::Page(_)) = next
                && let Some(behind) = behind_damage(core, &prefix, &from)
            {
                core.aggregation.borrow_mut().resume_container(pool, container, behind);
            }
            let Some(object) = next? else { return Ok(()) };
            let behind = key::after(Path::object(pool, container, object).as_bytes());
            core.aggregation.borrow_mut().resume_container(pool, container, behind);
            visit_object(core, (pool, container, object), 0, horizon).await.map(drop)
        }
    }
}

/// The newest epoch whose history may go.
fn horizon(core: &Core) -> u64 {
    let retention = nanos(core.config.retention);
    core.rt.wall_ns().saturating_sub(retention)
}

/// Part of the retention for which changes of an object gather before it is visited again: one that is overwritten all the time
/// would be visited all the time, and each visit passes over all that is newer than its horizon.
const GATHERING: u32 = 8;

/// Objects with changes of this epoch or earlier are visited.
fn ripe(core: &Core, horizon: u64) -> u64 {
    if core.is_space_scarce() {
        return horizon;
    }
    horizon.saturating_sub(nanos(core.config.retention / GATHERING))
}

/// Forgets decisions of transactions that nobody asks for any more, whose nodes are in memory. Returns whether there were any.
async fn forget_decisions(core: &Core) -> Result<bool, ChoreError> {
    let old = core.transactions.borrow().old_decisions(decisions_from(core), DECISIONS_MAX, RECLAIM_STEP);
    if old.is_empty() {
        return Ok(false);
    }
    core.admit().await?;
    let keys = || old.iter().map(Vec::as_slice);
    core.ask(|tree| Ok::<_, Halt<ChoreError>>(tree.reach(keys())?)).await?;
    core.note_forgotten(&old);
    let changes: Vec<Change> = old.into_iter().map(|key| Change::Remove { key }).collect();
    core.commit(&changes, None)?;
    Ok(true)
}

/// Visits of an object until one goes through without a new snapshot in between. After that it is left to the work in the
/// background.
const VISITS_MAX: u32 = 3;

/// Visits all objects of a container.
async fn visit_container(
    core: &Rc<Core>,
    pool: PoolNumber,
    container: ContainerNumber,
    horizon: u64,
) -> Result<(), ChoreError> {
    let prefix = key::objects(pool, container);
    let mut from = prefix.clone();
    let mut damaged = Ok(());
    loop {
        let object = match next_object(core, &prefix, &from).await {
            Err(error @ ChoreError::Page(_)) => {
                damaged = Err(error);
                let Some(behind) = behind_damage(core, &prefix, &from) else { break };
                from = behind;
                continue;
            }
            next => next?,
        };
        let Some(object) = object else { break };
        match visit_whole(core, (pool, container, object), horizon).await {
            Err(error @ ChoreError::Page(_)) => damaged = Err(error),
            visited => visited?,
        }
        from = key::after(Path::object(pool, container, object).as_bytes());
        core.yield_slice().await;
        if core.is_stopped() {
            break;
        }
    }
    damaged
}

/// Visits an object with all that a visit leaves to others.
async fn visit_whole(core: &Rc<Core>, object: ObjectKey, horizon: u64) -> Result<(), ChoreError> {
    for _ in 0..VISITS_MAX {
        if visit_object(core, object, 0, horizon).await? || core.is_stopped() {
            break;
        }
    }
    while !core.is_stopped() {
        let rest = core.aggregation.borrow_mut().take_rest_of(object);
        let Some(rest) = rest else { break };
        visit_akey(core, rest, horizon).await?;
        core.yield_slice().await;
    }
    Ok(())
}

async fn next_object(core: &Core, prefix: &[u8], from: &[u8]) -> Result<Option<ObjectId>, ChoreError> {
    let found = core.ask(|tree| {
        let rest = tree.first_below(from, prefix)?;
        Ok::<_, Halt<ChoreError>>(rest)
    });
    Ok(found.await?.map(|rest| key::object_from(&rest)).transpose()?)
}

/// Where work on what begins with `prefix` goes on that couldn't have a node read at or behind `from`. `None`: nothing is
/// left of it.
fn behind_damage(core: &Core, prefix: &[u8], from: &[u8]) -> Option<Vec<u8>> {
    core.tree.borrow().behind_absent(from).filter(|behind| behind.starts_with(prefix))
}

/// Whether something is left of theirs that was destroyed and can be read.
fn has_doomed(core: &Core, whose: Whose) -> bool {
    let (catalog, queue) = (core.catalog.borrow(), core.aggregation.borrow());
    catalog.pools.iter().any(|(pool_number, pool)| {
        pool.containers.iter().any(|(number, container)| {
            let owner = (*pool_number, *number);
            let is_doomed = container.destroying || pool.destroying;
            is_doomed && whose.has(owner) && !queue.passed_over.has(owner)
        })
    })
}

/// The next step of a reclaim.
enum ReclaimStep {
    /// Removes entries whose keys begin with the first, from the second on.
    Entries(Vec<u8>, Vec<u8>),
    /// Nothing else is left: removes the last entries together.
    Last(Vec<Change>),
}

/// Removes a part of what a destroyed container or pool left. Returns whether there was anything.
async fn reclaim(core: &Rc<Core>) -> Result<bool, ChoreError> {
    if !core.catalog.borrow().has_destroyed() {
        return Ok(false);
    }
    core.admit().await?;
    let now = core.rt.wall_ns();
    let is_there = |owner| core.catalog.borrow_mut().container_mut(owner).is_some();
    core.aggregation.borrow_mut().passed_over.begin_anew(now, is_there);
    let mut place = None;
    let changes = core.ask(|tree| {
        let changes = match next_reclaim_step(core, tree, &mut place)? {
            None => Vec::new(),
            Some(ReclaimStep::Last(changes)) => changes,
            Some(ReclaimStep::Entries(prefix, from)) => {
                let mut changes = Vec::new();
                let scanned = tree.scan(&from, |key, _| {
                    if changes.len() >= RECLAIM_STEP || !key.starts_with(&prefix) {
                        return ControlFlow::Break(key.starts_with(&prefix));
                    }
                    changes.push(Change::Remove { key: key.to_vec() });
                    ControlFlow::Continue(())
                });
                if !matches!(scanned, Ok(None | Some(false))) {
                    leave_cut(&mut changes);
                }
                // What was found goes first: a node behind it may be one that can't be read.
                scanned
                    .map(drop)
                    .or_else(|missing| if changes.is_empty() { Err(missing) } else { Ok(()) })?;
                changes
            }
        };
        tree.reach(changes.iter().map(Change::key))?;
        Ok::<_, Halt<ChoreError>>(changes)
    });
    let changes = match (changes.await, place) {
        (Err(ChoreError::Page(error)), Some((container, from))) => {
            // What lies behind goes all the same, and what is left of others.
            let behind = core.tree.borrow().behind_absent(&from);
            let may_return = matches!(error, PageError::Media(_));
            core.aggregation.borrow_mut().passed_over.pass_over(container, behind, may_return, now);
            return Ok(true);
        }
        (changes, _) => changes?,
    };
    if changes.is_empty() {
        core.aggregation.borrow_mut().passed_over.is_through();
        return Ok(false);
    }
    add(&core.counters.reclaimed, changes.len() as u64);
    core.commit(&changes, None)?;
    Ok(true)
}

/// Leaves the last of some removals to the next record, where they are of a transaction's operations: all pieces go together,
/// of which there are fewer than a record takes. Earlier releases don't open a store with the last ones alone.
fn leave_cut(changes: &mut Vec<Change>) {
    let operations_of = |change: &Change| match key::transaction_from(change.key()) {
        Ok((place, TransactionTail::Operations(_))) if change.key().first() == Some(&key::TRANSACTION) => {
            Some(place)
        }
        _ => None,
    };
    let Some(cut) = changes.last().and_then(operations_of) else { return };
    while changes.pop_if(|change| operations_of(change) == Some(cut)).is_some() {}
}

/// A container, and an index key of it.
type ReclaimPosition = ((PoolNumber, ContainerNumber), Vec<u8>);

/// `place` becomes that where it looks for entries.
fn next_reclaim_step(
    core: &Core,
    tree: &Tree,
    place: &mut Option<ReclaimPosition>,
) -> Result<Option<ReclaimStep>, Fault> {
    let catalog = core.catalog.borrow();
    let unread = &core.aggregation.borrow().passed_over;
    for (pool_number, pool) in &catalog.pools {
        let mut is_whole = true;
        for (number, container) in &pool.containers {
            // Updates that are under way hold reservations in the pool and find their container gone.
            if !container.destroying && !pool.destroying {
                continue;
            }
            let behind = match unread.rest_of((*pool_number, *number)) {
                Unreclaimed::All => &[][..],
                Unreclaimed::Behind(behind) => behind,
                Unreclaimed::Nothing => {
                    is_whole = false;
                    continue;
                }
            };
            let of_kind = |kind| key::container(kind, *pool_number, *number);
            // In the order of their keys.
            for prefix in [key::OBJECT, key::SNAPSHOT, key::TRANSACTION].map(of_kind) {
                let from = behind.max(&prefix).to_vec();
                *place = Some(((*pool_number, *number), from.clone()));
                if tree.first(&from, &prefix)?.is_some() {
                    return Ok(Some(ReclaimStep::Entries(prefix, from)));
                }
            }
            *place = None;
            if behind.is_empty() {
                let last = [key::USAGE, key::CONTAINER].map(of_kind);
                return Ok(Some(ReclaimStep::Last(last.map(|key| Change::Remove { key }).into())));
            }
            is_whole = false;
        }
        if pool.destroying && is_whole {
            let attributes = key::attributes(*pool_number);
            if tree.first(&attributes, &attributes)?.is_some() {
                return Ok(Some(ReclaimStep::Entries(attributes.clone(), attributes)));
            }
            let last = [key::container(key::USAGE, *pool_number, 0), key::pool(*pool_number)];
            return Ok(Some(ReclaimStep::Last(last.map(|key| Change::Remove { key }).into())));
        }
    }
    Ok(None)
}

impl Shard {
    /// Whether an update that was refused for want of room may find some soon: what was overwritten, punched or destroyed up
    /// to this epoch isn't all gone yet. That it all is takes the retention and a little more.
    #[must_use]
    pub fn may_regain_room(&self, refusal: &UpdateError, up_to: Epoch) -> bool {
        let whose = match refusal {
            UpdateError::Quota { container, .. } => match self.locate(*container) {
                Ok(number) => Whose::Container(self.number, number),
                Err(_) => return false,
            },
            // The share has some, but not enough; without any it may be the device that has none.
            UpdateError::NoSpace { free: 1.., .. } => Whose::Pool(self.number),
            UpdateError::NoSpace { .. } => Whose::All,
            _ => return false,
        };
        let may = self.core.aggregation.borrow().has_changes(whose, up_to.0) || has_doomed(&self.core, whose);
        if may {
            self.core.chores.notify_one();
        }
        may
    }

    /// Whether a container has room for so many bytes more; what takes it up is an update.
    ///
    /// # Errors
    /// [`UpdateError::Quota`] or [`UpdateError::NoSpace`] when it has not; when pool or container are gone.
    pub fn check_room_for(&self, container: ContainerId, bytes: u64) -> Result<(), UpdateError> {
        let number = self.locate(container)?;
        // It may be for records for which room is kept: that is known when it has come.
        let reserved = self.reserved_in(number);
        let sizes = (bytes.saturating_sub(reserved), 0, bytes / BLOCK as u64);
        self.check_space((container, number), QuotaCheck::Here, sizes).map(drop)
    }

    /// Aggregates a container up to an epoch now: of what isn't newer, only what a snapshot or the epoch itself shows
    /// stays. Background aggregation does the same by itself, later.
    ///
    /// # Errors
    /// When the container is missing or the store has failed; also when a part of the index is damaged, after the
    /// rest was aggregated.
    pub async fn aggregate(&self, container: ContainerId, up_to: Epoch) -> Result<(), PoolError> {
        let number = self.locate(container)?;
        let visited = visit_container(&self.core, self.number, number, up_to.0).await;
        visited.map_err(|error| match error {
            ChoreError::Page(error) => PoolError::Index(error.to_string()),
            ChoreError::Failed(reason) => PoolError::Failed(reason),
        })?;
        self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed)
    }
}
