//! Pools.

use core::ffi::{c_char, c_int, c_void};
use std::collections::BTreeSet;

use weir_client::{Pool, PoolQueryReply, PoolSpace, Rights};
use weir_proto::Der;

use crate::boundary::{Outcome, der_of, element, guarded, operation, optional, required, run, text_of};
use crate::handle::{self, Opened};
use crate::library;
use crate::types::{
    d_iov_t, daos_event_t, daos_handle_t, daos_pool_cont_info, daos_pool_info_t, daos_pool_space,
};

const READ_ONLY: u32 = 1;
const READ_WRITE: u32 = 2;
const EXCLUSIVE: u32 = 4;

/// What a query is asked for that it answers: space.
const SPACE: u64 = 1;

/// Index of the media that space is reported for: NVMe.
const NVME: usize = 1;

/// Name of the system in programs that name the default one.
const SYSTEM_DEFAULT: &str = "daos_server";

/// Rebuild state: nothing to do, complete.
const REBUILD_COMPLETED: i32 = 2;

/// Connects to a pool.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_connect2(
    pool: *const c_char,
    sys: *const c_char,
    flags: u32,
    poh: *mut daos_handle_t,
    info: *mut daos_pool_info_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, handle_place, info) = (text_of(pool)?, required(poh)?, optional(info));
        check_system(sys)?;
        let rights = rights_of_flags(flags)?;
        Ok(operation(move |context| async move {
            let connected = Pool::connect(&context, &pool, rights).await.map_err(der_of)?;
            if let Some(info) = info {
                let reply = connected.query(&context).await.map_err(der_of)?;
                info.set(describe(&connected, &reply, SPACE));
            }
            handle_place.set(handle::issue(Opened::Pool(connected))?);
            Ok(())
        }))
    })
}

/// Checks the name of the system that a caller gave; NULL for the only one.
pub(crate) fn check_system(sys: *const c_char) -> Outcome {
    if sys.is_null() {
        return Ok(());
    }
    let system = text_of(sys)?;
    let known = system.is_empty() || system == SYSTEM_DEFAULT || system == library::attach()?.system;
    if known { Ok(()) } else { Err(Der::INVAL) }
}

/// The rights that flags ask for (`DAOS_PC_*`).
pub(crate) fn rights_of_flags(flags: u32) -> Result<Rights, Der> {
    match flags {
        READ_ONLY => Ok(Rights::READ),
        READ_WRITE | EXCLUSIVE => Ok(Rights::READ
            .union(Rights::WRITE)
            .union(Rights::CREATE_CONTAINER)
            .union(Rights::DESTROY_CONTAINER)),
        _ => Err(Der::INVAL),
    }
}

/// Disconnects from a pool that no container is open in.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_disconnect(poh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let pool = handle::pool(poh)?;
        Ok(operation(move |context| async move {
            let ending = handle::end(poh)?;
            if !handle::is_shared(poh)? {
                pool.disconnect(&context).await.map_err(der_of)?;
            }
            ending.done()
        }))
    })
}

/// Asks for the state of a pool.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_query(
    poh: daos_handle_t,
    ranks: *mut *mut c_void,
    info: *mut daos_pool_info_t,
    pool_prop: *mut c_void,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, info) = (handle::pool(poh)?, optional(info));
        if !ranks.is_null() || !pool_prop.is_null() {
            return Err(Der::NOSYS);
        }
        Ok(operation(move |context| async move {
            let reply = pool.query(&context).await.map_err(der_of)?;
            if let Some(info) = info {
                let bits = info.get().pi_bits;
                info.set(describe(&pool, &reply, bits));
            }
            Ok(())
        }))
    })
}

fn describe(pool: &Pool, reply: &PoolQueryReply, bits: u64) -> daos_pool_info_t {
    let targets = &reply.map.targets;
    let ranks: BTreeSet<_> = targets.iter().map(|target| target.rank).collect();
    let down = targets
        .iter()
        .filter(|target| target.state.is_lost() || reply.unreachable.contains(&target.rank))
        .count();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut info = daos_pool_info_t {
        pi_uuid: *pool.id().0.as_bytes(),
        pi_ntargets: count(targets.len()),
        pi_nnodes: count(ranks.len()),
        pi_ndisabled: count(down),
        pi_map_ver: reply.map.version,
        pi_leader: 0,
        pi_bits: bits,
        ..daos_pool_info_t::default()
    };
    info.pi_rebuild_st.rs_state = REBUILD_COMPLETED;
    if bits & SPACE != 0 {
        let PoolSpace { total, free, free_min, free_max } = PoolSpace::of(reply);
        let mut space =
            daos_pool_space { ps_ntargets: count(reply.space.len()), ..daos_pool_space::default() };
        space.s_total[NVME] = total;
        space.s_free[NVME] = free;
        space.ps_free_min[NVME] = free_min;
        space.ps_free_max[NVME] = free_max;
        space.ps_free_mean[NVME] = free.checked_div(reply.space.len() as u64).unwrap_or(0);
        info.pi_space = space;
    }
    info
}

/// Lists the containers of a pool.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_list_cont(
    poh: daos_handle_t,
    ncont: *mut u64,
    conts: *mut daos_pool_cont_info,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, count) = (handle::pool(poh)?, required(ncont)?);
        Ok(operation(move |context| async move {
            let found = pool.containers(&context).await.map_err(der_of)?;
            let room = usize::try_from(count.get()).unwrap_or(usize::MAX);
            count.set(found.len() as u64);
            if conts.is_null() {
                return Ok(());
            }
            if room < found.len() {
                return Err(Der::TRUNC);
            }
            for (index, container) in found.iter().enumerate() {
                let mut label = [0; 128];
                for (place, byte) in label.iter_mut().zip(container.properties.label.bytes().take(127)) {
                    *place = c_char::from_ne_bytes([byte]);
                }
                let pci_uuid = *container.container.0.as_bytes();
                element(conts, index).set(daos_pool_cont_info { pci_uuid, pci_label: label });
            }
            Ok(())
        }))
    })
}

/// Writes a pool handle to memory.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_local2global(poh: daos_handle_t, glob: *mut d_iov_t) -> c_int {
    guarded(|| export(&handle::pool(poh)?.to_bytes(), glob))
}

/// Makes a pool handle of what another process wrote.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_global2local(glob: d_iov_t, poh: *mut daos_handle_t) -> c_int {
    guarded(|| {
        let place = required(poh)?;
        let pool = Pool::from_bytes(&import(&glob)?).map_err(der_of)?;
        place.set(handle::note_shared(handle::issue(Opened::Pool(pool))?)?);
        Ok(())
    })
}

/// Copies a handle's portable form to the caller, or tells how long it is.
pub(crate) fn export(bytes: &[u8], glob: *mut d_iov_t) -> Outcome {
    let place = required(glob)?;
    let target = place.get();
    if target.iov_buf.is_null() {
        place.change(|iov| iov.iov_buf_len = bytes.len());
        return Ok(());
    }
    if target.iov_buf_len < bytes.len() {
        place.change(|iov| iov.iov_buf_len = bytes.len());
        return Err(Der::TRUNC);
    }
    for (index, byte) in bytes.iter().enumerate() {
        element(target.iov_buf.cast::<u8>(), index).set(*byte);
    }
    place.change(|iov| iov.iov_len = bytes.len());
    Ok(())
}

/// Reads a handle's portable form.
pub(crate) fn import(glob: &d_iov_t) -> Result<Vec<u8>, Der> {
    if glob.iov_buf.is_null() || glob.iov_len == 0 || glob.iov_len > glob.iov_buf_len {
        return Err(Der::INVAL);
    }
    crate::boundary::elements(glob.iov_buf.cast::<u8>().cast_const(), glob.iov_len)
}
