//! Schedulers.

use core::ffi::{c_int, c_void};
use core::time::Duration;
use std::collections::VecDeque;
use std::time::Instant;

use weir_proto::Der;

use super::body::{before, complete, wake_dependents};
use super::{Scheduler, SchedulerCallback, result_of, set_result, tables};
use crate::boundary::{code, guarded, required};
use crate::queue::Queue;

/// Bytes of a `tse_sched_t`.
const SCHEDULER_BYTES: usize = 400;

/// Prepares a scheduler, with one user.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_init(
    sched: *mut c_void,
    comp_cb: Option<SchedulerCallback>,
    udata: *mut c_void,
) -> c_int {
    guarded(|| {
        required(sched)?;
        // SAFETY: not NULL, so it is a structure of this size that the program gives to the library; `ds_udata` is its second
        // word.
        unsafe {
            sched.cast::<u8>().write_bytes(0, SCHEDULER_BYTES);
            *sched.cast::<*mut c_void>().add(1) = udata;
        }
        let callbacks = comp_cb.map(|function| (function, udata as usize)).into_iter().collect();
        let known = Scheduler { users: 1, callbacks, ..Scheduler::default() };
        tables().schedulers.insert(sched as usize, known);
        Ok(())
    })
}

/// Has a function called when a scheduler is complete.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_register_comp_cb(
    sched: *mut c_void,
    comp_cb: Option<SchedulerCallback>,
    arg: *mut c_void,
) -> c_int {
    guarded(|| {
        let function = comp_cb.ok_or(Der::INVAL)?;
        tables().scheduler(sched as usize)?.callbacks.push((function, arg as usize));
        Ok(())
    })
}

/// Ends the use of a scheduler.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_fini(sched: *mut c_void) {
    tse_sched_decref(sched);
}

/// One user more.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_addref(sched: *mut c_void) {
    if let Ok(known) = tables().scheduler(sched as usize) {
        known.users += 1;
    }
}

/// One user less; behind the last one its tasks are nothing to it any more.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_decref(sched: *mut c_void) {
    let mut tables = tables();
    if let Ok(known) = tables.scheduler(sched as usize) {
        known.users = known.users.saturating_sub(1);
        if known.users == 0 {
            tables.schedulers.remove(&(sched as usize));
        }
    }
}

/// Ends the operations that have arrived. How many.
fn process_arrived(scheduler: usize) -> usize {
    let arrived = match tables().scheduler(scheduler) {
        Ok(known) => core::mem::take(&mut known.arrived),
        Err(_) => VecDeque::new(),
    };
    for (task, result) in &arrived {
        complete(*task, *result);
    }
    arrived.len()
}

/// The tasks that can begin, which are in flight then.
fn ready(scheduler: usize) -> Vec<usize> {
    let mut tables = tables();
    let Ok(known) = tables.scheduler(scheduler) else { return Vec::new() };
    let now = Instant::now();
    let mut woken: Vec<(Instant, usize)> =
        known.sleeping.extract_if(.., |(until, _)| *until <= now).collect();
    woken.sort_unstable();
    known.waiting.extend(woken.into_iter().map(|(_, task)| task));
    let is_cancelled = known.is_cancelled;
    let waiting = core::mem::take(&mut known.waiting);
    let (ready, left): (Vec<usize>, Vec<usize>) = waiting
        .into_iter()
        .partition(|task| is_cancelled || tables.task(*task).is_ok_and(|known| known.waits == 0));
    if let Ok(known) = tables.scheduler(scheduler) {
        known.waiting.extend(left);
        known.in_flight += ready.len();
    }
    ready
}

/// Begins what can begin. How many tasks.
fn process_ready(scheduler: usize) -> usize {
    let ready = ready(scheduler);
    for task in &ready {
        let body = {
            let mut tables = tables();
            if tables.scheduler(scheduler).is_ok_and(|known| known.is_cancelled) {
                set_result(*task, code(Der::CANCELED));
                // A task that is gone needs no completion.
                let _ = tables.complete(*task);
                continue;
            }
            let Ok(known) = tables.task(*task) else { continue };
            known.is_running = true;
            // So that it stays if a function before it ends it.
            known.users += 1;
            let body = known.body;
            if let Ok(known) = tables.scheduler(scheduler) {
                known.running.push(*task);
            }
            body
        };
        if before(*task)
            && let Some(body) = body
            && tables().task(*task).is_ok_and(|known| !known.is_complete)
        {
            body(*task as *mut c_void);
        }
        tables().release(*task);
    }
    ready.len()
}

/// Tells those that wait for complete tasks. How many tasks were complete.
pub fn process_complete(scheduler: usize) -> usize {
    let mut processed = 0;
    loop {
        let task = {
            let mut tables = tables();
            let Ok(known) = tables.scheduler(scheduler) else { return processed };
            let Some(task) = known.complete.pop_front() else { return processed };
            task
        };
        set_result(scheduler, result_of(task));
        wake_dependents(task);
        let mut tables = tables();
        if let Ok(known) = tables.scheduler(scheduler) {
            known.in_flight = known.in_flight.saturating_sub(1);
        }
        tables.release(task);
        processed += 1;
    }
}

/// Has operations progress whose results may arrive by that.
fn drive() {
    // Tasks that need no engine run without the library, too.
    if let Ok(queue) = Queue::common() {
        queue.progress();
    }
}

/// Does all that can be done now.
fn progress(scheduler: usize) {
    loop {
        let mut processed = process_arrived(scheduler);
        processed += process_ready(scheduler);
        processed += process_complete(scheduler);
        if processed == 0 || is_done(scheduler) {
            return;
        }
    }
}

/// Whether a scheduler has nothing to do; one that isn't known has nothing.
fn is_done(scheduler: usize) -> bool {
    tables()
        .scheduler(scheduler)
        .map_or(true, |known| known.waiting.is_empty() && known.sleeping.is_empty() && known.in_flight == 0)
}

/// Does all that can be done now.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_progress(sched: *mut c_void) {
    drive();
    progress(sched as usize);
}

/// Whether a scheduler has nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_check_complete(sched: *mut c_void) -> bool {
    is_done(sched as usize)
}

/// Waits until all tasks are complete, or with `cancel` ends those that haven't begun, and calls the scheduler's functions.
#[unsafe(no_mangle)]
pub extern "C" fn tse_sched_complete(sched: *mut c_void, ret: c_int, cancel: bool) {
    let scheduler = sched as usize;
    let callbacks = {
        let mut tables = tables();
        let Ok(known) = tables.scheduler(scheduler) else { return };
        if known.is_cancelled || known.is_completing {
            return;
        }
        (known.is_cancelled, known.is_completing) = (cancel, !cancel);
        core::mem::take(&mut known.callbacks)
    };
    set_result(scheduler, ret);
    loop {
        progress(scheduler);
        if is_done(scheduler) {
            break;
        }
        if cancel {
            end_running(scheduler);
        } else {
            wait(scheduler, None);
        }
    }
    for (function, argument) in callbacks {
        function(argument as *mut c_void, result_of(scheduler));
    }
    tse_sched_decref(sched);
}

/// Ends what is under way and waits for nothing in the scheduler.
fn end_running(scheduler: usize) {
    let mut tables = tables();
    let Ok(known) = tables.scheduler(scheduler) else { return };
    for task in core::mem::take(&mut known.running) {
        set_result(task, code(Der::CANCELED));
        // A task that is gone needs no completion.
        let _ = tables.complete(task);
    }
}

/// Waits for an arrival, or until a sleeping task is to begin, or until a moment. Whether that moment has come.
fn wait(scheduler: usize, until: Option<Instant>) -> bool {
    loop {
        let woken = match look(scheduler, until) {
            Ok(is_late) => return is_late,
            Err(woken) => woken,
        };
        // A task that another thread ends tells nobody: it is looked at from time to time.
        let often = Instant::now() + Duration::from_millis(1);
        let next = [until, woken].into_iter().flatten().min().map_or(often, |next| next.min(often));
        match Queue::common() {
            Ok(queue) => {
                queue.wait_for_other(Some(next), || look(scheduler, until).ok());
            }
            // Tasks that need no engine run without the library, too.
            Err(_) => std::thread::sleep(next.saturating_duration_since(Instant::now())),
        }
    }
}

/// Whether a scheduler has nothing more to wait for: something has arrived, or else the moment has come. Else when a sleeping task is
/// to begin.
fn look(scheduler: usize, until: Option<Instant>) -> Result<bool, Option<Instant>> {
    let mut tables = tables();
    let Ok(known) = tables.scheduler(scheduler) else { return Ok(true) };
    let woken = known.sleeping.iter().map(|(until, _)| *until).min();
    let has_arrived = !known.arrived.is_empty() || !known.complete.is_empty();
    let (is_done, waiting) = (known.in_flight == 0 && known.sleeping.is_empty(), known.waiting.clone());
    let can_begin = waiting.iter().any(|task| tables.task(*task).is_ok_and(|known| known.waits == 0));
    let now = Instant::now();
    if has_arrived || can_begin || (is_done && waiting.is_empty()) || woken.is_some_and(|woken| woken <= now)
    {
        return Ok(false);
    }
    if until.is_some_and(|until| until <= now) { Ok(true) } else { Err(woken) }
}

/// Does what can be done, for up to `timeout` microseconds (`DAOS_EQ_WAIT`, `DAOS_EQ_NOWAIT`): 0 when the scheduler has nothing
/// to do any more, `-DER_TIMEDOUT` when it has.
#[unsafe(no_mangle)]
pub extern "C" fn daos_progress(sched: *mut c_void, timeout: i64, is_empty: *mut bool) -> c_int {
    guarded(|| {
        let (scheduler, place) = (sched as usize, required(is_empty)?);
        place.set(false);
        tables().scheduler(scheduler)?;
        let until = u64::try_from(timeout).ok().map(|us| Instant::now() + Duration::from_micros(us));
        drive();
        loop {
            progress(scheduler);
            if is_done(scheduler) {
                place.set(true);
                return Ok(());
            }
            if wait(scheduler, until) {
                return Err(Der::TIMEDOUT);
            }
        }
    })
}
