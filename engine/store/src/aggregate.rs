//! Aggregation: dropping versions that no snapshot and no recent reader can see.
//!
//! A *pin* is an epoch whose state must stay: each snapshot up to the horizon, and the horizon itself, which lies the
//! configured retention in the past. Of what is not newer than the horizon, only what is visible at a pin stays.
//! Objects that were overwritten or punched are queued; each is visited once its oldest change is past the horizon, and changes
//! have gathered behind it for a while.

use crate::codec::Malformed;
use crate::extents::STEP_LOOKS;
use crate::journal::ObjectKey;
use crate::key::{self, ContainerNumber, Path, PoolNumber};
use crate::merge::{Left, Place, merge_akey};
use crate::paging::{Fault, Halt, PageError};
use crate::record::Change;
use crate::state::{CommitError, Core, add};
use crate::sweep::{Events, IdleHoles, Pass, Pins, Sweep};
use crate::tree::Tree;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use weir_proto::{Key, ObjectId};

/// Most index entries removed by one record: some 200 µs of work.
pub(crate) const REMOVALS_MAX: usize = 64;

/// Pause of a visit while somebody else visits the same object, as one that a client has asked for may.
const PRESENCE_PAUSE: Duration = Duration::from_millis(1);

/// Objects that are remembered to be visited, some 10 MiB. Of containers with more, all objects are visited.
const OBJECTS_MAX: usize = 64 * 1024;

/// Akeys that are remembered to be visited once more, some megabytes with the longest keys. A visit that finds no room here
/// goes on at once.
const RESTS_MAX: usize = 1024;

/// What a visit has left to be done of an akey, so that others don't wait for longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    object: ObjectKey,
    place: Place,
    /// The horizon of the visit before.
    since: u64,
    left: Left,
}

/// What is to be visited.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Objects with the epoch of their oldest change since the last visit, and the horizon of that visit.
    objects: BTreeMap<ObjectKey, (u64, u64)>,
    order: BTreeSet<(u64, ObjectKey)>,
    /// Containers to be visited as a whole, after an open or when a snapshot was given up: each with the index key
    /// where the visit goes on.
    containers: BTreeMap<(PoolNumber, ContainerNumber), Vec<u8>>,
    /// Containers with changed objects that aren't remembered, each with the epoch of the oldest change of one.
    crowded: BTreeMap<(PoolNumber, ContainerNumber), u64>,
    /// Akeys that need more than one visit.
    rests: VecDeque<Rest>,
    /// Whose turn it is: a container's, an akey's, an object's.
    turn: u8,
    /// Whose task was taken last.
    at_work: Option<(PoolNumber, ContainerNumber)>,
    /// Objects that are being visited.
    visited: BTreeSet<ObjectKey>,
    /// Destroyed containers with nodes that can't be read, each with the index key behind those that were met; `None`: nothing
    /// is left behind them.
    pub(crate) damaged: BTreeMap<(PoolNumber, ContainerNumber), Option<Vec<u8>>>,
    /// Nodes with decisions that can't be read, by the index key behind them, empty when nothing is.
    pub(crate) lost: BTreeSet<Vec<u8>>,
}

/// What background aggregation does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Visits an object, up to the last visit's horizon known.
    Object(ObjectKey, u64),
    /// Visits the next object of a container, from this index key on.
    Container(PoolNumber, ContainerNumber, Vec<u8>),
    /// Goes on with an akey.
    Akey(Box<Rest>),
}

impl Task {
    fn owner(&self) -> (PoolNumber, ContainerNumber) {
        match self {
            Self::Object((pool, container, _), _) | Self::Container(pool, container, _) => {
                (*pool, *container)
            }
            Self::Akey(rest) => (rest.object.0, rest.object.1),
        }
    }
}

/// Whose history is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    All,
    Pool(PoolNumber),
    Container(PoolNumber, ContainerNumber),
}

impl Whose {
    pub(crate) fn has(self, (pool, container): (PoolNumber, ContainerNumber)) -> bool {
        match self {
            Self::All => true,
            Self::Pool(number) => number == pool,
            Self::Container(of, number) => (of, number) == (pool, container),
        }
    }
}

/// Objects that are looked at, oldest change first, to find out whether somebody's are among them.
const LOOKS_MAX: usize = 1024;

impl Queue {
    /// An object has versions of this epoch that may hide others.
    pub(crate) fn add_object(&mut self, object: ObjectKey, epoch: u64) {
        self.add_again(object, epoch, 0);
    }

    /// Like [`Queue::add_object`], knowing that everything up to `since` was looked at.
    fn add_again(&mut self, object: ObjectKey, epoch: u64, since: u64) {
        let is_full = self.objects.len() >= OBJECTS_MAX;
        match self.objects.entry(object) {
            Entry::Occupied(_) => {}
            Entry::Vacant(_) if is_full => {
                let oldest = self.crowded.entry((object.0, object.1)).or_insert(epoch);
                *oldest = epoch.min(*oldest);
            }
            Entry::Vacant(entry) => {
                entry.insert((epoch, since));
                self.order.insert((epoch, object));
            }
        }
    }

    pub(crate) fn add_container(&mut self, pool: PoolNumber, container: ContainerNumber) {
        self.containers.insert((pool, container), key::objects(pool, container));
    }

    /// A container's visit goes on from this index key, unless it was to begin anew meanwhile.
    pub(crate) fn resume_container(&mut self, pool: PoolNumber, container: ContainerNumber, from: Vec<u8>) {
        self.containers.entry((pool, container)).or_insert(from);
    }

    /// An akey is to be visited once more. Returns what there is no room for.
    fn add_rest(&mut self, rest: Rest) -> Option<Rest> {
        let is_same = |known: &&mut Rest| known.object == rest.object && known.place == rest.place;
        if let Some(known) = self.rests.iter_mut().find(is_same) {
            // A visit of the whole object came between.
            *known = rest;
        } else if self.rests.len() < RESTS_MAX {
            self.rests.push_back(rest);
        } else {
            return Some(rest);
        }
        None
    }

    /// Takes an akey of an object that is to be visited once more.
    pub(crate) fn take_rest_of(&mut self, object: ObjectKey) -> Option<Rest> {
        let at = self.rests.iter().position(|rest| rest.object == object)?;
        self.rests.remove(at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.containers.is_empty()
            && self.crowded.is_empty()
            && self.rests.is_empty()
    }

    /// Takes what is next, of what has changed only what has gathered changes up to `ripe`. Objects that have changed,
    /// containers and akeys that take long take turns, so that none keeps the others waiting.
    pub(crate) fn take(&mut self, ripe: u64) -> Option<Task> {
        self.turn = (self.turn + 1) % 3;
        let task = (0..3).find_map(|step| match (self.turn + step) % 3 {
            0 => self.take_object(ripe),
            1 => self.take_container(ripe),
            _ => self.rests.pop_front().map(|rest| Task::Akey(Box::new(rest))),
        });
        self.at_work = task.as_ref().map(Task::owner);
        task
    }

    /// Whether changes of theirs of this epoch or earlier wait to be visited or are being visited. Where that takes too long to
    /// find out, it is assumed.
    pub(crate) fn has_changes(&self, whose: Whose, epoch: u64) -> bool {
        let owner = |object: &ObjectKey| (object.0, object.1);
        let mut oldest = self.order.iter().take_while(|(changed, _)| *changed <= epoch);
        oldest.by_ref().take(LOOKS_MAX).any(|(_, object)| whose.has(owner(object)))
            || oldest.next().is_some()
            || self.containers.keys().any(|container| whose.has(*container))
            || self.crowded.iter().any(|(container, oldest)| *oldest <= epoch && whose.has(*container))
            || self.rests.iter().any(|rest| whose.has(owner(&rest.object)))
            || self.at_work.is_some_and(|owner| whose.has(owner))
    }

    /// Takes an object whose oldest change is as old as this, with the horizon of its last visit.
    fn take_object(&mut self, ripe: u64) -> Option<Task> {
        let (epoch, object) = self.order.first().copied()?;
        if epoch > ripe {
            return None;
        }
        self.order.pop_first();
        let (_, since) = self.objects.remove(&object)?;
        Some(Task::Object(object, since))
    }

    /// Takes a container whose visit is to begin or to go on, or one with changes as old as this that aren't remembered.
    fn take_container(&mut self, ripe: u64) -> Option<Task> {
        if let Some(((pool, container), from)) = self.containers.pop_first() {
            return Some(Task::Container(pool, container, from));
        }
        let (pool, container) = *self.crowded.iter().find(|(_, epoch)| **epoch <= ripe)?.0;
        self.crowded.remove(&(pool, container));
        Some(Task::Container(pool, container, key::objects(pool, container)))
    }
}

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
struct Ground<'a> {
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
    async fn new(core: &'a Core, object: ObjectKey) -> Option<Self> {
        while !core.aggregation.borrow_mut().visited.insert(object) {
            if core.is_stopped() || core.has_failed() {
                return None;
            }
            core.rt.sleep(PRESENCE_PAUSE).await;
        }
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
    let Some(_presence) = Presence::new(core, object).await else { return Ok(true) };
    let Some(snapshots) = snapshots_of(core, object) else { return Ok(true) };
    let mut visit = Visit::new(object, &snapshots, since, horizon);
    let ground = Ground::new(core, object, Rc::clone(&snapshots), horizon);
    let has_ended = visit_parts(&ground, &mut visit).await?;
    // The next visit comes when there is more to do, or knows of snapshots that this one didn't.
    let next = if has_ended { visit.newer.map(|newer| (newer, horizon)) } else { Some((horizon, since)) };
    if let Some((epoch, since)) = next {
        core.aggregation.borrow_mut().add_again(object, epoch, since);
    }
    Ok(has_ended)
}

/// Goes on with an akey that a visit has left.
pub(crate) async fn visit_akey(core: &Rc<Core>, rest: Rest, horizon: u64) -> Result<(), ChoreError> {
    let object = rest.object;
    let Some(_presence) = Presence::new(core, object).await else { return Ok(()) };
    let Some(snapshots) = snapshots_of(core, object) else { return Ok(()) };
    let mut visit = Visit::new(object, &snapshots, rest.since, horizon);
    let ground = Ground::new(core, object, Rc::clone(&snapshots), horizon);
    core.admit().await?;
    if !settle(&ground, &mut visit, rest).await? {
        // The object as a whole is visited once more, knowing of snapshots that this visit didn't.
        core.aggregation.borrow_mut().add_again(object, horizon, visit.since);
    }
    Ok(())
}

/// Merges an akey and removes what is hidden then; what takes too long is left to another visit. Returns `false` when the
/// ground has gone in between.
async fn settle(ground: &Ground<'_>, visit: &mut Visit<'_>, mut rest: Rest) -> Result<bool, ChoreError> {
    let (core, object) = (ground.core, ground.object);
    loop {
        if let Some(from) = rest.left.from {
            let left = merge_akey(core, object, &rest.place, ground.horizon, from).await?;
            rest.left = Left { hides: rest.left.hides || left.hides, ..left };
        }
        if rest.left.from.is_none() && rest.left.hides {
            let sweep = Sweep::new(rest.place.clone(), visit.pins());
            let Some((_, is_crowded)) = clean(ground, visit, sweep, false).await? else { return Ok(false) };
            rest.left.hides = is_crowded;
        }
        if rest.left.from.is_none() && !rest.left.hides {
            return Ok(true);
        }
        let Some(refused) = core.aggregation.borrow_mut().add_rest(rest) else { return Ok(true) };
        if core.is_stopped() {
            return Ok(true);
        }
        rest = refused;
    }
}

/// Goes through the parts of an object. Returns `false` when the ground has gone in between.
async fn visit_parts(ground: &Ground<'_>, visit: &mut Visit<'_>) -> Result<bool, ChoreError> {
    let core = ground.core;
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
                let is_whole = ground.run(&mut *events, false).await?;
                visit.note_newer(events.newer);
                if !is_whole {
                    return Ok(false);
                }
                let Some(next) = next else { return Ok(true) };
                next
            }
            Part::Akey(sweep, has_ended) => {
                let cleaned = clean(ground, visit, *sweep, has_ended).await?;
                let Some((place, hides)) = cleaned else { return Ok(false) };
                let behind = key::after(place[2].as_bytes());
                let left = Left { from: Some(0), hides };
                let rest = Rest { object: ground.object, place, since: visit.since, left };
                if !settle(ground, visit, rest).await? {
                    return Ok(false);
                }
                behind
            }
            Part::Nothing(next) => next,
        };
        core.breathe().await;
    }
}

/// The snapshots of an object's container; `None`: it is gone.
pub(crate) fn snapshots_of(core: &Core, object: ObjectKey) -> Option<Rc<BTreeSet<u64>>> {
    let catalog = core.catalog.borrow();
    let pool = catalog.pools.get(&object.0).filter(|pool| !pool.destroying)?;
    let container = pool.containers.get(&object.1).filter(|container| !container.destroying)?;
    Some(Rc::clone(&container.snapshots))
}

impl<'a> Ground<'a> {
    fn new(core: &'a Rc<Core>, object: ObjectKey, snapshots: Rc<BTreeSet<u64>>, horizon: u64) -> Self {
        core.expire_credit((object.0, object.1), horizon);
        Self { core, object, snapshots: RefCell::new(snapshots), horizon, removed: Cell::new(0) }
    }

    /// Whether all that the visit has concluded holds: nobody has made a snapshot since that lies before its horizon.
    fn holds(&self) -> bool {
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
                self.core.breathe().await;
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
            self.core.expire_credit((self.object.0, self.object.1), self.horizon);
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
            self.core.breathe().await;
        }
        Ok(true)
    }
}

/// Removes what nobody can see of an akey, step by step, after a first step has been made. Returns the akey's place, and
/// whether more may be found now that some has gone; `None` when the visit's ground has gone.
async fn clean(
    ground: &Ground<'_>,
    visit: &mut Visit<'_>,
    mut sweep: Sweep<'_>,
    has_ended: bool,
) -> Result<Option<(Place, bool)>, ChoreError> {
    let before = ground.removed.get();
    let is_whole = ground.run(&mut sweep, has_ended).await?;
    visit.note_newer(sweep.newer);
    let mut is_crowded = sweep.is_crowded();
    let place = sweep.place;
    // What an earlier visit left below the floor may be what a hole hides.
    let may_idle = is_whole && sweep.has_holes && visit.floor == 0;
    if may_idle {
        let mut holes = IdleHoles::new(place[2].clone(), visit.horizon);
        if !ground.run(&mut holes, false).await? {
            return Ok(None);
        }
        is_crowded |= holes.is_crowded();
    }
    let mut events = Events::new(&place[..2], place[2].clone(), visit.pins());
    let is_whole = is_whole && ground.run(&mut events, false).await?;
    visit.note_newer(events.newer);
    Ok(is_whole.then(|| (place, is_crowded && ground.removed.get() > before)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_changes_until_who_took_them_comes_for_more() {
        let object = |container, lo| (1, container, ObjectId { hi: 0, lo });
        let mut queue = Queue::default();
        let has = |queue: &Queue, epoch| {
            [Whose::Container(1, 1), Whose::Container(1, 2), Whose::Pool(1), Whose::Pool(2), Whose::All]
                .map(|whose| queue.has_changes(whose, epoch))
        };
        assert_eq!(has(&queue, u64::MAX), [false; 5]);
        queue.add_object(object(1, 7), 100);
        assert_eq!(has(&queue, 99), [false; 5]);
        let of_first = [true, false, true, false, true];
        assert_eq!(has(&queue, 100), of_first);
        assert!(queue.take(100).is_some());
        assert_eq!(has(&queue, 100), of_first, "it is being visited");
        assert!(queue.take(100).is_none());
        assert_eq!(has(&queue, 100), [false; 5]);
        queue.add_container(1, 2);
        assert_eq!(has(&queue, 0), [false, true, true, false, true]);
        assert!(queue.take(0).is_some() && queue.take(0).is_none());
        let (path, left) = (Path::object(1, 1, object(1, 7).2), Left { from: Some(0), hides: false });
        let place = [path.clone(), path.clone(), path];
        assert_eq!(queue.add_rest(Rest { object: object(1, 7), place, since: 0, left }), None);
        assert_eq!(has(&queue, 0), of_first);
        assert!(queue.take(0).is_some() && queue.take(0).is_none());
        for lo in 0..=LOOKS_MAX as u64 {
            queue.add_object(object(1, lo), 5);
        }
        assert!(queue.has_changes(Whose::Pool(2), 5), "nobody looks at all of so many");
        assert!(!queue.has_changes(Whose::Pool(2), 4));
        let mut queue = Queue { crowded: BTreeMap::from([((1, 2), 5)]), ..Queue::default() };
        assert_eq!(has(&queue, 5), [false, true, true, false, true]);
        assert_eq!(has(&queue, 4), [false; 5]);
        assert!(queue.take(5).is_some());
    }

    #[test]
    fn of_more_objects_than_are_remembered_those_of_their_containers_are_visited() {
        let object = |container, lo| (1, container, ObjectId { hi: 0, lo });
        let (mut queue, most) = (Queue::default(), OBJECTS_MAX as u64);
        (0..most).for_each(|lo| queue.add_object(object(7, lo), 10));
        for epoch in [30, 20] {
            (most..2 * most).for_each(|lo| queue.add_object(object(8, lo), epoch));
        }
        assert_eq!(queue.objects.len(), OBJECTS_MAX);
        queue.add_object(object(7, 0), 40);
        let mut visit = |ripe| core::iter::from_fn(|| queue.take(ripe)).collect::<Vec<Task>>();
        assert_eq!(visit(9), [], "nothing is old enough");
        let visited = visit(19);
        assert!(visited.len() == OBJECTS_MAX && visited.iter().all(|task| matches!(task, Task::Object(..))));
        assert_eq!(visit(20), [Task::Container(1, 8, key::objects(1, 8))]);
        assert!(queue.is_empty());
    }
}
