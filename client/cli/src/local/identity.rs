//! Certificates and the system key of a `weir dev` system, and the files that engines and clients read.

use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use weir_management::{Role, TlsFiles};

use crate::error::CliError;
use crate::secret::{random_key, write_private};
use crate::values::base64;

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
    /// The key that engines have for themselves, in base64.
    pub seal_key: PathBuf,
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
            seal_key: folder.join("engines.key"),
        }
    }

    /// Makes what is not there. The authority's own key is not kept: a lost certificate, or one without a role, means a new
    /// identity.
    ///
    /// # Errors
    /// When a file cannot be written or the kernel gives no random numbers.
    pub fn make(&self) -> Result<(), CliError> {
        let complete = [&self.ca, &self.engine_cert, &self.engine_key, &self.client_cert, &self.client_key]
            .iter()
            .all(|path| path.exists());
        if !complete || self.client().caller().ok().and_then(|caller| caller.role()).is_none() {
            self.make_certificates()?;
        }
        for key in [&self.system_key, &self.seal_key] {
            if !key.exists() {
                write_private(key, format!("{}\n", base64(&random_key()?)).as_bytes())?;
            }
        }
        Ok(())
    }

    /// What clients present.
    fn client(&self) -> TlsFiles {
        TlsFiles { ca: self.ca.clone(), cert: self.client_cert.clone(), key: self.client_key.clone() }
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
        for (name, usages, role, certificate, key) in [
            ("weir-engine", both, None, &self.engine_cert, &self.engine_key),
            ("weir-client", client, Some(Role::Operator), &self.client_cert, &self.client_key),
        ] {
            let names = vec![LOOPBACK.to_owned(), "localhost".to_owned()];
            let mut params = CertificateParams::new(names).map_err(failed)?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = usages;
            for uri in role.map(Role::uris).unwrap_or_default() {
                params.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri).map_err(failed)?));
            }
            params.use_authority_key_identifier_extension = true;
            let pair = KeyPair::generate().map_err(failed)?;
            let signed = params.signed_by(&pair, &issuer).map_err(failed)?;
            write_private(certificate, signed.pem().as_bytes())?;
            write_private(key, pair.serialize_pem().as_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_identity_is_made_once_and_accepted_by_both_ends() {
        let folder = tempfile::tempdir().expect("made");
        let files = IdentityFiles::of(folder.path());
        files.make().expect("made");
        let first = fs::read(&files.ca).expect("there");
        files.make().expect("kept");
        assert_eq!(fs::read(&files.ca).expect("there"), first);
        let engine =
            TlsFiles { ca: files.ca.clone(), cert: files.engine_cert.clone(), key: files.engine_key.clone() };
        engine.server_config().expect("an engine can serve with it");
        let client = files.client();
        client.client_config().expect("a client can connect with it");
        assert_eq!(client.caller().expect("it reads").role(), Some(Role::Operator));
        // Certificates from before there were roles are replaced.
        fs::copy(&files.engine_cert, &files.client_cert).expect("copied");
        files.make().expect("made anew");
        assert_ne!(fs::read(&files.ca).expect("there"), first);
        assert_eq!(client.caller().expect("it reads").role(), Some(Role::Operator));
        let keys = [&files.system_key, &files.seal_key].map(|path| {
            weir_proto::capability::SystemKey::parse(&fs::read_to_string(path).expect("there"))
                .expect("a key")
        });
        assert_ne!(keys[0], keys[1]);
    }
}
