//! Files whose data a process moves to and from the engines itself ([`weir_dfs::direct`]).
//!
//! As long as a handle is open that was accessed directly, the file is one that others change: nothing of it is gathered, and the
//! kernel asks for its attributes each time, by which it tells that pages are out of date. That doesn't end before the handle does:
//! processes that share it may each access it so.
//!
//! A process that finds names and attributes by itself keeps the root of the mount open. As long as one does, nothing is gathered of any
//! file, so that the engines say of each what this mount would.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use weir_client::{AttachText, Context};
use weir_dfs::direct::{self, DirectFile, DirectMount, DirectNames, MountId};

use super::attributes::{now_ns, without_privilege};
use super::handles::{OpenDirectory, OpenFile};
use super::inodes::ROOT;
use super::worker::{Fault, Served, Shared};
use crate::spec::{Cache, MountSpec};

/// How a mount answers those who want to access its files directly.
#[derive(Debug)]
pub struct DirectAccess {
    mount: MountId,
    /// What they need of the mount, as bytes.
    described: Vec<u8>,
    /// Any user may.
    is_for_all: bool,
    /// This one may, on a mount that no daemon has made for others.
    user: Option<u32>,
    /// Handles of the root by which processes find names and attributes themselves.
    readers: AtomicU32,
}

impl DirectAccess {
    /// Direct access to a file system that is mounted as a specification and its options say.
    pub fn new(dfs: &weir_dfs::Dfs, spec: &MountSpec, is_for_all: bool) -> Self {
        let container = dfs.container();
        let mount = MountId {
            container: container.id().0.as_u128(),
            begun_ns: now_ns().cast_unsigned(),
            process: std::process::id(),
        };
        let credentials = is_for_all.then(|| AttachText::of_tenant(&spec.attach)).transpose();
        let credentials = credentials.unwrap_or_else(|error| {
            tracing::warn!(%error, "programs that pass this mount have to attach by themselves");
            None
        });
        let described = DirectMount {
            id: mount,
            attach: spec.attach.to_string_lossy().into_owned(),
            credentials: credentials.flatten(),
            container: container.to_bytes(),
            file_system: dfs.to_bytes(),
        };
        let user = spec.volume.is_empty().then(|| rustix::process::geteuid().as_raw());
        Self { mount, described: described.to_bytes(), is_for_all, user, readers: AtomicU32::new(0) }
    }

    /// Whether any process finds names and attributes by itself. Asked below the lock of what is gathered of a file: who comes to know
    /// of none has gathered it before the first one looks for what is gathered.
    pub(super) fn has_readers(&self) -> bool {
        self.readers() > 0
    }

    /// How many there are.
    pub(crate) fn readers(&self) -> u32 {
        self.readers.load(Ordering::SeqCst)
    }

    /// Whether a user may have the container's handle, with which permissions of files and directories can be passed over.
    fn admits(&self, user: u32) -> bool {
        self.is_for_all || self.user == Some(user)
    }
}

impl Shared {
    /// Answers a request about an open file, or the open root.
    ///
    /// # Errors
    /// `ENOTTY` for any that isn't of direct access; `EPERM` for a user who may not; `EBUSY` for a file that is mapped, or when engines
    /// don't take what is gathered.
    pub(crate) fn answer_request(
        &self,
        context: &Context,
        (handle, user): (u64, u32),
        request: u32,
        question: &[u8],
    ) -> Served<Vec<u8>> {
        if let Some(directory) = self.handles.directory(handle) {
            return self.answer_root_request(context, (&directory, user), request, question);
        }
        let is_known = matches!(request, direct::PRESENT | direct::BEGIN | direct::MOUNT | direct::MAP);
        let open = self.handles.file(handle).filter(|_| is_known).ok_or(Fault::Errno(libc::ENOTTY))?;
        if request == direct::PRESENT {
            return Ok(Vec::new());
        }
        if !self.direct.admits(user) {
            return Err(Fault::Errno(libc::EPERM));
        }
        match request {
            direct::BEGIN => self.begin_direct(context, handle, &open).map(|file| file.answer().to_vec()),
            direct::MOUNT => {
                let piece = direct::piece(&self.direct.described, question);
                piece.map(Vec::from).ok_or(Fault::Errno(libc::EINVAL))
            }
            _ => {
                if !open.is_mapped.swap(true, Ordering::SeqCst) {
                    open.inode.gathering.note_mapped(1);
                }
                Ok(Vec::new())
            }
        }
    }

    fn begin_direct(&self, context: &Context, handle: u64, open: &OpenFile) -> Served<DirectFile> {
        let inode = &open.inode;
        let node = inode.node();
        if node.record.mode != without_privilege(node.record.mode) {
            // The kernel has a write of an unprivileged user take the privilege away.
            return Err(Fault::Errno(libc::EBUSY));
        }
        if !open.is_direct.swap(true, Ordering::SeqCst) && !inode.gathering.begin_direct() {
            open.is_direct.store(false, Ordering::SeqCst);
            return Err(Fault::Errno(libc::EBUSY));
        }
        self.handles.keep_direct(handle);
        self.settle(context, inode);
        // A loss that is to be told to the next write must be: what follows goes another way.
        Self::refuse(open)?;
        {
            let mut known = inode.lock();
            known.cached = None;
            known.pages.note_bypassed();
        }
        self.expire_attributes(inode.number);
        Ok(DirectFile { mount: self.direct.mount, oid: node.oid(), chunk_size: node.record.chunk_size })
    }

    /// Answers a request about an open directory: only the root has any.
    fn answer_root_request(
        &self,
        context: &Context,
        (root, user): (&OpenDirectory, u32),
        request: u32,
        question: &[u8],
    ) -> Served<Vec<u8>> {
        if root.inode.number != ROOT || !matches!(request, direct::NAMES | direct::MOUNT) {
            return Err(Fault::Errno(libc::ENOTTY));
        }
        if !self.direct.admits(user) {
            return Err(Fault::Errno(libc::EPERM));
        }
        if request == direct::MOUNT {
            let piece = direct::piece(&self.direct.described, question);
            return piece.map(Vec::from).ok_or(Fault::Errno(libc::EINVAL));
        }
        self.begin_names(root);
        for inode in self.inodes.all() {
            self.settle(context, &inode);
            if !inode.gathering.is_settled() {
                return Err(Fault::Errno(libc::EBUSY));
            }
        }
        // Else the kernel may go by a name that was missing.
        let may_add = !matches!(self.cache, Cache::Cached(_)) && !self.dfs.is_read_only();
        Ok(DirectNames { mount: self.direct.mount, may_add }.answer().to_vec())
    }

    /// From now on nothing is gathered, until the handle has gone.
    pub(super) fn begin_names(&self, root: &OpenDirectory) {
        if !root.reads_names.swap(true, Ordering::SeqCst) {
            self.direct.readers.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A handle of a directory has gone.
    pub(super) fn leave_names(&self, directory: &OpenDirectory) {
        if directory.reads_names.swap(false, Ordering::SeqCst) {
            self.direct.readers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A handle has gone.
    pub(super) fn leave_direct(&self, open: &OpenFile) {
        if open.is_direct.swap(false, Ordering::SeqCst) {
            open.inode.gathering.end_direct();
            // What the engines said before may be out of date.
            self.inodes.note_write(&mut open.inode.lock());
        }
        if open.is_mapped.swap(false, Ordering::SeqCst) {
            open.inode.gathering.note_mapped(-1);
        }
    }

    /// How long the kernel may use attributes of an inode.
    pub(crate) fn attribute_life(&self, number: u64) -> Duration {
        match self.inodes.get(number) {
            Some(inode) if inode.gathering.is_direct() => Duration::ZERO,
            _ => self.cache_life(),
        }
    }
}
