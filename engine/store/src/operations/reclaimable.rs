//! Counts the reclaimable bytes of a container near its quota. An overwritten version takes space until aggregation has
//! removed it, for the retention and a little longer. A container that is overwritten in place would need its quota several
//! times over. So the container may exceed its quota by its reclaimable bytes.
//!
//! The count never exceeds what aggregation will remove. A version counts if all of it was visible before an update, nothing
//! of it is visible after the update, and no snapshot shows it. The count of a time is dropped before aggregation removes
//! anything that old. A merge of versions subtracts what these have been counted for.

use crate::format::codec::Malformed;
use crate::format::key::{ContainerNumber, Path, PoolNumber};
use crate::format::usage::{Usage, entry_bytes};
use crate::format::value::Version;
use crate::index::existence::{Existence, existence};
use crate::index::extents::{Stored, paint, versions_within};
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use crate::operations::fetch::newest_single_as;
use crate::operations::update::Request;
use crate::state::core::Core;
use crate::state::piece::WritePiece;
use crate::state::shard::Shard;
use crate::versions::intents::Slot;
use std::collections::BTreeSet;
use weir_proto::object::Extent;

/// Index entries that an update looks at to find out what it hides. If it would have to look at more, it counts nothing.
const LOOKS_MAX: usize = 64;

impl Core {
    /// Aggregation may remove what was hidden in a container up to this epoch from now on.
    pub(crate) fn expire_reclaimable(&self, place: (PoolNumber, ContainerNumber), up_to: u64) {
        if let Some(container) = self.catalog.borrow_mut().container_mut(place) {
            container.reclaimable.expire(up_to);
        }
    }

    /// Versions in a container, encoded, each with the length of its key, have been merged.
    pub(crate) fn reduce_reclaimable<'a>(
        &self,
        place: (PoolNumber, ContainerNumber),
        merged: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> Result<(), Malformed> {
        let mut catalog = self.catalog.borrow_mut();
        let container = catalog.container_mut(place);
        let Some(container) = container.filter(|container| container.reclaimable.total() > 0) else {
            return Ok(());
        };
        let mut usage = Usage::default();
        for (key, value) in merged {
            usage += version_usage(key, value)?;
        }
        container.reclaimable.take_off(usage.total());
        Ok(())
    }
}

impl Shard {
    /// Counts what the newest update has hidden, in a container near its quota.
    pub(crate) fn count_reclaimable(&self, request: &Request<'_>, pieces: &[WritePiece]) {
        let mut catalog = self.core.catalog.borrow_mut();
        let Some(container) = catalog.container_mut((self.number, request.container)) else { return };
        // Nodes that aren't in memory aren't read for this.
        let hidden = hidden_by(&self.core.tree.borrow(), request, pieces, &container.snapshots);
        if let Ok(bytes @ 1..) = hidden {
            container.reclaimable.add(request.epoch, bytes);
        }
    }
}

/// Bytes of versions that an update hides for good.
fn hidden_by(
    tree: &Tree,
    request: &Request<'_>,
    pieces: &[WritePiece],
    snapshots: &BTreeSet<u64>,
) -> Result<u64, Fault> {
    let before = request.epoch - 1;
    let object = Path::object(request.pool, request.container, request.object);
    let of_object = existence(tree, &object, Existence::ALWAYS, before)?;
    let dkey = object.dkey(request.dkey);
    let of_dkey = existence(tree, &dkey, of_object, before)?;
    let is_kept = |epoch| snapshots.range(epoch..request.epoch).next().is_some();
    let mut hidden = Usage::default();
    let mut looks = LOOKS_MAX;
    for piece in pieces {
        let akey = dkey.akey(&request.akeys[piece.akey].akey);
        let existence = existence(tree, &akey, of_dkey, before)?;
        match piece.slot {
            Slot::Single => {
                let usage = |value: &[u8]| version_usage(akey.single(before).len(), value);
                let newest = newest_single_as(tree, &akey, existence, before, usage)?;
                if let Some((_, usage)) = newest.filter(|(epoch, _)| !is_kept(*epoch)) {
                    hidden += usage;
                }
            }
            Slot::Extent(extent) => {
                let whole = wholly_within(tree, &akey, existence, (before, extent), &mut looks)?;
                for Stored { extent, epoch, value } in whole {
                    if !is_kept(epoch) {
                        hidden += version_usage(akey.extent(extent, epoch).len(), &value)?;
                    }
                }
            }
        }
    }
    Ok(hidden.total())
}

/// What an encoded version takes up, whose key has this length.
fn version_usage(key: usize, value: &[u8]) -> Result<Usage, Malformed> {
    let blocks = Version::runs(value)?.iter().map(|run| run.count).sum();
    Ok(Usage { blocks, entries: entry_bytes(key, value.len()), reserved: 0 })
}

/// Versions of extents that lie within another and are visible as a whole at an epoch.
fn wholly_within(
    tree: &Tree,
    akey: &Path,
    existence: Existence,
    (before, extent): (u64, Extent),
    looks: &mut usize,
) -> Result<Vec<Stored>, Fault> {
    let Some((_, _, classes)) = existence.array_or_single() else { return Ok(Vec::new()) };
    let Some(stored) = versions_within(tree, akey, existence, before, extent, classes, looks)? else {
        return Ok(Vec::new());
    };
    let mut seen = vec![0; stored.len()];
    for part in paint(&stored, extent) {
        seen[part.stored] += part.extent.count;
    }
    let whole = stored.into_iter().zip(seen).filter(|(stored, seen)| stored.extent.count == *seen);
    Ok(whole.map(|(stored, _)| stored).collect())
}
