//! Queries for published addresses. Connecting and reading block, so that they run on a thread of their own, as
//! the resolver does.

use super::Found;
use super::record::{ANSWER_MAX, PublishedAddress, Query};
use crate::error::FabricError;
use crate::naming::resolve;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use weir_proto::TenantKey;

/// Longest time from the connection to the end of the answer. It is less than making contact may take (a
/// second), so that its caller learns the reason of a failure, and enough for some round trips of the slowest
/// network.
const ASK_LIMIT: Duration = Duration::from_millis(700);

/// Pause before the next try to connect where no process listens. A restarting engine is back soon, and a caller that
/// fails waits longer.
const CONNECT_AGAIN: Duration = Duration::from_millis(30);

/// An endpoint that asks, with what the answer has to match.
#[derive(Clone, Debug)]
pub(crate) struct Querier {
    /// The provider, by libfabric's name.
    pub(crate) provider: String,
    /// Libfabric's number of its address format.
    pub(crate) format: u32,
    /// The key that seals answers; `None` where they are not sealed.
    pub(crate) key: Option<TenantKey>,
}

/// Asks for the address that is published at this host and port.
pub(crate) async fn query(
    querier: Querier,
    host: String,
    port: u16,
    nonce: [u8; 16],
) -> Result<Found, FabricError> {
    resolve::elsewhere(host.clone(), port, move || {
        let socket = resolve::blocking(&host, port)?;
        let told = querier.query(socket, port, nonce);
        told.map_err(|reason| FabricError::Unpublished { host, port, reason })
    })
    .await
}

impl Querier {
    /// Asks at this socket. The error says why there is no address.
    pub(super) fn query(&self, socket: SocketAddr, port: u16, nonce: [u8; 16]) -> Result<Found, String> {
        let tenant = self.key.as_ref().map_or(0, |key| key.tenant().0);
        let question = Query { tenant, nonce };
        let mut answer = [0; ANSWER_MAX + 1];
        let len = exchange(socket, &question, &mut answer).map_err(|error| say(&error))?;
        if len > ANSWER_MAX {
            return Err(format!("its answer has more than the {ANSWER_MAX} bytes that one can have"));
        }
        let told = PublishedAddress::decode(&answer[..len], &question, port, self.key.as_ref());
        let PublishedAddress { server, provider, format, address } =
            told.map_err(|error| error.to_string())?;
        if provider != self.provider || format != self.format {
            return Err(format!(
                "it is an endpoint of provider {provider} with addresses of form {format}, and this one of {} with \
                 form {}: both sides need the same provider",
                self.provider, self.format
            ));
        }
        Ok(Found { address, server: Some(server) })
    }
}

/// Sends the query and reads until the end, or until the answer's limit.
fn exchange(socket: SocketAddr, question: &Query, answer: &mut [u8]) -> io::Result<usize> {
    let until = Instant::now() + ASK_LIMIT;
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut stream = loop {
        match TcpStream::connect_timeout(&socket, left()?) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::thread::sleep(CONNECT_AGAIN);
                if left().is_err() {
                    return Err(error);
                }
            }
            connected => break connected?,
        }
    };
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(&question.encode())?;
    let mut len = 0;
    while len < answer.len() {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut answer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// What an error means to a client that looks for an engine.
fn say(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "nobody listens there; is the engine up?".to_owned(),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!(
                "no answer within {} ms; is the way to that port open, and does the engine publish its addresses?",
                ASK_LIMIT.as_millis()
            )
        }
        ErrorKind::ConnectionReset => {
            "the connection was reset; does the engine publish its addresses?".to_owned()
        }
        _ => error.to_string(),
    }
}
