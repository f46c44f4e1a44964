//! What is known of a store apart from its device.

use crate::state::checkpoints::Checkpoints;
use crate::state::core::Core;
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
