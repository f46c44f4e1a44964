//! What a `weir dev` folder holds besides data: its settings, the files of engines and clients, and the running
//! processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weir_client::served_factors;
use weir_fuse::mountinfo;
use weir_fuse::process::ProcessRecord;

use super::default_folder;
use super::identity::{IdentityFiles, LOOPBACK};
use crate::attach::{AttachFile, EngineEntry, TlsEntry};
use crate::error::CliError;
use crate::secret::write_private;
use crate::values::Size;

/// Name of the system.
const SYSTEM: &str = "weir";

/// Most engines and targets of a system on one machine: each target is a thread.
const ENGINES_MAX: u32 = 64;
const TARGETS_MAX: u32 = 64;

/// Most probes: there are not as many providers.
const PROBES_MAX: usize = 16;

/// Smallest storage of a target: log, index and a few files.
const TARGET_BYTES_MIN: u64 = 64 << 20;

/// Shape of a system; kept in its folder, since data is placed by it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// libfabric provider.
    pub provider: String,
    /// Number of engines.
    pub engines: u32,
    /// Targets of each.
    pub targets: u32,
    /// Bytes of each engine.
    pub size: u64,
    /// Redundancy factor of the pool that the system makes by itself.
    #[serde(default)]
    pub redundancy: u32,
    /// Devices of the targets, engine by engine; without any they are files of `size`.
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    /// Providers that engines are measured by beside the one that they speak.
    #[serde(default)]
    pub probes: Vec<String>,
    /// First port of each engine: its targets' ports, then management, then metrics, then those of the probes.
    pub ports: Vec<u16>,
}

impl Settings {
    /// Checks what people asked for.
    ///
    /// # Errors
    /// When there are no engines or targets, too many, or too little space.
    pub fn check(&self) -> Result<(), CliError> {
        if !(1..=ENGINES_MAX).contains(&self.engines) || !(1..=TARGETS_MAX).contains(&self.targets) {
            return Err(CliError::Usage(format!(
                "{} engines with {} targets: use 1 to {ENGINES_MAX} engines with 1 to {TARGETS_MAX} targets",
                self.engines, self.targets
            )));
        }
        if self.target_size() < TARGET_BYTES_MIN {
            return Err(CliError::Usage(format!(
                "{} bytes for {} targets leave less than {} MiB for each: give a larger --size",
                self.size,
                self.targets,
                TARGET_BYTES_MIN >> 20
            )));
        }
        if self.size.checked_mul(u64::from(self.engines)).is_none() {
            return Err(CliError::Usage(format!(
                "{} engines of {} each are beyond all numbers: give a smaller --size",
                self.engines,
                Size(self.size)
            )));
        }
        let wanted = self.engines * self.targets;
        if !self.devices.is_empty() && self.devices.len() != wanted as usize {
            return Err(CliError::Usage(format!(
                "{} devices for {wanted} targets: give --device once for each, or leave it out for files",
                self.devices.len()
            )));
        }
        if self.redundancy >= self.engines {
            return Err(CliError::Usage(format!(
                "--redundancy {} with {} engines: a redundancy factor needs one engine more than may be lost",
                self.redundancy, self.engines
            )));
        }
        let served = served_factors();
        if !served.contains(&self.redundancy) {
            return Err(CliError::Usage(format!(
                "--redundancy {}: this release serves redundancy factors up to {}",
                self.redundancy,
                served.end()
            )));
        }
        if self.probes.len() > PROBES_MAX {
            return Err(CliError::Usage(format!("{} probes: use at most {PROBES_MAX}", self.probes.len())));
        }
        let twice = (1..self.probes.len()).find(|at| self.probes[..*at].contains(&self.probes[*at]));
        if let Some(at) = twice {
            return Err(CliError::Usage(format!("--probe names {} twice", self.probes[at])));
        }
        Ok(())
    }

    /// Checks that files of this size can be in a folder, which need not be there yet. What can't be tried is found out by the
    /// engines.
    ///
    /// # Errors
    /// When the file system has no files that large.
    pub fn check_files(&self, folder: &Path) -> Result<(), CliError> {
        let Some(place) = folder.ancestors().find(|path| path.is_dir()) else { return Ok(()) };
        if !self.devices.is_empty() {
            return Ok(());
        }
        let nameless = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
        let Ok(file) = rustix::fs::open(place, nameless, rustix::fs::Mode::RUSR) else { return Ok(()) };
        let tried = rustix::fs::ftruncate(&file, self.target_size());
        // What isn't even a length is invalid.
        if !matches!(tried, Err(Errno::FBIG | Errno::INVAL)) {
            return Ok(());
        }
        Err(CliError::Usage(format!(
            "--size {}: the file system of {} has no files of {}, as each of {} targets would have: give a smaller --size",
            Size(self.size),
            place.display(),
            Size(self.target_size()),
            self.targets
        )))
    }

    /// Bytes of a target, in whole MiB.
    #[must_use]
    pub fn target_size(&self) -> u64 {
        (self.size / u64::from(self.targets)) >> 20 << 20
    }

    fn port(&self, rank: u32, offset: u32) -> u16 {
        let first = self.ports.get(rank as usize).copied().unwrap_or(0);
        first.saturating_add(u16::try_from(offset).unwrap_or(u16::MAX))
    }

    /// Address of an engine's management service.
    #[must_use]
    pub fn management(&self, rank: u32) -> String {
        format!("{LOOPBACK}:{}", self.port(rank, self.targets))
    }

    /// Address of an engine's metrics.
    #[must_use]
    pub fn metrics(&self, rank: u32) -> String {
        format!("{LOOPBACK}:{}", self.port(rank, self.targets + 1))
    }

    /// Devices of an engine's targets.
    fn devices(&self, rank: u32) -> &[PathBuf] {
        self.devices.chunks(self.targets as usize).nth(rank as usize).unwrap_or_default()
    }

    /// Where an engine is measured by other providers.
    fn probes(&self, rank: u32) -> Vec<String> {
        let ports = (self.targets + 2..).map(|offset| self.port(rank, offset));
        self.probes.iter().zip(ports).map(|(provider, port)| format!("{provider}:{port}")).collect()
    }

    fn engine(&self, rank: u32) -> EngineEntry {
        EngineEntry {
            rank,
            host: LOOPBACK.to_owned(),
            fabric_port: self.port(rank, 0),
            targets: self.targets,
            management: self.management(rank),
        }
    }
}

/// The folder of a system.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

/// A process that the supervisor started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// `engine 0`, `mount /mnt/home`.
    pub name: String,
    /// Rank of an engine.
    pub rank: Option<u32>,
    /// Directory of a mount.
    pub directory: Option<PathBuf>,
    /// The process.
    pub process: ProcessRecord,
}

/// The running processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Running {
    /// The supervisor.
    pub supervisor: ProcessRecord,
    /// Whether everything was up once.
    pub ready: bool,
    /// Engines and mounts.
    pub members: Vec<Member>,
}

impl Folder {
    /// Attach file.
    #[must_use]
    pub fn attach(&self) -> PathBuf {
        self.0.join("client.json")
    }

    /// Folder of an engine.
    #[must_use]
    pub fn engine(&self, rank: u32) -> PathBuf {
        self.0.join(format!("engine-{rank}"))
    }

    /// Configuration file of an engine.
    #[must_use]
    pub fn engine_config(&self, rank: u32) -> PathBuf {
        self.engine(rank).join("engine.toml")
    }

    /// Data directory of an engine.
    #[must_use]
    pub fn engine_data(&self, rank: u32) -> PathBuf {
        self.engine(rank).join("data")
    }

    /// A file that is there as long as an engine is lost.
    #[must_use]
    pub fn lost_file(&self, rank: u32) -> PathBuf {
        self.engine(rank).join("lost")
    }

    /// Whether an engine is lost: its data is erased, and it is not to be started.
    #[must_use]
    pub fn is_lost(&self, rank: u32) -> bool {
        self.lost_file(rank).exists()
    }

    /// Log of an engine.
    #[must_use]
    pub fn engine_log(&self, rank: u32) -> PathBuf {
        self.engine(rank).join("log")
    }

    /// Log of the supervisor, and of mounts.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Locked while a process starts a system here, runs it, or removes it.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// How a command of `weir dev` is typed for this folder.
    #[must_use]
    pub fn command(&self, words: &str) -> String {
        if self.0 == default_folder() {
            return format!("weir dev {words}");
        }
        format!("weir dev {words} --dir {}", quoted(&self.0))
    }

    fn settings_file(&self) -> PathBuf {
        self.0.join("settings.json")
    }

    fn running_file(&self) -> PathBuf {
        self.0.join("running.json")
    }

    /// Whether there is nothing in it, or no folder, but for the log and the lock of a supervisor.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn is_new(&self) -> Result<bool, CliError> {
        let wrong = |error| CliError::io(self.0.display().to_string(), error);
        match fs::read_dir(&self.0) {
            Ok(mut entries) => entries
                .try_fold(true, |is_new, entry| Ok(is_new && self.is_supervisors(&entry?.path())))
                .map_err(wrong),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(wrong(error)),
        }
    }

    /// Whether a file is there as long as a supervisor is.
    fn is_supervisors(&self, path: &Path) -> bool {
        path == self.log() || path == self.lock_file()
    }

    /// Removes a system that was new ([`Folder::is_new`]), but for what is its supervisor's.
    ///
    /// # Errors
    /// When something can't be removed.
    pub fn clear(&self) -> Result<(), CliError> {
        let wrong = |error| CliError::io(self.0.display().to_string(), error);
        // What is mounted below is not the folder's own.
        let mounts =
            mountinfo::below(&self.0).map_err(|error| CliError::io("/proc/self/mountinfo", error))?;
        if !mounts.is_empty() {
            return Ok(());
        }
        for entry in fs::read_dir(&self.0).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if !self.is_supervisors(&path) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the supervisor's files, and the folder, too, if `weir dev` made it and it holds nothing else.
    pub fn forget(&self, is_own: bool) {
        if !self.is_new().unwrap_or(false) {
            return;
        }
        // A folder in use stays.
        let _ = fs::remove_file(self.log());
        let _ = fs::remove_file(self.lock_file());
        if is_own {
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// Removes a system, and the folder unless others have put something there. Returns the names of what that is.
    ///
    /// # Errors
    /// When something can't be removed.
    pub fn wipe(&self) -> Result<Vec<String>, CliError> {
        let wrong = |error| CliError::io(self.0.display().to_string(), error);
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.0).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_of_a_system(&name) { own.push(entry.path()) } else { others.push(name) }
        }
        // Until the rest has gone they say whose the folder is.
        let last = [self.settings_file(), self.lock_file()];
        for path in own.iter().filter(|path| !last.contains(path)).chain(&last) {
            remove(path)?;
        }
        // One that others use, or that is mounted, stays.
        let _ = fs::remove_dir(&self.0);
        others.sort();
        Ok(others)
    }

    /// Settings of the system in this folder; none when there is none.
    ///
    /// # Errors
    /// When they are there and cannot be read.
    pub fn settings(&self) -> Result<Option<Settings>, CliError> {
        read_json(&self.settings_file())
    }

    /// Keeps settings.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_settings(&self, settings: &Settings) -> Result<(), CliError> {
        write_json(&self.settings_file(), settings)
    }

    /// The processes that run, or ran last.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn running(&self) -> Result<Option<Running>, CliError> {
        read_json(&self.running_file())
    }

    /// Records the running processes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_running(&self, running: &Running) -> Result<(), CliError> {
        write_json(&self.running_file(), running)
    }

    /// Removes that record.
    pub fn forget_running(&self) {
        // What is left says that a dead supervisor ran, and is read so.
        let _ = fs::remove_file(self.running_file());
    }

    /// Writes the files that engines and clients read.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write_files(&self, settings: &Settings, log: &str) -> Result<(), CliError> {
        let identity = IdentityFiles::of(&self.0);
        identity.make()?;
        let engines: Vec<EngineEntry> = (0..settings.engines).map(|rank| settings.engine(rank)).collect();
        for rank in 0..settings.engines {
            let config = EngineConfig {
                system: SYSTEM,
                rank,
                provider: &settings.provider,
                host: LOOPBACK,
                listen: LOOPBACK,
                fabric_port: settings.port(rank, 0),
                probes: settings.probes(rank),
                targets: settings.targets,
                management_listen: settings.management(rank),
                metrics_listen: settings.metrics(rank),
                data: self.engine_data(rank),
                devices: settings.devices(rank),
                target_size: format!("{}MiB", settings.target_size() >> 20),
                log,
                tls: TlsEntry {
                    ca: identity.ca.clone(),
                    cert: identity.engine_cert.clone(),
                    key: identity.engine_key.clone(),
                },
                auth: Auth { system_key: &identity.system_key, engine_key: &identity.seal_key },
                engines: &engines,
            };
            let text =
                toml::to_string(&config).map_err(|error| CliError::Dev(format!("engine {rank}: {error}")))?;
            write_private(&self.engine_config(rank), text.as_bytes())?;
            let data = self.engine_data(rank);
            fs::create_dir_all(&data).map_err(|error| CliError::io(data.display().to_string(), error))?;
        }
        let attach = AttachFile {
            system: SYSTEM.to_owned(),
            provider: settings.provider.clone(),
            fabric_addresses: None,
            engines,
            system_key_file: Some(identity.system_key.clone()),
            tenant: None,
            tenant_key_file: None,
            tls: TlsEntry { ca: identity.ca, cert: identity.client_cert, key: identity.client_key },
        };
        write_json(&self.attach(), &attach)
    }
}

/// Whether this is the name of something that a supervisor, or an engine, makes in a system's folder.
fn is_of_a_system(name: &str) -> bool {
    let is_engine = |rank: &str| !rank.is_empty() && rank.bytes().all(|digit| digit.is_ascii_digit());
    let stem = name.strip_suffix(".new").or_else(|| name.strip_suffix(".json")).unwrap_or(name);
    matches!(name, "log" | "lock" | "tls" | "system.key" | "system.new" | "engines.key" | "engines.new")
        || (stem != name && matches!(stem, "settings" | "running" | "client"))
        || name.strip_prefix("engine-").is_some_and(is_engine)
}

/// Removes a file or a folder; that it is gone is as good.
fn remove(path: &Path) -> Result<(), CliError> {
    let removed = fs::symlink_metadata(path)
        .and_then(|found| if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) });
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CliError::io(path.display().to_string(), error))
        }
        _ => Ok(()),
    }
}

/// A path as a shell reads it.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&byte)) {
        return text;
    }
    in_quotes(path)
}

/// The same in quotes, whatever it is. Single quotes hold everything but a single quote.
#[must_use]
pub fn in_quotes(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// What `weir-engine` reads.
#[derive(Serialize)]
struct EngineConfig<'a> {
    system: &'a str,
    rank: u32,
    provider: &'a str,
    host: &'a str,
    listen: &'a str,
    fabric_port: u16,
    probes: Vec<String>,
    targets: u32,
    management_listen: String,
    metrics_listen: String,
    data: PathBuf,
    devices: &'a [PathBuf],
    target_size: String,
    log: &'a str,
    tls: TlsEntry,
    auth: Auth<'a>,
    engines: &'a [EngineEntry],
}

#[derive(Serialize)]
struct Auth<'a> {
    system_key: &'a Path,
    engine_key: &'a Path,
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, CliError> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| {
            CliError::Dev(format!("{}: {error}; remove it if nothing runs", path.display()))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::io(path.display().to_string(), error)),
    }
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Dev(error.to_string()))?;
    write_private(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    fn settings() -> Settings {
        Settings {
            provider: "tcp".into(),
            engines: 3,
            targets: 2,
            size: 1 << 30,
            redundancy: 0,
            devices: vec![],
            probes: vec![],
            ports: vec![],
        }
    }

    #[test]
    fn every_engine_gets_ports_of_its_own_and_keeps_them() {
        let mut settings = settings();
        settings.assign_ports().expect("free ports");
        let mut all: Vec<u16> = settings.ports.iter().flat_map(|first| *first..first + 4).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 12);
        let first = settings.ports.clone();
        settings.assign_ports().expect("still free");
        assert_eq!(settings.ports, first);
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first[1] + 3)).expect("free");
        settings.assign_ports().expect("others are free");
        assert!(!settings.ports.contains(&first[1]));
        drop(taken);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert!(settings().check().is_ok());
        for bad in [
            Settings { engines: 0, ..settings() },
            Settings { targets: 1000, ..settings() },
            Settings { redundancy: 3, ..settings() },
            Settings { redundancy: served_factors().end() + 1, ..settings() },
            Settings { size: 1 << 20, ..settings() },
            Settings { size: 15 << 60, ..settings() },
            Settings { devices: vec!["/dev/ng0n1".into()], ..settings() },
            Settings { probes: vec!["shm".into(); 17], ..settings() },
            Settings { probes: vec!["shm".into(); 2], ..settings() },
        ] {
            assert!(matches!(bad.check(), Err(CliError::Usage(_))));
        }
        // No file system has files whose end doesn't fit into 63 bits.
        let beyond = Settings { size: 9 << 60, targets: 1, ..settings() };
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("to/be/made");
        let refused = beyond.check_files(&folder).expect_err("there are none").to_string();
        assert!(
            refused.contains("--size") && refused.contains(&place.path().display().to_string()),
            "{refused}"
        );
        assert!(settings().check_files(&folder).is_ok() && !folder.exists());
    }

    #[test]
    fn what_is_a_systems_own_is_known_by_its_name() {
        for own in
            ["log", "lock", "tls", "system.key", "settings.json", "running.new", "client.json", "engine-12"]
        {
            assert!(is_of_a_system(own), "{own}");
        }
        for other in
            ["", "photo", "engine-", "engine-x", "engine-1x", "settings", "client", "log.json", "tls.new"]
        {
            assert!(!is_of_a_system(other), "{other}");
        }
    }

    #[test]
    fn commands_name_the_folder_as_a_shell_reads_it() {
        let command = |path: &str| Folder(path.into()).command("down");
        assert_eq!(command("/tmp/a-b"), "weir dev down --dir /tmp/a-b");
        assert_eq!(command("/tmp/a b'c"), "weir dev down --dir '/tmp/a b'\\''c'");
        assert_eq!(Folder(default_folder()).command("down --wipe"), "weir dev down --wipe");
    }

    #[test]
    fn engines_and_clients_get_files_that_fit_together() {
        let temporary = tempfile::tempdir().expect("made");
        let folder = Folder(temporary.path().to_owned());
        let devices = (0..6).map(|number| format!("/dev/ng{number}n1").into()).collect();
        let mut settings = Settings { probes: vec!["shm".into()], devices, ..settings() };
        settings.assign_ports().expect("free ports");
        folder.write_files(&settings, "info").expect("written");
        folder.keep_settings(&settings).expect("written");
        assert_eq!(folder.settings().expect("readable"), Some(settings.clone()));
        let attach = weir_client::Attach::load(Some(&folder.attach())).expect("a client understands it");
        assert_eq!(attach.engines.len(), 3);
        let text = fs::read_to_string(folder.engine_config(1)).expect("there");
        let config: toml::Table = toml::from_str(&text).expect("TOML");
        assert_eq!(config["rank"].as_integer(), Some(1));
        assert_eq!(config["fabric_port"].as_integer(), Some(i64::from(attach.engines[1].fabric_port)));
        assert_eq!(config["engines"].as_array().map(Vec::len), Some(3));
        assert_eq!(config["target_size"].as_str(), Some("512MiB"));
        let list = |key: &str| -> Vec<String> {
            let values = config[key].as_array().expect("a list").iter();
            values.map(|value| value.as_str().expect("text").to_owned()).collect()
        };
        assert_eq!(
            list("probes"),
            [format!("shm:{}", attach.engines[1].fabric_port + 4)],
            "behind the others"
        );
        assert_eq!(list("devices"), ["/dev/ng2n1", "/dev/ng3n1"]);
    }
}
