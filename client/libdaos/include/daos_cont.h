/* SPDX-License-Identifier: Apache-2.0 */
/* Containers. */
#ifndef WEIR_DAOS_CONT_H
#define WEIR_DAOS_CONT_H

#include <sys/types.h>

#include <daos_prop.h>
#include <daos_security.h>
#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a container is opened. */
#define DAOS_COO_RO (1U << 0)
#define DAOS_COO_RW (1U << 1)
#define DAOS_COO_EX (1U << 2)
#define DAOS_COO_FORCE (1U << 3)
#define DAOS_COO_RO_MDSTATS (1U << 4)
#define DAOS_COO_EVICT (1U << 5)
#define DAOS_COO_EVICT_ALL (1U << 6)
#define DAOS_COO_NEW_LAYOUT (1U << 7)
#define DAOS_COO_NBITS 8
#define DAOS_COO_MASK ((1U << DAOS_COO_NBITS) - 1)
#define DAOS_COO_IO_BASE_MASK 0x7

#define DAOS_CONT_HINT_MAX_LEN 128
#define DAOS_SNAPSHOT_MAX_LEN 128

enum daos_snapshot_opts {
	DAOS_SNAP_OPT_CR = 1 << 0,
	DAOS_SNAP_OPT_OIT = 1 << 1
};

/* State of a container. */
typedef struct {
	uuid_t ci_uuid;
	/* Newest snapshot, 0 without any. */
	uint64_t ci_lsnapshot;
	uint32_t ci_nhandles;
	uint32_t ci_nsnapshots;
	/* Times of the last open and of the last change, as epochs; 0 when not known. */
	uint64_t ci_md_otime;
	uint64_t ci_md_mtime;
} daos_cont_info_t;

/* Creates a container. Its label may be among the properties; without one it is labelled by its UUID. */
int daos_cont_create2(daos_handle_t poh, uuid_t *uuid, daos_prop_t *cont_prop, daos_event_t *ev);
#define daos_cont_create daos_cont_create2

int daos_cont_create_with_label(daos_handle_t poh, const char *label, daos_prop_t *cont_prop, uuid_t *uuid,
				daos_event_t *ev);

/* Opens a container by label or UUID text. */
int daos_cont_open2(daos_handle_t poh, const char *cont, unsigned int flags, daos_handle_t *coh,
		    daos_cont_info_t *info, daos_event_t *ev);
#define daos_cont_open daos_cont_open2

/* Closes a container: -DER_BUSY with open objects. */
int daos_cont_close(daos_handle_t coh, daos_event_t *ev);

/* Destroys a container: -DER_BUSY with open handles, unless force; -DER_NONEXIST when there is none. */
int daos_cont_destroy2(daos_handle_t poh, const char *cont, int force, daos_event_t *ev);
#define daos_cont_destroy daos_cont_destroy2

/* Asks for state and properties of a container. cont_prop, which may be NULL, has the types that are asked for, or no entries. */
int daos_cont_query(daos_handle_t coh, daos_cont_info_t *info, daos_prop_t *cont_prop, daos_event_t *ev);

/* Reserves num_oids numbers for the lo half of object ids; *oid is the first. */
int daos_cont_alloc_oids(daos_handle_t coh, daos_size_t num_oids, uint64_t *oid, daos_event_t *ev);

/* Takes a snapshot. With DAOS_SNAP_OPT_OIT its objects can be listed, as those of every snapshot can. Names are not kept. */
int daos_cont_create_snap_opt(daos_handle_t coh, daos_epoch_t *epoch, char *name, enum daos_snapshot_opts opts,
			      daos_event_t *ev);
int daos_cont_create_snap(daos_handle_t coh, daos_epoch_t *epoch, char *name, daos_event_t *ev);

/* Removes the snapshot at epr_hi, which epr_lo must equal. */
int daos_cont_destroy_snap(daos_handle_t coh, daos_epoch_range_t epr, daos_event_t *ev);

/* Snapshots, oldest first: *nr is the room, then how many there are. */
int daos_cont_list_snap(daos_handle_t coh, int *nr, daos_epoch_t *epochs, char **names, daos_anchor_t *anchor,
			daos_event_t *ev);
/* A list of the objects of a snapshot needs nothing to be made or removed. */
int daos_cont_snap_oit_create(daos_handle_t coh, daos_epoch_t epoch, char *name, daos_event_t *ev);
int daos_cont_snap_oit_destroy(daos_handle_t coh, daos_handle_t oh, daos_event_t *ev);

/* Engines aggregate by themselves: nothing is done. */
int daos_cont_aggregate(daos_handle_t coh, daos_epoch_t epoch, daos_event_t *ev);
/* Not available: -DER_NOSYS. */
int daos_cont_rollback(daos_handle_t coh, daos_epoch_t epoch, daos_event_t *ev);
int daos_cont_subscribe(daos_handle_t coh, daos_epoch_t *epoch, daos_event_t *ev);

/* Sets properties: -DER_NO_PERM for those that stay as they were made. */
int daos_cont_set_prop(daos_handle_t coh, daos_prop_t *prop, daos_event_t *ev);
int daos_cont_status_clear(daos_handle_t coh, daos_event_t *ev);

/* Access control list, owner and group. They are kept for programs; engines don't look at them. */
int daos_cont_get_acl(daos_handle_t coh, daos_prop_t **acl_prop, daos_event_t *ev);
int daos_cont_overwrite_acl(daos_handle_t coh, struct daos_acl *acl, daos_event_t *ev);
int daos_cont_update_acl(daos_handle_t coh, struct daos_acl *acl, daos_event_t *ev);
/* type is an enum daos_acl_principal_type of daos_security.h. */
int daos_cont_delete_acl(daos_handle_t coh, enum daos_acl_principal_type type, d_string_t name, daos_event_t *ev);
int daos_cont_set_owner(daos_handle_t coh, d_string_t user, d_string_t group, daos_event_t *ev);
int daos_cont_set_owner_no_check(daos_handle_t coh, d_string_t user, d_string_t group, daos_event_t *ev);
/* The permissions that a list of properties with ACL, owner and group gives to a user. */
int daos_cont_get_perms(daos_prop_t *cont_prop, uid_t uid, gid_t *gids, size_t nr_gids, uint64_t *perms);

/*
 * Attributes of the program's own. A read tells sizes, and values where there are buffers: -DER_NONEXIST for a missing one,
 * -DER_TRUNC for one that doesn't fit. A list has a NUL behind each name; *size is the room, then what all take.
 */
int daos_cont_set_attr(daos_handle_t coh, int n, char const *const names[], void const *const values[],
		       size_t const sizes[], daos_event_t *ev);
int daos_cont_get_attr(daos_handle_t coh, int n, char const *const names[], void *const buffers[], size_t sizes[],
		       daos_event_t *ev);
int daos_cont_del_attr(daos_handle_t coh, int n, char const *const names[], daos_event_t *ev);
int daos_cont_list_attr(daos_handle_t coh, char *buffer, size_t *size, daos_event_t *ev);

int daos_cont_local2global(daos_handle_t coh, d_iov_t *glob);
int daos_cont_global2local(daos_handle_t poh, d_iov_t glob, daos_handle_t *coh);

#ifdef __cplusplus
}
#endif

#endif
