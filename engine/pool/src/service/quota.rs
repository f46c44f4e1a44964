//! The quota of a container, and the shares of it that targets hold.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_group::AskError;
use weir_proto::pool::{ContainerInfo, GrantRequest, PoolMap, QuotaRequest, TargetContainerState};
use weir_proto::{Rank, Rights};
use weir_raft::CommandId;
use weir_runtime::{Instant, join_all};

use super::containers::check_quota;
use super::grants::{enlarge, ungranted};
use super::{Container, PoolService};
use crate::error::Failed;

/// Longest wait for one target to give back what it doesn't use.
const RECLAIM_LIMIT: Duration = Duration::from_secs(2);

/// Unused grants are taken back at most this often: a full container must not keep all targets busy.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// A grant that makes a target keep what it holds and no more.
const NOTHING_MORE: Option<u64> = Some(0);

/// What came of a target's request.
pub(crate) enum Granted {
    /// It has what it asked for.
    Enough(TargetContainerState),
    /// The pool may not hold so many bytes more, by its share of its tenant's quota.
    Short(u64),
}

impl PoolService {
    /// Answers a target that learns of a container or needs a greater share of its quota. `reclaims`: where the pool's share of its
    /// tenant's quota is used up, what targets don't use is taken back from all containers first.
    ///
    /// # Errors
    /// When the container doesn't exist, or with `NOSPACE` when its quota is used up.
    pub(crate) async fn grant(
        &self,
        from: Rank,
        request: &GrantRequest,
        reclaims: bool,
    ) -> Result<Granted, Failed> {
        let arrived = self.engines.runtime().now();
        let pool = self.pool()?;
        let gone = || Failed::Destroyed { pool: pool.label.clone(), container: request.container };
        let known = self.containers.borrow().get(&request.container).map(std::rc::Rc::clone);
        let container = known.ok_or_else(gone)?;
        let target = target_id(&pool.map, from, request.index).ok_or_else(|| Failed::Invalid {
            object: format!("pool {}", pool.label),
            reason: format!("target {} of rank {from} is not one of its targets", request.index),
        })?;
        let _turns = self.turn_to_grant(&container).await?;
        let mut grants = container.record.borrow().grants.clone();
        let quota = container.record.borrow().properties.quota;
        let reclaims = reclaims.then_some(arrived);
        let granted = self.share_of(&container, (quota, reclaims), target, request, &mut grants).await?;
        grants.insert(target, granted);
        if grants != container.record.borrow().grants {
            let mut record = container.record.borrow().clone();
            record.grants = grants.clone();
            self.commit_record(&container, record).await?;
        }
        let needed = request.used.saturating_add(request.wanted);
        let lacking = granted.map_or(0, |bytes| needed.saturating_sub(bytes));
        if request.wanted == 0 || lacking == 0 {
            return Ok(Granted::Enough(container.state(pool.pool, granted)));
        }
        if quota > 0 && ungranted(quota, &grants) < lacking {
            return Err(Failed::NoSpace {
                object: self.object(&container.label()),
                reason: format!("its quota of {quota} bytes is used up; delete data or raise the quota"),
            });
        }
        Ok(Granted::Short(lacking))
    }

    /// What the target gets in total. Takes back unused grants when the quota runs short, of the container or, since the request has
    /// come, of the pool.
    async fn share_of(
        &self,
        container: &Container,
        (quota, arrived): (u64, Option<Instant>),
        target: u32,
        request: &GrantRequest,
        grants: &mut BTreeMap<u32, Option<u64>>,
    ) -> Result<Option<u64>, Failed> {
        if quota == 0 && !self.is_limited() {
            return Ok(None);
        }
        let targets = self.pool().map_or(1, |pool| pool.map.targets.len());
        let granted = grants.get(&target).copied().flatten().unwrap_or(request.used);
        grants.insert(target, Some(granted));
        let needed = request.used.saturating_add(request.wanted);
        let of_quota = |grants: &BTreeMap<u32, Option<u64>>| {
            if quota == 0 { u64::MAX } else { ungranted(quota, grants) }
        };
        if granted.saturating_add(of_quota(grants)) < needed {
            self.wait_to_reclaim(container).await;
            self.reclaim(container, Some(target), grants).await;
        }
        let lacks = |grants: &BTreeMap<u32, Option<u64>>| {
            granted.saturating_add(self.ungranted_in_pool(container, grants)) < needed
        };
        if lacks(grants)
            && let Some(arrived) = arrived
            && self.may_reclaim_all(arrived, RECLAIM_INTERVAL).await
        {
            self.reclaim(container, Some(target), grants).await;
            self.reclaim_all(Some(container.id), || !lacks(grants)).await?;
        }
        // Where many containers have one share, those that nobody writes to hold nothing of it.
        if request.wanted == 0 && self.is_limited() {
            return Ok(Some(granted));
        }
        let free = of_quota(grants).min(self.ungranted_in_pool(container, grants));
        Ok(Some(enlarge(granted, request.used, request.wanted, free, targets)))
    }

    /// Waits, if grants were taken back a moment ago: what was given since may not have been used yet.
    async fn wait_to_reclaim(&self, container: &Container) {
        let rt = self.engines.runtime();
        if let Some(last) = container.reclaimed.get() {
            rt.sleep_until(last + RECLAIM_INTERVAL).await;
        }
        container.reclaimed.set(Some(rt.now()));
    }

    /// Asks targets to hold no more than they do, and notes what that is. Returns why some don't; their grants stay.
    pub(super) async fn reclaim(
        &self,
        container: &Container,
        except: Option<u32>,
        grants: &mut BTreeMap<u32, Option<u64>>,
    ) -> Vec<AskError> {
        let Ok(pool) = self.pool() else { return Vec::new() };
        let state = container.state(pool.pool, NOTHING_MORE);
        let asked: Vec<_> = pool
            .map
            .targets
            .iter()
            .filter(|target| grants.contains_key(&target.id) && Some(target.id) != except)
            .collect();
        let answers =
            join_all(asked.iter().map(|target| self.tell_target(target, state.clone(), RECLAIM_LIMIT)));
        let mut failed = Vec::new();
        for (target, answer) in asked.iter().zip(answers.await) {
            match answer {
                Ok(usage) => {
                    grants.insert(target.id, Some(usage.used));
                }
                Err(error) => {
                    tracing::debug!(container = %container.id, %error, "unused quota is not given back");
                    failed.push(error);
                }
            }
        }
        failed
    }

    /// Changes a container's quota for a client.
    ///
    /// # Errors
    /// See [`PoolService::set_quota_by_name`]; also when the handle doesn't allow it.
    pub async fn set_quota(
        &self,
        request: &QuotaRequest,
        id: Option<CommandId>,
    ) -> Result<ContainerInfo, Failed> {
        self.authorize(&request.capability, Rights::CREATE_CONTAINER)?;
        self.set_quota_once(&request.container, request.quota, id).await
    }

    /// Changes a container's quota. Raising it takes effect when targets need more; lowering it needs every target
    /// that holds data of the container.
    ///
    /// # Errors
    /// When there is no such container, the quota is too small, more is used than it allows, or an engine doesn't answer.
    pub async fn set_quota_by_name(&self, name: &str, quota: u64) -> Result<ContainerInfo, Failed> {
        self.set_quota_once(name, quota, None).await
    }

    async fn set_quota_once(
        &self,
        name: &str,
        quota: u64,
        id: Option<CommandId>,
    ) -> Result<ContainerInfo, Failed> {
        let container = self.find(name)?;
        let object = self.object(&container.label());
        let turn = self.turn_of(&container).await?;
        if !self.has_done(id) {
            let mut record = container.record.borrow().clone();
            let before = record.properties.quota;
            if quota != before {
                check_quota(quota, &object)?;
            }
            let lowers = quota > 0 && (before == 0 || quota < before);
            if lowers {
                let failed = self.reclaim(&container, None, &mut record.grants).await;
                if let Some(error) = failed.into_iter().next() {
                    return Err(Failed::asking(object, "lowering the quota", error));
                }
                let used =
                    record.grants.values().flatten().fold(0, |sum: u64, grant| sum.saturating_add(*grant));
                if used > quota {
                    return Err(Failed::Busy {
                        object,
                        reason: format!(
                            "holds {used} bytes, more than the new quota of {quota}; delete data first"
                        ),
                    });
                }
            }
            if quota != before {
                record.properties.quota = quota;
                self.commit_record_once(id, &container, record).await?;
            }
        }
        drop(turn);
        self.describe(&container).await
    }
}

fn target_id(map: &PoolMap, rank: Rank, index: weir_proto::TargetIndex) -> Option<u32> {
    map.targets.iter().find(|target| target.rank == rank && target.index == index).map(|target| target.id)
}
