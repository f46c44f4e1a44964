//! The engines of the system, and sealed requests between them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_proto::capability::SystemKey;
use weir_proto::group::{EngineInfo, GroupList};
use weir_proto::pool::SealedRequest;
use weir_proto::{Der, Rank, TargetIndex, codec, opcode};
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcError, Status};
use weir_runtime::{Handle, LocalBoxFuture};

use crate::error::{Failed, Refusal};
use crate::reply::{read_long_reply, reply};
use crate::roster::Roster;
use crate::seal::{open_seal, seal};

/// Longest reply between engines, in bytes: a list of some ten thousand containers.
pub(crate) const REPLY_MAX: usize = 4 * 1024 * 1024;

/// How often one request makes lists of engines equal: each time is for a list that came while the last one travelled.
const SETTLEMENTS_MAX: u32 = 3;

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
            Self::StaleGroup { rank, index, .. } => {
                Failed::Target { object, rank, index, der: Der::GRPVER, message: self.to_string() }
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
    pub(crate) rpc: Rc<Rpc>,
    key: SystemKey,
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
        key: SystemKey,
        own: (Rank, TargetIndex),
        list: GroupList,
    ) -> Result<Rc<Self>, InvalidEngines> {
        let roster = Roster::new(own.0, list)?;
        let (own, index) = own;
        let (answerers, forged) = (RefCell::default(), Cell::new(0));
        let engines = Rc::new(Self { rt, rpc, key, own, index, roster, answerers, forged });
        engines.answer_offers();
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

    /// The rank that keeps the list of pools: the lowest one.
    #[must_use]
    pub fn directory_rank(&self) -> Rank {
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

    /// Answers sealed requests of other engines with `opcode`, and this target's own. Those of membership, and those
    /// that others wait for who are there already, are answered also when there is no room for more.
    pub fn serve<Req, Rep, F, Fut>(self: &Rc<Self>, opcode: u16, handler: F)
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
        if opcode::is_urgent(opcode) || opcode::is_awaited(opcode) {
            self.rpc.serve_urgent(opcode, Rc::new(serve));
        } else {
            self.rpc.serve(opcode, Rc::new(serve));
        }
    }

    fn open(&self, opcode: u16, body: &[u8]) -> Result<(Rank, Vec<u8>), Status> {
        let sealed: SealedRequest =
            codec::decode(body).map_err(|error| Status { der: Der::PROTO, message: error.to_string() })?;
        if !open_seal(&self.key, opcode, &sealed, self.rt.wall_ns()) {
            self.count_forged();
            return Err(Failed::NotSealed.into());
        }
        if !opcode::settles_groups(opcode) {
            self.roster.check(sealed.seal.group)?;
        }
        Ok((sealed.seal.rank, sealed.payload))
    }

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
        codec::decode(&answer).map_err(|error| {
            let refusal = Refusal { der: Der::PROTO, object: String::new(), message: error.to_string() };
            AskError::Refused { rank, index: index.0, refusal }
        })
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
            self.send(rank, index, opcode, &payload, CallOptions::within(&self.rt, limit)).await
        }
    }

    async fn send(
        &self,
        rank: Rank,
        index: u32,
        opcode: u16,
        payload: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, AskError> {
        let mut settled = 0;
        loop {
            let peer = self.roster.peer(rank, index).ok_or(AskError::Unknown { rank, index })?;
            match self.exchange(&peer, opcode, payload, options).await {
                Err(RpcError::Remote(Status { der: Der::GRPVER, message })) => {
                    settled += 1;
                    if settled > SETTLEMENTS_MAX || !self.settle(&peer, options.deadline).await {
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
        peer: &Peer,
        opcode: u16,
        payload: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, RpcError> {
        let options = match opcode {
            _ if opcode::is_urgent(opcode) => options.urgent(),
            _ if opcode::is_decision(opcode) => options.early(),
            _ => options,
        };
        let group = self.roster.version();
        let sealed = seal(&self.key, opcode, self.own, group, self.rt.wall_ns(), payload.to_vec());
        let body = codec::encode(&sealed);
        match self.rpc.call(peer, opcode, &body, None, options).await {
            // Only now is the size of the reply known; lists are asked for again with memory for a long one.
            Err(RpcError::Remote(Status { der: Der::OVERFLOW, .. })) => {
                self.call_long(peer, opcode, &body, options).await
            }
            other => other.map(|reply| reply.to_vec()),
        }
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

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use weir_fabric::sim::Fabric;
    use weir_rpc::RpcConfig;
    use weir_runtime::join_all;
    use weir_runtime::sim::World;

    use super::*;

    const PORT: u16 = 100;
    const SECOND: Duration = Duration::from_secs(1);
    /// Requests that take no part in transactions.
    const OTHER: u16 = opcode::TARGET_POOL_QUERY;

    fn list(count: u32) -> GroupList {
        let info = |rank| EngineInfo {
            rank: Rank(rank),
            host: format!("engine-{rank}"),
            fabric_port: PORT,
            targets: 1,
            management: String::new(),
        };
        (0..count).map(info).collect::<Vec<_>>().into()
    }

    fn engines(world: &World, fabric: &Fabric, rank: u32, count: u32, config: RpcConfig) -> Rc<Engines> {
        let node = world.node(&format!("engine-{rank}"));
        let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
        let own = (Rank(rank), TargetIndex(0));
        Engines::new(node.handle(), rpc, SystemKey([1; 32]), own, list(count)).expect("a good list")
    }

    #[test]
    fn a_server_that_is_full_of_those_who_wait_for_a_decision_takes_it() {
        const COUNT: u32 = 40;
        let (world, node) = (World::new(1), "asking");
        let (fabric, node) = (Fabric::new(&world), world.node(node));
        let config = RpcConfig { running_max: 16, ..RpcConfig::default() };
        let full = engines(&world, &fabric, 0, COUNT, config);
        let others: Vec<_> =
            (1..COUNT).map(|rank| engines(&world, &fabric, rank, COUNT, RpcConfig::default())).collect();
        let is_decided = Rc::new(Cell::new(false));
        let (decided, rt) = (Rc::clone(&is_decided), full.rt.clone());
        full.serve(OTHER, move |_, ()| {
            let (decided, rt) = (Rc::clone(&decided), rt.clone());
            async move {
                while !decided.get() {
                    rt.sleep(SECOND / 1000).await;
                }
                Ok(())
            }
        });
        full.serve(opcode::TARGET_TRANSACTION_PREPARE, |_, ()| async { Ok(()) });
        full.serve(opcode::TARGET_TRANSACTION_OUTCOME, |_, ()| async { Ok(()) });
        full.serve(opcode::TARGET_TRANSACTION_DECIDE, move |_, ()| {
            is_decided.set(true);
            async { Ok(()) }
        });
        world.block_on(&node, async move {
            let to = (Rank(0), TargetIndex(0));
            let ask = async |from: &Engines, opcode| from.ask::<_, ()>(to.0, to.1, opcode, &(), SECOND).await;
            let waiting: Vec<_> = others
                .iter()
                .map(|other| {
                    let from = Rc::clone(other);
                    let asked = async move { from.ask::<_, ()>(to.0, to.1, OTHER, &(), 60 * SECOND).await };
                    other.rt.spawn(asked)
                })
                .collect();
            others[0].rt.sleep(SECOND).await;
            ask(&others[0], OTHER).await.expect_err("there is no room");
            for opcode in [
                opcode::TARGET_TRANSACTION_PREPARE,
                opcode::TARGET_TRANSACTION_OUTCOME,
                opcode::TARGET_TRANSACTION_DECIDE,
            ] {
                ask(&others[0], opcode).await.expect("others wait for it");
            }
            assert!(join_all(waiting).await.iter().all(|one| matches!(one, Ok(Ok(())))));
        });
    }

    #[test]
    fn a_decision_goes_before_what_waits_to_be_sent_and_begins_something() {
        let world = World::new(2);
        let fabric = Fabric::new(&world);
        let config = RpcConfig { credits: 1, ..RpcConfig::default() };
        let (from, to) =
            (engines(&world, &fabric, 0, 2, config), engines(&world, &fabric, 1, 2, RpcConfig::default()));
        let order: Rc<RefCell<Vec<u16>>> = Rc::default();
        let opcodes = [OTHER, opcode::TARGET_TRANSACTION_DECIDE, opcode::TARGET_TRANSACTION_OUTCOME];
        for opcode in opcodes {
            let (order, rt) = (Rc::clone(&order), to.rt.clone());
            to.serve(opcode, move |_, ()| {
                order.borrow_mut().push(opcode);
                let rt = rt.clone();
                async move {
                    rt.sleep(SECOND / 100).await;
                    Ok(())
                }
            });
        }
        let node = world.node("asking");
        world.block_on(&node, async move {
            let ask = async |opcode| from.ask::<_, ()>(Rank(1), TargetIndex(0), opcode, &(), SECOND).await;
            let asked = [OTHER, OTHER, OTHER, opcodes[1], opcodes[2]].map(ask);
            assert!(join_all(asked).await.iter().all(Result::is_ok));
        });
        assert_eq!(*order.borrow(), [OTHER, opcodes[1], opcodes[2], OTHER, OTHER]);
    }
}
