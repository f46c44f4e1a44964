//! Defragmentation: where free space lies in holes between values, values are moved together, so that there is room for long
//! extents again.
//!
//! A pass chooses the segments with the least in use, reserves their free blocks, and goes once through the index. It reads a
//! value with blocks in these segments, compares it with its checksums, and writes it into a hole elsewhere. A record of the
//! log then replaces its entry, as for any change. The pass puts a scattered value into one run if there is room for it. A
//! value keeps its checksums, so that damage never gets a new checksum.

use crate::format::blocks::{Run, Runs};
use crate::format::codec::Malformed;
use crate::format::codec::crc32c;
use crate::format::key::{self, OBJECT, PoolNumber};
use crate::format::record::Change;
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Payload, Version};
use crate::index::fault::Halt;
use crate::operations::fetch::hold_blocks;
use crate::space::map::{Purpose, SEGMENT};
use crate::state::core::{Core, add};
use crate::state::defragmentation::Pass;
use crate::state::error::PoolError;
use crate::state::pace::read_blocks_behind;
use crate::state::reservation::Reservation;
use crate::upkeep::aggregate::ChoreError;
use crate::upkeep::merge::write_data;
use core::ops::ControlFlow;
use core::time::Duration;
use std::rc::Rc;

/// Segments that one pass empties at most: so many that going through the index is worth it, so few that the blocks
/// kept from others are a small part of the device.
const VICTIMS_MAX: usize = 64;

/// One segment in this many is empty, or else background work begins a pass: as long as there are more, moving values
/// only wears the device.
const EMPTY_DIVISOR: u64 = 8;

/// Part of the free blocks that a pass keeps from others at most.
const HELD_DIVISOR: u64 = 4;

/// Index entries looked at in one piece of work: some 50 µs.
const LOOKS_MAX: usize = 512;

/// Pause after a pass that gained nothing, or when none was due.
pub(crate) const REST: Duration = Duration::from_mins(1);

/// A value to be moved.
struct Candidate {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// What a look at the index found.
enum Look {
    Candidate(Candidate),
    /// Others have their turn; this is where to go on.
    Pause(Vec<u8>),
    End,
}

/// Chooses what to empty. `None`: nothing would be gained.
fn plan(core: &Core, is_wanted: bool) -> Option<Pass> {
    let space = core.space.borrow();
    let scatter = space.scatter();
    let is_due = is_wanted || scatter.empty * EMPTY_DIVISOR < scatter.segments;
    if !is_due || scatter.holes < 2 * SEGMENT {
        return None;
    }
    let victims = space.sparse_segments(VICTIMS_MAX, space.free() / HELD_DIVISOR);
    let mut victims = (!victims.is_empty()).then_some(victims)?;
    victims.sort_by_key(|segment| segment.block);
    Some(Pass { victims, from: vec![OBJECT], hole: 0, empty: scatter.empty, damaged: None })
}

impl Pass {
    fn meets(&self, run: Run) -> bool {
        let first = self.victims.partition_point(|victim| victim.block + victim.count <= run.block);
        self.victims.get(first).is_some_and(|victim| victim.block < run.block + run.count)
    }

    /// Whether a value should be elsewhere: in a segment that is to be emptied, or in one piece.
    fn concerns(&self, value: &[u8]) -> bool {
        Version::has_blocks(value)
            && Version::runs(value)
                .is_ok_and(|runs| runs.len() > 1 || runs.iter().any(|run| self.meets(*run)))
    }
}

/// Does one piece of a pass. Returns whether there was anything to do.
pub(crate) async fn work(core: &Rc<Core>) -> Result<bool, ChoreError> {
    let begun = core.defragmentation.borrow_mut().pass.take();
    let rests = core.defragmentation.borrow().rest_until.is_some_and(|until| core.rt.now() < until);
    if begun.is_none() && rests {
        return Ok(false);
    }
    let Some(pass) = begun.or_else(|| plan(core, false)) else {
        rest(core);
        return Ok(false);
    };
    match advance(core, pass).await {
        Ok(Some(pass)) => core.defragmentation.borrow_mut().pass = Some(pass),
        Ok(None) => {}
        Err(error) => {
            core.space.borrow_mut().release_held();
            rest(core);
            return Err(error);
        }
    }
    Ok(true)
}

/// Gives back what a pass keeps from others, however the work on it ends.
struct Held<'a>(&'a Core);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.space.borrow_mut().release_held();
    }
}

fn rest(core: &Core) {
    core.defragmentation.borrow_mut().rest_until = Some(core.rt.now() + REST);
}

/// Goes on with a pass. `None`: it is over.
async fn advance(core: &Rc<Core>, mut pass: Pass) -> Result<Option<Pass>, ChoreError> {
    core.admit().await?;
    // Also what was freed since the last time.
    core.space.borrow_mut().hold_free(&pass.victims);
    let look = match look(core, &pass).await {
        Err(ChoreError::Page(error)) => {
            pass.damaged = Some(error);
            core.tree.borrow().behind_absent(&pass.from).map_or(Look::End, Look::Pause)
        }
        look => look?,
    };
    match look {
        Look::Pause(from) => pass.from = from,
        Look::Candidate(candidate) => {
            pass.from = key::after(&candidate.key);
            if relocate(core, &mut pass, candidate).await? {
                add(&core.counters.relocated, 1);
            }
        }
        Look::End => {
            // What was moved away is free once that is durable.
            core.make_durable(core.journal.last()).await?;
            core.space.borrow_mut().release_held();
            if core.space.borrow().scatter().empty <= pass.empty {
                rest(core);
            }
            return pass.damaged.map_or(Ok(None), |error| Err(error.into()));
        }
    }
    Ok(Some(pass))
}

/// Finds the next value that the pass moves.
async fn look(core: &Core, pass: &Pass) -> Result<Look, ChoreError> {
    let look = core.ask(|tree| {
        let mut looks = 0;
        let found = tree.scan(&pass.from, |key, value| {
            looks += 1;
            if key.first() != Some(&OBJECT) {
                return ControlFlow::Break(Look::End);
            }
            if key::is_version(key) && pass.concerns(value) {
                let candidate = Candidate { key: key.to_vec(), value: value.to_vec() };
                return ControlFlow::Break(Look::Candidate(candidate));
            }
            if looks >= LOOKS_MAX {
                return ControlFlow::Break(Look::Pause(key::after(key)));
            }
            ControlFlow::Continue(())
        })?;
        Ok::<_, Halt<ChoreError>>(found.unwrap_or(Look::End))
    });
    look.await
}

/// Reserves the place that a value moves to. `None`: there is none that is better than where it is.
fn allocate(core: &Core, pass: &mut Pass, blocks: &Blocks) -> Option<Run> {
    let count: u64 = blocks.runs.iter().map(|run| run.count).sum();
    if !core.has_blocks(count) {
        return None;
    }
    let mut space = core.space.borrow_mut();
    if let Some(run) = space.allocate_in_hole(count, &mut pass.hole) {
        return Some(run);
    }
    let is_scattered = blocks.runs.len() > 1;
    let runs = is_scattered.then(|| space.allocate(count, Purpose::Data, 1)).flatten()?;
    runs.first().copied()
}

/// Moves a value, unless it is damaged, has changed meanwhile or has nowhere to go, or the device can't write it there: the next
/// pass tries it again. Returns whether it was moved.
async fn relocate(core: &Rc<Core>, pass: &mut Pass, candidate: Candidate) -> Result<bool, ChoreError> {
    let Candidate { key, value } = candidate;
    let Version { record_size, payload: Payload::Blocks(mut blocks) } = Version::decode(&value)? else {
        return Ok(false);
    };
    let (pool, _): (PoolNumber, _) = key::owner(&key).ok_or(Malformed("a version's key names no pool"))?;
    let guard = hold_blocks(core);
    let mut bytes = vec![0; in_memory(blocks.len())];
    // What is damaged stays where it is: a reader is told. The sum is one of the stored checksums, so that it says whether
    // the bytes in memory are still those.
    let read = read_blocks_behind(core, &blocks, 0, None, &mut bytes).await;
    let Ok(sum) = read else { return Ok(false) };
    if sum != crc32c(&bytes) {
        add(&core.counters.checksum_errors, 1);
        return Ok(false);
    }
    let Some(run) = allocate(core, pass, &blocks) else { return Ok(false) };
    // The pool has as much afterwards as before.
    let reservation = Reservation::of_runs(core, pool, Runs::from([run]));
    let Some(mut reservation) = write_data(core, reservation, bytes).await? else { return Ok(false) };
    blocks.runs = Runs::from([run]);
    let moved = Version { record_size, payload: Payload::Blocks(blocks) }.encode();
    let is_current = core.ask(|tree| {
        tree.reach([key.as_slice()])?;
        Ok::<_, Halt<ChoreError>>(tree.get(&key)?.as_ref() == Some(&value))
    });
    if !is_current.await? {
        return Ok(false);
    }
    core.commit(&[Change::Put { key, value: moved }], None)?;
    reservation.keep();
    drop(guard);
    Ok(true)
}

/// Moves values together until no more is gained by it. Returns the number of values moved ([`crate::Store::defragment`]).
pub(crate) async fn run(core: &Rc<Core>) -> Result<u64, PoolError> {
    let before = core.counters.relocated.get();
    // Nobody goes on with a pass whose caller waits no longer.
    let _held = Held(core);
    loop {
        // Background work may be at it.
        let pass = core.defragmentation.borrow_mut().pass.take();
        let Some(mut pass) = pass.or_else(|| plan(core, true)) else { break };
        let empty = pass.empty;
        loop {
            let advanced = advance(core, pass).await.map_err(|error| match error {
                ChoreError::Page(error) => PoolError::Index(error.to_string()),
                ChoreError::Failed(reason) => PoolError::Failed(reason),
            });
            match advanced? {
                Some(next) => pass = next,
                None => break,
            }
        }
        if core.space.borrow().scatter().empty <= empty {
            break;
        }
    }
    Ok(core.counters.relocated.get() - before)
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::checkpoint::tests::on_a_disk;
    use crate::upkeep::merge::tests::{fill, shown};
    use weir_proto::object::Extent;

    #[test]
    fn a_value_that_the_device_does_not_take_elsewhere_stays_where_it_is() {
        on_a_disk(async |_, disk, _store, shard| {
            let extent = Extent { index: 0, count: 10_000 };
            fill(&shard, 1, extent, 7).await;
            let core = Rc::clone(&shard.core);
            let (from, victims) = (vec![OBJECT], vec![Run { block: 0, count: SEGMENT }]);
            let mut pass = Pass { victims, from, hole: 0, empty: 0, damaged: None };
            for is_refused in [true, false] {
                let Look::Candidate(candidate) = look(&core, &pass).await.expect("sound") else {
                    panic!("the value isn't found");
                };
                let free = core.space.borrow().free();
                if is_refused {
                    disk.make_unwritable(0..u64::MAX);
                }
                let moved = relocate(&core, &mut pass, candidate).await;
                disk.make_writable();
                assert_eq!(moved.expect("the store goes on"), !is_refused);
                assert_eq!(core.space.borrow().free() == free, is_refused, "what was reserved");
                assert!(shown(&shard, extent).await == [7; 10_000]);
            }
        });
    }
}
