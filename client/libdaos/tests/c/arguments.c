/* SPDX-License-Identifier: Apache-2.0 */
/* What callers get wrong: calls before the start, handles that are none, NULL, unknown names; and handles by value. */
#include "check.h"

static void
wrong_handles(void)
{
	daos_handle_t none = {.cookie = 12345};
	daos_obj_id_t oid = {.lo = 1, .hi = 0};
	daos_handle_t oh;
	daos_size_t size;
	uint64_t first;

	CHECK_RC(daos_pool_disconnect(none, NULL), -DER_NO_HDL);
	CHECK_RC(daos_pool_query(DAOS_HDL_INVAL, NULL, NULL, NULL, NULL), -DER_NO_HDL);
	CHECK_RC(daos_cont_open(none, "x", DAOS_COO_RW, &oh, NULL, NULL), -DER_NO_HDL);
	CHECK_RC(daos_cont_close(none, NULL), -DER_NO_HDL);
	CHECK_RC(daos_cont_alloc_oids(none, 1, &first, NULL), -DER_NO_HDL);
	CHECK_RC(daos_obj_generate_oid(none, &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0), -DER_NO_HDL);
	CHECK_RC(daos_obj_open(none, oid, DAOS_OO_RW, &oh, NULL), -DER_NO_HDL);
	CHECK_RC(daos_obj_close(none, NULL), -DER_NO_HDL);
	CHECK_RC(daos_kv_open(none, oid, DAOS_OO_RW, &oh, NULL), -DER_NO_HDL);
	CHECK_RC(daos_kv_get(none, DAOS_TX_NONE, 0, "k", &size, NULL, NULL), -DER_NO_HDL);
	CHECK_RC(daos_array_close(none, NULL), -DER_NO_HDL);
	CHECK_RC(daos_array_get_size(none, DAOS_TX_NONE, &size, NULL), -DER_NO_HDL);
	CHECK_RC(daos_eq_destroy(none, 0), -DER_NO_HDL);
}

static void
wrong_pointers(daos_handle_t poh, daos_handle_t coh)
{
	daos_obj_id_t oid = {.lo = 1, .hi = 0}, bad = oid;
	daos_handle_t oh, kv, tx = {.cookie = 7};
	daos_iod_t iod = {0};
	daos_key_t dkey = {0};
	daos_event_t event = {0};

	CHECK_RC(daos_pool_connect(NULL, NULL, DAOS_PC_RW, &oh, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_pool_connect("x", NULL, DAOS_PC_RW, NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_pool_connect("x", "another-system", DAOS_PC_RW, &oh, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_pool_connect("x", NULL, 99, &oh, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_cont_open(poh, NULL, DAOS_COO_RW, &oh, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_cont_open(poh, "missing", DAOS_COO_RW, &oh, NULL, NULL), -DER_NONEXIST);
	CHECK_RC(daos_cont_open(coh, "x", DAOS_COO_RW, &oh, NULL, NULL), -DER_NO_HDL);
	CHECK_RC(daos_cont_create_with_label(poh, NULL, NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_cont_create_with_label(poh, "bad label", NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(coh, NULL, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(coh, &bad, (enum daos_otype_t)99, OC_S1, 0, 0), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(coh, &bad, DAOS_OT_MULTI_HASHED, 3, 0, 0), -DER_INVAL);
	CHECK_RC(daos_obj_generate_oid(coh, &bad, DAOS_OT_MULTI_HASHED, OC_RP_2G1, 0, 0), -DER_INVAL);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_UNKNOWN, 0, 0));
	CHECK_RC(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL), -DER_INVAL);
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, NULL, 1, &iod, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, NULL, NULL), -DER_INVAL);
	d_iov_set(&dkey, "d", 1);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, NULL, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 0, &iod, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, NULL, NULL), -DER_INVAL);
	d_iov_set(&iod.iod_name, "a", 1);
	iod.iod_type = DAOS_IOD_SINGLE;
	iod.iod_nr = 2;
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, NULL, NULL), -DER_INVAL);
	iod.iod_nr = 1;
	iod.iod_size = 10;
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, NULL, NULL), -DER_REC2BIG);
	CHECK_RC(daos_obj_fetch(oh, DAOS_TX_NONE, DAOS_COND_DKEY_INSERT, &dkey, 1, &iod, NULL, NULL, NULL),
		 -DER_INVAL);
	/* Lengths whose sum is no length. */
	d_iov_t vast[2];
	d_sg_list_t sgl = {.sg_nr = 2, .sg_iovs = vast};

	d_iov_set(&vast[0], &iod, SIZE_MAX);
	d_iov_set(&vast[1], &iod, 11);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL, NULL), -DER_INVAL);
	CHECK_RC(daos_obj_punch(oh, tx, 0, NULL), -DER_NO_HDL);
	CHECK_RC(daos_obj_close(oh, &event), -DER_INVAL);
	OK(daos_obj_close(oh, NULL));
	CHECK_RC(daos_obj_close(oh, NULL), -DER_NO_HDL);
}

static void
shared_handles(daos_handle_t poh, daos_handle_t coh)
{
	d_iov_t pool = {0}, cont = {0};
	daos_handle_t poh2, coh2;
	daos_pool_info_t info = {.pi_bits = DPI_SPACE};
	daos_cont_info_t state;
	struct daos_pool_cont_info conts[8];
	daos_size_t count = 8;
	uint64_t first, second;

	OK(daos_pool_local2global(poh, &pool));
	CHECK(pool.iov_buf_len > 0);
	pool.iov_buf = malloc(pool.iov_buf_len);
	pool.iov_buf_len -= 1;
	CHECK_RC(daos_pool_local2global(poh, &pool), -DER_TRUNC);
	OK(daos_pool_local2global(poh, &pool));
	OK(daos_pool_global2local(pool, &poh2));
	OK(daos_pool_query(poh2, NULL, &info, NULL, NULL));
	CHECK(info.pi_ntargets > 0 && info.pi_space.ps_space.s_total[DAOS_MEDIA_NVME] > 0);
	OK(daos_pool_list_cont(poh2, &count, conts, NULL));
	CHECK(count == 1 && strcmp(conts[0].pci_label, "c-arguments") == 0);

	OK(daos_cont_local2global(coh, &cont));
	cont.iov_buf = malloc(cont.iov_buf_len);
	OK(daos_cont_local2global(coh, &cont));
	OK(daos_cont_global2local(poh2, cont, &coh2));
	OK(daos_cont_query(coh2, &state, NULL, NULL));
	CHECK(memcmp(state.ci_uuid, conts[0].pci_uuid, 16) == 0);
	OK(daos_cont_alloc_oids(coh2, 10, &first, NULL));
	OK(daos_cont_alloc_oids(coh, 10, &second, NULL));
	CHECK(second >= first + 10 || first >= second + 10);
	pool.iov_len = 3;
	CHECK_RC(daos_pool_global2local(pool, &poh2), -DER_INVAL);
	free(pool.iov_buf);
	free(cont.iov_buf);
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh;
	char name[MAX_OBJ_CLASS_NAME_LEN];
	daos_prop_t *prop;

	CHECK(argc == 2);
	CHECK_RC(daos_fini(), -DER_UNINIT);
	CHECK_RC(daos_pool_connect(argv[1], NULL, DAOS_PC_RW, &poh, NULL, NULL), -DER_UNINIT);
	OK(daos_init());
	start(argv, "c-arguments", &poh, &coh);
	wrong_handles();
	wrong_pointers(poh, coh);
	shared_handles(poh, coh);

	CHECK(daos_oclass_name2id("SX") == OC_SX && daos_oclass_name2id("nonsense") == OC_UNKNOWN);
	OK(daos_oclass_id2name(OC_EC_8P2G8, name));
	CHECK(strcmp(name, "EC_8P2G8") == 0);
	CHECK(strcmp(d_errstr(-DER_NONEXIST), "DER_NONEXIST") == 0);
	CHECK(strcmp(d_errdesc(0), "Success") == 0);
	prop = daos_prop_alloc(1);
	CHECK(prop != NULL);
	prop->dpp_entries[0].dpe_type = DAOS_PROP_CO_LABEL;
	OK(daos_prop_set_str(prop, DAOS_PROP_CO_LABEL, "c-by-prop", strlen("c-by-prop")));
	OK(daos_cont_create(poh, NULL, prop, NULL));
	daos_prop_free(prop);
	CHECK_RC(daos_cont_create_with_label(poh, "c-by-prop", NULL, NULL, NULL), -DER_EXIST);
	OK(daos_cont_destroy(poh, "c-by-prop", 0, NULL));
	OK(daos_fini());
	return finish("c-arguments", poh, coh);
}
