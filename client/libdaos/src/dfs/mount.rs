//! Mounting a container.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use weir_client::{Epoch, ObjectClass, Rights};
use weir_dfs::Dfs;

use super::{Mounted, handle_of, mounted, pointer};
use crate::boundary::{bytes_of, element, required};
use crate::errno::{Checked, Errno, checked, wait};
use crate::handle::{self, Opened};
use crate::types::{daos_handle_t, dfs_attr_t};

/// Consistency that every file system has (`DFS_BALANCED`).
const BALANCED: u32 = 4;

/// Mounts a container, of which the calling thread's context reads the superblock.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_mount(
    poh: daos_handle_t,
    coh: daos_handle_t,
    flags: c_int,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let place = required(dfs)?;
        place.set(mount((poh, coh), flags, None)?);
        Ok(())
    })
}

/// Mounts a snapshot, to be read.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_mount_snap(
    poh: daos_handle_t,
    coh: daos_handle_t,
    flags: c_int,
    epoch: u64,
    _name: *const c_char,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let place = required(dfs)?;
        // Names of snapshots aren't kept.
        if epoch == 0 {
            return Err(Errno(libc::EINVAL));
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno(libc::EINVAL));
        }
        place.set(mount((poh, coh), flags, Some(Epoch(epoch)))?);
        Ok(())
    })
}

/// Mounts a container that is open.
pub fn mount(
    (poh, coh): (daos_handle_t, daos_handle_t),
    flags: c_int,
    snapshot: Option<Epoch>,
) -> Checked<*mut c_void> {
    let (pool, container) = (handle::pool(poh)?, handle::container(coh)?);
    if container.pool().id() != pool.id() {
        return Err(Errno(libc::EINVAL));
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY && !container.rights().allows(Rights::WRITE) {
        return Err(Errno(libc::EPERM));
    }
    let fs = wait(async |context| match snapshot {
        None => Ok(Dfs::mount(context, &container).await?),
        Some(epoch) => Ok(Dfs::mount_snapshot(context, &container, epoch).await?),
    })?;
    issue(Mounted::new(fs, flags, (poh, coh), false))
}

/// Makes a pointer for the program of a mounted file system.
pub fn issue(mounted: Mounted) -> Checked<*mut c_void> {
    let container = mounted.container;
    Ok(pointer(handle::issue_within(container, false, Opened::FileSystem(Arc::new(mounted)))?))
}

/// Ends the use of a mounted file system.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_umount(dfs: *mut c_void) -> c_int {
    checked(|| {
        // One that `dfs_connect` made has handles that would stay.
        if mounted(dfs)?.is_connected {
            return Err(Errno(libc::EINVAL));
        }
        Ok(handle::forget(handle_of(dfs))?)
    })
}

/// The handle of the pool. It stays the file system's.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_pool_get(dfs: *mut c_void, poh: *mut daos_handle_t) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(poh)?);
        place.set(mounted.pool);
        Ok(())
    })
}

/// Ends the use of what `dfs_pool_get` gave.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_pool_put(dfs: *mut c_void, poh: daos_handle_t) -> c_int {
    checked(|| if mounted(dfs)?.pool == poh { Ok(()) } else { Err(Errno(libc::EINVAL)) })
}

/// The handle of the container. It stays the file system's.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_cont_get(dfs: *mut c_void, coh: *mut daos_handle_t) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(coh)?);
        place.set(mounted.container);
        Ok(())
    })
}

/// Ends the use of what `dfs_cont_get` gave.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_cont_put(dfs: *mut c_void, coh: daos_handle_t) -> c_int {
    checked(|| if mounted(dfs)?.container == coh { Ok(()) } else { Err(Errno(libc::EINVAL)) })
}

/// Tells what a file system was made with.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_query(dfs: *mut c_void, attr: *mut dfs_attr_t) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(attr)?);
        let superblock = mounted.fs.superblock();
        place.set(dfs_attr_t {
            da_chunk_size: superblock.chunk_size,
            da_oclass_id: superblock.file_class,
            da_mode: BALANCED,
            da_dir_oclass_id: superblock.directory_class,
            da_file_oclass_id: superblock.file_class,
            ..dfs_attr_t::default()
        });
        Ok(())
    })
}

/// Sets what the paths of `dfs_lookup` begin with; NULL for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_set_prefix(dfs: *mut c_void, prefix: *const c_char) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        let prefix = if prefix.is_null() { &[] } else { bytes_of(prefix)? };
        if !prefix.is_empty() && prefix.first() != Some(&b'/') {
            return Err(Errno(libc::EINVAL));
        }
        mounted.set_prefix(prefix);
        Ok(())
    })
}

/// Makes everything stable: all that a call has written is, when it returns.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sync(dfs: *mut c_void) -> c_int {
    checked(|| mounted(dfs)?.ensure_changes())
}

/// The class that a hint asks for: `KIND:single` or `KIND:max`, where KIND is `file` or `dir`, or without a kind.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_suggest_oclass(dfs: *mut c_void, hint: *const c_char, cid: *mut u32) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(cid)?);
        let files = ObjectClass::from_id(mounted.fs.superblock().file_class).map_err(|_| Errno(libc::EIO))?;
        place.set(suggested(bytes_of(hint)?, files)?);
        Ok(())
    })
}

/// What is suggested survives what files of the container do.
fn suggested(hint: &[u8], files: ObjectClass) -> Checked<u32> {
    let word = hint.strip_prefix(b"file:").or_else(|| hint.strip_prefix(b"dir:")).unwrap_or(hint);
    match &word.to_ascii_lowercase()[..] {
        b"single" => Ok(files.narrow().id()),
        b"max" => Ok(files.wide().id()),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Copies bytes and a NUL to a program's memory of this size, cut off where they don't fit; the last byte is a NUL.
pub fn copy_text(bytes: &[u8], to: *mut c_char, room: usize) {
    let Some(most) = room.checked_sub(1) else { return };
    for (index, byte) in bytes.iter().take(most).copied().chain([0]).enumerate() {
        element(to, index).set(c_char::from_ne_bytes([byte]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_a_class_for_files_or_directories() {
        let suggested = |hint, files: &str| suggested(hint, files.parse().expect("a registered name"));
        assert_eq!(suggested(b"file:single", "S4"), Ok(16_777_217));
        assert_eq!(suggested(b"MAX", "S4"), Ok(16_842_751));
        assert_eq!(suggested(b"dir:single", "RP_2GX"), Ok(134_217_729));
        assert_eq!(suggested(b"file:huge", "S4"), Err(Errno(libc::EINVAL)));
    }
}
