//! The quick answer to most fetches: one walk over neighbouring entries.
//!
//! The entries of a dkey, of an akey below it and of that one's versions stand side by side in the index. A walk goes
//! down to the first of them once and reads on from there, without keys or copies of its own. It answers what is simple:
//! all lies in one leaf in memory, or two, the dkey and the akey were created once, one version covers all that is asked for.
//! Where it has ended is remembered, so that the next one for the same goes there at once. Anything else it leaves, as it
//! does what looks odd, to `existence`, `versions_within` and `newest_single`, which alone say what is right: where a walk has
//! an answer, it is theirs.
//!
//! Without it a fetch of 64 B takes 466 % more instructions (`weir-bench store --store-part counts`).

mod hints;

use hints::End;
pub(crate) use hints::{Hints, Lead};

use crate::format::key::{self, BELOW, EVENT, EXTENT};
use crate::format::stack_key_builder::StackKeyBuilder;
use crate::format::value::{Event, Kind};
use crate::index::existence::Existence;
use crate::index::extents::STEPS_MAX;
use crate::index::tree::{Node, Packed, Tree};
use crate::versions::timestamps::mix;
use core::cell::OnceCell;
use std::rc::Rc;
use weir_proto::Key;
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::object::{Extent, Value};

/// Records from this one on are asked for only by a search for the end of an array.
const SIMPLE_END: u64 = 1 << 62;

/// What is asked of an akey.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// Up to so many bytes of the single value.
    Single(u64),
    /// Records of an array, of a size that has to be the stored one.
    Records(Extent, u32),
}

impl Wanted {
    /// What a fetch asks for, if it is simple and sure to be allowed.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            // A request for the size alone takes the general way.
            Value::Single { size } => (*size > 0).then_some(Self::Single(*size)),
            Value::Array { record_size, extents } => {
                let [range] = extents.as_slice() else { return None };
                let bytes = range.count.checked_mul(u64::from(*record_size))?;
                let end = range.index.checked_add(range.count).filter(|end| *end <= SIMPLE_END);
                let is_allowed = bytes > 0 && bytes <= PAYLOAD_MAX && end.is_some();
                is_allowed.then_some(Self::Records(*range, *record_size))
            }
        }
    }

    /// The hash of this below an akey that has the hash `above`.
    pub(crate) fn hash(&self, above: u64) -> u64 {
        match self {
            Self::Single(_) => above,
            Self::Records(range, _) => mix(above, range.index),
        }
    }
}

/// A version that covers what is asked for.
#[derive(Debug)]
pub(crate) struct Covering<'a> {
    /// Its records, for an array.
    pub(crate) extent: Option<Extent>,
    /// Where it is stored.
    pub(crate) leaf: &'a Rc<Node>,
    pub(crate) position: usize,
}

impl<'a> Covering<'a> {
    /// As it is stored.
    pub(crate) fn value(&self) -> Option<&'a [u8]> {
        Some(self.leaf.entries().entry_at(self.position)?.1)
    }

    /// The entry at the end of a hint, if it is a version of the akey, not newer than `epoch`, that covers what is wanted.
    /// `place` is extended to the akey.
    #[inline]
    fn at(
        End { leaf, position, .. }: &'a End,
        (place, akey): (&mut StackKeyBuilder, &Key),
        epoch: u64,
        wanted: Wanted,
    ) -> Option<Self> {
        place.akey(akey)?;
        let entries = leaf.entries();
        let (suffix, _) = entries.entry_at(*position)?;
        let rest = suffix.strip_prefix(place.path().strip_prefix(entries.prefix())?)?;
        let (extent, at) = match (wanted, rest) {
            (Wanted::Single(_), [BELOW, at @ ..]) => (None, key::epoch_from(at).ok()?.0),
            (Wanted::Records(range, _), [EXTENT, class, rest @ ..]) => {
                let (extent, at) = key::extent_tail(*class, rest).ok()?;
                covers(extent, range).then_some((Some(extent), at))?
            }
            _ => return None,
        };
        (at <= epoch).then_some(Self { extent, leaf, position: *position })
    }

    /// Whether all of it was wanted.
    fn is_whole(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Single(_) => true,
            Wanted::Records(range, _) => self.extent == Some(range),
        }
    }
}

/// Finds the version that covers what is wanted of an akey of a dkey, below an object that exists as `above` says: by the hint in
/// `lead`, or else by a walk from the first entry of the dkey, whose end becomes a hint. Returns what `found` makes of the version;
/// `None` where the answer isn't simple, and is to be found by the general way.
pub(crate) fn covering<T>(
    tree: &Tree,
    lead: &Lead<'_>,
    above: Existence,
    (place, akey): (&mut StackKeyBuilder, &Key),
    epoch: u64,
    wanted: Wanted,
    found: impl FnOnce(Covering<'_>) -> Option<T>,
) -> Option<T> {
    if !above.exists {
        return None;
    }
    if let Some(end) = lead.end.as_ref().filter(|end| end.since >= above.low) {
        let dkey = place.path().len();
        if let Some(covering) = Covering::at(end, (place, akey), epoch, wanted) {
            return found(covering);
        }
        place.back_to(dkey);
    }
    let ((first, leaf_path), second) = (tree.leaf_and_path(place.event(epoch)).ok()?, OnceCell::new());
    let entries = first.entries();
    let shared = entries.prefix().len();
    let mut walk = Walk { tree, leaf: &first, entries, shared, at: 0, second: &second, is_beyond: false };
    let low = walk.go_below_dkey(above.low, place, epoch)?;
    let covering = walk.covering((place, akey), (low, epoch), wanted)?;
    // No newer version was skipped, no other one overlaps it, and no other leaf was read: the entry alone is the answer.
    let is_all = epoch == u64::MAX && covering.is_whole(wanted) && second.get().is_none();
    let (position, leaf_path) = (covering.position, leaf_path.filter(|_| is_all));
    let made = found(covering)?;
    if let Some(leaf_path) = leaf_path {
        lead.take_down(&first, leaf_path, (position, low));
    }
    Some(made)
}

/// Whether an extent has all records of a range.
fn covers(extent: Extent, range: Extent) -> bool {
    extent.index <= range.index && extent.end() >= range.end()
}

/// The entry is damaged, or the leaf ends where entries of the akey may follow in another one.
struct Unclear;

/// A part of an entry's key, and its value.
type Part<'a> = (&'a [u8], &'a [u8]);

/// Consecutive entries of a leaf, and of the one behind it if they continue there.
struct Walk<'a> {
    tree: &'a Tree,
    leaf: &'a Rc<Node>,
    entries: &'a Packed,
    /// Bytes that the keys of all these entries share.
    shared: usize,
    at: usize,
    /// The leaf behind the first one, once it was needed.
    second: &'a OnceCell<Option<Rc<Node>>>,
    /// The second leaf has nothing of the path.
    is_beyond: bool,
}

impl<'a> Walk<'a> {
    /// Goes behind the event that created a dkey not later than `epoch`, and returns the epoch of that. [`Walk::akey`] finds
    /// out whether the dkey has other events.
    fn go_below_dkey(&mut self, low: u64, place: &mut StackKeyBuilder, epoch: u64) -> Option<u64> {
        self.at = self.entries.first_at(place.event(epoch))?;
        self.entries.prefetch(self.at);
        let (created, value) = self.version(place, EVENT, epoch)?;
        let is_creation = created >= low && Event::is_dkey(value);
        self.step(place);
        is_creation.then_some(created)
    }

    /// Goes to the next entry.
    #[inline]
    fn step(&mut self, place: &StackKeyBuilder) {
        self.at += 1;
        if self.at == self.entries.len() {
            self.turn_over(place.path());
        }
    }

    /// Goes on to the leaf behind the first one, if that is in memory.
    #[cold]
    fn turn_over(&mut self, path: &[u8]) {
        if self.second.get().is_some() {
            return;
        }
        let behind = || {
            let last = self.entries.key(self.entries.len().checked_sub(1)?);
            self.tree.leaf_behind(&last)
        };
        let second: &'a OnceCell<_> = self.second;
        let Some((leaf, entries)) = second.get_or_init(behind).as_ref().map(|leaf| (leaf, leaf.entries()))
        else {
            return;
        };
        let prefix = entries.prefix();
        if path.starts_with(prefix) {
            (self.leaf, self.entries, self.shared, self.at) = (leaf, entries, prefix.len(), 0);
        } else if !prefix.starts_with(path) {
            self.is_beyond = true;
        }
    }

    /// What follows the path in the key of the present entry, and its value; `None` where that doesn't begin with it.
    #[inline]
    fn below(&self, path: &[u8]) -> Result<Option<Part<'a>>, Unclear> {
        if self.is_beyond {
            return Ok(None);
        }
        let (suffix, value) = self.entries.entry(self.at).ok_or(Unclear)?;
        let path = path.get(self.shared..).ok_or(Unclear)?;
        Ok(suffix.strip_prefix(path).map(|rest| (rest, value)))
    }

    /// Whether the present entry is below the path and no event of it: an older event would count, too.
    fn is_behind_events(&self, path: &[u8]) -> bool {
        matches!(self.below(path), Ok(Some((rest, _))) if rest.first() != Some(&EVENT))
    }

    /// Epoch and value of the present entry if it is of this kind, of nothing but an epoch, and not newer than `epoch`.
    #[inline]
    fn version(&self, place: &StackKeyBuilder, kind: u8, epoch: u64) -> Option<(u64, &'a [u8])> {
        let (rest, value) = self.below(place.path()).ok()??;
        let (_, at) = rest.split_first().filter(|(first, _)| **first == kind)?;
        Some((key::epoch_from(at).ok()?.0, value)).filter(|(at, _)| *at <= epoch)
    }

    /// Goes to the first entry that isn't below a key, which is that of an entry behind the first one. It begins with a
    /// path of this length.
    fn seek(&mut self, key: &[u8], path: usize) -> Option<()> {
        self.at = self.entries.first_from(key.get(self.shared..)?);
        if self.at == self.entries.len() {
            self.turn_over(&key[..path]);
            self.at = self.entries.first_from(key.get(self.shared..)?);
        }
        Some(())
    }

    /// The version that covers what is wanted of an akey below a dkey that exists since `low`.
    fn covering(
        mut self,
        (place, akey): (&mut StackKeyBuilder, &Key),
        (low, epoch): (u64, u64),
        wanted: Wanted,
    ) -> Option<Covering<'a>> {
        let dkey = place.path().len();
        place.akey(akey)?;
        let (low, event) = self.akey(place, dkey, (low, epoch))?;
        let Event::Akey { kind, record_size, classes } = event else { return None };
        match (wanted, kind) {
            (Wanted::Single(_), Kind::Single) => self.single(place, (low, epoch)),
            (Wanted::Records(range, size), Kind::Array) if size == record_size && size > 0 => {
                self.records(place, (low, epoch), range, classes)
            }
            _ => None,
        }
    }

    /// Goes behind the event that created an akey. As [`Walk::go_below_dkey`]. `dkey` is how much of the path is that of the
    /// dkey.
    fn akey(
        &mut self,
        place: &mut StackKeyBuilder,
        dkey: usize,
        (low, epoch): (u64, u64),
    ) -> Option<(u64, Event)> {
        let mut found = self.version(place, EVENT, epoch);
        // Most dkeys have one akey, or the first is asked for. Another one is behind the events of the dkey.
        if found.is_none() {
            self.is_behind_events(&place.path()[..dkey]).then_some(())?;
            let path = place.path().len();
            self.seek(place.event(epoch), path)?;
            found = self.version(place, EVENT, epoch);
        }
        let (created, value) = found?;
        let event = Event::decode(value).ok()?;
        self.step(place);
        (created >= low).then_some((created, event))
    }

    /// The newest single value up to an epoch.
    fn single(&mut self, place: &mut StackKeyBuilder, (low, epoch): (u64, u64)) -> Option<Covering<'a>> {
        let mut found = self.version(place, BELOW, epoch);
        if found.is_none() {
            self.is_behind_events(place.path()).then_some(())?;
            let path = place.path().len();
            self.seek(place.single(epoch), path)?;
            found = self.version(place, BELOW, epoch);
        }
        let (at, _) = found?;
        let position = self.entries.position(self.at).filter(|_| at >= low)?;
        Some(Covering { extent: None, leaf: self.leaf, position })
    }

    /// The version of an extent that covers a range, when no other one reaches into it.
    fn records(
        &mut self,
        place: &mut StackKeyBuilder,
        (low, epoch): (u64, u64),
        range: Extent,
        classes: u32,
    ) -> Option<Covering<'a>> {
        let class = u8::try_from(classes.trailing_zeros()).ok().filter(|_| classes.is_power_of_two())?;
        let first = range.index.saturating_sub(key::class_length_max(class));
        let mut next = self.extent(place, class).ok()?;
        // Extents begin behind the event, all of one class. Where there is another event, there is none.
        if next?.0.index < first {
            let path = place.path().len();
            self.seek(place.extents_from(class, first), path)?;
            next = self.extent(place, class).ok()?;
        }
        let (mut done, mut steps, mut covering) = (None, 0, None);
        while let Some((extent, at)) = next {
            if extent.index >= range.end() {
                break;
            }
            let reaches = extent.end() > range.index;
            if done == Some(extent) || (at > epoch && reaches) {
                steps += 1;
                if steps > STEPS_MAX {
                    return None;
                }
            } else {
                (done, steps) = (Some(extent), 0);
                let position = self.entries.position(self.at)?;
                let found = Covering { extent: Some(extent), leaf: self.leaf, position };
                if reaches && at >= low && at <= epoch && covering.replace(found).is_some() {
                    return None;
                }
            }
            self.step(place);
            next = self.extent(place, class).ok()?;
        }
        covering.filter(|found| found.extent.is_some_and(|extent| covers(extent, range)))
    }

    /// The present entry as a version of an extent of a class, with its epoch; `None` when it is something else.
    #[inline]
    fn extent(&self, place: &StackKeyBuilder, class: u8) -> Result<Option<(Extent, u64)>, Unclear> {
        match self.below(place.path())? {
            Some(([EXTENT, found, rest @ ..], _)) if *found == class => {
                key::extent_tail(class, rest).map(Some).map_err(|_| Unclear)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
