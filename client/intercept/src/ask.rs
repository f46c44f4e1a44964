//! Requests to a mount.

use core::ffi::{c_int, c_void};

/// Asks the mount of an open file or directory. The errno of a refusal.
pub fn ask<T>(fd: c_int, request: u32, place: *mut T) -> Result<(), i32> {
    // SAFETY: the request has the size of the place, if it has any.
    let failed = unsafe { libc::ioctl(fd, libc::Ioctl::from(request), place.cast::<c_void>()) } != 0;
    // SAFETY: it gives the place of this thread's errno.
    if failed { Err(unsafe { *libc::__errno_location() }) } else { Ok(()) }
}
