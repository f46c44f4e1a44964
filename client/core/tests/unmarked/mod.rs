//! Devices of engines under test that never fail.

use weir_daemon::verdict::Verdict;
use weir_daemon::witness::{Seen, Witness};
use weir_pool::MapShelter;
use weir_proto::PoolId;
use weir_store::Mark;

/// A device of which nothing is remembered, and which needs no shelter.
pub struct Unmarked;

impl Verdict for Unmarked {
    fn read(&self) -> Option<String> {
        None
    }

    fn pass(&self, reason: &str) -> std::io::Result<()> {
        Err(std::io::Error::other(reason.to_owned()))
    }

    fn lift(&self) -> std::io::Result<bool> {
        Ok(false)
    }
}

impl MapShelter for Unmarked {
    fn read(&self, _: PoolId) -> std::io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn keep(&self, pool: PoolId, _: &[u8]) -> std::io::Result<()> {
        Err(std::io::Error::other(format!("there is no shelter for pool {pool}")))
    }

    fn forget(&self, _: PoolId) -> std::io::Result<()> {
        Ok(())
    }
}

impl Witness for Unmarked {
    fn read(&self) -> Seen {
        Seen::Nothing
    }

    fn keep(&self, _mark: &Mark) {}

    fn keep_last(&self, _mark: &Mark) {}

    fn give_up(&self) -> std::io::Result<()> {
        Ok(())
    }
}
