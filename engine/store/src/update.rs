//! Updates: data, and beside it or behind it one record that commits index changes and references.

use crate::attribute::AttributeChange;
use crate::checksum::Checksums;
use crate::codec::Malformed;
use crate::error::UpdateError;
use crate::incarnation::{Life, life_from};
use crate::journal::ObjectKey;
use crate::key::{self, ContainerNumber, Path, PoolNumber};
use crate::neighbours::Neighbours;
use crate::paging::Halt;
use crate::piece::{Piece, Pieces, bytes_in_blocks};
use crate::record::{Draft, Edit, growth};
use crate::reservation::Reservation;
use crate::route::Route;
use crate::shard::Shard;
use crate::space::{Purpose, RUNS_MAX, Runs};
use crate::state::{CommitError, Core};
use crate::timestamps::{Scope, hash_key, hash_object};
use crate::tree::{ENTRY_MAX, Tree};
use crate::value::{Blocks, Event, Kind, Payload};
use crate::writer::{Part, Parts, READY_BYTES, Slices, Writing, take_front};
use core::ops::Range;
use smallvec::SmallVec;
use std::rc::Rc;
use weir_media::{BLOCK, DmaBuf, MediaError, Slice};
use weir_proto::object::{AkeyUpdate, Conditions, Value, validate};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Bytes that are compared with their checksums before others run, some 50 µs, and the rest of the piece that is under way:
/// a single value is one piece, of up to 8 MiB.
const SEAL_BYTES: usize = 512 << 10;

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

/// An update as its parts need it.
pub(crate) struct Request<'a> {
    pub(crate) pool: PoolNumber,
    pub(crate) container: ContainerNumber,
    pub(crate) object: ObjectId,
    pub(crate) dkey: &'a Key,
    pub(crate) epoch: u64,
    pub(crate) conditions: Conditions,
    pub(crate) akeys: &'a [AkeyUpdate],
}

/// What became of an update's plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Whether an akey was there before.
    overwrites: bool,
    /// The first entry is that of the object, which was there before.
    renews: bool,
    /// Of so many entries, the first ones, it isn't known whether the index nodes that they belong to are in memory.
    to_reach: usize,
}

/// Conditions that an update may name.
const UPDATE_CONDITIONS: Conditions = Conditions(
    Conditions::DKEY_INSERT.0
        | Conditions::DKEY_UPDATE.0
        | Conditions::AKEY_INSERT.0
        | Conditions::AKEY_UPDATE.0
        | Conditions::PER_AKEY.0
        | Conditions::OBJECT_EXISTS.0,
);
const AKEY_CONDITIONS: Conditions = Conditions(Conditions::AKEY_INSERT.0 | Conditions::AKEY_UPDATE.0);

/// Checks that keys have the form that the object's type asks for.
pub(crate) fn check_keys<'a>(
    object: ObjectId,
    dkeys: impl IntoIterator<Item = &'a Key>,
    akeys: impl IntoIterator<Item = &'a Key>,
) -> Result<(), String> {
    let bad = |integer: bool, key: &&Key| integer && key.as_bytes().len() != 8;
    if let Some(key) = dkeys.into_iter().find(|key| bad(key::has_integer_dkeys(object), key)) {
        return Err(format!("dkeys of object {object} are integers of 8 bytes, \"{key}\" is not"));
    }
    if let Some(key) = akeys.into_iter().find(|key| bad(key::has_integer_akeys(object), key)) {
        return Err(format!("akeys of object {object} are integers of 8 bytes, \"{key}\" is not"));
    }
    Ok(())
}

/// Checks that an epoch can be that of a change.
pub(crate) fn check_epoch(epoch: Epoch) -> Result<(), UpdateError> {
    if epoch == Epoch::ZERO || epoch == Epoch::MAX {
        return Err(UpdateError::Invalid(format!("{epoch} is not the epoch of a change")));
    }
    Ok(())
}

impl Request<'_> {
    pub(crate) fn check(&self, data: &[u8]) -> Result<(), UpdateError> {
        let invalid = |text: String| UpdateError::Invalid(text);
        let len = validate(self.akeys.iter().map(|update| (&update.akey, &update.value)))
            .map_err(|error| invalid(error.to_string()))?;
        if len != data.len() as u64 {
            return Err(invalid(format!("its values have {len} bytes, but {} came", data.len())));
        }
        check_epoch(Epoch(self.epoch))?;
        let conditions = self.conditions;
        let per_akey = conditions.has(Conditions::PER_AKEY);
        let foreign = conditions.0 & !UPDATE_CONDITIONS.0 != 0;
        let both = |conditions: Conditions, insert, update| conditions.has(insert) && conditions.has(update);
        let contradiction = both(conditions, Conditions::DKEY_INSERT, Conditions::DKEY_UPDATE)
            || both(conditions, Conditions::AKEY_INSERT, Conditions::AKEY_UPDATE)
            || (per_akey && conditions.0 & AKEY_CONDITIONS.0 != 0)
            || (per_akey && self.akeys.iter().any(|update| update.conditions.0 & !AKEY_CONDITIONS.0 != 0));
        if foreign || contradiction {
            return Err(invalid(format!("conditions {:#x} make no sense for an update", conditions.0)));
        }
        check_keys(self.object, [self.dkey], self.akeys.iter().map(|update| &update.akey)).map_err(invalid)
    }

    /// Whether anything has to exist, or not to, for the update to be made.
    fn is_conditional(&self) -> bool {
        let none = Conditions::NONE.0;
        self.conditions.0 != none || self.akeys.iter().any(|update| update.conditions.0 != none)
    }

    fn place(&self) -> ObjectKey {
        (self.pool, self.container, self.object)
    }

    /// The hashes of its object and of its dkey.
    fn hashes(&self) -> (u64, u64) {
        let object = hash_object(&self.place());
        (object, hash_key(object, self.dkey))
    }

    pub(crate) fn path(&self) -> Path {
        Path::object(self.pool, self.container, self.object)
    }

    /// Checks the conditions against the index and drafts the entries that store the pieces of `data`. The object lives as
    /// `known` says, if that says anything.
    pub(crate) fn plan(
        &self,
        tree: &Tree,
        known: Option<Life>,
        (pieces, data): (&[Piece], &[u8]),
        draft: &mut Draft,
    ) -> Result<Planned, Halt<UpdateError>> {
        draft.clear();
        let mut route = Route::object(&self.place(), core::mem::take(&mut draft.spelling));
        let object = match known {
            Some(known) => known,
            None => life_from(tree, route.event(self.epoch), Life::ALWAYS)?,
        };
        if self.conditions.has(Conditions::OBJECT_EXISTS) && !object.exists {
            return Err(UpdateError::Missing(format!("object {}", self.object)).into());
        }
        self.draft_object(&mut route, object, draft);
        let of_object = draft.len();
        let renews = of_object > 0 && object.exists;
        route.go_to_dkey(self.dkey);
        let (mut neighbours, dkey) = Neighbours::of_dkey(tree, &mut route, object, self.epoch)?;
        if object.punched_at(self.epoch) || dkey.punched_at(self.epoch) {
            return Err(UpdateError::Invalid(format!("epoch {:#x} belongs to a punch", self.epoch)).into());
        }
        if self.conditions.has(Conditions::DKEY_INSERT) && dkey.exists {
            return Err(UpdateError::Exists { level: "dkey", key: self.dkey.clone() }.into());
        }
        if self.conditions.has(Conditions::DKEY_UPDATE) && !dkey.exists {
            return Err(UpdateError::Missing(format!("dkey \"{}\"", self.dkey)).into());
        }
        if !dkey.exists {
            draft.put(route.event(self.epoch), |out| Event::Dkey.append(out));
        }
        let mut overwrites = false;
        let mut pieces = pieces.iter().peekable();
        for (index, update) in self.akeys.iter().enumerate() {
            route.go_to_akey(&update.akey);
            let akey = neighbours.life(&mut route, dkey, self.epoch)?;
            self.check_akey(update, akey)?;
            overwrites |= akey.exists;
            let own = pieces.clone().take_while(|piece| piece.akey == index);
            let classes = own.filter_map(|piece| piece.slot.class()).fold(0, |all, class| all | 1 << class);
            self.draft_akey(&mut route, update, akey, classes, draft);
            while let Some(piece) = pieces.next_if(|piece| piece.akey == index) {
                let key = route.version(piece.slot, self.epoch);
                if draft.put(key, |out| piece.append_version(data, out)) > ENTRY_MAX {
                    // Only runs scattered beyond measure make an entry this large.
                    return Err(UpdateError::Fragmented(self.dkey.clone()).into());
                }
            }
        }
        // What was put together for the dkey stands in the leaf that was looked at, if that has all of the dkey.
        draft.spelling = route.into_memory();
        let to_reach = if neighbours.point() { of_object } else { draft.len() };
        Ok(Planned { overwrites, renews, to_reach })
    }

    fn draft_object(&self, route: &mut Route, object: Life, draft: &mut Draft) {
        let (at, newest) = match object.event {
            Some((_, Event::Object { newest })) if object.exists && newest >= self.epoch => return,
            Some((at, Event::Object { .. })) if object.exists => (at, self.epoch),
            _ => (self.epoch, self.epoch),
        };
        draft.put(route.event(at), |out| Event::Object { newest }.append(out));
    }

    fn draft_akey(
        &self,
        route: &mut Route,
        update: &AkeyUpdate,
        akey: Life,
        classes: u32,
        draft: &mut Draft,
    ) {
        let (kind, given) = match &update.value {
            Value::Single { .. } => (Kind::Single, 0),
            Value::Array { record_size, .. } => (Kind::Array, *record_size),
        };
        let (at, event) = match (akey.event, akey.array_or_single()) {
            (Some((at, _)), Some((_, size, old))) => {
                if (given == 0 || size == given) && old | classes == old {
                    return;
                }
                let record_size = if size == 0 { given } else { size };
                (at, Event::Akey { kind, record_size, classes: old | classes })
            }
            _ => (self.epoch, Event::Akey { kind, record_size: given, classes }),
        };
        draft.put(route.event(at), |out| event.append(out));
    }

    fn check_akey(&self, update: &AkeyUpdate, akey: Life) -> Result<(), UpdateError> {
        let per_akey = self.conditions.has(Conditions::PER_AKEY);
        let conditions = if per_akey { update.conditions } else { self.conditions };
        if akey.punched_at(self.epoch) {
            return Err(UpdateError::Invalid(format!("epoch {:#x} belongs to a punch", self.epoch)));
        }
        if conditions.has(Conditions::AKEY_INSERT) && akey.exists {
            return Err(UpdateError::Exists { level: "akey", key: update.akey.clone() });
        }
        if conditions.has(Conditions::AKEY_UPDATE) && !akey.exists {
            return Err(UpdateError::Missing(format!("akey \"{}\"", update.akey)));
        }
        let Some((stored, size, _)) = akey.array_or_single() else { return Ok(()) };
        let (kind, given) = match update.value {
            Value::Single { .. } => (Kind::Single, 0),
            Value::Array { record_size, .. } => (Kind::Array, record_size),
        };
        if kind != stored {
            let (stored, given) = (stored.name(), kind.name());
            return Err(UpdateError::Kind { akey: update.akey.clone(), stored, given });
        }
        if given != 0 && size != 0 && given != size {
            return Err(UpdateError::RecordSize { akey: update.akey.clone(), stored: size, given });
        }
        Ok(())
    }
}

/// Whether the device is told of the data before it is compared with its checksums.
pub(crate) fn is_large(pieces: &[Piece]) -> bool {
    let in_blocks = pieces.iter().filter(|piece| piece.in_blocks);
    in_blocks.map(|piece| piece.data.len()).sum::<usize>() >= READY_BYTES
}

/// Where the data of an update is that doesn't go inline.
enum Stored {
    /// On the device.
    Written(Reservation),
    /// On the way.
    Writing(Writing),
}

impl Stored {
    /// Why it will never be there.
    fn error(&self) -> Option<MediaError> {
        match self {
            Self::Written(_) => None,
            Self::Writing(writing) => writing.error(),
        }
    }

    /// A record refers to it.
    fn commit(self, record: u64) {
        match self {
            Self::Written(mut reservation) => reservation.keep(),
            Self::Writing(writing) => writing.commit(record),
        }
    }
}

/// Announces to the log that an update is writing its data.
pub(crate) struct Staging(Rc<Core>);

impl Staging {
    pub(crate) fn new(core: &Rc<Core>) -> Self {
        core.journal.begin_staging();
        Self(Rc::clone(core))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.0.journal.end_staging();
    }
}

impl Shard {
    /// Who is refused has been told something about the present state.
    pub(crate) fn note_refusal(&self, object: &ObjectKey, scope: Scope<'_>) {
        self.core.timestamps.note_glance(object, scope, self.core.newest_epoch());
    }

    /// Refuses a write that a transaction stands against: one that is prepared and writes the same, or one of a later
    /// epoch that has read or written it.
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
        if epoch < newest {
            return Err(UpdateError::Restart { epoch: Epoch(epoch), newest: Epoch(newest) });
        }
        Ok(())
    }

    /// Reserves blocks for the pieces that need them.
    fn reserve(
        &self,
        id: ContainerId,
        request: &Request<'_>,
        pieces: &mut [Piece],
    ) -> Result<Reservation, UpdateError> {
        let bytes = bytes_in_blocks(pieces);
        self.check_space(id, request.container, bytes, bytes / BLOCK as u64)?;
        let mut reservation = Reservation::of_runs(&self.core, self.number, Runs::new());
        for piece in pieces.iter_mut().filter(|piece| piece.in_blocks) {
            let count = piece.padded() / BLOCK as u64;
            let runs = self.core.space.borrow_mut().allocate(count, Purpose::Data, RUNS_MAX);
            let runs = runs.ok_or_else(|| UpdateError::Fragmented(request.dkey.clone()))?;
            reservation.extend(&runs);
            piece.payload =
                Payload::Blocks(Blocks { chunks: piece.chunks, runs, checksums: Checksums::new() });
            piece.describe();
        }
        reservation.take(bytes);
        Ok(reservation)
    }

    /// What goes to blocks.
    async fn stage(&self, pieces: &[Piece], data: &Data<'_>) -> Parts {
        let mut parts = Parts::new();
        let bytes = data.bytes();
        for piece in pieces {
            let range = piece.data.clone();
            let Payload::Blocks(blocks) = &piece.payload else { continue };
            if let Some(lone) = blocks.lone() {
                self.core.cache.insert(lone.block, lone.checksum, &bytes[range.clone()]);
            }
            let mut slices = self.slices(data, range, parts.is_empty()).await;
            if let [run] = blocks.runs.as_slice() {
                parts.push(Part { offset: self.core.layout.data(run.block), slices });
                continue;
            }
            for run in &blocks.runs {
                let slices = take_front(&mut slices, usize::try_from(run.bytes()).unwrap_or(usize::MAX));
                parts.push(Part { offset: self.core.layout.data(run.block), slices });
            }
        }
        parts
    }

    /// Block-aligned memory with these bytes of the data, zeros up to the next whole block. Only for the first piece
    /// may an update wait for the pool: behind that it may hold some, and updates that hold some would wait for each other.
    async fn slices(&self, data: &Data<'_>, range: Range<usize>, may_wait: bool) -> Slices {
        let mut slices = Slices::new();
        let mut rest = range.clone();
        if let Data::Shared(slice) = data {
            let whole = range.len() - range.len() % BLOCK;
            let head = slice.part(range.start..range.start + whole);
            if let Some(head) = head.filter(|head| whole > 0 && head.is_aligned()) {
                slices.push(head);
                rest.start += whole;
            }
        }
        if !rest.is_empty() {
            let len = rest.len();
            let dma = &self.core.dma;
            let mut copy = match dma.try_take(len) {
                Some(copy) => copy,
                None if may_wait => dma.take(len).await,
                None => DmaBuf::new(len),
            };
            copy[..len].copy_from_slice(&data.bytes()[rest]);
            copy[len..].fill(0);
            slices.push(copy.into());
        }
        slices
    }

    /// Stores values of akeys of one dkey at an epoch, all or none. Durable when it returns, and visible to readers
    /// only then. Operations on one object need distinct epochs.
    ///
    /// # Errors
    /// See [`UpdateError`]; nothing is stored then.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn update(
        &self,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &[AkeyUpdate],
        data: Data<'_>,
    ) -> Result<Epoch, UpdateError> {
        self.update_by_clock(container, object, dkey, &|| epoch, conditions, akeys, data, &[]).await
    }

    /// Like [`Shard::update`], at the epoch that `clock` gives when the update commits, after its data was written.
    /// With a clock that only grows, updates commit in the order of their epochs, so that conditions see everything
    /// that was committed before. The changes of attributes in `along` commit in the same record.
    ///
    /// # Errors
    /// See [`UpdateError`]; nothing is stored then.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn update_by_clock(
        &self,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        clock: &dyn Fn() -> Epoch,
        conditions: Conditions,
        akeys: &[AkeyUpdate],
        data: Data<'_>,
        along: &[AttributeChange],
    ) -> Result<Epoch, UpdateError> {
        let number = self.locate(container)?;
        let pool = self.number;
        let epoch = clock().0;
        let mut request = Request { pool, container: number, object, dkey, epoch, conditions, akeys };
        let hashes = request.hashes();
        self.core.timestamps.expect_write_at(hashes.1);
        let bytes = data.bytes();
        request.check(bytes)?;
        let mut pieces = Pieces::new();
        request.cut(self.core.config.inline_max(), &mut pieces)?;
        if !is_large(&pieces) {
            self.seal_all(&request, &mut pieces, bytes)?;
        }
        if !self.core.has_room() || self.core.has_failed() {
            self.core.admit().await.map_err(UpdateError::Failed)?;
        }
        let (mut stored, mut staging) = (None, None);
        if pieces.iter().any(|piece| piece.in_blocks) {
            // A condition that fails now would fail after the data was written, too, unless things change meanwhile.
            if request.is_conditional() {
                request.epoch = clock().0;
                self.check_now(&request, &pieces, bytes).await?;
            }
            staging = is_large(&pieces).then(|| Staging::new(&self.core));
            let writing = self.write_blocks(container, &request, &mut pieces, &data).await?;
            stored = Some(if staging.is_some() && !self.core.writer.hurries() {
                Stored::Written(writing.end().await?)
            } else {
                Stored::Writing(writing)
            });
        }
        let pieces = (&pieces[..], data.bytes());
        let by_clock = (&mut request, hashes, clock);
        let record = self.commit_update(container, by_clock, pieces, stored, along).await?;
        drop(staging);
        self.core.make_durable(record).await.map_err(UpdateError::Failed)?;
        Ok(Epoch(request.epoch))
    }

    /// Compares data that isn't large with its checksums.
    pub(crate) fn seal_all(
        &self,
        request: &Request<'_>,
        pieces: &mut [Piece],
        data: &[u8],
    ) -> Result<(), UpdateError> {
        let regular_only = !self.core.keeps_all_checksums();
        pieces.iter_mut().try_for_each(|piece| request.seal(piece, data, regular_only))
    }

    /// Begins to write what doesn't go inline.
    async fn begin_blocks(
        &self,
        container: ContainerId,
        request: &Request<'_>,
        pieces: &mut [Piece],
        data: &Data<'_>,
    ) -> Result<Writing, UpdateError> {
        let held = self.reserve(container, request, pieces)?;
        let parts = self.stage(pieces, data).await;
        if let Some(reason) = self.core.refusal() {
            return Err(UpdateError::Failed(reason));
        }
        Ok(self.core.writer.begin(&self.core, held, parts))
    }

    /// Begins to write what doesn't go inline. Large data is compared with its checksums while the device has it already, and
    /// others run in between: nothing refers to the blocks yet, which stay reserved until the device is done with them,
    /// whatever comes of the update.
    pub(crate) async fn write_blocks(
        &self,
        container: ContainerId,
        request: &Request<'_>,
        pieces: &mut [Piece],
        data: &Data<'_>,
    ) -> Result<Writing, UpdateError> {
        let writing = self.begin_blocks(container, request, pieces, data).await?;
        if is_large(pieces) {
            let (regular_only, mut sealed) = (!self.core.keeps_all_checksums(), 0);
            for piece in pieces {
                if sealed >= SEAL_BYTES {
                    self.core.turn().await;
                    sealed = 0;
                }
                request.seal(piece, data.bytes(), regular_only)?;
                sealed += piece.data.len();
                piece.describe();
            }
        }
        Ok(writing)
    }

    /// Checks the conditions against the present state. A failure is reported once what it saw is durable.
    async fn check_now(
        &self,
        request: &Request<'_>,
        pieces: &[Piece],
        data: &[u8],
    ) -> Result<(), UpdateError> {
        let mut draft = Draft::default();
        let checked =
            self.core.ask(|tree| request.plan(tree, None, (pieces, data), &mut draft).map(|_| ())).await;
        if checked.is_err() {
            self.note_refusal(&request.place(), Scope::Dkey(request.dkey));
            let seen = self.core.journal.touched(&(request.pool, request.container, request.object));
            self.core.make_durable(seen).await.map_err(UpdateError::Failed)?;
        }
        checked
    }

    async fn commit_update(
        &self,
        id: ContainerId,
        (request, hashes, clock): (&mut Request<'_>, (u64, u64), &dyn Fn() -> Epoch),
        pieces: (&[Piece], &[u8]),
        stored: Option<Stored>,
        along: &[AttributeChange],
    ) -> Result<u64, UpdateError> {
        let mut draft = self.core.take_draft();
        let (object, scope) = (request.place(), Scope::Dkey(request.dkey));
        let hash = hashes.0;
        let planned = self.core.ask(|tree| {
            // Asked again after nodes were read, it takes a later epoch: others may have committed meanwhile.
            request.epoch = clock().0;
            check_epoch(Epoch(request.epoch))?;
            let newest = self.core.timestamps.limit_of_write_at(hashes);
            self.check_write_above(newest, &object, scope, request.epoch)?;
            let known = self.core.lives.newest_at(tree, &object, hash, request.epoch);
            let planned = request.plan(tree, known, pieces, &mut draft)?;
            let entry = draft.edits().next().filter(|_| planned.renews);
            let address = entry.and_then(|entry| self.core.lives.address(tree, (&object, hash), entry.key));
            let to_reach = draft.edits().take(planned.to_reach).skip(usize::from(address.is_some()));
            tree.reach(to_reach.map(|edit| edit.key))?;
            Ok((planned, address))
        });
        let planned = planned.await;
        // The container may have gone while data was written or index nodes were read.
        if self.locate(id)? != request.container {
            return Err(UpdateError::ContainerMissing(id));
        }
        let (Planned { overwrites, renews, .. }, address) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                drop(stored);
                self.note_refusal(&object, scope);
                let seen = self.core.journal.touched(&object);
                self.core.make_durable(seen).await.map_err(UpdateError::Failed)?;
                return Err(error);
            }
        };
        if let Some(error) = stored.as_ref().and_then(Stored::error) {
            return Err(error.into());
        }
        let mut attributes = Vec::new();
        let mut edits = SmallVec::<[Edit<'_>; 8]>::new();
        edits.extend(draft.edits());
        if !along.is_empty() {
            self.add_attributes(along, &mut attributes);
            edits.extend(attributes.iter().map(Edit::from));
        }
        if stored.is_some() {
            self.check_quota(id, request.container, growth(&edits) + bytes_in_blocks(pieces.0))?;
        }
        self.check_space(id, request.container, growth(&edits), 0)?;
        let before = self.core.tree.borrow().version();
        let record = self.core.commit_edits(&edits, &[object], &[], address)?;
        if let Some(stored) = stored {
            stored.commit(record);
        }
        let lost = edits.first().filter(|_| renews && address.is_none()).map(|entry| entry.key);
        self.core.lives.renew(&self.core.tree.borrow(), (&object, hash), before, request.epoch, lost);
        drop(edits);
        self.core.give_back_draft(draft);
        self.core.timestamps.note_write_at(hashes, request.epoch);
        if overwrites {
            self.core.queue_for_aggregation(object, request.epoch);
        }
        Ok(record)
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
