/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous calls: a queue of many, events of no queue, parents and children, and queues that are busy. */
#include "check.h"

#define EVENTS 64
#define VALUE_BYTES 40000

static char values[EVENTS][VALUE_BYTES];

static void
queue(daos_handle_t kv)
{
	static daos_event_t events[EVENTS];
	daos_event_t *done[16];
	daos_handle_t eq;
	int left = EVENTS;

	OK(daos_eq_create(&eq));
	CHECK_RC(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 16, done), 0);
	CHECK_RC(daos_eq_poll(eq, 0, 1000, 16, done), 0);
	for (int i = 0; i < EVENTS; i++) {
		char key[16];

		memset(values[i], 'a' + i % 26, VALUE_BYTES);
		snprintf(key, sizeof(key), "e%d", i);
		OK(daos_event_init(&events[i], eq, NULL));
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, VALUE_BYTES, values[i], &events[i]));
	}
	CHECK(daos_eq_query(eq, DAOS_EQR_ALL, 0, NULL) == EVENTS);
	while (left > 0) {
		int found = daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 16, done);

		CHECK(found > 0 && found <= 16);
		for (int i = 0; i < found; i++) {
			OK(done[i]->ev_error);
			OK(daos_event_fini(done[i]));
		}
		left -= found;
	}
	CHECK_RC(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 16, done), 0);
	OK(daos_eq_destroy(eq, 0));
	CHECK_RC(daos_eq_destroy(eq, 0), -DER_NO_HDL);
}

static void
no_queue(daos_handle_t kv)
{
	daos_event_t event;
	daos_size_t size = VALUE_BYTES;
	bool complete = false;

	OK(daos_event_init(&event, DAOS_HDL_INVAL, NULL));
	memset(values[0], 0, VALUE_BYTES);
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "e3", &size, values[0], &event));
	while (!complete)
		OK(daos_event_test(&event, 1000, &complete));
	OK(event.ev_error);
	CHECK(size == VALUE_BYTES && values[0][0] == 'd' && values[0][VALUE_BYTES - 1] == 'd');
	/* The same event again; its operation fails, its launch doesn't. */
	OK(daos_kv_get(kv, DAOS_TX_NONE, DAOS_COND_KEY_GET, "missing", &size, values[0], &event));
	OK(daos_event_test(&event, DAOS_EQ_WAIT, &complete));
	CHECK(complete);
	CHECK_RC(event.ev_error, -DER_NONEXIST);
	OK(daos_event_fini(&event));
	CHECK_RC(daos_event_fini(&event), -DER_INVAL);
}

static void
parent(daos_handle_t kv)
{
	daos_event_t parents, children[8], *done;
	daos_size_t sizes[8];
	daos_handle_t eq;

	OK(daos_eq_create(&eq));
	OK(daos_event_init(&parents, eq, NULL));
	for (int i = 0; i < 8; i++) {
		char key[16];

		snprintf(key, sizeof(key), "e%d", i);
		OK(daos_event_init(&children[i], eq, &parents));
		OK(daos_kv_get(kv, DAOS_TX_NONE, 0, key, &sizes[i], NULL, &children[i]));
	}
	OK(daos_event_parent_barrier(&parents));
	CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1);
	CHECK(done == &parents);
	/* Both again: the failure of a child is its round's only. */
	for (int round = 0; round < 2; round++) {
		const char *key = round == 0 ? "missing" : "e1";
		int flags = round == 0 ? DAOS_COND_KEY_GET : 0;

		OK(daos_kv_get(kv, DAOS_TX_NONE, flags, key, &sizes[1], NULL, &children[1]));
		OK(daos_event_parent_barrier(&parents));
		CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1);
		CHECK_RC(parents.ev_error, round == 0 ? -DER_NONEXIST : 0);
	}
	for (int i = 0; i < 8; i++) {
		CHECK(sizes[i] == VALUE_BYTES);
		OK(daos_event_fini(&children[i]));
	}
	OK(daos_event_fini(&parents));
	/* An event that no poll has reported yet is not free for another operation. */
	OK(daos_event_init(&parents, eq, NULL));
	OK(daos_kv_get(kv, DAOS_TX_NONE, 0, "e1", &sizes[0], NULL, &parents));
	while (daos_eq_query(eq, DAOS_EQR_COMPLETED, 0, NULL) == 0)
		;
	CHECK_RC(daos_kv_get(kv, DAOS_TX_NONE, 0, "e1", &sizes[0], NULL, &parents), -DER_BUSY);
	CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1);
	OK(daos_event_fini(&parents));
	OK(daos_eq_destroy(eq, 0));
}

static void
forced(daos_handle_t kv)
{
	static daos_event_t events[EVENTS];
	daos_handle_t eq;

	OK(daos_eq_create(&eq));
	for (int i = 0; i < EVENTS; i++) {
		OK(daos_event_init(&events[i], eq, NULL));
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "forced", VALUE_BYTES, values[i], &events[i]));
	}
	CHECK_RC(daos_eq_destroy(eq, 0), -DER_BUSY);
	OK(daos_eq_destroy(eq, DAOS_EQ_DESTROY_FORCE));
	for (int i = 0; i < EVENTS; i++)
		OK(daos_event_fini(&events[i]));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, kv;
	daos_obj_id_t oid = {.lo = 1, .hi = 0};

	CHECK(argc == 2);
	start(argv, "c-events", &poh, &coh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	queue(kv);
	no_queue(kv);
	parent(kv);
	forced(kv);
	OK(daos_kv_close(kv, NULL));
	return finish("c-events", poh, coh);
}
