//! Transfers in flight: their memory, and the requests that they consist of.

use super::CompletionSlot;
use super::stable::StableWrite;
use crate::buffer::{DmaBuf, Slice};
use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

/// A transfer with the memory it uses.
pub(crate) enum Transfer {
    /// Fills the buffer.
    Read { offset: u64, buffer: DmaBuf },
    /// Writes the slices one behind the other; with `stable` it completes when they are on stable media.
    Write { offset: u64, data: Vec<Slice>, stable: bool },
    /// Makes what was written stable.
    Flush,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// From the device.
    Read,
    /// To the device; with `stable` past its cache.
    Write { stable: bool },
    /// The cache to the media.
    Flush,
}

/// How an entry names the device.
#[derive(Clone, Copy)]
pub(crate) enum Descriptor {
    /// By its number.
    Plain(i32),
    /// By its index in the ring's table.
    Registered(u32),
}

/// One entry of the ring: a whole transfer, or a part of one that is longer than the device takes at once.
pub(crate) struct Request<'a> {
    pub(crate) action: Action,
    /// On the device.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Its memory. Where it is more than one vector, they stay where they are until the transfer has ended.
    pub(crate) vectors: &'a [libc::iovec],
    /// Index of the registered memory that its only vector lies in.
    pub(crate) region: Option<u16>,
    pub(crate) descriptor: Descriptor,
    pub(crate) slot: u64,
}

/// Where the memory of a transfer is. One vector, the usual case, needs no memory of its own.
enum Vectors {
    One(libc::iovec),
    Many(Box<[libc::iovec]>),
}

/// A part of a transfer that one request moves.
#[derive(Clone)]
struct TransferPart {
    offset: u64,
    len: usize,
    vectors: Range<usize>,
}

/// A transfer that the ring owns until the kernel is done with its memory.
pub(super) struct InFlight {
    /// Keeps the descriptor open.
    pub(super) file: Rc<OwnedFd>,
    pub(super) transfer: Transfer,
    pub(super) target: Rc<RefCell<CompletionSlot>>,
    /// Bytes to transfer.
    pub(super) len: usize,
    vectors: Vectors,
    first: TransferPart,
    rest: Vec<TransferPart>,
    /// Pieces that were given to the ring, and those among them that have ended.
    begun: usize,
    ended: usize,
    failure: Option<io::Error>,
    must_repeat: bool,
    /// When it was repeated first.
    repeated: Option<Instant>,
    /// How a stable write is made so, and when it began, where there is a choice.
    pub(super) way: Option<(StableWrite, Instant)>,
    /// What it waits for is the flush behind a write.
    is_flushing: bool,
}

/// Most that one request of a device moves.
#[derive(Clone, Copy)]
pub(crate) struct PartMax {
    pub(crate) bytes: usize,
    pub(crate) vectors: usize,
}

fn piece_of_memory(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// Cuts memory so that each piece is within the bounds.
fn cut(offset: u64, vectors: &[libc::iovec], max: PartMax) -> (Vec<libc::iovec>, Vec<TransferPart>) {
    let mut all: Vec<libc::iovec> = Vec::with_capacity(vectors.len());
    let mut pieces: Vec<TransferPart> = Vec::new();
    let mut at = offset;
    for vector in vectors {
        let mut done = 0;
        while done < vector.iov_len {
            let is_full = |piece: &TransferPart| piece.len >= max.bytes || piece.vectors.len() >= max.vectors;
            if pieces.last().is_none_or(is_full) {
                pieces.push(TransferPart { offset: at, len: 0, vectors: all.len()..all.len() });
            }
            let Some(piece) = pieces.last_mut() else { break };
            let len = (vector.iov_len - done).min(max.bytes - piece.len);
            // Within the vector: `done + len` is at most its length.
            all.push(piece_of_memory(vector.iov_base.cast::<u8>().wrapping_add(done), len));
            piece.len += len;
            piece.vectors.end += 1;
            done += len;
            at += len as u64;
        }
    }
    (all, pieces)
}

impl InFlight {
    pub(super) fn new(
        file: &Rc<OwnedFd>,
        mut transfer: Transfer,
        max: PartMax,
        target: &Rc<RefCell<CompletionSlot>>,
    ) -> Self {
        let (offset, mut vectors) = match &mut transfer {
            Transfer::Read { offset, buffer } => {
                (*offset, Vectors::One(piece_of_memory(buffer.as_mut_ptr(), buffer.len())))
            }
            Transfer::Write { offset, data, .. } => {
                let of = |slice: &Slice| piece_of_memory(slice.as_ptr().cast_mut(), slice.len());
                let vectors = match &data[..] {
                    [slice] => Vectors::One(of(slice)),
                    slices => Vectors::Many(slices.iter().map(of).collect()),
                };
                (*offset, vectors)
            }
            Transfer::Flush => (0, Vectors::Many(Box::default())),
        };
        let len = vectors.all().iter().map(|vector| vector.iov_len).sum();
        let count = vectors.all().len();
        let mut first = TransferPart { offset, len, vectors: 0..count };
        let mut rest = Vec::new();
        if len > max.bytes || count > max.vectors {
            let (all, mut pieces) = cut(offset, vectors.all(), max);
            rest = pieces.split_off(1);
            first = pieces.swap_remove(0);
            vectors = Vectors::Many(all.into());
        }
        let (file, target) = (Rc::clone(file), Rc::clone(target));
        Self {
            file,
            transfer,
            target,
            len,
            vectors,
            first,
            rest,
            begun: 0,
            ended: 0,
            failure: None,
            must_repeat: false,
            repeated: None,
            way: None,
            is_flushing: false,
        }
    }

    /// The next request to be given to the ring; `None` when all were.
    pub(super) fn next(&self, descriptor: Descriptor, slot: u64) -> Option<Request<'_>> {
        let piece = match self.begun {
            0 => &self.first,
            begun => self.rest.get(begun - 1)?,
        };
        let action = match self.transfer {
            Transfer::Read { .. } => Action::Read,
            Transfer::Write { .. } if self.is_flushing => Action::Flush,
            Transfer::Write { stable, .. } => Action::Write { stable: stable && !self.has_flush() },
            Transfer::Flush => Action::Flush,
        };
        let vectors = &self.vectors.all()[piece.vectors.clone()];
        let (offset, len) = (piece.offset, piece.len);
        Some(Request { action, offset, len, vectors, region: None, descriptor, slot })
    }

    /// The ring has taken the request of [`InFlight::next`].
    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }

    /// Takes note of the end of a request. `true`: all have ended, and none is to be begun any more.
    pub(super) fn end(&mut self, result: i32, outcome: impl FnOnce(i32, usize) -> io::Result<()>) -> bool {
        self.ended += 1;
        if result == -libc::EAGAIN || result == -libc::EINTR {
            // The kernel couldn't take it at that moment, or a signal or a reset of the device came in between.
            self.must_repeat = true;
        } else {
            let len = if self.rest.is_empty() && !self.is_flushing { self.len } else { 0 };
            let ended =
                if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { outcome(result, len) };
            if let Err(error) = ended {
                self.failure.get_or_insert(error);
            }
        }
        self.ended == self.begun && self.begun == 1 + self.rest.len()
    }

    /// Whether it has to be done again from its begin; it's ready for that then. Doing a transfer twice changes nothing. It
    /// fails when it would be done again and again for longer than `limit`: then the device is reset for ever.
    pub(super) fn repeats(&mut self, limit: Duration) -> bool {
        if !self.must_repeat || self.failure.is_some() {
            return false;
        }
        self.must_repeat = false;
        if self.repeated.get_or_insert_with(Instant::now).elapsed() >= limit {
            let reason = format!("it was broken off again and again for {} s", limit.as_secs());
            self.failure = Some(io::Error::new(io::ErrorKind::TimedOut, reason));
            return false;
        }
        (self.begun, self.ended) = (0, 0);
        true
    }

    /// Whether it is a write to be made stable by a flush, which hasn't been begun; it's ready for that then.
    pub(super) fn flushes(&mut self) -> bool {
        if !self.has_flush() || self.is_flushing || self.failure.is_some() {
            return false;
        }
        self.is_flushing = true;
        self.first = TransferPart { offset: 0, len: 0, vectors: 0..0 };
        self.rest.clear();
        (self.begun, self.ended) = (0, 0);
        true
    }

    pub(super) fn is_stable_write(&self) -> bool {
        matches!(self.transfer, Transfer::Write { stable: true, .. })
    }

    /// Whether it is a write that a flush makes stable.
    fn has_flush(&self) -> bool {
        matches!(self.way, Some((StableWrite::Flushed, _)))
    }

    /// Flushes that it took beside what it moved: a file system makes one of a synchronous write, too.
    pub(super) fn flushes_made(&self) -> u64 {
        u64::from(self.is_flushing || matches!(self.way, Some((StableWrite::Synchronous, _))))
    }

    /// How it went.
    pub(super) fn result(&mut self) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl Vectors {
    fn all(&self) -> &[libc::iovec] {
        match self {
            Self::One(vector) => core::slice::from_ref(vector),
            Self::Many(vectors) => vectors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_that_is_broken_off_is_repeated_but_not_for_ever() {
        let file = Rc::new(OwnedFd::from(std::fs::File::open("/dev/null").expect("a descriptor")));
        for broken in [libc::EAGAIN, libc::EINTR] {
            let buffer = DmaBuf::new(4096);
            let max = PartMax { bytes: usize::MAX, vectors: usize::MAX };
            let mut read =
                InFlight::new(&file, Transfer::Read { offset: 0, buffer }, max, &Rc::new(RefCell::default()));
            for _ in 0..3 {
                read.begin();
                assert!(read.end(-broken, |_, _| Ok(())));
                assert!(read.repeats(Duration::MAX), "it is ready to be begun again");
            }
            read.begin();
            assert!(read.end(-broken, |_, _| Ok(())));
            assert!(!read.repeats(Duration::ZERO));
            let error = read.result().expect_err("it never ended");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
    }

    #[test]
    fn long_transfers_are_cut_at_the_bounds_without_gap_or_overlap() {
        let mut memory = vec![0u8; 100];
        let base = memory.as_mut_ptr();
        let vectors = [
            piece_of_memory(base, 30),
            piece_of_memory(base.wrapping_add(40), 5),
            piece_of_memory(base.wrapping_add(50), 20),
        ];
        let (all, pieces) = cut(1000, &vectors, PartMax { bytes: 16, vectors: 2 });
        let mut at = 1000;
        let mut bytes = Vec::new();
        for piece in &pieces {
            assert_eq!(piece.offset, at);
            assert!(piece.len <= 16 && piece.vectors.len() <= 2 && piece.len > 0);
            let parts = &all[piece.vectors.clone()];
            assert_eq!(parts.iter().map(|part| part.iov_len).sum::<usize>(), piece.len);
            for part in parts {
                bytes.extend((0..part.iov_len).map(|index| part.iov_base.addr() + index));
            }
            at += piece.len as u64;
        }
        let wanted: Vec<usize> = vectors
            .iter()
            .flat_map(|vector| (0..vector.iov_len).map(|index| vector.iov_base.addr() + index))
            .collect();
        assert_eq!(bytes, wanted);
        assert_eq!(at, 1055);
    }
}
