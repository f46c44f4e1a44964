//! Power failures while a store is copied: what they leave is the copy as a whole, or none, and copying again makes one of it.

use super::{Told, copied, copy_to, entries};
use crate::exhaustive::record::{Bounds, Recorder, Replay};
use crate::exhaustive::workload::{everything, observe};
use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_inspect::CopyError;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::PoolId;
use weir_runtime::join_all;
use weir_runtime::random::Random;
use weir_store::{OpenError, Store, StoreConfig};

const SIZE: u64 = 32 << 20;

/// A pool with more data than a batch of a copy has, in pieces of so many bytes.
const MORE: PoolId = PoolId(Uuid::from_u128(0xee));
const LARGE: usize = 900_000;

/// One content in so many that holds no store is copied to again.
const AGAIN: usize = 9;

/// A store with something of everything, and what it shows.
fn filled() -> (MemoryDevice, crate::exhaustive::workload::Observation) {
    let device = MemoryDevice::new(SIZE);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let shown = run(41, async move |handle| {
        Store::format(&handle, &disk, &format_options()).await.expect("empty");
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        for stage in everything() {
            join_all(stage.into_iter().map(|operation| (operation.run)(Rc::clone(&store)))).await;
        }
        let shard = store.create_pool(MORE, 8 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("created");
        for number in 0..7 {
            write(&shard, number, 1000 + number, 0, &pattern(number, LARGE)).await.expect("stored");
        }
        let shown = observe(&store).await;
        store.close().await.expect("closed");
        shown
    });
    (device, shown)
}

#[test]
fn every_content_that_a_power_failure_may_leave_is_the_copy_or_none() {
    let (from, shown) = filled();
    let machine = Machine::new(42, SIZE);
    let recorder = Recorder::new(machine.device());
    let devices: (Rc<dyn Device>, Rc<dyn Device>) = (Rc::new(from.clone()), Rc::new(recorder.clone()));
    let handle = machine.handle();
    // Checkpoints are written all the time.
    let config = StoreConfig { checkpoint_interval: Duration::from_micros(300), ..quiet() };
    machine.run(async move {
        copy_to(&handle, devices, (false, config), &mut Told::default()).await.expect("copied")
    });
    let end = recorder.moment();
    let (mut replay, some) = (Replay::new(&recorder), Random::new(43));
    let (mut stores, mut none, mut last) = (0, 0, false);
    while replay.advance() {
        let is_over = replay.moment() == end;
        for device in replay.contents(0, Bounds { whole: 5, spread: 3, random: 4 }, &some) {
            let disk: Rc<dyn Device> = Rc::new(device.clone());
            let opened =
                run(44, async move |handle| match Store::open(&handle, disk, &owner(), quiet()).await {
                    Ok(store) => {
                        assert_eq!(store.audit().await.problems, [""; 0]);
                        let shard = store.pool(MORE).expect("the pool");
                        let (data, _) = read(&shard, 6, u64::MAX, 0, LARGE as u64).await.expect("read");
                        assert!(data == pattern(6, LARGE));
                        Ok(observe(&store).await)
                    }
                    Err(error) => Err(error),
                });
            match opened {
                Ok(found) => {
                    assert_eq!(found, shown, "moment {} of {end}", replay.moment());
                    stores += 1;
                    last = is_over;
                }
                Err(OpenError::Blank { .. } | OpenError::UnfinishedCopy { .. }) => {
                    assert!(!is_over, "it was finished");
                    none += 1;
                    if none % AGAIN == 1 {
                        again(&from, &device);
                    }
                }
                Err(error) => panic!("moment {} of {end}: {error}", replay.moment()),
            }
        }
    }
    println!("{end} moments; {none} contents hold no store, {stores} the copy");
    assert!(none > 100 && stores >= 1 && last, "{none} and {stores}");
}

/// Copies to what a crash has left.
fn again(from: &MemoryDevice, to: &MemoryDevice) {
    match copied(from, to, false).0 {
        // Nothing was written before.
        Ok(_) => return,
        Err(CopyError::UnfinishedCopy { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    copied(from, to, true).0.expect("copied");
    let devices: [Rc<dyn Device>; 2] = [Rc::new(from.clone()), Rc::new(to.clone())];
    run(45, async move |_| {
        let [from, to] = devices;
        assert_eq!(entries(from).await, entries(to).await);
    });
}
