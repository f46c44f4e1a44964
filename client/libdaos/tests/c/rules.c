/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on what is open, what may be changed, and what is read of a call. */
#include "check.h"

static int
put(daos_handle_t oh, uint64_t flags, uint64_t iod_flags)
{
	daos_key_t dkey;
	daos_iod_t iod = {0};
	d_iov_t iov;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};

	d_iov_set(&dkey, "d", 1);
	d_iov_set(&iod.iod_name, "a", 1);
	iod.iod_type = DAOS_IOD_SINGLE;
	iod.iod_size = 1;
	iod.iod_nr = 1;
	iod.iod_flags = iod_flags;
	d_iov_set(&iov, "v", 1);
	return daos_obj_update(oh, DAOS_TX_NONE, flags, &dkey, 1, &iod, &sgl, NULL);
}

/* Nothing is destroyed that isn't there, and nothing is said to be. */
static void
missing(daos_handle_t poh)
{
	CHECK_RC(daos_cont_destroy(poh, "c-nowhere", 0, NULL), -DER_NONEXIST);
	CHECK_RC(daos_cont_destroy(poh, "c-nowhere", 1, NULL), -DER_NONEXIST);
	OK(daos_cont_create_with_label(poh, "c-once", NULL, NULL, NULL));
	OK(daos_cont_destroy(poh, "c-once", 0, NULL));
	CHECK_RC(daos_cont_destroy(poh, "c-once", 0, NULL), -DER_NONEXIST);
}

/* Conditions of an akey count only where the call says so. */
static void
conditions(daos_handle_t oh)
{
	OK(put(oh, 0, 0xfeedfacecafebeefULL));
	OK(put(oh, 0, DAOS_COND_AKEY_INSERT));
	CHECK_RC(put(oh, DAOS_COND_PER_AKEY, DAOS_COND_AKEY_INSERT), -DER_EXIST);
	CHECK_RC(put(oh, DAOS_COND_PER_AKEY, 0xfeedfacecafebeefULL), -DER_INVAL);
}

/* What holds something open isn't closed. */
static void
children(char **argv)
{
	daos_handle_t poh, coh, oh, kv, array;
	daos_obj_id_t oid = {.lo = 5}, kv_id = {.lo = 6}, array_id = {.lo = 7};

	OK(daos_pool_connect(argv[1], NULL, DAOS_PC_RW, &poh, NULL, NULL));
	OK(daos_cont_create_with_label(poh, "c-children", NULL, NULL, NULL));
	OK(daos_cont_open(poh, "c-children", DAOS_COO_RW, &coh, NULL, NULL));
	CHECK_RC(daos_pool_disconnect(poh, NULL), -DER_BUSY);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0));
	OK(daos_obj_generate_oid(coh, &kv_id, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
	OK(daos_array_generate_oid(coh, &array_id, true, OC_S1, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	CHECK_RC(daos_cont_close(coh, NULL), -DER_BUSY);
	OK(put(oh, 0, 0));
	OK(daos_obj_close(oh, NULL));
	OK(daos_kv_open(coh, kv_id, DAOS_OO_RW, &kv, NULL));
	CHECK_RC(daos_cont_close(coh, NULL), -DER_BUSY);
	OK(daos_kv_close(kv, NULL));
	OK(daos_array_create(coh, array_id, DAOS_TX_NONE, 1, 1024, &array, NULL));
	CHECK_RC(daos_cont_close(coh, NULL), -DER_BUSY);
	OK(daos_array_close(array, NULL));
	OK(daos_cont_close(coh, NULL));
	CHECK_RC(daos_cont_close(coh, NULL), -DER_NO_HDL);
	OK(daos_cont_destroy(poh, "c-children", 0, NULL));
	OK(daos_pool_disconnect(poh, NULL));
}

/* Nothing is changed through what was opened for reading. */
static void
read_only(daos_handle_t poh, daos_handle_t coh)
{
	static const unsigned int modes[] = {DAOS_OO_RO, DAOS_OO_RW};
	daos_obj_id_t oid = {.lo = 8}, kv_id = {.lo = 9}, array_id = {.lo = 10};
	daos_handle_t oh, kv, array, reader, containers[2];
	daos_size_t cell, chunk;
	daos_range_t range = {.rg_idx = 0, .rg_len = 1};
	daos_array_iod_t iod = {.arr_nr = 1, .arr_rgs = &range};
	d_iov_t iov, dkey;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};

	d_iov_set(&iov, "x", 1);
	d_iov_set(&dkey, "d", 1);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0));
	OK(daos_obj_generate_oid(coh, &kv_id, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
	OK(daos_array_generate_oid(coh, &array_id, true, OC_S1, 0, 0));
	OK(daos_array_create(coh, array_id, DAOS_TX_NONE, 1, 1024, &array, NULL));
	OK(daos_array_close(array, NULL));
	OK(daos_cont_open(poh, "c-rules", DAOS_COO_RO, &reader, NULL, NULL));
	containers[0] = coh;
	containers[1] = reader;
	/* An object for reading in a container for writing, and the other way round. */
	for (int i = 0; i < 2; i++) {
		OK(daos_obj_open(containers[i], oid, modes[i], &oh, NULL));
		CHECK_RC(put(oh, 0, 0), -DER_NO_PERM);
		CHECK_RC(daos_obj_punch(oh, DAOS_TX_NONE, 0, NULL), -DER_NO_PERM);
		CHECK_RC(daos_obj_punch_dkeys(oh, DAOS_TX_NONE, 0, 1, &dkey, NULL), -DER_NO_PERM);
		CHECK_RC(daos_obj_punch_akeys(oh, DAOS_TX_NONE, 0, &dkey, 1, &dkey, NULL), -DER_NO_PERM);
		OK(daos_obj_close(oh, NULL));
		OK(daos_kv_open(containers[i], kv_id, modes[i], &kv, NULL));
		CHECK_RC(daos_kv_put(kv, DAOS_TX_NONE, 0, "k", 1, "v", NULL), -DER_NO_PERM);
		CHECK_RC(daos_kv_remove(kv, DAOS_TX_NONE, 0, "k", NULL), -DER_NO_PERM);
		CHECK_RC(daos_kv_destroy(kv, DAOS_TX_NONE, NULL), -DER_NO_PERM);
		OK(daos_kv_close(kv, NULL));
		OK(daos_array_open(containers[i], array_id, DAOS_TX_NONE, modes[i], &cell, &chunk, &array, NULL));
		CHECK_RC(daos_array_write(array, DAOS_TX_NONE, &iod, &sgl, NULL), -DER_NO_PERM);
		CHECK_RC(daos_array_punch(array, DAOS_TX_NONE, &iod, NULL), -DER_NO_PERM);
		CHECK_RC(daos_array_set_size(array, DAOS_TX_NONE, 5, NULL), -DER_NO_PERM);
		CHECK_RC(daos_array_destroy(array, DAOS_TX_NONE, NULL), -DER_NO_PERM);
		OK(daos_array_get_size(array, DAOS_TX_NONE, &cell, NULL));
		OK(daos_array_close(array, NULL));
	}
	CHECK_RC(daos_array_create(reader, array_id, DAOS_TX_NONE, 1, 1024, &array, NULL), -DER_NO_PERM);
	OK(daos_cont_close(reader, NULL));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, oh;
	daos_obj_id_t oid = {.lo = 3};

	CHECK(argc == 2);
	start(argv, "c-rules", &poh, &coh);
	missing(poh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	conditions(oh);
	OK(daos_obj_close(oh, NULL));
	children(argv);
	read_only(poh, coh);
	return finish("c-rules", poh, coh);
}
