//! The data directory: one file for each target, or one link to its device.
//!
//! At first start every file is made and formatted under a temporary name and then renamed, so that a file under its
//! final name is always a store. Devices are formatted in the same step and then linked; one that carries this very target
//! is linked as it is. A directory that holds something else, or other targets than configured, is refused.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use weir_media::file::FileDevice;
use weir_media::health::MonitoredDevice;
use weir_media::{Device, MediaError};
use weir_proto::{Rank, TargetIndex};
use weir_runtime::Handle;
use weir_runtime::real::Executor;
use weir_store::{FormatError, FormatOptions, OpenError, Owner, Store, StoreConfig};

use crate::last_seen::{LastSeen, LastSeenFile, LastSeenRecord, last_seen_path};
use crate::shutdown::unless_stopped;
use crate::wait_log;

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
    /// Files and devices at once.
    #[error(
        "{path} is a file with a target's data, but `devices` is set; it is left untouched. Remove `devices`, or give the engine an empty data directory"
    )]
    File {
        /// The file.
        path: PathBuf,
    },
    /// A device that should hold a target is blank.
    #[error(
        "{device} is blank, while {other} holds data of this engine; an empty target is not put in its place, since data would be lost silently. Name the right device in `devices`, or erase {other}, too, if its data is not needed"
    )]
    Blank {
        /// The blank one.
        device: String,
        /// One with pools.
        other: String,
    },
    /// A device carries something else than this target.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A device carries this target, whose state can't be made sure of.
    #[error("{device}: {reason}")]
    Close {
        /// The device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// A file can't be made.
    #[error("{0}")]
    Media(#[from] MediaError),
    /// A store can't be made.
    #[error("{0}")]
    Format(#[from] FormatError),
    /// The engine is to end.
    #[error("the engine was asked to end before its targets were made; the next start makes them")]
    Stopped,
}

/// What the targets' files are made for.
#[derive(Clone, Debug)]
pub struct DataDirectory {
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
    /// Devices of the targets, in their order; without any the targets are files.
    pub devices: Vec<PathBuf>,
}

/// What a device carries.
enum Content {
    /// Nothing, or what an interrupted format has left.
    Nothing,
    /// This target, with as many pools.
    Target(usize),
}

/// Whether there is anything of this name, even a link to a device that is gone.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

impl DataDirectory {
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

    /// Checks the directory, and makes the targets' files at first start, and those of targets that were given up. A file that is missing
    /// otherwise stays so: the target is lost, and an empty one in its place would hide that. It leaves off between two transfers when they are
    /// not wanted any more: a format that was broken off is begun again by the next start, as after a crash.
    ///
    /// # Errors
    /// When the directory holds something else, files can't be made, or they are not wanted any more.
    pub fn prepare(&self, is_stopped: &dyn Fn() -> bool) -> Result<(), DataError> {
        let wrong = |source| DataError::Directory { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(wrong)?;
        let names = self.names().map_err(wrong)?;
        let targets: Vec<u32> = names.iter().filter_map(|name| target_of(name)).collect();
        if let Some(extra) = targets.iter().find(|target| **target >= self.targets) {
            let found = name(*extra);
            return Err(DataError::Extra { path: self.folder.clone(), found, targets: self.targets });
        }
        let is_first = targets.is_empty() && !names.iter().any(|name| self.is_memory(name));
        if is_first {
            self.refuse_foreign(&names)?;
            if self.devices.is_empty() {
                for target in 0..self.targets {
                    self.make(target, is_stopped)?;
                }
            } else {
                self.take_devices(is_stopped)?;
            }
        }
        for target in (0..self.targets).filter(|_| !is_first) {
            if LastSeenFile::new(last_seen_path(&self.path(target))).read() == LastSeen::GivenUp {
                self.make_anew(target, is_stopped)?;
            }
        }
        self.finish().map_err(wrong)?;
        (0..).zip(&self.devices).try_for_each(|(target, device)| self.follow(target, device))
    }

    /// Formats and links the devices of a first start. Those that carry these very targets, because the directory was
    /// lost, are linked as they are.
    fn take_devices(&self, is_stopped: &dyn Fn() -> bool) -> Result<(), DataError> {
        let wrong = |source| DataError::Directory { path: self.folder.clone(), source };
        let executor = Executor::new().map_err(wrong)?;
        let rt = executor.handle();
        let mut contents = Vec::new();
        for (target, path) in (0..).zip(&self.devices) {
            let owner = self.owner(target);
            let search = unless_stopped(&rt, is_stopped, content(&rt, path, &owner));
            contents.push(executor.block_on(search).ok_or(DataError::Stopped)??);
        }
        let pair = || {
            contents.iter().zip(&self.devices).map(|(content, path)| (content, path.display().to_string()))
        };
        let with_data = pair().find(|(content, _)| matches!(content, Content::Target(1..)));
        let blank = pair().find(|(content, _)| matches!(content, Content::Nothing));
        if let (Some((_, other)), Some((_, device))) = (with_data, blank) {
            return Err(DataError::Blank { device, other });
        }
        for ((target, path), content) in (0..).zip(&self.devices).zip(&contents) {
            if matches!(content, Content::Nothing) {
                let opened = unless_stopped(&rt, is_stopped, when_free(&rt, target, path));
                let device = monitored(&rt, executor.block_on(opened).ok_or(DataError::Stopped)??);
                self.format(&executor, &device, target, is_stopped)?;
                tracing::info!(device = device.name(), size = device.size(), target, "target formatted");
            }
            self.link(target, path).map_err(wrong)?;
        }
        Ok(())
    }

    /// Whether a file remembers a target of this engine.
    fn is_memory(&self, name: &str) -> bool {
        (0..self.targets)
            .any(|target| last_seen_path(&self.path(target)).file_name().is_some_and(|file| file == name))
    }

    /// Makes the store of a target that was given up, where nothing is in its place.
    fn make_anew(&self, target: u32, is_stopped: &dyn Fn() -> bool) -> Result<(), DataError> {
        let wrong = |source| DataError::Directory { path: self.folder.clone(), source };
        let path = self.path(target);
        let Some(device) = self.devices.get(target as usize).cloned().or_else(|| fs::read_link(&path).ok())
        else {
            return if is_there(&path) { Ok(()) } else { self.make(target, is_stopped) };
        };
        let executor = Executor::new().map_err(wrong)?;
        let rt = executor.handle();
        let found =
            executor.block_on(unless_stopped(&rt, is_stopped, content(&rt, &device, &self.owner(target))));
        // What is there is used as it is, or is no store.
        if !matches!(found.ok_or(DataError::Stopped)?, Ok(Content::Nothing)) {
            return Ok(());
        }
        let opened = unless_stopped(&rt, is_stopped, when_free(&rt, target, &device));
        let device = monitored(&rt, executor.block_on(opened).ok_or(DataError::Stopped)??);
        self.format(&executor, &device, target, is_stopped)
    }

    /// Makes the link to a target's device under its temporary name.
    fn link(&self, target: u32, device: &Path) -> io::Result<()> {
        let path = self.unfinished(target);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::os::unix::fs::symlink(device, &path),
        }
    }

    /// Has a target's link follow the configuration: names of devices change, and what a device carries is checked when
    /// it is opened.
    fn follow(&self, target: u32, device: &Path) -> Result<(), DataError> {
        let (path, unfinished) = (self.path(target), self.unfinished(target));
        match fs::read_link(&path) {
            Err(_) if is_there(&path) => Err(DataError::File { path }),
            Ok(linked) if linked == device => Ok(()),
            _ => self
                .link(target, device)
                .and_then(|()| fs::rename(unfinished, path))
                .map_err(|source| DataError::Directory { path: self.folder.clone(), source }),
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
    fn make(&self, target: u32, is_stopped: &dyn Fn() -> bool) -> Result<(), DataError> {
        let path = self.unfinished(target);
        let wrong = |source| DataError::Directory { path: self.folder.clone(), source };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong(error)),
            _ => {}
        }
        let executor = Executor::new().map_err(wrong)?;
        let rt = executor.handle();
        let device = monitored(&rt, Rc::new(FileDevice::create(&rt, &path, self.size)?));
        self.format(&executor, &device, target, is_stopped)?;
        tracing::info!(path = %self.path(target).display(), size = self.size, "target formatted");
        Ok(())
    }

    /// Makes a target's store.
    fn format(
        &self,
        executor: &Executor,
        device: &Rc<dyn Device>,
        target: u32,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), DataError> {
        let (rt, options) = (executor.handle(), FormatOptions { owner: self.owner(target), log_bytes: None });
        let format = Store::format(&rt, device, &options);
        let format = wait_log::with_wait_log(&rt, target, device, "format", format);
        executor.block_on(unless_stopped(&rt, is_stopped, format)).ok_or(DataError::Stopped)??;
        Ok(())
    }

    /// Gives finished files their names.
    fn finish(&self) -> io::Result<()> {
        for target in 0..self.targets {
            let (from, to) = (self.unfinished(target), self.path(target));
            if is_there(&from) && !is_there(&to) {
                fs::rename(from, to)?;
            }
        }
        fs::File::open(&self.folder)?.sync_all()
    }
}

/// Where it is remembered that the device of a target's file or link is faulty.
#[must_use]
pub fn fault_path(target: &Path) -> PathBuf {
    target.with_extension("faulty")
}

fn name(target: u32) -> String {
    format!("target-{target}.weir")
}

fn target_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("target-")?.strip_suffix(".weir")?;
    number.parse().ok()
}

/// A device with a limit on every wait.
fn monitored(rt: &Handle, device: Rc<dyn Device>) -> Rc<dyn Device> {
    Rc::new(MonitoredDevice::new(rt, device))
}

/// What a device carries of a target.
async fn content(rt: &Handle, path: &Path, owner: &Owner) -> Result<Content, DataError> {
    let target = owner.target.0;
    let device = monitored(rt, when_free(rt, target, path).await?);
    let name = device.name().to_owned();
    let config = StoreConfig { background: false, scrub: None, stall_limit: None, ..StoreConfig::default() };
    let open = Store::open(rt, Rc::clone(&device), owner, config);
    match wait_log::with_wait_log(rt, target, &device, "search for a store", open).await {
        Ok(store) => {
            let pools = store.pools().len();
            let closed = wait_log::with_wait_log(rt, target, &device, "checkpoint", store.close()).await;
            closed.map_err(|error| DataError::Close { device: name, reason: error.to_string() })?;
            Ok(Content::Target(pools))
        }
        Err(OpenError::Blank { .. } | OpenError::Unfinished { .. }) => Ok(Content::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Opens the file of a target, or the device that it is a link to.
///
/// # Errors
/// When it can't be opened or another process goes on using it.
pub async fn open(rt: &Handle, target: u32, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    let linked = std::fs::read_link(path);
    when_free(rt, target, linked.as_deref().unwrap_or(path)).await
}

/// Opens a device. Waits for a process that is on its way out: what was killed holds its files until the kernel has ended its
/// transfers.
async fn when_free(rt: &Handle, target: u32, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    let until = rt.now() + BUSY_LIMIT;
    loop {
        match wait_log::open(rt, target, path) {
            Err(MediaError::Busy { .. }) if rt.now() < until => rt.sleep(BUSY_PAUSE).await,
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests;
