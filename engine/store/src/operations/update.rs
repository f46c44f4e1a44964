//! Updates: data, and beside it or behind it one record that commits index changes and references.

mod blocks;
mod pieces;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use blocks::{Staging, is_large};
pub(crate) use request::{Request, check_epoch};

use crate::format::codec::Malformed;
use crate::format::edit_buffer::EditBuffer;
use crate::format::key::ObjectKey;
use crate::format::usage::Usage;
use crate::index::existence::{Existence, existence};
use crate::index::fault::Halt;
use crate::index::tree::{Address, Tree};
use crate::operations::attribute::Along;
use crate::operations::reserve::{self, Drawable};
use crate::state::core::{CommitError, EntryAddresses};
use crate::state::error::UpdateError;
use crate::state::piece::{WritePiece, WritePieces, bytes_in_blocks};
use crate::state::shard::{QuotaCheck, Shard};
use crate::versions::timestamps::Scope;
use blocks::Stored;
use request::Planned;
use weir_media::Slice;
use weir_proto::object::{AkeyUpdate, Conditions};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, TransactionId};

/// Bytes of a version beside its inline data, at most.
pub(crate) const VERSION_OVERHEAD: usize = 20;

/// Data of an update: the values in the order of the akeys and, within one, of the extents.
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// Borrowed bytes; what doesn't go inline is copied once.
    Borrowed(&'a [u8]),
    /// Shared memory that the device reads directly where it is block-aligned (see [`Slice`]): registered buffers
    /// that a payload was pulled into. Wrap it in an `Rc` and don't reuse it before the last clone is gone.
    Shared(Slice),
}

impl Data<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(slice) => slice,
        }
    }
}

impl Shard {
    /// Notes a read for a refusal that reveals the present state. A refusal that only asks to try again reveals nothing.
    pub(crate) fn note_refusal(&self, object: &ObjectKey, scope: Scope<'_>, refusal: &UpdateError) {
        if !refusal.tells_state() {
            return;
        }
        self.core.timestamps.note_plain_read(object, scope, self.core.newest_epoch());
    }

    /// As [`Request::plan`]. Where the object is missing that an update needs, a prepared transaction that isn't its `own` may be
    /// about to create it, by whichever dkey.
    pub(crate) fn plan_update(
        &self,
        tree: &Tree,
        request: &Request<'_>,
        known: Option<&Existence>,
        pieces: (&[WritePiece], &[u8]),
        buffer: &mut EditBuffer,
        own: Option<TransactionId>,
    ) -> Result<Planned, Halt<UpdateError>> {
        let mut planned = request.plan(tree, known, pieces, buffer);
        let is_missing = matches!(planned, Err(Halt::Failed(UpdateError::Missing(_))));
        if is_missing
            && request.needs_object()
            && let Err(refusal) = self.await_object(tree, request, own)
        {
            planned = Err(refusal);
        }
        planned
    }

    /// Refuses an update whose object is missing, if a prepared transaction may be about to create it.
    #[cold]
    fn await_object(
        &self,
        tree: &Tree,
        request: &Request<'_>,
        own: Option<TransactionId>,
    ) -> Result<(), Halt<UpdateError>> {
        if existence(tree, &request.path(), Existence::ALWAYS, request.epoch)?.exists {
            return Ok(());
        }
        let transactions = self.core.transactions.borrow();
        match transactions.meets(&request.place(), Scope::Object, request.epoch, own) {
            Some((transaction, epoch)) => Err(UpdateError::Undecided { transaction, epoch }.into()),
            None => Ok(()),
        }
    }

    /// Refuses a write that conflicts with a transaction: one that is prepared and writes the same, or one of the same or a
    /// later epoch that has read or written it.
    pub(crate) fn check_write(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: u64,
    ) -> Result<(), UpdateError> {
        self.check_write_above(self.core.timestamps.limit_of_write(object, scope), object, scope, epoch)
    }

    /// As [`Shard::check_write`], where `newest` is the newest epoch of a transaction that has read or written it.
    fn check_write_above(
        &self,
        newest: u64,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: u64,
    ) -> Result<(), UpdateError> {
        if let Some((transaction, epoch)) =
            self.core.transactions.borrow().meets(object, scope, u64::MAX, None)
        {
            return Err(UpdateError::Undecided { transaction, epoch });
        }
        if epoch <= newest {
            return Err(UpdateError::Restart { epoch: Epoch(epoch), newest: Epoch(newest) });
        }
        Ok(())
    }

    /// Refuses a change that a leader of replicas has judged behind a transaction that is still prepared here: whichever of
    /// both is a punch has to be behind what it ends, and in front of what comes later.
    pub(crate) fn check_prepared(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: u64,
    ) -> Result<(), UpdateError> {
        match self.core.transactions.borrow().meets(object, scope, epoch, None) {
            Some((transaction, epoch)) => Err(UpdateError::Undecided { transaction, epoch }),
            None => Ok(()),
        }
    }

    /// Refuses a change at an epoch that its client has chosen if aggregation has removed history up to a newer epoch since the
    /// open, or is about to: hidden versions could become visible again, and merged ones would hide the change. The newest
    /// removed epoch is kept for objects that share a slot, so that a change may be refused because of another object. Epochs
    /// by a clock are newer than all of these.
    pub(crate) fn check_aggregated(&self, object: &ObjectKey, clock: Clock<'_>) -> Result<(), UpdateError> {
        let Clock::Stopped(epoch) = clock else { return Ok(()) };
        // A change newer than all others isn't aggregated, even if the client has chosen a later horizon.
        let visited = self.core.aggregation.borrow().visits_up_to(object).min(self.core.newest_epoch());
        let newest = Epoch(visited.max(self.core.timestamps.removed_up_to(object)));
        if epoch < newest {
            return Err(UpdateError::Aggregated { epoch, newest });
        }
        Ok(())
    }

    /// Stores values of akeys of one dkey at an epoch, all or none. Durable when it returns, and visible to readers
    /// only then. Operations on one object need distinct epochs. An epoch before others of the object is good as long as
    /// aggregation hasn't come there, nor to an object that shares its slot; what was aggregated before the store was opened the
    /// caller has to know.
    ///
    /// # Errors
    /// [`UpdateError::Aggregated`]: history of the object has gone up to a later epoch. Otherwise see [`UpdateError`]; nothing
    /// is stored then.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub fn update<'a>(
        &'a self,
        container: ContainerId,
        object: ObjectId,
        dkey: &'a Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &'a [AkeyUpdate],
        data: Data<'a>,
    ) -> impl Future<Output = Result<Epoch, UpdateError>> + use<'a> {
        let request = Request::new(self.number, object, dkey, conditions, akeys);
        Update::new(self, container, request, Clock::Stopped(epoch), data, &|_| Vec::new()).run()
    }

    /// Like [`Shard::update`], at the epoch that `clock` gives when the update commits, after its data was written.
    /// With a clock that only grows, updates commit in the order of their epochs, so that conditions see everything
    /// that was committed before. The changes of attributes that `along` makes for the update's epoch commit in the same record.
    ///
    /// # Errors
    /// See [`UpdateError`]; nothing is stored then.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub fn update_by_clock<'a>(
        &'a self,
        container: ContainerId,
        object: ObjectId,
        dkey: &'a Key,
        clock: &'a dyn Fn() -> Epoch,
        conditions: Conditions,
        akeys: &'a [AkeyUpdate],
        data: Data<'a>,
        along: Along<'a>,
    ) -> impl Future<Output = Result<Epoch, UpdateError>> + use<'a> {
        let request = Request::new(self.number, object, dkey, conditions, akeys);
        Update::new(self, container, request, Clock::Running(clock), data, along).run()
    }

    /// Stores what the leader of a group of replicas has stored at this epoch, without conditions, in any order with other
    /// updates, beyond the container's quota and the pool's share, and also at epochs that transactions have read or aggregation has
    /// passed. It commits if `holds` says at that moment that the leader still leads. Otherwise as [`Shard::update_by_clock`].
    ///
    /// # Errors
    /// [`UpdateError::Restart`]: the leader leads no more. Otherwise see [`UpdateError`]; nothing is stored then.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub fn update_as_replica<'a>(
        &'a self,
        container: ContainerId,
        object: ObjectId,
        dkey: &'a Key,
        (epoch, holds): (Epoch, &'a dyn Fn() -> bool),
        akeys: &'a [AkeyUpdate],
        data: Data<'a>,
        along: Along<'a>,
    ) -> impl Future<Output = Result<Epoch, UpdateError>> + use<'a> {
        let mut request = Request::new(self.number, object, dkey, Conditions::NONE, akeys);
        request.quota = QuotaCheck::Promised;
        Update::new(self, container, request, Clock::Leader(epoch, holds), data, along).run()
    }

    /// Up to which epoch a change may rely on nothing that is here, if it comes from a leader and the shard is being filled.
    pub(crate) fn apart(&self, clock: Clock<'_>) -> Option<u64> {
        if clock.is_judged() { self.core.fills.since(self.number) } else { None }
    }

    /// Compares data that isn't large with its checksums.
    pub(crate) fn seal_all(
        &self,
        request: &Request<'_>,
        pieces: &mut [WritePiece],
        data: &[u8],
    ) -> Result<(), UpdateError> {
        let regular_only = !self.core.keeps_all_checksums();
        pieces.iter_mut().try_for_each(|piece| request.seal(piece, data, regular_only))
    }
}

/// What gives a change its epoch.
#[derive(Clone, Copy)]
pub(crate) enum Clock<'a> {
    /// A fixed epoch.
    Stopped(Epoch),
    Running(&'a dyn Fn() -> Epoch),
    /// The leader of a group of replicas has chosen it. The function tells whether that one still leads.
    Leader(Epoch, &'a dyn Fn() -> bool),
}

impl Clock<'_> {
    pub(crate) fn now(self) -> Epoch {
        match self {
            Self::Stopped(epoch) | Self::Leader(epoch, _) => epoch,
            Self::Running(clock) => clock(),
        }
    }

    /// Whether the leader of a group of replicas has checked the change for conflicts.
    pub(crate) const fn is_judged(self) -> bool {
        matches!(self, Self::Leader(..))
    }

    /// Refuses what a leader has chosen that leads no more.
    pub(crate) fn check_leader(self) -> Result<(), UpdateError> {
        match self {
            Self::Leader(epoch, holds) if !holds() => Err(UpdateError::Restart { epoch, newest: Epoch::MAX }),
            _ => Ok(()),
        }
    }
}

/// An update until it is in the index.
struct Update<'a> {
    shard: &'a Shard,
    container: ContainerId,
    request: Request<'a>,
    /// Those of its object and of its dkey.
    hashes: (u64, u64),
    clock: Clock<'a>,
    data: Data<'a>,
    /// Changes of attributes that commit with it.
    along: Along<'a>,
    pieces: WritePieces,
    /// Bytes of its data that go to blocks.
    in_blocks: usize,
    /// Room that is kept for what it writes, as of its plan.
    drawables: Vec<Drawable>,
    /// Where the data is that doesn't go inline, once it has been taken there.
    stored: Option<Stored>,
    /// The refusal, once there is one.
    refusal: Option<Box<UpdateError>>,
}

impl<'a> Update<'a> {
    fn new(
        shard: &'a Shard,
        container: ContainerId,
        request: Request<'a>,
        clock: Clock<'a>,
        data: Data<'a>,
        along: Along<'a>,
    ) -> Self {
        Self {
            shard,
            container,
            request,
            hashes: (0, 0),
            clock,
            data,
            along,
            pieces: WritePieces::new(),
            in_blocks: 0,
            drawables: Vec::new(),
            stored: None,
            refusal: None,
        }
    }

    /// Makes it. Its epoch is that at which it was made.
    #[expect(
        clippy::manual_async_fn,
        reason = "it isn't moved from the arguments of the future to its locals"
    )]
    fn run(mut self) -> impl Future<Output = Result<Epoch, UpdateError>> + use<'a> {
        async move {
            let record = match self.begin()? {
                Some(record) => record,
                // Futures that may wait are boxed, so that those of updates that don't wait are small.
                None => Box::pin(self.go_on()).await?,
            };
            self.shard.core.make_durable(record).await.map_err(UpdateError::Failed)?;
            Ok(Epoch(self.request.epoch))
        }
    }

    /// Executes the part that doesn't wait. Returns the number of the record if the update is in the index then.
    fn begin(&mut self) -> Result<Option<u64>, UpdateError> {
        let Self { shard, request, pieces, data, .. } = self;
        request.container = shard.locate(self.container)?;
        request.epoch = self.clock.now().0;
        self.hashes = request.hashes();
        shard.core.timestamps.prefetch_write_at(self.hashes.1);
        let bytes = data.bytes();
        request.check(bytes)?;
        self.in_blocks = request.cut(shard.core.config.inline_max(), pieces)?;
        // What is large is compared with its checksums while the device has it already.
        if !is_large(self.in_blocks) {
            shard.seal_all(request, pieces, bytes)?;
        }
        self.commit_now()
    }

    /// Whether data has to be taken to blocks first.
    fn needs_blocks(&self) -> bool {
        self.in_blocks > 0 && self.stored.is_none()
    }

    /// Whether the store takes updates without a wait.
    #[inline]
    fn is_admitted(&self) -> bool {
        self.shard.core.has_room() && !self.shard.core.has_failed()
    }

    /// Commits it if it has to wait for nothing before. Returns the number of its record.
    fn commit_now(&mut self) -> Result<Option<u64>, UpdateError> {
        if !self.is_admitted() {
            return Ok(None);
        }
        let core = &self.shard.core;
        if self.needs_blocks() {
            if is_large(self.in_blocks) || self.request.is_conditional() {
                return Ok(None);
            }
            match core.ask_now(|tree| self.covered(tree)) {
                Ok(covered) => self.request.covered = covered,
                Err(Halt::Missing(_)) => return Ok(None),
                Err(Halt::Failed(refusal)) => return Err(refusal),
            }
            let Self { shard, container, request, pieces, data, .. } = self;
            let Some(writing) = shard.write_blocks_now(*container, request, pieces, data)? else {
                return Ok(None);
            };
            self.stored = Some(Stored::Writing(writing));
        }
        let mut buffer = core.take_edit_buffer();
        let planned = core.ask_now(|tree| self.plan(tree, &mut buffer));
        let record = match planned {
            Ok(planned) => self.commit(&mut buffer, planned).map(Some),
            Err(Halt::Missing(_)) => Ok(None),
            Err(Halt::Failed(refusal)) => {
                self.refusal = Some(Box::new(refusal));
                Ok(None)
            }
        };
        core.give_back_edit_buffer(buffer);
        record
    }

    /// Commits it once that can be done. Returns the number of its record.
    async fn go_on(&mut self) -> Result<u64, UpdateError> {
        if let Some(refusal) = self.refusal.take() {
            return Err(self.refuse(*refusal).await);
        }
        let core = &self.shard.core;
        if !self.is_admitted() {
            core.admit().await.map_err(UpdateError::Failed)?;
        }
        let mut staging = None;
        if self.needs_blocks() {
            // A condition that fails now would fail after the data was written, too, unless things change meanwhile.
            if self.request.is_conditional() {
                self.request.epoch = self.clock.now().0;
                self.check_now().await?;
            }
            self.request.covered = core.ask(|tree| self.covered(tree)).await?;
            staging = is_large(self.in_blocks).then(|| Staging::new(core));
            let Self { shard, container, request, pieces, data, .. } = self;
            let writing = shard.write_blocks(*container, request, pieces, data).await?;
            self.stored = Some(if staging.is_some() && !core.writer.hurries() {
                Stored::Written(writing.end().await?)
            } else {
                Stored::Writing(writing)
            });
        }
        let mut buffer = core.take_edit_buffer();
        let planned = core.ask(|tree| self.plan(tree, &mut buffer)).await;
        // The container may have gone while data was written or index nodes were read.
        if self.shard.locate(self.container)? != self.request.container {
            return Err(UpdateError::ContainerMissing(self.container));
        }
        let record = match planned {
            Ok(planned) => self.commit(&mut buffer, planned)?,
            Err(refusal) => return Err(self.refuse(refusal).await),
        };
        core.give_back_edit_buffer(buffer);
        drop(staging);
        Ok(record)
    }

    /// Checks the conditions against the present state. A failure is reported once what it saw is durable.
    async fn check_now(&mut self) -> Result<(), UpdateError> {
        let mut buffer = EditBuffer::default();
        let (shard, request) = (self.shard, &self.request);
        let pieces = (&self.pieces[..], self.data.bytes());
        let checked = shard
            .core
            .ask(|tree| shard.plan_update(tree, request, None, pieces, &mut buffer, None).map(|_| ()));
        match checked.await {
            Ok(()) => Ok(()),
            Err(refusal) => Err(self.refuse(refusal).await),
        }
    }

    /// Gives the update up. Returns the refusal once the records that it depends on are durable.
    async fn refuse(&mut self, refusal: UpdateError) -> UpdateError {
        self.stored = None;
        let object = self.request.place();
        self.shard.note_refusal(&object, self.request.scope_of_refusal(), &refusal);
        let seen = self.shard.core.journal.latest_record(&object);
        self.shard.core.make_durable(seen).await.map_or_else(UpdateError::Failed, |()| refusal)
    }

    /// Bytes of its data for which room is kept.
    fn covered(&self, tree: &Tree) -> Result<u64, Halt<UpdateError>> {
        if !self.shard.has_reserved(self.request.container) {
            return Ok(0);
        }
        let drawables = Drawable::of(tree, &self.request, &self.pieces)?;
        Ok(reserve::most(&drawables, bytes_in_blocks(&self.pieces)))
    }

    /// The entries that store it, at the epoch that it has now.
    fn plan(
        &mut self,
        tree: &Tree,
        buffer: &mut EditBuffer,
    ) -> Result<(Planned, Option<Address>), Halt<UpdateError>> {
        let core = &self.shard.core;
        let (object, (hash, _)) = (self.request.place(), self.hashes);
        // A plan that is repeated after nodes were read takes a later epoch: others may have committed meanwhile.
        self.request.epoch = self.clock.now().0;
        let epoch = self.request.epoch;
        check_epoch(Epoch(epoch))?;
        self.clock.check_leader()?;
        self.request.apart = self.shard.apart(self.clock);
        let scope = Scope::Dkey(self.request.dkey);
        if self.clock.is_judged() {
            self.shard.check_prepared(&object, scope, epoch)?;
        } else {
            let newest = core.timestamps.limit_of_write_at(self.hashes);
            self.shard.check_write_above(newest, &object, scope, epoch)?;
        }
        self.shard.check_aggregated(&object, self.clock)?;
        let (known, spot) = core.existences.newest(tree, &object, hash, epoch);
        let pieces = (&self.pieces[..], self.data.bytes());
        let planned = self.shard.plan_update(tree, &self.request, known.as_ref(), pieces, buffer, None)?;
        self.drawables = if self.shard.has_reserved(self.request.container) {
            Drawable::of(tree, &self.request, &self.pieces)?
        } else {
            Vec::new()
        };
        let entry = || buffer.first().map_or(&[][..], |entry| entry.key);
        let address = spot.filter(|_| planned.renews).and_then(|spot| spot.address(tree, entry));
        let reached = usize::from(address.is_some());
        if reached < planned.to_reach {
            tree.reach(buffer.edits_of(reached..planned.to_reach).map(|edit| edit.key))?;
        }
        Ok((planned, address))
    }

    /// Adds the changes of attributes that commit with it.
    #[inline(never)]
    fn add_along(&self, buffer: &mut EditBuffer) {
        let changes = (self.along)(Epoch(self.request.epoch));
        if changes.is_empty() {
            return;
        }
        let mut attributes = Vec::new();
        self.shard.add_attributes(&changes, &mut attributes);
        buffer.extend(&attributes);
    }

    /// Checks that it fits, and takes room from reservations for its records. Returns whether the container is near its quota.
    #[inline]
    fn take_space(&mut self, buffer: &mut EditBuffer) -> Result<bool, UpdateError> {
        let place = (self.container, self.request.container);
        let in_blocks = if self.stored.is_some() { bytes_in_blocks(&self.pieces) } else { 0 };
        let drawables = core::mem::take(&mut self.drawables);
        if drawables.is_empty() && self.request.covered == 0 {
            return self.shard.check_space(place, self.request.quota, (buffer.growth(), in_blocks, 0));
        }
        let taken = in_blocks.saturating_sub(self.request.covered);
        let entries = buffer.growth();
        let cost = Usage { entries, ..Usage::default() }.total().saturating_add(in_blocks);
        reserve::draw(&drawables, cost, buffer, |given| {
            let all = (entries + in_blocks).saturating_sub(given);
            let of_pool = (entries + in_blocks - taken).saturating_sub(given);
            self.shard.check_space(place, self.request.quota, (of_pool, all - of_pool, 0))
        })
    }

    /// Changes the index as was just planned. Returns the number of the record.
    fn commit(
        &mut self,
        buffer: &mut EditBuffer,
        (planned, address): (Planned, Option<Address>),
    ) -> Result<u64, UpdateError> {
        let (core, epoch) = (&self.shard.core, self.request.epoch);
        let (object, (hash, _)) = (self.request.place(), self.hashes);
        if let Some(error) = self.stored.as_ref().and_then(Stored::error) {
            return Err(error.into());
        }
        self.add_along(buffer);
        let is_near_quota = self.take_space(buffer)?;
        debug_assert!(
            self.clock.is_judged() || epoch > core.timestamps.limit_of_write_at(self.hashes),
            "epoch {epoch:#x} comes too late"
        );
        let before = core.tree.borrow().version();
        let pieces = (epoch, &self.pieces[..]);
        let mut places = EntryAddresses { object: address, behind: planned.place, pieces, are_all: false };
        let record = core.commit_edits(buffer, core::slice::from_ref(&object), &[], &mut places)?;
        if let Some(stored) = self.stored.take() {
            stored.commit(record);
        }
        let entry = planned.renews.then_some((&*buffer, &places));
        // What stands by itself may have begun another incarnation.
        if self.request.apart.is_none() {
            core.existences.renew(&core.tree.borrow(), (&object, hash), (before, epoch), entry);
        }
        core.timestamps.note_write_at(self.hashes, epoch);
        if planned.overwrites {
            self.note_hidden(is_near_quota);
        }
        Ok(record)
    }

    /// Notes that it has hidden older versions.
    #[inline(never)]
    fn note_hidden(&self, is_near_quota: bool) {
        self.shard.core.queue_for_aggregation(self.request.place(), self.request.epoch);
        if is_near_quota && matches!(self.clock, Clock::Running(_)) {
            self.shard.count_reclaimable(&self.request, &self.pieces);
        }
    }
}

impl From<CommitError> for UpdateError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::TooLong { .. } => Self::Invalid(error.to_string()),
            CommitError::Refused(reason) => Self::Failed(reason),
            CommitError::Malformed(malformed) => malformed.into(),
        }
    }
}

impl From<Malformed> for UpdateError {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(format!("its index is damaged: {malformed}"))
    }
}
