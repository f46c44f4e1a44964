//! Entries by paths.

use core::ffi::{c_char, c_int, c_void};

use weir_client::Context;
use weir_dfs::{Change, Error, Kind, SetAttributes};

use super::super::attributes::{changes, filled, may, owners, time};
use super::super::open::{OpenRequest, give_link};
use super::super::{Mounted, class_of, data, layout_of, names, open, ownership, xattr};
use super::{arguments, change_arguments, found, parent};
use crate::boundary::{bytes_of, element, optional, required};
use crate::errno::{Checked, Errno, checked, wait};
use crate::types::daos_obj_id_t;

/// Checks what this process may do with what a path names.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_access(
    dfs_sys: *mut c_void,
    path: *const c_char,
    mask: c_int,
    flags: c_int,
) -> c_int {
    checked(|| {
        let (mounted, path) = arguments(dfs_sys, path)?;
        let node = wait(async |context| found(context, &mounted, &path, flags).await)?;
        may(&mounted, &node, mask)
    })
}

fn change(
    dfs_sys: *mut c_void,
    path: *const c_char,
    flags: c_int,
    to: &SetAttributes,
) -> Checked<libc::stat> {
    let (mounted, path) = change_arguments(dfs_sys, path)?;
    let stat = wait(async |context| {
        let node = found(context, &mounted, &path, flags).await?;
        Ok(mounted.fs.set_attributes(context, &node, to).await?.1)
    })?;
    Ok(filled(&stat))
}

/// Sets permission bits.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_chmod(dfs_sys: *mut c_void, path: *const c_char, mode: libc::mode_t) -> c_int {
    let to = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
    checked(|| change(dfs_sys, path, 0, &to).map(drop))
}

/// Sets owner and group; -1 leaves one as it is.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_chown(
    dfs_sys: *mut c_void,
    path: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
    flags: c_int,
) -> c_int {
    checked(|| change(dfs_sys, path, flags, &owners(uid, gid)).map(drop))
}

/// Sets attributes and returns all of them.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_setattr(
    dfs_sys: *mut c_void,
    path: *const c_char,
    stbuf: *mut libc::stat,
    flags: c_int,
    sflags: c_int,
) -> c_int {
    checked(|| {
        let place = required(stbuf)?;
        place.set(change(dfs_sys, path, sflags, &changes(&place.get(), flags)?)?);
        Ok(())
    })
}

/// Sets access and modification time: NULL for the present, `UTIME_NOW` and `UTIME_OMIT` as `utimensat`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_utimens(
    dfs_sys: *mut c_void,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    let read = |index: usize| -> Checked<Option<Change>> {
        if times.is_null() {
            return Ok(Some(Change::Now));
        }
        let given = element(times.cast_mut(), index).get();
        match given.tv_nsec {
            libc::UTIME_NOW => Ok(Some(Change::Now)),
            libc::UTIME_OMIT => Ok(None),
            ns => time(given.tv_sec, ns).map(|ns| Some(Change::To(ns))),
        }
    };
    checked(|| {
        let to = SetAttributes { atime: read(0)?, mtime: read(1)?, ..SetAttributes::default() };
        change(dfs_sys, path, flags, &to).map(drop)
    })
}

/// Attributes of what a path names.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_stat(
    dfs_sys: *mut c_void,
    path: *const c_char,
    flags: c_int,
    stbuf: *mut libc::stat,
) -> c_int {
    checked(|| {
        let ((mounted, path), place) = (arguments(dfs_sys, path)?, required(stbuf)?);
        let stat = wait(async |context| {
            let node = found(context, &mounted, &path, flags).await?;
            Ok(mounted.fs.stat_listed(context, &node).await?)
        })?;
        place.set(filled(&stat));
        Ok(())
    })
}

/// Creates a file, directory, named pipe or socket.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_mknod(
    dfs_sys: *mut c_void,
    path: *const c_char,
    mode: libc::mode_t,
    cid: u32,
    chunk_size: u64,
) -> c_int {
    checked(|| {
        let (mounted, path) = change_arguments(dfs_sys, path)?;
        // There is no device number among the arguments.
        let kind = Kind::from_mode(mode).filter(|kind| !kind.is_device()).ok_or(Errno(libc::ENOTSUP))?;
        let (owner, fs) = (ownership(mode), &mounted.fs);
        let layout = layout_of(cid, chunk_size)?;
        wait(async |context| {
            let (directory, name) = parent(context, &mounted, &path).await?;
            match kind {
                Kind::Directory => fs.mkdir(context, &directory, name, owner).await?,
                Kind::File => fs.create_with(context, &directory, name, owner, layout).await?,
                kind => fs.mknod(context, &directory, name, kind, owner).await?,
            };
            Ok(())
        })
    })
}

/// Lists the names of extended attributes; `ERANGE` where they don't fit.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_listxattr(
    dfs_sys: *mut c_void,
    path: *const c_char,
    list: *mut c_char,
    size: *mut u64,
    flags: c_int,
) -> c_int {
    checked(|| {
        let (mounted, path) = arguments(dfs_sys, path)?;
        required(size)?;
        let names = wait(async |context| {
            let node = found(context, &mounted, &path, flags).await?;
            xattr::names(context, &mounted.fs, &node).await
        })?;
        xattr::deliver(&names, list.cast(), size)
    })
}

/// Reads an extended attribute.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_getxattr(
    dfs_sys: *mut c_void,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: *mut u64,
    flags: c_int,
) -> c_int {
    checked(|| {
        let ((mounted, path), name) = (arguments(dfs_sys, path)?, bytes_of(name)?);
        required(size)?;
        let found = wait(async |context| {
            let node = found(context, &mounted, &path, flags).await?;
            Ok(mounted.fs.get_xattr(context, &node, name).await?)
        })?;
        xattr::deliver(&found, value, size)
    })
}

/// Sets an extended attribute.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_setxattr(
    dfs_sys: *mut c_void,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: u64,
    flags: c_int,
    sflags: c_int,
) -> c_int {
    checked(|| {
        let ((mounted, path), name) = (change_arguments(dfs_sys, path)?, bytes_of(name)?);
        let (value, mode) = (xattr::value_of(value, size)?, xattr::mode_of(flags)?);
        wait(async |context| {
            let node = found(context, &mounted, &path, sflags).await?;
            mounted.fs.set_xattr(context, &node, name, &value, mode).await?;
            Ok(())
        })
    })
}

/// Removes an extended attribute.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_removexattr(
    dfs_sys: *mut c_void,
    path: *const c_char,
    name: *const c_char,
    flags: c_int,
) -> c_int {
    checked(|| {
        let ((mounted, path), name) = (change_arguments(dfs_sys, path)?, bytes_of(name)?);
        wait(async |context| {
            let node = found(context, &mounted, &path, flags).await?;
            mounted.fs.remove_xattr(context, &node, name).await?;
            Ok(())
        })
    })
}

/// Target of a symbolic link, as `dfs_get_symlink_value`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_readlink(
    dfs_sys: *mut c_void,
    path: *const c_char,
    buf: *mut c_char,
    size: *mut u64,
) -> c_int {
    checked(|| {
        let ((mounted, path), place) = (arguments(dfs_sys, path)?, required(size)?);
        let node = wait(async |context| found(context, &mounted, &path, libc::O_NOFOLLOW).await)?;
        give_link(&node, buf, place)
    })
}

/// Creates a symbolic link.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_symlink(dfs_sys: *mut c_void, target: *const c_char, path: *const c_char) -> c_int {
    checked(|| {
        let ((mounted, path), target) = (change_arguments(dfs_sys, path)?, bytes_of(target)?);
        wait(async |context| {
            let (directory, name) = parent(context, &mounted, &path).await?;
            mounted.fs.symlink(context, &directory, name, target, ownership(0o777)).await?;
            Ok(())
        })
    })
}

/// Opens what a path names, or creates it.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_open(
    dfs_sys: *mut c_void,
    path: *const c_char,
    mode: libc::mode_t,
    flags: c_int,
    cid: u32,
    chunk_size: u64,
    value: *const c_char,
    obj: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let ((mounted, path), place) = (arguments(dfs_sys, path)?, required(obj)?);
        let request = OpenRequest::read(mode, flags, cid, chunk_size, value)?;
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            mounted.ensure_changes()?;
        }
        let is_link = mode & libc::S_IFMT == libc::S_IFLNK;
        let node = wait(async |context| {
            if request.creates() {
                let (directory, name) = parent(context, &mounted, &path).await?;
                return request.open(context, &mounted, &directory, name).await;
            }
            let flags = if is_link { flags | libc::O_NOFOLLOW } else { flags };
            let node = found(context, &mounted, &path, flags).await?;
            request.opened(context, &mounted, node).await
        })?;
        place.set(mounted.open(node, flags)?.issue()?);
        Ok(())
    })
}

/// Closes what was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_close(obj: *mut c_void) -> c_int {
    open::dfs_release(obj)
}

/// Makes a hole, as `dfs_punch`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_punch(dfs_sys: *mut c_void, path: *const c_char, offset: u64, len: u64) -> c_int {
    checked(|| {
        let (mounted, path) = change_arguments(dfs_sys, path)?;
        let node = wait(async |context| found(context, &mounted, &path, 0).await)?;
        data::punch(&mounted.fs.file(&node)?, offset, len)
    })
}

/// Removes an entry of a type, or of any for 0.
async fn remove(
    context: &Context,
    mounted: &Mounted,
    path: &[u8],
    (force, mode): (bool, libc::mode_t),
) -> Checked<weir_dfs::Node> {
    let (directory, name) = parent(context, mounted, path).await?;
    if mode != 0 {
        let node = mounted.fs.lookup(context, &directory, name).await?;
        match (mode & libc::S_IFMT, node.record.kind.mode_bits()) {
            (asked, found) if asked == found => {}
            (libc::S_IFDIR, _) => return Err(Errno(libc::ENOTDIR)),
            (_, libc::S_IFDIR) => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno(libc::EINVAL)),
        }
    }
    names::remove(context, mounted, &directory, name, force).await
}

/// Removes an entry.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_remove(
    dfs_sys: *mut c_void,
    path: *const c_char,
    force: bool,
    oid: *mut daos_obj_id_t,
) -> c_int {
    dfs_sys_remove_type(dfs_sys, path, force, 0, oid)
}

/// Removes an entry of a type.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_remove_type(
    dfs_sys: *mut c_void,
    path: *const c_char,
    force: bool,
    mode: libc::mode_t,
    oid: *mut daos_obj_id_t,
) -> c_int {
    checked(|| {
        let (mounted, path) = change_arguments(dfs_sys, path)?;
        let gone = wait(async |context| remove(context, &mounted, &path, (force, mode)).await)?;
        names::tell(optional(oid), Some(&gone));
        Ok(())
    })
}

/// Makes a directory.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_mkdir(
    dfs_sys: *mut c_void,
    dir: *const c_char,
    mode: libc::mode_t,
    cid: u32,
) -> c_int {
    checked(|| {
        let (mounted, path) = change_arguments(dfs_sys, dir)?;
        class_of(cid)?;
        wait(async |context| {
            let (directory, name) = parent(context, &mounted, &path).await?;
            mounted.fs.mkdir(context, &directory, name, ownership(mode)).await?;
            Ok(())
        })
    })
}

/// Makes a directory, and those above it that aren't there.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_mkdir_p(
    dfs_sys: *mut c_void,
    dir_path: *const c_char,
    mode: libc::mode_t,
    cid: u32,
) -> c_int {
    checked(|| {
        let (mounted, path) = change_arguments(dfs_sys, dir_path)?;
        class_of(cid)?;
        wait(async |context| {
            let fs = &mounted.fs;
            let ends = (1..=path.len()).filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/'));
            for end in ends {
                match fs.resolve(context, &path[..end], true).await {
                    Ok(node) if node.is_directory() => continue,
                    Ok(_) => return Err(Errno(libc::ENOTDIR)),
                    Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                let (directory, name) = parent(context, &mounted, &path[..end]).await?;
                match fs.mkdir(context, &directory, name, ownership(mode)).await {
                    Ok(_) | Err(Error::Exists(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        })
    })
}
