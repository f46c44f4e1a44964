//! Updates and fetches of a mebibyte beside raw io_uring, by turns: a disk that others share is another one from one tenth of
//! a second to the next. Raw reads are the store's own once more, of the same blocks in the same order to the same memory: what
//! a virtual machine takes for a disk is twice as fast in one place as in another, and to some of its memory a tenth faster
//! than to the rest. Fetches are those of an engine whose client compares what it gets, as Weir's do, so that the store doesn't look
//! at it; those that the store compares stand beside raw reads whose checksum is computed.

use std::path::Path;
use std::rc::Rc;

use weir_media::Device;
use weir_runtime::Handle;
use weir_store::{Shard, Store, StoreConfig};

use super::load::{Load, new_store};
use super::tapped::Tapped;
use super::{Cost, Raw, costs, failed, float, report_cost, used_file};
use crate::pairs::Pairs;
use crate::report::{BenchError, Report};

/// Bytes of a transfer.
const LEN: usize = 1 << 20;
/// Size of each file: what all turns store, and room to spare.
const FILE_BYTES: u64 = 2 << 30;
/// Extents of a turn: some 10 ms of writes.
const COUNT: u64 = 64;
/// Rounds of reads over them, some 35 ms: the last ones in flight are compared with their checksums while the device has
/// nothing to do, and are few of them all.
const ROUNDS: u64 = 2;
/// How often each side reads what a turn has stored: a read is twice as fast at one moment as at the next more often than a
/// write.
const READS: u64 = 3;
/// Turns of each side; the first pair isn't counted: memory is touched in it for the first time.
const TURNS: u64 = 12;
/// In flight at once.
const WIDTHS: [u64; 2] = [4, 16];

/// Both sides.
struct Sides {
    handle: Handle,
    /// What is written raw.
    device: Rc<dyn Device>,
    /// Where the store lies, and what is read raw.
    used: Rc<dyn Device>,
    tapped: Rc<Tapped>,
    store: Rc<Store>,
    shard: Shard,
}

/// What turns of one width gave.
#[derive(Default)]
struct Turns {
    updates: Pairs,
    fetches: Pairs,
    /// Fetches that are compared here beside raw reads of which the bytes are looked at.
    looks: Pairs,
    /// The same beside raw reads that nobody looks at.
    bare: Pairs,
    /// What an update cost in the last one.
    cost: Option<Cost>,
    /// Microseconds of the processor that a fetch took in the last one, for a reader who compares, and compared here.
    cpu_us: [f64; 2],
}

impl Sides {
    /// A turn of each, on blocks that neither has used before in this run. Either comes first by turns.
    async fn turn(&self, number: u64, load: &Load, into: &mut Turns) -> Option<()> {
        let (load, width) = (load.under((number + 1) << 32), load.width);
        let memory = || load.external();
        let raw = |device| Raw { handle: &self.handle, device, memory: &memory, width, len: LEN };
        let begin = number * COUNT;
        let updates = async || {
            let before = costs(&self.store);
            let updates = load.updates().await?;
            Some((updates, Cost::between(before, costs(&self.store), float(COUNT))))
        };
        let own_first = number % 2 == 1;
        let ((updates, cost), writes) = if own_first {
            (updates().await?, raw(&self.device).writes(begin, COUNT).await?)
        } else {
            let writes = raw(&self.device).writes(begin, COUNT).await?;
            (updates().await?, writes)
        };
        self.tapped.note_reads();
        load.fetches(1).await?;
        let places: Rc<[u64]> = self.tapped.noted_reads().into();
        if places.len() as u64 != COUNT {
            // The device was asked for something else, or more than once for one extent: no pair.
            return None;
        }
        for round in 0..READS {
            let mut rates = [0.0; 4];
            let fetches = async |load: &Load| {
                let before = costs(&self.store);
                let rate = load.fetches(ROUNDS).await?;
                Some((rate, Cost::between(before, costs(&self.store), float(COUNT * ROUNDS)).cpu_us))
            };
            for side in 0..4 {
                let side = (number + round + side) % 4;
                rates[usize::try_from(side).ok()?] = match side {
                    0 => {
                        let (rate, cpu_us) = fetches(&load).await?;
                        into.cpu_us[0] = cpu_us;
                        rate
                    }
                    1 => {
                        let (rate, cpu_us) = fetches(&load.compared_here()).await?;
                        into.cpu_us[1] = cpu_us;
                        rate
                    }
                    side => raw(&self.used).reads(&places, ROUNDS, side == 3).await?,
                };
            }
            let [uncompared, compared, reads, looks] = rates;
            into.fetches.add(uncompared, reads);
            into.looks.add(compared, looks);
            into.bare.add(compared, reads);
        }
        into.updates.add(updates, writes);
        into.cost = Some(cost);
        Some(())
    }
}

/// Adds the rows.
pub async fn measure(
    handle: &Handle,
    [raw_path, path]: [&Path; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let device = used_file(handle, raw_path, FILE_BYTES).await?;
    let used = used_file(handle, path, FILE_BYTES).await?;
    let tapped = Rc::new(Tapped::new(Rc::clone(&used)));
    let (store, shard) = new_store(handle, Rc::clone(&tapped) as _, StoreConfig::default()).await?;
    let sides = Sides { handle: handle.clone(), device, used, tapped, store, shard };
    let goal = Some("at least 0.95 of raw");
    for (round, width) in (0..).zip(WIDTHS) {
        let load = Load::new(handle, &sides.shard, 0, COUNT, width, LEN).ok_or_else(none)?;
        sides.turn(round * TURNS, &load, &mut Turns::default()).await.ok_or_else(none)?;
        let mut turns = Turns::default();
        for turn in 1..TURNS {
            sides.turn(round * TURNS + turn, &load, &mut turns).await.ok_or_else(none)?;
        }
        if let Some(cost) = turns.cost.filter(|_| round == 0) {
            report_cost(report, "1 MiB", &cost, LEN);
            let [uncompared, compared] = turns.cpu_us;
            report.figure("store: CPU per 1 MiB fetch for a reader who compares", uncompared, "us", None);
            report.figure("store: CPU per 1 MiB fetch and compare", compared, "us", None);
        }
        let writes = format!("raw writes + flush per {width}");
        for (what, pairs, reference, goal) in [
            ("update 1 MiB", turns.updates, writes.as_str(), goal),
            ("fetch 1 MiB for a reader who compares", turns.fetches, "the same raw reads", goal),
            ("fetch 1 MiB and compare", turns.looks, "the same raw reads and their checksums", None),
            ("fetch 1 MiB and compare, beside bare reads", turns.bare, "the same raw reads", None),
        ] {
            let name = format!("store: {what}, {width} in flight");
            pairs.rate(report, &name, "MiB/s", reference, goal);
        }
    }
    let Sides { store, shard, .. } = sides;
    drop(shard);
    store.close().await.map_err(|error| failed("close", &error))
}
