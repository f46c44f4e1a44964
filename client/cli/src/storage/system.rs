//! `system` commands.

use clap::{Args, Subcommand};
use serde_json::json;
use weir_management::v1::system_client::SystemClient;
use weir_management::v1::tenants_client::TenantsClient;
use weir_management::v1::{
    AttachRequest, ClearDeviceRequest, EngineHealth, EngineState, MemberState, SystemQueryRequest,
    SystemQueryResponse, TenantAdmitRequest, TenantEngine, TenantLimits, TenantPoolUse,
    TenantQueryLimitsRequest, TenantQueryRequest, TenantRevokeRequest, TenantSetLimitsRequest,
};

use crate::connection::System;
use crate::error::CliError;
use crate::output::{Answer, fields, table};
use crate::values::Size;

/// The engines as a whole.
#[derive(Subcommand, Debug, Clone)]
pub enum SystemCommand {
    /// Show the state of every engine.
    #[command(visible_alias = "q")]
    Query,
    /// Show how clients reach the data path.
    Attach,
    /// Say that a target's faulty device was repaired or replaced, or that what a lost target held is given up; the engine uses it from its next start on.
    ClearDevice(TargetArguments),
    /// Show which engines serve a tenant.
    QueryTenant(TenantArguments),
    /// Have all engines turn a tenant's clients away: nothing that they begin from then on succeeds.
    RevokeTenant(TenantArguments),
    /// Have all engines serve a tenant again that was turned away.
    AdmitTenant(TenantArguments),
    /// Limit what the pools of a tenant may use together; what isn't named stays as it is, and 0 means no limit.
    SetTenantLimits(TenantLimitArguments),
    /// Show what the pools of a tenant may use together, and use.
    QueryTenantLimits(TenantArguments),
}

/// What a tenant may use.
#[derive(Args, Debug, Clone)]
pub struct TenantLimitArguments {
    /// Number of the tenant.
    pub tenant: u64,
    /// Bytes that are held, with copies, e.g. 10TiB.
    #[arg(long)]
    pub bytes: Option<Size>,
    /// Requests on objects a second.
    #[arg(long)]
    pub operations: Option<u64>,
    /// Bytes written and read a second, e.g. 2GB.
    #[arg(long)]
    pub bandwidth: Option<Size>,
}

/// Names a tenant.
#[derive(Args, Debug, Clone)]
pub struct TenantArguments {
    /// Number of the tenant.
    pub tenant: u64,
}

/// Names a target.
#[derive(Args, Debug, Clone)]
pub struct TargetArguments {
    /// Rank of the target's engine.
    pub rank: u32,
    /// Number of the target in its engine.
    pub target: u32,
}

/// Performs a system command.
///
/// # Errors
/// When the engines cannot be asked.
pub async fn run(command: SystemCommand, system: &System) -> Result<Answer, CliError> {
    match command {
        SystemCommand::Query => query(system).await,
        SystemCommand::Attach => attach(system).await,
        SystemCommand::ClearDevice(arguments) => clear_device(arguments, system).await,
        SystemCommand::QueryTenant(TenantArguments { tenant }) => {
            let request = TenantQueryRequest { tenant };
            let call = system.call(format!("query tenant {tenant}"), async |channel| {
                TenantsClient::new(channel).query(request).await
            });
            Ok(tenant_answer(tenant, &call.await?.engines))
        }
        SystemCommand::RevokeTenant(TenantArguments { tenant }) => {
            let request = TenantRevokeRequest { tenant };
            let call = system.call(format!("revoke tenant {tenant}"), async |channel| {
                TenantsClient::new(channel).revoke(request).await
            });
            Ok(tenant_answer(tenant, &call.await?.engines))
        }
        SystemCommand::AdmitTenant(TenantArguments { tenant }) => {
            let request = TenantAdmitRequest { tenant };
            let call = system.call(format!("admit tenant {tenant}"), async |channel| {
                TenantsClient::new(channel).admit(request).await
            });
            Ok(tenant_answer(tenant, &call.await?.engines))
        }
        SystemCommand::SetTenantLimits(arguments) => set_limits(&arguments, system).await,
        SystemCommand::QueryTenantLimits(TenantArguments { tenant }) => {
            let (limits, pools) = query_limits(tenant, system).await?;
            Ok(limits_answer(tenant, limits, &pools))
        }
    }
}

async fn query_limits(tenant: u64, system: &System) -> Result<(TenantLimits, Vec<TenantPoolUse>), CliError> {
    let request = TenantQueryLimitsRequest { tenant };
    let call = system.call(format!("query the limits of tenant {tenant}"), async |channel| {
        TenantsClient::new(channel).query_limits(request).await
    });
    let answer = call.await?;
    Ok((answer.limits.ok_or_else(|| limitless(tenant))?, answer.pools))
}

/// An answer that has to say what a tenant may use, and doesn't.
fn limitless(tenant: u64) -> CliError {
    CliError::NotFound(format!("the engines' answer does not say what tenant {tenant} may use"))
}

async fn set_limits(arguments: &TenantLimitArguments, system: &System) -> Result<Answer, CliError> {
    let tenant = arguments.tenant;
    let (known, _) = query_limits(tenant, system).await?;
    let limits = TenantLimits {
        bytes: arguments.bytes.map_or(known.bytes, |size| size.0),
        operations_per_second: arguments.operations.unwrap_or(known.operations_per_second),
        bytes_per_second: arguments.bandwidth.map_or(known.bytes_per_second, |size| size.0),
    };
    let request = TenantSetLimitsRequest { tenant, limits: Some(limits) };
    let call = system.call(format!("limit tenant {tenant}"), async |channel| {
        TenantsClient::new(channel).set_limits(request).await
    });
    let answer = call.await?;
    Ok(limits_answer(tenant, answer.limits.ok_or_else(|| limitless(tenant))?, &answer.pools))
}

/// What a tenant may use, and its pools.
fn limits_answer(tenant: u64, limits: TenantLimits, pools: &[TenantPoolUse]) -> Answer {
    let used = pools.iter().fold(0_u64, |sum, pool| sum.saturating_add(pool.used_bytes));
    let or_none = |limit: u64, shown: String| if limit == 0 { "none".to_owned() } else { shown };
    let TenantLimits { bytes, operations_per_second, bytes_per_second } = limits;
    let head = fields(&[
        ("Tenant", tenant.to_string()),
        ("Bytes", or_none(bytes, Size(bytes).to_string())),
        ("Used", Size(used).to_string()),
        ("Requests/s", or_none(operations_per_second, operations_per_second.to_string())),
        ("Bytes/s", or_none(bytes_per_second, Size(bytes_per_second).to_string())),
    ]);
    let mut rows = vec![["Pool", "Used", "Share", "Message"].map(String::from).to_vec()];
    rows.extend(pools.iter().map(|pool| {
        let used = if pool.answered { Size(pool.used_bytes).to_string() } else { "unknown".to_owned() };
        let share = pool.share_bytes.map_or_else(|| "-".to_owned(), |share| Size(share).to_string());
        vec![pool.label.clone(), used, share, pool.message.clone()]
    }));
    let all: Vec<_> = pools
        .iter()
        .map(|pool| {
            json!({
                "uuid": pool.uuid,
                "label": pool.label,
                "answered": pool.answered,
                "used_bytes": pool.used_bytes,
                "share_bytes": pool.share_bytes,
                "info": pool.message,
            })
        })
        .collect();
    let response = json!({
        "tenant": tenant,
        "limits": {
            "bytes": bytes,
            "operations_per_second": operations_per_second,
            "bytes_per_second": bytes_per_second,
        },
        "used_bytes": used,
        "pools": all,
    });
    let text = if pools.is_empty() { head } else { format!("{head}\n{}", table(&rows)) };
    Answer::new(response, text)
}

/// What engines say of a tenant.
fn tenant_answer(tenant: u64, engines: &[TenantEngine]) -> Answer {
    let state = |engine: &TenantEngine| match (engine.answered, engine.revoked) {
        (false, _) => "unknown",
        (true, true) => "turned away",
        (true, false) => "served",
    };
    let mut rows = vec![["Rank", "Tenant", "Message"].map(String::from).to_vec()];
    rows.extend(
        engines
            .iter()
            .map(|engine| vec![engine.rank.to_string(), state(engine).to_owned(), engine.message.clone()]),
    );
    let all: Vec<_> = engines
        .iter()
        .map(|engine| json!({"rank": engine.rank, "tenant": state(engine), "info": engine.message}))
        .collect();
    Answer::new(json!({"tenant": tenant, "engines": all}), table(&rows))
}

async fn clear_device(arguments: TargetArguments, system: &System) -> Result<Answer, CliError> {
    let TargetArguments { rank, target } = arguments;
    let name = format!("target {target} of rank {rank}");
    let request = ClearDeviceRequest { rank, target };
    let call = system.call(format!("clear the device of {name}"), async |channel| {
        SystemClient::new(channel).clear_device(request).await
    });
    let was_faulty = call.await?.was_faulty;
    let text = if was_faulty {
        format!(
            "The device of {name} counts as good again: restart the engine of rank {rank} to have it used\n"
        )
    } else {
        format!("The device of {name} was not marked as faulty\n")
    };
    Ok(Answer::new(json!({"rank": rank, "target": target, "was_faulty": was_faulty}), text))
}

/// The state of every engine as one of them knows it.
///
/// # Errors
/// When none can be asked.
pub async fn query_system(system: &System) -> Result<SystemQueryResponse, CliError> {
    let name = format!("query system {}", system.attach.system);
    system.call(name, async |channel| SystemClient::new(channel).query(SystemQueryRequest {}).await).await
}

async fn query(system: &System) -> Result<Answer, CliError> {
    let reply = query_system(system).await?;
    let mut rows = vec![
        ["Rank", "State", "Membership", "Version", "Targets", "Capacity", "Free", "Message"]
            .map(String::from)
            .to_vec(),
    ];
    for engine in &reply.engines {
        rows.push(vec![
            engine.rank.to_string(),
            state_name(engine).to_owned(),
            format!("{} for {} s", membership_name(engine), engine.membership_seconds),
            engine.version.clone(),
            engine.targets.to_string(),
            Size(engine.capacity_bytes).to_string(),
            Size(engine.free_bytes).to_string(),
            engine.message.clone(),
        ]);
    }
    let members: Vec<_> = reply
        .engines
        .iter()
        .map(|engine| {
            json!({
                "rank": engine.rank,
                // The states of DAOS: a member that takes part, and one that does not answer.
                "state": if engine.health() == EngineHealth::Up { "joined" } else { "unresponsive" },
                "membership": membership_name(engine),
                "membership_seconds": engine.membership_seconds,
                "incarnation": engine.incarnation,
                "info": engine.message,
                "version": engine.version,
                "targets": engine.targets,
                "capacity_bytes": engine.capacity_bytes,
                "free_bytes": engine.free_bytes,
                "started_unix_seconds": engine.started_unix_seconds,
            })
        })
        .collect();
    let response = json!({
        "system": reply.system,
        "viewed_by_rank": reply.viewed_by_rank,
        "list_ranks": reply.list_ranks,
        "members": members,
    });
    let keepers: Vec<String> = reply.list_ranks.iter().map(u32::to_string).collect();
    let keepers = if keepers.is_empty() { "no rank says so".to_owned() } else { keepers.join(", ") };
    Ok(Answer::new(response, format!("{}\nList of pools kept by: {keepers}\n", table(&rows))))
}

fn state_name(engine: &EngineState) -> &'static str {
    match engine.health() {
        EngineHealth::Up => "Up",
        EngineHealth::Down => "Down",
        EngineHealth::Unspecified => "Unknown",
    }
}

/// What the membership protocol says of an engine.
fn membership_name(engine: &EngineState) -> &'static str {
    match engine.membership() {
        MemberState::Alive => "alive",
        MemberState::Suspect => "suspect",
        MemberState::Dead => "dead",
        MemberState::Unknown | MemberState::Unspecified => "unknown",
    }
}

async fn attach(system: &System) -> Result<Answer, CliError> {
    let reply = system
        .call("attach to the system", async |channel| {
            SystemClient::new(channel).attach(AttachRequest {}).await
        })
        .await?;
    let mut rows = vec![["Rank", "Host", "Fabric ports", "Management"].map(String::from).to_vec()];
    let mut engines = Vec::new();
    for engine in &reply.engines {
        let last = engine.fabric_port + engine.targets.saturating_sub(1);
        rows.push(vec![
            engine.rank.to_string(),
            engine.host.clone(),
            format!("{}-{last}", engine.fabric_port),
            engine.management.clone(),
        ]);
        engines.push(json!({
            "rank": engine.rank,
            "host": engine.host,
            "fabric_port": engine.fabric_port,
            "targets": engine.targets,
            "management": engine.management,
        }));
    }
    let text = format!(
        "System {}, provider {}, protocol {} to {}\n{}",
        reply.system,
        reply.provider,
        reply.protocol_min,
        reply.protocol_max,
        table(&rows)
    );
    let response = json!({
        "system": reply.system,
        "provider": reply.provider,
        "protocol_min": reply.protocol_min,
        "protocol_max": reply.protocol_max,
        "engines": engines,
    });
    Ok(Answer::new(response, text))
}
