/*
 * Counts what a program asks the C library for: memory, and locks. It is loaded before the C library (LD_PRELOAD), so that the
 * calls of everything in the program come here first, and writes what it has counted to the file that WEIR_COUNTS names when
 * the program ends: a line "allocations N", and for each place that takes locks "lock N ADDRESS", the place in its file,
 * and that file's name.
 *
 * Locks of Rust's standard library are none of the C library's, and are not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Places that take locks: some dozens on the way of a request and before. What finds none is counted without a place. */
#define PLACES 512

struct place {
	_Atomic(void *) caller;
	atomic_ulong count;
};

static struct place places[PLACES];
static atomic_ulong elsewhere;
static atomic_ulong allocations;

static void took_lock(void *caller)
{
	size_t at = ((uintptr_t)caller >> 2) % PLACES;

	for (size_t tries = 0; tries < PLACES; tries++, at = (at + 1) % PLACES) {
		void *known = atomic_load(&places[at].caller);

		if (!known && atomic_compare_exchange_strong(&places[at].caller, &known, caller))
			known = caller;
		if (known == caller) {
			atomic_fetch_add(&places[at].count, 1);
			return;
		}
	}
	atomic_fetch_add(&elsewhere, 1);
}

/* Stands for a function of the C library that takes a lock, and calls that one. */
#define LOCK(name, type)                                                                    \
	int name(type *lock)                                                                \
	{                                                                                   \
		static int (*_Atomic next)(type *);                                         \
		int (*found)(type *) = atomic_load(&next);                                  \
                                                                                            \
		if (!found) {                                                               \
			found = (int (*)(type *))dlsym(RTLD_NEXT, #name);                   \
			atomic_store(&next, found);                                         \
		}                                                                           \
		took_lock(__builtin_return_address(0));                                     \
		return found(lock);                                                         \
	}

LOCK(pthread_mutex_lock, pthread_mutex_t)
LOCK(pthread_mutex_trylock, pthread_mutex_t)
LOCK(pthread_spin_lock, pthread_spinlock_t)
LOCK(pthread_spin_trylock, pthread_spinlock_t)
LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t)
LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t)

/* The C library's own, by the names under which a replacement finds them. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	void *found = memalign(alignment, size);

	if (!found)
		return ENOMEM;
	*memory = found;
	return 0;
}

__attribute__((destructor)) static void tell(void)
{
	const char *path = getenv("WEIR_COUNTS");
	unsigned long asked = atomic_load(&allocations);
	FILE *file = path ? fopen(path, "w") : NULL;

	if (!file)
		return;
	fprintf(file, "allocations %lu\nlock %lu 0 elsewhere\n", asked, atomic_load(&elsewhere));
	for (size_t at = 0; at < PLACES; at++) {
		char *caller = atomic_load(&places[at].caller);
		Dl_info found;

		if (!caller)
			continue;
		/* What is called returns behind the call, which may be another function's beginning. */
		if (dladdr(caller - 1, &found))
			fprintf(file, "lock %lu %#tx %s\n", atomic_load(&places[at].count),
				caller - 1 - (char *)found.dli_fbase, found.dli_fname);
		else
			fprintf(file, "lock %lu 0 elsewhere\n", atomic_load(&places[at].count));
	}
	fclose(file);
}
