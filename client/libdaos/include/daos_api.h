/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions, and small functions on types of the interface. */
#ifndef WEIR_DAOS_API_H
#define WEIR_DAOS_API_H

#include <string.h>
#include <time.h>

#include <daos_event.h>
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

#ifdef __cplusplus
extern "C" {
#endif

/* How a transaction is opened. */
enum {
	/* It changes nothing. */
	DAOS_TF_RDONLY = (1 << 0),
	/* Data stays where it is until the commit; it is copied all the same. */
	DAOS_TF_ZERO_COPY = (1 << 1)
};

/*
 * A transaction reads one state and keeps its changes until it commits: it doesn't read them. When somebody else changes or has
 * read the same meanwhile, a read or the commit gives -DER_TX_RESTART: nothing of it has happened, and after daos_tx_restart all
 * of it is to be done again. After any other error of the commit it can be started again, too, but for -DER_TX_UNCERTAIN: it
 * isn't known whether it has happened.
 */
int daos_tx_open(daos_handle_t coh, daos_handle_t *th, uint64_t flags, daos_event_t *ev);

/* Reads a snapshot. */
int daos_tx_open_snap(daos_handle_t coh, daos_epoch_t epoch, daos_handle_t *th, daos_event_t *ev);
int daos_tx_commit(daos_handle_t th, daos_event_t *ev);
int daos_tx_abort(daos_handle_t th, daos_event_t *ev);

/* Begins anew, at a newer epoch and without the changes so far, after a pause that grows with each time. */
int daos_tx_restart(daos_handle_t th, daos_event_t *ev);
int daos_tx_close(daos_handle_t th, daos_event_t *ev);
int daos_tx_hdl2epoch(daos_handle_t th, daos_epoch_t *epoch);

/* Time of an epoch. */
int daos_hlc2timespec(uint64_t hlc, struct timespec *ts);
int daos_hlc2timestamp(uint64_t hlc, time_t *ts);

/*
 * Makes a list of ranks, e.g. of "1:3:5" with sep ":". Free it by d_rank_list_free. NULL for a text that isn't ranks with single
 * separators between them, and without memory.
 */
d_rank_list_t *daos_rank_list_parse(const char *str, const char *sep);

#ifdef __cplusplus
}
#endif

#endif
