//! libfabric on its own: a loop in C that polls without pause, with nothing of Weir's but the process around it. What the
//! endpoint itself costs is what lies between this and [`super::bare`].

use core::time::Duration;
use std::io::Write;

use weir_fabric::libfabric::reference::{Load, ReferenceLoop};
use weir_fabric::{FabricError, LOOPBACK};

use super::{IN_FLIGHT, Mode, Server, Side, TRANSFERS, What, failed};
use crate::pin::Seats;
use crate::report::BenchError;

fn trouble(error: &FabricError) -> BenchError {
    failed("libfabric's loop", error)
}

/// Runs as the server of the loop, until the client tells it to end or it is killed.
pub(super) fn serve(provider: &str) -> Result<(), BenchError> {
    let reference = ReferenceLoop::open(provider).map_err(|error| trouble(&error))?;
    println!("ready {}", reference.name().map_err(|error| trouble(&error))?);
    std::io::stdout().flush().map_err(|error| failed("libfabric's loop", &error))?;
    reference.serve().map_err(|error| trouble(&error))
}

/// Whether there is such a loop: it knows the providers that need no special hardware, and none of Mercury's.
pub(super) fn has(provider: &str) -> bool {
    super::is_native(provider) && LOOPBACK.contains(&provider)
}

/// A client of the loop.
pub(super) struct Raw {
    reference: ReferenceLoop,
    server: Server,
}

impl Raw {
    pub(super) fn start(provider: &str) -> Result<Self, BenchError> {
        let (server, name) = Server::start_named(Mode::Raw, provider, Seats::USUAL)?;
        let reference = ReferenceLoop::open(provider).map_err(|error| trouble(&error))?;
        reference.connect(&name).map_err(|error| trouble(&error))?;
        server.rest()?;
        Ok(Self { reference, server })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // One that isn't told, or doesn't end, is killed; then its shared memory stays.
        if self.server.wake().is_ok() && self.reference.dismiss().is_ok() {
            self.server.leave();
        }
    }
}

impl Side for Raw {
    fn server(&self) -> &Server {
        &self.server
    }

    fn sample(&self, what: What, span: Duration) -> Result<f64, BenchError> {
        let (load, width) = match what {
            What::Alone | What::Beside => (Load::Echo, 1),
            What::Together => (Load::Echo, IN_FLIGHT),
            What::OneWay => (Load::Stream, 1),
            What::Read | What::AskedRead => (Load::Read, 1),
            What::Write | What::AskedWrite => (Load::WriteArrived, 1),
            What::Reads => (Load::Read, TRANSFERS),
            What::Writes => (Load::WriteArrived, TRANSFERS),
        };
        let width = u32::try_from(width).unwrap_or(1);
        self.reference.ask(load, width, span).map_err(|error| trouble(&error))
    }
}
