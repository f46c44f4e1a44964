/*
 * A flat face on Mercury for Rust.
 *
 * A message is a Mercury request that wants no response; memory moves by Mercury's bulk transfers. Callbacks end on
 * this side: what has happened is handed out as a list of events. Bulk descriptors are never decoded from what a peer
 * sent: Mercury's decoder trusts its input. They travel as three numbers and are put together again here, in the layout
 * that `weir_hg_open` compares with what the library itself writes.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mercury.h>
#include <mercury_bulk.h>
#include <mercury_core.h>
#include <na.h>

#if HG_VERSION_MAJOR < 2 || (HG_VERSION_MAJOR == 2 && HG_VERSION_MINOR < 4)
#error "Weir needs Mercury 2.4 or newer"
#endif

/* The request that a message is: "WEIR". */
#define MESSAGE_ID 0x57454952

/* Origins that are kept for the next messages: thirty-two credits of sixteen peers. */
#define SPARE_MAX 512

/* Longest descriptor of one segment in any plugin whose layout is known. */
#define DESCRIPTOR_MAX 128

enum { EVENT_MESSAGE = 1, EVENT_SENT = 2, EVENT_MOVED = 3 };

struct weir_hg_event {
	uint32_t kind;
	int32_t status;
	/* Of the send or the transfer. */
	uint64_t token;
	/* Of a message: to be released. */
	void *handle;
	/* Who sent it; the same number as that of the address it would be found by. */
	uint64_t source;
	const uint8_t *data;
	uint64_t len;
};

_Static_assert(sizeof(struct weir_hg_event) == 48, "event layout");

struct weir_hg {
	hg_class_t *class;
	hg_context_t *context;
	hg_core_context_t *core;
	na_class_t *na;
	/* The plugin for shared memory, which has a layout and addresses of its own. */
	bool sm;
	/* Where the list of the poll under way is. */
	struct weir_hg_event *events;
	uint32_t count, room;
	hg_core_handle_t spare[SPARE_MAX];
	uint32_t spares;
};

/* A transfer under way. */
struct weir_hg_move {
	struct weir_hg *owner;
	hg_bulk_t origin;
	uint64_t token;
	hg_op_id_t op;
};

/* What one segment looks like when it travels; see hg_bulk_serialize in Mercury. */
struct segment_head {
	uint64_t len;
	uint32_t segments, flags;
	uint64_t base, base_len;
	uint64_t memory_size;
};

struct ofi_memory {
	uint64_t key, len, vectors;
	uint8_t flags, pad[7];
	uint64_t base, base_len;
};

struct sm_memory {
	uint64_t vectors, len;
	uint8_t flags, pad[7];
	uint64_t base, base_len;
};

static struct weir_hg *owner_of(hg_core_handle_t handle)
{
	return HG_Core_context_get_data(HG_Core_get_info(handle)->context);
}

static struct weir_hg_event *next_event(struct weir_hg *hg, uint32_t kind, int32_t status)
{
	struct weir_hg_event *event;

	if (hg == NULL || hg->events == NULL || hg->count >= hg->room)
		return NULL;
	event = &hg->events[hg->count++];
	memset(event, 0, sizeof *event);
	event->kind = kind;
	event->status = status;
	return event;
}

/* Shared memory: a connection has an object of its own, what stays is process and number. Elsewhere each address has
 * one object for as long as the class lives. */
static uint64_t number_of(struct weir_hg *hg, na_addr_t *addr)
{
	uint64_t words[2] = {0, 0};

	if (!hg->sm)
		return (uint64_t) (uintptr_t) addr;
	if (NA_Addr_get_serialize_size(hg->na, addr) > sizeof words
	    || NA_Addr_serialize(hg->na, words, sizeof words, addr) != NA_SUCCESS)
		return 0;
	/* Four bytes of process, one of number; what follows is padding. */
	return words[0] & 0xffffffffffull;
}

static hg_return_t message_arrived(hg_core_handle_t handle)
{
	struct weir_hg *hg = owner_of(handle);
	struct weir_hg_event *event = next_event(hg, EVENT_MESSAGE, HG_SUCCESS);
	hg_size_t room = 0;
	void *data = NULL;

	if (event == NULL)
		return HG_Core_destroy(handle);
	if (HG_Core_get_input(handle, &data, &room) == HG_SUCCESS) {
		event->data = data;
		event->len = HG_Core_get_input_payload_size(handle);
	}
	event->handle = handle;
	event->source = number_of(hg, HG_Core_addr_get_na(HG_Core_get_info(handle)->addr));
	return HG_SUCCESS;
}

/* Requests that announce more than they carry are none of ours. */
static hg_return_t refuse_more(hg_core_handle_t handle, hg_op_t op, void (*done)(hg_core_handle_t, hg_return_t))
{
	(void) handle, (void) op, (void) done;
	return HG_OPNOTSUPPORTED;
}

static void release_more(hg_core_handle_t handle)
{
	(void) handle;
}

static size_t memory_size(const struct weir_hg *hg)
{
	return hg->sm ? sizeof(struct sm_memory) : sizeof(struct ofi_memory);
}

/* Writes the descriptor of one segment. */
static size_t write_descriptor(const struct weir_hg *hg, uint8_t *bytes, uint64_t base, uint64_t key, uint64_t len,
			       uint8_t flags)
{
	struct segment_head head = {
		.len = len,
		.segments = 1,
		.flags = flags,
		.base = base,
		.base_len = len,
		.memory_size = memory_size(hg),
	};
	struct ofi_memory ofi = {.key = key, .len = len, .vectors = 1, .flags = flags, .base = base, .base_len = len};
	struct sm_memory sm = {.vectors = 1, .len = len, .flags = flags, .base = base, .base_len = len};

	memcpy(bytes, &head, sizeof head);
	if (hg->sm)
		memcpy(bytes + sizeof head, &sm, sizeof sm);
	else
		memcpy(bytes + sizeof head, &ofi, sizeof ofi);
	return sizeof head + memory_size(hg);
}

/* Reads the key from a descriptor that the library wrote, and makes sure that we would have written the same. */
static int read_key(const struct weir_hg *hg, hg_bulk_t bulk, uint64_t base, uint64_t len, uint8_t flags, uint64_t *key)
{
	uint8_t theirs[DESCRIPTOR_MAX], ours[DESCRIPTOR_MAX];
	struct ofi_memory ofi;
	hg_size_t size = HG_Bulk_get_serialize_size(bulk, 0);
	size_t flags_at = sizeof(struct segment_head);
	hg_return_t ret;

	if (size != sizeof(struct segment_head) + memory_size(hg) || size > DESCRIPTOR_MAX)
		return HG_PROTOCOL_ERROR;
	ret = HG_Bulk_serialize(theirs, size, 0, bulk);
	if (ret != HG_SUCCESS)
		return ret;
	*key = 0;
	if (hg->sm) {
		flags_at += offsetof(struct sm_memory, flags);
	} else {
		memcpy(&ofi, theirs + sizeof(struct segment_head), sizeof ofi);
		*key = ofi.key;
		flags_at += offsetof(struct ofi_memory, flags);
	}
	/* The padding behind the flags is whatever was in memory. */
	memset(theirs + flags_at + 1, 0, 7);
	if (write_descriptor(hg, ours, base, *key, len, flags) != size || memcmp(ours, theirs, size) != 0)
		return HG_PROTOCOL_ERROR;
	return HG_SUCCESS;
}

int weir_hg_expose(struct weir_hg *hg, void *base, uint64_t len, uint8_t flags, hg_bulk_t *bulk, uint64_t *key)
{
	hg_size_t size = len;
	int ret = HG_Bulk_create(hg->class, 1, &base, &size, flags, bulk);

	if (ret != HG_SUCCESS)
		return ret;
	ret = read_key(hg, *bulk, (uint64_t) (uintptr_t) base, len, flags, key);
	if (ret != HG_SUCCESS)
		(void) HG_Bulk_free(*bulk);
	return ret;
}

int weir_hg_conceal(hg_bulk_t bulk)
{
	return HG_Bulk_free(bulk);
}

/* Ends everything. Fails, and frees nothing that is still in use, while operations are under way. */
int weir_hg_close(struct weir_hg *hg)
{
	int ret = HG_SUCCESS;

	while (hg->spares > 0)
		(void) HG_Core_destroy(hg->spare[--hg->spares]);
	if (hg->context != NULL)
		ret = HG_Context_destroy(hg->context);
	if (ret == HG_SUCCESS) {
		hg->context = NULL;
		ret = hg->class != NULL ? HG_Finalize(hg->class) : HG_SUCCESS;
	}
	if (ret == HG_SUCCESS)
		free(hg);
	return ret;
}

static int set_up(struct weir_hg *hg)
{
	hg_core_class_t *core;
	hg_return_t ret;

	hg->context = HG_Context_create(hg->class);
	if (hg->context == NULL)
		return HG_OTHER_ERROR;
	core = hg->class->core_class;
	hg->core = hg->context->core_context;
	hg->na = HG_Core_class_get_na(core);
	hg->sm = strcmp(HG_Core_class_get_name(core), "na") == 0;
	ret = HG_Core_context_set_data(hg->core, hg, NULL);
	if (ret == HG_SUCCESS)
		ret = HG_Core_set_more_data_callback(core, refuse_more, release_more);
	if (ret == HG_SUCCESS)
		ret = HG_Core_register(core, MESSAGE_ID, message_arrived);
	if (ret == HG_SUCCESS)
		ret = HG_Core_registered_disable_response(core, MESSAGE_ID, true);
	return ret;
}

/* Whether descriptors have the layout that is known here. */
static int check_layout(struct weir_hg *hg)
{
	static char probe[64];
	hg_bulk_t bulk = HG_BULK_NULL;
	uint64_t key = 0;
	int ret = weir_hg_expose(hg, probe, sizeof probe, HG_BULK_READ_ONLY, &bulk, &key);

	return ret == HG_SUCCESS ? weir_hg_conceal(bulk) : ret;
}

/* `layout` tells apart what failed. */
int weir_hg_open(const char *info, uint64_t message_max, uint32_t posts, struct weir_hg **out, uint32_t *layout)
{
	struct hg_init_info init = HG_INIT_INFO_INITIALIZER;
	struct weir_hg *hg = calloc(1, sizeof *hg);
	int ret = HG_NOMEM;

	*layout = 0;
	if (hg == NULL)
		return ret;
	/* Failures are reported to us; what the library writes on its own is for those who ask for it. */
	if (getenv("HG_LOG_LEVEL") == NULL)
		HG_Set_log_level("none");
	init.na_init_info.max_unexpected_size = message_max;
	init.na_init_info.thread_mode = NA_THREAD_MODE_SINGLE;
	init.request_post_init = posts;
	init.request_post_incr = (int32_t) posts;
	/* The fabric's own loops are the test of what goes over a network. */
	init.no_loopback = true;
	init.no_bulk_eager = true;
	hg->class = HG_Init_opt2(info, true, HG_VERSION(HG_VERSION_MAJOR, HG_VERSION_MINOR), &init);
	if (hg->class == NULL) {
		free(hg);
		return HG_OTHER_ERROR;
	}
	ret = set_up(hg);
	if (ret == HG_SUCCESS) {
		ret = check_layout(hg);
		*layout = ret != HG_SUCCESS;
	}
	if (ret != HG_SUCCESS)
		(void) weir_hg_close(hg);
	else
		*out = hg;
	return ret;
}

void weir_hg_version(uint32_t *major, uint32_t *minor, uint32_t *patch)
{
	(void) HG_Version_get(major, minor, patch);
}

const char *weir_hg_reason(int code)
{
	return HG_Error_to_string((hg_return_t) code);
}

int weir_hg_wait_fd(const struct weir_hg *hg)
{
	return HG_Event_get_wait_fd(hg->context);
}

/* Whether there is work at once, so that nobody must sleep. */
bool weir_hg_ready(struct weir_hg *hg)
{
	return HG_Event_ready(hg->context);
}

/* Largest message in one request. */
uint64_t weir_hg_message_max(const struct weir_hg *hg)
{
	return HG_Core_class_get_input_eager_size(hg->class->core_class);
}

bool weir_hg_is_sm(const struct weir_hg *hg)
{
	return hg->sm;
}

/* Moves things on and lists what has happened. Returns how much that is, or a negative error. */
int weir_hg_poll(struct weir_hg *hg, struct weir_hg_event *events, uint32_t room)
{
	unsigned int moved = 0, triggered = 0;
	hg_return_t ret = HG_Core_event_progress(hg->core, &moved);

	if (ret != HG_SUCCESS)
		return -(int) ret;
	hg->events = events;
	hg->room = room;
	hg->count = 0;
	ret = HG_Core_event_trigger(hg->core, room, &triggered);
	hg->events = NULL;
	return ret == HG_SUCCESS ? (int) hg->count : -(int) ret;
}

/* A message that was listed is done with. */
void weir_hg_release(void *handle)
{
	(void) HG_Core_destroy(handle);
}

int weir_hg_own_name(struct weir_hg *hg, char *text, uint64_t room)
{
	hg_size_t size = room;
	hg_addr_t own = HG_ADDR_NULL;
	int ret = HG_Addr_self(hg->class, &own);

	if (ret != HG_SUCCESS)
		return ret;
	ret = HG_Addr_to_string(hg->class, text, &size, own);
	(void) HG_Addr_free(hg->class, own);
	return ret;
}

int weir_hg_lookup(struct weir_hg *hg, const char *name, hg_addr_t *addr, uint64_t *number)
{
	int ret = HG_Addr_lookup2(hg->class, name, addr);

	if (ret == HG_SUCCESS)
		*number = number_of(hg, HG_Core_addr_get_na((hg_core_addr_t) *addr));
	return ret;
}

void weir_hg_forget(struct weir_hg *hg, hg_addr_t addr)
{
	(void) HG_Addr_free(hg->class, addr);
}

/* A request to this address, and where its payload goes. */
int weir_hg_prepare(struct weir_hg *hg, hg_addr_t addr, hg_core_handle_t *handle, uint8_t **data, uint64_t *room)
{
	void *input = NULL;
	hg_size_t size = 0;
	int ret;

	if (hg->spares > 0) {
		*handle = hg->spare[--hg->spares];
		ret = HG_Core_reset(*handle, (hg_core_addr_t) addr, MESSAGE_ID);
	} else {
		ret = HG_Core_create(hg->core, (hg_core_addr_t) addr, MESSAGE_ID, handle);
		if (ret != HG_SUCCESS)
			return ret;
	}
	if (ret == HG_SUCCESS)
		ret = HG_Core_get_input(*handle, &input, &size);
	if (ret != HG_SUCCESS) {
		(void) HG_Core_destroy(*handle);
		return ret;
	}
	*data = input;
	*room = size;
	return HG_SUCCESS;
}

/* The request is not needed any more. */
static void keep(struct weir_hg *hg, hg_core_handle_t handle)
{
	if (hg->spares < SPARE_MAX)
		hg->spare[hg->spares++] = handle;
	else
		(void) HG_Core_destroy(handle);
}

static hg_return_t message_sent(const struct hg_core_cb_info *info)
{
	hg_core_handle_t handle = info->info.forward.handle;
	struct weir_hg *hg = owner_of(handle);
	struct weir_hg_event *event = next_event(hg, EVENT_SENT, (int32_t) info->ret);

	if (event != NULL)
		event->token = (uint64_t) (uintptr_t) info->arg;
	keep(hg, handle);
	return HG_SUCCESS;
}

/* Sends a prepared request; it is gone whatever is returned. */
int weir_hg_send(struct weir_hg *hg, hg_core_handle_t handle, uint64_t len, uint64_t token)
{
	int ret = HG_Core_forward(handle, message_sent, (void *) (uintptr_t) token, 0, len);

	if (ret != HG_SUCCESS)
		(void) HG_Core_destroy(handle);
	(void) hg;
	return ret;
}

void weir_hg_cancel(hg_core_handle_t handle)
{
	(void) HG_Core_cancel(handle);
}

static hg_return_t memory_moved(const struct hg_cb_info *info)
{
	struct weir_hg_move *move = info->arg;
	struct weir_hg_event *event = next_event(move->owner, EVENT_MOVED, (int32_t) info->ret);

	if (event != NULL)
		event->token = move->token;
	(void) HG_Bulk_free(move->origin);
	free(move);
	return HG_SUCCESS;
}

/* Moves bytes between local memory and that of a peer: `pull` reads it. `base` and `offset` are what the plugin takes
 * for the start of the peer's memory; see address.rs. An endpoint's own address is refused: Mercury would copy from
 * whatever address a peer made up. */
int weir_hg_move(struct weir_hg *hg, bool pull, hg_addr_t addr, uint64_t base, uint64_t key, uint64_t offset,
		 hg_bulk_t local, uint64_t at, uint64_t len, uint64_t token, struct weir_hg_move **under_way)
{
	uint8_t bytes[DESCRIPTOR_MAX];
	size_t size = write_descriptor(hg, bytes, base, key, offset + len, pull ? HG_BULK_READ_ONLY : HG_BULK_WRITE_ONLY);
	struct weir_hg_move *move;
	int ret;

	if (HG_Core_addr_is_self((hg_core_addr_t) addr))
		return HG_PERMISSION;
	move = calloc(1, sizeof *move);
	if (move == NULL)
		return HG_NOMEM;
	move->owner = hg;
	move->token = token;
	ret = HG_Bulk_deserialize(hg->class, &move->origin, bytes, size);
	if (ret == HG_SUCCESS) {
		ret = HG_Bulk_transfer(hg->context, memory_moved, move, pull ? HG_BULK_PULL : HG_BULK_PUSH, addr,
				       move->origin, offset, local, at, len, &move->op);
		if (ret != HG_SUCCESS)
			(void) HG_Bulk_free(move->origin);
	}
	if (ret != HG_SUCCESS)
		free(move);
	else
		*under_way = move;
	return ret;
}

/* Only for one that has not been listed as moved. */
void weir_hg_stop_move(struct weir_hg_move *move)
{
	(void) HG_Bulk_cancel(move->op);
}
