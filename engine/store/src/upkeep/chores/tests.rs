use super::*;
use crate::format::blocks::Runs;
use crate::log::checkpoint::tests::{POOL, checkpoint, fill as fill_nodes, on_a_disk, open};
use crate::operations::operation::Operation;
use crate::state::aggregation::RemainingMerges;
use crate::state::aggregation::UnfinishedAkey;
use crate::state::paging::PINNED;
use crate::state::reservation::Reservation;
use crate::store::Store;
use crate::upkeep::merge::tests::{CONTAINER, fill, on_a_shard, shown};
use weir_media::sim::SimDisk;
use weir_proto::object::{Conditions, Extent, PunchScope};
use weir_proto::{Key, TransactionId};
use weir_runtime::Handle;

/// Prepared transactions with one piece of operations each, fewer by one than a record of reclaim takes entries.
const SHORT: u128 = RECLAIM_STEP as u128 - 1;
/// Such with several pieces each.
const LONG: u128 = 3;

/// Longer than what is hidden stays, and what is put off is put off.
const SOME_TIME: Duration = Duration::from_secs(10);

/// Prepares transactions.
async fn prepare(shard: &Shard) {
    for number in 0..SHORT + LONG {
        let len = if number < SHORT { 10 } else { 1000 };
        let dkeys = (0..18).map(|dkey| Key::new(&[b'a' + dkey].repeat(len)).expect("a key"));
        let object = ObjectId { hi: 0, lo: u64::try_from(number).expect("few") };
        let scope = PunchScope::Dkeys(dkeys.collect());
        let punch = Operation::Punch { object, scope, conditions: Conditions::NONE };
        let (id, epoch) = (transaction(number), Epoch(shard.core.rt.wall_ns() + 1000));
        shard.prepare(CONTAINER, id, epoch, &[punch]).await.expect("prepared");
    }
}

fn transaction(number: u128) -> TransactionId {
    TransactionId(uuid::Uuid::from_u128(number))
}

/// Closes and opens a store after each record of reclaim. Returns how often.
async fn reclaim_and_open(handle: &Handle, disk: &SimDisk, mut store: Rc<Store>) -> u64 {
    for opens in 1.. {
        store.close().await.expect("closed");
        store = open(handle, disk).await;
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
        on_a_disk(async move |handle, disk, store, shard| {
            prepare(&shard).await;
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
            assert!(reclaim_and_open(&handle, &disk, store).await > 2);
        });
    }
}

#[test]
fn a_store_opens_that_an_earlier_release_left_with_the_ends_of_transactions() {
    on_a_disk(async |handle, disk, store, shard| {
        prepare(&shard).await;
        let place = (shard.number, shard.locate(CONTAINER).expect("there"), transaction(SHORT));
        shard.destroy_container(CONTAINER).await.expect("destroyed");
        let first = Change::Remove { key: key::transaction(place, TransactionTail::Operations(0)) };
        shard.core.tree.borrow().reach([first.key()]).expect("in memory");
        shard.core.commit(&[first], None).expect("taken");
        drop(shard);
        assert!(reclaim_and_open(&handle, &disk, store).await > 2);
    });
}

/// Does background work until there is none, some time from now.
async fn work_later(core: &Rc<Core>) -> Result<(), ChoreError> {
    core.rt.sleep(SOME_TIME).await;
    work_out(core).await
}

/// Does background work until there is none.
async fn work_out(core: &Rc<Core>) -> Result<(), ChoreError> {
    for _ in 0..1000 {
        if !work(core).await? {
            return Ok(());
        }
    }
    panic!("it doesn't come to rest");
}

/// Stores extents each of which hides half of the one before.
async fn overlap(shard: &Shard) {
    for index in 0..8 {
        let byte = u8::try_from(index).expect("small");
        fill(shard, 1 + index, Extent { index: 8192 * index, count: 16 << 10 }, byte).await;
    }
}

/// Whether overlapping extents still show what they did.
async fn are_shown(shard: &Shard) -> bool {
    let parts = shown(shard, Extent { index: 0, count: 9 * 8192 }).await;
    parts.chunks(8192).zip([0, 1, 2, 3, 4, 5, 6, 7, 7]).all(|(part, byte)| *part == [byte; 8192])
}

#[test]
fn merges_that_find_no_room_are_made_when_there_is_some() {
    on_a_shard(async |shard| {
        overlap(&shard).await;
        let (core, before) = (Rc::clone(&shard.core), shard.space().used());
        let mut held = Reservation::of_runs(&core, shard.number, Runs::new());
        let free = core.catalog.borrow().pools[&shard.number].free();
        held.take(free);
        for _ in 0..3 {
            work_later(&core).await.expect("nothing fails");
            assert_eq!(shard.space().used(), before);
        }
        assert!(!core.aggregation.borrow().has_changes(Whose::All, u64::MAX), "nobody waits for it");
        drop(held);
        work_later(&core).await.expect("nothing fails");
        let after = shard.space().used();
        assert!(after < before * 3 / 4, "{after} bytes are used, and {before} before");
        assert!(core.aggregation.borrow().is_empty() && are_shown(&shard).await);
    });
}

#[test]
fn merges_that_the_device_does_not_take_are_made_later() {
    on_a_disk(async |_, disk, _store, shard| {
        overlap(&shard).await;
        let core = Rc::clone(&shard.core);
        core.rt.sleep(SOME_TIME).await;
        let (before, free) = (shard.space().used(), core.space.borrow().free());
        disk.make_unwritable(0..u64::MAX);
        work_out(&core).await.expect("the store goes on");
        assert!(core.device.stats().errors > 0, "nothing was written");
        disk.make_writable();
        assert_eq!((shard.space().used(), core.space.borrow().free()), (before, free));
        work_later(&core).await.expect("nothing fails");
        let after = shard.space().used();
        assert!(after < before * 3 / 4, "{after} bytes are used, and {before} before");
        assert!(core.aggregation.borrow().is_empty() && are_shown(&shard).await);
    });
}

#[test]
fn what_could_not_be_read_once_is_visited_later() {
    on_a_disk(async |_, disk, _store, shard| {
        let (core, container) = (Rc::clone(&shard.core), shard.locate(CONTAINER).expect("there"));
        let object = (shard.number, container, ObjectId { hi: 0, lo: 1 });
        let path = Path::object(object.0, object.1, object.2);
        let dkey = path.dkey(&Key::from_u64(350));
        let place = [path, dkey.clone(), dkey.akey(&Key::new(b"a").expect("a key"))];
        let left = RemainingMerges { from: Some(0), hides: true, is_stuck: false };
        let rest = UnfinishedAkey { object, place, since: 0, left, failures: 0 };
        let tasks = [
            Task::Object(object, 0),
            Task::Akey(Box::new(rest)),
            Task::Container(object.0, object.1, key::objects(object.0, object.1)),
        ];
        fill_nodes(&shard, 0).await;
        checkpoint(&core).await;
        for task in tasks {
            core.aggregation.take();
            core.aggregation.borrow_mut().put_back(task.clone(), 0);
            core.tree.borrow().sweep_anew();
            core.tree.borrow().evict(0, PINNED, u64::MAX, usize::MAX);
            disk.make_unreadable(0..u64::MAX);
            let visited = work(&core).await;
            disk.make_readable();
            assert!(matches!(visited, Err(ChoreError::Page(PageError::Media(_)))), "{task:?}: {visited:?}");
            work_out(&core).await.expect("it can be read");
            assert!(!core.aggregation.borrow().is_empty(), "{task:?} is forgotten");
            core.rt.sleep(SOME_TIME).await;
            let before = core.tree.borrow().visits();
            assert!(work(&core).await.expect("it can be read"));
            assert!(core.tree.borrow().visits() > before, "{task:?}");
            work_out(&core).await.expect("it can be read");
            assert!(core.aggregation.borrow().is_empty(), "{task:?}");
        }
    });
}

#[test]
fn what_can_not_be_read_for_long_is_seldom_tried() {
    on_a_disk(async |_, disk, _store, shard| {
        let (core, container) = (Rc::clone(&shard.core), shard.locate(CONTAINER).expect("there"));
        fill_nodes(&shard, 0).await;
        checkpoint(&core).await;
        let object = (shard.number, container, ObjectId { hi: 0, lo: 1 });
        for task in [Task::Object(object, 0), Task::Container(object.0, object.1, Vec::new())] {
            core.aggregation.take();
            core.aggregation.borrow_mut().put_back(task.clone(), 0);
            core.tree.borrow().sweep_anew();
            core.tree.borrow().evict(0, PINNED, u64::MAX, usize::MAX);
            disk.make_unreadable(0..u64::MAX);
            let mut failures = 0;
            for _ in 0..360 {
                core.rt.sleep(SOME_TIME).await;
                failures += u32::from(work_out(&core).await.is_err());
            }
            assert!((5..30).contains(&failures), "{task:?}: {failures} failures in an hour");
            disk.make_readable();
            core.rt.sleep(Duration::from_hours(10)).await;
            work_out(&core).await.expect("it can be read");
            assert!(core.aggregation.borrow().is_empty(), "{task:?}");
        }
    });
}

/// Has the index on the device alone, where it can't be read while background work is done.
async fn work_in_vain(core: &Rc<Core>, disk: &SimDisk) {
    checkpoint(core).await;
    core.tree.borrow().sweep_anew();
    core.tree.borrow().evict(0, PINNED, u64::MAX, usize::MAX);
    disk.make_unreadable(0..u64::MAX);
    let worked = work_out(core).await;
    disk.make_readable();
    worked.expect("the store goes on");
}

#[test]
fn what_reclaim_could_not_read_goes_some_time_later() {
    on_a_disk(async |_, disk, store, shard| {
        let core = Rc::clone(&shard.core);
        fill_nodes(&shard, 0).await;
        shard.destroy_container(CONTAINER).await.expect("destroyed");
        work_in_vain(&core, &disk).await;
        work_out(&core).await.expect("it can be read");
        assert!(core.catalog.borrow().has_destroyed(), "a device that may be ill isn't asked at once");
        core.rt.sleep(Duration::from_mins(6)).await;
        work_out(&core).await.expect("it can be read");
        assert!(!core.catalog.borrow().has_destroyed() && shard.space().used() == 0, "space is lost");
        assert_eq!(store.audit().await.problems, [""; 0]);
    });
}
