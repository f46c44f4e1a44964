/*
 * Address vectors: peers, each under a key where the endpoint has several, and these keys.
 */
#include "double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Entries of one vector. The provider counts from 0; here from 1, so that its numbers are not by chance those of its user. */
#define ENTRIES_MAX 4096
#define FIRST_ENTRY 1

struct entry *vector_entry(struct vector *vector, fi_addr_t number)
{
	return number < vector->count && vector->entries[number].uses ? &vector->entries[number] : NULL;
}

static struct entry *find(struct vector *vector, struct address at)
{
	size_t number;

	for (number = 0; number < vector->count; number++) {
		struct entry *entry = &vector->entries[number];

		if (entry->uses && entry->at.place == at.place && entry->at.vni == at.vni)
			return entry;
	}
	return NULL;
}

fi_addr_t vector_source(struct vector *vector, struct address at)
{
	struct entry *entry;

	if (!vector->domain->keys_in_vector)
		at.vni = 0;
	entry = find(vector, at);
	return entry ? entry->told : FI_ADDR_NOTAVAIL;
}

fi_addr_t vector_key(struct vector *vector, uint16_t vni)
{
	size_t key;

	for (key = 0; key < vector->key_count; key++) {
		if (vector->keys[key] == vni)
			return key;
	}
	return FI_ADDR_NOTAVAIL;
}

/* A place for another peer: the lowest one that is free, so that numbers are used again. */
static struct entry *add(struct vector *vector, struct address at)
{
	size_t number;

	for (number = FIRST_ENTRY; number < vector->count && vector->entries[number].uses; number++)
		;
	if (number == ENTRIES_MAX)
		return NULL;
	if (number == vector->count)
		vector->count++;
	vector->entries[number] = (struct entry){ .at = at, .told = number };
	return &vector->entries[number];
}

static int insert(struct fid_av *fid, const void *address, size_t count, fi_addr_t *number, uint64_t flags, void *context)
{
	struct vector *vector = (struct vector *)fid;
	struct entry *entry;
	struct address at;

	(void)context;
	if (!address || count != 1 || flags & ~(FI_AV_USER_ID | FI_AUTH_KEY) || (flags && !number))
		return refuse(FI_EINVAL, "to insert nothing or several, or with flags that are none");
	if (vector->domain->keys_in_vector && !(flags & FI_AUTH_KEY))
		return refuse(FI_EINVAL, "to insert a peer without a key, where the endpoint has several");
	if (flags & FI_AUTH_KEY && (!vector->domain->keys_in_vector || flags & FI_AV_USER_ID))
		return refuse(FI_EINVAL, "to insert a peer under a key of none, or with a number of one's own as well");
	if (flags & FI_AUTH_KEY && *number >= vector->key_count)
		return refuse(FI_EINVAL, "to insert a peer under a key that was not inserted");
	memcpy(&at, address, sizeof at);
	at.vni = flags & FI_AUTH_KEY ? vector->keys[*number] : 0;
	pthread_mutex_lock(&all);
	entry = find(vector, at);
	if (!entry) {
		entry = add(vector, at);
		/* Only whoever is first names it. */
		if (entry && flags & FI_AV_USER_ID)
			entry->told = *number;
	}
	if (entry)
		entry->uses++;
	pthread_mutex_unlock(&all);
	if (number)
		*number = entry ? (fi_addr_t)(entry - vector->entries) : FI_ADDR_NOTAVAIL;
	return entry ? 1 : 0;
}

static int take_away(struct fid_av *fid, fi_addr_t *numbers, size_t count, uint64_t flags)
{
	struct vector *vector = (struct vector *)fid;
	struct entry *entry;
	size_t at;
	int ret = 0;

	if (flags)
		return refuse(FI_EINVAL, "to remove keys of an endpoint");
	pthread_mutex_lock(&all);
	for (at = 0; at < count; at++) {
		entry = vector_entry(vector, numbers[at]);
		if (entry)
			entry->uses--;
		else
			ret = refuse(FI_EINVAL, "to remove a peer that was not inserted");
	}
	pthread_mutex_unlock(&all);
	return ret;
}

static int insert_key(struct fid_av *fid, const void *key, size_t size, fi_addr_t *number, uint64_t flags)
{
	struct vector *vector = (struct vector *)fid;
	struct domain *domain = vector->domain;
	struct cxi_auth_key given;
	int ret = 0;

	if (!domain->keys_in_vector)
		return refuse(FI_EINVAL, "a key for the vector of a domain that has one itself");
	if (!key || size != sizeof given || !number || flags)
		return refuse(FI_EINVAL, "what is no key");
	memcpy(&given, key, sizeof given);
	/* The provider takes it, and it is of no use to endpoints that are enabled. */
	if (vector->enabled)
		return refuse(FI_EOPBADSTATE, "a key after the endpoint was enabled");
	if (vector->key_count >= domain->keys_max || vector->key_count >= KEYS_MAX)
		return refuse(FI_ENOSPC, "more keys than the domain was opened for");
	/* The domain has no other service than the one for all: only the network counts. */
	if (!has_service(domain->nic, default_key.svc_id, given.vni))
		return refuse(FI_EINVAL, "a key of a network that the service doesn't have");
	pthread_mutex_lock(&all);
	*number = vector_key(vector, given.vni);
	if (*number == FI_ADDR_NOTAVAIL) {
		*number = vector->key_count;
		vector->keys[vector->key_count++] = given.vni;
	}
	pthread_mutex_unlock(&all);
	return ret;
}

static const char *spell(struct fid_av *fid, const void *address, char *text, size_t *len)
{
	struct address at;
	int needed;

	(void)fid;
	memcpy(&at, address, sizeof at);
	needed = snprintf(text, *len, "fi_addr_cxi://0x%08x", at.place);
	*len = (size_t)needed + 1;
	return text;
}

static int close_vector(struct fid *fid)
{
	struct vector *vector = (struct vector *)fid;
	int ret = 0;

	pthread_mutex_lock(&all);
	if (vector->users) {
		ret = refuse_to_close("to close a vector that has endpoints");
	} else {
		vector->domain->users--;
		open_objects--;
		free(vector->entries);
		free(vector);
	}
	pthread_mutex_unlock(&all);
	return ret;
}

int open_vector(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
	static struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = close_vector };
	static struct fi_ops_av ops = {
		.size = sizeof ops, .insert = insert, .remove = take_away, .straddr = spell, .insert_auth_key = insert_key,
	};
	struct vector *vector;

	if (!attr || attr->flags || attr->name || attr->rx_ctx_bits)
		return refuse(FI_EINVAL, "a vector with attributes that are not known here");
	vector = calloc(1, sizeof *vector);
	if (!vector)
		return -FI_ENOMEM;
	vector->entries = calloc(ENTRIES_MAX, sizeof *vector->entries);
	if (!vector->entries) {
		free(vector);
		return -FI_ENOMEM;
	}
	vector->fid.fid = (struct fid){ .fclass = FI_CLASS_AV, .context = context, .ops = &fid_ops };
	vector->fid.ops = &ops;
	vector->domain = (struct domain *)domain;
	vector->count = FIRST_ENTRY;
	pthread_mutex_lock(&all);
	vector->domain->users++;
	open_objects++;
	pthread_mutex_unlock(&all);
	*out = &vector->fid;
	return 0;
}
