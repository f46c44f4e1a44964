//! Whether two server threads are worth two.
//!
//! A server thread and the client that keeps it busy want a core each, so that two pairs need four. Here each thread is
//! both, client and server over the fabric, and has a core: what two such threads of one process share - a lock, an
//! allocator, a cache line - makes them less than twice one. Two processes of one thread each show what the machine
//! itself takes away.

use core::time::Duration;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};

use weir_fabric::{Options, open};
use weir_rpc::{CallOptions, Peer, Rpc, RpcConfig};
use weir_runtime::real::Executor;

use super::requests::{self, EMPTY, rate_of_tasks};
use super::{SMALL, failed, free_port, is_native, pin};
use crate::pairs::Pairs;
use crate::report::{BenchError, Report};

/// Time that a process measures: long beside what its threads' starts are apart.
const SPAN: Duration = Duration::from_millis(60);
/// Turns of processes of one kind.
const TURNS: usize = 7;

/// Requests per second of this thread to itself, once all threads are ready.
fn talk_alone(provider: &str, ready: &Barrier) -> Result<f64, BenchError> {
    let port = free_port()?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let open = |options: &Options| open(&rt, options).map_err(|error| failed("endpoint", &error));
    let _server = requests::serve(rt.clone(), open(&Options::listen(provider, "127.0.0.1", port))?, false);
    let client =
        Rpc::new(rt.clone(), open(&Options::near(provider, "127.0.0.1", port))?, RpcConfig::default());
    let to = Peer::new("127.0.0.1", port);
    executor.block_on(async {
        let options = CallOptions::within(&rt, Duration::from_secs(10));
        let first = client.call(&to, EMPTY, &[7; SMALL], None, options).await;
        ready.wait();
        first.map_err(|error| failed("a request", &error))?;
        Ok(rate_of_tasks(&rt, &client, &to, SPAN).await)
    })
}

/// Talks to itself on several threads and prints their requests per second: `arguments` is `provider:threads:core`, the
/// first thread's core.
pub fn talk(arguments: &str) -> Result<(), BenchError> {
    let wrong = || failed("threads", &format!("{arguments} is not provider:threads:core"));
    let mut parts = arguments.split(':');
    let (Some(provider), Some(threads), Some(core)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    let (threads, core): (usize, usize) =
        (threads.parse().map_err(|_| wrong())?, core.parse().map_err(|_| wrong())?);
    let ready = Arc::new(Barrier::new(threads));
    let running: Vec<_> = (0..threads)
        .map(|at| {
            let (provider, ready) = (provider.to_owned(), Arc::clone(&ready));
            std::thread::spawn(move || {
                pin::pin(core + at);
                talk_alone(&provider, &ready)
            })
        })
        .collect();
    let mut total = 0.0;
    for thread in running {
        total += thread.join().map_err(|_| failed("threads", &"one panicked"))??;
    }
    println!("{total}");
    Ok(())
}

/// A process that talks to itself.
fn start(provider: &str, threads: usize, core: usize) -> Result<Child, BenchError> {
    let error = |error: std::io::Error| failed("threads", &error);
    Command::new(std::env::current_exe().map_err(error)?)
        .args(["--talk-to-self", &format!("{provider}:{threads}:{core}")])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(error)
}

/// What it printed.
fn finish(mut child: Child) -> Result<f64, BenchError> {
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(|error| failed("threads", &error))?;
    }
    child.wait().map_err(|error| failed("threads", &error))?;
    line.trim().parse().map_err(|_| failed("threads", &"it printed no rate"))
}

/// Adds the rows of a provider, where there are two cores.
pub(super) fn measure(report: &mut Report, provider: &str) -> Result<(), BenchError> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Ok(());
    }
    let (mut threads, mut processes) = (Pairs::default(), Pairs::default());
    for turn in 0..TURNS {
        // Each core in its turn, in case they differ.
        let one = finish(start(provider, 1, turn % 2)?)?;
        threads.add(finish(start(provider, 2, 0)?)?, one);
        let (first, second) = (start(provider, 1, 0)?, start(provider, 1, 1)?);
        processes.add(finish(first)? + finish(second)?, one);
    }
    let goal = is_native(provider).then_some(">= 1.85");
    for (what, pairs, goal) in [("threads", threads, goal), ("processes", processes, None)] {
        let row = format!("fabric {provider}: two {what}, client and server each");
        pairs.rate(report, &row, "op/s", "one", goal);
    }
    Ok(())
}
