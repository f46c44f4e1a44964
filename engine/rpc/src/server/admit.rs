//! Admission of requests, and what a client is told whose request is refused.

use super::sender::Sender;
use super::{Phase, Served, Server};
use crate::clients::{Admission, RunningCounts};
use crate::metrics::add;
use crate::wire::{Caller, Header, Kind};
use core::time::Duration;
use weir_proto::Der;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::Instant;

/// Pause that is asked of clients while the server starts, which takes some milliseconds.
const STARTING_PAUSE: Duration = Duration::from_millis(10);

/// Pause that is asked of clients while the server stops. The next one takes some hundred milliseconds to start.
pub(super) const STOPPING_PAUSE: Duration = Duration::from_millis(50);

/// How many requests a client may have running for each free place. One client alone gets four fifths of the
/// room. When N clients want all of it they leave 1/(4N + 1), so that another client finds a place up to N = 224
/// (by default).
const SHARE: usize = 4;

/// How many requests a tenant may have running for each free place, where tenants are told apart. A process may
/// be any number of clients; those of one tenant leave a quarter to others.
const TENANT_SHARE: usize = 3;

impl Server {
    /// When to ask again for an operation that is not served now, and why. `None`: it is never served.
    pub(super) fn absence(&self) -> Option<(Duration, &'static str)> {
        match self.phase.get() {
            Phase::Serving => None,
            Phase::Starting => Some((STARTING_PAUSE, "the server is starting")),
            Phase::Draining | Phase::Ending => Some((STOPPING_PAUSE, "the server is stopping")),
        }
    }

    /// Whether this request may begin: a server that stops finishes only what it has begun.
    fn begins(&self, opcode: u16, urgent: bool) -> bool {
        match self.phase.get() {
            Phase::Starting | Phase::Serving => true,
            Phase::Draining => urgent,
            Phase::Ending => opcode == REQUEST_WITHDRAW,
        }
    }

    /// Whether there is room for a request of a client with `others` running. The fewer places are free, the
    /// fewer its client and its tenant may have. Clients that want all places never get them, and a first
    /// request finds one.
    #[inline(always)]
    fn has_room(&self, header: &Header, others: RunningCounts) -> bool {
        let running = self.context.running();
        let max = self.context.config.running_max;
        let is_tenants = self.is_of_tenant(header);
        let fits = |free: usize| !is_tenants || others.tenant < TENANT_SHARE * free;
        let free = self.context.free_places();
        let comes_again = header.resend && others.client == 0 && running < max && fits(max - running);
        others.client < self.context.config.running_per_client
            && (others.client < SHARE * free && fits(free) || comes_again)
    }

    /// Decides whether to execute a request. If so, returns how many others run; if not, it has been answered.
    #[inline(always)]
    pub(super) fn admit(
        &self,
        header: &Header,
        from: Sender,
        Served { urgent, again, .. }: &Served,
        (now, deadline): (Instant, Instant),
    ) -> Option<RunningCounts> {
        let caller = from.caller;
        // By the client's clock the deadline may be later.
        let until = deadline + Duration::from_nanos(SKEW_MAX_NS);
        let mut clients = self.context.clients.borrow_mut();
        let (mut admission, others) = clients.begin_among(caller, header.request, header.acked, until);
        if *again && admission == Admission::Forgotten {
            admission = clients.begin_again(caller, header.request);
        }
        drop(clients);
        if admission == Admission::New && !self.begins(header.opcode, *urgent) {
            self.context.clients.borrow_mut().forget(caller, header.request);
            if self.may_answer(caller, now) {
                self.refuse(from, header, Der::OVERLOAD_RETRY, STOPPING_PAUSE, "the server is stopping");
            }
            return None;
        }
        if admission == Admission::New {
            let within = others.client < self.context.config.running_per_client;
            if *urgent && within || self.has_room(header, others) {
                return Some(others);
            }
            self.context.clients.borrow_mut().forget(caller, header.request);
            self.send_away(header, from, others.client, now);
            return None;
        }
        if admission != Admission::Stale && !self.may_answer(caller, now) {
            return None;
        }
        match admission {
            Admission::New => {}
            Admission::Running => {
                add(&self.context.metrics.repeats_running, 1);
                let epoch = self.context.epoch();
                let id = header.request;
                let mut sign = Header::new(Kind::Working, header.version, header.client, id, epoch);
                sign.deadline = self.context.id.bits();
                self.reply(from, sign, &[], self.in_flight());
            }
            Admission::Stale => add(&self.context.metrics.repeats_stale, 1),
            Admission::Forgotten | Admission::Misplaced => {
                add(&self.context.metrics.repeats_forgotten, 1);
                let text = "the request was executed, but its reply is not remembered any more";
                self.refuse(from, header, Der::STALE, Duration::ZERO, text);
            }
            Admission::Finished => {
                add(&self.context.metrics.repeats_answered, 1);
                let clients = self.context.clients.borrow();
                if let Some(finished) = clients.finished(caller, header.request) {
                    self.answer(from, header.request, header.version, false, finished);
                }
            }
        }
        None
    }

    /// Tells a client when to ask again. First requests share one queue; every client with others running has its own,
    /// so that no client waits for another client's flood. A client that exceeds its credits and ignores the pause gets
    /// no answer any more.
    fn send_away(&self, header: &Header, to: Sender, others: usize, now: Instant) {
        add(&self.context.metrics.overloaded, 1);
        let overdrawn = others >= self.context.config.running_per_client;
        add(&self.context.metrics.overdrawn, u64::from(overdrawn));
        let running = self.context.metrics.running.get();
        let pause = if others == 0 {
            self.load.pause(running, now)
        } else {
            let next = |slot: &mut _, busy| self.load.next(slot, (busy, running), now);
            self.context.clients.borrow_mut().stay_away(to.caller, next)
        };
        if overdrawn && pause.is_none() {
            add(&self.context.metrics.ignored, 1);
            return;
        }
        let pause = pause.unwrap_or_else(|| self.load.longest());
        self.refuse(to, header, Der::OVERLOAD_RETRY, pause, "");
    }

    /// Whether a message of this client that has no effect gets an answer. Its allowance bounds how many do.
    pub(super) fn may_answer(&self, caller: Caller, now: Instant) -> bool {
        let may = self.context.clients.borrow_mut().may_answer(caller, now);
        add(&self.context.metrics.ignored, u64::from(!may));
        may
    }
}
