//! What all operations on a target share: checks of handle, tenant, pool map and device, refusals with the names of pool and
//! container, counters. The room calls the pools of the target. Operations and transactions call it for each request, before they
//! read or change anything.

mod metrics;
mod pace;
pub(crate) mod refusal;

pub use metrics::{BOUNDS_US, IoMetrics, LatencyCounts};

use std::cell::Cell;
use std::rc::Rc;

use weir_pool::{Failed, Operation, TargetContainer, TargetPool, TargetPools};
use weir_proto::{Capability, ContainerId, Der, Epoch, PoolId, Rights};
use weir_rpc::{Request, Status};
use weir_runtime::{Handle, Instant};

use pace::Paces;
use refusal::ErrorSite;

/// Checks the requests to one target. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) rt: Handle,
    pub(crate) pools: Rc<TargetPools>,
    pub(crate) metrics: Rc<IoMetrics>,
    paces: Rc<Paces>,
    /// Serves without leases: a fault that tests plant.
    ignores_leases: Rc<Cell<bool>>,
}

/// A container whose handle a client has shown.
pub(crate) struct Permit {
    pub(crate) pool: Rc<TargetPool>,
    pub(crate) container: ContainerId,
}

/// An operation on a container that its client may perform. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) pool: Rc<TargetPool>,
    pub(crate) container: Rc<TargetContainer>,
}

impl Admission {
    pub(crate) fn new(rt: Handle, pools: Rc<TargetPools>) -> Self {
        let paces = Paces::start(&rt, &pools);
        Self { rt, pools, metrics: Rc::default(), paces, ignores_leases: Rc::default() }
    }

    /// Serves without leases from now on.
    pub(crate) fn ignore_leases(&self) {
        self.ignores_leases.set(true);
    }

    /// Checks a container handle, whose it is, and the client's pool map.
    pub(crate) async fn access(
        &self,
        request: &Request,
        capability: &Capability,
        needed: Rights,
        map_version: u32,
    ) -> Result<Access, Status> {
        let permit = self.permit(request, capability, needed).await?;
        self.reach(permit, map_version, request.deadline()).await
    }

    /// Checks a container handle, and whose it is.
    pub(crate) async fn permit(
        &self,
        request: &Request,
        capability: &Capability,
        needed: Rights,
    ) -> Result<Permit, Status> {
        let pool = self
            .pools
            .get_or_ask(capability.pool)
            .await
            .map_err(|failed| self.no_pool(capability.pool, failed))?;
        if capability.tenant != request.tenant() {
            self.pools.engines().count_forged();
            let message = format!(
                "the handle on pool {} was given to another tenant; connect to the pool as this one",
                pool.label()
            );
            return Err(Status::new(Der::NO_HDL, message));
        }
        let container = pool.authorize(capability, needed).inspect_err(|refusal| {
            if refusal.der == Der::NO_HDL {
                self.pools.engines().count_forged();
            }
        })?;
        Ok(Permit { pool, container })
    }

    /// Requests that had to wait since their tenant's clients may go no faster, and of these those that were sent away.
    pub(crate) fn paced(&self) -> (u64, u64) {
        self.paces.counts()
    }

    /// Waits until the tenant's clients may go on, checks the client's pool map, and finds the container. Where that takes longer than
    /// the client waits, nothing is done that it would not hear of.
    pub(crate) async fn reach(
        &self,
        permit: Permit,
        map_version: u32,
        deadline: Instant,
    ) -> Result<Access, Status> {
        let pool = permit.pool;
        self.paces.admit(&pool, deadline).await?;
        self.check_placed(&pool, map_version)?;
        let container = pool.container(permit.container).await?;
        if self.rt.now() >= deadline {
            let label = pool.label();
            return Err(Status::new(
                Der::TIMEDOUT,
                format!(
                    "pool {label}: the request expired while its container was asked about; nothing was done"
                ),
            ));
        }
        container.touch(self.rt.now());
        Ok(Access { pool, container })
    }

    /// A pool that has a shard here.
    pub(crate) fn pool(&self, id: PoolId) -> Result<Rc<TargetPool>, Status> {
        self.pools.get(id).map_err(|failed| self.no_pool(id, failed))
    }

    /// The answer where a pool has no shard. That it isn't there says nothing of keys.
    fn no_pool(&self, id: PoolId, failed: Failed) -> Status {
        match failed {
            Failed::NoPool(_) => Status::new(Der::NO_HDL, failed.to_string()),
            Failed::Lost { .. } | Failed::OutOfService { .. } => {
                refusal::out_of_service(&self.pools, id, &failed)
            }
            failed => failed.into(),
        }
    }

    /// Refuses what was placed by an old map of the pool, or can't be done on this target's device, or not now. What has come to a
    /// target that may not serve the pool now finds another one, or comes again.
    pub(crate) fn check_placed(&self, pool: &TargetPool, map_version: u32) -> Result<(), Status> {
        self.check_storable(pool, map_version)?;
        if self.may_serve(pool) {
            return Ok(());
        }
        self.metrics.refused_without_lease();
        Err(refusal::without_lease(&self.pools, pool))
    }

    /// Whether the target may serve the pool at this moment: a pool with replicas only under a lease of its map, and once
    /// the map says what the target is since it has started.
    pub(crate) fn may_serve(&self, pool: &TargetPool) -> bool {
        let holds_lease = pool.holds_lease(self.rt.now()) || self.ignores_leases.get();
        holds_lease && !pool.lacks_knowledge()
    }

    /// As [`Admission::check_placed`], for what the leader of a group has this target store: the leader is who may serve.
    pub(crate) fn check_storable(&self, pool: &TargetPool, map_version: u32) -> Result<(), Status> {
        pool.check_map(map_version)?;
        if let Some(failed) = self.pools.out_of_service() {
            return Err(refusal::out_of_service(&self.pools, pool.id(), &failed));
        }
        let stall = self.pools.store().device_stall();
        stall.map_or(Ok(()), |stall| Err(refusal::stalled(&self.pools, pool.id(), &stall.reason)))
    }

    /// A fresh epoch of the target's clock.
    pub(crate) fn epoch(&self) -> Epoch {
        self.pools.clock().now(self.rt.wall_ns())
    }

    /// Runs `work` with the names of the place in which it runs, and counts its outcome.
    pub(crate) async fn counted<T>(
        &self,
        operation: Operation,
        access: &Access,
        work: impl AsyncFnOnce(&ErrorSite<'_>) -> Result<(T, u64), Status>,
    ) -> Result<T, Status> {
        let label = access.container.label.borrow().clone();
        let place = ErrorSite { pools: &self.pools, pool: access.pool.id(), container: &label };
        match work(&place).await {
            Ok((answer, bytes)) => {
                access.container.counters.succeeded(operation, bytes);
                self.paces.moved(&access.pool, bytes);
                Ok(answer)
            }
            Err(status) => {
                // That something isn't there is what a fetch was sent to find out.
                if operation == Operation::Fetch && status.der == Der::NONEXIST {
                    access.container.counters.succeeded(operation, 0);
                } else {
                    access.container.counters.failed(operation, status.der);
                }
                Err(status)
            }
        }
    }
}
