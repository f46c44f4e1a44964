/* SPDX-License-Identifier: Apache-2.0 */
/* Two levels of keys: a single value and an array under one dkey, sizes, maps of holes, lists, integer keys. */
#include "check.h"

#define BUF1LEN 10240

static void
set_dkey(daos_key_t *key, const char *text)
{
	d_iov_set(key, (void *)text, strlen(text));
}

static void
integer_keys(daos_handle_t coh)
{
	daos_obj_id_t oid = {.lo = 3, .hi = 0};
	daos_handle_t oh;
	daos_anchor_t anchor = {0};
	daos_key_desc_t kds[4];
	uint64_t number = 258, keys[4];
	uint32_t nr = 4;
	daos_key_t dkey;
	daos_iod_t iod = {0};
	d_sg_list_t sgl = {.sg_nr = 1};
	d_iov_t iov;

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_UINT64, OC_S1, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	d_iov_set(&dkey, &number, sizeof(number));
	d_iov_set(&iod.iod_name, &number, sizeof(number));
	iod.iod_type = DAOS_IOD_SINGLE;
	iod.iod_nr = 1;
	iod.iod_size = 3;
	d_iov_set(&iov, "abc", 3);
	sgl.sg_iovs = &iov;
	OK(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL));
	/* Room for more than any value has. */
	char *room = calloc(1, 16 << 20);

	d_iov_set(&iov, room, 16 << 20);
	iod.iod_size = DAOS_REC_ANY;
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL, NULL));
	CHECK(iod.iod_size == 3 && iov.iov_len == 3 && memcmp(room, "abc", 4) == 0);
	free(room);
	d_iov_set(&iov, keys, sizeof(keys));
	OK(daos_obj_list_dkey(oh, DAOS_TX_NONE, &nr, kds, &sgl, &anchor, NULL));
	CHECK(nr == 1 && kds[0].kd_key_len == sizeof(number) && keys[0] == number);
	d_iov_set(&dkey, &number, 4);
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL), -DER_INVAL);
	OK(daos_obj_close(oh, NULL));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, oh;
	daos_obj_id_t oid = {.lo = 2, .hi = 0};
	const char *buf2 = "single_value, my string";
	char buf1[BUF1LEN], rbuf1[BUF1LEN + 100], rbuf2[128], names[256];
	daos_key_t dkey, doomed;
	daos_iod_t iods[2] = {0};
	d_sg_list_t sgls[2] = {0};
	d_iov_t iovs[2];
	daos_recx_t recx, present[4];
	daos_iom_t ioms[2] = {0};
	daos_key_desc_t kds[4];
	daos_anchor_t anchor = {0};
	uint32_t nr = 4;

	CHECK(argc == 2);
	start(argv, "c-multilevel", &poh, &coh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_SX, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));

	for (int i = 0; i < BUF1LEN; i++)
		buf1[i] = (char)(i % 127);
	set_dkey(&dkey, "dkey1");
	set_dkey(&iods[0].iod_name, "akey1");
	iods[0].iod_type = DAOS_IOD_ARRAY;
	iods[0].iod_size = 1;
	recx.rx_idx = 50;
	recx.rx_nr = BUF1LEN;
	iods[0].iod_nr = 1;
	iods[0].iod_recxs = &recx;
	set_dkey(&iods[1].iod_name, "akey2");
	iods[1].iod_type = DAOS_IOD_SINGLE;
	iods[1].iod_size = strlen(buf2);
	iods[1].iod_nr = 1;
	d_iov_set(&iovs[0], buf1, BUF1LEN);
	d_iov_set(&iovs[1], (void *)buf2, strlen(buf2));
	sgls[0].sg_nr = 1;
	sgls[0].sg_iovs = &iovs[0];
	sgls[1].sg_nr = 1;
	sgls[1].sg_iovs = &iovs[1];
	OK(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 2, iods, sgls, NULL));
	CHECK_RC(daos_obj_update(oh, DAOS_TX_NONE, DAOS_COND_DKEY_INSERT, &dkey, 2, iods, sgls, NULL), -DER_EXIST);

	/* Sizes that are not known. */
	iods[0].iod_size = DAOS_REC_ANY;
	iods[1].iod_size = DAOS_REC_ANY;
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 2, iods, NULL, NULL, NULL));
	CHECK(iods[0].iod_size == 1 && iods[1].iod_size == strlen(buf2));

	/* More than there is: what holes have is left alone, and the map tells what is real. */
	memset(rbuf1, 'h', sizeof(rbuf1));
	recx.rx_idx = 0;
	recx.rx_nr = sizeof(rbuf1);
	ioms[0].iom_nr = 4;
	ioms[0].iom_recxs = present;
	d_iov_set(&iovs[0], rbuf1, sizeof(rbuf1));
	d_iov_set(&iovs[1], rbuf2, sizeof(rbuf2));
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 2, iods, sgls, ioms, NULL));
	CHECK(rbuf1[0] == 'h' && rbuf1[49] == 'h' && memcmp(rbuf1 + 50, buf1, BUF1LEN) == 0);
	CHECK(rbuf1[BUF1LEN + 50] == 'h');
	CHECK(ioms[0].iom_nr_out == 1 && present[0].rx_idx == 50 && present[0].rx_nr == BUF1LEN);
	CHECK(iovs[1].iov_len == strlen(buf2) && memcmp(rbuf2, buf2, strlen(buf2)) == 0);
	CHECK(sgls[1].sg_nr_out == 1);

	/* Too little memory, a key that is not there, a condition on it. */
	iovs[1].iov_buf_len = 3;
	CHECK_RC(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &dkey, 1, &iods[1], &sgls[1], NULL, NULL), -DER_REC2BIG);
	d_iov_set(&iovs[1], rbuf2, sizeof(rbuf2));
	set_dkey(&doomed, "none");
	OK(daos_obj_fetch(oh, DAOS_TX_NONE, 0, &doomed, 1, &iods[1], &sgls[1], NULL, NULL));
	CHECK(iods[1].iod_size == 0 && sgls[1].sg_nr_out == 0);
	CHECK_RC(daos_obj_fetch(oh, DAOS_TX_NONE, DAOS_COND_DKEY_FETCH, &doomed, 1, &iods[1], &sgls[1], NULL, NULL),
		 -DER_NONEXIST);

	/* Both keys are listed; one is removed, then the dkey. */
	d_iov_set(&iovs[0], names, sizeof(names));
	OK(daos_obj_list_akey(oh, DAOS_TX_NONE, &dkey, &nr, kds, &sgls[0], &anchor, NULL));
	CHECK(nr == 2 && kds[0].kd_key_len == 5 && memcmp(names, "akey1akey2", 10) == 0);
	set_dkey(&doomed, "akey1");
	OK(daos_obj_punch_akeys(oh, DAOS_TX_NONE, 0, &dkey, 1, &doomed, NULL));
	memset(&anchor, 0, sizeof(anchor));
	nr = 4;
	OK(daos_obj_list_akey(oh, DAOS_TX_NONE, &dkey, &nr, kds, &sgls[0], &anchor, NULL));
	CHECK(nr == 1 && daos_anchor_is_eof(&anchor));
	memset(&anchor, 0, sizeof(anchor));
	nr = 4;
	iovs[0].iov_buf_len = 2;
	CHECK_RC(daos_obj_list_dkey(oh, DAOS_TX_NONE, &nr, kds, &sgls[0], &anchor, NULL), -DER_KEY2BIG);
	CHECK(kds[0].kd_key_len == 5);
	OK(daos_obj_punch_dkeys(oh, DAOS_TX_NONE, DAOS_COND_PUNCH, 1, &dkey, NULL));
	CHECK_RC(daos_obj_punch_dkeys(oh, DAOS_TX_NONE, DAOS_COND_PUNCH, 1, &dkey, NULL), -DER_NONEXIST);
	OK(daos_obj_punch(oh, DAOS_TX_NONE, 0, NULL));
	OK(daos_obj_close(oh, NULL));

	integer_keys(coh);
	return finish("c-multilevel", poh, coh);
}
