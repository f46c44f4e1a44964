//! Opening a device by what its path is.

use crate::device::{Device, MediaError};
use crate::file::FileDevice;
use crate::nvme::{NvmeDevice, is_namespace};
use std::path::Path;
use std::rc::Rc;
use weir_runtime::Handle;

/// Opens a device for this process alone: the character device of an NVMe namespace by passed-through commands, a block
/// device or file by reads and writes.
///
/// # Errors
/// When it can't be opened, is something else, or another process uses it.
pub fn open(handle: &Handle, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    if is_namespace(path) {
        return Ok(Rc::new(NvmeDevice::open(handle, path)?));
    }
    Ok(Rc::new(FileDevice::open(handle, path)?))
}

/// Opens a device for reading only, as [`open`] does. Others may read it at the same time, but not write to it.
///
/// # Errors
/// As [`open`].
pub fn open_read_only(handle: &Handle, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    if is_namespace(path) {
        return Ok(Rc::new(NvmeDevice::open_read_only(handle, path)?));
    }
    Ok(Rc::new(FileDevice::open_read_only(handle, path)?))
}
