/* SPDX-License-Identifier: Apache-2.0 */
/* Types of the base library. */
#ifndef WEIR_GURT_TYPES_H
#define WEIR_GURT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<uuid/uuid.h>)
#include <uuid/uuid.h>
#define WEIR_HAS_UUID 1
#endif
#endif
#ifndef WEIR_HAS_UUID
typedef unsigned char uuid_t[16];
#endif

/* A UUID that can be assigned. */
struct d_uuid {
	uuid_t uuid;
};

/* Rank of an engine. */
typedef uint32_t d_rank_t;
typedef char *d_string_t;
typedef const char *d_const_string_t;

/* A list of ranks. */
typedef struct {
	d_rank_t *rl_ranks;
	uint32_t rl_nr;
} d_rank_list_t;

/* One run of memory. */
typedef struct {
	/* Where it is. */
	void *iov_buf;
	/* Bytes that are there. */
	size_t iov_buf_len;
	/* Bytes that hold data. */
	size_t iov_len;
} d_iov_t;

/* Several runs of memory, used as one. */
typedef struct {
	/* Runs in the list. */
	uint32_t sg_nr;
	/* Runs that hold data after a fetch. */
	uint32_t sg_nr_out;
	d_iov_t *sg_iovs;
} d_sg_list_t;

/* Makes a run of memory that is full of data. */
static inline void
d_iov_set(d_iov_t *iov, void *buf, size_t size)
{
	iov->iov_buf = buf;
	iov->iov_buf_len = size;
	iov->iov_len = size;
}

#endif
