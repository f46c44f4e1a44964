/* SPDX-License-Identifier: Apache-2.0 */
/* Pools. */
#ifndef WEIR_DAOS_POOL_H
#define WEIR_DAOS_POOL_H

#include <daos_prop.h>
#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	DAOS_MEDIA_SCM = 0,
	DAOS_MEDIA_NVME = 1,
	DAOS_MEDIA_MAX = 2
};

/* Bytes by kind of media. */
struct daos_space {
	uint64_t s_total[DAOS_MEDIA_MAX];
	uint64_t s_free[DAOS_MEDIA_MAX];
};

/* Space of a pool. */
struct daos_pool_space {
	struct daos_space ps_space;
	uint64_t ps_free_min[DAOS_MEDIA_MAX];
	uint64_t ps_free_max[DAOS_MEDIA_MAX];
	uint64_t ps_free_mean[DAOS_MEDIA_MAX];
	uint32_t ps_ntargets;
	uint32_t ps_padding;
};

/* Most parts of a filter of containers. */
#define DAOS_POOL_CONT_FILTER_MAX_NPARTS 8

/* The pool has less redundancy than it was made with. */
#define DAOS_RSF_DEGRADED (1 << 0)

/* State of a target. */
typedef enum {
	DAOS_TS_UNKNOWN = 0,
	DAOS_TS_DOWN_OUT = 1,
	DAOS_TS_DOWN = 2,
	DAOS_TS_UP = 3,
	DAOS_TS_UP_IN = 4,
	DAOS_TS_NEW = 5,
	DAOS_TS_DRAIN = 6
} daos_target_state_t;

enum daos_rebuild_state_t {
	DRS_IN_PROGRESS = 0,
	DRS_NOT_STARTED = 1,
	DRS_COMPLETED = 2
};

struct daos_rebuild_status {
	uint32_t rs_version;
	uint32_t rs_seconds;
	int32_t rs_errno;
	union {
		int32_t rs_state;
		int32_t rs_done;
	};
	union {
		int32_t rs_padding32;
		struct {
			/* Newest layout of objects that all engines have. */
			uint16_t rs_max_supported_layout_ver;
			uint16_t rs_flags;
		};
	};
	int32_t rs_fail_rank;
	uint64_t rs_toberb_obj_nr;
	uint64_t rs_obj_nr;
	uint64_t rs_rec_nr;
	uint64_t rs_size;
};

/* What a pool query asks for: bits of pi_bits. */
#define DPI_SPACE (1 << 0)
#define DPI_REBUILD_STATUS (1 << 1)
#define DPI_ENGINES_ENABLED (1 << 2)
#define DPI_ENGINES_DISABLED (1 << 3)
#define DPI_ENGINES_DEAD (1 << 4)
#define DPI_REBUILD_MAX_LAYOUT_VER (1 << 5)
#define DPI_SELF_HEAL_POLICY (1 << 6)
#define DPI_ALL -1

/* State of a pool. */
typedef struct {
	uuid_t pi_uuid;
	uint32_t pi_ntargets;
	uint32_t pi_nnodes;
	uint32_t pi_ndisabled;
	uint32_t pi_map_ver;
	uint32_t pi_leader;
	uint64_t pi_bits;
	struct daos_pool_space pi_space;
	struct daos_rebuild_status pi_rebuild_st;
} daos_pool_info_t;

/* A container of a pool. */
struct daos_pool_cont_info {
	uuid_t pci_uuid;
	char pci_label[DAOS_PROP_LABEL_MAX_LEN + 1];
};

/* Connects to a pool by label or UUID text. sys names the system, NULL for the only one. */
int daos_pool_connect2(const char *pool, const char *sys, unsigned int flags, daos_handle_t *poh,
		       daos_pool_info_t *info, daos_event_t *ev);
#define daos_pool_connect daos_pool_connect2

/* Disconnects: -DER_BUSY with open containers. */
int daos_pool_disconnect(daos_handle_t poh, daos_event_t *ev);

/* Asks for the state of a pool. ranks and pool_prop must be NULL: -DER_NOSYS. */
int daos_pool_query(daos_handle_t poh, d_rank_list_t **ranks, daos_pool_info_t *info, daos_prop_t *pool_prop,
		    daos_event_t *ev);

/* Lists containers: *ncont is the room in conts, then their number. conts NULL asks for the number only. */
int daos_pool_list_cont(daos_handle_t poh, daos_size_t *ncont, struct daos_pool_cont_info *conts,
			daos_event_t *ev);

/* Writes a handle to memory for another process; with iov_buf NULL only its size is returned in iov_buf_len. */
int daos_pool_local2global(daos_handle_t poh, d_iov_t *glob);

/* Makes a handle of what another process wrote. */
int daos_pool_global2local(d_iov_t glob, daos_handle_t *poh);

#ifdef __cplusplus
}
#endif

#endif
