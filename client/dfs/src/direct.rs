//! Direct access to the files of a mount: what a process asks the mount by `ioctl` on a file that it has open.
//!
//! A process that knows of this moves a file's data to and from the engines itself. It learns the file's object and, once for
//! each mount, the container's handle. As long as a file is accessed directly, the mount gathers none of its writes and keeps
//! none of its attributes, so that the kernel's path and the direct one show the same file.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_client::{Array, AttachText, Epoch};
use weir_proto::{ObjectId, codec};

use crate::file::File;
use crate::mount::{CHUNK_MAX, Dfs};
use crate::{Error, Result};

/// Names the requests of this protocol among those of all file systems.
const TYPE: u32 = 0xd7;

/// Version of what the answers hold.
const VERSION: u8 = 2;

/// Bytes of the answer to [`BEGIN`].
pub const FILE_BYTES: usize = 128;

/// Bytes of question and answer of [`MOUNT`]: below the 16 KiB that a request may carry.
pub const PIECE_BYTES: usize = 8192;

/// Bytes before the piece: the length of the whole, or in the question the place of the piece.
const PIECE_HEAD: usize = 4;

/// Bytes that describe a mount, at most: handles of the largest pools take a hundredth of this.
const MOUNT_MAX: usize = 1 << 22;

/// The number of a request as `ioctl` takes it (linux/ioctl.h): who copies what, size, type, number.
#[expect(clippy::cast_possible_truncation, reason = "a request carries less than 16 KiB")]
const fn request(copies: u32, bytes: usize, number: u32) -> u32 {
    (copies << 30) | ((bytes as u32) << 16) | (TYPE << 8) | number
}

/// The open file is accessed directly from now on: answers with a [`DirectFile`].
pub const BEGIN: u32 = request(2, FILE_BYTES, 1);

/// A piece of the [`DirectMount`].
pub const MOUNT: u32 = request(3, PIECE_BYTES, 2);

/// The open file is mapped, so that nobody is to begin to access it directly as long as this is open.
pub const MAP: u32 = request(0, 0, 3);

/// Whether the open file is on a mount that knows of this. Nothing is handed over, so any process may ask.
pub const PRESENT: u32 = request(0, 0, 4);

/// The open directory is the root of a mount, and a process that keeps it open finds names and attributes at the engines itself. As
/// long as it is open the mount gathers nothing. Answers with a [`DirectNames`].
pub const NAMES: u32 = request(2, FILE_BYTES, 5);

/// Tells mounts, and the processes that serve one after another, apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MountId {
    /// UUID of the container.
    pub container: u128,
    /// When the process began to serve the mount, in nanoseconds since 1970.
    pub begun_ns: u64,
    /// Its process id.
    pub process: u32,
}

/// What a process has to know of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectFile {
    /// Where it is.
    pub mount: MountId,
    /// The object that holds its content.
    pub oid: ObjectId,
    /// Bytes of its chunks.
    pub chunk_size: u64,
}

/// What a process has to know to find names by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectNames {
    /// Where they are.
    pub mount: MountId,
    /// Whether it may add names: the kernel goes by no name that is missing.
    pub may_add: bool,
}

/// What a process has to know of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectMount {
    /// Which it is.
    pub id: MountId,
    /// The attach file that the mount uses, on the mount's node.
    pub attach: String,
    /// What to attach with where that file isn't to be found, as in a pod: a tenant's, and only of mounts that give it to any process.
    pub credentials: Option<AttachText>,
    /// The open container ([`weir_client::Container::to_bytes`]).
    #[serde(with = "serde_bytes")]
    pub container: Vec<u8>,
    /// The file system in it ([`Dfs::to_bytes`]).
    #[serde(with = "serde_bytes")]
    pub file_system: Vec<u8>,
}

fn malformed(what: &str) -> Error {
    Error::Invalid(format!("a mount has described {what} as no mount of this version does"))
}

/// As the answer to a request that has one of a fixed length.
fn answer_of(described: &impl Serialize) -> [u8; FILE_BYTES] {
    let encoded = codec::encode(&(VERSION, described));
    let mut answer = [0; FILE_BYTES];
    answer[..encoded.len()].copy_from_slice(&encoded);
    answer
}

/// From such an answer; `what` it describes.
fn described_by<T: DeserializeOwned>(answer: &[u8; FILE_BYTES], what: &str) -> Result<T> {
    match codec::decode_prefix::<(u8, T)>(answer) {
        Ok(((VERSION, described), _)) => Ok(described),
        _ => Err(malformed(what)),
    }
}

impl DirectFile {
    /// As the answer to [`BEGIN`].
    #[must_use]
    pub fn answer(&self) -> [u8; FILE_BYTES] {
        answer_of(self)
    }

    /// From an answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none of this version.
    pub fn from_answer(answer: &[u8; FILE_BYTES]) -> Result<Self> {
        described_by(answer, "a file")
    }
}

impl DirectNames {
    /// As the answer to [`NAMES`].
    #[must_use]
    pub fn answer(&self) -> [u8; FILE_BYTES] {
        answer_of(self)
    }

    /// From an answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none of this version.
    pub fn from_answer(answer: &[u8; FILE_BYTES]) -> Result<Self> {
        described_by(answer, "its names")
    }
}

impl DirectMount {
    /// As bytes, of which [`MOUNT`] asks for pieces.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(&(VERSION, self))
    }

    /// Asks for all pieces.
    ///
    /// # Errors
    /// What `ask` fails with, and [`Error::Invalid`] when the pieces are no mount of this version.
    pub fn collect<E: From<Error>>(
        mut ask: impl FnMut(&mut [u8; PIECE_BYTES]) -> core::result::Result<(), E>,
    ) -> core::result::Result<Self, E> {
        let mut bytes = Vec::new();
        loop {
            let mut piece = [0; PIECE_BYTES];
            let place = u32::try_from(bytes.len()).map_err(|_| malformed("itself"))?;
            piece[..PIECE_HEAD].copy_from_slice(&place.to_le_bytes());
            ask(&mut piece)?;
            let whole = head(&piece).filter(|whole| *whole <= MOUNT_MAX && *whole > bytes.len());
            let left = whole.ok_or_else(|| malformed("itself"))? - bytes.len();
            bytes.extend(piece[PIECE_HEAD..].iter().take(left));
            if left <= PIECE_BYTES - PIECE_HEAD {
                break;
            }
        }
        match codec::decode::<(u8, Self)>(&bytes) {
            Ok((VERSION, mount)) => Ok(mount),
            _ => Err(malformed("itself").into()),
        }
    }
}

/// The answer to a question for a piece of these bytes. `None`: it is no such question.
#[must_use]
pub fn piece(bytes: &[u8], question: &[u8]) -> Option<[u8; PIECE_BYTES]> {
    let rest = bytes.get(head(question)?..)?;
    let mut answer = [0; PIECE_BYTES];
    answer[..PIECE_HEAD].copy_from_slice(&u32::try_from(bytes.len()).ok()?.to_le_bytes());
    let piece = &rest[..rest.len().min(PIECE_BYTES - PIECE_HEAD)];
    answer[PIECE_HEAD..][..piece.len()].copy_from_slice(piece);
    Some(answer)
}

fn head(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.first_chunk::<PIECE_HEAD>()?)).ok()
}

impl Dfs {
    /// The content of a file that a mount has described. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there can't be such a file.
    pub fn direct_file(&self, oid: ObjectId, chunk_size: u64) -> Result<File> {
        if chunk_size == 0 || chunk_size > CHUNK_MAX {
            return Err(malformed("a file"));
        }
        let array = Array::compact_bytes(self.container(), oid, chunk_size)?;
        let array = if self.epoch() == Epoch::MAX { array } else { array.at(self.epoch()) };
        Ok(self.content_in(array, oid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: DirectFile = DirectFile {
        mount: MountId { container: u128::MAX, begun_ns: u64::MAX, process: u32::MAX },
        oid: ObjectId { hi: u64::MAX, lo: u64::MAX },
        chunk_size: u64::MAX,
    };

    #[test]
    fn a_file_is_described_in_one_answer_of_this_version() {
        let mut answer = FILE.answer();
        assert_eq!(DirectFile::from_answer(&answer).expect("of this version"), FILE);
        answer[0] += 1;
        assert!(DirectFile::from_answer(&answer).is_err());
        assert!(DirectFile::from_answer(&[0xff; FILE_BYTES]).is_err());
        let names = DirectNames { mount: FILE.mount, may_add: true };
        let mut answer = names.answer();
        assert_eq!(DirectNames::from_answer(&answer).expect("of this version"), names);
        answer[0] += 1;
        assert!(DirectNames::from_answer(&answer).is_err());
    }

    #[test]
    fn requests_have_the_numbers_that_the_kernel_copies_by() {
        assert_eq!(BEGIN, 0x8080_d701);
        assert_eq!(MOUNT, 0xe000_d702);
        assert_eq!(MAP, 0xd703);
        // `preload.c` has these two by number.
        assert_eq!(PRESENT, 0xd704);
        assert_eq!(NAMES, 0x8080_d705);
    }

    #[test]
    fn a_mount_that_answers_nonsense_is_refused() {
        let collect = |answer: [u8; PIECE_BYTES]| {
            DirectMount::collect::<Error>(|piece| {
                *piece = answer;
                Ok(())
            })
        };
        assert!(collect([0; PIECE_BYTES]).is_err(), "nothing");
        assert!(collect([0xff; PIECE_BYTES]).is_err(), "too much");
        assert!(collect([7, 0, 0, 0].repeat(PIECE_BYTES / 4).try_into().expect("as long")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_mount_of_any_length_arrives_in_pieces(length in 0..40_000_usize, question: Vec<u8>) {
            let container: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).expect("small")).collect();
            let mount = DirectMount { id: FILE.mount, attach: "/etc/weir".into(), credentials: None, container, file_system: vec![1] };
            let bytes = mount.to_bytes();
            let collected = DirectMount::collect::<Error>(|asked| {
                *asked = piece(&bytes, asked).expect("a question");
                Ok(())
            });
            prop_assert_eq!(collected.expect("collected"), mount);
            if let Some(answer) = piece(&bytes, &question) {
                prop_assert_eq!(head(&answer), Some(bytes.len()));
            }
        }
    }
}
