//! Looking at a store from outside, offline: what it is, whether all of it is sound, what is in it.
//!
//! Nothing is written. Nothing on the device is believed: every length, place and number is checked before it is used,
//! a fault is recorded with its place, and the search goes on behind it. What a fault makes unreachable is not looked
//! at, so that a repaired fault may uncover others.

mod blocks;
mod check;
mod data;
mod dump;
mod entries;
mod finding;
mod log;
mod overlay;
mod report;
#[cfg(test)]
pub(crate) mod tests;
mod together;
mod walk;

pub(crate) use entries::{Entries, Met};
pub(crate) use finding::Findings;
pub(crate) use log::Found;
pub(crate) use walk::Lost;

pub use dump::{Dumped, Field, Filter, Line, Part};
pub use finding::{Finding, Severity};
pub use report::{
    BlockCount, CheckpointReport, ContainerReport, CopyReport, DataReport, Depth, IndexReport, LogReport,
    PoolReport, Region, Report,
};

use std::rc::Rc;
use weir_format::{
    CHECKPOINT_BLOCKS, Checkpoint, FEATURES_KNOWN, Layout, Superblock, SuperblockFault, VERSION_NEWEST,
    VERSION_OLDEST, read_superblock,
};
use weir_media::{BLOCK, Device, DmaBuf, MediaError};
use weir_store::offline::{READS_MAX, find_copy};

/// A device can't be inspected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InspectError {
    /// There is no store.
    #[error("{device} holds no store: {reason}")]
    NoStore {
        /// Name of the device.
        device: String,
        /// What is there instead.
        reason: String,
    },
    /// Neither superblock can be read.
    #[error(
        "{device}: both superblocks are unreadable, so that its regions are unknown: the one at byte 0: {first}; its copy at byte {copy}: {second}"
    )]
    Superblocks {
        /// Name of the device.
        device: String,
        /// What is wrong with the first.
        first: String,
        /// Offset of the copy.
        copy: u64,
        /// What is wrong with the copy.
        second: String,
    },
    /// Written by another release.
    #[error(
        "{device} has format version {found} and features {features:#x}, this release reads versions {oldest} to {newest} and features {known:#x}. Use the release that wrote it, or a newer one"
    )]
    Version {
        /// Name of the device.
        device: String,
        /// Version on the device.
        found: u32,
        /// Features on the device.
        features: u64,
        /// Oldest version that this build reads.
        oldest: u32,
        /// Newest version that this build reads.
        newest: u32,
        /// Features that this build knows.
        known: u64,
    },
    /// What a dump was to be of isn't found.
    #[error("no {missing} is found on {device}; `weir store inspect` shows what there is")]
    NotThere {
        /// Name of the device.
        device: String,
        /// What was asked for.
        missing: String,
    },
    /// What a dump was to be of isn't found, and may be where something is damaged.
    #[error(
        "what is left of {device} does not hold {missing}, and {damages} places could not be read or are damaged"
    )]
    NotLeft {
        /// Name of the device.
        device: String,
        /// What was asked for.
        missing: String,
        /// How many places are damaged.
        damages: u64,
        /// These places; not more than a report has.
        findings: Vec<Finding>,
    },
    /// The bytes of a dump are behind the device's end.
    #[error("there is no byte {offset}: {device} has only {size} bytes")]
    Beyond {
        /// Name of the device.
        device: String,
        /// First byte of the dump.
        offset: u64,
        /// Bytes of the device.
        size: u64,
    },
}

/// A store on a device, not opened.
pub struct Inspector {
    device: Rc<dyn Device>,
    superblock: Superblock,
    copies: Vec<CopyReport>,
    headers: Vec<CopyReport>,
    checkpoint: Option<Checkpoint>,
    findings: Findings,
    /// Most bytes of memory for what the log changes.
    overlay_bytes: usize,
}

impl core::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inspector").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Findings {
    /// Takes in what another look has found, but for what is here already: looks at several ranges of keys meet the same nodes.
    fn take_in(&mut self, other: Self) {
        // Of those that its list had no room for it isn't known what they were.
        let listed = |severity| other.list.iter().filter(|one| one.severity == severity).count() as u64;
        self.damages += other.damages - listed(Severity::Damage);
        self.notes += other.notes - listed(Severity::Note);
        for finding in other.list {
            if !self.list.contains(&finding) {
                self.add(finding);
            }
        }
    }
}

/// Reads whole blocks, several times where the device refuses it: what can be read the next time isn't lost. An error in words.
pub(crate) async fn read(device: &Rc<dyn Device>, offset: u64, len: usize) -> Result<DmaBuf, String> {
    let mut left = READS_MAX;
    loop {
        left -= 1;
        match device.read(offset, DmaBuf::new(len)).await {
            Ok(buffer) => return Ok(buffer),
            Err(MediaError::Io { .. }) if left > 0 => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// What is wrong with a block that should be a superblock.
fn describe_fault(fault: &SuperblockFault) -> String {
    match fault {
        SuperblockFault::Blank => "it is all zero".to_owned(),
        SuperblockFault::Unfinished => "a format was begun and not finished".to_owned(),
        SuperblockFault::UnfinishedCopy(from) => {
            format!("a copy of store {from} to it was begun and not finished")
        }
        SuperblockFault::Foreign(found) => format!("it holds something else ({found})"),
        SuperblockFault::Damaged(reason) => (*reason).to_owned(),
    }
}

/// Whether a block that isn't a superblock may have been one.
fn was_superblock(found: &Result<Superblock, Option<SuperblockFault>>) -> bool {
    matches!(found, Ok(_) | Err(None | Some(SuperblockFault::Damaged(_))))
}

async fn superblock_at(
    device: &Rc<dyn Device>,
    offset: u64,
) -> (Result<Superblock, Option<SuperblockFault>>, String) {
    match read(device, offset, BLOCK).await {
        Ok(block) => match read_superblock(&block) {
            Ok(superblock) => (Ok(superblock), String::new()),
            Err(fault) => {
                let reason = describe_fault(&fault);
                (Err(Some(fault)), reason)
            }
        },
        Err(reason) => (Err(None), reason),
    }
}

impl Inspector {
    /// Reads superblocks and checkpoint headers of a device.
    ///
    /// # Errors
    /// When there is no store, or none whose format is known. Any other fault is only recorded.
    pub async fn open(device: Rc<dyn Device>) -> Result<Self, InspectError> {
        let name = || device.name().to_owned();
        let (first, first_reason) = superblock_at(&device, 0).await;
        let (copy_offset, remedy) = match &first {
            // A device that was enlarged has its copy where it was.
            Ok(superblock) => (Layout::copy_offset(superblock.layout.size.max(BLOCK as u64)), ""),
            Err(_) => find_copy(&device).await,
        };
        let (second, second_reason) = superblock_at(&device, copy_offset).await;
        let copies = vec![
            CopyReport { what: "superblock", offset: 0, fault: first.is_err().then(|| first_reason.clone()) },
            CopyReport {
                what: "copy of the superblock",
                offset: copy_offset,
                fault: second.is_err().then(|| second_reason.clone()),
            },
        ];
        let (maybe, unfinished) = (
            was_superblock(&first) || was_superblock(&second),
            matches!(first, Err(Some(SuperblockFault::Unfinished | SuperblockFault::UnfinishedCopy(_)))),
        );
        let superblock = match (first, second) {
            (_, Ok(_)) if unfinished => {
                return Err(InspectError::NoStore { device: name(), reason: first_reason });
            }
            (Ok(superblock), _) | (Err(_), Ok(superblock)) => superblock,
            (Err(_), Err(_)) if maybe && !unfinished => {
                let (first, second) = (first_reason, second_reason + remedy);
                return Err(InspectError::Superblocks { device: name(), first, copy: copy_offset, second });
            }
            (Err(_), Err(_)) => {
                return Err(InspectError::NoStore { device: name(), reason: first_reason });
            }
        };
        let (found, features) = (superblock.version, superblock.features);
        if !(VERSION_OLDEST..=VERSION_NEWEST).contains(&found) || features & !FEATURES_KNOWN != 0 {
            let (oldest, newest, known) = (VERSION_OLDEST, VERSION_NEWEST, FEATURES_KNOWN);
            return Err(InspectError::Version { device: name(), found, features, oldest, newest, known });
        }
        let mut inspector = Self {
            device,
            superblock,
            copies,
            headers: Vec::new(),
            checkpoint: None,
            findings: Findings::default(),
            overlay_bytes: overlay::BYTES_MAX,
        };
        inspector.judge_superblocks();
        inspector.read_headers().await;
        Ok(inspector)
    }

    fn judge_superblocks(&mut self) {
        for copy in &self.copies {
            if let Some(fault) = &copy.fault {
                self.findings.damage(copy.what, copy.offset, BLOCK as u64, fault.clone());
            }
        }
        let (size, formatted) = (self.device.size(), self.superblock.layout.size);
        if size < formatted {
            let reason =
                format!("the device has {size} bytes, but was formatted with {formatted}: it was cut");
            self.findings.damage("device", size, formatted - size, reason);
        }
    }

    async fn read_headers(&mut self) {
        for at in 0..CHECKPOINT_BLOCKS {
            let offset = (1 + at) * BLOCK as u64;
            let found = match read(&self.device, offset, BLOCK).await {
                Ok(block) => Checkpoint::decode(&block, self.superblock.id)
                    .map_err(|malformed| (malformed.0.to_owned(), block.iter().all(|byte| *byte == 0))),
                Err(reason) => Err((reason, false)),
            };
            let fault = match found {
                Ok(header) => {
                    if self.checkpoint.is_none_or(|newest| newest.generation < header.generation) {
                        self.checkpoint = Some(header);
                    }
                    // An open takes either all the same.
                    if header.generation % 2 != at / 2 {
                        Some("its generation belongs to the other slot".to_owned())
                    } else if header.is_nearly_spent() {
                        Some("one of its counters comes to its end: nobody opens the store then".to_owned())
                    } else {
                        None
                    }
                }
                Err((_, true)) => Some("it was never written".to_owned()),
                Err((reason, false)) => Some(reason),
            };
            self.headers.push(CopyReport { what: "checkpoint header", offset, fault });
        }
        self.judge_headers();
    }

    /// A slot whose copies are both bad may be one that a crash tore; a single bad copy of the newest generation isn't
    /// explained by a crash before it only when the header counts as stable, which can't be seen from outside.
    fn judge_headers(&mut self) {
        for header in &self.headers {
            let Some(fault) = &header.fault else { continue };
            if self.checkpoint.is_some_and(|newest| newest.generation > 1) || fault != "it was never written"
            {
                self.findings.note(header.what, header.offset, BLOCK as u64, fault.clone());
            }
        }
        if self.checkpoint.is_none() {
            let reason = "no copy of any checkpoint header is intact: the index can't be found".to_owned();
            let len = CHECKPOINT_BLOCKS * BLOCK as u64;
            self.findings.damage("checkpoint header", BLOCK as u64, len, reason);
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    pub(crate) const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) const fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref()
    }

    pub(crate) const fn device(&self) -> &Rc<dyn Device> {
        &self.device
    }

    /// What was found of superblocks and checkpoint headers.
    pub(crate) const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Where one of these stands that could be read.
    pub(crate) fn readable(&self) -> Option<u64> {
        let mut copies = self.copies.iter().chain(&self.headers);
        copies.find(|copy| copy.fault.is_none()).map(|copy| copy.offset)
    }

    /// Blocks of the data region that the device really has: what a superblock claims beyond it isn't believed.
    pub(crate) fn data_blocks(&self) -> u64 {
        let layout = self.layout();
        let there = self.device.size().saturating_sub(layout.data_offset) / BLOCK as u64;
        layout.data_blocks.min(there)
    }
}
