//! Changes within the quota of a container.

use weir_pool::{TargetContainer, TargetPool};
use weir_rpc::Status;
use weir_store::UpdateError;

use crate::admission::refusal::{self, ErrorSite};

/// Most times an update asks for more quota: others may use up what was granted before its turn comes.
const GRANT_TRIES: usize = 8;

/// Does `attempt`, again with a greater share of the container's quota, for so many bytes, while that is used up here. What
/// finds no room because others have overwritten or deleted something a moment ago is sent away to come again.
pub(crate) async fn within_quota<T>(
    (pool, container): (&TargetPool, &TargetContainer),
    wanted: u64,
    place: &ErrorSite<'_>,
    attempt: impl AsyncFn() -> Result<T, UpdateError>,
) -> Result<T, Status> {
    let mut tries = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        tries += 1;
        if matches!(error, UpdateError::Quota { .. })
            && tries < GRANT_TRIES
            && pool.enlarge(container, wanted).await?
        {
            continue;
        }
        let has_no_room = matches!(error, UpdateError::Quota { .. } | UpdateError::NoSpace { .. });
        return Err(if has_no_room && pool.may_regain_room(container, wanted, &error) {
            refusal::room_to_come(&error, place)
        } else {
            refusal::update(&error, place)
        });
    }
}
