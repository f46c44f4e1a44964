//! Requests of the kernel, and their answers.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use weir_dfs::Stat;

use super::attributes::{AttributeRequest, missing, to_kernel};
use super::data::Opened;
use super::libraries::{HANDLE, LIFE};
use super::takeover::resent;
use super::{GENERATION, Shared, WeirFs};
use crate::metrics::Operation;

/// Largest write of one request: as much as the kernel can send (256 pages).
const WRITE_MAX: u32 = 1 << 20;

/// Requests that the kernel may have under way without a waiting process, such as read-ahead, beside those that may
/// wait for engines: some for each thread.
const BACKGROUND_MAX: u16 = 64;

/// Unit that `statfs` counts space in.
const STATFS_UNIT: u32 = 4096;

thread_local! {
    /// What a read is put in; grows to the largest read once.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn owner(request: &Request) -> (u32, u32) {
    (request.uid(), request.gid())
}

impl WeirFs {
    /// The handle that the process before this one has opened for a request which the kernel sends again.
    fn opened_before(&self, unique: u64) -> Option<u64> {
        self.shared.handles.opened_by(resent(unique)?)
    }

    /// Serves a request that may wait for an engine.
    fn serve(&self, work: impl FnOnce(&Shared) + Send + 'static) {
        self.serve_lent(&(), |shared, ()| work(shared));
    }

    /// As [`WeirFs::serve`], one that comes with a name or data.
    fn serve_lent<D>(&self, lent: &D, work: impl FnOnce(&Shared, &D) + Send + 'static)
    where
        D: ToOwned + ?Sized,
        D::Owned: Send + 'static,
    {
        self.shared.threads.serve(&self.shared, lent, work);
    }
}

/// Answers with a value or the size that it needs.
fn answer_xattr(value: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) => match u32::try_from(value.len()) {
            Ok(needed) if size == 0 => reply.size(needed),
            Ok(needed) if needed <= size => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
    }
}

/// Answers with an inode that has just been made.
fn made(shared: &Shared, outcome: Result<Stat, Errno>, reply: ReplyEntry) {
    match outcome {
        Ok(stat) => reply.entry(&shared.cache_life(), &to_kernel(&stat), GENERATION),
        Err(errno) => reply.error(errno),
    }
}

/// Answers with a library, or its directory, that was opened.
fn open_library(opened: Result<FopenFlags, Errno>, reply: ReplyOpen) {
    match opened {
        Ok(flags) => reply.opened(FileHandle(HANDLE), flags),
        Err(errno) => reply.error(errno),
    }
}

fn done(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for WeirFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without FUSE_ATOMIC_O_TRUNC: with it the kernel cuts the pages of a program off before it sees that it runs.
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ];
        for capability in wanted {
            if let Err(missing) = config.add_capabilities(capability) {
                tracing::info!(?missing, "the kernel lacks a FUSE capability; doing without");
            }
        }
        if !self.shared.leased.grants_locks() {
            // So that the kernel asks, instead of granting them itself.
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS);
        }
        // Each takes the nearest value that the kernel allows.
        let _ = config.set_max_write(WRITE_MAX).or_else(|nearest| config.set_max_write(nearest));
        let _ = config.set_max_readahead(WRITE_MAX).or_else(|nearest| config.set_max_readahead(nearest));
        let waiting = u16::try_from(self.shared.threads.requests_max()).expect("a mount has few threads");
        let _ = config.set_max_background(waiting + BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.shared.libraries.lookup(parent.0, name.as_bytes()) {
            Some(Ok(found)) => return reply.entry(&LIFE, &found, GENERATION),
            Some(Err(errno)) => return reply.error(errno),
            None => {}
        }
        let caller = request.pid();
        self.serve_lent(name.as_bytes(), move |shared, name| {
            match shared.serve(Operation::Lookup, |context| shared.lookup(context, parent.0, name)) {
                Ok((stat, life)) => {
                    shared.retries.looked_up(caller, stat.inode);
                    shared.withhold(&stat);
                    reply.entry(&life, &to_kernel(&stat), GENERATION);
                }
                Err(Errno::ENOENT) if let Some(life) = shared.missing_life() => {
                    reply.entry(&life, &missing(), GENERATION);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn forget(&self, _: &Request, number: INodeNo, count: u64) {
        self.shared.inodes.forget(number.0, count);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.shared.libraries.getattr(number.0) {
            Some(Ok(found)) => return reply.attr(&LIFE, &found),
            Some(Err(errno)) => return reply.error(errno),
            None => {}
        }
        self.serve(move |shared| {
            match shared.serve(Operation::Getattr, |context| shared.getattr(context, number.0)) {
                Ok(stat) => {
                    shared.withhold(&stat);
                    reply.attr(&shared.attribute_life(number.0), &to_kernel(&stat));
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let caller = request.uid();
        let wanted = AttributeRequest { mode, uid, gid, size, atime, mtime };
        self.serve(move |shared| {
            let set = |context: &_| shared.setattr(context, number.0, wanted, caller);
            match shared.serve(Operation::Setattr, set) {
                Ok(stat) => reply.attr(&shared.attribute_life(number.0), &to_kernel(&stat)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        self.serve(move |shared| {
            match shared.serve(Operation::Readlink, |context| shared.readlink(context, number.0)) {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (owner, unique) = (owner(request), request.unique().0);
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let make = |context: &_| shared.mknod(context, &turn, parent.0, name, (mode, device), owner);
            made(shared, shared.serve(Operation::Mknod, make), reply);
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let (owner, unique) = (owner(request), request.unique().0);
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let make = |context: &_| shared.mkdir(context, &turn, parent.0, name, mode, owner);
            made(shared, shared.serve(Operation::Mkdir, make), reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unique = request.unique().0;
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let remove = |context: &_| shared.unlink(context, &turn, parent.0, name);
            done(shared.serve(Operation::Unlink, remove), reply);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unique = request.unique().0;
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let remove = |context: &_| shared.rmdir(context, &turn, parent.0, name);
            done(shared.serve(Operation::Rmdir, remove), reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (owner, unique) = (owner(request), request.unique().0);
        let target = target.as_os_str().as_bytes().to_vec();
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let make = |context: &_| shared.symlink(context, &turn, parent.0, name, &target, owner);
            made(shared, shared.serve(Operation::Symlink, make), reply);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (new_name, unique) = (new_name.as_bytes().to_vec(), request.unique().0);
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let (from, to) = ((parent.0, name), (new_parent.0, new_name.as_slice()));
            let rename = |context: &_| shared.rename(context, &turn, from, to, flags);
            done(shared.serve(Operation::Rename, rename), reply);
        });
    }

    fn link(&self, request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let unique = request.unique().0;
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let link = |context: &_| shared.link(context, &turn, number.0, parent.0, name);
            match shared.serve(Operation::Link, link) {
                Ok((stat, life)) => reply.entry(&life, &to_kernel(&stat), GENERATION),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(opened) = self.shared.libraries.open(number.0, flags.0) {
            return open_library(opened, reply);
        }
        let (caller, unique) = (request.pid(), request.unique().0);
        if let Some(handle) = self.opened_before(unique) {
            return reply.opened(FileHandle(handle), self.shared.kernel_flags(flags.0, false));
        }
        self.serve(move |shared| {
            let had_name = shared.retries.opens(caller, number.0);
            let open = |context: &_| shared.open(context, number.0, (unique, flags.0), had_name);
            match shared.serve(Operation::Open, open) {
                Ok(opened) => reply.opened(FileHandle(opened.handle), opened.flags),
                Err(errno) => {
                    if errno == Errno::ESTALE && !had_name {
                        shared.retries.refused(caller);
                    }
                    reply.error(errno);
                }
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (owner, unique) = (owner(request), request.unique().0);
        let before = self.opened_before(unique);
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let make = |context: &_| match before {
                Some(handle) => {
                    let stat = shared.stat_open(context, handle)?;
                    Ok((stat, Opened { handle, flags: shared.kernel_flags(flags, false) }))
                }
                None => shared.create(context, &turn, (parent.0, name), mode, (unique, flags), owner),
            };
            match shared.serve(Operation::Create, make) {
                Ok((stat, opened)) => {
                    let handle = FileHandle(opened.handle);
                    reply.created(&shared.cache_life(), &to_kernel(&stat), GENERATION, handle, opened.flags);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.shared.libraries.read(number.0, offset, size) {
            Some(Ok(bytes)) => return reply.data(&bytes),
            Some(Err(errno)) => return reply.error(errno),
            None => {}
        }
        let reading = self.shared.begin_read(number.0, offset, flags.0);
        self.serve(move |shared| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let size = size as usize;
                if buffer.len() < size {
                    buffer.resize(size, 0);
                }
                let into = &mut buffer[..size];
                let read = |context: &_| shared.read(context, handle.0, offset, into, reading.as_ref());
                match shared.serve(Operation::Read, read) {
                    Ok(read) => reply.data(&buffer[..read.min(size)]),
                    Err(errno) => reply.error(errno),
                }
            });
            // Now that the kernel has the answer.
            drop(reading);
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        now: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.serve_lent(data, move |shared, data| {
            let write = |context: &_| shared.write(context, handle.0, offset, data, (flags, now.0));
            match shared.serve(Operation::Write, write) {
                Ok(()) => {
                    reply.written(u32::try_from(data.len()).expect("a request has at most WRITE_MAX bytes"));
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn flush(&self, _: &Request, number: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if self.shared.libraries.has(number.0) {
            return reply.ok();
        }
        // Dirty pages of a mapping the kernel has written before this by itself.
        self.serve(move |shared| {
            done(shared.serve(Operation::Flush, |context| shared.flush(context, handle.0, true)), reply);
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(move |shared| {
            let release = |context: &_| {
                shared.release(context, handle.0);
                Ok(())
            };
            done(shared.serve(Operation::Release, release), reply);
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        // Dirty pages of a mapping the kernel has written before this by itself.
        self.serve(move |shared| {
            done(shared.serve(Operation::Fsync, |context| shared.flush(context, handle.0, false)), reply);
        });
    }

    fn opendir(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(opened) = self.shared.libraries.open(number.0, flags.0) {
            return open_library(opened, reply);
        }
        let unique = request.unique().0;
        if let Some(handle) = self.opened_before(unique) {
            return reply.opened(FileHandle(handle), FopenFlags::empty());
        }
        self.serve(move |shared| {
            match shared.serve(Operation::Opendir, |_| shared.opendir(number.0, unique)) {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if self.shared.libraries.list(number.0, offset, &mut reply) {
            return reply.ok();
        }
        self.serve(move |shared| {
            let fill = |context: &_| shared.readdir(context, number.0, handle.0, offset, &mut reply);
            match shared.serve(Operation::Readdir, fill) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        if self.shared.libraries.list_with_attributes(number.0, offset, &mut reply) {
            return reply.ok();
        }
        self.serve(move |shared| {
            let fill = |context: &_| shared.readdirplus(context, number.0, handle.0, offset, &mut reply);
            match shared.serve(Operation::Readdirplus, fill) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.shared.releasedir(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // A name is on stable media when the call that made, changed or removed it returns.
        self.serve(|shared| done(shared.serve(Operation::Fsyncdir, |_| Ok(())), reply));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.serve(|shared| {
            let ask = |context: &weir_client::Context| Ok(context.block_on(shared.dfs.statfs(context))?);
            match shared.serve(Operation::Statfs, ask) {
                Ok(space) => {
                    let (total, free) =
                        (space.total / u64::from(STATFS_UNIT), space.free / u64::from(STATFS_UNIT));
                    let name_max = u32::try_from(weir_dfs::NAME_MAX).unwrap_or(255);
                    // Inodes are not limited: df shows none instead of a number that means nothing.
                    reply.statfs(total, free, free, 0, 0, STATFS_UNIT, name_max, STATFS_UNIT);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (name, unique) = (name.as_bytes().to_vec(), request.unique().0);
        self.serve_lent(value, move |shared, value| {
            let turn = shared.repeats.begin(unique);
            let set = |context: &_| shared.setxattr(context, &turn, number.0, &name, value, flags);
            done(shared.serve(Operation::Setxattr, set), reply);
        });
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let get = |context: &_| shared.getxattr(context, number.0, name);
            answer_xattr(shared.serve(Operation::Getxattr, get), size, reply);
        });
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(move |shared| {
            let list = shared.serve(Operation::Listxattr, |context| shared.listxattr(context, number.0));
            answer_xattr(list, size, reply);
        });
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unique = request.unique().0;
        self.serve_lent(name.as_bytes(), move |shared, name| {
            let turn = shared.repeats.begin(unique);
            let remove = |context: &_| shared.removexattr(context, &turn, number.0, name);
            done(shared.serve(Operation::Removexattr, remove), reply);
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.serve(move |shared| {
            let allocate = |context: &_| shared.fallocate(context, handle.0, offset, length, mode);
            done(shared.serve(Operation::Fallocate, allocate), reply);
        });
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.serve(move |shared| {
            match shared.serve(Operation::Lseek, |context| shared.seek(context, handle.0, offset, whence)) {
                Ok(found) => reply.offset(found),
                Err(errno) => reply.error(errno),
            }
        });
    }

    // The kernel asks about locks only where another mount grants them. EOPNOTSUPP is what programs that can do without locks go on
    // after.

    fn getlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        _: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn setlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        kind: i32,
        _: u32,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if kind == libc::F_UNLCK { reply.ok() } else { reply.error(Errno::EOPNOTSUPP) }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        offset: u64,
        _: INodeNo,
        to: FileHandle,
        at: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let is_root = request.uid() == 0;
        self.serve(move |shared| {
            let copy = |context: &_| shared.copy_range(context, (from.0, offset), (to.0, at), len, is_root);
            match shared.serve(Operation::CopyFileRange, copy) {
                Ok(copied) => reply.written(copied),
                Err(errno) => reply.error(errno),
            }
        });
    }

    // The kernel does this by itself after it was told once that the file system doesn't.
    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: IoctlFlags,
        number: u32,
        question: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        let user = request.uid();
        self.serve_lent(question, move |shared, question| {
            let answer = |context: &_| shared.answer_request(context, (handle.0, user), number, question);
            match shared.serve(Operation::Ioctl, answer) {
                Ok(answer) => reply.ioctl(0, &answer),
                Err(errno) => reply.error(errno),
            }
        });
    }
}
