/* SPDX-License-Identifier: Apache-2.0 */
/* More data than one request has: arrays of any size, values up to their limit, and keys up to theirs. */
#include "check.h"

#define MIB (1 << 20)
/* Twice what a request has, and a bit. */
#define FIRST (19 * MIB + 123)
#define SECOND (6 * MIB)
#define VALUE_MAX (8 * MIB)
#define KEY_MAX 1024

static char *
filled(size_t size, unsigned int seed)
{
	char *bytes = malloc(size);

	CHECK(bytes != NULL);
	for (size_t i = 0; i < size; i++)
		bytes[i] = (char)((i * 2654435761u + seed) >> 13);
	return bytes;
}

static void
arrays(daos_handle_t oh)
{
	char *data[2] = {filled(FIRST, 1), filled(SECOND, 2)}, *found[2] = {calloc(1, FIRST), calloc(1, SECOND)};
	/* Two extents of the first akey, with a hole between; the second one has records of 8 bytes. */
	daos_recx_t recxs[3] = {{.rx_idx = 5, .rx_nr = 12 * MIB},
				{.rx_idx = 100 * MIB, .rx_nr = FIRST - 12 * MIB},
				{.rx_idx = 0, .rx_nr = SECOND / 8}};
	daos_recx_t present[8], whole = {.rx_idx = 0, .rx_nr = 10 * MIB};
	daos_iod_t iods[2] = {{.iod_type = DAOS_IOD_ARRAY, .iod_size = 1, .iod_nr = 2, .iod_recxs = recxs},
			      {.iod_type = DAOS_IOD_ARRAY, .iod_size = 8, .iod_nr = 1, .iod_recxs = &recxs[2]}};
	daos_iom_t ioms[2] = {{.iom_nr = 8, .iom_recxs = present}, {0}};
	d_iov_t iovs[3];
	d_sg_list_t sgls[2] = {{.sg_nr = 2, .sg_iovs = iovs}, {.sg_nr = 1, .sg_iovs = &iovs[2]}};
	daos_key_t dkey;

	d_iov_set(&dkey, "large", 5);
	d_iov_set(&iods[0].iod_name, "first", 5);
	d_iov_set(&iods[1].iod_name, "second", 6);
	/* The memory is parted at another place than the extents. */
	d_iov_set(&iovs[0], data[0], 3 * MIB + 7);
	d_iov_set(&iovs[1], data[0] + 3 * MIB + 7, FIRST - 3 * MIB - 7);
	d_iov_set(&iovs[2], data[1], SECOND);
	OK(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 2, iods, sgls, NULL));
	d_iov_set(&iovs[0], found[0], 11 * MIB);
	d_iov_set(&iovs[1], found[0] + 11 * MIB, FIRST - 11 * MIB);
	d_iov_set(&iovs[2], found[1], SECOND);
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, DAOS_COND_DKEY_FETCH, &dkey, 2, iods, sgls, ioms, NULL));
	CHECK(iods[0].iod_size == 1 && iods[1].iod_size == 8);
	CHECK(memcmp(data[0], found[0], FIRST) == 0 && memcmp(data[1], found[1], SECOND) == 0);
	CHECK(ioms[0].iom_nr_out == 2);
	CHECK(present[0].rx_idx == 5 && present[0].rx_nr == 12 * MIB && present[1].rx_idx == 100 * MIB);
	/* A hole in front stays as it is in memory. */
	memset(found[0], 'x', 10 * MIB);
	iods[0].iod_nr = 1;
	iods[0].iod_recxs = &whole;
	d_iov_set(&iovs[0], found[0], 10 * MIB);
	sgls[0].sg_nr = 1;
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 1, iods, sgls, NULL, NULL));
	CHECK(memcmp(found[0], "xxxxx", 5) == 0 && memcmp(found[0] + 5, data[0], 10 * MIB - 5) == 0);
	/* What can't go with it: conditions, extents that overlap, too little memory. */
	iods[0].iod_nr = 2;
	iods[0].iod_recxs = recxs;
	d_iov_set(&iovs[0], data[0], FIRST);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, DAOS_COND_DKEY_UPDATE, &dkey, 1, iods, sgls, NULL), -DER_REC2BIG);
	d_iov_set(&iovs[0], data[0], FIRST - 1);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, iods, sgls, NULL), -DER_REC2BIG);
	recxs[1].rx_idx = 12 * MIB;
	d_iov_set(&iovs[0], data[0], FIRST);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, iods, sgls, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 1, iods, sgls, NULL, NULL), -DER_INVAL);
	for (int i = 0; i < 2; i++) {
		free(data[i]);
		free(found[i]);
	}
}

/* A single value is one request. */
static void
values(daos_handle_t kv)
{
	char *data = filled(VALUE_MAX + 1, 3), *found = calloc(1, VALUE_MAX + 1);
	daos_size_t size = VALUE_MAX + 1;

	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "value", VALUE_MAX, data, NULL));
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "value", &size, found, NULL));
	CHECK(size == VALUE_MAX && memcmp(data, found, VALUE_MAX) == 0);
	CHECK_RC(daos_kv_put(kv, DAOS_TX_NONE, 0, "value", VALUE_MAX + 1, data, NULL), -DER_REC2BIG);
	free(data);
	free(found);
}

static void
keys(daos_handle_t kv)
{
	char key[KEY_MAX + 2];
	daos_size_t size = 0;

	memset(key, 'k', sizeof(key));
	key[KEY_MAX] = 0;
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, 1, "v", NULL));
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, key, &size, NULL, NULL));
	CHECK(size == 1);
	key[KEY_MAX] = 'k';
	key[KEY_MAX + 1] = 0;
	CHECK_RC(daos_kv_put(kv, DAOS_TX_NONE, 0, key, 1, "v", NULL), -DER_KEY2BIG);
	CHECK_RC(daos_kv_get(kv, DAOS_TX_NONE, 0, key, &size, NULL, NULL), -DER_KEY2BIG);
	CHECK_RC(daos_kv_remove(kv, DAOS_TX_NONE, 0, key, NULL), -DER_KEY2BIG);
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, oh, kv;
	daos_obj_id_t oid = {.lo = 8}, flat = {.lo = 9};

	CHECK(argc == 2);
	start(argv, "c-large", &poh, &coh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_SX, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	arrays(oh);
	OK(daos_obj_close(oh, NULL));
	OK(daos_obj_generate_oid(coh, &flat, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(coh, flat, DAOS_OO_RW, &kv, NULL));
	values(kv);
	keys(kv);
	OK(daos_kv_close(kv, NULL));
	return finish("c-large", poh, coh);
}
