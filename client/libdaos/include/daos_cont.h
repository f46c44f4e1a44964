/* SPDX-License-Identifier: Apache-2.0 */
/* Containers. */
#ifndef WEIR_DAOS_CONT_H
#define WEIR_DAOS_CONT_H

#include <daos_prop.h>
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

/* Asks for the state of a container. cont_prop must be NULL: -DER_NOSYS. */
int daos_cont_query(daos_handle_t coh, daos_cont_info_t *info, daos_prop_t *cont_prop, daos_event_t *ev);

/* Reserves num_oids numbers for the lo half of object ids; *oid is the first. */
int daos_cont_alloc_oids(daos_handle_t coh, daos_size_t num_oids, uint64_t *oid, daos_event_t *ev);

/* Takes a snapshot. DAOS_SNAP_OPT_OIT is not available: -DER_NOSYS. */
int daos_cont_create_snap_opt(daos_handle_t coh, daos_epoch_t *epoch, char *name, enum daos_snapshot_opts opts,
			      daos_event_t *ev);
int daos_cont_create_snap(daos_handle_t coh, daos_epoch_t *epoch, char *name, daos_event_t *ev);

/* Removes the snapshot at epr_hi, which epr_lo must equal. */
int daos_cont_destroy_snap(daos_handle_t coh, daos_epoch_range_t epr, daos_event_t *ev);

int daos_cont_local2global(daos_handle_t coh, d_iov_t *glob);
int daos_cont_global2local(daos_handle_t poh, d_iov_t glob, daos_handle_t *coh);

#ifdef __cplusplus
}
#endif

#endif
