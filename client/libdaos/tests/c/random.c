/* SPDX-License-Identifier: Apache-2.0 */
/* Random calls: handles of any kind, open, closed or made up, and arguments that may be NULL, zero, fitting, overlapping or beyond every
 * limit. Each call gives 0 or an error with a name, writes nothing beside the memory that it was given, and leaves a library that does
 * what it is asked. A run is repeated by its seed (WEIR_RANDOM_SEED; WEIR_RANDOM_CALLS: how many calls). */
#include <daos/common.h>

#include "check.h"

enum kind { POOL, CONTAINER, OBJECT, KV, ARRAY, QUEUE, TX, OIT, KINDS };

/* Handles that were given out; closed ones stay among them until another one takes their place. */
#define SLOTS 4
static daos_handle_t handles[KINDS][SLOTS];

#define ROOM 4096
#define MARGIN 64
static struct {
	unsigned char before[MARGIN], bytes[ROOM], after[MARGIN];
} memory[3];

static char **arguments;
static char label[32];
static uint64_t state, seed, step;
/* Calls that gave 0, and others. */
static uint64_t fine, refused;

/* The generator of Marsaglia, of 64 bits with shifts 13, 7 and 17. */
static uint64_t
draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t
below(uint64_t bound)
{
	return draw() % bound;
}

static bool
seldom(void)
{
	return below(12) == 0;
}

/* A number that somebody may take for a size, a count, an index or flags. */
static uint64_t
number(void)
{
	static const uint64_t edges[] = {0, 1, 2, 7, 8, 63, 64, 255, 1024, 4095, 4096, 4097, 65536,
					 1ULL << 31, (1ULL << 32) - 1, 1ULL << 32, 1ULL << 62, 1ULL << 63, UINT64_MAX - 1, UINT64_MAX};

	return below(3) == 0 ? draw() : edges[below(sizeof(edges) / sizeof(edges[0]))];
}

static uint64_t
small(void)
{
	return seldom() ? number() : below(9);
}

/* A handle, most often of the wanted kind. */
static daos_handle_t
of(enum kind kind)
{
	if (seldom())
		return below(2) ? DAOS_HDL_INVAL : (daos_handle_t){.cookie = draw()};
	if (seldom())
		kind = (enum kind)below(KINDS);
	return handles[kind][below(SLOTS)];
}

static daos_handle_t *
place_for(enum kind kind)
{
	return seldom() ? NULL : &handles[kind][below(SLOTS)];
}

static daos_handle_t
within(void)
{
	return below(3) ? DAOS_TX_NONE : of(TX);
}

static uint64_t
flags(void)
{
	return below(3) ? 0 : below(2) ? 1ULL << below(10) : number();
}

static daos_obj_id_t
object(void)
{
	daos_obj_id_t oid = {.hi = number(), .lo = below(4)};

	if (!seldom()) {
		oid = (daos_obj_id_t){.lo = below(4)};
		/* What comes of what can't be is an id, too. */
		(void)daos_obj_generate_oid(of(CONTAINER), &oid, below(DAOS_OT_MAX + 2), seldom() ? (daos_oclass_id_t)number() : OC_S1, 0, 0);
	}
	return oid;
}

/* An iov over a part of the memory; its length is no larger than what is there. */
static d_iov_t
part(int which)
{
	size_t len = seldom() ? below(ROOM) : below(40);
	d_iov_t iov = {.iov_buf = memory[which].bytes, .iov_buf_len = len, .iov_len = len};

	if (seldom())
		iov.iov_len = below(len + 1);
	if (seldom())
		iov = (d_iov_t){0};
	if (seldom())
		iov.iov_buf = NULL;
	return iov;
}

static daos_key_t
key(void)
{
	static const char *names = "abcd";
	daos_key_t key = {.iov_buf = (void *)&names[below(4)], .iov_buf_len = 1, .iov_len = 1};

	return seldom() ? part(2) : key;
}

static void
check(const char *call, int rc)
{
	bool known = rc == 0 || (rc < 0 && strcmp(d_errstr(rc), "DER_UNKNOWN") != 0);
	bool whole = true;

	*(rc == 0 ? &fine : &refused) += 1;
	for (int which = 0; which < 3; which++)
		for (int at = 0; at < MARGIN; at++)
			whole &= memory[which].before[at] == 0x5a && memory[which].after[at] == 0x5a;
	if (!known || !whole || rc == -DER_TIMEDOUT) {
		fprintf(stderr, "seed %lu, call %lu: %s gave " DF_RC "%s\n", (unsigned long)seed, (unsigned long)step, call, DP_RC(rc),
			whole ? "" : " and wrote beside its memory");
		exit(1);
	}
}

static daos_event_t event;

/* NULL, or an event for an operation that `ended` waits for. */
static daos_event_t *
launching(void)
{
	daos_handle_t queue = handles[QUEUE][0];

	if (below(4))
		return NULL;
	memset(&event, 0, sizeof(event));
	if (seldom())
		return &event;
	if (daos_event_init(&event, below(2) ? queue : DAOS_HDL_INVAL, NULL))
		OK(daos_event_init(&event, DAOS_HDL_INVAL, NULL));
	return &event;
}

static void
ended(const char *call, daos_event_t *ev, int rc)
{
	bool done = false;
	int end;

	check(call, rc);
	if (ev == NULL)
		return;
	end = daos_event_test(ev, rc == 0 ? 30 * 1000 * 1000 : DAOS_EQ_NOWAIT, &done);
	check("daos_event_test", end);
	if (rc == 0) {
		CHECK(end == 0 && done);
		check(call, ev->ev_error);
	}
	check("daos_event_fini", daos_event_fini(ev));
}

#define CALL(name, ...) \
	do { \
		daos_event_t *ev = launching(); \
		ended(#name, ev, name(__VA_ARGS__, ev)); \
	} while (0)
#define CALL_AT_ONCE(name, ...) check(#name, name(__VA_ARGS__))

/* Values that calls read and write; static, for operations that go on. */
#define PARTS 3
static daos_iod_t iods[PARTS];
static d_sg_list_t sgls[PARTS];
static d_iov_t iovs[PARTS][PARTS];
static daos_recx_t recxs[PARTS][PARTS];
static daos_key_t dkey, keys[PARTS];
static daos_range_t ranges[PARTS];
static daos_array_iod_t cells;
static daos_key_desc_t kds[8];
static daos_anchor_t anchor;
static daos_obj_id_t oids[8];
static daos_epoch_range_t eprs[8];
static daos_size_t size, other_size;
static uint32_t count;
static daos_epoch_t epoch;
static uint64_t first;
static daos_array_stbuf_t stbuf;
static daos_cont_info_t about_container;
static daos_pool_info_t about_pool;

static void
draw_sgl(int index)
{
	for (int at = 0; at < PARTS; at++)
		iovs[index][at] = part((int)below(2));
	sgls[index] = (d_sg_list_t){.sg_nr = (uint32_t)below(PARTS + 1), .sg_iovs = seldom() ? NULL : iovs[index]};
}

static void
draw_values(void)
{
	dkey = key();
	for (int index = 0; index < PARTS; index++) {
		keys[index] = key();
		draw_sgl(index);
		for (int at = 0; at < PARTS; at++)
			recxs[index][at] = (daos_recx_t){.rx_idx = small(), .rx_nr = small()};
		iods[index] = (daos_iod_t){.iod_name = key(),
					   .iod_type = seldom() ? (daos_iod_type_t)below(5) : (daos_iod_type_t)(1 + below(2)),
					   .iod_size = small(),
					   .iod_flags = flags(),
					   .iod_nr = (unsigned int)below(PARTS + 1),
					   .iod_recxs = seldom() ? NULL : recxs[index]};
		if (iods[index].iod_type == DAOS_IOD_SINGLE && !seldom())
			iods[index].iod_nr = 1;
		ranges[index] = (daos_range_t){.rg_idx = small(), .rg_len = small()};
	}
	cells = (daos_array_iod_t){.arr_nr = below(PARTS + 1), .arr_rgs = seldom() ? NULL : ranges};
	if (below(3) == 0)
		memset(&anchor, seldom() ? 0xff : 0, sizeof(anchor));
	else if (seldom())
		for (size_t at = 0; at < sizeof(anchor); at++)
			((unsigned char *)&anchor)[at] = (unsigned char)draw();
	count = (uint32_t)below(9);
	size = seldom() ? number() : below(ROOM);
	epoch = seldom() ? number() : epoch;
}

#define MAYBE(pointer) (seldom() ? NULL : (pointer))

static void
call_object(void)
{
	unsigned int nr = (unsigned int)below(PARTS + 1);
	daos_handle_t oh = of(OBJECT), th = within();

	switch (below(14)) {
	case 0: CALL(daos_obj_open, of(CONTAINER), object(), (unsigned int)(below(3) ? DAOS_OO_RW : number()), place_for(OBJECT)); break;
	case 1: CALL(daos_obj_close, oh); break;
	case 2:
	case 3:
	case 4: CALL(daos_obj_update, oh, th, flags(), MAYBE(&dkey), nr, MAYBE(iods), MAYBE(sgls)); break;
	case 5:
	case 6: CALL(daos_obj_fetch, oh, th, flags(), MAYBE(&dkey), nr, MAYBE(iods), MAYBE(sgls), NULL); break;
	case 7: CALL(daos_obj_punch_dkeys, oh, th, flags(), nr, MAYBE(keys)); break;
	case 8: CALL(daos_obj_punch_akeys, oh, th, flags(), MAYBE(&dkey), nr, MAYBE(keys)); break;
	case 9: CALL(daos_obj_list_dkey, oh, th, MAYBE(&count), MAYBE(kds), MAYBE(sgls), MAYBE(&anchor)); break;
	case 10: CALL(daos_obj_list_akey, oh, th, MAYBE(&dkey), MAYBE(&count), MAYBE(kds), MAYBE(sgls), MAYBE(&anchor)); break;
	case 11:
		CALL(daos_obj_list_recx, oh, th, MAYBE(&dkey), MAYBE(keys), MAYBE(&size), MAYBE(&count), MAYBE(recxs[0]),
		     MAYBE(eprs), MAYBE(&anchor), below(2));
		break;
	case 12: CALL(daos_obj_query_key, oh, th, flags(), MAYBE(&keys[0]), MAYBE(&keys[1]), MAYBE(recxs[0])); break;
	default: CALL(daos_obj_punch, oh, th, flags()); break;
	}
}

static void
call_values(void)
{
	daos_handle_t kv = of(KV), array = of(ARRAY), th = within();
	const char *name = seldom() ? NULL : seldom() ? "" : "key";

	size = below(40);
	switch (below(14)) {
	case 0: CALL(daos_kv_open, of(CONTAINER), object(), (unsigned int)(below(3) ? DAOS_OO_RW : number()), place_for(KV)); break;
	case 1: CALL(daos_kv_close, kv); break;
	case 2: CALL(daos_kv_put, kv, th, flags(), name, below(ROOM), MAYBE(memory[0].bytes)); break;
	case 3: CALL(daos_kv_get, kv, th, flags(), name, MAYBE(&size), MAYBE(memory[1].bytes)); break;
	case 4: CALL(daos_kv_remove, kv, th, flags(), name); break;
	case 5: CALL(daos_kv_list, kv, th, MAYBE(&count), MAYBE(kds), MAYBE(sgls), MAYBE(&anchor)); break;
	case 6: CALL(daos_array_create, of(CONTAINER), object(), th, small(), small(), place_for(ARRAY)); break;
	case 7:
		CALL(daos_array_open_with_attr, of(CONTAINER), object(), th, (unsigned int)(below(3) ? DAOS_OO_RW : number()), small(),
		     small(), place_for(ARRAY));
		break;
	case 8:
		CALL(daos_array_open, of(CONTAINER), object(), th, DAOS_OO_RW, MAYBE(&size), MAYBE(&other_size), place_for(ARRAY));
		break;
	case 9: CALL(daos_array_write, array, th, MAYBE(&cells), MAYBE(sgls)); break;
	case 10: CALL(daos_array_read, array, th, MAYBE(&cells), MAYBE(sgls)); break;
	case 11: CALL(daos_array_set_size, array, th, small()); break;
	case 12: CALL(daos_array_stat, array, th, MAYBE(&stbuf)); break;
	default: CALL(daos_array_close, array); break;
	}
}

static void
call_container(void)
{
	daos_handle_t coh = of(CONTAINER);
	daos_epoch_range_t one = {.epr_lo = epoch, .epr_hi = seldom() ? number() : epoch};
	d_iov_t glob = part(0);
	int snaps = (int)below(9);
	daos_epoch_t epochs[8];

	switch (below(15)) {
	case 0: CALL(daos_cont_open, of(POOL), seldom() ? NULL : label, (unsigned int)(below(3) ? DAOS_COO_RW : number()),
		     place_for(CONTAINER), MAYBE(&about_container)); break;
	case 1: CALL(daos_cont_close, coh); break;
	case 2: CALL(daos_cont_alloc_oids, coh, small(), MAYBE(&first)); break;
	case 3: CALL(daos_cont_query, coh, MAYBE(&about_container), NULL); break;
	case 4: CALL(daos_cont_create_snap, coh, MAYBE(&epoch), NULL); break;
	case 5: CALL(daos_cont_destroy_snap, coh, one); break;
	case 6: CALL_AT_ONCE(daos_cont_list_snap, coh, MAYBE(&snaps), MAYBE(epochs), NULL, &(daos_anchor_t){0}, NULL); break;
	case 7: CALL_AT_ONCE(daos_cont_local2global, coh, MAYBE(&glob)); break;
	case 8: CALL_AT_ONCE(daos_cont_global2local, of(POOL), glob, place_for(CONTAINER)); break;
	case 9: CALL_AT_ONCE(daos_array_global2local, coh, glob, (unsigned int)number(), place_for(ARRAY)); break;
	case 10: CALL(daos_oit_open, coh, epoch, place_for(OIT)); break;
	case 11: CALL(daos_oit_list, of(OIT), MAYBE(oids), MAYBE(&count), MAYBE(&anchor)); break;
	case 12: CALL(daos_oit_close, of(OIT)); break;
	case 13: CALL(daos_pool_query, of(POOL), NULL, MAYBE(&about_pool), NULL); break;
	default: CALL(daos_pool_disconnect, handles[POOL][1 + below(SLOTS - 1)]); break;
	}
}

static void
call_course(void)
{
	daos_event_t *found[4];
	daos_handle_t tx = of(TX);
	int rc;

	switch (below(10)) {
	case 0: CALL(daos_tx_open, of(CONTAINER), place_for(TX), flags()); break;
	case 1: CALL(daos_tx_commit, tx); break;
	case 2: CALL(daos_tx_abort, tx); break;
	case 3: CALL(daos_tx_close, tx); break;
	case 4: CALL(daos_tx_restart, tx); break;
	case 5: CALL(daos_tx_open_snap, of(CONTAINER), epoch, place_for(TX)); break;
	case 6: CALL_AT_ONCE(daos_tx_hdl2epoch, tx, MAYBE(&epoch)); break;
	case 7: CALL_AT_ONCE(daos_eq_create, place_for(QUEUE)); break;
	case 8: CALL_AT_ONCE(daos_eq_destroy, of(QUEUE), (int)small()); break;
	default:
		rc = daos_eq_poll(of(QUEUE), (int)below(2), seldom() ? -2 - (int64_t)(draw() >> 2) : DAOS_EQ_NOWAIT, (unsigned int)below(5),
				  MAYBE(found));
		check("daos_eq_poll", rc < 0 ? rc : 0);
	}
}

/* Whether a handle stands for something: what it leads to can be asked. */
static bool
works(enum kind kind, daos_handle_t handle)
{
	daos_size_t chunk, cell;

	switch (kind) {
	case POOL: return daos_pool_query(handle, NULL, NULL, NULL, NULL) == 0;
	case CONTAINER: return daos_cont_query(handle, NULL, NULL, NULL) == 0;
	case ARRAY: return daos_array_get_attr(handle, &chunk, &cell) == 0;
	default: return false;
	}
}

/* Gives the calls to come something that they can succeed with. */
static void
mend(void)
{
	daos_obj_id_t oid = {.lo = 7};

	if (!works(POOL, handles[POOL][0]))
		OK(daos_pool_connect(arguments[1], NULL, DAOS_PC_RW, &handles[POOL][0], NULL, NULL));
	if (!works(CONTAINER, handles[CONTAINER][0]))
		OK(daos_cont_open(handles[POOL][0], label, DAOS_COO_RW, &handles[CONTAINER][0], NULL, NULL));
	OK(daos_obj_generate_oid(handles[CONTAINER][0], &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0));
	OK(daos_obj_open(handles[CONTAINER][0], oid, DAOS_OO_RW, &handles[OBJECT][below(SLOTS)], NULL));
	oid = (daos_obj_id_t){.lo = 8};
	OK(daos_obj_generate_oid(handles[CONTAINER][0], &oid, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
	OK(daos_kv_open(handles[CONTAINER][0], oid, DAOS_OO_RW, &handles[KV][below(SLOTS)], NULL));
	oid = (daos_obj_id_t){.lo = 9};
	OK(daos_array_generate_oid(handles[CONTAINER][0], &oid, false, OC_S1, 0, 0));
	OK(daos_array_open_with_attr(handles[CONTAINER][0], oid, DAOS_TX_NONE, DAOS_OO_RW, 1, 512, &handles[ARRAY][below(SLOTS)], NULL));
	OK(daos_tx_open(handles[CONTAINER][0], &handles[TX][below(SLOTS)], 0, NULL));
}

/* The library does what it is asked. */
static void
works_on(void)
{
	daos_handle_t coh, kv;
	daos_obj_id_t oid = {.lo = 1000};
	char value[8];
	daos_size_t len = sizeof(value);

	OK(daos_cont_open(handles[POOL][0], label, DAOS_COO_RW, &coh, NULL, NULL));
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "k", 5, "value", NULL));
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "k", &len, value, NULL));
	CHECK(len == 5 && memcmp(value, "value", 5) == 0);
	OK(daos_kv_close(kv, NULL));
	OK(daos_cont_close(coh, NULL));
}

static uint64_t
setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

int
main(int argc, char **argv)
{
	uint64_t calls = setting("WEIR_RANDOM_CALLS", 6000);
	uuid_t uuid;

	CHECK(argc > 1);
	arguments = argv;
	seed = setting("WEIR_RANDOM_SEED", 1);
	state = seed * 0x9e3779b97f4a7c15ULL + 1;
	snprintf(label, sizeof(label), "random-%lu", (unsigned long)seed);
	memset(memory, 0x5a, sizeof(memory));
	OK(daos_init());
	OK(daos_pool_connect(argv[1], NULL, DAOS_PC_RW, &handles[POOL][0], NULL, NULL));
	OK(daos_cont_create_with_label(handles[POOL][0], label, NULL, &uuid, NULL));
	OK(daos_eq_create(&handles[QUEUE][0]));
	for (step = 0; step < calls; step++) {
		if (step % 50 == 0)
			mend();
		draw_values();
		switch (below(8)) {
		case 0: call_course(); break;
		case 1: call_container(); break;
		case 2:
		case 3: call_values(); break;
		default: call_object();
		}
	}
	/* Neither is rare. */
	CHECK(fine > calls / 8 && refused > calls / 8);
	mend();
	works_on();
	OK(daos_cont_destroy(handles[POOL][0], label, 1, NULL));
	OK(daos_fini());
	printf("ok\n");
	return 0;
}
