//! Finding a pool by what is known here, and by asking the keeper of the list of pools.

use std::rc::Rc;
use std::time::Duration;

use weir_group::AskError;
use weir_proto::pool::{ResolveReply, ResolveRequest};
use weir_proto::{Der, PoolId, TargetIndex, opcode};

use super::TargetPools;
use crate::error::Failed;
use crate::target::TargetPool;

/// Longest wait for the keeper of the list of pools.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for it when the answer can be done without.
const LISTED_LIMIT: Duration = Duration::from_secs(1);

impl TargetPools {
    /// Where the service of a pool runs: known here, or asked of the keeper of the list.
    ///
    /// # Errors
    /// When there is no such pool, or the keeper doesn't answer.
    pub async fn resolve(&self, name: &str) -> Result<ResolveReply, Failed> {
        if let Some(pool) = self.find(name)
            && self.is_there(&pool).await
        {
            let record = pool.record.borrow().clone();
            let service = self.find_leader(&record).await?;
            return Ok(ResolveReply { pool: record.pool, service });
        }
        let found = self.ask_keeper(name, RESOLVE_LIMIT).await.map_err(|error| match error.der() {
            Der::NONEXIST | Der::ALREADY => {
                Failed::NoPool(name.chars().take(weir_proto::limits::LABEL_MAX).collect())
            }
            _ => Failed::asking(format!("pool {name}"), "finding it", error),
        })?;
        if let Ok(pool) = self.get(found.pool) {
            pool.is_listed.set(true);
        }
        Ok(found)
    }

    /// A pool of this target that a client has a handle on. Where there is none, the keeper of the list of pools tells a pool that
    /// was destroyed from one that this target has lost: a pool is listed when all its targets have their shards.
    ///
    /// # Errors
    /// When the target holds no shard of it, and says why; or when the keeper doesn't answer.
    pub async fn get_or_ask(&self, pool: PoolId) -> Result<Rc<TargetPool>, Failed> {
        let failed = match self.get(pool) {
            Err(failed @ Failed::NoPool(_)) => failed,
            known => return known,
        };
        match self.ask_keeper(&pool.to_string(), LISTED_LIMIT).await {
            Ok(_) => {
                if self.get(pool).is_err() {
                    self.miss(pool);
                }
                self.get(pool)
            }
            Err(error) if matches!(error.der(), Der::NONEXIST | Der::ALREADY) => Err(failed),
            Err(error) => Err(Failed::asking(format!("pool {pool}"), "finding out what became of it", error)),
        }
    }

    /// Whether a pool of this target was not destroyed while the engine was away: a client that connected to it would
    /// write what is lost when the engine hears of that. Without an answer it is taken to be there.
    async fn is_there(&self, pool: &TargetPool) -> bool {
        if !pool.is_listed.get() {
            match self.ask_keeper(&pool.id().to_string(), LISTED_LIMIT).await {
                Ok(_) => pool.is_listed.set(true),
                Err(error) => return error.der() != Der::ALREADY,
            }
        }
        true
    }

    async fn ask_keeper(&self, name: &str, limit: Duration) -> Result<ResolveReply, AskError> {
        let request = ResolveRequest { pool: name.to_owned() };
        let engines = self.engines();
        let keeper = engines.directory_rank();
        engines.ask(keeper, TargetIndex(0), opcode::POOL_RESOLVE, &request, limit).await
    }
}
