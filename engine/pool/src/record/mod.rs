//! What the pool service and the targets store of pools and containers: attributes of shards, and how each is encoded. The room
//! calls the store's attributes and the identifiers of `weir-proto`, whose messages are never stored: each kind of record has forms
//! of its own, one for each version. Every other room of the crate calls it.
//!
//! A value is one byte of version and the postcard-encoded form of that version. `docs/reference/format.md` lists the kinds. A
//! change of a form is a new version: [`Stored::read`] reads all earlier ones, and the bytes recorded in the tests stay as they are.

mod container;
mod entry;
mod map;
mod pool;
mod settings;
mod share;
#[cfg(test)]
mod tests;

pub(crate) use container::ContainerRecord;
pub(crate) use entry::Remnant;
pub use entry::{DirectoryEntry, EntryState};
pub use pool::PoolRecord;
pub(crate) use pool::STAYS_AS_IT_IS;
pub(crate) use settings::PoolSettings;
pub(crate) use share::{ShareRecord, TenantRecord};
pub(crate) use weir_raft::{change, load_scope};

use serde::de::DeserializeOwned;
use weir_proto::codec::DecodeError;
use weir_proto::{ContainerId, PoolId, codec};
use weir_store::Shard;

use crate::error::Failed;

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
/// Scope of what a service knows of the pool itself.
pub(crate) const SCOPE_SERVICE: &[u8] = b"service";
/// Name of what was set of the pool there.
pub(crate) const NAME_SETTINGS: &[u8] = b"settings";
/// Name of the pool's share of its tenant's quota there.
pub(crate) const NAME_SHARE: &[u8] = b"share";
/// Name of the map of a pool whose service is replicated there.
pub(crate) const NAME_MAP: &[u8] = b"map";
/// Scope of the system's pools, by pool.
pub(crate) const SCOPE_DIRECTORY: &[u8] = b"directory";

/// Scope of what tenants may use, by number (8 bytes, big-endian), beside the system's pools.
pub(crate) const SCOPE_TENANT: &[u8] = b"tenant";

/// Scope of what engines that are away still hold of destroyed pools, by pool.
pub(crate) const SCOPE_REMNANT: &[u8] = b"remnant";

/// Scope of a container's attributes.
pub(crate) fn scope_attributes(container: ContainerId) -> Vec<u8> {
    [b"attribute".as_slice(), container.0.as_bytes()].concat()
}

/// Scope of a container's handles whose node is known, by number; the value is the node.
pub(crate) fn scope_handles(container: ContainerId) -> Vec<u8> {
    [b"handle".as_slice(), container.0.as_bytes()].concat()
}

/// The scopes that the service of a pool writes. The containers, which tell of others, come first.
pub(crate) fn scopes_of_service(shard: &Shard) -> Vec<Vec<u8>> {
    let mut scopes = vec![SCOPE_CONTAINER.to_vec(), SCOPE_UNTOLD.to_vec(), SCOPE_SERVICE.to_vec()];
    for (name, _) in load_scope(shard, SCOPE_CONTAINER) {
        // The service writes no other names.
        if let Ok(id) = container_of(shard.id(), &name) {
            scopes.extend([scope_attributes(id), scope_handles(id)]);
        }
    }
    scopes
}

/// What became of reading a record.
pub(crate) enum Read<T> {
    /// It is read.
    Record(T),
    /// It is damaged.
    Damaged(DecodeError),
    /// Its version is a later one.
    Unknown,
}

/// A kind of record.
pub(crate) trait Stored: Sized {
    /// What it is of a pool, for messages.
    const WHAT: &'static str;

    /// The version that is written. All from 1 to this one are read.
    const VERSION: u8;

    /// The form of that version, encoded.
    fn body(&self) -> Vec<u8>;

    /// Reads the form of a version.
    fn read(version: u8, body: &[u8]) -> Read<Self>;
}

/// Reads a form and makes it the record.
fn read_as<Form: DeserializeOwned + Into<T>, T>(body: &[u8]) -> Read<T> {
    match codec::decode::<Form>(body) {
        Ok(form) => Read::Record(form.into()),
        Err(error) => Read::Damaged(error),
    }
}

/// Reads a form with a tail, which may be damaged, and makes it the record.
fn read_through<Form, T>(body: &[u8]) -> Read<T>
where
    Form: DeserializeOwned + TryInto<T, Error = DecodeError>,
{
    match codec::decode::<Form>(body).and_then(TryInto::try_into) {
        Ok(record) => Read::Record(record),
        Err(error) => Read::Damaged(error),
    }
}

/// A record as it is stored.
pub(crate) fn encode<T: Stored>(record: &T) -> Vec<u8> {
    let mut bytes = vec![T::VERSION];
    bytes.extend(record.body());
    bytes
}

/// The record of a pool that is stored as `bytes`.
///
/// # Errors
/// When they are damaged, or of a later version.
pub(crate) fn decode<T: Stored>(pool: PoolId, bytes: &[u8]) -> Result<T, Failed> {
    let wrong = |reason: String| Failed::Record { pool, what: T::WHAT, reason };
    let Some((&version, body)) = bytes.split_first() else { return Err(wrong("it is empty".to_owned())) };
    match T::read(version, body) {
        Read::Record(record) => Ok(record),
        Read::Damaged(error) => Err(wrong(error.to_string())),
        Read::Unknown => {
            Err(wrong(format!("format version {version}, this release reads 1 to {}", T::VERSION)))
        }
    }
}

/// The container whose id is an attribute's name.
pub(crate) fn container_of(pool: PoolId, name: &[u8]) -> Result<ContainerId, Failed> {
    uuid::Uuid::from_slice(name).map(ContainerId).map_err(|error| Failed::Record {
        pool,
        what: "the name of a container's record",
        reason: error.to_string(),
    })
}
