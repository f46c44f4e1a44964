//! The removal of whole objects.

use weir_proto::replica_transaction::GROUPS_MAX;
use weir_runtime::join_all;

use super::{Restarts, Transaction};
use crate::Result;
use crate::object::Object;
use crate::session::Context;

impl Object {
    /// Removes the object with everything in it.
    ///
    /// # Errors
    /// When a target that holds a part of it refuses or does not answer in time.
    pub async fn punch(&self, context: &Context) -> Result<()> {
        let shards = 0..self.shard_count(context)?;
        if self.is_replicated() && (2..=GROUPS_MAX).contains(&shards.len()) {
            // Boxed, so that the future of the others is small.
            return Box::pin(self.punch_all_groups(context)).await;
        }
        let all = shards.map(|shard| self.punch_shard(context, shard));
        join_all(all).await.into_iter().collect()
    }

    /// Removes it at one epoch in all groups: a target may have places in several, and what it knows of the object as a whole it
    /// knows once.
    async fn punch_all_groups(&self, context: &Context) -> Result<()> {
        let mut restarts = Restarts::new(context);
        loop {
            let mut transaction = Transaction::begin(context, self.container());
            transaction.punch(self)?;
            match transaction.commit(context).await {
                Ok(_) => return Ok(()),
                Err(error) => restarts.again(context, error).await?,
            }
        }
    }
}
