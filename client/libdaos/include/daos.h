/* SPDX-License-Identifier: Apache-2.0 */
/* The client interface as a whole. */
#ifndef WEIR_DAOS_H
#define WEIR_DAOS_H

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

#ifdef __cplusplus
}
#endif

#endif
