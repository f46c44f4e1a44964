//! Named limits of the protocol, each with its reason.

/// Lowest fabric protocol version this build speaks.
pub const PROTOCOL_MIN: u16 = 2;
/// Highest fabric protocol version this build speaks.
pub const PROTOCOL_MAX: u16 = 2;

/// Largest request or reply body in one message, in bytes. Above it the payload moves by RMA. A message of this
/// size still leaves many slots in one multi-receive slab, and copying it costs less than a round trip.
pub const INLINE_MAX: usize = 16 * 1024;

/// Largest payload of one object request, in bytes. Bounds the DMA memory that one request can hold on a target.
pub const PAYLOAD_MAX: u64 = 8 * 1024 * 1024;

/// Longest dkey or akey, in bytes. A key is stored in index nodes; four of this size fit the smallest node.
pub const KEY_MAX: usize = 1024;

/// Most akeys in one request.
pub const AKEYS_MAX: usize = 256;

/// Most extents over all akeys of one request: as many as one inline body can name.
pub const EXTENTS_MAX: usize = 1024;

/// Most keys in one list reply.
pub const LIST_KEYS_MAX: u32 = 1024;

/// Most runs of real records in one reply: two integers of up to 10 bytes and a dkey for each fit a message.
pub const RUNS_MAX: u32 = 512;

/// Most dkeys in which one request keeps room for records: one record of the log changes all, in less than a millisecond.
pub const RESERVED_DKEYS_MAX: u64 = 2048;

/// How long an open handle counts after its client was last heard of, in nanoseconds: by the pool service, or by a
/// target through I/O. A client that died without closing holds up the destruction of a container no longer than this.
pub const HANDLE_LEASE_NS: u64 = 300 * 1_000_000_000;

/// Longest time for which a pool service gathers what all targets hold, in nanoseconds. A target that is up answers in under a millisecond;
/// one that isn't must not keep a query waiting, but the tree needs two seconds to get around an engine that died this moment.
pub const GATHER_NS: u64 = 3 * 1_000_000_000;

/// Longest name of a node: that of a DNS name, as Kubernetes has it.
pub const NODE_NAME_MAX: usize = 253;

/// Longest label of a pool or container (DAOS: `DAOS_PROP_LABEL_MAX_LEN`).
pub const LABEL_MAX: usize = 127;

/// Longest attribute name (DAOS: `DAOS_ATTR_NAME_MAX`).
pub const ATTRIBUTE_NAME_MAX: usize = 511;

/// Longest attribute value, in bytes.
pub const ATTRIBUTE_VALUE_MAX: usize = 8 * 1024;

/// Longest request to a pool service, in bytes. What is beyond a message moves by RMA. Attributes are set all or none, and so
/// many fit one record of the log with room to spare.
pub const SERVICE_REQUEST_MAX: usize = 768 * 1024;
