//! A store in a simulated world, and short forms of its operations.

use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uuid::Uuid;
use weir_inspect::{Depth, Dumped, Filter, InspectError, Inspector, Line, Part, Report};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_media::sim::{CrashKeeps, SimDisk, SimDiskOptions};
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::{
    AkeyFetch, AkeyUpdate, Conditions, Extent, KeyQuery, PunchScope, QueryKeyReply, Value,
};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::Handle;
use weir_runtime::sim::{Node, World};
use weir_store::{
    AkeySums, Audit, Data, Fetch, FetchError, FormatOptions, OpenError, Owner, Shard, Store, StoreConfig,
    UpdateError,
};

pub const POOL: PoolId = PoolId(Uuid::from_u128(0xaa));
pub const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(0xcc));
/// Keys of any form.
pub const OBJECT: ObjectId = ObjectId { hi: 0, lo: 7 };
/// Integer dkeys (`DAOS_OT_ARRAY_BYTE`).
pub const ARRAY: ObjectId = ObjectId { hi: 13 << 56, lo: 8 };

pub fn owner() -> Owner {
    Owner { system: "weir".to_owned(), rank: Rank(1), target: TargetIndex(0) }
}

pub fn format_options() -> FormatOptions {
    FormatOptions { owner: owner(), log_bytes: None }
}

/// Background work is off, so that history stays until a test aggregates it.
pub fn quiet() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::default() }
}

/// Like [`quiet`], with memory for a few index nodes, so that they come and go all the time.
pub fn cramped() -> StoreConfig {
    StoreConfig { index_bytes: 40 << 10, ..quiet() }
}

pub fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a short key")
}

/// Runs something on a node of a world of its own.
pub fn run<T: 'static>(seed: u64, task: impl AsyncFnOnce(Handle) -> T + 'static) -> T {
    let world = World::new(seed);
    let node = world.node("engine-0");
    let handle = node.handle();
    world.block_on(&node, async move { task(handle).await })
}

/// The lines of a dump, and what is said behind them.
pub async fn dumped_by(
    store: &Inspector,
    part: Part,
    filter: &Filter,
) -> Result<(Vec<Line>, Dumped), InspectError> {
    let mut lines = Vec::new();
    let mut keep = |line| {
        lines.push(line);
        ControlFlow::Continue(())
    };
    let dumped = store.dump(part, filter, &mut keep).await?;
    Ok((lines, dumped))
}

/// A simulated disk and the node it is in.
pub struct Machine {
    pub world: World,
    pub node: Node,
    pub disk: SimDisk,
    /// What stores were given: each device lives as long as its store.
    opened: RefCell<Vec<Weak<dyn Device>>>,
}

/// How many of these devices somebody holds.
fn live(devices: &[Weak<dyn Device>]) -> usize {
    devices.iter().filter(|device| device.strong_count() > 0).count()
}

impl Machine {
    pub fn new(seed: u64, size: u64) -> Self {
        Self::with_options(seed, size, SimDiskOptions::default())
    }

    pub fn with_options(seed: u64, size: u64, options: SimDiskOptions) -> Self {
        let world = World::new(seed);
        let node = world.node("engine-0");
        Self { disk: SimDisk::new("disk", size, seed, options), world, node, opened: RefCell::default() }
    }

    pub fn handle(&self) -> Handle {
        self.node.handle()
    }

    pub fn device(&self) -> Rc<dyn Device> {
        self.disk.attach(&self.handle())
    }

    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.node, future)
    }

    pub fn format(&self) {
        let (handle, device) = (self.handle(), self.device());
        self.run(async move { Store::format(&handle, &device, &format_options()).await })
            .expect("an empty disk");
    }

    pub fn try_open(&self, config: StoreConfig) -> Result<Rc<Store>, OpenError> {
        let (handle, device) = (self.handle(), self.device());
        self.opened.borrow_mut().push(Rc::downgrade(&device));
        self.run(async move { Store::open(&handle, device, &owner(), config).await })
    }

    pub fn open(&self, config: StoreConfig) -> Rc<Store> {
        self.try_open(config).unwrap_or_else(|error| panic!("seed {}: {error}", self.world.seed()))
    }

    /// A formatted and opened store with a pool of half the disk and a container.
    pub fn start(&self, config: StoreConfig) -> (Rc<Store>, Shard) {
        self.format();
        let store = self.open(config);
        let (size, opened) = (store.space().capacity / 2, Rc::clone(&store));
        let shard = self.run(async move {
            let shard = opened.create_pool(POOL, size).await.expect("space");
            shard.create_container(CONTAINER).await.expect("a container");
            shard
        });
        (store, shard)
    }

    /// What is found on the disk offline.
    pub fn inspect(&self, depth: Depth) -> Report {
        let device = self.device();
        self.run(async move { Inspector::open(device).await.expect("a store").report(depth).await })
    }

    /// Compares the index with what is counted along.
    pub fn audit(&self, store: &Rc<Store>) -> Audit {
        let store = Rc::clone(store);
        self.run(async move { store.audit().await })
    }

    /// Power failure and restart.
    pub fn crash(&self, keeps: CrashKeeps) {
        self.world.crash(&self.node);
        self.disk.crash(keeps);
        self.world.restart(&self.node);
    }

    /// Flips a bit of these bytes wherever the disk has them: where they are, and where they have been.
    pub fn rot_all(&self, bytes: &[u8]) {
        self.places(bytes).for_each(|at| self.disk.rot(at, 3));
    }

    /// Makes these bytes unreadable wherever the disk has them: where they are, and where they have been.
    pub fn lose_all(&self, bytes: &[u8]) {
        self.places(bytes).for_each(|at| self.disk.make_unreadable(at..at + 1));
    }

    fn places(&self, bytes: &[u8]) -> impl Iterator<Item = u64> {
        let (all, wanted) =
            (self.disk.bytes(0, self.device().size() as usize), &bytes[..bytes.len().min(16)]);
        let found = (0..).zip(all.windows(wanted.len())).filter(|(_, found)| *found == wanted);
        found.map(|(at, _)| at).collect::<Vec<u64>>().into_iter()
    }

    /// Stores that were opened here and whose memory isn't free.
    pub fn stores(&self) -> usize {
        live(&self.opened.borrow())
    }

    /// Ends the world, in which nobody holds a store any more: none must be left.
    pub fn end(self) {
        let seed = self.world.seed();
        let Self { world, opened, .. } = self;
        drop(world);
        let left = live(&opened.borrow());
        assert_eq!(left, 0, "seed {seed}: stores of {} keep themselves", opened.borrow().len());
    }

    pub fn sleep(&self, duration: Duration) {
        self.world.run_for(duration);
    }
}

/// Checksums of what was read, for each akey.
pub fn listed(sums: AkeySums) -> Vec<Vec<u32>> {
    sums.into_iter().map(SmallVec::into_vec).collect()
}

pub fn single(akey: &str, value: &[u8]) -> AkeyUpdate {
    AkeyUpdate {
        akey: key(akey),
        value: Value::Single { size: value.len() as u64 },
        conditions: Conditions::NONE,
        checksums: Vec::new(),
    }
}

pub fn array(akey: &str, record_size: u32, extents: &[(u64, u64)]) -> AkeyUpdate {
    let extents = extents.iter().map(|&(index, count)| Extent { index, count }).collect();
    AkeyUpdate {
        akey: key(akey),
        value: Value::Array { record_size, extents },
        conditions: Conditions::NONE,
        checksums: Vec::new(),
    }
}

pub fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Gives the akeys of an update the checksums that a client computes.
pub fn put_checksums(akeys: &mut [AkeyUpdate], data: &[u8]) {
    let grain = Grain::of(akeys.iter().map(|update| &update.value));
    let mut rest = data;
    for update in akeys {
        let lens = chunk::chunks(&update.value, grain).flat_map(Chunks::ranges);
        let checksums = lens.map(|range| {
            let (own, behind) = rest.split_at((range.end - range.start) as usize);
            rest = behind;
            crc(own)
        });
        update.checksums = checksums.collect();
    }
}

/// The only akey of an update, with its checksums.
pub fn summed(mut update: AkeyUpdate, data: &[u8]) -> AkeyUpdate {
    put_checksums(core::slice::from_mut(&mut update), data);
    update
}

/// Like [`summed`] for every other epoch, so that values with and without a client's checksums lie side by side.
pub fn summed_at(epoch: u64, update: AkeyUpdate, data: &[u8]) -> AkeyUpdate {
    if epoch.is_multiple_of(2) { summed(update, data) } else { update }
}

pub async fn put(
    shard: &Shard,
    dkey: &str,
    akey: &str,
    epoch: u64,
    value: &[u8],
) -> Result<Epoch, UpdateError> {
    let update = [summed_at(epoch, single(akey, value), value)];
    shard
        .update(CONTAINER, OBJECT, &key(dkey), Epoch(epoch), Conditions::NONE, &update, Data::Borrowed(value))
        .await
}

pub async fn write(
    shard: &Shard,
    dkey: u64,
    epoch: u64,
    index: u64,
    data: &[u8],
) -> Result<Epoch, UpdateError> {
    let update = [summed_at(epoch, array("data", 1, &[(index, data.len() as u64)]), data)];
    let dkey = Key::from_u64(dkey);
    shard.update(CONTAINER, ARRAY, &dkey, Epoch(epoch), Conditions::NONE, &update, Data::Borrowed(data)).await
}

pub async fn punch(
    shard: &Shard,
    object: ObjectId,
    scope: PunchScope,
    epoch: u64,
) -> Result<Epoch, UpdateError> {
    shard.punch(CONTAINER, object, &scope, Epoch(epoch), Conditions::NONE).await
}

pub async fn data_of(fetch: Fetch) -> Result<Vec<u8>, FetchError> {
    // Filled, so that holes that aren't zeroed are noticed.
    let mut data = vec![0xee; fetch.data_len() as usize];
    fetch.read(&mut data).await?;
    Ok(data)
}

/// The single value at an epoch; `None` when there is nothing.
pub async fn get(shard: &Shard, dkey: &str, akey: &str, epoch: u64) -> Result<Option<Vec<u8>>, FetchError> {
    let akey =
        AkeyFetch { akey: key(akey), value: Value::Single { size: u64::MAX }, conditions: Conditions::NONE };
    let fetch = shard.fetch(CONTAINER, OBJECT, &key(dkey), Epoch(epoch), Conditions::NONE, &[akey]).await?;
    let found = fetch.akeys()[0].fetched.size > 0;
    Ok(if found { Some(data_of(fetch).await?) } else { None })
}

/// Bytes of an extent at an epoch, and which of them are real.
pub async fn read(
    shard: &Shard,
    dkey: u64,
    epoch: u64,
    index: u64,
    count: u64,
) -> Result<(Vec<u8>, Vec<Extent>), FetchError> {
    let value = Value::Array { record_size: 1, extents: vec![Extent { index, count }] };
    let akey = AkeyFetch { akey: key("data"), value, conditions: Conditions::NONE };
    let dkey = Key::from_u64(dkey);
    let fetch = shard.fetch(CONTAINER, ARRAY, &dkey, Epoch(epoch), Conditions::NONE, &[akey]).await?;
    let present = fetch.akeys()[0].fetched.present.clone();
    Ok((data_of(fetch).await?, present))
}

/// All parts of a search, with something done in between. Returns how many parts it has, too.
pub async fn search(
    shard: &Shard,
    container: ContainerId,
    object: ObjectId,
    epoch: u64,
    query: &KeyQuery,
    mut between: impl AsyncFnMut(),
) -> Result<(QueryKeyReply, u64), FetchError> {
    let (mut anchor, mut parts) = (Vec::new(), 1);
    loop {
        let part = shard.query_key(container, object, Epoch(epoch), query, &anchor).await?;
        let Some(next) = part.next else { return Ok((part.found, parts)) };
        assert_ne!(next, anchor, "it doesn't go on");
        assert_eq!(part.found, QueryKeyReply { max_epoch: part.found.max_epoch, ..QueryKeyReply::default() });
        (anchor, parts) = (next.into_vec(), parts + 1);
        between().await;
    }
}

/// Bytes that tell from where they come.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// A new store on a device in memory.
pub async fn start_on(handle: &Handle, device: &MemoryDevice) -> (Rc<Store>, Shard) {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    Store::format(handle, &disk, &format_options()).await.expect("empty");
    let store = Store::open(handle, disk, &owner(), quiet()).await.expect("it opens");
    let shard = store.create_pool(POOL, 32 << 20).await.expect("space");
    shard.create_container(CONTAINER).await.expect("created");
    (store, shard)
}
