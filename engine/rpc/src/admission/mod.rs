//! Bounds the work in flight: a client's credits and quotas; a server's order of requests, pace of transfers and
//! payload memory; and when a refused client asks again. It calls the maps, the settings and the names of the
//! wire format. Calls, requests and the server ask it before they start anything.

mod fair_queue;
mod memory;
mod pace;
mod quota;
mod retry_schedule;

pub(crate) use fair_queue::{Backlog, FairQueue};
pub(crate) use memory::{MemoryShare, PayloadMemory};
pub(crate) use pace::{Pacing, TransferPacing, TransferPermit};
pub(crate) use quota::{Class, LaneId, PeerQuota, Permit, Quota};
pub(crate) use retry_schedule::{PAUSE_MAX, RetrySchedule, RetrySlot};
