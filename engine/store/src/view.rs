//! How a transaction reads.

use crate::error::FetchError;
use crate::fetch::{Fetch, Reader};
use crate::journal::ObjectKey;
use crate::key::ContainerNumber;
use crate::list::ListPage;
use crate::shard::Shard;
use crate::timestamps::Scope;
use core::time::Duration;
use weir_proto::object::{AkeyFetch, Conditions, KeyQuery, ListScope, SearchKeyReply};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// The state of a container as a transaction reads it. What it has shown stays so: whoever wants to change it at an
/// earlier epoch is refused from then on.
#[derive(Clone, Debug)]
pub struct View {
    shard: Shard,
    container: ContainerId,
    epoch: Epoch,
}

impl View {
    /// As [`Shard::fetch`], at the transaction's epoch.
    ///
    /// # Errors
    /// See [`FetchError`]; [`FetchError::Undecided`] when a prepared transaction may change what is asked for.
    pub async fn fetch(
        &self,
        object: ObjectId,
        dkey: &Key,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        self.wait().await;
        let reader = Reader::Transaction;
        self.shard.fetch_as(reader, self.container, object, dkey, self.epoch, conditions, akeys).await
    }

    /// As [`Shard::list`], at the transaction's epoch; objects can't be listed.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn list(
        &self,
        object: ObjectId,
        scope: &ListScope,
        anchor: &[u8],
        limit: u32,
        with_value: Option<&Key>,
    ) -> Result<ListPage, FetchError> {
        if matches!(scope, ListScope::Objects) {
            return Err(FetchError::Invalid("a transaction can't list objects".to_owned()));
        }
        let number = self.shard.locate(self.container)?;
        self.wait().await;
        self.shard.core.timestamps.note_read(&self.object(number, object), Scope::Object, self.epoch.0);
        self.shard.list(self.container, object, scope, self.epoch, anchor, limit, with_value).await
    }

    /// As [`Shard::query_key`], at the transaction's epoch.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn query_key(
        &self,
        object: ObjectId,
        query: &KeyQuery,
        anchor: &[u8],
    ) -> Result<SearchKeyReply, FetchError> {
        let number = self.shard.locate(self.container)?;
        self.wait().await;
        self.shard.core.timestamps.note_read(&self.object(number, object), Scope::Object, self.epoch.0);
        self.shard.query_key(self.container, object, self.epoch, query, anchor).await
    }

    /// Waits until the clock has passed the epoch.
    async fn wait(&self) {
        let rt = &self.shard.core.rt;
        let ahead = self.epoch.0.saturating_sub(rt.wall_ns());
        if ahead > 0 {
            rt.sleep(Duration::from_nanos(ahead)).await;
        }
    }

    fn object(&self, number: ContainerNumber, object: ObjectId) -> ObjectKey {
        (self.shard.number, number, object)
    }
}

impl Shard {
    /// The state of a container as a transaction of this epoch reads it.
    ///
    /// # Errors
    /// When the container is missing, or the epoch can't be that of a transaction.
    pub fn view(&self, container: ContainerId, epoch: Epoch) -> Result<View, FetchError> {
        self.locate(container)?;
        self.check_transaction_epoch(epoch).map_err(|error| FetchError::Invalid(error.to_string()))?;
        Ok(View { shard: self.clone(), container, epoch })
    }
}
