//! The trait of a block device.

use crate::buffer::{DmaBuf, Slice};
use crate::features::Features;
use crate::health::{DeviceHealth, FAULTY_ADVICE, Stall};
use crate::pool::DmaPool;
use crate::wear::Wear;
use core::time::Duration;
use weir_runtime::LocalBoxFuture;

/// Unit of all transfers, in bytes: the sector size of nearly every NVMe namespace and file system, and the alignment
/// that `O_DIRECT` needs at worst.
pub const BLOCK: usize = 4096;

/// Mean time of transfers from which on a thread sleeps until they end: to wake takes 20 to 50 µs of a virtual machine, and what
/// takes longer than this waits for a busy disk, or for a processor that others need.
pub const BRIEF_MAX: Duration = Duration::from_micros(250);

/// A transfer in flight. It runs to its end even when the future is dropped.
pub type IoFuture<T> = LocalBoxFuture<'static, Result<T, MediaError>>;

/// A device failed, or was asked for something impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// The transfer is not made of whole, aligned blocks, or reaches past the end of the device.
    #[error("{device}: {len} bytes at offset {offset} are not whole blocks within its {size} bytes")]
    Range {
        /// Name of the device.
        device: String,
        /// Offset asked for.
        offset: u64,
        /// Length asked for.
        len: u64,
        /// Size of the device.
        size: u64,
    },
    /// The operating system or the device refused the transfer.
    #[error(
        "{device}: {operation} of {len} bytes at offset {offset} failed: {reason}; check the device's health"
    )]
    Io {
        /// Name of the device.
        device: String,
        /// `read`, `write` or `flush`.
        operation: &'static str,
        /// Offset of the transfer.
        offset: u64,
        /// Length of the transfer.
        len: u64,
        /// What the system said.
        reason: String,
    },
    /// The device can't be opened or created.
    #[error("{device}: can't be {operation}: {reason}")]
    Open {
        /// Path of the device.
        device: String,
        /// `opened`, `created`, ….
        operation: &'static str,
        /// What the system said, and what to do.
        reason: String,
    },
    /// Another process has the device, or one that was killed is still being cleared away, or it is mounted.
    #[error("{device}: can't be opened: another process uses it or it is mounted; stop that engine first")]
    Busy {
        /// Path of the device.
        device: String,
    },
    /// The device is faulty and no longer used ([`crate::health::MonitoredDevice`]).
    #[error("{device}: is out of use, because it is faulty: {reason}; {FAULTY_ADVICE}")]
    Faulty {
        /// Name of the device.
        device: String,
        /// Why.
        reason: String,
    },
    /// The device has been closed, or its node has crashed.
    #[error("{device}: is closed")]
    Closed {
        /// Name of the device.
        device: String,
    },
}

/// Counters of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Transfers that failed.
    pub errors: u64,
    /// Reads among them.
    pub read_errors: u64,
    /// Writes among them.
    pub write_errors: u64,
    /// Flushes among them.
    pub flush_errors: u64,
    /// Transfers in flight now.
    pub in_flight: u64,
    /// Calls of the operating system to begin transfers and take their ends.
    pub calls: u64,
}

/// A block device that one thread uses.
///
/// A write is on stable media when a flush that was begun after the write's completion has completed. Until then a
/// crash may keep any subset of its sectors. Transfers are issued when the method is called, not when the future is
/// first polled, and run concurrently; overlapping ones in flight have no defined order.
pub trait Device {
    /// What errors and logs call it.
    fn name(&self) -> &str;

    /// Size in bytes, a multiple of [`BLOCK`].
    fn size(&self) -> u64;

    /// Fills the buffer from `offset` and gives it back.
    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf>;

    /// The bytes of whole blocks in place, where the device is memory and has them in one piece. What is lent stays as it is,
    /// whatever is written meanwhile, which costs a copy of the piece then: give it back soon. `None`: [`Device::read`]
    /// has to be used, and tells what is wrong if something is.
    fn lend(&self, offset: u64, len: usize) -> Option<Slice> {
        let _ = (offset, len);
        None
    }

    /// Writes the slices one behind the other from `offset`. Each must be aligned memory of whole blocks.
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()>;

    /// Writes the slices like [`Device::write`] and completes when these bytes are on stable media (NVMe: force unit
    /// access). Says nothing of other writes.
    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()>;

    /// Makes every write that has completed so far stable.
    fn flush(&self) -> IoFuture<()>;

    /// Does now what the first write to this range would have to do beside transferring its bytes, such as recording in
    /// the file system that an allocated block holds data. What the range holds is unchanged. Nothing else may write
    /// to it meanwhile.
    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Offset of the first byte from the block at `from` on that isn't zero; `None` when there is none. Holes of a sparse file
    /// cost nothing; of a drive of more than 8 GiB the ends are read, and samples between them.
    fn first_data(&self, from: u64) -> IoFuture<Option<u64>>;

    /// Counters for metrics.
    fn stats(&self) -> DeviceStats;

    /// Has the pool's memory kept at hand for transfers, where the device can. Transfers of other memory work as well.
    fn register(&self, pool: &DmaPool) {
        let _ = pool;
    }

    /// What it uses of io_uring.
    fn features(&self) -> Features {
        Features::NONE
    }

    /// What the drive itself counts; `None` where it isn't known.
    fn wear(&self) -> Option<Wear> {
        None
    }

    /// Why it is faulty and not used any more, if so, without what to do about it. Cheaper than [`Device::health`].
    fn fault(&self) -> Option<String> {
        None
    }

    /// Takes the device out of use, as if it had just been found faulty for this reason: it was so before it was opened.
    fn condemn(&self, reason: &str) {
        let _ = reason;
    }

    /// From now on transfers may take as long as they do. One that takes longer than `limit` makes the device count as
    /// faulty until it ends. Without this a transfer that hangs is given up, where the device is monitored
    /// ([`crate::health::MonitoredDevice`]).
    fn bear_stalls(&self, limit: Duration) {
        let _ = limit;
    }

    /// The stall of a device that bears them, while it lasts.
    fn stall(&self) -> Option<Stall> {
        None
    }

    /// How the device is doing; `None` when it isn't monitored ([`crate::health::MonitoredDevice`]).
    fn health(&self) -> Option<DeviceHealth> {
        None
    }
}

/// Checks that a transfer is made of whole blocks inside the device.
///
/// # Errors
/// [`MediaError::Range`] when it isn't.
pub fn check_transfer(device: &str, size: u64, offset: u64, len: u64) -> Result<(), MediaError> {
    let block = BLOCK as u64;
    let inside = offset.checked_add(len).is_some_and(|end| end <= size);
    if inside && len > 0 && offset.is_multiple_of(block) && len.is_multiple_of(block) {
        return Ok(());
    }
    Err(MediaError::Range { device: device.to_owned(), offset, len, size })
}
