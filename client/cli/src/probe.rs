//! `weir fabric bench`: round trips, rate and transfers between this machine and the engines, on the data path itself.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_client::{Attach, Context};
use weir_proto::opcode;
use weir_rpc::{Bulk, CallOptions, Peer};

use crate::error::CliError;
use crate::output::{Answer, table};

/// Bytes of a small request.
const SMALL: usize = 64;

/// Bytes of a transfer.
const LARGE: usize = 1 << 20;

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long each figure is measured.
    pub span: Duration,
    /// Requests in flight in the figures of rates.
    pub in_flight: usize,
}

/// Figures of one target.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// Half of the round trips took at most this long, in microseconds.
    median: f64,
    /// All but one in a hundred.
    slow: f64,
    /// Requests per second, many in flight.
    rate: f64,
    /// Transfers of 1 MiB per second: the engine reads this machine's memory.
    write: f64,
    /// The engine writes to it.
    read: f64,
}

/// Measures target 0 of each engine.
///
/// # Errors
/// When the attach file can't be used or an engine doesn't answer.
pub fn run(path: &Path, plan: Plan) -> Result<Answer, CliError> {
    let attach = Attach::load(Some(path)).map_err(weir_client::Error::from)?;
    let context = Context::real(&attach)?;
    let mut rows = vec![
        ["Rank", "Engine", "p50 us", "p99 us", "requests/s", "write MiB/s", "read MiB/s"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut found: Vec<Value> = Vec::new();
    for engine in &attach.engines {
        let peer = Peer::new(&engine.host, engine.fabric_port);
        let figures = context.block_on(measure(&context, &peer, plan))?;
        let text = |figure: f64| format!("{figure:.1}");
        rows.push(vec![
            engine.rank.to_string(),
            peer.to_string(),
            text(figures.median),
            text(figures.slow),
            format!("{:.0}", figures.rate),
            text(figures.write),
            text(figures.read),
        ]);
        found.push(json!({
            "rank": engine.rank,
            "engine": peer.to_string(),
            "round_trip_us": {"p50": figures.median, "p99": figures.slow},
            "requests_per_second": figures.rate,
            "write_mib_per_second": figures.write,
            "read_mib_per_second": figures.read,
        }));
    }
    let response = json!({
        "provider": attach.provider,
        "request_bytes": SMALL,
        "in_flight": plan.in_flight,
        "transfer_bytes": LARGE,
        "engines": found,
    });
    let title =
        format!("Provider {}, requests of {SMALL} bytes, {} in flight\n", attach.provider, plan.in_flight);
    Ok(Answer::new(response, title + &table(&rows)))
}

async fn measure(context: &Context, peer: &Peer, plan: Plan) -> Result<Figures, CliError> {
    let mut times = Vec::new();
    call(context, peer, opcode::PING, None).await?;
    let began = Instant::now();
    while began.elapsed() < plan.span {
        let sent = Instant::now();
        call(context, peer, opcode::PING, None).await?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    let rate = rate(context, peer, plan).await?;
    let mut moved = [0.0; 2];
    for (opcode, moved) in [opcode::PROBE_PULL, opcode::PROBE_PUSH].into_iter().zip(&mut moved) {
        let began = Instant::now();
        let mut count = 0u32;
        while began.elapsed() < plan.span {
            let mut memory = context.rpc().alloc(LARGE).map_err(|error| away(peer, &error))?;
            let bulk =
                if opcode == opcode::PROBE_PULL { Bulk::read(&memory) } else { Bulk::write(&mut memory) };
            call(context, peer, opcode, Some(bulk)).await?;
            count += 1;
        }
        *moved = f64::from(count) / began.elapsed().as_secs_f64();
    }
    Ok(Figures { median: at(50), slow: at(99), rate, write: moved[0], read: moved[1] })
}

async fn rate(context: &Context, peer: &Peer, plan: Plan) -> Result<f64, CliError> {
    let done: Rc<RefCell<Result<u32, CliError>>> = Rc::new(RefCell::new(Ok(0)));
    let began = Instant::now();
    let tasks: Vec<_> = (0..plan.in_flight.max(1))
        .map(|_| {
            let (context, peer, done) = (context.clone(), peer.clone(), Rc::clone(&done));
            let runtime = context.runtime().clone();
            runtime.spawn(async move {
                while began.elapsed() < plan.span {
                    let outcome = call(&context, &peer, opcode::PING, None).await;
                    let done = &mut *done.borrow_mut();
                    match (outcome, &mut *done) {
                        (Ok(()), Ok(count)) => *count += 1,
                        (Err(error), _) => {
                            *done = Err(error);
                            return;
                        }
                        (Ok(()), Err(_)) => return,
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        // None of them is aborted.
        let _ = task.await;
    }
    let count = done.replace(Ok(0))?;
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

async fn call(context: &Context, peer: &Peer, opcode: u16, bulk: Option<Bulk<'_>>) -> Result<(), CliError> {
    let options = CallOptions::within(context.runtime(), PATIENCE);
    let reply = context.rpc().call(peer, opcode, &[0; SMALL], bulk, options).await;
    reply.map(drop).map_err(|error| away(peer, &error))
}

fn away(peer: &Peer, error: &dyn core::fmt::Display) -> CliError {
    weir_client::Error::Fabric { provider: peer.to_string(), reason: error.to_string() }.into()
}
