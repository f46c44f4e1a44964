//! Membership and collective messages between the engines of a system.
//!
//! The membership protocol is SWIM (Das, Gupta, Motivala, DSN 2002) with the local health of Lifeguard (Dadgar, Phillips,
//! Currey, 2017); `weir-rpc` has it. Every message carries news of other members.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::{Der, Rank};

/// Most entries of one page of a member table: at up to 20 encoded bytes each a page fits an inline body.
pub const SYNC_PAGE: usize = 512;

/// What one member believes of another. For one incarnation a later state overrides an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum MemberState {
    /// Listed, and never heard of.
    #[default]
    Unknown,
    /// It answers.
    Alive,
    /// It did not answer another member; it has some seconds to say that it is alive.
    Suspect,
    /// It did not answer and did not object.
    Dead,
}

impl MemberState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Alive, Self::Suspect, Self::Dead];

    /// Lower-case name, for logs, metric labels and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Dead => "dead",
        }
    }
}

/// News of a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MemberUpdate {
    /// The member that it is about.
    pub rank: Rank,
    /// Which life of that member: only the member itself raises it, so the higher one is the truer one.
    pub incarnation: u64,
    /// What is said.
    pub state: MemberState,
    /// The members that say so first-hand.
    pub by: Rank,
}

/// "Are you there?", with news. The reply is a [`GroupAck`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupPing {
    /// The sender.
    pub from: Rank,
    /// The asker's incarnation.
    pub incarnation: u64,
    /// Sum over the asker's whole table: equal tables have equal sums.
    pub digest: u64,
    /// News.
    pub updates: Vec<MemberUpdate>,
}

/// "I am", with news.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupAck {
    /// The member that answers.
    pub from: Rank,
    /// The answerer's incarnation.
    pub incarnation: u64,
    /// Sum over the answerer's whole table.
    pub digest: u64,
    /// News.
    pub updates: Vec<MemberUpdate>,
}

/// "Is that one there? It does not answer me." The reply is a [`GroupRelayReply`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupRelay {
    /// The member to be asked.
    pub target: Rank,
    /// How long the relay may wait for it, in milliseconds.
    pub limit_ms: u32,
    /// The asker, and news for the relay.
    pub ping: GroupPing,
}

/// What the relay found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupRelayReply {
    /// The target's answer; `None` when it did not answer the relay either.
    pub answer: Option<GroupAck>,
    /// The relay itself, and its news.
    pub relay: GroupAck,
}

/// Asks for a page of the table of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupSync {
    /// The sender.
    pub from: Rank,
    /// Number of entries to pass over.
    pub start: u32,
}

/// A page of a table of members: every entry that is not unknown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupSyncReply {
    /// The entries.
    pub updates: Vec<MemberUpdate>,
    /// Where the next page starts; `None` after the last.
    pub next: Option<u32>,
}

/// Where an engine is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

/// Every engine of a system. Two engines that have the same version of it mean the same engines by the same ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupList {
    /// Grows with each change.
    pub version: u64,
    /// The engines.
    pub engines: Vec<EngineInfo>,
}

impl From<Vec<EngineInfo>> for GroupList {
    /// A list without a number has the number of its engines as its version: systems grow.
    fn from(engines: Vec<EngineInfo>) -> Self {
        Self { version: engines.len() as u64, engines }
    }
}

/// "Your list of engines is not mine." The reply is the version that the receiver has then: when the offered one is
/// newer, it has fetched that before it answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupOffer {
    /// Version of the sender's list.
    pub version: u64,
    /// Where the list is to be had: the sender may be too new to stand in the receiver's own.
    pub host: String,
    /// Port of the target that sends this.
    pub port: u16,
}

/// The shape of the tree that a collective operation takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Tree {
    /// The root asks all members.
    Flat,
    /// Each member has up to this many children.
    Ary(u8),
    /// A child for each non-zero value of each digit, to this base, below one's own lowest: the root has most children,
    /// so that all levels are busy at once.
    Nomial(u8),
}

/// Asks a member to take part in an operation and to pass it on. The reply is a [`CollectiveReply`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collective {
    /// Names the operation; drawn at random.
    pub id: u64,
    /// The member that began it.
    pub root: Rank,
    /// Version of the list of members that the root has.
    pub version: u64,
    /// What to do.
    pub operation: u16,
    /// How to pass it on.
    pub tree: Tree,
    /// How long an answer is of use, in milliseconds.
    pub limit_ms: u32,
    /// The members to be reached through the receiver, in the tree's order.
    pub below: Vec<Rank>,
    /// The operation's argument.
    pub body: ByteBuf,
}

/// The result of an operation at a member and all members below it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CollectiveReply {
    /// The merged results; `None` when no member had one.
    pub value: Option<ByteBuf>,
    /// How many members had a result.
    pub executed: u32,
    /// The members without a result, and why.
    pub failed: Vec<(Rank, Der)>,
    /// Levels below the member.
    pub depth: u32,
    /// Requests sent below the member.
    pub messages: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::limits::INLINE_MAX;

    #[test]
    fn a_page_of_the_largest_entries_fits_an_inline_body() {
        let entry = MemberUpdate {
            rank: Rank(u32::MAX),
            incarnation: u64::MAX,
            state: MemberState::Dead,
            by: Rank(u32::MAX),
        };
        let page = GroupSyncReply { updates: vec![entry; SYNC_PAGE], next: Some(u32::MAX) };
        // The seal of a request between engines takes less than 200 bytes.
        assert!(codec::encode(&page).len() + 200 <= INLINE_MAX);
    }

    #[test]
    fn later_states_of_one_incarnation_are_greater() {
        assert!(MemberState::ALL.is_sorted());
    }
}
