//! What a target stores of a pool.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use weir_proto::codec::DecodeError;
use weir_proto::pool::{PoolMap, TargetPoolCreate};
use weir_proto::{PoolId, PoolSecret, Rank, TenantId, codec};

use super::map::{EarlyMapForm, MapForm};
use super::{Read, Stored, read_as, read_through};

/// A pool as a target and its service know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolRecord {
    /// The pool.
    pub pool: PoolId,
    /// Its label.
    pub label: String,
    /// Seals its capabilities.
    pub secret: PoolSecret,
    /// Bytes of each target.
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

/// Why engines can't join or leave a pool without redundancy.
pub(crate) const STAYS_AS_IT_IS: &str = "the pool has no redundancy: its data stays where it is as long as the pool lives; copy it to another pool";

/// Most replicas of a pool's service: it outlives the loss of two engines.
const REPLICAS_MAX: usize = 5;

impl PoolRecord {
    /// Whether this is another record, with the same map or a newer one.
    pub(crate) fn has_all_of(&self, other: &Self) -> bool {
        self.map.version >= other.map.version && *self == Self { map: self.map.clone(), ..other.clone() }
    }

    /// The ranks that replicate the pool's service, one alone: it isn't replicated. The map says which, once others do than at first.
    #[must_use]
    pub fn replicas(&self) -> Vec<Rank> {
        if self.map.service.is_empty() { self.first_replicas() } else { self.map.service.clone() }
    }

    /// The ranks that replicate the service of a new pool, of which the first leads first: those that are as far apart in the failure
    /// domains as can be. They depend on nothing that changes while the pool lives, so that engines of each release know them.
    fn first_replicas(&self) -> Vec<Rank> {
        if self.redundancy == 0 {
            return vec![self.service];
        }
        let original = self.map.targets.iter().filter(|target| target.joined == 0).map(|target| target.rank);
        let ranks: BTreeSet<Rank> = original.collect();
        let mut chosen = vec![self.service];
        while chosen.len() < self.wanted_replicas(ranks.len()) {
            let open = ranks.iter().copied().filter(|rank| !chosen.contains(rank));
            let Some(next) = open.min_by_key(|rank| self.nearness(*rank, &chosen)) else { break };
            chosen.push(next);
        }
        chosen
    }

    /// How many engines are to replicate the service of a pool on so many: 2 *F* + 1 for a redundancy factor of *F*, five at most, and
    /// an odd number of them: one more would survive no more.
    pub(crate) fn wanted_replicas(&self, engines: usize) -> usize {
        let wanted = usize::try_from(self.redundancy).map_or(REPLICAS_MAX, |lost| lost.saturating_mul(2) + 1);
        let most = wanted.min(REPLICAS_MAX).min(engines);
        most.saturating_sub(1) / 2 * 2 + 1
    }

    /// By what an engine is chosen beside others: the one with the least shares the smallest failure domains with none of them.
    pub(crate) fn nearness(&self, rank: Rank, others: &[Rank]) -> (Option<usize>, Rank) {
        (others.iter().map(|other| self.shared_domains(rank, *other)).max(), rank)
    }

    /// How many failure domains, from the largest on, two engines have in common.
    fn shared_domains(&self, one: Rank, other: Rank) -> usize {
        let (one, other) = (self.map.path_of(one), self.map.path_of(other));
        one.iter().zip(other).take_while(|(one, other)| one == other).count()
    }
}

impl From<TargetPoolCreate> for PoolRecord {
    fn from(request: TargetPoolCreate) -> Self {
        let TargetPoolCreate { pool, label, secret, size, service, map, object_class, tenant, redundancy } =
            request;
        Self { pool, label, secret, size, service, map, object_class, tenant, redundancy }
    }
}

impl From<PoolRecord> for TargetPoolCreate {
    fn from(record: PoolRecord) -> Self {
        let PoolRecord { pool, label, secret, size, service, map, object_class, tenant, redundancy } = record;
        Self { pool, label, secret, size, service, map, object_class, tenant, redundancy }
    }
}

/// The form of version 3.
#[derive(Serialize, Deserialize)]
pub(super) struct PoolForm {
    pool: PoolId,
    label: String,
    secret: PoolSecret,
    size: u64,
    service: Rank,
    map: MapForm,
    object_class: String,
    tenant: TenantId,
    /// An encoded [`PoolTail`].
    #[serde(with = "serde_bytes")]
    tail: Vec<u8>,
}

/// What a record says behind its first fields. Later fields are appended: the reader ignores what it doesn't know.
#[derive(Serialize, Deserialize)]
struct PoolTail {
    redundancy: u32,
}

/// The form of version 2.
#[derive(Deserialize)]
pub(super) struct SecondPoolForm {
    pool: PoolId,
    label: String,
    secret: PoolSecret,
    size: u64,
    service: Rank,
    map: EarlyMapForm,
    object_class: String,
    tenant: TenantId,
}

/// The form of version 1: without a tenant, which is the system.
#[derive(Deserialize)]
pub(super) struct FirstPoolForm {
    pool: PoolId,
    label: String,
    secret: PoolSecret,
    size: u64,
    service: Rank,
    map: EarlyMapForm,
    object_class: String,
}

impl From<&PoolRecord> for PoolForm {
    fn from(record: &PoolRecord) -> Self {
        let PoolRecord { pool, label, secret, size, service, map, object_class, tenant, redundancy } =
            record.clone();
        let (map, tail) = ((&map).into(), codec::encode(&PoolTail { redundancy }));
        Self { pool, label, secret, size, service, map, object_class, tenant, tail }
    }
}

impl TryFrom<PoolForm> for PoolRecord {
    type Error = DecodeError;

    fn try_from(form: PoolForm) -> Result<Self, DecodeError> {
        let PoolForm { pool, label, secret, size, service, map, object_class, tenant, tail } = form;
        let (PoolTail { redundancy }, _later) = codec::decode_prefix(&tail)?;
        let map = map.try_into()?;
        Ok(Self { pool, label, secret, size, service, map, object_class, tenant, redundancy })
    }
}

impl From<SecondPoolForm> for PoolRecord {
    fn from(form: SecondPoolForm) -> Self {
        let SecondPoolForm { pool, label, secret, size, service, map, object_class, tenant } = form;
        let map = map.into();
        Self { pool, label, secret, size, service, map, object_class, tenant, redundancy: 0 }
    }
}

impl From<FirstPoolForm> for PoolRecord {
    fn from(form: FirstPoolForm) -> Self {
        let FirstPoolForm { pool, label, secret, size, service, map, object_class } = form;
        let (map, tenant) = (map.into(), TenantId::SYSTEM);
        Self { pool, label, secret, size, service, map, object_class, tenant, redundancy: 0 }
    }
}

impl Stored for PoolRecord {
    const WHAT: &'static str = "the record";
    const VERSION: u8 = 3;

    fn body(&self) -> Vec<u8> {
        codec::encode(&PoolForm::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_as::<FirstPoolForm, _>(body),
            2 => read_as::<SecondPoolForm, _>(body),
            3 => read_through::<PoolForm, _>(body),
            _ => Read::Unknown,
        }
    }
}
