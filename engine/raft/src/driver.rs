//! The task that runs a replica: hands the library ticks, messages, commands and reads, and does what the library asks for.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeV2, Entry, EntryType, Message, MessageType};
use raft::{Config, ProgressState, RawNode, Ready, SnapshotStatus, StateRole};
use weir_group::Engines;
use weir_proto::Rank;
use weir_runtime::{Handle, race};
use weir_store::AttributeChange;

use crate::command::Command;
use crate::error::Lost;
use crate::log::Log;
use crate::replica::{Answer, Input, Leadership, Outcome, Shared};
use crate::replicas::{deliver, is_snapshot};
use crate::wire::{id_of, rank_of};

/// One step of the library's clock.
const TICK: Duration = Duration::from_millis(50);

/// Steps between heartbeats of a leader.
const HEARTBEAT_TICKS: usize = 3;

/// A member that has not heard of a leader for this many steps, or up to twice as many, stands for election; a leader that has not
/// heard of most members for as long ceases to lead. So a new one leads within 2 s, even when the first election has no winner.
const ELECTION_TICKS: usize = 10;

/// Most bytes of entries in a message, and of entries that take effect by one batch of attributes.
const BATCH: usize = 512 * 1024;

/// Most requests to one member that wait for their answers. Further messages are lost, which Raft makes up for.
const IN_FLIGHT_MAX: usize = 32;

/// A command that waits to take effect.
struct Pending {
    term: u64,
    answer: Answer<Outcome>,
}

/// Reads that wait for the same confirmation.
struct Reading {
    /// They may be answered when all up to this entry have taken effect.
    index: Option<u64>,
    answers: Vec<Answer<()>>,
}

pub(crate) struct Driver {
    shared: Rc<Shared>,
    engines: Rc<Engines>,
    rt: Handle,
    raw: RawNode<Log>,
    /// Term and role for which the election timeout was drawn, and that.
    drawn: (u64, StateRole, usize),
    pending: BTreeMap<u64, Pending>,
    reads: BTreeMap<u64, Reading>,
    read_number: u64,
    in_flight: BTreeMap<u64, Rc<Cell<usize>>>,
}

impl Driver {
    pub(crate) fn new(shared: Rc<Shared>, engines: Rc<Engines>, log: Log) -> Result<Self, raft::Error> {
        let config = Config {
            id: id_of(engines.own_rank()),
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: log.applied(),
            max_size_per_msg: BATCH as u64,
            check_quorum: true,
            pre_vote: true,
            max_committed_size_per_ready: BATCH as u64,
            ..Config::default()
        };
        // What the library logs is what this crate reports.
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, log, &logger)?;
        let rt = engines.runtime().clone();
        let drawn = (u64::MAX, StateRole::Follower, ELECTION_TICKS);
        let (pending, reads, in_flight) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut driver = Self { shared, engines, rt, raw, drawn, pending, reads, read_number: 0, in_flight };
        driver.draw();
        Ok(driver)
    }

    /// Runs until the replica is dropped or its store fails. `first`: it stands for election at once.
    pub(crate) async fn run(mut self, first: bool) {
        let outcome = self.drive(first).await;
        if let Err(reason) = outcome {
            tracing::error!(group = %self.shared.group, reason, "a replica of a pool's service has failed");
            *self.shared.failed.borrow_mut() = Some(reason);
        }
        self.shared.leadership.set(None);
        self.shared.leader.set(None);
        self.shared.changed.notify_waiters();
        // Whoever waits for an answer learns that there is none.
        self.shared.inputs.borrow_mut().clear();
    }

    async fn drive(&mut self, first: bool) -> Result<(), String> {
        // The clocks of a group's members tick at different times.
        let phase = Duration::from_nanos(self.rt.random_u64() % 50_000_000);
        let mut next_tick = self.rt.now() + phase;
        if first {
            self.raw.campaign().map_err(|error| error.to_string())?;
            self.draw();
        }
        while !self.shared.stopped.get() {
            if self.shared.inputs.borrow().is_empty() && !self.raw.has_ready() {
                race(self.shared.wake.notified(), self.rt.sleep_until(next_tick)).await;
            }
            if self.rt.now() >= next_tick {
                self.raw.tick();
                self.draw();
                next_tick = self.rt.now() + TICK;
            }
            self.take_inputs();
            self.give_up_if_deposed();
            while self.raw.has_ready() {
                let ready = self.raw.ready();
                self.process(ready).await?;
                self.give_up_if_deposed();
            }
            self.publish();
        }
        Ok(())
    }

    /// Has the library go by an election timeout that the runtime has drawn, for each term and role. Its own come from the thread's
    /// random numbers, which no seed repeats.
    fn draw(&mut self) {
        let (term, role) = (self.raw.raft.term, self.raw.raft.state);
        if (term, role) != (self.drawn.0, self.drawn.1) {
            let spread = usize::try_from(self.rt.random_u64() % ELECTION_TICKS as u64)
                .expect("less than the ticks of an election");
            self.drawn = (term, role, ELECTION_TICKS + spread);
        }
        self.raw.raft.set_randomized_election_timeout(self.drawn.2);
    }

    fn take_inputs(&mut self) {
        let mut confirming = Vec::new();
        let inputs = core::mem::take(&mut *self.shared.inputs.borrow_mut());
        for input in inputs {
            match input {
                Input::Messages(messages) => messages.into_iter().for_each(|message| self.step(message)),
                Input::Unreachable(id) => self.raw.report_unreachable(id),
                Input::SnapshotSent(id, arrived) => {
                    let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                    self.raw.report_snapshot(id, status);
                }
                Input::Propose { term, id, command, answer } => self.propose(term, id, command, answer),
                Input::Change { term, change, answer } => self.propose_change(term, change, answer),
                Input::HandOver(to) => self.raw.transfer_leader(to),
                Input::Confirm { term, answer } if self.leads_in(term) => confirming.push(answer),
                Input::Confirm { answer, .. } => reply(answer, Err(self.not_leader())),
            }
        }
        if !confirming.is_empty() {
            self.read_number += 1;
            self.raw.read_index(self.read_number.to_be_bytes().to_vec());
            self.reads.insert(self.read_number, Reading { index: None, answers: confirming });
        }
    }

    fn step(&mut self, message: Message) {
        let last = self.raw.store().last();
        if message.get_msg_type() == MessageType::MsgHeartbeat
            && message.term >= self.raw.raft.term
            && message.commit > last.max(self.raw.raft.raft_log.last_index())
        {
            tracing::error!(group = %self.shared.group, commit = message.commit, last, "a replica of a pool's service has lost entries that it had");
            return;
        }
        if let Err(error) = self.raw.step(message) {
            tracing::debug!(group = %self.shared.group, %error, "a message of Raft is of no use");
        }
        self.draw();
    }

    fn leads_in(&self, term: u64) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader && raft.term == term && raft.apply_to_current_term()
    }

    fn not_leader(&self) -> Lost {
        let own = self.raw.raft.id;
        Lost::NotLeader(rank_of(self.raw.raft.leader_id).filter(|rank| id_of(*rank) != own))
    }

    fn propose(
        &mut self,
        term: u64,
        id: Option<crate::CommandId>,
        command: Vec<u8>,
        answer: Answer<Outcome>,
    ) {
        if !self.leads_in(term) {
            return reply(answer, Err(self.not_leader()));
        }
        let done = id.and_then(|id| self.shared.done.borrow().get(&id).cloned());
        if let Some(result) = done {
            return reply(answer, Ok(Outcome::Repeated(result)));
        }
        if self.raw.propose(Vec::new(), command).is_err() {
            return reply(answer, Err(self.not_leader()));
        }
        let index = self.raw.raft.raft_log.last_index();
        self.pending.insert(index, Pending { term, answer });
    }

    fn propose_change(&mut self, term: u64, change: ConfChange, answer: Answer<Outcome>) {
        if !self.leads_in(term) || self.raw.propose_conf_change(Vec::new(), change).is_err() {
            return reply(answer, Err(self.not_leader()));
        }
        let index = self.raw.raft.raft_log.last_index();
        self.pending.insert(index, Pending { term, answer });
    }

    /// Answers what only a leader of the term can.
    fn give_up_if_deposed(&mut self) {
        let raft = &self.raw.raft;
        let (leads, term) = (raft.state == StateRole::Leader, raft.term);
        let is_current = self.pending.values().all(|pending| leads && pending.term == term);
        if !is_current {
            for pending in core::mem::take(&mut self.pending).into_values() {
                reply(pending.answer, Err(Lost::InDoubt));
            }
        }
        if !leads {
            let lost = self.not_leader();
            for answer in core::mem::take(&mut self.reads).into_values().flat_map(|read| read.answers) {
                reply(answer, Err(lost.clone()));
            }
        }
    }

    async fn process(&mut self, mut ready: Ready) -> Result<(), String> {
        let text = |error: weir_store::AttributeError| error.to_string();
        self.send(ready.take_messages());
        if !ready.snapshot().is_empty() {
            self.raw.mut_store().install(ready.snapshot()).await.map_err(text)?;
            let done = crate::command::Done::load(&self.raw.store().shard)?;
            *self.shared.done.borrow_mut() = done;
            let members = self.raw.store().voters().iter().filter_map(|id| rank_of(*id)).collect();
            *self.shared.members.borrow_mut() = members;
        }
        // A commit by itself is known again from the leader.
        let hard = ready.hs().cloned().filter(|_| ready.must_sync());
        let entries = ready.take_entries();
        self.raw.mut_store().append(hard.as_ref(), entries).await.map_err(text)?;
        self.send(ready.take_persisted_messages());
        for state in ready.take_read_states() {
            let number = state.request_ctx.as_slice().try_into().map(u64::from_be_bytes);
            if let Some(reading) = number.ok().and_then(|number| self.reads.get_mut(&number)) {
                reading.index = Some(state.index);
            }
        }
        self.apply(ready.take_committed_entries()).await?;
        let mut light = self.raw.advance(ready);
        self.send(light.take_messages());
        self.apply(light.take_committed_entries()).await?;
        self.raw.advance_apply();
        self.answer_reads();
        self.raw.mut_store().trim().await.map_err(text)
    }

    fn answer_reads(&mut self) {
        let applied = self.raw.store().applied();
        let may = |reading: &Reading| reading.index.is_some_and(|index| index <= applied);
        let numbers: Vec<u64> =
            self.reads.iter().filter(|(_, reading)| may(reading)).map(|(number, _)| *number).collect();
        for number in numbers {
            for answer in self.reads.remove(&number).into_iter().flat_map(|reading| reading.answers) {
                reply(answer, Ok(()));
            }
        }
    }

    /// Has committed entries take effect, as many by one batch of attributes as it takes.
    async fn apply(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        let (mut changes, mut bytes, mut outcomes, mut place) = (Vec::new(), 0, Vec::new(), None);
        for entry in entries {
            if bytes > 0 && bytes + entry.data.len() > BATCH {
                self.commit(place, core::mem::take(&mut changes), core::mem::take(&mut outcomes)).await?;
                bytes = 0;
            }
            bytes += entry.data.len();
            place = Some((entry.index, entry.term));
            let outcome = match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => Outcome::Applied,
                EntryType::EntryNormal => self.carry_out(&entry, &mut changes)?,
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    changes.push(self.change_members(&entry)?);
                    Outcome::Applied
                }
            };
            outcomes.push((entry.index, entry.term, outcome));
        }
        self.commit(place, changes, outcomes).await
    }

    /// Goes by other members from an entry on.
    fn change_members(&mut self, entry: &Entry) -> Result<AttributeChange, String> {
        let unreadable = |error: protobuf::ProtobufError| format!("a change of the members: {error}");
        let state = if entry.get_entry_type() == EntryType::EntryConfChange {
            let change = ConfChange::parse_from_bytes(&entry.data).map_err(unreadable)?;
            self.raw.apply_conf_change(&change)
        } else {
            let change = ConfChangeV2::parse_from_bytes(&entry.data).map_err(unreadable)?;
            self.raw.apply_conf_change(&change)
        };
        let voters = state.map_err(|error| error.to_string())?.get_voters().to_vec();
        let members: Vec<Rank> = voters.iter().filter_map(|id| rank_of(*id)).collect();
        tracing::info!(group = %self.shared.group, ?members, "other replicas of a pool's service take part");
        *self.shared.members.borrow_mut() = members;
        Ok(self.raw.mut_store().set_voters(voters))
    }

    fn carry_out(&self, entry: &Entry, changes: &mut Vec<AttributeChange>) -> Result<Outcome, String> {
        let command = Command::decode(&entry.data)?;
        let mut done = self.shared.done.borrow_mut();
        if let Some(id) = command.id {
            if let Some(result) = done.get(&id) {
                return Ok(Outcome::Repeated(result.clone()));
            }
            done.add(entry.index, id, command.result, changes);
        }
        changes.extend(command.changes);
        Ok(Outcome::Applied)
    }

    async fn commit(
        &mut self,
        place: Option<(u64, u64)>,
        changes: Vec<AttributeChange>,
        outcomes: Vec<(u64, u64, Outcome)>,
    ) -> Result<(), String> {
        let Some(place) = place else { return Ok(()) };
        self.raw.mut_store().apply(place, changes).await.map_err(|error| error.to_string())?;
        for (index, term, outcome) in outcomes {
            if let Some(pending) = self.pending.remove(&index) {
                let is_own = pending.term == term;
                reply(pending.answer, if is_own { Ok(outcome) } else { Err(Lost::InDoubt) });
            }
        }
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>) {
        let mut by_member: BTreeMap<u64, Vec<Message>> = BTreeMap::new();
        for message in messages {
            by_member.entry(message.to).or_default().push(message);
        }
        for (to, messages) in by_member {
            let in_flight = Rc::clone(self.in_flight.entry(to).or_default());
            if in_flight.get() >= IN_FLIGHT_MAX {
                if messages.iter().any(is_snapshot) {
                    self.shared.give(Input::SnapshotSent(to, false));
                }
                continue;
            }
            in_flight.set(in_flight.get() + 1);
            let (shared, engines) = (Rc::clone(&self.shared), Rc::clone(&self.engines));
            self.rt.spawn(async move {
                deliver(&shared, &engines, to, messages).await;
                in_flight.set(in_flight.get() - 1);
            });
        }
    }

    /// Takes note of the members that have all of the log, where this one leads. What was known under an earlier leadership counts no more.
    fn note_current(&self, leads: bool, is_new: bool) {
        let mut current = self.shared.current.borrow_mut();
        if is_new || !leads {
            current.clear();
        }
        if leads {
            let (own, known) = (self.raw.raft.id, self.raw.raft.prs());
            let has_all = |id: u64, state: ProgressState| id == own || state == ProgressState::Replicate;
            // One that takes part again has nothing at first.
            current.retain(|rank| known.get(id_of(*rank)).is_some());
            let members = known.iter().filter(|(id, one)| has_all(**id, one.state));
            current.extend(members.filter_map(|(id, _)| rank_of(*id)));
        }
    }

    /// Makes known who leads.
    fn publish(&mut self) {
        let raft = &self.raw.raft;
        let (term, before) = (raft.term, self.shared.leadership.get());
        let leadership = self.leads_in(term).then(|| match before {
            Some(known) if known.term == term => known,
            _ => Leadership { term, since: self.rt.now() },
        });
        let leader = rank_of(raft.leader_id);
        self.note_current(leadership.is_some(), leadership != before);
        if leadership == before && leader == self.shared.leader.get() {
            return;
        }
        if leadership != before {
            tracing::info!(group = %self.shared.group, term, leads = leadership.is_some(), "a pool's service has another leader");
        }
        self.shared.leadership.set(leadership);
        self.shared.leader.set(leader);
        self.shared.changed.notify_waiters();
    }
}

/// Answers who still waits for it.
fn reply<T>(answer: Answer<T>, outcome: Result<T, Lost>) {
    // Who has gone needs no answer.
    drop(answer.send(outcome));
}
