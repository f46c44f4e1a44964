//! Keys and scatter-gather lists of the caller.

use weir_proto::limits::KEY_MAX;
use weir_proto::{Der, Key};

use crate::boundary::{ArgumentPtr, element, elements, fits_memory};
use crate::types::{d_iov_t, d_sg_list_t};

/// Most runs of memory in a list: as many as extents in a request.
const RUNS_MAX: u32 = 65536;

/// A key; integer keys are numbers of the host, 8 bytes long.
pub fn key(iov: &d_iov_t, integer: bool) -> Result<Key, Der> {
    if iov.iov_buf.is_null() || iov.iov_len == 0 || iov.iov_len > iov.iov_buf_len {
        return Err(Der::INVAL);
    }
    if iov.iov_len > KEY_MAX {
        return Err(Der::KEY2BIG);
    }
    let bytes = elements(iov.iov_buf.cast::<u8>().cast_const(), iov.iov_len)?;
    if integer {
        let number: [u8; 8] = bytes.as_slice().try_into().map_err(|_| Der::INVAL)?;
        return Ok(Key::from_u64(u64::from_ne_bytes(number)));
    }
    Key::new(&bytes).map_err(|_| Der::KEY2BIG)
}

/// A key's bytes as the caller knows them.
pub fn key_bytes(key: &[u8], integer: bool) -> Vec<u8> {
    match Key::new(key).ok().and_then(|key| key.to_u64()) {
        Some(number) if integer => number.to_ne_bytes().to_vec(),
        _ => key.to_vec(),
    }
}

/// A key argument that must be there.
pub fn key_at(place: *mut d_iov_t, integer: bool) -> Result<Key, Der> {
    key(&crate::boundary::required(place)?.get(), integer)
}

/// Runs of the caller's memory.
#[derive(Clone, Debug)]
pub struct Memory {
    each: Vec<d_iov_t>,
    room: u64,
}

impl Memory {
    /// One run.
    pub fn one(buffer: *mut core::ffi::c_void, len: u64) -> Result<Self, Der> {
        let size = usize::try_from(len).map_err(|_| Der::INVAL)?;
        if (buffer.is_null() && size > 0) || !fits_memory(Some(size)) {
            return Err(Der::INVAL);
        }
        Ok(Self { each: vec![d_iov_t { iov_buf: buffer, iov_buf_len: size, iov_len: size }], room: len })
    }

    /// What holds data in the runs of a list, `iov_len` of each. `INVAL` for more data than there is room.
    pub fn filled(list: ArgumentPtr<d_sg_list_t>) -> Result<Self, Der> {
        let mut memory = Runs::read(list)?.memory;
        memory.room = 0;
        for run in &mut memory.each {
            if run.iov_len > run.iov_buf_len {
                return Err(Der::INVAL);
            }
            run.iov_buf_len = run.iov_len;
            // No more than all runs together, which fit memory.
            memory.room += run.iov_len as u64;
        }
        Ok(memory)
    }

    /// Room, in bytes.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// The first `len` bytes, to read from. The caller's memory: valid until the operation is complete.
    pub fn source(&self, len: u64) -> Result<Vec<&'static [u8]>, Der> {
        let mut left = usize::try_from(len).map_err(|_| Der::REC2BIG)?;
        let mut slices = Vec::with_capacity(self.each.len());
        for run in &self.each {
            let take = left.min(run.iov_buf_len);
            if take > 0 {
                // SAFETY: not NULL (checked when it was read); by the caller's promise it holds `iov_buf_len` bytes that stay
                // valid and unchanged until the operation, which is all that the slice is used for, is complete.
                slices.push(unsafe { core::slice::from_raw_parts(run.iov_buf.cast::<u8>(), take) });
                left -= take;
            }
        }
        if left > 0 { Err(Der::REC2BIG) } else { Ok(slices) }
    }

    /// The first `len` bytes, to write to. The caller's memory: valid until the operation is complete.
    pub fn sink(&self, len: u64) -> Result<Vec<&'static mut [u8]>, Der> {
        let mut left = usize::try_from(len).map_err(|_| Der::REC2BIG)?;
        let mut slices = Vec::with_capacity(self.each.len());
        for run in &self.each {
            let take = left.min(run.iov_buf_len);
            if take > 0 {
                // SAFETY: as in `source`; nobody else uses the memory until the operation is complete, and runs of
                // one list don't overlap.
                slices.push(unsafe { core::slice::from_raw_parts_mut(run.iov_buf.cast::<u8>(), take) });
                left -= take;
            }
        }
        if left > 0 { Err(Der::REC2BIG) } else { Ok(slices) }
    }
}

/// A caller's scatter-gather list.
#[derive(Clone, Debug)]
pub struct Runs {
    list: ArgumentPtr<d_sg_list_t>,
    iovs: *mut d_iov_t,
    memory: Memory,
}

impl Runs {
    /// Reads a list. Runs of no bytes may be NULL; `INVAL` for more bytes than memory can hold.
    pub fn read(list: ArgumentPtr<d_sg_list_t>) -> Result<Self, Der> {
        let head = list.get();
        if head.sg_nr > RUNS_MAX {
            return Err(Der::INVAL);
        }
        let runs = elements(head.sg_iovs.cast_const(), head.sg_nr as usize)?;
        if runs.iter().any(|run| run.iov_buf.is_null() && run.iov_buf_len > 0) {
            return Err(Der::INVAL);
        }
        let room = runs.iter().try_fold(0_usize, |sum, run| sum.checked_add(run.iov_buf_len));
        let room = room.filter(|room| fits_memory(Some(*room))).ok_or(Der::INVAL)? as u64;
        Ok(Self { list, iovs: head.sg_iovs, memory: Memory { each: runs, room } })
    }

    /// Room in the list, in bytes.
    pub fn room(&self) -> u64 {
        self.memory.room
    }

    /// As [`Memory::source`].
    pub fn source(&self, len: u64) -> Result<Vec<&'static [u8]>, Der> {
        self.memory.source(len)
    }

    /// As [`Memory::sink`].
    pub fn sink(&self, len: u64) -> Result<Vec<&'static mut [u8]>, Der> {
        self.memory.sink(len)
    }

    /// Tells the caller that the first `len` bytes hold data.
    pub fn report(&self, len: u64) {
        let mut left = usize::try_from(len).unwrap_or(usize::MAX);
        let mut filled = 0;
        for (index, run) in self.memory.each.iter().enumerate() {
            let take = left.min(run.iov_buf_len);
            left -= take;
            filled += u32::from(take > 0);
            element(self.iovs, index).change(|iov| iov.iov_len = take);
        }
        self.list.change(|list| list.sg_nr_out = filled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::required;

    fn iov(buffer: &mut [u8], len: usize) -> d_iov_t {
        d_iov_t { iov_buf: buffer.as_mut_ptr().cast(), iov_buf_len: len, iov_len: 0 }
    }

    #[test]
    fn runs_longer_than_memory_are_refused() {
        let mut byte = [0];
        let mut room_of = |lengths: &[usize]| {
            let mut iovs: Vec<d_iov_t> = lengths.iter().map(|len| iov(&mut byte, *len)).collect();
            let sg_nr = u32::try_from(iovs.len()).expect("few");
            let mut list = d_sg_list_t { sg_nr, sg_nr_out: 0, sg_iovs: iovs.as_mut_ptr() };
            Runs::read(required(&raw mut list).expect("a place")).map(|runs| runs.room())
        };
        assert_eq!(room_of(&[1, 0, 1]), Ok(2));
        assert_eq!(room_of(&[usize::MAX, 2]), Err(Der::INVAL), "their sum wraps");
        assert_eq!(room_of(&[isize::MAX as usize, 1]), Err(Der::INVAL));
        assert_eq!(room_of(&[usize::MAX]), Err(Der::INVAL));
    }

    #[test]
    fn a_key_longer_than_any_is_refused_before_it_is_read() {
        let mut byte = [0];
        let long = d_iov_t { iov_len: usize::MAX, ..iov(&mut byte, usize::MAX) };
        assert!(matches!(key(&long, false), Err(Der::KEY2BIG)));
        let short = d_iov_t { iov_len: 1, ..iov(&mut byte, 1) };
        assert!(key(&short, false).is_ok());
    }
}
