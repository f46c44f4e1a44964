//! Transactions: operations on objects of one target that are prepared together and then committed or aborted.
//!
//! A transaction has one epoch, at which it reads and writes. Transactions appear to run in the order of their epochs. A
//! transaction reads through a [`View`](crate::View). [`Shard::prepare`] gets all its writes together, and refuses them if the
//! same was read or written at a later epoch. From then on the transaction holds the dkeys that it writes: requests that write
//! them, or read them at its epoch or later, get the error that it is undecided. Readers hold nothing. The store remembers a
//! decision for a while, so that it can be asked for again.

use crate::format::blocks::Run;
use crate::format::codec::Malformed;
use crate::format::decision::Decision;
use crate::format::edit_buffer::EditBuffer;
use crate::format::key::ObjectKey;
use crate::format::key::TransactionKey;
use crate::format::key::{self, ContainerNumber, TransactionTail};
use crate::format::record::RECORD_MAX;
use crate::format::record::{Change, record_len};
use crate::format::usage::entry_bytes;
use crate::format::value::{Payload, Version};
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::operations::attribute::AttributeChange;
use crate::operations::operation::{Operation, check_operations};
use crate::operations::transact::Judged;
use crate::operations::update::{Request, Staging, check_epoch, is_large};
use crate::state::core::CommitError;
use crate::state::error::{TransactionError, UpdateError};
use crate::state::piece::{WritePiece, WritePieces, bytes_in_blocks};
use crate::state::reservation::Reservation;
use crate::state::shard::{QuotaCheck, Shard};
use crate::versions::intents::{
    Intended, Intent, OPERATIONS_BYTES_MAX, OPERATIONS_LEN, PIECE, Prepared, Transactions, encode_operations,
};
use crate::versions::prepared_space::{DECISION_MAX, PreparedSpace};
use core::time::Duration;
use std::collections::BTreeSet;
use weir_proto::limits::EXTENTS_MAX;
use weir_proto::{ContainerId, Epoch, TransactionId};
use weir_runtime::nanos;

/// Most inline bytes of a transaction: with its keys they fit one log record, at prepare and at commit.
const INLINE_BYTES_MAX: usize = 1 << 20;

/// Most versions that a transaction stores: as many as two of the largest updates. Each takes some 2 µs at prepare and again
/// at commit, which can't be divided.
const VERSIONS_MAX: usize = 2 * EXTENTS_MAX;

/// Part of the index memory that prepared transactions may take: what they write is kept in memory until the decision.
const KEPT_DIVISOR: usize = 4;

/// Least memory of prepared transactions, in bytes: some of the largest.
const KEPT_BYTES_MIN: usize = 8 << 20;

/// A pool's prepared transactions may take as many times the memory that all pools' leave: a lone pool gets three quarters,
/// two get three sevenths each, and some is left for the next one however many there are.
const KEPT_TIMES_LEFT: u64 = 3;

/// How far ahead of this node's clock the epoch of a transaction may be (DAOS allows its clocks to differ by as much). No reply
/// reveals anything of it before the clock has passed its epoch: so all that was revealed before a restart is older than the
/// clock after it, or is stored.
const EPOCH_AHEAD_MAX: Duration = Duration::from_secs(1);

impl Shard {
    pub(crate) fn check_transaction_epoch(&self, epoch: Epoch) -> Result<(), UpdateError> {
        check_epoch(epoch)?;
        let ahead = nanos(EPOCH_AHEAD_MAX);
        if epoch.0 > self.core.rt.wall_ns().saturating_add(ahead) {
            let text = format!("epoch {:#x} is more than {EPOCH_AHEAD_MAX:?} ahead of the clock", epoch.0);
            return Err(UpdateError::Invalid(text));
        }
        Ok(())
    }

    /// Waits until the clock has passed a transaction's epoch.
    pub(crate) async fn wait_for(&self, epoch: Epoch) {
        let rt = &self.core.rt;
        let ahead = epoch.0.saturating_sub(rt.wall_ns());
        if ahead > 0 {
            rt.sleep(Duration::from_nanos(ahead)).await;
        }
    }

    /// Checks the operations of a transaction and stores them durably, so that it can be committed or aborted from then on,
    /// also after a crash. Readers don't see them before the commit. Preparing the same transaction again succeeds.
    ///
    /// # Errors
    /// [`UpdateError::Restart`]: somebody has read or written the same at a later epoch, or taken a snapshot since; the client
    /// tries again with a newer one. [`UpdateError::Undecided`]: another prepared transaction writes the same.
    /// [`UpdateError::Decided`]: it was committed or aborted before. Otherwise as an update or punch fails. Nothing is stored
    /// then.
    pub async fn prepare(
        &self,
        container: ContainerId,
        id: TransactionId,
        epoch: Epoch,
        operations: &[Operation<'_>],
    ) -> Result<(), UpdateError> {
        self.prepare_as_member(container, id, epoch, (operations, &|_| true), (&[], &|| true, &|| {})).await
    }

    /// As [`Shard::prepare`], of a target that takes part for groups of replicas. `is_judged` tells of each operation, by its
    /// place, whether the target leads its group: then its conditions are judged here. Others are stored whatever holds, since
    /// the leader of their group has judged them, or judges them now. The changes of attributes commit in the same record, if
    /// the function beside them says at that moment that the transaction's leader still leads. The last function hears that it is
    /// prepared, before that is durable.
    ///
    /// # Errors
    /// As [`Shard::prepare`]; [`UpdateError::Restart`] where it leads no more.
    pub async fn prepare_as_member(
        &self,
        container: ContainerId,
        id: TransactionId,
        epoch: Epoch,
        (operations, is_judged): (&[Operation<'_>], &dyn Fn(usize) -> bool),
        along: (&[AttributeChange], &dyn Fn() -> bool, &dyn Fn()),
    ) -> Result<(), UpdateError> {
        let attempt = async || self.try_prepare(container, id, epoch, (operations, is_judged), along).await;
        self.at_epoch(epoch, operations, attempt).await
    }

    async fn try_prepare(
        &self,
        container: ContainerId,
        id: TransactionId,
        epoch: Epoch,
        (operations, is_judged): (&[Operation<'_>], &dyn Fn(usize) -> bool),
        (along, holds, begun): (&[AttributeChange], &dyn Fn() -> bool, &dyn Fn()),
    ) -> Result<(), UpdateError> {
        let number = self.locate(container)?;
        let place = (self.number, number, id);
        check_operations(operations)?;
        let found = self.is_prepared(place, epoch);
        if !matches!(found, Ok(false)) {
            // The record that prepared or decided it may not be durable yet.
            self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed)?;
            return found.map(drop);
        }
        self.core.admit().await.map_err(UpdateError::Failed)?;
        let staging = Staging::new(&self.core);
        let (staged, reservations) = self.stage_operations(container, place, epoch, operations).await?;
        let planned = self.core.ask(|tree| {
            if self.is_prepared(place, epoch)? {
                return Ok((Vec::new(), PreparedSpace::default()));
            }
            if !holds() {
                return Err(UpdateError::Restart { epoch, newest: Epoch::MAX }.into());
            }
            self.check_conflicts(place, epoch, operations)?;
            let judged = |(at, planned): (usize, _)| is_judged(at).then_some(planned);
            let planned = operations.iter().zip(&staged).enumerate().filter_map(judged);
            self.plan_effects(tree, place, epoch, planned)?;
            let (mut changes, needed) = prepare_changes(place, epoch, operations, &staged)?;
            self.add_attributes(along, &mut changes);
            tree.reach(changes.iter().map(Change::key))?;
            Ok((changes, needed))
        });
        let planned: Result<(Vec<Change>, PreparedSpace), UpdateError> = planned.await;
        if self.locate(container)? != number {
            return Err(UpdateError::ContainerMissing(container));
        }
        let (changes, needed) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                // The answer depends on records that must be durable first.
                self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed)?;
                return Err(error);
            }
        };
        if changes.is_empty() {
            // Another request has prepared it meanwhile.
            drop(staging);
            return self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed);
        }
        let bytes = changes.iter().map(|change| match change {
            Change::Put { key, value } => entry_bytes(key.len(), value.len()),
            Change::Remove { .. } => 0,
        });
        // A commit adds its entries before these are removed.
        let bytes = bytes.sum::<u64>() + needed.bytes();
        let in_blocks: u64 = staged.iter().map(|pieces| bytes_in_blocks(pieces)).sum();
        self.check_room((container, number), operations, &changes, (bytes, in_blocks, needed.blocks()))?;
        self.check_prepared_space(&needed)?;
        let record = self.core.commit(&changes, None)?;
        for mut reservation in reservations {
            reservation.keep();
        }
        begun();
        drop(staging);
        self.core.make_durable(record).await.map_err(UpdateError::Failed)
    }

    /// Refuses a transaction whose commit wouldn't fit one record of the log, or for which there is no memory.
    fn check_prepared_space(&self, needed: &PreparedSpace) -> Result<(), UpdateError> {
        if needed.record_len() > RECORD_MAX as u64 {
            let text = format!("all that a transaction stores fits one log record of {RECORD_MAX} bytes");
            return Err(UpdateError::Invalid(text));
        }
        let limit = (self.core.config.index_bytes / KEPT_DIVISOR).max(KEPT_BYTES_MIN) as u64;
        let transactions = self.core.transactions.borrow();
        let left = limit.checked_sub(transactions.prepared_spaces.all().kept + needed.kept);
        let kept = transactions.prepared_spaces.kept_of_pool(self.number);
        match left {
            Some(left) if kept + needed.kept <= KEPT_TIMES_LEFT.saturating_mul(left) => Ok(()),
            _ => Err(UpdateError::Crowded { pool: self.id(), kept, limit }),
        }
    }

    /// Whether a transaction is prepared already. Fails when it was decided.
    fn is_prepared(&self, place: TransactionKey, epoch: Epoch) -> Result<bool, UpdateError> {
        let transactions = self.core.transactions.borrow();
        if let Some(decision) = transactions.decision(place) {
            return Err(UpdateError::Decided { transaction: place.2, decision });
        }
        match transactions.prepared(place) {
            Some((prepared, _)) if prepared.epoch == epoch => Ok(true),
            Some(_) => {
                let text = format!("transaction {} was prepared at another epoch", place.2);
                Err(UpdateError::Invalid(text))
            }
            None => Ok(false),
        }
    }

    /// Cuts the operations into versions and writes what doesn't go inline.
    pub(crate) async fn stage_operations(
        &self,
        container: ContainerId,
        (pool, number, _): TransactionKey,
        epoch: Epoch,
        operations: &[Operation<'_>],
    ) -> Result<(Vec<WritePieces>, Vec<Reservation>), UpdateError> {
        let (mut staged, mut reservations) = (Vec::new(), Vec::new());
        let (mut inline, mut versions) = (0, 0);
        for operation in operations {
            let Operation::Update { object, dkey, conditions, akeys, data } = operation else {
                staged.push(WritePieces::new());
                continue;
            };
            let request = Request {
                pool,
                container: number,
                object: *object,
                dkey,
                epoch: epoch.0,
                conditions: *conditions,
                akeys,
                covered: 0,
                apart: None,
                quota: QuotaCheck::Here,
            };
            request.check(data.bytes())?;
            let mut pieces = WritePieces::new();
            let in_blocks = request.cut(self.core.config.inline_max(), &mut pieces)?;
            if !is_large(in_blocks) {
                self.seal_all(&request, &mut pieces, data.bytes())?;
            }
            inline +=
                pieces.iter().filter(|piece| !piece.in_blocks).map(|piece| piece.data.len()).sum::<usize>();
            if inline > INLINE_BYTES_MAX {
                let text = format!("small values of a transaction have {INLINE_BYTES_MAX} bytes at most");
                return Err(UpdateError::Invalid(text));
            }
            versions += pieces.len();
            if versions > VERSIONS_MAX {
                let text = format!("a transaction stores {VERSIONS_MAX} values and extents at most");
                return Err(UpdateError::Invalid(text));
            }
            if in_blocks > 0 {
                let writing = self.write_blocks(container, &request, &mut pieces, data).await?;
                reservations.push(writing.end().await?);
            }
            staged.push(pieces);
        }
        Ok((staged, reservations))
    }

    /// Refuses a transaction that comes too late for a snapshot, or for what others have read and written at its epoch or
    /// later, or meets a prepared one.
    pub(crate) fn check_conflicts(
        &self,
        (pool, number, id): TransactionKey,
        epoch: Epoch,
        operations: &[Operation<'_>],
    ) -> Result<(), UpdateError> {
        // A snapshot must not change after it was taken.
        let taken = self.snapshot_set(number).last().copied().unwrap_or(0);
        if epoch.0 <= taken {
            return Err(UpdateError::Restart { epoch, newest: Epoch(taken) });
        }
        let transactions = self.core.transactions.borrow();
        for operation in operations {
            let object = (pool, number, operation.object());
            for scope in operation.scopes() {
                if let Some((transaction, epoch)) = transactions.meets(&object, scope, u64::MAX, Some(id)) {
                    return Err(UpdateError::Undecided { transaction, epoch });
                }
                let limit = self.core.timestamps.limit_of_transaction(&object, scope);
                if epoch.0 < limit || self.core.timestamps.is_taken_at(&object, scope, epoch.0, id.reader()) {
                    return Err(UpdateError::Restart { epoch, newest: Epoch(limit) });
                }
            }
        }
        Ok(())
    }

    /// Checks conditions, kinds and record sizes as of the transaction's epoch, and returns the changes that store all of it.
    /// A refusal reveals the state, which counts as a read.
    pub(crate) fn plan_effects<'a>(
        &self,
        tree: &Tree,
        (_, number, id): TransactionKey,
        epoch: Epoch,
        operations: impl Iterator<Item = (&'a Operation<'a>, &'a WritePieces)>,
    ) -> Result<Vec<Change>, Halt<UpdateError>> {
        let (mut buffer, mut changes) = (EditBuffer::default(), Vec::new());
        for (operation, pieces) in operations {
            let planned = match operation {
                Operation::Update { object, dkey, conditions, akeys, data } => {
                    let (object, conditions) = (*object, *conditions);
                    let (pool, container, epoch) = (self.number, number, epoch.0);
                    let request = Request {
                        pool,
                        container,
                        object,
                        dkey,
                        epoch,
                        conditions,
                        akeys,
                        covered: 0,
                        apart: None,
                        quota: QuotaCheck::Here,
                    };
                    self.plan_update(tree, &request, None, (pieces, data.bytes()), &mut buffer, Some(id))
                        .map(|_| buffer.changes().collect())
                }
                Operation::Punch { object, scope, conditions } => {
                    self.plan_punch(tree, number, *object, scope, epoch.0, *conditions)
                }
            };
            if let Err(Halt::Failed(refusal)) = &planned
                && refusal.tells_state()
            {
                let object = (self.number, number, operation.object());
                for scope in operation.scopes_of_refusal() {
                    self.core.timestamps.note_read(&object, scope, epoch.0, id.reader());
                }
            }
            changes.append(&mut planned?);
        }
        Ok(changes)
    }

    /// Makes what a prepared transaction has written visible at its epoch, all at once. Durable when it returns.
    /// Committing again succeeds while the decision is remembered.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub async fn commit_transaction(
        &self,
        container: ContainerId,
        id: TransactionId,
    ) -> Result<Epoch, TransactionError> {
        self.commit_transaction_with(container, id, &[]).await
    }

    /// As [`Shard::commit_transaction`]. The changes of attributes commit in the same record, unless it was committed before. They
    /// may take `DECISION_MAX` bytes of the log with the decision.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub async fn commit_transaction_with(
        &self,
        container: ContainerId,
        id: TransactionId,
        along: &[AttributeChange],
    ) -> Result<Epoch, TransactionError> {
        let number = self.locate(container)?;
        let place = (self.number, number, id);
        self.core.admit().await.map_err(TransactionError::Failed)?;
        let planned = self.core.ask(|tree| {
            let transactions = self.core.transactions.borrow();
            match transactions.decision(place) {
                Some(Decision::Committed(epoch)) => return Ok((epoch, None)),
                Some(Decision::Aborted) => return Err(TransactionError::Aborted(id).into()),
                None => {}
            }
            let Some((prepared, versions)) = transactions.prepared(place) else {
                return Err(TransactionError::Unknown(id).into());
            };
            let mut changes = transactions.removals(place);
            let apart = self.core.fills.since(self.number).filter(|_| id.is_of_groups());
            changes.extend(self.plan_commit(tree, (number, apart), &prepared, &versions)?);
            changes.push(self.decide(place, Decision::Committed(prepared.epoch)));
            self.add_attributes(along, &mut changes);
            tree.reach(changes.iter().map(Change::key))?;
            Ok((prepared.epoch, Some((prepared, versions, changes))))
        });
        let planned: Result<_, TransactionError> = planned.await;
        let (epoch, planned) = self.told(planned).await?;
        // The container may have gone while index nodes were read.
        if self.locate(container)? != number {
            return Err(TransactionError::ContainerMissing(container));
        }
        let record = match planned {
            None => self.core.journal.last(),
            Some((prepared, versions, changes)) => {
                self.apply_commit(place, &prepared, &versions, &changes)?
            }
        };
        self.core.make_durable(record).await.map_err(TransactionError::Failed)?;
        Ok(epoch)
    }

    /// The changes that store what a prepared transaction has written: by themselves, where `apart` says from which epoch on
    /// changes rely on what is here.
    fn plan_commit(
        &self,
        tree: &Tree,
        (number, apart): (ContainerNumber, Option<u64>),
        prepared: &Prepared,
        versions: &[Version],
    ) -> Result<Vec<Change>, Halt<TransactionError>> {
        if !prepared.fits(versions) {
            let text = "versions of it in the index are not those that it stores".to_owned();
            return Err(TransactionError::Failed(text).into());
        }
        let mut versions = versions.iter();
        let mut changes = Vec::new();
        let mut buffer = EditBuffer::default();
        for intent in &prepared.intents {
            let pieces: Vec<WritePiece>;
            let judged = match intent {
                Intent::Punch { object, scope } => Judged::Punch { object: *object, scope },
                Intent::Update { object, dkey, akeys, versions: intended } => {
                    let stored = intended.iter().zip(&mut versions);
                    pieces =
                        stored.map(|(intended, version)| WritePiece::of_version(intended, version)).collect();
                    Judged::Update { object: *object, dkey, akeys, pieces: &pieces, data: &[] }
                }
            };
            let planned = self.plan_judged(tree, (number, apart), prepared.epoch, judged, &mut buffer);
            changes.extend(planned.map_err(|halt| halt.map(TransactionError::from))?);
        }
        Ok(changes)
    }

    fn apply_commit(
        &self,
        place @ (pool, container, _): TransactionKey,
        prepared: &Prepared,
        versions: &[Version],
        changes: &[Change],
    ) -> Result<u64, TransactionError> {
        debug_assert!(
            fits_prepared_space(prepared, versions, changes),
            "transaction {} takes more than was reserved when it was prepared",
            place.2
        );
        let objects = objects_of(place, prepared);
        let moved: Vec<Run> = versions
            .iter()
            .flat_map(|version| match &version.payload {
                Payload::Blocks(blocks) => blocks.runs.as_slice(),
                Payload::Hole | Payload::Inline(_) => &[],
            })
            .copied()
            .collect();
        let record = self.core.commit_moving(changes, &objects, moved)?;
        self.core.fills.note_commit(pool, prepared.epoch.0);
        for intent in &prepared.intents {
            let object = (pool, container, intent.object());
            for scope in intent.scopes() {
                self.core.timestamps.note_write(&object, scope, prepared.epoch.0, true);
            }
            self.core.queue_for_aggregation(object, prepared.epoch.0);
        }
        Ok(record)
    }

    /// Aborts a transaction; its changes are never visible. Durable when it returns. One that isn't prepared can't be prepared
    /// any more while the decision is remembered.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub async fn abort_transaction(
        &self,
        container: ContainerId,
        id: TransactionId,
    ) -> Result<(), TransactionError> {
        let number = self.locate(container)?;
        let place = (self.number, number, id);
        self.core.admit().await.map_err(TransactionError::Failed)?;
        let planned = self.core.ask(|tree| {
            let transactions = self.core.transactions.borrow();
            match transactions.decision(place) {
                Some(Decision::Committed(epoch)) => {
                    return Err(TransactionError::Committed { transaction: id, epoch }.into());
                }
                Some(Decision::Aborted) => return Ok((Vec::new(), Vec::new())),
                None => {}
            }
            let objects = objects_prepared(&transactions, place);
            let mut changes = transactions.removals(place);
            changes.push(self.decide(place, Decision::Aborted));
            tree.reach(changes.iter().map(Change::key))?;
            Ok((objects, changes))
        });
        let planned: Result<(Vec<ObjectKey>, Vec<Change>), TransactionError> = planned.await;
        let (objects, changes) = self.told(planned).await?;
        self.commit_change((container, number), &changes, &objects).await
    }

    /// Commits a change of what is known of a transaction that concerns objects. Durable when it returns.
    pub(crate) async fn commit_change(
        &self,
        (container, number): (ContainerId, ContainerNumber),
        changes: &[Change],
        objects: &[ObjectKey],
    ) -> Result<(), TransactionError> {
        if self.locate(container)? != number {
            return Err(TransactionError::ContainerMissing(container));
        }
        let record = if changes.is_empty() {
            self.core.journal.last()
        } else {
            // Readers of the objects see a state that depends on the decision, which has to be durable first.
            self.core.commit_moving(changes, objects, Vec::new())?
        };
        self.core.make_durable(record).await.map_err(TransactionError::Failed)
    }

    /// Waits, when a decision is refused, until what the refusal says is durable: the earlier decision may not be yet.
    async fn told<T>(&self, planned: Result<T, TransactionError>) -> Result<T, TransactionError> {
        if planned.is_err() {
            self.core.make_durable(self.core.journal.last()).await.map_err(TransactionError::Failed)?;
        }
        planned
    }

    pub(crate) fn decide(&self, place: TransactionKey, decision: Decision) -> Change {
        let key = key::transaction(place, TransactionTail::Decision);
        Change::Put { key, value: decision.encode(self.core.rt.wall_ns()) }
    }
}

/// The objects that a transaction writes if it is prepared; else none.
pub(crate) fn objects_prepared(transactions: &Transactions, place: TransactionKey) -> Vec<ObjectKey> {
    let prepared = transactions.prepared(place);
    prepared.map_or_else(Vec::new, |(prepared, _)| objects_of(place, &prepared))
}

/// The objects that a prepared transaction writes.
fn objects_of((pool, container, _): TransactionKey, prepared: &Prepared) -> Vec<ObjectKey> {
    let objects = prepared.intents.iter().map(|intent| (pool, container, intent.object()));
    objects.collect::<BTreeSet<ObjectKey>>().into_iter().collect()
}

/// Whether a commit takes no more of the log and the pool than was reserved for it.
fn fits_prepared_space(prepared: &Prepared, versions: &[Version], changes: &[Change]) -> bool {
    let mut needed = PreparedSpace::of_operations(prepared, prepared.bytes);
    for version in versions {
        needed += PreparedSpace::of_version(version.encode().len());
    }
    let buffer = EditBuffer::from(changes);
    let decision = entry_bytes(DECISION_MAX, 0);
    record_len(&buffer) as u64 <= needed.record_len() && buffer.growth() <= needed.entries() + decision
}

/// The entries of a prepared transaction.
fn prepare_changes(
    place: TransactionKey,
    epoch: Epoch,
    operations: &[Operation<'_>],
    staged: &[WritePieces],
) -> Result<(Vec<Change>, PreparedSpace), UpdateError> {
    let intents: Vec<Intent> =
        operations.iter().zip(staged).map(|(operation, pieces)| intent(operation, pieces)).collect();
    let bytes = encode_operations(epoch, &intents);
    if bytes.len() > OPERATIONS_BYTES_MAX {
        let text = format!("keys and extents of a transaction have {OPERATIONS_BYTES_MAX} bytes at most");
        return Err(UpdateError::Invalid(text));
    }
    let put = |tail, value| Change::Put { key: key::transaction(place, tail), value };
    let encoded = (0..).zip(bytes.chunks(PIECE));
    let encoded = encoded.map(|(piece, bytes)| put(TransactionTail::Operations(piece), bytes.to_vec()));
    let pieces = operations.iter().zip(staged).flat_map(|(operation, pieces)| {
        let data = match operation {
            Operation::Update { data, .. } => data.bytes(),
            Operation::Punch { .. } => &[],
        };
        pieces.iter().map(move |piece| (piece, data))
    });
    let versions = (0..).zip(pieces).map(|(number, (piece, data))| {
        let mut value = Vec::new();
        piece.append_version(data, &mut value);
        put(TransactionTail::Version(number), value)
    });
    // The operations come last: a transaction whose operations are whole has all its versions.
    let changes: Vec<Change> = versions.chain(encoded).collect();
    let prepared = Prepared { epoch, intents, bytes: bytes.len() - OPERATIONS_LEN };
    let mut needed = PreparedSpace::of_operations(&prepared, prepared.bytes);
    for change in &changes[..staged.iter().map(WritePieces::len).sum()] {
        if let Change::Put { value, .. } = change {
            needed += PreparedSpace::of_version(value.len());
        }
    }
    Ok((changes, needed))
}

fn intent(operation: &Operation<'_>, pieces: &[WritePiece]) -> Intent {
    match operation {
        Operation::Punch { object, scope, .. } => Intent::Punch { object: *object, scope: scope.clone() },
        Operation::Update { object, dkey, akeys, .. } => {
            let versions = pieces.iter().map(|piece| Intended {
                akey: piece.akey,
                slot: piece.slot,
                record_size: piece.record_size,
            });
            let (object, dkey, akeys, versions) = (*object, dkey.clone(), akeys.clone(), versions.collect());
            Intent::Update { object, dkey, akeys, versions }
        }
    }
}

impl From<CommitError> for TransactionError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Malformed(malformed) => malformed.into(),
            CommitError::TooLong { .. } | CommitError::Refused(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<Malformed> for TransactionError {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(format!("its index is damaged: {malformed}"))
    }
}
