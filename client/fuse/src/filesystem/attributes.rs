//! Attributes as the kernel reads and changes them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use weir_client::{Context, Epoch};
use weir_dfs::{Change, Dfs, Error, Kind, Node, Record, SetAttributes, Stat};

use super::gathering::overlay;
use super::inodes::{ContentStamp, Inode, ROOT};
use super::worker::{Fault, Served, Shared};

/// Set-user-id and set-group-id.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Bytes of the blocks that `st_blocks` counts.
pub(super) const BLOCK: u64 = 512;

/// Size that `stat` recommends for reads and writes: what one FUSE request carries.
const PREFERRED_BLOCK: u32 = 1 << 20;

/// Nanoseconds since 1970, which may lie before, as the type that fuser takes.
pub fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    let time = if ns >= 0 { UNIX_EPOCH.checked_add(distance) } else { UNIX_EPOCH.checked_sub(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

/// Nanoseconds since 1970 of a time that fuser took from a request; times out of range become the nearest that is in
/// range. For a time before 1970 fuser subtracts the nanoseconds that the kernel meant to be added: the seconds and
/// nanoseconds of the distance are those of the request.
pub fn nanoseconds_of_request(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            let (seconds, nanos) = (before.duration().as_secs(), before.duration().subsec_nanos());
            let seconds = i64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(-1_000_000_000));
            seconds.map_or(i64::MIN, |whole| whole.saturating_add(i64::from(nanos)))
        }
    }
}

/// Nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharacterDevice => FileType::CharDevice,
    }
}

/// Attributes in the form that the kernel takes.
pub fn to_kernel(stat: &Stat) -> FileAttr {
    let number = if stat.inode == 0 { ROOT } else { stat.inode };
    FileAttr {
        ino: INodeNo(number),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime_ns),
        mtime: system_time(stat.mtime_ns),
        ctime: system_time(stat.ctime_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.kind),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or(0),
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.device,
        blksize: stat.block_size.min(PREFERRED_BLOCK),
        flags: 0,
    }
}

/// What tells the kernel that there is no entry of a name, for as long as it may go by that: an inode number of 0 (FUSE protocol).
pub fn missing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Attributes of an inode that was just made: no other client can have changed them.
pub fn of_new(node: &Node) -> Stat {
    let Record { kind, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, ref target, .. } = node.record;
    let size = match kind {
        Kind::Symlink => target.len() as u64,
        Kind::Directory => 4096,
        _ => 0,
    };
    Stat {
        kind,
        mode,
        uid,
        gid,
        inode: node.inode_number(),
        links: node.record.links(),
        device: node.record.device(),
        size,
        blocks: size.div_ceil(BLOCK),
        block_size: u32::try_from(node.record.chunk_size).unwrap_or(u32::MAX),
        atime_ns,
        mtime_ns,
        ctime_ns,
        newest: Epoch::ZERO,
    }
}

/// Attributes of an inode whose content has this stamp.
pub fn with_content(node: &Node, stamp: ContentStamp) -> Stat {
    let ContentStamp { size, stored, mtime_ns, ctime_ns, .. } = stamp;
    Stat { size, blocks: stored.div_ceil(BLOCK), mtime_ns, ctime_ns, ..of_new(node) }
}

/// Mode of a file after an unprivileged user changed its content, or its owner changed.
pub fn without_privilege(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTE != 0 { SET_GROUP_ID } else { 0 };
    mode & !(SET_USER_ID | group)
}

/// The stamp of attributes.
pub fn stamp(stat: &Stat) -> ContentStamp {
    let stored = stat.blocks.saturating_mul(BLOCK);
    ContentStamp {
        size: stat.size,
        stored,
        mtime_ns: stat.mtime_ns,
        ctime_ns: stat.ctime_ns,
        newest: Some(stat.newest),
    }
}

/// Changes that the kernel asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeRequest {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeOrNow>,
    /// Modification time.
    pub mtime: Option<TimeOrNow>,
}

impl AttributeRequest {
    /// The change of an inode with this record, asked for by this user.
    fn change(self, record: &Record, caller: u32) -> SetAttributes {
        let time = |time: TimeOrNow| match time {
            TimeOrNow::Now => Change::Now,
            TimeOrNow::SpecificTime(time) => Change::To(nanoseconds_of_request(time)),
        };
        let mut mode = self.mode.map(|mode| mode & 0o7777);
        let owner_changes = self.uid.is_some() || self.gid.is_some();
        // With FUSE_HANDLE_KILLPRIV_V2 this is the file system's work.
        if record.kind == Kind::File
            && mode.is_none()
            && (owner_changes || (self.size.is_some() && caller != 0))
        {
            let cleared = without_privilege(record.mode);
            mode = (cleared != record.mode).then_some(cleared);
        }
        SetAttributes {
            mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: self.atime.map(time),
            mtime: self.mtime.map(time),
        }
    }
}

impl Shared {
    /// The inode of a number that the kernel names.
    pub(crate) fn inode(&self, number: u64) -> Served<Arc<Inode>> {
        if self.libraries.has(number) {
            // Whatever comes so far would change it.
            return Err(Fault::Errno(libc::EPERM));
        }
        self.inodes.get(number).ok_or(Fault::Errno(libc::ESTALE))
    }

    /// Attributes as they are now.
    pub(crate) fn getattr(&self, context: &Context, number: u64) -> Served<Stat> {
        let inode = self.inode(number)?;
        if let Some(stat) = Self::stat_gathered(&inode).or_else(|| self.stat_withheld(&inode)) {
            return Ok(stat);
        }
        // First: what comes while the engines get the rest isn't in their answer.
        let asked = self.inodes.moment();
        // After a failure neither side alone knows the size while writes wait.
        self.settle(context, &inode);
        let (node, nameless, opens) = {
            let known = inode.lock();
            (known.node.clone(), known.nameless.is_some(), known.opens)
        };
        if nameless {
            let stat = self.stat_unnamed(context, &inode, &node)?;
            return Ok(Stat { links: 0, ..stat });
        }
        match context.block_on(self.dfs.stat(context, &node)) {
            Ok((node, stat)) => {
                if inode.learn(&node, stamp(&stat), asked) {
                    return Ok(stat);
                }
                // What was written from here meanwhile counts: the answer may not know of it.
                Ok(Self::stat_gathered(&inode).unwrap_or(stat))
            }
            Err(Error::Stale(_)) if context.block_on(self.lost_name_before(context, &inode))? => {
                let stat = self.stat_unnamed(context, &inode, &node)?;
                Ok(Stat { links: 0, ..stat })
            }
            // Another client renamed or removed a file that is open here: its content can still be described.
            Err(Error::Stale(_)) if opens > 0 => self.stat_unnamed(context, &inode, &node),
            Err(error) => Err(error.into()),
        }
    }

    /// Attributes of an inode that isn't found under its name. A file that has become empty may be gone.
    fn stat_unnamed(&self, context: &Context, inode: &Inode, node: &Node) -> Served<Stat> {
        let stat = context.block_on(self.dfs.stat_listed(context, node))?;
        let told = inode.lock().told.map_or(0, |told| told.size);
        if node.record.kind == Kind::File && stat.size == 0 && told > 0 {
            self.ensure_there(context, inode)?;
        }
        Ok(stat)
    }

    /// Takes note of attributes after they were changed from here.
    fn learn_changed(&self, inode: &Inode, node: &Node, stat: &Stat) {
        let mut known = inode.lock();
        (known.told, known.before_cut) = (Some(stamp(stat)), None);
        inode.gathering.learn_end(stat.size);
        self.inodes.note_record(&mut known, node);
    }

    /// Changes attributes.
    pub(crate) fn setattr(
        &self,
        context: &Context,
        number: u64,
        wanted: AttributeRequest,
        caller: u32,
    ) -> Served<Stat> {
        let inode = self.inode(number)?;
        let (node, nameless) = {
            let known = inode.lock();
            (known.node.clone(), known.nameless.is_some())
        };
        let change = wanted.change(&overlay(&node, &inode.gathering), caller);
        if !nameless && self.gather_attributes(&inode, &change).is_some() {
            return self.gathered_attributes(context, &inode, &change);
        }
        self.settle(context, &inode);
        if let Some(size) = wanted.size {
            inode.gathering.lower_end(size);
            // What the page cache holds is cut by the kernel itself; another version of it may not be kept.
            inode.lock().cached = None;
        }
        if nameless {
            return self.setattr_nameless(context, &inode, change);
        }
        let changed = context.block_on(self.dfs.set_attributes(context, &node, &change));
        if change.size.is_some() {
            inode.gathering.note_changed(context.latest_epoch());
        }
        let (node, stat) = match changed {
            Err(Error::Stale(_)) if context.block_on(self.lost_name(context, &inode))? => {
                return self.setattr_nameless(context, &inode, change);
            }
            changed => changed?,
        };
        self.learn_changed(&inode, &node, &stat);
        Ok(stat)
    }

    /// What the kernel is told after a change that waits to be sent.
    fn gathered_attributes(
        &self,
        context: &Context,
        inode: &Arc<Inode>,
        change: &SetAttributes,
    ) -> Served<Stat> {
        if let (Some(mtime), Some(told)) = (change.mtime, inode.lock().told.as_mut()) {
            told.mtime_ns = match mtime {
                Change::Now => now_ns(),
                Change::To(ns) => ns,
            };
        }
        match Self::stat_gathered(inode) {
            Some(stat) => Ok(stat),
            None => self.getattr(context, inode.number),
        }
    }

    /// Attributes of a file whose changes are not all with the engines, as this mount's applications see them. `None`
    /// when the engines know better.
    pub(crate) fn stat_gathered(inode: &Inode) -> Option<Stat> {
        if inode.gathering.is_settled() {
            return None;
        }
        let (mut node, told, removed) = {
            let known = inode.lock();
            (known.node.clone(), known.told?, known.nameless.is_some())
        };
        node.record = overlay(&node, &inode.gathering);
        // A write moves both times; one that was set may lie in the future.
        let ctime_ns = node.record.ctime_ns.max(told.mtime_ns.min(now_ns()));
        let stat = with_content(&node, ContentStamp { ctime_ns, ..told });
        Some(Stat { links: if removed { 0 } else { stat.links }, ..stat })
    }

    /// Attributes of a file that the kernel asks for again and again, because they are withheld from it: for as long as it might
    /// keep them.
    fn stat_withheld(&self, inode: &Inode) -> Option<Stat> {
        // Who asks the engines itself is told what they say, not what this mount has noted of its own writes.
        if inode.gathering.is_direct() || self.direct.has_readers() {
            return None;
        }
        let known = inode.lock();
        let told = known.trusted(self.cache_life()).filter(|_| known.pages.is_withholding(Instant::now()))?;
        Some(with_content(&known.node, told))
    }

    /// An inode without a name keeps its attributes here: there is no entry to hold them.
    fn setattr_nameless(&self, context: &Context, inode: &Inode, change: SetAttributes) -> Served<Stat> {
        let node = inode.node();
        if let Some(size) = change.size {
            let file = self.dfs.file(&node)?;
            context.block_on(file.truncate(context, size))?;
            inode.gathering.learn_end(size);
        }
        let newest = match node.record.kind {
            Kind::File => context.block_on(self.dfs.file(&node)?.size_and_epoch(context))?.1,
            // Nothing that is in it can change any more.
            _ => Epoch::MAX,
        };
        let node = {
            let mut known = inode.lock();
            known.apply(&change, newest);
            self.inodes.keep_again(&mut known);
            known.node.clone()
        };
        let stat = context.block_on(self.dfs.stat_listed(context, &node))?;
        let mut known = inode.lock();
        known.told = Some(stamp(&stat));
        self.inodes.note_change(&mut known);
        Ok(Stat { links: 0, ..stat })
    }
}

/// Gives the root directory to a group, with set-group-id, so that what is created in it belongs to the group too.
///
/// # Errors
/// When the root directory cannot be changed.
pub async fn give_root_to_group(
    context: &Context,
    dfs: &Dfs,
    group: u32,
    read_only: bool,
) -> Result<(), Error> {
    const GROUP_ACCESS: u32 = 0o2070;
    if group == 0 || read_only {
        return Ok(());
    }
    let (node, stat) = dfs.stat(context, dfs.root()).await?;
    if stat.gid == group && stat.mode & GROUP_ACCESS == GROUP_ACCESS {
        return Ok(());
    }
    let change =
        SetAttributes { gid: Some(group), mode: Some(stat.mode | GROUP_ACCESS), ..SetAttributes::default() };
    dfs.set_attributes(context, &node, &change).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_told_and_taken_to_the_nanosecond() {
        assert_eq!(system_time(-1), UNIX_EPOCH - Duration::from_nanos(1));
        assert_eq!(nanoseconds_of_request(system_time(1_700_000_000_123_456_789)), 1_700_000_000_123_456_789);
        // The kernel's -2 s + 999,999,999 ns, as fuser hands it over.
        assert_eq!(nanoseconds_of_request(UNIX_EPOCH - Duration::new(2, 999_999_999)), -1_000_000_001);
        assert_eq!(nanoseconds_of_request(UNIX_EPOCH - Duration::new(7, 0)), -7_000_000_000);
    }

    #[test]
    fn privilege_bits_go_as_on_local_file_systems() {
        assert_eq!(without_privilege(0o6755), 0o755);
        // Set-group-id without group execution means mandatory locking and stays.
        assert_eq!(without_privilege(0o6644), 0o2644);
        assert_eq!(without_privilege(0o644), 0o644);
    }

    #[test]
    fn chown_clears_privilege_and_chmod_means_what_it_says() {
        let record = Record {
            kind: Kind::File,
            mode: 0o4755,
            uid: 0,
            gid: 0,
            oid: weir_client::ObjectId { hi: 0, lo: 9 },
            atime_ns: 0,
            mtime_ns: 0,
            mtime_epoch: weir_client::Epoch::ZERO,
            ctime_ns: 0,
            chunk_size: 1 << 20,
            xattrs: false,
            target: vec![],
            names: weir_dfs::Names::One,
        };
        let chown = AttributeRequest { uid: Some(7), ..AttributeRequest::default() };
        assert_eq!(chown.change(&record, 0).mode, Some(0o755));
        let both = AttributeRequest { uid: Some(7), mode: Some(0o104_755), ..AttributeRequest::default() };
        assert_eq!(both.change(&record, 0).mode, Some(0o4755));
        let truncate = AttributeRequest { size: Some(0), ..AttributeRequest::default() };
        assert_eq!(truncate.change(&record, 0).mode, None);
        assert_eq!(truncate.change(&record, 1000).mode, Some(0o755));
    }
}
