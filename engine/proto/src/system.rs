//! What engines tell each other of the system service, which keeps the list of pools.

use serde::{Deserialize, Serialize};

use crate::Rank;

/// What an engine knows of the system service. An engine whose target 0 can't be used doesn't answer with it: it can't tell what
/// it holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SystemState {
    /// Whether it keeps the list, alone or as one of several.
    pub holds: bool,
    /// Whether it answers for the service.
    pub leads: bool,
    /// Who does, as far as it knows.
    pub leader: Option<Rank>,
    /// Those that keep the list, as far as it knows.
    pub members: Vec<Rank>,
}

/// Leader of the system service → an engine that holds nothing of it: it is to begin a replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SystemJoin {
    /// The replicas that take part.
    pub members: Vec<Rank>,
}
