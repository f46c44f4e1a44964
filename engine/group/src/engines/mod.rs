//! The engines of the system, and sealed requests between them.

mod announce;
mod ask;
mod settle;
#[cfg(test)]
mod tests;

pub use ask::AskError;
pub(crate) use ask::REPLY_MAX;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_fabric::Buffer;
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::{EngineInfo, GroupList};
use weir_proto::pool::SealedRequest;
use weir_proto::{Der, Rank, TargetIndex, codec, opcode};
use weir_rpc::{Request, Rpc, RpcError, Status};
use weir_runtime::{Handle, LocalBoxFuture};

use crate::refusal::{Refusal, Rejection};
use crate::reply::reply;
use crate::roster::{InvalidEngines, Roster};
use crate::seal::open_seal;

type Answer = LocalBoxFuture<'static, Result<Vec<u8>, Refusal>>;
type Answerer = Rc<dyn Fn(Rank, &[u8]) -> Answer>;

/// The keys of an engine.
#[derive(Clone, Debug)]
pub struct EngineKeys {
    /// Shared with clients, whose keys are derived from it.
    pub system: SystemKey,
    /// Shared with other engines only.
    pub engines: EngineKey,
}

/// One target's door to the other engines.
pub struct Engines {
    rt: Handle,
    pub(crate) rpc: Rc<Rpc>,
    keys: EngineKeys,
    own: Rank,
    index: TargetIndex,
    pub(crate) roster: Roster,
    answerers: RefCell<HashMap<u16, Answerer>>,
    forged: Cell<u64>,
}

impl Engines {
    /// The engines as target `index` of rank `own` sees them.
    ///
    /// # Errors
    /// When the list is contradictory.
    pub fn new(
        rt: Handle,
        rpc: Rc<Rpc>,
        keys: EngineKeys,
        own: (Rank, TargetIndex),
        list: GroupList,
    ) -> Result<Rc<Self>, InvalidEngines> {
        let roster = Roster::new(own.0, list)?;
        let (own, index) = own;
        let (answerers, forged) = (RefCell::default(), Cell::new(0));
        let engines = Rc::new(Self { rt, rpc, keys, own, index, roster, answerers, forged });
        engines.answer_offers();
        engines.announce();
        Ok(engines)
    }

    /// This engine's rank.
    #[must_use]
    pub const fn own_rank(&self) -> Rank {
        self.own
    }

    /// This target's index.
    #[must_use]
    pub const fn own_index(&self) -> TargetIndex {
        self.index
    }

    /// Every engine, by ascending rank.
    #[must_use]
    pub fn all(&self) -> Rc<[EngineInfo]> {
        self.roster.infos()
    }

    /// One engine.
    #[must_use]
    pub fn get(&self, rank: Rank) -> Option<EngineInfo> {
        self.roster.infos().iter().find(|info| info.rank == rank).cloned()
    }

    /// The lowest rank. It begins the list of pools, and engines of earlier releases take it for the one that keeps the list.
    #[must_use]
    pub fn lowest_rank(&self) -> Rank {
        self.roster.infos().first().map_or(self.own, |info| info.rank)
    }

    /// The list of engines in use, and what became of other versions of it.
    #[must_use]
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The key that engines and clients share.
    #[must_use]
    pub const fn key(&self) -> &SystemKey {
        &self.keys.system
    }

    /// The key that engines seal requests to each other with.
    pub(crate) const fn engine_key(&self) -> &EngineKey {
        &self.keys.engines
    }

    /// The door to time and tasks.
    #[must_use]
    pub const fn runtime(&self) -> &Handle {
        &self.rt
    }

    /// Memory that other targets can read, with a copy of these bytes one behind the other.
    ///
    /// # Errors
    /// When none is left.
    pub fn lend(&self, parts: &[&[u8]]) -> Result<Buffer, RpcError> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut memory = self.rpc.alloc(len)?;
        memory.set_len(len);
        let mut at = 0;
        for part in parts {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(memory)
    }

    /// Takes note of a request whose seal, handle or credential was wrong.
    pub fn count_forged(&self) {
        self.forged.set(self.forged.get() + 1);
    }

    /// Requests whose seal, handle or credential was wrong.
    #[must_use]
    pub const fn forged(&self) -> u64 {
        self.forged.get()
    }

    /// Answers sealed requests of other engines with `opcode`, and this target's own; an error of the handler crosses
    /// the wire as a [`Refusal`]. Requests of membership, and those that admitted requests wait for, are answered also
    /// when there is no room for more.
    pub fn serve<Req, Rep, E, F, Fut>(self: &Rc<Self>, opcode: u16, handler: F)
    where
        Req: DeserializeOwned + 'static,
        Rep: Serialize + 'static,
        E: Into<Refusal> + 'static,
        F: Fn(Rank, Req) -> Fut + 'static,
        Fut: Future<Output = Result<Rep, E>> + 'static,
    {
        let answerer: Answerer = Rc::new(move |rank, payload| match codec::decode_message::<Req>(payload) {
            Ok(request) => {
                let answer = handler(rank, request);
                Box::pin(async move { Ok(codec::encode(&answer.await.map_err(Into::into)?)) })
            }
            Err(error) => {
                let message = error.to_string();
                Box::pin(async move { Err(Refusal { der: Der::PROTO, object: String::new(), message }) })
            }
        });
        self.answerers.borrow_mut().insert(opcode, Rc::clone(&answerer));
        let engines = Rc::downgrade(self);
        let serve = move |request: Request| {
            let (engines, answerer) = (engines.clone(), Rc::clone(&answerer));
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let (rank, payload) = engines.upgrade().ok_or_else(stopping)?.open(opcode, request.body())?;
                let answer = answerer(rank, &payload).await?;
                reply(&request, answer).await
            }
        };
        if opcode::is_urgent(opcode) || opcode::is_awaited(opcode) {
            self.rpc.serve_urgent(opcode, Rc::new(serve));
        } else {
            self.rpc.serve(opcode, Rc::new(serve));
        }
    }

    /// As [`Engines::serve`], for requests of other targets that lend memory to their receiver ([`Engines::ask_lending`]). Their
    /// handler reads it by the request.
    pub fn serve_lent<Req, Rep, E, F, Fut>(self: &Rc<Self>, opcode: u16, handler: F)
    where
        Req: DeserializeOwned + 'static,
        Rep: Serialize + 'static,
        E: Into<Refusal> + 'static,
        F: Fn(Rank, Req, Rc<Request>) -> Fut + 'static,
        Fut: Future<Output = Result<Rep, E>> + 'static,
    {
        let (engines, handler) = (Rc::downgrade(self), Rc::new(handler));
        let serve = move |request: Request| {
            let (engines, handler) = (engines.clone(), Rc::clone(&handler));
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let (rank, payload) = engines.upgrade().ok_or_else(stopping)?.open(opcode, request.body())?;
                let wanted: Req = codec::decode_message(&payload)
                    .map_err(|error| Status { der: Der::PROTO, message: error.to_string() })?;
                let request = Rc::new(request);
                let answer = handler(rank, wanted, Rc::clone(&request)).await;
                reply(&request, codec::encode(&answer.map_err(Into::into)?)).await
            }
        };
        self.rpc.serve_urgent(opcode, Rc::new(serve));
    }

    fn open(&self, opcode: u16, body: &[u8]) -> Result<(Rank, Vec<u8>), Status> {
        let sealed: SealedRequest = codec::decode_message(body)
            .map_err(|error| Status { der: Der::PROTO, message: error.to_string() })?;
        if !open_seal(self.engine_key(), opcode, (self.own, self.index), &sealed, self.rt.wall_ns()) {
            self.count_forged();
            return Err(Rejection::NotSealed.into());
        }
        if !opcode::settles_groups(opcode) {
            self.roster.check(sealed.seal.group)?;
        }
        Ok((sealed.seal.rank, sealed.payload))
    }
}
