//! Holes that hide nothing: what they were punched over is gone.

use super::ordered::{Entry, Ordered};
use super::{ACTIVE_MAX, Age, Pass, age};
use crate::format::key::{self, Path};
use crate::index::extents::is_hole;
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use core::ops::ControlFlow;
use std::collections::{BTreeMap, BTreeSet};
use weir_proto::object::Extent;

/// A pass over the versions of an akey, behind one that has removed what nobody sees. An extent's hole can go when no
/// older data reaches into it; a single value's, when it is the oldest.
pub(crate) struct IdleHoles {
    akey: Path,
    horizon: u64,
    singles_done: bool,
    ordered: Ordered,
    /// Data that reaches over the record that the pass has come to, but for what ends no later than something older.
    data: BTreeMap<Age, u64>,
    /// Holes there that have hidden nothing yet.
    holes: BTreeMap<Age, Extent>,
    /// Ends of both.
    ends: BTreeSet<(u64, Age)>,
    /// Up to this record there is data that isn't remembered.
    unsure_until: u64,
    is_crowded: bool,
    dead: Vec<Vec<u8>>,
}

impl Pass for IdleHoles {
    fn step(&mut self, tree: &Tree, looks: usize) -> Result<bool, Fault> {
        let mut looks = looks;
        if !self.singles_done {
            self.singles_done = self.last_singles(tree, &mut looks)?;
            if !self.singles_done {
                return Ok(false);
            }
        }
        loop {
            if looks == 0 || !self.ordered.fill(tree, &self.akey, &mut looks)? {
                return Ok(false);
            }
            let Some(entry) = self.ordered.first() else { return Ok(self.advance(u64::MAX, &mut looks)) };
            if !self.advance(entry.extent.index, &mut looks) {
                return Ok(false);
            }
            if entry.epoch <= self.horizon && !self.begin(entry, &mut looks) {
                return Ok(false);
            }
            self.ordered.pop();
        }
    }

    fn dead(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.dead
    }

    fn is_crowded(&self) -> bool {
        self.is_crowded
    }
}

impl IdleHoles {
    pub(crate) fn new(akey: Path, horizon: u64) -> Self {
        Self {
            akey,
            horizon,
            singles_done: false,
            ordered: Ordered::new(0),
            data: BTreeMap::new(),
            holes: BTreeMap::new(),
            ends: BTreeSet::new(),
            unsure_until: 0,
            is_crowded: false,
            dead: Vec::new(),
        }
    }

    /// Takes holes off the old end of the single values. Returns `false` when it takes more looks: those found have to be
    /// removed before it goes on.
    fn last_singles(&mut self, tree: &Tree, looks: &mut usize) -> Result<bool, Fault> {
        let (prefix, akey, horizon) = (self.akey.singles(), &self.akey, self.horizon);
        let mut found = Vec::new();
        let ended = tree.scan_back(&key::after(&prefix), |key, value| {
            let Some(rest) = key.strip_prefix(prefix.as_slice()) else { return ControlFlow::Break(Ok(true)) };
            let epoch = match key::epoch_from(rest) {
                Ok(epoch) => epoch.0,
                Err(malformed) => return ControlFlow::Break(Err(malformed)),
            };
            if !is_hole(value) || epoch > horizon {
                return ControlFlow::Break(Ok(true));
            }
            if found.len() == *looks {
                return ControlFlow::Break(Ok(false));
            }
            found.push(akey.single(epoch).to_vec());
            ControlFlow::Continue(())
        })?;
        *looks -= found.len();
        self.dead.append(&mut found);
        Ok(ended.unwrap_or(Ok(true))?)
    }

    fn advance(&mut self, to: u64, looks: &mut usize) -> bool {
        while let Some((_, gone)) = self.ends.first().copied().filter(|(end, _)| *end <= to) {
            if *looks == 0 {
                return false;
            }
            *looks -= 1;
            self.ends.pop_first();
            self.data.remove(&gone);
            if let Some(hole) = self.holes.remove(&gone) {
                self.dead.push(self.akey.extent(hole, gone.0).to_vec());
            }
        }
        true
    }

    /// An extent begins at the record that the pass has come to. Returns `false` when it takes more looks: it begins once more
    /// then, with less to do.
    fn begin(&mut self, Entry { extent, epoch, hole }: Entry, looks: &mut usize) -> bool {
        let (age, end) = (age(extent, epoch), extent.end());
        if hole {
            let hides = self.data.first_key_value().is_some_and(|((oldest, ..), _)| *oldest < epoch);
            if !hides && (extent.index < self.unsure_until || self.holes.len() >= ACTIVE_MAX) {
                self.is_crowded = true;
            } else if !hides {
                self.holes.insert(age, extent);
                self.ends.insert((end, age));
            }
            return true;
        }
        while let Some((hole, reach)) = self.newest_hole().filter(|(hole, _)| hole.0 > epoch) {
            if !take(looks) {
                return false;
            }
            self.holes.remove(&hole);
            self.ends.remove(&(reach, hole));
        }
        // Data says nothing that older data which ends no earlier doesn't say. Of what is here, the newest ends last.
        if self.data.range(..age).next_back().is_some_and(|(_, reach)| *reach >= end) {
            return true;
        }
        while let Some((newer, reach)) = self.newer_data(age).filter(|(_, reach)| *reach <= end) {
            if !take(looks) {
                return false;
            }
            self.data.remove(&newer);
            self.ends.remove(&(reach, newer));
        }
        if self.data.len() < ACTIVE_MAX {
            self.data.insert(age, end);
            self.ends.insert((end, age));
        } else {
            self.unsure_until = self.unsure_until.max(end);
        }
        true
    }

    /// The newest hole that has hidden nothing yet, and where it ends.
    fn newest_hole(&self) -> Option<(Age, u64)> {
        self.holes.last_key_value().map(|(age, hole)| (*age, hole.end()))
    }

    /// The oldest data that isn't older than this, and where it ends.
    fn newer_data(&self, age: Age) -> Option<(Age, u64)> {
        self.data.range(age..).next().map(|(age, reach)| (*age, *reach))
    }
}

/// Takes one look off, if there is one.
fn take(looks: &mut usize) -> bool {
    let left = *looks > 0;
    *looks = looks.saturating_sub(1);
    left
}
