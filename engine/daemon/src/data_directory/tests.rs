//! Targets on devices. Files stand in for them: they are opened, claimed and formatted the same way.

use super::*;
use weir_proto::PoolId;

/// Bytes of a device: log, checkpoints and a small pool.
const SIZE: u64 = 128 << 20;

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let folder = tempfile::tempdir_in(program.parent().expect("it lies in a folder")).expect("a folder");
        let machine = Self { folder };
        for name in ["a", "b", "c"] {
            machine.replace(name);
        }
        machine
    }

    fn device(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a blank device in the place of another.
    fn replace(&self, name: &str) {
        let file = fs::File::create(self.device(name)).expect("a file");
        file.set_len(SIZE).expect("a sparse file");
    }

    fn layout(&self, data: &str, devices: [&str; 2]) -> DataDirectory {
        DataDirectory {
            folder: self.folder.path().join(data),
            system: "weir".to_owned(),
            rank: Rank(3),
            targets: 2,
            size: SIZE,
            devices: devices.map(|name| self.device(name)).into(),
        }
    }
}

/// Opens a target as its thread does, and works with its store.
fn with_store<T>(layout: &DataDirectory, target: u32, work: impl AsyncFnOnce(&Store) -> T) -> T {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    executor.block_on(async {
        let device = open(&rt, target, &layout.path(target)).await.expect("a device");
        let config = StoreConfig { background: false, scrub: None, ..StoreConfig::default() };
        let store = Store::open(&rt, device, &layout.owner(target), config).await.expect("a store");
        let result = work(&store).await;
        store.close().await.expect("closed");
        result
    })
}

fn add_pool(layout: &DataDirectory, target: u32) {
    let pool = PoolId(uuid::Uuid::from_u128(9));
    with_store(layout, target, async |store| store.create_pool(pool, 32 << 20).await.map(drop))
        .expect("room");
}

fn pools(layout: &DataDirectory, target: u32) -> usize {
    with_store(layout, target, async |store| store.pools().len())
}

#[test]
fn devices_are_formatted_once_and_found_again_under_other_names() {
    let machine = Machine::new();
    let layout = machine.layout("data", ["a", "b"]);
    layout.prepare(&|| false).expect("a first start");
    assert_eq!(fs::read_link(layout.path(1)).expect("a link"), machine.device("b"));
    add_pool(&layout, 1);
    layout.prepare(&|| false).expect("a second start");
    assert_eq!(pools(&layout, 1), 1);
    fs::rename(machine.device("b"), machine.device("d")).expect("a new name");
    let layout = machine.layout("data", ["a", "d"]);
    layout.prepare(&|| false).expect("the link follows");
    assert_eq!(pools(&layout, 1), 1);
    let files = DataDirectory { devices: Vec::new(), ..machine.layout("data", ["a", "d"]) };
    files.prepare(&|| false).expect("what is linked is used without the key, too");
    assert_eq!(pools(&files, 1), 1);
}

#[test]
fn a_device_that_another_process_is_about_to_let_go_of_is_waited_for() {
    let machine = Machine::new();
    let layout = machine.layout("data", ["a", "b"]);
    let executor = Executor::new().expect("an executor");
    let held = weir_media::open(&executor.handle(), &machine.device("a")).expect("nobody has it");
    let (held, looks) = (std::cell::Cell::new(Some(held)), std::cell::Cell::new(0));
    let is_stopped = || {
        looks.set(looks.get() + 1);
        // The first look is before the first try.
        if looks.get() > 1 {
            drop(held.take());
        }
        false
    };
    layout.prepare(&is_stopped).expect("it is free in the end");
    assert_eq!((pools(&layout, 0), pools(&layout, 1)), (0, 0));
}

#[test]
fn a_device_with_anything_on_it_is_left_as_it_is() {
    let machine = Machine::new();
    let offset = 77 << 20;
    let file = fs::OpenOptions::new().write(true).open(machine.device("b")).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, b"somebody's", offset).expect("written");
    drop(file);
    let layout = machine.layout("data", ["a", "b"]);
    let refused = layout.prepare(&|| false).expect_err("not blank").to_string();
    assert!(refused.contains("is not empty") && refused.contains(&offset.to_string()), "{refused}");
    let bytes = fs::read(machine.device("b")).expect("readable");
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 10, "nothing was written");
    // Erased, it will do, although the first device carries a new target by now.
    machine.replace("b");
    layout.prepare(&|| false).expect("the first start goes on");
    let other = DataDirectory { rank: Rank(4), ..machine.layout("other", ["a", "b"]) };
    assert!(matches!(other.prepare(&|| false), Err(DataError::Open(_))), "another engine's targets");
}

#[test]
fn a_lost_directory_finds_its_devices_but_none_is_replaced_by_a_blank_one() {
    let machine = Machine::new();
    let layout = machine.layout("data", ["a", "b"]);
    layout.prepare(&|| false).expect("a first start");
    add_pool(&layout, 0);
    let again = machine.layout("again", ["a", "b"]);
    again.prepare(&|| false).expect("the devices carry its targets");
    assert_eq!((pools(&again, 0), pools(&again, 1)), (1, 0));
    let refused = machine.layout("third", ["a", "c"]).prepare(&|| false).expect_err("c is blank").to_string();
    assert!(refused.contains("is blank, while") && refused.contains("lost silently"), "{refused}");
    let swapped = machine.layout("third", ["b", "a"]).prepare(&|| false);
    assert!(matches!(swapped, Err(DataError::Open(_))), "each target has its own");
    machine.replace("b");
    layout.prepare(&|| false).expect("the link is there");
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let opened = executor.block_on(async {
        let device = open(&rt, 1, &layout.path(1)).await.expect("a device");
        Store::open(&rt, device, &layout.owner(1), StoreConfig::default()).await.map(drop)
    });
    assert!(matches!(opened, Err(OpenError::Blank { .. })), "and no store is made in the lost one's place");
}

#[test]
fn files_with_data_are_not_left_for_devices() {
    let machine = Machine::new();
    let files = DataDirectory { devices: Vec::new(), ..machine.layout("data", ["a", "b"]) };
    files.prepare(&|| false).expect("files");
    let refused = machine.layout("data", ["a", "b"]).prepare(&|| false);
    assert!(matches!(refused, Err(DataError::File { .. })));
}

/// Breaks preparations off, each one step later than the one before, until one is done; how many were broken off.
fn break_off(layout: &DataDirectory) -> usize {
    for steps in 0_usize.. {
        let left = std::cell::Cell::new(steps);
        let is_stopped = || match left.get() {
            0 => true,
            some => {
                left.set(some - 1);
                false
            }
        };
        match layout.prepare(&is_stopped) {
            Ok(()) => return steps,
            Err(DataError::Stopped) => {}
            Err(error) => panic!("after {steps} steps: {error}"),
        }
    }
    unreachable!("it never ends");
}

#[test]
fn what_is_broken_off_anywhere_is_made_by_a_later_start() {
    let machine = Machine::new();
    let devices = machine.layout("devices", ["a", "b"]);
    let files = DataDirectory { devices: Vec::new(), ..machine.layout("files", ["a", "b"]) };
    for layout in [devices, files] {
        let broken = break_off(&layout);
        assert!(broken > 10, "only {broken} steps");
        assert_eq!((pools(&layout, 0), pools(&layout, 1)), (0, 0));
    }
}
