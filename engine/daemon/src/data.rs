//! The data directory: one file for each target.
//!
//! At first start every file is made and formatted under a temporary name and then renamed, so that a file under its
//! final name is always a store. A directory that holds something else, or other targets than configured, is refused.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use weir_media::file::FileDevice;
use weir_media::{Device, MediaError};
use weir_proto::{Rank, TargetIndex};
use weir_runtime::Handle;
use weir_runtime::real::Executor;
use weir_store::{FormatError, FormatOptions, Owner, Store};

/// Ending of a file that is being made.
const UNFINISHED: &str = "new";

/// Longest wait for an earlier process to let go of a file: transfers of a healthy device end in milliseconds.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// How often it is tried.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// What file systems and volumes bring along.
const ALLOWED: [&str; 2] = ["lost+found", ".snapshot"];

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The directory.
    #[error(
        "data directory {path} can't be used: {source}; check that it exists and belongs to the engine's user"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Something else is in it.
    #[error(
        "data directory {path} holds no targets but \"{found}\"; it is left untouched. Give the engine an empty directory or the one with its data"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// An entry.
        found: String,
    },
    /// A target is missing beside others.
    #[error(
        "{missing} is missing from data directory {path}, which holds other targets; an empty one is not put in its place, since data would be lost silently. Restore the file, or erase the directory if its data is not needed"
    )]
    Missing {
        /// The directory.
        path: PathBuf,
        /// Name of the file.
        missing: String,
    },
    /// More targets than configured.
    #[error(
        "data directory {path} holds {found}, but `targets` is {targets}; data would be lost silently. Set `targets` to what the directory was made for"
    )]
    Extra {
        /// The directory.
        path: PathBuf,
        /// Name of a file too many.
        found: String,
        /// Targets configured.
        targets: u32,
    },
    /// A file can't be made.
    #[error("{0}")]
    Media(#[from] MediaError),
    /// A store can't be made.
    #[error("{0}")]
    Format(#[from] FormatError),
}

/// What the targets' files are made for.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The directory.
    pub folder: PathBuf,
    /// Name of the system.
    pub system: String,
    /// The engine.
    pub rank: Rank,
    /// Number of targets.
    pub targets: u32,
    /// Bytes of a file when it is made.
    pub size: u64,
}

impl Layout {
    /// The file of a target.
    #[must_use]
    pub fn path(&self, target: u32) -> PathBuf {
        self.folder.join(name(target))
    }

    fn unfinished(&self, target: u32) -> PathBuf {
        self.folder.join(format!("{}.{UNFINISHED}", name(target)))
    }

    /// Whose data a target holds.
    #[must_use]
    pub fn owner(&self, target: u32) -> Owner {
        Owner { system: self.system.clone(), rank: self.rank, target: TargetIndex(target) }
    }

    /// Checks the directory, and makes the targets' files at first start.
    ///
    /// # Errors
    /// When the directory holds something else, or files can't be made.
    pub fn prepare(&self) -> Result<(), DataError> {
        let wrong = |source| DataError::Directory { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(wrong)?;
        let names = self.names().map_err(wrong)?;
        let targets: Vec<u32> = names.iter().filter_map(|name| target_of(name)).collect();
        if let Some(extra) = targets.iter().find(|target| **target >= self.targets) {
            let found = name(*extra);
            return Err(DataError::Extra { path: self.folder.clone(), found, targets: self.targets });
        }
        if targets.is_empty() {
            self.refuse_foreign(&names)?;
            for target in 0..self.targets {
                self.make(target)?;
            }
        }
        self.finish().map_err(wrong)?;
        match (0..self.targets).find(|target| !self.path(*target).exists()) {
            Some(target) => Err(DataError::Missing { path: self.folder.clone(), missing: name(target) }),
            None => Ok(()),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn refuse_foreign(&self, names: &[String]) -> Result<(), DataError> {
        let own = |entry: &str| {
            let unfinished = entry.strip_suffix(UNFINISHED).and_then(|entry| entry.strip_suffix('.'));
            ALLOWED.contains(&entry) || unfinished.is_some_and(|entry| target_of(entry).is_some())
        };
        match names.iter().find(|entry| !own(entry)) {
            Some(found) => Err(DataError::Foreign { path: self.folder.clone(), found: found.clone() }),
            None => Ok(()),
        }
    }

    /// Makes a target's file under its temporary name. What an earlier attempt left there never held data.
    fn make(&self, target: u32) -> Result<(), DataError> {
        let path = self.unfinished(target);
        let wrong = |source| DataError::Directory { path: self.folder.clone(), source };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong(error)),
            _ => {}
        }
        let executor = Executor::new().map_err(wrong)?;
        let rt = executor.handle();
        let device: Rc<dyn Device> = Rc::new(FileDevice::create(&rt, &path, self.size)?);
        let options = FormatOptions { owner: self.owner(target), log_bytes: None };
        executor.block_on(Store::format(&rt, &device, &options))?;
        tracing::info!(path = %self.path(target).display(), size = self.size, "target formatted");
        Ok(())
    }

    /// Gives finished files their names.
    fn finish(&self) -> io::Result<()> {
        for target in 0..self.targets {
            let (from, to) = (self.unfinished(target), self.path(target));
            if from.exists() && !to.exists() {
                fs::rename(from, to)?;
            }
        }
        fs::File::open(&self.folder)?.sync_all()
    }
}

fn name(target: u32) -> String {
    format!("target-{target}.weir")
}

fn target_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("target-")?.strip_suffix(".weir")?;
    number.parse().ok()
}

/// Opens the file of a target. Waits for a process that is on its way out: what was killed holds its files until the
/// kernel has ended its transfers.
///
/// # Errors
/// When it can't be opened or another process goes on using it.
pub async fn open(rt: &Handle, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    let until = rt.now() + BUSY_LIMIT;
    loop {
        match FileDevice::open(rt, path) {
            Err(MediaError::Busy { .. }) if rt.now() < until => rt.sleep(BUSY_PAUSE).await,
            opened => return Ok(Rc::new(opened?)),
        }
    }
}
