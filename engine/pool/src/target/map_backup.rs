//! The place for a pool map beside the device, used when the device of the service's own target can't take it any more.

use std::io;

use weir_proto::PoolId;

/// Keeps maps of pools apart from the target's device. The map has to say that the device is out of use, so the device can't be the
/// only place for it. A version that is given out and lost over a restart would be given out again, with other content.
pub trait MapBackup {
    /// The map that was kept last for a pool; `None`: there is none.
    ///
    /// # Errors
    /// When it can't be read.
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
