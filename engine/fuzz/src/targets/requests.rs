//! Bodies of requests and replies: whatever decodes encodes to the same again, and passes or fails its own checks.

use crate::source::Source;
use weir_proto::codec::{decode, decode_prefix, encode};
use weir_proto::object::{
    FetchReply, FetchRequest, ListReply, ListRequest, PunchRequest, QueryKeyReply, QueryKeyRequest,
    UpdateReply, UpdateRequest, validate,
};
use weir_proto::pool::{
    AllocateRequest, AttributeGetRequest, AttributeSetRequest, Attributes, ConnectReply, ConnectRequest,
    ContainerCreateRequest, ContainerDestroyRequest, ContainerInfo, ContainerOpenReply, ContainerOpenRequest,
    ContainerRequest, EngineReport, ForwardReply, ForwardRequest, GrantRequest, PoolMap, PoolQueryReply,
    PoolRequest, QuotaRequest, ResolveReply, ResolveRequest, SealedRequest, SnapshotRequest, TargetContainer,
    TargetContainerState, TargetContainerUsage, TargetPool, TargetPoolCreate, TargetPoolDestroy,
    TargetPoolResize, TargetPoolSpace,
};

/// Decodes bytes as one type, with something behind them and without.
macro_rules! each {
    ($bytes:expr, $choice:expr, [$($type:ty),* $(,)?]) => {{
        let mut number = 0;
        $(
            if $choice == number {
                if let Ok((value, rest)) = decode_prefix::<$type>($bytes) {
                    assert!(rest.len() <= $bytes.len());
                    let again = encode(&value);
                    let back: $type = decode(&again).expect("what was encoded decodes");
                    assert_eq!(encode(&back), again, "the encoding of a decoded value changes");
                }
                let _ = decode::<$type>($bytes);
            }
            number += 1;
        )*
        assert_eq!(number, TYPES, "every type has its turn");
    }};
}

/// Number of the types below.
const TYPES: u8 = 41;

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let choice = source.byte() % TYPES;
    let bytes = source.rest();
    each!(
        bytes,
        choice,
        [
            UpdateRequest,
            FetchRequest,
            PunchRequest,
            ListRequest,
            QueryKeyRequest,
            UpdateReply,
            FetchReply,
            ListReply,
            QueryKeyReply,
            ConnectRequest,
            ConnectReply,
            PoolRequest,
            PoolQueryReply,
            PoolMap,
            ContainerCreateRequest,
            ContainerInfo,
            ContainerOpenRequest,
            ContainerOpenReply,
            ContainerRequest,
            ContainerDestroyRequest,
            AllocateRequest,
            AttributeSetRequest,
            AttributeGetRequest,
            Attributes,
            SnapshotRequest,
            QuotaRequest,
            SealedRequest,
            TargetPoolCreate,
            TargetPoolDestroy,
            TargetPool,
            TargetPoolResize,
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
        ]
    );
    if let Ok((request, _)) = decode_prefix::<UpdateRequest>(bytes) {
        let _ = validate(request.akeys.iter().map(|update| (&update.akey, &update.value)));
    }
    if let Ok((request, _)) = decode_prefix::<FetchRequest>(bytes) {
        let _ = validate(request.akeys.iter().map(|fetch| (&fetch.akey, &fetch.value)));
    }
}
