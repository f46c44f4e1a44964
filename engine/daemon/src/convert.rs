//! Conversions between the management protocol's and the pool service's types.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message;
use serde_bytes::ByteBuf;
use weir_group::{Gathered, Refusal};
use weir_management::{Failure, v1};
use weir_pool::{
    Condition, DirectoryEntry, EntryState, Failed, Health, OpenHandle, PoolRecord, PoolUse, TenantUse,
};
use weir_proto::group::{EngineInfo, MemberState};
use weir_proto::pool::{ContainerInfo, ContainerProperties, ContainerType, PoolEngine, TargetState};
use weir_proto::quota::TenantLimits;
use weir_proto::{Der, Rank, TenantId};
use weir_rpc::membership::swim::Member;
use weir_runtime::Instant;

use crate::tenants::EngineAnswer;

/// Decodes a request; one that doesn't decode is the caller's fault.
pub fn decode<T: Message + Default>(method: &str, bytes: &[u8]) -> Result<T, Failure> {
    T::decode(bytes)
        .map_err(|error| Failure::new(Der::INVAL, method, format!("the request does not decode: {error}")))
}

/// A UUID that the creator of something chose; none from an empty text.
pub fn identity(text: &str, object: &str) -> Result<Option<uuid::Uuid>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    uuid::Uuid::try_parse(text).map(Some).map_err(|error| {
        Failure::new(Der::INVAL, object, format!("{object}: uuid is not the text of a UUID: {error}"))
    })
}

pub fn failure(failed: Failed) -> Failure {
    let Refusal { der, object, message } = failed.into();
    Failure { der, object, message }
}

pub fn address(info: &EngineInfo) -> v1::EngineAddress {
    v1::EngineAddress {
        rank: info.rank.0,
        host: info.host.clone(),
        fabric_port: info.fabric_port.into(),
        targets: info.targets,
        management: info.management.clone(),
    }
}

/// What the membership protocol says of an engine.
pub fn add_membership(state: &mut v1::EngineState, member: &Member, now: Instant) {
    let membership = match member.state {
        MemberState::Unknown => v1::MemberState::Unknown,
        MemberState::Alive => v1::MemberState::Alive,
        MemberState::Suspect => v1::MemberState::Suspect,
        MemberState::Dead => v1::MemberState::Dead,
    };
    state.membership = membership.into();
    state.incarnation = member.incarnation;
    state.membership_seconds = (now - member.since).as_secs();
}

/// Where an engine is, as the creator of a pool says.
pub fn place(said: v1::EnginePlace) -> PoolEngine {
    PoolEngine { rank: Rank(said.rank), path: said.path }
}

/// A pool as its service describes it.
pub fn pool(record: &PoolRecord, gathered: &Gathered, containers: usize) -> v1::PoolInfo {
    let targets = record.map.targets.len() as u64;
    let size = record.size.saturating_mul(targets);
    let (total, free) = gathered.total_and_free();
    let mut ranks: Vec<u32> = record.map.targets.iter().map(|target| target.rank.0).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let unreachable: Vec<u32> = gathered.unreachable.iter().map(|rank| rank.0).collect();
    let down = record.map.down().map(|target| v1::TargetName { rank: target.rank.0, target: target.index.0 });
    let down_targets: Vec<_> = down.collect();
    let new = record.map.targets.iter().filter(|target| target.state == TargetState::New);
    let new_ranks: Vec<u32> = new.map(|target| target.rank.0).collect::<BTreeSet<_>>().into_iter().collect();
    // Others have the places of those that are out.
    let whole = unreachable.is_empty() && record.map.down().all(|target| target.out != 0);
    let state = if whole { v1::PoolState::Ready } else { v1::PoolState::Degraded };
    v1::PoolInfo {
        uuid: record.pool.to_string(),
        label: record.label.clone(),
        state: state.into(),
        size_bytes: size,
        used_bytes: total.saturating_sub(free),
        free_bytes: free,
        ranks,
        unreachable_ranks: unreachable,
        targets: count(record.map.targets.len()),
        map_version: record.map.version,
        containers: count(containers),
        object_class: record.object_class.clone(),
        service_ranks: record.replicas().into_iter().map(|rank| rank.0).collect(),
        tenant: record.tenant.0,
        down_targets,
        health: None,
        new_ranks,
        rebuild_delay_seconds: None,
    }
}

/// How a pool with redundancy is doing.
pub fn health(health: &Health) -> v1::PoolHealth {
    let condition = match health.condition {
        Condition::Healthy => v1::PoolCondition::Healthy,
        Condition::Degraded => v1::PoolCondition::Degraded,
        Condition::Rebuilding => v1::PoolCondition::Rebuilding,
        Condition::Unavailable => v1::PoolCondition::Unavailable,
    };
    let rebuild = health.filling.as_ref().map(|filling| v1::PoolRebuild {
        targets: count(filling.targets),
        entries: filling.entries,
        bytes: filling.bytes,
        parts_done: filling.parts.map(|(done, _)| done),
        parts: filling.parts.map(|(_, all)| all),
        bytes_per_second: filling.rate,
        seconds_left: filling.left.map(|left| left.as_secs()),
        hindrance: filling.hindrance.clone(),
    });
    v1::PoolHealth { condition: condition.into(), failures_survived: health.survives, rebuild }
}

/// A pool whose service doesn't answer, as the list of pools has it.
pub fn listed(entry: &DirectoryEntry) -> v1::PoolInfo {
    let mut info = pool(&entry.pool, &Gathered::default(), 0);
    let state = match entry.state {
        EntryState::Destroying => v1::PoolState::Destroying,
        EntryState::Creating => v1::PoolState::Unspecified,
        EntryState::Ready => v1::PoolState::Degraded,
    };
    info.state = state.into();
    if entry.state == EntryState::Ready {
        info.unreachable_ranks = vec![entry.pool.service.0];
    }
    info
}

pub fn container(info: ContainerInfo, pool: &PoolRecord) -> v1::ContainerInfo {
    let properties = info.properties;
    let kind = match properties.kind {
        ContainerType::Posix => v1::ContainerType::Posix,
        ContainerType::Object => v1::ContainerType::Object,
    };
    // Values that aren't text can't be shown here; the data path has them.
    let text = |(name, value): (String, ByteBuf)| Some((name, String::from_utf8(value.into_vec()).ok()?));
    v1::ContainerInfo {
        uuid: info.container.to_string(),
        label: properties.label,
        pool_uuid: pool.pool.to_string(),
        pool_label: pool.label.clone(),
        r#type: kind.into(),
        quota_bytes: properties.quota,
        used_bytes: info.used,
        object_class: properties.object_class,
        chunk_size_bytes: properties.chunk_size,
        attributes: properties.attributes.into_iter().filter_map(text).collect(),
        open_handles: info.handles,
        created_unix_seconds: i64::try_from(info.created).unwrap_or(i64::MAX),
    }
}

pub fn handle(open: OpenHandle) -> v1::OpenHandle {
    v1::OpenHandle {
        handle: open.handle,
        node: open.node,
        silent_seconds: open.silent.as_secs(),
        counts: open.counts,
    }
}

pub fn properties(request: v1::ContainerCreateRequest) -> Result<ContainerProperties, Failure> {
    let kind = match request.r#type() {
        v1::ContainerType::Posix | v1::ContainerType::Unspecified => ContainerType::Posix,
        v1::ContainerType::Object => ContainerType::Object,
    };
    if v1::ContainerType::try_from(request.r#type).is_err() {
        let message = format!("container {}: type {} is unknown", request.label, request.r#type);
        return Err(Failure::new(Der::INVAL, format!("container {}", request.label), message));
    }
    Ok(ContainerProperties {
        label: request.label,
        kind,
        quota: request.quota_bytes,
        object_class: request.object_class,
        chunk_size: request.chunk_size_bytes,
        uid: request.uid,
        gid: request.gid,
        mode: request.mode,
        attributes: bytes(request.attributes),
    })
}

fn bytes(attributes: HashMap<String, String>) -> BTreeMap<String, ByteBuf> {
    attributes.into_iter().map(|(name, value)| (name, ByteBuf::from(value.into_bytes()))).collect()
}

pub fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The tenant of a number, which is not the system's: the engines themselves are of that.
///
/// # Errors
/// When it is the system's.
pub fn tenant(number: u64) -> Result<TenantId, Failure> {
    if number == TenantId::SYSTEM.0 {
        let message = "tenant 0 is the system itself, which is neither turned away nor limited".to_owned();
        return Err(Failure::new(Der::INVAL, "tenant 0", message));
    }
    Ok(TenantId(number))
}

/// What a tenant may use.
///
/// # Errors
/// When that isn't said: what is left out would be taken for no limit.
pub fn limits(tenant: TenantId, limits: Option<v1::TenantLimits>) -> Result<TenantLimits, Failure> {
    let Some(v1::TenantLimits { bytes, operations_per_second, bytes_per_second }) = limits else {
        let message = "the request names no limits; name all of them, 0 for none".to_owned();
        return Err(Failure::new(Der::INVAL, format!("tenant {tenant}"), message));
    };
    Ok(TenantLimits { bytes, operations: operations_per_second, bandwidth: bytes_per_second })
}

/// What a tenant may use, and what its pools do.
pub fn tenant_use(uses: TenantUse) -> (v1::TenantLimits, Vec<v1::TenantPoolUse>) {
    let TenantLimits { bytes, operations, bandwidth } = uses.limits;
    let limits = v1::TenantLimits { bytes, operations_per_second: operations, bytes_per_second: bandwidth };
    let pool = |pool: PoolUse| {
        let named = v1::TenantPoolUse {
            uuid: pool.pool.to_string(),
            label: pool.label,
            share_bytes: pool.share,
            ..v1::TenantPoolUse::default()
        };
        match pool.used {
            Ok(used_bytes) => v1::TenantPoolUse { answered: true, used_bytes, ..named },
            Err(message) => v1::TenantPoolUse { message, ..named },
        }
    };
    (limits, uses.pools.into_iter().map(pool).collect())
}

/// What engines say of a tenant.
pub fn tenant_engines(answers: Vec<EngineAnswer>) -> Vec<v1::TenantEngine> {
    let engine = |answer: EngineAnswer| {
        let rank = answer.rank.0;
        match answer.revoked {
            Ok(revoked) => v1::TenantEngine { rank, answered: true, revoked, message: String::new() },
            Err(error) => {
                v1::TenantEngine { rank, answered: false, revoked: false, message: error.to_string() }
            }
        }
    };
    answers.into_iter().map(engine).collect()
}
