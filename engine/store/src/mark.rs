//! What is known of a store apart from its device: a device that holds an older state, or another store, is told from the one that
//! was there.

use crate::checkpoint::Checkpoints;
use crate::error::OpenError;
use crate::format::checkpoint_offset;
use crate::recover::Opening;
use crate::state::Core;
use uuid::Uuid;
use weir_proto::Epoch;

/// How far a store was at some moment. All that it says was on stable media before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Identity of the store.
    pub store: Uuid,
    /// Generation of the newest checkpoint header.
    pub generation: u64,
    /// Batches of the log with lower numbers were stable.
    pub stable: u64,
    /// Newest epoch of the changes that the checkpoint has.
    pub newest: Epoch,
}

impl Mark {
    pub(crate) fn of(core: &Core) -> Self {
        let Checkpoints { header, .. } = &core.checkpoints;
        let header = header.get();
        let stable = core.journal.unstable();
        Self { store: core.id, generation: header.generation, stable, newest: Epoch(header.newest) }
    }
}

/// The number of the log's batches below which all were stable, as far as the mark of this store tells; 0 for another store's.
pub(crate) fn stable_by(mark: Option<&Mark>, store: Uuid) -> u64 {
    mark.filter(|mark| mark.store == store).map_or(0, |mark| mark.stable)
}

/// Refuses a store whose newest checkpoint header is older than the mark says, and one in the place of another that doesn't go as
/// far: a copy of that one does.
pub(crate) fn check(
    opening: &Opening<'_>,
    mark: &Mark,
    generation: u64,
    newest: u64,
) -> Result<(), OpenError> {
    let store = opening.superblock.id;
    if mark.store == store {
        if generation >= mark.generation {
            return Ok(());
        }
        let reason = format!(
            "the newest intact one has generation {generation}, while {} was written: the device is an older state of the store, or has lost what was written last",
            mark.generation
        );
        return Err(opening.corrupt("the checkpoint header", checkpoint_offset(mark.generation, 0), reason));
    }
    if newest >= mark.newest.0 {
        return Ok(());
    }
    let device = opening.device.name().to_owned();
    Err(OpenError::Replaced { device, found: store, expected: mark.store })
}
