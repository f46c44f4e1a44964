//! Bodies of requests and replies: whatever decodes encodes to the same again, and passes or fails its own checks. What
//! passes can be cut into chunks that cover its data. Messages that were recorded once are read for ever.

#[cfg(test)]
mod recorded;

use crate::source::Source;
use weir_proto::capability::Credential;
use weir_proto::chunk::{self, Grain};
#[cfg(test)]
use weir_proto::codec::{DecodeError, decode_message};
use weir_proto::codec::{decode, decode_prefix, encode};
use weir_proto::group::{
    Collective, CollectiveReply, EngineInfo, GroupAck, GroupList, GroupOffer, GroupPing, GroupRelay,
    GroupRelayReply, GroupSync, GroupSyncReply, MemberState, MemberUpdate, Tree,
};
use weir_proto::history::{
    ChangeNames, EndedRequest, EndedTransaction, EndedTransactions, HistoryBegin, HistoryBegun,
    HistoryComparison, HistoryDifference, HistoryEvent, HistoryPage, HistoryRequest, HistoryStep,
    HistoryVersion, NamesRequest, VersionData, VersionName, VersionRequest,
};
use weir_proto::lease::{
    FillProgress, HindranceNotice, LeaseReply, LeaseRequest, LeaseWish, ProgressNotice, RebuiltNotice,
    ReturnedNotice,
};
use weir_proto::object::{
    AkeyFetch, AkeyUpdate, Conditions, Extent, FetchReply, FetchRequest, Fetched, GroupTail, KeyQuery,
    ListReply, ListRequest, ListScope, Listed, MeasureReply, MeasureRequest, PunchRequest, PunchScope,
    QueryKeyReply, QueryKeyRequest, ReserveReply, ReserveRequest, RunsReply, RunsRequest, SearchKeyReply,
    SearchKeyRequest, UpdateReply, UpdateRequest, Value, validate,
};
use weir_proto::pool::{
    AllocateReply, AllocateRequest, AttributeGetRequest, AttributeSetRequest, Attributes, ConnectReply,
    ConnectRequest, ConnectTail, ContainerCreateRequest, ContainerDestroyRequest, ContainerInfo,
    ContainerKeepRequest, ContainerOpenReply, ContainerOpenRequest, ContainerProperties, ContainerRequest,
    ContainerStateByLeader, ContainerType, DeviceNotice, EngineReport, EngineSeal, ForwardReply,
    ForwardRequest, GrantRequest, PoolEngine, PoolExtension, PoolMap, PoolQueryReply, PoolRequest, PoolSum,
    QuotaRequest, ResolveReply, ResolveRequest, SealedRequest, ServiceJoin, ServiceRanks, ServiceTail,
    SnapshotChange, SnapshotRequest, TargetContainer, TargetContainerState, TargetContainerUsage, TargetPool,
    TargetPoolCreate, TargetPoolDestroy, TargetPoolMap, TargetPoolResize, TargetPoolSpace, TargetState,
};
use weir_proto::probe::ProbeListener;
use weir_proto::quota::{
    Rate, RateReply, RateRequest, ShareChange, ShareGrant, ShareOrder, ShareReport, ShareRequest, ShareStamp,
    TenantLimits,
};
use weir_proto::raft::{RaftBatch, RaftEntry, RaftMessage, RaftSnapshot};
use weir_proto::replica::{
    ByLeader, ChangeId, ForwardedChange, LeftChange, LeftChanges, LeftData, LeftDataRequest, LeftNotice,
    LeftRequest, ReplicaForward, ReplicaReserve, RoomPromise, RoomRequest, SettledChanges, SettledNotice,
    TakenForward,
};
use weir_proto::replica_transaction::{
    GroupName, Known, PreparedChange, ReplicaCommitRequest, ReplicaDecideRequest, ReplicaDecision,
    ReplicaForgetRequest, ReplicaKnownRequest, ReplicaOutcomeRequest, ReplicaPrepareRequest,
};
use weir_proto::system::{SystemJoin, SystemState};
use weir_proto::tenant::{TenantAccess, TenantQuestion};
use weir_proto::transaction::{
    Change, CommitRequest, DecideRequest, Declined, Outcome, OutcomeRequest, Part, PrepareRequest, Read,
};
use weir_proto::{
    Capability, ContainerId, Der, Epoch, Key, ObjectId, PoolId, PoolSecret, Rank, ReaderId, Rights,
    TargetIndex, TenantId, TransactionId,
};

/// A type with what decodes bytes as it, with something behind them and without.
type Decoder = (&'static str, fn(&[u8]));

/// Reads a message that begins with a value of some type: its encoding, and what it says.
#[cfg(test)]
type ReadMessage = fn(&[u8]) -> Result<(Vec<u8>, String), DecodeError>;

macro_rules! types {
    ($($type:ty),* $(,)?) => {
        #[cfg(test)]
        const READERS: &[(&str, ReadMessage)] = &[$((stringify!($type), |bytes| {
            let value = decode_message::<$type>(bytes)?;
            Ok((encode(&value), format!("{value:?}")))
        }),)*];

        /// All types that `weir-proto` decodes, and what replies make of them.
        const TYPES: &[Decoder] = &[$((stringify!($type), |bytes| {
            if let Ok((value, rest)) = decode_prefix::<$type>(bytes) {
                assert!(rest.len() <= bytes.len());
                let again = encode(&value);
                let back: $type = decode(&again).expect("what was encoded decodes");
                assert_eq!(encode(&back), again, "the encoding of a decoded value changes");
            }
            let _ = decode::<$type>(bytes);
        }),)*];
    };
}

types![
    Conditions,
    Extent,
    Value,
    AkeyUpdate,
    UpdateRequest,
    UpdateReply,
    AkeyFetch,
    FetchRequest,
    Fetched,
    FetchReply,
    PunchScope,
    PunchRequest,
    ListScope,
    ListRequest,
    Listed,
    ListReply,
    QueryKeyRequest,
    KeyQuery,
    QueryKeyReply,
    SearchKeyRequest,
    SearchKeyReply,
    GroupTail,
    MeasureRequest,
    MeasureReply,
    RunsRequest,
    RunsReply,
    ReserveRequest,
    ReserveReply,
    TargetState,
    PoolEngine,
    PoolMap,
    PoolExtension,
    ConnectRequest,
    ConnectReply,
    PoolRequest,
    PoolQueryReply,
    ContainerType,
    ContainerProperties,
    ContainerCreateRequest,
    ContainerInfo,
    ContainerOpenRequest,
    ContainerOpenReply,
    ContainerRequest,
    ContainerDestroyRequest,
    ContainerKeepRequest,
    AllocateRequest,
    AllocateReply,
    AttributeSetRequest,
    AttributeGetRequest,
    Attributes,
    SnapshotRequest,
    SnapshotChange,
    QuotaRequest,
    EngineSeal,
    SealedRequest,
    TargetPoolCreate,
    TargetPoolDestroy,
    TargetPool,
    TargetPoolResize,
    TargetPoolMap,
    DeviceNotice,
    TargetContainer,
    TargetContainerState,
    TargetContainerUsage,
    GrantRequest,
    ResolveRequest,
    ResolveReply,
    ForwardRequest,
    ForwardReply,
    EngineReport,
    TargetPoolSpace,
    PoolSum,
    MemberState,
    MemberUpdate,
    GroupPing,
    GroupAck,
    GroupRelay,
    GroupRelayReply,
    GroupSync,
    GroupSyncReply,
    EngineInfo,
    GroupList,
    GroupOffer,
    TenantQuestion,
    TenantAccess,
    Tree,
    Collective,
    CollectiveReply,
    TransactionId,
    ReaderId,
    Change,
    Part,
    CommitRequest,
    PrepareRequest,
    Declined,
    Outcome,
    DecideRequest,
    OutcomeRequest,
    ChangeId,
    ForwardedChange,
    ReplicaForward,
    SettledNotice,
    RoomRequest,
    RoomPromise,
    ReplicaReserve,
    SettledChanges,
    LeftRequest,
    LeftChange,
    LeftChanges,
    LeftDataRequest,
    LeftData,
    TakenForward,
    LeftNotice,
    RaftBatch,
    RaftEntry,
    RaftMessage,
    RaftSnapshot,
    SystemState,
    SystemJoin,
    ShareOrder,
    ShareReport,
    ShareRequest,
    ShareGrant,
    RateRequest,
    RateReply,
    TenantLimits,
    ShareStamp,
    ShareChange,
    Rate,
    RebuiltNotice,
    ReturnedNotice,
    FillProgress,
    ProgressNotice,
    HindranceNotice,
    LeaseWish,
    LeaseRequest,
    LeaseReply,
    HistoryStep,
    HistoryEvent,
    HistoryVersion,
    HistoryBegin,
    HistoryBegun,
    HistoryRequest,
    HistoryPage,
    HistoryComparison,
    HistoryDifference,
    VersionName,
    VersionRequest,
    VersionData,
    EndedRequest,
    EndedTransaction,
    EndedTransactions,
    NamesRequest,
    ChangeNames,
    GroupName,
    Known,
    PreparedChange,
    ReplicaCommitRequest,
    ReplicaPrepareRequest,
    ReplicaDecideRequest,
    ReplicaDecision,
    ReplicaKnownRequest,
    ReplicaOutcomeRequest,
    ReplicaForgetRequest,
    Vec<Change>,
    Vec<PreparedChange>,
    ContainerStateByLeader,
    ConnectTail,
    ServiceTail,
    ServiceRanks,
    ServiceJoin,
    ProbeListener,
    PoolSecret,
    Rights,
    Capability,
    Credential,
    TenantId,
    Rank,
    TargetIndex,
    PoolId,
    ContainerId,
    ObjectId,
    Key,
    Epoch,
    Der,
    ByLeader<UpdateRequest>,
    ByLeader<PunchRequest>,
    Read<FetchRequest>,
    Read<ListRequest>,
    Read<SearchKeyRequest>,
    Vec<ContainerInfo>,
    Vec<Epoch>,
    Vec<TargetPoolMap>,
    Vec<ProbeListener>,
    Vec<(TenantId, TenantAccess)>,
    Option<Outcome>,
    Result<(), Declined>,
];

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let choice = usize::from(source.byte()) % TYPES.len();
    let bytes = source.rest();
    (TYPES[choice].1)(bytes);
    if let Ok((request, _)) = decode_prefix::<UpdateRequest>(bytes) {
        check(&request.akeys.iter().map(|update| (&update.akey, &update.value)));
    }
    if let Ok((request, _)) = decode_prefix::<FetchRequest>(bytes) {
        check(&request.akeys.iter().map(|fetch| (&fetch.akey, &fetch.value)));
    }
    let drawn: Vec<(Key, Value)> = drawn(&mut Source::new(bytes));
    check(&drawn.iter().map(|(akey, value)| (akey, value)));
}

/// Values of a request, some with as many extents as it may have and more.
fn drawn(source: &mut Source<'_>) -> Vec<(Key, Value)> {
    let value = |source: &mut Source<'_>| {
        if source.chance(80) {
            return Value::Single { size: source.number() };
        }
        let record_size = source.number32();
        if source.chance(80) {
            let (first, stride, count) = (source.number(), source.number(), source.number());
            let comb = (0..source.below(1100))
                .map(|tooth| Extent { index: first.saturating_add(stride.saturating_mul(tooth)), count });
            return Value::Array { record_size, extents: comb.collect() };
        }
        let extents = (0..source.below(5)).map(|_| Extent { index: source.number(), count: source.number() });
        Value::Array { record_size, extents: extents.collect() }
    };
    (0..=source.below(4)).map(|_| (Key::from_u64(source.below(8)), value(source))).collect()
}

/// What is valid is cut into chunks that cover its data, without gaps, and none of which is empty.
fn check<'a>(akeys: &(impl ExactSizeIterator<Item = (&'a Key, &'a Value)> + Clone)) {
    let Ok(total) = validate(akeys.clone()) else { return };
    for grain in [Grain::of(akeys.clone().map(|(_, value)| value)), Grain::Coarse] {
        let mut covered = 0;
        for chunks in akeys.clone().flat_map(|(_, value)| chunk::chunks(value, grain)) {
            let mut end = 0;
            for range in chunks.ranges() {
                assert!(range.start == end && range.end > end, "{chunks:?} have {range:?} behind {end}");
                end = range.end;
            }
            assert_eq!(end, chunks.len());
            covered += end;
        }
        assert_eq!(covered, total, "bytes in chunks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The types of a source file that can be decoded.
    fn decoded_in(source: &str) -> Vec<String> {
        let (mut found, mut derived) = (Vec::new(), String::new());
        for line in source.lines() {
            let declared = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
            if let Some(name) = declared {
                let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
                found.extend(derived.contains("Deserialize").then(|| name[..end].to_owned()));
                derived.clear();
            } else if line.starts_with("#[derive(") || !derived.is_empty() {
                derived.push_str(line);
            }
        }
        found
    }

    #[test]
    fn every_type_of_the_protocol_that_is_decoded_has_its_turn() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/src");
        let files = std::fs::read_dir(folder).expect("the protocol").flatten();
        let sources = files.map(|file| std::fs::read_to_string(file.path()).expect("a source"));
        let decoded: Vec<String> = sources.flat_map(|source| decoded_in(&source)).collect();
        let is_listed = |name: &String| {
            let generic = format!("{name}<");
            TYPES.iter().any(|(listed, _)| listed == name || listed.starts_with(&generic))
        };
        let missing: Vec<&String> = decoded.iter().filter(|name| !is_listed(name)).collect();
        assert!(missing.is_empty(), "list them here: {missing:?}");
        let own = TYPES.iter().filter(|(name, _)| !name.contains('<')).count();
        let plain = decoded.iter().filter(|name| TYPES.iter().any(|(listed, _)| listed == name));
        assert_eq!(plain.count(), own, "all that is listed was found");
        assert!(TYPES.len() <= 256, "a byte chooses one of them");
    }
}
