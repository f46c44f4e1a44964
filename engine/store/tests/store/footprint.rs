//! What the metadata of a file of 4 KiB takes: an object, a dkey, an akey and one extent. `WEIR_FOOTPRINT_FILES` sets
//! how many files are stored; the figures are printed.

use crate::setup::*;
use std::rc::Rc;
use std::time::Instant;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::object::Conditions;
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::join_all;
use weir_runtime::real::Executor;
use weir_store::{Data, Shard, Store, StoreConfig};

/// Bytes of DRAM, and of checkpoint and log, that a file's metadata may take.
const BYTES_MAX: u64 = 400;

/// Updates that share a flush.
const WIDTH: u64 = 128;

/// Reads that an open does beside those of log, bitmaps and the nodes that stay in memory.
const OPEN_READS_MAX: u64 = 64;

async fn store_files(shard: &Shard, files: u64) {
    let (data, dkey, none) = (pattern(1, 4096), Key::from_u64(1), Conditions::NONE);
    let update = [array("0", 1, &[(0, 4096)])];
    for first in (0..files).step_by(WIDTH as usize) {
        let writes = (first..files.min(first + WIDTH)).map(|number| {
            // As hashed object ids come: in no order.
            let lo = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let object = ObjectId { hi: 13 << 56 | 1 << 48, lo };
            shard.update(CONTAINER, object, &dkey, Epoch(number + 1), none, &update, Data::Borrowed(&data))
        });
        assert!(join_all(writes).await.iter().all(Result::is_ok));
    }
}

#[test]
fn the_metadata_of_a_small_file_takes_at_most_400_bytes_in_memory_and_as_many_on_the_device() {
    let files =
        std::env::var("WEIR_FOOTPRINT_FILES").map_or(20_000, |count| count.parse::<u64>().expect("a number"));
    let executor = Executor::new().expect("an executor");
    let handle = executor.handle();
    let device = MemoryDevice::new((files * 6 * 1024).max(64 << 20).next_multiple_of(4096));
    let disk: Rc<dyn Device> = Rc::new(device);
    executor.block_on(async {
        Store::format(&handle, &disk, &format_options()).await.expect("an empty device");
        let config = StoreConfig { index_bytes: usize::MAX, ..quiet() };
        let store = Store::open(&handle, Rc::clone(&disk), &owner(), config).await.expect("a new store");
        let size = store.space().capacity;
        let shard = store.create_pool(POOL, size).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        let begin = Instant::now();
        store_files(&shard, files).await;
        let stored = begin.elapsed();
        let log = store.stats().commit.log_written;
        store.checkpoint().await.expect("a checkpoint");
        let memory = store.index_memory() as u64;
        let audit = store.audit().await;
        assert_eq!(audit.problems, [""; 0]);
        let nodes = audit.index_blocks * 4096;
        store.close().await.expect("closed");
        drop((store, shard));
        let limit = usize::try_from(memory / 10).expect("an address space");
        let config = StoreConfig { index_bytes: limit, ..quiet() };
        let (begin, reads) = (Instant::now(), disk.stats().reads);
        let store = Store::open(&handle, Rc::clone(&disk), &owner(), config).await.expect("it opens");
        let (opened, reads) = (begin.elapsed(), disk.stats().reads - reads);
        let (dram, log, nodes) = (memory / files, log / files, nodes / files);
        println!("{files} files of 4 KiB, each an object, a dkey, an akey and an extent ({stored:?}):");
        println!("  {dram} B of DRAM, {nodes} B of checkpoint, {log} B of log for each");
        println!("  opened in {opened:?} with {reads} reads; {} levels", audit.depth);
        assert!(dram <= BYTES_MAX, "{dram} bytes of DRAM");
        assert!(nodes + log <= BYTES_MAX, "{nodes} bytes of checkpoint and {log} of log");
        assert!(reads <= OPEN_READS_MAX, "an open took {reads} reads");
        drop(store);
    });
}
