//! Whether a request is executed, and what its client is told if not.

use super::sender::Sender;
use super::{Served, Server, Standing};
use crate::clients::{Admission, Others};
use crate::metrics::add;
use crate::wire::{Caller, Header, Kind};
use core::time::Duration;
use weir_proto::Der;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::Instant;

/// When to come again to a server that is starting: opening takes some milliseconds.
const STARTING_PAUSE: Duration = Duration::from_millis(10);

/// When to come again to a server that is stopping: the next one takes some hundred milliseconds to start.
pub(super) const STOPPING_PAUSE: Duration = Duration::from_millis(50);

/// How many requests a client may have running for each place that is still free. One client alone then gets four fifths of
/// the room, and one that comes when N others want all of it finds a place up to N = 224 (by default): they leave
/// 1/(4N + 1) of it.
const SHARE: usize = 4;

/// How many requests a tenant may have running for each place that is still free, where tenants are told apart: its clients, of which
/// a process may be as many as it likes, leave a quarter to others.
const TENANT_SHARE: usize = 3;

impl Server {
    /// When to come again for what is not served at the moment, and why; `None`: it never is.
    pub(super) fn absence(&self) -> Option<(Duration, &'static str)> {
        match self.standing.get() {
            Standing::Serving => None,
            Standing::Starting => Some((STARTING_PAUSE, "the server is starting")),
            Standing::Draining | Standing::Ending => Some((STOPPING_PAUSE, "the server is stopping")),
        }
    }

    /// Whether a request that nobody has begun is begun at all: a server that stops finishes only what it has.
    fn begins(&self, opcode: u16, urgent: bool) -> bool {
        match self.standing.get() {
            Standing::Starting | Standing::Serving => true,
            Standing::Draining => urgent,
            Standing::Ending => opcode == REQUEST_WITHDRAW,
        }
    }

    /// Whether there is room for a request of a client that has `others` under way. The fewer places are free, the fewer it
    /// may have, and its tenant: so clients that want all of them never get them, and who comes with a first request finds one.
    #[inline(always)]
    fn has_room(&self, header: &Header, others: Others) -> bool {
        let running = usize::try_from(self.context.metrics.running.get()).unwrap_or(usize::MAX);
        let max = self.context.config.running_max;
        let is_tenants = self.is_of_tenant(header);
        let fits = |free: usize| !is_tenants || others.tenant < TENANT_SHARE * free;
        let free = self.context.free_places();
        let comes_again = header.resend && others.client == 0 && running < max && fits(max - running);
        others.client < self.context.config.running_per_client
            && (others.client < SHARE * free && fits(free) || comes_again)
    }

    /// Whether to execute a request now, with how many others of its client; if not, it has been answered as far as it can
    /// be.
    #[inline(always)]
    pub(super) fn admit(
        &self,
        header: &Header,
        from: Sender,
        Served { urgent, again, .. }: &Served,
        (now, deadline): (Instant, Instant),
    ) -> Option<Others> {
        let caller = from.caller;
        // By the client's clock it may be later.
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
                self.reply(from, sign, &[], self.company());
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

    /// Tells a client when to come again. One that has nothing under way queues with all others like it, the others each for
    /// themselves, so that none is sent away for longer because of somebody else's crowd. Who breaks its credits and
    /// doesn't heed that hears nothing any more.
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

    /// Whether a message of this client that brings about nothing gets an answer: not, where it had more of those than any
    /// client asks for.
    pub(super) fn may_answer(&self, caller: Caller, now: Instant) -> bool {
        let may = self.context.clients.borrow_mut().may_answer(caller, now);
        add(&self.context.metrics.ignored, u64::from(!may));
        may
    }
}
