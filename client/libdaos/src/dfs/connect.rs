//! Creating containers with file systems, and mounting by names.

use core::ffi::{c_char, c_int, c_void};

use weir_client::{
    Container, ContainerInfo, ContainerProperties, ContainerType, Context, Epoch, Pool, Rights,
};
use weir_dfs::{Dfs, SetAttributes};
use weir_proto::Der;

use super::mount::{issue, mount};
use super::{Mounted, attributes, class_of, global, mounted};
use crate::boundary::{ArgumentPtr, optional, required, text_of};
use crate::container::{new_id, properties_of};
use crate::container_property;
use crate::errno::{Checked, Errno, checked, operation, run, wait};
use crate::handle::{self, Opened};
use crate::library;
use crate::pool::{check_system, rights_of_flags};
use crate::property::{self, Given};
use crate::types::{daos_event_t, daos_handle_t, dfs_attr_t};

/// Starts the library, as `daos_init`.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_init() -> c_int {
    crate::errors::daos_der2errno(library::daos_init())
}

/// Undoes one start.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_fini() -> c_int {
    crate::errors::daos_der2errno(library::daos_fini())
}

/// What a container with a file system is made with.
pub fn properties(pool: &Pool, attr: *mut dfs_attr_t) -> Checked<ContainerProperties> {
    let attr = optional(attr).map_or_else(dfs_attr_t::default, ArgumentPtr::get);
    let mut properties = properties_of(pool, attr.da_props)?;
    properties.kind = ContainerType::Posix;
    if attr.da_chunk_size > 0 {
        properties.chunk_size = attr.da_chunk_size;
    }
    let class = if attr.da_file_oclass_id > 0 { attr.da_file_oclass_id } else { attr.da_oclass_id };
    if let Some(class) = class_of(class)? {
        let is_too_weak = |(kind, value): (u32, Given)| match value {
            Given::Number(factor) => {
                kind == container_property::REDUNDANCY_FACTOR && factor > class.survives().into()
            }
            _ => false,
        };
        if property::given(attr.da_props)?.into_iter().any(is_too_weak) {
            return Err(Errno(libc::EINVAL));
        }
        properties.object_class = class.to_string();
    }
    // Directories have the one class that there is for them; a wrong number is told all the same.
    class_of(attr.da_dir_oclass_id)?;
    Ok(properties)
}

/// Creates a container with a file system.
pub async fn create(
    context: &Context,
    pool: &Pool,
    mut properties: ContainerProperties,
) -> Checked<ContainerInfo> {
    let id = new_id(context);
    if properties.label.is_empty() {
        // A label can't have the form of a UUID, so it is set apart by a letter.
        properties.label = format!("c-{}", id.0);
    }
    let info = Container::create_with_id(context, pool, id, properties, true).await?;
    let whole = Rights::READ.union(Rights::WRITE);
    let container = Container::open(context, pool, &id.0.to_string(), whole).await?;
    let formatted = Dfs::format(context, &container).await;
    container.close(context).await?;
    formatted?;
    Ok(info)
}

/// Creates a container with a file system, and opens and mounts it where `coh` and `dfs` aren't NULL.
fn create_and_mount(
    poh: daos_handle_t,
    label: Option<String>,
    attr: *mut dfs_attr_t,
    uuid: *mut [u8; 16],
    (coh, dfs): (*mut daos_handle_t, *mut *mut c_void),
) -> Checked<()> {
    let pool = handle::pool(poh)?;
    let mut properties = properties(&pool, attr)?;
    if let Some(label) = label {
        properties.label = label;
    }
    let (uuid, coh, dfs) = (optional(uuid), optional(coh), optional(dfs));
    if dfs.is_some() && coh.is_none() {
        return Err(Errno(libc::EINVAL));
    }
    let whole = Rights::READ.union(Rights::WRITE);
    let (id, container) = wait(async |context| {
        let id = create(context, &pool, properties).await?.container;
        let opened = match coh {
            Some(_) => Some(Container::open(context, &pool, &id.0.to_string(), whole).await?),
            None => None,
        };
        Ok((id, opened))
    })?;
    if let Some(uuid) = uuid {
        uuid.set(*id.0.as_bytes());
    }
    if let (Some(coh), Some(container)) = (coh, container) {
        let handle = handle::issue_within(poh, false, Opened::Container(container))?;
        coh.set(handle);
        if let Some(dfs) = dfs {
            dfs.set(mount((poh, handle), libc::O_RDWR, None)?);
        }
    }
    Ok(())
}

/// Creates a container with a file system, labelled by its properties or by its UUID.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_cont_create(
    poh: daos_handle_t,
    uuid: *mut [u8; 16],
    attr: *mut dfs_attr_t,
    coh: *mut daos_handle_t,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| {
        required(uuid)?;
        create_and_mount(poh, None, attr, uuid, (coh, dfs))
    })
}

/// Creates a container with a file system and a label.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_cont_create_with_label(
    poh: daos_handle_t,
    label: *const c_char,
    attr: *mut dfs_attr_t,
    uuid: *mut [u8; 16],
    coh: *mut daos_handle_t,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| create_and_mount(poh, Some(text_of(label)?), attr, uuid, (coh, dfs)))
}

/// Sets owner and group of a file system's root.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_cont_set_owner(
    coh: daos_handle_t,
    _user: *mut c_char,
    uid: libc::uid_t,
    _group: *mut c_char,
    gid: libc::gid_t,
) -> c_int {
    checked(|| {
        let container = handle::container(coh)?;
        let change: SetAttributes = attributes::owners(uid, gid);
        wait(async |context| {
            let fs = Dfs::mount(context, &container).await?;
            fs.set_attributes(context, fs.root(), &change).await?;
            Ok(())
        })
    })
}

/// Connects to a pool, opens a container, which is created with `O_CREAT` if it isn't there, and mounts it.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_connect(
    pool: *const c_char,
    sys: *const c_char,
    cont: *const c_char,
    flags: c_int,
    attr: *mut dfs_attr_t,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let place = required(dfs)?;
        place.set(connect((pool, sys, cont), flags, attr, None)?);
        Ok(())
    })
}

/// As [`dfs_connect`], to read a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_connect_snap(
    pool: *const c_char,
    sys: *const c_char,
    cont: *const c_char,
    flags: c_int,
    epoch: u64,
    _name: *const c_char,
    dfs: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let place = required(dfs)?;
        if epoch == 0 || flags & (libc::O_ACCMODE | libc::O_CREAT) != libc::O_RDONLY {
            return Err(Errno(libc::EINVAL));
        }
        place.set(connect((pool, sys, cont), flags, core::ptr::null_mut(), Some(Epoch(epoch)))?);
        Ok(())
    })
}

/// Pool, system and container, as a program names them.
type Names = (*const c_char, *const c_char, *const c_char);

/// As [`dfs_connect`].
pub fn connect(
    (pool, sys, cont): Names,
    flags: c_int,
    attr: *mut dfs_attr_t,
    snapshot: Option<Epoch>,
) -> Checked<*mut c_void> {
    let (pool, cont) = (text_of(pool)?, text_of(cont)?);
    check_system(sys)?;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let rights = if writes { Rights::READ.union(Rights::WRITE) } else { Rights::READ };
    let creates = flags & libc::O_CREAT != 0;
    let (pool, container, fs) = wait(async |context| {
        let pool_rights = rights_of_flags(if writes || creates { 2 } else { 1 })?;
        let pool = Pool::connect(context, &pool, pool_rights).await?;
        let opened = async {
            let container = match Container::open(context, &pool, &cont, rights).await {
                Err(error) if creates && error.is(Der::NONEXIST) => {
                    let properties = ContainerProperties { label: cont.clone(), ..properties(&pool, attr)? };
                    match create(context, &pool, properties).await {
                        Ok(_) | Err(Errno(libc::EEXIST)) => {}
                        Err(error) => return Err(error),
                    }
                    Container::open(context, &pool, &cont, rights).await?
                }
                opened => opened?,
            };
            let fs = match snapshot {
                None => Dfs::mount(context, &container).await,
                Some(epoch) => Dfs::mount_snapshot(context, &container, epoch).await,
            };
            match fs {
                Ok(fs) => Ok((container, fs)),
                Err(error) => {
                    drop(container.close(context).await);
                    Err(error.into())
                }
            }
        };
        match opened.await {
            Ok((container, fs)) => Ok((pool, container, fs)),
            Err(error) => {
                drop(pool.disconnect(context).await);
                Err(error)
            }
        }
    })?;
    let poh = handle::issue(Opened::Pool(pool))?;
    let coh = handle::issue_within(poh, false, Opened::Container(container))?;
    issue(Mounted::new(fs, flags, (poh, coh), true))
}

/// Ends what `dfs_connect` or `dfs_global2local_all` made; what is open in it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_disconnect(dfs: *mut c_void) -> c_int {
    checked(|| {
        let mounted = mounted(dfs)?;
        if !mounted.is_connected {
            return Err(Errno(libc::EINVAL));
        }
        global::end_with_handles(&mounted)
    })
}

/// Destroys a container by names.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_destroy(
    pool: *const c_char,
    sys: *const c_char,
    cont: *const c_char,
    force: c_int,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (pool, cont) = (text_of(pool)?, text_of(cont)?);
        check_system(sys)?;
        let rights = rights_of_flags(2)?;
        Ok(operation(move |context| async move {
            let pool = Pool::connect(&context, &pool, rights).await?;
            let destroyed = Container::destroy(&context, &pool, &cont, force != 0).await;
            pool.disconnect(&context).await?;
            Ok(destroyed?)
        }))
    })
}
