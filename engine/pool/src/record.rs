//! The pool service's state as it is stored: attributes of the service target's shard.
//!
//! A value is one byte of format version and the postcard-encoded record.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_proto::pool::{ContainerProperties, TargetPoolCreate};
use weir_proto::{ContainerId, Epoch, PoolId, codec};
use weir_store::{AttributeChange, Shard};

use crate::error::Failed;

/// Version of the records below. A later one reads earlier ones.
const RECORD_VERSION: u8 = 1;

/// Scope of what every target knows of a pool.
pub(crate) const SCOPE_TARGET: &[u8] = b"target";
/// Name of the pool's own record.
pub(crate) const NAME_POOL: &[u8] = b"pool";
/// Scope of the labels of containers on a target, by container.
pub(crate) const SCOPE_LABEL: &[u8] = b"label";
/// Scope of the service's containers, by container.
pub(crate) const SCOPE_CONTAINER: &[u8] = b"container";
/// Scope of the system's pools, by pool.
pub(crate) const SCOPE_DIRECTORY: &[u8] = b"directory";

/// Entries read at once when a scope is loaded.
const PAGE: usize = 256;

/// What a target stores of a pool.
pub(crate) type PoolRecord = TargetPoolCreate;

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

pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = vec![RECORD_VERSION];
    bytes.extend(codec::encode(record));
    bytes
}

pub(crate) fn decode<T: DeserializeOwned>(
    pool: PoolId,
    what: &'static str,
    bytes: &[u8],
) -> Result<T, Failed> {
    let wrong = |reason: String| Failed::Record { pool, what, reason };
    match bytes.split_first() {
        Some((&RECORD_VERSION, body)) => codec::decode(body).map_err(|error| wrong(error.to_string())),
        Some((version, _)) => {
            Err(wrong(format!("format version {version}, this release reads {RECORD_VERSION}")))
        }
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
