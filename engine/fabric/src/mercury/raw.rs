//! Mercury's objects, with the rules that keep their use sound.
#![expect(unsafe_code, reason = "calling Mercury")]

use super::sys::{self, Event, HgAddr, HgBulk, HgHandle, HgMove, WeirHg};
use crate::FabricError;
use crate::address::ADDRESS_MAX;
use crate::memory::{Access, Memory};
use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::collections::HashSet;
use std::ffi::CString;
use std::rc::{Rc, Weak};

/// A refusal: Mercury's error number, positive.
pub(super) type Code = i32;

/// Mercury's text for an error number.
pub(super) fn reason(code: Code) -> String {
    // SAFETY: the function takes any number and returns a constant text.
    let text = unsafe { CStr::from_ptr(sys::weir_hg_reason(code)) };
    text.to_string_lossy().trim_start_matches("HG_").to_lowercase().replace('_', " ")
}

/// The library's version.
pub(super) fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the function writes three numbers.
    unsafe { sys::weir_hg_version(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}

/// A call of Mercury failed.
pub(super) fn failure(call: &'static str, code: Code, provider: &str) -> FabricError {
    FabricError::Provider { call, code: i64::from(code), reason: reason(code), provider: provider.to_owned() }
}

fn check(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// The text up to its terminating zero.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// One class with its context, for one thread. When it is closed everything that it handed out is void, and using any
/// of it gives an error here.
pub(super) struct Raw {
    hg: Cell<*mut WeirHg>,
    /// Registrations that exist.
    bulks: RefCell<HashSet<*mut HgBulk>>,
    /// Addresses that exist.
    addresses: RefCell<HashSet<*mut HgAddr>>,
}

/// A peer's address; freed when dropped.
pub(super) struct PeerAddress {
    raw: Weak<Raw>,
    addr: *mut HgAddr,
}

impl Drop for PeerAddress {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.upgrade()
            && raw.addresses.borrow_mut().remove(&self.addr)
        {
            // SAFETY: the address exists, and the class too: closing it empties the list first.
            unsafe { sys::weir_hg_forget(raw.hg.get(), self.addr) };
        }
    }
}

/// Registered memory; the registration ends when dropped.
pub(super) struct Registration {
    raw: Weak<Raw>,
    bulk: *mut HgBulk,
    /// Protection key, where the plugin has keys.
    pub(super) key: u64,
}

impl Registration {
    /// Whether it belongs to this class, and that is open.
    pub(super) fn serves(&self, raw: &Rc<Raw>) -> bool {
        self.raw.ptr_eq(&Rc::downgrade(raw)) && raw.is_open()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.upgrade()
            && raw.bulks.borrow_mut().remove(&self.bulk)
        {
            // SAFETY: the registration exists, as above.
            unsafe { sys::weir_hg_conceal(self.bulk) };
        }
    }
}

/// A read or write to be started.
pub(super) struct Move<'a> {
    pub(super) access: Access,
    pub(super) peer: &'a PeerAddress,
    /// What the plugin takes for the start of the peer's memory.
    pub(super) base: u64,
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) local: &'a Registration,
    pub(super) at: usize,
    pub(super) len: usize,
}

/// A message that was listed, until it is released.
pub(super) struct Arrived<'a> {
    event: &'a Event,
}

impl<'a> Arrived<'a> {
    /// The message of an event, which must be one and must not have been taken before.
    pub(super) fn of(event: &'a Event) -> Self {
        Self { event }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let len = usize::try_from(self.event.len).unwrap_or(0);
        if self.event.data.is_null() {
            return &[];
        }
        // SAFETY: Mercury keeps the payload until the request is released, which dropping `self` does.
        unsafe { core::slice::from_raw_parts(self.event.data, len) }
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        // SAFETY: listed once, released once.
        unsafe { sys::weir_hg_release(self.event.handle) };
    }
}

impl Raw {
    /// Opens a class at an address such as `ofi+tcp://10.0.0.1:31416`. The error is Mercury's number, and whether it
    /// was about the layout of memory descriptors.
    pub(super) fn open(info: &str, message_max: usize, posts: u32) -> Result<Rc<Self>, (Code, bool)> {
        /// `HG_INVALID_ARG`.
        const INVALID: Code = 11;
        let info = CString::new(info).map_err(|_| (INVALID, false))?;
        let (mut hg, mut layout) = (core::ptr::null_mut(), 0);
        // SAFETY: the text is terminated; what is written to lives here.
        let code = unsafe {
            sys::weir_hg_open(info.as_ptr(), message_max as u64, posts, &raw mut hg, &raw mut layout)
        };
        check(code).map_err(|code| (code, layout != 0))?;
        Ok(Rc::new(Self { hg: Cell::new(hg), bulks: RefCell::default(), addresses: RefCell::default() }))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.hg.get().is_null()
    }

    /// Ends the class. Registrations and addresses are void from here on.
    pub(super) fn close(&self) -> Result<(), Code> {
        let hg = self.hg.replace(core::ptr::null_mut());
        if hg.is_null() {
            return Ok(());
        }
        for bulk in self.bulks.take() {
            // SAFETY: it existed; the empty list tells its owner that it is gone.
            unsafe { sys::weir_hg_conceal(bulk) };
        }
        for addr in self.addresses.take() {
            // SAFETY: likewise.
            unsafe { sys::weir_hg_forget(hg, addr) };
        }
        // SAFETY: no other code has the pointer any more. When it fails, the class stays, unreachable.
        check(unsafe { sys::weir_hg_close(hg) })
    }

    /// Lets go of the class without ending it: Mercury still works on memory.
    pub(super) fn abandon(&self) {
        self.hg.set(core::ptr::null_mut());
        self.bulks.take();
        self.addresses.take();
    }

    pub(super) fn wait_fd(&self) -> Option<i32> {
        // SAFETY: the class is open while the endpoint is.
        let fd = unsafe { sys::weir_hg_wait_fd(self.hg.get()) };
        (fd >= 0).then_some(fd)
    }

    pub(super) fn is_ready(&self) -> bool {
        // SAFETY: as above.
        unsafe { sys::weir_hg_ready(self.hg.get()) }
    }

    pub(super) fn message_max(&self) -> usize {
        // SAFETY: as above.
        usize::try_from(unsafe { sys::weir_hg_message_max(self.hg.get()) }).unwrap_or(0)
    }

    pub(super) fn is_sm(&self) -> bool {
        // SAFETY: as above.
        unsafe { sys::weir_hg_is_sm(self.hg.get()) }
    }

    pub(super) fn own_name(&self) -> Result<String, Code> {
        let mut name = [0u8; ADDRESS_MAX];
        // SAFETY: as above; the text is cut to the room.
        let code = unsafe {
            sys::weir_hg_own_name(self.hg.get(), name.as_mut_ptr().cast::<c_char>(), ADDRESS_MAX as u64)
        };
        check(code).map(|()| text(&name))
    }

    /// Moves things on and lists what has happened.
    pub(super) fn poll(&self, events: &mut [Event]) -> usize {
        let room = u32::try_from(events.len()).unwrap_or(u32::MAX);
        // SAFETY: the list has that much room.
        let count = unsafe { sys::weir_hg_poll(self.hg.get(), events.as_mut_ptr(), room) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Finds a peer, and the number that its messages will have.
    pub(super) fn lookup(self: &Rc<Self>, name: &str) -> Result<(PeerAddress, u64), Code> {
        let Ok(name) = CString::new(name) else { return Err(1) };
        let (mut addr, mut number) = (core::ptr::null_mut(), 0);
        // SAFETY: the text is terminated; what is written to lives here.
        let code =
            unsafe { sys::weir_hg_lookup(self.hg.get(), name.as_ptr(), &raw mut addr, &raw mut number) };
        check(code)?;
        self.addresses.borrow_mut().insert(addr);
        Ok((PeerAddress { raw: Rc::downgrade(self), addr }, number))
    }

    /// Sends a message. Returns the request, which its event ends.
    pub(super) fn send(
        &self,
        to: &PeerAddress,
        head: &[u8],
        body: &[&[u8]],
        token: u64,
    ) -> Result<*mut HgHandle, Code> {
        /// `HG_MSGSIZE`.
        const TOO_LONG: Code = 14;
        let (mut handle, mut data, mut room) = (core::ptr::null_mut(), core::ptr::null_mut(), 0);
        let hg = self.hg.get();
        let len = head.len() + body.iter().map(|part| part.len()).sum::<usize>();
        // SAFETY: class and address exist; what is written to lives here.
        check(unsafe { sys::weir_hg_prepare(hg, to.addr, &raw mut handle, &raw mut data, &raw mut room) })?;
        if len as u64 > room {
            // SAFETY: a request that was never sent.
            unsafe { sys::weir_hg_release(handle.cast::<c_void>()) };
            return Err(TOO_LONG);
        }
        let mut at = 0;
        for part in core::iter::once(&head).chain(body) {
            // SAFETY: there is room for all parts together.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), data.add(at), part.len()) };
            at += part.len();
        }
        // SAFETY: prepared just now.
        check(unsafe { sys::weir_hg_send(hg, handle, len as u64, token) })?;
        Ok(handle)
    }

    /// Has a message given up that is under way.
    ///
    /// # Safety
    /// The request's event must not have been listed.
    pub(super) unsafe fn cancel(&self, handle: *mut HgHandle) {
        if self.is_open() {
            // SAFETY: then the request is in use, says the caller.
            unsafe { sys::weir_hg_cancel(handle) };
        }
    }

    /// Registers a part of a memory: for a peer, or without `access` for transfers of our own.
    ///
    /// # Safety
    /// The memory must live until the registration is dropped or the class is closed.
    pub(super) unsafe fn register(
        self: &Rc<Self>,
        memory: &Memory,
        at: usize,
        len: usize,
        access: Option<Access>,
    ) -> Result<Registration, Code> {
        let flags = match access {
            Some(Access::Read) => sys::READ_ONLY,
            Some(Access::Write) => sys::WRITE_ONLY,
            None => sys::READ_WRITE,
        };
        let (mut bulk, mut key) = (core::ptr::null_mut(), 0);
        let start = memory.as_ptr().wrapping_add(at).cast::<c_void>();
        // SAFETY: the caller's range is within the memory.
        check(unsafe {
            sys::weir_hg_expose(self.hg.get(), start, len as u64, flags, &raw mut bulk, &raw mut key)
        })?;
        self.bulks.borrow_mut().insert(bulk);
        Ok(Registration { raw: Rc::downgrade(self), bulk, key })
    }

    /// Starts a transfer. Returns what stops it, which its event ends.
    ///
    /// # Safety
    /// The local memory, its registration and nothing else that uses these bytes must live until the event.
    pub(super) unsafe fn start(&self, job: &Move<'_>, token: u64) -> Result<*mut HgMove, Code> {
        let mut under_way = core::ptr::null_mut();
        let pull = job.access == Access::Read;
        // SAFETY: class, address and registration exist.
        check(unsafe {
            sys::weir_hg_move(
                self.hg.get(),
                pull,
                job.peer.addr,
                job.base,
                job.key,
                job.offset,
                job.local.bulk,
                job.at as u64,
                job.len as u64,
                token,
                &raw mut under_way,
            )
        })?;
        Ok(under_way)
    }

    /// Has a transfer given up that is under way.
    ///
    /// # Safety
    /// The transfer's event must not have been listed.
    pub(super) unsafe fn stop_move(&self, under_way: *mut HgMove) {
        if self.is_open() {
            // SAFETY: then it is under way, says the caller.
            unsafe { sys::weir_hg_stop_move(under_way) };
        }
    }
}
