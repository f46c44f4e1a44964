//! Variables of the environment.

use core::ffi::{c_char, c_int};

use weir_proto::Der;

use crate::boundary::{bytes_of, guarded, required};

/// Text of a variable; `NONEXIST` where there is none.
fn text(name: *const c_char) -> Result<String, Der> {
    let name = String::from_utf8(bytes_of(name)?.to_vec()).map_err(|_| Der::INVAL)?;
    std::env::var(name).map_err(|_| Der::NONEXIST)
}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "true" | "on" => Some(true),
        "0" | "n" | "no" | "false" | "off" => Some(false),
        other => other.parse::<i64>().ok().map(|number| number != 0),
    }
}

fn number(text: &str) -> Option<u64> {
    let (digits, base) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    u64::from_str_radix(digits, base).ok()
}

/// Reads a variable as a truth value. `*value` stays when there is none, or none that is one.
#[unsafe(no_mangle)]
pub extern "C" fn d_getenv_bool(name: *const c_char, value: *mut bool) -> c_int {
    guarded(|| {
        let place = required(value)?;
        place.set(truth(&text(name)?).ok_or(Der::INVAL)?);
        Ok(())
    })
}

/// Reads a variable as a number.
#[unsafe(no_mangle)]
pub extern "C" fn d_getenv_uint(name: *const c_char, value: *mut u32) -> c_int {
    guarded(|| {
        let place = required(value)?;
        place.set(number(&text(name)?).and_then(|number| u32::try_from(number).ok()).ok_or(Der::INVAL)?);
        Ok(())
    })
}

/// As [`d_getenv_uint`].
#[unsafe(no_mangle)]
pub extern "C" fn d_getenv_int(name: *const c_char, value: *mut u32) -> c_int {
    d_getenv_uint(name, value)
}

/// As [`d_getenv_uint`], of 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn d_getenv_uint64_t(name: *const c_char, value: *mut u64) -> c_int {
    guarded(|| {
        let place = required(value)?;
        place.set(number(&text(name)?).ok_or(Der::INVAL)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_and_numbers_have_several_forms() {
        assert_eq!(
            (truth("YES"), truth("0"), truth("17"), truth("maybe")),
            (Some(true), Some(false), Some(true), None)
        );
        assert_eq!((number("0x10"), number("10"), number("-1")), (Some(16), Some(10), None));
    }
}
