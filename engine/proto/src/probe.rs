//! Where an engine is measured.

use serde::{Deserialize, Serialize};

/// An endpoint that answers measurements by a fabric provider.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProbeListener {
    /// The provider.
    pub provider: String,
    /// Its port, at the engine's host.
    pub port: u16,
}
