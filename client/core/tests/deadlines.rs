//! What engines do for a client among themselves ends with the client's deadline.

mod cluster;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{
    AkeyRead, AkeyWrite, Conditions, Container, ContainerType, Context, Key, Object, ObjectClass,
    Transaction, kind,
};
use weir_layout::Layout;

const MINUTE: Duration = Duration::from_mins(1);
/// What the client waits for its commit.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long one target can't be reached: beyond that, and within what engines wait for each other otherwise.
const APART: Duration = Duration::from_secs(3);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a short key")
}

fn rank_of(object: &Object) -> u32 {
    let map = object.container().pool().map();
    let layout = Layout::of(object.id(), map).expect("placed");
    map.targets.iter().find(|target| target.id == layout.shards[0]).expect("there").rank.0
}

/// An object on each of two ranks, with this value.
async fn objects(context: &Context, container: &Container, value: u8) -> [Object; 2] {
    let mut all = Vec::new();
    for _ in 0..12 {
        let oid = container.new_object_id(context, kind::MULTI_HASHED, Some(ObjectClass::S1)).await;
        all.push(Object::open(container, oid.expect("an id")).expect("opens"));
    }
    let on = |rank| all.iter().find(|object| rank_of(object) == rank).expect("spread").clone();
    let chosen = [on(0), on(1)];
    commit(context, container, &chosen, value).await.expect("commits");
    chosen
}

async fn commit(
    context: &Context,
    container: &Container,
    objects: &[Object],
    value: u8,
) -> Result<(), weir_client::Error> {
    let mut transaction = Transaction::begin(context, container);
    for object in objects {
        let writes = [AkeyWrite::single(key("v"), core::slice::from_ref(&value))];
        transaction.update(object, &key("d"), Conditions::NONE, &writes).expect("well formed");
    }
    transaction.commit(context).await.map(drop)
}

async fn read(context: &Context, object: &Object) -> u8 {
    let mut byte = [0];
    let mut reads = [AkeyRead::single(key("v"), &mut byte)];
    object.fetch(context, &key("d"), Conditions::NONE, &mut reads).await.expect("answers");
    byte[0]
}

#[test]
fn what_a_client_has_given_up_is_not_committed_later() {
    for seed in 0..20 {
        let cluster = Rc::new(Cluster::start(seed, 2, 1));
        let (context, hasty) = (cluster.context(MINUTE), cluster.context(PATIENCE));
        let of_run = Rc::clone(&cluster);
        cluster.run(async move {
            let container = open_container(&context, properties("box", ContainerType::Object)).await;
            let changed = objects(&context, &container, 1).await;
            let within = open_container(&hasty, properties("box", ContainerType::Object)).await;
            of_run.fabric.partition(&[of_run.engine(0)], &[of_run.engine(1)]);
            let together = Rc::clone(&of_run);
            of_run.world.schedule(APART, move || together.fabric.heal());
            commit(&hasty, &within, &changed, 2).await.expect_err("one of the targets can't be asked");
            context.runtime().sleep(Duration::from_secs(20)).await;
            for object in &changed {
                assert_eq!(read(&context, object).await, 1, "seed {seed}");
            }
        });
    }
}
