//! Listing directories. Nothing of a listing is kept but its anchor, which the program holds.

use core::ffi::{CStr, c_char, c_int, c_void};

use weir_client::{Anchor, Context, Object};
use weir_dfs::{Dfs, Node, Stat};
use weir_proto::limits::LIST_KEYS_MAX;
use weir_runtime::join_all;

use super::attributes::filled;
use super::{handle_of, mounted, object};
use crate::anchor::{self, From};
use crate::boundary::{ArgumentPtr, bytes_of, element, optional, required};
use crate::errno::{Checked, Errno, checked, wait};
use crate::handle;
use crate::list::found;
use crate::types::{daos_anchor_t, daos_obj_id_t};

/// Entries whose attributes are asked for at a time.
const TOGETHER: usize = 64;

/// An entry as programs know it.
pub fn entry(node: &Node) -> libc::dirent {
    // SAFETY: zeros are valid for all members.
    let mut entry: libc::dirent = unsafe { core::mem::zeroed() };
    entry.d_ino = node.inode_number();
    // The four bits of a mode that say what it is.
    entry.d_type = u8::try_from(node.record.kind.mode_bits() >> 12).unwrap_or(libc::DT_UNKNOWN);
    entry.d_reclen = u16::try_from(size_of::<libc::dirent>()).unwrap_or(u16::MAX);
    let end = entry.d_name.len() - 1;
    for (place, byte) in entry.d_name[..end].iter_mut().zip(&node.name) {
        *place = c_char::from_ne_bytes([*byte]);
    }
    entry
}

/// Where a listing goes on.
async fn position(context: &Context, fs: &Dfs, directory: &Node, from: From) -> Checked<Anchor> {
    match from {
        From::At(anchor) => Ok(anchor),
        From::Behind(key) => {
            let entries = Object::open(fs.container(), directory.oid())?;
            Ok(found(context, &entries, None, &key).await?)
        }
    }
}

/// The next entries of a listing, and where it goes on. None only at its end.
async fn page(
    context: &Context,
    fs: &Dfs,
    directory: &Node,
    from: From,
    limit: u32,
) -> Checked<(Vec<Node>, Anchor)> {
    let mut anchor = position(context, fs, directory, from).await?;
    loop {
        let (nodes, next) = fs.list(context, directory, &anchor, limit.min(LIST_KEYS_MAX)).await?;
        if !nodes.is_empty() || next.is_end() {
            return Ok((nodes, next));
        }
        anchor = next;
    }
}

/// Attributes of listed entries; `None` of one that is gone.
async fn attributes(context: &Context, fs: &Dfs, nodes: &[Node]) -> Checked<Vec<Stat>> {
    let mut all = Vec::with_capacity(nodes.len());
    for batch in nodes.chunks(TOGETHER) {
        for stat in join_all(batch.iter().map(|node| fs.stat_listed(context, node))).await {
            all.push(stat?);
        }
    }
    Ok(all)
}

/// A listing that a program asks to be continued.
struct Request {
    directory: Node,
    count: ArgumentPtr<u32>,
    anchor: ArgumentPtr<daos_anchor_t>,
}

impl Request {
    fn read(obj: *mut c_void, anchor: *mut daos_anchor_t, nr: *mut u32) -> Checked<Self> {
        let (object, anchor, count) = (object(obj)?, required(anchor)?, required(nr)?);
        let directory = object.node();
        if !directory.is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        Ok(Self { directory, count, anchor })
    }

    /// Where it goes on; nothing when it is over, or when there is no room.
    fn from(&self) -> Checked<Option<From>> {
        if anchor::is_end(self.anchor) || self.count.get() == 0 {
            self.count.set(0);
            return Ok(None);
        }
        Ok(Some(anchor::read(self.anchor)?))
    }

    fn done(&self, count: usize, next: &Anchor) -> Checked<()> {
        self.count.set(u32::try_from(count).map_err(|_| Errno(libc::EOVERFLOW))?);
        Ok(anchor::write(self.anchor, next)?)
    }
}

/// Lists entries: `*nr` is the room in `dirs`, then how many there are.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_readdir(
    dfs: *mut c_void,
    obj: *mut c_void,
    anchor: *mut daos_anchor_t,
    nr: *mut u32,
    dirs: *mut libc::dirent,
) -> c_int {
    checked(|| {
        let (mounted, request) = (mounted(dfs)?, Request::read(obj, anchor, nr)?);
        required(dirs)?;
        let Some(from) = request.from()? else { return Ok(()) };
        let limit = request.count.get();
        let (nodes, next) =
            wait(async |context| page(context, &mounted.fs, &request.directory, from, limit).await)?;
        for (index, node) in nodes.iter().enumerate() {
            element(dirs, index).set(entry(node));
        }
        request.done(nodes.len(), &next)
    })
}

/// Lists entries with their attributes.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_readdirplus(
    dfs: *mut c_void,
    obj: *mut c_void,
    anchor: *mut daos_anchor_t,
    nr: *mut u32,
    dirs: *mut libc::dirent,
    stbufs: *mut libc::stat,
) -> c_int {
    checked(|| {
        let (mounted, request) = (mounted(dfs)?, Request::read(obj, anchor, nr)?);
        let (_, _) = (required(dirs)?, required(stbufs)?);
        let Some(from) = request.from()? else { return Ok(()) };
        let limit = request.count.get();
        let (nodes, stats, next) = wait(async |context| {
            let (nodes, next) = page(context, &mounted.fs, &request.directory, from, limit).await?;
            let stats = attributes(context, &mounted.fs, &nodes).await?;
            Ok((nodes, stats, next))
        })?;
        for (index, (node, stat)) in nodes.iter().zip(&stats).enumerate() {
            element(dirs, index).set(entry(node));
            element(stbufs, index).set(filled(stat));
        }
        request.done(nodes.len(), &next)
    })
}

/// Lists the entries that pass a filter, with their objects and chunk sizes where these are asked for.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_readdir_with_filter(
    dfs: *mut c_void,
    obj: *mut c_void,
    dpipe: *mut c_void,
    anchor: *mut daos_anchor_t,
    nr: *mut u32,
    dirs: *mut libc::dirent,
    oids: *mut daos_obj_id_t,
    csizes: *mut u64,
    nr_scanned: *mut u64,
) -> c_int {
    checked(|| {
        let (mounted, request) = (mounted(dfs)?, Request::read(obj, anchor, nr)?);
        let filter = handle::filter(handle_of(dpipe))?;
        let (_, scanned) = (required(dirs)?, required(nr_scanned)?);
        scanned.set(0);
        let Some(from) = request.from()? else { return Ok(()) };
        let limit = request.count.get();
        let (nodes, stats, next) = wait(async |context| {
            let (nodes, next) = page(context, &mounted.fs, &request.directory, from, limit).await?;
            let asked = if filter.asks_time() { &nodes[..] } else { &[] };
            let stats = attributes(context, &mounted.fs, asked).await?;
            Ok((nodes, stats, next))
        })?;
        scanned.set(nodes.len() as u64);
        let passing = nodes.iter().enumerate();
        let passing = passing.filter(|(at, node)| filter.passes(node, stats.get(*at))).map(|(_, node)| node);
        let mut count = 0;
        for node in passing {
            element(dirs, count).set(entry(node));
            if optional(oids).is_some() {
                let oid = node.oid();
                element(oids, count).set(daos_obj_id_t { lo: oid.lo, hi: oid.hi });
            }
            if optional(csizes).is_some() {
                element(csizes, count).set(node.record.chunk_size);
            }
            count += 1;
        }
        request.done(count, &next)
    })
}

/// Called for each name of a directory; another result than 0 ends the listing.
type Filler = extern "C" fn(*mut c_void, *mut c_void, *const c_char, *mut c_void) -> c_int;

/// Calls a function for each of at most `*nr` names. `size` bounds the bytes of the names that are asked for at a time; there is
/// always room for one.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_iterate(
    dfs: *mut c_void,
    obj: *mut c_void,
    anchor: *mut daos_anchor_t,
    nr: *mut u32,
    size: usize,
    op: Option<Filler>,
    arg: *mut c_void,
) -> c_int {
    checked(|| {
        let (mounted, request) = (mounted(dfs)?, Request::read(obj, anchor, nr)?);
        let op = op.ok_or(Errno(libc::EINVAL))?;
        let Some(from) = request.from()? else { return Ok(()) };
        let names = (size / (weir_dfs::NAME_MAX + 1)).max(1);
        // More names than the caller can ask for are no bound.
        let limit = u32::try_from(names).map_or(request.count.get(), |names| request.count.get().min(names));
        let (nodes, next) =
            wait(async |context| page(context, &mounted.fs, &request.directory, from, limit).await)?;
        for (index, node) in nodes.iter().enumerate() {
            let entry = entry(node);
            let name: &CStr = name_of(&entry)?;
            let result = op(dfs, obj, name.as_ptr(), arg);
            if result != 0 {
                let behind = after(&node.name)?;
                let last = index + 1 == nodes.len();
                request.done(index + 1, if last { &next } else { &behind })?;
                return Err(Errno(result));
            }
        }
        request.done(nodes.len(), &next)
    })
}

/// The name in an entry.
fn name_of(entry: &libc::dirent) -> Checked<&CStr> {
    // SAFETY: signed and unsigned bytes have one layout, and the slice is the array's.
    let bytes =
        unsafe { core::slice::from_raw_parts(entry.d_name.as_ptr().cast::<u8>(), entry.d_name.len()) };
    CStr::from_bytes_until_nul(bytes).map_err(|_| Errno(libc::EIO))
}

/// Behind a name: a directory is in one shard, in the order of its names.
fn after(name: &[u8]) -> Checked<Anchor> {
    Ok(anchor::behind(0, name)?)
}

/// Makes an anchor from which a listing goes on behind a name.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_dir_anchor_set(
    obj: *mut c_void,
    name: *const c_char,
    anchor: *mut daos_anchor_t,
) -> c_int {
    checked(|| {
        let (object, name, place) = (object(obj)?, bytes_of(name)?, required(anchor)?);
        if !object.node().is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        if name.is_empty() || name.len() > weir_dfs::NAME_MAX {
            return Err(Errno(libc::EINVAL));
        }
        Ok(anchor::write(place, &after(name)?)?)
    })
}

/// Splits a directory into parts that can be listed in parallel: `*nr` is how many are wanted, then how many there are. A directory
/// is stored on one target, so there is one part.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_anchor_split(obj: *mut c_void, nr: *mut u32, anchors: *mut daos_anchor_t) -> c_int {
    checked(|| {
        let (object, count) = (object(obj)?, required(nr)?);
        if !object.node().is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        if let Some(place) = optional(anchors) {
            place.set(daos_anchor_t::default());
        }
        count.set(1);
        Ok(())
    })
}

/// Makes the anchor at the start of a part.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_obj_anchor_set(obj: *mut c_void, index: u32, anchor: *mut daos_anchor_t) -> c_int {
    checked(|| {
        let (object, place) = (object(obj)?, required(anchor)?);
        if !object.node().is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        if index != 0 {
            return Err(Errno(libc::EINVAL));
        }
        place.set(daos_anchor_t::default());
        Ok(())
    })
}
