//! The arguments of all three programs: their commands, put together from those that the rooms below define. Nothing imports
//! them but the crate's root, which parses them and performs the command.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::daos::{DaosHealth, DaosObject, DaosPool, DmgNetwork, DmgOptions, DmgPool, DmgSystem};
use crate::dev::DevCommand;
use crate::fabric::FabricCommand;
use crate::mount::{MountArguments, UmountArguments};
use crate::storage::container::ContainerCommand;
use crate::storage::file_system::FsCommand;
use crate::storage::kv::KvCommand;
use crate::storage::object::ObjectCommand;
use crate::storage::pool::PoolCommand;
use crate::storage::system::SystemCommand;
use crate::store::StoreCommand;

/// Longest time to wait for engines, in seconds: a week, which is for ever to whoever waits.
const TIMEOUT_MAX: u64 = 7 * 24 * 3600;

/// Whether these arguments ask for JSON, also when they can't be parsed.
pub fn ask_for_json(arguments: &[OsString]) -> bool {
    arguments.iter().skip(1).take_while(|argument| *argument != "--").any(|argument| {
        let text = argument.to_str().unwrap_or_default();
        let flags = text.strip_prefix('-').filter(|flags| flags.bytes().all(|flag| b"jv".contains(&flag)));
        text == "--json" || flags.is_some_and(|flags| flags.contains('j'))
    })
}

/// Arguments of every command.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// Attach file of the system.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help = "Attach file of the system [default: $WEIR_ATTACH, /etc/weir/client/client.json, ~/.weir-dev/client.json]"
    )]
    pub attach: Option<PathBuf>,
    /// Print JSON: {"response": …, "error": null or text, "status": 0 or a negative DER number}.
    #[arg(short = 'j', long, global = true)]
    pub json: bool,
    /// Print timings on standard error.
    #[arg(short = 'v', long, global = true)]
    pub verbose: bool,
    /// Seconds to wait for engines that do not answer.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MAX))]
    pub timeout: u64,
}

/// Weir storage clusters: engines, pools, containers, files and objects.
#[derive(Parser, Debug)]
#[command(name = "weir", version, propagate_version = true)]
pub struct Weir {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: WeirCommand,
}

/// Commands of `weir`.
#[derive(Subcommand, Debug)]
pub enum WeirCommand {
    /// The engines as a whole.
    System {
        #[command(subcommand)]
        command: SystemCommand,
    },
    /// Pools: space on the engines.
    Pool {
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Containers: file systems, or objects as a program lays them out.
    #[command(visible_alias = "cont")]
    Container {
        #[command(subcommand)]
        command: ContainerCommand,
    },
    /// Files of a POSIX container, without a mount.
    #[command(visible_alias = "filesystem")]
    Fs {
        #[command(subcommand)]
        command: FsCommand,
    },
    /// Key-value objects.
    Kv {
        #[command(subcommand)]
        command: KvCommand,
    },
    /// Objects of any type.
    Object {
        #[command(subcommand)]
        command: ObjectCommand,
    },
    /// The data path.
    Fabric {
        #[command(subcommand)]
        command: FabricCommand,
    },
    /// Mount a POSIX container.
    Mount(MountArguments),
    /// Unmount a container.
    #[command(visible_alias = "unmount")]
    Umount(UmountArguments),
    /// A target's file or device, offline.
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// The same engine without Kubernetes, on this machine.
    Dev {
        #[command(subcommand)]
        command: DevCommand,
    },
    /// Print a completion script.
    Completion {
        /// Shell.
        shell: Shell,
        /// Program that it is for.
        #[arg(long, value_enum, default_value_t)]
        program: Program,
    },
    /// Write the manual pages of weir, daos and dmg to a folder.
    Manual {
        /// Folder.
        folder: PathBuf,
    },
    /// Print the version.
    Version,
    /// Print every command as Markdown.
    #[command(hide = true)]
    Reference,
}

/// The part of `daos` that Weir serves.
#[derive(Parser, Debug)]
#[command(name = "daos", version, propagate_version = true)]
pub struct Daos {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: DaosCommand,
}

/// Commands of `daos`.
#[derive(Subcommand, Debug)]
pub enum DaosCommand {
    /// Pools.
    Pool {
        #[command(subcommand)]
        command: DaosPool,
    },
    /// Containers.
    #[command(visible_alias = "cont")]
    Container {
        #[command(subcommand)]
        command: ContainerCommand,
    },
    /// Files of a POSIX container.
    #[command(visible_alias = "fs")]
    Filesystem {
        #[command(subcommand)]
        command: FsCommand,
    },
    /// Key-value objects.
    Kv {
        #[command(subcommand)]
        command: KvCommand,
    },
    /// Objects.
    #[command(visible_alias = "obj")]
    Object {
        #[command(subcommand)]
        command: DaosObject,
    },
    /// Whether the system works.
    Health {
        #[command(subcommand)]
        command: DaosHealth,
    },
    /// The engines.
    System {
        #[command(subcommand)]
        command: SystemCommand,
    },
    /// Print the version.
    Version,
}

/// The part of `dmg` that Weir serves.
#[derive(Parser, Debug)]
#[command(name = "dmg", version, propagate_version = true)]
pub struct Dmg {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub options: DmgOptions,
    #[command(subcommand)]
    pub command: DmgCommand,
}

/// Commands of `dmg`.
#[derive(Subcommand, Debug)]
pub enum DmgCommand {
    /// Pools.
    Pool {
        #[command(subcommand)]
        command: DmgPool,
    },
    /// The engines.
    #[command(visible_alias = "sys")]
    System {
        #[command(subcommand)]
        command: DmgSystem,
    },
    /// The network.
    #[command(visible_alias = "net")]
    Network {
        #[command(subcommand)]
        command: DmgNetwork,
    },
    /// Print the version.
    Version,
}

/// A program of this command line.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Program {
    /// Weir's own.
    #[default]
    Weir,
    /// What users of DAOS know.
    Daos,
    /// What administrators of DAOS know.
    Dmg,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Weir, Self::Daos, Self::Dmg];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Daos => "daos",
            Self::Dmg => "dmg",
        }
    }

    /// Its arguments.
    #[must_use]
    pub fn command(self) -> clap::Command {
        match self {
            Self::Weir => Weir::command(),
            Self::Daos => Daos::command(),
            Self::Dmg => Dmg::command(),
        }
    }
}

/// Usage of every command as Markdown, from the definitions themselves.
#[must_use]
pub fn reference() -> String {
    let mut text = String::new();
    let mut weir = Weir::command();
    weir.build();
    describe(&mut text, &mut weir, "weir");
    text
}

fn describe(text: &mut String, command: &mut clap::Command, path: &str) {
    if command.get_subcommands().next().is_none() {
        let arguments: Vec<String> = command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set() && !argument.is_global_set())
            .filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version"))
            .map(|argument| format!("{argument}"))
            .collect();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {about} |", format!("{path} {}", arguments.join(" ")).trim());
        return;
    }
    for subcommand in
        command.get_subcommands_mut().filter(|found| !found.is_hide_set() && found.get_name() != "help")
    {
        let name = format!("{path} {}", subcommand.get_name());
        describe(text, subcommand, &name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_hold_together() {
        Weir::command().debug_assert();
        Daos::command().debug_assert();
        Dmg::command().debug_assert();
    }

    #[test]
    fn commands_that_scripts_for_daos_use_are_understood() {
        for line in [
            "dmg pool create --size 1G tank",
            "dmg pool create --size=1G tank -j",
            "dmg -j -i pool create --user=root --group=root --scm-size=1048576 --nvme-size=1073741824 --ranks=0,1 --nsvc=1 tank",
            "dmg pool create --size 1G --properties rd_fac:1 tank",
            "dmg -j -o /etc/daos/daos_control.yml pool list --no-query",
            "dmg pool destroy tank --force --recursive",
            "dmg pool query-targets tank --rank=1 --target-idx=0,1",
            "dmg pool get-prop tank label",
            "dmg system list-pools",
            "dmg network scan",
            "dmg pool list",
            "dmg pool query tank --json",
            "dmg pool destroy tank --force",
            "dmg system query",
        ] {
            Dmg::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "daos container create tank home --type POSIX",
            "daos cont create tank home --type=POSIX --oclass=S1 --chunk-size=1M --attrs a:b",
            "daos cont list tank",
            "daos cont query tank home",
            "daos cont destroy tank home --force",
            "daos cont get-attr tank home name",
            "daos cont set-attr tank home name:value",
            "daos pool query tank",
            "daos pool list-containers tank",
            "daos pool query-targets tank --rank 0",
            "daos cont get-prop tank home --properties=label,layout_type",
            "daos cont list-objects tank home",
            "daos fs query tank home",
            "daos fs get-attr tank home --dfs-path=/a",
            "daos fs chmod tank home --dfs-path=/a --mode=0640",
            "daos fs scan tank home",
            "daos fs copy --src /tmp/a --dst daos://tank/home/",
            "daos object query tank home 1.2",
            "daos health check",
            "daos --json system query",
        ] {
            Daos::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in
            ["dmg pool create tank", "dmg pool create --size 1X tank", "dmg pool create --nvme-size 1G tank"]
        {
            assert!(Dmg::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn odd_arguments_are_refused_with_what_is_wrong_with_them() {
        for (line, said) in [
            ("weir pool create --size 1G ", "an empty name"),
            ("weir pool destroy ", "an empty name"),
            ("weir container destroy tank ", "an empty name"),
            ("weir container list ", "an empty name"),
            ("weir fs ls tank ", "an empty name"),
            ("weir kv get tank home 1 ", "an empty name"),
            ("weir pool create --size -1 tank", "\"-1\" is not a size"),
            ("weir pool create --size -1GiB tank", "\"-1GiB\" is not a size"),
            ("weir pool create --size 1e30 tank", "\"1e30\" is not a size"),
            ("weir container create tank home --quota -5", "\"-5\" is not a size"),
            ("weir container create tank home --owner -1:0", "\"-1:0\" is not uid:gid"),
            ("weir container create tank home --mode 0", "\"0\" is not an octal mode from 1 to 7777"),
            ("weir container set-quota tank home -1", "\"-1\" is not a size"),
            ("weir container destroy-snap tank home --epoch -1", "invalid value '-1'"),
            ("weir fabric bench --provider ", "an empty name"),
            ("weir fabric bench --provider tcp,", "an empty name"),
            ("weir fabric bench --in-flight 33", "33 is not in 1..=32"),
            ("weir dev up --provider ", "an empty name"),
            ("weir dev up --probe ", "an empty name"),
            ("weir --timeout 0 pool list", "0 is not in 1..=604800"),
        ] {
            let refused = Weir::try_parse_from(line.split(' ')).expect_err(line);
            assert!(refused.to_string().contains(said), "{line}: {refused}");
        }
        Weir::try_parse_from("weir container set-quota tank home --json 1G".split(' '))
            .expect("a flag between");
    }

    #[test]
    fn the_reference_lists_every_command() {
        let page = include_str!("../../../docs/reference/cli.md");
        for line in reference().lines() {
            assert!(
                page.contains(line),
                "docs/reference/cli.md lacks this line; `weir` has changed:\n{line}"
            );
        }
    }
}
