//! The storage engine of a Weir system.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use weir_daemon::config::{self, Config, ConfigError, Flags, LogFormat};
use weir_daemon::engine;

/// Exit code for a configuration that can't be used, as shells use it for wrong usage.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let config = match Config::load(&flags).and_then(start_log) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("weir-engine: {error}");
            return ExitCode::from(USAGE);
        }
    };
    match engine::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("weir-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start_log(config: Config) -> Result<Config, ConfigError> {
    // A word that is no level would be taken for a part of the program, and everything else be left out of the log.
    let is_known = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    let known = config.log.split(',').all(is_known).then(|| EnvFilter::try_new(&config.log).ok()).flatten();
    let usage = "use error, warn, info, debug or trace, or directives as in `info,weir_rpc=debug`";
    let filter = known.ok_or_else(|| config::invalid("log", &config.log, usage))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(config)
}
