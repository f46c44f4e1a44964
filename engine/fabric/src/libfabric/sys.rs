//! The C face of libfabric (`shim.c`, `queue.c`, `registration.c`), and what else is in C here. Layouts and constants here
//! repeat what is there; a test compares them.
#![expect(unsafe_code, reason = "declarations of C functions")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;

pub(super) const FI_MULTI_RECV: u64 = 1 << 16;
pub(super) const FI_SOURCE: u64 = 1 << 57;
pub(super) const FI_SOURCE_ERR: u64 = 1 << 50;
pub(super) const FI_AV_USER_ID: u64 = 1 << 41;
pub(super) const FI_MSG: u64 = 1 << 1;
pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const FI_MR_LOCAL: u32 = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: u32 = 1 << 4;
pub(super) const FI_MR_ALLOCATED: u32 = 1 << 5;
pub(super) const FI_MR_PROV_KEY: u32 = 1 << 6;
pub(super) const FI_MR_ENDPOINT: u32 = 1 << 9;
pub(super) const FI_EAGAIN: i64 = 11;
pub(super) const FI_EAVAIL: i64 = 259;
pub(super) const FI_EADDRNOTAVAIL: i32 = 99;
pub(super) const FI_ECANCELED: i32 = 125;
pub(super) const FI_ENOKEY: i64 = 266;

/// `FI_ADDR_NOTAVAIL`: the sender is not in the address vector.
pub(super) const FI_ADDR_NOTAVAIL: u64 = u64::MAX;

/// Addresses of a provider are hosts and ports.
pub(super) const ADDRESSES_SOCKETS: u32 = 0;
/// They are names.
pub(super) const ADDRESSES_NAMES: u32 = 1;
/// They are something of the provider's own.
pub(super) const ADDRESSES_FOREIGN: u32 = 2;

/// Opaque: fabric, domain, address vector, completion queue and endpoint.
#[repr(C)]
pub(super) struct WeirFabric {
    _private: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Caps {
    pub(super) provider: [u8; 64],
    pub(super) library: u32,
    pub(super) provider_version: u32,
    pub(super) mr_mode: u32,
    pub(super) address_form: u32,
    pub(super) address_format: u32,
    pub(super) abilities: u64,
    pub(super) domain: u64,
    pub(super) inject_size: u64,
    pub(super) max_message: u64,
    pub(super) mr_key_size: u64,
    pub(super) max_auth_keys: u64,
    pub(super) ordered_writes: u64,
    pub(super) mr_accounting: u64,
    pub(super) shared_queue: u64,
}

impl Caps {
    pub(super) const EMPTY: Self = Self {
        provider: [0; 64],
        library: 0,
        provider_version: 0,
        mr_mode: 0,
        address_form: ADDRESSES_SOCKETS,
        address_format: 0,
        abilities: 0,
        domain: 0,
        inject_size: 0,
        max_message: 0,
        mr_key_size: 0,
        max_auth_keys: 0,
        ordered_writes: 0,
        mr_accounting: 0,
        shared_queue: 0,
    };
}

/// What an offer of a provider must have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// Abilities of the endpoint.
    pub(super) caps: u64,
    /// Abilities of the domain.
    pub(super) domain_caps: u64,
    /// Registration modes that this side can live with.
    pub(super) mr_mode: u32,
    /// Auth keys for one endpoint; 0 leaves it to the provider.
    pub(super) auth_keys: u32,
    /// The keys themselves, where there are some.
    pub(super) keys: *const RawAuthKey,
    /// How many.
    pub(super) key_count: u64,
    /// Flags that operations must be able to have.
    pub(super) op_flags: u64,
    /// 1: the receiver-not-ready protocol of cxi; 0: what the provider takes by itself.
    pub(super) receiver_not_ready: u64,
    /// The NIC, by the name of its domain, terminated; null leaves it to the provider.
    pub(super) device: *const c_char,
}

/// An auth key as the provider takes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawAuthKey {
    pub(super) service: u32,
    pub(super) vni: u16,
}

/// How the `cxi` provider is to register memory; others have no such settings.
#[repr(C)]
pub(super) struct MrSettings {
    pub(super) match_events: c_int,
    pub(super) optimized: c_int,
    pub(super) key_cache: c_int,
}

/// The number given to [`weir_av_insert`] is nothing.
pub(super) const NUMBER_NONE: c_int = 0;
/// It is what completions are to name the peer by.
pub(super) const NUMBER_USER_ID: c_int = 1;
/// It is the entry of an auth key.
pub(super) const NUMBER_AUTH_KEY: c_int = 2;

#[repr(C)]
pub(super) struct CallError {
    call: *const c_char,
    code: i64,
}

impl CallError {
    /// Nothing has failed.
    pub(super) const NONE: Self = Self { call: null(), code: 0 };

    /// The name of the call that failed: the first one of an open, where none is told.
    pub(super) fn call(&self) -> &'static str {
        if self.call.is_null() {
            return "fi_getinfo";
        }
        // SAFETY: a string literal of the C side.
        unsafe { CStr::from_ptr(self.call) }.to_str().unwrap_or("libfabric")
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: u64,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
}

impl Completion {
    pub(super) const EMPTY: Self =
        Self { context: core::ptr::null_mut(), flags: 0, len: 0, buf: core::ptr::null_mut(), data: 0 };
}

#[repr(C)]
pub(super) struct Failure {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: u64,
    pub(super) buf: *mut c_void,
    pub(super) code: i32,
    pub(super) provider_code: i32,
    pub(super) source: u64,
    pub(super) address: [u8; 128],
    pub(super) address_len: u64,
}

impl Failure {
    pub(super) const EMPTY: Self = Self {
        context: core::ptr::null_mut(),
        flags: 0,
        len: 0,
        buf: core::ptr::null_mut(),
        code: 0,
        provider_code: 0,
        source: 0,
        address: [0; 128],
        address_len: 0,
    };
}

/// The completion queue is only looked at.
pub(super) const WAIT_NONE: c_int = 0;
/// It has a descriptor.
pub(super) const WAIT_FD: c_int = 1;
/// It has several.
pub(super) const WAIT_SET: c_int = 2;

/// Most descriptors of one queue.
pub(super) const WAIT_FDS_MAX: usize = 8;

/// A descriptor of a completion queue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaitFd {
    pub(super) fd: c_int,
    /// It is a set of others, which the provider looks at itself.
    pub(super) nested: c_int,
}

/// What the kernel knows of the progress of a TCP connection.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Progress {
    /// Timeouts since anything was last acknowledged.
    pub(super) retransmits: u32,
    /// Segments that are not acknowledged.
    pub(super) unacked: u32,
    /// Since the last acknowledgement, or since the connection was begun, in milliseconds.
    pub(super) silence_ms: u32,
    /// Questions since the last answer whether the peer has room, or is there.
    pub(super) probes: u32,
    /// Since the peer last sent something, or since the connection was begun, in milliseconds.
    pub(super) quiet_ms: u32,
    /// Not 0: the peer has sent something, or that isn't known.
    pub(super) heard: u32,
}

/// Where a TCP socket is connected, or is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dialled {
    /// In the order of the network; the first four bytes where it isn't IPv6.
    pub(super) address: [u8; 16],
    pub(super) port: u16,
    pub(super) is_v6: u16,
}

unsafe extern "C" {
    pub(super) fn weir_fabric_open(
        provider: *const c_char,
        node: *const c_char,
        service: *const c_char,
        address: *const c_char,
        needs: *const Needs,
        key_ids: *mut u64,
        wait: c_int,
        delivery: c_int,
        queue: u64,
        min_multi_recv: u64,
        mr: *const MrSettings,
        out: *mut *mut WeirFabric,
        caps: *mut Caps,
        error: *mut CallError,
    ) -> i64;
    pub(super) fn weir_fabric_stop(f: *mut WeirFabric);
    pub(super) fn weir_fabric_abandon(f: *mut WeirFabric);
    pub(super) fn weir_fabric_reopen(f: *mut WeirFabric, name: *const c_char, error: *mut CallError) -> i64;
    pub(super) fn weir_fabric_bury(f: *mut WeirFabric, but: u64);
    pub(super) fn weir_fabric_close(f: *mut WeirFabric);
    pub(super) fn weir_probe(provider: *const c_char, needs: *const Needs, caps: *mut Caps) -> i64;
    pub(super) fn weir_probe_wait(
        provider: *const c_char,
        needs: *const Needs,
        wait: c_int,
        error: *mut CallError,
    ) -> i64;
    pub(super) fn weir_providers(names: *mut [c_char; 64], room: u64) -> i64;
    pub(super) fn weir_getname(f: *mut WeirFabric, address: *mut c_void, len: *mut u64) -> i64;
    pub(super) fn weir_straddr(
        f: *mut WeirFabric,
        address: *const c_void,
        text: *mut c_char,
        len: u64,
    ) -> i64;
    pub(super) fn weir_wait_fd(f: *mut WeirFabric, fd: *mut c_int) -> i64;
    pub(super) fn weir_wait_fds(f: *mut WeirFabric, fds: *mut WaitFd) -> i64;
    pub(super) fn weir_trywait(f: *mut WeirFabric) -> i64;
    pub(super) fn weir_av_insert(
        f: *mut WeirFabric,
        address: *const c_void,
        number: c_int,
        peer: *mut u64,
    ) -> i64;
    pub(super) fn weir_av_remove(f: *mut WeirFabric, peer: u64) -> i64;
    pub(super) fn weir_post_slab(
        f: *mut WeirFabric,
        buf: *mut c_void,
        len: u64,
        desc: *mut c_void,
        context: *mut c_void,
    ) -> i64;
    pub(super) fn weir_post_buffer(
        f: *mut WeirFabric,
        buf: *mut c_void,
        len: u64,
        desc: *mut c_void,
        context: *mut c_void,
    ) -> i64;
    pub(super) fn weir_send(
        f: *mut WeirFabric,
        buf: *const c_void,
        len: u64,
        desc: *mut c_void,
        peer: u64,
        context: *mut c_void,
    ) -> i64;
    pub(super) fn weir_inject(f: *mut WeirFabric, buf: *const c_void, len: u64, peer: u64) -> i64;
    pub(super) fn weir_read(
        f: *mut WeirFabric,
        buf: *mut c_void,
        len: u64,
        desc: *mut c_void,
        peer: u64,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> i64;
    pub(super) fn weir_write(
        f: *mut WeirFabric,
        buf: *const c_void,
        len: u64,
        desc: *mut c_void,
        peer: u64,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> i64;
    pub(super) fn weir_cq_read(
        f: *mut WeirFabric,
        entries: *mut Completion,
        sources: *mut u64,
        count: u64,
    ) -> i64;
    pub(super) fn weir_cq_failure(f: *mut WeirFabric, failure: *mut Failure) -> i64;
    pub(super) fn weir_mr_register(
        f: *mut WeirFabric,
        buf: *const c_void,
        len: u64,
        usage: u32,
        key: u64,
        out: *mut *mut c_void,
        key_out: *mut u64,
        desc: *mut *mut c_void,
    ) -> i64;
    pub(super) fn weir_mr_close(f: *mut WeirFabric, registration: *mut c_void);
    pub(super) fn weir_tcp_progress(fd: c_int, progress: *mut Progress) -> i64;
    pub(super) fn weir_tcp_dialled(fd: c_int, dialled: *mut Dialled) -> i64;
    pub(super) fn weir_receive(
        socket: c_int,
        bytes: *mut c_void,
        len: u64,
        file: *mut i32,
        process: *mut u32,
    ) -> i64;
    pub(super) fn weir_region_lock(head: *const c_void, length: u64) -> i64;
    pub(super) fn weir_region_peers(head: *const c_void) -> *const c_void;
    pub(super) fn weir_peers_count(peers: *const c_void) -> i64;
    pub(super) fn weir_lock_held(lock: *const c_void) -> c_int;
    pub(super) fn weir_lock_break(lock: *mut c_void);
    pub(super) fn weir_strerror(code: i64) -> *const c_char;
    #[cfg(test)]
    pub(super) fn weir_verbs_code(code: i32, status: i32) -> i32;
    #[cfg(test)]
    pub(super) fn weir_constant(which: u32) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_verbs_says_of_the_way_to_a_peer_is_a_loss_of_contact_and_what_it_says_of_an_access_is_not() {
        const EIO: i32 = 5;
        // SAFETY: it looks at two numbers.
        let code = |code, status| unsafe { weir_verbs_code(code, status) };
        // Retries exceeded, and the peer not ready too often.
        for status in [12, 13] {
            assert!(super::super::progress::is_contact_loss(-i64::from(code(EIO, status))), "{status}");
        }
        // Local protection, and remote access.
        for status in [4, 10] {
            assert_eq!(code(EIO, status), EIO);
        }
        assert_eq!(code(FI_ECANCELED, 5), FI_ECANCELED, "flushed");
    }

    #[test]
    fn constants_are_those_of_the_librarys_headers() {
        let ours = [
            FI_MULTI_RECV,
            FI_SOURCE,
            FI_SOURCE_ERR,
            FI_AV_USER_ID,
            FI_MSG,
            FI_RMA,
            FI_RECV,
            FI_MR_LOCAL.into(),
            FI_MR_VIRT_ADDR.into(),
            FI_MR_ALLOCATED.into(),
            FI_MR_PROV_KEY.into(),
            FI_MR_ENDPOINT.into(),
            FI_EAGAIN.unsigned_abs(),
            FI_EAVAIL.unsigned_abs(),
            FI_EADDRNOTAVAIL.unsigned_abs().into(),
            FI_ECANCELED.unsigned_abs().into(),
            FI_ENOKEY.unsigned_abs(),
            FI_DELIVERY_COMPLETE,
            ADDRESSES_SOCKETS.into(),
            ADDRESSES_NAMES.into(),
            ADDRESSES_FOREIGN.into(),
        ];
        for (which, ours) in (0u32..).zip(ours) {
            // SAFETY: the function only looks into a table.
            assert_eq!(ours, unsafe { weir_constant(which) }, "constant {which}");
        }
    }
}
