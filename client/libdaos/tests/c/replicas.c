/* SPDX-License-Identifier: Apache-2.0 */
/* Objects with two replicas or three, in a pool of three engines with redundancy factor 1: which classes there are, and that keys, arrays, files and transactions
 * are kept by them. */
#include <errno.h>
#include <fcntl.h>

#include <daos_fs.h>

#include "check.h"

#define BYTES (3 << 20)

static daos_handle_t poh, coh;

static daos_oclass_id_t
class_of(enum daos_otype_t kind, daos_oclass_id_t class, daos_oclass_hints_t hints)
{
	daos_obj_id_t oid = {.lo = 7};

	OK(daos_obj_generate_oid(coh, &oid, kind, class, hints, 0));
	return daos_obj_id2class(oid);
}

static void
classes(void)
{
	daos_obj_id_t oid = {.lo = 7}, bad = oid;
	daos_handle_t oh;

	CHECK(class_of(DAOS_OT_MULTI_HASHED, OC_RP_2G1, 0) == OC_RP_2G1);
	CHECK(class_of(DAOS_OT_MULTI_HASHED, OC_UNKNOWN, 0) == OC_RP_2G1);
	CHECK(class_of(DAOS_OT_KV_HASHED, OC_UNKNOWN, 0) == (daos_oclass_id_t)OC_RP_2GX);
	CHECK(class_of(DAOS_OT_ARRAY_BYTE, OC_UNKNOWN, DAOS_OCH_SHD_TINY) == OC_RP_2G1);
	CHECK(class_of(DAOS_OT_KV_HASHED, OC_UNKNOWN, DAOS_OCH_RDD_RP) == (daos_oclass_id_t)OC_RP_2GX);
	CHECK(class_of(DAOS_OT_MULTI_HASHED, OC_RP_3G1, 0) == OC_RP_3G1);
	/* What a container of the pool survives each of its objects does. More replicas than engines there can't be. */
	CHECK_RC(daos_obj_generate_oid(coh, &bad, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(coh, &bad, DAOS_OT_MULTI_HASHED, OC_RP_4G1, 0, 0), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(coh, &bad, DAOS_OT_MULTI_HASHED, OC_EC_2P1G1, 0, 0), -DER_INVAL);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_RP_2G1, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	OK(daos_obj_close(oh, NULL));
	OK(daos_obj_verify(coh, oid, DAOS_EPOCH_MAX));
}

static void
containers(void)
{
	daos_prop_t *prop = daos_prop_alloc(2);
	uint64_t factors[] = {1, 2, 3};
	char *labels[] = {"c-one", "c-two", "c-three"};
	/* For the last one there are too few engines. */
	int expected[] = {0, 0, -DER_INVAL};

	CHECK(prop != NULL);
	prop->dpp_entries[0].dpe_type = DAOS_PROP_CO_LABEL;
	prop->dpp_entries[1].dpe_type = DAOS_PROP_CO_REDUN_FAC;
	for (int i = 0; i < 3; i++) {
		OK(daos_prop_set_str(prop, DAOS_PROP_CO_LABEL, labels[i], strlen(labels[i])));
		prop->dpp_entries[1].dpe_val = factors[i];
		CHECK_RC(daos_cont_create(poh, NULL, prop, NULL), expected[i]);
		if (expected[i] == 0)
			OK(daos_cont_destroy(poh, labels[i], 0, NULL));
	}
	daos_prop_free(prop);
}

static void
keys(daos_oclass_id_t class)
{
	daos_obj_id_t oid = {.lo = 8};
	daos_handle_t kv, tx;
	daos_size_t size;
	char found[16];

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, class, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "one", 3, "abc", NULL));
	OK(daos_tx_open(coh, &tx, 0, NULL));
	OK(daos_kv_put(kv, tx, 0, "two", 3, "def", NULL));
	OK(daos_kv_remove(kv, tx, 0, "one", NULL));
	OK(daos_tx_commit(tx, NULL));
	OK(daos_tx_close(tx, NULL));
	size = sizeof(found);
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "two", &size, found, NULL));
	CHECK(size == 3 && memcmp(found, "def", 3) == 0);
	size = sizeof(found);
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "one", &size, found, NULL));
	CHECK(size == 0);
	OK(daos_kv_close(kv, NULL));
}

static void
bytes(void)
{
	static char written[BYTES], read[BYTES];
	daos_obj_id_t oid = {.lo = 9};
	daos_handle_t array;
	daos_range_t range = {.rg_idx = 100, .rg_len = BYTES};
	daos_array_iod_t iod = {.arr_nr = 1, .arr_rgs = &range};
	d_iov_t iov;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};
	daos_size_t size;

	for (int i = 0; i < BYTES; i++)
		written[i] = (char)(i % 251);
	OK(daos_array_generate_oid(coh, &oid, false, OC_UNKNOWN, 0, 0));
	OK(daos_array_open_with_attr(coh, oid, DAOS_TX_NONE, DAOS_OO_RW, 1, 1 << 20, &array, NULL));
	d_iov_set(&iov, written, BYTES);
	OK(daos_array_write(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	OK(daos_array_get_size(array, DAOS_TX_NONE, &size, NULL));
	CHECK(size == BYTES + 100);
	d_iov_set(&iov, read, BYTES);
	OK(daos_array_read(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	CHECK(memcmp(written, read, BYTES) == 0);
	OK(daos_array_close(array, NULL));
}

static void
files(void)
{
	dfs_t *dfs;
	dfs_obj_t *file;
	uuid_t uuid;
	char text[] = "kept twice", found[sizeof(text)] = {0};
	d_iov_t iov;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};
	daos_size_t size;
	daos_handle_t home;

	OK(dfs_cont_create_with_label(poh, "c-files", NULL, &uuid, &home, &dfs));
	OK(dfs_open(dfs, NULL, "file", S_IFREG | 0644, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	d_iov_set(&iov, text, sizeof(text));
	OK(dfs_write(dfs, file, &sgl, 0, NULL));
	d_iov_set(&iov, found, sizeof(found));
	OK(dfs_read(dfs, file, &sgl, 0, &size, NULL));
	CHECK(size == sizeof(text) && memcmp(text, found, sizeof(text)) == 0);
	OK(dfs_release(file));
	CHECK(dfs_open(dfs, NULL, "single", S_IFREG | 0644, O_RDWR | O_CREAT, OC_S1, 0, NULL, &file) == EINVAL);
	OK(dfs_umount(dfs));
	OK(daos_cont_close(home, NULL));
	OK(daos_cont_destroy(poh, "c-files", 0, NULL));
}

int
main(int argc, char **argv)
{
	CHECK(argc == 2);
	start(argv, "c-replicas", &poh, &coh);
	classes();
	containers();
	keys(OC_UNKNOWN);
	keys(OC_RP_3G1);
	bytes();
	files();
	return finish("c-replicas", poh, coh);
}
