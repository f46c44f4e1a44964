//! What an update takes of the room that is kept for its records.

use crate::format::edit_buffer::EditBuffer;
use crate::format::key::KeyBytes;
use crate::format::record::Edit;
use crate::format::reserved::{Reserved, key_of};
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::operations::update::Request;
use crate::state::error::UpdateError;
use crate::state::piece::WritePiece;
use crate::versions::intents::Slot;
use core::ops::Range;

/// A reservation of which an update writes some records.
#[derive(Debug)]
pub(crate) struct Drawable {
    key: KeyBytes,
    before: Reserved,
    /// The records that the update doesn't write, with the whole room.
    after: Reserved,
}

impl Drawable {
    /// Those of an update.
    pub(crate) fn of(
        tree: &Tree,
        request: &Request<'_>,
        pieces: &[WritePiece],
    ) -> Result<Vec<Self>, Halt<UpdateError>> {
        let mut found = Vec::new();
        let Some(dkey) =
            request.dkey.to_u64().filter(|_| crate::format::key::has_integer_dkeys(request.object))
        else {
            return Ok(found);
        };
        for (index, update) in request.akeys.iter().enumerate() {
            let key = key_of(&request.place(), dkey, &update.akey);
            let Some(value) = tree.get(&key)? else { continue };
            let before = Reserved::decode(&value).map_err(UpdateError::from)?;
            let own = pieces.iter().filter(|piece| piece.akey == index);
            let after = own.fold(before.clone(), |left, piece| match piece.slot {
                Slot::Single => left,
                Slot::Extent(extent) => left.without(&Range { start: extent.index, end: extent.end() }),
            });
            if after != before {
                found.push(Self { key, before, after });
            }
        }
        Ok(found)
    }

    /// Bytes that are left to the other records when up to `cost` of them are taken, and how many were. `spares`: so much stays
    /// that these can be written all the same.
    fn take(&self, cost: u64, spares: bool) -> (u64, u64) {
        let least = if spares { self.after.least(self.key.len()) } else { 0 };
        let before = self.before.bytes;
        let left = before.saturating_sub(cost).max(least.min(before));
        (left.min(self.after.price(self.key.len())), before - left)
    }
}

/// Bytes that an update of this cost may take of what is kept for its records.
pub(crate) fn most(drawables: &[Drawable], cost: u64) -> u64 {
    let all = drawables.iter().map(|drawable| drawable.before.bytes).fold(0, u64::saturating_add);
    all.min(cost)
}

/// Takes room that is kept for the records of an update of this cost, and adds the changes of the reservations. `fits` says
/// whether the update fits with so many bytes of it; it is called first with the bytes that other records don't need, and then
/// with all.
pub(crate) fn draw<T>(
    drawables: &[Drawable],
    cost: u64,
    buffer: &mut EditBuffer,
    fits: impl Fn(u64) -> Result<T, UpdateError>,
) -> Result<T, UpdateError> {
    let attempt = |spares| {
        let (mut cost, mut given, mut lefts) = (cost, 0_u64, Vec::with_capacity(drawables.len()));
        for drawable in drawables {
            let (left, taken) = drawable.take(cost, spares);
            cost -= taken.min(cost);
            given = given.saturating_add(drawable.before.bytes - left);
            lefts.push(left);
        }
        fits(given).map(|fit| (fit, lefts))
    };
    let (fit, lefts) = match attempt(true) {
        Err(UpdateError::NoSpace { .. } | UpdateError::Quota { .. }) if !drawables.is_empty() => {
            attempt(false)?
        }
        done => done?,
    };
    for (Drawable { key, after, .. }, left) in drawables.iter().zip(lefts) {
        let after = Reserved { bytes: left, ..after.clone() };
        let value = (!after.is_none()).then(|| after.encode());
        buffer.push(Edit { key, value: value.as_deref() });
    }
    Ok(fit)
}
