//! Object requests: update, fetch, punch, list and key queries.
//!
//! Data of an update, and of a fetch's reply, is the concatenation of all values in the order of the akeys and,
//! within an akey, of the extents. It stands behind the postcard-encoded message when it fits
//! [`crate::limits::INLINE_MAX`], else it moves by RMA from or to the client's memory.

use serde::{Deserialize, Serialize};

use crate::limits::{AKEYS_MAX, EXTENTS_MAX, PAYLOAD_MAX};
use crate::{Capability, Epoch, Key, ObjectId};

/// Conditions and flags of an operation, as bits (the values of `DAOS_COND_*`, and from bit 16 on our own).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Conditions(pub u32);

impl Conditions {
    /// No condition.
    pub const NONE: Self = Self(0);
    /// The punched thing must exist.
    pub const PUNCH: Self = Self(1);
    /// The dkey must not exist.
    pub const DKEY_INSERT: Self = Self(2);
    /// The dkey must exist.
    pub const DKEY_UPDATE: Self = Self(4);
    /// The dkey must exist for a fetch.
    pub const DKEY_FETCH: Self = Self(8);
    /// No akey may exist.
    pub const AKEY_INSERT: Self = Self(16);
    /// Every akey must exist.
    pub const AKEY_UPDATE: Self = Self(32);
    /// Every akey must exist for a fetch.
    pub const AKEY_FETCH: Self = Self(64);
    /// Conditions stand at each akey ([`AkeyUpdate::conditions`]).
    pub const PER_AKEY: Self = Self(128);
    /// The object must exist on the target of an update: something was stored there since it was last removed as a whole.
    pub const OBJECT_EXISTS: Self = Self(1 << 16);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A run of records of an array value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// First record.
    pub index: u64,
    /// Number of records, at least 1; `index + count` does not overflow.
    pub count: u64,
}

impl Extent {
    /// First record behind the extent.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.index.saturating_add(self.count)
    }
}

/// What an akey holds and which part of it an operation names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Value {
    /// One value of `size` bytes. Update with size 0 punches it. In a fetch, size is the most bytes wanted.
    Single {
        /// Bytes.
        size: u64,
    },
    /// Records of `record_size` bytes each. Update with record size 0 punches the extents.
    Array {
        /// Bytes of a record; fixed for the life of the akey. In a fetch 0 asks for the size only.
        record_size: u32,
        /// Extents, not overlapping.
        extents: Vec<Extent>,
    },
}

impl Value {
    /// Bytes of data that belong to this value in a request, or `None` when that overflows.
    #[must_use]
    pub fn data_len(&self) -> Option<u64> {
        match self {
            Self::Single { size } => Some(*size),
            Self::Array { record_size, extents } => extents
                .iter()
                .try_fold(0_u64, |sum, extent| sum.checked_add(extent.count))?
                .checked_mul(u64::from(*record_size)),
        }
    }
}

/// One akey of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AkeyUpdate {
    /// The akey.
    pub akey: Key,
    /// What is written.
    pub value: Value,
    /// Conditions of this akey, read only under [`Conditions::PER_AKEY`].
    pub conditions: Conditions,
    /// CRC-32C of this akey's data as the client saw it, one for each chunk ([`crate::chunk`]), in the order of the data;
    /// empty when the container has checksums off. They are compared when the data arrives, and stored as they are.
    pub checksums: Vec<u32>,
}

/// Updates akeys of one dkey, all or none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdateRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object.
    pub object: ObjectId,
    /// The dkey.
    pub dkey: Key,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// Conditions of the whole update.
    pub conditions: Conditions,
    /// What is written.
    pub akeys: Vec<AkeyUpdate>,
}

/// Outcome of an update or punch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdateReply {
    /// Epoch at which the change is visible.
    pub epoch: Epoch,
}

/// One akey of a fetch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AkeyFetch {
    /// The akey.
    pub akey: Key,
    /// What is read.
    pub value: Value,
    /// Conditions of this akey, read only under [`Conditions::PER_AKEY`].
    pub conditions: Conditions,
}

/// Reads akeys of one dkey.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FetchRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object.
    pub object: ObjectId,
    /// The dkey.
    pub dkey: Key,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// State to read; [`Epoch::MAX`] for the newest.
    pub epoch: Epoch,
    /// Conditions of the whole fetch.
    pub conditions: Conditions,
    /// What is read.
    pub akeys: Vec<AkeyFetch>,
}

/// What was found of one akey.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fetched {
    /// Size of the single value, or of a record; 0 when there is nothing.
    pub size: u64,
    /// Which records of the requested extents are real, in the order of the request; holes are left out, and their
    /// bytes in the data are zero. Empty for a single value.
    pub present: Vec<Extent>,
    /// CRC-32C of this akey's returned data, one per requested extent (one for a single value). Made of the stored
    /// checksums, which are the writer's, and not of the data: for a whole chunk it is the stored one, for several it is
    /// what they imply for the bytes together. Only for a chunk of which a part is returned the engine computes one, and
    /// verifies the stored one afterwards. Other data has been compared with them unless the client has said that it does
    /// ([`crate::opcode::OBJECT_FETCH_TO_COMPARE`]).
    pub checksums: Vec<u32>,
}

/// Outcome of a fetch. Data follows inline or was pushed to the client's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FetchReply {
    /// One entry for each akey of the request, in its order.
    pub akeys: Vec<Fetched>,
    /// Bytes of data: a single value shorter than asked for contributes only its own bytes.
    pub data_len: u64,
    /// Whether the data stands behind this message (else it was pushed).
    pub inline: bool,
}

/// What a punch removes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PunchScope {
    /// The whole object, as far as this target holds it.
    Object,
    /// Whole dkeys.
    Dkeys(Vec<Key>),
    /// Akeys of one dkey.
    Akeys(Key, Vec<Key>),
    /// A whole dkey, provided that all of these akeys exist in it; otherwise the punch fails with `NONEXIST` whatever
    /// the conditions say. What was decided on an old look at a dkey can't remove its successor this way.
    DkeyWith(Key, Vec<Key>),
}

/// Removes an object, dkeys or akeys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PunchRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object.
    pub object: ObjectId,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// [`Conditions::PUNCH`] or none.
    pub conditions: Conditions,
    /// What goes.
    pub scope: PunchScope,
}

/// What a list enumerates.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ListScope {
    /// Objects of the container on this target.
    Objects,
    /// Dkeys of an object.
    Dkeys,
    /// Akeys of a dkey.
    Akeys(Key),
    /// Extents of an array akey: dkey, akey.
    Extents(Key, Key),
}

/// Lists keys in their order, a page at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object; ignored when objects are listed.
    pub object: ObjectId,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// State to read; [`Epoch::MAX`] for the newest.
    pub epoch: Epoch,
    /// What is listed.
    pub scope: ListScope,
    /// Where to go on: the `next` of the previous page, empty for the first.
    #[serde(with = "serde_bytes")]
    pub anchor: Vec<u8>,
    /// Most entries wanted, at most [`crate::limits::LIST_KEYS_MAX`].
    pub limit: u32,
    /// With dkeys: also return the single value of this akey of each, when it fits the reply.
    pub with_value: Option<Key>,
}

/// One entry of a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// The key's bytes; 16 bytes of object id when objects are listed; empty for extents.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// The value asked for by [`ListRequest::with_value`].
    pub value: Option<serde_bytes::ByteBuf>,
    /// For extents: the extent, its record size and its epoch.
    pub extent: Option<(Extent, u32, Epoch)>,
}

/// A page of a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListReply {
    /// Entries in order. An entry whose value did not fit starts the next page.
    pub entries: Vec<Listed>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<serde_bytes::ByteBuf>,
}

/// Asks for the greatest or smallest integer key or record. Only objects whose keys at the asked level are integers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueryKeyRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object.
    pub object: ObjectId,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// State to read; [`Epoch::MAX`] for the newest.
    pub epoch: Epoch,
    /// What is asked.
    pub query: KeyQuery,
}

/// What a key query asks. The reply carries the object's newest epoch in each case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyQuery {
    /// Nothing but the newest epoch.
    Epoch,
    /// The greatest or smallest key, and with `extent` the greatest or smallest record of it.
    Search {
        /// Greatest (else smallest).
        max: bool,
        /// The dkey, or `None` to search it.
        dkey: Option<Key>,
        /// The akey, or `None` to search it.
        akey: Option<Key>,
        /// Whether the record is wanted too; only for arrays.
        extent: bool,
    },
}

/// Outcome of a key query on one target.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueryKeyReply {
    /// The dkey found.
    pub dkey: Option<Key>,
    /// The akey found.
    pub akey: Option<Key>,
    /// The extent that holds the record found, or the part of it next to that record, with its record size.
    pub extent: Option<(Extent, u32)>,
    /// Epoch of the newest update or punch of the object on this target; [`Epoch::ZERO`] when there is none.
    pub max_epoch: Epoch,
}

/// Asks what a [`QueryKeyRequest`] asks, in parts: a target looks at a bounded number of keys and records for each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SearchKeyRequest {
    /// What is asked, the same in all parts.
    pub query: QueryKeyRequest,
    /// Where to go on: the `next` of the part before, empty for the first.
    #[serde(with = "serde_bytes")]
    pub anchor: Vec<u8>,
}

/// Outcome of a part of a search on one target.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SearchKeyReply {
    /// What was found; no key where there is another part.
    pub found: QueryKeyReply,
    /// Where the next part starts; `None` when this was the last one.
    pub next: Option<serde_bytes::ByteBuf>,
}

/// Asks what a [`SearchKeyRequest`] asks, of dkeys that are integers and one akey, and with the last part how many of that
/// akey's records are real.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MeasureRequest {
    /// The search.
    pub search: SearchKeyRequest,
    /// Records of a dkey that are counted: those below this one.
    pub below: u64,
}

/// What stands behind a [`SearchKeyRequest`], a [`MeasureRequest`] or a [`RunsRequest`] about an object with replicas: a target may
/// have places in several groups of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupTail {
    /// The group that is asked about; `None`: all that the target has.
    pub group: Option<u32>,
}

/// Outcome of a [`MeasureRequest`] on one target.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MeasureReply {
    /// Outcome of the search.
    pub search: SearchKeyReply,
    /// Real records of the dkeys that were looked at; 0 where there is another part.
    pub real: u64,
    /// The dkey at which counting ended early, because there are many records; `None` when all are counted.
    pub stopped: Option<u64>,
}

/// Asks which records of an akey are real, dkey by dkey in their order. Only objects whose dkeys are integers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunsRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object.
    pub object: ObjectId,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// State to read; [`Epoch::MAX`] for the newest.
    pub epoch: Epoch,
    /// The akey.
    pub akey: Key,
    /// Dkey and record to begin with.
    pub from: (u64, u64),
    /// Records of a dkey that are asked for: those below this one.
    pub below: u64,
    /// Most runs wanted, at most [`crate::limits::RUNS_MAX`].
    pub limit: u32,
}

/// Outcome of a [`RunsRequest`] on one target.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RunsReply {
    /// Dkey and records, in order. Records that adjoin may come as two runs.
    pub runs: Vec<(u64, Extent)>,
    /// Dkey and record at which the next part begins; `None` at the end.
    pub next: Option<(u64, u64)>,
}

/// Has a target keep room for records of an akey that aren't written yet, or give it up. Only objects whose dkeys are integers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The object.
    pub object: ObjectId,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// The akey.
    pub akey: Key,
    /// Bytes of a record.
    pub record_size: u32,
    /// Records of a dkey: those below this one.
    pub records: u64,
    /// Dkey and record to begin with.
    pub from: (u64, u64),
    /// Dkey and record behind the last one.
    pub below: (u64, u64),
    /// Whether room is to be kept: for all or none. Otherwise it is given up.
    pub keeps: bool,
    /// Runs of dkeys, ascending: how far the first is from that of `from`, and how many. At most
    /// [`crate::limits::RESERVED_DKEYS_MAX`] dkeys; to give up that of all between `from` and `below`, none.
    pub dkeys: Vec<(u32, u32)>,
}

/// Outcome of a [`ReserveRequest`] on one target.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReserveReply {
    /// Runs of dkeys, as in the request, of which no room was kept before.
    pub fresh: Vec<(u32, u32)>,
}

/// A request that no well-behaved client sends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidRequest {
    /// No akey or too many.
    #[error("a request names 1 to {AKEYS_MAX} akeys, not {0}")]
    AkeyCount(usize),
    /// No extent or too many.
    #[error("a request names 1 to {EXTENTS_MAX} extents, not {0}")]
    ExtentCount(usize),
    /// An extent without records or beyond the end of the index space.
    #[error("extent {0:?} of akey \"{1}\" is empty or runs past the last record")]
    Extent(Extent, Key),
    /// Two extents of one akey share a record.
    #[error("extents of akey \"{0}\" overlap")]
    Overlap(Key),
    /// More data than one request may carry.
    #[error("a request carries at most {PAYLOAD_MAX} bytes, this one {0}")]
    TooLarge(u64),
    /// The same akey twice.
    #[error("akey \"{0}\" is named twice")]
    Repeated(Key),
}

/// Highest record index that may be named: bit 63 is reserved (daos-api §1.4).
const INDEX_END: u64 = 1 << 63;

/// Checks counts, extents and sizes of an update or fetch and returns its bytes of data.
///
/// # Errors
/// Names the rule that is broken.
pub fn validate<'a>(
    akeys: impl ExactSizeIterator<Item = (&'a Key, &'a Value)>,
) -> Result<u64, InvalidRequest> {
    let count = akeys.len();
    if count == 0 || count > AKEYS_MAX {
        return Err(InvalidRequest::AkeyCount(count));
    }
    let mut names = Vec::with_capacity(if count > 1 { count } else { 0 });
    let mut total = 0_u64;
    let mut extent_count = 0;
    for (akey, value) in akeys {
        if let Value::Array { extents, .. } = value {
            extent_count += extents.len();
            if extents.is_empty() || extent_count > EXTENTS_MAX {
                return Err(InvalidRequest::ExtentCount(extent_count));
            }
            validate_extents(akey, extents)?;
        }
        let len = value.data_len().unwrap_or(u64::MAX);
        total = total.saturating_add(len);
        if total > PAYLOAD_MAX {
            return Err(InvalidRequest::TooLarge(total));
        }
        if count > 1 {
            names.push(akey);
        }
    }
    if count == 1 {
        return Ok(total);
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(InvalidRequest::Repeated(pair[0].clone())),
        None => Ok(total),
    }
}

fn validate_extents(akey: &Key, extents: &[Extent]) -> Result<(), InvalidRequest> {
    for extent in extents {
        let end = extent.index.checked_add(extent.count);
        if extent.count == 0 || end.is_none_or(|end| end > INDEX_END) {
            return Err(InvalidRequest::Extent(*extent, akey.clone()));
        }
    }
    if extents.len() < 2 {
        return Ok(());
    }
    let mut sorted = extents.to_vec();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0].end() > pair[1].index) {
        return Err(InvalidRequest::Overlap(akey.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).expect("a short key")
    }

    fn array(record_size: u32, extents: &[(u64, u64)]) -> Value {
        let extents = extents.iter().map(|&(index, count)| Extent { index, count }).collect();
        Value::Array { record_size, extents }
    }

    fn check(akeys: &[(Key, Value)]) -> Result<u64, InvalidRequest> {
        validate(akeys.iter().map(|(akey, value)| (akey, value)))
    }

    #[test]
    fn a_good_request_is_measured() {
        let akeys = [(key("a"), array(4, &[(0, 2), (10, 1)])), (key("b"), Value::Single { size: 5 })];
        assert_eq!(check(&akeys), Ok(17));
    }

    #[test]
    fn broken_rules_are_named() {
        assert_eq!(check(&[]), Err(InvalidRequest::AkeyCount(0)));
        let overlap = [(key("a"), array(1, &[(5, 5), (0, 6)]))];
        assert_eq!(check(&overlap), Err(InvalidRequest::Overlap(key("a"))));
        let past_end = [(key("a"), array(1, &[(u64::MAX, 2)]))];
        assert!(matches!(check(&past_end), Err(InvalidRequest::Extent(..))));
        let huge = [(key("a"), array(u32::MAX, &[(0, 1 << 40)]))];
        assert!(matches!(check(&huge), Err(InvalidRequest::TooLarge(_))));
        let twice = [(key("a"), Value::Single { size: 1 }), (key("a"), Value::Single { size: 1 })];
        assert_eq!(check(&twice), Err(InvalidRequest::Repeated(key("a"))));
    }
}
