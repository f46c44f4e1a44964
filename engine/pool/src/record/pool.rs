//! What a target stores of a pool.

use serde::{Deserialize, Serialize};
use weir_proto::pool::{PoolMap, TargetPoolCreate};
use weir_proto::{PoolId, PoolSecret, Rank, TenantId, codec};

use super::map::MapForm;
use super::{Read, Stored, read_as};

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
}

impl From<TargetPoolCreate> for PoolRecord {
    fn from(request: TargetPoolCreate) -> Self {
        let TargetPoolCreate { pool, label, secret, size, service, map, object_class, tenant } = request;
        Self { pool, label, secret, size, service, map, object_class, tenant }
    }
}

impl From<PoolRecord> for TargetPoolCreate {
    fn from(record: PoolRecord) -> Self {
        let PoolRecord { pool, label, secret, size, service, map, object_class, tenant } = record;
        Self { pool, label, secret, size, service, map, object_class, tenant }
    }
}

/// The form of version 2.
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
}

/// The form of version 1: without a tenant, which is the system.
#[derive(Deserialize)]
pub(super) struct FirstPoolForm {
    pool: PoolId,
    label: String,
    secret: PoolSecret,
    size: u64,
    service: Rank,
    map: MapForm,
    object_class: String,
}

impl From<&PoolRecord> for PoolForm {
    fn from(record: &PoolRecord) -> Self {
        let PoolRecord { pool, label, secret, size, service, map, object_class, tenant } = record.clone();
        Self { pool, label, secret, size, service, map: (&map).into(), object_class, tenant }
    }
}

impl From<PoolForm> for PoolRecord {
    fn from(form: PoolForm) -> Self {
        let PoolForm { pool, label, secret, size, service, map, object_class, tenant } = form;
        Self { pool, label, secret, size, service, map: map.into(), object_class, tenant }
    }
}

impl From<FirstPoolForm> for PoolRecord {
    fn from(form: FirstPoolForm) -> Self {
        let FirstPoolForm { pool, label, secret, size, service, map, object_class } = form;
        let (map, tenant) = (map.into(), TenantId::SYSTEM);
        Self { pool, label, secret, size, service, map, object_class, tenant }
    }
}

impl Stored for PoolRecord {
    const WHAT: &'static str = "the record";
    const VERSION: u8 = 2;

    fn body(&self) -> Vec<u8> {
        codec::encode(&PoolForm::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_as::<FirstPoolForm, _>(body),
            2 => read_as::<PoolForm, _>(body),
            _ => Read::Unknown,
        }
    }
}
