//! What `pool` commands say of redundancy: how a pool is doing, and engines that leave it, come back and join it.

use clap::Args;
use serde_json::{Value, json};
use weir_management::v1::pools_client::PoolsClient;
use weir_management::v1::{
    PoolCondition, PoolDrainRequest, PoolExcludeRequest, PoolExtendRequest, PoolHealth, PoolInfo,
    PoolRebuild, PoolReintegrateRequest,
};

use crate::connection::System;
use crate::error::CliError;
use crate::values::{self, Size};

/// Names an engine of a pool.
#[derive(Args, Debug, Clone)]
pub struct PoolRank {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Rank of the engine.
    #[arg(short = 'r', long, alias = "ranks")]
    pub rank: u32,
}

/// Names engines that are to join a pool.
#[derive(Args, Debug, Clone)]
pub struct PoolExtend {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Ranks that join it, e.g. 3,4; every engine that is up and doesn't hold it when absent.
    #[arg(short = 'r', long, value_delimiter = ',')]
    pub ranks: Vec<u32>,
}

/// Takes an engine out of a pool for good.
pub(super) async fn exclude(arguments: PoolRank, system: &System) -> Result<PoolInfo, CliError> {
    let PoolRank { pool, rank } = arguments;
    let what = format!("exclude rank {rank} from pool {pool}");
    let request = PoolExcludeRequest { pool: pool.clone(), rank };
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).exclude(request.clone()).await).await?;
    reply.pool.ok_or_else(|| super::pool::nameless(&pool))
}

/// Lets an engine that was excluded or drained come back to a pool.
pub(super) async fn reintegrate(arguments: PoolRank, system: &System) -> Result<PoolInfo, CliError> {
    let PoolRank { pool, rank } = arguments;
    let what = format!("reintegrate rank {rank} into pool {pool}");
    let request = PoolReintegrateRequest { pool: pool.clone(), rank };
    let reply = system
        .call(what, async |channel| PoolsClient::new(channel).reintegrate(request.clone()).await)
        .await?;
    reply.pool.ok_or_else(|| super::pool::nameless(&pool))
}

/// Has an engine's data moved to others.
pub(super) async fn drain(arguments: PoolRank, system: &System) -> Result<PoolInfo, CliError> {
    let PoolRank { pool, rank } = arguments;
    let what = format!("drain rank {rank} of pool {pool}");
    let request = PoolDrainRequest { pool: pool.clone(), rank };
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).drain(request.clone()).await).await?;
    reply.pool.ok_or_else(|| super::pool::nameless(&pool))
}

/// Has engines join a pool.
pub(super) async fn extend(arguments: PoolExtend, system: &System) -> Result<PoolInfo, CliError> {
    let PoolExtend { pool, ranks } = arguments;
    let what = format!("extend pool {pool}");
    let request = PoolExtendRequest { pool: pool.clone(), ranks, places: vec![] };
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).extend(request.clone()).await).await?;
    reply.pool.ok_or_else(|| super::pool::nameless(&pool))
}

fn condition(health: &PoolHealth) -> &'static str {
    match health.condition() {
        PoolCondition::Healthy => "Healthy",
        PoolCondition::Degraded => "Degraded",
        PoolCondition::Rebuilding => "Rebuilding",
        PoolCondition::Unavailable => "Unavailable",
        PoolCondition::Unspecified => "Unknown",
    }
}

/// Percent of the parts that are done, if it is known how many there are.
fn percent(rebuild: &PoolRebuild) -> Option<u64> {
    rebuild.parts_done?.saturating_mul(100).checked_div(rebuild.parts?)
}

/// How a pool with redundancy is doing, in one line for each matter.
pub(super) fn lines(pool: &PoolInfo) -> Vec<(&'static str, String)> {
    let Some(health) = &pool.health else { return Vec::new() };
    let mut lines = vec![
        ("Health", condition(health).to_owned()),
        ("May still fail", format!("{} failure domain(s)", health.failures_survived)),
    ];
    if !pool.new_ranks.is_empty() {
        let ranks = super::pool::ranks(&pool.new_ranks);
        lines.push(("New ranks", format!("{ranks} (they get their share of the data)")));
    }
    if let Some(rebuild) = &health.rebuild {
        lines.push(("Rebuild", progress(rebuild)));
        lines.extend(rebuild.hindrance.clone().map(|reason| ("Rebuild waits", reason)));
    }
    lines
}

fn progress(rebuild: &PoolRebuild) -> String {
    let done =
        percent(rebuild).map_or_else(|| "share done not known yet".to_owned(), |done| format!("{done} %"));
    let rate = match rebuild.bytes_per_second {
        Some(rate) => format!("{}/s", Size(rate)),
        None => "rate not known yet".to_owned(),
    };
    let left = match rebuild.seconds_left {
        Some(seconds) => format!("{seconds} s left"),
        None => "time left not known".to_owned(),
    };
    let PoolRebuild { targets, entries, bytes, .. } = rebuild;
    format!("{done}, {} in {entries} entries to {targets} target(s), {rate}, {left}", Size(*bytes))
}

/// The same for programs; null for a pool without redundancy.
pub(super) fn to_json(pool: &PoolInfo) -> Value {
    let rebuild = |rebuild: &PoolRebuild| {
        json!({
            "targets": rebuild.targets,
            "entries": rebuild.entries,
            "bytes": rebuild.bytes,
            "parts_done": rebuild.parts_done,
            "parts": rebuild.parts,
            "percent": percent(rebuild),
            "bytes_per_second": rebuild.bytes_per_second,
            "seconds_left": rebuild.seconds_left,
            "hindrance": rebuild.hindrance,
        })
    };
    let health = pool.health.as_ref();
    health.map_or(Value::Null, |health| {
        json!({
            "condition": condition(health),
            "failures_survived": health.failures_survived,
            "rebuild": health.rebuild.as_ref().map(rebuild),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let mut rebuild = PoolRebuild { targets: 2, entries: 5, bytes: 4096, ..PoolRebuild::default() };
        assert_eq!(
            progress(&rebuild),
            "share done not known yet, 4.0 KiB in 5 entries to 2 target(s), rate not known yet, time left not known"
        );
        (rebuild.parts_done, rebuild.parts) = (Some(1), Some(4));
        (rebuild.bytes_per_second, rebuild.seconds_left) = (Some(2048), Some(9));
        assert_eq!(progress(&rebuild), "25 %, 4.0 KiB in 5 entries to 2 target(s), 2.0 KiB/s, 9 s left");
        (rebuild.parts_done, rebuild.parts) = (Some(0), Some(0));
        assert_eq!(percent(&rebuild), None);
        let health = PoolHealth {
            condition: PoolCondition::Rebuilding.into(),
            failures_survived: 0,
            rebuild: Some(rebuild),
        };
        let pool = PoolInfo { health: Some(health), ..PoolInfo::default() };
        assert_eq!(lines(&pool)[0], ("Health", "Rebuilding".to_owned()));
        assert_eq!(to_json(&pool)["rebuild"]["percent"], Value::Null);
        assert_eq!(to_json(&PoolInfo::default()), Value::Null);
        assert!(lines(&PoolInfo::default()).is_empty());
    }
}
