/* SPDX-License-Identifier: Apache-2.0 */
/* What no caller may do: NULL, handles that are none, are closed or stand for something else, bytes that are no handle, wrong sizes and
 * names, and use by several threads of what one of them ends. Each gives the documented error, and the library goes on. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <daos_fs.h>
#include <daos_uns.h>
#include <daos/common.h>

#include "check.h"

enum kind { POOL, CONTAINER, OBJECT, KV, ARRAY, QUEUE, TX, CLOSED, NONE, ZERO, KINDS };

static daos_handle_t all[KINDS];
static const char *pool;

/* A call with each handle that isn't of a kind. */
#define EACH_OTHER(own, call) \
	do { \
		for (int other = 0; other < KINDS; other++) { \
			daos_handle_t h = all[other]; \
			if (other != (own)) \
				CHECK_RC(call, -DER_NO_HDL); \
		} \
	} while (0)

static daos_key_t dkey;
static daos_iod_t iod;
static daos_recx_t recx = {.rx_idx = 0, .rx_nr = 4};
static d_iov_t iov;
static d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};
static char memory[64];

/* Arguments that nothing is wrong with. */
static void
fine(void)
{
	d_iov_set(&dkey, "d", 1);
	memset(&iod, 0, sizeof(iod));
	d_iov_set(&iod.iod_name, "a", 1);
	iod.iod_type = DAOS_IOD_ARRAY;
	iod.iod_size = 1;
	iod.iod_nr = 1;
	iod.iod_recxs = &recx;
	recx.rx_idx = 0;
	recx.rx_nr = 4;
	d_iov_set(&iov, memory, 4);
	sgl.sg_nr = 1;
	sgl.sg_iovs = &iov;
}

static void
other_handles(void)
{
	daos_handle_t made;
	daos_obj_id_t oid = {.lo = 1};
	daos_size_t size = 4;
	uint64_t number;
	daos_range_t range = {.rg_idx = 0, .rg_len = 4};
	daos_array_iod_t ranges = {.arr_nr = 1, .arr_rgs = &range};
	daos_anchor_t anchor = {0};
	daos_key_desc_t kds[4];
	uint32_t nr = 4;
	d_iov_t bytes = {0};
	daos_event_t *done;
	daos_pool_info_t info = {0};
	daos_epoch_t epoch;
	daos_event_t event;

	fine();
	EACH_OTHER(POOL, daos_pool_disconnect(h, NULL));
	EACH_OTHER(POOL, daos_pool_query(h, NULL, &info, NULL, NULL));
	EACH_OTHER(POOL, daos_pool_list_cont(h, &size, NULL, NULL));
	EACH_OTHER(POOL, daos_pool_local2global(h, &bytes));
	EACH_OTHER(POOL, daos_cont_create_with_label(h, "misuse", NULL, NULL, NULL));
	EACH_OTHER(POOL, daos_cont_create(h, NULL, NULL, NULL));
	EACH_OTHER(POOL, daos_cont_open(h, "misuse", DAOS_COO_RW, &made, NULL, NULL));
	EACH_OTHER(POOL, daos_cont_destroy(h, "misuse", 0, NULL));
	EACH_OTHER(CONTAINER, daos_cont_close(h, NULL));
	EACH_OTHER(CONTAINER, daos_cont_local2global(h, &bytes));
	EACH_OTHER(CONTAINER, daos_cont_alloc_oids(h, 1, &number, NULL));
	EACH_OTHER(CONTAINER, daos_cont_create_snap_opt(h, &epoch, NULL, DAOS_SNAP_OPT_CR, NULL));
	EACH_OTHER(CONTAINER, daos_obj_generate_oid(h, &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0));
	EACH_OTHER(CONTAINER, daos_obj_open(h, oid, DAOS_OO_RW, &made, NULL));
	EACH_OTHER(CONTAINER, daos_kv_open(h, oid, DAOS_OO_RW, &made, NULL));
	EACH_OTHER(CONTAINER, daos_array_create(h, oid, DAOS_TX_NONE, 1, 64, &made, NULL));
	EACH_OTHER(CONTAINER, daos_array_open(h, oid, DAOS_TX_NONE, DAOS_OO_RW, &size, &size, &made, NULL));
	EACH_OTHER(CONTAINER, daos_array_open_with_attr(h, oid, DAOS_TX_NONE, DAOS_OO_RW, 1, 64, &made, NULL));
	EACH_OTHER(CONTAINER, daos_oit_open(h, DAOS_EPOCH_MAX, &made, NULL));
	EACH_OTHER(CONTAINER, daos_tx_open(h, &made, 0, NULL));
	EACH_OTHER(OBJECT, daos_obj_close(h, NULL));
	EACH_OTHER(OBJECT, daos_obj_update(h, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL));
	EACH_OTHER(OBJECT, daos_obj_fetch(h, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL, NULL));
	EACH_OTHER(OBJECT, daos_obj_punch_dkeys(h, DAOS_TX_NONE, 0, 1, &dkey, NULL));
	EACH_OTHER(OBJECT, daos_obj_punch_akeys(h, DAOS_TX_NONE, 0, &dkey, 1, &dkey, NULL));
	EACH_OTHER(OBJECT, daos_obj_list_dkey(h, DAOS_TX_NONE, &nr, kds, &sgl, &anchor, NULL));
	EACH_OTHER(OBJECT, daos_obj_list_akey(h, DAOS_TX_NONE, &dkey, &nr, kds, &sgl, &anchor, NULL));
	EACH_OTHER(KV, daos_kv_close(h, NULL));
	EACH_OTHER(KV, daos_kv_put(h, DAOS_TX_NONE, 0, "k", 1, "v", NULL));
	EACH_OTHER(KV, daos_kv_get(h, DAOS_TX_NONE, 0, "k", &size, NULL, NULL));
	EACH_OTHER(KV, daos_kv_remove(h, DAOS_TX_NONE, 0, "k", NULL));
	EACH_OTHER(KV, daos_kv_destroy(h, DAOS_TX_NONE, NULL));
	EACH_OTHER(KV, daos_kv_list(h, DAOS_TX_NONE, &nr, kds, &sgl, &anchor, NULL));
	EACH_OTHER(ARRAY, daos_array_close(h, NULL));
	EACH_OTHER(ARRAY, daos_array_read(h, DAOS_TX_NONE, &ranges, &sgl, NULL));
	EACH_OTHER(ARRAY, daos_array_write(h, DAOS_TX_NONE, &ranges, &sgl, NULL));
	EACH_OTHER(ARRAY, daos_array_get_size(h, DAOS_TX_NONE, &size, NULL));
	EACH_OTHER(ARRAY, daos_array_destroy(h, DAOS_TX_NONE, NULL));
	EACH_OTHER(ARRAY, daos_array_local2global(h, &bytes));
	EACH_OTHER(QUEUE, daos_eq_destroy(h, 0));
	EACH_OTHER(QUEUE, daos_eq_poll(h, 0, DAOS_EQ_NOWAIT, 1, &done));
	EACH_OTHER(TX, daos_tx_close(h, NULL));
	/* No transaction, and no queue, are allowed there. */
	for (int other = 0; other < KINDS; other++) {
		if (other != TX && other != ZERO)
			CHECK_RC(daos_kv_put(all[KV], all[other], 0, "k", 1, "v", NULL), -DER_NO_HDL);
		if (other != QUEUE && other != ZERO)
			CHECK_RC(daos_event_init(&event, all[other], NULL), -DER_NO_HDL);
	}
}

static void
nothing(void)
{
	daos_handle_t made;
	daos_obj_id_t oid = {.lo = 1};
	daos_size_t size = 4;
	uint64_t number;
	daos_range_t range = {.rg_idx = 0, .rg_len = 4};
	daos_array_iod_t ranges = {.arr_nr = 1, .arr_rgs = &range};
	daos_anchor_t anchor = {0};
	daos_key_desc_t kds[4];
	daos_event_t event, *done;
	uint32_t nr = 4;
	bool flag;

	fine();
	CHECK_RC(daos_cont_open(all[POOL], "misuse", DAOS_COO_RW, NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_cont_destroy(all[POOL], NULL, 0, NULL), -DER_INVAL);
	CHECK_RC(daos_pool_list_cont(all[POOL], NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_pool_local2global(all[POOL], NULL), -DER_INVAL);
	CHECK_RC(daos_cont_local2global(all[CONTAINER], NULL), -DER_INVAL);
	CHECK_RC(daos_array_local2global(all[ARRAY], NULL), -DER_INVAL);
	CHECK_RC(daos_cont_alloc_oids(all[CONTAINER], 1, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_cont_alloc_oids(all[CONTAINER], 0, &number, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_open(all[CONTAINER], oid, DAOS_OO_RW, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_tx_open(all[CONTAINER], NULL, 0, NULL), -DER_INVAL);
	CHECK_RC(daos_oit_open(all[CONTAINER], DAOS_EPOCH_MAX, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_array_create(all[CONTAINER], oid, DAOS_TX_NONE, 1, 64, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_array_open(all[CONTAINER], oid, DAOS_TX_NONE, DAOS_OO_RW, NULL, &size, &made, NULL), -DER_INVAL);
	CHECK_RC(daos_array_read(all[ARRAY], DAOS_TX_NONE, NULL, &sgl, NULL), -DER_INVAL);
	CHECK_RC(daos_array_read(all[ARRAY], DAOS_TX_NONE, &ranges, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_array_write(all[ARRAY], DAOS_TX_NONE, NULL, &sgl, NULL), -DER_INVAL);
	CHECK_RC(daos_array_get_size(all[ARRAY], DAOS_TX_NONE, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, NULL, 1, &iod, &sgl, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_fetch(all[OBJECT], DAOS_TX_NONE, 0, NULL, 1, &iod, &sgl, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_fetch(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, NULL, &sgl, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_punch_dkeys(all[OBJECT], DAOS_TX_NONE, 0, 1, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_punch_dkeys(all[OBJECT], DAOS_TX_NONE, 0, 0, &dkey, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_punch_akeys(all[OBJECT], DAOS_TX_NONE, 0, NULL, 1, &dkey, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_punch_akeys(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_list_dkey(all[OBJECT], DAOS_TX_NONE, NULL, kds, &sgl, &anchor, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_list_dkey(all[OBJECT], DAOS_TX_NONE, &nr, NULL, &sgl, &anchor, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_list_dkey(all[OBJECT], DAOS_TX_NONE, &nr, kds, &sgl, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_list_akey(all[OBJECT], DAOS_TX_NONE, NULL, &nr, kds, &sgl, &anchor, NULL), -DER_INVAL);
	CHECK_RC(daos_kv_put(all[KV], DAOS_TX_NONE, 0, NULL, 1, "v", NULL), -DER_INVAL);
	CHECK_RC(daos_kv_put(all[KV], DAOS_TX_NONE, 0, "k", 1, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_kv_get(all[KV], DAOS_TX_NONE, 0, NULL, &size, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_kv_get(all[KV], DAOS_TX_NONE, 0, "k", NULL, memory, NULL), -DER_INVAL);
	CHECK_RC(daos_kv_remove(all[KV], DAOS_TX_NONE, 0, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_kv_list(all[KV], DAOS_TX_NONE, NULL, kds, &sgl, &anchor, NULL), -DER_INVAL);
	CHECK_RC(daos_eq_create(NULL), -DER_INVAL);
	CHECK_RC(daos_eq_poll(all[QUEUE], 0, DAOS_EQ_NOWAIT, 1, NULL), -DER_INVAL);
	CHECK_RC(daos_eq_poll(all[QUEUE], 0, DAOS_EQ_NOWAIT, 0, &done), -DER_INVAL);
	CHECK_RC(daos_eq_poll(all[QUEUE], 0, -2, 1, &done), -DER_INVAL);
	CHECK_RC(daos_event_init(NULL, all[QUEUE], NULL), -DER_INVAL);
	CHECK_RC(daos_event_fini(NULL), -DER_INVAL);
	CHECK_RC(daos_event_test(NULL, DAOS_EQ_NOWAIT, &flag), -DER_INVAL);
	OK(daos_event_init(&event, all[QUEUE], NULL));
	CHECK_RC(daos_event_test(&event, DAOS_EQ_NOWAIT, NULL), -DER_INVAL);
	OK(daos_event_fini(&event));
	CHECK_RC(daos_event_fini(&event), -DER_INVAL);
	CHECK_RC(daos_event_test(&event, DAOS_EQ_NOWAIT, &flag), -DER_INVAL);
	CHECK_RC(daos_kv_put(all[KV], DAOS_TX_NONE, 0, "k", 1, "v", &event), -DER_INVAL);
	CHECK(daos_oclass_name2id(NULL) == OC_UNKNOWN);
	daos_prop_free(NULL);
	CHECK(strcmp(d_errstr(-123456), "DER_UNKNOWN") == 0 && d_errdesc(-123456) != NULL);
	duns_destroy_attr(NULL);
}

/* Sizes, names, numbers and extents that can't be. */
static void
measures(void)
{
	daos_obj_id_t oid = {.lo = 1};
	daos_recx_t overlapping[2] = {{.rx_idx = 0, .rx_nr = 3}, {.rx_idx = 2, .rx_nr = 1}};
	daos_iod_t twice[2];
	d_sg_list_t sgls[2];
	daos_size_t size = 1;
	daos_anchor_t anchor = {0};
	daos_key_desc_t kds[4];
	daos_handle_t made;
	uint32_t nr = 4;
	char name[600], found[4];

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	CHECK_RC(daos_pool_connect(name, NULL, DAOS_PC_RW, &made, NULL, NULL), -DER_NONEXIST);
	CHECK_RC(daos_cont_create_with_label(all[POOL], name, NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_cont_create_with_label(all[POOL], "", NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(all[CONTAINER], &oid, DAOS_OT_MULTI_HASHED, 0x7fffffff, 0, 0), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(all[CONTAINER], &oid, (enum daos_otype_t)-1, OC_S1, 0, 0), -DER_INVAL);
	CHECK(daos_oclass_id2name(0x7fffffff, name) != 0);
	fine();
	iod.iod_nr = 2;
	iod.iod_recxs = overlapping;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_fetch(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL, NULL), -DER_INVAL);
	iod.iod_recxs = NULL;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	fine();
	iod.iod_nr = 0;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	fine();
	iod.iod_type = (daos_iod_type_t)9;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	fine();
	recx.rx_nr = 0;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	recx.rx_nr = UINT64_MAX;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_REC2BIG);
	recx.rx_nr = 4;
	recx.rx_idx = UINT64_MAX - 1;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	fine();
	iod.iod_size = 1ULL << 40;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_REC2BIG);
	fine();
	iov.iov_buf_len = 3;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_REC2BIG);
	fine();
	iov.iov_buf = NULL;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	fine();
	d_iov_set(&dkey, NULL, 5);
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	d_iov_set(&dkey, name, 0);
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	d_iov_set(&dkey, name, 1025);
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_KEY2BIG);
	fine();
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 1ULL << 60, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, UINT32_MAX, &iod, &sgl, NULL), -DER_INVAL);
	twice[0] = twice[1] = iod;
	sgls[0] = sgls[1] = sgl;
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 2, twice, sgls, NULL), -DER_INVAL);
	/* Too little room for what is there. */
	OK(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL));
	d_iov_set(&iov, found, 3);
	CHECK_RC(daos_obj_fetch(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL, NULL), -DER_REC2BIG);
	iod.iod_size = 3;
	CHECK(daos_obj_fetch(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL, NULL) != 0);
	OK(daos_kv_put(all[KV], DAOS_TX_NONE, 0, "longer", 4, "long", NULL));
	CHECK_RC(daos_kv_get(all[KV], DAOS_TX_NONE, 0, "longer", &size, found, NULL), -DER_REC2BIG);
	CHECK(size == 4);
	d_iov_set(&iov, found, 3);
	CHECK_RC(daos_kv_list(all[KV], DAOS_TX_NONE, &nr, kds, &sgl, &anchor, NULL), -DER_KEY2BIG);
}

/* Bytes that are no handle, or almost one. */
static void
forged(void)
{
	unsigned char bytes[4096];
	d_iov_t global = {.iov_buf = bytes, .iov_buf_len = sizeof(bytes)};
	daos_handle_t made;
	size_t length;
	size_t refused = 0;

	OK(daos_cont_local2global(all[CONTAINER], &global));
	length = global.iov_len;
	CHECK(length > 0 && length <= sizeof(bytes));
	for (size_t cut = 0; cut < length; cut++) {
		global.iov_len = cut;
		if (daos_cont_global2local(all[POOL], global, &made) == 0)
			OK(daos_cont_close(made, NULL));
		else
			refused++;
	}
	/* Without what later releases have added it is whole: as an earlier one writes it. */
	CHECK(refused + 1 >= length);
	refused = 0;
	global.iov_len = length;
	for (size_t at = 0; at < length; at++) {
		bytes[at] ^= 0xff;
		if (daos_cont_global2local(all[POOL], global, &made) == 0)
			OK(daos_cont_close(made, NULL));
		else
			refused++;
		if (daos_pool_global2local(global, &made) == 0)
			OK(daos_pool_disconnect(made, NULL));
		if (daos_array_global2local(all[CONTAINER], global, DAOS_OO_RW, &made) == 0)
			OK(daos_array_close(made, NULL));
		bytes[at] ^= 0xff;
	}
	CHECK(refused > 0);
	global.iov_buf = NULL;
	CHECK_RC(daos_cont_global2local(all[POOL], global, &made), -DER_INVAL);
	CHECK_RC(daos_pool_global2local(global, &made), -DER_INVAL);
	CHECK_RC(daos_array_global2local(all[CONTAINER], global, DAOS_OO_RW, &made), -DER_INVAL);
}

/* File systems, whose errors are errnos. */
static void
file_systems(void)
{
	dfs_t *dfs, *wrong = (dfs_t *)&dfs, *made;
	dfs_obj_t *file, *bad = (dfs_obj_t *)&file;
	daos_size_t size;
	struct stat stat;
	char name[300];
	daos_handle_t coh;
	uuid_t uuid;
	d_iov_t bytes = {0};
	mode_t mode = S_IFREG | 0600;

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	CHECK_RC(dfs_mount(all[POOL], all[CONTAINER], O_RDWR, &dfs), EINVAL);
	OK(dfs_cont_create_with_label(all[POOL], "c-misuse-files", NULL, &uuid, &coh, &dfs));
	CHECK_RC(dfs_mount(all[POOL], coh, O_RDWR, NULL), EINVAL);
	CHECK_RC(dfs_mount(coh, all[POOL], O_RDWR, &made), EINVAL);
	OK(dfs_open(dfs, NULL, "file", mode, O_CREAT | O_RDWR, 0, 0, NULL, &file));
	fine();
	CHECK_RC(dfs_open(dfs, NULL, NULL, mode, O_CREAT | O_RDWR, 0, 0, NULL, &bad), EINVAL);
	CHECK_RC(dfs_open(dfs, NULL, "other", mode, O_CREAT | O_RDWR, 0, 0, NULL, NULL), EINVAL);
	CHECK_RC(dfs_open(dfs, NULL, "other", mode, O_CREAT | O_RDWR, 0x7fffffff, 0, NULL, &bad), EINVAL);
	bad = (dfs_obj_t *)&file;
	CHECK_RC(dfs_mkdir(dfs, NULL, name, 0700, 0), ENAMETOOLONG);
	CHECK_RC(dfs_mkdir(dfs, NULL, "", 0700, 0), EINVAL);
	CHECK_RC(dfs_mkdir(dfs, NULL, "a/b", 0700, 0), EINVAL);
	CHECK_RC(dfs_mkdir(dfs, NULL, NULL, 0700, 0), EINVAL);
	CHECK_RC(dfs_mkdir(dfs, file, "in-a-file", 0700, 0), ENOTDIR);
	CHECK_RC(dfs_remove(dfs, NULL, NULL, false, NULL), EINVAL);
	CHECK_RC(dfs_move(dfs, NULL, "file", NULL, NULL, NULL), EINVAL);
	CHECK_RC(dfs_lookup(dfs, NULL, O_RDWR, &bad, NULL, NULL), EINVAL);
	CHECK_RC(dfs_lookup(dfs, "relative", O_RDWR, &bad, NULL, NULL), EINVAL);
	CHECK_RC(dfs_lookup(dfs, "/file", O_RDWR, NULL, NULL, NULL), EINVAL);
	bad = (dfs_obj_t *)&file;
	CHECK_RC(dfs_stat(dfs, NULL, "file", NULL), EINVAL);
	CHECK_RC(dfs_get_size(dfs, file, NULL), EINVAL);
	CHECK_RC(dfs_read(dfs, file, NULL, 0, &size, NULL), EINVAL);
	CHECK_RC(dfs_read(dfs, file, &sgl, 0, NULL, NULL), EINVAL);
	CHECK_RC(dfs_write(dfs, file, NULL, 0, NULL), EINVAL);
	CHECK_RC(dfs_readx(dfs, file, NULL, &sgl, &size, NULL), EINVAL);
	CHECK_RC(dfs_writex(dfs, file, NULL, &sgl, NULL), EINVAL);
	CHECK_RC(dfs_local2global(dfs, NULL), EINVAL);
	CHECK_RC(dfs_global2local(all[POOL], coh, O_RDWR, bytes, &made), EINVAL);
	/* Pointers that the library never gave. */
	dfs_t *foreign[] = {NULL, wrong, (dfs_t *)file};
	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
		CHECK_RC(dfs_umount(foreign[i]), EINVAL);
		CHECK_RC(dfs_disconnect(foreign[i]), EINVAL);
		CHECK_RC(dfs_sync(foreign[i]), EINVAL);
		CHECK_RC(dfs_mkdir(foreign[i], NULL, "d", 0700, 0), EINVAL);
		CHECK_RC(dfs_stat(foreign[i], NULL, "file", &stat), EINVAL);
		CHECK_RC(dfs_access(foreign[i], NULL, "file", 0), EINVAL);
		CHECK_RC(dfs_set_prefix(foreign[i], "/x"), EINVAL);
		CHECK_RC(dfs_local2global(foreign[i], &bytes), EINVAL);
		CHECK_RC(dfs_obj_local2global(foreign[i], file, &bytes), EINVAL);
	}
	dfs_obj_t *strange[] = {NULL, bad, (dfs_obj_t *)dfs};
	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
		CHECK_RC(dfs_release(strange[i]), EINVAL);
		CHECK_RC(dfs_get_size(dfs, strange[i], &size), EINVAL);
		CHECK_RC(dfs_read(dfs, strange[i], &sgl, 0, &size, NULL), EINVAL);
		CHECK_RC(dfs_write(dfs, strange[i], &sgl, 0, NULL), EINVAL);
		CHECK_RC(dfs_punch(dfs, strange[i], 0, DFS_MAX_FSIZE), EINVAL);
		CHECK_RC(dfs_obj_local2global(dfs, strange[i], &bytes), EINVAL);
	}
	OK(dfs_release(file));
	CHECK_RC(dfs_release(file), EINVAL);
	CHECK_RC(dfs_get_size(dfs, file, &size), EINVAL);
	OK(dfs_umount(dfs));
	CHECK_RC(dfs_umount(dfs), EINVAL);
	CHECK_RC(dfs_stat(dfs, NULL, "file", &stat), EINVAL);
	OK(daos_cont_close(coh, NULL));
	OK(daos_cont_destroy(all[POOL], "c-misuse-files", 0, NULL));
	CHECK_RC(dfs_connect(NULL, NULL, "x", O_RDWR, NULL, &dfs), EINVAL);
	CHECK_RC(dfs_connect(pool, NULL, NULL, O_RDWR, NULL, &dfs), EINVAL);
	CHECK_RC(dfs_connect(pool, NULL, "c-nowhere", O_RDWR, NULL, &dfs), ENOENT);
}

#define CLOSERS 8

static daos_handle_t contested;
static pthread_barrier_t together;

static void *
closes(void *argument)
{
	(void)argument;
	pthread_barrier_wait(&together);
	return (void *)(intptr_t)daos_kv_close(contested, NULL);
}

static void *
uses(void *argument)
{
	int rc;

	(void)argument;
	pthread_barrier_wait(&together);
	do
		rc = daos_kv_put(contested, DAOS_TX_NONE, 0, "contested", 1, "v", NULL);
	while (rc == 0);
	return (void *)(intptr_t)rc;
}

/* Of several threads that close a handle one does, and those that use it are told. */
static void
closed_by_several(void)
{
	daos_obj_id_t oid = {.lo = 21};
	pthread_t threads[2 * CLOSERS];

	OK(daos_obj_generate_oid(all[CONTAINER], &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	for (int round = 0; round < 10; round++) {
		int closed = 0;

		CHECK(pthread_barrier_init(&together, NULL, 2 * CLOSERS) == 0);
		OK(daos_kv_open(all[CONTAINER], oid, DAOS_OO_RW, &contested, NULL));
		for (int i = 0; i < 2 * CLOSERS; i++)
			CHECK(pthread_create(&threads[i], NULL, i % 2 ? closes : uses, NULL) == 0);
		for (int i = 0; i < 2 * CLOSERS; i++) {
			void *rc;

			CHECK(pthread_join(threads[i], &rc) == 0);
			closed += rc == NULL;
			CHECK(rc == NULL || (int)(intptr_t)rc == -DER_NO_HDL);
		}
		CHECK(closed == 1);
		CHECK(pthread_barrier_destroy(&together) == 0);
	}
}

static void *
polls(void *argument)
{
	daos_event_t *done;
	int rc;

	(void)argument;
	pthread_barrier_wait(&together);
	do
		rc = daos_eq_poll(contested, 0, DAOS_EQ_WAIT, 1, &done);
	while (rc > 0);
	return (void *)(intptr_t)rc;
}

/* A queue is destroyed while others wait for its events: they are told that it is over. */
static void
destroyed_under_others(void)
{
	pthread_t threads[CLOSERS];
	daos_event_t events[CLOSERS];

	CHECK(pthread_barrier_init(&together, NULL, CLOSERS + 1) == 0);
	OK(daos_eq_create(&contested));
	for (int i = 0; i < CLOSERS; i++)
		CHECK(pthread_create(&threads[i], NULL, polls, NULL) == 0);
	pthread_barrier_wait(&together);
	for (int i = 0; i < CLOSERS; i++) {
		OK(daos_event_init(&events[i], contested, NULL));
		OK(daos_kv_put(all[KV], DAOS_TX_NONE, 0, "polled", 1, "v", &events[i]));
	}
	OK(daos_eq_destroy(contested, DAOS_EQ_DESTROY_FORCE));
	for (int i = 0; i < CLOSERS; i++) {
		void *rc;

		CHECK(pthread_join(threads[i], &rc) == 0);
		CHECK(rc == NULL || (int)(intptr_t)rc == -DER_NO_HDL);
	}
	for (int i = 0; i < CLOSERS; i++)
		OK(daos_event_fini(&events[i]));
	CHECK(pthread_barrier_destroy(&together) == 0);
}

/* Nothing works behind the end of the library, and all of it does behind the next start. */
static void
ended(void)
{
	daos_handle_t made;
	daos_event_t event, *done;
	daos_size_t size = 4;
	bool flag;

	fine();
	CHECK_RC(daos_fini(), -DER_UNINIT);
	CHECK_RC(daos_pool_connect(pool, NULL, DAOS_PC_RW, &made, NULL, NULL), -DER_UNINIT);
	CHECK_RC(daos_eq_create(&made), -DER_UNINIT);
	CHECK_RC(dfs_connect(pool, NULL, "home", O_RDWR, NULL, (dfs_t **)&done), daos_der2errno(-DER_UNINIT));
	OK(daos_init());
	CHECK_RC(daos_pool_disconnect(all[POOL], NULL), -DER_NO_HDL);
	CHECK_RC(daos_cont_close(all[CONTAINER], NULL), -DER_NO_HDL);
	CHECK_RC(daos_obj_update(all[OBJECT], DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_NO_HDL);
	CHECK_RC(daos_kv_get(all[KV], DAOS_TX_NONE, 0, "k", &size, NULL, NULL), -DER_NO_HDL);
	CHECK_RC(daos_array_get_size(all[ARRAY], DAOS_TX_NONE, &size, NULL), -DER_NO_HDL);
	CHECK_RC(daos_eq_poll(all[QUEUE], 0, DAOS_EQ_NOWAIT, 1, &done), -DER_NO_HDL);
	OK(daos_event_init(&event, DAOS_HDL_INVAL, NULL));
	OK(daos_event_test(&event, DAOS_EQ_NOWAIT, &flag));
	OK(daos_event_fini(&event));
}

int
main(int argc, char **argv)
{
	daos_obj_id_t oid = {.lo = 11}, flat = {.lo = 12}, cells = {.lo = 13};

	CHECK(argc == 2);
	pool = argv[1];
	start(argv, "c-misuse", &all[POOL], &all[CONTAINER]);
	OK(daos_obj_generate_oid(all[CONTAINER], &oid, DAOS_OT_MULTI_HASHED, OC_SX, 0, 0));
	OK(daos_obj_open(all[CONTAINER], oid, DAOS_OO_RW, &all[OBJECT], NULL));
	OK(daos_obj_generate_oid(all[CONTAINER], &flat, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(all[CONTAINER], flat, DAOS_OO_RW, &all[KV], NULL));
	OK(daos_array_generate_oid(all[CONTAINER], &cells, true, OC_SX, 0, 0));
	OK(daos_array_create(all[CONTAINER], cells, DAOS_TX_NONE, 1, 64, &all[ARRAY], NULL));
	OK(daos_eq_create(&all[QUEUE]));
	OK(daos_tx_open(all[CONTAINER], &all[TX], 0, NULL));
	OK(daos_obj_open(all[CONTAINER], oid, DAOS_OO_RW, &all[CLOSED], NULL));
	OK(daos_obj_close(all[CLOSED], NULL));
	all[NONE].cookie = 0xfeedfacecafebeefULL;
	other_handles();
	nothing();
	measures();
	forged();
	file_systems();
	closed_by_several();
	destroyed_under_others();
	OK(daos_tx_close(all[TX], NULL));
	CHECK_RC(daos_tx_close(all[TX], NULL), -DER_NO_HDL);
	OK(daos_eq_destroy(all[QUEUE], 0));
	OK(daos_obj_close(all[OBJECT], NULL));
	OK(daos_kv_close(all[KV], NULL));
	OK(daos_array_close(all[ARRAY], NULL));
	OK(daos_cont_close(all[CONTAINER], NULL));
	CHECK_RC(daos_cont_close(all[CONTAINER], NULL), -DER_NO_HDL);
	OK(daos_cont_destroy(all[POOL], "c-misuse", 0, NULL));
	OK(daos_pool_disconnect(all[POOL], NULL));
	CHECK_RC(daos_pool_disconnect(all[POOL], NULL), -DER_NO_HDL);
	OK(daos_fini());
	ended();
	OK(daos_fini());
	printf("ok\n");
	return 0;
}
