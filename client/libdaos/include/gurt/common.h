/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and error helpers of the base library. */
#ifndef WEIR_GURT_COMMON_H
#define WEIR_GURT_COMMON_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <daos_errno.h>
#include <gurt/types.h>

#define ARRAY_SIZE(x) (sizeof(x) / sizeof((x)[0]))

/* Memory that is zeroed; ptr is NULL when there is none. */
#define D_ALLOC(ptr, size) ((ptr) = calloc(1, (size)))
#define D_ALLOC_PTR(ptr) D_ALLOC((ptr), sizeof(*(ptr)))
#define D_ALLOC_ARRAY(ptr, count) ((ptr) = calloc((count), sizeof(*(ptr))))
#define D_FREE(ptr) \
	do { \
		free(ptr); \
		(ptr) = NULL; \
	} while (0)
#define D_STRNDUP(ptr, text, len) ((ptr) = strndup((text), (len)))

#endif
