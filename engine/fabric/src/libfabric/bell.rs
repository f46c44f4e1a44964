//! A doorbell for providers without a wait descriptor (`shm`).
//!
//! Each endpoint has a page in `/dev/shm` with one flag, "asleep", and a datagram socket beside it. Before it sleeps
//! the owner sets the flag, looks at its queue once more, and sleeps on the socket. A sender that has posted something
//! looks at the flag, and only if it is set clears it and sends a byte. So a busy pair never makes a system call.
//!
//! Names tell which process of which pid namespace made them, so that what a killed process left can be removed.
#![expect(unsafe_code, reason = "a flag in memory that is shared with other processes")]

use crate::FabricError;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Where POSIX shared memory lives on Linux.
const DIRECTORY: &str = "/dev/shm";

/// First part of every name here.
const PREFIX: &str = "weir-";

/// First part of the names of files that stand for ports.
const PORT_PREFIX: &str = "weir-port-";

/// Length of the shared page.
const PAGE: usize = 4096;

/// A page shared with other processes; only its first four bytes are used.
struct Page {
    address: *mut core::ffi::c_void,
}

impl Page {
    fn map(file: &OwnedFd) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of one page of a file that was made that long.
        let address =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), PAGE, protection, MapFlags::SHARED, file, 0)? };
        Ok(Self { address })
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: the mapping is page-aligned and lives as long as `self`; every process uses it atomically.
        unsafe { &*self.address.cast::<AtomicU32>() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; failure would mean that it is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.address, PAGE) };
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::RDWR, Mode::RUSR | Mode::WUSR)?)
}

fn bell_path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.bell"))
}

fn socket_path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.sock"))
}

fn port_path(port: u16) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{PORT_PREFIX}{}-{port}", user()))
}

/// The user of this process, as far as file names need it.
fn user() -> u32 {
    fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid())
}

/// The pid namespace of this process, as its number.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// A name that no other endpoint has or had: `weir-<pid namespace>-<pid>-<random>`.
pub(super) fn fresh_name(random: u64) -> String {
    format!("{PREFIX}{}-{}-{random:016x}", namespace(), std::process::id())
}

/// Whether this is a well-formed name of an endpoint. Names come from the network, and become file names.
pub(super) fn is_name(name: &str) -> bool {
    parse(name).is_some()
}

fn parse(name: &str) -> Option<(u64, u32)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let namespace = parts.next()?.parse().ok()?;
    let pid = parts.next()?.parse().ok()?;
    let random = parts.next()?;
    let hex = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hex && parts.next().is_none()).then_some((namespace, pid))
}

/// Where the process that made this name shows as long as it lives. Other namespaces' processes can't be seen.
pub(super) fn process(name: &str) -> Option<PathBuf> {
    let (space, pid) = parse(name)?;
    (space == namespace()).then(|| PathBuf::from(format!("/proc/{pid}")))
}

/// Whether this process made this name.
pub(super) fn is_own(name: &str) -> bool {
    parse(name) == Some((namespace(), std::process::id()))
}

/// Whether the process that made this name is gone. Other namespaces' processes can't be judged.
pub(super) fn is_dead(name: &str) -> bool {
    process(name).is_some_and(|process| !process.exists())
}

/// Removes what endpoints of killed processes left in shared memory.
pub(super) fn sweep() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(file) = file.to_str() else { continue };
        // A port's file has the name in it, all others have it in theirs.
        let holder =
            file.starts_with(PORT_PREFIX).then(|| fs::read_to_string(entry.path()).unwrap_or_default());
        let name = holder.as_deref().unwrap_or(file);
        let name = [".bell", ".sock", ".port"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        if is_dead(name) {
            // Somebody else may sweep at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The endpoint's own doorbell.
pub(super) struct Bell {
    name: String,
    port: Option<u16>,
    page: Page,
    socket: UnixDatagram,
}

fn failed(what: &str, error: &io::Error) -> FabricError {
    FabricError::Provider {
        call: "doorbell",
        code: -i64::from(error.raw_os_error().unwrap_or(0)),
        reason: format!("{what}: {error}"),
        provider: "shm".to_owned(),
    }
}

impl Bell {
    /// Makes the bell of a name from [`fresh_name`].
    pub(super) fn new(name: &str) -> Result<Self, FabricError> {
        let file = open(&bell_path(name), OFlags::CREATE | OFlags::EXCL)
            .map_err(|error| failed("can't create the bell in /dev/shm", &error))?;
        let sized = rustix::fs::ftruncate(&file, PAGE as u64).map_err(io::Error::from);
        let page =
            sized.and_then(|()| Page::map(&file)).map_err(|error| failed("can't map the bell", &error))?;
        let socket = UnixDatagram::bind(socket_path(name))
            .map_err(|error| failed("can't bind the bell's socket", &error))?;
        socket.set_nonblocking(true).map_err(|error| failed("can't set up the bell's socket", &error))?;
        Ok(Self { name: name.to_owned(), port: None, page, socket })
    }

    /// Makes the endpoint findable by a port on this node.
    pub(super) fn listen(&mut self, port: u16) -> Result<(), FabricError> {
        let path = port_path(port);
        if let Some(holder) = lookup(port).filter(|holder| !is_dead(holder)) {
            let error = io::Error::new(io::ErrorKind::AddrInUse, format!("{holder} listens there"));
            return Err(failed(&format!("shm port {port} is in use"), &error));
        }
        let scratch = Path::new(DIRECTORY).join(format!("{}.port", self.name));
        fs::write(&scratch, &self.name)
            .and_then(|()| fs::rename(&scratch, &path))
            .map_err(|error| failed(&format!("can't write {}", path.display()), &error))?;
        self.port = Some(port);
        Ok(())
    }

    /// The descriptor that becomes readable when the bell rings.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// From here on senders ring. The owner has to look at its queue once more before it sleeps.
    pub(super) fn arm(&self) {
        self.page.asleep().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Awake: senders need not ring. Takes the rings that came.
    pub(super) fn disarm(&self) {
        self.page.asleep().store(0, Ordering::SeqCst);
        while self.socket.recv(&mut [0u8; 8]).is_ok() {}
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        if let Some(port) = self.port
            && lookup(port).as_deref() == Some(&self.name)
        {
            let _ = fs::remove_file(port_path(port));
        }
        let _ = fs::remove_file(bell_path(&self.name));
        let _ = fs::remove_file(socket_path(&self.name));
    }
}

/// The name of the endpoint that listens at a port of this node.
pub(super) fn lookup(port: u16) -> Option<String> {
    let name = fs::read_to_string(port_path(port)).ok()?;
    is_name(&name).then_some(name)
}

/// Another endpoint's doorbell.
pub(super) struct Ringer {
    page: Page,
    socket: UnixDatagram,
    path: PathBuf,
}

impl Ringer {
    /// The bell of an endpoint on this node.
    pub(super) fn new(name: &str) -> Result<Self, FabricError> {
        let file = open(&bell_path(name), OFlags::empty())
            .map_err(|error| failed("the peer's bell is gone; the peer has ended", &error))?;
        let long = rustix::fs::fstat(&file)
            .is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) >= PAGE as u64);
        if !long {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "it is too short");
            return Err(failed("the peer's bell can't be used", &error));
        }
        let page = Page::map(&file).map_err(|error| failed("can't map the peer's bell", &error))?;
        let socket = UnixDatagram::unbound().map_err(|error| failed("can't make a socket", &error))?;
        socket.set_nonblocking(true).map_err(|error| failed("can't set up a socket", &error))?;
        Ok(Self { page, socket, path: socket_path(name) })
    }

    /// Wakes the owner if it sleeps; called after something was posted for it. Returns whether it rang.
    pub(super) fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.page.asleep().load(Ordering::SeqCst) == 0 || self.page.asleep().swap(0, Ordering::SeqCst) == 0
        {
            return false;
        }
        // A full socket has rung already, a missing one has no owner.
        let _ = self.socket.send_to(&[1], &self.path);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of an endpoint of a process that has ended.
    fn dead_name() -> String {
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let name = format!("{PREFIX}{}-{}-{:016x}", namespace(), child.id(), 7);
        child.wait().expect("it ends");
        name
    }

    #[test]
    fn names_that_could_be_paths_are_none() {
        assert!(is_name(&fresh_name(u64::MAX)));
        for name in [
            "",
            "weir-",
            "weir-1-2-3",
            "weir-1-2-../../etc/passwd0",
            "weir-1-2-0123456789abcdef-",
            "../weir-1",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn what_dead_processes_left_is_swept_and_what_living_ones_have_stays() {
        let (dead, mut own) = (dead_name(), Bell::new(&fresh_name(11)).expect("a bell"));
        own.listen(9).expect("a port nobody uses");
        let leftovers =
            [bell_path(&dead), socket_path(&dead), Path::new(DIRECTORY).join(&dead), port_path(8)];
        for file in &leftovers {
            fs::write(file, &dead).expect("writable");
        }
        sweep();
        assert!(leftovers.iter().all(|file| !file.exists()));
        assert_eq!(lookup(9).as_ref(), Some(&own.name));
        let (bell, port) = (bell_path(&own.name), port_path(9));
        drop(own);
        assert!(!bell.exists() && !port.exists());
    }

    #[test]
    fn a_bell_rings_only_when_its_owner_sleeps() {
        let bell = Bell::new(&fresh_name(12)).expect("a bell");
        let ringer = Ringer::new(&bell.name).expect("its bell");
        assert!(!ringer.ring());
        bell.arm();
        assert!(ringer.ring());
        assert!(!ringer.ring(), "once is enough");
        let mut poll = [rustix::event::PollFd::from_borrowed_fd(bell.fd(), rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut poll, None), Ok(1));
        bell.disarm();
        assert!(!ringer.ring());
    }
}
