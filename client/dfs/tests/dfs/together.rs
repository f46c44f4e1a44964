//! Clients that change the same names at the same moment, and clients and engines that die in the middle: whatever happens, it
//! is what some order of the operations would have done.

mod attributes;
use crate::cluster;
mod content;
mod exchange;
mod leases;
mod links;
mod making;
mod refusals;

use core::cell::RefCell;
use core::time::Duration;
use std::ops::Range;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{AkeyRead, AkeyWrite, Conditions, ContainerType, Context, Key, Object, ObjectId};
use weir_dfs::{Dfs, Error, Node as Entry, Ownership, Replace, XattrMode};
use weir_runtime::random::Random;
use weir_runtime::sim::Node;

const MINUTE: Duration = Duration::from_mins(1);
const OWNER: Ownership = Ownership { mode: 0o755, uid: 1000, gid: 1000 };

/// How far apart two clients begin, at most: about as long as what they do takes.
const APART_US: u64 = 3000;

/// One in `part` of the seeds.
fn seeds(part: u64) -> Range<u64> {
    crate::seeds(60, part)
}

/// What comes of something that runs elsewhere.
type Outcome<T> = Rc<RefCell<Option<T>>>;

/// Two directories, `a` and `b`.
struct Scene {
    cluster: Rc<Cluster>,
    context: Context,
    dfs: Dfs,
    a: Entry,
    b: Entry,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let cluster = Rc::new(Cluster::start(seed, 3, 2));
        let context = cluster.context(MINUTE);
        let of = context.clone();
        let (dfs, a, b) = cluster.run(async move {
            let container = open_container(&of, properties("home", ContainerType::Posix)).await;
            let dfs = Dfs::mount(&of, &container).await.expect("mounts");
            let a = dfs.mkdir(&of, dfs.root(), b"a", OWNER).await.expect("made");
            let b = dfs.mkdir(&of, dfs.root(), b"b", OWNER).await.expect("made");
            (dfs, a, b)
        });
        Self { cluster, context, dfs, a, b }
    }

    /// Makes a file whose content is its name.
    fn file(&self, directory: &Entry, name: &'static [u8]) {
        let (context, dfs, directory) = (self.context.clone(), self.dfs.clone(), directory.clone());
        self.cluster.run(async move {
            let node = dfs.create(&context, &directory, name, OWNER).await.expect("created");
            dfs.file(&node).expect("a file").write(&context, 0, name).await.expect("written");
        });
    }

    /// Runs something on a node of its own after a while, and keeps what comes of it.
    fn start<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        name: &str,
        after: Duration,
        work: impl FnOnce(Context) -> F + 'static,
    ) -> (Node, Outcome<T>) {
        let node = self.cluster.world.node(name);
        let context = self.cluster.context_on(&node, MINUTE);
        let outcome = Rc::new(RefCell::new(None));
        let result = Rc::clone(&outcome);
        node.handle().spawn(async move {
            context.runtime().sleep(after).await;
            let done = work(context).await;
            result.replace(Some(done));
        });
        (node, outcome)
    }

    /// A client dies after a while. In every second seed an engine does, too, at about that time, and comes back.
    fn die(&self, doomed: Node, at: Duration, (seed, random): (u64, &Random)) {
        let world = self.cluster.world.clone();
        self.cluster.world.schedule(at, move || world.crash(&doomed));
        if seed % 2 == 0 {
            let rank = u32::try_from(random.below(3)).expect("few");
            let down = Duration::from_millis(5 + random.below(50));
            self.cluster.schedule_crash(rank, at + Duration::from_micros(random.below(500)), down);
        }
        self.cluster.world.run_for(Duration::from_secs(30));
    }

    /// What stands at a name: nothing, or a file and what is in it.
    fn content(&self, directory: &Entry, name: &'static [u8]) -> Option<Vec<u8>> {
        let (context, dfs, directory) = (self.context.clone(), self.dfs.clone(), directory.clone());
        self.cluster.run(async move {
            match dfs.lookup(&context, &directory, name).await {
                Ok(node) => {
                    let mut bytes = [0; 64];
                    let file = dfs.file(&node).expect("a file");
                    let len = file.read(&context, 0, &mut bytes, None).await.expect("read");
                    Some(bytes[..len].to_vec())
                }
                Err(Error::NotFound(_)) => None,
                Err(error) => panic!("{error}"),
            }
        })
    }
}

fn apart(random: &Random) -> Duration {
    Duration::from_micros(random.below(APART_US))
}

/// Takes from a directory what it has of its parent, as somebody does who ends in the middle of making it.
async fn lose_parent(context: &Context, dfs: &Dfs, directory: &Entry) {
    let object = Object::open(dfs.container(), directory.oid()).expect("opens");
    let parent = Key::new(b"..").expect("a key");
    object.punch_dkey_with(context, &parent, core::slice::from_ref(&parent)).await.expect("punched");
}

async fn unlink(context: &Context, dfs: &Dfs, directory: &Entry, name: &[u8]) -> Result<(), Error> {
    let removed = dfs.unlink(context, directory, name).await?;
    dfs.reclaim(context, &removed).await
}

#[test]
fn a_rename_whose_client_dies_has_happened_or_not() {
    let (mut before, mut after) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        scene.file(&scene.b, b"two");
        let random = Random::new(seed);
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (doomed, _) = scene.start("doomed", Duration::ZERO, async move |context| {
            dfs.rename(&context, &a, b"one", &b, b"two", Replace::Allow).await.map(drop)
        });
        scene.die(doomed, apart(&random), (seed, &random));
        match (scene.content(&scene.a, b"one"), scene.content(&scene.b, b"two")) {
            (Some(one), Some(two)) if one == b"one" && two == b"two" => before += 1,
            (None, Some(one)) if one == b"one" => after += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(crate::is_alone() || (before > 3 && after > 3), "{before} {after}");
}

#[test]
fn a_file_that_is_renamed_and_removed_at_once_is_whole_or_gone() {
    let (mut moved, mut gone) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let random = Random::new(seed);
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (_, renamed) = scene.start("mover", apart(&random), async move |context| {
            dfs.rename(&context, &a, b"one", &b, b"new", Replace::Allow).await.map(drop)
        });
        let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
        let (_, removed) = scene
            .start("remover", apart(&random), async move |context| unlink(&context, &dfs, &a, b"one").await);
        scene.cluster.world.run_for(MINUTE);
        let (renamed, removed) = (renamed.take().expect("an end"), removed.take().expect("an end"));
        assert_eq!(scene.content(&scene.a, b"one"), None, "seed {seed}");
        match (renamed, removed, scene.content(&scene.b, b"new")) {
            (Ok(()), Err(Error::NotFound(_)), Some(content)) if content == b"one" => moved += 1,
            (Err(Error::NotFound(_)), Ok(()), None) => gone += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(crate::is_alone() || (moved > 3 && gone > 3), "{moved} {gone}");
}

#[test]
fn an_entry_that_comes_while_its_directory_goes_is_there_or_was_refused() {
    let (mut kept, mut refused) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        scene.file(&scene.b, b"one");
        let random = Random::new(seed);
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let moves = seed % 2 == 0;
        let (_, added) = scene.start("adder", apart(&random), async move |context| {
            if moves {
                return dfs.rename(&context, &b, b"one", &a, b"new", Replace::Allow).await.map(drop);
            }
            dfs.create(&context, &a, b"new", OWNER).await.map(drop)
        });
        let dfs = scene.dfs.clone();
        let (_, removed) = scene.start("remover", apart(&random), async move |context| {
            let removed = dfs.rmdir(&context, dfs.root(), b"a").await?;
            dfs.reclaim(&context, &removed).await
        });
        scene.cluster.world.run_for(MINUTE);
        let (added, removed) = (added.take().expect("an end"), removed.take().expect("an end"));
        match (added, removed) {
            (Ok(()), Err(Error::NotEmpty(_))) => {
                assert!(scene.content(&scene.a, b"new").is_some(), "seed {seed}: it is lost");
                kept += 1;
            }
            (Err(Error::NotFound(_)), Ok(())) => {
                assert_eq!(scene.content(&scene.b, b"one"), Some(b"one".to_vec()), "seed {seed}");
                refused += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(crate::is_alone() || (kept > 3 && refused > 3), "{kept} {refused}");
}

#[test]
fn directories_that_are_moved_into_each_other_at_once_stay_reachable() {
    let mut won = [0, 0];
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        let random = Random::new(seed);
        let mover = |name: &str, from: &'static [u8], to: &Entry| {
            let (dfs, to) = (scene.dfs.clone(), to.clone());
            let (_, outcome) = scene.start(name, apart(&random), async move |context| {
                let root = dfs.root().clone();
                dfs.rename(&context, &root, from, &to, b"inner", Replace::Allow).await.map(drop)
            });
            outcome
        };
        let ends = [mover("first", b"a", &scene.b), mover("second", b"b", &scene.a)];
        scene.cluster.world.run_for(MINUTE);
        let [first, second] = ends.map(|end| end.take().expect("an end"));
        match (first, second) {
            (Ok(()), Err(Error::Invalid(_) | Error::NotFound(_))) => won[0] += 1,
            (Err(Error::Invalid(_) | Error::NotFound(_)), Ok(())) => won[1] += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(crate::is_alone() || won.iter().all(|count| *count > 3), "{won:?}");
}

#[test]
fn a_client_whose_clock_is_behind_sees_what_others_did_before() {
    const BEHIND_NS: i64 = -400_000_000;
    for seed in 0..6 {
        let scene = Scene::new(seed);
        scene.file(&scene.b, b"one");
        let node = scene.cluster.world.node("behind");
        node.set_clock_skew(BEHIND_NS);
        let late = scene.cluster.context_on(&node, MINUTE);
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            let root = dfs.root().clone();
            dfs.rename(&late, &b, b"one", &a, b"two", Replace::Refuse).await.expect("it is there");
            let there = dfs.rmdir(&late, &root, b"a").await.expect_err("it has an entry");
            assert!(matches!(there, Error::NotEmpty(_)), "{there}");
            unlink(&context, &dfs, &a, b"two").await.expect("removed");
            let removed = dfs.rmdir(&late, &root, b"a").await.expect("it is empty");
            dfs.reclaim(&late, &removed).await.expect("reclaimed");
            dfs.create(&context, &b, b"new", OWNER).await.expect("created");
            let taken =
                dfs.rename(&late, &root, b"b", &root, b"b", Replace::Refuse).await.expect("nothing to do");
            assert_eq!(taken.0.oid(), b.oid());
            let full = dfs.rmdir(&late, &root, b"b").await.expect_err("it has an entry");
            assert!(matches!(full, Error::NotEmpty(_)), "{full}");
        });
    }
}

/// Mail is delivered so: files are made in one directory and moved to another one all the time, which somebody lists.
#[test]
fn a_directory_can_be_listed_while_files_are_moved_there_all_the_time() {
    const MOVERS: u64 = 8;
    let mut longest = Duration::ZERO;
    for seed in seeds(10) {
        let scene = Scene::new(seed);
        let names: Vec<String> = (0..MOVERS).map(|number| format!("f{number}")).collect();
        let (context, dfs, a, owned) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), names.clone());
        scene.cluster.run(async move {
            for name in owned {
                dfs.create(&context, &a, name.as_bytes(), OWNER).await.expect("created");
            }
        });
        let movers: Vec<_> = names
            .into_iter()
            .map(|name| {
                let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
                let (_, end) = scene.start(&format!("mover-{name}"), Duration::ZERO, async move |context| {
                    for _ in 0..20 {
                        let name = name.as_bytes();
                        dfs.rename(&context, &a, name, &b, name, Replace::Allow).await.expect("moved");
                        dfs.rename(&context, &b, name, &a, name, Replace::Allow).await.expect("moved back");
                    }
                });
                end
            })
            .collect();
        let (context, dfs, b) = (scene.context.clone(), scene.dfs.clone(), scene.b.clone());
        let waited = scene.cluster.run(async move {
            let mut longest = Duration::ZERO;
            while movers.iter().any(|end| end.borrow().is_none()) {
                let began = context.runtime().now();
                let mut stream = dfs.open_directory(&b).expect("a directory");
                dfs.read_directory(&context, &mut stream, 0, 100).await.expect("listed");
                longest = longest.max(context.runtime().now() - began);
                context.runtime().sleep(Duration::from_millis(1)).await;
            }
            longest
        });
        longest = longest.max(waited);
    }
    assert!(longest < Duration::from_millis(50), "a listing took {longest:?}");
}

#[test]
fn extended_attributes_of_any_size_follow_a_rename() {
    for (seed, sizes) in [(1, &[10, 20][..]), (2, &[60_000, 9, 40_000]), (3, &[100; 100])] {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        scene.file(&scene.b, b"two");
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            let name = |number: usize| format!("user.{number}").into_bytes();
            let mut one = dfs.lookup(&context, &a, b"one").await.expect("there");
            for (number, size) in sizes.iter().enumerate() {
                let value = vec![7; *size];
                one =
                    dfs.set_xattr(&context, &one, &name(number), &value, XattrMode::Any).await.expect("set");
            }
            let two = dfs.lookup(&context, &b, b"two").await.expect("there");
            dfs.set_xattr(&context, &two, b"user.old", b"x", XattrMode::Any).await.expect("set");
            let renamed = dfs.rename(&context, &a, b"one", &b, b"two", Replace::Allow).await;
            let (moved, replaced) = renamed.expect("renamed");
            dfs.reclaim(&context, &replaced.expect("the other one")).await.expect("reclaimed");
            dfs.remove_xattr(&context, &moved, &name(0)).await.expect("removed");
            // What was removed doesn't come back from where the inode was before.
            let (there, _) =
                dfs.rename(&context, &b, b"two", &a, b"one", Replace::Refuse).await.expect("renamed");
            let mut expected: Vec<Vec<u8>> = (1..sizes.len()).map(name).collect();
            expected.sort();
            assert_eq!(dfs.list_xattrs(&context, &there).await.expect("listed"), expected);
            for (number, size) in sizes.iter().enumerate().skip(1) {
                let value = dfs.get_xattr(&context, &there, &name(number)).await.expect("there");
                assert_eq!(value, vec![7; *size]);
            }
        });
    }
}

/// Extended attributes that don't go along with a rename, but are put to the new name first.
async fn set_large_attribute(context: &Context, dfs: &Dfs, directory: &Entry, name: &[u8]) {
    let node = dfs.lookup(context, directory, name).await.expect("there");
    dfs.set_xattr(context, &node, b"user.large", &[7; 9000], XattrMode::Any).await.expect("set");
}

/// File `one` of directory `a` with such an attribute.
fn scene_with_large_attribute(seed: u64) -> Scene {
    let scene = Scene::new(seed);
    scene.file(&scene.a, b"one");
    let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
    scene.cluster.run(async move { set_large_attribute(&context, &dfs, &a, b"one").await });
    scene
}

#[test]
fn a_file_with_large_attributes_is_not_moved_to_a_directory_that_is_gone() {
    let scene = scene_with_large_attribute(1);
    let (context, dfs, a, b) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
    scene.cluster.run(async move {
        let removed = dfs.rmdir(&context, dfs.root(), b"b").await.expect("removed");
        dfs.reclaim(&context, &removed).await.expect("reclaimed");
        let gone =
            dfs.rename(&context, &a, b"one", &b, b"two", Replace::Allow).await.expect_err("it is gone");
        assert!(matches!(gone, Error::NotFound(_)), "{gone}");
        dfs.lookup(&context, &a, b"one").await.expect("where it was");
    });
}

#[test]
fn large_attributes_survive_clients_that_rename_the_same_and_ends_that_are_not_known() {
    for seed in seeds(2) {
        let scene = scene_with_large_attribute(seed);
        let movers = if seed % 2 == 0 { 2 } else { 1 };
        for number in 0..movers {
            let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
            let after = Duration::from_micros(number * seed * 75);
            scene.start(&format!("mover-{number}"), after, async move |context| {
                context.set_deadline(Duration::from_secs(20));
                dfs.rename(&context, &a, b"one", &b, b"two", Replace::Allow).await.map(drop)
            });
        }
        if movers == 1 {
            // All power is lost for longer than the client waits.
            for rank in 0..3 {
                let after = Duration::from_micros(2000 + seed * 100);
                scene.cluster.schedule_crash(rank, after, Duration::from_secs(25));
            }
        }
        scene.cluster.world.run_for(Duration::from_mins(2));
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            let there = match dfs.lookup(&context, &b, b"two").await {
                Err(Error::NotFound(_)) => {
                    dfs.lookup(&context, &a, b"one").await.expect("at one of its names")
                }
                there => there.expect("answers"),
            };
            let value = dfs.get_xattr(&context, &there, b"user.large").await;
            assert_eq!(value.expect("it is kept").len(), 9000, "seed {seed}");
        });
    }
}

#[test]
fn large_attributes_survive_clients_that_rename_there_and_back() {
    for seed in seeds(2) {
        let scene = scene_with_large_attribute(seed);
        let random = Random::new(seed);
        let movers: Vec<_> = (0..3)
            .map(|number| {
                let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
                let (_, end) =
                    scene.start(&format!("mover-{number}"), apart(&random), async move |context| {
                        for _ in 0..4 {
                            for (from, name, to, new) in [(&a, b"one", &b, b"two"), (&b, b"two", &a, b"one")]
                            {
                                match dfs.rename(&context, from, name, to, new, Replace::Refuse).await {
                                    Ok(_) | Err(Error::NotFound(_)) => {}
                                    Err(error) => panic!("seed {seed}: {error}"),
                                }
                            }
                        }
                    });
                end
            })
            .collect();
        scene.cluster.world.run_for(MINUTE);
        assert!(movers.iter().all(|end| end.borrow().is_some()), "seed {seed}");
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            let there = match dfs.lookup(&context, &b, b"two").await {
                Err(Error::NotFound(_)) => dfs.lookup(&context, &a, b"one").await,
                there => there,
            };
            let value = dfs.get_xattr(&context, &there.expect("at one of its names"), b"user.large").await;
            assert_eq!(value.expect("it is kept").len(), 9000, "seed {seed}");
        });
    }
}

#[test]
fn a_directory_that_is_not_whole_is_mended_or_removed_but_not_both() {
    for seed in 0..80 {
        let scene = Scene::new(seed);
        let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
        scene.cluster.run(async move {
            // What its maker leaves behind that dies in the middle: the entry alone.
            let object = Object::open(dfs.container(), a.oid()).expect("opens");
            object.punch(&context).await.expect("punched");
        });
        let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
        let (_, made) = scene.start("maker", Duration::ZERO, async move |context| {
            dfs.create(&context, &a, b"new", OWNER).await.map(drop)
        });
        let dfs = scene.dfs.clone();
        let after = Duration::from_micros(seed * 20);
        let (_, removed) = scene.start("remover", after, async move |context| {
            dfs.rmdir(&context, dfs.root(), b"a").await.map(drop)
        });
        scene.cluster.world.run_for(MINUTE);
        let (made, removed) = (made.take().expect("an end"), removed.take().expect("an end"));
        assert!(made.is_ok() != removed.is_ok(), "seed {seed}: {made:?} {removed:?}");
    }
}

#[test]
fn a_directory_that_is_moved_or_removed_as_soon_as_it_is_seen_stays_so() {
    let (mut moved, mut removed) = (0, 0);
    for seed in seeds(1) {
        let scene = Scene::new(seed);
        let random = Random::new(seed);
        let (dfs, a) = (scene.dfs.clone(), scene.a.clone());
        let (_, made) = scene.start("maker", Duration::from_millis(1), async move |context| {
            dfs.mkdir(&context, &a, b"new", OWNER).await.map(drop)
        });
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        let (_, seen) = scene.start("other", Duration::ZERO, async move |context| {
            let node = loop {
                match dfs.lookup(&context, &a, b"new").await {
                    Err(Error::NotFound(_)) => {}
                    found => break found.expect("answers"),
                }
            };
            if seed % 2 == 0 {
                dfs.rename(&context, &a, b"new", &b, b"new", Replace::Allow).await.expect("moved");
            } else {
                dfs.rmdir(&context, &a, b"new").await.map(drop).expect("removed");
            }
            node
        });
        // So that the parts of it don't come at the same time.
        let rank = u32::try_from(random.below(3)).expect("few");
        let (at, down) = (1000 + random.below(500), 5 + random.below(20));
        scene.cluster.schedule_crash(rank, Duration::from_micros(at), Duration::from_millis(down));
        scene.cluster.world.run_for(MINUTE);
        made.take().expect("an end").expect("made");
        let (context, dfs, b) = (scene.context.clone(), scene.dfs.clone(), scene.b.clone());
        let node = seen.take().expect("an end");
        assert_eq!(scene.content(&scene.a, b"new"), None, "seed {seed}");
        if seed % 2 == 0 {
            let parent =
                scene.cluster.run(async move { dfs.parent_of(&context, node.oid()).await.expect("known") });
            assert_eq!(parent, Some(b.oid()), "seed {seed}");
            moved += 1;
        } else {
            // Somebody who has seen it before.
            let gone = scene.cluster.run(async move { dfs.create(&context, &node, b"f", OWNER).await });
            assert!(matches!(gone, Err(Error::NotFound(_))), "seed {seed}: {gone:?}");
            removed += 1;
        }
    }
    assert!(crate::is_alone() || (moved > 3 && removed > 3), "{moved} {removed}");
}

#[test]
fn a_directory_that_could_not_be_made_leaves_nothing() {
    let scene = Scene::new(3);
    let (context, dfs, a) = (scene.context.clone(), scene.dfs.clone(), scene.a.clone());
    scene.cluster.run(async move {
        let first = dfs.mkdir(&context, &a, b"new", OWNER).await.expect("made");
        let taken = dfs.mkdir(&context, &a, b"new", OWNER).await.expect_err("there is one");
        assert!(matches!(taken, Error::Exists(_)), "{taken}");
        let tried = ObjectId { lo: first.oid().lo + 1, ..first.oid() };
        let gone = dfs.parent_of(&context, tried).await.expect_err("discarded");
        assert!(matches!(gone, Error::Stale(_)), "{gone}");
        assert_eq!(dfs.parent_of(&context, first.oid()).await.expect("known"), Some(a.oid()));
    });
}

/// Gives an inode a second name, as a client left it that died between the two steps that a rename had once.
async fn name_twice(context: &Context, dfs: &Dfs, node: &Entry, directory: &Entry, name: &[u8]) {
    let key = |bytes: &[u8]| Key::new(bytes).expect("a key");
    let open = |oid| Object::open(dfs.container(), oid).expect("opens");
    let mut record = [0; 500];
    let mut reads = [AkeyRead::single(key(b"i"), &mut record)];
    let from = open(node.parent);
    let found = from.fetch(context, &key(&node.name), Conditions::NONE, &mut reads).await.expect("read");
    let len = usize::try_from(found[0].size).expect("small");
    let guard = [b"g", &node.oid().to_bytes()[..]].concat();
    let writes = [AkeyWrite::single(key(b"i"), &record[..len]), AkeyWrite::single(key(&guard), &[1])];
    let to = open(directory.oid());
    to.update(context, &key(name), Conditions::NONE, &writes).await.expect("written");
}

#[test]
fn an_inode_with_two_names_has_one_after_a_rename_to_the_other() {
    for is_back in [false, true] {
        let scene = Scene::new(1);
        scene.file(&scene.a, b"file");
        let (context, dfs, a, b) =
            (scene.context.clone(), scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            let file = dfs.lookup(&context, &a, b"file").await.expect("there");
            let inner = dfs.mkdir(&context, &a, b"inner", OWNER).await.expect("made");
            dfs.create(&context, &inner, b"in it", OWNER).await.expect("created");
            for node in [&file, &inner] {
                name_twice(&context, &dfs, node, &b, b"new").await;
                let names = [(&a, &node.name[..]), (&b, &b"new"[..])];
                let [from, to] = if is_back { [names[1], names[0]] } else { names };
                let renamed = dfs.rename(&context, from.0, from.1, to.0, to.1, Replace::Allow).await;
                let (there, replaced) = renamed.expect("renamed");
                assert_eq!((there.oid(), there.parent, &there.name[..]), (node.oid(), to.0.oid(), to.1));
                assert!(replaced.is_none(), "its content would be reclaimed");
                let gone = dfs.lookup(&context, from.0, from.1).await.expect_err("moved");
                assert!(matches!(gone, Error::NotFound(_)), "{gone}");
                let found = dfs.lookup(&context, to.0, to.1).await.expect("there");
                assert_eq!(found.oid(), node.oid());
                if node.is_directory() {
                    let parent = dfs.parent_of(&context, node.oid()).await.expect("known");
                    assert_eq!(parent, Some(to.0.oid()));
                    dfs.lookup(&context, &found, b"in it").await.expect("there");
                } else {
                    let mut bytes = [0; 9];
                    let file = dfs.file(&found).expect("a file");
                    let len = file.read(&context, 0, &mut bytes, None).await.expect("read");
                    assert_eq!(&bytes[..len], b"file");
                    unlink(&context, &dfs, to.0, to.1).await.expect("out of the way");
                }
            }
        });
    }
}

#[test]
fn a_client_whose_clock_is_behind_gets_its_turn_under_load() {
    for (seed, behind_ms) in [(0, 5), (4, 10), (5, 20), (1, 50)] {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        scene.file(&scene.b, b"two");
        let stop = Rc::new(core::cell::Cell::new(false));
        for number in 0..20 {
            let (dfs, b, stop) = (scene.dfs.clone(), scene.b.clone(), Rc::clone(&stop));
            scene.start(&format!("other-{number}"), Duration::ZERO, async move |context| {
                while !stop.get() {
                    if number < 8 {
                        let _ = dfs.lookup(&context, &b, b"two").await;
                        context.runtime().sleep(Duration::from_millis(1)).await;
                    } else {
                        let name = format!("w{number}");
                        let _ = dfs.create(&context, &b, name.as_bytes(), OWNER).await;
                        let _ = dfs.unlink(&context, &b, name.as_bytes()).await;
                        context.runtime().sleep(Duration::from_millis(4)).await;
                    }
                }
            });
        }
        let node = scene.cluster.world.node("behind");
        node.set_clock_skew(-behind_ms * 1_000_000);
        let late = scene.cluster.context_on(&node, Duration::from_secs(10));
        let (dfs, a, b) = (scene.dfs.clone(), scene.a.clone(), scene.b.clone());
        scene.cluster.run(async move {
            late.runtime().sleep(Duration::from_millis(60)).await;
            let renamed = dfs.rename(&late, &a, b"one", &b, b"two", Replace::Allow).await;
            stop.set(true);
            renamed.unwrap_or_else(|error| panic!("{behind_ms} ms behind: {error}"));
        });
    }
}
