/* SPDX-License-Identifier: Apache-2.0 */
/* A file that several MPI ranks write and read by MPI-IO: each its own blocks, together, strided, and by requests that are waited for.
 *
 *   mpirun -n 2 files daos:/FILE
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#define BLOCK 65536
#define ROUNDS 8

#define OK(call) \
	do { \
		int ok_rc = (call); \
		if (ok_rc != MPI_SUCCESS) { \
			char ok_text[MPI_MAX_ERROR_STRING]; \
			int ok_length; \
			MPI_Error_string(ok_rc, ok_text, &ok_length); \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ok_text); \
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

static int rank, ranks;
static int block[BLOCK], found[BLOCK];

static void
fill(int *cells, int of, int round)
{
	for (int i = 0; i < BLOCK; i++)
		cells[i] = of * 1000003 + round * 101 + i;
}

static void
expect(const int *cells, int of, int round)
{
	for (int i = 0; i < BLOCK; i++)
		CHECK(cells[i] == of * 1000003 + round * 101 + i);
}

static MPI_Offset
place(int of, int round)
{
	return ((MPI_Offset)round * ranks + of) * (MPI_Offset)sizeof(block);
}

int
main(int argc, char **argv)
{
	MPI_File file;
	MPI_Request request;
	MPI_Datatype strided;
	MPI_Offset size;
	int next;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(argc == 2 && ranks > 1);
	next = (rank + 1) % ranks;
	OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
	for (int round = 0; round < ROUNDS; round++) {
		fill(block, rank, round);
		if (round % 2 == 0) {
			OK(MPI_File_write_at_all(file, place(rank, round), block, BLOCK, MPI_INT, MPI_STATUS_IGNORE));
		} else {
			OK(MPI_File_iwrite_at(file, place(rank, round), block, BLOCK, MPI_INT, &request));
			OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
		}
	}
	OK(MPI_File_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	for (int round = 0; round < ROUNDS; round++) {
		OK(MPI_File_read_at(file, place(next, round), found, BLOCK, MPI_INT, MPI_STATUS_IGNORE));
		expect(found, next, round);
	}
	OK(MPI_File_get_size(file, &size));
	CHECK(size == place(0, ROUNDS));
	MPI_Barrier(MPI_COMM_WORLD);
	/* Each rank sees the cells that belong to it only: every second one of two. */
	OK(MPI_Type_vector(BLOCK, 1, ranks, MPI_INT, &strided));
	OK(MPI_Type_commit(&strided));
	OK(MPI_File_set_view(file, rank * (MPI_Offset)sizeof(int), MPI_INT, strided, "native", MPI_INFO_NULL));
	fill(block, rank, ROUNDS);
	OK(MPI_File_write_all(file, block, BLOCK, MPI_INT, MPI_STATUS_IGNORE));
	MPI_Barrier(MPI_COMM_WORLD);
	OK(MPI_File_set_view(file, next * (MPI_Offset)sizeof(int), MPI_INT, strided, "native", MPI_INFO_NULL));
	OK(MPI_File_read_all(file, found, BLOCK, MPI_INT, MPI_STATUS_IGNORE));
	expect(found, next, ROUNDS);
	OK(MPI_Type_free(&strided));
	OK(MPI_File_close(&file));
	if (rank == 0) {
		OK(MPI_File_delete(argv[1], MPI_INFO_NULL));
		printf("%d ranks wrote and verified a file\n", ranks);
	}
	MPI_Finalize();
	return 0;
}
