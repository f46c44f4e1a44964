//! The commands of `daos` and `dmg` where names or arguments differ from those of `weir`. Each is a view: it becomes a command of the
//! rooms below, which the crate's root performs. `docs/reference/daos-commands.md` says of each command of DAOS whether it is here.

use clap::{Args, Subcommand};

use crate::fabric::{BenchArguments, FabricCommand};
use crate::storage::container::ContainerCommand;
use crate::storage::object::{ObjectCommand, ObjectLayout};
use crate::storage::pool::{PoolCommand, PoolCreate, PoolDestroy, PoolName};
use crate::storage::property::PoolProperties;
use crate::storage::system::SystemCommand;
use crate::storage::targets::PoolTargets;
use crate::values::{self, Size};

/// A command of the rooms below.
#[derive(Debug)]
pub enum View {
    /// Of a pool.
    Pool(PoolCommand),
    /// Of a container.
    Container(ContainerCommand),
    /// Of the engines.
    System(SystemCommand),
    /// Of the data path.
    Fabric(FabricCommand),
}

/// Pools, as `daos` names their commands.
#[derive(Subcommand, Debug, Clone)]
pub enum DaosPool {
    /// List pools.
    #[command(visible_aliases = ["ls", "l"])]
    List,
    /// Show a pool's state and space.
    #[command(visible_alias = "q")]
    Query(PoolName),
    /// Show state and space of a pool's targets.
    QueryTargets(PoolTargets),
    /// List the containers of a pool.
    #[command(visible_aliases = ["list-cont", "ls-cont"])]
    ListContainers(PoolName),
    /// Show properties of a pool; all of them when none is named.
    GetProp(PoolProperties),
}

impl From<DaosPool> for View {
    fn from(command: DaosPool) -> Self {
        match command {
            DaosPool::List => Self::Pool(PoolCommand::List),
            DaosPool::Query(name) => Self::Pool(PoolCommand::Query(name)),
            DaosPool::QueryTargets(targets) => Self::Pool(PoolCommand::QueryTargets(targets)),
            DaosPool::GetProp(properties) => Self::Pool(PoolCommand::GetProp(properties)),
            DaosPool::ListContainers(PoolName { pool }) => Self::Container(ContainerCommand::List { pool }),
        }
    }
}

/// Objects, as `daos` names their commands.
#[derive(Subcommand, Debug, Clone)]
pub enum DaosObject {
    /// Show which targets hold an object.
    #[command(visible_alias = "q")]
    Query(ObjectLayout),
}

impl From<DaosObject> for ObjectCommand {
    fn from(DaosObject::Query(of): DaosObject) -> Self {
        Self::Layout(of)
    }
}

/// Whether a system works.
#[derive(Subcommand, Debug, Clone)]
pub enum DaosHealth {
    /// Show the state of every engine.
    #[command(visible_alias = "chk")]
    Check,
    /// Measure the data path to each engine.
    NetTest(BenchArguments),
}

impl From<DaosHealth> for View {
    fn from(command: DaosHealth) -> Self {
        match command {
            DaosHealth::Check => Self::System(SystemCommand::Query),
            DaosHealth::NetTest(arguments) => Self::Fabric(FabricCommand::Bench(arguments)),
        }
    }
}

/// Options that every command of `dmg` takes and that have no effect: the attach file says where engines are and how they are
/// reached.
#[derive(Args, Debug, Clone)]
pub struct DmgOptions {
    /// Accepted for scripts; connections are always authenticated.
    #[arg(short, long, global = true)]
    pub insecure: bool,
    /// Accepted for scripts; the attach file says where engines are.
    #[arg(short = 'o', long, global = true, value_name = "FILE")]
    pub config_path: Option<String>,
    /// Accepted for scripts; the attach file says where engines are.
    #[arg(short = 'l', long, global = true, value_name = "HOSTS")]
    pub host_list: Option<String>,
}

/// Pools, as `dmg` names their commands.
#[derive(Subcommand, Debug, Clone)]
pub enum DmgPool {
    /// Create a pool.
    #[command(visible_alias = "c")]
    Create(DmgPoolCreate),
    /// List pools.
    #[command(visible_aliases = ["ls", "l"])]
    List(DmgPoolList),
    /// Show a pool's state and space.
    #[command(visible_alias = "q")]
    Query(PoolName),
    /// Show state and space of a pool's targets.
    #[command(visible_alias = "qt")]
    QueryTargets(PoolTargets),
    /// Show properties of a pool; all of them when none is named.
    GetProp(PoolProperties),
    /// Destroy a pool and its data.
    #[command(visible_alias = "d")]
    Destroy(DmgPoolDestroy),
}

impl From<DmgPool> for View {
    fn from(command: DmgPool) -> Self {
        Self::Pool(match command {
            DmgPool::Create(arguments) => PoolCommand::Create(arguments.into()),
            DmgPool::List(_) => PoolCommand::List,
            DmgPool::Query(name) => PoolCommand::Query(name),
            DmgPool::QueryTargets(targets) => PoolCommand::QueryTargets(targets),
            DmgPool::GetProp(properties) => PoolCommand::GetProp(properties),
            DmgPool::Destroy(DmgPoolDestroy { pool, force, recursive }) => {
                PoolCommand::Destroy(PoolDestroy { pool, force: force || recursive })
            }
        })
    }
}

/// How pools are listed.
#[derive(Args, Debug, Clone)]
pub struct DmgPoolList {
    /// Accepted for scripts; a list costs one question.
    #[arg(short, long)]
    pub no_query: bool,
}

/// A pool to be destroyed.
#[derive(Args, Debug, Clone)]
pub struct DmgPoolDestroy {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Destroy it although it has containers; that it does not exist is no failure then.
    #[arg(short, long)]
    pub force: bool,
    /// Destroy its containers too.
    #[arg(short, long)]
    pub recursive: bool,
}

/// A pool to be made, by the options of `dmg`.
#[derive(Args, Debug, Clone)]
pub struct DmgPoolCreate {
    /// Label of the pool.
    #[arg(value_parser = values::name)]
    pub label: String,
    /// Size over all engines, e.g. 10GiB or 10G.
    #[arg(short = 'z', long, allow_hyphen_values = true, required_unless_present_any = ["nvme_size", "scm_size"],
        conflicts_with_all = ["nvme_size", "scm_size"])]
    pub size: Option<Size>,
    /// Size on each engine's drives.
    #[arg(short = 'n', long, allow_hyphen_values = true)]
    pub nvme_size: Option<Size>,
    /// Size on each engine's memory, where metadata is: it is added to that on drives.
    #[arg(short = 's', long, allow_hyphen_values = true)]
    pub scm_size: Option<Size>,
    /// Ranks that hold the pool, e.g. 0,1,2; every engine when absent.
    #[arg(short, long, value_delimiter = ',', required_unless_present = "size")]
    pub ranks: Vec<u32>,
    /// Properties, e.g. `rd_fac:1` (engines that may be lost at once) or `label:tank`.
    #[arg(short = 'P', long, value_delimiter = ',', value_parser = parse_property)]
    pub properties: Vec<PoolProperty>,
    /// Accepted for scripts; who may use a pool is its tenant's.
    #[arg(short, long)]
    pub user: Option<String>,
    /// Accepted for scripts; who may use a pool is its tenant's.
    #[arg(short, long)]
    pub group: Option<String>,
    /// Accepted for scripts; the number of replicas of its service follows from the redundancy factor.
    #[arg(long)]
    pub nsvc: Option<u32>,
}

/// A property of a pool to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolProperty {
    /// Engines that may be lost at once.
    Redundancy(u32),
    /// Its label.
    Label(String),
}

fn parse_property(text: &str) -> Result<PoolProperty, String> {
    match text.split_once(':') {
        Some(("rd_fac" | "rf", value)) => value
            .parse()
            .map(PoolProperty::Redundancy)
            .map_err(|_| format!("\"{value}\" is not a number of engines")),
        Some(("label", value)) => values::name(value).map(PoolProperty::Label),
        _ => Err(format!("\"{text}\" is no property that a pool can be made with: give rd_fac:NUMBER")),
    }
}

impl From<DmgPoolCreate> for PoolCreate {
    fn from(arguments: DmgPoolCreate) -> Self {
        let bytes = |size: Option<Size>| size.map_or(0, |size| size.0);
        // The sizes by media are those of one engine, whose number is required with them.
        let engines = arguments.ranks.len() as u64;
        let each = bytes(arguments.nvme_size).saturating_add(bytes(arguments.scm_size));
        let size = arguments.size.unwrap_or(Size(each.saturating_mul(engines)));
        let mut created = Self {
            label: arguments.label,
            size,
            ranks: arguments.ranks,
            class: String::new(),
            redundancy_factor: 0,
            tenant: 0,
        };
        for property in arguments.properties {
            match property {
                PoolProperty::Redundancy(factor) => created.redundancy_factor = factor,
                PoolProperty::Label(label) => created.label = label,
            }
        }
        created
    }
}

/// The engines, as `dmg` names their commands.
#[derive(Subcommand, Debug, Clone)]
pub enum DmgSystem {
    /// Show the state of every engine.
    #[command(visible_alias = "q")]
    Query,
    /// List pools.
    #[command(visible_alias = "l")]
    ListPools,
}

impl From<DmgSystem> for View {
    fn from(command: DmgSystem) -> Self {
        match command {
            DmgSystem::Query => Self::System(SystemCommand::Query),
            DmgSystem::ListPools => Self::Pool(PoolCommand::List),
        }
    }
}

/// The network.
#[derive(Subcommand, Debug, Clone)]
pub enum DmgNetwork {
    /// Say what the fabric providers of this machine can do.
    Scan,
}

impl From<DmgNetwork> for View {
    fn from(DmgNetwork::Scan: DmgNetwork) -> Self {
        Self::Fabric(FabricCommand::Info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_by_media_are_those_of_each_engine() {
        let created = PoolCreate::from(DmgPoolCreate {
            label: "tank".into(),
            size: None,
            nvme_size: Some(Size(1 << 30)),
            scm_size: Some(Size(1 << 20)),
            ranks: vec![0, 2],
            properties: vec![PoolProperty::Redundancy(1)],
            user: None,
            group: None,
            nsvc: None,
        });
        assert_eq!((created.size, created.redundancy_factor), (Size(2 * ((1 << 30) + (1 << 20))), 1));
        assert_eq!(parse_property("rd_fac:1"), Ok(PoolProperty::Redundancy(1)));
        for wrong in ["rd_fac:x", "reclaim:lazy", "label:", "rd_fac"] {
            assert!(parse_property(wrong).is_err(), "{wrong}");
        }
    }
}
