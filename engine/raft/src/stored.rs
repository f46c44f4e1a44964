//! What a replica stores, as attributes of its shard: its vote, its log, what of the log has taken effect, and which commands.
//! `docs/reference/format.md` describes the attributes. Each value begins with a byte of version.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_bytes::ByteBuf;
use weir_proto::codec;
use weir_store::{AttributeChange, Shard};

/// Scope of the single records below.
pub(crate) const SCOPE: &[u8] = b"raft";
/// Scope of the log's entries, by index and part.
pub(crate) const SCOPE_LOG: &[u8] = b"raft-log";
/// Scope of the commands that have taken effect, by index and name.
pub(crate) const SCOPE_DONE: &[u8] = b"raft-done";
/// Scope of the parts of a snapshot that takes the place of the state.
pub(crate) const SCOPE_STAGE: &[u8] = b"raft-stage";

/// Name of a [`HardForm`].
pub(crate) const NAME_HARD: &[u8] = b"hard";
/// Name of a [`StartForm`]: what the log begins behind.
pub(crate) const NAME_START: &[u8] = b"start";
/// Name of a [`PlaceForm`]: the last entry that has taken effect.
pub(crate) const NAME_APPLIED: &[u8] = b"applied";
/// Name of a [`StartForm`]: the staged snapshot is taking the place of the state.
pub(crate) const NAME_INSTALLING: &[u8] = b"installing";

/// Bytes of an entry in one attribute; a value has at most 512 KiB.
pub(crate) const PART: usize = 480 * 1024;

/// Entries read at once when a scope is loaded.
const PAGE: usize = 256;

/// The version that is written of all forms below.
const VERSION: u8 = 1;

/// The vote, in the term in which it was cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HardForm {
    pub(crate) term: u64,
    pub(crate) vote: u64,
    pub(crate) commit: u64,
}

/// An entry's place in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PlaceForm {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// The place behind which the log begins, and the members by what was committed until then.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StartForm {
    pub(crate) place: PlaceForm,
    pub(crate) voters: Vec<u64>,
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EntryForm {
    pub(crate) kind: u8,
    pub(crate) place: PlaceForm,
    pub(crate) data: ByteBuf,
}

pub(crate) fn encode<T: Serialize>(form: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(codec::encode(form));
    bytes
}

/// # Errors
/// When the bytes are damaged, or of a later version.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&VERSION, form)) => codec::decode(form).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("format version {version}, this release reads {VERSION}")),
        None => Err("it is empty".to_owned()),
    }
}

/// A single record, where there is one.
pub(crate) fn load<T: DeserializeOwned>(shard: &Shard, name: &[u8]) -> Result<Option<T>, String> {
    shard.attribute(SCOPE, name).map(|bytes| decode(&bytes)).transpose()
}

/// The change that stores a single record.
pub(crate) fn put<T: Serialize>(name: &[u8], form: &T) -> AttributeChange {
    change(SCOPE, name, Some(encode(form)))
}

/// The change of one attribute.
#[must_use]
pub fn change(scope: &[u8], name: &[u8], value: Option<Vec<u8>>) -> AttributeChange {
    AttributeChange { scope: scope.to_vec(), name: name.to_vec(), value }
}

/// Every attribute of a scope, in order of the names.
#[must_use]
pub fn load_scope(shard: &Shard, scope: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = Vec::new();
    let mut from = Vec::new();
    loop {
        let page = shard.attributes(scope, &from, PAGE);
        let Some((last, _)) = page.last() else { return entries };
        // The least name greater than the last one.
        from = [last.as_slice(), &[0]].concat();
        let whole = page.len() == PAGE;
        entries.extend(page);
        if !whole {
            return entries;
        }
    }
}
