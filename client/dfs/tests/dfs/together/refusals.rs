//! What operations say that change nothing, and that they end.

use core::time::Duration;

use weir_client::{AkeyWrite, Conditions, Der, Key, Object};
use weir_dfs::{Error, Replace, XattrMode};

use super::{MINUTE, OWNER, Scene, lose_parent, unlink};

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

#[test]
fn a_rename_ends_though_somebody_changes_large_attributes_all_the_time() {
    let scene = Scene::new(2);
    scene.file(&scene.a, b"one");
    let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
    let node = scene.cluster.run(async move {
        let node = dfs.lookup(&context, &a, b"one").await.expect("there");
        // That there are attributes; those that are set below don't go along together.
        dfs.set_xattr(&context, &node, b"user.of", b"one", XattrMode::Any).await.expect("set")
    });
    for setter in 0..4_u8 {
        let object = Object::open(scene.dfs.container(), scene.a.oid()).expect("opens");
        let key = [b"x", &node.oid().to_bytes()[..], b"user.", &[b'0' + setter]].concat();
        // As clients of older versions do: they wait for nobody.
        scene.start(&format!("setter-{setter}"), Duration::ZERO, async move |context| {
            let until = context.runtime().now() + Duration::from_millis(1500);
            let (key, name) = (Key::new(&key).expect("a key"), Key::new(b"one").expect("a key"));
            for number in 0_u64.. {
                if context.runtime().now() > until {
                    break;
                }
                let value = [&b"v"[..], &number.to_be_bytes(), &[7; 1100]].concat();
                let writes = [AkeyWrite::single(key.clone(), &value)];
                object.update(&context, &name, Conditions::DKEY_UPDATE, &writes).await.expect("set");
                context.runtime().sleep(Duration::from_micros(100)).await;
            }
        });
    }
    let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    let (_, mover) = scene.start("mover", Duration::from_millis(100), async move |context| {
        context.set_deadline(Duration::from_millis(300));
        let began = context.runtime().now();
        let renamed = dfs.rename(&context, &a, b"one", &b, b"two", Replace::Allow).await.map(drop);
        (renamed, context.runtime().now() - began)
    });
    scene.cluster.world.run_for(MINUTE);
    let (renamed, took) = mover.take().expect("an end");
    assert!(took < Duration::from_millis(600), "{took:?}: {renamed:?}");
    let given_up = renamed.expect_err("there is no moment for it");
    assert!(matches!(&given_up, Error::Client(error) if error.is(Der::TIMEDOUT)), "{given_up}");
}

#[test]
fn a_directory_is_moved_into_one_that_is_not_whole() {
    let scene = Scene::new(3);
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let inner = dfs.mkdir(&context, &b, b"inner", OWNER).await.expect("made");
        // As it is left by one who was told that there is such a name, and discards what he has made.
        lose_parent(&context, &dfs, &a).await;
        let renamed = dfs.rename(&context, &b, b"inner", &a, b"new", Replace::Allow).await;
        assert_eq!(renamed.expect("renamed").0.oid(), inner.oid());
        assert_eq!(dfs.parent_of(&context, inner.oid()).await.expect("known"), Some(a.oid()));
        assert_eq!(dfs.parent_of(&context, a.oid()).await.expect("mended"), Some(dfs.root().oid()));
    });
}
