//! Arrays.

use core::ffi::c_int;

use weir_client::{Array, ArrayAttributes, Range, Rights};
use weir_proto::{Der, codec};

use crate::boundary::{ArgumentPtr, der_of, elements, guarded, operation, optional, required, run};
use crate::handle::{self, Opened};
use crate::object::{id_of, is_read_only};
use crate::pool::{export, import};
use crate::sg::Runs;
use crate::transaction::scope;
use crate::types::{
    d_iov_t, d_sg_list_t, daos_array_iod_t, daos_array_stbuf_t, daos_event_t, daos_handle_t, daos_obj_id_t,
    daos_range_t,
};

/// Ranges of fewer cells are short ones (`DAOS_ARRAY_RG_LEN_THD`).
const SHORT_CELLS: u64 = 16;

/// Most short ranges in one call (`DAOS_ARRAY_LIST_IO_LIMIT`).
const SHORT_RANGES_MAX: usize = 16384;

fn attributes(cell_size: u64, chunk_size: u64) -> Result<ArrayAttributes, Der> {
    let cell_size = u32::try_from(cell_size).map_err(|_| Der::INVAL)?;
    Ok(ArrayAttributes { cell_size, chunk_cells: chunk_size })
}

/// Creates an array.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_create(
    coh: daos_handle_t,
    oid: daos_obj_id_t,
    th: daos_handle_t,
    cell_size: u64,
    chunk_size: u64,
    oh: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        scope(th)?.check_alone()?;
        if !container.rights().allows(Rights::WRITE) {
            return Err(Der::NO_PERM);
        }
        let attributes = attributes(cell_size, chunk_size)?;
        Ok(operation(move |context| async move {
            let array = Array::create(&context, &container, id_of(oid), attributes).await.map_err(der_of)?;
            place.set(handle::issue_within(coh, false, Opened::Array(array))?);
            Ok(())
        }))
    })
}

/// Opens an array that stores its cell and chunk size.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_open(
    coh: daos_handle_t,
    oid: daos_obj_id_t,
    th: daos_handle_t,
    mode: u32,
    cell_size: *mut u64,
    chunk_size: *mut u64,
    oh: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        scope(th)?.check_open()?;
        let (cell, chunk) = (required(cell_size)?, required(chunk_size)?);
        let read_only = is_read_only(&container, mode);
        Ok(operation(move |context| async move {
            let array = Array::open(&context, &container, id_of(oid)).await.map_err(der_of)?;
            cell.set(u64::from(array.attributes().cell_size));
            chunk.set(array.attributes().chunk_cells);
            place.set(handle::issue_within(coh, read_only, Opened::Array(array))?);
            Ok(())
        }))
    })
}

/// Opens an array whose cell and chunk size the caller knows.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_open_with_attr(
    coh: daos_handle_t,
    oid: daos_obj_id_t,
    th: daos_handle_t,
    mode: u32,
    cell_size: u64,
    chunk_size: u64,
    oh: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        scope(th)?.check_open()?;
        let attributes = attributes(cell_size, chunk_size)?;
        let array = Array::with_attributes(&container, id_of(oid), attributes).map_err(der_of)?;
        let read_only = is_read_only(&container, mode);
        Ok(operation(move |_| async move {
            place.set(handle::issue_within(coh, read_only, Opened::Array(array))?);
            Ok(())
        }))
    })
}

/// Closes an array.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_close(oh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    handle::close(oh, ev, handle::array)
}

/// Removes an array.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_destroy(oh: daos_handle_t, th: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let array = handle::changed(oh, handle::array)?;
        scope(th)?.check_alone()?;
        Ok(operation(move |context| async move { array.destroy(&context).await.map_err(der_of) }))
    })
}

/// Reads the ranges of a call.
fn ranges(iod: ArgumentPtr<daos_array_iod_t>) -> Result<Vec<Range>, Der> {
    let iod = iod.get();
    let count = usize::try_from(iod.arr_nr).map_err(|_| Der::INVAL)?;
    if count > weir_proto::limits::EXTENTS_MAX * 1024 {
        return Err(Der::INVAL);
    }
    let given: Vec<daos_range_t> = elements(iod.arr_rgs.cast_const(), count)?;
    if given.iter().filter(|range| range.rg_len < SHORT_CELLS).count() > SHORT_RANGES_MAX {
        return Err(Der::NOTSUPPORTED);
    }
    Ok(given.iter().map(|range| Range { index: range.rg_idx, count: range.rg_len }).collect())
}

/// Bytes that the ranges take of the caller's memory.
fn bytes(array: &Array, ranges: &[Range]) -> Result<u64, Der> {
    ranges
        .iter()
        .try_fold(0_u64, |sum, range| sum.checked_add(range.count))
        .and_then(|cells| cells.checked_mul(u64::from(array.attributes().cell_size)))
        .ok_or(Der::INVAL)
}

/// Reads cells.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_read(
    oh: daos_handle_t,
    th: daos_handle_t,
    iod: *mut daos_array_iod_t,
    sgl: *mut d_sg_list_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let array = scope(th)?.view_array(&handle::array(oh)?)?;
        let iod = required(iod)?;
        let (ranges, runs) = (ranges(iod)?, Runs::read(required(sgl)?)?);
        let len = bytes(&array, &ranges)?;
        if len > runs.room() {
            return Err(Der::REC2BIG);
        }
        Ok(operation(move |context| async move {
            let outcome = array.read(&context, &ranges, runs.sink(len)?, None).await.map_err(der_of)?;
            iod.change(|iod| {
                iod.arr_nr_read = outcome.cells;
                iod.arr_nr_short_read = outcome.short;
            });
            runs.report(len);
            Ok(())
        }))
    })
}

/// Writes cells.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_write(
    oh: daos_handle_t,
    th: daos_handle_t,
    iod: *mut daos_array_iod_t,
    sgl: *mut d_sg_list_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let array = handle::changed(oh, handle::array)?;
        scope(th)?.check_alone()?;
        let (ranges, runs) = (ranges(required(iod)?)?, Runs::read(required(sgl)?)?);
        let data = runs.source(bytes(&array, &ranges)?)?;
        Ok(operation(move |context| async move {
            array.write(&context, &ranges, &data).await.map_err(der_of)?;
            Ok(())
        }))
    })
}

/// Makes holes.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_punch(
    oh: daos_handle_t,
    th: daos_handle_t,
    iod: *mut daos_array_iod_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let array = handle::changed(oh, handle::array)?;
        scope(th)?.check_alone()?;
        let ranges = ranges(required(iod)?)?;
        Ok(operation(move |context| async move { array.punch(&context, &ranges).await.map_err(der_of) }))
    })
}

/// Asks for the number of cells.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_get_size(
    oh: daos_handle_t,
    th: daos_handle_t,
    size: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (array, place) = (scope(th)?.view_array(&handle::array(oh)?)?, required(size)?);
        Ok(operation(move |context| async move {
            place.set(array.size(&context).await.map_err(der_of)?);
            Ok(())
        }))
    })
}

/// Asks for the number of cells and the newest epoch.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_stat(
    oh: daos_handle_t,
    th: daos_handle_t,
    stbuf: *mut daos_array_stbuf_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (array, place) = (scope(th)?.view_array(&handle::array(oh)?)?, required(stbuf)?);
        Ok(operation(move |context| async move {
            let (st_size, epoch) = array.size_and_epoch(&context).await.map_err(der_of)?;
            place.set(daos_array_stbuf_t { st_size, st_max_epoch: epoch.0 });
            Ok(())
        }))
    })
}

/// Cuts an array off or lengthens it.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_set_size(
    oh: daos_handle_t,
    th: daos_handle_t,
    size: u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let array = handle::changed(oh, handle::array)?;
        scope(th)?.check_alone()?;
        Ok(operation(move |context| async move { array.set_size(&context, size).await.map_err(der_of) }))
    })
}

/// Cell and chunk size of an open array.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_get_attr(oh: daos_handle_t, chunk_size: *mut u64, cell_size: *mut u64) -> c_int {
    guarded(|| {
        let array = handle::array(oh)?;
        if let Some(place) = optional(chunk_size) {
            place.set(array.attributes().chunk_cells);
        }
        if let Some(place) = optional(cell_size) {
            place.set(u64::from(array.attributes().cell_size));
        }
        Ok(())
    })
}

/// Writes an array handle to memory: id, cell and chunk size.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_local2global(oh: daos_handle_t, glob: *mut d_iov_t) -> c_int {
    guarded(|| {
        let array = handle::array(oh)?;
        let attributes = array.attributes();
        export(&codec::encode(&(array.object().id(), attributes.cell_size, attributes.chunk_cells)), glob)
    })
}

/// Makes an array handle of what another process wrote.
#[unsafe(no_mangle)]
pub extern "C" fn daos_array_global2local(
    coh: daos_handle_t,
    glob: d_iov_t,
    mode: u32,
    oh: *mut daos_handle_t,
) -> c_int {
    guarded(|| {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        let (oid, cell_size, chunk_cells) = codec::decode(&import(&glob)?).map_err(|_| Der::INVAL)?;
        let read_only = is_read_only(&container, mode);
        let array = Array::shared(&container, oid, ArrayAttributes { cell_size, chunk_cells });
        place.set(handle::issue_within(coh, read_only, Opened::Array(array.map_err(der_of)?))?);
        Ok(())
    })
}
