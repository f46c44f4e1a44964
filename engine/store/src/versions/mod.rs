//! What several versions of one place mean to each other: timestamps of readers and writers, prepared transactions, and
//! walks over the versions of a dkey. It holds its state in memory and derives it from the index after an open. It calls
//! `format` and `index`; the state of the store and all operations call it.

pub(crate) mod dkey_leaf;
pub(crate) mod intents;
pub(crate) mod latest_records;
pub(crate) mod prepared_space;
pub(crate) mod timestamps;
pub(crate) mod walk;
