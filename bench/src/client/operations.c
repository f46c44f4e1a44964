/* SPDX-License-Identifier: Apache-2.0 */
/* One figure of the C client: operations POOL FIGURE SECONDS [CLASS] prints a number, in operations a second unless the figure says
 * another unit. bench/src/client.rs runs it by turns with a bare request, bench/src/client/redundancy.rs with another system. Instead of a
 * pool, figures of POSIX calls take a file, which needs no client. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <daos.h>
#include <daos_fs.h>

#define VALUE 64
#define KEYS 1000
#define IN_FLIGHT 16
#define BLOCK (1 << 20)
#define BLOCKS 64
/* Bytes of a small read or write. */
#define SMALL 4096
#define LABEL "bench"
#define FILES "bench-files"
#define THREADS 64
/* Operations that are timed one by one, at most. */
#define SAMPLES 200000
/* Arrays that give every engine something to hold, and MiB of each. */
#define FILLED 32
#define FILLED_BLOCKS 32

#define OK(call) \
	do { \
		int ok_rc = (call); \
		if (ok_rc != 0) { \
			fprintf(stderr, "%s: " DF_RC "\n", #call, DP_RC(ok_rc)); \
			exit(1); \
		} \
	} while (0)

static daos_handle_t poh, coh, kv, array, queue;
static dfs_t *dfs;
static dfs_obj_t *file;
static char *block;
/* Bytes of a read or write of a file. */
static size_t bytes = BLOCK;
static int descriptor;
/* Of a POSIX figure. */
static const char *path;
static double seconds;
/* Class of the key-value object and of the arrays. */
static daos_oclass_id_t class = OC_S1;

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* An operation: the number of it, and NULL or the event that it completes. Slots keep what an operation uses until then. */
typedef void operation(uint64_t number, int slot, daos_event_t *ev);

static struct slot {
	daos_event_t event;
	char key[32], value[VALUE];
	daos_size_t size;
	daos_range_t range;
	daos_array_iod_t ranges;
	d_iov_t iov;
	d_sg_list_t sgl;
} slots[IN_FLIGHT];

static void
put(uint64_t number, int slot, daos_event_t *ev)
{
	struct slot *own = &slots[slot];

	snprintf(own->key, sizeof(own->key), "key-%06lu", (unsigned long)(number % KEYS));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, own->key, VALUE, own->value, ev));
}

static void
get(uint64_t number, int slot, daos_event_t *ev)
{
	struct slot *own = &slots[slot];

	snprintf(own->key, sizeof(own->key), "key-%06lu", (unsigned long)(number % KEYS));
	own->size = VALUE;
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, own->key, &own->size, own->value, ev));
}

static struct slot *
block_of(uint64_t number, int slot)
{
	struct slot *own = &slots[slot];

	own->range = (daos_range_t){.rg_idx = number % BLOCKS * BLOCK, .rg_len = bytes};
	own->ranges = (daos_array_iod_t){.arr_nr = 1, .arr_rgs = &own->range};
	d_iov_set(&own->iov, block + (size_t)slot * BLOCK, bytes);
	own->sgl = (d_sg_list_t){.sg_nr = 1, .sg_iovs = &own->iov};
	return own;
}

static void
write_array(uint64_t number, int slot, daos_event_t *ev)
{
	struct slot *own = block_of(number, slot);

	OK(daos_array_write(array, DAOS_TX_NONE, &own->ranges, &own->sgl, ev));
}

static void
read_array(uint64_t number, int slot, daos_event_t *ev)
{
	struct slot *own = block_of(number, slot);

	OK(daos_array_read(array, DAOS_TX_NONE, &own->ranges, &own->sgl, ev));
}

static void
write_file(uint64_t number, int slot, daos_event_t *ev)
{
	struct slot *own = block_of(number, slot);

	if (dfs_write(dfs, file, &own->sgl, own->range.rg_idx, ev) != 0)
		abort();
}

static void
read_file(uint64_t number, int slot, daos_event_t *ev)
{
	struct slot *own = block_of(number, slot);

	if (dfs_read(dfs, file, &own->sgl, own->range.rg_idx, &own->size, ev) != 0)
		abort();
}

static void
write_posix(uint64_t number, int slot, daos_event_t *ev)
{
	(void)slot, (void)ev;
	if (pwrite(descriptor, block, bytes, (off_t)(number % BLOCKS * BLOCK)) != (ssize_t)bytes)
		abort();
}

static void
read_posix(uint64_t number, int slot, daos_event_t *ev)
{
	(void)slot, (void)ev;
	if (pread(descriptor, block, bytes, (off_t)(number % BLOCKS * BLOCK)) != (ssize_t)bytes)
		abort();
}

static void
stat_posix(uint64_t number, int slot, daos_event_t *ev)
{
	struct stat found;

	(void)number, (void)slot, (void)ev;
	if (stat(path, &found) != 0)
		abort();
}

static void
stat_file(uint64_t number, int slot, daos_event_t *ev)
{
	struct stat found;

	(void)number, (void)slot, (void)ev;
	if (dfs_stat(dfs, NULL, "file", &found) != 0)
		abort();
}

/* A name that no other process takes. */
static const char *
fresh_name(const char *before, uint64_t number)
{
	static char name[4096];

	snprintf(name, sizeof(name), "%s.%ld.%lu", before, (long)getpid(), (unsigned long)number);
	return name;
}

static void
mkdir_posix(uint64_t number, int slot, daos_event_t *ev)
{
	(void)slot, (void)ev;
	if (mkdir(fresh_name(path, number), 0755) != 0)
		abort();
}

static void
mkdir_file(uint64_t number, int slot, daos_event_t *ev)
{
	(void)slot, (void)ev;
	if (dfs_mkdir(dfs, NULL, fresh_name("made", number), 0755, 0) != 0)
		abort();
}

/* Creates an empty file, and removes it. */
static void
turn_posix(uint64_t number, int slot, daos_event_t *ev)
{
	const char *name = fresh_name(path, number);
	int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);

	(void)slot, (void)ev;
	if (fd < 0 || close(fd) != 0 || unlink(name) != 0)
		abort();
}

static void
turn_file(uint64_t number, int slot, daos_event_t *ev)
{
	const char *name = fresh_name("turned", number);
	dfs_obj_t *made;

	(void)slot, (void)ev;
	if (dfs_open(dfs, NULL, name, S_IFREG | 0644, O_CREAT | O_EXCL | O_WRONLY, 0, 0, NULL, &made) != 0 ||
	    dfs_release(made) != 0 || dfs_remove(dfs, NULL, name, false, NULL) != 0)
		abort();
}

static void
bytes_fill(void)
{
	block = malloc((size_t)IN_FLIGHT * BLOCK);
	if (block == NULL)
		abort();
	memset(block, 0x5a, (size_t)IN_FLIGHT * BLOCK);
}

/* Operations a second, one at a time: all of them in all the time. */
static double
one_by_one(operation *run)
{
	double began = now();
	uint64_t done = 0;

	while (now() - began < seconds)
		run(done++, 0, NULL);
	return (double)done / (now() - began);
}

static int
by_size(const void *one, const void *other)
{
	double first = *(const double *)one, second = *(const double *)other;

	return (first > second) - (first < second);
}

/* Operations a second, one at a time: as if each took what the middle one takes. */
static double
middle_one(operation *run)
{
	static double took[SAMPLES];
	double began = now(), before = began, after;
	size_t done = 0;

	while (done < SAMPLES && before - began < seconds) {
		run(done, 0, NULL);
		after = now();
		took[done++] = after - before;
		before = after;
	}
	qsort(took, done, sizeof(took[0]), by_size);
	return 1 / took[done / 2];
}

/* Seconds of the operation that took longest, one at a time. */
static double
longest_one(operation *run)
{
	double began = now(), before = began, longest = 0;

	for (uint64_t number = 0; before - began < seconds; number++) {
		double after;

		run(number, 0, NULL);
		after = now();
		if (after - before > longest)
			longest = after - before;
		before = after;
	}
	return longest;
}

/* Operations a second, several at a time; a poll waits, or looks and comes back at once. */
static double
many(operation *run, int in_flight, int64_t timeout)
{
	daos_event_t *found[IN_FLIGHT];
	double began = now(), until = began + seconds;
	uint64_t launched = 0, done = 0;

	for (int slot = 0; slot < in_flight; slot++) {
		OK(daos_event_init(&slots[slot].event, queue, NULL));
		run(launched++, slot, &slots[slot].event);
	}
	while (done < launched) {
		int count = daos_eq_poll(queue, 1, timeout, IN_FLIGHT, found);
		bool goes_on = now() < until;

		if (count < 0)
			OK(count);
		for (int at = 0; at < count; at++) {
			struct slot *own = (struct slot *)((char *)found[at] - offsetof(struct slot, event));

			OK(found[at]->ev_error);
			done++;
			if (goes_on)
				run(launched++, (int)(own - slots), &own->event);
		}
	}
	return (double)done / (now() - began);
}

static int
descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = -3;

	if (all == NULL)
		abort();
	while (readdir(all) != NULL)
		count++;
	closedir(all);
	return count;
}

static double
resident_mib(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	while (status != NULL && fgets(line, sizeof(line), status) != NULL)
		sscanf(line, "VmRSS: %ld", &kib);
	if (kib < 0)
		abort();
	fclose(status);
	return (double)kib / 1024;
}

static pthread_barrier_t all_have_put, all_were_counted;

static void *
put_once(void *number)
{
	char key[32], value[VALUE] = {0};

	snprintf(key, sizeof(key), "thread-%ld", (long)(intptr_t)number);
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, VALUE, value, NULL));
	pthread_barrier_wait(&all_have_put);
	pthread_barrier_wait(&all_were_counted);
	return NULL;
}

/* What a figure of many threads is, once each has put a value. */
static double
with_threads(bool memory)
{
	pthread_t threads[THREADS];
	double before = resident_mib(), figure;

	if (pthread_barrier_init(&all_have_put, NULL, THREADS + 1) || pthread_barrier_init(&all_were_counted, NULL, THREADS + 1))
		abort();
	for (long number = 0; number < THREADS; number++)
		if (pthread_create(&threads[number], NULL, put_once, (void *)(intptr_t)number))
			abort();
	pthread_barrier_wait(&all_have_put);
	figure = memory ? resident_mib() - before : descriptors();
	pthread_barrier_wait(&all_were_counted);
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
	return figure;
}

/* Seconds of making a queue. */
static double
queue_seconds(void)
{
	double began = now(), made;
	daos_handle_t another;

	OK(daos_eq_create(&another));
	made = now() - began;
	OK(daos_eq_destroy(another, 0));
	return made;
}

/* Containers opened and closed a second. */
static double
opened(void)
{
	double began = now();
	uint64_t done = 0;

	for (; now() - began < seconds; done++) {
		daos_handle_t another;

		OK(daos_cont_open(poh, LABEL, DAOS_COO_RO, &another, NULL, NULL));
		OK(daos_cont_close(another, NULL));
	}
	return (double)done / (now() - began);
}

/* Containers made and destroyed a second. */
static double
created(void)
{
	double began = now();
	uint64_t done = 0;

	for (; now() - began < seconds; done++) {
		char label[32];

		snprintf(label, sizeof(label), "made-%lu", (unsigned long)done);
		OK(daos_cont_create_with_label(poh, label, NULL, NULL, NULL));
		OK(daos_cont_destroy(poh, label, 0, NULL));
	}
	return (double)done / (now() - began);
}

/* Opens the container of the figures; the first process makes it. */
static void
open_container(const char *pool)
{
	uuid_t uuid;
	int rc;

	OK(daos_pool_connect(pool, NULL, DAOS_PC_RW, &poh, NULL, NULL));
	rc = daos_cont_open(poh, LABEL, DAOS_COO_RW, &coh, NULL, NULL);
	if (rc == -DER_NONEXIST) {
		OK(daos_cont_create_with_label(poh, LABEL, NULL, &uuid, NULL));
		rc = daos_cont_open(poh, LABEL, DAOS_COO_RW, &coh, NULL, NULL);
	}
	OK(rc);
}

static void
open_array(uint64_t number)
{
	daos_obj_id_t oid = {.lo = number};

	OK(daos_array_generate_oid(coh, &oid, false, class, 0, 0));
	OK(daos_array_open_with_attr(coh, oid, DAOS_TX_NONE, DAOS_OO_RW, 1, BLOCK, &array, NULL));
}

static void
open_values(void)
{
	daos_obj_id_t oid = {.lo = 1};

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, class, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	open_array(2);
	OK(daos_eq_create(&queue));
	bytes_fill();
}

static void
open_file(const char *pool)
{
	if (dfs_init() != 0 || dfs_connect(pool, NULL, FILES, O_CREAT | O_RDWR, NULL, &dfs) != 0 ||
	    dfs_open(dfs, NULL, "file", S_IFREG | 0644, O_CREAT | O_RDWR, OC_S1, BLOCK, NULL, &file) != 0) {
		fprintf(stderr, "no file in " FILES "\n");
		exit(1);
	}
}

/* What reads find. */
static void
fill(operation *write, uint64_t count)
{
	for (uint64_t number = 0; number < count; number++)
		write(number, 0, NULL);
}

/* MiB written to many arrays. */
static double
filled(void)
{
	for (uint64_t number = 0; number < FILLED; number++) {
		OK(daos_array_close(array, NULL));
		open_array(100 + number);
		fill(write_array, FILLED_BLOCKS);
	}
	return FILLED * FILLED_BLOCKS;
}

static double
figure_of(const char *pool, const char *name)
{
	struct { const char *name; operation *run, *fills; uint64_t count; bool files; } loads[] = {
		{"posix-write", write_posix, write_posix, BLOCKS, false},
		{"posix-read", read_posix, write_posix, BLOCKS, false},
		{"posix-stat", stat_posix, NULL, 0, false},
		{"posix-mkdir", mkdir_posix, NULL, 0, false},
		{"posix-turn", turn_posix, NULL, 0, false},
		{"file-stat", stat_file, NULL, 0, true},
		{"file-mkdir", mkdir_file, NULL, 0, true},
		{"file-turn", turn_file, NULL, 0, true},
		{"put", put, NULL, 0, false},
		{"get", get, put, KEYS, false},
		{"write", write_array, NULL, 0, false},
		{"read", read_array, write_array, BLOCKS, false},
		{"file-write", write_file, NULL, 0, true},
		{"file-read", read_file, write_file, BLOCKS, true},
	};

	if (strcmp(name, "thread-mib") == 0)
		return with_threads(true);
	if (strcmp(name, "thread-descriptors") == 0)
		return with_threads(false);
	if (strcmp(name, "queue-seconds") == 0)
		return queue_seconds();
	if (strcmp(name, "opened") == 0)
		return opened();
	if (strcmp(name, "created") == 0)
		return created();
	if (strcmp(name, "filled-mib") == 0)
		return filled();
	for (size_t at = 0; at < sizeof(loads) / sizeof(loads[0]); at++) {
		size_t len = strlen(loads[at].name);
		const char *way = name + len;

		if (strncmp(name, loads[at].name, len) != 0 || (*way != '\0' && *way != ':'))
			continue;
		if (loads[at].files)
			open_file(pool);
		if (loads[at].fills != NULL)
			fill(loads[at].fills, loads[at].count);
		if (strncmp(way, ":small", strlen(":small")) == 0) {
			bytes = SMALL;
			way += strlen(":small");
		}
		if (strcmp(way, ":wait") == 0)
			return many(loads[at].run, IN_FLIGHT, DAOS_EQ_WAIT);
		if (strcmp(way, ":poll") == 0)
			return many(loads[at].run, IN_FLIGHT, DAOS_EQ_NOWAIT);
		if (strcmp(way, ":middle") == 0)
			return middle_one(loads[at].run);
		if (strcmp(way, ":longest") == 0)
			return longest_one(loads[at].run);
		return one_by_one(loads[at].run);
	}
	fprintf(stderr, "no figure %s\n", name);
	exit(1);
}

/* A figure of calls on a file. */
static double
posix_figure(const char *name)
{
	descriptor = open(path, O_CREAT | O_RDWR, 0644);
	if (descriptor < 0) {
		perror(path);
		exit(1);
	}
	if (strcmp(name, "posix-first-seconds") == 0) {
		double began = now();

		write_posix(0, 0, NULL);
		return now() - began;
	}
	return figure_of(NULL, name);
}

int
main(int argc, char **argv)
{
	double began = now();

	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: operations POOL FIGURE SECONDS [CLASS]\n");
		return 1;
	}
	if (argc == 5 && (class = (daos_oclass_id_t)daos_oclass_name2id(argv[4])) == OC_UNKNOWN) {
		fprintf(stderr, "no object class is called %s\n", argv[4]);
		return 1;
	}
	seconds = strtod(argv[3], NULL);
	if (strncmp(argv[2], "posix-", strlen("posix-")) == 0) {
		bytes_fill();
		path = argv[1];
		printf("%f\n", posix_figure(argv[2]));
		return 0;
	}
	OK(daos_init());
	open_container(argv[1]);
	if (strcmp(argv[2], "open-seconds") == 0) {
		printf("%f\n", now() - began);
		return 0;
	}
	if (strcmp(argv[2], "rest-mib") == 0) {
		printf("%f\n", resident_mib());
		return 0;
	}
	open_values();
	printf("%f\n", figure_of(argv[1], argv[2]));
	return 0;
}
