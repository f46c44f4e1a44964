//! Objects: two levels of keys.

use core::ffi::c_int;

use weir_client::{
    AkeyRead, AkeyWrite, Conditions, Container, Context, Extent, Fetched, Hints, Object, Rights, Transaction,
    Value, kind,
};
use weir_proto::{Der, Key, ObjectId};

use crate::boundary::{
    ArgumentPtr, Outcome, der_of, element, elements, guarded, operation, optional, required, run,
};
use crate::class::chosen;
use crate::handle::{self, Opened};
use crate::sg::{Runs, key, key_at};
use crate::transaction::scope;
use crate::types::{
    d_iov_t, d_sg_list_t, daos_event_t, daos_handle_t, daos_iod_t, daos_iom_t, daos_obj_id_t, daos_recx_t,
};

const SINGLE: c_int = 1;
const ARRAY: c_int = 2;

/// The id as the client knows it.
pub(crate) const fn id_of(oid: daos_obj_id_t) -> ObjectId {
    ObjectId { hi: oid.hi, lo: oid.lo }
}

/// The conditions of a call; bits that mean nothing are refused.
pub(crate) fn conditions_of(flags: u64) -> Result<Conditions, Der> {
    const MASK: u64 = 255;
    if flags & !MASK != 0 {
        return Err(Der::INVAL);
    }
    u32::try_from(flags).map(Conditions).map_err(|_| Der::INVAL)
}

/// Whether nothing is changed through an object's handle: its own mode says so, or that of the container's.
pub(crate) fn is_read_only(container: &Container, mode: u32) -> bool {
    const READ_ONLY: u32 = 1 << 1;
    const READ_WRITE: u32 = 1 << 2;
    const EXCLUSIVE: u32 = 1 << 3;
    let only_reads = mode & READ_ONLY != 0 && mode & (READ_WRITE | EXCLUSIVE) == 0;
    only_reads || !container.rights().allows(Rights::WRITE)
}

/// Puts type and class into an id: the class of this number, or with 0 one that the container, the type and hints choose.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_generate_oid2(
    coh: daos_handle_t,
    oid: *mut daos_obj_id_t,
    kind: c_int,
    cid: u32,
    hints: u16,
    _args: u32,
) -> c_int {
    guarded(|| {
        let hints = Hints::from_bits(hints).ok_or(Der::INVAL)?;
        let (container, place) = (handle::container(coh)?, required(oid)?);
        let kind = u8::try_from(kind).map_err(|_| Der::INVAL)?;
        let made = container.encode_object_id(id_of(place.get()), kind, chosen(cid)?, hints);
        let made = made.map_err(der_of)?;
        place.set(daos_obj_id_t { lo: made.lo, hi: made.hi });
        Ok(())
    })
}

/// Opens an object.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_open(
    coh: daos_handle_t,
    oid: daos_obj_id_t,
    mode: u32,
    oh: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        let object = Object::open(&container, id_of(oid)).map_err(der_of)?;
        let read_only = is_read_only(&container, mode);
        Ok(operation(move |_| async move {
            place.set(handle::issue_within(coh, read_only, Opened::Object(object))?);
            Ok(())
        }))
    })
}

/// Closes an object.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_close(oh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    handle::close(oh, ev, handle::object)
}

/// Removes an object.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_punch(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::changed(oh, handle::object)?, scope(th)?);
        // That an object spread over targets exists is not decided by one of them.
        if conditions_of(flags)? != Conditions::NONE {
            return Err(Der::NOTSUPPORTED);
        }
        Ok(operation(move |context| async move {
            scope.change(&object, |transaction| transaction.punch(&object), object.punch(&context)).await
        }))
    })
}

/// Removes dkeys.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_punch_dkeys(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    nr: u32,
    dkeys: *mut d_iov_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::changed(oh, handle::object)?, scope(th)?);
        let conditions = conditions_of(flags)?;
        let integer = kind::has_integer_dkeys(object.id().kind());
        let dkeys = keys(dkeys, nr, integer)?;
        Ok(operation(move |context| async move {
            let note = |transaction: &mut Transaction| transaction.punch_dkeys(&object, conditions, &dkeys);
            scope.change(&object, note, object.punch_dkeys(&context, conditions, &dkeys)).await
        }))
    })
}

/// Removes akeys of a dkey.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_punch_akeys(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    dkey: *mut d_iov_t,
    nr: u32,
    akeys: *mut d_iov_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::changed(oh, handle::object)?, scope(th)?);
        let conditions = conditions_of(flags)?;
        let kinds = object.id().kind();
        let dkey = key_at(dkey, kind::has_integer_dkeys(kinds))?;
        let akeys = keys(akeys, nr, kind::has_integer_akeys(kinds))?;
        Ok(operation(move |context| async move {
            let note =
                |transaction: &mut Transaction| transaction.punch_akeys(&object, conditions, &dkey, &akeys);
            scope.change(&object, note, object.punch_akeys(&context, conditions, &dkey, &akeys)).await
        }))
    })
}

fn keys(first: *mut d_iov_t, count: u32, integer: bool) -> Result<Vec<Key>, Der> {
    if count == 0 {
        return Err(Der::INVAL);
    }
    elements(first.cast_const(), count as usize)?.iter().map(|iov| key(iov, integer)).collect()
}

/// One akey of a call, read.
struct AkeyArgument {
    place: ArgumentPtr<daos_iod_t>,
    akey: Key,
    array: bool,
    size: u64,
    extents: Vec<Extent>,
    conditions: Conditions,
    runs: Option<Runs>,
}

impl AkeyArgument {
    fn read(
        object: &Object,
        call: Conditions,
        iod: ArgumentPtr<daos_iod_t>,
        runs: Option<Runs>,
    ) -> Result<Self, Der> {
        let given = iod.get();
        let akey = key(&given.iod_name, kind::has_integer_akeys(object.id().kind()))?;
        let (array, extents) = match given.iod_type {
            SINGLE if given.iod_nr == 1 => (false, Vec::new()),
            ARRAY => {
                let recxs = elements(given.iod_recxs.cast_const(), given.iod_nr as usize)?;
                let extents = recxs.iter().map(|recx| Extent { index: recx.rx_idx, count: recx.rx_nr });
                (true, extents.collect())
            }
            _ => return Err(Der::INVAL),
        };
        // Elsewhere nothing stands there that means anything: callers leave it as it is.
        let own = call.has(Conditions::PER_AKEY);
        let conditions = if own { conditions_of(given.iod_flags)? } else { Conditions::NONE };
        Ok(Self { place: iod, akey, array, size: given.iod_size, extents, conditions, runs })
    }

    fn room(&self) -> u64 {
        self.runs.as_ref().map_or(0, Runs::room)
    }

    fn records(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.count))
    }

    fn record_size(&self) -> Result<u32, Der> {
        u32::try_from(self.size).map_err(|_| Der::REC2BIG)
    }

    fn write(&self) -> Result<AkeyWrite<'static>, Der> {
        let (value, len) = if self.array {
            let value = Value::Array { record_size: self.record_size()?, extents: self.extents.clone() };
            (value, self.records().saturating_mul(self.size))
        } else {
            (Value::Single { size: self.size }, self.size)
        };
        let data = match &self.runs {
            Some(runs) => runs.source(len)?,
            None if len == 0 => Vec::new(),
            None => return Err(Der::REC2BIG),
        };
        Ok(AkeyWrite { akey: self.akey.clone(), value, conditions: self.conditions, data })
    }
}

/// Reads the akeys of a call.
fn parts(
    object: &Object,
    call: Conditions,
    nr: u32,
    iods: *mut daos_iod_t,
    sgls: *mut d_sg_list_t,
) -> Result<Vec<AkeyArgument>, Der> {
    required(iods)?;
    let count = usize::try_from(nr).map_err(|_| Der::INVAL)?;
    if count == 0 || count > weir_proto::limits::AKEYS_MAX {
        return Err(Der::INVAL);
    }
    (0..count)
        .map(|index| {
            let runs = match optional(sgls) {
                Some(_) => Some(Runs::read(element(sgls, index))?),
                None => None,
            };
            AkeyArgument::read(object, call, element(iods, index), runs)
        })
        .collect()
}

/// Writes akeys of a dkey.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_update(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    dkey: *mut d_iov_t,
    nr: u32,
    iods: *mut daos_iod_t,
    sgls: *mut d_sg_list_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::changed(oh, handle::object)?, scope(th)?);
        let conditions = conditions_of(flags)?;
        let dkey = key_at(dkey, kind::has_integer_dkeys(object.id().kind()))?;
        let parts = parts(&object, conditions, nr, iods, sgls)?;
        let writes = parts.iter().map(AkeyArgument::write).collect::<Result<Vec<_>, Der>>()?;
        Ok(operation(move |context| async move {
            let note =
                |transaction: &mut Transaction| transaction.update(&object, &dkey, conditions, &writes);
            let update = async { object.update(&context, &dkey, conditions, &writes).await.map(drop) };
            scope.change(&object, note, update).await
        }))
    })
}

/// Reads akeys of a dkey.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_fetch(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    dkey: *mut d_iov_t,
    nr: u32,
    iods: *mut daos_iod_t,
    sgls: *mut d_sg_list_t,
    maps: *mut daos_iom_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::object(oh)?, scope(th)?);
        let conditions = conditions_of(flags)?;
        let dkey = key_at(dkey, kind::has_integer_dkeys(object.id().kind()))?;
        let parts = parts(&object, conditions, nr, iods, sgls)?;
        let (maps, object) = (optional(maps).map(|_| Maps(maps)), scope.view(&object)?);
        Ok(operation(move |context| async move {
            scope.ended(fetch(context, object, dkey, conditions, parts, maps).await)
        }))
    })
}

/// The caller's maps of what was found, one for each akey.
struct Maps(*mut daos_iom_t);

async fn fetch(
    context: Context,
    object: Object,
    dkey: Key,
    conditions: Conditions,
    mut parts: Vec<AkeyArgument>,
    maps: Option<Maps>,
) -> Outcome {
    learn_record_sizes(&context, &object, &dkey, &mut parts).await?;
    let mut reads = Vec::with_capacity(parts.len());
    for part in &parts {
        let len = part.records().saturating_mul(part.size);
        let (value, into) = match (&part.runs, part.array) {
            (None, false) => (Value::Single { size: 0 }, Vec::new()),
            (None, true) => (Value::Array { record_size: 0, extents: any_extent(&part.extents) }, Vec::new()),
            (Some(runs), false) => {
                if part.size > runs.room() {
                    return Err(Der::REC2BIG);
                }
                let most = runs.room().min(weir_proto::limits::PAYLOAD_MAX);
                (Value::Single { size: most }, runs.sink(most)?)
            }
            // Nothing is there: the size alone is asked for again, so that conditions are checked.
            (Some(_), true) if part.size == 0 => {
                (Value::Array { record_size: 0, extents: any_extent(&part.extents) }, Vec::new())
            }
            (Some(runs), true) => {
                let value = Value::Array { record_size: part.record_size()?, extents: part.extents.clone() };
                (value, runs.sink(len)?)
            }
        };
        let (akey, conditions) = (part.akey.clone(), part.conditions);
        reads.push(AkeyRead { akey, value, conditions, into, zero_holes: false });
    }
    let found = object.fetch(&context, &dkey, conditions, &mut reads).await.map_err(der_of)?;
    let mut outcome = Ok(());
    for (index, (part, found)) in parts.iter().zip(&found).enumerate() {
        outcome = outcome.and(report(part, found));
        if let Some(maps) = &maps {
            describe(element(maps.0, index), part, found);
        }
    }
    outcome
}

/// Arrays whose record size the caller doesn't know: it is asked for first.
async fn learn_record_sizes(
    context: &Context,
    object: &Object,
    dkey: &Key,
    parts: &mut [AkeyArgument],
) -> Outcome {
    let unknown = |part: &AkeyArgument| part.array && part.size == 0 && part.runs.is_some();
    let mut questions: Vec<AkeyRead<'_>> = parts
        .iter()
        .filter(|part| unknown(part))
        .map(|part| AkeyRead::array(part.akey.clone(), 0, any_extent(&part.extents), Vec::new()))
        .collect();
    if questions.is_empty() {
        return Ok(());
    }
    let found = object.fetch(context, dkey, Conditions::NONE, &mut questions).await.map_err(der_of)?;
    for (part, found) in parts.iter_mut().filter(|part| unknown(part)).zip(found) {
        part.size = found.size;
        if part.records().saturating_mul(found.size) > part.room() {
            return Err(Der::REC2BIG);
        }
    }
    Ok(())
}

/// A question for a size needs an extent, whichever.
fn any_extent(extents: &[Extent]) -> Vec<Extent> {
    if extents.is_empty() { vec![Extent { index: 0, count: 1 }] } else { extents.to_vec() }
}

/// Tells the caller sizes and how much memory was filled.
fn report(part: &AkeyArgument, found: &Fetched) -> Outcome {
    part.place.change(|iod| iod.iod_size = found.size);
    let Some(runs) = &part.runs else { return Ok(()) };
    let filled = match (found.size, part.array) {
        (0, _) => 0,
        (size, false) if size > runs.room() => {
            runs.report(0);
            return Err(Der::REC2BIG);
        }
        (size, false) => size,
        (size, true) => part.records().saturating_mul(size),
    };
    runs.report(filled);
    Ok(())
}

fn describe(map: ArgumentPtr<daos_iom_t>, part: &AkeyArgument, found: &Fetched) {
    let recx = |extent: &Extent| daos_recx_t { rx_idx: extent.index, rx_nr: extent.count };
    let nothing = daos_recx_t { rx_idx: 0, rx_nr: 0 };
    map.change(|map| {
        map.iom_type = if part.array { ARRAY } else { SINGLE };
        map.iom_size = found.size;
        map.iom_nr_out = u32::try_from(found.present.len()).unwrap_or(u32::MAX);
        map.iom_recx_lo = found.present.iter().min().map_or(nothing, recx);
        map.iom_recx_hi = found.present.iter().max().map_or(nothing, recx);
        if !map.iom_recxs.is_null() {
            for (index, extent) in found.present.iter().take(map.iom_nr as usize).enumerate() {
                element(map.iom_recxs, index).set(recx(extent));
            }
        }
    });
}
