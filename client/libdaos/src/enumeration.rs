//! Enumeration of the objects of a container, as they were at a snapshot.
//!
//! The list is made when it is opened, and kept in the handle. Marks are kept there, too: they end with the handle.

use core::ffi::{c_char, c_int, c_void};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use weir_client::{Anchor, Container, Context, Epoch, Object};
use weir_proto::{Der, ObjectId, codec};

use crate::boundary::{ArgumentPtr, Outcome, der_of, element, elements, operation, required, run};
use crate::handle::{self, Opened};
use crate::types::{d_iov_t, daos_anchor_t, daos_event_t, daos_handle_t, daos_obj_id_t};

/// Longest marker, in bytes (`DAOS_OIT_MARKER_MAX_LEN`).
const MARKER_MAX: usize = 32;

/// Objects of a container.
pub struct Enumeration {
    objects: Vec<ObjectId>,
    marks: Mutex<BTreeMap<ObjectId, Vec<u8>>>,
}

async fn objects(context: &Context, container: &Container, epoch: Epoch) -> Result<Vec<ObjectId>, Der> {
    let (mut all, mut target) = (BTreeSet::new(), 0);
    let mut anchor = Anchor::START;
    loop {
        let listed = Object::list_of_target(context, container, (target, epoch), &anchor).await;
        let Some((oids, next)) = listed.map_err(der_of)? else { break };
        all.extend(oids);
        (target, anchor) = if next.is_end() { (target + 1, Anchor::START) } else { (target, next) };
    }
    Ok(all.into_iter().collect())
}

/// Lists the objects of a container at a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oit_open(
    coh: daos_handle_t,
    epoch: u64,
    oh: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        Ok(operation(move |context| async move {
            let snapshots = container.snapshots(&context).await.map_err(der_of)?;
            if !snapshots.contains(&Epoch(epoch)) {
                return Err(Der::NONEXIST);
            }
            let objects = objects(&context, &container, Epoch(epoch)).await?;
            let all = Enumeration { objects, marks: Mutex::default() };
            place.set(handle::issue_within(coh, true, Opened::Enumeration(Arc::new(all)))?);
            Ok(())
        }))
    })
}

/// Ends a list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oit_close(oh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    handle::close(oh, ev, handle::enumeration)
}

/// Hands over the objects that pass, from where the anchor stands. Those left out are not counted as room.
fn deliver(
    all: &Enumeration,
    (oids, room): (*mut daos_obj_id_t, ArgumentPtr<u32>),
    anchor: ArgumentPtr<daos_anchor_t>,
    passes: impl Fn(ObjectId) -> bool,
) -> Outcome {
    const END: u16 = 3;
    let given = anchor.get();
    let from: u64 = match given.da_type {
        0 => 0,
        END => all.objects.len() as u64,
        _ => {
            codec::decode(&given.da_buf[1..=usize::from(given.da_buf[0]).min(16)]).map_err(|_| Der::INVAL)?
        }
    };
    let (mut at, mut count) = (usize::try_from(from).map_err(|_| Der::INVAL)?, 0);
    while at < all.objects.len() && count < room.get() as usize {
        let object = all.objects[at];
        if passes(object) {
            element(oids, count).set(daos_obj_id_t { lo: object.lo, hi: object.hi });
            count += 1;
        }
        at += 1;
    }
    room.set(u32::try_from(count).map_err(|_| Der::OVERFLOW)?);
    let position = codec::encode(&(at as u64));
    let mut buffer = [0; 104];
    buffer[0] = u8::try_from(position.len()).map_err(|_| Der::MISC)?;
    buffer[1..=position.len()].copy_from_slice(&position);
    let is_end = at >= all.objects.len();
    anchor.change(|anchor| (anchor.da_type, anchor.da_buf) = (if is_end { END } else { 2 }, buffer));
    Ok(())
}

fn list(
    oh: daos_handle_t,
    oids: *mut daos_obj_id_t,
    oids_nr: *mut u32,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
    passes: impl Fn(&Enumeration, ObjectId) -> bool,
) -> c_int {
    run(ev, || {
        let (all, room, anchor) = (handle::enumeration(oh)?, required(oids_nr)?, required(anchor)?);
        required(oids)?;
        // Here, because a function of the program may call the library.
        deliver(&all, (oids, room), anchor, |object| passes(&all, object))?;
        Ok(operation(|_| async { Ok(()) }))
    })
}

/// Lists objects.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oit_list(
    oh: daos_handle_t,
    oids: *mut daos_obj_id_t,
    oids_nr: *mut u32,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    list(oh, oids, oids_nr, anchor, ev, |_, _| true)
}

impl Enumeration {
    /// Whether no thread is changing it.
    pub fn is_settled(&self) -> bool {
        self.marks.try_lock().is_ok()
    }
}

fn marks(all: &Enumeration) -> std::sync::MutexGuard<'_, BTreeMap<ObjectId, Vec<u8>>> {
    all.marks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists objects that have no mark.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oit_list_unmarked(
    oh: daos_handle_t,
    oids: *mut daos_obj_id_t,
    oids_nr: *mut u32,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    list(oh, oids, oids_nr, anchor, ev, |all, object| !marks(all).contains_key(&object))
}

/// Called for each object with its mark, NULL without one; the object is listed for 1, and not for 0.
type Choice = extern "C" fn(daos_obj_id_t, *mut d_iov_t) -> c_int;

/// Lists the objects that a function chooses.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oit_list_filter(
    oh: daos_handle_t,
    oids: *mut daos_obj_id_t,
    oids_nr: *mut u32,
    anchor: *mut daos_anchor_t,
    filter: Option<Choice>,
    ev: *mut daos_event_t,
) -> c_int {
    list(oh, oids, oids_nr, anchor, ev, move |all, object| {
        let Some(chosen) = filter else { return true };
        let oid = daos_obj_id_t { lo: object.lo, hi: object.hi };
        let mark = marks(all).get(&object).cloned();
        match mark {
            None => chosen(oid, core::ptr::null_mut()) > 0,
            Some(mut mark) => {
                let (iov_buf, len) = (mark.as_mut_ptr().cast::<c_void>(), mark.len());
                let mut run = d_iov_t { iov_buf, iov_buf_len: len, iov_len: len };
                chosen(oid, &raw mut run) > 0
            }
        }
    })
}

/// Marks an object: `-DER_NONEXIST` for one that isn't in the list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oit_mark(
    oh: daos_handle_t,
    oid: daos_obj_id_t,
    marker: *mut d_iov_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (all, given) = (handle::enumeration(oh)?, required(marker)?.get());
        if given.iov_len > MARKER_MAX {
            return Err(Der::INVAL);
        }
        let mark = elements(given.iov_buf.cast::<u8>().cast_const(), given.iov_len)?;
        let object = crate::object::id_of(oid);
        Ok(operation(move |_| async move {
            if all.objects.binary_search(&object).is_err() {
                return Err(Der::NONEXIST);
            }
            marks(&all).insert(object, mark);
            Ok(())
        }))
    })
}

/// A list of the objects at a snapshot needs nothing to be made before: checks that there is a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_snap_oit_create(
    coh: daos_handle_t,
    epoch: u64,
    _name: *mut c_char,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let container = handle::container(coh)?;
        Ok(operation(move |context| async move {
            let snapshots = container.snapshots(&context).await.map_err(der_of)?;
            if snapshots.contains(&Epoch(epoch)) { Ok(()) } else { Err(Der::NONEXIST) }
        }))
    })
}

/// Nothing of a list is left when it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_snap_oit_destroy(
    coh: daos_handle_t,
    oh: daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (_, _) = (handle::container(coh)?, handle::enumeration(oh)?);
        Ok(operation(|_| async { Ok(()) }))
    })
}
