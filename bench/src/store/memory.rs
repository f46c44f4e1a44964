//! The store on a device in memory beside the figures of DAOS's store alone (`vos_perf`, in memory, one target), which
//! were measured on the same kind of machine at another time. `vos_perf` compares nothing with checksums: DAOS leaves that to
//! the reader, as Weir's engines do with large extents. How fast memory is differs by half between days, and bounds what is
//! large, so that a copy of as much is measured, too.

use std::rc::Rc;
use std::time::Instant;

use weir_media::memory::MemoryDevice;
use weir_media::{Device, DmaBuf, Slice};
use weir_runtime::Handle;
use weir_store::StoreConfig;

use super::failed;
use super::load::{Load, new_store};
use crate::report::{BenchError, Report};

/// 64 B updates and fetches of DAOS's store in a second.
const DAOS_SMALL: (f64, f64) = (118_000.0, 976_000.0);

/// MiB that it writes and reads in a second, in extents of 1 MiB: 2.5 and 10.2 GiB/s.
const DAOS_LARGE: (f64, f64) = (2560.0, 10_445.0);

/// Size of the device: room for what is stored, twice.
const DEVICE_BYTES: u64 = 512 << 20;

/// Bytes of the device that are touched at once before it is used.
const TOUCHED: usize = 1 << 20;

/// Small extents, and rounds over them.
const SMALL: (u64, u64) = (32_768, 4);

/// Large extents, and rounds over them.
const LARGE: (u64, u64) = (256, 4);

/// Requests in flight at once.
const WIDTH: u64 = 16;

/// MiB in a second that the processor copies, each from another place and all to the same, as a reader has them.
fn copies(count: u64, rounds: u64) -> f64 {
    let filled = || {
        let mut buffer = DmaBuf::new(1 << 20);
        buffer.fill(7);
        buffer
    };
    let sources: Vec<DmaBuf> = (0..count).map(|_| filled()).collect();
    let mut to = filled();
    let began = Instant::now();
    for _ in 0..rounds {
        for from in &sources {
            to.copy_from_slice(from);
            core::hint::black_box(&mut to);
        }
    }
    let copied = u32::try_from(count * rounds).map_or(f64::NAN, f64::from);
    copied / began.elapsed().as_secs_f64()
}

/// Adds the rows.
pub async fn measure(handle: &Handle, report: &mut Report) -> Result<(), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let config = StoreConfig { background: false, ..StoreConfig::default() };
    let device = MemoryDevice::new(DEVICE_BYTES);
    // The system has given all of the memory before, as it has for the file in memory that DAOS allocates.
    let zeros = Slice::from(DmaBuf::new(TOUCHED));
    for offset in (0..DEVICE_BYTES).step_by(TOUCHED) {
        device.write(offset, vec![zeros.clone()]).await.map_err(|error| failed("a transfer", &error))?;
    }
    let (_store, shard) = new_store(handle, Rc::new(device), config).await?;
    let goal = Some("at least 1.5");
    let mut row = |name: &str, value: f64, unit: &str, daos: f64| {
        report.beside(&format!("store in memory: {name}"), value, unit, ("DAOS's store alone", daos), goal);
    };
    let (count, rounds) = SMALL;
    let load = Load::new(handle, &shard, 1 << 32, count, WIDTH, 64).ok_or_else(none)?;
    row("update 64 B", load.updates().await.ok_or_else(none)?, "op/s", DAOS_SMALL.0);
    row("fetch 64 B", load.fetches(rounds).await.ok_or_else(none)?, "op/s", DAOS_SMALL.1);
    let (count, rounds) = LARGE;
    let load = Load::new(handle, &shard, 2 << 32, count, 1, 1 << 20).ok_or_else(none)?;
    row("update 1 MiB", load.updates().await.ok_or_else(none)?, "MiB/s", DAOS_LARGE.0);
    let fetches = load.fetches(rounds).await.ok_or_else(none)?;
    row("fetch 1 MiB for a reader who compares", fetches, "MiB/s", DAOS_LARGE.1);
    report.beside(
        "store in memory: fetch 1 MiB beside a copy",
        fetches,
        "MiB/s",
        ("a copy", copies(count, rounds)),
        None,
    );
    let compared = load.compared_here().fetches(rounds).await.ok_or_else(none)?;
    let daos = ("DAOS's store alone", DAOS_LARGE.1);
    report.beside("store in memory: fetch 1 MiB and compare", compared, "MiB/s", daos, None);
    Ok(())
}
