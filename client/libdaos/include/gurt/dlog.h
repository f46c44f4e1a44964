/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of programs: errors and warnings go to standard error, the rest is checked by the compiler and dropped. */
#ifndef WEIR_GURT_DLOG_H
#define WEIR_GURT_DLOG_H

#include <stdio.h>

#include <daos_errno.h>

/* Prints one message with its level and place. */
#define D_PRINT_LEVEL(level, fmt, ...) \
	fprintf(stderr, level " %s:%d %s() " fmt, __FILE__, __LINE__, __func__, ##__VA_ARGS__)
/* Takes a message and prints nothing. */
#define D_PRINT_NOTHING(fmt, ...) \
	do { \
		if (0) \
			fprintf(stderr, fmt, ##__VA_ARGS__); \
	} while (0)

/* A message by its level. */
#define D_FATAL(fmt, ...) D_PRINT_LEVEL("FATAL", fmt, ##__VA_ARGS__)
#define D_CRIT(fmt, ...) D_PRINT_LEVEL("CRIT", fmt, ##__VA_ARGS__)
#define D_ERROR(fmt, ...) D_PRINT_LEVEL("ERROR", fmt, ##__VA_ARGS__)
#define D_WARN(fmt, ...) D_PRINT_LEVEL("WARN", fmt, ##__VA_ARGS__)
#define D_NOTE(fmt, ...) D_PRINT_NOTHING(fmt, ##__VA_ARGS__)
#define D_INFO(fmt, ...) D_PRINT_NOTHING(fmt, ##__VA_ARGS__)
/* A message for debugging; the mask isn't looked at. */
#define D_DEBUG(mask, fmt, ...) D_PRINT_NOTHING(fmt, ##__VA_ARGS__)
/* A message to standard output. */
#define D_PRINT(fmt, ...) fprintf(stdout, fmt, ##__VA_ARGS__)

/* A message by its level with a return code behind it. */
#define DL_ERROR(rc, fmt, ...) D_ERROR(fmt ": " DF_RC "\n", ##__VA_ARGS__, DP_RC(rc))
#define DL_WARN(rc, fmt, ...) D_WARN(fmt ": " DF_RC "\n", ##__VA_ARGS__, DP_RC(rc))
#define DL_INFO(rc, fmt, ...) D_INFO(fmt ": " DF_RC "\n", ##__VA_ARGS__, DP_RC(rc))

#endif
