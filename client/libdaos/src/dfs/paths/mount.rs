//! Mounting for the use by paths.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::super::{connect, global, handle_of, mount, mounted as base_of, pointer};
use super::PathMount;
use crate::boundary::{ArgumentPtr, required};
use crate::errno::{Checked, Errno, checked};
use crate::handle::{self, Opened};
use crate::types::{d_iov_t, daos_handle_t, dfs_attr_t};

/// Makes a file system for the use by paths of one that was just mounted. Nothing is cached, so flags that say how make no
/// difference.
fn issue(place: ArgumentPtr<*mut c_void>, base: *mut c_void) -> Checked<()> {
    let (mounted, base) = (base_of(base)?, handle_of(base));
    let paths = PathMount { mounted: Arc::clone(&mounted), base };
    place.set(pointer(handle::issue(Opened::Paths(Arc::new(paths)))?));
    Ok(())
}

/// Mounts a container.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_mount(
    poh: daos_handle_t,
    coh: daos_handle_t,
    mflags: c_int,
    _sflags: c_int,
    dfs_sys: *mut *mut c_void,
) -> c_int {
    checked(|| issue(required(dfs_sys)?, mount::mount((poh, coh), mflags, None)?))
}

/// Ends the use of a mounted container.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_umount(dfs_sys: *mut c_void) -> c_int {
    checked(|| {
        let paths = handle::paths(handle_of(dfs_sys))?;
        if paths.mounted.is_connected {
            return Err(Errno(libc::EINVAL));
        }
        handle::forget(handle_of(dfs_sys))?;
        Ok(handle::forget(paths.base)?)
    })
}

/// Mounts by names, as `dfs_connect`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_connect(
    pool: *const c_char,
    sys: *const c_char,
    cont: *const c_char,
    mflags: c_int,
    _sflags: c_int,
    attr: *mut dfs_attr_t,
    dfs_sys: *mut *mut c_void,
) -> c_int {
    checked(|| issue(required(dfs_sys)?, connect::connect((pool, sys, cont), mflags, attr, None)?))
}

/// Ends what `dfs_sys_connect` or `dfs_sys_global2local_all` made.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_disconnect(dfs_sys: *mut c_void) -> c_int {
    checked(|| {
        let paths = handle::paths(handle_of(dfs_sys))?;
        if !paths.mounted.is_connected {
            return Err(Errno(libc::EINVAL));
        }
        handle::forget(handle_of(dfs_sys))?;
        global::end_with_handles(&paths.mounted)
    })
}

/// The file system for the functions without paths. It ends with this one.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys2base(dfs_sys: *mut c_void, dfs: *mut *mut c_void) -> c_int {
    checked(|| {
        let (paths, place) = (handle::paths(handle_of(dfs_sys))?, required(dfs)?);
        place.set(pointer(paths.base));
        Ok(())
    })
}

/// Sets what paths begin with.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_set_prefix(dfs_sys: *mut c_void, prefix: *const c_char) -> c_int {
    match handle::paths(handle_of(dfs_sys)) {
        Ok(paths) => mount::dfs_set_prefix(pointer(paths.base), prefix),
        Err(der) => crate::errors::errno_of(der),
    }
}

/// Writes a file system to memory.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_local2global(dfs_sys: *mut c_void, glob: *mut d_iov_t) -> c_int {
    checked(|| global::local_to_global(&*super::mounted(dfs_sys)?, glob))
}

/// Makes a file system of what another process wrote.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_global2local(
    poh: daos_handle_t,
    coh: daos_handle_t,
    mflags: c_int,
    _sflags: c_int,
    glob: d_iov_t,
    dfs_sys: *mut *mut c_void,
) -> c_int {
    checked(|| issue(required(dfs_sys)?, global::global_to_local((poh, coh), mflags, &glob)?))
}

/// Writes a file system to memory, with the handles of its pool and container.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_local2global_all(dfs_sys: *mut c_void, glob: *mut d_iov_t) -> c_int {
    checked(|| global::local_to_global_all(&*super::mounted(dfs_sys)?, glob))
}

/// Makes a file system of what another process wrote, with handles that end with it.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_global2local_all(
    mflags: c_int,
    _sflags: c_int,
    glob: d_iov_t,
    dfs_sys: *mut *mut c_void,
) -> c_int {
    checked(|| issue(required(dfs_sys)?, global::global_to_local_all(mflags, &glob)?))
}
