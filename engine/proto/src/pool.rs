//! Pool and container requests, and what the pool service asks of targets.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::capability::Credential;
use crate::limits::LABEL_MAX;
use crate::replica::ChangeId;
use crate::tenant::TenantId;
use crate::{Capability, ContainerId, Epoch, PoolId, PoolSecret, Rank, Rights, TargetIndex};

pub use crate::map::{PoolEngine, PoolMap, PoolTarget, SERVICE_RANKS_MAX, TargetState};

/// Connects to a pool. Sent to any engine; an engine that does not run the pool's service answers with
/// [`crate::Der::NOTLEADER`] and the service's rank in the message's `rank` field, or `NONEXIST`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// Label or UUID text.
    pub pool: String,
    /// Rights wanted.
    pub rights: Rights,
    /// The sender.
    pub credential: Credential,
}

/// Where the pool's service runs, or the handle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ConnectReply {
    /// Connected.
    Connected {
        /// Handle on the pool.
        capability: Capability,
        /// The pool's label.
        label: String,
        /// Its targets.
        map: PoolMap,
        /// Rank that runs the pool service; container requests go there.
        service: Rank,
        /// Default object class name of new containers.
        object_class: String,
    },
    /// Ask this rank.
    Elsewhere {
        /// Rank that runs the pool service.
        service: Rank,
    },
}

/// Names a connected pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolRequest {
    /// Handle on the pool.
    pub capability: Capability,
}

/// State and space of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolQueryReply {
    /// Label.
    pub label: String,
    /// Targets now.
    pub map: PoolMap,
    /// Space of each target that answered, by target id: total and free bytes. What containers hold is asked of them.
    pub space: Vec<(u32, TargetPoolSpace)>,
    /// Ranks that did not answer.
    pub unreachable: Vec<Rank>,
    /// Number of containers.
    pub containers: u32,
}

/// What a container holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ContainerType {
    /// A POSIX namespace (DFS).
    Posix,
    /// Objects as the application lays them out.
    Object,
}

/// Properties of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerProperties {
    /// Label, unique in the pool.
    pub label: String,
    /// Type.
    pub kind: ContainerType,
    /// Bytes it may hold; 0: as much as the pool has.
    pub quota: u64,
    /// Default object class name.
    pub object_class: String,
    /// Bytes of a file in one dkey.
    pub chunk_size: u64,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Mode bits of the root directory.
    pub mode: u32,
    /// Free-form attributes.
    pub attributes: BTreeMap<String, serde_bytes::ByteBuf>,
}

/// Creates a container; the same label and properties again return the existing one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerCreateRequest {
    /// Handle on the pool.
    pub capability: Capability,
    /// Identity drawn by the client, so that a retry is recognised.
    pub container: ContainerId,
    /// Properties.
    pub properties: ContainerProperties,
    /// Fail with `EXIST` when the label is taken even by an equal container.
    pub exclusive: bool,
}

/// A container as the pool service knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerInfo {
    /// Identity.
    pub container: ContainerId,
    /// Properties.
    pub properties: ContainerProperties,
    /// Bytes held over all targets that answered.
    pub used: u64,
    /// Open handles.
    pub handles: u32,
    /// Creation time, seconds since 1970.
    pub created: u64,
    /// Snapshots, oldest first.
    pub snapshots: Vec<Epoch>,
}

/// Opens a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerOpenRequest {
    /// Handle on the pool.
    pub capability: Capability,
    /// Label or UUID text.
    pub container: String,
    /// Rights wanted: read, or read and write.
    pub rights: Rights,
}

/// An open container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerOpenReply {
    /// Handle on the container.
    pub capability: Capability,
    /// The container.
    pub info: ContainerInfo,
}

/// Names an open container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Handle on the container.
    pub capability: Capability,
}

/// Keeps an open container's handle: the client is there. It then counts until it is given back, however long its client is silent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerKeepRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// The node where the client is.
    pub node: String,
}

/// Destroys a container; its space is reclaimed in the background.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerDestroyRequest {
    /// Handle on the pool.
    pub capability: Capability,
    /// Label or UUID text.
    pub container: String,
    /// Destroy although handles are open.
    pub force: bool,
}

/// Reserves object-id user bits (`lo`), unique in the container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocateRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// How many; at most 2^32.
    pub count: u64,
}

/// A reserved range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocateReply {
    /// First value of the range.
    pub first: u64,
}

/// Sets container attributes; an empty value list entry (`None`) deletes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttributeSetRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// Names and values.
    pub attributes: Vec<(String, Option<serde_bytes::ByteBuf>)>,
}

/// Reads container attributes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttributeGetRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// Names; empty for all.
    pub names: Vec<String>,
}

/// Attributes found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// Names and values; a name that has no value is absent.
    pub attributes: BTreeMap<String, serde_bytes::ByteBuf>,
}

/// Lists, takes or removes snapshots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// What to do.
    pub change: SnapshotChange,
}

/// What a snapshot request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SnapshotChange {
    /// Nothing: list.
    List,
    /// Take one now; it is the last of the returned list.
    Create,
    /// Remove this one.
    Destroy(Epoch),
}

/// Changes a container's quota.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaRequest {
    /// Handle on the pool.
    pub capability: Capability,
    /// Label or UUID text.
    pub container: String,
    /// Bytes; 0: as much as the pool has.
    pub quota: u64,
}

/// Proof that a request comes from an engine of the system and is for this target: a keyed hash with the key that engines have for
/// themselves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineSeal {
    /// Sender.
    pub rank: Rank,
    /// Version of the sender's list of engines.
    pub group: u64,
    /// Wall time, nanoseconds since 1970.
    pub issued_ns: u64,
    /// Keyed hash over opcode, rank, version, time, rank and index of the target that it is for, and the encoded payload.
    pub seal: [u8; 16],
}

/// An engine's request to a target: the payload is one of the `Target*` types below, encoded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SealedRequest {
    /// The sender.
    pub seal: EngineSeal,
    /// The encoded payload.
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
}

/// Creates a pool's shard on a target. Idempotent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetPoolCreate {
    /// The pool.
    pub pool: PoolId,
    /// Its label.
    pub label: String,
    /// Seals its capabilities.
    pub secret: PoolSecret,
    /// Bytes of this target.
    pub size: u64,
    /// Rank that runs the pool service.
    pub service: Rank,
    /// The pool's targets.
    pub map: PoolMap,
    /// Default object class name of new containers.
    pub object_class: String,
    /// Whose clients may connect to it, beside the system's own.
    pub tenant: TenantId,
    /// How many engines may be lost while nothing of a new container is.
    pub redundancy: u32,
}

/// A request that shows a capability.
pub trait Bearer {
    /// What it shows.
    fn capability(&self) -> &Capability;
}

macro_rules! bearers {
    ($($name:ident),* $(,)?) => {
        $(impl Bearer for $name {
            fn capability(&self) -> &Capability {
                &self.capability
            }
        })*
    };
}

bearers!(
    PoolRequest,
    ContainerCreateRequest,
    ContainerOpenRequest,
    ContainerRequest,
    ContainerKeepRequest,
    ContainerDestroyRequest,
    AllocateRequest,
    AttributeSetRequest,
    AttributeGetRequest,
    SnapshotRequest,
    QuotaRequest
);

/// Destroys a pool's shard. Idempotent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetPoolDestroy {
    /// The pool.
    pub pool: PoolId,
    /// Fail with [`crate::Der::BUSY`] when this target runs the pool's service and the pool has containers.
    pub only_if_empty: bool,
}

/// Names a pool's shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetPool {
    /// The pool.
    pub pool: PoolId,
}

/// Changes the size of a pool's shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetPoolResize {
    /// The pool.
    pub pool: PoolId,
    /// Bytes of this target.
    pub size: u64,
}

/// Tells a target of a newer pool map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetPoolMap {
    /// The pool.
    pub pool: PoolId,
    /// Its map. A target that has a newer one keeps that.
    pub map: PoolMap,
}

/// Has engines join a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolExtension {
    /// The pool.
    pub pool: PoolId,
    /// Bytes of each of their targets.
    pub size: u64,
    /// The engines, each with the number of its targets.
    pub engines: Vec<(Rank, u32)>,
    /// Where they are. One that isn't named is a fault domain of its own.
    pub places: Vec<PoolEngine>,
}

/// A target says whether its device can be used, to the services of the pools that it holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceNotice {
    /// Index of the target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// Why the device is not used; `None`: it is.
    pub fault: Option<String>,
    /// Pools whose shards are on the device, with the versions of their maps that the target knows; not known when the device
    /// can't be read.
    pub pools: Vec<(PoolId, u32)>,
}

impl DeviceNotice {
    /// The version of a pool's map that the target knows; `None`: it has no shard of the pool.
    #[must_use]
    pub fn version_of(&self, pool: PoolId) -> Option<u32> {
        self.pools.iter().find(|(known, _)| *known == pool).map(|(_, version)| *version)
    }
}

/// Names a container's part of a pool's shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetContainer {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
}

/// Tells a target what the pool service knows of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetContainerState {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Its label, for metrics and messages.
    pub label: String,
    /// Bytes this target may hold of it; `None`: no limit. A target that holds more keeps what it has.
    pub grant: Option<u64>,
    /// Epochs that aggregation keeps.
    pub snapshots: Vec<Epoch>,
}

/// What a target holds of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetContainerUsage {
    /// Bytes.
    pub used: u64,
    /// The target's clock.
    pub now: Epoch,
}

/// A target asks for a share, or a greater share, of a container's quota. Also how a target learns of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Index of the asking target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// Bytes the target holds of the container.
    pub used: u64,
    /// Bytes it is short of; 0 when it only learns of the container.
    pub wanted: u64,
}

/// Asks the keeper of the list of pools for a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResolveRequest {
    /// Label or UUID text.
    pub pool: String,
}

/// What the leader of a replicated pool service tells a target of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerStateByLeader {
    /// The term in which it leads. A target that a later leader has told something refuses.
    pub term: u64,
    /// What it tells.
    pub state: TargetContainerState,
}

/// What stands behind a [`ConnectReply`]: nothing from a release before replicated pool services.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectTail {
    /// Ranks that replicate the pool's service, any of which may run it; none: it is not replicated.
    pub replicas: Vec<Rank>,
}

/// Which engines replicate the service of a pool, as far as an engine of the pool knows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServiceRanks {
    /// Version of the pool map that says so.
    pub version: u32,
    /// The engines; one: it isn't replicated.
    pub replicas: Vec<Rank>,
}

/// Leader of a replicated pool service → an engine of the pool that has no replica of it: it is to begin one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceJoin {
    /// The pool.
    pub pool: PoolId,
    /// The replicas that take part.
    pub members: Vec<Rank>,
}

/// What stands behind a request to a replicated pool service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServiceTail {
    /// Its name, when it changes something: it may be sent to one replica after another, and changes that once.
    pub id: Option<ChangeId>,
}

/// A pool and where its service runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResolveReply {
    /// The pool.
    pub pool: PoolId,
    /// Rank that runs the pool service.
    pub service: Rank,
}

/// A management request on its way to the engine that answers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForwardRequest {
    /// `Service/Method` of the management protocol.
    pub method: String,
    /// The request, encoded in protobuf.
    #[serde(with = "serde_bytes")]
    pub request: Vec<u8>,
}

/// The answer to a forwarded management request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ForwardReply {
    /// The reply, encoded in protobuf.
    Answer(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The request failed.
    Failed {
        /// DER number.
        der: crate::Der,
        /// Object the failure is about.
        object: String,
        /// What failed and what to do next.
        message: String,
    },
}

/// What an engine says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineReport {
    /// Release.
    pub version: String,
    /// Number of targets.
    pub targets: u32,
    /// Bytes of media over all targets.
    pub capacity: u64,
    /// Bytes not given to any pool.
    pub free: u64,
    /// Start of the process, seconds since 1970.
    pub started: u64,
    /// What keeps a target from serving; empty when all do.
    pub message: String,
}

/// Space of a pool's shard, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TargetPoolSpace {
    /// The shard's share.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// Used, by container.
    pub containers: Vec<(ContainerId, u64)>,
    /// Containers that clients have used here of late ([`crate::limits::HANDLE_LEASE_NS`]).
    pub active: Vec<ContainerId>,
}

/// Figures of targets for a pool, summed up on the way to the querier.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolSum {
    /// Total and free bytes of each target that answered.
    pub targets: Vec<(Rank, TargetIndex, u64, u64)>,
    /// Bytes used, by container.
    pub used: BTreeMap<ContainerId, u64>,
    /// Containers that clients have used of late.
    pub active: BTreeSet<ContainerId>,
}

impl PoolSum {
    /// Takes in what other targets hold.
    pub fn add(&mut self, other: Self) {
        self.targets.extend(other.targets);
        for (container, bytes) in other.used {
            let sum = self.used.entry(container).or_default();
            *sum = sum.saturating_add(bytes);
        }
        self.active.extend(other.active);
    }

    /// What one target holds.
    #[must_use]
    pub fn of(rank: Rank, index: TargetIndex, space: TargetPoolSpace) -> Self {
        let targets = vec![(rank, index, space.total, space.free)];
        let used = space.containers.into_iter().collect();
        Self { targets, used, active: space.active.into_iter().collect() }
    }
}

/// Why a label is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "label \"{0}\" is not valid: use 1 to {LABEL_MAX} letters, digits, '.', '_', ':' or '-', with none of '-' at its start, not \".\" or \"..\", and not the form of a UUID"
)]
pub struct InvalidLabel(pub String);

/// Checks a pool or container label (daos-api §1.4). What a path or a command line would take for something else is none.
///
/// # Errors
/// When the label has a wrong length or character, begins with `-`, is `.` or `..`, or parses as a UUID.
pub fn validate_label(label: &str) -> Result<(), InvalidLabel> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    if label.is_empty()
        || label.len() > LABEL_MAX
        || !label.chars().all(good)
        || label.starts_with('-')
        || matches!(label, "." | "..")
        || uuid::Uuid::try_parse(label).is_ok()
    {
        return Err(InvalidLabel(label.chars().take(LABEL_MAX + 1).collect()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_follow_the_rules_of_daos() {
        for good in ["tank", "pvc-1.a_b:c", "...", ".a", "a-", &"x".repeat(LABEL_MAX)] {
            assert_eq!(validate_label(good), Ok(()));
        }
        for bad in [
            "",
            "a b",
            "ä",
            ".",
            "..",
            "-",
            "-a",
            "--force",
            &"x".repeat(LABEL_MAX + 1),
            "00000000-0000-0000-0000-000000000001",
        ] {
            assert!(validate_label(bad).is_err(), "{bad}");
        }
    }
}
