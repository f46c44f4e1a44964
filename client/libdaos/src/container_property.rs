//! Properties of containers: what engines know of them, and what is kept for programs as hidden attributes.

use core::ffi::{c_char, c_int};
use std::collections::BTreeMap;

use serde_bytes::ByteBuf;
use weir_client::{ContainerInfo, ContainerType, ObjectClass};
use weir_proto::Der;

use crate::acl::{self, Entry, name_of_gid, name_of_uid};
use crate::attributes::name_of_property;
use crate::boundary::{ArgumentPtr, Outcome, der_of, elements, guarded, operation, required, run, text_of};
use crate::handle;
use crate::property::{self, Given, entries, set_given};
use crate::types::{daos_event_t, daos_handle_t, daos_prop_t};

/// Properties (`DAOS_PROP_CO_*`).
pub const LABEL: u32 = 4097;
pub const LAYOUT: u32 = 4098;
const LAYOUT_VERSION: u32 = 4099;
pub const REDUNDANCY_FACTOR: u32 = 4103;
const REDUNDANCY_LEVEL: u32 = 4104;
const ACL: u32 = 4106;
const OWNER: u32 = 4109;
const OWNER_GROUP: u32 = 4110;
const DEDUP_THRESHOLD: u32 = 4112;
const ROOTS: u32 = 4113;
const STATUS: u32 = 4114;
const ALLOCATED: u32 = 4115;
const CELL_SIZE: u32 = 4116;
const EC_DOMAIN: u32 = 4117;
const RP_DOMAIN: u32 = 4118;
const GLOBAL_VERSION: u32 = 4119;
const OBJECT_VERSION: u32 = 4121;
const PERFORMANCE_DOMAIN: u32 = 4122;
const FIRST: u32 = 4097;
const LAST: u32 = 4122;

/// Bytes of the roots of a middleware.
const ROOTS_LEN: usize = 64;

/// Who may do what in a container without a list of its own.
const DEFAULT_ACL: [&str; 2] = ["A::OWNER@:rwdtTaAo", "A:G:GROUP@:rwtT"];

/// Permissions to read and write the list itself, which an owner always has.
const OWN_LIST: u64 = (1 << 6) | (1 << 7);

/// What a property is in a container where nobody has set it.
const fn default_number(kind: u32) -> u64 {
    match kind {
        LAYOUT_VERSION | EC_DOMAIN => 1,
        REDUNDANCY_LEVEL => 2,
        DEDUP_THRESHOLD => 4096,
        CELL_SIZE => 65536,
        RP_DOMAIN => u32::MAX as u64,
        PERFORMANCE_DOMAIN => 255,
        _ => 0,
    }
}

/// Whether a program may set a property behind a container's creation.
const fn is_settable(kind: u32) -> bool {
    matches!(
        kind,
        ACL | OWNER | OWNER_GROUP | ROOTS | STATUS | LAYOUT | EC_DOMAIN | RP_DOMAIN | PERFORMANCE_DOMAIN
    )
}

/// Whether a property is kept as an attribute when a container is created with it.
pub const fn is_kept(kind: u32) -> bool {
    kind >= FIRST
        && kind <= LAST
        && !matches!(kind, LABEL | REDUNDANCY_FACTOR | ALLOCATED | GLOBAL_VERSION | OBJECT_VERSION)
}

/// A property as it is kept.
pub fn kept(value: &Given) -> ByteBuf {
    ByteBuf::from(match value {
        Given::Text(text) => text.as_bytes().to_vec(),
        Given::Number(number) => number.to_le_bytes().to_vec(),
        Given::Bytes(bytes) => bytes.clone(),
    })
}

fn default_acl() -> Result<Vec<u8>, Der> {
    let entries: Result<Vec<Entry>, Der> = DEFAULT_ACL.iter().map(|text| acl::parse(text)).collect();
    acl::list_bytes(&entries?)
}

/// The value of a property.
fn value(info: &ContainerInfo, attributes: &BTreeMap<String, ByteBuf>, kind: u32) -> Result<Given, Der> {
    let stored = attributes.get(&name_of_property(kind)).map(|bytes| bytes.to_vec());
    let text = |stored: Option<Vec<u8>>, other: &dyn Fn() -> String| match stored {
        Some(bytes) => String::from_utf8(bytes).map(Given::Text).map_err(|_| Der::MISC),
        None => Ok(Given::Text(other())),
    };
    let properties = &info.properties;
    match kind {
        LABEL => Ok(Given::Text(properties.label.clone())),
        OWNER => text(stored, &|| name_of_uid(properties.uid)),
        OWNER_GROUP => text(stored, &|| name_of_gid(properties.gid)),
        ACL => stored.map_or_else(default_acl, Ok).map(Given::Bytes),
        ROOTS => Ok(Given::Bytes(stored.unwrap_or_else(|| vec![0; ROOTS_LEN]))),
        LAYOUT if properties.kind == ContainerType::Posix => Ok(Given::Number(1)),
        REDUNDANCY_FACTOR => {
            let class: ObjectClass = properties.object_class.parse().map_err(|_| Der::MISC)?;
            Ok(Given::Number(class.survives().into()))
        }
        _ => match stored {
            Some(bytes) => {
                let number: [u8; 8] = bytes.try_into().map_err(|_| Der::MISC)?;
                Ok(Given::Number(u64::from_le_bytes(number)))
            }
            None => Ok(Given::Number(default_number(kind))),
        },
    }
}

/// Fills in the values of a program's list; one without entries gets all properties.
pub fn fill(
    list: ArgumentPtr<daos_prop_t>,
    info: &ContainerInfo,
    attributes: &BTreeMap<String, ByteBuf>,
) -> Outcome {
    if list.get_entries().is_none() {
        let kinds: Vec<u32> = (FIRST..=LAST).collect();
        property::give_entries(list, &kinds)?;
    }
    for entry in entries(list.pointer()) {
        let kind = property::kind_of(entry);
        if (FIRST..=LAST).contains(&kind) {
            set_given(entry, &value(info, attributes, kind)?)?;
        }
    }
    Ok(())
}

/// Sets properties.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_set_prop(
    coh: daos_handle_t,
    prop: *mut daos_prop_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let container = handle::changed_container(coh)?;
        required(prop)?;
        let mut changes = Vec::new();
        for (kind, value) in property::given(prop)? {
            if !is_settable(kind) {
                return Err(Der::NO_PERM);
            }
            changes.push((name_of_property(kind), Some(kept(&value))));
        }
        if changes.is_empty() {
            return Err(Der::INVAL);
        }
        Ok(operation(move |context| async move {
            container.set_attributes(&context, changes).await.map_err(der_of)
        }))
    })
}

/// Says that a container is healthy.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_status_clear(coh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let container = handle::changed_container(coh)?;
        let change = vec![(name_of_property(STATUS), None)];
        Ok(operation(move |context| async move {
            container.set_attributes(&context, change).await.map_err(der_of)
        }))
    })
}

/// Makes a list with access control list, owner and group of a container, which the program frees.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_get_acl(
    coh: daos_handle_t,
    acl_prop: *mut *mut daos_prop_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(acl_prop)?);
        Ok(operation(move |context| async move {
            let info = container.query(&context).await.map_err(der_of)?;
            let attributes = container.attributes(&context, Vec::new()).await.map_err(der_of)?;
            let made = property::with_kinds(&[ACL, OWNER, OWNER_GROUP])?;
            fill(required(made)?, &info, &attributes)?;
            place.set(made);
            Ok(())
        }))
    })
}

/// Changes the access control list of a container.
fn change_acl(
    coh: daos_handle_t,
    ev: *mut daos_event_t,
    change: impl FnOnce(Vec<Entry>) -> Result<Vec<Entry>, Der> + 'static,
) -> c_int {
    run(ev, || {
        let container = handle::changed_container(coh)?;
        Ok(operation(move |context| async move {
            let name = name_of_property(ACL);
            let stored = container.attributes(&context, vec![name.clone()]).await.map_err(der_of)?;
            let before = match stored.get(&name) {
                Some(bytes) => bytes.to_vec(),
                None => default_acl()?,
            };
            let after = change(acl::from_bytes(&before)?)?;
            acl::check(&after)?;
            let value = ByteBuf::from(acl::list_bytes(&after)?);
            container.set_attributes(&context, vec![(name, Some(value))]).await.map_err(der_of)
        }))
    })
}

/// Sets the whole list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_overwrite_acl(
    coh: daos_handle_t,
    acl: *mut core::ffi::c_void,
    ev: *mut daos_event_t,
) -> c_int {
    match acl::read(acl) {
        Ok(new) => change_acl(coh, ev, move |_| Ok(new)),
        Err(der) => crate::boundary::code(der),
    }
}

/// Puts entries into the list, in the place of those of their principals.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_update_acl(
    coh: daos_handle_t,
    acl: *mut core::ffi::c_void,
    ev: *mut daos_event_t,
) -> c_int {
    match acl::read(acl) {
        Ok(new) => change_acl(coh, ev, move |mut entries| {
            for entry in new {
                acl::put(&mut entries, entry);
            }
            Ok(entries)
        }),
        Err(der) => crate::boundary::code(der),
    }
}

/// Takes the entry of a principal out of the list.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_delete_acl(
    coh: daos_handle_t,
    kind: c_int,
    name: *mut c_char,
    ev: *mut daos_event_t,
) -> c_int {
    match acl::principal(kind, name.cast_const()) {
        Ok((kind, name)) => change_acl(coh, ev, move |mut entries| {
            acl::take(&mut entries, kind, &name)?;
            Ok(entries)
        }),
        Err(der) => crate::boundary::code(der),
    }
}

/// Sets owner and group of a container, of which NULL leaves one as it is. Files keep theirs.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_set_owner(
    coh: daos_handle_t,
    user: *mut c_char,
    group: *mut c_char,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let container = handle::changed_container(coh)?;
        let mut changes = Vec::new();
        for (kind, text) in [(OWNER, user), (OWNER_GROUP, group)] {
            if !text.is_null() {
                let name = text_of(text)?;
                if !acl::is_valid_name(&name) {
                    return Err(Der::INVAL);
                }
                changes.push((name_of_property(kind), Some(kept(&Given::Text(name)))));
            }
        }
        if changes.is_empty() {
            return Err(Der::INVAL);
        }
        Ok(operation(move |context| async move {
            container.set_attributes(&context, changes).await.map_err(der_of)
        }))
    })
}

/// As [`daos_cont_set_owner`]: whether there are such a user and group is never looked up.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_set_owner_no_check(
    coh: daos_handle_t,
    user: *mut c_char,
    group: *mut c_char,
    ev: *mut daos_event_t,
) -> c_int {
    daos_cont_set_owner(coh, user, group, ev)
}

/// The permissions that entries give to a user with groups: the first that applies of owner, user, all groups together, everyone.
fn granted(entries: &[Entry], (owner, group): (&str, &str), user: &str, groups: &[String]) -> u64 {
    let of = |kind: u8, name: &str| {
        entries.iter().find(|entry| entry.is_of(kind, name)).map(|entry| entry.permissions[0])
    };
    if user == owner {
        return of(acl::OWNER, "").unwrap_or_default() | OWN_LIST;
    }
    if let Some(found) = of(acl::USER, user) {
        return found;
    }
    let owners = groups.iter().any(|other| other == group).then(|| of(acl::OWNER_GROUP, "")).flatten();
    let named = groups.iter().filter_map(|other| of(acl::GROUP, other));
    match named.chain(owners).reduce(|all, bits| all | bits) {
        Some(found) => found,
        None => of(acl::EVERYONE, "").unwrap_or_default(),
    }
}

/// The permissions that the properties of a container give to a user.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_get_perms(
    cont_prop: *mut daos_prop_t,
    uid: libc::uid_t,
    gids: *mut libc::gid_t,
    nr_gids: usize,
    perms: *mut u64,
) -> c_int {
    permissions(cont_prop, [ACL, OWNER, OWNER_GROUP], uid, (gids, nr_gids), perms)
}

/// The permissions that the properties of a pool give to a user.
#[unsafe(no_mangle)]
pub extern "C" fn daos_pool_get_perms(
    pool_prop: *mut daos_prop_t,
    uid: libc::uid_t,
    gids: *mut libc::gid_t,
    nr_gids: usize,
    perms: *mut u64,
) -> c_int {
    permissions(pool_prop, [2, 6, 7], uid, (gids, nr_gids), perms)
}

fn permissions(
    prop: *mut daos_prop_t,
    [list, owner, group]: [u32; 3],
    uid: u32,
    (gids, count): (*mut u32, usize),
    perms: *mut u64,
) -> c_int {
    guarded(|| {
        let (place, gids) = (required(perms)?, elements(gids.cast_const(), count)?);
        required(prop)?;
        let (mut entries, mut names) = (None, [None, None]);
        for (kind, value) in property::given(prop)? {
            match value {
                Given::Bytes(bytes) if kind == list => entries = Some(acl::from_bytes(&bytes)?),
                Given::Text(text) if kind == owner => names[0] = Some(text),
                Given::Text(text) if kind == group => names[1] = Some(text),
                _ => {}
            }
        }
        let (Some(entries), [Some(owner), Some(group)]) = (entries, names) else { return Err(Der::INVAL) };
        let groups: Vec<String> = gids.into_iter().map(name_of_gid).collect();
        place.set(granted(&entries, (&owner, &group), &name_of_uid(uid), &groups));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_that_applies_counts_and_groups_count_together() {
        let texts = ["A::OWNER@:r", "A::ann@:w", "A:G:GROUP@:t", "A:G:team@:a", "A::EVERYONE@:d"];
        let entries: Vec<Entry> = texts.iter().map(|text| acl::parse(text).expect("valid")).collect();
        let of = |user: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|name| (*name).to_owned()).collect();
            granted(&entries, ("boss@", "staff@"), user, &groups)
        };
        assert_eq!(of("boss@", &["team@"]), 1 | OWN_LIST);
        assert_eq!(of("ann@", &["team@"]), 2);
        assert_eq!(of("bob@", &["staff@", "team@"]), 16 | 64);
        assert_eq!(of("bob@", &["other@"]), 8);
    }
}
