//! Fragments in flight, and clients that make no progress.

use crate::context::Context;
use crate::transfer::{AccessHandle, FRAGMENT_TIME, Fragment, MovingFragment};
use crate::wire::Caller;
use std::collections::VecDeque;
use weir_fabric::Gone;

/// After this many stalls, and each time again, the connections of a stuck transfer's client are inspected.
const STALLS_LOOK: u32 = 10;

/// After this many stalls the client's process has to respond, too, if others need what the client holds.
const STALLS_HANG: u32 = 30;

/// After this many stalls the client's connections are closed if others need what it holds, even if it responds:
/// a fragment then takes less than 20 kB/s.
const STALLS_MAX: u32 = 60;

/// Counts waits of [`FRAGMENT_TIME`] without a finished fragment.
#[derive(Default)]
pub(crate) struct Stalls(u32);

impl Stalls {
    /// Counts one more. If the client's host is gone, its connections are closed and its transfers end. Otherwise the
    /// system would retry for a quarter of an hour and hold the transfer's memory as long. A process that hangs may
    /// continue, and one that responds may be slow: they keep memory and slots while no other client needs them.
    pub(crate) fn count(&mut self, context: &Context, caller: Caller) {
        self.0 += 1;
        if !self.0.is_multiple_of(STALLS_LOOK) {
            return;
        }
        let are_wanted = || context.is_full() || context.payloads.others_wait(caller);
        let gone = if self.0 < STALLS_HANG || !are_wanted() {
            Gone::Host
        } else if self.0 < STALLS_MAX {
            Gone::Process
        } else {
            Gone::Progress
        };
        let peer = context.clients.borrow_mut().look_for(caller, gone, context.rt.now());
        if let Some(peer) = peer {
            context.endpoint.hang_up_if_gone(peer, gone);
        }
    }

    /// A stuck transfer has ended, with any outcome. Other transfers with the client have its host probed again.
    pub(crate) fn end(context: &Context, caller: Caller) {
        let peer = context.clients.borrow_mut().stop_asking(caller);
        if let Some(peer) = peer {
            context.endpoint.stop_asking(peer);
        }
    }

    /// Whether the client's connections may have been closed. What fails then is not tried again.
    pub(crate) fn are_many(&self) -> bool {
        self.0 >= STALLS_LOOK
    }
}

/// The fragments in flight of one transfer. When it is dropped, the remaining ones run to their end in the
/// background, because they use the client's memory until then.
pub(crate) struct FragmentsInFlight<'a> {
    /// All but the newest, oldest first. From the second fragment on it is a list that an earlier transfer has
    /// left.
    older: VecDeque<MovingFragment>,
    newest: Option<MovingFragment>,
    context: &'a Context,
    /// The handle of the request's accesses, if it has one.
    accesses: Option<&'a AccessHandle>,
}

impl<'a> FragmentsInFlight<'a> {
    /// None yet.
    pub(crate) fn new(context: &'a Context, accesses: Option<&'a AccessHandle>) -> Self {
        Self { older: VecDeque::new(), newest: None, context, accesses }
    }

    pub(crate) fn add(&mut self, moving: MovingFragment) {
        if let Some(accesses) = self.accesses {
            accesses.begin();
        }
        let Some(before) = self.newest.replace(moving) else { return };
        if self.older.capacity() == 0 {
            self.older = self.context.spare_moving.take().unwrap_or_default();
        }
        self.older.push_back(before);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    pub(crate) fn oldest(&mut self) -> Option<&mut MovingFragment> {
        self.older.front_mut().or(self.newest.as_mut())
    }

    /// No fragment progresses: others get the transfer slots. What paces this client's transfers stays taken.
    pub(crate) fn give_up_slots(&mut self) {
        for moving in self.older.iter_mut().chain(&mut self.newest) {
            moving.slot = None;
        }
    }

    /// Takes the oldest fragment, which has ended.
    pub(crate) fn take(&mut self) -> Option<Fragment> {
        let moving = self.older.pop_front().or_else(|| self.newest.take())?;
        if let Some(accesses) = self.accesses {
            accesses.end();
        }
        Some(moving.fragment)
    }
}

impl Drop for FragmentsInFlight<'_> {
    fn drop(&mut self) {
        if self.is_empty() {
            if self.older.capacity() > 0 {
                self.context.spare_moving.put(core::mem::take(&mut self.older));
            }
            return;
        }
        let Some(accesses) = self.accesses.cloned() else { return };
        let mut moving = core::mem::take(&mut self.older);
        moving.extend(self.newest.take());
        let (rt, weak, caller) = (self.context.rt.clone(), self.context.weak(), accesses.caller());
        self.context.rt.spawn(async move {
            let patience = rt.now() + FRAGMENT_TIME;
            while let Some(MovingFragment { mut transfer, slot, _leave, .. }) = moving.pop_front() {
                // The outcome is not needed any more.
                if rt.timeout_at(patience, &mut transfer).await.is_err() {
                    drop(slot);
                    for moving in &mut moving {
                        moving.slot = None;
                    }
                    let mut stalls = Stalls::default();
                    while rt.timeout(FRAGMENT_TIME, &mut transfer).await.is_err() {
                        weak.upgrade().inspect(|context| stalls.count(context, caller));
                    }
                }
                accesses.end();
            }
            weak.upgrade().inspect(|context| Stalls::end(context, caller));
        });
    }
}
