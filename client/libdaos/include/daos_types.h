/* SPDX-License-Identifier: Apache-2.0 */
/* Types that all parts of the interface use. */
#ifndef WEIR_DAOS_TYPES_H
#define WEIR_DAOS_TYPES_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <daos_errno.h>
#include <daos_version.h>
#include <gurt/types.h>

#define DAOS_ATTR_NAME_MAX 511
#define DAOS_SYS_NAME_MAX 15
#define DAOS_SYS_INFO_STRING_MAX 63
#define DAOS_UUID_STR_SIZE 37
#define DAOS_HKEY_MAX 32
#define DAOS_ANCHOR_BUF_MAX 104

typedef uint64_t daos_size_t;
typedef uint64_t daos_off_t;

/* A key: bytes in one run of memory. */
typedef d_iov_t daos_key_t;

/* Whether a key has no bytes. */
static inline bool
daos_key_is_null(daos_key_t key)
{
	return key.iov_buf == NULL || key.iov_len == 0;
}

/* Whether a text is a UUID with its hyphens. */
static inline bool
daos_is_valid_uuid_string(const char *text)
{
	const size_t length = DAOS_UUID_STR_SIZE - 1;
	size_t at;

	if (strnlen(text, length + 1) != length)
		return false;
	for (at = 0; at < length; at++) {
		bool hyphen = at == 8 || at == 13 || at == 18 || at == 23;

		if (hyphen ? text[at] != '-' : !isxdigit((unsigned char)text[at]))
			return false;
	}
	return true;
}

/* Names something that is open: pool, container, object, event queue. */
typedef struct {
	uint64_t cookie;
} daos_handle_t;

#define DAOS_HDL_INVAL ((daos_handle_t){0})
/* The call is a transaction of its own. */
#define DAOS_TX_NONE ((daos_handle_t){0})

/* What a handle stands for: the lowest bits of its cookie. */
enum {
	DAOS_HTYPE_EQ = 1,
	DAOS_HTYPE_POOL = 3,
	DAOS_HTYPE_CO = 5,
	DAOS_HTYPE_OBJ = 7,
	DAOS_HTYPE_ARRAY = 9,
	DAOS_HTYPE_TX = 11,
	DAOS_HTYPE_KV = 13
};

static inline bool
daos_handle_is_inval(daos_handle_t hdl)
{
	return hdl.cookie == 0;
}

static inline bool
daos_handle_is_valid(daos_handle_t hdl)
{
	return hdl.cookie != 0;
}

/* Point in the order of updates. */
typedef uint64_t daos_epoch_t;

typedef struct {
	daos_epoch_t epr_lo;
	daos_epoch_t epr_hi;
} daos_epoch_range_t;

#define DAOS_EPOCH_MAX ((daos_epoch_t)-1)

/* Identity of an object. The upper half of hi holds type and class. */
typedef struct {
	uint64_t lo;
	uint64_t hi;
} daos_obj_id_t;

/* Capabilities of a pool handle. */
#define DAOS_PC_RO (1U << 0)
#define DAOS_PC_RW (1U << 1)
#define DAOS_PC_EX (1U << 2)
#define DAOS_PC_NBITS 3
#define DAOS_PC_MASK ((1U << DAOS_PC_NBITS) - 1)

typedef enum {
	DAOS_ANCHOR_TYPE_ZERO = 0,
	DAOS_ANCHOR_TYPE_HKEY = 1,
	DAOS_ANCHOR_TYPE_KEY = 2,
	DAOS_ANCHOR_TYPE_EOF = 3
} daos_anchor_type_t;

/* Where an enumeration stands: zeros at its start, opaque afterwards. */
typedef struct {
	uint16_t da_type;
	uint16_t da_shard;
	uint32_t da_flags;
	uint64_t da_sub_anchors;
	uint8_t da_buf[DAOS_ANCHOR_BUF_MAX];
} daos_anchor_t;

#define DAOS_ANCHOR_INIT {0}

#define DAOS_EQ_NOWAIT 0
#define DAOS_EQ_WAIT -1

typedef enum {
	DAOS_EVS_READY = 0,
	DAOS_EVS_RUNNING = 1,
	DAOS_EVS_COMPLETED = 2,
	DAOS_EVS_ABORTED = 3
} daos_ev_status_t;

/* An operation under way. Memory of the caller's; what is in ev_private is the library's. */
typedef struct daos_event {
	/* Return code of the operation, when it is complete. */
	int ev_error;
	struct {
		uint64_t space[20];
	} ev_private;
	uint64_t ev_debug;
} daos_event_t;

typedef enum {
	DAOS_EQR_COMPLETED = 1,
	DAOS_EQR_WAITING = 2,
	DAOS_EQR_ALL = 3
} daos_eq_query_t;

#endif
