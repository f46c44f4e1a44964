//! Files in shared memory's folder with whatever content: what a fuzzer plays the processes with that make such.

use super::bell::{self, Ringer, Rung};
use super::channel;
use crate::FabricError;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Words of a bell's page that are read, by their numbers: what the owner does, its generation, the form of channels that it
/// takes, whether it has the lock.
pub const WORDS: [usize; 4] = [bell::STATE, bell::GENERATION, bell::CHANNELS, bell::LOCK];

/// What these words say of an owner that sleeps, that has moved, takes channels, has the lock.
pub const ASLEEP: u32 = bell::ASLEEP;
/// See [`ASLEEP`].
pub const MOVED: u32 = bell::MOVED;
/// See [`ASLEEP`].
pub const CHANNELS: u32 = channel::VERSION;
/// See [`ASLEEP`].
pub const LOCKED: u32 = bell::LOCKED;

/// The name in a port's file, if an endpoint can have it.
#[must_use]
pub fn holder(path: &Path) -> Option<String> {
    bell::holder(path)
}

/// What a process makes of another one's bell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bell {
    /// The generation of its owner's endpoint.
    pub generation: u32,
    /// Whether the owner takes channels.
    pub takes_channels: bool,
    /// Whether the owner was woken, when it was rung.
    pub woken: bool,
    /// Whether the owner has another bell by now, as the bell said when it was rung.
    pub moved: bool,
}

/// A bell of a process that can't be seen from here, removed when it is dropped.
#[derive(Debug)]
pub struct Foreign {
    name: String,
    path: PathBuf,
}

impl Foreign {
    /// Makes its file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn new(content: &[u8]) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("weir-{}-{process}-{number:016x}", bell::namespace() + 1);
        let path = bell::bell_path(&name);
        fs::write(&path, content)?;
        Ok(Self { name, path })
    }

    /// Whether its owner counts as dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        bell::is_dead(&self.name)
    }

    /// Goes to the bell and rings.
    ///
    /// # Errors
    /// When that is no bell.
    pub fn ring(&self) -> Result<Bell, FabricError> {
        let ringer = Ringer::new(&self.name)?;
        let (generation, takes_channels) = (ringer.generation(), ringer.takes_channels());
        let rung = ringer.ring();
        let moved = ringer.has_moved();
        debug_assert_eq!(moved, rung == Rung::Moved, "{rung:?}");
        Ok(Bell { generation, takes_channels, woken: rung == Rung::Yes, moved })
    }

    /// What is in the file by now.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // Somebody may sweep at the same time.
        let _ = fs::remove_file(&self.path);
    }
}
