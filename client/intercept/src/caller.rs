//! Who makes a call, and what the permissions of an inode let such a process do.
//!
//! The judgement is the kernel's (`generic_permission`), on what the engines say of the inode. It has to be right only where it says
//! yes: whatever it refuses goes through the kernel, which judges by itself.

use weir_dfs::{Kind, Record};

/// Groups of a process, at most: one with more goes through the kernel.
const GROUPS: usize = 64;

/// Reading, writing, and searching or running, as in each digit of a mode.
pub const READ: u32 = 4;
/// As [`READ`].
pub const WRITE: u32 = 2;
/// As [`READ`].
pub const SEARCH: u32 = 1;

/// Bits of capabilities (linux/capability.h).
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;

/// Version of the structures of `capget` with 64 bits.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// A process as the kernel judges it on files.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    groups: [u32; GROUPS],
    count: usize,
    capabilities: u64,
}

/// The header that `capget` takes.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    process: i32,
}

/// What `capget` fills, the lower bits first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn capabilities() -> Option<u64> {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, process: 0 };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: both have the layout that this version of the call takes, and are there for its time.
    let failed = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0;
    (!failed).then(|| u64::from(data[0].effective) | (u64::from(data[1].effective) << 32))
}

impl Caller {
    /// The calling thread. `None`: one that the kernel has to judge.
    pub fn now() -> Option<Self> {
        // SAFETY: no user and no group has this number, so that nothing changes; the calls return what is in force.
        let (uid, gid) = unsafe { (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)) };
        let mut caller = Self {
            uid: uid.cast_unsigned(),
            gid: gid.cast_unsigned(),
            groups: [0; GROUPS],
            count: 0,
            capabilities: capabilities()?,
        };
        if caller.is_almighty() {
            return Some(caller);
        }
        let room = i32::try_from(GROUPS).ok()?;
        // SAFETY: the place holds as many groups as it is said to.
        let count = unsafe { libc::getgroups(room, caller.groups.as_mut_ptr()) };
        caller.count = usize::try_from(count).ok()?;
        Some(caller)
    }

    /// The calling thread as `access` judges it: by its real user, who has capabilities only as the superuser. `None`: one that the
    /// kernel has to judge, as a process with several users is.
    pub fn of_access() -> Option<Self> {
        let caller = Self::now()?;
        // SAFETY: they have no preconditions.
        let real = unsafe { (libc::getuid(), libc::getgid()) };
        let capabilities = if caller.uid == 0 { caller.capabilities } else { 0 };
        if real != (caller.uid, caller.gid) {
            return None;
        }
        if capabilities == caller.capabilities || !caller.is_almighty() {
            return Some(Self { capabilities, ..caller });
        }
        // Its groups were not asked for.
        None
    }

    /// Whether it may search and change each directory.
    pub const fn is_almighty(&self) -> bool {
        self.capabilities & DAC_OVERRIDE != 0
    }

    /// Whether it may do with an inode what is wanted.
    pub fn may(&self, record: &Record, wanted: u32) -> bool {
        let is_directory = record.kind == Kind::Directory;
        let can_run = is_directory || wanted & SEARCH == 0 || record.mode & 0o111 != 0;
        if self.is_almighty() && can_run {
            return true;
        }
        let only_reads = wanted & WRITE == 0 && (is_directory || wanted & SEARCH == 0);
        if self.capabilities & DAC_READ_SEARCH != 0 && only_reads {
            return true;
        }
        let has_group = self.gid == record.gid || self.groups[..self.count].contains(&record.gid);
        let granted = if self.uid == record.uid {
            record.mode >> 6
        } else if has_group {
            record.mode >> 3
        } else {
            record.mode
        };
        granted & wanted == wanted
    }
}
