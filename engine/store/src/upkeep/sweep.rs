//! What of an akey nobody can see, found in one pass over its versions, in bounded steps and bounded memory.
//!
//! A version is needed when some pin shows it: a snapshot, or the horizon. It is enough to ask the first pin that isn't
//! before it. What comes later can only hide more: newer versions cover it, and punches end it for good. So a single
//! value is dead if that pin comes after the next newer one, or after the end of its existence; an extent is, if at that pin
//! none of its records shows.
//!
//! Extents are met in the order of where they begin. A pass keeps those that reach over the record it has come to, the
//! *active* ones, ordered by epoch. A record shows an extent to its pin if the next newer active one is beyond the pin.
//! That can change only where an extent begins or ends. Where one has ended that never showed, it is dead; one that lies
//! inside a newer one is at once. One that has shown is forgotten when a newer one that its pin sees reaches as far: that
//! one hides all that it would hide from there on.
//!
//! A pass stops after a number of entries and goes on later, on the index as it is then. What was written meanwhile is
//! newer than the horizon or hides more than the pass knows: a prepared transaction that is committed at its old epoch is
//! newer than all below the dkeys that it held. What was removed hid nothing that stays. So a pass may spare what could have
//! gone, never the other way round.

mod events;
mod idle;
mod ordered;
mod surface;

pub(crate) use events::Events;
pub(crate) use idle::IdleHoles;
pub(crate) use surface::{Next, Shown, Surface};

use crate::format::key;
use crate::index::existence::Existence;
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use crate::state::aggregation::AkeyPaths;
use crate::upkeep::merge::akey_existence;
use core::cmp::Reverse;
use core::ops::{Bound, ControlFlow};
use ordered::{Entry, Ordered};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weir_proto::object::Extent;

/// Active extents that a pass remembers, some 2 MiB. What lies on top of each other deeper than this is left to another
/// pass.
pub(crate) const ACTIVE_MAX: usize = 16 * 1024;

/// Extents that one newer extent has removed at once.
const INSIDE_MAX: usize = 64;

/// Single values that are read ahead of being judged.
const SINGLES_AHEAD: usize = 32;

/// The epochs whose state has to stay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pins<'a> {
    pub(crate) snapshots: &'a BTreeSet<u64>,
    /// The newest pin that an earlier visit has settled: what isn't newer isn't looked at.
    pub(crate) floor: u64,
    pub(crate) horizon: u64,
}

impl Pins<'_> {
    /// The first one that isn't before an epoch, which is up to the horizon.
    fn first(&self, epoch: u64) -> u64 {
        if epoch >= self.horizon {
            return self.horizon;
        }
        self.snapshots.range(epoch..=self.horizon).next().copied().unwrap_or(self.horizon)
    }
}

/// The order of active extents: the greater one hides the other where both are.
type Age = (u64, Reverse<u64>, Reverse<u64>);

fn age(extent: Extent, epoch: u64) -> Age {
    (epoch, Reverse(extent.index), Reverse(extent.count))
}

/// Something that is gone through in steps to find out what can go.
pub(crate) trait Pass {
    /// Looks at up to `looks` entries more. Returns whether the pass has come to its end. When nodes have to be read
    /// first, it goes on where it stood.
    fn step(&mut self, tree: &Tree, looks: usize) -> Result<bool, Fault>;

    /// Keys of what can go that were found since they were taken last.
    fn dead(&mut self) -> &mut Vec<Vec<u8>>;

    /// Whether there was more on top of each other than is remembered. Once what it has found is removed, another pass may
    /// find more.
    fn is_crowded(&self) -> bool {
        false
    }
}

/// How far a pass is.
#[derive(Debug)]
enum Stage {
    /// At single values, from this key on, behind one of this epoch.
    Singles { next: Option<key::KeyBytes>, newer: Option<u64> },
    /// At extents.
    Extents,
}

/// A pass over the versions of an akey.
pub(crate) struct Sweep<'a> {
    pub(crate) place: AkeyPaths,
    pins: Pins<'a>,
    stage: Stage,
    singles: VecDeque<(u64, bool)>,
    ordered: Ordered,
    /// Active extents, and whether some record has shown them.
    active: BTreeMap<Age, (Extent, bool)>,
    ends: BTreeSet<(u64, Age)>,
    /// What has to be judged at the record that the pass has come to.
    unjudged: Vec<Age>,
    at: u64,
    /// The existence of the akey at the pins asked for last, in this step.
    known: Option<(u64, Existence)>,
    dead: Vec<Vec<u8>>,
    /// The oldest epoch beyond the horizon that was met.
    pub(crate) newer: Option<u64>,
    /// A hole was met: one that hides nothing can go afterwards.
    pub(crate) has_holes: bool,
    is_crowded: bool,
}

impl Pass for Sweep<'_> {
    fn step(&mut self, tree: &Tree, looks: usize) -> Result<bool, Fault> {
        let mut looks = looks;
        self.known = None;
        if matches!(self.stage, Stage::Singles { .. }) {
            if !self.step_singles(tree, &mut looks)? {
                return Ok(false);
            }
            self.stage = Stage::Extents;
        }
        loop {
            if looks == 0 || !self.ordered.fill(tree, &self.place[2], &mut looks)? {
                return Ok(false);
            }
            let Some(entry) = self.ordered.first() else {
                return Ok(self.advance(u64::MAX, &mut looks));
            };
            if !self.advance(entry.extent.index, &mut looks) {
                return Ok(false);
            }
            let shown = self.is_shown(tree, entry.epoch)?;
            self.ordered.pop();
            if shown {
                self.begin(entry, &mut looks);
            } else if entry.epoch <= self.pins.horizon {
                self.dead.push(self.key_of(entry.extent, entry.epoch));
            }
        }
    }

    fn dead(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.dead
    }

    fn is_crowded(&self) -> bool {
        self.is_crowded
    }
}

impl<'a> Sweep<'a> {
    pub(crate) fn new(place: AkeyPaths, pins: Pins<'a>) -> Self {
        Self {
            stage: Stage::Singles { next: Some(place[2].singles()), newer: None },
            place,
            pins,
            singles: VecDeque::new(),
            ordered: Ordered::new(pins.floor),
            active: BTreeMap::new(),
            ends: BTreeSet::new(),
            unjudged: Vec::new(),
            at: 0,
            known: None,
            dead: Vec::new(),
            newer: None,
            has_holes: false,
            is_crowded: false,
        }
    }

    fn key_of(&self, extent: Extent, epoch: u64) -> Vec<u8> {
        self.place[2].extent(extent, epoch).to_vec()
    }

    /// Whether a version of this epoch is still alive at its first pin. One beyond the horizon is noted.
    fn is_shown(&mut self, tree: &Tree, epoch: u64) -> Result<bool, Fault> {
        if epoch > self.pins.horizon {
            self.newer = Some(self.newer.map_or(epoch, |newer| newer.min(epoch)));
            return Ok(false);
        }
        let pin = self.pins.first(epoch);
        let found = match self.known.filter(|(known, _)| *known == pin) {
            Some((_, existence)) => existence,
            None => akey_existence(tree, &self.place, pin)?,
        };
        self.known = Some((pin, found));
        Ok(found.exists && found.shows(epoch, pin))
    }

    fn step_singles(&mut self, tree: &Tree, looks: &mut usize) -> Result<bool, Fault> {
        loop {
            while let Some((epoch, hole)) = self.singles.front().copied() {
                let shown = self.is_shown(tree, epoch)?;
                self.singles.pop_front();
                let Stage::Singles { newer, .. } = &mut self.stage else {
                    unreachable!("invariant: it is at the singles")
                };
                if epoch > self.pins.horizon {
                    continue;
                }
                self.has_holes |= hole;
                let is_hidden = newer.replace(epoch).is_some_and(|newer| newer <= self.pins.first(epoch));
                if is_hidden || !shown {
                    self.dead.push(self.place[2].single(epoch).to_vec());
                }
            }
            let Stage::Singles { next: Some(from), .. } = &self.stage else { return Ok(true) };
            let from = from.clone();
            if *looks == 0 {
                return Ok(false);
            }
            let behind = self.read_singles(tree, &from, looks)?;
            if let Stage::Singles { next, .. } = &mut self.stage {
                *next = behind;
            }
        }
    }

    /// Reads single values ahead, newest first. Returns where to go on.
    fn read_singles(
        &mut self,
        tree: &Tree,
        from: &[u8],
        looks: &mut usize,
    ) -> Result<Option<key::KeyBytes>, Fault> {
        let (akey, floor) = (&self.place[2], self.pins.floor);
        let (singles, before) = (&mut self.singles, *looks);
        let scanned = tree.scan_below(from, akey.singles().len(), |rest, value| {
            let epoch = match key::epoch_from(rest) {
                Ok(epoch) => epoch.0,
                Err(malformed) => return ControlFlow::Break(Err(malformed)),
            };
            if epoch <= floor {
                return ControlFlow::Break(Ok(None));
            }
            if *looks == 0 || singles.len() == SINGLES_AHEAD {
                return ControlFlow::Break(Ok(Some(akey.single(epoch))));
            }
            *looks -= 1;
            singles.push_back((epoch, crate::index::extents::is_hole(value)));
            ControlFlow::Continue(())
        });
        if scanned.is_err() {
            // It is asked again from there on.
            singles.clear();
            *looks = before;
        }
        Ok(scanned?.transpose()?.flatten())
    }

    /// Goes on to a record that something begins at. Returns whether it has come there.
    fn advance(&mut self, to: u64, looks: &mut usize) -> bool {
        loop {
            let end = self.ends.first().map(|(end, _)| *end).filter(|end| *end <= to);
            let stop = end.unwrap_or(to);
            if stop > self.at {
                if !self.judge(looks) {
                    return false;
                }
                self.at = stop;
            }
            if end.is_none() {
                return true;
            }
            if *looks == 0 {
                return false;
            }
            *looks -= 1;
            let (_, gone) = self.ends.pop_first().expect("invariant: an extent ends here");
            if let Some((extent, false)) = self.active.remove(&gone) {
                self.dead.push(self.key_of(extent, gone.0));
            }
            self.unjudged.extend(self.active.range(..gone).next_back().map(|(age, _)| *age));
        }
    }

    /// Looks which of those that something has changed for show the record that the pass has come to. Returns `false`
    /// when it takes more looks.
    fn judge(&mut self, looks: &mut usize) -> bool {
        while let Some(age) = self.unjudged.last().copied() {
            if *looks == 0 {
                return false;
            }
            *looks -= 1;
            self.unjudged.pop();
            let newer = self.active.range((Bound::Excluded(age), Bound::Unbounded)).next();
            let newer = newer.map(|((epoch, ..), _)| *epoch);
            if newer.is_none_or(|newer| newer > self.pins.first(age.0))
                && let Some((_, is_needed)) = self.active.get_mut(&age)
            {
                *is_needed = true;
            }
        }
        true
    }

    /// An extent that is alive at its first pin begins at the record that the pass has come to.
    fn begin(&mut self, Entry { extent, epoch, hole }: Entry, looks: &mut usize) {
        self.has_holes |= hole;
        let (age, end) = (age(extent, epoch), extent.end());
        let newer = self.active.range(age..).next().map(|((epoch, ..), (newer, _))| (*epoch, newer.end()));
        if newer.is_some_and(|(newer, reach)| newer <= self.pins.first(epoch) && end <= reach) {
            self.dead.push(self.key_of(extent, epoch));
            return;
        }
        // What lies inside it and hasn't shown before never will, where its pin sees this one. The others go where they end.
        for _ in 0..INSIDE_MAX.min(*looks) {
            let Some((older, (inner, has_shown))) = self.active.range(..age).next_back() else { break };
            if inner.end() > end || self.pins.first(older.0) < epoch {
                break;
            }
            let (older, inner, has_shown) = (*older, *inner, *has_shown);
            self.active.remove(&older);
            self.ends.remove(&(inner.end(), older));
            if !has_shown {
                self.dead.push(self.key_of(inner, older.0));
            }
            *looks -= 1;
        }
        if self.active.len() >= ACTIVE_MAX {
            self.is_crowded = true;
        } else {
            self.active.insert(age, (extent, false));
            self.ends.insert((end, age));
            self.unjudged.push(age);
        }
    }

    /// Extents that it remembers.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.active.len() + self.ordered.held()
    }
}

#[cfg(test)]
mod tests;
