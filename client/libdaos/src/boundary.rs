//! The boundary to C: arguments in, return codes out, no panic across.

use core::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use weir_client::{Context, Error};
use weir_proto::Der;

use crate::types::daos_event_t;
use crate::{event, library};

/// Outcome of an operation: a DER number says why it failed.
pub type Outcome = Result<(), Der>;

/// The future of an operation, on a context. It gives the return code.
pub type Operation = Pin<Box<dyn Future<Output = c_int>>>;

/// Starts an operation on a context.
pub type Start = Box<dyn FnOnce(Context) -> Operation>;

/// The return code that stands for a DER number.
pub fn code(der: Der) -> c_int {
    c_int::try_from(der.0).map_or(-501_000, |number| -number)
}

/// An error as a part of the interface tells it.
pub trait Failure: From<Der> {
    /// The return code.
    fn code(self) -> c_int;
}

impl Failure for Der {
    fn code(self) -> c_int {
        code(self)
    }
}

/// Runs the body of an exported function. A panic is a defect of this library and becomes `-DER_MISC`.
pub fn guarded(body: impl FnOnce() -> Outcome) -> c_int {
    guarded_as(body)
}

/// As [`guarded`], with errors of any kind.
pub fn guarded_as<E: Failure>(body: impl FnOnce() -> Result<(), E>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.code(),
        Err(_) => E::from(Der::MISC).code(),
    }
}

/// Runs an operation to its end when `ev` is NULL; else launches it, and its end completes the event. `check` reads the
/// arguments, before anything is started.
pub fn run(ev: *mut daos_event_t, check: impl FnOnce() -> Result<Start, Der>) -> c_int {
    run_as(ev, check)
}

/// As [`run`], with errors of any kind.
pub fn run_as<E: Failure>(ev: *mut daos_event_t, check: impl FnOnce() -> Result<Start, E>) -> c_int {
    let mut ended = 0;
    let result = guarded_as(|| {
        let start = check()?;
        if ev.is_null() {
            ended = library::wait(async |context| start(context.clone()).await)?;
            return Ok(());
        }
        event::launch(ev, start)?;
        Ok::<(), E>(())
    });
    if result == 0 { ended } else { result }
}

/// Boxes an operation for [`run`].
pub fn operation<F, Fut>(body: F) -> Start
where
    F: FnOnce(Context) -> Fut + 'static,
    Fut: Future<Output = Outcome> + 'static,
{
    operation_as(body)
}

/// As [`operation`], with errors of any kind.
pub fn operation_as<E, F, Fut>(body: F) -> Start
where
    E: Failure + 'static,
    F: FnOnce(Context) -> Fut + 'static,
    Fut: Future<Output = Result<(), E>> + 'static,
{
    Box::new(move |context| {
        let running = body(context);
        Box::pin(async move { running.await.map_or_else(E::code, |()| 0) })
    })
}

/// The DER number of a client error.
#[expect(clippy::needless_pass_by_value, reason = "it ends results: map_err(der_of)")]
pub fn der_of(error: Error) -> Der {
    error.der()
}

/// A C string as bytes without its NUL.
pub fn bytes_of<'a>(text: *const c_char) -> Result<&'a [u8], Der> {
    if text.is_null() {
        return Err(Der::INVAL);
    }
    // SAFETY: not NULL, so by the caller's promise it points to a string that ends with NUL and outlives the call.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A C string as text.
pub fn text_of(text: *const c_char) -> Result<String, Der> {
    String::from_utf8(bytes_of(text)?.to_vec()).map_err(|_| Der::INVAL)
}

/// A place for a result that must be there.
pub fn required<T>(place: *mut T) -> Result<ArgumentPtr<T>, Der> {
    if place.is_null() { Err(Der::INVAL) } else { Ok(ArgumentPtr(place)) }
}

/// A place for a result that may be left out.
pub fn optional<T>(place: *mut T) -> Option<ArgumentPtr<T>> {
    (!place.is_null()).then_some(ArgumentPtr(place))
}

/// Memory of the caller that holds a `T`: not NULL, valid until the call or its event is complete.
#[derive(Debug)]
pub struct ArgumentPtr<T>(*mut T);

impl<T> Clone for ArgumentPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArgumentPtr<T> {}

impl<T> ArgumentPtr<T> {
    /// The pointer.
    pub const fn pointer(self) -> *mut T {
        self.0
    }

    /// Stores a result.
    pub fn set(self, value: T) {
        // SAFETY: not NULL; by the caller's promise it is valid and nobody else uses it until the call is complete.
        // Nothing is dropped: what is there may be uninitialised.
        unsafe { self.0.write(value) }
    }

    /// Reads what the caller put there.
    pub fn get(self) -> T
    where
        T: Copy,
    {
        // SAFETY: as for `set`; arguments that are read are initialised by the caller.
        unsafe { self.0.read() }
    }

    /// Changes what the caller put there.
    pub fn change(self, change: impl FnOnce(&mut T)) {
        // SAFETY: as for `set`; the reference ends with this call, and no other one exists meanwhile.
        change(unsafe { &mut *self.0 });
    }
}

/// Elements of an array argument; `INVAL` for NULL unless it is empty, and for more than memory can hold.
pub fn elements<T: Copy>(first: *const T, count: usize) -> Result<Vec<T>, Der> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() || !fits_memory(size_of::<T>().checked_mul(count)) {
        return Err(Der::INVAL);
    }
    // SAFETY: not NULL and no longer than a slice may be; by the caller's promise `count` elements stand there,
    // initialised.
    Ok(unsafe { core::slice::from_raw_parts(first, count) }.to_vec())
}

/// Whether a number of bytes, if it is one, can be the length of something in memory.
pub fn fits_memory(bytes: Option<usize>) -> bool {
    bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok())
}

/// The place of an array argument's element.
pub fn element<T>(first: *mut T, index: usize) -> ArgumentPtr<T> {
    ArgumentPtr(first.wrapping_add(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_elements_than_memory_can_hold_are_refused_before_they_are_read() {
        let one = [7_u64];
        assert_eq!(elements(one.as_ptr(), 1), Ok(vec![7]));
        for count in [usize::MAX, usize::MAX / 8 + 2, isize::MAX as usize / 8 + 1] {
            assert_eq!(elements(one.as_ptr(), count), Err(Der::INVAL), "{count}");
        }
    }
}
