/* SPDX-License-Identifier: Apache-2.0 */
/* Small functions on types of the interface. */
#ifndef WEIR_DAOS_API_H
#define WEIR_DAOS_API_H

#include <string.h>

#include <daos_types.h>

static inline int
daos_anchor_init(daos_anchor_t *anchor, unsigned int opts)
{
	(void)opts;
	memset(anchor, 0, sizeof(*anchor));
	return 0;
}

static inline void
daos_anchor_fini(daos_anchor_t *anchor)
{
	(void)anchor;
}

static inline bool
daos_anchor_is_eof(daos_anchor_t *anchor)
{
	return anchor->da_type == DAOS_ANCHOR_TYPE_EOF;
}

static inline void
daos_anchor_set_zero(daos_anchor_t *anchor)
{
	memset(anchor, 0, sizeof(*anchor));
}

static inline bool
daos_anchor_is_zero(daos_anchor_t *anchor)
{
	return anchor->da_type == DAOS_ANCHOR_TYPE_ZERO;
}

#endif
