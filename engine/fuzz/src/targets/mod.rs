//! What is fuzzed. Each target makes something nearly right of an input, uses it, and asserts what must hold.

mod address;
mod channel;
mod drive;
mod entries;
mod files;
mod flips;
mod header;
mod index;
mod log;
mod operations;
mod pieces;
mod requests;
mod superblock;
mod transaction;
mod wire;

/// A fuzzer.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Runs an input; panics when something doesn't hold.
    pub run: fn(&[u8]),
}

impl core::fmt::Debug for Target {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

/// All of them.
pub const ALL: [Target; 13] = [
    Target { name: "superblock", run: superblock::run },
    Target { name: "checkpoint", run: header::run },
    Target { name: "log", run: log::run },
    Target { name: "index", run: index::run },
    Target { name: "flips", run: flips::run },
    Target { name: "operations", run: operations::run },
    Target { name: "wire", run: wire::run },
    Target { name: "requests", run: requests::run },
    Target { name: "channel", run: channel::run },
    Target { name: "address", run: address::run },
    Target { name: "pieces", run: pieces::run },
    Target { name: "files", run: files::run },
    Target { name: "drive", run: drive::run },
];

/// The fuzzer of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
