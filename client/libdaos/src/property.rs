//! Lists of properties. They live in memory of the C library, so that callers may put strings of their own into them.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use weir_proto::Der;

use crate::boundary::{Outcome, element, guarded, required};
use crate::types::{daos_prop_entry, daos_prop_t};

/// Most entries of a list (`DAOS_PROP_ENTRIES_MAX_NR`).
const ENTRIES_MAX: u32 = 128;

/// Properties whose value is a string: labels, owners and owner groups of pools and containers.
const STRINGS: [u32; 6] = [1, 6, 7, 4097, 4109, 4110];

/// Properties whose value is another pointer: ACLs, ranks, roots.
const POINTERS: [u32; 4] = [2, 8, 4106, 4113];

/// Makes a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_alloc(entries_nr: u32) -> *mut daos_prop_t {
    if entries_nr > ENTRIES_MAX {
        return ptr::null_mut();
    }
    // SAFETY: `calloc` takes any sizes; zeros are valid for both structures.
    let (list, entries) = unsafe {
        let list: *mut daos_prop_t = libc::calloc(1, size_of::<daos_prop_t>()).cast();
        let entries: *mut daos_prop_entry =
            libc::calloc(entries_nr.max(1) as usize, size_of::<daos_prop_entry>()).cast();
        (list, entries)
    };
    if list.is_null() || entries.is_null() {
        // SAFETY: NULL or just allocated.
        unsafe {
            libc::free(list.cast());
            libc::free(entries.cast());
        }
        return ptr::null_mut();
    }
    // SAFETY: just allocated, of this type.
    unsafe { list.write(daos_prop_t { dpp_nr: entries_nr, dpp_reserv: 0, dpp_entries: entries }) };
    list
}

/// Entries of a list, as pointers to them.
fn entries(list: *mut daos_prop_t) -> Vec<*mut daos_prop_entry> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: not NULL, so it is a list that `daos_prop_alloc` or the caller made.
    let (first, count) = unsafe { ((*list).dpp_entries, (*list).dpp_nr) };
    if first.is_null() {
        return Vec::new();
    }
    (0..count.min(ENTRIES_MAX) as usize).map(|index| first.wrapping_add(index)).collect()
}

/// Frees a list and the strings and memory in it.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_free(prop: *mut daos_prop_t) {
    if prop.is_null() {
        return;
    }
    for entry in entries(prop) {
        // SAFETY: an entry of the list; which member of the union holds is decided by its type, and such a value was
        // allocated by `malloc` as the header demands.
        unsafe {
            if STRINGS.contains(&(*entry).dpe_type) || POINTERS.contains(&(*entry).dpe_type) {
                libc::free((*entry).value.dpe_val_ptr);
            }
        }
    }
    // SAFETY: both were allocated by `daos_prop_alloc`.
    unsafe {
        libc::free((*prop).dpp_entries.cast());
        libc::free(prop.cast());
    }
}

/// Sets the entry of a type to a copy of a string.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_set_str(
    prop: *mut daos_prop_t,
    kind: u32,
    text: *const c_char,
    len: u64,
) -> c_int {
    guarded(|| {
        required(prop)?;
        let entry = entry_of(prop, kind);
        if entry.is_null() { Err(Der::NONEXIST) } else { set_string(entry, text, len) }
    })
}

/// Sets an entry to a copy of a string.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_entry_set_str(
    entry: *mut daos_prop_entry,
    text: *const c_char,
    len: u64,
) -> c_int {
    guarded(|| {
        required(entry)?;
        set_string(entry, text, len)
    })
}

/// The entry of a type.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_entry_get(prop: *mut daos_prop_t, kind: u32) -> *mut daos_prop_entry {
    entry_of(prop, kind)
}

fn entry_of(prop: *mut daos_prop_t, kind: u32) -> *mut daos_prop_entry {
    // SAFETY: entries of the list.
    entries(prop).into_iter().find(|entry| unsafe { (**entry).dpe_type } == kind).unwrap_or(ptr::null_mut())
}

fn set_string(entry: *mut daos_prop_entry, text: *const c_char, len: u64) -> Outcome {
    if text.is_null() {
        return Err(Der::INVAL);
    }
    let len = usize::try_from(len).map_err(|_| Der::INVAL)?;
    // SAFETY: `text` holds a string of at most `len` bytes by the caller's promise; the entry is the caller's, and
    // what it held before was allocated by `malloc`, or is NULL.
    unsafe {
        if !STRINGS.contains(&(*entry).dpe_type) {
            return Err(Der::INVAL);
        }
        let copy: *mut c_char = libc::strndup(text, len);
        if copy.is_null() {
            return Err(Der::NOMEM);
        }
        libc::free((*entry).value.dpe_str.cast::<c_void>());
        (*entry).value.dpe_str = copy;
    }
    Ok(())
}

/// One property that a caller gave, read.
pub(crate) enum Given {
    /// A string.
    Text(String),
    /// A number.
    Number(u64),
}

/// Reads the properties that a caller gave.
pub(crate) fn given(prop: *mut daos_prop_t) -> Result<Vec<(u32, Given)>, Der> {
    let mut found = Vec::new();
    for (index, _) in entries(prop).iter().enumerate() {
        // SAFETY: an entry of the list, initialised by its maker.
        let entry = unsafe { element((*prop).dpp_entries, index).get() };
        if entry.dpe_type == 0 {
            continue;
        }
        // SAFETY: the type decides which member of the union holds.
        let value = unsafe {
            if STRINGS.contains(&entry.dpe_type) {
                Given::Text(crate::boundary::text_of(entry.value.dpe_str)?)
            } else {
                Given::Number(entry.value.dpe_val)
            }
        };
        found.push((entry.dpe_type, value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_strings_for_the_entries_it_has() {
        assert!(daos_prop_alloc(ENTRIES_MAX + 1).is_null());
        let list = daos_prop_alloc(2);
        // SAFETY: just allocated with two entries.
        unsafe { (*(*list).dpp_entries).dpe_type = 4097 };
        assert_eq!(daos_prop_set_str(list, 4097, c"tank-extra".as_ptr(), 4), 0);
        assert_eq!(daos_prop_set_str(list, 4109, c"x".as_ptr(), 1), -1005);
        assert_eq!(daos_prop_set_str(list, 4097, ptr::null(), 1), -1003);
        let found = given(list).expect("readable");
        assert!(matches!(&found[..], [(4097, Given::Text(text))] if text == "tank"));
        daos_prop_free(list);
        daos_prop_free(ptr::null_mut());
    }
}
