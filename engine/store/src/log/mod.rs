//! Durability: checkpoints of the index, and the open of a device that brings index and log together again. It mends what a
//! flipped bit broke and confines what is lost. It calls `state` and below; the store calls it at format, open and close.

pub(crate) mod checkpoint;
pub(crate) mod derive;
pub(crate) mod empty;
pub(crate) mod formatting;
pub(crate) mod mark;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod tail;
