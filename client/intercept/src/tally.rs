//! Counts of calls on names by the way that they took, for the report.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::question::MOUNTS;

/// What a call on names is counted as.
#[derive(Clone, Copy)]
pub enum Way {
    /// Attributes, permissions or a link were read directly.
    Looked,
    /// A directory was listed directly.
    Listed,
    /// A name was added directly.
    Added,
    /// The kernel did it: permissions, a link out of the mount, a directory that isn't known by its path.
    Kernel,
    /// The kernel does all of this mount: it can't be reached, or doesn't let this process pass.
    Closed,
}

const WAYS: usize = 5;

static COUNTS: [[AtomicU64; WAYS]; MOUNTS] = [const { [const { AtomicU64::new(0) }; WAYS] }; MOUNTS];

/// Where the mounts are, once they are known.
static PATHS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();

/// Takes note of where mounts are.
pub fn name(paths: impl Iterator<Item = Vec<u8>>) {
    // They are the same each time.
    PATHS.get_or_init(|| paths.collect());
}

/// Counts a call.
pub fn count(mount: usize, way: Way) {
    if let Some(counts) = COUNTS.get(mount) {
        counts[way as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What was counted of each mount that has any. The counts begin again.
pub fn taken() -> Vec<String> {
    let paths = PATHS.get().map_or(&[][..], Vec::as_slice);
    let mounts = COUNTS.iter().zip(paths).map(|(counts, path)| {
        (counts.each_ref().map(|count| count.swap(0, Ordering::Relaxed)), String::from_utf8_lossy(path))
    });
    let used = mounts.filter(|(counts, _)| counts.iter().any(|count| *count > 0));
    used.map(|([looked, listed, added, kernel, closed], path)| {
        format!(
            "{looked} looked at, {listed} listed, {added} added directly; \
             {kernel} calls left to the kernel, {closed} because the mount or its engines can't be passed to: {path}"
        )
    })
    .collect()
}
