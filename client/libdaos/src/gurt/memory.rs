//! What the memory macros of DAOS's headers call. All of it is memory of the C library.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

/// Faults that tests inject: none here.
#[unsafe(no_mangle)]
pub static d_fault_inject: c_int = 0;

/// Zeroed memory.
#[unsafe(no_mangle)]
pub extern "C" fn d_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: `calloc` takes any sizes.
    unsafe { libc::calloc(count, size) }
}

/// Memory.
#[unsafe(no_mangle)]
pub extern "C" fn d_malloc(size: usize) -> *mut c_void {
    // SAFETY: `malloc` takes any size.
    unsafe { libc::malloc(size) }
}

/// Memory of another size.
#[unsafe(no_mangle)]
pub extern "C" fn d_realloc(old: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: NULL, or memory of these functions by the caller's promise.
    unsafe { libc::realloc(old, size) }
}

/// Frees memory.
#[unsafe(no_mangle)]
pub extern "C" fn d_free(memory: *mut c_void) {
    // SAFETY: as for `d_realloc`.
    unsafe { libc::free(memory) };
}

/// A copy of at most `n` bytes of a string.
#[unsafe(no_mangle)]
pub extern "C" fn d_strndup(text: *const c_char, n: usize) -> *mut c_char {
    if text.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: not NULL, so by the caller's promise a NUL or `n` bytes stand there.
    unsafe { libc::strndup(text, n) }
}

/// The real path of a file.
#[unsafe(no_mangle)]
pub extern "C" fn d_realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a string by the caller's promise, and NULL or room for a path.
    unsafe { libc::realpath(path, resolved) }
}

/// Aligned memory; NULL for an alignment that is none.
#[unsafe(no_mangle)]
pub extern "C" fn d_aligned_alloc(alignment: usize, size: usize, zero: bool) -> *mut c_void {
    let Some(rounded) = size.checked_next_multiple_of(alignment) else { return ptr::null_mut() };
    // SAFETY: `aligned_alloc` refuses what is no alignment.
    let memory = unsafe { libc::aligned_alloc(alignment, rounded) };
    if zero && !memory.is_null() {
        // SAFETY: just allocated, of this size.
        unsafe { memory.cast::<u8>().write_bytes(0, rounded) };
    }
    memory
}

/// Whether a fault is to be injected: never.
#[unsafe(no_mangle)]
pub extern "C" fn d_should_fail(_attribute: *mut c_void) -> bool {
    false
}
