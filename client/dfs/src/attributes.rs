//! Attributes of inodes.

use weir_client::array::Measure;
use weir_client::{Context, Epoch};

use crate::entry::{Node, inode_number};
use crate::mount::{Dfs, wall_ns};
use crate::namespace::side_by_side;
use crate::record::{Kind, Record};
use crate::{Error, Result};

/// Size that directories report: one block.
const DIRECTORY_SIZE: u64 = 4096;

/// Bytes of the blocks that `st_blocks` counts.
const BLOCK: u64 = 512;

/// What `stat` reports. Times are nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Permission bits: the low 12 bits of `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Inode number.
    pub inode: u64,
    /// Names; of a directory always 1 ("not counted", as on btrfs).
    pub links: u32,
    /// Number of a device ([`Record::device`]).
    pub device: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that what is stored takes: a file's holes take none.
    pub blocks: u64,
    /// Preferred size of a read or write.
    pub block_size: u32,
    /// Access time.
    pub atime_ns: i64,
    /// Modification time: the newest change of the content, or what was set since.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes.
    pub ctime_ns: i64,
    /// Epoch of the newest change of the content.
    pub newest: Epoch,
}

/// A new time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Now.
    Now,
    /// This many nanoseconds since 1970.
    To(i64),
}

/// Attributes to change; what is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a file.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<Change>,
    /// Modification time. It holds until the content changes next.
    pub mtime: Option<Change>,
}

impl SetAttributes {
    /// Whether the inode record changes, not only the size.
    #[must_use]
    pub fn changes_record(&self) -> bool {
        *self != Self { size: self.size, ..Self::default() }
    }

    /// Changes a record. `now` is the time in nanoseconds since 1970; a modification time covers content up to the
    /// epoch `newest`.
    pub fn apply(&self, record: &mut Record, now: i64, newest: Epoch) {
        let time = |change: Change| match change {
            Change::Now => now,
            Change::To(ns) => ns,
        };
        record.mode = self.mode.map_or(record.mode, |mode| mode & 0o7777);
        record.uid = self.uid.unwrap_or(record.uid);
        record.gid = self.gid.unwrap_or(record.gid);
        record.atime_ns = self.atime.map_or(record.atime_ns, time);
        if let Some(mtime) = self.mtime {
            record.mtime_ns = time(mtime);
            record.mtime_epoch = newest;
        }
        record.ctime_ns = now;
    }
}

impl Dfs {
    /// Attributes of an inode as they are now: the entry is read again. A fetch and a query at the same time.
    ///
    /// # Errors
    /// [`Error::Stale`] when the entry is gone or names another inode; or an object error.
    pub async fn stat(&self, context: &Context, node: &Node) -> Result<(Node, Stat)> {
        let (record, held) =
            side_by_side(self.refetch(context, node), self.content(context, &node.record)).await;
        let node = Node { record: record?, ..node.clone() };
        let stat = assemble(&node.record, held?);
        Ok((node, stat))
    }

    /// Attributes of an inode whose record was just looked up or listed: only size and modification time are asked
    /// for. Also works for an inode whose entry is gone.
    ///
    /// # Errors
    /// An object error.
    pub async fn stat_listed(&self, context: &Context, node: &Node) -> Result<Stat> {
        let held = self.content(context, &node.record).await?;
        Ok(assemble(&node.record, held))
    }

    /// Changes attributes. The size first, then the rest.
    ///
    /// Of what others change of the same inode at the same moment nothing is lost; of two changes of the same attribute the later
    /// one stands.
    ///
    /// # Errors
    /// [`Error::Stale`] when the entry is gone, [`Error::IsDirectory`] for the size of a directory,
    /// [`Error::ReadOnly`]; or an object error.
    pub async fn set_attributes(
        &self,
        context: &Context,
        node: &Node,
        change: &SetAttributes,
    ) -> Result<(Node, Stat)> {
        self.ensure_writable()?;
        if let Some(size) = change.size {
            self.file(node)?.truncate(context, size).await?;
        }
        if !change.changes_record() {
            return self.stat(context, node).await;
        }
        let (begun, held) =
            side_by_side(self.begin_record_update(context, node), self.content(context, &node.record)).await;
        let held = held?;
        let apply = |record: &mut Record| change.apply(record, wall_ns(context), held.epoch);
        let record = self.update_record(context, node, Some(begun), apply, async |_, _, _| Ok(())).await?;
        let stat = assemble(&record, held);
        Ok((Node { record, ..node.clone() }, stat))
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    pub fn read_link<'n>(&self, node: &'n Node) -> Result<&'n [u8]> {
        match node.record.kind {
            Kind::Symlink => Ok(&node.record.target),
            _ => Err(Error::Invalid(format!("\"{}\" is not a symbolic link", node.shown()))),
        }
    }

    /// Size and newest epoch of an inode's content, and how much of it is stored.
    async fn content(&self, context: &Context, record: &Record) -> Result<Measure> {
        let whole = |size, epoch| Measure { size, epoch, real: size };
        match record.kind {
            Kind::File => {
                let node = Node { parent: record.oid, name: Vec::new(), record: record.clone() };
                self.file(&node)?.measure(context).await
            }
            Kind::Directory => Ok(whole(DIRECTORY_SIZE, self.object(record.oid)?.max_epoch(context).await?)),
            Kind::Symlink => Ok(whole(record.target.len() as u64, Epoch::ZERO)),
            _ => Ok(Measure::default()),
        }
    }
}

fn assemble(record: &Record, Measure { size, epoch, real }: Measure) -> Stat {
    let written = i64::try_from(epoch.wall_ns()).unwrap_or(i64::MAX);
    let mtime_ns = if epoch > record.mtime_epoch && written > 0 { written } else { record.mtime_ns };
    let changed = if epoch > record.mtime_epoch { written } else { i64::MIN };
    Stat {
        kind: record.kind,
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        inode: inode_number(record.oid),
        links: record.links(),
        device: record.device(),
        size,
        blocks: real.div_ceil(BLOCK),
        block_size: u32::try_from(record.chunk_size).unwrap_or(u32::MAX),
        atime_ns: record.atime_ns,
        mtime_ns,
        ctime_ns: record.ctime_ns.max(changed),
        newest: epoch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Names;
    use weir_proto::ObjectId;

    fn record() -> Record {
        Record {
            kind: Kind::File,
            mode: 0o644,
            uid: 1,
            gid: 2,
            oid: ObjectId { hi: 0, lo: 5 },
            atime_ns: 10,
            mtime_ns: 10,
            mtime_epoch: Epoch::ZERO,
            ctime_ns: 10,
            chunk_size: 1 << 20,
            xattrs: false,
            target: Vec::new(),
            names: Names::One,
        }
    }

    #[test]
    fn a_set_time_holds_until_the_content_changes() {
        let (first, second) = (Epoch(7 << 30), Epoch(8 << 30));
        let content = |size, epoch| Measure { size, epoch, real: size };
        let mut record = record();
        assert_eq!(assemble(&record, content(0, Epoch::ZERO)).mtime_ns, 10);
        assert_eq!(assemble(&record, content(1, first)).mtime_ns, 7 << 30);
        let set = SetAttributes { mtime: Some(Change::To(-5)), ..SetAttributes::default() };
        set.apply(&mut record, 9 << 30, first);
        assert_eq!(assemble(&record, content(1, first)).mtime_ns, -5);
        assert_eq!(assemble(&record, content(1, first)).ctime_ns, 9 << 30);
        assert_eq!(assemble(&record, content(2, second)).mtime_ns, 8 << 30);
    }
}
