//! Mercury on its own, for benchmarks: requests with empty responses and server-driven transfers of 1 MiB, without
//! anything of Weir above it.
#![expect(unsafe_code, reason = "calling the loop in C")]

use super::open::place;
use super::raw::failure;
use crate::address::ADDRESS_MAX;
use crate::endpoint::Bind;
use crate::{FabricError, mercury::PREFIX};
use core::ffi::{CStr, c_char, c_int};
use core::time::Duration;
use std::ffi::CString;
use weir_runtime::nanos;

/// Opaque.
#[repr(C)]
struct WeirHgLoop {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn weir_hg_loop_open(info: *const c_char, busy: bool, out: *mut *mut WeirHgLoop) -> c_int;
    fn weir_hg_loop_name(hg: *mut WeirHgLoop, text: *mut c_char, room: u64) -> c_int;
    fn weir_hg_loop_serve(hg: *mut WeirHgLoop) -> c_int;
    fn weir_hg_loop_ask(
        hg: *mut WeirHgLoop,
        server: *const c_char,
        load: u32,
        width: u32,
        span_ns: u64,
        rate: *mut f64,
    ) -> c_int;
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Load {
    /// 64 bytes, answered with nothing.
    Empty = 0,
    /// The server reads 1 MiB of the client's memory.
    Pull = 1,
    /// The server writes 1 MiB to it.
    Push = 2,
}

/// One side of the loop. It lasts as long as the process.
pub struct ReferenceLoop {
    hg: *mut WeirHgLoop,
    provider: String,
}

impl ReferenceLoop {
    /// Opens one on loopback. A busy one does not sleep while there is work, which spares its peers
    /// the waking: both sides are, or none.
    ///
    /// # Errors
    /// When the provider is none of Mercury's, or Mercury refuses.
    pub fn open(provider: &str, busy: bool) -> Result<Self, FabricError> {
        let near = Bind::Near { host: "127.0.0.1".to_owned(), port: 1 };
        let info = place(provider.strip_prefix(PREFIX).unwrap_or(provider), &near)?;
        let refused = |code| failure("HG_Init", code, provider);
        let info = CString::new(info).map_err(|_| refused(11))?;
        let mut hg = core::ptr::null_mut();
        // SAFETY: the text is terminated; what is written to lives here.
        match unsafe { weir_hg_loop_open(info.as_ptr(), busy, &raw mut hg) } {
            0 => Ok(Self { hg, provider: provider.to_owned() }),
            code => Err(refused(code)),
        }
    }

    /// Where it is reached.
    ///
    /// # Errors
    /// When Mercury doesn't tell.
    pub fn address(&self) -> Result<String, FabricError> {
        let mut name = [0u8; ADDRESS_MAX];
        // SAFETY: the loop lives as long as the process; the text is cut to the room, and terminated.
        let code =
            unsafe { weir_hg_loop_name(self.hg, name.as_mut_ptr().cast::<c_char>(), ADDRESS_MAX as u64) };
        if code != 0 {
            return Err(failure("HG_Addr_to_string", code, &self.provider));
        }
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Answers for as long as the process lives.
    #[must_use]
    pub fn serve(&self) -> FabricError {
        // SAFETY: as above.
        failure("HG_Progress", unsafe { weir_hg_loop_serve(self.hg) }, &self.provider)
    }

    /// Operations per second with `width` in flight, at most 64.
    ///
    /// # Errors
    /// When the server can't be reached.
    pub fn ask(&self, server: &str, load: Load, width: u32, span: Duration) -> Result<f64, FabricError> {
        let refused = |code| failure("HG_Forward", code, &self.provider);
        let server = CString::new(server).map_err(|_| refused(11))?;
        let span = nanos(span);
        let mut rate = 0.0;
        // SAFETY: as above; the text is terminated; what is written to lives here.
        let code =
            unsafe { weir_hg_loop_ask(self.hg, server.as_ptr(), load as u32, width, span, &raw mut rate) };
        if code == 0 { Ok(rate) } else { Err(refused(code)) }
    }
}
