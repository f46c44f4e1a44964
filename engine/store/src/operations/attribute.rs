//! Attributes: a small durable map of each pool shard, for the state of the pool service.
//!
//! Values are kept in pieces, because an index entry is bounded.

use crate::format::key;
use crate::format::record::Change;
use crate::format::record::RECORD_MAX;
use crate::format::usage::entry_bytes;
use crate::state::core::CommitError;
use crate::state::shard::Shard;
use core::ops::ControlFlow;
use weir_proto::{Der, Epoch, PoolId};

/// Longest scope or name, in bytes (DAOS: `DAOS_ATTR_NAME_MAX` is 511). Two of them, escaped, leave an index entry
/// room for a piece.
const NAME_MAX: usize = 511;

/// Longest value, in bytes: a quarter of the largest log record.
const VALUE_MAX: usize = 512 * 1024;

/// Most bytes of names and values in one batch. With scopes, and what is removed, it has to fit one log record besides.
const BATCH_MAX: usize = 1024 * 1024;

/// Bytes of a piece: with the longest scope and name it fits an index entry.
const PIECE: usize = 3072;

/// One change of a batch of attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeChange {
    /// Namespace of the name, up to 511 bytes; may be empty.
    pub scope: Vec<u8>,
    /// The name, 1 to 511 bytes.
    pub name: Vec<u8>,
    /// The new value, up to 512 KiB; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// The changes of attributes that commit along with another change, once that has its epoch.
pub type Along<'a> = &'a dyn Fn(Epoch) -> Vec<AttributeChange>;

/// A change of attributes failed. Nothing of it is stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// Scope or name has an impossible length.
    #[error(
        "scope and name of an attribute have up to {limit} bytes, the name at least 1; \"{name}\" has not"
    )]
    Name {
        /// The name, escaped.
        name: String,
        /// Most bytes.
        limit: usize,
    },
    /// The value is too long.
    #[error("attribute \"{name}\" has {len} bytes, at most {limit} are kept")]
    TooLong {
        /// The name, escaped.
        name: String,
        /// Its length.
        len: usize,
        /// Most bytes.
        limit: usize,
    },
    /// The pool was destroyed.
    #[error("pool {0} has no shard on this target")]
    PoolMissing(PoolId),
    /// The device has no room left.
    #[error("pool {0} has no room for attributes on this target; delete data or grow the pool")]
    NoSpace(PoolId),
    /// The store has failed.
    #[error("the store takes no changes: {0}; if its device failed, repair it and restart the engine")]
    Failed(String),
}

impl AttributeError {
    /// The number that crosses the wire.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::Name { .. } | Self::TooLong { .. } => Der::INVAL,
            Self::PoolMissing(_) => Der::NONEXIST,
            Self::NoSpace(_) => Der::NOSPACE,
            Self::Failed(_) => Der::IO,
        }
    }
}

fn check(change: &AttributeChange) -> Result<(), AttributeError> {
    let name = || change.name.escape_ascii().to_string();
    if change.name.is_empty() || change.name.len() > NAME_MAX || change.scope.len() > NAME_MAX {
        return Err(AttributeError::Name { name: name(), limit: NAME_MAX });
    }
    let len = change.value.as_ref().map_or(0, Vec::len);
    if len > VALUE_MAX {
        return Err(AttributeError::TooLong { name: name(), len, limit: VALUE_MAX });
    }
    Ok(())
}

impl Shard {
    /// Applies changes of attributes, all or none; of several changes of one name the last counts. Durable when it
    /// returns; a later call is never durable before an earlier one.
    ///
    /// # Errors
    /// See [`AttributeError`].
    pub async fn change_attributes(&self, changes: &[AttributeChange]) -> Result<(), AttributeError> {
        changes.iter().try_for_each(check)?;
        let total: usize =
            changes.iter().map(|change| change.name.len() + change.value.as_ref().map_or(0, Vec::len)).sum();
        if total > BATCH_MAX {
            let name = "the whole batch".to_owned();
            return Err(AttributeError::TooLong { name, len: total, limit: BATCH_MAX });
        }
        self.core.admit().await.map_err(AttributeError::Failed)?;
        self.check_pool().map_err(|_| AttributeError::PoolMissing(self.id()))?;
        let mut entries = Vec::new();
        for change in changes {
            self.change_one(change, &mut entries);
        }
        let grows: u64 = entries
            .iter()
            .map(|entry| match entry {
                Change::Put { key, value } => entry_bytes(key.len(), value.len()),
                Change::Remove { .. } => 0,
            })
            .sum();
        // The state of the pool service must be kept even in a full pool: only the device's own limit counts.
        if grows > 0 && !self.core.has_room_for_metadata() {
            return Err(AttributeError::NoSpace(self.id()));
        }
        let record = self.core.commit(&entries, None).map_err(|error| match error {
            CommitError::TooLong { len } => {
                let name = "the whole batch with its scopes and what it replaces".to_owned();
                AttributeError::TooLong { name, len, limit: RECORD_MAX }
            }
            CommitError::Refused(reason) => AttributeError::Failed(reason),
            CommitError::Malformed(malformed) => AttributeError::Failed(malformed.to_string()),
        })?;
        self.core.make_durable(record).await.map_err(AttributeError::Failed)
    }

    /// The index changes of changes that commit along with others.
    pub(crate) fn add_attributes(&self, changes: &[AttributeChange], entries: &mut Vec<Change>) {
        for change in changes.iter().filter(|change| check(change).is_ok()) {
            self.change_one(change, entries);
        }
    }

    fn change_one(&self, change: &AttributeChange, entries: &mut Vec<Change>) {
        let prefix = key::attribute(self.number, &change.scope, &change.name);
        let piece_key = |number: u16| [prefix.as_slice(), &number.to_be_bytes()].concat();
        let mut pieces = 0u16;
        if let Some(value) = &change.value {
            let mut rest = value.as_slice();
            loop {
                let (piece, after) = rest.split_at(rest.len().min(PIECE));
                entries.push(Change::Put { key: piece_key(pieces), value: piece.to_vec() });
                pieces += 1;
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
        }
        // Pieces that the old value had and the new one hasn't. An earlier change of this batch isn't in the index
        // yet, so its pieces count too.
        let batch = entries
            .iter()
            .filter_map(|entry| entry.key().strip_prefix(prefix.as_slice())?.first_chunk().copied());
        let batch = batch.map(u16::from_be_bytes).max().map_or(0, |last| last + 1);
        let stored = self.pieces(&prefix).len();
        // A damaged index may say that there are more than any value has.
        let old = u16::try_from(stored).unwrap_or(u16::MAX).max(batch);
        entries.extend((pieces..old).map(|number| Change::Remove { key: piece_key(number) }));
    }

    fn pieces(&self, prefix: &[u8]) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        // Nodes with attributes stay in memory. Those of objects behind them may not be there, which is no matter.
        let behind = self.core.tree.borrow().scan::<()>(prefix, |key, value| {
            if !key.starts_with(prefix) {
                return ControlFlow::Break(());
            }
            pieces.push(value.to_vec());
            ControlFlow::Continue(())
        });
        drop(behind);
        pieces
    }

    /// The value of an attribute. Includes changes that aren't durable yet.
    #[must_use]
    pub fn attribute(&self, scope: &[u8], name: &[u8]) -> Option<Vec<u8>> {
        self.check_pool().ok()?;
        let pieces = self.pieces(&key::attribute(self.number, scope, name));
        if pieces.is_empty() { None } else { Some(pieces.concat()) }
    }

    /// Names and values of a scope in order of the names, from the first name that is at least `from`.
    #[must_use]
    pub fn attributes(&self, scope: &[u8], from: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        if self.check_pool().is_err() {
            return found;
        }
        let prefix = key::attribute_scope(self.number, scope);
        let start = if from.is_empty() { prefix.clone() } else { key::attribute(self.number, scope, from) };
        // Nodes with attributes stay in memory. Those of objects behind them may not be there, which is no matter.
        let behind = self.core.tree.borrow().scan::<()>(&start, |key, value| {
            let Some((name, _)) =
                key.strip_prefix(prefix.as_slice()).and_then(|rest| key::attribute_name(rest).ok())
            else {
                return ControlFlow::Break(());
            };
            let full = found.len() == limit;
            match found.last_mut() {
                Some((last, bytes)) if *last == name => bytes.extend_from_slice(value),
                _ if full => return ControlFlow::Break(()),
                _ => found.push((name, value.to_vec())),
            }
            ControlFlow::Continue(())
        });
        drop(behind);
        found
    }
}
