//! The engines of the system, and sealed requests between them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_proto::capability::SystemKey;
use weir_proto::pool::SealedRequest;
use weir_proto::{Der, Rank, TargetIndex, codec};
use weir_rpc::{Bulk, CallOptions, Peer, Priority, Request, Rpc, RpcError, Status};
use weir_runtime::{Handle, LocalBoxFuture};

use crate::error::{Failed, Refusal};
use crate::reply::{read_long_reply, reply};
use crate::seal::{open_seal, seal};

/// Longest reply between engines, in bytes: a list of some ten thousand containers.
const REPLY_MAX: usize = 4 * 1024 * 1024;

/// Where an engine is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineInfo {
    /// Its number.
    pub rank: Rank,
    /// Host name or address of its endpoints.
    pub host: String,
    /// Port of target 0; target `t` listens on `fabric_port + t`.
    pub fabric_port: u16,
    /// Number of targets.
    pub targets: u32,
    /// `host:port` of its management service.
    pub management: String,
}

/// A list of engines that can't be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidEngines {
    /// The own rank is missing.
    #[error("rank {0} is not in the list of engines; list every engine, this one too")]
    OwnRankMissing(Rank),
    /// A rank twice.
    #[error("rank {0} is listed twice; give each engine a rank of its own")]
    Repeated(Rank),
    /// An engine without targets, or with ports past the last one.
    #[error("rank {0} has no targets or its ports run past 65535; check `targets` and `fabric_port`")]
    Targets(Rank),
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
    /// The error of a larger operation on `object` that needed the answer for `doing`.
    #[must_use]
    pub fn within(self, object: impl Into<String>, doing: &'static str) -> Failed {
        let object = object.into();
        match self {
            Self::Refused { rank, index, refusal } => {
                Failed::Target { object, rank, index, der: refusal.der, message: refusal.message }
            }
            Self::NoAnswer { rank, ref reason, .. } => {
                Failed::Unreachable { object, doing, rank, reason: reason.clone() }
            }
            Self::Unknown { rank, .. } => {
                Failed::Unreachable { object, doing, rank, reason: self.to_string() }
            }
        }
    }
}

type Answer = LocalBoxFuture<'static, Result<Vec<u8>, Refusal>>;
type Answerer = Rc<dyn Fn(Rank, &[u8]) -> Answer>;

/// One target's door to the other engines.
pub struct Engines {
    rt: Handle,
    rpc: Rc<Rpc>,
    key: SystemKey,
    own: Rank,
    index: TargetIndex,
    infos: Vec<EngineInfo>,
    peers: HashMap<(Rank, u32), Peer>,
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
        key: SystemKey,
        own: (Rank, TargetIndex),
        mut infos: Vec<EngineInfo>,
    ) -> Result<Rc<Self>, InvalidEngines> {
        validate(own.0, &infos)?;
        infos.sort_by_key(|info| info.rank);
        let mut peers = HashMap::new();
        for info in &infos {
            for target in 0..info.targets {
                let port = u32::from(info.fabric_port) + target;
                let port = u16::try_from(port).map_err(|_| InvalidEngines::Targets(info.rank))?;
                peers.insert((info.rank, target), Peer::new(&info.host, port));
            }
        }
        let answerers = RefCell::default();
        Ok(Rc::new(Self {
            rt,
            rpc,
            key,
            own: own.0,
            index: own.1,
            infos,
            peers,
            answerers,
            forged: Cell::new(0),
        }))
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
    pub fn all(&self) -> &[EngineInfo] {
        &self.infos
    }

    /// One engine.
    #[must_use]
    pub fn get(&self, rank: Rank) -> Option<&EngineInfo> {
        self.infos.iter().find(|info| info.rank == rank)
    }

    /// The rank that keeps the list of pools: the lowest one.
    #[must_use]
    pub fn directory_rank(&self) -> Rank {
        self.infos.first().map_or(self.own, |info| info.rank)
    }

    /// The key that engines and clients share.
    #[must_use]
    pub const fn key(&self) -> &SystemKey {
        &self.key
    }

    /// The door to time and tasks.
    #[must_use]
    pub const fn runtime(&self) -> &Handle {
        &self.rt
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

    /// Answers sealed requests of other engines with `opcode`, and this target's own.
    pub fn serve<Req, Rep, F, Fut>(self: &Rc<Self>, opcode: u16, handler: F)
    where
        Req: DeserializeOwned + 'static,
        Rep: Serialize + 'static,
        F: Fn(Rank, Req) -> Fut + 'static,
        Fut: Future<Output = Result<Rep, Failed>> + 'static,
    {
        self.serve_at(Priority::Normal, opcode, handler);
    }

    /// Like [`Engines::serve`], also when this target has no room for other requests: for membership.
    pub fn serve_urgent<Req, Rep, F, Fut>(self: &Rc<Self>, opcode: u16, handler: F)
    where
        Req: DeserializeOwned + 'static,
        Rep: Serialize + 'static,
        F: Fn(Rank, Req) -> Fut + 'static,
        Fut: Future<Output = Result<Rep, Failed>> + 'static,
    {
        self.serve_at(Priority::Urgent, opcode, handler);
    }

    fn serve_at<Req, Rep, F, Fut>(self: &Rc<Self>, priority: Priority, opcode: u16, handler: F)
    where
        Req: DeserializeOwned + 'static,
        Rep: Serialize + 'static,
        F: Fn(Rank, Req) -> Fut + 'static,
        Fut: Future<Output = Result<Rep, Failed>> + 'static,
    {
        let answerer: Answerer = Rc::new(move |rank, payload| match codec::decode::<Req>(payload) {
            Ok(request) => {
                let answer = handler(rank, request);
                Box::pin(async move { Ok(codec::encode(&answer.await?)) })
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
        match priority {
            Priority::Normal => self.rpc.serve(opcode, Rc::new(serve)),
            Priority::Urgent => self.rpc.serve_urgent(opcode, Rc::new(serve)),
        }
    }

    fn open(&self, opcode: u16, body: &[u8]) -> Result<(Rank, Vec<u8>), Status> {
        let sealed: SealedRequest =
            codec::decode(body).map_err(|error| Status { der: Der::PROTO, message: error.to_string() })?;
        if !open_seal(&self.key, opcode, &sealed, self.rt.wall_ns()) {
            self.count_forged();
            return Err(Failed::NotSealed.into());
        }
        Ok((sealed.seal.rank, sealed.payload))
    }

    /// Asks a target, within `limit`. A request to this target itself takes no trip.
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
        self.ask_at(Priority::Normal, rank, index, opcode, request, limit).await
    }

    /// Like [`Engines::ask`], before all other requests of this target and beyond its credits: for membership.
    ///
    /// # Errors
    /// As [`Engines::ask`].
    pub async fn ask_urgent<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        rank: Rank,
        index: TargetIndex,
        opcode: u16,
        request: &Req,
        limit: Duration,
    ) -> Result<Rep, AskError> {
        self.ask_at(Priority::Urgent, rank, index, opcode, request, limit).await
    }

    async fn ask_at<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        priority: Priority,
        rank: Rank,
        index: TargetIndex,
        opcode: u16,
        request: &Req,
        limit: Duration,
    ) -> Result<Rep, AskError> {
        let index = index.0;
        let payload = codec::encode(request);
        let refused = |refusal| AskError::Refused { rank, index, refusal };
        let answer = if (rank, index) == (self.own, self.index.0) {
            let answerer = self.answerers.borrow().get(&opcode).map(Rc::clone);
            let answerer = answerer.ok_or(AskError::Unknown { rank, index })?;
            let answer = self.rt.timeout(limit, answerer(rank, &payload)).await;
            let late = || AskError::NoAnswer { rank, index, reason: format!("no answer within {limit:?}") };
            answer.map_err(|_| late())?.map_err(refused)?
        } else {
            let options = CallOptions { priority, ..CallOptions::within(&self.rt, limit) };
            self.send(rank, index, opcode, payload, options).await?
        };
        codec::decode(&answer).map_err(|error| {
            refused(Refusal { der: Der::PROTO, object: String::new(), message: error.to_string() })
        })
    }

    async fn send(
        &self,
        rank: Rank,
        index: u32,
        opcode: u16,
        payload: Vec<u8>,
        options: CallOptions,
    ) -> Result<Vec<u8>, AskError> {
        let peer = self.peers.get(&(rank, index)).ok_or(AskError::Unknown { rank, index })?;
        let sealed = seal(&self.key, opcode, self.own, self.rt.wall_ns(), payload);
        let body = codec::encode(&sealed);
        let answer = match self.rpc.call(peer, opcode, &body, None, options).await {
            // Only now is the size of the reply known; lists are asked for again with memory for a long one.
            Err(RpcError::Remote(Status { der: Der::OVERFLOW, .. })) => {
                self.call_long(peer, opcode, &body, options).await
            }
            other => other.map(|reply| reply.to_vec()),
        };
        answer.map_err(|error| match error {
            RpcError::Remote(Status { der, message }) => {
                AskError::Refused { rank, index, refusal: Refusal { der, object: String::new(), message } }
            }
            error => AskError::NoAnswer { rank, index, reason: error.to_string() },
        })
    }

    async fn call_long(
        &self,
        peer: &Peer,
        opcode: u16,
        body: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, RpcError> {
        let mut room = self.rpc.alloc(REPLY_MAX)?;
        let reply = self.rpc.call(peer, opcode, body, Some(Bulk::write(&mut room)), options).await?;
        if !reply.is_empty() {
            return Ok(reply.to_vec());
        }
        let broken = || RpcError::Remote(Status::new(Der::PROTO, "a long reply without its length"));
        read_long_reply(&room).map(<[u8]>::to_vec).ok_or_else(broken)
    }
}

fn validate(own: Rank, infos: &[EngineInfo]) -> Result<(), InvalidEngines> {
    let mut seen = BTreeSet::new();
    for info in infos {
        if !seen.insert(info.rank) {
            return Err(InvalidEngines::Repeated(info.rank));
        }
        let last = u32::from(info.fabric_port).saturating_add(info.targets.saturating_sub(1));
        if info.targets == 0 || last > u32::from(u16::MAX) {
            return Err(InvalidEngines::Targets(info.rank));
        }
    }
    if seen.contains(&own) { Ok(()) } else { Err(InvalidEngines::OwnRankMissing(own)) }
}
