//! Lists of entries. They live in memory of the C library.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use weir_proto::Der;

use super::entry::{Entry, principal};
use crate::boundary::{Outcome, code, element, elements, guarded, required, text_of};

/// Version of the structure.
const VERSION: u16 = 1;

/// Bytes of a list before its entries, and most bytes of those.
const HEAD: usize = 8;
const ENTRIES_MAX: usize = 65536;

/// Most entries in a list that is made at once.
const COUNT_MAX: usize = 1024;

/// Memory of the C library that holds these bytes.
fn memory(bytes: &[u8]) -> Result<*mut c_void, Der> {
    // SAFETY: `calloc` takes any sizes.
    let memory = unsafe { libc::calloc(1, bytes.len().max(1)) };
    if memory.is_null() {
        return Err(Der::NOMEM);
    }
    for (index, byte) in bytes.iter().enumerate() {
        element(memory.cast::<u8>(), index).set(*byte);
    }
    Ok(memory)
}

/// Bytes of a list of these entries, in the order in which they count.
pub fn list_bytes(entries: &[Entry]) -> Result<Vec<u8>, Der> {
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by_key(|entry| entry.rank());
    let body: Vec<u8> = entries.into_iter().flat_map(Entry::to_bytes).collect();
    if body.len() > ENTRIES_MAX {
        return Err(Der::NOMEM);
    }
    let mut bytes = VERSION.to_ne_bytes().to_vec();
    bytes.extend([0; 2]);
    bytes.extend(u32::try_from(body.len()).map_err(|_| Der::NOMEM)?.to_ne_bytes());
    bytes.extend(body);
    Ok(bytes)
}

/// A list in memory of the C library.
pub fn allocated(entries: &[Entry]) -> Result<*mut c_void, Der> {
    memory(&list_bytes(entries)?)
}

/// Bytes of a program's list.
pub fn bytes_of_list(list: *const c_void) -> Result<Vec<u8>, Der> {
    let head: Vec<u8> = elements(list.cast::<u8>(), HEAD)?;
    let len = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if u16::from_ne_bytes([head[0], head[1]]) != VERSION || len > ENTRIES_MAX {
        return Err(Der::INVAL);
    }
    elements(list.cast::<u8>(), HEAD + len)
}

/// The entries of a program's list.
pub fn read(list: *const c_void) -> Result<Vec<Entry>, Der> {
    from_bytes(&bytes_of_list(list)?)
}

/// The entries of a list in bytes.
pub fn from_bytes(bytes: &[u8]) -> Result<Vec<Entry>, Der> {
    let (mut entries, mut rest) = (Vec::new(), bytes.get(HEAD..).ok_or(Der::INVAL)?);
    while !rest.is_empty() {
        let entry = Entry::from_bytes(rest)?;
        rest = &rest[entry.size()..];
        entries.push(entry);
    }
    Ok(entries)
}

/// Checks entries and that each principal has one.
pub fn check(entries: &[Entry]) -> Outcome {
    let is_valid = entries.iter().all(Entry::is_valid);
    let is_once = |(at, entry): (usize, &Entry)| {
        !entries[..at].iter().any(|other| other.is_of(entry.kind, &entry.principal))
    };
    if is_valid && entries.iter().enumerate().all(is_once) { Ok(()) } else { Err(Der::INVAL) }
}

/// Makes a list of entries, which are copied; NULL for entries that are none.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_create(aces: *mut *mut c_void, num_aces: u16) -> *mut c_void {
    let made = elements(aces.cast_const(), usize::from(num_aces))
        .and_then(|all| all.into_iter().map(|ace| Entry::at(ace.cast::<u8>())).collect::<Result<Vec<_>, _>>())
        .and_then(|entries| allocated(&entries));
    made.unwrap_or(ptr::null_mut())
}

/// A copy of a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_dup(acl: *mut c_void) -> *mut c_void {
    bytes_of_list(acl).and_then(|bytes| memory(&bytes)).unwrap_or(ptr::null_mut())
}

/// Frees a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_free(acl: *mut c_void) {
    // SAFETY: NULL, or a list that was made here.
    unsafe { libc::free(acl) };
}

/// Bytes of a list, or an error.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_get_size(acl: *mut c_void) -> isize {
    match bytes_of_list(acl) {
        Ok(bytes) => isize::try_from(bytes.len()).unwrap_or(isize::MAX),
        Err(der) => code(der) as isize,
    }
}

/// Where the entries of a list stand in it.
fn places(list: *const c_void) -> Result<Vec<(usize, Entry)>, Der> {
    let mut at = HEAD;
    let placed = read(list)?.into_iter().map(|entry| {
        let place = at;
        at += entry.size();
        (place, entry)
    });
    Ok(placed.collect())
}

fn entry_at(list: *mut c_void, place: usize) -> *mut c_void {
    list.cast::<u8>().wrapping_add(place).cast()
}

/// The entry behind another one, the first one for NULL; NULL behind the last one.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_get_next_ace(acl: *mut c_void, current_ace: *mut c_void) -> *mut c_void {
    let Ok(places) = places(acl) else { return ptr::null_mut() };
    let next = match places.iter().position(|(place, _)| entry_at(acl, *place) == current_ace) {
        Some(found) => places.get(found + 1),
        None if current_ace.is_null() => places.first(),
        None => None,
    };
    next.map_or(ptr::null_mut(), |(place, _)| entry_at(acl, *place))
}

/// The entry of a principal: `-DER_NONEXIST` without one.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_get_ace_for_principal(
    acl: *mut c_void,
    kind: c_int,
    name: *const c_char,
    ace: *mut *mut c_void,
) -> c_int {
    guarded(|| {
        let (places, place) = (places(acl)?, required(ace)?);
        let (kind, name) = principal(kind, name)?;
        let found = places.iter().find(|(_, entry)| entry.is_of(kind, &name)).ok_or(Der::NONEXIST)?;
        place.set(entry_at(acl, found.0));
        Ok(())
    })
}

/// Changes a list, which is another one in memory then.
fn change(acl: *mut *mut c_void, change: impl FnOnce(&mut Vec<Entry>) -> Outcome) -> Outcome {
    let place = required(acl)?;
    let mut entries = read(place.get())?;
    change(&mut entries)?;
    let changed = allocated(&entries)?;
    daos_acl_free(place.get());
    place.set(changed);
    Ok(())
}

/// Puts an entry into a list, in the place of that of its principal.
pub fn put(entries: &mut Vec<Entry>, new: Entry) {
    match entries.iter_mut().find(|entry| entry.is_of(new.kind, &new.principal)) {
        Some(old) => *old = new,
        None => entries.push(new),
    }
}

/// Puts an entry into a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_add_ace(acl: *mut *mut c_void, new_ace: *mut c_void) -> c_int {
    guarded(|| {
        let new = Entry::at(new_ace.cast::<u8>())?;
        if !new.is_valid() {
            return Err(Der::INVAL);
        }
        change(acl, |entries| {
            put(entries, new);
            Ok(())
        })
    })
}

/// Takes the entry of a principal out of a list.
pub fn take(entries: &mut Vec<Entry>, kind: u8, name: &str) -> Outcome {
    let before = entries.len();
    entries.retain(|entry| !entry.is_of(kind, name));
    if entries.len() < before { Ok(()) } else { Err(Der::NONEXIST) }
}

/// Takes the entry of a principal out of a list: `-DER_NONEXIST` without one.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_remove_ace(acl: *mut *mut c_void, kind: c_int, name: *const c_char) -> c_int {
    guarded(|| {
        let (kind, name) = principal(kind, name)?;
        change(acl, |entries| take(entries, kind, &name))
    })
}

/// Checks a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_acl_validate(acl: *mut c_void) -> c_int {
    guarded(|| check(&read(acl)?))
}

/// Makes an entry without permissions; NULL for a principal that there isn't.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_create(kind: c_int, name: *const c_char) -> *mut c_void {
    let name = if name.is_null() { Ok(String::new()) } else { text_of(name) };
    let made = name.and_then(|name| Entry::new(kind, &name)).and_then(|entry| memory(&entry.to_bytes()));
    made.unwrap_or(ptr::null_mut())
}

/// Frees an entry that was made alone.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_free(ace: *mut c_void) {
    daos_acl_free(ace);
}

/// Bytes of an entry, or an error.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_get_size(ace: *mut c_void) -> isize {
    match Entry::at(ace.cast::<u8>()) {
        Ok(entry) => isize::try_from(entry.size()).unwrap_or(isize::MAX),
        Err(der) => code(der) as isize,
    }
}

/// Whether the parts of an entry fit each other.
#[unsafe(no_mangle)]
pub extern "C" fn daos_ace_is_valid(ace: *mut c_void) -> bool {
    Entry::at(ace.cast::<u8>()).is_ok_and(|entry| entry.is_valid())
}

/// An entry in memory of the C library.
pub fn allocated_entry(entry: &Entry) -> Result<*mut c_void, Der> {
    memory(&entry.to_bytes())
}

/// Whether these are more entries than a list is made of at once.
pub fn is_too_many(count: usize) -> bool {
    count > COUNT_MAX
}
