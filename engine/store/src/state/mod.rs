//! The open store that all operations share: catalog of pools and containers, journal, data writer, paging of index nodes,
//! pace of background work, and the state of each background task. It admits changes and commits them. It calls `format`,
//! `space`, `index` and `versions`; everything above works on its [`core::Core`].

pub(crate) mod aggregation;
pub(crate) mod catalog;
pub(crate) mod checkpoints;
pub(crate) mod config;
pub(crate) mod core;
pub(crate) mod defragmentation;
pub(crate) mod error;
pub(crate) mod existence_cache;
pub(crate) mod fills;
pub(crate) mod journal;
pub(crate) mod lost;
pub(crate) mod mark;
pub(crate) mod pace;
pub(crate) mod paging;
pub(crate) mod piece;
mod promised;
pub(crate) mod read;
pub(crate) mod reclaimable;
pub(crate) mod reservation;
pub(crate) mod rot;
pub(crate) mod shard;
pub(crate) mod stats;
pub(crate) mod subject;
pub(crate) mod unread;
pub(crate) mod writer;
