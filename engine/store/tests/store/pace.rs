//! How little background work does at a time: counted in index nodes and bytes, which don't depend on the machine.

use crate::setup::*;
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use weir_media::memory::MemoryDevice;
use weir_media::sim::{SimDisk, SimDiskOptions};
use weir_media::{Device, DeviceStats, DmaBuf, IoFuture, Slice};
use weir_proto::Epoch;
use weir_runtime::real::Executor;
use weir_runtime::{EventSource, join_all};
use weir_store::Store;

/// Bytes of one background transfer.
const PIECE: usize = 64 << 10;

/// Dkeys that are overwritten and aggregated.
const OVERWRITTEN: u64 = 500;

/// Index nodes passed between two looks at the device at most: a slice of 256, and one step more.
const NODES_MAX: u64 = 320;

/// Counts what happens between two turns of an executor.
struct Watch {
    store: Rc<Store>,
    last: Cell<u64>,
    most: Cell<u64>,
    turns: Cell<u64>,
}

impl EventSource for Watch {
    fn poll(&self) -> bool {
        let visits = self.store.stats().index.visits;
        self.most.set(self.most.get().max(visits - self.last.replace(visits)));
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

#[test]
fn aggregation_reads_the_parts_of_a_large_extent_in_few_pieces() {
    let machine = Machine::new(31, 64 << 20);
    let (store, shard) = machine.start(quiet());
    // Chunks end at indexes, pieces at bytes of the value: from an odd index on, a chunk lies across the end of each piece.
    let (first, mut expected) = (20_000, pattern(1, 300_000));
    let (user, data) = (shard.clone(), expected.clone());
    machine.run(async move { write(&user, 0, 1, first, &data).await }).expect("stored");
    for number in 1..10 {
        let at = number * 30_000;
        expected[at..at + 10].fill(b'!');
        let user = shard.clone();
        machine
            .run(async move { write(&user, 0, 1 + number as u64, first + at as u64, &[b'!'; 10]).await })
            .expect("stored");
    }
    let before = store.stats();
    let user = shard.clone();
    machine.run(async move { user.aggregate(CONTAINER, Epoch(100)).await }).expect("aggregated");
    let after = store.stats();
    let reads = after.device.reads - before.device.reads;
    assert!((1..=40).contains(&reads), "{reads} reads for ten parts");
    let count = expected.len() as u64;
    let found = machine.run(async move { read(&shard, 0, u64::MAX, first, count).await }).expect("read");
    assert!(found.0 == expected, "the extent has changed");
}

#[test]
fn aggregation_passes_few_nodes_between_two_looks_at_the_device() {
    let executor = Executor::new().expect("an executor");
    let handle = executor.handle();
    executor.block_on(async {
        let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(64 << 20));
        Store::format(&handle, &disk, &format_options()).await.expect("an empty device");
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for round in [1, 2] {
            for dkey in 0..OVERWRITTEN {
                let epoch = round * OVERWRITTEN + dkey;
                write(&shard, dkey, epoch, 0, &[7; 100]).await.expect("stored");
            }
        }
        let begin = store.stats().index.visits;
        let watch = Rc::new(Watch {
            store: Rc::clone(&store),
            last: Cell::new(begin),
            most: Cell::new(0),
            turns: Cell::new(0),
        });
        let source = handle.add_source(Rc::clone(&watch) as Rc<dyn EventSource>).expect("a source");
        shard.aggregate(CONTAINER, Epoch(10 * OVERWRITTEN)).await.expect("aggregated");
        handle.remove_source(source);
        assert_eq!(store.stats().aggregated, OVERWRITTEN);
        let (passed, most) = (store.stats().index.visits - begin, watch.most.get());
        assert!(passed > 10 * NODES_MAX, "{passed} nodes were passed, too few to tell");
        assert!(most <= NODES_MAX, "{most} of {passed} nodes in one of {} turns", watch.turns.get());
    });
}

/// A device that counts the bytes of writes under way. Batches of the log that refer to no data don't count: they are
/// written stably.
struct Counting {
    inner: Rc<dyn Device>,
    under_way: Rc<Cell<usize>>,
    most: Rc<Cell<usize>>,
    longest: Cell<usize>,
}

impl Device for Counting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        let len = data.iter().map(|slice| slice.len()).sum();
        let under_way = Rc::clone(&self.under_way);
        under_way.set(under_way.get() + len);
        self.most.set(self.most.get().max(under_way.get()));
        self.longest.set(self.longest.get().max(len));
        let write = self.inner.write(offset, data);
        Box::pin(async move {
            let written = write.await;
            under_way.set(under_way.get() - len);
            written
        })
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.inner.write_stable(offset, data)
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.prepare(offset, len)
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        self.inner.first_data(from)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// Checkpoints of some megabytes, while so many clients store values in the log: most bytes under way, and those of the
/// longest write.
fn checkpoints_beside(clients: u64) -> (usize, usize) {
    run(5, async move |handle| {
        let disk = SimDisk::new("disk", 256 << 20, 5, SimDiskOptions::default()).attach(&handle);
        Store::format(&handle, &disk, &format_options()).await.expect("an empty disk");
        let counting = Rc::new(Counting {
            inner: disk,
            under_way: Rc::default(),
            most: Rc::default(),
            longest: Cell::default(),
        });
        let device = Rc::clone(&counting) as Rc<dyn Device>;
        let store = Store::open(&handle, device, &owner(), quiet()).await.expect("a new store");
        let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for round in 0..4u64 {
            let stored = (0..500).map(|at| {
                let (shard, dkey) = (shard.clone(), round * 500 + at);
                async move { write(&shard, dkey, dkey + 1, 0, &[1; 2000]).await.expect("stored") }
            });
            join_all(stored).await;
        }
        counting.most.set(0);
        counting.longest.set(0);
        let others = join_all((0..clients).map(|client| {
            let shard = shard.clone();
            async move {
                for epoch in 10_000.. {
                    write(&shard, 10_000 + client, epoch, 0, &[2; 64]).await.expect("stored");
                }
            }
        }));
        weir_runtime::race(
            async {
                if clients == 0 {
                    core::future::pending::<()>().await;
                }
                others.await;
            },
            async { store.checkpoint().await.expect("a healthy disk") },
        )
        .await;
        let bytes = store.stats().checkpoint_bytes;
        assert!(bytes > 40 * PIECE as u64, "the checkpoint has only {bytes} bytes");
        (counting.most.get(), counting.longest.get())
    })
}

#[test]
fn a_checkpoint_has_little_under_way_and_less_while_clients_wait_for_the_log() {
    let (most, longest) = checkpoints_beside(0);
    assert!(
        longest <= PIECE && most <= 8 * PIECE && most > 2 * PIECE,
        "{most} bytes under way, {longest} in one"
    );
    let (most, longest) = checkpoints_beside(8);
    assert!(longest <= PIECE && most <= 2 * PIECE, "{most} bytes under way beside clients, {longest} in one");
}
