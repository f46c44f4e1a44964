//! The pool service's state as it is stored: attributes of the service target's shard.
//!
//! A value is one byte of format version and the postcard-encoded record.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_proto::pool::{ContainerProperties, PoolMap, TargetPoolCreate};
use weir_proto::{ContainerId, Epoch, PoolId, PoolSecret, Rank, TenantId, codec};
use weir_store::{AttributeChange, Shard};

use crate::error::Failed;

/// Version of the records below. A later one reads earlier ones.
const RECORD_VERSION: u8 = 2;

/// The version before pools belonged to tenants.
const RECORD_VERSION_FIRST: u8 = 1;

/// The pool that holds the engines' own records.
pub const SYSTEM_POOL: PoolId = PoolId(uuid::Uuid::nil());

/// Scope of what every target knows of a pool.
pub(crate) const SCOPE_TARGET: &[u8] = b"target";
/// Name of the pool's own record.
pub(crate) const NAME_POOL: &[u8] = b"pool";
/// Scope of the labels of containers on a target, by container.
pub(crate) const SCOPE_LABEL: &[u8] = b"label";
/// Scope of the service's containers, by container.
pub(crate) const SCOPE_CONTAINER: &[u8] = b"container";
/// Scope of the containers whose targets may keep other snapshots than the service lists, by container.
pub(crate) const SCOPE_UNTOLD: &[u8] = b"untold";
/// Scope of the system's pools, by pool.
pub(crate) const SCOPE_DIRECTORY: &[u8] = b"directory";

/// Scope of what engines that are away still hold of destroyed pools, by pool.
pub(crate) const SCOPE_REMNANT: &[u8] = b"remnant";

/// Entries read at once when a scope is loaded.
const PAGE: usize = 256;

/// What a target stores of a pool.
pub(crate) type PoolRecord = TargetPoolCreate;

/// A record, and what it looked like in the first version.
pub(crate) trait Stored: DeserializeOwned {
    /// Its form in the first version.
    type First: DeserializeOwned + Into<Self>;
}

/// [`PoolRecord`] in the first version: without a tenant, which is the system.
#[derive(Serialize, Deserialize)]
pub(crate) struct FirstPoolRecord {
    pool: PoolId,
    label: String,
    secret: PoolSecret,
    size: u64,
    service: Rank,
    map: PoolMap,
    object_class: String,
}

impl From<FirstPoolRecord> for PoolRecord {
    fn from(first: FirstPoolRecord) -> Self {
        let FirstPoolRecord { pool, label, secret, size, service, map, object_class } = first;
        Self { pool, label, secret, size, service, map, object_class, tenant: TenantId::SYSTEM }
    }
}

impl Stored for PoolRecord {
    type First = FirstPoolRecord;
}

impl Stored for ContainerRecord {
    type First = Self;
}

impl Stored for PoolMap {
    type First = Self;
}

/// A container as the service stores it. The attributes of its properties are stored one by one in a scope of their
/// own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) properties: ContainerProperties,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Ascending.
    pub(crate) snapshots: Vec<Epoch>,
    /// Object-id user bits below this are reserved.
    pub(crate) next_oid: u64,
    /// What each target that knows the container may hold, by target id; `None`: no limit.
    pub(crate) grants: BTreeMap<u32, Option<u64>>,
    /// Destroyed; targets are being told.
    pub(crate) doomed: bool,
}

/// Scope of a container's attributes.
pub(crate) fn scope_attributes(container: ContainerId) -> Vec<u8> {
    [b"attribute".as_slice(), container.0.as_bytes()].concat()
}

/// Scope of a container's handles whose node is known, by number; the value is the node.
pub(crate) fn scope_handles(container: ContainerId) -> Vec<u8> {
    [b"handle".as_slice(), container.0.as_bytes()].concat()
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = vec![RECORD_VERSION];
    bytes.extend(codec::encode(record));
    bytes
}

pub(crate) fn decode<T: Stored>(pool: PoolId, what: &'static str, bytes: &[u8]) -> Result<T, Failed> {
    let wrong = |reason: String| Failed::Record { pool, what, reason };
    match bytes.split_first() {
        Some((&RECORD_VERSION, body)) => codec::decode(body).map_err(|error| wrong(error.to_string())),
        Some((&RECORD_VERSION_FIRST, body)) => {
            codec::decode::<T::First>(body).map(Into::into).map_err(|error| wrong(error.to_string()))
        }
        Some((version, _)) => Err(wrong(format!(
            "format version {version}, this release reads {RECORD_VERSION_FIRST} to {RECORD_VERSION}"
        ))),
        None => Err(wrong("it is empty".to_owned())),
    }
}

/// Every entry of a scope, in order of the names.
pub(crate) fn load_scope(shard: &Shard, scope: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = Vec::new();
    let mut from = Vec::new();
    loop {
        let page = shard.attributes(scope, &from, PAGE);
        let Some((last, _)) = page.last() else { return entries };
        // The least name greater than the last one.
        from = [last.as_slice(), &[0]].concat();
        let whole = page.len() == PAGE;
        entries.extend(page);
        if !whole {
            return entries;
        }
    }
}

/// A change of one attribute.
pub(crate) fn change(scope: &[u8], name: &[u8], value: Option<Vec<u8>>) -> AttributeChange {
    AttributeChange { scope: scope.to_vec(), name: name.to_vec(), value }
}

/// The container whose id is an attribute's name.
pub(crate) fn container_of(pool: PoolId, name: &[u8]) -> Result<ContainerId, Failed> {
    uuid::Uuid::from_slice(name).map(ContainerId).map_err(|error| Failed::Record {
        pool,
        what: "the name of a container's record",
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_the_first_version_belong_to_the_system() {
        let pool = PoolId(uuid::Uuid::from_u128(7));
        let first = FirstPoolRecord {
            pool,
            label: "tank".to_owned(),
            secret: PoolSecret([3; 32]),
            size: 1 << 30,
            service: Rank(2),
            map: PoolMap { version: 4, targets: Vec::new() },
            object_class: "SX".to_owned(),
        };
        let mut bytes = vec![RECORD_VERSION_FIRST];
        bytes.extend(codec::encode(&first));
        let read: PoolRecord = decode(pool, "the record", &bytes).expect("it is read");
        assert_eq!((read.tenant, read.label.as_str(), read.size), (TenantId::SYSTEM, "tank", 1 << 30));
        let again: PoolRecord = decode(pool, "the record", &encode(&read)).expect("it is read");
        assert_eq!(again, read);
        bytes[0] = RECORD_VERSION + 1;
        assert!(decode::<PoolRecord>(pool, "the record", &bytes).is_err());
    }
}
