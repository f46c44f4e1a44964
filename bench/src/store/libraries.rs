//! A warm store beside other storage libraries, by turns: the same load, one thread, updates durable when they are answered.

use std::path::Path;
use std::rc::Rc;

use weir_media::Device;
use weir_media::file::FileDevice;
use weir_runtime::Handle;
use weir_store::{Shard, Store, StoreConfig};

use super::load::{self, Load, float};
use super::{CACHE_BYTES, OPERATIONS, Size, WIDTH, failed, floor};
use crate::pairs::{Pairs, median};
use crate::pin;
use crate::references::{LIBRARIES, Reference};
use crate::report::{BenchError, Report};

/// Has the system write what a side has left to be written, before another one's turn.
fn settle() {
    rustix::fs::sync();
}

/// Turns of each side that count, behind one that doesn't: what is touched for the first time, and who has to be woken.
const TURNS: u64 = 11;
/// Updates with which a turn begins and which aren't counted: what others have driven from the processor's caches meanwhile
/// isn't what is measured.
const WARM_UP: u64 = 1024;
/// Rounds of fetches in a turn.
const ROUNDS: u64 = 4;

/// What is measured, and what it has to compare itself with.
pub struct Sides<'a> {
    pub handle: &'a Handle,
    /// The store's file.
    pub path: &'a Path,
    /// A file for raw writes.
    pub raw: &'a Rc<dyn Device>,
    /// Core of this thread; the libraries run where the system puts them.
    pub seat: usize,
    /// The libraries' program, and a folder for their data.
    pub program: &'a Path,
    pub scratch: &'a Path,
}

/// What is aimed at beside a library: at updates, and at fetches.
fn goals(library: &str) -> (Option<&'static str>, Option<&'static str>) {
    match library {
        "RocksDB" | "RocksDB's writers" => (Some("at least 3"), None),
        "LMDB" => (None, Some("at least 1")),
        _ => (None, None),
    }
}

fn size_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1024) { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}

/// What turns beside one library gave.
#[derive(Default)]
struct Turns {
    updates: Pairs,
    fetches: Pairs,
    overwrites: Pairs,
    /// Updates that the disk takes, whoever writes them, beside the library's, and the store's beside them.
    floors: Pairs,
    of_floor: Pairs,
    /// Bytes that the library wrote, and its CPU time, for each update.
    written: Vec<f64>,
    cpu_us: Vec<f64>,
}

impl Turns {
    fn report(&self, report: &mut Report, library: &str, bytes: usize) {
        let size = size_name(bytes);
        let (updates, fetches) = goals(library);
        let batch =
            format!("32 in one write of {} and one flush", size_name((32 * bytes).next_multiple_of(4096)));
        let name = format!("store: update {size}, synced, 32 in flight / {library}");
        self.updates.rate(report, &name, "op/s", library, updates);
        if !self.overwrites.is_empty() {
            let name = format!("store: overwrite {size}, synced, 32 in flight / {library}");
            self.overwrites.rate(report, &name, "op/s", library, updates);
        }
        let name = format!("raw: {size}, {batch} / {library}");
        self.floors.rate(report, &name, "op/s", library, None);
        let name = format!("store: update {size}, synced, 32 in flight / the disk");
        self.of_floor.rate(report, &name, "op/s", &format!("raw: {batch}"), None);
        let name = format!("store: fetch {size} / {library}");
        self.fetches.rate(report, &name, "op/s", library, fetches);
        let name = format!("{library}: bytes written per byte of {size} updates");
        report.figure(&name, median(self.written.iter().copied()) / float(bytes as u64), "", None);
        let name = format!("{library}: CPU per {size} update");
        let cpu = self.cpu_us.iter().sum::<f64>() / float(self.cpu_us.len() as u64);
        report.figure(&name, cpu, "us", None);
    }
}

/// One size beside one library.
struct Match<'a> {
    sides: &'a Sides<'a>,
    size: &'a Size,
    shard: &'a Shard,
    /// Which of the libraries it is: the store's keys are others each time.
    number: u64,
    reference: Reference,
}

impl Match<'_> {
    /// A load of keys of its own.
    fn load(&self, turn: u64) -> Option<Load> {
        let count = if turn == 0 { OPERATIONS } else { self.size.turn };
        let first = self.size.first + (((self.number + 1) << 8 | turn) << 20);
        Load::new(self.sides.handle, self.shard, first, count, self.size.width, self.size.len)
    }

    /// One turn of updates: the disk, the store, and the library.
    async fn updates(&mut self, turn: u64, into: &mut Turns) -> Result<(), BenchError> {
        let none = || failed("a transfer", &"an operation failed");
        let count = self.size.turn;
        let write = async |count| floor(self.sides.raw, self.size.len, count / WIDTH).await.ok_or_else(none);
        settle();
        write(WARM_UP).await?;
        let floor = write(count).await?;
        let load = self.load(turn).ok_or_else(none)?;
        let mut warm_up = load.under(load.first + (1 << 19));
        warm_up.count = WARM_UP;
        settle();
        warm_up.updates().await.ok_or_else(none)?;
        let own = load.updates().await.ok_or_else(none)?;
        settle();
        let before = self.reference.turn("update", WARM_UP)?;
        let other = self.reference.turn("update", count)?;
        into.floors.add(floor, other.rate);
        into.of_floor.add(own, floor);
        into.updates.add(own, other.rate);
        into.written.push((other.written - before.written) / float(count));
        into.cpu_us.push((other.cpu_us - before.cpu_us) / float(count));
        Ok(())
    }

    /// One turn of overwrites of what is fetched.
    async fn overwrites(&mut self, turn: u64, stored: &Load, into: &mut Turns) -> Result<(), BenchError> {
        let none = || failed("a transfer", &"an operation failed");
        let (seed, count) = ((self.number << 8 | turn) << 20, self.size.overwritten);
        settle();
        stored.overwrites(seed, WARM_UP).await.ok_or_else(none)?;
        let own = stored.overwrites(seed + WARM_UP, count).await.ok_or_else(none)?;
        settle();
        self.reference.turn("overwrite", WARM_UP)?;
        into.overwrites.add(own, self.reference.turn("overwrite", count)?.rate);
        Ok(())
    }

    /// All turns. What is fetched is stored first.
    async fn turns(&mut self) -> Result<Turns, BenchError> {
        let none = || failed("a transfer", &"an operation failed");
        let stored = self.load(0).ok_or_else(none)?;
        stored.updates().await.ok_or_else(none)?;
        stored.fetches(self.size.warm_up).await.ok_or_else(none)?;
        self.updates(1, &mut Turns::default()).await?;
        let mut turns = Turns::default();
        for turn in 2..TURNS + 2 {
            self.updates(turn, &mut turns).await?;
        }
        for turn in 0..=TURNS {
            let own = stored.fetches(ROUNDS).await.ok_or_else(none)?;
            let other = self.reference.turn("fetch", ROUNDS)?.rate;
            if turn > 0 {
                turns.fetches.add(own, other);
            }
        }
        self.overwrites(0, &stored, &mut Turns::default()).await?;
        for turn in 1..=TURNS {
            self.overwrites(turn, &stored, &mut turns).await?;
        }
        Ok(turns)
    }
}

/// Adds the rows of these sizes. The store has room for all values of 4 KiB in memory, as the libraries have it.
pub async fn measure(sides: &Sides<'_>, measured: &[&Size], report: &mut Report) -> Result<(), BenchError> {
    let device = FileDevice::open(sides.handle, sides.path).map_err(|error| failed("open", &error))?;
    let config = StoreConfig { cache_bytes: CACHE_BYTES, ..StoreConfig::default() };
    let store = Store::open(sides.handle, Rc::new(device), &load::owner(), config).await;
    let store = store.map_err(|error| failed("open", &error))?;
    let shard = store.pool(load::POOL).ok_or_else(|| failed("a pool", &"it isn't there"))?;
    for size in measured {
        for (number, library) in (0..).zip(LIBRARIES) {
            let folder = sides.scratch.join(format!("reference-{number}-{}", size.len));
            pin::release();
            let started =
                Reference::start(sides.program, folder, library, [OPERATIONS, WIDTH, size.len as u64]);
            pin::pin(sides.seat);
            let mut beside = Match { sides, size, shard: &shard, number, reference: started? };
            beside.turns().await?.report(report, library, size.len);
        }
    }
    drop(shard);
    store.close().await.map_err(|error| failed("close", &error))
}
