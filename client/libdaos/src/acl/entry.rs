//! Entries of lists.

use core::ffi::{c_char, c_int};

use weir_proto::Der;

use super::principal::is_valid_name;
use super::{EVERYONE, GROUP, OWNER, OWNER_GROUP, USER};
use crate::boundary::{elements, text_of};

/// Bytes of an entry before its principal.
const HEAD: usize = 32;

/// Kinds of access (`DAOS_ACL_ACCESS_*`).
pub const ALLOW: u8 = 1;
pub const AUDIT: u8 = 2;
pub const ALARM: u8 = 4;
const ACCESSES: u8 = ALLOW | AUDIT | ALARM;

/// Flags (`DAOS_ACL_FLAG_*`).
pub const FLAG_GROUP: u16 = 1;
pub const FLAG_POOL_INHERIT: u16 = 2;
pub const FLAG_FAIL: u16 = 4;
pub const FLAG_SUCCESS: u16 = 8;
const FLAGS: u16 = 15;

/// All permissions.
const PERMISSIONS: u64 = 511;

/// Longest principal, in bytes.
pub const PRINCIPAL_MAX: usize = 255;

/// An entry (`struct daos_ace`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Kinds of access that it is about.
    pub accesses: u8,
    /// Kind of principal.
    pub kind: u8,
    /// Flags.
    pub flags: u16,
    /// Permissions that are granted, watched, and reported.
    pub permissions: [u64; 3],
    /// Name of a user or group.
    pub principal: String,
}

impl Entry {
    /// An entry without permissions: `INVAL` for a kind that there isn't, or a name that none can have.
    pub fn new(kind: c_int, name: &str) -> Result<Self, Der> {
        let kind = u8::try_from(kind).ok().filter(|kind| *kind <= EVERYONE).ok_or(Der::INVAL)?;
        let is_named = matches!(kind, USER | GROUP);
        if is_named && !is_valid_name(name) {
            return Err(Der::INVAL);
        }
        let flags = if matches!(kind, GROUP | OWNER_GROUP) { FLAG_GROUP } else { 0 };
        let principal = if is_named { name.to_owned() } else { String::new() };
        Ok(Self { kind, flags, principal, ..Self::default() })
    }

    /// Bytes of the principal with its NUL, up to a multiple of eight.
    fn principal_len(&self) -> usize {
        if self.principal.is_empty() { 0 } else { (self.principal.len() + 1).next_multiple_of(8) }
    }

    /// Bytes of the structure.
    pub fn size(&self) -> usize {
        HEAD + self.principal_len()
    }

    /// The structure.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.accesses, self.kind];
        let len = u16::try_from(self.principal_len()).unwrap_or(u16::MAX);
        bytes.extend(len.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.permissions.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(self.principal.as_bytes());
        bytes.resize(self.size(), 0);
        bytes
    }

    /// The entry at the beginning of some bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Der> {
        let head = bytes.get(..HEAD).ok_or(Der::INVAL)?;
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let (words, _) = head[8..].as_chunks::<8>();
        let len = usize::from(half(2));
        let name = bytes.get(HEAD..HEAD + len).ok_or(Der::INVAL)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(len);
        if len % 8 != 0 || (len > 0 && end == len) {
            return Err(Der::INVAL);
        }
        let principal = String::from_utf8(name[..end].to_vec()).map_err(|_| Der::INVAL)?;
        let permissions = [words[0], words[1], words[2]].map(u64::from_ne_bytes);
        let entry = Self { accesses: head[0], kind: head[1], flags: half(4), permissions, principal };
        if entry.size() == HEAD + len { Ok(entry) } else { Err(Der::INVAL) }
    }

    /// The entry in a program's memory.
    pub fn at(place: *const u8) -> Result<Self, Der> {
        let head: Vec<u8> = elements(place, HEAD)?;
        let len = usize::from(u16::from_ne_bytes([head[2], head[3]]));
        Self::from_bytes(&elements(place, HEAD + len)?)
    }

    /// Whether its parts fit each other.
    pub fn is_valid(&self) -> bool {
        let is_named = matches!(self.kind, USER | GROUP);
        let is_group = matches!(self.kind, GROUP | OWNER_GROUP);
        let named = if is_named { is_valid_name(&self.principal) } else { self.principal.is_empty() };
        let grouped = (self.flags & FLAG_GROUP != 0) == is_group;
        let watched = self.accesses & (AUDIT | ALARM) != 0;
        let told = self.flags & (FLAG_FAIL | FLAG_SUCCESS) != 0;
        let kinds = [ALLOW, AUDIT, ALARM];
        let matching = self.permissions.iter().zip(kinds).all(|(granted, kind)| {
            granted & !PERMISSIONS == 0 && (*granted == 0 || self.accesses & kind != 0)
        });
        let known = self.accesses != 0 && self.accesses & !ACCESSES == 0 && self.flags & !FLAGS == 0;
        self.kind <= EVERYONE && named && grouped && known && matching && watched == told
    }

    /// Whether it is about a principal.
    pub fn is_of(&self, kind: u8, name: &str) -> bool {
        self.kind == kind && (!matches!(kind, USER | GROUP) || self.principal == name)
    }

    /// Where it stands in a list: owner, users, owner's group, groups, everyone.
    pub fn rank(&self) -> u8 {
        match self.kind {
            OWNER => 0,
            other => other,
        }
    }
}

/// Kind and name of a principal that a program gives: the name counts for users and groups only.
pub fn principal(kind: c_int, name: *const c_char) -> Result<(u8, String), Der> {
    let kind = u8::try_from(kind).ok().filter(|kind| *kind <= EVERYONE).ok_or(Der::INVAL)?;
    let name = if matches!(kind, USER | GROUP) { text_of(name)? } else { String::new() };
    Ok((kind, name))
}
