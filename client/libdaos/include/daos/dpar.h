/* SPDX-License-Identifier: Apache-2.0 */
/* Names of DAOS's wrapper of MPI; test programs use it. Its functions aren't there. */
#ifndef WEIR_DAOS_DPAR_H
#define WEIR_DAOS_DPAR_H

#include <inttypes.h>
#include <stdbool.h>

/* All processes. */
#define PAR_COMM_WORLD 0

/* Types of values. */
enum par_type {
	PAR_INT = 0,
	PAR_CHAR = 1,
	PAR_BYTE = 2,
	PAR_UINT64 = 3,
	PAR_DOUBLE = 4
};

/* Reductions. */
enum par_op {
	PAR_MAX = 0,
	PAR_MIN = 1,
	PAR_SUM = 2
};

#endif
