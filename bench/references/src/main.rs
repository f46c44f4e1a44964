//! `weir-bench-references`: puts RocksDB, LMDB and redb under the load that `weir-bench store` puts a target's store
//! under, a turn each time that it is told to, so that both take turns.
//!
//! `weir-bench-references SCRATCH LIBRARY KEYS WIDTH VALUE_BYTES` stores `KEYS` values, fetches them once, and prints how it
//! stands: a line of JSON ([`Standing`]). Then each line that it reads is a turn, and is answered by another such line:
//! `update COUNT` stores so many values under further keys, `overwrite COUNT` stores so many under the first ones, drawn at
//! random, `fetch ROUNDS` fetches the first ones so many times. It ends when
//! its input does.
//!
//! Values of one size under keys of eight bytes, as many as that store's dkeys and in the same order, that of a
//! multiplication, so that neighbours in time aren't neighbours in the key space. One thread puts `WIDTH` updates into each
//! durable (fsync or fdatasync) group: in RocksDB one synced batch, which is faster than single writes and one sync of its
//! log, in LMDB and redb one transaction. That spares the libraries what the store does for its callers, who know nothing
//! of each other; so RocksDB is measured a second time with `WIDTH` threads ("RocksDB's writers"), each of which waits for
//! its own updates.
//!
//! Each fetch copies the value to a buffer that the compiler has to believe somebody looks at. In LMDB and redb each has a read
//! transaction of its own, as each fetch of the store sees what is newest when it begins.

use std::hint::black_box;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use heed::types::Bytes;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use serde::Serialize;

/// Most bytes of an LMDB file: address space, not disk.
const LMDB_MAP: usize = 4 << 30;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("values");

type Failure = Box<dyn std::error::Error>;

/// What a library has done so far, and the turn that has just ended.
#[derive(Serialize)]
struct Standing {
    /// Operations of the turn in a second; 0 before the first.
    rate: f64,
    /// Bytes handed to the system for writing since the start.
    written: f64,
    /// CPU time of the process since the start, in microseconds.
    cpu_us: f64,
}

impl Standing {
    fn now(rate: f64) -> Result<Self, Failure> {
        Ok(Self { rate, written: written()?, cpu_us: cpu_us()? })
    }
}

/// The first key.
const FIRST_KEY: u64 = 1 << 32;

/// A library under the load.
trait Library {
    /// Stores the value under these keys, durably when it returns.
    fn store(&self, keys: &[u64], value: &[u8]) -> Result<(), Failure>;

    /// Copies the value of a key out; its length.
    fn fetch(&self, key: u64, into: &mut [u8]) -> Result<usize, Failure>;
}

/// The load.
struct Load {
    /// Keys that are stored first, and fetched.
    keys: u64,
    /// Keys that were stored since.
    further: u64,
    /// Keys that were drawn to be overwritten.
    drawn: u64,
    /// Updates in a batch.
    width: usize,
    value: Vec<u8>,
}

/// So many keys from one on, in no order.
fn scattered(first: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| first + number.wrapping_mul(0x9e37_79b9) % count)
}

/// A number that looks random, and is the same for the same seed: the finalizer of `SplitMix64` (Steele, Lea, Flood 2014).
const fn drawn(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Load {
    /// Fetches all values that were stored first.
    fn round(&self, library: &dyn Library, into: &mut [u8]) -> Result<(), Failure> {
        for key in scattered(FIRST_KEY, self.keys) {
            let len = library.fetch(key, into)?;
            black_box(&*into);
            if len != self.value.len() {
                return Err(format!("a value of {len} bytes").into());
            }
        }
        Ok(())
    }

    /// Stores values under so many keys from one on, in groups, one after another.
    fn store(&self, library: &dyn Library, first: u64, count: u64) -> Result<(), Failure> {
        let keys: Vec<u64> = scattered(first, count).collect();
        keys.chunks(self.width).try_for_each(|group| library.store(group, &self.value))
    }

    /// A turn, as a line asks for it; operations in a second.
    fn turn(&mut self, library: &dyn Library, line: &str) -> Result<f64, Failure> {
        let (what, count) =
            line.trim().split_once(' ').ok_or("none of `update COUNT`, `overwrite COUNT`, `fetch ROUNDS`")?;
        let count: u64 = count.parse()?;
        let begin = Instant::now();
        let operations = match what {
            "update" => {
                self.store(library, FIRST_KEY + self.keys + self.further, count)?;
                self.further += count;
                count
            }
            "overwrite" => {
                let seeds = self.drawn..self.drawn + count;
                let keys: Vec<u64> = seeds.map(|seed| FIRST_KEY + drawn(seed) % self.keys).collect();
                self.drawn += count;
                keys.chunks(self.width).try_for_each(|group| library.store(group, &self.value))?;
                count
            }
            "fetch" => {
                let mut into = vec![0; self.value.len()];
                (0..count).try_for_each(|_| self.round(library, &mut into))?;
                count * self.keys
            }
            _ => return Err(format!("no turn is called {what}").into()),
        };
        Ok(float(operations) / begin.elapsed().as_secs_f64())
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

/// One thread, and each group a batch.
struct RocksDb(rocksdb::DB);

/// Writes are durable when they return.
fn synced() -> rocksdb::WriteOptions {
    let mut options = rocksdb::WriteOptions::default();
    options.set_sync(true);
    options
}

fn open_rocksdb(folder: &Path) -> Result<rocksdb::DB, Failure> {
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    Ok(rocksdb::DB::open(&options, folder)?)
}

impl Library for RocksDb {
    fn store(&self, keys: &[u64], value: &[u8]) -> Result<(), Failure> {
        let mut batch = rocksdb::WriteBatch::default();
        for key in keys {
            batch.put(key.to_be_bytes(), value);
        }
        Ok(self.0.write_opt(batch, &synced())?)
    }

    fn fetch(&self, key: u64, into: &mut [u8]) -> Result<usize, Failure> {
        Ok(copy_out(self.0.get_pinned(key.to_be_bytes())?.as_deref(), into))
    }
}

/// Updates that RocksDB puts together itself: each is its writer's own, who waits until it is durable. The group is all
/// that a turn stores, of which each writer has a share.
struct RocksDbWriters(rocksdb::DB, usize);

impl Library for RocksDbWriters {
    fn store(&self, keys: &[u64], value: &[u8]) -> Result<(), Failure> {
        let (database, width, synced) = (&self.0, self.1, &synced());
        std::thread::scope(|scope| {
            let write = |writer: usize| {
                let mut share = keys.iter().skip(writer).step_by(width);
                move || share.try_for_each(|key| database.put_opt(key.to_be_bytes(), value, synced))
            };
            let writers: Vec<_> = (0..width).map(|writer| scope.spawn(write(writer))).collect();
            writers
                .into_iter()
                .try_for_each(|writer| Ok(writer.join().map_err(|_| "a writer panicked")??))
        })
    }

    fn fetch(&self, key: u64, into: &mut [u8]) -> Result<usize, Failure> {
        Ok(copy_out(self.0.get_pinned(key.to_be_bytes())?.as_deref(), into))
    }
}

struct Lmdb {
    environment: heed::Env,
    database: heed::Database<Bytes, Bytes>,
}

impl Lmdb {
    fn open(folder: &Path) -> Result<Self, Failure> {
        // SAFETY: the folder was made by this process for this run; no other process or file descriptor uses it.
        #[expect(
            unsafe_code,
            reason = "a memory map can be changed behind the program's back; this one is private to it"
        )]
        let environment: heed::Env = unsafe { heed::EnvOpenOptions::new().map_size(LMDB_MAP).open(folder)? };
        let mut transaction = environment.write_txn()?;
        let database = environment.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { environment, database })
    }
}

impl Library for Lmdb {
    fn store(&self, keys: &[u64], value: &[u8]) -> Result<(), Failure> {
        let mut transaction = self.environment.write_txn()?;
        for key in keys {
            self.database.put(&mut transaction, &key.to_be_bytes(), value)?;
        }
        Ok(transaction.commit()?)
    }

    fn fetch(&self, key: u64, into: &mut [u8]) -> Result<usize, Failure> {
        let transaction = self.environment.read_txn()?;
        Ok(copy_out(self.database.get(&transaction, &key.to_be_bytes())?, into))
    }
}

struct Redb(Database);

impl Library for Redb {
    fn store(&self, keys: &[u64], value: &[u8]) -> Result<(), Failure> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for key in keys {
                table.insert(key, value)?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn fetch(&self, key: u64, into: &mut [u8]) -> Result<usize, Failure> {
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(TABLE)?;
        Ok(copy_out(table.get(key)?.as_ref().map(redb::AccessGuard::value), into))
    }
}

/// Opens a library in an empty folder; it, and how many updates it is given at once.
fn open(library: &str, folder: &Path, width: usize) -> Result<(Box<dyn Library>, usize), Failure> {
    Ok(match library {
        "RocksDB" => (Box::new(RocksDb(open_rocksdb(folder)?)), width),
        "RocksDB's writers" => (Box::new(RocksDbWriters(open_rocksdb(folder)?, width)), usize::MAX),
        "LMDB" => (Box::new(Lmdb::open(folder)?), width),
        "redb" => (Box::new(Redb(Database::create(folder.join("values.redb"))?)), width),
        other => return Err(format!("no library is called {other}").into()),
    })
}

fn say(standing: &Standing) -> Result<(), Failure> {
    println!("{}", serde_json::to_string(standing)?);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scratch, name, keys, width, bytes] = arguments.as_slice() else {
        return Err("usage: weir-bench-references SCRATCH LIBRARY KEYS WIDTH VALUE_BYTES".into());
    };
    let (library, width) = open(name, Path::new(scratch), width.parse()?)?;
    let mut load = Load { keys: keys.parse()?, further: 0, drawn: 0, width, value: vec![7; bytes.parse()?] };
    load.store(&*library, FIRST_KEY, load.keys)?;
    load.turn(&*library, "fetch 1")?;
    say(&Standing::now(0.0)?)?;
    for line in std::io::stdin().lock().lines() {
        let rate = load.turn(&*library, &line?)?;
        say(&Standing::now(rate)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// How often each key was stored.
    #[derive(Default)]
    struct Counts(RefCell<BTreeMap<u64, u32>>);

    impl Library for Counts {
        fn store(&self, keys: &[u64], _value: &[u8]) -> Result<(), Failure> {
            keys.iter().for_each(|key| *self.0.borrow_mut().entry(*key).or_default() += 1);
            Ok(())
        }

        fn fetch(&self, _key: u64, into: &mut [u8]) -> Result<usize, Failure> {
            Ok(into.len())
        }
    }

    #[test]
    fn overwrites_meet_keys_that_were_stored_first_and_no_others() {
        let library = Counts::default();
        let mut load = Load { keys: 64, further: 0, drawn: 0, width: 8, value: vec![7; 4] };
        load.store(&library, FIRST_KEY, load.keys).expect("stored");
        for _ in 0..2 {
            load.turn(&library, "overwrite 32").expect("overwritten");
        }
        let counts = library.0.borrow();
        assert!(counts.keys().eq((FIRST_KEY..FIRST_KEY + 64).collect::<Vec<_>>().iter()));
        assert_eq!(counts.values().sum::<u32>(), 128);
    }
}
