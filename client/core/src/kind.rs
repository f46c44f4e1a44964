//! Object types (`daos_otype_t`): what an object's keys look like.

/// Two-level keys of any bytes, hashed.
pub const MULTI_HASHED: u8 = 0;
/// Integer dkeys.
pub const DKEY_UINT64: u8 = 2;
/// Integer akeys.
pub const AKEY_UINT64: u8 = 3;
/// Integer dkeys and akeys.
pub const MULTI_UINT64: u8 = 4;
/// Lexically ordered dkeys.
pub const DKEY_LEXICAL: u8 = 5;
/// Lexically ordered akeys.
pub const AKEY_LEXICAL: u8 = 6;
/// Lexically ordered dkeys and akeys.
pub const MULTI_LEXICAL: u8 = 7;
/// Flat key-value, hashed keys.
pub const KV_HASHED: u8 = 8;
/// Flat key-value, integer keys.
pub const KV_UINT64: u8 = 9;
/// Flat key-value, lexically ordered keys.
pub const KV_LEXICAL: u8 = 10;
/// Array whose cell and chunk size are stored in it.
pub const ARRAY: u8 = 11;
/// Array whose cell and chunk size the user provides at each open.
pub const ARRAY_ATTR: u8 = 12;
/// Array of bytes whose chunk size the user provides.
pub const ARRAY_BYTE: u8 = 13;
/// One more than the last type that applications may use.
pub const END: u8 = 14;

/// Whether dkeys of this type are 64-bit integers.
#[must_use]
pub const fn has_integer_dkeys(kind: u8) -> bool {
    matches!(kind, DKEY_UINT64 | MULTI_UINT64 | KV_UINT64 | ARRAY | ARRAY_ATTR | ARRAY_BYTE)
}

/// Whether akeys of this type are 64-bit integers.
#[must_use]
pub const fn has_integer_akeys(kind: u8) -> bool {
    matches!(kind, AKEY_UINT64 | MULTI_UINT64)
}

/// Whether objects of this type are arrays.
#[must_use]
pub const fn is_array(kind: u8) -> bool {
    matches!(kind, ARRAY | ARRAY_ATTR | ARRAY_BYTE)
}

/// Whether objects of this type have one level of keys: arrays and flat key-value stores.
#[must_use]
pub const fn is_flat(kind: u8) -> bool {
    is_array(kind) || matches!(kind, KV_HASHED | KV_UINT64 | KV_LEXICAL)
}
