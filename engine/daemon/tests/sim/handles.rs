//! What a pool service does for handles that nobody gave out.

use std::time::Duration;

use weir_client::{Container, Der};

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
