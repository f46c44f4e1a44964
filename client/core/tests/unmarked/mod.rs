//! Devices of engines under test that never fail.

use weir_daemon::verdict::Verdict;

/// A device of which nothing is remembered.
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
