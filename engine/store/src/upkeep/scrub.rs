//! The scrubber: reads everything on the device at a bounded rate, and compares it with its checksums before a request needs
//! it.
//!
//! It goes by the stable checkpoint, node by node, as an open would. So it checks the device and not memory, and loads no
//! unused node into memory. The store changes meanwhile: the scrubber looks for a node that a newer checkpoint has replaced
//! from the root of that checkpoint, and counts a value that doesn't match as damaged only if the index still refers to it.
//!
//! It writes damaged metadata again if the store has another copy: nodes that are in memory, the superblock with its two
//! copies, bitmaps and headers, of which each checkpoint writes others. So the next open doesn't meet this damage. Damaged data it
//! leaves to whoever can get it from another target ([`crate::Store::take_rotten`]).

mod fixed;

use crate::format::ScrubPosition;
use crate::format::key;
use crate::format::node::PageRef;
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Payload, Version};
use crate::index::fault::{Halt, PageError};
use crate::index::tree::{Body, Child, LEVELS_MAX, NodeLocation, Packed};
use crate::log::checkpoint::wait_for_room;
use crate::operations::fetch::hold_blocks;
use crate::state::config::ScrubConfig;
use crate::state::core::Core;
use crate::state::pace::PIECE;
use crate::state::rot;
use crate::state::rot::{Rot, RottenVersion};
use crate::state::subject::{subject_of, version_of};
use core::time::Duration;
use std::rc::Rc;
use weir_runtime::Instant;

/// How often a node that a newer checkpoint replaced is looked for again before the pass goes on behind it.
const TRIES_MAX: u32 = 8;

/// Pause before the first pass: an engine that has just started has clients to serve first.
const START_PAUSE: Duration = Duration::from_mins(1);

/// Shortest pause between two passes, however short the interval: an empty store must not be read in a loop.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// How often a checkpoint that stores how far a pass has come is asked for, when nothing else needs one: what is read
/// again after a restart.
const SAVE_INTERVAL: Duration = Duration::from_mins(5);

/// Bounds the rate: who has read waits until as much may have been read.
struct Budget {
    rate: u64,
    next: Instant,
}

impl Budget {
    async fn spend(&mut self, core: &Core, bytes: u64) {
        core.scrub.report.borrow_mut().bytes += bytes;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(1));
        // What was not used while others were busy isn't made up for.
        self.next =
            self.next.max(core.rt.now()) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        core.rt.sleep_until(self.next).await;
    }
}

/// Makes passes until the store stops. A pass that a restart has interrupted goes on where it was.
pub(crate) async fn run(core: Rc<Core>, config: ScrubConfig) {
    core.rt.sleep(START_PAUSE.min(config.interval)).await;
    loop {
        let position = core.scrub.position();
        let begin_ns = if position.resume().is_empty() {
            core.rt.sleep(pause(&core, config, position.begin_ns)).await;
            core.rt.wall_ns()
        } else {
            position.begin_ns
        };
        if pass(&core, config, begin_ns, position.resume().to_vec()).await.is_none() {
            return;
        }
        core.scrub.set_position(ScrubPosition::new(begin_ns, &[]));
        core.checkpoints.request.notify_one();
        {
            let mut report = core.scrub.report.borrow_mut();
            report.passes += 1;
            report.last_ns = core.rt.wall_ns();
        }
        core.rt.sleep(PAUSE_MIN).await;
    }
}

/// How long the next pass has to wait for when the last one began then. A clock that was set back costs one interval at
/// most.
fn pause(core: &Core, config: ScrubConfig, begin_ns: u64) -> Duration {
    if begin_ns == 0 {
        return Duration::ZERO;
    }
    let passed = core.rt.wall_ns().saturating_sub(begin_ns);
    config.interval.saturating_sub(Duration::from_nanos(passed))
}

/// Whether scrubbing is to end. A device that is out of use gives nothing to be compared.
fn is_over(core: &Core) -> bool {
    core.is_stopped() || core.has_failed() || core.device.fault().is_some()
}

/// Reads everything once, the index and what it refers to from a key on. `None`: the store stops.
async fn pass(core: &Rc<Core>, config: ScrubConfig, begin_ns: u64, from: Vec<u8>) -> Option<()> {
    if is_over(core) {
        return None;
    }
    let mut budget = Budget { rate: config.bytes_per_second, next: core.rt.now() };
    fixed::check(core, &mut budget).await;
    let (mut from, mut tries, mut renewed) = (Some(from), 0, None);
    let mut saved = core.rt.now();
    while let Some(key) = from {
        if is_over(core) {
            return None;
        }
        core.scrub.set_position(ScrubPosition::new(begin_ns, &key));
        if core.rt.now() - saved >= SAVE_INTERVAL {
            saved = core.rt.now();
            core.checkpoints.request.notify_one();
        }
        let number = core.checkpoints.header.get().number;
        let step = leaf_at(core, &key, &mut budget).await;
        let is_replaced = core.checkpoints.header.get().number != number;
        match step {
            Step::Leaf(entries, next) => {
                check_values(core, &entries, &key, &mut budget).await?;
                (from, tries) = (next, 0);
            }
            // Read while its blocks were given to something else: not what was asked for.
            Step::Bad { .. } if is_replaced && tries < TRIES_MAX => {
                tries += 1;
                from = Some(key);
            }
            Step::Bad { place, reason, next } => {
                let renews = !is_replaced && renew(core, &key, place).await;
                if !is_replaced && renewed != Some(place) {
                    report_node(core, place, reason, renews);
                }
                (from, tries, renewed) = if renews && tries < TRIES_MAX {
                    // What is below hasn't been looked at.
                    wait_for_room(core).await;
                    (Some(key), tries + 1, Some(place))
                } else {
                    (next, 0, None)
                };
            }
        }
    }
    Some(())
}

/// What a step found.
enum Step {
    /// The leaf that a key belongs to, and where the next one begins.
    Leaf(Packed, Option<Vec<u8>>),
    /// A node on the way that isn't what its parent says, and where what is behind it begins.
    Bad { place: PageRef, reason: String, next: Option<Vec<u8>> },
}

/// Goes from the root of the stable checkpoint to the leaf of a key.
async fn leaf_at(core: &Rc<Core>, wanted: &[u8], budget: &mut Budget) -> Step {
    let mut place = core.checkpoints.header.get().root;
    let mut next: Option<Vec<u8>> = None;
    for _ in 0..LEVELS_MAX {
        let bad = |reason: String| Step::Bad { place, reason, next: next.clone() };
        let node = match core.read_node(place).await {
            Ok(node) => node,
            Err(PageError::Corrupt { reason, .. }) => return bad(reason.to_owned()),
            Err(PageError::Media(error)) => return bad(error.to_string()),
        };
        budget.spend(core, place.len.into()).await;
        match node {
            Body::Leaf(entries) => return Step::Leaf(entries, next),
            Body::Branch(keys, children) => {
                let at = keys.search(wanted).unwrap_or_else(|at| at.saturating_sub(1));
                let Some(child) = children.get(at).and_then(Child::page) else {
                    return bad("it has no child for a key".to_owned());
                };
                if at + 1 < keys.len() {
                    next = Some(keys.key(at + 1));
                }
                place = child;
            }
        }
    }
    Step::Bad { place, reason: "it is deeper than an index can be".to_owned(), next }
}

fn report_node(core: &Core, place: PageRef, reason: String, renewed: bool) {
    let location = core.location("an index node", core.layout.data(place.block));
    rot::report(core, Rot { location, len: place.len.into(), pool: None, subject: None, reason, renewed });
}

/// Has a node written to another place that a key leads to, if it is in memory. Returns whether the next checkpoint does without
/// this place.
async fn renew(core: &Core, key: &[u8], place: PageRef) -> bool {
    loop {
        let location = core.tree.borrow().location(key, place);
        let depth = match location {
            NodeLocation::Gone => break,
            NodeLocation::Memory(depth) if core.has_room_for_metadata() => depth,
            NodeLocation::Memory(_) | NodeLocation::Device => return false,
        };
        if core.has_room() {
            core.tree.borrow_mut().renew(key, depth);
            break;
        }
        // A log or an index that is crowded passes.
        if core.admit().await.is_err() {
            return false;
        }
    }
    core.checkpoints.request.notify_one();
    true
}

/// Compares the data of a leaf's values, from a key on. `None`: the store stops.
async fn check_values(core: &Rc<Core>, entries: &Packed, from: &[u8], budget: &mut Budget) -> Option<()> {
    for at in 0..entries.len() {
        let key = entries.key(at);
        if key.as_slice() < from || !key::is_version(&key) {
            continue;
        }
        let value = entries.value(at);
        let Ok(Version { payload: Payload::Blocks(blocks), .. }) = Version::decode(value) else { continue };
        if is_over(core) {
            return None;
        }
        let bad = {
            // Until the comparison is over the blocks aren't given to another value.
            let _guard = hold_blocks(core);
            let bad = compare(core, &blocks).await;
            if bad.is_empty() || !is_current(core, &key, value).await { Vec::new() } else { bad }
        };
        if !bad.is_empty() {
            report_values(core, &key, value, bad);
        }
        budget.spend(core, blocks.runs.iter().map(|run| run.bytes()).sum()).await;
    }
    Some(())
}

/// Hands a damaged version over to who may repair it, or reports its pieces.
fn report_values(core: &Core, key: &[u8], value: &[u8], bad: Vec<BadPiece>) {
    let (pool, subject) = subject_of(&core.catalog.borrow(), key, value);
    let place = |BadPiece { offset, len, reason }: BadPiece| {
        let location = core.location("data", offset);
        Rot { location, len, pool, subject: subject.clone(), reason, renewed: false }
    };
    let mut places: Vec<Rot> = bad.into_iter().map(place).collect();
    if let Some((pool, version)) = version_of(&core.catalog.borrow(), key, value) {
        match rot::hand_over(core, RottenVersion { pool, version, places }) {
            Ok(()) => return,
            Err(back) => places = back,
        }
    }
    for place in places {
        rot::report(core, place);
    }
}

/// Whether the index still says this of a key.
async fn is_current(core: &Core, key: &[u8], value: &[u8]) -> bool {
    // An index that can't be read is reported when the scrubber comes to its nodes.
    let found = core.ask(|tree| Ok::<_, Halt<String>>(tree.get(key)?)).await;
    found.is_ok_and(|found| found.as_deref() == Some(value))
}

/// A piece of a value that isn't what was stored.
struct BadPiece {
    offset: u64,
    len: u64,
    reason: String,
}

/// Compares all pieces of a value with their checksums.
async fn compare(core: &Core, blocks: &Blocks) -> Vec<BadPiece> {
    let chunk_len = |number: u64| {
        let range = blocks.chunks.range(number);
        in_memory(range.end - range.start)
    };
    let (mut bad, mut piece, mut piece_at, mut index) = (Vec::new(), Vec::new(), 0, 0);
    let (mut left, mut chunk) = (blocks.len(), chunk_len(0));
    for run in &blocks.runs {
        let mut done = 0;
        while done < run.bytes() && left > 0 {
            let (offset, len) = (core.layout.data(run.block) + done, (PIECE as u64).min(run.bytes() - done));
            let wanted = in_memory(len);
            let buffer = match core.read_behind(offset, wanted).await {
                Ok(buffer) => buffer,
                // What can't be read can't be compared either: the rest of the value is left to the next pass.
                Err(error) => {
                    bad.push(BadPiece { offset, len, reason: error.to_string() });
                    return bad;
                }
            };
            let used = in_memory(left.min(len));
            left -= used as u64;
            let mut at = 0;
            while at < used {
                if piece.is_empty() {
                    piece_at = offset + at as u64;
                }
                let taken = (chunk - piece.len()).min(used - at);
                piece.extend_from_slice(&buffer[at..at + taken]);
                at += taken;
                if piece.len() == chunk {
                    let expected = blocks.checksums.get(in_memory(index));
                    if expected != Some(&crate::format::codec::crc32c(&piece)) {
                        let (len, reason) = (piece.len() as u64, "it does not match its checksum".to_owned());
                        bad.push(BadPiece { offset: piece_at, len, reason });
                    }
                    index += 1;
                    if index < blocks.chunks.count() {
                        chunk = chunk_len(index);
                    }
                    piece.clear();
                }
            }
            done += len;
        }
    }
    bad
}
