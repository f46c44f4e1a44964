//! The library's types as they travel.

use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use weir_proto::Rank;
use weir_proto::raft::{RaftEntry, RaftMessage, RaftSnapshot};

/// The kinds of messages that travel; the library has others that never leave a replica.
const KINDS: [MessageType; 12] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgReadIndexResp,
];

const ENTRY_KINDS: [EntryType; 3] =
    [EntryType::EntryNormal, EntryType::EntryConfChange, EntryType::EntryConfChangeV2];

/// The library's number of an engine; 0 is none.
pub(crate) fn id_of(rank: Rank) -> u64 {
    u64::from(rank.0) + 1
}

pub(crate) fn rank_of(id: u64) -> Option<Rank> {
    u32::try_from(id.checked_sub(1)?).ok().map(Rank)
}

/// A kind of entry as it travels and is stored.
pub(crate) fn number_of(kind: EntryType) -> u8 {
    match kind {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    }
}

/// The entry of these fields; `None`: its kind is not known.
pub(crate) fn entry_of(kind: u8, (index, term): (u64, u64), data: Vec<u8>) -> Option<Entry> {
    let mut entry = Entry::default();
    entry.set_entry_type(ENTRY_KINDS.into_iter().find(|known| number_of(*known) == kind)?);
    entry.index = index;
    entry.term = term;
    entry.data = data.into();
    Some(entry)
}

fn to_entry(entry: &Entry) -> RaftEntry {
    RaftEntry {
        kind: number_of(entry.get_entry_type()),
        term: entry.term,
        index: entry.index,
        data: entry.data.to_vec().into(),
    }
}

fn to_snapshot(snapshot: &Snapshot) -> RaftSnapshot {
    let metadata = snapshot.get_metadata();
    RaftSnapshot {
        index: metadata.index,
        term: metadata.term,
        voters: metadata.get_conf_state().get_voters().to_vec(),
        data: snapshot.data.to_vec().into(),
    }
}

pub(crate) fn snapshot_of(snapshot: RaftSnapshot) -> Snapshot {
    let RaftSnapshot { index, term, voters, data } = snapshot;
    let mut read = Snapshot { data: data.into_vec().into(), ..Snapshot::default() };
    let metadata = read.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.mut_conf_state().set_voters(voters);
    read
}

/// A message on its way; `None`: it is of a kind that never leaves a replica.
pub(crate) fn to_wire(message: &Message) -> Option<RaftMessage> {
    let kind = message.get_msg_type();
    if !KINDS.contains(&kind) {
        return None;
    }
    let snapshot = message.get_snapshot();
    Some(RaftMessage {
        kind: kind as u8,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.get_entries().iter().map(to_entry).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot: (!snapshot.is_empty()).then(|| to_snapshot(snapshot)),
        request_snapshot: message.request_snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context.to_vec().into(),
        priority: message.priority,
    })
}

/// A message that has come.
///
/// # Errors
/// When its kind, or that of an entry, is not known.
pub(crate) fn from_wire(message: RaftMessage) -> Result<Message, String> {
    let kind = KINDS.into_iter().find(|kind| *kind as u8 == message.kind);
    let kind = kind.ok_or_else(|| format!("a message of Raft of kind {}", message.kind))?;
    let mut read = Message::default();
    read.set_msg_type(kind);
    read.to = message.to;
    read.from = message.from;
    read.term = message.term;
    read.log_term = message.log_term;
    read.index = message.index;
    let entry = |entry: RaftEntry| {
        entry_of(entry.kind, (entry.index, entry.term), entry.data.into_vec())
            .ok_or_else(|| format!("an entry of kind {}", entry.kind))
    };
    let entries: Vec<Entry> = message.entries.into_iter().map(entry).collect::<Result<_, _>>()?;
    read.set_entries(entries.into());
    read.commit = message.commit;
    read.commit_term = message.commit_term;
    if let Some(snapshot) = message.snapshot {
        read.set_snapshot(snapshot_of(snapshot));
    }
    read.request_snapshot = message.request_snapshot;
    read.reject = message.reject;
    read.reject_hint = message.reject_hint;
    read.context = message.context.into_vec().into();
    read.priority = message.priority;
    Ok(read)
}
