//! Updates and fetches of a mebibyte beside raw io_uring, by turns: a disk that others share is another one from one tenth of
//! a second to the next, so that only neighbouring turns are compared.

use std::path::Path;
use std::rc::Rc;

use weir_media::{Device, DmaPool};
use weir_runtime::Handle;
use weir_store::{Shard, Store, StoreConfig};

use super::load::{Load, new_store};
use super::{Cost, Raw, costs, failed, float, read_memory, report_cost, used_file};
use crate::report::{BenchError, Report};

/// Bytes of a transfer.
const LEN: usize = 1 << 20;
/// Size of each file: what all turns store, and room to spare.
const FILE_BYTES: u64 = 2 << 30;
/// Extents of a turn: some 10 ms of writes.
const COUNT: u64 = 64;
/// Rounds of reads over them, some 70 ms: the last ones in flight are compared with their checksums while the device has
/// nothing to do, and are few of them all.
const ROUNDS: u64 = 4;
/// Turns of each side; the first pair isn't counted: memory is touched in it for the first time.
const TURNS: u64 = 12;
/// In flight at once.
const WIDTHS: [u64; 2] = [4, 16];

/// Both sides.
struct Sides {
    handle: Handle,
    device: Rc<dyn Device>,
    pool: DmaPool,
    store: Rc<Store>,
    shard: Shard,
}

/// What a pair of turns gave, in operations a second.
struct Pair {
    updates: f64,
    writes: f64,
    fetches: f64,
    reads: f64,
    /// What an update cost.
    cost: Cost,
}

impl Sides {
    /// A turn of each, on blocks that neither has used before in this run. Either comes first by turns.
    async fn pair(&self, number: u64, width: u64) -> Option<Pair> {
        let load = Load::new(&self.handle, &self.shard, (number + 1) << 32, COUNT, width, LEN)?;
        let raw = Raw { handle: &self.handle, device: &self.device, pool: &self.pool, width, len: LEN };
        let begin = number * COUNT;
        let updates = async || {
            let before = costs(&self.store);
            let updates = load.updates(begin).await?;
            Some((updates, Cost::between(before, costs(&self.store), float(COUNT))))
        };
        if number.is_multiple_of(2) {
            let writes = raw.writes(begin, COUNT).await?;
            let (updates, cost) = updates().await?;
            let reads = raw.reads(begin, COUNT, ROUNDS).await?;
            return Some(Pair { updates, writes, fetches: load.fetches(ROUNDS).await?, reads, cost });
        }
        let (updates, cost) = updates().await?;
        let writes = raw.writes(begin, COUNT).await?;
        let fetches = load.fetches(ROUNDS).await?;
        Some(Pair { updates, writes, fetches, reads: raw.reads(begin, COUNT, ROUNDS).await?, cost })
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Adds the rows of one width: medians, and those of the ratios of neighbours.
fn report_pairs(report: &mut Report, width: u64, pairs: &[Pair]) {
    let goal = Some("at least 0.95 of raw");
    let mut row = |what: &str, reference: &str, of: fn(&Pair) -> [f64; 2]| {
        let [own, raw] = [0, 1].map(|side| median(pairs.iter().map(|pair| of(pair)[side])));
        let ratio = median(pairs.iter().map(|pair| of(pair)[0] / of(pair)[1]));
        let name = format!("store: {what} 1 MiB, {width} in flight");
        report.ratio(&name, own, "MiB/s", (reference, raw), ratio, goal);
    };
    let writes = format!("raw writes + flush per {width}");
    row("update", &writes, |pair| [pair.updates, pair.writes]);
    row("fetch", "raw reads", |pair| [pair.fetches, pair.reads]);
}

/// Adds the rows.
pub async fn measure(
    handle: &Handle,
    [raw_path, path]: [&Path; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let device = used_file(handle, raw_path, FILE_BYTES).await?;
    let pool = read_memory(&device);
    let used = used_file(handle, path, FILE_BYTES).await?;
    let (store, shard) = new_store(handle, used, StoreConfig::default()).await?;
    let sides = Sides { handle: handle.clone(), device, pool, store, shard };
    for (round, width) in (0..).zip(WIDTHS) {
        let mut pairs = Vec::new();
        for turn in 0..TURNS {
            let pair = sides.pair(round * TURNS + turn, width).await.ok_or_else(none)?;
            if turn > 0 {
                pairs.push(pair);
            }
        }
        if let Some(pair) = pairs.last().filter(|_| round == 0) {
            report_cost(report, "1 MiB", &pair.cost, LEN);
        }
        report_pairs(report, width, &pairs);
    }
    let Sides { store, shard, .. } = sides;
    drop(shard);
    store.close().await.map_err(|error| failed("close", &error))
}
