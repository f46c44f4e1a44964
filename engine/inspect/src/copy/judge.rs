//! What becomes of an entry: one that makes no sense, or belongs to nobody, is left out.

use std::collections::BTreeSet;
use weir_format::entry::{Entry, TransactionPart};
use weir_format::key::TransactionKey;
use weir_format::key::{self, ContainerNumber, PoolNumber};
use weir_format::node::ENTRY_MAX;
use weir_store::offline::Catalog;

/// What is known of a store before it is copied.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Pools and containers, with what they use.
    pub(super) catalog: Catalog,
    /// Prepared transactions of which something is missing, so that nobody could commit them.
    pub(super) unfit: BTreeSet<TransactionKey>,
}

/// To whom entries belong: their kind, pool and container.
pub(super) type Whose = (u8, PoolNumber, ContainerNumber);

/// What becomes of an entry.
pub(super) enum Fate {
    Copy(Entry),
    /// The copy counts for itself what its containers use.
    Counted,
    Malformed(&'static str),
    /// Its pool or container is not there.
    Orphan(Whose),
    /// Its transaction is unfit.
    Unfit,
}

impl Known {
    pub(super) fn judge(&self, key: &[u8], value: &[u8]) -> Fate {
        let entry = match Entry::decode(key, value) {
            Ok(entry) if key.len() + value.len() <= ENTRY_MAX => entry,
            Ok(_) => return Fate::Malformed("it is larger than an entry may be"),
            Err(malformed) => return Fate::Malformed(malformed.0),
        };
        match &entry {
            Entry::Pool { .. } => return Fate::Copy(entry),
            Entry::Usage { .. } => return Fate::Counted,
            _ => {}
        }
        if let Some(owner) = key::belongs_to(key).filter(|owner| !self.catalog.has(*owner)) {
            let (kind, (pool, container)) = (key.first().copied().unwrap_or(0), owner);
            return Fate::Orphan((kind, pool, container.unwrap_or(0)));
        }
        match &entry {
            Entry::Transaction { pool, container, id, part }
                if !matches!(part, TransactionPart::Decision { .. })
                    && self.unfit.contains(&(*pool, *container, *id)) =>
            {
                Fate::Unfit
            }
            _ => Fate::Copy(entry),
        }
    }
}

/// Entries of this kind, in words.
pub(super) fn kind_name(kind: u8) -> &'static str {
    match kind {
        key::CONTAINER => "containers",
        key::ATTRIBUTE => "pieces of attributes",
        key::SNAPSHOT => "snapshots",
        key::TRANSACTION => "entries of transactions",
        _ => "entries of objects",
    }
}
