//! NVMe namespaces without the kernel's block layer: `IORING_OP_URING_CMD` on a generic character device such as
//! `/dev/ng0n1` (Linux 6.0).
//!
//! A read, write or flush is one command of the drive, put into an entry of 128 bytes of the ring; transfers longer than
//! the drive takes at once are cut. Capacity and block size come from Identify.

mod command;
mod watcher;

use crate::buffer::{DmaBuf, Slice};
use crate::device::{BLOCK, Device, DeviceStats, IoFuture, MediaError};
use crate::features::Features;
use crate::file::{Doing, advice, lock, no_ring, open_error, queue_polls};
use crate::open_deadline::OpenDeadline;
use crate::pool::DmaPool;
use crate::ring_device::RingDevice;
use crate::search::search_device;
use crate::uring::{Ring, Transfer};
use crate::wear::Wear;
pub use command::{Identity, identity};
use command::{NvmeWire, identify};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
pub(crate) use watcher::Watcher;
use weir_runtime::{EventSource, Handle, SourceId};

/// Share of the time that is left, as its divisor, for a way of reading the first block that there is another one for.
const PROBE_SHARE: u32 = 4;

/// A namespace of an NVMe drive.
pub struct NvmeDevice {
    inner: Rc<RingDevice<NvmeWire>>,
    identity: Identity,
    source: SourceId,
    watcher: Watcher,
    /// Claims the block device of the same namespace, so that it can't be mounted, and isn't.
    _claim: Option<File>,
}

/// Whether this is the character device of an NVMe namespace.
#[must_use]
pub fn is_namespace(path: &Path) -> bool {
    let is_character = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device());
    is_character && number_of(path).is_some()
}

/// `0n1` of `/dev/ng0n1`, also behind symbolic links.
fn number_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let number = path.file_name()?.to_str()?.strip_prefix("ng")?;
    let (drive, space) = number.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(drive) && is_number(space)).then(|| number.to_owned())
}

/// Claims the block device of the namespace, where there is one.
fn claim(path: &Path) -> Result<Option<File>, MediaError> {
    let Some(number) = number_of(path) else { return Ok(None) };
    let block = PathBuf::from(format!("/dev/nvme{number}"));
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(&block) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err(MediaError::Busy { device: block.display().to_string() })
        }
        // Containers often have the character device only. A process without access to the block device can't claim it.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            Ok(None)
        }
        Err(error) => Err(open_error(&block, "claimed", advice(&error, Doing::Read))),
    }
}

/// Opens the namespace's character device, and claims its block device.
fn open_namespace(path: &Path, is_read_only: bool) -> Result<(File, Option<File>), MediaError> {
    let mut options = OpenOptions::new();
    options.read(true).write(!is_read_only).custom_flags(libc::O_CLOEXEC);
    let doing = Doing::opening(is_read_only);
    let file = options.open(path).map_err(|error| open_error(path, "opened", advice(&error, doing)))?;
    lock(path, &file, is_read_only)?;
    Ok((file, if is_read_only { None } else { claim(path)? }))
}

impl NvmeDevice {
    /// Opens a namespace for this process alone.
    ///
    /// # Errors
    /// When it can't be opened, isn't usable, or another process uses it.
    pub fn open(handle: &Handle, path: &Path) -> Result<Self, MediaError> {
        Self::open_with(handle, path, Features::DEFAULT)
    }

    /// Like [`NvmeDevice::open`], using of io_uring no more than `wanted`.
    ///
    /// # Errors
    /// As [`NvmeDevice::open`].
    pub fn open_with(handle: &Handle, path: &Path, wanted: Features) -> Result<Self, MediaError> {
        Self::start(handle, path, wanted, false)
    }

    /// Opens a namespace for reading only, side by side with other readers.
    ///
    /// # Errors
    /// As [`NvmeDevice::open`].
    pub fn open_read_only(handle: &Handle, path: &Path) -> Result<Self, MediaError> {
        Self::start(handle, path, Features::DEFAULT, true)
    }

    fn start(handle: &Handle, path: &Path, wanted: Features, is_read_only: bool) -> Result<Self, MediaError> {
        let refuse = |reason: String| open_error(path, "opened", reason);
        let patience = OpenDeadline::with(path);
        let named = path.to_owned();
        let (file, claim) = patience.wait("the open", move || open_namespace(&named, is_read_only))??;
        let asked = patience.wait("Identify", move || identify(&file).map(|identity| (file, identity)))?;
        let (file, identity) = asked.map_err(refuse)?;
        let size = identity.blocks.checked_shl(identity.block_shift.into()).unwrap_or(0);
        let size = size - size % BLOCK as u64;
        if size == 0 {
            return Err(refuse("it is smaller than one block".to_owned()));
        }
        let number = number_of(path).unwrap_or_default();
        let polls = queue_polls(Path::new(&format!("/sys/block/nvme{number}/queue")));
        let file = Rc::new(OwnedFd::from(file));
        let ring = probed_ring(
            &identity,
            &file,
            if polls { wanted } else { wanted.without(Features::POLLED) },
            &patience,
        )
        .map_err(|error| match error.raw_os_error() {
            _ if error.kind() == io::ErrorKind::TimedOut => patience.over("a read of its first block"),
            Some(libc::ENOSYS | libc::EPERM) => no_ring(path, &error),
            _ => refuse(format!(
                "its first block can't be read by a passed-through command: {error}; this needs Linux 6.0, \
                     and CAP_SYS_ADMIN before 6.2. The block device /dev/nvme{number} works without"
            )),
        })?;
        let source = handle
            .add_source(Rc::clone(&ring) as Rc<dyn EventSource>)
            .map_err(|error| refuse(error.to_string()))?;
        let name = path.display().to_string();
        let handle = handle.clone();
        let inner = Rc::new(RingDevice { handle, name, file, size, is_read_only, ring, polled: None });
        let watcher = Watcher::start(path);
        Ok(Self { inner, identity, source, watcher, _claim: claim })
    }

    /// Model and serial number of the drive.
    #[must_use]
    pub fn drive(&self) -> (&str, &str) {
        (&self.identity.model, &self.identity.serial)
    }

    /// Bytes of a logical block of the namespace.
    #[must_use]
    pub fn logical_block(&self) -> u32 {
        1 << self.identity.block_shift
    }
}

/// A ring with the features that have proven themselves in reading the first block: kernels tell only then whether they
/// pass commands through, and whether they take registered memory for them or can poll. What doesn't answer is left out like
/// what fails.
fn probed_ring(
    identity: &Identity,
    file: &Rc<OwnedFd>,
    wanted: Features,
    patience: &OpenDeadline,
) -> io::Result<Rc<Ring<NvmeWire>>> {
    let new = |features| {
        let wire = NvmeWire {
            namespace: identity.namespace,
            block_shift: identity.block_shift,
            bytes_max: identity.bytes_max,
        };
        Ring::new(wire, file, features)
    };
    let unpolled = wanted.without(Features::POLLED);
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    let last_resort = unpolled.without(Features::BUFFERS);
    for features in [wanted, unpolled, last_resort] {
        let ring = new(features)?;
        let pool = DmaPool::new(BLOCK);
        ring.register(&pool);
        let buffer = pool.try_take(BLOCK).unwrap_or_else(|| DmaBuf::new(BLOCK));
        let read = ring.start(file, Transfer::Read { offset: 0, buffer });
        let limit = if features == last_resort { patience.left() } else { patience.left() / PROBE_SHARE };
        match ring.drain(limit).and_then(|()| read.taken().unwrap_or(Ok(()))) {
            Err(error) => last = error,
            // Another one, that doesn't keep the probe's memory.
            Ok(()) => return new(features).map(Rc::new),
        }
    }
    Err(last)
}

impl Drop for NvmeDevice {
    fn drop(&mut self) {
        self.inner.handle.remove_source(self.source);
    }
}

impl core::fmt::Debug for NvmeDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NvmeDevice")
            .field("name", &self.inner.name)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Device for NvmeDevice {
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
        // Without a volatile cache every write is stable, and drives may take the flag amiss.
        self.inner.write(offset, data, self.identity.has_cache)
    }

    fn prepare(&self, _: u64, _: u64) -> IoFuture<()> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn flush(&self) -> IoFuture<()> {
        if !self.identity.has_cache {
            return Box::pin(core::future::ready(Ok(())));
        }
        self.inner.flush()
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        let inner = Rc::clone(&self.inner);
        Box::pin(async move {
            search_device(inner.size, from, async |at, buffer| inner.read(at, buffer).await).await
        })
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn register(&self, pool: &DmaPool) {
        self.inner.ring.register(pool);
    }

    fn features(&self) -> Features {
        self.inner.ring.features()
    }

    fn wear(&self) -> Option<Wear> {
        self.watcher.wear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_character_devices_named_as_namespaces_are_taken_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = |name: &str, to: &Path| {
            let path = folder.path().join(name);
            std::os::unix::fs::symlink(to, &path).expect("a link");
            path
        };
        let file = folder.path().join("ng0n1");
        std::fs::write(&file, b"").expect("a file");
        assert!(!is_namespace(&file), "a file");
        assert!(!is_namespace(&link("ng7n1", Path::new("/dev/null"))), "another character device");
        assert_eq!(number_of(&link("disk", &file)).as_deref(), Some("0n1"));
        for name in ["ng0", "ng0nx", "ngn1", "nvme0n1"] {
            let path = folder.path().join(name);
            std::fs::write(&path, b"").expect("a file");
            assert_eq!(number_of(&path), None, "{name}");
        }
        let executor = weir_runtime::real::Executor::new().expect("an executor");
        let refused = NvmeDevice::open(&executor.handle(), Path::new("/dev/null")).expect_err("no drive");
        assert!(refused.to_string().contains("no NVMe namespace"), "{refused}");
    }
}
