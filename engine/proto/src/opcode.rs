//! Operation codes of the fabric protocol. A number is never reused with another meaning: 0x0107 and 0x0108 are taken.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        $($(#[$doc])* pub const $name: u16 = $number;)*

        /// Lower-case name of an opcode, for logs and metric labels.
        #[must_use]
        pub const fn name(opcode: u16) -> Option<&'static str> {
            match opcode {
                $($number => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    /// Liveness: empty request, empty reply.
    PING = 0x0001,
    /// Engine → engine: [`crate::group::GroupPing`] → [`crate::group::GroupAck`]. Engines only.
    GROUP_PING = 0x0002,
    /// Engine → engine: [`crate::group::GroupRelay`] → [`crate::group::GroupRelayReply`]. Engines only.
    GROUP_RELAY = 0x0003,
    /// Engine → engine: [`crate::group::GroupSync`] → [`crate::group::GroupSyncReply`]. Engines only.
    GROUP_SYNC = 0x0004,
    /// Engine → engine: [`crate::group::Collective`] → [`crate::group::CollectiveReply`]. Engines only.
    GROUP_COLLECTIVE = 0x0005,
    /// Engine → engine: [`crate::group::GroupOffer`] → the version that the receiver has then. Engines only.
    GROUP_OFFER = 0x0009,
    /// Engine → engine: empty → [`crate::group::GroupList`]. Engines only.
    GROUP_LIST = 0x000a,
    /// Reads all memory that the client exposes for it, and drops what it reads: for measuring.
    PROBE_PULL = 0x0006,
    /// Writes zeros to all memory that the client exposes for it: for measuring.
    PROBE_PUSH = 0x0007,
    /// Number of an earlier request of the same client (8 bytes) → empty, once no access to the memory of that request is
    /// under way and none will begin. Served by every context.
    REQUEST_WITHDRAW = 0x0008,
    /// Empty → `Vec` of [`crate::probe::ProbeListener`]: where else the engine is measured.
    PROBE_LIST = 0x0010,

    /// Empty → [`crate::group::GroupList`]: where the engines are. Any engine answers it from memory, to clients of all tenants.
    SYSTEM_ENGINES = 0x0012,

    /// Target → target: [`crate::tenant::TenantQuestion`] → [`crate::tenant::TenantTable`]. Engines only.
    TENANT_TABLE = 0x0011,

    /// [`crate::object::UpdateRequest`] + data → [`crate::object::UpdateReply`].
    OBJECT_UPDATE = 0x0101,
    /// [`crate::object::FetchRequest`] → [`crate::object::FetchReply`] + data.
    OBJECT_FETCH = 0x0102,
    /// [`crate::object::PunchRequest`] → [`crate::object::UpdateReply`].
    OBJECT_PUNCH = 0x0103,
    /// [`crate::object::ListRequest`] → [`crate::object::ListReply`].
    OBJECT_LIST = 0x0104,
    /// [`crate::object::QueryKeyRequest`] → [`crate::object::QueryKeyReply`].
    OBJECT_QUERY_KEY = 0x0105,
    /// [`crate::object::SearchKeyRequest`] → [`crate::object::SearchKeyReply`].
    OBJECT_SEARCH_KEY = 0x0106,
    /// [`crate::transaction::CommitRequest`] → [`crate::object::UpdateReply`].
    TRANSACTION_COMMIT = 0x0109,
    /// [`crate::transaction::Read`] of an [`OBJECT_FETCH`] → as that. The epoch is the transaction's, and what is read stays
    /// so until it commits.
    TRANSACTION_FETCH = 0x010a,
    /// [`crate::transaction::Read`] of an [`OBJECT_LIST`] → as that.
    TRANSACTION_LIST = 0x010b,
    /// [`crate::transaction::Read`] of an [`OBJECT_SEARCH_KEY`] → as that.
    TRANSACTION_SEARCH_KEY = 0x010c,
    /// As [`OBJECT_FETCH`], of a client that compares all data with the reply's checksums: the engine doesn't compare what it need
    /// not, so that the data may be damaged. Where it doesn't match, the client asks once more with [`OBJECT_FETCH`].
    OBJECT_FETCH_TO_COMPARE = 0x010d,
    /// As [`OBJECT_FETCH_TO_COMPARE`], for [`TRANSACTION_FETCH`].
    TRANSACTION_FETCH_TO_COMPARE = 0x010e,
    /// [`crate::object::MeasureRequest`] → [`crate::object::MeasureReply`].
    OBJECT_MEASURE = 0x010f,
    /// [`crate::object::RunsRequest`] → [`crate::object::RunsReply`].
    OBJECT_RUNS = 0x0110,
    /// [`crate::object::ReserveRequest`] → [`crate::object::ReserveReply`].
    OBJECT_RESERVE = 0x0111,

    /// [`crate::replica::ByLeader`] of an [`OBJECT_UPDATE`] + data → as that. To the leader of the dkey's group.
    REPLICA_UPDATE = 0x0112,
    /// [`crate::replica::ByLeader`] of an [`OBJECT_PUNCH`] → as that. To the leader of the keys' group.
    REPLICA_PUNCH = 0x0113,
    /// [`crate::replica_transaction::ReplicaCommitRequest`] + changes → [`crate::object::UpdateReply`]. To the leader of
    /// the first group with replicas that the changes concern.
    REPLICA_COMMIT = 0x0114,
    /// [`crate::pool::ConnectRequest`] → [`crate::pool::ConnectReply`].
    POOL_CONNECT = 0x0201,
    /// [`crate::pool::PoolRequest`] → [`crate::pool::PoolQueryReply`].
    POOL_QUERY = 0x0202,
    /// [`crate::pool::PoolRequest`] → empty.
    POOL_DISCONNECT = 0x0203,
    /// [`crate::pool::PoolRequest`] → [`crate::pool::PoolMap`], the newest that the engine has. Any engine of the pool
    /// answers it from memory.
    POOL_MAP = 0x0204,
    /// [`crate::pool::ContainerCreateRequest`] → [`crate::pool::ContainerInfo`].
    CONTAINER_CREATE = 0x0301,
    /// [`crate::pool::ContainerOpenRequest`] → [`crate::pool::ContainerOpenReply`].
    CONTAINER_OPEN = 0x0302,
    /// [`crate::pool::ContainerRequest`] → empty.
    CONTAINER_CLOSE = 0x0303,
    /// [`crate::pool::ContainerDestroyRequest`] → empty.
    CONTAINER_DESTROY = 0x0304,
    /// [`crate::pool::ContainerRequest`] → [`crate::pool::ContainerInfo`].
    CONTAINER_QUERY = 0x0305,
    /// [`crate::pool::PoolRequest`] → `Vec` of [`crate::pool::ContainerInfo`].
    CONTAINER_LIST = 0x0306,
    /// [`crate::pool::AllocateRequest`] → [`crate::pool::AllocateReply`].
    CONTAINER_ALLOCATE_OIDS = 0x0307,
    /// [`crate::pool::AttributeSetRequest`] → empty.
    CONTAINER_SET_ATTRIBUTES = 0x0308,
    /// [`crate::pool::AttributeGetRequest`] → [`crate::pool::Attributes`].
    CONTAINER_GET_ATTRIBUTES = 0x0309,
    /// [`crate::pool::SnapshotRequest`] → `Vec` of [`crate::Epoch`]: the snapshots after the change.
    CONTAINER_SNAPSHOT = 0x030a,
    /// [`crate::pool::QuotaRequest`] → [`crate::pool::ContainerInfo`].
    CONTAINER_SET_QUOTA = 0x030b,
    /// Keeps a container handle, and names the node where it is in use.
    CONTAINER_KEEP = 0x030c,

    /// Pool service → target: [`crate::pool::TargetPoolCreate`] → empty. Engines only.
    TARGET_POOL_CREATE = 0x0401,
    /// Pool service → target: [`crate::pool::TargetPoolDestroy`] → empty. Engines only.
    TARGET_POOL_DESTROY = 0x0402,
    /// Pool service → target: [`crate::pool::TargetPool`] → [`crate::pool::TargetPoolSpace`]. Engines only.
    TARGET_POOL_QUERY = 0x0403,
    /// Pool service → target: [`crate::pool::TargetPoolResize`] → empty. Engines only.
    TARGET_POOL_RESIZE = 0x0404,
    /// Pool service → target: [`crate::pool::TargetContainer`] → empty. Engines only.
    TARGET_CONTAINER_CREATE = 0x0405,
    /// Pool service → target: [`crate::pool::TargetContainer`] → empty. Engines only.
    TARGET_CONTAINER_DESTROY = 0x0406,
    /// Pool service → target: [`crate::pool::TargetContainerState`] → [`crate::pool::TargetContainerUsage`]. Engines only.
    TARGET_CONTAINER_SET = 0x0407,
    /// Target → pool service: [`crate::pool::GrantRequest`] → [`crate::pool::TargetContainerState`]. Engines only.
    TARGET_CONTAINER_GRANT = 0x0408,
    /// Pool service → target: [`crate::pool::TargetPoolMap`] → empty. Engines only.
    TARGET_POOL_MAP = 0x0409,
    /// Target → pool services of an engine: [`crate::pool::DeviceNotice`] → `Vec` of
    /// [`crate::pool::TargetPoolMap`]: the maps that are newer than the target's. Engines only.
    TARGET_DEVICE = 0x040a,
    /// Target 0 → target of the same engine: empty → whether its device was marked as faulty. The mark is gone then.
    /// Engines only.
    DEVICE_CLEAR = 0x040b,
    /// Leader of a transaction → target: [`crate::transaction::PrepareRequest`] → empty, or
    /// [`crate::transaction::Declined`]. Engines only.
    TARGET_TRANSACTION_PREPARE = 0x040c,
    /// Leader of a transaction → target: [`crate::transaction::DecideRequest`] → empty. Engines only.
    TARGET_TRANSACTION_DECIDE = 0x040d,
    /// Target → leader of a transaction: [`crate::transaction::OutcomeRequest`] → [`crate::transaction::Outcome`], or
    /// nothing while it isn't known. Engines only.
    TARGET_TRANSACTION_OUTCOME = 0x040e,
    /// Leader of a group of replicas → another member: [`crate::replica::ReplicaForward`] → empty, once it is stored. Engines
    /// only.
    TARGET_REPLICA_FORWARD = 0x0420,
    /// Leader of groups of replicas → another member: [`crate::replica::SettledNotice`] → empty. Engines only.
    TARGET_REPLICA_SETTLED = 0x0421,
    /// Leader of groups of replicas → another member: [`crate::replica::RoomRequest`] → [`crate::replica::RoomPromise`]. Engines
    /// only.
    TARGET_REPLICA_ROOM = 0x0425,
    /// Leader of a group of replicas → another member: [`crate::replica::ReplicaReserve`] → [`crate::object::ReserveReply`]. Engines
    /// only.
    TARGET_REPLICA_RESERVE = 0x0426,
    /// Leader of groups of more than two replicas → another member: [`crate::replica::SettledChanges`] → empty. Engines only.
    TARGET_REPLICA_SETTLED_CHANGES = 0x0427,
    /// New leader of groups of more than two replicas → another member: [`crate::replica::LeftRequest`] →
    /// [`crate::replica::LeftChanges`]. Engines only.
    TARGET_REPLICA_LEFT = 0x0428,
    /// New leader of a group of more than two replicas → another member: [`crate::replica::LeftDataRequest`] →
    /// [`crate::replica::LeftData`]. Engines only.
    TARGET_REPLICA_LEFT_DATA = 0x0429,
    /// New leader of a group of more than two replicas → another member: [`crate::replica::TakenForward`] → empty, once it is
    /// stored. Engines only.
    TARGET_REPLICA_TAKEN = 0x042a,
    /// Member of groups of more than two replicas → their new leader: [`crate::replica::LeftNotice`] → empty. Engines only.
    TARGET_REPLICA_LEFT_NOTICE = 0x042b,
    /// Replica of a pool's service → another one: [`crate::raft::RaftBatch`] → empty. Engines only.
    POOL_RAFT = 0x0422,
    /// Target → pool service: [`crate::lease::RebuiltNotice`] → [`crate::pool::TargetPoolMap`]. Engines only.
    TARGET_REBUILT = 0x0430,
    /// Target → pool services of an engine: [`crate::lease::ReturnedNotice`] → `Vec` of [`crate::pool::TargetPoolMap`]. Engines
    /// only.
    TARGET_RETURNED = 0x0431,
    /// Engine → pool services of an engine, and target → target 0 of its engine: [`crate::lease::LeaseRequest`] →
    /// [`crate::lease::LeaseReply`]. Engines only.
    MAP_LEASE = 0x0432,
    /// Target → pool service: [`crate::lease::ProgressNotice`] → empty. Engines only.
    TARGET_FILL_PROGRESS = 0x0433,
    /// Target → pool service: [`crate::lease::HindranceNotice`] → empty. Engines only.
    TARGET_FILL_HINDERED = 0x0434,
    /// Target that gets data → one that serves: [`crate::history::HistoryBegin`] → [`crate::history::HistoryBegun`]. Engines only.
    TARGET_HISTORY_BEGIN = 0x0440,
    /// Target that gets data → one that serves: [`crate::history::HistoryComparison`] → [`crate::history::HistoryDifference`].
    /// Engines only.
    TARGET_HISTORY = 0x0441,
    /// Target that gets data → one that serves: [`crate::history::NamesRequest`] → [`crate::history::ChangeNames`]. Engines only.
    TARGET_CHANGE_NAMES = 0x0442,
    /// Target that gets data → one that serves: [`crate::history::EndedRequest`] → [`crate::history::EndedTransactions`]. Engines
    /// only.
    TARGET_ENDED_TRANSACTIONS = 0x0443,
    /// Target with a damaged version → another member: [`crate::history::VersionRequest`] → [`crate::history::VersionData`].
    /// Engines only.
    TARGET_VERSION = 0x0444,
    /// Leader of a transaction of groups → target: [`crate::replica_transaction::ReplicaPrepareRequest`] → empty, or
    /// [`crate::transaction::Declined`]. Engines only.
    TARGET_REPLICA_PREPARE = 0x0450,
    /// Leader of a transaction of groups → another member of the leading group:
    /// [`crate::replica_transaction::ReplicaDecision`] → [`crate::transaction::Outcome`]. Engines only.
    TARGET_REPLICA_DECIDE = 0x0451,
    /// Leader of a transaction of groups → another member of the leading group:
    /// [`crate::replica_transaction::ReplicaKnownRequest`] → [`crate::replica_transaction::Known`]. Engines only.
    TARGET_REPLICA_KNOWN = 0x0452,
    /// Target → leader of a transaction of groups: [`crate::replica_transaction::ReplicaOutcomeRequest`] →
    /// [`crate::transaction::Outcome`], or nothing while it isn't known. Engines only.
    TARGET_REPLICA_OUTCOME = 0x0453,
    /// Leader of a transaction of groups → another member of the leading group:
    /// [`crate::replica_transaction::ReplicaForgetRequest`] → empty. Engines only.
    TARGET_REPLICA_FORGET = 0x0454,
    /// Leader of a transaction of one group, which has prepared it → the group's other member:
    /// [`crate::replica_transaction::ReplicaPrepareRequest`] → empty, or [`crate::transaction::Declined`]. Engines only.
    TARGET_REPLICA_TRANSACT = 0x0455,
    /// Leader of a replicated pool service → target: [`crate::pool::ContainerStateByLeader`] →
    /// [`crate::pool::TargetContainerUsage`]. Engines only.
    TARGET_CONTAINER_SET_BY_LEADER = 0x0423,
    /// Engine → replica of a pool's service: [`crate::pool::TargetPool`] → empty, of the one that leads. Engines only.
    POOL_LEADER = 0x0424,
    /// Engine → engine of a pool: [`crate::pool::TargetPool`] → [`crate::pool::ServiceRanks`], from memory. Engines only.
    POOL_SERVICE_RANKS = 0x042c,
    /// Leader of a replicated pool service → engine that is to replicate it, too: [`crate::pool::ServiceJoin`] → empty. Engines only.
    POOL_SERVICE_JOIN = 0x042d,
    /// Engine → engine: [`crate::pool::ForwardRequest`] → [`crate::pool::ForwardReply`]: a management request on its
    /// way to where it is answered. Engines only.
    MANAGEMENT_FORWARD = 0x0501,
    /// Engine → engine: [`crate::pool::ResolveRequest`] → [`crate::pool::ResolveReply`]. An engine that doesn't lead the system
    /// service asks the one that does. Engines only.
    POOL_RESOLVE = 0x0502,
    /// Engine → engine or target: empty → [`crate::pool::EngineReport`], about the asked target or, at target 0, the
    /// whole engine. Engines only.
    ENGINE_REPORT = 0x0503,
    /// Engine → engine: empty → [`crate::system::SystemState`]. Engines only.
    SYSTEM_STATE = 0x0504,
    /// Leader of the system service → engine: [`crate::system::SystemJoin`] → empty. Engines only.
    SYSTEM_JOIN = 0x0505,
    /// Engine that begins the list of pools → engine: empty → `Vec` of [`crate::pool::TargetPoolCreate`]: the pools that its
    /// target 0 has a part of. Engines only.
    SYSTEM_POOLS = 0x0506,
    /// Engine that keeps the list of pools → pool service: [`crate::pool::PoolExtension`] → [`crate::pool::TargetPoolMap`], with the
    /// engines in it. Engines only.
    POOL_EXTEND = 0x0507,
    /// Engine that keeps the list of pools → pool service: [`crate::quota::ShareOrder`] → [`crate::quota::ShareReport`]. Engines only.
    POOL_SHARE = 0x0508,
    /// Pool service → engine that keeps the list of pools: [`crate::quota::ShareRequest`] → [`crate::quota::ShareGrant`]. Engines only.
    POOL_SHARE_MORE = 0x0509,
    /// Target → engine that keeps the list of pools: [`crate::quota::RateRequest`] → [`crate::quota::RateReply`]. Engines only.
    TENANT_RATES = 0x050a,
}

/// Whether requests of this opcode go before all others, beyond credits and past a full server: membership, leases and tenants'
/// access, so that an engine that has too much to do is not taken for a dead one, and what membership needs to understand itself.
#[must_use]
pub const fn is_urgent(opcode: u16) -> bool {
    matches!(opcode, GROUP_PING | GROUP_RELAY | GROUP_SYNC | MAP_LEASE | TENANT_TABLE)
        || settles_groups(opcode)
}

/// Whether requests of this opcode are part of what a target has admitted already, and others wait for: those that
/// prepare and decide transactions, and those between replicas, of objects and of pool services. They are served past a full server,
/// which may be full of those that wait for them.
#[must_use]
pub const fn is_awaited(opcode: u16) -> bool {
    matches!(
        opcode,
        TARGET_TRANSACTION_PREPARE
            | TARGET_REPLICA_FORWARD
            | TARGET_REPLICA_SETTLED
            | TARGET_REPLICA_ROOM
            | TARGET_REPLICA_RESERVE
            | TARGET_REPLICA_SETTLED_CHANGES
            | TARGET_REPLICA_LEFT
            | TARGET_REPLICA_LEFT_DATA
            | TARGET_REPLICA_TAKEN
            | TARGET_REPLICA_LEFT_NOTICE
            | POOL_RAFT
            | TARGET_REPLICA_PREPARE
            | TARGET_REPLICA_TRANSACT
            | TARGET_REPLICA_FORGET
    ) || is_decision(opcode)
}

/// Whether requests of this opcode decide transactions, or ask for the decision: they go before those that begin
/// something.
#[must_use]
pub const fn is_decision(opcode: u16) -> bool {
    matches!(
        opcode,
        TARGET_TRANSACTION_DECIDE
            | TARGET_TRANSACTION_OUTCOME
            | TARGET_REPLICA_DECIDE
            | TARGET_REPLICA_KNOWN
            | TARGET_REPLICA_OUTCOME
    )
}

/// Whether requests of this opcode pass between engines with different lists of engines: those that make them equal.
#[must_use]
pub const fn settles_groups(opcode: u16) -> bool {
    matches!(opcode, GROUP_OFFER | GROUP_LIST)
}

/// Whether requests of this opcode belong to a transaction, at its epoch.
#[must_use]
pub const fn is_of_transaction(opcode: u16) -> bool {
    matches!(
        opcode,
        TRANSACTION_FETCH
            | TRANSACTION_FETCH_TO_COMPARE
            | TRANSACTION_LIST
            | TRANSACTION_SEARCH_KEY
            | TRANSACTION_COMMIT
            | REPLICA_COMMIT
    )
}

/// Whether requests of this opcode change what others see: of one that was not answered it has to be said that it may have been done.
#[must_use]
pub const fn is_change(opcode: u16) -> bool {
    matches!(
        opcode,
        OBJECT_UPDATE
            | OBJECT_PUNCH
            | REPLICA_UPDATE
            | REPLICA_PUNCH
            | CONTAINER_CREATE
            | CONTAINER_DESTROY
            | CONTAINER_SET_ATTRIBUTES
            | CONTAINER_SNAPSHOT
            | CONTAINER_SET_QUOTA
    )
}

/// Whether requests of this opcode are fetches whose data the client compares with its checksums.
#[must_use]
pub const fn is_compared_by_client(opcode: u16) -> bool {
    matches!(opcode, OBJECT_FETCH_TO_COMPARE | TRANSACTION_FETCH_TO_COMPARE)
}
