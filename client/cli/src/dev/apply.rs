//! Makes pools and containers match the manifests: missing ones are made, and the others follow in size and quota, as
//! with the operator. Unlike there, a pool can shrink, because the manifests alone decide about a system of `weir dev`.

use std::time::Duration;

use weir_client::ObjectClass;
use weir_management::v1::{ContainerCreateRequest, PoolCreateRequest, PoolInfo};

use super::supervisor::Plan;
use crate::connection::System;
use crate::error::CliError;
use crate::storage::{container, pool};
use crate::values::Size;

/// Limit of each call.
pub(super) const APPLY_LIMIT: Duration = Duration::from_mins(1);

/// Shares of targets are whole blocks: a pool may have this many bytes more on each than it was asked to have.
const ROUNDING: u64 = 4096;

/// Applies a plan's manifests. `say` gets progress, line by line.
pub(super) async fn apply(plan: &Plan, say: &impl Fn(&str)) -> Result<(), CliError> {
    let system = System::open(&plan.folder.attach(), APPLY_LIMIT)?;
    for ignored in &plan.manifests.ignored {
        say(&format!("{ignored}: means nothing without Kubernetes, ignored"));
    }
    let there = pool::list_pools(&system).await?;
    for request in &plan.manifests.pools {
        let known = there.iter().find(|info| info.label == request.label);
        if !(plan.defaults && known.is_some()) {
            apply_pool(&system, request, known, say).await?;
        }
    }
    for request in &plan.manifests.settings {
        pool::set_properties(&system, request.clone()).await?;
    }
    for request in &plan.manifests.containers {
        apply_container(&system, request, plan.defaults, say).await?;
    }
    Ok(())
}

async fn apply_pool(
    system: &System,
    request: &PoolCreateRequest,
    known: Option<&PoolInfo>,
    say: &impl Fn(&str),
) -> Result<(), CliError> {
    if let Some(known) = known.filter(|known| is_resized(known, request)) {
        pool::resize_pool(system, &request.label, Size(request.size_bytes)).await?;
        say(&format!("pool {} resized from {}", known.label, Size(known.size_bytes)));
    }
    // One that is there is compared in everything.
    let (info, _) = pool::create_pool(system, request.clone()).await?;
    say(&format!("pool {} of {}", info.label, Size(info.size_bytes)));
    Ok(())
}

/// Whether a pool only needs another size. One that differs in what can't be changed stays as it is.
fn is_resized(known: &PoolInfo, request: &PoolCreateRequest) -> bool {
    // One whose manifest names no class has that of its redundancy factor.
    let named = Some(request.object_class.clone()).filter(|class| !class.is_empty());
    let follows = named.is_none() || request.redundancy_factor == 0;
    let class = named
        .or_else(|| ObjectClass::for_redundancy(request.redundancy_factor).map(|class| class.to_string()));
    let mut ranks = request.ranks.clone();
    ranks.sort_unstable();
    ranks.dedup();
    let rounding = u64::from(known.targets.max(1)) * ROUNDING;
    let fits = known.size_bytes.checked_sub(request.size_bytes).is_some_and(|more| more < rounding);
    !fits
        && follows
        && Some(&known.object_class) == class.as_ref()
        && known.tenant == request.tenant
        && (ranks.is_empty() || ranks == known.ranks)
}

async fn apply_container(
    system: &System,
    request: &ContainerCreateRequest,
    stays: bool,
    say: &impl Fn(&str),
) -> Result<(), CliError> {
    let known = match container::query_container(system, &request.pool, &request.label).await {
        Ok(known) => Some(known),
        Err(error) if error.der() == Some(weir_proto::Der::NONEXIST) => None,
        Err(error) => return Err(error),
    };
    if known.is_some() && stays {
        return Ok(());
    }
    if let Some(known) = known.filter(|known| known.quota_bytes != request.quota_bytes) {
        let as_it_is = ContainerCreateRequest { quota_bytes: known.quota_bytes, ..request.clone() };
        // What else differs is refused, and then the quota stays too.
        container::create_container(system, as_it_is).await?;
        let quota = Size(request.quota_bytes);
        container::change_quota(system, &request.pool, &request.label, quota).await?;
        say(&format!("container {} has another quota", request.label));
    }
    let (info, _) = container::create_container(system, request.clone()).await?;
    say(&format!("container {} in pool {}", info.label, info.pool_label));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_resized_when_nothing_else_differs() {
        let known = PoolInfo {
            size_bytes: 6 * 4096 * 100,
            targets: 6,
            object_class: "SX".into(),
            ranks: vec![0, 1, 2],
            ..PoolInfo::default()
        };
        let request = |size_bytes| PoolCreateRequest {
            label: "tank".into(),
            size_bytes,
            ..PoolCreateRequest::default()
        };
        let exact = known.size_bytes;
        for (size, expected) in [
            (exact, false),
            (exact - 6 * 4096 + 1, false),
            (exact - 6 * 4096, true),
            (exact + 1, true),
            (exact * 2, true),
            (0, true),
        ] {
            assert_eq!(is_resized(&known, &request(size)), expected, "{size}");
        }
        let other = PoolCreateRequest { object_class: "S1".into(), ..request(exact * 2) };
        assert!(!is_resized(&known, &other));
        let other = PoolCreateRequest { ranks: vec![1, 0], ..request(exact * 2) };
        assert!(!is_resized(&known, &other));
        let same = PoolCreateRequest { ranks: vec![2, 1, 0], ..request(exact * 2) };
        assert!(is_resized(&known, &same));
        let redundant = PoolCreateRequest { redundancy_factor: 1, ..request(exact * 2) };
        assert!(!is_resized(&known, &redundant));
        let known = PoolInfo { object_class: "RP_2GX".into(), ..known };
        assert!(is_resized(&known, &redundant));
    }
}
