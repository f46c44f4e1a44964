//! A file system whose objects have replicas goes on when an engine is lost for good, at any moment of any operation.

use crate::cluster;

use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use cluster::{Cluster, POOL, open_container, properties};
use weir_client::{ContainerProperties, ContainerType, Context, ObjectClass, serve_replicas_here};
use weir_dfs::{Dfs, Error, Node, Ownership, Replace, SetAttributes, XattrMode};
use weir_proto::Rank;
use weir_runtime::random::Random;

const MINUTE: Duration = Duration::from_mins(1);
const OWNER: Ownership = Ownership { mode: 0o755, uid: 1000, gid: 1000 };
const CHUNK: u64 = 16 << 10;

/// Steps of the client, some of which take several requests.
const STEPS: u64 = 60;

/// Longest time until an engine is lost, and from then on until the pool map says so.
const LOST_MAX_US: u64 = 120_000;
const NOTICED_MAX_US: u64 = 400_000;

fn wide() -> ContainerProperties {
    ContainerProperties {
        object_class: "RP_2GX".into(),
        chunk_size: CHUNK,
        ..properties("home", ContainerType::Posix)
    }
}

/// What stands in two directories: each file with its content and an extended attribute.
type Files = BTreeMap<(usize, Vec<u8>), (Vec<u8>, u64)>;

/// Content of different lengths: within a chunk, over some, and over all groups.
fn content(step: u64) -> Vec<u8> {
    let len = [40, 5_000, 40_000, 130_000][usize::try_from(step % 4).expect("small")];
    (0..len).map(|at: u64| u8::try_from((at / 7 + step) % 251).expect("small")).collect()
}

struct Client {
    context: Context,
    dfs: Dfs,
    directories: [Node; 2],
    files: Files,
    random: Rc<Random>,
}

impl Client {
    fn any(&self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).expect("small")
    }

    fn some_file(&self) -> Option<(usize, Vec<u8>)> {
        let count = self.files.len();
        (count > 0).then(|| self.files.keys().nth(self.any(count)).cloned()).flatten()
    }

    async fn find(&self, (directory, name): &(usize, Vec<u8>)) -> Result<Node, Error> {
        self.dfs.lookup(&self.context, &self.directories[*directory], name).await
    }

    async fn create(&mut self, step: u64) -> Result<(), Error> {
        let place = (self.any(2), format!("file-{step}").into_bytes());
        let node = self.dfs.create(&self.context, &self.directories[place.0], &place.1, OWNER).await?;
        let bytes = content(step);
        self.dfs.file(&node)?.write(&self.context, 0, &bytes).await?;
        let value = step.to_le_bytes();
        self.dfs.set_xattr(&self.context, &node, b"user.step", &value, XattrMode::Create).await?;
        self.files.insert(place, (bytes, step));
        Ok(())
    }

    /// Gives a file another name, perhaps in the other directory and in the place of another file.
    async fn rename(&mut self, step: u64) -> Result<(), Error> {
        let Some(from) = self.some_file() else { return Ok(()) };
        let fresh = (self.any(2), format!("renamed-{step}").into_bytes());
        let taken = self.some_file().filter(|to| *to != from && step.is_multiple_of(2));
        let to = taken.unwrap_or(fresh);
        let directories = (&self.directories[from.0], &self.directories[to.0]);
        let renamed =
            self.dfs.rename(&self.context, directories.0, &from.1, directories.1, &to.1, Replace::Allow);
        if let (_, Some(removed)) = renamed.await? {
            self.dfs.reclaim(&self.context, &removed).await?;
        }
        let moved = self.files.remove(&from).expect("it was there");
        self.files.insert(to, moved);
        Ok(())
    }

    async fn exchange(&mut self) -> Result<(), Error> {
        let (Some(one), Some(other)) = (self.some_file(), self.some_file()) else { return Ok(()) };
        if one == other {
            return Ok(());
        }
        let places = [&one, &other].map(|place| (&self.directories[place.0], &place.1[..]));
        self.dfs.exchange(&self.context, places[0], places[1]).await?;
        let (first, second) = (self.files[&one].clone(), self.files[&other].clone());
        self.files.extend([(one, second), (other, first)]);
        Ok(())
    }

    async fn unlink(&mut self) -> Result<(), Error> {
        let Some(place) = self.some_file() else { return Ok(()) };
        let removed = self.dfs.unlink(&self.context, &self.directories[place.0], &place.1).await?;
        self.dfs.reclaim(&self.context, &removed).await?;
        self.files.remove(&place);
        Ok(())
    }

    /// Cuts a file off, or makes it longer, and changes its mode.
    async fn resize(&mut self) -> Result<(), Error> {
        let Some(place) = self.some_file() else { return Ok(()) };
        let node = self.find(&place).await?;
        let len = self.any(60_000);
        let change = SetAttributes { size: Some(len as u64), mode: Some(0o600), ..SetAttributes::default() };
        self.dfs.set_attributes(&self.context, &node, &change).await?;
        self.files.get_mut(&place).expect("it is there").0.resize(len, 0);
        Ok(())
    }

    async fn step(&mut self, step: u64) -> Result<(), Error> {
        match self.any(8) {
            0..=2 => self.create(step).await,
            3..=4 => self.rename(step).await,
            5 => self.exchange().await,
            6 => self.unlink().await,
            _ => self.resize().await,
        }
    }

    /// Compares all that is there with what was done.
    async fn verify(&self, seed: u64) {
        for (number, directory) in self.directories.iter().enumerate() {
            let mut stream = self.dfs.open_directory(directory).expect("a directory");
            let listed = self.dfs.read_directory(&self.context, &mut stream, 0, 1000).await.expect("listed");
            let mut names: Vec<Vec<u8>> = listed.iter().map(|entry| entry.node.name.clone()).collect();
            names.sort();
            let of_directory = self.files.keys().filter(|(of, _)| *of == number);
            let expected: Vec<Vec<u8>> = of_directory.map(|(_, name)| name.clone()).collect();
            assert_eq!(names, expected, "seed {seed}");
        }
        for (place, (bytes, step)) in &self.files {
            let node = self.find(place).await.expect("it is there");
            let file = self.dfs.file(&node).expect("a file");
            let mut found = vec![0; bytes.len() + 10];
            let len = file.read(&self.context, 0, &mut found, None).await.expect("read");
            assert!(found[..len] == bytes[..], "seed {seed}: {place:?} has {len} bytes of {}", bytes.len());
            let value = self.dfs.get_xattr(&self.context, &node, b"user.step").await.expect("there");
            assert_eq!(value, step.to_le_bytes(), "seed {seed}: {place:?}");
        }
    }
}

/// The rank of the pool's service.
fn service_rank(cluster: &Cluster, engines: u32) -> u32 {
    let serves = |rank: &u32| {
        let pools = cluster.targets(*rank)[0].pools().clone();
        pools.find(POOL).is_some_and(|pool| pools.own_service(pool.id()).is_some())
    };
    (0..engines).find(serves).expect("an engine runs it")
}

#[test]
fn directories_are_protected_as_files_are() {
    serve_replicas_here();
    let cluster = Cluster::start(3, 3, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, wide()).await;
        let dfs = Dfs::mount(&context, &container).await.expect("mounts");
        let node = dfs.create(&context, dfs.root(), b"file", OWNER).await.expect("created");
        let class = |node: &Node| ObjectClass::of(node.oid()).expect("a class");
        assert_eq!(class(dfs.root()).to_string(), "RP_2G1");
        assert_eq!((class(&node).survives(), class(&node).groups()), (1, 3), "as wide as six targets allow");
        let again = Dfs::mount(&context, &container).await.expect("mounts");
        assert_eq!(again.root().oid(), dfs.root().oid());
    });
}

#[test]
fn a_file_system_goes_on_when_an_engine_is_lost() {
    serve_replicas_here();
    for seed in crate::seeds(12, 1) {
        let cluster = Rc::new(Cluster::start(seed, 3, 2));
        let (context, random) = (cluster.context(MINUTE), Rc::new(Random::new(seed)));
        let (of, drawn) = (context.clone(), Rc::clone(&random));
        let client = cluster.run(async move {
            let container = open_container(&of, wide()).await;
            let dfs = Dfs::mount(&of, &container).await.expect("mounts");
            let one = dfs.mkdir(&of, dfs.root(), b"one", OWNER).await.expect("made");
            let other = dfs.mkdir(&of, dfs.root(), b"other", OWNER).await.expect("made");
            Client { context: of, dfs, directories: [one, other], files: Files::new(), random: drawn }
        });
        let service = service_rank(&cluster, 3);
        let victim = (service + 1 + u32::try_from(random.below(2)).expect("small")) % 3;
        let lost = Rc::clone(&cluster);
        let after = Duration::from_micros(random.below(LOST_MAX_US));
        cluster.world.schedule(after, move || lost.crash(victim));
        let pools = cluster.targets(service)[0].pools().clone();
        let pool = pools.find(POOL).expect("the pool").id();
        let service_of_pool = pools.own_service(pool).expect("it runs there");
        let node = cluster.engine(service).clone();
        let noticed = after + Duration::from_micros(random.below(NOTICED_MAX_US));
        cluster.world.schedule(noticed, move || {
            node.handle().spawn(async move {
                service_of_pool.exclude(Rank(victim)).await.expect("its device is well");
            });
        });
        let most = cluster.run(async move {
            let mut client = client;
            let mut most = 0;
            for step in 0..STEPS {
                if let Err(error) = client.step(step).await {
                    panic!("seed {seed}, step {step}: {error}");
                }
                most = most.max(client.files.len());
            }
            client.context.runtime().sleep(Duration::from_millis(600)).await;
            client.step(STEPS).await.expect("without the engine, too");
            client.verify(seed).await;
            most
        });
        assert!(most > 3, "seed {seed}: there were {most} files at most");
    }
}
