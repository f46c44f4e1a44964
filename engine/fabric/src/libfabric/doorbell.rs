//! A doorbell for providers without a wait descriptor (`shm`).
//!
//! Each endpoint has a page in `/dev/shm` with one flag, "asleep", and a datagram socket beside it. Before it sleeps the
//! owner sets the flag, looks at its queue once more, and sleeps on the socket. A sender that has posted something reads the
//! flag, and only if it is set clears it and sends a byte: a busy pair makes no system call.
//!
//! An endpoint that is reopened keeps its name and its address. Each generation has a provider's name and a doorbell of its
//! own. The page of an old generation says that its owner has moved, so that senders look for the new one.
//!
//! Names tell which process of which pid namespace made them, so that what a killed process left can be removed. Whether a
//! process of another namespace lives shows in the lock on its doorbell, which the kernel releases when the process ends.
//! Forked children hold it, too: a peer may count as alive for too long, never as dead too soon.

use super::channel::{self, Offer};
use super::shared::{PAGE, Shared};
use super::stale_locks::LockRegion;
use crate::FabricError;
use crate::naming::port_file;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// Where POSIX shared memory lives on Linux.
pub(super) const DIRECTORY: &str = "/dev/shm";

/// First part of every name here.
const PREFIX: &str = "weir-";

/// First part of the names of files that stand for ports.
const PORT_PREFIX: &str = "weir-port-";

/// The word of the shared page that tells what its owner does.
pub(super) const STATE: usize = 0;

/// The word that tells which generation of its owner's endpoint it is of.
pub(super) const GENERATION: usize = 1;

/// The word that counts the channels that the owner was offered.
const OFFERS: usize = 2;

/// The word that tells which form of channels the owner takes; 0: none.
pub(super) const CHANNELS: usize = 3;

/// The word that tells whether the owner has a lock on the page's file for as long as it lives.
pub(super) const LOCK: usize = 4;

/// It holds the lock. Doorbells of earlier releases say 0, and count as in use, because that can't be seen from another
/// namespace. An entry that stays too long does less harm than one that is taken from its user.
pub(super) const LOCKED: u32 = 1;

/// Generations whose locks are kept: opening a page by its name takes less time than so many reopenings.
const LOCKS_MAX: usize = 4;

/// Age at which a file of an invisible process is removed if its lock is free. The owner of a younger file may be about
/// to take the lock. Or the file is a trial of the provider's abilities, which takes no lock.
const SETTLED: Duration = Duration::from_mins(1);

/// Offers that wait to be answered, at most: as many as the socket holds.
const OFFERS_MAX: usize = 64;

/// The owner is awake and needs no ring.
pub(super) const AWAKE: u32 = 0;

/// The owner sleeps, or is about to.
pub(super) const ASLEEP: u32 = 1;

/// The owner has reopened its endpoint and has another doorbell, or has closed it.
pub(super) const MOVED: u32 = 2;

/// Opens a file in this folder, where every user may make files. Links are not followed. A lease, which could delay
/// this process for most of a minute, is an error.
pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?)
}

pub(super) fn page_path(name: &str) -> PathBuf {
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
pub(super) fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// Where the next generation's doorbell is made.
pub(super) fn draft_path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.next"))
}

/// The provider's name of a generation of an endpoint.
pub(super) fn provider_name(name: &str, generation: u32) -> String {
    if generation == 0 { name.to_owned() } else { format!("{name}.{generation}") }
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
    // The kernel says 0 for an invisible process.
    let pid = parts.next()?.parse().ok().filter(|pid| *pid != 0)?;
    let random = parts.next()?;
    let hex = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hex && parts.next().is_none()).then_some((namespace, pid))
}

/// Where the process that made this name is visible while it lives. Processes of other namespaces are invisible.
pub(super) fn process(name: &str) -> Option<PathBuf> {
    let (space, pid) = parse(name)?;
    (space == namespace()).then(|| PathBuf::from(format!("/proc/{pid}")))
}

/// Whether this process, by its number in this namespace (0: invisible), can have made this name. Names of other namespaces
/// don't tell.
pub(super) fn can_be_of(name: &str, process: u32) -> bool {
    parse(name).is_some_and(|(space, pid)| space != namespace() || pid == process)
}

/// Whether this process made this name.
pub(super) fn is_own(name: &str) -> bool {
    parse(name) == Some((namespace(), std::process::id()))
}

/// Whether the process that made this name is known to have ended.
fn has_ended(name: &str) -> bool {
    process(name).is_some_and(|process| !process.exists())
}

/// Whether the process that made this name has ended, or has closed the endpoint. A name that could be this process's own
/// may be of an earlier container: numbers of namespaces are reused, and each begins with the same process.
pub(super) fn is_dead(name: &str) -> bool {
    is_name(name) && (has_ended(name) || is_abandoned(name))
}

/// Whether no process has the doorbell of this name, in whatever namespace.
fn is_abandoned(name: &str) -> bool {
    let file = match open(&page_path(name), OFlags::empty()) {
        Ok(file) => file,
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    };
    let (mut word, at) = ([0; size_of::<u32>()], (LOCK * size_of::<u32>()) as u64);
    let read = rustix::io::pread(&file, &mut word, at);
    let locked = read == Ok(word.len()) && u32::from_ne_bytes(word) == LOCKED;
    // The lock is shared, so that several processes can check at the same time.
    locked && rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Whether a file was made long ago.
fn has_settled(file: &fs::DirEntry) -> bool {
    let made = file.metadata().and_then(|metadata| metadata.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age >= SETTLED))
}

/// Removes what endpoints of killed processes left in shared memory.
pub(super) fn sweep() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(file) = file.to_str() else { continue };
        // A port's file has the name in it, all others have it in theirs.
        let holder =
            file.starts_with(PORT_PREFIX).then(|| port_file::read(&entry.path()).unwrap_or_default());
        let name = holder.as_deref().unwrap_or(file);
        // What the provider makes beside its own file has a number behind the name.
        let name = name.split(['.', '_']).next().unwrap_or(name);
        if has_ended(name) || is_dead(name) && has_settled(&entry) {
            // Another process may sweep at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The endpoint's own doorbell.
pub(super) struct Doorbell {
    name: String,
    port: Option<u16>,
    generation: Cell<u32>,
    /// The last generation that was tried.
    tried: Cell<u32>,
    page: RefCell<Shared>,
    /// Holds the locks of the last generations: a process that has opened a page looks at its lock after it was
    /// replaced.
    locks: RefCell<VecDeque<OwnedFd>>,
    socket: UnixDatagram,
    /// The form of channels that it takes.
    channels: Cell<u32>,
    /// Offers that were counted when it was last looked for them.
    counted: Cell<u32>,
    /// Those that came with rings.
    offers: RefCell<Vec<Offer>>,
}

fn failed(what: &str, error: &io::Error) -> FabricError {
    FabricError::Provider {
        call: "doorbell",
        code: -i64::from(error.raw_os_error().unwrap_or(0)),
        reason: format!("{what}: {error}"),
        provider: "shm".to_owned(),
    }
}

/// Makes the page of a bell in a new file, which is locked until what is returned beside it is closed.
fn make(path: &Path, generation: u32) -> Result<(Shared, OwnedFd), FabricError> {
    let file = open(path, OFlags::CREATE | OFlags::EXCL)
        .map_err(|error| failed("can't create the bell in /dev/shm", &error))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| failed("can't lock the bell", &error.into()))?;
    let sized = rustix::fs::ftruncate(&file, PAGE as u64).map_err(io::Error::from);
    let page = sized
        .and_then(|()| Shared::map(&file, PAGE))
        .map_err(|error| failed("can't map the bell", &error))?;
    page.word(GENERATION).store(generation, Ordering::Relaxed);
    page.word(LOCK).store(LOCKED, Ordering::Release);
    Ok((page, file))
}

impl Doorbell {
    /// Makes the bell of a name from [`fresh_name`].
    pub(super) fn new(name: &str) -> Result<Self, FabricError> {
        let (page, lock) = make(&page_path(name), 0)?;
        let socket = UnixDatagram::bind(socket_path(name))
            .map_err(|error| failed("can't bind the bell's socket", &error))?;
        socket
            .set_nonblocking(true)
            .and_then(|()| Ok(rustix::net::sockopt::set_socket_passcred(&socket, true)?))
            .map_err(|error| failed("can't set up the bell's socket", &error))?;
        let (generation, tried, page) = (Cell::new(0), Cell::new(0), RefCell::new(page));
        let (channels, counted) = (Cell::new(0), Cell::new(0));
        let (locks, offers) = (RefCell::new(VecDeque::from([lock])), RefCell::default());
        let name = name.to_owned();
        Ok(Self { name, port: None, generation, tried, page, locks, socket, channels, counted, offers })
    }

    /// The endpoint's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// From here on peers may offer channels.
    pub(super) fn welcome_channels(&self) {
        self.channels.set(channel::VERSION);
        self.page.borrow().word(CHANNELS).store(channel::VERSION, Ordering::Release);
    }

    /// Whether a channel was offered since offers were last taken.
    #[inline]
    pub(super) fn has_offers(&self) -> bool {
        self.page.borrow().word(OFFERS).load(Ordering::Relaxed) != self.counted.get()
    }

    /// The channels that were offered.
    pub(super) fn take_offers(&self) -> Vec<Offer> {
        self.counted.set(self.page.borrow().word(OFFERS).load(Ordering::Acquire));
        self.empty_socket();
        self.offers.take()
    }

    /// Takes the rings that came, and keeps offers. What comes faster than it is taken waits for the next time.
    fn empty_socket(&self) {
        for _ in 0..OFFERS_MAX {
            let received = channel::receive(&self.socket);
            let mut offers = self.offers.borrow_mut();
            let has_room = offers.len() < OFFERS_MAX;
            offers.extend(received.offer.filter(|_| has_room));
            if !received.more {
                break;
            }
        }
    }

    /// A generation that was not tried before: the provider keeps the name of each, also of one that came to nothing.
    pub(super) fn next_generation(&self) -> u32 {
        self.tried.set(self.tried.get() + 1);
        self.tried.get()
    }

    /// The name of a generation of the endpoint in the provider.
    pub(super) fn provider_name(&self, generation: u32) -> String {
        provider_name(&self.name, generation)
    }

    /// The lock of the endpoint's memory, where it has one that can be looked after.
    pub(super) fn region(&self) -> Option<Arc<LockRegion>> {
        LockRegion::of_own(&self.provider_name(self.generation.get())).ok().flatten()
    }

    /// The endpoint was reopened, as this generation: the old doorbell leads to the new one. Both wake the same socket.
    pub(super) fn advance(&self, generation: u32) -> Result<(), FabricError> {
        let draft = draft_path(&self.name);
        // What an earlier try has left.
        let _ = fs::remove_file(&draft);
        let (page, lock) = make(&draft, generation)?;
        page.word(CHANNELS).store(self.channels.get(), Ordering::Release);
        self.counted.set(0);
        fs::rename(&draft, page_path(&self.name))
            .map_err(|error| failed("can't put the new bell in its place", &error))?;
        let locks = &mut *self.locks.borrow_mut();
        locks.push_back(lock);
        let excess = locks.len().saturating_sub(LOCKS_MAX);
        locks.drain(..excess);
        let before = self.page.replace(page);
        self.generation.set(generation);
        before.word(STATE).store(MOVED, Ordering::SeqCst);
        Ok(())
    }

    /// The endpoint is about to be closed, or gone: no peer may send to it any more. Peers in the same process would
    /// write to memory that is not there.
    pub(super) fn retire(&self) {
        self.page.borrow().word(STATE).store(MOVED, Ordering::SeqCst);
    }

    /// Makes the endpoint findable by a port on this node.
    pub(super) fn listen(&mut self, port: u16) -> Result<(), FabricError> {
        let path = port_path(port);
        if let Some(holder) = lookup(port).filter(|holder| !is_dead(holder)) {
            let error = io::Error::new(io::ErrorKind::AddrInUse, format!("{holder} listens there"));
            return Err(failed(&format!("shm port {port} is in use"), &error));
        }
        let scratch = Path::new(DIRECTORY).join(format!("{}.port", self.name));
        port_file::write(&path, &scratch, &self.name)
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
        self.change(AWAKE, ASLEEP);
        fence(Ordering::SeqCst);
    }

    /// A page which says that the owner has moved or closed stays so for good: a received message may end the endpoint.
    fn change(&self, from: u32, to: u32) {
        let _ = self.page.borrow().word(STATE).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Awake: senders need not ring. Takes the rings that came.
    pub(super) fn disarm(&self) {
        self.change(ASLEEP, AWAKE);
        self.empty_socket();
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        if let Some(port) = self.port
            && lookup(port).as_deref() == Some(&self.name)
        {
            let _ = fs::remove_file(port_path(port));
        }
        let _ = fs::remove_file(page_path(&self.name));
        let _ = fs::remove_file(socket_path(&self.name));
    }
}

/// The name of the endpoint that listens at a port of this node.
pub(super) fn lookup(port: u16) -> Option<String> {
    holder(&port_path(port))
}

/// The name in a port's file.
pub(super) fn holder(path: &Path) -> Option<String> {
    port_file::read(path).filter(|name| is_name(name))
}

/// What became of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RingOutcome {
    /// The owner is awake.
    No,
    /// It was woken.
    Yes,
    /// It has opened its endpoint anew, and what was posted is lost.
    Moved,
}

/// Another endpoint's doorbell.
pub(super) struct PeerDoorbell {
    page: Shared,
    generation: u32,
    socket: UnixDatagram,
    path: PathBuf,
    /// So that its lock is looked after.
    _region: Option<Arc<LockRegion>>,
}

impl PeerDoorbell {
    /// The bell of an endpoint on this node.
    pub(super) fn new(name: &str) -> Result<Self, FabricError> {
        let file = open(&page_path(name), OFlags::empty())
            .map_err(|error| failed("the peer's bell is gone; the peer has ended", &error))?;
        let long = rustix::fs::fstat(&file)
            .is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) >= PAGE as u64);
        if !long {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "it is too short");
            return Err(failed("the peer's bell can't be used", &error));
        }
        let page = Shared::map(&file, PAGE).map_err(|error| failed("can't map the peer's bell", &error))?;
        let socket = UnixDatagram::unbound().map_err(|error| failed("can't make a socket", &error))?;
        socket.set_nonblocking(true).map_err(|error| failed("can't set up a socket", &error))?;
        let generation = page.word(GENERATION).load(Ordering::Relaxed);
        let region = LockRegion::of_peer(&provider_name(name, generation), name)
            .map_err(|error| failed("the peer's memory is held by somebody", &error))?;
        Ok(Self { page, generation, socket, path: socket_path(name), _region: region })
    }

    /// Which generation of the endpoint it is of.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the owner has opened its endpoint anew since.
    pub(super) fn has_moved(&self) -> bool {
        self.page.word(STATE).load(Ordering::SeqCst) == MOVED
    }

    /// Whether the owner takes channels of the form that there is here.
    pub(super) fn takes_channels(&self) -> bool {
        self.page.word(CHANNELS).load(Ordering::Acquire) == channel::VERSION
    }

    /// Offers the owner a channel, in the name of another endpoint.
    pub(super) fn offer(&self, name: &str, memory: &OwnedFd) -> io::Result<()> {
        channel::send(&self.socket, &self.path, name, memory)?;
        self.page.word(OFFERS).fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Wakes the owner if it sleeps; called after something was posted for it.
    pub(super) fn ring(&self) -> RingOutcome {
        fence(Ordering::SeqCst);
        let state = self.page.word(STATE);
        if state.load(Ordering::SeqCst) == AWAKE {
            return RingOutcome::No;
        }
        match state.compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                // A full socket has rung already, a missing one has no owner.
                let _ = self.socket.send_to(&[1], &self.path);
                RingOutcome::Yes
            }
            Err(MOVED) => RingOutcome::Moved,
            Err(_) => RingOutcome::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naming::port_file::tests::lease;

    /// The name of an endpoint of a process that has ended.
    fn dead_name() -> String {
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let name = format!("{PREFIX}{}-{}-{:016x}", namespace(), child.id(), 7);
        child.wait().expect("it ends");
        name
    }

    #[test]
    fn names_that_could_be_paths_or_no_processes_are_none() {
        assert!(is_name(&fresh_name(u64::MAX)));
        for name in [
            "",
            "weir-",
            "weir-1-2-3",
            "weir-1-0-0123456789abcdef",
            "weir-1-2-../../etc/passwd0",
            "weir-1-2-0123456789abcdef-",
            "../weir-1",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn what_dead_processes_left_is_swept_and_what_living_ones_have_stays() {
        let (dead, mut own) = (dead_name(), Doorbell::new(&fresh_name(11)).expect("a bell"));
        own.listen(9).expect("a port nobody uses");
        let leftovers = ["", ".bell", ".sock", ".port", ".next", ".3", "_7"]
            .map(|end| Path::new(DIRECTORY).join(dead.clone() + end));
        let leftovers = [&leftovers[..], &[port_path(8)]].concat();
        for file in &leftovers {
            fs::write(file, &dead).expect("writable");
        }
        sweep();
        assert!(leftovers.iter().all(|file| !file.exists()));
        assert_eq!(lookup(9).as_ref(), Some(&own.name));
        let (doorbell, port) = (page_path(&own.name), port_path(9));
        drop(own);
        assert!(!doorbell.exists() && !port.exists());
    }

    /// Tells this test's own child what it is.
    const CHILD: &str = "WEIR_TEST_BELL_CHILD";

    /// A process of another pid namespace, if the system lets there be one, that has a bell. It ends with its input.
    fn elsewhere() -> Option<(std::process::Child, String)> {
        use std::io::BufRead;
        use std::process::{Command, Stdio};
        let unshare = |program: &Path| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-current-user", "--pid", "--fork"]).arg(program);
            command
        };
        if !unshare(Path::new("true")).status().is_ok_and(|status| status.success()) {
            return None;
        }
        let mut command = unshare(&std::env::current_exe().expect("this program"));
        command.args(["--nocapture", "a_process_of_another_pid_namespace_is_seen"]).env(CHILD, "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
        let mut lines = io::BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        Some((child, lines.find(|line| is_name(line)).expect("it says its name")))
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_seen_to_live_and_to_have_ended() {
        if std::env::var_os(CHILD).is_some() {
            // Namespaces that come after one another may have the same number, and their processes too.
            let random = std::time::UNIX_EPOCH.elapsed().expect("it is later").subsec_nanos();
            let mut doorbell = Doorbell::new(&fresh_name(random.into())).expect("a bell");
            doorbell.listen(7).expect("a port nobody uses");
            doorbell.advance(doorbell.next_generation()).expect("another bell");
            println!("\n{}", doorbell.name);
            io::Read::read_to_end(&mut io::stdin(), &mut Vec::new()).expect("the parent's");
            std::process::exit(0);
        }
        let Some((mut child, name)) = elsewhere() else { return };
        let [doorbell, sock] = [page_path(&name), socket_path(&name)];
        let age = |path: &Path, age: Duration| {
            let file = fs::File::options().write(true).open(path).expect("it is there");
            file.set_modified(std::time::SystemTime::now() - age).expect("its owner's");
        };
        age(&doorbell, SETTLED);
        sweep();
        assert!(process(&name).is_none() && !is_dead(&name) && doorbell.exists());
        let mut own = Doorbell::new(&fresh_name(19)).expect("a bell");
        assert!(own.listen(7).is_err(), "the port is in use");
        // Another thread that opens an endpoint meanwhile sweeps, too.
        age(&doorbell, Duration::ZERO);
        drop(child.stdin.take());
        child.wait().expect("it has ended");
        assert!(is_dead(&name) && doorbell.exists() && sock.exists());
        own.listen(7).expect("nobody listens there any more");
        age(&doorbell, SETTLED);
        sweep();
        assert!(!doorbell.exists() && sock.exists(), "one is old, and one was made just now");
        assert!(is_dead(&name), "it has no bell");
        fs::remove_file(sock).expect("it is there");
    }

    #[test]
    fn a_bell_of_an_earlier_release_counts_as_had_where_its_process_cannot_be_seen() {
        let name = format!("{PREFIX}1-1-{:016x}", 20);
        let page = vec![0; PAGE];
        fs::write(page_path(&name), page).expect("writable");
        let dead = is_dead(&name);
        fs::remove_file(page_path(&name)).expect("it is there");
        assert!(!dead && is_dead(&name) && !is_dead("weir-none"));
    }

    #[test]
    fn a_port_is_free_whose_holder_was_the_same_process_of_a_container_that_was_here_before() {
        let mut before = Doorbell::new(&fresh_name(22)).expect("a bell");
        before.listen(6).expect("a port nobody uses");
        assert!(Doorbell::new(&fresh_name(23)).expect("a bell").listen(6).is_err());
        // What the kernel does when a process is killed.
        rustix::fs::flock(&before.locks.borrow()[0], FlockOperation::Unlock).expect("unlocked");
        assert!(Doorbell::new(&fresh_name(24)).expect("a bell").listen(6).is_ok());
    }

    #[test]
    fn a_bell_is_had_in_all_its_generations_until_its_owner_closes_it() {
        let doorbell = Doorbell::new(&fresh_name(21)).expect("a bell");
        for generation in 1..9 {
            let before = fs::File::open(page_path(&doorbell.name)).expect("it is there");
            doorbell.advance(generation).expect("another bell");
            let free = rustix::fs::flock(&before, FlockOperation::NonBlockingLockShared).is_ok();
            assert!(!free && !is_dead(&doorbell.name), "generation {generation}");
        }
        assert_eq!(doorbell.locks.borrow().len(), LOCKS_MAX, "descriptors are no endless supply");
        let name = doorbell.name.clone();
        drop(doorbell);
        assert!(is_dead(&name));
    }

    #[test]
    fn links_and_leases_of_others_hold_up_nobody_and_lead_nowhere() {
        let (real, name) = (Doorbell::new(&fresh_name(16)).expect("a bell"), fresh_name(17));
        std::os::unix::fs::symlink(page_path(&real.name), page_path(&name)).expect("a link");
        let led = PeerDoorbell::new(&name).is_ok();
        fs::remove_file(page_path(&name)).expect("removed");
        assert!(!led && PeerDoorbell::new(&real.name).is_ok());
        let name = format!("{PREFIX}{}-{}-{:016x}", namespace(), std::os::unix::process::parent_id(), 15);
        let files = [page_path(&name), Path::new(DIRECTORY).join(&name)];
        for file in &files {
            fs::write(file, vec![0; PAGE]).expect("writable");
        }
        let rung = files.each_ref().map(|file| {
            let _lease = lease(file);
            PeerDoorbell::new(&name).err().map(|error| error.to_string())
        });
        for file in files {
            fs::remove_file(file).expect("it is there");
        }
        assert!(rung.iter().flatten().filter(|error| error.contains("os error 11")).count() == 2, "{rung:?}");
    }

    #[test]
    fn a_bell_rings_only_when_its_owner_sleeps() {
        let doorbell = Doorbell::new(&fresh_name(12)).expect("a bell");
        let peer_doorbell = PeerDoorbell::new(&doorbell.name).expect("its bell");
        assert_eq!(peer_doorbell.ring(), RingOutcome::No);
        doorbell.arm();
        assert_eq!(peer_doorbell.ring(), RingOutcome::Yes);
        assert_eq!(peer_doorbell.ring(), RingOutcome::No, "once is enough");
        assert!(has_rung(&doorbell));
        doorbell.disarm();
        assert_eq!(peer_doorbell.ring(), RingOutcome::No);
    }

    #[test]
    fn the_bell_of_an_endpoint_that_ended_while_it_went_to_sleep_says_so_for_good() {
        let doorbell = Doorbell::new(&fresh_name(14)).expect("a bell");
        let peer_doorbell = PeerDoorbell::new(&doorbell.name).expect("its bell");
        doorbell.arm();
        doorbell.retire();
        doorbell.disarm();
        assert_eq!((peer_doorbell.ring(), peer_doorbell.has_moved()), (RingOutcome::Moved, true));
        doorbell.arm();
        assert_eq!((peer_doorbell.ring(), peer_doorbell.has_moved()), (RingOutcome::Moved, true));
    }

    fn has_rung(doorbell: &Doorbell) -> bool {
        let mut poll = [rustix::event::PollFd::from_borrowed_fd(doorbell.fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&rustix::event::Timespec::default())) == Ok(1)
    }

    #[test]
    fn who_rings_the_bell_of_an_endpoint_that_was_opened_anew_learns_of_it_and_finds_the_new_one() {
        let doorbell = Doorbell::new(&fresh_name(13)).expect("a bell");
        let old = PeerDoorbell::new(&doorbell.name).expect("its bell");
        for generation in 1..4 {
            let before = PeerDoorbell::new(&doorbell.name).expect("its bell");
            doorbell.arm();
            doorbell.advance(generation).expect("another bell");
            assert!(old.has_moved() && before.has_moved());
            assert_eq!((old.ring(), before.ring()), (RingOutcome::Moved, RingOutcome::Moved));
            let new = PeerDoorbell::new(&doorbell.name).expect("its bell");
            assert_eq!((new.generation(), new.has_moved()), (generation, false));
            assert!(!has_rung(&doorbell));
            doorbell.arm();
            assert!(new.ring() == RingOutcome::Yes && has_rung(&doorbell));
            doorbell.disarm();
        }
        let path = page_path(&doorbell.name);
        drop(doorbell);
        assert!(!path.exists());
    }
}
