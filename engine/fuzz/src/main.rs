//! `weir-fuzz`: runs the fuzzers for a while, each in a process of its own, and keeps what fails.

use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_fuzz::driver::{CURRENT, HANG_CODE, Options, Outcome, fuzz, keep, run_input};
use weir_fuzz::targets::{self, Target};

/// Most address space of a fuzzer: several times what the largest sound input takes. A decoder that believes a length
/// runs into it.
const MEMORY_MAX: u64 = 8 << 30;

/// Runs the fuzzers.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// Fuzzers to run; all of them when none is named.
    names: Vec<String>,
    /// Seconds for all of them together.
    #[arg(long, env = "FUZZ_SECONDS", default_value_t = 300)]
    seconds: u64,
    /// What inputs are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs that reach something new are kept from run to run.
    #[arg(long, default_value = "target/fuzz/corpus")]
    corpus: PathBuf,
    /// Where inputs that fail are kept.
    #[arg(long, default_value = "target/fuzz/failures")]
    failures: PathBuf,
    /// Run this one input again instead, in the fuzzer that is named.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Be the process of one fuzzer.
    #[arg(long, hide = true)]
    alone: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen: Vec<&Target> = targets::ALL
        .iter()
        .filter(|target| arguments.names.is_empty() || arguments.names.iter().any(|name| name == target.name))
        .collect();
    if chosen.is_empty() || arguments.names.iter().any(|name| targets::find(name).is_none()) {
        let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
        eprintln!("weir-fuzz: the fuzzers are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let done = match (&arguments.replay, chosen.as_slice()) {
        (Some(path), [target]) => replay(target, path),
        (Some(_), _) => Err("--replay needs the name of one fuzzer".to_owned()),
        (None, [target]) if arguments.alone => alone(target, &arguments),
        (None, chosen) => all(chosen, &arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("weir-fuzz: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn replay(target: &Target, path: &std::path::Path) -> Result<(), String> {
    let input = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    run_input(target, &input).map_err(|message| format!("{} fails: {message}", target.name))?;
    println!("{}: {} holds", target.name, path.display());
    Ok(())
}

/// One fuzzer in this process.
fn alone(target: &Target, arguments: &Arguments) -> Result<(), String> {
    let limit = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(MEMORY_MAX), maximum: limit.maximum })
        .map_err(|error| format!("limit memory: {error}"))?;
    let options = Options {
        time: Duration::from_secs(arguments.seconds),
        runs: u64::MAX,
        seed: arguments.seed,
        corpus: Some(arguments.corpus.join(target.name)),
        failures: Some(arguments.failures.join(target.name)),
    };
    let outcome = fuzz(target, &options).map_err(|error| format!("{}: {error}", target.name))?;
    let Outcome { runs, kept, reached: (reached, total), failure } = outcome;
    println!("{:<12} {runs:>9} runs {kept:>6} new inputs {reached:>7} of {total} places", target.name);
    match failure {
        None => Ok(()),
        Some(failure) => Err(format!(
            "{} fails: {}\nthe input is kept as {}; run it again with: weir-fuzz {} --replay FILE, and put it into engine/fuzz/regressions/{} with the repair",
            target.name,
            failure.message,
            failure.path.unwrap_or_default().display(),
            target.name,
            target.name
        )),
    }
}

/// Each fuzzer in a process of its own, which may die of what it finds.
fn all(chosen: &[&Target], arguments: &Arguments) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let seconds = (arguments.seconds / chosen.len() as u64).max(1);
    let mut failed = Vec::new();
    for target in chosen {
        let mut command = Command::new(&own);
        command.arg(target.name).arg("--alone").args(["--seconds", &seconds.to_string()]);
        command.args(["--seed", &arguments.seed.to_string()]);
        command.arg("--corpus").arg(&arguments.corpus).arg("--failures").arg(&arguments.failures);
        let status = command.status().map_err(|error| format!("start {}: {error}", own.display()))?;
        if !status.success() {
            bury(target, status, arguments);
            failed.push(target.name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("these fuzzers found something: {}", failed.join(", ")))
    }
}

/// Keeps the input that a process died of.
fn bury(target: &Target, status: ExitStatus, arguments: &Arguments) {
    let folder = arguments.failures.join(target.name);
    let current = folder.join(CURRENT);
    let was_killed = status.code().is_none() || status.code() == Some(HANG_CODE);
    if let (true, Ok(input)) = (was_killed, std::fs::read(&current)) {
        let kept = keep(&folder, "death", &input);
        eprintln!("{}: the process ended with {status}; its last input: {kept:?}", target.name);
    }
}
