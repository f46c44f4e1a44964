//! The management side of a system: asks its engines in turn.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use weir_management::{Failure, TlsFiles, failure_of};

use crate::attach::AttachFile;
use crate::error::CliError;

/// Longest time for one engine to answer, so that one that hangs leaves time for another.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(20);

/// Longest time for contact with one engine, which takes milliseconds unless it hangs or its machine is lost. Each round
/// gives twice as much, for a machine that is too busy.
const CONTACT_LIMIT: Duration = Duration::from_secs(2);

/// Pause after every engine was tried in vain: an engine restarts in about this time.
const ROUND_PAUSE: Duration = Duration::from_millis(300);

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

/// How a call of an engine failed.
enum CallFailure {
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
                    Err(CallFailure::Refused(status)) => {
                        return Err(CliError::Management { what, failure: failure_of(&status) });
                    }
                    // What an engine has said tells more than that another one is silent.
                    Err(CallFailure::Away(status)) => {
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
    ) -> Result<Response<T>, CallFailure> {
        let begun = Instant::now();
        let late = |_| CallFailure::Away(Status::deadline_exceeded("no answer in time"));
        let connecting = self.contact(address);
        let channel = tokio::time::timeout(left.min(contact), connecting).await.map_err(late)?;
        let channel = channel.map_err(CallFailure::Away)?;
        let left = left.saturating_sub(begun.elapsed());
        let answer = tokio::time::timeout(left.min(ATTEMPT_LIMIT), attempt(channel)).await;
        if !matches!(answer, Ok(Ok(_))) {
            // An engine that has hung and is back takes no more on an old connection.
            self.channels.borrow_mut().remove(address);
        }
        answer.map_err(late)?.map_err(|status| match status.code() {
            Code::Unavailable => CallFailure::Away(status),
            _ => CallFailure::Refused(status),
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

    #[test]
    fn certificates_that_are_not_there_are_said_before_an_engine_is_asked() {
        let folder = tempfile::tempdir().expect("made");
        let path = folder.path().join("client.json");
        let text = r#"{"system":"weir","provider":"tcp","engines":[{"rank":0,"host":"127.0.0.1","fabric_port":20000,
            "targets":2,"management":"127.0.0.1:9"}],"tls":{"ca":"ca.pem","cert":"client.pem","key":"client.key"}}"#;
        std::fs::write(&path, text).expect("written");
        assert!(matches!(System::open(&path, Duration::from_secs(1)), Err(CliError::AttachFile { .. })));
    }
}
