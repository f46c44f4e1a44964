//! Measuring the data path: round trips, rates and transfers, as requests make them.
//!
//! [`serve`] answers measurements, at a target or anywhere else. A [`Listener`] only does that. With it an engine can
//! be measured by another fabric provider than its targets', and it is the other side of a measurement within one
//! machine. [`measure`] is one round of a measurement; [`Figures`] are computed from several.

mod listener;
mod measure;
mod services;

pub use listener::{Listener, ListenerError};
pub use measure::{Figures, Plan, REQUEST_LEN, Round, TRANSFER_LEN, listeners, measure};
pub use services::{announce, serve};
