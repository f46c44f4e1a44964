//! Measuring the data path: round trips, rates and transfers, as requests make them.
//!
//! [`serve`] answers what is needed for it, at a target or anywhere else. A [`Listener`] does nothing else: it lets an
//! engine be measured by another fabric provider than the one that its targets speak, and is the other side of a
//! measurement within one machine. [`measure`] is one turn of a measurement, of which [`Figures`] are made.

mod listener;
mod measure;
mod services;

pub use listener::{Listener, ListenerError};
pub use measure::{Figures, Plan, REQUEST_LEN, TRANSFER_LEN, Turn, listeners, measure};
pub use services::{announce, serve};
