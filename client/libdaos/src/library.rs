//! Start and end of the library.
//!
//! A forked child has copies of everything: of endpoints whose sockets its parent goes on using, of handles, and of
//! locks that threads hold which don't exist in the child. The child must leave all of that untouched: closing its copy
//! of a socket's registration or of an endpoint would end the parent's. So the library's state is one value for each
//! life of the process. A fork begins another life, in which nothing is started until `daos_init` or `daos_reinit`
//! makes a new value. `daos_reinit` takes over the parent's handles, which are plain data: for that, a fork waits until no
//! thread has the locks of the handles and of the library's start.

use core::cell::{Cell, RefCell};
use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockWriteGuard};

use weir_client::{Attach, Buffer, Context, Lender};
use weir_proto::Der;

use crate::boundary::{der_of, guarded};
use crate::handle::{self, Table};
use crate::queue::{self, Queue};
use crate::station::{self, Station};

/// The started library.
struct Library {
    attach: Arc<Attach>,
    /// Calls of `daos_init` that `daos_fini` has not undone.
    starts: usize,
    stations: Vec<Arc<Station>>,
    /// The queue of events that belong to none.
    common: Arc<Queue>,
    /// Event queues, which end with the library.
    queues: Vec<Arc<Queue>>,
    /// Event queues made so far.
    queues_made: usize,
}

/// What the library holds in one life of the process. Never freed: a forked child may look at its parent's.
pub struct ProcessState {
    life: u64,
    library: Mutex<Option<Library>>,
    /// What is open.
    pub handles: RwLock<Table>,
}

/// How often the process, from the one on that loaded the library, was forked.
static LIFE: AtomicU64 = AtomicU64::new(0);

/// What the library holds; of an earlier life behind a fork, until the library is started again.
static HELD: AtomicPtr<ProcessState> = AtomicPtr::new(null_mut());

/// What a fork waits for, held by the thread that forks.
type Held = (MutexGuard<'static, Option<Library>>, RwLockWriteGuard<'static, Table>);

thread_local! {
    static FORKING: RefCell<Option<Held>> = const { RefCell::new(None) };
    /// Which station the thread uses, once it has found the first one in use.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Threads that were given a place.
static PLACED: AtomicUsize = AtomicUsize::new(0);

/// Runs before a fork: what a child takes over is in order then.
extern "C" fn before_fork() {
    if let Ok(held) = held() {
        let handles = || held.handles.write().unwrap_or_else(PoisonError::into_inner);
        // A thread that is ending has no place for it; its child then finds what other threads have left.
        let _ = FORKING.try_with(|forking| forking.replace(Some((held.library(), handles()))));
    }
}

extern "C" fn after_fork() {
    // As above.
    let _ = FORKING.try_with(RefCell::take);
}

/// Runs in a child, on the thread that forked, before `fork` returns: only that thread exists.
extern "C" fn begin_life() {
    after_fork();
    LIFE.fetch_add(1, Ordering::SeqCst);
}

/// Which life of the process this is.
pub fn life() -> u64 {
    LIFE.load(Ordering::SeqCst)
}

/// What the library holds in this life; `UNINIT` before the first start, and in a forked child before its own.
pub fn held() -> Result<&'static ProcessState, Der> {
    // SAFETY: NULL, or what `Box::leak` gave.
    let held = unsafe { HELD.load(Ordering::SeqCst).as_ref() };
    held.filter(|held| held.life == life()).ok_or(Der::UNINIT)
}

/// What the library holds in this life, made if it isn't there.
fn made() -> Result<&'static ProcessState, Der> {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which can be unloaded only when its handlers are gone too.
        let failed = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(begin_life)) };
        debug_assert_eq!(failed, 0, "there is memory for a handler");
    });
    if let Ok(held) = held() {
        return Ok(held);
    }
    let old = HELD.load(Ordering::SeqCst);
    let fresh = Box::into_raw(Box::new(ProcessState {
        life: life(),
        library: Mutex::default(),
        handles: RwLock::default(),
    }));
    if HELD.compare_exchange(old, fresh, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        // Another thread was faster.
        // SAFETY: made above, and seen by nobody.
        drop(unsafe { Box::from_raw(fresh) });
    }
    held()
}

/// What an earlier life held, in a forked child that hasn't started the library.
fn inherited() -> Option<&'static ProcessState> {
    // SAFETY: NULL, or what `Box::leak` gave.
    let held = unsafe { HELD.load(Ordering::SeqCst).as_ref() };
    held.filter(|held| held.life != life())
}

impl ProcessState {
    fn library(&self) -> MutexGuard<'_, Option<Library>> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the library.
#[unsafe(no_mangle)]
pub extern "C" fn daos_init() -> c_int {
    guarded(|| start(1, None))
}

/// Starts the library, or counts one start more. A new start has the handles of `earlier`.
fn start(starts: usize, earlier: Option<&ProcessState>) -> Result<(), Der> {
    let held = made()?;
    let mut state = held.library();
    if let Some(library) = &mut *state {
        library.starts += starts;
        return Ok(());
    }
    let attach = Arc::new(Attach::load(None).map_err(|error| der_of(error.into()))?);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let stations: Vec<_> = (0..cores.min(station::COUNT_MAX)).map(|_| Station::new(&attach)).collect();
    let first = stations.first().ok_or(Der::MISC)?;
    let common = Queue::new(first);
    if let Some(earlier) = earlier {
        let handles = earlier.handles.read().unwrap_or_else(PoisonError::into_inner).inherited();
        *held.handles.write().unwrap_or_else(PoisonError::into_inner) = handles;
    }
    *state = Some(Library { attach, starts, stations, common, queues: Vec::new(), queues_made: 0 });
    Ok(())
}

/// Starts the library in a forked child, as often as its parent had, with its parent's handles. Elsewhere there is nothing to do
/// but to start it where it isn't.
#[unsafe(no_mangle)]
pub extern "C" fn daos_reinit() -> c_int {
    if held().is_ok_and(|held| held.library().is_some()) {
        return 0;
    }
    let earlier = inherited();
    let starts = earlier.and_then(|earlier| earlier.library().as_ref().map(|library| library.starts));
    guarded(|| start(starts.unwrap_or(1), earlier))
}

/// Undoes one start.
#[unsafe(no_mangle)]
pub extern "C" fn daos_fini() -> c_int {
    guarded(|| {
        let held = held()?;
        let ended = {
            let mut state = held.library();
            let library = state.as_mut().ok_or(Der::UNINIT)?;
            library.starts -= 1;
            if library.starts > 0 {
                return Ok(());
            }
            state.take().ok_or(Der::UNINIT)?
        };
        // Outside the lock: operations may still look at the library.
        queue::end_all(ended.queues.iter().chain([&ended.common]));
        ended.stations.iter().for_each(|station| station.end());
        handle::forget_all(&held.handles);
        Ok(())
    })
}

/// Lends the callers' memory to the fabric: what a C program hands over for a call stays there until it is complete.
struct CallersMemory;

impl Lender for CallersMemory {
    fn source(&self, memory: &[u8]) -> Buffer {
        // SAFETY: the context uses the buffer only while the operation that borrows the memory runs (see `Lender`), and
        // for reading only; the pointer of a slice is not NULL.
        unsafe { Buffer::from_raw(NonNull::from(memory).cast(), memory.len()) }
    }

    fn sink(&self, memory: &mut [u8]) -> Buffer {
        // SAFETY: as above; the borrow is exclusive, so no other code looks at the memory meanwhile.
        unsafe { Buffer::from_raw(NonNull::from(&mut *memory).cast(), memory.len()) }
    }
}

/// A context whose large payloads move without being copied.
pub fn new_context(attach: &Attach) -> Result<Context, Der> {
    let context = Context::real(attach).map_err(der_of)?;
    context.set_lender(Rc::new(CallersMemory));
    Ok(context)
}

/// How to reach the system.
pub fn attach() -> Result<Arc<Attach>, Der> {
    held()?.library().as_ref().map(|library| Arc::clone(&library.attach)).ok_or(Der::UNINIT)
}

/// The station that the calling thread uses.
fn station() -> Result<Arc<Station>, Der> {
    let state = held()?.library();
    let stations = &state.as_ref().ok_or(Der::UNINIT)?.stations;
    let first = stations.first().ok_or(Der::MISC)?;
    let place = PLACE.get().or_else(|| {
        let place = first.is_busy().then(|| PLACED.fetch_add(1, Ordering::Relaxed) + 1);
        PLACE.set(place);
        place
    });
    let station = place.and_then(|place| stations.get(place % stations.len())).unwrap_or(first);
    Ok(Arc::clone(station))
}

/// Runs an operation to its end.
pub fn wait<T>(body: impl AsyncFnOnce(&Context) -> T) -> Result<T, Der> {
    station()?.run(body)
}

/// The queue of events that belong to none.
pub fn common_queue() -> Result<Arc<Queue>, Der> {
    held()?.library().as_ref().map(|library| Arc::clone(&library.common)).ok_or(Der::UNINIT)
}

/// Makes an event queue, at one station after another.
pub fn new_queue() -> Result<Arc<Queue>, Der> {
    let mut state = held()?.library();
    let library = state.as_mut().ok_or(Der::UNINIT)?;
    let station = library.stations.get(library.queues_made % library.stations.len()).ok_or(Der::MISC)?;
    let queue = Queue::new(station);
    library.queues_made += 1;
    library.queues.push(Arc::clone(&queue));
    Ok(queue)
}

/// A queue needs no end with the library any more.
pub fn forget_queue(queue: &Arc<Queue>) -> Result<(), Der> {
    let mut state = held()?.library();
    let library = state.as_mut().ok_or(Der::UNINIT)?;
    library.queues.retain(|other| !Arc::ptr_eq(other, queue));
    Ok(())
}
