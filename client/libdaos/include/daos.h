/* SPDX-License-Identifier: Apache-2.0 */
/* The client interface as a whole. */
#ifndef WEIR_DAOS_H
#define WEIR_DAOS_H

#include <inttypes.h>
#include <unistd.h>

#include <daos_api.h>
#include <daos_array.h>
#include <daos_cont.h>
#include <daos_errno.h>
#include <daos_event.h>
#include <daos_kv.h>
#include <daos_obj.h>
#include <daos_obj_class.h>
#include <daos_pool.h>
#include <daos_prop.h>
#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the library: reads how to reach the system. Calls are counted. */
int daos_init(void);

/* Undoes one daos_init; the last one ends all event queues and handles. */
int daos_fini(void);

/*
 * Starts the library in a forked child. Before it (or daos_init), every call in the child is -DER_UNINIT; the parent's handles and
 * events stay the parent's, and its endpoints are untouched. Handles come over by local2global and global2local.
 */
int daos_reinit(void);

#ifdef __cplusplus
}
#endif

#endif
