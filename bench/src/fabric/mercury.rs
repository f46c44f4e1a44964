//! Native providers beside Mercury: the same RPC layer on either transport, and Mercury on its own. Only in builds with the
//! cargo feature `mercury`.

use core::time::Duration;

use weir_fabric::mercury::{Load, ReferenceLoop};

use super::requests::Requests;
use super::{IN_FLIGHT, Mode, Server, Side, TRANSFERS, What, failed, pairs};
use crate::pin::Seats;
use crate::report::{BenchError, Report};

/// Runs as the server of the loop without Weir. Ends when it is killed.
pub(super) fn serve(provider: &str, busy: bool) -> Result<(), BenchError> {
    let wrong = |error| failed("Mercury's loop", &error);
    let reference = ReferenceLoop::open(provider, busy).map_err(wrong)?;
    println!("ready {}", reference.address().map_err(wrong)?);
    Err(wrong(reference.serve()))
}

/// Mercury on its own.
struct Alone {
    reference: ReferenceLoop,
    address: String,
    server: Server,
}

impl Alone {
    fn start(provider: &str, mode: Mode) -> Result<Self, BenchError> {
        let (server, address) = Server::start_named(mode, provider, Seats::USUAL)?;
        let reference = ReferenceLoop::open(provider, mode == Mode::MercuryBusy);
        let reference = reference.map_err(|error| failed("Mercury's loop", &error))?;
        server.rest()?;
        Ok(Self { reference, address, server })
    }
}

impl Side for Alone {
    fn server(&self) -> &Server {
        &self.server
    }

    fn sample(&self, what: What, span: Duration) -> Result<f64, BenchError> {
        let (load, width) = match what {
            What::Alone | What::Beside => (Load::Empty, 1),
            What::Together | What::OneWay => (Load::Empty, IN_FLIGHT),
            What::Read | What::AskedRead => (Load::Pull, 1),
            What::Write | What::AskedWrite => (Load::Push, 1),
            What::Reads => (Load::Pull, TRANSFERS),
            What::Writes => (Load::Push, TRANSFERS),
        };
        let width = u32::try_from(width).unwrap_or(1);
        let asked = self.reference.ask(&self.address, load, width, span);
        asked.map_err(|error| failed("Mercury's loop", &error))
    }
}

/// Adds a row for each figure. Goals are those of the rate with many in flight and of a lone round trip.
fn compare(
    report: &mut Report,
    title: &str,
    sides: (&dyn Side, &dyn Side),
    name: &str,
    goals: [Option<&str>; 2],
) -> Result<(), BenchError> {
    let row = |what: &str| format!("{title}: {what}");
    let measure = |what| pairs(sides.0, sides.1, what);
    measure(What::Alone)?.time(report, &row("64 B, round trip"), name, goals[1]);
    measure(What::Together)?.rate(report, &row("64 B, 16 in flight"), "op/s", name, goals[0]);
    for (what, text) in [
        (What::Read, "1 MiB to server"),
        (What::Write, "1 MiB to client"),
        (What::Reads, "1 MiB to server, 4 in flight"),
        (What::Writes, "1 MiB to client, 4 in flight"),
    ] {
        measure(what)?.rate(report, &row(text), "MiB/s", name, None);
    }
    Ok(())
}

/// Measures the RPC layer on a native provider beside Mercury on the same wires: on its own, awake as long as there is
/// work and asleep when idle as Weir is; and with the RPC layer above it.
pub(super) fn measure(report: &mut Report, provider: &str) -> Result<(), BenchError> {
    let (protocol, round_trip) = match provider {
        "tcp" => ("ofi+tcp", "<= 1"),
        "shm" => ("na+sm", "<= 0.6"),
        _ => return Ok(()),
    };
    let mercury = format!("mercury/{protocol}");
    let native = Requests::start(provider, Mode::Rpc, Seats::USUAL)?;
    let busy = Alone::start(&mercury, Mode::MercuryBusy)?;
    let goals = [Some(">= 2"), Some(round_trip)];
    compare(report, &format!("{provider} / busy Mercury"), (&native, &busy), protocol, goals)?;
    drop(busy);
    let alone = Alone::start(&mercury, Mode::Mercury)?;
    compare(report, &format!("{provider} / Mercury"), (&native, &alone), protocol, [None; 2])?;
    let above = Requests::start(&mercury, Mode::Rpc, Seats::USUAL)?;
    compare(report, &format!("{provider} / RPC on Mercury"), (&native, &above), protocol, [None; 2])
}
