//! Names: looking up, making, removing, renaming.

use std::sync::Arc;
use std::time::Duration;

use fuser::RenameFlags;
use weir_client::Context;
use weir_dfs::{Error, Kind, NewInode, Node, Ownership, Removed, Replace, Stat};

use super::attributes::{of_new, stamp};
use super::directories::STATS_LIMIT;
use super::inodes::Inode;
use super::name_changes::NameChange;
use super::repeats::Turn;
use super::worker::{Fault, Served, Shared};

impl Shared {
    /// Finds an entry. Returns its attributes, and how long the kernel may use them.
    pub(crate) fn lookup(&self, context: &Context, parent: u64, name: &[u8]) -> Served<(Stat, Duration)> {
        let directory = self.inode(parent)?.node();
        let mut asked = self.inodes.moment();
        let mut node = context.block_on(self.dfs.lookup(context, &directory, name))?;
        // First: what comes while the engines get the rest isn't in their answer.
        let settling = self.inodes.moment();
        if self.settle_known(context, &node).is_some() {
            asked = settling;
            node = context.block_on(self.dfs.lookup(context, &directory, name))?;
        }
        let Some(stat) = self.describe_found(context, &node)? else {
            self.inodes.found(&node, None, asked);
            return Ok((self.last_known(&node), Duration::ZERO));
        };
        self.inodes.found(&node, Some(stamp(&stat)), asked);
        Ok((stat, self.attribute_life(stat.inode)))
    }

    /// Attributes of an entry that was just found. `None` when they can't be read now: meanwhile the kernel keeps the
    /// directory locked, so that no process makes a name there.
    fn describe_found(&self, context: &Context, node: &Node) -> Served<Option<Stat>> {
        let described = self.dfs.stat_listed(context, node);
        let keeps_unknown = |inode: Arc<Inode>| {
            let known = inode.lock();
            known.opens > 0 && known.told.is_none()
        };
        if self.inodes.get(node.inode_number()).is_some_and(keeps_unknown) {
            // The kernel may have pages behind any end that it would be told.
            return Ok(Some(context.block_on(described)?));
        }
        let answer = context.block_on(context.runtime().timeout(STATS_LIMIT, described));
        Ok(answer.ok().transpose()?)
    }

    /// Brings what is gathered of an inode to the engines, so that they can be asked. Returns the inode as it is then, if
    /// there was anything.
    pub(crate) fn settle_known(&self, context: &Context, node: &Node) -> Option<Node> {
        let inode = self.inodes.get(node.inode_number())?;
        if inode.gathering.is_settled() {
            return None;
        }
        self.settle(context, &inode);
        Some(inode.node())
    }

    /// Takes note of an inode that was just made.
    pub(crate) fn made(&self, node: &Node) -> Stat {
        let stat = of_new(node);
        self.inodes.found(node, Some(stamp(&stat)), self.inodes.moment());
        stat
    }

    /// Makes a file, pipe, socket or device. That the caller may make a device has been checked by the kernel, which opens none
    /// on the mount (`nodev`).
    pub(crate) fn mknod(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        parent: u64,
        name: &[u8],
        (mode, device): (u32, u32),
        owner: (u32, u32),
    ) -> Served<Stat> {
        let kind = Kind::from_mode(mode).ok_or(Fault::Errno(libc::EINVAL))?;
        if matches!(kind, Kind::Directory | Kind::Symlink) {
            return Err(Fault::Errno(libc::EINVAL));
        }
        let inode = NewInode::of(kind, ownership(mode, owner));
        let number = device.to_le_bytes();
        let target = if kind.is_device() { &number[..] } else { &[] };
        self.make(context, turn, (parent, name), NewInode { target, ..inode })
    }

    /// Makes an inode of any kind.
    fn make(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (parent, name): (u64, &[u8]),
        inode: NewInode<'_>,
    ) -> Served<Stat> {
        let directory = self.inode(parent)?.node();
        let node = context.block_on(self.make_once(context, turn, (&directory, name), inode))?;
        Ok(self.made(&node))
    }

    /// Makes a directory.
    pub(crate) fn mkdir(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        parent: u64,
        name: &[u8],
        mode: u32,
        owner: (u32, u32),
    ) -> Served<Stat> {
        let inode = NewInode::of(Kind::Directory, ownership(mode, owner));
        self.make(context, turn, (parent, name), inode)
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        parent: u64,
        name: &[u8],
        target: &[u8],
        owner: (u32, u32),
    ) -> Served<Stat> {
        let inode = NewInode { target, ..NewInode::of(Kind::Symlink, ownership(0o777, owner)) };
        self.make(context, turn, (parent, name), inode)
    }

    /// Target of a symbolic link. It never changes, so the kernel's look-up was the last one; but a process before this one may
    /// have made it.
    pub(crate) fn readlink(&self, context: &Context, number: u64) -> Served<Vec<u8>> {
        let inode = self.inode(number)?;
        let mut node = inode.node();
        if node.record.kind == Kind::Symlink && node.record.target.is_empty() {
            let asked = self.inodes.moment();
            node = context.block_on(self.dfs.stat(context, &node))?.0;
            inode.lock().learn_record(&node, asked);
        }
        Ok(self.dfs.read_link(&node)?.to_vec())
    }

    /// Removes the name of anything but a directory.
    pub(crate) fn unlink(&self, context: &Context, turn: &Turn<'_>, parent: u64, name: &[u8]) -> Served<()> {
        self.remove(context, turn, (parent, name), false)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, context: &Context, turn: &Turn<'_>, parent: u64, name: &[u8]) -> Served<()> {
        self.remove(context, turn, (parent, name), true)
    }

    fn remove(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (parent, name): (u64, &[u8]),
        is_directory: bool,
    ) -> Served<()> {
        let directory = self.inode(parent)?.node();
        let change = self.name_changes.begin(&[(directory.oid(), name)]);
        let removed = context.block_on(self.remove_once(context, turn, (&directory, name), is_directory))?;
        self.inodes.note_name_gone(parent);
        if let Some(removed) = removed {
            self.removed(context, removed, change);
        }
        Ok(())
    }

    /// Gives an inode another name. Returns its attributes, and how long the kernel may use them.
    pub(crate) fn link(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        number: u64,
        parent: u64,
        name: &[u8],
    ) -> Served<(Stat, Duration)> {
        let (inode, directory) = (self.inode(number)?, self.inode(parent)?.node());
        if self.is_untold(number) {
            self.settle(context, &inode);
        }
        let node = {
            let known = inode.lock();
            if known.nameless.is_some() {
                return Err(Fault::Errno(libc::ENOENT));
            }
            known.node.clone()
        };
        let linked = context.block_on(self.link_once(context, turn, &node, (&directory, name)))?;
        {
            let mut known = inode.lock();
            known.node.record.clone_from(&linked.record);
            self.inodes.note_change(&mut known);
            self.inodes.keep(&mut known);
        }
        let asked = self.inodes.moment();
        if let Some(stat) = Self::stat_gathered(&inode) {
            self.inodes.found(&linked, None, asked);
            return Ok((stat, self.cache_life()));
        }
        // The name is there, whatever becomes of the attributes.
        let Ok(Some(stat)) = self.describe_found(context, &linked) else {
            self.inodes.found(&linked, None, asked);
            return Ok((self.last_known(&linked), Duration::ZERO));
        };
        self.inodes.found(&linked, Some(stamp(&stat)), asked);
        Ok((stat, self.attribute_life(stat.inode)))
    }

    /// Frees what lost its last name, or leaves it to its last open handle.
    fn removed(&self, context: &Context, mut removed: Removed, change: NameChange<'_>) {
        if let Some(inode) = self.inodes.get(removed.node.inode_number()) {
            let mut known = inode.lock();
            self.inodes.note_change(&mut known);
            if removed.links > 0 {
                known.node.record = removed.node.record;
                self.inodes.keep(&mut known);
                return;
            }
            let lost = known.lose_name(removed);
            self.inodes.keep(&mut known);
            let Some(unused) = lost else {
                drop(known);
                drop(change);
                return self.announce(context, inode);
            };
            removed = unused;
        }
        drop(change);
        self.reclaim(context, removed);
    }

    /// Renames.
    pub(crate) fn rename(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: RenameFlags,
    ) -> Served<()> {
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return Err(Fault::Errno(libc::EINVAL));
        }
        if self.libraries.is_named(to.0, to.1) {
            return Err(Fault::Errno(libc::EPERM));
        }
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return self.exchange(context, turn, from, to);
        }
        let replace =
            if flags.contains(RenameFlags::RENAME_NOREPLACE) { Replace::Refuse } else { Replace::Allow };
        let source = self.inode(from.0)?.node();
        let target = self.inode(to.0)?.node();
        let change = self.name_changes.begin(&[(source.oid(), from.1), (target.oid(), to.1)]);
        let (old, new) = ((&source, from.1), (&target, to.1));
        let (node, replaced) = context.block_on(self.rename_once(context, turn, (old, new), replace))?;
        self.note_renamed(node);
        self.inodes.note_name_gone(from.0);
        self.inodes.note_name_gone(to.0);
        if let Some(removed) = replaced {
            self.removed(context, removed, change);
        }
        Ok(())
    }

    /// Exchanges two names.
    fn exchange(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        one: (u64, &[u8]),
        other: (u64, &[u8]),
    ) -> Served<()> {
        let (first, second) = (self.inode(one.0)?.node(), self.inode(other.0)?.node());
        let _change = self.name_changes.begin(&[(first.oid(), one.1), (second.oid(), other.1)]);
        let exchanged = self.exchange_once(context, turn, (&first, one.1), (&second, other.1));
        for node in context.block_on(exchanged)? {
            self.note_renamed(node);
        }
        self.inodes.note_name_gone(one.0);
        self.inodes.note_name_gone(other.0);
        Ok(())
    }

    /// An inode has another name from now on.
    fn note_renamed(&self, node: Node) {
        if let Some(inode) = self.inodes.get(node.inode_number()) {
            let mut known = inode.lock();
            known.node = node;
            self.inodes.note_change(&mut known);
            self.inodes.keep(&mut known);
        }
    }

    /// Creates a file. The kernel asks to create only a name that it has looked up in vain. When another client has
    /// taken the name since, the kernel has to look again: it has not checked yet whether the caller may open that
    /// file.
    pub(crate) fn create_new(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (parent, name): (u64, &[u8]),
        (mode, exclusive): (u32, bool),
        owner: (u32, u32),
    ) -> Served<(Node, Stat)> {
        let directory = self.inode(parent)?.node();
        let inode = NewInode::of(Kind::File, ownership(mode, owner));
        match context.block_on(self.make_once(context, turn, (&directory, name), inode)) {
            Ok(node) => {
                let stat = self.made(&node);
                Ok((node, stat))
            }
            Err(Error::Exists(_)) if !exclusive => Err(Fault::Errno(libc::ESTALE)),
            Err(error) => Err(error.into()),
        }
    }
}

fn ownership(mode: u32, (uid, gid): (u32, u32)) -> Ownership {
    Ownership { mode: mode & 0o7777, uid, gid }
}
