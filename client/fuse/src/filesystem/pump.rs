//! The thread that sends gathered writes. Each batch is a task of its own, so that a batch whose engine is away delays
//! no other.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weir_client::Context;
use weir_dfs::{Removed, SetAttributes, UnsentData};
use weir_runtime::sync::Notify;

use super::gathering::Pending;
use super::inodes::Inode;
use super::order::SendScope;
use super::worker::{Fault, Shared};

/// Longest time for which a change waits to be sent.
pub(super) const AGE_MAX: Duration = Duration::from_secs(1);

/// How often the sender looks for changes that have waited long enough.
const SCAN_PAUSE: Duration = Duration::from_millis(250);

/// Work of the sender.
#[derive(Debug)]
pub(super) enum Job {
    /// A file has content that may go.
    Send(Arc<Inode>),
    /// The content of a removed inode, to be freed.
    Reclaim(Removed),
    /// A removed file that is open here, of which other clients are to find out.
    Announce(Arc<Inode>),
}

thread_local! {
    /// Wakes the sender when there is a job.
    static WAKE: RefCell<Notify> = RefCell::new(Notify::new());
}

impl Shared {
    /// Starts the thread that sends what writers have gathered. It ends with the mount.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start_writeback(self: &Arc<Self>) -> std::io::Result<()> {
        let (sender, receiver) = channel();
        let shared = Arc::downgrade(self);
        std::thread::Builder::new().name("writeback".into()).spawn(move || run(&shared, &receiver))?;
        // A second start would be a fault of this program; the first sender goes on.
        let _ = self.writeback.sender.set(sender);
        Ok(())
    }

    /// Hands a job to the sender. It is given back when there is none: it ends only with the mount.
    pub(super) fn hand_over(&self, job: Job) -> Option<Job> {
        let Some(sender) = self.writeback.sender.get() else { return Some(job) };
        if let Err(unsent) = sender.send(job) {
            return Some(unsent.0);
        }
        if let Some(remote) = self.writeback.remote.get() {
            // One that has ended needs no waking.
            let _ = remote.spawn(Box::new(|_| WAKE.with_borrow(Notify::notify_one)));
        }
        None
    }

    fn start(self: &Arc<Self>, context: &Context, jobs: impl Iterator<Item = Job>) {
        let (mut removed, mut open) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Send(inode) => self.send_ready(context, &inode),
                Job::Reclaim(inode) => removed.push(inode),
                Job::Announce(inode) => open.push(inode),
            }
        }
        if !open.is_empty() {
            let (shared, own) = (Arc::clone(self), context.clone());
            context.runtime().spawn(async move { shared.announce_now(&own, &open).await });
        }
        if removed.is_empty() {
            return;
        }
        let (shared, own) = (Arc::clone(self), context.clone());
        context.runtime().spawn(async move {
            shared.free(&own, &removed).await;
            shared.note_reclaimed(removed.len());
        });
    }

    /// Sends what may go of a file: whole units, or all that has waited long enough.
    fn send_ready(self: &Arc<Self>, context: &Context, inode: &Arc<Inode>) {
        loop {
            let mut pending = inode.gathering.lock();
            let is_due = pending.due.is_some_and(|end| pending.order.holds_below(end));
            let wanted = if is_due { SendScope::All } else { SendScope::Whole };
            let Some((batch, file)) = pending.take(wanted) else {
                if pending.due.is_some() && !is_due {
                    pending.due = None;
                    if pending.has_free_change(false) {
                        let change = pending.take_change();
                        self.send_change(context, inode, change, &pending);
                    }
                }
                return;
            };
            drop(pending);
            let (shared, inode, own) = (Arc::clone(self), Arc::clone(inode), context.clone());
            context.runtime().spawn(async move {
                let outcome = file.write_runs(&own, &batch.runs).await.map_err(Fault::from);
                shared.arrived(&inode, &batch, &outcome);
                shared.send_ready(&own, &inode);
            });
        }
    }

    /// Sends attributes of a file whose content has arrived.
    fn send_change(
        self: &Arc<Self>,
        context: &Context,
        inode: &Arc<Inode>,
        change: SetAttributes,
        pending: &Pending,
    ) {
        let (shared, inode, own) = (Arc::clone(self), Arc::clone(inode), context.clone());
        let newest = pending.newest;
        context.runtime().spawn(async move {
            let gathered = UnsentData { file: None, runs: &[], change, newest };
            let (_, changed) = shared.write_back(&own, &inode, gathered).await;
            shared.changed(&inode, &changed);
            shared.send_ready(&own, &inode);
        });
    }

    /// Sends changes that have waited long enough, and counts what waits for engines that are away.
    fn send_due(self: &Arc<Self>, context: &Context) {
        let mut stalled = 0;
        for inode in self.writeback.waiting() {
            let mut pending = inode.gathering.lock();
            if pending.is_stalled() {
                stalled += pending.order.unsent();
            }
            if is_due(&pending) {
                pending.due = Some(pending.order.end());
                // What comes from now on has its own time; attributes that have to wait for content are looked at again.
                pending.since = pending.change.changes_record().then(Instant::now);
            }
            // What had to wait for a batch of another thread is looked at again.
            if pending.due.is_none() {
                continue;
            }
            drop(pending);
            self.send_ready(context, &inode);
        }
        self.writeback.note_stalled(stalled);
    }
}

fn is_due(pending: &Pending) -> bool {
    pending.since.is_some_and(|since| since.elapsed() >= AGE_MAX)
}

/// Does the sender's jobs until the mount is gone.
fn run(shared: &Weak<Shared>, jobs: &Receiver<Job>) {
    // A context takes memory: there is none before there is something to send.
    let first = loop {
        match jobs.recv_timeout(SCAN_PAUSE) {
            Ok(job) => break Some(job),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(shared) = shared.upgrade() else { return };
                if shared.writeback.waiting().iter().any(|inode| is_due(&inode.gathering.lock())) {
                    break None;
                }
            }
        }
    };
    let context = loop {
        let Some(strong) = shared.upgrade() else { return };
        match strong.with_context(|context| Ok(context.clone())) {
            Ok(context) => break context,
            Err(fault) => tracing::warn!(errno = fault.errno(), "nothing can be sent yet"),
        }
        drop(strong);
        std::thread::sleep(AGE_MAX);
    };
    context.block_on(pump(shared, &context, jobs, first));
}

async fn pump(shared: &Weak<Shared>, context: &Context, jobs: &Receiver<Job>, mut first: Option<Job>) {
    if let (Some(shared), Some(remote)) = (shared.upgrade(), context.remote()) {
        // Only this thread sets it.
        let _ = shared.writeback.remote.set(remote);
    }
    let wake = WAKE.with_borrow(Clone::clone);
    let mut scanned = Instant::now();
    loop {
        let Some(strong) = shared.upgrade() else { return };
        strong.start(context, first.take().into_iter().chain(jobs.try_iter()));
        if scanned.elapsed() >= SCAN_PAUSE {
            strong.send_due(context);
            scanned = Instant::now();
        }
        drop(strong);
        let _ = context.runtime().timeout(SCAN_PAUSE, wake.notified()).await;
    }
}
