//! Values of properties: pointers, copies, comparison, and properties as text.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use weir_proto::Der;

use crate::acl;
use crate::boundary::{Outcome, elements, guarded, required};
use crate::property::{
    Given, daos_prop_entry_get, daos_prop_free, entries, given_of, is_pointer, is_string, kind_of, set_given,
    with_kinds,
};
use crate::types::{daos_prop_entry, daos_prop_t};

/// Longest text of a property list, in bytes.
const TEXT_MAX: usize = 4096;

/// Whether the value of an entry is a string.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_has_str(entry: *mut daos_prop_entry) -> bool {
    required(entry).is_ok() && is_string(kind_of(entry))
}

/// Whether the value of an entry is another pointer.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_has_ptr(entry: *mut daos_prop_entry) -> bool {
    required(entry).is_ok() && is_pointer(kind_of(entry))
}

/// Whether the value of an entry is bytes with a length: there is no such property.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_has_byteval(_entry: *mut daos_prop_entry) -> bool {
    false
}

/// Sets an entry to a copy of memory.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_entry_set_ptr(
    entry: *mut daos_prop_entry,
    memory: *const c_void,
    size: u64,
) -> c_int {
    guarded(|| {
        required(entry)?;
        if !is_pointer(kind_of(entry)) || size == 0 {
            return Err(Der::INVAL);
        }
        let size = usize::try_from(size).map_err(|_| Der::INVAL)?;
        set_given(entry, &Given::Bytes(elements(memory.cast::<u8>(), size)?))
    })
}

/// Sets the entry of a type to a copy of memory: `-DER_NONEXIST` when the list has no such entry.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_set_ptr(
    prop: *mut daos_prop_t,
    kind: u32,
    memory: *const c_void,
    size: u64,
) -> c_int {
    guarded(|| {
        required(prop)?;
        let entry = daos_prop_entry_get(prop, kind);
        if entry.is_null() {
            return Err(Der::NONEXIST);
        }
        let result = daos_prop_entry_set_ptr(entry, memory, size);
        if result == 0 { Ok(()) } else { Err(Der(result.unsigned_abs())) }
    })
}

/// Sets an entry to a copy of another one's memory.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_entry_dup_ptr(
    entry_dst: *mut daos_prop_entry,
    entry_src: *mut daos_prop_entry,
    len: usize,
) -> c_int {
    guarded(|| {
        required(entry_dst)?;
        let source = required(entry_src)?.get();
        if !is_pointer(kind_of(entry_src)) {
            return Err(Der::INVAL);
        }
        // SAFETY: the type of the entry says that its value is a pointer.
        let memory = unsafe { source.value.dpe_val_ptr };
        set_given(entry_dst, &Given::Bytes(elements(memory.cast::<u8>().cast_const(), len)?))
    })
}

/// Sets an entry to a copy of another one's roots.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_entry_dup_co_roots(
    dst: *mut daos_prop_entry,
    src: *mut daos_prop_entry,
) -> c_int {
    const ROOTS_LEN: usize = 64;
    daos_prop_entry_dup_ptr(dst, src, ROOTS_LEN)
}

/// Compares the access control lists of two entries: `-DER_MISMATCH` when they differ.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_entry_cmp_acl(
    entry1: *mut daos_prop_entry,
    entry2: *mut daos_prop_entry,
) -> c_int {
    guarded(|| {
        let list = |entry: *mut daos_prop_entry| match given_of(entry)? {
            Some(Given::Bytes(bytes)) => acl::from_bytes(&bytes),
            _ => Err(Der::INVAL),
        };
        required(entry1)?;
        required(entry2)?;
        if list(entry1)? == list(entry2)? { Ok(()) } else { Err(Der::MISMATCH) }
    })
}

/// Frees the values and entries of a list, not the list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_fini(prop: *mut daos_prop_t) {
    if let Ok(place) = required(prop) {
        crate::property::free_entries(prop);
        place.change(|list| (list.dpp_nr, list.dpp_entries) = (0, ptr::null_mut()));
    }
}

/// Makes a list of two: where both have a property, that of the second.
fn merged(old: *mut daos_prop_t, new: *mut daos_prop_t) -> Result<*mut daos_prop_t, Der> {
    let mut all: Vec<*mut daos_prop_entry> = entries(new);
    for entry in entries(old) {
        if !all.iter().any(|other| kind_of(*other) == kind_of(entry)) {
            all.push(entry);
        }
    }
    let kinds: Vec<u32> = all.iter().map(|entry| kind_of(*entry)).collect();
    let made = with_kinds(&kinds)?;
    let filled: Outcome = entries(made)
        .into_iter()
        .zip(all)
        .try_for_each(|(to, from)| given_of(from)?.map_or(Ok(()), |value| set_given(to, &value)));
    if let Err(der) = filled {
        daos_prop_free(made);
        return Err(der);
    }
    Ok(made)
}

/// Makes a list of two, of which either may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_merge2(
    old_prop: *mut daos_prop_t,
    new_prop: *mut daos_prop_t,
    out_prop: *mut *mut daos_prop_t,
) -> c_int {
    guarded(|| {
        let place = required(out_prop)?;
        place.set(merged(old_prop, new_prop)?);
        Ok(())
    })
}

/// As [`daos_prop_merge2`]; NULL for an error.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_merge(
    old_prop: *mut daos_prop_t,
    new_prop: *mut daos_prop_t,
) -> *mut daos_prop_t {
    merged(old_prop, new_prop).unwrap_or(ptr::null_mut())
}

/// Numbers of words that stand for values.
const CHECKSUMS: [&str; 8] = ["off", "crc16", "crc32", "crc64", "sha1", "sha256", "sha512", "adler32"];
const DEDUPLICATIONS: [&str; 3] = ["off", "memcmp", "hash"];
const COMPRESSIONS: [&str; 7] = ["off", "lz4", "deflate", "deflate1", "deflate2", "deflate3", "deflate4"];
const ENCRYPTIONS: [&str; 8] =
    ["off", "aes-xts128", "aes-xts256", "aes-cbc128", "aes-cbc192", "aes-cbc256", "aes-gcm128", "aes-gcm256"];
const SWITCHES: [&str; 2] = ["off", "on"];
const STATES: [&str; 2] = ["healthy", "unclean"];
const LEVELS: [&str; 3] = ["", "rank", "node"];
const LAYOUTS: [&str; 9] =
    ["unknown", "posix", "hdf5", "python", "spark", "database", "root", "seismic", "meteo"];

/// Names of properties in text with their numbers, and the words that their values may be.
const NAMES: [(&str, u32, &[&str]); 19] = [
    ("label", 4097, &[]),
    ("layout_type", 4098, &LAYOUTS),
    ("cksum", 4100, &CHECKSUMS),
    ("cksum_size", 4101, &[]),
    ("srv_cksum", 4102, &SWITCHES),
    ("rd_fac", 4103, &[]),
    ("rf", 4103, &[]),
    ("rd_lvl", 4104, &LEVELS),
    ("compression", 4107, &COMPRESSIONS),
    ("encryption", 4108, &ENCRYPTIONS),
    ("owner", 4109, &[]),
    ("group", 4110, &[]),
    ("dedup", 4111, &DEDUPLICATIONS),
    ("dedup_threshold", 4112, &[]),
    ("status", 4114, &STATES),
    ("ec_cell_sz", 4116, &[]),
    ("cell_size", 4116, &[]),
    ("ec_pda", 4117, &[]),
    ("rp_pda", 4118, &[]),
];

/// A number, with one of the letters K, M, G for powers of 1024 behind it or none.
fn number(text: &str) -> Option<u64> {
    let (digits, factor) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Number and value of a property in text, `NAME:VALUE`.
fn parse(text: &str) -> Result<(u32, Given), Der> {
    let (name, value) = text.split_once(':').ok_or(Der::INVAL)?;
    let (name, value) = (name.trim(), value.trim());
    let (_, kind, words) = NAMES.iter().find(|known| known.0.eq_ignore_ascii_case(name)).ok_or(Der::INVAL)?;
    if value.is_empty() {
        return Err(Der::INVAL);
    }
    if is_string(*kind) {
        return Ok((*kind, Given::Text(value.to_owned())));
    }
    let word = words.iter().position(|word| word.eq_ignore_ascii_case(value)).map(|at| at as u64);
    let found = word.or_else(|| if words.is_empty() { number(value) } else { None }).ok_or(Der::INVAL)?;
    Ok((*kind, Given::Number(found)))
}

/// Makes a list of text: `NAME:VALUE` with `;` or `,` between.
#[unsafe(no_mangle)]
pub extern "C" fn daos_prop_from_str(str: *const c_char, len: u64, prop: *mut *mut daos_prop_t) -> c_int {
    guarded(|| {
        let place = required(prop)?;
        let len = usize::try_from(len).ok().filter(|len| (1..=TEXT_MAX).contains(len)).ok_or(Der::INVAL)?;
        if str.is_null() {
            return Err(Der::INVAL);
        }
        // SAFETY: not NULL, so by the caller's promise it is text of `len` bytes, or a shorter one that ends with NUL.
        let end = unsafe { libc::strnlen(str, len) };
        let bytes: Vec<u8> = elements(str.cast::<u8>(), end)?;
        let text = core::str::from_utf8(&bytes).map_err(|_| Der::INVAL)?;
        let parts = text.split([';', ',']).filter(|part| !part.trim().is_empty());
        let all: Vec<(u32, Given)> = parts.map(parse).collect::<Result<_, Der>>()?;
        if all.is_empty() {
            return Err(Der::INVAL);
        }
        let kinds: Vec<u32> = all.iter().map(|(kind, _)| *kind).collect();
        let made = with_kinds(&kinds)?;
        let filled: Outcome =
            entries(made).into_iter().zip(&all).try_for_each(|(entry, (_, value))| set_given(entry, value));
        if filled.is_err() {
            daos_prop_free(made);
            return filled;
        }
        place.set(made);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_in_text_have_words_and_numbers() {
        let of = |text: &str| parse(text).map(|(kind, value)| (kind, format!("{value:?}")));
        assert_eq!(of("label:tank"), Ok((4097, "Text(\"tank\")".into())));
        assert_eq!(of(" rf : 1"), Ok((4103, "Number(1)".into())));
        assert_eq!(of("cksum:CRC32"), Ok((4100, "Number(2)".into())));
        assert_eq!(of("ec_cell_sz:64k"), Ok((4116, "Number(65536)".into())));
        for bad in ["label", "label:", "odd:1", "cksum:7", "rf:x"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
