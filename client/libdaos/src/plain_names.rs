//! Functions by their older names, which programs call that were compiled without the headers' macros.

use core::ffi::{c_char, c_int};

use crate::container::{daos_cont_create2, daos_cont_destroy2, daos_cont_open2};
use crate::object::daos_obj_generate_oid2;
use crate::pool::daos_pool_connect2;
use crate::types::{
    daos_cont_info_t, daos_event_t, daos_handle_t, daos_obj_id_t, daos_pool_info_t, daos_prop_t,
};

/// As [`daos_pool_connect2`].
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_connect(
    pool: *const c_char,
    sys: *const c_char,
    flags: u32,
    poh: *mut daos_handle_t,
    info: *mut daos_pool_info_t,
    ev: *mut daos_event_t,
) -> c_int {
    daos_pool_connect2(pool, sys, flags, poh, info, ev)
}

/// As [`daos_cont_create2`].
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_create(
    poh: daos_handle_t,
    uuid: *mut [u8; 16],
    cont_prop: *mut daos_prop_t,
    ev: *mut daos_event_t,
) -> c_int {
    daos_cont_create2(poh, uuid, cont_prop, ev)
}

/// As [`daos_cont_open2`].
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_open(
    poh: daos_handle_t,
    cont: *const c_char,
    flags: u32,
    coh: *mut daos_handle_t,
    info: *mut daos_cont_info_t,
    ev: *mut daos_event_t,
) -> c_int {
    daos_cont_open2(poh, cont, flags, coh, info, ev)
}

/// As [`daos_cont_destroy2`].
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_destroy(
    poh: daos_handle_t,
    cont: *const c_char,
    force: c_int,
    ev: *mut daos_event_t,
) -> c_int {
    daos_cont_destroy2(poh, cont, force, ev)
}

/// As [`daos_obj_generate_oid2`].
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_generate_oid(
    coh: daos_handle_t,
    oid: *mut daos_obj_id_t,
    kind: c_int,
    cid: u32,
    hints: u16,
    args: u32,
) -> c_int {
    daos_obj_generate_oid2(coh, oid, kind, cid, hints, args)
}
