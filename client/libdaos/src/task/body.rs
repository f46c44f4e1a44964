//! The life of a task.

use core::ffi::{c_int, c_void};
use core::time::Duration;
use std::time::Instant;

use weir_proto::Der;

use super::scheduler::process_complete;
use super::{ARGUMENT_WORDS, Body, Callback, TASK_BYTES, Task, TaskCallback, result_of, set_result, tables};
use crate::boundary::{Outcome, elements, guarded, required};

/// Makes a task of a scheduler, with one user.
pub fn create(body: Option<Body>, scheduler: usize, private: usize, opcode: c_int) -> Result<usize, Der> {
    let mut tables = tables();
    tables.scheduler(scheduler)?;
    // SAFETY: `calloc` takes any sizes; zeros are valid for the structure.
    let task = unsafe { libc::calloc(1, TASK_BYTES) } as usize;
    if task == 0 {
        return Err(Der::NOMEM);
    }
    let known = Task {
        users: 1,
        scheduler,
        body,
        private,
        waits: 0,
        dependents: std::collections::VecDeque::new(),
        before: std::collections::VecDeque::new(),
        after: Vec::new(),
        is_running: false,
        is_complete: false,
        generation: 0,
        keeps_failures: false,
        arguments: Box::new([0; ARGUMENT_WORDS]),
        opcode,
    };
    tables.tasks.insert(task, known);
    Ok(task)
}

/// Makes a task.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_create(
    task_func: Option<Body>,
    sched: *mut c_void,
    private: *mut c_void,
    taskp: *mut *mut c_void,
) -> c_int {
    guarded(|| {
        let place = required(taskp)?;
        place.set(create(task_func, sched as usize, private as usize, -1)? as *mut c_void);
        Ok(())
    })
}

/// Has a task wait for another one, unless that is complete.
fn depend(task: usize, on: usize) -> Outcome {
    let mut tables = tables();
    if task == on || tables.task(task)?.is_complete {
        return Err(Der::NO_PERM);
    }
    if tables.task(on)?.is_complete {
        return Ok(());
    }
    tables.task(on)?.dependents.push_back(task);
    let known = tables.task(task)?;
    known.users += 1;
    known.waits += 1;
    known.generation += 1;
    Ok(())
}

/// Has a task wait for others.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_register_deps(
    task: *mut c_void,
    num_deps: c_int,
    dep_tasks: *mut *mut c_void,
) -> c_int {
    guarded(|| {
        let count = usize::try_from(num_deps).map_err(|_| Der::INVAL)?;
        let others = elements(dep_tasks.cast_const(), count)?;
        others.into_iter().try_for_each(|other| depend(task as usize, other as usize))
    })
}

/// The callback with a copy of its data.
fn callback(function: TaskCallback, data: *mut c_void, size: usize) -> Result<Callback, Der> {
    let bytes: Vec<u8> = elements(data.cast::<u8>().cast_const(), if data.is_null() { 0 } else { size })?;
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    };
    Ok(Callback { function, data: bytes.chunks(8).map(word).collect() })
}

/// Has functions called before and after a task. Data is copied.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_register_cbs(
    task: *mut c_void,
    prep_cb: Option<TaskCallback>,
    prep_data: *mut c_void,
    prep_data_size: usize,
    comp_cb: Option<TaskCallback>,
    comp_data: *mut c_void,
    comp_data_size: usize,
) -> c_int {
    guarded(|| {
        if prep_cb.is_none() && comp_cb.is_none() {
            return Err(Der::INVAL);
        }
        let before = prep_cb.map(|function| callback(function, prep_data, prep_data_size)).transpose()?;
        let after = comp_cb.map(|function| callback(function, comp_data, comp_data_size)).transpose()?;
        let mut tables = tables();
        let known = tables.task(task as usize)?;
        if known.is_complete {
            return Err(Der::NO_PERM);
        }
        known.before.extend(before);
        known.after.extend(after);
        Ok(())
    })
}

/// Has a function called after a task.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_register_comp_cb(
    task: *mut c_void,
    comp_cb: Option<TaskCallback>,
    arg: *mut c_void,
    arg_size: usize,
) -> c_int {
    tse_task_register_cbs(task, None, core::ptr::null_mut(), 0, comp_cb, arg, arg_size)
}

/// Calls the functions that come before a task. Whether it goes on: it was not started again by them.
pub fn before(task: usize) -> bool {
    loop {
        let (callback, generation, is_complete) = {
            let mut tables = tables();
            let Ok(known) = tables.task(task) else { return false };
            let Some(callback) = known.before.pop_front() else { return true };
            (callback, known.generation, known.is_complete)
        };
        if is_complete {
            continue;
        }
        let mut callback = callback;
        let data = callback.data.as_mut_ptr().cast::<c_void>();
        set_result(task, (callback.function)(task as *mut c_void, data));
        let mut tables = tables();
        let Ok(known) = tables.task(task) else { return false };
        if !known.is_running && !known.is_complete && known.generation != generation {
            return false;
        }
    }
}

/// Calls the functions that come after a task. Whether it is complete: it was not started again, and waits for nothing new.
pub fn after(task: usize) -> bool {
    loop {
        let (mut callback, generation) = {
            let mut tables = tables();
            let Ok(known) = tables.task(task) else { return false };
            let Some(callback) = known.after.pop() else { return true };
            // So that it stays while it is started again and ends at once.
            known.users += 1;
            (callback, known.generation)
        };
        let data = callback.data.as_mut_ptr().cast::<c_void>();
        set_result(task, (callback.function)(task as *mut c_void, data));
        let mut tables = tables();
        let goes_on = tables.task(task).is_ok_and(|known| known.generation == generation);
        tables.release(task);
        if !goes_on {
            return false;
        }
    }
}

/// Hands a task to its scheduler. One that needs nothing before runs here if it is to be `instant`.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_schedule(task: *mut c_void, instant: bool) -> c_int {
    tse_task_schedule_with_delay(task, instant, 0)
}

/// As [`tse_task_schedule`], after a number of microseconds.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_schedule_with_delay(task: *mut c_void, instant: bool, delay: u64) -> c_int {
    guarded(|| {
        let number = task as usize;
        let body = {
            let mut tables = tables();
            let known = tables.task(number)?;
            if instant && (known.body.is_none() || delay > 0) {
                return Err(Der::INVAL);
            }
            let ready = known.waits == 0 && known.before.is_empty();
            let body = known.body;
            if ready && (instant || body.is_none()) {
                known.is_running = true;
                known.users += u32::from(instant);
                let scheduler = tables.scheduler_of(number)?;
                scheduler.in_flight += 1;
                scheduler.running.push(number);
            } else {
                let scheduler = tables.scheduler_of(number)?;
                match delay {
                    0 => scheduler.waiting.push_back(number),
                    delay => {
                        let until = Instant::now() + Duration::from_micros(delay);
                        scheduler.sleeping.push((until, number));
                    }
                }
            }
            body.filter(|_| instant && ready)
        };
        if let Some(body) = body {
            body(task);
            tables().release(number);
        }
        Ok(())
    })
}

/// Ends a task with a result, unless it has another one.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_complete(task: *mut c_void, ret: c_int) {
    complete(task as usize, ret);
}

/// As [`tse_task_complete`].
pub fn complete(task: usize, result: c_int) {
    let scheduler = {
        let mut tables = tables();
        match tables.task(task) {
            Ok(known) if !known.is_complete => known.scheduler,
            _ => return,
        }
    };
    set_result(task, result);
    if !after(task) {
        return;
    }
    let is_processed = {
        let mut tables = tables();
        let is_cancelled = tables.scheduler(scheduler).is_ok_and(|known| known.is_cancelled);
        tables.complete(task).is_ok() && !is_cancelled
    };
    if is_processed {
        process_complete(scheduler);
    }
}

/// Tells the tasks that wait for one that it is complete; one that was running and waits for nothing else is complete by that.
pub fn wake_dependents(task: usize) {
    loop {
        let (dependent, ends) = {
            let mut tables = tables();
            let Ok(known) = tables.task(task) else { return };
            let Some(dependent) = known.dependents.pop_front() else { return };
            let Ok(next) = tables.task(dependent) else { continue };
            if !next.keeps_failures {
                set_result(dependent, result_of(task));
            }
            next.waits = next.waits.saturating_sub(1);
            let ends = next.waits == 0 && next.is_running;
            let is_cancelled = tables.scheduler_of(dependent).is_ok_and(|known| known.is_cancelled);
            (dependent, ends && !is_cancelled)
        };
        if ends && after(dependent) {
            // A task that is gone needs no completion.
            let _ = tables().complete(dependent);
        }
        tables().release(dependent);
    }
}

/// Starts a task again, from a callback behind it.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_reinit(task: *mut c_void) -> c_int {
    tse_task_reinit_with_delay(task, 0)
}

/// As [`tse_task_reinit`], after a number of microseconds.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_reinit_with_delay(task: *mut c_void, delay: u64) -> c_int {
    guarded(|| {
        let number = task as usize;
        let mut tables = tables();
        if tables.scheduler_of(number)?.is_cancelled {
            return Err(Der::NO_PERM);
        }
        let known = tables.task(number)?;
        if known.body.is_none() {
            return Err(Der::INVAL);
        }
        let was_running = known.is_running;
        known.users += u32::from(known.is_complete);
        (known.is_running, known.is_complete) = (false, false);
        known.generation += 1;
        let scheduler = tables.scheduler_of(number)?;
        if was_running {
            scheduler.in_flight = scheduler.in_flight.saturating_sub(1);
            scheduler.running.retain(|other| *other != number);
        }
        match delay {
            0 => scheduler.waiting.push_back(number),
            delay => scheduler.sleeping.push((Instant::now() + Duration::from_micros(delay), number)),
        }
        drop(tables);
        // SAFETY: the tables know it as a task.
        unsafe { *task.cast::<c_int>() = 0 };
        Ok(())
    })
}

/// Makes a new task of a complete one.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_reset(task: *mut c_void, task_func: Option<Body>, private: *mut c_void) -> c_int {
    guarded(|| reset(task as usize, task_func, Some(private as usize), -1))
}

/// As [`tse_task_reset`]; without a private part it stays.
pub fn reset(task: usize, body: Option<Body>, private: Option<usize>, opcode: c_int) -> Outcome {
    let mut tables = tables();
    if tables.scheduler_of(task)?.is_cancelled {
        return Err(Der::NO_PERM);
    }
    let known = tables.task(task)?;
    let is_used = !known.dependents.is_empty() || !known.after.is_empty() || !known.before.is_empty();
    if !known.is_complete || is_used {
        return Err(Der::NO_PERM);
    }
    (known.is_running, known.is_complete) = (false, false);
    (known.body, known.opcode) = (body, opcode);
    known.private = private.unwrap_or(known.private);
    known.arguments.fill(0);
    // SAFETY: the tables know it as a task.
    unsafe { *(task as *mut c_int) = 0 };
    Ok(())
}

/// One user more.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_addref(task: *mut c_void) {
    if let Ok(known) = tables().task(task as usize) {
        known.users += 1;
    }
}

/// One user less.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_decref(task: *mut c_void) {
    tables().release(task as usize);
}

/// The program's own pointer; NULL of what is no task.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_get_priv(task: *mut c_void) -> *mut c_void {
    tables().task(task as usize).map_or(core::ptr::null_mut(), |known| known.private as *mut c_void)
}

/// Sets the program's own pointer and returns the one that was there.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_set_priv(task: *mut c_void, private: *mut c_void) -> *mut c_void {
    let mut tables = tables();
    let Ok(known) = tables.task(task as usize) else { return core::ptr::null_mut() };
    core::mem::replace(&mut known.private, private as usize) as *mut c_void
}

/// Memory of a task; NULL for more than there is.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task_buf_embedded(task: *mut c_void, size: c_int) -> *mut c_void {
    let fits = usize::try_from(size).is_ok_and(|size| size <= ARGUMENT_WORDS * 8);
    if fits { arguments(task as usize) } else { core::ptr::null_mut() }
}

/// The arguments of a task; NULL of what is none.
pub fn arguments(task: usize) -> *mut c_void {
    tables().task(task).map_or(core::ptr::null_mut(), |known| known.arguments.as_mut_ptr().cast())
}

/// The scheduler of a task; NULL of what is none.
#[unsafe(no_mangle)]
pub extern "C" fn tse_task2sched(task: *mut c_void) -> *mut c_void {
    tables().task(task as usize).map_or(core::ptr::null_mut(), |known| known.scheduler as *mut c_void)
}

/// Has a task keep its own result when one fails that it waits for.
#[unsafe(no_mangle)]
pub extern "C" fn tse_disable_propagate(task: *mut c_void) {
    if let Ok(known) = tables().task(task as usize) {
        known.keeps_failures = true;
    }
}
