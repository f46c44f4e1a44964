//! Copies of what is sound.

use super::{Told, copied, copy_to, entries};
use crate::exhaustive::workload::{everything, observe};
use crate::golden;
use crate::operations::trial::{Faults, Trial};
use crate::setup::*;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;
use weir_inspect::{CopyEvents, CopyOptions, CopyProgress, CopyStage, Depth, Inspector, Loss};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_media::sim::{SimDisk, SimDiskOptions};
use weir_proto::Epoch;
use weir_proto::object::PunchScope;
use weir_runtime::join_all;
use weir_store::Store;

/// A copy of a machine's disk, compared with it.
fn copy_of(machine: &Machine, seed: u64, size: u64, config: weir_store::StoreConfig) -> SimDisk {
    let disk = SimDisk::new("copy", size, seed, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    machine.run(async move {
        let mut told = Told::default();
        let devices = (Rc::clone(&from), Rc::clone(&to));
        let copied = copy_to(&handle, devices, (false, config), &mut told).await.expect("copied");
        assert!(copied.is_whole() && told.losses.is_empty(), "seed {seed}: {:?}", told.losses);
        let found = entries(Rc::clone(&to)).await;
        assert!(found == entries(Rc::clone(&from)).await, "seed {seed}: entries differ");
        assert_eq!(copied.entries, found.len() as u64);
        let reports = [from, to].map(async |device| {
            Inspector::open(device).await.expect("a store").report(Depth::Everything).await
        });
        let [before, after]: [_; 2] = join_all(reports).await.try_into().expect("two");
        assert_eq!(after.findings, [], "seed {seed}");
        assert_eq!(after.owner, before.owner);
        assert_ne!(after.id, before.id);
        assert_eq!(after.log.records, 0, "nothing is left to be replayed");
        let data = |report: &weir_inspect::Report| report.data.expect("looked at").bytes;
        let newest = |report: &weir_inspect::Report| report.checkpoint.expect("one").newest_epoch;
        assert!(newest(&after) >= newest(&before));
        assert_eq!((data(&after), copied.id), (copied.data, after.id));
    });
    disk
}

/// Random operations go on with copies as with the disk itself.
fn go_on(seed: u64, faults: Faults, steps: u64) {
    let mut trial = Trial::new(seed, faults);
    for step in 1..=steps {
        trial.step();
        if step % 130 == 0 {
            trial.go_on_with(|machine| {
                let grows = if step % 260 == 0 { 8 << 20 } else { 0 };
                let config = if seed.is_multiple_of(2) { cramped() } else { quiet() };
                copy_of(machine, seed * 1000 + step, machine.device().size() + grows, config)
            });
        }
        if step % 400 == 0 {
            trial.check_all();
        }
    }
    trial.check_all();
    trial.end();
}

#[test]
fn random_operations_go_on_with_a_copy_as_with_the_store() {
    (500..504).for_each(|seed| go_on(seed, Faults::None, 800));
}

#[test]
fn what_is_left_of_random_faults_is_copied_as_an_open_finds_it() {
    (520..524).for_each(|seed| go_on(seed, Faults::All, 400));
}

#[test]
fn images_of_all_versions_are_copied() {
    for image in golden::IMAGES {
        let (from, to) = (golden::load(image), MemoryDevice::new(golden::SIZE));
        let (done, told) = copied(&from, &to, false);
        assert!(done.expect("copied").is_whole(), "{:?}", told.losses);
        assert_eq!(golden::inspect(&to, Depth::Everything).findings, []);
        golden::find_all(image, &to);
    }
}

#[test]
fn a_copy_shows_everything_that_the_store_shows_and_is_opened_at_once() {
    let machine = Machine::new(5, 32 << 20);
    machine.format();
    let store = machine.open(quiet());
    let opened = Rc::clone(&store);
    let before = machine.run(async move {
        for stage in everything() {
            join_all(stage.into_iter().map(|operation| (operation.run)(Rc::clone(&opened)))).await;
        }
        let before = (observe(&opened).await, opened.newest_epoch());
        opened.close().await.expect("closed");
        before
    });
    drop(store);
    let mut machine = machine;
    machine.disk = copy_of(&machine, 6, 40 << 20, quiet());
    let store = machine.open(quiet());
    assert_eq!(store.stats().replayed_records, 0);
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    let opened = Rc::clone(&store);
    let after = machine.run(async move { (observe(&opened).await, opened.newest_epoch()) });
    assert_eq!(after, before);
}

#[test]
fn a_full_store_has_room_on_a_device_of_the_same_size() {
    for len in [100, 3000, 5000, 300_000] {
        let machine = Machine::new(10 + len, 24 << 20);
        machine.format();
        let store = machine.open(quiet());
        machine.run(async move {
            let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
            shard.create_container(CONTAINER).await.expect("a container");
            let mut number = 0;
            while put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, len as usize))
                .await
                .is_ok()
            {
                number += 1;
            }
            assert!(number > 30);
            store.close().await.expect("closed");
        });
        copy_of(&machine, len, 24 << 20, quiet());
    }
}

/// How many large values [`large`] stores, and their bytes.
const VALUES: u64 = 16;
const LARGE: usize = 3 << 20;

/// A closed store of large extents, and of many small entries.
fn large(size: u64) -> Machine {
    let machine = Machine::new(7, size);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        for number in 0..VALUES {
            write(&shard, number, number + 1, 0, &pattern(number, LARGE)).await.expect("stored");
        }
        for number in 0..3000_u64 {
            put(&shard, &format!("d{number}"), "a", 100 + number, &pattern(number, 900))
                .await
                .expect("stored");
        }
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("d5")]), 9000).await.expect("punched");
        shard.set_snapshots(CONTAINER, &[Epoch(50)]).await.expect("kept");
        store.close().await.expect("closed");
    });
    machine
}

#[test]
fn large_values_are_read_and_written_in_large_transfers() {
    let machine = large(128 << 20);
    let disk = SimDisk::new("copy", 128 << 20, 8, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let reads = machine.run(async move {
        let (inspector, mut told) =
            (Inspector::open(Rc::clone(&from)).await.expect("a store"), Told::default());
        let survey = inspector.survey(&mut told).await.expect("looked at");
        let (before, options) = (from.stats().reads, CopyOptions { restart: false, config: quiet() });
        inspector.copy(&handle, &survey, &to, &options, &mut told).await.expect("copied");
        from.stats().reads - before
    });
    // Some hundred nodes, and behind the log's end block by block as far as a batch may be.
    assert!(reads < 1500, "{reads} reads");
    let (writes, bytes) = (disk.operations(), VALUES * LARGE as u64 + 3000 * 1500 * 2);
    assert!(writes < bytes / (100 << 10), "{writes} writes and flushes");
}

#[test]
fn it_is_told_how_far_a_copy_is() {
    let machine = large(128 << 20);
    let disk = SimDisk::new("copy", 128 << 20, 9, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let progress = machine.run(async move {
        let mut told = Told::default();
        copy_to(&handle, (from, to), (false, quiet()), &mut told).await.expect("copied");
        told.progress
    });
    let stages = |stage| progress.iter().filter(move |of| of.stage == stage);
    assert!(stages(CopyStage::Survey).count() >= 1 && stages(CopyStage::End).count() == 1);
    let copying: Vec<_> = stages(CopyStage::Copy).collect();
    assert!(copying.len() >= 6 && copying.is_sorted_by_key(|of| (of.bytes, of.entries)), "{copying:?}");
    let last = copying.last().expect("some");
    assert_eq!(last.entries, last.entries_total);
    assert!(last.bytes_total - last.bytes < 1 << 16 && last.bytes >= VALUES * LARGE as u64);
}

/// Looks at how much was read and isn't written yet.
struct Between {
    from: Rc<dyn Device>,
    to: Rc<dyn Device>,
    /// Bytes that were read before.
    before: Option<u64>,
    most: u64,
}

impl CopyEvents for Between {
    fn progress(&mut self, progress: &CopyProgress) -> ControlFlow<()> {
        let read = self.from.stats().read_bytes;
        if progress.stage == CopyStage::Copy {
            let read = read - *self.before.get_or_insert(read);
            self.most = self.most.max(read.saturating_sub(self.to.stats().write_bytes));
        }
        ControlFlow::Continue(())
    }

    fn loss(&mut self, loss: Loss) -> ControlFlow<()> {
        panic!("{loss}");
    }
}

#[test]
fn a_device_that_takes_long_to_write_has_little_read_ahead_of_it() {
    let machine = large(128 << 20);
    let slow = SimDiskOptions { transfer_min: Duration::from_millis(50), ..SimDiskOptions::default() };
    let slow = SimDiskOptions { transfer_max: Duration::from_millis(80), ..slow };
    let disk = SimDisk::new("copy", 128 << 20, 9, slow);
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let most = machine.run(async move {
        let inspector = Inspector::open(Rc::clone(&from)).await.expect("a store");
        let mut between = Between { from, to: Rc::clone(&to), before: None, most: 0 };
        let survey = inspector.survey(&mut between).await.expect("looked at");
        let options = CopyOptions { restart: false, config: quiet() };
        inspector.copy(&handle, &survey, &to, &options, &mut between).await.expect("copied");
        between.most
    });
    // Four batches, and nodes of the index.
    assert!((1 << 20..26 << 20).contains(&most), "{most} bytes");
}

#[test]
fn a_copy_takes_no_more_memory_of_the_index_than_it_may() {
    let machine = large(128 << 20);
    let disk = SimDisk::new("copy", 128 << 20, 9, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    machine.run(async move {
        copy_to(&handle, (from, Rc::clone(&to)), (false, cramped()), &mut Told::default())
            .await
            .expect("copied");
        let store = Store::open(&handle, to, &owner(), quiet()).await.expect("it opens");
        assert_eq!(store.audit().await.problems, [""; 0]);
    });
}

#[test]
fn values_in_many_pieces_are_put_together() {
    let device = MemoryDevice::new(64 << 20);
    let from: Rc<dyn Device> = Rc::new(device.clone());
    run(9, async move |handle| {
        let (store, shard) = start_on(&handle, &device).await;
        for number in 0..2000 {
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, 5000))
                .await
                .expect("stored");
        }
        let every_other = (0..2000).step_by(2).map(|number| key(&format!("d{number}"))).collect::<Vec<_>>();
        for dkeys in every_other.chunks(100) {
            let scope = PunchScope::Dkeys(dkeys.to_vec());
            punch(&shard, OBJECT, scope, 5000).await.expect("punched");
        }
        shard.aggregate(CONTAINER, Epoch(6000)).await.expect("aggregated");
        store.close().await.expect("closed");
        let to: Rc<dyn Device> = Rc::new(MemoryDevice::new(48 << 20));
        let devices = (Rc::clone(&from), Rc::clone(&to));
        let done = copy_to(&handle, devices, (false, quiet()), &mut Told::default()).await.expect("copied");
        assert_eq!((done.data, done.losses), (1000 * 5000, 0));
        let store = Store::open(&handle, to, &owner(), quiet()).await.expect("it opens");
        let shard = store.pool(POOL).expect("the pool");
        assert_eq!(get(&shard, "d7", "a", 7000).await.expect("read"), Some(pattern(7, 5000)));
        assert_eq!(get(&shard, "d8", "a", 7000).await.expect("read"), None);
        assert_eq!(store.audit().await.problems, [""; 0]);
    });
}
