//! `weir store` on files of targets: how it is run, and what it says.

use std::path::Path;
use std::process::{Command, Output};

/// A folder that ends with the test.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("weir-store").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// The command, to be run.
pub fn command(arguments: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("store").args(arguments).args(paths);
    command
}

/// Runs it.
pub fn weir(arguments: &[&str], paths: &[&Path]) -> Output {
    command(arguments, paths).output().expect("weir runs")
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("it ends by itself")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}
