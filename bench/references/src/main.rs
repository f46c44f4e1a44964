//! `weir-bench-references`: puts RocksDB, LMDB and redb under the load that `weir-bench store` puts a target's store
//! under, and prints what they reach as JSON.
//!
//! Values of one size under keys of eight bytes, the same ones as that store's dkeys, in the same order, that of a
//! multiplication, so that neighbours in time aren't neighbours in the key space. First those are stored that will be fetched;
//! behind the fetches the updates that are measured, of other keys: the database is warm then, and they are many enough for
//! single stalls of the disk not to decide. One thread puts `width` updates into each
//! durable (fsync or fdatasync) group: in RocksDB single writes and then one sync of its log, in LMDB and redb one
//! transaction. That spares the libraries what the store does for its callers, who know nothing of each other; so RocksDB
//! is measured a second time with `width` threads ("RocksDB's writers"), each of which waits for its own updates.
//!
//! Fetches ask for all keys in that order, round by round; a first round isn't counted. Each fetch copies the value to a
//! buffer that the compiler has to believe somebody looks at. In LMDB and redb each has a read transaction of its own, as
//! each fetch of the store sees what is newest when it begins.

use std::hint::black_box;
use std::iter::StepBy;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use heed::types::Bytes;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use serde::Serialize;

/// Most bytes of an LMDB file: address space, not disk.
const LMDB_MAP: usize = 4 << 30;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("values");

type Failure = Box<dyn std::error::Error>;

/// What a library reached.
#[derive(Serialize)]
struct Figures {
    /// The library.
    engine: &'static str,
    /// Bytes of a value.
    value_bytes: usize,
    /// Updates made durable in a second.
    updates: f64,
    /// Fetches in a second.
    fetches: f64,
    /// Bytes handed to the system for writing, per byte of values.
    amplification: f64,
    /// CPU time of the process in microseconds per update.
    update_cpu_us: f64,
}

/// The first key.
const FIRST_KEY: u64 = 1 << 32;

/// The load.
struct Load {
    /// Keys that are stored first, and fetched.
    keys: u64,
    /// Updates of further keys that are measured.
    updates: u64,
    /// Updates in a batch.
    width: u64,
    /// Rounds of fetches that are counted.
    rounds: u64,
    value: Vec<u8>,
}

impl Load {
    /// The key of an operation: the fetched ones come first, the others behind them.
    fn key(&self, number: u64) -> u64 {
        let place = |number: u64, count: u64| number.wrapping_mul(0x9e37_79b9) % count;
        match number.checked_sub(self.keys) {
            None => FIRST_KEY + place(number, self.keys),
            Some(number) => FIRST_KEY + self.keys + place(number, self.updates),
        }
    }

    /// Fetches all values once.
    fn round(
        &self,
        engine: &str,
        into: &mut [u8],
        fetch: &mut impl FnMut(u64, &mut [u8]) -> Result<usize, Failure>,
    ) -> Result<(), Failure> {
        for number in 0..self.keys {
            let len = fetch(self.key(number), into)?;
            black_box(&*into);
            if len != self.value.len() {
                return Err(format!("{engine}: a value of {len} bytes").into());
            }
        }
        Ok(())
    }

    /// Stores values in groups, one after another.
    fn in_groups(
        &self,
        numbers: Range<u64>,
        mut update: impl FnMut(&mut dyn Iterator<Item = u64>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for first in numbers.clone().step_by(usize::try_from(self.width)?) {
            let last = (first + self.width).min(numbers.end);
            update(&mut (first..last).map(|number| self.key(number)))?;
        }
        Ok(())
    }

    /// Stores values from `width` threads, each its own share, one after another.
    fn in_threads<E: std::error::Error + Send + Sync + 'static>(
        &self,
        numbers: Range<u64>,
        update: impl Fn(u64) -> Result<(), E> + Sync,
    ) -> Result<(), Failure> {
        let step = usize::try_from(self.width).unwrap_or(1);
        let share = |writer| (numbers.start + writer..numbers.end).step_by(step);
        let update = &update;
        std::thread::scope(|scope| {
            let write = |numbers: StepBy<Range<u64>>| {
                move || numbers.into_iter().try_for_each(|number| update(self.key(number)))
            };
            let writers: Vec<_> = (0..self.width).map(|writer| scope.spawn(write(share(writer)))).collect();
            writers
                .into_iter()
                .try_for_each(|writer| Ok(writer.join().map_err(|_| "a writer panicked")??))
        })
    }

    /// Figures of a library from how it stores values and how it fetches one.
    fn run(
        &self,
        engine: &'static str,
        store: impl Fn(Range<u64>) -> Result<(), Failure>,
        mut fetch: impl FnMut(u64, &mut [u8]) -> Result<usize, Failure>,
    ) -> Result<Figures, Failure> {
        store(0..self.keys)?;
        let mut into = vec![0; self.value.len()];
        self.round(engine, &mut into, &mut fetch)?;
        let begin = Instant::now();
        for _ in 0..self.rounds {
            self.round(engine, &mut into, &mut fetch)?;
        }
        let fetches = float(self.keys * self.rounds) / begin.elapsed().as_secs_f64();
        let (begin, cpu, written) = (Instant::now(), cpu_us()?, written()?);
        store(self.keys..self.keys + self.updates)?;
        let (seconds, cpu, written) =
            (begin.elapsed().as_secs_f64(), cpu_us()? - cpu, self::written()? - written);
        let count = float(self.updates);
        Ok(Figures {
            engine,
            value_bytes: self.value.len(),
            updates: count / seconds,
            fetches,
            amplification: written / (count * float(self.value.len() as u64)),
            update_cpu_us: cpu / count,
        })
    }
}

/// Copies a value out, as much of it as has room. Returns its length; 0 when there is none.
fn copy_out(value: Option<&[u8]>, into: &mut [u8]) -> usize {
    let value = value.unwrap_or_default();
    if let Some(into) = into.get_mut(..value.len()) {
        into.copy_from_slice(value);
    }
    value.len()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
const fn float(count: u64) -> f64 {
    count as f64
}

/// Bytes that this process has had written to storage.
fn written() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap_or("0");
    Ok(bytes.parse()?)
}

/// CPU time of this process: in ticks of the kernel, so good for long runs only.
fn cpu_us() -> Result<f64, Failure> {
    /// Microseconds of a clock tick.
    const TICK_US: f64 = 10_000.0;
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks * TICK_US)
}

fn open_rocksdb(folder: &Path) -> Result<rocksdb::DB, Failure> {
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    Ok(rocksdb::DB::open(&options, folder)?)
}

fn with_rocksdb(folder: &Path, load: &Load) -> Result<Figures, Failure> {
    let database = open_rocksdb(folder)?;
    let update = |keys: &mut dyn Iterator<Item = u64>| {
        for key in keys {
            database.put(key.to_be_bytes(), &load.value)?;
        }
        Ok(database.flush_wal(true)?)
    };
    let store = |numbers| load.in_groups(numbers, update);
    load.run("RocksDB", store, |key, into| {
        Ok(copy_out(database.get_pinned(key.to_be_bytes())?.as_deref(), into))
    })
}

/// Updates that RocksDB puts together itself: each is its writer's own, who waits until it is durable.
fn with_rocksdb_writers(folder: &Path, load: &Load) -> Result<Figures, Failure> {
    let database = open_rocksdb(folder)?;
    let mut synced = rocksdb::WriteOptions::default();
    synced.set_sync(true);
    let store =
        |numbers| load.in_threads(numbers, |key| database.put_opt(key.to_be_bytes(), &load.value, &synced));
    load.run("RocksDB's writers", store, |key, into| {
        Ok(copy_out(database.get_pinned(key.to_be_bytes())?.as_deref(), into))
    })
}

fn with_lmdb(folder: &Path, load: &Load) -> Result<Figures, Failure> {
    // SAFETY: the folder was made by this process for this run; no other process or file descriptor uses it.
    #[expect(
        unsafe_code,
        reason = "a memory map can be changed behind the program's back; this one is private to it"
    )]
    let environment: heed::Env = unsafe { heed::EnvOpenOptions::new().map_size(LMDB_MAP).open(folder)? };
    let mut transaction = environment.write_txn()?;
    let database: heed::Database<Bytes, Bytes> = environment.create_database(&mut transaction, None)?;
    transaction.commit()?;
    let update = |keys: &mut dyn Iterator<Item = u64>| {
        let mut transaction = environment.write_txn()?;
        for key in keys {
            database.put(&mut transaction, &key.to_be_bytes(), &load.value)?;
        }
        Ok(transaction.commit()?)
    };
    let store = |numbers| load.in_groups(numbers, update);
    load.run("LMDB", store, |key, into| {
        let transaction = environment.read_txn()?;
        Ok(copy_out(database.get(&transaction, &key.to_be_bytes())?, into))
    })
}

fn with_redb(folder: &Path, load: &Load) -> Result<Figures, Failure> {
    let database = Database::create(folder.join("values.redb"))?;
    let update = |keys: &mut dyn Iterator<Item = u64>| {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for key in keys {
                table.insert(key, load.value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    };
    let store = |numbers| load.in_groups(numbers, update);
    load.run("redb", store, |key, into| {
        let transaction = database.begin_read()?;
        let table = transaction.open_table(TABLE)?;
        Ok(copy_out(table.get(key)?.as_ref().map(redb::AccessGuard::value), into))
    })
}

fn measure(
    scratch: &Path,
    [keys, width, rounds]: [u64; 3],
    sizes: &[(usize, u64)],
) -> Result<Vec<Figures>, Failure> {
    let mut all = Vec::new();
    for &(bytes, updates) in sizes {
        let load = Load { keys, updates, width, rounds, value: vec![7; bytes] };
        let engines: [fn(&Path, &Load) -> Result<Figures, Failure>; 4] =
            [with_rocksdb, with_rocksdb_writers, with_lmdb, with_redb];
        for (number, engine) in engines.into_iter().enumerate() {
            let folder = scratch.join(format!("reference-{number}-{bytes}"));
            std::fs::create_dir_all(&folder)?;
            let figures = engine(&folder, &load);
            std::fs::remove_dir_all(&folder)?;
            all.push(figures?);
        }
    }
    Ok(all)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: weir-bench-references SCRATCH KEYS WIDTH ROUNDS VALUE_BYTES:UPDATES…";
    let [scratch, keys, width, rounds, sizes @ ..] = arguments.as_slice() else {
        return Err(usage.into());
    };
    let size = |size: &String| {
        let (bytes, updates) = size.split_once(':').ok_or(usage)?;
        Ok::<_, Failure>((bytes.parse()?, updates.parse()?))
    };
    let sizes = sizes.iter().map(size).collect::<Result<Vec<(usize, u64)>, _>>()?;
    let load = [keys.parse()?, width.parse()?, rounds.parse()?];
    let figures = measure(&PathBuf::from(scratch), load, &sizes)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
