//! Devices of engines under test that never fail.

use weir_daemon::fault_record::FaultRecord;
use weir_daemon::last_seen::{LastSeen, LastSeenRecord};
use weir_daemon::tenants::TenantRecord;
use weir_pool::MapBackup;
use weir_proto::PoolId;
use weir_store::Mark;

/// A device of which nothing is remembered, and which needs no map backup.
pub struct Unmarked;

impl FaultRecord for Unmarked {
    fn read(&self) -> Option<String> {
        None
    }

    fn set(&self, reason: &str) -> std::io::Result<()> {
        Err(std::io::Error::other(reason.to_owned()))
    }

    fn clear(&self) -> std::io::Result<bool> {
        Ok(false)
    }
}

impl MapBackup for Unmarked {
    fn read(&self, _: PoolId) -> std::io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn keep(&self, pool: PoolId, _: &[u8]) -> std::io::Result<()> {
        Err(std::io::Error::other(format!("there is no map_backup for pool {pool}")))
    }

    fn forget(&self, _: PoolId) -> std::io::Result<()> {
        Ok(())
    }
}

impl TenantRecord for Unmarked {
    fn read(&self) -> std::io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn keep(&self, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

impl LastSeenRecord for Unmarked {
    fn read(&self) -> LastSeen {
        LastSeen::Nothing
    }

    fn keep(&self, _mark: &Mark) {}

    fn keep_last(&self, _mark: &Mark) {}

    fn give_up(&self) -> std::io::Result<()> {
        Ok(())
    }
}
