//! Requests drawn at random: few keys, so that they meet, in all forms that keys have, and values of all sizes.

use super::model::{Change, Search};
use crate::setup::{pattern, put_checksums};
use std::rc::Rc;
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, ListScope, PunchScope, Value};
use weir_proto::{Key, ObjectId};
use weir_runtime::random::Random;

/// Objects with text keys, integer dkeys, integer akeys, both, and lexical ones (`DAOS_OT_*` in the top byte).
pub const OBJECTS: [ObjectId; 5] = [
    ObjectId { hi: 0, lo: 1 },
    ObjectId { hi: 13 << 56, lo: 2 },
    ObjectId { hi: 3 << 56, lo: 3 },
    ObjectId { hi: 4 << 56, lo: 4 },
    ObjectId { hi: 7 << 56, lo: 5 },
];

/// Most extents of one record each of one akey: with those of two more akeys fewer than a request may have.
const COMB_MAX: u64 = 250;

const RECORD_SIZES: [u32; 4] = [1, 2, 8, 100];

const TEXTS: [&[u8]; 6] = [b"a", b"a\0", b"a\0\xffb", b"ab", b"\xff\xff", &[b'k'; 300]];
const NUMBERS: [u64; 6] = [0, 1, 255, 256, 1 << 40, u64::MAX];

fn key_number(integer: bool, number: u64) -> Key {
    let number = number as usize;
    if integer { Key::from_u64(NUMBERS[number]) } else { Key::new(TEXTS[number]).expect("short") }
}

pub fn has_integer_dkeys(object: ObjectId) -> bool {
    [13, 4].contains(&(object.hi >> 56))
}

pub fn has_integer_akeys(object: ObjectId) -> bool {
    [3, 4].contains(&(object.hi >> 56))
}

pub struct Draw<'a>(pub &'a Random);

impl Draw<'_> {
    pub fn one_in(&self, count: u64) -> bool {
        self.0.below(count) == 0
    }

    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.0.below(of.len() as u64) as usize]
    }

    pub fn object(&self) -> ObjectId {
        self.pick(&OBJECTS)
    }

    pub fn dkey(&self, object: ObjectId) -> Key {
        key_number(has_integer_dkeys(object), self.0.below(6))
    }

    /// The first two akeys mostly hold single values, the other two arrays.
    fn akey(&self, object: ObjectId, array: bool) -> Key {
        let meant = if self.one_in(20) { !array } else { array };
        key_number(has_integer_akeys(object), self.0.below(2) + u64::from(meant) * 2)
    }

    fn any_akey(&self, object: ObjectId) -> Key {
        key_number(has_integer_akeys(object), self.0.below(5))
    }

    fn conditions(&self, of: &[Conditions]) -> Conditions {
        if self.one_in(3) { self.pick(of) } else { Conditions::NONE }
    }

    fn bytes_of_value(&self) -> u64 {
        match self.0.below(200) {
            0 => 1_500_000,
            1..4 => self.0.between(20_000, 100_000),
            4..40 => self.0.between(3000, 9000),
            40..50 => 4096,
            50..60 => 0,
            _ => self.0.between(1, 300),
        }
    }

    fn extent(&self, size: u64) -> Extent {
        let index = match self.0.below(40) {
            0 => (1 << 63) - 400_000,
            1 => 1 << 20,
            2..6 => self.0.below(3000),
            _ => self.0.below(200),
        };
        let bytes = match self.0.below(100) {
            0 => 300_000,
            1..10 => self.0.between(3000, 9000),
            _ => self.0.between(1, 400),
        };
        Extent { index, count: (bytes / size.max(1)).max(1) }
    }

    /// Up to three extents that don't overlap, in any order; now and then so many that they fill leaves of the index.
    fn extents(&self, size: u64) -> Vec<Extent> {
        if self.one_in(40) {
            let (first, stride) = (self.0.below(200), self.0.between(1, 3));
            let comb = (0..self.0.between(20, COMB_MAX)).map(|tooth| first + tooth * stride);
            return comb.map(|index| Extent { index, count: 1 }).collect();
        }
        let mut extents: Vec<Extent> = Vec::new();
        for _ in 0..=self.0.below(3) {
            let new = self.extent(size);
            if extents.iter().all(|old| new.end() <= old.index || old.end() <= new.index) {
                extents.push(new);
            }
        }
        extents
    }

    fn value(&self, object: ObjectId) -> (Key, Value) {
        let array = self.one_in(2);
        let akey = self.akey(object, array);
        if !array {
            return (akey, Value::Single { size: self.bytes_of_value() });
        }
        // An akey keeps its record size most of the time, so that most requests fit it.
        let usual = RECORD_SIZES[akey.as_bytes().len().min(3)];
        let record_size = match self.0.below(10) {
            0 => self.pick(&RECORD_SIZES),
            1 | 2 => 0,
            _ => usual,
        };
        (akey, Value::Array { record_size, extents: self.extents(record_size.into()) })
    }

    pub fn update(&self, object: ObjectId, dkey: Key, epoch: u64) -> Change {
        use Conditions as C;
        let conditions = self.conditions(&[
            C::DKEY_INSERT,
            C::DKEY_UPDATE,
            C::AKEY_INSERT,
            C::AKEY_UPDATE,
            C::DKEY_UPDATE.union(C::AKEY_INSERT),
            C::PER_AKEY,
            C::PER_AKEY.union(C::DKEY_UPDATE),
            C::OBJECT_EXISTS,
            C::OBJECT_EXISTS.union(C::DKEY_INSERT),
        ]);
        let mut akeys: Vec<AkeyUpdate> = Vec::new();
        for _ in 0..=self.0.below(3) {
            let (akey, value) = self.value(object);
            if akeys.iter().all(|other| other.akey != akey) {
                let conditions = if conditions.has(C::PER_AKEY) {
                    self.conditions(&[C::AKEY_INSERT, C::AKEY_UPDATE])
                } else {
                    C::NONE
                };
                akeys.push(AkeyUpdate { akey, value, conditions, checksums: Vec::new() });
            }
        }
        let len: u64 = akeys.iter().filter_map(|update| update.value.data_len()).sum();
        let data = Rc::new(pattern(epoch, len as usize));
        if self.one_in(2) {
            put_checksums(&mut akeys, &data);
        }
        Change::Update { object, dkey, conditions, akeys, data }
    }

    pub fn punch(&self, object: ObjectId) -> Change {
        let conditions = self.conditions(&[Conditions::PUNCH]);
        let dkey = self.dkey(object);
        let two = |one: Key, other: Key| if one == other { vec![one] } else { vec![one, other] };
        let scope = match self.0.below(10) {
            0 => PunchScope::Object,
            1..4 => PunchScope::Dkeys(two(dkey, self.dkey(object))),
            4 => PunchScope::DkeyWith(dkey, vec![self.any_akey(object)]),
            _ => PunchScope::Akeys(dkey, two(self.any_akey(object), self.any_akey(object))),
        };
        Change::Punch { object, scope, conditions }
    }

    /// A punch that names dkeys alone.
    pub fn punch_of(&self, object: ObjectId, dkey: Key) -> Change {
        let scope = if self.one_in(2) {
            PunchScope::Dkeys(vec![dkey])
        } else {
            PunchScope::Akeys(dkey, vec![self.any_akey(object)])
        };
        Change::Punch { object, scope, conditions: Conditions::NONE }
    }

    pub fn fetch(&self, object: ObjectId) -> (Conditions, Vec<AkeyFetch>) {
        use Conditions as C;
        let conditions = self.conditions(&[C::DKEY_FETCH, C::AKEY_FETCH, C::PER_AKEY]);
        let mut akeys: Vec<AkeyFetch> = Vec::new();
        for _ in 0..=self.0.below(3) {
            let (akey, value) = self.value(object);
            let value = match value {
                Value::Single { size } if self.one_in(2) => Value::Single { size },
                Value::Single { .. } => Value::Single { size: u64::MAX },
                array @ Value::Array { .. } => array,
            };
            if akeys.iter().all(|other| other.akey != akey) {
                let one = conditions.has(C::PER_AKEY) && self.one_in(2);
                let conditions = if one { C::AKEY_FETCH } else { C::NONE };
                akeys.push(AkeyFetch { akey, value, conditions });
            }
        }
        (conditions, akeys)
    }

    pub fn scope(&self, object: ObjectId) -> ListScope {
        match self.0.below(4) {
            0 => ListScope::Objects,
            1 => ListScope::Dkeys,
            2 => ListScope::Akeys(self.dkey(object)),
            _ => ListScope::Extents(self.dkey(object), self.akey(object, true)),
        }
    }

    pub fn search(&self, object: ObjectId) -> Search {
        let dkey = (!has_integer_dkeys(object) || self.one_in(2)).then(|| self.dkey(object));
        let akey = self.one_in(2).then(|| self.any_akey(object));
        let extent = (dkey.is_some() && akey.is_some()) || self.one_in(2);
        Search { max: self.one_in(2), dkey, akey, extent, integer_akeys: has_integer_akeys(object) }
    }
}
