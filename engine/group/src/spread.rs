//! What all engines of a pool do: handed down a tree from target 0 to target 0, done by each engine at its own targets, and
//! answered up the tree (paper §2.2).
//!
//! The tree gets around engines that don't answer. Those that refuse are asked once more, directly, because a tree carries
//! numbers of errors and not their messages.

use std::rc::{Rc, Weak};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_proto::group::{Collective, CollectiveReply, Tree};
use weir_proto::pool::{PoolSum, TargetPool};
use weir_proto::{Der, PoolId, Rank, TargetIndex, codec, opcode};
use weir_rpc::membership::{CollectiveHandler, CollectiveTransport, Collectives, MemberAnswer, Outcome};
use weir_rpc::{CallOptions, RpcError};
use weir_runtime::{LocalBoxFuture, join_all};

use crate::engines::{AskError, Engines, REPLY_MAX};
use crate::refusal::Rejection;

/// Each engine hands an operation to at most three at each level: a thousand engines are five levels deep, and the root
/// has fifteen to wait for.
const TREE: Tree = Tree::Nomial(4);

/// Longest wait of an engine for one of its own targets: a few writes to its log.
const TARGET_LIMIT: Duration = Duration::from_secs(8);

/// Operations that change something on every target and answer nothing.
const CHANGES: [u16; 5] = [
    opcode::TARGET_POOL_CREATE,
    opcode::TARGET_POOL_DESTROY,
    opcode::TARGET_POOL_RESIZE,
    opcode::TARGET_CONTAINER_DESTROY,
    opcode::TARGET_POOL_MAP,
];

/// Room that a merged result leaves in a long reply for the rest of a collective reply: failures of 16,384 engines.
const REPLY_REST: usize = 256 * 1024;

/// Reaches all engines of a pool at once.
pub struct Spread {
    engines: Rc<Engines>,
    collectives: Rc<Collectives>,
    dead: Rc<dyn Fn(Rank) -> bool>,
}

impl Spread {
    /// Takes part in what others spread, when this is target 0, and spreads from now on. `dead` says which engines need
    /// not be tried.
    pub fn start(engines: &Rc<Engines>, dead: impl Fn(Rank) -> bool + 'static) -> Rc<Self> {
        let dead: Rc<dyn Fn(Rank) -> bool> = Rc::new(dead);
        let transport = Rc::new(Sealed { engines: Rc::downgrade(engines), dead: Rc::clone(&dead) });
        let group = Rc::clone(engines.roster().group());
        let collectives = Collectives::new(engines.runtime(), engines.own_rank(), group, transport);
        for operation in CHANGES {
            collectives.serve(operation, Rc::new(Change { engines: Rc::downgrade(engines), operation }));
        }
        collectives.serve(opcode::TARGET_POOL_QUERY, Rc::new(Query { engines: Rc::downgrade(engines) }));
        if engines.own_index().0 == 0 {
            let member = Rc::downgrade(&collectives);
            engines.serve(opcode::GROUP_COLLECTIVE, move |_, message: Collective| {
                let member = member.upgrade();
                async move {
                    let operation = message.operation;
                    let answer = match member {
                        Some(member) => member.answer(message).await,
                        None => Err(Der::SHUTDOWN),
                    };
                    answer.map_err(|der| Rejection::Collective { operation, der })
                }
            });
        }
        Rc::new(Self { engines: Rc::clone(engines), collectives, dead })
    }

    /// Whether an engine need not be tried, since it is dead.
    #[must_use]
    pub fn is_dead(&self, rank: Rank) -> bool {
        (self.dead)(rank)
    }

    async fn call(&self, ranks: &[Rank], operation: u16, body: &[u8], limit: Duration) -> Option<Outcome> {
        match self.collectives.call(operation, ranks, TREE, body, limit).await {
            Ok(outcome) => Some(outcome),
            Err(error) => {
                tracing::debug!(operation, %error, "engines are asked one by one");
                None
            }
        }
    }

    /// Has every target of these engines do `operation`, one of those that change something and answer nothing, within `limit`.
    /// Returns the first error of each engine that has one.
    pub async fn tell<Req: Serialize>(
        &self,
        ranks: &[Rank],
        operation: u16,
        request: &Req,
        limit: Duration,
    ) -> Vec<AskError> {
        let failed = match self.call(ranks, operation, &codec::encode(request), limit).await {
            Some(outcome) => outcome.failed,
            // Too long for a message of the tree.
            None => ranks.iter().map(|rank| (*rank, Der::TRUNC)).collect(),
        };
        let asked = failed.into_iter().map(|(rank, der)| async move {
            if matches!(der, Der::UNREACH | Der::TIMEDOUT) {
                let reason = format!("no answer within {limit:?}");
                return Err(AskError::NoAnswer { rank, index: 0, reason });
            }
            self.tell_one(rank, operation, request, limit).await
        });
        join_all(asked).await.into_iter().filter_map(Result::err).collect()
    }

    /// Has every target of one engine do something.
    async fn tell_one<Req: Serialize>(
        &self,
        rank: Rank,
        operation: u16,
        request: &Req,
        limit: Duration,
    ) -> Result<(), AskError> {
        let info = self.engines.get(rank).ok_or(AskError::Unknown { rank, index: 0 })?;
        let asked = join_all(
            (0..info.targets)
                .map(|index| self.engines.ask::<_, ()>(rank, TargetIndex(index), operation, request, limit)),
        );
        // Of several reasons the one that no wait removes is told.
        let mut failed = asked.await.into_iter().filter_map(Result::err);
        let Some(first) = failed.next() else { return Ok(()) };
        if !first.is_away() {
            return Err(first);
        }
        Err(failed.find(|error| !error.is_away()).unwrap_or(first))
    }

    /// Sums up what the targets of these engines hold of a pool. Engines that don't answer are missing in it.
    pub(crate) async fn sum(&self, pool: PoolId, ranks: &[Rank], limit: Duration) -> PoolSum {
        let body = codec::encode(&TargetPool { pool });
        let outcome = self.call(ranks, opcode::TARGET_POOL_QUERY, &body, limit).await;
        let (value, left) = match outcome {
            Some(outcome) => {
                // A result too long for the tree is short enough for its parts.
                let long = |(rank, der): &(Rank, Der)| (*der == Der::OVERFLOW).then_some(*rank);
                (outcome.value, outcome.failed.iter().filter_map(long).collect())
            }
            None => (None, ranks.to_vec()),
        };
        let mut sum: PoolSum = value.and_then(|value| codec::decode_message(&value).ok()).unwrap_or_default();
        let asked = left.into_iter().map(|rank| sum_of(Rc::clone(&self.engines), pool, rank, limit));
        for more in join_all(asked).await {
            sum.add(more);
        }
        sum
    }
}

/// What the targets of one engine hold of a pool.
async fn sum_of(engines: Rc<Engines>, pool: PoolId, rank: Rank, limit: Duration) -> PoolSum {
    let request = TargetPool { pool };
    let targets = engines.get(rank).map_or(0, |info| info.targets);
    let asked = join_all(
        (0..targets)
            .map(|index| engines.ask(rank, TargetIndex(index), opcode::TARGET_POOL_QUERY, &request, limit)),
    );
    let mut sum = PoolSum::default();
    for (index, answer) in (0..).zip(asked.await) {
        match answer {
            Ok(space) => sum.add(PoolSum::of(rank, TargetIndex(index), space)),
            Err(error) => tracing::debug!(%pool, %error, "a target's space is not known"),
        }
    }
    sum
}

/// A change on every target of this engine.
struct Change {
    engines: Weak<Engines>,
    operation: u16,
}

impl CollectiveHandler for Change {
    fn execute(&self, body: &[u8]) -> LocalBoxFuture<'static, Result<Vec<u8>, Der>> {
        let (engines, operation, request) = (self.engines.upgrade(), self.operation, body.to_vec());
        Box::pin(async move {
            let engines = engines.ok_or(Der::SHUTDOWN)?;
            let own = engines.own_rank();
            let targets = engines.get(own).map_or(0, |info| info.targets);
            let asked = join_all(
                (0..targets)
                    .map(|index| engines.ask_encoded(own, index, operation, request.clone(), TARGET_LIMIT)),
            );
            match asked.await.into_iter().find_map(Result::err) {
                Some(error) => Err(error.der()),
                None => Ok(Vec::new()),
            }
        })
    }

    fn merge(&self, one: Vec<u8>, _: Vec<u8>) -> Vec<u8> {
        one
    }
}

/// What the targets of this engine hold of a pool.
struct Query {
    engines: Weak<Engines>,
}

impl CollectiveHandler for Query {
    fn execute(&self, body: &[u8]) -> LocalBoxFuture<'static, Result<Vec<u8>, Der>> {
        let (engines, request) = (self.engines.upgrade(), codec::decode_message::<TargetPool>(body));
        Box::pin(async move {
            let (engines, request) = (engines.ok_or(Der::SHUTDOWN)?, request.map_err(|_| Der::PROTO)?);
            let own = engines.own_rank();
            // A target that hangs must not keep the others' figures back.
            Ok(codec::encode(&sum_of(engines, request.pool, own, QUERY_LIMIT).await))
        })
    }

    fn merge(&self, one: Vec<u8>, other: Vec<u8>) -> Vec<u8> {
        let (Ok(mut sum), Ok(more)) = (codec::decode_message::<PoolSum>(&one), codec::decode_message(&other))
        else {
            return one;
        };
        sum.add(more);
        codec::encode(&sum)
    }
}

/// Longest wait of an engine for the figures of one of its own targets: one that is up answers in under a millisecond.
const QUERY_LIMIT: Duration = Duration::from_secs(1);

/// Collective messages under the engines' seal.
struct Sealed {
    engines: Weak<Engines>,
    dead: Rc<dyn Fn(Rank) -> bool>,
}

/// Asks target 0 of a member; `None`: it doesn't answer.
async fn answer_of<Rep: DeserializeOwned>(
    engines: Weak<Engines>,
    to: Rank,
    message: Collective,
    limit: Duration,
) -> Option<Result<Rep, Der>> {
    let asked = engines.upgrade()?.ask(to, TargetIndex(0), opcode::GROUP_COLLECTIVE, &message, limit).await;
    match asked {
        Ok(reply) => Some(Ok(reply)),
        Err(AskError::NoAnswer { .. }) => None,
        Err(error) => Some(Err(error.der())),
    }
}

impl CollectiveTransport for Sealed {
    fn collective(
        &self,
        to: Rank,
        message: Collective,
        limit: Duration,
    ) -> MemberAnswer<Result<CollectiveReply, Der>> {
        Box::pin(answer_of(self.engines.clone(), to, message, limit))
    }

    fn answers(&self, rank: Rank, limit: Duration) -> LocalBoxFuture<'static, bool> {
        let engines = self.engines.clone();
        Box::pin(async move {
            let Some(engines) = engines.upgrade() else { return false };
            let Some(peer) = engines.roster().peer(rank, 0) else { return false };
            let options = CallOptions::within(engines.runtime(), limit);
            let asked = engines.rpc.call(&peer, opcode::PING, &[], None, options).await;
            // A refusal is an answer too.
            matches!(asked, Ok(_) | Err(RpcError::Remote(_)))
        })
    }

    fn is_dead(&self, rank: Rank) -> bool {
        (self.dead)(rank)
    }

    fn result_max(&self) -> usize {
        REPLY_MAX - REPLY_REST
    }
}
