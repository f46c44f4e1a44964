//! Attributes of files, directories and links.

use core::ffi::{c_char, c_int, c_void};

use weir_client::Context;
use weir_dfs::{Change, Dfs, Kind, Node, SetAttributes, Stat};

use super::{Mounted, directory, mounted, object};
use crate::boundary::{bytes_of, required};
use crate::errno::{Checked, Errno, checked, wait};

/// What `dfs_osetattr` is asked to set (`DFS_SET_ATTR_*`).
const MODE: c_int = 1 << 0;
const ATIME: c_int = 1 << 1;
const MTIME: c_int = 1 << 2;
const SIZE: c_int = 1 << 3;
const UID: c_int = 1 << 4;
const GID: c_int = 1 << 5;
const ALL: c_int = MODE | ATIME | MTIME | SIZE | UID | GID;

const SECOND: i64 = 1_000_000_000;

/// The attributes as programs know them.
pub fn filled(stat: &Stat) -> libc::stat {
    // SAFETY: zeros are valid for all members.
    let mut filled: libc::stat = unsafe { core::mem::zeroed() };
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    filled.st_mode = stat.kind.mode_bits() | stat.mode;
    filled.st_uid = stat.uid;
    filled.st_gid = stat.gid;
    filled.st_ino = stat.inode;
    filled.st_nlink = stat.links.into();
    let number = stat.device;
    filled.st_rdev = libc::makedev((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    filled.st_size = signed(stat.size);
    filled.st_blocks = signed(stat.blocks);
    filled.st_blksize = stat.block_size.into();
    (filled.st_atime, filled.st_atime_nsec) = parts(stat.atime_ns);
    (filled.st_mtime, filled.st_mtime_nsec) = parts(stat.mtime_ns);
    (filled.st_ctime, filled.st_ctime_nsec) = parts(stat.ctime_ns);
    filled
}

const fn parts(ns: i64) -> (i64, i64) {
    (ns.div_euclid(SECOND), ns.rem_euclid(SECOND))
}

/// The time of seconds and nanoseconds: `EINVAL` for one that can't be stored.
pub fn time(seconds: i64, ns: i64) -> Checked<i64> {
    if !(0..SECOND).contains(&ns) {
        return Err(Errno(libc::EINVAL));
    }
    seconds.checked_mul(SECOND).and_then(|whole| whole.checked_add(ns)).ok_or(Errno(libc::EINVAL))
}

/// The inode of a name in a directory; of the directory without a name.
pub async fn named(
    context: &Context,
    fs: &Dfs,
    directory: &Node,
    name: Option<&[u8]>,
    follow: bool,
) -> Checked<Node> {
    let Some(name) = name else { return Ok(directory.clone()) };
    let node = fs.lookup(context, directory, name).await?;
    if follow && node.record.kind == Kind::Symlink {
        return Ok(fs.resolve_from(context, directory, &node.record.target, true).await?);
    }
    Ok(node)
}

fn name_of<'a>(name: *const c_char) -> Checked<Option<&'a [u8]>> {
    if name.is_null() { Ok(None) } else { Ok(Some(bytes_of(name)?)) }
}

/// Attributes of an entry; of a link its own.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_stat(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    stbuf: *mut libc::stat,
) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(stbuf)?);
        let (directory, name) = (directory(&mounted, parent)?, name_of(name)?);
        let stat = wait(async |context| {
            let node = named(context, &mounted.fs, &directory, name, false).await?;
            Ok(match name {
                Some(_) => mounted.fs.stat_listed(context, &node).await?,
                None => mounted.fs.stat(context, &node).await?.1,
            })
        })?;
        place.set(filled(&stat));
        Ok(())
    })
}

/// Attributes of an open object.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_ostat(dfs: *mut c_void, obj: *mut c_void, stbuf: *mut libc::stat) -> c_int {
    checked(|| {
        let (mounted, object, place) = (mounted(dfs)?, object(obj)?, required(stbuf)?);
        let node = object.node();
        let (node, stat) = wait(async |context| Ok(mounted.fs.stat(context, &node).await?))?;
        object.note(node);
        place.set(filled(&stat));
        Ok(())
    })
}

/// What a program asks to set.
pub fn changes(given: &libc::stat, flags: c_int) -> Checked<SetAttributes> {
    if flags & !ALL != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let asked = |flag| flags & flag != 0;
    let size = u64::try_from(given.st_size).map_err(|_| Errno(libc::EINVAL));
    let at = |asked: bool, seconds, ns| if asked { time(seconds, ns).map(Some) } else { Ok(None) };
    Ok(SetAttributes {
        mode: asked(MODE).then_some(given.st_mode & 0o7777),
        uid: asked(UID).then_some(given.st_uid),
        gid: asked(GID).then_some(given.st_gid),
        size: if asked(SIZE) { Some(size?) } else { None },
        atime: at(asked(ATIME), given.st_atime, given.st_atime_nsec)?.map(Change::To),
        mtime: at(asked(MTIME), given.st_mtime, given.st_mtime_nsec)?.map(Change::To),
    })
}

/// Sets attributes of an open object and returns all of them.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_osetattr(
    dfs: *mut c_void,
    obj: *mut c_void,
    stbuf: *mut libc::stat,
    flags: c_int,
) -> c_int {
    checked(|| {
        let (mounted, object, place) = (mounted(dfs)?, object(obj)?, required(stbuf)?);
        mounted.ensure_changes()?;
        let (given, node) = (place.get(), object.node());
        if flags & MODE != 0 && given.st_mode & libc::S_IFMT != node.record.kind.mode_bits() {
            return Err(Errno(libc::EINVAL));
        }
        let change = changes(&given, flags)?;
        let set = async |context: &Context| Ok(mounted.fs.set_attributes(context, &node, &change).await?);
        let (node, stat) = wait(set)?;
        object.note(node);
        place.set(filled(&stat));
        Ok(())
    })
}

/// Checks what this process may do with an entry; a link is followed.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_access(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    mask: c_int,
) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        let (directory, name) = (directory(&mounted, parent)?, name_of(name)?);
        let find = async |context: &Context| named(context, &mounted.fs, &directory, name, true).await;
        may(&mounted, &wait(find)?, mask)
    })
}

/// Whether this process may do with an inode what the mask says (`R_OK`, `W_OK`, `X_OK`).
pub fn may(mounted: &Mounted, node: &Node, mask: c_int) -> Checked<()> {
    if mask & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if mask & libc::W_OK != 0 {
        mounted.ensure_changes()?;
    }
    // SAFETY: these calls take nothing and only read.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let record = &node.record;
    let granted = if uid == 0 {
        // The superuser runs what somebody may run, and enters every directory.
        let runs = record.mode & 0o111 != 0 || node.is_directory();
        libc::R_OK | libc::W_OK | if runs { libc::X_OK } else { 0 }
    } else {
        let shift = match (record.uid == uid, record.gid == gid || groups()?.contains(&record.gid)) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        // Three bits fit.
        c_int::try_from((record.mode >> shift) & 7).map_err(|_| Errno(libc::EIO))?
    };
    if mask & !granted == 0 { Ok(()) } else { Err(Errno(libc::EACCES)) }
}

/// Supplementary groups of this process.
fn groups() -> Checked<Vec<libc::gid_t>> {
    // A negative number says that the call failed: the groups have changed between the two, or there is no memory.
    let counted = |result: c_int| usize::try_from(result).map_err(|_| Errno(libc::EIO));
    // SAFETY: with no room the call only counts.
    let count = unsafe { libc::getgroups(0, core::ptr::null_mut()) };
    let mut found = vec![0; counted(count)?];
    // SAFETY: there is room for as many as the call was told of.
    let written = unsafe { libc::getgroups(count, found.as_mut_ptr()) };
    found.truncate(counted(written)?);
    Ok(found)
}

/// Sets permission bits; a link is followed.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_chmod(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    checked(|| {
        let change = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
        change_named(dfs, parent, name, &change, true)
    })
}

/// Sets owner and group; -1 leaves one as it is. A link is followed, unless `O_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_chown(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
    flags: c_int,
) -> c_int {
    checked(|| change_named(dfs, parent, name, &owners(uid, gid), flags & libc::O_NOFOLLOW == 0))
}

/// The change of owner and group that these numbers mean.
pub fn owners(uid: u32, gid: u32) -> SetAttributes {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttributes { uid: given(uid), gid: given(gid), ..SetAttributes::default() }
}

fn change_named(
    dfs: *mut c_void,
    parent: *mut c_void,
    name: *const c_char,
    change: &SetAttributes,
    follow: bool,
) -> Checked<()> {
    let mounted = mounted(dfs)?;
    mounted.ensure_changes()?;
    let (directory, name) = (directory(&mounted, parent)?, name_of(name)?);
    wait(async |context| {
        let node = named(context, &mounted.fs, &directory, name, follow).await?;
        mounted.fs.set_attributes(context, &node, change).await?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        assert_eq!(parts(-1), (-1, SECOND - 1));
        assert_eq!(time(-1, SECOND - 1), Ok(-1));
        assert_eq!(time(0, SECOND), Err(Errno(libc::EINVAL)));
        assert_eq!(time(i64::MAX, 0), Err(Errno(libc::EINVAL)));
    }
}
