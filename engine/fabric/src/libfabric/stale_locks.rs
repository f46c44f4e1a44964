//! Locks that dead processes hold.
//!
//! Where an endpoint's receive queue is in shared memory, its senders take buffers there under a lock. A sender that is
//! killed meanwhile leaves the lock held, and every thread that needs it spins in the provider forever: the endpoint's
//! thread and every other sender's. Only another thread can help. This one looks at the locks twice a second.
//!
//! A lock that is held at each look of a whole second is stale: it is held for nanoseconds, and a thread that
//! lost its processor meanwhile gets it back within that time. The lock is then broken. The endpoint learns of
//! that, discards what it was about to take, and is reopened.
#![expect(unsafe_code, reason = "a lock of the provider in memory that is shared with other processes")]

use super::raw::Raw;
use super::shared::{PAGE, Shared};
use super::{doorbell, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::fs::OFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Time between two looks at all locks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time between two looks at a held lock.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// How often in a row a lock is seen held before it counts as stale: for a second. A busy endpoint's lock is held for some
/// hundredths of the time, so that chance is excluded.
const SAMPLES: u32 = 100;

/// The same for locks of other processes, which break their own while they live.
const SAMPLES_OTHERS: u32 = 500;

/// The owner of such memory.
enum Owner {
    /// An endpoint of this process.
    Own,
    /// Another process, visible by this path while it lives.
    Process(PathBuf),
    /// An invisible process.
    Hidden,
}

/// The lock in an endpoint's memory into which senders put messages.
pub(super) struct LockRegion {
    head: Shared,
    lock: usize,
    owner: Owner,
    broken: AtomicBool,
    /// The address of the provider's list of peers in this process, read once; 0: it isn't known. The list is in memory
    /// that other processes of this user may write to. They are trusted that far: they may read and write all of this
    /// process's memory anyway.
    peers: usize,
}

impl LockRegion {
    /// The memory of an endpoint of this process. Its lock is watched until this is dropped. `None`: its layout is unknown.
    ///
    /// # Errors
    /// When another process's lease on the file would delay the provider, too.
    pub(super) fn of_own(file: &str) -> io::Result<Option<Arc<Self>>> {
        Self::open(file, Owner::Own)
    }

    /// The memory of a peer. A peer in this process watches its own.
    ///
    /// # Errors
    /// As [`LockRegion::of_own`].
    pub(super) fn of_peer(file: &str, peer: &str) -> io::Result<Option<Arc<Self>>> {
        let owner = doorbell::process(peer).map_or(Owner::Hidden, Owner::Process);
        if doorbell::is_own(peer) { Ok(None) } else { Self::open(file, owner) }
    }

    fn open(file: &str, owner: Owner) -> io::Result<Option<Arc<Self>>> {
        match doorbell::open(&Path::new(doorbell::DIRECTORY).join(file), OFlags::empty()) {
            Ok(file) => Ok(Self::of(&file, owner)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn of(file: &OwnedFd, owner: Owner) -> Option<Arc<Self>> {
        let length = u64::try_from(rustix::fs::fstat(file).ok()?.st_size).ok()?;
        let head = if length >= PAGE as u64 { Shared::map(file, PAGE).ok()? } else { return None };
        // SAFETY: a mapped page, which is longer than the head.
        let lock = usize::try_from(unsafe { sys::weir_region_lock(head.start(), length) }).ok()?;
        let is_own = matches!(owner, Owner::Own);
        // SAFETY: as above.
        let peers = if is_own { unsafe { sys::weir_region_peers(head.start()) } } else { core::ptr::null() };
        let peers = peers.expose_provenance();
        let region = Arc::new(Self { head, lock, owner, broken: AtomicBool::new(false), peers });
        look_after(&region);
        Some(region)
    }

    /// Whether the lock was broken, so that the memory's content can't be trusted.
    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// How many peers the endpoint of this memory has, with those that only it has met. `None`: unknown.
    pub(super) fn peers(&self, endpoint: &Raw) -> Option<usize> {
        if self.peers == 0 || endpoint.is_stopped() {
            return None;
        }
        let peers: *const c_void = core::ptr::with_exposed_provenance(self.peers);
        // SAFETY: the list is there until the endpoint is stopped, or opened anew, which has another region then; and only the
        // thread that drives the endpoint, which this is, changes it.
        usize::try_from(unsafe { sys::weir_peers_count(peers) }).ok()
    }

    fn lock(&self) -> *mut c_void {
        self.head.start().wrapping_byte_add(self.lock)
    }

    fn is_held(&self) -> bool {
        // SAFETY: within the page, which is mapped.
        unsafe { sys::weir_lock_held(self.lock()) != 0 }
    }

    /// How often in a row the lock is seen held before it counts as stale. `None`: its owner decides.
    fn samples(&self) -> Option<u32> {
        match &self.owner {
            Owner::Own => Some(SAMPLES),
            Owner::Process(process) => (!process.exists()).then_some(SAMPLES),
            Owner::Hidden => Some(SAMPLES_OTHERS),
        }
    }

    /// Breaks the lock if it is stale.
    fn look(&self) {
        if !self.is_held() {
            return;
        }
        let Some(samples) = self.samples() else { return };
        for _ in 0..samples {
            std::thread::sleep(SAMPLE_EVERY);
            if !self.is_held() {
                return;
            }
        }
        // The thread that then leaves the provider knows.
        self.broken.store(true, Ordering::Release);
        // SAFETY: within the page, which is mapped. The holder of the lock is gone.
        unsafe { sys::weir_lock_break(self.lock()) };
        tracing::warn!("a process ended with the lock of an endpoint's shared memory; the lock was broken");
    }
}

/// The watched locks, and whether the thread runs.
struct LockWatch {
    regions: Vec<Weak<LockRegion>>,
    runs: bool,
}

static LOCK_WATCH: Mutex<LockWatch> = Mutex::new(LockWatch { regions: Vec::new(), runs: false });

fn look_after(region: &Arc<LockRegion>) {
    let mut stale_locks = LOCK_WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    stale_locks.regions.push(Arc::downgrade(region));
    if !stale_locks.runs {
        let thread = std::thread::Builder::new().name("fabric-guard".to_owned()).spawn(run);
        stale_locks.runs = thread.is_ok();
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to look after locks in shared memory");
        }
    }
}

/// Watches all locks until there are none.
fn run() {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let regions: Vec<Arc<LockRegion>> = {
            let mut stale_locks = LOCK_WATCH.lock().unwrap_or_else(PoisonError::into_inner);
            stale_locks.regions.retain(|region| region.strong_count() > 0);
            stale_locks.runs = !stale_locks.regions.is_empty();
            if !stale_locks.runs {
                return;
            }
            stale_locks.regions.iter().filter_map(Weak::upgrade).collect()
        };
        for region in regions {
            region.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    /// Where the lock is.
    const LOCK: usize = 56 / 4;

    /// The name of an endpoint of another process.
    fn name_of(process: u32) -> String {
        doorbell::fresh_name(21).replace(&format!("-{}-", id()), &format!("-{process}-"))
    }

    /// The beginning of memory of this format that says that it is of this length.
    fn head(format: u8, said: usize) -> Vec<u8> {
        let mut head = vec![0; 2 * PAGE];
        head[0] = format;
        head[72..80].copy_from_slice(&u64::try_from(said).expect("small").to_le_bytes());
        head
    }

    /// The memory of an endpoint of this name, whose lock is held.
    fn locked(name: &str) -> (Arc<LockRegion>, PathBuf) {
        // Others remove what dead processes have left.
        let file = format!("guard-{name}");
        let path = Path::new(doorbell::DIRECTORY).join(&file);
        std::fs::write(&path, head(8, 2 * PAGE)).expect("writable");
        let region = LockRegion::of_peer(&file, name).expect("no lease").expect("it has a lock");
        // SAFETY: within the page, which is mapped.
        unsafe { sys::weir_lock_break(region.lock()) };
        let lock = region.head.word(LOCK);
        assert!(!region.is_held());
        // What means "open" differs between processors.
        lock.store(1 - lock.load(Ordering::SeqCst), Ordering::SeqCst);
        assert!(region.is_held());
        (region, path)
    }

    #[test]
    fn the_lock_of_a_dead_process_is_broken_and_a_living_ones_left_to_it() {
        let mut child = Command::new("true").spawn().expect("a process");
        child.wait().expect("it ends");
        let (dead, dead_path) = locked(&name_of(child.id()));
        let (living, living_path) = locked(&name_of(std::os::unix::process::parent_id()));
        dead.look();
        living.look();
        assert_eq!((dead.is_held(), dead.is_broken()), (false, true));
        assert_eq!((living.is_held(), living.is_broken()), (true, false));
        for path in [dead_path, living_path] {
            std::fs::remove_file(path).expect("it is there");
        }
    }

    #[test]
    fn memory_of_another_format_or_length_has_no_lock() {
        let path = Path::new(doorbell::DIRECTORY).join(format!("guard-format-{}", id()));
        for (format, said) in [(10, 2 * PAGE), (8, PAGE), (8, 0)] {
            std::fs::write(&path, head(format, said)).expect("writable");
            let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
            assert!(LockRegion::open(file, Owner::Hidden).expect("no lease").is_none(), "{format} {said}");
        }
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn a_link_in_the_place_of_memory_leads_to_no_lock() {
        let [real, link] = ["real", "link"].map(|name| format!("guard-{name}-{}", id()));
        let [real_path, link_path] = [&real, &link].map(|file| Path::new(doorbell::DIRECTORY).join(file));
        std::fs::write(&real_path, head(8, 2 * PAGE)).expect("writable");
        std::os::unix::fs::symlink(&real_path, &link_path).expect("a link");
        let found =
            [&real, &link].map(|file| LockRegion::open(file, Owner::Own).expect("no lease").is_some());
        for path in [real_path, link_path] {
            std::fs::remove_file(path).expect("it is there");
        }
        assert_eq!(found, [true, false]);
    }
}
