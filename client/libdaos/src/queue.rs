//! Event queues. The operations of one progress at its station.

use core::ffi::c_int;
use core::task::Waker;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use weir_proto::Der;

use crate::boundary::{Start, element, guarded, required};
use crate::event::EventState;
use crate::station::{Station, Told, lock};
use crate::types::{daos_event_t, daos_handle_t};
use crate::{handle, library};

/// Waits for ever.
const WAIT: i64 = -1;

/// Looks once.
const NO_WAIT: i64 = 0;

/// Completed events are taken, whatever else is asked.
const QUERY_COMPLETED: c_int = 1;
const QUERY_WAITING: c_int = 2;

#[derive(Default)]
struct Progress {
    /// Operations under way, by number of their event.
    running: HashMap<u64, Arc<EventState>>,
    /// Complete, not yet taken by a poll.
    completed: VecDeque<Arc<EventState>>,
    /// Who waits for a change.
    waiting: Vec<Waker>,
    ended: bool,
}

/// An event queue.
pub struct Queue {
    progress: Mutex<Progress>,
    station: Arc<Station>,
}

impl Queue {
    /// A queue of a station.
    pub fn new(station: &Arc<Station>) -> Arc<Self> {
        Arc::new(Self { progress: Mutex::default(), station: Arc::clone(station) })
    }

    /// The queue of events that belong to none.
    pub fn common() -> Result<Arc<Self>, Der> {
        library::common_queue()
    }

    /// Starts an operation; its end completes the event.
    pub fn submit(self: &Arc<Self>, event: &Arc<EventState>, start: Start) -> Result<(), Der> {
        {
            let mut progress = lock(&self.progress);
            if progress.ended {
                return Err(Der::NO_HDL);
            }
            progress.running.insert(event.number(), Arc::clone(event));
        }
        let (queue, completed) = (Arc::clone(self), Arc::clone(event));
        let told = Told::new(move |result| queue.complete(&completed, result));
        self.station.launch(start, told)
    }

    /// Runs an operation and tells its return code, `-DER_CANCELED` when the queue ends before.
    pub fn run(&self, start: Start, told: impl FnOnce(c_int) + Send + 'static) -> Result<(), Der> {
        if lock(&self.progress).ended {
            return Err(Der::NO_HDL);
        }
        self.station.launch(start, Told::new(told))
    }

    /// Puts an event that needs no operation among the completed ones.
    pub fn complete(&self, event: &Arc<EventState>, result: c_int) {
        let mut progress = lock(&self.progress);
        progress.running.remove(&event.number());
        // The result is stored before any thread can see that the event is complete.
        for done in event.finish(result) {
            if done.is_top() {
                progress.completed.push_back(done);
            }
        }
        drop(progress);
        self.wake();
    }

    /// Takes an event that will not be polled for any more from the completed ones.
    pub fn withdraw(&self, event: &Arc<EventState>) {
        lock(&self.progress).completed.retain(|other| other.number() != event.number());
    }

    /// Does what can be done now.
    pub fn progress(&self) {
        self.station.progress();
    }

    /// Wakes whoever waits for a change.
    pub fn wake(&self) {
        let waiting = core::mem::take(&mut lock(&self.progress).waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` gives something, at most until `timeout` microseconds have passed.
    fn wait<T>(&self, timeout: i64, mut ready: impl FnMut(&mut Progress) -> Option<T>) -> Option<T> {
        let found = ready(&mut lock(&self.progress));
        if found.is_some() {
            return found;
        }
        if timeout == NO_WAIT {
            self.progress();
            return ready(&mut lock(&self.progress));
        }
        // What no clock can say is for ever.
        let until = u64::try_from(timeout).ok().map(Duration::from_micros);
        self.wait_until(until.and_then(|wait| Instant::now().checked_add(wait)), ready)
    }

    /// Drives the station until `ready` gives something, at most until a moment. [`Self::wake`] has it asked again.
    fn wait_until<T>(
        &self,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut Progress) -> Option<T>,
    ) -> Option<T> {
        let mut last: Option<Waker> = None;
        let found = self.station.wait(until, |waker| {
            let mut progress = lock(&self.progress);
            let found = ready(&mut progress);
            if found.is_none() && !progress.waiting.iter().any(|other| other.will_wake(waker)) {
                progress.waiting.push(waker.clone());
                last = Some(waker.clone());
            }
            found
        });
        if let Some(last) = last {
            lock(&self.progress).waiting.retain(|other| !other.will_wake(&last));
        }
        found
    }

    /// Drives the station until something gives a value that is no part of the queue, at most until a moment.
    pub fn wait_for_other<T>(
        &self,
        until: Option<Instant>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.wait_until(until, |_| ready())
    }

    /// Waits for one event; whether it is complete.
    pub fn wait_for(&self, event: &EventState, timeout: i64) -> bool {
        self.wait(timeout, |_| event.is_complete().then_some(())).is_some()
    }

    fn poll(&self, wait_running: bool, timeout: i64, most: usize) -> Vec<Arc<EventState>> {
        let ready = |progress: &mut Progress| {
            if progress.completed.is_empty() {
                let nothing = progress.ended || (wait_running && progress.running.is_empty());
                return nothing.then(Vec::new);
            }
            let count = most.min(progress.completed.len());
            Some(progress.completed.drain(..count).collect())
        };
        self.wait(timeout, ready).unwrap_or_default()
    }

    /// Ends the queue: nothing more is launched, and nobody waits.
    fn end(&self) {
        lock(&self.progress).ended = true;
        self.wake();
    }

    /// Waits until nothing is under way: then the memory of its operations is the caller's again.
    fn drain(&self) {
        while self.wait(WAIT, |progress| progress.running.is_empty().then_some(())).is_none() {
            // Its station has ended, and completes what is left.
            std::thread::yield_now();
        }
    }
}

/// Ends queues.
pub fn end_all<'a>(queues: impl Iterator<Item = &'a Arc<Queue>>) {
    for queue in queues {
        queue.end();
    }
}

/// Makes an event queue.
#[unsafe(no_mangle)]
pub extern "C" fn daos_eq_create(eqh: *mut daos_handle_t) -> c_int {
    guarded(|| {
        let place = required(eqh)?;
        place.set(handle::issue(handle::Opened::Queue(library::new_queue()?))?);
        Ok(())
    })
}

/// Destroys an event queue. By force, that waits for the operations under way: until they have ended, an engine may read and write
/// the memory that was given to them.
#[unsafe(no_mangle)]
pub extern "C" fn daos_eq_destroy(eqh: daos_handle_t, flags: c_int) -> c_int {
    const FORCE: c_int = 1;
    guarded(|| {
        let queue = handle::queue(eqh)?;
        let busy = {
            let progress = lock(&queue.progress);
            !progress.running.is_empty() || !progress.completed.is_empty()
        };
        if busy && flags & FORCE == 0 {
            return Err(Der::BUSY);
        }
        handle::forget(eqh)?;
        library::forget_queue(&queue)?;
        queue.end();
        queue.drain();
        Ok(())
    })
}

/// Takes completed events.
#[unsafe(no_mangle)]
pub extern "C" fn daos_eq_poll(
    eqh: daos_handle_t,
    wait_running: c_int,
    timeout: i64,
    nevents: u32,
    events: *mut *mut daos_event_t,
) -> c_int {
    let mut taken = 0;
    let result = guarded(|| {
        let queue = handle::queue(eqh)?;
        if nevents == 0 || events.is_null() || timeout < WAIT {
            return Err(Der::INVAL);
        }
        let most = usize::try_from(nevents).unwrap_or(usize::MAX);
        let found = queue.poll(wait_running != 0, timeout, most);
        for (index, event) in found.iter().enumerate() {
            event.taken();
            element(events, index).set(event.user());
        }
        taken = c_int::try_from(found.len()).unwrap_or(c_int::MAX);
        Ok(())
    });
    if result == 0 { taken } else { result }
}

/// Counts events of a queue.
#[unsafe(no_mangle)]
pub extern "C" fn daos_eq_query(
    eqh: daos_handle_t,
    query: c_int,
    nevents: u32,
    events: *mut *mut daos_event_t,
) -> c_int {
    let mut count = 0;
    let result = guarded(|| {
        let queue = handle::queue(eqh)?;
        let progress = lock(&queue.progress);
        let mut found: Vec<*mut daos_event_t> = Vec::new();
        if query & QUERY_COMPLETED != 0 {
            found.extend(progress.completed.iter().map(|event| event.user()));
        }
        if query & QUERY_WAITING != 0 {
            found.extend(progress.running.values().map(|event| event.user()));
        }
        count = c_int::try_from(found.len()).unwrap_or(c_int::MAX);
        if !events.is_null() {
            let room = usize::try_from(nevents).unwrap_or(usize::MAX);
            for (index, event) in found.into_iter().take(room).enumerate() {
                element(events, index).set(event);
            }
        }
        Ok(())
    });
    if result == 0 { count } else { result }
}
