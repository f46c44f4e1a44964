//! The specification of a mount: what, where and how.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How long an operation waits for an engine that is away before it fails with `EIO`: as long as Kubernetes takes by
/// default to give up a lost node (5 minutes), so that a rescheduled engine is waited for.
pub const DEFAULT_ENGINE_WAIT: Duration = Duration::from_mins(5);

/// How long pool and container may take to open. An engine that has just been started again is back by then, and the
/// caller of a mount has not given up yet.
pub const DEFAULT_OPEN_WAIT: Duration = Duration::from_mins(1);

fn default_open_wait() -> Duration {
    DEFAULT_OPEN_WAIT
}

/// Threads that serve a mount. Each holds one request, so this bounds how many are under way at once, but for those that wait
/// for an engine that is away. Each owns an endpoint, which takes some 2 MiB, and up to 12 MiB when it has moved large pieces; 4
/// hide the round trips of a few programs.
pub const DEFAULT_THREADS: usize = 4;

/// Most of them: their endpoints take up to 3 GiB, and a target on `shm` has room for no more peers.
pub const THREADS_MAX: usize = 256;

/// MiB of a mount's writes that the engines don't have, unless an option says otherwise: covers the round trips of some writers.
pub const DEFAULT_UNSENT_MIB: u64 = 80;

/// What an option may say of them: a fifth of it is for one file, which writes 1 MiB at a time; and many mounts share a node.
const UNSENT_MIB: std::ops::RangeInclusive<u64> = 10..=1024;

/// How long the kernel may use attributes and entries without asking again (close-to-open, `docs/reference/posix.md`).
pub const CACHE_LIFE: Duration = Duration::from_secs(1);

/// For how long a mount with `cache=cached` goes by what it has learned, unless the option says otherwise.
const DEFAULT_CACHED: Duration = Duration::from_mins(1);

/// What the option may say, in seconds.
const CACHED_SECONDS: std::ops::RangeInclusive<u64> = 1..=86_400;

/// Threads of a mount from their number as text.
///
/// # Errors
/// When it is no number of 1 to [`THREADS_MAX`].
pub fn parse_threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number.ok_or_else(|| format!("a mount has 1 to {THREADS_MAX} threads"))
}

/// What is logged: a level, or directives as in `info,weir_rpc=debug`. A word that is no level would be taken for a part of
/// the program, and everything else be left out of the log.
///
/// # Errors
/// When it is neither.
pub fn parse_log(text: &str) -> Result<String, String> {
    let is_known = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    if text.split(',').all(is_known) && EnvFilter::try_new(text).is_ok() {
        Ok(text.to_owned())
    } else {
        Err("use error, warn, info, debug or trace, or directives as in `info,weir_rpc=debug`".to_owned())
    }
}

/// Longest name of a volume, in bytes (mount protocol).
pub const VOLUME_NAME_MAX: usize = 256;

/// How data and attributes are cached on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The page cache holds data between opens while no other client changed the file; attributes live up to a second.
    #[default]
    CloseToOpen,
    /// Every read and every lookup asks the engines.
    None,
    /// What was learned is used for so long without asking: names, names that don't exist, attributes, and content that the page
    /// cache holds. Changes by other clients may stay unseen for that time.
    Cached(Duration),
}

impl Cache {
    /// How long the kernel may use attributes and names.
    #[must_use]
    pub const fn life(self) -> Duration {
        match self {
            Self::CloseToOpen => CACHE_LIFE,
            Self::None => Duration::ZERO,
            Self::Cached(life) => life,
        }
    }

    /// Whether the page cache holds data, and the mount gathers changes.
    #[must_use]
    pub fn holds_data(self) -> bool {
        self != Self::None
    }
}

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountSpec {
    /// Name of the system; empty means the only one.
    pub system: String,
    /// Attach file of the system.
    pub attach: PathBuf,
    /// Pool, by label or UUID text.
    pub pool: String,
    /// Container, by label or UUID text.
    pub container: String,
    /// Absolute path of a directory.
    pub target: PathBuf,
    /// Refuse every change.
    pub read_only: bool,
    /// Group that owns what is created; 0 means no such group.
    pub fs_group: u32,
    /// Options as the user gave them.
    pub options: Vec<String>,
    /// Name of the volume in logs.
    pub volume: String,
    /// Threads that serve requests.
    pub threads: usize,
    /// How long an operation waits for an engine that is away.
    pub engine_wait: Duration,
    /// How long pool and container may take to open.
    #[serde(default = "default_open_wait")]
    pub open_wait: Duration,
    /// The tenant whose credentials came with the request; none uses the daemon's own attach files.
    #[serde(default)]
    pub tenant: Option<u64>,
}

/// Options, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "mount options are independent of each other")]
pub struct MountOptions {
    /// No device files.
    pub nodev: bool,
    /// No set-user-id programs.
    pub nosuid: bool,
    /// No programs at all.
    pub noexec: bool,
    /// No changes.
    pub read_only: bool,
    /// Caching.
    pub cache: Cache,
    /// Bytes that the engines don't have, at most.
    pub unsent: u64,
    /// Any process may get the container's handle, to access files without this mount.
    pub intercept: bool,
}

/// A request to mount cannot be served as it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidSpec {
    /// An option that is not known.
    #[error(
        "mount option \"{0}\" is not served: use noatime, nodev, nosuid, noexec, ro, rw, intercept, cache=close-to-open, cache=none, cache=cached, cache=cached:SECONDS (1 to 86400) or unsent=10 to unsent=1024 (MiB)"
    )]
    UnknownOption(String),
    /// Options that exclude each other.
    #[error("mount options \"{0}\" and \"{1}\" exclude each other: give one of them")]
    Conflict(&'static str, &'static str),
    /// A field that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A label or UUID that cannot be one.
    #[error("{0}: {1}")]
    Label(&'static str, weir_proto::pool::InvalidLabel),
    /// The target is not a plain absolute path.
    #[error("target path \"{0}\" must be absolute and without \".\" and \"..\"")]
    Target(PathBuf),
    /// The volume's name is too long.
    #[error("the volume's name has {0} bytes, more than {VOLUME_NAME_MAX}")]
    VolumeName(usize),
}

/// Understands mount options.
///
/// # Errors
/// When one is not known, or two exclude each other.
pub fn parse_options(options: &[String]) -> Result<MountOptions, InvalidSpec> {
    let mut parsed = MountOptions::default();
    let (mut ro, mut rw) = (false, false);
    let mut cache: Option<Cache> = None;
    let mut unsent: Option<u64> = None;
    for option in options.iter().map(|option| option.trim()).filter(|option| !option.is_empty()) {
        match option {
            "noatime" => {}
            "nodev" => parsed.nodev = true,
            "nosuid" => parsed.nosuid = true,
            "noexec" => parsed.noexec = true,
            "intercept" => parsed.intercept = true,
            "ro" => ro = true,
            "rw" => rw = true,
            other if let Some(wanted) = parse_cache(other) => {
                if cache.is_some_and(|earlier| earlier != wanted) {
                    return Err(InvalidSpec::Conflict("cache=…", "another cache=…"));
                }
                cache = Some(wanted);
            }
            other if let Some(wanted) = parse_unsent(other) => {
                if unsent.is_some_and(|earlier| earlier != wanted) {
                    return Err(InvalidSpec::Conflict("unsent=…", "another unsent=…"));
                }
                unsent = Some(wanted);
            }
            other => return Err(InvalidSpec::UnknownOption(other.chars().take(VOLUME_NAME_MAX).collect())),
        }
    }
    if ro && rw {
        return Err(InvalidSpec::Conflict("ro", "rw"));
    }
    parsed.read_only = ro;
    parsed.cache = cache.unwrap_or_default();
    parsed.unsent = unsent.unwrap_or(DEFAULT_UNSENT_MIB) << 20;
    Ok(parsed)
}

fn parse_cache(option: &str) -> Option<Cache> {
    match option.strip_prefix("cache=")? {
        "close-to-open" => Some(Cache::CloseToOpen),
        "none" => Some(Cache::None),
        "cached" => Some(Cache::Cached(DEFAULT_CACHED)),
        timed => {
            let seconds = timed.strip_prefix("cached:")?.parse().ok();
            seconds
                .filter(|seconds| CACHED_SECONDS.contains(seconds))
                .map(Duration::from_secs)
                .map(Cache::Cached)
        }
    }
}

fn parse_unsent(option: &str) -> Option<u64> {
    option.strip_prefix("unsent=")?.parse().ok().filter(|mib| UNSENT_MIB.contains(mib))
}

fn check_name(field: &'static str, name: &str) -> Result<(), InvalidSpec> {
    if name.is_empty() {
        return Err(InvalidSpec::Missing(field));
    }
    // A UUID is a good name though not a good label.
    if name.len() == 36 && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        return Ok(());
    }
    weir_proto::pool::validate_label(name).map_err(|error| InvalidSpec::Label(field, error))
}

impl MountSpec {
    /// Checks what can be checked without the engines and returns the parsed options.
    ///
    /// # Errors
    /// When a field is missing or malformed.
    pub fn validate(&self) -> Result<MountOptions, InvalidSpec> {
        check_name("pool", &self.pool)?;
        check_name("container", &self.container)?;
        if !is_plain_absolute(&self.target) {
            return Err(InvalidSpec::Target(self.target.clone()));
        }
        if self.volume.len() > VOLUME_NAME_MAX {
            return Err(InvalidSpec::VolumeName(self.volume.len()));
        }
        let mut options = parse_options(&self.options)?;
        options.read_only |= self.read_only;
        Ok(options)
    }

    /// Whether another request asks for the same mount: everything but the volume's name, which only logs show.
    #[must_use]
    pub fn same_mount(&self, other: &Self) -> bool {
        self.validate().ok() == other.validate().ok()
            && self.system == other.system
            && self.pool == other.pool
            && self.container == other.container
            && self.target == other.target
            && self.fs_group == other.fs_group
            && self.tenant == other.tenant
    }

    /// Source of the mount as `mount` and `df` show it.
    #[must_use]
    pub fn source(&self) -> String {
        format!("weir:{}/{}", self.pool, self.container)
    }
}

/// Absolute, and every component a name: no `.` or `..` and no doubled slash.
#[must_use]
pub fn is_plain_absolute(path: &Path) -> bool {
    let plain: PathBuf = path
        .components()
        .filter(|part| matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_)))
        .collect();
    path.is_absolute() && plain.as_os_str() == path.as_os_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> MountSpec {
        MountSpec {
            system: String::new(),
            attach: "/etc/weir/client/client.json".into(),
            pool: "tank".into(),
            container: "home".into(),
            target: "/mnt/home".into(),
            read_only: false,
            fs_group: 0,
            options: vec![],
            volume: String::new(),
            threads: DEFAULT_THREADS,
            engine_wait: DEFAULT_ENGINE_WAIT,
            open_wait: DEFAULT_OPEN_WAIT,
            tenant: None,
        }
    }

    fn options(list: &[&str]) -> Result<MountOptions, InvalidSpec> {
        parse_options(&list.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_misspelt_level_is_none() {
        for good in ["info", "WARN", "", "off", "info,weir_rpc=debug", "weir_rpc=debug, warn"] {
            assert_eq!(parse_log(good).as_deref(), Ok(good));
        }
        for bad in ["infoo", "weir_rpc", "info,debgu", "info,weir_rpc=loud", "=="] {
            assert!(parse_log(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn served_options_are_understood_and_others_named() {
        let parsed = options(&["noatime", "nodev", "ro", "intercept", "cache=none"]).expect("served");
        assert!(parsed.nodev && parsed.read_only && parsed.intercept && !parsed.noexec);
        assert_eq!((parsed.cache, parsed.unsent), (Cache::None, DEFAULT_UNSENT_MIB << 20));
        assert_eq!(options(&["unsent=10"]).map(|parsed| parsed.unsent), Ok(10 << 20));
        for bad in ["unsent=9", "unsent=1025", "unsent=", "unsent=-1", "unsent=1Gi"] {
            assert_eq!(options(&[bad]), Err(InvalidSpec::UnknownOption(bad.into())));
        }
        assert!(options(&["unsent=10", "unsent=20"]).is_err());
        assert_eq!(options(&["sync"]), Err(InvalidSpec::UnknownOption("sync".into())));
        assert_eq!(options(&["ro", "rw"]), Err(InvalidSpec::Conflict("ro", "rw")));
        assert!(options(&["cache=none", "cache=close-to-open"]).is_err());
        let cached = |option| options(&[option]).map(|parsed| parsed.cache.life().as_secs());
        assert_eq!((cached("cache=cached"), cached("cache=cached:86400")), (Ok(60), Ok(86_400)));
        for bad in ["cache=cached:", "cache=cached:0", "cache=cached:86401", "cache=cached:-1", "cache=all"] {
            assert_eq!(options(&[bad]), Err(InvalidSpec::UnknownOption(bad.into())));
        }
    }

    #[test]
    fn a_hostile_request_is_refused_with_the_field_it_is_about() {
        for (bad, field) in [
            (MountSpec { pool: String::new(), ..spec() }, "pool"),
            (MountSpec { container: "a/b".into(), ..spec() }, "container"),
            (MountSpec { target: "mnt".into(), ..spec() }, "target"),
            (MountSpec { target: "/var/lib/kubelet/../../etc".into(), ..spec() }, "target"),
            (MountSpec { target: "/mnt/./x".into(), ..spec() }, "target"),
            (MountSpec { volume: "x".repeat(VOLUME_NAME_MAX + 1), ..spec() }, "volume"),
        ] {
            let error = bad.validate().expect_err(field).to_string();
            assert!(error.contains(field), "{error}");
        }
        let by_uuid = MountSpec { pool: "0b7c1f2e-5f0a-4b52-9d53-1f9d7a0c7b11".into(), ..spec() };
        assert!(by_uuid.validate().is_ok());
    }

    #[test]
    fn the_same_mount_is_recognised_whatever_the_order_of_its_options() {
        let one = MountSpec { options: vec!["nodev".into(), "ro".into()], ..spec() };
        let same =
            MountSpec { options: vec!["nodev".into()], read_only: true, volume: "pvc-1".into(), ..spec() };
        assert!(one.same_mount(&same));
        assert!(!one.same_mount(&spec()));
        assert!(!spec().same_mount(&MountSpec { container: "other".into(), ..spec() }));
        assert!(!spec().same_mount(&MountSpec { tenant: Some(7), ..spec() }));
    }
}
