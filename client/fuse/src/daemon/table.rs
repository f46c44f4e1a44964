//! The mounts of the daemon, in memory and in its state folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::child;
use super::record::{Record, control_socket, folder_name};
use crate::metrics::{MountMetrics, Snapshot};
use crate::mountinfo;
use crate::process::ProcessRecord;
use crate::v1::{MountHealth, MountInfo};

/// Most mounts that a daemon serves: three times the 110 pods that a kubelet runs by default, and well below the number
/// of processes that a node stands.
pub const MOUNTS_MAX: usize = 330;

#[derive(Debug, Default)]
struct Entry {
    record: Option<Record>,
    /// Serialises work on one path; only the holder may replace the record.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Counts that the mount's process gave last: they stay in the metrics when it is gone.
    last: Snapshot,
    /// No successor of its process will come.
    is_given_up: bool,
}

/// All mounts by target path.
#[derive(Debug)]
pub struct Table {
    folder: PathBuf,
    entries: Mutex<BTreeMap<PathBuf, Entry>>,
    /// Successors take the mounts of processes that have ended.
    has_successors: bool,
}

impl Table {
    /// Reads the records of a state folder, and makes the folder when it is not there. `has_successors`: other processes take
    /// the mounts of those that have ended.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub fn open(state: &Path, has_successors: bool) -> io::Result<Self> {
        let folder = state.join("mounts");
        fs::create_dir_all(&folder)?;
        fs::set_permissions(state, fs::Permissions::from_mode(0o700))?;
        let mut entries = BTreeMap::new();
        for found in fs::read_dir(&folder)? {
            let path = found?.path();
            match Record::load(&path) {
                Ok(record) if record.identity.is_some() => {
                    let entry = Entry { record: Some(record.clone()), ..Entry::default() };
                    entries.insert(record.spec.target, entry);
                }
                // The daemon ended while this mount was being made; no caller was told of it.
                Ok(record) => {
                    let _ = record.process.signal(rustix::process::Signal::TERM);
                    fs::remove_dir_all(&path)?;
                }
                Err(error) => {
                    tracing::warn!(folder = %path.display(), %error, "a mount's record cannot be read; it is dropped");
                    fs::remove_dir_all(&path)?;
                }
            }
        }
        Ok(Self { folder, entries: Mutex::new(entries), has_successors })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers of mounts whose process runs, and of others.
    #[must_use]
    pub fn census(&self) -> (usize, usize) {
        let entries = self.lock();
        let records = entries.values().filter_map(|entry| entry.record.as_ref());
        let (alive, dead): (Vec<_>, Vec<_>) = records.partition(|record| record.process.is_alive());
        (alive.len(), dead.len())
    }

    /// The lock of one path. None when the daemon has as many mounts as it can serve and this would be another.
    #[must_use]
    pub fn turn(&self, target: &Path) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut entries = self.lock();
        if !entries.contains_key(target) && entries.len() >= MOUNTS_MAX {
            return None;
        }
        Some(Arc::clone(&entries.entry(target.to_owned()).or_default().turn))
    }

    /// The record of a path.
    #[must_use]
    pub fn get(&self, target: &Path) -> Option<Record> {
        self.lock().get(target)?.record.clone()
    }

    /// The records of all mounts.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.lock().values().filter_map(|entry| entry.record.clone()).collect()
    }

    /// Notes that no successor of a process will come.
    pub fn give_up(&self, target: &Path, process: ProcessRecord) {
        if let Some(entry) = self.lock().get_mut(target) {
            entry.is_given_up = entry.record.as_ref().is_some_and(|record| record.process == process);
        }
    }

    /// Whether the process of a mount has ended and a successor is to take it.
    #[must_use]
    pub fn awaits_successor(&self, record: &Record) -> bool {
        let is_given_up = self.lock().get(&record.spec.target).is_none_or(|entry| entry.is_given_up);
        self.has_successors && !is_given_up && !record.process.is_alive()
    }

    /// Folder of a mount.
    #[must_use]
    pub fn folder_of(&self, target: &Path) -> PathBuf {
        self.folder.join(folder_name(target))
    }

    /// Remembers a mount.
    ///
    /// # Errors
    /// When its record cannot be written.
    pub fn put(&self, record: &Record) -> io::Result<()> {
        record.store(&self.folder_of(&record.spec.target))?;
        let mut entries = self.lock();
        let entry = entries.entry(record.spec.target.clone()).or_default();
        (entry.record, entry.is_given_up) = (Some(record.clone()), false);
        Ok(())
    }

    /// Forgets a mount. Callers hold its turn.
    ///
    /// # Errors
    /// When its folder cannot be removed.
    pub fn remove(&self, target: &Path) -> io::Result<()> {
        let removed = match fs::remove_dir_all(self.folder_of(target)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(target) {
            entry.record = None;
            // Two hold the lock of a path that no other task waits for: the table and the caller.
            if Arc::strong_count(&entry.turn) <= 2 {
                entries.remove(target);
            }
        }
        removed
    }

    /// Every mount, in order of its path, with its health.
    pub async fn list(&self) -> Vec<MountInfo> {
        let records: Vec<Record> = self.lock().values().filter_map(|entry| entry.record.clone()).collect();
        let mut list = Vec::with_capacity(records.len());
        for record in records.into_iter().filter(|record| record.identity.is_some()) {
            list.push(self.describe(&record).await);
        }
        list
    }

    /// A mount with its health now.
    pub async fn describe(&self, record: &Record) -> MountInfo {
        let spec = &record.spec;
        let (health, message) = self.health(record).await;
        let identity = record.identity.as_ref();
        MountInfo {
            target_path: spec.target.to_string_lossy().into_owned(),
            pool: spec.pool.clone(),
            container: spec.container.clone(),
            pool_uuid: identity.map(|identity| identity.pool_uuid.clone()).unwrap_or_default(),
            container_uuid: identity.map(|identity| identity.container_uuid.clone()).unwrap_or_default(),
            read_only: spec.read_only,
            fs_group: spec.fs_group,
            options: spec.options.clone(),
            volume: spec.volume.clone(),
            health: health.into(),
            message,
            mounted_unix_seconds: identity.map_or(0, |identity| identity.mounted_unix_seconds),
            system: spec.system.clone(),
        }
    }

    async fn health(&self, record: &Record) -> (MountHealth, String) {
        let target = &record.spec.target;
        if self.awaits_successor(record) {
            let message =
                format!("process {} of this mount has ended; another one takes it", record.process.pid);
            return (MountHealth::Degraded, message);
        }
        if !record.process.is_alive() {
            let message = format!("process {} of this mount has ended; mount it again", record.process.pid);
            return (MountHealth::Dead, message);
        }
        match mountinfo::at(target) {
            Ok(Some(entry)) if entry.file_system == mountinfo::FILE_SYSTEM_TYPE => {}
            Ok(_) => return (MountHealth::Dead, "somebody else has unmounted it; mount it again".into()),
            Err(error) => return (MountHealth::Degraded, format!("/proc/self/mountinfo: {error}")),
        }
        match child::state(control_socket(&self.folder_of(target))).await {
            Some(state) => {
                if let Some(entry) = self.lock().get_mut(target) {
                    entry.last = state.metrics;
                }
                let serving = state.trouble.is_empty();
                (if serving { MountHealth::Serving } else { MountHealth::Degraded }, state.trouble)
            }
            None => (MountHealth::Degraded, format!("process {} does not answer", record.process.pid)),
        }
    }

    /// Every mount as metrics show it.
    pub async fn metrics(&self) -> Vec<MountMetrics> {
        let records: Vec<Record> = self.lock().values().filter_map(|entry| entry.record.clone()).collect();
        let mut metrics = Vec::with_capacity(records.len());
        for record in &records {
            let Some(identity) = &record.identity else { continue };
            let health = match self.health(record).await.0 {
                MountHealth::Serving => "serving",
                MountHealth::Dead => "dead",
                _ => "degraded",
            };
            let last = self.lock().get(&record.spec.target).map(|entry| entry.last.clone());
            metrics.push(MountMetrics {
                pool: identity.pool_label.clone(),
                container: identity.container_label.clone(),
                health,
                counts: last.unwrap_or_default(),
            });
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Identity;
    use crate::spec::{DEFAULT_ENGINE_WAIT, DEFAULT_OPEN_WAIT, DEFAULT_THREADS, MountSpec};

    fn record(target: &str, process: ProcessRecord) -> Record {
        Record {
            spec: MountSpec {
                system: String::new(),
                attach: "/a".into(),
                pool: "tank".into(),
                container: "home".into(),
                target: target.into(),
                read_only: false,
                fs_group: 0,
                options: vec![],
                volume: "pvc-1".into(),
                threads: DEFAULT_THREADS,
                engine_wait: DEFAULT_ENGINE_WAIT,
                open_wait: DEFAULT_OPEN_WAIT,
                tenant: None,
            },
            process,
            identity: Some(Identity {
                pool_uuid: "p".into(),
                container_uuid: "c".into(),
                pool_label: "tank".into(),
                container_label: "home".into(),
                mounted_unix_seconds: 7,
                open_micros: 1,
            }),
        }
    }

    #[tokio::test]
    async fn a_daemon_that_starts_again_knows_which_mounts_still_run() {
        let state = tempfile::tempdir().expect("made");
        let own = ProcessRecord::current().expect("runs");
        let gone = ProcessRecord { start_ticks: own.start_ticks + 1, ..own };
        let table = Table::open(state.path(), false).expect("opens");
        table.put(&record("/mnt/b", gone)).expect("written");
        table.put(&record("/mnt/a", own)).expect("written");
        drop(table);

        let table = Table::open(state.path(), false).expect("opens again");
        assert_eq!(table.census(), (1, 1));
        let list = table.list().await;
        assert_eq!(
            list.iter().map(|mount| mount.target_path.as_str()).collect::<Vec<_>>(),
            ["/mnt/a", "/mnt/b"]
        );
        // The process runs, but nothing is mounted there.
        assert!(list.iter().all(|mount| mount.health() == MountHealth::Dead && !mount.message.is_empty()));
        assert_eq!(list[0].mounted_unix_seconds, 7);
        table.remove(Path::new("/mnt/a")).expect("removed");
        assert!(table.get(Path::new("/mnt/a")).is_none());
        drop(table);
        assert_eq!(Table::open(state.path(), false).expect("opens").census(), (0, 1));
    }

    #[test]
    fn a_record_that_cannot_be_read_does_not_stop_the_daemon() {
        let state = tempfile::tempdir().expect("made");
        let folder = state.path().join("mounts/0123456789abcdef");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("record.json"), "{\"spec\":").expect("written");
        let table = Table::open(state.path(), false).expect("opens");
        assert_eq!(table.census(), (0, 0));
        assert!(!folder.exists());
    }

    #[test]
    fn the_number_of_mounts_is_bounded() {
        let state = tempfile::tempdir().expect("made");
        let table = Table::open(state.path(), false).expect("opens");
        for number in 0..MOUNTS_MAX {
            assert!(table.turn(Path::new(&format!("/mnt/{number}"))).is_some());
        }
        assert!(table.turn(Path::new("/mnt/one-more")).is_none());
        assert!(table.turn(Path::new("/mnt/0")).is_some());
    }
}
