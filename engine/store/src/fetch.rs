//! Fetches: the index says where the data is, then it is read and checked.

use crate::checksum::{join, of_zeros};
use crate::codec::Malformed;
use crate::error::FetchError;
use crate::extents::{is_hole, newest_versions, paint};
use crate::incarnation::{Life, life};
use crate::journal::ObjectKey;
use crate::key::{self, ContainerNumber, Path};
use crate::paging::{Fault, Halt};
use crate::read::{copy_inline, read_blocks};
use crate::shard::Shard;
use crate::spelling::Spelling;
use crate::state::Core;
use crate::timestamps::Scope;
use crate::tree::Tree;
use crate::update::check_keys;
use crate::value::{Blocks, Kind, Payload, Version};
use crate::walk::{self, Covering, Wanted};
use core::ops::ControlFlow;
use smallvec::SmallVec;
use std::rc::Rc;
use weir_proto::object::{AkeyFetch, Conditions, Extent, Fetched, Value, validate};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};
use weir_runtime::join_all;

/// Conditions that a fetch may name.
const FETCH_CONDITIONS: Conditions =
    Conditions(Conditions::DKEY_FETCH.0 | Conditions::AKEY_FETCH.0 | Conditions::PER_AKEY.0);

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Somebody who wants what is there now, or was at an epoch.
    Plain,
    /// A transaction: what it reads at its epoch has to stay so.
    Transaction,
}

/// What a fetch found of one akey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedAkey {
    /// Size and presence, as the reply names them; the checksums are left empty: [`Fetch::read_summed`] gives them.
    pub fetched: Fetched,
    /// Bytes this akey contributes to the data: the whole requested extents with holes as zeros, or the single value
    /// up to the size asked for; 0 when there is nothing (`fetched.size` is 0) or only the size was asked for.
    pub len: u64,
}

/// Where a part of an akey's data comes from.
#[derive(Clone, Debug)]
struct Piece {
    /// Position within the akey's data.
    at: usize,
    len: usize,
    payload: Rc<Payload>,
    /// Position within the payload.
    from: u64,
    /// The records, for an array.
    extent: Option<Extent>,
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

    /// For what was found just now, without letting others run in between.
    fn of(core: &Rc<Core>, found: &Found) -> Self {
        let has_blocks = |piece: &Piece| matches!(*piece.payload, Payload::Blocks(_));
        if found.pieces.iter().flatten().any(has_blocks) {
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
    found: Found,
}

/// What the index says of the akeys of a request.
#[derive(Default)]
struct Found {
    akeys: SmallVec<[FetchedAkey; 1]>,
    /// In the order of their position, for each akey.
    pieces: SmallVec<[Pieces; 1]>,
}

impl Found {
    /// Takes a version in that covers all that is wanted of the only akey. Returns whether it is such as it should be.
    fn take_in(&mut self, wanted: Wanted, found: &Covering<'_>) -> bool {
        let Ok(Version { payload, .. }) = Version::decode(found.value) else { return false };
        let stored = payload.len();
        let (size, present, from, len) = match (wanted, found.extent) {
            (Wanted::Records(range, size), Some(extent)) => {
                let size = u64::from(size);
                if extent.count.checked_mul(size) != Some(stored) {
                    return false;
                }
                (size, vec![range], (range.index - extent.index) * size, range.count * size)
            }
            (Wanted::Single(limit), None) => (stored, Vec::new(), 0, stored.min(limit)),
            _ => return false,
        };
        let extent = present.first().copied();
        self.pieces.push(Pieces::from_buf([Piece {
            at: 0,
            len: small(len),
            payload: Rc::new(payload),
            from,
            extent,
        }]));
        self.akeys.push(FetchedAkey { fetched: Fetched { size, present, checksums: Vec::new() }, len });
        len > 0
    }
}

/// Parts of an akey's data. Nearly always there is one.
type Pieces = SmallVec<[Piece; 1]>;

impl core::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fetch").field("akeys", &self.found.akeys).finish_non_exhaustive()
    }
}

impl From<Malformed> for FetchError {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(format!("its index is damaged: {malformed}"))
    }
}

fn small(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

impl Fetch {
    /// What was found, one entry for each akey of the request in its order.
    #[must_use]
    pub fn akeys(&self) -> &[FetchedAkey] {
        &self.found.akeys
    }

    /// Bytes of all akeys together.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.found.akeys.iter().map(|akey| akey.len).sum()
    }

    /// Reads all data, in the order of the akeys and, within one, of the extents, to the start of `into`. Holes become
    /// zeros. What is read is checked first.
    ///
    /// # Errors
    /// When the buffer is too small, the device fails, or the data is damaged; the buffer's content is then undefined.
    pub async fn read(&self, into: &mut [u8]) -> Result<(), FetchError> {
        let (needed, given) = (self.data_len(), into.len() as u64);
        if given < needed {
            return Err(FetchError::Buffer { needed, given });
        }
        self.read_all(into, &mut Sums::none()).await
    }

    /// Like [`Fetch::read`], and returns the checksums of what was read as the reply names them, for each of the akeys
    /// that were asked for. They are made of the stored ones, not of the data, see [`Fetched::checksums`]: if bytes
    /// change on their way from here on, or did so unnoticed before, the reader finds out.
    ///
    /// # Errors
    /// As [`Fetch::read`].
    pub async fn read_summed(
        &self,
        asked: &[AkeyFetch],
        into: &mut [u8],
    ) -> Result<Vec<Vec<u32>>, FetchError> {
        let (needed, given) = (self.data_len(), into.len() as u64);
        if given < needed {
            return Err(FetchError::Buffer { needed, given });
        }
        let mut sums = Sums(Some(Vec::new()));
        self.read_all(into, &mut sums).await?;
        let mut sums = sums.0.unwrap_or_default().into_iter();
        let found = self.found.akeys.iter().zip(&self.found.pieces).zip(asked);
        Ok(found.map(|((found, pieces), asked)| sum_up(&asked.value, found, pieces, &mut sums)).collect())
    }

    async fn read_all(&self, into: &mut [u8], sums: &mut Sums) -> Result<(), FetchError> {
        let mut rest = into;
        let mut reads = Vec::new();
        for (found, pieces) in self.found.akeys.iter().zip(&self.found.pieces) {
            let (akey, after) = rest.split_at_mut(small(found.len));
            fill(pieces, akey, &mut reads, sums)?;
            rest = after;
        }
        self.finish(reads, sums).await
    }

    /// Reads the data of one akey.
    ///
    /// # Errors
    /// As [`Fetch::read`]; also when there is no such akey.
    pub async fn read_akey(&self, akey: usize, into: &mut [u8]) -> Result<(), FetchError> {
        let (Some(found), Some(pieces)) = (self.found.akeys.get(akey), self.found.pieces.get(akey)) else {
            return Err(FetchError::Invalid(format!("the fetch has no akey number {akey}")));
        };
        let (needed, given) = (found.len, into.len() as u64);
        if given < needed {
            return Err(FetchError::Buffer { needed, given });
        }
        let (mut reads, mut sums) = (Vec::new(), Sums::none());
        fill(pieces, &mut into[..small(needed)], &mut reads, &mut sums)?;
        self.finish(reads, &mut sums).await
    }

    /// Reads what is in blocks, all at once.
    async fn finish(&self, mut reads: Vec<BlockRead<'_>>, sums: &mut Sums) -> Result<(), FetchError> {
        let core = &self.guard.core;
        let wants = sums.are_wanted();
        if reads.len() < 2 {
            let Some((slot, blocks, from, extent, part)) = reads.pop() else { return Ok(()) };
            let sum = read_blocks(core, blocks, from, extent, part, wants).await?;
            sums.set(slot, sum);
            return Ok(());
        }
        let reads = reads.into_iter().map(async |(slot, blocks, from, extent, part)| {
            read_blocks(core, blocks, from, extent, part, wants).await.map(|sum| (slot, sum))
        });
        for read in join_all(reads).await {
            let (slot, sum) = read?;
            sums.set(slot, sum);
        }
        Ok(())
    }
}

/// The checksums of pieces in their order, if somebody wants them.
struct Sums(Option<Vec<u32>>);

impl Sums {
    const fn none() -> Self {
        Self(None)
    }

    const fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Adds that of a piece that is known. Returns its place.
    fn push(&mut self, sum: u32) -> usize {
        self.0.as_mut().map_or(0, |sums| {
            sums.push(sum);
            sums.len() - 1
        })
    }

    fn set(&mut self, slot: usize, sum: u32) {
        if let Some(place) = self.0.as_mut().and_then(|sums| sums.get_mut(slot)) {
            *place = sum;
        }
    }
}

/// The checksums of an akey's data, one for each extent that was asked for, from those of its pieces.
fn sum_up(
    asked: &Value,
    found: &FetchedAkey,
    pieces: &[Piece],
    sums: &mut impl Iterator<Item = u32>,
) -> Vec<u32> {
    if found.len == 0 {
        return Vec::new();
    }
    let mut pieces = pieces.iter().zip(sums.by_ref()).peekable();
    let mut start = 0;
    let mut sum_range = |len: u64| {
        let (mut at, end) = (start, start + len);
        start = end;
        let mut sum = 0;
        while let Some((piece, own)) = pieces.next_if(|(piece, _)| (piece.at as u64) < end) {
            let gap = piece.at as u64 - at;
            if gap > 0 {
                sum = join(sum, of_zeros(gap), gap);
            }
            sum = join(sum, own, piece.len as u64);
            at = (piece.at + piece.len) as u64;
        }
        if at < end { join(sum, of_zeros(end - at), end - at) } else { sum }
    };
    match asked {
        Value::Single { .. } => vec![sum_range(found.len)],
        Value::Array { extents, .. } => {
            extents.iter().map(|extent| sum_range(extent.count * found.fetched.size)).collect()
        }
    }
}

/// Bytes of a value to be read from its blocks: the place of their checksum, from where in it, for which records, and
/// where they go.
type BlockRead<'a> = (usize, &'a Blocks, u64, Option<Extent>, &'a mut [u8]);

/// Puts the data of pieces in its place, zeros where there is none, and notes what has to be read.
fn fill<'a>(
    pieces: &'a [Piece],
    into: &'a mut [u8],
    reads: &mut Vec<BlockRead<'a>>,
    sums: &mut Sums,
) -> Result<(), FetchError> {
    let (mut rest, mut at) = (into, 0);
    for piece in pieces {
        let (gap, after) = rest.split_at_mut(piece.at - at);
        gap.fill(0);
        let (part, after) = after.split_at_mut(piece.len);
        match &*piece.payload {
            Payload::Hole => {
                part.fill(0);
                if sums.are_wanted() {
                    sums.push(of_zeros(part.len() as u64));
                }
            }
            Payload::Inline(inline) => {
                let sum = copy_inline(inline, piece.from, piece.extent, part, sums.are_wanted())?;
                sums.push(sum);
            }
            Payload::Blocks(blocks) => reads.push((sums.push(0), blocks, piece.from, piece.extent, part)),
        }
        rest = after;
        at = piece.at + piece.len;
    }
    rest.fill(0);
    Ok(())
}

/// What a reader asks of an akey that exists.
struct AkeyView<'a> {
    tree: &'a Tree,
    path: &'a Path,
    life: Life,
    epoch: u64,
}

impl AkeyView<'_> {
    /// The newest visible single value.
    fn single(&self) -> Result<Option<Payload>, Fault> {
        Ok(newest_single(self.tree, self.path, self.life, self.epoch)?.map(|(_, payload)| payload))
    }

    fn fetch_single(&self, wanted: u64) -> Result<(FetchedAkey, Pieces), Fault> {
        let payload = self.single()?.unwrap_or(Payload::Hole);
        let size = payload.len();
        let len = size.min(wanted);
        let fetched = Fetched { size, present: Vec::new(), checksums: Vec::new() };
        let piece = Piece { at: 0, len: small(len), payload: Rc::new(payload), from: 0, extent: None };
        Ok((FetchedAkey { fetched, len }, if len > 0 { Pieces::from_iter([piece]) } else { Pieces::new() }))
    }

    fn fetch_array(
        &self,
        record_size: u32,
        wanted: u32,
        extents: &[Extent],
        classes: u32,
    ) -> Result<(FetchedAkey, Pieces), Fault> {
        let size = u64::from(record_size);
        let (mut present, mut pieces, mut at) = (Vec::with_capacity(extents.len()), Pieces::new(), 0);
        for requested in extents {
            let mut stored =
                newest_versions(self.tree, self.path, self.life, self.epoch, *requested, classes)?;
            let mut payloads: SmallVec<[Option<Rc<Payload>>; 1]> = SmallVec::from_elem(None, stored.len());
            for part in paint(&stored, *requested) {
                let found = &mut stored[part.stored];
                if is_hole(&found.value) {
                    continue;
                }
                let joins = |last: &Extent| {
                    last.end() == part.extent.index
                        && last.index >= requested.index
                        && part.extent.index > requested.index
                };
                match present.last_mut().filter(|last| joins(last)) {
                    Some(last) => last.count += part.extent.count,
                    None => present.push(part.extent),
                }
                if wanted == 0 {
                    continue;
                }
                let payload = match &payloads[part.stored] {
                    Some(payload) => Rc::clone(payload),
                    None => Rc::new(Version::into_payload(core::mem::take(&mut found.value))?),
                };
                payloads[part.stored] = Some(Rc::clone(&payload));
                pieces.push(Piece {
                    at: small(at + (part.extent.index - requested.index) * size),
                    len: small(part.extent.count * size),
                    payload,
                    from: (part.extent.index - found.extent.index) * size,
                    extent: Some(part.extent),
                });
            }
            at += requested.count * size;
        }
        let len = if wanted == 0 { 0 } else { at };
        Ok((FetchedAkey { fetched: Fetched { size, present, checksums: Vec::new() }, len }, pieces))
    }
}

/// The newest visible single value of an akey and its epoch.
pub(crate) fn newest_single(
    tree: &Tree,
    akey: &Path,
    life: Life,
    epoch: u64,
) -> Result<Option<(u64, Payload)>, Fault> {
    let from = akey.single(epoch);
    let found = tree.scan_below(&from, from.len() - size_of::<u64>(), |rest, value| {
        ControlFlow::Break(key::epoch_from(rest).and_then(|at| match at.0 {
            at if life.shows(at, epoch) => Ok(Some((at, Version::decode(value)?.payload))),
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
    pub async fn fetch(
        &self,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        self.fetch_as(Reader::Plain, container, object, dkey, epoch, conditions, akeys).await
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
        let number = self.locate(container)?;
        if let ([akey], Conditions::NONE) = (akeys, conditions)
            && let Some(wanted) = Wanted::of(&akey.value)
        {
            let place = (self.number, number, object);
            if let Some(found) = self.walk_to(reader, &place, (dkey, &akey.akey), epoch.0, wanted)? {
                let guard = ReadGuard::of(&self.core, &found);
                // As below.
                self.see(number, object).await?;
                return Ok(Fetch { guard, found });
            }
        }
        check_fetch(object, dkey, conditions, akeys).map_err(FetchError::Invalid)?;
        let guard = ReadGuard::new(&self.core);
        let plan = |tree: &Tree| {
            let place = (self.number, number, object);
            self.begin_read(reader, &place, Scope::Dkey(dkey), epoch)?;
            self.plan_fetch(tree, reader, &place, dkey, epoch.0, conditions, akeys)
        };
        let planned = self.core.ask(plan).await;
        // What the answer rests on must not vanish in a crash.
        self.see(number, object).await?;
        Ok(Fetch { guard, found: planned? })
    }

    /// What one walk through the index finds, where that is enough; what else is to be done for a read has been done
    /// then.
    fn walk_to(
        &self,
        reader: Reader,
        place: &ObjectKey,
        (dkey, akey): (&Key, &Key),
        epoch: u64,
        wanted: Wanted,
    ) -> Result<Option<Found>, FetchError> {
        let Some(mut spelling) = Spelling::dkey(place, dkey) else { return Ok(None) };
        self.begin_read(reader, place, Scope::Dkey(dkey), Epoch(epoch))?;
        let tree = self.core.tree.borrow();
        tree.begin(0);
        let Some(life) = self.core.lives.newest(&tree, place, epoch) else { return Ok(None) };
        let mut found = Found::default();
        let is_simple = walk::covering(&tree, life, (&mut spelling, akey), epoch, wanted, |covering| {
            found.take_in(wanted, &covering)
        });
        if is_simple && reader == Reader::Plain {
            self.core.timestamps.note_glance(place, Scope::Dkey(dkey), epoch.min(life.newest()));
        }
        Ok(is_simple.then_some(found))
    }

    /// Notes that a transaction reads something, and refuses when a prepared one may be about to change it.
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
        if reader == Reader::Transaction {
            core.timestamps.note_read(object, scope, epoch.0);
        }
        Ok(())
    }

    /// Like [`Shard::begin_read`] for somebody who reads outside of transactions what may be as new as anything in the
    /// store.
    pub(crate) fn begin_glance(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: Epoch,
    ) -> Result<(), FetchError> {
        self.begin_read(Reader::Plain, object, scope, epoch)?;
        self.core.timestamps.note_glance(object, scope, epoch.0.min(self.core.newest_epoch()));
        Ok(())
    }

    /// Waits until everything that a reader of this object has seen is durable.
    pub(crate) async fn see(&self, number: ContainerNumber, object: ObjectId) -> Result<(), FetchError> {
        let seen = self.core.journal.touched(&(self.number, number, object));
        if seen <= self.core.journal.durable() {
            return Ok(());
        }
        self.core.make_durable(seen).await.map_err(FetchError::Failed)
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
    ) -> Result<Found, Halt<FetchError>> {
        let path = Path::object(place.0, place.1, place.2);
        let above = life(tree, &path, Life::ALWAYS, epoch)?;
        if reader == Reader::Plain {
            // It sees nothing newer than the newest change of the object.
            self.core.timestamps.note_glance(place, Scope::Dkey(dkey), epoch.min(above.newest()));
        }
        let dkey_path = path.dkey(dkey);
        let above = life(tree, &dkey_path, above, epoch)?;
        if conditions.has(Conditions::DKEY_FETCH) && !above.exists {
            return Err(FetchError::Missing(format!("dkey \"{dkey}\"")).into());
        }
        let mut found = Found::default();
        for fetch in akeys {
            let path = dkey_path.akey(&fetch.akey);
            let life = life(tree, &path, above, epoch)?;
            let per_akey = conditions.has(Conditions::PER_AKEY);
            let conditions = if per_akey { fetch.conditions } else { conditions };
            if conditions.has(Conditions::AKEY_FETCH) && !life.exists {
                return Err(FetchError::Missing(format!("akey \"{}\"", fetch.akey)).into());
            }
            let view = AkeyView { tree, path: &path, life, epoch };
            let (akey, pieces) = fetch_akey(&view, fetch)?;
            found.akeys.push(akey);
            found.pieces.push(pieces);
        }
        Ok(found)
    }
}

fn fetch_akey(view: &AkeyView<'_>, fetch: &AkeyFetch) -> Result<(FetchedAkey, Pieces), Halt<FetchError>> {
    let nothing = Fetched { size: 0, present: Vec::new(), checksums: Vec::new() };
    let Some((kind, record_size, classes)) = view.life.array_or_single() else {
        return Ok((FetchedAkey { fetched: nothing, len: 0 }, Pieces::new()));
    };
    match (&fetch.value, kind) {
        (Value::Single { size }, Kind::Single) => Ok(view.fetch_single(*size)?),
        // Only holes were stored: there is no record yet.
        (Value::Array { .. }, Kind::Array) if record_size == 0 => {
            Ok((FetchedAkey { fetched: nothing, len: 0 }, Pieces::new()))
        }
        (Value::Array { record_size: given, extents }, Kind::Array) => {
            if *given != 0 && *given != record_size {
                let akey = fetch.akey.clone();
                return Err(FetchError::RecordSize { akey, stored: record_size, given: *given }.into());
            }
            Ok(view.fetch_array(record_size, *given, extents, classes)?)
        }
        (value, stored) => {
            let given = if matches!(value, Value::Single { .. }) { Kind::Single } else { Kind::Array };
            Err(FetchError::Kind { akey: fetch.akey.clone(), stored: stored.name(), given: given.name() }
                .into())
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
