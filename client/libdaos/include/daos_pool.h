/* SPDX-License-Identifier: Apache-2.0 */
/* Pools. */
#ifndef WEIR_DAOS_POOL_H
#define WEIR_DAOS_POOL_H

#include <sys/types.h>

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

/* Kind of a target's storage. */
typedef enum {
	DAOS_TP_UNKNOWN = 0,
	DAOS_TP_HDD = 1,
	DAOS_TP_SSD = 2,
	DAOS_TP_PM = 3,
	DAOS_TP_VM = 4
} daos_target_type_t;

/* Speed of a target; nothing is told. */
typedef struct {
	int foo;
} daos_target_perf_t;

/* State of a target. */
typedef struct {
	daos_target_type_t ta_type;
	daos_target_state_t ta_state;
	daos_target_perf_t ta_perf;
	struct daos_space ta_space;
} daos_target_info_t;

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

/* How a filter compares what a container has with what it says. */
enum daos_pool_cont_filter_func {
	PCF_FUNC_EQ = 0,
	PCF_FUNC_NE = 1,
	PCF_FUNC_LT = 2,
	PCF_FUNC_LE = 3,
	PCF_FUNC_GT = 4,
	PCF_FUNC_GE = 5,
	PCF_FUNC_MAX = 6
};

/* What of a container a filter looks at. */
enum daos_pool_cont_filter_key {
	PCF_KEY_MD_OTIME = 0,
	PCF_KEY_MD_MTIME = 1,
	PCF_KEY_NUM_SNAPSHOTS = 2,
	PCF_KEY_NUM_HANDLES = 3,
	PCF_KEY_MAX = 4
};

/* Whether all parts of a filter must be met, or one. */
enum daos_pool_cont_filter_combine {
	PCF_COMBINE_LOGICAL_AND = 0,
	PCF_COMBINE_LOGICAL_OR = 1
};

/* A part of a filter. */
typedef struct daos_pool_cont_filter_part {
	uint32_t pcfp_func;
	uint32_t pcfp_key;
	union {
		uint64_t pcfp_val64;
		d_string_t pcfp_valstr;
	};
} daos_pool_cont_filter_part_t;

/* Which containers to list. */
typedef struct daos_pool_cont_filter {
	uint32_t pcf_combine_func;
	uint32_t pcf_nparts;
	struct daos_pool_cont_filter_part **pcf_parts;
} daos_pool_cont_filter_t;

/* Sign of a comparison. */
static inline const char *
daos_pool_cont_filter_func_str(enum daos_pool_cont_filter_func func)
{
	static const char *const signs[] = {"==", "!=", "<", "<=", ">", ">="};

	return (unsigned int)func < PCF_FUNC_MAX ? signs[func] : "UNKNOWN";
}

/* Name of what is compared. */
static inline const char *
daos_pool_cont_filter_key_str(enum daos_pool_cont_filter_key key)
{
	static const char *const names[] = {"md_open_time", "md_modify_time", "num_snapshots", "num_handles"};

	return (unsigned int)key < PCF_KEY_MAX ? names[key] : "UNKNOWN";
}

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

/* The permissions that a list of properties with ACL, owner and group gives to a user. */
int daos_pool_get_perms(daos_prop_t *pool_prop, uid_t uid, gid_t *gids, size_t nr_gids, uint64_t *perms);

/* Writes a handle to memory for another process; with iov_buf NULL only its size is returned in iov_buf_len. */
int daos_pool_local2global(daos_handle_t poh, d_iov_t *glob);

/* Makes a handle of what another process wrote. */
int daos_pool_global2local(d_iov_t glob, daos_handle_t *poh);

#ifdef __cplusplus
}
#endif

#endif
