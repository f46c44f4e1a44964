//! The service of a replicated pool runs where its replica leads, for as long as that does.

use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_proto::pool::TargetPool as PoolName;
use weir_proto::{PoolId, Rank, opcode};
use weir_raft::Replica;
use weir_runtime::race;
use weir_store::Shard;

use super::TargetPools;
use crate::error::Failed;
use crate::record::{self, PoolRecord};
use crate::service::{Led, PoolService};
use crate::target::{TargetPool, ask_leader};

/// Pause before a service that could not be started is started again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The version of a new pool's map.
const FIRST_VERSION: u32 = 1;

/// Longest search for a leader: within the time that a client waits for a round of answers.
const LEADER_LIMIT: Duration = Duration::from_millis(1800);

impl TargetPools {
    /// Opens the replica of a pool's service that belongs here, if one does.
    pub(super) async fn open_replica(
        &self,
        record: &PoolRecord,
        shard: &Shard,
    ) -> Result<Option<Rc<Replica>>, Failed> {
        let is_replicated = record.replicas().len() > 1;
        let Some(replicas) =
            self.replicas.as_ref().filter(|_| is_replicated && weir_raft::is_prepared(shard))
        else {
            return Ok(None);
        };
        let scopes = Rc::new(record::scopes_of_service);
        Ok(Some(replicas.open(shard.clone(), scopes).await?))
    }

    /// Prepares the replica of a pool's service that belongs here, if one does: that of a new pool, or one in the place of a
    /// replica whose shard was lost, which the leader has dismissed before it had the shard made anew.
    pub(super) async fn prepare_replica(&self, record: &PoolRecord, shard: &Shard) -> Result<(), Failed> {
        let (members, own) = (record.replicas(), self.engines().own_rank());
        if self.replicas.is_none() || members.len() == 1 || !members.contains(&own) {
            return Ok(());
        }
        if record.map.version == FIRST_VERSION {
            weir_raft::prepare(shard, &members).await?;
        } else {
            weir_raft::prepare_again(shard, &members).await?;
        }
        Ok(())
    }

    /// This engine's replica of a pool's service.
    #[must_use]
    pub fn replica(&self, pool: PoolId) -> Option<Rc<Replica>> {
        self.replicas.as_ref()?.get(pool)
    }

    /// The rank that runs a pool's service, as far as is known here.
    #[must_use]
    pub fn service_rank(&self, pool: &TargetPool) -> Option<Rank> {
        match self.replica(pool.id()) {
            Some(replica) => replica.leader(),
            None => Some(pool.service()),
        }
    }

    /// The rank that runs a pool's service: of several replicas the one that says that it leads.
    ///
    /// # Errors
    /// When none does.
    pub async fn find_leader(&self, record: &PoolRecord) -> Result<Rank, Failed> {
        let replicas = record.replicas();
        if replicas.len() == 1 {
            return Ok(record.service);
        }
        if self.own_service(record.pool).is_some() {
            return Ok(self.engines().own_rank());
        }
        let known = self.get(record.pool).ok().and_then(|pool| self.service_rank(&pool));
        let request = PoolName { pool: record.pool };
        let opcode = opcode::POOL_LEADER;
        let (rank, answer) =
            ask_leader::<_, ()>(self.engines(), (&replicas, known), opcode, &request, LEADER_LIMIT).await;
        answer.map(|()| rank).map_err(|error| {
            tracing::debug!(pool = %record.pool, %error, "no replica of a pool's service leads");
            Failed::Leaderless(record.pool)
        })
    }

    /// Answers whether the service of a pool runs here, and no other replica has led since.
    pub(super) async fn confirm_leader(&self, pool: PoolId) -> Result<(), Failed> {
        self.service(pool)?.confirm().await
    }

    /// Has the service of a pool run whenever its replica leads.
    pub(super) fn attend(self: &Rc<Self>, pool: &Rc<TargetPool>, replica: &Rc<Replica>) {
        let (pools, pool, replica) = (Rc::downgrade(self), Rc::downgrade(pool), Rc::downgrade(replica));
        self.engines().runtime().spawn(follow(pools, pool, replica));
    }

    /// Starts or ends a pool's service, as its replica leads or doesn't.
    async fn lead(&self, pool: &Rc<TargetPool>, replica: &Rc<Replica>) -> Result<(), Failed> {
        let (known, leadership) = (self.own_service(pool.id()), replica.leadership());
        if known.as_ref().and_then(|service| service.leadership()) == leadership {
            return Ok(());
        }
        if let Some(known) = known {
            known.end();
            self.services.borrow_mut().remove(&pool.id());
        }
        let Some(leadership) = leadership else { return Ok(()) };
        let led = Led { replica: Rc::clone(replica), leadership };
        let (engines, spread) = (Rc::clone(&self.engines), Rc::clone(&self.spread));
        let service = PoolService::lead(pool, engines, spread, Rc::clone(&self.clock), led).await?;
        // It may have been destroyed meanwhile.
        if self.replica(pool.id()).is_some() {
            self.services.borrow_mut().insert(pool.id(), service);
        }
        Ok(())
    }
}

async fn follow(pools: Weak<TargetPools>, pool: Weak<TargetPool>, replica: Weak<Replica>) {
    loop {
        let (Some(pools), Some(pool), Some(replica)) = (pools.upgrade(), pool.upgrade(), replica.upgrade())
        else {
            return;
        };
        let changed = replica.changed();
        let led = pools.lead(&pool, &replica).await;
        let rt = pools.engines().runtime().clone();
        let id = pool.id();
        drop((pools, pool, replica));
        match led {
            Ok(()) => changed.await,
            Err(error) => {
                tracing::error!(pool = %id, %error, "the service of a pool can't start where its replica leads");
                race(changed, rt.sleep(RETRY_PAUSE)).await;
            }
        }
    }
}
