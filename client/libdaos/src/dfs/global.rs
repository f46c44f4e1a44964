//! File systems and open objects for other processes.

use core::ffi::{c_int, c_void};

use serde_bytes::ByteBuf;
use weir_client::{Container, Pool};
use weir_dfs::{Dfs, Node, Record};
use weir_proto::{ObjectId, codec};

use super::mount::issue;
use super::{Mounted, mounted, object};
use crate::boundary::{der_of, required};
use crate::errno::{Checked, Errno, checked};
use crate::handle::{self, Opened};
use crate::pool::{export, import};
use crate::types::{d_iov_t, daos_handle_t};

/// First word of a file system, and of an open object, for other processes.
const MAGIC: u32 = 0xda05_df50;
const MAGIC_OBJECT: u32 = 0xda05_df51;

/// A mounted file system: magic, file system, access, prefix.
type Shared = (u32, ByteBuf, c_int, ByteBuf);

/// An open object: magic, directory and name of its entry, record, access.
type SharedObject = (u32, ObjectId, ByteBuf, Record, c_int);

fn shared(mounted: &Mounted) -> Shared {
    let access = if mounted.is_read_only { libc::O_RDONLY } else { libc::O_RDWR };
    (MAGIC, ByteBuf::from(mounted.fs.to_bytes()), access, ByteBuf::from(mounted.prefix()))
}

/// A file system as another process wrote it, in handles of this one.
fn from_shared(
    (magic, fs, access, prefix): Shared,
    flags: c_int,
    (poh, coh): (daos_handle_t, daos_handle_t),
    is_connected: bool,
) -> Checked<Mounted> {
    if magic != MAGIC {
        return Err(Errno(libc::EINVAL));
    }
    let fs = Dfs::from_bytes(&handle::container(coh)?, &fs)?;
    // 0: as it was there.
    let flags = if flags == 0 { access } else { flags };
    let mounted = Mounted::new(fs, flags, (poh, coh), is_connected);
    mounted.set_prefix(&prefix);
    Ok(mounted)
}

/// Writes a file system to memory.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_local2global(dfs: *mut c_void, glob: *mut d_iov_t) -> c_int {
    checked(|| local_to_global(&*mounted(dfs)?, glob))
}

/// As [`dfs_local2global`], of a file system that is known.
pub fn local_to_global(mounted: &Mounted, glob: *mut d_iov_t) -> Checked<()> {
    exported(&codec::encode(&shared(mounted)), glob)
}

/// Copies what another process needs. A buffer that is too short is `EOVERFLOW`, as in DAOS.
fn exported(bytes: &[u8], glob: *mut d_iov_t) -> Checked<()> {
    export(bytes, glob).map_err(|der| match der {
        weir_proto::Der::TRUNC => Errno(libc::EOVERFLOW),
        other => other.into(),
    })
}

/// Makes a file system of what another process wrote. Sends nothing.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_global2local(
    poh: daos_handle_t,
    coh: daos_handle_t,
    flags: c_int,
    glob: d_iov_t,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let place = required(dfs)?;
        place.set(global_to_local((poh, coh), flags, &glob)?);
        Ok(())
    })
}

/// As [`dfs_global2local`].
pub fn global_to_local(
    handles: (daos_handle_t, daos_handle_t),
    flags: c_int,
    glob: &d_iov_t,
) -> Checked<*mut c_void> {
    handle::pool(handles.0)?;
    let shared: Shared = codec::decode(&import(glob)?).map_err(|_| Errno(libc::EINVAL))?;
    issue(from_shared(shared, flags, handles, false)?)
}

/// Writes a file system to memory, with the handles of its pool and container.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_local2global_all(dfs: *mut c_void, glob: *mut d_iov_t) -> c_int {
    checked(|| local_to_global_all(&*mounted(dfs)?, glob))
}

/// As [`dfs_local2global_all`], of a file system that is known.
pub fn local_to_global_all(mounted: &Mounted, glob: *mut d_iov_t) -> Checked<()> {
    let (pool, container) = (handle::pool(mounted.pool)?, handle::container(mounted.container)?);
    let handles = (ByteBuf::from(pool.to_bytes()), ByteBuf::from(container.to_bytes()));
    exported(&codec::encode(&(handles, shared(mounted))), glob)
}

/// Makes a file system of what another process wrote, with handles that end with it.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_global2local_all(flags: c_int, glob: d_iov_t, dfs: *mut *mut c_void) -> c_int {
    checked(|| {
        let place = required(dfs)?;
        place.set(global_to_local_all(flags, &glob)?);
        Ok(())
    })
}

/// As [`dfs_global2local_all`].
pub fn global_to_local_all(flags: c_int, glob: &d_iov_t) -> Checked<*mut c_void> {
    let decoded: Result<((ByteBuf, ByteBuf), Shared), _> = codec::decode(&import(glob)?);
    let ((pool, container), shared) = decoded.map_err(|_| Errno(libc::EINVAL))?;
    let pool = Pool::from_bytes(&pool).map_err(der_of)?;
    let container = Container::from_bytes(&container).map_err(der_of)?;
    let poh = handle::note_shared(handle::issue(Opened::Pool(pool))?)?;
    let opened = handle::issue_within(poh, false, Opened::Container(container))
        .and_then(handle::note_shared)
        .map_err(Errno::from)
        .and_then(|coh| {
            let made = from_shared(shared, flags, (poh, coh), true).and_then(issue);
            if made.is_err() {
                handle::forget(coh)?;
            }
            made
        });
    if opened.is_err() {
        handle::forget(poh)?;
    }
    opened
}

/// Writes an open object to memory.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_local2global(dfs: *mut c_void, obj: *mut c_void, glob: *mut d_iov_t) -> c_int {
    checked(|| {
        let (_, object) = (mounted(dfs)?, object(obj)?);
        let Node { parent, name, record } = object.node();
        let shared: SharedObject = (MAGIC_OBJECT, parent, ByteBuf::from(name), record, object.access);
        exported(&codec::encode(&shared), glob)
    })
}

/// Opens what another process wrote. Sends nothing.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_global2local(
    dfs: *mut c_void,
    flags: c_int,
    glob: d_iov_t,
    obj: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(obj)?);
        let decoded: Result<SharedObject, _> = codec::decode(&import(&glob)?);
        let (magic, parent, name, record, access) = decoded.map_err(|_| Errno(libc::EINVAL))?;
        if magic != MAGIC_OBJECT {
            return Err(Errno(libc::EINVAL));
        }
        let flags = if flags == 0 { access } else { flags };
        let node = Node { parent, name: name.into_vec(), record };
        place.set(mounted.open(node, flags)?.issue()?);
        Ok(())
    })
}

/// Ends a file system that was connected, or came with its handles: those end, too, and so does what is open in it.
pub fn end_with_handles(mounted: &Mounted) -> Checked<()> {
    handle::forget_within(mounted.container)?;
    let result = crate::container::daos_cont_close(mounted.container, core::ptr::null_mut());
    if result != 0 {
        return Err(Errno(crate::errors::daos_der2errno(result)));
    }
    let result = crate::pool::daos_pool_disconnect(mounted.pool, core::ptr::null_mut());
    if result == 0 { Ok(()) } else { Err(Errno(crate::errors::daos_der2errno(result))) }
}
