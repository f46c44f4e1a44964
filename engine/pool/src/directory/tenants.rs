//! What tenants may use, and the shares of that which their pools have.
//!
//! The shares of a tenant's pools together never exceed its quota, unless more than that is held already. So a share grows in the record
//! before the pool's service hears of it, and shrinks there after the service has confirmed what its targets hold. A pool starts with
//! what it holds, and its service asks for more when targets do. Nothing grows while some pool has not confirmed yet that there is a
//! limit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::AskError;
use weir_proto::quota::{
    Rate, RateReply, RateRequest, ShareChange, ShareGrant, ShareOrder, ShareReport, ShareRequest, ShareStamp,
    TenantLimits,
};
use weir_proto::{PoolId, Rank, TenantId, opcode};
use weir_runtime::sync::Semaphore;
use weir_runtime::{Instant, join_all};
use weir_store::Shard;

use super::Directory;
use super::paces::Paces;
use crate::error::Failed;
use crate::record::{self, EntryState, PoolRecord, SCOPE_TENANT, SYSTEM_POOL, TenantRecord};
use crate::service::enlarge;
use crate::target::ask_leader;

/// Longest wait for a pool's service where an administrator waits: its targets are asked for what they don't use.
const ORDER_LIMIT: Duration = Duration::from_secs(5);

/// The same where a writer waits in another pool of the tenant: less than that pool's service waits for the answer.
const URGENT_LIMIT: Duration = Duration::from_millis(1500);

/// What pools don't use is taken back at most this often: a full tenant must not keep all engines busy.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// Longest wait for a pool's service to say what it holds.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// Least limit of bytes: one container's first records on any targets.
const BYTES_MIN: u64 = 1 << 20;

/// Most tenants with limits. A record of one with a hundred pools has 2 KB, and the list's pool 32 MiB.
const LIMITED_MAX: usize = 4096;

/// What a tenant may use, and uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantUse {
    /// The tenant.
    pub tenant: TenantId,
    /// What it may use.
    pub limits: TenantLimits,
    /// Its pools.
    pub pools: Vec<PoolUse>,
}

/// What a pool of a tenant uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolUse {
    /// The pool.
    pub pool: PoolId,
    /// Its label.
    pub label: String,
    /// Bytes that it may hold; none: no limit, or none yet.
    pub share: Option<u64>,
    /// Bytes that it holds; or why its service doesn't say so.
    pub used: Result<u64, String>,
}

/// What a tenant may use, as the directory holds it.
struct Tenant {
    record: RefCell<TenantRecord>,
    /// One change at a time.
    turn: Semaphore,
    /// When its pools were last asked for what they don't use.
    reclaimed: Cell<Option<Instant>>,
    /// How fast its clients may go.
    paces: Paces,
}

impl Tenant {
    fn new(record: TenantRecord) -> Rc<Self> {
        let (record, paces) = (RefCell::new(record), Paces::default());
        Rc::new(Self { record, turn: Semaphore::new(1), reclaimed: Cell::new(None), paces })
    }
}

/// The tenants with limits.
#[derive(Default)]
pub(super) struct Tenants {
    known: RefCell<BTreeMap<TenantId, Rc<Tenant>>>,
    /// Of the newest stamp.
    stamped: Cell<u64>,
}

impl Tenants {
    /// Loads what was stored.
    pub(super) fn load(shard: &Shard) -> Result<Self, Failed> {
        let tenants = Self::default();
        for (name, bytes) in record::load_scope(shard, SCOPE_TENANT) {
            let number: [u8; 8] = name.as_slice().try_into().map_err(|_| Failed::Record {
                pool: SYSTEM_POOL,
                what: "the number of a tenant with limits",
                reason: format!("it has {} bytes", name.len()),
            })?;
            let tenant = Tenant::new(record::decode(SYSTEM_POOL, &bytes)?);
            tenants.known.borrow_mut().insert(TenantId(u64::from_be_bytes(number)), tenant);
        }
        Ok(tenants)
    }

    fn get(&self, tenant: TenantId) -> Option<Rc<Tenant>> {
        self.known.borrow().get(&tenant).map(Rc::clone)
    }
}

impl Directory {
    /// Pools of a tenant whose services are there.
    fn pools_of(&self, tenant: TenantId) -> Vec<PoolRecord> {
        let entries = self.entries.borrow();
        let ready = entries.values().filter(|entry| entry.state == EntryState::Ready);
        ready.map(|entry| &entry.pool).filter(|pool| pool.tenant == tenant).cloned().collect()
    }

    fn stamp(&self) -> ShareStamp {
        let term = self.led.as_ref().map_or(0, |led| led.leadership.term);
        let at = self.engines.runtime().wall_ns().max(self.tenants.stamped.get().saturating_add(1));
        self.tenants.stamped.set(at);
        ShareStamp { term, at }
    }

    /// Tells a pool's service what becomes of its share. One that knows something later takes no notice: a clock was set back then, or
    /// another engine keeps the list.
    async fn order(
        &self,
        pool: &PoolRecord,
        change: ShareChange,
        limit: Duration,
    ) -> Result<ShareReport, Failed> {
        let failed = |error| {
            Failed::asking(format!("pool {}", pool.label), "dividing its tenant's quota among pools", error)
        };
        for _ in 0..2 {
            let order = ShareOrder { pool: pool.pool, stamp: self.stamp(), change };
            let asked = self.ask_share(pool, &order, limit).await;
            let report = asked.map_err(failed)?;
            if change == ShareChange::Look || report.stamp <= order.stamp {
                return Ok(report);
            }
            if report.stamp.term > order.stamp.term {
                break;
            }
            self.tenants.stamped.set(self.tenants.stamped.get().max(report.stamp.at));
        }
        Err(Failed::NoKeeper("this one has ceased to lead them"))
    }

    async fn ask_share(
        &self,
        pool: &PoolRecord,
        order: &ShareOrder,
        limit: Duration,
    ) -> Result<ShareReport, AskError> {
        ask_leader(&self.engines, (&pool.replicas(), None), opcode::POOL_SHARE, order, limit).await.1
    }

    /// Has a pool that is being created begin with nothing, if its tenant has a quota.
    pub(super) async fn limit_new_pool(&self, pool: &PoolRecord) -> Result<(), AskError> {
        let known = self.tenants.get(pool.tenant);
        if known.is_none_or(|known| known.record.borrow().limits.bytes == 0) {
            return Ok(());
        }
        let order = ShareOrder { pool: pool.pool, stamp: self.stamp(), change: ShareChange::Hold(0) };
        self.ask_share(pool, &order, ORDER_LIMIT).await.map(drop)
    }

    /// Sets what a tenant may use. Where more than that is used already, nothing more is stored until less is. Returns what it uses.
    ///
    /// # Errors
    /// When a limit makes no sense, a pool's service doesn't answer of which no share is known, or it can't be stored: nothing has
    /// changed then.
    pub async fn limit_tenant(&self, tenant: TenantId, limits: TenantLimits) -> Result<TenantUse, Failed> {
        self.check_limits(tenant, limits)?;
        let known = Rc::clone(
            self.tenants
                .known
                .borrow_mut()
                .entry(tenant)
                .or_insert_with(|| Tenant::new(TenantRecord::default())),
        );
        {
            let _turn = known.turn.acquire().await;
            let before = known.record.borrow().clone();
            if limits.bytes > 0 {
                // None is left without a limit while others have one.
                let mut new = self.pools_of(tenant);
                new.retain(|pool| !before.shares.contains_key(&pool.pool));
                let asked = new.iter().map(|pool| self.order(pool, ShareChange::Look, LOOK_LIMIT));
                join_all(asked).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            }
            let shrinks = limits.bytes < before.limits.bytes;
            if limits != before.limits {
                self.put_tenant(tenant, &known, TenantRecord { limits, ..before }).await?;
                tracing::info!(tenant = tenant.0, ?limits, "a tenant's limits change");
            }
            self.divide((tenant, &known), shrinks, ORDER_LIMIT).await?;
        }
        Ok(self.tenant_use(tenant).await)
    }

    fn check_limits(&self, tenant: TenantId, limits: TenantLimits) -> Result<(), Failed> {
        let object = format!("tenant {tenant}");
        let bytes = limits.bytes;
        if (1..BYTES_MIN).contains(&bytes) {
            let reason = format!("a quota has at least {BYTES_MIN} bytes (1 MiB), not {bytes}; 0 means none");
            return Err(Failed::Invalid { object, reason });
        }
        let known = self.tenants.known.borrow();
        let is_limited = |known: &Tenant| *known.record.borrow() != TenantRecord::default();
        let is_new = known.get(&tenant).is_none_or(|known| !is_limited(known));
        if is_new && known.values().filter(|known| is_limited(known)).count() >= LIMITED_MAX {
            let reason = format!("there are limits of {LIMITED_MAX} tenants already; lift some");
            return Err(Failed::Busy { object, reason });
        }
        Ok(())
    }

    /// What a tenant may use, and what its pools say that they hold.
    pub async fn tenant_use(&self, tenant: TenantId) -> TenantUse {
        let known = self.tenants.get(tenant);
        let record = known.map_or_else(TenantRecord::default, |known| known.record.borrow().clone());
        let pools = self.pools_of(tenant);
        let asked = join_all(pools.iter().map(|pool| self.order(pool, ShareChange::Look, LOOK_LIMIT)));
        let uses = pools.iter().zip(asked.await).map(|(pool, report)| PoolUse {
            pool: pool.pool,
            label: pool.label.clone(),
            share: record.shares.get(&pool.pool).copied(),
            used: match report {
                Ok(report) => report.used.ok_or_else(|| "its service doesn't say what it holds".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        });
        TenantUse { tenant, limits: record.limits, pools: uses.collect() }
    }

    /// Gives the service of a pool more of its tenant's quota: from what no pool has, and where it is urgent from what other pools
    /// don't use. What it gets is less than it asked for when there is no more.
    pub(super) async fn enlarge_share(&self, request: &ShareRequest) -> Result<ShareGrant, Failed> {
        let arrived = self.engines.runtime().now();
        let entry = self.entries.borrow().get(&request.pool).cloned();
        let pool = entry.ok_or_else(|| Failed::NoPool(request.pool.to_string()))?.pool;
        let Some(known) = self.tenants.get(pool.tenant) else {
            return Ok(ShareGrant { stamp: self.stamp(), limit: None });
        };
        let _turn = known.turn.acquire().await;
        let is_whole = self.divide((pool.tenant, &known), false, URGENT_LIMIT).await?;
        let mut record = known.record.borrow().clone();
        if record.limits.bytes == 0 {
            return Ok(ShareGrant { stamp: self.stamp(), limit: None });
        }
        // Whatever the record says, the pool may hold what its service goes by.
        let recorded = record.shares.get(&pool.pool);
        let share = recorded.map_or(request.limit, |share| request.limit.max(*share));
        record.shares.insert(pool.pool, share);
        // For those that came before that was last done, it was done.
        let is_due = known.reclaimed.get().is_none_or(|last| last < arrived);
        if request.urgent && record.unshared() < request.wanted && is_due {
            let rt = self.engines.runtime();
            if let Some(last) = known.reclaimed.get() {
                rt.sleep_until(last + RECLAIM_INTERVAL).await;
            }
            known.reclaimed.set(Some(rt.now()));
            let mut others = self.pools_of(pool.tenant);
            others.retain(|other| other.pool != pool.pool);
            self.hold(&mut record, &others, URGENT_LIMIT).await;
        }
        let free = if is_whole { record.unshared() } else { 0 };
        let total = enlarge(share, share, request.wanted, free, record.shares.len());
        record.shares.insert(pool.pool, total);
        if record != *known.record.borrow() {
            self.put_tenant(pool.tenant, &known, record).await?;
        }
        Ok(ShareGrant { stamp: self.stamp(), limit: Some(total) })
    }

    /// How fast clients of tenants may go at a target, which says how fast they would.
    pub(super) fn allow(&self, from: Rank, request: &RateRequest) -> RateReply {
        let now = self.engines.runtime().now();
        let allow = |(tenant, wanted): &(TenantId, Rate)| {
            let Some(known) = self.tenants.get(*tenant) else { return Rate::default() };
            let TenantLimits { operations, bandwidth, .. } = known.record.borrow().limits;
            known.paces.allow((from, request.index), *wanted, Rate { operations, bandwidth }, now)
        };
        RateReply { allowed: request.wanted.iter().map(allow).collect() }
    }

    /// Has pools hold no more than their targets do, and notes what that is.
    async fn hold(&self, record: &mut TenantRecord, pools: &[PoolRecord], limit: Duration) {
        let asked = pools.iter().map(|pool| self.order(pool, ShareChange::Hold(0), limit));
        for (pool, report) in pools.iter().zip(join_all(asked).await) {
            match report {
                Ok(ShareReport { limit: Some(share), .. }) => {
                    record.shares.insert(pool.pool, share);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(pool = pool.label, %error, "a pool's share of its tenant's quota stays");
                }
            }
        }
    }

    /// Tells pools that were not told yet that there is a limit, or that there is none any more. `shrinks`: the limit is a lower one.
    /// Returns whether all of the tenant's pools have a share. The caller has the tenant's turn.
    async fn divide(
        &self,
        (tenant, known): (TenantId, &Tenant),
        shrinks: bool,
        limit: Duration,
    ) -> Result<bool, Failed> {
        let mut record = known.record.borrow().clone();
        record.shares.retain(|pool, _| self.entries.borrow().contains_key(pool));
        let mut pools = self.pools_of(tenant);
        let mut all = true;
        if record.limits.bytes > 0 {
            let exceeds = shrinks && record.unshared() == 0;
            pools.retain(|pool| exceeds || !record.shares.contains_key(&pool.pool));
            self.hold(&mut record, &pools, limit).await;
            all = pools.iter().all(|pool| record.shares.contains_key(&pool.pool));
        } else {
            pools.retain(|pool| record.shares.contains_key(&pool.pool));
            let asked = pools.iter().map(|pool| self.order(pool, ShareChange::Lift, limit));
            for (pool, report) in pools.iter().zip(join_all(asked).await) {
                if report.is_ok_and(|report| report.limit.is_none()) {
                    record.shares.remove(&pool.pool);
                }
            }
        }
        if record != *known.record.borrow() {
            self.put_tenant(tenant, known, record).await?;
        }
        Ok(all)
    }

    /// Goes on with tenants whose pools were not all told.
    pub(super) async fn settle_tenants(&self) {
        let tenants: Vec<_> = {
            let known = self.tenants.known.borrow();
            known.iter().map(|(tenant, known)| (*tenant, Rc::clone(known))).collect()
        };
        for (tenant, known) in tenants {
            if self.is_over() {
                return;
            }
            let _turn = known.turn.acquire().await;
            if let Err(error) = self.divide((tenant, &known), false, ORDER_LIMIT).await {
                tracing::debug!(tenant = tenant.0, %error, "a tenant's quota is not divided yet");
            }
        }
    }

    /// Makes a record durable, then visible. One that says nothing goes.
    async fn put_tenant(&self, tenant: TenantId, known: &Tenant, record: TenantRecord) -> Result<(), Failed> {
        let stored = (record != TenantRecord::default()).then(|| record::encode(&record));
        let name = tenant.0.to_be_bytes();
        self.commit(&[record::change(SCOPE_TENANT, &name, stored)]).await?;
        *known.record.borrow_mut() = record;
        Ok(())
    }
}
