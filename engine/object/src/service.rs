//! The I/O service of a target: its opcodes, its metrics, and the sweep of old identities. It hands each request to the operations or
//! to the transactions, which check it by the admission. The daemon starts one for each target.

use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::{Operation, TargetPools};
use weir_proto::object::ReserveRequest;
use weir_proto::{Der, Epoch, PoolId, codec, opcode};
use weir_rpc::{Body, Request, Rpc, Status};
use weir_runtime::Handle;

use crate::admission::{Admission, IoMetrics, refusal};
use crate::groups::{Floors, is_replicated};
use crate::operations::Operations;
use crate::rebuild::{Rebuild, RebuildProgress};
use crate::repair::Repair;
use crate::repeats::Repeats;
use crate::replication::Replication;
use crate::succession::Succession;
use crate::transaction::Transactions;
use crate::unsettled::{PlantedBug, Unsettled};

/// How often identities of old requests are looked for: they are few, and kept for a minute anyway.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Serves the object requests of one target.
pub struct IoService {
    rt: Handle,
    operations: Operations,
    replication: Rc<Replication>,
    rebuild: Rc<Rebuild>,
    repair: Rc<Repair>,
    transactions: Rc<Transactions>,
    unsettled: Rc<Unsettled>,
    admission: Admission,
}

impl IoService {
    /// Serves the pools of a target from now on.
    #[must_use]
    pub fn start(rpc: &Rpc, pools: Rc<TargetPools>) -> Rc<Self> {
        let rt = pools.engines().runtime().clone();
        let admission = Admission::new(rt.clone(), pools);
        let (repeats, unsettled) = (Rc::new(Repeats::default()), Rc::new(Unsettled::default()));
        let (floors, succession) = (Rc::new(Floors::default()), Rc::new(Succession::default()));
        let replication = Replication::new(
            admission.clone(),
            Rc::clone(&repeats),
            Rc::clone(&unsettled),
            Rc::clone(&floors),
            Rc::clone(&succession),
        );
        let transactions = Transactions::new(
            admission.clone(),
            Rc::clone(&unsettled),
            (floors, Rc::clone(&succession)),
            Rc::clone(&replication),
        );
        let repair = Repair::new(admission.clone());
        let rebuild = Rebuild::new(
            admission.clone(),
            Rc::clone(&repeats),
            Rc::clone(&unsettled),
            Rc::clone(&transactions),
            Rc::clone(&replication),
            Rc::clone(&repair),
        );
        let operations = Operations::new(
            admission.clone(),
            repeats,
            (Rc::clone(&unsettled), succession),
            Rc::clone(&repair),
        );
        let service = Rc::new(Self {
            rt,
            operations,
            replication,
            rebuild,
            repair,
            transactions,
            unsettled,
            admission,
        });
        service.rt.spawn(sweep(Rc::downgrade(&service), service.rt.clone()));
        service.serve(rpc, opcode::OBJECT_UPDATE, Operation::Update);
        service.serve(rpc, opcode::OBJECT_FETCH, Operation::Fetch);
        service.serve(rpc, opcode::OBJECT_FETCH_TO_COMPARE, Operation::Fetch);
        service.serve(rpc, opcode::OBJECT_PUNCH, Operation::Punch);
        service.serve(rpc, opcode::REPLICA_UPDATE, Operation::Update);
        service.serve(rpc, opcode::REPLICA_PUNCH, Operation::Punch);
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
        service.serve(rpc, opcode::REPLICA_COMMIT, Operation::Commit);
        service.replication.start();
        service.rebuild.start();
        service.repair.start();
        service.transactions.start();
        service
    }

    /// What it has done so far.
    #[must_use]
    pub fn metrics(&self) -> &IoMetrics {
        &self.admission.metrics
    }

    /// Requests that had to wait since their tenant's clients may go no faster, and of these those that were sent away, since the start.
    #[must_use]
    pub fn paced(&self) -> (u64, u64) {
        self.admission.paced()
    }

    /// How far the target is with what it lacks, by pool, and how often it has got all since its start.
    #[must_use]
    pub fn rebuilds(&self) -> (Vec<(PoolId, RebuildProgress)>, u64) {
        (self.rebuild.progress(), self.rebuild.ended())
    }

    /// Which part of its time the target works for rebuilds at most, its own and others', by how long its clients wait.
    #[must_use]
    pub fn rebuild_share(&self) -> f64 {
        self.rebuild.pace().share()
    }

    /// The least such part from now on, from 0.01 to 1, however long clients wait.
    pub fn set_rebuild_floor(&self, floor: f64) {
        self.rebuild.pace().set_floor(floor);
    }

    /// Changes of objects with replicas that aren't known to be at all members of their groups, and the epoch of the oldest one.
    #[must_use]
    pub fn unsettled(&self) -> (u64, Option<Epoch>) {
        self.unsettled.waiting()
    }

    /// Bytes of data that the target has taken in since its start, since it lacked them.
    #[must_use]
    pub fn rebuilt_bytes(&self) -> u64 {
        self.rebuild.bytes()
    }

    /// Damaged versions that were repaired since the start, and those that are known and could not be repaired so far.
    #[must_use]
    pub fn repairs(&self) -> (u64, u64) {
        (self.repair.repaired(), self.repair.unrepaired())
    }

    /// Plants a fault, for tests of the harness that looks for it.
    #[doc(hidden)]
    pub fn plant(&self, bug: PlantedBug) {
        match bug {
            PlantedBug::IgnoredLease => self.admission.ignore_leases(),
            _ => self.replication.plant(bug),
        }
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
            Operation::Update if request.opcode() == opcode::OBJECT_RESERVE => {
                let wanted: ReserveRequest =
                    codec::decode_message(request.body()).map_err(refusal::malformed)?;
                if is_replicated(wanted.object) {
                    self.replication.reserve(&request, wanted).await
                } else {
                    self.operations.reserve(&request, wanted).await
                }
            }
            Operation::Update if request.opcode() == opcode::REPLICA_UPDATE => {
                self.replication.update(request).await
            }
            Operation::Punch if request.opcode() == opcode::REPLICA_PUNCH => {
                self.replication.punch(&request).await
            }
            Operation::Update => self.operations.update(request).await,
            Operation::Fetch => self.operations.fetch(request).await,
            Operation::Punch => self.operations.punch(&request).await,
            Operation::List => self.operations.list(&request).await,
            Operation::Query => self.operations.query(&request).await,
            Operation::Commit if request.opcode() == opcode::REPLICA_COMMIT => {
                self.transactions.commit_of_groups(&request).await
            }
            Operation::Commit => self.transactions.commit(&request).await,
        };
        self.admission.metrics.record(operation, self.rt.now().saturating_duration_since(arrived));
        answer
    }
}

/// Forgets identities of old requests for as long as the service lives.
async fn sweep(service: Weak<IoService>, rt: Handle) {
    loop {
        rt.sleep(SWEEP_INTERVAL).await;
        let Some(service) = service.upgrade() else { return };
        service.operations.sweep().await;
    }
}
