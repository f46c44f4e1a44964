//! Copies of what isn't the same each time it is read, and of what nobody can tell whether it was acknowledged.

use super::damage::{SIZE, copied_amid, copy_of, dump, filled, on};
use super::{copied, number};
use crate::setup::*;
use core::ops::Range;
use weir_inspect::{CopyError, LossKind, Part};
use weir_media::memory::MemoryDevice;
use weir_media::sim::SimDisk;

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
    let batches = batches(&device);
    let misread = move |disk: &SimDisk| {
        for batch in batches {
            disk.misread(batch + 80, 2);
        }
    };
    let done = copied_amid(&device, 41, |_| (), misread).expect("copied");
    assert!(done.is_whole(), "{done:?}");
    let all = copied(&device, &MemoryDevice::new(SIZE), false).0.expect("copied");
    assert_eq!(done.entries, all.entries);
}

#[test]
fn nothing_is_judged_without_pools_and_containers_that_could_be_read_another_time() {
    let device = filled();
    let leaf = first_leaf(&device);
    let (lost, then) = (leaf.clone(), leaf);
    let now = copied_amid(&device, 43, |disk| disk.make_unreadable(lost), SimDisk::make_readable);
    let before = copied_amid(&device, 43, |_| (), |disk| disk.make_unreadable(then));
    for (done, how) in [(now, "can be read now"), (before, "could be read before")] {
        match done {
            Err(CopyError::Changed { reason, .. }) if reason.contains(how) => {}
            done => panic!("{done:?}"),
        }
    }
}
