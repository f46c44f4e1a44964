//! Names of users and groups: those of the machine with `@` behind.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;

use weir_proto::Der;

use super::entry::PRINCIPAL_MAX;
use crate::boundary::{ArgumentPtr, Outcome, guarded, required, text_of};

/// Room for an entry of the machine's users or groups.
const RECORD_ROOM: usize = 64 << 10;

/// Whether a text is the name of a user or group: one `@`, with something before it, and no `:`.
pub fn is_valid_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('@').collect();
    name.len() <= PRINCIPAL_MAX && parts.len() == 2 && !parts[0].is_empty() && !name.contains(':')
}

/// Whether a text is the name of a user or group.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_principal_is_valid(name: *const c_char) -> bool {
    text_of(name).is_ok_and(|name| is_valid_name(&name))
}

/// A text in memory of the C library.
pub fn allocated(text: &str) -> Result<*mut c_char, Der> {
    let text = CString::new(text).map_err(|_| Der::INVAL)?;
    // SAFETY: the string ends with NUL.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Der::NOMEM) } else { Ok(copy) }
}

/// Name of a user of this machine, or the number where there is none.
pub fn name_of_uid(uid: u32) -> String {
    let mut record = core::mem::MaybeUninit::<libc::passwd>::zeroed();
    let (mut room, mut found) = (vec![0 as c_char; RECORD_ROOM], core::ptr::null_mut());
    // SAFETY: all places are this function's, and the room is as large as the call is told.
    let result =
        unsafe { libc::getpwuid_r(uid, record.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found) };
    if result != 0 || found.is_null() {
        return format!("{uid}@");
    }
    // SAFETY: the call has found a record, whose name is a string in the room.
    let name = unsafe { CStr::from_ptr((*found).pw_name) };
    format!("{}@", name.to_string_lossy())
}

/// Name of a group of this machine, or the number where there is none.
pub fn name_of_gid(gid: u32) -> String {
    let mut record = core::mem::MaybeUninit::<libc::group>::zeroed();
    let (mut room, mut found) = (vec![0 as c_char; RECORD_ROOM], core::ptr::null_mut());
    // SAFETY: as in `name_of_uid`.
    let result =
        unsafe { libc::getgrgid_r(gid, record.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found) };
    if result != 0 || found.is_null() {
        return format!("{gid}@");
    }
    // SAFETY: as in `name_of_uid`.
    let name = unsafe { CStr::from_ptr((*found).gr_name) };
    format!("{}@", name.to_string_lossy())
}

fn tell_name(place: *mut *mut c_char, name: &str) -> Outcome {
    required(place)?.set(allocated(name)?);
    Ok(())
}

/// Name of a user, in memory that the program frees.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_uid_to_principal(uid: libc::uid_t, name: *mut *mut c_char) -> c_int {
    guarded(|| tell_name(name, &name_of_uid(uid)))
}

/// Name of a group, in memory that the program frees.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_gid_to_principal(gid: libc::gid_t, name: *mut *mut c_char) -> c_int {
    guarded(|| tell_name(name, &name_of_gid(gid)))
}

/// The part of a name before the `@`.
fn local(principal: *const c_char) -> Result<CString, Der> {
    let name = text_of(principal)?;
    if !is_valid_name(&name) {
        return Err(Der::INVAL);
    }
    let local = name.split_once('@').map_or(&*name, |(local, _)| local);
    CString::new(local).map_err(|_| Der::INVAL)
}

fn number(name: &CStr) -> Option<u32> {
    name.to_str().ok()?.parse().ok()
}

/// Number of a user: `-DER_NONEXIST` for one that this machine doesn't know.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_principal_to_uid(principal: *const c_char, uid: *mut libc::uid_t) -> c_int {
    guarded(|| {
        let (name, place): (_, ArgumentPtr<u32>) = (local(principal)?, required(uid)?);
        let mut record = core::mem::MaybeUninit::<libc::passwd>::zeroed();
        let (mut room, mut found) = (vec![0 as c_char; RECORD_ROOM], core::ptr::null_mut());
        let (record, memory) = (record.as_mut_ptr(), room.as_mut_ptr());
        // SAFETY: as in `name_of_uid`; the name ends with NUL.
        let result = unsafe { libc::getpwnam_r(name.as_ptr(), record, memory, room.len(), &raw mut found) };
        let known = result == 0 && !found.is_null();
        // SAFETY: the call has found a record.
        let uid = if known { Some(unsafe { (*found).pw_uid }) } else { number(&name) };
        place.set(uid.ok_or(Der::NONEXIST)?);
        Ok(())
    })
}

/// Number of a group: `-DER_NONEXIST` for one that this machine doesn't know.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_principal_to_gid(principal: *const c_char, gid: *mut libc::gid_t) -> c_int {
    guarded(|| {
        let (name, place): (_, ArgumentPtr<u32>) = (local(principal)?, required(gid)?);
        let mut record = core::mem::MaybeUninit::<libc::group>::zeroed();
        let (mut room, mut found) = (vec![0 as c_char; RECORD_ROOM], core::ptr::null_mut());
        let (record, memory) = (record.as_mut_ptr(), room.as_mut_ptr());
        // SAFETY: as in `name_of_uid`; the name ends with NUL.
        let result = unsafe { libc::getgrnam_r(name.as_ptr(), record, memory, room.len(), &raw mut found) };
        let known = result == 0 && !found.is_null();
        // SAFETY: the call has found a record.
        let gid = if known { Some(unsafe { (*found).gr_gid }) } else { number(&name) };
        place.set(gid.ok_or(Der::NONEXIST)?);
        Ok(())
    })
}

/// Kind and name of a principal in text: `OWNER@`, `GROUP@`, `EVERYONE@`, `u:NAME@` or `g:NAME@`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_principal_from_str(
    text: *const c_char,
    kind: *mut c_int,
    name: *mut *mut c_char,
) -> c_int {
    guarded(|| {
        let (given, kind, name) = (text_of(text)?, required(kind)?, required(name)?);
        let special = match given.as_str() {
            "OWNER@" => Some(super::OWNER),
            "GROUP@" => Some(super::OWNER_GROUP),
            "EVERYONE@" => Some(super::EVERYONE),
            _ => None,
        };
        if let Some(special) = special {
            kind.set(c_int::from(special));
            name.set(core::ptr::null_mut());
            return Ok(());
        }
        let (prefix, who) = given.split_once(':').ok_or(Der::INVAL)?;
        let found = match prefix {
            "u" => super::USER,
            "g" => super::GROUP,
            _ => return Err(Der::INVAL),
        };
        let who = if who.contains('@') { who.to_owned() } else { format!("{who}@") };
        if !is_valid_name(&who) {
            return Err(Der::INVAL);
        }
        kind.set(c_int::from(found));
        name.set(allocated(&who)?);
        Ok(())
    })
}
