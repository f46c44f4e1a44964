//! On which core what is measured runs: each side of a pair on one of its own, a store where its disk is close.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which cores a client and its server run on, counted among those of this process.
#[derive(Clone, Copy, Debug)]
pub struct Seats {
    pub client: usize,
    pub server: usize,
}

impl Seats {
    /// Where all sit, unless it matters who does the work that is measured.
    pub const USUAL: Self = Self { client: 0, server: 1 };
    /// The server where a client usually is.
    pub const CROSSED: Self = Self { client: 1, server: 0 };
}

/// The cores that this process was started on.
fn allowed() -> Option<&'static CpuSet> {
    static ALLOWED: OnceLock<Option<CpuSet>> = OnceLock::new();
    ALLOWED.get_or_init(|| sched_getaffinity(None).ok()).as_ref()
}

/// How many cores the process was started on; 1 where that isn't known.
pub fn count() -> usize {
    allowed().map_or(1, |allowed| (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).count())
}

/// Binds the calling thread, and what it starts from now on, to the `at`th of the process' cores. Without as many it stays
/// where it is, and so it does where the system refuses: then figures are only less exact.
pub fn pin(at: usize) {
    let Some(allowed) = allowed() else { return };
    let Some(core) = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).nth(at) else { return };
    let mut only = CpuSet::new();
    only.set(core);
    let _ = sched_setaffinity(None, &only);
}

/// Lets the calling thread run on all of the process' cores again.
pub fn release() {
    if let Some(allowed) = allowed() {
        let _ = sched_setaffinity(None, allowed);
    }
}
