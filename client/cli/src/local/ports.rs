//! The ports of a system's engines on this machine.

use std::net::{Ipv4Addr, TcpListener};

use super::settings::Settings;
use crate::error::CliError;

/// First and last port that is tried for engines: above those of well-known services and below the range that the
/// kernel hands out to outgoing connections (32768 and up), so that none of these takes one.
const PORTS: std::ops::Range<u16> = 20_100..32_000;

impl Settings {
    /// Gives every engine ports that are free now. Those it has are kept while they are free, so that a system that
    /// starts again is found at its old addresses.
    ///
    /// # Errors
    /// When no ports are free.
    pub fn assign_ports(&mut self) -> Result<(), CliError> {
        let length = self.ports_of_engine();
        let kept = self.ports.len() == self.engines as usize
            && self.ports.iter().all(|first| block_is_free(*first, length));
        if kept {
            return Ok(());
        }
        self.ports.clear();
        self.find_ports(length)
    }

    /// Adds an engine to a system that runs, with ports of its own.
    ///
    /// # Errors
    /// When there are too many engines then, or no ports are free.
    pub fn add_engine(&mut self) -> Result<(), CliError> {
        self.engines += 1;
        self.check()?;
        self.find_ports(self.ports_of_engine())
    }

    fn ports_of_engine(&self) -> u16 {
        let ports = self.probes.len() + self.targets as usize + 2;
        u16::try_from(ports).expect("invariant: settings bound targets and probes")
    }

    /// Finds ports for the engines that have none.
    fn find_ports(&mut self, length: u16) -> Result<(), CliError> {
        // Systems that start at the same time begin their search at different places.
        let offset = u16::try_from(std::process::id() % 500).expect("invariant: below 500") * 20;
        let mut next = PORTS.start + offset;
        let mut tried = 0_u32;
        while self.ports.len() < self.engines as usize {
            if tried > 2 * u32::from(PORTS.end - PORTS.start) {
                return Err(CliError::Dev(format!(
                    "no {length} free ports in a row between {} and {}",
                    PORTS.start, PORTS.end
                )));
            }
            if next.saturating_add(length) >= PORTS.end {
                next = PORTS.start;
            }
            let free = block_is_free(next, length);
            if free && !self.ports.iter().any(|first| first.abs_diff(next) < length) {
                self.ports.push(next);
            }
            next += length;
            tried += u32::from(length);
        }
        Ok(())
    }
}

fn block_is_free(first: u16, length: u16) -> bool {
    (first..first.saturating_add(length)).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}
