//! Names and descriptions of return codes.

use core::ffi::{CStr, c_char, c_int};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::LazyLock;

use weir_proto::Der;

/// Name and description of every code, made at the first use: C wants them to stay.
static TEXTS: LazyLock<BTreeMap<u32, (CString, CString)>> = LazyLock::new(|| {
    let text = |text: String| CString::new(text).unwrap_or_default();
    let of = |der: &Der| {
        let name = der.name().unwrap_or_default();
        let described = name.to_lowercase().replace('_', " ");
        (der.0, (text(format!("DER_{name}")), text(describe(*der).map_or(described, str::to_owned))))
    };
    Der::ALL.iter().map(of).collect()
});

const SUCCESS: (&CStr, &CStr) = (c"DER_SUCCESS", c"Success");
const UNKNOWN: (&CStr, &CStr) = (c"DER_UNKNOWN", c"Unknown error number");

/// What the codes that this library returns mean; others are described by their names.
const fn describe(der: Der) -> Option<&'static str> {
    Some(match der {
        Der::NO_PERM => "Operation not permitted",
        Der::NO_HDL => "Invalid handle",
        Der::INVAL => "Invalid parameters",
        Der::EXIST => "Entity already exists",
        Der::NONEXIST => "The specified entity does not exist",
        Der::UNREACH => "Unreachable node",
        Der::NOSPACE => "No space left on the storage target",
        Der::NOMEM => "Out of memory",
        Der::NOSYS => "Function not implemented",
        Der::TIMEDOUT => "Time out",
        Der::BUSY => "Device or resource busy",
        Der::PROTO => "Incompatible protocol",
        Der::UNINIT => "Library not initialised",
        Der::TRUNC => "Buffer too short",
        Der::CANCELED => "Operation canceled",
        Der::MISC => "Miscellaneous error",
        Der::IO => "I/O error",
        Der::KEY2BIG => "Key is too large",
        Der::REC2BIG => "Record is too large",
        Der::IO_INVAL => "I/O buffers do not match the object extents",
        Der::CSUM => "Checksum error",
        Der::REC_SIZE => "Record size error",
        Der::NOTSUPPORTED => "Operation not supported",
        Der::AGENT_COMM => "No attach information for the system",
        Der::NO_SERVICE => "No service available",
        _ => return None,
    })
}

fn texts(rc: c_int) -> (&'static CStr, &'static CStr) {
    if rc == 0 {
        return SUCCESS;
    }
    match TEXTS.get(&rc.unsigned_abs()) {
        Some((name, described)) => (name, described),
        None => UNKNOWN,
    }
}

/// Name of a return code.
#[unsafe(no_mangle)]
pub extern "C" fn d_errstr(rc: c_int) -> *const c_char {
    texts(rc).0.as_ptr()
}

/// Description of a return code.
#[unsafe(no_mangle)]
pub extern "C" fn d_errdesc(rc: c_int) -> *const c_char {
    texts(rc).1.as_ptr()
}

/// The errno of a return code: 0 of 0, `EINVAL` of a positive one, `EIO` of one without an errno of its own.
#[unsafe(no_mangle)]
pub extern "C" fn daos_der2errno(rc: c_int) -> c_int {
    if rc > 0 { libc::EINVAL } else { errno_of(Der(rc.unsigned_abs())) }
}

/// The errno of an error; `EIO` of one without an errno of its own.
pub(crate) const fn errno_of(der: Der) -> c_int {
    match der {
        Der(0) => 0,
        Der::NO_PERM | Der::EP_RO | Der::EP_OLD | Der::CONT_DESTROYING => libc::EPERM,
        Der::ENOENT | Der::NONEXIST => libc::ENOENT,
        Der::INVAL | Der::NOTYPE | Der::NOSCHEMA | Der::NOLOCAL | Der::NO_HDL | Der::IO_INVAL => libc::EINVAL,
        Der::KEY2BIG | Der::REC2BIG => libc::E2BIG,
        Der::EXIST => libc::EEXIST,
        Der::UNREACH => libc::EHOSTUNREACH,
        Der::NOSPACE => libc::ENOSPC,
        Der::ALREADY => libc::EALREADY,
        Der::DOS | Der::NOMEM => libc::ENOMEM,
        Der::TIMEDOUT => libc::ETIMEDOUT,
        Der::BUSY | Der::EQ_BUSY => libc::EBUSY,
        Der::AGAIN => libc::EAGAIN,
        Der::PROTO => libc::EPROTO,
        Der::CANCELED => libc::ECANCELED,
        Der::OVERFLOW => libc::EOVERFLOW,
        Der::BADPATH | Der::NOTDIR => libc::ENOTDIR,
        Der::STALE => libc::ESTALE,
        Der::TX_RESTART => libc::ERESTART,
        Der::NOTSUPPORTED => libc::ENOTSUP,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_with_either_sign() {
        assert_eq!(texts(0), SUCCESS);
        assert_eq!(texts(-1005).0, c"DER_NONEXIST");
        assert_eq!(texts(1005).1, c"The specified entity does not exist");
        assert_eq!(texts(-77), UNKNOWN);
        assert_eq!(texts(c_int::MIN), UNKNOWN);
    }
}
