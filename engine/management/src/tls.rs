//! Mutual TLS: certificates in PEM files that may be replaced while the process runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::Caller;

/// How often, at most, a server looks whether its files have changed. Rotation is a matter of hours; a look costs
/// three `stat` calls.
const ROTATION_CHECK: Duration = Duration::from_secs(1);

/// Longest wait for a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pings on a silent connection find a dead peer within this time plus [`CONNECT_TIMEOUT`].
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Where the certificates are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Authority that signed both ends' certificates.
    pub ca: PathBuf,
    /// This end's certificate, intermediates behind it.
    pub cert: PathBuf,
    /// This end's private key.
    pub key: PathBuf,
}

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("{path} can't be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file isn't what it should be.
    #[error("{path} holds no {what} in PEM format: {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// "certificate" or "private key".
        what: &'static str,
        /// What the parser met.
        reason: String,
    },
    /// The authority's certificate can't verify anything.
    #[error("the certificates of {path} can't be used as an authority: {source}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: VerifierBuilderError,
    },
    /// Certificate and key don't fit, or their algorithm is not known.
    #[error("certificate {cert} and key {key} can't be used together: {source}")]
    Identity {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
}

/// Why a management connection can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is not `host:port`.
    #[error("\"{address}\" is not the address of a management service (host:port): {source}")]
    Address {
        /// What was given.
        address: String,
        /// What the parser met.
        source: tonic::transport::Error,
    },
}

impl TlsFiles {
    /// Connects lazily to the management service at `address` (`host:port`): nothing is sent before the first
    /// call, and a lost connection is opened again by the next one.
    ///
    /// # Errors
    /// When the files can't be used or the address doesn't parse.
    pub fn channel(&self, address: &str) -> Result<Channel, ConnectError> {
        Ok(self.endpoint(address)?.connect_lazy())
    }

    /// The management service at `address` (`host:port`), for a caller that bounds the time to connect by itself:
    /// `CONNECT_TIMEOUT` doesn't bound the TLS handshake.
    ///
    /// # Errors
    /// When the files can't be used or the address doesn't parse.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, ConnectError> {
        let tls = self.client_config()?;
        let wrong = |source| ConnectError::Address { address: address.to_owned(), source };
        let endpoint = Endpoint::from_shared(format!("https://{address}"))
            .and_then(|endpoint| endpoint.tls_config(tls))
            .map_err(wrong)?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        Ok(endpoint)
    }

    /// What a client presents and trusts.
    ///
    /// # Errors
    /// When a file can't be read or holds no PEM of the right kind.
    pub fn client_config(&self) -> Result<ClientTlsConfig, TlsError> {
        certificates(&self.ca)?;
        certificates(&self.cert)?;
        self.private_key()?;
        let identity = Identity::from_pem(read(&self.cert)?, read(&self.key)?);
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&self.ca)?)).identity(identity))
    }

    /// What a server presents; clients must present a certificate of the same authority.
    ///
    /// # Errors
    /// When a file can't be read, holds no PEM of the right kind, or certificate and key don't fit.
    pub fn server_config(&self) -> Result<ServerConfig, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|error| TlsError::Pem {
                path: self.ca.clone(),
                what: "certificate",
                reason: error.to_string(),
            })?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|source| TlsError::Authority { path: self.ca.clone(), source })?;
        let identity = |source| TlsError::Identity { cert: self.cert.clone(), key: self.key.clone(), source };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(identity)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&self.cert)?, self.private_key()?)
            .map_err(identity)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// As whom engines see the holder of this certificate.
    ///
    /// # Errors
    /// When the file can't be read or holds no certificate.
    pub fn caller(&self) -> Result<Caller, TlsError> {
        Ok(Caller::of_certificate(certificates(&self.cert)?.first()))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|error| TlsError::Pem {
            path: self.key.clone(),
            what: "private key",
            reason: error.to_string(),
        })
    }

    /// Changes whenever one of the files is replaced.
    fn stamp(&self) -> [Option<SystemTime>; 3] {
        [&self.ca, &self.cert, &self.key].map(|path| std::fs::metadata(path).ok()?.modified().ok())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let wrong = |reason: String| TlsError::Pem { path: path.to_owned(), what: "certificate", reason };
    let certificates = parsed.map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong("the file has no such section".to_owned()));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

/// A server's TLS configuration that follows its files: connections accepted after a rotation use the new ones.
pub struct RotatingServer {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    stamp: [Option<SystemTime>; 3],
    checked: Instant,
}

impl RotatingServer {
    /// Loads the files.
    ///
    /// # Errors
    /// As [`TlsFiles::server_config`].
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let stamp = files.stamp();
        let config = Arc::new(files.server_config()?);
        Ok(Self { files, config, stamp, checked: Instant::now() })
    }

    /// The configuration for a connection that arrives now. While the files are unusable (e.g. half replaced), the
    /// last good ones stay in use and the reason is logged.
    pub fn current(&mut self) -> Arc<ServerConfig> {
        if self.checked.elapsed() >= ROTATION_CHECK {
            self.checked = Instant::now();
            let stamp = self.files.stamp();
            if stamp != self.stamp {
                self.stamp = stamp;
                self.reload();
            }
        }
        Arc::clone(&self.config)
    }

    fn reload(&mut self) {
        match self.files.server_config() {
            Ok(config) => {
                self.config = Arc::new(config);
                tracing::info!(cert = %self.files.cert.display(), "TLS certificates reloaded");
            }
            Err(error) => {
                tracing::warn!(%error, "TLS certificates changed but can't be used; keeping the old ones");
            }
        }
    }
}
