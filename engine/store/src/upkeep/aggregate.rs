//! Aggregation: dropping versions that no snapshot and no recent reader can see.
//!
//! A *pin* is an epoch whose state must stay: each snapshot up to the horizon, and the horizon itself, which lies the
//! configured retention in the past. Of what is not newer than the horizon, only what is visible at a pin stays.
//! Objects that were overwritten or punched are queued; each is visited once its oldest change is past the horizon, and changes
//! have gathered behind it for a while.

use crate::format::codec::Malformed;
use crate::format::key::ObjectKey;
use crate::format::key::{self, Path};
use crate::format::record::Change;
use crate::index::extents::STEP_LOOKS;
use crate::index::fault::{Fault, Halt, PageError};
use crate::index::tree::Tree;
use crate::state::aggregation::UnfinishedAkey;
use crate::state::aggregation::{AkeyPaths, RemainingMerges};
use crate::state::catalog::snapshots_of;
use crate::state::core::{CommitError, Core, add};
use crate::upkeep::merge::{may_aggregate, merge_akey};
use crate::upkeep::sweep::{Events, IdleHoles, Pass, Pins, Sweep};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_proto::{Key, ObjectId};
use weir_runtime::nanos;

/// Most index entries removed by one record: some 200 µs of work.
pub(crate) const REMOVALS_MAX: usize = 64;

/// Pause of a visit while somebody else visits the same object, as one that a client has asked for may.
const PRESENCE_PAUSE: Duration = Duration::from_millis(1);

/// Why background work couldn't be done.
#[derive(Debug)]
pub(crate) enum ChoreError {
    /// A part of the index is damaged; what lies elsewhere is as good as ever.
    Page(PageError),
    /// The store has failed, or must.
    Failed(String),
}

impl From<PageError> for ChoreError {
    fn from(error: PageError) -> Self {
        Self::Page(error)
    }
}

impl From<String> for ChoreError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<Malformed> for ChoreError {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(malformed.to_string())
    }
}

impl From<CommitError> for ChoreError {
    fn from(error: CommitError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Fault> for Halt<ChoreError> {
    fn from(fault: Fault) -> Self {
        fault.map(ChoreError::from)
    }
}

/// What a visit comes to next.
enum Part<'a> {
    /// Events of something below which all has been cleaned, and where to go on.
    Events(Box<Events<'a>>, Option<Vec<u8>>),
    /// An akey, and whether the pass over it has come to its end.
    Akey(Box<Sweep<'a>>, bool),
    /// Nothing here: it goes on behind.
    Nothing(Vec<u8>),
}

/// One visit of an object.
struct Visit<'a> {
    object: ObjectId,
    path: Path,
    /// The dkey whose akeys are being visited.
    dkey: Option<Path>,
    snapshots: &'a BTreeSet<u64>,
    /// The newest pin whose state was settled by an earlier visit: what it shows stays as it is.
    floor: u64,
    horizon: u64,
    /// The horizon of the visit before.
    since: u64,
    /// Something newer than the horizon was met, of this epoch or later.
    newer: Option<u64>,
}

/// What a visit may rely on while it lasts.
struct VisitContext<'a> {
    core: &'a Rc<Core>,
    object: ObjectKey,
    /// Of which the visit knows all up to its horizon.
    snapshots: RefCell<Rc<BTreeSet<u64>>>,
    horizon: u64,
    /// Entries that were removed.
    removed: Cell<u64>,
}

/// Announces that an object is being visited.
struct Presence<'a>(&'a Core, ObjectKey);

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.aggregation.borrow_mut().visited.remove(&self.1);
    }
}

impl<'a> Presence<'a> {
    /// Waits until nobody else visits the object. `None`: the store stops.
    async fn new(core: &'a Core, object: ObjectKey, horizon: u64) -> Option<Self> {
        while core.aggregation.borrow().visited.contains_key(&object) {
            if core.is_stopped() || core.has_failed() {
                return None;
            }
            core.rt.sleep(PRESENCE_PAUSE).await;
        }
        core.aggregation.borrow_mut().visited.insert(object, horizon);
        Some(Self(core, object))
    }
}

/// Visits an object and removes what nobody can see. Others run between its parts. Returns `false` when a snapshot was
/// made meanwhile that the visit didn't know of; it is to be repeated then, and comes again by itself.
pub(crate) async fn visit_object(
    core: &Rc<Core>,
    object: ObjectKey,
    since: u64,
    horizon: u64,
) -> Result<bool, ChoreError> {
    let Some(_presence) = Presence::new(core, object, horizon).await else { return Ok(true) };
    let Some(snapshots) = snapshots_of(core, object) else { return Ok(true) };
    let mut visit = Visit::new(object, &snapshots, since, horizon);
    let context = VisitContext::new(core, object, Rc::clone(&snapshots), horizon);
    let has_ended = visit_parts(&context, &mut visit).await?;
    // The next visit comes when there is more to do, or knows of snapshots that this one didn't.
    let next = if has_ended { visit.newer.map(|newer| (newer, horizon)) } else { Some((horizon, since)) };
    if let Some((epoch, since)) = next {
        core.aggregation.borrow_mut().add_again(object, epoch, since);
    }
    Ok(has_ended)
}

/// Goes on with an akey that a visit has left.
pub(crate) async fn visit_akey(
    core: &Rc<Core>,
    rest: UnfinishedAkey,
    horizon: u64,
) -> Result<(), ChoreError> {
    let object = rest.object;
    let Some(_presence) = Presence::new(core, object, horizon).await else { return Ok(()) };
    let Some(snapshots) = snapshots_of(core, object) else { return Ok(()) };
    let mut visit = Visit::new(object, &snapshots, rest.since, horizon);
    let context = VisitContext::new(core, object, Rc::clone(&snapshots), horizon);
    core.admit().await?;
    if !settle(&context, &mut visit, rest).await? {
        // The object as a whole is visited once more, knowing of snapshots that this visit didn't.
        core.aggregation.borrow_mut().add_again(object, horizon, visit.since);
    }
    Ok(())
}

/// How often the pause before something is tried again doubles at most: to some hours.
const DOUBLINGS_MAX: u32 = 16;

/// The same where it is room that is waited for, which may be there at any time: to some half a minute.
const ROOM_DOUBLINGS_MAX: u32 = 6;

/// The epoch for which something is put off that can't be done at present, after so many failures in the past, so that it is
/// not tried over and over.
pub(crate) fn later(core: &Core, failures: u32) -> u64 {
    let pause = nanos(core.config.background_interval);
    core.rt.wall_ns().saturating_add(pause.saturating_mul(1 << failures.min(DOUBLINGS_MAX)))
}

/// Merges an akey and removes what is hidden then; what takes too long is left to another visit. Returns `false` when the
/// context has gone in between.
async fn settle(
    context: &VisitContext<'_>,
    visit: &mut Visit<'_>,
    mut rest: UnfinishedAkey,
) -> Result<bool, ChoreError> {
    let (core, object) = (context.core, context.object);
    loop {
        if let Some(from) = rest.left.from {
            let left = merge_akey(core, object, &rest.place, context.horizon, from).await?;
            rest.left = RemainingMerges { hides: rest.left.hides || left.hides, ..left };
            if !left.is_stuck {
                rest.failures = 0;
            }
        }
        let has_ended = rest.left.from.is_none() || rest.left.is_stuck;
        if has_ended && rest.left.hides {
            let sweep = Sweep::new(rest.place.clone(), visit.pins());
            let Some((_, is_crowded)) = clean(context, visit, sweep, false).await? else { return Ok(false) };
            rest.left.hides = is_crowded;
        }
        if has_ended && !rest.left.hides {
            if rest.left.is_stuck {
                let next = later(core, rest.failures.min(ROOM_DOUBLINGS_MAX));
                rest.failures = rest.failures.saturating_add(1);
                core.aggregation.borrow_mut().put_off(rest, next, later(core, ROOM_DOUBLINGS_MAX));
            }
            return Ok(true);
        }
        let Some(refused) = core.aggregation.borrow_mut().add_rest(rest) else { return Ok(true) };
        if core.is_stopped() {
            return Ok(true);
        }
        rest = refused;
    }
}

/// Goes through the parts of an object. Returns `false` when the context has gone in between.
async fn visit_parts(context: &VisitContext<'_>, visit: &mut Visit<'_>) -> Result<bool, ChoreError> {
    let core = context.core;
    let mut from = visit.path.below().to_vec();
    loop {
        core.admit().await?;
        // A step that is asked again begins where it began.
        let dkey = visit.dkey.clone();
        let step = core.ask(|tree| {
            visit.dkey.clone_from(&dkey);
            Ok::<_, Halt<ChoreError>>(visit.step(tree, &from)?)
        });
        from = match step.await? {
            Part::Events(mut events, next) => {
                let is_whole = context.run(&mut *events, false).await?;
                visit.note_newer(events.newer);
                if !is_whole {
                    return Ok(false);
                }
                let Some(next) = next else { return Ok(true) };
                next
            }
            Part::Akey(sweep, has_ended) => {
                let cleaned = clean(context, visit, *sweep, has_ended).await?;
                let Some((place, hides)) = cleaned else { return Ok(false) };
                let behind = key::after(place[2].as_bytes());
                let left = RemainingMerges { from: Some(0), hides, is_stuck: false };
                let rest =
                    UnfinishedAkey { object: context.object, place, since: visit.since, left, failures: 0 };
                if !settle(context, visit, rest).await? {
                    return Ok(false);
                }
                behind
            }
            Part::Nothing(next) => next,
        };
        core.yield_slice().await;
    }
}

impl<'a> VisitContext<'a> {
    fn new(core: &'a Rc<Core>, object: ObjectKey, snapshots: Rc<BTreeSet<u64>>, horizon: u64) -> Self {
        core.expire_reclaimable((object.0, object.1), horizon);
        Self { core, object, snapshots: RefCell::new(snapshots), horizon, removed: Cell::new(0) }
    }

    /// Whether all that the visit has concluded holds: history may still go, and nobody has made a snapshot since that lies before
    /// its horizon.
    fn holds(&self) -> bool {
        if !may_aggregate(self.core, self.object) {
            return false;
        }
        let Some(now) = snapshots_of(self.core, self.object) else { return false };
        let mut known = self.snapshots.borrow_mut();
        if Rc::ptr_eq(&now, &known) {
            return true;
        }
        // Both are in order: one walk along them tells.
        let mut of_known = known.range(..=self.horizon);
        let holds = now.range(..=self.horizon).all(|epoch| of_known.any(|known| known == epoch));
        if holds {
            *known = now;
        }
        holds
    }

    /// Goes through a pass, which may have come to its end already, and removes what it finds. Returns `false` when something
    /// has to stay after all.
    async fn run(&self, pass: &mut impl Pass, mut has_ended: bool) -> Result<bool, ChoreError> {
        loop {
            if !self.remove(core::mem::take(pass.dead())).await? {
                return Ok(false);
            }
            if has_ended {
                return Ok(true);
            }
            has_ended = self.core.ask(|tree| Ok::<_, Halt<ChoreError>>(pass.step(tree, STEP_LOOKS)?)).await?;
            if !has_ended {
                self.core.yield_slice().await;
            }
        }
    }

    /// Removes entries that the index has the way to. Returns `false` when they have to stay after all.
    fn commit(&self, keys: Vec<Vec<u8>>) -> Result<bool, ChoreError> {
        if !self.holds() {
            return Ok(false);
        }
        if !keys.is_empty() {
            // Updates since the visit began may be as old as a horizon that a client has asked for.
            self.core.expire_reclaimable((self.object.0, self.object.1), self.horizon);
            add(&self.core.counters.aggregated, keys.len() as u64);
            add(&self.removed, keys.len() as u64);
            let newest = self.horizon.min(self.core.newest_epoch());
            self.core.timestamps.note_removal(&self.object, newest);
            let removals: Vec<Change> = keys.into_iter().map(|key| Change::Remove { key }).collect();
            self.core.commit(&removals, None)?;
        }
        Ok(true)
    }

    /// Removes entries, some at a time. Returns `false` when they have to stay after all.
    async fn remove(&self, mut keys: Vec<Vec<u8>>) -> Result<bool, ChoreError> {
        while !keys.is_empty() {
            let rest = keys.split_off(keys.len().min(REMOVALS_MAX));
            self.core.admit().await?;
            let way = self.core.ask(|tree| {
                tree.reach(keys.iter().map(Vec::as_slice))?;
                Ok::<_, Halt<ChoreError>>(())
            });
            way.await?;
            if !self.commit(core::mem::replace(&mut keys, rest))? {
                return Ok(false);
            }
            self.core.yield_slice().await;
        }
        Ok(true)
    }
}

/// Removes what nobody can see of an akey, step by step, after a first step has been made. Returns the akey's place, and
/// whether more may be found now that some has gone; `None` when the visit's context has gone.
async fn clean(
    context: &VisitContext<'_>,
    visit: &mut Visit<'_>,
    mut sweep: Sweep<'_>,
    has_ended: bool,
) -> Result<Option<(AkeyPaths, bool)>, ChoreError> {
    let before = context.removed.get();
    let is_whole = context.run(&mut sweep, has_ended).await?;
    visit.note_newer(sweep.newer);
    let mut is_crowded = sweep.is_crowded();
    let place = sweep.place;
    // What an earlier visit left below the floor may be what a hole hides.
    let may_idle = is_whole && sweep.has_holes && visit.floor == 0;
    if may_idle {
        let mut holes = IdleHoles::new(place[2].clone(), visit.horizon);
        if !context.run(&mut holes, false).await? {
            return Ok(None);
        }
        is_crowded |= holes.is_crowded();
    }
    let mut events = Events::new(&place[..2], place[2].clone(), visit.pins());
    let is_whole = is_whole && context.run(&mut events, false).await?;
    visit.note_newer(events.newer);
    Ok(is_whole.then(|| (place, is_crowded && context.removed.get() > before)))
}

impl<'a> Visit<'a> {
    /// Of an object, of which an earlier visit has settled everything up to `since`.
    fn new(
        (pool, container, object): ObjectKey,
        snapshots: &'a BTreeSet<u64>,
        since: u64,
        horizon: u64,
    ) -> Self {
        // Snapshots that were made since the last visit may lie before it, but not before what it left.
        let floor = snapshots.range(..=since).next_back().copied().unwrap_or(0);
        let path = Path::object(pool, container, object);
        Self { object, path, dkey: None, snapshots, floor, horizon, since, newer: None }
    }

    /// Looks at the next akey, the end of a dkey or the end of the object. Returns what can go and where to go on.
    fn step(&mut self, tree: &Tree, from: &[u8]) -> Result<Part<'a>, Fault> {
        let found = tree.first_below(from, &self.path.below())?;
        let dkey = match &found {
            Some(rest) => Some(self.path.dkey(&key::dkey_from(self.object, rest)?)),
            None => None,
        };
        // Events of a dkey sort before its akeys, but can only be judged when those have been cleaned.
        if let Some(left) = self.dkey.take_if(|left| Some(&*left) != dkey.as_ref()) {
            let above = [self.path.clone()];
            return Ok(Part::Events(self.events(&above, left), Some(from.to_vec())));
        }
        let Some(dkey) = dkey else {
            return Ok(Part::Events(self.events(&[], self.path.clone()), None));
        };
        self.dkey = Some(dkey.clone());
        let below = dkey.below();
        let Some(rest) = tree.first_below(from.max(&below), &below)? else {
            return Ok(Part::Nothing(key::after(dkey.as_bytes())));
        };
        let akey: Key = key::akey_from(self.object, &rest)?;
        let akey = dkey.akey(&akey);
        let mut sweep = Sweep::new([self.path.clone(), dkey, akey], self.pins());
        let has_ended = sweep.step(tree, STEP_LOOKS)?;
        Ok(Part::Akey(Box::new(sweep), has_ended))
    }

    fn pins(&self) -> Pins<'a> {
        Pins { snapshots: self.snapshots, floor: self.floor, horizon: self.horizon }
    }

    fn events(&self, above: &[Path], path: Path) -> Box<Events<'a>> {
        Box::new(Events::new(above, path, self.pins()))
    }

    fn note_newer(&mut self, epoch: Option<u64>) {
        self.newer = self.newer.into_iter().chain(epoch).min();
    }
}
