//! The pool's share of its tenant's quota: the grants of all containers together never exceed it.
//!
//! The keeper of the list of pools says how large it is. It grows when the service asks for more, and shrinks to what targets hold
//! when another pool of the tenant needs it. What the keeper said before something that is known already counts no more.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::AskError;
use weir_proto::ContainerId;
use weir_proto::quota::{ShareChange, ShareGrant, ShareOrder, ShareReport};
use weir_runtime::{Instant, join_all};

use super::{Container, PoolService, SPACE_AGE_MAX};
use crate::error::Failed;
use crate::record::{self, NAME_SHARE, SCOPE_SERVICE, ShareRecord};
use crate::target::TargetPool;

/// Containers whose unused grants are taken back at the same time: each asks all targets.
const RECLAIMED_AT_ONCE: usize = 16;

/// The pool's share as it was stored; there is no limit where nothing was.
pub(super) fn load(pool: &TargetPool) -> Result<ShareRecord, Failed> {
    let stored = pool.shard().attribute(SCOPE_SERVICE, NAME_SHARE);
    stored.map_or_else(|| Ok(ShareRecord::default()), |bytes| record::decode(pool.id(), &bytes))
}

fn sum(grants: &BTreeMap<u32, Option<u64>>) -> u64 {
    grants.values().flatten().fold(0, |sum: u64, grant| sum.saturating_add(*grant))
}

impl PoolService {
    /// Whether its tenant has a quota.
    pub(super) fn is_limited(&self) -> bool {
        self.share.get().limit.is_some()
    }

    /// Bytes that the pool may hold, if its tenant has a quota.
    #[must_use]
    pub fn share_limit(&self) -> Option<u64> {
        self.share.get().limit
    }

    /// Bytes that all targets may hold of all containers without asking.
    fn granted(&self) -> u64 {
        let containers = self.containers.borrow();
        let each = containers.values().map(|container| sum(&container.record.borrow().grants));
        each.fold(0, u64::saturating_add)
    }

    /// Bytes of the share that no target has, when these are the grants of the container.
    pub(super) fn ungranted_in_pool(
        &self,
        container: &Container,
        grants: &BTreeMap<u32, Option<u64>>,
    ) -> u64 {
        let Some(limit) = self.share.get().limit else { return u64::MAX };
        let others = self.granted().saturating_sub(sum(&container.record.borrow().grants));
        limit.saturating_sub(others.saturating_add(sum(grants)))
    }

    /// Waits for the turn to grant quota of a container. Where the pool has a share it is everybody's turn.
    pub(super) async fn turn_to_grant(&self, container: &Container) -> Result<impl Sized, Failed> {
        loop {
            let limited = self.limited.get();
            let sharing = if limited { Some(self.sharing.acquire().await) } else { None };
            let turn = self.turn_of(container).await?;
            // A share may have come meanwhile, whose sum must not miss what is granted now.
            if self.limited.get() == limited {
                return Ok((sharing, turn));
            }
        }
    }

    /// Whether unused grants are to be taken back from all containers for a request that came then. For those that came before that
    /// was last done, it was done. Waits where that was a moment ago: what was given since may not have been used yet.
    pub(super) async fn may_reclaim_all(&self, arrived: Instant, interval: Duration) -> bool {
        let rt = self.engines.runtime();
        if let Some(last) = self.reclaimed_all.get() {
            if last >= arrived {
                return false;
            }
            rt.sleep_until(last + interval).await;
        }
        self.reclaimed_all.set(Some(rt.now()));
        true
    }

    /// Takes back unused grants of all containers but one, those first that have most, until it is enough. Returns why some targets
    /// keep theirs.
    pub(super) async fn reclaim_all(
        &self,
        except: Option<ContainerId>,
        is_enough: impl Fn() -> bool,
    ) -> Result<Vec<AskError>, Failed> {
        let gathered = self.gathered(SPACE_AGE_MAX).await?;
        let mut others: Vec<Rc<Container>> = self.containers.borrow().values().map(Rc::clone).collect();
        // Of thousands few have something that they don't use.
        others.retain(|container| {
            let grants = &container.record.borrow().grants;
            let may_have_more =
                sum(grants) > gathered.used_by(container.id) || grants.values().any(Option::is_none);
            Some(container.id) != except && may_have_more
        });
        others.sort_by_key(|container| core::cmp::Reverse(sum(&container.record.borrow().grants)));
        let mut failed = Vec::new();
        for some in others.chunks(RECLAIMED_AT_ONCE) {
            if is_enough() {
                break;
            }
            for kept in join_all(some.iter().map(|container| self.reclaim_whole(container))).await {
                failed.extend(kept?);
            }
        }
        Ok(failed)
    }

    /// Takes back what targets don't use of one container. Targets that are out of the map learn of it again when they are back.
    async fn reclaim_whole(&self, container: &Container) -> Result<Vec<AskError>, Failed> {
        let Ok(_turn) = self.turn_of(container).await else { return Ok(Vec::new()) };
        let mut record = container.record.borrow().clone();
        let map = self.pool()?.map;
        let takes_part = |id: &u32| map.targets.iter().any(|target| target.id == *id && target.takes_part());
        record.grants.retain(|target, _| takes_part(target));
        let failed = self.reclaim(container, None, &mut record.grants).await;
        if record.grants != container.record.borrow().grants {
            self.commit_record(container, record).await?;
        }
        Ok(failed)
    }

    /// Whether some target of a container may hold as much as it wants.
    fn has_unlimited_grant(&self) -> bool {
        let containers = self.containers.borrow();
        let mut live = containers.values().filter(|container| !container.is_doomed());
        live.any(|container| container.record.borrow().grants.values().any(Option::is_none))
    }

    /// Does what the keeper of the list of pools says of the share.
    ///
    /// # Errors
    /// When there was no limit and a target doesn't answer, which may hold as much as it wants; or when it can't be stored.
    pub(crate) async fn order_share(&self, order: &ShareOrder) -> Result<ShareReport, Failed> {
        if order.change != ShareChange::Look {
            let _sharing = self.sharing.acquire().await;
            if order.stamp > self.share.get().stamp {
                let changed = self.change_share(order).await;
                self.limited.set(self.is_limited());
                changed?;
            }
        }
        // Whoever waits for room has no time for what nobody asks for.
        let looks = order.change == ShareChange::Look;
        let used = if looks { Some(self.gathered(SPACE_AGE_MAX).await?.used_in_all()) } else { None };
        let ShareRecord { limit, stamp } = self.share.get();
        Ok(ShareReport { limit, used, stamp })
    }

    async fn change_share(&self, order: &ShareOrder) -> Result<(), Failed> {
        let limit = match order.change {
            ShareChange::Hold(bytes) => {
                self.limited.set(true);
                if self.has_unlimited_grant() || bytes < self.granted() {
                    let failed = self.reclaim_all(None, || false).await?;
                    if let Some(error) = failed.into_iter().next()
                        && self.has_unlimited_grant()
                    {
                        let object = format!("pool {}", self.label());
                        return Err(Failed::asking(object, "limiting what it may hold", error));
                    }
                }
                Some(bytes.max(self.granted()))
            }
            ShareChange::Lift => None,
            ShareChange::Look => return Ok(()),
        };
        self.store_share(ShareRecord { limit, stamp: order.stamp }).await
    }

    /// Takes over a share that was asked for, unless the keeper has said something since.
    ///
    /// # Errors
    /// When it can't be stored.
    pub(crate) async fn take_share(&self, grant: &ShareGrant) -> Result<(), Failed> {
        let _sharing = self.sharing.acquire().await;
        let known = self.share.get();
        if grant.stamp <= known.stamp {
            return Ok(());
        }
        let ShareGrant { limit, stamp } = *grant;
        if limit == known.limit {
            return Ok(());
        }
        let stored = self.store_share(ShareRecord { limit, stamp }).await;
        self.limited.set(self.is_limited());
        stored
    }

    async fn store_share(&self, share: ShareRecord) -> Result<(), Failed> {
        let stored = record::change(SCOPE_SERVICE, NAME_SHARE, Some(record::encode(&share)));
        self.commit(&[stored]).await?;
        self.share.set(share);
        let pool = self.label();
        tracing::debug!(pool, limit = ?share.limit, "a pool's share of its tenant's quota");
        Ok(())
    }

    /// Why a target gets no more, where it is the tenant that may hold no more.
    pub(crate) fn tenant_is_full(&self, container: ContainerId) -> Failed {
        let known = self.containers.borrow().get(&container).map(|container| container.label());
        Failed::NoSpace {
            object: self.object(&known.unwrap_or_else(|| container.to_string())),
            reason: "the quota of the tenant that the pool belongs to is used up; delete data of the tenant or raise its quota"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::pool::{ContainerCreateRequest, ContainerProperties, GrantRequest, PoolTarget};
    use weir_proto::quota::ShareStamp;
    use weir_proto::{Capability, Der, Rank, Rights, TargetIndex, TenantId};

    use crate::service::Granted;
    use crate::service::tests::{properties, served_by};
    use crate::target::tests::POOL;

    const MIB: u64 = 1 << 20;

    fn id(number: u128) -> ContainerId {
        ContainerId(uuid::Uuid::from_u128(number))
    }

    async fn create(service: &PoolService, number: u128) {
        let tenant = TenantId::SYSTEM;
        let (rights, seal) = (Rights::default(), [0; 16]);
        let properties = ContainerProperties { label: format!("box{number}"), quota: 0, ..properties() };
        let request = ContainerCreateRequest {
            capability: Capability { tenant, pool: POOL, container: None, rights, handle: 0, seal },
            container: id(number),
            properties,
            exclusive: true,
        };
        service.create_container(request, true).await.expect("there is none");
    }

    /// What a target has then, or what it lacks.
    async fn grant(
        service: &PoolService,
        container: u128,
        used: u64,
        wanted: u64,
    ) -> Result<Option<u64>, u64> {
        let (container, index) = (id(container), TargetIndex(0));
        let request = GrantRequest { pool: POOL, container, index, used, wanted };
        match service.grant(Rank(0), &request, false).await.expect("it is there") {
            Granted::Enough(state) => Ok(state.grant),
            Granted::Short(lacking) => Err(lacking),
        }
    }

    #[test]
    fn grants_of_all_containers_stay_within_the_share_and_what_was_said_before_counts_no_more() {
        let targets = vec![PoolTarget::serving(0, Rank(0), TargetIndex(0))];
        let (world, node, _store, service, pool) = served_by(targets, 0);
        world.block_on(&node, async move {
            create(&service, 1).await;
            create(&service, 2).await;
            let order = async |at: u64, change: ShareChange| {
                let stamp = ShareStamp { term: 3, at };
                service.order_share(&ShareOrder { pool: POOL, stamp, change }).await
            };
            let held = order(5, ShareChange::Hold(8 * MIB)).await.expect("no target holds anything");
            assert_eq!((held.limit, held.stamp.at), (Some(8 * MIB), 5));
            // Whoever only learns of a container gets nothing of it.
            assert_eq!(grant(&service, 1, 0, 0).await, Ok(Some(0)));
            assert_eq!(grant(&service, 1, 0, 5 * MIB).await, Ok(Some(5 * MIB)));
            assert_eq!(grant(&service, 2, 0, 4 * MIB).await, Err(MIB), "3 MiB are left");
            assert_eq!(service.granted(), 8 * MIB);
            let late = order(4, ShareChange::Lift).await.expect("it is answered");
            assert_eq!((late.limit, late.stamp.at), (Some(8 * MIB), 5));
            let stamp = ShareStamp { term: 3, at: 4 };
            service.take_share(&ShareGrant { stamp, limit: Some(99 * MIB) }).await.expect("it is late");
            assert_eq!(service.share_limit(), Some(8 * MIB));
            let stamp = ShareStamp { term: 3, at: 6 };
            service.take_share(&ShareGrant { stamp, limit: Some(10 * MIB) }).await.expect("room");
            assert_eq!(grant(&service, 2, 3 * MIB, MIB).await, Ok(Some(4 * MIB)));
            assert_eq!(load(&pool), Ok(ShareRecord { limit: Some(10 * MIB), stamp }));
            // A target that doesn't answer keeps what it has, and the share is no less than that.
            let held = order(7, ShareChange::Hold(0)).await.expect("it is answered");
            assert_eq!(held.limit, Some(9 * MIB));
            order(8, ShareChange::Lift).await.expect("nothing stands against it");
            assert_eq!(grant(&service, 2, 4 * MIB, 100 * MIB).await, Ok(None));
        });
    }

    #[test]
    fn there_is_no_limit_until_every_target_goes_by_it() {
        let targets = vec![PoolTarget::serving(0, Rank(0), TargetIndex(0))];
        let (world, node, _store, service, _pool) = served_by(targets, 0);
        world.block_on(&node, async move {
            create(&service, 1).await;
            assert_eq!(grant(&service, 1, 0, 0).await, Ok(None), "it may hold as much as it wants");
            let stamp = ShareStamp { term: 0, at: 1 };
            let order = ShareOrder { pool: POOL, stamp, change: ShareChange::Hold(MIB) };
            // No target is there that could answer.
            let error = service.order_share(&order).await.expect_err("the target goes on without a limit");
            assert_eq!(error.der(), Der::UNREACH, "{error}");
            assert_eq!(service.share_limit(), None);
            assert_eq!(grant(&service, 1, 0, 5 * MIB).await, Ok(None));
        });
    }
}
