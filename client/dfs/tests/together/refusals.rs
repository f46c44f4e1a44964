//! What operations say that change nothing, and that they end.

use core::time::Duration;

use super::{MINUTE, OWNER, Scene, unlink};

#[test]
fn what_is_read_of_one_engine_is_no_older_for_what_another_one_has_said() {
    const BEHIND_NS: i64 = -400_000_000;
    const AHEAD_NS: i64 = 300_000_000;
    for rank in 0..3 {
        let scene = Scene::new(u64::from(rank));
        scene.cluster.engine(rank).set_clock_skew(AHEAD_NS);
        let node = scene.cluster.world.node("behind");
        node.set_clock_skew(BEHIND_NS);
        for number in 0..6 {
            let late = scene.cluster.context_on(&node, MINUTE);
            let (context, dfs) = (scene.context.clone(), scene.dfs.clone());
            scene.cluster.run(async move {
                let (root, name) = (dfs.root().clone(), format!("d{number}"));
                let made = dfs.mkdir(&context, &root, name.as_bytes(), OWNER).await.expect("made");
                dfs.create(&context, &made, b"f", OWNER).await.expect("created");
                dfs.lookup(&context, &root, name.as_bytes()).await.expect("there");
                context.runtime().sleep(Duration::from_millis(2)).await;
                unlink(&context, &dfs, &made, b"f").await.expect("removed");
                let removed = dfs.rmdir(&late, &root, name.as_bytes()).await.expect("it is empty");
                dfs.reclaim(&late, &removed).await.expect("reclaimed");
            });
        }
    }
}
