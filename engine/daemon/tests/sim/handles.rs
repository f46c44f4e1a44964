//! What a pool service does for handles that nobody gave out.

use std::time::Duration;

use weir_client::{Conditions, Container, Context, ContextOptions, Der, Kv, kind};
use weir_management::{Failure, v1};
use weir_media::sim::CrashKeeps;

use crate::cluster::{Cluster, Shape};
use crate::workload::make_container;

/// Bytes of a request that doesn't fit a message.
const LONG: usize = 20 * 8000;

/// A long request is fetched from the client's memory. Of one with a forged handle no more is fetched than the handle.
pub fn are_checked_before_their_requests_are_fetched(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 1, targets: 1, clients: 1 });
    cluster.create_pool("tank");
    let target = cluster.target(0, 0);
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, "tank", "box", 0).await.expect("room");
        let pulled = || target.rpc().metrics().bulk_pulled_bytes.get();
        let attributes = || {
            let one = |number: usize| (format!("a{number}"), Some(vec![7; LONG / 20].into()));
            (0..20).map(one).collect::<Vec<_>>()
        };
        // The same for a container that it wasn't given out for.
        let (mut bytes, id) = (container.to_bytes(), container.id().0);
        let at: Vec<usize> =
            (0..bytes.len() - 15).filter(|at| bytes[*at..*at + 16] == *id.as_bytes()).collect();
        assert!(!at.is_empty(), "a handle names its container");
        for at in at {
            bytes[at] ^= 1;
        }
        let forged = Container::from_bytes(&bytes).expect("as good a handle as any");
        let before = pulled();
        let refused = forged.set_attributes(&context, attributes()).await.expect_err("it is forged");
        assert!(refused.is(Der::NO_HDL), "seed {seed}: {refused}");
        assert!(pulled() - before < 1024, "seed {seed}: {} bytes were fetched", pulled() - before);
        container.set_attributes(&context, attributes()).await.expect("a good handle");
        assert!(pulled() - before > LONG as u64, "seed {seed}: it is fetched");
    });
}

/// A client of a node, or of none.
fn client(cluster: &Cluster, node: Option<&str>) -> Context {
    let endpoint = cluster.fabric.endpoint(cluster.admin(), None);
    let node = node.map(str::to_owned);
    let options = ContextOptions { deadline: Duration::from_secs(20), uid: 1000, gid: 1000, node };
    Context::sim(cluster.admin().handle(), endpoint, &cluster.attach(), options)
}

/// Node of each handle of the container, and whether it counts.
fn told(cluster: &Cluster) -> Vec<(String, bool, u64)> {
    let request = v1::ContainerQueryRequest { pool: "tank".to_owned(), container: "box".to_owned() };
    let answer: v1::ContainerQueryResponse =
        cluster.manage(0, "Containers/Query", &request).expect("it is there");
    answer.handles.into_iter().map(|open| (open.node, open.counts, open.handle)).collect()
}

fn destroy(cluster: &Cluster, gone_handles: Vec<u64>) -> Result<v1::ContainerDestroyResponse, Failure> {
    let (pool, container) = ("tank".to_owned(), "box".to_owned());
    let request = v1::ContainerDestroyRequest { pool, container, force: false, gone_handles };
    cluster.manage(0, "Containers/Destroy", &request)
}

/// A client that has said where it is counts while it says so again, and is told of until it has given its handle back, whatever
/// becomes of the service. One that hasn't is forgotten when it is silent for long.
pub fn name_the_nodes_of_clients_that_say_where_they_are(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 1, targets: 1, clients: 0 });
    cluster.create_pool("tank");
    let [named, nameless, wrong] = [Some("node-1"), None, Some("a b")].map(|node| client(&cluster, node));
    let open = |context: &Context| {
        let context = context.clone();
        cluster.world.block_on(cluster.admin(), async move {
            make_container(&context, "tank", "box", 0).await.expect("room, or the one that is there")
        })
    };
    let known = |cluster: &Cluster| -> Vec<(String, bool)> {
        told(cluster).into_iter().map(|(node, counts, _)| (node, counts)).collect()
    };
    let lasting = open(&named);
    open(&nameless);
    let other = open(&wrong);
    let refused = cluster.world.block_on(cluster.admin(), async move { other.keep(&wrong).await });
    assert!(refused.is_err_and(|error| error.is(Der::INVAL)), "seed {seed}: no node has such a name");
    let nobody = || (String::new(), true);
    assert_eq!(known(&cluster), [nobody(), nobody(), ("node-1".to_owned(), true)], "seed {seed}");
    let refused = destroy(&cluster, Vec::new()).expect_err("it is open").to_string();
    assert!(refused.contains("on node node-1"), "seed {seed}: {refused}");

    cluster.world.run_for(Duration::from_mins(6));
    assert_eq!(known(&cluster), [("node-1".to_owned(), false)], "seed {seed}: all were silent");
    let keep = |context: &Context, container: &Container| {
        let (context, container) = (context.clone(), container.clone());
        cluster.world.block_on(cluster.admin(), async move { container.keep(&context).await.expect("kept") });
    };
    keep(&named, &lasting);
    assert_eq!(known(&cluster), [("node-1".to_owned(), true)], "seed {seed}");
    assert!(destroy(&cluster, Vec::new()).is_err(), "seed {seed}: it is there");

    cluster.crash(0, CrashKeeps::Any);
    cluster.restart(0);
    cluster.settle();
    assert_eq!(known(&cluster), [("node-1".to_owned(), true)], "seed {seed}: it may be there yet");
    open(&named);
    let handles = told(&cluster);
    assert_eq!(handles.len(), 2, "seed {seed}");
    assert!(destroy(&cluster, vec![handles[0].2]).is_err(), "seed {seed}: the other one is there");
    destroy(&cluster, handles.iter().map(|(_, _, handle)| *handle).collect()).expect("their node is gone");
}

/// What is given back is not told of any more, after a restart neither.
pub fn are_not_told_of_when_they_are_given_back(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 1, targets: 1, clients: 0 });
    cluster.create_pool("tank");
    let context = client(&cluster, Some("node-1"));
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, "tank", "box", 0).await.expect("room");
        container.close(&context).await.expect("closed");
    });
    assert_eq!(told(&cluster), [], "seed {seed}");
    cluster.crash(0, CrashKeeps::Any);
    cluster.restart(0);
    cluster.settle();
    assert_eq!(told(&cluster), [], "seed {seed}");
    destroy(&cluster, Vec::new()).expect("nobody has it open");
}

/// A program that has said where it is and doesn't say so again, as a mount does, counts while the container is used. A mount that died
/// doesn't, whoever else uses the container, and of those that die over and over on a node one is told of.
pub fn count_while_their_clients_work(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 1, targets: 1, clients: 0 });
    cluster.create_pool("tank");
    let program = client(&cluster, Some("node-1"));
    let mounts = [(); 3].map(|()| client(&cluster, Some("node-2")));
    cluster.world.block_on(cluster.admin(), async move {
        for mount in mounts {
            let container =
                make_container(&mount, "tank", "box", 0).await.expect("room, or the one that is there");
            container.keep(&mount).await.expect("it is there");
        }
        let container = make_container(&program, "tank", "box", 0).await.expect("the one that is there");
        let oid = container.new_object_id(&program, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        for minute in 0..6_u8 {
            kv.put(&program, &[minute], &[minute], Conditions::default()).await.expect("room");
            program.runtime().sleep(Duration::from_mins(1)).await;
        }
    });
    let known = |cluster: &Cluster| -> Vec<(String, bool)> {
        told(cluster).into_iter().map(|(node, counts, _)| (node, counts)).collect()
    };
    let both = |works| [("node-1".to_owned(), works), ("node-2".to_owned(), false)];
    assert_eq!(known(&cluster), both(true), "seed {seed}: the program was silent, and worked");
    let refused = destroy(&cluster, Vec::new()).expect_err("it is used").to_string();
    assert!(refused.contains("open at 1 clients, on node node-1"), "seed {seed}: {refused}");
    cluster.world.run_for(Duration::from_mins(6));
    assert_eq!(known(&cluster), both(false), "seed {seed}: nobody has used the container for long");
    destroy(&cluster, Vec::new()).expect("nobody is heard");
}
