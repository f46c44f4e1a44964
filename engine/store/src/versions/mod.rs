//! What several versions of one place mean to each other: timestamps of readers and writers, prepared transactions, and
//! walks over the versions of a dkey. It holds its state in memory and derives it from the index after an open. It calls
//! `format` and `index`; the state of the store and all operations call it.

pub(crate) mod intents;
pub(crate) mod neighbours;
pub(crate) mod promise;
pub(crate) mod timestamps;
pub(crate) mod touched;
pub(crate) mod walk;
