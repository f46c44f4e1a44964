//! Start and end of the library, and the context of each thread.

use core::cell::RefCell;
use core::ffi::c_int;
use core::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_client::{Attach, Buffer, Context, Lender};
use weir_proto::Der;

use crate::boundary::{der_of, guarded};
use crate::{handle, queue};

/// The started library.
struct Library {
    attach: Arc<Attach>,
    /// Calls of `daos_init` that `daos_fini` has not undone.
    starts: usize,
    /// Distinguishes this start from earlier ones, whose thread contexts are of no use any more.
    generation: u64,
}

static LIBRARY: Mutex<(Option<Library>, u64)> = Mutex::new((None, 0));

thread_local! {
    static CONTEXT: RefCell<Option<(u64, Context)>> = const { RefCell::new(None) };
}

fn library() -> MutexGuard<'static, (Option<Library>, u64)> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the library.
#[unsafe(no_mangle)]
pub extern "C" fn daos_init() -> c_int {
    guarded(|| {
        let mut guard = library();
        let (state, generations) = &mut *guard;
        if let Some(library) = state {
            library.starts += 1;
            return Ok(());
        }
        let attach = Attach::load(None).map_err(|error| der_of(error.into()))?;
        *generations += 1;
        *state = Some(Library { attach: Arc::new(attach), starts: 1, generation: *generations });
        Ok(())
    })
}

/// Undoes one start.
#[unsafe(no_mangle)]
pub extern "C" fn daos_fini() -> c_int {
    guarded(|| {
        {
            let mut guard = library();
            let library = guard.0.as_mut().ok_or(Der::UNINIT)?;
            library.starts -= 1;
            if library.starts > 0 {
                return Ok(());
            }
            guard.0 = None;
        }
        // Outside the lock: the queues' threads end, and their operations may still look at the library.
        queue::end_all();
        handle::forget_all();
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
        // SAFETY: as above; the borrow is exclusive, so nobody else looks at the memory meanwhile.
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
    library().0.as_ref().map(|library| Arc::clone(&library.attach)).ok_or(Der::UNINIT)
}

/// The calling thread's context, made at its first use.
pub fn context() -> Result<Context, Der> {
    let (attach, generation) = {
        let guard = library();
        let library = guard.0.as_ref().ok_or(Der::UNINIT)?;
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
