//! Transactions: reads of one state, and changes of several keys and objects that happen all or not at all. The room reads through
//! objects, and sends its commits by `operation` to the target that leads. Programs call it, and so do key-value objects and arrays.

mod doubt;
mod groups;
mod plan;
mod punch;

use core::fmt;
use core::time::Duration;

use weir_proto::object::{Conditions, PunchScope, UpdateReply};
use weir_proto::pool::{PoolMap, TargetState};
use weir_proto::transaction::{COMMIT_MAX, Change, CommitRequest, PARTS_MAX, Part};
use weir_proto::{Der, Epoch, Key, ReaderId, TransactionId, codec, opcode};
use weir_runtime::Instant;

use crate::Result;
use crate::error::Error;
use crate::handles::Container;
use crate::object::{AkeyWrite, Object, is_stale, no_shard, out_of_service, target_of};
use crate::operation::{Payload, Reach, RequestInfo};
use crate::session::Context;
use doubt::Doubt;
use plan::Plan;

/// Transactions that begin at the same nanosecond would have to start again if they had the same epoch: one in so many does.
const SPREAD: u64 = 1024;

/// Shortest and longest pause before a transaction that has to start again does so.
const PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(200));

/// Reads of a container's state at one epoch, and changes that are made there together when it commits.
///
/// All reads have to go through [`Transaction::view`], which doesn't show the transaction's own changes. Any of its
/// requests may fail with [`Der::TX_RESTART`], since another client has read or changed the same. Then nothing has
/// happened, and all of it is to be done again in a new transaction; see [`Restarts`].
#[derive(Debug)]
pub struct Transaction {
    container: Container,
    epoch: Epoch,
    reader: ReaderId,
    plan: Plan,
}

impl Transaction {
    /// Begins a transaction. Sends nothing.
    #[must_use]
    pub fn begin(context: &Context, container: &Container) -> Self {
        let (runtime, clock) = (context.runtime(), context.rpc().clock());
        let wall = runtime.wall_ns();
        // Behind all that this context has seen.
        let next = wall.max(clock.now(wall).0);
        let epoch = Epoch(next.saturating_add(1 + runtime.random_u64() % SPREAD));
        // Far within the bound: it is next to one that the clock has.
        let _ = clock.observe(epoch, wall);
        Self {
            container: container.clone(),
            epoch,
            reader: ReaderId(runtime.random_u64()),
            plan: Plan::default(),
        }
    }

    /// The epoch at which it reads, and at which its changes will be.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// An object as the transaction reads it.
    #[must_use]
    pub fn view(&self, object: &Object) -> Object {
        object.in_transaction(self.reader())
    }

    /// Its epoch, and what tells it from others that have the same: what [`Object::in_transaction`] takes.
    #[must_use]
    pub fn reader(&self) -> (Epoch, ReaderId) {
        (self.epoch, self.reader)
    }

    /// Updates akeys of one dkey when it commits. The data is copied. Of two updates of the same single value the later one
    /// counts.
    ///
    /// # Errors
    /// `INVAL` or `REC2BIG` for malformed arguments, `REC2BIG` when the transaction becomes too large, and `NOTSUPPORTED` for
    /// a change of what it changes already, where both would have to happen one behind the other: all of it has one epoch.
    pub fn update(
        &mut self,
        object: &Object,
        dkey: &Key,
        conditions: Conditions,
        writes: &[AkeyWrite<'_>],
    ) -> Result<()> {
        self.plan.update("update in a transaction", object, dkey, conditions, writes)
    }

    /// Removes a whole dkey when it commits, provided that it has all of these akeys then.
    ///
    /// # Errors
    /// As [`Transaction::punch_dkeys`].
    pub fn punch_dkey_with(&mut self, object: &Object, dkey: &Key, akeys: &[Key]) -> Result<()> {
        self.punch_scope(object, &PunchScope::DkeyWith(dkey.clone(), akeys.to_vec()), Conditions::NONE)
    }

    /// Removes dkeys when it commits; with [`Conditions::PUNCH`] each must be there then. What it was to write there is
    /// forgotten.
    ///
    /// # Errors
    /// `REC2BIG` when the transaction becomes too large; `NOTSUPPORTED` when it removes one of them already, or writes there
    /// on a condition.
    pub fn punch_dkeys(&mut self, object: &Object, conditions: Conditions, dkeys: &[Key]) -> Result<()> {
        // Each has its own target.
        for dkey in dkeys {
            self.punch_scope(object, &PunchScope::Dkeys(vec![dkey.clone()]), conditions)?;
        }
        Ok(())
    }

    /// Removes akeys of one dkey when it commits; with [`Conditions::PUNCH`] all must be there then.
    ///
    /// # Errors
    /// As [`Transaction::punch_dkeys`].
    pub fn punch_akeys(
        &mut self,
        object: &Object,
        conditions: Conditions,
        dkey: &Key,
        akeys: &[Key],
    ) -> Result<()> {
        self.punch_scope(object, &PunchScope::Akeys(dkey.clone(), akeys.to_vec()), conditions)
    }

    /// Removes an object with everything in it when it commits.
    ///
    /// # Errors
    /// As [`Transaction::punch_dkeys`].
    pub fn punch(&mut self, object: &Object) -> Result<()> {
        self.punch_scope(object, &PunchScope::Object, Conditions::NONE)
    }

    fn punch_scope(&mut self, object: &Object, scope: &PunchScope, conditions: Conditions) -> Result<()> {
        self.plan.punch("punch in a transaction", object, scope, conditions)
    }

    /// Makes the changes, all or none, and returns when they are on stable media. Without changes it does nothing.
    ///
    /// # Errors
    /// [`Der::TX_RESTART`] when it has to be done again; `EXIST` or `NONEXIST` when a condition does not hold, `NOSPACE` when
    /// the pool or quota is full, `REC2BIG` when the changes don't fit a message; nothing has happened then. After
    /// [`Error::Unavailable`] it is not known whether it has.
    pub async fn commit(self, context: &Context) -> Result<Epoch> {
        let info = RequestInfo::new(OPERATION, &self, opcode::TRANSACTION_COMMIT);
        let (pool, deadline, began) = (self.container.pool(), context.until(), context.runtime().now());
        let mut doubt = Doubt::default();
        let waited = || context.runtime().now().saturating_duration_since(began);
        if self.plan.is_empty() {
            return Ok(self.epoch);
        }
        // Another context may have begun it, and a commit says that its sender's clock has come to its epoch.
        let _ = context.rpc().clock().observe(self.epoch, context.runtime().wall_ns());
        if self.plan.has_replicas() {
            // Boxed, so that the future of the others is small.
            return Box::pin(self.commit_to_group(context)).await;
        }
        loop {
            let map = context.map_of(pool);
            let parts = self.parts(context, &info, &map);
            let parts = parts.map_err(|error| doubt.explain(&info, None, error, waited()))?;
            let Some(leader) = parts.first().map(|part| (part.rank, part.index)) else {
                return Err(Error::invalid(OPERATION, "its objects are on no target"));
            };
            let body = codec::encode(&CommitRequest {
                capability: self.container.state.capability.clone(),
                map_version: map.version,
                transaction: TransactionId::new(leader, self.reader),
                epoch: self.epoch,
                parts,
            });
            if body.len() > COMMIT_MAX {
                let reason = format!("its changes have {} bytes, at most {COMMIT_MAX} fit", body.len());
                return Err(Error::Size { operation: OPERATION, reason, der: Der::REC2BIG });
            }
            let reach = Reach::Target(leader.0, leader.1);
            match context.exchange(reach, &info, &body, &Payload::None, deadline).await {
                Ok(exchange) => return Ok(exchange.decode::<UpdateReply>(&info)?.epoch),
                Err(refusal) => {
                    if refusal.uncertain {
                        doubt.add(leader);
                    }
                    if !is_stale(refusal.error.der()) || context.runtime().now() >= deadline {
                        return Err(doubt.explain(&info, Some(leader), refusal.error, waited()));
                    }
                    let refreshed = context.refresh_map(pool, map.version, leader.0, deadline).await;
                    refreshed.map_err(|error| doubt.explain(&info, None, error, waited()))?;
                }
            }
        }
    }

    /// The changes by the targets that they concern, as the map has them.
    fn parts(&self, context: &Context, info: &RequestInfo<'_>, map: &PoolMap) -> Result<Vec<Part>> {
        let mut parts: Vec<Part> = Vec::new();
        for (object, change) in self.plan.changes(OPERATION)? {
            let layout = object.layout(context, map)?;
            let ids = match &change {
                Change::Update { dkey, .. } => vec![layout.target_of(dkey)],
                Change::Punch { scope, .. } => match scope {
                    PunchScope::Object => layout.shards.to_vec(),
                    PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => {
                        vec![layout.target_of(dkey)]
                    }
                    PunchScope::Dkeys(dkeys) => dkeys.iter().map(|dkey| layout.target_of(dkey)).collect(),
                },
            };
            for id in ids {
                let target = target_of(map, id).ok_or_else(|| no_shard(info, id as usize))?;
                if target.state == TargetState::Down {
                    return Err(out_of_service(info, self.container.pool(), target));
                }
                let place = (target.rank, target.index);
                match parts.iter_mut().find(|part| (part.rank, part.index) == place) {
                    Some(part) => part.changes.push(change.clone()),
                    None => parts.push(Part { rank: place.0, index: place.1, changes: vec![change.clone()] }),
                }
            }
        }
        if parts.len() > PARTS_MAX {
            let reason = format!("it concerns {} targets, at most {PARTS_MAX} can take part", parts.len());
            return Err(Error::invalid(OPERATION, reason));
        }
        Ok(parts)
    }
}

/// What is done, for errors.
const OPERATION: &str = "commit";

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a transaction of {} changes in {}", self.plan.len(), self.container)
    }
}

/// How long a transaction is done again: until the time of an operation is over, with pauses that grow.
#[derive(Clone, Debug)]
pub struct Restarts {
    began: Instant,
    until: Instant,
    pause: Duration,
}

impl Restarts {
    /// For an operation that begins now.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { began: context.runtime().now(), until: context.until(), pause: PAUSE.0 }
    }

    /// Returns, after a pause, when a transaction that has failed so is to be done again.
    ///
    /// # Errors
    /// `error` where that can't help, and [`Error::Restarted`] when the time is over.
    pub async fn again(&mut self, context: &Context, error: Error) -> Result<()> {
        let (operation, subject, cause) = match error {
            Error::Refused { operation, subject, der: Der::TX_RESTART, message } => {
                (operation, subject, message)
            }
            other => return Err(other),
        };
        let pause = self.next_pause(context);
        if context.runtime().now() + pause >= self.until {
            return Err(self.given_up(context, operation, subject, cause));
        }
        rest(context, pause).await;
        Ok(())
    }

    /// Whether the time is over.
    #[must_use]
    pub fn is_over(&self, context: &Context) -> bool {
        context.runtime().now() >= self.until
    }

    /// What an operation on a subject is told that was done again, for this cause, until the time was over.
    #[must_use]
    pub fn given_up(
        &self,
        context: &Context,
        operation: &'static str,
        subject: String,
        cause: String,
    ) -> Error {
        let waited = context.runtime().now().saturating_duration_since(self.began);
        Error::Restarted { operation, subject, waited, cause }
    }

    /// Returns when a transaction may be done again, for a caller that decides itself how long that goes on. Each time
    /// it is later.
    pub async fn wait(&mut self, context: &Context) {
        let pause = self.next_pause(context);
        rest(context, pause).await;
    }

    fn next_pause(&mut self, context: &Context) -> Duration {
        // Transactions that have met each other should not meet again.
        let span = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX).max(1);
        let pause = self.pause / 2 + Duration::from_nanos(context.runtime().random_u64() % span);
        self.pause = (self.pause * 2).min(PAUSE.1);
        pause
    }
}

async fn rest(context: &Context, pause: Duration) {
    // This clock may be behind those of the targets, whose time was just heard: it goes on from there.
    let (clock, heard_at) = (context.rpc().clock(), context.runtime().now());
    let heard = clock.latest();
    context.runtime().sleep(pause).await;
    let slept = context.runtime().now().saturating_duration_since(heard_at).as_nanos();
    let now = heard.0.saturating_add(u64::try_from(slept).unwrap_or(u64::MAX));
    // Beyond the bound it is no time to go by.
    let _ = clock.observe(Epoch(now), context.runtime().wall_ns());
}
