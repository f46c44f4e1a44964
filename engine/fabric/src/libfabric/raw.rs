//! Owned libfabric objects, and their calls with Rust types.
#![expect(unsafe_code, reason = "calls into libfabric")]

use super::{provider_names, sys};
use crate::memory::{Access, Memory};
use crate::{Address, AuthKey, FabricError, MrMethod, Wait};
use core::cell::Cell;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut};
use std::ffi::CString;
use std::os::fd::RawFd;
use std::rc::Rc;

/// What a provider said to a posted operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Posted {
    /// Accepted.
    Yes,
    /// No room, or not connected yet.
    Again,
    /// Refused, with libfabric's negative error number.
    Failed(i64),
}

impl From<i64> for Posted {
    fn from(code: i64) -> Self {
        match code {
            0 => Self::Yes,
            code if code == -sys::FI_EAGAIN => Self::Again,
            code => Self::Failed(code),
        }
    }
}

/// Where and how to open an endpoint.
pub(super) struct OpenArgs<'a> {
    pub(super) provider: &'a str,
    pub(super) node: Option<&'a str>,
    pub(super) service: Option<&'a str>,
    /// The NIC, by the name of its domain.
    pub(super) device: Option<&'a str>,
    /// The endpoint's own name, for providers that take any.
    pub(super) address: Option<&'a str>,
    pub(super) needs: sys::Needs,
    pub(super) auth_keys: &'a [AuthKey],
    pub(super) wait: Wait,
    /// A write has ended only when it has arrived.
    pub(super) delivery: bool,
    pub(super) queue: u64,
    /// Bytes that have to be left in a slab for the provider to keep it, where slabs take many messages.
    pub(super) min_multi_recv: Option<usize>,
    pub(super) mr_method: MrMethod,
}

/// Text of an error number.
pub(super) fn reason(code: i64) -> String {
    // SAFETY: returns a string that lives as long as the library.
    unsafe { CStr::from_ptr(sys::weir_strerror(code)) }.to_string_lossy().into_owned()
}

pub(super) fn failure(call: &'static str, code: i64, provider: &str) -> FabricError {
    FabricError::Provider { call, code, reason: reason(code), provider: provider.to_owned() }
}

fn text(value: &str) -> Result<CString, FabricError> {
    CString::new(value).map_err(|_| FabricError::BadAddress {
        address: value.replace('\0', "\\0"),
        provider: "any".to_owned(),
    })
}

/// A provider's name as the library has it.
fn provider_name(provider: &str) -> Result<CString, FabricError> {
    text(provider_names::offered_as(provider))
}

/// Asks a provider for an offer.
pub(super) fn probe(provider: &str, needs: &sys::Needs) -> Result<sys::Caps, FabricError> {
    let mut caps = sys::Caps::EMPTY;
    let name = provider_name(provider)?;
    // SAFETY: the string is terminated, the structures have the layouts of the C side.
    match unsafe { sys::weir_probe(name.as_ptr(), needs, &raw mut caps) } {
        0 => Ok(caps),
        code => Err(failure("fi_getinfo", code, provider)),
    }
}

/// Whether a provider has a NIC of this name for such an endpoint, at whatever address.
pub(super) fn has_device(provider: &str, needs: &sys::Needs, device: &str) -> Result<bool, FabricError> {
    let device = text(device)?;
    Ok(probe(provider, &sys::Needs { device: device.as_ptr(), ..*needs }).is_ok())
}

/// How the library names a way to wait.
fn wait_object(wait: Wait) -> c_int {
    match wait {
        Wait::Fd => sys::WAIT_FD,
        Wait::FdSet => sys::WAIT_SET,
        Wait::Doorbell | Wait::Simulated => sys::WAIT_NONE,
    }
}

/// A key as the provider takes it.
fn raw_key(key: AuthKey) -> sys::RawAuthKey {
    sys::RawAuthKey { service: key.service, vni: key.vni }
}

/// Asks whether an offer's completion queues can be waited for in this way, in a domain with this key.
pub(super) fn probe_wait(
    provider: &str,
    needs: &sys::Needs,
    key: Option<AuthKey>,
    wait: Wait,
) -> Result<(), FabricError> {
    let name = provider_name(provider)?;
    let key = key.map(raw_key);
    let keys = key.as_slice();
    let needs = sys::Needs { keys: keys.as_ptr(), key_count: keys.len() as u64, ..*needs };
    let mut error = sys::CallError::NONE;
    // SAFETY: the string is terminated, the structures have the layouts of the C side, and the key outlives the call.
    match unsafe { sys::weir_probe_wait(name.as_ptr(), &raw const needs, wait_object(wait), &raw mut error) }
    {
        0 => Ok(()),
        code => Err(failure(error.call(), code, provider)),
    }
}

/// Most providers that are listed: all of today's, twice.
const PROVIDERS_MAX: usize = 64;

/// Names of the providers that the library offers.
pub(super) fn providers() -> Result<Vec<String>, FabricError> {
    let mut names = [[0; 64]; PROVIDERS_MAX];
    // SAFETY: there is room for as many names as said; the C side terminates each.
    let count = unsafe { sys::weir_providers(names.as_mut_ptr(), PROVIDERS_MAX as u64) };
    let count = usize::try_from(count).map_err(|_| failure("fi_getinfo", count, "any"))?;
    let text = |name: &[core::ffi::c_char; 64]| {
        // SAFETY: terminated within its 64 bytes.
        unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
    };
    Ok(names.iter().take(count).map(text).collect())
}

/// Fabric, domain, address vector, completion queue and endpoint. Closed in two steps: [`Raw::stop`] ends all use of
/// posted memory, dropping the last reference ends the domain, after the last registration.
pub(super) struct Raw {
    ptr: *mut sys::WeirFabric,
    stopped: Cell<bool>,
    provider: String,
    /// Keys of an endpoint that serves several, with their entries.
    auth_keys: Vec<(AuthKey, u64)>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed only here.
        unsafe { sys::weir_fabric_close(self.ptr) };
    }
}

impl Raw {
    pub(super) fn open(args: &OpenArgs<'_>) -> Result<(Rc<Self>, sys::Caps), FabricError> {
        let provider = provider_name(args.provider)?;
        let node = args.node.map(text).transpose()?;
        let service = args.service.map(text).transpose()?;
        let address = args.address.map(text).transpose()?;
        let device = args.device.map(text).transpose()?;
        let pointer = |value: &Option<CString>| value.as_ref().map_or(null(), |value| value.as_ptr());
        let keys: Vec<sys::RawAuthKey> = args.auth_keys.iter().copied().map(raw_key).collect();
        let mut key_ids = vec![0u64; keys.len()];
        let mut needs = sys::Needs { device: pointer(&device), ..args.needs };
        if !keys.is_empty() {
            (needs.keys, needs.key_count) = (keys.as_ptr(), keys.len() as u64);
            needs.auth_keys = if keys.len() > 1 { u32::try_from(keys.len()).unwrap_or(u32::MAX) } else { 0 };
        }
        let mr = sys::MrSettings {
            match_events: i32::from(args.mr_method == MrMethod::MatchEvents),
            optimized: i32::from(args.mr_method.is_optimized()),
            key_cache: i32::from(args.mr_method.leaves_exposed()),
        };
        let mut ptr = null_mut();
        let mut caps = sys::Caps::EMPTY;
        let mut error = sys::CallError::NONE;
        // SAFETY: strings are terminated and outlive the call, as do the keys, for each of which there is room for an id;
        // the structures have the layouts of the C side.
        let code = unsafe {
            sys::weir_fabric_open(
                provider.as_ptr(),
                pointer(&node),
                pointer(&service),
                pointer(&address),
                &raw const needs,
                key_ids.as_mut_ptr(),
                wait_object(args.wait),
                i32::from(args.delivery),
                args.queue,
                args.min_multi_recv.map_or(0, |bytes| bytes as u64),
                &raw const mr,
                &raw mut ptr,
                &raw mut caps,
                &raw mut error,
            )
        };
        if code != 0 {
            return Err(failure(error.call(), code, args.provider));
        }
        let several = args.auth_keys.len() > 1;
        let auth_keys = args.auth_keys.iter().copied().zip(key_ids).filter(|_| several).collect();
        let raw = Self { ptr, stopped: Cell::new(false), provider: args.provider.to_owned(), auth_keys };
        Ok((Rc::new(raw), caps))
    }

    pub(super) fn provider(&self) -> &str {
        &self.provider
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// The first of several auth keys.
    pub(super) fn first_key(&self) -> Option<AuthKey> {
        self.auth_keys.first().map(|(key, _)| *key)
    }

    /// The key of an entry that an error event names.
    pub(super) fn key_of(&self, entry: u64) -> Option<AuthKey> {
        self.auth_keys.iter().find(|(_, id)| *id == entry).map(|(key, _)| *key)
    }

    /// Closes the endpoint and its queues, with the registrations that are bound to it, and all that others have taken the
    /// place of; every later call is refused.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
        // SAFETY: open or stopped; the C side clears what it closes.
        unsafe { sys::weir_fabric_stop(self.ptr) };
    }

    /// Closes an endpoint that was opened in another's place and that no other code knows yet. Earlier ones stay: other
    /// threads of this process may be writing there.
    pub(super) fn abandon(&self) {
        self.stopped.set(true);
        // SAFETY: open or stopped; the C side clears what it closes.
        unsafe { sys::weir_fabric_abandon(self.ptr) };
    }

    /// Opens another endpoint of this name in the place of the one that there is, with an empty address vector;
    /// registrations stay. The old one does nothing any more. After an error there is none, and it can be tried again with a
    /// name that was not tried before.
    pub(super) fn reopen(&self, name: &str) -> Result<(), FabricError> {
        let name = text(name)?;
        let mut error = sys::CallError::NONE;
        // SAFETY: open or stopped; the string is terminated.
        let code = unsafe { sys::weir_fabric_reopen(self.ptr, name.as_ptr(), &raw mut error) };
        self.stopped.set(code != 0);
        self.check(error.call(), code)
    }

    /// Closes the endpoints that others have taken the place of, but for the last ones: those whose shared memory no thread of
    /// this process writes to any more.
    pub(super) fn bury(&self, but: usize) {
        // SAFETY: open or stopped.
        unsafe { sys::weir_fabric_bury(self.ptr, but as u64) };
    }

    fn live(&self) -> Result<*mut sys::WeirFabric, FabricError> {
        if self.stopped.get() { Err(FabricError::Cancelled) } else { Ok(self.ptr) }
    }

    fn check(&self, call: &'static str, code: i64) -> Result<(), FabricError> {
        if code == 0 { Ok(()) } else { Err(failure(call, code, &self.provider)) }
    }

    /// The endpoint's own address.
    pub(super) fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut bytes = vec![0u8; 256];
        let mut len = bytes.len() as u64;
        // SAFETY: open; the buffer is as long as said.
        let code = unsafe { sys::weir_getname(self.live()?, bytes.as_mut_ptr().cast(), &raw mut len) };
        self.check("fi_getname", code)?;
        bytes.truncate(usize::try_from(len).unwrap_or(0));
        Ok(bytes)
    }

    /// The endpoint's own address in the provider's spelling, where it has one.
    pub(super) fn spell(&self, own: &Address) -> Option<String> {
        let mut text = [0u8; 256];
        let address = own.as_bytes();
        // Names end with a zero, which an address need not carry.
        let padded = [address, &[0]].concat();
        // SAFETY: open; the address is one of the provider's form, and there is room for as much text as said.
        let len = unsafe {
            let (address, room) = (padded.as_ptr().cast(), text.as_mut_ptr().cast());
            sys::weir_straddr(self.live().ok()?, address, room, text.len() as u64)
        };
        if len <= 0 {
            return None;
        }
        CStr::from_bytes_until_nul(&text).ok()?.to_str().ok().map(str::to_owned)
    }

    /// The completion queue's descriptor.
    pub(super) fn wait_fd(&self) -> Result<RawFd, FabricError> {
        let mut fd = -1;
        // SAFETY: open; the pointer is to a C int.
        let code = unsafe { sys::weir_wait_fd(self.live()?, &raw mut fd) };
        self.check("fi_control(FI_GETWAIT)", code).map(|()| fd)
    }

    /// The descriptors of a completion queue that has several.
    pub(super) fn wait_fds(&self) -> Result<Vec<sys::WaitFd>, FabricError> {
        let mut fds = [sys::WaitFd { fd: -1, nested: 0 }; sys::WAIT_FDS_MAX];
        // SAFETY: open; there is room for as many as the C side lists.
        let count = unsafe { sys::weir_wait_fds(self.live()?, fds.as_mut_ptr()) };
        let listed = usize::try_from(count).ok().and_then(|count| fds.get(..count));
        listed.map(<[_]>::to_vec).ok_or_else(|| failure("fi_control(FI_GETWAIT)", count, &self.provider))
    }

    /// Whether it is safe to sleep on the descriptors.
    pub(super) fn trywait(&self) -> bool {
        // SAFETY: open.
        self.live().is_ok_and(|ptr| unsafe { sys::weir_trywait(ptr) } == 0)
    }

    /// Adds an address, which must be one of this provider's and, for string addresses, be terminated. Completions
    /// name the peer by `user_id`, where one is given and the provider can, else by the number that is returned.
    pub(super) fn insert(&self, address: &Address, user_id: Option<u64>) -> Result<u64, FabricError> {
        let entry_of =
            |key: AuthKey| self.auth_keys.iter().find(|(known, _)| *known == key).map(|(_, id)| *id);
        let key_id = address.auth_key().and_then(entry_of);
        let address = address.as_bytes();
        let mut padded = address.to_vec();
        // String addresses end here at the latest; socket addresses carry their own length.
        padded.push(0);
        let (mut peer, number) = match (key_id, user_id) {
            (Some(key), _) => (key, sys::NUMBER_AUTH_KEY),
            (None, Some(id)) => (id, sys::NUMBER_USER_ID),
            (None, None) => (sys::FI_ADDR_NOTAVAIL, sys::NUMBER_NONE),
        };
        // SAFETY: open; the provider reads one address of its own format, which the caller has checked.
        let code =
            unsafe { sys::weir_av_insert(self.live()?, padded.as_ptr().cast(), number, &raw mut peer) };
        self.check("fi_av_insert", code).map(|()| peer)
    }

    /// Removes an address. One that could not be inserted has nothing to remove.
    pub(super) fn remove(&self, peer: u64) {
        if let Ok(ptr) = self.live()
            && peer != sys::FI_ADDR_NOTAVAIL
        {
            // SAFETY: open; the entry was inserted and is removed once.
            unsafe { sys::weir_av_remove(ptr, peer) };
        }
    }

    /// Posts a receive slab.
    ///
    /// # Safety
    /// The memory and `context` must stay until the provider has released the slab or the endpoint is stopped or replaced
    /// ([`Self::reopen`]): one that was replaced is not driven any more, and only its own progress fills slabs.
    pub(super) unsafe fn post_slab(
        &self,
        memory: &Memory,
        desc: *mut c_void,
        context: *mut c_void,
    ) -> Posted {
        let Ok(ptr) = self.live() else { return Posted::Failed(-i64::from(sys::FI_ECANCELED)) };
        // SAFETY: as promised by the caller.
        unsafe { sys::weir_post_slab(ptr, memory.as_ptr().cast(), memory.len() as u64, desc, context) }.into()
    }

    /// Posts a buffer for one message.
    ///
    /// # Safety
    /// The memory and `context` must stay until the completion or until the endpoint is stopped or replaced
    /// ([`Self::reopen`]).
    pub(super) unsafe fn post_buffer(
        &self,
        memory: &Memory,
        desc: *mut c_void,
        context: *mut c_void,
    ) -> Posted {
        let Ok(ptr) = self.live() else { return Posted::Failed(-i64::from(sys::FI_ECANCELED)) };
        // SAFETY: as promised by the caller.
        unsafe { sys::weir_post_buffer(ptr, memory.as_ptr().cast(), memory.len() as u64, desc, context) }
            .into()
    }

    /// Sends without a completion; the bytes are free on return.
    pub(super) fn inject(&self, bytes: &[u8], peer: u64) -> Posted {
        let Ok(ptr) = self.live() else { return Posted::Failed(-i64::from(sys::FI_ECANCELED)) };
        // SAFETY: open; the provider copies the bytes before it returns.
        unsafe { sys::weir_inject(ptr, bytes.as_ptr().cast(), bytes.len() as u64, peer) }.into()
    }

    /// Sends the first `len` bytes of a memory.
    ///
    /// # Safety
    /// The memory and `context` must stay until the completion or until the endpoint is stopped or replaced
    /// ([`Self::reopen`]). After that a peer may still read what it has begun to: the memory must stay for as long as
    /// peers take to look whether the endpoint has moved.
    pub(super) unsafe fn send(
        &self,
        memory: &Memory,
        len: usize,
        desc: *mut c_void,
        peer: u64,
        context: *mut c_void,
    ) -> Posted {
        let Ok(ptr) = self.live() else { return Posted::Failed(-i64::from(sys::FI_ECANCELED)) };
        // SAFETY: as promised by the caller.
        unsafe { sys::weir_send(ptr, memory.as_ptr().cast(), len as u64, desc, peer, context) }.into()
    }

    /// Starts a read or write of remote memory.
    ///
    /// # Safety
    /// `at..at + len` must be within the memory, and the memory and `context` must stay until the completion or
    /// until the endpoint is stopped or replaced ([`Self::reopen`]). After that a peer may still move what it has
    /// begun to: the memory must stay for as long as peers take to look whether the endpoint has moved.
    pub(super) unsafe fn transfer(&self, job: &RawTransfer<'_>, context: *mut c_void) -> Posted {
        let Ok(ptr) = self.live() else { return Posted::Failed(-i64::from(sys::FI_ECANCELED)) };
        let RawTransfer { access, memory, at, len, desc, peer, addr, key } = *job;
        // SAFETY: as promised by the caller.
        unsafe {
            let local = memory.as_ptr().add(at).cast::<c_void>();
            match access {
                Access::Read => sys::weir_read(ptr, local, len as u64, desc, peer, addr, key, context),
                Access::Write => sys::weir_write(ptr, local, len as u64, desc, peer, addr, key, context),
            }
        }
        .into()
    }

    /// Takes completions. The number of them, or a negative error number.
    pub(super) fn read_queue(&self, entries: &mut [sys::Completion], sources: &mut [u64]) -> i64 {
        let Ok(ptr) = self.live() else { return -sys::FI_EAGAIN };
        let count = entries.len().min(sources.len()) as u64;
        // SAFETY: open; both arrays have room for `count`.
        unsafe { sys::weir_cq_read(ptr, entries.as_mut_ptr(), sources.as_mut_ptr(), count) }
    }

    /// Takes one failed completion.
    pub(super) fn read_failure(&self) -> Option<sys::Failure> {
        let mut failure = sys::Failure::EMPTY;
        // SAFETY: open; the structure has the layout of the C side.
        let code = unsafe { sys::weir_cq_failure(self.live().ok()?, &raw mut failure) };
        (code == 1).then_some(failure)
    }

    /// Registers memory for one use.
    ///
    /// # Safety
    /// The memory must stay until the registration is dropped.
    pub(super) unsafe fn register(
        self: &Rc<Self>,
        memory: &Memory,
        at: usize,
        len: usize,
        usage: Usage,
        key: u64,
    ) -> Result<Registration, i64> {
        let ptr = self.live().map_err(|_| -i64::from(sys::FI_ECANCELED))?;
        let (mut mr, mut actual, mut desc) = (null_mut(), 0, null_mut());
        // SAFETY: as promised by the caller; the range was checked by it.
        let code = unsafe {
            sys::weir_mr_register(
                ptr,
                memory.as_ptr().add(at).cast(),
                len as u64,
                usage as u32,
                key,
                &raw mut mr,
                &raw mut actual,
                &raw mut desc,
            )
        };
        if code == 0 { Ok(Registration { mr, key: actual, desc, raw: Rc::clone(self) }) } else { Err(code) }
    }
}

/// What memory is registered for: a place in the C side's list of what that needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Usage {
    /// Peers read it.
    Read,
    /// Peers write to it.
    Write,
    /// This side sends it.
    Send,
    /// Messages are received into it.
    Receive,
    /// This side moves it to or from peers' memory.
    Move,
}

impl From<Access> for Usage {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::Read,
            Access::Write => Self::Write,
        }
    }
}

/// A transfer as the provider sees it.
#[derive(Clone, Copy)]
pub(super) struct RawTransfer<'a> {
    pub(super) access: Access,
    pub(super) memory: &'a Memory,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) desc: *mut c_void,
    pub(super) peer: u64,
    pub(super) addr: u64,
    pub(super) key: u64,
}

/// Registered memory; it keeps the domain open.
pub(super) struct Registration {
    mr: *mut c_void,
    key: u64,
    desc: *mut c_void,
    raw: Rc<Raw>,
}

impl Registration {
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn desc(&self) -> *mut c_void {
        self.desc
    }

    /// Whether it was made in this domain.
    pub(super) fn is_of(&self, raw: &Rc<Raw>) -> bool {
        Rc::ptr_eq(&self.raw, raw)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered in `Raw::register`, closed only here, before the domain: `raw` keeps that open.
        unsafe { sys::weir_mr_close(self.raw.ptr, self.mr) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::provider_facts;
    use super::*;

    #[test]
    fn the_library_is_asked_for_the_device_by_name() {
        let facts = provider_facts::facts("tcp", &[]).expect("built in");
        let on = |device| {
            let args = OpenArgs { device: Some(device), ..facts.on_loopback() };
            Raw::open(&args).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(on("lo"), Ok(()));
        let error = on("absent0").expect_err("there is none");
        assert!(error.starts_with("fi_getinfo"), "{error}");
        assert!(on("l\0o").is_err(), "no name at all");
    }

    #[test]
    fn an_address_is_spelled_as_the_provider_does() {
        let (raw, _) = Raw::open(&provider_facts::facts("tcp", &[]).expect("built in").on_loopback())
            .expect("an endpoint");
        let own = Address::from_bytes(&raw.name().expect("a name")).expect("short enough");
        assert_eq!(raw.spell(&own), Some(format!("fi_sockaddr_in://{own}")));
        raw.stop();
        assert_eq!(raw.spell(&own), None);
    }
}
