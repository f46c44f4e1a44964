//! A target that comes back with nothing gets its data as fast as the others' disks allow while no client asks for anything. While clients
//! do it takes longer, they wait little longer than without it, and it ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use weir_client::{Conditions, ObjectClass, kind};
use weir_management::v1;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_pool::Condition;
use weir_proto::ObjectId;

use crate::cluster::{Cluster, Shape};
use crate::heirs::{OUT_MAX, condition, wait_for};
use crate::snapshots::service_rank;
use crate::workload;

const SHAPE: Shape = Shape { engines: 3, targets: 1, clients: 2 };

/// Values, and bytes of each: more than the cache takes.
const VALUES: u64 = 400;
const VALUE: usize = 64 << 10;

/// Values that clients read, and bytes of each: longer than what is cached, and far shorter than a page.
const READ: u64 = 100;
const READ_BYTES: usize = 8 << 10;

/// Bytes of the pool on each target.
const SHARE: u64 = 96 << 20;

/// Bytes in a second that each disk reads or writes: so few that pages take long in comparison with what clients ask for.
const RATE: u64 = 8 << 20;

/// Pause of a client between two reads.
const PAUSE: Duration = Duration::from_millis(10);

/// Longest time of a rebuild that gets the least share of the time.
const ENDED: Duration = Duration::from_mins(3);

/// How long clients have waited.
#[derive(Clone, Default)]
struct Waited {
    all: Rc<RefCell<Vec<Duration>>>,
    ends: Rc<Cell<bool>>,
}

impl Waited {
    /// How long they have waited since the last call, on average.
    fn mean(&self) -> Duration {
        let all = self.all.take();
        let count = u32::try_from(all.len()).expect("some thousand reads");
        all.iter().sum::<Duration>().checked_div(count).unwrap_or_default()
    }
}

/// Who works while an engine is rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    Nobody,
    /// Clients that read.
    Clients,
    /// The same, and targets don't yield to them.
    ClientsInVain,
}

/// Rebuilds an engine that returns empty. Returns how long that took, and how long clients have waited before and meanwhile.
fn rebuild(seed: u64, beside: Beside) -> (Duration, Duration, Duration) {
    let cluster = Cluster::start(seed, SHAPE);
    let request = v1::PoolCreateRequest {
        redundancy_factor: 1,
        size_bytes: u64::from(SHAPE.engines) * SHARE,
        ..cluster.pool_request("tank")
    };
    let _: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &request).expect("room for a pool");
    let service = service_rank(&cluster, "tank");
    let context = cluster.context(cluster.admin(), Duration::from_mins(1));
    let class: ObjectClass = "RP_2G4".parse().expect("a registered name");
    let oid = class.encode(ObjectId { hi: 0, lo: 77 }, kind::KV_HASHED);
    let container = cluster.world.block_on(cluster.admin(), async move {
        let container = workload::make_container(&context, "tank", "box", 0).await.expect("no faults yet");
        let kv = workload::open(&container, oid);
        for key in 0..READ + VALUES {
            let value = vec![7; if key < READ { READ_BYTES } else { VALUE }];
            kv.put(&context, &key.to_le_bytes(), &value, Conditions::NONE).await.expect("no faults yet");
        }
        container
    });
    let victim = (service + 1) % SHAPE.engines;
    cluster.crash(victim, CrashKeeps::Everything);
    wait_for(&cluster, OUT_MAX, "it stays in the map", || condition(&cluster) == Some(Condition::Degraded));
    for rank in (0..SHAPE.engines).filter(|rank| *rank != victim) {
        cluster.set_disks(rank, &SimDiskOptions { bytes_per_second: RATE, ..SimDiskOptions::default() });
    }
    let waited = Waited::default();
    for (client, node) in cluster.clients.iter().enumerate().filter(|_| beside != Beside::Nobody) {
        let (context, waited) = (cluster.context(node, Duration::from_mins(1)), waited.clone());
        let kv = workload::open(&container, oid);
        node.handle().spawn(async move {
            let rt = context.runtime().clone();
            for number in client as u64.. {
                if waited.ends.get() {
                    break;
                }
                let (key, began) = ((number * 7 % READ).to_le_bytes(), rt.now());
                kv.get(&context, &key).await.expect("two of three serve");
                waited.all.borrow_mut().push(rt.now() - began);
                rt.sleep(PAUSE).await;
            }
        });
    }
    cluster.world.run_for(Duration::from_secs(10));
    let before = waited.mean();
    cluster.return_empty(victim);
    cluster.settle();
    for rank in (0..SHAPE.engines).filter(|_| beside == Beside::ClientsInVain) {
        cluster.target(rank, 0).io().set_rebuild_floor(1.0);
    }
    wait_for(&cluster, ENDED, "it does not begin", || condition(&cluster) == Some(Condition::Rebuilding));
    let began = cluster.world.now();
    wait_for(&cluster, ENDED, "it does not end", || condition(&cluster) == Some(Condition::Healthy));
    let took = cluster.world.now() - began;
    let meanwhile = waited.mean();
    waited.ends.set(true);
    let came = cluster.target(victim, 0).io().rebuilt_bytes();
    assert!(came > VALUES * VALUE as u64 / 3, "seed {seed}: only {came} bytes came");
    cluster.world.run_for(Duration::from_secs(1));
    (took, before, meanwhile)
}

pub fn yields_to_clients(seed: u64) {
    let (alone, ..) = rebuild(seed, Beside::Nobody);
    let (took, before, meanwhile) = rebuild(seed, Beside::Clients);
    let (_, _, in_vain) = rebuild(seed, Beside::ClientsInVain);
    let figures = format!(
        "seed {seed}: alone {alone:?}, beside clients {took:?}; these wait {before:?} before, {meanwhile:?} meanwhile, {in_vain:?} in vain"
    );
    println!("{figures}");
    assert!(alone < Duration::from_secs(10), "{figures}");
    assert!(took > alone * 3 / 2, "{figures}");
    assert!(meanwhile < in_vain && before < meanwhile, "{figures}");
}
