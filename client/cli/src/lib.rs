//! The command line: `weir`, and under the names `daos` and `dmg` the part of their commands that Weir serves.

mod arguments;
mod attach;
mod connection;
mod daos;
mod dev;
mod error;
mod fabric;
mod local;
mod manual;
mod mount;
mod output;
mod secret;
mod storage;
mod store;
mod values;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;

use arguments::{Common, Daos, DaosCommand, Dmg, DmgCommand, Weir, WeirCommand};
use connection::{System, find_attach, runtime};
use daos::View;
use error::CliError;
use output::{Answer, Output};
use storage::{container, file_system, kv, object, pool, system, targets};

/// Runs the command line that these arguments are, the first of which names the program.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let (common, command) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, &arguments),
    };
    let output = Output { json: common.json, verbose: common.verbose };
    let started = Instant::now();
    let outcome = perform(command, &common, output);
    output.timing("in all", started);
    ExitCode::from(output.print(&outcome))
}

/// What the arguments of the program that the first of them names ask for.
fn parse(arguments: &[OsString]) -> Result<(Common, WeirCommand), clap::Error> {
    let program = arguments.first().map_or(Path::new(""), Path::new);
    Ok(match program.file_name().and_then(|name| name.to_str()) {
        Some("daos") => {
            let Daos { common, command } = Daos::try_parse_from(arguments)?;
            (common, from_daos(command))
        }
        Some("dmg") => {
            let Dmg { common, command, options: _ } = Dmg::try_parse_from(arguments)?;
            (common, from_dmg(command))
        }
        _ => {
            let Weir { common, command } = Weir::try_parse_from(arguments)?;
            (common, command)
        }
    })
}

/// Says what is wrong with the arguments, in the envelope if they ask for it; or prints the help that they ask for.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if !error.use_stderr() || !arguments::ask_for_json(arguments) {
        error.exit();
    }
    let text = error.to_string();
    let reason = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let output = Output { json: true, verbose: false };
    ExitCode::from(output.print(&Err(CliError::Usage(reason.to_owned()))))
}

fn from_daos(command: DaosCommand) -> WeirCommand {
    match command {
        DaosCommand::Pool { command } => from_view(command.into()),
        DaosCommand::Container { command } => WeirCommand::Container { command },
        DaosCommand::Filesystem { command } => WeirCommand::Fs { command },
        DaosCommand::Kv { command } => WeirCommand::Kv { command },
        DaosCommand::Object { command } => WeirCommand::Object { command: command.into() },
        DaosCommand::Health { command } => from_view(command.into()),
        DaosCommand::System { command } => WeirCommand::System { command },
        DaosCommand::Version => WeirCommand::Version,
    }
}

fn from_dmg(command: DmgCommand) -> WeirCommand {
    match command {
        DmgCommand::Pool { command } => from_view(command.into()),
        DmgCommand::System { command } => from_view(command.into()),
        DmgCommand::Network { command } => from_view(command.into()),
        DmgCommand::Version => WeirCommand::Version,
    }
}

fn from_view(view: View) -> WeirCommand {
    match view {
        View::Pool(command) => WeirCommand::Pool { command },
        View::Container(command) => WeirCommand::Container { command },
        View::System(command) => WeirCommand::System { command },
        View::Fabric(command) => WeirCommand::Fabric { command },
    }
}

fn perform(command: WeirCommand, common: &Common, output: Output) -> Result<Answer, CliError> {
    let named = common.attach.as_deref();
    let patience = Duration::from_secs(common.timeout);
    match command {
        WeirCommand::System { command } => {
            manage(named, common, async |system| system::run(command, system).await)
        }
        WeirCommand::Pool { command } if targets::is_fabric(&command) => {
            targets::run_fabric(command, &find_attach(named)?, patience, output)
        }
        WeirCommand::Pool { command } => {
            manage(named, common, async |system| pool::run(command, system).await)
        }
        WeirCommand::Container { command } if container::is_fabric(&command) => {
            container::run_fabric(command, &find_attach(named)?, patience, output)
        }
        WeirCommand::Container { command } => {
            manage(named, common, async |system| container::run(command, system).await)
        }
        WeirCommand::Object { command } => object::run(command, &find_attach(named)?, patience, output),
        WeirCommand::Kv { command } => kv::run(command, &find_attach(named)?, patience, output),
        WeirCommand::Fs { command } => file_system::run(command, &find_attach(named)?, patience, output),
        WeirCommand::Fabric { command } => fabric::run(&command, named, patience, output),
        WeirCommand::Mount(arguments) => mount::mount(&arguments, named, patience, output),
        WeirCommand::Umount(arguments) => mount::unmount(&arguments),
        WeirCommand::Store { command } => store::run(command, output),
        WeirCommand::Dev { command } => dev::run(command, output),
        WeirCommand::Manual { folder } => manual::write(&folder),
        WeirCommand::Completion { shell, program } => {
            // Written to standard output by clap itself, it would panic where the reader closes the pipe early.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut program.command(), program.name(), &mut script);
            let script = String::from_utf8_lossy(&script);
            Ok(Answer::new(json!({"script": script}), script))
        }
        WeirCommand::Reference => Ok(Answer::new(serde_json::Value::Null, arguments::reference())),
        WeirCommand::Version => {
            let version = env!("CARGO_PKG_VERSION");
            Ok(Answer::new(json!({"version": version}), format!("weir {version}\n")))
        }
    }
}

/// Performs a command over management.
fn manage(
    named: Option<&Path>,
    common: &Common,
    work: impl AsyncFnOnce(&System) -> Result<Answer, CliError>,
) -> Result<Answer, CliError> {
    let path = find_attach(named)?;
    runtime()?.block_on(async {
        let system = System::open(&path, Duration::from_secs(common.timeout))?;
        work(&system).await
    })
}
