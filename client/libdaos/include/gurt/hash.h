/* SPDX-License-Identifier: Apache-2.0 */
/* Hash tables of records that have their links inside. */
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

/* A table; its members are the library's but ht_priv. One lock is for all of it, whichever is asked for. */
struct d_hash_table {
	pthread_rwlock_t ht_lock;
	/* Its number of buckets is a power of two. */
	uint32_t ht_bits;
	uint32_t ht_feats;
	/* The program's own. */
	void *ht_priv;
	d_hash_table_ops_t *ht_ops;
	d_list_t *ht_buckets;
	void *ht_locks;
};

/* Called for each record; another result than 0 ends the walk and is returned. */
typedef int (*d_hash_traverse_cb_t)(d_list_t *link, void *arg);

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a table, in memory of the library or of the program. The operations have to stay. */
int d_hash_table_create(uint32_t feats, uint32_t bits, void *priv, d_hash_table_ops_t *hops,
			struct d_hash_table **htable_pp);
int d_hash_table_create_inplace(uint32_t feats, uint32_t bits, void *priv, d_hash_table_ops_t *hops,
				struct d_hash_table *htable);
/* -DER_BUSY with records in it, unless force. */
int d_hash_table_destroy(struct d_hash_table *htable, bool force);
int d_hash_table_destroy_inplace(struct d_hash_table *htable, bool force);
int d_hash_table_traverse(struct d_hash_table *htable, d_hash_traverse_cb_t cb, void *arg);

/* The record of a key with one user more; NULL when there is none. The second one inserts link then. */
d_list_t *d_hash_rec_find(struct d_hash_table *htable, const void *key, unsigned int ksize);
d_list_t *d_hash_rec_find_insert(struct d_hash_table *htable, const void *key, unsigned int ksize, d_list_t *link);
/* Inserts a record: -DER_EXIST with exclusive when there is one of this key. */
int d_hash_rec_insert(struct d_hash_table *htable, const void *key, unsigned int ksize, d_list_t *link, bool exclusive);
/* hop_key_init makes the key. */
int d_hash_rec_insert_anonym(struct d_hash_table *htable, d_list_t *link, void *arg);
/* Whether there was such a record. */
bool d_hash_rec_delete(struct d_hash_table *htable, const void *key, unsigned int ksize);
bool d_hash_rec_delete_at(struct d_hash_table *htable, d_list_t *link);
void d_hash_rec_addref(struct d_hash_table *htable, d_list_t *link);
void d_hash_rec_decref(struct d_hash_table *htable, d_list_t *link);
int d_hash_rec_ndecref(struct d_hash_table *htable, int count, d_list_t *link);
bool d_hash_rec_unlinked(d_list_t *link);
/* Any record; NULL when there is none. */
d_list_t *d_hash_rec_first(struct d_hash_table *htable);

/* Hashes: djb2 of a string, MurmurHash64A of bytes. */
uint32_t d_hash_string_u32(const char *string, unsigned int len);
uint64_t d_hash_murmur64(const unsigned char *key, unsigned int key_len, unsigned int seed);

#ifdef __cplusplus
}
#endif

#endif
