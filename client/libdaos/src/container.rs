//! Containers.

use core::ffi::{c_char, c_int};

use weir_client::{
    Container, ContainerInfo, ContainerProperties, ContainerType, Context, Epoch, ObjectClass, Pool, Rights,
};
use weir_proto::{ContainerId, Der};

use crate::attributes::name_of_property;
use crate::boundary::{
    ArgumentPtr, code, der_of, element, guarded, operation, optional, required, run, text_of,
};
use crate::container_property;
use crate::handle::{self, Opened};
use crate::pool::{export, import};
use crate::property::{self, Given};
use crate::types::{
    d_iov_t, daos_anchor_t, daos_cont_info_t, daos_epoch_range_t, daos_event_t, daos_handle_t, daos_prop_t,
};

const READ_ONLY: u32 = 1;
const READ_WRITE: u32 = 2;
const EXCLUSIVE: u32 = 4;
const BASE_MASK: u32 = 7;

/// Snapshot option: take one, and nothing else.
const SNAPSHOT_ONLY: c_int = 1;
/// Snapshot options: take one, and have its objects listed.
const SNAPSHOT_AND_OBJECTS: c_int = 3;

const LAYOUT_POSIX: u64 = 1;

/// Bytes of a file in one dkey, for containers made here (`DFS_DEFAULT_CHUNK_SIZE`).
const CHUNK_SIZE: u64 = 1 << 20;

/// Mode of the root directory of POSIX containers made here.
const ROOT_MODE: u32 = 0o755;

/// Creates a container that is labelled by its properties or by its UUID.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_create2(
    poh: daos_handle_t,
    uuid: *mut [u8; 16],
    cont_prop: *mut daos_prop_t,
    ev: *mut daos_event_t,
) -> c_int {
    create(poh, None, cont_prop, uuid, ev)
}

/// Creates a container with a label.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_create_with_label(
    poh: daos_handle_t,
    label: *const c_char,
    cont_prop: *mut daos_prop_t,
    uuid: *mut [u8; 16],
    ev: *mut daos_event_t,
) -> c_int {
    let label = match text_of(label) {
        Ok(label) => label,
        Err(der) => return crate::boundary::code(der),
    };
    create(poh, Some(label), cont_prop, uuid, ev)
}

fn create(
    poh: daos_handle_t,
    label: Option<String>,
    cont_prop: *mut daos_prop_t,
    uuid: *mut [u8; 16],
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, uuid) = (handle::pool(poh)?, optional(uuid));
        let mut properties = properties_of(&pool, cont_prop)?;
        if let Some(label) = label {
            let is_other = !properties.label.is_empty() && properties.label != label;
            if label.is_empty() || is_other {
                return Err(Der::INVAL);
            }
            properties.label = label;
        }
        Ok(operation(move |context| async move {
            let id = new_id(&context);
            if properties.label.is_empty() {
                // A label can't have the form of a UUID, so it is set apart by a letter.
                properties.label = format!("c-{}", id.0);
            }
            let info =
                Container::create_with_id(&context, &pool, id, properties, true).await.map_err(der_of)?;
            if let Some(uuid) = uuid {
                uuid.set(*info.container.0.as_bytes());
            }
            Ok(())
        }))
    })
}

/// A random identity for a new container.
pub(crate) fn new_id(context: &Context) -> ContainerId {
    let mut random = [0; 16];
    for half in random.chunks_mut(8) {
        half.copy_from_slice(&context.runtime().random_u64().to_ne_bytes());
    }
    // The version and variant bits of a random UUID (RFC 9562 §5.4).
    random[6] = (random[6] & 0x0f) | 0x40;
    random[8] = (random[8] & 0x3f) | 0x80;
    ContainerId(uuid::Uuid::from_bytes(random))
}

/// What a container is made with; with no list, of the type for objects.
pub(crate) fn properties_of(pool: &Pool, list: *mut daos_prop_t) -> Result<ContainerProperties, Der> {
    let owner = crate::dfs::ownership(ROOT_MODE);
    let mut properties = ContainerProperties {
        label: String::new(),
        kind: ContainerType::Object,
        quota: 0,
        object_class: if pool.object_class().is_empty() {
            ObjectClass::SX.to_string()
        } else {
            pool.object_class().to_owned()
        },
        chunk_size: CHUNK_SIZE,
        uid: owner.uid,
        gid: owner.gid,
        mode: owner.mode,
        attributes: std::collections::BTreeMap::new(),
    };
    for (kind, value) in property::given(list)? {
        match (kind, value) {
            (container_property::LABEL, Given::Text(label)) => properties.label = label,
            (container_property::LAYOUT, Given::Number(LAYOUT_POSIX)) => {
                properties.kind = ContainerType::Posix;
            }
            // Asking for redundancy that there isn't must not seem to succeed.
            (container_property::REDUNDANCY_FACTOR, Given::Number(factor)) if factor > 0 => {
                let factor = u32::try_from(factor).map_err(|_| Der::INVAL)?;
                let class = ObjectClass::for_redundancy(factor).ok_or(Der::INVAL)?;
                let class = class.ensure_supported().map_err(|_| Der::NOTSUPPORTED)?;
                properties.object_class = class.to_string();
            }
            (kind, value) if container_property::is_kept(kind) => {
                let (name, value) = (name_of_property(kind), container_property::kept(&value));
                properties.attributes.insert(name, value);
            }
            _ => {}
        }
    }
    Ok(properties)
}

/// Opens a container.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_open2(
    poh: daos_handle_t,
    cont: *const c_char,
    flags: u32,
    coh: *mut daos_handle_t,
    info: *mut daos_cont_info_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, label) = (handle::pool(poh)?, text_of(cont)?);
        let (place, info) = (required(coh)?, optional(info));
        let rights = match flags & BASE_MASK {
            READ_ONLY => Rights::READ,
            READ_WRITE | EXCLUSIVE => Rights::READ.union(Rights::WRITE),
            _ => return Err(Der::INVAL),
        };
        Ok(operation(move |context| async move {
            let container = Container::open(&context, &pool, &label, rights).await.map_err(der_of)?;
            if let Some(info) = info {
                info.set(describe(container.info()));
            }
            place.set(handle::issue_within(poh, false, Opened::Container(container))?);
            Ok(())
        }))
    })
}

/// Closes a container that no object is open in.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_close(coh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let container = handle::container(coh)?;
        Ok(operation(move |context| async move {
            let ending = handle::end(coh)?;
            if !handle::is_shared(coh)? {
                container.close(&context).await.map_err(der_of)?;
            }
            ending.done()
        }))
    })
}

/// Destroys a container.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_destroy2(
    poh: daos_handle_t,
    cont: *const c_char,
    force: c_int,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, label) = (handle::pool(poh)?, text_of(cont)?);
        Ok(operation(move |context| async move {
            Container::destroy(&context, &pool, &label, force != 0).await.map_err(der_of)
        }))
    })
}

/// Asks for the state of a container.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_query(
    coh: daos_handle_t,
    info: *mut daos_cont_info_t,
    cont_prop: *mut daos_prop_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, info) = (handle::container(coh)?, optional(info));
        let list = optional(cont_prop);
        Ok(operation(move |context| async move {
            let found = container.query(&context).await.map_err(der_of)?;
            if let Some(list) = list {
                let attributes = container.attributes(&context, Vec::new()).await.map_err(der_of)?;
                container_property::fill(list, &found, &attributes)?;
            }
            if let Some(info) = info {
                info.set(describe(&found));
            }
            Ok(())
        }))
    })
}

fn describe(info: &ContainerInfo) -> daos_cont_info_t {
    daos_cont_info_t {
        ci_uuid: *info.container.0.as_bytes(),
        ci_lsnapshot: info.snapshots.last().map_or(0, |epoch| epoch.0),
        ci_nhandles: info.handles,
        ci_nsnapshots: u32::try_from(info.snapshots.len()).unwrap_or(u32::MAX),
        ci_md_otime: 0,
        ci_md_mtime: 0,
    }
}

/// Reserves numbers for object ids.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_alloc_oids(
    coh: daos_handle_t,
    num_oids: u64,
    oid: *mut u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oid)?);
        if num_oids == 0 {
            return Err(Der::INVAL);
        }
        Ok(operation(move |context| async move {
            place.set(container.allocate_oids(&context, num_oids).await.map_err(der_of)?);
            Ok(())
        }))
    })
}

/// Takes a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_create_snap_opt(
    coh: daos_handle_t,
    epoch: *mut u64,
    _name: *mut c_char,
    opts: c_int,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(epoch)?);
        // A list of objects needs nothing to be made with the snapshot.
        if opts & !SNAPSHOT_AND_OBJECTS != 0 || opts & SNAPSHOT_ONLY == 0 {
            return Err(Der::INVAL);
        }
        Ok(operation(move |context| async move {
            place.set(container.create_snapshot(&context).await.map_err(der_of)?.0);
            Ok(())
        }))
    })
}

/// Takes a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_create_snap(
    coh: daos_handle_t,
    epoch: *mut u64,
    name: *mut c_char,
    ev: *mut daos_event_t,
) -> c_int {
    daos_cont_create_snap_opt(coh, epoch, name, SNAPSHOT_ONLY, ev)
}

/// Removes a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_destroy_snap(
    coh: daos_handle_t,
    epr: daos_epoch_range_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let container = handle::container(coh)?;
        if epr.epr_lo != epr.epr_hi || epr.epr_hi == 0 {
            return Err(Der::INVAL);
        }
        Ok(operation(move |context| async move {
            container.destroy_snapshot(&context, Epoch(epr.epr_hi)).await.map_err(der_of)
        }))
    })
}

/// Writes a container handle to memory.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_local2global(coh: daos_handle_t, glob: *mut d_iov_t) -> c_int {
    guarded(|| export(&handle::container(coh)?.to_bytes(), glob))
}

/// Makes a container handle of what another process wrote.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_global2local(
    poh: daos_handle_t,
    glob: d_iov_t,
    coh: *mut daos_handle_t,
) -> c_int {
    guarded(|| {
        let (pool, place) = (handle::pool(poh)?, required(coh)?);
        let container = Container::from_bytes(&import(&glob)?).map_err(der_of)?;
        if container.pool().id() != pool.id() {
            return Err(Der::INVAL);
        }
        let handle = handle::issue_within(poh, false, Opened::Container(container))?;
        place.set(handle::note_shared(handle)?);
        Ok(())
    })
}

/// Lists snapshots, oldest first: `*nr` is the room, then how many there are. Names aren't kept.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_list_snap(
    coh: daos_handle_t,
    nr: *mut c_int,
    epochs: *mut u64,
    _names: *mut *mut c_char,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    const END: u16 = 3;
    run(ev, || {
        let (container, count) = (handle::container(coh)?, required(nr)?);
        let (epochs, anchor) = (optional(epochs).map(|_| element_of(epochs)), optional(anchor));
        Ok(operation(move |context| async move {
            let all = container.snapshots(&context).await.map_err(der_of)?;
            let room = usize::try_from(count.get()).map_err(|_| Der::INVAL)?;
            if let Some(place) = epochs {
                for (index, epoch) in all.iter().take(room).enumerate() {
                    place(index).set(epoch.0);
                }
            }
            count.set(c_int::try_from(all.len()).map_err(|_| Der::OVERFLOW)?);
            if let Some(anchor) = anchor {
                anchor.change(|anchor| anchor.da_type = END);
            }
            Ok(())
        }))
    })
}

/// Places of an array's elements.
fn element_of<T>(first: *mut T) -> impl Fn(usize) -> ArgumentPtr<T> {
    move |index| element(first, index)
}

/// Engines aggregate by themselves; there is nothing to wait for.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_aggregate(coh: daos_handle_t, _epoch: u64, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        handle::container(coh)?;
        Ok(operation(|_| async { Ok(()) }))
    })
}

/// Nothing goes back to a snapshot, as in DAOS: always `-DER_NOSYS`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_rollback(_coh: daos_handle_t, _epoch: u64, _ev: *mut daos_event_t) -> c_int {
    code(Der::NOSYS)
}

/// Nobody is told of changes, as in DAOS: always `-DER_NOSYS`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_subscribe(
    _coh: daos_handle_t,
    _epoch: *mut u64,
    _ev: *mut daos_event_t,
) -> c_int {
    code(Der::NOSYS)
}
