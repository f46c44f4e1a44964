//! Files with several names: what each name shows, and what becomes of them when clients link, rename and remove at the same
//! moment and die in the middle.

use core::time::Duration;
use std::collections::BTreeMap;

use weir_client::Context;
use weir_dfs::{Dfs, Error, Kind, Node as Entry, Replace, SetAttributes, XattrMode};
use weir_runtime::random::Random;

use super::{MINUTE, OWNER, Scene, apart, seeds, unlink};

/// The inodes below two directories: names of each, and its link count.
async fn names(context: &Context, dfs: &Dfs, directories: &[Entry]) -> BTreeMap<u64, (Vec<Vec<u8>>, u32)> {
    let mut inodes: BTreeMap<u64, (Vec<Vec<u8>>, u32)> = BTreeMap::new();
    for directory in directories {
        let mut stream = dfs.open_directory(directory).expect("a directory");
        let entries = dfs.read_directory(context, &mut stream, 0, 1000).await.expect("listed");
        for entry in entries {
            let node = &entry.node;
            let known = inodes.entry(node.inode_number()).or_insert((Vec::new(), node.record.links()));
            assert_eq!(known.1, node.record.links(), "every name shows the same record");
            known.0.push(node.name.clone());
        }
    }
    inodes
}

/// Checks that each inode has as many names as it counts, and the content that it was made with.
fn ensure_counted(scene: &Scene, seed: u64) -> usize {
    let (context, dfs) = (scene.context.clone(), scene.dfs.clone());
    let directories = [scene.a.clone(), scene.b.clone()];
    scene.cluster.run(async move {
        let inodes = names(&context, &dfs, &directories).await;
        for (inode, (names, links)) in &inodes {
            assert_eq!(names.len(), *links as usize, "seed {seed}: inode {inode} has names {names:?}");
        }
        for directory in &directories {
            let mut stream = dfs.open_directory(directory).expect("a directory");
            let entries = dfs.read_directory(&context, &mut stream, 0, 1000).await.expect("listed").to_vec();
            for entry in entries {
                let mut bytes = [0; 8];
                let file = dfs.file(&entry.node).expect("a file");
                assert_eq!(file.read(&context, 0, &mut bytes, None).await.expect("read"), 3, "seed {seed}");
                let (_, stat) = dfs.stat(&context, &entry.node).await.expect("described");
                assert_eq!(stat.links, entry.node.record.links());
            }
        }
        inodes.len()
    })
}

#[test]
fn every_name_of_a_file_shows_the_same_attributes_and_content() {
    let scene = Scene::new(1);
    scene.file(&scene.a, b"one");
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let one = dfs.lookup(&context, &a, b"one").await.expect("there");
        let one = dfs.set_xattr(&context, &one, b"user.few", b"x", XattrMode::Any).await.expect("set");
        let large = vec![7; 60_000];
        let one = dfs.set_xattr(&context, &one, b"user.large", &large, XattrMode::Any).await.expect("set");
        let before = dfs.stat(&context, &one).await.expect("described").1;
        let two = dfs.link(&context, &one, &b, b"two").await.expect("linked");
        assert_eq!((two.oid(), two.record.links()), (one.oid(), 2));
        // Also by what was looked up before there was a second name.
        let (_, stat) = dfs.stat(&context, &one).await.expect("described");
        assert_eq!((stat.links, stat.size, stat.mtime_ns), (2, before.size, before.mtime_ns));
        assert!(stat.ctime_ns > before.ctime_ns);
        for node in [&one, &two, &dfs.lookup(&context, &a, b"one").await.expect("there")] {
            assert_eq!(dfs.get_xattr(&context, node, b"user.large").await.expect("there"), large);
            assert_eq!(dfs.list_xattrs(&context, node).await.expect("listed").len(), 2);
        }
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let (one, _) = dfs.set_attributes(&context, &one, &mode).await.expect("set");
        assert_eq!(dfs.lookup(&context, &b, b"two").await.expect("there").record.mode, 0o600);
        dfs.set_xattr(&context, &one, b"user.huge", &large, XattrMode::Create).await.expect("set");
        dfs.remove_xattr(&context, &two, b"user.few").await.expect("removed");
        let listed = dfs.list_xattrs(&context, &one).await.expect("listed");
        assert_eq!(listed, [b"user.huge".to_vec(), b"user.large".to_vec()]);

        let removed = dfs.unlink(&context, &a, b"one").await.expect("unlinked");
        assert_eq!((removed.links, removed.xattrs.len()), (1, 0));
        dfs.reclaim(&context, &removed).await.expect("nothing to free");
        // The name is gone, the inode is not.
        assert_eq!(dfs.stat(&context, &one).await.expect("described").1.links, 1);
        let mut bytes = [0; 3];
        dfs.file(&two).expect("a file").read(&context, 0, &mut bytes, None).await.expect("read");
        assert_eq!(&bytes, b"one");
        let removed = dfs.unlink(&context, &b, b"two").await.expect("unlinked");
        assert_eq!((removed.links, removed.xattrs.len()), (0, 2));
        dfs.reclaim(&context, &removed).await.expect("freed");
        assert!(matches!(dfs.stat(&context, &one).await, Err(Error::Stale(_))));
        assert!(matches!(dfs.link(&context, &one, &a, b"back").await, Err(Error::Stale(_))));
    });
}

#[test]
fn what_can_not_be_linked_is_refused_and_nothing_happens() {
    let scene = Scene::new(2);
    scene.file(&scene.a, b"one");
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let one = dfs.lookup(&context, &a, b"one").await.expect("there");
        let directory = dfs.link(&context, &b, &a, b"loop").await.expect_err("a directory");
        assert_eq!(directory.errno(), 1, "{directory}");
        for taken in [&b"one"[..], b"inner"] {
            dfs.mkdir(&context, &a, b"inner", OWNER).await.map(drop).or_else(ignore_exists).expect("there");
            let taken = dfs.link(&context, &one, &a, taken).await.expect_err("it is taken");
            assert!(matches!(taken, Error::Exists(_)), "{taken}");
        }
        let within = dfs.link(&context, &one, &one, b"x").await.expect_err("not a directory");
        assert!(matches!(within, Error::NotDirectory(_)), "{within}");
        let gone = dfs.rmdir(&context, dfs.root(), b"b").await.expect("removed");
        dfs.reclaim(&context, &gone).await.expect("reclaimed");
        let nowhere = dfs.link(&context, &one, &b, b"x").await.expect_err("the directory is gone");
        assert!(matches!(nowhere, Error::NotFound(_)), "{nowhere}");
        let now = dfs.lookup(&context, &a, b"one").await.expect("there");
        assert_eq!(now, one, "as it was");
        // Anything else can have several names.
        let link = dfs.symlink(&context, &a, b"s", b"one", OWNER).await.expect("made");
        let again = dfs.link(&context, &link, &a, b"t").await.expect("linked");
        assert_eq!(dfs.read_link(&again).expect("a link"), b"one");
        let pipe = dfs.mknod(&context, &a, b"p", Kind::Fifo, OWNER).await.expect("made");
        dfs.link(&context, &pipe, &a, b"q").await.expect("linked");
        assert_eq!(dfs.lookup(&context, &a, b"q").await.expect("there").record.kind, Kind::Fifo);
    });
}

fn ignore_exists(error: Error) -> Result<(), Error> {
    if matches!(error, Error::Exists(_)) { Ok(()) } else { Err(error) }
}

#[test]
fn a_rename_counts_names() {
    let scene = Scene::new(3);
    scene.file(&scene.a, b"one");
    scene.file(&scene.b, b"two");
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let one = dfs.lookup(&context, &a, b"one").await.expect("there");
        dfs.link(&context, &one, &b, b"uno").await.expect("linked");
        // Two names of one file: both stay.
        let same = dfs.rename(&context, &a, b"one", &b, b"uno", Replace::Allow).await.expect("nothing to do");
        assert!(same.1.is_none());
        let (moved, none) =
            dfs.rename(&context, &a, b"one", &a, b"new", Replace::Allow).await.expect("renamed");
        assert_eq!((moved.record.links(), none), (2, None));
        assert!(matches!(dfs.lookup(&context, &a, b"one").await, Err(Error::NotFound(_))));
        let kept = dfs.lookup(&context, &b, b"uno").await.expect("there");
        assert_eq!(kept.record.ctime_ns, moved.record.ctime_ns);
        // It replaces a name of a file that has another one, and then its last.
        for (name, left) in [(&b"new"[..], 1), (b"uno", 0)] {
            let directory = if left == 1 { &a } else { &b };
            dfs.create(&context, &a, b"other", OWNER).await.expect("created");
            let (_, replaced) =
                dfs.rename(&context, &a, b"other", directory, name, Replace::Allow).await.expect("renamed");
            let replaced = replaced.expect("it was there");
            assert_eq!((replaced.node.oid(), replaced.links), (one.oid(), left));
        }
        assert!(matches!(dfs.stat(&context, &moved).await, Err(Error::Stale(_))));
        let two = dfs.lookup(&context, &b, b"two").await.expect("there");
        let due = dfs.link(&context, &two, &a, b"due").await.expect("linked");
        let [there, here] = dfs.exchange(&context, (&a, b"due"), (&b, b"uno")).await.expect("exchanged");
        assert_eq!((there.oid(), there.record.links(), here.record.links()), (due.oid(), 2, 1));
        assert_eq!(dfs.lookup(&context, &b, b"uno").await.expect("there").oid(), due.oid());
        assert_eq!(dfs.lookup(&context, &b, b"two").await.expect("there").record.links(), 2);
    });
}

#[test]
fn a_file_that_is_linked_while_its_name_goes_is_whole_or_gone() {
    let (mut kept, mut gone) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (_, linked) = scene.start("linker", apart(&random), async move |context| {
            let node = dfs.lookup(&context, &a, b"one").await?;
            dfs.link(&context, &node, &b, b"new").await.map(drop)
        });
        let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
        let (_, removed) = scene
            .start("remover", apart(&random), async move |context| unlink(&context, &dfs, &a, b"one").await);
        scene.cluster.world.run_for(MINUTE);
        let (linked, removed) = (linked.take().expect("an end"), removed.take().expect("an end"));
        removed.expect("its name is there");
        assert_eq!(scene.content(&scene.a, b"one"), None, "seed {seed}");
        match (linked, scene.content(&scene.b, b"new")) {
            (Ok(()), Some(content)) if content == b"one" => kept += 1,
            (Err(Error::Stale(_) | Error::NotFound(_)), None) => gone += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
        ensure_counted(&scene, seed);
    }
    assert!(crate::is_alone() || (kept > 3 && gone > 3), "{kept} {gone}");
}

#[test]
fn a_link_whose_client_dies_is_there_or_not() {
    let (mut before, mut after) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        let is_large = seed % 3 == 0;
        scene.cluster.run(async move {
            let one = dfs.lookup(&context, &a, b"one").await.expect("there");
            let value = vec![7; if is_large { 30_000 } else { 30 }];
            dfs.set_xattr(&context, &one, b"user.v", &value, XattrMode::Any).await.expect("set");
        });
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (doomed, _) = scene.start("doomed", Duration::ZERO, async move |context| {
            let node = dfs.lookup(&context, &a, b"one").await?;
            dfs.link(&context, &node, &b, b"new").await.map(drop)
        });
        scene.die(doomed, apart(&random), (seed, &random));
        assert_eq!(ensure_counted(&scene, seed), 1);
        match scene.content(&scene.b, b"new") {
            None => before += 1,
            Some(_) => after += 1,
        }
        // Whatever is left of the one that died, the next one succeeds.
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            let one = dfs.lookup(&context, &a, b"one").await.expect("there");
            let last = dfs.link(&context, &one, &b, b"last").await.expect("linked");
            let value = dfs.get_xattr(&context, &last, b"user.v").await.expect("it came along");
            assert_eq!(value.len(), if is_large { 30_000 } else { 30 });
        });
        ensure_counted(&scene, seed);
    }
    assert!(crate::is_alone() || (before > 3 && after > 3), "{before} {after}");
}

#[test]
fn the_last_of_two_names_that_go_at_once_frees_the_content() {
    for seed in seeds(2) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let file = scene.cluster.run(async move {
            let one = dfs.lookup(&context, &a, b"one").await.expect("there");
            dfs.link(&context, &one, &b, b"two").await.expect("linked")
        });
        let remover = |name: &str, directory: &Entry, entry: &'static [u8]| {
            let (dfs, directory) = (scene.dfs.clone(), directory.clone());
            let (_, outcome) = scene.start(name, apart(&random), async move |context| {
                let removed = dfs.unlink(&context, &directory, entry).await?;
                dfs.reclaim(&context, &removed).await?;
                Ok::<_, Error>(removed.links)
            });
            outcome
        };
        let ends = [remover("first", &scene.a, b"one"), remover("second", &scene.b, b"two")];
        scene.cluster.world.run_for(MINUTE);
        let mut left = ends.map(|end| end.take().expect("an end").expect("removed"));
        left.sort_unstable();
        assert_eq!(left, [0, 1], "seed {seed}");
        let (context, dfs) = (scene.context.clone(), scene.dfs.clone());
        let size = scene.cluster.run(async move {
            dfs.file(&file).expect("a file").size_and_epoch(&context).await.expect("asked").0
        });
        assert_eq!(size, 0, "seed {seed}: the content is still there");
    }
}

/// What clients do to a few names, at random.
async fn wander(context: Context, dfs: Dfs, directories: [Entry; 2], random: Random) {
    const NAMES: [&[u8]; 4] = [b"one", b"two", b"new", b"old"];
    let draw = |count: usize| usize::try_from(random.below(count as u64)).expect("few");
    for _ in 0..12 {
        let (from, to) = (&directories[draw(2)], &directories[draw(2)]);
        let (name, other) = (NAMES[draw(NAMES.len())], NAMES[draw(NAMES.len())]);
        let done = match draw(6) {
            0 | 1 => match dfs.lookup(&context, from, name).await {
                Ok(node) => dfs.link(&context, &node, to, other).await.map(drop),
                Err(error) => Err(error),
            },
            2 => unlink(&context, &dfs, from, name).await,
            3 => match dfs.rename(&context, from, name, to, other, Replace::Allow).await {
                Ok((_, Some(replaced))) => dfs.reclaim(&context, &replaced).await,
                renamed => renamed.map(drop),
            },
            4 => dfs.exchange(&context, (from, name), (to, other)).await.map(drop),
            _ => match dfs.lookup(&context, from, name).await {
                Ok(node) => {
                    let mode = Some(u32::try_from(random.below(512)).expect("small"));
                    let change = SetAttributes { mode, ..SetAttributes::default() };
                    dfs.set_attributes(&context, &node, &change).await.map(drop)
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(()) | Err(Error::NotFound(_) | Error::Exists(_) | Error::Stale(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn files_have_as_many_names_as_they_count_whatever_clients_do_at_once() {
    let mut shared = 0;
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        scene.file(&scene.b, b"two");
        let random = Random::new(seed);
        let mut ends = Vec::new();
        for client in 0..3 {
            let (dfs, directories) = (scene.dfs.clone(), [scene.a.clone(), scene.b.clone()]);
            let draws = Random::new(seed * 10 + client);
            let (node, end) =
                scene.start(&format!("client-{client}"), apart(&random), async move |context| {
                    wander(context, dfs, directories, draws).await;
                });
            if client == 0 && seed % 2 == 0 {
                let (world, at) = (scene.cluster.world.clone(), apart(&random) * 4);
                scene.cluster.world.schedule(at, move || world.crash(&node));
            } else {
                ends.push(end);
            }
        }
        scene.cluster.world.run_for(MINUTE);
        assert!(ends.iter().all(|end| end.borrow().is_some()), "seed {seed}");
        ensure_counted(&scene, seed);
        let (context, dfs) = (scene.context.clone(), scene.dfs.clone());
        let directories = [scene.a.clone(), scene.b.clone()];
        let inodes = scene.cluster.run(async move { names(&context, &dfs, &directories).await });
        shared += usize::from(inodes.values().any(|(_, links)| *links > 1));
    }
    assert!(crate::is_alone() || shared > 3, "{shared}");
}

#[test]
fn a_file_with_more_names_takes_a_request_for_its_record_when_it_is_looked_up() {
    let scene = Scene::new(4);
    scene.file(&scene.a, b"one");
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let counted = |start: u64| context.traffic().requests - start;
        let one = dfs.lookup(&context, &a, b"one").await.expect("there");
        let start = context.traffic().requests;
        let two = dfs.link(&context, &one, &b, b"two").await.expect("linked");
        assert_eq!(counted(start), 3, "the first link");
        let start = context.traffic().requests;
        dfs.link(&context, &two, &b, b"three").await.expect("linked");
        assert_eq!(counted(start), 3, "a further link");
        let start = context.traffic().requests;
        dfs.lookup(&context, &b, b"two").await.expect("there");
        assert_eq!(counted(start), 2, "lookup");
        let start = context.traffic().requests;
        dfs.stat(&context, &two).await.expect("described");
        assert_eq!(counted(start), 2, "stat: as with one name");
    });
}
