//! Devices that a copy doesn't go to.

use super::{copied, entries};
use crate::setup::*;
use std::rc::Rc;
use weir_inspect::{CopyError, Inspector};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_store::{FormatError, OpenError, Store};

const SIZE: u64 = 64 << 20;

/// A store of a pool of 32 MiB with some data.
fn filled() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    let held = device.clone();
    run(3, async move |handle| {
        let (store, shard) = start_on(&handle, &held).await;
        for number in 0..100 {
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, 9000))
                .await
                .expect("stored");
        }
        store.close().await.expect("closed");
    });
    device
}

/// Fails, and writes nothing.
fn refused(from: &MemoryDevice, to: &MemoryDevice, restart: bool) -> CopyError {
    let size = Device::size(to);
    let before = to.bytes(0, size as usize);
    let error = copied(from, to, restart).0.expect_err("it is refused");
    assert!(before == to.bytes(0, size as usize), "something was written: {error}");
    error
}

#[test]
fn a_device_that_is_too_small_is_refused_with_the_size_that_would_do() {
    let from = filled();
    let error = refused(&from, &MemoryDevice::new(40 << 20), false);
    let CopyError::TooSmall { needed, pools, .. } = error else { panic!("{error}") };
    assert_eq!(pools, 32 << 20);
    assert!(needed > 40 << 20 && needed <= SIZE, "{needed}");
    refused(&from, &MemoryDevice::new(needed - 4096), false);
    let to = MemoryDevice::new(needed);
    copied(&from, &to, false).0.expect("it has room");
    let error = refused(&from, &MemoryDevice::new(1 << 20), false);
    assert!(matches!(error, CopyError::TooSmall { .. }), "{error}");
}

#[test]
fn whatever_holds_something_is_refused() {
    let from = filled();
    for (offset, bytes) in [(0, &b"LUKS"[..]), (1080, &[0x53, 0xef]), (30 << 20, b"x")] {
        let to = MemoryDevice::new(SIZE);
        to.overwrite(offset, bytes);
        for restart in [false, true] {
            let error = refused(&from, &to, restart);
            assert!(matches!(error, CopyError::Format(FormatError::NotEmpty { .. })), "{error}");
        }
    }
    // Another store, a copy, and the very device that is to be copied.
    let other = filled();
    let to = MemoryDevice::new(SIZE);
    copied(&from, &to, false).0.expect("copied");
    for to in [&other, &to, &from] {
        let error = refused(&from, to, true);
        assert!(error.to_string().contains("a Weir store"), "{error}");
    }
}

#[test]
fn a_copy_that_was_given_up_is_no_store_and_is_begun_again_when_that_is_said() {
    let from = filled();
    let to = MemoryDevice::new(SIZE);
    let devices: (Rc<dyn Device>, Rc<dyn Device>) = (Rc::new(from.clone()), Rc::new(to.clone()));
    let error = run(4, async move |handle| {
        let mut told = super::Told { stop_at: Some(1), ..super::Told::default() };
        super::copy_to(&handle, devices, (false, quiet()), &mut told).await.expect_err("it is given up")
    });
    assert_eq!(error, CopyError::Stopped);
    let disk: Rc<dyn Device> = Rc::new(to.clone());
    run(5, async move |handle| {
        let error = Store::open(&handle, Rc::clone(&disk), &owner(), quiet()).await.expect_err("no store");
        assert!(matches!(error, OpenError::UnfinishedCopy { .. }) && !error.is_unformatted(), "{error}");
        let error = Store::format(&handle, &disk, &format_options()).await.expect_err("not empty");
        assert!(error.to_string().contains("a copy of a Weir store that was not finished"), "{error}");
        let error = Inspector::open(disk).await.expect_err("no store");
        assert!(error.to_string().contains("was begun and not finished"), "{error}");
    });
    assert!(matches!(refused(&from, &to, false), CopyError::UnfinishedCopy { .. }));
    copied(&from, &to, true).0.expect("copied");
    let devices: [Rc<dyn Device>; 2] = [Rc::new(from), Rc::new(to)];
    run(6, async move |_| {
        let [from, to] = devices;
        assert_eq!(entries(from).await, entries(to).await);
    });
}

#[test]
fn a_device_that_fails_ends_the_copy() {
    use weir_media::sim::{SimDisk, SimDiskOptions};
    let machine = Machine::new(11, SIZE);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        for number in 0..100 {
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, 9000))
                .await
                .expect("stored");
        }
        store.close().await.expect("closed");
    });
    let disk = SimDisk::new("copy", SIZE, 12, SimDiskOptions::default());
    // The last quarter, where the index goes, or all of the data.
    for unwritable in [SIZE / 4 * 3..SIZE, SIZE / 8..SIZE / 4] {
        disk.make_writable();
        disk.make_unwritable(unwritable);
        let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
        let failed = machine.run(async move {
            let mut told = super::Told::default();
            super::copy_to(&handle, (from, to), (true, quiet()), &mut told).await
        });
        assert!(matches!(failed, Err(CopyError::Target { .. })), "{failed:?}");
    }
    disk.make_writable();
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    machine.run(async move {
        super::copy_to(&handle, (from, to), (true, quiet()), &mut super::Told::default())
            .await
            .expect("copied")
    });
}
