//! The operations on objects: update, punch, fetch, list, query and reserve, from decoding to reply. The room checks requests by
//! admission, knows repeated changes by their identities, and calls the store's shard. The service calls it with one request
//! at a time; transactions use its quota.

mod fetch;
mod keys;
mod punch;
mod quota;
mod reserve;
mod settled;
mod undecided;
mod update;

pub(crate) use punch::check_punch;
pub(crate) use quota::within_quota;
pub(crate) use reserve::{bytes_of, reserved_dkeys, told_dkeys};
pub(crate) use update::{UpdateData, check as check_update, pull};

use std::rc::Rc;
use std::time::Duration;

use weir_proto::object::{Conditions, UpdateReply};
use weir_proto::{Epoch, codec};
use weir_rpc::{Body, Request, Status};

use crate::admission::{Admission, Permit, refusal};
use crate::repair::Repair;
use crate::repeats::Repeats;
use crate::succession::Succession;
use crate::unsettled::Unsettled;

/// How long a target knows at most of changes that they are settled, where another member may not have heard: as long as names of changes
/// may be asked for, many times.
const TOLD_KEPT: Duration = Duration::from_hours(1);

/// Performs the operations on objects of one target.
pub(crate) struct Operations {
    admission: Admission,
    repeats: Rc<Repeats>,
    /// What reads of objects with replicas wait for.
    unsettled: Rc<Unsettled>,
    /// What transactions' reads of them wait for.
    succession: Rc<Succession>,
    /// Told of damage that reads meet.
    repair: Rc<Repair>,
}

impl Operations {
    pub(crate) fn new(
        admission: Admission,
        repeats: Rc<Repeats>,
        (unsettled, succession): (Rc<Unsettled>, Rc<Succession>),
        repair: Rc<Repair>,
    ) -> Self {
        Self { admission, repeats, unsettled, succession, repair }
    }

    /// Forgets identities whose requests can't come again, and changes that nobody tells of any more.
    pub(crate) async fn sweep(&self) {
        let (pools, engines) = (self.admission.pools.all(), self.admission.pools.engines());
        for pool in &pools {
            self.unsettled.settle_left(pool, (engines.own_rank(), engines.own_index()));
        }
        let lives = |id| pools.iter().any(|pool| pool.id() == id);
        let oldest = self.admission.rt.wall_ns().saturating_sub(weir_runtime::nanos(TOLD_KEPT));
        self.unsettled.forget_old(Epoch(oldest), lives);
        self.succession.retain(lives);
        self.repeats.sweep(&self.admission.rt, &pools).await;
    }

    /// The answer to a change that was executed before. Whatever else would be said to it now, from a newer map on, would have
    /// its client ask for it under another number, and it would happen twice.
    fn answer_again(&self, permit: &Permit, request: &Request) -> Option<Body> {
        let executed = self.repeats.executed(&permit.pool, request)?;
        // A client that has not been told the epoch is told a later one.
        let epoch = executed.epoch.unwrap_or_else(|| self.admission.epoch());
        Some(codec::encode(&UpdateReply { epoch }))
    }
}

/// Refuses conditions that an operation can't have (daos-api §1.4).
fn check_conditions(given: Conditions, forbidden: Conditions, operation: &str) -> Result<(), Status> {
    if given.0 & forbidden.0 != 0 {
        let reason = format!("condition flags {:#x} make no sense in {operation}", given.0 & forbidden.0);
        return Err(refusal::invalid(reason));
    }
    let akey = Conditions::AKEY_INSERT.0 | Conditions::AKEY_UPDATE.0 | Conditions::AKEY_FETCH.0;
    if given.has(Conditions::PER_AKEY) && given.0 & akey != 0 {
        return Err(refusal::invalid("conditions stand at each akey and at the whole operation"));
    }
    Ok(())
}
