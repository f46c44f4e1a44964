//! Start and end of the library, and the context of each thread.
//!
//! A forked child has copies of everything: of endpoints whose sockets its parent goes on using, of handles, and of
//! locks that threads hold which don't exist in the child. The child must leave all of that untouched: closing its copy
//! of a socket's registration or of an endpoint would end the parent's. So the library's state is one value for each
//! life of the process. A fork begins another life, in which nothing is started until `daos_init` or `daos_reinit`
//! makes a new value.

use core::cell::RefCell;
use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock};

use weir_client::{Attach, Buffer, Context, Lender};
use weir_proto::Der;

use crate::boundary::{der_of, guarded};
use crate::handle::Table;
use crate::queue::Queues;
use crate::{handle, queue};

/// The started library.
struct Library {
    attach: Arc<Attach>,
    /// Calls of `daos_init` that `daos_fini` has not undone.
    starts: usize,
    /// Distinguishes this start from earlier ones, whose thread contexts are of no use any more.
    generation: u64,
}

/// What the library holds in one life of the process. Never freed: a forked child may look at its parent's.
pub struct ProcessState {
    life: u64,
    library: Mutex<Option<Library>>,
    /// What is open.
    pub handles: RwLock<Table>,
    /// Event queues.
    pub queues: Queues,
}

/// How often the process, from the one on that loaded the library, was forked.
static LIFE: AtomicU64 = AtomicU64::new(0);

/// What the library holds; of an earlier life behind a fork, until the library is started again.
static HELD: AtomicPtr<ProcessState> = AtomicPtr::new(null_mut());

/// Starts so far, in all lives.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CONTEXT: RefCell<Option<(u64, Context)>> = const { RefCell::new(None) };
}

/// Runs in a child, on the thread that forked, before `fork` returns: only that thread exists.
extern "C" fn begin_life() {
    LIFE.fetch_add(1, Ordering::SeqCst);
    // Its end would end the parent's endpoint. (It is borrowed only while it is made.)
    let _ = CONTEXT.try_with(|slot| slot.try_borrow_mut().map(|mut slot| core::mem::forget(slot.take())));
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
        let failed = unsafe { libc::pthread_atfork(None, None, Some(begin_life)) };
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
        queues: Queues::default(),
    }));
    if HELD.compare_exchange(old, fresh, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        // Another thread was faster.
        // SAFETY: made above, and seen by nobody.
        drop(unsafe { Box::from_raw(fresh) });
    }
    held()
}

impl ProcessState {
    fn library(&self) -> MutexGuard<'_, Option<Library>> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the library.
#[unsafe(no_mangle)]
pub extern "C" fn daos_init() -> c_int {
    guarded(|| {
        let mut state = made()?.library();
        if let Some(library) = &mut *state {
            library.starts += 1;
            return Ok(());
        }
        let attach = Attach::load(None).map_err(|error| der_of(error.into()))?;
        let generation = GENERATIONS.fetch_add(1, Ordering::SeqCst) + 1;
        *state = Some(Library { attach: Arc::new(attach), starts: 1, generation });
        Ok(())
    })
}

/// Starts the library in a forked child. Elsewhere there is nothing to do but to start it where it isn't.
#[unsafe(no_mangle)]
pub extern "C" fn daos_reinit() -> c_int {
    if held().is_ok_and(|held| held.library().is_some()) { 0 } else { daos_init() }
}

/// Undoes one start.
#[unsafe(no_mangle)]
pub extern "C" fn daos_fini() -> c_int {
    guarded(|| {
        let held = held()?;
        {
            let mut state = held.library();
            let library = state.as_mut().ok_or(Der::UNINIT)?;
            library.starts -= 1;
            if library.starts > 0 {
                return Ok(());
            }
            *state = None;
        }
        // Outside the lock: the queues' threads end, and their operations may still look at the library.
        queue::end_all(&held.queues);
        handle::forget_all(&held.handles);
        CONTEXT.with_borrow_mut(|context| *context = None);
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

/// The calling thread's context, made at its first use.
pub fn context() -> Result<Context, Der> {
    let (attach, generation) = {
        let guard = held()?.library();
        let library = guard.as_ref().ok_or(Der::UNINIT)?;
        (Arc::clone(&library.attach), library.generation)
    };
    CONTEXT.with_borrow_mut(|slot| {
        if let Some((of, context)) = slot
            && *of == generation
        {
            return Ok(context.clone());
        }
        let context = new_context(&attach)?;
        *slot = Some((generation, context.clone()));
        Ok(context)
    })
}
