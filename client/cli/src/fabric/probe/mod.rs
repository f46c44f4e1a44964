//! `weir fabric bench`: round trips, rate and transfers on the data path itself, to the engines or between two processes
//! of this machine, by one fabric provider or by several that take turns.

mod local;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use weir_client::{Attach, Context, EngineAddress};
use weir_fabric::Addressing;
use weir_probe::{Figures, Plan, REQUEST_LEN, Round, TRANSFER_LEN};
use weir_rpc::{Peer, RpcError};

use crate::connection;
use crate::error::CliError;
use crate::output::{Answer, table};
use crate::values;

pub use local::serve;

/// Turns of each provider for each figure: enough that a moment in which the machine does something else doesn't count.
const TURNS: u32 = 5;

/// Most requests in flight: a client's credits at a server. More would wait on this side and count as slow.
const IN_FLIGHT_MAX: i64 = 32;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct BenchArguments {
    /// Seconds for each figure.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests in flight where rates are measured, at most 32: no client has more at a target.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=IN_FLIGHT_MAX))]
    in_flight: u16,
    /// Fabric providers to measure by, separated by commas; the first is compared with the others [default: the attach
    /// file's].
    #[arg(long, value_delimiter = ',', value_parser = values::name)]
    provider: Vec<String>,
    /// Measure between two processes of this machine instead of to engines [providers: tcp unless named].
    #[arg(long)]
    local: bool,
}

/// A server that is measured.
struct Whom {
    rank: u32,
    peer: Peer,
    /// What was found, or why it can't be measured.
    found: Result<Vec<Round>, RpcError>,
}

/// One provider and the peers that it reaches.
struct Side {
    provider: String,
    context: Context,
    servers: Vec<Whom>,
    _server: Option<local::Server>,
}

impl Side {
    /// A client of what listens at these addresses.
    fn open(attach: &Attach, server: Option<local::Server>) -> Result<Self, CliError> {
        let context = Context::real(attach)?;
        let whom = |engine: &EngineAddress| Whom {
            rank: engine.rank,
            peer: Peer::new(&engine.host, engine.fabric_port),
            found: Ok(Vec::new()),
        };
        let servers = attach.engines.iter().map(whom).collect();
        Ok(Self { provider: attach.provider.clone(), context, servers, _server: server })
    }

    /// One more round with a server, unless one has failed.
    fn round(&mut self, at: usize, plan: Plan) {
        let Whom { peer, found, .. } = &mut self.servers[at];
        let Ok(rounds) = found else { return };
        let measured = weir_probe::measure(self.context.runtime(), self.context.rpc(), peer, plan);
        match self.context.block_on(measured) {
            Ok(round) => rounds.push(round),
            Err(error) => *found = Err(error),
        }
    }
}

/// The peers that could not be measured; the first decides the exit code.
fn failure(sides: &[Side]) -> Option<CliError> {
    let missed = |side: &Side| {
        let of = side.provider.clone();
        let missed = side.servers.iter().filter_map(move |server| {
            server.found.as_ref().err().map(|error| (of.clone(), server.rank, error.clone()))
        });
        missed.collect::<Vec<_>>()
    };
    let missed: Vec<_> = sides.iter().flat_map(missed).collect();
    let (provider, _, first) = missed.first()?;
    let said = missed
        .iter()
        .map(|(provider, rank, error)| format!("engine {rank} by {provider}: {error}"))
        .collect::<Vec<_>>()
        .join("; ");
    Some(if matches!(first, RpcError::TimedOut { .. } | RpcError::Unreachable { .. }) {
        CliError::Dead(said)
    } else {
        weir_client::Error::Fabric { provider: provider.clone(), reason: said }.into()
    })
}

/// Measures by each provider. Engines that don't answer are told of behind the figures of the others.
///
/// # Errors
/// When the attach file can't be used, an engine isn't measured by one of the providers, or none answers.
pub fn run(arguments: &BenchArguments, named: Option<&Path>, patience: Duration) -> Result<Answer, CliError> {
    if (1..arguments.provider.len()).any(|at| arguments.provider[..at].contains(&arguments.provider[at])) {
        return Err(CliError::Usage("--provider names one twice".to_owned()));
    }
    let mut sides =
        if arguments.local { between_processes(arguments)? } else { to_engines(arguments, named, patience)? };
    let plan = Plan {
        span: Duration::from_secs(arguments.seconds) / TURNS,
        in_flight: usize::from(arguments.in_flight),
        patience,
    };
    for at in 0..sides.first().map_or(0, |side| side.servers.len()) {
        for _ in 0..TURNS {
            for side in &mut sides {
                side.round(at, plan);
            }
        }
    }
    let is_any_measured = sides.iter().flat_map(|side| &side.servers).any(|server| server.found.is_ok());
    match failure(&sides) {
        Some(failure) if is_any_measured => Ok(answer(arguments, &sides).but(failure)),
        Some(failure) => Err(failure),
        None => Ok(answer(arguments, &sides)),
    }
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
    let attach = Attach::load(Some(&connection::find_attach(named)?)).map_err(weir_client::Error::from)?;
    let default = [attach.provider.clone()];
    let providers = if arguments.provider.is_empty() { &default[..] } else { &arguments.provider };
    let own = Side::open(&attach, None)?;
    let others = providers.iter().filter(|provider| **provider != attach.provider);
    let others: Vec<Side> = others
        .map(|provider| redirected(&own, &attach, provider, patience))
        .collect::<Result<_, CliError>>()?;
    let (mut own, mut others) = (Some(own), others.into_iter());
    let sides = providers
        .iter()
        .filter_map(|provider| if *provider == attach.provider { own.take() } else { others.next() });
    Ok(sides.collect())
}

/// A client of the ports where engines are measured by another provider: they are asked for these by their own.
fn redirected(own: &Side, attach: &Attach, provider: &str, patience: Duration) -> Result<Side, CliError> {
    // A NIC's name is its provider's, and so is what its addresses are.
    let mut other = Attach {
        provider: provider.to_owned(),
        device: None,
        addressing: Addressing::ByProvider,
        ..attach.clone()
    };
    let mut silent = Vec::new();
    for (at, (server, engine)) in own.servers.iter().zip(&mut other.engines).enumerate() {
        let asked = weir_probe::listeners(own.context.runtime(), own.context.rpc(), &server.peer, patience);
        let listed = match own.context.block_on(asked) {
            Ok(listed) => listed,
            Err(error) => {
                silent.push((at, error));
                continue;
            }
        };
        let Some(found) = listed.iter().find(|listener| listener.provider == provider) else {
            let mut by: Vec<&str> = listed.iter().map(|listener| listener.provider.as_str()).collect();
            by.insert(0, &attach.provider);
            return Err(CliError::Usage(format!(
                "engine {} can't be measured by {provider}, only by {}: add \"{provider}:PORT\" to `probes` in \
                 its configuration and restart it (`weir dev up --probe {provider}`), or measure on this machine \
                 alone with --local",
                server.rank,
                by.join(", ")
            )));
        };
        (engine.fabric_port, engine.targets) = (found.port, 1);
    }
    let mut side = Side::open(&other, None)?;
    for (at, error) in silent {
        side.servers[at].found = Err(error);
    }
    Ok(side)
}

/// The columns of figures behind others.
fn heading(first: &[&str]) -> Vec<String> {
    let rest = ["p50 us", "p99 us", "requests/s", "write MiB/s", "read MiB/s"];
    first.iter().chain(&rest).map(|name| (*name).to_owned()).collect()
}

fn answer(arguments: &BenchArguments, sides: &[Side]) -> Answer {
    let mut rows = vec![heading(&["Provider", "Rank", "Address"])];
    let mut providers = Vec::new();
    for side in sides {
        let mut engines = Vec::new();
        for Whom { rank, peer, found } in &side.servers {
            let rounds = match found {
                Ok(rounds) => rounds,
                Err(error) => {
                    let engine = peer.to_string();
                    engines.push(
                        json!({"rank": rank, "engine": engine, "figures": null, "error": error.to_string()}),
                    );
                    continue;
                }
            };
            let figures = Figures::of(rounds);
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
    let (ratios, shown) = ratios(sides);
    if !ratios.is_empty() {
        text = text + "\n" + &shown;
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

/// The first provider's figures divided by each other's, of the engines that were measured by both.
fn ratios(sides: &[Side]) -> (Vec<Value>, String) {
    let (mut ratios, mut rows) = (Vec::new(), vec![heading(&["Ratio", "Rank"])]);
    let Some((first, others)) = sides.split_first() else { return (ratios, String::new()) };
    for other in others {
        for (own, theirs) in first.servers.iter().zip(&other.servers) {
            let (Ok(rounds), Ok(others)) = (&own.found, &theirs.found) else { continue };
            let figures = Figures::ratios(rounds, others);
            let Figures { median, slow, requests, write, read } = figures;
            let mut row = vec![format!("{} / {}", first.provider, other.provider), own.rank.to_string()];
            row.extend([median, slow, requests, write, read].map(|ratio| format!("{ratio:.2}")));
            rows.push(row);
            ratios.push(json!({
                "provider": first.provider, "beside": other.provider, "rank": own.rank, "figures": described(figures),
            }));
        }
    }
    (ratios, table(&rows))
}

fn described(figures: Figures) -> Value {
    json!({
        "round_trip_us": {"p50": figures.median, "p99": figures.slow},
        "requests_per_second": figures.requests,
        "write_mib_per_second": figures.write,
        "read_mib_per_second": figures.read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_rpc::RpcConfig;

    #[test]
    fn what_is_said_to_be_in_flight_can_be() {
        assert_eq!(usize::try_from(IN_FLIGHT_MAX), Ok(RpcConfig::default().credits));
    }
}
