//! Changing inode records.
//!
//! A change starts from a record as it was read, and writes all of its fields. It is a transaction, so that no
//! concurrent change is lost.

use weir_client::{AkeyWrite, Conditions, Context, Transaction};

use crate::Result;
use crate::entry::{Node, record_key};
use crate::mount::Dfs;
use crate::record::Record;
use crate::transaction::Tries;

/// The begin of a change: a transaction, the file system as it reads it, and the record.
pub(crate) struct RecordUpdate {
    transaction: Transaction,
    view: Dfs,
    record: Result<Record>,
}

impl Dfs {
    /// Begins to change an inode's record.
    pub(crate) async fn begin_record_update(&self, context: &Context, node: &Node) -> RecordUpdate {
        let (transaction, view) = self.begin(context);
        let record = view.refetch(context, node).await;
        RecordUpdate { transaction, view, record }
    }

    /// Changes an inode's record, together with what `more` does in the transaction, which gets the inode as it is then. The first
    /// try goes on from `begun`.
    /// Returns the record as it is then.
    ///
    /// # Errors
    /// [`crate::Error::Stale`] when the entry is gone or names another inode, those of `more`; or an object error.
    pub(crate) async fn update_record(
        &self,
        context: &Context,
        node: &Node,
        begun: Option<RecordUpdate>,
        change: impl Fn(&mut Record),
        more: impl AsyncFn(&mut Transaction, &Self, &Node) -> Result<()>,
    ) -> Result<Record> {
        let (mut tries, mut next) = (Tries::new(context), begun);
        loop {
            let update = match next.take() {
                Some(begun) => begun,
                None => self.begin_record_update(context, node).await,
            };
            match self.try_update_record(context, node, update, &change, &more).await {
                Ok(record) => return Ok(record),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    async fn try_update_record(
        &self,
        context: &Context,
        node: &Node,
        RecordUpdate { mut transaction, view, record }: RecordUpdate,
        change: impl Fn(&mut Record),
        more: impl AsyncFn(&mut Transaction, &Self, &Node) -> Result<()>,
    ) -> Result<Record> {
        let mut node = Node { record: record?, ..node.clone() };
        change(&mut node.record);
        let bytes = node.record.encode();
        let (object, key) = self.home(&node)?;
        let writes = [AkeyWrite::single(record_key()?, &bytes)];
        transaction.update(&object, &key, Conditions::NONE, &writes)?;
        more(&mut transaction, &view, &node).await?;
        transaction.commit(context).await?;
        Ok(node.record)
    }
}
