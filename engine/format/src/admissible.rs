//! Which keys an operation may name.

use crate::key;
use weir_proto::limits::AKEYS_MAX;
use weir_proto::object::PunchScope;
use weir_proto::{Key, ObjectId};

/// Checks that a punch names keys of the form that the object's type asks for, and not too many.
///
/// # Errors
/// What is wrong, in words.
pub fn check_scope(object: ObjectId, scope: &PunchScope) -> Result<(), String> {
    let keys = match scope {
        PunchScope::Object => return Ok(()),
        PunchScope::Dkeys(dkeys) => {
            check_keys(object, dkeys, [])?;
            dkeys
        }
        PunchScope::Akeys(dkey, akeys) | PunchScope::DkeyWith(dkey, akeys) => {
            check_keys(object, [dkey], akeys)?;
            akeys
        }
    };
    if keys.is_empty() || keys.len() > AKEYS_MAX {
        return Err(format!("a punch names 1 to {AKEYS_MAX} keys, not {}", keys.len()));
    }
    Ok(())
}

/// Checks that keys have the form that the object's type asks for.
///
/// # Errors
/// What is wrong, in words.
pub fn check_keys<'a>(
    object: ObjectId,
    dkeys: impl IntoIterator<Item = &'a Key>,
    akeys: impl IntoIterator<Item = &'a Key>,
) -> Result<(), String> {
    let bad = |integer: bool, key: &&Key| integer && key.as_bytes().len() != 8;
    if let Some(key) = dkeys.into_iter().find(|key| bad(key::has_integer_dkeys(object), key)) {
        return Err(wrong_key("dkey", key, object));
    }
    if let Some(key) = akeys.into_iter().find(|key| bad(key::has_integer_akeys(object), key)) {
        return Err(wrong_key("akey", key, object));
    }
    Ok(())
}

#[cold]
fn wrong_key(level: &str, key: &Key, object: ObjectId) -> String {
    format!("{level}s of object {object} are integers of 8 bytes, \"{key}\" is not")
}
