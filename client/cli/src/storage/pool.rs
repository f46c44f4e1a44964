//! `pool` commands.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use weir_management::v1::pools_client::PoolsClient;
use weir_management::v1::{
    PoolCreateRequest, PoolDestroyRequest, PoolInfo, PoolListRequest, PoolQueryRequest, PoolResizeRequest,
    PoolSetPropertiesRequest, PoolState,
};

use super::property::{PoolChanges, PoolProperties, Property};
use super::redundancy::{self, PoolExtend, PoolRank};
use super::targets::PoolTargets;
use crate::connection::System;
use crate::error::CliError;
use crate::output::{Answer, fields, table};
use crate::values::{self, Size};

/// Pools.
#[derive(Subcommand, Debug, Clone)]
pub enum PoolCommand {
    /// Create a pool.
    #[command(visible_alias = "c")]
    Create(PoolCreate),
    /// List pools.
    #[command(visible_aliases = ["ls", "l"])]
    List,
    /// Show a pool's state and space.
    #[command(visible_alias = "q")]
    Query(PoolName),
    /// Change a pool's size; no target can have less than it holds.
    Resize(PoolResize),
    /// Destroy a pool and its data.
    #[command(visible_alias = "d")]
    Destroy(PoolDestroy),
    /// Take an engine out of a pool with redundancy for good: others get its data at once.
    Exclude(PoolRank),
    /// Let an engine that was excluded or drained come back to a pool, or call off a drain.
    #[command(visible_alias = "reint")]
    Reintegrate(PoolRank),
    /// Have an engine's data of a pool with redundancy moved to others, while it goes on serving.
    Drain(PoolRank),
    /// Have engines join a pool with redundancy: they get their share of its data while it is in use.
    Extend(PoolExtend),
    /// Show state and space of a pool's targets.
    QueryTargets(PoolTargets),
    /// Show properties of a pool; all of them when none is named.
    GetProp(PoolProperties),
    /// Change properties of a pool.
    SetProp(PoolChanges),
}

/// Names a pool.
#[derive(Args, Debug, Clone)]
pub struct PoolName {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
}

/// A pool to be made.
#[derive(Args, Debug, Clone)]
pub struct PoolCreate {
    /// Label of the pool.
    #[arg(value_parser = values::name)]
    pub label: String,
    /// Size over all engines, e.g. 10GiB or 10G.
    #[arg(short = 'z', long, allow_hyphen_values = true)]
    pub size: Size,
    /// Ranks that hold the pool, e.g. 0,1,2; every engine when absent.
    #[arg(short = 'r', long, value_delimiter = ',')]
    pub ranks: Vec<u32>,
    /// Default object class of its containers, e.g. SX or S1.
    #[arg(long, alias = "oclass", default_value = "")]
    pub class: String,
    /// Engines that may be lost at once without losing data.
    #[arg(long, alias = "rd-fac", default_value_t = 0)]
    pub redundancy_factor: u32,
    /// Number of the tenant whose clients may connect to it, beside the system's own.
    #[arg(long, default_value_t = 0)]
    pub tenant: u64,
}

/// A pool's new size.
#[derive(Args, Debug, Clone)]
pub struct PoolResize {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// New size over all engines.
    #[arg(short = 'z', long, allow_hyphen_values = true)]
    pub size: Size,
}

/// A pool to be destroyed.
#[derive(Args, Debug, Clone)]
pub struct PoolDestroy {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Destroy its containers too.
    #[arg(short, long, visible_alias = "recursive")]
    pub force: bool,
}

/// Performs a pool command.
///
/// # Errors
/// When the engines refuse it or cannot be asked.
pub async fn run(command: PoolCommand, system: &System) -> Result<Answer, CliError> {
    match command {
        PoolCommand::Create(arguments) => create(arguments, system).await,
        PoolCommand::List => list(system).await,
        PoolCommand::Query(PoolName { pool }) => query(pool, system).await,
        PoolCommand::Resize(arguments) => resize(arguments, system).await,
        PoolCommand::Destroy(arguments) => destroy(arguments, system).await,
        PoolCommand::Exclude(arguments) => {
            let info = redundancy::exclude(arguments, system).await?;
            Ok(Answer::new(to_json(&info), describe(&info)))
        }
        PoolCommand::Reintegrate(arguments) => {
            let info = redundancy::reintegrate(arguments, system).await?;
            Ok(Answer::new(to_json(&info), describe(&info)))
        }
        PoolCommand::Drain(arguments) => {
            let info = redundancy::drain(arguments, system).await?;
            Ok(Answer::new(to_json(&info), describe(&info)))
        }
        PoolCommand::Extend(arguments) => {
            let info = redundancy::extend(arguments, system).await?;
            Ok(Answer::new(to_json(&info), describe(&info)))
        }
        PoolCommand::GetProp(arguments) => {
            let info = query_pool(system, &arguments.pool).await?;
            arguments.answer(&properties(&info))
        }
        PoolCommand::SetProp(arguments) => {
            let info = set_properties(system, arguments.request()).await?;
            let all = PoolProperties { pool: arguments.pool, properties: vec![] };
            all.answer(&properties(&info))
        }
        PoolCommand::QueryTargets(_) => Err(CliError::Usage("this command goes over the fabric".into())),
    }
}

fn request_of(arguments: PoolCreate) -> PoolCreateRequest {
    PoolCreateRequest {
        uuid: String::new(),
        label: arguments.label,
        size_bytes: arguments.size.0,
        ranks: arguments.ranks,
        redundancy_factor: arguments.redundancy_factor,
        object_class: arguments.class,
        tenant: arguments.tenant,
        places: vec![],
    }
}

async fn create(arguments: PoolCreate, system: &System) -> Result<Answer, CliError> {
    let request = request_of(arguments);
    let (info, existed) = create_pool(system, request).await?;
    Ok(Answer::made("Pool", &info.label, existed, to_json(&info), &describe(&info)))
}

/// Creates a pool, or finds the equal one that is there; whether it was there.
///
/// # Errors
/// When the engines refuse it or cannot be asked.
pub async fn create_pool(system: &System, request: PoolCreateRequest) -> Result<(PoolInfo, bool), CliError> {
    let what = format!("create pool {}", request.label);
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).create(request.clone()).await).await?;
    reply.pool.map(|pool| (pool, reply.existed)).ok_or_else(|| nameless(&request.label))
}

/// Every pool.
///
/// # Errors
/// When the engines cannot be asked.
pub async fn list_pools(system: &System) -> Result<Vec<PoolInfo>, CliError> {
    let reply = system
        .call("list pools", async |channel| PoolsClient::new(channel).list(PoolListRequest {}).await)
        .await?;
    Ok(reply.pools)
}

async fn list(system: &System) -> Result<Answer, CliError> {
    let pools = list_pools(system).await?;
    let mut rows = vec![["Pool", "Size", "Used", "Free", "State", "Containers"].map(String::from).to_vec()];
    for pool in &pools {
        rows.push(vec![
            pool.label.clone(),
            Size(pool.size_bytes).to_string(),
            Size(pool.used_bytes).to_string(),
            Size(pool.free_bytes).to_string(),
            state_name(pool).to_owned(),
            pool.containers.to_string(),
        ]);
    }
    let text = if pools.is_empty() { "no pools\n".to_owned() } else { table(&rows) };
    Ok(Answer::new(json!({"pools": pools.iter().map(to_json).collect::<Vec<_>>()}), text))
}

async fn query(pool: String, system: &System) -> Result<Answer, CliError> {
    let info = query_pool(system, &pool).await?;
    Ok(Answer::new(to_json(&info), describe(&info)))
}

async fn query_pool(system: &System, pool: &str) -> Result<PoolInfo, CliError> {
    let what = format!("query pool {pool}");
    let request = PoolQueryRequest { pool: pool.to_owned() };
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).query(request.clone()).await).await?;
    reply.pool.ok_or_else(|| nameless(pool))
}

/// A pool's properties by the names of DAOS.
fn properties(pool: &PoolInfo) -> Vec<Property> {
    let mut all = vec![
        Property::new("label", "Pool label", pool.label.as_str()),
        Property::new("svc_list", "Pool service replica list", ranks(&pool.service_ranks)),
        Property::new("object_class", "Class of its containers' objects", pool.object_class.as_str()),
    ];
    let what = "Seconds until others get the places of an engine that is away";
    all.extend(pool.rebuild_delay_seconds.map(|seconds| Property::new("rebuild_delay", what, seconds)));
    all
}

/// Changes properties of a pool.
///
/// # Errors
/// When it does not exist, a value makes no sense, or the engines cannot be asked.
pub async fn set_properties(
    system: &System,
    request: PoolSetPropertiesRequest,
) -> Result<PoolInfo, CliError> {
    let what = format!("change properties of pool {}", request.pool);
    let reply = system
        .call(what, async |channel| PoolsClient::new(channel).set_properties(request.clone()).await)
        .await?;
    reply.pool.ok_or_else(|| nameless(&request.pool))
}

async fn resize(arguments: PoolResize, system: &System) -> Result<Answer, CliError> {
    let info = resize_pool(system, &arguments.pool, arguments.size).await?;
    Ok(Answer::new(to_json(&info), describe(&info)))
}

/// Changes a pool's size.
///
/// # Errors
/// When it does not exist, some target holds more or has no room, or the engines cannot be asked.
pub async fn resize_pool(system: &System, pool: &str, size: Size) -> Result<PoolInfo, CliError> {
    let what = format!("resize pool {pool} to {size}");
    let request = PoolResizeRequest { pool: pool.to_owned(), size_bytes: size.0 };
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).resize(request.clone()).await).await?;
    reply.pool.ok_or_else(|| nameless(pool))
}

async fn destroy(arguments: PoolDestroy, system: &System) -> Result<Answer, CliError> {
    let PoolDestroy { pool, force } = arguments;
    let request = PoolDestroyRequest { pool: pool.clone(), force };
    let what = format!("destroy pool {pool}");
    let was_there = was_there(query(pool.clone(), system).await, &what)?;
    let reply =
        system.call(what, async |channel| PoolsClient::new(channel).destroy(request.clone()).await).await?;
    if !reply.missing || was_there {
        return Ok(Answer::done(format!("Pool {pool} destroyed")));
    }
    let missing = format!("pool {pool} does not exist: nothing to destroy");
    if force { Ok(Answer::done(missing)) } else { Err(CliError::NotFound(missing)) }
}

/// Whether something was there before it is destroyed, as a query says: an answer to the destruction that was lost makes the call
/// repeat itself, and find that nothing is there any more. Engines that don't answer aren't asked for as long once more.
///
/// # Errors
/// When no engine answers.
pub fn was_there<T>(found: Result<T, CliError>, what: &str) -> Result<bool, CliError> {
    match found {
        Err(CliError::Unanswered { failure, .. }) => {
            Err(CliError::Unanswered { what: what.to_owned(), failure })
        }
        other => Ok(other.is_ok()),
    }
}

pub(super) fn nameless(pool: &str) -> CliError {
    CliError::NotFound(format!("the engines' answer does not describe pool {pool}"))
}

fn state_name(pool: &PoolInfo) -> &'static str {
    match pool.state() {
        PoolState::Ready => "Ready",
        PoolState::Degraded => "Degraded",
        PoolState::Destroying => "Destroying",
        PoolState::Unspecified => "Unknown",
    }
}

pub(super) fn ranks(list: &[u32]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn down_targets(pool: &PoolInfo) -> String {
    if pool.down_targets.is_empty() {
        return "none".to_owned();
    }
    let named = pool.down_targets.iter().map(|down| format!("target {} of rank {}", down.target, down.rank));
    let named: Vec<_> = named.collect();
    format!("{} (devices are faulty, their data is unavailable; see `weir system query`)", named.join(", "))
}

fn describe(pool: &PoolInfo) -> String {
    let unreachable = if pool.unreachable_ranks.is_empty() {
        "none".to_owned()
    } else {
        format!("{} (their data is unavailable until they are back)", ranks(&pool.unreachable_ranks))
    };
    let mut all = vec![
        ("Label", pool.label.clone()),
        ("UUID", pool.uuid.clone()),
        ("State", state_name(pool).to_owned()),
        ("Size", Size(pool.size_bytes).to_string()),
        ("Used", Size(pool.used_bytes).to_string()),
        ("Free", Size(pool.free_bytes).to_string()),
        ("Object class", pool.object_class.clone()),
        ("Tenant", pool.tenant.to_string()),
        ("Targets", pool.targets.to_string()),
        ("Ranks", ranks(&pool.ranks)),
        ("Unreachable ranks", unreachable),
        ("Targets out of service", down_targets(pool)),
        ("Service ranks", ranks(&pool.service_ranks)),
        ("Map version", pool.map_version.to_string()),
        ("Containers", pool.containers.to_string()),
    ];
    all.extend(redundancy::lines(pool));
    fields(&all)
}

/// A pool with the names that `dmg pool query --json` uses, and Weir's own.
#[must_use]
pub fn to_json(pool: &PoolInfo) -> Value {
    let engines = pool.ranks.len();
    let away = u32::try_from(pool.unreachable_ranks.len()).unwrap_or(u32::MAX);
    let per_engine = pool.targets.checked_div(u32::try_from(engines).unwrap_or(u32::MAX)).unwrap_or(0);
    let up_there = |rank: u32| !pool.unreachable_ranks.contains(&rank);
    let down = pool.down_targets.iter().filter(|down| up_there(down.rank)).count();
    let down = u32::try_from(down).unwrap_or(u32::MAX);
    let disabled = per_engine.saturating_mul(away).saturating_add(down);
    let faulty = pool.down_targets.iter().map(|down| json!({"rank": down.rank, "target": down.target}));
    json!({
        "uuid": pool.uuid,
        "label": pool.label,
        "tenant": pool.tenant,
        "state": state_name(pool),
        "total_targets": pool.targets,
        "active_targets": pool.targets.saturating_sub(disabled),
        "disabled_targets": disabled,
        "total_engines": engines,
        "version": pool.map_version,
        "svc_ldr": pool.service_ranks.first(),
        "svc_reps": pool.service_ranks,
        "enabled_ranks": pool.ranks,
        "tgt_ranks": pool.ranks,
        "unreachable_ranks": pool.unreachable_ranks,
        "down_targets": faulty.collect::<Vec<_>>(),
        "new_ranks": pool.new_ranks,
        "containers": pool.containers,
        "health": redundancy::to_json(pool),
        "object_class": pool.object_class,
        "tier_stats": [{"media_type": "nvme", "total": pool.size_bytes, "free": pool.free_bytes}],
        "tier_bytes": [pool.size_bytes],
        "size_bytes": pool.size_bytes,
        "used_bytes": pool.used_bytes,
        "free_bytes": pool.free_bytes,
    })
}
