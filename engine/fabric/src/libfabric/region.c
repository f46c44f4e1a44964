/*
 * What has to be known of the shared memory of the shm provider: the lock that senders take buffers under, and how many peers
 * there are. These are internals of the library, so that they are only believed where format and length of the memory are those
 * that are known.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* The head of an endpoint's shared memory as shm of libfabric 2.1 has it, of format 8. Later formats have no lock. */
struct weir_region {
	uint8_t format;
	uint8_t reserved;
	uint16_t flags;
	int pid;
	uint8_t copying[4];
	uint32_t buffers_per_peer;
	uint64_t mapping[4];
	void *base;
	pthread_spinlock_t lock;
	struct weir_peers *peers;
	size_t size;
};

/* A library with checks in it, whose locks are larger. */
#define WITH_CHECKS 2

/* The head of the list of an endpoint's peers, in its owner's own memory. */
struct weir_peers {
	pthread_spinlock_t lock;
	int64_t next;
	int count;
};

/* Where the lock is in shared memory that begins so and is in a file of this length; negative: there is none. */
int64_t weir_region_lock(const void *head, uint64_t length)
{
	const struct weir_region *region = head;

	if (region->format != 8 || region->size != length)
		return -1;
	return offsetof(struct weir_region, lock);
}

/* The list of peers of an endpoint whose shared memory begins so. Only in its process the pointer means anything. */
void *weir_region_peers(const void *head)
{
	const struct weir_region *region = head;

	return region->format == 8 && !(region->flags & WITH_CHECKS) ? region->peers : NULL;
}

/* How many are in such a list. */
int64_t weir_peers_count(const void *peers)
{
	return ((const struct weir_peers *)peers)->count;
}

/* Whether somebody has a lock just now. */
int weir_lock_held(const void *lock)
{
	pthread_spinlock_t open;

	pthread_spin_init(&open, PTHREAD_PROCESS_SHARED);
	return __atomic_load_n((const int *)lock, __ATOMIC_RELAXED) != *(volatile int *)&open;
}

void weir_lock_break(void *lock)
{
	pthread_spin_unlock(lock);
}
