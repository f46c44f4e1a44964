//! What the message macros of DAOS's headers call: errors and warnings go to standard error.

use core::ffi::{c_char, c_int, c_void};

/// The level of warnings; that of a more severe message is a higher number.
const WARNING: c_int = 0x04_00_00_00;

unsafe extern "C" {
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Prints a message if it is a warning or worse.
#[unsafe(no_mangle)]
pub extern "C" fn d_vlog(flags: c_int, format: *const c_char, arguments: *mut c_void) {
    if flags >= WARNING && !format.is_null() {
        // SAFETY: format and arguments fit each other by the caller's promise. A list of arguments is passed by its address.
        unsafe { vdprintf(2, format, arguments) };
    }
}

/// Messages are written at once: nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn d_log_sync() {}

/// Start and end of messages: nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn d_log_init() -> c_int {
    0
}

/// As [`d_log_init`].
#[unsafe(no_mangle)]
pub extern "C" fn d_log_fini() {}

/// Makes a facility of messages; there is one.
#[unsafe(no_mangle)]
pub extern "C" fn d_log_allocfacility(_short: *const c_char, _long: *const c_char) -> c_int {
    0
}
