//! What an administrator has set of a pool since it was made.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_proto::codec;

use super::{Read, Stored, read_as};

/// Settings of a pool. Its own form of version 1: it is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PoolSettings {
    /// Seconds for which a target is out of the map before others take its places.
    pub(crate) rebuild_delay: u32,
}

impl Default for PoolSettings {
    /// Ten minutes: longer than a node takes to start again, since all that a target has moves then.
    fn default() -> Self {
        Self { rebuild_delay: 600 }
    }
}

impl PoolSettings {
    /// How long a target is out of the map before others take its places.
    pub(crate) const fn rebuild_delay(self) -> Duration {
        Duration::from_secs(self.rebuild_delay as u64)
    }
}

impl Stored for PoolSettings {
    const WHAT: &'static str = "what was set of it";
    const VERSION: u8 = 1;

    fn body(&self) -> Vec<u8> {
        codec::encode(self)
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_as::<Self, _>(body),
            _ => Read::Unknown,
        }
    }
}
