//! `weir-bench`: measures Weir beside named references in the same run, prints a table and writes
//! `target/bench/results.json`.
//!
//! A bare number says more about the machine than about the program, so that each row carries a reference measured
//! by the same code in the same run, and the ratio to it.

mod client;
mod counted;
mod crowd;
mod drawing;
mod fabric;
mod files;
mod instructions;
mod membership;
mod pairs;
mod pin;
mod receive;
mod references;
mod registration;
mod report;
mod restart;
mod store;
mod system;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::report::{BenchError, Report};
use crate::system::System;

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Group {
    /// The RPC layer beside the bare fabric.
    Fabric,
    /// Standard beside multi-receive, with client processes on this machine.
    Receive,
    /// Standard beside multi-receive, with up to 53,248 clients in the simulator.
    ReceiveSimulated,
    /// Eager requests beside a rendezvous, with a receiver that is ready and one that is not, in the simulator.
    NotReadySimulated,
    /// What registering memory takes on this machine.
    Registration,
    /// Registration methods, with up to 53,248 clients in the simulator.
    RegistrationSimulated,
    /// Ten thousand clients against one target, in the simulator.
    CrowdSimulated,
    /// Membership of 1,024 engines that lose messages, in the simulator.
    MembershipSimulated,
    /// A target's store beside raw io_uring and beside other storage libraries.
    Store,
    /// The C client beside bare requests.
    Client,
    /// Programs that pass a mount, beside DFS and beside the mount.
    Interception,
    /// Objects with two copies beside objects with one, and what the loss of an engine costs.
    Redundancy,
    /// Files through a mount beside the local file system.
    Files,
    /// Start, restart with data, connect, memory at rest.
    Life,
}

/// Measures Weir beside references.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// Groups to run; all of them when none is named.
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Where the engines' data, the mounts and the local reference files go.
    #[arg(long, default_value = "target/bench/scratch")]
    scratch: PathBuf,
    /// Directory of the binaries to measure.
    #[arg(long, default_value = "target/release")]
    binaries: PathBuf,
    /// The program that measures other storage libraries; without it they are left out.
    #[arg(long, default_value = "target/references/release/weir-bench-references")]
    references: PathBuf,
    /// The program that is a client in C, linked with the library to measure.
    #[arg(long, default_value = "target/bench/client/operations")]
    operations: PathBuf,
    /// Where the results go.
    #[arg(long, default_value = "target/bench/results.json")]
    output: PathBuf,
    /// Files made in the small-file rows.
    #[arg(long, default_value_t = 2000)]
    small_files: u32,
    /// Providers of the fabric rows: those of this build that need no special hardware, unless others are named.
    #[arg(long, value_delimiter = ',', default_values = weir_fabric::LOOPBACK)]
    providers: Vec<String>,
    /// Parts of the fabric group to measure: small, bulk, flood, mercury, threads; all of them when none is named.
    #[arg(long, value_parser = ["small", "bulk", "flood", "mercury", "threads"])]
    fabric_part: Vec<String>,
    /// Leave out the rows that count instructions.
    #[arg(long)]
    without_instructions: bool,
    /// Serve as the other side of the fabric rows.
    #[arg(long, hide = true)]
    serve_fabric: Option<String>,
    /// Be a part of the flood of the fabric rows.
    #[arg(long, hide = true)]
    flood_fabric: Option<String>,
    /// Make requests to itself, for counting what they cost.
    #[arg(long, hide = true)]
    make_requests: Option<String>,
    /// Parts of the store group to measure: rates, large, latency, memory, keys, backlog, snapshots, counts; all of them when
    /// none is named.
    #[arg(long, value_parser = ["rates", "large", "latency", "memory", "keys", "backlog", "snapshots", "counts"])]
    store_part: Vec<String>,
    /// Run a load on a store in memory, for counting what it costs.
    #[arg(long, hide = true)]
    store_operations: Option<String>,
    /// Make requests to itself on several threads.
    #[arg(long, hide = true)]
    talk_to_self: Option<String>,
    /// Serve as the other side of the receive rows.
    #[arg(long, hide = true)]
    serve_receive: Option<String>,
    /// Be a client of the receive rows.
    #[arg(long, hide = true)]
    receive_client: Option<String>,
    /// MiB written and read in the sequential rows.
    #[arg(long, default_value_t = 512)]
    sequential_mib: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does what this process was started for by another one of the same program, if it was.
fn play(arguments: &Arguments) -> Option<Result<(), BenchError>> {
    type Role = fn(&str) -> Result<(), BenchError>;
    let roles: [(&Option<String>, Role); 7] = [
        (&arguments.serve_fabric, fabric::serve),
        (&arguments.flood_fabric, fabric::flood),
        (&arguments.make_requests, instructions::make_requests),
        (&arguments.store_operations, store::count),
        (&arguments.talk_to_self, fabric::talk),
        (&arguments.serve_receive, receive::serve),
        (&arguments.receive_client, receive::client),
    ];
    roles.into_iter().find_map(|(argument, role)| argument.as_deref().map(role))
}

fn run(arguments: &Arguments) -> Result<(), BenchError> {
    let wanted = |group| arguments.groups.is_empty() || arguments.groups.contains(&group);
    if let Some(done) = play(arguments) {
        return done;
    }
    let mut report = Report::load(&arguments.output)?;
    if wanted(Group::Fabric) {
        fabric::measure(&mut report, &arguments.providers, &arguments.fabric_part)?;
        if !arguments.without_instructions {
            instructions::measure(&mut report, &arguments.providers);
        }
        counted::measure(&mut report, &arguments.providers)?;
        report.save(&arguments.output)?;
    }
    let folder = arguments.output.parent().unwrap_or(std::path::Path::new("."));
    if wanted(Group::Receive) {
        receive::measure_real(&mut report, folder)?;
        report.save(&arguments.output)?;
    }
    if wanted(Group::ReceiveSimulated) {
        receive::measure_simulated(&mut report, folder)?;
        report.save(&arguments.output)?;
    }
    if wanted(Group::NotReadySimulated) {
        receive::measure_not_ready(&mut report, folder)?;
        report.save(&arguments.output)?;
    }
    if wanted(Group::Registration) {
        registration::measure_real(&mut report)?;
        report.save(&arguments.output)?;
    }
    if wanted(Group::RegistrationSimulated) {
        registration::measure_simulated(&mut report, folder)?;
        report.save(&arguments.output)?;
    }
    if wanted(Group::CrowdSimulated) {
        crowd::measure(&mut report);
        report.save(&arguments.output)?;
    }
    if wanted(Group::MembershipSimulated) {
        membership::measure(&mut report)?;
        report.save(&arguments.output)?;
    }
    if wanted(Group::Store) {
        std::fs::create_dir_all(&arguments.scratch)
            .map_err(BenchError::file("create", &arguments.scratch))?;
        store::measure(&arguments.scratch, &arguments.references, &arguments.store_part, &mut report)?;
        report.save(&arguments.output)?;
    }
    clients(arguments, wanted, &mut report)?;
    if !wanted(Group::Files) && !wanted(Group::Life) {
        report.print();
        return Ok(());
    }
    let system = System::start(&arguments.binaries, &arguments.scratch, &mut report)?;
    if wanted(Group::Files) {
        files::measure(&system, arguments.small_files, arguments.sequential_mib, &mut report)?;
    }
    if wanted(Group::Life) {
        restart::measure(&system, &mut report)?;
    }
    system.stop()?;
    report.print();
    report.save(&arguments.output)
}

/// The groups that are measured by clients on systems of their own.
fn clients(
    arguments: &Arguments,
    wanted: impl Fn(Group) -> bool,
    report: &mut Report,
) -> Result<(), BenchError> {
    let Arguments { binaries, operations, scratch, output, .. } = arguments;
    if wanted(Group::Client) {
        client::measure(binaries, operations, report)?;
        report.save(output)?;
    }
    if wanted(Group::Interception) {
        client::measure_interception(binaries, operations, report)?;
        report.save(output)?;
    }
    if wanted(Group::Redundancy) {
        client::measure_redundancy(binaries, operations, scratch, report)?;
        report.save(output)?;
    }
    Ok(())
}
