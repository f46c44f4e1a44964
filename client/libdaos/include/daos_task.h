/* SPDX-License-Identifier: Apache-2.0 */
/* Operations as tasks. Those whose arguments are below can be tasks; others are -DER_NOSYS. */
#ifndef WEIR_DAOS_TASK_H
#define WEIR_DAOS_TASK_H

#include <daos.h>
#include <daos/tse.h>

/* What a task does. */
typedef enum {
	DAOS_OPC_INVALID = -1,
	DAOS_OPC_MGMT_LIST_POOLS = 2,
	DAOS_OPC_SET_PARAMS = 3,
	DAOS_OPC_MGMT_GET_BS_STATE = 4,
	DAOS_OPC_POOL_CONNECT = 5,
	DAOS_OPC_POOL_DISCONNECT = 6,
	DAOS_OPC_POOL_EXCLUDE = 7,
	DAOS_OPC_POOL_EXCLUDE_OUT = 8,
	DAOS_OPC_POOL_ADD = 9,
	DAOS_OPC_POOL_QUERY = 10,
	DAOS_OPC_POOL_QUERY_INFO = 11,
	DAOS_OPC_POOL_LIST_ATTR = 12,
	DAOS_OPC_POOL_GET_ATTR = 13,
	DAOS_OPC_POOL_SET_ATTR = 14,
	DAOS_OPC_POOL_DEL_ATTR = 15,
	DAOS_OPC_POOL_STOP_SVC = 16,
	DAOS_OPC_POOL_LIST_CONT = 17,
	DAOS_OPC_CONT_CREATE = 18,
	DAOS_OPC_CONT_OPEN = 19,
	DAOS_OPC_CONT_CLOSE = 20,
	DAOS_OPC_CONT_DESTROY = 21,
	DAOS_OPC_CONT_QUERY = 22,
	DAOS_OPC_CONT_SET_PROP = 23,
	DAOS_OPC_CONT_UPDATE_ACL = 24,
	DAOS_OPC_CONT_DELETE_ACL = 25,
	DAOS_OPC_CONT_AGGREGATE = 26,
	DAOS_OPC_CONT_ROLLBACK = 27,
	DAOS_OPC_CONT_SUBSCRIBE = 28,
	DAOS_OPC_CONT_LIST_ATTR = 29,
	DAOS_OPC_CONT_GET_ATTR = 30,
	DAOS_OPC_CONT_SET_ATTR = 31,
	DAOS_OPC_CONT_DEL_ATTR = 32,
	DAOS_OPC_CONT_ALLOC_OIDS = 33,
	DAOS_OPC_CONT_LIST_SNAP = 34,
	DAOS_OPC_CONT_CREATE_SNAP = 35,
	DAOS_OPC_CONT_DESTROY_SNAP = 36,
	DAOS_OPC_TX_OPEN = 37,
	DAOS_OPC_TX_COMMIT = 38,
	DAOS_OPC_TX_ABORT = 39,
	DAOS_OPC_TX_OPEN_SNAP = 40,
	DAOS_OPC_TX_CLOSE = 41,
	DAOS_OPC_TX_RESTART = 42,
	DAOS_OPC_OBJ_QUERY_CLASS = 44,
	DAOS_OPC_OBJ_LIST_CLASS = 45,
	DAOS_OPC_OBJ_OPEN = 46,
	DAOS_OPC_OBJ_CLOSE = 47,
	DAOS_OPC_OBJ_PUNCH = 48,
	DAOS_OPC_OBJ_PUNCH_DKEYS = 49,
	DAOS_OPC_OBJ_PUNCH_AKEYS = 50,
	DAOS_OPC_OBJ_QUERY = 51,
	DAOS_OPC_OBJ_QUERY_KEY = 52,
	DAOS_OPC_OBJ_SYNC = 53,
	DAOS_OPC_OBJ_FETCH = 54,
	DAOS_OPC_OBJ_UPDATE = 55,
	DAOS_OPC_OBJ_LIST_DKEY = 56,
	DAOS_OPC_OBJ_LIST_AKEY = 57,
	DAOS_OPC_OBJ_LIST_RECX = 58,
	DAOS_OPC_OBJ_LIST_OBJ = 59,
	DAOS_OPC_ARRAY_CREATE = 60,
	DAOS_OPC_ARRAY_OPEN = 61,
	DAOS_OPC_ARRAY_CLOSE = 62,
	DAOS_OPC_ARRAY_DESTROY = 63,
	DAOS_OPC_ARRAY_READ = 64,
	DAOS_OPC_ARRAY_WRITE = 65,
	DAOS_OPC_ARRAY_PUNCH = 66,
	DAOS_OPC_ARRAY_GET_SIZE = 67,
	DAOS_OPC_ARRAY_SET_SIZE = 68,
	DAOS_OPC_ARRAY_STAT = 69,
	DAOS_OPC_KV_OPEN = 70,
	DAOS_OPC_KV_CLOSE = 71,
	DAOS_OPC_KV_DESTROY = 72,
	DAOS_OPC_KV_GET = 73,
	DAOS_OPC_KV_PUT = 74,
	DAOS_OPC_KV_REMOVE = 75,
	DAOS_OPC_KV_LIST = 76,
	DAOS_OPC_POOL_FILTER_CONT = 77,
	DAOS_OPC_OBJ_KEY2ANCHOR = 78,
	DAOS_OPC_CONT_SNAP_OIT_CREATE = 79,
	DAOS_OPC_CONT_SNAP_OIT_DESTROY = 80,
	DAOS_OPC_PIPELINE_RUN = 81,
	DAOS_OPC_MAX = 82
} daos_opc_t;

/* Arguments of DAOS_OPC_POOL_CONNECT. */
typedef struct {
	/* Not looked at. */
	uuid_t uuid;
	/* Name of the system, NULL for the only one. */
	const char *grp;
	unsigned int flags;
	daos_handle_t *poh;
	daos_pool_info_t *info;
	/* Label or UUID text. */
	const char *pool;
} daos_pool_connect_t;

/* Arguments of DAOS_OPC_POOL_DISCONNECT. */
typedef struct {
	daos_handle_t poh;
} daos_pool_disconnect_t;

/* Arguments of DAOS_OPC_CONT_CREATE. */
typedef struct {
	daos_handle_t poh;
	/* Not looked at. */
	uuid_t uuid;
	daos_prop_t *prop;
	uuid_t *cuuid;
} daos_cont_create_t;

/* Arguments of DAOS_OPC_CONT_OPEN. */
typedef struct {
	daos_handle_t poh;
	/* Not looked at. */
	uuid_t uuid;
	unsigned int flags;
	daos_handle_t *coh;
	daos_cont_info_t *info;
	/* Label or UUID text. */
	const char *cont;
} daos_cont_open_t;

/* Arguments of DAOS_OPC_CONT_DESTROY. */
typedef struct {
	daos_handle_t poh;
	/* Not looked at. */
	uuid_t uuid;
	int force;
	/* Label or UUID text. */
	const char *cont;
} daos_cont_destroy_t;

/* Arguments of DAOS_OPC_CONT_QUERY. */
typedef struct {
	daos_handle_t coh;
	daos_cont_info_t *info;
	daos_prop_t *prop;
} daos_cont_query_t;

/* Arguments of DAOS_OPC_CONT_ALLOC_OIDS. */
typedef struct {
	daos_handle_t coh;
	daos_size_t num_oids;
	uint64_t *oid;
} daos_cont_alloc_oids_t;

/* Arguments of DAOS_OPC_TX_OPEN. */
typedef struct {
	daos_handle_t coh;
	daos_handle_t *th;
	uint64_t flags;
} daos_tx_open_t;

/* Arguments of DAOS_OPC_TX_COMMIT. */
typedef struct {
	daos_handle_t th;
	uint32_t flags;
} daos_tx_commit_t;

/* Arguments of DAOS_OPC_TX_ABORT. */
typedef struct {
	daos_handle_t th;
} daos_tx_abort_t;

/* Arguments of DAOS_OPC_OBJ_OPEN. */
typedef struct {
	daos_handle_t coh;
	daos_obj_id_t oid;
	unsigned int mode;
	daos_handle_t *oh;
} daos_obj_open_t;

/* Arguments of DAOS_OPC_OBJ_CLOSE. */
typedef struct {
	daos_handle_t oh;
} daos_obj_close_t;

/* Arguments of the three punches: dkey NULL for the object, akeys NULL for a dkey. */
typedef struct {
	daos_handle_t th;
	daos_handle_t oh;
	daos_key_t *dkey;
	daos_key_t *akeys;
	uint64_t flags;
	unsigned int akey_nr;
} daos_obj_punch_t;

/* Arguments of DAOS_OPC_OBJ_FETCH and DAOS_OPC_OBJ_UPDATE; extra_flags, extra_arg and csum_iov are the library's own. */
typedef struct {
	daos_handle_t th;
	daos_handle_t oh;
	uint64_t flags;
	daos_key_t *dkey;
	uint32_t nr;
	uint32_t extra_flags;
	daos_iod_t *iods;
	d_sg_list_t *sgls;
	daos_iom_t *ioms;
	void *extra_arg;
	d_iov_t *csum_iov;
} daos_obj_rw_t;

/* The same by the names of the operations. */
typedef daos_obj_rw_t daos_obj_fetch_t;
typedef daos_obj_rw_t daos_obj_update_t;

/* Arguments of all enumerations; each takes those that it needs. */
typedef struct {
	daos_handle_t oh;
	daos_handle_t th;
	daos_key_t *dkey;
	daos_key_t *akey;
	uint32_t *nr;
	daos_key_desc_t *kds;
	d_sg_list_t *sgl;
	daos_size_t *size;
	daos_iod_type_t type;
	daos_recx_t *recxs;
	daos_epoch_range_t *eprs;
	/* Of extents, dkeys and akeys. */
	daos_anchor_t *anchor;
	daos_anchor_t *dkey_anchor;
	daos_anchor_t *akey_anchor;
	uint32_t *versions;
	d_iov_t *csum;
	bool incr_order;
} daos_obj_list_t;

/* The same by the names of the operations. */
typedef daos_obj_list_t daos_obj_list_dkey_t;
typedef daos_obj_list_t daos_obj_list_akey_t;
typedef daos_obj_list_t daos_obj_list_recx_t;

/* Arguments of DAOS_OPC_CONT_CLOSE. */
typedef struct {
	daos_handle_t coh;
} daos_cont_close_t;

/* Arguments of DAOS_OPC_TX_CLOSE and DAOS_OPC_TX_RESTART. */
typedef struct {
	daos_handle_t th;
} daos_tx_close_t;
typedef daos_tx_close_t daos_tx_restart_t;

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a task of an operation, which waits for others. Fill in its arguments and hand it over by tse_task_schedule. */
int daos_task_create(daos_opc_t opc, tse_sched_t *sched, unsigned int num_deps, tse_task_t *dep_tasks[],
		     tse_task_t **taskp);
int daos_task_reset(tse_task_t *task, daos_opc_t opc);
void *daos_task_get_args(tse_task_t *task);
void *daos_task_get_priv(tse_task_t *task);
void *daos_task_set_priv(tse_task_t *task, void *priv);
/* Does what can be done, for up to timeout microseconds: 0 when nothing is left to do, else -DER_TIMEDOUT. */
int daos_progress(tse_sched_t *sched, int64_t timeout, bool *is_empty);

#ifdef __cplusplus
}
#endif

#endif
