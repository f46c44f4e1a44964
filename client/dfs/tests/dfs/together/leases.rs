//! Content that lives as long as a client has it open, whoever removes its name and whoever dies.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;

use weir_client::{Context, ObjectId};
use weir_dfs::{ClientId, Lease, Node as Entry, RenewalOutcome, Replace, TURN};
use weir_runtime::random::Random;
use weir_runtime::sim::Node;

use super::{OWNER, Scene, apart, seeds};

/// Turns within which everybody has let go of what nobody has open, and it is freed.
const FREED_WITHIN: u32 = 8;

/// A client with a lease.
struct Client {
    node: Node,
    context: Context,
    id: ClientId,
    /// What it has open.
    open: Rc<RefCell<Vec<ObjectId>>>,
    last: Rc<Cell<Option<RenewalOutcome>>>,
    ends: Rc<Cell<bool>>,
    /// Its lease, unless somebody uses it now.
    lease: Rc<RefCell<Option<Lease>>>,
}

impl Scene {
    /// A client that renews its lease until it is to end.
    fn client(&self, name: &str) -> Client {
        let node = self.cluster.world.node(name);
        let context = self.cluster.context_on(&node, Duration::from_secs(10));
        let (of, container) = (context.clone(), self.dfs.container().clone());
        let lease = self.cluster.world.block_on(&node, async move {
            Lease::begin(&of, &container, b"", |_| false).await.expect("a lease")
        });
        let open: Rc<RefCell<Vec<ObjectId>>> = Rc::default();
        let (last, ends, id) =
            (Rc::<Cell<Option<RenewalOutcome>>>::default(), Rc::<Cell<bool>>::default(), lease.client());
        let (of, opened, turn, end) = (context.clone(), Rc::clone(&open), Rc::clone(&last), Rc::clone(&ends));
        let lease = Rc::new(RefCell::new(Some(lease)));
        let held = Rc::clone(&lease);
        node.handle().spawn(async move {
            while !end.get() {
                of.runtime().sleep(TURN).await;
                let open = opened.borrow().clone();
                let Some(mut lease) = held.take() else { continue };
                let is_open = |all: &[ObjectId]| open.into_iter().filter(|oid| all.contains(oid)).collect();
                if let Ok(taken) = lease.take_turn(&of, is_open).await {
                    turn.set(Some(taken));
                }
                held.replace(Some(lease));
            }
            held.take().expect("unused").end(&of).await.expect("ends");
        });
        Client { node, context, id, open, last, ends, lease }
    }

    /// Claims the right to grant locks for a client.
    fn claims(&self, client: &Client) -> bool {
        let (context, held) = (client.context.clone(), Rc::clone(&client.lease));
        self.cluster.world.block_on(&client.node, async move {
            let mut lease = loop {
                match held.take() {
                    Some(lease) => break lease,
                    None => context.runtime().sleep(Duration::from_millis(1)).await,
                }
            };
            let claimed = lease.claim_locks(&context).await.expect("answers");
            held.replace(Some(lease));
            claimed
        })
    }

    /// Removes a file for a client, or puts another one in its place, and lets go of its content.
    fn remove(&self, client: &Client, name: &'static [u8], replaces: bool) {
        let (context, dfs, a, id) = (client.context.clone(), self.dfs.clone(), self.a.clone(), client.id);
        self.cluster.world.block_on(&client.node, async move {
            let removed = if replaces {
                dfs.create(&context, &a, b"another", OWNER).await.expect("created");
                let renamed = dfs.rename(&context, &a, b"another", &a, name, Replace::Allow).await;
                renamed.expect("renamed").1.expect("replaced")
            } else {
                dfs.unlink(&context, &a, name).await.expect("unlinked")
            };
            dfs.release(&context, &[removed], Some(id)).await.expect("released");
        });
    }

    fn entry(&self, name: &'static [u8]) -> Entry {
        let (context, dfs, a) = (self.context.clone(), self.dfs.clone(), self.a.clone());
        self.cluster.run(async move { dfs.lookup(&context, &a, name).await.expect("there") })
    }

    /// How long the content of a file is that may have no name.
    fn size(&self, entry: &Entry) -> u64 {
        let (context, file) = (self.context.clone(), self.dfs.file(entry).expect("a file"));
        self.cluster.run(async move { file.size_and_epoch(&context).await.expect("a size").0 })
    }

    fn is_orphan(&self, entry: &Entry) -> bool {
        let (context, dfs, oid) = (self.context.clone(), self.dfs.clone(), entry.oid());
        self.cluster.run(async move { dfs.is_orphan(&context, oid).await.expect("answers") })
    }

    fn run_turns(&self, turns: u32) {
        self.cluster.world.run_for(TURN * turns);
    }
}

#[test]
fn a_file_that_another_client_removes_stays_until_it_is_closed() {
    for replaces in [false, true] {
        let scene = Scene::new(1);
        scene.file(&scene.a, b"one");
        let (reader, remover) = (scene.client("reader"), scene.client("remover"));
        let entry = scene.entry(b"one");
        reader.open.borrow_mut().push(entry.oid());
        scene.remove(&remover, b"one", replaces);
        for _ in 0..10 {
            scene.run_turns(FREED_WITHIN);
            assert_eq!(scene.size(&entry), 3, "it is open");
        }
        reader.open.borrow_mut().clear();
        scene.run_turns(FREED_WITHIN);
        assert_eq!(scene.size(&entry), 0, "nobody has it open");
    }
}

#[test]
fn a_client_that_is_alone_frees_what_it_removes_at_once() {
    let scene = Scene::new(2);
    scene.file(&scene.a, b"one");
    scene.file(&scene.a, b"two");
    let remover = scene.client("remover");
    let entry = scene.entry(b"one");
    scene.remove(&remover, b"one", false);
    assert_eq!(scene.size(&entry), 0);
    // Who unmounts holds nothing any more.
    let (gone, entry) = (scene.client("gone"), scene.entry(b"two"));
    gone.ends.set(true);
    scene.run_turns(2);
    scene.remove(&remover, b"two", false);
    assert_eq!(scene.size(&entry), 0);
}

#[test]
fn what_a_dead_client_has_open_is_freed_when_its_lease_has_expired() {
    let scene = Scene::new(3);
    scene.file(&scene.a, b"one");
    let (reader, remover) = (scene.client("reader"), scene.client("remover"));
    let entry = scene.entry(b"one");
    reader.open.borrow_mut().push(entry.oid());
    scene.remove(&remover, b"one", false);
    scene.run_turns(FREED_WITHIN);
    scene.cluster.world.crash(&reader.node);
    scene.run_turns(FREED_WITHIN);
    assert_eq!(scene.size(&entry), 3, "it may only be slow");
    scene.run_turns(30);
    assert_eq!(scene.size(&entry), 0);
    assert!(remover.last.get().expect("a turn").is_alone);
}

#[test]
fn what_a_dead_client_has_removed_is_freed_by_who_is_there_or_comes_next() {
    for comes in [false, true] {
        let scene = Scene::new(4);
        scene.file(&scene.a, b"one");
        let (reader, remover) = (scene.client("reader"), scene.client("remover"));
        let entry = scene.entry(b"one");
        reader.open.borrow_mut().push(entry.oid());
        scene.remove(&remover, b"one", false);
        scene.cluster.world.crash(&remover.node);
        scene.run_turns(30);
        assert_eq!(scene.size(&entry), 3);
        let _next = comes.then(|| scene.client("next"));
        if comes {
            scene.cluster.world.crash(&reader.node);
        } else {
            reader.open.borrow_mut().clear();
        }
        scene.run_turns(30);
        assert_eq!(scene.size(&entry), 0, "comes: {comes}");
    }
}

#[test]
fn a_client_that_was_given_up_is_told() {
    let scene = Scene::new(5);
    let (slow, other) = (scene.client("slow"), scene.client("other"));
    scene.run_turns(2);
    assert!(!slow.last.get().expect("a turn").was_lost);
    let engines: Vec<&Node> = (0..3).map(|rank| scene.cluster.engine(rank)).collect();
    scene.cluster.fabric.partition(&[&slow.node], &engines);
    scene.run_turns(40);
    assert!(other.last.get().expect("a turn").is_alone);
    scene.cluster.fabric.heal();
    let mut was_lost = false;
    for _ in 0..40 {
        scene.run_turns(1);
        was_lost |= slow.last.get().expect("a turn").was_lost;
    }
    assert!(was_lost);
    assert!(!other.last.get().expect("a turn").is_alone, "it has a lease again");
}

#[test]
fn nobody_is_given_up_while_no_engine_is_there() {
    let scene = Scene::new(6);
    scene.file(&scene.a, b"one");
    let (reader, remover) = (scene.client("reader"), scene.client("remover"));
    let entry = scene.entry(b"one");
    reader.open.borrow_mut().push(entry.oid());
    scene.remove(&remover, b"one", false);
    for rank in 0..3 {
        scene.cluster.schedule_crash(rank, Duration::from_millis(10), Duration::from_mins(10));
    }
    scene.cluster.world.run_for(Duration::from_mins(11));
    scene.run_turns(40);
    assert_eq!(scene.size(&entry), 3);
    assert!(!remover.last.get().expect("a turn").is_alone);
}

#[test]
fn who_opens_a_file_while_another_client_removes_it_has_all_of_it_or_finds_no_name() {
    let (mut kept, mut gone) = (0, 0);
    for seed in seeds(2) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let (reader, remover) = (scene.client("reader"), scene.client("remover"));
        let entry = scene.entry(b"one");
        let random = Random::new(seed);
        // Counted as open before its name is looked for, as a mount does.
        let (context, dfs, a, open) =
            (reader.context.clone(), scene.dfs.clone(), scene.a.clone(), Rc::clone(&reader.open));
        let (after, oid, found) = (apart(&random), entry.oid(), Rc::new(Cell::new(false)));
        let looked = Rc::clone(&found);
        reader.node.handle().spawn(async move {
            context.runtime().sleep(after).await;
            open.borrow_mut().push(oid);
            looked.set(dfs.lookup(&context, &a, b"one").await.is_ok());
            if !looked.get() {
                open.borrow_mut().clear();
            }
        });
        let (context, dfs, a, id) = (remover.context.clone(), scene.dfs.clone(), scene.a.clone(), remover.id);
        let after = apart(&random);
        remover.node.handle().spawn(async move {
            context.runtime().sleep(after).await;
            let orphan = dfs.unlink(&context, &a, b"one").await.expect("unlinked");
            dfs.release(&context, &[orphan], Some(id)).await.expect("released");
        });
        scene.run_turns(30);
        assert_eq!(scene.size(&entry), if found.get() { 3 } else { 0 }, "seed {seed}");
        *(if found.get() { &mut kept } else { &mut gone }) += 1;
    }
    assert!(crate::is_alone() || (kept > 3 && gone > 3), "{kept} {gone}");
}

#[test]
fn who_has_a_file_open_that_loses_its_name_learns_whether_it_was_removed() {
    for seed in seeds(2) {
        let scene = Scene::new(seed);
        scene.file(&scene.a, b"one");
        let (reader, other) = (scene.client("reader"), scene.client("other"));
        let entry = scene.entry(b"one");
        reader.open.borrow_mut().push(entry.oid());
        let (random, removes) = (Random::new(seed), seed % 2 == 0);
        let (context, dfs, a, id) = (other.context.clone(), scene.dfs.clone(), scene.a.clone(), other.id);
        let after = apart(&random);
        other.node.handle().spawn(async move {
            context.runtime().sleep(after).await;
            if removes {
                let orphan = dfs.unlink(&context, &a, b"one").await.expect("unlinked");
                dfs.release(&context, &[orphan], Some(id)).await.expect("released");
            } else {
                dfs.rename(&context, &a, b"one", &a, b"two", Replace::Allow).await.expect("renamed");
            }
        });
        let (context, dfs, of) = (reader.context.clone(), scene.dfs.clone(), entry.clone());
        let found = scene.cluster.world.block_on(&reader.node, async move {
            while dfs.stat(&context, &of).await.is_ok() {
                context.runtime().sleep(Duration::from_millis(1)).await;
            }
            // Well before the next turn.
            for _ in 0..100 {
                if dfs.is_orphan(&context, of.oid()).await.expect("answers") {
                    return true;
                }
                context.runtime().sleep(Duration::from_millis(2)).await;
            }
            false
        });
        assert_eq!(found, removes, "seed {seed}");
        scene.run_turns(FREED_WITHIN);
        assert_eq!(scene.is_orphan(&entry), removes, "it is open");
        reader.open.borrow_mut().clear();
        scene.run_turns(FREED_WITHIN);
        assert!(!scene.is_orphan(&entry), "it is freed");
    }
}

#[test]
fn what_its_remover_has_open_itself_stays_for_all_and_is_known_to_be_removed() {
    for reader_goes_first in [false, true] {
        let scene = Scene::new(10);
        scene.file(&scene.a, b"one");
        let (reader, remover) = (scene.client("reader"), scene.client("remover"));
        let entry = scene.entry(b"one");
        reader.open.borrow_mut().push(entry.oid());
        remover.open.borrow_mut().push(entry.oid());
        let (context, dfs, a, id) = (remover.context.clone(), scene.dfs.clone(), scene.a.clone(), remover.id);
        let is_shared = scene.cluster.world.block_on(&remover.node, async move {
            let orphan = dfs.unlink(&context, &a, b"one").await.expect("unlinked");
            dfs.announce(&context, &[orphan], id).await.expect("announced")
        });
        assert!(is_shared && scene.is_orphan(&entry));
        let (first, last) = if reader_goes_first { (&reader, &remover) } else { (&remover, &reader) };
        scene.run_turns(FREED_WITHIN);
        first.open.borrow_mut().clear();
        scene.run_turns(2 * FREED_WITHIN);
        assert_eq!(scene.size(&entry), 3, "one has it open");
        last.open.borrow_mut().clear();
        scene.run_turns(FREED_WITHIN);
        assert_eq!(scene.size(&entry), 0);
        assert!(!scene.is_orphan(&entry));
    }
}

#[test]
fn one_client_grants_locks_as_long_as_it_is_there() {
    let scene = Scene::new(7);
    let (first, second) = (scene.client("first"), scene.client("second"));
    assert!(scene.claims(&first) && !scene.claims(&second));
    scene.run_turns(50);
    assert!(!scene.claims(&second) && scene.claims(&first));
    first.ends.set(true);
    scene.run_turns(3);
    assert!(scene.claims(&second));
}

#[test]
fn who_died_long_ago_is_waited_for_no_longer_than_a_client_takes_that_is_alive() {
    for is_alive in [false, true] {
        let scene = Scene::new(8);
        let first = scene.client("first");
        assert!(scene.claims(&first));
        if is_alive {
            // It comes back with the engines.
            for rank in 0..3 {
                scene.cluster.schedule_crash(rank, Duration::from_millis(10), Duration::from_mins(10));
            }
            scene.cluster.world.run_for(Duration::from_mins(10));
        } else {
            scene.cluster.world.crash(&first.node);
            assert!(!scene.claims(&scene.client("early")), "it may be alive");
            scene.run_turns(40);
        }
        assert_eq!(scene.claims(&scene.client("late")), !is_alive);
    }
}

#[test]
fn who_was_given_up_and_has_lost_its_right_is_told_and_who_has_not_goes_on() {
    for taken in [true, false] {
        let scene = Scene::new(9);
        let (slow, other) = (scene.client("slow"), scene.client("other"));
        assert!(scene.claims(&slow));
        let engines: Vec<&Node> = (0..3).map(|rank| scene.cluster.engine(rank)).collect();
        scene.cluster.fabric.partition(&[&slow.node], &engines);
        scene.run_turns(40);
        assert!(other.last.get().expect("a turn").is_alone);
        assert!(!taken || scene.claims(&other));
        scene.cluster.fabric.heal();
        scene.run_turns(40);
        assert_eq!(slow.last.get().expect("a turn").lost_locks, taken);
        assert_eq!(scene.claims(&slow), !taken);
    }
}
