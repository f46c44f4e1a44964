//! Identities of changes, by which a target knows those that are sent again after its restart: they go when nobody can send
//! them again.

use crate::cluster;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{
    AkeyRead, AkeyWrite, Conditions, ContainerType, Context, Der, Epoch, Error, Key, Object, ObjectClass,
    kind,
};

#[test]
fn what_a_client_has_left_that_fell_silent_goes_when_its_deadlines_have_passed() {
    const COUNT: usize = 3000;
    const PATIENCE: Duration = Duration::from_secs(30);
    let cluster = Cluster::start(1, 1, 1);
    let (context, fabric) = (cluster.context(PATIENCE), cluster.fabric.clone());
    let target = Rc::clone(&cluster.targets(0)[0]);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::MULTI_HASHED, Some(ObjectClass::S1)).await;
        let object = Object::open(&container, oid.expect("an id")).expect("opens");
        let (akey, none) = (Key::new(b"a").expect("a key"), Conditions::NONE);
        let update = async |number: usize, value: &[u8]| {
            let write = [AkeyWrite::single(akey.clone(), value)];
            object.update(&context, &Key::from_u64(number as u64), none, &write).await.expect("stored");
        };
        update(0, &vec![7; 1 << 20]).await;
        // As long as one of its requests goes on, those behind it aren't known to be over.
        fabric.configure(|config| config.per_mebibyte = Duration::from_secs(20));
        let (rt, reader, of_reader) = (context.runtime().clone(), object.clone(), context.clone());
        let name = akey.clone();
        let fetch = rt.spawn(async move {
            let mut into = vec![0; 1 << 20];
            let mut read = [AkeyRead::single(name, &mut into)];
            reader.fetch(&of_reader, &Key::from_u64(0), none, &mut read).await.expect("it is there");
        });
        rt.sleep(Duration::from_secs(1)).await;
        for number in 1..=COUNT {
            update(number, b"v").await;
        }
        assert!(!fetch.is_finished());
        let store = target.store();
        let left = || {
            let shards = store.pools().into_iter().filter_map(|pool| store.pool(pool.pool));
            shards.map(|shard| shard.attributes(b"request", b"", usize::MAX).len()).sum::<usize>()
        };
        assert!(left() >= COUNT, "{} identities are stored", left());
        // Clocks may differ, and it is looked for them now and then.
        rt.sleep(PATIENCE + Duration::from_secs(13)).await;
        assert_eq!(left(), 0);
    });
}

/// A system of one engine, contexts of two clients, and an object.
fn two_clients(seed: u64) -> (Rc<Cluster>, Context, Context, Object) {
    let cluster = Rc::new(Cluster::start(seed, 1, 1));
    let context = cluster.context(Duration::from_mins(1));
    let other = cluster.context_on(&cluster.world.node("other"), Duration::from_mins(1));
    let of_first = context.clone();
    let object = cluster.run(async move {
        let container = open_container(&of_first, properties("box", ContainerType::Object)).await;
        let oid = container.new_object_id(&of_first, kind::MULTI_HASHED, Some(ObjectClass::S1)).await;
        Object::open(&container, oid.expect("an id")).expect("opens")
    });
    (cluster, context, other, object)
}

async fn insert(context: &Context, object: &Object, value: &[u8]) -> Result<Epoch, Error> {
    let write = [AkeyWrite::single(Key::new(b"a").expect("a key"), value)];
    object.update(context, &Key::from_u64(1), Conditions::DKEY_INSERT, &write).await
}

async fn take(context: &Context, object: &Object) -> Result<(), Error> {
    object.punch_dkeys(context, Conditions::PUNCH, &[Key::from_u64(1)]).await
}

#[test]
fn a_change_that_is_sent_again_after_a_restart_has_the_epoch_that_it_had() {
    let (cluster, context, other, object) = two_clients(2);
    cluster.fabric.partition_one_way(cluster.engine(0), &cluster.client);
    cluster.schedule_crash(0, Duration::from_millis(200), Duration::from_millis(10));
    let fabric = cluster.fabric.clone();
    cluster.run(async move {
        let (first, own) = (context.clone(), object.clone());
        let inserted = context.runtime().spawn(async move { insert(&first, &own, b"first").await });
        context.runtime().sleep(Duration::from_millis(300)).await;
        let at = object.max_epoch(&other).await.expect("the engine is back");
        take(&other, &object).await.expect("it was stored before the engine went");
        insert(&other, &object, b"second").await.expect("nothing is there");
        fabric.heal();
        assert_eq!(inserted.await.expect("it is let end").expect("it was the first"), at);
        let mut value = [0; 8];
        let mut read = [AkeyRead::single(Key::new(b"a").expect("a key"), &mut value)];
        object.fetch(&context, &Key::from_u64(1), Conditions::NONE, &mut read).await.expect("it is there");
        assert_eq!(&value[..6], b"second");
    });
}

#[test]
fn who_is_not_the_first_is_told_so_though_his_request_was_lost() {
    let (cluster, context, other, object) = two_clients(3);
    let (fabric, engine, client) =
        (cluster.fabric.clone(), cluster.engine(0).clone(), cluster.client.clone());
    cluster.run(async move {
        insert(&other, &object, b"value").await.expect("nothing is there");
        fabric.partition_one_way(&client, &engine);
        let (first, own) = (context.clone(), object.clone());
        let taken = context.runtime().spawn(async move { take(&first, &own).await });
        context.runtime().sleep(Duration::from_millis(100)).await;
        take(&other, &object).await.expect("it is there");
        fabric.heal();
        let late = taken.await.expect("it is let end").expect_err("another one has taken it");
        assert!(late.is(Der::NONEXIST), "{late}");
        fabric.partition_one_way(&client, &engine);
        let (first, own) = (context.clone(), object.clone());
        let inserted = context.runtime().spawn(async move { insert(&first, &own, b"same").await });
        context.runtime().sleep(Duration::from_millis(100)).await;
        insert(&other, &object, b"same").await.expect("nothing is there");
        fabric.heal();
        let late = inserted.await.expect("it is let end").expect_err("another one has inserted it");
        assert!(late.is(Der::EXIST), "{late}");
    });
}
