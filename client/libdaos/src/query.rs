//! What is in an object: greatest keys, extents, newest change, parts for enumerations.

use core::ffi::{c_int, c_void};

use weir_client::{Anchor, Epoch, Key, Mismatch, MismatchKind, Object, kind};
use weir_proto::Der;

use crate::anchor::{self, From};
use crate::boundary::{
    ArgumentPtr, Outcome, code, der_of, element, guarded, operation, optional, required, run,
};
use crate::handle;
use crate::library;
use crate::object::id_of;
use crate::sg::key_at;
use crate::transaction::scope;
use crate::types::{
    d_iov_t, daos_anchor_t, daos_epoch_range_t, daos_event_t, daos_handle_t, daos_obj_id_t, daos_recx_t,
};

/// What is asked for (`DAOS_GET_*`).
const MAX: u64 = 1;
const MIN: u64 = 2;
const DKEY: u64 = 4;
const AKEY: u64 = 8;
const RECX: u64 = 16;

/// Writes an integer key to the caller's memory.
fn tell(place: *mut d_iov_t, key: Option<&Key>) -> Outcome {
    let number = key.and_then(Key::to_u64).ok_or(Der::NONEXIST)?;
    required(place)?.change(|iov| iov.iov_len = size_of::<u64>());
    let iov = required(place)?.get();
    required(iov.iov_buf.cast::<u64>())?;
    for (index, byte) in number.to_ne_bytes().iter().enumerate() {
        element(iov.iov_buf.cast::<u8>(), index).set(*byte);
    }
    Ok(())
}

/// Checks that a key's memory can take an integer.
fn check_room(place: *mut d_iov_t) -> Outcome {
    let iov = required(place)?.get();
    if iov.iov_buf.is_null() || iov.iov_buf_len < size_of::<u64>() { Err(Der::INVAL) } else { Ok(()) }
}

/// Asks for the greatest or smallest integer key or record.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_query_key(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    dkey: *mut d_iov_t,
    akey: *mut d_iov_t,
    recx: *mut daos_recx_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::object(oh)?, scope(th)?);
        let is_max = match flags & (MAX | MIN) {
            MAX => true,
            MIN => false,
            _ => return Err(Der::INVAL),
        };
        if flags & !(MAX | MIN | DKEY | AKEY | RECX) != 0 || flags & (DKEY | AKEY | RECX) == 0 {
            return Err(Der::INVAL);
        }
        let (of_dkey, or_akey, or_extent) = (flags & DKEY != 0, flags & AKEY != 0, flags & RECX != 0);
        let kinds = object.id().kind();
        let within = if of_dkey {
            check_room(dkey)?;
            None
        } else {
            Some(key_at(dkey, kind::has_integer_dkeys(kinds))?)
        };
        let beneath = if or_akey {
            check_room(akey)?;
            None
        } else if or_extent {
            Some(key_at(akey, kind::has_integer_akeys(kinds))?)
        } else {
            None
        };
        let place = if or_extent { Some(required(recx)?) } else { None };
        let object = scope.view(&object)?;
        Ok(operation(move |context| async move {
            let asked = object.extreme_key(&context, is_max, within.as_ref(), beneath.as_ref(), or_extent);
            let found = scope.ended_with(asked.await.map_err(der_of))?;
            if of_dkey {
                tell(dkey, found.dkey.as_ref())?;
            }
            if or_akey {
                tell(akey, found.akey.as_ref())?;
            }
            if let Some(place) = place {
                let (extent, _) = found.extent.ok_or(Der::NONEXIST)?;
                place.set(daos_recx_t { rx_idx: extent.index, rx_nr: extent.count });
            }
            Ok(())
        }))
    })
}

/// Epoch of the newest change of an object; 0 when it has none.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_query_max_epoch(
    oh: daos_handle_t,
    th: daos_handle_t,
    epoch: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, place) = (scope(th)?.view(&handle::object(oh)?)?, required(epoch)?);
        Ok(operation(move |context| async move {
            place.set(object.max_epoch(&context).await.map_err(der_of)?.0);
            Ok(())
        }))
    })
}

/// Where a list of extents goes.
struct Extents {
    size: Option<ArgumentPtr<u64>>,
    count: ArgumentPtr<u32>,
    recxs: *mut daos_recx_t,
    eprs: *mut daos_epoch_range_t,
    anchor: ArgumentPtr<daos_anchor_t>,
}

/// Lists the extents of an array, in order: `*nr` is the room, then their number.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_list_recx(
    oh: daos_handle_t,
    th: daos_handle_t,
    dkey: *mut d_iov_t,
    akey: *mut d_iov_t,
    size: *mut u64,
    nr: *mut u32,
    recxs: *mut daos_recx_t,
    eprs: *mut daos_epoch_range_t,
    anchor: *mut daos_anchor_t,
    _incr_order: bool,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let object = scope(th)?.view(&handle::object(oh)?)?;
        let kinds = object.id().kind();
        let dkey = key_at(dkey, kind::has_integer_dkeys(kinds))?;
        let akey = key_at(akey, kind::has_integer_akeys(kinds))?;
        required(recxs)?;
        let (size, count, anchor) = (optional(size), required(nr)?, required(anchor)?);
        if count.get() == 0 {
            return Err(Der::INVAL);
        }
        let places = Extents { size, count, recxs, eprs, anchor };
        Ok(operation(move |context| async move {
            if anchor::is_end(places.anchor) {
                places.count.set(0);
                return Ok(());
            }
            let From::At(from) = anchor::read(places.anchor)? else { return Err(Der::STALE) };
            let page = object.list_extents(&context, &dkey, &akey, &from, places.count.get()).await;
            let page = page.map_err(der_of)?;
            let mut listed = 0;
            for (extent, record, epoch) in page.entries.iter().filter_map(|entry| entry.extent) {
                element(places.recxs, listed).set(daos_recx_t { rx_idx: extent.index, rx_nr: extent.count });
                if optional(places.eprs).is_some() {
                    let range = daos_epoch_range_t { epr_lo: epoch.0, epr_hi: epoch.0 };
                    element(places.eprs, listed).set(range);
                }
                if let Some(size) = places.size {
                    size.set(u64::from(record));
                }
                listed += 1;
            }
            places.count.set(u32::try_from(listed).map_err(|_| Der::OVERFLOW)?);
            anchor::write(places.anchor, &page.next)
        }))
    })
}

/// Number of parts that an object can be enumerated in: its shards.
fn parts(object: &Object) -> Result<u32, Der> {
    let shards = library::wait(async |context| object.shard_count(context))?.map_err(der_of)?;
    u32::try_from(shards).map_err(|_| Der::OVERFLOW)
}

/// Splits the enumeration of dkeys into parts: `*nr` is how many are wanted, or 0 to ask; then how many there are. `anchors`, which
/// may be NULL, get their starts.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_anchor_split(
    oh: daos_handle_t,
    nr: *mut u32,
    anchors: *mut daos_anchor_t,
) -> c_int {
    guarded(|| {
        let (object, count) = (handle::object(oh)?, required(nr)?);
        let all = parts(&object)?;
        if !anchors.is_null() {
            if count.get() < all {
                count.set(all);
                return Err(Der::TRUNC);
            }
            for shard in 0..all {
                anchor::write_part(element(anchors, shard as usize), shard)?;
            }
        }
        count.set(all);
        Ok(())
    })
}

/// Makes the anchor at the start of a part.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_anchor_set(oh: daos_handle_t, index: u32, anchor: *mut daos_anchor_t) -> c_int {
    guarded(|| {
        let (object, place) = (handle::object(oh)?, required(anchor)?);
        if index >= parts(&object)? {
            return Err(Der::INVAL);
        }
        anchor::write_part(place, index)
    })
}

/// Makes an anchor behind a dkey, or behind an akey of a dkey. dkeys need an object of one shard: `-DER_NOTSUPPORTED` else.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_key2anchor(
    oh: daos_handle_t,
    th: daos_handle_t,
    dkey: *mut d_iov_t,
    akey: *mut d_iov_t,
    place: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, place) = (scope(th)?.view(&handle::object(oh)?)?, required(place)?);
        let kinds = object.id().kind();
        let dkey = key_at(dkey, kind::has_integer_dkeys(kinds))?;
        let key = match optional(akey) {
            Some(_) => key_at(akey, kind::has_integer_akeys(kinds))?,
            None => dkey,
        };
        let is_dkey = akey.is_null();
        Ok(operation(move |context| async move {
            if is_dkey && object.shard_count(&context).map_err(der_of)? != 1 {
                return Err(Der::NOTSUPPORTED);
            }
            let behind: Anchor = anchor::behind(0, key.as_bytes())?;
            place.set(daos_anchor_t::default());
            anchor::write(place, &behind)
        }))
    })
}

/// What an object is made of isn't told, as in DAOS: always `-DER_NOSYS`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_query(
    _oh: daos_handle_t,
    _attributes: *mut c_void,
    _ranks: *mut c_void,
    _ev: *mut daos_event_t,
) -> c_int {
    code(Der::NOSYS)
}

/// Compares the replicas of an object, as they are at an epoch, with each other and with their checksums: `-DER_MISMATCH` when they
/// differ or one isn't there, `-DER_CSUM` when one is damaged. Of an object without redundancy the only copy is read.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_verify(coh: daos_handle_t, oid: daos_obj_id_t, epoch: u64) -> c_int {
    guarded(|| {
        let container = handle::container(coh)?;
        let object = Object::open(&container, id_of(oid)).map_err(der_of)?.at(Epoch(epoch));
        let verified =
            library::wait(async |context| object.verify(context, &|| {}).await)?.map_err(der_of)?;
        let is_damage = |mismatch: &Mismatch| matches!(mismatch.kind, MismatchKind::Damaged(_));
        if verified.mismatches.iter().any(is_damage) {
            return Err(Der::CSUM);
        }
        let replicas: usize = verified.placement.groups.iter().map(Vec::len).sum();
        let are_alike = verified.mismatches.is_empty() && verified.compared.len() == replicas;
        if are_alike { Ok(()) } else { Err(Der::MISMATCH) }
    })
}
