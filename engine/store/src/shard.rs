//! One pool on one target.

use crate::error::{AttributeError, FetchError, PoolError, UpdateError};
use crate::fetch::Fetch;
use crate::stats::{ContainerSummary, PoolSpace};
use weir_media::Slice;
use weir_proto::object::{
    AkeyFetch, AkeyUpdate, Conditions, KeyQuery, ListScope, Listed, PunchScope, QueryKeyReply,
};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId};

/// Data of an update: the values in the order of the akeys and, within one, of the extents.
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// Borrowed bytes; what doesn't go inline is copied once.
    Borrowed(&'a [u8]),
    /// Shared memory that the device reads directly where it is block-aligned (see [`Slice`]): registered buffers
    /// that a payload was pulled into. Wrap it in an `Rc` and don't reuse it before the last clone is gone.
    Shared(Slice),
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Entries in order.
    pub entries: Vec<Listed>,
    /// Where the next page starts; `None` at the end. Stays meaningful when keys come and go meanwhile.
    pub next: Option<Vec<u8>>,
}

/// One change of a batch of attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeChange {
    /// Namespace of the name.
    pub scope: Vec<u8>,
    /// The name.
    pub name: Vec<u8>,
    /// The new value; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// One pool on one target. Cheap to clone; operations on a destroyed pool fail.
#[derive(Clone)]
pub struct Shard {}

impl Shard {
    /// The pool.
    #[must_use]
    pub fn id(&self) -> PoolId {
        todo!()
    }

    /// Creates a container. Creating it again succeeds.
    ///
    /// # Errors
    /// While an earlier container of this id is still being destroyed, or when the pool is gone.
    pub async fn create_container(&self, container: ContainerId) -> Result<(), PoolError> {
        todo!()
    }

    /// Destroys a container at once; its space returns in the background. Destroying a missing one succeeds.
    ///
    /// # Errors
    /// When the pool is gone or the store has failed.
    pub async fn destroy_container(&self, container: ContainerId) -> Result<(), PoolError> {
        todo!()
    }

    /// Containers with their use, those being destroyed included.
    #[must_use]
    pub fn containers(&self) -> Vec<ContainerSummary> {
        todo!()
    }

    /// Whether the container exists and isn't being destroyed.
    #[must_use]
    pub fn has_container(&self, container: ContainerId) -> bool {
        todo!()
    }

    /// Limits what a container may use on this target; 0 lifts the limit.
    ///
    /// # Errors
    /// When the container is missing.
    pub async fn set_quota(&self, container: ContainerId, bytes: u64) -> Result<(), PoolError> {
        todo!()
    }

    /// Replaces the list of epochs whose state aggregation keeps.
    ///
    /// # Errors
    /// When the container is missing.
    pub async fn set_snapshots(&self, container: ContainerId, epochs: &[Epoch]) -> Result<(), PoolError> {
        todo!()
    }

    /// The epochs whose state aggregation keeps, ascending.
    ///
    /// # Errors
    /// When the container is missing.
    pub fn snapshots(&self, container: ContainerId) -> Result<Vec<Epoch>, PoolError> {
        todo!()
    }

    /// Stores values of akeys of one dkey at an epoch, all or none. Durable when it returns, and visible to readers
    /// only then. Operations on one object need distinct epochs.
    ///
    /// # Errors
    /// See [`UpdateError`]; nothing is stored then.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn update(
        &self,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &[AkeyUpdate],
        data: Data<'_>,
    ) -> Result<Epoch, UpdateError> {
        todo!()
    }

    /// Finds values of akeys of one dkey as of an epoch ([`Epoch::MAX`]: the newest).
    ///
    /// # Errors
    /// See [`FetchError`]. A missing key is no error unless a condition says so.
    pub async fn fetch(
        &self,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        epoch: Epoch,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        todo!()
    }

    /// Removes an object, dkeys or akeys at an epoch; earlier epochs still show them until aggregation. Durable when
    /// it returns. Works when the pool is full.
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn punch(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &PunchScope,
        epoch: Epoch,
        conditions: Conditions,
    ) -> Result<Epoch, UpdateError> {
        todo!()
    }

    /// Lists objects, dkeys, akeys or extents as of an epoch. `object` is ignored when objects are listed.
    ///
    /// # Errors
    /// See [`FetchError`].
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn list(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &ListScope,
        epoch: Epoch,
        anchor: &[u8],
        limit: u32,
        with_value: Option<&Key>,
    ) -> Result<ListPage, FetchError> {
        todo!()
    }

    /// The greatest or smallest key or record, and the object's newest epoch.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn query_key(
        &self,
        container: ContainerId,
        object: ObjectId,
        epoch: Epoch,
        query: &KeyQuery,
    ) -> Result<QueryKeyReply, FetchError> {
        todo!()
    }

    /// Epoch of the newest update or punch of an object; [`Epoch::ZERO`] when there is none.
    ///
    /// # Errors
    /// When the container is missing.
    pub async fn max_epoch(&self, container: ContainerId, object: ObjectId) -> Result<Epoch, FetchError> {
        todo!()
    }

    /// Space of the pool on this target.
    #[must_use]
    pub fn space(&self) -> PoolSpace {
        todo!()
    }

    /// Applies changes of attributes, all or none. Durable when it returns; a later call is never durable before an
    /// earlier one.
    ///
    /// # Errors
    /// See [`AttributeError`].
    pub async fn change_attributes(&self, changes: &[AttributeChange]) -> Result<(), AttributeError> {
        todo!()
    }

    /// The value of an attribute.
    #[must_use]
    pub fn attribute(&self, scope: &[u8], name: &[u8]) -> Option<Vec<u8>> {
        todo!()
    }

    /// Names and values of a scope in order of the names, from the first name that is at least `from`.
    #[must_use]
    pub fn attributes(&self, scope: &[u8], from: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        todo!()
    }
}
