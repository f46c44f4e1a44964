//! Containers: creating, opening, and what belongs to one as a whole.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use uuid::Uuid;
use weir_proto::limits::HANDLE_LEASE_NS;
use weir_proto::opcode;
use weir_proto::pool::{
    AllocateReply, AllocateRequest, AttributeGetRequest, AttributeSetRequest, Attributes,
    ContainerCreateRequest, ContainerDestroyRequest, ContainerInfo, ContainerKeepRequest, ContainerOpenReply,
    ContainerOpenRequest, ContainerProperties, ContainerRequest, QuotaRequest, SnapshotChange,
    SnapshotRequest,
};
use weir_proto::{Capability, ContainerId, Der, Epoch, ObjectId, Rank, Rights};

use super::pool::{Pool, PoolState};
use crate::error::Error;
use crate::kind;
use crate::operation::RequestInfo;
use crate::session::Context;
use crate::{Hints, ObjectClass, Result};

/// Object ids a context reserves at a time. One request pays for this many; what a context leaves unused is lost,
/// of 2^64 numbers.
pub(crate) const OID_RANGE: u64 = 1024;

/// Object ids drawn for one that is laid out on targets in service. At least one in e is (`ObjectClass::around`): in all but
/// one of ten billion cases one of these.
const DRAWS_MAX: usize = 50;

/// How often an open container is kept: a third of the time for which a handle without a known node counts.
pub const KEEP_EVERY: Duration = Duration::from_nanos(HANDLE_LEASE_NS / 3);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerState {
    pub(crate) capability: Capability,
    pub(crate) info: ContainerInfo,
    pool: PoolState,
}

/// An open container. Plain data: cheap to clone, usable from any context of the system.
#[derive(Clone, Debug)]
pub struct Container {
    pub(crate) pool: Pool,
    pub(crate) state: Arc<ContainerState>,
}

impl Container {
    /// Creates a container. Its identity is drawn here, so that a retried request is recognised. Without
    /// `exclusive`, the same label with equal properties returns the existing container.
    ///
    /// # Errors
    /// `EXIST` when the label is taken, `INVAL` for a bad label or class, `NO_PERM`, or no answer in time.
    pub async fn create(
        context: &Context,
        pool: &Pool,
        properties: ContainerProperties,
        exclusive: bool,
    ) -> Result<ContainerInfo> {
        let container = ContainerId(uuid_of(context));
        Self::create_with_id(context, pool, container, properties, exclusive).await
    }

    /// Like [`Container::create`] with an identity of the caller's choice.
    ///
    /// # Errors
    /// As [`Container::create`].
    pub async fn create_with_id(
        context: &Context,
        pool: &Pool,
        container: ContainerId,
        properties: ContainerProperties,
        exclusive: bool,
    ) -> Result<ContainerInfo> {
        let subject = format!("container {} in {pool}", properties.label);
        let info = RequestInfo::new("create", &subject, opcode::CONTAINER_CREATE);
        let capability = pool.0.capability.clone();
        let request = ContainerCreateRequest { capability, container, properties, exclusive };
        context.ask_encoded(pool.reach(context), &info, &request).await
    }

    /// Opens a container by label or UUID text.
    ///
    /// # Errors
    /// `NONEXIST` when there is none, `NO_PERM`, or no answer in time.
    pub async fn open(context: &Context, pool: &Pool, container: &str, rights: Rights) -> Result<Self> {
        let subject = format!("container {container} in {pool}");
        let info = RequestInfo::new("open", &subject, opcode::CONTAINER_OPEN);
        let capability = pool.0.capability.clone();
        let request = ContainerOpenRequest { capability, container: container.to_owned(), rights };
        let reply: ContainerOpenReply = context.ask_encoded(pool.reach(context), &info, &request).await?;
        let state =
            ContainerState { capability: reply.capability, info: reply.info, pool: pool.0.as_ref().clone() };
        let container = Self { pool: pool.clone(), state: Arc::new(state) };
        // Engines of an older release know nothing of that.
        let _ = container.keep(context).await;
        Ok(container)
    }

    /// Reports the node of this client, if it is known ([`crate::session::ContextOptions::node`]). Its handle then
    /// counts until it is given back, or until Kubernetes or an operator says that the node is gone. To be repeated
    /// every [`KEEP_EVERY`], which shows that the client lives.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time; an engine of an older release knows nothing of it.
    pub async fn keep(&self, context: &Context) -> Result<()> {
        let Some(node) = context.node() else { return Ok(()) };
        let info = RequestInfo::new("keep", self, opcode::CONTAINER_KEEP);
        let request =
            ContainerKeepRequest { capability: self.state.capability.clone(), node: node.to_owned() };
        context.tell(self.pool.reach(context), &info, &request).await
    }

    /// Destroys a container; its space comes back in the background. With `force` also when handles are open.
    ///
    /// # Errors
    /// `NONEXIST` when there is none, `BUSY` when handles are open, `NO_PERM`, or no answer in time.
    pub async fn destroy(context: &Context, pool: &Pool, container: &str, force: bool) -> Result<()> {
        let subject = format!("container {container} in {pool}");
        let info = RequestInfo::new("destroy", &subject, opcode::CONTAINER_DESTROY);
        // By its id: a request that is repeated because its answer was lost finds that it is gone already, and says so.
        let all = pool.containers(context).await?;
        let is_it = |info: &&ContainerInfo| {
            info.properties.label == container || Uuid::try_parse(container) == Ok(info.container.0)
        };
        let Some(found) = all.iter().find(is_it) else {
            return Err(Error::refused("destroy", subject, Der::NONEXIST, "there is none of this name"));
        };
        let capability = pool.0.capability.clone();
        let request = ContainerDestroyRequest { capability, container: found.container.0.to_string(), force };
        context.tell(pool.reach(context), &info, &request).await
    }

    /// Sets the bytes a container may hold; 0 for as much as the pool has.
    ///
    /// # Errors
    /// `NONEXIST` when there is none, `NO_PERM`, or no answer in time.
    pub async fn set_quota(
        context: &Context,
        pool: &Pool,
        container: &str,
        quota: u64,
    ) -> Result<ContainerInfo> {
        let subject = format!("container {container} in {pool}");
        let info = RequestInfo::new("set quota of", &subject, opcode::CONTAINER_SET_QUOTA);
        let capability = pool.0.capability.clone();
        let request = QuotaRequest { capability, container: container.to_owned(), quota };
        context.ask_encoded(pool.reach(context), &info, &request).await
    }

    /// Gives the handle back.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn close(&self, context: &Context) -> Result<()> {
        let info = RequestInfo::new("close", self, opcode::CONTAINER_CLOSE);
        context.tell(self.pool.reach(context), &info, &self.request()).await
    }

    /// The container as it is now.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn query(&self, context: &Context) -> Result<ContainerInfo> {
        let info = RequestInfo::new("query", self, opcode::CONTAINER_QUERY);
        context.ask_encoded(self.pool.reach(context), &info, &self.request()).await
    }

    /// The pool it is in.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Identity of the container.
    #[must_use]
    pub fn id(&self) -> ContainerId {
        self.state.info.container
    }

    /// The container as it was when it was opened.
    #[must_use]
    pub fn info(&self) -> &ContainerInfo {
        &self.state.info
    }

    /// Properties when it was opened.
    #[must_use]
    pub fn properties(&self) -> &ContainerProperties {
        &self.state.info.properties
    }

    /// Rights of the handle.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.state.capability.rights
    }

    /// Reserves `count` numbers for the `lo` half of object ids, unique in the container, and returns the first.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn allocate_oids(&self, context: &Context, count: u64) -> Result<u64> {
        let info = RequestInfo::new("allocate object ids of", self, opcode::CONTAINER_ALLOCATE_OIDS);
        let request = AllocateRequest { capability: self.state.capability.clone(), count };
        let reply: AllocateReply = context.ask_encoded(self.pool.reach(context), &info, &request).await?;
        Ok(reply.first)
    }

    /// A fresh object id with this type, and with the given class or else the container's default one. Numbers are
    /// reserved in ranges, so that most calls send nothing. While targets of the pool are out of service the object is laid
    /// out on others: one of a class with all targets gets as many as that takes.
    ///
    /// # Errors
    /// `INVAL` when the class survives fewer losses than the container's; or as [`Container::allocate_oids`].
    pub async fn new_object_id(
        &self,
        context: &Context,
        kind: u8,
        class: Option<ObjectClass>,
    ) -> Result<ObjectId> {
        let class = self.allowed_class(class)?;
        let map = context.map_of(self.pool());
        let class = class.around(&map);
        let whole = map.down().next().is_none();
        for _ in 1..DRAWS_MAX {
            let oid = class.encode(ObjectId { hi: 0, lo: self.next_oid(context).await? }, kind);
            let layout = || context.layout(self.pool().id(), oid, &map);
            if whole || layout().is_ok_and(|layout| layout.is_served(&map)) {
                return Ok(oid);
            }
        }
        Ok(class.encode(ObjectId { hi: 0, lo: self.next_oid(context).await? }, kind))
    }

    /// A number that no other object of the container has.
    async fn next_oid(&self, context: &Context) -> Result<u64> {
        if let Some(lo) = context.next_oid(self.id()) {
            return Ok(lo);
        }
        // Boxed, since it is rare and part of the future of every creation.
        let first = Box::pin(self.allocate_oids(context, OID_RANGE)).await?;
        context.keep_oids(self.id(), first + 1..first + OID_RANGE);
        Ok(first)
    }

    /// The container's default object class.
    ///
    /// # Errors
    /// `INVAL` when the container names a class that this client doesn't know.
    pub fn default_class(&self) -> Result<ObjectClass> {
        ObjectClass::parse_supported(&self.properties().object_class)
            .map_err(|error| Error::invalid("object class of the container", error))
    }

    /// The class that was named, or else the container's default one. What the container survives each of its objects has to. Where it
    /// survives nothing the pool has no redundancy factor, and keeps no replicas equal.
    fn allowed_class(&self, class: Option<ObjectClass>) -> Result<ObjectClass> {
        let default = self.default_class()?;
        let class = class.unwrap_or(default);
        if class.survives() > 0 && default.survives() == 0 {
            let reason = format!(
                "objects of class {class} have replicas, which only pools with a redundancy factor keep equal, and that of {self} has none; use a container of such a pool, or name a class without replicas, or none"
            );
            return Err(Error::invalid("choose an object class", reason));
        }
        if class.survives() >= default.survives() {
            return Ok(class);
        }
        let reason = format!(
            "objects of class {class} survive the loss of {} engines at once, those of {self} have to survive {}, as class {default} does; name a class with more replicas, or none",
            class.survives(),
            default.survives()
        );
        Err(Error::invalid("choose an object class", reason))
    }

    /// The given id with type and class encoded, as `daos_obj_generate_oid` does: the named class, or one that the container's
    /// default class, the type and hints choose by the pool map of the connection, so that it is the same each time.
    ///
    /// # Errors
    /// `INVAL` for an unknown type, and for a class that is not supported, survives fewer losses than the container's, or needs more
    /// fault domains than the pool has.
    pub fn encode_object_id(
        &self,
        oid: ObjectId,
        kind: u8,
        class: Option<ObjectClass>,
        hints: Hints,
    ) -> Result<ObjectId> {
        let invalid = |reason: String| Error::invalid("generate object id", reason);
        if kind >= kind::END || kind == 1 {
            return Err(invalid(format!("there is no object type {kind}")));
        }
        let named = self.allowed_class(class)?.ensure_supported();
        let map = self.pool().map();
        let chosen = named.and_then(|named| {
            if class.is_none() {
                return named.chosen(kind::is_flat(kind), hints, map);
            }
            named.ensure_fits(map)
        });
        Ok(chosen.map_err(|error| invalid(error.to_string()))?.encode(oid, kind))
    }

    /// Sets attributes; `None` deletes. All or none.
    ///
    /// # Errors
    /// `INVAL` when a name or value is too long, or all of them are longer than
    /// [`weir_proto::limits::SERVICE_REQUEST_MAX`]; or no answer in time.
    pub async fn set_attributes(
        &self,
        context: &Context,
        attributes: Vec<(String, Option<ByteBuf>)>,
    ) -> Result<()> {
        let info = RequestInfo::new("set attributes of", self, opcode::CONTAINER_SET_ATTRIBUTES);
        let request = AttributeSetRequest { capability: self.state.capability.clone(), attributes };
        context.tell(self.pool.reach(context), &info, &request).await
    }

    /// Reads attributes: the named ones, or all when `names` is empty.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn attributes(
        &self,
        context: &Context,
        names: Vec<String>,
    ) -> Result<BTreeMap<String, ByteBuf>> {
        let info = RequestInfo::new("read attributes of", self, opcode::CONTAINER_GET_ATTRIBUTES);
        let request = AttributeGetRequest { capability: self.state.capability.clone(), names };
        let reply: Attributes = context.ask_encoded(self.pool.reach(context), &info, &request).await?;
        Ok(reply.attributes)
    }

    /// Snapshots, oldest first.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn snapshots(&self, context: &Context) -> Result<Vec<Epoch>> {
        self.change_snapshots(context, "list snapshots of", SnapshotChange::List).await
    }

    /// Takes a snapshot and returns its epoch.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn create_snapshot(&self, context: &Context) -> Result<Epoch> {
        let all = self.change_snapshots(context, "take a snapshot of", SnapshotChange::Create).await?;
        all.last().copied().ok_or_else(|| {
            Error::refused("take a snapshot of", self, Der::PROTO, "the reply lists no snapshot")
        })
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// `NONEXIST` when there is none at that epoch; or no answer in time.
    pub async fn destroy_snapshot(&self, context: &Context, epoch: Epoch) -> Result<()> {
        self.change_snapshots(context, "remove a snapshot of", SnapshotChange::Destroy(epoch)).await?;
        Ok(())
    }

    async fn change_snapshots(
        &self,
        context: &Context,
        operation: &'static str,
        change: SnapshotChange,
    ) -> Result<Vec<Epoch>> {
        let info = RequestInfo::new(operation, self, opcode::CONTAINER_SNAPSHOT);
        let request = SnapshotRequest { capability: self.state.capability.clone(), change };
        context.ask_encoded(self.pool.reach(context), &info, &request).await
    }

    /// The handle as bytes, for another process of the same user.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        weir_proto::codec::encode_with_tail(self.state.as_ref(), &self.pool.0.replicas)
    }

    /// The inverse of [`Container::to_bytes`].
    ///
    /// # Errors
    /// When the bytes are not a container handle.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (mut state, replicas): (ContainerState, Vec<Rank>) =
            weir_proto::codec::decode_with_tail(bytes)
                .map_err(|error| Error::invalid("container handle", error))?;
        state.pool.replicas = replicas;
        Ok(Self { pool: Pool(Arc::new(state.pool.clone())), state: Arc::new(state) })
    }

    fn request(&self) -> ContainerRequest {
        ContainerRequest { capability: self.state.capability.clone() }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} in {}", self.properties().label, self.pool)
    }
}

/// A random UUID (version 4) from the context's randomness, so that simulated runs repeat.
fn uuid_of(context: &Context) -> Uuid {
    let random =
        (u128::from(context.runtime().random_u64()) << 64) | u128::from(context.runtime().random_u64());
    uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid()
}
