//! Identities of changes, by which a target knows those that are sent again after its restart: they go when nobody can send
//! them again.

mod cluster;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{AkeyRead, AkeyWrite, Conditions, ContainerType, Key, Object, ObjectClass, kind};

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
