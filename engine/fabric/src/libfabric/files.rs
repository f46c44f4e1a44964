//! Files in the folder of shared memory with any content. With these a fuzzer simulates the processes that make such
//! files.

use super::channel;
use super::doorbell::{self, PeerDoorbell, RingOutcome};
use crate::FabricError;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Words of a doorbell's page that are read, by their numbers: what the owner does, its generation, the form of channels that it
/// takes, whether it has the lock.
pub const WORDS: [usize; 4] = [doorbell::STATE, doorbell::GENERATION, doorbell::CHANNELS, doorbell::LOCK];

/// What these words say of an owner that sleeps, that has moved, takes channels, has the lock.
pub const ASLEEP: u32 = doorbell::ASLEEP;
/// See [`ASLEEP`].
pub const MOVED: u32 = doorbell::MOVED;
/// See [`ASLEEP`].
pub const CHANNELS: u32 = channel::VERSION;
/// See [`ASLEEP`].
pub const LOCKED: u32 = doorbell::LOCKED;

/// The name in a port's file, if an endpoint can have it.
#[must_use]
pub fn holder(path: &Path) -> Option<String> {
    doorbell::holder(path)
}

/// What a process makes of another one's doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doorbell {
    /// The generation of its owner's endpoint.
    pub generation: u32,
    /// Whether the owner takes channels.
    pub takes_channels: bool,
    /// Whether the owner was woken, when it was rung.
    pub woken: bool,
    /// Whether the owner has another doorbell by now, as the doorbell said when it was rung.
    pub moved: bool,
}

/// A doorbell of a process that can't be seen from here, removed when it is dropped.
#[derive(Debug)]
pub struct ForeignDoorbell {
    name: String,
    path: PathBuf,
}

impl ForeignDoorbell {
    /// Makes its file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn new(content: &[u8]) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("weir-{}-{process}-{number:016x}", doorbell::namespace() + 1);
        let path = doorbell::page_path(&name);
        fs::write(&path, content)?;
        Ok(Self { name, path })
    }

    /// Whether its owner counts as dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        doorbell::is_dead(&self.name)
    }

    /// Goes to the doorbell and rings.
    ///
    /// # Errors
    /// When that is no doorbell.
    pub fn ring(&self) -> Result<Doorbell, FabricError> {
        let peer_doorbell = PeerDoorbell::new(&self.name)?;
        let (generation, takes_channels) = (peer_doorbell.generation(), peer_doorbell.takes_channels());
        let rung = peer_doorbell.ring();
        let moved = peer_doorbell.has_moved();
        debug_assert_eq!(moved, rung == RingOutcome::Moved, "{rung:?}");
        Ok(Doorbell { generation, takes_channels, woken: rung == RingOutcome::Yes, moved })
    }

    /// What is in the file by now.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path)
    }
}

impl Drop for ForeignDoorbell {
    fn drop(&mut self) {
        // Another process may sweep at the same time.
        let _ = fs::remove_file(&self.path);
    }
}
