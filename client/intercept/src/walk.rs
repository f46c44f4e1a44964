//! Walks paths, and does what is wanted at their ends.
//!
//! Each call asks the engines for each component of its path anew, so that it sees what any process of any node has changed before.
//! What a thread has seen before tells it only which questions to ask at the same time: answers count where they are to the question
//! that the walk has come to.

use std::collections::HashMap;

use weir_client::{Context, ObjectId};
use weir_dfs::{Dfs, Error, Kind, Node, Ownership, Stat};
use weir_runtime::join_all;

use crate::caller::{Caller, READ, SEARCH, WRITE};
use crate::question::{Entry, Listing, NO_PROGRAMS, Question, READ_ONLY, Wanted, key};
use crate::submission::Outcome;

/// Inode number of a mount's root.
const ROOT: u64 = 1;

/// Name of what a mount shows in its root, of which engines know nothing.
const SHOWN: &[u8] = b".weir";

/// Symbolic links that are followed on one way: as many as the kernel follows.
const LINKS_MAX: u32 = 40;

/// Longest path that the kernel takes, without its end.
const PATH_MAX: usize = 4095;

/// The mode of a directory in which a symbolic link may be one that the kernel doesn't follow (`protected_symlinks`).
const STICKY_AND_OPEN: u32 = 0o1002;

/// Names that a thread remembers, and directories.
const REMEMBERED: usize = 8192;

/// Entries that are listed in one step.
const STEP: usize = 256;

/// What a thread has seen of a mount's names.
#[derive(Default)]
pub struct Seen {
    /// Entries by directory and name.
    entries: HashMap<(u128, Vec<u8>), Node>,
    /// Directories by inode number.
    directories: HashMap<u64, Node>,
}

impl Seen {
    fn note(&mut self, parent: ObjectId, node: &Node) {
        if self.entries.len() >= REMEMBERED {
            self.entries.clear();
        }
        if node.is_directory() {
            self.note_directory(node);
        }
        self.entries.insert((key(parent), node.name.clone()), node.clone());
    }

    fn note_directory(&mut self, node: &Node) {
        if self.directories.len() >= REMEMBERED {
            self.directories.clear();
        }
        self.directories.insert(node.inode_number(), node.clone());
    }
}

/// Why a walk ends before its end.
pub enum Stop {
    /// The kernel has to do it.
    Kernel,
    /// The kernel has to do it, and what comes: the engines have failed.
    Failed,
    /// The path of the directory where it begins is needed.
    StartPath,
    /// This error.
    Errno(i32),
    /// It may have been done.
    InDoubt,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound(_) | Error::NotDirectory(_) | Error::NameTooLong { .. } | Error::Exists(_) => {
                Self::Errno(error.errno())
            }
            Error::Client(_) | Error::Corrupt { .. } => Self::Failed,
            _ => Self::Kernel,
        }
    }
}

/// Where a walk has come to.
enum End {
    /// An inode, with its attributes if they came along.
    At(Node, Option<Stat>),
    /// There is nothing of this name in this directory.
    Missing(Node, Vec<u8>),
}

/// The names of one mount, for one question.
pub struct Names<'m> {
    /// What engines are asked with.
    pub context: &'m Context,
    /// The file system.
    pub dfs: &'m Dfs,
    /// What the thread has seen of it.
    pub seen: &'m mut Seen,
}

/// An answer that was asked for before the walk has come to its question.
type Answers = HashMap<(u128, Vec<u8>), weir_dfs::Result<(Node, Option<Stat>)>>;

impl Names<'_> {
    /// Answers a question. The number is what the call returns.
    pub fn answer(&mut self, question: &mut Question<'_>) -> Outcome {
        let answered = self.try_answer(question);
        match answered {
            Ok(bytes) => Outcome::Done { bytes, end: 0 },
            Err(Stop::Kernel) => Outcome::Unfit,
            Err(Stop::Failed) => Outcome::Failed,
            Err(Stop::StartPath) => Outcome::Incomplete,
            Err(Stop::Errno(errno)) => Outcome::Refused(errno),
            Err(Stop::InDoubt) => Outcome::InDoubt,
        }
    }

    fn try_answer(&mut self, question: &mut Question<'_>) -> Result<usize, Stop> {
        if question.path.len() > PATH_MAX {
            return Err(Stop::Kernel);
        }
        let caller = question.caller;
        if matches!(question.wanted, Wanted::MakeDirectory(_) | Wanted::MakeLink(_)) {
            return self.make(question).map(|()| 0);
        }
        let end = self.walk(question, question.path, true)?;
        let (node, stat) = match end {
            End::At(node, stat) => (node, stat),
            End::Missing(..) => return Err(Stop::Errno(libc::ENOENT)),
        };
        match &mut question.wanted {
            Wanted::Look => {
                let stat = match stat {
                    Some(stat) => stat,
                    None => self.context.block_on(self.dfs.stat_listed(self.context, &node))?,
                };
                question.found = Some(stat);
                Ok(0)
            }
            Wanted::May(wanted, flags) => {
                let writes = *wanted & WRITE != 0;
                let runs = *wanted & SEARCH != 0 && node.record.kind == Kind::File;
                let is_refused = (writes && (*flags & READ_ONLY != 0 || self.dfs.is_read_only()))
                    || (runs && *flags & NO_PROGRAMS != 0)
                    || !caller.may(&node.record, *wanted);
                if is_refused { Err(Stop::Kernel) } else { Ok(0) }
            }
            Wanted::ReadLink(room) => {
                if node.record.kind != Kind::Symlink {
                    return Err(Stop::Errno(libc::EINVAL));
                }
                let length = room.len().min(node.record.target.len());
                room[..length].copy_from_slice(&node.record.target[..length]);
                Ok(length)
            }
            Wanted::Attribute(name, room) => {
                let value = self.attribute(&node, *name, &caller)?;
                if room.is_empty() {
                    return Ok(value.len());
                }
                let room = room.get_mut(..value.len()).ok_or(Stop::Errno(libc::ERANGE))?;
                room.copy_from_slice(&value);
                Ok(value.len())
            }
            Wanted::Open(opened) => {
                if !node.is_directory() {
                    return Err(Stop::Errno(libc::ENOTDIR));
                }
                if !caller.may(&node.record, READ) {
                    return Err(Stop::Kernel);
                }
                **opened = Some((self.dfs.open_directory(&node)?, node.inode_number()));
                Ok(0)
            }
            Wanted::MakeDirectory(_) | Wanted::MakeLink(_) => Err(Stop::Kernel),
        }
    }

    /// The value of an extended attribute, or the names of all, each ended by a NUL. Names that the kernel, or a part of it, knows
    /// itself are its own to judge.
    fn attribute(&self, node: &Node, name: Option<&[u8]>, caller: &Caller) -> Result<Vec<u8>, Stop> {
        let Some(name) = name else {
            let names = self.context.block_on(self.dfs.list_xattrs(self.context, node))?;
            return Ok(names.iter().flat_map(|name| [&name[..], &[0]].concat()).collect());
        };
        if name.starts_with(b"system.posix_acl_") {
            // As the mount says of all that it doesn't enforce.
            return Err(Stop::Errno(libc::EOPNOTSUPP));
        }
        if !name.starts_with(b"user.") || !caller.may(&node.record, READ) {
            return Err(Stop::Kernel);
        }
        // Only files and directories have any of users (xattr(7)).
        if !node.record.xattrs || !matches!(node.record.kind, Kind::File | Kind::Directory) {
            return Err(Stop::Errno(libc::ENODATA));
        }
        match self.context.block_on(self.dfs.get_xattr(self.context, node, name)) {
            Err(Error::NoAttribute(_)) => Err(Stop::Errno(libc::ENODATA)),
            value => Ok(value?),
        }
    }

    /// Adds a name.
    fn make(&mut self, question: &Question<'_>) -> Result<(), Stop> {
        let is_directory = matches!(question.wanted, Wanted::MakeDirectory(_));
        let path = match question.path {
            // A directory may be named so.
            path if is_directory => without_slashes(path),
            path => path,
        };
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if matches!(last, b"" | b"." | b"..") || self.dfs.is_read_only() {
            return Err(Stop::Kernel);
        }
        let (directory, name) = match self.walk(question, path, false)? {
            End::At(..) => return Err(Stop::Errno(libc::EEXIST)),
            End::Missing(directory, name) => (directory, name),
        };
        if !question.caller.may(&directory.record, WRITE | SEARCH) {
            return Err(Stop::Kernel);
        }
        let Caller { uid, gid, .. } = question.caller;
        let made = match &question.wanted {
            Wanted::MakeDirectory(mode) => {
                // The bits that `mkdir` takes (S_IRWXUGO and S_ISVTX), without those of the umask.
                let mode = mode & 0o1777 & !umask().ok_or(Stop::Kernel)?;
                let ownership = Ownership { mode, uid, gid };
                self.context.block_on(self.dfs.mkdir(self.context, &directory, &name, ownership))
            }
            Wanted::MakeLink(target) => {
                let ownership = Ownership { mode: 0o777, uid, gid };
                self.context.block_on(self.dfs.symlink(self.context, &directory, &name, target, ownership))
            }
            _ => return Err(Stop::Kernel),
        };
        match made {
            Ok(node) => {
                self.seen.note(directory.oid(), &node);
                Ok(())
            }
            Err(Error::Client(error)) => match error.errno() {
                errno @ (libc::ENOSPC | libc::EDQUOT) => Err(Stop::Errno(errno)),
                _ => Err(Stop::InDoubt),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Lists what comes next of a directory.
    pub fn list(&mut self, listing: &mut Listing<'_>) -> Outcome {
        let Listing { stream, cookie, .. } = listing;
        let read = self.dfs.read_directory(self.context, stream, *cookie, STEP);
        let Ok(entries) = self.context.block_on(read) else { return Outcome::Failed };
        for entry in entries {
            let node = &entry.node;
            self.seen.note(node.parent, node);
            let (name, inode, kind) = (node.name.clone(), node.inode_number(), kind_of(node.record.kind));
            listing.entries.push(Entry { name, inode, kind });
        }
        Outcome::Done { bytes: listing.entries.len(), end: 0 }
    }

    /// The directory where a question's path begins, as it was seen before.
    fn start(&self, question: &Question<'_>) -> Result<Node, Stop> {
        match self.seen.directories.get(&question.start) {
            Some(known) => Ok(known.clone()),
            None if question.start == ROOT => Ok(self.dfs.root().clone()),
            None => Err(Stop::StartPath),
        }
    }

    /// Walks a path of a question. `describes`: the attributes of what is at its end are of use.
    ///
    /// It begins at the directory that the kernel names. Where that isn't known, or the path leads above it, it begins at the root, by
    /// the path that the kernel has for that directory.
    fn walk(&mut self, question: &Question<'_>, path: &[u8], describes: bool) -> Result<End, Stop> {
        let (start, mut ahead) = match question.start_path {
            None => (self.start(question)?, Vec::new()),
            Some(start) => (self.dfs.root().clone(), parts(start).map(<[u8]>::to_vec).collect()),
        };
        // Components on the way to the directory where the path begins.
        let mut before = ahead.len();
        ahead.extend(parts(path).map(<[u8]>::to_vec));
        ahead.reverse();
        let is_for_directory = path.ends_with(b"/") || path.ends_with(b"/.") || path == b".";
        let follows = question.follows || is_for_directory;
        let mut answers = self.ask_ahead(&start, &ahead, describes);
        let (mut here, mut found) = self.first(question, &start, &mut answers)?;
        let (mut above, mut links) = (Vec::new(), 0);
        while let Some(name) = ahead.pop() {
            if !here.is_directory() {
                return Err(Stop::Errno(libc::ENOTDIR));
            }
            if !question.caller.may(&here.record, SEARCH) || (here.inode_number() == ROOT && name == SHOWN) {
                return Err(Stop::Kernel);
            }
            if name == b".." {
                // Above where the walk has begun; from the root it leads out of the mount.
                let is_known = question.start == ROOT || question.start_path.is_some();
                let over = if is_known { Stop::Kernel } else { Stop::StartPath };
                (here, found) = (above.pop().ok_or(over)?, None);
                continue;
            }
            let (node, attributes) = match self.entry(&here, &name, &mut answers) {
                Ok(found) => found,
                Err(Error::NotFound(_)) if before > 0 => return Err(Stop::Kernel),
                Err(Error::NotFound(_)) if ahead.is_empty() => return Ok(End::Missing(here, name)),
                Err(error) => return Err(error.into()),
            };
            if node.record.kind == Kind::Symlink && (follows || !ahead.is_empty()) {
                links += 1;
                if before > 0 || links > LINKS_MAX || !is_followed_here(&here, &node) {
                    return Err(Stop::Kernel);
                }
                ahead.extend(parts(&node.record.target).map(<[u8]>::to_vec).rev());
                continue;
            }
            above.push(here);
            (here, found) = (node, attributes);
            if before > 0 {
                before -= 1;
                if before == 0 && here.inode_number() != question.start {
                    return Err(Stop::Kernel);
                }
            }
        }
        if is_for_directory && !here.is_directory() {
            return Err(Stop::Errno(libc::ENOTDIR));
        }
        Ok(End::At(here, found))
    }

    /// The directory where a walk begins, as it is now.
    fn first(
        &mut self,
        question: &Question<'_>,
        start: &Node,
        answers: &mut Answers,
    ) -> Result<(Node, Option<Stat>), Stop> {
        match answers.remove(&(key(start.oid()), Vec::new())) {
            Some(Ok(fresh)) => Ok(fresh),
            // It has another name, or none.
            Some(Err(Error::Stale(_))) if question.start != ROOT && question.start_path.is_none() => {
                self.seen.directories.remove(&question.start);
                Err(Stop::StartPath)
            }
            Some(Err(error)) => Err(error.into()),
            None => Err(Stop::Kernel),
        }
    }

    /// An entry, by an answer that has come before the walk, or by one of this moment.
    fn entry(
        &mut self,
        here: &Node,
        name: &[u8],
        answers: &mut Answers,
    ) -> weir_dfs::Result<(Node, Option<Stat>)> {
        let place = (key(here.oid()), name.to_vec());
        let found = match answers.remove(&place) {
            Some(Err(Error::Stale(_))) | None => {
                self.context.block_on(self.dfs.lookup(self.context, here, name)).map(|node| (node, None))
            }
            Some(answer) => answer,
        };
        match &found {
            Ok((node, _)) => self.seen.note(here.oid(), node),
            Err(_) => drop(self.seen.entries.remove(&place)),
        }
        found
    }

    /// Asks for the directory where a walk begins, and at the same time for all that lies on the way as it was seen before.
    fn ask_ahead(&self, start: &Node, ahead: &[Vec<u8>], describes: bool) -> Answers {
        let mut questions = vec![(start.clone(), Vec::new(), None)];
        let mut here = start.clone();
        for (index, name) in ahead.iter().rev().enumerate() {
            if name == b".." || !here.is_directory() {
                break;
            }
            let seen = self.seen.entries.get(&(key(here.oid()), name.clone()));
            // A name that is gone would not be missed of an inode with others.
            let is_last = index + 1 == ahead.len();
            let whole = seen.filter(|node| describes && is_last && !node.record.is_linked()).cloned();
            questions.push((here.clone(), name.clone(), whole));
            match seen {
                Some(node) => here = node.clone(),
                None => break,
            }
        }
        let (dfs, context) = (self.dfs, self.context);
        let is_itself = describes && ahead.is_empty();
        let all = questions.into_iter().map(|(directory, name, whole)| async move {
            let place = (key(directory.oid()), name);
            let answer = match (&whole, place.1.is_empty()) {
                (Some(whole), _) => match dfs.stat(context, whole).await {
                    // It has got other names since, by which it is found, too: this one may be gone.
                    Ok((node, _)) if node.record.is_linked() => Err(Error::Stale(String::new())),
                    found => found.map(|(node, stat)| (node, Some(stat))),
                },
                (None, true) if is_itself => {
                    dfs.stat(context, &directory).await.map(|(node, stat)| (node, Some(stat)))
                }
                (None, true) => dfs.refresh(context, &directory).await.map(|node| (node, None)),
                (None, false) => dfs.lookup(context, &directory, &place.1).await.map(|node| (node, None)),
            };
            (place, answer)
        });
        self.context.block_on(join_all(all)).into_iter().collect()
    }
}

/// Whether a symbolic link of a directory is followed here: not where it leads to a directory of the whole system, nor where it may be one
/// that the kernel doesn't follow.
fn is_followed_here(directory: &Node, link: &Node) -> bool {
    let target = &link.record.target;
    let is_protected = directory.record.mode & STICKY_AND_OPEN == STICKY_AND_OPEN;
    !is_protected && !target.starts_with(b"/") && !target.ends_with(b"/")
}

/// The components of a path, without those that mean nothing.
fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// A path without slashes at its end.
fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

const fn kind_of(kind: Kind) -> u8 {
    match kind {
        Kind::File => libc::DT_REG,
        Kind::Directory => libc::DT_DIR,
        Kind::Symlink => libc::DT_LNK,
        Kind::Fifo => libc::DT_FIFO,
        Kind::Socket => libc::DT_SOCK,
        Kind::BlockDevice => libc::DT_BLK,
        Kind::CharacterDevice => libc::DT_CHR,
    }
}

/// The umask of the process, which this thread shares; only so is it read without being changed.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}
