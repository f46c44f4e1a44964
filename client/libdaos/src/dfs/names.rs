//! Making, removing and renaming entries.

use core::ffi::{c_char, c_int, c_void};

use weir_client::Context;
use weir_dfs::{Node, Removed, Replace};

use super::{Mounted, class_of, directory, mounted, object, ownership};
use crate::boundary::{ArgumentPtr, bytes_of, optional};
use crate::errno::{Checked, Errno, checked, wait};
use crate::types::daos_obj_id_t;

/// Makes a directory. All directories have the file system's class, whatever `cid` says.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_mkdir(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    mode: libc::mode_t,
    cid: u32,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        mounted.ensure_changes()?;
        let (directory, name) = (directory(&mounted, parent)?, bytes_of(name)?);
        class_of(cid)?;
        wait(async |context| {
            mounted.fs.mkdir(context, &directory, name, ownership(mode)).await?;
            Ok(())
        })
    })
}

/// Tells the caller an inode's object.
pub fn tell(place: Option<ArgumentPtr<daos_obj_id_t>>, node: Option<&Node>) {
    if let (Some(place), Some(node)) = (place, node) {
        let oid = node.oid();
        place.set(daos_obj_id_t { lo: oid.lo, hi: oid.hi });
    }
}

/// Removes an entry; with `force` a directory with all that is in it.
pub async fn remove(
    context: &Context,
    mounted: &Mounted,
    directory: &Node,
    name: &[u8],
    force: bool,
) -> Checked<Node> {
    let fs = &mounted.fs;
    if force {
        return Ok(fs.remove_tree(context, directory, name, None).await?);
    }
    let removed = match fs.unlink(context, directory, name).await {
        Err(weir_dfs::Error::IsDirectory(_)) => fs.rmdir(context, directory, name).await?,
        removed => removed?,
    };
    release(context, mounted, removed).await
}

/// Frees what an inode held that has no name any more.
async fn release(context: &Context, mounted: &Mounted, removed: Removed) -> Checked<Node> {
    mounted.fs.release(context, core::slice::from_ref(&removed), None).await?;
    Ok(removed.node)
}

/// Removes an entry.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_remove(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    force: bool,
    oid: *mut daos_obj_id_t,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        mounted.ensure_changes()?;
        let (directory, name) = (directory(&mounted, parent)?, bytes_of(name)?);
        let gone = wait(async |context| remove(context, &mounted, &directory, name, force).await)?;
        tell(optional(oid), Some(&gone));
        Ok(())
    })
}

/// Renames an entry. `*oid` is the object of the one that was replaced, zeros without one.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_move(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    new_parent: *mut c_void,
    new_name: *const c_char,
    oid: *mut daos_obj_id_t,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        mounted.ensure_changes()?;
        let (from, name) = (directory(&mounted, parent)?, bytes_of(name)?);
        let (to, new_name) = (directory(&mounted, new_parent)?, bytes_of(new_name)?);
        let replaced = wait(async |context| {
            let renamed = mounted.fs.rename(context, &from, name, &to, new_name, Replace::Allow).await?;
            match renamed.1 {
                Some(removed) => release(context, &mounted, removed).await.map(Some),
                None => Ok(None),
            }
        })?;
        if let Some(place) = optional(oid) {
            place.set(daos_obj_id_t::default());
        }
        tell(optional(oid), replaced.as_ref());
        Ok(())
    })
}

/// Exchanges two entries.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_exchange(
    dfs: *mut c_void,
    parent1: *mut c_void,
    name1: *const c_char,
    parent2: *mut c_void,
    name2: *const c_char,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        mounted.ensure_changes()?;
        let (one, name1) = (directory(&mounted, parent1)?, bytes_of(name1)?);
        let (other, name2) = (directory(&mounted, parent2)?, bytes_of(name2)?);
        wait(async |context| {
            mounted.fs.exchange(context, (&one, name1), (&other, name2)).await?;
            Ok(())
        })
    })
}

/// Notes that an open object has another name, and is in the directory that another one is in.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_update_parent(obj: *mut c_void, src_obj: *mut c_void, name: *const c_char) -> c_int {
    checked(|| {
        let (object, source) = (object(obj)?, object(src_obj)?);
        let mut node = object.node();
        node.parent = source.node().parent;
        if !name.is_null() {
            let name = bytes_of(name)?;
            if name.is_empty() || name.len() > weir_dfs::NAME_MAX {
                return Err(Errno(libc::EINVAL));
            }
            node.name = name.to_vec();
        }
        object.note(node);
        Ok(())
    })
}
