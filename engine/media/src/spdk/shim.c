/* The narrow door to SPDK: what its headers give as macros and callbacks, as functions over plain types.
 *
 * One thread of the process starts the subsystems and goes on polling for them. Every other thread that has devices makes a
 * lightweight thread of SPDK's for each, and polls it; all calls about a device are made on the thread that opened it.
 */
#include "spdk/stdinc.h"

#include "spdk/bdev.h"
#include "spdk/bdev_module.h"
#include "spdk/env.h"
#include "spdk/init.h"
#include "spdk/rpc.h"
#include "spdk/string.h"
#include "spdk/thread.h"
#include "spdk/version.h"

/* Since this release SPDK knows itself what memory without huge pages needs. */
#define KNOWS_NO_HUGE (SPDK_VERSION >= SPDK_VERSION_NUM(24, 1, 0))
/* Since this release the configuration is loaded from memory, before and after the subsystems start. */
#define LOADS_FROM_MEMORY (SPDK_VERSION >= SPDK_VERSION_NUM(24, 5, 0))
/* Since this release the options tell their own size. */
#define OPTIONS_HAVE_SIZE (SPDK_VERSION >= SPDK_VERSION_NUM(24, 9, 0))

enum weir_spdk_kind { WEIR_SPDK_READ = 0, WEIR_SPDK_WRITE = 1, WEIR_SPDK_FLUSH = 2, WEIR_SPDK_WRITE_STABLE = 3 };

struct weir_spdk_device {
	struct spdk_thread *thread;
	struct spdk_bdev_desc *descriptor;
	struct spdk_bdev *bdev;
	struct spdk_io_channel *channel;
	bool removed;
};

struct weir_spdk_info {
	uint64_t bytes;
	uint32_t block;
};

typedef void (*weir_spdk_done)(void *context, int32_t failed);

struct request {
	struct weir_spdk_device *device;
	enum weir_spdk_kind kind;
	void *memory;
	uint64_t offset;
	uint64_t len;
	weir_spdk_done done;
	void *context;
	struct spdk_bdev_io_wait_entry wait;
};

struct start {
	bool ended;
	int result;
	void *json;
	size_t json_len;
};

static struct spdk_thread *app_thread;
/* In whose name devices are claimed. */
static struct spdk_bdev_module claimant = { .name = "weir" };

static void started(int result, void *context)
{
	struct start *start = context;

	start->result = result;
	start->ended = true;
}

#if LOADS_FROM_MEMORY
static void subsystems_started(int result, void *context)
{
	struct start *start = context;

	if (result != 0) {
		started(result, context);
		return;
	}
	spdk_rpc_set_state(SPDK_RPC_RUNTIME);
	spdk_subsystem_load_config(start->json, start->json_len, started, context, true);
}

static void configured_for_start(int result, void *context)
{
	if (result != 0) {
		started(result, context);
		return;
	}
	spdk_subsystem_init(subsystems_started, context);
}
#endif

/* Starts SPDK with a configuration in its own JSON form. `socket` is a path that nobody else uses. Returns 0 or a negative
 * errno; the calling thread has to call weir_spdk_tend from then on. */
int weir_spdk_start(const char *config, char *json, size_t json_len, const char *socket, uint32_t memory_mib, int huge_pages,
		    uint32_t seconds_max)
{
	struct spdk_env_opts options;
	struct start start = { .json = json, .json_len = json_len };
	uint64_t until;
	int result;

	memset(&options, 0, sizeof(options));
#if OPTIONS_HAVE_SIZE
	options.opts_size = sizeof(options);
#endif
	spdk_env_opts_init(&options);
	options.name = "weir";
	options.shm_id = -1;
	options.mem_size = (int)memory_mib;
	if (!huge_pages) {
		options.no_pci = true;
#if KNOWS_NO_HUGE
		options.no_huge = true;
#else
		options.iova_mode = "va";
		/* Memory that is no huge pages can't be allocated piece by piece. */
		options.env_context = "--no-huge --legacy-mem";
#endif
	}
	result = spdk_env_init(&options);
	if (result < 0) {
		return result;
	}
	result = spdk_thread_lib_init(NULL, 0);
	if (result != 0) {
		return result;
	}
	app_thread = spdk_thread_create("weir-app", NULL);
	if (app_thread == NULL) {
		return -ENOMEM;
	}
	spdk_set_thread(app_thread);
#if LOADS_FROM_MEMORY
	(void)config;
	(void)socket;
	spdk_subsystem_load_config(json, (ssize_t)json_len, configured_for_start, &start, true);
#else
	spdk_subsystem_init_from_json_config(config, socket, started, &start, true);
#endif
	until = spdk_get_ticks() + (uint64_t)seconds_max * spdk_get_ticks_hz();
	while (!start.ended && spdk_get_ticks() < until) {
		if (spdk_thread_poll(app_thread, 0, 0) == 0) {
			usleep(100);
		}
	}
	return start.ended ? start.result : -ETIMEDOUT;
}

/* One turn of what SPDK has to do beside transfers. */
void weir_spdk_tend(void)
{
	spdk_set_thread(app_thread);
	spdk_thread_poll(app_thread, 0, 0);
}

static void happened(enum spdk_bdev_event_type type, struct spdk_bdev *bdev, void *context)
{
	struct weir_spdk_device *device = context;

	(void)bdev;
	if (type == SPDK_BDEV_EVENT_REMOVE) {
		device->removed = true;
	}
}

/* Opens a device of SPDK's by name for the calling thread. Returns 0 or a negative errno. */
int weir_spdk_open(const char *name, int for_writing, struct weir_spdk_device **opened, struct weir_spdk_info *info)
{
	struct weir_spdk_device *device = calloc(1, sizeof(*device));
	int result;

	if (device == NULL) {
		return -ENOMEM;
	}
	device->thread = spdk_thread_create(name, NULL);
	if (device->thread == NULL) {
		free(device);
		return -ENOMEM;
	}
	spdk_set_thread(device->thread);
	result = spdk_bdev_open_ext(name, for_writing != 0, happened, device, &device->descriptor);
	if (result == 0) {
		device->bdev = spdk_bdev_desc_get_bdev(device->descriptor);
		device->channel = spdk_bdev_get_io_channel(device->descriptor);
		if (device->channel == NULL) {
			spdk_bdev_close(device->descriptor);
			result = -ENOMEM;
		} else if (for_writing != 0) {
			/* A claim, so that nobody else opens it for writing. */
			result = spdk_bdev_module_claim_bdev_desc(device->descriptor, SPDK_BDEV_CLAIM_READ_MANY_WRITE_ONE,
								  NULL, &claimant);
			if (result != 0) {
				spdk_put_io_channel(device->channel);
				spdk_bdev_close(device->descriptor);
			}
		}
	}
	if (result == 0) {
		info->block = spdk_bdev_get_block_size(device->bdev);
		info->bytes = spdk_bdev_get_num_blocks(device->bdev) * info->block;
		*opened = device;
		return 0;
	}
	spdk_thread_exit(device->thread);
	while (!spdk_thread_is_exited(device->thread)) {
		spdk_thread_poll(device->thread, 0, 0);
	}
	spdk_thread_destroy(device->thread);
	free(device);
	return result;
}

/* One turn of a device. Returns whether there was anything to do. */
int weir_spdk_poll(struct weir_spdk_device *device)
{
	return spdk_thread_poll(device->thread, 0, 0) > 0;
}

/* Whether the device has been taken away from SPDK. */
int weir_spdk_is_removed(const struct weir_spdk_device *device)
{
	return device->removed;
}

/* Closes a device that has no transfer under way. Returns 0, or -EBUSY when SPDK does not let go of it in time. */
int weir_spdk_close(struct weir_spdk_device *device)
{
	uint64_t until = spdk_get_ticks() + 5 * spdk_get_ticks_hz();

	spdk_set_thread(device->thread);
	spdk_put_io_channel(device->channel);
	spdk_bdev_close(device->descriptor);
	spdk_thread_exit(device->thread);
	while (!spdk_thread_is_exited(device->thread)) {
		spdk_thread_poll(device->thread, 0, 0);
		if (spdk_get_ticks() > until) {
			return -EBUSY;
		}
	}
	spdk_thread_destroy(device->thread);
	free(device);
	return 0;
}

/* Memory that drives can reach; NULL when there is none left. */
void *weir_spdk_allocate(size_t len)
{
	return spdk_dma_malloc(len, 4096, NULL);
}

void weir_spdk_release(void *memory)
{
	spdk_dma_free(memory);
}

static void finish(struct request *request, int failed)
{
	weir_spdk_done done = request->done;
	void *context = request->context;

	free(request);
	done(context, failed);
}

static void submit(void *context);

static void completed(struct spdk_bdev_io *io, bool success, void *context)
{
	struct request *request = context;

	spdk_bdev_free_io(io);
	if (success && request->kind == WEIR_SPDK_WRITE_STABLE) {
		request->kind = WEIR_SPDK_FLUSH;
		submit(request);
		return;
	}
	finish(request, success ? 0 : -EIO);
}

static void submit(void *context)
{
	struct request *request = context;
	struct weir_spdk_device *device = request->device;
	int result = -EINVAL;

	switch (request->kind) {
	case WEIR_SPDK_READ:
		result = spdk_bdev_read(device->descriptor, device->channel, request->memory, request->offset, request->len,
					completed, request);
		break;
	case WEIR_SPDK_WRITE:
	case WEIR_SPDK_WRITE_STABLE:
		result = spdk_bdev_write(device->descriptor, device->channel, request->memory, request->offset,
					 request->len, completed, request);
		break;
	case WEIR_SPDK_FLUSH:
		/* A device without a volatile cache has nothing to flush. */
		if (!spdk_bdev_io_type_supported(device->bdev, SPDK_BDEV_IO_TYPE_FLUSH)) {
			finish(request, 0);
			return;
		}
		result = spdk_bdev_flush(device->descriptor, device->channel, request->offset, request->len, completed,
					 request);
		break;
	}
	if (result == -ENOMEM) {
		request->wait.bdev = device->bdev;
		request->wait.cb_fn = submit;
		request->wait.cb_arg = request;
		result = spdk_bdev_queue_io_wait(device->bdev, device->channel, &request->wait);
	}
	if (result != 0) {
		finish(request, result);
	}
}

/* Begins a transfer; `done` is called on this thread, perhaps before this returns. Returns 0, or -ENOMEM, and then `done` is
 * not called. */
int weir_spdk_begin(struct weir_spdk_device *device, int kind, void *memory, uint64_t offset, uint64_t len,
		    weir_spdk_done done, void *context)
{
	struct request *request = calloc(1, sizeof(*request));

	if (request == NULL) {
		return -ENOMEM;
	}
	*request = (struct request){
		.device = device,
		.kind = (enum weir_spdk_kind)kind,
		.memory = memory,
		.offset = offset,
		.len = len,
		.done = done,
		.context = context,
	};
	spdk_set_thread(device->thread);
	submit(request);
	return 0;
}
