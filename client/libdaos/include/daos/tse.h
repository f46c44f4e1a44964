/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and schedulers, for which programs allocate memory. */
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

#ifdef __cplusplus
extern "C" {
#endif

/* Prepares a scheduler. comp_cb, which may be NULL, is called with udata when it is complete. */
int tse_sched_init(tse_sched_t *sched, tse_sched_comp_cb_t comp_cb, void *udata);
void tse_sched_fini(tse_sched_t *sched);
void tse_sched_addref(tse_sched_t *sched);
void tse_sched_decref(tse_sched_t *sched);
int tse_sched_register_comp_cb(tse_sched_t *sched, tse_sched_comp_cb_t comp_cb, void *arg);
/* Does what can be done now. */
void tse_sched_progress(tse_sched_t *sched);
bool tse_sched_check_complete(tse_sched_t *sched);
/* Waits for all tasks, or cancels them, and ends the use of the scheduler. */
void tse_sched_complete(tse_sched_t *sched, int ret, bool cancel);

/* Makes a task. It is freed when it is complete and its last user is gone. */
int tse_task_create(tse_task_func_t task_func, tse_sched_t *sched, void *priv, tse_task_t **taskp);
/* Hands a task to its scheduler, or with instant runs it here if nothing comes before it. */
int tse_task_schedule(tse_task_t *task, bool instant);
int tse_task_schedule_with_delay(tse_task_t *task, bool instant, uint64_t delay);
void tse_task_complete(tse_task_t *task, int ret);
/* Has a task wait for others; it fails when one of them does. */
int tse_task_register_deps(tse_task_t *task, int num_deps, tse_task_t *dep_tasks[]);
void tse_disable_propagate(tse_task_t *task);
/* Has functions called before and after a task, with copies of the data: before in their order, after in the opposite one. */
int tse_task_register_cbs(tse_task_t *task, tse_task_cb_t prep_cb, void *prep_data, size_t prep_data_size,
			  tse_task_cb_t comp_cb, void *comp_data, size_t comp_data_size);
int tse_task_register_comp_cb(tse_task_t *task, tse_task_cb_t comp_cb, void *arg, size_t arg_size);
/* Starts a task again, from a function that is called before or after it. */
int tse_task_reinit(tse_task_t *task);
int tse_task_reinit_with_delay(tse_task_t *task, uint64_t delay);
/* Makes a new task of a complete one. */
int tse_task_reset(tse_task_t *task, tse_task_func_t task_func, void *priv);
void tse_task_addref(tse_task_t *task);
void tse_task_decref(tse_task_t *task);
void *tse_task_get_priv(tse_task_t *task);
void *tse_task_set_priv(tse_task_t *task, void *priv);
void *tse_task_buf_embedded(tse_task_t *task, int size);
tse_sched_t *tse_task2sched(tse_task_t *task);

#ifdef __cplusplus
}
#endif

#endif
