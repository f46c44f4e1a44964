//! What one thread of the library has open to reach the engines, and what it does with it.

use core::ptr::NonNull;
use core::time::Duration;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use libc::iovec;
use weir_client::array::Range;
use weir_client::{Attach, Buffer, Container, Context, Lender};
use weir_dfs::direct::DirectMount;
use weir_dfs::{Dfs, Error, File};

use crate::beginning;
use crate::descriptors::Target;
use crate::submission::{Outcome, Task};
use crate::walk::{Names, Seen};

/// How long the first question to a mount's engines may take. A program in a network that doesn't lead there goes on through the
/// kernel.
const REACH_LIMIT: Duration = Duration::from_secs(10);

/// Files that a thread remembers.
const FILES: usize = 64;

/// Lends the program's memory to the fabric: the call that brings it returns when the operation is over.
struct ProgramsMemory;

impl Lender for ProgramsMemory {
    fn source(&self, memory: &[u8]) -> Buffer {
        // SAFETY: the context uses the buffer only while the operation that borrows the memory runs (see `Lender`), which is run to
        // its end, and for reading only; the pointer of a slice is not NULL.
        unsafe { Buffer::from_raw(NonNull::from(memory).cast(), memory.len()) }
    }

    fn sink(&self, memory: &mut [u8]) -> Buffer {
        // SAFETY: as above; the borrow is exclusive, so no other code looks at the memory meanwhile.
        unsafe { Buffer::from_raw(NonNull::from(&mut *memory).cast(), memory.len()) }
    }
}

/// What a thread has opened.
pub struct Engines {
    /// Mounts of the process by their place.
    described: fn(u16) -> Option<&'static DirectMount>,
    /// By attach file.
    attached: HashMap<String, Context>,
    mounts: HashMap<u16, Mounted>,
}

/// A mount whose engines are reached.
struct Mounted {
    context: Context,
    file_system: Dfs,
    files: HashMap<u128, File>,
    seen: Seen,
}

impl Engines {
    /// Nothing is open.
    pub fn new(described: fn(u16) -> Option<&'static DirectMount>) -> Self {
        Self { described, attached: HashMap::new(), mounts: HashMap::new() }
    }

    /// Does a task with the program's memory.
    pub fn run(&mut self, task: Task, vectors: *const iovec, count: usize) -> Outcome {
        match task {
            Task::Reach(mount) => match self.reach(mount) {
                Ok(()) => Outcome::Done { bytes: 0, end: 0 },
                Err(_) => Outcome::Failed,
            },
            Task::Read(target, offset) => self.read(target, offset, vectors, count),
            Task::Write(target, offset) => self.write(target, Some(offset), vectors, count),
            Task::Append(target) => self.write(target, None, vectors, count),
            Task::Begin(beginning) => {
                // SAFETY: who waits for the operation has it on its stack, and looks at it when the operation is over.
                beginning::begin(unsafe { &mut *beginning })
            }
            Task::Answer(question) => {
                // SAFETY: as above.
                let question = unsafe { &mut *question };
                self.names(question.mount, |names| names.answer(question))
            }
            Task::List(listing) => {
                // SAFETY: as above.
                let listing = unsafe { &mut *listing };
                self.names(listing.mount, |names| names.list(listing))
            }
        }
    }

    /// Does something with the names of a mount.
    fn names(&mut self, mount: u16, work: impl FnOnce(&mut Names<'_>) -> Outcome) -> Outcome {
        let Ok(Mounted { context, file_system, seen, .. }) = self.mounted(mount) else {
            return Outcome::Failed;
        };
        work(&mut Names { context, dfs: file_system, seen })
    }

    /// Opens a mount, and asks its engines for what shows that they can be reached.
    fn reach(&mut self, mount: u16) -> Result<(), Error> {
        let Mounted { context, file_system, .. } = self.mounted(mount)?;
        let patience = context.deadline();
        context.set_deadline(REACH_LIMIT);
        let answered = context.block_on(file_system.container().query(context));
        context.set_deadline(patience);
        answered?;
        Ok(())
    }

    fn mounted(&mut self, mount: u16) -> Result<&mut Mounted, Error> {
        if !self.mounts.contains_key(&mount) {
            let described = (self.described)(mount).ok_or_else(nowhere)?;
            let container = Container::from_bytes(&described.container)?;
            let file_system = Dfs::from_bytes(&container, &described.file_system)?;
            let context = if let Some(context) = self.attached.get(&described.attach) {
                context.clone()
            } else {
                let context = Context::real(&attach(described)?)?;
                context.set_lender(Rc::new(ProgramsMemory));
                context
            };
            self.attached.insert(described.attach.clone(), context.clone());
            let mounted = Mounted { context, file_system, files: HashMap::new(), seen: Seen::default() };
            self.mounts.insert(mount, mounted);
        }
        self.mounts.get_mut(&mount).ok_or_else(nowhere)
    }

    /// The content of a file, and the context to reach it.
    fn file(&mut self, target: &Target) -> Result<(Context, File), Error> {
        let mounted = self.mounted(target.mount)?;
        let oid = (u128::from(target.oid.hi) << 64) | u128::from(target.oid.lo);
        if let Some(file) = mounted.files.get(&oid) {
            return Ok((mounted.context.clone(), file.clone()));
        }
        if mounted.files.len() >= FILES {
            mounted.files.clear();
        }
        let file = mounted.file_system.direct_file(target.oid, target.chunk_size)?;
        mounted.files.insert(oid, file.clone());
        Ok((mounted.context.clone(), file))
    }

    fn read(&mut self, target: Target, offset: u64, vectors: *const iovec, count: usize) -> Outcome {
        let Ok((context, file)) = self.file(&target) else { return Outcome::Failed };
        let pieces = pieces(vectors, count);
        if overlap(&pieces) {
            return Outcome::Unfit;
        }
        let into: Vec<&mut [u8]> = pieces
            .iter()
            // SAFETY: by the caller's promise the memory is there and nobody else uses it until the call returns; no two pieces
            // overlap.
            .map(|(start, length)| unsafe { core::slice::from_raw_parts_mut(*start, *length) })
            .collect();
        let total = length(&pieces);
        let range = Range { index: offset, count: total };
        match context.block_on(file.read_ranges(&context, &[range], into)) {
            Ok(read) => done(read, offset + read),
            Err(_) => Outcome::Failed,
        }
    }

    /// Writes at an offset, or behind the end.
    fn write(&mut self, target: Target, at: Option<u64>, vectors: *const iovec, count: usize) -> Outcome {
        let Ok((context, file)) = self.file(&target) else { return Outcome::Failed };
        let pieces = pieces(vectors, count);
        let data: Vec<&[u8]> = pieces
            .iter()
            // SAFETY: by the caller's promise the memory is there and nobody changes it until the call returns.
            .map(|(start, length)| unsafe { core::slice::from_raw_parts(*start, *length) })
            .collect();
        let total = length(&pieces);
        let written = match at {
            Some(offset) => {
                let range = Range { index: offset, count: total };
                let written = context.block_on(file.write_ranges(&context, &[range], &data));
                written.map(|_| offset)
            }
            None => match data[..] {
                [data] => context.block_on(file.append(&context, data)).map(|(offset, _)| offset),
                _ => context.block_on(file.append(&context, &data.concat())).map(|(offset, _)| offset),
            },
        };
        match written {
            Ok(offset) => done(total, offset + total),
            Err(error) => match error.errno() {
                errno @ (libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EROFS) => Outcome::Refused(errno),
                _ if at.is_none() => Outcome::InDoubt,
                _ => Outcome::Failed,
            },
        }
    }
}

fn nowhere() -> Error {
    Error::Invalid("no mount was entered there".to_owned())
}

/// What to attach with: the attach file of the mount where that is on this machine, else what the mount has handed over, else the
/// attach file that this process was given.
fn attach(mount: &DirectMount) -> Result<Attach, Error> {
    let of_mount = Path::new(&mount.attach);
    let attach = match &mount.credentials {
        _ if of_mount.exists() => Attach::load(Some(of_mount)),
        Some(text) => Attach::of(of_mount, text),
        None => Attach::load(None),
    };
    Ok(attach.map_err(weir_client::Error::from)?)
}

fn done(bytes: u64, end: u64) -> Outcome {
    usize::try_from(bytes).map_or(Outcome::InDoubt, |bytes| Outcome::Done { bytes, end })
}

/// The pieces of the program's memory that aren't empty.
fn pieces(vectors: *const iovec, count: usize) -> Vec<(*mut u8, usize)> {
    // SAFETY: by the caller's promise so many pieces are described there; the count was looked at before.
    let vectors = unsafe { core::slice::from_raw_parts(vectors, count) };
    let used = vectors.iter().filter(|vector| vector.iov_len > 0);
    used.map(|vector| (vector.iov_base.cast(), vector.iov_len)).collect()
}

fn length(pieces: &[(*mut u8, usize)]) -> u64 {
    pieces.iter().map(|(_, length)| *length as u64).sum()
}

fn overlap(pieces: &[(*mut u8, usize)]) -> bool {
    let mut ordered: Vec<(usize, usize)> =
        pieces.iter().map(|(start, length)| (start.addr(), *length)).collect();
    ordered.sort_unstable();
    ordered.array_windows().any(|[one, next]| one.0.saturating_add(one.1) > next.0)
}
