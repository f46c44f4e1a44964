//! What an akey shows at one epoch, part by part.

use super::ordered::{Entry, Ordered};
use super::{ACTIVE_MAX, Age, age};
use crate::format::key::Path;
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use weir_proto::object::Extent;

/// A part of a stored extent that shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The part.
    pub(crate) part: Extent,
    /// What it is a part of.
    pub(crate) extent: Extent,
    pub(crate) epoch: u64,
    pub(crate) is_hole: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Part(Shown),
    /// It takes more looks.
    Later,
    /// From here on it has to be asked anew: too much lay on top of each other to be remembered.
    Unknown,
    End,
}

/// A walk along the records of an akey. It remembers the *stairs*: of the extents that reach over the record it has come
/// to those that will show if nothing else begins; the newer one of them is, the earlier it ends. What ends no later than
/// something newer shows no more.
pub(crate) struct Surface {
    akey: Path,
    /// Versions that count.
    epochs: RangeInclusive<u64>,
    ordered: Ordered,
    stairs: BTreeMap<Age, Entry>,
    /// Stairs that are remembered at most.
    most: usize,
    /// The newest of the stairs that were too many, and the record up to which they reach.
    forgotten: Option<(Age, u64)>,
    at: u64,
}

impl Surface {
    /// From a record on.
    pub(crate) fn new(akey: Path, epochs: RangeInclusive<u64>, from: u64) -> Self {
        let ordered = Ordered::behind(epochs.start().saturating_sub(1), from);
        let (stairs, forgotten) = (BTreeMap::new(), None);
        Self { akey, epochs, ordered, stairs, most: ACTIVE_MAX, forgotten, at: from }
    }

    /// The record that it has come to.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Takes looks off. The index has to be the same each time. When nodes have to be read first, it goes on where it stood.
    pub(crate) fn next(&mut self, tree: &Tree, looks: &mut usize) -> Result<Next, Fault> {
        loop {
            if *looks == 0 || !self.ordered.fill(tree, &self.akey, looks)? {
                return Ok(Next::Later);
            }
            let first = self.ordered.first();
            if let Some(entry) = first.filter(|entry| entry.extent.index <= self.at) {
                if !self.begin(entry, looks) {
                    return Ok(Next::Later);
                }
                self.ordered.pop();
                continue;
            }
            let to = first.map(|entry| entry.extent.index);
            let Some((age, Entry { extent, epoch, hole })) =
                self.stairs.last_key_value().map(|(a, e)| (*a, *e))
            else {
                if self.forgotten.is_some_and(|(_, until)| self.at < until) {
                    return Ok(Next::Unknown);
                }
                self.forgotten = None;
                let Some(to) = to else { return Ok(Next::End) };
                self.at = to;
                continue;
            };
            let end = to.map_or(extent.end(), |to| extent.end().min(to));
            let part = Extent { index: self.at, count: end - self.at };
            self.at = end;
            if end == extent.end() {
                self.stairs.remove(&age);
            }
            *looks = looks.saturating_sub(1);
            return Ok(Next::Part(Shown { part, extent, epoch, is_hole: hole }));
        }
    }

    /// An extent begins at the record that it has come to, or before. Returns `false` when it takes more looks: it begins
    /// once more then, with less to do.
    fn begin(&mut self, entry: Entry, looks: &mut usize) -> bool {
        let (age, end) = (age(entry.extent, entry.epoch), entry.extent.end());
        if end <= self.at || !self.epochs.contains(&entry.epoch) {
            return true;
        }
        if let Some((newest, until)) = &mut self.forgotten
            && age <= *newest
        {
            *until = end.max(*until);
            return true;
        }
        if self.stairs.range(age..).next().is_some_and(|(_, newer)| newer.extent.end() >= end) {
            return true;
        }
        while let Some((older, _)) =
            self.stairs.range(..age).next_back().filter(|(_, older)| older.extent.end() <= end)
        {
            if *looks == 0 {
                return false;
            }
            *looks -= 1;
            let older = *older;
            self.stairs.remove(&older);
        }
        self.stairs.insert(age, entry);
        if self.stairs.len() > self.most
            && let Some((oldest, lost)) = self.stairs.pop_first()
        {
            let (newest, until) = self.forgotten.unwrap_or((oldest, 0));
            self.forgotten = Some((newest.max(oldest), until.max(lost.extent.end())));
        }
        true
    }

    /// Extents that it remembers.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.stairs.len() + self.ordered.held()
    }

    /// Remembers fewer.
    #[cfg(test)]
    pub(super) fn with_most(self, most: usize) -> Self {
        Self { most, ..self }
    }
}
