//! What bounds the work that is under way: credits and quotas of a client, and of a server the order of its requests, the pace and the
//! memory of transfers, and when a client that found no room is to ask again. It calls the maps, the settings and the wire's names.
//! Calls, requests and the server ask it before they begin anything.

mod fair_queue;
mod load;
mod memory;
mod pace;
mod quota;

pub(crate) use fair_queue::{Backlog, FairQueue};
pub(crate) use load::{Load, PAUSE_MAX, Slot};
pub(crate) use memory::{Payloads, Share};
pub(crate) use pace::{Leave, Pace, Paces};
pub(crate) use quota::{Class, LaneId, Permit, Place, Quota};
