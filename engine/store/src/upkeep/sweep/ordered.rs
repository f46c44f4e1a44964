//! The extents of an akey in the order of where they begin, of all length classes together.

use crate::format::key::{self, KeyBytes, Path};
use crate::index::extents::{STEPS_MAX, is_hole};
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use core::ops::ControlFlow;
use std::collections::VecDeque;
use weir_proto::object::Extent;

/// Entries of a class that are read at once: what comes next is mostly of the same class, and all classes together hold a
/// thousand entries.
const AHEAD: usize = 32;

/// A stored version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) extent: Extent,
    pub(super) epoch: u64,
    pub(super) hole: bool,
}

/// Extents of one length class.
#[derive(Debug)]
struct Line {
    class: u8,
    read: VecDeque<Entry>,
    /// Where to read on; `None` at the end.
    next: Option<KeyBytes>,
}

/// All versions that are newer than an epoch and end behind a record, in the order of where they begin.
#[derive(Debug)]
pub(super) struct Ordered {
    floor: u64,
    from: u64,
    lines: Vec<Line>,
    /// Classes from this one on may have extents that aren't known yet.
    unknown: Option<u8>,
}

impl Ordered {
    pub(super) fn new(floor: u64) -> Self {
        Self::behind(floor, 0)
    }

    /// Without those that end up to a record.
    pub(super) fn behind(floor: u64, from: u64) -> Self {
        Self { floor, from, lines: Vec::new(), unknown: Some(0) }
    }

    /// Makes sure that the first one is known. Returns `false` when it would take more than `looks` entries.
    pub(super) fn fill(&mut self, tree: &Tree, akey: &Path, looks: &mut usize) -> Result<bool, Fault> {
        while let Some(from) = self.unknown {
            if *looks == 0 {
                return Ok(false);
            }
            *looks -= 1;
            let class = tree.scan_below(&akey.extents_from(from, 0), akey.extents().len(), |rest, _| {
                ControlFlow::Break(rest.first().copied())
            })?;
            let Some(class) = class.flatten() else {
                self.unknown = None;
                break;
            };
            let first = self.from.saturating_sub(key::class_length_max(class));
            let next = Some(akey.extents_from(class, first));
            self.lines.push(Line { class, read: VecDeque::new(), next });
            self.unknown = class.checked_add(1);
        }
        let bounds = (self.floor, self.from);
        for line in &mut self.lines {
            while line.read.is_empty()
                && let Some(from) = &line.next
            {
                if *looks == 0 {
                    return Ok(false);
                }
                let from = from.clone();
                line.read_on(tree, akey, &from, bounds, looks)?;
            }
        }
        Ok(true)
    }

    fn line(&mut self) -> Option<&mut Line> {
        let lines = self.lines.iter_mut().filter(|line| !line.read.is_empty());
        lines.min_by_key(|line| line.read.front().map(|entry| entry.extent.index))
    }

    /// The first one, when [`Ordered::fill`] has made sure of it; `None` at the end.
    pub(super) fn first(&mut self) -> Option<Entry> {
        self.line()?.read.front().copied()
    }

    /// Takes the first one off.
    pub(super) fn pop(&mut self) {
        if let Some(line) = self.line() {
            line.read.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.lines.iter().map(|line| line.read.len()).sum()
    }
}

impl Line {
    fn read_on(
        &mut self,
        tree: &Tree,
        akey: &Path,
        from: &[u8],
        (floor, behind): (u64, u64),
        looks: &mut usize,
    ) -> Result<(), Fault> {
        let (class, read) = (self.class, &mut self.read);
        let (before, mut skipped) = (*looks, 0);
        let prefix = akey.extents().len() + 1;
        let scanned = tree.scan_below(from, prefix, |rest, value| {
            let (extent, epoch) = match key::extent_tail(class, rest) {
                Ok(found) => found,
                Err(malformed) => return ControlFlow::Break(Err(malformed)),
            };
            if *looks == 0 || read.len() == AHEAD {
                return ControlFlow::Break(Ok(akey.extent(extent, epoch)));
            }
            *looks -= 1;
            if extent.end() <= behind {
                return ControlFlow::Continue(());
            }
            if epoch > floor {
                skipped = 0;
                read.push_back(Entry { extent, epoch, hole: is_hole(value) });
                return ControlFlow::Continue(());
            }
            skipped += 1;
            if skipped <= STEPS_MAX {
                return ControlFlow::Continue(());
            }
            ControlFlow::Break(Ok(key::after(&akey.versions(extent)).into()))
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
