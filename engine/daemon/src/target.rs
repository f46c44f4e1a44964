//! One target: store, RPC and services, put together the same way on a real thread and in a simulated world.

use std::cell::Cell;
use std::fmt::Display;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_fabric::Endpoint;
pub use weir_group::EngineKeys;
use weir_group::{Engines, InvalidEngines, Refusal, Roster, Spread};
use weir_media::Device;
use weir_media::health::{DeviceState, HUNG};
use weir_object::IoService;
use weir_pool::{Failed, Keeper, MapBackup, TargetPools, serve_clients};
use weir_proto::group::{GroupList, MemberState};
use weir_proto::pool::EngineReport;
use weir_proto::{Clock, TargetIndex, opcode};
use weir_rpc::membership::Membership;
pub use weir_rpc::membership::swim::SwimConfig;
use weir_rpc::{Keys, Rpc, RpcConfig};
use weir_runtime::{Handle, join_all};
use weir_store::{FormatError, OpenError, Owner, PoolError, Store, StoreConfig};

use crate::VERSION;
use crate::fault_record::FaultRecord;
use crate::last_seen::{LastSeen, LastSeenRecord};
use crate::management::Management;
use crate::tenants::{TenantRecord, Tenants, TenantsError};
use crate::{devices, membership, wait_log};

/// Longest wait for requests under way when a target stops: most take milliseconds.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for others to take note that this engine goes.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// How often a stopping target looks whether requests are left.
const DRAIN_STEP: Duration = Duration::from_millis(5);

/// How often a target that is being closed looks whether its device still answers.
const CLOSE_LOOK: Duration = Duration::from_secs(5);

/// Longest wait for the report of a target of the same engine.
const REPORT_LIMIT: Duration = Duration::from_secs(1);

/// Requests that a target has in flight to all others: it speaks for all its clients, so that their credits at the other
/// engines are what bounds it.
const REQUESTS_MAX: usize = 4096;

/// What a target is made of.
pub struct TargetContext {
    /// Time, randomness and tasks.
    pub rt: Handle,
    /// The door to the network, at the target's address.
    pub endpoint: Rc<dyn Endpoint>,
    /// A formatted device, or why it can't be opened.
    pub device: Result<Rc<dyn Device>, String>,
    /// What is remembered of that device.
    pub fault_record: Rc<dyn FaultRecord>,
    /// What is remembered of the store.
    pub last_seen: Rc<dyn LastSeenRecord>,
    /// Where maps of pools are kept while the device can't take them.
    pub map_backup: Rc<dyn MapBackup>,
    /// Where it is kept whose access is revoked.
    pub tenants: Rc<dyn TenantRecord>,
    /// Whose data it holds.
    pub owner: Owner,
    /// How the store behaves.
    pub store: StoreConfig,
    /// Every engine of the system.
    pub engines: GroupList,
    /// Times of the membership protocol.
    pub membership: SwimConfig,
    /// The key that engines and clients share, and the one that engines have for themselves.
    pub keys: EngineKeys,
    /// libfabric provider, as clients are told.
    pub provider: String,
    /// Start of the process, seconds since 1970.
    pub started: u64,
}

/// Why a target doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its store.
    #[error("{0}")]
    Store(#[from] OpenError),
    /// The list of engines.
    #[error("{0}")]
    Engines(#[from] InvalidEngines),
    /// Whose access is revoked.
    #[error("{0}")]
    Tenants(#[from] TenantsError),
    /// The state of pools.
    #[error("{0}")]
    Pools(#[from] Failed),
    /// What stands in for a faulty device.
    #[error("{0}")]
    StandIn(#[from] FormatError),
}

/// A target that serves.
pub struct Target {
    pub(crate) rt: Handle,
    pub(crate) rpc: Rc<Rpc>,
    pub(crate) store: Rc<Store>,
    pub(crate) pools: Rc<TargetPools>,
    pub(crate) io: Rc<IoService>,
    management: Option<Rc<Management>>,
    membership: Option<Rc<Membership>>,
    /// It answers other engines for as long as the target lives.
    _tenants: Rc<Tenants>,
    last_seen: Rc<dyn LastSeenRecord>,
    stopping: Cell<bool>,
}

/// Spreads messages among the engines, but for those that membership holds dead.
fn start_spread(engines: &Rc<Engines>, membership: Option<&Rc<Membership>>) -> Rc<Spread> {
    let members = membership.map(Rc::downgrade);
    Spread::start(engines, move |rank| {
        let members = members.as_ref().and_then(Weak::upgrade);
        members.is_some_and(|members| members.state(rank) == MemberState::Dead)
    })
}

impl Target {
    /// Recovers the store and serves from then on. A target whose store can't be opened, or isn't the one that was there, is lost: it
    /// says so, and serves nothing.
    ///
    /// # Errors
    /// When another release has written the store, or its content makes no sense.
    pub async fn start(context: TargetContext) -> Result<Rc<Self>, StartError> {
        let (store, lost) = open_store(&context).await?;
        let TargetContext {
            rt,
            endpoint,
            fault_record,
            last_seen,
            map_backup,
            tenants,
            owner,
            engines,
            membership,
            keys,
            provider,
            started,
            ..
        } = context;
        // Peers' clocks may have pushed this one ahead of the wall before a restart.
        let clock = Rc::new(Clock::after(store.newest_epoch()));
        let config = RpcConfig {
            keys: Some(Keys::System(keys.system.clone())),
            requests_max: REQUESTS_MAX,
            ..RpcConfig::default()
        };
        let rpc = Rpc::with_clock(rt.clone(), endpoint, config, Rc::clone(&clock));
        rpc.set_starting(true);
        let own = (owner.rank, owner.target);
        let engines = Engines::new(rt.clone(), Rc::clone(&rpc), keys, own, engines)?;
        // Before anything is served.
        let tenants = Tenants::start(&engines, &rpc, tenants)?;
        weir_probe::serve(&rpc);
        serve_report(&engines, &store, started, lost.clone());
        devices::serve_clear(&engines, &fault_record, lost.is_some().then(|| Rc::clone(&last_seen)));
        let membership = (owner.target.0 == 0).then(|| membership::start(&rt, &engines, membership));
        let spread = start_spread(&engines, membership.as_ref());
        let (of, to) = (Rc::clone(&engines), Rc::clone(&spread));
        let pools = TargetPools::open(Rc::clone(&store), of, to, clock, map_backup, lost).await?;
        rt.spawn(devices::watch(rt.clone(), Rc::downgrade(&pools), fault_record, Rc::clone(&last_seen)));
        let io = IoService::start(&rpc, Rc::clone(&pools));
        let management = if let Some(members) = &membership {
            serve_clients(&rpc, &pools);
            let keeper = Keeper::start(&pools, spread).await?;
            let members = Rc::clone(members);
            let (of, tenants) = (Rc::clone(&pools), Rc::clone(&tenants));
            Some(Management::new((owner.system, provider), of, keeper, members, tenants))
        } else {
            None
        };
        rpc.set_starting(false);
        let stopping = Cell::new(false);
        Ok(Rc::new(Self {
            rt,
            rpc,
            store,
            pools,
            io,
            management,
            membership,
            _tenants: tenants,
            last_seen,
            stopping,
        }))
    }

    /// What answers management requests; only target 0 has it.
    #[must_use]
    pub const fn management(&self) -> Option<&Rc<Management>> {
        self.management.as_ref()
    }

    /// Which engines are alive; only target 0 takes part for its engine.
    #[must_use]
    pub const fn membership(&self) -> Option<&Rc<Membership>> {
        self.membership.as_ref()
    }

    /// The pools that it has shards of.
    #[must_use]
    pub const fn pools(&self) -> &Rc<TargetPools> {
        &self.pools
    }

    /// Its I/O service.
    #[must_use]
    pub const fn io(&self) -> &Rc<IoService> {
        &self.io
    }

    /// The list of engines that it goes by.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        self.pools.engines().roster()
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &Rc<Store> {
        &self.store
    }

    /// The RPC layer.
    #[must_use]
    pub const fn rpc(&self) -> &Rc<Rpc> {
        &self.rpc
    }

    /// Whether [`Target::stop`] was called.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Begins nothing more, finishes what is under way and writes a checkpoint. Requests that arrive meanwhile are told
    /// to come again.
    ///
    /// # Errors
    /// When the device fails; what was acknowledged is safe all the same.
    pub async fn stop(&self) -> Result<(), PoolError> {
        self.stopping.set(true);
        self.rpc.drain();
        if let Some(membership) = &self.membership {
            let told = membership.leave();
            // Engines that don't hear it find out by themselves.
            let _ = self.rt.timeout(LEAVE_LIMIT, told).await;
        }
        let until = self.rt.now() + DRAIN_LIMIT;
        while self.rpc.metrics().running.get() > 0 && self.rt.now() < until {
            self.rt.sleep(DRAIN_STEP).await;
        }
        self.rpc.turn_away();
        // What stands in for a lost store has nothing to keep.
        if self.pools.lost().is_some() {
            return Ok(());
        }
        let closed = self.close().await;
        self.last_seen.keep_last(&self.store.mark());
        closed
    }

    /// Closes the store, which may take long, but doesn't wait for a transfer that hangs.
    async fn close(&self) -> Result<(), PoolError> {
        let mut closing = pin!(self.store.close());
        loop {
            if let Ok(closed) = self.rt.timeout(CLOSE_LOOK, closing.as_mut()).await {
                return closed;
            }
            if let Some(stall) = self.store.device_stall().filter(|stall| stall.time >= HUNG) {
                return Err(PoolError::Failed(stall.reason));
            }
        }
    }
}

/// Opens the store. A device that was found faulty in an earlier life is not touched, but for target 0's: without that one the
/// engine has no membership, and its pools' services no state. It is read, and not used beyond that.
///
/// Where a store can't be opened, or isn't the one that was there, an empty one that takes nothing stands in for it, and why.
async fn open_store(context: &TargetContext) -> Result<(Rc<Store>, Option<String>), StartError> {
    let TargetContext { rt, device, fault_record, last_seen, owner, store, .. } = context;
    let known_fault = fault_record.read();
    if let Some(reason) = known_fault.as_ref().filter(|_| owner.target.0 != 0) {
        return Ok((open_stand_in(context, reason).await?, None));
    }
    let mark = match last_seen.read() {
        LastSeen::Store(mark) => Some(mark),
        LastSeen::Nothing | LastSeen::GivenUp => None,
    };
    let config = StoreConfig { mark, ..store.clone() };
    let lost = match device {
        Err(reason) => reason.clone(),
        Ok(device) => {
            let open = Store::open(rt, Rc::clone(device), owner, config);
            match wait_log::with_wait_log(rt, owner.target.0, device, "recovery", open).await {
                Ok(store) => {
                    if let Some(reason) = &known_fault {
                        store.condemn_device(reason);
                    }
                    return Ok((store, None));
                }
                Err(error) if error.is_of_other_release() => return Err(error.into()),
                Err(error) => error.to_string(),
            }
        }
    };
    tracing::error!(target = %owner.target, reason = lost, "the target is lost, it serves nothing of what it held");
    Ok((open_stand_in(context, &lost).await?, Some(lost)))
}

/// An empty store that takes nothing.
async fn open_stand_in(context: &TargetContext, reason: &str) -> Result<Rc<Store>, StartError> {
    let TargetContext { rt, owner, store, .. } = context;
    let device = devices::stand_in(rt, owner).await?;
    let store = Store::open(rt, device, owner, store.clone()).await?;
    store.condemn_device(reason);
    Ok(store)
}

/// Answers how this target is and, at target 0, how the whole engine is.
fn serve_report(engines: &Rc<Engines>, store: &Rc<Store>, started: u64, lost: Option<String>) {
    let (weak, store) = (Rc::downgrade(engines), Rc::clone(store));
    engines.serve(opcode::ENGINE_REPORT, move |_, (): ()| {
        let (engines, store, lost) = (weak.upgrade(), Rc::clone(&store), lost.clone());
        async move {
            let space = store.space();
            // Nothing can be given to a pool on a device that isn't used any more.
            let assignable = if store.device_fault().is_some() { 0 } else { space.capacity };
            let mut report = EngineReport {
                version: VERSION.to_owned(),
                targets: 1,
                capacity: space.capacity,
                free: assignable.saturating_sub(space.assigned),
                started,
                message: lost.map_or_else(|| device_message(&store), |reason| format!("lost: {reason}")),
            };
            if let Some(engines) = engines.filter(|engines| engines.own_index().0 == 0) {
                add_siblings(&engines, &mut report).await;
            }
            Ok::<_, Refusal>(report)
        }
    });
}

/// What is to be said of a target's device; nothing while it is normal.
fn device_message(store: &Store) -> String {
    match store.device_health() {
        Some(health) if health.state == DeviceState::Faulty => {
            format!("out of service, because its device is faulty: {}", health.reason)
        }
        Some(health) if health.state != DeviceState::Normal => {
            format!("the device is {}: {}", health.state.name(), health.reason)
        }
        _ => String::new(),
    }
}

async fn add_siblings(engines: &Engines, report: &mut EngineReport) {
    let own = engines.own_rank();
    let targets = engines.get(own).map_or(1, |info| info.targets);
    let asked = join_all((1..targets).map(|index| {
        engines.ask::<_, EngineReport>(own, TargetIndex(index), opcode::ENGINE_REPORT, &(), REPORT_LIMIT)
    }));
    take_in(report, (1..).zip(asked.await));
}

/// Adds what the other targets of an engine say to what target 0 says. Of several that are not well, each is named.
fn take_in<E: Display>(
    report: &mut EngineReport,
    siblings: impl Iterator<Item = (u32, Result<EngineReport, E>)>,
) {
    let mut messages = Vec::new();
    if !report.message.is_empty() {
        messages.push(format!("target 0: {}", report.message));
    }
    for (index, answer) in siblings {
        match answer {
            Ok(sibling) => {
                if !sibling.message.is_empty() {
                    messages.push(format!("target {index}: {}", sibling.message));
                }
                report.targets += 1;
                report.capacity += sibling.capacity;
                report.free += sibling.free;
            }
            Err(error) => messages.push(format!("target {index} does not answer: {error}")),
        }
    }
    report.message = messages.join("; ");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_that_is_not_well_is_named() {
        let said = |message: &str| {
            let (version, message) = (VERSION.to_owned(), message.to_owned());
            EngineReport { version, targets: 1, capacity: 8, free: 5, started: 1, message }
        };
        let mut report = said("");
        take_in(&mut report, [(1, Ok(said(""))), (2, Ok::<_, String>(said("")))].into_iter());
        assert_eq!((report.targets, report.capacity, report.free, report.message.as_str()), (3, 24, 15, ""));
        let mut report = said("is slow");
        let siblings = [(1, Ok(said("is broken"))), (2, Ok(said(""))), (3, Err("it is gone"))];
        take_in(&mut report, siblings.into_iter());
        assert_eq!(report.targets, 3);
        assert_eq!(
            report.message,
            "target 0: is slow; target 1: is broken; target 3 does not answer: it is gone"
        );
    }
}
