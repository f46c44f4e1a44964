//! Identifies a process, also across a restart of the process that started it: by its process id together with the
//! start time that the kernel gives it, since ids are used again.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One process for its whole life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Process id.
    pub pid: i32,
    /// Start of the process in clock ticks since boot (field 22 of `/proc/<pid>/stat`).
    pub start_ticks: u64,
}

/// State and start time out of a line of `/proc/<pid>/stat`. The command's name may hold spaces and parentheses, so
/// fields count from the last closing one.
fn parse_stat(line: &str) -> Option<(char, u64)> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 3 is the state, so field 22 is the 19th after it.
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

fn read_stat(pid: i32) -> io::Result<(char, u64)> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&line)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {line}")))
}

impl ProcessRecord {
    /// The process that has this id now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        Ok(Self { pid, start_ticks: read_stat(pid)?.1 })
    }

    /// The calling process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Whether the process still runs. One that has ended and waits to be reaped does not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        matches!(read_stat(self.pid), Ok((state, start)) if start == self.start_ticks && !matches!(state, 'Z' | 'X'))
    }

    /// Sends a signal. True when the process was there to get it.
    ///
    /// # Errors
    /// When the kernel refuses, e.g. for lack of permission.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
            return Ok(false);
        };
        // A descriptor pins the process: between the check and the signal its id cannot pass to another.
        let descriptor = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !self.is_alive() {
            return Ok(false);
        }
        match rustix::process::pidfd_send_signal(&descriptor, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has ended, however long that takes. Works for processes of other parents.
    ///
    /// # Errors
    /// When the kernel offers no descriptor for the process.
    pub async fn ended(&self) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
            return Ok(());
        };
        let descriptor = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // The id may have passed to another process before it had a descriptor.
        if self.is_alive() {
            #[expect(
                deprecated,
                reason = "what it can't check holds: an owned descriptor stays the same until it is dropped"
            )]
            let watched = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
            let _guard = watched.readable().await?;
        }
        Ok(())
    }

    /// Waits until the process has ended; false when it still runs after `limit`. Works for processes of other parents.
    ///
    /// # Errors
    /// When the kernel offers no descriptor for the process.
    pub async fn wait_gone(&self, limit: Duration) -> io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
            return Ok(true);
        };
        let descriptor = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        if !self.is_alive() {
            return Ok(true);
        }
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let watch = move || {
            let mut ends = [PollFd::new(&descriptor, PollFlags::IN)];
            rustix::event::poll(&mut ends, Some(&limit))
        };
        let ended = tokio::task::spawn_blocking(watch).await.map_err(io::Error::other)? == Ok(1);
        Ok(ended || !self.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_spaces_and_parentheses_does_not_shift_fields() {
        let line = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 18446744073709551615";
        assert_eq!(parse_stat(line), Some(('S', 4711)));
        assert_eq!(parse_stat("7 (a S 1"), None);
    }

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_id() {
        let own = ProcessRecord::current().expect("/proc is there");
        assert!(own.is_alive());
        let other = ProcessRecord { start_ticks: own.start_ticks + 1, ..own };
        assert!(!other.is_alive());
        assert!(!other.signal(Signal::KILL).expect("nobody to signal"));
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_seen_without_being_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep exists");
        let record = ProcessRecord::of(child.id()).expect("it runs");
        assert!(!record.wait_gone(Duration::from_millis(10)).await.expect("pidfd"));
        assert!(record.signal(Signal::KILL).expect("own child"));
        record.ended().await.expect("seen");
        assert!(record.wait_gone(Duration::from_secs(5)).await.expect("pidfd"));
        assert!(!record.is_alive());
        child.wait().expect("reap");
    }
}
