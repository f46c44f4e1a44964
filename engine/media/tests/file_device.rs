//! Real files through io_uring with `O_DIRECT`.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use weir_media::file::FileDevice;
use weir_media::{BLOCK, Device, DmaBuf, MediaError, Slice};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

/// A directory on the file system of the build, because a memory file system may not take `O_DIRECT`.
fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("weir-media")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a scratch directory")
}

fn path(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("target0")
}

fn filled(byte: u8, blocks: usize) -> Slice {
    let mut buffer = DmaBuf::new(blocks * BLOCK);
    buffer.fill(byte);
    buffer.into()
}

fn create(executor: &Executor, path: &Path) -> FileDevice {
    FileDevice::create(&executor.handle(), path, 1 << 20).expect("space for 1 MiB")
}

#[test]
fn what_was_written_is_read_back_after_reopening() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let device = create(&executor, &path(&directory));
    assert_eq!(device.size(), 1 << 20);
    executor.block_on(async {
        device.write(8192, vec![filled(1, 1), filled(2, 3)]).await.expect("a write");
        device.flush().await.expect("a flush");
    });
    assert_eq!(
        (device.stats().writes, device.stats().write_bytes, device.stats().in_flight),
        (1, 4 * 4096, 0)
    );
    drop(device);
    let device = FileDevice::open(&executor.handle(), &path(&directory)).expect("the file");
    let buffer = executor.block_on(device.read(8192, DmaBuf::new(4 * BLOCK))).expect("a read");
    assert!(buffer[..BLOCK].iter().all(|byte| *byte == 1));
    assert!(buffer[BLOCK..].iter().all(|byte| *byte == 2));
}

#[test]
fn more_transfers_than_the_ring_holds_all_complete() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let device = Rc::new(create(&executor, &path(&directory)));
    let blocks = device.size() / BLOCK as u64;
    executor.block_on(async {
        for round in 0..4u8 {
            let write = |block: u64| {
                device.write(
                    block * BLOCK as u64,
                    vec![filled(u8::try_from(block % 200).expect("small") ^ round, 1)],
                )
            };
            let results = join_all((0..blocks).map(write)).await;
            assert!(results.iter().all(Result::is_ok));
            let reads =
                join_all((0..blocks).map(|block| device.read(block * BLOCK as u64, DmaBuf::new(BLOCK))))
                    .await;
            for (block, read) in (0u64..).zip(reads) {
                assert_eq!(read.expect("a read")[7], u8::try_from(block % 200).expect("small") ^ round);
            }
        }
    });
}

#[test]
fn dropped_futures_leave_no_dangling_memory_and_their_writes_finish() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let device = create(&executor, &path(&directory));
    for block in 0..64 {
        drop(device.write(block * BLOCK as u64, vec![filled(7, 1)]));
        drop(device.read(block * BLOCK as u64, DmaBuf::new(BLOCK)));
    }
    drop(device);
    let device = FileDevice::open(&executor.handle(), &path(&directory)).expect("the file");
    let buffer = executor.block_on(device.read(0, DmaBuf::new(64 * BLOCK))).expect("a read");
    assert!(buffer.iter().all(|byte| *byte == 7));
}

#[test]
fn the_first_data_of_a_preallocated_file_is_found_without_reading_holes() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let device =
        FileDevice::create(&executor.handle(), &path(&directory), 64 << 20).expect("space for 64 MiB");
    assert_eq!(executor.block_on(device.first_data(0)), Ok(None));
    assert!(device.stats().read_bytes < 1 << 20);
    executor.block_on(device.write(40 << 20, vec![filled(3, 1)])).expect("a write");
    assert_eq!(executor.block_on(device.first_data(0)), Ok(Some(40 << 20)));
}

#[test]
fn impossible_transfers_are_refused_with_the_range() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let device = create(&executor, &path(&directory));
    let odd = filled(1, 1).part(0..512).expect("a part");
    for (offset, data) in [(1 << 20, filled(1, 1)), (100, filled(1, 1)), (0, odd)] {
        let error = executor.block_on(device.write(offset, vec![data])).expect_err("an impossible transfer");
        assert!(matches!(error, MediaError::Range { .. }), "{error}");
    }
    assert!(executor.block_on(device.read((1 << 20) - 4096, DmaBuf::new(8192))).is_err());
}

#[test]
fn errors_at_open_say_what_and_which_file() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let handle = executor.handle();
    let path = path(&directory);
    let missing = FileDevice::open(&handle, &path).expect_err("no file yet").to_string();
    assert!(missing.contains("target0") && missing.contains("check the path"), "{missing}");
    let device = create(&executor, &path);
    let busy = FileDevice::open(&handle, &path).expect_err("it is in use").to_string();
    assert!(busy.contains("another process uses it"), "{busy}");
    let exists = FileDevice::create(&handle, &path, 4096).expect_err("it exists").to_string();
    assert!(exists.contains("exists already"), "{exists}");
    drop(device);
    let folder = FileDevice::open(&handle, directory.path()).expect_err("a directory");
    assert!(matches!(folder, MediaError::Open { .. }));
    let other = directory.path().join("huge");
    let full = FileDevice::create(&handle, &other, 1 << 50).expect_err("a petabyte").to_string();
    assert!(full.contains("huge") && !other.exists(), "{full}");
}

#[test]
fn a_device_opened_for_reading_is_never_written_and_shares_the_file_with_readers_only() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let (handle, path) = (executor.handle(), path(&directory));
    let writer = create(&executor, &path);
    executor.block_on(writer.write(4096, vec![filled(5, 1)])).expect("a write");
    let busy = FileDevice::open_read_only(&handle, &path).expect_err("a writer has it");
    assert!(matches!(busy, MediaError::Busy { .. }), "{busy}");
    drop(writer);
    let first = FileDevice::open_read_only(&handle, &path).expect("nobody writes");
    let second = FileDevice::open_read_only(&handle, &path).expect("readers share");
    assert!(matches!(FileDevice::open(&handle, &path), Err(MediaError::Busy { .. })));
    for device in [first, second] {
        let buffer = executor.block_on(device.read(4096, DmaBuf::new(BLOCK))).expect("a read");
        assert!(buffer.iter().all(|byte| *byte == 5));
        let refused =
            executor.block_on(device.write(4096, vec![filled(6, 1)])).expect_err("for reading only");
        assert!(refused.to_string().contains("read-only"), "{refused}");
    }
    let memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = memory.path().join("target0");
    std::fs::write(&path, vec![9; 3 * BLOCK + 5]).expect("written");
    let device = FileDevice::open_read_only(&handle, &path).expect("any file system will do");
    assert_eq!(device.size(), 3 * BLOCK as u64);
    let buffer = executor.block_on(device.read(8192, DmaBuf::new(BLOCK))).expect("a read");
    assert!(buffer.iter().all(|byte| *byte == 9));
}
