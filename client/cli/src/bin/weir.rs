//! `weir`, and under the names `daos` and `dmg` the part of their commands that Weir serves.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_cli::run(std::env::args_os())
}
