/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of programs on themselves. */
#ifndef WEIR_GURT_DEBUG_H
#define WEIR_GURT_DEBUG_H

#include <assert.h>
#include <stdlib.h>

#include <gurt/dlog.h>

/* Ends the program when a condition is false; with a message in the second form. */
#define D_ASSERT(condition) \
	do { \
		if (!(condition)) { \
			D_FATAL("Assertion '%s' failed\n", #condition); \
			abort(); \
		} \
	} while (0)
#define D_ASSERTF(condition, fmt, ...) \
	do { \
		if (!(condition)) { \
			D_FATAL("Assertion '%s' failed: " fmt, #condition, ##__VA_ARGS__); \
			abort(); \
		} \
	} while (0)

/* A condition that the compiler checks. */
#define D_CASSERT(condition, ...) static_assert(condition, #condition)

#endif
