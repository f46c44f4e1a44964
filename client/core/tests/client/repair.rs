//! Replicas that are damaged on an engine's device: readers get another one, the damaged one is repaired, and a comparison of the
//! replicas says which one is damaged.

use crate::cluster;
use crate::damage::{CHUNK, LEN, PLACE, extents, key, value};

use core::time::Duration;

use cluster::{Cluster, DISK_BYTES, POOL, open_container, properties};
use weir_client::{
    AkeyRead, AkeyWrite, Conditions, ContainerProperties, ContainerType, Context, Der, Error, MismatchKind,
    Object, Value, Verified, kind,
};
use weir_proto::object::{AkeyFetch, PunchScope};
use weir_proto::{Epoch, Rank};
use weir_store::{FetchError, ScrubConfig, Shard, StoreConfig};

/// Two engines with a value in an object that both have.
struct Stage {
    cluster: Cluster,
    context: Context,
    object: Object,
}

impl Stage {
    fn new(seed: u64, store: StoreConfig) -> Self {
        let cluster = Cluster::start_empty(seed, 2, 1, store);
        cluster.create_redundant_pool(POOL, 1);
        let context = cluster.context(Duration::from_mins(1));
        let writer = context.clone();
        let object = cluster.run(async move {
            let properties = properties("damaged", ContainerType::Object);
            let properties = ContainerProperties { object_class: "RP_2GX".into(), ..properties };
            let container = open_container(&writer, properties).await;
            let oid = container.new_object_id(&writer, kind::MULTI_HASHED, None).await.expect("an id");
            Object::open(&container, oid).expect("opens")
        });
        let stage = Self { cluster, context, object };
        stage.write();
        stage
    }

    fn write(&self) {
        let (context, object) = (self.context.clone(), self.object.clone());
        self.cluster.run(async move {
            let value = value();
            let write = [AkeyWrite::array(key("a"), 1, extents(0, LEN), vec![&value])];
            object.update(&context, &key("d"), Conditions::NONE, &write).await.expect("stored");
        });
    }

    /// Flips a bit of this byte of the value on an engine's disk, where it has it.
    fn rot(&self, rank: usize, at: usize) {
        let (disk, value) = (self.cluster.disk((rank, 0)), value());
        let block = &value[at / 4096 * 4096..][..4096];
        let places = (0..DISK_BYTES / 4096).filter(|at| disk.bytes(at * 4096, 4096) == *block);
        let places: Vec<u64> = places.collect();
        assert!(!places.is_empty(), "it is on the disk");
        for place in places {
            disk.rot(place * 4096 + at as u64 % 4096, PLACE.1);
        }
    }

    fn fetch(&self, index: usize, count: usize) -> Result<Vec<u8>, Error> {
        let (context, object) = (self.context.clone(), self.object.clone());
        self.cluster.run(async move {
            let mut into = vec![0; count];
            let read = AkeyRead::array(key("a"), 1, extents(index, count), vec![&mut into]);
            object.fetch(&context, &key("d"), Conditions::NONE, &mut [read]).await.map(|_| into)
        })
    }

    fn shard(&self, rank: u32) -> Shard {
        let target = &self.cluster.targets(rank)[0];
        target.pools().find(POOL).expect("the pool").shard().clone()
    }

    /// The value as an engine has it.
    fn stored(&self, rank: u32) -> Result<Vec<u8>, FetchError> {
        let (shard, object) = (self.shard(rank), self.object.clone());
        self.cluster.run(async move {
            let mut data = vec![0; LEN];
            let value = Value::Array { record_size: 1, extents: extents(0, LEN) };
            let akeys = [AkeyFetch { akey: key("a"), value, conditions: Conditions::NONE }];
            let (container, dkey) = (object.container().id(), key("d"));
            let found =
                shard.fetch(container, object.id(), &dkey, Epoch::MAX, Conditions::NONE, &akeys).await?;
            found.read(&mut data).await?;
            Ok(data)
        })
    }

    /// Versions that an engine has repaired, and those that it couldn't.
    fn repairs(&self, rank: u32) -> (u64, u64) {
        self.cluster.targets(rank)[0].io().repairs()
    }

    fn verify(&self) -> Verified {
        let (context, object) = (self.context.clone(), self.object.clone());
        self.cluster.run(async move { object.verify(&context, &|| {}).await.expect("engines answer") })
    }

    fn run_for(&self, seconds: u64) {
        self.cluster.world.run_for(Duration::from_secs(seconds));
    }
}

/// The engines of replicas that are damaged, and of those that differ.
fn wrong(verified: &Verified) -> [Vec<Rank>; 2] {
    let of = |is_damaged| {
        let is_such = move |kind: &MismatchKind| matches!(kind, MismatchKind::Damaged(_)) == is_damaged;
        let wrong = verified.mismatches.iter().filter(move |one| is_such(&one.kind));
        let mut ranks: Vec<Rank> = wrong.map(|one| one.replica.rank).collect();
        ranks.sort_unstable();
        ranks
    };
    [of(true), of(false)]
}

#[test]
fn a_damaged_replica_is_read_elsewhere_and_repaired_then() {
    let stage = Stage::new(7, StoreConfig::default());
    // Long reads are compared by the client, and short ones by the engine.
    for (round, (index, count)) in [(0, LEN), (PLACE.0 - 2000, 4000)].into_iter().enumerate() {
        for rank in 0..2 {
            stage.rot(rank as usize, PLACE.0);
            assert!(matches!(stage.stored(rank), Err(FetchError::Corrupt { .. })), "it is damaged");
            for _ in 0..20 {
                assert!(stage.fetch(index, count).expect("one is sound") == value()[index..index + count]);
            }
            stage.run_for(12);
            assert!(stage.stored(rank).expect("it is sound again") == value());
            assert_eq!(stage.repairs(rank), (1 + round as u64, 0));
        }
    }
    let verified = stage.verify();
    assert_eq!(
        (wrong(&verified), verified.compared.len()),
        ([vec![], vec![]], 2 * verified.placement.groups.len())
    );
    assert_eq!((verified.dkeys, verified.bytes), (1, 2 * LEN as u64));
    // It is durable.
    stage.cluster.crash(0);
    stage.cluster.boot(0);
    stage.run_for(30);
    assert!(stage.stored(0).expect("it is sound") == value());
}

#[test]
fn the_scrubber_has_a_damaged_replica_repaired_before_anybody_reads_it() {
    let scrub = ScrubConfig { bytes_per_second: 256 << 20, interval: Duration::from_secs(2) };
    let stage = Stage::new(8, StoreConfig { scrub: Some(scrub), ..StoreConfig::default() });
    for rank in 0..2 {
        let store = stage.cluster.targets(rank)[0].store().clone();
        stage.cluster.run(async move { store.checkpoint().await.expect("written") });
    }
    stage.rot(1, PLACE.0);
    stage.run_for(10);
    assert_eq!([0, 1].map(|rank| stage.repairs(rank)), [(0, 0), (1, 0)]);
    assert!(stage.stored(1).expect("it is sound again") == value());
    // What nobody has stays, and is counted once. Nothing else is.
    let rotten = |rank| stage.cluster.targets(rank)[0].store().scrub().rotten.values().sum::<u64>();
    assert_eq!([0, 1].map(rotten), [0, 0]);
    for rank in 0..2 {
        let store = stage.cluster.targets(rank)[0].store().clone();
        stage.cluster.run(async move { store.checkpoint().await.expect("written") });
        stage.rot(rank as usize, PLACE.0);
    }
    stage.run_for(30);
    assert_eq!([0, 1].map(|rank| (rotten(rank), stage.repairs(rank).1)), [(1, 1), (1, 1)]);
}

#[test]
fn replicas_that_are_damaged_at_different_places_repair_each_other() {
    let stage = Stage::new(9, StoreConfig::default());
    stage.rot(0, PLACE.0);
    stage.rot(1, PLACE.0 + 2 * CHUNK);
    assert!(stage.fetch(0, LEN).expect_err("none is sound").is(Der::CSUM));
    stage.run_for(12);
    for rank in 0..2 {
        assert!(stage.stored(rank).expect("it is sound again") == value());
    }
    assert!(stage.fetch(0, LEN).expect("both are sound") == value());
}

#[test]
fn what_is_damaged_everywhere_is_told_and_known_until_it_is_overwritten() {
    let stage = Stage::new(10, StoreConfig::default());
    for rank in 0..2 {
        stage.rot(rank, PLACE.0);
    }
    for (index, count) in [(0, LEN), (PLACE.0 - 2000, 4000)].repeat(5) {
        assert!(stage.fetch(index, count).expect_err("nobody has it").is(Der::CSUM));
    }
    stage.run_for(5);
    assert_eq!([0, 1].map(|rank| stage.repairs(rank)), [(0, 1), (0, 1)]);
    assert_eq!(wrong(&stage.verify()), [vec![Rank(0), Rank(1)], vec![]]);
    stage.write();
    assert!(stage.fetch(0, LEN).expect("it is new") == value());
    // Aggregation removes what was damaged, and repair finds it gone.
    stage.run_for(3 * 60);
    assert_eq!([0, 1].map(|rank| stage.repairs(rank)), [(0, 0), (0, 0)]);
    assert_eq!(wrong(&stage.verify()), [vec![], vec![]]);
}

#[test]
fn a_comparison_says_which_replica_is_damaged_and_that_one_is_another() {
    let stage = Stage::new(11, StoreConfig::default());
    assert_eq!(wrong(&stage.verify()), [vec![], vec![]]);
    for rank in 0..2 {
        stage.rot(rank, PLACE.0);
        let rank = Rank(u32::try_from(rank).expect("few engines"));
        assert_eq!(wrong(&stage.verify()), [vec![rank], vec![]]);
        stage.run_for(12);
        assert_eq!(wrong(&stage.verify()), [vec![], vec![]], "it was repaired");
    }
    // One that has lost the value without knowing it.
    let (shard, object, context) = (stage.shard(1), stage.object.clone(), stage.context.clone());
    stage.cluster.run(async move {
        let epoch = Epoch(object.max_epoch(&context).await.expect("engines answer").0 + 1);
        let scope = PunchScope::Akeys(key("d"), vec![key("a")]);
        shard
            .punch(object.container().id(), object.id(), &scope, epoch, Conditions::NONE)
            .await
            .expect("gone");
    });
    let [damaged, different] = wrong(&stage.verify());
    assert_eq!((damaged, different.len()), (vec![], 1));
}
