//! Tasks and schedulers (`daos/tse.h`, `daos_task.h`).
//!
//! Programs hold structures of fixed sizes; what the library knows of them stands in tables by their addresses. So a task or
//! scheduler that is gone is told apart, and the order of what happens to them is that of one lock. Functions of programs are never
//! called with the lock held: they may call the library.

mod body;
mod operation;
mod scheduler;

pub use operation::{arrived, launched_by};

use core::ffi::{c_int, c_void};
use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_proto::Der;

/// What a task does.
pub type Body = extern "C" fn(*mut c_void) -> c_int;
/// Called before or after a task.
pub type TaskCallback = extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// Called when a scheduler is complete.
pub type SchedulerCallback = extern "C" fn(*mut c_void, c_int) -> c_int;

/// Bytes of a `tse_task_t`: result, padding, private part.
const TASK_BYTES: usize = 8 + 136 + 840 + size_of::<libc::pthread_mutex_t>();

/// Words of a task's arguments.
const ARGUMENT_WORDS: usize = 128;

/// A callback with its copy of the program's data.
struct Callback {
    function: TaskCallback,
    data: Vec<u64>,
}

/// What is known of a task.
struct Task {
    users: u32,
    scheduler: usize,
    body: Option<Body>,
    private: usize,
    /// Tasks that have to be complete before.
    waits: u32,
    dependents: VecDeque<usize>,
    before: VecDeque<Callback>,
    /// The last one is called first.
    after: Vec<Callback>,
    is_running: bool,
    is_complete: bool,
    /// Changes when the task is started again or gets something to wait for.
    generation: u64,
    keeps_failures: bool,
    arguments: Box<[u64; ARGUMENT_WORDS]>,
    opcode: c_int,
}

/// What is known of a scheduler.
#[derive(Default)]
struct Scheduler {
    users: u32,
    waiting: VecDeque<usize>,
    sleeping: Vec<(Instant, usize)>,
    complete: VecDeque<usize>,
    in_flight: usize,
    running: Vec<usize>,
    /// Operations that have ended, with their results.
    arrived: VecDeque<(usize, c_int)>,
    is_cancelled: bool,
    is_completing: bool,
    callbacks: Vec<(SchedulerCallback, usize)>,
}

#[derive(Default)]
struct Tables {
    tasks: HashMap<usize, Task>,
    schedulers: HashMap<usize, Scheduler>,
}

static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

fn tables() -> MutexGuard<'static, Tables> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    fn task(&mut self, task: usize) -> Result<&mut Task, Der> {
        self.tasks.get_mut(&task).ok_or(Der::INVAL)
    }

    fn scheduler(&mut self, scheduler: usize) -> Result<&mut Scheduler, Der> {
        self.schedulers.get_mut(&scheduler).ok_or(Der::INVAL)
    }

    fn scheduler_of(&mut self, task: usize) -> Result<&mut Scheduler, Der> {
        let scheduler = self.task(task)?.scheduler;
        self.scheduler(scheduler)
    }

    /// One user of a task less; the last one frees it.
    fn release(&mut self, task: usize) {
        let Some(known) = self.tasks.get_mut(&task) else { return };
        known.users = known.users.saturating_sub(1);
        if known.users == 0 {
            self.tasks.remove(&task);
            // SAFETY: `tse_task_create` allocated it, and nobody uses it any more.
            unsafe { libc::free(task as *mut c_void) };
        }
    }

    /// Marks a task as complete, to be processed with others.
    fn complete(&mut self, task: usize) -> Result<(), Der> {
        let known = self.task(task)?;
        if known.is_complete {
            return Ok(());
        }
        (known.is_running, known.is_complete) = (false, true);
        let scheduler = self.scheduler_of(task)?;
        scheduler.running.retain(|other| *other != task);
        scheduler.complete.push_back(task);
        Ok(())
    }
}

/// The result of a task or a scheduler, which is the first member of both structures.
fn result_of(structure: usize) -> c_int {
    // SAFETY: callers have found the address in the tables, so it is a structure of the program's or of this library's.
    unsafe { *(structure as *const c_int) }
}

/// Sets a result unless there is one.
fn set_result(structure: usize, result: c_int) {
    if result_of(structure) == 0 {
        // SAFETY: as above.
        unsafe { *(structure as *mut c_int) = result };
    }
}
