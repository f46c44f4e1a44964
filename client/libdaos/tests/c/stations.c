/* SPDX-License-Identifier: Apache-2.0 */
/* A client that isn't bound to threads: what many threads and event queues take, who drives what, and callbacks that call the
 * library. */
#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"

#define THREADS 64
#define QUEUES 64
#define ROUNDS 20
/* What a process of so many threads may take for them. */
#define DESCRIPTORS_MAX 100
#define KIB_MAX (64 * 1024)

static daos_handle_t kv;

static int
descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = 0;

	CHECK(all != NULL);
	while (readdir(all) != NULL)
		count++;
	closedir(all);
	/* Two names are no descriptors, and one is that of the folder. */
	return count - 3;
}

/* Memory that the process has written, in KiB, stacks included; that of huge pages, too. */
static long
memory(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long sum = 0, value;

	CHECK(status != NULL);
	while (fgets(line, sizeof(line), status) != NULL)
		if (sscanf(line, "RssAnon: %ld", &value) == 1 || sscanf(line, "RssShmem: %ld", &value) == 1 ||
		    sscanf(line, "HugetlbPages: %ld", &value) == 1)
			sum += value;
	fclose(status);
	return sum;
}

static pthread_barrier_t all_are_done, all_were_counted;

static void *
works(void *argument)
{
	int number = (int)(intptr_t)argument;
	char key[32], value[32], found[32];
	daos_size_t size;

	for (int round = 0; round < ROUNDS; round++) {
		snprintf(key, sizeof(key), "thread-%d-%d", number, round);
		snprintf(value, sizeof(value), "%d of %d", round, number);
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, sizeof(value), value, NULL));
		size = sizeof(found);
		OK(daos_kv_get(kv, DAOS_TX_NONE, 0, key, &size, found, NULL));
		CHECK(size == sizeof(value) && strcmp(value, found) == 0);
	}
	pthread_barrier_wait(&all_are_done);
	pthread_barrier_wait(&all_were_counted);
	return NULL;
}

static void
many_threads(void)
{
	pthread_t threads[THREADS];
	int open;
	long kib;

	CHECK(pthread_barrier_init(&all_are_done, NULL, THREADS + 1) == 0);
	CHECK(pthread_barrier_init(&all_were_counted, NULL, THREADS + 1) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, works, (void *)(intptr_t)i) == 0);
	pthread_barrier_wait(&all_are_done);
	open = descriptors();
	kib = memory();
	pthread_barrier_wait(&all_were_counted);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	fprintf(stderr, "%d threads: %d descriptors, %ld KiB\n", THREADS, open, kib);
	CHECK(open <= DESCRIPTORS_MAX);
	CHECK(kib <= KIB_MAX);
}

/* A queue takes no descriptor, and no thread: what it has to have is there. */
static void
many_queues(void)
{
	static daos_handle_t queues[QUEUES];
	static daos_event_t events[QUEUES];
	daos_event_t *done;
	int before = descriptors(), with;

	for (int i = 0; i < QUEUES; i++)
		OK(daos_eq_create(&queues[i]));
	CHECK(descriptors() == before);
	for (int i = 0; i < QUEUES; i++) {
		OK(daos_event_init(&events[i], queues[i], NULL));
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "queued", 5, "value", &events[i]));
	}
	for (int i = 0; i < QUEUES; i++) {
		CHECK(daos_eq_poll(queues[i], 1, DAOS_EQ_WAIT, 1, &done) == 1 && done == &events[i]);
		OK(done->ev_error);
		OK(daos_event_fini(done));
	}
	with = descriptors();
	CHECK(with <= DESCRIPTORS_MAX);
	for (int i = 0; i < QUEUES; i++)
		OK(daos_eq_destroy(queues[i], 0));
}

/* An operation goes on although nobody waits or polls. */
static void
left_alone(void)
{
	daos_event_t event;
	daos_handle_t eq;
	daos_size_t size = 0;
	bool complete;
	static char large[1 << 20];

	OK(daos_eq_create(&eq));
	OK(daos_event_init(&event, eq, NULL));
	memset(large, 'l', sizeof(large));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "large", sizeof(large), large, &event));
	while (daos_eq_query(eq, DAOS_EQR_COMPLETED, 0, NULL) == 0)
		usleep(100);
	OK(daos_event_test(&event, DAOS_EQ_NOWAIT, &complete));
	CHECK(complete);
	OK(event.ev_error);
	/* And so does one that was polled for a while, and one of no queue. */
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "large", &size, NULL, &event));
	for (int i = 0; i < 3; i++)
		OK(daos_event_test(&event, DAOS_EQ_NOWAIT, &complete));
	while (!complete && daos_eq_query(eq, DAOS_EQR_COMPLETED, 0, NULL) == 0)
		usleep(100);
	CHECK(size == sizeof(large));
	if (!complete)
		OK(daos_event_test(&event, DAOS_EQ_WAIT, &complete));
	OK(daos_event_fini(&event));
	OK(daos_eq_destroy(eq, 0));
}

static int called;

static int
calls(void *argument, daos_event_t *event, int result)
{
	daos_size_t size = 0;

	(void)event;
	OK(result);
	OK(daos_kv_get(*(daos_handle_t *)argument, DAOS_TX_NONE, 0, "large", &size, NULL, NULL));
	CHECK(size == 1 << 20);
	called++;
	return 0;
}

/* A function that is called for an event calls the library, which waits. */
static void
callbacks(void)
{
	daos_event_t event, *done;
	daos_handle_t eq;

	OK(daos_eq_create(&eq));
	OK(daos_event_init(&event, eq, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		OK(daos_event_register_comp_cb(&event, calls, &kv));
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "called", 5, "value", &event));
		CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1);
		CHECK(called == i + 1);
	}
	OK(daos_event_fini(&event));
	OK(daos_eq_destroy(eq, 0));
}

/* Threads launch what another one polls for. */
static daos_handle_t shared;
static daos_event_t launched[THREADS];

static void *
launches(void *argument)
{
	int number = (int)(intptr_t)argument;

	OK(daos_event_init(&launched[number], shared, NULL));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "shared", 5, "value", &launched[number]));
	return NULL;
}

static void
one_polls_for_many(void)
{
	pthread_t threads[THREADS];
	daos_event_t *done[8];
	int left = THREADS;

	OK(daos_eq_create(&shared));
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, launches, (void *)(intptr_t)i) == 0);
	while (left > 0) {
		int found = daos_eq_poll(shared, 0, left % 2 ? DAOS_EQ_NOWAIT : 500, 8, done);

		CHECK(found >= 0);
		for (int i = 0; i < found; i++)
			OK(done[i]->ev_error);
		left -= found;
	}
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		OK(daos_event_fini(&launched[i]));
	}
	OK(daos_eq_destroy(shared, 0));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh;
	daos_obj_id_t oid = {.lo = 5};

	CHECK(argc == 2);
	start(argv, "c-stations", &poh, &coh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	many_threads();
	many_queues();
	left_alone();
	callbacks();
	one_polls_for_many();
	OK(daos_kv_close(kv, NULL));
	return finish("c-stations", poh, coh);
}
