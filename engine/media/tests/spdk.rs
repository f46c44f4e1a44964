//! SPDK's device in memory, on SPDK as it is installed. Without huge pages, so that any machine will do.
#![cfg(feature = "spdk")]

use std::rc::Rc;

use weir_media::spdk::{SpdkDevice, SpdkOptions, start};
use weir_media::{BLOCK, Device, DmaBuf, MediaError, Slice};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

/// Two devices in memory of 64 MiB, and few of SPDK's own buffers.
const CONFIG: &str = r#"{"subsystems": [
  {"subsystem": "iobuf", "config": [{"method": "iobuf_set_options", "params": {
    "small_pool_count": 1024, "large_pool_count": 64, "small_bufsize": 8192, "large_bufsize": 135168}}]},
  {"subsystem": "bdev", "config": [
    {"method": "bdev_set_options", "params": {"bdev_io_pool_size": 1024, "bdev_io_cache_size": 64,
      "bdev_auto_examine": false}},
    {"method": "bdev_malloc_create", "params": {"name": "Malloc0", "num_blocks": 131072, "block_size": 512}},
    {"method": "bdev_malloc_create", "params": {"name": "Malloc1", "num_blocks": 16384, "block_size": 4096}},
    {"method": "bdev_wait_for_examine"}]}]}"#;

const SIZE: u64 = 64 << 20;

fn filled(byte: u8, blocks: usize) -> Slice {
    let mut buffer = DmaBuf::new(blocks * BLOCK);
    buffer.fill(byte);
    buffer.into()
}

fn transfers(executor: &Executor) {
    let handle = executor.handle();
    for (name, block) in [("Malloc0", 512), ("Malloc1", 4096)] {
        let device = Rc::new(SpdkDevice::open(&handle, name).expect("a device of the configuration"));
        assert_eq!((device.size(), device.logical_block()), (SIZE, block));
        assert_eq!(executor.block_on(device.first_data(0)), Ok(None));
        executor.block_on(async {
            device.write(8192, vec![filled(1, 1), filled(2, 3)]).await.expect("a write");
            device.write_stable(1 << 20, vec![filled(3, 600)]).await.expect("a long write");
            device.flush().await.expect("a flush");
            let read = device.read(8192, DmaBuf::new(4 * BLOCK)).await.expect("a read");
            assert!(
                read[..BLOCK].iter().all(|byte| *byte == 1) && read[BLOCK..].iter().all(|byte| *byte == 2)
            );
            let read = device.read(1 << 20, DmaBuf::new(600 * BLOCK)).await.expect("a long read");
            assert!(read.iter().all(|byte| *byte == 3));
            let many = (0..4096u64).map(|at| {
                let (device, byte) = (Rc::clone(&device), u8::try_from(at % 251).expect("small"));
                async move {
                    let offset = (32 << 20) + at * BLOCK as u64;
                    device.write(offset, vec![filled(byte, 1)]).await?;
                    let read = device.read(offset, DmaBuf::new(BLOCK)).await?;
                    Ok::<_, MediaError>(read.iter().all(|found| *found == byte))
                }
            });
            for outcome in join_all(many).await {
                assert_eq!(outcome, Ok(true), "of more at once than there is memory for");
            }
            let beyond = device.read(SIZE, DmaBuf::new(BLOCK)).await;
            assert!(matches!(beyond, Err(MediaError::Range { .. })));
        });
        assert_eq!(executor.block_on(device.first_data(0)), Ok(Some(8192)));
        let stats = device.stats();
        assert_eq!((stats.writes, stats.flushes, stats.errors, stats.in_flight), (4098, 1, 0, 0));
    }
}

/// A process has one SPDK, so that this is one test.
#[test]
fn devices_of_spdk_are_opened_by_name_and_work_as_others_do() {
    let executor = Executor::new().expect("an executor");
    let handle = executor.handle();
    let early = SpdkDevice::open(&handle, "Malloc0").expect_err("not started").to_string();
    assert!(early.contains("has not been started"), "{early}");
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("spdk.json");
    let options = SpdkOptions { memory_mib: 512, has_huge_pages: false, ..SpdkOptions::new(config.clone()) };
    assert!(start(&options).expect_err("no such file").to_string().contains("spdk.json"));
    std::fs::write(&config, CONFIG).expect("a file");
    start(&options).expect("it starts");
    start(&options).expect("it runs already");
    assert!(start(&SpdkOptions::new(config)).is_err(), "with other options");
    transfers(&executor);
    let unknown = SpdkDevice::open(&handle, "Malloc7").expect_err("no such device").to_string();
    assert!(unknown.contains("spdk:Malloc7") && unknown.contains("no device of this name"), "{unknown}");
    let first = SpdkDevice::open(&handle, "Malloc0").expect("free again");
    assert!(matches!(SpdkDevice::open(&handle, "Malloc0"), Err(MediaError::Busy { .. })));
    // Whose futures are dropped run to their end all the same.
    drop(first.write(0, vec![filled(9, 1)]));
    drop(first);
    let other = std::thread::spawn(|| {
        let executor = Executor::new().expect("an executor");
        let path = std::path::Path::new("spdk:Malloc0");
        let device = weir_media::open(&executor.handle(), path).expect("also on another thread");
        let read = executor.block_on(device.read(0, DmaBuf::new(BLOCK))).expect("a read");
        read[0]
    });
    assert_eq!(other.join().expect("no panic"), 9);
}
