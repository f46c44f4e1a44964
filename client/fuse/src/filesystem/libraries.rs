//! What a mount shows that isn't in its container: the libraries by which programs pass it, in a directory of its root.
//!
//! So a pod has them without a change of its image, as it has the mount. The directory is on mounts with the option `intercept` only. It
//! hides an entry of the container by its name, and isn't listed in the root. No engine is asked for it: programs start while all
//! are away.
//!
//! A library's number is made of what it is: a process that serves the mount after this one goes on with the same files, and
//! those of another release have other numbers.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::GENERATION;
use super::inodes::ROOT;

/// Name of the directory.
const DIRECTORY: &[u8] = b".weir";

/// Names that programs are started with for data alone: the one of this project, and the one that DAOS has for it.
const PRELOADED: [&str; 2] = ["libweir_intercept.so", "libioil.so"];

/// The name that programs are started with for data and names.
const OF_NAMES: &str = "libpil4dfs.so";

/// The library that the first one loads.
const LOADED: &str = "libweir_direct.so";

/// Environment variable that names its file, where that is neither beside the program nor in `lib` beside the program's folder.
const VARIABLE: &str = "WEIR_INTERCEPT_LIBRARY";

/// The library that programs are started with.
const PRELOADED_BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libweir_intercept.so"));

/// The library of data and names.
const OF_NAMES_BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpil4dfs.so"));

/// Numbers from here on are of this directory: those of a container are given out in sequence from the other end.
const NUMBERS: u64 = 0xffff << 48;

/// Number of the directory.
const DIRECTORY_NUMBER: u64 = NUMBERS;

/// How long the kernel may go by names and attributes: they never change.
pub const LIFE: Duration = Duration::from_hours(1);

/// Handle of all that is opened here: nothing has to be remembered of it.
pub const HANDLE: u64 = 0;

/// The libraries that a mount shows.
#[derive(Debug, Default)]
pub struct Libraries {
    files: Vec<Library>,
}

#[derive(Debug)]
struct Library {
    name: &'static str,
    number: u64,
    size: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Held(&'static [u8]),
    In(File),
}

impl Libraries {
    /// Those that this process finds. Without the second one, programs that load the first go on through the kernel.
    pub fn find() -> Self {
        let held = |name, bytes: &'static [u8]| Library {
            name,
            number: number(blake3::hash(bytes).as_bytes(), name),
            size: bytes.len() as u64,
            content: Content::Held(bytes),
        };
        let of_data = PRELOADED.map(|name| held(name, PRELOADED_BYTES));
        let preloaded = of_data.into_iter().chain([held(OF_NAMES, OF_NAMES_BYTES)]);
        let loaded = find_loaded();
        if loaded.is_none() {
            tracing::warn!("there is no {LOADED} for programs in pods: they go through the kernel");
        }
        Self { files: preloaded.chain(loaded).collect() }
    }

    /// Whether a number is of the directory or a file in it, perhaps of another release.
    pub fn has(&self, number: u64) -> bool {
        !self.files.is_empty() && number >= NUMBERS
    }

    /// Whether a name of a directory is that of this one.
    pub fn is_named(&self, parent: u64, name: &[u8]) -> bool {
        !self.files.is_empty() && parent == ROOT && name == DIRECTORY
    }

    /// The attributes of a name, if it is of this directory.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Option<Result<FileAttr, Errno>> {
        if self.is_named(parent, name) {
            return Some(Ok(attributes(DIRECTORY_NUMBER, FileType::Directory, 0)));
        }
        self.has(parent).then(|| {
            let found = self.files.iter().find(|file| file.name.as_bytes() == name);
            found.map(Library::attributes).ok_or(Errno::ENOENT)
        })
    }

    /// The attributes of a number, if it is of this directory.
    pub fn getattr(&self, number: u64) -> Option<Result<FileAttr, Errno>> {
        self.has(number).then(|| {
            if number == DIRECTORY_NUMBER {
                return Ok(attributes(number, FileType::Directory, 0));
            }
            self.file(number).map(Library::attributes)
        })
    }

    /// Opens a file or the directory: how the kernel is to treat it.
    pub fn open(&self, number: u64, flags: i32) -> Option<Result<FopenFlags, Errno>> {
        self.has(number).then(|| {
            let is_there = number == DIRECTORY_NUMBER || self.file(number).is_ok();
            match flags & libc::O_ACCMODE {
                _ if !is_there => Err(Errno::ESTALE),
                libc::O_RDONLY => Ok(FopenFlags::FOPEN_KEEP_CACHE),
                _ => Err(Errno::EROFS),
            }
        })
    }

    /// Reads a file.
    pub fn read(&self, number: u64, offset: u64, size: u32) -> Option<Result<Vec<u8>, Errno>> {
        let failed = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_i32);
        self.has(number).then(|| self.file(number)?.read(offset, size as usize).map_err(failed))
    }

    /// Fills a listing with names.
    pub fn list(&self, number: u64, offset: u64, reply: &mut ReplyDirectory) -> bool {
        if !self.has(number) {
            return false;
        }
        for (index, name, attributes) in self.entries(offset) {
            if reply.add(attributes.ino, index, attributes.kind, name) {
                break;
            }
        }
        true
    }

    /// Fills a listing with names and attributes.
    pub fn list_with_attributes(&self, number: u64, offset: u64, reply: &mut ReplyDirectoryPlus) -> bool {
        if !self.has(number) {
            return false;
        }
        for (index, name, attributes) in self.entries(offset) {
            if reply.add(attributes.ino, index, name, &LIFE, &attributes, GENERATION) {
                break;
            }
        }
        true
    }

    /// Entries behind an offset, each with its own.
    fn entries(&self, offset: u64) -> impl Iterator<Item = (u64, &'static str, FileAttr)> {
        let directory = |number| attributes(number, FileType::Directory, 0);
        let dots = [(".", directory(DIRECTORY_NUMBER)), ("..", directory(ROOT))];
        let files = self.files.iter().map(|file| (file.name, file.attributes()));
        let all = (1..).zip(dots.into_iter().chain(files)).map(|(index, (name, found))| (index, name, found));
        all.filter(move |(index, ..)| *index > offset)
    }

    fn file(&self, number: u64) -> Result<&Library, Errno> {
        self.files.iter().find(|file| file.number == number).ok_or(Errno::ESTALE)
    }
}

impl Library {
    fn attributes(&self) -> FileAttr {
        attributes(self.number, FileType::RegularFile, self.size)
    }

    fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        match &self.content {
            Content::Held(bytes) => {
                let start = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
                Ok(bytes[start..].iter().copied().take(size).collect())
            }
            Content::In(file) => {
                let left = self.size.saturating_sub(offset).min(size as u64);
                let left = usize::try_from(left).expect("invariant: no more than was asked for");
                let mut bytes = vec![0; left];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
        }
    }
}

/// Where the library may be that the first one loads.
fn places() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return vec![named.into()];
    }
    let program = std::env::current_exe();
    let folder = program.ok().and_then(|program| program.parent().map(Path::to_path_buf));
    folder.map_or_else(Vec::new, |folder| vec![folder.join(LOADED), folder.join("../lib").join(LOADED)])
}

fn find_loaded() -> Option<Library> {
    let file = places().into_iter().find_map(|place| File::open(place).ok())?;
    let found = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let what = [found.size().to_le_bytes(), found.mtime().to_le_bytes(), found.mtime_nsec().to_le_bytes()];
    Some(Library {
        name: LOADED,
        number: number(&what.concat(), LOADED),
        size: found.size(),
        content: Content::In(file),
    })
}

/// The number of a file by what it is and its name.
fn number(what: &[u8], name: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(what).update(name.as_bytes());
    let [one, two, three, four, five, six, ..] = *hasher.finalize().as_bytes();
    // Not that of the directory.
    NUMBERS | u64::from_be_bytes([0, 0, one, two, three, four, five, six | 1])
}

fn attributes(number: u64, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(super::attributes::BLOCK),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o555,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Libraries {
        let name = PRELOADED[0];
        let content = Content::Held(PRELOADED_BYTES);
        let size = PRELOADED_BYTES.len() as u64;
        Libraries { files: vec![Library { name, number: number(b"one", name), size, content }] }
    }

    #[test]
    fn a_mount_without_them_leaves_every_name_to_its_container() {
        let none = Libraries::default();
        assert!(none.lookup(ROOT, DIRECTORY).is_none() && !none.is_named(ROOT, DIRECTORY));
        assert!(none.getattr(u64::MAX).is_none() && none.open(u64::MAX, 0).is_none());
    }

    #[test]
    fn only_the_root_has_the_directory() {
        let shown = shown();
        let directory = shown.lookup(ROOT, DIRECTORY).expect("shown").expect("there");
        assert_eq!(directory.kind, FileType::Directory);
        assert!(shown.lookup(ROOT, b".weird").is_none() && shown.lookup(2, DIRECTORY).is_none());
        let inside = |name: &[u8]| shown.lookup(directory.ino.0, name).expect("of the directory");
        assert_eq!(inside(b"absent").expect_err("no such file"), Errno::ENOENT);
        let file = inside(PRELOADED[0].as_bytes()).expect("there");
        assert_eq!(shown.getattr(file.ino.0).expect("shown").expect("there"), file);
    }

    #[test]
    fn a_file_is_read_to_its_end_and_not_written() {
        let shown = shown();
        let file = shown.files[0].number;
        assert!(shown.open(file, libc::O_RDONLY).expect("shown").is_ok());
        assert_eq!(shown.open(file, libc::O_RDWR).expect("shown").expect_err("refused"), Errno::EROFS);
        let size = PRELOADED_BYTES.len() as u64;
        for (offset, expected) in
            [(0, PRELOADED_BYTES), (size - 7, &PRELOADED_BYTES[PRELOADED_BYTES.len() - 7..])]
        {
            assert_eq!(shown.read(file, offset, 1 << 20).expect("shown").expect("read"), expected);
        }
        assert!(shown.read(file, size + 9, 10).expect("shown").expect("read").is_empty());
    }

    #[test]
    fn a_file_of_another_release_is_stale() {
        let shown = shown();
        let other = number(b"another", PRELOADED[0]);
        assert_eq!(shown.open(other, libc::O_RDONLY).expect("shown").expect_err("gone"), Errno::ESTALE);
        assert_eq!(shown.getattr(other).expect("shown").expect_err("gone"), Errno::ESTALE);
    }
}
