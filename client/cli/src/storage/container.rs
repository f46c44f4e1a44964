//! `container` commands: life and quota over management, attributes and snapshots over the fabric.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_bytes::ByteBuf;
use serde_json::{Value, json};
use weir_client::{Container, Context, Epoch, ObjectClass, Rights, served_factors};
use weir_management::v1::containers_client::ContainersClient;
use weir_management::v1::{
    ContainerCreateRequest, ContainerDestroyRequest, ContainerInfo, ContainerListRequest,
    ContainerQueryRequest, ContainerQueryResponse, ContainerSetQuotaRequest, ContainerType,
};

use super::objects::{self, ContainerObjects};
use super::pool::was_there;
use super::property::{ContainerPropertyNames, Property};
use crate::connection::{System, session};
use crate::error::CliError;
use crate::output::{Answer, Output, fields, lines, table};
use crate::values::{self, Size};

/// Containers.
#[derive(Subcommand, Debug, Clone)]
pub enum ContainerCommand {
    /// Create a container in a pool.
    #[command(visible_alias = "c")]
    Create(Box<ContainerCreate>),
    /// List the containers of a pool.
    #[command(visible_aliases = ["ls", "l"])]
    List {
        /// Pool, by label or UUID.
        #[arg(value_parser = values::name)]
        pool: String,
    },
    /// Show a container.
    #[command(visible_alias = "q")]
    Query(ContainerName),
    /// Show who has a container open: the node, where the client has said so, and for how long it was not heard of.
    Handles(ContainerName),
    /// Destroy a container; its space comes back in the background.
    #[command(visible_alias = "d")]
    Destroy(ContainerDestroy),
    /// Change what a container may hold.
    SetQuota(ContainerQuota),
    /// List the names of a container's attributes.
    ListAttr(ContainerName),
    /// Show attributes; all of them when none is named.
    GetAttr(AttributeNames),
    /// Set attributes.
    SetAttr(AttributeValues),
    /// Remove attributes.
    DelAttr(AttributeNames),
    /// Take a snapshot.
    CreateSnap(ContainerName),
    /// List snapshots, oldest first.
    ListSnap(ContainerName),
    /// Remove a snapshot.
    DestroySnap(SnapshotName),
    /// Show properties of a container; all of them when none is named.
    GetProp(ContainerPropertyNames),
    /// List the objects of a container.
    #[command(visible_alias = "list-obj")]
    ListObjects(ContainerObjects),
}

/// Names a container.
#[derive(Args, Debug, Clone)]
pub struct ContainerName {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Container, by label or UUID.
    #[arg(value_parser = values::name)]
    pub container: String,
}

/// What a container holds.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A file system.
    #[value(alias = "POSIX")]
    Posix,
    /// Objects as the program lays them out.
    #[value(aliases = ["OBJECT", "unknown"])]
    Object,
}

/// A container to be made.
#[derive(Args, Debug, Clone)]
pub struct ContainerCreate {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Label of the container.
    #[arg(value_parser = values::name)]
    pub label: String,
    /// What it holds.
    #[arg(short, long = "type", value_enum, ignore_case = true, default_value = "posix")]
    pub kind: Type,
    /// Bytes it may hold, at least 1MiB; as much as the pool has when absent.
    #[arg(long, allow_hyphen_values = true)]
    pub quota: Option<Size>,
    /// Object class; the pool's when absent.
    #[arg(short = 'o', long, alias = "oclass", default_value = "")]
    pub class: String,
    /// Engines that may be lost at once without losing data, instead of an object class; as for the pool when absent.
    #[arg(long, alias = "rd-fac", conflicts_with = "class", value_parser = parse_factor)]
    pub redundancy_factor: Option<ObjectClass>,
    /// Bytes of a file in one dkey.
    #[arg(short = 'z', long, allow_hyphen_values = true)]
    pub chunk_size: Option<Size>,
    /// Attributes, as name=value (or name:value); may be given several times.
    #[arg(long = "attr", alias = "attrs", value_delimiter = ',', value_parser = parse_attribute)]
    pub attributes: Vec<(String, String)>,
    /// Owner of the root directory, as uid:gid.
    #[arg(long, value_parser = parse_owner, allow_hyphen_values = true)]
    pub owner: Option<(u32, u32)>,
    /// Mode of the root directory in octal.
    #[arg(long, value_parser = parse_mode, default_value = "0755")]
    pub mode: u32,
}

/// A container to be destroyed.
#[derive(Args, Debug, Clone)]
pub struct ContainerDestroy {
    #[command(flatten)]
    name: ContainerName,
    /// Destroy it although programs have it open; that it does not exist is no failure then.
    #[arg(short, long)]
    pub force: bool,
}

/// A container's new quota.
#[derive(Args, Debug, Clone)]
pub struct ContainerQuota {
    #[command(flatten)]
    name: ContainerName,
    /// Bytes it may hold, at least 1MiB; 0 means as much as the pool has.
    #[arg(allow_negative_numbers = true)]
    pub quota: Size,
}

/// Some attributes of a container.
#[derive(Args, Debug, Clone)]
pub struct AttributeNames {
    #[command(flatten)]
    name: ContainerName,
    /// Names of attributes.
    #[arg(value_parser = values::name)]
    pub attributes: Vec<String>,
}

/// Attributes to set.
#[derive(Args, Debug, Clone)]
pub struct AttributeValues {
    #[command(flatten)]
    name: ContainerName,
    /// Attributes, as name=value or name:value[,name:value...].
    #[arg(required = true, value_parser = parse_attributes)]
    pub attributes: Vec<Pairs>,
}

/// Attributes of one argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pairs(Vec<(String, String)>);

impl AttributeValues {
    fn pairs(&self) -> Vec<(String, String)> {
        self.attributes.iter().flat_map(|pairs| pairs.0.clone()).collect()
    }
}

/// Names a snapshot.
#[derive(Args, Debug, Clone)]
pub struct SnapshotName {
    #[command(flatten)]
    name: ContainerName,
    /// Epoch of the snapshot, as list-snap shows it.
    #[arg(long, alias = "epc", allow_negative_numbers = true)]
    pub epoch: u64,
}

/// The characters that end a name: Weir's and DAOS's. The first one counts, so that a value may have the other.
const SEPARATORS: [char; 2] = ['=', ':'];

fn parse_attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once(SEPARATORS) {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("\"{text}\" is not name=value or name:value")),
    }
}

/// One attribute as name=value, whatever the value has; or as many as there are in DAOS's grammar, name:value[,name:value...].
fn parse_attributes(text: &str) -> Result<Pairs, String> {
    let is_of_daos = text.find(SEPARATORS).is_some_and(|at| text[at..].starts_with(':'));
    if !is_of_daos {
        return parse_attribute(text).map(|pair| Pairs(vec![pair]));
    }
    let pairs = text.split(',').map(|pair| match pair.split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!(
            "\"{pair}\" of \"{text}\" is not name:value; write name=value where a value has a comma"
        )),
    });
    pairs.collect::<Result<_, _>>().map(Pairs)
}

/// Refuses attributes of which one would be lost.
fn check_distinct(attributes: &[(String, String)]) -> Result<(), CliError> {
    let mut seen = BTreeMap::new();
    for (name, value) in attributes {
        if let Some(before) = seen.insert(name, value) {
            return Err(CliError::Usage(format!(
                "attribute \"{name}\" is given twice, as \"{before}\" and as \"{value}\": it has one value, so give it once"
            )));
        }
    }
    Ok(())
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| format!("\"{text}\" is not uid:gid in numbers"))
}

/// The class that survives so many losses.
fn parse_factor(text: &str) -> Result<ObjectClass, String> {
    let factor: u32 = text.parse().map_err(|_| format!("\"{text}\" is no number of engines"))?;
    ObjectClass::for_redundancy(factor)
        .filter(|class| class.ensure_supported().is_ok())
        .ok_or_else(|| format!("this release serves redundancy factors up to {}", served_factors().end()))
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| (1..=0o7777).contains(mode))
        .ok_or_else(|| format!("\"{text}\" is not an octal mode from 1 to 7777"))
}

/// Performs a container command. `attach` is needed for what goes over the fabric.
///
/// # Errors
/// When the engines refuse it or cannot be asked.
pub async fn run(command: ContainerCommand, system: &System) -> Result<Answer, CliError> {
    match command {
        ContainerCommand::Create(arguments) => create(*arguments, system).await,
        ContainerCommand::List { pool } => list(pool, system).await,
        ContainerCommand::Query(name) => query(name, system).await,
        ContainerCommand::Handles(name) => handles(name, system).await,
        ContainerCommand::Destroy(arguments) => destroy(arguments, system).await,
        ContainerCommand::SetQuota(arguments) => set_quota(arguments, system).await,
        ContainerCommand::GetProp(arguments) => {
            let info = query_container(system, &arguments.name.pool, &arguments.name.container).await?;
            arguments.answer(&properties(&info))
        }
        _ => Err(CliError::Usage("this command goes over the fabric".into())),
    }
}

/// Whether a command goes over the fabric, and so to [`run_fabric`].
#[must_use]
pub fn is_fabric(command: &ContainerCommand) -> bool {
    matches!(
        command,
        ContainerCommand::ListAttr(_)
            | ContainerCommand::GetAttr(_)
            | ContainerCommand::SetAttr(_)
            | ContainerCommand::DelAttr(_)
            | ContainerCommand::CreateSnap(_)
            | ContainerCommand::ListSnap(_)
            | ContainerCommand::DestroySnap(_)
            | ContainerCommand::ListObjects(_)
    )
}

async fn create(arguments: ContainerCreate, system: &System) -> Result<Answer, CliError> {
    check_distinct(&arguments.attributes)?;
    let (uid, gid) = arguments.owner.unwrap_or((0, 0));
    let request = ContainerCreateRequest {
        uuid: String::new(),
        pool: arguments.pool,
        label: arguments.label,
        r#type: match arguments.kind {
            Type::Posix => ContainerType::Posix.into(),
            Type::Object => ContainerType::Object.into(),
        },
        quota_bytes: arguments.quota.map_or(0, |quota| quota.0),
        object_class: arguments.redundancy_factor.map_or(arguments.class, |class| class.to_string()),
        chunk_size_bytes: arguments.chunk_size.map_or(0, |size| size.0),
        attributes: arguments.attributes.into_iter().collect(),
        uid,
        gid,
        mode: arguments.mode,
    };
    let (info, existed) = create_container(system, request).await?;
    Ok(Answer::made("Container", &info.label, existed, to_json(&info), &describe(&info)))
}

/// Creates a container, or finds the equal one that is there; whether it was there.
///
/// # Errors
/// When the engines refuse it or cannot be asked.
pub async fn create_container(
    system: &System,
    request: ContainerCreateRequest,
) -> Result<(ContainerInfo, bool), CliError> {
    let what = format!("create container {} in pool {}", request.label, request.pool);
    let reply = system
        .call(what, async |channel| ContainersClient::new(channel).create(request.clone()).await)
        .await?;
    reply.container.map(|container| (container, reply.existed)).ok_or_else(|| nameless(&request.label))
}

async fn list(pool: String, system: &System) -> Result<Answer, CliError> {
    let what = format!("list containers of pool {pool}");
    let request = ContainerListRequest { pool };
    let reply =
        system.call(what, async |channel| ContainersClient::new(channel).list(request.clone()).await).await?;
    let mut rows = vec![["Container", "Type", "Quota", "Used", "UUID"].map(String::from).to_vec()];
    for container in &reply.containers {
        rows.push(vec![
            container.label.clone(),
            type_name(container).to_owned(),
            quota_text(container),
            Size(container.used_bytes).to_string(),
            container.uuid.clone(),
        ]);
    }
    let text = if reply.containers.is_empty() { "no containers\n".to_owned() } else { table(&rows) };
    Ok(Answer::new(reply.containers.iter().map(to_json).collect(), text))
}

async fn query(name: ContainerName, system: &System) -> Result<Answer, CliError> {
    let info = query_container(system, &name.pool, &name.container).await?;
    Ok(Answer::new(to_json(&info), describe(&info)))
}

async fn handles(name: ContainerName, system: &System) -> Result<Answer, CliError> {
    let reply = ask_for(system, &name.pool, &name.container).await?;
    let mut rows = vec![["Handle", "Node", "Not heard of for", "Counts"].map(String::from).to_vec()];
    for open in &reply.handles {
        rows.push(vec![
            format!("{:016x}", open.handle),
            if open.node.is_empty() { "-".to_owned() } else { open.node.clone() },
            format!("{} s", open.silent_seconds),
            if open.counts { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let json = reply.handles.iter().map(|open| {
        serde_json::json!({
            "handle": format!("{:016x}", open.handle),
            "node": open.node,
            "silent_seconds": open.silent_seconds,
            "counts": open.counts,
        })
    });
    let text = if reply.handles.is_empty() { "nobody has it open\n".to_owned() } else { table(&rows) };
    Ok(Answer::new(json.collect(), text))
}

/// Describes a container.
///
/// # Errors
/// When it does not exist or the engines cannot be asked.
pub async fn query_container(
    system: &System,
    pool: &str,
    container: &str,
) -> Result<ContainerInfo, CliError> {
    ask_for(system, pool, container).await?.container.ok_or_else(|| nameless(container))
}

async fn ask_for(system: &System, pool: &str, container: &str) -> Result<ContainerQueryResponse, CliError> {
    let what = format!("query container {container} of pool {pool}");
    let request = ContainerQueryRequest { pool: pool.to_owned(), container: container.to_owned() };
    system.call(what, async |channel| ContainersClient::new(channel).query(request.clone()).await).await
}

async fn destroy(arguments: ContainerDestroy, system: &System) -> Result<Answer, CliError> {
    let ContainerName { pool, container } = arguments.name;
    let what = format!("destroy container {container} of pool {pool}");
    let was_there = was_there(query_container(system, &pool, &container).await, &what)?;
    let request = ContainerDestroyRequest {
        pool: pool.clone(),
        container: container.clone(),
        force: arguments.force,
        gone_handles: Vec::new(),
    };
    let reply = system
        .call(what, async |channel| ContainersClient::new(channel).destroy(request.clone()).await)
        .await?;
    if !reply.missing || was_there {
        return Ok(Answer::done(format!("Container {container} destroyed")));
    }
    let missing = format!("container {container} of pool {pool} does not exist: nothing to destroy");
    if arguments.force { Ok(Answer::done(missing)) } else { Err(CliError::NotFound(missing)) }
}

async fn set_quota(arguments: ContainerQuota, system: &System) -> Result<Answer, CliError> {
    let ContainerName { pool, container } = arguments.name;
    let info = change_quota(system, &pool, &container, arguments.quota).await?;
    Ok(Answer::new(to_json(&info), describe(&info)))
}

/// Changes a container's quota.
///
/// # Errors
/// When it does not exist or holds more, or the engines cannot be asked.
pub async fn change_quota(
    system: &System,
    pool: &str,
    container: &str,
    quota: Size,
) -> Result<ContainerInfo, CliError> {
    let what = format!("set quota of container {container} of pool {pool} to {quota}");
    let (pool, container) = (pool.to_owned(), container.to_owned());
    let request = ContainerSetQuotaRequest { pool, container, quota_bytes: quota.0 };
    let reply = system
        .call(what, async |channel| ContainersClient::new(channel).set_quota(request.clone()).await)
        .await?;
    reply.container.ok_or_else(|| nameless(&request.container))
}

fn nameless(container: &str) -> CliError {
    CliError::NotFound(format!("the engines' answer does not describe container {container}"))
}

fn type_name(container: &ContainerInfo) -> &'static str {
    match container.r#type() {
        ContainerType::Posix => "POSIX",
        ContainerType::Object => "OBJECT",
        ContainerType::Unspecified => "unknown",
    }
}

fn quota_text(container: &ContainerInfo) -> String {
    if container.quota_bytes == 0 { "none".into() } else { Size(container.quota_bytes).to_string() }
}

fn describe(container: &ContainerInfo) -> String {
    let text = fields(&[
        ("Label", container.label.clone()),
        ("UUID", container.uuid.clone()),
        ("Pool", format!("{} ({})", container.pool_label, container.pool_uuid)),
        ("Type", type_name(container).to_owned()),
        ("Quota", quota_text(container)),
        ("Used", Size(container.used_bytes).to_string()),
        ("Object class", container.object_class.clone()),
        ("Chunk size", Size(container.chunk_size_bytes).to_string()),
        ("Open handles", container.open_handles.to_string()),
    ]);
    let attributes: BTreeMap<_, _> = container.attributes.iter().collect();
    text + &lines(attributes.into_iter().map(|(name, value)| format!("Attribute {name} = {value}")))
}

/// A container's properties by the names of DAOS.
fn properties(container: &ContainerInfo) -> [Property; 4] {
    [
        Property::new("label", "Label", container.label.as_str()),
        Property::new("layout_type", "Layout type", type_name(container)),
        Property::new("object_class", "Class of its objects", container.object_class.as_str()),
        Property::new("chunk_size", "Bytes of a file in one dkey", container.chunk_size_bytes),
    ]
}

/// A container with the names that `daos container query --json` uses, and Weir's own.
#[must_use]
pub fn to_json(container: &ContainerInfo) -> Value {
    json!({
        "uuid": container.uuid,
        "label": container.label,
        "pool_uuid": container.pool_uuid,
        "pool_label": container.pool_label,
        "container_uuid": container.uuid,
        "container_label": container.label,
        "container_type": type_name(container),
        "num_handles": container.open_handles,
        "object_class": container.object_class,
        "chunk_size": container.chunk_size_bytes,
        "quota_bytes": container.quota_bytes,
        "used_bytes": container.used_bytes,
        "attributes": container.attributes.iter().collect::<BTreeMap<_, _>>(),
        "created_unix_seconds": container.created_unix_seconds,
    })
}

/// Performs a container command that goes over the fabric.
///
/// # Errors
/// When the engines refuse it or cannot be reached.
pub fn run_fabric(
    command: ContainerCommand,
    attach: &Path,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    let (name, rights) = match &command {
        ContainerCommand::ListAttr(name) | ContainerCommand::ListSnap(name) => (name.clone(), Rights::READ),
        ContainerCommand::GetAttr(arguments) => (arguments.name.clone(), Rights::READ),
        ContainerCommand::SetAttr(arguments) => {
            check_distinct(&arguments.pairs())?;
            (arguments.name.clone(), read_write())
        }
        ContainerCommand::DelAttr(arguments) => (arguments.name.clone(), read_write()),
        ContainerCommand::CreateSnap(name) => (name.clone(), read_write()),
        ContainerCommand::DestroySnap(arguments) => (arguments.name.clone(), read_write()),
        ContainerCommand::ListObjects(arguments) => (arguments.name.clone(), Rights::READ),
        _ => return Err(CliError::Usage("this command goes over management".into())),
    };
    let names = (name.pool.as_str(), name.container.as_str());
    session::with_container(names, rights, attach, patience, output, async |session| match command {
        ContainerCommand::ListObjects(arguments) => objects::list(&arguments, session).await,
        command => perform(command, session.context, session.container).await,
    })
}

fn read_write() -> Rights {
    Rights::READ.union(Rights::WRITE)
}

async fn perform(
    command: ContainerCommand,
    context: &Context,
    container: &Container,
) -> Result<Answer, CliError> {
    match command {
        ContainerCommand::ListAttr(_) => {
            let found = container.attributes(context, Vec::new()).await?;
            let names: Vec<&String> = found.keys().collect();
            Ok(Answer::new(json!(names), lines(&names)))
        }
        ContainerCommand::GetAttr(arguments) => {
            get_attributes(&arguments.attributes, context, container).await
        }
        ContainerCommand::SetAttr(arguments) => {
            let changes: Vec<_> = arguments
                .pairs()
                .into_iter()
                .map(|(name, value)| (name, Some(ByteBuf::from(value))))
                .collect();
            let count = changes.len();
            container.set_attributes(context, changes).await?;
            Ok(Answer::done(format!("{count} attributes set")))
        }
        ContainerCommand::DelAttr(arguments) => {
            // Without a name all would be asked for.
            let names = arguments.attributes;
            if names.is_empty() {
                return Err(CliError::Usage("name the attributes to be removed".into()));
            }
            let there = container.attributes(context, names.clone()).await?.len();
            container.set_attributes(context, names.into_iter().map(|name| (name, None)).collect()).await?;
            Ok(Answer::done(format!("{there} attributes removed")))
        }
        ContainerCommand::CreateSnap(_) => {
            let epoch = container.create_snapshot(context).await?;
            Ok(Answer::new(json!({"epoch": epoch.0}), format!("{}\n", epoch.0)))
        }
        ContainerCommand::DestroySnap(arguments) => {
            container.destroy_snapshot(context, Epoch(arguments.epoch)).await?;
            Ok(Answer::done(format!("snapshot {} removed", arguments.epoch)))
        }
        _ => {
            let epochs: Vec<u64> =
                container.snapshots(context).await?.into_iter().map(|epoch| epoch.0).collect();
            Ok(Answer::new(json!(epochs), lines(&epochs)))
        }
    }
}

async fn get_attributes(
    names: &[String],
    context: &Context,
    container: &Container,
) -> Result<Answer, CliError> {
    let found = container.attributes(context, names.to_vec()).await?;
    if let Some(absent) = names.iter().find(|name| !found.contains_key(*name)) {
        let (label, pool) = (&container.properties().label, container.pool().label());
        return Err(CliError::NotFound(format!(
            "container {label} of pool {pool} has no attribute \"{absent}\""
        )));
    }
    let shown: BTreeMap<_, _> = found
        .iter()
        .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned()))
        .collect();
    let text = lines(shown.iter().map(|(name, value)| format!("{name}={value}")));
    Ok(Answer::new(json!(shown), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_people_are_checked_before_the_engines_see_them() {
        assert_eq!(parse_attribute("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_attribute("a:b"), Ok(("a".into(), "b".into())));
        assert_eq!(parse_attribute("opts:size=10"), Ok(("opts".into(), "size=10".into())));
        let of = |pairs: &[(&str, &str)]| {
            Ok(Pairs(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()))
        };
        assert_eq!(parse_attributes("a:1,b:2"), of(&[("a", "1"), ("b", "2")]));
        assert_eq!(parse_attributes("opts:size=10"), of(&[("opts", "size=10")]));
        assert_eq!(parse_attributes("opts:size=10,x:y:z"), of(&[("opts", "size=10"), ("x", "y:z")]));
        assert_eq!(parse_attributes("a=1,b=2"), of(&[("a", "1,b=2")]));
        assert_eq!(parse_attributes("url=http://x"), of(&[("url", "http://x")]));
        for bad in ["a:1,b", "a:1,:2", ":1", "=1", "a"] {
            assert!(parse_attributes(bad).is_err(), "{bad}");
        }
        assert!(parse_attribute("=b").is_err() && parse_attribute("ab").is_err());
        let pairs = |names: [&str; 3]| names.map(|name| (name.to_owned(), name.to_owned() + "1"));
        check_distinct(&pairs(["a", "b", "c"])).expect("three attributes");
        let refused = check_distinct(&pairs(["a", "b", "a"])).expect_err("two values");
        assert!(refused.to_string().contains("attribute \"a\" is given twice"), "{refused}");
        assert_eq!(refused.exit_code(), crate::error::exit::USAGE);
        assert_eq!(parse_owner("1000:100"), Ok((1000, 100)));
        assert!(parse_owner("root:root").is_err());
        assert_eq!(parse_mode("0775"), Ok(0o775));
        assert!(parse_mode("9").is_err() && parse_mode("10000").is_err() && parse_mode("0").is_err());
    }
}
