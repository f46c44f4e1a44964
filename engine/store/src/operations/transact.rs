//! Transactions of one target: checked, stored and decided by one log record, so that none is ever undecided.

use crate::format::decision::Decision;
use crate::format::edit_buffer::EditBuffer;
use crate::format::key::ContainerNumber;
use crate::format::key::ObjectKey;
use crate::format::key::TransactionKey;
use crate::format::record::Change;
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::log::checkpoint::wait_for_room;
use crate::operations::operation::{Operation, are_deletes, check_operations};
use crate::operations::punch::CHECKPOINTS_MAX;
use crate::operations::update::{Request, Staging};
use crate::state::core::EntryAddresses;
use crate::state::error::UpdateError;
use crate::state::piece::{WritePiece, WritePieces, bytes_in_blocks};
use crate::state::shard::{QuotaCheck, Shard};
use std::collections::BTreeSet;
use weir_proto::object::{AkeyUpdate, Conditions, PunchScope};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, TransactionId};

/// The outcome of an attempt at a transaction.
enum Found {
    /// It was committed before.
    Committed(Epoch),
    /// The changes that store it, and its decision.
    Planned(Vec<Change>),
}

/// A change of a transaction that is stored whatever it finds, since it was judged before or elsewhere.
#[derive(Clone, Copy)]
pub(crate) enum Judged<'a> {
    Update {
        object: ObjectId,
        dkey: &'a Key,
        akeys: &'a [AkeyUpdate],
        pieces: &'a [WritePiece],
        data: &'a [u8],
    },
    Punch {
        object: ObjectId,
        scope: &'a PunchScope,
    },
}

impl<'a> Judged<'a> {
    fn of(operation: &'a Operation<'a>, pieces: &'a [WritePiece]) -> Self {
        match operation {
            Operation::Update { object, dkey, akeys, data, .. } => {
                Self::Update { object: *object, dkey, akeys, pieces, data: data.bytes() }
            }
            Operation::Punch { object, scope, .. } => Self::Punch { object: *object, scope },
        }
    }
}

impl Shard {
    /// Does in one step what [`Shard::prepare`] and [`Shard::commit_transaction`] do in two, for a transaction that no other
    /// target takes part in. Durable when it returns, and visible to readers only then. Doing it again succeeds, and
    /// changes nothing, while the decision is remembered.
    ///
    /// # Errors
    /// As [`Shard::prepare`]; nothing is stored then.
    pub async fn transact(
        &self,
        container: ContainerId,
        id: TransactionId,
        epoch: Epoch,
        operations: &[Operation<'_>],
    ) -> Result<Epoch, UpdateError> {
        let attempt = async || self.try_transact(container, id, epoch, operations, None).await;
        self.at_epoch(epoch, operations, attempt).await
    }

    /// As [`Shard::transact`], of the member of a group whose leader has judged and prepared the transaction: it is stored whatever
    /// it finds, if `holds` says at that moment that the leader still leads.
    ///
    /// # Errors
    /// As [`Shard::prepare`], except for conditions; nothing is stored then. [`UpdateError::Restart`] where it leads no more.
    pub async fn transact_as_member(
        &self,
        container: ContainerId,
        id: TransactionId,
        epoch: Epoch,
        operations: &[Operation<'_>],
        holds: &dyn Fn() -> bool,
    ) -> Result<Epoch, UpdateError> {
        let attempt = async || self.try_transact(container, id, epoch, operations, Some(holds)).await;
        self.at_epoch(epoch, operations, attempt).await
    }

    /// One attempt. `holds`: others judge it, as long as that says so.
    async fn try_transact(
        &self,
        container: ContainerId,
        id: TransactionId,
        epoch: Epoch,
        operations: &[Operation<'_>],
        holds: Option<&dyn Fn() -> bool>,
    ) -> Result<Epoch, UpdateError> {
        let number = self.locate(container)?;
        let place = (self.number, number, id);
        check_operations(operations)?;
        if let Some(epoch) = self.is_committed(place)? {
            self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed)?;
            return Ok(epoch);
        }
        self.core.admit().await.map_err(UpdateError::Failed)?;
        let staging = Staging::new(&self.core);
        let (staged, reservations) = self.stage_operations(container, place, epoch, operations).await?;
        let found = self.core.ask(|tree| {
            if let Some(epoch) = self.is_committed(place)? {
                return Ok(Found::Committed(epoch));
            }
            if holds.is_some_and(|holds| !holds()) {
                return Err(UpdateError::Restart { epoch, newest: Epoch::MAX }.into());
            }
            self.check_conflicts(place, epoch, operations)?;
            let effects = operations.iter().zip(&staged);
            let mut changes = match holds {
                None => self.plan_effects(tree, place, epoch, effects)?,
                Some(_) => self.plan_as_member(tree, place, epoch, effects)?,
            };
            changes.push(self.decide(place, Decision::Committed(epoch)));
            tree.reach(changes.iter().map(Change::key))?;
            Ok::<_, Halt<UpdateError>>(Found::Planned(changes))
        });
        let found: Result<Found, UpdateError> = found.await;
        // The container may have gone while data was written or index nodes were read.
        if self.locate(container)? != number {
            return Err(UpdateError::ContainerMissing(container));
        }
        let record = match found {
            Ok(Found::Planned(changes)) => {
                let record = self.store_at_once(container, place, epoch, operations, &staged, &changes)?;
                for mut reservation in reservations {
                    reservation.keep();
                }
                Ok((epoch, record))
            }
            Ok(Found::Committed(epoch)) => Ok((epoch, self.core.journal.last())),
            Err(error) => Err(error),
        };
        drop(staging);
        // The answer depends on records that must be durable first.
        let last = record.as_ref().map_or_else(|_| self.core.journal.last(), |(_, record)| *record);
        self.core.make_durable(last).await.map_err(UpdateError::Failed)?;
        record.map(|(epoch, _)| epoch)
    }

    /// The changes that store what a leader has judged.
    fn plan_as_member<'a>(
        &self,
        tree: &Tree,
        (pool, number, _): TransactionKey,
        epoch: Epoch,
        operations: impl Iterator<Item = (&'a Operation<'a>, &'a WritePieces)>,
    ) -> Result<Vec<Change>, Halt<UpdateError>> {
        let apart = self.core.fills.since(pool);
        let (mut buffer, mut changes) = (EditBuffer::default(), Vec::new());
        for (operation, pieces) in operations {
            let judged = Judged::of(operation, pieces);
            changes.append(&mut self.plan_judged(tree, (number, apart), epoch, judged, &mut buffer)?);
        }
        Ok(changes)
    }

    /// The changes that store one that was judged: by themselves, where `apart` says from which epoch on changes rely on what is
    /// here.
    pub(crate) fn plan_judged(
        &self,
        tree: &Tree,
        (number, apart): (ContainerNumber, Option<u64>),
        epoch: Epoch,
        judged: Judged<'_>,
        buffer: &mut EditBuffer,
    ) -> Result<Vec<Change>, Halt<UpdateError>> {
        match judged {
            Judged::Punch { object, scope } if apart.is_some() => {
                Ok(self.plan_punch_apart(&(self.number, number, object), scope, epoch.0))
            }
            Judged::Punch { object, scope } => {
                self.plan_punch(tree, number, object, scope, epoch.0, Conditions::NONE)
            }
            Judged::Update { object, dkey, akeys, pieces, data } => {
                let request = Request {
                    container: number,
                    epoch: epoch.0,
                    apart,
                    ..Request::new(self.number, object, dkey, Conditions::NONE, akeys)
                };
                request.plan(tree, None, (pieces, data), buffer)?;
                Ok(buffer.changes().collect())
            }
        }
    }

    /// Attempts a transaction of this epoch, and returns the outcome when the clock has passed the epoch.
    pub(crate) async fn at_epoch<T>(
        &self,
        epoch: Epoch,
        operations: &[Operation<'_>],
        attempt: impl AsyncFn() -> Result<T, UpdateError>,
    ) -> Result<T, UpdateError> {
        self.check_transaction_epoch(epoch)?;
        let told = self.with_room(operations, attempt).await;
        self.wait_for(epoch).await;
        told
    }

    /// Makes an attempt at a transaction, again after a checkpoint where one that only removes found no room, as deletes do.
    async fn with_room<T>(
        &self,
        operations: &[Operation<'_>],
        attempt: impl AsyncFn() -> Result<T, UpdateError>,
    ) -> Result<T, UpdateError> {
        let mut checkpoints = 0;
        loop {
            match attempt().await {
                Err(UpdateError::NoSpace { .. })
                    if are_deletes(operations)
                        && checkpoints < CHECKPOINTS_MAX
                        && wait_for_room(&self.core).await =>
                {
                    checkpoints += 1;
                }
                done => return done,
            }
        }
    }

    /// Refuses a transaction without room for so many bytes of entries and of data in blocks, and for so many blocks of nodes
    /// at its commit. One that only removes may use the room for deletes: neither a full pool nor a quota prevents those.
    pub(crate) fn check_room(
        &self,
        (container, number): (ContainerId, ContainerNumber),
        operations: &[Operation<'_>],
        changes: &[Change],
        (bytes, in_blocks, later): (u64, u64, u64),
    ) -> Result<(), UpdateError> {
        if !are_deletes(operations) {
            return self
                .check_space((container, number), QuotaCheck::Here, (bytes, in_blocks, later))
                .map(drop);
        }
        if self.has_room_for_delete(changes, later) {
            return Ok(());
        }
        // What was deleted before may be waiting for aggregation.
        self.core.chores.notify_one();
        Err(self.no_room(changes))
    }

    /// The epoch of a transaction that was committed before. Fails when it was aborted, or is prepared and others decide it.
    fn is_committed(&self, place: TransactionKey) -> Result<Option<Epoch>, UpdateError> {
        let transactions = self.core.transactions.borrow();
        match transactions.decision(place) {
            Some(Decision::Committed(epoch)) => Ok(Some(epoch)),
            Some(decision) => Err(UpdateError::Decided { transaction: place.2, decision }),
            None => match transactions.prepared(place) {
                Some((prepared, _)) => {
                    Err(UpdateError::Undecided { transaction: place.2, epoch: prepared.epoch })
                }
                None => Ok(None),
            },
        }
    }

    fn store_at_once(
        &self,
        container: ContainerId,
        (pool, number, _): TransactionKey,
        epoch: Epoch,
        operations: &[Operation<'_>],
        staged: &[WritePieces],
        changes: &[Change],
    ) -> Result<u64, UpdateError> {
        let buffer = EditBuffer::from(changes);
        let in_blocks: u64 = staged.iter().map(|pieces| bytes_in_blocks(pieces)).sum();
        self.check_room((container, number), operations, changes, (buffer.growth(), in_blocks, 0))?;
        let places = operations.iter().map(|operation| (pool, number, operation.object()));
        let objects: Vec<ObjectKey> = places.collect::<BTreeSet<_>>().into_iter().collect();
        let record = self.core.commit_edits(&buffer, &objects, &[], &mut EntryAddresses::default())?;
        self.core.fills.note_commit(pool, epoch.0);
        for operation in operations {
            let object = (pool, number, operation.object());
            for scope in operation.scopes() {
                self.core.timestamps.note_write(&object, scope, epoch.0, true);
            }
            self.core.queue_for_aggregation(object, epoch.0);
        }
        Ok(record)
    }
}
