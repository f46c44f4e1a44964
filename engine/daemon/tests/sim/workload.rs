//! What clients do.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use weir_client::{
    AkeyRead, AkeyWrite, Conditions, Container, ContainerProperties, ContainerType, Context, Der, Error, Key,
    Kv, Object, ObjectClass, ObjectId, Pool, Result, Rights, kind,
};

use weir_management::v1;

use crate::cluster::{Cluster, SHARE_BYTES};
use crate::history::{Action, Entry, History};

const BOTH: Rights = Rights::READ.union(Rights::WRITE);
const ALL: Rights = BOTH.union(Rights::CREATE_CONTAINER).union(Rights::DESTROY_CONTAINER);

/// Operations of one client in one run.
const OPERATIONS: u64 = 40;

/// What the clients do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// All that they can.
    All,
    /// What has a condition, mostly.
    Conditional,
    /// All that they can, with pauses, so that it goes on for many seconds.
    Slow,
    /// The same with longer pauses, for what moves data there and back.
    Long,
    /// As the slow one, where the first client only reads, and the others only write, and none learns of a map from another one.
    Apart,
}

impl Mix {
    /// Keys that all clients share: few, so that they meet.
    const fn keys(self) -> u64 {
        match self {
            Self::All | Self::Slow | Self::Long | Self::Apart => 6,
            Self::Conditional => 4,
        }
    }

    /// Longest pause between two operations of a client.
    const fn pause_max_us(self) -> u64 {
        match self {
            Self::All | Self::Conditional => 8_000,
            Self::Slow | Self::Apart => 500_000,
            Self::Long => 1_500_000,
        }
    }

    /// An operation as [`act`] numbers them.
    const fn choice(self, client: u64, random: u64) -> u64 {
        match self {
            Self::Apart if client == 0 => 9,
            Self::Apart => 0,
            Self::All | Self::Slow | Self::Long => random % 10,
            // Without the first ones, which have none.
            Self::Conditional => 3 + random % 5,
        }
    }
}

/// Longest time that a client tries an operation: longer than most faults, shorter than some.
const PATIENCE: Duration = Duration::from_secs(2);

/// Clients at work, and what they saw.
pub struct Run {
    history: Rc<RefCell<History>>,
    left: Rc<Cell<usize>>,
    pool: String,
    oid: ObjectId,
    mix: Mix,
}

/// A key-value object of any class, also of one that isn't served yet.
pub fn open(container: &Container, oid: ObjectId) -> Kv {
    let plain =
        Kv::open(container, ObjectClass::S1.encode(oid, oid.kind())).expect("a class without redundancy");
    plain.with_object(Object::open_unchecked(container, oid))
}

fn properties(label: &str, quota: u64) -> ContainerProperties {
    ContainerProperties {
        label: label.to_owned(),
        kind: ContainerType::Object,
        quota,
        object_class: String::new(),
        chunk_size: 0,
        uid: 0,
        gid: 0,
        mode: 0,
        attributes: std::collections::BTreeMap::default(),
    }
}

pub async fn make_container(context: &Context, pool: &str, label: &str, quota: u64) -> Result<Container> {
    let pool = Pool::connect(context, pool, ALL).await?;
    Container::create(context, &pool, properties(label, quota), false).await?;
    Container::open(context, &pool, label, BOTH).await
}

/// Creates a container, and has every client work on one object of it.
pub fn start(cluster: &Cluster, pool: &str, mix: Mix) -> Run {
    start_in(cluster, pool, mix, None)
}

/// The same with an object of a class.
pub fn start_in(cluster: &Cluster, pool: &str, mix: Mix, class: Option<ObjectClass>) -> Run {
    let context = cluster.context(cluster.admin(), Duration::from_secs(10));
    let label = pool.to_owned();
    let (container, oid) = cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, &label, "box", 0).await.expect("no faults yet");
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("no faults yet");
        (container, class.map_or(oid, |class| class.encode(oid, kind::KV_HASHED)))
    });
    let run = Run {
        history: Rc::default(),
        left: Rc::new(Cell::new(cluster.clients.len())),
        pool: pool.to_owned(),
        oid,
        mix,
    };
    for (client, node) in (0..).zip(cluster.clients.iter()) {
        let context = cluster.context(node, PATIENCE);
        let (shared, label) = (container.clone(), pool.to_owned());
        let (history, left) = (Rc::clone(&run.history), Rc::clone(&run.left));
        node.handle().spawn(async move {
            let container = if mix == Mix::Apart {
                let own = Pool::connect(&context, &label, BOTH).await.expect("no faults yet");
                Container::open(&context, &own, "box", BOTH).await.expect("no faults yet")
            } else {
                shared
            };
            let kv = open(&container, oid);
            work(&context, &kv, (client, mix), &history).await;
            left.set(left.get() - 1);
        });
    }
    run
}

async fn work(context: &Context, kv: &Kv, (client, mix): (u64, Mix), history: &RefCell<History>) {
    let rt = context.runtime();
    for number in 0..OPERATIONS {
        rt.sleep(Duration::from_micros(rt.random_u64() % mix.pause_max_us())).await;
        let key = rt.random_u64() % mix.keys();
        let value = client << 32 | number;
        let began = rt.now().as_nanos();
        let action = act(context, kv, key, value, mix.choice(client, rt.random_u64())).await;
        let ended = Some(rt.now().as_nanos());
        let entry = match action {
            Outcome::Answered(action) => Entry { began, ended, action },
            Outcome::Unknown(action) => Entry { began, ended: None, action },
            Outcome::Nothing => continue,
        };
        history.borrow_mut().add(key, entry);
    }
}

enum Outcome {
    Answered(Action),
    Unknown(Action),
    /// It read, and got no answer.
    Nothing,
}

/// A value is its number at the front of data that is sometimes inline, sometimes in extents of its own, and
/// sometimes moved by RMA.
fn data(value: u64) -> Vec<u8> {
    let len = [16, 300, 5_000, 40_000][usize::try_from(value % 4).expect("small")];
    let mut data = vec![u8::try_from(value % 251).expect("small"); len];
    data[..8].copy_from_slice(&value.to_le_bytes());
    data
}

fn number(found: &[u8]) -> u64 {
    let value = u64::from_le_bytes(found[..8].try_into().expect("values are longer"));
    assert_eq!(found, data(value), "a value is whole or not there");
    value
}

async fn act(context: &Context, kv: &Kv, key: u64, value: u64, choice: u64) -> Outcome {
    let name = key.to_le_bytes();
    match choice {
        0..=1 => written(Action::Put(value), kv.put(context, &name, &data(value), Conditions::NONE).await),
        2 => written(Action::Remove, kv.remove(context, &name, Conditions::NONE).await),
        3 => {
            let inserted = kv.put(context, &name, &data(value), Conditions::DKEY_INSERT).await;
            decided(|done| Action::Insert(value, done), Der::EXIST, inserted)
        }
        4 => {
            let replaced = kv.put(context, &name, &data(value), Conditions::DKEY_UPDATE).await;
            decided(|done| Action::Replace(value, done), Der::NONEXIST, replaced)
        }
        5 | 6 => decided(Action::Take, Der::NONEXIST, kv.remove(context, &name, Conditions::PUNCH).await),
        _ => match kv.get(context, &name).await {
            Ok(found) => Outcome::Answered(Action::Get(found.map(|bytes| number(&bytes)))),
            Err(error) => {
                assert_unavailable(&error);
                Outcome::Nothing
            }
        },
    }
}

/// Of an operation that is refused with `refusal` where its condition doesn't hold.
fn decided(action: impl Fn(bool) -> Action, refusal: Der, done: Result<()>) -> Outcome {
    match done {
        Err(error) if error.is(refusal) => Outcome::Answered(action(false)),
        done => written(action(true), done),
    }
}

fn written(action: Action, done: Result<()>) -> Outcome {
    match done {
        Ok(()) => Outcome::Answered(action),
        Err(error) => {
            assert_unavailable(&error);
            Outcome::Unknown(action)
        }
    }
}

/// Faults make engines unavailable, and services leaderless for as long as a client waits; they never make them answer nonsense.
fn assert_unavailable(error: &Error) {
    let away = [Der::TIMEDOUT, Der::UNREACH, Der::AGAIN, Der::NOTLEADER];
    let passing = [&away[..], &[Der::NOMEM, Der::HLC_SYNC, Der::TX_UNCERTAIN]].concat();
    assert!(passing.contains(&error.der()), "an unexpected error: {error} {error:?}");
}

impl Run {
    /// Whether all clients have done their work.
    pub fn is_finished(&self) -> bool {
        self.left.get() == 0
    }

    /// Waits for the clients, reads every key once more, and returns what was seen.
    pub fn finish(self, cluster: &Cluster) -> History {
        let seed = cluster.world.seed();
        for _ in 0..1_000 {
            if self.is_finished() {
                break;
            }
            cluster.world.run_for(Duration::from_millis(500));
        }
        assert!(self.is_finished(), "seed {seed}: clients hang");
        let context = cluster.context(cluster.admin(), Duration::from_secs(20));
        let history = Rc::clone(&self.history);
        let (pool, oid, keys) = (self.pool, self.oid, self.mix.keys());
        cluster.world.block_on(cluster.admin(), async move {
            let pool = Pool::connect(&context, &pool, BOTH).await.expect("all engines are back");
            let container =
                Container::open(&context, &pool, "box", BOTH).await.expect("the container is there");
            let found = pool.containers(&context).await.expect("all engines are back");
            assert_eq!(found.len(), 1, "seed {seed}");
            let kv = open(&container, oid);
            for key in 0..keys {
                let began = context.runtime().now().as_nanos();
                let found = kv.get(&context, &key.to_le_bytes()).await.expect("all engines are back");
                let ended = Some(context.runtime().now().as_nanos());
                let action = Action::Get(found.map(|bytes| number(&bytes)));
                history.borrow_mut().add(key, Entry { began, ended, action });
            }
        });
        let history = self.history.borrow().clone();
        assert!(history.len() > 40, "seed {seed}: only {} operations were answered", history.len());
        history
    }
}

pub const MIB: usize = 1 << 20;

/// Writes pieces of a MiB under numbered keys until an error; how many were taken, and the error.
pub async fn fill(context: &Context, kv: &Kv, first: u64) -> (u64, Error) {
    let piece = vec![7; MIB];
    for number in first.. {
        if let Err(error) = kv.put(context, &number.to_le_bytes(), &piece, Conditions::NONE).await {
            return (number - first, error);
        }
    }
    unreachable!("the disks are finite")
}

pub async fn empty(context: &Context, kv: &Kv, count: u64) {
    for number in 0..count {
        kv.remove(context, &number.to_le_bytes(), Conditions::NONE).await.expect("a full pool lets data go");
    }
}

/// Waits until a write succeeds again: space comes back in the background.
pub async fn wait_for_room(context: &Context, kv: &Kv) {
    let mut last = None;
    for _ in 0..120 {
        match kv.put(context, b"again", &vec![1; MIB], Conditions::NONE).await {
            Ok(()) => return,
            Err(error) => last = Some(error),
        }
        context.runtime().sleep(Duration::from_millis(500)).await;
    }
    let used = kv.object().container().query(context).await.map(|info| info.used);
    panic!("no room came back within a minute: {used:?} bytes are used, {last:?}");
}

/// A container with a quota takes about that much, wherever its data lies.
pub fn fill_to_quota(cluster: &Cluster, pool: &str) {
    const QUOTA_MIB: u64 = 20;
    let context = cluster.context(cluster.admin(), Duration::from_secs(20));
    let pool = pool.to_owned();
    cluster.world.block_on(cluster.admin(), async move {
        for (label, class) in [("spread", ObjectClass::SX), ("narrow", ObjectClass::S1)] {
            let quota = QUOTA_MIB * MIB as u64;
            let container = make_container(&context, &pool, label, quota).await.expect("room");
            let oid = container.new_object_id(&context, kind::KV_HASHED, Some(class)).await.expect("an id");
            let kv = Kv::open(&container, oid).expect("a class without redundancy");
            let (taken, error) = fill(&context, &kv, 0).await;
            assert!(
                (QUOTA_MIB - 2..=QUOTA_MIB).contains(&taken),
                "{label}: {taken} MiB of {QUOTA_MIB}: {error}"
            );
            assert!(error.is(Der::NOSPACE) && error.to_string().contains(label), "{error}");
            let used = container.query(&context).await.expect("figures").used;
            assert!(used <= quota, "{used} bytes against a quota of {quota}");
            let larger = quota + (4 * MIB) as u64;
            Container::set_quota(&context, container.pool(), label, larger).await.expect("a greater quota");
            context.runtime().sleep(Duration::from_secs(1)).await;
            let (more, _) = fill(&context, &kv, taken).await;
            assert!((3..=5).contains(&more), "{label}: {more} MiB more of 4");
            let smaller = Container::set_quota(&context, container.pool(), label, quota).await;
            assert!(smaller.is_err_and(|error| error.is(Der::BUSY)), "more is held than the smaller quota");
            empty(&context, &kv, taken + more).await;
            wait_for_room(&context, &kv).await;
        }
    });
}

/// A container that is overwritten faster than its history goes takes all of it, and says that it is full when it is.
pub fn overwrite_within_quota(cluster: &Cluster, pool: &str) {
    const QUOTA_MIB: u64 = 16;
    let context = cluster.context(cluster.admin(), Duration::from_secs(40));
    let pool = pool.to_owned();
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, &pool, "small", QUOTA_MIB * MIB as u64).await.expect("room");
        let oid = container.new_object_id(&context, kind::KV_HASHED, Some(ObjectClass::S1)).await;
        let kv = Kv::open(&container, oid.expect("an id")).expect("a class without redundancy");
        for round in 0..10 * QUOTA_MIB {
            let piece = vec![u8::try_from(round).expect("small"); MIB];
            let put = kv.put(&context, &(round % 4).to_le_bytes(), &piece, Conditions::NONE).await;
            put.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        context.runtime().sleep(Duration::from_secs(10)).await;
        let (taken, error) = fill(&context, &kv, 4).await;
        assert!(error.is(Der::NOSPACE) && error.to_string().contains("quota"), "{error}");
        let began = context.runtime().now();
        let more = kv.put(&context, b"more", &vec![1; MIB], Conditions::NONE).await;
        assert!(more.is_err_and(|error| error.is(Der::NOSPACE)));
        let waited = context.runtime().now() - began;
        assert!(
            waited < Duration::from_secs(1),
            "nothing was overwritten for long, and it waited {waited:?}"
        );
        assert!(
            (QUOTA_MIB - 6..=QUOTA_MIB - 4).contains(&taken),
            "{taken} MiB beside 4 of {QUOTA_MIB}: {error}"
        );
        empty(&context, &kv, taken + 4).await;
        kv.put(&context, b"again", &vec![1; MIB], Conditions::NONE)
            .await
            .expect("what was deleted makes room");
    });
}

/// Who lacks no more than what an update takes beside its data is told so in seconds, too, though others overwrite something all
/// the time.
pub fn lack_a_little(cluster: &Cluster, pool: &str) {
    const QUOTA: u64 = 4 << 20;
    let context = cluster.context(cluster.admin(), Duration::from_mins(1));
    let pool = pool.to_owned();
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, &pool, "small", QUOTA).await.expect("room");
        let oid = container.new_object_id(&context, kind::KV_HASHED, Some(ObjectClass::S1)).await;
        let kv = Rc::new(Kv::open(&container, oid.expect("an id")).expect("a class without redundancy"));
        let (busy, own) = (Rc::clone(&kv), context.clone());
        let others = context.runtime().spawn(async move {
            loop {
                let _ = busy.put(&own, b"busy", b"with this", Conditions::NONE).await;
                own.runtime().sleep(Duration::from_millis(300)).await;
            }
        });
        // Has nearly all of the quota given to the only target.
        let most = vec![1; usize::try_from(QUOTA).expect("small") - (72 << 10)];
        kv.put(&context, b"large", &most, Conditions::NONE).await.expect("room");
        kv.remove(&context, b"large", Conditions::NONE).await.expect("removed");
        let mut refused = 0;
        for missing in (300..12_000).step_by(1000) {
            context.runtime().sleep(Duration::from_secs(10)).await;
            let used = container.query(&context).await.expect("figures").used;
            let value = vec![1; usize::try_from(QUOTA - used - missing).expect("small")];
            let began = context.runtime().now();
            match kv.put(&context, b"large", &value, Conditions::NONE).await {
                Ok(()) => kv.remove(&context, b"large", Conditions::NONE).await.expect("removed"),
                Err(error) => {
                    let waited = context.runtime().now() - began;
                    assert!(
                        error.is(Der::NOSPACE) && waited < Duration::from_secs(10),
                        "{waited:?}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        others.abort();
        assert!(refused > 0, "all found room");
    });
}

/// A full pool says so, lets data go, and takes data again.
pub fn fill_to_the_brim(cluster: &Cluster, pool: &str) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(20));
    let pool = pool.to_owned();
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, &pool, "box", 0).await.expect("room");
        let oid = container.new_object_id(&context, kind::KV_HASHED, Some(ObjectClass::S1)).await;
        let kv = Kv::open(&container, oid.expect("an id")).expect("a class without redundancy");
        let (taken, error) = fill(&context, &kv, 0).await;
        let share = SHARE_BYTES / MIB as u64;
        assert!((share * 3 / 4..=share).contains(&taken), "{taken} MiB of {share}: {error}");
        let text = error.to_string();
        assert!(error.is(Der::NOSPACE) && text.contains(&pool) && text.contains("rank"), "{text}");
        let first = kv.get(&context, &0_u64.to_le_bytes()).await.expect("a full pool is readable");
        assert_eq!(first.map(|piece| piece.len()), Some(MIB));
        empty(&context, &kv, taken).await;
        wait_for_room(&context, &kv).await;
    });
}

/// Snapshots cut exactly between what was acknowledged before and what began after, although clocks differ.
pub fn snapshots(cluster: &Cluster, pool: &str) {
    const KEYS: u64 = 16;
    let context = cluster.context(cluster.admin(), Duration::from_secs(20));
    let pool = pool.to_owned();
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, &pool, "box", 0).await.expect("room");
        let oid = container.new_object_id(&context, kind::MULTI_HASHED, None).await.expect("an id");
        let object = Object::open(&container, oid).expect("a class without redundancy");
        let akey = Key::new(b"v").expect("short");
        let mut taken = Vec::new();
        for round in 0..4_u64 {
            for key in 0..KEYS {
                let bytes = (round * 1000 + key).to_le_bytes();
                let write = [AkeyWrite::single(akey.clone(), &bytes)];
                let dkey = Key::from_u64(key);
                object.update(&context, &dkey, Conditions::NONE, &write).await.expect("no faults");
            }
            taken.push(container.create_snapshot(&context).await.expect("all engines are up"));
        }
        for (round, epoch) in (0..).zip(&taken) {
            let past = object.at(*epoch);
            for key in 0..KEYS {
                let mut bytes = [0; 8];
                let mut read = [AkeyRead::single(akey.clone(), &mut bytes)];
                past.fetch(&context, &Key::from_u64(key), Conditions::NONE, &mut read)
                    .await
                    .expect("a snapshot");
                assert_eq!(u64::from_le_bytes(bytes), round * 1000 + key, "round {round}");
            }
        }
        container.destroy_snapshot(&context, taken[1]).await.expect("all engines are up");
        let left = container.snapshots(&context).await.expect("all engines are up");
        assert_eq!(left, [taken[0], taken[2], taken[3]]);
        let again = container.destroy_snapshot(&context, taken[1]).await.expect_err("it is gone");
        assert!(again.is(Der::NONEXIST), "{again}");
    });
}

/// Destroys a container without force, as management does.
fn destroy(cluster: &Cluster, pool: &str, container: &str) -> core::result::Result<(), Der> {
    let request = v1::ContainerDestroyRequest {
        pool: pool.to_owned(),
        container: container.to_owned(),
        force: false,
        ..Default::default()
    };
    let answer = cluster.manage::<_, v1::ContainerDestroyResponse>(0, "Containers/Destroy", &request);
    answer.map(|_| ()).map_err(|error| error.der)
}

/// One client dies with a container open, another one goes on using its own.
pub fn leases(cluster: &Cluster, pool: &str) {
    for (client, label) in ["left", "used"].into_iter().enumerate() {
        let context = cluster.context(&cluster.clients[client], Duration::from_secs(20));
        let pool = pool.to_owned();
        let (container, kv) = cluster.world.block_on(&cluster.clients[client], {
            let context = context.clone();
            async move {
                let container = make_container(&context, &pool, label, 0).await.expect("room");
                let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
                let kv = Kv::open(&container, oid).expect("a class without redundancy");
                (container, kv)
            }
        });
        cluster.clients[client].handle().spawn(async move {
            // It never talks to the pool service again.
            loop {
                kv.put(&context, b"key", b"value", Conditions::NONE).await.expect("no faults");
                context.runtime().sleep(Duration::from_mins(1)).await;
            }
        });
        drop(container);
    }
    cluster.world.run_for(Duration::from_secs(1));
    cluster.world.crash(&cluster.clients[0]);
    assert_eq!(destroy(cluster, pool, "left"), Err(Der::BUSY), "nobody knows yet that its client is gone");
    cluster.world.run_for(Duration::from_mins(6));
    assert_eq!(destroy(cluster, pool, "left"), Ok(()));
    assert_eq!(destroy(cluster, pool, "used"), Err(Der::BUSY));
}

/// A container is created while its empty pool is destroyed: one of both is refused.
pub fn create_while_the_pool_goes(cluster: &Cluster, pool: &str) {
    let client = &cluster.clients[0];
    let context = cluster.context(client, Duration::from_secs(20));
    let name = pool.to_owned();
    let connected = cluster.world.block_on(client, {
        let context = context.clone();
        async move { Pool::connect(&context, &name, ALL).await.expect("engines are up") }
    });
    let created = Rc::new(Cell::new(None));
    client.handle().spawn({
        let created = Rc::clone(&created);
        async move {
            let answer = Container::create(&context, &connected, properties("box", 0), false).await;
            created.set(Some(answer.is_ok()));
        }
    });
    cluster.world.run_for(Duration::from_micros(cluster.world.rng().below(400)));
    let request = v1::PoolDestroyRequest { pool: pool.to_owned(), force: false };
    let destroyed = cluster.manage::<_, v1::PoolDestroyResponse>(0, "Pools/Destroy", &request);
    cluster.world.run_for(Duration::from_secs(30));
    let created = created.get().expect("it was answered");
    let seed = cluster.world.seed();
    assert_ne!(created, destroyed.is_ok(), "seed {seed}: created {created}, destroyed {destroyed:?}");
    if let Err(error) = destroyed {
        assert_eq!(error.der, Der::BUSY, "seed {seed}: {error}");
    }
}
