//! The service of one pool: its connected clients, its containers, and the grants of its targets.
//!
//! It runs on target 0 of the pool's service rank, or of the rank whose replica leads. Its state is in memory and in attributes of
//! that target's shard; every change is one atomic batch of attributes that is durable before it is answered or visible, on most
//! replicas where there are several: a batch is a command of theirs.
//!
//! The room calls the pool on its target, stored records, and other engines. The pools of a target start it and hand it the
//! requests of clients and targets; management and metrics call it directly.

mod attributes;
mod background;
mod containers;
mod destroy;
mod devices;
mod grants;
mod growth;
mod handles;
mod health;
mod leadership;
mod leases;
mod membership;
mod moves;
mod quota;
mod replicas;
mod returns;
mod settings;
mod share;
mod snapshots;
#[cfg(test)]
mod tests;

pub use containers::{CHUNK_SIZE_DEFAULT, Made};
pub(crate) use containers::{check_class, check_survives};
pub(crate) use grants::enlarge;
pub use handles::OpenHandle;
pub use health::{Condition, Filling, Health};
pub(crate) use leadership::Led;
pub(crate) use quota::Granted;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use weir_group::{Engines, Gathered, Spread};
use weir_proto::capability::Credential;
use weir_proto::lease::FillProgress;
use weir_proto::pool::{ConnectReply, PoolQueryReply, TargetContainerState};
use weir_proto::{Capability, CapabilityError, Clock, ContainerId, Rank, Rights, TargetIndex, TenantId};
use weir_raft::CommandId;
use weir_runtime::Instant;
use weir_runtime::sync::{Notify, Semaphore};
use weir_store::{AttributeChange, AttributeError, Shard};

use crate::error::Failed;
use crate::record::{self, ContainerRecord, PoolRecord, PoolSettings, SCOPE_CONTAINER, ShareRecord};
use crate::target::TargetPool;
use handles::Handle;
pub(crate) use leases::Lease;
use leases::Leases;
use moves::Filled;

/// How old gathered figures may be that answer a query: volumes are asked for their space far more often than it
/// changes noticeably.
const SPACE_AGE_MAX: Duration = Duration::from_secs(1);

/// Most changes of a service that runs alone that are stored at once: more than come.
const STORING_MAX: usize = 1 << 20;

/// Most handles that are counted for one container. More clients than that share the last count.
const HANDLES_MAX: usize = 1 << 20;

/// A container as the service holds it.
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    pub(crate) record: RefCell<ContainerRecord>,
    /// Open handles: those whose node is known, and others that were seen since the service started.
    handles: RefCell<HashMap<u64, Handle>>,
    /// Next object-id bits to hand out; those below the record's `next_oid`, which is durable, need no write.
    next_oid: Cell<u64>,
    /// Serialises changes of the container.
    turn: Semaphore,
    /// Whether the newest list of snapshots is the durable one isn't known.
    unsettled: Cell<bool>,
    /// Nor is that of its attributes.
    unsettled_attributes: Cell<bool>,
    /// When unused grants were last taken back.
    reclaimed: Cell<Option<Instant>>,
}

impl Container {
    fn new(id: ContainerId, record: ContainerRecord) -> Rc<Self> {
        let next_oid = Cell::new(record.next_oid);
        Rc::new(Self {
            id,
            record: RefCell::new(record),
            handles: RefCell::default(),
            next_oid,
            turn: Semaphore::new(1),
            unsettled: Cell::new(false),
            unsettled_attributes: Cell::new(false),
            reclaimed: Cell::new(None),
        })
    }

    fn is_doomed(&self) -> bool {
        self.record.borrow().doomed
    }

    fn label(&self) -> String {
        self.record.borrow().properties.label.clone()
    }

    /// What targets are told of the container.
    fn state(&self, pool: weir_proto::PoolId, grant: Option<u64>) -> TargetContainerState {
        let record = self.record.borrow();
        TargetContainerState {
            pool,
            container: self.id,
            label: record.properties.label.clone(),
            grant,
            snapshots: record.snapshots.clone(),
        }
    }
}

/// The service of one pool.
pub struct PoolService {
    engines: Rc<Engines>,
    spread: Rc<Spread>,
    clock: Rc<Clock>,
    pool: std::rc::Weak<TargetPool>,
    shard: Shard,
    containers: RefCell<BTreeMap<ContainerId, Rc<Container>>>,
    labels: RefCell<HashMap<String, ContainerId>>,
    /// Serialises creations: labels are unique.
    creating: Semaphore,
    gathered: RefCell<Option<(Instant, Rc<Gathered>)>>,
    gathering: Semaphore,
    /// Something has to be destroyed.
    doomed: Notify,
    /// One change of the map at a time.
    mapping: Semaphore,
    /// The map has changed since all targets were told.
    mapped: Notify,
    /// Some targets may keep other snapshots of a container than the list has.
    untold: Notify,
    /// What engines may hold of leases.
    leases: Leases,
    /// Engines are away that the pool can't do without.
    stuck: Cell<bool>,
    /// Targets that have nothing of the pool, and get it when the others are complete.
    blank: RefCell<BTreeSet<(Rank, TargetIndex)>>,
    /// What an administrator has set.
    settings: Cell<PoolSettings>,
    /// Its share of its tenant's quota.
    share: Cell<ShareRecord>,
    /// Whether there is a limit, or one comes this moment: quota is granted by one at a time then.
    limited: Cell<bool>,
    /// Serialises grants then, and changes of the share.
    sharing: Semaphore,
    /// When unused grants were last taken back from all containers.
    reclaimed_all: Cell<Option<Instant>>,
    /// Ids of targets that are down and whose places nobody fills, and when that was first seen.
    away_since: RefCell<BTreeMap<u32, Instant>>,
    /// Ids of targets that have said that they have filled the places that they get.
    filled: RefCell<BTreeMap<u32, Filled>>,
    /// The same of those that have said that nothing is unsettled of what is handed over.
    settled: RefCell<BTreeMap<u32, Filled>>,
    /// Until when places are handed over, or from when on that is tried again.
    handing_from: Cell<Option<Instant>>,
    /// Engines that an administrator takes out.
    excluding: RefCell<BTreeSet<Rank>>,
    /// What targets have said last of how far they are with the data that they get, and when.
    progress: RefCell<BTreeMap<(Rank, TargetIndex), (Instant, FillProgress)>>,
    /// Why targets can't go on with that, and when they have said so last.
    hindered: RefCell<BTreeMap<(Rank, TargetIndex), (Instant, String)>>,
    stopped: Cell<bool>,
    /// By what this replica leads, when the service is replicated. A service that runs alone may come to be, and then stays so.
    led: OnceCell<Led>,
    /// Changes of a service that runs alone have one each; who has all of them makes it a replicated one.
    storing: Semaphore,
}

impl PoolService {
    /// Loads the service's state and starts its background work.
    pub(crate) fn open(
        pool: &Rc<TargetPool>,
        engines: Rc<Engines>,
        spread: Rc<Spread>,
        clock: Rc<Clock>,
        led: Option<Led>,
    ) -> Result<Rc<Self>, Failed> {
        let now = engines.runtime().now();
        let share = share::load(pool)?;
        let service = Rc::new(Self {
            engines,
            spread,
            clock,
            pool: Rc::downgrade(pool),
            shard: pool.shard().clone(),
            containers: RefCell::default(),
            labels: RefCell::default(),
            creating: Semaphore::new(1),
            gathered: RefCell::default(),
            gathering: Semaphore::new(1),
            doomed: Notify::new(),
            mapping: Semaphore::new(1),
            mapped: Notify::new(),
            untold: Notify::new(),
            leases: Leases::new(now),
            stuck: Cell::new(false),
            blank: RefCell::default(),
            settings: Cell::new(settings::load(pool)?),
            share: Cell::new(share),
            limited: Cell::new(share.limit.is_some()),
            sharing: Semaphore::new(1),
            reclaimed_all: Cell::new(None),
            away_since: RefCell::default(),
            filled: RefCell::default(),
            settled: RefCell::default(),
            handing_from: Cell::new(None),
            excluding: RefCell::default(),
            progress: RefCell::default(),
            hindered: RefCell::default(),
            stopped: Cell::new(false),
            led: led.map_or_else(OnceCell::new, OnceCell::from),
            storing: Semaphore::new(STORING_MAX),
        });
        for (name, bytes) in record::load_scope(&service.shard, SCOPE_CONTAINER) {
            let id = record::container_of(pool.id(), &name)?;
            let record: ContainerRecord = record::decode(pool.id(), &bytes)?;
            let container = Container::new(id, record);
            container.skip_oids(service.engines.runtime().wall_ns());
            service.load_handles(&container);
            service.insert(container);
        }
        destroy::start(&service);
        devices::start(&service);
        membership::start(&service);
        replicas::start(&service);
        snapshots::start(&service);
        Ok(service)
    }

    fn insert(&self, container: Rc<Container>) {
        if !container.is_doomed() {
            self.labels.borrow_mut().insert(container.label(), container.id);
        }
        self.containers.borrow_mut().insert(container.id, container);
    }

    /// Does something again and again, with pauses, for as long as the service lives.
    fn repeat(service: &Rc<Self>, pause: Duration, act: impl AsyncFn(&Self) + 'static) {
        let (weak, rt) = (Rc::downgrade(service), service.engines.runtime().clone());
        rt.clone().spawn(async move {
            loop {
                rt.sleep(pause).await;
                let Some(service) = weak.upgrade() else { return };
                if service.stopped.get() {
                    return;
                }
                act(&service).await;
            }
        });
    }

    /// Ends the service, since its pool is destroyed.
    pub(crate) fn stop(&self, only_if_empty: bool) -> Result<(), Failed> {
        let labels = self.live_labels();
        if only_if_empty && !labels.is_empty() {
            return Err(Failed::Busy {
                object: format!("pool {}", self.label()),
                reason: format!(
                    "has {} containers ({}); destroy them first, or force the destruction",
                    labels.len(),
                    first_few(&labels)
                ),
            });
        }
        // One that is durable and not visible yet would be acknowledged, and gone.
        if only_if_empty && self.creating.available() == 0 {
            return Err(Failed::Busy {
                object: format!("pool {}", self.label()),
                reason: "gets a container at this moment; destroy that first, or force the destruction"
                    .to_owned(),
            });
        }
        self.end();
        Ok(())
    }

    /// Labels of the containers that aren't being destroyed.
    #[must_use]
    pub fn live_labels(&self) -> Vec<String> {
        let mut labels: Vec<_> = self.labels.borrow().keys().cloned().collect();
        labels.sort_unstable();
        labels
    }

    /// Label of the pool.
    #[must_use]
    pub fn label(&self) -> String {
        self.record().map_or_else(String::new, |record| record.label)
    }

    fn record(&self) -> Option<PoolRecord> {
        self.pool.upgrade().map(|pool| pool.record.borrow().clone())
    }

    /// The pool's record, as long as the pool lives.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub fn pool(&self) -> Result<PoolRecord, Failed> {
        let gone = || match self.led.get() {
            // Another replica may lead, which knows.
            Some(_) => Failed::Deposed(self.shard.id()),
            None => Failed::InTransition(self.shard.id().to_string(), "destroyed"),
        };
        if self.stopped.get() { Err(gone()) } else { self.record().ok_or_else(gone) }
    }

    /// Gives a handle on the pool to a client of the pool's tenant, or of the system.
    ///
    /// # Errors
    /// When the credential is not valid, or the pool is another tenant's.
    pub fn connect(
        &self,
        name: &str,
        rights: Rights,
        credential: &Credential,
        tenant: TenantId,
    ) -> Result<ConnectReply, Failed> {
        let rt = self.engines.runtime();
        let key = self.engines.key().tenant(tenant);
        let record = self.pool()?;
        // To another tenant the pool is as good as any that it has no key for.
        if !credential.is_valid(&key, name, rt.wall_ns())
            || (tenant != record.tenant && tenant != TenantId::SYSTEM)
        {
            self.engines.count_forged();
            return Err(Failed::Credential(name.to_owned()));
        }
        let capability =
            Capability::issue(&record.secret, tenant, record.pool, None, rights, rt.random_u64());
        Ok(ConnectReply::Connected {
            capability,
            label: record.label,
            map: record.map,
            service: self.engines.own_rank(),
            object_class: record.object_class,
        })
    }

    /// Checks a handle on the pool.
    ///
    /// # Errors
    /// When it is forged, lacks a right, or is one of a container.
    pub fn authorize(&self, capability: &Capability, needed: Rights) -> Result<PoolRecord, Failed> {
        let record = self.pool()?;
        capability.check(&record.secret, needed)?;
        if capability.container.is_some() {
            return Err(CapabilityError::Forged(record.pool).into());
        }
        Ok(record)
    }

    /// Checks a handle on a container. One that was opened before the service started is counted again.
    pub(crate) fn authorize_container(
        &self,
        capability: &Capability,
        needed: Rights,
    ) -> Result<Rc<Container>, Failed> {
        let record = self.pool()?;
        capability.check(&record.secret, needed)?;
        let id = capability.container.ok_or(CapabilityError::Forged(record.pool))?;
        let known = self.containers.borrow().get(&id).map(Rc::clone);
        let live = known.filter(|container| !container.is_doomed());
        let container = live.ok_or(Failed::Destroyed { pool: record.label, container: id })?;
        let now = self.engines.runtime().now();
        let mut handles = container.handles.borrow_mut();
        if let Some(known) = handles.get_mut(&capability.handle) {
            known.seen = now;
        } else if handles.len() < HANDLES_MAX {
            handles.insert(capability.handle, Handle::new(now));
        }
        drop(handles);
        Ok(container)
    }

    /// Waits for the turn to change a container.
    ///
    /// # Errors
    /// When it was destroyed, maybe by the task that had the turn before: nothing takes back what is changed of it from
    /// then on.
    async fn turn_of(&self, container: &Container) -> Result<impl Sized, Failed> {
        let turn = container.turn.acquire().await;
        if container.is_doomed() {
            return Err(Failed::Destroyed { pool: self.label(), container: container.id });
        }
        Ok(turn)
    }

    /// State and space of the pool.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub async fn query(&self) -> Result<PoolQueryReply, Failed> {
        let gathered = self.gathered(SPACE_AGE_MAX).await?;
        let record = self.pool()?;
        Ok(PoolQueryReply {
            label: record.label,
            map: record.map,
            space: gathered.space.clone(),
            unreachable: gathered.unreachable.clone(),
            containers: u32::try_from(self.labels.borrow().len()).unwrap_or(u32::MAX),
        })
    }

    /// Figures of the pool's targets that are at most `age` old.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub async fn gathered(&self, age: Duration) -> Result<Rc<Gathered>, Failed> {
        if let Some(fresh) = self.gathered_within(age) {
            return Ok(fresh);
        }
        let _permit = self.gathering.acquire().await;
        if let Some(fresh) = self.gathered_within(age) {
            return Ok(fresh);
        }
        let record = self.pool()?;
        let gathered = Rc::new(Gathered::ask(&self.spread, record.pool, &record.map).await);
        let now = self.engines.runtime().now();
        *self.gathered.borrow_mut() = Some((now, Rc::clone(&gathered)));
        Ok(gathered)
    }

    /// The figures gathered last, if they are at most `age` old.
    #[must_use]
    pub fn gathered_within(&self, age: Duration) -> Option<Rc<Gathered>> {
        let now = self.engines.runtime().now();
        let gathered = self.gathered.borrow();
        let (at, figures) = gathered.as_ref()?;
        (now.saturating_duration_since(*at) <= age).then(|| Rc::clone(figures))
    }

    /// Makes changes durable. While they can't be, they are refused before anything has changed.
    async fn commit(&self, changes: &[AttributeChange]) -> Result<(), Failed> {
        self.commit_once(None, changes).await
    }

    /// The same for a request that a client may send to another replica again ([`PoolService::has_done`]).
    async fn commit_once(&self, id: Option<CommandId>, changes: &[AttributeChange]) -> Result<(), Failed> {
        if let Some(reason) = self.shard.failure() {
            return Err(Failed::Frozen { pool: self.label(), rank: self.engines.own_rank(), reason });
        }
        if let Some(led) = self.led.get() {
            return self.propose(led, id, changes).await;
        }
        let _stored = self.storing.acquire().await;
        match self.led.get() {
            Some(led) => self.propose(led, id, changes).await,
            None => Ok(self.shard.change_attributes(changes).await?),
        }
    }

    /// Makes a new record of a container durable, then visible.
    async fn commit_record(&self, container: &Container, record: ContainerRecord) -> Result<(), Failed> {
        self.commit_record_once(None, container, record).await
    }

    async fn commit_record_once(
        &self,
        id: Option<CommandId>,
        container: &Container,
        record: ContainerRecord,
    ) -> Result<(), Failed> {
        let stored = record::encode(&record);
        let name = container.id.0.as_bytes();
        self.commit_once(id, &[record::change(SCOPE_CONTAINER, name, Some(stored))]).await?;
        *container.record.borrow_mut() = record;
        Ok(())
    }

    fn object(&self, container: &str) -> String {
        format!("container {container} of pool {}", self.label())
    }
}

/// Whether a change that failed may have been made durable all the same.
const fn is_in_doubt(committed: &Result<(), Failed>) -> bool {
    matches!(committed, Err(Failed::Attributes(AttributeError::Failed(_))))
}

/// A list for a message: at most five entries.
fn first_few(labels: &[String]) -> String {
    let shown: Vec<_> = labels.iter().take(5).map(String::as_str).collect();
    let rest = if labels.len() > shown.len() { ", …" } else { "" };
    format!("{}{rest}", shown.join(", "))
}
