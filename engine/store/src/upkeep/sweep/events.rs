//! Creations and punches that no reader can see any more.

use super::{Pass, Pins};
use crate::format::key::{self, KeyBytes, Path};
use crate::format::value::Event;
use crate::index::existence::{Existence, existence};
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use core::ops::ControlFlow;
use std::collections::VecDeque;

/// Events that are read ahead of being judged.
const AHEAD: usize = 32;

/// Which events a pass looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Creations whose existence no pin sees.
    Creations,
    /// Punches older than all that is needed: there is nothing that they end.
    Punches,
}

/// A pass over the events of an object, dkey or akey, newest first, after what is below has been cleaned.
pub(crate) struct Events<'a> {
    path: Path,
    /// The paths above, from the object on.
    above: Vec<Path>,
    pins: Pins<'a>,
    stage: Stage,
    /// Where it goes on.
    next: Option<KeyBytes>,
    read: VecDeque<(u64, Event)>,
    /// The last punch that was met.
    punch: Option<u64>,
    /// The first one.
    newest_punch: Option<u64>,
    /// The last creation that is needed.
    oldest: Option<u64>,
    dead: Vec<Vec<u8>>,
    /// The oldest epoch beyond the horizon that was met.
    pub(crate) newer: Option<u64>,
}

impl Pass for Events<'_> {
    fn step(&mut self, tree: &Tree, looks: usize) -> Result<bool, Fault> {
        let mut looks = looks;
        loop {
            while let Some((epoch, event)) = self.read.front().copied() {
                let is_dead = self.is_dead(tree, epoch, event)?;
                self.read.pop_front();
                if is_dead {
                    self.dead.push(self.path.event(epoch).to_vec());
                }
            }
            match &self.next {
                Some(_) if looks == 0 => return Ok(false),
                Some(from) => {
                    let from = from.clone();
                    self.read_on(tree, &from, &mut looks)?;
                }
                None if self.stage == Stage::Punches => return Ok(true),
                None => {
                    self.stage = Stage::Punches;
                    let Some(newest) = self.newest_dead_punch() else { return Ok(true) };
                    self.next = Some(self.path.event(newest));
                }
            }
        }
    }

    fn dead(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.dead
    }
}

impl<'a> Events<'a> {
    /// Of the last of these paths, each below the one before.
    pub(crate) fn new(above: &[Path], path: Path, pins: Pins<'a>) -> Self {
        Self {
            next: Some(path.events()),
            path,
            above: above.to_vec(),
            // What an earlier visit has settled may have been kept for what is settled only now.
            pins: Pins { floor: 0, ..pins },
            stage: Stage::Creations,
            read: VecDeque::new(),
            punch: None,
            newest_punch: None,
            oldest: None,
            dead: Vec::new(),
            newer: None,
        }
    }

    /// Punches up to this epoch end nothing that is needed. Newer ones than were met have come since, as what a transaction does
    /// that is committed at its old epoch: they may end creations that weren't judged.
    fn newest_dead_punch(&self) -> Option<u64> {
        let newest = self.newest_punch?;
        self.oldest.map_or(Some(newest), |oldest| Some(newest.min(oldest.checked_sub(1)?)))
    }

    fn is_dead(&mut self, tree: &Tree, epoch: u64, event: Event) -> Result<bool, Fault> {
        if epoch > self.pins.horizon {
            self.newer = Some(self.newer.map_or(epoch, |newer| newer.min(epoch)));
            return Ok(false);
        }
        match (self.stage, event) {
            (Stage::Creations, Event::Punch) => {
                self.punch = Some(epoch);
                self.newest_punch.get_or_insert(epoch);
                Ok(false)
            }
            (Stage::Creations, _) => {
                let pin = self.pins.first(epoch);
                let mut above = self.above.iter();
                let above =
                    above.try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, pin))?;
                let is_ended = self.punch.is_some_and(|punch| punch <= pin);
                let is_needed = !is_ended && above.exists && epoch >= above.low;
                if is_needed {
                    self.oldest = Some(epoch);
                }
                Ok(!is_needed)
            }
            (Stage::Punches, Event::Punch) => Ok(true),
            // It came after its like had been judged.
            (Stage::Punches, _) => Ok(false),
        }
    }

    fn read_on(&mut self, tree: &Tree, from: &[u8], looks: &mut usize) -> Result<(), Fault> {
        let (path, read, before) = (&self.path, &mut self.read, *looks);
        let scanned = tree.scan_below(from, path.events().len(), |rest, value| {
            let (epoch, event) = match (key::epoch_from(rest), Event::decode(value)) {
                (Ok(epoch), Ok(event)) => (epoch.0, event),
                (Err(malformed), _) | (_, Err(malformed)) => return ControlFlow::Break(Err(malformed)),
            };
            if *looks == 0 || read.len() == AHEAD {
                return ControlFlow::Break(Ok(path.event(epoch)));
            }
            *looks -= 1;
            read.push_back((epoch, event));
            ControlFlow::Continue(())
        });
        if scanned.is_err() {
            // It is asked again from there on.
            read.clear();
            *looks = before;
        }
        self.next = scanned?.transpose()?;
        Ok(())
    }
}
