//! Up to which epochs objects and dkeys were read and written, so that a transaction that comes too late is told.
//!
//! The places are hashed into tables of fixed size, each slot with the newest epoch of all places that share it: what
//! a collision can do is to refuse a transaction that could have been let through. Nothing of it survives a restart;
//! what may have been read before is covered by a floor, below which no transaction is prepared.

use crate::format::key::ObjectKey;
use crate::format::size::in_memory;
use core::cell::Cell;
use weir_media::prefetch;
use weir_proto::{Key, ReaderId};

/// Slots for dkeys: with 100,000 reads a second, a transaction that takes a millisecond meets a foreign read in its
/// slot less than once in a hundred times. 512 KiB, a quarter of which is what reads outside of transactions go to.
const DKEY_SLOTS: usize = 1 << 14;

/// Slots for objects, in two tables of 64 KiB, and one for what aggregation has removed, of 16 KiB.
const OBJECT_SLOTS: usize = 1 << 11;

/// What is remembered of a place.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Newest read of a transaction.
    Read,
    /// Newest read outside of transactions: the newest epoch that it could have seen.
    PlainRead,
    /// Newest write.
    Write,
    /// Newest write of a transaction.
    Decided,
}

/// What a write outside of transactions has to be newer than.
const LIMITS_OF_WRITES: [Kind; 2] = [Kind::Read, Kind::Decided];

/// What it looks at, and changes.
const TOUCHED_BY_WRITES: [Kind; 3] = [LIMITS_OF_WRITES[0], LIMITS_OF_WRITES[1], Kind::Write];

/// How many kinds there are.
const KINDS: usize = 4;

/// Newest epochs of places, in a column for each kind: reads outside of transactions write one of them, which is small
/// enough for the processor's cache.
struct Table<const SLOTS: usize> {
    epochs: [Box<[Cell<u64>; SLOTS]>; KINDS],
    /// Which transaction has read at the newest epoch; [`SEVERAL`] where more than one has.
    readers: Box<[Cell<u64>]>,
}

/// More than one reader, none of whom may write at that epoch. A transaction whose random name is just that has to start
/// again when it writes what it has read.
const SEVERAL: u64 = 0;

impl<const SLOTS: usize> Default for Table<SLOTS> {
    fn default() -> Self {
        // It is too large for the stack.
        let column = || -> Box<[Cell<u64>]> { vec![Cell::default(); SLOTS].into() };
        let epochs =
            core::array::from_fn(|_| column().try_into().unwrap_or_else(|_| unreachable!("it is as long")));
        Self { epochs, readers: column() }
    }
}

impl<const SLOTS: usize> Table<SLOTS> {
    fn slot(hash: u64) -> usize {
        in_memory(hash >> 20) % SLOTS
    }

    fn raise(&self, hash: u64, kind: Kind, epoch: u64) {
        let newest = &self.epochs[kind as usize][Self::slot(hash)];
        if newest.get() < epoch {
            newest.set(epoch);
        }
    }

    /// A transaction of this epoch reads.
    fn read(&self, hash: u64, epoch: u64, ReaderId(reader): ReaderId) {
        let slot = Self::slot(hash);
        let (newest, last) = (&self.epochs[Kind::Read as usize][slot], &self.readers[slot]);
        if newest.get() < epoch {
            newest.set(epoch);
            last.set(reader);
        } else if newest.get() == epoch && last.get() != reader {
            last.set(SEVERAL);
        }
    }

    /// Whether another transaction than this one has read at just this epoch, which is the newest one.
    fn is_read_by_others(&self, hash: u64, epoch: u64, ReaderId(reader): ReaderId) -> bool {
        let (slot, own) = (Self::slot(hash), Some(reader).filter(|reader| *reader != SEVERAL));
        self.epochs[Kind::Read as usize][slot].get() == epoch && Some(self.readers[slot].get()) != own
    }

    /// Prefetches the slots that a write reads and changes.
    fn prefetch_write(&self, hash: u64) {
        let slot = Self::slot(hash);
        for kind in TOUCHED_BY_WRITES {
            prefetch(&self.epochs[kind as usize][slot..=slot]);
        }
    }

    /// The newest epoch of several kinds.
    #[inline]
    fn newest(&self, hash: u64, kinds: &[Kind]) -> u64 {
        let slot = Self::slot(hash);
        kinds.iter().fold(0, |newest, kind| newest.max(self.epochs[*kind as usize][slot].get()))
    }
}

/// What is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    /// A dkey of the object.
    Dkey(&'a Key),
    /// The object as a whole.
    Object,
}

/// The tables.
pub(crate) struct Timestamps {
    dkeys: Table<DKEY_SLOTS>,
    /// Of objects as a whole: reads of which dkeys there are, punches of all of it.
    whole: Table<OBJECT_SLOTS>,
    /// The newest of an object as a whole and all its dkeys.
    any: Table<OBJECT_SLOTS>,
    /// Up to which epochs aggregation has removed history of objects.
    aggregated: Box<[Cell<u64>]>,
    /// Transactions up to this epoch may be too late for reads before the last restart.
    floor: Cell<u64>,
}

impl Default for Timestamps {
    fn default() -> Self {
        Self {
            dkeys: Table::default(),
            whole: Table::default(),
            any: Table::default(),
            aggregated: vec![Cell::default(); OBJECT_SLOTS].into(),
            floor: Cell::default(),
        }
    }
}

/// Initial value of hashes: any number in which about half of the bits are set.
const SEED: u64 = 0x5bd1_e995_c2b2_ae35;

/// An odd number in which about half of the bits are set.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word into a hash: the finaliser of a 64-bit multiply, whose high half depends on all bits.
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let (low, high) = (hash ^ word).carrying_mul(FACTOR, 0);
    low ^ high.rotate_left(29)
}

/// Hashes objects for tables that only this store fills: keys that a client has chosen to collide make a look-up as
/// slow as they are many, and no more objects are in such a table than have records that aren't durable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ObjectHash;

/// See [`ObjectHash`].
#[derive(Debug, Default)]
pub(crate) struct ObjectHasher(u64);

impl core::hash::BuildHasher for ObjectHash {
    type Hasher = ObjectHasher;

    fn build_hasher(&self) -> ObjectHasher {
        ObjectHasher::default()
    }
}

impl core::hash::Hasher for ObjectHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0.wrapping_add(SEED), word);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) fn hash_object((pool, container, object): &ObjectKey) -> u64 {
    let place = (u64::from(*pool) << 32) | u64::from(*container);
    mix(mix(mix(SEED, place), object.hi), object.lo)
}

/// The hash of a key below what has the hash `above`.
pub(crate) fn hash_key(above: u64, key: &Key) -> u64 {
    let bytes = key.as_bytes();
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = words.iter().fold(above, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = mix(hash, u64::from_le_bytes(last));
    }
    mix(hash, bytes.len() as u64)
}

impl Timestamps {
    /// Sets the floor at open: up to this epoch transactions may have read.
    pub(crate) fn set_floor(&self, epoch: u64) {
        self.floor.set(epoch.saturating_add(1));
    }

    fn note(&self, object: u64, scope: Scope<'_>, epoch: u64, kind: Kind) {
        match scope {
            Scope::Dkey(dkey) => self.note_dkey((object, hash_key(object, dkey)), epoch, kind),
            Scope::Object => {
                self.any.raise(object, kind, epoch);
                self.whole.raise(object, kind, epoch);
            }
        }
    }

    /// As [`Timestamps::note`], with the hashes of an object and of a dkey below it.
    fn note_dkey(&self, (object, dkey): (u64, u64), epoch: u64, kind: Kind) {
        self.any.raise(object, kind, epoch);
        self.dkeys.raise(dkey, kind, epoch);
    }

    /// Prefetches the slots of a dkey with this hash that is about to be written outside of transactions.
    pub(crate) fn prefetch_write_at(&self, dkey: u64) {
        self.dkeys.prefetch_write(dkey);
    }

    /// A transaction of this epoch reads.
    pub(crate) fn note_read(&self, object: &ObjectKey, scope: Scope<'_>, epoch: u64, reader: ReaderId) {
        let object = hash_object(object);
        self.any.read(object, epoch, reader);
        match scope {
            Scope::Dkey(dkey) => self.dkeys.read(hash_key(object, dkey), epoch, reader),
            Scope::Object => self.whole.read(object, epoch, reader),
        }
    }

    /// Somebody reads outside of transactions what was written up to this epoch.
    pub(crate) fn note_plain_read(&self, object: &ObjectKey, scope: Scope<'_>, epoch: u64) {
        self.note(hash_object(object), scope, epoch, Kind::PlainRead);
    }

    /// As [`Timestamps::note_plain_read`], of a dkey whose hash is known, as is that of its object.
    pub(crate) fn note_plain_read_at(&self, (object, dkey): (u64, u64), epoch: u64) {
        self.note_dkey((object, dkey), epoch, Kind::PlainRead);
    }

    /// Something is written at this epoch, by a transaction or not.
    pub(crate) fn note_write(&self, object: &ObjectKey, scope: Scope<'_>, epoch: u64, decided: bool) {
        let object = hash_object(object);
        self.note(object, scope, epoch, Kind::Write);
        if decided {
            self.note(object, scope, epoch, Kind::Decided);
        }
    }

    /// As [`Timestamps::note_write`] outside of transactions, of a dkey whose hash is known, as is that of its object.
    pub(crate) fn note_write_at(&self, (object, dkey): (u64, u64), epoch: u64) {
        self.note_dkey((object, dkey), epoch, Kind::Write);
    }

    /// Notes that aggregation removes history of an object before this epoch, which is not visible at it or later.
    pub(crate) fn note_removal(&self, object: &ObjectKey, epoch: u64) {
        let newest = self.aggregated_of(object);
        newest.set(newest.get().max(epoch));
    }

    /// The epoch up to which aggregation has removed history of an object.
    pub(crate) fn removed_up_to(&self, object: &ObjectKey) -> u64 {
        self.aggregated_of(object).get()
    }

    /// The oldest epoch at which the history of an object is complete.
    pub(crate) fn limit_of_view(&self, object: &ObjectKey) -> u64 {
        self.aggregated_of(object).get().max(self.floor.get())
    }

    fn aggregated_of(&self, object: &ObjectKey) -> &Cell<u64> {
        &self.aggregated[Table::<OBJECT_SLOTS>::slot(hash_object(object))]
    }

    /// The newest epoch that a write of `scope` may not be older than, of these kinds.
    fn newest(&self, object: &ObjectKey, scope: Scope<'_>, kinds: &[Kind]) -> u64 {
        let object = hash_object(object);
        match scope {
            Scope::Dkey(dkey) => self.newest_at((object, hash_key(object, dkey)), kinds),
            Scope::Object => self.any.newest(object, kinds),
        }
    }

    /// As [`Timestamps::newest`], of a dkey whose hash is known, as is that of its object.
    fn newest_at(&self, (object, dkey): (u64, u64), kinds: &[Kind]) -> u64 {
        self.dkeys.newest(dkey, kinds).max(self.whole.newest(object, kinds))
    }

    /// A transaction that writes `scope` can't be older than this.
    pub(crate) fn limit_of_transaction(&self, object: &ObjectKey, scope: Scope<'_>) -> u64 {
        self.newest(object, scope, &[Kind::Read, Kind::PlainRead, Kind::Write]).max(self.floor.get())
    }

    /// Whether others have written `scope` at just this epoch, or read it in a transaction: of two transactions that have the
    /// same one, only the one that read first can have been the first.
    pub(crate) fn is_taken_at(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: u64,
        reader: ReaderId,
    ) -> bool {
        let object = hash_object(object);
        match scope {
            Scope::Dkey(dkey) => {
                let dkey = hash_key(object, dkey);
                self.dkeys.is_read_by_others(dkey, epoch, reader)
                    || self.whole.is_read_by_others(object, epoch, reader)
                    || self.newest_at((object, dkey), &[Kind::Write]) == epoch
            }
            Scope::Object => {
                self.any.is_read_by_others(object, epoch, reader)
                    || self.any.newest(object, &[Kind::Write]) == epoch
            }
        }
    }

    /// A write outside of transactions has to be newer than this: what transactions have read or written.
    pub(crate) fn limit_of_write(&self, object: &ObjectKey, scope: Scope<'_>) -> u64 {
        self.newest(object, scope, &LIMITS_OF_WRITES)
    }

    /// As [`Timestamps::limit_of_write`], of a dkey whose hash is known, as is that of its object.
    pub(crate) fn limit_of_write_at(&self, (object, dkey): (u64, u64)) -> u64 {
        self.newest_at((object, dkey), &LIMITS_OF_WRITES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::ObjectId;

    fn object(lo: u64) -> ObjectKey {
        (1, 1, ObjectId { hi: 0, lo })
    }

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).expect("a key")
    }

    #[test]
    fn reads_and_writes_bound_what_they_overlap_and_nothing_else() {
        let times = Timestamps::default();
        let (first, second) = (key("first"), key("second"));
        times.note_read(&object(1), Scope::Dkey(&first), 10, ReaderId(1));
        times.note_plain_read(&object(1), Scope::Dkey(&second), 20);
        assert_eq!(times.limit_of_transaction(&object(1), Scope::Dkey(&first)), 10);
        assert_eq!(times.limit_of_write(&object(1), Scope::Dkey(&second)), 0);
        assert_eq!(times.limit_of_transaction(&object(1), Scope::Object), 20);
        assert_eq!(times.limit_of_transaction(&object(2), Scope::Dkey(&first)), 0);
        times.note_read(&object(1), Scope::Object, 30, ReaderId(1));
        assert_eq!(times.limit_of_write(&object(1), Scope::Dkey(&second)), 30);
        times.note_write(&object(2), Scope::Object, 40, false);
        assert_eq!(times.limit_of_transaction(&object(2), Scope::Dkey(&first)), 40);
        assert_eq!(times.limit_of_write(&object(2), Scope::Dkey(&first)), 0);
        times.note_write(&object(2), Scope::Dkey(&first), 50, true);
        assert_eq!(times.limit_of_write(&object(2), Scope::Dkey(&first)), 50);
        times.set_floor(100);
        assert_eq!(times.limit_of_transaction(&object(3), Scope::Object), 101);
    }

    #[test]
    fn an_epoch_at_which_somebody_has_read_is_taken_for_all_others() {
        let times = Timestamps::default();
        let (first, second) = (key("first"), key("second"));
        let taken = |scope, epoch, reader| times.is_taken_at(&object(1), scope, epoch, ReaderId(reader));
        times.note_read(&object(1), Scope::Dkey(&first), 10, ReaderId(1));
        assert!(!taken(Scope::Dkey(&first), 10, 1) && !taken(Scope::Object, 10, 1));
        assert!(taken(Scope::Dkey(&first), 10, 2) && taken(Scope::Object, 10, 2));
        assert!(!taken(Scope::Dkey(&second), 10, 2) && !taken(Scope::Dkey(&first), 11, 2));
        times.note_read(&object(1), Scope::Object, 10, ReaderId(2));
        assert!(taken(Scope::Dkey(&second), 10, 1) && !taken(Scope::Dkey(&second), 10, 2));
        // Of two readers neither may write, until somebody has read later.
        times.note_read(&object(1), Scope::Dkey(&first), 10, ReaderId(2));
        times.note_read(&object(1), Scope::Dkey(&first), 10, ReaderId(1));
        assert!(taken(Scope::Dkey(&first), 10, 1) && taken(Scope::Dkey(&first), 10, 2));
        times.note_read(&object(1), Scope::Dkey(&first), 20, ReaderId(2));
        times.note_read(&object(1), Scope::Dkey(&first), 15, ReaderId(3));
        assert!(!taken(Scope::Dkey(&first), 20, 2) && taken(Scope::Dkey(&first), 20, 3));
        // One whose name is that of several.
        times.note_read(&object(1), Scope::Dkey(&first), 30, ReaderId(SEVERAL));
        assert!(taken(Scope::Dkey(&first), 30, SEVERAL));
    }

    #[test]
    fn places_spread_over_the_slots() {
        let hash = hash_object(&object(7));
        let mut used = std::collections::BTreeSet::new();
        for number in 0..4096u64 {
            used.insert(Table::<DKEY_SLOTS>::slot(hash_key(hash, &Key::from_u64(number))));
        }
        // Thrown at random, 4096 balls meet some 3600 of 16384 bins.
        assert!(used.len() > 3500, "{} slots for 4096 dkeys", used.len());
    }
}
