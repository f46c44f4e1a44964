//! The service of a replicated pool runs where its replica leads, for as long as that does.

use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_group::AskError;
use weir_proto::pool::{PoolMap, SERVICE_RANKS_MAX, ServiceJoin, ServiceRanks, TargetPool as PoolName};
use weir_proto::{PoolId, Rank, opcode};
use weir_raft::Replica;
use weir_runtime::race;
use weir_store::Shard;

use super::TargetPools;
use crate::error::Failed;
use crate::record::{self, NAME_MAP, PoolRecord, SCOPE_SERVICE};
use crate::service::{Led, PoolService};
use crate::target::{TargetPool, ask_leader, newest_replicas};

/// How often it is looked whether this engine takes part in other services than before.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

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
        let takes_part = weir_raft::is_prepared(shard) && !self.is_dismissed(record, shard);
        let Some(replicas) = self.replicas.as_ref().filter(|_| takes_part) else { return Ok(None) };
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

    /// Whether this engine's replica of a pool's service takes part no more: the newest map here doesn't name the engine, and is newer than
    /// what the replica knows. One that takes part knows each map before it counts.
    fn is_dismissed(&self, record: &PoolRecord, shard: &Shard) -> bool {
        let known = || {
            let stored = shard.attribute(SCOPE_SERVICE, NAME_MAP);
            let map = stored.and_then(|bytes| record::decode::<PoolMap>(record.pool, &bytes).ok());
            map.map_or(0, |map| map.version)
        };
        !record.replicas().contains(&self.engines().own_rank()) && record.map.version > known()
    }

    /// Takes part in the services of pools, or no more, as the newest maps here say.
    async fn follow_services(self: &Rc<Self>) {
        let Some(replicas) = &self.replicas else { return };
        for pool in self.leased() {
            let id = pool.id();
            if !weir_raft::is_prepared(pool.shard()) {
                self.look_for_others(&pool).await;
                continue;
            }
            let is_open = replicas.get(id).is_some();
            let is_dismissed = self.is_dismissed(&pool.record.borrow(), pool.shard());
            if is_open && is_dismissed {
                tracing::info!(pool = pool.label(), "this engine replicates the service of a pool no more");
                if let Some(service) = self.own_service(id) {
                    service.end();
                }
                self.services.borrow_mut().remove(&id);
                replicas.close(id);
            } else if !is_open
                && !is_dismissed
                && let Err(error) = self.take_part(&pool).await
            {
                tracing::error!(pool = pool.label(), %error, "the replica of a pool's service can't be read");
            }
        }
    }

    /// Has others replicate the service of a pool that runs here alone, where it is time for that.
    async fn look_for_others(self: &Rc<Self>, pool: &Rc<TargetPool>) {
        let Some(replicas) = &self.replicas else { return };
        let Some(service) = self.own_service(pool.id()).filter(|service| service.wants_others()) else {
            return;
        };
        let _turn = self.creating.acquire().await;
        // It may have been destroyed meanwhile.
        if self.get(pool.id()).is_err() {
            return;
        }
        match service.begin_group(replicas).await {
            Ok(replica) => self.attend(pool, &replica),
            Err(error) => {
                tracing::warn!(pool = pool.label(), %error, "one engine goes on to run a pool's service alone");
            }
        }
    }

    /// Opens the replica that was prepared here, if it isn't open and was not dismissed.
    async fn take_part(self: &Rc<Self>, pool: &Rc<TargetPool>) -> Result<(), Failed> {
        let _turn = self.creating.acquire().await;
        // It may have been destroyed meanwhile, or opened.
        if self.get(pool.id()).is_err() || self.replica(pool.id()).is_some() {
            return Ok(());
        }
        let record = pool.record.borrow().clone();
        if let Some(replica) = self.open_replica(&record, pool.shard()).await? {
            self.attend(pool, &replica);
        }
        Ok(())
    }

    /// Begins a replica of a pool's service here, which the one that leads takes in afterwards. An engine that has one keeps it.
    async fn join_service(self: &Rc<Self>, ServiceJoin { pool, members }: ServiceJoin) -> Result<(), Failed> {
        self.in_service()?;
        let known = self.get(pool)?;
        let Some(replicas) =
            self.replicas.as_ref().filter(|_| (1..=SERVICE_RANKS_MAX).contains(&members.len()))
        else {
            let reason = format!("{} replicas begin no other one here", members.len());
            return Err(Failed::Invalid { object: format!("pool {}", known.label()), reason });
        };
        let _turn = self.creating.acquire().await;
        weir_raft::prepare_again(known.shard(), &members).await?;
        if self.get(pool).is_ok() && replicas.get(pool).is_none() {
            // Whoever joins is named by the next map, and not by the one that is known here.
            let replica = replicas.open(known.shard().clone(), Rc::new(record::scopes_of_service)).await?;
            self.attend(&known, &replica);
        }
        Ok(())
    }

    /// Answers from now on who replicates services, and whoever has this engine do so.
    pub(super) fn serve_services(self: &Rc<Self>) {
        let stopping = || Failed::NoPool("of a stopping engine".to_owned());
        let pools = Rc::downgrade(self);
        self.engines().serve(opcode::POOL_SERVICE_RANKS, move |_: Rank, request: PoolName| {
            let pools = pools.upgrade();
            async move {
                let known = pools.ok_or_else(stopping)?.get(request.pool)?;
                let record = known.record.borrow();
                Ok::<_, Failed>(ServiceRanks { version: record.map.version, replicas: record.replicas() })
            }
        });
        let pools = Rc::downgrade(self);
        self.engines().serve(opcode::POOL_SERVICE_JOIN, move |_: Rank, request: ServiceJoin| {
            let pools = pools.upgrade();
            async move { pools.ok_or_else(stopping)?.join_service(request).await }
        });
    }

    /// This engine's replica of a pool's service.
    #[must_use]
    pub fn replica(&self, pool: PoolId) -> Option<Rc<Replica>> {
        self.replicas.as_ref()?.get(pool)
    }

    /// The rank that runs a pool's service, as far as is known here.
    #[must_use]
    pub fn service_rank(&self, pool: &TargetPool) -> Option<Rank> {
        match self.replica(pool.id()).map(|replica| replica.leader()) {
            Some(leader) => leader,
            None => pool.service(),
        }
    }

    /// The rank that runs a pool's service: of several replicas the one that says that it leads.
    ///
    /// # Errors
    /// When none does.
    pub async fn find_leader(&self, record: &PoolRecord) -> Result<Rank, Failed> {
        let replicas = record.replicas();
        if let [only] = replicas[..] {
            return Ok(only);
        }
        if self.own_service(record.pool).is_some() {
            return Ok(self.engines().own_rank());
        }
        let held = self.get(record.pool).ok();
        let known = held.as_ref().and_then(|pool| self.service_rank(pool));
        let mut found = self.ask_who_leads(record.pool, (&replicas, known)).await;
        if found.is_err() && held.is_none() {
            // Who has no part of the pool isn't told of its maps.
            let newest = newest_replicas(self.engines(), record, &record.map.ranks()).await;
            if newest != replicas {
                found = self.ask_who_leads(record.pool, (&newest, None)).await;
            }
        }
        found.map_err(|error| {
            tracing::debug!(pool = %record.pool, %error, "no replica of a pool's service leads");
            Failed::Leaderless(record.pool)
        })
    }

    async fn ask_who_leads(&self, pool: PoolId, replicas: (&[Rank], Option<Rank>)) -> Result<Rank, AskError> {
        let (request, opcode) = (PoolName { pool }, opcode::POOL_LEADER);
        let (rank, answer) =
            ask_leader::<_, ()>(self.engines(), replicas, opcode, &request, LEADER_LIMIT).await;
        answer.map(|()| rank)
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

/// Takes part in services as maps say, for as long as the engine's pools are served. Replicas are on its first target.
pub(super) fn start(pools: &Rc<TargetPools>) {
    if pools.replicas.is_some() {
        pools.engines().runtime().spawn(look_around(Rc::downgrade(pools)));
    }
}

async fn look_around(pools: Weak<TargetPools>) {
    loop {
        let Some(rt) = pools.upgrade().map(|pools| pools.engines().runtime().clone()) else { return };
        rt.sleep(LOOK_INTERVAL).await;
        let Some(pools) = pools.upgrade() else { return };
        pools.follow_services().await;
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
