//! Fetches: the index says where the data is, then it is read and checked.

mod asked;
mod long;
mod pieces;
mod placing;
mod single_version;
#[cfg(test)]
mod tests;

use crate::format::admissible::check_keys;
use crate::format::checksum::Checksums;
use crate::format::codec::Malformed;
use crate::format::key::ObjectKey;
use crate::format::key::{self, ContainerNumber, Path};
use crate::format::size::in_memory;
use crate::format::stack_key_builder::StackKeyBuilder;
use crate::format::value::{Blocks, Payload, Version};
use crate::index::existence::{Existence, existence};
use crate::index::extents::versions_within;
use crate::index::fault::{Fault, Halt};
use crate::index::tree::Tree;
use crate::operations::direct_read::DirectTransfer;
use crate::state::core::{Core, add};
use crate::state::error::FetchError;
use crate::state::paging::Still;
use crate::state::read::Comparison;
use crate::state::shard::Shard;
use crate::versions::timestamps::{Scope, hash_key, hash_object};
use crate::versions::walk::{self, Wanted};
use asked::{Asked, Shape, nothing, shape};
use core::ops::ControlFlow;
use long::Long;
use pieces::{ReadPiece, ReadPieces, Sums, fill, finish, sum_up};
use placing::Placing;
use single_version::SingleVersion;
use smallvec::{SmallVec, smallvec};
use std::rc::Rc;
use weir_media::{ExternalBuffer, Lasting};
use weir_proto::object::{AkeyFetch, Conditions, Extent, Fetched, Value, validate};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, ReaderId};

/// Conditions that a fetch may name.
const FETCH_CONDITIONS: Conditions =
    Conditions(Conditions::DKEY_FETCH.0 | Conditions::AKEY_FETCH.0 | Conditions::PER_AKEY.0);

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A read of the newest state or of the state at an epoch, outside of transactions.
    Plain,
    /// A read by a transaction: later writes must not change what it has read at its epoch.
    Transaction(ReaderId),
}

/// The checksums of what was read: for each akey that was asked for one for each of its extents, or of its single value. Few of
/// them take no memory of their own.
pub type AkeySums = SmallVec<[Checksums; 1]>;

/// What a fetch found of one akey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedAkey {
    /// Size and presence, as the reply names them; the checksums are left empty: [`Fetch::read_summed`] gives them.
    pub fetched: Fetched,
    /// Bytes this akey contributes to the data: the whole requested extents with holes as zeros, or the single value
    /// up to the size asked for; 0 when there is nothing (`fetched.size` is 0) or only the size was asked for.
    pub len: u64,
}

/// Keeps blocks from being given out again while they may be read.
struct ReadGuard {
    core: Rc<Core>,
    /// `None`: nothing of what is read is in blocks.
    number: Option<u64>,
}

impl ReadGuard {
    fn new(core: &Rc<Core>) -> Self {
        let number = core.space.borrow_mut().begin_read();
        Self { core: Rc::clone(core), number: Some(number) }
    }

    /// For a version that was found in the same time slice.
    fn of(core: &Rc<Core>, only: &SingleVersion) -> Self {
        if only.has_blocks() {
            return Self::new(core);
        }
        Self { core: Rc::clone(core), number: None }
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let space = &mut *self.core.space.borrow_mut();
        space.end_read(number);
        space.settle(self.core.journal.durable());
    }
}

/// A fetch whose places are known and whose data can be read. What it refers to stays on the device until it is
/// dropped, so drop it soon.
pub struct Fetch {
    guard: ReadGuard,
    what: What,
}

/// Data that was read to memory of the caller without a copy.
#[derive(Debug)]
pub struct DirectRead<M> {
    /// The memory.
    pub memory: M,
    /// Where in it the data begins.
    pub start: usize,
    /// As [`Fetch::read_summed`] returns them.
    pub sums: AkeySums,
}

enum What {
    Single(SingleVersion),
    Any(Box<Any>),
}

/// A fetch of anything.
struct Any {
    found: Found,
    /// Where there are too many pieces to remember, they are found again when they are read.
    long: Option<Box<Long>>,
}

/// What the index says of the akeys of a request.
#[derive(Default)]
struct Found {
    akeys: SmallVec<[FetchedAkey; 1]>,
    /// In the order of their position, for each akey.
    pieces: SmallVec<[ReadPieces; 1]>,
}

impl core::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fetch").field("akeys", &self.akeys()).finish_non_exhaustive()
    }
}

impl From<Malformed> for FetchError {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(format!("its index is damaged: {malformed}"))
    }
}

impl Fetch {
    /// What was found, one entry for each akey of the request in its order.
    #[must_use]
    pub fn akeys(&self) -> &[FetchedAkey] {
        match &self.what {
            What::Single(only) => only.akeys(),
            What::Any(any) => &any.found.akeys,
        }
    }

    /// Bytes of all akeys together.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        match &self.what {
            What::Single(only) => only.len() as u64,
            What::Any(any) => any.found.akeys.iter().map(|akey| akey.len).sum(),
        }
    }

    /// Reads all data, in the order of the akeys and, within one, of the extents, to the start of `into`. Holes become
    /// zeros. What is read from the device is compared with its checksums first; what lies in the index only by
    /// [`Fetch::read_summed`].
    ///
    /// # Errors
    /// When the buffer is too small, the device fails, or the data is damaged; the buffer's content is then undefined.
    pub async fn read(&self, into: &mut [u8]) -> Result<(), FetchError> {
        let into = room(into, self.data_len())?;
        match &self.what {
            What::Single(only) => match only.copy(&self.guard.core, into, false) {
                Ok(copied) => copied.map(drop),
                Err(blocks) => only.read(&self.guard.core, blocks, into, None).await.map(drop),
            },
            What::Any(any) => Box::pin(any.read(&self.guard.core, into)).await,
        }
    }

    /// Like [`Fetch::read_summed`], to memory that the device itself may fill: what lies on it in whole chunks, one behind
    /// the other, as large values do, is read there and compared with its checksums, and not copied, as long as the memory
    /// has room for the blocks around it and begins at one. `comparison` says who compares; where it is the reader, nobody
    /// has, and whoever gets the memory must.
    ///
    /// # Errors
    /// As [`Fetch::read`]; the memory is gone then, with the transfers that may still fill it.
    pub async fn read_to<M: Lasting>(
        &self,
        asked: &[AkeyFetch],
        comparison: Comparison,
        mut memory: M,
    ) -> Result<DirectRead<M>, FetchError> {
        let core = &self.guard.core;
        if let Some((blocks, from, len, extent)) = self.in_blocks(asked)
            && let Some(transfer) = DirectTransfer::of(core, blocks, from, len)
            && !transfer.is_in_memory(core)
        {
            let lost = || FetchError::Failed("its memory is still with the device".to_owned());
            match ExternalBuffer::new(memory) {
                Ok(mut external) if external.room() >= transfer.room() => {
                    let sum =
                        transfer.read(core, blocks, (from, len, extent), comparison, &mut external).await?;
                    let memory = external.into_memory().ok_or_else(lost)?;
                    return Ok(DirectRead {
                        memory,
                        start: transfer.start(),
                        sums: smallvec![smallvec![sum]],
                    });
                }
                Ok(small) => memory = small.into_memory().ok_or_else(lost)?,
                Err(unaligned) => memory = unaligned,
            }
        }
        let sums = self.read_and_sum(asked, comparison, memory.bytes()).await?;
        Ok(DirectRead { memory, start: 0, sums })
    }

    /// The blocks that all of the data is in, if it is one part of one value.
    fn in_blocks(&self, asked: &[AkeyFetch]) -> Option<InBlocks<'_>> {
        match &self.what {
            What::Single(only) => only.in_blocks(),
            What::Any(any) => any.in_blocks(asked),
        }
    }

    /// Counts data that was altered in memory, where it is found. Damage on the device is counted where it is read.
    fn count(&self, error: &FetchError) {
        if matches!(error, FetchError::Altered { .. }) {
            add(&self.guard.core.counters.checksum_errors, 1);
        }
    }

    /// Like [`Fetch::read`], and returns the checksums of what was read as the reply names them, for each of the akeys
    /// that were asked for. They are made of the stored ones, not of the data, see [`Fetched::checksums`]: if bytes
    /// change on their way from here on, or did so unnoticed before, the reader finds out.
    ///
    /// # Errors
    /// As [`Fetch::read`].
    pub fn read_summed(
        &self,
        asked: &[AkeyFetch],
        into: &mut [u8],
    ) -> impl Future<Output = Result<AkeySums, FetchError>> {
        self.read_and_sum(asked, Comparison::Here, into)
    }

    /// As [`Fetch::read_summed`].
    async fn read_and_sum(
        &self,
        asked: &[AkeyFetch],
        comparison: Comparison,
        into: &mut [u8],
    ) -> Result<AkeySums, FetchError> {
        let into = room(into, self.data_len())?;
        let read = match &self.what {
            What::Single(only) => {
                let sum = match only.copy(&self.guard.core, into, true) {
                    Ok(copied) => copied,
                    Err(blocks) => only.read(&self.guard.core, blocks, into, Some(comparison)).await,
                };
                sum.map(|sum| smallvec![smallvec![sum]])
            }
            What::Any(any) => Box::pin(any.read_summed(&self.guard.core, asked, comparison, into)).await,
        };
        read.inspect_err(|error| self.count(error))
    }
}

/// As many bytes of a buffer as are needed.
fn room(into: &mut [u8], needed: u64) -> Result<&mut [u8], FetchError> {
    let given = into.len() as u64;
    into.get_mut(..in_memory(needed)).ok_or_else(|| FetchError::Buffer { needed, given })
}

/// Blocks, where in their value the bytes begin that are wanted of it, how many they are, and which records.
type InBlocks<'a> = (&'a Blocks, u64, usize, Option<Extent>);

impl Any {
    fn in_blocks(&self, asked: &[AkeyFetch]) -> Option<InBlocks<'_>> {
        let ([akey], [pieces], None) = (&self.found.akeys[..], &self.found.pieces[..], &self.long) else {
            return None;
        };
        let is_one = |value: &Value| match value {
            Value::Single { .. } => true,
            Value::Array { extents, .. } => extents.len() == 1,
        };
        if !asked.iter().all(|fetch| is_one(&fetch.value)) {
            return None;
        }
        let [ReadPiece { len, payload, from, extent, .. }] = &pieces[..] else { return None };
        match &**payload {
            Payload::Blocks(blocks) if *len as u64 == akey.len => Some((blocks, *from, *len, *extent)),
            _ => None,
        }
    }

    async fn read(&self, core: &Core, into: &mut [u8]) -> Result<(), FetchError> {
        match &self.long {
            Some(long) => long.read(core, &self.found, into, None).await.map(drop),
            None => self.read_all(core, into, &mut Sums::wanted(None)).await,
        }
    }

    async fn read_summed(
        &self,
        core: &Core,
        asked: &[AkeyFetch],
        comparison: Comparison,
        into: &mut [u8],
    ) -> Result<AkeySums, FetchError> {
        if let Some(long) = &self.long {
            return long.read(core, &self.found, into, Some(comparison)).await;
        }
        let mut sums = Sums::wanted(Some(comparison));
        self.read_all(core, into, &mut sums).await?;
        let mut sums = sums.into_all().into_iter();
        let found = self.found.akeys.iter().zip(&self.found.pieces).zip(asked);
        Ok(found.map(|((found, pieces), asked)| sum_up(&asked.value, found, pieces, &mut sums)).collect())
    }

    async fn read_all(&self, core: &Core, into: &mut [u8], sums: &mut Sums) -> Result<(), FetchError> {
        let mut rest = into;
        let mut reads = Vec::new();
        for (found, pieces) in self.found.akeys.iter().zip(&self.found.pieces) {
            let (akey, after) = rest.split_at_mut(in_memory(found.len));
            fill(pieces, akey, &mut reads, sums)?;
            rest = after;
        }
        finish(core, reads, sums).await
    }
}

/// What a reader asks of an akey that exists.
struct AkeyView<'a> {
    tree: &'a Tree,
    path: &'a Path,
    existence: Existence,
    epoch: u64,
}

impl AkeyView<'_> {
    fn fetch_single(&self, wanted: u64) -> Result<(FetchedAkey, ReadPieces), Fault> {
        let newest = newest_single(self.tree, self.path, self.existence, self.epoch)?;
        let payload = newest.map_or(Payload::Hole, |(_, payload)| payload);
        let size = payload.len();
        let len = size.min(wanted);
        let fetched = Fetched { size, present: Vec::new(), checksums: Vec::new() };
        let piece =
            ReadPiece { at: 0, len: in_memory(len), payload: Rc::new(payload), from: 0, extent: None };
        Ok((
            FetchedAkey { fetched, len },
            if len > 0 { ReadPieces::from_iter([piece]) } else { ReadPieces::new() },
        ))
    }

    /// `None`: it takes more looks at the index than are left.
    fn fetch_array(
        &self,
        record_size: u32,
        wanted: u32,
        extents: &[Extent],
        classes: u32,
        looks: &mut usize,
    ) -> Result<Option<(FetchedAkey, ReadPieces)>, Fault> {
        let size = u64::from(record_size);
        let (mut present, mut pieces, mut at) = (Vec::with_capacity(extents.len()), ReadPieces::new(), 0);
        for requested in extents {
            let found = versions_within(
                self.tree,
                self.path,
                self.existence,
                self.epoch,
                *requested,
                classes,
                looks,
            )?;
            let Some(mut stored) = found else { return Ok(None) };
            let place = Placing { requested: *requested, window: *requested, size, at };
            let into = (wanted > 0).then_some(&mut pieces);
            place.take(&mut stored, Some(&mut present), into)?;
            // Where no data is wanted, nothing bounds what is asked for.
            at += if wanted > 0 { requested.count * size } else { 0 };
        }
        let fetched = Fetched { size, present, checksums: Vec::new() };
        Ok(Some((FetchedAkey { fetched, len: at }, pieces)))
    }
}

/// The newest visible single value of an akey and its epoch.
pub(crate) fn newest_single(
    tree: &Tree,
    akey: &Path,
    existence: Existence,
    epoch: u64,
) -> Result<Option<(u64, Payload)>, Fault> {
    newest_single_as(tree, akey, existence, epoch, |value| Ok(Version::decode(value)?.payload))
}

/// The newest visible single value of an akey as `read` takes it from its encoded version, and its epoch.
pub(crate) fn newest_single_as<T>(
    tree: &Tree,
    akey: &Path,
    existence: Existence,
    epoch: u64,
    read: impl Fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Option<(u64, T)>, Fault> {
    let from = akey.single(epoch);
    let found = tree.scan_below(&from, from.len() - size_of::<u64>(), |rest, value| {
        ControlFlow::Break(key::epoch_from(rest).and_then(|at| match at.0 {
            at if existence.shows(at, epoch) => Ok(Some((at, read(value)?))),
            _ => Ok(None),
        }))
    })?;
    Ok(found.unwrap_or(Ok(None))?)
}

impl Shard {
    /// Finds values of akeys of one dkey as of an epoch ([`Epoch::MAX`]: the newest).
    ///
    /// # Errors
    /// See [`FetchError`]. A missing key is no error unless a condition says so.
    pub fn fetch<'a>(
        &'a self,
        container: ContainerId,
        object: ObjectId,
        dkey: &'a Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &'a [AkeyFetch],
    ) -> impl Future<Output = Result<Fetch, FetchError>> + use<'a> {
        self.fetch_as(Reader::Plain, container, object, dkey, epoch, conditions, akeys)
    }

    #[expect(clippy::too_many_arguments, reason = "who reads and the parts of the request")]
    pub(crate) async fn fetch_as(
        &self,
        reader: Reader,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        let place = (self.number, self.locate(container)?, object);
        // Futures that may wait are boxed, so that those of fetches that don't wait are small.
        match self.walk_to(reader, &place, dkey, epoch.0, conditions, akeys)? {
            Some(fetch) if self.is_seen(&place) => Ok(fetch),
            Some(fetch) => Box::pin(self.when_seen(place, fetch)).await,
            None => Box::pin(self.look_up(reader, &place, dkey, epoch, conditions, akeys)).await,
        }
    }

    /// Returns a fetch once the records that it has read are durable: a crash must not undo them.
    async fn when_seen(&self, place: ObjectKey, fetch: Fetch) -> Result<Fetch, FetchError> {
        self.see(place.1, place.2).await?;
        Ok(fetch)
    }

    /// A fetch of anything.
    async fn look_up(
        &self,
        reader: Reader,
        place: &ObjectKey,
        dkey: &Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        check_fetch(place.2, dkey, conditions, akeys).map_err(FetchError::Invalid)?;
        let guard = ReadGuard::new(&self.core);
        let plan = |tree: &Tree| {
            self.begin_read(reader, place, Scope::Dkey(dkey), epoch)?;
            self.plan_fetch(tree, reader, place, dkey, epoch.0, conditions, akeys)
        };
        let planned = match self.core.ask(plan).await {
            Ok(Planned::Long(still)) => {
                let object = Path::object(place.0, place.1, place.2);
                let place = (&object, &object.dkey(dkey), dkey);
                Long::plan(&self.core, still, place, epoch.0, conditions, akeys).await
            }
            Ok(Planned::Whole(found)) => Ok((found, None)),
            Err(error) => Err(error),
        };
        // As `when_seen`, also where nothing was found.
        self.see(place.1, place.2).await?;
        let (found, long) = planned?;
        Ok(Fetch { guard, what: What::Any(Box::new(Any { found, long })) })
    }

    /// The answer of a walk through the index, if the fetch is simple enough for one. The read has been noted then.
    fn walk_to(
        &self,
        reader: Reader,
        place: &ObjectKey,
        dkey: &Key,
        epoch: u64,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Option<Fetch>, FetchError> {
        let ([AkeyFetch { akey, value, .. }], Conditions::NONE) = (akeys, conditions) else {
            return Ok(None);
        };
        let mut builder = StackKeyBuilder::object(place);
        let (Some(wanted), Some(())) = (Wanted::of(value), builder.dkey(dkey)) else { return Ok(None) };
        self.begin_read(reader, place, Scope::Dkey(dkey), Epoch(epoch))?;
        let tree = self.core.tree.borrow();
        tree.begin(0);
        let hash = hash_object(place);
        let below = hash_key(hash, dkey);
        let lead = self.core.hints.lead(&tree, wanted.hash(hash_key(below, akey)));
        let Some(existence) = self.core.existences.newest_at(&tree, place, hash, epoch) else {
            return Ok(None);
        };
        if reader == Reader::Plain {
            // The read is noted before the walk, also if that has no answer and the general way notes it again: the slot is
            // fetched from memory while the walk runs.
            let newest = epoch.min(existence.newest());
            self.core.timestamps.note_plain_read_at((hash, below), newest);
        }
        Ok(walk::covering(&tree, &lead, existence, (&mut builder, akey), epoch, wanted, |covering| {
            let only = SingleVersion::of(&self.core, wanted, &covering)?;
            Some(Fetch { guard: ReadGuard::of(&self.core, &only), what: What::Single(only) })
        }))
    }

    /// Notes that a transaction reads something, and refuses when a prepared one may be about to change it.
    #[inline]
    pub(crate) fn begin_read(
        &self,
        reader: Reader,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: Epoch,
    ) -> Result<(), FetchError> {
        let core = &self.core;
        let met = core.transactions.borrow().meets(object, scope, epoch.0, None);
        if let Some((transaction, epoch)) = met {
            return Err(FetchError::Undecided { transaction, epoch });
        }
        match reader {
            Reader::Plain => Ok(()),
            Reader::Transaction(reader) => self.begin_view(object, scope, epoch, reader),
        }
    }

    /// Like [`Shard::begin_read`] for a read outside of transactions that may see changes as new as any in the store.
    pub(crate) fn begin_glance(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: Epoch,
    ) -> Result<(), FetchError> {
        self.begin_read(Reader::Plain, object, scope, epoch)?;
        self.core.timestamps.note_plain_read(object, scope, epoch.0.min(self.core.newest_epoch()));
        Ok(())
    }

    /// Waits until everything that a reader of this object has seen is durable.
    pub(crate) async fn see(&self, number: ContainerNumber, object: ObjectId) -> Result<(), FetchError> {
        let place = (self.number, number, object);
        if self.is_seen(&place) {
            return Ok(());
        }
        self.core.writer.note_reader();
        self.core.make_durable(self.core.journal.latest_record(&place)).await.map_err(FetchError::Failed)
    }

    /// Whether everything that a reader of this object has seen is durable.
    fn is_seen(&self, place: &ObjectKey) -> bool {
        self.core.journal.latest_record(place) <= self.core.journal.durable()
    }

    #[expect(clippy::too_many_arguments, reason = "the tree and the parts of the request")]
    fn plan_fetch(
        &self,
        tree: &Tree,
        reader: Reader,
        place: &ObjectKey,
        dkey: &Key,
        epoch: u64,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Planned, Halt<FetchError>> {
        let path = Path::object(place.0, place.1, place.2);
        let above = existence(tree, &path, Existence::ALWAYS, epoch)?;
        if reader == Reader::Plain {
            // It sees nothing newer than the newest change of the object.
            self.core.timestamps.note_plain_read(place, Scope::Dkey(dkey), epoch.min(above.newest()));
        }
        let asked = Asked { name: dkey, dkey: &path.dkey(dkey), above, epoch, conditions };
        let above = asked.dkey(tree)?;
        let (mut found, mut looks) = (Found::default(), self.core.config.fetch_looks.max(1));
        for fetch in akeys {
            let (path, existence) = asked.akey(tree, above, fetch)?;
            let view = AkeyView { tree, path: &path, existence, epoch };
            let Some((akey, pieces)) = fetch_akey(&view, fetch, &mut looks)? else {
                return Ok(Planned::Long(Still::new(&self.core, tree)));
            };
            found.akeys.push(akey);
            found.pieces.push(pieces);
        }
        Ok(Planned::Whole(found))
    }
}

/// A fetch after its first time slice.
enum Planned {
    Whole(Found),
    /// It takes more time slices, in which the index has to stay as it is.
    Long(Still),
}

/// `None`: it takes more looks at the index than are left.
fn fetch_akey(
    view: &AkeyView<'_>,
    fetch: &AkeyFetch,
    looks: &mut usize,
) -> Result<Option<(FetchedAkey, ReadPieces)>, Halt<FetchError>> {
    match shape(view.existence, fetch)? {
        Shape::Nothing => Ok(Some(nothing())),
        Shape::Single(size) => Ok(Some(view.fetch_single(size)?)),
        Shape::Array(size, given, extents, classes) => {
            Ok(view.fetch_array(size, given, extents, classes, looks)?)
        }
    }
}

fn check_fetch(
    object: ObjectId,
    dkey: &Key,
    conditions: Conditions,
    akeys: &[AkeyFetch],
) -> Result<(), String> {
    // A single value's size is only the most that is wanted, so it doesn't count towards the payload.
    const SINGLE: &Value = &Value::Single { size: 0 };
    let bounded = akeys.iter().map(|fetch| match &fetch.value {
        Value::Single { .. } => (&fetch.akey, SINGLE),
        array @ Value::Array { .. } => (&fetch.akey, array),
    });
    validate(bounded).map_err(|error| error.to_string())?;
    let per_akey = conditions.has(Conditions::PER_AKEY);
    let stray = akeys.iter().any(|fetch| fetch.conditions.0 & !Conditions::AKEY_FETCH.0 != 0);
    if conditions.0 & !FETCH_CONDITIONS.0 != 0
        || (per_akey && (conditions.has(Conditions::AKEY_FETCH) || stray))
    {
        return Err(format!("conditions {:#x} make no sense for a fetch", conditions.0));
    }
    check_keys(object, [dkey], akeys.iter().map(|fetch| &fetch.akey))
}

/// A guard for readers outside this file.
pub(crate) fn hold_blocks(core: &Rc<Core>) -> impl Drop + use<> {
    ReadGuard::new(core)
}
