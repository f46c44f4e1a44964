/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions: changes of several objects together, conflicts and restarts, snapshots, and what is refused. */
#include "check.h"

/* Objects that stand on targets of their own. */
#define OBJECTS 4

static daos_handle_t coh, kvs[OBJECTS];

static long
get(daos_handle_t th, daos_handle_t kv, const char *key)
{
	char text[32] = {0};
	daos_size_t size = sizeof(text) - 1;

	OK(daos_kv_get(kv, th, 0, key, &size, text, NULL));
	return size == 0 ? -1 : atol(text);
}

static int
put(daos_handle_t th, daos_handle_t kv, const char *key, long value)
{
	char text[32];
	int len = snprintf(text, sizeof(text), "%ld", value);

	return daos_kv_put(kv, th, 0, key, (daos_size_t)len, text, NULL);
}

static daos_handle_t
open_tx(uint64_t flags)
{
	daos_handle_t th;

	OK(daos_tx_open(coh, &th, flags, NULL));
	return th;
}

static void
changes_happen_together(void)
{
	daos_handle_t th = open_tx(0);
	daos_epoch_t epoch = 0;

	for (int i = 0; i < OBJECTS; i++)
		OK(put(th, kvs[i], "sum", 100));
	OK(put(th, kvs[0], "gone", 1));
	OK(daos_kv_remove(kvs[0], th, 0, "gone", NULL));
	/* Of two the later one. */
	OK(put(th, kvs[1], "sum", 200));
	for (int i = 0; i < OBJECTS; i++) {
		CHECK(get(DAOS_TX_NONE, kvs[i], "sum") == -1);
		CHECK(get(th, kvs[i], "sum") == -1);
	}
	OK(daos_tx_hdl2epoch(th, &epoch));
	CHECK(epoch != 0);
	OK(daos_tx_commit(th, NULL));
	for (int i = 0; i < OBJECTS; i++)
		CHECK(get(DAOS_TX_NONE, kvs[i], "sum") == (i == 1 ? 200 : 100));
	CHECK(get(DAOS_TX_NONE, kvs[0], "gone") == -1);
	CHECK_RC(daos_tx_commit(th, NULL), -DER_ALREADY);
	CHECK_RC(put(th, kvs[0], "sum", 1), -DER_NO_PERM);
	CHECK_RC(daos_tx_abort(th, NULL), -DER_NO_PERM);
	CHECK_RC(daos_tx_restart(th, NULL), -DER_NO_PERM);
	OK(daos_tx_close(th, NULL));
	CHECK_RC(daos_tx_close(th, NULL), -DER_NO_HDL);
	CHECK_RC(put(th, kvs[0], "sum", 1), -DER_NO_HDL);
}

static void
who_is_late_starts_again(void)
{
	daos_handle_t th = open_tx(0);
	int restarts = 0, rc;

	for (;;) {
		long sum = get(th, kvs[0], "sum");

		if (restarts == 0) {
			/* Somebody else comes between: what was read doesn't hold any more. */
			OK(put(DAOS_TX_NONE, kvs[0], "sum", sum + 1000));
			CHECK(get(th, kvs[0], "sum") == sum);
		}
		OK(put(th, kvs[0], "sum", sum - 10));
		OK(put(th, kvs[1], "sum", get(th, kvs[1], "sum") + 10));
		rc = daos_tx_commit(th, NULL);
		if (rc != -DER_TX_RESTART)
			break;
		CHECK_RC(put(th, kvs[0], "sum", 1), -DER_TX_RESTART);
		OK(daos_tx_restart(th, NULL));
		restarts++;
	}
	OK(rc);
	CHECK(restarts > 0);
	OK(daos_tx_close(th, NULL));
	CHECK(get(DAOS_TX_NONE, kvs[0], "sum") == 1090);
	CHECK(get(DAOS_TX_NONE, kvs[1], "sum") == 210);
}

static void
what_is_given_up_never_was(void)
{
	daos_handle_t th = open_tx(0);

	OK(put(th, kvs[2], "sum", 0));
	OK(daos_tx_abort(th, NULL));
	CHECK_RC(daos_tx_abort(th, NULL), -DER_ALREADY);
	CHECK_RC(daos_tx_commit(th, NULL), -DER_NO_PERM);
	OK(daos_tx_close(th, NULL));
	th = open_tx(0);
	OK(put(th, kvs[2], "sum", 0));
	OK(daos_tx_close(th, NULL));
	CHECK(get(DAOS_TX_NONE, kvs[2], "sum") == 100);
}

static void
conditions_hold_at_the_commit(void)
{
	daos_handle_t th = open_tx(0);

	OK(put(th, kvs[2], "sum", 1));
	OK(daos_kv_put(kvs[3], th, DAOS_COND_KEY_INSERT, "sum", 1, "1", NULL));
	CHECK_RC(daos_tx_commit(th, NULL), -DER_EXIST);
	CHECK(get(DAOS_TX_NONE, kvs[2], "sum") == 100);
	OK(daos_tx_restart(th, NULL));
	OK(put(th, kvs[2], "sum", 300));
	OK(daos_tx_commit(th, NULL));
	OK(daos_tx_close(th, NULL));
	CHECK(get(DAOS_TX_NONE, kvs[2], "sum") == 300);
}

static void
objects_and_lists(void)
{
	daos_obj_id_t oid = {.lo = 77, .hi = 0};
	daos_handle_t oh, th;
	daos_key_t dkey;
	daos_iod_t iod = {.iod_type = DAOS_IOD_ARRAY, .iod_size = 4, .iod_nr = 1};
	daos_recx_t recx = {.rx_idx = 5, .rx_nr = 2};
	d_sg_list_t sgl = {.sg_nr = 1};
	d_iov_t iov;
	char buf[8];
	daos_anchor_t anchor = {0};
	daos_key_desc_t kds[4];
	uint32_t nr = 4;

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_SX, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	d_iov_set(&dkey, "d", 1);
	d_iov_set(&iod.iod_name, "a", 1);
	iod.iod_recxs = &recx;
	d_iov_set(&iov, "abcdefgh", 8);
	sgl.sg_iovs = &iov;
	th = open_tx(0);
	OK(daos_obj_update(oh, th, 0, &dkey, 1, &iod, &sgl, NULL));
	CHECK_RC(daos_obj_update(oh, th, 0, &dkey, 1, &iod, &sgl, NULL), -DER_NOTSUPPORTED);
	OK(put(th, kvs[3], "sum", 400));
	OK(daos_tx_commit(th, NULL));
	OK(daos_tx_close(th, NULL));

	th = open_tx(0);
	d_iov_set(&iov, buf, sizeof(buf));
	OK(daos_obj_fetch(oh, th, 0, &dkey, 1, &iod, &sgl, NULL, NULL));
	CHECK(memcmp(buf, "abcdefgh", 8) == 0);
	d_iov_set(&iov, buf, sizeof(buf));
	OK(daos_obj_list_dkey(oh, th, &nr, kds, &sgl, &anchor, NULL));
	CHECK(nr == 1 && kds[0].kd_key_len == 1 && buf[0] == 'd');
	OK(daos_obj_punch_akeys(oh, th, 0, &dkey, 1, &iod.iod_name, NULL));
	CHECK_RC(daos_obj_punch_dkeys(oh, th, 0, 1, &dkey, NULL), -DER_NOTSUPPORTED);
	OK(daos_tx_restart(th, NULL));
	OK(daos_obj_punch_dkeys(oh, th, DAOS_COND_PUNCH, 1, &dkey, NULL));
	CHECK_RC(daos_obj_punch(oh, th, 0, NULL), -DER_NOTSUPPORTED);
	OK(daos_tx_commit(th, NULL));
	OK(daos_tx_close(th, NULL));
	iod.iod_size = DAOS_REC_ANY;
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, NULL, NULL, NULL));
	CHECK(iod.iod_size == 0);
	OK(daos_obj_close(oh, NULL));
}

static void
snapshots_are_read(daos_handle_t poh)
{
	daos_obj_id_t oid = {.lo = 78, .hi = 0};
	daos_handle_t array, th, reader, rth;
	daos_range_t range = {.rg_idx = 0, .rg_len = 4};
	daos_array_iod_t iod = {.arr_nr = 1, .arr_rgs = &range};
	d_sg_list_t sgl = {.sg_nr = 1};
	d_iov_t iov;
	char buf[4] = {0};
	daos_epoch_t epoch, same;
	daos_size_t size;
	daos_epoch_range_t range_of;

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_ARRAY_BYTE, OC_SX, 0, 0));
	OK(daos_array_open_with_attr(coh, oid, DAOS_TX_NONE, DAOS_OO_RW, 1, 1 << 20, &array, NULL));
	sgl.sg_iovs = &iov;
	d_iov_set(&iov, "past", 4);
	OK(daos_array_write(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	OK(daos_cont_create_snap(coh, &epoch, NULL, NULL));
	d_iov_set(&iov, "now.", 4);
	OK(daos_array_write(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	OK(put(DAOS_TX_NONE, kvs[3], "sum", 500));

	OK(daos_tx_open_snap(coh, epoch, &th, NULL));
	OK(daos_tx_hdl2epoch(th, &same));
	CHECK(same == epoch);
	CHECK(get(th, kvs[3], "sum") == 400);
	d_iov_set(&iov, buf, sizeof(buf));
	OK(daos_array_read(array, th, &iod, &sgl, NULL));
	CHECK(memcmp(buf, "past", 4) == 0);
	OK(daos_array_get_size(array, th, &size, NULL));
	CHECK(size == 4);
	CHECK_RC(daos_array_write(array, th, &iod, &sgl, NULL), -DER_NO_PERM);
	CHECK_RC(put(th, kvs[3], "sum", 1), -DER_NO_PERM);
	OK(daos_tx_commit(th, NULL));
	OK(daos_tx_close(th, NULL));
	CHECK_RC(daos_tx_open_snap(coh, 0, &th, NULL), -DER_INVAL);

	th = open_tx(0);
	CHECK_RC(daos_array_read(array, th, &iod, &sgl, NULL), -DER_NOTSUPPORTED);
	OK(daos_tx_close(th, NULL));
	OK(daos_array_close(array, NULL));
	range_of.epr_lo = range_of.epr_hi = epoch;
	OK(daos_cont_destroy_snap(coh, range_of, NULL));

	/* A handle that may only read, and what belongs to another container. */
	OK(daos_cont_open(poh, "c-transactions", DAOS_COO_RO, &reader, NULL, NULL));
	OK(daos_tx_open(reader, &rth, 0, NULL));
	CHECK(get(rth, kvs[3], "sum") == 500);
	CHECK_RC(put(rth, kvs[3], "sum", 1), -DER_NO_PERM);
	OK(daos_tx_close(rth, NULL));
	OK(daos_cont_close(reader, NULL));
}

static void
what_can_not_be_is_refused(daos_handle_t poh)
{
	static char large[16 << 10];
	daos_handle_t th, other, foreign;
	daos_obj_id_t oid = {.lo = 1, .hi = 0};
	uuid_t uuid;

	CHECK_RC(daos_tx_open(poh, &th, 0, NULL), -DER_NO_HDL);
	CHECK_RC(daos_tx_open(coh, NULL, 0, NULL), -DER_INVAL);
	CHECK_RC(daos_tx_open(coh, &th, 8, NULL), -DER_INVAL);
	CHECK_RC(daos_tx_commit(coh, NULL), -DER_NO_HDL);
	CHECK_RC(daos_tx_hdl2epoch(DAOS_TX_NONE, NULL), -DER_NO_HDL);
	th = open_tx(DAOS_TF_RDONLY);
	CHECK(get(th, kvs[3], "sum") == 500);
	CHECK_RC(put(th, kvs[3], "sum", 1), -DER_NO_PERM);
	OK(daos_tx_commit(th, NULL));
	OK(daos_tx_close(th, NULL));

	th = open_tx(DAOS_TF_ZERO_COPY);
	CHECK_RC(daos_kv_put(kvs[0], th, 0, "large", sizeof(large), large, NULL), -DER_REC2BIG);
	CHECK_RC(daos_kv_put(kvs[0], th, DAOS_COND_KEY_GET, "x", 1, "x", NULL), -DER_INVAL);
	OK(daos_kv_remove(kvs[0], th, 0, "sum", NULL));
	CHECK_RC(put(th, kvs[0], "sum", 1), -DER_NOTSUPPORTED);
	OK(daos_cont_create_with_label(poh, "c-transactions-other", NULL, &uuid, NULL));
	OK(daos_cont_open(poh, "c-transactions-other", DAOS_COO_RW, &other, NULL, NULL));
	OK(daos_obj_generate_oid(other, &oid, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
	OK(daos_kv_open(other, oid, DAOS_OO_RW, &foreign, NULL));
	CHECK_RC(put(th, foreign, "x", 1), -DER_INVAL);
	OK(daos_kv_close(foreign, NULL));
	OK(daos_cont_close(other, NULL));
	OK(daos_cont_destroy(poh, "c-transactions-other", 0, NULL));
	OK(daos_tx_close(th, NULL));
}

static void
events_complete(void)
{
	daos_handle_t eq, th;
	daos_event_t ev, *done;

	OK(daos_eq_create(&eq));
	OK(daos_event_init(&ev, eq, NULL));
	OK(daos_tx_open(coh, &th, 0, &ev));
	CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1 && done->ev_error == 0);
	OK(put(th, kvs[0], "by event", 7));
	OK(daos_tx_commit(th, &ev));
	CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1 && done->ev_error == 0);
	CHECK(get(DAOS_TX_NONE, kvs[0], "by event") == 7);
	OK(daos_tx_close(th, NULL));
	/* What can't begin has done nothing: neither a change nor the commit. */
	th = open_tx(0);
	OK(daos_kv_put(kvs[0], th, 0, "by event", 1, "8", &ev));
	CHECK_RC(daos_kv_remove(kvs[0], th, 0, "by event", &ev), -DER_BUSY);
	CHECK_RC(daos_tx_commit(th, &ev), -DER_BUSY);
	CHECK_RC(daos_tx_abort(th, &ev), -DER_BUSY);
	CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1 && done->ev_error == 0);
	OK(daos_tx_commit(th, NULL));
	CHECK(get(DAOS_TX_NONE, kvs[0], "by event") == 8);
	OK(daos_tx_close(th, NULL));
	OK(daos_event_fini(&ev));
	OK(daos_eq_destroy(eq, 0));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh;

	CHECK(argc == 2);
	start(argv, "c-transactions", &poh, &coh);
	for (int i = 0; i < OBJECTS; i++) {
		daos_obj_id_t oid = {.lo = (uint64_t)i + 1, .hi = 0};

		OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
		OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kvs[i], NULL));
	}
	changes_happen_together();
	who_is_late_starts_again();
	what_is_given_up_never_was();
	conditions_hold_at_the_commit();
	objects_and_lists();
	snapshots_are_read(poh);
	what_can_not_be_is_refused(poh);
	events_complete();
	for (int i = 0; i < OBJECTS; i++)
		OK(daos_kv_close(kvs[i], NULL));
	return finish("c-transactions", poh, coh);
}
