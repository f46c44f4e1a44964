/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share: a check that ends the program, and its start and end. */
#ifndef WEIR_TEST_CHECK_H
#define WEIR_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <daos.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

#define CHECK_RC(call, expected) \
	do { \
		int check_rc = (call); \
		if (check_rc != (expected)) { \
			fprintf(stderr, "%s:%d: %s gave " DF_RC ", not %d\n", __FILE__, __LINE__, #call, \
				DP_RC(check_rc), (expected)); \
			exit(1); \
		} \
	} while (0)

#define OK(call) CHECK_RC(call, 0)

/* Connects to the pool that the program was given and opens a container of its own. */
static inline void
start(char **argv, const char *label, daos_handle_t *poh, daos_handle_t *coh)
{
	uuid_t uuid;

	OK(daos_init());
	OK(daos_pool_connect(argv[1], NULL, DAOS_PC_RW, poh, NULL, NULL));
	OK(daos_cont_create_with_label(*poh, label, NULL, &uuid, NULL));
	OK(daos_cont_open(*poh, label, DAOS_COO_RW, coh, NULL, NULL));
}

static inline int
finish(const char *label, daos_handle_t poh, daos_handle_t coh)
{
	OK(daos_cont_close(coh, NULL));
	OK(daos_cont_destroy(poh, label, 0, NULL));
	OK(daos_pool_disconnect(poh, NULL));
	OK(daos_fini());
	printf("ok\n");
	return 0;
}

#endif
