/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the interface. */
#ifndef WEIR_DAOS_VERSION_H
#define WEIR_DAOS_VERSION_H

#define DAOS_API_VERSION_MAJOR 2
#define DAOS_API_VERSION_MINOR 8
#define DAOS_API_VERSION_FIX 0

#define DAOS_VERSION_MAJOR 2
#define DAOS_VERSION_MINOR 8
#define DAOS_VERSION_FIX 100

/* Spelt as programs spell it. */
#define DAOS_VERSION_PROTOCAL 1

#include <stdint.h>

/* A version in one number. */
typedef union {
	uint32_t raw;
	struct {
		uint8_t protocol;
		uint8_t patch;
		uint8_t minor;
		uint8_t major;
	};
} daos_version_t;

/* Tells the version of these headers. */
static inline void
daos_version_pack(daos_version_t *ver)
{
	ver->major = DAOS_VERSION_MAJOR;
	ver->minor = DAOS_VERSION_MINOR;
	ver->patch = DAOS_VERSION_FIX;
	ver->protocol = DAOS_VERSION_PROTOCAL;
}

static inline uint8_t
daos_version_get_protocol(const daos_version_t *ver)
{
	return ver->protocol;
}

#endif
