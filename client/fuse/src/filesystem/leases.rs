//! The mount's lease: files that are open here stay until they are closed here, when other clients remove their last
//! name.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_client::{Container, Context, ObjectId};
use weir_dfs::{ClientId, Error, Kind, Lease, TURN};

use super::inodes::Inode;
use super::worker::{Fault, Served, Shared};
use crate::kept::KeptLease;
use crate::process::ProcessRecord;

/// Turns that take the time of one while no other client is there and nothing is open: an idle mount costs three small
/// requests in 15 s, and is far from being given up.
const IDLE_TURNS: u32 = 5;

/// Milliseconds of a turn in the environment, the same for all clients of a container: for tests, which can't wait for a minute.
const TURN_VARIABLE: &str = "WEIR_LEASE_TURN_MS";

/// How long a request of a turn is tried: an engine that is away with some content must not keep the lease from being renewed.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Seconds without a turn, or a try, after which this process must have been stopped: half of those after which others take its
/// lease for that of a dead client.
const LATE: u64 = 30;

/// How long the end of a mount waits for the end of its lease: together with giving back its handles, less than the daemon waits
/// for the process of an unmounted file system.
const END_LIMIT: Duration = Duration::from_secs(1);

/// How long a change of an open file whose name is gone waits until the client that has removed the name enters the
/// file as an orphan: two requests, which the removal itself doesn't wait for. A file that was renamed never becomes
/// one.
const ORPHAN_LIMIT: Duration = Duration::from_secs(2);

/// The first pause between two looks for an orphan, and the longest: each is twice the one before.
const ORPHAN_PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(128));

/// What the mount knows from its lease.
#[derive(Debug, Default)]
pub struct Leased {
    client: OnceLock<ClientId>,
    /// The orphans listed in the last turn, and whether they were open here.
    orphans: Mutex<HashMap<ObjectId, bool>>,
    grants_locks: AtomicBool,
    /// It granted locks, and another client does now.
    is_fenced: AtomicBool,
    /// When the last turn was taken or tried, in seconds since boot.
    tried: AtomicU64,
    turns: Mutex<()>,
    turned: Condvar,
}

impl Leased {
    /// Whether locks of this mount exclude those of all others: the kernel keeps them. A mount for which that isn't so refuses them.
    pub fn grants_locks(&self) -> bool {
        self.grants_locks.load(Ordering::Relaxed)
    }

    /// Takes note of a lease.
    fn has(&self, lease: &Lease) {
        let _ = self.client.set(lease.client());
        self.grants_locks.store(lease.grants_locks(), Ordering::Relaxed);
        self.note_try(false);
    }

    /// Takes note that a turn was taken or tried.
    fn note_try(&self, lost_locks: bool) {
        self.is_fenced.fetch_or(lost_locks, Ordering::Relaxed);
        self.tried.store(seconds_since_boot(), Ordering::Relaxed);
        drop(self.turns.lock().unwrap_or_else(PoisonError::into_inner));
        self.turned.notify_all();
    }

    fn is_late(&self) -> bool {
        seconds_since_boot().saturating_sub(self.tried.load(Ordering::Relaxed)) > LATE
    }

    /// Admits a request, unless another client grants locks now where this mount's kernel has granted some: those may be broken.
    /// After this process was stopped, that has to be found out first.
    ///
    /// # Errors
    /// `EIO`.
    pub fn admit(&self, patience: Duration) -> Served<()> {
        if self.grants_locks() && self.is_late() {
            let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.turned.wait_timeout_while(turns, patience, |()| self.is_late()));
            if self.is_late() {
                return Err(Fault::Errno(libc::EIO));
            }
        }
        if self.is_fenced() { Err(Fault::Errno(libc::EIO)) } else { Ok(()) }
    }

    /// Whether locks that this mount has granted may be broken.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// Whose lease it is; `None` while there is none.
    pub fn client(&self) -> Option<ClientId> {
        self.client.get().copied()
    }

    fn orphans(&self) -> MutexGuard<'_, HashMap<ObjectId, bool>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pause between two turns.
fn turn() -> Duration {
    let millis = std::env::var(TURN_VARIABLE).ok().and_then(|text| text.parse().ok());
    millis.map_or(TURN, Duration::from_millis)
}

/// Also counts while the machine sleeps.
fn seconds_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).expect("the time since the boot is not negative")
}

/// Names a process to clients of the same machine.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Origin {
    boot: String,
    /// A process id has a meaning only within its namespace.
    namespace: String,
    process: ProcessRecord,
}

impl Origin {
    fn own() -> io::Result<Self> {
        let namespace = std::fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { boot, namespace, process: ProcessRecord::current()? })
    }

    /// Whether it names a process of this machine that has ended.
    fn has_ended(&self, own: &Self) -> bool {
        self.boot == own.boot && self.namespace == own.namespace && !self.process.is_alive()
    }
}

/// What a lease says of its process; nothing where that isn't known: then others wait until the lease has expired.
fn told_of(own: Option<&Origin>) -> Vec<u8> {
    own.map_or_else(Vec::new, weir_proto::codec::encode)
}

/// Stores a lease for this process, which claims the right to grant locks if it is to. Leases of processes of this machine that
/// are dead end.
///
/// # Errors
/// As [`Lease::begin`].
pub async fn begin(context: &Context, container: &Container, claims_locks: bool) -> Result<Lease, Error> {
    let own = Origin::own().ok();
    let bytes = told_of(own.as_ref());
    let is_dead = |bytes: &[u8]| match (&own, weir_proto::codec::decode::<Origin>(bytes)) {
        (Some(own), Ok(other)) => other.has_ended(own),
        _ => false,
    };
    let mut lease = Lease::begin(context, container, &bytes, is_dead).await?;
    if claims_locks && !lease.claim_locks(context).await? {
        tracing::warn!("another client grants locks in this container: this mount refuses them");
    }
    Ok(lease)
}

/// The lease of a process that served the mount before and has ended.
///
/// # Errors
/// As [`Lease::resume`].
pub async fn resume(context: &Context, container: &Container, kept: KeptLease) -> Result<Lease, Error> {
    let origin = Origin::own().ok();
    Lease::resume(context, container, &told_of(origin.as_ref()), kept.client, kept.grants_locks).await
}

/// The thread that renews a mount's lease.
#[derive(Debug)]
pub struct LeaseKeeper {
    stop: Sender<()>,
    ended: Receiver<()>,
}

impl LeaseKeeper {
    /// Ends the lease.
    pub fn end(self) {
        drop(self.stop);
        if self.ended.recv_timeout(END_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the mount's lease stays until it expires");
        }
    }
}

impl Shared {
    /// Starts the thread that renews the lease, or gets one, with a handle of the container that allows writing.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start_lease(
        self: &Arc<Self>,
        container: Container,
        lease: Option<Lease>,
    ) -> io::Result<LeaseKeeper> {
        let ((stop, stopped), (ends, ended)) = (channel(), channel());
        let shared = Arc::clone(self);
        if let Some(lease) = &lease {
            self.has_lease(lease);
        }
        let keep = move || {
            let kept = shared.with_context(|context| {
                context.set_deadline(REQUEST_LIMIT);
                shared.keep_lease(context, &container, lease, &stopped);
                Ok(())
            });
            if let Err(fault) = kept {
                tracing::error!(errno = fault.errno(), "the mount's lease can't be renewed");
            }
            let _ = ends.send(());
        };
        std::thread::Builder::new().name("lease".into()).spawn(keep)?;
        Ok(LeaseKeeper { stop, ended })
    }

    fn has_lease(&self, lease: &Lease) {
        self.leased.has(lease);
        if let Some(kept) = &self.kept {
            kept.put_lease(KeptLease { client: lease.client(), grants_locks: lease.grants_locks() });
        }
    }

    /// Takes turns until the mount ends.
    fn keep_lease(
        &self,
        context: &Context,
        container: &Container,
        mut lease: Option<Lease>,
        stopped: &Receiver<()>,
    ) {
        let busy = turn();
        // One that another process had is renewed at once, in case others have given it up.
        let is_new = lease.as_ref().is_none_or(|lease| !lease.is_resumed());
        let mut pause = if is_new { busy } else { Duration::ZERO };
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let Some(lease) = lease.as_mut() else {
                // The kernel was told that this mount refuses locks.
                lease = context.block_on(begin(context, container, false)).ok();
                if let Some(lease) = &lease {
                    self.has_lease(lease);
                }
                continue;
            };
            match context.block_on(lease.take_turn(context, |orphans| self.note_orphans(orphans))) {
                Ok(turn) => {
                    let is_idle = turn.is_alone && self.handles.is_empty();
                    pause = if is_idle { busy * IDLE_TURNS } else { busy };
                    self.leased.note_try(turn.lost_locks);
                    if turn.lost_locks {
                        tracing::error!(
                            "another client grants locks now: mount again; until then all is EIO"
                        );
                    } else if turn.was_lost {
                        tracing::warn!(
                            "others had given this mount up: files that they have removed are lost here"
                        );
                        self.find_lost(context);
                    }
                }
                Err(error) => {
                    self.leased.note_try(false);
                    tracing::debug!(%error, "a turn of the lease");
                }
            }
        }
        if let Some(lease) = lease
            && let Err(error) = context.block_on(lease.end(context))
        {
            tracing::warn!(%error, "the mount's lease stays until it expires");
        }
    }

    /// Takes note of the orphans that there are, and says which are open here. The others may not be opened any more.
    fn note_orphans(&self, all: &[ObjectId]) -> Vec<ObjectId> {
        // Held until all are looked at: an open raises its count first, then asks here.
        let mut orphans = self.leased.orphans();
        *orphans = all.iter().map(|oid| (*oid, self.is_open_nameless(*oid))).collect();
        orphans.iter().filter(|(_, is_open)| **is_open).map(|(oid, _)| *oid).collect()
    }

    /// Whether an inode is open here that has lost its name to another client. Its attributes are kept here from now on.
    fn is_open_nameless(&self, oid: ObjectId) -> bool {
        let Some(inode) = self.inodes.get(weir_dfs::inode_number(oid)) else { return false };
        let mut known = inode.lock();
        if known.opens > 0 && known.nameless.is_none() {
            self.inodes.note_change(&mut known);
            known.nameless = Some(BTreeMap::new());
            self.inodes.keep(&mut known);
        }
        known.opens > 0
    }

    /// Whether an inode that isn't found under its name is an open file, or a directory, that another client has removed. That is
    /// noted. A file that isn't open here never is: its name is looked up again.
    pub(crate) async fn lost_name(&self, context: &Context, inode: &Inode) -> Served<bool> {
        self.lost_name_within(context, inode, ORPHAN_LIMIT).await
    }

    /// As [`Shared::lost_name`], but without waiting for the client that has removed the name just now.
    pub(crate) async fn lost_name_before(&self, context: &Context, inode: &Inode) -> Served<bool> {
        self.lost_name_within(context, inode, Duration::ZERO).await
    }

    async fn lost_name_within(&self, context: &Context, inode: &Inode, patience: Duration) -> Served<bool> {
        let node = inode.node();
        match node.record.kind {
            Kind::Directory => match self.dfs.parent_of(context, node.oid()).await {
                Ok(_) => Ok(false),
                Err(Error::Stale(_)) => {
                    let mut known = inode.lock();
                    self.inodes.note_change(&mut known);
                    known.nameless.get_or_insert_default();
                    self.inodes.keep(&mut known);
                    Ok(true)
                }
                Err(error) => Err(error.into()),
            },
            Kind::File => {
                let is_orphan = self.becomes_orphan(context, inode, patience).await?;
                Ok(is_orphan && self.is_open_nameless(node.oid()))
            }
            _ => Ok(false),
        }
    }

    /// Whether an open file that isn't found under its name is an orphan, or becomes one within that time.
    async fn becomes_orphan(&self, context: &Context, inode: &Inode, patience: Duration) -> Served<bool> {
        let (oid, begun) = (inode.node().oid(), Instant::now());
        let (mut pause, longest) = ORPHAN_PAUSES;
        // Without a lease its content may go at any time.
        while self.leased.client().is_some() {
            let renamed = {
                let known = inode.lock();
                if known.opens == 0 || known.nameless.is_some() {
                    return Ok(known.nameless.is_some());
                }
                known.renamed
            };
            if self.dfs.is_orphan(context, oid).await? {
                return Ok(true);
            }
            if renamed || begun.elapsed() >= patience {
                inode.lock().renamed |= !patience.is_zero();
                break;
            }
            context.runtime().sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        Ok(false)
    }

    /// Finds out which open files are gone, after others had given this mount up.
    fn find_lost(&self, context: &Context) {
        for open in self.handles.files() {
            if matches!(self.ensure_there(context, &open.inode), Err(Fault::Errno(libc::ESTALE))) {
                open.inode.lock().lost = true;
            }
        }
    }

    /// Whether content that may have lost its name may still be opened. The caller has raised its open count.
    pub(crate) fn may_open_nameless(&self, oid: ObjectId) -> bool {
        self.leased.client().is_some() && self.leased.orphans().get(&oid).copied().unwrap_or(true)
    }

    /// Makes sure that an open file which is shorter than it was is so because another client has truncated it: it has
    /// its name, or content. Other clients free the content of a removed file when they take this one for dead.
    pub(crate) fn ensure_there(&self, context: &Context, inode: &Inode) -> Served<()> {
        let (node, is_own) = {
            let known = inode.lock();
            (known.node.clone(), known.removed.is_some() && !known.shared)
        };
        if is_own {
            return Ok(());
        }
        match context.block_on(self.dfs.stat(context, &node)) {
            Err(Error::Stale(_)) => {}
            found => return found.map(drop).map_err(Fault::from),
        }
        match context.block_on(self.dfs.stat_listed(context, &node))?.size {
            0 => Err(Fault::Errno(libc::ESTALE)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_stopped_serves_on_when_its_locks_are_known_to_be_its_own() {
        let leased = Leased::default();
        leased.tried.store(0, Ordering::Relaxed);
        assert!(seconds_since_boot() > LATE, "a machine that has just been started");
        leased.admit(Duration::ZERO).expect("no locks to lose");
        leased.grants_locks.store(true, Ordering::Relaxed);
        assert!(leased.admit(Duration::ZERO).is_err());
        leased.note_try(false);
        leased.admit(Duration::ZERO).expect("its own");
        leased.note_try(true);
        leased.note_try(false);
        assert!(leased.admit(Duration::ZERO).is_err());
    }

    #[test]
    fn only_a_process_of_this_machine_is_known_to_have_ended() {
        let own = Origin::own().expect("linux");
        let of = |process| Origin { process, ..Origin::own().expect("linux") };
        assert!(!of(own.process).has_ended(&own));
        let dead = ProcessRecord { start_ticks: own.process.start_ticks + 1, ..own.process };
        assert!(of(dead).has_ended(&own));
        assert!(!Origin { boot: "another".into(), ..of(dead) }.has_ended(&own));
        assert!(!Origin { namespace: "another".into(), ..of(dead) }.has_ended(&own));
    }
}
