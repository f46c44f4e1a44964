//! What one small request costs in instructions and system calls of this process, client and server together: counts
//! that do not depend on what else the machine does.
//!
//! The program runs itself twice under a counter, the second time with twice as many requests, and takes the difference.

use core::time::Duration;
use std::process::Command;

use weir_fabric::{Ability, Options, open};
use weir_rpc::{Bulk, CallOptions, Peer, Rpc, RpcConfig};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

use crate::fabric::requests::{self, EMPTY, PULL, PUSH};
use crate::fabric::{LARGE, failed, free_port};
use crate::report::{BenchError, Report};

/// Requests under way at once, where it is several.
const IN_FLIGHT: u32 = 16;

/// What is different about the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    /// Nothing.
    Plain,
    /// They are authenticated.
    Sealed,
    /// They go through the provider's queue, where others go through a channel.
    Queued,
    /// They carry the sender's address, and completions don't name senders.
    Addressed,
    /// Completions name senders by the provider's numbers, not ours.
    Numbered,
    /// Several are under way at once.
    Together,
    /// The server reads a MiB of the client's memory.
    Pull,
    /// The server writes a MiB to the client's memory.
    Push,
}

impl Variant {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Plain, "plain"),
        (Self::Sealed, "sealed"),
        (Self::Queued, "queued"),
        (Self::Addressed, "addressed"),
        (Self::Numbered, "numbered"),
        (Self::Together, "together"),
        (Self::Pull, "pull"),
        (Self::Push, "push"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(variant, _)| *variant == self).map_or("", |(_, name)| name)
    }
}

/// Makes requests to itself: `arguments` is `provider:variant:requests`.
pub fn make_requests(arguments: &str) -> Result<(), BenchError> {
    let wrong = || failed("requests", &format!("{arguments} is not provider:variant:requests"));
    let mut parts = arguments.split(':');
    let (Some(provider), Some(name), Some(count)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    let variant = Variant::ALL.iter().find(|(_, known)| *known == name).ok_or_else(wrong)?.0;
    let count: u32 = count.parse().map_err(|_| wrong())?;
    let port = free_port()?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let without = match variant {
        Variant::Queued => vec![Ability::Channels],
        Variant::Addressed => vec![Ability::Channels, Ability::Source],
        Variant::Numbered => vec![Ability::Channels, Ability::AvUserId],
        _ => Vec::new(),
    };
    let sealed = variant == Variant::Sealed;
    let config = RpcConfig { greet_always: variant == Variant::Addressed, ..requests::settings(sealed) };
    let options = Options { without: without.clone(), ..Options::listen(provider, "127.0.0.1", port) };
    let endpoint = open(&rt, &options).map_err(|error| failed("endpoint", &error))?;
    let _server = requests::serve(rt.clone(), endpoint, sealed);
    let options = Options { without, ..Options::near(provider, "127.0.0.1", port) };
    let endpoint = open(&rt, &options).map_err(|error| failed("endpoint", &error))?;
    let client = Rpc::new(rt.clone(), endpoint, config);
    let to = Peer::new("127.0.0.1", port);
    let ask = async |requests: u32| {
        let mut memory = client.alloc(LARGE).map_err(|error| failed("memory", &error))?;
        for _ in 0..requests {
            let options = CallOptions::within(&rt, Duration::from_secs(20));
            let (opcode, bulk) = match variant {
                Variant::Pull => (PULL, Some(Bulk::read(&memory))),
                Variant::Push => (PUSH, Some(Bulk::write(&mut memory))),
                _ => (EMPTY, None),
            };
            let reply = client.call(&to, opcode, &[7; 64], bulk, options).await;
            reply.map_err(|error| failed("a request", &error))?;
        }
        Ok(())
    };
    executor.block_on(async {
        if variant != Variant::Together {
            return ask(count).await;
        }
        let askers = (0..IN_FLIGHT).map(|_| ask(count / IN_FLIGHT));
        join_all(askers).await.into_iter().collect()
    })
}

/// A program that counts another one's instructions: its arguments, what marks the line with the count, and how many
/// requests it has time for.
struct Counter {
    arguments: &'static [&'static str],
    mark: &'static str,
    requests: u32,
}

/// The processor counts, where the machine lets it; else an emulator does, fifty times slower.
const COUNTERS: [Counter; 2] = [
    Counter {
        arguments: &["perf", "stat", "-x", ",", "-e", "instructions:u", "--"],
        mark: "instructions",
        requests: 20_000,
    },
    Counter {
        arguments: &["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"],
        mark: "Collected",
        requests: 2000,
    },
];

impl Counter {
    /// Instructions of a whole run; `None` where they can't be counted.
    fn run(&self, option: &str, value: &str) -> Option<f64> {
        let (program, arguments) = self.arguments.split_first()?;
        let output = Command::new(program)
            .args(arguments)
            .arg(std::env::current_exe().ok()?)
            .args([option, value])
            .output()
            .ok()?;
        let text = String::from_utf8(output.stderr).ok()?;
        let line = text.lines().find(|line| line.contains(self.mark))?;
        output.status.success().then_some(())?;
        // The count is the first number of perf's line, and the last of valgrind's.
        line.split([',', ' ']).find_map(|word| word.parse::<f64>().ok().filter(|count| *count > 1e6))
    }

    /// Instructions of one request.
    fn cost(&self, provider: &str, variant: Variant) -> Option<f64> {
        let run =
            |requests| self.run("--make-requests", &format!("{provider}:{}:{requests}", variant.name()));
        let (once, twice) = (run(self.requests)?, run(2 * self.requests)?);
        Some((twice - once) / f64::from(self.requests))
    }
}

/// Instructions of a run of this program with an option; `None` where they can't be counted.
pub fn of_run(option: &str, value: &str) -> Option<f64> {
    COUNTERS.iter().find_map(|counter| counter.run(option, value))
}

/// Requests of a run whose system calls are counted: each takes a tenth of a millisecond there.
const TRACED: u32 = 5000;

/// System calls of a whole run, and those among them that wait for a lock; `None` where they can't be counted.
fn system_calls(provider: &str, requests: u32) -> Option<(f64, f64)> {
    let summary = std::env::temp_dir().join(format!("weir-bench-calls-{}", std::process::id()));
    let status = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(&summary)
        .arg(std::env::current_exe().ok()?)
        .args(["--make-requests", &format!("{provider}:plain:{requests}")])
        .status();
    let text = std::fs::read_to_string(&summary);
    // Without the program there is no file either.
    let _ = std::fs::remove_file(&summary);
    status.ok()?.success().then_some(())?;
    let text = text.ok()?;
    // Columns: share, seconds, microseconds each, calls, errors where there were some, name.
    let count = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().last() == Some(name))?;
        line.split_whitespace().nth(3)?.parse::<f64>().ok()
    };
    Some((count("total")?, count("futex").unwrap_or(0.0)))
}

/// Adds rows of system calls, where they can be counted.
fn measure_calls(report: &mut Report, provider: &str) {
    let once = system_calls(provider, TRACED);
    let twice = system_calls(provider, 2 * TRACED);
    let (Some(once), Some(twice)) = (once, twice) else { return };
    let each = |once: f64, twice: f64| (twice - once).max(0.0) / f64::from(TRACED);
    let name = |what: &str| format!("fabric {provider}: {what}");
    report.figure(&name("system calls per request"), each(once.0, twice.0), "", None);
    report.figure(&name("waits for locks per request"), each(once.1, twice.1), "", Some("0"));
}

/// Adds rows for each provider and variant, where instructions can be counted.
pub fn measure(report: &mut Report, providers: &[String]) {
    for provider in providers {
        measure_calls(report, provider);
        let cost = |variant| COUNTERS.iter().find_map(|counter| counter.cost(provider, variant));
        let Some(plain) = cost(Variant::Plain) else { continue };
        let name = |what: &str| format!("fabric {provider}: instructions per request, {what}");
        report.figure(&name("plain"), plain, "", None);
        let mut beside = |variant, what, reference: (&str, f64)| {
            let cost = cost(variant)?;
            report.beside(&name(what), cost, "", reference, None);
            Some(cost)
        };
        beside(Variant::Sealed, "authenticated", ("plain", plain));
        beside(Variant::Together, "16 in flight", ("plain", plain));
        // What a completion tells of a sender matters only to messages that have one.
        let channels = weir_fabric::libfabric::probe(provider).is_ok_and(|found| found.channels);
        let queued = channels.then(|| beside(Variant::Queued, "no channel", ("plain", plain))).flatten();
        if !channels {
            // Providers within a node copy a process' own memory by themselves, which hides all else.
            beside(Variant::Pull, "1 MiB client to server", ("plain", plain));
            beside(Variant::Push, "1 MiB server to client", ("plain", plain));
        }
        let reference = queued.map_or(("plain", plain), |queued| ("no channel", queued));
        beside(Variant::Addressed, "with an address in each message", reference);
        beside(Variant::Numbered, "senders by the provider's number", reference);
    }
}
