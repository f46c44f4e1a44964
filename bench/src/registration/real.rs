//! What exposing memory and ending that takes on this machine's providers, with and without keeping registrations.

use std::time::Instant;

use weir_fabric::libfabric::open;
use weir_fabric::{Access, Buffer, Endpoint, Options};
use weir_runtime::real::Executor;

use crate::fabric::failed;
use crate::report::{BenchError, Report};

/// Registrations that are measured at a time, and how often; the quickest counts.
const ROUNDS: u32 = 5_000;
const TIMES: u32 = 7;

/// Bytes of the memory.
const LEN: usize = 1 << 20;

/// Microseconds of one exposure and its end.
fn time(endpoint: &dyn Endpoint, buffer: &Buffer) -> Result<f64, BenchError> {
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let began = Instant::now();
        for _ in 0..ROUNDS {
            let exposure = endpoint.expose(buffer, 0..LEN, Access::Read);
            exposure.map_err(|error| failed("registration", &error))?.settle();
        }
        best = best.min(began.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
    }
    Ok(best)
}

/// Measures every provider that needs no special hardware.
pub fn measure(report: &mut Report) -> Result<(), BenchError> {
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    for provider in ["tcp", "shm"] {
        let open = |kept: usize| {
            let options = Options { mr_cache: kept, ..Options::near(provider, "127.0.0.1", 1) };
            open(&executor.handle(), &options).map_err(|error| failed("registration", &error))
        };
        let (plain, keeping) = (open(0)?, open(64)?);
        let alloc =
            |endpoint: &dyn Endpoint| endpoint.buffers().alloc(LEN).map_err(|error| failed("memory", &error));
        let each = time(&*plain, &alloc(&*plain)?)?;
        let kept = time(&*keeping, &alloc(&*keeping)?)?;
        let foreign = time(&*keeping, &Buffer::from_vec(vec![0; LEN]))?;
        let hits = keeping.counters().mr_hits.get();
        println!(
            "{provider}: {each:.3} µs; kept {kept:.3} µs; kept, application's {foreign:.3} µs; {hits} served again"
        );
        let goal = Some("at most 2 µs");
        report.figure(&format!("registration {provider}: 1 MiB, made and ended"), each, "µs", goal);
        let name = format!("registration {provider}: 1 MiB, kept");
        report.beside(&name, kept, "µs", ("made and ended", each), goal);
        let name = format!("registration {provider}: 1 MiB, application's, kept");
        report.beside(&name, foreign, "µs", ("made and ended", each), goal);
    }
    Ok(())
}
