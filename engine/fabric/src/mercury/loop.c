/*
 * Mercury on its own, to measure beside: requests with empty responses, and bulk transfers that the server drives.
 * Nothing here is used by endpoints. Both sides trust each other.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mercury.h>
#include <mercury_bulk.h>
#include <mercury_core.h>

/* Bytes of a small request and of a transfer, as in the benchmark. */
#define SMALL 64
#define LARGE (1u << 20)

/* Transfers that have memory of their own: what several have in common stays in the processor's cache. */
#define TRANSFERS 4

/* Most requests in flight. */
#define WIDTH_MAX 64

/* Polls in vain for so long before it sleeps, as Weir's executor does. */
#define SPIN_NS 20000

/* Longest sleep, in milliseconds: bounds how late the end of a measurement is noticed. */
#define SLEEP_MS 100

enum load { LOAD_EMPTY, LOAD_PULL, LOAD_PUSH, LOADS };

/* "WEI" and the load. */
#define LOOP_ID(load) (0x57454900u + (load))

struct weir_hg_loop {
	hg_class_t *class;
	hg_context_t *context;
	hg_core_context_t *core;
	/* Either side of transfers, and whose turn it is on the server's. */
	void *memory[TRANSFERS];
	hg_bulk_t local[TRANSFERS];
	uint32_t next;
	/* The client's: what has come back, and which requests are idle. */
	uint64_t done;
	int failure;
	hg_core_handle_t idle[WIDTH_MAX];
	uint32_t idles;
	/* Never sleeps, and peers need not wake it. Who measures it by turns with others stops the server's process meanwhile. */
	bool busy;
};

struct job {
	struct weir_hg_loop *loop;
	hg_core_handle_t handle;
	hg_bulk_t origin;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static hg_return_t responded(const struct hg_core_cb_info *info)
{
	(void) info;
	return HG_SUCCESS;
}

static hg_return_t answer_empty(hg_core_handle_t handle)
{
	hg_return_t ret = HG_Core_respond(handle, responded, NULL, 0, 0);

	(void) HG_Core_destroy(handle);
	return ret;
}

static hg_return_t moved(const struct hg_cb_info *info)
{
	struct job *job = info->arg;
	hg_return_t ret = HG_Core_respond(job->handle, responded, NULL, 0, 0);

	(void) HG_Core_destroy(job->handle);
	(void) HG_Bulk_free(job->origin);
	free(job);
	return ret;
}

static hg_return_t answer_bulk(hg_core_handle_t handle, hg_bulk_op_t op)
{
	const struct hg_core_info *info = HG_Core_get_info(handle);
	struct weir_hg_loop *loop = HG_Core_context_get_data(info->context);
	struct job *job = calloc(1, sizeof *job);
	hg_size_t room;
	void *input;
	hg_return_t ret;

	if (job == NULL)
		return HG_NOMEM;
	job->loop = loop;
	job->handle = handle;
	ret = HG_Core_get_input(handle, &input, &room);
	if (ret == HG_SUCCESS)
		ret = HG_Bulk_deserialize(loop->class, &job->origin, input, HG_Core_get_input_payload_size(handle));
	if (ret == HG_SUCCESS)
		ret = HG_Bulk_transfer(loop->context, moved, job, op, (hg_addr_t) info->addr, job->origin, 0,
				       loop->local[loop->next++ % TRANSFERS], 0, LARGE, HG_OP_ID_IGNORE);
	if (ret != HG_SUCCESS)
		free(job);
	return ret;
}

static hg_return_t answer_pull(hg_core_handle_t handle)
{
	return answer_bulk(handle, HG_BULK_PULL);
}

static hg_return_t answer_push(hg_core_handle_t handle)
{
	return answer_bulk(handle, HG_BULK_PUSH);
}

int weir_hg_loop_open(const char *info, bool busy, struct weir_hg_loop **out)
{
	static const hg_core_rpc_cb_t answers[LOADS] = {answer_empty, answer_pull, answer_push};
	struct hg_init_info init = HG_INIT_INFO_INITIALIZER;
	struct weir_hg_loop *loop = calloc(1, sizeof *loop);
	hg_size_t size = LARGE;
	int ret = HG_SUCCESS;
	uint32_t load, at;

	if (loop == NULL)
		return HG_NOMEM;
	init.na_init_info.thread_mode = NA_THREAD_MODE_SINGLE;
	init.na_init_info.progress_mode = busy ? NA_NO_BLOCK : 0;
	init.no_bulk_eager = true;
	loop->busy = busy;
	loop->class = HG_Init_opt2(info, true, HG_VERSION(HG_VERSION_MAJOR, HG_VERSION_MINOR), &init);
	if (loop->class == NULL)
		return HG_OTHER_ERROR;
	loop->context = HG_Context_create(loop->class);
	if (loop->context == NULL)
		return HG_OTHER_ERROR;
	loop->core = loop->context->core_context;
	ret = HG_Core_context_set_data(loop->core, loop, NULL);
	for (load = 0; load < LOADS && ret == HG_SUCCESS; load++)
		ret = HG_Core_register(loop->class->core_class, LOOP_ID(load), answers[load]);
	for (at = 0; at < TRANSFERS && ret == HG_SUCCESS; at++) {
		loop->memory[at] = malloc(LARGE);
		if (loop->memory[at] == NULL)
			return HG_NOMEM;
		/* Pages that were never written are all the same one of zeros, which is read from the nearest cache. */
		memset(loop->memory[at], 7, LARGE);
		ret = HG_Bulk_create(loop->class, 1, &loop->memory[at], &size, HG_BULK_READWRITE, &loop->local[at]);
	}
	*out = loop;
	return ret;
}

int weir_hg_loop_name(struct weir_hg_loop *loop, char *text, uint64_t room)
{
	hg_size_t size = room;
	hg_addr_t own = HG_ADDR_NULL;
	int ret = HG_Addr_self(loop->class, &own);

	if (ret == HG_SUCCESS)
		ret = HG_Addr_to_string(loop->class, text, &size, own);
	return ret;
}

/* Moves things on once: polls, and sleeps when there has been nothing for a while. */
static int step(struct weir_hg_loop *loop, uint64_t *idle_since)
{
	unsigned int count = 0;
	uint64_t now = now_ns();
	bool sleeps = !loop->busy && *idle_since != 0 && now - *idle_since >= SPIN_NS;
	hg_return_t ret;

	ret = HG_Core_progress(loop->core, sleeps ? SLEEP_MS : 0);

	if (ret != HG_SUCCESS && ret != HG_TIMEOUT)
		return ret;
	ret = HG_Core_trigger(loop->core, 0, WIDTH_MAX, &count);
	if (ret != HG_SUCCESS && ret != HG_TIMEOUT)
		return ret;
	if (count > 0)
		*idle_since = 0;
	else if (*idle_since == 0 || sleeps)
		*idle_since = now_ns();
	return HG_SUCCESS;
}

/* Answers for ever. */
int weir_hg_loop_serve(struct weir_hg_loop *loop)
{
	uint64_t idle_since = 0;
	int ret;

	do
		ret = step(loop, &idle_since);
	while (ret == HG_SUCCESS);
	return ret;
}

static hg_return_t answered(const struct hg_core_cb_info *info)
{
	struct weir_hg_loop *loop = info->arg;

	if (info->ret == HG_SUCCESS)
		loop->done++;
	else
		loop->failure = info->ret;
	loop->idle[loop->idles++] = info->info.forward.handle;
	return HG_SUCCESS;
}

static int send_idle(struct weir_hg_loop *loop, uint64_t payload)
{
	int ret = HG_SUCCESS;

	while (loop->idles > 0 && ret == HG_SUCCESS)
		ret = HG_Core_forward(loop->idle[--loop->idles], answered, loop, 0, payload);
	return ret;
}

/* Makes requests for a while, `width` at a time. Returns the rate per second. */
int weir_hg_loop_ask(struct weir_hg_loop *loop, const char *server, uint32_t load, uint32_t width, uint64_t span_ns,
		     double *rate)
{
	hg_addr_t to = HG_ADDR_NULL;
	uint64_t payload = load == LOAD_EMPTY ? SMALL : HG_Bulk_get_serialize_size(loop->local[0], 0);
	uint64_t began, idle_since = 0;
	uint32_t at;
	int ret;

	if (load >= LOADS || width == 0 || width > WIDTH_MAX)
		return HG_INVALID_ARG;
	ret = HG_Addr_lookup2(loop->class, server, &to);
	loop->idles = 0;
	for (at = 0; at < width && ret == HG_SUCCESS; at++) {
		void *input = NULL;
		hg_size_t room = 0;

		ret = HG_Core_create(loop->core, (hg_core_addr_t) to, LOOP_ID(load), &loop->idle[loop->idles++]);
		if (ret == HG_SUCCESS)
			ret = HG_Core_get_input(loop->idle[at], &input, &room);
		if (ret == HG_SUCCESS && payload > room)
			ret = HG_MSGSIZE;
		if (ret == HG_SUCCESS && load != LOAD_EMPTY)
			ret = HG_Bulk_serialize(input, payload, 0, loop->local[at % TRANSFERS]);
		else if (ret == HG_SUCCESS)
			memset(input, 7, payload);
	}
	loop->done = 0;
	loop->failure = 0;
	began = now_ns();
	while (ret == HG_SUCCESS && loop->failure == 0 && now_ns() - began < span_ns) {
		ret = send_idle(loop, payload);
		if (ret == HG_SUCCESS)
			ret = step(loop, &idle_since);
	}
	*rate = (double) loop->done * 1e9 / (double) (now_ns() - began);
	while (ret == HG_SUCCESS && loop->idles < width)
		ret = step(loop, &idle_since);
	while (loop->idles > 0)
		(void) HG_Core_destroy(loop->idle[--loop->idles]);
	(void) HG_Addr_free(loop->class, to);
	return ret == HG_SUCCESS ? loop->failure : ret;
}
