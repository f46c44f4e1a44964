//! How a transaction reads.

use crate::format::key::ContainerNumber;
use crate::format::key::ObjectKey;
use crate::operations::fetch::{Fetch, Reader};
use crate::operations::list::ListPage;
use crate::operations::query::WantedDkeys;
use crate::state::catalog::snapshots_of;
use crate::state::error::FetchError;
use crate::state::shard::Shard;
use crate::versions::timestamps::Scope;
use weir_proto::object::{AkeyFetch, Conditions, KeyQuery, ListScope, SearchKeyReply};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, ReaderId};

/// The state of a container as a transaction reads it. It doesn't change after it was read: later writes of what was read are
/// refused at earlier epochs, and at the same epoch unless they are the reader's own.
#[derive(Clone, Debug)]
pub struct View {
    shard: Shard,
    container: ContainerId,
    epoch: Epoch,
    reader: ReaderId,
}

impl View {
    /// As [`Shard::fetch`], at the transaction's epoch.
    ///
    /// # Errors
    /// See [`FetchError`]; [`FetchError::Undecided`] when a prepared transaction may change what is asked for,
    /// [`FetchError::Restart`] when aggregation has removed what there was of it at that epoch.
    pub async fn fetch(
        &self,
        object: ObjectId,
        dkey: &Key,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        self.shard.wait_for(self.epoch).await;
        let reader = Reader::Transaction(self.reader);
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
        self.shard.wait_for(self.epoch).await;
        self.begin(number, object)?;
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
        self.query_key_among(object, query, anchor, &|_| true).await
    }

    /// As [`Shard::query_key_among`], at the transaction's epoch.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn query_key_among(
        &self,
        object: ObjectId,
        query: &KeyQuery,
        anchor: &[u8],
        wanted: WantedDkeys<'_>,
    ) -> Result<SearchKeyReply, FetchError> {
        let number = self.shard.locate(self.container)?;
        self.shard.wait_for(self.epoch).await;
        self.begin(number, object)?;
        self.shard.query_key_among(self.container, object, self.epoch, query, anchor, wanted).await
    }

    /// Begins to read which keys an object has.
    fn begin(&self, number: ContainerNumber, object: ObjectId) -> Result<(), FetchError> {
        let object = (self.shard.number, number, object);
        self.shard.begin_view(&object, Scope::Object, self.epoch, self.reader)
    }
}

impl Shard {
    /// The state of a container as this transaction reads it, at its epoch.
    ///
    /// # Errors
    /// When the container is missing, or the epoch can't be that of a transaction.
    pub fn view(&self, container: ContainerId, epoch: Epoch, reader: ReaderId) -> Result<View, FetchError> {
        self.locate(container)?;
        self.check_transaction_epoch(epoch).map_err(|error| FetchError::Invalid(error.to_string()))?;
        Ok(View { shard: self.clone(), container, epoch, reader })
    }

    /// Notes that a transaction reads something. Refuses when it has changed since the transaction's epoch and its history is
    /// gone: the transaction would miss what was there.
    pub(crate) fn begin_view(
        &self,
        object: &ObjectKey,
        scope: Scope<'_>,
        epoch: Epoch,
        reader: ReaderId,
    ) -> Result<(), FetchError> {
        let timestamps = &self.core.timestamps;
        let newest = timestamps.limit_of_view(object);
        let is_kept = || snapshots_of(&self.core, *object).is_some_and(|kept| kept.contains(&epoch.0));
        if epoch.0 < newest && !is_kept() {
            return Err(FetchError::Restart { epoch, newest: Epoch(newest) });
        }
        timestamps.note_read(object, scope, epoch.0, reader);
        Ok(())
    }
}
