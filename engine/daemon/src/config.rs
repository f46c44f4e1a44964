//! Configuration: a TOML file, overridden by flags and `WEIR_*` variables (`docs/reference/engine-config.md`).

mod cache;
mod memory;
mod probes;
mod rebuild;
mod spdk;
mod wrong;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cache::cache_memory;
use clap::Parser;
use memory::{addressing, mr_method, protocol, receive_mode};
use serde::Deserialize;
pub use spdk::SpdkConfig;
use weir_fabric::{
    Addressing, AuthKey, Launch, MrMethod, Protocol, ReceiveMode, configured_device, configured_server_keys,
};
use weir_management::TlsFiles;
use weir_media::health::STALL_LIMIT;
use weir_proto::Rank;
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::{EngineInfo, GroupList};
use weir_proto::probe::ProbeListener;
use weir_rpc::membership::swim::SwimConfig;
use weir_store::ScrubConfig;

/// Where the configuration file is when no flag says otherwise.
pub const CONFIG_DEFAULT: &str = "/etc/weir/engine.toml";

/// Most targets of one engine: as many cores as two sockets of today's servers have.
const TARGETS_MAX: u32 = 256;

/// Smallest target: log, checkpoints and a few pools.
const TARGET_SIZE_MIN: u64 = 64 * 1024 * 1024;

/// Least index memory of a target: below it, operations on a few objects at once would read from the device again what
/// they have just read.
const INDEX_MEMORY_MIN: u64 = 16 * 1024 * 1024;

/// Shortest interval of the scrubber, in seconds: what it read is older than any cache of the device then.
const SCRUB_INTERVAL_MIN: u64 = 60;

/// Longest interval, in seconds: a year.
const SCRUB_INTERVAL_MAX: u64 = 366 * 86_400;

/// Interval of the scrubber in seconds unless configured: a week, as in DAOS.
const SCRUB_INTERVAL_DEFAULT: u64 = 604_800;

/// Smallest rate of the scrubber that isn't off: with less, a target of a few GiB takes more than a year.
const SCRUB_RATE_MIN: u64 = 4096;

/// Shortest time after which a transfer that hangs makes a device faulty, in seconds: Linux gives a command of a drive up after
/// 30 s and tries it again.
const STALL_LIMIT_MIN: u64 = 65;

/// Longest such time, in seconds: a day.
const STALL_LIMIT_MAX: u64 = 86_400;

/// Shortest period of the membership protocol: tries of a probe are a quarter of it apart, and an engine that is busy
/// for some milliseconds must not look dead.
const MEMBERSHIP_PERIOD_MIN: Duration = Duration::from_millis(100);

/// Longest time of the membership protocol; beyond it a dead engine is not noticed within the time that clients wait.
const MEMBERSHIP_TIME_MAX: Duration = Duration::from_mins(10);

/// libfabric providers that this build can use.
pub const PROVIDERS: [&str; 4] = ["tcp", "shm", "verbs", "cxi"];

/// Heading of the settings that are set by hand only for measurements: each has a default that fits the provider.
const EXPERT: &str = "Expert settings of the fabric";

/// The storage engine of a Weir system.
#[derive(Parser, Debug, Default, Clone)]
#[command(name = "weir-engine", version, about, max_term_width = 110)]
pub struct Flags {
    /// Configuration file.
    #[arg(long, env = "WEIR_CONFIG", default_value = CONFIG_DEFAULT)]
    pub config: PathBuf,
    /// Number of this engine in its system.
    #[arg(long, env = "WEIR_RANK")]
    pub rank: Option<u32>,
    /// Name or address by which others reach this engine.
    #[arg(long, env = "WEIR_HOST")]
    pub host: Option<String>,
    /// Name of the system.
    #[arg(long, env = "WEIR_SYSTEM")]
    pub system: Option<String>,
    /// libfabric provider: tcp, shm, verbs or cxi; in builds with Mercury also mercury/ofi+tcp or mercury/na+sm.
    #[arg(long, env = "WEIR_PROVIDER")]
    pub provider: Option<String>,
    /// How receive memory is posted: multi (slabs for many messages) or standard (a buffer for each).
    #[arg(long, env = "WEIR_RECEIVE_MODE", help_heading = EXPERT)]
    pub receive_mode: Option<String>,
    /// How memory is registered for peers: match-events, uncached, optimized, persistent or key-cache.
    #[arg(long, env = "WEIR_MEMORY_REGISTRATION", help_heading = EXPERT)]
    pub memory_registration: Option<String>,
    /// How messages are sent: default or, on cxi, receiver-not-ready. The same on every engine and client.
    #[arg(long, env = "WEIR_FABRIC_PROTOCOL", help_heading = EXPERT)]
    pub fabric_protocol: Option<String>,
    /// Where the targets' addresses are known from: ports, or published. The same on every engine and client.
    #[arg(long, env = "WEIR_FABRIC_ADDRESSES", help_heading = EXPERT)]
    pub fabric_addresses: Option<String>,
    /// Address that fabric endpoints are bound to.
    #[arg(long, env = "WEIR_LISTEN")]
    pub listen: Option<String>,
    /// Port of target 0; target t listens on this port + t.
    #[arg(long, env = "WEIR_FABRIC_PORT")]
    pub fabric_port: Option<u16>,
    /// Auth keys of the fabric endpoints: service:first or service:first:last, a block of VNIs; zeros stand for what SLINGSHOT_* give.
    #[arg(long, env = "WEIR_FABRIC_AUTH_KEY")]
    pub fabric_auth_key: Option<String>,
    /// The NIC that fabric endpoints are on, and whose service is taken from `SLINGSHOT_SVC_IDS`.
    #[arg(long, env = "WEIR_FABRIC_DEVICE")]
    pub fabric_device: Option<String>,
    /// Where measurements by other providers are answered: provider:port, separated by commas.
    #[arg(long, env = "WEIR_PROBES", value_delimiter = ',')]
    pub probes: Vec<String>,
    /// Number of targets.
    #[arg(long, env = "WEIR_TARGETS")]
    pub targets: Option<u32>,
    /// Address and port of the management service.
    #[arg(long, env = "WEIR_MANAGEMENT_LISTEN")]
    pub management_listen: Option<String>,
    /// Address and port of /metrics, /healthz and /readyz.
    #[arg(long, env = "WEIR_METRICS_LISTEN")]
    pub metrics_listen: Option<String>,
    /// Directory of the targets' files.
    #[arg(long, env = "WEIR_DATA")]
    pub data: Option<PathBuf>,
    /// Devices of the targets instead of files, one for each and separated by commas, e.g. /dev/ng0n1.
    #[arg(long, env = "WEIR_DEVICES", value_delimiter = ',')]
    pub devices: Vec<PathBuf>,
    /// Configuration of SPDK, when devices are its own.
    #[arg(long, env = "WEIR_SPDK_CONFIG")]
    pub spdk_config: Option<PathBuf>,
    /// Memory that SPDK takes, e.g. 1GiB.
    #[arg(long, env = "WEIR_SPDK_MEMORY")]
    pub spdk_memory: Option<String>,
    /// Whether that memory is huge pages, which drives need: true or false.
    #[arg(long, env = "WEIR_SPDK_HUGE_PAGES")]
    pub spdk_huge_pages: Option<bool>,
    /// Size of a target's file when it is made, e.g. 8GiB.
    #[arg(long, env = "WEIR_TARGET_SIZE")]
    pub target_size: Option<String>,
    /// Memory that a target's index may take, e.g. 1GiB.
    #[arg(long, env = "WEIR_INDEX_MEMORY")]
    pub index_memory: Option<String>,
    /// Memory for small values that were written or read lately, of all targets together, e.g. 512MiB; 0 for none.
    #[arg(long, env = "WEIR_CACHE_MEMORY")]
    pub cache_memory: Option<String>,
    /// Most bytes a second that each target's scrubber reads, e.g. 32MiB; 0 turns it off.
    #[arg(long, env = "WEIR_SCRUB_RATE")]
    pub scrub_rate: Option<String>,
    /// Seconds from the begin of a pass of the scrubber to the begin of the next.
    #[arg(long, env = "WEIR_SCRUB_INTERVAL")]
    pub scrub_interval: Option<u64>,
    /// Seconds that a transfer of a target's device may take before the target is out of service until it ends.
    #[arg(long, env = "WEIR_STALL_LIMIT")]
    pub stall_limit: Option<u64>,
    /// Least part of its time, in percent, that a target works for rebuilds, however long clients wait; 100: it never waits for them.
    #[arg(long, env = "WEIR_REBUILD_FLOOR")]
    pub rebuild_floor: Option<u32>,
    /// What is logged: a level (error, warn, info, debug, trace) or directives as in `info,weir_rpc=debug`.
    #[arg(long, env = "WEIR_LOG")]
    pub log: Option<String>,
    /// Form of the log: text or json.
    #[arg(long, env = "WEIR_LOG_FORMAT")]
    pub log_format: Option<String>,
}

/// Why an engine can't be configured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("configuration file {path} can't be read: {source}; name another one with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file's content.
    #[error("configuration file {path} is not valid: {reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A key without a value.
    #[error("`{key}` is not set; set it in the configuration file or by {hint}")]
    Missing {
        /// The key.
        key: &'static str,
        /// Flag and variable.
        hint: &'static str,
    },
    /// A key with an impossible value.
    #[error("`{key}` = \"{value}\" is not valid: {reason}")]
    Invalid {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key.
    #[error("`auth.{key}`: {path}: {reason}")]
    Key {
        /// Which one.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
struct File {
    system: Option<String>,
    rank: Option<u32>,
    provider: Option<String>,
    receive_mode: Option<String>,
    memory_registration: Option<String>,
    host: Option<String>,
    listen: Option<String>,
    fabric_port: Option<u16>,
    fabric_auth_key: Option<String>,
    fabric_device: Option<String>,
    #[serde(default)]
    probes: Vec<String>,
    fabric_protocol: Option<String>,
    fabric_addresses: Option<String>,
    targets: Option<u32>,
    management_listen: Option<String>,
    metrics_listen: Option<String>,
    data: Option<PathBuf>,
    #[serde(default)]
    devices: Vec<PathBuf>,
    spdk_config: Option<PathBuf>,
    spdk_memory: Option<String>,
    spdk_huge_pages: Option<bool>,
    target_size: Option<String>,
    index_memory: Option<String>,
    cache_memory: Option<String>,
    scrub_rate: Option<String>,
    scrub_interval: Option<u64>,
    stall_limit: Option<u64>,
    rebuild_floor: Option<u32>,
    log: Option<String>,
    log_format: Option<String>,
    tls: Option<FileTls>,
    auth: Option<FileAuth>,
    membership: Option<FileMembership>,
    engines_version: Option<u64>,
    #[serde(default)]
    engines: Vec<FileEngine>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct FileTls {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct FileAuth {
    system_key: PathBuf,
    engine_key: PathBuf,
}

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "keys of the file say their unit")]
struct FileMembership {
    period_ms: Option<u64>,
    suspicion_min_ms: Option<u64>,
    suspicion_max_ms: Option<u64>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct FileEngine {
    rank: u32,
    host: String,
    fabric_port: u16,
    targets: u32,
    management: String,
}

/// Form of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// A complete configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the system.
    pub system: String,
    /// Number of this engine.
    pub rank: Rank,
    /// libfabric provider.
    pub provider: String,
    /// How receive memory is posted.
    pub receive: ReceiveMode,
    /// How memory is registered for peers.
    pub mr_method: MrMethod,
    /// How messages are sent.
    pub protocol: Protocol,
    /// Where the targets' addresses are known from.
    pub addressing: Addressing,
    /// Name or address by which others reach this engine.
    pub host: String,
    /// Address that fabric endpoints are bound to.
    pub listen: String,
    /// Port of target 0.
    pub fabric_port: u16,
    /// Auth keys of the fabric endpoints: a block of virtual networks, or none.
    pub auth_keys: Vec<AuthKey>,
    /// The NIC that the targets' endpoints are on; none leaves it to the provider.
    pub device: Option<String>,
    /// Where measurements by other providers are answered.
    pub probes: Vec<ProbeListener>,
    /// Number of targets.
    pub targets: u32,
    /// Where management listens.
    pub management_listen: SocketAddr,
    /// Where metrics listen.
    pub metrics_listen: SocketAddr,
    /// Directory of the targets' files.
    pub data: PathBuf,
    /// Devices of the targets, in their order; without any the targets are files.
    pub devices: Vec<PathBuf>,
    /// How SPDK is started; `None`: not at all.
    pub spdk: Option<SpdkConfig>,
    /// Bytes of a target's file when it is made.
    pub target_size: u64,
    /// Most bytes of memory that a target's index takes.
    pub index_memory: u64,
    /// Most bytes of small values that all targets together keep in memory; 0 for none.
    pub cache_memory: u64,
    /// How stored bytes are compared with their checksums in the background; `None`: not at all.
    pub scrub: Option<ScrubConfig>,
    /// How long a transfer of a device may take before the device counts as faulty until it ends.
    pub stall_limit: Duration,
    /// Least part of its time that a target works for rebuilds, above 0 and up to 1.
    pub rebuild_floor: f64,
    /// What is logged.
    pub log: String,
    /// How.
    pub log_format: LogFormat,
    /// Certificates of the management service.
    pub tls: TlsFiles,
    /// The key that engines and clients share.
    pub system_key: SystemKey,
    /// The key that engines have for themselves.
    pub engine_key: EngineKey,
    /// Times of the membership protocol.
    pub membership: SwimConfig,
    /// Every engine of the system, this one too, and the version of that list.
    pub engines: GroupList,
}

impl Config {
    /// Puts together what file, variables and flags say.
    ///
    /// # Errors
    /// Names the key that is missing or wrong.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let path = &flags.config;
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        let file: File = toml::from_str(&text).map_err(|error| ConfigError::Parse {
            path: path.clone(),
            reason: wrong::reason(&text, &error),
        })?;
        Self::merge(flags, file)
    }

    fn merge(flags: &Flags, file: File) -> Result<Self, ConfigError> {
        let spdk = spdk::parse(flags, &file)?;
        let folder = flags.config.parent().unwrap_or(Path::new("")).to_owned();
        let rank = Rank(required(flags.rank.or(file.rank), "rank", "--rank or WEIR_RANK")?);
        let listed = file.engines.iter().find(|engine| engine.rank == rank.0);
        let host = flags.host.clone().or(file.host).or_else(|| listed.map(|engine| engine.host.clone()));
        let host = required(host, "host", "--host or WEIR_HOST")?;
        let fabric_port = flags.fabric_port.or(file.fabric_port).or(listed.map(|engine| engine.fabric_port));
        let fabric_port = required(fabric_port, "fabric_port", "--fabric-port or WEIR_FABRIC_PORT")?;
        let targets = flags.targets.or(file.targets).or(listed.map(|engine| engine.targets));
        let targets = required(targets, "targets", "--targets or WEIR_TARGETS")?;
        let management = flags.management_listen.clone().or(file.management_listen);
        let management = management.as_deref().unwrap_or("0.0.0.0:10001");
        let metrics = flags.metrics_listen.clone().or(file.metrics_listen);
        let provider = flags.provider.clone().or(file.provider).unwrap_or_else(|| "tcp".to_owned());
        let device = flags.fabric_device.clone().or(file.fabric_device);
        let auth_key = flags.fabric_auth_key.clone().or(file.fabric_auth_key);
        let size = flags.target_size.clone().or(file.target_size);
        let index = flags.index_memory.clone().or(file.index_memory);
        let cache = flags.cache_memory.clone().or(file.cache_memory);
        let tls = required(file.tls, "tls", "a [tls] section with ca, cert and key")?;
        let auth = required(file.auth, "auth", "an [auth] section with system_key and engine_key")?;
        let bound = flags.listen.clone().or(file.listen).unwrap_or_else(|| listen_default(&host));
        let config = Self {
            system: flags.system.clone().or(file.system).unwrap_or_else(|| "weir".to_owned()),
            rank,
            protocol: protocol(
                flags.fabric_protocol.as_deref().or(file.fabric_protocol.as_deref()),
                &provider,
            )?,
            addressing: addressing(
                flags.fabric_addresses.as_deref().or(file.fabric_addresses.as_deref()),
                &provider,
            )?,
            auth_keys: auth_keys(auth_key.as_deref(), &provider, device.as_deref())?,
            device: configured_device(device.as_deref(), &provider, &Launch::from_environment()),
            provider,
            mr_method: mr_method(
                flags.memory_registration.as_deref().or(file.memory_registration.as_deref()),
            )?,
            receive: receive_mode(flags.receive_mode.as_deref().or(file.receive_mode.as_deref()))?,
            listen: bound,
            host,
            fabric_port,
            probes: probes::parse(if flags.probes.is_empty() { &file.probes } else { &flags.probes })?,
            targets,
            management_listen: address("management_listen", management)?,
            metrics_listen: address("metrics_listen", metrics.as_deref().unwrap_or("0.0.0.0:10002"))?,
            data: flags.data.clone().or(file.data).unwrap_or_else(|| "/var/lib/weir".into()),
            devices: if flags.devices.is_empty() { file.devices } else { flags.devices.clone() },
            spdk,
            target_size: parse_size("target_size", size.as_deref().unwrap_or("8GiB"))?,
            index_memory: parse_size("index_memory", index.as_deref().unwrap_or("1GiB"))?,
            cache_memory: cache_memory(cache.as_deref(), targets)?,
            scrub: scrub(
                flags.scrub_rate.as_deref().or(file.scrub_rate.as_deref()).unwrap_or("32MiB"),
                flags.scrub_interval.or(file.scrub_interval).unwrap_or(SCRUB_INTERVAL_DEFAULT),
            )?,
            stall_limit: stall_limit(flags.stall_limit.or(file.stall_limit))?,
            rebuild_floor: rebuild::floor(flags.rebuild_floor.or(file.rebuild_floor))?,
            log: flags.log.clone().or(file.log).unwrap_or_else(|| "info".to_owned()),
            log_format: parse_format(flags.log_format.as_deref().or(file.log_format.as_deref()))?,
            tls: TlsFiles { ca: folder.join(tls.ca), cert: folder.join(tls.cert), key: folder.join(tls.key) },
            system_key: read_key("system_key", folder.join(auth.system_key))?,
            engine_key: EngineKey(read_key("engine_key", folder.join(auth.engine_key))?.0),
            membership: membership(&file.membership.unwrap_or_default())?,
            engines: GroupList::default(),
        };
        config.check()?;
        config.with_engines(&file.engines, file.engines_version)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.engine_key.0 == self.system_key.0 {
            let reason =
                "it is the system key, which clients have; make another one with `openssl rand -base64 32`";
            return Err(invalid("auth.engine_key", "(a key)", reason));
        }
        if self.system.is_empty() || self.system.len() > 63 {
            return Err(invalid("system", &self.system, "a system's name has 1 to 63 characters"));
        }
        if !is_provider(&self.provider) {
            return Err(invalid("provider", &self.provider, "use tcp, shm, verbs or cxi"));
        }
        if self.host.is_empty() {
            return Err(invalid(
                "host",
                &self.host,
                "give the name or address by which others reach this engine",
            ));
        }
        if self.targets == 0 || self.targets > TARGETS_MAX {
            let reason = format!("an engine has 1 to {TARGETS_MAX} targets");
            return Err(invalid("targets", &self.targets.to_string(), &reason));
        }
        if u32::from(self.fabric_port) + self.targets - 1 > u32::from(u16::MAX) || self.fabric_port == 0 {
            let reason = format!("{} targets need ports up to 65535", self.targets);
            return Err(invalid("fabric_port", &self.fabric_port.to_string(), &reason));
        }
        if self.target_size < TARGET_SIZE_MIN {
            let reason = format!("a target has at least {TARGET_SIZE_MIN} bytes");
            return Err(invalid("target_size", &self.target_size.to_string(), &reason));
        }
        self.check_devices()?;
        self.check_probes()?;
        if self.index_memory < INDEX_MEMORY_MIN {
            let reason = format!("a target's index has at least {INDEX_MEMORY_MIN} bytes of memory");
            return Err(invalid("index_memory", &self.index_memory.to_string(), &reason));
        }
        Ok(())
    }

    fn check_devices(&self) -> Result<(), ConfigError> {
        let listed: Vec<_> = self.devices.iter().map(|device| device.display().to_string()).collect();
        let refuse = |reason: &str| Err(invalid("devices", &listed.join(","), reason));
        if !self.devices.is_empty()
            && self.devices.len() != usize::try_from(self.targets).unwrap_or(usize::MAX)
        {
            return refuse("name as many devices as there are targets, or none for files");
        }
        if (1..listed.len()).any(|index| listed[..index].contains(&listed[index])) {
            return refuse("each target needs a device of its own");
        }
        if self.devices.iter().any(|device| device.is_relative() && weir_media::spdk_name(device).is_none()) {
            return refuse("give absolute paths, or `spdk:` and the name of a device of SPDK");
        }
        let uses_spdk = self.devices.iter().any(|device| weir_media::spdk_name(device).is_some());
        match &self.spdk {
            None if uses_spdk => refuse("devices of SPDK need its configuration (`spdk_config`)"),
            Some(spdk) if !cfg!(feature = "spdk") => {
                let reason = "this engine was built without SPDK: build it with the feature `spdk`";
                Err(invalid("spdk_config", &spdk.path.display().to_string(), reason))
            }
            _ => Ok(()),
        }
    }

    /// Takes over the list of engines, in which this one must stand as it is configured.
    fn with_engines(mut self, listed: &[FileEngine], version: Option<u64>) -> Result<Self, ConfigError> {
        let mut engines: Vec<EngineInfo> = Vec::new();
        for engine in listed {
            let key = format!("engines (rank {})", engine.rank);
            if engines.iter().any(|known| known.rank.0 == engine.rank) {
                return Err(invalid(&key, &engine.host, "the rank is listed twice"));
            }
            if engine.rank == self.rank.0
                && (engine.fabric_port, engine.targets) != (self.fabric_port, self.targets)
            {
                let value = format!("fabric_port {}, targets {}", engine.fabric_port, engine.targets);
                let reason =
                    format!("this engine has fabric_port {}, targets {}", self.fabric_port, self.targets);
                return Err(invalid(&key, &value, &reason));
            }
            if engine.targets == 0 || u32::from(engine.fabric_port) + engine.targets - 1 > u32::from(u16::MAX)
            {
                return Err(invalid(
                    &key,
                    &engine.targets.to_string(),
                    "it has no targets, or ports beyond 65535",
                ));
            }
            engines.push(EngineInfo {
                rank: Rank(engine.rank),
                host: engine.host.clone(),
                fabric_port: engine.fabric_port,
                targets: engine.targets,
                management: engine.management.clone(),
            });
        }
        if listed.is_empty() {
            let management = format!("{}:{}", self.host, self.management_listen.port());
            let (rank, fabric_port, targets) = (self.rank, self.fabric_port, self.targets);
            engines.push(EngineInfo { rank, host: self.host.clone(), fabric_port, targets, management });
        }
        if !engines.iter().any(|known| known.rank == self.rank) {
            let known: Vec<_> = engines.iter().map(|known| known.rank.to_string()).collect();
            let reason =
                format!("[[engines]] lists ranks {}; list every engine, this one too", known.join(", "));
            return Err(invalid("rank", &self.rank.to_string(), &reason));
        }
        self.engines = GroupList::from(engines);
        self.engines.version = version.unwrap_or(self.engines.version);
        Ok(self)
    }
}

/// Whether this is the name of a provider; the machine may not have it all the same.
fn is_provider(name: &str) -> bool {
    PROVIDERS.contains(&name) || name.starts_with("mercury/")
}

fn required<T>(value: Option<T>, key: &'static str, hint: &'static str) -> Result<T, ConfigError> {
    value.ok_or(ConfigError::Missing { key, hint })
}

/// A key has an impossible value; it is shown in part when it is long.
#[must_use]
pub fn invalid(key: &str, value: &str, reason: &str) -> ConfigError {
    let value = wrong::brief(value, wrong::REASON_MAX);
    ConfigError::Invalid { key: key.to_owned(), value, reason: wrong::brief(reason, wrong::REPORT_MAX) }
}

fn auth_keys(text: Option<&str>, provider: &str, device: Option<&str>) -> Result<Vec<AuthKey>, ConfigError> {
    let keys = configured_server_keys(text, provider, device, &Launch::from_environment());
    keys.map_err(|error| invalid("fabric_auth_key", text.unwrap_or("0:0"), &error.to_string()))
}

/// An address is listened at itself; a name may not resolve yet, so every address of its family is.
fn listen_default(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED).to_string(),
    }
}

/// `address:port`, or `:port` for every address.
fn address(key: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    let any = text.strip_prefix(':').and_then(|port| port.parse().ok());
    let parsed = match any {
        Some(port) => Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| invalid(key, text, "give an address and a port, e.g. 0.0.0.0:10001"))
}

/// Bytes of a size like "8GiB", "512Mi" or "1073741824".
fn parse_size(key: &str, text: &str) -> Result<u64, ConfigError> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "" | "B" => Some(0),
        "KiB" | "Ki" => Some(10),
        "MiB" | "Mi" => Some(20),
        "GiB" | "Gi" => Some(30),
        "TiB" | "Ti" => Some(40),
        _ => None,
    };
    let bytes =
        unit.zip(digits.parse::<u64>().ok()).and_then(|(shift, number)| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| invalid(key, text, "give bytes, or a whole number with KiB, MiB, GiB or TiB"))
}

/// Times of the membership protocol: what isn't set keeps its proportion to the period.
fn membership(file: &FileMembership) -> Result<SwimConfig, ConfigError> {
    let millis = |key: &str, value: Option<u64>, default: Duration, least: Duration| {
        let time = value.map_or(default, Duration::from_millis);
        if (least..=MEMBERSHIP_TIME_MAX).contains(&time) {
            return Ok(time);
        }
        let reason = format!("give {} to {} ms", least.as_millis(), MEMBERSHIP_TIME_MAX.as_millis());
        Err(invalid(&format!("membership.{key}"), &time.as_millis().to_string(), &reason))
    };
    let default = SwimConfig::default().period;
    let period = millis("period_ms", file.period_ms, default, MEMBERSHIP_PERIOD_MIN)?;
    let mut config = SwimConfig::with_period(period);
    config.suspicion_min =
        millis("suspicion_min_ms", file.suspicion_min_ms, config.suspicion_min, config.period)?;
    let longest = config.suspicion_max.max(config.suspicion_min);
    config.suspicion_max = millis("suspicion_max_ms", file.suspicion_max_ms, longest, config.suspicion_min)?;
    Ok(config)
}

fn scrub(rate: &str, interval: u64) -> Result<Option<ScrubConfig>, ConfigError> {
    let bytes_per_second = parse_size("scrub_rate", rate)?;
    if bytes_per_second > 0 && bytes_per_second < SCRUB_RATE_MIN {
        let reason = format!("give 0 to turn the scrubber off, or at least {SCRUB_RATE_MIN} bytes a second");
        return Err(invalid("scrub_rate", rate, &reason));
    }
    if !(SCRUB_INTERVAL_MIN..=SCRUB_INTERVAL_MAX).contains(&interval) {
        let reason = format!("give {SCRUB_INTERVAL_MIN} to {SCRUB_INTERVAL_MAX} seconds");
        return Err(invalid("scrub_interval", &interval.to_string(), &reason));
    }
    let interval = Duration::from_secs(interval);
    Ok((bytes_per_second > 0).then_some(ScrubConfig { bytes_per_second, interval }))
}

fn stall_limit(seconds: Option<u64>) -> Result<Duration, ConfigError> {
    let limit = seconds.map_or(STALL_LIMIT, Duration::from_secs);
    if (STALL_LIMIT_MIN..=STALL_LIMIT_MAX).contains(&limit.as_secs()) {
        return Ok(limit);
    }
    let reason = format!("give {STALL_LIMIT_MIN} to {STALL_LIMIT_MAX} seconds");
    Err(invalid("stall_limit", &limit.as_secs().to_string(), &reason))
}

fn parse_format(text: Option<&str>) -> Result<LogFormat, ConfigError> {
    match text {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(other) => Err(invalid("log_format", other, "use text or json")),
    }
}

fn read_key(key: &'static str, path: PathBuf) -> Result<SystemKey, ConfigError> {
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let read = text.and_then(|text| SystemKey::parse(&text).map_err(|error| error.to_string()));
    read.map_err(|reason| ConfigError::Key { key, path, reason })
}

#[cfg(test)]
mod tests;
