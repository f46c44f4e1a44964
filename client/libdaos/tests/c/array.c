/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: two ranges written and read in one call, holes, sizes, handles for other processes. */
#include "check.h"

/* Large enough for data to move from and to these buffers directly. */
#define CELLS (512 * 1024)
#define BUFSIZE (2 * CELLS)

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, array, other;
	daos_obj_id_t oid = {.lo = 7, .hi = 0};
	daos_size_t size, cell, chunk;
	daos_array_stbuf_t stat;
	daos_array_iod_t iod;
	daos_range_t rgs[2];
	d_sg_list_t sgl;
	d_iov_t iov, glob = {0};
	char *buf = malloc(BUFSIZE), *found = malloc(BUFSIZE);

	CHECK(argc == 2 && buf != NULL && found != NULL);
	start(argv, "c-array", &poh, &coh);
	OK(daos_array_generate_oid(coh, &oid, true, OC_SX, 0, 0));
	OK(daos_array_create(coh, oid, DAOS_TX_NONE, 1, CELLS, &array, NULL));
	CHECK_RC(daos_array_create(coh, oid, DAOS_TX_NONE, 1, CELLS, &other, NULL), -DER_EXIST);

	for (int i = 0; i < BUFSIZE; i++)
		buf[i] = (char)(i * 7 + i / 251);
	sgl.sg_nr = 1;
	d_iov_set(&iov, buf, BUFSIZE);
	sgl.sg_iovs = &iov;
	iod.arr_nr = 2;
	iod.arr_rgs = rgs;
	rgs[0].rg_idx = 100;
	rgs[0].rg_len = CELLS;
	rgs[1].rg_idx = 3 * CELLS;
	rgs[1].rg_len = CELLS;
	OK(daos_array_write(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	OK(daos_array_get_size(array, DAOS_TX_NONE, &size, NULL));
	CHECK(size == 4 * CELLS);
	OK(daos_array_stat(array, DAOS_TX_NONE, &stat, NULL));
	CHECK(stat.st_size == size && stat.st_max_epoch != 0);

	d_iov_set(&iov, found, BUFSIZE);
	OK(daos_array_read(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	CHECK(memcmp(buf, found, BUFSIZE) == 0);
	CHECK(iod.arr_nr_read == BUFSIZE && iod.arr_nr_short_read == 0);

	/* A hole, and the end: zeros, and a short read. */
	memset(found, 1, BUFSIZE);
	rgs[0].rg_idx = 2 * CELLS;
	rgs[0].rg_len = 10;
	rgs[1].rg_idx = 4 * CELLS - 5;
	rgs[1].rg_len = 20;
	OK(daos_array_read(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	CHECK(found[0] == 0 && found[9] == 0 && memcmp(found + 10, buf + BUFSIZE - 5, 5) == 0);
	CHECK(iod.arr_nr_read == 15 && iod.arr_nr_short_read == 15);

	OK(daos_array_set_size(array, DAOS_TX_NONE, CELLS + 1, NULL));
	OK(daos_array_get_size(array, DAOS_TX_NONE, &size, NULL));
	CHECK(size == CELLS + 1);

	/* The handle as another process would get it. */
	OK(daos_array_local2global(array, &glob));
	glob.iov_buf = malloc(glob.iov_buf_len);
	CHECK(glob.iov_buf != NULL);
	OK(daos_array_local2global(array, &glob));
	OK(daos_array_global2local(coh, glob, DAOS_OO_RW, &other));
	free(glob.iov_buf);
	OK(daos_array_get_attr(other, &chunk, &cell));
	CHECK(chunk == CELLS && cell == 1);
	OK(daos_array_close(other, NULL));

	OK(daos_array_close(array, NULL));
	OK(daos_array_open(coh, oid, DAOS_TX_NONE, DAOS_OO_RW, &cell, &chunk, &array, NULL));
	CHECK(cell == 1 && chunk == CELLS);
	OK(daos_array_destroy(array, DAOS_TX_NONE, NULL));
	OK(daos_array_close(array, NULL));
	CHECK_RC(daos_array_open(coh, oid, DAOS_TX_NONE, DAOS_OO_RW, &cell, &chunk, &array, NULL), -DER_NONEXIST);
	free(buf);
	free(found);
	return finish("c-array", poh, coh);
}
