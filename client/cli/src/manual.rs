//! Manual pages, from the definitions of the commands themselves.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::arguments::Program;
use crate::error::CliError;
use crate::output::{Answer, lines};

/// Writes a page for each program and each of its commands.
///
/// # Errors
/// When a page can't be written.
pub fn write(folder: &Path) -> Result<Answer, CliError> {
    let wrong = |error| CliError::io(folder.display().to_string(), error);
    fs::create_dir_all(folder).map_err(wrong)?;
    for program in Program::ALL {
        let mut command = program.command().disable_help_subcommand(true);
        command.build();
        clap_mangen::generate_to(command, folder).map_err(wrong)?;
    }
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let name = entry.map_err(wrong)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".1") {
            pages.push(name);
        }
    }
    pages.sort();
    Ok(Answer::new(json!(pages), lines(&pages)))
}
