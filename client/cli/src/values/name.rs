//! Names of objects as arguments.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// A name as it was given, unless it is empty: mostly a script's variable that is not set, which must not look like an
/// object that does not exist.
///
/// # Errors
/// When it is empty.
pub fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("an empty name names nothing; give one".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// A name of any bytes, which need not be text.
pub fn raw_name() -> impl TypedValueParser<Value = OsString> {
    let check = |given: OsString| if given.is_empty() { name("").map(OsString::from) } else { Ok(given) };
    OsStringValueParser::new().try_map(check)
}
