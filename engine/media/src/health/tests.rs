use super::*;
use crate::sim::{SimDisk, SimDiskOptions};
use weir_runtime::sim::{Node, World};

fn watched(seed: u64, options: SimDiskOptions) -> (World, Node, SimDisk, Rc<MonitoredDevice>) {
    let world = World::new(seed);
    let node = world.node("n");
    let disk = SimDisk::new("sim", 1 << 20, seed, options);
    let device = Rc::new(MonitoredDevice::new(&node.handle(), disk.attach(&node.handle())));
    (world, node, disk, device)
}

fn health(device: &MonitoredDevice) -> DeviceHealth {
    device.health().expect("it is watched")
}

fn write(world: &World, node: &Node, device: &Rc<MonitoredDevice>) -> Result<(), MediaError> {
    let device = Rc::clone(device);
    world.block_on(node, async move { device.write(0, vec![DmaBuf::new(4096).into()]).await })
}

#[test]
fn a_healthy_device_is_normal_and_its_times_are_counted() {
    let (world, node, _, device) = watched(1, SimDiskOptions::default());
    write(&world, &node, &device).expect("a healthy disk");
    let flushed = Rc::clone(&device);
    world.block_on(&node, async move { flushed.flush().await }).expect("a healthy disk");
    drop(device.read(0, DmaBuf::new(4096)));
    let found = health(&device);
    assert_eq!((found.state, found.reason.as_str()), (DeviceState::Normal, ""));
    let counts = [found.reads, found.writes, found.flushes].map(|times| times.buckets.iter().sum::<u64>());
    assert_eq!(counts, [0, 1, 1], "whose future is dropped isn't counted");
    let range = device.write(5, vec![DmaBuf::new(4096).into()]);
    assert!(world.block_on(&node, range).is_err());
    assert_eq!(health(&device).state, DeviceState::Normal, "the caller's mistake");
}

#[test]
fn errors_do_not_put_a_device_out_of_use_whose_rest_is_wanted() {
    let (world, node, disk, _) = watched(3, SimDiskOptions::default());
    let device = Rc::new(MonitoredDevice::bearing_errors(&node.handle(), disk.attach(&node.handle())));
    disk.make_unreadable(0..20 * 4096);
    for block in 0..20 {
        let reading = Rc::clone(&device);
        let read = world.block_on(&node, async move { reading.read(block * 4096, DmaBuf::new(4096)).await });
        assert!(matches!(read, Err(MediaError::Io { .. })));
    }
    assert_eq!((health(&device).state, device.fault()), (DeviceState::Suspect, None));
    let reading = Rc::clone(&device);
    world
        .block_on(&node, async move { reading.read(20 * 4096, DmaBuf::new(4096)).await })
        .expect("it can be read");
    disk.halt();
    let reading = Rc::clone(&device);
    let read = world.block_on(&node, async move { reading.read(4096, DmaBuf::new(4096)).await });
    assert!(matches!(read, Err(MediaError::Faulty { .. })), "it doesn't answer");
}

#[test]
fn errors_make_a_device_suspect_for_a_while_and_many_make_it_faulty_for_good() {
    let failing = SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() };
    let (world, node, disk, device) = watched(2, failing.clone());
    assert!(write(&world, &node, &device).is_err());
    let found = health(&device);
    assert!(found.state == DeviceState::Suspect && found.reason.contains("injected fault"), "{found:?}");
    world.run_for(Duration::from_mins(11));
    assert_eq!(health(&device).state, DeviceState::Normal, "it was quiet since");
    for _ in 0..8 {
        assert!(write(&world, &node, &device).is_err());
    }
    assert_eq!(health(&device).state, DeviceState::Faulty);
    disk.set_options(SimDiskOptions::default());
    world.run_for(Duration::from_hours(1));
    let before = disk.operations();
    let refused = write(&world, &node, &device).expect_err("it is out of use");
    assert!(matches!(&refused, MediaError::Faulty { reason, .. } if reason.contains("8 transfers failed")));
    let reading = Rc::clone(&device);
    let read = world.block_on(&node, async move { reading.read(0, DmaBuf::new(4096)).await });
    assert!(matches!(read, Err(MediaError::Faulty { .. })));
    assert_eq!(disk.operations(), before, "nothing reaches the disk any more");
    let found = health(&device);
    assert!(found.state == DeviceState::Faulty && found.reason.contains("replace the device"), "{found:?}");
    assert_eq!(found.refused, 2);
    let condemned = Rc::new(MonitoredDevice::new(&node.handle(), disk.attach(&node.handle())));
    condemned.condemn(&device.fault().expect("it is faulty"));
    assert_eq!(health(&condemned).reason, found.reason, "remembered as it was");
    assert!(matches!(write(&world, &node, &condemned), Err(MediaError::Faulty { .. })));
    let again = Rc::new(MonitoredDevice::new(&node.handle(), disk.attach(&node.handle())));
    write(&world, &node, &again).expect("opened again, and sound");
    assert_eq!(health(&again).state, DeviceState::Normal);
}

#[test]
fn a_place_that_can_not_be_read_counts_once_however_often_it_is_tried() {
    let (world, node, disk, device) = watched(12, SimDiskOptions::default());
    let read = |offset, len| {
        let device = Rc::clone(&device);
        world.block_on(&node, async move { device.read(offset, DmaBuf::new(len)).await.map(drop) })
    };
    let bad = |number: u64| number * 65536 + 4096;
    (0..8).for_each(|number| disk.make_unreadable(bad(number)..bad(number) + 1));
    for _ in 0..100 {
        // With what lies before it, alone, and with what lies behind.
        for (offset, len) in [(0, 8192), (4096, 4096), (4096, 65536)] {
            assert!(read(offset, len).is_err());
        }
        read(8192, 4096).expect("another place");
        world.run_for(Duration::from_mins(1));
        let found = health(&device);
        assert!(found.state == DeviceState::Suspect && found.reason.starts_with("1 failed"), "{found:?}");
    }
    world.run_for(Duration::from_mins(10));
    assert_eq!(health(&device).state, DeviceState::Normal);
    // The longest first, which shows nothing of how many places are bad.
    assert!(read(0, 1 << 19).is_err());
    for number in 0..8 {
        assert_eq!(health(&device).state, DeviceState::Suspect, "{number} places");
        assert!(read(bad(number), 4096).is_err());
    }
    assert_eq!(health(&device).state, DeviceState::Faulty);
}

#[test]
fn one_failed_flush_makes_a_device_faulty() {
    let failing = SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() };
    let (world, node, _, device) = watched(3, failing);
    let flushed = Rc::clone(&device);
    world.block_on(&node, async move { flushed.flush().await }).expect_err("it fails");
    let found = health(&device);
    assert!(found.state == DeviceState::Faulty && found.reason.contains("may be lost"), "{found:?}");
}

#[test]
fn slow_transfers_and_hanging_ones_are_noticed() {
    let slow =
        SimDiskOptions { stall_probability: 1.0, stall: Duration::from_secs(2), ..SimDiskOptions::default() };
    let (world, node, disk, device) = watched(4, slow);
    for _ in 0..8 {
        write(&world, &node, &device).expect("slow, but sound");
    }
    let found = health(&device);
    assert_eq!((found.state, found.slow), (DeviceState::Suspect, 8), "{found:?}");
    world.run_for(Duration::from_mins(11));
    disk.halt_at(disk.operations());
    let hanging = device.write(0, vec![DmaBuf::new(4096).into()]);
    world.run_for(Duration::from_secs(11));
    let found = health(&device);
    assert!(found.state == DeviceState::Suspect && found.reason.contains("under way for 11 s"), "{found:?}");
    world.run_for(Duration::from_mins(1));
    assert_eq!(health(&device).state, DeviceState::Faulty);
    drop(hanging);
    assert_eq!(health(&device).state, DeviceState::Faulty);
}

#[test]
fn a_stall_that_is_borne_ends_with_the_transfer_also_beyond_the_limit() {
    let stall = Duration::from_mins(12);
    let slow = SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() };
    let (world, node, disk, device) = watched(13, slow);
    device.bear_stalls(STALL_LIMIT);
    let flush = node.handle().spawn(device.flush());
    disk.set_options(SimDiskOptions::default());
    assert_eq!(device.stall(), None);
    world.run_for(Duration::from_mins(4));
    let found = health(&device);
    let says = "a flush has been under way for 240 s";
    assert_eq!((found.state, found.reason.as_str()), (DeviceState::Suspect, says));
    assert_eq!(device.stall().map(|stall| (stall.time.as_secs(), stall.is_faulty)), Some((240, false)));
    write(&world, &node, &device).expect("others go on");
    world.run_for(STALL_LIMIT.saturating_sub(Duration::from_mins(4)));
    let found = health(&device);
    assert!(found.state == DeviceState::Faulty && found.reason.contains("serves again"), "{found:?}");
    assert!(device.stall().is_some_and(|stall| stall.is_faulty) && device.fault().is_none());
    world.run_for(Duration::from_mins(3));
    assert_eq!(world.block_on(&node, flush), Ok(Ok(())));
    assert_eq!((health(&device).state, device.stall()), (DeviceState::Normal, None));
    assert_eq!(health(&device).refused, 0);
}

#[test]
fn a_device_that_bears_stalls_and_fails_gives_up_what_hangs() {
    let (world, node, disk, device) = watched(14, SimDiskOptions::default());
    device.bear_stalls(STALL_LIMIT);
    let stall = Duration::from_hours(1);
    disk.set_options(SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() });
    let hanging = node.handle().spawn(device.read(0, DmaBuf::new(4096)));
    disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    world.run_for(HUNG + HANGING);
    let flushed = Rc::clone(&device);
    world.block_on(&node, async move { flushed.flush().await }).expect_err("it fails");
    let ended = world.try_block_on(&node, 2 * HANGING, hanging).expect("it is given up");
    let reason = ended.expect("it isn't aborted").expect_err("the device is faulty").to_string();
    assert!(reason.contains("a flush failed"), "{reason}");
    assert_eq!(health(&device).state, DeviceState::Faulty);
}

/// A device that reports wear.
struct Worn {
    inner: Rc<dyn Device>,
    wear: core::cell::Cell<Wear>,
}

impl Device for Worn {
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
        self.inner.write(offset, data)
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
        let inner = Rc::clone(&self.inner);
        Box::pin(async move {
            crate::search::search_device(inner.size(), from, async |at, buffer| inner.read(at, buffer).await)
                .await
        })
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn wear(&self) -> Option<Wear> {
        Some(self.wear.get())
    }
}

/// Does something with a disk that has stopped: what the error says, and the time it took.
fn stopped<T: 'static>(
    seed: u64,
    work: impl AsyncFnOnce(Rc<dyn Device>) -> Result<T, MediaError> + 'static,
) -> (String, Duration) {
    let (world, node, disk, device) = watched(seed, SimDiskOptions::default());
    disk.halt();
    let begin = world.now();
    let shared = Rc::clone(&device) as Rc<dyn Device>;
    let limit = HUNG + 2 * HANGING;
    let ended = world.try_block_on(&node, limit, async move { work(shared).await.err() });
    let error = ended.expect("it ends").expect("the disk has stopped");
    assert!(matches!(error, MediaError::Faulty { .. }), "{error}");
    assert_eq!(health(&device).state, DeviceState::Faulty);
    (error.to_string(), world.now() - begin)
}

#[test]
fn whatever_hangs_ends_with_an_error_that_names_the_device_and_the_transfer() {
    let block = || vec![DmaBuf::new(4096).into()];
    let ends = [
        (
            stopped(6, async |device: Rc<dyn Device>| device.read(8192, DmaBuf::new(4096)).await),
            "a read of 4096",
        ),
        (
            stopped(7, async move |device: Rc<dyn Device>| device.write(8192, block()).await),
            "a write of 4096",
        ),
        (
            stopped(8, async move |device: Rc<dyn Device>| device.write_stable(8192, block()).await),
            "a flush of",
        ),
    ];
    for ((error, took), what) in ends {
        assert!(
            error.contains("sim: ") && error.contains(what) && error.contains("at offset 8192"),
            "{error}"
        );
        assert_eq!(took.as_secs(), HUNG.as_secs());
    }
    let (error, took) = stopped(9, async |device: Rc<dyn Device>| device.flush().await);
    assert!(error.contains("a flush did not end within 65 s") && took.as_secs() == 65, "{error}");
    let (error, took) = stopped(10, async |device: Rc<dyn Device>| device.first_data(0).await);
    assert!(error.contains("a search for data did not end") && took < HUNG + HANGING, "{error}");
}

#[test]
fn transfers_that_began_one_after_the_other_hang_one_after_the_other() {
    let (world, node, disk, device) = watched(11, SimDiskOptions::default());
    write(&world, &node, &device).expect("a healthy disk");
    world.run_for(HUNG / 2);
    disk.halt();
    let rt = node.handle();
    let ended: Vec<_> = (0..3u32)
        .map(|number| {
            let read = device.read(0, DmaBuf::new(4096));
            world.run_for(Duration::from_secs(1));
            let (rt, begun) = (rt.clone(), world.now() - Duration::from_secs(1));
            node.handle().spawn(async move {
                assert!(matches!(read.await, Err(MediaError::Faulty { .. })), "{number}");
                rt.now() - begun
            })
        })
        .collect();
    let times = world.block_on(&node, async move { weir_runtime::join_all(ended).await });
    assert!(times.iter().all(|time| time.is_ok_and(|time| time.as_secs() == 65)), "{times:?}");
}

#[test]
fn a_search_may_take_long_as_long_as_its_reads_end() {
    let slow = SimDiskOptions {
        stall_probability: 1.0,
        stall: Duration::from_secs(50),
        ..SimDiskOptions::default()
    };
    let world = World::new(12);
    let node = world.node("n");
    let disk = SimDisk::new("sim", 5 << 20, 12, slow);
    let worn = Worn { inner: disk.attach(&node.handle()), wear: core::cell::Cell::default() };
    let device = Rc::new(MonitoredDevice::new(&node.handle(), Rc::new(worn)));
    let searched = Rc::clone(&device);
    let found = world.block_on(&node, async move { searched.first_data(0).await });
    assert_eq!(found, Ok(None), "it took 250 s");
    assert_ne!(health(&device).state, DeviceState::Faulty);
    disk.halt();
    let stuck = world.try_block_on(&node, HUNG + 2 * HANGING, async move { device.first_data(0).await });
    assert!(matches!(stuck.expect("it ends"), Err(MediaError::Faulty { .. })));
}

#[test]
fn a_drive_that_warns_is_suspect_and_one_that_calls_itself_unreliable_is_not_used() {
    let world = World::new(5);
    let node = world.node("n");
    let disk = SimDisk::new("sim", 1 << 20, 5, SimDiskOptions::default());
    let wear = core::cell::Cell::new(Wear { used: 20, ..Wear::default() });
    let worn = Rc::new(Worn { inner: disk.attach(&node.handle()), wear });
    let device = Rc::new(MonitoredDevice::new(&node.handle(), Rc::clone(&worn) as Rc<dyn Device>));
    let found = health(&device);
    assert_eq!((found.state, found.wear.map(|wear| wear.used)), (DeviceState::Normal, Some(20)));
    worn.wear.set(Wear { used: 101, ..Wear::default() });
    assert_eq!(health(&device).state, DeviceState::Suspect);
    write(&world, &node, &device).expect("worn out on paper only");
    worn.wear.set(Wear { critical_warning: 4, ..Wear::default() });
    assert_eq!(health(&device).state, DeviceState::Faulty);
    worn.wear.set(Wear::default());
    assert!(matches!(write(&world, &node, &device), Err(MediaError::Faulty { .. })));
}
