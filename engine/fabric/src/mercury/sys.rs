//! The C face of Mercury (`shim.c`). The layout of an event is repeated here; both sides check its size.
#![expect(unsafe_code, reason = "declarations of C functions")]

use core::ffi::{c_char, c_int, c_void};

pub(super) const EVENT_MESSAGE: u32 = 1;
pub(super) const EVENT_SENT: u32 = 2;
pub(super) const EVENT_MOVED: u32 = 3;

/// `HG_BULK_READ_ONLY`.
pub(super) const READ_ONLY: u8 = 1;
/// `HG_BULK_WRITE_ONLY`.
pub(super) const WRITE_ONLY: u8 = 2;
/// `HG_BULK_READWRITE`.
pub(super) const READ_WRITE: u8 = 3;

/// Opaque: class, context and the requests that are kept.
#[repr(C)]
pub(super) struct WeirHg {
    _private: [u8; 0],
}

/// Opaque: a peer's address.
#[repr(C)]
pub(super) struct HgAddr {
    _private: [u8; 0],
}

/// Opaque: registered memory.
#[repr(C)]
pub(super) struct HgBulk {
    _private: [u8; 0],
}

/// Opaque: a request.
#[repr(C)]
pub(super) struct HgHandle {
    _private: [u8; 0],
}

/// Opaque: a transfer under way.
#[repr(C)]
pub(super) struct HgMove {
    _private: [u8; 0],
}

/// What has happened.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub(super) kind: u32,
    pub(super) status: i32,
    pub(super) token: u64,
    pub(super) handle: *mut c_void,
    pub(super) source: u64,
    pub(super) data: *const u8,
    pub(super) len: u64,
}

const _: () = assert!(size_of::<Event>() == 48, "as in shim.c");

impl Event {
    pub(super) const EMPTY: Self = Self {
        kind: 0,
        status: 0,
        token: 0,
        handle: core::ptr::null_mut(),
        source: 0,
        data: core::ptr::null(),
        len: 0,
    };
}

unsafe extern "C" {
    pub(super) fn weir_hg_open(
        info: *const c_char,
        message_max: u64,
        posts: u32,
        out: *mut *mut WeirHg,
        layout: *mut u32,
    ) -> c_int;
    pub(super) fn weir_hg_close(hg: *mut WeirHg) -> c_int;
    pub(super) fn weir_hg_version(major: *mut u32, minor: *mut u32, patch: *mut u32);
    pub(super) fn weir_hg_reason(code: c_int) -> *const c_char;
    pub(super) fn weir_hg_wait_fd(hg: *const WeirHg) -> c_int;
    pub(super) fn weir_hg_ready(hg: *mut WeirHg) -> bool;
    pub(super) fn weir_hg_message_max(hg: *const WeirHg) -> u64;
    pub(super) fn weir_hg_is_sm(hg: *const WeirHg) -> bool;
    pub(super) fn weir_hg_poll(hg: *mut WeirHg, events: *mut Event, room: u32) -> c_int;
    pub(super) fn weir_hg_release(handle: *mut c_void);
    pub(super) fn weir_hg_own_name(hg: *mut WeirHg, text: *mut c_char, room: u64) -> c_int;
    pub(super) fn weir_hg_lookup(
        hg: *mut WeirHg,
        name: *const c_char,
        addr: *mut *mut HgAddr,
        number: *mut u64,
    ) -> c_int;
    pub(super) fn weir_hg_forget(hg: *mut WeirHg, addr: *mut HgAddr);
    pub(super) fn weir_hg_prepare(
        hg: *mut WeirHg,
        addr: *mut HgAddr,
        handle: *mut *mut HgHandle,
        data: *mut *mut u8,
        room: *mut u64,
    ) -> c_int;
    pub(super) fn weir_hg_send(hg: *mut WeirHg, handle: *mut HgHandle, len: u64, token: u64) -> c_int;
    pub(super) fn weir_hg_cancel(handle: *mut HgHandle);
    pub(super) fn weir_hg_expose(
        hg: *mut WeirHg,
        base: *mut c_void,
        len: u64,
        flags: u8,
        bulk: *mut *mut HgBulk,
        key: *mut u64,
    ) -> c_int;
    pub(super) fn weir_hg_conceal(bulk: *mut HgBulk) -> c_int;
    pub(super) fn weir_hg_move(
        hg: *mut WeirHg,
        pull: bool,
        addr: *mut HgAddr,
        base: u64,
        key: u64,
        offset: u64,
        local: *mut HgBulk,
        at: u64,
        len: u64,
        token: u64,
        under_way: *mut *mut HgMove,
    ) -> c_int;
    pub(super) fn weir_hg_stop_move(under_way: *mut HgMove);
}
