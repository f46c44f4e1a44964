//! A client that asks one small thing at a time, beside others that send as fast as they can.
//!
//! The server has a core, and the client shares the other with the flood, whose processes have the lowest priority. How long an
//! answer takes then depends a good deal on who has a processor when, so that the longest one is told without that too: the
//! system counts what each process waited for a processor.

use core::time::Duration;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{getpid, nice};
use weir_fabric::{Options, open};
use weir_rpc::{CallOptions, Peer, Rpc, RpcConfig};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

use super::requests::{EMPTY, Requests};
use super::{Mode, SMALL, failed};
use crate::pin::Seats;
use crate::report::{BenchError, Report};

/// Processes of the flood.
const PROCESSES: usize = 2;
/// Clients in each of them.
const CLIENTS_EACH: usize = 4;
/// Requests that each client would like to have under way: thirty times its credits.
const WIDTH: usize = 1024;
/// Bytes of a request of the flood.
const FLOOD_BYTES: usize = 500;
/// For how long answers are waited for.
const SPAN: Duration = Duration::from_secs(3);
/// Between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the flood gets to rise.
const RISE: Duration = Duration::from_millis(500);

/// Runs as a part of the flood: `arguments` is `provider:port`. Ends when it is killed.
pub fn flood(arguments: &str) -> Result<(), BenchError> {
    let wrong = || failed("flood", &format!("{arguments} is not provider:port"));
    let (provider, port) = arguments.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    nice(19).map_err(|error| failed("nice", &error))?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let config = RpcConfig { credits: WIDTH, requests_max: WIDTH, ..RpcConfig::default() };
    let clients = (0..CLIENTS_EACH).map(|_| {
        let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", port));
        endpoint.map(|endpoint| Rpc::new(rt.clone(), endpoint, config.clone()))
    });
    let clients = clients.collect::<Result<Vec<_>, _>>().map_err(|error| failed("flood", &error))?;
    let to = Peer::new("127.0.0.1", port);
    executor.block_on(async {
        let workers = clients.iter().flat_map(|rpc| core::iter::repeat_n(rpc, WIDTH)).map(|rpc| async {
            loop {
                let options = CallOptions::within(&rt, Duration::from_secs(20));
                // Whatever comes.
                let _ = rpc.call(&to, EMPTY, &[1; FLOOD_BYTES], None, options).await;
            }
        });
        let _: Vec<()> = join_all(workers).await;
    });
    Ok(())
}

/// A process of the flood; killed when dropped.
struct Flooder(Child);

impl Flooder {
    fn start(provider: &str, port: u16) -> Result<Self, BenchError> {
        let error = |error: std::io::Error| failed("flood", &error);
        Command::new(std::env::current_exe().map_err(error)?)
            .args(["--flood-fabric", &format!("{provider}:{port}")])
            .stdout(Stdio::null())
            .spawn()
            .map(Self)
            .map_err(error)
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long processes have waited for a processor so far, where the system tells.
fn starved(processes: [u32; 2]) -> Duration {
    let one = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(processes.map(one).iter().sum())
}

/// How long answers took, shortest first, in microseconds; and the longest without waits for a processor.
struct Waits {
    sorted: Vec<f64>,
    own: f64,
}

impl Waits {
    fn measure(client: &Requests) -> Result<Self, BenchError> {
        let pid = u32::try_from(getpid().as_raw_nonzero().get()).unwrap_or(0);
        let processes = [pid, client.server_pid()];
        let (began, mut sorted, mut own) = (Instant::now(), Vec::new(), Duration::ZERO);
        while began.elapsed() < SPAN {
            let (asked, before) = (Instant::now(), starved(processes));
            client.ask(SMALL)?;
            let wait = asked.elapsed();
            own = own.max(wait.saturating_sub(starved(processes).saturating_sub(before)));
            sorted.push(wait.as_secs_f64() * 1e6);
            std::thread::sleep(PAUSE);
        }
        sorted.sort_by(f64::total_cmp);
        Ok(Self { sorted, own: own.as_secs_f64() * 1e6 })
    }

    /// The time within which this share of the answers came, in thousandths.
    fn within(&self, share: usize) -> f64 {
        let at = (self.sorted.len() * share / 1000).min(self.sorted.len().saturating_sub(1));
        self.sorted.get(at).copied().unwrap_or(f64::NAN)
    }
}

/// Measures answers beside a flood, and the same without one.
pub(super) fn measure(report: &mut Report, provider: &str) -> Result<(), BenchError> {
    let client = Requests::start(provider, Mode::Rpc, Seats::USUAL)?;
    let alone = Waits::measure(&client)?;
    let flooders = (0..PROCESSES).map(|_| Flooder::start(provider, client.port()));
    let flooders = flooders.collect::<Result<Vec<_>, _>>()?;
    std::thread::sleep(RISE);
    let beside = Waits::measure(&client)?;
    drop(flooders);
    for (what, value, reference) in [
        ("half", beside.within(500), alone.within(500)),
        ("p99", beside.within(990), alone.within(990)),
        ("longest", beside.within(1000), alone.within(1000)),
        ("longest less waits for a processor", beside.own, alone.own),
    ] {
        let name = format!("fabric {provider}: answer beside a flood, {what}");
        report.beside(&name, value, "us", ("without a flood", reference), None);
    }
    Ok(())
}
