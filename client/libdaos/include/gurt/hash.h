/* SPDX-License-Identifier: Apache-2.0 */
/* Hash tables: types and flags. The functions on them aren't there yet. */
#ifndef WEIR_GURT_HASH_H
#define WEIR_GURT_HASH_H

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>

#include <gurt/list.h>
#include <gurt/types.h>

struct d_hash_table;

/* What a program says of its records; link is the one inside a record. */
typedef struct {
	/* Whether a record has this key. Required. */
	bool (*hop_key_cmp)(struct d_hash_table *table, d_list_t *link, const void *key, unsigned int key_size);
	/* Makes the key of a record that is inserted without one. */
	void (*hop_key_init)(struct d_hash_table *table, d_list_t *link, void *arg);
	/* Hash of a key. */
	uint32_t (*hop_key_hash)(struct d_hash_table *table, const void *key, unsigned int key_size);
	/* Hash of a record's key. */
	uint32_t (*hop_rec_hash)(struct d_hash_table *table, d_list_t *link);
	/* Counts one more user of a record. */
	void (*hop_rec_addref)(struct d_hash_table *table, d_list_t *link);
	/* Counts one user less; true when none is left and the record may be freed. */
	bool (*hop_rec_decref)(struct d_hash_table *table, d_list_t *link);
	/* Counts several users less; 1 when none is left, negative for an error. */
	int (*hop_rec_ndecref)(struct d_hash_table *table, d_list_t *link, int count);
	/* Frees a record. */
	void (*hop_rec_free)(struct d_hash_table *table, d_list_t *link);
} d_hash_table_ops_t;

/* How a table is locked and how it treats its records. */
enum d_hash_feats {
	/* The program locks. */
	D_HASH_FT_NOLOCK = (1 << 0),
	D_HASH_FT_MUTEX = (1 << 1),
	D_HASH_FT_RWLOCK = (1 << 2),
	/* The table isn't a user of its records: one without users leaves it. */
	D_HASH_FT_EPHEMERAL = (1 << 3),
	/* A record that was found is the first of its bucket. */
	D_HASH_FT_LRU = (1 << 4),
	/* One lock for the table, not one for each bucket. */
	D_HASH_FT_GLOCK = (1 << 15)
};

#endif
