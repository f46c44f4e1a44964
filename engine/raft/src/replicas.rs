//! The replicas of an engine, and the messages between them and those of other engines.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use raft::eraftpb::{Message, MessageType};
use serde_bytes::ByteBuf;
use weir_group::{AskError, Engines, Refusal};
use weir_proto::raft::{RAFT_INLINE_MAX, RAFT_LENT_MAX, RaftBatch, RaftMessage};
use weir_proto::{Der, PoolId, Rank, TargetIndex, codec, opcode};
use weir_rpc::{Request, Status};
use weir_store::Shard;

use crate::command::Done;
use crate::driver::Driver;
use crate::error::Unreadable;
use crate::log::Log;
use crate::replica::{Input, Replica, Scopes, Shared};
use crate::snapshot;
use crate::wire::{from_wire, id_of, rank_of, to_wire};

/// Longest wait for a member to take messages in: it puts them into a queue.
const MESSAGE_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a member to fetch messages, of which one may be a snapshot.
const LENT_LIMIT: Duration = Duration::from_secs(30);

/// The replicas of an engine's target 0, by group.
pub struct Replicas {
    engines: Rc<Engines>,
    open: RefCell<BTreeMap<PoolId, Rc<Replica>>>,
}

impl Replicas {
    /// Answers the replicas of other engines. There are none here yet.
    #[must_use]
    pub fn serve(engines: &Rc<Engines>) -> Rc<Self> {
        let replicas = Rc::new(Self { engines: Rc::clone(engines), open: RefCell::default() });
        let weak = Rc::downgrade(&replicas);
        engines.serve_lent(opcode::POOL_RAFT, move |rank: Rank, batch: RaftBatch, request: Rc<Request>| {
            let replicas = weak.upgrade();
            async move {
                let stopping = || refusal(Der::SHUTDOWN, "the engine is stopping");
                replicas.ok_or_else(stopping)?.take(rank, batch, &request).await
            }
        });
        replicas
    }

    /// Opens this engine's replica of a group with what the shard has of it ([`crate::prepare`]). What commands change is in
    /// `scopes`.
    ///
    /// # Errors
    /// When what is stored is damaged.
    pub async fn open(&self, shard: Shard, scopes: Scopes) -> Result<Rc<Replica>, Unreadable> {
        let group = shard.id();
        let unreadable = |what, reason| Unreadable { group, what, reason };
        let log = Log::load(shard.clone(), scopes).await?;
        let done = Done::load(&shard).map_err(|reason| unreadable("what took effect", reason))?;
        let own = id_of(self.engines.own_rank());
        // The only member needs nobody's vote.
        let is_first = log.voters() == [own] || (log.is_new() && log.voters().first() == Some(&own));
        let members = log.voters().iter().filter_map(|id| rank_of(*id)).collect();
        let state = Shared::new(group, done, members);
        let driver = Driver::new(Rc::clone(&state), Rc::clone(&self.engines), log);
        let driver = driver.map_err(|error| unreadable("the log", error.to_string()))?;
        let replica = Rc::new(Replica { shared: state });
        self.open.borrow_mut().insert(group, Rc::clone(&replica));
        self.engines.runtime().spawn(driver.run(is_first));
        Ok(replica)
    }

    /// The replica of a group.
    #[must_use]
    pub fn get(&self, group: PoolId) -> Option<Rc<Replica>> {
        self.open.borrow().get(&group).map(Rc::clone)
    }

    /// Takes no part in a group any more.
    pub fn close(&self, group: PoolId) {
        self.open.borrow_mut().remove(&group);
    }

    async fn take(&self, rank: Rank, batch: RaftBatch, request: &Request) -> Result<(), Refusal> {
        let missing = || refusal(Der::NONEXIST, "no replica of that group is here");
        let replica = self.get(batch.group).ok_or_else(missing)?;
        let bytes = if batch.messages.is_empty() { fetch(request).await? } else { batch.messages.into_vec() };
        let own = id_of(self.engines.own_rank());
        let messages = decode(&bytes).map_err(|reason| refusal(Der::PROTO, &reason))?;
        if messages.iter().any(|message| message.from != id_of(rank) || message.to != own) {
            return Err(refusal(Der::PROTO, "a message of Raft from or for another engine"));
        }
        replica.shared.give(Input::Messages(messages));
        Ok(())
    }
}

fn refusal(der: Der, message: &str) -> Refusal {
    Refusal { der, object: String::new(), message: message.to_owned() }
}

/// What the sender has in its memory.
async fn fetch(request: &Request) -> Result<Vec<u8>, Status> {
    let size = usize::try_from(request.bulk_len()).ok().filter(|size| (1..=RAFT_LENT_MAX).contains(size));
    let wrong = || Status::new(Der::INVAL, format!("{} bytes of messages of Raft", request.bulk_len()));
    let size = size.ok_or_else(wrong)?;
    let mut payload = request.payload(size).await?;
    request.pull(0, &mut payload, size).await?;
    payload.get(..size).map(<[u8]>::to_vec).ok_or_else(wrong)
}

fn decode(bytes: &[u8]) -> Result<Vec<Message>, String> {
    let text = |error: codec::DecodeError| error.to_string();
    let encoded: Vec<ByteBuf> = codec::decode_message(bytes).map_err(text)?;
    let read = |bytes: ByteBuf| {
        let message: RaftMessage = codec::decode_message(&bytes).map_err(text)?;
        if let Some(snapshot) = &message.snapshot {
            snapshot::check(&snapshot.data)?;
        }
        from_wire(message)
    };
    encoded.into_iter().map(read).collect()
}

pub(crate) fn is_snapshot(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgSnapshot
}

/// Sends messages to a member, and tells the replica what became of them.
pub(crate) async fn deliver(shared: &Shared, engines: &Engines, to: u64, messages: Vec<Message>) {
    let has_snapshot = messages.iter().any(is_snapshot);
    let encoded: Vec<ByteBuf> =
        messages.iter().filter_map(to_wire).map(|message| codec::encode(&message).into()).collect();
    drop(messages);
    let sent = send(shared.group, engines, to, codec::encode(&encoded)).await;
    if let Err(error) = &sent {
        tracing::debug!(group = %shared.group, error, "messages of Raft have not arrived");
        shared.give(Input::Unreachable(to));
    }
    if has_snapshot {
        shared.give(Input::SnapshotSent(to, sent.is_ok()));
    }
}

async fn send(group: PoolId, engines: &Engines, to: u64, bytes: Vec<u8>) -> Result<(), String> {
    let rank = rank_of(to).ok_or("no engine has the number 0")?;
    let text = |error: AskError| error.to_string();
    if bytes.len() <= RAFT_INLINE_MAX {
        let batch = RaftBatch { group, messages: bytes.into() };
        let asked = engines.ask(rank, TargetIndex(0), opcode::POOL_RAFT, &batch, MESSAGE_LIMIT);
        return asked.await.map_err(text);
    }
    if bytes.len() > RAFT_LENT_MAX {
        return Err(format!("{} bytes are more than {RAFT_LENT_MAX}", bytes.len()));
    }
    let memory = engines.lend(&[&bytes]).map_err(|error| error.to_string())?;
    let batch = RaftBatch { group, messages: ByteBuf::new() };
    let asked =
        engines.ask_lending(rank, TargetIndex(0), opcode::POOL_RAFT, &batch, Some(&memory), LENT_LIMIT);
    asked.await.map_err(text)
}
