//! What an update asks for: whether it can be stored, and the entries that store it.

use crate::format::admissible::check_keys;
use crate::format::edit_buffer::EditBuffer;
use crate::format::key::ObjectKey;
use crate::format::key::{self, ContainerNumber, Path, PoolNumber};
use crate::format::key_builder::KeyBuilder;
use crate::format::node::ENTRY_MAX;
use crate::format::value::{Event, Kind, append_akey};
use crate::index::existence::{Existence, existence, existence_from};
use crate::index::fault::{Fault, Halt};
use crate::index::tree::{Address, Tree};
use crate::state::error::UpdateError;
use crate::state::piece::WritePiece;
use crate::state::shard::QuotaCheck;
use crate::versions::dkey_leaf::DkeyLeaf;
use crate::versions::intents::Slot;
use crate::versions::timestamps::{Scope, hash_key, hash_object};
use core::ops::ControlFlow;
use weir_proto::object::{AkeyUpdate, Conditions, Value, validate};
use weir_proto::{Epoch, Key, ObjectId};

/// An update as its parts need it.
pub(crate) struct Request<'a> {
    pub(crate) pool: PoolNumber,
    pub(crate) container: ContainerNumber,
    pub(crate) object: ObjectId,
    pub(crate) dkey: &'a Key,
    pub(crate) epoch: u64,
    pub(crate) conditions: Conditions,
    pub(crate) akeys: &'a [AkeyUpdate],
    /// Bytes of its data for which room is kept.
    pub(crate) covered: u64,
    /// What exists by an event of this epoch or an earlier one may have been punched since, which isn't known here yet: the
    /// update notes by itself that it exists ([`crate::Shard::fill`]).
    pub(crate) apart: Option<u64>,
    pub(crate) quota: QuotaCheck,
}

/// The plan of an update, beside its entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Whether an akey was there before.
    pub(super) overwrites: bool,
    /// The first entry is that of the object, which was there before.
    pub(super) renews: bool,
    /// For so many entries, the first ones, the caller has to check that the index nodes that they belong to are in memory.
    pub(super) to_reach: usize,
    /// Where all that is below the object goes, if the index has nothing of it and it goes to one place.
    pub(super) place: Option<Address>,
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

/// Checks that an epoch can be that of a change.
pub(crate) fn check_epoch(epoch: Epoch) -> Result<(), UpdateError> {
    if epoch == Epoch::ZERO || epoch == Epoch::MAX {
        return Err(UpdateError::Invalid(format!("{epoch} is not the epoch of a change")));
    }
    Ok(())
}

#[cold]
fn exists(level: &'static str, key: &Key) -> UpdateError {
    UpdateError::Exists { level, key: key.clone() }
}

#[cold]
fn missing(level: &str, key: &Key) -> UpdateError {
    UpdateError::Missing(format!("{level} \"{key}\""))
}

impl<'a> Request<'a> {
    /// A request to a pool. The caller sets its container's number and its epoch later.
    pub(crate) fn new(
        pool: PoolNumber,
        object: ObjectId,
        dkey: &'a Key,
        conditions: Conditions,
        akeys: &'a [AkeyUpdate],
    ) -> Self {
        Self {
            pool,
            container: 0,
            object,
            dkey,
            epoch: 0,
            conditions,
            akeys,
            covered: 0,
            apart: None,
            quota: QuotaCheck::Here,
        }
    }

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

    /// Whether the update has conditions on what exists.
    pub(super) fn is_conditional(&self) -> bool {
        let none = Conditions::NONE.0;
        self.conditions.0 != none || self.akeys.iter().any(|update| update.conditions.0 != none)
    }

    /// Whether something exists by an event that the update can rely on.
    fn relies_on(&self, existence: &Existence) -> bool {
        let is_known = |since| existence.event.is_some_and(|(at, _)| at > since || at == self.epoch);
        existence.exists && self.apart.is_none_or(is_known)
    }

    /// Whether it is refused where its object doesn't exist.
    pub(super) fn needs_object(&self) -> bool {
        self.conditions.has(Conditions::OBJECT_EXISTS)
    }

    /// What a refusal reveals the state of: the whole object if it has to exist, since any dkey creates it.
    pub(super) fn scope_of_refusal(&self) -> Scope<'a> {
        if self.needs_object() { Scope::Object } else { Scope::Dkey(self.dkey) }
    }

    pub(crate) fn place(&self) -> ObjectKey {
        (self.pool, self.container, self.object)
    }

    /// The hashes of its object and of its dkey.
    pub(super) fn hashes(&self) -> (u64, u64) {
        let object = hash_object(&self.place());
        (object, hash_key(object, self.dkey))
    }

    pub(crate) fn path(&self) -> Path {
        Path::object(self.pool, self.container, self.object)
    }

    /// Checks the conditions against the index and puts together the entries that store the pieces of `data`. The object lives as
    /// `known` says, if that says anything.
    pub(crate) fn plan(
        &self,
        tree: &Tree,
        known: Option<&Existence>,
        (pieces, data): (&[WritePiece], &[u8]),
        buffer: &mut EditBuffer,
    ) -> Result<Planned, Halt<UpdateError>> {
        buffer.clear();
        let mut builder = KeyBuilder::object(&self.place(), core::mem::take(&mut buffer.key_memory));
        let found;
        let object = if let Some(known) = known {
            known
        } else {
            found = existence_from(tree, builder.event(self.epoch), Existence::ALWAYS)?;
            &found
        };
        if self.needs_object() && !object.exists {
            return Err(self.object_missing());
        }
        self.put_object(&builder, object, buffer);
        let of_object = buffer.len();
        let renews = of_object > 0 && self.relies_on(object);
        builder.go_to_dkey(self.dkey);
        let mut dkey_leaf = DkeyLeaf::of_dkey(tree, &mut builder, self.epoch)?;
        let dkey = dkey_leaf.existence_of_dkey(&mut builder, object, self.epoch)?;
        if object.punched_at(self.epoch) || dkey.punched_at(self.epoch) {
            return Err(self.epoch_of_punch().into());
        }
        if self.conditions.has(Conditions::DKEY_INSERT) && dkey.exists {
            return Err(exists("dkey", self.dkey).into());
        }
        if self.conditions.has(Conditions::DKEY_UPDATE) && !dkey.exists {
            return Err(missing("dkey", self.dkey).into());
        }
        if !self.relies_on(&dkey) {
            buffer.put(&builder, key::event_tail(self.epoch), Event::OF_DKEY);
        }
        let (mut overwrites, mut left) = (false, pieces);
        for (index, update) in self.akeys.iter().enumerate() {
            builder.go_to_akey(&update.akey);
            let akey = dkey_leaf.existence(&mut builder, &dkey, self.epoch)?;
            // What is here of an akey may have ended long ago, where changes stand by themselves.
            if self.apart.is_none() || self.relies_on(&akey) {
                self.check_akey(tree, update, &akey)?;
            }
            overwrites |= akey.exists;
            let (own, behind) = left.split_at(left.iter().take_while(|piece| piece.akey == index).count());
            left = behind;
            self.put_akey(&builder, update, &akey, own, buffer);
            for piece in own {
                if self.put_version(&builder, piece, data, buffer) > ENTRY_MAX {
                    // Only a value in very many runs makes an entry this large.
                    return Err(self.fragmented().into());
                }
            }
        }
        // What was put together for the dkey stands in the leaf that was looked at, if that has all of the dkey.
        buffer.key_memory = builder.into_memory();
        let to_reach = if dkey_leaf.has_all() { of_object } else { buffer.len() };
        // The lone version of a lone akey stands behind that, and it behind the dkey.
        let is_lone = self.akeys.len() == 1 && pieces.len() == 1;
        let is_ascending = is_lone || buffer.is_ascending();
        debug_assert!(!is_ascending || buffer.is_ascending(), "entries of one version aren't in order");
        let place = if is_ascending { dkey_leaf.place() } else { None };
        Ok(Planned { overwrites, renews, to_reach, place })
    }

    // Errors are made in functions of their own, apart from the code of updates without any.

    #[cold]
    fn object_missing(&self) -> Halt<UpdateError> {
        UpdateError::Missing(format!("object {}", self.object)).into()
    }

    #[cold]
    fn epoch_of_punch(&self) -> UpdateError {
        UpdateError::Invalid(format!("epoch {:#x} belongs to a punch", self.epoch))
    }

    #[cold]
    fn fragmented(&self) -> UpdateError {
        UpdateError::Fragmented(self.dkey.clone())
    }

    fn put_object(&self, builder: &KeyBuilder, object: &Existence, buffer: &mut EditBuffer) {
        let is_known = self.relies_on(object);
        let (at, newest) = match object.event {
            Some((_, Event::Object { newest })) if is_known && newest >= self.epoch => return,
            Some((at, Event::Object { .. })) if is_known => (at, self.epoch),
            _ => (self.epoch, self.epoch),
        };
        buffer.put(builder, key::event_tail(at), Event::of_object(newest));
    }

    #[inline]
    fn put_akey(
        &self,
        builder: &KeyBuilder,
        update: &AkeyUpdate,
        akey: &Existence,
        pieces: &[WritePiece],
        buffer: &mut EditBuffer,
    ) {
        let (kind, given) = match &update.value {
            Value::Single { .. } => (Kind::Single, 0),
            Value::Array { record_size, .. } => (Kind::Array, *record_size),
        };
        let classes =
            pieces.iter().filter_map(|piece| piece.slot.class()).fold(0, |all, class| all | 1 << class);
        let known = akey.array_or_single().filter(|_| self.relies_on(akey));
        let (at, record_size, classes) = match (akey.event, known) {
            (Some((at, _)), Some((_, size, old))) => {
                if (given == 0 || size == given) && old | classes == old {
                    return;
                }
                let (at, record_size) = match size {
                    // The epochs before its first record go on telling of none.
                    0 if given != 0 => (self.epoch, given),
                    _ => (at, size),
                };
                (at, record_size, old | classes)
            }
            _ => (self.epoch, given, classes),
        };
        buffer.put_with(builder, key::event_tail(at), |out| append_akey(kind, record_size, classes, out));
    }

    /// Returns the bytes of the entry.
    fn put_version(
        &self,
        builder: &KeyBuilder,
        piece: &WritePiece,
        data: &[u8],
        buffer: &mut EditBuffer,
    ) -> usize {
        let begun = match piece.slot {
            Slot::Single => buffer.begin(builder, key::single_tail(self.epoch)),
            Slot::Extent(extent) => buffer.begin(builder, key::extent_version_tail(extent, self.epoch)),
        };
        piece.append_version(data, buffer.text());
        buffer.end(begun)
    }

    #[inline]
    fn check_akey(
        &self,
        tree: &Tree,
        update: &AkeyUpdate,
        akey: &Existence,
    ) -> Result<(), Halt<UpdateError>> {
        let per_akey = self.conditions.has(Conditions::PER_AKEY);
        let conditions = if per_akey { update.conditions } else { self.conditions };
        // Nothing else can be wrong with one that never was.
        if akey.event.is_none() && !conditions.has(Conditions::AKEY_UPDATE) {
            return Ok(());
        }
        self.check_known_akey(conditions, update, akey)?;
        self.check_later_records(tree, update, akey)
    }

    #[inline(never)]
    fn check_known_akey(
        &self,
        conditions: Conditions,
        update: &AkeyUpdate,
        akey: &Existence,
    ) -> Result<(), UpdateError> {
        if akey.punched_at(self.epoch) {
            return Err(self.epoch_of_punch());
        }
        if conditions.has(Conditions::AKEY_INSERT) && akey.exists {
            return Err(exists("akey", &update.akey));
        }
        if conditions.has(Conditions::AKEY_UPDATE) && !akey.exists {
            return Err(missing("akey", &update.akey));
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

    /// Checks that first records of an akey that has only holes fit those that it has at later epochs.
    #[inline(never)]
    fn check_later_records(
        &self,
        tree: &Tree,
        update: &AkeyUpdate,
        akey: &Existence,
    ) -> Result<(), Halt<UpdateError>> {
        let Value::Array { record_size: given @ 1.., .. } = update.value else { return Ok(()) };
        let Some((_, 0, _)) = akey.array_or_single() else { return Ok(()) };
        let object = self.path();
        let dkey = object.dkey(self.dkey);
        let path = dkey.akey(&update.akey);
        let Some(at) = oldest_records(tree, &path, self.epoch)? else { return Ok(()) };
        let mut paths = [&object, &dkey, &path].into_iter();
        let later = paths.try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, at))?;
        match later.array_or_single() {
            Some((_, stored, _)) if later.shows(self.epoch, at) && stored != given => {
                Err(UpdateError::RecordSize { akey: update.akey.clone(), stored, given }.into())
            }
            _ => Ok(()),
        }
    }
}

/// The oldest epoch behind `epoch` at which an akey is said to have records.
fn oldest_records(tree: &Tree, akey: &Path, epoch: u64) -> Result<Option<u64>, Fault> {
    let (from, mut oldest) = (akey.events(), None);
    let malformed = tree.scan_below(&from, from.len(), |rest, value| {
        match (key::epoch_from(rest), Event::decode(value)) {
            (Ok(at), Ok(_)) if at.0 <= epoch => ControlFlow::Break(None),
            (Ok(at), Ok(Event::Akey { record_size: 1.., .. })) => {
                oldest = Some(at.0);
                ControlFlow::Continue(())
            }
            (Ok(_), Ok(_)) => ControlFlow::Continue(()),
            (Err(malformed), _) | (_, Err(malformed)) => ControlFlow::Break(Some(malformed)),
        }
    })?;
    match malformed.flatten() {
        Some(malformed) => Err(malformed.into()),
        None => Ok(oldest),
    }
}
