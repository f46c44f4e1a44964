//! Opening a device by what its path is.

use crate::device::{Device, MediaError};
use crate::file::FileDevice;
use crate::file::open_error;
use crate::nvme::{NvmeDevice, is_namespace};
use std::path::Path;
use std::rc::Rc;
use weir_runtime::Handle;

/// What the name of a device of SPDK begins with where a path is expected.
pub(crate) const SPDK_PREFIX: &str = "spdk:";

/// The name of a device of SPDK, if that is what the path is.
#[must_use]
pub fn spdk_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(SPDK_PREFIX)
}

#[cfg(feature = "spdk")]
fn open_spdk(handle: &Handle, _: &Path, name: &str) -> Result<Rc<dyn Device>, MediaError> {
    Ok(Rc::new(crate::spdk::SpdkDevice::open(handle, name)?))
}

#[cfg(not(feature = "spdk"))]
fn open_spdk(_: &Handle, path: &Path, _: &str) -> Result<Rc<dyn Device>, MediaError> {
    Err(open_error(path, "opened", "this engine was built without SPDK: build it with the feature `spdk`"))
}

/// Opens a device for this process alone: one of SPDK's by `spdk:` and its name, the character device of an NVMe namespace by passed-through commands, a block
/// device or file by reads and writes.
///
/// # Errors
/// When it can't be opened, is something else, or another process uses it.
pub fn open(handle: &Handle, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    if let Some(name) = spdk_name(path) {
        return open_spdk(handle, path, name);
    }
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
    if spdk_name(path).is_some() {
        return Err(open_error(path, "opened", "a device of SPDK is open to the engine's process only"));
    }
    if is_namespace(path) {
        return Ok(Rc::new(NvmeDevice::open_read_only(handle, path)?));
    }
    Ok(Rc::new(FileDevice::open_read_only(handle, path)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_spdk_are_told_from_paths() {
        assert_eq!(spdk_name(Path::new("spdk:Nvme0n1")), Some("Nvme0n1"));
        assert_eq!(spdk_name(Path::new("/dev/spdk:0")), None);
        let executor = weir_runtime::real::Executor::new().expect("an executor");
        let refused =
            open(&executor.handle(), Path::new("spdk:Nvme0n1")).err().expect("not started").to_string();
        assert!(refused.contains("spdk:Nvme0n1") && refused.to_lowercase().contains("spdk"), "{refused}");
    }
}
