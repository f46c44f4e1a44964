//! Files and block devices with `O_DIRECT` through io_uring.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{BLOCK, Device, DeviceStats, IoFuture, MediaError, check_transfer};
use crate::features::Features;
use crate::health::HUNG;
use crate::nvme::Watcher;
use crate::open_deadline::{OpenDeadline, apart};
use crate::pool::DmaPool;
use crate::ring_device::RingDevice;
use crate::search::{search, search_device};
use crate::uring::{Action, Descriptor, Request, Ring, Transfer, Wire};
use crate::wear::Wear;
use io_uring::{cqueue, opcode, squeue, types};
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use weir_runtime::{Handle, SourceId};

/// Bytes of zeros that are written over and over to prepare a range.
const ZEROS: usize = 64 << 10;

/// Permissions of a created file: the data is the engine's alone.
const FILE_MODE: u32 = 0o600;

/// A file or block device of one target thread.
pub struct FileDevice {
    inner: Rc<RingDevice<FileWire>>,
    is_file: bool,
    sources: Vec<SourceId>,
    /// Of a block device, which may be that of an NVMe namespace.
    watcher: Option<Watcher>,
}

/// Transfers as reads and writes of a file.
pub(crate) struct FileWire {
    /// Of a stable write, a write and a flush may be made, as for files. A block device is always told that the write is to
    /// be stable, which spares a drive its whole cache's flush.
    pub(crate) may_flush: bool,
}

impl Wire for FileWire {
    type Submission = squeue::Entry;
    type Completion = cqueue::Entry;

    fn submission(&self, request: &Request<'_>) -> squeue::Entry {
        let (fd, flags) = match request.descriptor {
            Descriptor::Plain(number) => (types::Fd(number), squeue::Flags::empty()),
            // The flag makes the number an index of the ring's table.
            Descriptor::Registered(index) => {
                (types::Fd(i32::try_from(index).unwrap_or(i32::MAX)), squeue::Flags::FIXED_FILE)
            }
        };
        let (offset, vectors) = (request.offset, request.vectors);
        let len = u32::try_from(request.len).unwrap_or(u32::MAX);
        let base = vectors.first().map_or(core::ptr::null_mut(), |vector| vector.iov_base.cast::<u8>());
        let entry = match request.action {
            Action::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Action::Read => match request.region {
                Some(region) => opcode::ReadFixed::new(fd, base, len, region).offset(offset).build(),
                None => opcode::Read::new(fd, base, len).offset(offset).build(),
            },
            Action::Write { stable } => {
                let how = if stable { libc::RWF_DSYNC } else { 0 };
                match (request.region, vectors) {
                    (Some(region), _) => {
                        opcode::WriteFixed::new(fd, base, len, region).offset(offset).rw_flags(how).build()
                    }
                    (None, [_]) => opcode::Write::new(fd, base, len).offset(offset).rw_flags(how).build(),
                    (None, _) => {
                        let count = u32::try_from(vectors.len()).unwrap_or(u32::MAX);
                        opcode::Writev::new(fd, vectors.as_ptr(), count).offset(offset).rw_flags(how).build()
                    }
                }
            }
        };
        entry.flags(flags).user_data(request.slot)
    }

    fn may_flush_writes(&self) -> bool {
        self.may_flush
    }

    fn completion(completion: &cqueue::Entry) -> (u64, i32) {
        (completion.user_data(), completion.result())
    }

    fn outcome(result: i32, len: usize) -> io::Result<()> {
        match usize::try_from(result) {
            Ok(moved) if moved == len => Ok(()),
            _ => Err(io::Error::other(format!("only {result} of {len} bytes were transferred"))),
        }
    }
}

pub(crate) fn open_error(path: &Path, operation: &'static str, reason: impl Into<String>) -> MediaError {
    MediaError::Open { device: path.display().to_string(), operation, reason: reason.into() }
}

fn no_storage(path: &Path) -> MediaError {
    open_error(path, "opened", "it is neither a file nor a block device")
}

/// What has failed with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// An open for reading and writing.
    Open,
    /// One for reading only.
    Read,
    /// The creation of a file.
    Create,
    /// A transfer of an open device.
    Transfer,
}

impl Doing {
    pub(crate) const fn opening(is_read_only: bool) -> Self {
        if is_read_only { Self::Read } else { Self::Open }
    }
}

/// What an operator can do about an error of the operating system.
pub(crate) fn advice(error: &io::Error, doing: Doing) -> String {
    let hint = match (error.raw_os_error(), doing) {
        (Some(libc::ENOSPC), Doing::Create) => {
            "; the file system lacks the space: free some, or ask for a smaller size"
        }
        (Some(libc::ENOSPC), _) => "; the file system lacks the space: free some",
        (Some(libc::EDQUOT), _) => "; a disk quota is used up",
        (Some(libc::EACCES | libc::EPERM), Doing::Transfer) => "; the kernel refuses it to the engine's user",
        (Some(libc::EPERM), _) => {
            "; the file is immutable, or the device isn't among those that the engine's container may use"
        }
        (Some(libc::EACCES), Doing::Create) => {
            "; the engine's user needs permission to write to the directory"
        }
        (Some(libc::EACCES), Doing::Read) => "; the user needs read permission",
        (Some(libc::EACCES), Doing::Open) => "; the engine's user needs read and write permission",
        // Whatever else fails with these is neither a path nor a file system that lacks something.
        (_, Doing::Transfer) => "",
        (Some(libc::EROFS), _) => "; the file system is mounted read-only",
        (Some(libc::ENOENT), _) => "; check the path, and that its volume is mounted",
        (Some(libc::EEXIST), _) => "; it exists already: open it instead",
        (Some(libc::EINVAL | libc::EOPNOTSUPP), _) => {
            "; the file system must support O_DIRECT and fallocate, as ext4 and xfs do"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

fn open_options(create: bool) -> OpenOptions {
    // Of a block device, `O_EXCL` claims it: what is mounted, or claimed by another, can't be opened. Of a file it says
    // nothing unless one is created.
    let flags = libc::O_DIRECT | libc::O_CLOEXEC | libc::O_EXCL;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(create).mode(FILE_MODE).custom_flags(flags);
    options
}

fn is_storage(kind: FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

/// Opens a file or a block device. `None`: it is something else. Pipes are told apart before, because opening one waits
/// for a process at its other end.
fn open_storage(options: &OpenOptions, path: &Path) -> io::Result<Option<File>> {
    if !is_storage(std::fs::metadata(path)?.file_type()) {
        return Ok(None);
    }
    let file = options.open(path)?;
    Ok(is_storage(file.metadata()?.file_type()).then_some(file))
}

/// A file or block device that is open, locked, and known to be usable.
struct Opened {
    file: File,
    is_file: bool,
    is_read_only: bool,
    /// Whole blocks, in bytes.
    size: u64,
}

impl Opened {
    /// Looks at what was opened, which may take as long as the opening itself.
    fn look(path: &Path, opened: io::Result<Option<File>>, is_read_only: bool) -> Result<Self, MediaError> {
        let fail =
            |error: io::Error| open_error(path, "opened", advice(&error, Doing::opening(is_read_only)));
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => MediaError::Busy { device: path.display().to_string() },
            _ => fail(error),
        })?;
        let file = file.ok_or_else(|| no_storage(path))?;
        let is_file = file.metadata().map_err(fail)?.is_file();
        lock(path, &file, is_read_only)?;
        let size = end_of(&file).map_err(fail)?;
        let size = size - size % BLOCK as u64;
        if size == 0 {
            return Err(open_error(path, "opened", "it is smaller than one block"));
        }
        Ok(Self { file, is_file, is_read_only, size })
    }
}

impl FileDevice {
    /// Creates a file of `size` bytes, rounded up to whole blocks, with all its space allocated, and opens it. On
    /// failure nothing is left behind, but of a file system that doesn't answer.
    ///
    /// # Errors
    /// When the file exists or can't be created, when the file system lacks the space, or doesn't answer.
    pub fn create(handle: &Handle, path: &Path, size: u64) -> Result<Self, MediaError> {
        let fail = |error: io::Error| open_error(path, "created", advice(&error, Doing::Create));
        let size = size.max(1).next_multiple_of(BLOCK as u64);
        let named = path.to_owned();
        let made =
            OpenDeadline::with_creation(path).wait("the open", move || open_options(true).open(named))?;
        // From here on the file is ours and new; failing to remove it changes nothing about the error to report.
        let withdraw = |error| {
            let _ = std::fs::remove_file(path);
            fail(error)
        };
        let file = made.map_err(fail)?;
        let allocated = OpenDeadline::with_creation(path)
            .wait("the allocation of its space", move || allocate(&file, size).map(|()| file))?;
        let (file, named) = (allocated.map_err(withdraw)?, path.to_owned());
        let stable = OpenDeadline::with_creation(path)
            .wait("the flush of its metadata", move || file.sync_all().and_then(|()| sync_parent(&named)))?;
        stable.map_err(withdraw)?;
        Self::open(handle, path)
    }

    /// Opens an existing file or block device for this process alone.
    ///
    /// # Errors
    /// When it can't be opened, is something else, or another process uses it.
    pub fn open(handle: &Handle, path: &Path) -> Result<Self, MediaError> {
        Self::open_with(handle, path, Features::DEFAULT)
    }

    /// Like [`FileDevice::open`], using of io_uring no more than `wanted`.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_with(handle: &Handle, path: &Path, wanted: Features) -> Result<Self, MediaError> {
        let named = path.to_owned();
        let opened = OpenDeadline::with(path).wait("the open", move || {
            Opened::look(&named, open_storage(&open_options(false), &named), false)
        })?;
        Self::with_file(handle, path, opened?, wanted)
    }

    /// Opens an existing file or block device for reading only. Other processes may read it at the same time, but none
    /// may have it open for writing. A file system without `O_DIRECT` will do.
    ///
    /// # Errors
    /// When it can't be opened, is something else, or another process writes to it.
    pub fn open_read_only(handle: &Handle, path: &Path) -> Result<Self, MediaError> {
        let named = path.to_owned();
        let opened = OpenDeadline::with(path).wait("the open", move || {
            let open = |flags| {
                open_storage(OpenOptions::new().read(true).custom_flags(flags | libc::O_CLOEXEC), &named)
            };
            let file = match open(libc::O_DIRECT) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
                opened => opened,
            };
            Opened::look(&named, file, true)
        })?;
        Self::with_file(handle, path, opened?, Features::DEFAULT)
    }

    fn with_file(
        handle: &Handle,
        path: &Path,
        Opened { file, is_file, is_read_only, size }: Opened,
        wanted: Features,
    ) -> Result<Self, MediaError> {
        let may_poll = wanted.has(Features::POLLED) && polls(&file);
        let name = path.display().to_string();
        let file = Rc::new(OwnedFd::from(file));
        let plain = wanted.without(Features::POLLED);
        let wire = FileWire { may_flush: is_file };
        let ring = Rc::new(Ring::new(wire, &file, plain).map_err(|error| no_ring(path, &error))?);
        let polled = if may_poll { polled_ring(&file, wanted) } else { None };
        let mut device = Self {
            inner: Rc::new(RingDevice {
                handle: handle.clone(),
                name,
                file,
                size,
                is_read_only,
                ring,
                polled,
            }),
            is_file,
            sources: Vec::new(),
            watcher: (!is_file).then(|| Watcher::start(path)),
        };
        let rings = [Some(&device.inner.ring), device.inner.polled.as_ref()];
        for ring in rings.into_iter().flatten() {
            let source = handle.add_source(Rc::clone(ring) as Rc<dyn weir_runtime::EventSource>);
            device.sources.push(source.map_err(|error| open_error(path, "opened", error.to_string()))?);
        }
        Ok(device)
    }
}

/// The error of a system without io_uring.
pub(crate) fn no_ring(path: &Path, error: &io::Error) -> MediaError {
    let reason = format!(
        "io_uring is not available: {error}; it needs Linux 5.11 or newer and a seccomp profile that allows it"
    );
    open_error(path, "opened", reason)
}

/// A ring that looks for completions at the device's queues; `None` where the device or the file system can't.
fn polled_ring(file: &Rc<OwnedFd>, wanted: Features) -> Option<Rc<Ring<FileWire>>> {
    // It knows no flush.
    let wire = FileWire { may_flush: false };
    let ring = Rc::new(Ring::new(wire, file, wanted).ok()?);
    // Kernels tell of a file that can't be polled only when it is read.
    let read = ring.start(file, Transfer::Read { offset: 0, buffer: DmaBuf::new(BLOCK) });
    ring.drain(HUNG).ok()?;
    read.taken().filter(Result::is_ok).map(|_| ring)
}

/// Whether the device, or the one below the file, has queues for polling.
fn polls(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let is_block = metadata.file_type().is_block_device();
    let device = if is_block { metadata.rdev() } else { metadata.dev() };
    let folder = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // A partition has no queue of its own.
    ["queue", "../queue"].into_iter().any(|queue| queue_polls(&Path::new(&folder).join(queue)))
}

/// Whether the queue of this folder in sysfs can be polled.
pub(crate) fn queue_polls(queue: &Path) -> bool {
    std::fs::read_to_string(queue.join("io_poll")).is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
impl FileDevice {
    /// One turn of its rings, as the executor does it.
    pub(crate) fn poll_once(&self) {
        weir_runtime::EventSource::poll(self.inner.transfers());
    }

    pub(crate) fn with_ring(&self, look: impl FnOnce(&Ring<FileWire>)) {
        look(self.inner.transfers());
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        for source in self.sources.drain(..) {
            self.inner.handle.remove_source(source);
        }
    }
}

impl core::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FileDevice")
            .field("name", &self.inner.name)
            .field("size", &self.inner.size)
            .finish_non_exhaustive()
    }
}

fn offset_of(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn allocate(file: &File, size: u64) -> io::Result<()> {
    let size = offset_of(size)?;
    // SAFETY: a plain system call on a descriptor that lives through it.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) })
}

/// Makes the name of a new file stable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Locks a file or device against other processes of ours for as long as it is open.
pub(crate) fn lock(path: &Path, file: &File, is_shared: bool) -> Result<(), MediaError> {
    let kind = if is_shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: a plain system call on a descriptor that lives through it.
    check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) }).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EWOULDBLOCK) => MediaError::Busy { device: path.display().to_string() },
            _ => open_error(path, "opened", advice(&error, Doing::opening(is_shared))),
        }
    })
}

fn seek(file: libc::c_int, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = offset_of(offset)?;
    // SAFETY: a plain system call; a bad descriptor gives an error.
    let at = unsafe { libc::lseek(file, offset, whence) };
    u64::try_from(at).map_err(|_| io::Error::last_os_error())
}

fn end_of(file: &File) -> io::Result<u64> {
    seek(file.as_raw_fd(), 0, libc::SEEK_END)
}

/// Begin and end of what a file has at or after `from`; `None`: nothing. The file system may have to ask the device.
fn seek_data(file: &OwnedFd, from: u64) -> io::Result<Option<(u64, u64)>> {
    match seek(file.as_raw_fd(), from, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(file.as_raw_fd(), start, libc::SEEK_HOLE)?))),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The next range of a file at or after `from` that may hold data. The caller bounds the wait.
async fn next_data(file: &RingDevice<FileWire>, from: u64) -> Result<Option<(u64, u64)>, MediaError> {
    if from >= file.size {
        return Ok(None);
    }
    let fail = |error: io::Error| file.error("search", from, 0, &error);
    // A descriptor of its own: the call may last longer than the device.
    let own = file.file.try_clone().map_err(fail)?;
    let found = apart(move || seek_data(&own, from)).await.and_then(|found| found).map_err(fail)?;
    let Some((start, end)) = found else { return Ok(None) };
    let block = BLOCK as u64;
    let (start, end) = (start - start % block, end.next_multiple_of(block).min(file.size));
    Ok((start < end).then_some((start, end)))
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn size(&self) -> u64 {
        self.inner.size
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.inner.write(offset, data, false)
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.inner.write(offset, data, true)
    }

    /// Zeros what the file system has allocated to the file but never written: the first write to such a block takes a
    /// commit of the file system's journal, which makes a synchronous write more than twice as long.
    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
        let (inner, is_file) = (Rc::clone(&self.inner), self.is_file);
        Box::pin(async move {
            if !is_file || inner.is_read_only || check_transfer(&inner.name, inner.size, offset, len).is_err()
            {
                return Ok(());
            }
            let data = next_data(&inner, offset).await?;
            let end = data.map_or(offset + len, |(start, _)| start.min(offset + len));
            if end <= offset {
                return Ok(());
            }
            // The same memory again and again: as much as the range would take longer to get than to write.
            let zeros = Slice::from(DmaBuf::new(ZEROS));
            let (mut all, mut left) = (Vec::new(), usize::try_from(end - offset).unwrap_or(BLOCK));
            while left > 0 {
                all.extend(zeros.part(0..left.min(ZEROS)));
                left = left.saturating_sub(ZEROS);
            }
            inner.write(offset, all, false).await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        let (inner, is_file) = (Rc::clone(&self.inner), self.is_file);
        Box::pin(async move {
            let read = async |at, buffer| inner.read(at, buffer).await;
            if !is_file {
                return search_device(inner.size, from, read).await;
            }
            let mut at = from;
            while let Some((start, end)) = next_data(&inner, at).await? {
                let found = search(start, end, &read).await?;
                if found.is_some() {
                    return Ok(found);
                }
                at = end;
            }
            Ok(None)
        })
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn register(&self, pool: &DmaPool) {
        self.inner.transfers().register(pool);
    }

    fn features(&self) -> Features {
        self.inner.transfers().features()
    }

    fn wear(&self) -> Option<Wear> {
        self.watcher.as_ref().and_then(Watcher::wear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_about_what_has_failed() {
        let of = |code, doing| advice(&io::Error::from_raw_os_error(code), doing);
        assert!(of(libc::EACCES, Doing::Open).ends_with("needs read and write permission"));
        assert!(of(libc::EACCES, Doing::Read).ends_with("the user needs read permission"));
        assert!(of(libc::EACCES, Doing::Create).ends_with("write to the directory"));
        for doing in [Doing::Open, Doing::Read, Doing::Create] {
            let denied = of(libc::EPERM, doing);
            assert!(!denied.contains("write permission") && denied.contains("immutable"), "{denied}");
        }
        let denied = of(libc::EPERM, Doing::Transfer);
        assert!(!denied.contains("permission") && denied.contains("the kernel refuses"), "{denied}");
        assert!(of(libc::EINVAL, Doing::Open).contains("O_DIRECT"));
        assert!(!of(libc::EINVAL, Doing::Transfer).contains("O_DIRECT"));
    }
}
