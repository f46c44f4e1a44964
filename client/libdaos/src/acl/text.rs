//! Entries as text: `[A][U][L]:[G][P][F][S]:PRINCIPAL:PERMISSIONS`.

use core::ffi::{c_char, c_int, c_void};
use core::fmt::Write as _;

use weir_proto::Der;

use super::entry::{ALARM, ALLOW, AUDIT, Entry, FLAG_FAIL, FLAG_GROUP, FLAG_POOL_INHERIT, FLAG_SUCCESS};
use super::list::{allocated_entry, check, is_too_many, read};
use super::principal::allocated as allocated_text;
use super::{EVERYONE, GROUP, OWNER, OWNER_GROUP, USER};
use crate::boundary::{elements, guarded, required, text_of};
use crate::dfs::copy_text;

/// Longest text of an entry, in bytes.
const TEXT_MAX: usize = 319;

/// Letters of permissions by their bits, and what they mean.
const PERMISSIONS: [(char, &str); 9] = [
    ('r', "Read"),
    ('w', "Write"),
    ('c', "Create Container"),
    ('d', "Delete Container"),
    ('t', "Get Prop"),
    ('T', "Set Prop"),
    ('a', "Get ACL"),
    ('A', "Set ACL"),
    ('o', "Set Owner"),
];
const ACCESSES: [(char, u8, &str); 3] = [('A', ALLOW, "Allow"), ('U', AUDIT, "Audit"), ('L', ALARM, "Alarm")];
const FLAGS: [(char, u16, &str); 4] = [
    ('G', FLAG_GROUP, "Group"),
    ('P', FLAG_POOL_INHERIT, "Pool-Inherit"),
    ('F', FLAG_FAIL, "Access-Failure"),
    ('S', FLAG_SUCCESS, "Access-Success"),
];

const OWNER_NAME: &str = "OWNER@";
const GROUP_NAME: &str = "GROUP@";
const EVERYONE_NAME: &str = "EVERYONE@";

/// An entry of its text.
pub fn parse(text: &str) -> Result<Entry, Der> {
    let parts: Vec<&str> = text.split(':').collect();
    let [accesses, flags, name, permissions] = parts[..] else { return Err(Der::INVAL) };
    if text.len() > TEXT_MAX {
        return Err(Der::INVAL);
    }
    let mut entry = Entry::default();
    for letter in accesses.chars() {
        let (_, bit, _) = ACCESSES.iter().find(|known| known.0 == letter).ok_or(Der::INVAL)?;
        entry.accesses |= bit;
    }
    for letter in flags.chars() {
        let (_, bit, _) = FLAGS.iter().find(|known| known.0 == letter).ok_or(Der::INVAL)?;
        entry.flags |= bit;
    }
    entry.kind = match name {
        OWNER_NAME => OWNER,
        GROUP_NAME => OWNER_GROUP,
        EVERYONE_NAME => EVERYONE,
        _ if entry.flags & FLAG_GROUP != 0 => GROUP,
        _ => USER,
    };
    if matches!(entry.kind, USER | GROUP) {
        name.clone_into(&mut entry.principal);
    }
    let mut bits = 0;
    for letter in permissions.chars() {
        let bit = PERMISSIONS.iter().position(|known| known.0 == letter).ok_or(Der::INVAL)?;
        bits |= 1_u64 << bit;
    }
    for (place, kind) in entry.permissions.iter_mut().zip([ALLOW, AUDIT, ALARM]) {
        *place = if entry.accesses & kind != 0 { bits } else { 0 };
    }
    if entry.is_valid() { Ok(entry) } else { Err(Der::INVAL) }
}

/// Name of an entry's principal in text.
fn name(entry: &Entry) -> &str {
    match entry.kind {
        OWNER => OWNER_NAME,
        OWNER_GROUP => GROUP_NAME,
        EVERYONE => EVERYONE_NAME,
        _ => &entry.principal,
    }
}

/// Text of an entry. All kinds of access that it is about have to have the same permissions.
pub fn shown(entry: &Entry) -> Result<String, Der> {
    if !entry.is_valid() {
        return Err(Der::INVAL);
    }
    let about = entry.permissions.iter().zip([ALLOW, AUDIT, ALARM]);
    let mut about = about.filter(|(_, kind)| entry.accesses & kind != 0).map(|(bits, _)| *bits);
    let bits = about.next().ok_or(Der::INVAL)?;
    if about.any(|other| other != bits) {
        return Err(Der::INVAL);
    }
    let accesses: String =
        ACCESSES.iter().filter(|known| entry.accesses & known.1 != 0).map(|known| known.0).collect();
    let flags: String =
        FLAGS.iter().filter(|known| entry.flags & known.1 != 0).map(|known| known.0).collect();
    let granted = PERMISSIONS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 != 0);
    let permissions: String = granted.map(|(_, known)| known.0).collect();
    Ok(format!("{accesses}:{flags}:{}:{permissions}", name(entry)))
}

/// Text of an entry for people.
fn verbose(entry: &Entry) -> String {
    let joined = |words: Vec<&str>| if words.is_empty() { "No Access".to_owned() } else { words.join("/") };
    let bits = entry.permissions.iter().fold(0, |all, bits| all | bits);
    let permissions = PERMISSIONS
        .iter()
        .enumerate()
        .filter(|(bit, _)| bits >> bit & 1 != 0)
        .map(|(_, known)| known.1)
        .collect();
    let accesses =
        ACCESSES.iter().filter(|known| entry.accesses & known.1 != 0).map(|known| known.2).collect();
    let flags: Vec<&str> =
        FLAGS.iter().filter(|known| entry.flags & known.1 != 0).map(|known| known.2).collect();
    let flags = if flags.is_empty() { "-".to_owned() } else { flags.join("/") };
    format!("{}:{flags}:{}:{}", joined(accesses), name(entry), joined(permissions))
}

/// Copies a text to a program's buffer: `-DER_TRUNC` where it doesn't fit whole.
fn deliver(text: &str, buf: *mut c_char, buf_len: usize) -> Result<(), Der> {
    required(buf)?;
    copy_text(text.as_bytes(), buf, buf_len);
    if text.len() < buf_len { Ok(()) } else { Err(Der::TRUNC) }
}

/// Makes an entry of its text.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_from_str(str: *const c_char, ace: *mut *mut c_void) -> c_int {
    guarded(|| {
        let (text, place) = (text_of(str)?, required(ace)?);
        place.set(allocated_entry(&parse(&text)?)?);
        Ok(())
    })
}

/// Text of an entry.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_to_str(ace: *mut c_void, buf: *mut c_char, buf_len: usize) -> c_int {
    guarded(|| deliver(&shown(&Entry::at(ace.cast::<u8>())?)?, buf, buf_len))
}

/// Text of an entry for people, of its text.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_str_get_verbose(
    ace_str: *const c_char,
    buf: *mut c_char,
    buf_len: usize,
) -> c_int {
    guarded(|| deliver(&verbose(&parse(&text_of(ace_str)?)?), buf, buf_len))
}

/// Name of an entry's principal; NULL for what is no entry. It is the entry's memory, or stays.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_get_principal_str(ace: *mut c_void) -> *const c_char {
    const NAME_AT: usize = 32;
    match Entry::at(ace.cast::<u8>()).map(|entry| entry.kind) {
        Ok(OWNER) => c"OWNER@".as_ptr(),
        Ok(OWNER_GROUP) => c"GROUP@".as_ptr(),
        Ok(EVERYONE) => c"EVERYONE@".as_ptr(),
        Ok(_) => ace.cast::<c_char>().wrapping_add(NAME_AT).cast_const(),
        Err(_) => core::ptr::null(),
    }
}

/// Makes a list of texts.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_from_strs(
    ace_strs: *const *const c_char,
    ace_nr: usize,
    acl: *mut *mut c_void,
) -> c_int {
    guarded(|| {
        let place = required(acl)?;
        if ace_nr == 0 || is_too_many(ace_nr) {
            return Err(Der::INVAL);
        }
        let texts = elements(ace_strs, ace_nr)?;
        let entries: Result<Vec<Entry>, Der> =
            texts.into_iter().map(|text| text_of(text).and_then(|text| parse(&text))).collect();
        let entries = entries?;
        check(&entries)?;
        place.set(super::allocated(&entries)?);
        Ok(())
    })
}

/// Texts of a list's entries, in memory that the program frees: each text, and the array.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_to_strs(
    acl: *mut c_void,
    ace_strs: *mut *mut *mut c_char,
    ace_nr: *mut usize,
) -> c_int {
    guarded(|| {
        let (place, count) = (required(ace_strs)?, required(ace_nr)?);
        let texts: Result<Vec<String>, Der> = read(acl)?.iter().map(shown).collect();
        let texts = texts?;
        // SAFETY: `calloc` takes any sizes.
        let array: *mut *mut c_char =
            unsafe { libc::calloc(texts.len().max(1), size_of::<*mut c_char>()) }.cast();
        required(array).map_err(|_| Der::NOMEM)?;
        for (index, text) in texts.iter().enumerate() {
            crate::boundary::element(array, index).set(allocated_text(text)?);
        }
        place.set(array);
        count.set(texts.len());
        Ok(())
    })
}

/// Text of a list, an entry a line.
fn listing(acl: *mut c_void, is_verbose: bool) -> Result<String, Der> {
    let mut text = String::new();
    for entry in read(acl)? {
        if is_verbose {
            let _ = writeln!(text, "# {}", verbose(&entry));
        }
        let _ = writeln!(text, "{}", shown(&entry)?);
    }
    Ok(text)
}

/// Writes a list to a stream.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_to_stream(stream: *mut libc::FILE, acl: *mut c_void, verbose: bool) -> c_int {
    guarded(|| {
        required(stream)?;
        let text = std::ffi::CString::new(listing(acl, verbose)?).map_err(|_| Der::INVAL)?;
        // SAFETY: a stream by the caller's promise, and a string that ends with NUL.
        let result = unsafe { libc::fputs(text.as_ptr(), stream) };
        if result < 0 { Err(Der::IO) } else { Ok(()) }
    })
}

/// Prints a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_dump(acl: *mut c_void) {
    match listing(acl, true) {
        Ok(text) => print!("{text}"),
        Err(_) => println!("no access control list"),
    }
}

/// Prints an entry, behind a number of tabs.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_dump(ace: *mut c_void, tabs: u32) {
    let text = Entry::at(ace.cast::<u8>()).map(|entry| verbose(&entry));
    let indent = (0..tabs.min(16)).map(|_| '\t').collect::<String>();
    println!("{indent}{}", text.unwrap_or_else(|_| "no entry".to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_from_text_and_bytes() {
        for text in [
            "A::OWNER@:rw",
            "A:G:GROUP@:r",
            "A::EVERYONE@:",
            "A::ann@:rwdtTaAo",
            "AU:GS:team@:rwcd",
            "L:F:bob@x:r",
        ] {
            let entry = parse(text).expect(text);
            assert_eq!(shown(&entry).as_deref(), Ok(text));
            assert_eq!(Entry::from_bytes(&entry.to_bytes()), Ok(entry));
        }
        for bad in [
            "",
            "A::OWNER@",
            "X::OWNER@:r",
            "A:G:OWNER@:r",
            "A::GROUP@:r",
            "A::ann:r",
            "A::ann@:q",
            "::ann@:r",
            "U::ann@:r",
        ] {
            assert_eq!(parse(bad), Err(Der::INVAL), "{bad}");
        }
    }
}
