//! The loads: extents of one size under dkeys in no order, stored and fetched by workers of their own, as an engine's
//! requests are.

use core::ops::Range;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crc_fast::CrcAlgorithm;
use uuid::Uuid;
use weir_fabric::BufferPool;
use weir_media::file::FileDevice;
use weir_media::{BLOCK, Device, DmaBuf, DmaPool, ExternalBuffer, Slice};
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::limits::INLINE_MAX;
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::{Handle, join_all};
use weir_store::{Comparison, Data, FormatOptions, Owner, Shard, Store, StoreConfig};

use super::failed;
use crate::report::BenchError;

pub const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(2));
pub const POOL: PoolId = PoolId(Uuid::from_u128(1));
/// Integer dkeys and a byte array (`DAOS_OT_ARRAY_BYTE`).
pub const OBJECT: ObjectId = ObjectId { hi: 13 << 56, lo: 1 };

/// Who owns the stores that are measured.
pub fn owner() -> Owner {
    Owner { system: "bench".to_owned(), rank: Rank(0), target: TargetIndex(0) }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub const fn float(count: u64) -> f64 {
    count as f64
}

/// A number that looks random, and is the same for the same seed: the finalizer of `SplitMix64` (Steele, Lea, Flood 2014).
const fn drawn(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// How often somebody looks whether a killed store has let go of its device.
const LOOK: Duration = Duration::from_millis(1);

/// Waits until nobody has a device any more: what was under way has ended.
pub async fn gone<D: ?Sized>(handle: &Handle, device: Weak<D>) {
    while device.strong_count() > 0 {
        handle.sleep(LOOK).await;
    }
}

/// Runs `width` workers of `count` operations together; operations per second, `None` when one failed.
pub async fn rate<F: Future<Output = bool> + 'static>(
    handle: &Handle,
    count: u64,
    width: u64,
    worker: impl Fn(u64) -> F,
) -> Option<f64> {
    let begin = Instant::now();
    let tasks: Vec<_> = (0..width).map(|number| handle.spawn(worker(number))).collect();
    let results = join_all(tasks).await;
    let rate = float(count) / begin.elapsed().as_secs_f64();
    results.into_iter().all(|done| done == Ok(true)).then_some(rate)
}

/// A new store over an empty device, with one pool of all its space and a container.
pub async fn new_store(
    handle: &Handle,
    device: Rc<dyn Device>,
    config: StoreConfig,
) -> Result<(Rc<Store>, Shard), BenchError> {
    let options = FormatOptions { owner: owner(), log_bytes: None };
    Store::format(handle, &device, &options).await.map_err(|error| failed("format", &error))?;
    let store = Store::open(handle, device, &owner(), config).await;
    let store = store.map_err(|error| failed("open", &error))?;
    let size = store.space().capacity;
    let shard = store.create_pool(POOL, size).await.map_err(|error| failed("create a pool", &error))?;
    shard.create_container(CONTAINER).await.map_err(|error| failed("create a container", &error))?;
    Ok((store, shard))
}

/// A new store in a file.
pub async fn new_file_store(
    handle: &Handle,
    path: &Path,
    bytes: u64,
    config: StoreConfig,
) -> Result<(Rc<Store>, Shard), BenchError> {
    let device = FileDevice::create(handle, path, bytes).map_err(|error| failed("create", &error))?;
    new_store(handle, Rc::new(device), config).await
}

/// The checksums that a client sends with a value: one for each chunk of its data.
pub fn checksums(value: &Value, data: &[u8]) -> Vec<u32> {
    let mut rest = data;
    let lens = chunk::chunks(value, Grain::of([value])).flat_map(Chunks::ranges);
    let sum = |chunk: Range<u64>| {
        let len = usize::try_from(chunk.end - chunk.start).ok()?;
        let (chunk, behind) = rest.split_at_checked(len)?;
        rest = behind;
        let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, chunk);
        u32::try_from(sum & u64::from(u32::MAX)).ok()
    };
    lens.filter_map(sum).collect()
}

/// Extents of `len` bytes under `count` dkeys from `first` on, `width` requests in flight.
#[derive(Clone)]
pub struct Load {
    handle: Handle,
    shard: Shard,
    pub first: u64,
    pub count: u64,
    pub width: u64,
    len: usize,
    data: Slice,
    /// Memory for what is fetched, as an engine has it: `len` bytes for each worker, or the fabric's, to which the device
    /// reads what doesn't fit a message.
    into: Rc<RefCell<Vec<DmaBuf>>>,
    fabric: BufferPool,
    update: Rc<[AkeyUpdate; 1]>,
    fetch: Rc<[AkeyFetch; 1]>,
    /// Who compares large extents that are fetched.
    comparison: Comparison,
    /// The newest epoch that the clock has given.
    clock: Rc<Cell<u64>>,
    /// Where epochs aren't the clock's: the one behind which they begin.
    behind: Option<u64>,
}

impl Load {
    pub fn new(
        handle: &Handle,
        shard: &Shard,
        first: u64,
        count: u64,
        width: u64,
        len: usize,
    ) -> Option<Self> {
        // On huge pages, as memory for the fabric is, and touched before anything is measured.
        let pool = DmaPool::new(usize::try_from(width + 1).ok()? * len.next_multiple_of(BLOCK));
        let touched = || {
            let mut memory = pool.try_take(len)?;
            memory.fill(0);
            Some(memory)
        };
        let data = Slice::from(touched()?).part(0..len)?;
        let into = (0..width).map(|_| touched()).collect::<Option<Vec<_>>>()?;
        let fabric = BufferPool::new(usize::try_from(width).ok()? * len.next_power_of_two().max(BLOCK));
        let touched: Vec<_> = (0..width).map_while(|_| fabric.alloc(len).ok()).collect();
        for mut memory in touched {
            memory.fill(0);
        }
        let akey = Key::new(b"data").ok()?;
        let value = Value::Array { record_size: 1, extents: vec![Extent { index: 0, count: len as u64 }] };
        let none = Conditions::NONE;
        let fetch = AkeyFetch { akey: akey.clone(), value: value.clone(), conditions: none };
        let checksums = checksums(&value, &data);
        let update = AkeyUpdate { akey, value, conditions: none, checksums };
        Some(Self {
            handle: handle.clone(),
            shard: shard.clone(),
            first,
            count,
            width,
            len,
            data,
            into: Rc::new(RefCell::new(into)),
            fabric,
            update: Rc::new([update]),
            fetch: Rc::new([fetch]),
            comparison: Comparison::ByReader,
            clock: Rc::default(),
            behind: None,
        })
    }

    /// The same load with the same memory, for a reader who doesn't compare large extents, so that the store does.
    pub fn compared_here(&self) -> Self {
        Self { comparison: Comparison::Here, ..self.clone() }
    }

    /// The same load at epochs behind this one, the same for each extent every time, instead of the clock's. Aggregation may not
    /// have gone over them.
    pub fn behind(self, epoch: u64) -> Self {
        Self { behind: Some(epoch), ..self }
    }

    /// The same load under dkeys from another one on, with the same memory, which an engine keeps, too.
    pub fn under(&self, first: u64) -> Self {
        Self { first, ..self.clone() }
    }

    /// Memory to which a large extent is fetched, for the device alone.
    pub fn external(&self) -> Option<DmaBuf> {
        ExternalBuffer::new(self.fabric.alloc(self.len).ok()?).ok()?.take(self.len)
    }

    /// As a random order as a multiplication gives: neighbours in time aren't neighbours in the index.
    fn dkey(&self, number: u64) -> Key {
        Key::from_u64(self.first + number.wrapping_mul(0x9e37_79b9) % self.count)
    }

    fn numbers(&self, worker: u64) -> impl Iterator<Item = u64> + use<> {
        let (count, width) = (self.count, usize::try_from(self.width).unwrap_or(1));
        (worker..count).step_by(width)
    }

    /// At the clock's epoch when it commits, as updates of an engine are.
    async fn update_one(&self, number: u64) -> bool {
        let (dkey, data) = (self.dkey(number), Data::Shared(self.data.clone()));
        let clock = || {
            let now = || self.handle.wall_ns().max(self.clock.get() + 1);
            self.clock.set(self.behind.map_or_else(now, |epoch| epoch + number + 1));
            Epoch(self.clock.get())
        };
        let (update, none) = (&*self.update, Conditions::NONE);
        self.shard
            .update_by_clock(CONTAINER, OBJECT, &dkey, &clock, none, update, data, &|_| Vec::new())
            .await
            .is_ok()
    }

    /// Stores all extents; updates per second.
    pub async fn updates(&self) -> Option<f64> {
        rate(&self.handle, self.count, self.width, |worker| {
            let load = self.clone();
            async move {
                let mut all = true;
                for number in load.numbers(worker) {
                    all &= load.update_one(number).await;
                }
                all
            }
        })
        .await
    }

    /// Overwrites `count` extents drawn at random, others for each `seed`; updates per second.
    pub async fn overwrites(&self, seed: u64, count: u64) -> Option<f64> {
        rate(&self.handle, count, self.width, |worker| {
            let load = self.clone();
            async move {
                let mut all = true;
                for at in (worker..count).step_by(usize::try_from(load.width).unwrap_or(1)) {
                    all &= load.update_one(drawn(seed + at) % load.count).await;
                }
                all
            }
        })
        .await
    }

    /// Stores all extents and returns how long each update took.
    pub async fn update_times(&self) -> Option<Vec<Duration>> {
        let times = Rc::new(RefCell::new(Vec::new()));
        rate(&self.handle, self.count, self.width, |worker| {
            let (load, times) = (self.clone(), Rc::clone(&times));
            async move {
                let mut all = true;
                for number in load.numbers(worker) {
                    let begin = Instant::now();
                    all &= load.update_one(number).await;
                    times.borrow_mut().push(begin.elapsed());
                }
                all
            }
        })
        .await?;
        Some(times.take())
    }

    /// Fetches what [`Load::updates`] stored, `rounds` times; fetches per second. Each round asks for all extents in the
    /// same order, whoever of the workers comes to which, so that each is asked for again only after all others.
    pub async fn fetches(&self, rounds: u64) -> Option<f64> {
        let (next, end) = (Rc::new(Cell::new(0)), self.count * rounds);
        rate(&self.handle, end, self.width, |_| {
            let (load, next) = (self.clone(), Rc::clone(&next));
            async move {
                let Some(mut into) = load.into.borrow_mut().pop() else { return false };
                let mut all = true;
                while next.get() < end {
                    let number = next.replace(next.get() + 1) % load.count;
                    all &= load.fetch_one(number, &mut into).await;
                }
                load.into.borrow_mut().push(into);
                all
            }
        })
        .await
    }

    /// Fetches one extent: a small one to `into`, a large one to memory that an engine's fabric can send, from where it goes to
    /// a reader who compares it, as an engine's clients do.
    async fn fetch_one(&self, number: u64, into: &mut [u8]) -> bool {
        let (dkey, none) = (self.dkey(number), Conditions::NONE);
        let found = self.shard.fetch(CONTAINER, OBJECT, &dkey, Epoch::MAX, none, &*self.fetch).await;
        match found {
            Ok(fetch) if self.len > INLINE_MAX => {
                let Ok(memory) = self.fabric.alloc(self.len) else { return false };
                let landed = fetch.read_to(&*self.fetch, self.comparison, memory).await;
                black_box(landed).is_ok_and(|landed| fetch.data_len() == self.len as u64 && landed.start == 0)
            }
            Ok(fetch) => {
                // With the checksum that the reader compares.
                let summed = fetch.read_summed(&*self.fetch, into).await;
                black_box(&*into);
                black_box(summed).is_ok() && fetch.data_len() == self.len as u64
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_media::memory::MemoryDevice;
    use weir_runtime::real::Executor;

    use super::*;

    #[test]
    fn overwrites_are_new_versions_of_what_is_there() {
        let executor = Executor::new().expect("an executor");
        let handle = executor.handle();
        executor.block_on(async {
            let config = StoreConfig { background: false, ..StoreConfig::default() };
            let (store, shard) =
                new_store(&handle, Rc::new(MemoryDevice::new(1 << 28)), config).await.expect("a store");
            let load = Load::new(&handle, &shard, 1 << 32, 64, 8, 64).expect("a load");
            load.updates().await.expect("stored");
            let entries = store.stats().entries;
            load.overwrites(1, 32).await.expect("overwritten");
            assert_eq!(store.stats().entries, entries + 32, "a version each, and no other key");
        });
    }
}
