//! `pool query-targets`: state and space of a pool's targets, as its service knows them.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use weir_client::{PoolQueryReply, Rights};
use weir_proto::pool::PoolTarget;

use super::pool::PoolCommand;
use crate::connection::session;
use crate::error::CliError;
use crate::output::{Answer, Output, table};
use crate::values::{self, Size};

/// Names targets of a pool.
#[derive(Args, Debug, Clone)]
pub struct PoolTargets {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Rank of the targets' engine; every engine when absent.
    #[arg(long)]
    pub rank: Option<u32>,
    /// Numbers of targets in their engine, e.g. 0,1; all when absent.
    #[arg(long = "target-idx", value_delimiter = ',')]
    pub targets: Vec<u32>,
}

/// Whether a command goes over the fabric, and so to [`run_fabric`].
#[must_use]
pub fn is_fabric(command: &PoolCommand) -> bool {
    matches!(command, PoolCommand::QueryTargets(_))
}

/// Performs a pool command that goes over the fabric.
///
/// # Errors
/// When the engines refuse it or cannot be reached, or the pool has no such target.
pub fn run_fabric(
    command: PoolCommand,
    attach: &Path,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    let PoolCommand::QueryTargets(wanted) = command else {
        return Err(CliError::Usage("this command goes over management".into()));
    };
    session::with_pool(&wanted.pool, Rights::READ, attach, patience, output, async |context, pool| {
        show(&wanted, &pool.query(context).await?)
    })
}

fn show(wanted: &PoolTargets, reply: &PoolQueryReply) -> Result<Answer, CliError> {
    let is_wanted = |target: &&PoolTarget| {
        wanted.rank.is_none_or(|rank| target.rank.0 == rank)
            && (wanted.targets.is_empty() || wanted.targets.contains(&target.index.0))
    };
    let found: Vec<&PoolTarget> = reply.map.targets.iter().filter(is_wanted).collect();
    if found.is_empty() {
        return Err(CliError::NotFound(format!("pool {} has no such target", wanted.pool)));
    }
    let mut rows = vec![["Rank", "Target", "State", "Size", "Free"].map(String::from).to_vec()];
    let mut infos = Vec::new();
    for target in found {
        let space = reply.space.iter().find(|(id, _)| *id == target.id).map(|(_, space)| space);
        let shown = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Size(bytes).to_string());
        rows.push(vec![
            target.rank.0.to_string(),
            target.index.0.to_string(),
            target.state.name().to_owned(),
            shown(space.map(|space| space.total)),
            shown(space.map(|space| space.free)),
        ]);
        // One that has not answered has no figures.
        let space: Vec<Value> = space
            .into_iter()
            .map(|space| json!({"media_type": "nvme", "total": space.total, "free": space.free}))
            .collect();
        infos.push(json!({
            "rank": target.rank.0,
            "target": target.index.0,
            "target_type": "nvme",
            "target_state": target.state.name(),
            "space": space,
        }));
    }
    Ok(Answer::new(json!({"status": 0, "infos": infos}), table(&rows)))
}
