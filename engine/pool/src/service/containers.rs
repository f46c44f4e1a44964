//! Creating, opening and describing containers.

use std::collections::BTreeMap;
use std::rc::Rc;

use weir_group::Gathered;
use weir_layout::{ClassError, Layout, ObjectClass, serves_all_replicas};
use weir_proto::pool::{
    AllocateReply, ContainerCreateRequest, ContainerInfo, ContainerOpenReply, ContainerOpenRequest,
    ContainerProperties, validate_label,
};
use weir_proto::{Capability, ContainerId, ObjectId, Rights};

use super::{Container, PoolService, SPACE_AGE_MAX};
use crate::error::Failed;
use crate::record::{self, ContainerRecord, SCOPE_CONTAINER};

/// Bytes of a file in one dkey when the creator doesn't say (DAOS: `DFS_DEFAULT_CHUNK_SIZE`).
pub const CHUNK_SIZE_DEFAULT: u64 = 1024 * 1024;

/// Smallest and largest chunk: a block of the media, and what keeps the records of one dkey within 32 bits.
const CHUNK_SIZES: core::ops::RangeInclusive<u64> = 4096..=1 << 30;

/// Least quota: the first record of a file system and a few small files fit on any targets that they may lie on.
const QUOTA_MIN: u64 = 1 << 20;

/// Mode of a root directory when the creator doesn't say.
const MODE_DEFAULT: u32 = 0o755;

/// Permission bits of a mode, with set-id and sticky bits.
const MODE_BITS: u32 = 0o7777;

/// Most object ids in one allocation (protocol: [`weir_proto::pool::AllocateRequest`]).
const ALLOCATE_MAX: u64 = 1 << 32;

/// Object ids that are made durable ahead of their allocation, so that most allocations write nothing.
const ALLOCATE_AHEAD: u64 = 1 << 20;

/// Object ids that a container's users may have been given for each millisecond of its life: far more than are ever asked for.
/// They suffice for five hundred years.
const OIDS_PER_MS: u64 = 1 << 20;

/// Where what is skipped ends, whatever the clock says: the other half of all ids is left.
const SKIPPED_MAX: u64 = 1 << 63;

/// The properties of a container to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made<T> {
    /// It.
    pub it: T,
    /// It was there before the request.
    pub existed: bool,
}

impl<T> Made<T> {
    /// Made for this request.
    pub(crate) const fn now(it: T) -> Self {
        Self { it, existed: false }
    }
}

impl Container {
    /// Goes on behind all object ids that may have been given out up to this time, in nanoseconds since 1970, whatever the record
    /// says: that of a device that was restored from an older copy says too little.
    pub(super) fn skip_oids(&self, now: u64) {
        let age_ms = (now / 1_000_000).saturating_sub(self.record.borrow().created.saturating_mul(1000));
        let skipped = age_ms.saturating_mul(OIDS_PER_MS).min(SKIPPED_MAX);
        self.next_oid.set(self.next_oid.get().max(skipped));
    }
}

/// Refuses a quota with which the container couldn't be used; 0 means none. Containers of earlier releases may have such.
pub(super) fn check_quota(quota: u64, object: &str) -> Result<(), Failed> {
    if (1..QUOTA_MIN).contains(&quota) {
        let reason = format!("a quota has at least {QUOTA_MIN} bytes (1 MiB), not {quota}; 0 means none");
        return Err(Failed::Invalid { object: object.to_owned(), reason });
    }
    Ok(())
}

impl PoolService {
    /// Creates a container, or returns the existing one of the same label and properties. Of requests that come at once, one
    /// has made it; a request that is repeated, with the same id, also.
    ///
    /// # Errors
    /// When a property is invalid, the label is taken, the state can't be written, or the pool is destroyed meanwhile.
    pub async fn create_container(
        &self,
        request: ContainerCreateRequest,
        trusted: bool,
    ) -> Result<Made<ContainerInfo>, Failed> {
        if !trusted {
            self.authorize(&request.capability, Rights::CREATE_CONTAINER)?;
        }
        let properties = self.complete(request.properties)?;
        let _permit = self.creating.acquire().await;
        // It may have been destroyed while this waited.
        self.pool()?;
        let label = properties.label.clone();
        let taken = self.labels.borrow().get(&label).copied();
        if let Some(existing) = taken.and_then(|id| self.containers.borrow().get(&id).map(Rc::clone)) {
            let repeated = existing.id == request.container;
            self.compare(&existing, &properties, request.exclusive && !repeated)?;
            return Ok(Made { it: info_of(&existing, 0), existed: !repeated });
        }
        if self.containers.borrow().contains_key(&request.container) {
            return Err(Failed::Exists {
                object: format!("container {}", request.container),
                difference: "the id names a container of another label".to_owned(),
            });
        }
        check_quota(properties.quota, &self.object(&label))?;
        let container = self.store_new(request.container, properties).await?;
        self.pool()?;
        let info = info_of(&container, 0);
        self.insert(container);
        tracing::info!(container = %info.container, label, "container created");
        Ok(Made::now(info))
    }

    async fn store_new(
        &self,
        id: ContainerId,
        mut properties: ContainerProperties,
    ) -> Result<Rc<Container>, Failed> {
        let attributes = core::mem::take(&mut properties.attributes);
        let record = ContainerRecord {
            properties,
            created: self.engines.runtime().wall_ns() / 1_000_000_000,
            snapshots: Vec::new(),
            // 0 stands for "none" in clients; the first ids are theirs (superblock, root directory).
            next_oid: 1 << 10,
            grants: BTreeMap::new(),
            doomed: false,
        };
        let mut changes =
            vec![record::change(SCOPE_CONTAINER, id.0.as_bytes(), Some(record::encode(&record)))];
        let scope = record::scope_attributes(id);
        for (name, value) in attributes {
            changes.push(record::change(&scope, name.as_bytes(), Some(value.into_vec())));
        }
        self.commit(&changes).await?;
        Ok(Container::new(id, record))
    }

    /// Fills in defaults and checks every property.
    fn complete(&self, mut properties: ContainerProperties) -> Result<ContainerProperties, Failed> {
        let object = self.object(&properties.label);
        let invalid = |reason: String| Failed::Invalid { object: object.clone(), reason };
        validate_label(&properties.label).map_err(|error| invalid(error.to_string()))?;
        if properties.object_class.is_empty() {
            properties.object_class = self.pool()?.object_class;
        }
        let class = check_class(&properties.object_class, &object)?;
        let pool = self.pool()?;
        check_survives(class, pool.redundancy).map_err(invalid)?;
        if class.replicas() > 1 {
            // A group needs as many fault domains as it has replicas.
            let any = class.encode(ObjectId { hi: 0, lo: 1 }, 0);
            Layout::of(any, &pool.map).map_err(|error| invalid(error.to_string()))?;
        }
        if properties.chunk_size == 0 {
            properties.chunk_size = CHUNK_SIZE_DEFAULT;
        }
        if !CHUNK_SIZES.contains(&properties.chunk_size) {
            let (least, most) = (CHUNK_SIZES.start(), CHUNK_SIZES.end());
            let reason = format!("a chunk has {least} to {most} bytes, not {}", properties.chunk_size);
            return Err(invalid(reason));
        }
        if properties.mode == 0 {
            properties.mode = MODE_DEFAULT;
        }
        if properties.mode & !MODE_BITS != 0 {
            return Err(invalid(format!("mode {:o} has bits beyond {MODE_BITS:o}", properties.mode)));
        }
        for (name, value) in &properties.attributes {
            super::attributes::check(name, Some(value)).map_err(invalid)?;
        }
        super::attributes::check_count(properties.attributes.len()).map_err(invalid)?;
        Ok(properties)
    }

    fn compare(
        &self,
        existing: &Container,
        wanted: &ContainerProperties,
        exclusive: bool,
    ) -> Result<(), Failed> {
        let record = existing.record.borrow();
        let found = &record.properties;
        let mut differences = Vec::new();
        let mut differ = |what: &str, found: &dyn core::fmt::Display, wanted: &dyn core::fmt::Display| {
            let (found, wanted) = (found.to_string(), wanted.to_string());
            if found != wanted {
                differences.push(format!("{what} {found}, not {wanted}"));
            }
        };
        differ("quota", &found.quota, &wanted.quota);
        differ("class", &found.object_class, &wanted.object_class);
        differ("chunk size", &found.chunk_size, &wanted.chunk_size);
        differ("uid", &found.uid, &wanted.uid);
        differ("gid", &found.gid, &wanted.gid);
        differ("mode", &format!("{:o}", found.mode), &format!("{:o}", wanted.mode));
        differ("type", &format!("{:?}", found.kind), &format!("{:?}", wanted.kind));
        if exclusive && differences.is_empty() {
            differences.push("it was to be new".to_owned());
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(Failed::Exists { object: self.object(&wanted.label), difference: differences.join("; ") })
    }

    /// A live container by label or UUID text.
    pub(crate) fn find(&self, name: &str) -> Result<Rc<Container>, Failed> {
        let id = match uuid::Uuid::try_parse(name) {
            Ok(uuid) => Some(ContainerId(uuid)),
            Err(_) => self.labels.borrow().get(name).copied(),
        };
        let known = id.and_then(|id| self.containers.borrow().get(&id).map(Rc::clone));
        known.filter(|container| !container.is_doomed()).ok_or_else(|| Failed::NoContainer {
            pool: self.label(),
            container: name.chars().take(weir_proto::limits::LABEL_MAX).collect(),
        })
    }

    /// Opens a container: a handle that targets accept.
    ///
    /// # Errors
    /// When the pool handle doesn't allow it or there is no such container.
    pub fn open_container(&self, request: &ContainerOpenRequest) -> Result<ContainerOpenReply, Failed> {
        let pool = self.authorize(&request.capability, request.rights)?;
        let container = self.find(&request.container)?;
        let handle = self.engines.runtime().random_u64();
        let capability = Capability::issue(
            &pool.secret,
            request.capability.tenant,
            pool.pool,
            Some(container.id),
            request.rights,
            handle,
        );
        self.authorize_container(&capability, request.rights)?;
        let known = self.gathered_within(core::time::Duration::MAX);
        let used = known.map_or(0, |gathered| gathered.used_by(container.id));
        Ok(ContainerOpenReply { capability, info: info_of(&container, used) })
    }

    /// Closes a handle. Closing one that the service has not seen since its start succeeds.
    ///
    /// # Errors
    /// When the handle is forged, or the state can't be written.
    pub async fn close_container(&self, capability: &Capability) -> Result<(), Failed> {
        match self.authorize_container(capability, Rights::default()) {
            Ok(container) => self.forget_handle(&container, capability.handle).await,
            Err(Failed::Destroyed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What the service knows of a container, with the bytes it holds.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub(crate) async fn describe(&self, container: &Container) -> Result<ContainerInfo, Failed> {
        let gathered = self.gathered(SPACE_AGE_MAX).await?;
        Ok(self.info_within(container, &gathered))
    }

    /// What the service knows of the container that a handle opens.
    ///
    /// # Errors
    /// When the handle is not valid any more.
    pub async fn query_container(&self, capability: &Capability) -> Result<ContainerInfo, Failed> {
        let container = self.authorize_container(capability, Rights::READ)?;
        self.describe(&container).await
    }

    /// A container by name, with its attributes.
    ///
    /// # Errors
    /// When there is none.
    pub async fn query_by_name(&self, name: &str) -> Result<ContainerInfo, Failed> {
        let container = self.find(name)?;
        let mut info = self.describe(&container).await?;
        let _turn = self.settled_attributes(&container).await?;
        info.properties.attributes = self.attributes_of(container.id);
        Ok(info)
    }

    /// Every container that isn't being destroyed, by label.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub async fn list_containers(&self) -> Result<Vec<ContainerInfo>, Failed> {
        self.list_within(SPACE_AGE_MAX).await
    }

    /// As [`PoolService::list_containers`], with figures that are at most `age` old.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub async fn list_within(&self, age: core::time::Duration) -> Result<Vec<ContainerInfo>, Failed> {
        let gathered = self.gathered(age).await?;
        let live: Vec<_> = self.live_labels().iter().filter_map(|label| self.find(label).ok()).collect();
        Ok(live.iter().map(|container| self.info_within(container, &gathered)).collect())
    }

    /// A container with the bytes it holds and the handles whose clients may still be there.
    fn info_within(&self, container: &Container, gathered: &Gathered) -> ContainerInfo {
        let handles = self.open_within(container, gathered);
        ContainerInfo { handles, ..info_of(container, gathered.used_by(container.id)) }
    }

    /// Reserves object-id bits.
    ///
    /// # Errors
    /// When the handle doesn't allow writing, too many are asked for, or the state can't be written.
    pub async fn allocate_oids(&self, capability: &Capability, count: u64) -> Result<AllocateReply, Failed> {
        let container = self.authorize_container(capability, Rights::WRITE)?;
        let invalid = |reason: String| Failed::Invalid { object: self.object(&container.label()), reason };
        if count == 0 || count > ALLOCATE_MAX {
            return Err(invalid(format!(
                "1 to {ALLOCATE_MAX} object ids are allocated at once, not {count}"
            )));
        }
        let _turn = self.turn_of(&container).await?;
        let first = container.next_oid.get();
        let end = first
            .checked_add(count)
            .ok_or_else(|| invalid("all object ids are used up; create another container".to_owned()))?;
        let mut record = container.record.borrow().clone();
        if end > record.next_oid {
            record.next_oid = end.saturating_add(ALLOCATE_AHEAD);
            self.commit_record(&container, record).await?;
        }
        container.next_oid.set(end);
        Ok(AllocateReply { first })
    }
}

/// A container with the bytes it holds.
fn info_of(container: &Container, used: u64) -> ContainerInfo {
    let record = container.record.borrow();
    ContainerInfo {
        container: container.id,
        properties: record.properties.clone(),
        used,
        handles: u32::try_from(container.handles.borrow().len()).unwrap_or(u32::MAX),
        created: record.created,
        snapshots: record.snapshots.clone(),
    }
}

/// Checks that a class keeps data over the loss of as many engines as the redundancy factor says, and has no replicas where that is 0:
/// no map of such a pool says that a target has started again, so replicas that differ since then would stay different.
pub(crate) fn check_survives(class: ObjectClass, factor: u32) -> Result<(), String> {
    if factor == 0 && class.survives() > 0 && !serves_all_replicas() {
        return Err(format!(
            "objects of class {class} have replicas, which only pools with a redundancy factor keep equal, and the pool has none; make a pool with redundancy factor {}, or name a class without replicas, or none",
            class.survives()
        ));
    }
    if class.survives() >= factor {
        return Ok(());
    }
    Err(format!(
        "objects of class {class} survive the loss of {} engines at once, the pool has redundancy factor {factor}; name a class with more replicas, or none",
        class.survives()
    ))
}

/// Checks that a class is known and served.
pub(crate) fn check_class(name: &str, object: &str) -> Result<ObjectClass, Failed> {
    ObjectClass::parse_supported(name).map_err(|error| {
        let (object, reason) = (object.to_owned(), error.to_string());
        match error {
            ClassError::NotSupported(_) => Failed::NotSupported { object, reason },
            _ => Failed::Invalid { object, reason },
        }
    })
}
