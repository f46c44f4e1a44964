//! The management side of a system: finds the attach file and asks its engines in turn.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use weir_management::{Failure, TlsFiles, failure_of};

use crate::error::CliError;

/// Environment variable that names the attach file.
pub const ATTACH_VARIABLE: &str = "WEIR_ATTACH";

/// Where a system on Kubernetes has its attach file in a pod or on a node.
pub const ATTACH_SYSTEM: &str = "/etc/weir/client/client.json";

/// Longest time for one engine to answer, so that one that hangs leaves time for another.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(20);

/// Longest time for contact with one engine, which takes milliseconds unless it hangs or its machine is lost. Each round
/// gives twice as much, for a machine that is too busy.
const CONTACT_LIMIT: Duration = Duration::from_secs(2);

/// Pause after every engine was tried in vain: an engine restarts in about this time.
const ROUND_PAUSE: Duration = Duration::from_millis(300);

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

/// The folder of `weir dev` when none is named.
#[must_use]
pub fn default_dev_folder() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from).join(".weir-dev")
}

/// The attach file to use: the one named, else the environment's, else the first that exists of the node's and that of
/// `weir dev`.
///
/// # Errors
/// When there is none, or it is that of a system of `weir dev` which doesn't run.
pub fn find_attach(named: Option<&Path>) -> Result<PathBuf, CliError> {
    let path = choose_attach(named)?;
    // A pipe might have to be waited for without an end.
    if std::fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
        return Err(CliError::AttachFile { path, reason: "it is no file".to_owned() });
    }
    crate::dev::ensure_runs(&path)?;
    Ok(path)
}

fn choose_attach(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os(ATTACH_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let places = [PathBuf::from(ATTACH_SYSTEM), default_dev_folder().join("client.json")];
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        CliError::NoAttachFile(
            places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and "),
        )
    })
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

/// A connection to the engines of a system.
#[derive(Debug)]
pub struct System {
    /// The attach file in use.
    pub attach: AttachFile,
    /// Management services by their addresses.
    endpoints: BTreeMap<String, Endpoint>,
    /// Those that there is contact with.
    channels: RefCell<BTreeMap<String, Channel>>,
    limit: Duration,
}

/// How an engine did not do what it was asked for.
enum Missed {
    /// It can't at this moment, or can't be reached.
    Away(Status),
    /// It refuses.
    Refused(Status),
}

impl System {
    /// Prepares connections. No engine is contacted before the first call. `limit` bounds each call.
    ///
    /// # Errors
    /// When the attach file or a file it names cannot be used.
    pub fn open(path: &Path, limit: Duration) -> Result<Self, CliError> {
        let attach = AttachFile::load(path)?;
        let tls = TlsFiles {
            ca: attach.tls.ca.clone(),
            cert: attach.tls.cert.clone(),
            key: attach.tls.key.clone(),
        };
        let mut endpoints = BTreeMap::new();
        for engine in &attach.engines {
            let endpoint = tls.endpoint(&engine.management).map_err(|error| CliError::AttachFile {
                path: path.to_owned(),
                reason: format!("engine {}: {error}", engine.rank),
            })?;
            endpoints.insert(engine.management.clone(), endpoint);
        }
        Ok(Self { attach, endpoints, channels: RefCell::default(), limit })
    }

    /// The same connections with another bound for each call.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Performs a call: at the first engine, and while that is not available at the others in turn until one answers or
    /// the time is over. Every management call is idempotent, so that trying again is safe.
    ///
    /// # Errors
    /// The engines' refusal, or [`CliError::Unanswered`].
    pub async fn call<T>(
        &self,
        what: impl Into<String>,
        attempt: impl AsyncFn(Channel) -> Result<Response<T>, Status>,
    ) -> Result<T, CliError> {
        let started = Instant::now();
        let what = what.into();
        let mut last: Option<(String, Status)> = None;
        let mut contact = CONTACT_LIMIT;
        loop {
            for address in self.endpoints.keys() {
                let left = self.limit.saturating_sub(started.elapsed());
                if left.is_zero() {
                    break;
                }
                match self.ask(address, left, contact, &attempt).await {
                    Ok(reply) => return Ok(reply.into_inner()),
                    Err(Missed::Refused(status)) => {
                        return Err(CliError::Management { what, failure: failure_of(&status) });
                    }
                    // What an engine has said tells more than that another one is silent.
                    Err(Missed::Away(status)) => {
                        if is_told(&status) || last.as_ref().is_none_or(|(_, last)| !is_told(last)) {
                            last = Some((address.clone(), status));
                        }
                    }
                }
            }
            if started.elapsed() + ROUND_PAUSE >= self.limit {
                return Err(CliError::Unanswered { what, failure: self.exhausted(last) });
            }
            tokio::time::sleep(ROUND_PAUSE).await;
            contact *= 2;
        }
    }

    /// Asks one engine.
    async fn ask<T>(
        &self,
        address: &str,
        left: Duration,
        contact: Duration,
        attempt: &impl AsyncFn(Channel) -> Result<Response<T>, Status>,
    ) -> Result<Response<T>, Missed> {
        let begun = Instant::now();
        let late = |_| Missed::Away(Status::deadline_exceeded("no answer in time"));
        let connecting = self.contact(address);
        let channel = tokio::time::timeout(left.min(contact), connecting).await.map_err(late)?;
        let channel = channel.map_err(Missed::Away)?;
        let left = left.saturating_sub(begun.elapsed());
        let answer = tokio::time::timeout(left.min(ATTEMPT_LIMIT), attempt(channel)).await;
        if !matches!(answer, Ok(Ok(_))) {
            // An engine that has hung and is back takes no more on an old connection.
            self.channels.borrow_mut().remove(address);
        }
        answer.map_err(late)?.map_err(|status| match status.code() {
            Code::Unavailable => Missed::Away(status),
            _ => Missed::Refused(status),
        })
    }

    /// A connection to an engine, from before or a new one.
    async fn contact(&self, address: &str) -> Result<Channel, Status> {
        if let Some(channel) = self.channels.borrow().get(address) {
            return Ok(channel.clone());
        }
        let Some(endpoint) = self.endpoints.get(address) else {
            return Err(Status::unavailable("no such engine"));
        };
        let channel = endpoint.connect().await.map_err(|error| Status::from_error(Box::new(error)))?;
        self.channels.borrow_mut().insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    fn exhausted(&self, last: Option<(String, Status)>) -> Failure {
        let engines = self.endpoints.len();
        let Some((address, status)) = last else {
            return Failure::new(
                weir_proto::Der::TIMEDOUT,
                "",
                "the time was over before an engine was asked",
            );
        };
        let mut failure = failure_of(&status);
        let seconds = self.limit.as_secs();
        if is_told(&status) {
            failure.message = format!("{} (said by {address}, after {seconds} s)", failure.message);
            return failure;
        }
        // The transport's own text is "transport error"; what it stands for is in its sources.
        let mut reason = failure.message.clone();
        let mut source = std::error::Error::source(&status);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !reason.ends_with(&cause_text) {
                reason = format!("{reason}: {cause_text}");
            }
            source = cause.source();
        }
        failure.message = format!(
            "none of {engines} engines answered within {seconds} s; the last tried, at {address}, said: {reason}"
        );
        failure
    }
}

/// Whether an engine has said this, not the way to it.
fn is_told(status: &Status) -> bool {
    !status.details().is_empty()
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
        assert!(matches!(System::open(&path, Duration::from_secs(1)), Err(CliError::AttachFile { .. })));
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
