/*
 * What has to be known of the shared memory of the shm provider: the lock that senders take buffers under. It is an
 * internal of the library, so that it is only believed where format and length of the memory are those that are known.
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
	void *map;
	size_t size;
};

/* Where the lock is in shared memory that begins so and is in a file of this length; negative: there is none. */
int64_t weir_region_lock(const void *head, uint64_t length)
{
	const struct weir_region *region = head;

	if (region->format != 8 || region->size != length)
		return -1;
	return offsetof(struct weir_region, lock);
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
