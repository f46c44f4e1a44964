//! What a pool service knows when its device is out of use: it is as it was, or refused, and nothing is given out twice.

use std::time::Duration;

use weir_client::{Container, Context, Epoch, Error, Pool, Rights};
use weir_media::sim::{CrashKeeps, SimDiskOptions};

use crate::cluster::{Cluster, Shape};
use crate::devices::NOTICED;
use crate::maps::clear_and_restart;
use crate::snapshots::service_of;
use crate::workload::make_container;

const SHAPE: Shape = Shape { engines: 2, targets: 2, clients: 1 };

const QUOTA: u64 = 1 << 30;

/// What a container has, as its service says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    attributes: Vec<(String, Vec<u8>)>,
    snapshots: Vec<Epoch>,
    quota: u64,
}

/// A client of one container, and the object ids that it was given.
struct User {
    cluster: Cluster,
    given: Vec<core::ops::Range<u64>>,
}

impl User {
    /// Does something with the container through a handle of its own.
    fn with<T: 'static>(&self, act: impl AsyncFnOnce(&Context, &Pool, &Container) -> T + 'static) -> T {
        let context = self.cluster.context(self.cluster.admin(), Duration::from_secs(5));
        self.cluster.world.block_on(self.cluster.admin(), async move {
            let rights = Rights::READ.union(Rights::WRITE).union(Rights::CREATE_CONTAINER);
            let pool = Pool::connect(&context, "tank", rights).await.expect("its service is up");
            let rights = Rights::READ.union(Rights::WRITE);
            let container = Container::open(&context, &pool, "box", rights).await.expect("it was created");
            act(&context, &pool, &container).await
        })
    }

    /// Asks for object ids, now few and now more than are set aside at a time.
    fn allocate(&mut self) -> Result<(), Error> {
        let count = 1 + self.cluster.world.rng().below(1 << 20);
        let first =
            self.with(async move |context, _, container| container.allocate_oids(context, count).await)?;
        self.given.push(first..first + count);
        Ok(())
    }

    fn set(&self, value: u8) -> Result<(), Error> {
        self.with(async move |context, _, container| {
            container.set_attributes(context, vec![("a".to_owned(), Some(vec![value].into()))]).await
        })
    }

    fn set_quota(&self, quota: u64) -> Result<(), Error> {
        self.with(async move |context, pool, _| {
            Container::set_quota(context, pool, "box", quota).await.map(drop)
        })
    }

    fn take_snapshot(&self) -> Result<Epoch, Error> {
        self.with(async |context, _, container| container.create_snapshot(context).await)
    }

    fn remove_snapshot(&self, epoch: Epoch) -> Result<(), Error> {
        self.with(async move |context, _, container| container.destroy_snapshot(context, epoch).await)
    }

    fn known(&self) -> Result<Known, Error> {
        self.with(async |context, _, container| {
            let attributes = container.attributes(context, Vec::new()).await?;
            let attributes = attributes.into_iter().map(|(name, value)| (name, value.into_vec())).collect();
            let snapshots = container.snapshots(context).await?;
            let quota = container.query(context).await?.properties.quota;
            Ok(Known { attributes, snapshots, quota })
        })
    }

    #[track_caller]
    fn check_ids(&self) {
        let mut given = self.given.clone();
        given.sort_unstable_by_key(|range| range.start);
        let seed = self.cluster.world.seed();
        assert!(given.windows(2).all(|pair| pair[0].end <= pair[1].start), "seed {seed}: {given:?}");
    }
}

/// Checks that a change was refused with what to do about it.
#[track_caller]
fn refused<T: core::fmt::Debug>(result: Result<T, Error>, service: u32) {
    let text = result.expect_err("it can't be kept").to_string();
    for part in ["pool tank", "takes no changes", &format!("weir system clear-device {service} 0")] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(text.matches("eplace the device").count(), 1, "said once: {text}");
}

/// The device of a service fails while its state is changed; the engine is restarted without the device, then with it.
pub fn is_as_it_was_or_refused(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.create_pool("tank");
    let (service, _) = service_of(&cluster, "tank");
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    cluster.world.block_on(cluster.admin(), async move {
        make_container(&context, "tank", "box", QUOTA).await.expect("room");
    });
    let disk = cluster.disk((service, 0));
    let mut user = User { cluster: cluster.clone(), given: Vec::new() };
    for _ in 0..4 {
        user.allocate().expect("all is well");
    }
    user.set(1).expect("all is well");
    let epoch = user.take_snapshot().expect("all is well");
    let before = user.known().expect("all is well");
    assert_eq!((before.snapshots.as_slice(), before.quota), ([epoch].as_slice(), QUOTA), "seed {seed}");
    disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    user.set(2).expect_err("it can't be kept");
    // The device may have it all the same: only that can tell.
    let found = user.known();
    // What was set aside before is given out, and then nothing.
    while user.allocate().is_ok() {}
    cluster.world.run_for(NOTICED);
    disk.set_options(SimDiskOptions::default());
    // Even what the device says to have written may be gone when it has said so of no flush.
    let keeps = if seed.is_multiple_of(2) { CrashKeeps::Everything } else { CrashKeeps::Nothing };
    cluster.crash(service, keeps);
    cluster.restart(service);
    cluster.settle();
    cluster.world.run_for(NOTICED);
    let after = user.known().expect("it is read");
    if let Ok(found) = found {
        assert_eq!(found, after, "seed {seed}");
    }
    let changed = Known { attributes: vec![("a".to_owned(), vec![2])], ..before.clone() };
    assert!(after == before || after == changed, "seed {seed}: {after:?}");
    for _ in 0..2 {
        assert_eq!(user.known().expect("it is read"), after, "seed {seed}");
        refused(user.allocate(), service);
        refused(user.set(3), service);
        refused(user.set_quota(2 * QUOTA), service);
        refused(user.take_snapshot(), service);
        refused(user.remove_snapshot(epoch), service);
    }
    clear_and_restart(&cluster, (service, 0));
    assert_eq!(user.known().expect("it is read"), after, "seed {seed}");
    for _ in 0..4 {
        user.allocate().expect("all is well");
    }
    user.check_ids();
    user.set(4).expect("all is well");
    user.remove_snapshot(epoch).expect("all is well");
}
