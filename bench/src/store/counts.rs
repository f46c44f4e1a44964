//! What an operation costs whatever the machine: instructions and allocations. A program of its own runs a load on a
//! store in memory under a counter, twice, the second time with twice as many operations; the difference counts. valgrind counts
//! a copy that the processor makes by itself (`rep movsb`) as an instruction for each byte.

use std::process::Command;
use std::rc::Rc;

use weir_media::memory::MemoryDevice;
use weir_runtime::real::Executor;
use weir_store::StoreConfig;

use super::failed;
use super::load::{Load, new_store};
use crate::instructions;
use crate::report::{BenchError, Report};

/// Updates and fetches counted; the second run has twice as many.
const OPERATIONS: u64 = 4096;

/// In flight at once.
const WIDTH: u64 = 32;

/// Bytes of an operation.
const SIZES: [(&str, usize); 3] = [("64 B", 64), ("4 KiB", 4096), ("1 MiB", 1 << 20)];

/// Runs a load: `arguments` is `update|fetch|compare:bytes:operations`. Fetches are of extents stored before, of which there
/// are always as many; those to compare are compared by the store whatever their size.
pub fn run(arguments: &str) -> Result<(), BenchError> {
    let wrong = || failed("count", &format!("{arguments} is not update|fetch|compare:bytes:operations"));
    let mut parts = arguments.split(':');
    let (Some(kind), Some(len), Some(count)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    let len: usize = len.parse().map_err(|_| wrong())?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let executor = Executor::new().map_err(|error| failed("start an executor", &error))?;
    let handle = executor.handle();
    executor.block_on(async {
        let none = || failed("a transfer", &"an operation failed");
        let device = Rc::new(MemoryDevice::new(1 << 30));
        let config = StoreConfig { background: false, ..StoreConfig::default() };
        let (store, shard) = new_store(&handle, device, config).await?;
        let base = operations(len);
        let load = |count| Load::new(&handle, &shard, 1 << 32, count, WIDTH, len).ok_or_else(none);
        if kind == "update" {
            load(count)?.updates().await.ok_or_else(none)?;
        } else {
            let load = load(base)?;
            load.updates().await.ok_or_else(none)?;
            let load = if kind == "compare" { load.compared_here() } else { load };
            load.fetches(count / base).await.ok_or_else(none)?;
        }
        drop(store);
        Ok(())
    })
}

const fn operations(len: usize) -> u64 {
    if len >= 1 << 20 { 64 } else { OPERATIONS }
}

/// Allocations of a whole run, as valgrind says at its end; `None` where there is none.
fn allocations(arguments: &str) -> Option<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"])
        .arg(std::env::current_exe().ok()?)
        .args(["--store-operations", arguments])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stderr).ok()?;
    let (_, rest) = text.split_once("total heap usage: ")?;
    output.status.success().then_some(())?;
    rest.split_once(" allocs")?.0.replace(',', "").parse().ok()
}

/// The difference of two runs for each operation.
fn cost(kind: &str, len: usize, count: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let base = operations(len);
    let once = count(&format!("{kind}:{len}:{base}"))?;
    let twice = count(&format!("{kind}:{len}:{}", 2 * base))?;
    Some((twice - once) / super::load::float(base))
}

/// Adds a row for each kind and size, where there is something to count with.
pub fn measure(report: &mut Report) {
    for (size, len) in SIZES {
        for (kind, name) in [("update", "update"), ("fetch", "fetch"), ("compare", "fetch and compare")] {
            // What is in memory or small comes with its checksum, and nobody compares it on its way.
            if kind == "compare" && len < 1 << 20 {
                continue;
            }
            let counted = cost(kind, len, |arguments| instructions::of_run("--store-operations", arguments));
            if let Some(instructions) = counted {
                report.figure(&format!("store: instructions per {size} {name}"), instructions, "", None);
            }
            if let Some(allocations) = cost(kind, len, allocations) {
                report.figure(&format!("store: allocations per {size} {name}"), allocations, "", None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_load_that_is_counted_runs_and_a_wrong_one_is_refused() {
        super::run("update:64:64").expect("it runs");
        super::run("fetch:64:4096").expect("it runs");
        super::run("compare:1048576:64").expect("it runs");
        assert!(super::run("update:64").is_err());
    }
}
