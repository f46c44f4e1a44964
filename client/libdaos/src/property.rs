//! Lists of properties. They live in memory of the C library, so that callers may put strings of their own into them.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use weir_proto::Der;

use crate::boundary::{ArgumentPtr, Outcome, element, elements, guarded, required, text_of};
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

/// Whether the value of a property is a string.
pub(crate) fn is_string(kind: u32) -> bool {
    STRINGS.contains(&kind)
}

/// Whether the value of a property is another pointer.
pub(crate) fn is_pointer(kind: u32) -> bool {
    POINTERS.contains(&kind)
}

/// The type of an entry of a list.
pub(crate) fn kind_of(entry: *mut daos_prop_entry) -> u32 {
    // SAFETY: an entry of a list.
    unsafe { (*entry).dpe_type }
}

/// Makes a list of properties of these types.
pub(crate) fn with_kinds(kinds: &[u32]) -> Result<*mut daos_prop_t, Der> {
    let list = daos_prop_alloc(u32::try_from(kinds.len()).map_err(|_| Der::INVAL)?);
    required(list).map_err(|_| Der::NOMEM)?;
    for (entry, kind) in entries(list).into_iter().zip(kinds) {
        // SAFETY: an entry of the list that was just made.
        unsafe { (*entry).dpe_type = *kind };
    }
    Ok(list)
}

/// Gives entries of these types to a list that has none.
pub(crate) fn give_entries(list: ArgumentPtr<daos_prop_t>, kinds: &[u32]) -> Outcome {
    let made = with_kinds(kinds)?;
    let given = required(made)?.take_entries();
    list.change(|list| (list.dpp_nr, list.dpp_entries) = given);
    // SAFETY: just made; its entries belong to the other list.
    unsafe { libc::free(made.cast()) };
    Ok(())
}

impl ArgumentPtr<daos_prop_t> {
    /// The entries of a list; `None` of one without.
    pub(crate) fn get_entries(self) -> Option<*mut daos_prop_entry> {
        let (count, first) = self.take_entries();
        (count > 0 && !first.is_null()).then_some(first)
    }

    fn take_entries(self) -> (u32, *mut daos_prop_entry) {
        let mut found = (0, ptr::null_mut());
        self.change(|list| found = (list.dpp_nr, list.dpp_entries));
        found
    }
}

/// Entries of a list, as pointers to them.
pub(crate) fn entries(list: *mut daos_prop_t) -> Vec<*mut daos_prop_entry> {
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
    free_entries(prop);
    // SAFETY: allocated by `daos_prop_alloc`.
    unsafe { libc::free(prop.cast()) };
}

/// Frees the entries of a list with their values.
pub(crate) fn free_entries(prop: *mut daos_prop_t) {
    for entry in entries(prop) {
        // SAFETY: an entry of the list; which member of the union holds is decided by its type, and such a value was
        // allocated by `malloc` as the header demands.
        unsafe {
            if STRINGS.contains(&(*entry).dpe_type) || POINTERS.contains(&(*entry).dpe_type) {
                libc::free((*entry).value.dpe_val_ptr);
            }
        }
    }
    // SAFETY: allocated by `daos_prop_alloc`.
    unsafe { libc::free((*prop).dpp_entries.cast()) };
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

/// One property, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// A string.
    Text(String),
    /// A number.
    Number(u64),
    /// Other memory.
    Bytes(Vec<u8>),
}

/// Properties that are access control lists, and roots of a middleware.
const LISTS: [u32; 2] = [2, 4106];
const ROOTS: u32 = 4113;
const ROOTS_LEN: usize = 64;

/// The value of an entry; `None` of one without a type or a value.
pub(crate) fn given_of(entry: *mut daos_prop_entry) -> Result<Option<Given>, Der> {
    // SAFETY: an entry of a list, initialised by its maker.
    let entry = unsafe { entry.read() };
    let kind = entry.dpe_type;
    if kind == 0 {
        return Ok(None);
    }
    // SAFETY: the type decides which member of the union holds.
    let (number, memory) = unsafe { (entry.value.dpe_val, entry.value.dpe_val_ptr) };
    if is_string(kind) {
        return if memory.is_null() { Ok(None) } else { text_of(memory.cast()).map(Given::Text).map(Some) };
    }
    if !is_pointer(kind) {
        return Ok(Some(Given::Number(number)));
    }
    if memory.is_null() {
        return Ok(None);
    }
    match kind {
        ROOTS => elements(memory.cast::<u8>().cast_const(), ROOTS_LEN).map(Given::Bytes).map(Some),
        kind if LISTS.contains(&kind) => crate::acl::bytes_of_list(memory).map(Given::Bytes).map(Some),
        _ => Ok(None),
    }
}

/// Sets the value of an entry to a copy.
pub(crate) fn set_given(entry: *mut daos_prop_entry, value: &Given) -> Outcome {
    let kind = kind_of(entry);
    let fits = match value {
        Given::Text(_) => is_string(kind),
        Given::Bytes(_) => is_pointer(kind),
        Given::Number(_) => !is_string(kind) && !is_pointer(kind),
    };
    if !fits {
        return Err(Der::INVAL);
    }
    let bytes = match value {
        Given::Number(number) => {
            // SAFETY: an entry of a list, whose value is a number by its type.
            unsafe { (*entry).value.dpe_val = *number };
            return Ok(());
        }
        Given::Text(text) => [text.as_bytes(), &[0]].concat(),
        Given::Bytes(bytes) => bytes.clone(),
    };
    // SAFETY: `malloc` takes any size.
    let copy: *mut c_void = unsafe { libc::malloc(bytes.len().max(1)) };
    required(copy).map_err(|_| Der::NOMEM)?;
    for (index, byte) in bytes.iter().enumerate() {
        element(copy.cast::<u8>(), index).set(*byte);
    }
    // SAFETY: an entry of a list; what it held before was allocated by `malloc`, or is NULL.
    unsafe {
        libc::free((*entry).value.dpe_val_ptr);
        (*entry).value.dpe_val_ptr = copy;
    }
    Ok(())
}

/// Reads the properties that a caller gave.
pub(crate) fn given(prop: *mut daos_prop_t) -> Result<Vec<(u32, Given)>, Der> {
    let mut found = Vec::new();
    for entry in entries(prop) {
        if let Some(value) = given_of(entry)? {
            found.push((kind_of(entry), value));
        } else if is_string(kind_of(entry)) {
            return Err(Der::INVAL);
        }
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
