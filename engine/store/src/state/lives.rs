//! What is remembered of the objects that requests are about.

use crate::format::draft::Draft;
use crate::format::key::ObjectKey;
use crate::format::key::Path;
use crate::format::value::Event;
use crate::index::incarnation::{Life, life};
use crate::index::tree::{Address, Tree};
use crate::space::size::in_memory;
use crate::state::core::Places;
use core::cell::RefCell;

/// Objects whose life is remembered: requests come from a few clients, each busy with an object or two.
const LIVES: usize = 16;

/// The life of an object as of its newest event.
#[derive(Clone, Copy, Debug)]
struct Known {
    place: ObjectKey,
    /// The version of the tree that it was found in.
    version: u64,
    life: Life,
    /// Where its entry was found last, if it was updated.
    address: Option<Address>,
    /// The version in which it was there for sure.
    at_address: u64,
}

/// Where an object's entry was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    address: Address,
    /// It is there, with all that a change of it needs in memory.
    is_sure: bool,
}

impl Spot {
    /// Where the entry is that has the key that `entry` gives, if it is there.
    pub(crate) fn address<'e>(self, tree: &Tree, entry: impl Fn() -> &'e [u8]) -> Option<Address> {
        (self.is_sure || tree.is_at(self.address, entry())).then_some(self.address)
    }
}

/// Lives of the objects asked for last. Each counts only as long as no entry of the index has changed.
#[derive(Debug, Default)]
pub(crate) struct Lives([RefCell<Option<Known>>; LIVES]);

impl Lives {
    fn slot(&self, hash: u64) -> &RefCell<Option<Known>> {
        &self.0[in_memory(hash >> 32) % LIVES]
    }

    /// The life of an object with this hash at an epoch that isn't before its newest event; `None` before that, and where
    /// the index has to be read or is damaged.
    pub(crate) fn newest_at(&self, tree: &Tree, place: &ObjectKey, hash: u64, epoch: u64) -> Option<Life> {
        self.newest(tree, place, hash, epoch).0
    }

    /// As [`Lives::newest_at`], with where the object's entry most likely is.
    #[inline]
    pub(crate) fn newest(
        &self,
        tree: &Tree,
        place: &ObjectKey,
        hash: u64,
        epoch: u64,
    ) -> (Option<Life>, Option<Spot>) {
        let slot = &mut *self.slot(hash).borrow_mut();
        let version = tree.version();
        let known = match slot {
            Some(known) if known.version == version && known.place == *place => known,
            _ => match Self::look(slot, tree, place) {
                Some(known) => known,
                None => return (None, None),
            },
        };
        let is_sure = known.at_address == version;
        let entry = known.address.map(|address| Spot { address, is_sure });
        // From the newest event on all epochs see the same.
        let counts = known.life.event.is_none_or(|(at, _)| at <= epoch);
        (if counts { Some(known.life) } else { None }, entry)
    }

    /// Finds out how an object lives.
    #[cold]
    fn look<'a>(slot: &'a mut Option<Known>, tree: &Tree, place: &ObjectKey) -> Option<&'a mut Known> {
        let path = Path::object(place.0, place.1, place.2);
        let life = life(tree, &path, Life::ALWAYS, u64::MAX).ok()?;
        let before = slot.filter(|known| known.place == *place);
        let (address, at_address) = before.map_or((None, 0), |known| (known.address, known.at_address));
        Some(slot.insert(Known { place: *place, version: tree.version(), life, address, at_address }))
    }

    /// Goes on knowing an object with this hash that was updated at an epoch, which took the index from version `before` to the
    /// present one with no other change. Its own `entry`, if that was the first to change, is where the places say, or
    /// is looked for by its key.
    pub(crate) fn renew(
        &self,
        tree: &Tree,
        (place, hash): (&ObjectKey, u64),
        (before, epoch): (u64, u64),
        entry: Option<(&Draft, &Places<'_>)>,
    ) {
        let mut known = self.slot(hash).borrow_mut();
        let known = known.as_mut().filter(|known| known.version == before && known.place == *place);
        // Anything but an update of the newest incarnation is looked up again.
        if let Some(known) = known
            && let Some((at, Event::Object { newest })) = &mut known.life.event
            && known.life.exists
            && *at <= epoch
        {
            *newest = epoch.max(*newest);
            known.version = tree.version();
            if let Some((entry, places)) = entry {
                known.address = places.object.or_else(|| tree.address(entry.first()?.key));
                // Other changes may have moved it.
                let is_sure = places.are_all || places.object.is_none();
                known.at_address = if is_sure { tree.version() } else { 0 };
            }
        }
    }
}
