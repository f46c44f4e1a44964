//! Enumeration of keys, a page at a time.

use serde::{Deserialize, Serialize};
use weir_proto::object::Listed;

/// Where an enumeration stands. Starts at [`Anchor::START`]; survives being stored and moved between contexts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Anchor {
    /// Shard that is being listed.
    pub(crate) shard: u32,
    /// The engine's continuation in that shard.
    pub(crate) inner: Vec<u8>,
    /// Whether everything has been listed.
    pub(crate) ended: bool,
}

impl Anchor {
    /// Before the first key.
    pub const START: Self = Self { shard: 0, inner: Vec::new(), ended: false };

    /// Whether everything has been listed.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        self.ended
    }
}

/// A page of an enumeration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// Entries, in the order of their keys within each shard. May be empty although more follows.
    pub entries: Vec<Listed>,
    /// Where the next page starts.
    pub next: Anchor,
}
