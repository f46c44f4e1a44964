//! Background work: reclaim of destroyed pools and containers, and aggregation.

use crate::aggregate::visit_object;
use crate::error::PoolError;
use crate::journal::ObjectKey;
use crate::key::{self, ContainerNumber, Path, PoolNumber};
use crate::record::Change;
use crate::shard::Shard;
use crate::state::{Core, add};
use core::ops::ControlFlow;
use core::time::Duration;
use std::rc::Rc;
use weir_proto::{ContainerId, Epoch, ObjectId};
use weir_runtime::race;

/// Index entries that one step of reclaim removes: some 100 µs of work.
const RECLAIM_STEP: usize = 256;

/// Works until the store stops. Idle, it sleeps until something is queued.
pub(crate) async fn run(core: Rc<Core>) {
    queue_all_containers(&core);
    loop {
        if core.is_stopped() || core.failure().is_some() {
            return;
        }
        let worked = match work(&core).await {
            Ok(worked) => worked,
            Err(reason) => return core.fail(&reason),
        };
        if worked {
            core.rt.sleep(core.config.slice).await;
        } else if core.aggregation.borrow().is_empty() {
            core.chores.notified().await;
        } else {
            race(core.chores.notified(), core.rt.sleep(core.config.background_interval)).await;
            // A request for space must not turn into a loop that never sleeps.
            core.rt.sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Core {
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
            if !container.destroying {
                queue.add_container(*pool_number, *number);
            }
        }
    }
}

/// Does one piece of work. Returns whether there was any.
async fn work(core: &Rc<Core>) -> Result<bool, String> {
    if reclaim(core).await? {
        return Ok(true);
    }
    let horizon = horizon(core);
    let object = core.aggregation.borrow_mut().take_object(horizon);
    if let Some((object, since)) = object {
        visit_object(core, object, since, horizon).await?;
        return Ok(true);
    }
    let container = core.aggregation.borrow_mut().take_container();
    if let Some((pool, container)) = container {
        visit_container(core, pool, container, horizon).await?;
        return Ok(true);
    }
    Ok(false)
}

/// The newest epoch whose history may go.
fn horizon(core: &Core) -> u64 {
    let retention = u64::try_from(core.config.retention.as_nanos()).unwrap_or(u64::MAX);
    core.rt.wall_ns().saturating_sub(retention)
}

/// Visits all objects of a container.
async fn visit_container(
    core: &Rc<Core>,
    pool: PoolNumber,
    container: ContainerNumber,
    horizon: u64,
) -> Result<(), String> {
    let prefix = key::objects(pool, container);
    let mut from = prefix.clone();
    while let Some(object) = next_object(core, &prefix, &from)? {
        visit_object(core, (pool, container, object), 0, horizon).await?;
        from = key::after(Path::object(pool, container, object).as_bytes());
        core.rt.yield_now().await;
        if core.is_stopped() {
            break;
        }
    }
    Ok(())
}

fn next_object(core: &Core, prefix: &[u8], from: &[u8]) -> Result<Option<ObjectId>, String> {
    let tree = core.tree.borrow();
    let rest = tree.scan(from, |key, _| ControlFlow::Break(key.strip_prefix(prefix).map(<[u8]>::to_vec)));
    match rest.flatten() {
        Some(rest) => key::object_from(&rest).map(Some).map_err(|malformed| malformed.to_string()),
        None => Ok(None),
    }
}

/// What reclaim does next.
enum Doomed {
    /// Entries that begin with this go.
    Entries(Vec<u8>),
    /// Nothing is left: the last entries go together.
    Last(Vec<Change>),
}

/// Removes a part of what a destroyed container or pool left. Returns whether there was anything.
async fn reclaim(core: &Rc<Core>) -> Result<bool, String> {
    let Some(doomed) = find_doomed(core) else { return Ok(false) };
    core.admit().await?;
    let changes = match doomed {
        Doomed::Last(changes) => changes,
        Doomed::Entries(prefix) => {
            let mut changes = Vec::new();
            core.tree.borrow().scan::<()>(&prefix, |key, _| {
                if changes.len() >= RECLAIM_STEP || !key.starts_with(&prefix) {
                    return ControlFlow::Break(());
                }
                changes.push(Change::Remove { key: key.to_vec() });
                ControlFlow::Continue(())
            });
            changes
        }
    };
    add(&core.counters.reclaimed, changes.len() as u64);
    core.commit(&changes, None).map_err(|malformed| malformed.to_string())?;
    Ok(true)
}

fn find_doomed(core: &Core) -> Option<Doomed> {
    let has = |prefix: &[u8]| core.tree.borrow().first(prefix, prefix).is_some();
    let catalog = core.catalog.borrow();
    for (pool_number, pool) in &catalog.pools {
        for (number, container) in &pool.containers {
            // Updates that are under way hold reservations in the pool and find their container gone.
            if !container.destroying && !pool.destroying {
                continue;
            }
            let snapshots = key::container(key::SNAPSHOT, *pool_number, *number);
            for prefix in [key::objects(*pool_number, *number), snapshots] {
                if has(&prefix) {
                    return Some(Doomed::Entries(prefix));
                }
            }
            let last = [key::USAGE, key::CONTAINER].map(|kind| key::container(kind, *pool_number, *number));
            return Some(Doomed::Last(last.map(|key| Change::Remove { key }).into()));
        }
        if pool.destroying {
            let attributes = key::attributes(*pool_number);
            if has(&attributes) {
                return Some(Doomed::Entries(attributes));
            }
            let last = [key::container(key::USAGE, *pool_number, 0), key::pool(*pool_number)];
            return Some(Doomed::Last(last.map(|key| Change::Remove { key }).into()));
        }
    }
    None
}

impl Shard {
    /// Aggregates a container up to an epoch now: of what isn't newer, only what a snapshot or the epoch itself shows
    /// stays. Background aggregation does the same by itself, later.
    ///
    /// # Errors
    /// When the container is missing or the store has failed.
    pub async fn aggregate(&self, container: ContainerId, up_to: Epoch) -> Result<(), PoolError> {
        let number = self.locate(container)?;
        visit_container(&self.core, self.number, number, up_to.0).await.map_err(PoolError::Failed)?;
        self.core.make_durable(self.core.journal.last()).await.map_err(PoolError::Failed)
    }
}
