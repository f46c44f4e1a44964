//! A container as the service stores it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use weir_proto::pool::{ContainerProperties, ContainerType};
use weir_proto::{Epoch, codec};

use super::{Read, Stored, read_as};

/// A container as the service knows it. The attributes of its properties are stored one by one in a scope of their
/// own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ContainerRecord {
    pub(crate) properties: ContainerProperties,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Ascending.
    pub(crate) snapshots: Vec<Epoch>,
    /// Object-id user bits below this are reserved.
    pub(crate) next_oid: u64,
    /// What each target that knows the container may hold, by target id; `None`: no limit.
    pub(crate) grants: BTreeMap<u32, Option<u64>>,
    /// Destroyed; targets are being told.
    pub(crate) doomed: bool,
}

/// The form of versions 1 and 2.
#[derive(Serialize, Deserialize)]
struct ContainerForm {
    properties: PropertiesForm,
    created: u64,
    snapshots: Vec<Epoch>,
    next_oid: u64,
    grants: BTreeMap<u32, Option<u64>>,
    doomed: bool,
}

#[derive(Serialize, Deserialize)]
struct PropertiesForm {
    label: String,
    kind: KindForm,
    quota: u64,
    object_class: String,
    chunk_size: u64,
    uid: u32,
    gid: u32,
    mode: u32,
    attributes: BTreeMap<String, ByteBuf>,
}

/// Stored as the number of the variant.
#[derive(Serialize, Deserialize)]
enum KindForm {
    Posix,
    Object,
}

impl From<ContainerProperties> for PropertiesForm {
    fn from(properties: ContainerProperties) -> Self {
        let ContainerProperties { label, kind, quota, object_class, chunk_size, uid, gid, mode, attributes } =
            properties;
        let kind = match kind {
            ContainerType::Posix => KindForm::Posix,
            ContainerType::Object => KindForm::Object,
        };
        Self { label, kind, quota, object_class, chunk_size, uid, gid, mode, attributes }
    }
}

impl From<PropertiesForm> for ContainerProperties {
    fn from(form: PropertiesForm) -> Self {
        let PropertiesForm { label, kind, quota, object_class, chunk_size, uid, gid, mode, attributes } =
            form;
        let kind = match kind {
            KindForm::Posix => ContainerType::Posix,
            KindForm::Object => ContainerType::Object,
        };
        Self { label, kind, quota, object_class, chunk_size, uid, gid, mode, attributes }
    }
}

impl From<&ContainerRecord> for ContainerForm {
    fn from(record: &ContainerRecord) -> Self {
        let ContainerRecord { properties, created, snapshots, next_oid, grants, doomed } = record.clone();
        Self { properties: properties.into(), created, snapshots, next_oid, grants, doomed }
    }
}

impl From<ContainerForm> for ContainerRecord {
    fn from(form: ContainerForm) -> Self {
        let ContainerForm { properties, created, snapshots, next_oid, grants, doomed } = form;
        Self { properties: properties.into(), created, snapshots, next_oid, grants, doomed }
    }
}

impl Stored for ContainerRecord {
    const WHAT: &'static str = "the record of a container";
    const VERSION: u8 = 2;

    fn body(&self) -> Vec<u8> {
        codec::encode(&ContainerForm::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 | 2 => read_as::<ContainerForm, _>(body),
            _ => Read::Unknown,
        }
    }
}
