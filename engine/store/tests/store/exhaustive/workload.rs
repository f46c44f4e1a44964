//! What the recorded runs do, and what can be seen of a store.

use crate::setup::*;
use core::future::Future;
use core::pin::Pin;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use uuid::Uuid;
use weir_proto::object::{Conditions, ListScope, PunchScope};
use weir_proto::{ContainerId, Epoch, PoolId};
use weir_store::{
    AttributeChange, Data, Operation as Part, PoolError, Shard, Store, TransactionId, UpdateError,
};

/// What a store shows, by names that say where: two stores that show the same are the same to everybody.
pub type Observation = BTreeMap<String, String>;

/// An operation under way.
type Running = Pin<Box<dyn Future<Output = ()>>>;

/// Something that is done to a store.
pub struct Operation {
    /// Names of what it changes begin so.
    pub changes: String,
    pub run: Box<dyn FnOnce(Rc<Store>) -> Running>,
}

/// Operations that are under way at once.
pub type Stage = Vec<Operation>;

pub const LATE: PoolId = PoolId(Uuid::from_u128(0x1a7e));
const SECOND: PoolId = PoolId(Uuid::from_u128(0xbb));
const OTHER: ContainerId = ContainerId(Uuid::from_u128(0xdd));

/// An epoch that a snapshot keeps.
const KEPT: u64 = 200;

const TRANSACTIONS: [TransactionId; 3] =
    [TransactionId(Uuid::from_u128(1)), TransactionId(Uuid::from_u128(2)), TransactionId(Uuid::from_u128(3))];

/// What no name begins with.
const NOTHING: &str = "-";

fn digest(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{} bytes {:x}", bytes.len(), hasher.finish())
}

async fn observe_data(shard: &Shard, seen: &mut Observation, container: ContainerId) {
    for epoch in [KEPT, u64::MAX] {
        for object in [OBJECT, ARRAY] {
            let scope = ListScope::Dkeys;
            let page = shard.list(container, object, &scope, Epoch(epoch), b"", 100, None).await;
            let entries = match page {
                Ok(page) => page.entries,
                Err(error) => {
                    seen.insert(format!("data {object}: list at {epoch}"), error.to_string());
                    continue;
                }
            };
            for entry in entries {
                let name = weir_proto::Key::new(&entry.key).expect("a key");
                seen.insert(format!("data {object} {name} at {epoch}"), "listed".to_owned());
            }
        }
    }
    if container != CONTAINER {
        return;
    }
    for epoch in [KEPT, u64::MAX] {
        for number in 0..14 {
            let name = format!("d{number}");
            let found = match get(shard, &name, "a", epoch).await {
                Ok(None) => continue,
                Ok(Some(bytes)) => digest(&bytes),
                Err(error) => error.to_string(),
            };
            seen.insert(format!("data {OBJECT} {name} at {epoch}: value"), found);
        }
        for number in 0..3 {
            let found = match read(shard, number, epoch, 0, 40_000).await {
                Ok((_, present)) if present.is_empty() => continue,
                Ok((bytes, present)) => format!("{} of {present:?}", digest(&bytes)),
                Err(error) => error.to_string(),
            };
            let dkey = weir_proto::Key::from_u64(number);
            seen.insert(format!("data {ARRAY} {dkey} at {epoch}: records"), found);
        }
    }
}

/// Looks at everything.
pub async fn observe(store: &Store) -> Observation {
    let mut seen = Observation::new();
    for pool in store.pools().into_iter().filter(|pool| pool.pool != LATE) {
        let shard = store.pool(pool.pool).expect("it was listed");
        let id = pool.pool;
        seen.insert(format!("pool {id}"), pool.size.to_string());
        for container in shard.containers().into_iter().filter(|container| !container.destroying) {
            let kept = shard.snapshots(container.container).expect("it was listed");
            let text = format!("quota {} snapshots {kept:?}", container.quota);
            seen.insert(format!("container {} of {id}", container.container), text);
        }
        for name in ["n0", "n1"] {
            if let Some(value) = shard.attribute(b"", name.as_bytes()) {
                seen.insert(format!("attribute {name} of {id}"), digest(&value));
            }
        }
        if id != POOL {
            continue;
        }
        for container in [CONTAINER, OTHER] {
            if shard.has_container(container) {
                observe_data(&shard, &mut seen, container).await;
            }
        }
        for transaction in TRANSACTIONS.into_iter().filter(|_| shard.has_container(CONTAINER)) {
            let undecided = shard.undecided(CONTAINER).await.expect("the container");
            let is_prepared = undecided.iter().any(|(found, _)| *found == transaction);
            if let Some(decision) = shard.decision(CONTAINER, transaction).await.expect("the container") {
                seen.insert(format!("transaction {}", transaction.0), format!("{decision:?}"));
            } else if is_prepared {
                seen.insert(format!("transaction {}", transaction.0), "prepared".to_owned());
            }
        }
    }
    seen
}

fn operation<F: Future<Output = ()> + 'static>(
    changes: &str,
    run: impl FnOnce(Rc<Store>, Shard) -> F + 'static,
) -> Operation {
    let with_shard = move |store: Rc<Store>| -> Running {
        let shard = store.pool(POOL).expect("the pool");
        Box::pin(run(store, shard))
    };
    Operation { changes: changes.to_owned(), run: Box::new(with_shard) }
}

fn store_value(number: u64, epoch: u64, len: usize) -> Operation {
    operation(&format!("data {OBJECT} d{number} "), move |_, shard| async move {
        put(&shard, &format!("d{number}"), "a", epoch, &pattern(epoch, len)).await.expect("stored");
    })
}

fn store_records(dkey: u64, epoch: u64, index: u64, len: usize) -> Operation {
    let name = weir_proto::Key::from_u64(dkey);
    operation(&format!("data {ARRAY} {name} "), move |_, shard| async move {
        write(&shard, dkey, epoch, index, &pattern(epoch, len)).await.expect("stored");
    })
}

fn remove(scope: PunchScope, epoch: u64) -> Operation {
    operation("data", move |_, shard| async move {
        punch(&shard, OBJECT, scope, epoch).await.expect("punched");
    })
}

fn set_attribute(name: &'static str, len: usize) -> Operation {
    operation(&format!("attribute {name} "), move |_, shard| async move {
        let value = Some(pattern(len as u64, len));
        let change = AttributeChange { scope: Vec::new(), name: name.as_bytes().to_vec(), value };
        shard.change_attributes(&[change]).await.expect("stored");
    })
}

fn checkpoint() -> Operation {
    operation(NOTHING, |store, _| async move { store.checkpoint().await.expect("written") })
}

fn aggregate(up_to: u64) -> Operation {
    operation(NOTHING, move |_, shard| async move {
        shard.aggregate(CONTAINER, Epoch(up_to)).await.expect("aggregated");
    })
}

fn create(size: u64) -> [Stage; 2] {
    let pool = Operation {
        changes: "pool".to_owned(),
        run: Box::new(move |store| {
            Box::pin(async move { drop(store.create_pool(POOL, size).await.expect("space")) })
        }),
    };
    let container = operation("container", |_, shard| async move {
        shard.create_container(CONTAINER).await.expect("created");
    });
    [vec![pool], vec![container]]
}

fn update_of(dkey: &str, value: &'static [u8]) -> Part<'static> {
    let (akeys, data) = (vec![single("a", value)], Data::Borrowed(value));
    Part::Update { object: OBJECT, dkey: key(dkey), conditions: Conditions::NONE, akeys, data }
}

/// What every transaction does.
fn parts() -> [Part<'static>; 3] {
    static LARGE: [u8; 6000] = [7; 6000];
    let scope = PunchScope::Dkeys(vec![key("d12")]);
    [
        update_of("d10", b"of a transaction"),
        update_of("d11", &LARGE),
        Part::Punch { object: OBJECT, scope, conditions: Conditions::NONE },
    ]
}

/// An epoch of now, because a transaction's is compared with the clock: behind the one that every world begins with.
fn epoch_of(number: usize) -> Epoch {
    Epoch(1_893_456_000_500_000_000 + number as u64)
}

fn prepare(number: usize) -> Operation {
    operation("", move |_, shard| async move {
        let (id, parts) = (TRANSACTIONS[number], parts());
        shard.prepare(CONTAINER, id, epoch_of(number), &parts).await.expect("prepared");
    })
}

/// Prepares and commits in one step.
fn transact(number: usize) -> Operation {
    operation("", move |_, shard| async move {
        let (id, parts) = (TRANSACTIONS[number], parts());
        assert_eq!(shard.transact(CONTAINER, id, epoch_of(number), &parts).await, Ok(epoch_of(number)));
    })
}

fn decide(number: usize, commits: bool) -> Operation {
    operation("", move |_, shard| async move {
        if commits {
            shard.commit_transaction(CONTAINER, TRANSACTIONS[number]).await.expect("committed");
        } else {
            shard.abort_transaction(CONTAINER, TRANSACTIONS[number]).await.expect("aborted");
        }
    })
}

/// Updates of all sizes, punches, transactions, attributes, snapshots, checkpoints, aggregation, defragmentation, and
/// pools and containers that come, change and go.
pub fn everything() -> Vec<Stage> {
    let mut stages: Vec<Stage> = create(3 << 20).into();
    stages.push(vec![set_attribute("n0", 100), store_value(0, 10, 50), store_value(1, 11, 3000)]);
    stages.push(vec![store_value(2, 12, 4096), store_value(3, 13, 9000), store_records(0, 14, 0, 20_000)]);
    stages.push(vec![store_value(12, 15, 30), set_attribute("n1", 5000)]);
    stages.push(vec![checkpoint()]);
    stages.push(vec![store_value(0, 20, 70), store_value(4, 21, 12_000), store_value(5, 22, 0)]);
    stages.push(vec![store_records(0, 23, 5000, 300), store_records(1, 24, 0, 100)]);
    let second = operation("pool", |store, _| async move {
        drop(store.create_pool(SECOND, 1 << 20).await.expect("space"));
    });
    stages.push(vec![second]);
    stages.push(vec![operation("container", |_, shard| async move {
        shard.create_container(OTHER).await.expect("created");
    })]);
    stages.push(vec![remove(PunchScope::Dkeys(vec![key("d1"), key("d2")]), 30)]);
    stages.push(vec![operation("container", |_, shard| async move {
        shard.add_snapshot(CONTAINER, Epoch(KEPT)).await.expect("kept");
    })]);
    stages.push(vec![checkpoint(), store_value(0, 210, 60), store_value(6, 211, 5000)]);
    for (number, epoch) in (220..226).enumerate() {
        stages.push(vec![
            store_records(0, epoch, number as u64 * 4000, 5000),
            store_value(3, epoch + 10, 8000),
        ]);
    }
    stages.push(vec![aggregate(300)]);
    stages.push(vec![store_value(7, 310, 20_000), store_value(8, 311, 10)]);
    // So large that the device is told before they are compared with their checksums.
    stages.push(vec![store_value(6, 320, 70_000), store_value(5, 321, 90_000), store_value(0, 322, 40)]);
    stages.push(vec![operation(NOTHING, |store, _| async move {
        store.defragment().await.expect("a healthy disk");
    })]);
    stages.push(vec![prepare(0)]);
    stages.push(vec![checkpoint()]);
    stages.push(vec![decide(0, true)]);
    stages.push(vec![prepare(1)]);
    stages.push(vec![decide(1, false)]);
    stages.push(vec![transact(2)]);
    stages.push(vec![operation("pool", |store, _| async move {
        store.resize_pool(POOL, 4 << 20).await.expect("space");
    })]);
    stages.push(vec![operation("container", |_, shard| async move {
        shard.set_quota(CONTAINER, 3 << 20).await.expect("set");
    })]);
    stages.push(vec![operation("pool", |store, _| async move {
        store.destroy_pool(SECOND).await.expect("destroyed");
    })]);
    stages.push(vec![operation("container", |_, shard| async move {
        shard.destroy_container(OTHER).await.expect("destroyed");
    })]);
    stages.push(vec![checkpoint(), store_value(9, 1 << 61, 4097), set_attribute("n0", 7000)]);
    stages.push(vec![remove(PunchScope::Object, (1 << 61) + 1)]);
    stages.push(vec![checkpoint()]);
    stages.push(vec![checkpoint()]);
    stages
}

/// A value in the index, values of a block that are new and that replace it, a delete and a checkpoint.
pub fn few() -> Vec<Stage> {
    let mut stages: Vec<Stage> = create(3 << 20).into();
    stages.push(vec![store_value(0, 10, 50)]);
    stages.push(vec![store_value(1, 11, 4096)]);
    stages.push(vec![checkpoint()]);
    stages.push(vec![store_value(0, 20, 4096)]);
    stages.push(vec![remove(PunchScope::Dkeys(vec![key("d1")]), 30)]);
    stages.push(vec![store_value(1, 40, 4096)]);
    stages
}

/// A pool as large as the disk is filled, refuses, and is emptied.
pub fn full() -> Vec<Stage> {
    let [_, container] = create(0);
    let all = Operation {
        changes: "pool".to_owned(),
        run: Box::new(|store| {
            Box::pin(async move {
                let size = store.space().capacity;
                drop(store.create_pool(POOL, size).await.expect("space"));
            })
        }),
    };
    let mut stages: Vec<Stage> = vec![vec![all], container];
    for number in 0..14 {
        stages.push(vec![operation("data", move |_, shard| async move {
            let stored = put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, 700_000)).await;
            assert!(matches!(stored, Ok(_) | Err(UpdateError::NoSpace { .. })), "{stored:?}");
            assert!(number < 12 || stored.is_err(), "the disk is larger than meant");
        })]);
    }
    stages.push(vec![operation(NOTHING, |store, _| async move {
        let error = store.resize_pool(POOL, 1 << 20).await;
        assert!(matches!(error, Err(PoolError::InUse { .. })), "{error:?}");
    })]);
    stages.push(vec![checkpoint()]);
    for number in 0..3 {
        stages.push(vec![remove(PunchScope::Dkeys(vec![key(&format!("d{number}"))]), 20 + number)]);
    }
    stages.push(vec![aggregate(100)]);
    stages.push(vec![store_value(13, 400, 900_000)]);
    stages.push(vec![checkpoint()]);
    stages
}
