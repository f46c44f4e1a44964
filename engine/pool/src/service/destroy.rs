//! Destroying containers: marked at once, forgotten by every target in the background.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::limits::HANDLE_LEASE_NS;
use weir_proto::pool::{ContainerDestroyRequest, TargetContainer};
use weir_proto::{Rights, opcode};

use super::{Container, PoolService, background};
use crate::error::Failed;
use crate::gather::Gathered;
use crate::record::{self, SCOPE_CONTAINER, SCOPE_UNTOLD};

/// Longest wait for one target.
const DESTROY_LIMIT: Duration = Duration::from_secs(5);

impl PoolService {
    /// Destroys a container. It is gone at once; its space returns in the background, on targets that are down when
    /// they are back. Destroying a missing one succeeds.
    ///
    /// # Errors
    /// When the pool handle doesn't allow it, or handles are open and `force` is not set.
    pub async fn destroy_container(&self, request: &ContainerDestroyRequest) -> Result<(), Failed> {
        self.authorize(&request.capability, Rights::DESTROY_CONTAINER)?;
        self.destroy_by_name(&request.container, request.force).await.map(drop)
    }

    /// As [`PoolService::destroy_container`], for requests of management. Whether there was one.
    ///
    /// # Errors
    /// When handles are open and `force` is not set.
    pub async fn destroy_by_name(&self, name: &str, force: bool) -> Result<bool, Failed> {
        let container = match self.find(name) {
            Ok(container) => container,
            Err(Failed::NoContainer { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let _permit = container.turn.acquire().await;
        if container.is_doomed() {
            return Ok(false);
        }
        let handles = if force { 0 } else { self.live_handles(&container).await? };
        if handles > 0 {
            return Err(Failed::Busy {
                object: self.object(&container.label()),
                reason: format!(
                    "is open at {handles} clients; unmount it there, or force the destruction (a client that died counts for five minutes)"
                ),
            });
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
    async fn live_handles(&self, container: &Container) -> Result<usize, Failed> {
        if container.handles.borrow().is_empty() {
            return Ok(0);
        }
        let gathered = self.gathered(Duration::ZERO).await?;
        Ok(self.handles_within(container, &gathered))
    }

    /// Handles whose clients may still be there. One that has not been heard of for long, of a container that nobody
    /// has used for as long, belonged to a client that died.
    pub(super) fn handles_within(&self, container: &Container, gathered: &Gathered) -> usize {
        let handles = container.handles.borrow();
        if gathered.is_active(container.id) {
            return handles.len();
        }
        let now = self.engines.runtime().now();
        let lease = Duration::from_nanos(HANDLE_LEASE_NS);
        handles.values().filter(|seen| now.saturating_duration_since(**seen) < lease).count()
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
        let scope = record::scope_attributes(container.id);
        let attributes = record::load_scope(&self.shard, &scope);
        let mut changes: Vec<_> =
            attributes.iter().map(|(name, _)| record::change(&scope, name, None)).collect();
        changes.push(record::change(SCOPE_CONTAINER, container.id.0.as_bytes(), None));
        changes.push(record::change(SCOPE_UNTOLD, container.id.0.as_bytes(), None));
        self.commit(&changes).await?;
        self.containers.borrow_mut().remove(&container.id);
        Ok(true)
    }
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
