//! Asking other engines.

use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_fabric::Buffer;
use weir_proto::{Der, Rank, TargetIndex, codec, opcode};
use weir_rpc::{Bulk, CallOptions, Peer, RpcError, Status};

use super::Engines;
use crate::refusal::Refusal;
use crate::reply::{LENGTH_LEN, read_long_reply};
use crate::seal::{Destination, seal};

/// Longest reply between engines, in bytes: a list of some ten thousand containers.
pub(crate) const REPLY_MAX: usize = 4 * 1024 * 1024;

/// How often one request makes lists of engines equal: each time is for a list that came while the last one travelled.
const SETTLEMENTS_MAX: u32 = 3;

/// What a target that is asked may use of this one's memory.
#[derive(Clone, Copy)]
enum Memory<'a> {
    None,
    /// It may read it.
    Lent(&'a Buffer),
    /// It may write so many bytes of an answer that doesn't fit a message.
    Room(usize),
}

/// A request to another engine failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AskError {
    /// No such rank or target is configured.
    #[error("target {index} of rank {rank} is not configured on this engine")]
    Unknown {
        /// The rank.
        rank: Rank,
        /// The target.
        index: u32,
    },
    /// It goes by another list of engines, and the two could not be made equal.
    #[error(
        "target {index} of rank {rank} goes by another version of the list of engines than this engine's {version}: {reason}; give all engines the same list and restart those with an old one"
    )]
    StaleGroup {
        /// The rank.
        rank: Rank,
        /// The target.
        index: u32,
        /// Version of the list here.
        version: u64,
        /// What it says.
        reason: String,
    },
    /// No answer in time.
    #[error("target {index} of rank {rank} does not answer: {reason}")]
    NoAnswer {
        /// The rank.
        rank: Rank,
        /// The target.
        index: u32,
        /// What the transport says.
        reason: String,
    },
    /// It answered with an error.
    #[error("{}", .refusal.message)]
    Refused {
        /// The rank.
        rank: Rank,
        /// The target.
        index: u32,
        /// The error.
        refusal: Refusal,
    },
}

impl AskError {
    /// Whose answer it is, or isn't.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        match self {
            Self::Unknown { rank, .. }
            | Self::StaleGroup { rank, .. }
            | Self::NoAnswer { rank, .. }
            | Self::Refused { rank, .. } => *rank,
        }
    }

    /// The number of the error.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::Unknown { .. } => Der::OOG,
            Self::StaleGroup { .. } => Der::GRPVER,
            Self::NoAnswer { .. } => Der::UNREACH,
            Self::Refused { refusal, .. } => refusal.der,
        }
    }

    /// Whether the engine doesn't answer.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::Unknown { .. })
    }

    /// Whether the target can't be told anything, and will know nothing of it when it is back: its engine doesn't answer, or its
    /// device is out of service.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.is_silent() || self.der() == Der::NVME_IO
    }
}

impl Engines {
    /// Asks a target, within `limit`. A request to this target itself takes no trip; one of membership goes before all
    /// others and beyond credits, a decision before all that begins something. When the other side goes by another
    /// version of the list of engines, the two are made equal and it is asked again.
    ///
    /// # Errors
    /// When the target is not configured, doesn't answer in time, or refuses.
    pub async fn ask<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        rank: Rank,
        index: TargetIndex,
        opcode: u16,
        request: &Req,
        limit: Duration,
    ) -> Result<Rep, AskError> {
        let answer = self.ask_encoded(rank, index.0, opcode, codec::encode(request), limit).await?;
        decode_answer((rank, index.0), &answer)
    }

    /// As [`Engines::ask`] of another target, which may read the memory until it answers; see [`Engines::serve_lent`].
    ///
    /// # Errors
    /// As [`Engines::ask`].
    pub async fn ask_lending<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        rank: Rank,
        index: TargetIndex,
        opcode: u16,
        request: &Req,
        memory: Option<&Buffer>,
        limit: Duration,
    ) -> Result<Rep, AskError> {
        let (payload, options) = (codec::encode(request), CallOptions::within(&self.rt, limit));
        let memory = memory.map_or(Memory::None, Memory::Lent);
        let answer = self.send(rank, index.0, opcode, (&payload, memory), options).await?;
        decode_answer((rank, index.0), &answer)
    }

    /// As [`Engines::ask`] of another target, whose answer may have up to `room` bytes. Long answers to [`Engines::ask`] take two
    /// requests.
    ///
    /// # Errors
    /// As [`Engines::ask`], and when this target has no memory for the answer.
    pub async fn ask_long<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        (rank, index): (Rank, TargetIndex),
        opcode: u16,
        request: &Req,
        room: usize,
        limit: Duration,
    ) -> Result<Rep, AskError> {
        let (payload, options) = (codec::encode(request), CallOptions::within(&self.rt, limit));
        let memory = Memory::Room(room.saturating_add(LENGTH_LEN));
        let answer = self.send(rank, index.0, opcode, (&payload, memory), options).await?;
        decode_answer((rank, index.0), &answer)
    }

    /// The same with request and answer as they travel.
    pub(crate) async fn ask_encoded(
        &self,
        rank: Rank,
        index: u32,
        opcode: u16,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, AskError> {
        if (rank, index) == (self.own, self.index.0) {
            let answerer = self.answerers.borrow().get(&opcode).map(Rc::clone);
            let answerer = answerer.ok_or(AskError::Unknown { rank, index })?;
            let answer = self.rt.timeout(limit, answerer(rank, &payload)).await;
            let late = || AskError::NoAnswer { rank, index, reason: format!("no answer within {limit:?}") };
            let refused = |refusal| AskError::Refused { rank, index, refusal };
            answer.map_err(|_| late())?.map_err(refused)
        } else {
            self.send(rank, index, opcode, (&payload, Memory::None), CallOptions::within(&self.rt, limit))
                .await
        }
    }

    async fn send(
        &self,
        rank: Rank,
        index: u32,
        opcode: u16,
        (payload, memory): (&[u8], Memory<'_>),
        options: CallOptions,
    ) -> Result<Vec<u8>, AskError> {
        let mut settled = 0;
        loop {
            let peer = self.roster.peer(rank, index).ok_or(AskError::Unknown { rank, index })?;
            let to = (rank, TargetIndex(index));
            match self.exchange_lending((&peer, to), opcode, (payload, memory), options).await {
                Err(RpcError::Remote(Status { der: Der::GRPVER, message })) => {
                    settled += 1;
                    if settled > SETTLEMENTS_MAX || !self.settle((&peer, to), options.deadline).await {
                        let version = self.roster.version();
                        return Err(AskError::StaleGroup { rank, index, version, reason: message });
                    }
                }
                Err(RpcError::Remote(Status { der, message })) => {
                    let refusal = Refusal { der, object: String::new(), message };
                    return Err(AskError::Refused { rank, index, refusal });
                }
                Err(error) => return Err(AskError::NoAnswer { rank, index, reason: error.to_string() }),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Sends one sealed request to a target and takes its answer, however long.
    pub(crate) async fn exchange(
        &self,
        to: (&Peer, Destination),
        opcode: u16,
        payload: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, RpcError> {
        self.exchange_lending(to, opcode, (payload, Memory::None), options).await
    }

    /// The same, with memory that the target may use.
    async fn exchange_lending(
        &self,
        (peer, to): (&Peer, Destination),
        opcode: u16,
        (payload, memory): (&[u8], Memory<'_>),
        options: CallOptions,
    ) -> Result<Vec<u8>, RpcError> {
        let options = match opcode {
            _ if opcode::is_urgent(opcode) => options.urgent(),
            _ if opcode::is_decision(opcode) => options.early(),
            _ => options,
        };
        let when = (self.roster.version(), self.rt.wall_ns());
        let sealed = seal(self.engine_key(), opcode, self.own, to, when, payload.to_vec());
        let body = codec::encode(&sealed);
        let lent = match memory {
            Memory::Room(room) => return self.call_long(peer, opcode, &body, (room, options)).await,
            Memory::Lent(buffer) => Some(Bulk::read(buffer)),
            Memory::None => None,
        };
        match self.rpc.call(peer, opcode, &body, lent, options).await {
            // Only now is the size of the reply known; lists are asked for again with memory for a long one.
            Err(RpcError::Remote(Status { der: Der::OVERFLOW, .. })) => {
                self.call_long(peer, opcode, &body, (REPLY_MAX, options)).await
            }
            other => other.map(|reply| reply.to_vec()),
        }
    }

    async fn call_long(
        &self,
        peer: &Peer,
        opcode: u16,
        body: &[u8],
        (room, options): (usize, CallOptions),
    ) -> Result<Vec<u8>, RpcError> {
        let mut room = self.rpc.alloc(room)?;
        let reply = self.rpc.call(peer, opcode, body, Some(Bulk::write(&mut room)), options).await?;
        if !reply.is_empty() {
            return Ok(reply.to_vec());
        }
        let broken = || RpcError::Remote(Status::new(Der::PROTO, "a long reply without its length"));
        read_long_reply(&room).map(<[u8]>::to_vec).ok_or_else(broken)
    }
}

fn decode_answer<Rep: DeserializeOwned>((rank, index): (Rank, u32), answer: &[u8]) -> Result<Rep, AskError> {
    codec::decode_message(answer).map_err(|error| {
        let refusal = Refusal { der: Der::PROTO, object: String::new(), message: error.to_string() };
        AskError::Refused { rank, index, refusal }
    })
}
