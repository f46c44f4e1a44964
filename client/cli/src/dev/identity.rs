//! Certificates and the system key of a `weir dev` system, and the files that engines and clients read.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::error::CliError;

/// Address that every engine of `weir dev` listens at.
pub const LOOPBACK: &str = "127.0.0.1";

/// Files of a system's identity.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// Authority's certificate.
    pub ca: PathBuf,
    /// Engines' certificate.
    pub engine_cert: PathBuf,
    /// Engines' key.
    pub engine_key: PathBuf,
    /// Clients' certificate.
    pub client_cert: PathBuf,
    /// Clients' key.
    pub client_key: PathBuf,
    /// System key, in base64.
    pub system_key: PathBuf,
}

/// A new system key.
///
/// # Errors
/// When the kernel gives no random numbers.
pub fn random_key() -> Result<[u8; 32], CliError> {
    let mut key = [0; 32];
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
    read.map(|()| key).map_err(|error| CliError::io("/dev/urandom", error))
}

impl IdentityFiles {
    /// The files in a system's folder.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let tls = folder.join("tls");
        Self {
            ca: tls.join("ca.crt"),
            engine_cert: tls.join("engine.crt"),
            engine_key: tls.join("engine.key"),
            client_cert: tls.join("client.crt"),
            client_key: tls.join("client.key"),
            system_key: folder.join("system.key"),
        }
    }

    /// Makes what is not there. The authority's own key is not kept: a lost certificate means a new identity.
    ///
    /// # Errors
    /// When a file cannot be written or the kernel gives no random numbers.
    pub fn make(&self) -> Result<(), CliError> {
        let complete = [&self.ca, &self.engine_cert, &self.engine_key, &self.client_cert, &self.client_key]
            .iter()
            .all(|path| path.exists());
        if !complete {
            self.make_certificates()?;
        }
        if !self.system_key.exists() {
            write_private(&self.system_key, format!("{}\n", base64(&random_key()?)).as_bytes())?;
        }
        Ok(())
    }

    fn make_certificates(&self) -> Result<(), CliError> {
        let failed = |error: rcgen::Error| CliError::Dev(format!("make certificates: {error}"));
        let authority_key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(Vec::<String>::new()).map_err(failed)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "weir dev authority");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = params.self_signed(&authority_key).map_err(failed)?;
        let issuer = Issuer::new(params, authority_key);
        write_private(&self.ca, authority.pem().as_bytes())?;
        let both = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let client = vec![ExtendedKeyUsagePurpose::ClientAuth];
        for (name, usages, certificate, key) in [
            // Engines forward requests to each other, so they are clients too.
            ("weir-engine", both, &self.engine_cert, &self.engine_key),
            ("weir-client", client, &self.client_cert, &self.client_key),
        ] {
            let names = vec![LOOPBACK.to_owned(), "localhost".to_owned()];
            let mut params = CertificateParams::new(names).map_err(failed)?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = usages;
            params.use_authority_key_identifier_extension = true;
            let pair = KeyPair::generate().map_err(failed)?;
            let signed = params.signed_by(&pair, &issuer).map_err(failed)?;
            write_private(certificate, signed.pem().as_bytes())?;
            write_private(key, pair.serialize_pem().as_bytes())?;
        }
        Ok(())
    }
}

/// Writes a file that only its owner can read, in one step.
///
/// # Errors
/// When it cannot be written.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), CliError> {
    let write = || -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let fresh = path.with_extension("new");
        // What a write that was cut off has left; a link that somebody else has put there is not followed, but goes.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(content)?;
        drop(file);
        fs::rename(&fresh, path)
    };
    write().map_err(|error| CliError::io(format!("write {}", path.display()), error))
}

/// Standard base64 (RFC 4648 section 4).
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            (0..3).fold(0_u32, |word, index| (word << 8) | u32::from(chunk.get(index).copied().unwrap_or(0)));
        for position in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * position)) as usize & 63];
            text.push(if position <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\xfd", "//79")]
        {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn no_link_is_followed_where_a_private_file_is_written() {
        let folder = tempfile::tempdir().expect("made");
        let (victim, path) = (folder.path().join("victim"), folder.path().join("system.key"));
        fs::write(&victim, "mine").expect("written");
        for link in [folder.path().join("system.new"), path.clone()] {
            std::os::unix::fs::symlink(&victim, link).expect("made");
        }
        write_private(&path, b"secret").expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"mine");
        assert!(fs::symlink_metadata(&path).expect("there").is_file());
        assert_eq!(fs::read(&path).expect("read"), b"secret");
    }

    #[test]
    fn an_identity_is_made_once_and_accepted_by_both_ends() {
        let folder = tempfile::tempdir().expect("made");
        let files = IdentityFiles::of(folder.path());
        files.make().expect("made");
        let first = fs::read(&files.ca).expect("there");
        files.make().expect("kept");
        assert_eq!(fs::read(&files.ca).expect("there"), first);
        let engine = weir_management::TlsFiles {
            ca: files.ca.clone(),
            cert: files.engine_cert.clone(),
            key: files.engine_key.clone(),
        };
        engine.server_config().expect("an engine can serve with it");
        let client = weir_management::TlsFiles {
            cert: files.client_cert.clone(),
            key: files.client_key.clone(),
            ..engine
        };
        client.client_config().expect("a client can connect with it");
        let key =
            weir_proto::capability::SystemKey::parse(&fs::read_to_string(&files.system_key).expect("there"));
        assert!(key.is_ok());
    }
}
