//! What a descriptor is, found out from the kernel and the mount.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weir_dfs::direct::{self, DirectFile, DirectMount, FILE_BYTES, MountId};

use crate::ask::ask;
use crate::descriptors::{self, Identity, Known, Target, reason};
use crate::original::{Errno, Inside};
use crate::service::{self, Reached, Service};

/// Files that the program has mapped: what they hold in memory is the kernel's; and files with a failed operation. Of those
/// that don't fit here nothing is known; then all files go through the kernel.
static MAPPED: [[AtomicU64; 2]; 256] = [const { [const { AtomicU64::new(0) }; 2] }; 256];

/// How many there are, or more.
static MAPPED_COUNT: AtomicUsize = AtomicUsize::new(0);

fn is_mapped(identity: Identity) -> bool {
    let count = MAPPED_COUNT.load(Ordering::SeqCst);
    let is = |place: &[AtomicU64; 2]| {
        let [device, inode] = place.each_ref().map(|word| word.load(Ordering::SeqCst));
        (device, inode) == (identity.device, identity.inode)
    };
    count > MAPPED.len() || MAPPED[..count].iter().any(is)
}

fn note_mapped(identity: Identity) {
    if is_mapped(identity) {
        return;
    }
    if let Some([device, inode]) = MAPPED.get(MAPPED_COUNT.fetch_add(1, Ordering::SeqCst)) {
        device.store(identity.device, Ordering::SeqCst);
        inode.store(identity.inode, Ordering::SeqCst);
    }
}

/// What the kernel knows a descriptor's file by, if it is a regular one on a file system without a device. The file
/// system isn't asked.
pub fn identity(fd: c_int) -> Option<Identity> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let wanted = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: the path is an empty C string, and the place holds what the call writes.
    let failed = unsafe { libc::statx(fd, c"".as_ptr(), flags, wanted, found.as_mut_ptr()) };
    if failed != 0 {
        return None;
    }
    // SAFETY: zeroed above, which is a value of it, and written by the call.
    let found = unsafe { found.assume_init() };
    let is_candidate = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG && found.stx_dev_major == 0;
    is_candidate.then_some(Identity { device: u64::from(found.stx_dev_minor), inode: found.stx_ino })
}

/// What is known of a descriptor now: what was known before, where that is still so, or what is found out.
pub fn current(fd: c_int) -> Option<Known> {
    let known = descriptors::known(fd)?;
    match known {
        Known::Foreign | Known::Kernel(_) => Some(known),
        // A child that shares the memory of its parent leaves what that knows as it is.
        _ if service::is_others() => None,
        Known::Direct(target) if target.life != service::life() || identity(fd) != Some(target.identity) => {
            Some(find_out(fd))
        }
        Known::Direct(target) => {
            let is_direct = !is_mapped(target.identity);
            Some(if is_direct { known } else { through_kernel(fd, reason::MAPPED) })
        }
        Known::Nothing => Some(find_out(fd)),
    }
}

fn through_kernel(fd: c_int, reason: u16) -> Known {
    descriptors::note(fd, Known::Kernel(reason));
    Known::Kernel(reason)
}

/// An operation has failed: from now on the file goes through the kernel, whichever descriptor of it.
pub fn give_up(fd: c_int, identity: Identity) {
    note_mapped(identity);
    through_kernel(fd, reason::FAILED);
}

fn find_out(fd: c_int) -> Known {
    let _inside = Inside::enter();
    let known = match begin(fd) {
        Ok(target) => Known::Direct(target),
        Err(Refusal::Foreign) => Known::Foreign,
        Err(Refusal::Kernel(reason)) => Known::Kernel(reason),
    };
    descriptors::note(fd, known);
    known
}

/// Why a file isn't accessed directly.
enum Refusal {
    /// It is no file of a mount.
    Foreign,
    /// For this reason.
    Kernel(u16),
}

impl From<weir_dfs::Error> for Refusal {
    fn from(_: weir_dfs::Error) -> Self {
        // Another file system may give the number of a request another meaning.
        Self::Foreign
    }
}

/// A request to a mount has failed.
fn refusal(errno: i32) -> Refusal {
    let is_mounts = matches!(errno, libc::EPERM | libc::EBUSY | libc::EIO | libc::ENOSPC | libc::EDQUOT);
    u16::try_from(errno).ok().filter(|_| is_mounts).map_or(Refusal::Foreign, Refusal::Kernel)
}

fn begin(fd: c_int) -> Result<Target, Refusal> {
    let identity = identity(fd).ok_or(Refusal::Foreign)?;
    if is_mapped(identity) {
        return Err(Refusal::Kernel(reason::MAPPED));
    }
    // First it is found out whether the engines can be reached, so that the mount goes on gathering if not.
    let mut mount = mount(fd, identity.device, None)?;
    let mut answer = [0; FILE_BYTES];
    ask(fd, direct::BEGIN, &raw mut answer).map_err(refusal)?;
    let file = DirectFile::from_answer(&answer)?;
    if mount.id != file.mount {
        // Another process serves the mount now, or another mount has the number of the device.
        mount = self::mount(fd, identity.device, Some(file.mount))?;
    }
    let Reached { place, life, .. } = mount;
    Ok(Target { mount: place, life, identity, oid: file.oid, chunk_size: file.chunk_size })
}

/// The mount of a device, or the one with this identity; it is asked what it is if this process doesn't know it.
fn mount(fd: c_int, device: u64, wanted: Option<MountId>) -> Result<Reached, Refusal> {
    let known = Service::running().and_then(|service| service.known_mount(device, wanted));
    if let Some(known) = known {
        return known.ok_or(Refusal::Kernel(reason::UNREACHABLE));
    }
    let described = DirectMount::collect(|piece| ask(fd, direct::MOUNT, &raw mut *piece).map_err(refusal))?;
    let service = Service::start().ok_or(Refusal::Kernel(reason::NO_SERVICE))?;
    service.enter_mount(device, described).ok_or(Refusal::Kernel(reason::UNREACHABLE))
}

/// The program maps a file: from now on the kernel has its content.
pub fn map(fd: c_int) {
    let Some(identity) = identity(fd).filter(|_| !service::is_others()) else { return };
    let _errno = Errno::keep();
    if ask(fd, direct::MAP, null_mut::<c_void>()).is_err() {
        return;
    }
    note_mapped(identity);
    descriptors::note(fd, Known::Kernel(reason::MAPPED));
    refresh(fd);
}

/// Has the kernel drop pages of a file that are out of date: it asks for the attributes, by which it tells.
pub fn refresh(fd: c_int) {
    let _errno = Errno::keep();
    let mut found = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: the place holds what the call writes. What it finds is the kernel's to use.
    unsafe { libc::fstat64(fd, found.as_mut_ptr()) };
}
