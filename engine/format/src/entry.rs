//! Entries of the index, read back from key and value without the context that the store has.
//!
//! What is read from a device is [checked](check_object) before it is in the index: a checksum tells that a node or a log batch is
//! what somebody wrote, and not that it makes sense.

use crate::blocks::Runs;
use crate::codec::{Decoder, Malformed};
use crate::decision::Decision;
use crate::key::NUMBER_END;
use crate::key::{self, ContainerNumber, PoolNumber, Tail, TransactionTail};
use crate::reserved::{self, Reserved};
use crate::usage::Usage;
use crate::value::{Event, Kind, Payload, Shape, Version};
use uuid::Uuid;
use weir_proto::object::Extent;
use weir_proto::{Key, ObjectId, TransactionId};

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A pool.
    Pool {
        /// Its number.
        pool: PoolNumber,
        /// Its identity.
        id: Uuid,
        /// Its share of the target, in bytes.
        size: u64,
        /// Whether it is being destroyed.
        destroyed: bool,
    },
    /// A container.
    Container {
        /// Number of its pool.
        pool: PoolNumber,
        /// Its number.
        container: ContainerNumber,
        /// Its identity.
        id: Uuid,
        /// Its quota on this target, in bytes.
        quota: u64,
        /// Whether it is being destroyed.
        destroyed: bool,
    },
    /// What a container uses, as of the checkpoint.
    Usage {
        /// Number of its pool.
        pool: PoolNumber,
        /// Its number; 0 for the pool's own entries.
        container: ContainerNumber,
        /// What it uses.
        usage: Usage,
    },
    /// A piece of an attribute.
    Attribute {
        /// Number of its pool.
        pool: PoolNumber,
        /// Scope of its name.
        scope: Vec<u8>,
        /// Its name.
        name: Vec<u8>,
        /// Number of the piece.
        piece: u16,
        /// Bytes of the piece.
        len: usize,
    },
    /// An entry of an object.
    Object {
        /// Where it belongs.
        path: ObjectPath,
        /// What it is.
        item: Item,
    },
    /// An epoch whose state a container keeps.
    Snapshot {
        /// Number of its pool.
        pool: PoolNumber,
        /// Number of the container.
        container: ContainerNumber,
        /// The epoch.
        epoch: u64,
    },
    /// An entry of a transaction.
    Transaction {
        /// Number of its pool.
        pool: PoolNumber,
        /// Number of its container.
        container: ContainerNumber,
        /// The transaction.
        id: TransactionId,
        /// What the entry holds.
        part: TransactionPart,
    },
}

/// What an entry of a transaction holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionPart {
    /// A piece of its operations.
    Operations {
        /// Number of the piece.
        piece: u16,
        /// Bytes of the piece.
        len: usize,
    },
    /// A version that it stores.
    Version {
        /// Number of the version.
        number: u32,
        /// What the version holds.
        payload: Payload,
    },
    /// What became of it.
    Decision {
        /// The decision.
        decision: Decision,
        /// When it was made, in nanoseconds since 1970.
        wall_ns: u64,
    },
}

/// Where an entry of an object belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPath {
    /// The pool.
    pub pool: PoolNumber,
    /// The container.
    pub container: ContainerNumber,
    /// The object.
    pub object: ObjectId,
    /// The dkey, below an object.
    pub dkey: Option<Key>,
    /// The akey, below a dkey.
    pub akey: Option<Key>,
}

/// What an entry of an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The begin or end of an incarnation.
    Incarnation {
        /// When it was.
        epoch: u64,
        /// What it was.
        event: Event,
    },
    /// A version of a single value.
    Single {
        /// When it was stored.
        epoch: u64,
        /// What it holds.
        payload: Payload,
    },
    /// A version of an extent.
    Extent {
        /// The records.
        extent: Extent,
        /// When they were stored.
        epoch: u64,
        /// Bytes of a record; 0 for holes.
        record_size: u32,
        /// What they hold.
        payload: Payload,
    },
    /// Room is kept for records.
    Reserved(Reserved),
}

impl Item {
    /// Its epoch; 0 of reserved records.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        match self {
            Self::Incarnation { epoch, .. } | Self::Single { epoch, .. } | Self::Extent { epoch, .. } => {
                *epoch
            }
            Self::Reserved(_) => 0,
        }
    }

    /// The data, if it has any.
    #[must_use]
    pub const fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Incarnation { .. } | Self::Reserved(_) => None,
            Self::Single { payload, .. } | Self::Extent { payload, .. } => Some(payload),
        }
    }
}

fn number(decoder: &mut Decoder<'_>) -> Result<u32, Malformed> {
    Ok(u32::from_be_bytes(decoder.array()?))
}

/// Pools and containers are counted from 1, and there is always a next one.
fn check_number(number: u32) -> Result<(), Malformed> {
    if [0, NUMBER_END].contains(&number) {
        return Err(Malformed("the number of a pool or container is impossible"));
    }
    Ok(())
}

fn end(decoder: &Decoder<'_>, what: &'static str) -> Result<(), Malformed> {
    if decoder.is_empty() { Ok(()) } else { Err(Malformed(what)) }
}

const KEY_END: &str = "a key has bytes behind its end";
const VALUE_END: &str = "a value has bytes behind its end";

impl Entry {
    /// Reads an entry.
    ///
    /// # Errors
    /// When key or value do not follow the format.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Malformed> {
        let mut at = Decoder::new(key);
        let kind = at.u8()?;
        let pool = number(&mut at)?;
        let mut data = Decoder::new(value);
        let entry = match kind {
            key::POOL => {
                let (id, size) = (Uuid::from_bytes(data.array()?), data.u64()?);
                check_number(pool)?;
                check_number(data.u32()?)?;
                Self::Pool { pool, id, size, destroyed: data.u8()? != 0 }
            }
            key::CONTAINER => {
                let container = number(&mut at)?;
                check_number(container)?;
                let (id, quota) = (Uuid::from_bytes(data.array()?), data.u64()?);
                Self::Container { pool, container, id, quota, destroyed: data.u8()? != 0 }
            }
            key::USAGE => {
                let entry = Self::Usage { pool, container: number(&mut at)?, usage: Usage::decode(value)? };
                end(&at, KEY_END)?;
                return Ok(entry);
            }
            key::ATTRIBUTE => {
                let (scope, name) = (key::take_escaped(&mut at)?, key::take_escaped(&mut at)?);
                let piece = u16::from_be_bytes(at.array()?);
                end(&at, KEY_END)?;
                return Ok(Self::Attribute { pool, scope, name, piece, len: value.len() });
            }
            key::OBJECT => return object_entry(key, value),
            key::TRANSACTION => return transaction_entry(key, value),
            key::SNAPSHOT => {
                let container = number(&mut at)?;
                Self::Snapshot { pool, container, epoch: u64::from_be_bytes(at.array()?) }
            }
            _ => return Err(Malformed("a key is of unknown kind")),
        };
        end(&at, KEY_END)?;
        end(&data, VALUE_END)?;
        Ok(entry)
    }
}

fn transaction_entry(key: &[u8], value: &[u8]) -> Result<Entry, Malformed> {
    let ((pool, container, id), tail) = key::transaction_from(key)?;
    let part = match tail {
        TransactionTail::Operations(piece) => TransactionPart::Operations { piece, len: value.len() },
        TransactionTail::Version(number) => {
            TransactionPart::Version { number, payload: Version::decode(value)?.payload }
        }
        TransactionTail::Decision => {
            let (decision, wall_ns) = Decision::decode(value)?;
            TransactionPart::Decision { decision, wall_ns }
        }
    };
    Ok(Entry::Transaction { pool, container, id, part })
}

fn object_entry(key: &[u8], value: &[u8]) -> Result<Entry, Malformed> {
    check_object(key, value)?;
    let mut at = Decoder::new(key);
    at.u8()?;
    let (pool, container) = (number(&mut at)?, number(&mut at)?);
    let object = ObjectId::from_bytes(at.array()?);
    if key::is_reserved(key) {
        let (dkey, akey) = reserved::keys_from(object, at.rest())?;
        let (dkey, akey) = (Some(Key::from_u64(dkey)), Some(akey));
        let path = ObjectPath { pool, container, object, dkey, akey };
        return Ok(Entry::Object { path, item: Item::Reserved(Reserved::decode(value)?) });
    }
    let mut keys = Vec::new();
    for integer in [key::has_integer_dkeys(object), key::has_integer_akeys(object)] {
        if at.rest().first() != Some(&key::BELOW) {
            break;
        }
        at.u8()?;
        keys.push(key::take_key(&mut at, integer)?);
    }
    let item = match key::akey_tail(at.rest())? {
        Tail::Event(epoch) => Item::Incarnation { epoch, event: Event::decode(value)? },
        Tail::Single(epoch) => Item::Single { epoch, payload: Version::decode(value)?.payload },
        Tail::Extent(extent, epoch) => {
            let Version { record_size, payload } = Version::decode(value)?;
            Item::Extent { extent, epoch, record_size, payload }
        }
    };
    let mut keys = keys.into_iter();
    let (dkey, akey) = (keys.next(), keys.next());
    Ok(Entry::Object { path: ObjectPath { pool, container, object, dkey, akey }, item })
}

/// Checks all that an entry of an object says by itself. Returns the blocks that it refers to.
///
/// # Errors
/// When it does not follow the format.
pub fn check_object(key: &[u8], value: &[u8]) -> Result<Runs, Malformed> {
    let mut at = Decoder::new(key);
    at.bytes(1 + 2 * size_of::<u32>())?;
    let object = ObjectId::from_bytes(at.array()?);
    if key::is_reserved(key) {
        reserved::keys_from(object, at.rest())?;
        Reserved::decode(value)?;
        return Ok(Runs::new());
    }
    let mut depth = 0;
    for integer in [key::has_integer_dkeys(object), key::has_integer_akeys(object)] {
        if at.rest().first() != Some(&key::BELOW) {
            break;
        }
        at.u8()?;
        key::skip_key(&mut at, integer)?;
        depth += 1;
    }
    let tail = key::akey_tail(at.rest())?;
    if depth < 2 && !matches!(tail, Tail::Event(_)) {
        return Err(Malformed("a value stands above an akey"));
    }
    if let Tail::Event(_) = tail {
        Event::decode(value)?;
        return Ok(Runs::new());
    }
    let Shape { record_size, len, runs } = Version::shape(value)?;
    if let (Tail::Extent(extent, _), Some(len)) = (tail, len)
        && extent.count.checked_mul(u64::from(record_size)) != Some(len)
    {
        return Err(Malformed("the data of an extent is longer or shorter than its records"));
    }
    Ok(runs)
}

impl core::fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pool {} container {} object {}", self.pool, self.container, self.object)?;
        for (name, key) in [("dkey", &self.dkey), ("akey", &self.akey)] {
            if let Some(key) = key {
                write!(f, " {name} \"{key}\"")?;
            }
        }
        Ok(())
    }
}

/// What an incarnation is, in words.
#[must_use]
pub fn event_name(event: Event) -> String {
    match event {
        Event::Punch => "punched".to_owned(),
        Event::Object { newest } => format!("object, newest epoch {newest}"),
        Event::Dkey => "dkey".to_owned(),
        Event::Akey { kind: Kind::Single, .. } => "akey with single values".to_owned(),
        Event::Akey { kind: Kind::Array, record_size, .. } => {
            format!("akey with an array of records of {record_size} bytes")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Path;
    use crate::value::Inline;
    use proptest::prelude::*;

    #[test]
    fn keys_come_back_with_everything_they_name() {
        let (dkey, akey) = (Key::from_u64(9), Key::new(b"a\0b").expect("a key"));
        let object = ObjectId { hi: 13 << 56, lo: 1 };
        let path = Path::object(1, 2, object);
        let below = path.dkey(&dkey).akey(&akey);
        let decode = |key: &[u8], value: &[u8]| Entry::decode(key, value).expect("sound");
        let Entry::Object { path: found, item } = decode(&path.event(5), &Event::Punch.encode()) else {
            panic!("not an object's entry");
        };
        assert_eq!((found.object, found.dkey, item.epoch()), (object, None, 5));
        let extent = Extent { index: 7, count: 3 };
        let version = Version {
            record_size: 2,
            payload: Payload::Inline(Inline { bytes: vec![1; 6], checksum: None }),
        };
        let entry = decode(&below.extent(extent, 8), &version.encode());
        let Entry::Object { path: found, item } = entry else { panic!("not an object's entry") };
        assert_eq!((found.dkey, found.akey), (Some(dkey), Some(akey)));
        assert_eq!(item, Item::Extent { extent, epoch: 8, record_size: 2, payload: version.payload.clone() });
        let longer = Version { record_size: 3, ..version };
        assert!(Entry::decode(&below.extent(extent, 8), &longer.encode()).is_err());
        let mut trailing = below.single(4);
        trailing.push(0);
        assert!(Entry::decode(&trailing, &[0, 0]).is_err());
        assert!(Entry::decode(&[9, 0, 0, 0, 1], b"").is_err());
        let (akey, place) = (Key::new(b"c").expect("a key"), (1, 2, object));
        let reserved = Reserved { bytes: 5, ..Reserved::none(1).with(&[4..9, 12..20]) };
        let entry = decode(&reserved::key_of(&place, 7, &akey), &reserved.encode());
        let (dkey, akey) = (Some(Key::from_u64(7)), Some(akey));
        let path = ObjectPath { pool: 1, container: 2, object, dkey, akey };
        assert_eq!(entry, Entry::Object { path, item: Item::Reserved(reserved) });
        let id = TransactionId(Uuid::from_u128(4));
        let stored = key::transaction((1, 2, id), TransactionTail::Version(3));
        let payload = Payload::Inline(Inline { bytes: vec![7; 9], checksum: Some(5) });
        let version = Version { record_size: 0, payload: payload.clone() }.encode();
        let part = TransactionPart::Version { number: 3, payload };
        assert_eq!(decode(&stored, &version), Entry::Transaction { pool: 1, container: 2, id, part });
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(
            kind in 0u8..8, key in proptest::collection::vec(0u8..4, 0..80), value in proptest::collection::vec(any::<u8>(), 0..60)
        ) {
            let _ = Entry::decode(&[&[kind][..], &key].concat(), &value);
        }
    }
}
