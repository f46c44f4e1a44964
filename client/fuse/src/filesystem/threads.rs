//! Which thread serves a request, so that requests that wait for an engine don't delay others.
//!
//! A *session thread* reads a request of the kernel, serves it, and reads the next. There is one more of them than
//! requests are to be served side by side: the *reserve*, which rests. While requests are answered soon, this is all.
//! Once every other session thread has a request, and half of those have had theirs for [`PATIENCE`], the reserve reads
//! too. From then on the last session thread that is free serves nothing itself: it hands what it reads to an *overflow
//! thread*, of which there are as many as are needed, and none a while after the engine is back. A request that takes
//! longer than [`PATIENCE`] leaves its place to another one.

use std::borrow::Borrow;
use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::spec::THREADS_MAX;

/// A request that takes longer waits for an engine that is away or slow. Few requests take as long on a disk that
/// works, and programs bear a pause of that length, once, when an engine goes away.
const PATIENCE: Duration = Duration::from_millis(250);

/// Most overflow threads. Each has an endpoint, so they take 128 MiB, and up to 768 MiB after large reads and writes; as
/// many processes of a node seldom wait for the same engine.
const OVERFLOW_MAX: usize = 64;

/// An overflow thread without a request for this long ends: longer than the pauses of a program that tries again.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of a mount that serve requests.
#[derive(Debug)]
pub struct Threads {
    /// Requests that are served side by side while engines answer.
    limit: usize,
    /// Overflow threads at most.
    most: usize,
    state: Mutex<State>,
    /// The reserve rests here.
    reserve: Condvar,
    /// A request was answered, for the thread that [`State::holds_request`].
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// When each session thread began its request.
    session: Vec<Option<Instant>>,
    overflow: Vec<Overflow>,
    reserve: Reserve,
    /// A session thread has a request that no thread may serve yet.
    holds_request: bool,
    /// Requests will be read no more.
    has_ended: bool,
}

/// What one of the session threads does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Reserve {
    /// It reads requests, as all others do.
    #[default]
    Reads,
    /// It rests until all others have a request.
    Rests,
    /// It rests, and looks from time to time whether it is needed, since all others had a request.
    Watches,
}

/// The place of an overflow thread.
#[derive(Debug, Default)]
struct Overflow {
    /// The way to the thread, while there is one.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// When its request was handed to it.
    begun: Option<Instant>,
}

/// An overflow thread has a request, until this is dropped.
struct Serving<'t> {
    threads: &'t Threads,
    index: usize,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.threads.lock();
        state.overflow[self.index].begun = None;
        if thread::panicking() {
            state.overflow[self.index].jobs = None;
        }
        if state.holds_request {
            self.threads.answered.notify_all();
        }
    }
}

/// A session thread. It ends with the mount: then all have to.
struct Session {
    threads: Arc<Threads>,
    index: usize,
}

thread_local! {
    static SESSION: OnceCell<Session> = const { OnceCell::new() };
}

impl Drop for Session {
    fn drop(&mut self) {
        self.threads.lock().has_ended = true;
        self.threads.reserve.notify_all();
    }
}

impl State {
    fn under_way(&self) -> impl Iterator<Item = Instant> {
        let overflow = self.overflow.iter().map(|place| place.begun);
        self.session.iter().copied().chain(overflow).flatten()
    }

    fn busy(&self) -> usize {
        self.session.iter().flatten().count()
    }

    /// Enters a request for an overflow thread.
    fn enter_overflow(&mut self, most: usize, now: Instant) -> Option<usize> {
        // The first ones, so that the last become idle when less is to be done.
        let free = self.overflow.iter().position(|place| place.begun.is_none());
        let index = free.unwrap_or(self.overflow.len());
        if index == most {
            return None;
        }
        if index == self.overflow.len() {
            self.overflow.push(Overflow::default());
        }
        self.overflow[index].begun = Some(now);
        Some(index)
    }
}

impl Threads {
    /// Threads for so many requests side by side.
    pub fn new(limit: usize) -> Self {
        // Together they have as many endpoints as a mount may have.
        Self::bounded(limit, OVERFLOW_MAX.min(THREADS_MAX.saturating_sub(limit)))
    }

    fn bounded(limit: usize, most: usize) -> Self {
        let (state, reserve, answered) = <(Mutex<State>, Condvar, Condvar)>::default();
        Self { limit: limit.max(1), most, state, reserve, answered }
    }

    /// How many threads have to read the kernel's requests.
    pub fn session_threads(&self) -> usize {
        self.limit + 1
    }

    /// Most requests that are served at once.
    pub fn requests_max(&self) -> usize {
        self.session_threads() + self.most
    }

    /// Overflow threads that are there now.
    pub fn overflow_threads(&self) -> usize {
        self.lock().overflow.iter().filter(|place| place.jobs.is_some()).count()
    }

    /// For how long each request is under way that began longer ago than this.
    pub fn waits(&self, least: Duration) -> Vec<Duration> {
        let state = self.lock();
        state.under_way().map(|begun| begun.elapsed()).filter(|age| *age > least).collect()
    }

    /// Requests that wait for an engine.
    pub fn waiting(&self) -> usize {
        self.waits(PATIENCE).len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request that the calling session thread has read, here or on an overflow thread. What the request lends is
    /// copied only for another thread.
    pub fn serve<S, D>(
        self: &Arc<Self>,
        shared: &Arc<S>,
        lent: &D,
        work: impl FnOnce(&S, &D) + Send + 'static,
    ) where
        S: Send + Sync + 'static,
        D: ToOwned + ?Sized,
        D::Owned: Send + 'static,
    {
        let own = SESSION.with(|session| session.get_or_init(|| self.join()).index);
        let Some(index) = self.begin(own) else {
            work(shared, lent);
            return self.end(own);
        };
        let (shared, owned) = (Arc::clone(shared), lent.to_owned());
        let job = Box::new(move || work(&shared, owned.borrow()));
        if let Err(job) = self.hand_over(index, job) {
            self.lock().session[own] = Some(Instant::now());
            job();
            self.end(own);
        }
    }

    /// A place for the calling thread.
    fn join(self: &Arc<Self>) -> Session {
        let mut state = self.lock();
        state.session.push(None);
        Session { threads: Arc::clone(self), index: state.session.len() - 1 }
    }

    /// Enters a request that a session thread has read, and returns the overflow thread that is to serve it. `None`: the
    /// session thread itself.
    fn begin(&self, own: usize) -> Option<usize> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            // Another session thread is left to read the next one, be it the reserve.
            if state.busy() < self.limit {
                return self.begin_here(state, own, now);
            }
            let young = state.under_way().map(|begun| now.saturating_duration_since(begun));
            let young: Vec<Duration> = young.filter(|age| *age < PATIENCE).collect();
            if young.len() < self.limit {
                // When no thread is left, the request holds this one.
                return state.enter_overflow(self.most, now).or_else(|| self.begin_here(state, own, now));
            }
            // The oldest of these is answered, or leaves its place.
            let left = young.into_iter().max().map_or(PATIENCE, |age| PATIENCE.saturating_sub(age));
            state.holds_request = true;
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.holds_request = false;
        }
    }

    fn begin_here(&self, mut state: MutexGuard<'_, State>, own: usize, now: Instant) -> Option<usize> {
        state.session[own] = Some(now);
        if state.reserve == Reserve::Rests && state.busy() == self.limit {
            state.reserve = Reserve::Watches;
            self.reserve.notify_all();
        }
        None
    }

    /// A session thread has answered its request. It returns to read the next, maybe after a rest.
    fn end(&self, own: usize) {
        let mut state = self.lock();
        state.session[own] = None;
        if state.holds_request {
            self.answered.notify_all();
        }
        // A thread that never had a request reports no end of the mount: none rests before all have had one.
        let have_all_joined = state.session.len() >= self.session_threads();
        if have_all_joined && state.reserve == Reserve::Reads && !state.has_ended && !self.is_short(&state) {
            // All others may be busy already.
            state.reserve = Reserve::Watches;
            drop(state);
            self.rest();
        }
    }

    /// Whether the session threads that are left are too few.
    fn is_short(&self, state: &State) -> bool {
        let old = state.session.iter().flatten().filter(|begun| begun.elapsed() >= PATIENCE);
        2 * old.count() >= self.limit
    }

    /// Waits until the reserve is needed.
    fn rest(&self) {
        // An endpoint takes memory, and a thread that rests needs none.
        super::worker::drop_context();
        let mut state = self.lock();
        while !state.has_ended {
            if state.reserve == Reserve::Rests {
                state = self.reserve.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self.reserve.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
            if state.busy() < self.limit {
                state.reserve = Reserve::Rests;
            } else if self.is_short(&state) {
                break;
            }
        }
        state.reserve = Reserve::Reads;
    }

    /// Gives a request to the overflow thread that it was entered for. It is given back when there is no thread.
    fn hand_over(self: &Arc<Self>, index: usize, job: Job) -> Result<(), Job> {
        let mut state = self.lock();
        let place = &mut state.overflow[index];
        if place.jobs.is_none() {
            let (jobs, receiver) = channel();
            let threads = Arc::clone(self);
            let run = move || threads.run_overflow(index, &receiver);
            match thread::Builder::new().name(format!("overflow-{index}")).spawn(run) {
                Ok(thread) => (place.jobs, place.thread) = (Some(jobs), Some(thread)),
                Err(error) => {
                    tracing::warn!(%error, "no thread for requests beside those that wait for engines");
                }
            }
        }
        let unsent = match &place.jobs {
            Some(jobs) => jobs.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        unsent.map_or(Ok(()), |job| {
            *place = Overflow::default();
            Err(job)
        })
    }

    /// Serves requests until there have been none for a while.
    fn run_overflow(&self, index: usize, jobs: &Receiver<Job>) {
        loop {
            if let Ok(job) = jobs.recv_timeout(IDLE) {
                let _serving = Serving { threads: self, index };
                job();
                continue;
            }
            let mut state = self.lock();
            // One that was entered is about to come.
            if state.overflow[index].begun.is_none() {
                state.overflow[index].jobs = None;
                return;
            }
        }
    }

    /// Waits for the requests that overflow threads serve, after the last has been read.
    pub fn finish(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        self.reserve.notify_all();
        state.overflow.iter_mut().for_each(|place| place.jobs = None);
        let threads: Vec<_> = state.overflow.iter_mut().filter_map(|place| place.thread.take()).collect();
        drop(state);
        for thread in threads {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Longer than anything takes that isn't stuck.
    const LONG: Duration = Duration::from_mins(1);

    type Work = Box<dyn FnOnce() + Send>;

    /// Session threads over a queue of requests, as the kernel has one.
    struct Mount {
        threads: Arc<Threads>,
        requests: Option<Sender<Work>>,
        session: Vec<JoinHandle<()>>,
    }

    impl Mount {
        fn new(limit: usize, most: usize) -> Self {
            let threads = Arc::new(Threads::bounded(limit, most));
            let (requests, queue) = channel::<Work>();
            let queue = Arc::new(Mutex::new(queue));
            let session = (0..threads.session_threads()).map(|_| {
                let (threads, queue) = (Arc::clone(&threads), Arc::clone(&queue));
                thread::spawn(move || {
                    let next = || queue.lock().expect("no panic").recv();
                    while let Ok(request) = next() {
                        threads.serve(&Arc::new(()), "name", move |(), name| {
                            assert_eq!(name, "name");
                            request();
                        });
                    }
                })
            });
            let session = session.collect();
            Self { threads, requests: Some(requests), session }
        }

        fn send(&self, request: impl FnOnce() + Send + 'static) {
            self.requests.as_ref().expect("not ended").send(Box::new(request)).expect("read");
        }

        /// Sends requests that are answered when what is returned says so or is dropped, and then counted.
        fn stick(&self, count: usize) -> (Vec<Sender<()>>, Arc<AtomicUsize>) {
            let answered = Arc::new(AtomicUsize::new(0));
            let stuck = (0..count).map(|_| {
                let (release, released) = channel::<()>();
                let answered = Arc::clone(&answered);
                self.send(move || {
                    let _ = released.recv();
                    answered.fetch_add(1, Ordering::Relaxed);
                });
                release
            });
            (stuck.collect(), answered)
        }

        /// Sends requests and waits for the answers of all.
        fn ask(&self, count: usize) -> bool {
            let (answer, answers) = channel();
            for _ in 0..count {
                let answer = answer.clone();
                self.send(move || {
                    let _ = answer.send(());
                });
            }
            (0..count).all(|_| answers.recv_timeout(LONG).is_ok())
        }

        fn end(mut self) {
            self.requests = None;
            for thread in self.session.drain(..) {
                thread.join().expect("no panic");
            }
            self.threads.finish();
            assert_eq!(self.threads.waits(Duration::ZERO), []);
            assert_eq!(self.threads.overflow_threads(), 0);
        }
    }

    fn eventually(holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LONG);
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn requests_that_are_stuck_hold_up_no_others() {
        for limit in [1, 2, 4] {
            let mount = Mount::new(limit, 32);
            let (stuck, answered) = mount.stick(16);
            assert!(mount.ask(100), "with {limit} threads");
            assert_eq!(answered.load(Ordering::Relaxed), 0);
            eventually(|| mount.threads.waiting() == 16);
            assert!(mount.threads.overflow_threads() <= 16 + limit);
            drop(stuck);
            eventually(|| answered.load(Ordering::Relaxed) == 16);
            eventually(|| mount.threads.lock().reserve != Reserve::Reads);
            mount.end();
        }
    }

    #[test]
    fn overflow_threads_end_when_nothing_is_stuck() {
        let mount = Mount::new(1, 8);
        let (stuck, _) = mount.stick(4);
        eventually(|| mount.threads.waiting() == 4);
        assert!(mount.threads.overflow_threads() > 0);
        drop(stuck);
        eventually(|| mount.threads.overflow_threads() == 0);
        assert!(mount.ask(100));
        mount.end();
    }

    #[test]
    fn while_requests_are_answered_soon_session_threads_serve_all() {
        let mount = Mount::new(3, 32);
        assert!(mount.ask(10_000));
        assert!(mount.threads.lock().overflow.is_empty(), "none was handed over");
        eventually(|| mount.ask(1) && mount.threads.lock().reserve != Reserve::Reads);
        mount.end();
    }

    #[test]
    fn when_no_thread_is_left_requests_wait_for_one() {
        let mount = Mount::new(2, 2);
        let (mut stuck, answered) = mount.stick(7);
        let (answer, last) = channel();
        mount.send(move || answer.send(()).expect("waited for"));
        eventually(|| mount.threads.waiting() == 5);
        assert!(last.try_recv().is_err());
        stuck.clear();
        last.recv_timeout(LONG).expect("answered");
        eventually(|| answered.load(Ordering::Relaxed) == 7);
        mount.end();
    }

    #[test]
    fn the_end_waits_for_requests_of_overflow_threads() {
        let mount = Mount::new(1, 8);
        let (stuck, answered) = mount.stick(6);
        eventually(|| mount.threads.waiting() == 6);
        let releaser = thread::spawn(move || {
            for release in stuck {
                thread::sleep(Duration::from_millis(20));
                drop(release);
            }
        });
        mount.end();
        assert_eq!(answered.load(Ordering::Relaxed), 6);
        releaser.join().expect("no panic");
    }

    #[test]
    fn a_mount_of_which_most_threads_had_no_request_ends() {
        for requests in 0..4 {
            let (done, ended) = channel();
            thread::spawn(move || {
                let mount = Mount::new(3, 8);
                assert!((0..requests).all(|_| mount.ask(1)));
                mount.end();
                done.send(()).expect("waited for");
            });
            assert_eq!(ended.recv_timeout(LONG), Ok(()), "after {requests} requests");
        }
    }
}
