/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, lists, messages and checks of the base library. */
#ifndef WEIR_GURT_COMMON_H
#define WEIR_GURT_COMMON_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <daos_errno.h>
#include <gurt/debug.h>
#include <gurt/list.h>
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
/* A copy of a literal or array of characters. */
#define D_STRNDUP_S(ptr, text) D_STRNDUP((ptr), (text), sizeof(text))
/* A printed text; ptr is NULL without memory. */
#define D_ASPRINTF(ptr, ...) \
	do { \
		if (asprintf(&(ptr), __VA_ARGS__) < 0) \
			(ptr) = NULL; \
	} while (0)
/* Memory of another size, zeroed behind the old one; the old one is kept when newptr is NULL. */
#define D_REALLOC(newptr, oldptr, oldsize, size) \
	((newptr) = (__typeof__(newptr))d_realloc_zeroed((oldptr), (oldsize), (size)))
#define D_REALLOC_ARRAY(newptr, oldptr, oldcount, count) \
	((newptr) = (__typeof__(newptr))d_realloc_array_zeroed((oldptr), (oldcount), (count), sizeof(*(oldptr))))
/* Memory of another size; what is behind the old one is undefined. */
#define D_REALLOC_NZ(newptr, oldptr, size) ((newptr) = (__typeof__(newptr))realloc((oldptr), (size)))

/* What D_REALLOC does. */
static inline void *
d_realloc_zeroed(void *old, size_t old_size, size_t size)
{
	void *moved = realloc(old, size);

	if (moved != NULL && size > old_size)
		memset((char *)moved + old_size, 0, size - old_size);
	return moved;
}

/* What D_REALLOC_ARRAY does; NULL also when the number of bytes doesn't fit. */
static inline void *
d_realloc_array_zeroed(void *old, size_t old_count, size_t count, size_t size)
{
	if (size != 0 && count > SIZE_MAX / size)
		return NULL;
	return d_realloc_zeroed(old, old_count * size, count * size);
}

/* Goes to a label; what else is given, e.g. rc = -DER_NOMEM, is done before. */
#define D_GOTO(label, ...) \
	do { \
		__VA_ARGS__; \
		goto label; \
	} while (0)

#ifdef __cplusplus
extern "C" {
#endif

/* Frees a list of ranks; NULL is allowed. */
void d_rank_list_free(d_rank_list_t *list);

/* Reads a variable of the environment; its place stays as it is when there is none: -DER_NONEXIST. */
int d_getenv_bool(const char *name, bool *bool_val);
int d_getenv_int(const char *name, unsigned int *uint_val);
int d_getenv_uint(const char *name, unsigned int *uint_val);
int d_getenv_uint64_t(const char *name, uint64_t *uint64_val);

#ifdef __cplusplus
}
#endif

#endif
