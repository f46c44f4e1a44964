//! Attach files, as far as management needs them. The room calls errors. Connections are made from them, and `weir dev` and
//! `weir fabric` write them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::CliError;

/// Content of an attach file, as far as management needs it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachFile {
    /// The system's name.
    pub system: String,
    /// libfabric provider of the data path.
    pub provider: String,
    /// Where addresses of targets are known from; absent where the provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_addresses: Option<String>,
    /// The engines.
    pub engines: Vec<EngineEntry>,
    /// File with the system key; absent for a tenant's clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_key_file: Option<PathBuf>,
    /// The tenant whose clients the file is for; absent for the system's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u64>,
    /// File with the tenant's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_key_file: Option<PathBuf>,
    /// Certificates of the management connection.
    pub tls: TlsEntry,
}

/// One engine of an attach file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineEntry {
    /// Its number in the system.
    pub rank: u32,
    /// Name or address at which its targets listen.
    pub host: String,
    /// Port of target 0.
    pub fabric_port: u16,
    /// Number of targets.
    pub targets: u32,
    /// `host:port` of its management service.
    pub management: String,
}

/// PEM files of an attach file; relative names are relative to its folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TlsEntry {
    /// Authority.
    pub ca: PathBuf,
    /// Certificate.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

impl AttachFile {
    /// Reads an attach file and makes its file names absolute.
    ///
    /// # Errors
    /// When it cannot be read or is not valid.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let wrong = |reason: String| CliError::AttachFile { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let mut file: Self = serde_json::from_str(&text).map_err(|error| wrong(reason_of(&text, &error)))?;
        if file.engines.is_empty() {
            return Err(wrong("it names no engine: wait until the StorageCluster has one".into()));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let keys = [&mut file.system_key_file, &mut file.tenant_key_file].into_iter().flatten();
        for name in keys.chain([&mut file.tls.ca, &mut file.tls.cert, &mut file.tls.key]) {
            *name = folder.join(&*name);
        }
        Ok(file)
    }
}

/// Why a text is no attach file for management.
fn reason_of(text: &str, error: &serde_json::Error) -> String {
    let is_clients = |file: serde_json::Value| file.get("engines").is_some() && file.get("tls").is_none();
    if serde_json::from_str(text).is_ok_and(is_clients) {
        "it has no certificates (`tls`), as those of tenants: what manages a system needs the system's own"
            .into()
    } else {
        format!("it is not valid: {error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"system":"weir","provider":"tcp","engines":[{"rank":0,"host":"127.0.0.1","fabric_port":20000,
        "targets":2,"management":"127.0.0.1:9"}],"system_key_file":"system.key",
        "tls":{"ca":"tls/ca.pem","cert":"tls/client.pem","key":"/abs/client.key"}}"#;

    #[test]
    fn relative_names_are_relative_to_the_attach_file() {
        let folder = tempfile::tempdir().expect("made");
        let path = folder.path().join("client.json");
        std::fs::write(&path, TEXT).expect("written");
        let attach = AttachFile::load(&path).expect("valid");
        assert_eq!(attach.tls.ca, folder.path().join("tls/ca.pem"));
        assert_eq!(attach.tls.key, Path::new("/abs/client.key"));
    }

    #[test]
    fn a_malformed_attach_file_is_named() {
        let folder = tempfile::tempdir().expect("made");
        let path = folder.path().join("client.json");
        for text in [
            "",
            "{}",
            "[1]",
            r#"{"system":"w","provider":"tcp","engines":[],"system_key_file":"k","tls":{"ca":"a","cert":"b","key":"c"}}"#,
        ] {
            std::fs::write(&path, text).expect("written");
            let error = AttachFile::load(&path).expect_err(text);
            assert!(error.to_string().contains("client.json"), "{error}");
        }
    }

    #[test]
    fn the_attach_file_of_a_tenant_is_told_from_none() {
        let folder = tempfile::tempdir().expect("made");
        let path = folder.path().join("client.json");
        let tenants = TEXT.split_once(",\n        \"tls\"").expect("certificates").0.to_owned() + "}";
        for (text, said) in [(tenants.as_str(), "needs the system's own"), ("{}", "is not valid: missing")] {
            std::fs::write(&path, text).expect("written");
            let error = AttachFile::load(&path).expect_err(text).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
