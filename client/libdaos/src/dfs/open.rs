//! Looking up, opening and creating.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use weir_client::{Context, ObjectClass};
use weir_dfs::{Error, FileLayout, Kind, Node, Ownership};

use super::attributes::{filled, named};
use super::mount::copy_text;
use super::{Mounted, class_of, directory, handle_of, layout_of, mounted, object, ownership};
use crate::boundary::{ArgumentPtr, bytes_of, optional, required};
use crate::errno::{Checked, Errno, checked, wait};
use crate::handle;
use crate::types::{daos_obj_id_t, dfs_obj_info_t};

/// What an open is to do.
pub struct OpenRequest {
    kind: Kind,
    ownership: Ownership,
    flags: c_int,
    layout: FileLayout,
    target: Vec<u8>,
}

impl OpenRequest {
    /// Reads the arguments of a call.
    pub fn read(
        mode: libc::mode_t,
        flags: c_int,
        cid: u32,
        chunk_size: u64,
        value: *const c_char,
    ) -> Checked<Self> {
        check_flags(flags)?;
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Symlink,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let layout = layout_of(cid, if kind == Kind::File { chunk_size } else { 0 })?;
        let creates = flags & libc::O_CREAT != 0;
        let target = if creates && kind == Kind::Symlink { bytes_of(value)?.to_vec() } else { Vec::new() };
        Ok(Self { kind, ownership: ownership(mode), flags, layout, target })
    }

    /// Whether what isn't there is created.
    pub fn creates(&self) -> bool {
        self.flags & libc::O_CREAT != 0
    }

    /// Opens the entry of a name.
    pub async fn open(
        &self,
        context: &Context,
        mounted: &Mounted,
        directory: &Node,
        name: &[u8],
    ) -> Checked<Node> {
        if self.creates() {
            mounted.ensure_changes()?;
        }
        let is_exclusive = self.creates() && self.flags & libc::O_EXCL != 0;
        if !is_exclusive {
            match mounted.fs.lookup(context, directory, name).await {
                Ok(node) => return self.opened(context, mounted, node).await,
                Err(Error::NotFound(_)) if self.creates() => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.create(context, mounted, directory, name).await {
            // Somebody was faster.
            Err(Error::Exists(_)) if !is_exclusive => {
                let node = mounted.fs.lookup(context, directory, name).await?;
                self.opened(context, mounted, node).await
            }
            created => Ok(created?),
        }
    }

    async fn create(
        &self,
        context: &Context,
        mounted: &Mounted,
        directory: &Node,
        name: &[u8],
    ) -> weir_dfs::Result<Node> {
        let (fs, owner) = (&mounted.fs, self.ownership);
        match self.kind {
            Kind::Directory => fs.mkdir(context, directory, name, owner).await,
            Kind::Symlink => fs.symlink(context, directory, name, &self.target, owner).await,
            _ => fs.create_with(context, directory, name, owner, self.layout).await,
        }
    }

    /// Checks that what is there is what was asked for, and empties it if that was asked for, too.
    pub async fn opened(&self, context: &Context, mounted: &Mounted, node: Node) -> Checked<Node> {
        match (self.kind, node.record.kind) {
            (asked, found) if asked == found => {}
            (Kind::File, Kind::Directory) => return Err(Errno(libc::EISDIR)),
            (Kind::Directory, _) => return Err(Errno(libc::ENOTDIR)),
            _ => return Err(Errno(libc::EINVAL)),
        }
        if self.kind == Kind::File && self.flags & libc::O_TRUNC != 0 {
            if self.flags & libc::O_ACCMODE == libc::O_RDONLY {
                return Err(Errno(libc::EINVAL));
            }
            mounted.ensure_changes()?;
            mounted.fs.file(&node)?.truncate(context, 0).await?;
        }
        Ok(node)
    }
}

/// Refuses flags that make no sense, and `O_APPEND`, which DFS doesn't have.
fn check_flags(flags: c_int) -> Checked<()> {
    if flags & libc::O_APPEND != 0 {
        return Err(Errno(libc::ENOTSUP));
    }
    if flags & libc::O_ACCMODE == libc::O_ACCMODE { Err(Errno(libc::EINVAL)) } else { Ok(()) }
}

/// Opens an entry of a directory, or creates it.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_open(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    mode: libc::mode_t,
    flags: c_int,
    cid: u32,
    chunk_size: u64,
    value: *const c_char,
    obj: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(obj)?);
        let (directory, name) = (directory(&mounted, parent)?, bytes_of(name)?);
        let request = OpenRequest::read(mode, flags, cid, chunk_size, value)?;
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            mounted.ensure_changes()?;
        }
        let node = wait(async |context| request.open(context, &mounted, &directory, name).await)?;
        place.set(mounted.open(node, flags)?.issue()?);
        Ok(())
    })
}

/// Where a call tells what it has found.
type Found = (*mut *mut c_void, *mut libc::mode_t, *mut libc::stat);

/// Opens what was looked up, and tells its mode and attributes where they are asked for.
fn deliver(
    mounted: &Arc<Mounted>,
    flags: c_int,
    (obj, mode, stbuf): Found,
    find: impl AsyncFnOnce(&Context) -> Checked<Node>,
) -> Checked<()> {
    let (place, mode, stbuf) = (required(obj)?, optional(mode), optional(stbuf));
    check_flags(flags)?;
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        mounted.ensure_changes()?;
    }
    let (node, stat) = wait(async |context| {
        let node = find(context).await?;
        let stat = match stbuf {
            Some(_) => Some(mounted.fs.stat_listed(context, &node).await?),
            None => None,
        };
        Ok((node, stat))
    })?;
    if let Some(mode) = mode {
        mode.set(node.record.st_mode());
    }
    if let (Some(place), Some(stat)) = (stbuf, stat) {
        place.set(filled(&stat));
    }
    place.set(mounted.open(node, flags)?.issue()?);
    Ok(())
}

/// Opens what an absolute path names; a link at its end is followed, unless `O_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_lookup(
    dfs: *mut c_void,
    path: *const c_char,
    flags: c_int,
    obj: *mut *mut c_void,
    mode: *mut libc::mode_t,
    stbuf: *mut libc::stat,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        let (path, follow) = (mounted.path(path)?, flags & libc::O_NOFOLLOW == 0);
        let fs = &mounted.fs;
        deliver(&mounted, flags, (obj, mode, stbuf), async |context| {
            Ok(fs.resolve(context, &path, follow).await?)
        })
    })
}

/// Opens an entry of a directory; a link is followed, unless `O_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_lookup_rel(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    flags: c_int,
    obj: *mut *mut c_void,
    mode: *mut libc::mode_t,
    stbuf: *mut libc::stat,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        let (directory, name) = (directory(&mounted, parent)?, bytes_of(name)?);
        let (fs, follow) = (&mounted.fs, flags & libc::O_NOFOLLOW == 0);
        deliver(&mounted, flags, (obj, mode, stbuf), async |context| {
            named(context, fs, &directory, Some(name), follow).await
        })
    })
}

/// Opens an open object once more.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_dup(
    dfs: *mut c_void,
    obj: *mut c_void,
    flags: c_int,
    new_obj: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let (mounted, object, place) = (mounted(dfs)?, object(obj)?, required(new_obj)?);
        check_flags(flags)?;
        place.set(mounted.open(object.node(), flags)?.issue()?);
        Ok(())
    })
}

/// Closes an open object.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_release(obj: *mut c_void) -> c_int {
    checked(|| {
        object(obj)?;
        Ok(handle::forget(handle_of(obj))?)
    })
}

/// The object of an open file, directory or link.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj2id(obj: *mut c_void, oid: *mut daos_obj_id_t) -> c_int {
    checked(|| {
        let (object, place) = (object(obj)?, required(oid)?);
        super::names::tell(Some(place), Some(&object.node()));
        Ok(())
    })
}

/// Type and permission bits, as they were seen last.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_get_mode(obj: *mut c_void, mode: *mut libc::mode_t) -> c_int {
    checked(|| {
        let (object, place) = (object(obj)?, required(mode)?);
        place.set(object.node().record.st_mode());
        Ok(())
    })
}

/// Bytes of a chunk of a file.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_get_chunk_size(obj: *mut c_void, chunk_size: *mut u64) -> c_int {
    checked(|| {
        let (object, place) = (object(obj)?, required(chunk_size)?);
        place.set(object.content()?.chunk_size());
        Ok(())
    })
}

/// Target of a symbolic link with its NUL: `*size` is the room, then what the target takes; cut off where it doesn't fit.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_get_symlink_value(obj: *mut c_void, buf: *mut c_char, size: *mut u64) -> c_int {
    checked(|| {
        let (object, place) = (object(obj)?, required(size)?);
        give_link(&object.node(), buf, place)
    })
}

/// Gives a caller the target of a symbolic link, as [`dfs_get_symlink_value`] does.
pub(super) fn give_link(link: &Node, buf: *mut c_char, place: ArgumentPtr<u64>) -> Checked<()> {
    if link.record.kind != Kind::Symlink {
        return Err(Errno(libc::EINVAL));
    }
    let room = usize::try_from(place.get()).map_err(|_| Errno(libc::EINVAL))?;
    place.set(link.record.target.len() as u64 + 1);
    if !buf.is_null() {
        copy_text(&link.record.target, buf, room);
    }
    Ok(())
}

/// How an open object is stored.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_get_info(dfs: *mut c_void, obj: *mut c_void, info: *mut dfs_obj_info_t) -> c_int {
    checked(|| {
        let (mounted, object, place) = (mounted(dfs)?, object(obj)?, required(info)?);
        let (node, superblock) = (object.node(), mounted.fs.superblock());
        let oid = node.oid();
        let class = ObjectClass::of(oid).map_err(|_| Errno(libc::EIO))?;
        let is_directory = node.is_directory();
        let (chunk, dirs, files) = if is_directory {
            (superblock.chunk_size, superblock.directory_class, superblock.file_class)
        } else {
            (node.record.chunk_size, 0, 0)
        };
        place.set(dfs_obj_info_t {
            doi_oclass_id: class.id(),
            doi_chunk_size: chunk,
            doi_dir_oclass_id: dirs,
            doi_file_oclass_id: files,
            doi_oid: daos_obj_id_t { lo: oid.lo, hi: oid.hi },
        });
        Ok(())
    })
}

/// Classes of their own for what is created in a directory aren't stored: always `ENOTSUP`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_set_oclass(dfs: *mut c_void, obj: *mut c_void, _flags: c_int, cid: u32) -> c_int {
    checked(|| {
        let (_, _, _) = (mounted(dfs)?, object(obj)?, class_of(cid)?);
        Err(Errno(libc::ENOTSUP))
    })
}

/// Chunk sizes of their own for what is created in a directory aren't stored: always `ENOTSUP`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_set_chunk_size(
    dfs: *mut c_void,
    obj: *mut c_void,
    _flags: c_int,
    _csize: u64,
) -> c_int {
    checked(|| {
        let (_, _) = (mounted(dfs)?, object(obj)?);
        Err(Errno(libc::ENOTSUP))
    })
}
