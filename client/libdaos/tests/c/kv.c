/* SPDX-License-Identifier: Apache-2.0 */
/* Key-value objects: put, get, sizes, conditions, and an enumeration in small steps. */
#include "check.h"

#define KEYS 100
#define KEYS_AT_ONCE 7
#define KEY_BYTES 64

static void
list_all(daos_handle_t kv)
{
	char seen[KEYS] = {0};
	char buf[KEYS_AT_ONCE * 8];
	daos_key_desc_t kds[KEYS_AT_ONCE];
	daos_anchor_t anchor = {0};
	d_sg_list_t sgl;
	d_iov_t iov;
	unsigned int total = 0;

	d_iov_set(&iov, buf, sizeof(buf));
	sgl.sg_nr = 1;
	sgl.sg_nr_out = 0;
	sgl.sg_iovs = &iov;
	while (!daos_anchor_is_eof(&anchor)) {
		uint32_t nr = KEYS_AT_ONCE;
		char *at = buf;

		memset(buf, 0, sizeof(buf));
		OK(daos_kv_list(kv, DAOS_TX_NONE, &nr, kds, &sgl, &anchor, NULL));
		for (uint32_t i = 0; i < nr; i++) {
			char text[KEY_BYTES] = {0};
			int number;

			memcpy(text, at, kds[i].kd_key_len);
			at += kds[i].kd_key_len;
			CHECK(sscanf(text, "key%d", &number) == 1 && number >= 0 && number < KEYS);
			CHECK(!seen[number]);
			seen[number] = 1;
			total++;
		}
	}
	CHECK(total == KEYS);
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, kv;
	daos_obj_id_t oid = {.lo = 1, .hi = 0};
	daos_size_t size;
	char value[1 << 16], found[1 << 16];

	CHECK(argc == 2);
	start(argv, "c-kv", &poh, &coh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	CHECK(daos_obj_id2type(oid) == DAOS_OT_KV_HASHED && daos_obj_id2class(oid) == (daos_oclass_id_t)OC_SX);
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));

	memset(value, 'v', sizeof(value));
	for (int i = 0; i < KEYS; i++) {
		char key[KEY_BYTES];

		snprintf(key, sizeof(key), "key%d", i);
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, 1 + 600 * i, value, NULL));
	}
	size = 0;
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "key99", &size, NULL, NULL));
	CHECK(size == 1 + 600 * 99);
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "key99", &size, found, NULL));
	CHECK(size == 1 + 600 * 99 && memcmp(found, value, size) == 0);
	size = 10;
	CHECK_RC(daos_kv_get(kv, DAOS_TX_NONE, 0, "key99", &size, found, NULL), -DER_REC2BIG);
	CHECK(size == 1 + 600 * 99);
	size = sizeof(found);
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "missing", &size, found, NULL));
	CHECK(size == 0);

	CHECK_RC(daos_kv_put(kv, DAOS_TX_NONE, DAOS_COND_KEY_INSERT, "key1", 1, value, NULL), -DER_EXIST);
	CHECK_RC(daos_kv_put(kv, DAOS_TX_NONE, DAOS_COND_KEY_UPDATE, "missing", 1, value, NULL), -DER_NONEXIST);
	size = sizeof(found);
	CHECK_RC(daos_kv_get(kv, DAOS_TX_NONE, DAOS_COND_KEY_GET, "missing", &size, found, NULL), -DER_NONEXIST);
	CHECK_RC(daos_kv_remove(kv, DAOS_TX_NONE, DAOS_COND_KEY_REMOVE, "missing", NULL), -DER_NONEXIST);

	list_all(kv);
	OK(daos_kv_remove(kv, DAOS_TX_NONE, 0, "key1", NULL));
	size = sizeof(found);
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "key1", &size, found, NULL));
	CHECK(size == 0);
	OK(daos_kv_destroy(kv, DAOS_TX_NONE, NULL));
	OK(daos_kv_close(kv, NULL));
	CHECK_RC(daos_kv_close(kv, NULL), -DER_NO_HDL);
	return finish("c-kv", poh, coh);
}
