//! How a target keeps leases of its pools' maps, and target 0 those of its engine: one question each second to each engine that runs
//! services of pools with replicas. The other targets ask their engine's target 0, and the service where that one has nothing.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_proto::lease::{LeaseReply, LeaseRequest, LeaseWish};
use weir_proto::pool::TargetPoolMap;
use weir_proto::{Rank, TargetIndex, opcode};
use weir_runtime::{Instant, join_all, race};

use super::TargetPools;
use crate::error::Failed;
use crate::service::Lease;
use crate::target::TargetPool;

/// How often a lease is renewed, and longest wait for the answer.
const RENEWAL: Duration = Duration::from_secs(1);

/// What is asked of whom.
type Wishes = BTreeMap<Rank, Vec<LeaseWish>>;

/// Renews leases for as long as the target's pools are served.
pub(super) fn start(pools: &Rc<TargetPools>) {
    let rt = pools.engines().runtime().clone();
    rt.clone().spawn(hold(Rc::downgrade(pools)));
}

async fn hold(pools: Weak<TargetPools>) {
    loop {
        let Some(strong) = pools.upgrade() else { return };
        let (rt, wake) = (strong.engines().runtime().clone(), strong.leasing.clone());
        let next = rt.now() + RENEWAL;
        let is_idle = strong.leased().next().is_none();
        if !is_idle {
            strong.renew().await;
            strong.tell_returned();
        }
        drop(strong);
        if is_idle {
            wake.notified().await;
        } else {
            race(rt.sleep_until(next), wake.notified()).await;
        }
    }
}

impl TargetPools {
    /// Pools whose maps are leased.
    pub(super) fn leased(&self) -> impl Iterator<Item = Rc<TargetPool>> {
        self.all().into_iter().filter(|pool| pool.is_leased())
    }

    /// Asks for leases of all pools once.
    async fn renew(&self) {
        if self.engines().own_index().0 != 0 {
            let wishes: Vec<LeaseWish> = self.leased().map(|pool| self.wish(&pool)).collect();
            self.ask_for_leases(self.engines().own_rank(), wishes).await;
        }
        let now = self.engines().runtime().now();
        let mut wishes = Wishes::new();
        for pool in self.leased() {
            // What target 0 has told is as good as what the service tells.
            if self.engines().own_index().0 == 0 || !pool.holds_lease(now) {
                // Of several replicas of a service the one that leads grants it.
                let replicas = pool.record.borrow().replicas();
                let stray = self.stray(&pool, &replicas, now);
                for rank in replicas.into_iter().chain(stray) {
                    wishes.entry(rank).or_default().push(self.wish(&pool));
                }
            }
        }
        join_all(wishes.into_iter().map(|(rank, wishes)| self.ask_for_leases(rank, wishes))).await;
    }

    /// One more engine of a pool that is asked where this one holds no lease, another one each time: it shows its map where that is newer.
    /// While this engine was away the whole service may have gone to others.
    fn stray(&self, pool: &TargetPool, replicas: &[Rank], now: Instant) -> Option<Rank> {
        let may = !pool.holds_lease(now) && replicas.len() > 1;
        let others: Vec<Rank> =
            pool.with_map(|map| map.ranks().into_iter().filter(|rank| !replicas.contains(rank)).collect());
        let strayed = self.strayed.get();
        let rank = others.get(strayed.checked_rem(others.len())?).copied().filter(|_| may)?;
        self.strayed.set(strayed.wrapping_add(1));
        (rank != self.engines().own_rank()).then_some(rank)
    }

    fn wish(&self, pool: &TargetPool) -> LeaseWish {
        let version = pool.with_map(|map| map.version);
        LeaseWish { pool: pool.id(), version, held: pool.holds_lease(self.engines().runtime().now()) }
    }

    async fn ask_for_leases(&self, rank: Rank, pools: Vec<LeaseWish>) {
        let request = LeaseRequest { pools };
        let (engines, to) = (self.engines(), TargetIndex(0));
        // The lease counts from before the request is on its way.
        let sent = engines.runtime().now();
        let asked = engines.ask(rank, to, opcode::MAP_LEASE, &request, RENEWAL).await;
        let reply: LeaseReply = match asked {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!(%error, "leases are not renewed");
                return;
            }
        };
        for (id, lasts) in reply.granted {
            let wish = request.pools.iter().find(|wish| wish.pool == id);
            if let (Some(wish), Ok(pool)) = (wish, self.get(id)) {
                pool.take_lease(sent + Duration::from_millis(lasts.into()), wish.version);
            }
        }
        for told in reply.maps {
            let pool = told.pool;
            match self.take_map(told).await {
                // It is asked for by the newer map at once.
                Ok(()) => self.leasing.notify_one(),
                Err(error) => tracing::warn!(%pool, %error, "a newer pool map can't be used"),
            }
        }
    }

    /// Grants leases of pools whose services run here, and passes on to targets of this engine what it holds itself.
    pub(super) async fn grant_leases(&self, from: Rank, request: &LeaseRequest) -> LeaseReply {
        let now = self.engines().runtime().now();
        let mut reply = LeaseReply::default();
        for wish in &request.pools {
            let lease = match self.own_service(wish.pool) {
                // No other replica has led when this is confirmed, which is after the wish was sent: one that leads later waits for
                // the lease's end.
                Some(service) => match service.confirm().await {
                    Ok(()) => service.lease(from, wish),
                    Err(_) => Lease::Refused,
                },
                None if from == self.engines().own_rank() => self.pass_on(wish, now),
                None => self.show_newer(wish),
            };
            match lease {
                Lease::Granted(lasts) => {
                    let ms = u32::try_from(lasts.as_millis()).expect("invariant: a lease lasts for seconds");
                    reply.granted.push((wish.pool, ms));
                }
                Lease::Other(map) => reply.maps.push(TargetPoolMap { pool: wish.pool, map }),
                Lease::Refused => {}
            }
        }
        reply
    }

    /// What is left of this target's own lease, for one that goes by a map at least as new as that which the lease is of.
    fn pass_on(&self, wish: &LeaseWish, now: Instant) -> Lease {
        let Ok(pool) = self.get(wish.pool) else { return Lease::Refused };
        match pool.lease() {
            Some((until, version)) if wish.version >= version && until > now => {
                Lease::Granted(until.saturating_duration_since(now))
            }
            _ => self.show_newer(wish),
        }
    }

    /// No lease, but the map that is known here, where that is newer than what the sender goes by.
    fn show_newer(&self, wish: &LeaseWish) -> Lease {
        match self.get(wish.pool) {
            Ok(pool) if wish.version < pool.with_map(|map| map.version) => {
                Lease::Other(pool.with_map(Clone::clone))
            }
            _ => Lease::Refused,
        }
    }

    /// Answers who asks for leases from now on, at target 0.
    pub(super) fn serve_leases(self: &Rc<Self>) {
        let pools = Rc::downgrade(self);
        self.engines().serve(opcode::MAP_LEASE, move |from: Rank, request: LeaseRequest| {
            let pools = pools.upgrade();
            async move {
                let stopping = || Failed::NoPool("of a stopping engine".to_owned());
                Ok::<_, Failed>(pools.ok_or_else(stopping)?.grant_leases(from, &request).await)
            }
        });
    }
}
