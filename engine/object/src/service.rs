//! The I/O service: wiring, and what all operations share.

use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::{Failed, Operation, TargetContainer, TargetPool, TargetPools};
use weir_proto::{Capability, ContainerId, Der, Epoch, PoolId, Rights, opcode};
use weir_rpc::{Body, Request, Rpc, Status};
use weir_runtime::{Handle, Instant};

use crate::metrics::IoMetrics;
use crate::refusal::{self, ErrorSite};
use crate::repeats::Repeats;
use crate::transaction::{ClaimedTransactions, WatchedTransactions};

/// How often identities of old requests are looked for: they are few, and kept for a minute anyway.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Serves the object requests of one target.
pub struct IoService {
    pub(crate) rt: Handle,
    pub(crate) pools: Rc<TargetPools>,
    pub(crate) repeats: Repeats,
    pub(crate) claimed: ClaimedTransactions,
    pub(crate) watched: WatchedTransactions,
    metrics: IoMetrics,
}

/// A container whose handle a client has shown.
pub(crate) struct Permit {
    pub(crate) pool: Rc<TargetPool>,
    container: ContainerId,
}

/// An operation on a container that its client may perform.
pub(crate) struct Access {
    pub(crate) pool: Rc<TargetPool>,
    pub(crate) container: Rc<TargetContainer>,
}

impl IoService {
    /// Serves the pools of a target from now on.
    #[must_use]
    pub fn start(rpc: &Rpc, pools: Rc<TargetPools>) -> Rc<Self> {
        let rt = pools.engines().runtime().clone();
        let (repeats, metrics) = (Repeats::default(), IoMetrics::default());
        let (claimed, watched) = (ClaimedTransactions::default(), WatchedTransactions::default());
        let service = Rc::new(Self { rt, pools, repeats, claimed, watched, metrics });
        service.rt.spawn(sweep(Rc::downgrade(&service), service.rt.clone()));
        service.serve(rpc, opcode::OBJECT_UPDATE, Operation::Update);
        service.serve(rpc, opcode::OBJECT_FETCH, Operation::Fetch);
        service.serve(rpc, opcode::OBJECT_FETCH_TO_COMPARE, Operation::Fetch);
        service.serve(rpc, opcode::OBJECT_PUNCH, Operation::Punch);
        service.serve(rpc, opcode::OBJECT_RESERVE, Operation::Update);
        service.serve(rpc, opcode::OBJECT_LIST, Operation::List);
        service.serve(rpc, opcode::OBJECT_QUERY_KEY, Operation::Query);
        service.serve(rpc, opcode::OBJECT_SEARCH_KEY, Operation::Query);
        service.serve(rpc, opcode::OBJECT_MEASURE, Operation::Query);
        service.serve(rpc, opcode::OBJECT_RUNS, Operation::Query);
        service.serve(rpc, opcode::TRANSACTION_FETCH, Operation::Fetch);
        service.serve(rpc, opcode::TRANSACTION_FETCH_TO_COMPARE, Operation::Fetch);
        service.serve(rpc, opcode::TRANSACTION_LIST, Operation::List);
        service.serve(rpc, opcode::TRANSACTION_SEARCH_KEY, Operation::Query);
        service.serve(rpc, opcode::TRANSACTION_COMMIT, Operation::Commit);
        service.start_transactions();
        service
    }

    /// What it has done so far.
    #[must_use]
    pub const fn metrics(&self) -> &IoMetrics {
        &self.metrics
    }

    fn serve(self: &Rc<Self>, rpc: &Rpc, opcode: u16, operation: Operation) {
        let service = Rc::downgrade(self);
        let handler = move |request: Request| {
            let service = service.upgrade();
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                service.ok_or_else(stopping)?.answer(operation, request).await
            }
        };
        // Changes are known by their identities, and to the others it is all one.
        rpc.serve_again(opcode, Rc::new(handler));
    }

    async fn answer(self: &Rc<Self>, operation: Operation, request: Request) -> Result<Body, Status> {
        let arrived = self.rt.now();
        let answer = match operation {
            Operation::Update if request.opcode() == opcode::OBJECT_RESERVE => self.reserve(&request).await,
            Operation::Update => self.update(request).await,
            Operation::Fetch => self.fetch(request).await,
            Operation::Punch => self.punch(&request).await,
            Operation::List => self.list(&request).await,
            Operation::Query => self.query(&request).await,
            Operation::Commit => self.commit(&request).await,
        };
        self.metrics.record(operation, self.rt.now().saturating_duration_since(arrived));
        answer
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

    /// Checks the client's pool map, and finds the container. Where that takes longer than the client waits, nothing is done that it
    /// would not hear of.
    pub(crate) async fn reach(
        &self,
        permit: Permit,
        map_version: u32,
        deadline: Instant,
    ) -> Result<Access, Status> {
        let pool = permit.pool;
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

    /// Refuses what was placed by an old map of the pool, or can't be done on this target's device, or not now.
    pub(crate) fn check_placed(&self, pool: &TargetPool, map_version: u32) -> Result<(), Status> {
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

/// Forgets identities of old requests for as long as the service lives.
async fn sweep(service: Weak<IoService>, rt: Handle) {
    loop {
        rt.sleep(SWEEP_INTERVAL).await;
        let Some(service) = service.upgrade() else { return };
        service.repeats.sweep(&rt, &service.pools.all()).await;
    }
}
