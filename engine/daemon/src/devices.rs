//! A target's device: the records kept of it, and the reports to pool services when it can't be used.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_group::Engines;
use weir_media::Device;
use weir_media::health::{DeviceState, MonitoredDevice};
use weir_media::memory::MemoryDevice;
use weir_pool::{Failed, TargetPools};
use weir_proto::{Rank, opcode};
use weir_runtime::{Handle, Instant};
use weir_store::{FormatError, FormatOptions, Owner, Store};

use crate::fault_record::FaultRecord;
use crate::last_seen::LastSeenRecord;

/// How often a target looks at how its device is doing: a faulty one is refused work at once, and told of this soon.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// Longest pause before what was said of a device is said again. The pauses double up to it, so that a service that is away for
/// long costs little, and hears soon when it is back.
const REPEAT_MAX: Duration = Duration::from_secs(40);

/// Bytes of what stands in for a device that can't be used: an empty store, which takes as much memory as it has written.
const STAND_IN_BYTES: u64 = 64 << 20;

/// An empty store in memory. A target whose device is out of use says so, and holds nothing; its engine's other targets serve.
///
/// # Errors
/// When it can't be formatted.
pub async fn stand_in(rt: &Handle, owner: &Owner) -> Result<Rc<dyn Device>, FormatError> {
    let device: Rc<dyn Device> =
        Rc::new(MonitoredDevice::new(rt, Rc::new(MemoryDevice::new(STAND_IN_BYTES))));
    let options = FormatOptions { owner: owner.clone(), log_bytes: None };
    Store::format(rt, &device, &options).await?;
    Ok(device)
}

/// Serves the operator's statement that a device was repaired or replaced. For a lost target the statement says that its content is
/// given up, which is entered in the record of its store.
pub fn serve_clear(
    engines: &Rc<Engines>,
    fault_record: &Rc<dyn FaultRecord>,
    lost: Option<Rc<dyn LastSeenRecord>>,
) {
    let (own, index) = (engines.own_rank(), engines.own_index());
    let fault_record = Rc::clone(fault_record);
    engines.serve(opcode::DEVICE_CLEAR, move |_, (): ()| {
        let given_up = lost.as_ref().map_or(Ok(()), |last_seen| last_seen.give_up());
        let lifted = given_up.and_then(|()| fault_record.clear()).map(|lifted| lifted || lost.is_some());
        async move {
            lifted.map_err(|error| Failed::Busy {
                object: format!("target {index} of rank {own}"),
                reason: format!("still counts as faulty, because its mark can't be removed: {error}"),
            })
        }
    });
}

/// Watches a target's device for as long as its pools are served.
pub async fn watch(
    rt: Handle,
    pools: Weak<TargetPools>,
    fault_record: Rc<dyn FaultRecord>,
    last_seen: Rc<dyn LastSeenRecord>,
) {
    let mut last = DeviceState::Normal;
    let mut state = RecordState::of(&*fault_record);
    let (mut news, mut seen) = (News::default(), None);
    loop {
        let Some(strong) = pools.upgrade() else { return };
        let is_lost = strong.lost().is_some();
        if !is_lost {
            last = log_state(strong.store(), last);
            let mark = strong.store().mark();
            if seen.replace(mark) != Some(mark) {
                last_seen.keep(&mark);
            }
        }
        let fault = strong.fault();
        if !is_lost {
            state.keep(&*fault_record, fault.as_deref());
        }
        news.tell(&rt, &strong, fault).await;
        drop(strong);
        rt.sleep(HEALTH_INTERVAL).await;
    }
}

/// What the fault record of a device is known to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordState {
    /// The device is not recorded as faulty.
    Clean,
    /// It was faulty before the target started.
    Inherited,
    /// It turned faulty since.
    Passed,
}

impl RecordState {
    fn of(fault_record: &dyn FaultRecord) -> Self {
        if fault_record.read().is_some() { Self::Inherited } else { Self::Clean }
    }

    /// Writes down that the device has turned faulty, and removes that when it was a stall that has ended.
    fn keep(&mut self, fault_record: &dyn FaultRecord, fault: Option<&str>) {
        let (next, written) = match (*self, fault) {
            (Self::Clean, Some(reason)) => (Self::Passed, fault_record.set(reason)),
            (Self::Passed, None) => (Self::Clean, fault_record.clear().map(drop)),
            _ => return,
        };
        match written {
            Ok(()) => *self = next,
            Err(error) => tracing::warn!(%error, "whether the device is faulty can't be written down"),
        }
    }
}

/// What is to be said of a device to pool services.
#[derive(Default)]
struct News {
    /// Whether the device was faulty when something was said of it last.
    said: Option<bool>,
    /// The ranks to tell.
    untold: BTreeSet<Rank>,
    /// When it is said again, and how long after that once more.
    next: Option<(Instant, Duration)>,
}

impl News {
    /// Says what is to be said: to all services when it is news, and to those that turn out not to go by it, until they do.
    async fn tell(&mut self, rt: &Handle, pools: &TargetPools, fault: Option<String>) {
        if self.said != Some(fault.is_some()) {
            self.said = Some(fault.is_some());
            self.untold = pools.every_rank();
            self.next = None;
        }
        self.untold.extend(pools.misinformed());
        if self.untold.is_empty() {
            self.next = None;
            return;
        }
        let now = rt.now();
        let (at, pause) = self.next.unwrap_or((now, HEALTH_INTERVAL));
        if now < at {
            return;
        }
        self.untold = pools.tell_of_device(core::mem::take(&mut self.untold), fault).await;
        self.next = Some((now + pause, REPEAT_MAX.min(pause * 2)));
    }
}

/// Logs a change of the device's state.
fn log_state(store: &Store, last: DeviceState) -> DeviceState {
    let health = store.device_health().unwrap_or_default();
    let (state, reason) = (health.state.name(), &health.reason);
    match health.state {
        now if now == last => {}
        DeviceState::Normal => tracing::info!(state, "the device is well again"),
        DeviceState::Suspect => tracing::warn!(state, %reason, "the device is to be looked after"),
        DeviceState::Faulty => tracing::error!(state, %reason, "the target is out of service"),
    }
    health.state
}
