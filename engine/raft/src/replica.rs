//! A replica as its service sees it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use raft::eraftpb::{ConfChange, ConfChangeType, Message};
use weir_proto::{PoolId, Rank};
use weir_runtime::Instant;
use weir_runtime::sync::{Notify, oneshot};
use weir_store::Shard;

use crate::command::{COMMAND_MAX, Command, CommandId, Done};
use crate::error::Lost;
use crate::wire::id_of;

/// The scopes of the shard that commands change; one whose attributes tell which others there are comes before those.
pub type Scopes = Rc<dyn Fn(&Shard) -> Vec<Vec<u8>>>;

/// That a replica leads. It has applied all that earlier leaders have committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// The term, of which there is one leader.
    pub term: u64,
    /// Since when, on this engine's monotonic clock.
    pub since: Instant,
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It has taken effect.
    Applied,
    /// It took effect when it was proposed before; what was kept of that.
    Repeated(Vec<u8>),
}

pub(crate) type Answer<T> = oneshot::Sender<Result<T, Lost>>;

/// What a replica's driver is given.
pub(crate) enum Input {
    Messages(Vec<Message>),
    /// A message to a member has not arrived.
    Unreachable(u64),
    /// A snapshot for a member has arrived, or not.
    SnapshotSent(u64, bool),
    Propose {
        term: u64,
        id: Option<CommandId>,
        command: Vec<u8>,
        answer: Answer<Outcome>,
    },
    Confirm {
        term: u64,
        answer: Answer<()>,
    },
    Change {
        term: u64,
        change: ConfChange,
        answer: Answer<Outcome>,
    },
    /// Another member is to lead.
    HandOver(u64),
}

/// What a replica and its driver have in common.
pub(crate) struct Shared {
    pub(crate) group: PoolId,
    pub(crate) inputs: RefCell<VecDeque<Input>>,
    pub(crate) wake: Notify,
    pub(crate) leadership: Cell<Option<Leadership>>,
    pub(crate) leader: Cell<Option<Rank>>,
    pub(crate) members: RefCell<Vec<Rank>>,
    /// Of a leader: the members that have had all of the log at some moment since it leads.
    pub(crate) current: RefCell<BTreeSet<Rank>>,
    pub(crate) changed: Notify,
    pub(crate) done: RefCell<Done>,
    pub(crate) failed: RefCell<Option<String>>,
    pub(crate) stopped: Cell<bool>,
}

impl Shared {
    pub(crate) fn new(group: PoolId, done: Done, members: Vec<Rank>) -> Rc<Self> {
        Rc::new(Self {
            group,
            inputs: RefCell::default(),
            wake: Notify::new(),
            leadership: Cell::new(None),
            leader: Cell::new(None),
            members: RefCell::new(members),
            current: RefCell::default(),
            changed: Notify::new(),
            done: RefCell::new(done),
            failed: RefCell::default(),
            stopped: Cell::new(false),
        })
    }

    pub(crate) fn give(&self, input: Input) {
        self.inputs.borrow_mut().push_back(input);
        self.wake.notify_one();
    }
}

/// One replica of a group. It takes part until it is dropped.
pub struct Replica {
    pub(crate) shared: Rc<Shared>,
}

impl Replica {
    /// Whether this replica leads, in which term and since when.
    #[must_use]
    pub fn leadership(&self) -> Option<Leadership> {
        self.shared.leadership.get()
    }

    /// The engine whose replica leads, as far as is known here.
    #[must_use]
    pub fn leader(&self) -> Option<Rank> {
        self.shared.leader.get()
    }

    /// Why the replica takes no part any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.failed.borrow().clone()
    }

    /// Waits until the leader is another one, or this replica's leadership another, than at this call.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.shared.changed.notified()
    }

    /// What was kept of a command that has taken effect, by what this replica knows.
    #[must_use]
    pub fn result_of(&self, id: &CommandId) -> Option<Vec<u8>> {
        self.shared.done.borrow().get(id).cloned()
    }

    /// Has a command take effect in the term in which this replica leads, or not at all. The command was judged by the state of that
    /// term; one of the same name that has taken effect takes none again.
    ///
    /// # Errors
    /// When this replica doesn't lead in that term, or ceases to before the outcome is known.
    pub async fn propose(&self, term: u64, command: Command) -> Result<Outcome, Lost> {
        let (answer, outcome) = oneshot::channel();
        let id = command.id;
        let command = command.encode();
        if command.len() > COMMAND_MAX {
            return Err(Lost::TooLong { len: command.len(), limit: COMMAND_MAX });
        }
        self.check()?;
        self.shared.give(Input::Propose { term, id, command, answer });
        outcome.await.unwrap_or(Err(Lost::InDoubt))
    }

    /// The engines whose replicas take part, by what has taken effect here.
    #[must_use]
    pub fn members(&self) -> Vec<Rank> {
        self.shared.members.borrow().clone()
    }

    /// Of the members those that have had all of the log at some moment since this replica leads, and so count for what the group can do
    /// without; none where it doesn't lead.
    #[must_use]
    pub fn current_members(&self) -> Vec<Rank> {
        let current = self.shared.current.borrow();
        self.shared.members.borrow().iter().copied().filter(|rank| current.contains(rank)).collect()
    }

    /// Has another member lead, as soon as it has all of the log. Where it doesn't within the time of an election, this one goes on.
    pub fn hand_over(&self, to: Rank) {
        self.shared.give(Input::HandOver(id_of(to)));
    }

    /// Has an engine's replica take part, or no more. One change is made at a time: [`Replica::members`] says whether it was this one.
    /// A replica that is lost takes part no more before its engine begins another one ([`crate::prepare_again`]).
    ///
    /// # Errors
    /// As [`Replica::propose`].
    pub async fn change_member(&self, term: u64, rank: Rank, takes_part: bool) -> Result<(), Lost> {
        let (answer, outcome) = oneshot::channel();
        let mut change = ConfChange { node_id: id_of(rank), ..ConfChange::default() };
        let kind = if takes_part { ConfChangeType::AddNode } else { ConfChangeType::RemoveNode };
        change.set_change_type(kind);
        self.check()?;
        self.shared.give(Input::Change { term, change, answer });
        outcome.await.unwrap_or(Err(Lost::InDoubt)).map(drop)
    }

    /// Makes sure that no other replica has led at the time of this call: what this one has applied then is all that was
    /// acknowledged before.
    ///
    /// # Errors
    /// When this replica doesn't lead in that term any more.
    pub async fn confirm(&self, term: u64) -> Result<(), Lost> {
        let (answer, outcome) = oneshot::channel();
        self.check()?;
        self.shared.give(Input::Confirm { term, answer });
        outcome.await.unwrap_or_else(|_| Err(Lost::NotLeader(self.leader())))
    }

    fn check(&self) -> Result<(), Lost> {
        self.failure().map_or(Ok(()), |reason| Err(Lost::Failed(reason)))
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.shared.stopped.set(true);
        self.shared.wake.notify_one();
    }
}
