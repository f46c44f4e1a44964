/* SPDX-License-Identifier: Apache-2.0 */
/* Several MPI ranks in one container, as programs for DAOS do it: rank 0 connects and opens, the others get its handles as bytes, and
 * all write an array and a key-value object together and read what their neighbours wrote.
 *
 *   mpirun -n 2 ranks POOL CONTAINER
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <daos.h>

#define CELLS (1 << 18)
#define KEYS 64

#define OK(call) \
	do { \
		int ok_rc = (call); \
		if (ok_rc != 0) { \
			fprintf(stderr, "%s:%d: %s gave " DF_RC "\n", __FILE__, __LINE__, #call, DP_RC(ok_rc)); \
			MPI_Abort(MPI_COMM_WORLD, 1); \
		} \
	} while (0)

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
			MPI_Abort(MPI_COMM_WORLD, 1); \
		} \
	} while (0)

enum kind { POOL, CONTAINER, ARRAY };

static int rank, ranks;

static int
to_bytes(enum kind kind, daos_handle_t handle, d_iov_t *bytes)
{
	switch (kind) {
	case POOL:
		return daos_pool_local2global(handle, bytes);
	case CONTAINER:
		return daos_cont_local2global(handle, bytes);
	default:
		return daos_array_local2global(handle, bytes);
	}
}

/* Gives rank 0's handle to all others. `within` is what it was opened in. */
static void
share(enum kind kind, daos_handle_t within, daos_handle_t *handle)
{
	d_iov_t bytes = {0};
	uint64_t length;

	if (rank == 0)
		OK(to_bytes(kind, *handle, &bytes));
	length = bytes.iov_buf_len;
	MPI_Bcast(&length, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	bytes.iov_buf = malloc(length);
	CHECK(bytes.iov_buf != NULL);
	bytes.iov_buf_len = bytes.iov_len = length;
	if (rank == 0)
		OK(to_bytes(kind, *handle, &bytes));
	MPI_Bcast(bytes.iov_buf, (int)length, MPI_BYTE, 0, MPI_COMM_WORLD);
	if (rank != 0 && kind == POOL)
		OK(daos_pool_global2local(bytes, handle));
	if (rank != 0 && kind == CONTAINER)
		OK(daos_cont_global2local(within, bytes, handle));
	if (rank != 0 && kind == ARRAY)
		OK(daos_array_global2local(within, bytes, DAOS_OO_RW, handle));
	free(bytes.iov_buf);
}

/* Writes this rank's part, or checks the part of another one. */
static void
part(daos_handle_t array, int of, bool writes)
{
	uint32_t *cells = malloc(CELLS * sizeof(*cells));
	daos_range_t range = {.rg_idx = (uint64_t)of * CELLS, .rg_len = CELLS};
	daos_array_iod_t iod = {.arr_nr = 1, .arr_rgs = &range};
	d_iov_t iov;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};

	CHECK(cells != NULL);
	for (int i = 0; i < CELLS; i++)
		cells[i] = writes ? (uint32_t)of * 7919 + (uint32_t)i : 0;
	d_iov_set(&iov, cells, CELLS * sizeof(*cells));
	if (writes) {
		OK(daos_array_write(array, DAOS_TX_NONE, &iod, &sgl, NULL));
	} else {
		OK(daos_array_read(array, DAOS_TX_NONE, &iod, &sgl, NULL));
		for (int i = 0; i < CELLS; i++)
			CHECK(cells[i] == (uint32_t)of * 7919 + (uint32_t)i);
	}
	free(cells);
}

static void
arrays(daos_handle_t coh)
{
	daos_obj_id_t oid = {.lo = 17, .hi = 4};
	daos_handle_t array;
	daos_size_t cells;

	if (rank == 0) {
		OK(daos_array_generate_oid(coh, &oid, true, OC_SX, 0, 0));
		OK(daos_array_create(coh, oid, DAOS_TX_NONE, sizeof(uint32_t), 1 << 16, &array, NULL));
	}
	share(ARRAY, coh, &array);
	part(array, rank, true);
	MPI_Barrier(MPI_COMM_WORLD);
	part(array, (rank + 1) % ranks, false);
	OK(daos_array_get_size(array, DAOS_TX_NONE, &cells, NULL));
	CHECK(cells == (daos_size_t)ranks * CELLS);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		OK(daos_array_destroy(array, DAOS_TX_NONE, NULL));
	OK(daos_array_close(array, NULL));
}

/* Each rank puts by events and reads what the next one has put. */
static void
keys(daos_handle_t coh)
{
	static daos_event_t events[KEYS];
	static char values[KEYS][32];
	daos_obj_id_t oid = {.lo = 18, .hi = 4};
	daos_handle_t kv, eq;
	daos_event_t *done[KEYS];
	char key[32], value[32];
	daos_size_t size;

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	OK(daos_eq_create(&eq));
	for (int i = 0; i < KEYS; i++) {
		snprintf(key, sizeof(key), "%d of %d", i, rank);
		snprintf(values[i], sizeof(values[i]), "value %d of %d", i, rank);
		OK(daos_event_init(&events[i], eq, NULL));
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, sizeof(values[i]), values[i], &events[i]));
	}
	for (int left = KEYS; left > 0;) {
		int found = daos_eq_poll(eq, 1, DAOS_EQ_WAIT, KEYS, done);

		CHECK(found > 0);
		for (int i = 0; i < found; i++) {
			OK(done[i]->ev_error);
			OK(daos_event_fini(done[i]));
		}
		left -= found;
	}
	OK(daos_eq_destroy(eq, 0));
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < KEYS; i++) {
		int other = (rank + 1) % ranks;
		char expected[32];

		snprintf(key, sizeof(key), "%d of %d", i, other);
		snprintf(expected, sizeof(expected), "value %d of %d", i, other);
		size = sizeof(value);
		OK(daos_kv_get(kv, DAOS_TX_NONE, 0, key, &size, value, NULL));
		CHECK(size == sizeof(value) && strcmp(value, expected) == 0);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	OK(daos_kv_close(kv, NULL));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(argc == 3 && ranks > 1);
	OK(daos_init());
	if (rank == 0) {
		OK(daos_pool_connect(argv[1], NULL, DAOS_PC_RW, &poh, NULL, NULL));
		OK(daos_cont_open(poh, argv[2], DAOS_COO_RW, &coh, NULL, NULL));
	}
	share(POOL, DAOS_HDL_INVAL, &poh);
	share(CONTAINER, poh, &coh);
	arrays(coh);
	keys(coh);
	/* The first one last: it is its handles that the others have. */
	if (rank != 0) {
		OK(daos_cont_close(coh, NULL));
		OK(daos_pool_disconnect(poh, NULL));
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		OK(daos_cont_close(coh, NULL));
		OK(daos_pool_disconnect(poh, NULL));
		printf("%d ranks wrote and verified\n", ranks);
	}
	OK(daos_fini());
	MPI_Finalize();
	return 0;
}
