//! The attach file: how a client reaches a system.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_fabric::{Addressing, AuthKey, AuthKeyError, Launch, configured_client_key, configured_device};
use weir_proto::capability::SystemKey;
use weir_proto::{Rank, TenantId, TenantKey};

/// Environment variable that names the attach file.
pub const ATTACH_VARIABLE: &str = "WEIR_ATTACH";

/// Environment variable that overrides the attach file's `fabric_auth_key`.
pub const AUTH_KEY_VARIABLE: &str = "WEIR_FABRIC_AUTH_KEY";

/// Environment variable that overrides the attach file's `fabric_device`.
pub const DEVICE_VARIABLE: &str = "WEIR_FABRIC_DEVICE";

/// Environment variable that overrides the attach file's `fabric_addresses`.
pub const ADDRESSES_VARIABLE: &str = "WEIR_FABRIC_ADDRESSES";

/// Where the attach file is looked for when nothing names it, in this order.
pub const ATTACH_DEFAULTS: [&str; 2] = ["/etc/weir/client/client.json", "/etc/weir/client.json"];

/// Largest attach file that is read, in bytes: what a Kubernetes Secret may hold.
const ATTACH_BYTES_MAX: u64 = 1 << 20;

/// Why the system's attach information can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// No file named and none at the default places.
    #[error(
        "no attach file: name one in the environment variable WEIR_ATTACH or put it at /etc/weir/client/client.json"
    )]
    NotFound,
    /// The file can't be read.
    #[error("attach file {path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        reason: String,
    },
    /// The file isn't an attach file.
    #[error("attach file {path} is not valid: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which rule is broken.
        reason: String,
    },
    /// There is no virtual network to be on.
    #[error("fabric_auth_key of attach file {path}: {source}")]
    AuthKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: AuthKeyError,
    },
    /// The key can't be used.
    #[error("key {path}: {reason}")]
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Addresses of one engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineAddress {
    /// Its number in the system.
    pub rank: u32,
    /// Name or address at which its targets listen.
    pub host: String,
    /// Port of target 0; target `t` listens at `fabric_port + t`.
    pub fabric_port: u16,
    /// Number of targets.
    pub targets: u32,
    /// `host:port` of its management service; not used on the data path.
    #[serde(default)]
    pub management: String,
}

impl EngineAddress {
    /// Port of one target; `None` when there is no such port.
    #[must_use]
    pub fn port_of(&self, target: u32) -> Option<u16> {
        self.fabric_port.checked_add(u16::try_from(target).ok()?)
    }
}

#[derive(Deserialize)]
struct AttachFile {
    system: String,
    provider: String,
    engines: Vec<EngineAddress>,
    #[serde(default)]
    system_key_file: Option<PathBuf>,
    #[serde(default)]
    tenant: u64,
    #[serde(default)]
    tenant_key_file: Option<PathBuf>,
    #[serde(default)]
    fabric_auth_key: Option<String>,
    #[serde(default)]
    fabric_device: Option<String>,
    #[serde(default)]
    fabric_addresses: Option<String>,
}

/// The texts of an attach file and of the key that it names, as one process hands them to another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachText {
    file: String,
    key: String,
}

impl core::fmt::Debug for AttachText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "AttachText({}, ..)", self.file)
    }
}

impl AttachText {
    fn read(path: &Path) -> Result<Self, AttachError> {
        let file = read_bounded(path).map_err(|reason| AttachError::Unreadable {
            path: path.to_path_buf(),
            reason: reason.to_string(),
        })?;
        let (key_path, _) = AttachFile::parse(path, &file)?.key_file(path)?;
        let key = read_bounded(&key_path)
            .map_err(|error| AttachError::Key { path: key_path, reason: error.to_string() })?;
        Ok(Self { file, key })
    }

    /// Reads an attach file with a tenant's own key. `None`: the file names the system's key, which opens more than the pools of one tenant.
    ///
    /// # Errors
    /// When a file isn't readable or valid.
    pub fn of_tenant(path: &Path) -> Result<Option<Self>, AttachError> {
        let text = Self::read(path)?;
        let (_, is_tenants) = AttachFile::parse(path, &text.file)?.key_file(path)?;
        Ok(is_tenants.then_some(text))
    }
}

impl AttachFile {
    fn parse(path: &Path, text: &str) -> Result<Self, AttachError> {
        serde_json::from_str(text)
            .map_err(|error| AttachError::Malformed { path: path.to_path_buf(), reason: error.to_string() })
    }

    /// Where its key is, and whether that is a tenant's own.
    fn key_file(&self, path: &Path) -> Result<(PathBuf, bool), AttachError> {
        let (name, is_tenants) = match (&self.tenant_key_file, &self.system_key_file) {
            (Some(name), _) if TenantId(self.tenant) != TenantId::SYSTEM => (name, true),
            (None, Some(name)) => (name, false),
            _ => {
                let reason = "it names no `system_key_file`, or no `tenant` with its `tenant_key_file`";
                return Err(AttachError::Malformed { path: path.to_path_buf(), reason: reason.to_owned() });
            }
        };
        Ok((path.parent().unwrap_or(Path::new("")).join(name), is_tenants))
    }

    /// The virtual network and the NIC to be on: what the environment names, else the file, else the job's launcher.
    fn network(&self) -> Result<(Option<AuthKey>, Option<String>), AuthKeyError> {
        let text = set(AUTH_KEY_VARIABLE).or_else(|| self.fabric_auth_key.clone());
        let device = set(DEVICE_VARIABLE).or_else(|| self.fabric_device.clone());
        let (launch, device) = (Launch::from_environment(), device.as_deref());
        let key = configured_client_key(text.as_deref(), &self.provider, device, &launch)?;
        Ok((key, configured_device(device, &self.provider, &launch)))
    }

    /// Where addresses of targets are known from: as the environment says, else the file, else as the provider has them.
    fn addressing(&self) -> Result<Addressing, String> {
        let Some(text) = set(ADDRESSES_VARIABLE).or_else(|| self.fabric_addresses.clone()) else {
            return Ok(Addressing::ByProvider);
        };
        Addressing::from_name(&text)
            .ok_or_else(|| format!("`fabric_addresses` is \"{text}\": use ports or published, as engines do"))
    }
}

/// An environment variable that is not empty.
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// How to reach a system: what the operator, or `weir dev`, writes for clients.
#[derive(Clone, Debug)]
pub struct Attach {
    /// The system's name.
    pub system: String,
    /// libfabric provider of the data path.
    pub provider: String,
    /// The engines, in no particular order.
    pub engines: Vec<EngineAddress>,
    /// The key that proves to engines whose client this is: a tenant's, or the system's own.
    pub key: TenantKey,
    /// The virtual network of the client's endpoints, where the provider has such.
    pub auth_key: Option<AuthKey>,
    /// The NIC that the client's endpoints are on; none leaves it to the provider.
    pub device: Option<String>,
    /// Where addresses of targets are known from; the same as on engines.
    pub addressing: Addressing,
}

impl Attach {
    /// Reads the attach file at `path`, else the one that the environment names, else the first that exists at a
    /// default place; and the key file it names (relative names are relative to the attach file's folder).
    ///
    /// # Errors
    /// When there is no file, or it or the key file isn't readable or valid.
    pub fn load(path: Option<&Path>) -> Result<Self, AttachError> {
        let named =
            path.map(Path::to_path_buf).or_else(|| std::env::var_os(ATTACH_VARIABLE).map(PathBuf::from));
        let path = match named {
            Some(path) => path,
            None => ATTACH_DEFAULTS
                .iter()
                .map(PathBuf::from)
                .find(|path| path.exists())
                .ok_or(AttachError::NotFound)?,
        };
        let text = AttachText::read(&path)?;
        Self::of(&path, &text)
    }

    /// From texts that another process has handed over. Errors name the file that it has read.
    ///
    /// # Errors
    /// When one of them isn't valid.
    pub fn of(path: &Path, text: &AttachText) -> Result<Self, AttachError> {
        let malformed = |reason: String| AttachError::Malformed { path: path.to_path_buf(), reason };
        let file = AttachFile::parse(path, &text.file)?;
        let (key_path, is_tenants) = file.key_file(path)?;
        let tenant = TenantId(file.tenant);
        let key = if is_tenants {
            TenantKey::parse(tenant, &text.key).map_err(|error| error.to_string())
        } else {
            SystemKey::parse(&text.key).map(|key| key.tenant(tenant)).map_err(|error| error.to_string())
        };
        let key = key.map_err(|reason| AttachError::Key { path: key_path, reason })?;
        let (auth_key, device) =
            file.network().map_err(|source| AttachError::AuthKey { path: path.to_path_buf(), source })?;
        let addressing = file.addressing().map_err(malformed)?;
        let AttachFile { system, provider, engines, .. } = file;
        let attach = Self { system, provider, engines, key, auth_key, device, addressing };
        attach.check().map_err(malformed)?;
        Ok(attach)
    }

    fn check(&self) -> Result<(), String> {
        if self.engines.is_empty() {
            return Err("it names no engine".into());
        }
        let mut ranks: Vec<u32> = self.engines.iter().map(|engine| engine.rank).collect();
        ranks.sort_unstable();
        if let Some([rank, _]) = ranks.array_windows().find(|[one, next]| one == next) {
            return Err(format!("rank {rank} is named twice"));
        }
        for engine in &self.engines {
            if engine.targets == 0 || engine.port_of(engine.targets - 1).is_none() {
                return Err(format!(
                    "engine {} has {} targets from port {}: use at least one and ports up to {}",
                    engine.rank,
                    engine.targets,
                    engine.fabric_port,
                    u16::MAX
                ));
            }
        }
        Ok(())
    }

    /// The engine of this rank.
    #[must_use]
    pub fn engine(&self, rank: Rank) -> Option<&EngineAddress> {
        self.engines.iter().find(|engine| engine.rank == rank.0)
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(ATTACH_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

    fn load(text: &str) -> Result<Attach, AttachError> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("system.key"), KEY).expect("written");
        let path = folder.path().join("client.json");
        std::fs::write(&path, text).expect("written");
        Attach::load(Some(&path))
    }

    #[test]
    fn an_attach_file_gives_engines_and_key() {
        let attach = load(
            r#"{"system":"weir","provider":"tcp","engines":[{"rank":3,"host":"n3","fabric_port":10100,"targets":2,
            "management":"n3:10001"}],"system_key_file":"system.key","tls":{"ca":"x"}}"#,
        )
        .expect("valid");
        let engine = attach.engine(Rank(3)).expect("named");
        assert_eq!(engine.port_of(1), Some(10101));
        let bytes = core::array::from_fn(|at| u8::try_from(at).expect("small"));
        assert_eq!(attach.key, SystemKey(bytes).tenant(TenantId::SYSTEM));
    }

    #[test]
    fn a_tenants_attach_file_has_the_tenants_key_and_no_other() {
        let with = |keys: &str| {
            let engine = r#"{"rank":0,"host":"h","fabric_port":10100,"targets":1}"#;
            load(&format!(r#"{{"system":"w","provider":"tcp","engines":[{engine}],{keys}}}"#))
        };
        let attach = with(r#""tenant":7,"tenant_key_file":"system.key""#).expect("valid");
        let bytes = core::array::from_fn(|at| u8::try_from(at).expect("small"));
        assert_eq!(attach.key, TenantKey::new(TenantId(7), bytes));
        let as_tenant = with(r#""tenant":7,"system_key_file":"system.key""#).expect("valid");
        assert_eq!(as_tenant.key, SystemKey(bytes).tenant(TenantId(7)));
        for keys in
            [r#""tenant":7"#, r#""tenant_key_file":"system.key""#, r#""tenant":0,"tenant_key_file":"x""#]
        {
            assert!(matches!(with(keys), Err(AttachError::Malformed { .. })), "{keys}");
        }
    }

    #[test]
    fn an_attach_file_may_name_the_virtual_network_and_the_nic() {
        let with = |line: &str| {
            let engine = r#"{"rank":0,"host":"h","fabric_port":10100,"targets":1}"#;
            load(&format!(
                r#"{{"system":"w","provider":"tcp","engines":[{engine}],"system_key_file":"system.key"{line}}}"#
            ))
        };
        assert_eq!(with("").expect("valid").auth_key, None);
        assert_eq!(with("").expect("valid").device, None);
        let on = with(r#","fabric_device":"lo""#).expect("valid");
        assert_eq!(on.device.as_deref(), Some("lo"));
        let named = with(r#","fabric_auth_key":"5:100""#).expect("valid");
        assert_eq!(named.auth_key, Some(AuthKey { service: 5, vni: 100 }));
        for (line, addressing) in [
            ("", Addressing::ByProvider),
            (r#","fabric_addresses":"ports""#, Addressing::Ports),
            (r#","fabric_addresses":"published""#, Addressing::Published),
        ] {
            assert_eq!(with(line).expect("valid").addressing, addressing);
        }
        let error = with(r#","fabric_addresses":"guessed""#).expect_err("there are two");
        assert!(error.to_string().contains("ports or published"), "{error}");
        let error = with(r#","fabric_auth_key":"100""#).expect_err("no service");
        assert!(matches!(error, AttachError::AuthKey { .. }), "{error}");
    }

    #[test]
    fn only_a_tenants_own_key_is_handed_to_another_process() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("client.key"), KEY).expect("written");
        let path = folder.path().join("client.json");
        let engine = r#"{"rank":0,"host":"h","fabric_port":10100,"targets":1}"#;
        let with = |keys: &str| {
            let text = format!(r#"{{"system":"w","provider":"tcp","engines":[{engine}],{keys}}}"#);
            std::fs::write(&path, text).expect("written");
            AttachText::of_tenant(&path).expect("valid")
        };
        let text = with(r#""tenant":7,"tenant_key_file":"client.key""#).expect("a tenant's");
        assert!(!format!("{text:?}").contains("AAEC"), "{text:?}");
        let attach = Attach::of(Path::new("elsewhere"), &text).expect("valid");
        assert_eq!(attach.key, Attach::load(Some(&path)).expect("valid").key);
        for keys in [r#""system_key_file":"client.key""#, r#""tenant":7,"system_key_file":"client.key""#] {
            assert_eq!(with(keys), None, "{keys}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let engine = r#"{"rank":0,"host":"h","fabric_port":65535,"targets":1}"#;
        let with = |engines: &str| {
            load(&format!(
                r#"{{"system":"w","provider":"tcp","engines":[{engines}],"system_key_file":"system.key"}}"#
            ))
        };
        assert!(with(engine).is_ok());
        for bad in ["", &format!("{engine},{engine}"), &engine.replace("\"targets\":1", "\"targets\":2")] {
            assert!(matches!(with(bad), Err(AttachError::Malformed { .. })), "{bad}");
        }
        assert!(matches!(load("[]"), Err(AttachError::Malformed { .. })));
        let no_key = r#"{"system":"w","provider":"tcp","engines":[],"system_key_file":"absent"}"#;
        assert!(matches!(load(no_key), Err(AttachError::Key { .. })));
    }
}
