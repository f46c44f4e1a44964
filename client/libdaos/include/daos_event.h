/* SPDX-License-Identifier: Apache-2.0 */
/* Events and event queues: asynchronous calls. */
#ifndef WEIR_DAOS_EVENT_H
#define WEIR_DAOS_EVENT_H

#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DAOS_EQ_DESTROY_FORCE 1

/* Makes an event queue. Its operations progress whether it is polled or not. */
int daos_eq_create(daos_handle_t *eqh);

/* Destroys a queue: -DER_BUSY with operations under way, unless DAOS_EQ_DESTROY_FORCE drops them. */
int daos_eq_destroy(daos_handle_t eqh, int flags);

/*
 * Takes up to nevents completed events, waiting up to timeout microseconds (DAOS_EQ_WAIT, DAOS_EQ_NOWAIT) for the
 * first. With wait_running it returns at once when nothing is under way. Returns their number, or an error.
 */
int daos_eq_poll(daos_handle_t eqh, int wait_running, int64_t timeout, unsigned int nevents,
		 struct daos_event **events);

/* Counts events of a queue, and stores up to nevents of them when events isn't NULL. */
int daos_eq_query(daos_handle_t eqh, daos_eq_query_t query, unsigned int nevents, struct daos_event **events);

/* Prepares an event, of a queue or (DAOS_HDL_INVAL) of none, and optionally as the child of another. */
int daos_event_init(struct daos_event *ev, daos_handle_t eqh, struct daos_event *parent);

/* Ends the use of an event: -DER_BUSY while its operation is under way. */
int daos_event_fini(struct daos_event *ev);

/* Waits up to timeout microseconds for an event; *flag tells whether it is complete. */
int daos_event_test(struct daos_event *ev, int64_t timeout, bool *flag);

/* Completes a parent event once all its children are complete. */
int daos_event_parent_barrier(struct daos_event *ev);

/* Called when an event is reported, with its result; another result than 0 becomes that of an event without an error. */
typedef int (*daos_event_comp_cb_t)(void *arg, struct daos_event *ev, int rc);

/* Has a function called by the poll or test that reports an event, once. It may call the library. */
int daos_event_register_comp_cb(struct daos_event *ev, daos_event_comp_cb_t cb, void *arg);

/* The child of an event behind another one, the first one for NULL; NULL behind the last one. */
struct daos_event *daos_event_next(struct daos_event *parent, struct daos_event *child);

/* Says that nobody waits for the operation any more. It runs to its end nevertheless. */
int daos_event_abort(struct daos_event *ev);

#ifdef __cplusplus
}
#endif

#endif
