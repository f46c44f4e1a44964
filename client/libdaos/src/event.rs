//! Events: operations under way.
//!
//! The private words of a `daos_event_t` hold a mark and a reference to the library's own record of the event.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_proto::Der;

use crate::boundary::{Outcome, Start, guarded, required};
use crate::queue::Queue;
use crate::types::{daos_event_t, daos_handle_t};
use crate::{handle, library, task};

/// Marks an event that was initialised and not finished.
const MARK: u64 = 0x7765_6972_6576_656e;

static NUMBERS: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    Running,
    Complete,
}

struct Course {
    status: Status,
    /// Children, and for a parent with an operation of its own that operation, that are not complete.
    open: usize,
    result: c_int,
}

/// The library's record of an event.
pub struct EventState {
    number: u64,
    /// Life of the process that it was initialised in.
    life: u64,
    /// The caller's structure, as a number: only its address is kept here.
    user: usize,
    queue: Option<Arc<Queue>>,
    parent: Option<Arc<EventState>>,
    /// Children, in the order in which they were initialised.
    children: Mutex<Vec<Weak<EventState>>>,
    /// What is called when a poll or test reports it.
    callbacks: Mutex<Vec<(Completion, usize)>>,
    course: Mutex<Course>,
}

/// Called when an event is reported, with its result; another result than 0 becomes that of an event without an error.
type Completion = extern "C" fn(*mut c_void, *mut daos_event_t, c_int) -> c_int;

impl EventState {
    /// Distinguishes the event from all others.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The caller's structure.
    pub fn user(&self) -> *mut daos_event_t {
        self.user as *mut daos_event_t
    }

    /// Whether a poll reports it: children report to their parent only.
    pub fn is_top(&self) -> bool {
        self.parent.is_none()
    }

    /// Whether its operation is complete.
    pub fn is_complete(&self) -> bool {
        self.course().status == Status::Complete
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poll or test reports it: it may be used again. What the program wants to be called is called here, on the thread of the
    /// program, so that it may call the library.
    pub fn taken(&self) {
        self.course().status = Status::Ready;
        let callbacks = core::mem::take(&mut *self.callbacks.lock().unwrap_or_else(PoisonError::into_inner));
        for (function, argument) in callbacks {
            // SAFETY: the caller keeps its structure until `daos_event_fini`.
            let result = unsafe { (*self.user()).ev_error };
            let told = function(argument as *mut c_void, self.user(), result);
            if result == 0 && told != 0 {
                // SAFETY: as above.
                unsafe { (*self.user()).ev_error = told };
            }
        }
    }

    /// Ends the event's own operation. Returns the events that are complete by that: itself, and its parent when it
    /// was the last that the parent waited for.
    pub fn finish(self: &Arc<Self>, result: c_int) -> Vec<Arc<Self>> {
        let result = {
            let mut course = self.course();
            course.open = course.open.saturating_sub(1);
            if course.result == 0 {
                course.result = result;
            }
            if course.open > 0 {
                return Vec::new();
            }
            course.status = Status::Complete;
            let place = self.user();
            // SAFETY: the caller keeps its structure until `daos_event_fini`, which is refused while the event is
            // running, and reads `ev_error` only after it has seen the event complete.
            unsafe { (*place).ev_error = course.result };
            // Used again, a parent has the results of its next children only.
            core::mem::take(&mut course.result)
        };
        let mut done = vec![Arc::clone(self)];
        if let Some(parent) = self.parent.as_ref().filter(|parent| parent.child_done(result)) {
            done.extend(parent.finish(result));
        }
        done
    }

    /// A child is complete. Whether the event is, too, but for its own [`finish`](Self::finish): it waits for nothing else.
    fn child_done(&self, result: c_int) -> bool {
        let mut course = self.course();
        let last = course.status == Status::Running && course.open == 1;
        if !last {
            course.open = course.open.saturating_sub(1);
            course.result = if course.result == 0 { result } else { course.result };
        }
        last
    }

    /// An operation of the event's own begins. Children that are under way count on.
    fn begin(&self) -> Outcome {
        {
            let mut course = self.course();
            // One that waits for a poll would be reported while its next operation still uses the caller's memory.
            if course.status == Status::Running || (course.status == Status::Complete && self.is_top()) {
                return Err(Der::BUSY);
            }
            course.status = Status::Running;
            course.open += 1;
        }
        if let Some(parent) = &self.parent {
            parent.course().open += 1;
        }
        Ok(())
    }

    /// The operation that was begun does not come.
    fn give_up(&self) -> Outcome {
        {
            let mut course = self.course();
            course.status = Status::Ready;
            course.open = course.open.saturating_sub(1);
        }
        match self.parent.as_ref().filter(|parent| parent.child_done(0)) {
            Some(parent) => {
                parent.the_queue()?.complete(parent, 0);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn the_queue(&self) -> Result<Arc<Queue>, Der> {
        match &self.queue {
            Some(queue) => Ok(Arc::clone(queue)),
            None => Queue::common(),
        }
    }
}

/// The record of an event that was initialised.
fn state_of(ev: *mut daos_event_t) -> Result<Arc<EventState>, Der> {
    required(ev)?;
    // SAFETY: not NULL, so it is the caller's event, whose private words are initialised (by C or by us).
    let words = unsafe { (*ev).ev_private };
    if words[0] != MARK || words[1] == 0 {
        return Err(Der::INVAL);
    }
    let pointer = words[1] as *const EventState;
    // SAFETY: with the mark in place, the word is what `Arc::into_raw` gave in `daos_event_init`, and one count is
    // the event's own until `daos_event_fini` clears the mark.
    let state = unsafe {
        Arc::increment_strong_count(pointer);
        Arc::from_raw(pointer)
    };
    library::held()?;
    // The copy of a parent's event that a forked child finds is no event of its own.
    if state.life == library::life() { Ok(state) } else { Err(Der::INVAL) }
}

/// Starts an operation for an event.
pub fn launch(ev: *mut daos_event_t, start: Start) -> Outcome {
    if let Some(number) = task::launched_by(ev) {
        return Queue::common()?.run(start, move |result| task::arrived(number, result));
    }
    let state = state_of(ev)?;
    let queue = state.the_queue()?;
    state.begin()?;
    required(ev)?.change(|event| event.ev_error = 0);
    let submitted = queue.submit(&state, start);
    if submitted.is_err() {
        state.give_up()?;
    }
    submitted
}

/// Prepares an event.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_init(
    ev: *mut daos_event_t,
    eqh: daos_handle_t,
    parent: *mut daos_event_t,
) -> c_int {
    guarded(|| {
        let place = required(ev)?;
        let parent = if parent.is_null() { None } else { Some(state_of(parent)?) };
        let queue = match (eqh.cookie, &parent) {
            (0, Some(parent)) => parent.queue.clone(),
            (0, None) => None,
            _ => Some(handle::queue(eqh)?),
        };
        if parent.as_ref().is_some_and(|parent| parent.parent.is_some()) {
            return Err(Der::INVAL);
        }
        let state = Arc::new(EventState {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            life: library::life(),
            user: ev as usize,
            queue,
            parent,
            children: Mutex::default(),
            callbacks: Mutex::default(),
            course: Mutex::new(Course { status: Status::Ready, open: 0, result: 0 }),
        });
        if let Some(parent) = &state.parent {
            let mut children = parent.children.lock().unwrap_or_else(PoisonError::into_inner);
            children.retain(|child| child.strong_count() > 0);
            children.push(Arc::downgrade(&state));
        }
        let mut words = [0; 20];
        words[0] = MARK;
        words[1] = Arc::into_raw(state) as u64;
        place.set(daos_event_t { ev_error: 0, ev_private: words, ev_debug: 0 });
        Ok(())
    })
}

/// Ends the use of an event.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_fini(ev: *mut daos_event_t) -> c_int {
    guarded(|| {
        let state = state_of(ev)?;
        if state.course().status == Status::Running {
            return Err(Der::BUSY);
        }
        // What a poll has reported is in no queue any more.
        if state.is_complete() {
            state.the_queue()?.withdraw(&state);
        }
        required(ev)?.change(|event| event.ev_private = [0; 20]);
        // SAFETY: this is the count that `daos_event_init` gave to the event; the mark that led here is gone now.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&state)) };
        Ok(())
    })
}

/// Waits for an event.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_test(ev: *mut daos_event_t, timeout: i64, flag: *mut bool) -> c_int {
    guarded(|| {
        let (state, place) = (state_of(ev)?, required(flag)?);
        if state.course().status == Status::Ready {
            place.set(true);
            return Ok(());
        }
        let queue = state.the_queue()?;
        let complete = queue.wait_for(&state, timeout);
        if complete {
            queue.withdraw(&state);
            state.taken();
        }
        place.set(complete);
        Ok(())
    })
}

/// Has a parent complete when its children are.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_parent_barrier(ev: *mut daos_event_t) -> c_int {
    guarded(|| {
        let state = state_of(ev)?;
        let queue = state.the_queue()?;
        let mut course = state.course();
        if course.status != Status::Ready {
            return Err(Der::BUSY);
        }
        course.status = Status::Running;
        let waits = course.open > 0;
        if !waits {
            course.open = 1;
        }
        drop(course);
        if !waits {
            queue.complete(&state, 0);
        }
        Ok(())
    })
}

/// Says that no caller waits for an operation any more; it runs to its end nevertheless.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_abort(ev: *mut daos_event_t) -> c_int {
    guarded(|| state_of(ev).map(|_| ()))
}

/// Has a function called when a poll or test reports an event.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_register_comp_cb(
    ev: *mut daos_event_t,
    cb: Option<Completion>,
    arg: *mut c_void,
) -> c_int {
    guarded(|| {
        let (state, function) = (state_of(ev)?, cb.ok_or(Der::INVAL)?);
        if state.is_complete() {
            return Err(Der::NO_PERM);
        }
        let mut callbacks = state.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        callbacks.push((function, arg as usize));
        Ok(())
    })
}

/// The child of an event behind another one, or the first one for NULL; NULL when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn daos_event_next(parent: *mut daos_event_t, child: *mut daos_event_t) -> *mut daos_event_t {
    let Ok(state) = state_of(parent) else { return core::ptr::null_mut() };
    let children: Vec<*mut daos_event_t> = {
        let children = state.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.iter().filter_map(Weak::upgrade).map(|child| child.user()).collect()
    };
    let next = match children.iter().position(|other| *other == child) {
        Some(found) => children.get(found + 1),
        None if child.is_null() => children.first(),
        None => None,
    };
    next.copied().unwrap_or(core::ptr::null_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(place: &mut daos_event_t, parent: Option<&Arc<EventState>>) -> Arc<EventState> {
        let course = Course { status: Status::Ready, open: 0, result: 0 };
        Arc::new(EventState {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            life: library::life(),
            user: &raw mut *place as usize,
            queue: None,
            parent: parent.cloned(),
            children: Mutex::default(),
            callbacks: Mutex::default(),
            course: Mutex::new(course),
        })
    }

    const fn blank() -> daos_event_t {
        daos_event_t { ev_error: 0, ev_private: [0; 20], ev_debug: 0 }
    }

    #[test]
    fn a_parent_that_is_used_again_forgets_the_failure_of_earlier_children() {
        let (mut above, mut below) = (blank(), blank());
        let parent = event(&mut above, None);
        let mut round = |result| {
            let child = event(&mut below, Some(&parent));
            child.begin().expect("not busy");
            parent.course().status = Status::Running;
            let done = child.finish(result);
            assert_eq!(done.len(), 2, "child and parent are complete");
            parent.taken();
        };
        round(-1007);
        round(0);
        assert_eq!((above.ev_error, below.ev_error), (0, 0));
    }

    #[test]
    fn a_parent_with_an_operation_of_its_own_waits_for_its_children_too() {
        let (mut above, mut below) = (blank(), blank());
        let parent = event(&mut above, None);
        let child = event(&mut below, Some(&parent));
        let launch = || {
            child.begin().expect("not busy");
            parent.begin().expect("not busy");
        };
        launch();
        assert!(parent.finish(0).is_empty(), "a child is under way");
        assert_eq!(child.finish(-1007).len(), 2, "child and parent are complete");
        assert_eq!(parent.begin(), Err(Der::BUSY), "no poll has reported it");
        parent.taken();
        assert_eq!(above.ev_error, -1007);
        launch();
        assert_eq!(child.finish(0).len(), 1, "the parent's own operation is under way");
        assert_eq!(parent.finish(0).len(), 1);
        assert_eq!(above.ev_error, 0);
    }
}
