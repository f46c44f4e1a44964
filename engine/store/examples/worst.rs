//! The dearest requests that a client may make, in a store in memory: `worst [NAME]`.
//!
//! Prints for each how long it took and its longest turn: the time in which the thread served nobody else. Under callgrind,
//! `--collect-atstart=no --toggle-collect='worst::measured*'` counts the instructions of one.

use core::cell::Cell;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use uuid::Uuid;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, KeyQuery, ListScope, PunchScope, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::EventSource;
use weir_runtime::real::Executor;
use weir_store::{Data, FormatOptions, Operation, Owner, Shard, Store, StoreConfig, TransactionId};

type Failure = Box<dyn std::error::Error>;

const POOL: PoolId = PoolId(Uuid::from_u128(1));
const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(2));
const TRANSACTION: TransactionId = TransactionId(Uuid::from_u128(3));
/// Integer dkeys and a byte array (`DAOS_OT_ARRAY_BYTE`).
const INTEGERS: ObjectId = ObjectId { hi: 13 << 56, lo: 1 };
const OBJECT: ObjectId = ObjectId { hi: 0, lo: 1 };
const DEVICE_BYTES: usize = 1 << 30;
const EXTENTS: u64 = 1024;
const AKEYS: u64 = 256;
const KEY_BYTES: usize = 1024;
/// Bytes of each of [`AKEYS`] keys that one message names together.
const MANY_BYTES: usize = 56;

/// Notes the longest time between two looks of the executor at its sources.
struct Watch {
    last: Cell<Instant>,
    longest: Cell<Duration>,
    turns: Cell<u64>,
}

impl EventSource for Watch {
    fn poll(&self) -> bool {
        let now = Instant::now();
        let turn = now - self.last.replace(now);
        self.longest.set(self.longest.get().max(turn));
        self.turns.set(self.turns.get() + 1);
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        true
    }
}

struct Bench {
    executor: Executor,
    shard: Shard,
    object: ObjectId,
    _store: Rc<Store>,
    watch: Rc<Watch>,
}

impl Bench {
    fn new(object: ObjectId) -> Result<Self, Failure> {
        let executor = Executor::new()?;
        let handle = executor.handle();
        let (store, shard) = executor.block_on(async {
            let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(DEVICE_BYTES as u64));
            let owner = Owner { system: "worst".to_owned(), rank: Rank(0), target: TargetIndex(0) };
            Store::format(&handle, &device, &FormatOptions { owner: owner.clone(), log_bytes: None }).await?;
            let config = StoreConfig { background: false, ..StoreConfig::default() };
            let store = Store::open(&handle, device, &owner, config).await?;
            let shard = store.create_pool(POOL, store.space().capacity).await?;
            shard.create_container(CONTAINER).await?;
            Ok::<_, Failure>((store, shard))
        })?;
        let now = Instant::now();
        let watch = Watch { last: Cell::new(now), longest: Cell::default(), turns: Cell::default() };
        let watch = Rc::new(watch);
        executor.handle().add_source(Rc::clone(&watch) as Rc<dyn EventSource>)?;
        Ok(Self { executor, shard, object, _store: store, watch })
    }

    async fn update(&self, dkey: &Key, epoch: u64, akeys: &[AkeyUpdate]) -> Result<(), Failure> {
        let data =
            vec![7; usize::try_from(akeys.iter().filter_map(|akey| akey.value.data_len()).sum::<u64>())?];
        let (epoch, data) = (Epoch(epoch), Data::Borrowed(&data));
        self.shard.update(CONTAINER, self.object, dkey, epoch, Conditions::NONE, akeys, data).await?;
        Ok(())
    }

    async fn fetch(&self, dkey: &Key, akeys: &[AkeyFetch]) -> Result<(), Failure> {
        let fetch =
            self.shard.fetch(CONTAINER, self.object, dkey, Epoch::MAX, Conditions::NONE, akeys).await?;
        let mut data = vec![0; usize::try_from(fetch.data_len())?];
        fetch.read_summed(akeys, &mut data).await?;
        Ok(())
    }

    /// Has the only akey of a dkey have extents of all classes of lengths, most of them holes.
    async fn all_classes(&self, dkey: &Key) -> Result<(), Failure> {
        for class in 0..31 {
            let (index, count) = (1 << 61, 1 << (2 * class));
            let value = Value::Array { record_size: 0, extents: vec![Extent { index, count }] };
            self.update(dkey, 1 + class, &[of(&Key::new(b"a")?, value)]).await?;
        }
        self.update(dkey, 99, &[of(&Key::new(b"a")?, array(vec![Extent { index: 1 << 60, count: 1 }]))]).await
    }

    /// The operations of a transaction that stores as many versions as one may.
    async fn prepare(&self, count: u64) -> Result<(), Failure> {
        let value = array(extents(count));
        let data = vec![7; usize::try_from(EXTENTS * count)?];
        let operation = |at: u64| Operation::Update {
            object: self.object,
            dkey: Key::from_u64(at),
            conditions: Conditions::NONE,
            akeys: vec![of(&Key::from_u64(at), value.clone())],
            data: Data::Borrowed(&data),
        };
        let epoch = Epoch(self.executor.handle().wall_ns());
        self.shard.prepare(CONTAINER, TRANSACTION, epoch, &[operation(1), operation(2)]).await?;
        Ok(())
    }
}

/// A key of bytes that the index escapes.
fn key(number: u64, len: usize) -> Result<Key, Failure> {
    let mut bytes = vec![0; len];
    bytes[len - 8..].copy_from_slice(&number.to_be_bytes());
    Ok(Key::new(&bytes)?)
}

/// A key as long as it may be.
fn long_key(number: u64) -> Result<Key, Failure> {
    key(number, KEY_BYTES)
}

fn of(akey: &Key, value: Value) -> AkeyUpdate {
    AkeyUpdate { akey: akey.clone(), value, conditions: Conditions::NONE, checksums: Vec::new() }
}

fn array(extents: Vec<Extent>) -> Value {
    Value::Array { record_size: 1, extents }
}

/// As many extents of a length as a request may have, with gaps.
fn extents(count: u64) -> Vec<Extent> {
    (0..EXTENTS).map(|at| Extent { index: at * 2 * count, count }).collect()
}

fn long_keys() -> Result<Vec<Key>, Failure> {
    (0..AKEYS).map(|number| key(number, MANY_BYTES)).collect()
}

fn singles() -> Result<Vec<AkeyUpdate>, Failure> {
    Ok(long_keys()?.iter().map(|akey| of(akey, Value::Single { size: 8 })).collect())
}

const NAMES: [&str; 14] = [
    "update-small",
    "update-long-keys",
    "update-akeys",
    "update-blocks",
    "punch-akeys",
    "punch-dkeys",
    "fetch-extents",
    "fetch-classes",
    "fetch-akeys",
    "list",
    "query",
    "prepare",
    "commit",
    "abort",
];

/// What has to be there before a request.
async fn prepare(bench: &Bench, name: &str) -> Result<(), Failure> {
    let (dkey, akey) = (Key::new(b"d")?, Key::new(b"a")?);
    match name {
        "punch-akeys" | "fetch-akeys" => bench.update(&long_key(1)?, 1, &singles()?).await,
        "punch-dkeys" => {
            for (epoch, dkey) in (1..).zip(long_keys()?) {
                bench.update(&dkey, epoch, &[of(&akey, Value::Single { size: 8 })]).await?;
            }
            Ok(())
        }
        "fetch-extents" => bench.update(&dkey, 100, &[of(&akey, array(extents(64)))]).await,
        "fetch-classes" => bench.all_classes(&dkey).await,
        "list" | "query" => {
            for (epoch, number) in (1..).zip(0..20_000) {
                bench.update(&Key::from_u64(number), epoch, &[of(&akey, Value::Single { size: 8 })]).await?;
            }
            for first in (0..20_000).step_by(256) {
                let dkeys = (first..first + 256).map(Key::from_u64).collect();
                let epoch = Epoch(100_000 + first);
                let (scope, none) = (PunchScope::Dkeys(dkeys), Conditions::NONE);
                bench.shard.punch(CONTAINER, bench.object, &scope, epoch, none).await?;
            }
            Ok(())
        }
        "commit" | "abort" => bench.prepare(500).await,
        _ => Ok(()),
    }
}

async fn request(bench: &Bench, name: &str) -> Result<(), Failure> {
    let (dkey, akey, none) = (Key::new(b"d")?, Key::new(b"a")?, Conditions::NONE);
    let shard = &bench.shard;
    let punch = async |scope| shard.punch(CONTAINER, bench.object, &scope, Epoch(1 << 40), none).await;
    let fetched = |value: Value| AkeyFetch { akey: akey.clone(), value, conditions: none };
    match name {
        "update-small" => bench.update(&dkey, 100, &[of(&akey, array(extents(64)))]).await?,
        "update-long-keys" => {
            bench.update(&long_key(1)?, 100, &[of(&long_key(2)?, array(extents(8)))]).await?;
        }
        "update-akeys" => bench.update(&long_key(1)?, 100, &singles()?).await?,
        "update-blocks" => bench.update(&dkey, 100, &[of(&akey, array(extents(8192)))]).await?,
        "punch-akeys" => drop(punch(PunchScope::Akeys(long_key(1)?, long_keys()?)).await?),
        "punch-dkeys" => drop(punch(PunchScope::Dkeys(long_keys()?)).await?),
        "fetch-extents" | "fetch-classes" => bench.fetch(&dkey, &[fetched(array(extents(64)))]).await?,
        "fetch-akeys" => {
            let value = Value::Single { size: 8 };
            let akeys: Vec<AkeyFetch> = long_keys()?
                .into_iter()
                .map(|akey| AkeyFetch { akey, value: value.clone(), conditions: none })
                .collect();
            bench.fetch(&long_key(1)?, &akeys).await?;
        }
        "list" => {
            drop(shard.list(CONTAINER, bench.object, &ListScope::Dkeys, Epoch::MAX, &[], 1024, None).await?);
        }
        "query" => {
            let query = KeyQuery::Search { max: true, dkey: None, akey: None, extent: false };
            drop(shard.query_key(CONTAINER, bench.object, Epoch::MAX, &query, &[]).await?);
        }
        "prepare" => bench.prepare(500).await?,
        "commit" => drop(shard.commit_transaction(CONTAINER, TRANSACTION).await?),
        "abort" => shard.abort_transaction(CONTAINER, TRANSACTION).await?,
        _ => return Err(format!("no request is called {name}").into()),
    }
    Ok(())
}

#[inline(never)]
fn measured(bench: &Bench, name: &str) -> Result<(), Failure> {
    bench.executor.block_on(request(bench, name))
}

fn run(name: &str) -> Result<(), Failure> {
    let is_of_integers = matches!(name, "list" | "query");
    let bench = Bench::new(if is_of_integers { INTEGERS } else { OBJECT })?;
    bench.executor.block_on(prepare(&bench, name))?;
    let begin = Instant::now();
    bench.watch.last.set(begin);
    bench.watch.longest.set(Duration::ZERO);
    bench.watch.turns.set(0);
    measured(&bench, name)?;
    let taken = begin.elapsed();
    let (longest, turns) = (bench.watch.longest.get(), bench.watch.turns.get());
    let mut out = std::io::stdout().lock();
    writeln!(out, "{name:18} {taken:>12.1?}, its longest turn {longest:>12.1?} of {turns}")?;
    Ok(())
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let names = if names.is_empty() { NAMES.iter().map(|name| (*name).to_owned()).collect() } else { names };
    for name in names {
        if let Err(error) = run(&name) {
            let _ = writeln!(std::io::stderr(), "{name}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
