//! Where the map of a pool is kept when the device of the service's own target can't take it any more.

use std::io;

use weir_proto::PoolId;

/// Keeps maps of pools apart from the target's device, which may be out of use: that it is, is what the map has to say. A
/// version that is given out and lost over a restart would be given out again, with other content.
pub trait MapShelter {
    /// What was kept last for a pool; `None`: nothing.
    ///
    /// # Errors
    /// When it can't be told.
    fn read(&self, pool: PoolId) -> io::Result<Option<Vec<u8>>>;

    /// Keeps the map of a pool in place of an earlier one.
    ///
    /// # Errors
    /// When it can't be made durable.
    fn keep(&self, pool: PoolId, map: &[u8]) -> io::Result<()>;

    /// Forgets what is kept for a pool, if anything is.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn forget(&self, pool: PoolId) -> io::Result<()>;
}
