//! Clients that change attributes of the same inode at the same moment.

use core::time::Duration;

use weir_client::Context;
use weir_dfs::{
    Change, Dfs, Error, LINK_TARGET_MAX, NAME_MAX, SetAttributes, XATTR_NAME_MAX, XATTR_VALUE_MAX, XattrMode,
};
use weir_runtime::random::Random;

use super::{Entry, MINUTE, OWNER, Outcome, Scene, apart, seeds};

/// Has another client look for the scene's file and change it, after a while. Returns where its end will be.
fn start_change(
    scene: &Scene,
    name: &str,
    after: Duration,
    change: impl AsyncFnOnce(&Context, &Dfs, &Entry) -> Result<Entry, Error> + 'static,
) -> Outcome<Result<(), Error>> {
    let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
    let (_, end) = scene.start(name, after, async move |context| {
        let node = dfs.lookup(&context, &a, b"one").await?;
        change(&context, &dfs, &node).await.map(drop)
    });
    end
}

#[test]
fn an_extended_attribute_and_a_mode_that_are_set_at_the_same_moment_are_both_there() {
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let size = if seed % 2 == 0 { 10 } else { 20_000 };
        let set = start_change(&scene, "setter", apart(&random) / 4, async move |context, dfs, node| {
            dfs.set_xattr(context, node, b"user.of", &vec![7; size], XattrMode::Any).await
        });
        let changed = start_change(&scene, "changer", apart(&random) / 4, async |context, dfs, node| {
            let change = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            dfs.set_attributes(context, node, &change).await.map(|(node, _)| node)
        });
        scene.cluster.world.run_for(MINUTE);
        set.take().expect("an end").expect("set");
        changed.take().expect("an end").expect("changed");
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        scene.cluster.run(async move {
            let node = dfs.lookup(&context, &a, b"one").await.expect("there");
            assert_eq!(node.record.mode, 0o600, "seed {seed}");
            let names = dfs.list_xattrs(&context, &node).await.expect("listed");
            assert_eq!(names, [b"user.of"], "seed {seed}");
        });
    }
}

#[test]
fn times_and_owner_that_are_set_at_the_same_moment_are_both_there() {
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let changes = [
            SetAttributes { uid: Some(7), ..SetAttributes::default() },
            SetAttributes { mtime: Some(Change::To(5)), ..SetAttributes::default() },
            SetAttributes { mode: Some(0o600), ..SetAttributes::default() },
        ];
        let ends: Vec<_> = changes
            .into_iter()
            .enumerate()
            .map(|(number, change)| {
                let (name, after) = (format!("changer-{number}"), apart(&random) / 4);
                start_change(&scene, &name, after, async move |context, dfs, node| {
                    dfs.set_attributes(context, node, &change).await.map(|(node, _)| node)
                })
            })
            .collect();
        scene.cluster.world.run_for(MINUTE);
        for end in ends {
            end.take().expect("an end").expect("changed");
        }
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        scene.cluster.run(async move {
            let node = dfs.lookup(&context, &a, b"one").await.expect("there");
            let (_, stat) = dfs.stat(&context, &node).await.expect("answers");
            assert_eq!((stat.uid, stat.mtime_ns, stat.mode), (7, 5, 0o600), "seed {seed}");
        });
    }
}

#[test]
fn what_is_done_to_an_extended_attribute_changes_the_time_of_the_inode() {
    let scene = Scene::new(1);
    scene.file(&scene.a, b"one");
    let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
    scene.cluster.run(async move {
        let node = dfs.lookup(&context, &a, b"one").await.expect("there");
        let set = async |node, name: &[u8], mode| dfs.set_xattr(&context, node, name, b"v", mode).await;
        let missing = set(&node, b"user.of", XattrMode::Replace).await.expect_err("there is none");
        assert_eq!(missing.errno(), 61, "{missing}");
        let made = set(&node, b"user.of", XattrMode::Create).await.expect("set");
        let taken = set(&node, b"user.of", XattrMode::Create).await.expect_err("there is one");
        assert_eq!(taken.errno(), 17, "{taken}");
        let replaced = set(&node, b"user.of", XattrMode::Replace).await.expect("set");
        let removed = dfs.remove_xattr(&context, &node, b"user.of").await.expect("removed");
        let times = [&node, &made, &replaced, &removed].map(|node| node.record.ctime_ns);
        assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
        let gone = dfs.remove_xattr(&context, &node, b"user.of").await.expect_err("there is none");
        assert_eq!(gone.errno(), 61, "{gone}");
        assert_eq!(dfs.lookup(&context, &a, b"one").await.expect("there").record, removed.record);
    });
}

#[test]
fn of_two_that_make_the_same_attribute_at_the_same_moment_one_hears_that_it_is_there() {
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let size = if seed % 2 == 0 { 10 } else { 20_000 };
        let ends: Vec<_> = [1, 2]
            .into_iter()
            .map(|number: u8| {
                let (name, after) = (format!("maker-{number}"), apart(&random) / 8);
                start_change(&scene, &name, after, async move |context, dfs, node| {
                    dfs.set_xattr(context, node, b"user.of", &vec![number; size], XattrMode::Create).await
                })
            })
            .collect();
        scene.cluster.world.run_for(MINUTE);
        let ends: Vec<_> = ends.into_iter().map(|end| end.take().expect("an end")).collect();
        let winner = match &ends[..] {
            [Ok(()), Err(Error::Exists(_))] => 1,
            [Err(Error::Exists(_)), Ok(())] => 2,
            other => panic!("seed {seed}: {other:?}"),
        };
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        scene.cluster.run(async move {
            let node = dfs.lookup(&context, &a, b"one").await.expect("there");
            let value = dfs.get_xattr(&context, &node, b"user.of").await.expect("there");
            assert_eq!(value, vec![winner; size], "seed {seed}");
        });
    }
}

#[test]
fn an_attribute_of_any_size_and_name_is_set_on_any_inode() {
    let scene = Scene::new(1);
    let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
    scene.cluster.run(async move {
        let (name, target) = ([b'n'; NAME_MAX], [b't'; LINK_TARGET_MAX]);
        let mut node = dfs.symlink(&context, &a, &name, &target, OWNER).await.expect("made");
        for size in [0, 1, 4096, 8191, 8192, 8193, XATTR_VALUE_MAX] {
            for (mode, byte) in [(XattrMode::Create, 1), (XattrMode::Replace, 2), (XattrMode::Any, 3)] {
                let (of, value) = ([b'x'; XATTR_NAME_MAX], vec![byte; size]);
                node = dfs.set_xattr(&context, &node, &of, &value, mode).await.expect("set");
                assert_eq!(dfs.get_xattr(&context, &node, &of).await.expect("there"), value);
            }
            node = dfs.remove_xattr(&context, &node, &[b'x'; XATTR_NAME_MAX]).await.expect("removed");
        }
    });
}
