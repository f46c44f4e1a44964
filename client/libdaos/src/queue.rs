//! Event queues. Each has a thread with a context of its own, on which its operations progress whether the queue is
//! polled or not.

use core::cell::RefCell;
use core::ffi::c_int;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use weir_client::Context;
use weir_proto::Der;
use weir_runtime::{JoinHandle as TaskHandle, real::Remote, sync::Notify};

use crate::boundary::{code, element, guarded, required};
use crate::event::{self, EventState, QueuedOperation};
use crate::types::{daos_event_t, daos_handle_t};
use crate::{handle, library};

/// Waits for ever.
const WAIT: i64 = -1;

/// Completed events are taken, whatever else is asked.
const QUERY_COMPLETED: c_int = 1;
const QUERY_WAITING: c_int = 2;

#[derive(Default)]
struct Progress {
    /// Operations under way, by number of their event.
    running: HashMap<u64, Arc<EventState>>,
    /// Complete, not yet taken by a poll.
    completed: VecDeque<Arc<EventState>>,
    ended: bool,
}

/// An event queue.
pub struct Queue {
    progress: Mutex<Progress>,
    changed: Condvar,
    remote: Remote,
    thread: Mutex<Option<JoinHandle<()>>>,
}

thread_local! {
    /// On a queue's thread: its context, what ends it, and the tasks of its operations.
    static STATION: RefCell<Option<Station>> = const { RefCell::new(None) };
}

struct Station {
    context: Context,
    end: Notify,
    tasks: HashMap<u64, TaskHandle<()>>,
}

/// Who is told how an operation has ended, also when it is dropped.
struct Told(Option<Box<dyn FnOnce(c_int) + Send>>);

impl Told {
    fn tell(mut self, result: c_int) {
        if let Some(told) = self.0.take() {
            told(result);
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told(code(Der::CANCELED));
        }
    }
}

/// The queues of a started library.
#[derive(Default)]
pub struct Queues {
    /// The queue of events that belong to none, made at its first use.
    common: Mutex<Option<Arc<Queue>>>,
    /// Queues whose threads have to end with the library.
    all: Mutex<Vec<Arc<Queue>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Starts a queue's thread.
    pub fn start() -> Result<Arc<Self>, Der> {
        let (attach, queues) = (library::attach()?, &library::held()?.queues);
        let (started, starting) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("daos-eq".into())
            .spawn(move || {
                let context = match library::new_context(&attach) {
                    Ok(context) => context,
                    Err(error) => {
                        drop(started.send(Err(error)));
                        return;
                    }
                };
                let end = Notify::new();
                let station = Station { context: context.clone(), end: end.clone(), tasks: HashMap::new() };
                STATION.set(Some(station));
                drop(started.send(context.remote().ok_or(Der::MISC)));
                context.block_on(end.notified());
                // Tasks hold the context that runs them: end them first.
                let station = STATION.take();
                for task in station.iter().flat_map(|station| station.tasks.values()) {
                    task.abort();
                }
            })
            .map_err(|_| Der::NOMEM)?;
        let remote = starting.recv().map_err(|_| Der::MISC)??;
        let queue = Arc::new(Self {
            progress: Mutex::default(),
            changed: Condvar::new(),
            remote,
            thread: Mutex::new(Some(thread)),
        });
        lock(&queues.all).push(Arc::clone(&queue));
        Ok(queue)
    }

    /// The queue of events that belong to none.
    pub fn common() -> Result<Arc<Self>, Der> {
        let mut common = lock(&library::held()?.queues.common);
        if let Some(queue) = &*common {
            return Ok(Arc::clone(queue));
        }
        let queue = Self::start()?;
        *common = Some(Arc::clone(&queue));
        Ok(queue)
    }

    /// Starts an operation on the queue's thread; its end completes the event.
    pub fn submit(self: &Arc<Self>, event: &Arc<EventState>, launch: QueuedOperation) -> Result<(), Der> {
        {
            let mut progress = lock(&self.progress);
            if progress.ended {
                return Err(Der::NO_HDL);
            }
            progress.running.insert(event.number(), Arc::clone(event));
        }
        let (queue, event_there) = (Arc::clone(self), Arc::clone(event));
        let job = move |runtime: &weir_runtime::Handle| {
            let context =
                STATION.with_borrow(|station| station.as_ref().map(|station| station.context.clone()));
            let Some(context) = context else { return queue.complete(&event_there, code(Der::CANCELED)) };
            let number = event_there.number();
            let task = runtime.spawn(async move {
                let result = launch.start(context).await;
                STATION.with_borrow_mut(|station| {
                    if let Some(station) = station {
                        station.tasks.remove(&number);
                    }
                });
                queue.complete(&event_there, result);
            });
            STATION.with_borrow_mut(|station| {
                if let Some(station) = station {
                    station.tasks.insert(number, task);
                }
            });
        };
        if self.remote.spawn(Box::new(job)).is_err() {
            lock(&self.progress).running.remove(&event.number());
            return Err(Der::NO_HDL);
        }
        Ok(())
    }

    /// Runs an operation on the queue's thread and tells its return code, `-DER_CANCELED` when the queue ends before.
    pub fn run(&self, launch: QueuedOperation, told: impl FnOnce(c_int) + Send + 'static) -> Result<(), Der> {
        if lock(&self.progress).ended {
            return Err(Der::NO_HDL);
        }
        let ending = Told(Some(Box::new(told)));
        let job = move |runtime: &weir_runtime::Handle| {
            let context =
                STATION.with_borrow(|station| station.as_ref().map(|station| station.context.clone()));
            let Some(context) = context else { return drop(ending) };
            let number = event::next_number();
            let task = runtime.spawn(async move {
                let result = launch.start(context).await;
                STATION.with_borrow_mut(|station| {
                    if let Some(station) = station {
                        station.tasks.remove(&number);
                    }
                });
                ending.tell(result);
            });
            STATION.with_borrow_mut(|station| {
                if let Some(station) = station {
                    station.tasks.insert(number, task);
                }
            });
        };
        self.remote.spawn(Box::new(job)).map_err(|_| Der::NO_HDL)
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
        self.changed.notify_all();
    }

    /// Takes an event that will not be polled for any more from the completed ones.
    pub fn withdraw(&self, event: &Arc<EventState>) {
        lock(&self.progress).completed.retain(|other| other.number() != event.number());
    }

    /// Waits until `ready` gives something, at most until `timeout` microseconds have passed.
    fn wait<T>(&self, timeout: i64, mut ready: impl FnMut(&mut Progress) -> Option<T>) -> Option<T> {
        let wait = u64::try_from(timeout).map(Duration::from_micros).ok();
        let start = Instant::now();
        let mut progress = lock(&self.progress);
        loop {
            if let Some(found) = ready(&mut progress) {
                return Some(found);
            }
            progress = match wait {
                None => self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let left = wait.checked_sub(start.elapsed()).filter(|left| !left.is_zero())?;
                    self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
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

    /// Ends the queue's thread; operations under way are dropped where they stand.
    fn end(&self) {
        lock(&self.progress).ended = true;
        let ended = self.remote.spawn(Box::new(|_| {
            STATION.with_borrow(|station| {
                if let Some(station) = station {
                    station.end.notify_one();
                }
            });
        }));
        let thread = lock(&self.thread).take();
        if let (Ok(()), Some(thread)) = (ended, thread) {
            drop(thread.join());
        }
        // What was under way is complete now: its memory is the caller's again.
        let left: Vec<_> = lock(&self.progress).running.drain().map(|(_, event)| event).collect();
        for event in left {
            self.complete(&event, code(Der::CANCELED));
        }
        self.changed.notify_all();
    }
}

/// Ends all queues.
pub fn end_all(queues: &Queues) {
    *lock(&queues.common) = None;
    let queues = core::mem::take(&mut *lock(&queues.all));
    for queue in queues {
        queue.end();
    }
}

/// Makes an event queue.
#[unsafe(no_mangle)]
pub extern "C" fn daos_eq_create(eqh: *mut daos_handle_t) -> c_int {
    guarded(|| {
        let place = required(eqh)?;
        place.set(handle::issue(handle::Opened::Queue(Queue::start()?))?);
        Ok(())
    })
}

/// Destroys an event queue.
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
        lock(&library::held()?.queues.all).retain(|other| !Arc::ptr_eq(other, &queue));
        queue.end();
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
