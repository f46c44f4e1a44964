//! What changes of objects with replicas cost, in requests between targets and in log records.

use std::rc::Rc;
use std::time::Duration;

use weir_client::{AkeyWrite, Conditions, Container, Context, Key, Object, Transaction, kind};
use weir_daemon::target::Target;

use crate::cluster::{Cluster, Shape};
use crate::workload::make_container;

pub const SHAPE: Shape = Shape { engines: 3, targets: 2, clients: 1 };

/// Changes that are counted: so many that what targets do beside them is little.
pub const CHANGES: u64 = 100;

/// Requests that targets have sent each other, and records of their logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    pub requests: u64,
    pub records: u64,
}

fn all(cluster: &Cluster) -> Vec<Rc<Target>> {
    let places =
        (0..cluster.shape.engines).flat_map(|rank| (0..cluster.shape.targets).map(move |at| (rank, at)));
    places.map(|(rank, at)| cluster.target(rank, at as usize)).collect()
}

fn so_far(cluster: &Cluster) -> Cost {
    let targets = all(cluster);
    Cost {
        requests: targets.iter().map(|target| target.rpc().metrics().calls.get()).sum(),
        records: targets.iter().map(|target| target.pools().store().stats().commit.records).sum(),
    }
}

/// What is changed: a value of each dkey of an object.
struct Changed {
    context: Context,
    container: Container,
    object: Object,
}

impl Changed {
    async fn by_update(&self, dkey: &Key, writes: &[AkeyWrite<'_>]) {
        self.object.update(&self.context, dkey, Conditions::NONE, writes).await.expect("no faults");
    }

    async fn by_transaction(&self, dkey: &Key, writes: &[AkeyWrite<'_>]) {
        let mut transaction = Transaction::begin(&self.context, &self.container);
        transaction.update(&self.object, dkey, Conditions::NONE, writes).expect("well formed");
        transaction.commit(&self.context).await.expect("no faults");
    }
}

/// The cost of changing each of some dkeys of an object of a class, one after the other, by updates or by transactions.
pub fn of_changes(cluster: &Cluster, class: &'static str, by_transactions: bool) -> Cost {
    let context = cluster.context(cluster.admin(), Duration::from_secs(10));
    let changed = cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, "tank", "box", 0).await.expect("no faults");
        let oid = container.new_object_id(&context, kind::MULTI_HASHED, None).await.expect("no faults");
        let oid = class
            .parse::<weir_client::ObjectClass>()
            .expect("a registered name")
            .encode(oid, kind::MULTI_HASHED);
        let object = Object::open_unchecked(&container, oid);
        let changed = Changed { context, container, object };
        // What is asked for once: the container, and room.
        change_some(&changed, 1, by_transactions).await;
        changed
    });
    cluster.world.run_for(Duration::from_millis(20));
    let before = so_far(cluster);
    cluster
        .world
        .block_on(cluster.admin(), async move { change_some(&changed, CHANGES, by_transactions).await });
    // What is told later counts, too.
    cluster.world.run_for(Duration::from_millis(20));
    let after = so_far(cluster);
    Cost { requests: after.requests - before.requests, records: after.records - before.records }
}

async fn change_some(changed: &Changed, count: u64, by_transactions: bool) {
    for number in 0..count {
        let (dkey, bytes) = (Key::from_u64(number), number.to_le_bytes());
        let writes = [AkeyWrite::single(Key::new(b"v").expect("short"), &bytes)];
        if by_transactions {
            changed.by_transaction(&dkey, &writes).await;
        } else {
            changed.by_update(&dkey, &writes).await;
        }
    }
}
