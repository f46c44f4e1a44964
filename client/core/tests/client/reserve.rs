//! Room that targets keep for cells of arrays, on a simulated system.

use crate::cluster;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{Array, ContainerType, Context, Der, Range, kind};
use weir_daemon::target::Target;
use weir_proto::opcode;
use weir_rpc::{Request, Status};

const CHUNK: u64 = 4096;

fn targets(cluster: &Cluster) -> Vec<Rc<Target>> {
    (0..2).flat_map(|rank| cluster.targets(rank)).collect()
}

/// Bytes that each target keeps.
fn kept(targets: &[Rc<Target>]) -> Vec<u64> {
    let of = |target: &Rc<Target>| {
        let store = target.store();
        let shards = store.pools().into_iter().filter_map(|pool| store.pool(pool.pool));
        shards.map(|shard| shard.space().reserved).sum()
    };
    targets.iter().map(of).collect()
}

async fn array(context: &Context, label: &str) -> Array {
    let container = open_container(context, properties(label, ContainerType::Object)).await;
    let oid = container.new_object_id(context, kind::ARRAY_BYTE, None).await.expect("an id");
    Array::compact_bytes(&container, oid, CHUNK).expect("opens")
}

fn range(from: u64, below: u64) -> Range {
    Range { index: from * CHUNK, count: (below - from) * CHUNK }
}

#[test]
fn all_targets_keep_room_or_none() {
    let cluster = Cluster::start(31, 2, 2);
    let (context, targets) = (cluster.context(Duration::from_mins(1)), targets(&cluster));
    cluster.run(async move {
        let array = array(&context, "arrays").await;
        array.reserve(&context, range(3, 2000)).await.expect("room").expect("they can");
        let before = kept(&targets);
        let sum: u64 = before.iter().sum();
        assert!(before.iter().all(|kept| *kept > 0) && sum > 1997 * CHUNK, "{before:?}");
        array.reserve(&context, range(0, 2000)).await.expect("room").expect("they can");
        let more = kept(&targets).iter().sum::<u64>() - sum;
        assert!((3 * CHUNK..12 * CHUNK).contains(&more), "{more} bytes for three chunks");
        // More than one request for each target, all but the last of which find room.
        let before = kept(&targets);
        let requests = context.traffic().requests;
        let refused = array.reserve(&context, range(0, 60_000)).await.expect_err("more than there is");
        assert!(refused.is(Der::NOSPACE), "{refused}");
        assert!(context.traffic().requests - requests > 8, "it is refused too soon");
        assert_eq!(kept(&targets), before);
        let refused = array.reserve(&context, range(1 << 20, 1 << 40)).await.expect_err("more than there is");
        assert!(refused.is(Der::NOSPACE), "{refused}");
        array.reserve(&context, Range { index: 9, count: u64::MAX }).await.expect_err("behind the last cell");
        // What a call has reserved is given up without what was reserved before.
        let new = array.reserve(&context, range(1000, 3000)).await.expect("room").expect("they can");
        assert!(kept(&targets) != before);
        array.give_up(&context, new).await;
        assert_eq!(kept(&targets), before);
        assert_eq!(array.size(&context).await.expect("asked"), 0);
    });
}

#[test]
fn room_is_given_up_by_what_cuts_an_array_off() {
    let cluster = Cluster::start(32, 2, 2);
    let (context, targets) = (cluster.context(Duration::from_mins(1)), targets(&cluster));
    cluster.run(async move {
        let array = array(&context, "arrays").await;
        let sum = || kept(&targets).iter().sum::<u64>();
        array.reserve(&context, range(0, 800)).await.expect("room").expect("they can");
        let each = sum() / 800;
        array.set_size(&context, 400 * CHUNK).await.expect("lengthened");
        assert_eq!(sum(), 800 * each, "the last cell is written by a transaction");
        array.set_size(&context, 400 * CHUNK).await.expect("as it was");
        assert_eq!(sum(), 400 * each);
        array.set_size(&context, 300 * CHUNK).await.expect("cut off");
        assert_eq!(sum(), 300 * each);
        array.punch(&context, &[range(100, 200), range(250, 251)]).await.expect("punched");
        assert_eq!(sum(), 199 * each);
        array.write(&context, &[range(0, 4)], &[&[7; 4 * 4096]]).await.expect("written");
        assert_eq!(sum(), 195 * each);
        array.discard(&context).await.expect("removed");
        assert_eq!(sum(), 0);
        // Nothing of it is written, and who removes it knows nothing of it.
        let again = || {
            let (container, oid) = (array.object().container(), array.object().id());
            Array::compact_bytes(container, oid, CHUNK).expect("opens")
        };
        again().reserve(&context, range(5, 6)).await.expect("room").expect("they can");
        assert!(sum() > 0);
        again().discard(&context).await.expect("removed");
        assert_eq!(sum(), 0);
    });
}

#[test]
fn engines_that_know_nothing_of_it_keep_none() {
    let cluster = Cluster::start(33, 2, 2);
    let (context, targets) = (cluster.context(Duration::from_mins(1)), targets(&cluster));
    // One of them.
    let refuse = |_: Request| core::future::ready(Err(Status::new(Der::NOSYS, "there is no such operation")));
    targets[3].rpc().serve(opcode::OBJECT_RESERVE, Rc::new(refuse));
    cluster.run(async move {
        let array = array(&context, "arrays").await;
        assert!(array.reserve(&context, range(0, 400)).await.expect("asked").is_none());
        assert_eq!(kept(&targets), [0; 4]);
        array.write(&context, &[range(0, 300)], &[&vec![7; 300 * 4096]]).await.expect("written");
        array.set_size(&context, 5).await.expect("cut off");
        array.punch(&context, &[range(0, 100)]).await.expect("punched");
    });
}
