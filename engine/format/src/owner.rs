//! Who owns a store.

use weir_proto::{Rank, TargetIndex};

/// Longest system name, in bytes (DAOS: `DAOS_SYS_NAME_MAX` is 15; Kubernetes names have up to 63).
pub const SYSTEM_NAME_MAX: usize = 63;

/// Whose data a device holds. It is written at format and compared at open, so that a device that was mounted in the
/// wrong place is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the system, 1 to 63 bytes.
    pub system: String,
    /// The engine.
    pub rank: Rank,
    /// The target of the engine.
    pub target: TargetIndex,
}

impl core::fmt::Display for Owner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "system \"{}\", rank {}, target {}", self.system, self.rank, self.target)
    }
}
