//! Clients that exchange names.

use core::time::Duration;
use std::rc::Rc;

use weir_client::Context;
use weir_dfs::{Dfs, Error, Node as Entry, XattrMode};
use weir_runtime::random::Random;

use super::{MINUTE, OWNER, Scene, apart, lose_parent, seeds};

#[test]
fn exchanged_names_are_both_there_whenever_somebody_looks() {
    for seed in seeds(4) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        scene.file(&scene.b, b"two");
        let random = Random::new(seed);
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (_, end) = scene.start("exchanger", apart(&random), async move |context| {
            let one = dfs.lookup(&context, &a, b"one").await.expect("there");
            dfs.set_xattr(&context, &one, b"user.of", b"one", XattrMode::Any).await.expect("set");
            for _ in 0..7 {
                dfs.exchange(&context, (&a, b"one"), (&b, b"two")).await.expect("exchanged");
            }
            let two = dfs.lookup(&context, &b, b"two").await.expect("there");
            dfs.get_xattr(&context, &two, b"user.of").await.expect("it came along")
        });
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let known = Rc::clone(&end);
        scene.cluster.run(async move {
            while known.borrow().is_none() {
                dfs.lookup(&context, &a, b"one").await.expect("it is never away");
                dfs.lookup(&context, &b, b"two").await.expect("it is never away");
                context.runtime().sleep(Duration::from_micros(50)).await;
            }
        });
        assert_eq!(end.take().expect("an end"), b"one");
        assert_eq!(scene.content(&scene.a, b"one"), Some(b"two".to_vec()), "seven times");
        assert_eq!(scene.content(&scene.b, b"two"), Some(b"one".to_vec()), "seven times");
    }
}

#[test]
fn directories_are_exchanged_with_their_parents() {
    let scene = Scene::new(5);
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let root = dfs.root().clone();
        let inner = dfs.mkdir(&context, &a, b"inner", OWNER).await.expect("made");
        dfs.create(&context, &root, b"f", OWNER).await.expect("created");
        let [moved, _] = dfs.exchange(&context, (&a, b"inner"), (&root, b"f")).await.expect("exchanged");
        assert_eq!((moved.oid(), moved.parent), (inner.oid(), root.oid()));
        assert_eq!(dfs.parent_of(&context, inner.oid()).await.expect("known"), Some(root.oid()));
        dfs.exchange(&context, (&root, b"f"), (&root, b"b")).await.expect("exchanged");
        assert_eq!(dfs.lookup(&context, &root, b"f").await.expect("there").oid(), b.oid());
        let within = dfs.mkdir(&context, &b, b"within", OWNER).await.expect("made");
        let own = dfs.exchange(&context, (&root, b"f"), (&b, b"within")).await.expect_err("its own subtree");
        assert!(matches!(own, Error::Invalid(_)), "{own}");
        assert_eq!(dfs.parent_of(&context, within.oid()).await.expect("known"), Some(b.oid()));
        let missing = dfs.exchange(&context, (&root, b"f"), (&root, b"nothing")).await.expect_err("missing");
        assert!(matches!(missing, Error::NotFound(_)), "{missing}");
    });
}

/// What two files have as attributes: few, values that don't go along, and more than go along or are removed at once.
const ATTRIBUTES: [[(usize, usize); 2]; 4] =
    [[(1, 10), (2, 30)], [(1, 9000), (2, 7)], [(3, 5000), (1, 60_000)], [(90, 100), (300, 3)]];

/// The attributes of a file of this name; `kind` is one of [`ATTRIBUTES`].
fn attributes_of(name: &[u8], kind: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let kind = ATTRIBUTES[usize::try_from(kind).expect("small") % ATTRIBUTES.len()];
    let (count, size) = kind[usize::from(name == b"two")];
    let key = |number| [b"user.", name, format!("-{number:03}").as_bytes()].concat();
    (0..count).map(|number| (key(number), [name, &vec![b'v'; size]].concat())).collect()
}

/// Makes a file with attributes.
async fn make_with_attributes(context: &Context, dfs: &Dfs, directory: &Entry, name: &[u8], kind: u64) {
    let mut node = dfs.create(context, directory, name, OWNER).await.expect("created");
    dfs.file(&node).expect("a file").write(context, 0, name).await.expect("written");
    for (key, value) in attributes_of(name, kind) {
        node = dfs.set_xattr(context, &node, &key, &value, XattrMode::Any).await.expect("set");
    }
}

/// Checks that the file at a name is one of those, with all of its attributes and no others; returns the name that it was
/// made with.
async fn ensure_whole(
    context: &Context,
    dfs: &Dfs,
    directory: &Entry,
    name: &[u8],
    kind: u64,
) -> &'static [u8] {
    let node = dfs.lookup(context, directory, name).await.expect("there");
    let mut bytes = [0; 3];
    dfs.file(&node).expect("a file").read(context, 0, &mut bytes, None).await.expect("read");
    let made: &[u8] = if &bytes == b"one" { b"one" } else { b"two" };
    assert_eq!(bytes, *made);
    let expected = attributes_of(made, kind);
    let mut keys = dfs.list_xattrs(context, &node).await.expect("listed");
    keys.retain(|key| key != b"user.last");
    assert!(keys.iter().eq(expected.iter().map(|(key, _)| key)), "{} attributes", keys.len());
    for (key, value) in &expected {
        assert_eq!(dfs.get_xattr(context, &node, key).await.expect("there"), *value);
    }
    made
}

/// Two files with attributes.
fn scene_with_attributes(seed: u64) -> Scene {
    let scene = Scene::new(seed);
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        make_with_attributes(&context, &dfs, &a, b"one", seed).await;
        make_with_attributes(&context, &dfs, &b, b"two", seed).await;
    });
    scene
}

#[test]
fn attributes_stay_with_files_that_several_clients_exchange() {
    const EXCHANGES: usize = 3;
    for seed in seeds(2) {
        let scene = scene_with_attributes(seed);
        let random = Random::new(seed);
        let exchangers: Vec<_> = (0..2)
            .map(|number| {
                let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
                let (_, end) =
                    scene.start(&format!("exchanger-{number}"), apart(&random), async move |context| {
                        for _ in 0..EXCHANGES {
                            let places = if number == 0 {
                                [(&a, b"one"), (&b, b"two")]
                            } else {
                                [(&b, b"two"), (&a, b"one")]
                            };
                            let [one, other] = places.map(|(directory, name)| (directory, &name[..]));
                            dfs.exchange(&context, one, other).await.expect("exchanged");
                        }
                    });
                end
            })
            .collect();
        // Somebody gives the files another attribute meanwhile, which changes all the time.
        let (dfs, a, ends) = (scene.dfs.clone(), scene.a.clone(), exchangers.clone());
        let (_, last) = scene.start("setter", apart(&random), async move |context| {
            let mut last = std::collections::BTreeMap::new();
            for number in 0u32.. {
                if ends.iter().all(|end| end.borrow().is_some()) {
                    break;
                }
                let node = dfs.lookup(&context, &a, b"one").await.expect("there");
                let value = number.to_be_bytes();
                match dfs.set_xattr(&context, &node, b"user.last", &value, XattrMode::Any).await {
                    Ok(_) => drop(last.insert(node.oid(), value.to_vec())),
                    Err(Error::Stale(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                context.runtime().sleep(Duration::from_millis(5)).await;
            }
            last
        });
        scene.cluster.world.run_for(2 * MINUTE);
        assert!(exchangers.iter().all(|end| end.borrow().is_some()), "seed {seed}");
        let last = last.take().expect("an end");
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            // Each of them has exchanged an odd number of times.
            assert_eq!(ensure_whole(&context, &dfs, &a, b"one", seed).await, b"one", "seed {seed}");
            assert_eq!(ensure_whole(&context, &dfs, &b, b"two", seed).await, b"two", "seed {seed}");
            for (directory, name) in [(&a, b"one"), (&b, b"two")] {
                let node = dfs.lookup(&context, directory, name).await.expect("there");
                match dfs.get_xattr(&context, &node, b"user.last").await {
                    Ok(value) => assert_eq!(Some(&value), last.get(&node.oid()), "seed {seed}"),
                    Err(Error::NoAttribute(_)) => assert!(!last.contains_key(&node.oid()), "seed {seed}"),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        });
    }
}

#[test]
fn an_exchange_whose_client_dies_has_happened_or_not() {
    let (mut before, mut after) = (0, 0);
    for seed in seeds(1) {
        let scene = scene_with_attributes(seed);
        let random = Random::new(seed);
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (doomed, _) = scene.start("doomed", Duration::ZERO, async move |context| {
            dfs.exchange(&context, (&a, b"one"), (&b, b"two")).await.map(drop)
        });
        // With more attributes it takes longer.
        let at = apart(&random) * [1, 2, 3, 20][usize::try_from(seed % 4).expect("small")];
        let world = scene.cluster.world.clone();
        scene.cluster.world.schedule(at, move || world.crash(&doomed));
        if seed % 3 != 0 {
            let rank = u32::try_from(random.below(3)).expect("few");
            let down = Duration::from_millis(5 + random.below(50));
            scene.cluster.schedule_crash(
                rank,
                at.saturating_sub(Duration::from_micros(random.below(500))),
                down,
            );
        }
        scene.cluster.world.run_for(Duration::from_secs(30));
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let found = scene.cluster.run(async move {
            let found = [
                ensure_whole(&context, &dfs, &a, b"one", seed).await,
                ensure_whole(&context, &dfs, &b, b"two", seed).await,
            ];
            // What the dead one has left behind harms nobody.
            dfs.exchange(&context, (&a, b"one"), (&b, b"two")).await.expect("exchanged");
            let now = [
                ensure_whole(&context, &dfs, &b, b"two", seed).await,
                ensure_whole(&context, &dfs, &a, b"one", seed).await,
            ];
            assert_eq!(found, now, "seed {seed}");
            found
        });
        match found {
            [b"one", b"two"] => before += 1,
            [b"two", b"one"] => after += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(crate::is_alone() || (before > 3 && after > 3), "{before} {after}");
}

#[test]
fn the_largest_entries_can_be_exchanged() {
    let scene = Scene::new(7);
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let names = [[b'x'; weir_dfs::NAME_MAX], [b'y'; weir_dfs::NAME_MAX]];
        let target = [b't'; weir_dfs::LINK_TARGET_MAX];
        for (directory, name) in [&a, &b].into_iter().zip(&names) {
            let mut node = dfs.symlink(&context, directory, name, &target, OWNER).await.expect("made");
            for number in 0..60 {
                let key = format!("user.{number}");
                node = dfs
                    .set_xattr(&context, &node, key.as_bytes(), &name[..30], XattrMode::Any)
                    .await
                    .expect("set");
            }
        }
        for _ in 0..3 {
            dfs.exchange(&context, (&a, &names[0]), (&b, &names[1])).await.expect("exchanged");
        }
        let node = dfs.lookup(&context, &a, &names[0]).await.expect("there");
        assert_eq!(dfs.list_xattrs(&context, &node).await.expect("listed").len(), 60);
        assert_eq!(dfs.get_xattr(&context, &node, b"user.7").await.expect("there"), names[1][..30]);
    });
}

#[test]
fn a_directory_can_be_exchanged_into_one_that_is_not_whole() {
    let scene = Scene::new(9);
    scene.file(&scene.a, b"one");
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let inner = dfs.mkdir(&context, &b, b"inner", OWNER).await.expect("made");
        // As clients of older versions have left it that died in the middle.
        lose_parent(&context, &dfs, &a).await;
        dfs.parent_of(&context, a.oid()).await.expect_err("it isn't known");
        dfs.exchange(&context, (&a, b"one"), (&b, b"inner")).await.expect("exchanged");
        assert_eq!(dfs.parent_of(&context, inner.oid()).await.expect("known"), Some(a.oid()));
        assert_eq!(dfs.parent_of(&context, a.oid()).await.expect("mended"), Some(dfs.root().oid()));
    });
}
