//! Aggregation: dropping versions that no snapshot and no recent reader can see.
//!
//! A *pin* is an epoch whose state must stay: each snapshot up to the horizon, and the horizon itself, which lies the
//! configured retention in the past. Of what is not newer than the horizon, only what is visible at a pin stays.
//! Objects that were overwritten or punched are queued; each is visited once its oldest change is past the horizon.

use crate::codec::Malformed;
use crate::extents::{Stored, is_hole, paint};
use crate::incarnation::{Life, life};
use crate::journal::ObjectKey;
use crate::key::{self, ContainerNumber, Path, PoolNumber, Tail};
use crate::merge::{Place, merge_akey};
use crate::paging::{Fault, Halt, PageError};
use crate::record::Change;
use crate::state::{Core, add};
use crate::tree::Tree;
use crate::value::Event;
use core::ops::ControlFlow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_proto::object::Extent;
use weir_proto::{Key, ObjectId};

/// Most index entries removed by one record: some 200 µs of work.
const REMOVALS_MAX: usize = 64;

/// All records that can be named.
const ALL_RECORDS: Extent = Extent { index: 0, count: 1 << 63 };

/// What is to be visited.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Objects with the epoch of their oldest change since the last visit, and the horizon of that visit.
    objects: BTreeMap<ObjectKey, (u64, u64)>,
    order: BTreeSet<(u64, ObjectKey)>,
    /// Containers to be visited as a whole, after an open or when a snapshot was given up: each with the index key
    /// where the visit goes on.
    containers: BTreeMap<(PoolNumber, ContainerNumber), Vec<u8>>,
    /// Whether it is a container's turn.
    container_next: bool,
}

/// What background aggregation does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Visits an object, up to the last visit's horizon known.
    Object(ObjectKey, u64),
    /// Visits the next object of a container, from this index key on.
    Container(PoolNumber, ContainerNumber, Vec<u8>),
}

impl Queue {
    /// An object has versions of this epoch that may hide others.
    pub(crate) fn add_object(&mut self, object: ObjectKey, epoch: u64) {
        self.add_again(object, epoch, 0);
    }

    /// Like [`Queue::add_object`], knowing that everything up to `since` was looked at.
    fn add_again(&mut self, object: ObjectKey, epoch: u64, since: u64) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.objects.entry(object) {
            entry.insert((epoch, since));
            self.order.insert((epoch, object));
        }
    }

    pub(crate) fn add_container(&mut self, pool: PoolNumber, container: ContainerNumber) {
        self.containers.insert((pool, container), key::objects(pool, container));
    }

    /// A container's visit goes on from this index key, unless it was to begin anew meanwhile.
    pub(crate) fn resume_container(&mut self, pool: PoolNumber, container: ContainerNumber, from: Vec<u8>) {
        self.containers.entry((pool, container)).or_insert(from);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.containers.is_empty()
    }

    /// Takes what is next. Objects that have changed and containers take turns, so that neither keeps the other
    /// waiting.
    pub(crate) fn take(&mut self, horizon: u64) -> Option<Task> {
        self.container_next = !self.container_next;
        let first = if self.container_next { self.take_container() } else { None };
        let task = first.or_else(|| self.take_object(horizon));
        task.or_else(|| self.take_container())
    }

    /// Takes an object whose oldest change is past the horizon, with the horizon of its last visit.
    fn take_object(&mut self, horizon: u64) -> Option<Task> {
        let (epoch, object) = self.order.first().copied()?;
        if epoch > horizon {
            return None;
        }
        self.order.pop_first();
        let (_, since) = self.objects.remove(&object)?;
        Some(Task::Object(object, since))
    }

    fn take_container(&mut self) -> Option<Task> {
        let ((pool, container), from) = self.containers.pop_first()?;
        Some(Task::Container(pool, container, from))
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

impl From<Fault> for Halt<ChoreError> {
    fn from(fault: Fault) -> Self {
        fault.map(ChoreError::from)
    }
}

/// Keys that can go, where to go on, and an akey that is done.
type Step = (Vec<Vec<u8>>, Option<Vec<u8>>, Option<Place>);

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
    /// Something newer than the horizon was met, of this epoch or later.
    newer: Option<u64>,
}

/// Visits an object and removes what nobody can see. Others run between its parts.
pub(crate) async fn visit_object(
    core: &Rc<Core>,
    object: ObjectKey,
    since: u64,
    horizon: u64,
) -> Result<(), ChoreError> {
    let snapshots = {
        let catalog = core.catalog.borrow();
        let found = catalog.pools.get(&object.0).and_then(|pool| pool.containers.get(&object.1));
        let Some(container) = found.filter(|container| !container.destroying) else { return Ok(()) };
        Rc::clone(&container.snapshots)
    };
    // Snapshots that were made since the last visit may lie before it, but not before what it left.
    let floor = snapshots.range(..=since).next_back().copied().unwrap_or(0);
    let path = Path::object(object.0, object.1, object.2);
    let mut visit =
        Visit { object: object.2, path, dkey: None, snapshots: &snapshots, floor, horizon, newer: None };
    let mut from = visit.path.below().to_vec();
    loop {
        core.admit().await?;
        // A step that is asked again begins where it began.
        let dkey = visit.dkey.clone();
        let step = core.ask(|tree| {
            visit.dkey.clone_from(&dkey);
            let step = visit.step(tree, &from)?;
            tree.reach(step.0.iter().map(Vec::as_slice))?;
            Ok::<_, Halt<ChoreError>>(step)
        });
        let (removals, next, done) = step.await?;
        if !removals.is_empty() {
            add(&core.counters.aggregated, removals.len() as u64);
            let removals: Vec<Change> = removals.into_iter().map(|key| Change::Remove { key }).collect();
            core.commit(&removals, None)?;
        }
        if let Some(place) = done {
            merge_akey(core, object, &place, horizon).await?;
        }
        match next {
            Some(next) => from = next,
            None => break,
        }
        core.breathe().await;
    }
    if let Some(newer) = visit.newer {
        core.aggregation.borrow_mut().add_again(object, newer, horizon);
    }
    Ok(())
}

impl Visit<'_> {
    /// Looks at the next akey, the end of a dkey or the end of the object. Returns what can go and where to go on.
    fn step(&mut self, tree: &Tree, from: &[u8]) -> Result<Step, Fault> {
        let found = tree.first_below(from, &self.path.below())?;
        let dkey = match &found {
            Some(rest) => Some(self.path.dkey(&key::dkey_from(self.object, rest)?)),
            None => None,
        };
        // Events of a dkey sort before its akeys, but can only be judged when those have been cleaned.
        if let Some(left) = self.dkey.take_if(|left| Some(&*left) != dkey.as_ref()) {
            let above = [self.path.clone()];
            return Ok((self.dead_events(tree, &left, &above)?, Some(from.to_vec()), None));
        }
        let Some(dkey) = dkey else {
            let path = self.path.clone();
            return Ok((self.dead_events(tree, &path, &[])?, None, None));
        };
        self.dkey = Some(dkey.clone());
        let below = dkey.below();
        let Some(rest) = tree.first_below(from.max(&below), &below)? else {
            return Ok((Vec::new(), Some(key::after(dkey.as_bytes())), None));
        };
        let akey: Key = key::akey_from(self.object, &rest)?;
        let akey = dkey.akey(&akey);
        let mut removals = self.dead_versions(tree, &akey, &dkey)?;
        if removals.len() >= REMOVALS_MAX {
            removals.truncate(REMOVALS_MAX);
            return Ok((removals, Some(akey.as_bytes().to_vec()), None));
        }
        let above = [self.path.clone(), dkey];
        removals.extend(self.dead_events(tree, &akey, &above)?);
        let next = key::after(akey.as_bytes());
        let [object, dkey] = above;
        Ok((removals, Some(next), Some([object, dkey, akey])))
    }

    /// The pins between which the given epochs make a difference, ascending.
    fn pins(&self, mut epochs: Vec<u64>) -> Vec<u64> {
        epochs.retain(|epoch| *epoch <= self.horizon);
        epochs.sort_unstable();
        epochs.dedup();
        let mut pins = BTreeSet::from([self.horizon]);
        for (at, epoch) in epochs.iter().enumerate() {
            let end = epochs.get(at + 1).copied().unwrap_or(self.horizon);
            let last = if at + 1 < epochs.len() { end - 1 } else { end };
            let first = (*epoch).max(self.floor);
            if first <= last {
                pins.extend(self.snapshots.range(first..=last).next_back());
            }
        }
        pins.into_iter().collect()
    }

    /// The life of the last of these paths, each below the one before, at an epoch.
    fn life(tree: &Tree, paths: &[&Path], epoch: u64) -> Result<Life, Fault> {
        paths.iter().try_fold(Life::ALWAYS, |above, path| life(tree, path, above, epoch))
    }

    fn event_epochs(tree: &Tree, path: &Path, mut each: impl FnMut(u64, Event)) -> Result<(), Fault> {
        let prefix = path.events();
        let fault = tree.scan(&prefix, |key, value| {
            let Some(rest) = key.strip_prefix(prefix.as_slice()) else { return ControlFlow::Break(None) };
            match key::epoch_from(rest).and_then(|epoch| Ok((epoch.0, Event::decode(value)?))) {
                Ok((epoch, event)) => {
                    each(epoch, event);
                    ControlFlow::Continue(())
                }
                Err(malformed) => ControlFlow::Break(Some(malformed)),
            }
        })?;
        fault.flatten().map_or(Ok(()), |malformed| Err(malformed.into()))
    }

    /// Events of `path` that no pin needs. What is below has been cleaned before.
    fn dead_events(&mut self, tree: &Tree, path: &Path, above: &[Path]) -> Result<Vec<Vec<u8>>, Fault> {
        let mut events = Vec::new();
        Self::event_epochs(tree, path, |epoch, event| events.push((epoch, event)))?;
        self.note_newer(events.iter().map(|(epoch, _)| *epoch));
        let old: Vec<(u64, Event)> = events.into_iter().filter(|(epoch, _)| *epoch <= self.horizon).collect();
        let mut epochs: Vec<u64> = old.iter().map(|(epoch, _)| *epoch).collect();
        for path in above {
            Self::event_epochs(tree, path, |epoch, _| epochs.push(epoch))?;
        }
        let above: Vec<&Path> = above.iter().collect();
        let mut needed = BTreeSet::new();
        for pin in self.all_pins(epochs) {
            let above = Self::life(tree, &above, pin)?;
            let first = old.iter().position(|(epoch, _)| *epoch <= pin);
            for (epoch, event) in old.iter().skip(first.unwrap_or(old.len())) {
                if *event == Event::Punch || !above.exists || *epoch < above.low {
                    break;
                }
                needed.insert(*epoch);
            }
        }
        let oldest = needed.first().copied();
        let dead = |(epoch, event): &&(u64, Event)| match event {
            // A punch ends what an older pin still needs.
            Event::Punch => oldest.is_none_or(|oldest| oldest > *epoch),
            _ => !needed.contains(epoch),
        };
        Ok(old.iter().filter(dead).map(|(epoch, _)| path.event(*epoch).to_vec()).collect())
    }

    /// As [`Visit::pins`], from the first snapshot on: events are few.
    fn all_pins(&self, epochs: Vec<u64>) -> Vec<u64> {
        Visit { object: self.object, path: self.path.clone(), dkey: None, floor: 0, newer: None, ..*self }
            .pins(epochs)
    }

    fn note_newer(&mut self, epochs: impl Iterator<Item = u64>) {
        let horizon = self.horizon;
        let oldest = epochs.filter(|epoch| *epoch > horizon).min();
        self.newer = self.newer.into_iter().chain(oldest).min();
    }

    /// Versions of an akey that no pin shows.
    fn dead_versions(&mut self, tree: &Tree, akey: &Path, dkey: &Path) -> Result<Vec<Vec<u8>>, Fault> {
        let (mut singles, mut extents) = (Vec::new(), Vec::new());
        self.collect(tree, akey, &mut singles, &mut extents)?;
        let mut epochs: Vec<u64> = singles.iter().map(|(epoch, _)| *epoch).collect();
        epochs.extend(extents.iter().map(|stored| stored.epoch));
        self.note_newer(epochs.clone().into_iter());
        singles.retain(|(epoch, _)| *epoch <= self.horizon);
        extents.retain(|stored| stored.epoch <= self.horizon);
        if singles.is_empty() && extents.is_empty() {
            return Ok(Vec::new());
        }
        let paths = [&self.path, dkey, akey];
        for path in paths {
            Self::event_epochs(tree, path, |epoch, _| epochs.push(epoch))?;
        }
        let (mut single_needed, mut extent_needed) = (BTreeSet::new(), BTreeSet::new());
        for pin in self.pins(epochs) {
            let life = Self::life(tree, &paths, pin)?;
            if !life.exists {
                continue;
            }
            let visible = singles.iter().position(|(epoch, _)| *epoch <= pin);
            single_needed.extend(visible.filter(|at| life.shows(singles[*at].0, pin)));
            let shown: Vec<usize> =
                (0..extents.len()).filter(|at| life.shows(extents[*at].epoch, pin)).collect();
            let stored: Vec<Stored> = shown.iter().map(|at| extents[*at].clone()).collect();
            extent_needed.extend(paint(&stored, ALL_RECORDS).iter().map(|part| shown[part.stored]));
        }
        self.drop_idle_holes(&singles, &extents, &mut single_needed, &mut extent_needed);
        let single_dead = (0..singles.len()).filter(|at| !single_needed.contains(at));
        let extent_dead = (0..extents.len()).filter(|at| !extent_needed.contains(at));
        Ok(single_dead
            .map(|at| akey.single(singles[at].0))
            .chain(extent_dead.map(|at| akey.extent(extents[at].extent, extents[at].epoch)))
            .map(|key| key.to_vec())
            .collect())
    }

    /// A hole that hides nothing that stays can go. What an earlier visit left below the floor counts as staying.
    fn drop_idle_holes(
        &self,
        singles: &[(u64, bool)],
        extents: &[Stored],
        single_needed: &mut BTreeSet<usize>,
        extent_needed: &mut BTreeSet<usize>,
    ) {
        if self.floor > 0 {
            return;
        }
        // Newest first: the last ones needed are the oldest.
        while let Some(last) = single_needed.last().copied().filter(|last| singles[*last].1) {
            single_needed.remove(&last);
        }
        let hides = |hole: &Stored, kept: &BTreeSet<usize>| {
            kept.iter().map(|at| &extents[*at]).any(|other| {
                other.epoch < hole.epoch
                    && !is_hole(&other.value)
                    && other.extent.index < hole.extent.end()
                    && hole.extent.index < other.extent.end()
            })
        };
        let idle: Vec<usize> = extent_needed
            .iter()
            .copied()
            .filter(|at| is_hole(&extents[*at].value) && !hides(&extents[*at], extent_needed))
            .collect();
        for at in idle {
            extent_needed.remove(&at);
        }
    }

    /// Versions above the floor: single values newest first (with whether each is a hole), and extents, whose data
    /// is left out.
    fn collect(
        &self,
        tree: &Tree,
        akey: &Path,
        singles: &mut Vec<(u64, bool)>,
        extents: &mut Vec<Stored>,
    ) -> Result<(), Fault> {
        let mut from = akey.singles();
        loop {
            let next = tree.scan(&from, |key, value| {
                let Some(rest) = key.strip_prefix(akey.as_bytes()) else {
                    return ControlFlow::Break(Ok(None));
                };
                match key::akey_tail(rest) {
                    Ok(Tail::Single(epoch)) if epoch > self.floor => singles.push((epoch, is_hole(value))),
                    Ok(Tail::Single(_)) => return ControlFlow::Break(Ok(Some(akey.extents()))),
                    Ok(Tail::Extent(extent, epoch)) if epoch > self.floor => {
                        let value = if is_hole(value) { value.to_vec() } else { Vec::new() };
                        extents.push(Stored { extent, epoch, value });
                    }
                    Ok(Tail::Extent(extent, _)) => {
                        return ControlFlow::Break(Ok(Some(key::after(&akey.versions(extent)).into())));
                    }
                    Ok(_) => {}
                    Err(malformed) => return ControlFlow::Break(Err(malformed)),
                }
                ControlFlow::Continue(())
            })?;
            match next {
                Some(Ok(Some(next))) => from = next,
                Some(Err(malformed)) => return Err(malformed.into()),
                Some(Ok(None)) | None => return Ok(()),
            }
        }
    }
}
