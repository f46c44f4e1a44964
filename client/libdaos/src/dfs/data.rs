//! Reading and writing files.

use core::ffi::{c_int, c_void};

use weir_client::{Array, ArrayAttributes, Range};
use weir_dfs::File;

use super::{mounted, object};
use crate::boundary::{ArgumentPtr, Start, elements, required};
use crate::errno::{Checked, Errno, checked, operation, run, wait};
use crate::handle::{self, Opened};
use crate::object::id_of;
use crate::sg::Memory;
use crate::types::{d_sg_list_t, daos_event_t, daos_handle_t, daos_obj_id_t, daos_range_t, dfs_iod_t};

/// Length of a hole that goes to the end of the file (`DFS_MAX_FSIZE`).
const TO_THE_END: u64 = u64::MAX;

/// Most ranges in one call.
const RANGES_MAX: usize = 1 << 20;

/// Reads ranges to memory that holds exactly their bytes.
fn read(file: File, ranges: Vec<Range>, memory: Memory, size: ArgumentPtr<u64>) -> Start {
    operation(move |context| async move {
        let found = if memory.room() == 0 {
            0
        } else {
            file.read_ranges(&context, &ranges, memory.sink(memory.room())?).await?
        };
        size.set(found);
        Ok(())
    })
}

/// Writes ranges from memory that holds exactly their bytes.
fn write(file: File, ranges: Vec<Range>, memory: Memory) -> Start {
    operation(move |context| async move {
        if memory.room() > 0 {
            file.write_ranges(&context, &ranges, &memory.source(memory.room())?).await?;
        }
        Ok(())
    })
}

/// The ranges of a call, and its memory, which has as many bytes.
fn ranges(iod: *mut dfs_iod_t, sgl: *mut d_sg_list_t) -> Checked<(Vec<Range>, Memory)> {
    let (iod, memory) = (required(iod)?.get(), Memory::filled(required(sgl)?)?);
    let count = usize::try_from(iod.iod_nr).ok().filter(|count| *count <= RANGES_MAX);
    let given: Vec<daos_range_t> = elements(iod.iod_rgs.cast_const(), count.ok_or(Errno(libc::EINVAL))?)?;
    let ranges: Vec<Range> =
        given.iter().map(|range| Range { index: range.rg_idx, count: range.rg_len }).collect();
    let bytes = ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.count));
    if bytes == Some(memory.room()) { Ok((ranges, memory)) } else { Err(Errno(libc::EINVAL)) }
}

/// Reads from a place on, up to the end of the file. `*read_size` is how many bytes there were.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_read(
    dfs: *mut c_void,
    obj: *mut c_void,
    sgl: *mut d_sg_list_t,
    off: u64,
    read_size: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (_, object, size) = (mounted(dfs)?, object(obj)?, required(read_size)?);
        let memory = Memory::filled(required(sgl)?)?;
        let ranges = vec![Range { index: off, count: memory.room() }];
        Ok(read(object.readable()?.clone(), ranges, memory, size))
    })
}

/// Reads ranges.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_readx(
    dfs: *mut c_void,
    obj: *mut c_void,
    iod: *mut dfs_iod_t,
    sgl: *mut d_sg_list_t,
    read_size: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (_, object, size) = (mounted(dfs)?, object(obj)?, required(read_size)?);
        let (ranges, memory) = ranges(iod, sgl)?;
        Ok(read(object.readable()?.clone(), ranges, memory, size))
    })
}

/// Writes at a place.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_write(
    dfs: *mut c_void,
    obj: *mut c_void,
    sgl: *mut d_sg_list_t,
    off: u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        mounted(dfs)?.ensure_changes()?;
        let object = object(obj)?;
        let memory = Memory::filled(required(sgl)?)?;
        let ranges = vec![Range { index: off, count: memory.room() }];
        Ok(write(object.writable()?.clone(), ranges, memory))
    })
}

/// Writes ranges.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_writex(
    dfs: *mut c_void,
    obj: *mut c_void,
    iod: *mut dfs_iod_t,
    sgl: *mut d_sg_list_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        mounted(dfs)?.ensure_changes()?;
        let (object, (ranges, memory)) = (object(obj)?, ranges(iod, sgl)?);
        Ok(write(object.writable()?.clone(), ranges, memory))
    })
}

/// Reads to one run of memory: `*size` is its size, then how many bytes there were.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_read(
    dfs_sys: *mut c_void,
    obj: *mut c_void,
    buf: *mut c_void,
    off: u64,
    size: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        super::paths::mounted(dfs_sys)?;
        let (object, size) = (object(obj)?, required(size)?);
        let memory = Memory::one(buf, size.get())?;
        let ranges = vec![Range { index: off, count: memory.room() }];
        Ok(read(object.readable()?.clone(), ranges, memory, size))
    })
}

/// Writes one run of memory of `*size` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_write(
    dfs_sys: *mut c_void,
    obj: *mut c_void,
    buf: *const c_void,
    off: u64,
    size: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        super::paths::mounted(dfs_sys)?.ensure_changes()?;
        let (object, size) = (object(obj)?, required(size)?);
        let memory = Memory::one(buf.cast_mut(), size.get())?;
        let ranges = vec![Range { index: off, count: memory.room() }];
        Ok(write(object.writable()?.clone(), ranges, memory))
    })
}

/// Size of a file in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_get_size(dfs: *mut c_void, obj: *mut c_void, size: *mut u64) -> c_int {
    checked(|| {
        let (_, object, place) = (mounted(dfs)?, object(obj)?, required(size)?);
        let file = object.content()?;
        place.set(wait(async |context| Ok(file.size_and_epoch(context).await?.0))?);
        Ok(())
    })
}

/// Size of a file that is known by its object.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_get_size_by_oid(
    dfs: *mut c_void,
    oid: daos_obj_id_t,
    chunk_size: u64,
    size: *mut u64,
) -> c_int {
    checked(|| {
        let (mounted, place) = (mounted(dfs)?, required(size)?);
        let chunk = if chunk_size == 0 { mounted.fs.superblock().chunk_size } else { chunk_size };
        let attributes = ArrayAttributes { cell_size: 1, chunk_cells: chunk };
        let array = Array::with_attributes(mounted.fs.container(), id_of(oid), attributes)?;
        place.set(wait(async |context| Ok(array.size(context).await?))?);
        Ok(())
    })
}

/// Makes a hole, or with `DFS_MAX_FSIZE` cuts the file off. A file that is shorter than `offset` is lengthened up to it.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_punch(dfs: *mut c_void, obj: *mut c_void, offset: u64, len: u64) -> c_int {
    checked(|| {
        mounted(dfs)?.ensure_changes()?;
        let object = object(obj)?;
        punch(object.writable()?, offset, len)
    })
}

/// As [`dfs_punch`], of a file.
pub fn punch(file: &File, offset: u64, len: u64) -> Checked<()> {
    wait(async |context| {
        if len == TO_THE_END {
            return Ok(file.truncate(context, offset).await?);
        }
        let (size, _) = file.size_and_epoch(context).await?;
        let end = offset.checked_add(len).ok_or(Errno(libc::EINVAL))?;
        if size < offset {
            file.lengthen(context, offset).await?;
        } else if end >= size {
            // Up to its end: the file is shorter then.
            file.truncate(context, offset).await?;
        } else {
            file.punch_hole(context, offset, len).await?;
        }
        Ok(())
    })
}

/// A handle of the array that holds the content, for the functions on arrays. It ends with `daos_array_close`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_get_file_oh(obj: *mut c_void, oh: *mut daos_handle_t) -> c_int {
    checked(|| {
        let (object, place) = (object(obj)?, required(oh)?);
        let array = object.content()?.array().clone();
        let read_only = object.access == libc::O_RDONLY;
        place.set(handle::issue_within(object.mounted.container, read_only, Opened::Array(array))?);
        Ok(())
    })
}
