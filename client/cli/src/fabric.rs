//! `fabric` commands.

use std::path::Path;
use std::time::Instant;

use clap::Subcommand;
use serde_json::json;
use weir_client::{Attach, Context};

use crate::error::CliError;
use crate::management;
use crate::output::{Answer, Output, fields};

/// The data path.
#[derive(Subcommand, Debug, Clone)]
pub enum FabricCommand {
    /// Open a client's endpoint and say what it is.
    Info,
}

/// Performs a fabric command.
///
/// # Errors
/// When the attach file cannot be used or the endpoint cannot be opened.
pub fn run(command: &FabricCommand, named: Option<&Path>, output: Output) -> Result<Answer, CliError> {
    let FabricCommand::Info = command;
    let path = management::find_attach(named)?;
    let attach = Attach::load(Some(&path)).map_err(weir_client::Error::from)?;
    let started = Instant::now();
    let context = Context::real(&attach)?;
    output.timing("client init", started);
    let opened = started.elapsed().as_micros();
    drop(context);
    let targets: u32 = attach.engines.iter().map(|engine| engine.targets).sum();
    let text = fields(&[
        ("System", attach.system.clone()),
        ("Provider", attach.provider.clone()),
        ("Engines", attach.engines.len().to_string()),
        ("Targets", targets.to_string()),
        ("Attach file", path.display().to_string()),
        ("Endpoint opened in", format!("{opened} us")),
    ]);
    let response = json!({
        "system": attach.system,
        "provider": attach.provider,
        "engines": attach.engines.len(),
        "targets": targets,
        "attach_file": path,
        "open_microseconds": u64::try_from(opened).unwrap_or(u64::MAX),
    });
    Ok(Answer::new(response, text))
}
