//! libfabric on its own, for benchmarks: a loop in C that polls without pause, without anything of Weir above it. Messages of 64
//! bytes, and transfers of 1 MiB that the client drives.
#![expect(unsafe_code, reason = "calling the loop in C")]

use core::ffi::{CStr, c_char};
use core::ptr::{null, null_mut};
use core::time::Duration;
use std::ffi::CString;

use weir_runtime::nanos;

use super::raw::failure;
use crate::FabricError;
use crate::address::ADDRESS_MAX;

/// Opaque.
#[repr(C)]
struct WeirLoop {
    _private: [u8; 0],
}

/// Where something failed.
#[repr(C)]
struct LoopError {
    call: *const c_char,
    code: i64,
}

unsafe extern "C" {
    fn weir_loop_open(provider: *const c_char, out: *mut *mut WeirLoop, error: *mut LoopError) -> i64;
    fn weir_loop_close(fabric: *mut WeirLoop);
    fn weir_loop_name(fabric: *mut WeirLoop, text: *mut c_char, room: u64) -> i64;
    fn weir_loop_serve(fabric: *mut WeirLoop) -> i64;
    fn weir_loop_connect(fabric: *mut WeirLoop, server: *const c_char) -> i64;
    fn weir_loop_dismiss(fabric: *mut WeirLoop) -> i64;
    fn weir_loop_ask(fabric: *mut WeirLoop, load: u32, width: u32, span_ns: u64, rate: *mut f64) -> i64;
}

/// `-FI_EINVAL`.
const INVALID: i64 = -22;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Load {
    /// 64 bytes that come back.
    Echo = 0,
    /// 64 bytes that don't: 512 of them are under way, and 64 at a time are known to have arrived.
    Stream = 1,
    /// 1 MiB of the server's memory is read.
    Read = 2,
    /// 1 MiB is written to it, and counts when it was sent.
    Write = 3,
    /// The same, and counts when it has arrived.
    WriteArrived = 4,
}

/// One side of the loop.
#[derive(Debug)]
pub struct ReferenceLoop {
    fabric: *mut WeirLoop,
    provider: String,
}

impl ReferenceLoop {
    /// Opens one on loopback.
    ///
    /// # Errors
    /// When the provider has no reliable datagrams with RMA, or wants memory registered with endpoints.
    pub fn open(provider: &str) -> Result<Self, FabricError> {
        let name = CString::new(provider).map_err(|_| failure("fi_getinfo", INVALID, "any"))?;
        let (mut fabric, mut error) = (null_mut(), LoopError { call: null(), code: 0 });
        // SAFETY: the text is terminated; what is written to lives here.
        let code = unsafe { weir_loop_open(name.as_ptr(), &raw mut fabric, &raw mut error) };
        if code == 0 {
            return Ok(Self { fabric, provider: provider.to_owned() });
        }
        // SAFETY: a failure names its call by a string that lives as long as the program.
        let call = unsafe { CStr::from_ptr(error.call) }.to_str().unwrap_or("a call");
        Err(failure(call, error.code, provider))
    }

    fn check(&self, call: &'static str, code: i64) -> Result<(), FabricError> {
        if code == 0 { Ok(()) } else { Err(failure(call, code, &self.provider)) }
    }

    /// Where a server is reached, and its memory: one line for [`Self::connect`].
    ///
    /// # Errors
    /// When the library doesn't tell.
    pub fn name(&self) -> Result<String, FabricError> {
        let mut name = [0u8; 4 * ADDRESS_MAX];
        // SAFETY: the loop lives as long as this value; the text stays within the room, and is terminated.
        let code =
            unsafe { weir_loop_name(self.fabric, name.as_mut_ptr().cast::<c_char>(), name.len() as u64) };
        self.check("fi_getname", code)?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Serves one client until that has told it to end. Between its client's questions it naps.
    ///
    /// # Errors
    /// When the provider fails.
    pub fn serve(&self) -> Result<(), FabricError> {
        // SAFETY: as above.
        self.check("fi_cq_read", unsafe { weir_loop_serve(self.fabric) })
    }

    /// Becomes the client of the server with this [`Self::name`].
    ///
    /// # Errors
    /// When it can't be reached.
    pub fn connect(&self, server: &str) -> Result<(), FabricError> {
        let server = CString::new(server).map_err(|_| failure("fi_av_insert", INVALID, &self.provider))?;
        // SAFETY: as above; the text is terminated.
        self.check("fi_av_insert", unsafe { weir_loop_connect(self.fabric, server.as_ptr()) })
    }

    /// Operations per second with `width` in flight: at most 64 messages, or 4 transfers. Of [`Load::Stream`] it means
    /// nothing.
    ///
    /// # Errors
    /// When the server doesn't answer.
    pub fn ask(&self, load: Load, width: u32, span: Duration) -> Result<f64, FabricError> {
        let span = nanos(span);
        let mut rate = 0.0;
        // SAFETY: as above; what is written to lives here.
        let code = unsafe { weir_loop_ask(self.fabric, load as u32, width, span, &raw mut rate) };
        self.check("fi_inject", code).map(|()| rate)
    }

    /// Tells the server to end.
    ///
    /// # Errors
    /// When it can't be told.
    pub fn dismiss(&self) -> Result<(), FabricError> {
        // SAFETY: as above.
        self.check("fi_inject", unsafe { weir_loop_dismiss(self.fabric) })
    }
}

impl Drop for ReferenceLoop {
    fn drop(&mut self) {
        // SAFETY: the loop was opened, and no other code has it.
        unsafe { weir_loop_close(self.fabric) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does something with the client of a server in another thread, which then ends.
    fn with_client(provider: &'static str, work: impl FnOnce(&ReferenceLoop)) {
        let (told, name) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let server = ReferenceLoop::open(provider).expect("a server");
            told.send(server.name().expect("a name")).expect("taken");
            server.serve().expect("served");
        });
        let client = ReferenceLoop::open(provider).expect("a client");
        client.connect(&name.recv().expect("a name")).expect("connected");
        work(&client);
        client.dismiss().expect("told");
        server.join().expect("it ends");
    }

    fn all_loads(provider: &'static str) {
        with_client(provider, |client| {
            for round in 0..2 {
                for (load, width) in [
                    (Load::Echo, 1),
                    (Load::Echo, 16),
                    (Load::Stream, 1),
                    (Load::Read, 1),
                    (Load::Read, 4),
                    (Load::Write, 4),
                    (Load::WriteArrived, 1),
                    (Load::WriteArrived, 4),
                ] {
                    let rate = client.ask(load, width, Duration::from_millis(5));
                    let rate = rate.unwrap_or_else(|error| panic!("{load:?} {width} {round}: {error}"));
                    assert!(rate.is_finite() && rate > 0.0, "{load:?} {width}: {rate}");
                }
            }
        });
    }

    #[test]
    fn all_loads_run_on_tcp() {
        all_loads("tcp");
    }

    #[test]
    fn all_loads_run_on_shm() {
        all_loads("shm");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(ReferenceLoop::open("no such provider").is_err());
        let alone = ReferenceLoop::open("tcp").expect("opened");
        assert!(alone.connect("nonsense").is_err());
        with_client("tcp", |client| {
            for (load, width) in [(Load::Echo, 0), (Load::Echo, 65), (Load::Read, 5)] {
                assert!(client.ask(load, width, Duration::ZERO).is_err(), "{load:?} {width}");
            }
        });
    }
}
