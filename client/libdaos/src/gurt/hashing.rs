//! Hash functions.

use core::ffi::{c_char, c_uint};

/// The function djb2, of a string that ends with NUL or after `len` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_string_u32(string: *const c_char, len: c_uint) -> u32 {
    let bytes = if string.is_null() {
        &[][..]
    } else {
        // SAFETY: not NULL, so by the caller's promise there is a NUL or `len` bytes; `strnlen` reads no further.
        unsafe { core::slice::from_raw_parts(string.cast::<u8>(), libc::strnlen(string, len as usize)) }
    };
    bytes.iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// `MurmurHash64A` (<https://github.com/aappleby/smhasher>, public domain).
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_murmur64(key: *const u8, key_len: c_uint, seed: c_uint) -> u64 {
    if key.is_null() {
        return 0;
    }
    // SAFETY: not NULL, so by the caller's promise `key_len` bytes stand there.
    murmur64(unsafe { core::slice::from_raw_parts(key, key_len as usize) }, seed)
}

/// As [`d_hash_murmur64`].
pub fn murmur64(bytes: &[u8], seed: u32) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = u64::from(seed) ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let mut mixed = u64::from_le_bytes(*word).wrapping_mul(M);
        mixed ^= mixed >> R;
        hash = (hash ^ mixed.wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let rest = tail.iter().rev().fold(0, |rest, byte| (rest << 8) | u64::from(*byte));
        hash = (hash ^ rest).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> R)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(d_hash_string_u32(c"a".as_ptr(), 8), 177_670);
        assert_eq!(d_hash_string_u32(c"ab".as_ptr(), 1), 177_670);
        assert_eq!(murmur64(b"", 0), 0);
        assert_ne!(murmur64(b"abcdefgh", 1), murmur64(b"abcdefgh", 2));
        assert_ne!(murmur64(b"abcdefgh1", 1), murmur64(b"abcdefgh2", 1));
    }
}
