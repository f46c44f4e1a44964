//! Destroying containers: marked at once, forgotten by every target in the background.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::pool::{ContainerDestroyRequest, TargetContainer};
use weir_proto::{Rights, opcode};

use super::handles::OpenHandle;
use super::{Container, PoolService, background};
use crate::error::Failed;
use crate::record::{self, SCOPE_CONTAINER, SCOPE_UNTOLD};

/// Longest wait for one target.
const DESTROY_LIMIT: Duration = Duration::from_secs(5);

/// Most attributes that are removed by one change: their names are at most half a KiB.
const REAPED_MAX: usize = 1024;

impl PoolService {
    /// Destroys a container. It is gone at once; its space returns in the background, on targets that are down when
    /// they are back. Destroying a missing one succeeds.
    ///
    /// # Errors
    /// When the pool handle doesn't allow it, or handles are open and `force` is not set.
    pub async fn destroy_container(&self, request: &ContainerDestroyRequest) -> Result<(), Failed> {
        self.authorize(&request.capability, Rights::DESTROY_CONTAINER)?;
        self.destroy_by_name(&request.container, request.force, &[]).await.map(drop)
    }

    /// As [`PoolService::destroy_container`], for requests of management, which may know of some handles that their
    /// clients are gone. Returns whether there was one.
    ///
    /// # Errors
    /// When other handles are open and `force` is not set.
    pub async fn destroy_by_name(&self, name: &str, force: bool, gone: &[u64]) -> Result<bool, Failed> {
        let container = match self.find(name) {
            Ok(container) => container,
            Err(Failed::NoContainer { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let _permit = container.turn.acquire().await;
        if container.is_doomed() {
            return Ok(false);
        }
        let mut handles = if force { Vec::new() } else { self.live_handles(&container).await? };
        handles.retain(|open| open.counts && !gone.contains(&open.handle));
        if !handles.is_empty() {
            let reason = still_open(&handles);
            return Err(Failed::Busy { object: self.object(&container.label()), reason });
        }
        let mut record = container.record.borrow().clone();
        record.doomed = true;
        self.commit_record(&container, record).await?;
        self.labels.borrow_mut().remove(&container.label());
        tracing::info!(container = %container.id, label = container.label(), "container destroyed");
        self.doomed.notify_one();
        Ok(true)
    }

    /// Handles whose clients may still be there, by what the targets say at this moment.
    pub(super) async fn live_handles(&self, container: &Container) -> Result<Vec<OpenHandle>, Failed> {
        if container.handles.borrow().is_empty() {
            return Ok(Vec::new());
        }
        let gathered = self.gathered(Duration::ZERO).await?;
        Ok(self.handles_within(container, &gathered))
    }

    fn doomed_containers(&self) -> Vec<Rc<Container>> {
        let containers = self.containers.borrow();
        containers.values().filter(|container| container.is_doomed()).map(Rc::clone).collect()
    }

    /// Has every target forget a container, then forgets it here. `false`: some target didn't answer.
    async fn reap(&self, container: &Container) -> Result<bool, Failed> {
        let pool = self.pool()?;
        let request = TargetContainer { pool: pool.pool, container: container.id };
        let ranks = pool.map.ranks();
        let left = self.spread.tell(&ranks, opcode::TARGET_CONTAINER_DESTROY, &request, DESTROY_LIMIT).await;
        if !left.is_empty() {
            return Ok(false);
        }
        let mut changes = Vec::new();
        for scope in [record::scope_attributes(container.id), record::scope_handles(container.id)] {
            let stored = record::load_scope(&self.shard, &scope);
            changes.extend(stored.iter().map(|(name, _)| record::change(&scope, name, None)));
        }
        // As many as fit a command; those that tell that the rest has to go stay until the end.
        for some in changes.chunks(REAPED_MAX) {
            self.commit(some).await?;
        }
        let last = [SCOPE_CONTAINER, SCOPE_UNTOLD];
        self.commit(&last.map(|scope| record::change(scope, container.id.0.as_bytes(), None))).await?;
        self.containers.borrow_mut().remove(&container.id);
        Ok(true)
    }
}

/// Why a container is not destroyed: the clients that have it open.
fn still_open(handles: &[OpenHandle]) -> String {
    let mut nodes: Vec<_> =
        handles.iter().map(|open| open.node.clone()).filter(|node| !node.is_empty()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let places = if nodes.is_empty() {
        String::new()
    } else {
        let plural = if nodes.len() == 1 { "" } else { "s" };
        format!(", on node{plural} {}", super::first_few(&nodes))
    };
    let count = handles.len();
    format!(
        "is open at {count} clients{places}; unmount it there, or force the destruction (`weir container handles` tells who they are; a client that died counts for five minutes)"
    )
}

/// Starts to forget destroyed containers in the background.
pub(super) fn start(service: &Rc<PoolService>) {
    background::start(
        service,
        |service| &service.doomed,
        async |service: &PoolService| {
            let mut left = false;
            for container in service.doomed_containers() {
                match service.reap(&container).await {
                    Ok(done) => left |= !done,
                    Err(error) => {
                        tracing::warn!(container = %container.id, %error, "a destroyed container is not forgotten yet");
                        left = true;
                    }
                }
            }
            left
        },
    );
}
