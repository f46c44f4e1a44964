//! One request to one engine: encoding, payload, retries, and the meaning of their failure.

use core::cell::Cell;
use core::fmt;
use core::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_fabric::Buffer;
use weir_proto::limits::INLINE_MAX;
use weir_proto::{Der, PoolId, Rank, TargetIndex, codec, opcode};
use weir_rpc::{CallOptions, Reply, RpcError, Status};
use weir_runtime::Instant;

use super::answers::Answers;
use super::payload::{LENGTH_LEN, OutgoingRequest, Payload, SERVICE_REPLY, SHORT_INLINE_MAX};
use super::service::SERVICE_PAUSE;
use crate::error::{Error, Result};
use crate::session::Context;

/// What is asked, for errors.
#[derive(Clone, Copy)]
pub(crate) struct RequestInfo<'a> {
    pub(crate) operation: &'static str,
    pub(crate) subject: &'a dyn fmt::Display,
    pub(crate) opcode: u16,
}

impl<'a> RequestInfo<'a> {
    pub(crate) fn new(operation: &'static str, subject: &'a dyn fmt::Display, opcode: u16) -> Self {
        Self { operation, subject, opcode }
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers hand over errors and texts, which end here")]
    pub(crate) fn protocol(&self, reason: impl ToString) -> Error {
        let subject = self.subject.to_string();
        Error::Protocol { operation: self.operation, subject, reason: reason.to_string() }
    }
}

/// The receiver of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The pool service of an engine, which its first target serves.
    Rank(Rank),
    /// A target.
    Target(Rank, TargetIndex),
    /// The replicated service of a pool, whichever engine runs it.
    Service(PoolId),
}

impl Reach {
    /// Rank and target; `None`: they have to be found.
    fn parts(self) -> Option<(Rank, u32)> {
        match self {
            Self::Rank(rank) => Some((rank, 0)),
            Self::Target(rank, index) => Some((rank, index.0)),
            Self::Service(_) => None,
        }
    }
}

/// An answered request.
pub(crate) struct Exchange {
    reply: Reply,
    received: Option<Buffer>,
    long: bool,
    /// Who has answered.
    by: (Rank, TargetIndex),
}

impl Exchange {
    /// The reply's body; when it was too long for a message, it stands in memory and the message is empty.
    pub(crate) fn body(&self) -> &[u8] {
        if !self.long || !self.reply.is_empty() {
            return &self.reply;
        }
        let found = self
            .received()
            .split_first_chunk::<LENGTH_LEN>()
            .and_then(|(length, rest)| rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?));
        found.unwrap_or_default()
    }

    /// The target that has answered.
    pub(crate) const fn by(&self) -> (Rank, TargetIndex) {
        self.by
    }

    /// What the engine wrote to the client's memory.
    pub(crate) fn received(&self) -> &[u8] {
        self.received.as_deref().unwrap_or_default()
    }

    pub(crate) fn decode_with_tail<T: DeserializeOwned, Tail: DeserializeOwned + Default>(
        &self,
        info: &RequestInfo<'_>,
    ) -> Result<(T, Tail)> {
        codec::decode_with_tail(self.body()).map_err(|error| info.protocol(error))
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, info: &RequestInfo<'_>) -> Result<T> {
        codec::decode_message(self.body()).map_err(|error| info.protocol(error))
    }
}

/// A request that failed.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    /// Whether the request may have been executed before it was refused: it was sent more than once. Changes of objects are
    /// executed once however often they are sent; this is for what is not.
    pub(crate) uncertain: bool,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, uncertain: false }
    }
}

/// Shortest and longest pause before a request that met a passing obstacle is sent again.
pub(crate) const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Longest wait for the answers of one round of asking engines for a pool; the next round waits twice as long.
const ROUND: Duration = Duration::from_secs(2);

impl Context {
    /// Sends a request and waits for its answer, again and again until `deadline` while the engine is away or says
    /// that a passing obstacle is in the way.
    pub(crate) async fn exchange(
        &self,
        reach: Reach,
        info: &RequestInfo<'_>,
        body: &[u8],
        payload: &Payload<'_>,
        deadline: Instant,
    ) -> core::result::Result<Exchange, Refusal> {
        let unplaced = || {
            let reason = "what a replicated service is asked goes to one of its replicas";
            Error::refused(info.operation, info.subject, Der::NO_SERVICE, reason)
        };
        let (rank, target) = reach.parts().ok_or_else(unplaced)?;
        let peer = match self.peer(rank, target) {
            Some(peer) => peer,
            // Boxed, since it is rare and part of every request's future.
            None => Box::pin(self.find_peer((rank, target), info, deadline)).await?,
        };
        let short = matches!(payload, Payload::Send { .. }) && self.rpc().is_short_of_room(&peer);
        let mut outgoing =
            OutgoingRequest::pack(self, body, payload, if short { SHORT_INLINE_MAX } else { INLINE_MAX });
        self.count(outgoing.is_bulk());
        let started = self.runtime().now();
        let resent = Cell::new(false);
        let mut pause = PAUSE.0;
        loop {
            let options = CallOptions::until(deadline);
            let (bytes, bulk) = outgoing.parts(body, payload);
            let outcome = self.rpc().call_noting(&peer, info.opcode, bytes, bulk, options, &resent).await;
            let error = match outcome {
                Ok(reply) => {
                    let long = matches!(payload, Payload::LongReply { .. });
                    let (received, by) = (outgoing.into_received(payload), (rank, TargetIndex(target)));
                    return Ok(Exchange { reply, received, long, by });
                }
                Err(error) => error,
            };
            let passing = is_passing(info, error.der()) && matches!(error, RpcError::Remote(_));
            if passing && self.runtime().now() + pause < deadline {
                self.runtime().sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
                continue;
            }
            outgoing.give_back(payload);
            let waited = self.runtime().now().saturating_duration_since(started);
            let server = format!("engine {rank} target {target} ({peer})");
            return Err(Refusal { error: describe(info, server, waited, error), uncertain: resent.get() });
        }
    }

    /// Sends an encoded request and decodes the answer.
    pub(crate) async fn ask_encoded<Q: Serialize, A: DeserializeOwned>(
        &self,
        reach: Reach,
        info: &RequestInfo<'_>,
        request: &Q,
    ) -> Result<A> {
        self.ask(reach, info, &|| codec::encode(request), self.until()).await
    }

    /// Sends what `body` makes and decodes the answer. A request that is longer than a message is fetched from here.
    pub(crate) async fn ask<A: DeserializeOwned>(
        &self,
        reach: Reach,
        info: &RequestInfo<'_>,
        body: &dyn Fn() -> Vec<u8>,
        deadline: Instant,
    ) -> Result<A> {
        self.ask_exchange(reach, info, body(), deadline).await?.decode(info)
    }

    /// The same with what may stand behind the answer.
    pub(crate) async fn ask_with_tail<A: DeserializeOwned, Tail: DeserializeOwned + Default>(
        &self,
        reach: Reach,
        info: &RequestInfo<'_>,
        body: &dyn Fn() -> Vec<u8>,
        deadline: Instant,
    ) -> Result<(A, Tail)> {
        self.ask_exchange(reach, info, body(), deadline).await?.decode_with_tail(info)
    }

    async fn ask_exchange(
        &self,
        reach: Reach,
        info: &RequestInfo<'_>,
        body: Vec<u8>,
        deadline: Instant,
    ) -> Result<Exchange> {
        let ask = async |to: Reach, body: &[u8], until: Instant| {
            let is_long = body.len() > INLINE_MAX;
            let (message, request) = if is_long { (&[][..], body) } else { (body, &[][..]) };
            let payload = Payload::LongReply { room: SERVICE_REPLY, request };
            self.exchange(to, info, message, &payload, until).await
        };
        let answer = match reach {
            Reach::Service(pool) => self.exchange_with_service(pool, info, body, ask, deadline).await,
            reach => ask(reach, &body, deadline).await,
        };
        answer.map_err(|refusal| refusal.error)
    }

    /// Sends a request to a pool service whose answer is empty. One that is longer than a message is fetched from here.
    pub(crate) async fn tell<Q: Serialize>(
        &self,
        reach: Reach,
        info: &RequestInfo<'_>,
        request: &Q,
    ) -> Result<()> {
        let deadline = self.until();
        let body = codec::encode(request);
        let tell = async |to: Reach, body: &[u8], until: Instant| {
            if body.len() <= INLINE_MAX {
                return self.exchange(to, info, body, &Payload::None, until).await;
            }
            let payload = Payload::Send { pieces: &[body], len: body.len() as u64 };
            self.exchange(to, info, &[], &payload, until).await
        };
        let exchange = match reach {
            Reach::Service(pool) => self.exchange_with_service(pool, info, body, tell, deadline).await,
            reach => tell(reach, &body, deadline).await,
        };
        exchange.map(|_| ()).map_err(|refusal| refusal.error)
    }

    /// Asks all engines at once and takes the first answer that is not "I know nothing of it". When all engines
    /// say that, so does the result; engines that are away are asked again until the deadline.
    pub(crate) async fn ask_any<A: DeserializeOwned, Tail: DeserializeOwned + Default>(
        &self,
        info: &RequestInfo<'_>,
        body: &dyn Fn() -> Vec<u8>,
        deadline: Instant,
    ) -> Result<(A, Tail)> {
        let started = self.runtime().now();
        let mut open = self.attached();
        let mut unknown = None;
        let mut round = ROUND;
        loop {
            let until = (self.runtime().now() + round).min(deadline);
            let bytes = body();
            let asked = open.iter().map(|rank| {
                let (rank, bytes) = (*rank, &bytes);
                async move {
                    let payload = Payload::LongReply { room: SERVICE_REPLY, request: &[] };
                    (rank, self.exchange(Reach::Rank(rank), info, bytes, &payload, until).await)
                }
            });
            let (mut away, mut silent, mut leaderless) = (None, 0, false);
            let mut answers = Answers::new(asked);
            while let Some((rank, answer)) = answers.next().await {
                match answer.map_err(|refusal| refusal.error) {
                    Ok(exchange) => return exchange.decode_with_tail(info),
                    Err(error) if error.is(Der::NONEXIST) => {
                        open.retain(|open| *open != rank);
                        unknown = Some(error);
                    }
                    // The error is of this round; the caller has waited for all of them.
                    Err(Error::Unavailable { operation, subject, server, cause, .. }) => {
                        let server = match silent {
                            0 => server,
                            1 => format!("{server}, like 1 other,"),
                            others => format!("{server}, like {others} others,"),
                        };
                        silent += 1;
                        let waited = self.runtime().now().saturating_duration_since(started);
                        away = Some(Error::Unavailable { operation, subject, server, waited, cause });
                    }
                    Err(error @ Error::Fabric { .. }) => away = Some(error),
                    // A replicated service is about to have another leader.
                    Err(error) if error.is(Der::NOTLEADER) => {
                        leaderless = true;
                        away = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            match (away, unknown.take()) {
                (None, Some(error)) => return Err(error),
                (Some(error), _) if self.runtime().now() >= deadline => return Err(error),
                (_, known) => unknown = known,
            }
            if leaderless {
                self.runtime().sleep(SERVICE_PAUSE).await;
            } else {
                round = round.saturating_mul(2);
            }
        }
    }
}

/// Whether an engine's refusal is about the moment. A transaction that comes too late always will.
fn is_passing(info: &RequestInfo<'_>, der: Der) -> bool {
    der.is_passing() || (der == Der::TX_RESTART && !opcode::is_of_transaction(info.opcode))
}

fn describe(info: &RequestInfo<'_>, server: String, waited: Duration, error: RpcError) -> Error {
    let operation = info.operation;
    let subject = || info.subject.to_string();
    match error {
        RpcError::Remote(Status { der, message }) if let Some(der) = der.lasting() => {
            Error::Refused { operation, subject: subject(), der, message }
        }
        RpcError::Remote(status) if is_passing(info, status.der) => {
            Error::Unavailable { operation, subject: subject(), server, waited, cause: status.to_string() }
        }
        RpcError::Remote(status) => {
            Error::Refused { operation, subject: subject(), der: status.der, message: status.message }
        }
        RpcError::TimedOut { last, tries, .. } => {
            let is_open = tries > 0 && opcode::is_change(info.opcode);
            let cause = if is_open { format!("{last}; whether it was done is not known") } else { last };
            Error::Unavailable { operation, subject: subject(), server, waited, cause }
        }
        RpcError::Unreachable { reason, .. } => {
            Error::Unavailable { operation, subject: subject(), server, waited, cause: reason }
        }
        other => Error::Refused {
            operation,
            subject: subject(),
            der: other.der(),
            message: format!("{server}: {other}"),
        },
    }
}
