//! Directories that are made while other clients make the same one, and by clients that die in the middle.

use core::time::Duration;

use weir_dfs::Error;
use weir_runtime::random::Random;

use super::{MINUTE, OWNER, Scene, apart, seeds};

#[test]
fn a_directory_whose_maker_dies_is_whole_or_not_there() {
    let (mut before, mut after) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        let random = Random::new(seed);
        let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
        let (doomed, _) = scene.start("doomed", Duration::ZERO, async move |context| {
            dfs.mkdir(&context, &a, b"new", OWNER).await.map(drop)
        });
        // It makes a directory by one request.
        scene.die(doomed, Duration::from_micros(random.below(300)), (seed, &random));
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        let is_there = scene.cluster.run(async move {
            match dfs.lookup(&context, &a, b"new").await {
                Ok(made) => {
                    let parent = dfs.parent_of(&context, made.oid()).await.expect("it is whole");
                    assert_eq!(parent, Some(a.oid()));
                    dfs.create(&context, &made, b"in", OWNER).await.expect("created");
                    true
                }
                Err(Error::NotFound(_)) => {
                    dfs.mkdir(&context, &a, b"new", OWNER).await.expect("made");
                    false
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        });
        if is_there { after += 1 } else { before += 1 }
    }
    assert!(crate::is_alone() || (before > 3 && after > 3), "{before} {after}");
}

#[test]
fn of_clients_that_make_one_directory_one_wins_and_none_makes_it_where_its_parent_goes() {
    let (mut made_inside, mut gone) = (0, 0);
    for seed in seeds(2) {
        let scene = Scene::new(seed);
        let random = Random::new(seed);
        let maker = |name: &str| {
            let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
            scene
                .start(name, apart(&random), async move |context| {
                    dfs.mkdir(&context, &a, b"new", OWNER).await
                })
                .1
        };
        let ends = [maker("first"), maker("second")];
        let dfs = scene.dfs.clone();
        let (_, removed) = scene.start("remover", apart(&random), async move |context| {
            let removed = dfs.rmdir(&context, dfs.root(), b"a").await?;
            dfs.reclaim(&context, &removed).await
        });
        scene.cluster.world.run_for(MINUTE);
        let ends = ends.map(|end| end.take().expect("an end"));
        let won = ends.iter().filter(|end| end.is_ok()).count();
        match removed.take().expect("an end") {
            Err(Error::NotEmpty(_)) => {
                assert_eq!(won, 1, "seed {seed}: {ends:?}");
                let refused = ends.iter().find_map(|end| end.as_ref().err()).expect("the other one");
                assert!(matches!(refused, Error::Exists(_)), "seed {seed}: {refused}");
                made_inside += 1;
            }
            Ok(()) => {
                assert!(
                    ends.iter().all(|end| matches!(end, Err(Error::NotFound(_)))),
                    "seed {seed}: {ends:?}"
                );
                gone += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(crate::is_alone() || (made_inside > 3 && gone > 3), "{made_inside} {gone}");
}
