//! Names of directory entries.

use weir_proto::Key;

use crate::{Error, Result};

/// Longest name of an entry, in bytes.
pub const NAME_MAX: usize = 255;

/// Longest target of a symbolic link, in bytes (`PATH_MAX` without its NUL).
pub const LINK_TARGET_MAX: usize = 4095;

/// The dkey of an entry.
pub(crate) fn dkey(name: &[u8]) -> Result<Key> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong { len: name.len(), max: NAME_MAX });
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Error::Invalid(format!("\"{}\" can't name an entry", name.escape_ascii())));
    }
    Key::new(name).map_err(|error| Error::Invalid(error.to_string()))
}

/// A name for people.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_path_can_have_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(dkey(bad).expect_err("refused").errno(), 22);
        }
        assert_eq!(dkey(&[b'a'; NAME_MAX + 1]).expect_err("refused").errno(), 36);
        assert!(dkey(&[0xff; NAME_MAX]).is_ok());
    }
}
