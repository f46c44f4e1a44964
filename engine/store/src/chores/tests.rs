use super::*;
use crate::config::{FormatOptions, Owner, StoreConfig};
use crate::merge::tests::CONTAINER;
use crate::operation::Operation;
use crate::store::Store;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{Key, PoolId, Rank, TargetIndex, TransactionId};
use weir_runtime::Handle;
use weir_runtime::sim::World;

const POOL: PoolId = PoolId(uuid::Uuid::from_u128(2));

/// Prepared transactions with one piece of operations each, fewer by one than a record of reclaim takes entries.
const SHORT: u128 = RECLAIM_STEP as u128 - 1;
/// Such with several pieces each.
const LONG: u128 = 3;

/// A device on which a store is opened again and again.
struct Bench {
    handle: Handle,
    device: Rc<dyn Device>,
    owner: Owner,
}

impl Bench {
    async fn open(&self) -> Rc<Store> {
        let config = StoreConfig { background: false, ..StoreConfig::default() };
        let opened = Store::open(&self.handle, Rc::clone(&self.device), &self.owner, config).await;
        opened.expect("it opens")
    }
}

/// Runs something on a device whose store has a pool with a container with prepared transactions.
fn on_a_bench(test: impl AsyncFnOnce(Bench, Shard, Rc<Store>) + 'static) {
    let world = World::new(1);
    let node = world.node("engine-0");
    let handle = node.handle();
    world.block_on(&node, async move {
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(64 << 20));
        let owner = Owner { system: "weir".to_owned(), rank: Rank(1), target: TargetIndex(0) };
        let options = FormatOptions { owner: owner.clone(), log_bytes: None };
        Store::format(&handle, &device, &options).await.expect("empty");
        let bench = Bench { handle, device, owner };
        let store = bench.open().await;
        let shard = store.create_pool(POOL, 32 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("created");
        for number in 0..SHORT + LONG {
            let len = if number < SHORT { 10 } else { 1000 };
            let dkeys = (0..18).map(|dkey| Key::new(&[b'a' + dkey].repeat(len)).expect("a key"));
            let object = ObjectId { hi: 0, lo: u64::try_from(number).expect("few") };
            let scope = PunchScope::Dkeys(dkeys.collect());
            let punch = Operation::Punch { object, scope, conditions: Conditions::NONE };
            let (id, epoch) = (transaction(number), Epoch(bench.handle.wall_ns() + 1000));
            shard.prepare(CONTAINER, id, epoch, &[punch]).await.expect("prepared");
        }
        test(bench, shard, store).await;
    });
}

fn transaction(number: u128) -> TransactionId {
    TransactionId(uuid::Uuid::from_u128(number))
}

/// Closes and opens a store after each record of reclaim. Returns how often.
async fn reclaim_and_open(bench: &Bench, mut store: Rc<Store>) -> u64 {
    for opens in 1.. {
        store.close().await.expect("closed");
        store = bench.open().await;
        if !reclaim(store.core_rc()).await.expect("a sound index") {
            assert_eq!(store.audit().await.problems, [""; 0]);
            return opens;
        }
    }
    unreachable!("it ends")
}

#[test]
fn a_store_opens_whatever_is_gone_of_transactions_of_destroyed_containers_and_pools() {
    for has_pool in [true, false] {
        on_a_bench(async move |bench, shard, store| {
            let container = shard.locate(CONTAINER).expect("there");
            if has_pool {
                shard.destroy_container(CONTAINER).await.expect("destroyed");
            } else {
                store.destroy_pool(POOL).await.expect("destroyed");
            }
            let (pool, core) = (shard.number, Rc::clone(&shard.core));
            drop(shard);
            let pieces = |core: &Core| {
                let prefix = key::transactions(pool, container);
                let mut pieces = Vec::new();
                core.tree
                    .borrow()
                    .scan::<()>(&prefix, |key, _| {
                        if key.starts_with(&prefix) {
                            pieces.push(key::transaction_from(key).expect("sound"));
                        }
                        ControlFlow::Continue(())
                    })
                    .expect("in memory");
                pieces
            };
            let before = pieces(&core);
            assert!(before.len() as u128 > SHORT + 3 * LONG);
            assert!(reclaim(&core).await.expect("sound"));
            let left = pieces(&core);
            assert_eq!(
                before[before.len() - left.len()].1,
                TransactionTail::Operations(0),
                "a transaction was cut"
            );
            drop(core);
            assert!(reclaim_and_open(&bench, store).await > 2);
        });
    }
}

#[test]
fn a_store_opens_that_an_earlier_release_left_with_the_ends_of_transactions() {
    on_a_bench(async |bench, shard, store| {
        let place = (shard.number, shard.locate(CONTAINER).expect("there"), transaction(SHORT));
        shard.destroy_container(CONTAINER).await.expect("destroyed");
        let first = Change::Remove { key: key::transaction(place, TransactionTail::Operations(0)) };
        shard.core.tree.borrow().reach([first.key()]).expect("in memory");
        shard.core.commit(&[first], None).expect("taken");
        drop(shard);
        assert!(reclaim_and_open(&bench, store).await > 2);
    });
}
