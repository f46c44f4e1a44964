/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays. */
#ifndef WEIR_DAOS_ARRAY_H
#define WEIR_DAOS_ARRAY_H

#include <daos_obj.h>
#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranges shorter than this many cells count as short ones; a call takes at most so many of them. */
#define DAOS_ARRAY_RG_LEN_THD 16
#define DAOS_ARRAY_LIST_IO_LIMIT 16384

/* Cells from rg_idx on. */
typedef struct {
	daos_off_t rg_idx;
	daos_size_t rg_len;
} daos_range_t;

/* What to read or write of an array. */
typedef struct {
	daos_size_t arr_nr;
	daos_range_t *arr_rgs;
	/* After a read: cells asked for behind the end, and cells before it. */
	daos_size_t arr_nr_short_read;
	daos_size_t arr_nr_read;
} daos_array_iod_t;

typedef struct {
	daos_size_t st_size;
	daos_epoch_t st_max_epoch;
} daos_array_stbuf_t;

/* Makes an array's id; with add_attr cell and chunk size are stored in the array. */
static inline int
daos_array_generate_oid(daos_handle_t coh, daos_obj_id_t *oid, bool add_attr, daos_oclass_id_t cid,
			daos_oclass_hints_t hints, uint32_t args)
{
	return daos_obj_generate_oid2(coh, oid, add_attr ? DAOS_OT_ARRAY : DAOS_OT_ARRAY_ATTR, cid, hints, args);
}

int daos_array_create(daos_handle_t coh, daos_obj_id_t oid, daos_handle_t th, daos_size_t cell_size,
		      daos_size_t chunk_size, daos_handle_t *oh, daos_event_t *ev);
int daos_array_open(daos_handle_t coh, daos_obj_id_t oid, daos_handle_t th, unsigned int mode,
		    daos_size_t *cell_size, daos_size_t *chunk_size, daos_handle_t *oh, daos_event_t *ev);
int daos_array_open_with_attr(daos_handle_t coh, daos_obj_id_t oid, daos_handle_t th, unsigned int mode,
			      daos_size_t cell_size, daos_size_t chunk_size, daos_handle_t *oh,
			      daos_event_t *ev);
int daos_array_close(daos_handle_t oh, daos_event_t *ev);
int daos_array_destroy(daos_handle_t oh, daos_handle_t th, daos_event_t *ev);
int daos_array_read(daos_handle_t oh, daos_handle_t th, daos_array_iod_t *iod, d_sg_list_t *sgl, daos_event_t *ev);
int daos_array_write(daos_handle_t oh, daos_handle_t th, daos_array_iod_t *iod, d_sg_list_t *sgl,
		     daos_event_t *ev);
int daos_array_get_size(daos_handle_t oh, daos_handle_t th, daos_size_t *size, daos_event_t *ev);
int daos_array_set_size(daos_handle_t oh, daos_handle_t th, daos_size_t size, daos_event_t *ev);
int daos_array_get_attr(daos_handle_t oh, daos_size_t *chunk_size, daos_size_t *cell_size);
int daos_array_stat(daos_handle_t oh, daos_handle_t th, daos_array_stbuf_t *stbuf, daos_event_t *ev);
int daos_array_punch(daos_handle_t oh, daos_handle_t th, daos_array_iod_t *iod, daos_event_t *ev);
int daos_array_local2global(daos_handle_t oh, d_iov_t *glob);
int daos_array_global2local(daos_handle_t coh, d_iov_t glob, unsigned int mode, daos_handle_t *oh);

#ifdef __cplusplus
}
#endif

#endif
