//! The whole state, for a member that is too far behind for the log.
//!
//! A snapshot that has come is staged in a scope of its own. One batch then says that it takes the place of the state, and of the
//! log. What that takes is done again after a crash, until another batch says that it is finished.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use weir_proto::codec;
use weir_store::{AttributeChange, AttributeError, Shard};

use crate::replica::Scopes;
use crate::stored::{NAME_INSTALLING, PART, SCOPE, SCOPE_DONE, SCOPE_STAGE, StartForm, change, load_scope};

/// The version of sent and staged snapshots.
const VERSION: u8 = 1;

/// Most bytes, and most changes, of one batch of attributes.
const BATCH: (usize, usize) = (512 * 1024, 4096);

/// The form of version 1: scopes with their attributes.
#[derive(Serialize, Deserialize)]
struct ScopeForm {
    scope: ByteBuf,
    attributes: Vec<(ByteBuf, ByteBuf)>,
}

/// The state in these scopes, and the commands that have taken effect.
pub(crate) fn encode(shard: &Shard, scopes: &[Vec<u8>]) -> Vec<u8> {
    let every = scopes.iter().map(Vec::as_slice).chain([SCOPE_DONE]);
    let forms: Vec<ScopeForm> = every
        .map(|scope| {
            let stored = load_scope(shard, scope).into_iter();
            let attributes = stored.map(|(name, value)| (name.into(), value.into())).collect();
            ScopeForm { scope: scope.to_vec().into(), attributes }
        })
        .collect();
    let mut bytes = vec![VERSION];
    bytes.extend(codec::encode(&forms));
    bytes
}

fn decode(bytes: &[u8]) -> Result<Vec<ScopeForm>, String> {
    match bytes.split_first() {
        Some((&VERSION, forms)) => codec::decode(forms).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("a snapshot of version {version}")),
        None => Err("an empty snapshot".to_owned()),
    }
}

/// Whether this can be installed.
///
/// # Errors
/// When it is damaged, or of a version that is not known here.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    decode(bytes).map(drop)
}

/// Keeps a snapshot beside the state.
pub(crate) async fn stage(shard: &Shard, bytes: &[u8]) -> Result<(), AttributeError> {
    clear(shard, SCOPE_STAGE).await?;
    for (number, part) in (0_u32..).zip(bytes.chunks(PART)) {
        let part = change(SCOPE_STAGE, &number.to_be_bytes(), Some(part.to_vec()));
        shard.change_attributes(&[part]).await?;
    }
    Ok(())
}

/// Puts the staged snapshot in the place of the state, and says that this is finished.
pub(crate) async fn replace_state(
    shard: &Shard,
    scopes: &Scopes,
    start: &StartForm,
) -> Result<(), AttributeError> {
    let staged: Vec<u8> = load_scope(shard, SCOPE_STAGE).into_iter().flat_map(|(_, part)| part).collect();
    let forms = decode(&staged).map_err(AttributeError::Failed)?;
    // Those that tell of others go last, so that all are found again after a crash.
    for scope in scopes(shard).iter().map(Vec::as_slice).rev().chain([SCOPE_DONE]) {
        clear(shard, scope).await?;
    }
    let changes = forms.into_iter().flat_map(|ScopeForm { scope, attributes }| {
        let put = move |(name, value): (ByteBuf, ByteBuf)| change(&scope, &name, Some(value.into_vec()));
        attributes.into_iter().map(put)
    });
    store(shard, changes).await?;
    tracing::info!(group = %shard.id(), index = start.place.index, "the state of a pool's service is taken over from its leader");
    shard.change_attributes(&[change(SCOPE, NAME_INSTALLING, None)]).await?;
    clear(shard, SCOPE_STAGE).await
}

async fn clear(shard: &Shard, scope: &[u8]) -> Result<(), AttributeError> {
    let stored = load_scope(shard, scope).into_iter();
    store(shard, stored.map(|(name, _)| change(scope, &name, None))).await
}

/// Makes changes in as many batches as they need.
async fn store(shard: &Shard, changes: impl Iterator<Item = AttributeChange>) -> Result<(), AttributeError> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for change in changes {
        bytes += change.scope.len() + change.name.len() + change.value.as_ref().map_or(0, Vec::len);
        batch.push(change);
        if bytes >= BATCH.0 || batch.len() >= BATCH.1 {
            shard.change_attributes(&core::mem::take(&mut batch)).await?;
            bytes = 0;
        }
    }
    if batch.is_empty() { Ok(()) } else { shard.change_attributes(&batch).await }
}
