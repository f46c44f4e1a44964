//! What a client asks of a shard: update, fetch, punch, list, query and transactions. Each is an `impl` of
//! [`crate::Shard`]. It calls `state` and below; the store's callers and upkeep call it.

pub(crate) mod attribute;
pub(crate) mod decisions;
pub(crate) mod direct_read;
pub(crate) mod fetch;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod operation;
pub(crate) mod punch;
pub(crate) mod query;
pub(crate) mod reclaimable;
pub(crate) mod reserve;
pub(crate) mod runs;
pub(crate) mod sliced_reader;
#[cfg(test)]
mod tests {
    pub(super) mod history;
}
pub(crate) mod transact;
pub(crate) mod transaction;
pub(crate) mod update;
pub(crate) mod view;
