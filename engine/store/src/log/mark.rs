//! What is known of a store apart from its device: a device that holds an older state, or another store, is told from the one that
//! was there.

use crate::format::checkpoint_offset;
use crate::log::recover::Opening;
use crate::state::error::OpenError;
use crate::state::mark::Mark;

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
