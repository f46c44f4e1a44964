//! Operations as tasks.

use core::ffi::{c_char, c_int, c_void};

use weir_proto::Der;

use super::body::{arguments, complete, create, reset, tse_task_register_deps};
use super::tables;
use crate::boundary::{code, guarded, required};
use crate::queue::Queue;
use crate::types::{
    d_iov_t, d_sg_list_t, daos_anchor_t, daos_cont_info_t, daos_event_t, daos_handle_t, daos_iod_t,
    daos_iom_t, daos_key_desc_t, daos_obj_id_t, daos_pool_info_t, daos_prop_t,
};
use crate::{container, list, object, pool, transaction};

/// Marks the event of a task, which is there only while its operation is launched.
const MARK: u64 = 0x7765_6972_7461_736b;

#[repr(C)]
#[derive(Clone, Copy)]
struct PoolConnect {
    uuid: [u8; 16],
    grp: *const c_char,
    flags: u32,
    poh: *mut daos_handle_t,
    info: *mut daos_pool_info_t,
    pool: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ContainerCreate {
    poh: daos_handle_t,
    uuid: [u8; 16],
    prop: *mut daos_prop_t,
    cuuid: *mut [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ContainerOpen {
    poh: daos_handle_t,
    uuid: [u8; 16],
    flags: u32,
    coh: *mut daos_handle_t,
    info: *mut daos_cont_info_t,
    cont: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ContainerDestroy {
    poh: daos_handle_t,
    uuid: [u8; 16],
    force: c_int,
    cont: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ContainerQuery {
    coh: daos_handle_t,
    info: *mut daos_cont_info_t,
    prop: *mut daos_prop_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AllocateOids {
    coh: daos_handle_t,
    num_oids: u64,
    oid: *mut u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TransactionOpen {
    coh: daos_handle_t,
    th: *mut daos_handle_t,
    flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ObjectOpen {
    coh: daos_handle_t,
    oid: daos_obj_id_t,
    mode: u32,
    oh: *mut daos_handle_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ObjectPunch {
    th: daos_handle_t,
    oh: daos_handle_t,
    dkey: *mut d_iov_t,
    akeys: *mut d_iov_t,
    flags: u64,
    akey_nr: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ObjectTransfer {
    th: daos_handle_t,
    oh: daos_handle_t,
    flags: u64,
    dkey: *mut d_iov_t,
    nr: u32,
    extra_flags: u32,
    iods: *mut daos_iod_t,
    sgls: *mut d_sg_list_t,
    ioms: *mut daos_iom_t,
    extra_arg: *mut c_void,
    csum_iov: *mut d_iov_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ObjectList {
    oh: daos_handle_t,
    th: daos_handle_t,
    dkey: *mut d_iov_t,
    akey: *mut d_iov_t,
    nr: *mut u32,
    kds: *mut daos_key_desc_t,
    sgl: *mut d_sg_list_t,
    size: *mut u64,
    kind: c_int,
    recxs: *mut c_void,
    eprs: *mut c_void,
    anchor: *mut daos_anchor_t,
    dkey_anchor: *mut daos_anchor_t,
    akey_anchor: *mut daos_anchor_t,
}

/// Which operations can be tasks (`DAOS_OPC_*`).
const OPERATIONS: [c_int; 22] =
    [5, 6, 18, 19, 20, 21, 22, 33, 37, 38, 39, 41, 42, 46, 47, 48, 49, 50, 54, 55, 56, 57];

/// The task whose operation an event is made for.
pub fn launched_by(ev: *mut daos_event_t) -> Option<usize> {
    // SAFETY: callers have checked that it isn't NULL, so its private words are initialised, by the program or here.
    let words = unsafe { (*ev).ev_private };
    (words[0] == MARK && words[2] == !words[1]).then(|| usize::try_from(words[1]).ok())?
}

/// Takes note that the operation of a task has ended; the task ends when its scheduler progresses.
pub fn arrived(task: usize, result: c_int) {
    if let Ok(scheduler) = tables().scheduler_of(task) {
        scheduler.arrived.push_back((task, result));
    }
    if let Ok(queue) = Queue::common() {
        queue.wake();
    }
}

/// Starts the operation of a task.
extern "C" fn run(task: *mut c_void) -> c_int {
    let number = task as usize;
    let opcode = tables().task(number).map_or(-1, |known| known.opcode);
    let mut words = [0; 20];
    (words[0], words[1], words[2]) = (MARK, number as u64, !(number as u64));
    let mut event = daos_event_t { ev_error: 0, ev_private: words, ev_debug: 0 };
    let result = start(opcode, arguments(number), &raw mut event);
    if result != 0 {
        complete(number, result);
    }
    result
}

/// Calls the function of an operation with the arguments of a task.
fn start(opcode: c_int, arguments: *mut c_void, ev: *mut daos_event_t) -> c_int {
    if arguments.is_null() {
        return code(Der::INVAL);
    }
    match opcode {
        5..=22 | 33 => start_on_container(opcode, arguments, ev),
        _ => start_on_object(opcode, arguments, ev),
    }
}

/// Reads the arguments of a task as those of its operation.
fn read<T: Copy>(arguments: *mut c_void) -> T {
    const { assert!(size_of::<T>() <= super::ARGUMENT_WORDS * 8) };
    // SAFETY: the memory has room for any of the structures, is aligned for words, and zeros are valid for all of them.
    unsafe { arguments.cast::<T>().read() }
}

fn start_on_container(opcode: c_int, arguments: *mut c_void, ev: *mut daos_event_t) -> c_int {
    match opcode {
        5 => {
            let given: PoolConnect = read(arguments);
            pool::daos_pool_connect2(given.pool, given.grp, given.flags, given.poh, given.info, ev)
        }
        6 => pool::daos_pool_disconnect(read(arguments), ev),
        18 => {
            let given: ContainerCreate = read(arguments);
            container::daos_cont_create2(given.poh, given.cuuid, given.prop, ev)
        }
        19 => {
            let given: ContainerOpen = read(arguments);
            container::daos_cont_open2(given.poh, given.cont, given.flags, given.coh, given.info, ev)
        }
        20 => container::daos_cont_close(read(arguments), ev),
        21 => {
            let given: ContainerDestroy = read(arguments);
            container::daos_cont_destroy2(given.poh, given.cont, given.force, ev)
        }
        22 => {
            let given: ContainerQuery = read(arguments);
            container::daos_cont_query(given.coh, given.info, given.prop, ev)
        }
        33 => {
            let given: AllocateOids = read(arguments);
            container::daos_cont_alloc_oids(given.coh, given.num_oids, given.oid, ev)
        }
        _ => code(Der::NOSYS),
    }
}

fn start_on_object(opcode: c_int, arguments: *mut c_void, ev: *mut daos_event_t) -> c_int {
    match opcode {
        37 => {
            let given: TransactionOpen = read(arguments);
            transaction::daos_tx_open(given.coh, given.th, given.flags, ev)
        }
        38 => transaction::daos_tx_commit(read(arguments), ev),
        39 => transaction::daos_tx_abort(read(arguments), ev),
        41 => transaction::daos_tx_close(read(arguments), ev),
        42 => transaction::daos_tx_restart(read(arguments), ev),
        46 => {
            let given: ObjectOpen = read(arguments);
            object::daos_obj_open(given.coh, given.oid, given.mode, given.oh, ev)
        }
        47 => object::daos_obj_close(read(arguments), ev),
        48..=50 => punch(opcode, &read(arguments), ev),
        54 | 55 => transfer(opcode, &read(arguments), ev),
        56 => {
            let given: ObjectList = read(arguments);
            let anchor = if given.dkey_anchor.is_null() { given.anchor } else { given.dkey_anchor };
            list::daos_obj_list_dkey(given.oh, given.th, given.nr, given.kds, given.sgl, anchor, ev)
        }
        57 => {
            let given: ObjectList = read(arguments);
            let anchor = if given.akey_anchor.is_null() { given.anchor } else { given.akey_anchor };
            list::daos_obj_list_akey(
                given.oh, given.th, given.dkey, given.nr, given.kds, given.sgl, anchor, ev,
            )
        }
        _ => code(Der::NOSYS),
    }
}

fn punch(opcode: c_int, given: &ObjectPunch, ev: *mut daos_event_t) -> c_int {
    match opcode {
        48 => object::daos_obj_punch(given.oh, given.th, given.flags, ev),
        49 => object::daos_obj_punch_dkeys(given.oh, given.th, given.flags, 1, given.dkey, ev),
        _ => object::daos_obj_punch_akeys(
            given.oh,
            given.th,
            given.flags,
            given.dkey,
            given.akey_nr,
            given.akeys,
            ev,
        ),
    }
}

fn transfer(opcode: c_int, given: &ObjectTransfer, ev: *mut daos_event_t) -> c_int {
    let ObjectTransfer { th, oh, flags, dkey, nr, iods, sgls, ioms, .. } = *given;
    if opcode == 54 {
        object::daos_obj_fetch(oh, th, flags, dkey, nr, iods, sgls, ioms, ev)
    } else {
        object::daos_obj_update(oh, th, flags, dkey, nr, iods, sgls, ev)
    }
}

fn check(opcode: c_int) -> Result<(), Der> {
    if OPERATIONS.contains(&opcode) { Ok(()) } else { Err(Der::NOSYS) }
}

/// Makes a task of an operation, which waits for others.
#[unsafe(no_mangle)]
pub extern "C" fn daos_task_create(
    opc: c_int,
    sched: *mut c_void,
    num_deps: u32,
    dep_tasks: *mut *mut c_void,
    taskp: *mut *mut c_void,
) -> c_int {
    guarded(|| {
        let place = required(taskp)?;
        if !dep_tasks.is_null() && num_deps == 0 {
            return Err(Der::INVAL);
        }
        check(opc)?;
        let count = c_int::try_from(num_deps).map_err(|_| Der::INVAL)?;
        let task = create(Some(run), sched as usize, 0, opc)?;
        if count > 0 && tse_task_register_deps(task as *mut c_void, count, dep_tasks) != 0 {
            tables().release(task);
            return Err(Der::INVAL);
        }
        place.set(task as *mut c_void);
        Ok(())
    })
}

/// Makes a task of another operation of a complete one.
#[unsafe(no_mangle)]
pub extern "C" fn daos_task_reset(task: *mut c_void, opc: c_int) -> c_int {
    guarded(|| {
        check(opc)?;
        reset(task as usize, Some(run), None, opc)
    })
}

/// The arguments of a task's operation, to be filled in.
#[unsafe(no_mangle)]
pub extern "C" fn daos_task_get_args(task: *mut c_void) -> *mut c_void {
    arguments(task as usize)
}

/// The program's own pointer.
#[unsafe(no_mangle)]
pub extern "C" fn daos_task_get_priv(task: *mut c_void) -> *mut c_void {
    super::body::tse_task_get_priv(task)
}

/// Sets the program's own pointer and returns the one that was there.
#[unsafe(no_mangle)]
pub extern "C" fn daos_task_set_priv(task: *mut c_void, private: *mut c_void) -> *mut c_void {
    super::body::tse_task_set_priv(task, private)
}
