//! Copies of what isn't the same each time it is read, and of what nobody can tell whether it was acknowledged.

use super::damage::{SIZE, copy_of, disk_of, dump, filled, on};
use super::{Told, copied, number};
use crate::setup::*;
use core::ops::Range;
use weir_media::memory::MemoryDevice;
use weir_media::sim::{SimDisk, SimDiskOptions};
use weir_store::{Copied, CopyError, CopyOptions, Inspector, LossKind, Part};

/// The batches of the log: where each begins.
fn batches(device: &MemoryDevice) -> Vec<u64> {
    let log = dump(device, Part::Log);
    log.iter().filter(|line| line[0].0 == "offset").map(|line| number(line, "offset")).collect()
}

/// The first leaf of the index, which has pools and containers.
fn first_leaf(device: &MemoryDevice) -> Range<u64> {
    let nodes = dump(device, Part::Nodes);
    let leaves = nodes.iter().map(|line| number(line, "level")).max().expect("nodes");
    let first = nodes.iter().find(|line| number(line, "level") == leaves).expect("a leaf");
    let offset = number(first, "offset");
    offset..offset + 1
}

#[test]
fn a_last_batch_of_which_a_bit_has_flipped_is_told_of() {
    let device = filled();
    let last = *batches(&device).last().expect("a batch");
    device.flip_bit(last + 80, 1);
    let (to, done, losses) = copy_of(&device);
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!((loss.kind, loss.what, done.is_whole()), (LossKind::Entries, "log batch", false));
    on(&to, async |shard| {
        assert!(get(&shard, "late", "a", u64::MAX).await.expect("read").is_some());
        assert_eq!(get(&shard, "late", "b", u64::MAX).await.expect("read"), None);
    });
}

#[test]
fn a_batch_that_is_read_wrong_once_is_read_again() {
    let device = filled();
    let machine = Machine::new(41, SIZE);
    disk_of(&device, &machine);
    let disk = SimDisk::new("copy", SIZE, 42, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let wrong = machine.disk.clone();
    let done = machine.run(async move {
        let mut told = Told::default();
        let inspector = Inspector::open(from).await.expect("a store");
        let survey = inspector.survey(&mut told).await.expect("looked at");
        for batch in batches(&device) {
            wrong.misread(batch + 80, 2);
        }
        let options = CopyOptions { restart: false, config: quiet() };
        inspector.copy(&handle, &survey, &to, &options, &mut told).await
    });
    assert!(done.as_ref().is_ok_and(Copied::is_whole), "{done:?}");
    assert_eq!(
        done.expect("copied").entries,
        copied(&filled(), &MemoryDevice::new(SIZE), false).0.expect("copied").entries
    );
}

/// Copies a store whose first leaf can be read in one pass only.
fn copied_once(readable_first: bool) -> Result<Copied, CopyError> {
    let device = filled();
    let machine = Machine::new(43, SIZE);
    disk_of(&device, &machine);
    let leaf = first_leaf(&device);
    let disk = SimDisk::new("copy", SIZE, 44, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let changing = machine.disk.clone();
    if !readable_first {
        changing.make_unreadable(leaf.clone());
    }
    machine.run(async move {
        let mut told = Told::default();
        let inspector = Inspector::open(from).await.expect("a store");
        let survey = inspector.survey(&mut told).await.expect("looked at");
        if readable_first {
            changing.make_unreadable(leaf);
        } else {
            changing.make_readable();
        }
        let options = CopyOptions { restart: false, config: quiet() };
        inspector.copy(&handle, &survey, &to, &options, &mut told).await
    })
}

#[test]
fn nothing_is_judged_without_pools_and_containers_that_could_be_read_another_time() {
    for (readable_first, how) in [(false, "can be read now"), (true, "could be read before")] {
        match copied_once(readable_first) {
            Err(CopyError::Changed { reason, .. }) if reason.contains(how) => {}
            done => panic!("{done:?}"),
        }
    }
}
