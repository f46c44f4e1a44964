//! Bodies of requests and replies: whatever decodes encodes to the same again, and passes or fails its own checks. What
//! passes can be cut into chunks that cover its data.

use crate::source::Source;
use weir_proto::Key;
use weir_proto::chunk::{self, Grain};
use weir_proto::codec::{decode, decode_prefix, encode};
use weir_proto::object::{
    Extent, FetchReply, FetchRequest, ListReply, ListRequest, PunchRequest, QueryKeyReply, QueryKeyRequest,
    SearchKeyReply, SearchKeyRequest, UpdateReply, UpdateRequest, Value, validate,
};
use weir_proto::pool::{
    AllocateRequest, AttributeGetRequest, AttributeSetRequest, Attributes, ConnectReply, ConnectRequest,
    ContainerCreateRequest, ContainerDestroyRequest, ContainerInfo, ContainerOpenReply, ContainerOpenRequest,
    ContainerRequest, EngineReport, ForwardReply, ForwardRequest, GrantRequest, PoolMap, PoolQueryReply,
    PoolRequest, QuotaRequest, ResolveReply, ResolveRequest, SealedRequest, SnapshotRequest, TargetContainer,
    TargetContainerState, TargetContainerUsage, TargetPool, TargetPoolCreate, TargetPoolDestroy,
    TargetPoolResize, TargetPoolSpace,
};
use weir_proto::transaction::{CommitRequest, DecideRequest, Declined, OutcomeRequest, PrepareRequest};

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
const TYPES: u8 = 48;

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
            SearchKeyRequest,
            SearchKeyReply,
            CommitRequest,
            PrepareRequest,
            Declined,
            DecideRequest,
            OutcomeRequest,
        ]
    );
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
