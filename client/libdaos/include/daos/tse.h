/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and schedulers: types, which programs allocate. The functions on them aren't there yet. */
#ifndef WEIR_DAOS_TSE_H
#define WEIR_DAOS_TSE_H

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>

#include <gurt/list.h>

/* Bytes of a task's arguments, of its private part, and of the whole. */
#define TSE_TASK_ARG_LEN (840 + sizeof(pthread_mutex_t))
#define TSE_PRIV_SIZE (TSE_TASK_ARG_LEN + 136)
#define TSE_TASK_SIZE (TSE_PRIV_SIZE + 8)

/* One operation that depends on others. */
typedef struct tse_task {
	/* Return code, when the task is complete. */
	int dt_result;
	int dt_pad32;
	struct {
		char dt_space[TSE_PRIV_SIZE];
	} dt_private;
} tse_task_t;

/* A set of tasks. */
typedef struct {
	/* First return code that isn't 0, when all tasks are complete. */
	int ds_result;
	/* The program's own. */
	void *ds_udata;
	struct {
		uint64_t ds_space[48];
	} ds_private;
} tse_sched_t;

/* Called when all tasks of a scheduler are complete. */
typedef int (*tse_sched_comp_cb_t)(void *args, int rc);
/* What a task does. */
typedef int (*tse_task_func_t)(tse_task_t *task);
/* Called before and after a task. */
typedef int (*tse_task_cb_t)(tse_task_t *task, void *arg);

#endif
