//! Block devices of a target: one trait, [`Device`], and its implementations. [`open`] chooses by what a path is.
//!
//! * [`file::FileDevice`]: a file or block device with `O_DIRECT` through one io_uring per target thread;
//! * [`nvme::NvmeDevice`]: an NVMe namespace by commands that the kernel passes through;
//! * `spdk::SpdkDevice`: a device of SPDK, with the feature of that name;
//! * [`memory::MemoryDevice`]: bytes in memory, for tests and caches;
//! * [`sim::SimDisk`]: a disk with a volatile cache in virtual time, which tears, reorders, loses, stalls and rots
//!   from one seed.
//!
//! [`health::MonitoredDevice`] measures the transfers of any of them and judges how the device is doing.
//!
//! Offsets, lengths and addresses of every transfer are multiples of [`BLOCK`]. Buffers are owned by the transfer
//! while it runs, so that dropping a future never leaves the kernel writing into freed memory.

mod buffer;
mod device;
mod external_buffer;
mod features;
pub mod file;
pub mod health;
pub mod memory;
pub mod nvme;
mod open;
mod open_deadline;
mod pool;
mod prefetch;
mod ring_device;
mod search;
pub mod sim;
#[cfg(feature = "spdk")]
pub mod spdk;
mod uring;
mod wear;

pub use buffer::{DmaBuf, Slice};
pub use device::{BLOCK, BRIEF_MAX, Device, DeviceStats, IoFuture, MediaError, check_transfer};
pub use external_buffer::ExternalBuffer;
pub use features::Features;
pub use open::{open, open_read_only, spdk_name};
pub use pool::DmaPool;
pub use prefetch::prefetch;
pub use wear::Wear;
pub use weir_memory::Lasting;
