//! Clients that change the length of a file at the same moment.

use core::time::Duration;

use weir_runtime::random::Random;

use super::{Scene, apart, seeds};

/// How long the file is at first, and what is appended to it; all within one chunk, and over several.
const SIZES: [(usize, usize); 2] = [(100, 300), (2_500_000, 1_500_000)];

#[derive(Clone, Copy, Debug)]
enum Way {
    Hole,
    Reserve,
}

/// One client makes a hole at the end of a file, or room behind it, while another one appends to it.
fn append_beside(way: Way) {
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let (size, more) = SIZES[usize::from(seed % 2 == 1)];
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        let node = scene.cluster.run(async move {
            let node = dfs.lookup(&context, &a, b"one").await.expect("there");
            dfs.file(&node).expect("a file").write(&context, 0, &vec![1; size]).await.expect("written");
            node
        });
        let start = |name: &str, after: Duration| {
            let (file, append) = (scene.dfs.file(&node).expect("a file"), name == "appender");
            let (_, end) = scene.start(name, after, async move |context| {
                let (at, len) = (size as u64, more as u64);
                match way {
                    _ if append => file.write(&context, at, &vec![2; more]).await.map(drop),
                    Way::Hole => file.punch_hole(&context, at / 2, 2 * len).await,
                    Way::Reserve => file.lengthen(&context, at + len / 2).await.map(drop),
                }
            });
            end
        };
        let changed = start("changer", apart(&random) / 2);
        let appended = start("appender", apart(&random) / 2);
        let (context, file) = (scene.context.clone(), scene.dfs.file(&node).expect("a file"));
        scene.cluster.run(async move {
            while changed.borrow().is_none() || appended.borrow().is_none() {
                let (now, _) = file.size_and_epoch(&context).await.expect("a size");
                assert!(now >= size as u64, "seed {seed}: {now}");
                context.runtime().sleep(Duration::from_micros(100)).await;
            }
            changed.take().expect("an end").expect("changed");
            appended.take().expect("an end").expect("appended");
            let mut found = vec![0; size + more + 1];
            let len = file.read(&context, 0, &mut found, None).await.expect("read");
            assert_eq!(len, size + more, "seed {seed}");
            assert!(found[..size / 2].iter().all(|byte| *byte == 1), "seed {seed}");
            match way {
                // The hole may be behind what was appended, and be made in it.
                Way::Hole => assert!(found[size / 2..size].iter().all(|byte| *byte == 0), "seed {seed}"),
                Way::Reserve => assert!(found[size..len - 1].iter().filter(|byte| **byte != 2).count() <= 1),
            }
        });
    }
}

#[test]
fn a_hole_at_the_end_of_a_file_cuts_nothing_off_that_others_append() {
    append_beside(Way::Hole);
}

#[test]
fn who_makes_a_file_longer_cuts_nothing_off_that_others_append() {
    append_beside(Way::Reserve);
}
