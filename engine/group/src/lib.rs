//! The group of engines that know each other, and requests between them.
//!
//! Each target has one [`Engines`]: it answers the requests of other engines and asks them, in requests that are sealed with the
//! engines' own key for the target that they are for, and carry the version of the list of engines ([`Roster`]). What concerns
//! all engines of a pool goes over a tree ([`Spread`]); so do the figures that they are asked for ([`Gathered`]). What is asked
//! belongs to the crates above: they serve operations with errors of their own, which cross the wire as a [`Refusal`].

mod engines;
mod gather;
mod refusal;
mod reply;
mod roster;
mod seal;
mod spread;

pub use engines::{AskError, EngineKeys, Engines};
pub use gather::Gathered;
pub use refusal::{Refusal, Rejection};
pub use reply::reply;
pub use roster::{InvalidEngines, Roster};
pub use spread::Spread;
