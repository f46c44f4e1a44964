//! Identifiers of pools, containers, objects and keys.

use core::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use uuid::Uuid;

use crate::limits::KEY_MAX;

/// Number of an engine in its system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// Index of a target within its engine (the RPC tag).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TargetIndex(pub u32);

/// Identity of a pool, unique over time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PoolId(pub Uuid);

/// Identity of a container, unique over time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ContainerId(pub Uuid);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TargetIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of an object in its container: 128 bits, as DAOS lays them out.
///
/// `hi` = type (bits 63–56) | redundancy code of the class (55–48) | group count of the class (47–32) | 32 user
/// bits; `lo` = 64 user bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ObjectId {
    /// Type, class and the upper user bits.
    pub hi: u64,
    /// The lower user bits.
    pub lo: u64,
}

impl ObjectId {
    /// Object type (`daos_otype_t`), which decides what keys look like.
    #[must_use]
    pub const fn kind(self) -> u8 {
        (self.hi >> 56) as u8
    }

    /// Redundancy code of the class (`OR_RP_1` = 1, …).
    #[must_use]
    pub const fn redundancy(self) -> u8 {
        ((self.hi >> 48) & 0xff) as u8
    }

    /// Group count of the class; 0xffff stands for "all".
    #[must_use]
    pub const fn groups(self) -> u16 {
        ((self.hi >> 32) & 0xffff) as u16
    }

    /// The same user bits with the given type and class encoded.
    #[must_use]
    pub const fn with_class(self, kind: u8, redundancy: u8, groups: u16) -> Self {
        let user = self.hi & 0xffff_ffff;
        Self {
            hi: ((kind as u64) << 56) | ((redundancy as u64) << 48) | ((groups as u64) << 32) | user,
            lo: self.lo,
        }
    }

    /// Order-preserving bytes: `hi` then `lo`, big endian.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.hi) << 64) | u128::from(self.lo)).to_be_bytes()
    }

    /// The inverse of [`ObjectId::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let (hi, lo) = bytes.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        Self { hi: word(hi), lo: word(lo) }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.hi, self.lo)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{:016x}", self.hi, self.lo)
    }
}

/// A distribution key or attribute key: 1 to [`KEY_MAX`] bytes, compared bytewise. Integer keys are 8 bytes, big
/// endian, so that bytewise order is numeric order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "serde_bytes::ByteBuf", into = "serde_bytes::ByteBuf")]
pub struct Key(SmallVec<[u8; KEY_WITHIN]>);

/// Bytes of a key that takes no memory of its own: integers, and most names of attributes.
const KEY_WITHIN: usize = 16;

/// A key has an impossible length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a key has 1 to {KEY_MAX} bytes, not {0}")]
pub struct KeyLength(pub usize);

impl Key {
    /// A key of these bytes.
    ///
    /// # Errors
    /// When there are none or more than [`KEY_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, KeyLength> {
        if bytes.is_empty() || bytes.len() > KEY_MAX {
            return Err(KeyLength(bytes.len()));
        }
        Ok(Self(SmallVec::from_slice(bytes)))
    }

    /// An integer key.
    #[must_use]
    pub fn from_u64(value: u64) -> Self {
        Self(SmallVec::from_slice(&value.to_be_bytes()))
    }

    /// The integer of an integer key.
    #[must_use]
    pub fn to_u64(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.as_bytes().try_into().ok()?))
    }

    /// The bytes of the key.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Placement hash of a dkey: the first eight bytes of its BLAKE3 hash, little endian. Part of the protocol:
    /// client and engine must agree on it.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let hash = blake3::hash(&self.0);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

impl TryFrom<serde_bytes::ByteBuf> for Key {
    type Error = KeyLength;

    fn try_from(bytes: serde_bytes::ByteBuf) -> Result<Self, KeyLength> {
        Self::new(&bytes)
    }
}

impl From<Key> for serde_bytes::ByteBuf {
    fn from(key: Key) -> Self {
        Self::from(key.0.into_vec())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_id_fields_survive_encoding() {
        let oid = ObjectId { hi: 7, lo: 9 }.with_class(13, 1, 0xffff);
        assert_eq!((oid.kind(), oid.redundancy(), oid.groups()), (13, 1, 0xffff));
        assert_eq!(oid.hi & 0xffff_ffff, 7);
        assert_eq!(ObjectId::from_bytes(oid.to_bytes()), oid);
    }

    #[test]
    fn integer_keys_sort_as_numbers() {
        assert!(Key::from_u64(255) < Key::from_u64(256));
        assert_eq!(Key::from_u64(77).to_u64(), Some(77));
    }

    #[test]
    fn keys_without_bytes_or_with_too_many_are_refused() {
        assert_eq!(Key::new(b""), Err(KeyLength(0)));
        assert_eq!(Key::new(&[0; KEY_MAX + 1]), Err(KeyLength(KEY_MAX + 1)));
    }
}
