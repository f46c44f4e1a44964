//! What scrubbing found.

use crate::format::ScrubPosition;
use crate::index::fault::Location;
use crate::state::core::{Core, add};
use core::cell::Cell;
use core::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::VecDeque;
use weir_proto::PoolId;
use weir_proto::history::VersionName;

/// Most findings that are kept one by one, so that a device that rots everywhere doesn't fill the memory. All are
/// counted up to [`KNOWN_MAX`].
const FOUND_MAX: usize = 100;

/// Most places that are remembered as known, so that the next pass doesn't count them again.
const KNOWN_MAX: usize = 100_000;

/// Most versions that wait for somebody who may repair them. What the scrubber finds beyond that counts as rotten at once, and is
/// found again by its next pass.
const AWAITED_MAX: usize = 10_000;

/// Something on the device that isn't what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    /// Where, and what should be there.
    pub location: Location,
    /// Bytes concerned.
    pub len: u64,
    /// The pool whose data it is; `None` for what belongs to the target as a whole.
    pub pool: Option<PoolId>,
    /// Container, object, keys and epoch, for data.
    pub subject: Option<String>,
    /// What is wrong.
    pub reason: String,
    /// It is whole in memory, or in another copy, from where it is written anew: a superblock at once, all else with the next
    /// checkpoint.
    pub renewed: bool,
}

impl core::fmt::Display for Rot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({} bytes)", self.location, self.len)?;
        if let Some(subject) = &self.subject {
            write!(f, ", {subject}")?;
        }
        write!(f, ": {}", self.reason)?;
        if self.renewed {
            write!(f, "; it is whole elsewhere, from where it is written anew")
        } else {
            Ok(())
        }
    }
}

/// Figures of the scrubber since open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Passes that came to their end.
    pub passes: u64,
    /// Wall time of the end of the last one, nanoseconds since 1970; 0 before it.
    pub last_ns: u64,
    /// Bytes read and compared.
    pub bytes: u64,
    /// Places found rotten that stay so, by pool; `None` for what belongs to the target as a whole.
    pub rotten: BTreeMap<Option<PoolId>, u64>,
    /// Places found rotten that are written anew.
    pub renewed: u64,
    /// The first of both kinds. What an open mends, or goes on without, is among them: this is all that is known to be damaged.
    pub found: Vec<Rot>,
}

/// A version that the scrubber has found damaged, which another target may have.
#[derive(Clone, Debug)]
pub struct RottenVersion {
    /// The pool.
    pub pool: PoolId,
    /// The version.
    pub version: VersionName,
    /// Where it is damaged.
    pub(crate) places: Vec<Rot>,
}

/// Keeps a damaged version for who may repair it. Gives its places back when nobody does.
pub(crate) fn hand_over(core: &Core, found: RottenVersion) -> Result<(), Vec<Rot>> {
    let mut awaited = core.scrub.awaited.borrow_mut();
    match &mut *awaited {
        Some(awaited) if awaited.len() < AWAITED_MAX => {
            let version = &found.version;
            tracing::warn!(pool = %found.pool, %version, "scrub: the data of a version does not match its checksums; it is repaired if another target has it");
            awaited.push_back(found);
            Ok(())
        }
        _ => Err(found.places),
    }
}

/// Counts, keeps and logs a place: once, as long as it stays as it is. What a device refuses that is out of use says nothing of
/// the place.
pub(crate) fn report(core: &Core, rot: Rot) {
    if core.device.fault().is_some() {
        return;
    }
    {
        let mut known = core.scrub.known.borrow_mut();
        if rot.renewed {
            // Something else stands there soon.
            known.remove(&rot.location.offset);
        } else if known.len() >= KNOWN_MAX || !known.insert(rot.location.offset) {
            return;
        }
    }
    tracing::error!(
        device = rot.location.device,
        offset = rot.location.offset,
        bytes = rot.len,
        pool = rot.pool.map(|pool| pool.to_string()),
        "scrub: {rot}; it is never returned as data. Replace the device if it happens again"
    );
    add(&core.counters.checksum_errors, 1);
    let mut report = core.scrub.report.borrow_mut();
    if rot.renewed {
        report.renewed += 1;
    } else {
        *report.rotten.entry(rot.pool).or_default() += 1;
    }
    if report.found.len() < FOUND_MAX {
        report.found.push(rot);
    }
}

/// What all passes found.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    pub(crate) report: RefCell<ScrubReport>,
    /// Places that were reported. Apart from the report, of which every scrape of the metrics takes a copy.
    known: RefCell<BTreeSet<u64>>,
    /// Where it is; each checkpoint stores it.
    position: Cell<ScrubPosition>,
    /// Damaged versions for who may repair them; `None`: nobody does.
    awaited: RefCell<Option<VecDeque<RottenVersion>>>,
}

impl Scrub {
    /// The next damaged version. Whoever has asked once is given all that is found from then on.
    pub(crate) fn take_rotten(&self) -> Option<RottenVersion> {
        self.awaited.borrow_mut().get_or_insert_default().pop_front()
    }

    pub(crate) fn position(&self) -> ScrubPosition {
        self.position.get()
    }

    pub(crate) fn set_position(&self, position: ScrubPosition) {
        self.position.set(position);
    }
}
