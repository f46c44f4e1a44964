//! What one mount attaches with, when it does not use the daemon's own attach files.
//!
//! The files lie in the mount's folder, readable for the daemon's user only, for as long as the mount is there: a mount whose
//! process has ended is made again with them.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use weir_proto::capability::SystemKey;

use crate::v1;

/// The attach file in a mount's folder.
const ATTACH_FILE: &str = "client.json";

/// The key beside it.
const KEY_FILE: &str = "client.key";

/// Largest attach file, in bytes: what a Kubernetes Secret may hold.
const ATTACH_BYTES_MAX: usize = 1 << 20;

/// Largest key file, in bytes: the text of a key has 44 characters.
const KEY_BYTES_MAX: usize = 128;

/// Why credentials can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCredentials {
    /// A part is too long.
    #[error("credentials: {0} has more than {1} bytes")]
    TooLong(&'static str, usize),
    /// The attach file is not one.
    #[error("credentials: the attach file is not valid: {0}")]
    Attach(String),
    /// The key is not one.
    #[error("credentials: {0}")]
    Key(String),
    /// The attach file is another system's.
    #[error("credentials: the attach file is of system \"{has}\", the volume is of system \"{wanted}\"")]
    System {
        /// The system of the attach file.
        has: String,
        /// The system of the request.
        wanted: String,
    },
}

/// Attach file and key of one mount.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    attach: String,
    key: String,
    tenant: u64,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials(tenant {}, ..)", self.tenant)
    }
}

impl Credentials {
    /// Takes the credentials of a request for a volume of `system`; the empty name means the attach file's.
    ///
    /// # Errors
    /// When they are malformed, or another system's.
    pub fn of(given: &v1::MountCredentials, system: &str) -> Result<Self, InvalidCredentials> {
        for (what, bytes, most) in
            [("the attach file", &given.attach, ATTACH_BYTES_MAX), ("the key", &given.key, KEY_BYTES_MAX)]
        {
            if bytes.len() > most {
                return Err(InvalidCredentials::TooLong(what, most));
            }
        }
        let malformed = |error: serde_json::Error| InvalidCredentials::Attach(error.to_string());
        let mut file: Map<String, Value> = serde_json::from_slice(&given.attach).map_err(malformed)?;
        let name = file.get("system").and_then(Value::as_str);
        let name = name.ok_or_else(|| InvalidCredentials::Attach("`system` is not a name".to_owned()))?;
        if !system.is_empty() && name != system {
            let (has, wanted) = (name.to_owned(), system.to_owned());
            return Err(InvalidCredentials::System { has, wanted });
        }
        let tenant = match file.get("tenant") {
            None => 0,
            Some(number) => number
                .as_u64()
                .ok_or_else(|| InvalidCredentials::Attach("`tenant` is not a number".to_owned()))?,
        };
        // Whatever files it names, it gets the key that came with it.
        for named in ["system_key_file", "tenant_key_file", "tls"] {
            file.remove(named);
        }
        let named = if tenant == 0 { "system_key_file" } else { "tenant_key_file" };
        file.insert(named.to_owned(), KEY_FILE.into());
        let key = String::from_utf8(given.key.clone())
            .map_err(|_| InvalidCredentials::Key("the key is not text".to_owned()))?;
        SystemKey::parse(&key).map_err(|error| InvalidCredentials::Key(error.to_string()))?;
        Ok(Self { attach: Value::Object(file).to_string(), key, tenant })
    }

    /// Number of the tenant whose key it is; 0 is the system.
    #[must_use]
    pub const fn tenant(&self) -> u64 {
        self.tenant
    }

    /// Writes the files into a mount's folder and returns the attach file.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn store(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        for (name, text) in [(KEY_FILE, &self.key), (ATTACH_FILE, &self.attach)] {
            let fresh = folder.join(format!("{name}.new"));
            match fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&fresh, folder.join(name))?;
        }
        Ok(folder.join(ATTACH_FILE))
    }

    /// Reads back what [`Credentials::store`] wrote for a tenant's mount.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn load(folder: &Path, tenant: u64) -> io::Result<Self> {
        let read = |name: &str| fs::read_to_string(folder.join(name));
        Ok(Self { attach: read(ATTACH_FILE)?, key: read(KEY_FILE)?, tenant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn given(attach: &str, key: &str) -> v1::MountCredentials {
        v1::MountCredentials { attach: attach.into(), key: key.into() }
    }

    #[test]
    fn they_come_back_as_they_were_and_only_the_owner_reads_them() {
        let folder = tempfile::tempdir().expect("made");
        let attach =
            r#"{"system":"weir","tenant":70000,"tenant_key_file":"/etc/passwd","tls":{"key":"/etc/shadow"}}"#;
        let taken = Credentials::of(&given(attach, KEY), "weir").expect("valid");
        assert_eq!(taken.tenant(), 70000);
        let path = taken.store(folder.path()).expect("written");
        taken.store(folder.path()).expect("written again");
        assert_eq!(Credentials::load(folder.path(), 70000).expect("read"), taken);
        let text = fs::read_to_string(&path).expect("read");
        assert!(text.contains(r#""tenant_key_file":"client.key""#) && !text.contains("/etc/"), "{text}");
        for name in [ATTACH_FILE, KEY_FILE] {
            let mode = fs::metadata(folder.path().join(name)).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert!(!format!("{taken:?}").contains(KEY));
    }

    #[test]
    fn hostile_ones_are_refused() {
        let attach = r#"{"system":"weir","tenant":7}"#;
        for (bad, word) in [
            (given("[]", KEY), "attach file"),
            (given("{", KEY), "attach file"),
            (given(r#"{"system":"weir","tenant":-1}"#, KEY), "tenant"),
            (given(r#"{"system":"weir","tenant":"7"}"#, KEY), "tenant"),
            (given(r#"{"system":"other"}"#, KEY), "system \"other\""),
            (given("{}", KEY), "system"),
            (given(attach, ""), "32 bytes"),
            (given(attach, &"A".repeat(KEY_BYTES_MAX + 1)), "the key has more"),
            (given(&" ".repeat(ATTACH_BYTES_MAX + 1), KEY), "the attach file has more"),
        ] {
            let error = Credentials::of(&bad, "weir").expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
        let wide = v1::MountCredentials { key: vec![0xff], ..given(attach, "") };
        assert!(Credentials::of(&wide, "weir").is_err());
    }
}
