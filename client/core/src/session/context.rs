//! The state with which one thread reaches the engines.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::time::Duration;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};

use weir_fabric::{Buffer, Endpoint};
use weir_layout::{Layout, LayoutCache, LayoutError};
use weir_proto::group::EngineInfo;
use weir_proto::pool::PoolMap;
use weir_proto::{Capability, ContainerId, Epoch, ObjectId, PoolId, Rank};
use weir_rpc::{Keys, Peer, Rpc, RpcConfig};
use weir_runtime::{Handle, Instant, real};

use super::changes::{Changes, NamedChange};
use super::endpoint::open_endpoint;
use crate::attach::{Attach, EngineAddress};
use crate::error::{Error, Result};

/// How long an operation is tried while an engine does not answer: an engine pod that was killed is usually back
/// within it.
pub const OPERATION_DEADLINE: Duration = Duration::from_mins(1);

/// Environment variable with the name of the node that a client is on, as the operator of nodes knows it: Kubernetes' name of it.
pub const NODE_VARIABLE: &str = "WEIR_NODE_NAME";

/// Settings of a context.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// How long an operation is tried before it fails with [`Error::Unavailable`].
    pub deadline: Duration,
    /// User that pool connects are made as.
    pub uid: u32,
    /// Group that pool connects are made as.
    pub gid: u32,
    /// The node that this client is on. Containers that are opened are kept until they are closed
    /// ([`crate::Container::keep`]), or until the node is known to be gone. `None`: a client of no known node.
    pub node: Option<String>,
}

impl Default for ContextOptions {
    /// The process's effective user and group, [`OPERATION_DEADLINE`], and the node that [`NODE_VARIABLE`] names.
    fn default() -> Self {
        // The owner of a process's /proc entry is its effective user; nobody (65534) when /proc is not mounted.
        let (uid, gid) = std::fs::metadata("/proc/self")
            .map_or((65534, 65534), |metadata| (metadata.uid(), metadata.gid()));
        let node = std::env::var(NODE_VARIABLE).ok().filter(|node| !node.is_empty());
        Self { deadline: OPERATION_DEADLINE, uid, gid, node }
    }
}

/// Lends memory to the fabric, so that large payloads move from and to it without being copied.
///
/// An implementation makes buffers that refer to the memory it is given. The context uses such a buffer only while the
/// operation that borrows the memory runs; when the operation fails without an answer, it does not return before the
/// engine must have given up. A caller that drops its future doesn't wait for that. Then the memory has to stay as it
/// is until the engine has been asked, or for two seconds after the deadline, or until the context has ended.
pub trait Lender {
    /// A buffer that is this memory, to be read.
    fn source(&self, memory: &[u8]) -> Buffer;
    /// A buffer that is this memory, to be written.
    fn sink(&self, memory: &mut [u8]) -> Buffer;
}

/// A context that sends nothing for this long gives back the memory for its next transfers, if its executor runs
/// meanwhile.
const REST_AFTER: Duration = Duration::from_secs(5);

/// What a context has sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests, each counted once however often it had to be sent.
    pub requests: u64,
    /// Requests whose data moved by RMA.
    pub bulk: u64,
    /// Fetches whose data didn't match its checksums when it came, and was asked for once more: it was altered on the engine's
    /// device, where the second answer tells of it and the engine counts it, or on the way.
    pub altered: u64,
}

struct Inner {
    runtime: Handle,
    rpc: Rc<Rpc>,
    attach: Attach,
    options: ContextOptions,
    deadline: Cell<Duration>,
    /// When all operations together are given up.
    limit: Cell<Option<Instant>>,
    peers: RefCell<HashMap<(Rank, u32), Peer>>,
    /// Engines that are not in the attach file: they have joined the system since it was written.
    joined: RefCell<Vec<EngineAddress>>,
    maps: RefCell<HashMap<PoolId, Rc<PoolMap>>>,
    /// Where objects live by these maps.
    layouts: RefCell<HashMap<PoolId, LayoutCache>>,
    /// When a newer map was asked for because a target is out of service.
    looked: RefCell<HashMap<PoolId, Instant>>,
    /// Replicas of pool services, the one first that has answered last.
    services: RefCell<HashMap<PoolId, Vec<Rank>>>,
    /// A handle on each of these pools, to ask for its map with.
    pool_handles: RefCell<HashMap<PoolId, Capability>>,
    /// Names of changes of objects with replicas.
    changes: Rc<Changes>,
    oids: RefCell<HashMap<ContainerId, Range<u64>>>,
    traffic: Cell<Traffic>,
    lender: RefCell<Option<Rc<dyn Lender>>>,
    /// Last, so that it outlives what uses it. `None` under simulation, where the world runs the tasks.
    executor: Option<real::Executor>,
}

/// Executor, endpoint and RPC state of one thread. Cheap to clone within that thread.
#[derive(Clone)]
pub struct Context(Rc<Inner>);

impl Context {
    /// A context on the real fabric, with default settings.
    ///
    /// # Errors
    /// When the executor or the endpoint can't be made.
    pub fn real(attach: &Attach) -> Result<Self> {
        Self::real_with(attach, ContextOptions::default())
    }

    /// A context on the real fabric.
    ///
    /// # Errors
    /// When the executor or the endpoint can't be made.
    pub fn real_with(attach: &Attach, options: ContextOptions) -> Result<Self> {
        let fabric_error = |reason: String| Error::Fabric { provider: attach.provider.clone(), reason };
        let executor = real::Executor::new().map_err(|error| fabric_error(error.to_string()))?;
        let endpoint = open_endpoint(attach, &executor.handle()).map_err(fabric_error)?;
        let context = Self::assemble(executor.handle(), endpoint, attach, options, Some(executor));
        context.runtime().spawn(rest(Rc::downgrade(&context.0)));
        Ok(context)
    }

    /// A context on a node of a simulated world, with an endpoint of that node.
    #[must_use]
    pub fn sim(
        runtime: Handle,
        endpoint: Rc<dyn Endpoint>,
        attach: &Attach,
        options: ContextOptions,
    ) -> Self {
        Self::assemble(runtime, endpoint, attach, options, None)
    }

    fn assemble(
        runtime: Handle,
        endpoint: Rc<dyn Endpoint>,
        attach: &Attach,
        options: ContextOptions,
        executor: Option<real::Executor>,
    ) -> Self {
        let config = RpcConfig { keys: Some(Keys::Tenant(attach.key.clone())), ..RpcConfig::default() };
        let rpc = Rpc::new(runtime.clone(), endpoint, config);
        Self(Rc::new(Inner {
            changes: Rc::default(),
            runtime,
            rpc,
            attach: attach.clone(),
            deadline: Cell::new(options.deadline),
            limit: Cell::default(),
            options,
            peers: RefCell::default(),
            joined: RefCell::default(),
            maps: RefCell::default(),
            layouts: RefCell::default(),
            looked: RefCell::default(),
            services: RefCell::default(),
            pool_handles: RefCell::default(),
            oids: RefCell::default(),
            traffic: Cell::default(),
            lender: RefCell::default(),
            executor,
        }))
    }

    /// Runs a future to its end on this thread.
    ///
    /// # Panics
    /// On a simulated context: its world runs futures (`World::block_on`).
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let executor = self.0.executor.as_ref().expect("a simulated context is run by its world");
        executor.block_on(future)
    }

    /// The door to this context's thread for other threads; `None` on a simulated context.
    #[must_use]
    pub fn remote(&self) -> Option<real::Remote> {
        self.0.executor.as_ref().map(real::Executor::remote)
    }

    /// Time, randomness and tasks of the context.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    /// How to reach the system.
    #[must_use]
    pub fn attach(&self) -> &Attach {
        &self.0.attach
    }

    /// The RPC layer, for its metrics.
    #[must_use]
    pub fn rpc(&self) -> &Rc<Rpc> {
        &self.0.rpc
    }

    /// How long an operation is tried.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.0.deadline.get()
    }

    /// Changes how long operations that start from now on are tried.
    pub fn set_deadline(&self, deadline: Duration) {
        self.0.deadline.set(deadline);
    }

    /// Gives operations that start from now on this long together, and none longer than [`Context::deadline`]; `None`:
    /// each has that for itself.
    pub fn set_limit(&self, together: Option<Duration>) {
        let now = self.runtime().now();
        self.0.limit.set(together.map(|together| now + together));
    }

    /// When an operation that starts now is given up.
    pub(crate) fn until(&self) -> Instant {
        let until = self.runtime().now() + self.deadline();
        self.0.limit.get().map_or(until, |limit| limit.min(until))
    }

    /// An epoch that is not before that of any change which this context was told of.
    #[must_use]
    pub fn latest_epoch(&self) -> Epoch {
        self.rpc().clock().latest()
    }

    /// What the context has sent so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.0.traffic.get()
    }

    /// Has large payloads move from and to the callers' memory directly.
    pub fn set_lender(&self, lender: Rc<dyn Lender>) {
        self.0.lender.replace(Some(lender));
    }

    pub(crate) fn lender(&self) -> Option<Rc<dyn Lender>> {
        self.0.lender.borrow().clone()
    }

    /// The node that this client is on, where that is known.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.0.options.node.as_deref()
    }

    pub(crate) fn uid(&self) -> u32 {
        self.0.options.uid
    }

    pub(crate) fn gid(&self) -> u32 {
        self.0.options.gid
    }

    pub(crate) fn count(&self, bulk: bool) {
        let traffic = self.0.traffic.get();
        let (requests, bulk) = (traffic.requests + 1, traffic.bulk + u64::from(bulk));
        self.0.traffic.set(Traffic { requests, bulk, ..traffic });
    }

    /// Names a change of an object with replicas.
    pub(crate) fn begin_change(&self) -> NamedChange {
        self.0.changes.begin(|| self.runtime().random_u64())
    }

    pub(crate) fn count_altered(&self) {
        let traffic = self.0.traffic.get();
        self.0.traffic.set(Traffic { altered: traffic.altered + 1, ..traffic });
    }

    /// The peer that serves a target; `None` when neither the attach file nor an engine that was asked has it.
    pub(crate) fn peer(&self, rank: Rank, target: u32) -> Option<Peer> {
        if let Some(peer) = self.0.peers.borrow().get(&(rank, target)) {
            return Some(peer.clone());
        }
        let joined = self.0.joined.borrow();
        let engine = self.0.attach.engine(rank);
        let engine = engine.or_else(|| joined.iter().find(|engine| engine.rank == rank.0))?;
        let peer = Peer::new(&engine.host, engine.port_of(target)?);
        self.0.peers.borrow_mut().insert((rank, target), peer.clone());
        Some(peer)
    }

    /// The engines of the attach file.
    pub(crate) fn attached(&self) -> Vec<Rank> {
        self.0.attach.engines.iter().map(|engine| Rank(engine.rank)).collect()
    }

    /// Takes note of where engines are that the attach file doesn't have.
    pub(crate) fn learn_engines(&self, engines: Vec<EngineInfo>) {
        let is_new = |info: &EngineInfo| self.0.attach.engine(info.rank).is_none();
        let joined = engines.into_iter().filter(is_new).map(|info| EngineAddress {
            rank: info.rank.0,
            host: info.host,
            fabric_port: info.fabric_port,
            targets: info.targets,
            management: info.management,
        });
        self.0.joined.replace(joined.collect());
    }

    /// The newest map of a pool that this context was told of.
    pub(crate) fn known_map(&self, pool: PoolId) -> Option<Rc<PoolMap>> {
        self.0.maps.borrow().get(&pool).cloned()
    }

    /// Takes note of a map, unless a newer one is known; returns the newest.
    pub(crate) fn learn_map(&self, pool: PoolId, map: &PoolMap) -> Rc<PoolMap> {
        let mut maps = self.0.maps.borrow_mut();
        match maps.get(&pool) {
            Some(known) if known.version >= map.version => Rc::clone(known),
            _ => {
                let mut map = map.clone();
                map.targets.sort_unstable_by_key(|target| target.id);
                let map = Rc::new(map);
                maps.insert(pool, Rc::clone(&map));
                map
            }
        }
    }

    /// Where an object of a pool lives by a map that this context knows.
    pub(crate) fn layout(
        &self,
        pool: PoolId,
        object: ObjectId,
        map: &PoolMap,
    ) -> core::result::Result<Rc<Layout>, LayoutError> {
        self.0.layouts.borrow_mut().entry(pool).or_default().layout(object, map)
    }

    /// Whether a newer map may be asked for: it wasn't for some time. Notes that it is.
    pub(crate) fn may_look_for_map(&self, pool: PoolId, pause: Duration) -> bool {
        let now = self.runtime().now();
        let mut looked = self.0.looked.borrow_mut();
        let last = looked.get(&pool);
        let may = last.is_none_or(|last| now.saturating_duration_since(*last) >= pause);
        if may {
            looked.insert(pool, now);
        }
        may
    }

    /// The replicas of a pool's service, from the one on that has answered last.
    pub(crate) fn replicas_of(&self, pool: PoolId) -> Vec<Rank> {
        self.0.services.borrow().get(&pool).cloned().unwrap_or_default()
    }

    /// The engines in service of a pool, by the newest map that this context knows.
    pub(crate) fn engines_of(&self, pool: PoolId) -> Vec<Rank> {
        self.known_map(pool).map_or_else(Vec::new, |map| map.in_service().collect())
    }

    /// A handle on a pool whose service is replicated.
    pub(crate) fn handle_of(&self, pool: PoolId) -> Option<Capability> {
        self.0.pool_handles.borrow().get(&pool).cloned()
    }

    /// Takes note of a handle on a pool.
    pub(crate) fn keep_handle(&self, handle: &Capability) {
        let mut handles = self.0.pool_handles.borrow_mut();
        if handles.get(&handle.pool) != Some(handle) {
            handles.insert(handle.pool, handle.clone());
        }
    }

    /// Takes note of the replicas of a pool's service, of which one runs it as far as is known. Whether they are others than before.
    pub(crate) fn learn_replicas(&self, pool: PoolId, replicas: &[Rank], leader: Rank) -> bool {
        if self.0.services.borrow().get(&pool).is_some_and(|known| is_same_set(known, replicas)) {
            return false;
        }
        self.0.services.borrow_mut().insert(pool, replicas.to_vec());
        self.learn_leader(pool, leader);
        true
    }

    /// Takes note of the replica of a pool's service that has answered.
    pub(crate) fn learn_leader(&self, pool: PoolId, rank: Rank) {
        if let Some(replicas) = self.0.services.borrow_mut().get_mut(&pool)
            && let Some(place) = replicas.iter().position(|replica| *replica == rank)
        {
            replicas.rotate_left(place);
        }
    }

    pub(crate) fn next_oid(&self, container: ContainerId) -> Option<u64> {
        self.0.oids.borrow_mut().get_mut(&container)?.next()
    }

    pub(crate) fn keep_oids(&self, container: ContainerId, range: Range<u64>) {
        self.0.oids.borrow_mut().insert(container, range);
    }
}

/// Whether two lists have the same ranks, whatever their order.
fn is_same_set(one: &[Rank], other: &[Rank]) -> bool {
    one.len() == other.len() && one.iter().all(|rank| other.contains(rank))
}

/// Has a context give back memory whenever it has sent nothing for a while, until it is gone.
async fn rest(context: Weak<Inner>) {
    let mut sent = 0;
    loop {
        let Some(pause) = context.upgrade().map(|inner| inner.runtime.sleep(REST_AFTER)) else { return };
        pause.await;
        let Some(inner) = context.upgrade() else { return };
        let now = inner.traffic.get().requests;
        if now == sent {
            inner.rpc.rest();
        }
        sent = now;
    }
}
