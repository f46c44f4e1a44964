//! Power failures exhaustively: the writes and flushes of a run are recorded, and after every single one of them the store
//! is recovered from every content that its disk may have then: with each subset of the sectors that weren't flushed kept
//! or lost, or, when there are too many subsets, with none, all, single ones lost or kept, prefixes and random ones. What
//! is recovered must be what was acknowledged; of what was under way each change is there as a whole or not at all.
//!
//! Of a short run it is each subset of up to a block and a record, without exception. `WEIR_STORE_CRASH_SUBSETS` makes the subsets many: all of up to that many sectors, and as many of each other kind.

pub mod record;
pub mod workload;

use crate::setup::*;
use record::{Bounds, Recorder, Replay};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_media::sim::SECTOR;
use weir_runtime::join_all;
use weir_runtime::random::Random;
use weir_store::Store;
use workload::{Observation, Stage, observe};

/// Sectors that a write of one block may keep or lose.
const SECTORS_OF_BLOCK: usize = 4096 / SECTOR;

/// A stage of a run that was recorded: what the store showed before and after, and when each operation was acknowledged.
struct Done {
    begin: usize,
    before: Observation,
    after: Observation,
    /// What each operation changes, as the beginning of names, and the moment of its acknowledgement.
    operations: Vec<(String, usize)>,
}

fn bounds() -> Bounds {
    match std::env::var("WEIR_STORE_CRASH_SUBSETS").map(|value| value.parse().expect("a number")) {
        Ok(many) => Bounds { whole: many, spread: many * 4, random: many as u64 * 4 },
        Err(_) => Bounds { whole: 5, spread: 3, random: 3 },
    }
}

/// Runs the stages one behind the other on a recorded disk that begins empty. Returns the record, the moment at which
/// the disk was formatted, and the stages.
fn record(seed: u64, size: u64, stages: Vec<Stage>) -> (Recorder, usize, Vec<Done>) {
    let machine = Machine::new(seed, size);
    let recorder = Recorder::new(machine.device());
    let (device, handle): (Rc<dyn Device>, _) = (Rc::new(recorder.clone()), machine.handle());
    let noting = recorder.clone();
    let (formatted, done) = machine.run(async move {
        Store::format(&handle, &device, &format_options()).await.expect("an empty disk");
        let formatted = noting.moment();
        let store = Store::open(&handle, device, &owner(), quiet()).await.expect("a new store");
        let mut done: Vec<Done> = Vec::new();
        let mut before = observe(&store).await;
        for stage in stages {
            let begin = noting.moment();
            let moments = Rc::new(RefCell::new(vec![0; stage.len()]));
            let mut names = Vec::new();
            let running = stage.into_iter().enumerate().map(|(number, operation)| {
                names.push(operation.changes);
                let (moments, noting) = (Rc::clone(&moments), noting.clone());
                let run = (operation.run)(Rc::clone(&store));
                async move {
                    run.await;
                    moments.borrow_mut()[number] = noting.moment();
                }
            });
            join_all(running.collect::<Vec<_>>()).await;
            let after = observe(&store).await;
            let operations = names.into_iter().zip(moments.take()).collect();
            done.push(Done { begin, before, after: after.clone(), operations });
            before = after;
        }
        (formatted, done)
    });
    (recorder, formatted, done)
}

impl Done {
    /// Operations that were acknowledged by a moment.
    fn acknowledged(&self, moment: usize) -> usize {
        self.operations.iter().filter(|(_, at)| *at <= moment).count()
    }

    /// Compares what was recovered with what may be there.
    fn check(&self, found: &Observation, moment: usize) -> Result<(), String> {
        let names: std::collections::BTreeSet<&String> =
            self.before.keys().chain(self.after.keys()).chain(found.keys()).collect();
        let mut kept: Vec<Option<bool>> = vec![None; self.operations.len()];
        for name in names {
            let [before, after, now] = [&self.before, &self.after, found].map(|state| state.get(name));
            if before == after {
                if now != before {
                    return Err(format!("{name}: {now:?} for {before:?}"));
                }
                continue;
            }
            let owner = self.operations.iter().position(|(changes, _)| name.starts_with(changes.as_str()));
            let Some(owner) = owner else { return Err(format!("{name} was changed by nobody")) };
            if now != before && now != after {
                return Err(format!("{name}: {now:?}, neither {before:?} nor {after:?}"));
            }
            let is_there = now == after;
            if *kept[owner].get_or_insert(is_there) != is_there {
                return Err(format!("a change is there by half: {name}"));
            }
            if !is_there && self.operations[owner].1 <= moment {
                return Err(format!("{name}: {now:?}, but {after:?} was acknowledged"));
            }
        }
        Ok(())
    }
}

/// Recovers a store and looks at it, and sometimes lets it go on. `None`: the disk isn't formatted.
fn recover(device: &MemoryDevice, goes_on: bool) -> Result<Option<Observation>, String> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(7, async move |handle| {
        let store = match Store::open(&handle, Rc::clone(&disk), &owner(), quiet()).await {
            Ok(store) => store,
            Err(error) if error.is_unformatted() => {
                Store::format(&handle, &disk, &format_options()).await.map_err(|error| error.to_string())?;
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        };
        let audit = store.audit().await;
        if let Some(problem) = audit.problems.first() {
            return Err(problem.clone());
        }
        let found = observe(&store).await;
        if goes_on {
            // What the recovered store takes stays, too.
            let shard =
                store.create_pool(workload::LATE, 1 << 20).await.map_err(|error| error.to_string())?;
            shard.create_container(CONTAINER).await.map_err(|error| error.to_string())?;
            put(&shard, "late", "a", 1 << 62, &pattern(1, 9000)).await.map_err(|error| error.to_string())?;
            store.checkpoint().await.map_err(|error| error.to_string())?;
            drop((store, shard));
            let store =
                Store::open(&handle, disk, &owner(), quiet()).await.map_err(|error| error.to_string())?;
            let shard = store.pool(workload::LATE).ok_or("the new pool is lost")?;
            if get(&shard, "late", "a", u64::MAX).await != Ok(Some(pattern(1, 9000))) {
                return Err("what was stored after recovery is lost".to_owned());
            }
            if observe(&store).await != found {
                return Err("going on has changed what was there".to_owned());
            }
        }
        Ok(Some(found))
    })
}

/// What was tried.
struct Tried {
    contents: u64,
    /// Sectors that weren't flushed at each moment of which every subset was tried.
    whole: Vec<usize>,
}

impl Tried {
    /// Moments with at least so many sectors of which every subset was tried.
    fn whole_of(&self, sectors: usize) -> usize {
        self.whole.iter().filter(|loose| **loose >= sectors).count()
    }

    fn report(&self) {
        let counts = [1, 4, SECTORS_OF_BLOCK].map(|sectors| self.whole_of(sectors));
        println!("{} contents; moments in full, with 1, 4, 8 sectors and more: {counts:?}", self.contents);
    }
}

/// Records a run and tries every content that any of its moments may leave, within bounds.
fn exhaust(seed: u64, size: u64, stages: Vec<Stage>, goes_on: bool, bounds: Bounds) -> Tried {
    let (recorder, formatted, done) = record(seed, size, stages);
    let some = Random::new(seed);
    let (mut replay, mut tried) = (Replay::new(&recorder), 0);
    while replay.advance() {
        let moment = replay.moment();
        let stage = done.iter().rposition(|stage| stage.begin <= moment);
        let acknowledged = stage.map_or(0, |at| at * 1000 + 1 + done[at].acknowledged(moment));
        for device in replay.contents(acknowledged, bounds, &some) {
            tried += 1;
            let context = || format!("seed {seed}, moment {moment}, stage {stage:?}, content {tried}");
            let found = match recover(&device, goes_on && tried % 16 == 0) {
                Ok(found) => found,
                Err(error) => panic!("{}: {error}", context()),
            };
            match (found, stage) {
                (Some(found), Some(at)) => {
                    if let Err(difference) = done[at].check(&found, moment) {
                        panic!("{}: {difference}", context());
                    }
                }
                (Some(found), None) => assert_eq!(found, BTreeMap::new(), "{}", context()),
                (None, _) => assert!(moment < formatted, "{}: it was formatted", context()),
            }
        }
    }
    Tried { contents: tried, whole: replay.whole }
}

#[test]
fn every_content_that_a_power_failure_may_leave_recovers_what_was_acknowledged() {
    let tried = exhaust(1, 16 << 20, workload::everything(), true, bounds());
    tried.report();
    assert!(tried.contents > 800, "only {} contents", tried.contents);
}

#[test]
fn every_content_that_a_power_failure_may_leave_a_full_disk_recovers_what_was_acknowledged() {
    let tried = exhaust(2, 15 << 20, workload::full(), false, bounds());
    tried.report();
    assert!(tried.contents > 100, "only {} contents", tried.contents);
}

#[test]
fn every_subset_of_the_sectors_of_a_block_and_its_record_recovers_what_was_acknowledged() {
    let bounds = Bounds { whole: bounds().whole.max(SECTORS_OF_BLOCK + 1), ..bounds() };
    let tried = exhaust(3, 15 << 20, workload::few(), false, bounds);
    tried.report();
    assert!(tried.whole_of(SECTORS_OF_BLOCK) >= 4, "{:?}", tried.whole);
    assert!(tried.whole_of(SECTORS_OF_BLOCK + 1) >= 2, "{:?}", tried.whole);
}
