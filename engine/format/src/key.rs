//! Keys of the index: their order is the order in which everything is listed.
//!
//! The first byte names the kind of entry. Numbers are big-endian. Texts are escaped, so that their bytewise order is
//! kept and no text is a prefix of another: a zero byte becomes `00 ff`, the end is `00 00`. Epochs are stored
//! inverted: the newest comes first.

use crate::codec::{Decoder, Malformed};

use smallvec::SmallVec;
use weir_proto::limits::KEY_MAX;
use weir_proto::object::Extent;
use weir_proto::{Epoch, Key, ObjectId, TransactionId};

/// An object, as the key of what isn't durable yet.
pub type ObjectKey = (PoolNumber, ContainerNumber, ObjectId);

/// A transaction within the store.
pub type TransactionKey = (PoolNumber, ContainerNumber, TransactionId);

/// No pool or container has this number, so that there is always a next one.
pub const NUMBER_END: u32 = u32::MAX;

/// A key, or a part of one, that is put together for a question. Most need no memory of their own: 96 bytes hold those
/// of extents below a dkey and an akey of up to 40 bytes together.
pub type KeyBytes = SmallVec<[u8; 96]>;

/// A pool of the store.
pub const POOL: u8 = 1;
/// A container of a pool.
pub const CONTAINER: u8 = 2;
/// Space that a container uses, as of the checkpoint.
pub const USAGE: u8 = 3;
/// A piece of an attribute.
pub const ATTRIBUTE: u8 = 4;
/// Everything of an object.
pub const OBJECT: u8 = 5;
/// An epoch whose state a container keeps.
pub const SNAPSHOT: u8 = 6;

/// A transaction that was prepared, or its decision.
pub const TRANSACTION: u8 = 7;

/// Behind an object, dkey or akey: its incarnations.
pub const EVENT: u8 = 0;
/// Behind an object or dkey: the keys below it. Behind an akey: its single values.
pub const BELOW: u8 = 1;
/// Behind an akey: its extents.
pub const EXTENT: u8 = 2;
/// Behind an object: records for which room is kept ([`crate::reserved`]).
pub(crate) const RESERVED: u8 = 2;

/// Number of a pool within a store; not used again for another one as long as the store is open.
pub type PoolNumber = u32;
/// Number of a container within a pool; never used again for another one. 0 stands for the pool's own entries.
pub type ContainerNumber = u32;

/// Object types whose dkeys are integers (`daos_otype_t`).
const INTEGER_DKEYS: [u8; 6] = [2, 4, 9, 11, 12, 13];
/// Object types whose akeys are integers.
const INTEGER_AKEYS: [u8; 2] = [3, 4];

/// A set of object types, all below 64, as bits.
const fn kinds<const COUNT: usize>(list: [u8; COUNT]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < COUNT {
        set |= 1 << list[at];
        at += 1;
    }
    set
}

fn is_among(object: ObjectId, kinds: u64) -> bool {
    kinds.checked_shr(u32::from(object.kind())).is_some_and(|kinds| kinds & 1 == 1)
}

/// Whether dkeys of this object are 8-byte integers.
#[must_use]
pub fn has_integer_dkeys(object: ObjectId) -> bool {
    is_among(object, const { kinds(INTEGER_DKEYS) })
}

/// Whether akeys of this object are 8-byte integers.
#[must_use]
pub fn has_integer_akeys(object: ObjectId) -> bool {
    is_among(object, const { kinds(INTEGER_AKEYS) })
}

/// Has the pieces of an escaped text appended, one after the other.
pub(crate) fn put_escaped(mut append: impl FnMut(&[u8]), text: &[u8]) {
    let mut rest = text;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        append(&rest[..=zero]);
        append(&[0xff]);
        rest = &rest[zero + 1..];
    }
    append(rest);
    append(&[0, 0]);
}

pub(crate) fn take_escaped(decoder: &mut Decoder<'_>) -> Result<Vec<u8>, Malformed> {
    let mut text = Vec::new();
    loop {
        match decoder.u8()? {
            0 if ends_there(decoder)? => return Ok(text),
            byte => text.push(byte),
        }
    }
}

const KEY_LENGTH: Malformed = Malformed("a key has an impossible length");

/// Has what leads from an object to a dkey, or from there to an akey, appended in pieces.
#[inline]
pub fn put_key(mut append: impl FnMut(&[u8]), key: &Key, integer: bool) {
    let bytes = key.as_bytes();
    match bytes.as_array::<8>() {
        Some(number) if integer => {
            let mut below = [BELOW; 1 + 8];
            below[1..].copy_from_slice(number);
            append(&below);
        }
        _ => put_any_key(append, bytes, integer),
    }
}

/// As [`put_key`], of a key that isn't an integer of eight bytes.
#[inline(never)]
fn put_any_key(mut append: impl FnMut(&[u8]), bytes: &[u8], integer: bool) {
    append(&[BELOW]);
    if integer {
        append(bytes);
    } else {
        put_escaped(append, bytes);
    }
}

/// Takes a dkey or akey, as [`put_key`] appends it behind the byte that leads to it.
///
/// # Errors
/// When it is cut, or no key has its length.
pub fn take_key(decoder: &mut Decoder<'_>, integer: bool) -> Result<Key, Malformed> {
    let bytes = if integer { decoder.array::<8>()?.to_vec() } else { take_escaped(decoder)? };
    Key::new(&bytes).map_err(|_| KEY_LENGTH)
}

/// The epoch of an object's entry: all of them end with it.
#[must_use]
pub fn epoch_of(key: &[u8]) -> Option<u64> {
    let epoch = key.last_chunk().filter(|_| key.first() == Some(&OBJECT))?;
    Some(!u64::from_be_bytes(*epoch))
}

/// Whether the entry of this key keeps room for records of an object.
#[inline]
#[must_use]
pub fn is_reserved(key: &[u8]) -> bool {
    key.get(OBJECT_LEN) == Some(&RESERVED) && key[0] == OBJECT
}

/// Key of a pool.
#[must_use]
pub fn pool(pool: PoolNumber) -> Vec<u8> {
    let mut key = vec![POOL];
    key.extend_from_slice(&pool.to_be_bytes());
    key
}

/// Key of a container or its usage.
#[must_use]
pub fn container(kind: u8, pool: PoolNumber, container: ContainerNumber) -> Vec<u8> {
    // With room for an object's id and what usually follows.
    let mut key = Vec::with_capacity(64);
    key.push(kind);
    key.extend_from_slice(&pool.to_be_bytes());
    key.extend_from_slice(&container.to_be_bytes());
    key
}

/// Key of a snapshot.
#[must_use]
pub fn snapshot(pool: PoolNumber, number: ContainerNumber, epoch: u64) -> Vec<u8> {
    let mut key = container(SNAPSHOT, pool, number);
    key.extend_from_slice(&epoch.to_be_bytes());
    key
}

/// What all attributes of a pool begin with.
#[must_use]
pub fn attributes(pool: PoolNumber) -> Vec<u8> {
    let mut key = vec![ATTRIBUTE];
    key.extend_from_slice(&pool.to_be_bytes());
    key
}

/// What all attributes of a scope begin with.
#[must_use]
pub fn attribute_scope(pool: PoolNumber, scope: &[u8]) -> Vec<u8> {
    let mut key = attributes(pool);
    put_escaped(|bytes| key.extend_from_slice(bytes), scope);
    key
}

/// What the pieces of an attribute begin with; the number of the piece follows as two bytes.
#[must_use]
pub fn attribute(pool: PoolNumber, scope: &[u8], name: &[u8]) -> Vec<u8> {
    let mut key = attribute_scope(pool, scope);
    put_escaped(|bytes| key.extend_from_slice(bytes), name);
    key
}

/// Name and piece number of an attribute from what follows its scope.
///
/// # Errors
/// When they do not follow the format.
pub fn attribute_name(rest: &[u8]) -> Result<(Vec<u8>, u16), Malformed> {
    let mut decoder = Decoder::new(rest);
    let name = take_escaped(&mut decoder)?;
    Ok((name, u16::from_be_bytes(decoder.array()?)))
}

/// Pool and container that an entry's bytes are counted for.
#[must_use]
pub fn owner(key: &[u8]) -> Option<(PoolNumber, ContainerNumber)> {
    let mut decoder = Decoder::new(key);
    let kind = decoder.u8().ok()?;
    let pool = u32::from_be_bytes(decoder.array().ok()?);
    match kind {
        ATTRIBUTE => Some((pool, 0)),
        OBJECT | TRANSACTION => Some((pool, u32::from_be_bytes(decoder.array().ok()?))),
        _ => None,
    }
}

/// Pool, and container if it is a container's, without which an entry belongs to nobody. Pools are their own, and counters of what
/// is used mean nothing by themselves.
#[must_use]
pub fn belongs_to(key: &[u8]) -> Option<(PoolNumber, Option<ContainerNumber>)> {
    let mut decoder = Decoder::new(key);
    let kind = decoder.u8().ok()?;
    let pool = u32::from_be_bytes(decoder.array().ok()?);
    match kind {
        CONTAINER | ATTRIBUTE => Some((pool, None)),
        OBJECT | SNAPSHOT | TRANSACTION => Some((pool, Some(u32::from_be_bytes(decoder.array().ok()?)))),
        _ => None,
    }
}

/// Whether the entry of this key is a version of a value, which may refer to blocks.
#[must_use]
pub fn is_version(key: &[u8]) -> bool {
    fn find(key: &[u8]) -> Result<bool, Malformed> {
        let mut decoder = Decoder::new(key);
        match decoder.u8()? {
            OBJECT => {}
            TRANSACTION => return Ok(matches!(transaction_from(key)?.1, TransactionTail::Version(_))),
            _ => return Ok(false),
        }
        decoder.bytes(8)?;
        let object = ObjectId::from_bytes(decoder.array()?);
        for integer in [has_integer_dkeys(object), has_integer_akeys(object)] {
            if decoder.u8()? != BELOW {
                return Ok(false);
            }
            skip_key(&mut decoder, integer)?;
        }
        Ok(decoder.u8()? != EVENT)
    }
    find(key).unwrap_or(false)
}

/// As [`take_key`], keeping nothing.
pub(crate) fn skip_key(decoder: &mut Decoder<'_>, integer: bool) -> Result<(), Malformed> {
    if integer {
        return decoder.bytes(8).map(|_| ());
    }
    let mut len = 0;
    while decoder.u8()? != 0 || !ends_there(decoder)? {
        len += 1;
    }
    if (1..=KEY_MAX).contains(&len) { Ok(()) } else { Err(KEY_LENGTH) }
}

/// Whether a zero that was taken from an escaped text, with what follows, is its end.
fn ends_there(decoder: &mut Decoder<'_>) -> Result<bool, Malformed> {
    match decoder.u8()? {
        0 => Ok(true),
        0xff => Ok(false),
        _ => Err(Malformed("a text has an unknown escape")),
    }
}

/// What an entry of a transaction holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionTail {
    /// A piece of its operations.
    Operations(u16),
    /// A version that it stores.
    Version(u32),
    /// What became of it.
    Decision,
}

/// What all entries of a container's transactions begin with.
#[must_use]
pub fn transactions(pool: PoolNumber, number: ContainerNumber) -> Vec<u8> {
    container(TRANSACTION, pool, number)
}

/// An entry of a transaction.
#[must_use]
pub fn transaction((pool, number, id): TransactionKey, tail: TransactionTail) -> Vec<u8> {
    let mut key = transactions(pool, number);
    key.extend_from_slice(id.0.as_bytes());
    match tail {
        TransactionTail::Operations(piece) => {
            key.push(0);
            key.extend_from_slice(&piece.to_be_bytes());
        }
        TransactionTail::Version(version) => {
            key.push(1);
            key.extend_from_slice(&version.to_be_bytes());
        }
        TransactionTail::Decision => key.push(2),
    }
    key
}

/// The transaction that an entry belongs to, and what it holds.
///
/// # Errors
/// When the key does not follow the format.
pub fn transaction_from(key: &[u8]) -> Result<(TransactionKey, TransactionTail), Malformed> {
    let mut decoder = Decoder::new(key);
    decoder.u8()?;
    let pool = u32::from_be_bytes(decoder.array()?);
    let number = u32::from_be_bytes(decoder.array()?);
    let id = TransactionId(uuid::Uuid::from_bytes(decoder.array()?));
    let tail = match decoder.u8()? {
        0 => TransactionTail::Operations(u16::from_be_bytes(decoder.array()?)),
        1 => TransactionTail::Version(u32::from_be_bytes(decoder.array()?)),
        2 => TransactionTail::Decision,
        _ => return Err(Malformed("an entry of a transaction is of unknown kind")),
    };
    if decoder.is_empty() {
        Ok(((pool, number, id), tail))
    } else {
        Err(Malformed("a key has bytes behind its end"))
    }
}

/// What all keys of a container's objects begin with.
#[must_use]
pub fn objects(pool: PoolNumber, number: ContainerNumber) -> Vec<u8> {
    container(OBJECT, pool, number)
}

/// The first key behind all keys that begin with `prefix`. Prefixes here never consist of `ff` alone.
#[must_use]
pub fn after(prefix: &[u8]) -> Vec<u8> {
    let mut key = prefix.to_vec();
    while let Some(last) = key.pop() {
        if last < 0xff {
            key.push(last + 1);
            break;
        }
    }
    key
}

/// Bytes of an object's path: kind, numbers of pool and container, id.
pub const OBJECT_LEN: usize = 1 + 2 * size_of::<u32>() + 16;

/// The path of an object.
pub(crate) fn object_path((pool, container, object): &ObjectKey) -> [u8; OBJECT_LEN] {
    let mut path = [OBJECT; OBJECT_LEN];
    path[1..5].copy_from_slice(&pool.to_be_bytes());
    path[5..9].copy_from_slice(&container.to_be_bytes());
    path[9..].copy_from_slice(&object.to_bytes());
    path
}

/// What stands behind a path in the key of an entry: its kind with what goes with that, and numbers.
fn tail<const KIND: usize, const NUMBERS: usize, const LEN: usize>(
    kind: [u8; KIND],
    numbers: [u64; NUMBERS],
) -> [u8; LEN] {
    const { assert!(LEN == KIND + NUMBERS * size_of::<u64>(), "a tail is as long as its parts") }
    let mut tail = [0; LEN];
    tail[..KIND].copy_from_slice(&kind);
    for (place, number) in tail[KIND..].as_chunks_mut().0.iter_mut().zip(numbers) {
        *place = number.to_be_bytes();
    }
    tail
}

/// Behind an object, dkey or akey: the incarnation that began or ended at this epoch.
#[must_use]
pub fn event_tail(epoch: u64) -> [u8; 9] {
    tail([EVENT], [!epoch])
}

/// Behind an akey: the single value of this epoch.
#[must_use]
pub fn single_tail(epoch: u64) -> [u8; 9] {
    tail([BELOW], [!epoch])
}

/// Behind an akey: what extents of one length class that start at or behind `index` are at or behind.
pub(crate) fn extents_tail(class: u8, index: u64) -> [u8; 10] {
    tail([EXTENT, class], [index])
}

/// Behind an akey: one version of an extent.
#[must_use]
pub fn extent_version_tail(extent: Extent, epoch: u64) -> [u8; 26] {
    tail([EXTENT, length_class(extent.count)], [extent.index, extent.count, !epoch])
}

/// A place in the hierarchy object → dkey → akey: what its own entries and those below begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    object: ObjectId,
    bytes: KeyBytes,
}

impl Path {
    /// An object.
    #[must_use]
    pub fn object(pool: PoolNumber, container: ContainerNumber, object: ObjectId) -> Self {
        Self { object, bytes: KeyBytes::from_slice(&object_path(&(pool, container, object))) }
    }

    /// A dkey of this object.
    #[must_use]
    pub fn dkey(&self, dkey: &Key) -> Self {
        self.go_to(dkey, has_integer_dkeys(self.object))
    }

    /// An akey of this dkey.
    #[must_use]
    pub fn akey(&self, akey: &Key) -> Self {
        self.go_to(akey, has_integer_akeys(self.object))
    }

    fn go_to(&self, key: &Key, integer: bool) -> Self {
        let mut bytes = self.bytes.clone();
        put_key(|piece| bytes.extend_from_slice(piece), key, integer);
        Self { object: self.object, bytes }
    }

    /// What the keys of all entries at this place and below begin with.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn with(&self, tail: &[u8]) -> KeyBytes {
        let mut key = KeyBytes::from_slice(&self.bytes);
        key.extend_from_slice(tail);
        key
    }

    /// What the incarnations begin with.
    #[must_use]
    pub fn events(&self) -> KeyBytes {
        self.with(&[EVENT])
    }

    /// The incarnation that began or ended at this epoch; also the first key of those up to it.
    #[must_use]
    pub fn event(&self, epoch: u64) -> KeyBytes {
        self.with(&event_tail(epoch))
    }

    /// What the keys below an object or dkey begin with.
    #[must_use]
    pub fn below(&self) -> KeyBytes {
        self.with(&[BELOW])
    }

    /// What single values of an akey begin with.
    #[must_use]
    pub fn singles(&self) -> KeyBytes {
        self.with(&[BELOW])
    }

    /// The single value of this epoch; also the first key of those up to it.
    #[must_use]
    pub fn single(&self, epoch: u64) -> KeyBytes {
        self.with(&single_tail(epoch))
    }

    /// What extents of an akey begin with.
    #[must_use]
    pub fn extents(&self) -> KeyBytes {
        self.with(&[EXTENT])
    }

    /// What extents of one length class that start at or behind `index` are at or behind.
    #[must_use]
    pub fn extents_from(&self, class: u8, index: u64) -> KeyBytes {
        self.with(&extents_tail(class, index))
    }

    /// What all versions of one extent begin with.
    #[must_use]
    pub fn versions(&self, extent: Extent) -> KeyBytes {
        self.with(&tail::<2, 2, 18>([EXTENT, length_class(extent.count)], [extent.index, extent.count]))
    }

    /// One version of an extent; also the first key of those up to its epoch.
    #[must_use]
    pub fn extent(&self, extent: Extent, epoch: u64) -> KeyBytes {
        self.with(&extent_version_tail(extent, epoch))
    }
}

/// Length class of an extent: extents of class `c` have fewer than `4^(c+1)` and at least `4^c` records. Extents of
/// one class are sorted by start, so that those which reach into a range are found by looking back no further than
/// the class's longest length.
#[must_use]
pub fn length_class(count: u64) -> u8 {
    u8::try_from(count.max(1).ilog2() / 2).unwrap_or(u8::MAX)
}

/// Most records of an extent of this class.
#[must_use]
pub fn class_length_max(class: u8) -> u64 {
    let bits = (u32::from(class) + 1) * 2;
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// An entry of an object, read back from its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// An incarnation.
    Event(u64),
    /// A single value.
    Single(u64),
    /// An extent.
    Extent(Extent, u64),
}

fn inverted(decoder: &mut Decoder<'_>) -> Result<u64, Malformed> {
    Ok(!u64::from_be_bytes(decoder.array()?))
}

/// Extent and epoch from an extent's class and what follows it.
///
/// # Errors
/// When it does not follow the format.
pub fn extent_tail(class: u8, rest: &[u8]) -> Result<(Extent, u64), Malformed> {
    let mut decoder = Decoder::new(rest);
    let index = u64::from_be_bytes(decoder.array()?);
    let count = u64::from_be_bytes(decoder.array()?);
    // A scan that goes on behind an extent computes the key from it: with another class it would go back.
    if count == 0 || class != length_class(count) || index.checked_add(count).is_none() {
        return Err(Malformed("an index key has an impossible extent"));
    }
    Ok((Extent { index, count }, inverted(&mut decoder)?))
}

/// What follows an akey's path.
///
/// # Errors
/// When it does not follow the format.
pub fn akey_tail(rest: &[u8]) -> Result<Tail, Malformed> {
    let mut decoder = Decoder::new(rest);
    let tail = match decoder.u8()? {
        EVENT => Tail::Event(inverted(&mut decoder)?),
        BELOW => Tail::Single(inverted(&mut decoder)?),
        EXTENT => {
            let class = decoder.u8()?;
            let (extent, epoch) = extent_tail(class, decoder.rest())?;
            decoder.bytes(3 * size_of::<u64>())?;
            Tail::Extent(extent, epoch)
        }
        _ => return Err(Malformed("an index key has an unknown kind")),
    };
    if decoder.is_empty() { Ok(tail) } else { Err(Malformed("an index key has bytes behind its end")) }
}

/// The dkey from what follows [`Path::below`] of an object.
///
/// # Errors
/// When it does not follow the format.
pub fn dkey_from(object: ObjectId, rest: &[u8]) -> Result<Key, Malformed> {
    take_key(&mut Decoder::new(rest), has_integer_dkeys(object))
}

/// The akey from what follows [`Path::below`] of a dkey.
///
/// # Errors
/// When it does not follow the format.
pub fn akey_from(object: ObjectId, rest: &[u8]) -> Result<Key, Malformed> {
    take_key(&mut Decoder::new(rest), has_integer_akeys(object))
}

/// The object from what follows [`objects`].
///
/// # Errors
/// When there are fewer bytes.
pub fn object_from(rest: &[u8]) -> Result<ObjectId, Malformed> {
    Ok(ObjectId::from_bytes(Decoder::new(rest).array()?))
}

/// Epoch of an event from what follows [`Path::events`].
///
/// # Errors
/// When there are fewer bytes.
pub fn epoch_from(rest: &[u8]) -> Result<Epoch, Malformed> {
    Ok(Epoch(inverted(&mut Decoder::new(rest))?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A key of an object whose keys are integers, or texts.
    pub(crate) fn any_key(bytes: &[u8], is_integer: bool) -> Key {
        if is_integer { Key::from_u64(u64::from(bytes[0])) } else { Key::new(bytes).expect("a short key") }
    }

    fn path(kind: u8) -> Path {
        Path::object(1, 2, ObjectId { hi: 3, lo: 4 }.with_class(kind, 1, 1))
    }

    proptest! {
        #[test]
        fn escaped_texts_keep_their_order_and_come_back(
            a in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 1..6),
            b in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 1..6),
        ) {
            let key = |bytes: &[u8]| Key::new(bytes).expect("a short key");
            let (left, right) = (path(0).dkey(&key(&a)), path(0).dkey(&key(&b)));
            prop_assert_eq!(left.as_bytes().cmp(right.as_bytes()), a.cmp(&b));
            let below = path(0).below();
            prop_assert_eq!(dkey_from(path(0).object, &left.as_bytes()[below.len()..]), Ok(key(&a)));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = akey_tail(&bytes);
            let _ = attribute_name(&bytes);
            let _ = owner(&bytes);
            let _ = transaction_from(&bytes);
            let _ = dkey_from(ObjectId::default(), &bytes);
        }

        #[test]
        fn a_length_is_within_its_class(count in 1u64..) {
            let class = length_class(count);
            prop_assert!(count <= class_length_max(class));
            prop_assert!(class == 0 || count > class_length_max(class - 1));
        }
    }

    #[test]
    fn newest_versions_come_first_and_tails_come_back() {
        let akey = path(11).dkey(&Key::from_u64(5)).akey(&Key::new(b"a").expect("a key"));
        assert!(akey.single(9) < akey.single(8));
        let extent = Extent { index: 10, count: 7 };
        let stored = akey.extent(extent, 33);
        assert!(stored.starts_with(&akey.versions(extent)));
        assert_eq!(akey_tail(&stored[akey.as_bytes().len()..]), Ok(Tail::Extent(extent, 33)));
        assert_eq!(owner(&stored), Some((1, 2)));
        assert!(is_version(&stored) && is_version(&akey.single(1)));
        assert!(!is_version(&akey.event(1)) && !is_version(&pool(1)));
        let place = (1, 2, TransactionId(uuid::Uuid::from_u128(9)));
        for tail in
            [TransactionTail::Operations(3), TransactionTail::Version(70_000), TransactionTail::Decision]
        {
            let stored = transaction(place, tail);
            assert_eq!(transaction_from(&stored), Ok((place, tail)));
            assert_eq!(owner(&stored), Some((1, 2)));
            assert_eq!(is_version(&stored), matches!(tail, TransactionTail::Version(_)));
        }
    }

    #[test]
    fn the_key_after_a_prefix_is_behind_all_it_begins() {
        assert_eq!(after(&[1, 2]), [1, 3]);
        assert_eq!(after(&[1, 0xff, 0xff]), [2]);
    }
}
