//! Engines are killed or stopped, and start again, one after another, while clients write files, give them names in the place of
//! others, and read them: nothing fails, and nothing waits longer than the pool takes to be whole again.

use crate::cluster;

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use cluster::{Cluster, POOL, open_container, properties};
use weir_client::{ContainerProperties, ContainerType, Context, serve_replicas_here};
use weir_dfs::{Dfs, Error, Node, Ownership, Replace};
use weir_runtime::random::Random;
use weir_store::StoreConfig;

const OWNER: Ownership = Ownership { mode: 0o644, uid: 1000, gid: 1000 };

/// How long a client tries: an operation that takes that long hangs.
const PATIENCE: Duration = Duration::from_mins(2);

const ENGINES: u32 = 3;
const TARGETS: u32 = 2;
const WRITERS: u64 = 3;

/// Names that each writer uses in turn.
const NAMES: u64 = 4;

/// What is drawn for seed 0: with it a leader forgets a change that nobody reads before that leader serves again.
const FIRST: u64 = 6;

/// How often each engine stops.
const ROUNDS: u64 = 2;

/// Longest time that an engine is away: some are missed, and some are not.
const AWAY_MAX_US: u64 = 9_000_000;

/// Longest pause between the return of an engine and the next stop.
const PAUSE_MAX_US: u64 = 4_000_000;

/// Longest time until all targets have all data when engines are back.
const WHOLE_MAX: Duration = Duration::from_mins(1);

fn content(writer: u64, number: u64) -> Vec<u8> {
    let len = [100, 5000, 20_000, 70_000][usize::try_from(number % 4).expect("small")];
    format!("file {number} of writer {writer}\n").bytes().cycle().take(len).collect()
}

/// What the clients share.
struct Load {
    seed: u64,
    dfs: Dfs,
    stop: Cell<bool>,
    left: Cell<u64>,
    /// The newest file of each name whose rename was answered.
    durable: RefCell<BTreeMap<String, (u64, u64)>>,
    longest: Cell<(Duration, &'static str)>,
}

impl Load {
    async fn timed<T>(
        &self,
        context: &Context,
        what: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> T {
        let began = context.runtime().now();
        let done = work.await;
        let took = context.runtime().now() - began;
        if took > self.longest.get().0 {
            self.longest.set((took, what));
        }
        done.unwrap_or_else(|error| panic!("seed {}: {what} after {took:?}: {error}", self.seed))
    }

    async fn create(&self, context: &Context, name: &[u8], bytes: &[u8]) -> Result<Node, Error> {
        let node = self.dfs.create(context, self.dfs.root(), name, OWNER).await?;
        self.dfs.file(&node)?.write(context, 0, bytes).await?;
        Ok(node)
    }

    async fn write(&self, context: &Context, writer: u64) {
        let root = self.dfs.root();
        let mut number = 0;
        while !self.stop.get() {
            let name = format!("w{writer}-{}", number % NAMES);
            let new = format!("{name}.new");
            self.timed(context, "a write", self.create(context, new.as_bytes(), &content(writer, number)))
                .await;
            let renamed =
                self.dfs.rename(context, root, new.as_bytes(), root, name.as_bytes(), Replace::Allow);
            let (_, replaced) = Box::pin(self.timed(context, "a rename", renamed)).await;
            self.durable.borrow_mut().insert(name, (writer, number));
            if let Some(removed) = replaced {
                self.timed(context, "a removal", self.dfs.reclaim(context, &removed)).await;
            }
            number += 1;
            context.runtime().sleep(Duration::from_micros(context.runtime().random_u64() % 200_000)).await;
        }
        self.left.set(self.left.get() - 1);
    }

    async fn find(&self, context: &Context, name: &str, most: usize) -> Result<Vec<u8>, Error> {
        let node = self.dfs.lookup(context, self.dfs.root(), name.as_bytes()).await?;
        let mut found = vec![0; most];
        let len = self.dfs.file(&node)?.read(context, 0, &mut found, None).await?;
        found.truncate(len);
        Ok(found)
    }

    async fn read(&self, context: &Context) {
        let mut turn = 0;
        while !self.stop.get() {
            context.runtime().sleep(Duration::from_millis(20)).await;
            turn += 1;
            let newest = {
                let durable = self.durable.borrow();
                durable.iter().nth(turn % durable.len().max(1)).map(|(name, file)| (name.clone(), *file))
            };
            let Some((name, (writer, number))) = newest else { continue };
            let expected = content(writer, number);
            let found = self.timed(context, "a read", self.find(context, &name, expected.len() + 1)).await;
            let is_replaced = self.durable.borrow()[&name] != (writer, number);
            // What replaces it may have its name before its writer knows.
            let is_about_to_be = number + NAMES;
            let is_newer = found == content(writer, is_about_to_be);
            assert!(found == expected || is_replaced || is_newer, "seed {}: {name} differs", self.seed);
        }
        self.left.set(self.left.get() - 1);
    }

    async fn verify(&self, context: &Context) {
        let durable = self.durable.borrow().clone();
        for (name, (writer, number)) in durable {
            let expected = content(writer, number);
            let found = self.find(context, &name, expected.len() + 1).await.expect("it is there");
            assert!(found == expected, "seed {}: {name} differs", self.seed);
        }
    }
}

/// Whether all targets serve and are sure, by the map of one that serves.
fn is_whole(cluster: &Cluster) -> bool {
    let maps = (0..ENGINES).flat_map(|rank| cluster.targets(rank)).filter_map(|target| {
        let pool = target.pools().clone().find(POOL)?;
        Some(pool.with_map(Clone::clone))
    });
    let newest = maps.max_by_key(|map| map.version);
    newest.is_some_and(|map| map.targets.iter().all(|target| target.state.serves() && !target.in_doubt))
}

/// What is under way, for a test that fails.
fn describe(cluster: &Cluster) -> String {
    let mut lines: Vec<String> = Vec::new();
    for rank in 0..ENGINES {
        for (index, target) in cluster.targets(rank).iter().enumerate() {
            let Some(pool) = target.pools().clone().find(POOL) else { continue };
            let map = pool.with_map(Clone::clone);
            let states: Vec<_> = map
                .targets
                .iter()
                .map(|one| {
                    format!(
                        "{}/{}:{}{}",
                        one.rank,
                        one.index,
                        one.state.name(),
                        if one.in_doubt { "?" } else { "" }
                    )
                })
                .collect();
            lines.push(format!("target {rank}/{index}: map {} {}\n", map.version, states.join(" ")));
        }
    }
    lines.concat()
}

fn wait_until_whole(cluster: &Cluster, seed: u64) {
    let until = cluster.world.now() + WHOLE_MAX;
    while !is_whole(cluster) {
        assert!(
            cluster.world.now() < until,
            "seed {seed}: the pool is not whole again\n{}",
            describe(cluster)
        );
        cluster.world.run_for(Duration::from_millis(50));
    }
}

fn start(seed: u64) -> (Rc<Cluster>, Rc<Load>) {
    let cluster = Rc::new(Cluster::start_empty(seed + FIRST, ENGINES, TARGETS, StoreConfig::default()));
    cluster.create_redundant_pool(POOL, 1);
    let context = cluster.context(PATIENCE);
    let dfs = cluster.run(async move {
        let properties =
            ContainerProperties { object_class: "RP_2GX".into(), ..properties("home", ContainerType::Posix) };
        let container = open_container(&context, properties).await;
        Dfs::mount(&context, &container).await.expect("mounts")
    });
    let load = Rc::new(Load {
        seed,
        dfs,
        stop: Cell::new(false),
        left: Cell::new(WRITERS + 1),
        durable: RefCell::default(),
        longest: Cell::new((Duration::ZERO, "nothing")),
    });
    for writer in 0..WRITERS {
        let node = cluster.world.node(&format!("writer-{writer}"));
        let (context, load) = (cluster.context_on(&node, PATIENCE), Rc::clone(&load));
        node.handle().spawn(async move { Box::pin(load.write(&context, writer)).await });
    }
    let node = cluster.world.node("reader");
    let (context, of) = (cluster.context_on(&node, PATIENCE), Rc::clone(&load));
    node.handle().spawn(async move { of.read(&context).await });
    (cluster, load)
}

/// Ends an engine's targets in order, as a signal does.
fn stop(cluster: &Cluster, rank: u32) {
    for target in cluster.targets(rank) {
        // Where it takes too long, it is killed.
        let _ = cluster
            .world
            .try_block_on(cluster.engine(rank), Duration::from_secs(10), async move { target.stop().await });
    }
}

#[test]
fn engines_that_stop_and_start_again_one_after_another_keep_nobody_waiting() {
    serve_replicas_here();
    for seed in crate::seeds(2, 1) {
        let (cluster, load) = start(seed);
        let random = Random::new((seed + FIRST).wrapping_mul(31));
        cluster.world.run_for(Duration::from_secs(1));
        for _ in 0..ROUNDS {
            for rank in 0..ENGINES {
                if random.below(3) == 0 {
                    stop(&cluster, rank);
                }
                cluster.crash(rank);
                let away = random.below(AWAY_MAX_US);
                let away = if random.below(2) == 0 { away / 10 } else { away };
                cluster.world.run_for(Duration::from_micros(away));
                cluster.boot(rank);
                if random.below(2) == 0 {
                    wait_until_whole(&cluster, seed);
                }
                cluster.world.run_for(Duration::from_micros(random.below(PAUSE_MAX_US)));
            }
        }
        wait_until_whole(&cluster, seed);
        load.stop.set(true);
        let until = cluster.world.now() + PATIENCE;
        while load.left.get() > 0 {
            assert!(cluster.world.now() < until, "seed {seed}: clients hang\n{}", describe(&cluster));
            cluster.world.run_for(Duration::from_millis(100));
        }
        let (context, of) = (cluster.context(PATIENCE), Rc::clone(&load));
        cluster.run(async move { of.verify(&context).await });
        let (longest, what) = load.longest.get();
        println!("seed {seed}: {} names, longest {longest:?} in {what}", load.durable.borrow().len());
    }
}
