//! Transactions that were prepared, and what became of others.
//!
//! A prepared transaction is stored in the index: its operations in pieces, and the versions that it will store, each
//! as an entry of its own, so that their blocks are accounted for like those of other versions. This table follows the
//! index as the catalog does, so it is the same after a restart. Whoever wants to read or write what a prepared
//! transaction writes finds that out here.

use crate::format::admissible::check_keys;
use crate::format::admissible::check_scope;
use crate::format::codec::{Decoder, Encode, Malformed};
use crate::format::decision::Decision;
use crate::format::key::ObjectKey;
use crate::format::key::TransactionKey;
use crate::format::key::{self, ContainerNumber, PoolNumber, TransactionTail};
use crate::format::record::Change;
use crate::format::value::{Payload, Version};
use crate::versions::prepared_space::{PreparedSpace, PreparedSpaces};
use crate::versions::timestamps::Scope;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use uuid::Uuid;
use weir_proto::limits::AKEYS_MAX;
use weir_proto::object::{AkeyUpdate, Conditions, Extent, PunchScope, Value};
use weir_proto::{Epoch, Key, ObjectId, TransactionId};

/// Most bytes of a transaction's operations without their data: sixteen index entries.
pub(crate) const OPERATIONS_BYTES_MAX: usize = 64 * 1024;

/// Bytes of operations in one index entry.
pub(crate) const PIECE: usize = 4096;

/// Most operations of one transaction on one target: more would not fit [`OPERATIONS_BYTES_MAX`] with usual keys.
pub(crate) const OPERATIONS_MAX: usize = 1024;

/// Where a version goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Single,
    Extent(Extent),
}

impl Slot {
    /// Length class of an extent.
    pub(crate) fn class(self) -> Option<u8> {
        match self {
            Self::Single => None,
            Self::Extent(extent) => Some(key::length_class(extent.count)),
        }
    }
}

/// A version that an operation stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intended {
    /// Index of the akey in the operation.
    pub(crate) akey: usize,
    pub(crate) slot: Slot,
    pub(crate) record_size: u32,
}

/// One operation of a transaction, without the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Update {
        object: ObjectId,
        dkey: Key,
        /// Kind and record size of each akey count; extents, conditions and checksums are left out.
        akeys: Vec<AkeyUpdate>,
        versions: Vec<Intended>,
    },
    Punch {
        object: ObjectId,
        scope: PunchScope,
    },
}

impl Intended {
    /// Whether a version can go there: what is read back of it later is what a sound store has.
    fn takes(&self, version: &Version) -> bool {
        match (self.slot, &version.payload) {
            (Slot::Single, _) => version.record_size == 0,
            (Slot::Extent(_), Payload::Hole) => true,
            (Slot::Extent(extent), payload) => {
                extent.count.checked_mul(u64::from(self.record_size)) == Some(payload.len())
            }
        }
    }
}

impl Intent {
    pub(crate) fn object(&self) -> ObjectId {
        match self {
            Self::Update { object, .. } | Self::Punch { object, .. } => *object,
        }
    }

    /// What is written.
    pub(crate) fn scopes(&self) -> Vec<Scope<'_>> {
        match self {
            Self::Update { dkey, .. } => vec![Scope::Dkey(dkey)],
            Self::Punch { scope, .. } => scopes_of_punch(scope),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let put_key = |out: &mut Vec<u8>, key: &Key| {
            out.put_varint(key.as_bytes().len() as u64);
            out.extend_from_slice(key.as_bytes());
        };
        let put_keys = |out: &mut Vec<u8>, keys: &[Key]| {
            out.put_varint(keys.len() as u64);
            for key in keys {
                put_key(out, key);
            }
        };
        match self {
            Self::Update { object, dkey, akeys, versions } => {
                out.put_u8(1);
                out.extend_from_slice(&object.to_bytes());
                put_key(out, dkey);
                out.put_varint(akeys.len() as u64);
                for update in akeys {
                    put_key(out, &update.akey);
                    match update.value {
                        Value::Single { .. } => out.put_varint(0),
                        Value::Array { record_size, .. } => out.put_varint(1 + u64::from(record_size)),
                    }
                }
                out.put_varint(versions.len() as u64);
                for version in versions {
                    out.put_varint(version.akey as u64);
                    out.put_varint(u64::from(version.record_size));
                    if let Slot::Extent(extent) = version.slot {
                        out.put_varint(extent.count);
                        out.put_varint(extent.index);
                    } else {
                        out.put_varint(0);
                    }
                }
            }
            Self::Punch { object, scope } => {
                out.put_u8(2);
                out.extend_from_slice(&object.to_bytes());
                match scope {
                    PunchScope::Object => out.put_u8(0),
                    PunchScope::Dkeys(dkeys) => {
                        out.put_u8(1);
                        put_keys(out, dkeys);
                    }
                    PunchScope::DkeyWith(dkey, _) => {
                        // That the akeys exist was found out already.
                        out.put_u8(1);
                        put_keys(out, core::slice::from_ref(dkey));
                    }
                    PunchScope::Akeys(dkey, akeys) => {
                        out.put_u8(2);
                        put_key(out, dkey);
                        put_keys(out, akeys);
                    }
                }
            }
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let tag = decoder.u8()?;
        let object = ObjectId::from_bytes(decoder.array()?);
        match tag {
            1 => {
                let dkey = take_key(decoder)?;
                let mut akeys = Vec::new();
                for _ in 0..decoder.count(AKEYS_MAX)? {
                    akeys.push(take_akey(decoder)?);
                }
                let mut versions = Vec::new();
                for _ in 0..decoder.count(OPERATIONS_BYTES_MAX)? {
                    versions.push(take_intended(decoder, &akeys)?);
                }
                if !versions.is_sorted_by_key(|version| version.akey) {
                    return Err(Malformed("versions are in another order than their akeys"));
                }
                check_keys(object, [&dkey], akeys.iter().map(|update| &update.akey)).map_err(|_| KEY)?;
                Ok(Self::Update { object, dkey, akeys, versions })
            }
            2 => {
                let scope = match decoder.u8()? {
                    0 => PunchScope::Object,
                    1 => PunchScope::Dkeys(take_keys(decoder)?),
                    2 => PunchScope::Akeys(take_key(decoder)?, take_keys(decoder)?),
                    _ => return Err(Malformed("a punch is of unknown kind")),
                };
                check_scope(object, &scope).map_err(|_| KEY)?;
                Ok(Self::Punch { object, scope })
            }
            _ => Err(Malformed("an operation is of unknown kind")),
        }
    }
}

/// What a key is that objects of its kind don't have.
const KEY: Malformed = Malformed("a key is none of its object");

fn take_key(decoder: &mut Decoder<'_>) -> Result<Key, Malformed> {
    let len = decoder.count(OPERATIONS_BYTES_MAX)?;
    Key::new(decoder.bytes(len)?).map_err(|_| Malformed("a key has an impossible length"))
}

fn take_keys(decoder: &mut Decoder<'_>) -> Result<Vec<Key>, Malformed> {
    (0..decoder.count(AKEYS_MAX)?).map(|_| take_key(decoder)).collect()
}

fn take_small(decoder: &mut Decoder<'_>) -> Result<u32, Malformed> {
    u32::try_from(decoder.varint()?).map_err(|_| Malformed("a record size is too large"))
}

fn take_akey(decoder: &mut Decoder<'_>) -> Result<AkeyUpdate, Malformed> {
    let akey = take_key(decoder)?;
    let value = match decoder.varint()? {
        0 => Value::Single { size: 0 },
        more => {
            let record_size = u32::try_from(more - 1).map_err(|_| Malformed("a record size is too large"))?;
            Value::Array { record_size, extents: Vec::new() }
        }
    };
    Ok(AkeyUpdate { akey, value, conditions: Conditions::NONE, checksums: Vec::new() })
}

fn take_intended(decoder: &mut Decoder<'_>, akeys: &[AkeyUpdate]) -> Result<Intended, Malformed> {
    let akey = decoder.count(akeys.len().saturating_sub(1))?;
    let record_size = take_small(decoder)?;
    let slot = match decoder.varint()? {
        0 => Slot::Single,
        count => Slot::Extent(Extent { count, index: decoder.varint()? }),
    };
    if matches!(slot, Slot::Extent(extent) if extent.index.checked_add(extent.count).is_none()) {
        return Err(Malformed("an extent reaches too far"));
    }
    let fits = match akeys.get(akey).map(|update| &update.value) {
        Some(Value::Single { .. }) => slot == Slot::Single && record_size == 0,
        Some(Value::Array { .. }) => slot != Slot::Single,
        None => false,
    };
    if fits {
        Ok(Intended { akey, slot, record_size })
    } else {
        Err(Malformed("a version is none of its akey"))
    }
}

/// What a punch writes.
pub(crate) fn scopes_of_punch(scope: &PunchScope) -> Vec<Scope<'_>> {
    match scope {
        PunchScope::Object => vec![Scope::Object],
        PunchScope::Dkeys(dkeys) => dkeys.iter().map(Scope::Dkey).collect(),
        PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => vec![Scope::Dkey(dkey)],
    }
}

/// Bytes of the length before the stored form of operations.
pub(crate) const OPERATIONS_LEN: usize = size_of::<u32>();

/// The stored form of a transaction's operations.
pub(crate) fn encode_operations(epoch: Epoch, intents: &[Intent]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(epoch.0);
    body.put_varint(intents.len() as u64);
    for intent in intents {
        intent.encode(&mut body);
    }
    let mut out = Vec::with_capacity(4 + body.len());
    out.put_u32(u32::try_from(body.len()).expect("invariant: a request has at most a message's bytes"));
    out.extend_from_slice(&body);
    out
}

/// A transaction that awaits its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) epoch: Epoch,
    pub(crate) intents: Vec<Intent>,
    /// Bytes of the operations as they are stored.
    pub(crate) bytes: usize,
}

impl Prepared {
    /// Whether these are the versions that it stores.
    pub(crate) fn fits<'a>(&self, versions: impl IntoIterator<Item = &'a Version>) -> bool {
        let intended = self.intents.iter().flat_map(|intent| match intent {
            Intent::Update { versions, .. } => versions.as_slice(),
            Intent::Punch { .. } => &[],
        });
        let (mut intended, mut versions) = (intended, versions.into_iter());
        loop {
            match (intended.next(), versions.next()) {
                (None, None) => return true,
                (Some(intended), Some(version)) if intended.takes(version) => {}
                _ => return false,
            }
        }
    }
}

fn decode_operations(bytes: &[u8]) -> Result<Option<Prepared>, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let Ok(len) = decoder.u32() else { return Ok(None) };
    if len as usize > OPERATIONS_BYTES_MAX {
        return Err(Malformed("a transaction is too long"));
    }
    let body = decoder.rest();
    if body.len() < len as usize {
        return Ok(None);
    }
    let mut decoder = Decoder::new(&body[..len as usize]);
    let epoch = Epoch(decoder.u64()?);
    let count = decoder.count(OPERATIONS_MAX)?;
    let intents: Result<Vec<Intent>, Malformed> = (0..count).map(|_| Intent::decode(&mut decoder)).collect();
    Ok(Some(Prepared { epoch, intents: intents?, bytes: len as usize }))
}

/// A prepared transaction, oldest epoch first.
type Who = (Epoch, TransactionId);

/// Sorts before every other one.
const FIRST: Who = (Epoch(0), TransactionId(Uuid::nil()));

/// Memory that an entry of the index takes beside its value, at most.
const ENTRY_BYTES: usize = 128;

/// Memory that operations take at most, as a multiple of what they take in the index: a dkey of one byte, which takes two
/// there, is in the operation and in the list of all that are written.
const OPERATIONS_TIMES: usize = 96;

/// What is known of a transaction.
#[derive(Clone, Debug, Default)]
struct Entry {
    /// Pieces of the operations, in their order.
    pieces: BTreeMap<u16, Vec<u8>>,
    /// Versions to be stored, with their bytes.
    versions: BTreeMap<u32, (Version, usize)>,
    prepared: Option<Rc<Prepared>>,
    decision: Option<(Decision, u64)>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.versions.is_empty() && self.decision.is_none()
    }
}

/// The prepared transactions of a store, and the decisions that it remembers.
#[derive(Clone, Debug, Default)]
pub struct Transactions {
    entries: BTreeMap<TransactionKey, Entry>,
    /// Prepared transactions by their containers.
    undecided: BTreeSet<((PoolNumber, ContainerNumber), Who)>,
    /// By the objects that they write.
    objects: BTreeSet<(ObjectKey, Who)>,
    /// By the dkeys that they write; `None`: the object as a whole.
    dkeys: BTreeSet<(ObjectKey, Option<Key>, Who)>,
    /// Decisions in the order of their time.
    decided: BTreeSet<(u64, TransactionKey)>,
    /// The newest time of those that were forgotten, before the open, too: fewer are left than are kept when their containers
    /// go.
    forgotten: u64,
    /// Space that is set aside for commits.
    pub(crate) prepared_spaces: PreparedSpaces,
    /// Upper bound of the memory of all of these.
    bytes: usize,
    /// Containers of whose transactions it has none.
    left_out: BTreeSet<(PoolNumber, ContainerNumber)>,
}

impl Transactions {
    /// A table without transactions of these containers.
    pub(crate) fn without(left_out: BTreeSet<(PoolNumber, ContainerNumber)>) -> Self {
        Self { left_out, ..Self::default() }
    }

    /// Follows a change of the index, if it concerns a transaction.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn follow(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Malformed> {
        if key.first() != Some(&key::TRANSACTION) {
            return Ok(());
        }
        let (place, tail) = key::transaction_from(key)?;
        if self.left_out.contains(&(place.0, place.1)) {
            return Ok(());
        }
        let entry = self.entries.entry(place).or_default();
        match (tail, value) {
            (TransactionTail::Operations(piece), _) if usize::from(piece) > OPERATIONS_BYTES_MAX / PIECE => {
                return Err(Malformed("a transaction has too many pieces"));
            }
            (TransactionTail::Operations(piece), Some(value)) => {
                self.bytes += ENTRY_BYTES + value.len();
                if let Some(gone) = entry.pieces.insert(piece, value.to_vec()) {
                    self.bytes -= ENTRY_BYTES + gone.len();
                }
                // While a destroyed container is being removed, the first pieces may be gone: the others are ignored.
                let front = (0..).zip(&entry.pieces).take_while(|(number, (piece, _))| number == *piece);
                let bytes: Vec<u8> = front.flat_map(|(_, (_, bytes))| bytes).copied().collect();
                let prepared = decode_operations(&bytes)?.map(Rc::new);
                let before = core::mem::replace(&mut entry.prepared, prepared.clone());
                self.strike(place, before.as_deref());
                self.register(place, prepared.as_deref());
            }
            (TransactionTail::Operations(piece), None) => {
                if let Some(gone) = entry.pieces.remove(&piece) {
                    self.bytes -= ENTRY_BYTES + gone.len();
                }
                let before = entry.prepared.take();
                self.strike(place, before.as_deref());
            }
            (TransactionTail::Version(number), value) => {
                let decode = |value: &[u8]| Ok::<_, Malformed>((Version::decode(value)?, value.len()));
                let version = value.map(decode).transpose()?;
                let len = |version: &(Version, usize)| PreparedSpace::of_version(version.1);
                let owner = (place.0, place.1);
                if let Some(gone) = entry.versions.remove(&number) {
                    self.prepared_spaces.take_back(owner, len(&gone));
                    self.bytes -= ENTRY_BYTES + gone.1;
                }
                if let Some(version) = version {
                    self.prepared_spaces.give(owner, len(&version));
                    self.bytes += ENTRY_BYTES + version.1;
                    entry.versions.insert(number, version);
                }
            }
            (TransactionTail::Decision, value) => {
                let decision = value.map(Decision::decode).transpose()?;
                self.bytes += decision.map_or(0, |_| ENTRY_BYTES);
                if let Some((_, time)) = core::mem::replace(&mut entry.decision, decision) {
                    self.bytes -= ENTRY_BYTES;
                    self.decided.remove(&(time, place));
                }
                self.decided.extend(decision.map(|(_, time)| (time, place)));
            }
        }
        if self.entries.get(&place).is_some_and(Entry::is_empty) {
            self.entries.remove(&place);
        }
        Ok(())
    }

    /// Memory that they take at most.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    fn register(&mut self, (pool, container, id): TransactionKey, prepared: Option<&Prepared>) {
        let Some(prepared @ Prepared { epoch, intents, bytes }) = prepared else { return };
        let who = (*epoch, id);
        self.bytes += bytes * OPERATIONS_TIMES;
        self.prepared_spaces.give((pool, container), PreparedSpace::of_operations(prepared, *bytes));
        self.undecided.insert(((pool, container), who));
        for intent in intents {
            let object = (pool, container, intent.object());
            self.objects.insert((object, who));
            self.dkeys.extend(intent.scopes().into_iter().map(|scope| (object, dkey_of(scope), who)));
        }
    }

    fn strike(&mut self, (pool, container, id): TransactionKey, prepared: Option<&Prepared>) {
        let Some(prepared @ Prepared { epoch, intents, bytes }) = prepared else { return };
        let who = (*epoch, id);
        self.bytes -= bytes * OPERATIONS_TIMES;
        self.prepared_spaces.take_back((pool, container), PreparedSpace::of_operations(prepared, *bytes));
        self.undecided.remove(&((pool, container), who));
        for intent in intents {
            let object = (pool, container, intent.object());
            self.objects.remove(&(object, who));
            for scope in intent.scopes() {
                self.dkeys.remove(&(object, dkey_of(scope), who));
            }
        }
    }

    /// A transaction that awaits its decision, with the versions that it stores.
    pub(crate) fn prepared(&self, place: TransactionKey) -> Option<(Rc<Prepared>, Vec<Version>)> {
        let entry = self.entries.get(&place)?;
        let versions = entry.versions.values().map(|(version, _)| version.clone());
        Some((Rc::clone(entry.prepared.as_ref()?), versions.collect()))
    }

    /// Whether a transaction awaits its decision.
    pub(crate) fn is_prepared(&self, place: TransactionKey) -> bool {
        self.entries.get(&place).is_some_and(|entry| entry.prepared.is_some())
    }

    /// Prepared transactions that no store leaves so, but in a container that is being destroyed, each with what is wrong.
    pub fn misfits(&self) -> impl Iterator<Item = (TransactionKey, &'static str)> {
        let misfit = |entry: &Entry| {
            let Some(prepared) = entry.prepared.as_ref() else {
                let is_left = !entry.pieces.is_empty() || !entry.versions.is_empty();
                return is_left.then_some("some of its operations are missing, so that nobody can commit it");
            };
            let versions = entry.versions.values().map(|(version, _)| version);
            if !prepared.fits(versions) {
                return Some("its versions are not those that its operations store");
            }
            entry.decision.map(|_| "it is decided, and prepared as if it weren't")
        };
        self.entries.iter().filter_map(move |(place, entry)| Some((*place, misfit(entry)?)))
    }

    /// What became of a transaction, as far as it is still known.
    pub(crate) fn decision(&self, place: TransactionKey) -> Option<Decision> {
        self.entries.get(&place)?.decision.map(|(decision, _)| decision)
    }

    /// Transactions of a container from an id on, up to so many: those that are prepared with their epochs, and others with their
    /// decisions.
    pub(crate) fn known(
        &self,
        (pool, container): (PoolNumber, ContainerNumber),
        from: Option<TransactionId>,
        most: usize,
    ) -> Vec<(TransactionId, Result<Epoch, Decision>)> {
        let first = from.unwrap_or(FIRST.1);
        let of_container = self.entries.range((pool, container, first)..);
        let of_container = of_container.take_while(|(place, _)| (place.0, place.1) == (pool, container));
        let known = of_container.filter_map(|(place, entry)| {
            let decided = entry.decision.map(|(decision, _)| Err(decision));
            let prepared = entry.prepared.as_ref().map(|prepared| Ok(prepared.epoch));
            Some((place.2, decided.or(prepared)?))
        });
        known.take(most).collect()
    }

    /// The changes that remove all entries of a prepared transaction.
    pub(crate) fn removals(&self, place: TransactionKey) -> Vec<Change> {
        let Some(entry) = self.entries.get(&place) else { return Vec::new() };
        let operations = entry.pieces.keys().map(|piece| TransactionTail::Operations(*piece));
        let versions = entry.versions.keys().map(|number| TransactionTail::Version(*number));
        operations.chain(versions).map(|tail| Change::Remove { key: key::transaction(place, tail) }).collect()
    }

    /// Prepared transactions of a pool's container, oldest epoch first.
    pub(crate) fn undecided(
        &self,
        pool: PoolNumber,
        container: ContainerNumber,
    ) -> Vec<(TransactionId, Epoch)> {
        let place = (pool, container);
        let of_container = self.undecided.range((place, FIRST)..).take_while(|(found, _)| *found == place);
        of_container.map(|(_, (epoch, id))| (*id, *epoch)).collect()
    }

    /// A prepared transaction other than `own` of up to this epoch that writes what `scope` names.
    pub(crate) fn meets(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: u64,
        own: Option<TransactionId>,
    ) -> Option<(TransactionId, Epoch)> {
        // Most of the time there are none.
        if self.objects.is_empty() {
            return None;
        }
        let is_other = |who: &Who| Some(who.1) != own;
        // Transactions of later epochs don't conflict, and sort behind the others.
        let found = match scope {
            Scope::Object => {
                let of_object = self.objects.range((*object, FIRST)..);
                let of_object = of_object.take_while(|(found, who)| found == object && who.0.0 <= epoch);
                of_object.map(|(_, who)| *who).find(is_other)
            }
            Scope::Dkey(dkey) => [None, Some(dkey.clone())].into_iter().find_map(|dkey| {
                let first = (*object, dkey, FIRST);
                let of_dkey = self
                    .dkeys
                    .range(&first..)
                    .take_while(|(found, at, who)| (found, at) == (&first.0, &first.1) && who.0.0 <= epoch);
                of_dkey.map(|(.., who)| *who).find(is_other)
            }),
        };
        found.map(|(epoch, id)| (id, epoch))
    }

    /// How many prepared transactions await their decision, and the epoch of the oldest.
    pub(crate) fn waiting(&self) -> (u64, Option<Epoch>) {
        (self.undecided.len() as u64, self.undecided.iter().map(|(_, (epoch, _))| *epoch).min())
    }

    /// The newest epoch of those that await their decision.
    pub(crate) fn newest(&self) -> Option<Epoch> {
        self.undecided.iter().map(|(_, (epoch, _))| *epoch).max()
    }

    /// A prepared transaction of up to this epoch that writes any object of a container.
    pub(crate) fn meets_any(
        &self,
        pool: PoolNumber,
        container: ContainerNumber,
        epoch: u64,
    ) -> Option<(TransactionId, Epoch)> {
        let place = (pool, container);
        let (_, (at, id)) =
            self.undecided.range((place, FIRST)..).next().filter(|(found, _)| *found == place)?;
        (at.0 <= epoch).then_some((*id, *at))
    }

    /// Up to `limit` decisions that were made before this time, and as many more as exceed `kept`.
    pub(crate) fn old_decisions(&self, before_ns: u64, kept: usize, limit: usize) -> Vec<Vec<u8>> {
        let surplus = self.decided.len().saturating_sub(kept);
        let old = self.decided.iter().enumerate();
        let old = old.take_while(|(at, (time, _))| *at < surplus || *time < before_ns).take(limit);
        old.map(|(_, (_, place))| key::transaction(*place, TransactionTail::Decision)).collect()
    }

    /// Those of these entries that are decisions are about to be forgotten. `is_asked_for`: whether a container is there, so that
    /// somebody may come back to its decisions.
    pub(crate) fn note_forgotten(
        &mut self,
        keys: &[Vec<u8>],
        is_asked_for: impl Fn((PoolNumber, ContainerNumber)) -> bool,
    ) {
        let keys = keys.iter().filter(|key| key.first() == Some(&key::TRANSACTION));
        let places = keys.filter_map(|key| match key::transaction_from(key) {
            Ok((place, TransactionTail::Decision)) => {
                Some(place).filter(|place| is_asked_for((place.0, place.1)))
            }
            _ => None,
        });
        let times = places.filter_map(|place| Some(self.entries.get(&place)?.decision?.1));
        self.forgotten = times.fold(self.forgotten, u64::max);
    }

    /// The newest time of decisions that were forgotten.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Sets the newest time of decisions that were forgotten before the open.
    pub(crate) const fn set_forgotten(&mut self, newest: u64) {
        self.forgotten = newest;
    }

    /// The newest time of decisions that may be forgotten, where [`Transactions::old_decisions`] is given these bounds.
    pub(crate) fn forgotten_until(&self, before_ns: u64, kept: usize) -> u64 {
        let surplus = self.decided.first().filter(|_| self.decided.len() >= kept);
        surplus.map_or(before_ns, |(time, _)| before_ns.max(*time)).max(self.forgotten)
    }
}

/// The dkey, unless it is all of the object.
fn dkey_of(scope: Scope<'_>) -> Option<Key> {
    match scope {
        Scope::Dkey(dkey) => Some(dkey.clone()),
        Scope::Object => None,
    }
}

#[cfg(test)]
mod tests;
