//! Broadcast and reduce over a group: down a spanning tree, and the merged results up again.
//!
//! When a member doesn't answer, its parent hands the members below it to the first of them. The outcome names members
//! that could not be reached. An operation may reach a member twice, through two parents; it executes it once.

use super::directory::Group;
use super::transport::{MemberAnswer, decoded, gone};
use super::tree::split;
use crate::error::Status;
use crate::request::Request;
use crate::{CallOptions, Rpc, RpcError};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::{Rc, Weak};
use weir_proto::group::{Collective, CollectiveReply, Tree};
use weir_proto::limits::INLINE_MAX;
use weir_proto::{Der, Rank, codec, opcode};
use weir_runtime::sync::Gate;
use weir_runtime::{Either, Handle, Instant, LocalBoxFuture, join_all, race};

/// Largest argument, and largest merged result unless the transport has room for more, in bytes: the rest of an inline
/// body is for the list of ranks, 4,096 of three bytes.
pub const VALUE_MAX: usize = 4096;

/// Silence after which a child is asked whether it is there at all, and how long it may take to say so. A living one may
/// take as long as it needs, up to the deadline.
const PATIENCE: Duration = Duration::from_secs(1);

/// A node answers this much of its time before its parent stops waiting, so that what it knows isn't lost.
const RESERVE_SHARE: u32 = 8;

/// Longest such reserve.
const RESERVE_MAX: Duration = Duration::from_millis(500);

/// Results remembered for operations that come again through another parent; they come within the deadline of the
/// first, and a member takes part in few at a time.
const REMEMBERED_MAX: usize = 1024;

/// Does a member's part of an operation and merges results.
pub trait CollectiveHandler {
    /// This member's own part. The future must end by itself.
    fn execute(&self, body: &[u8]) -> LocalBoxFuture<'static, Result<Vec<u8>, Der>>;

    /// Puts two results together. The order of merging is not defined.
    fn merge(&self, one: Vec<u8>, other: Vec<u8>) -> Vec<u8>;
}

/// Carries collective messages.
pub trait CollectiveTransport {
    /// Hands an operation to a member. `Err`: it refuses.
    fn collective(
        &self,
        to: Rank,
        message: Collective,
        limit: Duration,
    ) -> MemberAnswer<Result<CollectiveReply, Der>>;

    /// Whether a member answers at all.
    fn answers(&self, rank: Rank, limit: Duration) -> LocalBoxFuture<'static, bool>;

    /// Whether a member is known to be dead, so that it need not be tried.
    fn is_dead(&self, rank: Rank) -> bool;

    /// Largest merged result that a member can hand up, in bytes.
    fn result_max(&self) -> usize {
        VALUE_MAX
    }
}

/// An operation can't begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CollectiveError {
    /// No handler is registered for it.
    #[error("collective operation {0:#06x} is not served here")]
    Unknown(u16),
    /// The argument is too long.
    #[error("an argument of {len} bytes is longer than the {VALUE_MAX} that a collective operation carries")]
    TooLarge {
        /// Its length.
        len: usize,
    },
    /// The list of members is too long for one message.
    #[error("a list of {members} members does not fit one message; reach them in parts")]
    TooMany {
        /// How many there are.
        members: usize,
    },
}

/// What became of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The merged results; `None` when no member had one.
    pub value: Option<Vec<u8>>,
    /// How many members had a result.
    pub executed: u32,
    /// The members without a result, and why, by ascending rank: `UNREACH` did not answer, `GRPVER` has another version
    /// of the group, `TIMEDOUT` was not done by the deadline; others are the operation's own.
    pub failed: Vec<(Rank, Der)>,
    /// Levels that the tree really had.
    pub depth: u32,
    /// Requests that were sent.
    pub messages: u32,
}

impl Outcome {
    /// Whether every member had a result.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }
}

type Local = Result<Vec<u8>, Der>;

/// A member's own part of one operation.
#[derive(Default)]
struct Contribution {
    done: Gate,
    result: RefCell<Option<Local>>,
}

#[derive(Default)]
struct Remembered {
    parts: HashMap<(Rank, u64), Rc<Contribution>>,
    order: VecDeque<(Rank, u64)>,
}

/// A member's side of collective operations.
pub struct Collectives {
    rt: Handle,
    own: Rank,
    group: Rc<Group>,
    transport: Rc<dyn CollectiveTransport>,
    handlers: RefCell<HashMap<u16, Rc<dyn CollectiveHandler>>>,
    remembered: RefCell<Remembered>,
}

/// Gathers what comes from below.
#[derive(Default)]
struct GatheredReplies {
    value: RefCell<Option<Vec<u8>>>,
    executed: Cell<u32>,
    failed: RefCell<Vec<(Rank, Der)>>,
    depth: Cell<u32>,
    messages: Cell<u32>,
    /// The members that are accounted for.
    settled: RefCell<BTreeSet<Rank>>,
}

impl GatheredReplies {
    fn fail(&self, rank: Rank, der: Der) {
        if self.settled.borrow_mut().insert(rank) {
            self.failed.borrow_mut().push((rank, der));
        }
    }

    fn add(&self, handler: &dyn CollectiveHandler, value: Vec<u8>) {
        let before = self.value.borrow_mut().take();
        let merged = match before {
            Some(before) => handler.merge(before, value),
            None => value,
        };
        self.value.replace(Some(merged));
    }

    fn into_reply(self, result_max: usize) -> Result<CollectiveReply, Der> {
        let value = self.value.into_inner();
        if value.as_ref().is_some_and(|value| value.len() > result_max) {
            return Err(Der::OVERFLOW);
        }
        Ok(CollectiveReply {
            value: value.map(Into::into),
            executed: self.executed.get(),
            failed: self.failed.into_inner(),
            depth: self.depth.get(),
            messages: self.messages.get(),
        })
    }
}

impl Collectives {
    /// This member's part in the collective operations of a group.
    #[must_use]
    pub fn new(rt: &Handle, own: Rank, group: Rc<Group>, transport: Rc<dyn CollectiveTransport>) -> Rc<Self> {
        let (handlers, remembered) = (RefCell::default(), RefCell::default());
        Rc::new(Self { rt: rt.clone(), own, group, transport, handlers, remembered })
    }

    /// Takes part in an operation from now on.
    pub fn serve(&self, operation: u16, handler: Rc<dyn CollectiveHandler>) {
        self.handlers.borrow_mut().insert(operation, handler);
    }

    /// Performs an operation at these members, and merges what they say. It ends within `limit`, complete or not.
    ///
    /// # Errors
    /// When it can't begin; members that fail are part of the outcome.
    pub async fn call(
        self: &Rc<Self>,
        operation: u16,
        ranks: &[Rank],
        tree: Tree,
        body: &[u8],
        limit: Duration,
    ) -> Result<Outcome, CollectiveError> {
        let handler = self.handlers.borrow().get(&operation).map(Rc::clone);
        let handler = handler.ok_or(CollectiveError::Unknown(operation))?;
        if body.len() > VALUE_MAX {
            return Err(CollectiveError::TooLarge { len: body.len() });
        }
        let below = rotated(ranks, self.own);
        let message = Collective {
            id: self.rt.random_u64(),
            root: self.own,
            version: self.group.version(),
            operation,
            tree,
            limit_ms: millis(limit),
            below,
            body: body.to_vec().into(),
        };
        // The seal of a request between engines takes less than 200 bytes; failures take twice a rank's.
        if codec::encode(&message).len() + 200 > INLINE_MAX || message.below.len() > VALUE_MAX {
            return Err(CollectiveError::TooMany { members: message.below.len() });
        }
        let takes_part = ranks.contains(&self.own);
        let gathered = self.perform(&handler, &message, takes_part, self.rt.now() + limit).await;
        let mut failed = gathered.failed.into_inner();
        failed.sort_unstable_by_key(|(rank, _)| *rank);
        Ok(Outcome {
            value: gathered.value.into_inner(),
            executed: gathered.executed.get(),
            failed,
            depth: gathered.depth.get(),
            messages: gathered.messages.get(),
        })
    }

    /// Does what a parent hands down.
    ///
    /// # Errors
    /// `GRPVER` when the root means another list of members, `NOSYS` for an unknown operation, `OVERFLOW` when the
    /// merged result is too long. Nothing was passed on in the first two cases.
    pub async fn answer(self: &Rc<Self>, message: Collective) -> Result<CollectiveReply, Der> {
        if message.version != self.group.version() {
            return Err(Der::GRPVER);
        }
        let handler = self.handlers.borrow().get(&message.operation).map(Rc::clone).ok_or(Der::NOSYS)?;
        let limit = Duration::from_millis(message.limit_ms.into());
        let until = self.rt.now() + limit.saturating_sub((limit / RESERVE_SHARE).min(RESERVE_MAX));
        let gathered = self.perform(&handler, &message, true, until).await;
        gathered.into_reply(self.transport.result_max())
    }

    /// The own part and the parts of all members below, in parallel.
    async fn perform(
        self: &Rc<Self>,
        handler: &Rc<dyn CollectiveHandler>,
        message: &Collective,
        takes_part: bool,
        until: Instant,
    ) -> GatheredReplies {
        let gathered = GatheredReplies::default();
        let own = async {
            if !takes_part {
                return;
            }
            let part = self.part(handler, message);
            let done = self.rt.timeout_at(until, part.done.wait()).await;
            let result = part.result.borrow().clone();
            match (done, result) {
                (Ok(()), Some(Ok(value))) => {
                    gathered.settled.borrow_mut().insert(self.own);
                    gathered.executed.set(gathered.executed.get().saturating_add(1));
                    gathered.add(handler.as_ref(), value);
                }
                (Ok(()), Some(Err(der))) => gathered.fail(self.own, der),
                _ => gathered.fail(self.own, Der::TIMEDOUT),
            }
        };
        let children = split(message.tree, &message.below).into_iter().map(|list| {
            let gathered = &gathered;
            async move { self.descend(handler, message, list, until, gathered).await }
        });
        futures_pair(own, join_all(children)).await;
        gathered
    }

    /// This member's own part: begun now, or remembered from another parent's request.
    fn part(&self, handler: &Rc<dyn CollectiveHandler>, message: &Collective) -> Rc<Contribution> {
        let key = (message.root, message.id);
        let mut remembered = self.remembered.borrow_mut();
        if let Some(part) = remembered.parts.get(&key) {
            return Rc::clone(part);
        }
        let part = Rc::new(Contribution::default());
        remembered.parts.insert(key, Rc::clone(&part));
        remembered.order.push_back(key);
        while remembered.order.len() > REMEMBERED_MAX {
            let oldest = remembered.order.pop_front();
            if let Some(oldest) = oldest {
                remembered.parts.remove(&oldest);
            }
        }
        drop(remembered);
        let (running, execution) = (Rc::clone(&part), handler.execute(&message.body));
        self.rt.spawn(async move {
            let result = execution.await;
            running.result.replace(Some(result));
            running.done.open();
        });
        part
    }

    /// Reaches a child and all members below it, around those that don't answer.
    async fn descend(
        &self,
        handler: &Rc<dyn CollectiveHandler>,
        message: &Collective,
        mut list: Vec<Rank>,
        until: Instant,
        gathered: &GatheredReplies,
    ) {
        while !list.is_empty() {
            let child = list.remove(0);
            if self.transport.is_dead(child) {
                gathered.fail(child, Der::UNREACH);
                continue;
            }
            let left = until - self.rt.now();
            if left.is_zero() {
                break;
            }
            let below = core::mem::take(&mut list);
            let handed = Collective { limit_ms: millis(left), below: below.clone(), ..message.clone() };
            gathered.messages.set(gathered.messages.get().saturating_add(1));
            match self.hand_down(child, handed, until).await {
                Handed::Done(reply) => {
                    gathered.executed.set(gathered.executed.get().saturating_add(reply.executed));
                    gathered.depth.set(gathered.depth.get().max(reply.depth.saturating_add(1)));
                    gathered.messages.set(gathered.messages.get().saturating_add(reply.messages));
                    for (rank, der) in reply.failed {
                        gathered.fail(rank, der);
                    }
                    if let Some(value) = reply.value {
                        gathered.add(handler.as_ref(), value.into_vec());
                    }
                    return;
                }
                // Those below have not been reached by it, or what they said is lost with it.
                Handed::Refused(der) => gathered.fail(child, der),
                Handed::Silent => gathered.fail(child, Der::UNREACH),
                Handed::Late => {
                    gathered.fail(child, Der::TIMEDOUT);
                    list = below;
                    break;
                }
            }
            list = below;
        }
        for rank in list {
            gathered.fail(rank, Der::TIMEDOUT);
        }
    }

    /// Hands an operation to a child and waits, as long as the child shows that it is there.
    async fn hand_down(&self, child: Rank, message: Collective, until: Instant) -> Handed {
        let answer = self.transport.collective(child, message, until - self.rt.now());
        let silence = async {
            loop {
                self.rt.sleep(PATIENCE).await;
                if !self.transport.answers(child, PATIENCE).await {
                    return;
                }
            }
        };
        match self.rt.timeout_at(until, race(answer, silence)).await {
            Ok(Either::First(Some(Ok(reply)))) => Handed::Done(reply),
            Ok(Either::First(Some(Err(der)))) => Handed::Refused(der),
            Ok(Either::First(None) | Either::Second(())) if self.rt.now() < until => Handed::Silent,
            _ => Handed::Late,
        }
    }
}

/// What came of handing an operation to a child.
enum Handed {
    Done(CollectiveReply),
    Refused(Der),
    /// It isn't there.
    Silent,
    /// The time is over.
    Late,
}

/// Runs two futures to their ends.
async fn futures_pair(one: impl Future<Output = ()>, other: impl Future<Output = Vec<()>>) {
    let one: LocalBoxFuture<'_, ()> = Box::pin(one);
    let other: LocalBoxFuture<'_, ()> = Box::pin(async { drop(other.await) });
    join_all([one, other]).await;
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The ranks behind one of them, around the ring, so that roots next to each other load different members.
fn rotated(ranks: &[Rank], root: Rank) -> Vec<Rank> {
    let sorted: BTreeSet<Rank> = ranks.iter().copied().collect();
    let behind = sorted.iter().filter(|rank| **rank > root);
    behind.chain(sorted.iter().filter(|rank| **rank < root)).copied().collect()
}

/// Collective messages as plain requests to tag 0 of each member.
pub struct PlainCollectives {
    rt: Handle,
    rpc: Weak<Rpc>,
    group: Rc<Group>,
    dead: Box<dyn Fn(Rank) -> bool>,
}

impl PlainCollectives {
    /// A transport over this context, which it doesn't keep alive. `dead` lists members that need not be tried.
    #[must_use]
    pub fn new(
        rt: &Handle,
        rpc: &Rc<Rpc>,
        group: Rc<Group>,
        dead: impl Fn(Rank) -> bool + 'static,
    ) -> Rc<Self> {
        Rc::new(Self { rt: rt.clone(), rpc: Rc::downgrade(rpc), group, dead: Box::new(dead) })
    }
}

impl CollectiveTransport for PlainCollectives {
    fn collective(
        &self,
        to: Rank,
        message: Collective,
        limit: Duration,
    ) -> MemberAnswer<Result<CollectiveReply, Der>> {
        let (rpc, peer) = (self.rpc.clone(), self.group.peer(to, 0));
        let options = CallOptions::within(&self.rt, limit);
        Box::pin(async move {
            let body = codec::encode(&message);
            match rpc.upgrade()?.call(&peer?, opcode::GROUP_COLLECTIVE, &body, None, options).await {
                Ok(reply) => Some(codec::decode_message(&reply).map_err(|_| Der::PROTO)),
                Err(RpcError::Remote(status)) => Some(Err(status.der)),
                Err(_) => None,
            }
        })
    }

    fn answers(&self, rank: Rank, limit: Duration) -> LocalBoxFuture<'static, bool> {
        let (rpc, peer) = (self.rpc.clone(), self.group.peer(rank, 0));
        let options = CallOptions::within(&self.rt, limit);
        Box::pin(async move {
            let (Some(rpc), Some(peer)) = (rpc.upgrade(), peer) else { return false };
            // A refusal is an answer too.
            matches!(
                rpc.call(&peer, opcode::PING, &[], None, options).await,
                Ok(_) | Err(RpcError::Remote(_))
            )
        })
    }

    fn is_dead(&self, rank: Rank) -> bool {
        (self.dead)(rank)
    }
}

/// Answers plain collective messages on this context.
pub fn serve_collectives(rpc: &Rpc, collectives: &Rc<Collectives>) {
    let member = Rc::downgrade(collectives);
    rpc.serve(
        opcode::GROUP_COLLECTIVE,
        Rc::new(move |request: Request| {
            let member = member.upgrade();
            async move {
                let message: Collective = decoded(&request)?;
                drop(request);
                let member = member.ok_or_else(gone)?;
                let (operation, root) = (message.operation, message.root);
                let reply = member.answer(message).await;
                let refused =
                    |der| Status::new(der, format!("collective operation {operation:#06x} of rank {root}"));
                Ok(codec::encode(&reply.map_err(refused)?))
            }
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_starts_behind_the_root_and_goes_around() {
        let ranks: Vec<Rank> = [5, 1, 9, 3, 5].map(Rank).to_vec();
        assert_eq!(rotated(&ranks, Rank(3)), [5, 9, 1].map(Rank));
        assert_eq!(rotated(&ranks, Rank(4)), [5, 9, 1, 3].map(Rank), "a root that takes no part");
        assert_eq!(rotated(&[], Rank(4)), []);
    }
}
