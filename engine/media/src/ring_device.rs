//! Common parts of all devices behind an io_uring: transfers are checked and begun, and errors name them.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{DeviceStats, IoFuture, MediaError, check_transfer};
use crate::file::{Doing, advice};
use crate::uring::{Ring, Transfer, Wire};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use weir_runtime::Handle;

/// An open device, its bounds and its rings.
pub(crate) struct RingDevice<W: Wire> {
    pub(crate) handle: Handle,
    pub(crate) name: String,
    pub(crate) file: Rc<OwnedFd>,
    /// Whole blocks, in bytes.
    pub(crate) size: u64,
    pub(crate) is_read_only: bool,
    /// For everything, or for flushes only when there is a polled one.
    pub(crate) ring: Rc<Ring<W>>,
    /// For reads and writes of a device with poll queues, where a polled ring knows no flush.
    pub(crate) polled: Option<Rc<Ring<W>>>,
}

impl<W: Wire + 'static> RingDevice<W> {
    /// The ring of reads and writes.
    pub(crate) fn transfers(&self) -> &Ring<W> {
        self.polled.as_deref().unwrap_or(&self.ring)
    }

    pub(crate) fn error(
        &self,
        operation: &'static str,
        offset: u64,
        len: u64,
        error: &io::Error,
    ) -> MediaError {
        MediaError::Io {
            device: self.name.clone(),
            operation,
            offset,
            len,
            reason: advice(error, Doing::Transfer),
        }
    }

    pub(crate) fn read(self: &Rc<Self>, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        let len = buffer.len() as u64;
        if let Err(error) = check_transfer(&self.name, self.size, offset, len) {
            return Box::pin(core::future::ready(Err(error)));
        }
        let pending = self.transfers().start(&self.file, Transfer::Read { offset, buffer });
        let device = Rc::clone(self);
        Box::pin(async move {
            match pending.await {
                (Transfer::Read { buffer, .. }, Ok(())) => Ok(buffer),
                (_, Err(error)) => Err(device.error("read", offset, len, &error)),
                (_, Ok(())) => Err(device.error("read", offset, len, &io::ErrorKind::Other.into())),
            }
        })
    }

    pub(crate) fn write(self: &Rc<Self>, offset: u64, data: Vec<Slice>, stable: bool) -> IoFuture<()> {
        let device = Rc::clone(self);
        let len = data.iter().map(|slice| slice.len() as u64).sum();
        let checked = if data.iter().all(Slice::is_aligned) {
            check_transfer(&device.name, device.size, offset, len)
        } else {
            Err(MediaError::Range { device: device.name.clone(), offset, len, size: device.size })
        };
        if let Err(error) = checked {
            return Box::pin(core::future::ready(Err(error)));
        }
        if device.is_read_only {
            let error = device.error("write", offset, len, &io::ErrorKind::ReadOnlyFilesystem.into());
            return Box::pin(core::future::ready(Err(error)));
        }
        let pending = device.transfers().start(&device.file, Transfer::Write { offset, data, stable });
        let attention = pending.is_brief().then(|| device.handle.attend());
        Box::pin(async move {
            let ended = pending.await.1;
            drop(attention);
            ended.map_err(|error| device.error("write", offset, len, &error))
        })
    }

    pub(crate) fn flush(self: &Rc<Self>) -> IoFuture<()> {
        let device = Rc::clone(self);
        let pending = device.ring.start(&device.file, Transfer::Flush);
        Box::pin(async move { pending.await.1.map_err(|error| device.error("flush", 0, 0, &error)) })
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        let flushes = self.ring.stats();
        self.polled.as_ref().map_or(flushes, |polled| polled.stats().and(&flushes))
    }
}
