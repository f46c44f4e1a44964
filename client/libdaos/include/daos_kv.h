/* SPDX-License-Identifier: Apache-2.0 */
/* Key-value objects. */
#ifndef WEIR_DAOS_KV_H
#define WEIR_DAOS_KV_H

#include <daos_obj.h>
#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DAOS_COND_KEY_REMOVE DAOS_COND_PUNCH
#define DAOS_COND_KEY_INSERT DAOS_COND_DKEY_INSERT
#define DAOS_COND_KEY_UPDATE DAOS_COND_DKEY_UPDATE
#define DAOS_COND_KEY_GET DAOS_COND_DKEY_FETCH

int daos_kv_open(daos_handle_t coh, daos_obj_id_t oid, unsigned int mode, daos_handle_t *oh, daos_event_t *ev);
int daos_kv_close(daos_handle_t oh, daos_event_t *ev);
int daos_kv_destroy(daos_handle_t oh, daos_handle_t th, daos_event_t *ev);
int daos_kv_put(daos_handle_t oh, daos_handle_t th, uint64_t flags, const char *key, daos_size_t size,
		const void *buf, daos_event_t *ev);

/*
 * Reads a value. *size is the room in buf, then the value's size: 0 for a missing key. With buf NULL or *size 0 only
 * the size is returned; too little room is -DER_REC2BIG.
 */
int daos_kv_get(daos_handle_t oh, daos_handle_t th, uint64_t flags, const char *key, daos_size_t *size, void *buf,
		daos_event_t *ev);
int daos_kv_remove(daos_handle_t oh, daos_handle_t th, uint64_t flags, const char *key, daos_event_t *ev);
int daos_kv_list(daos_handle_t oh, daos_handle_t th, uint32_t *nr, daos_key_desc_t *kds, d_sg_list_t *sgl,
		 daos_anchor_t *anchor, daos_event_t *ev);

#ifdef __cplusplus
}
#endif

#endif
