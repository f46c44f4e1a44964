//! `weir fabric bench`: round trips, rate and transfers on the data path itself, to the engines or between two processes
//! of this machine, by one fabric provider or by several that take turns.

mod local;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use weir_client::{Attach, Context};
use weir_fabric::Addressing;
use weir_probe::{Figures, Plan, REQUEST_LEN, TRANSFER_LEN, Turn};
use weir_rpc::{Peer, RpcError};

use crate::error::CliError;
use crate::management;
use crate::output::{Answer, table};

pub use local::serve;

/// Turns of each provider for each figure: enough that a moment in which the machine does something else doesn't count.
const TURNS: u32 = 5;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct BenchArguments {
    /// Seconds for each figure.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests in flight where rates are measured.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,
    /// Fabric providers to measure by, separated by commas; the first is compared with the others [default: the attach
    /// file's].
    #[arg(long, value_delimiter = ',', value_parser = crate::arguments::name)]
    provider: Vec<String>,
    /// Measure between two processes of this machine instead of to engines [providers: tcp unless named].
    #[arg(long)]
    local: bool,
}

/// One provider and whom it reaches.
struct Side {
    provider: String,
    context: Context,
    /// Rank and address of each.
    peers: Vec<(u32, Peer)>,
    _server: Option<local::Server>,
}

impl Side {
    /// A client of what listens at these addresses.
    fn open(attach: &Attach, server: Option<local::Server>) -> Result<Self, CliError> {
        let context = Context::real(attach)?;
        let engines = attach.engines.iter();
        let peers = engines.map(|engine| (engine.rank, Peer::new(&engine.host, engine.fabric_port)));
        Ok(Self { provider: attach.provider.clone(), context, peers: peers.collect(), _server: server })
    }

    fn turn(&self, at: usize, plan: Plan) -> Result<Turn, CliError> {
        let (_, peer) = &self.peers[at];
        let measured = weir_probe::measure(self.context.runtime(), self.context.rpc(), peer, plan);
        self.context.block_on(measured).map_err(|error| self.away(&error))
    }

    fn away(&self, error: &RpcError) -> CliError {
        if matches!(error, RpcError::TimedOut { .. } | RpcError::Unreachable { .. }) {
            return CliError::Dead(error.to_string());
        }
        weir_client::Error::Fabric { provider: self.provider.clone(), reason: error.to_string() }.into()
    }
}

/// Measures by each provider.
///
/// # Errors
/// When the attach file can't be used, an engine doesn't answer, or isn't measured by one of the providers.
pub fn run(arguments: &BenchArguments, named: Option<&Path>, patience: Duration) -> Result<Answer, CliError> {
    if (1..arguments.provider.len()).any(|at| arguments.provider[..at].contains(&arguments.provider[at])) {
        return Err(CliError::Usage("--provider names one twice".to_owned()));
    }
    let sides =
        if arguments.local { between_processes(arguments)? } else { to_engines(arguments, named, patience)? };
    let plan = Plan {
        span: Duration::from_secs(arguments.seconds) / TURNS,
        in_flight: usize::from(arguments.in_flight),
        patience,
    };
    // By side and peer.
    let mut found: Vec<Vec<Vec<Turn>>> =
        sides.iter().map(|side| vec![Vec::new(); side.peers.len()]).collect();
    for at in 0..sides.first().map_or(0, |side| side.peers.len()) {
        for _ in 0..TURNS {
            for (side, turns) in sides.iter().zip(&mut found) {
                turns[at].push(side.turn(at, plan)?);
            }
        }
    }
    Ok(answer(arguments, &sides, &found))
}

/// A pair of processes for each provider.
fn between_processes(arguments: &BenchArguments) -> Result<Vec<Side>, CliError> {
    let default = ["tcp".to_owned()];
    let named = if arguments.provider.is_empty() { &default[..] } else { &arguments.provider };
    let started = named.iter().map(|provider| {
        let (server, attach) = local::Server::start(provider)?;
        Side::open(&attach, Some(server))
    });
    started.collect()
}

/// Target 0 of each engine by the system's own provider, and by others what the engines have set up for it.
fn to_engines(
    arguments: &BenchArguments,
    named: Option<&Path>,
    patience: Duration,
) -> Result<Vec<Side>, CliError> {
    let attach = Attach::load(Some(&management::find_attach(named)?)).map_err(weir_client::Error::from)?;
    let default = [attach.provider.clone()];
    let providers = if arguments.provider.is_empty() { &default[..] } else { &arguments.provider };
    let own = Side::open(&attach, None)?;
    let others = providers.iter().filter(|provider| **provider != attach.provider);
    let others: Vec<Attach> =
        others.map(|provider| redirected(&own, &attach, provider, patience)).collect::<Result<_, _>>()?;
    let mut others = others.iter();
    let mut own = Some(own);
    let sides = providers.iter().filter_map(|provider| {
        if *provider == attach.provider {
            own.take().map(Ok)
        } else {
            others.next().map(|other| Side::open(other, None))
        }
    });
    sides.collect()
}

/// The attach information with the ports where engines are measured by another provider: they are asked for these by
/// their own.
fn redirected(own: &Side, attach: &Attach, provider: &str, patience: Duration) -> Result<Attach, CliError> {
    // A NIC's name is its provider's, and so is what its addresses are.
    let mut other = Attach {
        provider: provider.to_owned(),
        device: None,
        addressing: Addressing::ByProvider,
        ..attach.clone()
    };
    for ((rank, peer), engine) in own.peers.iter().zip(&mut other.engines) {
        let asked = weir_probe::listeners(own.context.runtime(), own.context.rpc(), peer, patience);
        let listed = own.context.block_on(asked).map_err(|error| own.away(&error))?;
        let Some(found) = listed.iter().find(|listener| listener.provider == provider) else {
            let mut by: Vec<&str> = listed.iter().map(|listener| listener.provider.as_str()).collect();
            by.insert(0, &attach.provider);
            return Err(CliError::Usage(format!(
                "engine {rank} can't be measured by {provider}, only by {}: add \"{provider}:PORT\" to `probes` in \
                 its configuration and restart it (`weir dev up --probe {provider}`), or measure on this machine \
                 alone with --local",
                by.join(", ")
            )));
        };
        (engine.fabric_port, engine.targets) = (found.port, 1);
    }
    Ok(other)
}

fn answer(arguments: &BenchArguments, sides: &[Side], found: &[Vec<Vec<Turn>>]) -> Answer {
    let heading = |first: &[&str]| {
        let rest = ["p50 us", "p99 us", "requests/s", "write MiB/s", "read MiB/s"];
        first.iter().chain(&rest).map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    let mut rows = vec![heading(&["Provider", "Rank", "Address"])];
    let mut providers = Vec::new();
    for (side, turns) in sides.iter().zip(found) {
        let mut engines = Vec::new();
        for ((rank, peer), turns) in side.peers.iter().zip(turns) {
            let figures = Figures::of(turns);
            let Figures { median, slow, requests, write, read } = figures;
            rows.push(vec![
                side.provider.clone(),
                rank.to_string(),
                peer.to_string(),
                format!("{median:.1}"),
                format!("{slow:.1}"),
                format!("{requests:.0}"),
                format!("{write:.1}"),
                format!("{read:.1}"),
            ]);
            engines.push(json!({"rank": rank, "engine": peer.to_string(), "figures": described(figures)}));
        }
        providers.push(json!({"provider": side.provider, "engines": engines}));
    }
    let mut text = format!(
        "Requests of {REQUEST_LEN} bytes, {} in flight where they are counted, transfers of {} MiB\n{}",
        arguments.in_flight,
        TRANSFER_LEN >> 20,
        table(&rows)
    );
    let mut ratios = Vec::new();
    if let (Some((first, others)), Some((turns, theirs))) = (sides.split_first(), found.split_first()) {
        let mut rows = vec![heading(&["Ratio", "Rank"])];
        for (other, theirs) in others.iter().zip(theirs) {
            for (((rank, _), turns), theirs) in first.peers.iter().zip(turns).zip(theirs) {
                let figures = Figures::ratios(turns, theirs);
                let Figures { median, slow, requests, write, read } = figures;
                let mut row = vec![format!("{} / {}", first.provider, other.provider), rank.to_string()];
                row.extend([median, slow, requests, write, read].map(|ratio| format!("{ratio:.2}")));
                rows.push(row);
                ratios.push(json!({
                    "provider": first.provider, "beside": other.provider, "rank": rank, "figures": described(figures),
                }));
            }
        }
        if !ratios.is_empty() {
            text = text + "\n" + &table(&rows);
        }
    }
    let response = json!({
        "local": arguments.local,
        "request_bytes": REQUEST_LEN,
        "in_flight": arguments.in_flight,
        "transfer_bytes": TRANSFER_LEN,
        "providers": providers,
        "ratios": ratios,
    });
    Answer::new(response, text)
}

fn described(figures: Figures) -> Value {
    json!({
        "round_trip_us": {"p50": figures.median, "p99": figures.slow},
        "requests_per_second": figures.requests,
        "write_mib_per_second": figures.write,
        "read_mib_per_second": figures.read,
    })
}
