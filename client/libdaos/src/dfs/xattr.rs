//! Extended attributes.

use core::ffi::{c_char, c_int, c_void};

use weir_client::Context;
use weir_dfs::{Dfs, Node, XattrMode};

use super::{mounted, object};
use crate::boundary::{bytes_of, element, elements, required};
use crate::errno::{Checked, Errno, checked, wait};

/// What a call says of whether the attribute may be there (`XATTR_CREATE`, `XATTR_REPLACE`).
pub fn mode_of(flags: c_int) -> Checked<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Any),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The value that a program gives.
pub fn value_of(value: *const c_void, size: u64) -> Checked<Vec<u8>> {
    let size = usize::try_from(size).map_err(|_| Errno(libc::E2BIG))?;
    if size > weir_dfs::XATTR_VALUE_MAX {
        return Err(Errno(libc::E2BIG));
    }
    Ok(elements(value.cast::<u8>(), size)?)
}

/// Copies a value to a program's memory: `*size` is the room, then what the value takes. `ERANGE` where it doesn't fit; without
/// memory or room only the size is told.
pub fn deliver(found: &[u8], value: *mut c_void, size: *mut u64) -> Checked<()> {
    let place = required(size)?;
    let room = place.get();
    place.set(found.len() as u64);
    if value.is_null() || room == 0 {
        return Ok(());
    }
    if room < found.len() as u64 {
        return Err(Errno(libc::ERANGE));
    }
    for (index, byte) in found.iter().enumerate() {
        element(value.cast::<u8>(), index).set(*byte);
    }
    Ok(())
}

/// Names of an inode's attributes, each with a NUL, as they are now.
pub async fn names(context: &Context, fs: &Dfs, node: &Node) -> Checked<Vec<u8>> {
    let node = fs.refresh(context, node).await?;
    let names = fs.list_xattrs(context, &node).await?;
    Ok(names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect())
}

/// Sets an attribute.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_setxattr(
    dfs: *mut c_void,
    obj: *mut c_void,
    name: *const c_char,
    value: *const c_void,
    size: u64,
    flags: c_int,
) -> c_int {
    checked(|| {
        let (mounted, object, mode) = (mounted(dfs)?, object(obj)?, mode_of(flags)?);
        mounted.ensure_changes()?;
        let (name, value, node) = (bytes_of(name)?, value_of(value, size)?, object.node());
        let node =
            wait(async |context| Ok(mounted.fs.set_xattr(context, &node, name, &value, mode).await?))?;
        object.note(node);
        Ok(())
    })
}

/// Reads an attribute.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_getxattr(
    dfs: *mut c_void,
    obj: *mut c_void,
    name: *const c_char,
    value: *mut c_void,
    size: *mut u64,
) -> c_int {
    checked(|| {
        let (mounted, object, name) = (mounted(dfs)?, object(obj)?, bytes_of(name)?);
        required(size)?;
        let node = object.node();
        let found = wait(async |context| Ok(mounted.fs.get_xattr(context, &node, name).await?))?;
        deliver(&found, value, size)
    })
}

/// Removes an attribute.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_removexattr(dfs: *mut c_void, obj: *mut c_void, name: *const c_char) -> c_int {
    checked(|| {
        let (mounted, object, name) = (mounted(dfs)?, object(obj)?, bytes_of(name)?);
        mounted.ensure_changes()?;
        let node = object.node();
        let node = wait(async |context| Ok(mounted.fs.remove_xattr(context, &node, name).await?))?;
        object.note(node);
        Ok(())
    })
}

/// Lists the names of all attributes, each with a NUL: `*size` is the room, then what they take. As many as fit are listed.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_listxattr(
    dfs: *mut c_void,
    obj: *mut c_void,
    list: *mut c_char,
    size: *mut u64,
) -> c_int {
    checked(|| {
        let (mounted, object, place) = (mounted(dfs)?, object(obj)?, required(size)?);
        let node = object.node();
        let found = wait(async |context| names(context, &mounted.fs, &node).await)?;
        let room = usize::try_from(place.get()).map_err(|_| Errno(libc::EINVAL))?;
        place.set(found.len() as u64);
        if !list.is_null() {
            let fits = found[..found.len().min(room)].iter().rposition(|byte| *byte == 0);
            let whole = fits.map_or(0, |last| last + 1);
            for (index, byte) in found[..whole].iter().enumerate() {
                element(list.cast::<u8>(), index).set(*byte);
            }
        }
        Ok(())
    })
}
